//! The webhook sink of the real binary: restarts, kills, memory, and a start that is refused.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::PathBuf,
    sync::mpsc,
    thread,
};

use expect_test::expect;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    files::pod,
    plain::Connection,
    process::{PATIENCE, Process, podmux, wait_for},
    stream::Replica,
    web::{Authority, Reply, Seen, Web},
};

/// A directory of manifests, and a state directory.
struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(node.at("manifests")).unwrap();
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, image: &str) {
        fs::write(self.at("new"), pod(name, image)).unwrap();
        fs::rename(self.at("new"), self.at("manifests").join(format!("{name}.yaml"))).unwrap();
    }

    fn start(&self, sink: &str) -> Process {
        Process::start(&mut self.command(sink))
    }

    fn command(&self, sink: &str) -> std::process::Command {
        let (manifests, state) = (self.at("manifests"), self.at("state"));
        let [manifests, state] = [&manifests, &state].map(|path| path.to_str().unwrap());
        let listen = format!("unix:{}", self.at("socket").display());
        let mut command = podmux(&["run", "--node-name", "node1", "--pod-manifest-path", manifests]);
        command.args(["--state-dir", state, "--listen", &listen, "--sink", sink]);
        command
    }
}

/// What a receiver holds after these requests; those with the key of an earlier one are repeated.
fn held(seen: &[Seen]) -> Replica {
    let (mut replica, mut keys) = (Replica::default(), Vec::new());
    for request in seen {
        let key = request.header("idempotency-key").to_owned();
        if !keys.contains(&key) {
            replica.take_line(str::from_utf8(&request.body).unwrap());
            keys.push(key);
        }
    }
    replica
}

