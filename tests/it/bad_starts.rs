//! Starts with something broken: what can never work ends the start with one line and exit code 2; what may
//! mend itself is retried while everything else works. No data is lost.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use expect_test::{Expect, expect};
use futures::stream;
use podmux::{
    agent::Crew,
    db::{self, Table},
    host::{Host, Threads},
    settings::{CommandLine, Environment, Settings},
};
use rustix::process::{Signal, geteuid};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::pod,
    kubernetes::not_tested,
    namespace::inside,
    plain::Connection,
    process::{Process, podmux_run, wait_for},
    state::{Disk, State},
    stream::Replica,
    web::{Authority, Reply, Web},
};

/// A directory with manifests, a state directory and a socket.
struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("manifests")).unwrap();
        Self { directory }
    }

    /// A node whose state has a posted pod.
    fn with_state() -> Self {
        let node = Self::new();
        node.run_once(Signal::TERM);
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.at("state").join("state.redb")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = podmux_run(&self.at("manifests"), args);
        command.env("PODMUX_STATE_DIR", self.at("state"));
        command.env("PODMUX_LISTEN", format!("unix:{}", self.at("podmux.sock").display()));
        command
    }

    fn start(&self, args: &[&str]) -> Process {
        let agent = Process::start(&mut self.command(args));
        agent.logs("listening");
        wait_for(|| (self.ask("GET", "/readyz", "").0 == 200).then_some(()));
        agent
    }

    /// Runs the agent, posts a pod, and ends the agent.
    fn run_once(&self, end: Signal) {
        let agent = self.start(&[]);
        assert_eq!(self.post("posted"), 201);
        agent.signal(end);
        agent.ends();
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let answer = Connection::unix(&self.at("podmux.sock")).unwrap();
        let answer = { answer }.ask(method, path, body.as_bytes()).unwrap();
        (answer.code, answer.text())
    }

    fn post(&self, name: &str) -> u16 {
        self.post_with(name, "i:1").0
    }

    fn post_with(&self, name: &str, image: &str) -> (u16, String) {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": image }] },
        });
        self.ask("POST", "/pods", &pod.to_string())
    }

    /// The names of the agent's pods.
    fn pods(&self) -> Vec<String> {
        let (code, text) = self.ask("GET", "/pods", "");
        assert_eq!(code, 200, "{text}");
        let list: Value = serde_json::from_str(&text).unwrap();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    }

    /// Starts an agent whose state cannot be opened: `expected` is why, with `@` for this directory.
    /// Its other sources are served, and its posted pods are unknown.
    fn starts_without_state(&self, expected: &Expect) -> Process {
        fs::write(self.at("manifests").join("web.yaml"), pod("web", "i:1")).unwrap();
        let shown = |text: &str| text.replace(self.directory.path().to_str().unwrap(), "@");
        let kept = fs::read(self.state()).ok();
        let agent = Process::start(&mut self.command(&["--sink", "jsonl"]));
        agent.holds("the pod of the file", |held| held.pods.len() == 1);
        wait_for(|| (self.pods() == ["web-node1"]).then_some(()));
        let source = self.http_source();
        assert_eq!((&source["state"], &source["pods"]), (&"failing".into(), &0.into()));
        let error = source["failing"]["error"].as_str().unwrap();
        expected.assert_eq(&(shown(error) + "\n"));
        // A write says why, and when to try again.
        let (code, text) = self.post_with("more", "i:1");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &answer["details"]["retryAfterSeconds"]), (503, &5.into()), "{text}");
        let message =
            format!("the posted pods are unknown until the state is open: {error}; nothing was changed");
        assert_eq!(answer["message"], message);
        // A pod that is not known may exist.
        let (code, text) = self.ask("DELETE", "/api/v1/namespaces/default/pods/posted", "");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &answer["message"]), (503, &message.into()), "{text}");
        for path in ["/api/v1/namespaces/default/pods/posted", "/pods/default/posted"] {
            let (code, text) = self.ask("GET", path, "");
            assert!(
                code == 503 && text.contains("\"posted\\\" may be a posted pod"),
                "{path}: {code} {text}"
            );
        }
        let (code, text) = self.ask("GET", "/readyz?verbose", "");
        assert_eq!(code, 503);
        assert!(text.contains(&format!("[-]source-http failed: not synced yet: {error}\n")), "{text}");
        assert!(text.contains("[+]source-file ok\n"), "{text}");
        // It is retried, and logged once.
        wait_for(|| (self.http_source()["failing"]["attempts"].as_u64() > Some(2)).then_some(()));
        let logged = agent.logs("state unavailable");
        assert!(logged.contains(error), "{logged}");
        assert_eq!(agent.stderr.text().matches("state unavailable").count(), 1);
        assert!(fs::read(self.state()).ok() == kept, "the state is as it was, byte for byte");
        agent
    }

    /// Asserts that a running agent opens its state, which is usable again, and has these posted pods.
    fn mends(&self, agent: Process, posted: &[&str]) {
        agent.signal(Signal::HUP);
        agent.logs("state recovered");
        wait_for(|| (self.ask("GET", "/readyz", "").0 == 200).then_some(()));
        let mut pods = [posted, &["web-node1"]].concat();
        assert_eq!(self.pods(), pods);
        assert_eq!(self.http_source()["state"], "synced");
        assert_eq!(self.post("after"), 201);
        pods.insert(0, "after");
        let held = agent.holds("all pods", |held| held.pods.len() == pods.len());
        assert!(!held.heard.iter().any(|update| update.contains("REMOVE")), "{:?}", held.heard);
        agent.signal(Signal::TERM);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
        // The pod of the file is restored, and so are the posted ones.
        fs::remove_dir_all(self.at("manifests")).unwrap();
        let agent = self.start(&[]);
        assert_eq!(self.pods(), pods);
        agent.signal(Signal::TERM);
        agent.ends();
    }

    /// The http source in `/sources`.
    fn http_source(&self) -> Value {
        let list: Value = serde_json::from_str(&self.ask("GET", "/sources", "").1).unwrap();
        let mut sources = list["items"].as_array().unwrap().iter();
        sources.find(|source| source["name"] == "http").unwrap().clone()
    }

    /// Asserts that a start fails with this one line, in which `@` is this directory.
    fn refused(&self, args: &[&str], expected: &Expect) {
        let kept = fs::read(self.state()).ok();
        let (code, log) = Process::start(&mut self.command(args)).ends();
        expected.assert_eq(&(log.replace(self.directory.path().to_str().unwrap(), "@") + "\n"));
        assert_eq!((code, log.lines().count()), (2, 1));
        assert!(fs::read(self.state()).ok() == kept, "the state is as it was, byte for byte");
    }

    /// Asserts that the next start has all pods.
    fn is_whole(&self) {
        let agent = self.start(&[]);
        assert_eq!(self.pods(), ["posted"]);
        agent.signal(Signal::TERM);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
    }

    /// Mounts a file system of this size for the state.
    fn mount(&self, size: &str) {
        fs::create_dir(self.at("state")).unwrap();
        mount(&["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs"], &self.at("state"));
    }

    fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], &self.at("state"));
    }

    /// Fills the file system of the state.
    fn fill(&self) {
        let mut file = fs::File::create(self.at("state").join("others")).unwrap();
        let error = loop {
            if let Err(error) = std::io::Write::write_all(&mut file, &[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.at("state").join("others")).unwrap();
    }
}

fn mount(args: &[&str], at: &Path) {
    assert!(Command::new("mount").args(args).arg(at).status().unwrap().success());
}

#[tokio::test]
async fn a_state_of_a_newer_version_is_an_error() {
    let disk = Disk::default();
    let next: db::Upgrade = |_| Vec::new();
    let state = State::open_with(&disk, &[db::UPGRADES, &[next]].concat()).unwrap();
    state.put(Table::Posted, "a", "1").await;
    state.close().await;
    let node = Node::new();
    fs::create_dir(node.at("state")).unwrap();
    fs::write(node.state(), disk.bytes()).unwrap();
    node.refused(&[], &expect![[r#"
        podmux: @/state/state.redb was written by a newer podmux: format 4, this one supports up to 3; run the newer one
    "#]]);
}

/// Until issue 13 each of these ended the start, and the manifests were not served.
#[test]
fn a_damaged_state_is_left_alone_and_the_other_sources_are_served() {
    let node = Node::with_state();
    let whole = fs::read(node.state()).unwrap();
    let mut damaged = whole.clone();
    // All but the head.
    damaged[4096..].fill(0x55);
    fs::write(node.state(), damaged).unwrap();
    let agent = node.starts_without_state(&expect![[r#"
        @/state/state.redb is damaged: DB corrupted: Primary is corrupted despite 2-phase commit; it is left as it is: restore a copy of it, or move it away to start with an empty state
    "#]]);
    // The operator restores a copy.
    fs::write(node.at("copy"), whole).unwrap();
    fs::rename(node.at("copy"), node.state()).unwrap();
    node.mends(agent, &["posted"]);
}

/// The check of a large file may take long.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_state_that_is_opened_late() {
    let node = Node::new();
    fs::create_dir(node.at("state")).unwrap();
    fs::set_permissions(node.at("state"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(node.state(), "damaged").unwrap();
    let command_line = CommandLine::default()
        .with("node-name", "node1")
        .with("pod-manifest-path", node.at("manifests").to_str().unwrap())
        .with("state-dir", node.at("state").to_str().unwrap())
        .with("listen", "none")
        .with("sink", "jsonl=/dev/null");
    let slow = Arc::new(AtomicU64::new(0));
    let takes = slow.clone();
    let threads = Threads::inline(move || Duration::from_secs(takes.load(Ordering::SeqCst)));
    let host = Host { threads, ..Host::default() };
    let settings = Settings::load(&command_line, &Environment::new(), &host.disk).unwrap();
    let reload = Arc::new({
        let settings = settings.clone();
        move || Ok(settings.clone())
    });
    let crew = Crew::start(&settings, &host, reload, stream::pending()).await.unwrap();
    slow.store(3600, Ordering::SeqCst);
    let stop = CancellationToken::new();
    let stops = async {
        // The state has been opened again since.
        sleep(Duration::from_mins(1)).await;
        stop.cancel();
    };
    let (unfinished, ()) = tokio::join!(crew.run(&stop), stops);
    let unfinished = unfinished.unwrap();
    assert!(!unfinished.contains(&"db".to_owned()), "{unfinished:?}");
}

#[test]
fn a_damaged_state_that_is_moved_away_is_replaced_by_an_empty_one() {
    let node = Node::with_state();
    fs::write(node.state(), "").unwrap();
    let agent = node.starts_without_state(&expect![[r#"
        @/state/state.redb is not a podmux database: it is empty; it is left as it is: move it away, or name another directory with --state-dir
    "#]]);
    fs::rename(node.state(), node.at("damaged")).unwrap();
    node.mends(agent, &[]);
}

#[test]
fn an_agent_whose_state_is_damaged_stops_and_leaves_it_as_it_is() {
    let node = Node::new();
    fs::create_dir(node.at("state")).unwrap();
    fs::write(node.state(), "the file of another program").unwrap();
    let agent = node.starts_without_state(&expect![[r#"
        @/state/state.redb is not a podmux database: it is not a database; it is left as it is: move it away, or name another directory with --state-dir
    "#]]);
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert_eq!(fs::read(node.state()).unwrap(), b"the file of another program");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_source_that_is_not_configured_any_more_are_removed_also_if_the_state_opens_late() {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    for late in [false, true] {
        let node = Node::new();
        let agent = node.start(&["--manifest-url", &web.url]);
        assert_eq!(node.pods(), ["web-node1"]);
        agent.signal(Signal::TERM);
        agent.ends();
        if late {
            fs::rename(node.state(), node.at("kept")).unwrap();
            fs::write(node.state(), "the file of another program").unwrap();
        }
        let agent = Process::start(&mut node.command(&[]));
        agent.logs("listening");
        if late {
            agent.logs("state unavailable");
            fs::rename(node.at("kept"), node.state()).unwrap();
            agent.signal(Signal::HUP);
        }
        wait_for(|| (node.ask("GET", "/readyz", "").0 == 200).then_some(()));
        assert_eq!(node.post("posted"), 201);
        agent.signal(Signal::TERM);
        agent.ends();
        let state = State::open(&node.at("state")).unwrap();
        assert_eq!(state.rows(Table::LastGood), "");
        state.close().await;
    }
}

#[tokio::test]
async fn a_stored_pod_that_cannot_be_decoded_counts_as_a_damaged_state() {
    let node = Node::new();
    fs::write(node.at("manifests").join("web.yaml"), pod("web", "i:1")).unwrap();
    let state = State::open(&node.at("state")).unwrap();
    state.put(Table::Posted, "default/posted", r#"{"seen":"2026-11-21T09:00:00Z","pod":{}}"#).await;
    state.close().await;
    let agent = Process::start(&mut node.command(&["--sink", "jsonl"]));
    agent.holds("the pod of the file", |held| held.pods.len() == 1);
    let log = agent.logs("state unavailable");
    let error = "the stored pod default/posted cannot be read: metadata.name: must be a non-empty string; \
        restore a copy of the state, or move it away to start with an empty one";
    assert!(log.contains(error), "{log}");
    wait_for(|| (http_state(&node) == "failing").then_some(()));
    assert_eq!(node.post("more"), 503);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    let state = State::open(&node.at("state")).unwrap();
    assert!(state.stored.tables[&Table::Posted].contains_key("default/posted"), "nothing is removed");
    state.close().await;
}

#[test]
fn a_state_directory_of_a_running_agent_is_an_error() {
    let node = Node::with_state();
    let agent = node.start(&[]);
    let (code, log) = Process::start(node.command(&[]).env("PODMUX_LISTEN", "none")).ends();
    expect![
        "podmux: another podmux uses the state directory @/state; stop it, or name another with --state-dir"
    ]
    .assert_eq(&log.replace(node.directory.path().to_str().unwrap(), "@"));
    assert_eq!(code, 2);
    agent.signal(Signal::TERM);
    agent.ends();
    node.is_whole();
}

#[test]
fn a_state_directory_of_another_user_is_an_error() {
    if !inside("-U", "bad_starts::a_state_directory_of_another_user_is_an_error") {
        return;
    }
    let node = Node::with_state();
    let mode = |mode| fs::set_permissions(node.at("state"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state; give it and its content to the user that podmux runs as, or name another with --state-dir: Permission denied (os error 13)
    "#]]);
    mode(0o700);
    fs::set_permissions(node.state(), fs::Permissions::from_mode(0o400)).unwrap();
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state/state.redb; give it and its content to the user that podmux runs as, or name another with --state-dir: Permission denied (os error 13)
    "#]]);
    fs::set_permissions(node.state(), fs::Permissions::from_mode(0o600)).unwrap();
    node.is_whole();
}

/// Its owner could write the tokens that the agent accepts.
#[test]
fn root_uses_no_state_directory_that_another_user_can_write() {
    if !geteuid().is_root() {
        return not_tested("a state directory of another user: only root can make one");
    }
    let node = Node::with_state();
    chown(node.at("state"), Some(61003), None).unwrap();
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state: it belongs to the user 61003: run podmux as that user, or name another directory
    "#]]);
    chown(node.at("state"), Some(0), None).unwrap();
    // With the sticky bit they may still make a file before podmux does.
    for mode in [0o777, 0o1777] {
        fs::set_permissions(node.at("state"), fs::Permissions::from_mode(mode)).unwrap();
        node.refused(&[], &expect![[r#"
            podmux: cannot use the state directory: @/state: every user may write to it: forbid that with chmod o-w
        "#]]);
    }
    fs::set_permissions(node.at("state"), fs::Permissions::from_mode(0o700)).unwrap();
    node.is_whole();
}

#[test]
fn with_a_read_only_file_system_the_other_sources_are_served() {
    if !inside("-Urm", "bad_starts::with_a_read_only_file_system_the_other_sources_are_served") {
        return;
    }
    let node = Node::new();
    node.mount("9m");
    node.remount("ro");
    let agent = node.starts_without_state(&expect![[r#"
        cannot use the state directory: @/state; mount it writable, or name another with --state-dir: Read-only file system (os error 30)
    "#]]);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    node.remount("rw");
    node.run_once(Signal::KILL);
    node.remount("ro");
    let agent = node.starts_without_state(&expect![[r#"
        cannot use the state directory: @/state; mount it writable, or name another with --state-dir: Read-only file system (os error 30)
    "#]]);
    node.remount("rw");
    node.mends(agent, &["posted"]);
}

#[test]
fn with_a_full_disk_without_state_the_other_sources_are_served() {
    if !inside("-Urm", "bad_starts::with_a_full_disk_without_state_the_other_sources_are_served") {
        return;
    }
    let node = Node::new();
    node.mount("4m");
    node.fill();
    let agent = node.starts_without_state(&expect![[r#"
        cannot use the state directory: @/state; free some space, or name another with --state-dir: No space left on device (os error 28)
    "#]]);
    node.make_room();
    node.mends(agent, &[]);
}

#[test]
fn with_a_full_disk_all_stored_pods_are_still_published() {
    if !inside("-Urm", "bad_starts::with_a_full_disk_all_stored_pods_are_still_published") {
        return;
    }
    for end in [Signal::TERM, Signal::KILL] {
        let node = Node::new();
        node.mount("4m");
        fs::write(node.at("manifests").join("web.yaml"), pod("web", "i:1")).unwrap();
        node.run_once(end);
        node.fill();
        let out = node.at("updates.jsonl");
        let sink = format!("jsonl={}", out.display());
        let agent = node.start(&["--sink", "jsonl", "--sink", &sink, "--max-posted-pods", "5000"]);
        agent.holds("both pods", |held| held.pods.len() == 2);
        // A sink with durable numbers receives them too: the disk has space for the numbers.
        let both = |text: &String| Replica::of(text).pods.len() == 2;
        wait_for(|| fs::read_to_string(&out).ok().filter(|text| text.ends_with('\n')).filter(both));
        assert_eq!(node.pods(), ["posted", "web-node1"]);
        let mut stored = 0;
        let refusal = loop {
            match node.post_with(&format!("more-{stored:03}"), &"i".repeat(200)) {
                (201, _) => stored += 1,
                refused => break refused,
            }
            assert!(stored < 4_000, "4 MB hold no 4,000 pods");
        };
        assert_eq!(refusal.0, 507, "{}", refusal.1);
        assert!(refusal.1.contains("free disk space for the state directory"), "{}", refusal.1);
        assert_eq!(node.pods().len(), 2 + stored);
        agent.signal(Signal::KILL);
        agent.ends();

        // After a restart with a full disk all acknowledged pods are present.
        let agent = node.start(&[]);
        assert_eq!(node.pods().len(), 2 + stored);
        agent.signal(Signal::TERM);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
        assert!(log.ends_with("stopped"), "the end does not wait for space:\n{log}");

        node.make_room();
        // On a quick machine the disk holds more than the default quota.
        let agent = node.start(&["--max-posted-pods", "5000"]);
        assert_eq!(node.post("at-last"), 201);
        assert_eq!(node.pods().len(), 3 + stored);
        agent.signal(Signal::TERM);
        agent.ends();
    }
}

/// Until issue 13 each of these ended the start, and the manifests were not served.
#[test]
fn an_address_that_is_in_use_or_missing_is_retried_and_everything_else_is_served() {
    let node = Node::with_state();
    // No other test uses this address of loopback. The other one is for documentation: no machine has it.
    let other = TcpListener::bind("127.14.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let (certificate, key) = Authority::new(node.directory.path(), "ca").server_files("localhost");
    let token = node.at("token");
    fs::write(&token, "s3cret-token").unwrap();
    let mut command = node.command(&["--token-file", token.to_str().unwrap()]);
    command.env("PODMUX_TLS_CERT_FILE", certificate).env("PODMUX_TLS_PRIVATE_KEY_FILE", key);
    command.env("PODMUX_LISTEN", format!("unix:{},{address}", node.at("podmux.sock").display()));
    let agent = Process::start(&mut command);
    let log = agent.logs("address unavailable");
    let error = format!(
        "cannot listen on {address}: address in use (is another podmux running? choose another with --listen)"
    );
    assert!(log.contains(&error), "{log}");
    wait_for(|| (http_state(&node) == "failing").then_some(()));
    assert_eq!((node.pods(), node.post("more")), (vec!["posted".to_owned()], 201));
    assert_eq!(node.http_source()["failing"]["error"], error);
    let ready = node.ask("GET", "/readyz?verbose", "");
    assert_eq!(ready.0, 200);
    assert!(ready.1.contains(&format!("[+]source-http ok: failing: {error}\n")), "{}", ready.1);
    let (_, credentials) = node.ask("GET", "/credentials", "");
    assert!(credentials.contains(&format!("https://{address}")), "{credentials}");
    drop(other);
    agent.logs(&format!("listening address={address}"));
    wait_for(|| (http_state(&node) == "synced").then_some(()));
    std::net::TcpStream::connect(address).unwrap();
    assert_eq!(agent.stderr.text().matches("address unavailable").count(), 1);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);

    // Without any address the manifests are still served, and it stops as usual.
    fs::write(node.at("manifests").join("web.yaml"), pod("web", "i:1")).unwrap();
    let agent = Process::start(command.args(["--sink", "jsonl"]).env("PODMUX_LISTEN", "192.0.2.1:10240"));
    agent.holds("all pods", |held| held.pods.len() == 3);
    let log = agent.logs("address unavailable");
    assert!(log.contains("no interface of this machine has this address"), "{log}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

fn http_state(node: &Node) -> String {
    Connection::unix(&node.at("podmux.sock"))
        .map_or_else(|_| String::new(), |_| node.http_source()["state"].as_str().unwrap().to_owned())
}

/// A reader may start later than the agent, and another one after it.
#[test]
fn a_missing_reader_is_waited_for() {
    let node = Node::with_state();
    let pipe = node.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let sink = format!("jsonl={}", pipe.display());
    let agent = Process::start(&mut node.command(&["--sink", &sink]));
    let log = agent.logs("sink delivery failed");
    let log = log.replace(pipe.to_str().unwrap(), "PIPE");
    let (_, error) = log.split_once("error=").unwrap();
    expect![[r#""the named pipe PIPE has no reader (start its reader)""#]].assert_eq(error);
    // Opening waits for the writer, which opens the pipe at its next attempt.
    let begins = || {
        let mut reader = BufReader::new(fs::File::open(&pipe).unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(r#""op":"SET""#) && line.contains(r#""run":"#), "{line}");
        agent.logs("sink recovered");
    };
    begins();
    agent.logs("the reader of the named pipe or terminal has gone");
    begins();
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

/// Nor does it acknowledge a deletion.
#[test]
fn a_reader_that_has_gone_has_no_pods() {
    let node = Node::with_state();
    let pipe = node.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let agent = node.start(&["--sink", &format!("jsonl={}", pipe.display())]);
    let behind = |count: u64| {
        let is_so = || {
            let sinks: Value = serde_json::from_str(&node.ask("GET", "/sinks", "").1).unwrap();
            (sinks["items"][0]["podsBehind"] == count).then_some(())
        };
        wait_for(is_so);
    };
    behind(1);
    let reader = fs::File::open(&pipe).unwrap();
    behind(0);
    drop(reader);
    agent.logs("the reader of the named pipe or terminal has gone");
    behind(1);
    let deletion = "/api/v1/namespaces/default/pods/posted?gracePeriodSeconds=3600";
    assert_eq!(node.ask("DELETE", deletion, "").0, 200);
    assert_eq!(node.pods(), ["posted"]);
    let _reader = fs::File::open(&pipe).unwrap();
    wait_for(|| node.pods().is_empty().then_some(()));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

#[test]
fn an_unreadable_token_is_an_error() {
    if !inside("-U", "bad_starts::an_unreadable_token_is_an_error") {
        return;
    }
    let node = Node::with_state();
    let token = node.at("token");
    let args = ["--token-file", token.to_str().unwrap()];
    node.refused(&args, &expect![[r#"
        podmux: cannot read the token file @/token (does it exist, and may podmux read it?): No such file or directory (os error 2)
    "#]]);
    fs::write(&token, "s3cret-token").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o000)).unwrap();
    node.refused(&args, &expect![[r#"
        podmux: cannot read the token file @/token (does it exist, and may podmux read it?): Permission denied (os error 13)
    "#]]);
    fs::remove_file(&token).unwrap();
    fs::create_dir(&token).unwrap();
    node.refused(&args, &expect![[r#"
        podmux: cannot read the token file @/token (does it exist, and may podmux read it?): Is a directory (os error 21)
    "#]]);
    node.is_whole();
}

#[test]
fn a_certificate_without_its_key_is_an_error() {
    if !inside("-U", "bad_starts::a_certificate_without_its_key_is_an_error") {
        return;
    }
    let node = Node::with_state();
    let (certificate, key) = Authority::new(node.directory.path(), "ca").server_files("localhost");
    let args =
        ["--tls-cert-file", certificate.to_str().unwrap(), "--tls-private-key-file", key.to_str().unwrap()];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o000)).unwrap();
    node.refused(&args, &expect![[r#"
        podmux: cannot read the TLS private key @/localhost.key (does it exist, and may podmux read it?): Permission denied (os error 13)
    "#]]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "no key").unwrap();
    node.refused(&args, &expect![[r#"
        podmux: TLS private key @/localhost.key: the file has no private key in PEM (encrypted keys are not supported)
    "#]]);
    node.is_whole();
}

#[test]
fn an_invalid_configuration_is_an_error() {
    let node = Node::with_state();
    let config = node.at("config.yaml");
    let args = ["--config", config.to_str().unwrap()];
    node.refused(
        &args,
        &expect![[r#"
            podmux: --config @/config.yaml: cannot be read; does it exist, and may this process read it?: No such file or directory (os error 2)
        "#]],
    );
    fs::write(&config, "podManifestPaths: /etc\n").unwrap();
    node.refused(&args, &expect![[r#"
        podmux: @/config.yaml:1:1: podManifestPaths: unknown field; the fields are podManifestPath, fileCheckFrequency, onInvalidManifest, manifestUrl, manifestUrlHeader, manifestUrlCaFile, manifestUrlClientCertFile, manifestUrlClientKeyFile, manifestUrlSha256, httpCheckFrequency, kubeconfig, podSecurity, nodeName, listen, maxPostedPods, maxPostedBytes, anonymousAuth, tokenFile, tlsCertFile, tlsPrivateKeyFile, clientCaFile, sink, sinkConcurrency, notify, stateDir, shutdownGrace, logFormat, verbose
    "#]]);
    node.is_whole();
}

/// A node that joins a cluster may be given its kubeconfig later: that is no bad start.
#[test]
fn a_kubeconfig_that_is_missing_is_waited_for() {
    let node = Node::with_state();
    let kubeconfig = node.at("kubeconfig");
    let agent = Process::start(&mut node.command(&["--kubeconfig", kubeconfig.to_str().unwrap()]));
    agent.logs("listening");
    let line = agent.logs("the kubeconfig");
    assert!(line.contains(kubeconfig.to_str().unwrap()) && line.contains("create it"), "{line}");
    wait_for(|| (node.pods() == ["posted"]).then_some(()));
    assert_eq!(node.ask("GET", "/readyz", "").0, 503, "what the API server wants is not known");
    agent.signal(Signal::TERM);
    agent.ends();
}
