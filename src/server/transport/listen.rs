//! Listeners: TCP and Unix sockets, bound here or passed by systemd.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    future::pending,
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::{Errno, ioctl_fionbio},
    net::sockopt,
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream},
    sync::Mutex,
    time::{sleep, timeout},
};
use tracing::warn;

use super::{
    auth::Peer,
    limits::{BACKLOG, KEEPALIVE, SEND_BUFFER, SPARE_FILES},
};
use crate::{
    host::Clients,
    server::{address::Listen, config::Config, passed::PassedSocket},
};

/// How long another server may take to accept a connection to its Unix socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the lock of a socket's directory is waited for, and the pause between two attempts. Another server
/// has it for about as long as its connection takes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The mode of a Unix socket: for its owner and group.
const SOCKET_MODE: u32 = 0o660;
/// The permission of all other users.
const FOR_OTHERS: u32 = 0o002;
/// The mode of the directory that is created for the default socket.
const DIRECTORY_MODE: u32 = 0o755;

/// Why the server cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}{problem}")]
pub struct BindError {
    address: Listen,
    problem: String,
    /// Whether it may succeed later without a change of the settings.
    pub(super) may_pass: bool,
    source: Option<io::Error>,
}

/// Why an address cannot be bound: a known reason, or an error of the system.
enum Obstacle {
    InUse(&'static str),
    Fixed(String),
    Io(io::Error),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::InUse("address in use (is another podmux running? "),
            io::ErrorKind::AddrNotAvailable => Self::InUse("no interface of this machine has this address ("),
            _ => Self::Io(error),
        }
    }
}

const SOCKET_IN_USE: Obstacle = Obstacle::InUse("socket in use (is another podmux running? ");

impl Obstacle {
    fn at(self, address: &Listen) -> BindError {
        let hint = "choose another with --listen)";
        let (problem, may_pass, source) = match self {
            Self::InUse(why) => (format!(": {why}{hint}"), true, None),
            Self::Fixed(why) => (format!(": {why}, or choose another path with --listen)"), false, None),
            Self::Io(error) => (format!(" ({hint}"), false, Some(error)),
        };
        BindError { address: address.clone(), problem, may_pass, source }
    }
}

/// A byte stream to a client.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A listening socket.
pub(super) struct Listener {
    socket: ListeningSocket,
    /// The address, with the actual port.
    pub(super) address: Listen,
    /// Whether systemd passed it: clients can then wait in the kernel for the next process.
    pub(super) passed: bool,
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Absent if systemd passed the socket.
        _file: Option<SocketFile>,
    },
    /// In this process.
    Simulated(Mutex<Clients>),
}

impl Listener {
    /// Listens on an address. The directory of the default socket is made if it is missing.
    pub(super) async fn bind(address: &Listen, settings: &Config) -> Result<Self, BindError> {
        let bound = match address {
            Listen::Tcp(tcp) => bind_tcp(*tcp, settings).map_err(Obstacle::from),
            Listen::Unix(path) => {
                let socket = bind_unix(path, settings.default_socket.as_ref() == Some(path)).await;
                socket.map(|socket| (socket, address.clone()))
            }
        };
        let (socket, address) = bound.map_err(|obstacle| obstacle.at(address))?;
        Ok(Self { socket, address, passed: false })
    }

    /// Uses a listening socket that systemd passed.
    pub(super) fn passed(passed: PassedSocket) -> Result<Self, BindError> {
        let address = passed.passed.address;
        if let Listen::Unix(path) = &address
            && fs::metadata(path).is_ok_and(|file| file.permissions().mode() & FOR_OTHERS != 0)
        {
            // This is systemd's default.
            warn!(%address, "all users can connect to this socket: set SocketMode=0660 in the .socket unit");
        }
        match adopt(passed.listener, &address) {
            Ok(socket) => Ok(Self { socket, address, passed: true }),
            Err(error) => {
                let problem = ", a socket passed by systemd".to_owned();
                Err(BindError { address, problem, may_pass: false, source: Some(error) })
            }
        }
    }

    /// Accepts clients in this process, which are of its user, at an address on which none can connect.
    pub(super) fn simulated(clients: Clients, address: Listen) -> Self {
        Self { socket: ListeningSocket::Simulated(Mutex::new(clients)), address, passed: false }
    }

