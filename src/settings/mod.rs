//! The validated settings; nobody else reads flags, environment or config files.
//!
//! Four layers say them, the first that speaks has the word: flag, environment
//! (`PODMUX_…`), `--config FILE`, default. Every layer says text, and one reader
//! for each setting turns the text into its value, so that a value is judged
//! alike wherever it was said.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use self::file::ConfigFile;
pub use self::{
    api::{Kubeconfig, ProxySettings},
    server::{Listen, ServerSettings},
    sockets::{Passed, PassedError, PassedListener, PassedSocket},
    state::default as default_state_dir,
    url::{CertificateFiles, ManifestUrl, UrlSettings},
};
use crate::{
    mux::Notify,
    pod::{NodeName, NodeNameError},
};

mod api;
pub(crate) mod duration;
mod file;
mod server;
mod sockets;
mod state;
mod url;

/// The environment, passed in: variables by name.
pub type Environment = BTreeMap<String, String>;

/// The variable that names a config file if `--config` does not.
pub const CONFIG_VARIABLE: &str = "PODMUX_CONFIG";

/// The variable that tells `get`, `apply` and `delete` where the agent is; nothing to the agent itself.
pub const SERVER_VARIABLE: &str = "PODMUX_SERVER";

/// Everything that a run of the agent is told from outside, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The config file that was read, if one was named.
    pub config: Option<PathBuf>,
    /// The file source, if it is configured.
    pub file: Option<FileSettings>,
    /// The url source, if it is configured.
    pub url: Option<UrlSettings>,
    /// How the API server is reached, if the api source is configured.
    pub kubeconfig: Option<Kubeconfig>,
    /// Through which proxies the API server is asked.
    pub proxies: ProxySettings,
    /// The server; pods are posted to it, so it is a source, too.
    pub server: ServerSettings,
    /// Where state is kept; nothing outlives the process if there is none.
    pub state_dir: Option<PathBuf>,
    /// This node's name.
    pub node_name: NodeName,
    /// Where updates go; at least one, none twice.
    pub sinks: Vec<SinkSetting>,
    /// How the sinks are told.
    pub notify: Notify,
    /// How long the agent may take to stop.
    pub shutdown_grace: Duration,
    /// How the log is written.
    pub log: LogSettings,
    /// What the person who wrote the settings should hear, a line each: fields
    /// that were ignored, variables that nothing reads.
    pub warnings: Vec<String>,
}

/// The file source's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// A directory of manifests, or one manifest.
    pub path: PathBuf,
    /// How often everything is read again, whatever the watch says.
    pub check_frequency: Duration,
    /// What becomes of a manifest's pods when it turns bad.
    pub on_invalid: OnInvalid,
}

/// What becomes of a manifest's pods when it turns bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// The last good ones stay until the manifest is good again or gone.
    Keep,
    /// They are removed.
    Remove,
}

/// Where updates go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkSetting {
    /// JSON lines on standard output.
    Stdout,
    /// JSON lines appended to a file.
    File(PathBuf),
}

/// How the log is written, always to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// For people or for machines.
    pub format: LogFormat,
    /// 0 says what an operator must know, 1 adds what happens, 2 how, 3 everything.
    pub verbosity: u8,
}

/// The form of the log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}

/// The settings by name. A setting has one name, its flag's; the variable and
/// the config file's field follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// File or directory of manifests.
    PodManifestPath,
    /// Time between full scans.
    FileCheckFrequency,
    /// Keep or remove the pods of a manifest that turned bad.
    OnInvalidManifest,
    /// URL of manifests.
    ManifestUrl,
    /// A header for requests of the URL; may be said several times.
    ManifestUrlHeader,
    /// Whom to trust with the URL.
    ManifestUrlCaFile,
    /// Who the agent is to the URL's server.
    ManifestUrlClientCertFile,
    /// The key of that certificate.
    ManifestUrlClientKeyFile,
    /// What the URL's body has to be.
    ManifestUrlSha256,
    /// Time between polls of the URL.
    HttpCheckFrequency,
    /// How the API server is reached.
    Kubeconfig,
    /// This node's name.
    NodeName,
    /// Where the server listens; may be said several times.
    Listen,
    /// The token of clients.
    TokenFile,
    /// The server's certificate.
    TlsCertFile,
    /// The key of that certificate.
    TlsPrivateKeyFile,
    /// Who signs the certificates of clients.
    ClientCaFile,
    /// Where state is kept.
    StateDir,
    /// Where updates go; may be said several times.
    Sink,
    /// How sinks are told.
    Notify,
    /// Time to stop in.
    ShutdownGrace,
    /// Form of the log.
    LogFormat,
    /// How much is logged.
    Verbose,
}

