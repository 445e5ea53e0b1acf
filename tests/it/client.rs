//! The HTTP client: trust, redirects, limits and errors.

use std::{
    error::Error as _,
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use podmux::{
    certificate_files::CertificateFiles,
    client::{Body, Client, ClientError, ClientSettings, Redirects, shown},
};
use rustix::process::geteuid;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::support::{
    files::soon,
    web::{Authority, Reply, Step, Web, refusing},
};

const LIMIT: usize = 1024;
const NO_CERTIFICATE: &str =
    "no certificate was found in it; PEM text is expected, which begins with -----BEGIN CERTIFICATE-----";
const NO_KEY: &str = "no private key was found in it; PEM text is expected, which begins with -----BEGIN PRIVATE KEY----- (an encrypted key cannot be used)";

fn client() -> Client {
    Client::new(ClientSettings::default()).unwrap()
}

fn following() -> Client {
    Client::new(ClientSettings { redirects: Redirects::All, ..ClientSettings::default() }).unwrap()
}

fn get(url: &str) -> Request<Bytes> {
    Request::get(url).body(Bytes::new()).unwrap()
}

fn with_cause(error: &ClientError) -> String {
    format!("{error}: {}", error.source().unwrap())
}

async fn text(answer: Response<Body>) -> String {
    let body = soon(answer.into_body().whole(LIMIT)).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn fails(client: &Client, request: Request<Bytes>) -> ClientError {
    match soon(client.send(request)).await {
        Ok(answer) => soon(answer.into_body().whole(LIMIT)).await.expect_err("the request succeeded"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_request_is_sent_unchanged_and_any_status_is_a_response() {
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
async fn a_unix_socket_is_used_whatever_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.sock");
    let web = Web::start_unix(&path, Reply::ok("here"));
    let client = Client::new(ClientSettings { socket: Some(path), ..ClientSettings::default() }).unwrap();
    let answer = soon(client.send(get("http://podmux/pods?a=1"))).await.unwrap();
    assert_eq!(text(answer).await, "here");
    let seen = &web.seen()[0];
    assert_eq!((&*seen.path, seen.header("host")), ("/pods?a=1", "podmux"));

    let error = fails(&client, get("https://podmux/")).await.to_string();
    assert!(error.starts_with("cannot request https://podmux/: "), "{error}");
}

#[tokio::test]
async fn the_error_for_an_unusable_socket_names_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.sock");
    let of = |path: &PathBuf| {
        Client::new(ClientSettings { socket: Some(path.clone()), ..ClientSettings::default() }).unwrap()
    };
    let shown = path.display();
    let error = fails(&of(&path), get("http://podmux/")).await.to_string();
    assert_eq!(
        error,
        format!("the socket {shown} does not exist (is the server running, and is this its socket?)")
    );

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let error = fails(&of(&path), get("http://podmux/")).await.to_string();
    assert!(error.starts_with(&format!("{shown} refused the connection")), "{error}");

    let forbidden = ClientError::Permission(path.clone());
    if !geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let error = fails(&of(&path), get("http://podmux/")).await.to_string();
        assert_eq!(error, forbidden.to_string());
    }
    assert_eq!(
        forbidden.to_string(),
        format!(
            "no permission to use the socket {shown} (only its owner and its group may use it: join the group, or become root)"
        )
    );
}

#[tokio::test]
async fn a_refused_connection_an_unknown_host_and_an_invalid_url_are_errors() {
    let (_kept, free) = refusing();
    let error = fails(&client(), get(&format!("http://{free}/"))).await.to_string();
    assert_eq!(
        error,
        format!("{free} refused the connection (is the server running, and is this its address?)")
    );
    let error = fails(&client(), get("http://no-such-host.invalid/")).await;
    assert_eq!(error.to_string(), "cannot connect to no-such-host.invalid:80");
    assert!(error.source().unwrap().to_string().starts_with("dns error: "), "{error:?}");
    for bad in ["/pods", "ftp://host/", "host:1", "http://127.0.0.1:99999/"] {
        let error = fails(&client(), get(bad)).await.to_string();
        assert!(error.contains("expected http://HOST/… or https://HOST/…"), "{error}");
    }
}

#[tokio::test]
async fn a_response_that_is_not_http_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        drop(stream);
        // The second connection is closed without a response.
        drop(listener.accept().await.unwrap());
    });
    let error = fails(&client(), get(&url)).await.to_string();
    assert!(
        error.ends_with(
            "sent no valid HTTP/1.1 response (if the URL begins with http, does the server want https?)"
        ),
        "{error}"
    );
    let error = fails(&client(), get(&url)).await.to_string();
    assert!(error.ends_with("closed the connection before its response was complete"), "{error}");
    server.await.unwrap();
}

