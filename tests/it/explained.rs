//! What goes on is explained: the progress of a long scan, pods in their grace, and ports that two pods want.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

use podmux::{
    pod::{HostPort, ListingBuilder, Origin, PodKey, Prepared, SourceName},
    storage::PodStorage,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    files::pod,
    notify::ManagerDouble,
    plain::Connection,
    process::{Process, Screen, podmux, podmux_run, terminal, wait_for},
    state::Dice,
};

/// An agent with a directory of manifests, a socket and a state directory.
fn start(dir: &Path, more: &[&str]) -> Process {
    let agent = Process::start(&mut command(dir, more));
    agent.logs("listening");
    agent
}

fn command(dir: &Path, more: &[&str]) -> Command {
    let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (socket, state) = (format!("unix:{}", text("s")), text("state"));
    let mut command =
        podmux_run(&dir.join("m"), &[&["--listen", &socket, "--state-dir", &state], more].concat());
    command.current_dir(dir);
    command
}

fn says(dir: &Path, args: &[&str]) -> String {
    let mut command = podmux(args);
    command.env("PODMUX_SERVER", format!("unix:{}", dir.join("s").display()));
    let output = command.stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// A source of the agent.
fn source(dir: &Path, name: &str) -> Value {
    let all: Value = serde_json::from_str(&says(dir, &["get", "sources", "-o", "json"])).unwrap();
    all["items"].as_array().unwrap().iter().find(|source| source["name"] == name).unwrap().clone()
}

/// What the agent says of one pod.
fn details(dir: &Path, name: &str) -> Value {
    let mut connection = Connection::unix(&dir.join("s")).unwrap();
    connection.ask("GET", &format!("/pods/default/{name}-node1"), b"").unwrap().json()
}

/// 512 small manifests, and four of 10 MB that hold the scan up after them.
fn many_manifests(dir: &Path) {
    fs::create_dir(dir.join("m")).unwrap();
    for number in 0..512 {
        fs::write(dir.join(format!("m/a{number:03}.yaml")), pod(&format!("a{number}"), "i:1")).unwrap();
    }
    let mut list = "apiVersion: v1\nkind: PodList\nitems:\n".to_owned();
    for number in 0.. {
        if list.len() > 10_000_000 {
            break;
        }
        writeln!(list, "- {{metadata: {{name: z{number}}}, spec: {{containers: [{{name: c, image: i}}]}}}}")
            .unwrap();
    }
    fs::write(dir.join("m/z0.yaml"), list).unwrap();
    for number in 1..4 {
        fs::hard_link(dir.join("m/z0.yaml"), dir.join(format!("m/z{number}.yaml"))).unwrap();
    }
    // A scan leaves out what may still be written.
    let changed = fs::metadata(dir.join("m/z0.yaml")).unwrap().ctime();
    wait_for(|| (jiff::Timestamp::now().as_second() > changed + 2).then_some(()));
}

#[test]
fn a_long_first_scan_shows_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    many_manifests(dir.path());
    let mut manager = ManagerDouble::new();
    let agent = Process::start(manager.starts(&mut command(dir.path(), &[])));
    agent.logs("listening");
    let scanning = wait_for(|| {
        let source = source(dir.path(), "file");
        (source["scanning"]["done"] == 512).then_some(source)
    });
    assert_eq!(scanning["scanning"], json!({"done": 512, "total": 516}));
    assert_eq!(
        (&scanning["state"], &scanning["detail"]),
        (&"waiting".into(), &"scanning: 512 of 516 manifests".into())
    );
    let table = says(dir.path(), &["get", "sources"]);
    assert!(table.contains("   waiting, scanning: 512 of 516 manifests   "), "{table}");
    manager.receives("STATUS=starting: waiting for source file (scanning: 512 of 516 manifests); 0 pods");
}

#[test]
fn a_terminal_shows_how_far_a_long_first_scan_is() {
    use std::io::Read as _;
    let dir = tempfile::tempdir().unwrap();
    many_manifests(dir.path());
    let (mut screen, theirs): (Screen, _) = terminal();
    let mut command = command(dir.path(), &[]);
    let agent = Process::start(command.stdout(Stdio::null()).stderr(theirs));
    drop(command);
    let mut shown = String::new();
    while !shown.contains("source file scanning: 512 of 516 manifests")
        || !shown.contains("m: scanning: 512 of 516 manifests")
    {
        let mut buffer = [0; 4096];
        let count = screen.read(&mut buffer).unwrap();
        assert!(count > 0, "{shown}");
        shown += &String::from_utf8_lossy(&buffer[..count]);
    }
    drop(agent);
}

