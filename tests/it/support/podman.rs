//! A podman of a test's own, with its own storage, and agents that run pods with it.

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    kubernetes::not_tested,
    plain::Connection,
    process::{Process, podmux, wait_for},
};

/// The image of a static busybox.
pub const IMAGE: &str = "localhost/busybox:1";

/// podman with its own storage. Its pods are removed when it is dropped.
pub struct Podman {
    dir: TempDir,
    service: Option<Child>,
}

/// The file system of the image, made once; none where podman cannot be had.
pub fn image() -> Option<&'static Path> {
    static IMAGE: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let made = IMAGE.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            not_tested("podman: only root can run it here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image.tar");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/podman/image");
        let status = Command::new(script).arg(&file).stdout(Stdio::null()).status().unwrap();
        match status.code() {
            Some(0) => Some((dir, file)),
            Some(69) => {
                not_tested("podman: it cannot be installed here");
                None
            }
            _ => panic!("{script}: {status}"),
        }
    });
    made.as_ref().map(|(_, file)| file.as_path())
}

impl Podman {
    /// A podman with the image, and its service; none where it cannot be had.
    pub fn start() -> Option<Self> {
        let image = image()?;
        let dir = tempfile::Builder::new().prefix("pm").tempdir().unwrap();
        // A container cannot have higher limits than the test where it may not raise them.
        let config = "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
                      [containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
                      log_driver = \"k8s-file\"\n";
        fs::write(dir.path().join("containers.conf"), config).unwrap();
        // The registry of a test speaks plain HTTP.
        let registries = "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n";
        fs::write(dir.path().join("registries.conf"), registries).unwrap();
        let mut podman = Self { dir, service: None };
        podman.run(&["import", "--quiet", image.to_str().unwrap(), IMAGE]);
        podman.start_service();
        Some(podman)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("podman.sock")
    }

    fn command(&self, args: &[&str]) -> Command {
        let path = |name: &str| self.path(name).display().to_string();
        let mut command = Command::new("podman");
        command.args(["--root", &path("root"), "--runroot", &path("run"), "--tmpdir", &path("tmp")]);
        command.args(args).stdin(Stdio::null());
        command.env("CONTAINERS_CONF", self.path("containers.conf"));
        command.env("CONTAINERS_REGISTRIES_CONF", self.path("registries.conf"));
        command
    }

    /// Runs `podman` with these arguments. Returns its output.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "podman {args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args)).unwrap()
    }

    pub fn start_service(&mut self) {
        let log = fs::File::options().append(true).create(true).open(self.path("service.log")).unwrap();
        let address = format!("unix://{}", self.socket().display());
        let mut command = self.command(&["system", "service", "--time", "0", &address]);
        let service = command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        self.service = Some(service);
        wait_for(|| Connection::unix(&self.socket()).ok()?.ask("GET", "/_ping", b"").ok());
    }

    /// Ends the service as `kill -9` does. The containers go on.
    pub fn kill_service(&mut self) {
        let mut service = self.service.take().unwrap();
        kill_process(Pid::from_child(&service), Signal::KILL).unwrap();
        service.wait().unwrap();
        let _ = fs::remove_file(self.socket());
    }

    /// The process ids of the running containers of a pod, by the names of the containers, in order.
    pub fn pids(&self, namespace: &str, pod: &str) -> Vec<(String, i64)> {
        let filters = [format!("label=podmux.namespace={namespace}"), format!("label=podmux.name={pod}")];
        let all = self.json(&[
            "ps",
            "--format",
            "json",
            "--filter",
            "label=podmux.container",
            "--filter",
            &filters[0],
            "--filter",
            &filters[1],
        ]);
        let pid = |container: &Value| {
            let name = container["Labels"]["podmux.container"].as_str().unwrap().to_owned();
            (name, container["Pid"].as_i64().unwrap())
        };
        let mut pids: Vec<(String, i64)> = all.as_array().unwrap().iter().map(pid).collect();
        pids.sort();
        pids
    }

