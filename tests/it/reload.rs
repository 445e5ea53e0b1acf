//! SIGHUP on the real binary: valid settings take effect, invalid ones are logged and change nothing.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
};

use podmux::manifest::yaml;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    files::pod,
    process::{Process, podmux, wait_for},
    tls,
    web::{Authority, Reply, Web},
};

/// An agent with a config file.
struct Agent {
    directory: TempDir,
    process: Process,
    /// Its TCP address.
    address: String,
    ca: PathBuf,
}

impl Agent {
    fn start(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("manifests")).unwrap();
        fs::write(directory.path().join("token"), "first-token").unwrap();
        let authority = Authority::new(directory.path(), "server-ca");
        let (certificate, key) = authority.server_files("127.0.0.1");
        fs::rename(certificate, directory.path().join("tls.crt")).unwrap();
        fs::rename(key, directory.path().join("tls.key")).unwrap();
        let config = directory.path().join("config.yaml");
        fs::write(&config, expanded(&directory, settings)).unwrap();
        let process = Process::start(&mut podmux(&["run", "--config", config.to_str().unwrap()]));
        let line = process.logs("listening");
        let address = line.split_once("address=").unwrap().1.split(' ').next().unwrap().to_owned();
        Self { ca: authority.ca_file, directory, process, address }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self, settings: &str) {
        fs::write(self.at("config.yaml"), expanded(&self.directory, settings)).unwrap();
    }

    /// Reloads, and waits for a line of the log.
    fn reload(&self, says: &str) -> String {
        let before = self.process.stderr.text().lines().count();
        self.process.signal(Signal::HUP);
        self.process
            .stderr
            .wait_for(says, |lines| lines.iter().skip(before).find(|line| line.contains(says)).cloned())
    }

    /// The status code of a request with this token.
    fn asks(&self, token: &str) -> u16 {
        self.answer("/pods", token).split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn answer(&self, path: &str, token: &str) -> String {
        let mut stream = tls::connect(&self.address, &self.ca, None);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until this token is valid, and asserts that the other one is not.
    fn knows(&self, token: &str, other: &str) {
        wait_for(|| (self.asks(token) == 200).then_some(()));
        assert_eq!(self.asks(other), 401);
    }

    fn ends(self) -> String {
        self.process.signal(Signal::TERM);
        let (code, log) = self.process.ends();
        assert_eq!(code, 0, "{log}");
        log
    }
}

/// Settings, in which `@` is the directory.
fn expanded(directory: &TempDir, settings: &str) -> String {
    let all = format!(
        "nodeName: node1\npodManifestPath: '@/manifests'\nstateDir: '@/state'\nlisten: ['127.0.0.1:0']\n{settings}\n\
         tlsCertFile: '@/tls.crt'\ntlsPrivateKeyFile: '@/tls.key'\n"
    );
    all.replace('@', directory.path().to_str().unwrap())
}

#[test]
fn an_invalid_configuration_changes_nothing() {
    let agent = Agent::start("tokenFile: '@/token'");
    fs::write(agent.at("other"), "other-token").unwrap();
    // The other token file is valid, but the configuration is not.
    agent.configure("tokenFile: '@/other'\nshutdownGrace: never");
    let line = agent.reload("reload failed: invalid settings; the previous ones stay in effect");
    assert!(line.contains("ERROR") && line.contains("config.yaml:6:1: shutdownGrace"), "{line}");
    agent.knows("first-token", "other-token");
    // The files that are in use are read again.
    fs::write(agent.at("token"), "second-token").unwrap();
    agent.reload("reload failed: invalid settings; the previous ones stay in effect");
    agent.knows("second-token", "first-token");
    // A corrected configuration takes effect as a whole.
    agent.configure("tokenFile: '@/other'\nshutdownGrace: 9s");
    agent.reload("settings reloaded");
    agent.knows("other-token", "second-token");
    let log = agent.ends();
    assert_eq!(log.matches("invalid settings").count(), 2, "once for each reload:\n{log}");
    assert!(!log.contains("-token"), "{log}");
}

/// A pipe that is at its end, or a file that was truncated to be written.
#[test]
fn an_empty_configuration_is_not_the_defaults() {
    let agent = Agent::start("podSecurity: [file=baseline]");
    fs::write(agent.at("config.yaml"), "").unwrap();
    let line = agent.reload("reload failed: invalid settings; the previous ones stay in effect");
    assert!(line.contains("config.yaml: the file is empty"), "{line}");
    fs::write(agent.at("manifests/web.yaml"), on_host("web")).unwrap();
    let line = agent.process.logs("manifest rejected");
    assert!(line.contains(ON_HOST), "{line}");
    agent.ends();
}

#[test]
fn with_a_valid_configuration_and_an_invalid_token_the_old_token_stays_valid() {
    let agent = Agent::start("tokenFile: '@/token'\nverbose: 0");
    fs::write(agent.at("token"), "two tokens").unwrap();
    agent.configure("tokenFile: '@/token'\nverbose: 1");
    agent.reload("server credentials rejected, the previous ones stay in effect");
    assert_eq!(agent.asks("first-token"), 200);
    agent.process.logs("reload incomplete: a file that the settings name is invalid");
    wait_for(|| {
        let metrics = agent.answer("/metrics", "first-token");
        metrics.contains("podmux_config_last_reload_successful 0\n").then_some(())
    });
    let log = agent.ends();
    assert!(
        log.contains("settings reloaded") && log.contains("DEBUG"),
        "the other settings take effect:\n{log}"
    );
}

/// The clock of the machine may be wrong: the certificates are used.
#[test]
fn certificates_that_are_not_valid_now_are_logged_at_the_start_and_at_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let authority = Authority::new(directory.path(), "ca");
    authority.outdated_server_files("server");
    authority.outdated_client("client");
    fs::write(at("token"), "first-token").unwrap();
    let config = at("config.yaml");
    let text = "nodeName: node1\nstateDir: '@/state'\nlisten: ['127.0.0.1:0', 'unix:@/socket']\ntokenFile: '@/token'\n\
                tlsCertFile: '@/server.crt'\ntlsPrivateKeyFile: '@/server.key'\nmanifestUrl: 'https://127.0.0.1:1/'\n\
                manifestUrlClientCertFile: '@/client.crt'\nmanifestUrlClientKeyFile: '@/client.key'\n";
    fs::write(&config, text.replace('@', directory.path().to_str().unwrap())).unwrap();
    let process = Process::start(&mut podmux(&["run", "--config", &config]));
    let expired = "the certificate expired at 2000-12-31T00:00:00Z";
    let own = ["server certificate not valid now", &at("server.crt"), expired];
    let url = ["client certificate not valid now", &at("client.crt"), expired];
    for times in 1..=2 {
        for expected in [&own, &url] {
            let has_all = |line: &&str| expected.iter().all(|part| line.contains(part));
            wait_for(|| (process.stderr.text().lines().filter(has_all).count() == times).then_some(()));
        }
        if times == 1 {
            process.signal(Signal::HUP);
        }
    }
    let mut stream = UnixStream::connect(at("socket")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // 2000-12-31T00:00:00Z
    let metric = "\npodmux_server_certificate_expiration_timestamp_seconds 978220800\n";
    assert!(answer.contains(metric), "{answer}");
    process.signal(Signal::TERM);
    let (code, log) = process.ends();
    assert_eq!(code, 0, "{log}");
    // No file has changed.
    assert!(!log.contains("server credentials reloaded"), "{log}");
}

/// A deleted line must not open the server to all clients.
#[test]
fn a_reload_does_not_remove_the_token() {
    let agent = Agent::start("tokenFile: '@/token'");
    agent.configure("");
    let line = agent.reload("takes effect only after a restart");
    assert!(line.contains("setting=\"token-file\""), "{line}");
    agent.knows("first-token", "");
    agent.ends();
}

#[test]
fn files_of_a_setting_that_needs_a_restart_are_not_checked() {
    let agent = Agent::start("tokenFile: '@/token'");
    agent.configure(
        "tokenFile: '@/token'\nsink: [{kind: webhook, target: 'http://127.0.0.1:1/', tokenFile: none}]",
    );
    let line = agent.reload("takes effect only after a restart");
    assert!(line.contains("setting=\"sink\""), "{line}");
    agent.process.logs("settings reloaded");
    let log = agent.ends();
    assert!(!log.contains("reload incomplete"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_can_change_the_file_of_the_urls_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(directory.path(), "old"), Authority::new(directory.path(), "new"));
    let web = Web::start_tls(new.server("localhost", None), Reply::ok(pod("web", "i:1"))).await;
    let settings = |ca: &str| {
        format!("manifestUrl: {}\nmanifestUrlCaFile: {ca}\nhttpCheckFrequency: 1h", web.at("/pods"))
    };
    let agent = Agent::start(&settings(old.ca_file.to_str().unwrap()));
    agent.process.logs("source failed");
    agent.configure(&settings(new.ca_file.to_str().unwrap()));
    agent.reload("settings reloaded");
    agent.process.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    // An unreadable file is logged, and the previous certificates are used.
    web.say(Reply::ok(pod("other", "i:1")));
    agent.configure(&settings("/no/such/file"));
    let line = agent.reload("certificates not reloaded");
    assert!(line.contains("/no/such/file"), "{line}");
    agent.process.holds("the other pod", |held| held.pods.contains_key("default/other-node1"));
    agent.ends();
}

/// A pod that shares the network of the host.
fn on_host(name: &str) -> String {
    pod(name, "i:1").replace("spec:\n", "spec:\n  hostNetwork: true\n")
}

const ON_HOST: &str = r#"violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)"#;

#[test]
fn a_reload_changes_the_level_of_manifests() {
    let agent = Agent::start("podSecurity: [file=baseline]");
    fs::write(agent.at("manifests/web.yaml"), on_host("web")).unwrap();
    let line = agent.process.logs("manifest rejected");
    assert!(line.contains("web.yaml") && line.contains(ON_HOST), "{line}");
    agent.configure("");
    agent.reload("settings reloaded");
    agent.process.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    // A stricter level rejects the manifest, and its last valid pods stay as for any other reason.
    agent.configure("podSecurity: [file=restricted]");
    let line = agent.reload("manifest rejected");
    assert!(line.contains("restricted:latest"), "{line}");
    agent.process.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    agent.configure("podSecurity: [file=restricted]\nonInvalidManifest: remove");
    agent.reload("settings reloaded");
    agent.process.holds("no pod", |held| held.pods.is_empty());
    agent.ends();
}

#[test]
fn a_reload_changes_the_level_of_later_posts_and_posted_pods_stay() {
    let agent = Agent::start("tokenFile: '@/token'");
    let post = |name: &str| {
        let pod = yaml::to_json(&on_host(name)).unwrap().to_string();
        tls::ask(&agent.address, &agent.ca, Some("first-token"), "POST", "/pods", &pod)
    };
    assert_eq!(post("first").code, 201);
    agent.configure("tokenFile: '@/token'\npodSecurity: [http=baseline]");
    agent.reload("settings reloaded");
    let answer = wait_for(|| Some(post("second")).filter(|answer| answer.code == 403));
    assert!(answer.text().contains(&ON_HOST.replace('"', "\\\"")), "{}", answer.text());
    agent.process.holds("the first pod", |held| held.pods.contains_key("default/first"));
    agent.ends();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_applies_another_level_to_the_unchanged_content_of_the_url() {
    let web = Web::start(Reply::ok(on_host("web"))).await;
    let settings = |more: &str| format!("manifestUrl: {}\nhttpCheckFrequency: 1h\n{more}", web.at("/pods"));
    let agent = Agent::start(&settings("podSecurity: [url=baseline]"));
    agent.process.logs("violates PodSecurity");
    agent.configure(&settings(""));
    agent.reload("settings reloaded");
    agent.process.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    agent.configure(&settings("podSecurity: [url=baseline]"));
    agent.reload("violates PodSecurity");
    agent.process.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    agent.ends();
}
