//! A podman of a test's own, with its own storage, and agents that run pods with it.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    env,
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    kubernetes::not_tested,
    own_podman,
    plain::Connection,
    process::{Process, podmux, wait_for},
    program::copy_program,
};

/// Without a command it runs until it gets SIGTERM.
pub use super::own_podman::IMAGE;

/// An unprivileged user and group.
const NOBODY: &str = "65534";

/// A command of podman that takes longer waits for a lock.
const HANGS: Duration = Duration::from_mins(1);

fn chown(path: &Path) {
    std::os::unix::fs::chown(path, NOBODY.parse().ok(), NOBODY.parse().ok()).unwrap();
}

/// A port of the host that no other test uses. The kernel gives it to no connection: those have ports above 32767.
pub fn host_port() -> u16 {
    static TESTS: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(process::id() % 500).unwrap();
    20_000 + 20 * process + TESTS.fetch_add(1, Ordering::Relaxed)
}

/// podman with its own storage. Its pods are removed when it is dropped, and then nothing of it may be left.
pub struct Podman {
    dir: TempDir,
    service: RefCell<Option<Child>>,
    is_stopped: Cell<bool>,
    was_killed: Cell<bool>,
    is_rootless: bool,
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
        let status = own_podman::make_image(&file);
        match status.code() {
            Some(0) => Some((dir, file)),
            Some(69) => {
                not_tested("podman: it cannot be installed here");
                None
            }
            _ => panic!("tests/podman: {status}"),
        }
    });
    made.as_ref().map(|(_, file)| file.as_path())
}

impl Podman {
    /// A podman with the image, and its service; none where it cannot be had.
    pub fn start() -> Option<Self> {
        Self::start_on(None)
    }

    /// A podman of an unprivileged user; none where that user may not create user namespaces.
    pub fn start_rootless() -> Option<Self> {
        image()?;
        let podman = Self::new(true);
        chown(podman.dir.path());
        chown(&podman.path("containers.conf"));
        let output = podman.command(&["info"]).output().unwrap();
        if !output.status.success() {
            not_tested(&format!("rootless podman: {}", String::from_utf8_lossy(&output.stderr)));
            return None;
        }
        Some(podman.served())
    }

    /// The same with its storage on a disk of this size, as `mount` writes it.
    pub fn start_on(disk: Option<&str>) -> Option<Self> {
        image()?;
        let podman = Self::new(false);
        if let Some(size) = disk {
            fs::create_dir(podman.path("root")).unwrap();
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(podman.path("root"));
            assert!(mount.status().unwrap().success());
        }
        Some(podman.served())
    }

    fn new(is_rootless: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("pm").tempdir().unwrap();
        own_podman::configure(dir.path());
        let (service, is_stopped, was_killed) = Default::default();
        Self { dir, service, is_stopped, was_killed, is_rootless }
    }

    fn served(self) -> Self {
        self.import();
        self.start_service();
        self
    }

    /// Makes the image.
    pub fn import(&self) {
        self.import_with(&[&format!("CMD {}", json!(["sh", "-c", RUNS]))], IMAGE);
    }

    /// Makes an image of another name, with instructions of a Dockerfile.
    pub fn import_with(&self, changes: &[&str], name: &str) {
        // Any user can read it there.
        let file = self.path("image.tar");
        fs::copy(image().unwrap(), &file).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let changes = changes.iter().flat_map(|change| ["--change", change]);
        let args = ["import", "--quiet"].into_iter().chain(changes).chain([file.to_str().unwrap(), name]);
        self.run(&args.collect::<Vec<_>>());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("podman.sock")
    }

    /// Gives the image these names, too.
    pub fn tag(&self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let args = ["tag", IMAGE].into_iter().chain(names.iter().map(String::as_str));
        self.run(&args.collect::<Vec<_>>());
    }

