//! Who may ask: the token, the host that is meant, and no web page.

use std::{fs, path::Path};

use bytes::Bytes;
use expect_test::expect;
use http::{Request, header::AUTHORIZATION};
use http_body_util::Full;
use podmux::server::{Config, Limits, Listen, Refusal};
use tokio::net::UnixStream;

use crate::support::{
    logs::logged,
    served::{
        Answer, SOON, Served, ask, ask_http2, bind, chain, get_of, gist, loopback, post_of, raw, unix, until,
    },
};

fn with_token(path: &Path) -> Config {
    Config { token_file: Some(path.to_owned()), ..loopback() }
}

fn bearing(said: &str) -> Request<Full<Bytes>> {
    let mut request = get_of("/who");
    request.headers_mut().insert(AUTHORIZATION, said.parse().unwrap());
    request
}

async fn who(served: &Served, said: &str) -> Answer {
    ask(served.connect().await, bearing(said)).await
}

#[tokio::test]
async fn without_a_token_nobody_is_answered_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, " s3cret-token\n").unwrap();
    let served = Served::start(&with_token(&file), Limits::default()).await;
    for said in ["Bearer s3cret-token", "bearer s3cret-token", "Bearer   s3cret-token"] {
        assert_eq!(who(&served, said).await.line(), "200 Known", "{said}");
    }
    let wrong = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cret-toke",
        "Bearer s3cret-token2",
        "Bearer S3CRET-TOKEN",
        "Bearer  ",
        "Basic s3cret-token",
        "s3cret-token",
        "Bearer, s3cret-token",
    ];
    for said in wrong {
        let answer = who(&served, said).await;
        assert_eq!(answer.status, 401, "{said}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    expect![[r#"401 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server does not know who asks: it needs the token, as Authorization: Bearer TOKEN","reason":"Unauthorized","code":401}"#]].assert_eq(&served.get("/who").await.line());
    served.refused(Refusal::Unauthorized, wrong.len() as u64 + 1).await;
    // What is not known to be anybody's is not even read.
    assert_eq!(ask(served.connect().await, post_of("/wait", "pod")).await.status, 401);
    served.ends().await;
}

#[tokio::test]
async fn whether_the_agent_is_alive_is_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "s3cret-token").unwrap();
    let served = Served::start(&with_token(&file), Limits::default()).await;
    assert_eq!(served.get("/livez").await.line(), "200 ok");
    for path in ["/readyz", "/healthz"] {
        assert_eq!(served.get(path).await.status, 404, "it is not the transport that refuses {path}");
    }
    for path in ["/livez?verbose", "/livez/", "/livez/x", "/metrics", "/pods"] {
        assert_eq!(served.get(path).await.status, 401, "{path}");
    }
    assert_eq!(ask(served.connect().await, post_of("/livez", "")).await.status, 401);
    served.ends().await;
}

#[tokio::test]
async fn without_token_and_certificates_anybody_on_this_machine_is_answered() {
    let served = Served::start(&loopback(), Limits::default()).await;
    assert_eq!(served.get("/who").await.line(), "200 Anybody");
    assert_eq!(who(&served, "Bearer whatever").await.line(), "200 Anybody");
    served.ends().await;
}

