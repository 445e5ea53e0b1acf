//! A machine: boots, is told what to do, and is gone without a trace when it is dropped.

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

/// Longer than anything takes that is waited for, on a machine under load. What takes
/// longer by its own rules (a watchdog) is made shorter by the test, or waits with a
/// patience of its own.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Between two looks at a state that is waited for.
const LOOK: Duration = Duration::from_millis(30);

/// How much of the journal is shown when something fails.
const TAIL: usize = 60;

/// Where `tests/systemd/run` says what there is to test.
pub fn variable(name: &str) -> PathBuf {
    let value = env::var_os(name);
    PathBuf::from(value.unwrap_or_else(|| panic!("{name} is not set: use tests/systemd/run")))
}

/// The package under test.
pub fn package() -> PathBuf {
    variable("PODMUX_DEB")
}

/// The one before it.
pub fn package_before() -> PathBuf {
    variable("PODMUX_DEB_BEFORE")
}

/// A Debian that runs.
pub struct Machine {
    /// systemd-nspawn and what is around it.
    nspawn: Child,
    /// The machine's first process, as the host sees it.
    init: Pid,
    name: String,
    console: NamedTempFile,
    /// Given back last.
    _slot: Slot,
}

/// What a command in the machine did.
#[derive(Debug)]
pub struct Output {
    /// The exit code; 128 and the signal's number if it was killed.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Machine {
    /// Boots Debian 12 (systemd 252) and waits until it has.
    pub fn boot() -> Self {
        Self::boot_root(&variable("PODMUX_ROOT"), None)
    }

    /// The same; the package was installed before, where nothing was booted, as in the
    /// build of an image.
    pub fn boot_installed() -> Self {
        Self::boot_root(&variable("PODMUX_ROOT"), Some(&package()))
    }

    /// Boots Debian 13 (systemd 257).
    pub fn boot_newer() -> Self {
        Self::boot_root(&variable("PODMUX_ROOT_NEWER"), None)
    }

    /// Boots with the package installed, and waits for the service.
    pub fn with_podmux() -> Self {
        let machine = Self::boot();
        machine.install(&package());
        machine.wait_for("podmux.service is active", || machine.is_active());
        machine
    }

    fn boot_root(root: &Path, installed: Option<&Path>) -> Self {
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        let slot = Slot::take();
        let name = format!("podmux-{}-{}", process::id(), BOOTED.fetch_add(1, Ordering::Relaxed));
        let console = NamedTempFile::new().unwrap();
        // All of it dies with the thread that booted it, whatever becomes of that.
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
        machine.init = machine.wait_for("the machine has a first process", || machine.find_init());
        machine.wait_for("the machine has booted", || {
            let state = machine.run("systemctl is-system-running").stdout;
            match state.trim() {
                "running" | "degraded" => Ok(()),
                state => Err(format!("it is {state:?}")),
            }
        });
        machine
    }

    /// The process that is the first one two namespaces below this one, and a
    /// descendant of ours.
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

    /// How a path of the machine is reached from here. Links on the way that begin at the
    /// root would lead to the host's files: use paths without them (/run, not /var/run).
    pub fn path(&self, path: &str) -> PathBuf {
        assert!(path.starts_with('/'), "not absolute: {path}");
        PathBuf::from(format!("/proc/{}/root{path}", self.init.as_raw_nonzero()))
    }

    /// A program to be run in the machine by root, in a clean environment.
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

    /// A program of the host to be run in the machine's network.
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

    /// Runs a line of shell in the machine.
    pub fn run(&self, line: &str) -> Output {
        output(&mut self.command("sh", &["-c", line]))
    }