#[test]
fn manifests_that_are_gone_say_how_long_their_pods_stay() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("m")).unwrap();
    fs::write(dir.path().join("m/web.yaml"), pod("web", "i:1")).unwrap();
    let agent = start(dir.path(), &[]);
    wait_for(|| (source(dir.path(), "file")["pods"] == 1).then_some(()));
    // Like an unmounted directory: its pods stay for a minute.
    fs::rename(dir.path().join("m"), dir.path().join("away")).unwrap();
    let kept = wait_for(|| source(dir.path(), "file")["kept"].as_array().cloned());
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    assert!(kept["origin"].as_str().unwrap().ends_with("/m/web.yaml") && kept["pods"] == 1, "{kept}");
    let until: jiff::Timestamp = kept["until"].as_str().unwrap().parse().unwrap();
    let left = until.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((1..=60).contains(&left), "{left}");
    for shows in [["get", "sources"].as_slice(), &["describe", "source", "file"], &["describe", "pod", "web"]]
    {
        let text = says(dir.path(), shows);
        assert!(
            text.contains("Missing") && text.contains("the file is gone: its pods are removed in "),
            "{text}"
        );
    }
    assert_eq!(details(dir.path(), "web")["line"], 1);
    // After a restart the grace begins again, and is shown again.
    agent.signal(Signal::TERM);
    agent.ends();
    let agent = start(dir.path(), &[]);
    wait_for(|| source(dir.path(), "file")["kept"].as_array().cloned());
    assert_eq!(details(dir.path(), "web").get("line"), None, "not known before the manifest is read");
    fs::rename(dir.path().join("away"), dir.path().join("m")).unwrap();
    wait_for(|| source(dir.path(), "file").get("kept").is_none().then_some(()));
    wait_for(|| (details(dir.path(), "web")["line"] == 1).then_some(()));
    assert!(says(dir.path(), &["get", "pods"]).contains("web-node1"));
    agent.signal(Signal::TERM);
    agent.ends();
}

#[test]
fn a_pod_that_terminates_says_how_long_it_has_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("m")).unwrap();
    fs::write(dir.path().join("web.yaml"), pod("web", "i:1")).unwrap();
    // A sink that does not acknowledge the deletion.
    let held = rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("held"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    );
    held.unwrap();
    let sink = format!("jsonl={}", dir.path().join("held").display());
    let agent = start(dir.path(), &["--sink", &sink]);
    let web = dir.path().join("web.yaml").to_str().unwrap().to_owned();
    assert!(says(dir.path(), &["apply", "-f", &web]).contains("created"));
    says(dir.path(), &["delete", "pod", "web", "--grace-period", "36000", "--wait=false"]);
    let check = |dir: &Path| {
        let table = says(dir, &["get", "pods"]);
        let left = table.split_once("Terminating (").map(|(_, rest)| rest.split_once(" left)").unwrap().0);
        assert!(left.is_some_and(|left| left == "10h" || left == "9h"), "{table}");
        wait_for(|| {
            let events = says(dir, &["get", "events"]);
            events.contains("the pod is being deleted: its grace of 36000s ends at 20").then_some(())
        });
    };
    check(dir.path());
    agent.signal(Signal::KILL);
    agent.ends();
    let agent = start(dir.path(), &["--sink", &sink]);
    check(dir.path());
    drop(agent);
}

fn with_port(name: &str, port: &str) -> String {
    pod(name, "i:1") + &format!("    ports:\n    - {{containerPort: 80, {port}}}\n")
}

#[test]
fn two_pods_that_want_a_port_of_the_node_are_warned_and_run_both() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("m")).unwrap();
    let write = |name: &str, port: &str| {
        fs::write(dir.path().join(format!("m/{name}.yaml")), with_port(name, port)).unwrap();
    };
    write("a", "hostPort: 8080");
    let agent = start(dir.path(), &[]);
    wait_for(|| (source(dir.path(), "file")["pods"] == 1).then_some(()));
    assert_eq!(source(dir.path(), "file").get("warnings"), None);
    write("b", "hostPort: 8080, hostIP: 10.0.0.1");
    write("c", "hostPort: 8080, protocol: UDP");
    let message = |other: &str, port: &str| {
        format!(
            "host port {port}8080/TCP is also wanted by the pod default/{other}-node1: only one of them can bind it; \
             change hostPort or hostIP in one of them"
        )
    };
    let warning = |pod: &str, message: String| json!({"pod": format!("default/{pod}-node1"), "reason": "HostPortConflict", "message": message});
    let expected = json!([warning("a", message("b", "")), warning("b", message("a", "10.0.0.1:"))]);
    wait_for(|| (source(dir.path(), "file")["warnings"] == expected).then_some(()));
    let found = wait_for(|| {
        let source = source(dir.path(), "file");
        (source["pods"] == 3).then_some(source)
    });
    assert_eq!(found["problems"], json!([]), "all of them run");
    let warnings = |pod: &str| details(dir.path(), pod).get("warnings").cloned();
    assert_eq!((warnings("a"), warnings("c")), (Some(json!([expected[0]])), None));
    for described in [&["describe", "pod", "a"][..], &["describe", "source", "file"]] {
        let text = says(dir.path(), described);
        assert!(text.contains("HostPortConflict") && text.contains(&message("b", "")), "{text}");
    }
    for (pod, other, port) in [("a", "b", ""), ("b", "a", "10.0.0.1:")] {
        let selector = format!("involvedObject.name={pod}-node1");
        wait_for(|| {
            let events = says(dir.path(), &["get", "events", "--field-selector", &selector]);
            (events.contains("HostPortConflict") && events.contains(&message(other, port))).then_some(())
        });
    }
    fs::remove_file(dir.path().join("m/b.yaml")).unwrap();
    wait_for(|| source(dir.path(), "file").get("warnings").is_none().then_some(()));
    agent.signal(Signal::TERM);
    agent.ends();
}

