//! The podman runtime with a real podman: the agent starts, changes, adopts and removes pods.

use std::{
    env, fs, net::TcpListener, path::Path, process::Command, thread::available_parallelism, time::Duration,
};

use expect_test::expect;
use jiff::Timestamp;
use podmux::runtime::{
    PodRuntime as _,
    podman::{Config, Podman as Runtime},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    kubernetes::not_tested,
    plain::Connection,
    podman::{IMAGE, Node, Podman, RUNS, condition, container, host_port, pod, with_data},
    process::{Process, podmux, wait_for},
    web::{Reply, Web},
};

pub fn end(agent: Process) {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
}

pub fn state(status: &Value) -> &Value {
    &status["containerStatuses"][0]["state"]
}

/// Whether one more pod has come up: what happened before it has been noticed.
fn barrier(node: &Node, podman: &Podman) {
    node.write("barrier.json", &pod("barrier", RUNS));
    node.ready("barrier");
    node.remove("barrier.json");
    wait_for(|| podman.pids("default", "barrier-node1").is_empty().then_some(()));
}

#[test]
fn a_pod_comes_up_is_changed_and_goes() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    node.write("web.json", &web);
    let status = node.ready("web");
    assert_eq!(status["phase"], "Running");
    let started = status["startTime"].clone();
    let [(name, first)] = &podman.pids("default", "web-node1")[..] else { panic!("{status:#}") };
    assert_eq!(name, "c");
    let container = &status["containerStatuses"][0];
    assert_eq!(
        (&container["ready"], &container["started"], &container["restartCount"]),
        (&json!(true), &json!(true), &json!(0))
    );
    assert_eq!(container["image"], IMAGE);
    assert!(container["containerID"].as_str().unwrap().starts_with("podman://"), "{container:#}");
    assert!(container["state"]["running"]["startedAt"].is_string(), "{container:#}");
    assert!(status["podIP"].as_str().unwrap().starts_with("10."), "{status:#}");
    assert_eq!(podman.pods(), ["podmux_default_web-node1"]);
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(fs::read_to_string(format!("/proc/{first}/oom_score_adj")).unwrap().trim(), "1000");

    // An annotation restarts nothing.
    web["metadata"]["annotations"] = json!({"a": "b"});
    node.write("web.json", &web);
    wait_for(|| (node.pod("web")?["metadata"]["annotations"]["a"] == "b").then_some(()));
    barrier(&node, &podman);
    assert_eq!(podman.pids("default", "web-node1")[0].1, *first);

    // A changed spec does.
    web["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    node.write("web.json", &web);
    wait_for(|| podman.pids("default", "web-node1").iter().any(|(_, pid)| pid != first).then_some(()));
    assert_eq!(node.ready("web")["startTime"], started, "it keeps its UID");

    node.remove("web.json");
    wait_for(|| podman.pods().is_empty().then_some(()));
    end(agent);
}

#[test]
fn a_pod_that_shares_only_the_hosts_namespaces_has_no_infra_container() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    // The init container of the other one needs an infra container.
    for (name, containers) in [("web", 1), ("more", 3)] {
        let mut web = pod(name, RUNS);
        web["spec"]["hostNetwork"] = true.into();
        web["spec"]["hostAliases"] = json!([{"ip": "192.0.2.1", "hostnames": ["alias"]}]);
        web["spec"]["dnsPolicy"] = "None".into();
        web["spec"]["dnsConfig"] = json!({"nameservers": ["192.0.2.3"], "searches": ["example.org"]});
        if name == "more" {
            web["spec"]["initContainers"] = json!([container("init", "true")]);
        }
        node.write(&format!("{name}.json"), &web);
        let status = node.ready(name);
        assert_eq!(status["podIP"], status["hostIP"], "{status:#}");
        let pod = format!("podmux_default_{name}-node1");
        let inspected = podman.json(&["pod", "inspect", &pod]);
        assert_eq!(inspected["NumContainers"], containers, "{inspected:#}");
        let files = "hostname && cat /etc/hosts /etc/resolv.conf";
        let output = podman.run(&["exec", &format!("{pod}_c_0"), "sh", "-c", files]);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(output.lines().next(), Some(host.trim()));
        for line in ["192.0.2.1\talias", "nameserver 192.0.2.3", "search example.org"] {
            assert!(output.lines().any(|own| own == line), "no {line:?} in:\n{output}");
        }
    }

    podman.run(&["kill", "podmux_default_web-node1_c_0"]);
    node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    node.ready("web");
    // There are never two of one container.
    let pids = podman.pids("default", "web-node1");
    podman.run(&["start", "podmux_default_web-node1_c_0"]);
    let first = || podman.json(&["inspect", "podmux_default_web-node1_c_0"])[0]["State"].clone();
    wait_for(|| (first()["Running"] == false).then_some(()));
    assert_eq!(podman.pids("default", "web-node1"), pids);
    end(agent);
}

#[test]
fn after_a_reboot_pods_are_made_again_and_completed_ones_stay() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut inner = with_data(pod("inner", RUNS));
    let memory = json!({"name": "memory", "emptyDir": {"medium": "Memory"}});
    inner["spec"]["volumes"].as_array_mut().unwrap().push(memory);
    let mount = json!({"name": "memory", "mountPath": "/memory"});
    inner["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
    let (mut outer, mut done, mut crashing) =
        (pod("outer", RUNS), pod("done", "exit 0"), pod("crashing", "exit 7"));
    outer["spec"]["hostNetwork"] = true.into();
    crashing["spec"]["hostNetwork"] = true.into();
    done["spec"]["restartPolicy"] = "Never".into();
    for (name, pod) in [("outer", &outer), ("inner", &inner)] {
        node.write(&format!("{name}.json"), pod);
        node.ready(name);
        // It has been restarted.
        podman.run(&["kill", &format!("podmux_default_{name}-node1_c_0")]);
        node.until(name, "restarted", |status| {
            status["containerStatuses"][0]["restartCount"] == 1 && state(status)["running"].is_object()
        });
    }
    let inside = |container: &str, script: &str| podman.run(&["exec", container, "sh", "-c", script]);
    inside("podmux_default_inner-node1_c_1", "cd data; touch old ../memory/old; chmod 700 . ../memory");
    node.write("done.json", &done);
    node.write("crashing.json", &crashing);
    let id = |status: &Value| status["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    let completed = node.until("done", "completed", |status| status["phase"] == "Succeeded");
    let count = |status: &Value| status["containerStatuses"][0]["restartCount"].as_u64();
    let has_crashed = |least: Option<u64>| {
        move |status: &Value| {
            count(status) >= least && state(status)["waiting"]["reason"] == "CrashLoopBackOff"
        }
    };
    let crashed = count(&node.until("crashing", "in a crash loop", has_crashed(Some(1))));
    let before = [node.ready("outer"), node.ready("inner")].map(|status| id(&status));
    agent.signal(Signal::KILL);
    agent.ends();
    // Until podman has cleaned up, it forgets at a reboot that the container has ended.
    wait_for(|| {
        let ended = &podman.json(&["inspect", "podmux_default_done-node1_c_0"])[0]["State"]["Status"];
        (*ended == "exited").then_some(())
    });
    podman.reboot();
    let is_stopped = |name: &str| podman.pids("default", &format!("{name}-node1")).is_empty();
    assert!(is_stopped("outer") && is_stopped("inner"));

    let agent = node.start();
    for (name, before) in ["outer", "inner"].into_iter().zip(before) {
        let status = node.ready(name);
        let container = &status["containerStatuses"][0];
        // A container that ended with the machine has neither succeeded nor failed.
        assert_eq!((&container["restartCount"], container.get("lastState")), (&json!(0), None), "{status:#}");
        assert_ne!(id(&status), before);
        let filter = format!("label=podmux.name={name}-node1");
        let all = ["ps", "--all", "--format", "{{.Names}}", "--filter", &filter, "--filter"];
        let all = podman.run(&all.into_iter().chain(["label=podmux.container"]).collect::<Vec<_>>());
        assert_eq!(all.trim(), format!("podmux_default_{name}-node1_c_0"), "the containers before are gone");
    }
    let status = node.until("done", "completed", |status| status["phase"] == "Succeeded");
    assert_eq!(id(&status), id(&completed), "it is not run again");
    let first = node.until("crashing", "observed", |status| count(status).is_some());
    assert!(count(&first) >= crashed, "{first:#}");
    node.until("crashing", "in the same crash loop", has_crashed(crashed.map(|crashed| crashed + 1)));
    let seen = inside("podmux_default_inner-node1_c_0", "stat -c %a data memory; ls data memory");
    assert_eq!(seen, "700\n777\ndata:\nold\n\nmemory:\n");
    end(agent);
}

/// It runs at most once, as with the kubelet.
#[test]
fn a_pod_that_must_not_be_restarted_has_failed_after_a_reboot() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let once = |name: &str, host_network: bool| {
        let mut once = pod(name, RUNS);
        once["spec"]["restartPolicy"] = "Never".into();
        once["spec"]["hostNetwork"] = host_network.into();
        once
    };
    let mut init = once("init", false);
    init["spec"]["initContainers"] = json!([container("first", RUNS)]);
    let mut inner = once("inner", false);
    inner["spec"]["initContainers"] = json!([container("side", RUNS)]);
    inner["spec"]["initContainers"][0]["restartPolicy"] = "Always".into();
    for (name, pod) in [("inner", inner), ("outer", once("outer", true)), ("init", init)] {
        node.write(&format!("{name}.json"), &pod);
    }
    let mut partial = once("partial", false);
    let other = json!({"name": "other", "image": "localhost/none:1", "imagePullPolicy": "Never"});
    partial["spec"]["containers"].as_array_mut().unwrap().push(other);
    node.write("partial.json", &partial);
    node.ready("inner");
    node.ready("outer");
    node.until("partial", "begun in part", |status| state(status)["running"].is_object());
    let first = |status: &Value| status["initContainerStatuses"][0]["state"].clone();
    node.until("init", "begun", |status| first(status)["running"].is_object());
    agent.signal(Signal::KILL);
    agent.ends();
    podman.reboot();

    for _ in 0..2 {
        let agent = node.start();
        for name in ["inner", "outer", "init", "partial"] {
            // As with the kubelet, what has not run still waits.
            let phase = if name == "partial" { "Pending" } else { "Failed" };
            let has_ended = |state: &Value| state["terminated"].is_object();
            let status = node.until(name, "over", |status| {
                status["phase"] == phase && (has_ended(state(status)) || has_ended(&first(status)))
            });
            let ended = if name == "init" { first(&status) } else { state(&status).clone() };
            assert_eq!(ended["terminated"]["exitCode"], 255, "{status:#}");
            assert_eq!(ended["terminated"]["message"], "the machine was restarted while it ran");
            if name == "inner" {
                assert_eq!(first(&status)["terminated"]["exitCode"], 255, "its sidecar: {status:#}");
            }
            assert!(podman.pids("default", &format!("{name}-node1")).is_empty());
        }
        end(agent);
    }
}

