//! What the service manager is told: the real binary, and the watchdog's judgement, at a double of systemd.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, net::UnixStream},
    path::Path,
    process::Command,
    sync::mpsc,
    time::Duration,
};

use podmux::{
    agent::{extend, watchdog},
    mux::{Mux, MuxLoop, Notify, SourceChannel},
    pod::{ListingBuilder, Origin, SourceName},
    sink::{Delivery, SequencedUpdate, Sink, SinkError},
    supervise::{Crew, Pulse},
    systemd,
};
use rustix::process::Signal;
use tokio::{runtime::Builder, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::pod,
    logs::collected,
    notify::Manager,
    process::{Process, full_pipe, podmux, podmux_run, wait_for},
    script,
    sinks::{Double, Manners},
    web::{Reply, Web},
};

/// How often signs of life are asked for where a process is watched: often, so that nobody waits.
const WATCHDOG_USEC: &str = "200000";

fn put(manifests: &Path, name: &str) {
    let staged = manifests.with_extension("staged");
    fs::write(&staged, pod(name, "i:1")).unwrap();
    fs::rename(staged, manifests.join(format!("{name}.yaml"))).unwrap();
}

fn ends_well(agent: Process) -> String {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_comes_when_every_source_was_seen_and_the_sockets_listen() {
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
    let mut manager = Manager::new();
    let socket = dir.path().join("s");
    let listen = format!("unix:{}", socket.display());
    let mut command = podmux_run(&manifests, &["--manifest-url", &web.url, "--listen", &listen]);
    let agent = Process::start(manager.starts(&mut command));

    manager.hears("STATUS=starting: waiting for source url; 1 pod");
    let early = manager.all().join("");
    assert!(!early.contains("READY"), "{early}");
    assert!(early.contains("EXTEND_TIMEOUT_USEC=60000000\n"), "{early}");
    open.send(()).unwrap();
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=2 pods\n");
    UnixStream::connect(&socket).unwrap();
    ends_well(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_does_not_keep_ready_back_and_is_told_until_it_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::new(503, "")).await;
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &["--manifest-url", &web.url]);
    let agent = Process::start(manager.starts(&mut command));
    let ready = manager.hears("READY=1");
    assert!(ready.contains("\nSTATUS=0 pods; url failing since 20"), "{ready}");
    assert!(ready.contains("Z: the server answered 503 Service Unavailable"), "{ready}");

    put(dir.path(), "a");
    manager.hears("STATUS=1 pod; url failing since …");
    web.say(Reply::ok(pod("b", "i:1")));
    agent.signal(Signal::HUP);
    manager.hears("STATUS=2 pods");
    ends_well(agent);
}

/// Everybody on the machine can read the status.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_refused_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = pod("b", "i:1").replace("image:", "env: [{name: PIN, value: 4711}]\n    image:");
    let web = Web::start(Reply::ok(manifest)).await;
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &["--manifest-url", &web.url]);
    let agent = Process::start(manager.starts(&mut command));
    let ready = manager.hears("READY=1");
    assert!(ready.ends_with("Z: its input is invalid; podmux get sources shows why\n"), "{ready}");
    ends_well(agent);
    assert!(!manager.all().concat().contains("4711"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_run_left_is_enough_to_be_ready() {
    let dir = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(pod("a", "i:1"))).await;
    let mut command = podmux(&["run", "--node-name", "node1", "--manifest-url", &web.url]);
    command.env("PODMUX_LISTEN", "none").env("PODMUX_STATE_DIR", dir.path());
    let mut manager = Manager::new();
    let agent = Process::start(manager.starts(&mut command));
    manager.hears("STATUS=1 pod");
    ends_well(agent);

    web.say(Reply::mute());
    let mut manager = Manager::new();
    let agent = Process::start(manager.starts(&mut command));
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=1 pod\n");
    let opening = "STATUS=starting\n";
    assert_eq!(manager.all()[..2], [opening, "EXTEND_TIMEOUT_USEC=60000000\n"]);
    ends_well(agent);
}

#[test]
fn a_storm_is_told_once_a_second_and_rest_is_silent() {
    const CHANGES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &[]);
    let agent = Process::start(manager.starts(command.env("WATCHDOG_USEC", WATCHDOG_USEC)));
    manager.hears("READY=1");
    let begun = std::time::Instant::now();
    for number in 1..=CHANGES {
        put(dir.path(), &format!("p{number}"));
        agent.holds("one more pod", |held| held.pods.len() == number);
    }
    manager.hears(&format!("STATUS={CHANGES} pods"));
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let statuses =
        |manager: &mut Manager| manager.all().iter().filter(|message| message.starts_with("STATUS=")).count();
    let told = statuses(&mut manager);
    // One at once, one for each second, and what was told before READY.
    assert!(told <= seconds + 4 && told < CHANGES, "{told} in {seconds} s");
    for _ in 0..20 {
        manager.hears("WATCHDOG=1");
    }
    assert_eq!(statuses(&mut manager), told);
    ends_well(agent);
}

