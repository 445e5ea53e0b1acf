//! The output of containers: the agent's API, `podmux logs` and the real kubectl, with a real podman; and a double of
//! podman that misbehaves.

use std::{
    fmt::Write as _,
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use expect_test::{expect, expect_file};
use podmux::{
    pod::PodKey,
    runtime::{
        LogRequest, PodRuntime as _,
        podman::{Config, Podman as Runtime},
    },
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
    sync::{mpsc, oneshot},
};

use crate::support::{
    files::soon,
    kubernetes::not_tested,
    podman::{Node, Podman, RUNS, container, pod},
    process::{Process, podmux, wait_for},
    web::{Reply, Step, Web},
};

/// An agent that can be reached by kubectl.
struct Reached {
    node: Node,
    agent: Process,
    url: String,
}

impl Reached {
    fn start(podman: &Podman) -> Self {
        let node = Node::new(podman);
        let agent = node.start_with(&["--listen", "127.0.0.1:0", "--anonymous-auth"]);
        let line = agent.logs("listening address=127.0.0.1:");
        let url = format!("http://{}", line.rsplit_once("address=").unwrap().1);
        Self { node, agent, url }
    }

    fn podmux(&self, args: &str) -> Command {
        let mut command = podmux(&["logs"]);
        command.args(args.split(' ')).env("PODMUX_SERVER", self.node.address());
        command
    }

    fn kubectl(&self, args: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.args(["--server", &self.url, "--cache-dir"]).arg(self.node.path("cache"));
        command.arg("logs").args(args.split(' ')).env("KUBECONFIG", "/dev/null");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ends(self) {
        self.agent.signal(Signal::TERM);
        let (code, log) = self.agent.ends();
        assert_eq!(code, 0, "{log}");
    }
}

fn has_kubectl() -> bool {
    let has = Command::new("kubectl").arg("version").output().is_ok();
    if !has {
        not_tested("logs with kubectl: it is not installed");
    }
    has
}

/// The exit code and the output of a command, with every time as `TIME`.
fn shown(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| {
        // Golden files have no carriage returns.
        let text = String::from_utf8(bytes.to_vec()).unwrap().replace('\r', "\\r");
        let word = |word: &str| {
            let is_time =
                word.len() >= 20 && word.starts_with("20") && word.contains('T') && word.contains(':');
            if is_time { "TIME".to_owned() } else { word.to_owned() }
        };
        let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
        text.split('\n').map(line).collect::<Vec<_>>().join("\n")
    };
    format!("{}\n{}---\n{}", output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Mounts the directory `go` of the node into the containers of a pod.
fn with_go(node: &Node, mut pod: Value) -> Value {
    let go = node.path("go");
    let _ = fs::create_dir(&go);
    fs::set_permissions(&go, fs::Permissions::from_mode(0o777)).unwrap();
    pod["spec"]["volumes"] = json!([{"name": "go", "hostPath": {"path": go}}]);
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            container["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
        }
    }
    pod
}

/// A script that waits for a file in `go`.
fn awaits(file: &str) -> String {
    format!("while [ ! -e /go/{file} ]; do sleep 0.05; done")
}

/// The pods whose logs are read.
fn write_pods(node: &Node) {
    node.write("web.json", &pod("web", &format!("echo one; echo two; echo three; {RUNS}")));
    let speaks = |name: &str| container(name, &format!("echo {name} speaks; {RUNS}"));
    let mut many = pod("many", RUNS);
    many["spec"]["containers"] = json!([speaks("a"), speaks("b")]);
    many["spec"]["initContainers"] = json!([container("i", "echo i speaks")]);
    node.write("many.json", &many);
    for (name, annotated) in [("meant", "b"), ("wrong", "x")] {
        let annotations = json!({"kubectl.kubernetes.io/default-container": annotated});
        many["metadata"] = json!({"name": name, "annotations": annotations});
        node.write(&format!("{name}.json"), &many);
    }
    node.write("crash.json", &pod("crash", "printf cra; echo shed; exit 3"));
    let script = "echo x >> /go/runs; n=$(wc -l < /go/runs); echo run $n; [ $n -gt 1 ] || exit 3";
    node.write("again.json", &with_go(node, pod("again", &format!("{script}; {RUNS}"))));
    let mut absent = pod("absent", RUNS);
    absent["spec"]["containers"][0]["image"] = "localhost/none:1".into();
    absent["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
    node.write("absent.json", &absent);
    let mut terminal = pod("tty", &format!("echo to a terminal; echo err >&2; {RUNS}"));
    terminal["spec"]["containers"][0]["tty"] = true.into();
    node.write("tty.json", &terminal);
}

/// The arguments whose output is compared with kubectl's.
const READ: [&str; 21] = [
    "web-node1",
    "pod/web-node1 --tail 2",
    "web-node1 --tail 0",
    "web-node1 --limit-bytes 6",
    "web-node1 --timestamps --since 1h",
    "web-node1 -c c -n default",
    "web-node1 -c d",
    "web-node1 -n other",
    "web-node1 --previous",
    "none",
    "many-node1",
    "many-node1 --all-containers",
    "many-node1 -c i",
    "meant-node1",
    "wrong-node1",
    "crash-node1",
    "crash-node1 -p",
    "again-node1",
    "again-node1 -p",
    "absent-node1",
    "tty-node1",
];

#[test]
fn logs_are_those_of_kubectl() {
    let Some(podman) = Podman::start() else { return };
    let reached = Reached::start(&podman);
    let node = &reached.node;
    write_pods(node);
    for name in ["web", "many", "meant", "wrong", "tty"] {
        node.ready(name);
    }
    node.until("crash", "backing off", |status| {
        status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    node.until("absent", "waiting", |status| {
        status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    node.until("again", "restarted", |status| {
        status["containerStatuses"][0]["restartCount"] == 1 && status["containerStatuses"][0]["ready"] == true
    });
    // What a container prints comes a moment after its start.
    for (log, last) in [
        ("web-node1", "three"),
        ("many-node1 -c a", "speaks"),
        ("many-node1 -c b", "speaks"),
        ("meant-node1 -c b", "speaks"),
        ("wrong-node1 -c a", "speaks"),
        ("again-node1", "run 2"),
        ("tty-node1", "err"),
    ] {
        wait_for(|| shown(reached.podmux(log)).contains(last).then_some(()));
    }
    let (has_kubectl, mut all) = (has_kubectl(), String::new());
    for args in READ {
        let ours = shown(reached.podmux(args));
        write!(all, "$ podmux logs {args}\n{ours}\n").unwrap();
        if has_kubectl {
            let theirs = shown(reached.kubectl(args));
            let theirs = theirs.replace("error: container d", "Error from server (BadRequest): container d");
            // kubectl looks for the namespace then, and has words of its own.
            let is_about_the_pod = !ours.contains("(NotFound)");
            // Its order of containers is by chance.
            let is_same = sorted(&theirs) == sorted(&ours);
            assert!(is_same || !is_about_the_pod && theirs.starts_with("1\n"), "{args}: {theirs}");
        }
    }
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/podman/logs.txt")].assert_eq(&all);
    reached.ends();
}

#[test]
fn logs_are_followed_until_the_container_or_the_reader_ends() {
    let Some(podman) = Podman::start() else { return };
    let reached = Reached::start(&podman);
    let node = &reached.node;
    let script = format!("echo first; {}; echo second; {}", awaits("more"), awaits("end"));
    let mut web = with_go(node, pod("web", &script));
    web["spec"]["restartPolicy"] = "Never".into();
    node.write("web.json", &web);
    let quiet = format!("{}; echo at last; {}", awaits("more"), awaits("end"));
    let mut pair = pod("pair", RUNS);
    pair["spec"]["containers"] = json!([container("a", &script), container("b", &quiet)]);
    pair["spec"]["restartPolicy"] = "Never".into();
    node.write("pair.json", &with_go(node, pair));
    node.ready("web");
    node.ready("pair");
    wait_for(|| shown(reached.podmux("web-node1")).contains("first").then_some(()));
    let all = Process::start(&mut reached.podmux("-f --all-containers pair-node1"));
    let quiet = Process::start(&mut reached.podmux("-f -c b pair-node1"));
    // It is answered before there is any new output.
    let answered = |lines: &[String]| {
        let of_web = |line: &&String| line.contains("pods/web-node1/log") && line.contains("status=200");
        lines.iter().filter(of_web).count()
    };
    let before = reached.agent.stderr.wait_for("lines", |lines| Some(answered(lines)));
    let new = Process::start(&mut reached.podmux("-f --tail 0 web-node1"));
    let log = &reached.agent.stderr;
    log.wait_for("the log to be open", |lines| (answered(lines) > before).then_some(()));
    let mut followers = vec![Process::start(&mut reached.podmux("-f web-node1"))];
    if has_kubectl() {
        followers.push(Process::start(&mut reached.kubectl("-f web-node1")));
    }
    let prints = |process: &Process, line: &str| {
        process.stdout.wait_for(line, |lines| lines.iter().any(|printed| printed == line).then_some(()));
    };
    for follower in &followers {
        prints(follower, "first");
    }
    prints(&all, "first");

    // Its reader goes away, while there is nothing to print.
    let mut left = reached.podmux("-f web-node1").spawn().unwrap();
    let mut first = [0; 6];
    left.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert!(left.wait().unwrap().success());
    let interrupted = Process::start(&mut reached.podmux("-f web-node1"));
    prints(&interrupted, "first");
    interrupted.signal(Signal::INT);
    assert_eq!(interrupted.ends(), (0, String::new()));

    fs::write(node.path("go/more"), "").unwrap();
    for follower in &followers {
        prints(follower, "second");
    }
    prints(&new, "second");
    prints(&quiet, "at last");
    prints(&all, "second");
    prints(&all, "at last");
    fs::write(node.path("go/end"), "").unwrap();
    for follower in followers {
        let text = follower.stdout.clone();
        assert_eq!(follower.ends(), (0, String::new()));
        assert_eq!(text.text(), "first\nsecond");
    }
    let text = new.stdout.clone();
    assert_eq!(new.ends(), (0, String::new()));
    assert_eq!(text.text(), "second");
    assert_eq!(all.ends(), (0, String::new()));
    assert_eq!(quiet.ends(), (0, String::new()));
    // A container that has ended is shown to its end, and followed too.
    assert_eq!(shown(reached.podmux("-f web-node1")), "0\nfirst\nsecond\n---\n");
    assert_eq!(shown(reached.podmux("-f --tail 1 web-node1")), "0\nsecond\n---\n");
    reached.ends();
}

/// podman stores such a line in parts. `Container Runtime … should report termination message from log output if
/// TerminationMessagePolicy FallbackToLogsOnError is set` of the conformance tests.
#[test]
fn a_line_that_is_long_or_has_no_end_is_whole_at_the_end_of_a_log_and_in_a_message() {
    let Some(podman) = Podman::start() else { return };
    let reached = Reached::start(&podman);
    let long = "x".repeat(100_000);
    let lines: Vec<String> = (1..=100).map(|number| format!("{number}\n")).collect();
    let all = [
        // What is printed, the message, and the last two lines.
        ("/bin/echo -n DONE", "DONE".to_owned(), "DONE"),
        (
            "echo hello; printf 'fatal: no config'",
            "hello\nfatal: no config".into(),
            "hello\nfatal: no config",
        ),
        (
            "echo hello; for part in A B C; do printf $part; sleep 0.1; done; echo D",
            "hello\nABCD\n".into(),
            "hello\nABCD\n",
        ),
        ("seq 100", lines[20..].concat(), "99\n100\n"),
        ("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end", format!("{}\nend\n", &long[..2043]), ""),
    ];
    let mut job = pod("job", "");
    job["spec"]["restartPolicy"] = "Never".into();
    let container = |(index, (script, ..)): (usize, &(&str, _, _))| {
        let mut container = container(&format!("c{index}"), &format!("{script}; exit 1"));
        container["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
        container
    };
    job["spec"]["containers"] = all.iter().enumerate().map(container).collect();
    reached.node.write("job.json", &job);
    let status = reached.node.until("job", "over", |status| status["phase"] == "Failed");
    for (index, (script, message, last)) in all.iter().enumerate() {
        let ended = &status["containerStatuses"][index]["state"]["terminated"];
        assert!(ended["message"] == **message, "{script}: {ended:#}");
        let tail = shown(reached.podmux(&format!("job-node1 -c c{index} --tail 2")));
        assert!(last.is_empty() || tail == format!("0\n{last}---\n"), "{script}: {tail}");
    }
    reached.ends();
}

#[test]
fn a_followed_log_ends_with_the_agent() {
    let Some(podman) = Podman::start() else { return };
    let reached = Reached::start(&podman);
    reached.node.write("web.json", &pod("web", &format!("echo first; {RUNS}")));
    reached.node.ready("web");
    let follower = Process::start(&mut reached.podmux("-f web-node1"));
    follower.stdout.wait_for("a line", |lines| lines.first().cloned());
    let mut late = reached.podmux("-f web-node1");
    reached.ends();
    let (code, error) = follower.ends();
    assert_eq!((code, error.contains("the agent has stopped: the log ends here")), (1, true), "{error}");
    // One that did not begin has another cause.
    let (code, error) = Process::start(&mut late).ends();
    assert_eq!((code, error.contains("the agent has stopped")), (1, false), "{error}");
}

/// The name of the only container of the double, and the pod that it is of.
const ID: &str = "0123456789abcdef";

fn request() -> LogRequest {
    LogRequest {
        key: PodKey::new("default", "web"),
        uid: "u".into(),
        container_id: format!("podman://{ID}").into(),
        follow: false,
        tail: None,
        since: None,
        timestamps: false,
    }
}

/// A frame of podman.
fn frame(stream: u8, text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[stream, 0, 0, 0], &length[..], text.as_bytes()].concat()
}

/// What a double of podman answers to a request for anything but logs.
fn other(path: &str) -> Reply {
    if path.ends_with("/_ping") {
        return Reply::ok("OK").header("libpod-api-version", "4.3.1");
    }
    assert_eq!(path, format!("/v4.3.0/libpod/containers/{ID}/json"));
    let labels = json!({"podmux.instance": "me", "podmux.uid": "u"});
    Reply::ok(json!({"State": {"OOMKilled": false}, "Config": {"Labels": labels}}).to_string())
}

/// A double of podman, with a runtime that uses it.
struct Double {
    dir: TempDir,
    web: Web,
}

impl Double {
    /// A double whose logs are these.
    fn new(logs: impl Fn(&str) -> Reply + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let web = Web::start_unix(&dir.path().join("s"), Reply::mute());
        web.play(move |seen| match seen.path.split_once("/logs?") {
            Some((_, query)) => logs(query),
            None => other(&seen.path),
        });
        Self { dir, web }
    }

    fn runtime(&self) -> Runtime {
        let mut config = Config::new(self.dir.path().join("s"), self.dir.path().join("files"), "me".into());
        config.timeout = Duration::from_millis(300);
        Runtime::new(config)
    }

    /// The text of a log, and how it ends.
    async fn read(&self, request: &LogRequest) -> (String, String) {
        let (output, mut chunks) = mpsc::channel(1);
        let runtime = self.runtime();
        let receive = async {
            let mut text = Vec::new();
            while let Some(chunk) = chunks.recv().await {
                text.extend(chunk);
            }
            String::from_utf8(text).unwrap()
        };
        let (result, text) = soon(async { tokio::join!(runtime.logs(request, output), receive) }).await;
        let error = result.err().map(|error| {
            let cause: &dyn std::error::Error = &*error.source;
            let all: Vec<String> =
                std::iter::successors(Some(cause), |error| error.source()).map(ToString::to_string).collect();
            format!("{}: {}", error.reason, all.join(": ")).replace(self.dir.path().to_str().unwrap(), "DIR")
        });
        (text, error.unwrap_or_default())
    }
}

#[tokio::test]
async fn frames_are_joined_however_they_are_cut() {
    let frames = [
        frame(1, "10:00 one\n"),
        frame(1, "10:01 lo"),
        frame(2, "10:02 error\n"),
        frame(1, "10:03 ng"),
        frame(1, ""),
        frame(1, "10:04 \n"),
        frame(2, "10:05 a b\n"),
    ]
    .concat();
    for size in [1, 2, 3, 7, 8, 9, 20, frames.len()] {
        let steps: Vec<Step> = frames.chunks(size).map(|part| Step::Send(part.to_vec().into())).collect();
        let double = Double::new(move |_| Reply::steps(None, steps.clone()));
        // The time of a line's later frames is left out.
        let times = LogRequest { timestamps: true, ..request() };
        let (text, error) = double.read(&times).await;
        assert_eq!((&*text, &*error), ("10:00 one\n10:01 lo10:02 error\nng\n10:05 a b\n", ""), "{size}");
        let (text, _) = double.read(&request()).await;
        assert_eq!(text, "10:00 one\n10:01 lo10:02 error\n10:03 ng10:04 \n10:05 a b\n", "{size}");
    }
}

#[tokio::test]
async fn podman_gets_the_options() {
    let double = Double::new(|_| Reply::ok(""));
    let since = Some("2020-01-02T03:04:05.678Z".parse().unwrap());
    for options in [
        request(),
        LogRequest { tail: Some(0), ..request() },
        LogRequest { tail: Some(1_000_000), ..request() },
        LogRequest { tail: Some(1_000_001), ..request() },
        LogRequest { tail: Some(7), since, timestamps: true, follow: true, ..request() },
    ] {
        assert_eq!(double.read(&options).await, (String::new(), String::new()));
    }
    let logs = |seen: Vec<crate::support::web::Seen>| -> Vec<String> {
        seen.iter().filter_map(|seen| Some(seen.path.split_once("/logs?")?.1.to_owned())).collect()
    };
    expect![[r#"
        [
            "stdout=true&stderr=true&follow=false&timestamps=false",
            "stdout=true&stderr=true&follow=false&timestamps=false",
            "stdout=true&stderr=true&follow=false&timestamps=false",
            "stdout=true&stderr=true&follow=false&timestamps=false",
            "stdout=true&stderr=true&follow=false&timestamps=false",
            "stdout=true&stderr=true&follow=false&timestamps=false",
            "stdout=true&stderr=true&follow=false&timestamps=true&since=1577934245.678000000",
            "stdout=true&stderr=true&follow=true&timestamps=true&since=1577934245.678000000",
        ]
    "#]]
    .assert_debug_eq(&logs(double.web.seen()));
}

#[tokio::test]
async fn the_last_lines_are_those_of_the_log_when_they_were_asked_for() {
    let before = [frame(1, "one\ntwo\nth"), frame(1, "ree")].concat();
    let after = [&before[..], &frame(1, "\nfour\n")].concat();
    for (tail, follow, expected) in [
        (0, false, ""),
        (1, false, "three\n"),
        (2, false, "two\nthree\n"),
        (9, false, "one\ntwo\nthree\nfour\n"),
        (1, true, "three\nfour\n"),
    ] {
        let (before, after, asked) = (before.clone(), after.clone(), AtomicUsize::new(0));
        let double = Double::new(move |_| {
            let is_first = asked.fetch_add(1, Ordering::SeqCst) == 0;
            let steps = vec![Step::Send(if is_first { &before } else { &after }.clone().into())];
            Reply::steps(None, steps)
        });
        let options = LogRequest { tail: Some(tail), follow, ..request() };
        assert_eq!(double.read(&options).await, (expected.to_owned(), String::new()), "{tail} {follow}");
    }
}

#[tokio::test]
async fn podman_is_asked_for_the_last_lines_of_a_log_that_takes_long_to_read() {
    let double = Double::new(|query| {
        let first = Step::Send(frame(1, "one\n").into());
        let last = Step::Send(frame(1, "last\n").into());
        Reply::steps(None, if query.ends_with("&tail=1") { vec![last] } else { vec![first, Step::Hang] })
    });
    let options = LogRequest { tail: Some(1), follow: true, ..request() };
    assert_eq!(double.read(&options).await, ("last\n".to_owned(), String::new()));
}

#[tokio::test]
async fn a_log_that_podman_does_not_send_is_an_error() {
    let double = Double::new(|_| Reply::new(500, r#"{"message": "it uses the 'none' log driver"}"#));
    expect!["LogsFailed: it uses the 'none' log driver"].assert_eq(&double.read(&request()).await.1);
    let theirs = LogRequest { uid: "v".into(), ..request() };
    expect!["LogsFailed: container 0123456789abcdef is not of this pod"]
        .assert_eq(&double.read(&theirs).await.1);

    // podman hangs: at once, or in the middle.
    let double = Double::new(|_| Reply::mute());
    expect!["PodmanUnavailable: podman at DIR/s has sent nothing more for 300ms"]
        .assert_eq(&double.read(&request()).await.1);
    let steps = vec![Step::Send(frame(1, "one\n").into()), Step::Hang];
    let hangs = steps.clone();
    let double = Double::new(move |_| Reply::steps(None, hangs.clone()));
    let (text, error) = double.read(&request()).await;
    assert_eq!(text, "one\n");
    expect!["PodmanUnavailable: podman at DIR/s has sent nothing more for 300ms"].assert_eq(&error);

    // A followed container may be silent, but podman must answer.
    let hangs = steps.clone();
    let double = Double::new(move |_| Reply::steps(None, hangs.clone()));
    let left = AtomicUsize::new(3);
    double.web.play(move |seen| {
        if seen.path.contains("/logs?") {
            return Reply::steps(None, steps.clone());
        }
        let is_alive = !seen.path.ends_with("/json")
            || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if is_alive { other(&seen.path) } else { Reply::mute() }
    });
    let (text, error) = double.read(&LogRequest { follow: true, ..request() }).await;
    assert_eq!(text, "one\n");
    assert!(
        error.starts_with("PodmanUnavailable: podman does not answer: DIR/s sent no complete response"),
        "{error}"
    );

    let steps = vec![Step::Send(frame(1, "one\n").into()), Step::Break];
    let double = Double::new(move |_| Reply::steps(None, steps.clone()));
    let (text, error) = double.read(&request()).await;
    assert_eq!(text, "one\n");
    assert!(error.starts_with("PodmanUnavailable: podman does not answer: "), "{error}");
}

/// A double of podman that sends a log without an end, and says when its client has gone.
async fn endless(listener: UnixListener, sent: Arc<AtomicUsize>, gone: oneshot::Sender<()>) {
    let mut gone = Some(gone);
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (sent, mut head) = (sent.clone(), Vec::new());
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap();
        if !path.contains("/logs?") {
            let body = if path.ends_with("/_ping") {
                "OK".to_owned()
            } else {
                json!({
                "State": {"OOMKilled": false}, "Config": {"Labels": {"podmux.instance": "me", "podmux.uid": "u"}},
            }).to_string()
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nlibpod-api-version: 4.3.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            continue;
        }
        let gone = gone.take().unwrap();
        tokio::spawn(async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.unwrap();
            let frame = frame(1, &"x".repeat(8000));
            while stream.write_all(&frame).await.is_ok() {
                sent.fetch_add(frame.len(), Ordering::SeqCst);
            }
            gone.send(()).unwrap();
        });
    }
}

#[tokio::test]
async fn a_reader_that_stops_reading_holds_little_and_one_that_goes_ends_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let (sent, (gone, has_gone)) = (Arc::new(AtomicUsize::new(0)), oneshot::channel());
    let double = tokio::spawn(endless(listener, sent.clone(), gone));
    let runtime = Runtime::new(Config::new(dir.path().join("s"), dir.path().join("files"), "me".into()));
    let (output, mut chunks) = mpsc::channel(1);
    let follow = LogRequest { follow: true, ..request() };
    let reading = tokio::spawn(async move { runtime.logs(&follow, output).await });
    while soon(chunks.recv()).await.unwrap().is_empty() {}
    // The client does not read: until the pipes are full podman sends.
    let mut before = usize::MAX;
    while before != sent.load(Ordering::SeqCst) {
        before = sent.load(Ordering::SeqCst);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }
    assert!(before < 4 << 20, "{before} bytes are held");
    drop(chunks);
    soon(reading).await.unwrap().unwrap();
    soon(has_gone).await.unwrap();
    double.abort();
}
