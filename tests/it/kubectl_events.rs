//! The real kubectl reads the events of the real agent: the same commands on the agent and on a real kube-apiserver
//! with the same events.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::SystemTime,
};

use expect_test::expect;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    exec,
    kubectl::is_age,
    kubernetes::{Apiserver, not_tested},
    process::{Lines, Process, podmux, wait_for},
};

/// The namespace of the pods, which no other test uses on the apiserver.
const NAMESPACE: &str = "kubectl-events";

/// The script of the runtime's program. The first start of the pod `crash-node1` fails.
const SCRIPT: &str = r#"[ "$PODMUX_OP $PODMUX_POD_NAME" = "ADD crash-node1" ] || exit 0
[ -e "$HERE/crashed" ] && exit 0
: > "$HERE/crashed"
exit 3
"#;

struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        Self { directory: exec::directory(SCRIPT) }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at("new"), text).unwrap();
        fs::rename(self.at("new"), self.at("manifests").join(name)).unwrap();
    }

    fn write_pod(&self, name: &str) {
        self.write(&format!("{name}.yaml"), &pod(name));
    }

    fn start(&self) -> (Process, Client) {
        let text = |name: &str| self.at(name).display().to_string();
        let mut command =
            podmux(&["run", "--node-name", "node1", "--listen", "127.0.0.1:0", "--anonymous-auth"]);
        command.args(["--pod-manifest-path", &text("manifests"), "--state-dir", &text("state")]);
        command.args(["--sink", &format!("exec={}", text("program"))]);
        command.env("RUNTIME_DIRECTORY", self.at("run"));
        let agent = Process::start(command.stdout(Stdio::null()));
        let line = agent.logs("listening");
        let (_, address) = line.rsplit_once("address=").unwrap();
        (agent, Client { args: vec![format!("--server=http://{address}")] })
    }
}

fn pod(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    })
    .to_string()
}

/// A client of one of the two servers.
struct Client {
    args: Vec<String>,
}