#[test]
fn a_missing_directory_does_not_keep_ready_back() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    let mut manager = Manager::new();
    let agent = Process::start(manager.starts(&mut podmux_run(&manifests, &[])));
    let ready = manager.hears("READY=1");
    assert!(ready.contains("STATUS=0 pods; file failing since "), "{ready}");
    fs::create_dir(&manifests).unwrap();
    put(&manifests, "a");
    manager.hears("STATUS=1 pod");
    ends_well(agent);
    // More time that is asked for after READY would be the watchdog's, too.
    let heard = manager.all();
    let place = |line| heard.iter().position(|message| message.starts_with(line)).unwrap();
    let between = &heard[place("READY=1")..place("STOPPING=1")];
    assert!(!between.iter().any(|message| message.contains("EXTEND_TIMEOUT_USEC")), "{heard:#?}");
}

#[test]
fn a_stop_is_told_with_what_it_waits_for_and_how_long_it_may_take() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &["--shutdown-grace", "100s"]);
    let (unread, full) = full_pipe();
    let agent = Process::start(manager.starts(&mut command).stdout(full));
    manager.hears("READY=1");
    agent.signal(Signal::TERM);
    // Of the grace, the end of the process itself gets half a second; the margin is 5 s.
    let stopping = manager.hears("STOPPING=1");
    assert!(stopping.contains("\nEXTEND_TIMEOUT_USEC=104500000\n"), "{stopping}");
    // The sources may have ended by then, or not yet.
    let waiting = "STATUS=stopping: waiting for sink jsonl; 1 pod";
    if !stopping.contains(waiting) {
        manager.hears(waiting);
    }
    drop(unread);
    let (_, log) = agent.ends();
    assert!(log.contains("stopping: pending updates are delivered"), "{log}");
}

#[test]
fn a_reload_is_told_good_or_bad() {
    let dir = tempfile::tempdir().unwrap();
    let (manifests, config) = (dir.path().join("manifests"), dir.path().join("config.yaml"));
    fs::create_dir(&manifests).unwrap();
    fs::write(&config, "shutdownGrace: 5s\n").unwrap();
    let mut manager = Manager::new();
    let mut command = podmux_run(&manifests, &["--config", config.to_str().unwrap()]);
    let agent = Process::start(manager.starts(&mut command));
    manager.hears("READY=1");

    agent.signal(Signal::HUP);
    let reloading = manager.hears("RELOADING=1");
    // systemd takes a reload only if both stand in one datagram.
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().trim_end();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    let age = now - time.parse::<i64>().unwrap();
    assert!((0..600_000_000).contains(&age), "{age}");
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=0 pods\n");

    fs::write(&config, "shutdownGrace: soon\n").unwrap();
    agent.signal(Signal::HUP);
    manager.hears("RELOADING=1");
    let ready = manager.hears("READY=1");
    let refused = "STATUS=0 pods; reload failed, the previous settings stay in effect: ";
    assert!(ready.contains(refused) && ready.contains("shutdownGrace"), "{ready}");

    fs::write(&config, "shutdownGrace: 6s\n").unwrap();
    agent.signal(Signal::HUP);
    manager.hears("RELOADING=1");
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=0 pods\n");
    ends_well(agent);
    assert_eq!(manager.all().last().unwrap(), "STOPPING=1\nSTATUS=stopped\n");
}

#[test]
fn a_reload_whose_files_are_of_no_use_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "s3cret").unwrap();
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &["--token-file", token.to_str().unwrap()]);
    let agent = Process::start(manager.starts(&mut command));
    manager.hears("READY=1");

    fs::write(&token, "s3cret too").unwrap();
    agent.signal(Signal::HUP);
    manager.hears("RELOADING=1");
    let ready = manager.hears("READY=1");
    assert!(ready.contains("; settings reloaded, but token file "), "{ready}");
    assert!(!ready.contains("s3cret"), "{ready}");
    agent.logs("reload incomplete: a file that the settings name is invalid");

    fs::write(&token, "s3cret").unwrap();
    agent.signal(Signal::HUP);
    manager.hears("RELOADING=1");
    let ready = manager.hears("READY=1");
    assert!(!ready.contains("settings"), "{ready}");
    ends_well(agent);
}

