//! Users of one Unix socket: none of them can lock out root and the agent's own user.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::atomic::Ordering,
    thread,
};

use podmux::server::{Limits, Listen, MAX_WATCHERS, RejectReason, SMALL_BODY};
use rustix::{
    process::{Uid, geteuid},
    thread::set_thread_res_uid,
};
use tokio::{io::AsyncWriteExt as _, net::UnixStream};

use crate::support::{
    plain::Connection,
    process::{PATIENCE, Process, podmux},
    served::{SOON, Served, ask, get_of, loopback, post_of, rest, try_ask, unix, until},
};

/// A user without rights.
const OTHER: u32 = 12_345;

/// Whether this process may become another user.
fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("not run: only root becomes another user");
    }
    is_root
}

/// Runs work as another user. In Linux each thread has its own.
fn as_other<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let other = Uid::from_raw(OTHER);
        set_thread_res_uid(other, other, other).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Permits all users to connect.
fn open_to_all(socket: &Path) {
    fs::set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(socket.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
}

/// Connections of the other user.
fn connect_as_other(socket: &Path, count: usize) -> Vec<UnixStream> {
    let connect = || (0..count).map(|_| std::os::unix::net::UnixStream::connect(socket).unwrap()).collect();
    let streams: Vec<_> = as_other(connect);
    let streams = streams.into_iter().map(|stream| {
        stream.set_nonblocking(true).unwrap();
        UnixStream::from_std(stream).unwrap()
    });
    streams.collect()
}

#[test]
fn found_256_watchers_of_one_user_do_not_lock_root_out() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("podmux.sock");
    let listen = format!("unix:{}", socket.display());
    let agent = Process::start(&mut podmux(&[
        "run",
        "--listen",
        &listen,
        "--state-dir",
        "none",
        "--node-name",
        "node1",
    ]));
    agent.logs("listening");
    open_to_all(&socket);
    let connect = || Connection::unix(&socket).unwrap();
    let share = MAX_WATCHERS - MAX_WATCHERS / 8;
    let _watchers: Vec<_> = as_other(|| (0..share).map(|_| connect().lines("/updates").unwrap()).collect());
    assert_eq!(as_other(|| connect().ask("GET", "/updates", b"").unwrap().code), 429);
    assert!(connect().first_line("/updates").unwrap().contains(r#""op":"SET""#));
}

#[tokio::test]
async fn connections_of_one_user_do_not_lock_root_out() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("podmux.sock");
    // Two of them are reserved, and two more connections wait.
    let limits = Limits { connections: 16, ..Limits::default() };
    let served = Served::start(&unix(&socket), limits).await;
    open_to_all(&socket);
    let mut others = connect_as_other(&socket, 16);
    for stream in &mut others {
        stream
            .write_all(b"GET /wait HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
    }
    until("14 are handled", || served.work.waiting.load(Ordering::SeqCst) == 14).await;
    served.rejected(RejectReason::Full, 2).await;
    // One more is closed.
    let closed = connect_as_other(&socket, 1).remove(0);
    assert_eq!(rest(closed).await, "");
    // Root is served, one connection after the other and two at a time.
    for _ in 0..4 {
        let (first, second) = (UnixStream::connect(&socket).await, UnixStream::connect(&socket).await);
        let (first, second) =
            tokio::join!(ask(first.unwrap(), get_of("/hello")), ask(second.unwrap(), get_of("/hello")));
        assert_eq!((&*first.line(), &*second.line()), ("200 hello", "200 hello"));
        until("both are closed", || served.stats.open() == 14).await;
    }
    // Those that wait are served later.
    served.work.leave.add_permits(16);
    for stream in others {
        assert!(rest(stream).await.starts_with("HTTP/1.1 200"));
    }
    served.ends().await;
}

/// However many connections wait, they leave one notice while no connection is idle.
#[tokio::test]
async fn for_each_connection_that_waits_an_idle_one_gives_way() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("podmux.sock");
    // Two of them are reserved, and two more connections wait. None ends because it is idle for long.
    let limits = Limits { connections: 16, idle: 2 * PATIENCE, ..Limits::default() };
    let served = Served::start(&unix(&socket), limits).await;
    open_to_all(&socket);
    let ask_as_other = async |count| {
        let mut streams = connect_as_other(&socket, count);
        for stream in &mut streams {
            stream.write_all(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        }
        streams
    };
    let idle = ask_as_other(14).await;
    until("they are handled", || served.work.waiting.load(Ordering::SeqCst) == 14).await;
    let others = ask_as_other(2).await;
    served.rejected(RejectReason::Full, 2).await;
    served.work.leave.add_permits(14);
    until("those that waited are handled", || served.work.waiting.load(Ordering::SeqCst) == 16).await;
    served.work.leave.add_permits(2);
    drop((idle, others));
    served.ends().await;
}

#[tokio::test]
async fn large_bodies_of_others_do_not_lock_root_out() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("podmux.sock");
    let mut config = loopback();
    config.listen.push(Listen::Unix(socket.clone()));
    let limits = Limits { large_bodies: 1, body_time: SOON, ..Limits::default() };
    let served = Served::start(&config, limits).await;
    let large = |path| post_of(path, vec![b'.'; SMALL_BODY + 1]);
    let of_root = async || UnixStream::connect(&socket).await.unwrap();
    let of_another = tokio::spawn(try_ask(served.connect().await, large("/wait")));
    until("it is handled", || served.work.waiting.load(Ordering::SeqCst) == 1).await;
    assert_eq!(ask(served.connect().await, large("/hello")).await.status, 503);
    assert_eq!(ask(of_root().await, large("/hello")).await.status, 200);
    // Root has one such permit.
    let own = tokio::spawn(try_ask(of_root().await, large("/wait")));
    until("both are handled", || served.work.waiting.load(Ordering::SeqCst) == 2).await;
    assert_eq!(ask(of_root().await, large("/hello")).await.status, 503);
    served.work.leave.add_permits(2);
    for holding in [of_another, own] {
        assert_eq!(holding.await.unwrap().unwrap().line(), "200 done");
    }
    served.ends().await;
}
