//! Notifications to the service manager, with the real binary and a double of systemd.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, net::UnixStream},
    path::Path,
    pin::pin,
    process::Command,
    sync::mpsc,
    time::Duration,
};

use futures_util::FutureExt as _;
use podmux::{
    agent::{extend, watchdog},
    mux::{Mux, MuxLoop, Notify, SourceChannel},
    pod::{ListingBuilder, Origin, SourceName},
    sink::{Delivery, SequencedUpdate, Sink, SinkError},
    supervise::{Heartbeat, Tasks},
    systemd,
};
use rustix::process::Signal;
use tokio::{runtime::Builder, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::pod,
    logs::collected,
    notify::ManagerDouble,
    process::{Process, full_pipe, podmux, podmux_run, wait_for},
    script,
    sinks::{Behaviour, SinkDouble},
    web::{Reply, Web},
};

/// A short watchdog timeout, so that tests do not wait for long.
const WATCHDOG_USEC: &str = "200000";

fn put(manifests: &Path, name: &str) {
    let staged = manifests.with_extension("staged");
    fs::write(&staged, pod(name, "i:1")).unwrap();
    fs::rename(staged, manifests.join(format!("{name}.yaml"))).unwrap();
}

fn stops(agent: Process) -> String {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_is_sent_when_every_source_has_synced_and_the_sockets_listen() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    put(&manifests, "a");
    let web = Web::start(Reply::mute()).await;
    let (open, gate) = mpsc::sync_channel(0);
    web.play(move |_| {
        gate.recv().unwrap();
        Reply::ok(pod("b", "i:1"))
    });
    let mut manager = ManagerDouble::new();
    let socket = dir.path().join("s");
    let listen = format!("unix:{}", socket.display());
    let mut command = podmux_run(&manifests, &["--manifest-url", &web.url, "--listen", &listen]);
    let agent = Process::start(manager.starts(&mut command));

    manager.receives("STATUS=starting: waiting for source url; 1 pod");
    let early = manager.all().join("");
    assert!(!early.contains("READY"), "{early}");
    assert!(early.contains("EXTEND_TIMEOUT_USEC=60000000\n"), "{early}");
    open.send(()).unwrap();
    assert_eq!(manager.receives("READY=1"), "READY=1\nSTATUS=2 pods\n");
    UnixStream::connect(&socket).unwrap();
    stops(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_source_does_not_delay_ready_and_is_in_the_status_until_it_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::new(503, "")).await;
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &["--manifest-url", &web.url]);
    let agent = Process::start(manager.starts(&mut command));
    let ready = manager.receives("READY=1");
    assert!(ready.contains("\nSTATUS=0 pods; url failing since 20"), "{ready}");
    assert!(ready.contains("Z: the server answered 503 Service Unavailable"), "{ready}");

    put(dir.path(), "a");
    manager.receives("STATUS=1 pod; url failing since …");
    web.say(Reply::ok(pod("b", "i:1")));
    agent.signal(Signal::HUP);
    manager.receives("STATUS=2 pods");
    stops(agent);
}

#[test]
fn a_state_that_cannot_be_opened_is_in_the_status_also_without_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let (state, manifests) = (dir.path().join("state"), dir.path().join("manifests"));
    fs::create_dir(&state).unwrap();
    fs::create_dir(&manifests).unwrap();
    fs::write(state.join("state.redb"), "").unwrap();
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(&manifests, &["--listen", "none"]);
    let agent = Process::start(manager.starts(command.env("PODMUX_STATE_DIR", &state)));
    let ready = manager.receives("READY=1");
    assert!(ready.contains("; http failing since 20") && ready.contains("state.redb"), "{ready}");
    fs::remove_file(state.join("state.redb")).unwrap();
    agent.signal(Signal::HUP);
    manager.receives("STATUS=0 pods");
    stops(agent);
}

