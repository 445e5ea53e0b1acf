//! The HTTP client: whom it trusts, where it goes, how much it takes, and what it says when that fails.

use std::{error::Error as _, fs, path::PathBuf, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use podmux::{
    certificate_files::CertificateFiles,
    client::{Body, Client, ClientError, ClientSettings, shown},
};
use rustix::process::geteuid;
use tokio::net::TcpListener;

use crate::support::{
    files::soon,
    web::{Authority, Reply, Step, Web},
};

const LIMIT: usize = 1024;

fn client() -> Client {
    Client::new(ClientSettings::default()).unwrap()
}

fn following() -> Client {
    Client::new(ClientSettings { follow_redirects: true, ..ClientSettings::default() }).unwrap()
}

fn get(url: &str) -> Request<Bytes> {
    Request::get(url).body(Bytes::new()).unwrap()
}

async fn text(answer: Response<Body>) -> String {
    let body = soon(answer.into_body().whole(LIMIT)).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn fails(client: &Client, request: Request<Bytes>) -> ClientError {
    match soon(client.send(request)).await {
        Ok(answer) => soon(answer.into_body().whole(LIMIT)).await.expect_err("it came through"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_request_goes_out_as_it_is_and_any_status_is_an_answer() {
    let web = Web::start(Reply::new(418, "short and stout").header("X-Pot", "tea")).await;
    let request = Request::post(web.at("/pots?size=2")).header("X-Cup", "1").body("water".into()).unwrap();
    let answer = soon(client().send(request)).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["x-pot"].to_str().unwrap()), (418, "tea"));
    assert_eq!(text(answer).await, "short and stout");
    let seen = &web.seen()[0];
    assert_eq!((&*seen.method, &*seen.path, &*seen.body), ("POST", "/pots?size=2", &b"water"[..]));
    assert_eq!((seen.header("x-cup"), format!("http://{}", seen.header("host"))), ("1", web.url.clone()));
}

#[tokio::test]
async fn a_unix_socket_is_spoken_to_whatever_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.sock");
    let web = Web::start_unix(&path, Reply::ok("here"));
    let client = Client::new(ClientSettings { socket: Some(path), ..ClientSettings::default() }).unwrap();
    let answer = soon(client.send(get("http://podmux/pods?a=1"))).await.unwrap();
    assert_eq!(text(answer).await, "here");
    let seen = &web.seen()[0];
    assert_eq!((&*seen.path, seen.header("host")), ("/pods?a=1", "podmux"));

    let error = fails(&client, get("https://podmux/")).await.to_string();
    assert!(error.starts_with("https://podmux/ cannot be fetched"), "{error}");
}

#[tokio::test]
async fn a_socket_that_cannot_be_used_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.sock");
    let of = |path: &PathBuf| {
        Client::new(ClientSettings { socket: Some(path.clone()), ..ClientSettings::default() }).unwrap()
    };
    let shown = path.display();
    let error = fails(&of(&path), get("http://podmux/")).await.to_string();
    assert_eq!(error, format!("there is no socket {shown}; is the server running, and is this its socket?"));

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let error = fails(&of(&path), get("http://podmux/")).await.to_string();
    assert!(error.starts_with(&format!("{shown} refused the connection: nothing listens there")), "{error}");

    let forbidden = ClientError::Permission { path: path.clone() };
    if !geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let error = fails(&of(&path), get("http://podmux/")).await.to_string();
        assert_eq!(error, forbidden.to_string());
    }
    assert_eq!(
        forbidden.to_string(),
        format!(
            "no permission to use the socket {shown}; only its owner and its group may: join the group, or become root"
        )
    );
}

#[tokio::test]
async fn a_refused_connection_and_an_unknown_host_say_so() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = fails(&client(), get(&format!("http://{free}/"))).await.to_string();
    assert_eq!(
        error,
        format!(
            "{free} refused the connection: nothing listens there; is the server running, and is this its address?"
        )
    );
    let error = fails(&client(), get("http://no-such-host.invalid/")).await;
    assert_eq!(error.to_string(), "cannot connect to no-such-host.invalid:80");
    assert!(error.source().unwrap().to_string().starts_with("dns error: "), "{error:?}");
    for bad in ["/pods", "ftp://host/", "host:1"] {
        let error = fails(&client(), get(bad)).await.to_string();
        assert!(error.contains("cannot be fetched: http://HOST/… or https://HOST/… is expected"), "{error}");
    }
}

