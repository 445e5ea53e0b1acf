//! The podman runtime when podman is broken, hangs, is full or is another user's, and with hostile pods.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::symlink,
    path::Path,
    pin::pin,
    process::Command,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use podmux::{
    pod::{Digest, Op, PodKey, Prepared, SourceName},
    runtime::{
        ActualPod, KillPod, PodRuntime as _, SyncPod,
        podman::{Config, Podman as Runtime},
    },
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::{
    podman::{end, state},
    podman_adopted::{once, synced, until, with},
    support::{
        cluster::{Admin, bound},
        exec::{to_kill, to_sync},
        files::soon,
        kubernetes::Apiserver,
        plain::Connection,
        podman::{IMAGE, Node, Podman, RUNS, condition, container, pod, with_data},
        process::{Process, wait_for},
        web::{Reply, Seen, Step, Web},
    },
};

/// Posts a pod, and waits until the other sink has it.
fn post(node: &Node, agent: &Process, name: &str) {
    let (code, answer) = wait_for(|| node.ask("POST", "/pods", &pod(name, RUNS)));
    assert_eq!(code, 201, "{answer:#}");
    agent.holds(name, |replica| replica.pods.contains_key(&format!("default/{name}")));
}

/// Waits until a posted pod of the default namespace is ready.
fn posted_ready(node: &Node, name: &str) {
    let path = format!("/api/v1/namespaces/default/pods/{name}");
    wait_for(|| {
        let (_, pod) = node.ask("GET", &path, &Value::Null)?;
        (condition(&pod["status"], "Ready")["status"] == "True").then_some(())
    });
}

#[test]
fn a_podman_that_hangs_stops_nothing_else_and_its_pods_go_on() {
    let Some(podman) = Podman::start() else { return };
    podman.stop_service();
    let node = Node::new(&podman);
    let agent = node.start_with(&["--sink", "jsonl"]);
    post(&node, &agent, "first");
    agent.logs("runtime cannot be listed");
    let is_failing = || {
        let (_, sinks) = node.ask("GET", "/sinks", &Value::Null)?;
        let mut sinks = sinks["items"].as_array()?.iter();
        let podman =
            sinks.find(|sink| sink["name"].as_str().is_some_and(|name| name.starts_with("podman")))?;
        (podman["state"] == "failing").then(|| podman["failing"].to_string())
    };
    let error = wait_for(is_failing);
    assert!(error.contains("sent no complete response within 30s"), "{error}");
    podman.heal_service();
    posted_ready(&node, "first");

    // The probe of what runs fails because podman hangs, not because the container does. podman hangs for 30 s, and each
    // step of the probe waits for 6 s.
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2});
    node.write("web.json", &web);
    node.ready("web");
    let before = podman.pids("default", "web-node1");
    podman.stop_service();
    post(&node, &agent, "second");
    let error = wait_for(is_failing);
    assert!(error.contains("default/second: ") && error.contains("within 30s"), "{error}");
    post(&node, &agent, "third");
    podman.heal_service();
    posted_ready(&node, "second");
    posted_ready(&node, "third");
    assert_eq!(podman.pids("default", "web-node1"), before);
    end(agent);
}

#[test]
fn pods_come_up_again_when_podmans_storage_was_reset() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let web = with_data(pod("web", RUNS));
    node.write("web.json", &web);
    node.ready("web");
    let before = podman.pids("default", "web-node1");
    podman.kill_service();
    podman.run(&["system", "reset", "--force"]);
    podman.start_service();
    // Its image is gone, too.
    node.until("web", "without an image", |status| state(status)["waiting"]["reason"] == "ErrImagePull");
    podman.import();
    node.ready("web");
    assert_ne!(podman.pids("default", "web-node1"), before);
    end(agent);
}

/// podman was killed while it created a container: it has its storage and does not know it.
#[test]
fn the_storage_of_a_container_that_podman_does_not_know_is_replaced() {
    let Some(podman) = Podman::start() else { return };
    let name = "podmux_default_web-node1_c_0";
    podman.run(&["create", "--name", name, IMAGE]);
    podman.kill_service();
    let (root, copy) = (podman.path("root"), podman.path("copy"));
    let copied = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    // What is stored, without what podman knows.
    copied(&root, &copy);
    podman.run(&["rm", name]);
    let known = root.join("libpod");
    copied(&known, &podman.path("known"));
    fs::remove_dir_all(&root).unwrap();
    fs::rename(&copy, &root).unwrap();
    fs::remove_dir_all(&known).unwrap();
    fs::rename(podman.path("known"), &known).unwrap();
    podman.start_service();
    let refused = podman.try_run(&["create", "--name", name, IMAGE]).unwrap_err();
    assert!(refused.contains("already in use"), "{refused}");

    // A container that podman knows belongs to another program.
    let theirs = "podmux_default_theirs-node1_c_0";
    podman.run(&["run", "--detach", "--name", theirs, IMAGE, "sleep", "1000"]);

    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.write("theirs.json", &pod("theirs", RUNS));
    node.ready("web");
    node.until("theirs", "refused", |status| state(status)["waiting"]["reason"] == "CreateContainerError");
    assert_eq!(podman.json(&["inspect", theirs])[0]["State"]["Status"], "running");
    end(agent);
}

