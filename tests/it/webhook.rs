//! The webhook sink: order, retries, keys, signatures, TLS and secrets, against real servers.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener as StdListener,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use podmux::{
    db::Sequence,
    host::{Clock, Host},
    mux::{Mux, Notify, SourceChannel},
    pod::{ListingBuilder, Origin, Prepared, SourceName},
    registry::Config,
    sink::{DeliveryError, SinkFailing, SinkStatus},
};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::soon,
    script::pod,
    stream::Replica,
    web::{Authority, Reply, Seen, Web},
};

/// A mux with one source, and the delivery to a webhook.
struct Hook {
    mux: Mux,
    channel: Option<SourceChannel>,
    wanted: ListingBuilder,
    status: watch::Receiver<SinkStatus>,
    stop: CancellationToken,
    reload: Arc<dyn Fn() + Send + Sync>,
    task: JoinHandle<Result<(), DeliveryError>>,
}

impl Hook {
    fn start(sink: &str) -> Self {
        Self::on(sink, "run1", Host::default())
    }

    fn on(sink: &str, run: &str, host: Host) -> Self {
        let (mux, merging) = Mux::new(&[SourceName::File]);
        tokio::spawn(merging.run());
        let channel = mux.channel(SourceName::File);
        let numbers = Sequence::new(run, Timestamp::now());
        let updates = mux.updates(Notify::Incremental);
        let config = Config::parse(sink).unwrap();
        let open =
            config.open_sink(updates, numbers, &Arc::from("node"), &Arc::new(watch::Sender::default()), host);
        let open = open.unwrap().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn((open.run)(stop.clone()));
        let wanted = ListingBuilder::new(SourceName::File);
        Self { mux, channel, wanted, status: open.status, stop, reload: open.reload, task }
    }

    /// Publishes a listing of these pods.
    async fn want(&mut self, pods: &str) {
        self.want_all(pods.split_whitespace().map(pod).collect()).await;
    }

    async fn want_all(&mut self, pods: Vec<Prepared>) {
        self.wanted.put(&Origin::from("test"), pods, Timestamp::UNIX_EPOCH);
        let channel = self.channel.as_ref().unwrap();
        channel.publish(self.wanted.listing());
        assert!(soon(channel.merged()).await);
    }

    /// Waits for a failure whose error contains a text.
    async fn fails(&mut self, text: &str) -> SinkFailing {
        let failing = |status: &SinkStatus| status.failing.clone().filter(|now| now.error.contains(text));
        let status = soon(self.status.wait_for(|status| failing(status).is_some())).await;
        failing(&status.unwrap_or_else(|_| panic!("it ended without {text:?}"))).unwrap()
    }

    /// The last acknowledged update.
    fn last(&self) -> Option<u64> {
        self.status.borrow().acknowledged
    }

    /// Waits until an update is acknowledged after this one.
    async fn acknowledges(&mut self, after: Option<u64>) -> u64 {
        let status = soon(self.status.wait_for(|status| status.acknowledged > after)).await.unwrap();
        status.acknowledged.unwrap()
    }

    /// Ends the source; what is pending is delivered.
    async fn end(mut self) {
        self.channel = None;
        self.stop.cancel();
        soon(self.task).await.unwrap().unwrap();
        drop(self.mux);
    }
}

/// What a receiver holds that applies each idempotency key once, and a SET in parts with its last one.
fn held<'s>(seen: impl IntoIterator<Item = &'s Seen>) -> Replica {
    let (mut replica, mut keys, mut parts) = (Replica::default(), Vec::new(), Vec::new());
    for request in seen {
        let key = request.header("idempotency-key").to_owned();
        if keys.contains(&key) {
            continue;
        }
        keys.push(key);
        let mut update: Value = serde_json::from_slice(&request.body).unwrap();
        parts.append(update["pods"].as_array_mut().unwrap());
        if update.as_object_mut().unwrap().remove("more").is_none() {
            update["pods"] = std::mem::take(&mut parts).into();
            replica.take_line(&update.to_string());
        }
    }
    replica
}