#[test]
fn a_restarted_agent_adopts_what_runs() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.write("old.json", &pod("old", RUNS));
    let mut last =
        pod("last", "trap 'echo bye > /dev/termination-log; exit 3' TERM; while :; do sleep 0.1; done");
    last["spec"]["restartPolicy"] = "Never".into();
    node.write("last.json", &last);
    node.ready("web");
    node.ready("old");
    node.ready("last");
    let before = podman.pids("default", "web-node1");
    end(agent);
    assert_eq!(podman.pids("default", "web-node1"), before);

    let agent = node.start();
    let status = node.ready("web");
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(condition(&status, "Ready")["lastTransitionTime"], status["startTime"]);
    agent.signal(Signal::KILL);
    agent.ends();
    // While no agent runs, a manifest goes and another one comes.
    node.remove("old.json");
    node.write("new.json", &pod("new", RUNS));
    let agent = node.start();
    node.ready("new");
    node.ready("web");
    wait_for(|| podman.pids("default", "old-node1").is_empty().then_some(()));
    assert_eq!(podman.pids("default", "web-node1"), before);
    // The file for its message is still there.
    podman.run(&["stop", "podmux_default_last-node1_c_0"]);
    let status = node.until("last", "failed", |status| status["phase"] == "Failed");
    assert_eq!(state(&status)["terminated"]["message"], "bye\n");
    end(agent);
}

#[test]
fn a_restarted_agent_reports_no_start_of_what_ran_before() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let events = |name: &str| {
        let path = format!("/api/v1/events?fieldSelector=involvedObject.name={name}-node1");
        let (_, list) = wait_for(|| node.ask("GET", &path, &Value::Null));
        let text = |event: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (reason, path) = (&event["reason"], &event["involvedObject"]["fieldPath"]);
            format!("{} {} {}", text(reason), text(path), event["count"])
        };
        let mut events: Vec<String> = list["items"].as_array().unwrap().iter().map(text).collect();
        events.retain(|event| event.starts_with("Created") || event.starts_with("Started"));
        events.sort();
        events
    };
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["initContainers"] = json!([container("first", "exit 0")]);
    node.write("web.json", &web);
    node.write("crashing.json", &pod("crashing", "exit 7"));
    node.ready("web");
    let is_waiting = |count: u64| {
        move |status: &Value| {
            status["containerStatuses"][0]["restartCount"] == count
                && state(status)["waiting"]["reason"] == "CrashLoopBackOff"
        }
    };
    node.until("crashing", "in a crash loop", is_waiting(1));
    let (c, first) = ("spec.containers{c}", "spec.initContainers{first}");
    let once = [format!("Created {c} 1"), format!("Started {c} 1")];
    let both = [&once[0], &format!("Created {first} 1"), &once[1], &format!("Started {first} 1")];
    wait_for(|| events("web").iter().eq(both).then_some(()));
    // The start of a container has whole seconds, so one of the second in which an agent starts is reported by it.
    let seen = Timestamp::now().as_second();
    wait_for(|| (Timestamp::now().as_second() > seen).then_some(()));
    agent.signal(Signal::KILL);
    agent.ends();

    let agent = node.start();
    node.until("crashing", "restarted by this agent", is_waiting(2));
    node.ready("web");
    wait_for(|| (events("crashing") == once).then_some(()));
    assert_eq!(events("web"), [""; 0]);
    end(agent);
}

#[test]
fn pods_of_others_are_left_alone() {
    let Some(podman) = Podman::start() else { return };
    podman.run(&["pod", "create", "--name", "stranger"]);
    // Its volume is empty, without labels, and has a name of ours.
    let volume = ["--volume", "podmux_default_strange_data:/data"];
    let run = ["run", "--detach", "--pod", "stranger", "--name", "strange"];
    podman.run(&[&run[..], &volume, &[IMAGE, "sleep", "1000"]].concat());
    let pid = || podman.json(&["inspect", "strange"])[0]["State"]["Pid"].as_i64().unwrap();
    let stranger = pid();
    let (node, other) = (Node::new(&podman), Node::new(&podman));
    let (mut agent, other_agent) = (node.start(), other.start());
    node.write("mine.json", &pod("mine", RUNS));
    other.write("theirs.json", &pod("theirs", RUNS));
    node.ready("mine");
    other.ready("theirs");
    let theirs = podman.pids("default", "theirs-node1");
    // The other agent's pod has this name.
    node.write("theirs.json", &pod("theirs", RUNS));
    node.until("theirs", "waiting", |status| status["reason"] == "WaitingForOtherInstance");
    // A clone has the labels of its pod. It is found while the agent runs, and when the next one begins.
    let mine = podman.pids("default", "mine-node1");
    podman.run(&["pod", "clone", "--start", "podmux_default_mine-node1"]);
    for restart in [false, true] {
        if restart {
            end(agent);
            agent = node.start();
        }
        barrier(&node, &podman);
        let now = podman.pids("default", "mine-node1");
        assert!(mine.iter().all(|pid| now.contains(pid)), "restart: {restart}, {mine:?} {now:?}");
    }
    node.remove("mine.json");
    wait_for(|| podman.pids("default", "mine-node1").is_empty().then_some(()));
    barrier(&node, &podman);
    assert_eq!(podman.pids("default", "theirs-node1"), theirs);
    assert_eq!(pid(), stranger);
    end(agent);
    end(other_agent);
}

#[test]
fn namespaces_keep_pods_of_one_name_apart() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    for namespace in ["a", "b"] {
        let mut web = with_data(pod("x.y", RUNS));
        web["metadata"]["namespace"] = namespace.into();
        node.write(&format!("{namespace}.json"), &web);
    }
    // With dots these names would be one with that of a container.
    let mut x = pod("x", RUNS);
    x["metadata"]["namespace"] = "a".into();
    x["spec"]["containers"][0]["name"] = "y-node1".into();
    node.write("x.json", &x);
    let is_up = |namespace: &str, name: &str| !podman.pids(namespace, &format!("{name}-node1")).is_empty();
    wait_for(|| (is_up("a", "x.y") && is_up("b", "x.y") && is_up("a", "x")).then_some(()));
    node.remove("b.json");
    wait_for(|| (podman.volumes() == ["podmux_a_x.y-node1_data"]).then_some(()));
    barrier(&node, &podman);
    assert!(is_up("a", "x.y") && is_up("a", "x") && !is_up("b", "x.y"));
    agent.signal(Signal::TERM);
    let (_, log) = agent.ends();
    assert!(!log.contains("being used"), "{log}");
}