#[tokio::test]
async fn what_is_no_http_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        drop(stream);
        // The second one closes without a word.
        drop(listener.accept().await.unwrap());
    });
    let error = fails(&client(), get(&url)).await.to_string();
    assert!(error.ends_with("did not answer in HTTP/1.1"), "{error}");
    let error = fails(&client(), get(&url)).await.to_string();
    assert!(error.ends_with("closed the connection before its answer was complete"), "{error}");
    server.await.unwrap();
}

#[tokio::test]
async fn a_head_has_a_bound() {
    let web = Web::start(Reply::ok("").header("X-Long", &"x".repeat(60 * 1024))).await;
    assert_eq!(text(soon(client().send(get(&web.url))).await.unwrap()).await, "");
    // What has come in one read is looked at before it is counted.
    web.say(Reply::ok("").header("X-Long", &"x".repeat(3 * 64 * 1024)));
    let error = fails(&client(), get(&web.url)).await;
    assert_eq!(error.source().unwrap().to_string(), "message head is too large", "{error}");
}

#[tokio::test]
async fn a_body_has_a_bound_whether_its_length_is_known_or_not() {
    let web = Web::start(Reply::ok(vec![b'x'; LIMIT])).await;
    assert_eq!(text(soon(client().send(get(&web.url))).await.unwrap()).await.len(), LIMIT);

    let (half, host) = (Bytes::from(vec![b'x'; LIMIT / 2]), web.url.strip_prefix("http://").unwrap());
    let too_much = format!("{host} sent too much: {LIMIT} bytes are taken at most");
    // The length alone is enough: the body never comes.
    web.say(Reply::steps(Some(LIMIT as u64 + 1), vec![Step::Hang]));
    assert_eq!(fails(&client(), get(&web.url)).await.to_string(), too_much);
    // So is what came, though the rest never does.
    let steps = vec![Step::Send(half.clone()), Step::Send(half), Step::Send("x".into()), Step::Hang];
    web.say(Reply::steps(None, steps));
    assert_eq!(fails(&client(), get(&web.url)).await.to_string(), too_much);
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_an_error() {
    for length in [Some(10), None] {
        let web = Web::start(Reply::steps(length, vec![Step::Send("half".into()), Step::Break])).await;
        let error = fails(&client(), get(&web.url)).await.to_string();
        assert!(error.ends_with("closed the connection before its answer was complete"), "{error}");
    }
}

#[tokio::test]
async fn the_deadline_is_for_the_head_and_for_a_whole_body() {
    let timeout = Duration::from_millis(200);
    let client = Client::new(ClientSettings { timeout, ..ClientSettings::default() }).unwrap();
    let web = Web::start(Reply::mute()).await;
    let error = fails(&client, get(&web.url)).await.to_string();
    assert!(error.ends_with("did not answer completely within 200ms"), "{error}");
    // A byte now and then does not help.
    let drop = [Step::Send(".".into()), Step::Pause(Duration::from_millis(20))];
    web.say(Reply::steps(None, drop.iter().cycle().take(200_000).cloned().collect()));
    let error = fails(&client, get(&web.url)).await.to_string();
    assert!(error.ends_with("did not answer completely within 200ms"), "{error}");
    // A body that is read bit by bit has none.
    let timeout = Duration::from_secs(1);
    let client = Client::new(ClientSettings { timeout, ..ClientSettings::default() }).unwrap();
    let mut body = soon(client.send(get(&web.url))).await.unwrap().into_body();
    let mut got = 0;
    while got < 75 {
        got += soon(body.chunk()).await.unwrap().unwrap().len();
    }
}

#[tokio::test]
async fn a_stream_is_read_by_the_line() {
    let bits = ["on", "e\n\ntw", "o", "\nthree"].map(|bit| Step::Send(bit.into())).to_vec();
    let web = Web::start(Reply::steps(None, bits.clone())).await;
    let mut lines = soon(client().send(get(&web.url))).await.unwrap().into_body().lines(5);
    let mut got = Vec::new();
    while let Some(line) = soon(lines.next()).await {
        got.push(String::from_utf8(line.unwrap().to_vec()).unwrap());
    }
    assert_eq!(got, ["one", "", "two", "three"]);

    let mut broken = bits;
    broken.push(Step::Break);
    web.say(Reply::steps(None, broken));
    let mut lines = soon(client().send(get(&web.url))).await.unwrap().into_body().lines(5);
    for expected in ["one", "", "two"] {
        assert_eq!(soon(lines.next()).await.unwrap().unwrap(), expected);
    }
    let error = soon(lines.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::CutOff { .. }), "half a line is no line: {error}");

    for (long, steps) in [("whole", vec!["four\nsixsix\n"]), ("endless", vec!["four\nsix", "six", "six"])] {
        let mut steps: Vec<Step> = steps.into_iter().map(|bit| Step::Send(bit.into())).collect();
        steps.push(Step::Hang);
        web.say(Reply::steps(None, steps));
        let mut lines = soon(client().send(get(&web.url))).await.unwrap().into_body().lines(5);
        assert_eq!(soon(lines.next()).await.unwrap().unwrap(), "four");
        let error = soon(lines.next()).await.unwrap().unwrap_err().to_string();
        assert!(error.ends_with("sent too much: 5 bytes are taken at most"), "{long}: {error}");
    }
}