#[test]
fn a_full_disk_is_shown_and_survived() {
    let Some(podman) = Podman::start_on(Some("24m")) else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    let before = podman.pids("default", "web-node1");
    let filler = podman.path("root/filler");
    let mut file = File::create(&filler).unwrap();
    for chunk in [1 << 16, 1] {
        while file.write_all(&vec![0; chunk]).is_ok() {}
    }
    drop(file);
    node.write("late.json", &pod("late", RUNS));
    node.until("late", "refused", |status| status.to_string().contains("no space left on device"));
    fs::remove_file(filler).unwrap();
    node.ready("late");
    assert_eq!(podman.pids("default", "web-node1"), before);
    end(agent);
}

#[test]
fn a_user_without_root_runs_pods() {
    let Some(podman) = Podman::start_rootless() else { return };
    let node = Node::of_user(&podman);
    let agent = node.start_as(&podman);
    let mut web =
        pod("web", "trap 'echo bye > /dev/termination-log; exit 3' TERM; while :; do sleep 0.1; done");
    // Without rights on /dev/net/tun there is no network of its own.
    web["spec"]["hostNetwork"] = true.into();
    web["spec"]["volumes"] =
        json!([{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {"medium": "Memory"}}]);
    web["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/memory"}]);
    web["spec"]["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["touch", "/data/x", "/memory/x"]}, "periodSeconds": 1, "timeoutSeconds": 60});
    node.write("web.json", &web);
    node.ready("web");
    let pid = podman.pids("default", "web-node1")[0].1;
    let owner = |pid: i64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| Some(line.strip_prefix("Uid:")?.split_whitespace().next()?.to_owned()))
    };
    assert_eq!(owner(pid).unwrap(), "65534");
    agent.signal(rustix::process::Signal::KILL);
    agent.ends();
    let agent = node.start_as(&podman);
    node.ready("web");
    assert_eq!(podman.pids("default", "web-node1")[0].1, pid);
    podman.run(&["stop", "podmux_default_web-node1_c_0"]);
    let status = node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["message"], "bye\n");
    node.remove("web.json");
    wait_for(|| (podman.pods().is_empty() && podman.volumes().is_empty()).then_some(()));
    end(agent);
}