    /// A command of the user of this podman.
    pub fn as_user(&self, program: &str) -> Command {
        if !self.is_rootless {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", program]);
        // This user may not be able to enter the directory of the sources.
        command.current_dir(self.dir.path());
        command.env("HOME", self.dir.path()).env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        own_podman::complete(self.as_user("podman"), self.dir.path(), args)
    }

    /// Runs `podman` with these arguments. Returns its output.
    pub fn run(&self, args: &[&str]) -> String {
        self.try_run(args).unwrap()
    }

    /// The same; the error is what podman says.
    pub fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let (done, ended) = mpsc::channel();
        thread::spawn(move || done.send(child.wait_with_output().unwrap()));
        let output = ended.recv_timeout(HANGS).unwrap_or_else(|_| {
            self.end_deadlock();
            let output = ended.recv().unwrap();
            // Two objects that share a lock would lock the next service out, too.
            assert!(self.command(&["system", "renumber"]).status().unwrap().success());
            self.start_service();
            output
        });
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout).unwrap());
        }
        Err(format!("podman {args:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args)).unwrap()
    }

    /// Ends the service if it waits for itself, as an operator would. podman before 4.8 does so when it makes a container
    /// that has a volume: it has locked the volume and waits for the pod. An agent that was killed has asked for it, and the
    /// next one removes the pod: that has locked the pod and waits for the volume (podman#20313). With locks in files, as
    /// here, it was also seen once without a removal.
    fn end_deadlock(&self) {
        let before = self.log().len();
        let dump = self.dump_service().split_off(before);
        let waits_in_setup = |goroutine: &str| {
            goroutine.contains(".LockFileLock(") && goroutine.contains("libpod.(*Runtime).setupContainer(")
        };
        assert!(dump.split("\n\n").any(waits_in_setup), "podman hangs:\n{dump}");
        println!("podman's service has locked itself out, and is started again");
    }

    /// Ends what `end_deadlock` ends, if it is there. A command that hangs shows it.
    pub fn end_any_deadlock(&self) {
        if !self.is_stopped.get() {
            self.volumes();
        }
    }

    pub fn start_service(&self) {
        let log = fs::File::options().append(true).create(true).open(self.path("service.log")).unwrap();
        let address = format!("unix://{}", self.socket().display());
        let mut command = self.command(&["system", "service", "--time", "0", &address]);
        let service = command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        self.service.replace(Some(service));
        wait_for(|| Connection::unix(&self.socket()).ok()?.ask("GET", "/_ping", b"").ok());
    }

    /// Ends the service as `kill -9` does. The containers go on.
    pub fn kill_service(&self) {
        self.end_service(Signal::KILL);
    }

    fn end_service(&self, signal: Signal) {
        let Some(mut service) = self.service.take() else { return };
        kill_process(Pid::from_child(&service), signal).unwrap();
        service.wait().unwrap();
        self.is_stopped.set(false);
        self.was_killed.set(true);
        let _ = fs::remove_file(self.socket());
    }

    /// Lets the service hang. Nothing else of podman may be run meanwhile: it may wait for a lock.
    pub fn stop_service(&self) {
        self.signal(Signal::STOP);
        self.is_stopped.set(true);
    }

    /// Lets the service go on, or starts it.
    pub fn heal_service(&self) {
        if self.service.borrow().is_none() {
            self.start_service();
        } else if self.is_stopped.take() {
            self.signal(Signal::CONT);
        }
    }

    /// The output of the service and, if it runs, where each of its goroutines is. This ends it.
    pub fn dump_service(&self) -> String {
        if !self.is_stopped.get() {
            self.end_service(Signal::QUIT);
        }
        self.log()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("service.log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let service = self.service.borrow();
        service.iter().for_each(|service| kill_process(Pid::from_child(service), signal).unwrap());
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

    /// Waits until the containers of a pod catch SIGTERM. Before its `trap`, a container's first process ignores it.
    pub fn wait_for_traps(&self, namespace: &str, pod: &str) {
        let catches = |pid: i64| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
            caught.is_some_and(|caught| caught & 1 << (Signal::TERM.as_raw() - 1) != 0)
        };
        wait_for(|| {
            let pids = self.pids(namespace, pod);
            (!pids.is_empty() && pids.iter().all(|(_, pid)| catches(*pid))).then_some(())
        });
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
        // podman looks each of them up, and fails if one is removed meanwhile.
        let listed = wait_for(|| match self.try_run(&["volume", "ls", "--quiet"]) {
            Err(error) if error.contains("no such volume") => None,
            other => Some(other.unwrap()),
        });
        let mut names: Vec<String> = listed.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The output of the newest container of a pod.
    pub fn output(&self, container: &str) -> String {
        self.run(&["logs", container])
    }
}

/// What is left of a podman: its processes, mounts and cgroups.
impl Podman {
    /// The cgroups of all containers and pods so far, with what is in them before them.
    fn cgroups(&self) -> Vec<PathBuf> {
        let events = fs::read_to_string(self.path("tmp/events/events.log")).unwrap_or_default();
        let event = |line: &str| serde_json::from_str::<Value>(line).ok();
        let ids = events.lines().filter_map(event).filter_map(|event| Some(event["ID"].as_str()?.to_owned()));
        let ids: HashSet<String> = ids.collect();
        let mut found = Vec::new();
        let mut waiting = vec![(PathBuf::from("/sys/fs/cgroup"), false)];
        while let Some((directory, is_ours)) = waiting.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().map_while(Result::ok) {
                let name = entry.file_name().into_string().unwrap();
                let id = name.rsplit('-').next().unwrap_or_default().trim_end_matches(".scope");
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push((entry.path(), is_ours || ids.contains(id)));
                }
            }
            if is_ours {
                found.push(directory);
            }
        }
        found.reverse();
        found
    }

    fn mounts(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        points.filter(|point| Path::new(point).starts_with(self.dir.path())).map(str::to_owned).collect()
    }

    /// The processes that name its directory, but for its service.
    fn processes(&self) -> Vec<Pid> {
        let directory = self.dir.path().to_str().unwrap();
        let own = self.service.borrow().as_ref().map(Pid::from_child);
        let entries = fs::read_dir("/proc").unwrap().map_while(Result::ok);
        let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let names_it =
            |pid: &Pid| ["cmdline", "environ"].iter().any(|file| text(*pid, file).contains(directory));
        pids.filter(|pid| Some(*pid) != own && *pid != rustix::process::getpid() && names_it(pid)).collect()
    }

    /// Ends the processes that podman keeps for five minutes after a command in a container.
    pub fn end_exec_sessions(&self) {
        self.end_named("--exit-delay");
    }

    fn end_named(&self, argument: &str) {
        let is_named = |pid: &Pid| text(*pid, "cmdline").contains(argument);
        kill(self.processes().into_iter().filter(is_named).collect());
    }

    /// Ends the containers that have been made and never started. Each of them waits to be started.
    fn end_unstarted(&self) {
        let children = |conmon: &Pid| text(*conmon, &format!("task/{}/children", conmon.as_raw_nonzero()));
        let children: String = self.processes().iter().map(children).collect();
        let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        kill(pids.filter(|pid| text(*pid, "cmdline").ends_with("runc\0init\0")).collect());
    }

    /// Ends everything as a power failure does: what is not on a disk is lost.
    pub fn reboot(&self) {
        self.kill_service();
        let cgroups = self.cgroups();
        loop {
            let text = |cgroup: &PathBuf| fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
            let inside = cgroups.iter().map(text).collect::<String>();
            let inside = inside.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            let pids: Vec<Pid> = inside.chain(self.processes()).collect();
            if pids.is_empty() {
                break;
            }
            kill(pids);
        }
        self.unmount();
        for cgroup in cgroups {
            // podman removes some of them itself.
            let _ = fs::remove_dir(cgroup);
        }
        for lost in ["run", "tmp"] {
            let _ = fs::remove_dir_all(self.path(lost));
            assert!(!self.path(lost).exists(), "podman's directory {lost} outlives the machine");
        }
        self.start_service();
    }

    fn unmount(&self) {
        for point in self.mounts().iter().rev() {
            let _ = Command::new("umount").arg("--lazy").arg(point).stderr(Stdio::null()).status();
        }
    }
}