fn names(replica: &Replica) -> Vec<&str> {
    replica.pods.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn failed_requests_are_sent_again_with_the_same_key_and_nothing_overtakes_them() {
    let web = Web::start(Reply::ok("")).await;
    let mut hook = Hook::start(&format!("webhook={},timeout=1s", web.at("/pods?key=s3cret")));
    hook.want("a").await;
    let begun = hook.acknowledges(None).await;
    web.asked(4).await;

    web.say(
        Reply::new(500, "no\r\n disk for key=s3cret").header("Content-Type", "text/plain; charset=utf-8"),
    );
    hook.want("a b").await;
    // What the server says of it may hold a part of the update, or of the URL: it is nowhere.
    let failing = hook.fails("500 Internal Server Error").await;
    assert!(failing.error.ends_with("Error") && !failing.error.contains("disk"), "{}", failing.error);
    hook.want("b").await;
    // A text that is not one, a redirect to a server that would accept it, and no answer at all.
    web.say(Reply::new(413, vec![0; 10_000]).header("Content-Type", "application/octet-stream"));
    let failing = hook.fails("413 Payload Too Large (set max-bytes to what the server accepts)").await;
    assert!(failing.error.ends_with("accepts)"), "{}", failing.error);
    web.say(Reply::to(307, "/elsewhere"));
    hook.fails("307 Temporary Redirect (redirects are not followed: give the URL that it leads to)").await;
    web.say(Reply::mute());
    hook.fails("sent no complete response within 1s").await;
    web.say(Reply::ok("thanks"));
    let last = hook.acknowledges(Some(begun)).await;
    hook.acknowledges(Some(last)).await;
    hook.end().await;

    let seen = web.seen();
    assert!(seen.iter().all(|request| request.path == "/pods?key=s3cret" && request.method == "POST"));
    assert!(seen.iter().all(|request| request.header("content-type") == "application/json"));
    let keys: Vec<&str> = seen.iter().map(|request| request.header("idempotency-key")).collect();
    for (request, key) in seen.iter().zip(&keys) {
        let update: Value = serde_json::from_slice(&request.body).unwrap();
        let parts: Vec<&str> = key.split('-').collect();
        assert_eq!(parts[..2], ["node", "run1"]);
        assert_eq!((parts[2].len(), parts[3]), (8, update["seq"].to_string().as_str()));
    }
    // An update is repeated until it is acknowledged, byte for byte, and then never again.
    let mut distinct = keys.clone();
    distinct.dedup();
    assert!(distinct.is_sorted() && keys.len() > distinct.len());
    let is_same = |pair: &[Seen]| {
        let same_key = pair[0].header("idempotency-key") == pair[1].header("idempotency-key");
        same_key == (pair[0].body == pair[1].body)
    };
    assert!(seen.windows(2).all(is_same));
    let replica = held(&seen);
    assert_eq!(replica.run.as_deref(), Some("run1"));
    assert_eq!(names(&replica), ["default/b"]);
}

#[tokio::test]
async fn another_run_and_another_sink_have_other_keys() {
    let web = Web::start(Reply::ok("")).await;
    for (path, run) in [("/a", "run1"), ("/a", "run2"), ("/b", "run1"), ("/a?x=y", "run3")] {
        let mut hook = Hook::on(&format!("webhook={}", web.at(path)), run, Host::default());
        hook.want("a").await;
        hook.acknowledges(None).await;
        hook.end().await;
    }
    let mut keys: Vec<_> =
        web.seen().iter().map(|request| request.header("idempotency-key").to_owned()).collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), all);
    // The name of a sink has no query.
    let sink = |run: &str| keys.iter().find(|key| key.contains(run)).unwrap().split('-').nth(2).unwrap();
    assert_eq!(sink("run2"), sink("run3"));
}

