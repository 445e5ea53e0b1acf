//! Blocking connections over TLS to an agent.

use std::{net::TcpStream, path::Path, sync::Arc};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};

use super::{
    plain::{Answer, Connection},
    process::{PATIENCE, wait_for},
};

/// A connection over TLS.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Connects over TLS, with trust in the authorities of a file, which may still have to be made.
pub fn connect(address: &str, ca: &Path, client: Option<(&Path, &Path)>) -> TlsStream {
    let authorities = wait_for(|| {
        let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(ca).ok()?.collect();
        found.ok().filter(|found| !found.is_empty())
    });
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_file(certificate).unwrap();
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let host = address.rsplit_once(':').unwrap().0.trim_matches(['[', ']']).to_owned();
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from(host).unwrap()).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(session, stream)
}

/// Sends one request with a token over a new connection.
pub fn ask(address: &str, ca: &Path, token: Option<&str>, method: &str, path: &str, body: &str) -> Answer {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let headers = format!("Host: {address}\r\n{token}Connection: close\r\n");
    Connection::over(connect(address, ca, None), headers).ask(method, path, body.as_bytes()).unwrap()
}
