//! A machine that runs commands and files for tests; dropping it removes it completely.

use std::{
    env, fs,
    io::Write as _,
    os::fd::AsFd as _,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tempfile::NamedTempFile;

use crate::slot::Slot;

/// The timeout of waits, on a machine under load. A test shortens what takes longer (a
/// watchdog), or waits with another timeout.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The interval at which a wait checks its condition.
const INTERVAL: Duration = Duration::from_millis(30);

/// What the agent logs when it has read its settings again.
pub const RELOADED: &str = "settings reloaded";
/// A part of the status after a reload of invalid settings.
pub const RELOAD_FAILED: &str = "reload failed";

/// How many lines of the journal a failed test prints.
const TAIL: usize = 60;

/// A variable that `tests/systemd/run` sets.
pub fn variable(name: &str) -> PathBuf {
    let value = env::var_os(name);
    PathBuf::from(value.unwrap_or_else(|| panic!("{name} is not set: use tests/systemd/run")))
}

/// The package under test.
pub fn package() -> PathBuf {
    variable("PODMUX_DEB")
}

/// The version before the package under test.
pub fn package_before() -> PathBuf {
    variable("PODMUX_DEB_BEFORE")
}

/// A running Debian.
pub struct Machine {
    /// systemd-nspawn, below its wrappers.
    nspawn: Child,
    /// The machine's first process, in the host's process namespace.
    init: Pid,
    name: String,
    console: NamedTempFile,
    /// Dropped last.
    _slot: Slot,
}

/// The result of a command in the machine.
#[derive(Debug)]
pub struct Output {
    /// The exit code; 128 and the signal's number if it was killed.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Machine {
    /// Boots Debian 12 (systemd 252) and waits until that is done.
    pub fn boot() -> Self {
        Self::boot_root(&variable("PODMUX_ROOT"), None)
    }

    /// Boots Debian 12 with the package installed before the first boot, as in an image.
    pub fn boot_installed() -> Self {
        Self::boot_root(&variable("PODMUX_ROOT"), Some(&package()))
    }

    /// Boots Debian 13 (systemd 257).
    pub fn boot_newer() -> Self {
        Self::boot_root(&variable("PODMUX_ROOT_NEWER"), None)
    }

    /// Boots Debian 12, installs the package and waits for the service.
    pub fn with_podmux() -> Self {
        let machine = Self::boot();
        machine.install(&package());
        machine.wait_for("podmux.service is active", || machine.is_active());
        machine
    }

    /// Boots Debian 12 with podman and an image of busybox, installs the package with its drop-ins for
    /// podman, and waits for the service.
    pub fn with_podman() -> Self {
        let machine = Self::boot_root(&variable("PODMUX_ROOT_PODMAN"), None);
        machine.write_as("/root/image", 0o755, include_str!("../../podman/image"));
        machine
            .ok("/root/image /root/image.tar && podman import --quiet /root/image.tar localhost/busybox:1");
        machine.install(&package());
        let socket = machine.read("/usr/share/doc/podmux/examples/drop-ins/podman-socket.conf");
        machine.write("/etc/systemd/system/podman.socket.d/podmux.conf", socket);
        let service = machine.read("/usr/share/doc/podmux/examples/drop-ins/podman-service.conf");
        machine.write("/etc/systemd/system/podman.service.d/podmux.conf", service);
        machine.packaged_drop_in("podman");
        machine.ok("systemctl restart podman.socket podmux.service");
        machine
    }

    fn boot_root(root: &Path, installed: Option<&Path>) -> Self {
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        let slot = Slot::take();
        let name = format!("podmux-{}-{}", process::id(), BOOTED.fetch_add(1, Ordering::Relaxed));
        let console = NamedTempFile::new().unwrap();
        // All of it is killed when the thread that booted it ends.
        let nspawn = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"])
            .arg("--mount-proc")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("boot"))
            .args([name.as_ref(), root])
            .args(installed)
            .stdin(Stdio::null())
            .stdout(console.reopen().unwrap())
            .stderr(console.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut machine = Self { nspawn, init: Pid::INIT, name, console, _slot: slot };
        machine.wait_for_boot();
        machine
    }

    fn wait_for_boot(&mut self) {
        self.init = self.wait_for("the machine has a first process", || self.find_init());
        self.wait_for("the machine has booted", || {
            let state = self.run("systemctl is-system-running").stdout;
            match state.trim() {
                "running" | "degraded" => Ok(()),
                state => Err(format!("it is {state:?}")),
            }
        });
    }

    /// Restarts the machine and waits until it has booted.
    pub fn reboot(&mut self) {
        self.ok("systemctl reboot");
        let root = self.path("/");
        self.wait_for("the machine is down", || {
            if root.exists() { Err("its first process is there".to_owned()) } else { Ok(()) }
        });
        self.init = Pid::INIT;
        self.wait_for_boot();
    }

    /// The first process of the namespace two levels below, a descendant of this process.
    fn find_init(&self) -> Result<Pid, String> {
        let mut parent = self.nspawn.id();
        // unshare, boot, systemd-nspawn, init
        for _ in 0..3 {
            parent = *children(parent).first().ok_or_else(|| format!("{parent} has no child"))?;
        }
        let status =
            fs::read_to_string(format!("/proc/{parent}/status")).map_err(|error| error.to_string())?;
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        if ids.split_whitespace().count() != 3 || fs::read_link(format!("/proc/{parent}/exe")).is_err() {
            return Err(format!("{parent} is not in its namespace yet"));
        }
        Pid::from_raw(parent.try_into().unwrap()).ok_or_else(|| "no process".to_owned())
    }

    /// A path of the machine, for this process. Absolute symbolic links on the way would lead
    /// to the host's files: use paths without them (/run, not /var/run).
    pub fn path(&self, path: &str) -> PathBuf {
        assert!(path.starts_with('/'), "not absolute: {path}");
        PathBuf::from(format!("/proc/{}/root{path}", self.init.as_raw_nonzero()))
    }

    /// A command of root in the machine, with a clean environment.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.nsenter("--all");
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
            .env("LANG", "C.UTF-8")
            .env("HOME", "/root")
            .env("SYSTEMD_COLORS", "0")
            .env("SYSTEMD_PAGER", "");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.arg("--").arg(program).args(arguments);
        command
    }

    /// A command of the host in the machine's network.
    pub fn in_network(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.nsenter("--net");
        command.arg("--").arg(program.as_ref());
        command
    }

    fn nsenter(&self, namespaces: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.as_raw_nonzero().to_string(), namespaces]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a shell command in the machine.
    pub fn run(&self, line: &str) -> Output {
        output(&mut self.command("sh", &["-c", line]))
    }

    /// Runs a shell command that must succeed, and returns its output.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(output.code, 0, "{line}: {output:?}");
        output.stdout
    }

    /// Runs a function in the machine's network; sockets that it opens stay there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.init.as_raw_nonzero())).unwrap();
        let thread = move || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(thread).join().unwrap())
    }

    /// Writes a file that all users may read, with its directories.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        self.write_as(path, 0o644, text);
    }

    /// Writes a file with this mode, owned by root, atomically.
    pub fn write_as(&self, path: &str, mode: u32, text: impl AsRef<[u8]>) {
        let target = self.path(path);
        let directory = target.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        let mut file = NamedTempFile::with_prefix_in(".new-", directory).unwrap();
        file.write_all(text.as_ref()).unwrap();
        file.as_file().set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        file.persist(target).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        let read = fs::read(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        String::from_utf8_lossy(&read).into_owned()
    }

    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    /// Installs a package of the host, or upgrades to it.
    pub fn install(&self, package: &Path) {
        let output = self.try_install(package);
        assert_eq!(output.code, 0, "{}: {output:?}", package.display());
    }

    /// Installs a package, and returns the result. A configuration file that both sides have
    /// changed stays the administrator's.
    pub fn try_install(&self, package: &Path) -> Output {
        fs::copy(package, self.path("/root/podmux.deb")).unwrap();
        let output = self.run("dpkg --force-confold -i /root/podmux.deb");
        fs::remove_file(self.path("/root/podmux.deb")).unwrap();
        output
    }

    /// Writes a drop-in of podmux.service and reloads systemd.
    pub fn drop_in(&self, name: &str, text: &str) {
        self.write(&format!("/etc/systemd/system/podmux.service.d/{name}.conf"), text);
        self.ok("systemctl daemon-reload");
    }

    /// Installs one of the package's drop-ins.
    pub fn packaged_drop_in(&self, name: &str) {
        let text = self.read(&format!("/usr/share/doc/podmux/examples/drop-ins/{name}.conf"));
        self.drop_in(name, &text);
    }

    /// A property of podmux.service.
    pub fn show(&self, property: &str) -> String {
        self.ok(&format!("systemctl show --property={property} --value podmux.service")).trim().to_owned()
    }

    /// A numeric property of podmux.service.
    pub fn number(&self, property: &str) -> u64 {
        let value = self.show(property);
        value.parse().unwrap_or_else(|_| panic!("{property} is {value:?}"))
    }

    /// The agent's process in the host's namespace, if it runs.
    pub fn agent(&self) -> Option<Pid> {
        self.main_process("podmux.service")
    }

    /// The main process of a service in the host's namespace, if it runs.
    pub fn main_process(&self, unit: &str) -> Option<Pid> {
        let id = self.ok(&format!("systemctl show --property=MainPID --value {unit}"));
        let id = id.trim();
        if id == "0" {
            return None;
        }
        // The third of the nested namespaces is the machine's.
        let inside = |process: &u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            ids.is_some_and(|ids| ids.split_whitespace().nth(2) == Some(id))
        };
        let init = u32::try_from(self.init.as_raw_nonzero().get()).unwrap();
        let process = children(init).into_iter().find(inside)?;
        Pid::from_raw(process.try_into().unwrap())
    }

    /// Restarts the service and waits until it is ready.
    pub fn restart(&self) {
        self.ok("systemctl restart podmux.service");
    }

    /// Checks `systemctl reload` with a valid and an invalid configuration: the invalid one
    /// fails, is in the log and in the status, and the process stays the same.
    pub fn reloads_valid_and_invalid_settings(&self) {
        let agent = self.agent();
        self.ok("systemctl reload podmux.service");
        self.wait_for_reload();
        let valid = self.read("/etc/podmux/config.yaml");
        self.settings("fileCheckFrequency: often");
        assert_ne!(self.run("systemctl reload podmux.service").code, 0);
        let journal = self.journal("--output=cat --priority=err");
        assert!(journal.contains("fileCheckFrequency") && journal.contains("often"), "{journal}");
        self.wait_for_status("has the error", |status| status.contains(RELOAD_FAILED));
        self.write("/etc/podmux/config.yaml", valid);
        self.ok("systemctl reload podmux.service");
        self.wait_for_status("has no error", |status| !status.contains(RELOAD_FAILED));
        assert_eq!(self.agent(), agent, "the process is the same");
        assert_eq!(self.is_active(), Ok(()));
    }

    /// Waits until the agent has logged a reload.
    pub fn wait_for_reload(&self) {
        self.wait_for("the agent has read the settings", || {
            let journal = self.journal("--output=cat");
            if journal.contains(RELOADED) { Ok(()) } else { Err(journal) }
        });
    }

    /// Adds lines to the variables of the service.
    pub fn variables(&self, lines: &str) {
        let before = self.read("/etc/default/podmux");
        self.write("/etc/default/podmux", format!("{before}\n{lines}\n"));
    }

    /// Adds settings to the configuration.
    pub fn settings(&self, lines: &str) {
        let before = self.read("/etc/podmux/config.yaml");
        self.write("/etc/podmux/config.yaml", format!("{before}\n{lines}\n"));
    }

    /// Whether the service is active; the error has its state.
    pub fn is_active(&self) -> Result<(), String> {
        self.is("active")
    }

    /// Whether the service is in this state; the error has its state.
    pub fn is(&self, wanted: &str) -> Result<(), String> {
        match self.show("ActiveState") {
            state if state == wanted => Ok(()),
            state => {
                Err(format!("it is {state}, result {}, {:?}", self.show("Result"), self.show("StatusText")))
            }
        }
    }

    /// Whether podmux.socket is in this state.
    pub fn socket_is(&self, wanted: &str) -> bool {
        self.ok("systemctl show --property=ActiveState --value podmux.socket").trim() == wanted
    }

    /// The journal of the service, with more arguments of journalctl.
    pub fn journal(&self, arguments: &str) -> String {
        self.ok("journalctl --sync");
        self.ok(&format!("journalctl --no-pager --quiet --unit=podmux.service {arguments}"))
    }

    /// Waits until a check succeeds; fails with its last error.
    pub fn wait_for<T>(&self, what: &str, check: impl FnMut() -> Result<T, String>) -> T {
        self.wait_up_to(PATIENCE, what, check)
    }

    /// Waits with another timeout until a check succeeds.
    pub fn wait_up_to<T>(
        &self,
        timeout: Duration,
        what: &str,
        mut check: impl FnMut() -> Result<T, String>,
    ) -> T {
        let begin = Instant::now();
        loop {
            match check() {
                Ok(found) => return found,
                Err(state) if begin.elapsed() > timeout => {
                    panic!("not within {timeout:?}: {what}; {state}")
                }
                Err(_) => thread::sleep(INTERVAL),
            }
        }
    }

    /// Waits until the status that the agent sent to systemd satisfies a condition.
    pub fn wait_for_status(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        self.wait_for(&format!("the status {what}"), || match self.show("StatusText") {
            status if is_so(&status) => Ok(()),
            status => Err(format!("{status:?}")),
        });
    }

    /// Prints the state of the machine after a failed test.
    fn print_state(&self) {
        let tail = |text: &str| text.lines().rev().take(TAIL).collect::<Vec<_>>().join("\n");
        let console = fs::read_to_string(self.console.path()).unwrap_or_default();
        eprintln!("---- {}: console, the newest line first\n{}", self.name, tail(&console));
        if self.init != Pid::INIT {
            eprintln!(
                "---- status\n{}",
                self.run("systemctl status --no-pager --lines=0 podmux.service podmux.socket").stdout
            );
            eprintln!(
                "---- journal, the newest line first\n{}",
                tail(&self.run("journalctl --no-pager --quiet").stdout)
            );
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_state();
        }
        if self.init != Pid::INIT {
            kill_process(self.init, Signal::KILL).ok();
        }
        self.nspawn.kill().ok();
        self.nspawn.wait().ok();
        // Its control groups are empty after the end of the last process.
        let script = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && cd /sys/fs/cgroup && \
            for round in $(seq 100); do find \"$1\" -depth -type d -exec rmdir {} + 2>/dev/null; \
            test -d \"$1\" || exit 0; sleep 0.05; done; exit 1";
        let removed =
            Command::new("unshare").args(["--mount", "sh", "-c", script, "sh", &self.name]).status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("{}: its control groups could not be removed", self.name);
        }
    }
}

/// The children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let children =
        threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    children.collect::<Vec<_>>().join(" ").split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Runs a command and returns its result.
pub fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let signal = output.status.signal().unwrap_or(0);
    Output {
        code: output.status.code().unwrap_or(128 + signal),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