impl Key {
    /// Every setting.
    pub const ALL: [Self; 23] = [
        Self::PodManifestPath,
        Self::FileCheckFrequency,
        Self::OnInvalidManifest,
        Self::ManifestUrl,
        Self::ManifestUrlHeader,
        Self::ManifestUrlCaFile,
        Self::ManifestUrlClientCertFile,
        Self::ManifestUrlClientKeyFile,
        Self::ManifestUrlSha256,
        Self::HttpCheckFrequency,
        Self::Kubeconfig,
        Self::NodeName,
        Self::Listen,
        Self::TokenFile,
        Self::TlsCertFile,
        Self::TlsPrivateKeyFile,
        Self::ClientCaFile,
        Self::StateDir,
        Self::Sink,
        Self::Notify,
        Self::ShutdownGrace,
        Self::LogFormat,
        Self::Verbose,
    ];

    /// The flag, without its dashes: `file-check-frequency`.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::PodManifestPath => "pod-manifest-path",
            Self::FileCheckFrequency => "file-check-frequency",
            Self::OnInvalidManifest => "on-invalid-manifest",
            Self::ManifestUrl => "manifest-url",
            Self::ManifestUrlHeader => "manifest-url-header",
            Self::ManifestUrlCaFile => "manifest-url-ca-file",
            Self::ManifestUrlClientCertFile => "manifest-url-client-cert-file",
            Self::ManifestUrlClientKeyFile => "manifest-url-client-key-file",
            Self::ManifestUrlSha256 => "manifest-url-sha256",
            Self::HttpCheckFrequency => "http-check-frequency",
            Self::Kubeconfig => "kubeconfig",
            Self::NodeName => "node-name",
            Self::Listen => "listen",
            Self::TokenFile => "token-file",
            Self::TlsCertFile => "tls-cert-file",
            Self::TlsPrivateKeyFile => "tls-private-key-file",
            Self::ClientCaFile => "client-ca-file",
            Self::StateDir => "state-dir",
            Self::Sink => "sink",
            Self::Notify => "notify",
            Self::ShutdownGrace => "shutdown-grace",
            Self::LogFormat => "log-format",
            Self::Verbose => "verbose",
        }
    }

    /// The environment variable: `PODMUX_FILE_CHECK_FREQUENCY`.
    #[must_use]
    pub fn variable(self) -> String {
        format!("PODMUX_{}", self.flag().replace('-', "_").to_uppercase())
    }

    /// The field of a config file: `fileCheckFrequency`.
    #[must_use]
    pub fn field(self) -> String {
        let mut words = self.flag().split('-');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |field, word| {
            let (initial, rest) = word.split_at(1);
            field + &initial.to_uppercase() + rest
        })
    }

    /// What holds if nobody says anything, as text. The node's name has the
    /// host's for default, the state directory depends on who runs the agent,
    /// and files and URLs have none.
    #[must_use]
    pub const fn default(self) -> Option<&'static str> {
        match self {
            Self::FileCheckFrequency | Self::HttpCheckFrequency => Some("20s"),
            Self::OnInvalidManifest => Some("keep"),
            Self::Listen => Some("127.0.0.1:10240"),
            Self::Sink => Some("jsonl"),
            Self::Notify => Some("incremental"),
            Self::ShutdownGrace => Some("10s"),
            Self::LogFormat => Some("text"),
            Self::Verbose => Some("0"),
            _ => None,
        }
    }

    /// The only words that it takes; empty if it takes more than words.
    #[must_use]
    pub fn words(self) -> Vec<&'static str> {
        match self {
            Self::OnInvalidManifest => ON_INVALID.map(|(word, _)| word).to_vec(),
            Self::Notify => NOTIFY.map(|(word, _)| word).to_vec(),
            Self::LogFormat => LOG_FORMAT.map(|(word, _)| word).to_vec(),
            _ => Vec::new(),
        }
    }

    /// What stands between several values in one variable, if there may be
    /// several. Headers may have commas in them.
    const fn separator(self) -> Option<char> {
        match self {
            Self::Sink | Self::Listen => Some(','),
            Self::ManifestUrlHeader => Some('\n'),
            _ => None,
        }
    }

    /// Whether its value is a path, and nothing but a path.
    const fn is_path(self) -> bool {
        matches!(
            self,
            Self::PodManifestPath
                | Self::ManifestUrlCaFile
                | Self::ManifestUrlClientCertFile
                | Self::ManifestUrlClientKeyFile
                | Self::TokenFile
                | Self::TlsCertFile
                | Self::TlsPrivateKeyFile
                | Self::ClientCaFile
        )
    }
}

