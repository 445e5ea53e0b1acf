//! Pods that run with podman, by the service as it is packaged: without root, with podman's root socket.

use podmux_machine::machine::Machine;
use serde_json::{Value, json};

/// A pod with a container `main` that runs a shell script.
fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", script]}],
        },
    })
}

/// A script that runs until it gets SIGTERM.
const RUNS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn write(machine: &Machine, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    machine.write(&format!("/etc/podmux/manifests/{name}.yaml"), pod.to_string());
}

/// A hostPath volume, and its mount at the same path.
fn host_path(name: &str, path: &str, kind: &str) -> (Value, Value) {
    let volume = json!({"name": name, "hostPath": {"path": path, "type": kind}});
    (volume, json!({"name": name, "mountPath": path}))
}

/// The running containers in podman, as `NAMESPACE_NAME`, and the ids of their processes, in order.
fn containers(machine: &Machine) -> Vec<(String, String)> {
    let running =
        machine.ok("podman ps --filter label=podmux.container --format '{{.Names}} {{.Pid}}' | sort");
    let container = |line: &str| {
        let (name, process) = line.split_once(' ')?;
        let pod = name.strip_prefix("podmux_")?.split("_main_").next()?;
        Some((pod.to_owned(), process.to_owned()))
    };
    running.lines().filter_map(container).collect()
}

/// Waits until the containers of exactly these pods run and podmux shows each pod as ready. Returns the ids of
/// the processes.
fn run(machine: &Machine, pods: &[&str]) -> Vec<String> {
    machine.wait_for("the pods run", || {
        let (running, processes): (Vec<String>, Vec<String>) = containers(machine).into_iter().unzip();
        let shown = machine.run("podmux get pods; podmux get sinks");
        if running == pods && shown.stdout.matches(" 1/1 ").count() == pods.len() {
            Ok(processes)
        } else {
            Err(format!("{running:?}\n{shown:?}"))
        }
    })
}

#[test]
fn without_podman_the_agent_runs_and_says_so() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("podman");
    machine.restart();
    machine.post(&pod("posted", RUNS));
    machine.wait_for_status("names podman", |status| {
        status.contains("1 pod; sink podman failing") && status.contains("/run/podman/podman.sock")
    });
    assert_eq!(machine.is_active(), Ok(()));
}

