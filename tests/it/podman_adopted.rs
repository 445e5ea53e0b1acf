//! The podman runtime and pods that it has not made in this run: of an earlier version, of an earlier boot, or started
//! by an operator.

use std::{path::Path, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use podmux::{
    pod::{Op, Prepared, SourceName, Uid},
    runtime::{
        KillPod, PodRuntime as _, SyncPod,
        podman::{Config, Podman as Runtime},
        runtime_hash,
    },
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    podman::end,
    support::{
        podman::{IMAGE, Node, Podman, RUNS, pod},
        podman_relay::{Answer, PodmanRelay},
    },
};

/// A pod in the host's network with a container that runs a script once.
pub fn once(name: &str, script: &str) -> SyncPod {
    synced(name, pod(name, script))
}

/// The same of a pod.
pub fn synced(name: &str, mut web: Value) -> SyncPod {
    web["metadata"]["uid"] = format!("{name}-1").into();
    (web["spec"]["hostNetwork"], web["spec"]["restartPolicy"]) = (true.into(), "Never".into());
    let prepared = Prepared::from_json(web.to_string().as_bytes()).unwrap();
    let pod = prepared.published_by(SourceName::File, Timestamp::UNIX_EPOCH);
    let hash = runtime_hash(&pod).into();
    SyncPod { pod: Arc::new(pod), source: SourceName::File, hash, op: Op::Add }
}

/// A runtime in a boot of the machine, which was started at this time.
fn runtime(podman: &Podman, directory: &Path, boot: &str, booted: Option<Timestamp>) -> Runtime {
    let mut config = Config::new(podman.socket(), directory.to_owned(), "me".into());
    (config.boot, config.booted) = (boot.to_owned(), booted);
    Runtime::new(config)
}

/// Waits until the status of a pod is like this. Nothing is listed, so only podman's events bring it.
pub async fn until(runtime: &Runtime, uid: &Uid, what: &str, fits: impl Fn(&Value) -> bool) {
    let waiting = async {
        while !runtime.status(uid).is_some_and(|status| fits(&status)) {
            runtime.changed().await;
        }
    };
    let status = || runtime.status(uid);
    timeout(Duration::from_mins(2), waiting).await.unwrap_or_else(|_| panic!("not {what}: {:#?}", status()));
}

/// Does something while a runtime runs.
pub async fn with(runtime: &Runtime, work: impl AsyncFnOnce()) {
    let stop = CancellationToken::new();
    let work = async {
        work().await;
        stop.cancel();
    };
    tokio::join!(runtime.run(&stop), work);
}

#[tokio::test]
async fn a_container_that_an_operator_starts_is_noticed_by_its_event() {
    let Some(podman) = Podman::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&podman, directory.path(), "first", None);
    let sync = once("web", &format!("[ -e /tmp/again ] || {{ touch /tmp/again; exit 0; }}; {RUNS}"));
    let uid = sync.pod.uid();
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        until(&runtime, uid, "completed", |status| status["phase"] == "Succeeded").await;
        podman.run(&["start", "podmux_default_web_c_0"]);
        let is_running = |status: &Value| status["containerStatuses"][0]["state"]["running"].is_object();
        until(&runtime, uid, "running", is_running).await;
    })
    .await;
}

#[tokio::test]
async fn a_container_whose_end_was_noted_after_a_boot_has_ended_with_the_machine() {
    let Some(podman) = Podman::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let sync = once("web", "sleep 2; exit 3");
    let has_failed = |status: &Value| status["phase"] == "Failed";
    let first = runtime(&podman, directory.path(), "first", None);
    with(&first, async || {
        first.sync(&sync).await.unwrap();
        until(&first, sync.pod.uid(), "failed", has_failed).await;
    })
    .await;
    let id = || podman.json(&["pod", "ps", "--format", "json"])[0]["Id"].as_str().unwrap().to_owned();
    let (before, state) = (id(), podman.json(&["inspect", "podmux_default_web_c_0"])[0]["State"].clone());
    let time = |field: &str| Some(state[field].as_str().unwrap().parse::<Timestamp>().unwrap());

    // It has begun and ended in this boot, or before it.
    let later = time("FinishedAt").map(|ended| ended + SignedDuration::from_hours(1));
    for booted in [time("StartedAt"), later] {
        let second = runtime(&podman, directory.path(), "first", booted);
        second.sync(&sync).await.unwrap();
        assert_eq!(id(), before);
        let status = second.status(sync.pod.uid()).unwrap();
        assert!(has_failed(&status));
        let ended = &status["containerStatuses"][0]["state"]["terminated"]["finishedAt"];
        let ended: Timestamp = ended.as_str().unwrap().parse().unwrap();
        assert_eq!(
            ended.as_second(),
            time("FinishedAt").unwrap().as_second(),
            "it ended before this runtime looked"
        );
    }
    // By its times it has begun in an earlier boot, and podman has noticed its end in this one. If it was made in this one,
    // the clock was set right after the boot.
    for (boot, exit_code) in [("first", 3), ("second", 255)] {
        let third = runtime(&podman, directory.path(), boot, time("FinishedAt"));
        third.sync(&sync).await.unwrap();
        assert_eq!(id(), before, "it is not run again");
        let status = third.status(sync.pod.uid()).unwrap();
        let code = &status["containerStatuses"][0]["state"]["terminated"]["exitCode"];
        assert!(has_failed(&status) && *code == exit_code, "{boot}: {status:#}");
    }

    // It has begun again in an earlier boot, and podman has noted only an end before that. Or podman had not cleaned up
    // after it when the machine stopped, and has forgotten how it ended.
    let listed = podman.json(&["ps", "--all", "--format", "json"]);
    let (mut begun_again, mut forgotten) = (listed.clone(), listed);
    begun_again[0]["ExitedAt"] = (begun_again[0]["StartedAt"].as_i64().unwrap() - 3600).into();
    forgotten[0]["State"] = "created".into();
    for listed in [begun_again, forgotten] {
        let listed = listed.to_string();
        let relay = PodmanRelay::to(&podman, move |request| {
            let is_list = request.contains("/containers/json?");
            if is_list { Answer::Body(listed.clone()) } else { Answer::Podmans }
        });
        let mut config = Config::new(relay.socket(), directory.path().to_owned(), "me".into());
        config.booted = later;
        let fourth = Runtime::new(config);
        fourth.sync(&sync).await.unwrap();
        assert_eq!(id(), before, "it is not run again");
        let status = fourth.status(sync.pod.uid()).unwrap();
        let code = &status["containerStatuses"][0]["state"]["terminated"]["exitCode"];
        assert!(has_failed(&status) && *code == 255, "{status:#}");
    }
}

