//! Runs a test in Linux namespaces of its own.

use std::{
    env,
    fs::File,
    io::{self, BufRead as _, BufReader},
    net::TcpListener,
    os::fd::AsFd as _,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const INSIDE: &str = "PODMUX_TEST_INSIDE";

/// Whether this process is inside the namespaces. If not, it runs the test there with
/// `unshare FLAGS` and fails if that fails; the caller returns.
///
/// With `-U` file permissions apply to root, too; `-Ur` gives it limits of its own, `m`
/// mounts of its own. This needs no root where users may create namespaces.
pub fn inside(flags: &str, test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    // Both outputs as one. `--nocapture` shows at once what a long run prints.
    let (reader, writer) = io::pipe().unwrap();
    let mut child = Command::new("unshare")
        .arg(flags)
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .expect("unshare(1) of util-linux runs");
    let mut has_passed = false;
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.unwrap();
        let line = String::from_utf8_lossy(&line);
        has_passed |= line.contains("1 passed");
        println!("{line}");
    }
    assert!(child.wait().unwrap().success() && has_passed, "it failed inside `unshare {flags}`: see above");
    false
}

/// The addresses of the two ends of the link.
const HERE: &str = "10.9.9.1";
const THERE: &str = "10.9.9.2";

/// A network namespace with a link to this one, for a test inside `unshare -Urn`.
pub struct Elsewhere {
    /// A process that keeps the namespace alive.
    keeper: Child,
}

impl Elsewhere {
    /// Creates the namespace and the link.
    pub fn new() -> Self {
        // It prints a line when it is in the namespace.
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(keeper.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let elsewhere = Self { keeper };
        let pid = elsewhere.keeper.id();
        let (mac, peer) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
        run(&format!("ip link add v0 address {mac} type veth peer name v1 address {peer} netns {pid}"));
        run(&format!("ip addr add {HERE}/24 dev v0"));
        run("ip link set v0 up");
        elsewhere.run(&format!("ip addr add {THERE}/24 dev v1"));
        elsewhere.run("ip link set v1 up");
        // Without ARP, which would report that packets are dropped.
        run(&format!("ip neigh replace {THERE} lladdr {peer} dev v0 nud permanent"));
        elsewhere.run(&format!("ip neigh replace {HERE} lladdr {mac} dev v1 nud permanent"));
        elsewhere
    }

    fn run(&self, command: &str) {
        run(&format!("nsenter -t {} -n {command}", self.keeper.id()));
    }

    /// A listener in the other namespace.
    pub fn listener(&self) -> TcpListener {
        let network = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        let bind = move || {
            // A socket stays in the namespace of the thread that creates it.
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind((THERE, 0)).unwrap()
        };
        let listener = thread::spawn(bind).join().unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    /// Drops all packets silently.
    pub fn drop_packets(&self) {
        self.run(&format!("ip addr del {THERE}/24 dev v1"));
    }

    /// Stops dropping packets.
    pub fn pass_packets(&self) {
        self.run(&format!("ip addr add {THERE}/24 dev v1"));
        self.run(&format!("ip neigh replace {HERE} lladdr 02:00:00:00:00:01 dev v1 nud permanent"));
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}
