//! Listeners: TCP and Unix sockets, bound here or passed by systemd.

use std::{
    fmt,
    fs::{self, DirBuilder, File, Permissions},
    io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    net::sockopt,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream},
    time::timeout,
};
use tracing::warn;

use super::limits::{BACKLOG, KEEPALIVE, SEND_BUFFER, SPARE_FILES};
use crate::server::{
    address::Listen,
    passed::{PassedListener, PassedSocket},
};

/// How long another server may take to accept a connection to its Unix socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The mode of a Unix socket: for its owner and group.
const SOCKET_MODE: u32 = 0o660;
/// The permission of all other users.
const FOR_OTHERS: u32 = 0o002;
/// The mode of a directory that is created for a socket.
const DIRECTORY_MODE: u32 = 0o755;

/// Why the server cannot listen on an address.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program uses the port.
    #[error(
        "cannot listen on {address}: address in use (is another podmux running? choose another with --listen)"
    )]
    InUse {
        /// The address.
        address: Listen,
    },
    /// The address is not of this machine.
    #[error(
        "cannot listen on {address}: no interface of this machine has this address (choose another with --listen)"
    )]
    NotLocal {
        /// The address.
        address: Listen,
    },
    /// Another server uses the Unix socket.
    #[error(
        "cannot listen on {address}: socket in use (is another podmux running? choose another with --listen)"
    )]
    SocketInUse {
        /// The address.
        address: Listen,
    },
    /// The file at the path is not a socket. It is not removed.
    #[error(
        "cannot listen on {address}: the file is not a socket (remove it, or choose another path with --listen)"
    )]
    NotASocket {
        /// The address.
        address: Listen,
    },
    /// A socket that systemd passed cannot be used.
    #[error("cannot listen on {address}, a socket passed by systemd")]
    Passed {
        /// The address.
        address: Listen,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// Another error.
    #[error("cannot listen on {address} (choose another with --listen)")]
    Other {
        /// The address.
        address: Listen,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

/// A byte stream to a client.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// An accepted connection.
pub(super) struct Incoming {
    pub(super) stream: Box<dyn ByteStream>,
    /// The server's address that the client connected to over TCP; `None` on a Unix socket.
    pub(super) local: Option<IpAddr>,
    /// The user at the other end of a Unix socket.
    pub(super) uid: Option<u32>,
}

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
}

impl Listener {
    /// Listens on an address.
    pub(super) async fn bind(address: &Listen) -> Result<Self, BindError> {
        let (socket, address) = match address {
            Listen::Tcp(tcp) => bind_tcp(*tcp)
                .and_then(|listener| {
                    let address = Listen::Tcp(listener.local_addr()?);
                    Ok((ListeningSocket::Tcp(listener), address))
                })
                .map_err(|error| bind_error(address, error))?,
            Listen::Unix(path) => (bind_unix(address, path).await?, address.clone()),
        };
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
        let socket = adopt(passed.listener);
        let socket = socket.map_err(|error| BindError::Passed { address: address.clone(), error })?;
        Ok(Self { socket, address, passed: true })
    }

    /// The next connection.
    ///
    /// # Cancel safety
    /// No connection is lost if the future is dropped.
    pub(super) async fn accept(&self) -> io::Result<Incoming> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Responses are written in one piece: Nagle's algorithm would delay them.
                stream.set_nodelay(true)?;
                let local = Some(stream.local_addr()?.ip().to_canonical());
                Ok(Incoming { stream: Box::new(stream), local, uid: None })
            }
            ListeningSocket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let uid = Some(stream.peer_cred()?.uid());
                Ok(Incoming { stream: Box::new(stream), local: None, uid })
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.address)
    }
}

fn bind_error(address: &Listen, error: io::Error) -> BindError {
    let address = address.clone();
    match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address },
        io::ErrorKind::AddrNotAvailable => BindError::NotLocal { address },
        _ => BindError::Other { address, error },
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait for the old connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    tune(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
fn adopt(listener: PassedListener) -> io::Result<ListeningSocket> {
    match listener {
        PassedListener::Tcp(listener) => {
            tune(&listener)?;
            listener.set_nonblocking(true)?;
            Ok(ListeningSocket::Tcp(TcpListener::from_std(listener)?))
        }
        PassedListener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            Ok(ListeningSocket::Unix { listener: UnixListener::from_std(listener)?, _file: None })
        }
    }
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

async fn bind_unix(address: &Listen, path: &Path) -> Result<ListeningSocket, BindError> {
    let other = |error| BindError::Other { address: address.clone(), error };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.exists() {
        DirBuilder::new().mode(DIRECTORY_MODE).create(directory).map_err(other)?;
    }
    // Two agents that start at the same time must not both replace the socket.
    let lock = File::open(directory).map_err(other)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(BindError::SocketInUse { address: address.clone() }),
        locked => locked.map_err(|error| other(error.into()))?,
    }
    remove_unused(address, path).await?;
    let socket = UnixSocket::new_stream().map_err(other)?;
    socket.bind(path).map_err(|error| bind_error(address, error))?;
    let identity = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino())).map_err(other)?;
    let file = SocketFile { path: path.to_owned(), identity };
    // No client can connect before `listen`.
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(other)?;
    Ok(ListeningSocket::Unix { listener: socket.listen(BACKLOG).map_err(other)?, _file: Some(file) })
}

/// Removes a socket without a server.
async fn remove_unused(address: &Listen, path: &Path) -> Result<(), BindError> {
    let other = |error| BindError::Other { address: address.clone(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(other(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(BindError::NotASocket { address: address.clone() });
        }
        Ok(_) => {}
    }
    match timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(other)
        }
        // `WouldBlock`: the backlog is full, so there is a server.
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(other(error)),
        _ => Err(BindError::SocketInUse { address: address.clone() }),
    }
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