#[tokio::test]
async fn a_delay_that_the_server_asks_for_is_kept_up_to_ten_minutes_and_a_stop_ends_it() {
    let now: Timestamp = "2026-11-22T09:00:00Z".parse().unwrap();
    let host = Host { clock: Clock::from_fn(move || now), ..Host::default() };
    for (status, after, delay) in [
        (429, "120", 120),
        (503, "Sun, 22 Nov 2026 09:02:30 GMT", 150),
        (503, "Fri, 01 Jan 2100 00:00:00 GMT", 600),
        (503, "86400", 600),
    ] {
        let web = Web::start(Reply::new(status, "").header("Retry-After", after)).await;
        let mut hook = Hook::on(&format!("webhook={}", web.url), "run1", host.clone());
        hook.want("a").await;
        let failing = hook.fails("the server answered").await;
        assert_eq!(failing.next_attempt.duration_since(now).as_secs(), delay, "{after}");
        web.say(Reply::ok(""));
        hook.end().await;
        assert_eq!(names(&held(&web.seen())), ["default/a"]);
    }
    // With another status, or without a valid delay, the sink chooses its own delay.
    for (status, after) in [
        (500, "120"),
        (429, "soon"),
        (503, "-1"),
        (503, "0"),
        (503, "Sun, 22 Nov 2026 08:00:00 GMT"),
        (429, "99999999999999999999999"),
    ] {
        let web = Web::start(Reply::new(status, "").header("Retry-After", after)).await;
        let mut hook = Hook::on(&format!("webhook={}", web.url), "run1", host.clone());
        hook.want("a").await;
        let failing = hook.fails("the server answered").await;
        let delay = failing.next_attempt.duration_since(now);
        assert!(delay.as_millis() >= 250 && delay.as_millis() <= 1000, "{status} {after}: {delay:?}");
        hook.task.abort();
    }
}

/// A server that treats its first connections badly.
async fn rough(connection: usize, mut stream: TcpStream) {
    let mut read = [0; 1000];
    let _ = stream.read(&mut read).await;
    match connection {
        // Reset, closed, garbage, a head that is cut off, a head that is too large.
        0 => stream.set_zero_linger().unwrap(),
        1 => {}
        2 => drop(stream.write_all(b"220 mail.example ESMTP\r\n\r\n").await),
        3 => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").await),
        _ => drop(stream.write_all(&[b"HTTP/1.1 200 OK\r\nX: ", &vec![b'x'; 200_000][..]].concat()).await),
    }
}

#[tokio::test]
async fn a_server_that_resets_closes_or_speaks_no_http_acknowledges_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut hook = Hook::start(&format!("webhook=http://{address}/"));
    hook.want("a").await;
    for connection in 0..5 {
        let (stream, _) = soon(listener.accept()).await.unwrap();
        rough(connection, stream).await;
        let number = connection as u64 + 1;
        let failed = |status: &SinkStatus| status.failing.as_ref().is_some_and(|now| now.attempts == number);
        let status = soon(hook.status.wait_for(failed)).await.unwrap().clone();
        let error = &status.failing.unwrap().error;
        assert!(error.starts_with(&address.to_string()), "{error}");
        assert_eq!(status.acknowledged, None);
    }
    drop(listener);
    hook.fails("refused the connection").await;
    hook.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_read_is_given_up_and_one_that_is_read_slowly_is_not() {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut hook = Hook::start(&format!("webhook={url},timeout=2s,max-bytes=1Gi"));
    let (gate, opened) = std::sync::mpsc::channel::<()>();
    let receiver = std::thread::spawn(move || {
        let mut large = 0;
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            while let Some((length, read)) = head(&mut stream) {
                large += usize::from(length > 1 << 20);
                if length > 1 << 20 && large == 1 {
                    // The first large body is not read.
                    opened.recv().unwrap();
                    break;
                }
                let mut waits = 0;
                let mut left = length - read;
                let mut part = vec![0; 2 << 20];
                while left > 0 {
                    let most = left.min(part.len());
                    if stream.read_exact(&mut part[..most]).is_err() {
                        break;
                    }
                    left -= most;
                    if length > 1 << 20 {
                        std::thread::sleep(Duration::from_millis(150));
                        waits += 1;
                    }
                }
                if left > 0 {
                    // On a busy machine the sink gives this one up, too. It sends the body again.
                    break;
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                if length > 1 << 20 {
                    return waits;
                }
            }
        }
    });
    hook.want_all((0..20).map(|number| large(number, 2 << 20)).collect()).await;
    hook.fails("sent no complete response within 2s").await;
    gate.send(()).unwrap();
    hook.acknowledges(hook.last()).await;
    let waits = tokio::task::spawn_blocking(|| receiver.join().unwrap());
    assert!(soon(waits).await.unwrap() * 150 > 2000, "it took longer than the time limit");
    hook.task.abort();
}

