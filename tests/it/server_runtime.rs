//! A runtime in the server: its item of `/sinks`, `/readyz`, and the metrics of its work queue.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Mutex},
};

use expect_test::expect;
use jiff::{SignedDuration, Timestamp};
use podmux::{
    host::{Clock, Moment},
    pod::{Origin, PodKey, Prepared, Uid},
    runtime::{
        Activity, ActualPod, Failing, KillPod, Observed, ObservedPod, PodProgress, PodRuntime, PodWorkers,
        RuntimeError, SyncPod, WorkQueue, WorkersStatus,
    },
    server::RuntimeView,
    storage::Merged,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::soon,
    server::{Setup, TestServer, manifest},
};

/// A runtime in memory. A pod named `bad` does not start, and one named `slow` never does.
#[derive(Clone, Default)]
struct Machine(Arc<Mutex<BTreeMap<Uid, ActualPod>>>);

impl PodRuntime for Machine {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        Ok(self.0.lock().unwrap().values().cloned().collect())
    }

    async fn sync(&self, sync: &SyncPod) -> Result<(), RuntimeError> {
        let key = sync.pod.key().clone();
        match key.name() {
            "bad" => return Err(RuntimeError::new("ErrImagePull", "no such image")),
            "slow" => pending().await,
            _ => {}
        }
        let uid = sync.pod.uid().clone();
        let actual = ActualPod {
            key,
            uid: uid.clone(),
            hash: sync.hash.clone(),
            source: sync.source,
            is_ours: true,
            is_complete: true,
            started: None,
            status: None,
        };
        self.0.lock().unwrap().insert(uid, actual);
        Ok(())
    }

    async fn kill(&self, kill: &KillPod) -> Result<(), RuntimeError> {
        self.0.lock().unwrap().remove(&kill.actual.uid);
        Ok(())
    }
}

/// A server with pod workers. Returns what they do, too.
async fn with_workers() -> (TestServer, RuntimeView) {
    let (made, runtime) = std::sync::mpsc::channel();
    let start = move |merged| {
        let workers = PodWorkers::new(Machine::default(), merged);
        let (status, queue, logs) = (workers.status(), workers.queue(), workers.logs());
        let view = RuntimeView { name: "exec=/p".into(), status, queue, logs };
        tokio::spawn(workers.run(CancellationToken::new()));
        made.send(view.clone()).unwrap();
        view
    };
    let server = TestServer::with(Setup { runtime: Some(Box::new(start)), ..Setup::default() }).await;
    (server, runtime.recv().unwrap())
}

/// A server whose runtime has this status, and whose pods of these names wait for a worker.
async fn with_status(status: WorkersStatus, queued: &[&str]) -> (TestServer, watch::Sender<WorkersStatus>) {
    let status = watch::Sender::new(status);
    let logs = PodWorkers::new(Machine::default(), watch::channel(Merged::new(&[])).1).logs();
    let (queue, seen) = (WorkQueue::default(), status.subscribe());
    for name in queued {
        queue.add(PodKey::new("default", name), (Reverse(0), false, None));
    }
    let view = RuntimeView { name: "exec=/p".into(), status: seen, queue, logs };
    let start = move |_| view;
    (TestServer::with(Setup { runtime: Some(Box::new(start)), ..Setup::default() }).await, status)
}

async fn put(server: &TestServer, name: &str) {
    let pod = manifest(name).replace("\"metadata\":{", &format!("\"metadata\":{{\"uid\":\"{name}-1\","));
    server.file_pod(name, Prepared::from_json(pod.as_bytes()).unwrap()).await;
}

/// The item of the runtime, after the only sink.
async fn item(server: &TestServer) -> Value {
    server.get("/sinks").await.json()["items"][1].clone()
}

