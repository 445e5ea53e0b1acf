//! Proxies that write down where they are asked to go, and that lead to one server whatever they are asked.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::files::soon;

/// What a proxy speaks.
#[derive(Clone, Copy)]
pub enum Speaks {
    /// HTTP's CONNECT.
    Http,
    /// The same, and it lets nobody through who has no password.
    HttpWithPassword,
    /// SOCKS 5 without a password.
    Socks,
    /// SOCKS 5 with one.
    SocksWithPassword,
}

/// A proxy. It ends with the test.
pub struct Proxy {
    /// `HOST:PORT`.
    pub address: SocketAddr,
    asked: watch::Receiver<Vec<String>>,
    _stop: DropGuard,
}

impl Proxy {
    /// One that leads to a port of the loopback.
    pub async fn start(speaks: Speaks, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (see, asked) = watch::channel(Vec::new());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let led = lead(stream, speaks, port, see.clone());
                tokio::spawn(stopped.clone().run_until_cancelled_owned(led));
            }
        });
        Self { address, asked, _stop: stop.drop_guard() }
    }

    /// What was asked for so far: where to, and with which password.
    pub fn asked(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }

    /// The same when there is something.
    pub async fn was_asked(&self) -> Vec<String> {
        soon(self.asked.clone().wait_for(|asked| !asked.is_empty())).await.unwrap().clone()
    }
}

async fn lead(mut stream: TcpStream, speaks: Speaks, port: u16, see: watch::Sender<Vec<String>>) {
    let asked = match speaks {
        Speaks::Http | Speaks::HttpWithPassword => connect(&mut stream, speaks).await,
        Speaks::Socks | Speaks::SocksWithPassword => socks(&mut stream, speaks).await,
    };
    // A client may go away; that is the test's affair.
    let Ok((asked, let_through)) = asked else { return };
    see.send_modify(|all| all.push(asked));
    if !let_through {
        return;
    }
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    drop(copy_bidirectional(&mut stream, &mut server).await);
}

async fn connect(stream: &mut TcpStream, speaks: Speaks) -> io::Result<(String, bool)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let password = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    let asked = format!("{} {}", head.lines().next().unwrap(), password.unwrap_or("-"));
    let let_through = password.is_some() || matches!(speaks, Speaks::Http);
    let answer = if let_through { "200 Connected" } else { "407 Who are you" };
    stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await?;
    Ok((asked, let_through))
}

/// RFC 1928, and RFC 1929 for the password.
async fn socks(stream: &mut TcpStream, speaks: Speaks) -> io::Result<(String, bool)> {
    assert_eq!(stream.read_u8().await?, 5);
    let methods = text(stream).await?;
    let mut password = "-".to_owned();
    if matches!(speaks, Speaks::SocksWithPassword) {
        assert!(methods.contains('\u{2}'), "no password is offered");
        stream.write_all(&[5, 2]).await?;
        assert_eq!(stream.read_u8().await?, 1);
        password = format!("{}:{}", text(stream).await?, text(stream).await?);
        stream.write_all(&[1, 0]).await?;
    } else {
        stream.write_all(&[5, 0]).await?;
    }
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    assert_eq!(head, [5, 1, 0, 3], "a connection to a name is asked for");
    let (host, port) = (text(stream).await?, stream.read_u16().await?);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok((format!("{host}:{port} {password}"), true))
}

/// A text after its length.
async fn text(stream: &mut TcpStream) -> io::Result<String> {
    let mut text = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut text).await?;
    Ok(String::from_utf8(text).unwrap())
}