/// A pod that ends with 3 after it has shown what it was given.
fn curious(host: &Path) -> Value {
    let script = r#"echo "$1 $A $B $N"; id; hostname; cat /host/file /memory/kept; \
        touch /data/x /memory/x && echo written; touch /.podmux/memory/y || echo read-only; \
        echo without $(grep -E ' /(data|memory) ' /proc/mounts | grep -cE 'nosuid|nodev'); stat -c 'private %a' /private; [ $(stat -c %Y /private) -gt 1000000000 ] && echo new; grep CapEff /proc/self/status; cat /etc/hosts; \
        echo files $(ls -A /data /memory); \
        { head -c 5000 /dev/zero | tr '\0' a; echo done; } > /dev/termination-log; exit 3"#;
    let mut web = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "restartPolicy": "Never", "hostname": "me",
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["far"]}],
            "securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000]},
            "initContainers": [container("make", "chmod 751 /private; echo made > /host/file; echo kept > /memory/kept")],
            "containers": [{
                "name": "c", "image": IMAGE, "command": ["sh", "-c", script, "sh"], "args": ["$(A)-$$(A)-$(C)"],
                "env": [
                    {"name": "A", "value": "a"}, {"name": "B", "value": "$(A)b"},
                    {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "securityContext": {"readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                "terminationMessagePath": "dev/termination-log",
                "resources": {"limits": {"memory": "32Mi", "cpu": "500m"}},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/memory"},
                    {"name": "host", "mountPath": "/host", "readOnly": true},
                    {"name": "private", "mountPath": "private"},
                ],
            }],
            "volumes": [
                {"name": "private", "emptyDir": {}}, {"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "host", "hostPath": {"path": host, "type": "DirectoryOrCreate"}},
                {"name": "token", "projected": {"sources": []}},
            ],
        },
    });
    web["spec"]["initContainers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}, {"name": "memory", "mountPath": "/memory"}, {"name": "private", "mountPath": "/private"}, {"name": "data", "mountPath": "/data"}]);
    web["spec"]["initContainers"][0]["securityContext"] =
        json!({"runAsUser": 0, "capabilities": {"add": ["SYS_TIME"], "drop": ["SYS_TIME"]}});
    web
}

#[test]
fn a_container_gets_what_its_pod_says() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    let agent = node.start();
    node.write("web.json", &curious(&host));
    let status = node.until("web", "failed", |status| status["phase"] == "Failed");
    let ended = &state(&status)["terminated"];
    assert_eq!(
        (&ended["exitCode"], &ended["reason"], &ended["message"]),
        (&json!(3), &json!("Error"), &json!(format!("{}done\n", "a".repeat(4091))))
    );
    let init = &status["initContainerStatuses"][0];
    assert_eq!((&init["ready"], &init["state"]["terminated"]["reason"]), (&json!(true), &json!("Completed")));
    let unsupported = condition(&status, "podmux.dev/Unsupported");
    assert_eq!(unsupported["reason"], "FieldsNotSupported");
    assert_eq!(unsupported["message"], "podman cannot do these fields: spec.volumes[4].projected");
    assert_eq!(node.messages().len(), 2);
    let output = podman.output("podmux_default_web-node1_c_0");
    for line in [
        "a-$(A)-$(C) a ab web-node1",
        "uid=1000(1000) gid=2000(2000) groups=2000(2000),3000",
        "me",
        "made",
        "kept",
        "written",
        "read-only",
        "without 0",
        // Not those that the image has at these paths.
        "files /data: x /memory: kept x",
        // Only the first container that uses a volume gets it open for every user.
        "private 751",
        "new",
        "CapEff:\t0000000000000000",
        "1.2.3.4\tfar",
    ] {
        assert!(output.lines().any(|given| given.starts_with(line)), "no {line:?} in {output}");
    }
    let [started, finished] =
        ["startedAt", "finishedAt"].map(|field| ended[field].as_str().unwrap().parse::<Timestamp>().unwrap());
    assert!(started <= finished);
    let inspected = podman.json(&["inspect", "podmux_default_web-node1_c_0"]);
    let labels = inspected[0]["Config"]["Labels"].as_object().unwrap();
    let names =
        ["backoff", "boot", "container", "index", "instance", "name", "namespace", "restarts", "role", "uid"];
    assert!(labels.keys().map(String::as_str).eq(names.map(|name| format!("podmux.{name}"))), "{labels:?}");
    assert_eq!(inspected[0]["HostConfig"]["Memory"], 32 << 20);
    assert_eq!(inspected[0]["HostConfig"]["CpuQuota"], 50_000);
    assert_eq!(inspected[0]["HostConfig"]["CpuShares"], 512);
    assert_eq!(status["qosClass"], "Burstable");
    assert_eq!(inspected[0]["HostConfig"]["ReadonlyRootfs"], true);
    assert_eq!(
        podman.volumes(),
        ["data", "memory", "private"].map(|name| format!("podmux_default_web-node1_{name}"))
    );
    assert!(host.join("file").exists());
    node.remove("web.json");
    wait_for(|| (podman.pods().is_empty() && podman.volumes().is_empty()).then_some(()));
    wait_for(|| node.messages().is_empty().then_some(()));
    end(agent);
}

#[test]
fn messages_are_as_long_as_with_the_kubelet() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    // Its last 80 lines have 1.6 MB.
    let prints = "i=0; while [ $i -lt 100 ]; do head -c 20000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; \
                  head -c 3000 /dev/zero | tr '\\0' y; echo oops; exit 1";
    let writes = "{ head -c 3000 /dev/zero | tr '\\0' a; head -c 1000 /dev/zero | tr '\\0' b; } > /dev/termination-log";
    let mut web = pod("web", "");
    web["spec"]["restartPolicy"] = "Never".into();
    web["spec"]["containers"] =
        json!([container("c", prints), container("d", writes), container("e", ""), container("f", "")]);
    web["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
    node.write("web.json", &web);
    let status = node.until("web", "failed", |status| status["phase"] == "Failed");
    let message = |index: usize| &status["containerStatuses"][index]["state"]["terminated"]["message"];
    assert_eq!(*message(0), format!("{}oops\n", "y".repeat(2043)));
    // Each of the four has a quarter of 12 KiB.
    assert_eq!(*message(1), format!("{}{}", "a".repeat(3000), "b".repeat(72)));
    end(agent);
}

#[test]
fn names_may_be_as_long_as_kubernetes_allows() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let (name, volume) = ("n".repeat(247), "v".repeat(63));
    let mut web = pod(&name, RUNS);
    web["spec"]["volumes"] = json!([{"name": volume, "emptyDir": {}}]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{"name": volume, "mountPath": "/data"}]);
    node.write("web.json", &web);
    node.ready(&name);
    node.remove("web.json");
    wait_for(|| (podman.pods().is_empty() && podman.volumes().is_empty()).then_some(()));
    end(agent);
}

#[test]
fn a_port_of_the_host_leads_to_its_container() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let port = host_port();
    let mut web = pod("web", "echo hello > /tmp/index.html; exec httpd -f -p 80 -h /tmp");
    web["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
    node.write("web.json", &web);
    let status = node.ready("web");
    let fetch = |address: &str| {
        let output = Command::new("busybox").args(["wget", "-qO-", &format!("http://{address}/")]).output();
        output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let address = status["podIP"].as_str().unwrap();
    assert_eq!(status["podIPs"], json!([{"ip": address}]));
    assert_eq!(wait_for(|| fetch(address)), b"hello\n");
    let host = status["hostIP"].as_str().unwrap();
    assert_eq!(wait_for(|| fetch(&format!("{host}:{port}"))), b"hello\n");
    end(agent);
}

#[test]
fn init_containers_run_in_order_and_a_sidecar_beside() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let log = node.path("log");
    fs::create_dir(&log).unwrap();
    let agent = node.start();
    let wait = |file: &str| format!("while [ ! -e /log/{file} ]; do sleep 0.1; done; ");
    let mut web = pod("web", &format!("echo main >> /log/log; {}", wait("end")));
    web["spec"]["restartPolicy"] = "OnFailure".into();
    web["spec"]["terminationGracePeriodSeconds"] = 60.into();
    let last = wait("last");
    let script = format!("echo sidecar >> /log/log; trap '{last} exit 0' TERM; while :; do sleep 0.1; done");
    web["spec"]["initContainers"] = json!([
        // It succeeds at its second attempt.
        container("one", "echo one >> /log/log; [ -e /log/tried ] || { touch /log/tried; exit 1; }"),
        container("side", &script),
        container("two", &format!("{} echo two >> /log/log", wait("go"))),
    ]);
    web["spec"]["initContainers"][1]["restartPolicy"] = "Always".into();
    web["spec"]["volumes"] = json!([{"name": "log", "hostPath": {"path": log}}]);
    for list in ["initContainers", "containers"] {
        for container in web["spec"][list].as_array_mut().unwrap() {
            container["volumeMounts"] = json!([{"name": "log", "mountPath": "/log"}]);
        }
    }
    node.write("web.json", &web);
    let status = node.until("web", "in its third init container", |status| {
        status["initContainerStatuses"][2]["state"]["running"].is_object()
    });
    assert_eq!(status["phase"], "Pending");
    assert_eq!(state(&status)["waiting"]["reason"], "PodInitializing");
    assert_eq!(status["initContainerStatuses"][0]["restartCount"], 1);
    assert_eq!(status["initContainerStatuses"][1]["started"], true);
    let ready = [0, 1, 2].map(|index| status["initContainerStatuses"][index]["ready"] == true);
    assert_eq!((ready, &condition(&status, "Initialized")["status"]), ([true, true, false], &json!("False")));
    fs::write(log.join("go"), "").unwrap();
    node.ready("web");
    // It may be ready before its shell has begun.
    let written = wait_for(|| fs::read_to_string(log.join("log")).ok().filter(|log| log.ends_with("main\n")));
    assert_eq!(written, "one\none\nsidecar\ntwo\nmain\n");
    // It has done its work.
    podman.run(&["rm", "podmux_default_web-node1_two_0"]);
    let status = node.until("web", "without its third init container", |status| {
        status["initContainerStatuses"][2]["containerID"].is_null()
    });
    let two = &status["initContainerStatuses"][2];
    assert_eq!((&two["ready"], &two["state"]["terminated"]["reason"]), (&json!(true), &json!("Completed")));
    // The sidecar ends with the pod, which is not over before.
    fs::write(log.join("end"), "").unwrap();
    let status = node.until("web", "in its last container", |status| state(status)["terminated"].is_object());
    assert!(status["initContainerStatuses"][1]["state"]["running"].is_object(), "{status:#}");
    assert_eq!(status["phase"], "Running");
    fs::write(log.join("last"), "").unwrap();
    let status = node.until("web", "at its end", |status| {
        status["phase"] == "Succeeded"
            && status["initContainerStatuses"][1]["state"]["terminated"].is_object()
    });
    assert_eq!(state(&status)["terminated"]["reason"], "Completed");
    assert!(podman.pids("default", "web-node1").is_empty());
    end(agent);
}

