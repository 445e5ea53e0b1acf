//! Proxies that record the requested destination and always connect to the same server.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::files::soon;

/// The protocol of a proxy.
#[derive(Clone, Copy)]
pub enum ProxyProtocol {
    /// HTTP's CONNECT.
    Http,
    /// HTTP's CONNECT with a required password.
    HttpWithPassword,
    /// SOCKS 5 without a password.
    Socks,
    /// SOCKS 5 with a password.
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
    /// Starts a proxy to a port of the loopback.
    pub async fn start(protocol: ProxyProtocol, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (see, asked) = watch::channel(Vec::new());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let serving = serve(stream, protocol, port, see.clone());
                tokio::spawn(stopped.clone().run_until_cancelled_owned(serving));
            }
        });
        Self { address, asked, _stop: stop.drop_guard() }
    }

    /// The requests so far: the destination and the password.
    pub fn asked(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }

    /// The requests, once there is one.
    pub async fn was_asked(&self) -> Vec<String> {
        soon(self.asked.clone().wait_for(|asked| !asked.is_empty())).await.unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, protocol: ProxyProtocol, port: u16, see: watch::Sender<Vec<String>>) {
    let asked = match protocol {
        ProxyProtocol::Http | ProxyProtocol::HttpWithPassword => connect(&mut stream, protocol).await,
        ProxyProtocol::Socks | ProxyProtocol::SocksWithPassword => socks(&mut stream, protocol).await,
    };
    // The client may close the connection.
    let Ok((asked, is_accepted)) = asked else { return };
    see.send_modify(|all| all.push(asked));
    if !is_accepted {
        return;
    }
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    drop(copy_bidirectional(&mut stream, &mut server).await);
}

async fn connect(stream: &mut TcpStream, protocol: ProxyProtocol) -> io::Result<(String, bool)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let password = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    let asked = format!("{} {}", head.lines().next().unwrap(), password.unwrap_or("-"));
    let is_accepted = password.is_some() || matches!(protocol, ProxyProtocol::Http);
    let answer = if is_accepted { "200 Connected" } else { "407 Proxy Authentication Required" };
    stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await?;
    Ok((asked, is_accepted))
}

/// RFC 1928, and RFC 1929 for the password.
async fn socks(stream: &mut TcpStream, protocol: ProxyProtocol) -> io::Result<(String, bool)> {
    assert_eq!(stream.read_u8().await?, 5);
    let methods = text(stream).await?;
    let mut password = "-".to_owned();
    if matches!(protocol, ProxyProtocol::SocksWithPassword) {
        assert!(methods.contains('\u{2}'), "the client offers no password");
        stream.write_all(&[5, 2]).await?;
        assert_eq!(stream.read_u8().await?, 1);
        password = format!("{}:{}", text(stream).await?, text(stream).await?);
        stream.write_all(&[1, 0]).await?;
    } else {
        stream.write_all(&[5, 0]).await?;
    }
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    assert_eq!(head, [5, 1, 0, 3], "expected a connection to a name");
    let (host, port) = (text(stream).await?, stream.read_u16().await?);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok((format!("{host}:{port} {password}"), true))
}

/// A text with its length before it.
async fn text(stream: &mut TcpStream) -> io::Result<String> {
    let mut text = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut text).await?;
    Ok(String::from_utf8(text).unwrap())
}
