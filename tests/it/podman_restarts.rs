//! Which containers the podman runtime starts again: by their policy, after a failed probe, and which others wait for them.

use std::{collections::BTreeSet, fs, net::TcpListener, path::PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    podman::{end, state},
    support::{
        podman::{Node, Podman, RUNS, condition, container, host_port, pod, with_data},
        process::wait_for,
        program::write_program,
    },
};

fn restarts(status: &Value, index: usize) -> u64 {
    status["containerStatuses"][index]["restartCount"].as_u64().unwrap_or_default()
}

/// Mounts a directory of the host at `/host` in all containers of a pod.
fn with_host(pod: &mut Value, node: &Node) {
    let host = node.path("host");
    fs::create_dir_all(&host).unwrap();
    pod["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            container["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
        }
    }
}

#[test]
fn a_container_that_a_probe_has_stopped_is_restarted_whatever_its_exit_code_unless_its_policy_is_never() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    for (name, policy) in [("again", "OnFailure"), ("once", "Never")] {
        // Its probe fails as soon as SIGTERM ends it with 0.
        let mut web = pod(name, &format!("trap 'exit 0' TERM; touch /tmp/begun; {RUNS}"));
        web["spec"]["restartPolicy"] = policy.into();
        web["spec"]["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["test", "!", "-e", "/tmp/begun"]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1});
        node.write(&format!("{name}.json"), &web);
    }
    let status = node.until("again", "restarted", |status| restarts(status, 0) >= 1);
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 0, "{status:#}");
    let status = node.until("once", "at its end", |status| status["phase"] == "Succeeded");
    assert_eq!(restarts(&status, 0), 0);
    assert_eq!(state(&status)["terminated"]["message"], "stopped: Liveness probe failed: exit code 1");
    end(agent);
}

#[test]
fn a_container_that_a_probe_has_stopped_has_the_grace_of_that_probe_to_end() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", "trap '' TERM; while :; do sleep 0.1; done");
    web["spec"]["terminationGracePeriodSeconds"] = 10_000.into();
    web["spec"]["containers"][0]["livenessProbe"] = json!({
        "exec": {"command": ["false"]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1,
        "terminationGracePeriodSeconds": 1,
    });
    node.write("web.json", &web);
    let status = node.until("web", "restarted", |status| restarts(status, 0) >= 1);
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 137, "{status:#}");
    end(agent);
}