#[test]
fn nothing_starts_before_the_startup_probe_of_a_sidecar_has_passed() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let agent = node.start();
    let mut web = pod("web", &format!("echo main >> /host/log; {RUNS}"));
    web["spec"]["initContainers"] =
        json!([container("side", RUNS), container("next", "echo next >> /host/log")]);
    let side = &mut web["spec"]["initContainers"][0];
    side["restartPolicy"] = "Always".into();
    side["startupProbe"] = json!({"exec": {"command": ["test", "-e", "/host/go"]}, "periodSeconds": 1, "failureThreshold": 1000});
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    for list in ["initContainers", "containers"] {
        for container in web["spec"][list].as_array_mut().unwrap() {
            container["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
        }
    }
    node.write("web.json", &web);
    let status = node.until("web", "with a sidecar that runs", |status| {
        status["initContainerStatuses"][0]["state"]["running"].is_object()
    });
    assert_eq!(status["initContainerStatuses"][0]["started"], false, "{status:#}");
    barrier(&node, &podman);
    assert!(!host.join("log").exists());
    fs::write(host.join("go"), "").unwrap();
    node.ready("web");
    // It may be ready before its shell has begun.
    let written =
        wait_for(|| fs::read_to_string(host.join("log")).ok().filter(|log| log.ends_with("main\n")));
    assert_eq!(written, "next\nmain\n");
    end(agent);
}

/// What is stopped may still answer, and take its leave of others.
#[test]
fn a_container_has_its_network_to_its_end() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let agent = node.start();
    let script = "trap 'sleep 2; ip addr show eth0 > /host/network 2>&1; exit 0' TERM; touch /host/up; while :; do sleep 0.1; done";
    let mut web = pod("web", script);
    web["spec"]["terminationGracePeriodSeconds"] = 60.into();
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    node.write("web.json", &web);
    let address = node.ready("web")["podIP"].as_str().unwrap().to_owned();
    wait_for(|| host.join("up").exists().then_some(()));
    node.remove("web.json");
    wait_for(|| podman.pods().is_empty().then_some(()));
    let network = fs::read_to_string(host.join("network")).unwrap();
    assert!(network.contains(&format!("inet {address}/")), "{network}");
    end(agent);
}

/// As with the kubelet: what needs them may use them to its end.
#[test]
fn sidecars_are_stopped_last_and_in_reverse_order() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let agent = node.start();
    let script = |name: &str, seconds: u8| {
        format!(
            "trap 'sleep {seconds}; echo {name} >> /host/ends; exit 0' TERM; touch /host/{name}; while [ ! -e /host/{name}-ends ]; do sleep 0.1; done"
        )
    };
    let mut web = pod("web", &script("main", 1));
    web["spec"]["terminationGracePeriodSeconds"] = 60.into();
    web["spec"]["initContainers"] =
        json!([container("first", &script("first", 0)), container("second", &script("second", 1))]);
    for sidecar in 0..2 {
        web["spec"]["initContainers"][sidecar]["restartPolicy"] = "Always".into();
    }
    for list in ["initContainers", "containers"] {
        for container in web["spec"][list].as_array_mut().unwrap() {
            container["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
        }
    }
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    node.write("web.json", &web);
    wait_for(|| ["main", "first", "second"].iter().all(|name| host.join(name).exists()).then_some(()));
    node.remove("web.json");
    wait_for(|| podman.pods().is_empty().then_some(()));
    assert_eq!(fs::read_to_string(host.join("ends")).unwrap(), "main\nsecond\nfirst\n");

    // It ends by itself.
    web["spec"]["restartPolicy"] = "Never".into();
    fs::write(host.join("main-ends"), "").unwrap();
    node.write("web.json", &web);
    node.until("web", "over", |status| {
        let mut sidecars = status["initContainerStatuses"].as_array().into_iter().flatten();
        status["phase"] == "Succeeded" && sidecars.all(|sidecar| sidecar["state"]["terminated"].is_object())
    });
    assert_eq!(fs::read_to_string(host.join("ends")).unwrap(), "main\nsecond\nfirst\nsecond\nfirst\n");
    end(agent);
}

#[test]
fn an_init_container_that_fails_ends_a_pod_that_is_never_restarted() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["restartPolicy"] = "Never".into();
    let go = node.path("go");
    let ends = "trap 'until [ -e /go/go ]; do sleep 0.1; done; exit 0' TERM; while :; do sleep 0.1; done";
    web["spec"]["initContainers"] =
        json!([container("side", ends), container("broken", "exit 3"), container("next", RUNS)]);
    web["spec"]["initContainers"][0]["restartPolicy"] = "Always".into();
    web["spec"]["initContainers"][0]["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    web["spec"]["volumes"] = json!([{"name": "go", "hostPath": {"path": go}}]);
    web["spec"]["terminationGracePeriodSeconds"] = 100.into();
    node.write("web.json", &web);
    let init = |status: &Value, index: usize| status["initContainerStatuses"][index]["state"].clone();
    let status = node.until("web", "failed", |status| init(status, 1)["terminated"].is_object());
    assert_eq!(status["phase"], "Pending", "its sidecar still runs: {status:#}");
    fs::write(go.join("go"), "").unwrap();
    let status = node.until("web", "failed and over", |status| {
        status["phase"] == "Failed" && init(status, 0)["terminated"].is_object()
    });
    assert_eq!(init(&status, 1)["terminated"]["exitCode"], 3);
    for never_begun in [&init(&status, 2), state(&status)] {
        assert_eq!(*never_begun, json!({"waiting": {"reason": "PodInitializing"}}));
    }
    barrier(&node, &podman);
    let filters = ["--filter", "label=podmux.name=web-node1", "--filter", "label=podmux.container"];
    let all = podman.run(&[&["ps", "--all", "--format", "{{.Names}}"][..], &filters].concat());
    let mut all: Vec<&str> = all.lines().collect();
    all.sort_unstable();
    let made = ["podmux_default_web-node1_broken_0", "podmux_default_web-node1_side_0"];
    assert_eq!(all, made, "nothing is started any more");
    end(agent);
}