/// What waits in the socket is progress that is not seen: it must be less than a slow receiver reads within the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_reads_slowly_all_the_time_is_not_given_up() {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, 64 << 10).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut hook = Hook::start(&format!("webhook={url},timeout=2s,max-bytes=1Gi"));
    let receiver = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while let Some((length, read)) = head(&mut stream) {
                let mut left = length - read;
                let mut part = vec![0; 64 << 10];
                while left > 0 {
                    let most = left.min(part.len());
                    if stream.read_exact(&mut part[..most]).is_err() {
                        break;
                    }
                    left -= most;
                    if length > 1 << 20 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                if left == 0 {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                }
                if left == 0 && length > 1 << 20 {
                    return;
                }
            }
        }
    });
    hook.want_all((0..2).map(|number| large(number, 2 << 20)).collect()).await;
    hook.acknowledges(hook.last()).await;
    soon(tokio::task::spawn_blocking(|| receiver.join().unwrap())).await.unwrap();
    hook.task.abort();
}

/// Reads the head of a request. Returns the length of its body, and how much of it was read, too.
fn head(stream: &mut std::net::TcpStream) -> Option<(usize, usize)> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 4096]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let (_, rest) = head.split_once("content-length: ").unwrap();
            return Some((rest.lines().next().unwrap().parse().unwrap(), bytes.len() - end - 4));
        }
        match stream.read(&mut part) {
            Ok(count @ 1..) => bytes.extend_from_slice(&part[..count]),
            _ => return None,
        }
    }
}