#[tokio::test]
async fn interim_responses_without_an_end_are_an_error() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let hint = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n";
        for number in [Some(100), None] {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
            if let Some(number) = number {
                stream.write_all(&hint.repeat(number)).await.unwrap();
                stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
            } else {
                // Until the client closes the connection.
                while stream.write_all(hint).await.is_ok() {}
            }
        }
    });
    assert_eq!(soon(client().send(get(&url))).await.unwrap().status(), 204);
    let error = fails(&client(), get(&url)).await;
    assert_eq!(error.source().unwrap().to_string(), "more than 100 responses of 1xx", "{error}");
    soon(server).await.unwrap();
}

#[tokio::test]
async fn the_size_of_a_head_is_limited() {
    let web = Web::start(Reply::ok("").header("X-Long", &"x".repeat(60 * 1024))).await;
    assert_eq!(text(soon(client().send(get(&web.url))).await.unwrap()).await, "");
    // One read may exceed the limit before it is checked.
    web.say(Reply::ok("").header("X-Long", &"x".repeat(3 * 64 * 1024)));
    let error = fails(&client(), get(&web.url)).await;
    assert_eq!(error.source().unwrap().to_string(), "message head is too large", "{error}");
}

#[tokio::test]
async fn the_size_of_a_body_is_limited_with_and_without_a_length() {
    let web = Web::start(Reply::ok(vec![b'x'; LIMIT])).await;
    assert_eq!(text(soon(client().send(get(&web.url))).await.unwrap()).await.len(), LIMIT);

    let (half, host) = (Bytes::from(vec![b'x'; LIMIT / 2]), web.url.strip_prefix("http://").unwrap());
    let too_large = format!("{host} sent more than the limit of {LIMIT} bytes");
    // The length is enough for the error, even if no body arrives.
    web.say(Reply::steps(Some(LIMIT as u64 + 1), vec![Step::Hang]));
    assert_eq!(fails(&client(), get(&web.url)).await.to_string(), too_large);
    // So are the bytes that arrived, even if the rest never does.
    let steps = vec![Step::Send(half.clone()), Step::Send(half), Step::Send("x".into()), Step::Hang];
    web.say(Reply::steps(None, steps));
    assert_eq!(fails(&client(), get(&web.url)).await.to_string(), too_large);
}

#[tokio::test]
async fn an_incomplete_body_is_an_error() {
    for length in [Some(10), None] {
        let web = Web::start(Reply::steps(length, vec![Step::Send("half".into()), Step::Break])).await;
        let error = fails(&client(), get(&web.url)).await.to_string();
        assert!(error.ends_with("closed the connection before its response was complete"), "{error}");
    }
}

#[tokio::test]
async fn the_deadline_covers_the_head_and_a_whole_body() {
    let timeout = Duration::from_millis(200);
    let client = Client::new(ClientSettings { timeout, ..ClientSettings::default() }).unwrap();
    let web = Web::start(Reply::mute()).await;
    let error = fails(&client, get(&web.url)).await.to_string();
    assert!(error.ends_with("sent no complete response within 200ms"), "{error}");
    // Slow data does not extend it.
    let drop = [Step::Send(".".into()), Step::Pause(Duration::from_millis(20))];
    web.say(Reply::steps(None, drop.iter().cycle().take(200_000).cloned().collect()));
    let error = fails(&client, get(&web.url)).await.to_string();
    assert!(error.ends_with("sent no complete response within 200ms"), "{error}");
    // A body that is read in chunks has no deadline.
    let timeout = Duration::from_secs(1);
    let client = Client::new(ClientSettings { timeout, ..ClientSettings::default() }).unwrap();
    let mut body = soon(client.send(get(&web.url))).await.unwrap().into_body();
    let mut read = 0;
    while read < 75 {
        read += soon(body.chunk()).await.unwrap().unwrap().len();
    }
}

