//! What a real podman mounts in containers: paths of the host and emptyDirs, and what is visible of one mount in another.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::podman::{end, state};
use crate::support::{
    podman::{Node, Podman, RUNS, container, host_port, pod},
    process::{Process, wait_for},
    program::write_program,
};

/// The same command with the umask of the packaged service.
fn with_umask_of_service(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"umask 0077; exec "$0" "$@""#]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// A container with mounts: names of volumes, and their paths.
fn mounting(name: &str, script: &str, mounts: &[(&str, &str)]) -> Value {
    let mut container = container(name, script);
    let mounts = mounts.iter().map(|(name, path)| json!({"name": name, "mountPath": path}));
    container["volumeMounts"] = mounts.collect();
    container
}

/// The termination message of a container; none while it has not ended.
fn message<'s>(status: &'s Value, container: &str) -> Option<&'s str> {
    let statuses = status["containerStatuses"].as_array()?;
    let status = statuses.iter().find(|status| status["name"] == container)?;
    let ended = status["state"]["terminated"].as_object()?;
    Some(ended.get("message").map_or("", |message| message.as_str().unwrap()))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The port of an init container that has ended, a probe that names a variable, and a volume in the place of the message.
#[test]
fn a_pod_that_refers_to_itself_is_ready_as_with_the_kubelet() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let port = host_port();
    let mut web = pod("web", RUNS);
    web["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let init = &mut container("init", "");
    init["ports"] = json!([{"containerPort": 8080, "hostPort": port}]);
    web["spec"]["initContainers"] = json!([init]);
    let main = &mut web["spec"]["containers"][0];
    main["ports"] = json!([{"containerPort": 9090, "hostPort": port}]);
    main["volumeMounts"] = json!([{"name": "v", "mountPath": "/dev/termination-log"}]);
    main["env"] = json!([{"name": "PLACE", "value": "/dev/termination-log"}]);
    main["readinessProbe"] = json!({"exec": {"command": ["test", "-d", "$(PLACE)"]}, "periodSeconds": 1});
    node.write("web.json", &web);
    let agent = node.start();
    node.ready("web");
    end(agent);
}

#[test]
fn what_a_container_makes_of_the_mode_of_an_empty_dir_stays_when_the_next_one_starts() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let mut web = pod("web", "");
    web["spec"]["restartPolicy"] = "Never".into();
    web["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let script =
        "chmod 700 /v; until [ -e /v/next ]; do sleep 0.1; done; stat -c %a /v > /dev/termination-log";
    web["spec"]["containers"] =
        json!([mounting("c", script, &[("v", "/v")]), mounting("next", "touch /v/next", &[("v", "/v")])]);
    node.write("web.json", &web);
    let agent = node.start();
    let status = node.until("web", "over", |status| message(status, "c").is_some());
    assert_eq!(message(&status, "c"), Some("700\n"));
    end(agent);
}

#[test]
fn a_path_that_is_gone_keeps_no_other_from_being_made_again() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let [gone, made] = ["gone", "made"].map(|name| node.path(name));
    fs::write(&gone, "").unwrap();
    let mut web = pod("web", "");
    web["spec"]["volumes"] = json!([
        {"name": "gone", "hostPath": {"path": gone, "type": "File"}},
        {"name": "made", "hostPath": {"path": made, "type": "DirectoryOrCreate"}},
    ]);
    web["spec"]["containers"] =
        json!([mounting("a", RUNS, &[("gone", "/gone")]), mounting("c", RUNS, &[("made", "/made")])]);
    node.write("web.json", &web);
    let agent = node.start();
    node.ready("web");
    fs::remove_file(&gone).unwrap();
    fs::remove_dir(&made).unwrap();
    podman.run(&["kill", "podmux_default_web-node1_c_0"]);
    node.until("web", "restarted", |status| {
        let restarted = &status["containerStatuses"][1];
        restarted["restartCount"] == 1 && restarted["state"]["running"].is_object()
    });
    assert!(made.is_dir() && !gone.exists());
    end(agent);
}

/// Each time the runtime names another directory of podman's storage.
#[test]
fn a_mount_that_fails_again_and_again_is_logged_once() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let mut web = pod("web", RUNS);
    web["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/etc"}}]);
    web["spec"]["containers"] = json!([mounting("c", RUNS, &[("v", "/etc/passwd/v")])]);
    node.write("web.json", &web);
    let agent = node.start();
    let failed = |attempts: u64| {
        wait_for(|| {
            let sinks = node.ask("GET", "/sinks", &Value::Null)?.1;
            let failing = sinks["items"][0]["failingPods"][0].clone();
            (failing["attempts"].as_u64() >= Some(attempts)).then(|| failing["error"].to_string())
        })
    };
    assert_ne!(failed(1), failed(3));
    let log = agent.stderr.text();
    let is_warning = |line: &&str| line.contains("WARN") && line.contains("container failed");
    let warnings: Vec<&str> = log.lines().filter(is_warning).collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    end(agent);
}