/// It has the grace of its pod, although what it serves has ended.
#[test]
fn the_sidecar_of_a_pod_that_has_completed_is_not_stopped_by_its_liveness_probe() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let action = json!({"host": "127.0.0.1", "port": server.local_addr().unwrap().port()});
    let mut job = pod("job", "while [ ! -e /host/go ]; do sleep 0.1; done");
    job["spec"]["restartPolicy"] = "Never".into();
    job["spec"]["terminationGracePeriodSeconds"] = 120.into();
    let drains = "touch /host/draining; while [ ! -e /host/drained ]; do sleep 0.1; done; exit 0";
    let mut sidecar = container("side", &format!("trap '{drains}' TERM; while :; do sleep 0.1; done"));
    sidecar["restartPolicy"] = "Always".into();
    sidecar["livenessProbe"] = json!({
        "tcpSocket": action, "periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 1,
    });
    // It fails after the other.
    sidecar["readinessProbe"] = json!({"tcpSocket": action, "periodSeconds": 1, "failureThreshold": 4});
    job["spec"]["initContainers"] = json!([sidecar]);
    with_host(&mut job, &node);
    node.write("job.json", &job);
    let host = node.path("host");
    let side = |status: &Value| status["initContainerStatuses"][0].clone();
    node.until("job", "ready", |status| {
        side(status)["ready"] == true && state(status)["running"].is_object()
    });
    fs::write(host.join("go"), "").unwrap();
    wait_for(|| host.join("draining").exists().then_some(()));
    drop(server);
    node.until("job", "not ready", |status| side(status)["ready"] == false);
    fs::write(host.join("drained"), "").unwrap();
    let status = node.until("job", "over", |status| status["phase"] == "Succeeded");
    let ended = &side(&status)["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["message"]), (&0.into(), &Value::Null), "{status:#}");
    end(agent);
}

#[test]
fn a_pod_that_is_over_gives_its_port_back_and_keeps_its_address_and_its_output() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let port = host_port();
    let with_port = |mut pod: Value| {
        pod["spec"]["restartPolicy"] = "OnFailure".into();
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
        pod
    };
    // It has its namespaces until its last container has ended.
    let script = "[ -e /host/failed ] || { touch /host/failed; exit 1; }; cat /host/go || exit 1; echo over";
    let mut job = with_port(pod("job", script));
    with_host(&mut job, &node);
    node.write("job.json", &job);
    let status = node.until("job", "restarted", |status| restarts(status, 0) >= 1);
    let address = status["podIP"].as_str().unwrap().to_owned();
    fs::write(node.path("host/go"), "").unwrap();
    node.until("job", "over", |status| status["phase"] == "Succeeded");
    let infra = || podman.json(&["pod", "inspect", "podmux_default_job-node1"])["State"].clone();
    wait_for(|| (infra() == "Exited").then_some(()));
    node.write("web.json", &with_port(pod("web", RUNS)));
    node.ready("web");
    let status = node.until("job", "over", |status| status["phase"] == "Succeeded");
    assert_eq!(status["podIP"], *address, "{status:#}");
    let restarts = restarts(&status, 0);
    assert_eq!(podman.output(&format!("podmux_default_job-node1_c_{restarts}")), "over\n");
    end(agent);

    let agent = node.start();
    let status = node.until("job", "over", |status| status["phase"] == "Succeeded");
    assert_eq!(self::restarts(&status, 0), restarts, "{status:#}");
    assert_eq!(infra(), "Exited");
    end(agent);
}

#[test]
fn an_empty_dir_that_no_container_had_before_a_reboot_is_for_every_user() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", "");
    let writes = |name: &str, user: u32| {
        let mut writes = container(name, &format!("touch /d/{name} && {RUNS}"));
        writes["securityContext"] = json!({"runAsUser": user});
        writes
    };
    web["spec"]["containers"] = json!([writes("a", 1000), writes("b", 2000)]);
    web["spec"]["initContainers"] = json!([container("init", "while [ ! -e /host/go ]; do sleep 0.1; done")]);
    with_host(&mut web, &node);
    web["spec"]["volumes"].as_array_mut().unwrap().push(json!({"name": "d", "emptyDir": {}}));
    for container in web["spec"]["containers"].as_array_mut().unwrap() {
        container["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
    }
    node.write("web.json", &web);
    let waits = |status: &Value| status["initContainerStatuses"][0]["state"]["running"].is_object();
    node.until("web", "begun", waits);
    agent.signal(Signal::KILL);
    agent.ends();
    podman.reboot();
    let agent = node.start();
    node.until("web", "begun again", waits);
    fs::write(node.path("host/go"), "").unwrap();
    node.ready("web");
    end(agent);
}

#[test]
fn an_empty_dir_stays_while_its_pod_cannot_be_made_again() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let port = host_port();
    let mut web = with_data(pod("web", RUNS));
    web["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
    node.write("web.json", &web);
    let inside = |script: &str| podman.run(&["exec", "podmux_default_web-node1_c_0", "sh", "-c", script]);
    // The second of two agents does not know that the directory has had its mode.
    for (agents, mode) in [(1, 700), (2, 777)] {
        let agent = node.start();
        node.ready("web");
        inside("touch /data/old; chmod 700 /data");
        end(agent);
        podman.run(&["pod", "stop", "--time", "0", "podmux_default_web-node1"]);
        let taken = TcpListener::bind(("0.0.0.0", port)).unwrap();
        let mut agent = node.start();
        agent.logs("pod failed");
        for _ in 1..agents {
            end(agent);
            agent = node.start();
            agent.logs("pod failed");
        }
        drop(taken);
        node.ready("web");
        assert_eq!(inside("stat -c %a data; ls data"), format!("{mode}\nold\n"));
        end(agent);
    }
    podman.end_exec_sessions();
}