#[test]
fn pods_of_an_api_server_run_and_nothing_is_written_back() {
    let (Some(podman), Some(apiserver)) = (Podman::start(), Apiserver::shared()) else { return };
    let mut admin = Admin::of(apiserver);
    admin.namespace("podman");
    let node = Node::new(&podman);
    let kubeconfig = apiserver.at.kubeconfig.to_str().unwrap();
    let agent = node.start_with(&["--kubeconfig", kubeconfig, "--node-name", "podman-node"]);
    agent.logs(
        "pods of the API server run here; neither their status nor the end of their deletion is written back",
    );
    let mut web = bound("podman/web", "podman-node");
    web["spec"]["containers"] = json!([container("c", RUNS)]);
    web["spec"]["terminationGracePeriodSeconds"] = 5.into();
    let made = admin.create(&web).unwrap();
    let own = || node.ask("GET", "/api/v1/namespaces/podman/pods/web", &Value::Null).unwrap().1;
    wait_for(|| (condition(&own()["status"], "Ready")["status"] == "True").then_some(()));
    assert_eq!(podman.pids("podman", "web").len(), 1);
    podman.wait_for_traps("podman", "web");
    assert_eq!(admin.read("podman/web").unwrap()["status"], made["status"]);
    admin.delete("podman/web", 60).unwrap();
    wait_for(|| podman.pods().is_empty().then_some(()));
    let left = admin.read("podman/web").unwrap();
    assert!(left["metadata"]["deletionTimestamp"].is_string(), "{left:#}");
    assert_eq!(left["status"], made["status"]);
    // What it has shown last stays here, with the end of its container.
    let last = wait_for(|| Some(own()["status"].clone()).filter(|status| status["phase"] == "Succeeded"));
    assert_eq!(last["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0, "{last:#}");
    assert!(last["podIP"].is_string(), "{last:#}");
    admin.delete("podman/web", 0).unwrap();
    wait_for(|| own()["code"].eq(&404).then_some(()));
    end(agent);
}

#[test]
fn a_hostile_pod_costs_the_others_nothing() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    assert!(Command::new("mkfifo").arg(host.join("pipe")).status().unwrap().success());
    let agent = node.start();
    // Each run of its probe hangs, writes without an end, and is noted.
    let script =
        "echo x >> /host/runs; while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done";
    let mut hangs = pod("hangs", RUNS);
    hangs["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    hangs["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    hangs["spec"]["containers"][0]["livenessProbe"] = json!({
        "exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3,
    });
    hangs["spec"]["containers"][0]["env"] = (0..60)
        .map(|index| json!({"name": format!("A{index}"), "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}))
        .collect();
    hangs["spec"]["terminationGracePeriodSeconds"] = i64::MAX.into();
    // Opening it would wait for the other end.
    let mut pipe = pod("pipe", RUNS);
    pipe["spec"]["volumes"] =
        json!([{"name": "host", "hostPath": {"path": host.join("pipe"), "type": "FileOrCreate"}}]);
    pipe["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    node.write("hangs.json", &hangs);
    node.write("pipe.json", &pipe);
    node.until("pipe", "refused", |status| {
        state(status)["waiting"]["message"].to_string().contains("it is not a File")
    });
    let status = node.until("hangs", "restarted", |status| {
        status["containerStatuses"][0]["restartCount"].as_u64() >= Some(1)
    });
    let message = condition(&status, "podmux.dev/Unsupported")["message"].to_string();
    assert!(message.contains(".env[49].") && message.contains(", and 10 more"), "{message}");
    let runs = fs::read_to_string(host.join("runs")).unwrap().lines().count() as u64;
    assert!(runs <= 1 + status["containerStatuses"][0]["restartCount"].as_u64().unwrap(), "{runs} runs");
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    // A container of another that claims to be one of the pod's is not.
    let pod = "podmux_default_web-node1";
    let labels = ["podmux.container=../../x", "podmux.restarts=4294967295", "podmux.backoff=4294967295"];
    let labels = labels.iter().flat_map(|label| ["--label", label]);
    let args = ["run", "--detach", "--pod", pod, "--name", "strange"].into_iter().chain(labels);
    podman.run(&args.chain([IMAGE, "false"]).collect::<Vec<_>>());
    node.write("last.json", &crate::support::podman::pod("last", RUNS));
    node.ready("last");
    let status = node.ready("web");
    assert_eq!(status["containerStatuses"].as_array().unwrap().len(), 1);
    agent.signal(rustix::process::Signal::KILL);
    agent.ends();
}

/// podman repeats the labels of an image in each list and event of its containers.
#[test]
fn an_image_with_long_labels_is_not_run_and_stops_no_other_pod() {
    let Some(podman) = Podman::start() else { return };
    let image = "localhost/long:1";
    // An argument has less than 128 KiB.
    let labels = ["a", "b"].map(|name| format!("LABEL {name}={}", "x".repeat(70_000)));
    podman.import_with(&labels.each_ref().map(String::as_str), image);
    let node = Node::new(&podman);
    let agent = node.start();
    let mut long = pod("long", RUNS);
    long["spec"]["containers"][0]["image"] = image.into();
    node.write("long.json", &long);
    let status =
        node.until("long", "refused", |status| state(status)["waiting"]["reason"] == "CreateContainerError");
    let message = state(&status)["waiting"]["message"].to_string();
    assert!(message.contains("more than the limit of 131072: give the image shorter labels"), "{message}");
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    node.remove("long.json");
    wait_for(|| (podman.pods() == ["podmux_default_web-node1"]).then_some(()));
    end(agent);
}

#[tokio::test]
async fn a_pod_whose_containers_are_too_long_to_be_listed_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let double = Web::start_unix(&socket, Reply::ok(""));
    let runtime = Runtime::new(Config::new(socket, dir.path().join("files"), "me".into()));
    let pods = listed(&to_sync(Op::Add, "web"), "i");
    double.play(move |request| match (&*request.method, &*request.path) {
        (_, "/libpod/_ping") => ping(),
        ("DELETE", _) => Reply::ok("{}"),
        (_, path) if path.contains("/pods/json") => Reply::ok(pods.clone()),
        (_, path) if path.contains("/containers/json") => {
            Reply::steps(Some((64 << 20) + 1), vec![Step::Hang])
        }
        _ => Reply::ok("[]"),
    });
    runtime.kill(&to_kill("web")).await.unwrap();
    let seen = double.seen();
    let removed =
        seen.iter().filter(|seen| seen.method == "DELETE" && seen.path.contains("/pods/p?force=true"));
    assert_eq!(removed.count(), 1);
}

#[tokio::test]
async fn a_refusal_is_shown_in_part_if_it_is_long() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let double = Web::start_unix(&socket, Reply::ok(""));
    let long = json!({"message": "ü".repeat(1 << 20)}).to_string();
    double.play(move |request| match &*request.path {
        "/libpod/_ping" => Reply::ok("OK").header("libpod-api-version", "5.0.0"),
        _ => Reply::new(500, long.clone()),
    });
    let mut config = Config::new(socket, dir.path().join("files"), "me".into());
    config.timeout = Duration::from_secs(10);
    let error = Runtime::new(config).list().await.unwrap_err();
    assert_eq!((error.reason, error.source.to_string().len()), ("PodmanFailed", 4096));
}

/// A pod that is said to be gone is forgotten, and another one may take its place.
#[tokio::test]
async fn a_pod_that_podman_does_not_remove_is_not_gone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let double = Web::start_unix(&socket, Reply::ok(""));
    let mut config = Config::new(socket, dir.path().join("files"), "me".into());
    config.timeout = Duration::from_secs(10);
    let runtime = Runtime::new(config);
    let pods = json!([{"Id": "p", "Name": "podmux_default_web", "Labels": {"podmux.uid": "u", "podmux.instance": "me"}}]);
    let pods = pods.to_string();
    let actual = ActualPod {
        key: PodKey::new("default", "web"),
        uid: "u".into(),
        hash: "h".into(),
        source: SourceName::File,
        is_ours: true,
        is_complete: true,
        started: None,
        status: None,
    };
    let kill = KillPod { actual, grace: None, pod: None };
    for (code, expected) in [(500, Some("it is in use")), (404, None)] {
        let pods = pods.clone();
        double.play(move |request| match (&*request.method, &*request.path) {
            (_, "/libpod/_ping") => Reply::ok("OK").header("libpod-api-version", "5.0.0"),
            ("DELETE", _) => Reply::new(code, json!({"message": "it is in use"}).to_string()),
            (_, path) if path.contains("/pods/json") => Reply::ok(pods.clone()),
            _ => Reply::ok("[]"),
        });
        let error = runtime.kill(&kill).await.err().map(|error| (error.reason, error.source.to_string()));
        assert_eq!(error, expected.map(|words| ("KillPodSandboxError", words.to_owned())), "{code}");
    }
}

/// podman takes a label without a value for one with any value.
#[tokio::test]
async fn the_kill_of_a_pod_without_a_uid_removes_no_other_pod() {
    let Some(podman) = Podman::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let runtime = Runtime::new(Config::new(podman.socket(), directory.path().to_owned(), "me".into()));
    runtime.sync(&once("web", RUNS)).await.unwrap();
    let listed = runtime.list().await.unwrap().remove(0);
    let actual = ActualPod { key: PodKey::new("default", "other"), uid: "".into(), ..listed };
    runtime.kill(&KillPod { actual, grace: None, pod: None }).await.unwrap();
    assert_eq!(podman.pods(), ["podmux_default_web"]);
}

#[tokio::test]
async fn a_link_in_the_place_of_a_termination_message_is_not_followed() {
    let Some(podman) = Podman::start() else { return };
    let (directory, target) = (tempfile::tempdir().unwrap(), podman.path("target"));
    fs::write(&target, "text").unwrap();
    let sync = once("web", RUNS);
    let files = directory.path().join(Digest::of(&[sync.pod.uid().as_bytes()]).to_string());
    fs::create_dir(&files).unwrap();
    symlink(&target, files.join("c.0")).unwrap();
    let runtime = Runtime::new(Config::new(podman.socket(), directory.path().to_owned(), "me".into()));
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        until(&runtime, sync.pod.uid(), "running", |status| status["phase"] == "Running").await;
    })
    .await;
    assert_eq!(fs::read_to_string(&target).unwrap(), "text");
}

fn ping() -> Reply {
    Reply::ok("OK").header("libpod-api-version", "5.0.0")
}

/// What podman lists of the pod of a sync.
fn listed(sync: &SyncPod, infra: &str) -> String {
    let labels = json!({
        "podmux.uid": &**sync.pod.uid(), "podmux.namespace": "default", "podmux.name": "web",
        "podmux.hash": &*sync.hash, "podmux.source": "file", "podmux.instance": "me",
    });
    json!([{"Id": "p", "Name": "podmux_default_web", "InfraId": infra, "Labels": labels}]).to_string()
}

/// podman before 4.8 locks itself out when a pod is removed while a container of it is made (podman#20313).
#[tokio::test]
async fn what_podman_makes_for_a_pod_is_waited_for_before_the_pod_is_removed_or_synced_or_the_agent_ends() {
    let (sync, kill) = (to_sync(Op::Add, "web"), to_kill("web"));
    for how in ["kill", "sync", "stop"] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let double = Web::start_unix(&socket, Reply::ok(""));
        let pods = listed(&sync, "i");
        let infra = json!([{
            "Id": "i", "Pod": "p", "IsInfra": true, "State": "running", "ExitCode": 0, "StartedAt": 1,
            "ExitedAt": 0, "Image": "", "ImageID": "",
        }]);
        let infra = infra.to_string();
        let inspected = json!({"State": {"OOMKilled": false}, "Config": {}}).to_string();
        let (open, gate) = watch::channel(false);
        let opened = gate.clone();
        double.play(move |request| match &*request.path {
            "/libpod/_ping" => ping(),
            path if path.contains("/events?") => Reply::mute(),
            path if path.contains("/pods/json?") => Reply::ok(pods.clone()),
            path if path.contains("/containers/json?") => Reply::ok(infra.clone()),
            path if path.ends_with("/containers/i/json") => Reply::ok(inspected.clone()),
            path if path.ends_with("/containers/create") => {
                Reply::steps(None, vec![Step::Until(gate.clone()), Step::Send(r#"{"Id": "c"}"#.into())])
            }
            path if path.contains("/images/") => Reply::ok("{}"),
            _ => Reply::ok("[]"),
        });
        let config = Config::new(socket, dir.path().join("files"), "me".into());
        let (runtime, stop) = (Arc::new(Runtime::new(config)), CancellationToken::new());
        let running = tokio::spawn({
            let (runtime, stop) = (runtime.clone(), stop.clone());
            async move { runtime.run(&stop).await }
        });
        runtime.sync(&sync).await.unwrap();
        let has = |what: &str| {
            double.seen().iter().any(|seen| format!("{} {}", seen.method, seen.path).contains(what))
        };
        while !has("/containers/create") {
            double.asked(double.seen().len() + 1).await;
        }
        let mut ended = pin!(async {
            match how {
                "kill" => runtime.kill(&kill).await.unwrap(),
                "sync" => runtime.sync(&sync).await.unwrap(),
                _ => {}
            }
            assert!(how == "stop" || *opened.borrow(), "podman has not answered");
            stop.cancel();
            running.await.unwrap();
        });
        // podman answers everything else meanwhile.
        for _ in 0..10 {
            tokio::select! {
                biased;
                () = &mut ended => panic!("podman has not answered"),
                pods = runtime.list() => assert_eq!(pods.unwrap().len(), 1),
            }
        }
        assert!(!has("DELETE "));
        open.send(true).unwrap();
        ended.await;
        assert_eq!((has("DELETE "), has("/containers/c/start")), (how == "kill", false));
    }
}

/// A pod with a container `c` and two sidecars that all ignore their signal.
fn with_sidecars() -> SyncPod {
    let sidecar = |name: &str| {
        let mut sidecar = container(name, RUNS);
        sidecar["restartPolicy"] = "Always".into();
        sidecar
    };
    let mut web = pod("web", RUNS);
    (web["spec"]["hostIPC"], web["spec"]["terminationGracePeriodSeconds"]) = (true.into(), 600.into());
    web["spec"]["initContainers"] = json!([sidecar("first"), sidecar("second")]);
    synced("web", web)
}

/// Lets a double be the podman of this pod. The storage of the sidecars is lost, and so are their conmons.
fn play_with_sidecars(double: &Web, sync: &SyncPod, mut ended: HashSet<String>) {
    let (pods, uid) = (listed(sync, ""), sync.pod.uid().to_string());
    let inspected =
        json!({"State": {"OOMKilled": false}, "Config": {"StopSignal": "SIGRTMIN+3"}}).to_string();
    double.play(move |request| match &*request.path {
        "/libpod/_ping" => ping(),
        path if path.contains("/events?") => Reply::mute(),
        path if path.contains("/pods/json?") => Reply::ok(pods.clone()),
        path if path.contains("/containers/json?") => {
            let all = [("c", "main"), ("first", "sidecar"), ("second", "sidecar")];
            let containers = all.iter().enumerate().map(|(index, &(name, role))| {
                let (state, exited) = if ended.contains(name) { ("exited", 4) } else { ("running", 0) };
                json!({
                    "Id": name, "Pod": "p", "IsInfra": false, "State": state, "ExitCode": 0, "StartedAt": 3,
                    "ExitedAt": exited, "Image": "i", "ImageID": "i", "Labels": {
                        "podmux.uid": uid, "podmux.container": name, "podmux.role": role,
                        "podmux.index": index.to_string(),
                    },
                })
            });
            Reply::ok(containers.collect::<Value>().to_string())
        }
        path if path.ends_with("/containers/c/json") => Reply::ok(inspected.clone()),
        path if path.contains("/c/wait?") => Reply::mute(),
        path if path.contains("/wait?") || path.ends_with("/json") => {
            Reply::new(500, json!({"message": "container not known"}).to_string())
        }
        path if path.contains("/stop?") => {
            ended.insert(path.split('/').nth_back(1).unwrap().to_owned());
            Reply::new(204, "")
        }
        path if path.contains("/kill?") => Reply::new(204, ""),
        _ => Reply::ok("[]"),
    });
}

/// What a double was asked to do with containers.
fn calls(double: &Web) -> Vec<String> {
    let call = |request: &Seen| Some(request.path.split_once("/containers/")?.1.to_owned());
    double.seen().iter().filter(|request| request.method == "POST").filter_map(call).collect()
}

/// Waits until a double was asked to do something with a container.
async fn called(double: &Web, what: &str) {
    let called = async {
        while !calls(double).iter().any(|call| call.starts_with(what)) {
            double.asked(double.seen().len() + 1).await;
        }
    };
    soon(called).await;
}

/// Lets so many seconds pass at once.
async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

/// Waits until the end of the container `c` is waited for, for so many seconds.
async fn waits(double: &Web, seconds: u64) {
    called(double, "c/wait?").await;
    pass(seconds).await;
}

/// The grace is one for all of them, whether the pod is removed or is over.
#[tokio::test]
async fn sidecars_are_killed_in_what_is_left_of_the_grace_also_if_podman_has_lost_their_storage_and_conmon() {
    for is_over in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let double = Web::start_unix(&socket, Reply::ok(""));
        let runtime = Runtime::new(Config::new(socket, dir.path().join("files"), "me".into()));
        let sync = with_sidecars();
        let ended = if is_over { HashSet::from(["c".to_owned()]) } else { HashSet::new() };
        play_with_sidecars(&double, &sync, ended);
        let names = if is_over { &["second", "first"][..] } else { &["c", "second", "first"] };
        let stops = async {
            // The first one uses all of the grace, and each other one has the shortest.
            for (name, seconds) in names.iter().zip([600, 3, 3]) {
                called(&double, &format!("{name}/wait?")).await;
                if is_over && *name == "first" {
                    let status = runtime.status(sync.pod.uid()).unwrap();
                    let second = &status["initContainerStatuses"][1];
                    assert!(second["state"]["terminated"].is_object(), "{second:#}");
                }
                pass(seconds).await;
                called(&double, &format!("{name}/stop?")).await;
            }
        };
        if is_over {
            runtime.sync(&sync).await.unwrap();
            with(&runtime, async || stops.await).await;
        } else {
            let actual = runtime.list().await.unwrap().remove(0);
            let kill = KillPod { actual, grace: Some(Duration::from_mins(10)), pod: None };
            let (killed, ()) = tokio::join!(runtime.kill(&kill), stops);
            killed.unwrap();
        }
        let expected = names.iter().flat_map(|name| {
            // podman does not tell the signal of the others.
            let signal = if *name == "c" { "kill?signal=SIGRTMIN%2B3" } else { "kill?signal=15" };
            [signal, "wait?condition=exited", "stop?timeout=0"].map(|call| format!("{name}/{call}"))
        });
        assert_eq!(calls(&double), expected.collect::<Vec<_>>());
    }
}

/// podman's service is restarted while a pod is stopped.
#[tokio::test]
async fn a_grace_goes_on_when_podman_is_back_and_begins_again_when_its_pod_was_wanted_meanwhile() {
    let (dir, sync) = (tempfile::tempdir().unwrap(), with_sidecars());
    let socket = dir.path().join("s");
    let runtime = Runtime::new(Config::new(socket.clone(), dir.path().join("files"), "me".into()));
    let served = async || {
        let _ = fs::remove_file(&socket);
        let double = Web::start_unix(&socket, Reply::ok(""));
        play_with_sidecars(&double, &sync, ["first", "second"].map(str::to_owned).into());
        // A list finds out that the connections to the one before are closed.
        while soon(runtime.list()).await.is_err() {}
        double
    };
    let mut double = served().await;
    let actual = runtime.list().await.unwrap().remove(0);
    let kill = KillPod { actual, grace: Some(Duration::from_mins(10)), pod: None };
    for is_wanted in [false, true] {
        let cut_off = async {
            waits(&double, 400).await;
            drop(double);
        };
        let (killed, ()) = tokio::join!(runtime.kill(&kill), cut_off);
        killed.unwrap_err();
        double = served().await;
        if is_wanted {
            runtime.sync(&sync).await.unwrap();
        }
        let killed_after_all = async {
            waits(&double, 201).await;
            if is_wanted {
                runtime.list().await.unwrap();
                assert!(!calls(&double).iter().any(|call| call.starts_with("c/stop?")));
                waits(&double, 400).await;
            }
            called(&double, "c/stop?").await;
        };
        let (killed, ()) = tokio::join!(runtime.kill(&kill), killed_after_all);
        killed.unwrap();
        drop(double);
        double = served().await;
    }
}

/// podman looks each volume up that it lists, and fails if one is removed meanwhile.
#[tokio::test]
async fn a_volume_that_is_removed_while_podman_lists_them_fails_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let double = Web::start_unix(&socket, Reply::ok(""));
    let mut is_gone = false;
    double.play(move |request| {
        let lists_volumes = request.path.contains("/volumes/json?");
        is_gone ^= lists_volumes;
        match &*request.path {
            "/libpod/_ping" => ping(),
            _ if lists_volumes && is_gone => {
                let words = "no volume with name podmux_v found in database: no such volume";
                Reply::new(500, json!({"message": words}).to_string())
            }
            _ => Reply::ok("[]"),
        }
    });
    let runtime = Runtime::new(Config::new(socket, dir.path().join("files"), "me".into()));
    assert_eq!(runtime.list().await.unwrap(), []);
    runtime.kill(&to_kill("web")).await.unwrap();
}

/// podman lists no volume at all if it cannot look one of them up.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_volume_whose_plugin_is_down_is_in_no_pods_way() {
    let Some(podman) = Podman::start() else { return };
    let socket = podman.path("plugin.sock");
    let answer =
        json!({"Implements": ["VolumeDriver"], "Volume": {"Name": "foreign", "Mountpoint": "/none"}});
    let plugin = Web::start_unix(&socket, Reply::ok(answer.to_string()));
    let mut config = File::options().append(true).open(podman.path("containers.conf")).unwrap();
    writeln!(config, "[engine.volume_plugins]\nplugin = {socket:?}").unwrap();
    podman.run(&["volume", "create", "--driver", "plugin", "foreign"]);
    drop(plugin);
    let all = Connection::unix(&podman.socket()).unwrap().ask("GET", "/v4.3.0/libpod/volumes/json", b"");
    let all = all.unwrap();
    assert_eq!(all.code, 500, "{:#}", all.json());

    let node = Node::new(&podman);
    let agent = node.start();
    let web = with_data(pod("web", RUNS));
    node.write("web.json", &web);
    node.ready("web");
    let own = || podman.run(&["volume", "ls", "--quiet", "--filter", "name=^podmux_"]);
    assert_eq!(own(), "podmux_default_web-node1_data\n");
    node.remove("web.json");
    wait_for(|| (podman.pods().is_empty() && own().is_empty()).then_some(()));
    end(agent);
}

/// podman with `events_logger = "none"` accepts the request, and says then that it cannot fulfil it.
#[tokio::test(flavor = "multi_thread")]
async fn podmans_words_about_its_events_are_logged_once_until_an_event_comes_or_none_for_long() {
    let words = r#"cannot read events with the "none" backend"#;
    let event = json!({"Type": "pod", "Actor": {"Attributes": {}}}).to_string() + "\n";
    for first in [event.as_str(), "\n"] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let double = Web::start_unix(&socket, Reply::ok(""));
        let (_open, gate) = watch::channel(false);
        let mut attempts = 0;
        let first = first.to_owned();
        double.play(move |request| match &*request.path {
            "/libpod/_ping" => ping(),
            path if path.contains("/events?") => {
                attempts += 1;
                if attempts > 3 {
                    let steps = vec![Step::Send(first.clone().into()), Step::Until(gate.clone())];
                    return Reply::steps(None, steps);
                }
                Reply::ok(json!({"cause": "other", "message": words, "response": 500}).to_string() + "\n")
            }
            _ => Reply::ok("[]"),
        });
        let node = Node::at(&socket);
        let agent = node.start();
        let (agent, recovered) = spawn_blocking(move || (agent.logs("event stream recovered"), agent))
            .await
            .map(|(line, agent)| (agent, line))
            .unwrap();
        assert!(recovered.contains("failed=3"), "{recovered}");
        agent.signal(rustix::process::Signal::KILL);
        let (_, log) = agent.ends();
        let warnings: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("WARN") && line.contains("event stream failed"))
            .collect();
        assert!(warnings.len() == 1 && warnings[0].contains(words), "{warnings:#?}");
    }
}

