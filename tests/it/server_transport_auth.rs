//! Authentication: the token, the host, and web pages.

use std::{fs, path::Path};

use bytes::Bytes;
use expect_test::expect;
use http::{Request, header::AUTHORIZATION};
use http_body_util::Full;
use podmux::server::{Config, Limits, Listen, RejectReason};
use rustix::process::geteuid;
use tokio::net::UnixStream;

use crate::support::{
    logs::logged,
    served::{
        Answer, SOON, Served, ask, ask_http2, bind, chain, get_of, gist, loopback, post_of, raw, unix, until,
    },
};

fn with_token(path: &Path) -> Config {
    Config { token_file: Some(path.to_owned()), anonymous: false, ..loopback() }
}

fn with_authorization(value: &str) -> Request<Full<Bytes>> {
    let mut request = get_of("/who");
    request.headers_mut().insert(AUTHORIZATION, value.parse().unwrap());
    request
}

async fn who(served: &Served, authorization: &str) -> Answer {
    ask(served.connect().await, with_authorization(authorization)).await
}

#[tokio::test]
async fn over_tcp_a_request_needs_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, " s3cret-token\n").unwrap();
    let served = Served::start(&with_token(&file), Limits::default()).await;
    for value in ["Bearer s3cret-token", "bearer s3cret-token", "Bearer   s3cret-token"] {
        assert_eq!(who(&served, value).await.line(), "200 Token", "{value}");
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
    for value in wrong {
        let answer = who(&served, value).await;
        assert_eq!(answer.status, 401, "{value}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        let why = "the caller is not authenticated: the Authorization header has no token of this agent: \
            send that of auth/token in its state directory, or of its --token-file";
        assert!(answer.line().contains(&format!("\"message\":\"{why}\"")), "{value}: {}", answer.line());
    }
    expect![[r#"401 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the caller is not authenticated: send the token as Authorization: Bearer TOKEN","reason":"Unauthorized","code":401}"#]].assert_eq(&served.get("/who").await.line());
    served.rejected(RejectReason::Unauthorized, wrong.len() as u64 + 1).await;
    // The body of an unauthenticated request is not read.
    assert_eq!(ask(served.connect().await, post_of("/wait", "pod")).await.status, 401);
    // Nor is it asked for.
    let expects = "POST /wait HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n";
    let answer = raw(served.connect().await, &format!("{expects}Expect: 100-continue\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    served.ends().await;
}

#[tokio::test]
async fn health_checks_need_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "s3cret-token").unwrap();
    let served = Served::start(&with_token(&file), Limits::default()).await;
    assert_eq!(served.get("/livez").await.line(), "200 ok");
    for path in ["/readyz", "/healthz"] {
        assert_eq!(served.get(path).await.status, 404, "the transport does not reject {path}");
    }
    for path in ["/livez?verbose", "/livez/", "/livez/x", "/metrics", "/pods"] {
        assert_eq!(served.get(path).await.status, 401, "{path}");
    }
    assert_eq!(ask(served.connect().await, post_of("/livez", "")).await.status, 401);
    served.ends().await;
}

#[tokio::test]
async fn with_anonymous_auth_all_callers_are_anonymous() {
    let served = Served::start(&loopback(), Limits::default()).await;
    assert_eq!(served.get("/who").await.line(), "200 Anonymous");
    assert_eq!(who(&served, "Bearer whatever").await.line(), "200 Anonymous");
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
        let text = format!("GET /who HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        let answer = raw(UnixStream::connect(&path).await.unwrap(), &text).await;
        assert_eq!(
            gist(&answer),
            format!("HTTP/1.1 200 OK Unix {{ uid: {} }}", geteuid().as_raw()),
            "{host}"
        );
    }
    served.ends().await;
}

#[test]
fn a_new_token_is_valid_after_its_file_is_written() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "first-token").unwrap();
        let limits = Limits { reload: SOON / 10, ..Limits::default() };
        let served = Served::start(&with_token(&file), limits).await;
        assert_eq!(who(&served, "Bearer first-token").await.status, 200);

        // Replaced by a rename.
        fs::write(dir.path().join("new"), "second-token").unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
        until("the file is reloaded", || log.lines_with("credentials reloaded").len() == 1).await;
        assert_eq!(who(&served, "Bearer second-token").await.status, 200);
        assert_eq!(who(&served, "Bearer first-token").await.status, 401);

        // An invalid token changes nothing, and each error is logged once.
        for (logged, text) in [(1, ""), (2, "two words")] {
            fs::write(&file, text).unwrap();
            until("the error is logged", || log.lines_with("credentials rejected").len() == logged).await;
            assert_eq!(who(&served, "Bearer second-token").await.status, 200);
        }
        fs::remove_file(&file).unwrap();
        until("the error is logged", || log.lines_with("credentials rejected").len() == 3).await;
        assert_eq!(who(&served, "Bearer second-token").await.status, 200);

        // Written in place.
        fs::write(&file, "third-token").unwrap();
        until("the file is reloaded", || log.lines_with("recovered").len() == 1).await;
        assert_eq!(who(&served, "Bearer third-token").await.status, 200);
        assert_eq!(who(&served, "Bearer second-token").await.status, 401);
        assert_eq!(log.lines_with("credentials rejected").len(), 3);
        assert!(log.lines_with("-token").iter().all(|line| !line.contains("second")), "no token in the log");
        served.ends().await;
    });
}

