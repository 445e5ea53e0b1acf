//! The real binary with a runtime: graceful deletion as a whole, the sinks beside it, its stop, and the
//! status for the service manager.

use std::{fs, path::PathBuf, process::Command};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    apiserver::{self, ApiServer},
    exec,
    files::pod,
    kubeconfig::config,
    notify::ManagerDouble,
    plain::Connection,
    process::{Process, podmux, wait_for},
    stream::Replica,
    web::{Reply, Web},
};

/// The script of the runtime's program. It writes what it is asked to do into a file. The pod `bad-node1` never
/// starts, and while a file named `hold` exists, each UPDATE and DELETE waits.
const SCRIPT: &str = r#"echo "$PODMUX_OP $PODMUX_POD_NAME" >> "$HERE/calls"
[ "$PODMUX_POD_NAME" = bad-node1 ] && [ "$PODMUX_OP" = ADD ] && exit 3
case "$PODMUX_OP" in UPDATE|DELETE) while [ -e "$HERE/hold" ]; do sleep 0.01; done;; esac
exit 0
"#;
const WEB: &str = "/api/v1/namespaces/default/pods/web";

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

    fn command(&self, sinks: &[&str]) -> Command {
        let text = |name: &str| self.at(name).display().to_string();
        let mut command = podmux(&["run", "--node-name", "node1"]);
        command.args(["--pod-manifest-path", &text("manifests"), "--state-dir", &text("state")]);
        command.args(["--sink", &format!("exec={}", text("program"))]);
        command.args(sinks.iter().flat_map(|sink| ["--sink", sink]));
        command.env("RUNTIME_DIRECTORY", self.at("run"));
        command.env("PODMUX_LISTEN", format!("unix:{}", text("socket")));
        command
    }

    /// Starts an agent and waits until it answers.
    fn start(&self, sinks: &[&str]) -> Process {
        let agent = Process::start(&mut self.command(sinks));
        agent.logs("started");
        wait_for(|| (self.ask("GET", "/readyz", &Value::Null).0 == 200).then_some(()));
        agent
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut connection = wait_for(|| Connection::unix(&self.at("socket")).ok());
        let answer = connection.ask(method, path, body.as_bytes()).unwrap();
        (answer.code, serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.at("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// Waits until these are all calls of the program so far.
    fn called(&self, expected: &[&str]) {
        wait_for(|| (self.calls() == expected).then_some(()));
    }
}

fn web() -> Value {
    let containers = json!([{"name": "c", "image": "i:1"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": containers}})
}

fn ends(agent: Process) -> String {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(!log.contains("task aborted"), "{log}");
    log
}

/// The ops of a stream that concern the pod.
fn ops<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<String> {
    let updates = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_web = updates.filter(|update| {
        update["pods"].as_array().unwrap().iter().any(|pod| pod["metadata"]["name"] == "web")
    });
    of_web.map(|update| update["op"].as_str().unwrap().to_owned()).collect()
}

/// Waits until each stream has an update of the pod with this op. A sink that is busy until the next change would
/// receive both as one difference.
fn all_have(streams: &[&dyn Fn() -> String], op: &str) {
    for read in streams {
        wait_for(|| ops(read().lines()).iter().any(|of_web| of_web == op).then_some(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_posted_pod_runs_and_its_deletion_ends_when_the_runtime_no_longer_has_it() {
    let node = Node::new();
    let receiver = Web::start(Reply::ok("")).await;
    let (jsonl, webhook) =
        (format!("jsonl={}", node.at("updates").display()), format!("webhook={}", receiver.url));
    let agent = node.start(&[&jsonl, &webhook]);
    let written = || {
        let text = fs::read_to_string(node.at("updates")).unwrap_or_default();
        // The last line may be in writing.
        text.rsplit_once('\n').map(|(whole, _)| whole.to_owned()).unwrap_or_default()
    };
    let posted =
        || receiver.seen().iter().map(|seen| str::from_utf8(&seen.body).unwrap()).collect::<String>();
    let streams = [&written as &dyn Fn() -> String, &posted];
    for read in streams {
        // Otherwise the pod may be in the SET of its source, with which each of these streams begins.
        wait_for(|| read().contains(r#""op":"SET","source":"http""#).then_some(()));
    }
    let (code, created) = node.ask("POST", "/api/v1/namespaces/default/pods", &web());
    assert_eq!(code, 201, "{created}");
    node.called(&["ADD web"]);
    let status = || node.ask("GET", WEB, &Value::Null).1["status"].clone();
    wait_for(|| (status()["phase"] == "Running").then_some(()));
    assert_eq!(status()["containerStatuses"][0]["ready"], true);
    assert_eq!((&status()["observedGeneration"], &status()["qosClass"]), (&json!(1), &json!("BestEffort")));

    all_have(&streams, "ADD");
    fs::write(node.at("hold"), "").unwrap();
    let mut changed = created.clone();
    changed["spec"]["containers"][0]["image"] = "i:2".into();
    let (code, changed) = node.ask("PUT", WEB, &changed);
    assert_eq!((code, &changed["metadata"]["generation"]), (200, &json!(2)), "{changed}");
    node.called(&["ADD web", "UPDATE web"]);
    let seen = status();
    assert_eq!(
        (&seen["observedGeneration"], &seen["conditions"][1]["observedGeneration"]),
        (&json!(1), &json!(1))
    );
    fs::remove_file(node.at("hold")).unwrap();
    wait_for(|| (status()["observedGeneration"] == 2).then_some(()));
    assert_eq!(status()["conditions"][1]["observedGeneration"], 2);

    all_have(&streams, "UPDATE");
    fs::write(node.at("hold"), "").unwrap();
    let (code, deleted) = node.ask("DELETE", WEB, &json!({"gracePeriodSeconds": 1}));
    assert_eq!(code, 200, "{deleted}");
    node.called(&["ADD web", "UPDATE web", "DELETE web"]);
    let (code, read) = node.ask("GET", WEB, &Value::Null);
    assert_eq!((code, &read["metadata"]["deletionGracePeriodSeconds"]), (200, &1.into()));
    assert_eq!(read["metadata"]["uid"], created["metadata"]["uid"]);
    let (code, refused) = node.ask("POST", "/api/v1/namespaces/default/pods", &web());
    assert_eq!((code, &refused["reason"]), (409, &"AlreadyExists".into()), "{refused}");
    for path in [WEB, "/pods"] {
        let (code, refused) = node.ask("PUT", path, &web());
        assert_eq!((code, &refused["reason"]), (409, &"Conflict".into()), "{path}: {refused}");
    }
    // The sinks beside it have acknowledged the DELETE meanwhile, and the pod stays.
    all_have(&streams, "DELETE");
    assert_eq!(node.ask("GET", WEB, &Value::Null).0, 200);

    fs::remove_file(node.at("hold")).unwrap();
    wait_for(|| (node.ask("GET", WEB, &Value::Null).0 == 404).then_some(()));
    assert_eq!(node.calls(), ["ADD web", "UPDATE web", "DELETE web", "REMOVE web"]);
    all_have(&streams, "REMOVE");
    for read in streams {
        assert_eq!(ops(read().lines()), ["ADD", "UPDATE", "DELETE", "REMOVE"]);
        let mut replica = Replica::default();
        read().lines().for_each(|line| replica.take_line(line));
        assert!(replica.pods.is_empty());
    }
    // A webhook has acknowledged a little after its receiver has the body.
    wait_for(|| {
        let (_, list) = node.ask("GET", "/sinks", &Value::Null);
        let mut sinks = list["items"].as_array().unwrap().iter();
        (sinks.len() == 3 && sinks.all(|sink| sink["state"] == "current")).then_some(())
    });
    ends(agent);
}

#[test]
fn a_stop_and_a_new_agent_leave_the_pods_running_and_another_agent_is_refused() {
    let node = Node::new();
    fs::write(node.at("manifests/db.yaml"), pod("db", "i:1")).unwrap();
    let agent = node.start(&[]);
    assert_eq!(node.ask("POST", "/api/v1/namespaces/default/pods", &web()).0, 201);
    wait_for(|| (node.calls().len() == 2).then_some(()));

    // With the same state directory.
    let (code, log) = Process::start(node.command(&[]).env("PODMUX_LISTEN", "none")).ends();
    assert_eq!((code, log.lines().count()), (2, 1), "{log}");
    // With the same path: the state of the first agent was moved away.
    fs::rename(node.at("state"), node.at("moved")).unwrap();
    let (code, log) = Process::start(node.command(&[]).env("PODMUX_LISTEN", "none")).ends();
    assert_eq!((code, log.lines().count()), (2, 1), "{log}");
    assert!(log.contains("another podmux runs the pods of this instance"), "{log}");
    fs::remove_dir_all(node.at("state")).unwrap();
    fs::rename(node.at("moved"), node.at("state")).unwrap();

    ends(agent);
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["ADD db-node1", "ADD web"], "a stop ends no pod");
    // The next agent adopts what runs. The change after it shows that it has looked.
    let agent = node.start(&[]);
    fs::write(node.at("manifests/new.yaml"), pod("new", "i:1")).unwrap();
    wait_for(|| (node.calls().len() > 2).then_some(()));
    assert_eq!(node.calls()[2..], ["ADD new-node1"]);
    ends(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_ended_for_its_api_server_does_not_run() {
    let (node, server) = (Node::new(), ApiServer::start(None));
    fs::write(node.at("kubeconfig"), config(&json!({"server": server.url}), &json!({})).to_string()).unwrap();
    // A manifest says nothing of the status.
    fs::write(node.at("manifests/db.yaml"), pod("db", "i:1") + "status: {phase: Failed}\n").unwrap();
    let put = |name: &str, status: Value| {
        let mut pod = apiserver::pod(name, "i:1");
        (pod["spec"]["nodeName"], pod["status"]) = ("node1".into(), status);
        server.put(pod);
    };
    put("job", json!({"phase": "Succeeded"}));
    put("web", json!({"phase": "Running", "reason": "Before", "message": "before"}));
    let start = || {
        let mut command = node.command(&[]);
        let agent = Process::start(command.arg("--kubeconfig").arg(node.at("kubeconfig")));
        agent.logs("started");
        agent
    };
    let shown = |name: &str| {
        let (_, pod) = node.ask("GET", &format!("/api/v1/namespaces/default/pods/{name}"), &Value::Null);
        ["phase", "reason", "message"]
            .map(|field| pod["status"][field].as_str().unwrap_or_default().to_owned())
    };
    let why = "its API server says that it has ended, so it is not run here";
    let agent = start();
    wait_for(|| (shown("web") == ["Running", "", ""]).then_some(()));
    wait_for(|| (shown("job") == ["Succeeded", "", why]).then_some(()));
    wait_for(|| (node.calls().len() == 2).then_some(()));
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["ADD db-node1", "ADD web"]);
    let evicted = ["Failed", "Evicted", "The node was low on memory."];
    put("web", json!({"phase": evicted[0], "reason": evicted[1], "message": evicted[2]}));
    wait_for(|| (node.calls().len() == 3).then_some(()));
    assert_eq!(node.calls()[2..], ["REMOVE web"]);
    wait_for(|| (shown("web") == evicted).then_some(()));
    let sinks = || node.ask("GET", "/sinks", &Value::Null).1["items"][0]["state"].clone();
    wait_for(|| (sinks() == "current").then_some(()));
    ends(agent);

    // It is restored as it was, and another pod runs.
    server.down();
    let agent = start();
    fs::write(node.at("manifests/new.yaml"), pod("new", "i:1")).unwrap();
    wait_for(|| (node.calls().len() > 3).then_some(()));
    assert_eq!(node.calls()[3..], ["ADD new-node1"]);
    assert_eq!(
        (shown("web"), shown("job")),
        (evicted.map(str::to_owned), ["Succeeded", "", why].map(str::to_owned))
    );
    ends(agent);
}

/// Also one that no runtime uses: the program may.
#[test]
fn each_change_of_a_pod_reaches_the_program() {
    let node = Node::new();
    let write = |annotation: &str| {
        let pod =
            pod("db", "i:1").replace("name: db", &format!("name: db\n  annotations: {{a: {annotation}}}"));
        fs::write(node.at("staged"), pod).unwrap();
        fs::rename(node.at("staged"), node.at("manifests/db.yaml")).unwrap();
    };
    write("b");
    let agent = node.start(&[]);
    node.called(&["ADD db-node1"]);
    write("c");
    node.called(&["ADD db-node1", "UPDATE db-node1"]);
    write("d");
    node.called(&["ADD db-node1", "UPDATE db-node1", "UPDATE db-node1"]);
    ends(agent);
}

#[test]
fn a_pod_that_fails_is_in_the_status_for_the_service_manager() {
    let node = Node::new();
    let mut manager = ManagerDouble::new();
    let agent = Process::start(manager.starts(&mut node.command(&[])));
    manager.receives("READY=1");
    fs::write(node.at("staged"), pod("bad", "i:1").replace("name: bad", "name: bad\n  uid: '1'")).unwrap();
    fs::rename(node.at("staged"), node.at("manifests/bad.yaml")).unwrap();
    let line = manager.receives("STATUS=1 pod; 1 pod failing in exec=…");
    let expected =
        format!("1 pod failing in exec={}, default/bad-node1 since 20", node.at("program").display());
    assert!(line.contains(&expected) && line.contains("Z: ExecFailed: "), "{line}");
    assert!(line.contains("exit status: 3"), "{line}");
    fs::remove_file(node.at("manifests/bad.yaml")).unwrap();
    manager.receives("STATUS=0 pods");
    ends(agent);
}

/// A runtime of a library user, without the agent.
#[test]
fn the_example_of_a_custom_runtime_runs() {
    crate::custom_runtime::main().unwrap();
}

#[test]
fn a_state_directory_that_is_not_mounted_yet_is_the_same_instance() {
    let node = Node::new();
    fs::create_dir_all(node.at("disk/state")).unwrap();
    std::os::unix::fs::symlink(node.at("disk/state"), node.at("state")).unwrap();
    fs::write(node.at("manifests/db.yaml"), pod("db", "i:1")).unwrap();
    let agent = node.start(&[]);
    wait_for(|| (node.calls().len() == 1).then_some(()));
    ends(agent);
    fs::rename(node.at("disk"), node.at("unmounted")).unwrap();
    let agent = Process::start(&mut node.command(&[]));
    agent.logs("started");
    fs::rename(node.at("unmounted"), node.at("disk")).unwrap();
    fs::write(node.at("manifests/new.yaml"), pod("new", "i:1")).unwrap();
    wait_for(|| (node.calls().len() > 1).then_some(()));
    assert_eq!(node.calls()[1..], ["ADD new-node1"]);
    ends(agent);
}