/// Every user of the machine can read the status.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_manifest_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = pod("b", "i:1").replace("image:", "env: [{name: PIN, value: 4711}]\n    image:");
    let web = Web::start(Reply::ok(manifest)).await;
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &["--manifest-url", &web.url]);
    let agent = Process::start(manager.starts(&mut command));
    let ready = manager.receives("READY=1");
    assert!(ready.ends_with("Z: its input is invalid; podmux get sources shows why\n"), "{ready}");
    stops(agent);
    assert!(!manager.all().concat().contains("4711"));
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_pods_are_enough_for_ready() {
    let dir = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(pod("a", "i:1"))).await;
    let mut command = podmux(&["run", "--node-name", "node1", "--manifest-url", &web.url]);
    command.env("PODMUX_LISTEN", "none").env("PODMUX_STATE_DIR", dir.path());
    // A task is late after a quarter of it: long on a slow machine, and shorter than the mux waits for the URL.
    command.env("WATCHDOG_USEC", "4000000");
    let mut manager = ManagerDouble::new();
    let agent = Process::start(manager.starts(&mut command));
    manager.receives("STATUS=1 pod");
    stops(agent);

    web.say(Reply::mute());
    let mut manager = ManagerDouble::new();
    let agent = Process::start(manager.starts(&mut command));
    assert_eq!(manager.receives("READY=1"), "READY=1\nSTATUS=1 pod\n");
    assert_eq!(manager.all()[0], "STATUS=starting\nEXTEND_TIMEOUT_USEC=60000000\n");
    manager.receives("WATCHDOG=1");
    let log = stops(agent);
    assert!(!log.contains("does not run"), "the mux only waits for the URL: {log}");
}

#[test]
fn the_status_is_sent_once_a_second_at_most_and_only_when_it_changes() {
    const CHANGES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &[]);
    let agent = Process::start(manager.starts(command.env("WATCHDOG_USEC", WATCHDOG_USEC)));
    manager.receives("READY=1");
    let begun = std::time::Instant::now();
    for number in 1..=CHANGES {
        put(dir.path(), &format!("p{number}"));
        agent.holds("one more pod", |held| held.pods.len() == number);
    }
    manager.receives(&format!("STATUS={CHANGES} pods"));
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let statuses = |manager: &mut ManagerDouble| {
        manager.all().iter().filter(|message| message.starts_with("STATUS=")).count()
    };
    let sent = statuses(&mut manager);
    // One at once, one for each second, and those before READY.
    assert!(sent <= seconds + 4 && sent < CHANGES, "{sent} in {seconds} s");
    for _ in 0..20 {
        manager.receives("WATCHDOG=1");
    }
    assert_eq!(statuses(&mut manager), sent);
    stops(agent);
}

#[test]
fn a_missing_directory_does_not_delay_ready() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    let mut manager = ManagerDouble::new();
    let agent = Process::start(manager.starts(&mut podmux_run(&manifests, &[])));
    let ready = manager.receives("READY=1");
    assert!(ready.contains("STATUS=0 pods; file failing since "), "{ready}");
    fs::create_dir(&manifests).unwrap();
    put(&manifests, "a");
    manager.receives("STATUS=1 pod");
    stops(agent);
    // After READY an extension would apply to the watchdog too.
    let messages = manager.all();
    let index = |line| messages.iter().position(|message| message.starts_with(line)).unwrap();
    let between = &messages[index("READY=1")..index("STOPPING=1")];
    assert!(!between.iter().any(|message| message.contains("EXTEND_TIMEOUT_USEC")), "{messages:#?}");
}

#[test]
fn stopping_is_sent_with_the_unfinished_tasks_and_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &["--shutdown-grace", "100s"]);
    let (unread, full) = full_pipe();
    let agent = Process::start(manager.starts(&mut command).stdout(full));
    manager.receives("READY=1");
    agent.signal(Signal::TERM);
    // Half a second of the grace is for the end of the process itself; the margin is 5 s.
    let stopping = manager.receives("STOPPING=1");
    assert!(stopping.contains("\nEXTEND_TIMEOUT_USEC=104500000\n"), "{stopping}");
    // The sources may not have ended yet.
    let waiting = "STATUS=stopping: waiting for sink jsonl; 1 pod";
    if !stopping.contains(waiting) {
        manager.receives(waiting);
    }
    drop(unread);
    let (_, log) = agent.ends();
    assert!(log.contains("stopping: pending updates are delivered"), "{log}");
}