#[test]
fn an_image_that_is_missing_is_used_when_it_appears() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    // No server listens there.
    let [absent, later] = ["absent", "later"].map(|name| {
        let mut container = container(name, RUNS);
        container["image"] = format!("localhost:1/{name}:1").into();
        container
    });
    web["spec"]["containers"] = json!([absent, later]);
    node.write("web.json", &web);
    let status = node
        .until("web", "waiting for its image", |status| state(status)["waiting"]["reason"] == "ErrImagePull");
    let message = state(&status)["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("localhost:1") && message.contains("refused"), "{message}");
    assert_eq!(status["phase"], "Pending");
    let own = |status: &Value, index: usize| status["containerStatuses"][index]["state"].clone();
    let backs_off = |status: &Value, index| own(status, index)["waiting"]["reason"] == "ImagePullBackOff";
    node.until("web", "backing off", |status| backs_off(status, 0) && backs_off(status, 1));
    podman.run(&["tag", IMAGE, "localhost:1/later:1"]);
    node.until("web", "running in part", |status| own(status, 1)["running"].is_object());
    // Without waiting for the end of its delay: that of the other one comes before it.
    let log = agent.stderr.text();
    let failures = log.lines().filter(|line| line.contains("container failed") && line.contains("absent"));
    assert_eq!(failures.count(), 2, "{log}");
    podman.run(&["tag", IMAGE, "localhost:1/absent:1"]);
    node.ready("web");

    let mut never = pod("never", RUNS);
    never["spec"]["containers"][0]["image"] = "localhost/other:1".into();
    never["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
    node.write("never.json", &never);
    let mut path = pod("path", RUNS);
    path["spec"]["containers"][0]["image"] = "./manifests".into();
    node.write("path.json", &path);
    node.until("never", "refused", |status| state(status)["waiting"]["reason"] == "ErrImageNeverPull");
    node.until("path", "refused", |status| state(status)["waiting"]["reason"] == "InvalidImageName");
    podman.run(&["tag", IMAGE, "localhost/other:1"]);
    node.ready("never");
    agent.signal(Signal::TERM);
    let (_, log) = agent.ends();
    // Without the delays there are thousands.
    assert!(log.matches("container failed").count() < 20, "{log}");
}

#[test]
fn a_pod_whose_container_does_not_start_is_named_until_it_does() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let runtime = || Some(node.ask("GET", "/sinks", &Value::Null)?.1["items"][0].clone());
    let fails = |name: &str, reason: &str| {
        let pod = format!("default/{name}-node1");
        wait_for(|| {
            let sink = runtime().filter(|sink| sink["state"] == "failing")?;
            let mut pods = sink["failingPods"].as_array()?.iter();
            pods.find(|failing| failing["pod"] == *pod && failing["reason"] == reason).cloned()
        })
    };
    let count = || {
        let metrics = Connection::unix(&node.path("s")).unwrap().ask("GET", "/metrics", b"").unwrap().text();
        let count = metrics.lines().find_map(|line| line.strip_prefix("podmux_runtime_failing_pods "));
        count.unwrap().to_owned()
    };
    let nothing_fails = || {
        wait_for(|| {
            let sink = runtime().filter(|sink| sink["state"] == "current")?;
            (sink["failingPods"].is_null() && count() == "0").then_some(())
        });
    };
    let warnings = |name: &str| {
        let log = agent.stderr.text();
        let is_it =
            |line: &&str| line.contains("WARN") && line.contains(&format!("pod=\"default/{name}-node1\""));
        log.lines().filter(is_it).map(str::to_owned).collect::<Vec<_>>()
    };

    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["command"] = json!(["/none"]);
    node.write("web.json", &web);
    let failing = fails("web", "RunContainerError");
    let error = failing["error"].as_str().unwrap();
    assert!(error.starts_with("default/web-node1: container c: ") && error.contains("/none"), "{error}");
    assert_eq!(count(), "1");
    wait_for(|| (fails("web", "RunContainerError")["attempts"].as_u64() >= Some(2)).then_some(()));
    let warned = warnings("web");
    assert!(warned.len() == 1 && warned[0].contains("container failed; it is retried"), "{warned:#?}");
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    nothing_fails();

    let mut later = pod("later", RUNS);
    later["spec"]["containers"][0]["image"] = "localhost/other:1".into();
    later["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
    node.write("later.json", &later);
    fails("later", "ErrImageNeverPull");
    podman.run(&["tag", IMAGE, "localhost/other:1"]);
    node.ready("later");
    nothing_fails();
    agent.logs("container recovered");

    node.write("loops.json", &pod("loops", "exit 3"));
    let error = fails("loops", "CrashLoopBackOff")["error"].to_string();
    assert!(error.contains("with exit code 3"), "{error}");
    node.until("loops", "restarted twice", |status| status["containerStatuses"][0]["restartCount"] == 2);
    fails("loops", "CrashLoopBackOff");
    assert_eq!(warnings("loops").len(), 1);
    node.remove("loops.json");
    nothing_fails();
    end(agent);
}

/// As with the kubelet, the container of the pod `web` waits in its crash loop until its second restart has succeeded.
fn waits_until_it_is_restarted(node: &Node) {
    let path = "/api/v1/namespaces/default/pods?watch=1&fieldSelector=metadata.name=web-node1";
    let connection = wait_for(|| Connection::unix(&node.path("s")).ok());
    let mut events = connection.lines(path).unwrap();
    let mut has_waited = false;
    loop {
        let event: Value = serde_json::from_str(&events.next().unwrap()).unwrap();
        let container = &event["object"]["status"]["containerStatuses"][0];
        let waits = container["state"]["waiting"]["reason"] == "CrashLoopBackOff";
        match container["restartCount"].as_u64() {
            Some(1) => assert!(waits || !has_waited, "{container:#}"),
            Some(2..) => return,
            _ => {}
        }
        has_waited |= waits;
    }
}

#[test]
fn a_crash_loop_is_counted_and_survives_the_agent() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    // It has completed unless what the probe has found counts.
    let mut sick = pod("sick", RUNS);
    sick["spec"]["containers"][0]["name"] = "d".into();
    sick["spec"]["restartPolicy"] = "OnFailure".into();
    sick["spec"]["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1});
    node.write("sick.json", &sick);
    let status = node
        .until("sick", "in a crash loop", |status| state(status)["waiting"]["reason"] == "CrashLoopBackOff");
    let restarts = |status: &Value| status["containerStatuses"][0]["restartCount"].as_u64();
    let before = restarts(&status);
    let mut web = pod("web", "echo oops; exit 7");
    web["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
    node.write("web.json", &web);
    let is_waiting = |count: u64| {
        move |status: &Value| {
            let container = &status["containerStatuses"][0];
            container["restartCount"] == count
                && container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        }
    };
    let status = node.until("web", "in a crash loop", is_waiting(1));
    assert_eq!(status["phase"], "Running");
    let uid = node.pod("web").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let message = format!("back-off 10s restarting failed container=c pod=web-node1_default({uid})");
    assert_eq!(state(&status)["waiting"]["message"], message);
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(
        (&last["exitCode"], &last["reason"], &last["message"]),
        (&json!(7), &json!("Error"), &json!("oops\n"))
    );
    agent.signal(Signal::KILL);
    agent.ends();
    let agent = node.start();
    waits_until_it_is_restarted(&node);
    let status = node.until("web", "restarted again", is_waiting(2));
    assert!(state(&status)["waiting"]["message"].as_str().unwrap().starts_with("back-off 20s"));
    // The one before the newest is kept for its output, and the older ones are gone.
    let all = podman.run(&["ps", "--all", "--format", "{{.Names}}", "--filter", "label=podmux.container=c"]);
    let mut names: Vec<&str> = all.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["podmux_default_web-node1_c_1", "podmux_default_web-node1_c_2"]);
    let mut messages = node.messages();
    messages.retain(|file| file.file_stem().unwrap() == "c");
    assert_eq!(messages.len(), 2);
    node.until("sick", "restarted again", |status| restarts(status) > before);
    end(agent);
}

#[test]
fn a_clock_that_was_set_back_holds_up_no_restart() {
    let Some(library) = env::var_os("PODMUX_FAKETIME") else {
        return not_tested("no clock is set back: PODMUX_FAKETIME is not set");
    };
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    // podman's clock is an hour ahead of the agent's.
    let mut command = node.command(&[]);
    command.env("LD_PRELOAD", library).env("FAKETIME", "-1h").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let agent = Process::start(&mut command);
    node.write("web.json", &pod("web", "exit 7"));
    node.until("web", "restarted after a delay", |status| {
        status["containerStatuses"][0]["restartCount"] == 2
    });
    end(agent);
}

#[test]
fn a_container_that_ignores_sigterm_is_killed_after_its_grace_and_no_other_starts_meanwhile() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let agent = node.start();
    let mut stubborn = pod("stubborn", "trap '' TERM; while :; do sleep 0.1; done");
    stubborn["spec"]["terminationGracePeriodSeconds"] = 3.into();
    // It ends at once, and would be started again if the pod were still supervised.
    let mut obedient = container("obedient", &format!("echo x >> /host/starts; {RUNS}"));
    obedient["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    stubborn["spec"]["containers"].as_array_mut().unwrap().push(obedient);
    stubborn["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    node.write("stubborn.json", &stubborn);
    node.write("other.json", &pod("other", RUNS));
    // It gets its signal, too.
    let mut short = pod("short", "trap 'touch /host/ended; exit 0' TERM; while :; do sleep 0.1; done");
    short["spec"]["terminationGracePeriodSeconds"] = 0.into();
    short["spec"]["volumes"] = stubborn["spec"]["volumes"].clone();
    short["spec"]["containers"][0]["volumeMounts"] =
        stubborn["spec"]["containers"][1]["volumeMounts"].clone();
    node.write("short.json", &short);
    node.ready("short");
    podman.wait_for_traps("default", "short-node1");
    node.remove("short.json");
    node.ready("stubborn");
    node.ready("other");
    wait_for(|| host.join("starts").exists().then_some(()));
    node.remove("stubborn.json");
    wait_for(|| (podman.pods() == ["podmux_default_other-node1"]).then_some(()));
    assert_eq!(fs::read_to_string(host.join("starts")).unwrap(), "x\n");
    assert!(host.join("ended").exists());
    end(agent);
}

#[test]
fn a_container_that_may_not_run_as_root_starts_only_as_another_user() {
    let Some(podman) = Podman::start() else { return };
    let named = "localhost/named:1";
    let image = podman.path("image.tar");
    podman.run(&["import", "--quiet", "--change", "USER daemon", image.to_str().unwrap(), named]);
    let node = Node::new(&podman);
    let agent = node.start();
    let said = |name: &str, security: Value, image: &str| {
        let mut restricted = pod(name, RUNS);
        restricted["spec"]["securityContext"] = security;
        restricted["spec"]["containers"][0]["image"] = image.into();
        node.write(&format!("{name}.json"), &restricted);
        let status = node.until(name, "started or refused", |status| {
            let state = state(status);
            state["running"].is_object() || !state["waiting"]["message"].is_null()
        });
        let waiting = &state(&status)["waiting"];
        [&waiting["reason"], &waiting["message"]].map(|text| text.as_str().unwrap_or_default().to_owned())
    };
    let refused = |user: &str| {
        ["CreateContainerConfigError", &format!("container has runAsNonRoot and would run as {user}")]
            .map(str::to_owned)
    };
    let runs = ["", ""].map(str::to_owned);
    assert_eq!(said("image", json!({"runAsNonRoot": true}), IMAGE), refused("root"));
    assert_eq!(said("root", json!({"runAsNonRoot": true, "runAsUser": 0}), named), refused("root"));
    assert_eq!(
        said("named", json!({"runAsNonRoot": true}), named),
        refused("user \"daemon\", which may be root")
    );
    assert_eq!(said("user", json!({"runAsNonRoot": true, "runAsUser": 1}), IMAGE), runs);
    assert_eq!(said("allowed", json!({"runAsNonRoot": false}), IMAGE), runs);

    // It would be root of the machine.
    let mut own_users = pod("own-users", RUNS);
    own_users["spec"]["hostUsers"] = false.into();
    node.write("own-users.json", &own_users);
    let status = node.until("own-users", "refused", |status| state(status)["waiting"]["message"].is_string());
    let waiting = &state(&status)["waiting"];
    assert_eq!(waiting["reason"], "CreatePodSandboxError");
    assert!(waiting["message"].as_str().unwrap().contains("remove spec.hostUsers"), "{waiting:#}");
    assert!(podman.pids("default", "own-users-node1").is_empty());
    end(agent);
}

/// A path is mounted if it is what its `type` says.
#[test]
fn a_path_of_the_host_must_be_of_its_type() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let (socket, file, block, directory) =
        (podman.socket(), node.path("file"), node.path("block"), node.path("manifests"));
    fs::write(&file, "").unwrap();
    // The number of a loop device. It is never opened.
    assert!(Command::new("mknod").arg(&block).args(["b", "7", "0"]).status().unwrap().success());
    let paths = [
        ("Socket", &*socket, &*file),
        ("CharDevice", Path::new("/dev/null"), &*block),
        ("BlockDevice", &*block, Path::new("/dev/null")),
        ("Directory", &*directory, &*file),
        ("File", &*file, &*socket),
    ];
    let mount = |name: &str, kind: &str, path: &Path| {
        let mut web = pod(name, RUNS);
        web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": path, "type": kind}}]);
        web["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
        node.write(&format!("{name}.json"), &web);
    };
    for (kind, right, wrong) in paths {
        let name = kind.to_lowercase();
        mount(&format!("{name}-right"), kind, right);
        mount(&format!("{name}-wrong"), kind, wrong);
    }
    let missing = node.path("missing");
    for kind in ["Directory", "Socket"] {
        mount(&format!("{}-missing", kind.to_lowercase()), kind, &missing);
    }
    let mut unused = pod("unused", RUNS);
    unused["spec"]["volumes"] = json!([
        {"name": "a", "hostPath": {"path": missing, "type": "DirectoryOrCreate"}},
        {"name": "b", "hostPath": {"path": file, "type": "Socket"}},
    ]);
    node.write("unused.json", &unused);
    node.ready("unused");
    for (kind, _, wrong) in paths {
        let name = kind.to_lowercase();
        node.ready(&format!("{name}-right"));
        let expected = format!("hostPath {}: it is not a {kind}", wrong.display());
        node.until(&format!("{name}-wrong"), "refused", |status| {
            state(status)["waiting"]["message"] == *expected
        });
    }
    for name in ["directory-missing", "socket-missing"] {
        let expected = format!("hostPath {}: No such file or directory (os error 2)", missing.display());
        node.until(name, "refused", |status| state(status)["waiting"]["message"] == *expected);
    }
    assert!(!missing.exists(), "only a type that says so creates it, for a container that mounts it");
    end(agent);
}

#[test]
fn a_container_that_has_succeeded_ends_no_pod_in_which_another_runs() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", "echo words; exit 0");
    web["spec"]["restartPolicy"] = "OnFailure".into();
    web["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
    web["spec"]["containers"].as_array_mut().unwrap().push(container("d", RUNS));
    node.write("web.json", &web);
    let status = node.until("web", "half over", |status| {
        let states = [0, 1].map(|index| &status["containerStatuses"][index]["state"]);
        states[0]["terminated"].is_object() && states[1]["running"].is_object()
    });
    assert_eq!(status["phase"], "Running", "{status:#}");
    let ended = &state(&status)["terminated"];
    assert_eq!(
        (&ended["reason"], ended.get("message")),
        (&json!("Completed"), None),
        "its output is no error"
    );
    assert_eq!(condition(&status, "Ready")["status"], "False");
    barrier(&node, &podman);
    let restarts = &node.pod("web").unwrap()["status"]["containerStatuses"][0]["restartCount"];
    assert_eq!(*restarts, 0, "it is not started again");
    end(agent);
}

#[test]
fn a_posted_pod_is_erased_when_podman_has_stopped_it() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    let go = node.path("go");
    let mut posted = pod(
        "posted",
        "echo words; trap 'while [ ! -e /go/go ]; do sleep 0.1; done; exit 0' TERM; while :; do sleep 0.1; done",
    );
    posted["spec"]["terminationGracePeriodSeconds"] = 100.into();
    posted["spec"]["volumes"] = json!([{"name": "go", "hostPath": {"path": go}}]);
    posted["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    let more = [container("quick", RUNS), container("crashing", "exit 7")];
    posted["spec"]["containers"].as_array_mut().unwrap().extend(more);
    let (code, _) = node.ask("POST", "/api/v1/namespaces/default/pods", &posted).unwrap();
    assert_eq!(code, 201);
    let path = "/api/v1/namespaces/default/pods/posted";
    let get = || node.ask("GET", path, &Value::Null).unwrap();
    let crashing = |state: &str| get().1["status"]["containerStatuses"][1]["state"][state].clone();
    wait_for(|| (crashing("waiting")["reason"] == "CrashLoopBackOff").then_some(()));
    let names = [0, 1, 2].map(|index| get().1["status"]["containerStatuses"][index]["name"].clone());
    assert_eq!(names, ["c", "crashing", "quick"], "as with the kubelet, in the order of their names");
    assert_eq!(node.ask("DELETE", path, &Value::Null).unwrap().0, 200);
    // It is not started again.
    wait_for(|| (crashing("terminated")["exitCode"] == 7).then_some(()));
    assert!(get().1["metadata"]["deletionTimestamp"].is_string());
    // What ends in the meantime is shown.
    let status = wait_for(|| {
        let status = get().1["status"].clone();
        status["containerStatuses"][2]["state"]["terminated"].is_object().then_some(status)
    });
    assert!(state(&status)["running"].is_object(), "{status:#}");
    assert_eq!(condition(&status, "Ready")["status"], "False", "{status:#}");
    barrier(&node, &podman);
    assert_eq!(get().0, 200);

    agent.signal(Signal::KILL);
    agent.ends();
    let agent = node.start();
    let status = wait_for(|| {
        let status = node.ask("GET", path, &Value::Null)?.1["status"].clone();
        state(&status)["running"].is_object().then_some(status)
    });
    assert_eq!(status["containerStatuses"][1]["state"]["terminated"]["exitCode"], 7, "{status:#}");
    assert!(
        status["podIP"].is_string() && status["containerStatuses"][0]["containerID"].is_string(),
        "{status:#}"
    );
    let log = format!("{path}/log?container=c&tailLines={}", i64::MAX);
    let log = Connection::unix(&node.path("s")).unwrap().ask("GET", &log, b"").unwrap();
    assert_eq!((log.code, log.text().trim()), (200, "words"));
    fs::write(go.join("go"), "").unwrap();
    wait_for(|| (get().0 == 404).then_some(()));
    assert!(podman.pids("default", "posted").is_empty());
    end(agent);
}

/// A script that ends only by SIGKILL, and tells that it was to end before.
const STUBBORN: &str = "trap 'echo stopping' TERM; while :; do sleep 0.1; done";

/// podman stops and removes a few containers at once, by the number of processors.
#[test]
fn long_graces_hold_up_no_other_stop() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("fast.json", &pod("fast", RUNS));
    node.ready("fast");
    let names: Vec<String> =
        (0..=3 * available_parallelism().unwrap().get()).map(|n| format!("c{n}")).collect();
    let mut slow = pod("slow", RUNS);
    slow["spec"]["terminationGracePeriodSeconds"] = 1000.into();
    slow["spec"]["containers"] = names.iter().map(|name| container(name, STUBBORN)).collect();
    let path = "/api/v1/namespaces/default/pods/slow";
    assert_eq!(node.ask("POST", "/api/v1/namespaces/default/pods", &slow).unwrap().0, 201);
    wait_for(|| (podman.pids("default", "slow").len() == names.len()).then_some(()));
    podman.wait_for_traps("default", "slow");
    assert_eq!(node.ask("DELETE", path, &Value::Null).unwrap().0, 200);
    for name in &names {
        wait_for(|| {
            podman.output(&format!("podmux_default_slow_{name}_0")).contains("stopping").then_some(())
        });
    }
    node.remove("fast.json");
    wait_for(|| (podman.pods() == ["podmux_default_slow"]).then_some(()));
    assert_eq!(podman.pids("default", "slow").len(), names.len());
    assert_eq!(node.ask("DELETE", &format!("{path}?gracePeriodSeconds=1"), &Value::Null).unwrap().0, 200);
    wait_for(|| podman.pods().is_empty().then_some(()));
    end(agent);
}

#[test]
fn a_pod_without_its_namespaces_is_stopped_for_long_and_holds_up_no_other() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let slow_path = "/api/v1/namespaces/default/pods/slow";
    for is_restarted in [false, true] {
        let start = || node.start_with(&["--sink-concurrency", "1"]);
        let mut agent = Some(start());
        let mut slow = pod("slow", STUBBORN);
        slow["spec"]["terminationGracePeriodSeconds"] = 1000.into();
        let post = || node.ask("POST", "/api/v1/namespaces/default/pods", &slow);
        wait_for(|| post().filter(|(code, _)| *code == 201));
        let shown = || node.ask("GET", slow_path, &Value::Null).unwrap().1["status"].clone();
        wait_for(|| (condition(&shown(), "Ready")["status"] == "True").then_some(()));
        podman.wait_for_traps("default", "slow");
        let infra = podman.json(&["pod", "inspect", "podmux_default_slow"])["InfraContainerID"].clone();
        if is_restarted {
            let killed = agent.take().unwrap();
            killed.signal(Signal::KILL);
            killed.ends();
        }
        podman.run(&["kill", infra.as_str().unwrap()]);
        if is_restarted {
            agent = Some(start());
        }
        wait_for(|| podman.output("podmux_default_slow_c_0").contains("stopping").then_some(()));
        barrier(&node, &podman);
        assert_eq!(podman.pids("default", "slow").len(), 1);
        let shorter = format!("{slow_path}?gracePeriodSeconds=1");
        assert_eq!(node.ask("DELETE", &shorter, &Value::Null).unwrap().0, 200);
        wait_for(|| podman.pods().is_empty().then_some(()));
        end(agent.unwrap());
    }
}

