//! The server's drain: requests that have begun are answered, and new connections to passed sockets wait for the
//! next process.

use std::{os::unix::net, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::Request;
use http_body_util::{Full, StreamBody};
use hyper::{body::Frame, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use podmux::server::{Limits, Listen, PassedSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    process::PATIENCE,
    served::{Answer, Served, get_of, http1, http2, loopback, rest, try_ask, until},
};

/// A server on a passed socket and on a port of its own.
struct Both {
    served: Served,
    dir: TempDir,
    /// The service manager's copy of the passed socket.
    kept: net::UnixListener,
}

impl Both {
    async fn start(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kept = net::UnixListener::bind(dir.path().join("s")).unwrap();
        let socket = kept.try_clone().unwrap().into();
        let passed = vec![PassedSocket::new(socket, "podmux.socket").unwrap()];
        Self { served: Served::start_with(&loopback(), passed, limits).await, dir, kept }
    }

    /// A connection to the passed socket.
    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("s")).await.unwrap()
    }

    async fn accepted(&self, connections: u64) {
        until("the connections are accepted", || self.served.stats.accepted() >= connections).await;
    }

    /// Whether no connection waits in the kernel.
    fn backlog_is_empty(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.kept, PollFlags::IN)], Some(&now)).unwrap() == 0
    }

    async fn drained(&self) {
        timeout(PATIENCE, self.served.drained.cancelled()).await.expect("the server does not drain");
    }
}

#[tokio::test]
async fn without_requests_it_is_drained_at_once() {
    let both = Both::start(Limits::default()).await;
    let mut idle = both.connect().await;
    idle.write_all(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 5];
    idle.read_exact(&mut answer).await.unwrap();
    both.served.drain.cancel();
    both.drained().await;
    // The connection ends although the client keeps its side open.
    assert!(rest(&mut idle).await.ends_with("\r\n\r\nhello"));
    // A new connection waits in the kernel for the next process.
    both.connect().await;
    assert!(!both.backlog_is_empty());
    both.served.ends().await;
}

/// Enough clients to notice a race that is lost half of the time.
const CLIENTS: usize = 16;

#[tokio::test]
async fn an_unread_request_on_an_idle_connection_is_answered() {
    let both = Both::start(Limits::default()).await;
    let request = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = both.connect().await;
        client.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
        }
        assert!(!String::from_utf8_lossy(&answer).contains("connection: close"));
        clients.push(client);
    }
    // Without a wait the server, which runs on the same thread, reads all of it at once.
    let (before, after) = clients.split_at(CLIENTS / 2);
    let ask = |client: &UnixStream| assert_eq!(client.try_write(request).unwrap(), request.len());
    for client in before {
        ask(client);
    }
    both.served.drain.cancel();
    for client in after {
        ask(client);
    }
    for client in clients {
        let answer = rest(client).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nhello"), "{answer:?}");
        // The client must not send another request here.
        assert!(answer.contains("connection: close"), "{answer}");
    }
    both.drained().await;
    both.served.ends().await;
}

#[tokio::test]
async fn begun_requests_on_own_sockets_are_waited_for_and_later_ones_are_not() {
    let both = Both::start(Limits::default()).await;
    let Both { served, .. } = &both;
    let (mut first, mut second) =
        (http1(connect_own(served).await).await, http1(connect_own(served).await).await);
    let waiting = async |nth: u64| {
        until("the request is handled", || served.work.waiting.load(Ordering::SeqCst) == nth).await;
    };
    let begun = tokio::spawn(async move { first.send_request(get_of("/wait")).await.unwrap().status() });
    waiting(1).await;
    served.drain.cancel();
    let later = tokio::spawn(async move { second.send_request(get_of("/wait")).await.unwrap().status() });
    waiting(2).await;
    assert!(!served.drained.is_cancelled());
    served.work.leave.add_permits(1);
    assert_eq!(begun.await.unwrap(), 200);
    both.drained().await;
    assert!(!later.is_finished());
    served.work.leave.add_permits(1);
    assert_eq!(later.await.unwrap(), 200);
    both.served.ends().await;
}

/// A connection to the server's own port, which follows the passed socket.
async fn connect_own(served: &Served) -> TcpStream {
    match &served.addresses[1] {
        Listen::Tcp(address) => TcpStream::connect(address).await.unwrap(),
        Listen::Unix(path) => panic!("{}", path.display()),
    }
}