#[tokio::test]
async fn a_redirect_is_given_back_unless_it_is_to_be_followed() {
    let web = Web::start(Reply::to(302, "/there")).await;
    let answer = soon(client().send(get(&web.url))).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["location"].to_str().unwrap()), (302, "/there"));

    web.play(|seen| if seen.path == "/there" { Reply::ok("arrived") } else { Reply::to(302, "/there") });
    assert_eq!(text(soon(following().send(get(&web.url))).await.unwrap()).await, "arrived");
    // One that leads nowhere is an answer, as with Go.
    web.say(Reply::new(302, "nowhere"));
    assert_eq!(text(soon(following().send(get(&web.url))).await.unwrap()).await, "nowhere");
}

#[tokio::test]
async fn redirects_change_method_and_body_as_with_go() {
    let web = Web::start(Reply::ok("")).await;
    for (status, then, body) in
        [(301, "GET", ""), (302, "GET", ""), (303, "GET", ""), (307, "POST", "pods"), (308, "POST", "pods")]
    {
        web.play(move |seen| if seen.path == "/b" { Reply::ok("done") } else { Reply::to(status, "/b") });
        let request = Request::post(web.at("/a")).header("Content-Type", "x/y").body("pods".into()).unwrap();
        assert_eq!(text(soon(following().send(request)).await.unwrap()).await, "done");
        let seen = web.seen();
        let last = seen.last().unwrap();
        assert_eq!((&*last.method, &*last.body), (then, body.as_bytes()), "{status}");
        assert_eq!(last.header("content-type").is_empty(), body.is_empty(), "{status}");
    }
    web.play(|seen| if seen.path == "/b" { Reply::ok("") } else { Reply::to(303, "/b") });
    let request = Request::head(web.at("/a")).body(Bytes::new()).unwrap();
    soon(following().send(request)).await.unwrap();
    assert_eq!(web.seen().last().unwrap().method, "HEAD");
}

#[tokio::test]
async fn where_a_redirect_leads() {
    let web = Web::start(Reply::ok("")).await;
    for (location, leads) in [
        ("/c?d=e#f", "/c?d=e"),
        ("c", "/a/c"),
        ("?x", "/a/b?x"),
        ("../c", "/c"),
        ("./c/./d/../e", "/a/c/e"),
        ("../../..", "/"),
        ("c/..", "/a/"),
        ("#there", "/a/b?q"),
        ("c:d", ""),
        ("ftp://host/", ""),
        ("http://", ""),
        ("/with space", ""),
    ] {
        let to = location.to_owned();
        let mut first = true;
        web.play(move |_| if std::mem::take(&mut first) { Reply::to(302, &to) } else { Reply::ok("here") });
        let answer = soon(following().send(get(&web.at("/a/b?q")))).await;
        match answer {
            Ok(_) => assert_eq!(web.seen().last().unwrap().path, leads, "{location}"),
            Err(error) => {
                assert_eq!(leads, "", "{location}: {error}");
                let expected = format!("{} redirects to what is no http or https URL", web.at("/a/b"));
                assert_eq!(error.to_string(), expected);
            }
        }
    }
    // To the same server under another scheme-less name.
    let host = web.url.strip_prefix("http:").unwrap().to_owned();
    web.play(
        move |seen| {
            if seen.path == "/c" { Reply::ok("here") } else { Reply::to(302, &format!("{host}/c")) }
        },
    );
    assert_eq!(text(soon(following().send(get(&web.url))).await.unwrap()).await, "here");
}