#[test]
fn a_second_delete_shortens_the_grace_of_the_first() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    for (name, grace) in [("shorter", 1), ("erased", 0)] {
        let mut stubborn = pod(name, STUBBORN);
        stubborn["spec"]["terminationGracePeriodSeconds"] = 1000.into();
        // It is stopped after the other one.
        stubborn["spec"]["initContainers"] = json!([container("sidecar", RUNS)]);
        stubborn["spec"]["initContainers"][0]["restartPolicy"] = "Always".into();
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let status = || node.ask("GET", &path, &Value::Null).unwrap().1["status"].clone();
        let post = || node.ask("POST", "/api/v1/namespaces/default/pods", &stubborn);
        wait_for(|| post().filter(|(code, _)| *code == 201));
        wait_for(|| state(&status())["running"].is_object().then_some(()));
        podman.wait_for_traps("default", name);
        assert_eq!(node.ask("DELETE", &path, &Value::Null).unwrap().0, 200);
        wait_for(|| podman.output(&format!("podmux_default_{name}_c_0")).contains("stopping").then_some(()));
        let path = format!("{path}?gracePeriodSeconds={grace}");
        assert_eq!(node.ask("DELETE", &path, &Value::Null).unwrap().0, 200);
        wait_for(|| podman.pods().is_empty().then_some(()));
    }
    end(agent);
}