/// As with the kubelet, an emptyDir lives as long as the UID of its pod. An agent that is killed between the removal of a
/// pod and its new start leaves podman as an operator does who removes the pod meanwhile.
#[test]
fn an_empty_dir_stays_when_its_pod_is_removed_from_podman_until_its_spec_changes() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let mut agent = node.start();
    let mut web = with_data(pod("web", RUNS));
    node.write("web.json", &web);
    let mut before = node.ready("web");
    let inside = |script: &str| podman.run(&["exec", "podmux_default_web-node1_c_0", "sh", "-c", script]);
    inside("touch data/old; chmod 700 data");
    let made_again = |before: &Value| {
        node.until("web", "made again", |status| {
            let id = |status: &Value| status["containerStatuses"][0]["containerID"].clone();
            id(status) != id(before) && condition(status, "Ready")["status"] == "True"
        })
    };
    let remove = || podman.run(&["pod", "rm", "--force", "--time", "0", "podmux_default_web-node1"]);
    for (is_killed, mode) in [(false, 700), (true, 777)] {
        if is_killed {
            agent.signal(Signal::KILL);
            agent.ends();
            remove();
            agent = node.start();
        } else {
            remove();
        }
        before = made_again(&before);
        assert_eq!(inside("stat -c %a data; ls data"), format!("{mode}\nold\n"));
    }
    web["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "changed"}]);
    node.write("web.json", &web);
    made_again(&before);
    assert_eq!(inside("ls data"), "");
    end(agent);
    podman.end_exec_sessions();
}

/// How a container has ended whose pod has lost its namespaces.
const NO_NAMESPACES: &str = "stopped: the infra container of the pod has ended";

fn kill_infra(podman: &Podman, name: &str) {
    let inspected = podman.json(&["pod", "inspect", &format!("podmux_default_{name}-node1")]);
    podman.run(&["kill", inspected["InfraContainerID"].as_str().unwrap()]);
}

/// As with the kubelet, which decides before it stops them. Both end with the exit code 0.
#[test]
fn what_is_stopped_because_an_infra_container_has_ended_has_not_succeeded() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let (mut tries, mut begins) = (pod("tries", RUNS), pod("begins", RUNS));
    tries["spec"]["restartPolicy"] = "OnFailure".into();
    begins["spec"]["restartPolicy"] = "Never".into();
    begins["spec"]["initContainers"] = json!([container("first", RUNS)]);
    node.write("tries.json", &tries);
    node.write("begins.json", &begins);
    let id = |status: &Value| status["containerStatuses"][0]["containerID"].clone();
    let before = id(&node.ready("tries"));
    let first = |status: &Value| status["initContainerStatuses"][0]["state"].clone();
    node.until("begins", "at its first step", |status| first(status)["running"].is_object());
    for name in ["tries", "begins"] {
        podman.wait_for_traps("default", &format!("{name}-node1"));
        kill_infra(&podman, name);
    }
    node.until("tries", "made again", |status| {
        id(status) != before && condition(status, "Ready")["status"] == "True"
    });
    let status = node.until("begins", "over", |status| status["phase"] == "Failed");
    let ended = &first(&status)["terminated"];
    assert_eq!((&ended["exitCode"], &ended["message"]), (&json!(0), &json!(NO_NAMESPACES)), "{status:#}");
    end(agent);
}