#[test]
fn requests_in_hand_are_told_and_a_reader_that_goes_meanwhile_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut manager = Manager::new();
    let listen = format!("unix:{}", socket.display());
    let mut command = podmux_run(&dir.path().join("manifests"), &["--listen", &listen]);
    let (reader, writer) = std::io::pipe().unwrap();
    let agent = Process::start(manager.starts(&mut command).stdout(writer));
    drop(command);
    manager.hears("READY=1");
    let mut request = UnixStream::connect(&socket).unwrap();
    let head = "POST /pods HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n";
    request.write_all(head.as_bytes()).unwrap();
    let mut answer = BufReader::new(request.try_clone().unwrap());
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");

    agent.signal(Signal::TERM);
    let stopping = manager.hears("STOPPING=1");
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
fn what_a_manager_missed_is_told_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::new();
    let away = format!("{}.away", manager.name);
    fs::rename(&manager.name, &away).unwrap();
    let agent = Process::start(manager.starts(&mut podmux_run(dir.path(), &["-v"])));
    // That it starts, twice that it needs time, and that it is ready, more than once.
    agent.stderr.wait_for("one more try", |lines| {
        (lines.iter().filter(|line| line.contains("cannot be told")).count() > 5).then_some(())
    });
    fs::rename(&away, &manager.name).unwrap();
    manager.hears("READY=1");
    let log = ends_well(agent);
    assert_eq!(log.matches("recovered: the service manager can be told again").count(), 1, "{log}");
}

/// What it said last, and its exit code, when it was started so.
fn refused(manager: &mut Manager, command: &mut Command) -> (String, i32, String) {
    let (code, log) = Process::start(manager.starts(command)).ends();
    (manager.all().last().cloned().unwrap_or_default(), code, log)
}

#[test]
fn a_start_that_is_refused_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &["--shutdown-grace", "soon"]);
    let (told, code, log) = refused(&mut manager, &mut command);
    assert_eq!(code, 2);
    assert_eq!(format!("podmux: {}", told.strip_prefix("STATUS=").unwrap()), log + "\n");

    let (told, code, log) = refused(&mut manager, &mut podmux_run(dir.path(), &["--no-such-flag"]));
    assert_eq!(code, 2);
    assert_eq!(format!("podmux: {}", told.strip_prefix("STATUS=").unwrap()), log + "\n");

    let mut command = podmux_run(dir.path(), &[]);
    command.env("PODMUX_NODE_NAME", OsStr::from_bytes(b"\xff"));
    let (told, code, _) = refused(&mut manager, &mut command);
    assert_eq!((code, told.as_str()), (2, "STATUS=PODMUX_NODE_NAME: its value is not UTF-8 text\n"));

    let sink = format!("jsonl={}", dir.path().join("missing/updates.jsonl").display());
    let (told, code, _) = refused(&mut manager, &mut podmux_run(dir.path(), &["--sink", &sink]));
    assert_eq!(code, 2);
    assert!(told.starts_with("STATUS=cannot write updates to "), "{told}");
    assert!(told.ends_with(&format!("\nERRNO={}\n", rustix::io::Errno::NOENT.raw_os_error())), "{told}");
}

#[test]
fn a_failure_says_why() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &[]);
    let (unread, full) = full_pipe();
    let agent = Process::start(manager.starts(&mut command).stdout(full));
    manager.hears("READY=1");
    drop(unread);
    manager.hears("STATUS=task sink jsonl failed: sink jsonl ended at update …");
    assert_eq!(agent.ends().0, 1);
}

#[test]
fn only_the_agent_talks_to_the_manager() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::new();
    let mut command = podmux(&["validate", dir.path().join("missing").to_str().unwrap()]);
    let (told, code, log) = refused(&mut manager, &mut command);
    assert_ne!(code, 0, "{log}");
    assert_eq!(told, "");
    drop(refused(&mut manager, &mut podmux(&["get", "--no-such-flag"])));
    assert!(manager.all().is_empty());
}

#[test]
fn an_abstract_address_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::abstract_one();
    let agent = Process::start(manager.starts(&mut podmux_run(dir.path(), &[])));
    manager.hears("READY=1");
    ends_well(agent);
}