#[test]
fn a_reload_is_sent_with_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let (manifests, config) = (dir.path().join("manifests"), dir.path().join("config.yaml"));
    fs::create_dir(&manifests).unwrap();
    fs::write(&config, "shutdownGrace: 5s\n").unwrap();
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(&manifests, &["--config", config.to_str().unwrap()]);
    let agent = Process::start(manager.starts(&mut command));
    manager.receives("READY=1");

    agent.signal(Signal::HUP);
    let reloading = manager.receives("RELOADING=1");
    // systemd accepts a reload only with both in one datagram.
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().trim_end();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    let age = now - time.parse::<i64>().unwrap();
    assert!((0..600_000_000).contains(&age), "{age}");
    assert_eq!(manager.receives("READY=1"), "READY=1\nSTATUS=0 pods\n");

    fs::write(&config, "shutdownGrace: soon\n").unwrap();
    agent.signal(Signal::HUP);
    manager.receives("RELOADING=1");
    let ready = manager.receives("READY=1");
    let rejected = "STATUS=0 pods; reload failed, the previous settings stay in effect: ";
    assert!(ready.contains(rejected) && ready.contains("shutdownGrace"), "{ready}");

    fs::write(&config, "shutdownGrace: 6s\n").unwrap();
    agent.signal(Signal::HUP);
    manager.receives("RELOADING=1");
    assert_eq!(manager.receives("READY=1"), "READY=1\nSTATUS=0 pods\n");
    stops(agent);
    assert_eq!(manager.all().last().unwrap(), "STOPPING=1\nSTATUS=stopped\n");
}

#[test]
fn a_reload_with_an_invalid_file_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "s3cret").unwrap();
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &["--token-file", token.to_str().unwrap()]);
    let agent = Process::start(manager.starts(&mut command));
    manager.receives("READY=1");

    fs::write(&token, "s3cret too").unwrap();
    agent.signal(Signal::HUP);
    manager.receives("RELOADING=1");
    let ready = manager.receives("READY=1");
    // The file may have been corrected since then.
    assert!(ready.contains("; settings reloaded, a file was invalid at that time: token file "), "{ready}");
    assert!(!ready.contains("s3cret"), "{ready}");
    agent.logs("reload incomplete: a file that the settings name is invalid");

    fs::write(&token, "s3cret").unwrap();
    agent.signal(Signal::HUP);
    manager.receives("RELOADING=1");
    let ready = manager.receives("READY=1");
    assert!(!ready.contains("settings"), "{ready}");
    stops(agent);
}

#[test]
fn open_requests_are_in_the_status_and_a_reader_that_goes_away_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut manager = ManagerDouble::new();
    let listen = format!("unix:{}", socket.display());
    let mut command = podmux_run(&dir.path().join("manifests"), &["--listen", &listen]);
    let (reader, writer) = std::io::pipe().unwrap();
    let agent = Process::start(manager.starts(&mut command).stdout(writer));
    drop(command);
    manager.receives("READY=1");
    // READY does not wait for the sink. A reader that goes away before the last update is a failure.
    let mut reader = BufReader::new(reader);
    // In the order in which the sources have synced, or in that of the sources if both had.
    let mut sources: Vec<String> = (0..2)
        .map(|_| {
            let mut update = String::new();
            reader.read_line(&mut update).unwrap();
            let update: serde_json::Value = serde_json::from_str(&update).unwrap();
            assert_eq!(update["op"], "ADD");
            update["source"].as_str().unwrap().to_owned()
        })
        .collect();
    sources.sort();
    assert_eq!(sources, ["file", "http"]);
    let mut request = UnixStream::connect(&socket).unwrap();
    let head = "POST /pods HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n";
    request.write_all(head.as_bytes()).unwrap();
    let mut answer = BufReader::new(request.try_clone().unwrap());
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");

    agent.signal(Signal::TERM);
    let stopping = manager.receives("STOPPING=1");
    assert!(stopping.contains("\nSTATUS=stopping: pending requests are answered; 0 pods; "), "{stopping}");
    drop(reader);
    request.write_all(b"x").unwrap();
    line.clear();
    answer.read_to_string(&mut line).unwrap();
    assert!(line.contains("HTTP/1.1 4"), "{line}");
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
}

#[test]
fn a_manager_that_returns_receives_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = ManagerDouble::new();
    let away = format!("{}.away", manager.name);
    fs::rename(&manager.name, &away).unwrap();
    let agent = Process::start(manager.starts(&mut podmux_run(dir.path(), &["-v"])));
    // More failures than the start alone has, so that READY was tried.
    agent.stderr.wait_for("one more failure", |lines| {
        (lines.iter().filter(|line| line.contains("service manager not notified")).count() > 5).then_some(())
    });
    fs::rename(&away, &manager.name).unwrap();
    manager.receives("READY=1");
    let log = stops(agent);
    assert_eq!(log.matches("service manager notified again").count(), 1, "{log}");
}

