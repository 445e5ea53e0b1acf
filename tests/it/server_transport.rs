//! The transport's limits: a client cannot exceed them or block other clients.

use std::{fs, net::SocketAddr, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use expect_test::expect;
use http::{Method, Request};
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use podmux::server::{Limits, RejectReason, SMALL_BODY};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::yield_now,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::support::{
    process::PATIENCE,
    served::{
        SOON, Served, ask, ask_http2, get_of, gist, http1, http2, loopback, post_of, raw, rest, try_ask,
        until,
    },
};

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn http_1_and_2_are_served() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let mut client = http1(served.connect().await).await;
    for _ in 0..3 {
        client.ready().await.unwrap();
        assert_eq!(client.send_request(get_of("/hello")).await.unwrap().status(), 200);
    }
    assert_eq!((served.stats.accepted(), served.stats.open()), (1, 1));
    let mut request = get_of("/hello");
    *request.uri_mut() = "http://localhost/hello".parse().unwrap();
    assert_eq!(ask_http2(served.connect().await, request).await.line(), "200 hello");
    drop(client);
    until("all are closed", || served.stats.open() == 0).await;
    assert_eq!(served.stats.accepted(), 2);
    served.ends().await;
}

/// What a GET would have (RFC 9110, 8.6).
#[tokio::test]
async fn a_head_has_the_length_that_is_known() {
    let served = Served::start(&loopback(), Limits::default()).await;
    for (path, length) in [("/hello", Some("content-length: 5")), ("/silent", None)] {
        let head = format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = raw(served.connect().await, &head).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(answer.lines().find(|line| line.starts_with("content-length")), length, "{answer}");
    }
    served.ends().await;
}