#[tokio::test]
async fn a_body_is_read_line_by_line() {
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
    assert!(matches!(error, ClientError::CutOff(_)), "an incomplete line is not returned: {error}");

    for (long, steps) in [("whole", vec!["four\nsixsix\n"]), ("endless", vec!["four\nsix", "six", "six"])] {
        let mut steps: Vec<Step> = steps.into_iter().map(|bit| Step::Send(bit.into())).collect();
        steps.push(Step::Hang);
        web.say(Reply::steps(None, steps));
        let mut lines = soon(client().send(get(&web.url))).await.unwrap().into_body().lines(5);
        assert_eq!(soon(lines.next()).await.unwrap().unwrap(), "four");
        let error = soon(lines.next()).await.unwrap().unwrap_err().to_string();
        assert!(error.ends_with("sent more than the limit of 5 bytes"), "{long}: {error}");
    }
}

#[tokio::test]
async fn a_redirect_is_returned_unless_redirects_are_followed() {
    let web = Web::start(Reply::to(302, "/there")).await;
    let answer = soon(client().send(get(&web.url))).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["location"].to_str().unwrap()), (302, "/there"));

    web.play(|seen| if seen.path == "/there" { Reply::ok("arrived") } else { Reply::to(302, "/there") });
    assert_eq!(text(soon(following().send(get(&web.url))).await.unwrap()).await, "arrived");
    // Without a location it is a response, as with Go.
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
async fn a_location_is_resolved_against_the_url() {
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
        ("/with space?a b", "/with%20space?a%20b"),
        ("with%20space é", "/a/with%20space%20%C3%A9"),
        ("http://with space/", ""),
    ] {
        let to = location.to_owned();
        let mut first = true;
        web.play(move |_| if std::mem::take(&mut first) { Reply::to(302, &to) } else { Reply::ok("here") });
        let answer = soon(following().send(get(&web.at("/a/b?q")))).await;
        match answer {
            Ok(_) => assert_eq!(web.seen().last().unwrap().path, leads, "{location}"),
            Err(error) => {
                assert_eq!(leads, "", "{location}: {error}");
                let expected =
                    format!("{} redirects to something that is not an http or https URL", web.at("/a/b"));
                assert_eq!(error.to_string(), expected);
            }
        }
    }
    // A location without a scheme.
    let host = web.url.strip_prefix("http:").unwrap().to_owned();
    web.play(
        move |seen| {
            if seen.path == "/c" { Reply::ok("here") } else { Reply::to(302, &format!("{host}/c")) }
        },
    );
    assert_eq!(text(soon(following().send(get(&web.url))).await.unwrap()).await, "here");
}

#[tokio::test]
async fn the_number_of_redirects_is_limited() {
    let web = Web::start(Reply::to(302, "/round")).await;
    let error = fails(&following(), get(&web.url)).await.to_string();
    let host = web.url.strip_prefix("http://").unwrap();
    assert_eq!(error, format!("more than 9 redirects, the last one to {host}"));
    // As with Go's client.
    assert_eq!(web.seen().len(), 10);
}

#[tokio::test]
async fn secret_headers_are_not_sent_to_another_origin() {
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

    // Another port is another origin.
    first.say(Reply::to(302, &other.at("/there")));
    other.say(Reply::to(302, &first.at("/back")));
    first.play({
        let away = other.at("/there");
        move |seen| if seen.path == "/back" { Reply::ok("") } else { Reply::to(302, &away) }
    });
    soon(following().send(request())).await.unwrap();
    for seen in [other.seen().last().unwrap(), first.seen().last().unwrap()] {
        let secrets = (seen.header("authorization"), seen.header("x-token"));
        assert_eq!(secrets, ("", ""), "{}: dropped headers do not come back", seen.path);
        assert_eq!(seen.header("accept"), "application/json");
    }
}