#[test]
fn a_requested_reload_reads_the_token_at_once() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "first-token").unwrap();
        let limits = Limits { reload: std::time::Duration::from_hours(1), ..Limits::default() };
        let served = Served::start(&with_token(&file), limits).await;
        assert_eq!(who(&served, "Bearer first-token").await.status, 200);
        fs::write(&file, "other-token").unwrap();
        served.credentials.now(&with_token(&file));
        until("the file is reloaded", || log.lines_with("credentials reloaded").len() == 1).await;
        assert_eq!(who(&served, "Bearer other-token").await.status, 200);
        served.ends().await;
    });
}

/// Each requested reload logs its error, also a known one.
#[test]
fn a_reload_can_name_another_token_file() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("token"), dir.path().join("other"));
        fs::write(&file, "first-token").unwrap();
        let limits = Limits { reload: std::time::Duration::from_hours(1), ..Limits::default() };
        let served = Served::start(&with_token(&file), limits).await;
        for times in 1..3 {
            served.credentials.now(&with_token(&other));
            until("the error is logged", || {
                log.lines_with("the previous ones stay in effect").len() == times
            })
            .await;
            assert_eq!(who(&served, "Bearer first-token").await.status, 200);
        }
        fs::write(&other, "other-token").unwrap();
        served.credentials.now(&with_token(&other));
        until("the file is reloaded", || log.lines_with("recovered").len() == 1).await;
        assert_eq!(who(&served, "Bearer other-token").await.status, 200);
        assert_eq!(who(&served, "Bearer first-token").await.status, 401);
        served.ends().await;
    });
}

#[test]
fn without_an_address_over_tcp_no_client_over_tcp_is_rejected() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let settings = unix(&dir.path().join("socket"));
        let served = Served::start(&settings, Limits::default()).await;
        let client_ca_file = Some(dir.path().join("missing"));
        served.credentials.now(&Config { client_ca_file, ..settings });
        until("the error is logged", || log.lines_with("credentials rejected").len() == 1).await;
        let line = log.lines_with("credentials rejected").concat();
        assert!(line.contains("the previous ones stay in effect"), "{line}");
        served.ends().await;
    });
}

#[test]
fn a_reload_can_add_a_token() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "first-token").unwrap();
        let served = Served::start(&loopback(), Limits::default()).await;
        assert_eq!(served.get("/who").await.status, 200);
        served.credentials.now(&with_token(&file));
        until("the file is reloaded", || log.lines_with("credentials reloaded").len() == 1).await;
        assert_eq!(served.get("/who").await.status, 401);
        assert_eq!(who(&served, "Bearer first-token").await.status, 200);
        served.ends().await;
    });
}