#[test]
fn a_manager_that_reads_nothing_or_is_gone_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut full = Manager::new();
    full.fill();
    let mut command = podmux_run(dir.path(), &[]);
    let agent = Process::start(full.starts(command.env("WATCHDOG_USEC", WATCHDOG_USEC)));
    agent.holds("the pod", |held| held.pods.contains_key("default/a-node1"));
    agent.signal(Signal::HUP);
    agent.logs("settings reloaded");
    put(dir.path(), "b");
    agent.holds("the other pod", |held| held.pods.contains_key("default/b-node1"));
    // It hears of it all once it reads again.
    full.hears("STATUS=2 pods");
    assert!(full.all().iter().any(|message| message.starts_with("READY=1\n")));
    full.fill();
    ends_well(agent);

    let gone = Manager::new().name;
    let mut command = podmux_run(dir.path(), &[]);
    let agent = Process::start(command.env("NOTIFY_SOCKET", gone).env("WATCHDOG_USEC", WATCHDOG_USEC));
    agent.holds("both pods", |held| held.pods.len() == 2);
    let log = ends_well(agent);
    assert_eq!(log.matches("cannot be told").count(), 1, "{log}");
}

#[test]
fn without_a_manager_nothing_is_said() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["", "relative", "vsock:2:1234"] {
        let mut command = podmux_run(dir.path(), &[]);
        let agent = Process::start(command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", WATCHDOG_USEC));
        agent.logs("started");
        let log = ends_well(agent);
        assert!(!log.contains("service manager"), "{log}");
    }
}

#[test]
fn a_sink_that_hangs_leaves_the_watchdog_fed() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a");
    let mut manager = Manager::new();
    let mut command = podmux_run(dir.path(), &[]);
    command.env("WATCHDOG_USEC", WATCHDOG_USEC);
    let (unread, full) = full_pipe();
    let agent = Process::start(manager.starts(&mut command).stdout(full));
    manager.hears("READY=1");
    // The pipe is full: whatever comes now comes while the sink hangs.
    manager.forget();
    for _ in 0..5 {
        manager.hears("WATCHDOG=1");
    }
    drop(unread);
    assert_eq!(agent.ends().0, 1);
}

