//! The addresses that are listened on: TCP and Unix sockets.

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

/// How long somebody who listens on a Unix socket has to take a connection.
const KNOCK: Duration = Duration::from_secs(1);
/// Who may use a Unix socket: its owner and its group.
const SOCKET_MODE: u32 = 0o660;
/// What the others need to use one.
const FOR_OTHERS: u32 = 0o002;
/// A directory that is made for a socket can be looked into by all, like /run.
const DIRECTORY_MODE: u32 = 0o755;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program has the port.
    #[error(
        "cannot listen on {address}: another program does; stop it, or give another address with --listen"
    )]
    InUse {
        /// The address.
        address: Listen,
    },
    /// The address is another machine's.
    #[error(
        "cannot listen on {address}: no interface of this machine has that address; give another with --listen"
    )]
    NotHere {
        /// The address.
        address: Listen,
    },
    /// An agent, or another server, answers on the Unix socket.
    #[error(
        "cannot listen on {address}: somebody answers there; stop it, or give another address with --listen"
    )]
    Answered {
        /// The address.
        address: Listen,
    },
    /// What stands at the path is no socket, and may be worth something.
    #[error(
        "cannot listen on {address}: there is a file that is no socket; remove it, or give another path with --listen"
    )]
    NoSocket {
        /// The address.
        address: Listen,
    },
    /// A socket that systemd passed cannot be used.
    #[error("cannot listen on {address}, which systemd passed")]
    Passed {
        /// The address.
        address: Listen,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// Anything else.
    #[error("cannot listen on {address}; give another address with --listen")]
    Other {
        /// The address.
        address: Listen,
        /// What the system says.
        #[source]
        error: io::Error,
    },
}

/// A byte stream to a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that came in.
pub(super) struct Incoming {
    pub(super) stream: Box<dyn Stream>,
    /// The address that the client reached over TCP; `None` on a Unix socket.
    pub(super) reached: Option<IpAddr>,
}

/// A socket that listens.
pub(super) struct Listener {
    door: Door,
    /// Where; a port that was left to the system is known.
    pub(super) address: Listen,
    /// Whether systemd passed it: clients can then wait in the kernel for whoever gets it next.
    pub(super) passed: bool,
}

enum Door {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// If we made it.
        _file: Option<SocketFile>,
    },
}

impl Listener {
    /// Listens on an address.
    pub(super) async fn bind(address: &Listen) -> Result<Self, BindError> {
        let (door, address) = match address {
            Listen::Tcp(socket) => bind_tcp(*socket)
                .and_then(|listener| {
                    let address = Listen::Tcp(listener.local_addr()?);
                    Ok((Door::Tcp(listener), address))
                })
                .map_err(|error| refused(address, error))?,
            Listen::Unix(path) => (bind_unix(address, path).await?, address.clone()),
        };
        Ok(Self { door, address, passed: false })
    }

    /// Takes over a socket that listens already.
    pub(super) fn passed(socket: PassedSocket) -> Result<Self, BindError> {
        let address = socket.passed.address;
        if let Listen::Unix(path) = &address
            && fs::metadata(path).is_ok_and(|file| file.permissions().mode() & FOR_OTHERS != 0)
        {
            // What systemd makes them if it is not told otherwise.
            warn!(%address, "everybody can use this socket: write SocketMode=0660 in the .socket unit");
        }
        let door = take_over(socket.listener);
        let door = door.map_err(|error| BindError::Passed { address: address.clone(), error })?;
        Ok(Self { door, address, passed: true })
    }

    /// The next connection.
    ///
    /// # Cancel safety
    /// No connection is lost if the future is dropped.
    pub(super) async fn accept(&self) -> io::Result<Incoming> {
        match &self.door {
            Door::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are written in one piece: waiting for more gains nothing.
                stream.set_nodelay(true)?;
                let reached = Some(stream.local_addr()?.ip().to_canonical());
                Ok(Incoming { stream: Box::new(stream), reached })
            }
            Door::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok(Incoming { stream: Box::new(stream), reached: None })
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.address)
    }
}

/// What the system says, in words that help.
fn refused(address: &Listen, error: io::Error) -> BindError {
    let address = address.clone();
    match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address },
        io::ErrorKind::AddrNotAvailable => BindError::NotHere { address },
        _ => BindError::Other { address, error },
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a restart does not wait until the last connections are forgotten.
    socket.set_reuseaddr(true)?;
    tune(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Sets what the connections of a TCP socket inherit.
fn tune(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER as usize)?;
    sockopt::set_socket_keepalive(socket, true)?;
    let (silence, times, step) = KEEPALIVE;
    sockopt::set_tcp_keepidle(socket, silence)?;
    sockopt::set_tcp_keepcnt(socket, times)?;
    sockopt::set_tcp_keepintvl(socket, step)?;
    Ok(())
}

/// How many may wait in the queue is for the socket's unit to say.
fn take_over(listener: PassedListener) -> io::Result<Door> {
    match listener {
        PassedListener::Tcp(listener) => {
            tune(&listener)?;
            listener.set_nonblocking(true)?;
            Ok(Door::Tcp(TcpListener::from_std(listener)?))
        }
        PassedListener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Door::Unix { listener: UnixListener::from_std(listener)?, _file: None })
        }
    }
}

/// A Unix socket's file that we made. It goes when this is dropped, unless
/// another has taken its place.
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.identity) {
            // If it cannot be removed, the next start finds it dead and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn bind_unix(address: &Listen, path: &Path) -> Result<Door, BindError> {
    let other = |error| BindError::Other { address: address.clone(), error };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.exists() {
        DirBuilder::new().mode(DIRECTORY_MODE).create(directory).map_err(other)?;
    }
    // Two that start at once must not both find the file dead and replace each other's.
    let lock = File::open(directory).map_err(other)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(BindError::Answered { address: address.clone() }),
        locked => locked.map_err(|error| other(error.into()))?,
    }
    clear(address, path).await?;
    let socket = UnixSocket::new_stream().map_err(other)?;
    socket.bind(path).map_err(|error| refused(address, error))?;
    let identity = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino())).map_err(other)?;
    let file = SocketFile { path: path.to_owned(), identity };
    // Nobody can connect before it listens, and by then its mode is right.
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(other)?;
    Ok(Door::Unix { listener: socket.listen(BACKLOG).map_err(other)?, _file: Some(file) })
}

/// Removes a socket on which nobody answers any more.
async fn clear(address: &Listen, path: &Path) -> Result<(), BindError> {
    let other = |error| BindError::Other { address: address.clone(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(other(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(BindError::NoSocket { address: address.clone() });
        }
        Ok(_) => {}
    }
    match timeout(KNOCK, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(other)
        }
        // Its backlog is full: somebody is there.
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(other(error)),
        _ => Err(BindError::Answered { address: address.clone() }),
    }
}

/// How many of the wanted connections this process has file descriptors for. The
/// soft limit on them is raised to the hard one: it is 1,024 by tradition, for
/// programs that use `select`.
pub(super) fn room_for(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = setrlimit(Resource::Nofile, raised).map_or(limit.current, |()| limit.maximum);
    let room = limit.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let room = room.saturating_sub(SPARE_FILES).max(1);
    if room < wanted {
        warn!(
            connections = room,
            "the limit on open files leaves room for fewer connections: raise LimitNOFILE or ulimit -n"
        );
    }
    room.min(wanted)
}