/// The directory of its files may be full.
#[test]
fn what_was_stopped_has_not_succeeded_also_if_that_cannot_be_written() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let names = ["sick", "lost"];
    for name in names {
        let mut web = pod(name, RUNS);
        with_host(&mut web, &node);
        web["spec"]["restartPolicy"] = "OnFailure".into();
        web["spec"]["containers"][0]["livenessProbe"] = json!({
            "exec": {"command": ["test", "!", "-e", format!("/host/{name}")]},
            "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1,
        });
        node.write(&format!("{name}.json"), &web);
    }
    let id = |status: &Value| status["containerStatuses"][0]["containerID"].to_string();
    let before = names.map(|name| id(&node.ready(name)));
    let pods: BTreeSet<PathBuf> =
        node.messages().iter().map(|file| file.parent().unwrap().to_owned()).collect();
    for directory in &pods {
        for id in &before {
            let (_, id) = id.trim_matches('"').rsplit_once('/').unwrap();
            fs::create_dir(directory.join(format!("{id}.end"))).unwrap();
        }
    }
    fs::write(node.path("host/sick"), "").unwrap();
    let status = node.until("sick", "restarted", |status| restarts(status, 0) >= 1);
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["message"], "stopped: Liveness probe failed: exit code 1", "{status:#}");
    kill_infra(&podman, "lost");
    node.until("lost", "made again", |status| {
        id(status) != before[1] && condition(status, "Ready")["status"] == "True"
    });
    end(agent);
}

/// The container that had it has not begun again when the second one is killed.
#[test]
fn an_empty_dir_stays_when_two_infra_containers_are_killed() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    let waits = "trap 'exit 1' TERM; until [ -e /host/go ]; do sleep 0.1; done";
    web["spec"]["initContainers"] = json!([container("first", waits)]);
    with_host(&mut web, &node);
    web["spec"]["volumes"].as_array_mut().unwrap().push(json!({"name": "data", "emptyDir": {}}));
    let mount = json!({"name": "data", "mountPath": "/data"});
    web["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
    let go = node.path("host/go");
    fs::write(&go, "").unwrap();
    node.write("web.json", &web);
    let mut before = node.ready("web")["initContainerStatuses"][0]["containerID"].clone();
    let inside = |script: &str| podman.run(&["exec", "podmux_default_web-node1_c_0", "sh", "-c", script]);
    inside("touch data/old");
    fs::remove_file(&go).unwrap();
    for _ in 0..2 {
        kill_infra(&podman, "web");
        let status = node.until("web", "made again", |status| {
            let first = &status["initContainerStatuses"][0];
            first["containerID"] != before && first["state"]["running"].is_object()
        });
        before = status["initContainerStatuses"][0]["containerID"].clone();
    }
    fs::write(&go, "").unwrap();
    node.ready("web");
    assert_eq!(inside("ls data"), "old\n");
    end(agent);
    podman.end_exec_sessions();
}

