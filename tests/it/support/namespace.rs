//! Tests that need a system of their own: the same test once more, in namespaces of its own.

use std::{
    env,
    fs::File,
    net::TcpListener,
    os::fd::AsFd as _,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const INSIDE: &str = "PODMUX_TEST_INSIDE";

/// Whether the test is inside. If not, it has been run there with `unshare
/// FLAGS`, and has passed: the caller returns.
///
/// `-U` alone makes root somebody whom file permissions bind; `-Ur` gives it
/// limits of its own, `m` mounts of its own. None of it needs root where users
/// may make namespaces.
pub fn inside(flags: &str, test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = Command::new("unshare")
        .arg(flags)
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare(1) of util-linux runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "inside `unshare {flags}`:\n{said}\n{complained}"
    );
    false
}

/// The address of this end of a cable,
const HERE: &str = "10.9.9.1";
/// and of the other one.
const THERE: &str = "10.9.9.2";

/// A network of its own at the other end of a cable, for a test inside `unshare -Urn`.
pub struct Elsewhere {
    /// It does nothing but keep the network.
    keeper: Child,
}

impl Elsewhere {
    /// Lays the cable.
    pub fn new() -> Self {
        // It has moved when it says so.
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
        // Nobody is asked who has the address: a network that drops packets says nothing of that either.
        run(&format!("ip neigh replace {THERE} lladdr {peer} dev v0 nud permanent"));
        elsewhere.run(&format!("ip neigh replace {HERE} lladdr {mac} dev v1 nud permanent"));
        elsewhere
    }

    fn run(&self, command: &str) {
        run(&format!("nsenter -t {} -n {command}", self.keeper.id()));
    }

    /// A listener at the other end.
    pub fn listener(&self) -> TcpListener {
        let network = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        let bind = move || {
            // A socket stays in the network of the thread that made it, and the thread ends here.
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind((THERE, 0)).unwrap()
        };
        let listener = thread::spawn(bind).join().unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    /// From now on what is sent there is dropped without a word.
    pub fn drop_packets(&self) {
        self.run(&format!("ip addr del {THERE}/24 dev v1"));
    }

    /// No more of that.
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