#[test]
fn another_process_is_not_spoken_for() {
    let manager = Manager::new();
    let mut environment = manager.environment(Some(Duration::from_secs(30)));
    let watchdog = |environment: &_| systemd::Manager::named_in(environment).watchdog();
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
fn a_status_is_one_line_that_the_manager_takes() {
    let mut manager = Manager::new();
    let told = systemd::Manager::named_in(&manager.environment(None));
    told.tell_last(&[systemd::State::Status("one\nREADY=1\r\0two".to_owned())]);
    assert_eq!(manager.hears("STATUS=…"), "STATUS=one READY=1  two\n");
    told.tell_last(&[systemd::State::Status("ä".repeat(5000))]);
    let long = manager.hears("STATUS=…");
    assert!(long.len() <= "STATUS=\n".len() + 1024 && long.ends_with("ä…\n"), "{long}");
}

/// A mux, a sink's delivery beside it, and the pulse of that.
struct Upstream {
    mux: Mux,
    turning: Option<MuxLoop>,
    channel: SourceChannel,
    crew: Crew,
    pulses: Vec<Pulse>,
}

impl Upstream {
    fn with<S: Sink + 'static>(sink: S) -> Self {
        let (mux, turning) = Mux::new(&[SourceName::File]);
        let channel = mux.channel(SourceName::File).unwrap();
        let (delivery, _status) = Delivery::new("double", sink, mux.updates(Notify::Incremental));
        let stop = CancellationToken::new();
        let mut crew = Crew::new(stop.clone());
        crew.spawn_with_pulse("sink double", async { Ok(delivery.run(stop).await?) });
        let pulses = crew.take_pulses();
        Self { mux, turning: Some(turning), channel, crew, pulses }
    }

    fn turn(&mut self) {
        let turning = self.turning.take().unwrap();
        self.crew.spawn("mux", async {
            turning.run().await;
            Ok(())
        });
    }

    fn push(&self, name: &str) {
        let mut wanted = ListingBuilder::new(SourceName::File);
        wanted.put(&Origin::from("a.yaml"), vec![script::pod(name)], jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(wanted.listing());
    }

    /// Feeds the watchdog until the manager has heard so many signs of life.
    async fn feeds(&self, manager: &mut Manager, times: usize) {
        let watched = systemd::Manager::named_in(&manager.environment(Some(Duration::from_secs(30))));
        let mut fed = 0;
        let heard = async {
            while fed < times {
                tokio::time::sleep(Duration::from_secs(1)).await;
                fed = manager.all().iter().filter(|message| *message == "WATCHDOG=1\n").count();
            }
        };
        tokio::select! {
            () = watchdog(&watched, &self.mux, &self.pulses) => unreachable!("it feeds for ever"),
            () = heard => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_waits_turns() {
    let (_closed, gate) = watch::channel(false);
    for manners in [Manners::Takes, Manners::HangsUntil(gate), Manners::Fails(usize::MAX)] {
        let (double, mut diary) = Double::new(manners);
        let mut upstream = Upstream::with(double);
        upstream.turn();
        // First it waits for updates, then for what its sink does with them.
        upstream.feeds(&mut Manager::new(), 3).await;
        upstream.push("a");
        diary.wait_for(|diary| !diary.attempts.is_empty()).await.unwrap();
        upstream.feeds(&mut Manager::new(), 3).await;
    }
}

/// A first look that hangs is not waited for without end.
#[tokio::test(start_paused = true)]
async fn a_start_asks_for_a_quarter_of_an_hour_at_most() {
    let (double, _diary) = Double::new(Manners::Takes);
    let mut upstream = Upstream::with(double);
    upstream.turn();
    let mut manager = Manager::new();
    let told = systemd::Manager::named_in(&manager.environment(None));
    let reading = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            manager.all();
        }
    };
    tokio::select! {
        () = extend(&told, &upstream.mux, Instant::now()) => {}
        () = reading => {}
    }
    assert_eq!(manager.all().len(), 15 * 3, "one in 20 seconds");
}

#[test]
fn a_merge_loop_that_does_not_turn_gets_no_sign_of_life() {
    let paused = &mut Builder::new_current_thread();
    collected(paused.start_paused(true), async |log| {
        let (double, _diary) = Double::new(Manners::Takes);
        let mut upstream = Upstream::with(double);
        let mut manager = Manager::new();
        let hour = tokio::time::sleep(Duration::from_hours(1));
        tokio::select! {
            () = upstream.feeds(&mut manager, 1) => panic!("fed"),
            () = hour => {}
        }
        assert!(manager.all().is_empty());
        let said = log.lines_with("ERROR");
        assert!(
            said.len() == 1 && said[0].contains("does not run for 7.5s") && said[0].contains("mux"),
            "{said:?}"
        );
        upstream.turn();
        upstream.feeds(&mut manager, 2).await;
    });
}

/// A sink that holds its thread.
struct Blocks(mpsc::SyncSender<()>, mpsc::Receiver<()>);

impl Sink for Blocks {
    async fn deliver(&mut self, _: &SequencedUpdate) -> Result<(), SinkError> {
        self.0.send(()).unwrap();
        // Until the other end is dropped.
        let _ = self.1.recv();
        Ok(())
    }
}

#[test]
fn a_delivery_that_holds_its_thread_gets_no_sign_of_life() {
    // One thread more than what is blocked, so that the rest goes on.
    collected(Builder::new_multi_thread().worker_threads(3), async |log| {
        let (entered, enters) = mpsc::sync_channel(1);
        let (release, released) = mpsc::sync_channel(0);
        let mut upstream = Upstream::with(Blocks(entered, released));
        upstream.turn();
        let mut manager = Manager::new();
        let watched = systemd::Manager::named_in(&manager.environment(Some(Duration::from_millis(200))));
        let blocked = async {
            upstream.push("a");
            tokio::task::spawn_blocking(move || enters.recv().unwrap()).await.unwrap();
            // Whoever was fed before it was blocked was fed.
            tokio::task::spawn_blocking(move || wait_for(|| log.lines_with("ERROR").first().cloned()))
                .await
                .unwrap()
        };
        let feeding = watchdog(&watched, &upstream.mux, &upstream.pulses);
        let said = tokio::select! {
            () = feeding => unreachable!("it feeds for ever"),
            said = blocked => said,
        };
        assert!(said.contains("sink double") && said.contains("does not run"), "{said}");
        let before = manager.all().len();
        drop(release);
        let again = watchdog(&watched, &upstream.mux, &upstream.pulses);
        tokio::select! {
            () = again => unreachable!("it feeds for ever"),
            () = async { while manager.all().len() == before { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
    });
}