#[tokio::test]
async fn redirects_have_an_end() {
    let web = Web::start(Reply::to(302, "/round")).await;
    let error = fails(&following(), get(&web.url)).await.to_string();
    let host = web.url.strip_prefix("http://").unwrap();
    assert_eq!(error, format!("more than 10 redirects, the last one to {host}"));
    // Go's client gives up at the tenth answer too.
    assert_eq!(web.seen().len(), 10);
}

#[tokio::test]
async fn headers_stay_with_the_host_that_they_are_for() {
    let (first, other) = (Web::start(Reply::ok("")).await, Web::start(Reply::ok("other")).await);
    let request = || {
        let request = Request::get(first.at("/start")).header("Authorization", "Bearer s3cret");
        let request = request.header("X-Token", "s3cret").header("Accept", "application/json");
        request.body(Bytes::new()).unwrap()
    };
    first.play(|seen| if seen.path == "/start" { Reply::to(302, "/next") } else { Reply::ok("") });
    soon(following().send(request())).await.unwrap();
    let seen = first.seen();
    assert_eq!((seen[1].header("authorization"), seen[1].header("x-token")), ("Bearer s3cret", "s3cret"));

    // Another port is another host: whoever listens there may be someone else.
    first.say(Reply::to(302, &other.at("/there")));
    other.say(Reply::to(302, &first.at("/back")));
    first.play({
        let away = other.at("/there");
        move |seen| if seen.path == "/back" { Reply::ok("") } else { Reply::to(302, &away) }
    });
    soon(following().send(request())).await.unwrap();
    for seen in [other.seen().last().unwrap(), first.seen().last().unwrap()] {
        let secrets = (seen.header("authorization"), seen.header("x-token"));
        assert_eq!(secrets, ("", ""), "{}: what was dropped does not come back", seen.path);
        assert_eq!(seen.header("accept"), "application/json");
    }
}

#[tokio::test]
async fn user_and_password_of_a_url_become_a_header_and_are_never_shown() {
    let web = Web::start(Reply::ok("")).await;
    let host = web.url.strip_prefix("http://").unwrap();
    soon(client().send(get(&format!("http://us%65r:p%40ss@{host}/")))).await.unwrap();
    soon(client().send(get(&format!("http://user@{host}/")))).await.unwrap();
    let seen = web.seen();
    // base64 of "user:p@ss" and of "user:"
    assert_eq!(seen[0].header("authorization"), "Basic dXNlcjpwQHNz");
    assert_eq!(seen[1].header("authorization"), "Basic dXNlcjo=");
    assert_eq!(seen[0].header("host"), host);

    web.say(Reply::to(302, "ftp://x/"));
    let error = fails(&following(), get(&format!("http://user:s3cret@{host}/a?token=s3cret"))).await;
    assert_eq!(error.to_string(), format!("http://{host}/a redirects to what is no http or https URL"));
    assert!(!format!("{error:?}").contains("s3cret"));
    assert_eq!(shown(&"https://u:s3cret@h:1/p?q=s3cret".parse().unwrap()), "https://h:1/p");
}