#[tokio::test]
async fn a_client_that_sends_headers_too_slowly_is_disconnected() {
    let limits = Limits { headers: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let texts = [
        "",
        "G",
        "GET /hello HTTP/1.1\r\nHost: localhost\r\n",
        "PRI * HTTP/2.0",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for (times, text) in (1..).zip(texts) {
        raw(served.connect().await, text).await;
        served.rejected(RejectReason::HeadersTimeout, times).await;
    }
    // Single bytes do not extend the timeout; later requests have the same one.
    let mut stream = served.connect().await;
    stream.write_all(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    let trickle = async {
        while stream.write_all(b"G").await.is_ok() {
            sleep(SOON / 10).await;
        }
    };
    timeout(PATIENCE, trickle).await.unwrap();
    served.rejected(RejectReason::HeadersTimeout, 6).await;
    served.ends().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_timeout() {
    let limits = Limits { idle: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let answer = raw(served.connect().await, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.ends_with("hello"), "{answer}");
    // This is not an error.
    assert_eq!(served.stats.rejected(RejectReason::HeadersTimeout), 0);
    served.ends().await;
}

#[tokio::test]
async fn headers_have_a_maximal_size() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let value = "a".repeat(65 * 1024);
    let answer = raw(
        served.connect().await,
        &format!("GET /hello HTTP/1.1\r\nHost: localhost\r\nX-A: {value}\r\n\r\n"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = "X-A: a\r\n".repeat(200);
    let answer =
        raw(served.connect().await, &format!("GET /hello HTTP/1.1\r\nHost: localhost\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    served.ends().await;
}

#[tokio::test]
async fn http_2_limits_headers_and_concurrent_requests() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let of = |path: &str| Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
    let mut request = of("/hello");
    for number in 0..65 {
        let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
        request.headers_mut().insert(name, "a".repeat(1024).parse().unwrap());
    }
    assert_eq!(ask_http2(served.connect().await, request).await.status, 431);
    // Compressed, each of these is one byte long.
    for (number, status) in [(100, 200), (101, 431)] {
        let mut request = of("/hello");
        for _ in 0..number {
            request.headers_mut().append("a", http::HeaderValue::from_static(""));
        }
        assert_eq!(ask_http2(served.connect().await, request).await.status, status, "{number}");
    }

    let mut client = http2(served.connect().await).await;
    // With the first response the client knows the limit of concurrent requests.
    assert_eq!(client.send_request(of("/hello")).await.unwrap().status(), 200);
    let pending: Vec<_> = (0..40)
        .map(|_| {
            let (mut client, request) = (client.clone(), of("/wait"));
            tokio::spawn(async move { client.send_request(request).await.unwrap().status() })
        })
        .collect();
    until("the maximal number of requests is handled", || served.work.waiting.load(Ordering::SeqCst) >= 32)
        .await;
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    assert_eq!(served.work.waiting.load(Ordering::SeqCst), 32);
    served.work.leave.add_permits(pending.len());
    for pending in pending {
        assert_eq!(pending.await.unwrap(), 200);
    }
    served.ends().await;
}

/// The kernel's timer of a connection, and when it expires in hundredths of a second: 2 is
/// keepalive, 4 probes a full receive window.
fn timer(local: SocketAddr, remote: SocketAddr) -> (u8, u64) {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ports = (format!(":{:04X}", local.port()), format!(":{:04X}", remote.port()));
    let row = table.lines().find(|row| {
        let mut fields = row.split_whitespace().skip(1);
        fields.next().is_some_and(|field| field.ends_with(&ports.0))
            && fields.next().is_some_and(|field| field.ends_with(&ports.1))
    });
    let timer = row.unwrap().split_whitespace().nth(5).unwrap();
    let (kind, after) = timer.split_once(':').unwrap();
    (kind.parse().unwrap(), u64::from_str_radix(after, 16).unwrap())
}

#[tokio::test]
async fn connections_have_tcp_keepalive() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let stream = served.connect().await;
    until("the connection is accepted", || served.stats.accepted() == 1).await;
    let (kind, after) = timer(served.address(), stream.local_addr().unwrap());
    assert_eq!(kind, 2);
    assert!(after <= 60 * 100, "{after}");
    served.ends().await;
}

#[tokio::test]
async fn a_body_that_is_sent_too_slowly_is_408() {
    let limits = Limits { body_time: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut stream = served.connect().await;
    stream
        .write_all(b"POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        .await
        .unwrap();
    let (read, mut write) = stream.into_split();
    let trickle = async {
        while write.write_all(b".").await.is_ok() {
            sleep(SOON / 10).await;
        }
    };
    let answer = tokio::select! {
        answer = rest(read) => answer,
        () = trickle => panic!("no answer"),
    };
    expect![[r#"HTTP/1.1 408 Request Timeout {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body is sent too slowly: send all of it, or 524288 bytes more, every 200ms","reason":"Timeout","code":408}"#]].assert_eq(&gist(&answer));
    served.rejected(RejectReason::BodyTimeout, 1).await;
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn a_body_that_is_sent_steadily_may_take_long() {
    // Long enough for a pause on a loaded machine, and shorter than four of them.
    let (body_time, pause) = (Duration::from_secs(10), Duration::from_secs(3));
    let limits = Limits { body_time, pace: 1, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut stream = served.connect().await;
    stream
        .write_all(
            b"POST /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4\r\n\r\n",
        )
        .await
        .unwrap();
    for _ in 0..4 {
        sleep(pause).await;
        stream.write_all(b".").await.unwrap();
    }
    assert_eq!(gist(&rest(stream).await), "HTTP/1.1 200 OK 4");
    served.ends().await;
}

#[tokio::test]
async fn a_body_has_a_maximal_size() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let largest = post_of("/hello", vec![b'.'; 10 * MIB]);
    assert_eq!(ask(served.connect().await, largest).await.line(), format!("200 {}", 10 * MIB));
    let too_large = expect![[
        r#"413 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body is larger than 10485760 bytes: send the pods in several requests","reason":"RequestEntityTooLarge","code":413}"#
    ]];

    // One byte more: the response comes before the whole body is sent.
    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 10 * MIB + 1])).await;
    too_large.assert_eq(&answer.line());
    // A client that sends all of it first can still read the response.
    let mut stream = served.connect().await;
    let head = format!(
        "POST /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        11 * MIB
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'.'; 11 * MIB]).await.unwrap();
    assert!(rest(stream).await.starts_with("HTTP/1.1 413"));
    // A body whose Content-Length is too large need not be sent.
    let announced =
        "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10485761\r\nExpect: 100-continue\r\n\r\n";
    let answer = raw(served.connect().await, announced).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Without Content-Length the bytes are counted.
    let mut request = post_of("/hello", vec![b'.'; 11 * MIB]);
    request.headers_mut().insert("transfer-encoding", "chunked".parse().unwrap());
    too_large.assert_eq(&ask(served.connect().await, request).await.line());
    // In HTTP/2 only this request ends, not the connection.
    let uri = "http://localhost/hello";
    let request = Request::post(uri).body(Full::from(vec![b'.'; 11 * MIB])).unwrap();
    too_large.assert_eq(&ask_http2(served.connect().await, request).await.line());
    served.rejected(RejectReason::BodySize, 5).await;
    served.ends().await;
}

#[tokio::test]
async fn an_incomplete_body_reaches_no_handler() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let mut stream = served.connect().await;
    stream
        .write_all(b"POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12345")
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    rest(stream).await;
    assert_eq!(served.work.waiting.load(Ordering::SeqCst), 0);
    let bad_chunk =
        "POST /wait HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nX\r\n";
    let answer = raw(served.connect().await, bad_chunk).await;
    expect![[r#"HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body is incomplete: Invalid chunk size line: missing size digit: send it again","reason":"BadRequest","code":400}"#]].assert_eq(&gist(&answer));
    assert_eq!(served.work.waiting.load(Ordering::SeqCst), 0);
    served.ends().await;
}

#[tokio::test]
async fn large_bodies_are_so_many_at_a_time_and_small_ones_do_not_count() {
    let limits = Limits { large_bodies: 1, body_time: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let holding = tokio::spawn(try_ask(served.connect().await, post_of("/wait", vec![b'.'; MIB])));
    until("the request is handled", || served.work.waiting.load(Ordering::SeqCst) == 1).await;

    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; SMALL_BODY + 1])).await;
    expect![[r#"503 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too many large bodies are sent at the same time: retry","reason":"ServiceUnavailable","details":{"retryAfterSeconds":1},"code":503}"#]].assert_eq(&answer.line());
    assert_eq!(answer.headers["retry-after"], "1");
    served.rejected(RejectReason::LargeBodies, 1).await;
    let small = ask(served.connect().await, post_of("/hello", vec![b'.'; SMALL_BODY])).await;
    assert_eq!(small.line(), format!("200 {SMALL_BODY}"));

    served.work.leave.add_permits(1);
    assert_eq!(holding.await.unwrap().unwrap().line(), "200 done");
    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 500_000])).await;
    assert_eq!(answer.line(), "200 500000");
    served.ends().await;
}

#[tokio::test]
async fn small_bodies_that_wait_for_their_answers_are_so_many_at_a_time() {
    let limits = Limits { small_bodies: 1, body_time: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    // A client that sends a part of its body takes no permit.
    let mut slow = served.connect().await;
    slow.write_all(b"POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n.").await.unwrap();
    let holding = tokio::spawn(try_ask(served.connect().await, post_of("/wait", vec![b'.'; SMALL_BODY])));
    until("the request is handled", || served.work.waiting.load(Ordering::SeqCst) == 1).await;

    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 1])).await;
    expect![[r#"503 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too many requests with a body wait for their answers: retry","reason":"ServiceUnavailable","details":{"retryAfterSeconds":1},"code":503}"#]].assert_eq(&answer.line());
    assert_eq!(answer.headers["retry-after"], "1");
    served.rejected(RejectReason::SmallBodies, 1).await;
    let empty = ask(served.connect().await, post_of("/hello", Vec::new())).await;
    assert_eq!(empty.line(), "200 0");

    served.work.leave.add_permits(1);
    assert_eq!(holding.await.unwrap().unwrap().line(), "200 done");
    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 1])).await;
    assert_eq!(answer.line(), "200 1");
    served.ends().await;
}

#[tokio::test]
async fn a_body_of_options_has_a_smaller_maximal_size() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let mut request = post_of("/hello", vec![b'.'; 64 * 1024]);
    *request.method_mut() = Method::DELETE;
    assert_eq!(ask(served.connect().await, request.clone()).await.line(), "200 65536");
    *request.body_mut() = Full::from(vec![b'.'; 64 * 1024 + 1]);
    let too_large = ask(served.connect().await, request).await.line();
    expect![[r#"413 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body is larger than 65536 bytes: send options only","reason":"RequestEntityTooLarge","code":413}"#]].assert_eq(&too_large);
    served.ends().await;
}

/// A probe without credentials could hold the permits that each write of a large body needs.
#[tokio::test]
async fn a_caller_that_may_write_nothing_sends_small_bodies_only() {
    let limits = Limits { large_bodies: 0, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (method, path) in
        [("GET", "/livez"), ("HEAD", "/livez"), ("POST", review), ("POST", &format!("{review}/"))]
    {
        let mut request = post_of(path, vec![b'.'; SMALL_BODY]);
        *request.method_mut() = method.parse().unwrap();
        let small = ask(served.connect().await, request.clone()).await.status;
        assert!([200, 404].contains(&small), "{small}");
        *request.body_mut() = Full::from(vec![b'.'; SMALL_BODY + 1]);
        assert_eq!(ask(served.connect().await, request).await.status, 413, "{method} {path}");
    }
    served.ends().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_response_is_disconnected() {
    let limits = Limits { stall: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    served.rejected(RejectReason::Stalled, 1).await;
    until("the connection is closed", || served.stats.open() == 0).await;
    assert_eq!(served.work.pouring.load(Ordering::SeqCst), 0);

    // In HTTP/2 the client reads everything but this response.
    let mut client = http2(served.connect().await).await;
    let of = |path: &str| Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
    let answer = client.send_request(of("/endless")).await.unwrap();
    served.rejected(RejectReason::Stalled, 2).await;
    until("the connection is closed", || served.stats.open() == 0).await;
    until("the response is dropped", || served.work.pouring.load(Ordering::SeqCst) == 0).await;
    drop(answer);
    served.ends().await;
}

/// The agent held such an answer for as long as the connection was open.
#[tokio::test]
async fn found_a_client_that_reads_nothing_of_a_large_answer_is_disconnected() {
    let served = Served::start(&loopback(), Limits { stall: SOON, ..Limits::default() }).await;
    let of_http2 = Request::get("http://localhost/large").body(Full::default()).unwrap();
    for answer in [
        ask(served.connect().await, get_of("/large")).await,
        ask_http2(served.connect().await, of_http2.clone()).await,
    ] {
        assert_eq!(answer.headers["content-length"], "1048576");
        assert_eq!(answer.text.len(), MIB);
    }
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1);
    let (mut client, connection) = builder.handshake(TokioIo::new(served.connect().await)).await.unwrap();
    tokio::spawn(connection);
    let answer = client.send_request(of_http2).await.unwrap();
    served.rejected(RejectReason::Stalled, 1).await;
    until("the connection is closed", || served.stats.open() == 0).await;
    drop(answer);
    served.ends().await;
}

#[tokio::test]
async fn a_client_that_waits_for_a_response_is_not_disconnected() {
    let limits = Limits { stall: SOON / 4, headers: SOON / 4, idle: SOON / 4, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let waiting = tokio::spawn(try_ask(served.connect().await, get_of("/wait")));
    let mut stream = served.connect().await;
    stream.write_all(b"GET /silent HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    // Later connections with the same timeouts do time out.
    headers_time_out(&served, 4).await;
    until("only these two are open", || served.stats.open() == 2).await;
    served.work.leave.add_permits(1);
    assert_eq!(waiting.await.unwrap().unwrap().line(), "200 done");
    served.ends().await;
}

/// Waits for as long as this many times a short limit, by connections that exceed it.
async fn headers_time_out(served: &Served, times: u64) {
    for times in 1..=times {
        raw(served.connect().await, "").await;
        served.rejected(RejectReason::HeadersTimeout, times).await;
    }
}

/// The server sends no PING of its own, and a client's is no request: an idle HTTP/2 connection
/// died after 40 s, because the answer to our PING counted as the begin of a request.
#[tokio::test]
async fn found_an_idle_http_2_connection_is_not_closed_for_its_pings() {
    let served = Served::start(&loopback(), Limits { headers: SOON, ..Limits::default() }).await;
    let mut client = pinging(&served).await;
    let hello = || Request::get("http://localhost/hello").body(Full::default()).unwrap();
    assert_eq!(client.send_request(hello()).await.unwrap().status(), 200);
    headers_time_out(&served, 3).await;
    assert_eq!(client.send_request(hello()).await.unwrap().status(), 200);
    assert_eq!(served.stats.open(), 1);
    served.ends().await;

    // And they do not keep it open for ever.
    let served = Served::start(&loopback(), Limits { idle: SOON, ..Limits::default() }).await;
    let mut client = pinging(&served).await;
    assert_eq!(client.send_request(hello()).await.unwrap().status(), 200);
    until("the connection is closed", || served.stats.open() == 0).await;
    served.ends().await;
}

/// An HTTP/2 connection whose client sends a PING again and again.
async fn pinging(served: &Served) -> http2::SendRequest<Full<Bytes>> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(SOON / 10).keep_alive_while_idle(true);
    let (client, connection) = builder.handshake(TokioIo::new(served.connect().await)).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn found_a_stalled_stream_is_not_forgiven_by_other_requests() {
    let served = Served::start(&loopback(), Limits { stall: SOON, ..Limits::default() }).await;
    let mut client = http2(served.connect().await).await;
    let of = |path: &str| Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
    let unread = client.send_request(of("/endless")).await.unwrap();
    let others = async { while client.send_request(of("/hello")).await.is_ok() {} };
    timeout(PATIENCE, others).await.unwrap();
    served.rejected(RejectReason::Stalled, 1).await;
    drop(unread);
    served.ends().await;
}

#[tokio::test]
async fn the_connection_that_was_idle_longest_gives_way() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut silent = Vec::new();
    for count in 1..=3 {
        silent.push(served.connect().await);
        until("the connection is accepted", || served.stats.accepted() == count).await;
    }
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    served.rejected(RejectReason::Full, 1).await;
    assert_eq!(rest(silent.remove(0)).await, "");
    // The others are still open.
    for stream in silent {
        assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
    }
    served.ends().await;
}

#[tokio::test]
async fn connections_with_requests_do_not_give_way() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let waiting = tokio::spawn(try_ask(served.connect().await, get_of("/wait")));
    until("the first is handled", || served.work.waiting.load(Ordering::SeqCst) == 1).await;
    // This client sends its body slowly,
    let mut sending = served.connect().await;
    let head = b"POST /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n1";
    sending.write_all(head).await.unwrap();
    // and this one reads a stream.
    let mut reading = served.connect().await;
    reading.write_all(b"GET /silent HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut begin = [0; 12];
    reading.read_exact(&mut begin).await.unwrap();
    let other = tokio::spawn(try_ask(served.connect().await, get_of("/hello")));
    served.rejected(RejectReason::Full, 1).await;
    // All tasks run on this thread: after this the connection waits for a slot.
    for _ in 0..1000 {
        yield_now().await;
    }
    assert_eq!((served.stats.accepted(), served.stats.open()), (3, 3));
    sending.write_all(b"2").await.unwrap();
    assert_eq!(gist(&rest(sending).await), "HTTP/1.1 200 OK 2");
    assert_eq!(other.await.unwrap().unwrap().line(), "200 hello");
    served.work.leave.add_permits(1);
    assert_eq!(waiting.await.unwrap().unwrap().line(), "200 done");
    served.ends().await;
}

/// A connection with small kernel buffers, so that a test can open a thousand.
async fn small_connection(served: &Served) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_send_buffer_size(4096).unwrap();
    socket.connect(served.address()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_connections_block_no_other_client() {
    let limits = Limits::default();
    let served = Served::start(&loopback(), limits.clone()).await;
    let mut tricklers = Vec::new();
    for number in 0..limits.connections {
        let mut stream = small_connection(&served).await;
        // Half of them send a header slowly, half a body.
        let head: &[u8] = if number % 2 == 0 {
            b"GET /hello HTTP/1.1\r\n"
        } else {
            b"POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        };
        stream.write_all(head).await.unwrap();
        tricklers.push(stream);
    }
    let begun = Instant::now();
    for second in 1..=2 {
        for stream in &mut tricklers {
            // A connection that gave way cannot send.
            let _ = stream.write_all(b"a").await;
        }
        assert_eq!(served.get("/hello").await.line(), "200 hello");
        assert_eq!(ask(served.connect().await, post_of("/hello", "12345")).await.line(), "200 5");
        assert!(served.stats.open() <= limits.connections + 1, "{}", served.stats.open());
        sleep_until(begun + Duration::from_secs(second)).await;
    }

    drop(tricklers);
    until("all are closed", || served.stats.open() == 0).await;
    let mut unread = Vec::new();
    for _ in 0..limits.connections {
        let mut stream = small_connection(&served).await;
        stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        unread.push(stream);
    }
    until("their responses begin", || served.work.pouring.load(Ordering::SeqCst) >= 990).await;
    for _ in 0..10 {
        assert_eq!(served.get("/hello").await.line(), "200 hello");
        assert_eq!(ask(served.connect().await, post_of("/hello", "12345")).await.line(), "200 5");
    }
    // Each uses the kernel's buffers and one of the server.
    let poured = served.work.poured.load(Ordering::SeqCst);
    assert!(poured < (limits.connections * 512 * 1024) as u64, "{poured}");
    served.ends().await;
}

#[tokio::test]
async fn a_handler_that_panics_fails_only_its_own_request() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let answer = served.get("/panic").await;
    expect![[r#"500 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the agent failed to handle this request: see the agent's log","reason":"InternalError","code":500}"#]].assert_eq(&answer.line());
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn a_stopping_server_answers_requests_that_have_begun() {
    let served = Served::start(&loopback(), Limits { drain: PATIENCE, ..Limits::default() }).await;
    let address = served.address();
    let idle = served.connect().await;
    let mut kept = http1(served.connect().await).await;
    assert_eq!(kept.send_request(get_of("/hello")).await.unwrap().status(), 200);
    let pending = tokio::spawn(try_ask(served.connect().await, get_of("/wait")));
    until("the request is handled", || served.work.waiting.load(Ordering::SeqCst) == 1).await;
    served.stop.cancel();
    rest(idle).await;
    until("only one is open", || served.stats.open() == 1).await;
    assert!(TcpStream::connect(address).await.is_err(), "nothing new is accepted");
    served.work.leave.add_permits(1);
    let answer = pending.await.unwrap().unwrap();
    assert_eq!(answer.line(), "200 done");
    served.ends().await;
}

#[tokio::test]
async fn a_response_that_does_not_end_is_closed_after_the_drain_timeout() {
    let served = Served::start(&loopback(), Limits { drain: SOON, ..Limits::default() }).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    until("the response begins", || served.work.pouring.load(Ordering::SeqCst) == 1).await;
    let pouring = served.work.pouring.clone();
    served.ends().await;
    assert_eq!(pouring.load(Ordering::SeqCst), 0);
}