    /// The same; it must succeed. What it printed.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(output.code, 0, "{line}: {output:?}");
        output.stdout
    }

    /// Does something in a thread that is in the machine's network: what it listens on or
    /// connects to there stays there, whoever uses it then.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.init.as_raw_nonzero())).unwrap();
        let thread = move || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(thread).join().unwrap())
    }

    /// Writes a file that everybody may read, with the directories above it.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        self.write_as(path, 0o644, text);
    }

    /// Writes a file with this mode, owned by root. It is there at once and whole.
    pub fn write_as(&self, path: &str, mode: u32, text: impl AsRef<[u8]>) {
        let place = self.path(path);
        let directory = place.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        let mut file = NamedTempFile::with_prefix_in(".new-", directory).unwrap();
        file.write_all(text.as_ref()).unwrap();
        file.as_file().set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        file.persist(place).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        let read = fs::read(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        String::from_utf8_lossy(&read).into_owned()
    }

    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    /// Installs a package that lies on the host, or upgrades to it.
    pub fn install(&self, package: &Path) {
        let output = self.try_install(package);
        assert_eq!(output.code, 0, "{}: {output:?}", package.display());
    }

    /// The same, whatever comes of it. A conffile that was changed on both sides stays
    /// the administrator's.
    pub fn try_install(&self, package: &Path) -> Output {
        fs::copy(package, self.path("/root/podmux.deb")).unwrap();
        let output = self.run("dpkg --force-confold -i /root/podmux.deb");
        fs::remove_file(self.path("/root/podmux.deb")).unwrap();
        output
    }

    /// A drop-in of podmux.service; `systemctl daemon-reload` is done.
    pub fn drop_in(&self, name: &str, text: &str) {
        self.write(&format!("/etc/systemd/system/podmux.service.d/{name}.conf"), text);
        self.ok("systemctl daemon-reload");
    }

    /// One of those that come with the package, as it is.
    pub fn packaged_drop_in(&self, name: &str) {
        let text = self.read(&format!("/usr/share/doc/podmux/examples/drop-ins/{name}.conf"));
        self.drop_in(name, &text);
    }

    /// A property of podmux.service.
    pub fn show(&self, property: &str) -> String {
        self.ok(&format!("systemctl show --property={property} --value podmux.service")).trim().to_owned()
    }

    /// The same, as a number.
    pub fn number(&self, property: &str) -> u64 {
        let value = self.show(property);
        value.parse().unwrap_or_else(|_| panic!("{property} is {value:?}"))
    }

    /// The agent's process, as the host sees it; None if there is none.
    pub fn agent(&self) -> Option<Pid> {
        let id = self.show("MainPID");
        if id == "0" {
            return None;
        }
        // Three namespaces: the host's, the one around, the machine's.
        let inside = |process: &u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            ids.is_some_and(|ids| ids.split_whitespace().nth(2) == Some(&*id))
        };
        let init = u32::try_from(self.init.as_raw_nonzero().get()).unwrap();
        let process = children(init).into_iter().find(inside)?;
        Pid::from_raw(process.try_into().unwrap())
    }

    /// `systemctl restart`, which waits until the service is ready.
    pub fn restart(&self) {
        self.ok("systemctl restart podmux.service");
    }

    /// `systemctl reload`, with a good and with a bad configuration, in the same process: the
    /// bad one fails and is said, in the status too, and is good again when it is mended.
    pub fn reloads_well_and_badly(&self) {
        let agent = self.agent();
        self.ok("systemctl reload podmux.service");
        self.wait_for("the agent has read them", || {
            let journal = self.journal("--output=cat");
            if journal.contains("settings reloaded") { Ok(()) } else { Err(journal) }
        });
        let good = self.read("/etc/podmux/config.yaml");
        self.settings("fileCheckFrequency: often");
        assert_ne!(self.run("systemctl reload podmux.service").code, 0);
        let journal = self.journal("--output=cat --priority=err");
        assert!(journal.contains("fileCheckFrequency") && journal.contains("often"), "{journal}");
        let refused = "the new settings were refused";
        self.wait_for_status("of it", |status| status.contains(refused));
        self.write("/etc/podmux/config.yaml", good);
        self.ok("systemctl reload podmux.service");
        self.wait_for_status("of nothing wrong", |status| !status.contains(refused));
        assert_eq!(self.agent(), agent, "the process is the same");
        assert_eq!(self.is_active(), Ok(()));
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

    /// Whether the service is started; if not, what it is.
    pub fn is_active(&self) -> Result<(), String> {
        self.is("active")
    }

    /// Whether the service is in this state; if not, in which.
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

    /// What the service and systemd about it have written into the journal; more
    /// arguments choose.
    pub fn journal(&self, arguments: &str) -> String {
        // What was written before is in what is read.
        self.ok("journalctl --sync");
        self.ok(&format!("journalctl --no-pager --quiet --unit=podmux.service {arguments}"))
    }

    /// Looks until what is looked at is there, and fails with what was seen last.
    pub fn wait_for<T>(&self, what: &str, look: impl FnMut() -> Result<T, String>) -> T {
        self.wait_up_to(PATIENCE, what, look)
    }

    /// The same with a patience of its own.
    pub fn wait_up_to<T>(
        &self,
        patience: Duration,
        what: &str,
        mut look: impl FnMut() -> Result<T, String>,
    ) -> T {
        let begin = Instant::now();
        loop {
            match look() {
                Ok(found) => return found,
                Err(seen) if begin.elapsed() > patience => {
                    panic!("waited for {patience:?} and it is not so that {what}: {seen}")
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    /// Waits until the status that the agent told systemd is so.
    pub fn wait_for_status(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        self.wait_for(&format!("the status tells {what}"), || match self.show("StatusText") {
            status if is_so(&status) => Ok(()),
            status => Err(format!("{status:?}")),
        });
    }

    /// For whoever has to find out why a test failed.
    fn tell(&self) {
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
            self.tell();
        }
        if self.init != Pid::INIT {
            kill_process(self.init, Signal::KILL).ok();
        }
        self.nspawn.kill().ok();
        self.nspawn.wait().ok();
        // Its control groups are empty as soon as the last process is gone.
        let script = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && cd /sys/fs/cgroup && \
            for round in $(seq 100); do find \"$1\" -depth -type d -exec rmdir {} + 2>/dev/null; \
            test -d \"$1\" || exit 0; sleep 0.05; done; exit 1";
        let swept = Command::new("unshare").args(["--mount", "sh", "-c", script, "sh", &self.name]).status();
        if !swept.is_ok_and(|status| status.success()) {
            eprintln!("{}: its control groups could not be removed", self.name);
        }
    }
}

/// The children of a process.
fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let children =
        threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    children.collect::<Vec<_>>().join(" ").split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let signal = output.status.signal().unwrap_or(0);
    Output {
        code: output.status.code().unwrap_or(128 + signal),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