#[test]
fn a_path_that_is_created_has_the_modes_of_the_kubelet_whatever_the_umask() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    for name in ["private", "real"] {
        fs::create_dir(node.path(name)).unwrap();
        fs::set_permissions(node.path(name), Permissions::from_mode(0o700)).unwrap();
    }
    symlink("real", node.path("link")).unwrap();
    let agent = Process::start(&mut with_umask_of_service(&node.command(&[])));
    let mut web = pod("web", "");
    web["spec"]["restartPolicy"] = "Never".into();
    let paths = [
        ("DirectoryOrCreate", "a/b/c"),
        ("", "d/e"),
        ("FileOrCreate", "private/file"),
        ("DirectoryOrCreate", "link/f"),
    ];
    let names = ["one", "two", "three", "four"];
    let volumes = paths.iter().zip(names).map(
        |((kind, path), name)| json!({"name": name, "hostPath": {"path": node.path(path), "type": kind}}),
    );
    web["spec"]["volumes"] = volumes.collect();
    let targets = names.map(|name| format!("/{name}"));
    let mounts: Vec<(&str, &str)> = names.into_iter().zip(targets.iter().map(String::as_str)).collect();
    web["spec"]["containers"][0] = mounting("c", "", &mounts);
    node.write("web.json", &web);
    node.until("web", "over", |status| status["phase"] == "Succeeded");
    for path in ["a", "a/b", "a/b/c", "d", "d/e", "real/f"] {
        assert_eq!(mode(&node.path(path)), 0o755, "{path}");
    }
    assert_eq!(mode(&node.path("private/file")), 0o644);
    for path in ["private", "real"] {
        assert_eq!(mode(&node.path(path)), 0o700, "{path} was there before");
    }
    end(agent);
}

#[test]
fn a_volume_at_run_has_nothing_of_an_empty_dir_in_memory() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("theirs"), "").unwrap();
    let mut web = pod("web", "");
    web["spec"]["restartPolicy"] = "Never".into();
    let list = "ls -A /run > /dev/termination-log";
    let mut containers = [
        mounting("disk", list, &[("disk", "/run"), ("memory", "/m")]),
        mounting("host", list, &[("host", "/run")]),
    ];
    containers[1]["volumeMounts"][0]["readOnly"] = true.into();
    web["spec"]["containers"] = json!(containers);
    web["spec"]["volumes"] = json!([
        {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": host}},
    ]);
    node.write("web.json", &web);
    let status = node.until("web", "over", |status| status["phase"] == "Succeeded");
    for (container, own) in [("disk", vec![]), ("host", vec!["theirs"])] {
        let seen = message(&status, container).unwrap().lines();
        // podman's own.
        let seen: Vec<&str> = seen.filter(|name| *name != ".containerenv").collect();
        assert_eq!(seen, own, "{container}");
    }
    let left = fs::read_dir(&host).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != ".containerenv").collect();
    assert_eq!(left, ["theirs"]);
    end(agent);
}

#[test]
fn a_mount_in_an_empty_dir_is_passed_on_to_the_other_containers() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    // As with systemd, which shares all mounts of the machine.
    let volumes = podman.path("root/volumes");
    fs::create_dir_all(&volumes).unwrap();
    let mount = |flags: &[&str]| {
        assert!(Command::new("mount").args(flags).arg(&volumes).status().unwrap().success());
    };
    mount(&["--bind", volumes.to_str().unwrap()]);
    mount(&["--make-rshared"]);
    let agent = node.start();
    let mut web = pod("web", "");
    web["spec"]["restartPolicy"] = "Never".into();
    let script = "trap 'umount /disk/m; exit 0' TERM; mkdir /disk/m; mount -t tmpfs tmpfs /disk/m; touch /disk/m/x; \
                  while :; do sleep 0.1; done";
    let mut containers = [
        mounting("from", script, &[("disk", "/disk")]),
        mounting("to", "until [ -e /disk/m/x ]; do sleep 0.1; done", &[("disk", "/disk")]),
    ];
    containers[0]["securityContext"] = json!({"privileged": true});
    containers[0]["volumeMounts"][0]["mountPropagation"] = "Bidirectional".into();
    containers[1]["volumeMounts"][0]["mountPropagation"] = "HostToContainer".into();
    web["spec"]["containers"] = json!(containers);
    web["spec"]["volumes"] = json!([{"name": "disk", "emptyDir": {}}]);
    node.write("web.json", &web);
    node.until("web", "seen through", |status| message(status, "to") == Some(""));
    node.remove("web.json");
    wait_for(|| podman.volumes().is_empty().then_some(()));
    end(agent);
    assert!(Command::new("umount").arg(&volumes).status().unwrap().success());
}

/// podman has a mode for a command of this name: with mounts that are writable, and another signal.
#[test]
fn a_command_that_is_named_systemd_has_a_read_only_root_and_ends_by_sigterm() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let script = "#!/bin/sh\ntrap 'exit 7' TERM\n\
                  touch /run/file || touch /tmp/file || echo read-only > /dev/termination-log\n\
                  touch /host/begun\nwhile :; do sleep 0.1; done\n";
    write_program(&host.join("systemd"), script);
    let mut web = pod("web", "");
    web["spec"]["restartPolicy"] = "Never".into();
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    let container = &mut web["spec"]["containers"][0];
    *container = mounting("c", "", &[("host", "/host")]);
    container["command"] = json!(["/host/systemd"]);
    container["securityContext"] = json!({"readOnlyRootFilesystem": true});
    node.write("web.json", &web);
    let agent = node.start();
    wait_for(|| host.join("begun").exists().then_some(()));
    podman.run(&["stop", "podmux_default_web-node1_c_0"]);
    let status = node.until("web", "at its end", |status| status["phase"] == "Failed");
    let ended = &state(&status)["terminated"];
    assert_eq!((&ended["exitCode"], &ended["message"]), (&json!(7), &json!("read-only\n")), "{status:#}");
    end(agent);
}