impl Client {
    fn of(apiserver: &Apiserver) -> Self {
        let at = &apiserver.at;
        let args = [
            format!("--server={}", at.url),
            format!("--token={}", at.token),
            format!("--certificate-authority={}", at.ca.display()),
        ];
        Self { args: args.into() }
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.args).args(["-n", NAMESPACE]).args(args.split_whitespace());
        // No configuration of this machine.
        command.env("KUBECONFIG", "/dev/null").env("HOME", "/nonexistent");
        command
    }

    fn run(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    fn output(&self, args: &str) -> String {
        String::from_utf8(self.run(args).stdout).unwrap()
    }

    /// The events as JSON.
    fn events(&self) -> Vec<Value> {
        let list: Value = serde_json::from_slice(&self.run("get events -o json").stdout).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until there are events with these reasons about a pod.
    fn wait_for(&self, name: &str, reasons: &[&str]) {
        wait_for(|| {
            let events = self.events();
            let of_pod = events.iter().filter(|event| event["involvedObject"]["name"] == name);
            let found: Vec<&Value> = of_pod.map(|event| &event["reason"]).collect();
            reasons.iter().all(|reason| found.iter().any(|found| *found == reason)).then_some(())
        });
    }

    /// The output and the exit code, as far as they do not depend on the time.
    fn transcript(&self, args: &str, is_sorted: bool) -> String {
        let output = self.run(args);
        let text = alike(&String::from_utf8([output.stdout, output.stderr].concat()).unwrap());
        let mut lines: Vec<&str> = text.lines().collect();
        if is_sorted && !lines.is_empty() {
            lines[1..].sort_unstable();
        }
        format!("$ kubectl {args}\n{}\nexit {:?}\n", lines.join("\n"), output.status.code())
    }
}

/// Replaces ages and what the names of events end with.
fn alike(text: &str) -> String {
    let word = |word: &str| {
        let bare = word.trim_end_matches(')');
        let is_name = word
            .rsplit_once('.')
            .is_some_and(|(_, number)| number.len() == 13 && u64::from_str_radix(number, 16).is_ok());
        match word.rsplit_once('.') {
            _ if is_age(bare) => word.replace(bare, "AGE"),
            Some((name, _)) if is_name => format!("{name}.ID"),
            _ => word.to_owned(),
        }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
}

/// Creates the same events at the apiserver.
fn copy(events: &[Value], theirs: &Client, directory: &Path) {
    let created = theirs.run(&format!("create namespace {NAMESPACE}"));
    assert!(created.status.success(), "{created:?}");
    let mut items = events.to_vec();
    for item in &mut items {
        let metadata = item["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| matches!(field.as_str(), "name" | "namespace"));
    }
    let path = directory.join("events.json");
    fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    let created = theirs.run(&format!("create -f {}", path.display()));
    assert!(created.status.success(), "{created:?}");
}

fn has_kubectl() -> bool {
    let is_there = Command::new("kubectl").args(["version", "--client"]).output().is_ok();
    if !is_there {
        not_tested("kubectl is not installed");
    }
    is_there
}

#[test]
#[expect(clippy::too_many_lines, reason = "one agent, and the commands with their output")]
fn kubectl_shows_the_events_of_pods_that_start_fail_conflict_and_are_rejected() {
    if !has_kubectl() {
        return;
    }
    let node = Node::new();
    let (_agent, ours) = node.start();
    fs::write(node.at("posted"), pod("late-node1")).unwrap();
    let created = ours.run(&format!("create --validate=false -f {}", node.at("posted").display()));
    assert!(created.status.success(), "{created:?}");
    ours.wait_for("late-node1", &["Started"]);
    for name in ["web", "crash", "late"] {
        node.write_pod(name);
    }
    node.write("broken.yaml", "kind: [");
    ours.wait_for("late-node1", &["Started", "Conflict", "Killing"]);
    ours.wait_for("crash-node1", &["FailedSync", "Started"]);
    ours.wait_for("web-node1", &["Started"]);
    // The second pod of the name has started.
    wait_for(|| {
        let started = ours.events().into_iter().filter(|event| event["reason"] == "Started");
        (started.filter(|event| event["involvedObject"]["name"] == "late-node1").count() == 2).then_some(())
    });
    // A file that is rejected later belongs to its pod.
    node.write("web.yaml", "kind: [");
    ours.wait_for("web-node1", &["Started", "FailedValidation"]);

    let path = node.directory.path().display().to_string();
    let shown = |text: String| {
        let line = |line: &str| line.split("; its output is in ").next().unwrap().to_owned() + "\n";
        text.replace(&path, "/DIR").lines().map(line).collect::<String>()
    };
    let transcript = |args: &str| shown(ours.transcript(args, true));
    expect![[r#"
        $ kubectl get events
        LAST SEEN TYPE REASON OBJECT MESSAGE
        AGE Normal Killing pod/late-node1 Stopping pod late-node1
        AGE Normal Started pod/crash-node1 Container started
        AGE Normal Started pod/late-node1 Container started
        AGE Normal Started pod/late-node1 Container started
        AGE Normal Started pod/web-node1 Container started
        AGE Warning Conflict pod/late-node1 rejected kubectl-events/late-node1 of source http: a pod of source file has the same name; rename one of them
        AGE Warning FailedSync pod/crash-node1 error syncing pod: ExecFailed: /DIR/program ADD failed: exit status: 3
        AGE Warning FailedValidation pod/web-node1 rejected /DIR/manifests/web.yaml of source file: 1:7: unclosed bracket '['
        exit Some(0)
    "#]].assert_eq(&transcript("get events"));
    expect![[r#"
        $ kubectl get events -n default
        LAST SEEN TYPE REASON OBJECT MESSAGE
        AGE Warning FailedValidation node/node1 rejected /DIR/manifests/broken.yaml of source file: 1:7: unclosed bracket '['
        exit Some(0)
    "#]].assert_eq(&transcript("get events -n default"));
    expect![[r#"
        $ kubectl events --for pod/web-node1
        LAST SEEN TYPE REASON OBJECT MESSAGE
        AGE Normal Started Pod/web-node1 Container started
        AGE Warning FailedValidation Pod/web-node1 rejected /DIR/manifests/web.yaml of source file: 1:7: unclosed bracket '['
        exit Some(0)
    "#]].assert_eq(&transcript("events --for pod/web-node1"));
    let described = shown(ours.transcript("describe pod web-node1", false));
    let (_, described) = described.split_once("Events:").unwrap();
    expect![[r#"

        Type Reason Age From Message
        ---- ------ ---- ---- -------
        Normal Started AGE podmux Container started
        Warning FailedValidation AGE podmux rejected /DIR/manifests/web.yaml of source file: 1:7: unclosed bracket '['
        exit Some(0)
    "#]].assert_eq(described);
    // kubectl asks for those of a node twice: by its UID, and by its name.
    let described = shown(ours.transcript("describe node node1", false));
    assert_eq!(described.matches("rejected /DIR/manifests/broken.yaml").count(), 1, "{described}");
    let printed = podmux(&["get", "events", "-n", NAMESPACE, "--server", &ours.args[0]["--server=".len()..]]);
    let printed = { printed }.output().unwrap();
    assert_eq!(alike(&String::from_utf8(printed.stdout).unwrap()), alike(&ours.output("get events")));

    if let Some(apiserver) = Apiserver::shared() {
        let theirs = Client::of(apiserver);
        copy(&ours.events(), &theirs, node.directory.path());
        for (command, is_sorted) in [
            ("get events", false),
            // The short name is ambiguous at the apiserver, which has events.k8s.io too.
            ("get event -o wide", false),
            ("get events --no-headers", false),
            ("get events --sort-by=.metadata.name --chunk-size=2", false),
            ("get events --field-selector reason=Started", false),
            ("get events --field-selector involvedObject.name=web-node1,type!=Normal", false),
            ("get events --field-selector involvedObject.fieldPath=spec.containers{c}", false),
            ("get events -l app=x", false),
            ("get events -o name", false),
            (
                "get events -o custom-columns=R:.reason,F:.source.component,O:.involvedObject.kind,N:.count",
                false,
            ),
            ("get events --show-labels", false),
            ("get event none", false),
            ("get events -w --request-timeout=3s --output-watch-events", false),
            ("events", true),
            ("events --for pod/web-node1", true),
            ("events --for pod/none", true),
            ("events --types=Warning --no-headers", true),
            ("events -A --for pod/crash-node1", true),
        ] {
            assert_eq!(theirs.transcript(command, is_sorted), ours.transcript(command, is_sorted));
        }
        let codes =
            [&theirs, &ours].map(|side| side.run("get events --field-selector bogus=1").status.code());
        assert_eq!(codes, [Some(1); 2], "the words are others");
    }

    let watches = ["get events -w", "events -w --for pod/more-node1"].map(|args| {
        let mut child = ours.command(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Lines::default();
        lines.read(child.stdout.take().unwrap());
        (child, lines)
    });
    watches[0].1.wait_for("the events so far", |lines| (lines.len() > 5).then_some(()));
    node.write_pod("more");
    for (mut child, lines) in watches {
        let is_started = |line: &String| line.contains("Started") && line.contains("more-node1");
        lines.wait_for("the event", |lines| lines.iter().any(is_started).then_some(()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn events_begin_again_after_a_restart_which_shows_what_was_restored() {
    if !has_kubectl() {
        return;
    }
    let node = Node::new();
    node.write_pod("web");
    let (agent, ours) = node.start();
    ours.wait_for("web-node1", &["Started"]);
    // The start of a container has whole seconds, so one of the second in which an agent starts is reported by it.
    let seconds = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let seen = seconds();
    wait_for(|| (seconds() > seen).then_some(()));
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(!log.contains("task aborted"), "{log}");
    // The file source cannot read its path, so it stays restored. Whether it syncs before the events are compared
    // would be a race.
    fs::rename(node.at("manifests"), node.at("elsewhere")).unwrap();
    symlink(node.at("manifests"), node.at("manifests")).unwrap();
    let (_agent, ours) = node.start();
    ours.wait_for("web-node1", &["Restored"]);
    expect![[r#"
        $ kubectl get events
        LAST SEEN TYPE REASON OBJECT MESSAGE
        AGE Normal Restored pod/web-node1 restored from the state directory: source file has not synced
        exit Some(0)
    "#]]
    .assert_eq(&ours.transcript("get events", true));
    let path = node.directory.path().display().to_string();
    wait_for(|| ours.output("get events -n default").contains("SourceFailing").then_some(()));
    expect![[r#"
        $ kubectl get events -n default
        LAST SEEN TYPE REASON OBJECT MESSAGE
        AGE Warning SourceFailing node/node1 source file is failing: Too many levels of symbolic links (os error 40)
        exit Some(0)
    "#]].assert_eq(&ours.transcript("get events -n default", true).replace(&path, "/DIR"));
}