/// The labels of a pod or container as flags.
fn labels(of: &Value) -> Vec<String> {
    let labels = of.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("podmux."));
    let flag = |(name, value): (&String, &Value)| format!("--label={name}={}", value.as_str().unwrap());
    labels.map(flag).collect()
}

#[test]
fn a_pod_of_an_earlier_version_keeps_its_infra_container() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["hostNetwork"] = true.into();
    node.write("web.json", &web);
    node.ready("web");
    agent.signal(Signal::KILL);
    agent.ends();
    // An earlier version made an infra container for each pod.
    let (name, container) = ("podmux_default_web-node1", "podmux_default_web-node1_c_0");
    let of_pod = labels(&podman.json(&["pod", "inspect", name])["Labels"]);
    let of_container = labels(&podman.json(&["inspect", container])[0]["Config"]["Labels"]);
    podman.run(&["pod", "rm", "--force", "--time", "0", name]);
    let run = |head: &[&str], labels: &[String], tail: &[&str]| {
        let labels = labels.iter().map(String::as_str);
        podman.run(&head.iter().copied().chain(labels).chain(tail.iter().copied()).collect::<Vec<_>>());
    };
    run(&["pod", "create", "--name", name, "--network", "host"], &of_pod, &[]);
    run(&["run", "--detach", "--pod", name, "--name", container], &of_container, &[IMAGE, "sh", "-c", RUNS]);
    let pids = || podman.pids("default", "web-node1");
    let infra = || {
        let id = podman.json(&["pod", "inspect", name])["InfraContainerID"].as_str().unwrap().to_owned();
        (podman.json(&["inspect", &id])[0]["State"]["Pid"].as_i64().unwrap(), id)
    };
    let before = (infra(), pids());
    assert_eq!(before.1.len(), 1);

    let agent = node.start();
    let status = node.ready("web");
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!((infra(), pids()), before, "it is adopted");
    podman.run(&["kill", container]);
    node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    let status = node.ready("web");
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 137, "{status:#}");
    assert_eq!(infra(), before.0);
    assert_ne!(pids(), before.1);
    assert_eq!(
        podman.json(&["pod", "inspect", name])["NumContainers"],
        json!(3),
        "the infra, and two of `c`"
    );
    end(agent);
}

#[test]
fn the_containers_that_another_tool_puts_into_a_pod_are_left_alone() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    // Of a container of the pod's own the first one would be removed.
    let names = ["theirs0", "theirs1", "theirs2"];
    for (index, name) in names.iter().enumerate() {
        let count = format!("podmux.restarts={index}");
        let labels = ["--label", "podmux.container=theirs", "--label", &count];
        let head = ["run", "--detach", "--pod", "podmux_default_web-node1", "--name", name];
        podman.run(&[&head[..], &labels, &[IMAGE, "sleep", "1000"]].concat());
    }
    // The step that replaces it has seen them.
    podman.run(&["kill", "podmux_default_web-node1_c_0"]);
    node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    let status = node.ready("web");
    assert_eq!(status["containerStatuses"].as_array().unwrap().len(), 1, "{status:#}");
    for name in names {
        assert_eq!(podman.json(&["inspect", name])[0]["State"]["Status"], "running");
    }
    end(agent);
}

/// Manifests may set the UID, and a copy of one may have another name.
#[tokio::test]
async fn the_pod_of_another_agent_is_left_alone_also_if_it_has_the_same_uid() {
    let Some(podman) = Podman::start() else { return };
    let (directory, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mine = runtime(&podman, directory.path(), "first", None);
    let other = Runtime::new(Config::new(podman.socket(), another.path().to_owned(), "other".into()));
    other.sync(&synced("web", pod("theirs", RUNS))).await.unwrap();
    mine.sync(&once("web", RUNS)).await.unwrap();
    assert_eq!(podman.pods(), ["podmux_default_theirs", "podmux_default_web"]);
    let actual = mine.list().await.unwrap().into_iter().find(|actual| actual.is_ours).unwrap();
    mine.kill(&KillPod { actual, grace: None, pod: None }).await.unwrap();
    assert_eq!(podman.pods(), ["podmux_default_theirs"]);
}