/// The conflicts by the kubelet's rule, from all pairs (`HostPortInfo.CheckConflict`).
fn model(pods: &BTreeMap<PodKey, Vec<(u16, &str, &str)>>) -> Vec<(PodKey, String)> {
    let mut conflicts = Vec::new();
    for (pod, ports) in pods {
        for (port, protocol, address) in ports {
            let overlaps = |other: &(u16, &str, &str)| {
                (other.0, other.1) == (*port, *protocol)
                    && (other.2 == *address || other.2 == "0.0.0.0" || *address == "0.0.0.0")
            };
            if pods.iter().any(|(key, theirs)| key != pod && theirs.iter().any(overlaps)) {
                let shown = if *address == "0.0.0.0" { String::new() } else { format!("{address}:") };
                conflicts.push((pod.clone(), format!("{shown}{port}/{protocol}")));
            }
        }
    }
    conflicts.sort();
    conflicts.dedup();
    conflicts
}

#[test]
fn the_index_of_ports_agrees_with_a_comparison_of_all_pairs() {
    let mut dice = Dice(19);
    for _ in 0..300 {
        let mut storage = PodStorage::new(&[SourceName::File]);
        let (mut builder, mut pods) = (ListingBuilder::new(SourceName::File), BTreeMap::new());
        for _ in 0..30 {
            let name = format!("p{}", dice.roll(8));
            let ports: Vec<(u16, &str, &str)> = (0..dice.roll(3))
                .map(|_| {
                    let address = ["0.0.0.0", "10.0.0.1", "10.0.0.2", "::"][dice.roll(4)];
                    (80 + u16::try_from(dice.roll(2)).unwrap(), ["TCP", "UDP"][dice.roll(2)], address)
                })
                .collect();
            let listed: Vec<Value> = ports
                .iter()
                .map(|(port, protocol, address)| json!({"hostPort": port, "protocol": protocol, "hostIP": address}))
                .collect();
            let prepared = Prepared::from_value(json!({
                "metadata": {"name": name, "uid": name}, "spec": {"containers": [{"ports": listed}]},
            }));
            let origin = Origin::from(&*name);
            if dice.roll(4) == 0 {
                builder.remove(&origin);
                pods.remove(&PodKey::new("default", &name));
            } else {
                builder.put(&origin, vec![prepared.unwrap()], jiff::Timestamp::UNIX_EPOCH);
                pods.insert(PodKey::new("default", &name), ports);
            }
            assert!(storage.apply(&builder.listing()).rejected.is_empty());
            let conflicts = storage.merged().host_ports().conflicts();
            let mut ours: Vec<(PodKey, String)> =
                conflicts.map(|conflict| (conflict.pod.clone(), conflict.port.to_string())).collect();
            ours.sort();
            assert_eq!(ours, model(&pods));
        }
    }
}

#[test]
fn ports_are_counted_as_by_the_kubelet() {
    let ports = |spec: Value, phase: &str| -> Vec<String> {
        let pod = json!({"metadata": {"name": "web"}, "spec": spec, "status": {"phase": phase}});
        let pod =
            Prepared::from_value(pod).unwrap().published_by(SourceName::File, jiff::Timestamp::UNIX_EPOCH);
        pod.host_ports().iter().map(HostPort::to_string).collect()
    };
    let spec = json!({
        "containers": [{"ports": [
            {"containerPort": 1}, {"hostPort": 0}, {"hostPort": 80}, {"hostPort": 81, "hostIP": "0.0.0.0"},
        ]}],
        "initContainers": [
            {"ports": [{"hostPort": 82}]},
            {"restartPolicy": "Always", "ports": [{"hostPort": 83, "protocol": "UDP", "hostIP": "::1"}]},
        ],
    });
    assert_eq!(ports(spec.clone(), "Pending"), ["80/TCP", "81/TCP", "::1:83/UDP"]);
    assert_eq!(ports(spec, "Succeeded"), [""; 0]);
}
