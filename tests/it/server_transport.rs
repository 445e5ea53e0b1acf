//! The server's bounds: what a client may take of it, and that nobody is in another's way.

use std::{fs, net::SocketAddr, sync::atomic::Ordering, time::Duration};

use expect_test::expect;
use http::Request;
use http_body_util::Full;
use podmux::server::{Limits, RejectReason};
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
async fn http_1_and_2_are_spoken() {
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

#[tokio::test]
async fn whoever_takes_too_long_to_ask_is_cut_off() {
    let limits = Limits { headers: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let asks = [
        "",
        "G",
        "GET /hello HTTP/1.1\r\nHost: localhost\r\n",
        "PRI * HTTP/2.0",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for (times, asked) in (1..).zip(asks) {
        raw(served.connect().await, asked).await;
        served.refused(RejectReason::HeadersTimeout, times).await;
    }
    // A trickle is no better than silence, and the second request no better than the first.
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
    served.refused(RejectReason::HeadersTimeout, 6).await;
    served.ends().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request_for_a_while() {
    let limits = Limits { idle: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let answer = raw(served.connect().await, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.ends_with("hello"), "{answer}");
    // It is nobody's fault.
    assert_eq!(served.stats.rejected(RejectReason::HeadersTimeout), 0);
    served.ends().await;
}

#[tokio::test]
async fn headers_have_a_bound() {
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
async fn headers_and_requests_have_a_bound_in_http_2() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let of = |path: &str| Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
    let mut request = of("/hello");
    for number in 0..65 {
        let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
        request.headers_mut().insert(name, "a".repeat(1024).parse().unwrap());
    }
    assert_eq!(ask_http2(served.connect().await, request).await.status, 431);

    let mut client = http2(served.connect().await).await;
    // By its first answer the client knows how many it may ask at a time.
    assert_eq!(client.send_request(of("/hello")).await.unwrap().status(), 200);
    let asked: Vec<_> = (0..40)
        .map(|_| {
            let (mut client, request) = (client.clone(), of("/wait"));
            tokio::spawn(async move { client.send_request(request).await.unwrap().status() })
        })
        .collect();
    until("all that may be are there", || served.work.waiting.load(Ordering::SeqCst) >= 32).await;
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    assert_eq!(served.work.waiting.load(Ordering::SeqCst), 32);
    served.work.leave.add_permits(asked.len());
    for asked in asked {
        assert_eq!(asked.await.unwrap(), 200);
    }
    served.ends().await;
}

/// What the kernel will do next for a connection: 2 is to see whether the other
/// side is still there, 4 whether it has room again; in so many hundredths of a second.
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
async fn a_client_that_is_silent_is_asked_whether_it_is_still_there() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let stream = served.connect().await;
    until("it is accepted", || served.stats.accepted() == 1).await;
    let (kind, after) = timer(served.address(), stream.local_addr().unwrap());
    assert_eq!(kind, 2);
    assert!(after <= 60 * 100, "{after}");
    served.ends().await;
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_refused() {
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
    expect![[r#"HTTP/1.1 408 Request Timeout {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body comes too slowly: it has to end within 200ms, or to bring 524288 bytes in that time","reason":"Timeout","code":408}"#]].assert_eq(&gist(&answer));
    served.refused(RejectReason::BodyTimeout, 1).await;
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn a_body_that_comes_steadily_may_take_its_time() {
    let body_time = Duration::from_secs(2);
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
        sleep(body_time / 3).await;
        stream.write_all(b".").await.unwrap();
    }
    assert_eq!(gist(&rest(stream).await), "HTTP/1.1 200 OK 4");
    served.ends().await;
}

#[tokio::test]
async fn a_body_has_a_largest_size() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let largest = post_of("/hello", vec![b'.'; 10 * MIB]);
    assert_eq!(ask(served.connect().await, largest).await.line(), format!("200 {}", 10 * MIB));
    let too_large = expect![[
        r#"413 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body is too large: 10485760 bytes are the limit","reason":"RequestEntityTooLarge","code":413}"#
    ]];

    // One byte more: it is told although the client has yet to send it all.
    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 10 * MIB + 1])).await;
    too_large.assert_eq(&answer.line());
    // Whoever sends it all the same, and reads only then, is not cut off before.
    let mut stream = served.connect().await;
    let head = format!("POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", 11 * MIB);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'.'; 11 * MIB]).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(rest(stream).await.starts_with("HTTP/1.1 413"));
    // Nobody needs to send what is announced to be too large.
    let announced =
        "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10485761\r\nExpect: 100-continue\r\n\r\n";
    let answer = raw(served.connect().await, announced).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Without an announcement it is found out underway.
    let mut request = post_of("/hello", vec![b'.'; 11 * MIB]);
    request.headers_mut().insert("transfer-encoding", "chunked".parse().unwrap());
    too_large.assert_eq(&ask(served.connect().await, request).await.line());
    // In HTTP/2 the connection is of use to others, and only this request ends.
    let uri = "http://localhost/hello";
    let request = Request::post(uri).body(Full::from(vec![b'.'; 11 * MIB])).unwrap();
    too_large.assert_eq(&ask_http2(served.connect().await, request).await.line());
    served.refused(RejectReason::BodySize, 5).await;
    served.ends().await;
}

#[tokio::test]
async fn a_body_that_is_cut_off_reaches_nobody() {
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
    expect![[r#"HTTP/1.1 400 Bad Request {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the body was cut off: Invalid chunk size line: missing size digit","reason":"BadRequest","code":400}"#]].assert_eq(&gist(&answer));
    assert_eq!(served.work.waiting.load(Ordering::SeqCst), 0);
    served.ends().await;
}

#[tokio::test]
async fn bodies_have_so_much_memory_and_large_ones_crowd_out_no_small_one() {
    let limits = Limits { large_bodies: MIB, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let holding = tokio::spawn(try_ask(served.connect().await, post_of("/wait", vec![b'.'; MIB])));
    until("it is being worked on", || served.work.waiting.load(Ordering::SeqCst) == 1).await;

    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 500_000])).await;
    expect![[r#"503 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too many bodies are being read at once; try again","reason":"ServiceUnavailable","details":{"retryAfterSeconds":1},"code":503}"#]].assert_eq(&answer.line());
    assert_eq!(answer.headers["retry-after"], "1");
    served.refused(RejectReason::BodyMemory, 1).await;
    assert_eq!(ask(served.connect().await, post_of("/hello", "small")).await.line(), "200 5");

    served.work.leave.add_permits(1);
    assert_eq!(holding.await.unwrap().unwrap().line(), "200 done");
    let answer = ask(served.connect().await, post_of("/hello", vec![b'.'; 500_000])).await;
    assert_eq!(answer.line(), "200 500000");
    served.ends().await;
}

#[tokio::test]
async fn small_bodies_have_a_bound_too() {
    let limits = Limits { small_bodies: 1000, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    assert_eq!(ask(served.connect().await, post_of("/hello", vec![b'.'; 1001])).await.status, 503);
    assert_eq!(ask(served.connect().await, post_of("/hello", vec![b'.'; 1000])).await.line(), "200 1000");
    served.ends().await;
}

#[tokio::test]
async fn whoever_does_not_take_the_answer_is_cut_off() {
    let limits = Limits { stall: SOON, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    served.refused(RejectReason::Stalled, 1).await;
    until("it is closed", || served.stats.open() == 0).await;
    assert_eq!(served.work.pouring.load(Ordering::SeqCst), 0);

    // In HTTP/2 the connection moves on, only this answer is not taken.
    let mut client = http2(served.connect().await).await;
    let of = |path: &str| Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
    let answer = client.send_request(of("/endless")).await.unwrap();
    served.refused(RejectReason::Stalled, 2).await;
    until("it is closed", || served.stats.open() == 0).await;
    assert_eq!(served.work.pouring.load(Ordering::SeqCst), 0);
    drop(answer);
    served.ends().await;
}

#[tokio::test]
async fn whoever_waits_for_more_may_wait_for_long() {
    let limits = Limits { stall: SOON / 4, headers: SOON / 4, idle: SOON / 4, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let waiting = tokio::spawn(try_ask(served.connect().await, get_of("/wait")));
    let mut stream = served.connect().await;
    stream.write_all(b"GET /silent HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    // Others come later, have the same time for less, and run out of it.
    for times in 1..=4 {
        raw(served.connect().await, "").await;
        served.refused(RejectReason::HeadersTimeout, times).await;
    }
    until("only the two are left", || served.stats.open() == 2).await;
    served.work.leave.add_permits(1);
    assert_eq!(waiting.await.unwrap().unwrap().line(), "200 done");
    served.ends().await;
}

#[tokio::test]
async fn one_connection_too_many_takes_the_place_of_the_longest_silent() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut silent = Vec::new();
    for count in 1..=3 {
        silent.push(served.connect().await);
        until("it is accepted", || served.stats.accepted() == count).await;
    }
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    served.refused(RejectReason::Evicted, 1).await;
    assert_eq!(rest(silent.remove(0)).await, "");
    // The others are still there.
    for stream in silent {
        assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
    }
    served.ends().await;
}

#[tokio::test]
async fn a_stream_that_is_read_goes_after_those_that_ask_for_nothing_or_take_nothing() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    // It does not read, so bytes wait for it.
    let mut unread = served.connect().await;
    unread.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    until("it is told", || served.work.pouring.load(Ordering::SeqCst) == 1).await;
    let local = unread.local_addr().unwrap();
    until("no more goes out to it", || timer(served.address(), local).0 == 4).await;
    // All run on this thread: by now what is left is in the kernel, and no more can be written.
    for _ in 0..1000 {
        yield_now().await;
    }
    // A body that is being sent, and the client is not silent for long.
    let mut sending = served.connect().await;
    sending
        .write_all(
            b"POST /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n1",
        )
        .await
        .unwrap();
    until("it is accepted", || served.stats.accepted() == 2).await;
    let _idle = served.connect().await;
    until("it is accepted", || served.stats.accepted() == 3).await;
    // Two more: the idle one and the unread one have to go.
    let mut others = Vec::new();
    for room in 1..=2 {
        let mut other = http1(served.connect().await).await;
        let asked = tokio::spawn({
            let request = get_of("/wait");
            async move { other.send_request(request).await.unwrap().status() }
        });
        until("it is worked on", || served.work.waiting.load(Ordering::SeqCst) == room).await;
        served.refused(RejectReason::Evicted, room).await;
        others.push(asked);
    }
    until("nothing is poured", || served.work.pouring.load(Ordering::SeqCst) == 0).await;
    sending.write_all(b"2").await.unwrap();
    assert_eq!(gist(&rest(sending).await), "HTTP/1.1 200 OK 2");
    served.work.leave.add_permits(2);
    for other in others {
        assert_eq!(other.await.unwrap(), 200);
    }
    served.ends().await;
}

#[tokio::test]
async fn nobody_is_cut_off_while_the_server_works_for_them() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let served = Served::start(&loopback(), limits).await;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(tokio::spawn(try_ask(served.connect().await, get_of("/wait"))));
    }
    until("both are worked on", || served.work.waiting.load(Ordering::SeqCst) == 2).await;
    let third = tokio::spawn(try_ask(served.connect().await, get_of("/hello")));
    // All run on this thread: by now the third has been seen, and has to wait.
    for _ in 0..1000 {
        yield_now().await;
    }
    assert_eq!((served.stats.accepted(), served.stats.rejected(RejectReason::Evicted)), (2, 0));
    served.work.leave.add_permits(1);
    assert_eq!(third.await.unwrap().unwrap().line(), "200 hello");
    served.work.leave.add_permits(1);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap().line(), "200 done");
    }
    served.ends().await;
}

/// A connection whose kernel buffers are small, so that a thousand of them can be had.
async fn small_connection(served: &Served) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_send_buffer_size(4096).unwrap();
    socket.connect(served.address()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_that_trickle_and_a_thousand_that_never_read_keep_nobody_out() {
    let limits = Limits::default();
    let served = Served::start(&loopback(), limits.clone()).await;
    let mut tricklers = Vec::new();
    for number in 0..limits.connections {
        let mut stream = small_connection(&served).await;
        // Half of them trickle a header, half a body.
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
            // Whoever had to make room cannot send any more.
            let _ = stream.write_all(b"a").await;
        }
        assert_eq!(served.get("/hello").await.line(), "200 hello");
        assert_eq!(ask(served.connect().await, post_of("/hello", "12345")).await.line(), "200 5");
        assert!(served.stats.open() <= limits.connections + 1, "{}", served.stats.open());
        sleep_until(begun + Duration::from_secs(second)).await;
    }

    drop(tricklers);
    until("they are gone", || served.stats.open() == 0).await;
    let mut unread = Vec::new();
    for _ in 0..limits.connections {
        let mut stream = small_connection(&served).await;
        stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        unread.push(stream);
    }
    until("they are told", || served.work.pouring.load(Ordering::SeqCst) >= 990).await;
    for _ in 0..10 {
        assert_eq!(served.get("/hello").await.line(), "200 hello");
        assert_eq!(ask(served.connect().await, post_of("/hello", "12345")).await.line(), "200 5");
    }
    // Each has what the kernel keeps for it, one buffer of ours, and not more.
    let poured = served.work.poured.load(Ordering::SeqCst);
    assert!(poured < (limits.connections * 512 * 1024) as u64, "{poured}");
    served.ends().await;
}

#[tokio::test]
async fn a_handler_that_panics_costs_its_own_request() {
    let served = Served::start(&loopback(), Limits::default()).await;
    let answer = served.get("/panic").await;
    expect![[r#"500 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the agent failed at this request; its log says how","reason":"InternalError","code":500}"#]].assert_eq(&answer.line());
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn what_was_asked_is_answered_before_the_end() {
    let served = Served::start(&loopback(), Limits { drain: PATIENCE, ..Limits::default() }).await;
    let address = served.address();
    let idle = served.connect().await;
    let mut kept = http1(served.connect().await).await;
    assert_eq!(kept.send_request(get_of("/hello")).await.unwrap().status(), 200);
    let asked = tokio::spawn(try_ask(served.connect().await, get_of("/wait")));
    until("it is worked on", || served.work.waiting.load(Ordering::SeqCst) == 1).await;
    served.stop.cancel();
    rest(idle).await;
    until("only one is left", || served.stats.open() == 1).await;
    assert!(TcpStream::connect(address).await.is_err(), "nothing new is accepted");
    served.work.leave.add_permits(1);
    let answer = asked.await.unwrap().unwrap();
    assert_eq!(answer.line(), "200 done");
    served.ends().await;
}

#[tokio::test]
async fn what_does_not_end_is_cut_off_in_the_end() {
    let served = Served::start(&loopback(), Limits { drain: SOON, ..Limits::default() }).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    until("it is told", || served.work.pouring.load(Ordering::SeqCst) == 1).await;
    let pouring = served.work.pouring.clone();
    served.ends().await;
    assert_eq!(pouring.load(Ordering::SeqCst), 0);
}