/// As with the kubelet, an emptyDir is the pod's and not its namespaces', and a container runs at most once if its policy
/// is `Never`.
#[test]
fn an_empty_dir_stays_when_an_infra_container_is_killed_and_what_must_not_be_restarted_has_ended() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let mut agent = Some(node.start());
    let port = host_port();
    let mut web = with_data(pod("web", RUNS));
    web["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
    let memory = json!({"name": "memory", "emptyDir": {"medium": "Memory"}});
    web["spec"]["volumes"].as_array_mut().unwrap().push(memory);
    let mount = json!({"name": "memory", "mountPath": "/memory"});
    web["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
    // The command of this probe fails as soon as the container is to end.
    let mut once = pod("once", "trap 'touch /ending; sleep 3; exit 3' TERM; while :; do sleep 0.1; done");
    once["spec"]["restartPolicy"] = "Never".into();
    once["spec"]["terminationGracePeriodSeconds"] = 60.into();
    once["spec"]["containers"][0]["livenessProbe"] = json!({
        "exec": {"command": ["test", "!", "-e", "/ending"]}, "periodSeconds": 1, "failureThreshold": 1,
        "timeoutSeconds": 60, "terminationGracePeriodSeconds": 1,
    });
    node.write("web.json", &web);
    let inside = |script: &str| podman.run(&["exec", "podmux_default_web-node1_c_0", "sh", "-c", script]);
    let id = |status: &Value| status["containerStatuses"][0]["containerID"].clone();
    let mut before = id(&node.ready("web"));
    inside("cd data; touch old ../memory/old; chmod 700 . ../memory");
    for (is_restarted, once_name) in [(false, "first"), (true, "second")] {
        once["metadata"]["name"] = once_name.into();
        node.write("once.json", &once);
        node.ready(once_name);
        podman.wait_for_traps("default", &format!("{once_name}-node1"));
        if is_restarted {
            let killed = agent.take().unwrap();
            killed.signal(Signal::KILL);
            killed.ends();
        }
        for name in ["web", once_name] {
            kill_infra(&podman, name);
        }
        if is_restarted {
            agent = Some(node.start());
        }
        let status = node.until("web", "made again", |status| {
            id(status) != before && condition(status, "Ready")["status"] == "True"
        });
        // The containers before are gone.
        assert_eq!(restarts(&status, 0), 0, "{status:#}");
        before = id(&status);
        let has_namespaces =
            |status: &Value| condition(status, "PodReadyToStartContainers")["status"].clone();
        assert_eq!(has_namespaces(&status), "True");
        let seen = inside("stat -c %a data memory; ls data memory");
        assert_eq!(seen, "700\n777\ndata:\nold\n\nmemory:\n");
        let status = node.until(once_name, "over", |status| status["phase"] == "Failed");
        let ended = &state(&status)["terminated"];
        assert_eq!((&ended["exitCode"], &ended["message"]), (&json!(3), &json!(NO_NAMESPACES)), "{status:#}");
        assert_eq!(has_namespaces(&status), "False");
        node.remove("once.json");
        wait_for(|| (podman.pods() == ["podmux_default_web-node1"]).then_some(()));
        let volumes = ["data", "memory"].map(|name| format!("podmux_default_web-node1_{name}"));
        assert_eq!(podman.volumes(), volumes);
    }
    end(agent.unwrap());
    podman.end_exec_sessions();
}

#[test]
fn a_path_of_the_host_that_vanishes_keeps_no_other_container_from_being_restarted() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    with_host(&mut web, &node);
    web["spec"]["volumes"][0]["hostPath"]["type"] = "Directory".into();
    web["spec"]["containers"].as_array_mut().unwrap().push(container("other", RUNS));
    node.write("web.json", &web);
    node.ready("web");
    fs::remove_dir(node.path("host")).unwrap();
    podman.run(&["kill", "podmux_default_web-node1_other_0"]);
    node.until("web", "restarted", |status| {
        restarts(status, 1) == 1 && status["containerStatuses"][1]["state"]["running"].is_object()
    });
    end(agent);
}

/// Its shell may end with 0, although a child was killed.
#[test]
fn an_init_container_that_was_out_of_memory_has_failed() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["initContainers"] = json!([container("init", "while [ ! -e /host/go ]; do sleep 0.1; done")]);
    with_host(&mut web, &node);
    node.write("web.json", &web);
    let init = |status: &Value| status["initContainerStatuses"][0].clone();
    let status = node.until("web", "begun", |status| init(status)["state"]["running"].is_object());
    let id = init(&status)["containerID"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    // conmon writes it where it can watch the memory cgroup.
    let storage = fs::read_dir(podman.path("root")).unwrap().map(|entry| entry.unwrap().path().join(&id));
    let storage = storage.map(|container| container.join("userdata")).find(|place| place.exists()).unwrap();
    fs::write(storage.join("oom"), "").unwrap();
    fs::write(node.path("host/go"), "").unwrap();
    let status = node.ready("web");
    assert_eq!(init(&status)["restartCount"], 1, "{status:#}");
    assert_eq!(init(&status)["lastState"]["terminated"]["reason"], "OOMKilled", "{status:#}");
    end(agent);
}

