//! The real binary with all sources and a sink, and its metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::{
    apiserver::{self, ApiServer, NODE},
    files::pod,
    plain::{Answer, Connection},
    process::{PATIENCE, Process, podmux, wait_for},
    tls,
    web::{Reply, Web},
};

/// The labels of each series of each metric.
pub type Series = BTreeMap<String, Vec<BTreeMap<String, String>>>;

/// An agent with all four sources, a rejected manifest, a sink and a runtime, and its servers.
pub struct Observed {
    pub process: Process,
    pub address: String,
    pub api: ApiServer,
    pub web: Web,
    directory: TempDir,
}

impl Observed {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manifests = directory.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        fs::write(manifests.join("web.yaml"), pod("from-file", "i:1")).unwrap();
        fs::write(manifests.join("bad.yaml"), "kind: [").unwrap();
        let web = Web::start(Reply::ok(pod("from-url", "i:1"))).await;
        let api = ApiServer::start(None);
        api.put(apiserver::pod("from-api", "i:1"));
        api.kubeconfig(directory.path(), &json!({}));
        configure(directory.path(), "10s");
        let (process, address) = run(directory.path(), &web.url);
        Self { process, address, api, web, directory }
    }

    /// Starts the agent again with the same state.
    pub fn restart(self) -> Self {
        self.process.signal(Signal::TERM);
        let (code, log) = self.process.ends();
        assert_eq!(code, 0, "{log}");
        let (process, address) = run(self.directory.path(), &self.web.url);
        Self { process, address, ..self }
    }

    /// Reloads another configuration.
    pub fn reload(&self, grace: &str) {
        configure(self.directory.path(), grace);
        self.process.signal(Signal::HUP);
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let token = fs::read_to_string(self.auth("token")).unwrap();
        tls::ask(&self.address, &self.auth("ca.crt"), Some(&token), method, path, body)
    }

    /// A file that the agent has made for its clients.
    pub fn auth(&self, name: &str) -> PathBuf {
        let file = self.directory.path().join("state/auth").join(name);
        wait_for(|| file.exists().then_some(()));
        file
    }

    /// The current metrics.
    pub fn scrape(&self) -> Series {
        series(&self.ask("GET", "/metrics", "").text())
    }

    /// Waits until the metrics have a line that begins so.
    pub fn wait_for_metric(&self, line: &str) {
        wait_for(|| {
            let text = self.ask("GET", "/metrics", "").text();
            text.lines().any(|metric| metric.starts_with(line)).then_some(())
        });
    }
}

/// Sends one request over a new connection.
pub fn ask(address: &str, method: &str, path: &str, body: &str) -> Answer {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut connection = Connection::over(stream, format!("Host: {address}\r\nConnection: close\r\n"));
    connection.ask(method, path, body.as_bytes()).unwrap()
}

fn configure(directory: &Path, grace: &str) {
    let text = format!("kind: PodmuxConfiguration\nshutdownGrace: {grace}\n");
    fs::write(directory.join("config.yaml"), text).unwrap();
}

/// Starts the agent, and returns its address.
fn run(directory: &Path, url: &str) -> (Process, String) {
    let at = |name: &str| directory.join(name).display().to_string();
    let (config, manifests, kubeconfig) = (at("config.yaml"), at("manifests"), at("kubeconfig"));
    let (state, sink) = (at("state"), format!("jsonl={}", at("updates.jsonl")));
    let mut command = podmux(&[
        "run",
        "--config",
        &config,
        "--node-name",
        NODE,
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        &state,
        "--sink",
        &sink,
        "--sink",
        "exec=/bin/true",
        "--pod-manifest-path",
        &manifests,
        "--manifest-url",
        url,
        "--kubeconfig",
        &kubeconfig,
    ]);
    let process = Process::start(command.env("RUNTIME_DIRECTORY", at("run")));
    let line = process.logs("listening");
    let (_, address) = line.rsplit_once("address=").unwrap();
    (process, address.to_owned())
}

/// Parses the text of `/metrics`.
fn series(text: &str) -> Series {
    let mut series = Series::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, _value) = line.rsplit_once(' ').unwrap();
        let (metric, labels) = name.split_once('{').unwrap_or((name, "}"));
        let mut labels = labels.trim_end_matches('}');
        let mut of = BTreeMap::new();
        // A label's value has no quote here, but may have a comma or a brace.
        while let Some((label, rest)) = labels.split_once("=\"") {
            let (value, rest) = rest.split_once('"').unwrap();
            of.insert(label.trim_start_matches(',').to_owned(), value.to_owned());
            labels = rest;
        }
        series.entry(metric.to_owned()).or_default().push(of);
    }
    series
}

/// The values of a metric's label.
pub fn values(series: &[BTreeMap<String, String>], label: &str) -> BTreeSet<String> {
    series.iter().filter_map(|labels| labels.get(label).cloned()).collect()
}