#[tokio::test]
async fn a_unix_socket_needs_no_token_and_no_host() {
    let dir = tempfile::tempdir().unwrap();
    let (file, path) = (dir.path().join("token"), dir.path().join("podmux.sock"));
    fs::write(&file, "s3cret-token").unwrap();
    let settings = Config { token_file: Some(file), ..unix(&path) };
    let served = Served::start(&settings, Limits::default()).await;
    for host in ["Host: anything\r\n", "Host: \r\n", ""] {
        let asked = format!("GET /who HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        let answer = raw(UnixStream::connect(&path).await.unwrap(), &asked).await;
        assert_eq!(gist(&answer), "HTTP/1.1 200 OK Socket", "{host}");
    }
    served.ends().await;
}

#[test]
fn a_new_token_holds_from_when_its_file_is_written() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "first-token").unwrap();
        let limits = Limits { reread: SOON / 10, ..Limits::default() };
        let served = Served::start(&with_token(&file), limits).await;
        assert_eq!(who(&served, "Bearer first-token").await.status, 200);

        // Replaced as a careful program does it.
        fs::write(dir.path().join("new"), "second-token").unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
        until("it is read", || log.lines_with("read anew").len() == 1).await;
        assert_eq!(who(&served, "Bearer second-token").await.status, 200);
        assert_eq!(who(&served, "Bearer first-token").await.status, 401);

        // What cannot be a token changes nothing, and is told once.
        for text in ["", "two words"] {
            fs::write(&file, text).unwrap();
            until("it is told", || !log.lines_with("cannot be used").is_empty()).await;
            assert_eq!(who(&served, "Bearer second-token").await.status, 200);
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(who(&served, "Bearer second-token").await.status, 200);

        // Written in place.
        fs::write(&file, "third-token").unwrap();
        until("it is read", || log.lines_with("recovered").len() == 1).await;
        assert_eq!(who(&served, "Bearer third-token").await.status, 200);
        assert_eq!(who(&served, "Bearer second-token").await.status, 401);
        assert_eq!(log.lines_with("cannot be used").len(), 1);
        assert!(log.lines_with("-token").iter().all(|line| !line.contains("second")), "no token in the log");
        served.ends().await;
    });
}

#[test]
fn the_token_is_read_at_once_if_somebody_asks_for_it() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "first-token").unwrap();
        let limits = Limits { reread: std::time::Duration::from_hours(1), ..Limits::default() };
        let served = Served::start(&with_token(&file), limits).await;
        assert_eq!(who(&served, "Bearer first-token").await.status, 200);
        fs::write(&file, "other-token").unwrap();
        served.reread.now(&with_token(&file));
        until("it is read", || log.lines_with("read anew").len() == 1).await;
        assert_eq!(who(&served, "Bearer other-token").await.status, 200);
        served.ends().await;
    });
}

/// Each reload is answered: what is bad a second time is said a second time.
#[test]
fn the_token_may_come_to_stand_in_another_file() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("token"), dir.path().join("other"));
        fs::write(&file, "first-token").unwrap();
        let limits = Limits { reread: std::time::Duration::from_hours(1), ..Limits::default() };
        let served = Served::start(&with_token(&file), limits).await;
        for times in 1..3 {
            served.reread.now(&with_token(&other));
            until("it is said", || log.lines_with("those from before stay").len() == times).await;
            assert_eq!(who(&served, "Bearer first-token").await.status, 200);
        }
        fs::write(&other, "other-token").unwrap();
        served.reread.now(&with_token(&other));
        until("it is read", || log.lines_with("recovered").len() == 1).await;
        assert_eq!(who(&served, "Bearer other-token").await.status, 200);
        assert_eq!(who(&served, "Bearer first-token").await.status, 401);
        served.ends().await;
    });
}

/// A server that began without any is given one.
#[test]
fn a_token_can_be_asked_for_from_now_on() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "first-token").unwrap();
        let served = Served::start(&loopback(), Limits::default()).await;
        assert_eq!(served.get("/who").await.status, 200);
        served.reread.now(&with_token(&file));
        until("it is read", || log.lines_with("read anew").len() == 1).await;
        assert_eq!(served.get("/who").await.status, 401);
        assert_eq!(who(&served, "Bearer first-token").await.status, 200);
        served.ends().await;
    });
}