/// A pod of about this many bytes.
fn large(number: usize, bytes: usize) -> Prepared {
    let value = "x".repeat(bytes);
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{number:03}"), "namespace": "default", "uid": format!("u{number}")},
        "spec": {"containers": [{"name": "c", "image": "i:1", "env": [{"name": "V", "value": value}]}]},
    });
    Prepared::from_json(text.to_string().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_set_larger_than_the_limit_comes_in_parts_and_counts_with_the_last_one() {
    let web = Web::start(Reply::ok("")).await;
    let mut hook = Hook::start(&format!("webhook={},max-bytes=10Ki", web.url));
    // One pod is larger than the limit, and is not divided.
    let sizes = [3000, 3000, 3000, 3000, 20_000, 10, 10];
    hook.want_all(sizes.iter().enumerate().map(|(number, size)| large(number, *size)).collect()).await;
    let seen = web.asked(3).await;
    let last = |seen: &[Seen]| held(seen).pods.len() == sizes.len();
    hook.acknowledges(None).await;
    soon(async {
        while !last(&web.seen()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    hook.end().await;
    drop(seen);
    let sets: Vec<Value> =
        web.seen().iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect();
    let sets: Vec<&Value> = sets.iter().filter(|update| update["source"] == "file").collect();
    assert_eq!(sets.len(), 4);
    assert!(sets.iter().all(|update| update["op"] == "SET"));
    let more: Vec<_> = sets.iter().map(|update| update["more"] == true).collect();
    assert_eq!(more, [true, true, true, false]);
    let small = web.seen().iter().filter(|request| request.body.len() < 11 * 1024).count();
    assert_eq!(small, web.seen().len() - 1);
}

/// `openssl dgst` computes the same signature.
#[tokio::test]
async fn the_signature_is_the_hmac_of_the_body_by_another_implementation() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    fs::write(&key, "a key, with a line end\n").unwrap();
    let web = Web::start(Reply::ok("")).await;
    let mut hook = Hook::start(&format!("webhook={},hmac-file={}", web.url, key.display()));
    hook.want("a b c").await;
    hook.acknowledges(None).await;
    web.asked(4).await;
    // A new key signs from the next update on.
    fs::write(directory.path().join("new"), "another").unwrap();
    fs::rename(directory.path().join("new"), &key).unwrap();
    hook.want("a b").await;
    let seen = web.asked(5).await;
    hook.end().await;
    for (index, request) in seen.iter().enumerate() {
        let key = if index < 4 { "a key, with a line end" } else { "another" };
        let mut command = Command::new("openssl");
        command.args(["dgst", "-sha256", "-hmac", key]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut openssl = command.spawn().expect("openssl is installed");
        openssl.stdin.take().unwrap().write_all(&request.body).unwrap();
        let output = String::from_utf8(openssl.wait_with_output().unwrap().stdout).unwrap();
        let expected = output.trim().rsplit(' ').next().unwrap();
        assert_eq!(request.header("podmux-signature"), format!("sha256={expected}"));
    }
}

#[tokio::test]
async fn a_token_is_read_again_when_its_file_changes() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    let web = Web::start(Reply::ok("")).await;
    // It is missing now, and may come later.
    let mut hook = Hook::start(&format!("webhook={},token-file={}", web.url, token.display()));
    hook.want("a").await;
    hook.fails(&format!(
        "token-file: cannot read {} (does it exist, and may podmux read it?): No such file",
        token.display()
    ))
    .await;
    fs::write(&token, "\n").unwrap();
    hook.fails("token is empty").await;
    fs::write(&token, "one\u{1}two").unwrap();
    hook.fails("has characters that a header cannot have").await;
    assert_eq!(web.seen().len(), 0);
    fs::write(&token, "first\n").unwrap();
    hook.acknowledges(None).await;
    web.asked(4).await;

    // A server that repeats the token does not bring it into the error.
    web.say(Reply::new(401, "unknown: Bearer first!").header("Content-Type", "text/plain"));
    hook.want("a b").await;
    let failing = hook.fails("401 Unauthorized (does it accept what is in token-file?)").await;
    assert!(!failing.error.contains("first"), "{}", failing.error);
    web.play(|seen| Reply::new(if seen.header("authorization") == "Bearer second" { 200 } else { 401 }, ""));
    fs::write(directory.path().join("new"), "second").unwrap();
    fs::rename(directory.path().join("new"), &token).unwrap();
    hook.acknowledges(hook.last()).await;
    // Without the file the token stays.
    fs::remove_file(&token).unwrap();
    hook.want("b").await;
    hook.acknowledges(hook.last()).await;
    hook.end().await;
    assert_eq!(names(&held(&web.seen())), ["default/b"]);
}

#[tokio::test]
async fn over_tls_the_server_and_the_client_show_certificates_and_new_ones_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (ours, theirs) =
        (Authority::new(directory.path(), "ours"), Authority::new(directory.path(), "theirs"));
    let install = |authority: &Authority| {
        let (certificate, key) = authority.client("client");
        fs::rename(certificate, at("hook.crt")).unwrap();
        fs::rename(key, at("hook.key")).unwrap();
    };
    install(&theirs);
    fs::copy(&theirs.ca_file, at("ca")).unwrap();
    let web = Web::start_tls(ours.server("localhost", Some(&ours)), Reply::ok("")).await;
    let files = |ca: &str| {
        format!(
            "ca-file={},cert-file={},key-file={}",
            at(ca).display(),
            at("hook.crt").display(),
            at("hook.key").display()
        )
    };
    let mut hook = Hook::start(&format!("webhook={},{}", web.at("/x"), files("ca")));
    hook.want("a").await;
    hook.fails("is not trusted: it was issued by an unknown CA").await;
    fs::copy(&ours.ca_file, at("ca")).unwrap();
    hook.fails("rejected the client certificate").await;
    install(&ours);
    hook.acknowledges(None).await;
    // A pair that does not belong together leaves the previous one in use.
    fs::rename(ours.client("other").1, at("hook.key")).unwrap();
    (hook.reload)();
    hook.want("a b").await;
    let seen = web.asked(5).await;
    hook.end().await;
    assert!(seen.iter().all(|request| !request.certificate.is_empty()));
    assert_eq!(names(&held(&seen)), ["default/a", "default/b"]);
}

#[tokio::test]
async fn a_server_that_wants_other_credentials_is_named_with_the_options_that_are_set() {
    let directory = tempfile::tempdir().unwrap();
    let (token, key) = (directory.path().join("token"), directory.path().join("key"));
    fs::write(&token, "token").unwrap();
    fs::write(&key, "key").unwrap();
    let (certificate, its_key) = Authority::new(directory.path(), "ours").client("client");
    let web = Web::start(Reply::new(401, "")).await;
    let (token, key) = (format!(",token-file={}", token.display()), format!(",hmac-file={}", key.display()));
    let pair = format!(",cert-file={},key-file={}", certificate.display(), its_key.display());
    for (status, options, hint) in [
        (
            "401 Unauthorized",
            String::new(),
            "it wants credentials: give what it asks for of token-file, hmac-file, cert-file",
        ),
        ("403 Forbidden", key.clone(), "does it accept what is in hmac-file?"),
        (
            "403 Forbidden",
            token + &key + &pair,
            "does it accept what is in token-file and hmac-file and cert-file?",
        ),
    ] {
        web.say(Reply::new(status[..3].parse().unwrap(), ""));
        let mut hook = Hook::start(&format!("webhook={}{options}", web.url));
        hook.want("a").await;
        hook.fails(&format!("the server answered {status} ({hint})")).await;
        web.say(Reply::ok(""));
        hook.end().await;
    }
}

/// Sinks that are refused. `s3cret` may not be repeated.
const REFUSED: [&str; 33] = [
    "webhook",
    "webhook=",
    "webhook=ftp://h/",
    "webhook=hub.example",
    "webhook=http://hub.example/",
    "webhook=http://10.0.0.1/",
    "webhook=http://localhost.example/",
    "webhook=https://user:s3cret@hub.example/",
    "webhook=http://s3cret@localhost/",
    "webhok=https://user:s3cret@hub.example/",
    "https://user:s3cret@hub.example/",
    "webhook=http://127.0.0.1:99999/",
    "webhook=https://h/,tokenfile=/t",
    "webhook=https://h/,token-file",
    "webhook=https://h/,token-file=",
    "webhook=https://h/,token-file=/a,token-file=/b",
    "webhook=https://h/?a=1,s3cret",
    "webhook=https://h/,cert-file=/c",
    "webhook=https://h/,max-bytes=0",
    "webhook=https://h/,max-bytes=ten",
    "webhook=https://h/,timeout=30",
    "webhook,token-file=/t",
    "jsonl=/a,token-file=/t",
    "jsonl,x=y",
    r#"{"kind": "jsonl", "target": "/a", "x": "y"}"#,
    r#"{"kind": "webhook", "target": "https://h/", "token-file": "y"}"#,
    r#"{"kind": "webhook", "target": ["s3cret"]}"#,
    r#"{"target": "s3cret"}"#,
    r#"{"kind": 5, "target": "s3cret"}"#,
    r#"{"kind": "jsonl", "target": true}"#,
    r#"{"kind": "webhook", "target": "https://h/", "tokenFile": true}"#,
    r#"{"kind": "table", "colour": true}"#,
    "{s3cret",
];

/// What is said of a sink that is refused.
fn refusal(text: &&str) -> String {
    let error = Config::parse(text).err().unwrap_or_else(|| panic!("{text} is accepted"));
    assert!(!error.contains("s3cret") && !error.contains('\n'), "{text}: {error}");
    format!("{text}\n  {error}\n")
}

/// Every line is what a user can mend.
#[test]
fn what_can_never_work_is_refused_with_what_exists() {
    let shown: String = REFUSED.iter().map(refusal).collect();
    expect_test::expect![[r#"
        webhook
          this is not a URL: write webhook=https://HOST:PORT/PATH
        webhook=
          this is not a URL: write webhook=https://HOST:PORT/PATH
        webhook=ftp://h/
          the URL does not begin with https://: write webhook=https://HOST:PORT/PATH
        webhook=hub.example
          the URL does not begin with https://: write webhook=https://HOST:PORT/PATH
        webhook=http://hub.example/
          http is not encrypted, and pods may hold secrets: use https (http only to 127.0.0.0/8, [::1] or localhost)
        webhook=http://10.0.0.1/
          http is not encrypted, and pods may hold secrets: use https (http only to 127.0.0.0/8, [::1] or localhost)
        webhook=http://localhost.example/
          http is not encrypted, and pods may hold secrets: use https (http only to 127.0.0.0/8, [::1] or localhost)
        webhook=https://user:s3cret@hub.example/
          the URL holds a user or a password: put a token into a file, and give token-file=FILE
        webhook=http://s3cret@localhost/
          the URL holds a user or a password: put a token into a file, and give token-file=FILE
        webhok=https://user:s3cret@hub.example/
          unknown sink "webhok"; the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
        https://user:s3cret@hub.example/
          unknown sink (not a name); the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
        webhook=http://127.0.0.1:99999/
          the port of the URL is above 65535: write webhook=https://HOST:PORT/PATH
        webhook=https://h/,tokenfile=/t
          unknown option "tokenfile"; the options of webhook are token-file, hmac-file, ca-file, cert-file, key-file, max-bytes, timeout
        webhook=https://h/,token-file
          "token-file" needs a value: token-file=FILE
        webhook=https://h/,token-file=
          "token-file" needs a value: token-file=FILE
        webhook=https://h/,token-file=/a,token-file=/b
          "token-file" is given twice
        webhook=https://h/?a=1,s3cret
          a comma begins an option, NAME=VALUE; in a URL it is written %2C
        webhook=https://h/,cert-file=/c
          a certificate and its key need each other: give cert-file and key-file
        webhook=https://h/,max-bytes=0
          max-bytes: "0" holds no pod: write it like 10Mi
        webhook=https://h/,max-bytes=ten
          max-bytes: "ten" is not a number of bytes: write it like 64Mi
        webhook=https://h/,timeout=30
          timeout: "30" has no unit: write 30s for seconds, or use ms, m or h
        webhook,token-file=/t
          this is not a URL: write webhook=https://HOST:PORT/PATH
        jsonl=/a,token-file=/t
          "token-file": jsonl has no options; a target with a comma before a "=" is given as an object: {"kind": …, "target": …}
        jsonl,x=y
          "x": jsonl has no options; a target with a comma before a "=" is given as an object: {"kind": …, "target": …}
        {"kind": "jsonl", "target": "/a", "x": "y"}
          "x": jsonl has no options; a target with a comma before a "=" is given as an object: {"kind": …, "target": …}
        {"kind": "webhook", "target": "https://h/", "token-file": "y"}
          unknown option "token-file"; the options of webhook are tokenFile, hmacFile, caFile, certFile, keyFile, maxBytes, timeout
        {"kind": "webhook", "target": ["s3cret"]}
          "target": expected a string
        {"target": "s3cret"}
          kind is missing; the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
        {"kind": 5, "target": "s3cret"}
          kind is missing; the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
        {"kind": "jsonl", "target": true}
          "target": expected a string
        {"kind": "webhook", "target": "https://h/", "tokenFile": true}
          "tokenFile": expected a string
        {"kind": "table", "colour": true}
          unknown option "colour"; the options of table are color
        {s3cret
          this is not a JSON object (in a variable a comma ends it: give --sink or a config file)
    "#]].assert_eq(&shown);
}

#[test]
fn the_forms_of_a_sink_are_equal_and_its_name_has_no_secret() {
    let text = "webhook=https://hub.example:8443/pods?key=s3cret,token-file=/t,max-bytes=1Mi";
    let object = r#"{"kind": "webhook", "target": "https://hub.example:8443/pods?key=s3cret", "tokenFile": "/t", "maxBytes": "1Mi"}"#;
    let sink = Config::parse(text).unwrap();
    assert_eq!(sink, Config::parse(object).unwrap());
    assert_eq!(sink.to_string(), "webhook=https://hub.example:8443/pods");
    assert_eq!(format!("{sink:?}"), "Config(webhook=https://hub.example:8443/pods)");
    // As YAML has it.
    for (form, text) in
        [("yes", r#"{"kind": "table", "color": true}"#), ("no", r#"{"kind": "table", "color": false}"#)]
    {
        assert_eq!(Config::parse(text).unwrap(), Config::parse(&format!("table,color={form}")).unwrap());
    }
    // Relative to a config file.
    let text = "webhook=https://h/,token-file=t,ca-file=/ca";
    let anchored = Config::anchored(text, Path::new("/etc/podmux"));
    assert_eq!(
        Config::parse(&anchored),
        Config::parse("webhook=https://h/,token-file=/etc/podmux/t,ca-file=/ca")
    );
    // A path may hold a comma, and as an object anything.
    for (text, name) in [
        ("jsonl=/a,b.jsonl", "jsonl=/a,b.jsonl"),
        (r#"{"kind": "jsonl", "target": "/a,b=c"}"#, "jsonl=/a,b=c"),
        ("webhook=http://127.8.9.10/", "webhook=http://127.8.9.10/"),
        ("webhook=http://[::1]:80/", "webhook=http://[::1]:80/"),
        ("webhook=HTTP://LocalHost", "webhook=http://LocalHost/"),
    ] {
        assert_eq!(Config::parse(text).unwrap().to_string(), name);
    }
    assert_eq!(
        Config::split("jsonl, webhook=https://h/,token-file=/t, timeout=5s,jsonl=/a"),
        ["jsonl", "webhook=https://h/,token-file=/t,timeout=5s", "jsonl=/a"]
    );
}