/// What whoever started the process gave it, as text. It stays the same as long as the process.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The values of the other flags; no entry if the flag was not given.
    pub said: BTreeMap<Key, Vec<String>>,
    /// The sockets that systemd passed.
    pub passed: Vec<Passed>,
    /// Whether systemd may pass others to the agent for which these settings
    /// are: then it cannot be known that there is no source of pods.
    pub may_be_passed: bool,
}

impl fmt::Debug for Flags {
    /// Without the values: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flags")
            .field("config", &self.config)
            .field("said", &self.said.keys())
            .finish_non_exhaustive()
    }
}

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the command line.
    Flag(Key),
    /// In the environment.
    Variable(Key),
    /// In the config file.
    File {
        /// The file.
        path: PathBuf,
        /// Line and column, both from 1.
        position: Option<(u32, u32)>,
        /// The field, if it is about one.
        field: Option<String>,
    },
    /// Nowhere: it is the default.
    Default(Key),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(key) => write!(f, "--{}", key.flag()),
            Self::Variable(key) => f.write_str(&key.variable()),
            Self::File { path, position, field } => {
                write!(f, "{}", path.display())?;
                if let Some((line, column)) = position {
                    write!(f, ":{line}:{column}")?;
                }
                field.iter().try_for_each(|field| write!(f, ": {field}"))
            }
            Self::Default(key) => write!(f, "the default of --{}", key.flag()),
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A value cannot be used.
    #[error("{place}: {problem}")]
    Value {
        /// Where it was said.
        place: Place,
        /// What is wrong and what is accepted.
        problem: String,
    },
    /// A setting that takes one value was given several.
    #[error("{place} is given more than once")]
    Repeated {
        /// Where.
        place: Place,
    },
    /// A socket that was passed can be reached from elsewhere, and everybody could use it.
    #[error(
        "systemd passed the socket {address} ({name}), which can be reached from elsewhere and needs {missing}; or write ListenStream=127.0.0.1:{port} in the .socket unit"
    )]
    Passed {
        /// Where it listens.
        address: Listen,
        /// What systemd calls it.
        name: String,
        /// Its port.
        port: u16,
        /// What would make it safe.
        missing: &'static str,
    },
    /// No source of pods is configured.
    #[error(
        "no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or do not say --listen none"
    )]
    NoSource,
    /// Nobody said where state is kept, and whoever runs the agent has no usual place.
    #[error(
        "nowhere to keep state: HOME is not set; give --state-dir DIR, or --state-dir none to keep nothing"
    )]
    NoStateDir,
    /// The host has no name that could be a node's.
    #[error("the host name cannot be this node's name, give one with --node-name")]
    HostName(#[source] NodeNameError),
    /// A config file cannot be read.
    #[error("--config {}: cannot be read; does it exist, and may this process read it?", path.display())]
    Config {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
}

impl Settings {
    /// Settles all settings from the layers. The config file is read anew on
    /// each call, so the agent calls it again to reload.
    ///
    /// # Errors
    /// The first value that cannot be used, with the place where it was said.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Self, SettingsError> {
        let variable = environment.get(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        let config = flags.config.clone().or_else(|| variable.map(PathBuf::from));
        let file = config.as_deref().map(file::read).transpose()?.unwrap_or_default();
        let warnings = file.warnings.iter().cloned().chain(unknown_variables(environment)).collect();
        let layers = Layers { flags, environment, file };
        let path = layers.one(Key::PodManifestPath, read_path)?;
        let bounds = Duration::from_millis(100)..=24 * HOUR;
        let check_frequency = layers.set(Key::FileCheckFrequency, |text| duration::read(text, &bounds))?;
        let on_invalid = layers.set(Key::OnInvalidManifest, |text| choose(text, &ON_INVALID))?;
        let file = path.map(|path| FileSettings { path, check_frequency, on_invalid });
        let bounds = Duration::ZERO..=HOUR;
        let mut settings = Self {
            config,
            file,
            url: url::read(&layers)?,
            kubeconfig: api::read(&layers)?,
            proxies: api::proxies(environment),
            server: server::read(&layers)?,
            state_dir: state::read(&layers)?,
            node_name: layers.node_name()?,
            sinks: layers.sinks()?,
            notify: layers.set(Key::Notify, |text| choose(text, &NOTIFY))?,
            shutdown_grace: layers.set(Key::ShutdownGrace, |text| duration::read(text, &bounds))?,
            log: LogSettings {
                format: layers.set(Key::LogFormat, |text| choose(text, &LOG_FORMAT))?,
                verbosity: layers.set(Key::Verbose, read_verbosity)?,
            },
            warnings,
        };
        if settings.file.is_none()
            && settings.url.is_none()
            && settings.kubeconfig.is_none()
            && !settings.server.listens()
        {
            if !flags.may_be_passed {
                return Err(SettingsError::NoSource);
            }
            let warning = "no source of pods, unless systemd passes a socket to which they are posted";
            settings.warnings.push(warning.to_owned());
        }
        Ok(settings)
    }
}

impl Settings {
    /// What holds after a reload, and what keeps the value that it started with
    /// although another was asked for: it needs a restart.
    ///
    /// What says which pods there are, who is told, and where the agent listens
    /// stays: path and URL of manifests, node name, sinks, addresses, state
    /// directory, form of the log. All else takes its fresh value: how often and
    /// with which headers, certificates and digest is looked, the kubeconfig,
    /// what becomes of invalid manifests, the files of token and certificates,
    /// the time to stop in and the log's verbosity. But a protection that the
    /// server has is not taken off while it runs: it was a condition for
    /// listening where it does.
    #[must_use]
    pub fn reloaded(&self, mut fresh: Self) -> (Self, Vec<Key>) {
        let mut stuck = Vec::new();
        if let (Some(fresh), Some(now)) = (&mut fresh.file, &self.file) {
            hold(&mut fresh.path, &now.path, Key::PodManifestPath, &mut stuck);
        } else {
            hold(&mut fresh.file, &self.file, Key::PodManifestPath, &mut stuck);
        }
        if let (Some(fresh), Some(now)) = (&mut fresh.url, &self.url) {
            hold(&mut fresh.url, &now.url, Key::ManifestUrl, &mut stuck);
        } else {
            hold(&mut fresh.url, &self.url, Key::ManifestUrl, &mut stuck);
        }
        if fresh.kubeconfig.is_some() != self.kubeconfig.is_some() {
            hold(&mut fresh.kubeconfig, &self.kubeconfig, Key::Kubeconfig, &mut stuck);
        }
        hold(&mut fresh.node_name, &self.node_name, Key::NodeName, &mut stuck);
        let (server, now) = (&mut fresh.server, &self.server);
        hold(&mut server.listen, &now.listen, Key::Listen, &mut stuck);
        guard(&mut server.token_file, now.token_file.as_ref(), Key::TokenFile, &mut stuck);
        guard(&mut server.tls, now.tls.as_ref(), Key::TlsCertFile, &mut stuck);
        guard(&mut server.client_ca_file, now.client_ca_file.as_ref(), Key::ClientCaFile, &mut stuck);
        hold(&mut fresh.state_dir, &self.state_dir, Key::StateDir, &mut stuck);
        hold(&mut fresh.sinks, &self.sinks, Key::Sink, &mut stuck);
        hold(&mut fresh.notify, &self.notify, Key::Notify, &mut stuck);
        hold(&mut fresh.log.format, &self.log.format, Key::LogFormat, &mut stuck);
        (fresh, stuck)
    }
}

/// Keeps a value as it is, and says so if another was asked for.
fn hold<T: Clone + PartialEq>(fresh: &mut T, now: &T, key: Key, stuck: &mut Vec<Key>) {
    if fresh != now {
        stuck.push(key);
        fresh.clone_from(now);
    }
}

/// Keeps a protection that would be taken off.
fn guard<T: Clone>(fresh: &mut Option<T>, now: Option<&T>, key: Key, stuck: &mut Vec<Key>) {
    if fresh.is_none() && now.is_some() {
        stuck.push(key);
        *fresh = now.cloned();
    }
}

/// This node's name, for a command that needs nothing else: the flag's, the
/// environment's, or the host's.
///
/// # Errors
/// If it cannot be a node's name.
pub fn node_name(flag: Option<&str>, environment: &Environment) -> Result<NodeName, SettingsError> {
    let said = flag.map(|name| (Key::NodeName, vec![name.to_owned()]));
    let flags = Flags { said: said.into_iter().collect(), ..Flags::default() };
    Layers { flags: &flags, environment, file: ConfigFile::default() }.node_name()
}

const HOUR: Duration = Duration::from_hours(1);
const ON_INVALID: [(&str, OnInvalid); 2] = [("keep", OnInvalid::Keep), ("remove", OnInvalid::Remove)];
const NOTIFY: [(&str, Notify); 3] = [
    ("incremental", Notify::Incremental),
    ("snapshot", Notify::Snapshot),
    ("snapshot-and-updates", Notify::SnapshotAndUpdates),
];
const LOG_FORMAT: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// The layers, asked in order of precedence.
struct Layers<'a> {
    flags: &'a Flags,
    environment: &'a Environment,
    file: ConfigFile,
}