/// The last message, the exit code and the log of a start that fails.
fn failed_start(manager: &mut ManagerDouble, command: &mut Command) -> (String, i32, String) {
    let (code, log) = Process::start(manager.starts(command)).ends();
    (manager.all().last().cloned().unwrap_or_default(), code, log)
}

#[test]
fn a_failed_start_is_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &["--shutdown-grace", "soon"]);
    let (status, code, log) = failed_start(&mut manager, &mut command);
    assert_eq!(code, 2);
    assert_eq!(format!("podmux: {}", status.strip_prefix("STATUS=").unwrap()), log + "\n");

    let (status, code, log) = failed_start(&mut manager, &mut podmux_run(dir.path(), &["--no-such-flag"]));
    assert_eq!(code, 2);
    assert_eq!(format!("podmux: {}", status.strip_prefix("STATUS=").unwrap()), log + "\n");

    let mut command = podmux_run(dir.path(), &[]);
    command.env("PODMUX_NODE_NAME", OsStr::from_bytes(b"\xff"));
    let (status, code, _) = failed_start(&mut manager, &mut command);
    assert_eq!((code, status.as_str()), (2, "STATUS=PODMUX_NODE_NAME: the value is not UTF-8 text\n"));

    let sink = format!("jsonl={}", dir.path().join("missing/updates.jsonl").display());
    let (status, code, _) = failed_start(&mut manager, &mut podmux_run(dir.path(), &["--sink", &sink]));
    assert_eq!(code, 2);
    assert!(status.starts_with("STATUS=cannot write updates to "), "{status}");
    assert!(status.ends_with(&format!("\nERRNO={}\n", rustix::io::Errno::NOENT.raw_os_error())), "{status}");
}

#[test]
fn a_failure_is_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &[]);
    let (unread, full) = full_pipe();
    let agent = Process::start(manager.starts(&mut command).stdout(full));
    manager.receives("READY=1");
    drop(unread);
    manager.receives("STATUS=task sink jsonl failed: sink jsonl failed at update …");
    assert_eq!(agent.ends().0, 1);
}

#[test]
fn only_the_agent_notifies_the_manager() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = ManagerDouble::new();
    let mut command = podmux(&["validate", dir.path().join("missing").to_str().unwrap()]);
    let (status, code, log) = failed_start(&mut manager, &mut command);
    assert_ne!(code, 0, "{log}");
    assert_eq!(status, "");
    drop(failed_start(&mut manager, &mut podmux(&["get", "--no-such-flag"])));
    assert!(manager.all().is_empty());
}

#[test]
fn an_abstract_address_works() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = ManagerDouble::abstract_one();
    let agent = Process::start(manager.starts(&mut podmux_run(dir.path(), &[])));
    manager.receives("READY=1");
    stops(agent);
}

#[test]
fn a_manager_that_does_not_read_or_is_gone_does_not_affect_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut full = ManagerDouble::new();
    full.fill();
    let mut command = podmux_run(dir.path(), &[]);
    let agent = Process::start(full.starts(command.env("WATCHDOG_USEC", WATCHDOG_USEC)));
    agent.holds("the pod", |held| held.pods.contains_key("default/a-node1"));
    agent.signal(Signal::HUP);
    agent.logs("settings reloaded");
    put(dir.path(), "b");
    agent.holds("the other pod", |held| held.pods.contains_key("default/b-node1"));
    // It receives the state when it reads again.
    full.receives("STATUS=2 pods");
    assert!(full.all().iter().any(|message| message.starts_with("READY=1\n")));
    full.fill();
    stops(agent);

    let gone = ManagerDouble::new().name;
    let mut command = podmux_run(dir.path(), &[]);
    let agent = Process::start(command.env("NOTIFY_SOCKET", gone).env("WATCHDOG_USEC", WATCHDOG_USEC));
    agent.holds("both pods", |held| held.pods.len() == 2);
    let log = stops(agent);
    assert_eq!(log.matches("service manager not notified").count(), 1, "{log}");
}

#[test]
fn without_a_manager_nothing_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["", "relative", "vsock:2:1234"] {
        let mut command = podmux_run(dir.path(), &[]);
        let agent = Process::start(command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", WATCHDOG_USEC));
        agent.logs("started");
        let log = stops(agent);
        assert!(!log.contains("service manager"), "{log}");
    }
}