#[tokio::test]
async fn an_invalid_token_file_is_an_error_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let mut errors = String::new();
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
        let error = bind(&with_token(&file), Limits::default()).await.err().unwrap();
        errors += &chain(&error).replace(dir.path().to_str().unwrap(), "DIR");
        errors += "\n";
    }
    expect![[r#"
        cannot read the token file DIR/token (does it exist, and may podmux read it?): No such file or directory (os error 2)
        token file DIR/token: the file is empty: write a token into it, such as the output of openssl rand -hex 32
        token file DIR/token: the file is empty: write a token into it, such as the output of openssl rand -hex 32
        token file DIR/token: the token is invalid: it must be one word of printable ASCII
        token file DIR/token: the token is invalid: it must be one word of printable ASCII
        cannot read the token file DIR/token (does it exist, and may podmux read it?): larger than 1048576 bytes
    "#]]
    .assert_eq(&errors);
}

#[tokio::test]
async fn a_request_for_another_host_is_403() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let port = served.address().port();
    let line = async |host: &str| {
        let text = format!("GET /hello HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        gist(&raw(served.connect().await, &text).await)
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
    served.rejected(RejectReason::Host, foreign.len() as u64).await;
    expect![[r#"HTTP/1.1 403 Forbidden {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request is for another host, example.org: use localhost, node1, 127.0.0.1 or a name in the server's certificate","reason":"Forbidden","code":403}"#]].assert_eq(&line("Host: example.org\r\n").await);
    let mut errors = String::new();
    for host in [
        "",
        "Host: \r\n",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: a b\r\n",
        "Host: root@localhost\r\n",
    ] {
        errors += &line(host).await;
        errors += "\n";
    }
    expect![[r#"
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request has no Host header: send one Host header with the server's name or address","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the Host header is invalid: send one Host header with the server's name or address","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request has several Host headers: send one Host header with the server's name or address","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the Host header is invalid: send one Host header with the server's name or address","reason":"BadRequest","code":400}
        HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request's host has a user: send one Host header with the server's name or address","reason":"BadRequest","code":400}
    "#]].assert_eq(&errors);
    served.ends().await;
}

#[tokio::test]
async fn the_host_of_the_uri_wins_over_the_header() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let text =
        |uri: &str, host: &str| format!("GET {uri} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let foreign = text("http://example.org/hello", "localhost");
    assert!(raw(served.connect().await, &foreign).await.starts_with("HTTP/1.1 403"));
    let ours = text("http://localhost/hello", "example.org");
    assert_eq!(gist(&raw(served.connect().await, &ours).await), "HTTP/1.1 200 OK hello");
    for (uri, status) in [("http://localhost/hello", 200), ("http://example.org/hello", 403)] {
        let request = Request::get(uri).body(Full::default()).unwrap();
        assert_eq!(ask_http2(served.connect().await, request).await.status, status, "{uri}");
    }
    served.ends().await;
}

#[tokio::test]
async fn a_request_of_a_web_page_is_403() {
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
    let answer = ask(served.connect().await, with("https://example.org")).await;
    expect![[r#"403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"requests of web pages are rejected: remove the Origin header","reason":"Forbidden","code":403}"#]].assert_eq(&answer.line());
    // Any value of the header.
    for origin in ["null", "", "http://localhost:10240"] {
        assert_eq!(ask(served.connect().await, with(origin)).await.status, 403, "{origin}");
    }
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), with("null")).await.status, 403);
    served.rejected(RejectReason::Origin, 5).await;
    served.ends().await;
}

#[tokio::test]
async fn a_request_for_another_user_is_rejected_on_every_listener() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    let mut settings = loopback();
    settings.listen.push(Listen::Unix(path.clone()));
    let served = Served::start(&settings, Limits::default()).await;
    let with = |name: &'static str| {
        let mut request = get_of("/who");
        request.headers_mut().insert(name, "nobody".parse().unwrap());
        request
    };
    let answer = ask(served.connect().await, with("impersonate-user")).await;
    expect![[r#"403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"impersonation is not served: leave out --as, --as-group and --as-uid (the headers Impersonate-*)","reason":"Forbidden","code":403}"#]].assert_eq(&answer.line());
    for name in ["impersonate-group", "impersonate-uid", "impersonate-extra-scopes"] {
        assert_eq!(ask(served.connect().await, with(name)).await.status, 403, "{name}");
    }
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), with("impersonate-user")).await.status, 403);
    served.rejected(RejectReason::Unauthorized, 5).await;
    served.ends().await;
}