/// It is accepted and waits for a slot.
#[tokio::test]
async fn a_connection_that_waits_for_a_slot_is_answered() {
    let both = Both::start(Limits { connections: 1, ..Limits::default() }).await;
    let mut first = both.connect().await;
    first.write_all(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let working = || both.served.work.waiting.load(Ordering::SeqCst) == 1;
    until("the first is handled", working).await;
    let mut second = both.connect().await;
    second.write_all(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    until("the second is accepted", || both.backlog_is_empty()).await;
    both.served.drain.cancel();
    both.served.work.leave.add_permits(1);
    assert!(rest(first).await.starts_with("HTTP/1.1 200"));
    assert!(rest(second).await.starts_with("HTTP/1.1 200"));
    both.drained().await;
    both.served.ends().await;
}

#[tokio::test]
async fn http2_connections_answer_begun_and_unread_requests() {
    let both = Both::start(Limits::default()).await;
    let unread = both.connect().await;
    let mut idle = http2(both.connect().await).await;
    assert_eq!(idle.send_request(post_http2("/hello", "")).await.unwrap().status(), 200);
    let handshake = conn::http2::handshake(TokioExecutor::new(), TokioIo::new(both.connect().await));
    let (mut client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let (body, pieces) = mpsc::channel::<Bytes>(1);
    let pieces = stream::unfold(pieces, async |mut pieces| {
        let piece = pieces.recv().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(piece)), pieces))
    });
    let begun = Request::post("http://localhost/hello").body(StreamBody::new(Box::pin(pieces))).unwrap();
    let begun = tokio::spawn(client.send_request(begun));
    body.send(Bytes::from_static(b"12345")).await.unwrap();
    both.accepted(3).await;
    both.served.drain.cancel();
    let answer = http2(unread).await.send_request(post_http2("/hello", "123")).await.unwrap();
    assert_eq!(Answer::read(answer).await.line(), "200 3");
    until("it accepts no more requests", || idle.is_closed()).await;
    assert!(!both.served.drained.is_cancelled());
    body.send(Bytes::from_static(b"67890")).await.unwrap();
    drop(body);
    assert_eq!(Answer::read(begun.await.unwrap().unwrap()).await.line(), "200 10");
    both.drained().await;
    both.served.ends().await;
}

/// A POST for HTTP/2, with the host in its URI.
fn post_http2(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}")).body(Full::from(body)).unwrap()
}

/// What a client of HTTP/2 sends first, with settings that are empty.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A GET as one frame.
fn get_frame(stream: u8, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let headers = [&[0x82, 0x86, 0x44, length], path.as_bytes(), b"\x41\x09localhost"].concat();
    frame(HEADERS, 5, stream, &headers)
}

/// Reads up to the next frame of a type. Returns its payload.
async fn next_frame(stream: &mut (impl AsyncRead + Unpin), kind: u8) -> Vec<u8> {
    let read = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(head[1]) * 256 + usize::from(head[2])];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == kind {
                return payload;
            }
        }
    };
    timeout(PATIENCE, read).await.expect("no frame of this type")
}

/// Half of a head, a connection of HTTP/2 without a request, and one whose client does not answer when it ends.
#[tokio::test]
async fn clients_without_a_whole_request_do_not_delay_the_drain() {
    let both = Both::start(Limits::default()).await;
    let mut clients = Vec::new();
    for sent in [b"GET /hel".to_vec(), PREFACE.to_vec(), [PREFACE, &get_frame(1, "/hello")].concat()] {
        let mut client = both.connect().await;
        client.write_all(&sent).await.unwrap();
        clients.push(client);
    }
    assert_eq!(next_frame(&mut clients[2], DATA).await, b"hello");
    both.accepted(3).await;
    tokio::time::pause();
    both.served.drain.cancel();
    both.drained().await;
    // And they are closed.
    for client in clients {
        rest(client).await;
    }
    tokio::time::resume();
    both.served.ends().await;
}

/// An idle connection of HTTP/2 gives way to another after a second, though its client does not answer.
#[tokio::test]
async fn a_client_that_does_not_answer_gives_way_within_a_second() {
    let served = Served::start(&loopback(), Limits { connections: 1, ..Limits::default() }).await;
    let mut silent = served.connect().await;
    silent.write_all(&[PREFACE, &get_frame(1, "/hello")].concat()).await.unwrap();
    assert_eq!(next_frame(&mut silent, DATA).await, b"hello");
    let other = served.connect().await;
    tokio::time::pause();
    let begun = Instant::now();
    assert_eq!(try_ask(other, get_of("/hello")).await.unwrap().line(), "200 hello");
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    tokio::time::resume();
    served.ends().await;
}

/// An idle connection of HTTP/2 gives way to another, and its client has sent a request before it knows.
#[tokio::test]
async fn a_request_on_a_connection_that_gives_way_may_take_long() {
    let served = Served::start(&loopback(), Limits { connections: 1, ..Limits::default() }).await;
    let mut client = served.connect().await;
    client.write_all(&[PREFACE, &get_frame(1, "/hello")].concat()).await.unwrap();
    assert_eq!(next_frame(&mut client, DATA).await, b"hello");
    let other = tokio::spawn(try_ask(served.connect().await, get_of("/hello")));
    next_frame(&mut client, GOAWAY).await;
    let ping = next_frame(&mut client, PING).await;
    client.write_all(&[get_frame(3, "/wait"), frame(PING, 1, 0, &ping)].concat()).await.unwrap();
    until("the request is handled", || served.work.waiting.load(Ordering::SeqCst) == 1).await;
    // Longer than a connection may take to close.
    tokio::time::pause();
    sleep(Duration::from_secs(5)).await;
    tokio::time::resume();
    served.work.leave.add_permits(1);
    assert_eq!(next_frame(&mut client, DATA).await, b"done");
    assert_eq!(other.await.unwrap().unwrap().line(), "200 hello");
    served.ends().await;
}
