//! Listeners: ports and Unix sockets, and errors at the start.

use std::{
    fs::{self, File},
    net::{Ipv6Addr, SocketAddr},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::Path,
    pin::pin,
    time::Duration,
};

use expect_test::expect;
use futures::FutureExt as _;
use podmux::server::{Config, Limits, Listen};
use rustix::{
    fs::{FlockOperation, flock},
    process::geteuid,
};
use tokio::{
    net::{TcpListener, UnixStream},
    time::timeout,
};

use crate::support::{
    files::soon,
    served::{Served, ask, bind, chain, get_of, loopback, unix},
};

async fn bind_error(settings: &Config) -> String {
    chain(&bind(settings, Limits::default()).await.err().unwrap())
}

/// Why an address cannot be bound now. It is bound later.
async fn late_error(settings: &Config) -> String {
    let server = bind(settings, Limits::default()).await.unwrap();
    let failing = server.failing().borrow().clone();
    failing.expect("an address is not bound").error.to_string()
}

#[tokio::test]
async fn all_addresses_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = loopback();
    settings.listen.push(Listen::Tcp("[::1]:0".parse().unwrap()));
    settings.listen.push(Listen::Unix(dir.path().join("a.sock")));
    let served = Served::start(&settings, Limits::default()).await;
    assert_eq!(served.get("/hello").await.line(), "200 hello");
    let Listen::Tcp(six) = served.addresses[1] else { panic!() };
    let stream = tokio::net::TcpStream::connect(six).await.unwrap();
    assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
    let stream = UnixStream::connect(dir.path().join("a.sock")).await.unwrap();
    assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn a_port_in_use_is_bound_later_and_other_addresses_are_served_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    // No other test uses this address of loopback.
    let other = TcpListener::bind("127.13.0.1:0").await.unwrap();
    let address = other.local_addr().unwrap();
    let mut settings = unix(&path);
    settings.anonymous = true;
    settings.listen.push(Listen::Tcp(address));
    let served = Served::start(&settings, Limits::default()).await;
    let mut failing = served.failing.clone();
    let error = failing.borrow().clone().unwrap().error.replace(&address.port().to_string(), "PORT");
    expect!["cannot listen on 127.13.0.1:PORT: address in use (is another podmux running? choose another with --listen)"]
        .assert_eq(&error);
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), get_of("/hello")).await.line(), "200 hello");
    drop(other);
    soon(failing.wait_for(Option::is_none)).await.unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
    served.ends().await;
}

/// IPv6 for all, IPv4 on loopback.
#[tokio::test]
async fn the_ports_of_ipv4_and_ipv6_may_be_equal() {
    // No other test uses this address of loopback.
    let four = TcpListener::bind("127.15.0.1:0").await.unwrap().local_addr().unwrap();
    let listen = vec![Listen::Tcp((Ipv6Addr::UNSPECIFIED, four.port()).into()), Listen::Tcp(four)];
    let settings = Config { listen, anonymous: true, ..Config::default() };
    let served = Served::start(&settings, Limits::default()).await;
    assert_eq!(served.failing.borrow().clone(), None);
    for address in [SocketAddr::from((Ipv6Addr::LOCALHOST, four.port())), four] {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
    }
    served.ends().await;
}

#[tokio::test]
async fn a_server_that_still_waits_for_an_address_ends() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = vec![Listen::Tcp(other.local_addr().unwrap())];
    let served = Served::start(&Config { listen, ..Config::default() }, Limits::default()).await;
    assert!(served.failing.borrow().is_some());
    served.ends().await;
}

#[tokio::test]
async fn an_address_of_another_machine_is_retried() {
    let listen = vec![Listen::Tcp("192.0.2.1:10240".parse().unwrap())];
    let error = late_error(&Config { listen, ..Config::default() }).await;
    expect!["cannot listen on 192.0.2.1:10240: no interface of this machine has this address (choose another with --listen)"].assert_eq(&error);
}