#[test]
fn podman_may_be_absent_killed_and_restarted() {
    let Some(podman) = Podman::start() else { return };
    podman.kill_service();
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    agent.logs("runtime cannot be listed");
    agent.logs("podman.sock does not exist");
    podman.start_service();
    node.ready("web");
    let before = podman.pids("default", "web-node1");

    podman.kill_service();
    agent.logs("event stream failed");
    // It ends while podman's service is away.
    let pid = Pid::from_raw(i32::try_from(before[0].1).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    podman.start_service();
    node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    node.ready("web");
    assert_ne!(podman.pids("default", "web-node1"), before);
    end(agent);
}

#[test]
fn a_partial_pod_is_completed_after_a_crash() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    for round in 0..4 {
        let name = format!("web{round}");
        let mut web = pod(&name, RUNS);
        web["spec"]["containers"] = json!([container("a", RUNS), container("b", RUNS), container("c", RUNS)]);
        web["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
        web["spec"]["containers"][2]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        let agent = node.start();
        node.write("web.json", &web);
        // The agent is killed at another step in each round: with no container, one, two, or nearly all.
        let prefix = format!("podmux_default_{name}-node1");
        wait_for(|| {
            let pod = || podman.pods().contains(&prefix);
            (pod() && podman.pids("default", &format!("{name}-node1")).len() >= round.min(2)).then_some(())
        });
        agent.signal(Signal::KILL);
        agent.ends();
        let agent = node.start();
        node.ready(&name);
        let names: Vec<String> =
            podman.pids("default", &format!("{name}-node1")).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        // The pod of the round before is gone, and then its volume.
        let volume = format!("{prefix}_data");
        wait_for(|| (podman.pods() == [&*prefix] && podman.volumes() == [&*volume]).then_some(()));
        let status = node.ready(&name);
        let restarts =
            status["containerStatuses"].as_array().unwrap().iter().map(|status| &status["restartCount"]);
        assert!(restarts.clone().all(|count| *count == 0), "{status:#}");
        end(agent);
    }
}

#[test]
fn a_pod_is_made_again_when_podman_has_lost_it_or_its_namespaces() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    let before = podman.pids("default", "web-node1");
    let infra = podman.json(&["pod", "inspect", "podmux_default_web-node1"])["InfraContainerID"].clone();
    podman.run(&["kill", infra.as_str().unwrap()]);
    let is_new = |before: &[(String, i64)]| {
        let now = podman.pids("default", "web-node1");
        (!now.is_empty() && now != before).then_some(now)
    };
    let second = wait_for(|| is_new(&before));
    node.ready("web");
    podman.run(&["pod", "rm", "--force", "--time", "0", "podmux_default_web-node1"]);
    wait_for(|| is_new(&second));
    node.ready("web");
    end(agent);
}

#[test]
fn what_a_removed_pod_has_left_is_removed() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = with_data(pod("web", RUNS));
    // The manifest of another pod shows the next agent that the directory is the same.
    for (file, pod) in [("web", &web), ("stay", &pod("stay", RUNS))] {
        node.write(&format!("{file}.json"), pod);
        node.ready(file);
    }
    agent.signal(Signal::KILL);
    agent.ends();
    let files = node.messages()[0].ancestors().nth(2).unwrap().join("gone");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("c.0"), "").unwrap();
    // As after a crash between the removal of the pod and that of its volumes.
    node.remove("web.json");
    podman.run(&["pod", "rm", "--force", "--time", "0", "podmux_default_web-node1"]);
    // As earlier versions have made it: without a hash.
    let labelled = |name: &str, instance: &str| {
        let labels = ["uid=x", "namespace=default", &format!("name={name}"), &format!("instance={instance}")];
        let labels = labels.map(|label| format!("--label=podmux.{label}"));
        let name = format!("podmux_default_{name}_data");
        let args = ["volume", "create"].into_iter().chain(labels.iter().map(String::as_str)).chain([&*name]);
        podman.run(&args.collect::<Vec<_>>());
    };
    labelled("theirs", "other");
    // podman makes one without labels, if a container is created while its volume is removed. One that holds something
    // stays until it is in the way.
    let kept = "podmux_default_kept-node1_data";
    podman.run(&["volume", "create", "podmux_default_gone_data"]);
    podman.run(&["volume", "create", kept]);
    let place = podman.run(&["volume", "inspect", "--format", "{{.Mountpoint}}", kept]);
    let content = Path::new(place.trim()).join("content");
    fs::write(&content, "theirs").unwrap();
    let (web_data, theirs) = ("podmux_default_web-node1_data", "podmux_default_theirs_data");
    assert_eq!(podman.volumes(), ["podmux_default_gone_data", kept, theirs, web_data]);
    // One that another container uses stays as long, and keeps no pod from running.
    let instance = &podman.json(&["volume", "inspect", web_data])[0]["Labels"]["podmux.instance"];
    labelled("used", instance.as_str().unwrap());
    let used = "podmux_default_used_data";
    podman.run(&["create", "--name", "backup", "--volume", &format!("{used}:/x"), IMAGE, "true"]);
    let agent = node.start();
    // Until the file source has synced, its restored pod is wanted.
    barrier(&node, &podman);
    wait_for(|| (podman.volumes() == [kept, theirs, used]).then_some(()));
    podman.run(&["rm", "backup"]);
    wait_for(|| (podman.volumes() == [kept, theirs]).then_some(()));
    assert!(!files.exists(), "the files of a pod that is gone");

    // It is in the way of this pod only. No emptyDir keeps anything.
    web["metadata"]["name"] = "kept".into();
    node.write("kept.json", &web);
    node.ready("kept");
    assert!(!content.exists());
    // Also one that podman has made in the place of an unused one goes with the pod.
    let before = podman.pids("default", "kept-node1");
    podman.run(&["volume", "rm", "--force", "--time", "0", kept]);
    wait_for(|| {
        let now = podman.pids("default", "kept-node1");
        (!now.is_empty() && now != before).then_some(())
    });
    node.ready("kept");
    assert_eq!(podman.json(&["volume", "inspect", kept])[0]["Labels"], json!({}));
    fs::write(&content, "its own").unwrap();
    node.remove("kept.json");
    wait_for(|| (podman.volumes() == [theirs]).then_some(()));
    end(agent);
}