/// Each stop brings a look at the pod: the requests of all of them would hold up those of other pods.
#[tokio::test]
async fn a_pod_with_many_containers_is_stopped_with_few_requests() {
    const CONTAINERS: usize = 30;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let double = Web::start_unix(&socket, Reply::ok(""));
    let runtime = Runtime::new(Config::new(socket, dir.path().join("files"), "me".into()));
    let names: Vec<String> = (0..CONTAINERS).map(|index| format!("c{index}")).collect();
    let containers: Vec<Value> = names.iter().map(|name| container(name, RUNS)).collect();
    let web = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"hostNetwork": true, "hostIPC": true, "containers": containers},
    });
    let prepared = Prepared::from_json(web.to_string().as_bytes()).unwrap();
    let pod = Arc::new(prepared.published_by(SourceName::File, Timestamp::UNIX_EPOCH));
    let mut stopped = HashSet::new();
    double.play(move |request| match (&*request.method, &*request.path) {
        (_, "/libpod/_ping") => Reply::ok("OK").header("libpod-api-version", "5.0.0"),
        ("POST", path) => {
            stopped.insert(path.split('/').nth_back(1).unwrap().to_owned());
            Reply::new(204, "")
        }
        ("DELETE", _) => Reply::ok("{}"),
        (_, path) if path.contains("/pods/json") => {
            let labels = json!({"podmux.uid": "u", "podmux.instance": "me"});
            Reply::ok(json!([{"Id": "p", "Name": "podmux_default_web", "Labels": labels}]).to_string())
        }
        (_, path) if path.contains("/containers/json") => {
            let listed = names.iter().map(|name| {
                let (state, exited) = if stopped.contains(name) { ("exited", 2) } else { ("running", 0) };
                json!({
                    "Id": name, "Pod": "p", "IsInfra": false, "State": state, "ExitCode": 0, "StartedAt": 3, "ExitedAt": exited,
                    "Image": "i", "ImageID": "i", "Labels": {"podmux.uid": "u", "podmux.container": name, "podmux.role": "main"},
                })
            });
            Reply::ok(listed.collect::<Value>().to_string())
        }
        (_, path) if path.contains("/containers/") => Reply::ok(json!({"State": {"OOMKilled": false}, "Config": {}}).to_string()),
        _ => Reply::ok("[]"),
    });
    let actual = ActualPod {
        key: PodKey::new("default", "web"),
        uid: "u".into(),
        hash: "h".into(),
        source: SourceName::File,
        is_ours: true,
        is_complete: true,
        started: None,
        status: None,
    };
    runtime.kill(&KillPod { actual, grace: None, pod: Some(pod) }).await.unwrap();
    // podman has noted the end before the start.
    let ended = &runtime.status(&"u".into()).unwrap()["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["finishedAt"], "1970-01-01T00:00:03Z", "{ended:#}");
    let seen = double.seen();
    let is_inspection = |path: &str| path.contains("/containers/") && path.ends_with("/json");
    let inspected = seen.iter().filter(|request| request.method == "GET" && is_inspection(&request.path));
    assert_eq!(inspected.count(), 2 * CONTAINERS, "for the signal, and for the end");
}

#[test]
fn a_paused_container_is_stopped_like_any_other() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    podman.run(&["pause", "podmux_default_web-node1_c_0"]);
    node.remove("web.json");
    wait_for(|| podman.pods().is_empty().then_some(()));
    end(agent);
}