/// As with the kubelet's probes.
#[tokio::test]
async fn a_trusted_host_gets_every_header_at_its_other_ports_but_not_the_name_of_the_first_one() {
    let (first, other) = (Web::start(Reply::ok("")).await, Web::start(Reply::ok("other")).await);
    let settings = ClientSettings { redirects: Redirects::SameHost, ..ClientSettings::default() };
    let client = Client::new(settings).unwrap();
    let request = || {
        let request = Request::get(first.at("/start")).header("Host", "app.example");
        request.header("X-Token", "s3cret").body(Bytes::new()).unwrap()
    };
    let away = other.at("/there");
    first.play(
        move |seen| {
            if seen.path == "/start" { Reply::to(302, "/next") } else { Reply::to(302, &away) }
        },
    );
    assert_eq!(text(soon(client.send(request())).await.unwrap()).await, "other");
    let (near, far) = (&first.seen()[1], &other.seen()[0]);
    assert_eq!((near.header("host"), near.header("x-token")), ("app.example", "s3cret"));
    let own = other.url.strip_prefix("http://").unwrap();
    assert_eq!((far.header("host"), far.header("x-token")), (own, "s3cret"));

    // A redirect to another host is a response, and one that leads nowhere is an error.
    first.say(Reply::to(302, "http://elsewhere.example/"));
    assert_eq!(soon(client.send(request())).await.unwrap().status().as_u16(), 302);
    for nowhere in ["http://", "ftp://127.0.0.1/", "http://127.0.0.1:99999/", "//127.0.0.1:65536/"] {
        first.say(Reply::to(302, nowhere));
        let error = fails(&client, request()).await.to_string();
        assert!(error.ends_with("redirects to something that is not an http or https URL"), "{error}");
    }
}

#[tokio::test]
async fn the_user_and_password_of_a_url_become_a_header_and_are_never_shown() {
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
    assert_eq!(
        error.to_string(),
        format!("http://{host}/a redirects to something that is not an http or https URL")
    );
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
        "the certificate of {host} is not trusted: it was issued by an unknown CA; set the file of the right CA"
    );
    let error = fails(&Client::new(settings(&other)).unwrap(), get(&web.url)).await;
    assert_eq!(error.to_string(), unknown);

    let elsewhere = Web::start_tls(ours.server("elsewhere.example", None), Reply::ok("")).await;
    let error = fails(&Client::new(settings(&ours)).unwrap(), get(&elsewhere.url)).await.to_string();
    assert!(error.contains("is not trusted: it is for another name ("), "{error}");

    let strict = Web::start_tls(ours.server("localhost", Some(&ours)), Reply::ok("known")).await;
    let error = fails(&Client::new(settings(&ours)).unwrap(), get(&strict.url)).await.to_string();
    assert!(error.contains("rejected the client certificate (CertificateRequired)"), "{error}");
    let with = |(cert_file, key_file)| {
        let identity = Some(CertificateFiles { certificate: cert_file, key: key_file });
        Client::new(ClientSettings { identity, ..settings(&ours) })
    };
    let known = with(ours.client("known")).unwrap();
    assert_eq!(text(soon(known.send(get(&strict.url))).await.unwrap()).await, "known");
    let error = fails(&with(other.client("stranger")).unwrap(), get(&strict.url)).await.to_string();
    assert!(error.contains("rejected the client certificate ("), "{error}");
    let (cert_file, key_file) = (ours.client("one").0, ours.client("two").1);
    let error = with((cert_file.clone(), key_file.clone())).unwrap_err().to_string();
    let expected = format!(
        "cannot use the certificate {} with the key {} (do they belong together?)",
        cert_file.display(),
        key_file.display()
    );
    assert_eq!(error, expected);

    // TLS to a server without TLS.
    let plain = Web::start(Reply::ok("")).await;
    let url = plain.url.replace("http:", "https:");
    let error = fails(&Client::new(settings(&ours)).unwrap(), get(&url)).await.to_string();
    assert!(error.ends_with(" (does the server use TLS at this port?)"), "{error}");
}