#[test]
fn a_socket_is_an_absolute_path() {
    let refused = |sink: &str| {
        let mut run = podmux(&["run", "--pod-manifest-path", "a", "--sink", sink]);
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    expect![[r#"
        podmux: --sink: podman=SOCKET needs an absolute path: podman=/run/podman/podman.sock
    "#]]
    .assert_eq(&refused("podman=podman.sock"));
    expect![[r#"
        podmux: --sink: podman=SOCKET needs an absolute path: podman=/run/podman/podman.sock
    "#]]
    .assert_eq(&refused("podman=unix:"));
}

#[test]
fn probes_decide_on_ready_started_and_restarts() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let agent = node.start();
    let mut web = pod("web", &format!("httpd -p 8080 -h /host; {RUNS}"));
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    // A container whose probes have two commands.
    let mut other = container("d", RUNS);
    other["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    other["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 30});
    other["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/host/ready"]}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1});
    let container = &mut web["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    container["ports"] = json!([{"name": "http", "containerPort": 8080}]);
    container["startupProbe"] = json!({"tcpSocket": {"port": "http"}, "periodSeconds": 1});
    container["readinessProbe"] =
        json!({"httpGet": {"port": 8080, "path": "/ready"}, "periodSeconds": 1, "failureThreshold": 1});
    let alive = "! cat /host/dead";
    // A busy machine may need more than the default of a second, as for the other commands.
    container["livenessProbe"] = json!({"exec": {"command": ["sh", "-c", alive]}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 2});
    web["spec"]["containers"].as_array_mut().unwrap().push(other);
    let mut cold = pod("cold", RUNS);
    let probes = &mut cold["spec"]["containers"][0];
    probes["livenessProbe"] = json!({"exec": {"command": ["true"]}, "timeoutSeconds": 30});
    let command = ["sh", "-c", "echo still cold; exit 3"];
    probes["startupProbe"] = json!({"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1});
    node.write("cold.json", &cold);
    node.write("patient.json", &patient(&host));
    node.write("web.json", &web);
    node.until("web", "started", |status| status["containerStatuses"][0]["started"] == true);
    let is_ready = |wanted: bool| {
        move |status: &Value| {
            let statuses = status["containerStatuses"].as_array().unwrap();
            statuses.iter().all(|status| status["ready"] == wanted && status["started"] == true)
        }
    };
    node.until("web", "unready", is_ready(false));
    fs::write(host.join("ready"), "").unwrap();
    node.until("web", "ready", is_ready(true));
    fs::remove_file(host.join("ready")).unwrap();
    node.until("web", "unready again", is_ready(false));
    let restarts =
        |status: &Value, index: usize| status["containerStatuses"][index]["restartCount"].as_u64().unwrap();
    barrier(&node, &podman);
    let status = node.until("web", "still unready", is_ready(false));
    assert_eq!((restarts(&status, 0), restarts(&status, 1)), (0, 0), "readiness stops nothing");
    fs::write(host.join("dead"), "").unwrap();
    let status = node.until("web", "restarted", |status| restarts(status, 0) >= 1);
    assert_eq!(restarts(&status, 1), 0);
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["message"], "stopped: Liveness probe failed: exit code 1", "{status:#}");
    let status = node.until("cold", "restarted", |status| restarts(status, 0) >= 1);
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["message"], "stopped: Startup probe failed: exit code 3: still cold", "{status:#}");
    let status = node.until("patient", "running", |status| {
        status["containerStatuses"].as_array().is_some_and(|all| {
            all.len() == 4 && all.iter().all(|status| status["state"]["running"].is_object())
        })
    });
    for (status, has_started) in
        status["containerStatuses"].as_array().unwrap().iter().zip([true, true, true, false])
    {
        let found = [&status["restartCount"], &status["started"], &status["ready"]];
        let is_ready = status["name"] == "rarely";
        assert_eq!(found, [&json!(0), &json!(has_started), &json!(is_ready)], "{status:#}");
    }
    wait_for(|| fs::read_to_string(host.join("probes")).is_ok_and(|runs| runs == "x\n").then_some(()));
    end(agent);
    podman.end_exec_sessions();
}

/// A pod whose probes decide nothing for a long time, each because of another field.
fn patient(host: &Path) -> Value {
    const LONG: u64 = 10_000;
    let mut patient = pod("patient", RUNS);
    patient["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    let run = |command: &[&str]| json!({"exec": {"command": command}, "periodSeconds": 1});
    let mut containers = ["failures", "starts", "late", "rarely"].map(|name| container(name, RUNS));
    for (index, field, mut probe, long) in [
        (0, "livenessProbe", run(&["false"]), "failureThreshold"),
        (0, "readinessProbe", run(&["true"]), "successThreshold"),
        (1, "startupProbe", run(&["false"]), "failureThreshold"),
        (2, "readinessProbe", run(&["true"]), "initialDelaySeconds"),
        (3, "livenessProbe", run(&["sh", "-c", "echo x >> /host/probes"]), "periodSeconds"),
    ] {
        probe[long] = LONG.into();
        containers[index][field] = probe;
    }
    containers[3]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    patient["spec"]["containers"] = containers.to_vec().into();
    patient
}

#[test]
fn a_probe_of_another_host_goes_there() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Nothing listens in the pod itself.
    let probed = |name: &str, host: Value| {
        let mut web = pod(name, RUNS);
        let mut action = json!({"port": port});
        action["host"] = host;
        web["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": action, "periodSeconds": 1});
        node.write(&format!("{name}.json"), &web);
    };
    probed("there", "127.0.0.1".into());
    probed("here", "".into());
    node.ready("there");
    let status = node.until("here", "running", |status| status["containerStatuses"][0]["started"] == true);
    assert_eq!(condition(&status, "Ready")["status"], "False");
    end(agent);
}

/// Why a runtime with a double of podman cannot be listed.
async fn refused(reply: Reply) -> String {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let _double = Web::start_unix(&socket, reply);
    let mut config = Config::new(socket, dir.path().join("files"), "me".into());
    config.timeout = Duration::from_secs(1);
    let error = Runtime::new(config).list().await.unwrap_err();
    let cause = std::iter::successors(Some(&*error.source as &dyn std::error::Error), |error| error.source());
    let text: Vec<String> = cause.map(ToString::to_string).collect();
    format!("{}: {}", error.reason, text.join(": ")).replace(dir.path().to_str().unwrap(), "DIR")
}

#[tokio::test]
async fn what_is_not_podman_is_said() {
    expect!["PodmanUnavailable: podman does not answer: DIR/s sent no complete response within 1s"]
        .assert_eq(&refused(Reply::mute()).await);
    expect!["NotPodman: DIR/s is not a socket of podman: GET /libpod/_ping is answered with 404 Not Found by Docker/27 (start podman.socket, or set --sink podman=SOCKET)"].assert_eq(&refused(Reply::new(404, "").header("server", "Docker/27")).await);
    expect!["NotPodman: DIR/s is not a socket of podman: GET /libpod/_ping is answered with 200 OK by an unknown server (start podman.socket, or set --sink podman=SOCKET)"].assert_eq(&refused(Reply::ok("OK")).await);
    expect!["PodmanTooOld: podman at DIR/s has version 4.2.9, but 4.3 or later is needed: upgrade podman"]
        .assert_eq(&refused(Reply::ok("OK").header("libpod-api-version", "4.2.9")).await);
}

/// It may have been replaced meanwhile.
#[tokio::test]
async fn the_version_of_podman_is_asked_for_again_after_an_outage() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let of_version = |version: &str| Reply::ok("[]").header("libpod-api-version", version);
    let runtime = Runtime::new(Config::new(socket.clone(), dir.path().join("files"), "me".into()));
    let double = Web::start_unix(&socket, of_version("5.0.0"));
    assert_eq!(runtime.list().await.unwrap(), []);
    drop(double);
    fs::remove_file(&socket).unwrap();
    assert_eq!(runtime.list().await.unwrap_err().reason, "PodmanUnavailable");
    let _older = Web::start_unix(&socket, of_version("4.2.9"));
    assert_eq!(runtime.list().await.unwrap_err().reason, "PodmanTooOld");
}