/// Waits until nothing is to be done about any pod but these.
async fn busy_with(runtime: &RuntimeView, names: &[&str]) {
    let expected: BTreeSet<String> = names.iter().map(|name| format!("default/{name}")).collect();
    let is_so = |status: &WorkersStatus| {
        let keys: BTreeSet<String> = status.pods.keys().map(ToString::to_string).collect();
        // A pod that fails has failed once at least.
        let bad = status.pods.iter().filter(|(key, _)| key.name() == "bad");
        status.is_listed && keys == expected && bad.into_iter().all(|(_, pod)| pod.failing.is_some())
    };
    soon(runtime.status.clone().wait_for(is_so)).await.unwrap();
    soon(async {
        while !runtime.queue.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn sinks_show_the_runtime_and_the_pods_that_fail() {
    let (server, runtime) = with_workers().await;
    busy_with(&runtime, &[]).await;
    assert_eq!(item(&server).await, json!({"name": "exec=/p", "state": "current", "podsBehind": 0}));
    put(&server, "good").await;
    put(&server, "slow").await;
    busy_with(&runtime, &["slow"]).await;
    assert_eq!(item(&server).await, json!({"name": "exec=/p", "state": "behind", "podsBehind": 1}));

    put(&server, "bad").await;
    busy_with(&runtime, &["bad", "slow"]).await;
    let mut seen = item(&server).await;
    let failing = seen["failingPods"][0].take();
    assert_eq!((&failing["since"], &seen["failing"]["since"]), (&seen["since"], &seen["since"]));
    for field in ["since", "nextAttempt"] {
        failing[field].as_str().unwrap().parse::<Timestamp>().unwrap();
    }
    let (attempts, text) = (&failing["attempts"], "default/bad: ErrImagePull: no such image");
    assert!(attempts.as_u64() >= Some(1), "{failing}");
    assert_eq!(
        (&failing["pod"], &failing["reason"], &failing["error"]),
        (&"default/bad".into(), &"ErrImagePull".into(), &text.into())
    );
    assert_eq!((&seen["state"], &seen["failing"]["error"]), (&"failing".into(), &text.into()));
    assert_eq!(seen["podsBehind"], 2, "{seen}");
    assert_eq!(seen["failingPods"].as_array().unwrap().len(), 1, "{seen}");
    // One failing pod is not the agent's failure.
    assert_eq!(server.get("/readyz").await.code, 200);

    server.file(|file| file.remove(&Origin::from("bad"))).await;
    busy_with(&runtime, &["slow"]).await;
    assert_eq!(item(&server).await, json!({"name": "exec=/p", "state": "behind", "podsBehind": 1}));
}

fn ago(age: SignedDuration) -> Moment {
    let instant = tokio::time::Instant::now() - age.unsigned_abs();
    Moment { instant, time: Clock::default().now() - age }
}

#[tokio::test]
async fn the_pod_that_has_failed_longest_comes_first() {
    let failed = |minutes: i64| {
        let since = ago(SignedDuration::from_mins(minutes));
        let (attempts, next_attempt) = (3, since.time);
        Failing { since, attempts, next_attempt, reason: "ExecFailed", error: "exit status: 1".into() }
    };
    let progress = |minutes| PodProgress {
        uid: "1".into(),
        activity: Activity::BackingOff,
        since: Clock::default().now(),
        failing: Some(failed(minutes)),
    };
    let keys = [("a", 1), ("b", 9), ("c", 5)].map(|(name, age)| (PodKey::new("default", name), age));
    let pods = keys.into_iter().map(|(key, age)| (key, progress(age))).collect();
    // The pod workers' own failure of a pod comes before that of its containers.
    let containers = [("a", 7), ("e", 3)].map(|(name, age)| (PodKey::new("default", name), failed(age)));
    let failing_containers = containers.into_iter().collect();
    let (server, _status) = with_status(
        WorkersStatus { is_listed: true, pods, failing_containers, ..WorkersStatus::default() },
        &["a", "d"],
    )
    .await;
    let seen = item(&server).await;
    let order: Vec<_> = seen["failingPods"].as_array().unwrap().iter().map(|pod| &pod["pod"]).collect();
    assert_eq!(order, ["default/b", "default/c", "default/e", "default/a"]);
    assert_eq!(seen["podsBehind"], 5, "each pod counts once: {seen}");
    assert_eq!(
        (&seen["failing"], &seen["since"]),
        (&seen["failingPods"][0], &seen["failingPods"][0]["since"])
    );
}

#[tokio::test]
async fn a_runtime_that_cannot_be_listed_is_failing_and_after_a_while_not_ready() {
    let (server, status) = with_status(WorkersStatus::default(), &[]).await;
    put(&server, "web").await;
    let seen = item(&server).await;
    assert_eq!((&seen["state"], &seen["podsBehind"]), (&"behind".into(), &1.into()), "what runs is unknown");
    let fail = |since: Moment| {
        let (attempts, next_attempt) = (4, since.time);
        let error = "StateUnavailable: the state is not open".into();
        let failing = Failing { since, attempts, next_attempt, reason: "StateUnavailable", error };
        status.send_modify(|status| status.list_failing = Some(failing));
    };
    fail(ago(SignedDuration::ZERO));
    let seen = item(&server).await;
    assert_eq!((&seen["state"], &seen["failing"]["attempts"]), (&"failing".into(), &4.into()));
    assert_eq!((&seen["failingPods"], server.get("/readyz").await.code), (&Value::Null, 200));
    fail(Moment { time: Timestamp::UNIX_EPOCH, ..ago(SignedDuration::from_mins(1)) });
    let ready = server.get("/readyz?verbose").await;
    expect![[r#"
        [+]source-file ok
        [+]source-http ok
        [+]sink-test ok
        [-]sink-exec=/p failed: failing since 1970-01-01T00:00:00Z: StateUnavailable: the state is not open
        [+]shutdown ok
        readyz check failed
    "#]]
    .assert_eq(ready.text());
    assert_eq!((ready.code, server.get("/readyz").await.text()), (503, "failed"));
}

#[tokio::test]
async fn metrics_have_the_work_queue_under_the_names_of_client_go() {
    let server = TestServer::start().await;
    let without = server.get("/metrics").await;
    assert!(!without.text().contains("workqueue") && !without.text().contains("_runtime_"));
    let (server, runtime) = with_workers().await;
    busy_with(&runtime, &[]).await;
    for name in ["good", "bad", "slow"] {
        put(&server, name).await;
    }
    busy_with(&runtime, &["bad", "slow"]).await;
    let metrics = server.get("/metrics").await;
    let value = |name: &str| -> f64 {
        let line = metrics.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}:\n{}", metrics.text())).parse().unwrap()
    };
    // The names and the label of client-go's metrics in Kubernetes' components.
    for (name, least) in [
        ("workqueue_depth", 0.0),
        ("workqueue_adds_total", 3.0),
        ("workqueue_retries_total", 1.0),
        ("workqueue_queue_duration_seconds_count", 3.0),
        ("workqueue_queue_duration_seconds_sum", 0.0),
        ("workqueue_work_duration_seconds_count", 2.0),
        ("workqueue_work_duration_seconds_sum", 0.0),
        ("workqueue_unfinished_work_seconds", 0.0),
        ("workqueue_longest_running_processor_seconds", 0.0),
    ] {
        let seen = value(&format!("{name}{{name=\"pods\"}}"));
        assert!(seen >= least, "{name}: {seen}");
    }
    let types: Vec<&str> =
        metrics.text().lines().filter_map(|line| line.strip_prefix("# TYPE workqueue_")).collect();
    expect![[r#"
        depth gauge
        adds counter
        retries counter
        queue_duration_seconds histogram
        work_duration_seconds histogram
        unfinished_work_seconds gauge
        longest_running_processor_seconds gauge"#]]
    .assert_eq(&types.join("\n"));
    assert!(value("workqueue_unfinished_work_seconds{name=\"pods\"}") > 0.0, "slow is worked on");
    assert!(value("workqueue_queue_duration_seconds_bucket{name=\"pods\",le=\"1000.0\"}") >= 3.0);
    assert!(value("podmux_runtime_failing_pods") >= 1.0);
    assert!(value("podmux_sink_pods_behind{sink=\"exec=/p\"}") >= 2.0);
    assert!(value("podmux_sink_failing_seconds{sink=\"exec=/p\"}") >= 0.0, "only its pods fail");
}

#[tokio::test]
async fn a_runtime_without_logs_says_so() {
    let start = |merged| {
        let workers = PodWorkers::new(Machine::default(), merged);
        let (status, queue, logs) = (workers.status(), workers.queue(), workers.logs());
        tokio::spawn(workers.run(CancellationToken::new()));
        RuntimeView { name: "exec=/p".into(), status, queue, logs }
    };
    let status = json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}]});
    let observed = ObservedPod { uid: "web-1".into(), status: Arc::new(status) };
    let observed = Observed::unit(PodKey::new("default", "web"), observed);
    let (runtime, observed) = (Some(Box::new(start) as Box<_>), Some(watch::channel(observed).1));
    let server = TestServer::with(Setup { observed, runtime, ..Setup::default() }).await;
    put(&server, "web").await;
    let path = "/api/v1/namespaces/default/pods/web/log";
    let reply = server.get(path).await;
    assert_eq!(reply.code, 501);
    expect![[r#"cannot read the log of container "c" in pod "web": LogsNotSupported: the runtime keeps no output of containers"#]]
        .assert_eq(reply.json()["message"].as_str().unwrap());
    let server = TestServer::start().await;
    put(&server, "web").await;
    // The last moment of RFC 3339, and what is none.
    for (time, code) in [
        ("9999-12-31T23:59:59Z", 501),
        ("9999-12-31T23:59:59.9-01:00", 501),
        ("9999-12-31T23:59:59", 400),
        ("9999-12-32T00:00:00Z", 400),
    ] {
        assert_eq!(server.get(&format!("{path}?sinceTime={time}")).await.code, code, "{time}");
    }
    let reply = server.get(path).await;
    assert_eq!((reply.code, &reply.json()["reason"]), (501, &json!("NotImplemented")));
    expect!["the agent runs no pods, so it has no logs: start it with --sink podman"]
        .assert_eq(reply.json()["message"].as_str().unwrap());
}