/// The requests that were answered with 200 when the pods of the replica are these.
async fn holds(web: &Web, what: &[(&str, &str)]) -> Replica {
    let is = |replica: &Replica| {
        let pods = replica.pods.values().map(|text| serde_json::from_str::<Value>(text).unwrap());
        let pods: Vec<_> = pods
            .map(|pod| (pod["metadata"]["name"].clone(), pod["spec"]["containers"][0]["image"].clone()))
            .collect();
        pods == what.iter().map(|(name, image)| (json!(name), json!(image))).collect::<Vec<_>>()
    };
    let begun = std::time::Instant::now();
    loop {
        let replica = held(&web.seen());
        if is(&replica) {
            return replica;
        }
        assert!(begun.elapsed().as_secs() < 60, "{:?}", replica.heard);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_and_over_kills_and_restarts_the_receiver_holds_what_is_wanted() {
    let node = Node::new();
    let authority = Authority::new(node.directory.path(), "ca");
    let (certificate, key) = authority.client("node1");
    fs::write(node.at("token"), "t0ken").unwrap();
    let web = Web::start_tls(authority.server("localhost", Some(&authority)), Reply::ok("")).await;
    let sink = format!(
        "webhook={},ca-file={},cert-file={},key-file={},token-file={}",
        web.at("/pods"),
        authority.ca_file.display(),
        certificate.display(),
        key.display(),
        node.at("token").display()
    );
    node.write("a", "i:1");
    node.write("b", "i:1");
    let agent = node.start(&sink);
    holds(&web, &[("a-node1", "i:1"), ("b-node1", "i:1")]).await;
    // It is killed while a request hangs.
    let before = web.seen().len();
    web.say(Reply::mute());
    node.write("a", "i:2");
    let hanging = web.asked(before + 1).await[before].clone();
    agent.signal(Signal::KILL);
    agent.ends();
    fs::remove_file(node.at("manifests/b.yaml")).unwrap();
    node.write("c", "i:1");
    web.say(Reply::ok(""));
    let agent = node.start(&sink);
    let replica = holds(&web, &[("a-node1", "i:2"), ("c-node1", "i:1")]).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    let before = web.seen().len();
    let agent = node.start(&sink);
    web.asked(before + 4).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);

    let seen = web.seen();
    assert!(seen.iter().all(|request| !request.certificate.is_empty()));
    assert!(seen.iter().all(|request| request.header("authorization") == "Bearer t0ken"));
    let key = |request: &Seen| request.header("idempotency-key").to_owned();
    let parts: Vec<Vec<String>> =
        seen.iter().map(|request| key(request).split('-').map(str::to_owned).collect()).collect();
    // One agent and one sink in three runs, whose numbers rise.
    let distinct = |at: usize| {
        let mut all: Vec<_> = parts.iter().map(|parts| parts[at].clone()).collect();
        all.dedup();
        all
    };
    assert_eq!([distinct(0).len(), distinct(1).len(), distinct(2).len()], [1, 3, 1]);
    assert!(parts.iter().map(|parts| parts[3].parse::<u64>().unwrap()).is_sorted());
    assert_eq!(seen.iter().filter(|request| key(request) == key(&hanging)).count(), 1);
    assert!(replica.run.is_some());
}

/// What a process has at most in memory since the last look, and what it has now, in MiB.
fn memory(agent: &Process) -> (u64, u64) {
    let directory = format!("/proc/{}", agent.pid().as_raw_nonzero());
    let text = fs::read_to_string(format!("{directory}/status")).unwrap();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let found = (field("VmHWM:"), field("VmRSS:"));
    fs::write(format!("{directory}/clear_refs"), "5").unwrap();
    found
}

/// Reads one request, and returns its body's length and its first and last bytes.
fn request(stream: &mut std::net::TcpStream) -> Option<(usize, String, String)> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        match stream.read(&mut part) {
            Ok(count @ 1..) => bytes.extend_from_slice(&part[..count]),
            _ => return None,
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.split_once("content-length: ").unwrap().1.lines().next().unwrap().parse().unwrap();
    let mut body = bytes.split_off(end + 4);
    let first = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    let mut read = body.len();
    while read < length {
        match stream.read(&mut part) {
            Ok(count @ 1..) => {
                read += count;
                body.extend_from_slice(&part[..count]);
                body.drain(..body.len().saturating_sub(10));
            }
            _ => return None,
        }
    }
    let first = if first.is_empty() { String::from_utf8_lossy(&body).into_owned() } else { first };
    Some((length, first, String::from_utf8_lossy(&body[body.len() - 3..]).into_owned()))
}

/// 200 MB of pods are one body, which is never in memory as a whole; by default it comes in parts.
#[test]
fn a_set_of_200_mb_is_streamed() {
    const PODS: usize = 100;
    let node = Node::new();
    for number in 0..PODS {
        let text = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{number:03}")},
            "spec": {"containers": [{"name": "c", "image": "i:1", "env": [{"name": "V", "value": "x".repeat(2_000_000)}]}]},
        });
        fs::write(node.at("manifests").join(format!("p{number:03}.json")), text.to_string()).unwrap();
    }
    for (limit, parts) in [(",max-bytes=1Gi", 1), ("", 20)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sink = format!("webhook=http://{}{limit}", listener.local_addr().unwrap());
        let (open, opened) = mpsc::channel::<()>();
        let (report, received) = mpsc::channel();
        thread::spawn(move || {
            opened.recv().unwrap();
            while let Ok((mut stream, _)) = listener.accept() {
                while let Some(seen) = request(&mut stream) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                    report.send(seen).unwrap();
                }
            }
        });
        let agent = node.start(&sink);
        let pods = || {
            let mut stream = Connection::unix(&node.at("socket")).ok()?;
            let answer = stream.ask("GET", "/sources", b"").ok()?.json();
            let file = answer["items"].as_array()?.iter().find(|item| item["name"] == "file")?;
            // Restored pods are there before the directory is read.
            (file["pods"] == PODS && file["state"] == "synced").then_some(())
        };
        wait_for(pods);
        let (_, before) = memory(&agent);
        open.send(()).unwrap();
        let (mut bodies, mut bytes) = (0, 0);
        while bytes < PODS * 2_000_000 {
            let (length, first, last) = received.recv_timeout(PATIENCE).unwrap();
            assert!(first.starts_with("{\"seq\":") && last == "]}\n", "{first} … {last}");
            if first.contains("\"source\":\"file\"") {
                bodies += 1;
                bytes += length;
            }
        }
        let (peak, _) = memory(&agent);
        println!("{bodies} bodies of {bytes} bytes: {before} MiB before, {peak} MiB at most");
        assert_eq!(bodies, parts);
        assert!(peak <= before + 32, "{before} MiB before, {peak} MiB at most");
        agent.signal(Signal::TERM);
        assert_eq!(agent.ends().0, 0);
    }
}