#[tokio::test]
async fn a_token_file_that_holds_no_token_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let mut told = String::new();
    for text in [
        None,
        Some(String::new()),
        Some(" \n".to_owned()),
        Some("a b".to_owned()),
        Some("é".to_owned()),
        Some("a".repeat(1024 * 1024 + 1)),
    ] {
        match text {
            None => {}
            Some(text) => fs::write(&file, text).unwrap(),
        }
        let error = bind(&with_token(&file), Limits::default()).await.unwrap_err();
        told += &chain(&error).replace(dir.path().to_str().unwrap(), "DIR");
        told += "\n";
    }
    expect![[r#"
        token file DIR/token: cannot be read; does it exist, and may this process read it?: No such file or directory (os error 2)
        token file DIR/token: it is empty; a token is needed, the output of openssl rand -hex 32 for one
        token file DIR/token: it is empty; a token is needed, the output of openssl rand -hex 32 for one
        token file DIR/token: there is more than a token in it: one word of printable ASCII is needed
        token file DIR/token: there is more than a token in it: one word of printable ASCII is needed
        token file DIR/token: cannot be read; does it exist, and may this process read it?: it is larger than 1 MiB
    "#]]
    .assert_eq(&told);
}

#[tokio::test]
async fn only_who_means_this_server_is_answered() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let port = served.address().port();
    let line = async |host: &str| {
        let asked = format!("GET /hello HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        gist(&raw(served.connect().await, &asked).await)
    };
    let ours = [
        "localhost".to_owned(),
        "LocalHost.".to_owned(),
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        "127.0.0.1:80".to_owned(),
        "127.8.8.8".to_owned(),
        "[::1]:10240".to_owned(),
        "[::ffff:127.0.0.1]".to_owned(),
        "node1".to_owned(),
        "NODE1:1".to_owned(),
    ];
    for host in &ours {
        assert_eq!(line(&format!("Host: {host}\r\n")).await, "HTTP/1.1 200 OK hello", "{host}");
    }
    let foreign = [
        "example.org",
        "example.org:10240",
        "localhost.example.org",
        "node1.example.org",
        "127.0.0.1.example.org",
        "192.168.0.1",
        "0.0.0.0",
        "[::]",
        "2130706433",
        "localhost.localdomain",
    ];
    for host in foreign {
        let answer = line(&format!("Host: {host}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{host}: {answer}");
    }
    served.refused(Refusal::Host, foreign.len() as u64).await;
    expect![[r#"HTTP/1.1 403 Forbidden {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request is for the host example.org, and this is not it: ask for localhost, for node1, for 127.0.0.1 or for a name in the server's certificate","reason":"Forbidden","code":403}"#]].assert_eq(&line("Host: example.org\r\n").await);
    let mut told = String::new();
    for host in [
        "",
        "Host: \r\n",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: a b\r\n",
        "Host: root@localhost\r\n",
    ] {
        told += &line(host).await;
        told += "\n";
    }
    expect![[r#"
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request has no Host header: one Host header with this server's name or address is needed","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request's Host header has no host in it: one Host header with this server's name or address is needed","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request has several Host headers: one Host header with this server's name or address is needed","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request's Host header has no host in it: one Host header with this server's name or address is needed","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request's host has a user: one Host header with this server's name or address is needed","reason":"BadRequest","code":400}
    "#]].assert_eq(&told);
    served.ends().await;
}

#[tokio::test]
async fn the_host_of_the_request_itself_goes_before_the_header() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let asked =
        |uri: &str, host: &str| format!("GET {uri} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let foreign = asked("http://example.org/hello", "localhost");
    assert!(raw(served.connect().await, &foreign).await.starts_with("HTTP/1.1 403"));
    let ours = asked("http://localhost/hello", "example.org");
    assert_eq!(gist(&raw(served.connect().await, &ours).await), "HTTP/1.1 200 OK hello");
    for (uri, status) in [("http://localhost/hello", 200), ("http://example.org/hello", 403)] {
        let request = Request::get(uri).body(Full::default()).unwrap();
        assert_eq!(ask_http2(served.connect().await, request).await.status, status, "{uri}");
    }
    served.ends().await;
}

#[tokio::test]
async fn no_web_page_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    let mut settings = loopback();
    settings.listen.push(Listen::Unix(path.clone()));
    let served = Served::start(&settings, Limits::default()).await;
    let with = |origin: &str| {
        let mut request = post_of("/wait", "pod");
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request
    };
    let told = ask(served.connect().await, with("https://example.org")).await;
    expect![[r#"403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"requests of web pages are refused: this one has an Origin header","reason":"Forbidden","code":403}"#]].assert_eq(&told.line());
    // Whatever it says of itself.
    for origin in ["null", "", "http://localhost:10240"] {
        assert_eq!(ask(served.connect().await, with(origin)).await.status, 403, "{origin}");
    }
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), with("null")).await.status, 403);
    served.refused(Refusal::Origin, 5).await;
    served.ends().await;
}