/// With TLS 1.2 a server that demands a client certificate says only this.
#[tokio::test]
async fn an_alert_of_the_server_is_no_doubt_that_it_uses_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        // A fatal alert: handshake_failure.
        stream.write_all(&[21, 3, 3, 0, 2, 2, 40]).await.unwrap();
        stream.shutdown().await.unwrap();
        stream
    });
    let directory = tempfile::tempdir().unwrap();
    let ca_file = Some(Authority::new(directory.path(), "ours").ca_file);
    let client = Client::new(ClientSettings { ca_file, ..ClientSettings::default() }).unwrap();
    let error = fails(&client, get(&format!("https://{host}/"))).await.to_string();
    let hint = "does the server require a client certificate, another host name, or another version of TLS?";
    assert_eq!(error, format!("TLS with {host} failed ({hint})"));
    server.await.unwrap();
}

/// A server of the program `openssl`, which signs with keys that rustls cannot use. It ends when this is dropped.
struct Foreign {
    server: Child,
    url: String,
}

impl Foreign {
    /// With a new key of a kind.
    fn start(kind: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [key, certificate] = ["key", "crt"].map(|name| directory.path().join(name).display().to_string());
        let mut made = Command::new("openssl");
        made.args(["req", "-x509", "-nodes", "-subj", "/CN=elsewhere.example", "-newkey"]).args(kind);
        let made = made.args(["-keyout", &key, "-out", &certificate]).output().expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = Command::new("openssl");
        // Without the level it refuses keys that are short.
        server.args(["s_server", "-www", "-accept", "127.0.0.1:0", "-cipher", "DEFAULT@SECLEVEL=0"]);
        server.args(["-key", &key, "-cert", &certificate]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("ACCEPT ") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "openssl s_server has ended");
        }
        // It may write more.
        server.stdout = Some(output.into_inner());
        Self { server, url: format!("https://{}/", line["ACCEPT ".len()..].trim()) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

#[tokio::test]
async fn a_client_that_accepts_any_server_accepts_keys_whose_signatures_it_cannot_verify() {
    let settings = ClientSettings { accepts_any_server: true, ..ClientSettings::default() };
    let client = Client::new(settings).unwrap();
    for kind in [&["rsa:1024"][..], &["ec", "-pkeyopt", "ec_paramgen_curve:P-521"]] {
        let foreign = Foreign::start(kind);
        let answer = soon(client.send(get(&foreign.url))).await;
        assert_eq!(answer.expect(kind[0]).status().as_u16(), 200);
    }
}

#[tokio::test]
async fn a_redirect_from_https_to_http_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let plain = Web::start(Reply::ok("plain")).await;
    let web =
        Web::start_tls(ours.server("localhost", None), Reply::to(302, &plain.at("/p?token=s3cret"))).await;
    let settings = ClientSettings {
        ca_file: Some(ours.ca_file.clone()),
        redirects: Redirects::All,
        ..ClientSettings::default()
    };
    let client = Client::new(settings).unwrap();
    let error = fails(&client, get(&web.at("/"))).await.to_string();
    let expected = format!(
        "{} redirects from https to {}, which is not encrypted, so it is not followed",
        web.at("/"),
        plain.at("/p")
    );
    assert_eq!(error, expected);
    assert_eq!(plain.seen().len(), 0);
    // A redirect from http to https is.
    plain.say(Reply::to(302, &web.at("/secure")));
    web.say(Reply::ok("secure"));
    assert_eq!(text(soon(client.send(get(&plain.url))).await.unwrap()).await, "secure");
}

#[test]
fn the_files_of_the_settings_are_read_by_new() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let (missing, empty) = (directory.path().join("missing"), directory.path().join("empty"));
    fs::write(&empty, "no PEM\n").unwrap();
    let ca = |path: &PathBuf| {
        let settings = ClientSettings { ca_file: Some(path.clone()), ..ClientSettings::default() };
        with_cause(&Client::new(settings).unwrap_err())
    };
    assert!(ca(&missing).starts_with(&format!(
        "cannot read {} (does it exist, and may podmux read it?): ",
        missing.display()
    )));
    assert_eq!(ca(&empty), format!("cannot use {}: {NO_CERTIFICATE}", empty.display()));
    let (cert_file, _) = ours.client("one");
    let identity = Some(CertificateFiles { certificate: cert_file.clone(), key: cert_file.clone() });
    let error = Client::new(ClientSettings { identity, ..ClientSettings::default() }).unwrap_err();
    assert_eq!(with_cause(&error), format!("cannot use {}: {NO_KEY}", cert_file.display()));
}
