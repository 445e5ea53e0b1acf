//! An API server in this process, without a port.

use std::io;

use tokio::io::{DuplexStream, duplex};
use tokio_util::sync::CancellationToken;

use super::support::apiserver::ApiServer;

/// The bytes on their way in a connection.
pub const BUFFERED: usize = 64 * 1024;

/// A server that [`dial`] connects to.
pub fn api_server() -> ApiServer {
    ApiServer::new("127.0.0.1:6443".parse().unwrap(), None, None)
}

/// Connects to a server, unless it is down.
pub fn dial(server: &ApiServer) -> io::Result<DuplexStream> {
    let stop = server.stop.lock().unwrap().clone();
    if stop.is_cancelled() {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let (ours, theirs) = duplex(BUFFERED);
    let server = server.clone();
    tokio::spawn(stop.run_until_cancelled_owned(async move { server.serve_connection(ours).await }));
    Ok(theirs)
}

/// A server that was down accepts connections again.
pub fn rise(server: &ApiServer) {
    *server.stop.lock().unwrap() = CancellationToken::new();
}