#[tokio::test]
async fn a_unix_socket_is_for_its_owner_and_group_and_is_removed_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/podmux.sock");
    let default = Config { default_socket: Some(path.clone()), ..unix(&path) };
    let served = Served::start(&default, Limits::default()).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o660);
    assert_eq!(mode(path.parent().unwrap()), 0o755);
    let who = ask(UnixStream::connect(&path).await.unwrap(), get_of("/who")).await.line();
    assert_eq!(who, format!("200 Unix {{ uid: {} }}", geteuid().as_raw()));
    served.ends().await;
    assert!(!path.exists());
    assert!(path.parent().unwrap().exists());
}

#[tokio::test]
async fn a_unix_socket_is_replaced_only_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    let shown = |text: String| text.replace(dir.path().to_str().unwrap(), "DIR");
    let alive = UnixListener::bind(&path).unwrap();
    expect!["cannot listen on unix:DIR/podmux.sock: socket in use (is another podmux running? choose another with --listen)"].assert_eq(&shown(late_error(&unix(&path)).await));
    assert!(path.exists());
    // As after a kill -9.
    drop(alive);
    let served = Served::start(&unix(&path), Limits::default()).await;
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), get_of("/hello")).await.line(), "200 hello");
    // A second server while the first one runs.
    assert!(late_error(&unix(&path)).await.contains("socket in use"));
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), get_of("/hello")).await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn a_server_that_ends_while_another_one_starts_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    let ending = UnixListener::bind(&path).unwrap();
    let settings = unix(&path);
    let mut binding = pin!(bind(&settings, Limits::default()));
    // It has connected, and has not been accepted yet.
    assert!((&mut binding).now_or_never().is_none());
    drop(ending);
    let failing = binding.await.unwrap().failing().borrow().clone();
    assert!(failing.unwrap().error.contains("socket in use"));
}

/// Any user who may read the directory can lock it for ever, and that must not prevent the start.
#[tokio::test]
async fn of_two_servers_that_start_at_once_one_waits_a_limited_time_for_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    // Without a server, so that both would replace it.
    drop(UnixListener::bind(&path).unwrap());
    let inode = fs::metadata(&path).unwrap().ino();
    // The other server locks the directory first.
    let lock = File::open(dir.path()).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let settings = unix(&path);
    let mut binding = pin!(bind(&settings, Limits::default()));
    assert!(timeout(Duration::ZERO, &mut binding).await.is_err());
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    tokio::time::pause();
    let bound = binding.await.unwrap();
    tokio::time::resume();
    assert!(bound.failing().borrow().is_none());
    drop(lock);
    let served = Served::run(bound);
    assert_eq!(ask(UnixStream::connect(&path).await.unwrap(), get_of("/hello")).await.line(), "200 hello");
    served.ends().await;
}

#[tokio::test]
async fn a_file_that_is_not_a_socket_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    fs::write(&path, "precious").unwrap();
    let error = bind_error(&unix(&path)).await.replace(dir.path().to_str().unwrap(), "DIR");
    expect!["cannot listen on unix:DIR/podmux.sock: the file is not a socket (remove it, or choose another path with --listen)"].assert_eq(&error);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

/// Only that of the default socket is made, and its parent is not.
#[tokio::test]
async fn listen_does_not_make_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (path, deep) = (dir.path().join("a/podmux.sock"), dir.path().join("a/b/podmux.sock"));
    let default = Config { default_socket: Some(deep.clone()), ..unix(&deep) };
    let mut errors = String::new();
    for settings in [unix(&path), default] {
        errors += &bind_error(&settings).await.replace(dir.path().to_str().unwrap(), "DIR");
        errors += "\n";
    }
    expect![[r#"
        cannot listen on unix:DIR/a/podmux.sock: the directory DIR/a does not exist (create it, or choose another path with --listen)
        cannot listen on unix:DIR/a/b/podmux.sock (choose another with --listen): No such file or directory (os error 2)
    "#]]
    .assert_eq(&errors);
    assert!(!dir.path().join("a").exists());
}

#[tokio::test]
async fn a_replaced_socket_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podmux.sock");
    let served = Served::start(&unix(&path), Limits::default()).await;
    fs::remove_file(&path).unwrap();
    // Otherwise the new socket could get the same inode.
    fs::write(dir.path().join("other"), "").unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    served.ends().await;
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
}