/// A file of a process; empty if it has ended.
fn text(pid: Pid, file: &str) -> String {
    let text = fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn kill(pids: Vec<Pid>) {
    for pid in pids {
        // It may just have ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // A podman that is killed while it makes a container forgets that it has mounted it, or made it.
        let was_killed = self.was_killed.get();
        // One that hangs may hold a lock.
        self.kill_service();
        for args in [["pod", "rm", "--force", "--all"], ["container", "rm", "--force", "--all"]] {
            let _ = self.command(&args).args(["--time", "0"]).output();
        }
        if was_killed {
            self.end_unstarted();
        }
        // It keeps the namespaces of a user's podman.
        self.end_named("catatonit");
        let is_used = |point: &String| {
            let is_its_own = point.ends_with("/overlay") || was_killed && point.ends_with("/merged");
            point != self.path("root").to_str().unwrap() && !is_its_own
        };
        let mounts: Vec<String> = self.mounts().into_iter().filter(is_used).collect();
        self.unmount();
        if !thread::panicking() {
            assert_eq!(mounts, [""; 0]);
            wait_for(|| self.processes().is_empty().then_some(()));
        }
        kill(self.processes());
        // podman itself leaves those of pods where there are several hierarchies.
        let is_left = |cgroup: &PathBuf| match fs::remove_dir(cgroup) {
            Ok(()) => false,
            // podman has removed it meanwhile.
            Err(error) => error.kind() != ErrorKind::NotFound,
        };
        let left: Vec<PathBuf> = self.cgroups().into_iter().filter(is_left).collect();
        assert!(left.is_empty() || thread::panicking(), "{left:?}");
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

    /// The address of the agent's socket.
    pub fn address(&self) -> String {
        format!("unix:{}", self.path("s").display())
    }

    /// A node of the user of a podman.
    pub fn of_user(podman: &Podman) -> Self {
        let node = Self::new(podman);
        chown(node.dir.path());
        chown(&node.path("manifests"));
        node
    }

    /// Starts the agent.
    pub fn start(&self) -> Process {
        self.start_with(&[])
    }

    /// Starts the agent with more flags.
    pub fn start_with(&self, flags: &[&str]) -> Process {
        Process::start(&mut self.command(flags))
    }

    /// Starts the agent as the user of a podman.
    pub fn start_as(&self, podman: &Podman) -> Process {
        // Any user can run it there.
        let program = self.path("podmux");
        copy_program(Path::new(env!("CARGO_BIN_EXE_podmux")), &program);
        let mut command = podman.as_user(program.to_str().unwrap());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::start(&mut self.started_by(command, &[]))
    }

    /// The command that starts the agent.
    pub fn command(&self, flags: &[&str]) -> Command {
        self.started_by(podmux(&[]), flags)
    }

    fn started_by(&self, mut command: Command, flags: &[&str]) -> Command {
        let path = |name: &str| self.path(name).display().to_string();
        let (manifests, state, socket) = (path("manifests"), path("state"), format!("unix:{}", path("s")));
        let sink = format!("podman={}", self.socket.display());
        let mut args = vec!["run", "--pod-manifest-path", &manifests];
        if !flags.contains(&"--node-name") {
            args.extend(["--node-name", "node1"]);
        }
        args.extend(["--state-dir", &state, "--listen", &socket, "--sink", &sink, "-v"]);
        command.args(args).args(flags).env("RUNTIME_DIRECTORY", path("run"));
        command
    }

    /// The files of termination messages.
    pub fn messages(&self) -> Vec<PathBuf> {
        let entries = |directory: &Path| {
            let entries = fs::read_dir(directory).into_iter().flatten();
            entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let instances = entries(&self.path("run")).into_iter().map(|instance| instance.join("podman"));
        instances.flat_map(|directory| entries(&directory)).flat_map(|pod| entries(&pod)).collect()
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

/// A pod whose container has the emptyDir `data` at `/data`.
pub fn with_data(mut pod: Value) -> Value {
    pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod
}

/// A container that runs a shell script.
pub fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]})
}

/// A script that runs until it gets SIGTERM.
pub const RUNS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