#[test]
fn a_start_that_can_never_work_is_refused_with_one_line() {
    let node = Node::new();
    let at = node.directory.path().display();
    fs::create_dir(node.at("directory")).unwrap();
    let mut shown = String::new();
    for sink in [
        "webhook=http://hub.example/".to_owned(),
        "webhook=https://user:s3cret@hub.example/".to_owned(),
        "webhook=https://hub.example/,tokens=/t".to_owned(),
        format!("webhook=https://hub.example/pods?key=s3cret,token-file={at}/directory"),
        format!("webhook=https://hub.example/,cert-file={at}/directory,key-file={at}/k"),
        format!("jsonl={at}/directory"),
    ] {
        let (code, log) = node.start(&sink).ends();
        assert_eq!(code, 2, "{log}");
        let last = log.lines().last().unwrap().replace(&*at.to_string(), "@");
        assert!(!log.contains("s3cret"), "{log}");
        shown.extend([&*last, "\n"]);
    }
    expect![[r#"
        podmux: --sink: http is not encrypted, and pods may hold secrets: use https (http only to 127.0.0.0/8, [::1] or localhost)
        podmux: --sink: the URL holds a user or a password: put a token into a file, and give token-file=FILE
        podmux: --sink: unknown option "tokens"; the options of webhook are token-file, hmac-file, ca-file, cert-file, key-file, max-bytes, timeout
        podmux: cannot open the sink webhook=https://hub.example/pods: token-file: cannot read @/directory (does it exist, and may podmux read it?): is a directory
        podmux: cannot open the sink webhook=https://hub.example/: cert-file: cannot read @/directory (does it exist, and may podmux read it?): is a directory
        podmux: cannot write updates to @/directory (choose a file that can be created or appended to): Is a directory (os error 21)
    "#]].assert_eq(&shown);
}

#[test]
fn the_check_reads_the_files_of_the_options_and_the_config_file_has_objects() {
    let node = Node::new();
    let authority = Authority::new(node.directory.path(), "ca");
    let config = node.at("config.yaml");
    let check = |more: &str| {
        let text = format!(
            "podManifestPath: manifests\nsink:\n- jsonl=updates.jsonl\n- kind: webhook\n  target: https://h/?key=s3cret\n  caFile: ca.pem\n{more}"
        );
        fs::write(&config, text).unwrap();
        let mut command =
            podmux(&["run", "--check", "--state-dir", "none", "--config", config.to_str().unwrap()]);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("s3cret"), "{said}");
        format!(
            "{}\n{}",
            output.status.code().unwrap(),
            said.replace(node.directory.path().to_str().unwrap(), "@")
        )
    };
    let (_, key) = authority.client("client");
    fs::rename(key, node.at("key")).unwrap();
    fs::write(node.at("token"), "t").unwrap();
    let shown = [
        check("  tokenFile: token\n"),
        check("  tokenFile: missing\n"),
        check("  hmacFile: /dev/null\n"),
        check("  certFile: client.crt\n  keyFile: token\n"),
        check("  certFile: ca.pem\n  keyFile: key\n"),
        check("  tokenFile: [token]\n"),
        check("  token: t\n"),
        check("- webhook=https://h/?other=s3cret\n"),
    ];
    expect![[r#"
        0
        2
        podmux: cannot open the sink webhook=https://h/: token-file: cannot read @/missing (does it exist, and may podmux read it?): No such file or directory (os error 2)
        2
        podmux: cannot open the sink webhook=https://h/: hmac-file: /dev/null is empty
        2
        podmux: cannot open the sink webhook=https://h/: cannot use @/token: no private key was found in it; PEM text is expected, which begins with -----BEGIN PRIVATE KEY----- (an encrypted key cannot be used)
        2
        podmux: cannot open the sink webhook=https://h/: cannot use the certificate @/ca.pem with the key @/key (do they belong together?): keys may not be consistent: KeyMismatch
        2
        podmux: @/config.yaml:2:1: sink: value 2: "tokenFile": expected a string
        2
        podmux: @/config.yaml:2:1: sink: value 2: unknown option "token"; the options of webhook are tokenFile, hmacFile, caFile, certFile, keyFile, maxBytes, timeout
        2
        podmux: @/config.yaml:2:1: sink: webhook=https://h/ is given twice
    "#]].assert_eq(&shown.concat());
}