    /// The names of all pods, in order.
    pub fn pods(&self) -> Vec<String> {
        let all = self.json(&["pod", "ps", "--format", "json"]);
        let mut names: Vec<String> =
            all.as_array().unwrap().iter().map(|pod| pod["Name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// The names of all volumes, in order.
    pub fn volumes(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.run(&["volume", "ls", "--quiet"]).lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The output of the newest container of a pod.
    pub fn output(&self, container: &str) -> String {
        self.run(&["logs", container])
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.command(&["pod", "rm", "--force", "--all", "--time", "0"]).output();
        let _ = self.command(&["rm", "--force", "--all", "--time", "0"]).output();
        if let Some(mut service) = self.service.take() {
            let _ = kill_process(Pid::from_child(&service), Signal::KILL);
            let _ = service.wait();
        }
        for mount in ["root/overlay", "run"] {
            let _ = Command::new("umount").arg(self.path(mount)).stderr(Stdio::null()).status();
        }
    }
}

/// The manifests, the state and the socket of an agent that runs its pods with a podman.
pub struct Node {
    dir: TempDir,
    socket: PathBuf,
}

impl Node {
    pub fn new(podman: &Podman) -> Self {
        Self::at(&podman.socket())
    }

    /// A node whose podman is at a socket.
    pub fn at(socket: &Path) -> Self {
        let node = Self { dir: tempfile::tempdir().unwrap(), socket: socket.to_owned() };
        fs::create_dir(node.path("manifests")).unwrap();
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the agent.
    pub fn start(&self) -> Process {
        self.start_with(&[])
    }

    /// Starts the agent with more flags.
    pub fn start_with(&self, more: &[&str]) -> Process {
        Process::start(&mut self.command(more))
    }

    /// The command that starts the agent.
    pub fn command(&self, more: &[&str]) -> Command {
        let path = |name: &str| self.path(name).display().to_string();
        let (manifests, state, socket) = (path("manifests"), path("state"), format!("unix:{}", path("s")));
        let sink = format!("podman={}", self.socket.display());
        let mut args = vec!["run", "--node-name", "node1", "--pod-manifest-path", &manifests];
        args.extend(["--state-dir", &state, "--listen", &socket, "--sink", &sink, "-v"]);
        args.extend(more);
        let mut command = podmux(&args);
        command.env("RUNTIME_DIRECTORY", path("run"));
        command
    }

    pub fn write(&self, file: &str, pod: &Value) {
        fs::write(self.path("staged"), pod.to_string()).unwrap();
        fs::rename(self.path("staged"), self.path("manifests").join(file)).unwrap();
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.path("manifests").join(file)).unwrap();
    }

    /// A response of the agent; none while it does not answer.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = Connection::unix(&self.path("s")).ok()?.ask(method, path, body.as_bytes()).ok()?;
        Some((answer.code, answer.json()))
    }

    /// A pod of the default namespace as the agent shows it.
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.pod_in("default", name)
    }

    pub fn pod_in(&self, namespace: &str, name: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}-node1");
        self.ask("GET", &path, &Value::Null).filter(|(code, _)| *code == 200).map(|(_, pod)| pod)
    }

    /// Waits until the status of a pod of the default namespace is like this. Returns it.
    pub fn until(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(|| {
                last = self.pod(name).map(|pod| pod["status"].clone()).unwrap_or_default();
                wanted(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| panic!("{name} is not {what}: {last:#}"))
    }

    /// Waits until a pod of the default namespace is ready.
    pub fn ready(&self, name: &str) -> Value {
        self.until(name, "ready", |status| condition(status, "Ready")["status"] == "True")
    }
}

/// A condition of a pod's status.
pub fn condition(status: &Value, name: &str) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.clone().find(|condition| condition["type"] == name).cloned().unwrap_or_default()
}

/// A pod with a container `c` that runs a shell script.
pub fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": [container("c", script)]},
    })
}

/// A container that runs a shell script.
pub fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]})
}

/// A script that runs until it gets SIGTERM.
pub const RUNS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