impl Layers<'_> {
    /// What the first layer that speaks of a setting says.
    fn said(&self, key: Key) -> Option<(Place, Vec<String>)> {
        if let Some(values) = self.flags.said.get(&key) {
            return Some((Place::Flag(key), values.clone()));
        }
        // Set but empty is how an EnvironmentFile says nothing.
        if let Some(value) = self.environment.get(&key.variable()).filter(|value| !value.is_empty()) {
            let values = match key.separator() {
                Some(separator) => {
                    value.trim_end().split(separator).map(|one| one.trim().to_owned()).collect()
                }
                None => vec![value.clone()],
            };
            return Some((Place::Variable(key), values));
        }
        if let Some(said) = self.file.said.get(&key) {
            return Some(said.clone());
        }
        key.default().map(|value| (Place::Default(key), vec![value.to_owned()]))
    }

    /// The value of a setting that may be unset.
    fn one<T>(&self, key: Key, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, SettingsError> {
        match self.said(key) {
            None => Ok(None),
            Some((place, values)) => match values.as_slice() {
                [value] => read(value).map(Some).map_err(|problem| SettingsError::Value { place, problem }),
                _ => Err(SettingsError::Repeated { place }),
            },
        }
    }

    /// The value of a setting that has a default.
    fn set<T>(&self, key: Key, read: impl Fn(&str) -> Result<T, String>) -> Result<T, SettingsError> {
        let missing =
            || SettingsError::Value { place: Place::Default(key), problem: "there is none".to_owned() };
        self.one(key, read)?.ok_or_else(missing)
    }

    fn node_name(&self) -> Result<NodeName, SettingsError> {
        let read = |text: &str| NodeName::new(text).map_err(|error| error.to_string());
        if let Some(name) = self.one(Key::NodeName, read)? {
            return Ok(name);
        }
        let host = rustix::system::uname();
        NodeName::new(&host.nodename().to_string_lossy()).map_err(SettingsError::HostName)
    }

    fn sinks(&self) -> Result<Vec<SinkSetting>, SettingsError> {
        let mut sinks = Vec::new();
        if let Some((place, values)) = self.said(Key::Sink) {
            for value in values {
                let refused = |problem| SettingsError::Value { place: place.clone(), problem };
                let sink = read_sink(&value).map_err(refused)?;
                if sinks.contains(&sink) {
                    return Err(refused(format!("{value:?} is given twice")));
                }
                sinks.push(sink);
            }
        }
        Ok(sinks)
    }
}