#[test]
fn a_stuck_sink_does_not_trip_the_watchdog() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut manager = ManagerDouble::new();
    let mut command = podmux_run(dir.path(), &[]);
    command.env("WATCHDOG_USEC", WATCHDOG_USEC);
    let (unread, full) = full_pipe();
    let agent = Process::start(manager.starts(&mut command).stdout(full));
    manager.receives("READY=1");
    // The pipe is full, so the sink is stuck from now on.
    manager.forget();
    for _ in 0..5 {
        manager.receives("WATCHDOG=1");
    }
    drop(unread);
    assert_eq!(agent.ends().0, 1);
}

#[test]
fn the_watchdog_of_another_process_is_ignored() {
    let manager = ManagerDouble::new();
    let mut environment = manager.environment(Some(Duration::from_secs(30)));
    let watchdog = |environment: &_| systemd::Manager::from_environment(environment).watchdog();
    assert_eq!(watchdog(&environment), Some(Duration::from_secs(30)));
    environment.insert("WATCHDOG_PID".to_owned(), std::process::id().to_string());
    assert_eq!(watchdog(&environment), Some(Duration::from_secs(30)));
    environment.insert("WATCHDOG_PID".to_owned(), "1".to_owned());
    assert_eq!(watchdog(&environment), None);
    environment.remove("WATCHDOG_PID");
    for useless in ["0", "-1", "soon", ""] {
        environment.insert("WATCHDOG_USEC".to_owned(), useless.to_owned());
        assert_eq!(watchdog(&environment), None, "{useless:?}");
    }
}

#[test]
fn a_status_is_one_line_of_bounded_length() {
    let mut manager = ManagerDouble::new();
    let notifier = systemd::Manager::from_environment(&manager.environment(None));
    notifier.notify_last(&[systemd::State::Status("one\nREADY=1\r\0two".to_owned())]);
    assert_eq!(manager.receives("STATUS=…"), "STATUS=one READY=1  two\n");
    notifier.notify_last(&[systemd::State::Status("ä".repeat(5000))]);
    let long = manager.receives("STATUS=…");
    assert!(long.len() <= "STATUS=\n".len() + 1024 && long.ends_with("ä…\n"), "{long}");
}

/// A mux, and a delivery with its heartbeat.
struct Upstream {
    mux: Mux,
    merging: Option<MuxLoop>,
    channel: SourceChannel,
    tasks: Tasks,
    heartbeats: Vec<Heartbeat>,
}

