//! The server's settings: where it listens, and what makes that safe.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::{CertificateFiles, Key, Layers, Passed, Place, SettingsError, read_path, url::certificate_files};

/// The server's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// Where it listens; none twice, possibly nowhere, and nowhere that is passed.
    pub listen: Vec<Listen>,
    /// The sockets that systemd passed; they are served in any case.
    pub passed: Vec<Passed>,
    /// The file with the token that requests over TCP have to bear.
    pub token_file: Option<PathBuf>,
    /// The server's certificate; TCP is served over TLS if there is one.
    pub tls: Option<CertificateFiles>,
    /// Who signs the certificates of clients, in PEM; only with `tls`.
    pub client_ca_file: Option<PathBuf>,
}

impl ServerSettings {
    /// Whether anything is listened on: what can be posted to is a source.
    #[must_use]
    pub fn listens(&self) -> bool {
        !self.listen.is_empty() || !self.passed.is_empty()
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The longest path of a Unix socket, in bytes: `sun_path` holds 108 with the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;

pub(super) fn read(layers: &Layers) -> Result<ServerSettings, SettingsError> {
    let passed = layers.flags.passed.clone();
    let mut listen = listen(layers)?;
    listen.retain(|address| !passed.iter().any(|passed| passed.serves(address)));
    let settings = ServerSettings {
        listen,
        passed,
        token_file: layers.one(Key::TokenFile, read_path)?,
        tls: certificate_files(layers, (Key::TlsCertFile, Key::TlsPrivateKeyFile))?,
        client_ca_file: layers.one(Key::ClientCaFile, read_path)?,
    };
    let refused = |key: Key, problem: String| {
        let place = layers.said(key).map_or(Place::Default(key), |(place, _)| place);
        Err(SettingsError::Value { place, problem })
    };
    if settings.client_ca_file.is_some() && settings.tls.is_none() {
        let problem = "clients show certificates over TLS only: give --tls-cert-file and \
                       --tls-private-key-file, too";
        return refused(Key::ClientCaFile, problem.to_owned());
    }
    let Some(missing) = missing_beyond_loopback(&settings) else { return Ok(settings) };
    for Passed { address, name, .. } in &settings.passed {
        if let (Listen::Tcp(socket), false) = (address, address.is_local()) {
            let (address, name, port) = (address.clone(), name.clone(), socket.port());
            return Err(SettingsError::Passed { address, name, port, missing });
        }
    }
    if let Some(address) = settings.listen.iter().find(|address| !address.is_local()) {
        let problem =
            format!("{address} can be reached from elsewhere and needs {missing}; or listen on 127.0.0.1");
        return refused(Key::Listen, problem);
    }
    Ok(settings)
}

/// What would have to be given so that others than this machine may connect.
fn missing_beyond_loopback(settings: &ServerSettings) -> Option<&'static str> {
    let known = settings.token_file.is_some() || settings.client_ca_file.is_some();
    match (settings.tls.is_some(), known) {
        (true, true) => None,
        (false, true) => Some("TLS: give --tls-cert-file and --tls-private-key-file"),
        (true, false) => Some("a way to know its clients: give --token-file or --client-ca-file"),
        (false, false) => Some(
            "TLS and a way to know its clients: give --tls-cert-file, --tls-private-key-file, \
             and --token-file or --client-ca-file",
        ),
    }
}

fn listen(layers: &Layers) -> Result<Vec<Listen>, SettingsError> {
    let Some((place, values)) = layers.said(Key::Listen) else { return Ok(Vec::new()) };
    let refused = |problem| SettingsError::Value { place: place.clone(), problem };
    if values.iter().any(|value| value == "none") {
        return match values.len() {
            1 => Ok(Vec::new()),
            _ => Err(refused("none stands alone: it says that there is no address".to_owned())),
        };
    }
    let mut addresses = Vec::new();
    for value in values {
        let address = read_listen(&value).map_err(refused)?;
        if addresses.contains(&address) {
            return Err(refused(format!("{address} is given twice")));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

fn read_listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let refused = |problem: &str| Err(format!("{text:?}: unix:PATH needs {problem}"));
        return match path.len() {
            0 => refused("a path"),
            1..=MAX_SOCKET_PATH => Ok(Listen::Unix(path.into())),
            _ => refused("a path of at most 107 bytes"),
        };
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Listen::Tcp(address));
    }
    let named = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match named {
        Some(("localhost", port)) => Ok(Listen::Tcp((IpAddr::from(Ipv4Addr::LOCALHOST), port).into())),
        // Names are not looked up: at boot there may be nobody to ask, and what they mean may change.
        Some((_, port)) => Err(format!(
            "{text:?}: the host is an IP address or localhost: 127.0.0.1:{port}, [::1]:{port}, 0.0.0.0:{port}"
        )),
        None => Err(format!("{text:?} is no address: HOST:PORT, unix:PATH or none is")),
    }
}