#[test]
fn a_container_has_a_restart_policy_of_its_own() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let with_policy = |mut container: Value, policy: &str| {
        container["restartPolicy"] = policy.into();
        container
    };
    let mut once = pod("once", RUNS);
    once["spec"]["containers"] = json!([with_policy(container("c", "exit 3"), "Never")]);
    node.write("once.json", &once);
    let mut broken = pod("broken", RUNS);
    broken["spec"]["initContainers"] = json!([with_policy(container("init", "exit 3"), "Never")]);
    node.write("broken.json", &broken);
    // Each succeeds at its second attempt.
    let script = |name: &str| format!("[ -e /host/{name} ] || {{ touch /host/{name}; exit 1; }}");
    let mut again = pod("again", RUNS);
    again["spec"]["restartPolicy"] = "Never".into();
    again["spec"]["initContainers"] = json!([with_policy(container("init", &script("init")), "OnFailure")]);
    again["spec"]["containers"] =
        json!([with_policy(container("c", &script("c")), "OnFailure"), container("d", "exit 0")]);
    with_host(&mut again, &node);
    node.write("again.json", &again);
    for name in ["once", "broken"] {
        node.until(name, "failed", |status| status["phase"] == "Failed");
    }
    let status = node.until("again", "at its end", |status| status["phase"] == "Succeeded");
    assert_eq!(status["initContainerStatuses"][0]["restartCount"], 1, "{status:#}");
    assert_eq!((restarts(&status, 0), restarts(&status, 1)), (1, 0), "{status:#}");
    end(agent);
}