impl Upstream {
    fn with<S: Sink + 'static>(sink: S) -> Self {
        let (mux, merging) = Mux::new(&[SourceName::File]);
        let channel = mux.channel(SourceName::File).unwrap();
        let (delivery, _status) = Delivery::new("double", sink, mux.updates(Notify::Incremental));
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        tasks.spawn_with_heartbeat("sink double", async { Ok(delivery.run(stop).await?) });
        let heartbeats = tasks.take_heartbeats();
        Self { mux, merging: Some(merging), channel, tasks, heartbeats }
    }

    fn merge(&mut self) {
        let merging = self.merging.take().unwrap();
        self.tasks.spawn("mux", async {
            merging.run().await;
            Ok(())
        });
    }

    fn publish(&self, name: &str) {
        let mut wanted = ListingBuilder::new(SourceName::File);
        wanted.put(&Origin::from("a.yaml"), vec![script::pod(name)], jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(wanted.listing());
    }

    /// Runs the watchdog until the manager has received so many keep-alives.
    async fn keeps_alive(&self, manager: &mut ManagerDouble, times: usize) {
        let watched = systemd::Manager::from_environment(&manager.environment(Some(Duration::from_secs(30))));
        let mut count = 0;
        let received = async {
            while count < times {
                tokio::time::sleep(Duration::from_secs(1)).await;
                count = manager.all().iter().filter(|message| *message == "WATCHDOG=1\n").count();
            }
        };
        tokio::select! {
            () = watchdog(&watched, &self.mux, &self.heartbeats) => unreachable!("the watchdog does not end"),
            () = received => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_waits_has_a_heartbeat() {
    let (_closed, gate) = watch::channel(false);
    for behaviour in [Behaviour::Accepts, Behaviour::HangsUntil(gate), Behaviour::Fails(usize::MAX)] {
        let (double, mut received) = SinkDouble::new(behaviour);
        let mut upstream = Upstream::with(double);
        upstream.merge();
        // It waits for updates first, then for its sink.
        upstream.keeps_alive(&mut ManagerDouble::new(), 3).await;
        upstream.publish("a");
        received.wait_for(|received| !received.attempts.is_empty()).await.unwrap();
        upstream.keeps_alive(&mut ManagerDouble::new(), 3).await;
    }
}

/// A first sync that never ends does not extend the start without limit.
#[tokio::test(start_paused = true)]
async fn a_start_is_extended_by_a_quarter_of_an_hour_at_most() {
    let (double, _received) = SinkDouble::new(Behaviour::Accepts);
    let mut upstream = Upstream::with(double);
    upstream.merge();
    let mut manager = ManagerDouble::new();
    let notifier = systemd::Manager::from_environment(&manager.environment(None));
    let reading = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            manager.all();
        }
    };
    let started = CancellationToken::new();
    tokio::select! {
        () = extend(&notifier, &upstream.mux, Instant::now(), &started) => {}
        () = reading => {}
    }
    assert_eq!(manager.all().len(), 15 * 3, "one every 20 seconds");
}

/// After READY the manager would add the time to the watchdog's.
#[tokio::test]
async fn no_time_is_requested_when_the_start_is_over() {
    let (mux, merging) = Mux::new(&[SourceName::File]);
    let mut manager = ManagerDouble::new();
    let (notifier, started) =
        (systemd::Manager::from_environment(&manager.environment(None)), CancellationToken::new());
    let mut extending = pin!(extend(&notifier, &mux, Instant::now(), &started));
    // It waits for the merge loop, which does not run yet.
    assert_eq!(extending.as_mut().now_or_never(), None);
    tokio::spawn(merging.run());
    assert!(mux.turns().await);
    started.cancel();
    extending.await;
    assert!(manager.all().is_empty());
}

#[test]
fn a_stuck_merge_loop_stops_the_keep_alives() {
    let paused = &mut Builder::new_current_thread();
    collected(paused.start_paused(true), async |log| {
        let (double, _received) = SinkDouble::new(Behaviour::Accepts);
        let mut upstream = Upstream::with(double);
        let mut manager = ManagerDouble::new();
        let hour = tokio::time::sleep(Duration::from_hours(1));
        tokio::select! {
            () = upstream.keeps_alive(&mut manager, 1) => panic!("a keep-alive was sent"),
            () = hour => {}
        }
        assert!(manager.all().is_empty());
        let errors = log.lines_with("ERROR");
        assert!(
            errors.len() == 1 && errors[0].contains("does not run for 7.5s") && errors[0].contains("mux"),
            "{errors:?}"
        );
        upstream.merge();
        upstream.keeps_alive(&mut manager, 2).await;
    });
}

/// A sink that blocks its thread.
struct Blocks(mpsc::SyncSender<()>, mpsc::Receiver<()>);

impl Sink for Blocks {
    async fn deliver(&mut self, _: &SequencedUpdate) -> Result<(), SinkError> {
        self.0.send(()).unwrap();
        // Blocks until the other end is dropped.
        let _ = self.1.recv();
        Ok(())
    }
}

#[test]
fn a_delivery_that_blocks_its_thread_stops_the_keep_alives() {
    // Enough threads for the other tasks.
    collected(Builder::new_multi_thread().worker_threads(3), async |log| {
        let (entered, enters) = mpsc::sync_channel(1);
        let (release, released) = mpsc::sync_channel(0);
        let mut upstream = Upstream::with(Blocks(entered, released));
        upstream.merge();
        let mut manager = ManagerDouble::new();
        let watched =
            systemd::Manager::from_environment(&manager.environment(Some(Duration::from_millis(200))));
        let blocked = async {
            upstream.publish("a");
            tokio::task::spawn_blocking(move || enters.recv().unwrap()).await.unwrap();
            // Earlier keep-alives are not counted. On a slow machine another task may be late, too.
            let error = move || {
                wait_for(|| log.lines_with("ERROR").into_iter().find(|line| line.contains("sink double")))
            };
            tokio::task::spawn_blocking(error).await.unwrap()
        };
        let running = watchdog(&watched, &upstream.mux, &upstream.heartbeats);
        let line = tokio::select! {
            () = running => unreachable!("the watchdog does not end"),
            line = blocked => line,
        };
        assert!(line.contains("sink double") && line.contains("does not run"), "{line}");
        let before = manager.all().len();
        drop(release);
        let again = watchdog(&watched, &upstream.mux, &upstream.heartbeats);
        tokio::select! {
            () = again => unreachable!("the watchdog does not end"),
            () = async { while manager.all().len() == before { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
    });
}