    /// The next connection.
    ///
    /// # Cancel safety
    /// No connection is lost if the future is dropped.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, Peer)> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Responses are written in one piece: Nagle's algorithm would delay them.
                stream.set_nodelay(true)?;
                let peer = Peer::Tcp(stream.local_addr()?.ip().to_canonical());
                Ok((Box::new(stream), peer))
            }
            ListeningSocket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::Unix(stream.peer_cred()?.uid());
                Ok((Box::new(stream), peer))
            }
            ListeningSocket::Simulated(clients) => match clients.lock().await.recv().await {
                Some(stream) => Ok((Box::new(stream), Peer::Unix(geteuid().as_raw()))),
                None => pending().await,
            },
        }
    }
}

/// Listens on an address. Returns it with the actual port.
fn bind_tcp(address: SocketAddr, settings: &Config) -> io::Result<(ListeningSocket, Listen)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let is_v4 =
        |other: &Listen| matches!(other, Listen::Tcp(SocketAddr::V4(v4)) if v4.port() == address.port());
    // By default [::] serves IPv4, too, and an IPv4 address with its port is in use.
    if address.is_ipv6() && address.ip().is_unspecified() && settings.listen.iter().any(is_v4) {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // A restart must not wait for the old connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    tune(&socket)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = Listen::Tcp(listener.local_addr()?);
    Ok((ListeningSocket::Tcp(listener), address))
}

/// Sets the options that the connections of a TCP socket inherit.
fn tune(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER as usize)?;
    sockopt::set_socket_keepalive(socket, true)?;
    let (idle, probes, interval) = KEEPALIVE;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    Ok(())
}

/// The backlog of a passed socket is set in its unit.
fn adopt(listener: OwnedFd, address: &Listen) -> io::Result<ListeningSocket> {
    ioctl_fionbio(&listener, true)?;
    Ok(match address {
        Listen::Tcp(_) => {
            tune(&listener)?;
            ListeningSocket::Tcp(TcpListener::from_std(listener.into())?)
        }
        Listen::Unix(_) => {
            ListeningSocket::Unix { listener: UnixListener::from_std(listener.into())?, _file: None }
        }
    })
}

/// The file of a Unix socket, removed on drop unless it was replaced.
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.identity) {
            // If this fails, the next start replaces the unused socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn bind_unix(path: &Path, is_default: bool) -> Result<ListeningSocket, Obstacle> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.exists() {
        if !is_default {
            let directory = directory.display();
            return Err(Obstacle::Fixed(format!("the directory {directory} does not exist (create it")));
        }
        DirBuilder::new().mode(DIRECTORY_MODE).create(directory)?;
    }
    // Two agents that start at the same time must not both replace the socket. Any user who may read the
    // directory can lock it, too, and must not prevent the start.
    let lock = File::open(directory)?;
    let locked = async {
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => sleep(LOCK_PAUSE).await,
                locked => return locked,
            }
        }
    };
    timeout(LOCK_TIMEOUT, locked).await.unwrap_or(Ok(())).map_err(io::Error::from)?;
    remove_unused(path).await?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let identity = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))?;
    let file = SocketFile { path: path.to_owned(), identity };
    // No client can connect before `listen`.
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    Ok(ListeningSocket::Unix { listener: socket.listen(BACKLOG)?, _file: Some(file) })
}

/// Removes a socket without a server.
async fn remove_unused(path: &Path) -> Result<(), Obstacle> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(Obstacle::Fixed("the file is not a socket (remove it".to_owned()));
        }
        Ok(_) => {}
    }
    let removed = match timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // `WouldBlock`: the backlog is full, so there is a server. `ConnectionReset`: it has just ended.
        Ok(Err(error))
            if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset) =>
        {
            Err(error)
        }
        _ => return Err(SOCKET_IN_USE),
    };
    // A server that has just ended has removed it.
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error.into()) })
}

/// The number of connections, up to `wanted`, for which the process has file descriptors. The
/// soft limit is raised to the hard one: its default of 1,024 is for programs that use `select`.
pub(super) fn connection_limit(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = setrlimit(Resource::Nofile, raised).map_or(limit.current, |()| limit.maximum);
    let files = limit.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let connections = files.saturating_sub(SPARE_FILES).max(1);
    if connections < wanted {
        warn!(connections, "the limit of open files reduces connections: raise LimitNOFILE or ulimit -n");
    }
    connections.min(wanted)
}