#[test]
fn what_comes_after_a_sidecar_waits_until_that_runs_and_not_again_later() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let with_sidecar = |name: &str, mut sidecar: Value, more: &[Value]| {
        let mut web = pod(name, RUNS);
        sidecar["restartPolicy"] = "Always".into();
        web["spec"]["initContainers"] = [&[sidecar], more].concat().into();
        with_host(&mut web, &node);
        node.write(&format!("{name}.json"), &web);
    };
    let is_crashing = |status: &Value| {
        status["initContainerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    };
    let mut first = container("side", &format!("[ -e /host/go ] || exit 1; {RUNS}"));
    // Without it the sidecar has started as soon as it is seen running.
    first["startupProbe"] =
        json!({"exec": {"command": ["test", "-e", "/host/go"]}, "periodSeconds": 1, "timeoutSeconds": 60});
    with_sidecar("first", first, &[]);
    let later = container("side", "while [ ! -e /host/crash ]; do sleep 0.1; done; exit 1");
    with_sidecar("later", later, &[container("two", "while [ ! -e /host/go ]; do sleep 0.1; done")]);
    let status = node.until("first", "in a crash loop", is_crashing);
    assert_eq!(state(&status)["waiting"]["reason"], "PodInitializing", "{status:#}");
    assert!(podman.pids("default", "first-node1").is_empty());

    let runs_two = |status: &Value| status["initContainerStatuses"][1]["state"]["running"].is_object();
    node.until("later", "in its second init container", runs_two);
    fs::write(node.path("host/crash"), "").unwrap();
    node.until("later", "in a crash loop", |status| is_crashing(status) && runs_two(status));
    assert!(state(&node.pod("first").unwrap()["status"])["running"].is_null());
    fs::write(node.path("host/go"), "").unwrap();
    node.until("later", "running", |status| is_crashing(status) && state(status)["running"].is_object());
    node.ready("first");
    end(agent);
}

#[test]
fn a_sidecar_that_could_not_be_started_again_shows_its_end_when_its_pod_is_over() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let file = node.path("file");
    fs::write(&file, "").unwrap();
    let agent = node.start();
    let mut web = pod("web", RUNS);
    let mut sidecar = container("side", RUNS);
    sidecar["restartPolicy"] = "Always".into();
    sidecar["volumeMounts"] = json!([{"name": "file", "mountPath": "/file"}]);
    web["spec"]["restartPolicy"] = "Never".into();
    web["spec"]["initContainers"] = json!([sidecar]);
    web["spec"]["volumes"] = json!([{"name": "file", "hostPath": {"path": file, "type": "File"}}]);
    node.write("web.json", &web);
    node.ready("web");
    fs::remove_file(&file).unwrap();
    podman.run(&["kill", "podmux_default_web-node1_side_0"]);
    node.until("web", "without its sidecar", |status| {
        status["initContainerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerError"
    });
    podman.run(&["stop", "podmux_default_web-node1_c_0"]);
    let status = node.until("web", "completed", |status| status["phase"] == "Succeeded");
    let end_of_sidecar = &status["initContainerStatuses"][0]["state"]["terminated"];
    assert_eq!(end_of_sidecar["exitCode"], 137, "{status:#}");
    end(agent);
}

#[test]
fn a_command_that_does_not_exist_ends_a_container_that_is_never_restarted() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    for (name, policy) in [("once", "Never"), ("again", "OnFailure")] {
        let mut web = pod(name, RUNS);
        web["spec"]["restartPolicy"] = policy.into();
        web["spec"]["containers"][0]["command"] = json!(["/host/none"]);
        with_host(&mut web, &node);
        node.write(&format!("{name}.json"), &web);
    }
    let is_waiting = |status: &Value| state(status)["waiting"]["reason"] == "RunContainerError";
    node.until("again", "waiting", is_waiting);
    let has_failed = |status: &Value| status["phase"] == "Failed";
    let check = |status: Value| {
        let ended = &state(&status)["terminated"];
        assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(128), &json!("StartError")), "{status:#}");
        assert!(ended["message"].as_str().unwrap().contains("/host/none"), "{status:#}");
    };
    check(node.until("once", "failed", has_failed));
    end(agent);
    // It could be started now.
    let command = node.path("host/none");
    write_program(&command, &format!("#!/bin/sh\n{RUNS}"));
    let agent = node.start();
    node.ready("again");
    check(node.until("once", "failed", has_failed));
    end(agent);
}

#[test]
fn the_volumes_of_an_image_go_with_their_containers_and_those_of_the_pod_stay() {
    let Some(podman) = Podman::start() else { return };
    let image = "localhost/volume:1";
    podman.import_with(&["VOLUME /volume"], image);
    let node = Node::new(&podman);
    let agent = node.start();
    let mut broken = pod("broken", RUNS);
    (broken["spec"]["containers"][0]["image"], broken["spec"]["containers"][0]["command"]) =
        (image.into(), json!(["/none"]));
    node.write("broken.json", &broken);
    node.until("broken", "refused", |status| state(status)["waiting"]["reason"] == "RunContainerError");
    assert_eq!(podman.volumes(), [""; 0]);
    node.remove("broken.json");

    // Its third container runs.
    let script =
        format!("touch /volume/x; echo x >> /data/runs; [ $(wc -l < /data/runs) = 3 ] || exit 1; {RUNS}");
    let mut web = with_data(pod("web", &script));
    web["spec"]["containers"][0]["image"] = image.into();
    node.write("web.json", &web);
    node.until("web", "restarted twice", |status| restarts(status, 0) == 2);
    // That of the pod, and those of the last two containers.
    wait_for(|| (podman.volumes().len() == 3).then_some(()));
    node.ready("web");
    node.remove("web.json");
    wait_for(|| (podman.pods().is_empty() && podman.volumes().is_empty()).then_some(()));
    end(agent);
}