#[tokio::test]
async fn tls_with_a_private_ca_and_a_client_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let other = Authority::new(directory.path(), "other");
    let settings =
        |ca: &Authority| ClientSettings { ca_file: Some(ca.ca_file.clone()), ..ClientSettings::default() };
    let web = Web::start_tls(ours.server("localhost", None), Reply::ok("trusted")).await;
    let answer = soon(Client::new(settings(&ours)).unwrap().send(get(&web.url))).await.unwrap();
    assert_eq!(text(answer).await, "trusted");

    let host = web.url.strip_prefix("https://").unwrap();
    let unknown = format!(
        "the certificate of {host} is not trusted: it was issued by a CA that is not trusted here; name the file of the right CA"
    );
    let error = fails(&Client::new(settings(&other)).unwrap(), get(&web.url)).await;
    assert_eq!(error.to_string(), unknown);

    let elsewhere = Web::start_tls(ours.server("elsewhere.example", None), Reply::ok("")).await;
    let error = fails(&Client::new(settings(&ours)).unwrap(), get(&elsewhere.url)).await.to_string();
    assert!(error.contains("is not trusted: it is for another name ("), "{error}");

    let strict = Web::start_tls(ours.server("localhost", Some(&ours)), Reply::ok("known")).await;
    let error = fails(&Client::new(settings(&ours)).unwrap(), get(&strict.url)).await.to_string();
    assert!(error.contains("did not accept the client certificate (CertificateRequired)"), "{error}");
    let with = |(cert_file, key_file)| {
        let identity = Some(CertificateFiles { certificate: cert_file, key: key_file });
        Client::new(ClientSettings { identity, ..settings(&ours) })
    };
    let known = with(ours.client("known")).unwrap();
    assert_eq!(text(soon(known.send(get(&strict.url))).await.unwrap()).await, "known");
    let error = fails(&with(other.client("stranger")).unwrap(), get(&strict.url)).await.to_string();
    assert!(error.contains("did not accept the client certificate ("), "{error}");
    let (cert_file, key_file) = (ours.client("one").0, ours.client("two").1);
    let mixed = with((cert_file.clone(), key_file.clone())).unwrap();
    let error = fails(&mixed, get(&strict.url)).await.to_string();
    let expected = format!(
        "cannot use the certificate {} with the key {}; do they belong together?",
        cert_file.display(),
        key_file.display()
    );
    assert_eq!(error, expected);

    // Plain HTTP where TLS is spoken, and the other way round.
    let plain = Web::start(Reply::ok("")).await;
    let url = plain.url.replace("http:", "https:");
    let error = fails(&Client::new(settings(&ours)).unwrap(), get(&url)).await.to_string();
    assert!(error.ends_with("; does it speak TLS there?"), "{error}");
}

#[tokio::test]
async fn a_redirect_does_not_leave_what_is_encrypted() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let plain = Web::start(Reply::ok("plain")).await;
    let web =
        Web::start_tls(ours.server("localhost", None), Reply::to(302, &plain.at("/p?token=s3cret"))).await;
    let settings = ClientSettings {
        ca_file: Some(ours.ca_file.clone()),
        follow_redirects: true,
        ..ClientSettings::default()
    };
    let client = Client::new(settings).unwrap();
    let error = fails(&client, get(&web.at("/"))).await.to_string();
    let expected = format!(
        "{} redirects to {}, which is not encrypted; that is not followed",
        web.at("/"),
        plain.at("/p")
    );
    assert_eq!(error, expected);
    assert_eq!(plain.seen().len(), 0);
    // The other way is fine.
    plain.say(Reply::to(302, &web.at("/secure")));
    web.say(Reply::ok("secure"));
    assert_eq!(text(soon(client.send(get(&plain.url))).await.unwrap()).await, "secure");
}

#[test]
fn the_files_of_the_settings_are_read_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let (missing, empty) = (directory.path().join("missing"), directory.path().join("empty"));
    fs::write(&empty, "no PEM\n").unwrap();
    let ca = |path: &PathBuf| {
        let settings = ClientSettings { ca_file: Some(path.clone()), ..ClientSettings::default() };
        Client::new(settings).map(drop).unwrap_err().to_string()
    };
    assert_eq!(ca(&missing), format!("cannot read {}", missing.display()));
    let no_pem = "PEM text is expected, which begins with -----BEGIN";
    assert_eq!(ca(&empty), format!("no certificate in {}: {no_pem}", empty.display()));
    let (cert_file, _) = ours.client("one");
    let identity = Some(CertificateFiles { certificate: cert_file.clone(), key: cert_file.clone() });
    let error = Client::new(ClientSettings { identity, ..ClientSettings::default() }).unwrap_err();
    assert_eq!(error.to_string(), format!("no private key in {}: {no_pem}", cert_file.display()));
}