#[test]
fn pods_survive_the_agent_and_podman_and_the_package() {
    let machine = Machine::with_podman();
    write(&machine, &pod("web", RUNS));
    write(&machine, &pod("db", RUNS));
    let mut host = pod("host", RUNS);
    host["spec"]["hostNetwork"] = true.into();
    machine.post(&host);
    // It ends when a file appears, and its message is in a file of the service.
    machine.ok("mkdir /srv/go");
    let script = "until [ -e /go/now ]; do sleep 0.1; done; echo bye >/dev/termination-log";
    let (volume, mount) = host_path("go", "/srv/go", "");
    let mut message = pod("message", script);
    message["spec"]["restartPolicy"] = "Never".into();
    message["spec"]["volumes"] = json!([volume]);
    message["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    message["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] = "/go".into();
    machine.post(&message);
    let pods = ["default_db-node1", "default_host", "default_message", "default_web-node1"];
    let all = run(&machine, &pods);

    // podman's socket is for the agent, and not for those who may post pods.
    assert_eq!(machine.ok("ps -o user= -C podmux"), "podmux\n");
    machine.ok("useradd alice && usermod -aG podmux alice");
    machine.ok("runuser -u alice -- podmux get pods");
    assert_eq!(machine.run("runuser -u alice -- test -w /run/podman/podman.sock").code, 1);
    machine.ok("runuser -u podmux -- test -w /run/podman/podman.sock");

    // No pod ends with the agent, however that ends; a label restarts nothing.
    machine.restart();
    assert_eq!(run(&machine, &pods), all);
    machine.ok("systemctl kill -s KILL podmux.service");
    let mut web = pod("web", RUNS);
    web["metadata"]["labels"] = json!({"a": "b"});
    write(&machine, &web);
    machine.wait_for("the new agent has the label", || match machine.run("podmux get pods -l a=b -o name") {
        found if found.stdout.contains("web-node1") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(run(&machine, &pods), all);

    // What a container writes after a restart of the service is not lost.
    machine.ok("touch /srv/go/now");
    machine.wait_for("the message is in the status", || {
        match machine.run("podmux get pod message -o yaml") {
            shown if shown.stdout.contains("message: |\n          bye\n") => Ok(()),
            shown => Err(format!("{shown:?}")),
        }
    });
    machine.ok("podmux delete pod message");

    // Neither does one end with podman's service, and the agent goes on with the new one.
    machine.ok("systemctl restart podman.socket && systemctl restart podman.service");
    machine.post(&pod("late", RUNS));
    let with_late = ["default_db-node1", "default_host", "default_late", "default_web-node1"];
    let processes = run(&machine, &with_late);
    assert_eq!([&processes[0], &processes[1], &processes[3]], [&all[0], &all[1], &all[3]]);

    // While the agent is down a manifest goes, and another one is changed.
    machine.ok("systemctl stop podmux.service podmux.socket && rm /etc/podmux/manifests/db.yaml");
    web["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    write(&machine, &web);
    assert_eq!(containers(&machine).len(), 4);
    machine.ok("systemctl start podmux.socket podmux.service");
    let pods = ["default_host", "default_late", "default_web-node1"];
    machine.wait_for("the changed pod runs", || match run(&machine, &pods) {
        changed if changed[2] != all[3] => Ok(()),
        same => Err(format!("{same:?}")),
    });
    machine.ok("podmux delete pod late");
    let left = run(&machine, &["default_host", "default_web-node1"]);
    assert_eq!(left[0], all[1]);
    assert_eq!(machine.ok("systemctl list-units --failed --plain --no-legend"), "");

    // What runs is the administrator's. The purge names it, and podman's socket is root's again.
    let purge = machine.ok("dpkg --purge podmux");
    assert!(purge.contains("podmux_default_host\npodmux_default_web-node1\n"), "{purge}");
    assert_eq!(containers(&machine).into_iter().map(|(_, process)| process).collect::<Vec<_>>(), left);
    let stat = "stat -c '%U %G %a' /run/podman/podman.sock /run/podman";
    assert_eq!(machine.ok(stat), "root root 660\nroot root 700\n");
    assert!(!machine.exists("/etc/systemd/system/podman.service.d"));
    machine.ok("systemctl restart podman.socket && podman --url unix:///run/podman/podman.sock pod ps");
    machine.ok("podman pod rm --force $(podman pod ps --quiet --filter label=podmux.instance)");
    assert_eq!(machine.ok("podman ps --all --quiet; podman volume ls --quiet"), "");
}

#[test]
fn pods_come_up_after_a_reboot_without_a_network() {
    let mut machine = Machine::with_podman();
    write(&machine, &pod("web", RUNS));
    machine.post(&pod("posted", RUNS));
    // It does its work once.
    machine.ok("install -d -m 0777 /srv/job");
    let mut job = pod("job", "echo done >>/srv/job/log; echo bye >/dev/termination-log");
    job["spec"]["restartPolicy"] = "Never".into();
    let (volume, mount) = host_path("job", "/srv/job", "");
    job["spec"]["volumes"] = json!([volume]);
    job["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    machine.post(&job);
    let pods = ["default_posted", "default_web-node1"];
    run(&machine, &pods);
    let has_succeeded = |machine: &Machine| {
        machine.wait_for("the job has succeeded", || match machine.run("podmux get pod job") {
            shown if shown.stdout.contains("Completed") => Ok(()),
            shown => Err(format!("{shown:?}")),
        });
    };
    has_succeeded(&machine);
    // The container has written it to a file of the service.
    assert!(machine.ok("podmux get pod job -o yaml").contains("message: |\n          bye\n"));
    let uids = machine.ok("podmux get pods -o yaml | grep ' uid: '");
    let boot = machine.ok("journalctl --list-boots | wc -l; stat -c %Y /run/podmux-agent/*/boot");
    machine.reboot();
    // There is only the loopback interface.
    assert_eq!(machine.ok("ls /sys/class/net | grep -v -e lo -e podman -e veth; true"), "");
    run(&machine, &pods);
    has_succeeded(&machine);
    assert_eq!(machine.ok("podmux get pods -o yaml | grep ' uid: '"), uids);
    assert_ne!(machine.ok("journalctl --list-boots | wc -l; stat -c %Y /run/podmux-agent/*/boot"), boot);
    assert_eq!(machine.read("/srv/job/log"), "done\n");
    // They are managed, too: a removed one goes.
    machine.ok("podmux delete pod posted");
    run(&machine, &pods[1..]);
}

#[test]
fn host_paths_are_those_of_the_host_and_created_where_the_agent_may() {
    let machine = Machine::with_podman();
    // What a probe prints is not kept without bound.
    assert_eq!(machine.ok("systemctl show --property MemoryMax --value podman.service"), "1073741824\n");
    machine.ok("mkdir /home/alice /root/deep && touch /tmp/file");
    let mut web = pod("web", &format!("touch /root/deep/made; {RUNS}"));
    let paths = [("/home/alice", "Directory"), ("/tmp/file", "File"), ("/dev/null", "CharDevice")];
    let paths = paths.into_iter().chain([("/root/deep", ""), ("/srv/pods/new", "DirectoryOrCreate")]);
    let (volumes, mounts): (Vec<_>, Vec<_>) =
        paths.enumerate().map(|(index, (path, kind))| host_path(&format!("v{index}"), path, kind)).unzip();
    web["spec"]["volumes"] = volumes.into();
    web["spec"]["containers"][0]["volumeMounts"] = mounts.into();
    machine.post(&web);
    machine.wait_for("the path cannot be created", || match machine.run("podmux get pod web -o yaml") {
        shown if shown.stdout.contains("hostPath /srv/pods/new: Read-only file system") => Ok(()),
        shown => Err(format!("{shown:?}")),
    });
    // The first way that the drop-in has for this.
    let drop_in = "/etc/systemd/system/podmux.service.d/podman.conf";
    machine.ok("install -d -o podmux -g podmux /srv/pods");
    machine.ok(&format!("sed -i 's,^#ReadWritePaths=/srv/pods,ReadWritePaths=/srv/pods,' {drop_in}"));
    machine.ok("systemctl daemon-reload");
    machine.restart();
    run(&machine, &["default_web"]);
    // The shell writes it a little after the pod has begun to run.
    machine.wait_for("the container has made its file", || {
        machine.exists("/root/deep/made").then_some(()).ok_or_else(|| machine.run("ls /root/deep").stdout)
    });
    assert_eq!(machine.ok("stat -c '%U %a' /srv/pods/new"), "podmux 755\n");

    // The second way: as root, which uses podman's socket as it is.
    machine.ok("rm /etc/systemd/system/podman.socket.d/podmux.conf");
    let lines = r"s,^#\(User=root\|Group=root\|PrivateUsers=no\|ProtectSystem=full\)$,\1,";
    machine.ok(&format!("sed -i '{lines}' {drop_in} && systemctl daemon-reload"));
    machine.ok("systemctl restart podman.socket podmux.service");
    assert_eq!(machine.ok("ps -o user= -C podmux"), "root\n");
    let (volume, mount) = host_path("file", "/srv/file", "FileOrCreate");
    let mut file = pod("file", RUNS);
    file["spec"]["volumes"] = json!([volume]);
    file["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    machine.post(&file);
    run(&machine, &["default_file", "default_web"]);
    assert_eq!(machine.ok("stat -c '%U %a' /srv/file"), "root 644\n");
}