/// One line about the variables that look like ours and that nothing reads: a
/// typing error, or what Kubernetes tells a container about a service called podmux.
fn unknown_variables(environment: &Environment) -> Option<String> {
    let known = Key::ALL.map(Key::variable);
    let others = [CONFIG_VARIABLE, SERVER_VARIABLE];
    let ours =
        environment.keys().filter(|name| name.starts_with("PODMUX_") && !others.contains(&name.as_str()));
    let unknown: Vec<&str> = ours.filter(|name| !known.contains(name)).map(String::as_str).collect();
    (!unknown.is_empty()).then(|| format!("no settings of this version, ignored: {}", unknown.join(", ")))
}

fn read_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("a path is needed, and it is empty".to_owned());
    }
    Ok(Path::new(text).to_owned())
}

fn read_verbosity(text: &str) -> Result<u8, String> {
    let level: u8 = text.parse().map_err(|_| format!("{text:?} is not a level: 0, 1, 2 or 3 is"))?;
    Ok(level.min(3))
}

fn read_sink(text: &str) -> Result<SinkSetting, String> {
    match text.split_once('=') {
        None if text == "jsonl" => Ok(SinkSetting::Stdout),
        Some(("jsonl", "")) => {
            Err("jsonl=PATH needs a path; jsonl alone writes to standard output".to_owned())
        }
        Some(("jsonl", path)) => Ok(SinkSetting::File(path.into())),
        _ => {
            Err(format!("{text:?} is not a sink of this version: jsonl (standard output) and jsonl=PATH are"))
        }
    }
}

/// Finds a word among those that are accepted.
fn choose<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let Some((_, value)) = words.iter().find(|(word, _)| *word == text) else {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        return Err(format!("{text:?} is not one of {}", words.join(", ")));
    };
    Ok(*value)
}
