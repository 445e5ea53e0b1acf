//! `podmux run` as a user runs it.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    process::{Resource, Rlimit, Signal, prlimit},
};
use serde_json::Value;

use crate::support::{
    process::{Process, full_pipe, on_a_terminal, podmux, podmux_run, wait_for},
    stream::Replica,
};

fn write_pod(directory: &Path, name: &str, image: &str) {
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
    );
    // Renamed into the directory, so that the file is complete.
    let temporary = directory.join(format!(".{name}.tmp"));
    fs::write(&temporary, pod).unwrap();
    fs::rename(temporary, directory.join(format!("{name}.yaml"))).unwrap();
}

fn stop(agent: Process) -> String {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    log
}

#[test]
fn every_change_in_the_directory_is_printed_in_order() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    let agent = Process::start(&mut podmux_run(manifests.path(), &[]));
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    write_pod(manifests.path(), "web", "web:2");
    agent.holds("the new web", |held| {
        held.pods.get("default/web-node1").is_some_and(|pod| pod.contains("web:2"))
    });
    write_pod(manifests.path(), "db", "db:1");
    agent.holds("db", |held| held.pods.contains_key("default/db-node1"));
    fs::remove_file(manifests.path().join("web.yaml")).unwrap();
    let held = agent.holds("no web", |held| !held.pods.contains_key("default/web-node1"));
    stop(agent);
    assert_eq!(held.heard, ["1 ADD file 1", "2 UPDATE file 1", "3 ADD file 1", "4 REMOVE file 1"]);
}

#[test]
fn an_empty_directory_gives_an_empty_add() {
    let manifests = tempfile::tempdir().unwrap();
    let agent = Process::start(&mut podmux_run(manifests.path(), &[]));
    assert_eq!(agent.holds("anything", |held| held.seq > 0).heard, ["1 ADD file 0"]);
    stop(agent);
}

#[test]
fn several_sinks_receive_the_same_updates_each_with_its_own_seq() {
    let manifests = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("updates.jsonl");
    write_pod(manifests.path(), "web", "web:1");
    let file = format!("jsonl={}", path.display());
    let agent = Process::start(&mut podmux_run(manifests.path(), &["--sink", "jsonl", "--sink", &file]));
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    let file = || Replica::of(&fs::read_to_string(&path).unwrap());
    wait_for(|| (file().heard.len() == 4).then_some(()));
    write_pod(manifests.path(), "db", "db:1");
    let held = agent.holds("db", |held| held.pods.contains_key("default/db-node1"));
    stop(agent);
    // Standard output begins with ADDs and line 1, a file with SETs and the number of the agent.
    assert_eq!(held.heard, ["1 ADD file 1", "2 ADD file 1"]);
    let file = file();
    assert_eq!(file.pods, held.pods);
    assert!(file.run.is_some() && held.run.is_none() && file.seq > 1_000_000_000_000_000, "{file:?}");
    let mut heard: Vec<&str> = file.heard.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    heard[..4].sort_unstable();
    assert_eq!(heard, ["SET api 0", "SET file 1", "SET http 0", "SET url 0", "ADD file 1"]);
}

#[test]
fn a_snapshot_sink_receives_sets() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    let agent = Process::start(&mut podmux_run(manifests.path(), &["--notify", "snapshot"]));
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    write_pod(manifests.path(), "db", "db:1");
    let held = agent.holds("db", |held| held.pods.contains_key("default/db-node1"));
    assert_eq!(held.heard, ["1 SET * 1", "2 SET * 2"]);
    stop(agent);
}

#[test]
fn a_snapshot_sink_receives_the_set_of_each_source_while_one_is_not_known() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    let listing = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/pods", listing.local_addr().unwrap());
    let mut command = podmux_run(manifests.path(), &["--notify", "snapshot", "--manifest-url", &url]);
    let agent = Process::start(&mut command);
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    write_pod(manifests.path(), "db", "db:1");
    let held = agent.holds("db", |held| held.pods.contains_key("default/db-node1"));
    assert_eq!(held.heard, ["1 SET file 1", "2 SET file 2"]);
    // The answer comes now: the next snapshots are of all sources.
    let list = r#"{"apiVersion":"v1","kind":"PodList","items":[]}"#;
    let (mut asked, _) = listing.accept().unwrap();
    assert!(asked.read(&mut [0; 1024]).unwrap() > 0);
    write!(asked, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len()).unwrap();
    let held = agent.holds("all", |held| held.seq == 3);
    assert_eq!(held.heard[2], "3 SET * 2");
    stop(agent);
}

#[test]
fn a_reader_that_closes_a_quiet_stream_ends_the_agent_with_1() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = podmux_run(manifests.path(), &[]);
    let agent = Process::start(command.stdout(writer));
    drop(command);
    let mut line = String::new();
    let mut reader = std::io::BufReader::new(reader);
    std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
    drop(reader);
    let (code, log) = agent.ends();
    assert_eq!(code, 1, "{log}");
    let reason = "task sink jsonl failed: sink jsonl failed at update 2: \
                  the sink accepts no more updates: the reader of stdout has closed it";
    assert!(log.ends_with(reason), "{log}");
}

#[test]
fn a_reader_that_closes_before_the_first_line_ends_the_agent_with_1() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = podmux_run(manifests.path(), &[]);
    let agent = Process::start(command.stdout(writer));
    let (code, log) = agent.ends();
    assert_eq!(code, 1, "{log}");
    assert!(log.ends_with("the reader of stdout has closed it"), "{log}");
}

#[test]
fn a_sink_that_cannot_be_opened_is_an_error_at_the_start() {
    let manifests = tempfile::tempdir().unwrap();
    let agent = Process::start(&mut podmux_run(manifests.path(), &["--sink", "jsonl=/no/such/directory/x"]));
    let (code, log) = agent.ends();
    assert_eq!(code, 2, "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("/no/such/directory/x") && log.contains("No such file or directory"), "{log}");
}

/// A limit on the size of files acts like a full disk: writes are short, then fail.
#[test]
fn a_line_cut_off_by_a_full_disk_is_completed_when_there_is_space() {
    let manifests = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("updates.jsonl");
    (0..40).for_each(|number| write_pod(manifests.path(), &format!("p{number}"), "i:1"));
    let run = podmux_run(manifests.path(), &["--sink", &format!("jsonl={}", path.display())]);
    let mut command = std::process::Command::new("sh");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.args(["-c", "ulimit -S -f 8; exec \"$@\"", "sh"]);
    command.arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let agent = Process::start(&mut command);

    let failing = agent.logs("sink delivery failed");
    assert!(failing.contains("File too large") && failing.contains("WARN"), "{failing}");
    let cut = fs::read_to_string(&path).unwrap();
    let piece = cut.lines().last().unwrap();
    assert!(piece.contains(r#""op":"SET","source":"file""#) && !cut.ends_with('\n'), "a piece of a line");
    prlimit(Some(agent.pid()), Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
    agent.logs("sink recovered");
    write_pod(manifests.path(), "last", "i:1");
    let text = wait_for(|| {
        fs::read_to_string(&path).ok().filter(|text| text.contains("last-node1") && text.ends_with('\n'))
    });
    let log = stop(agent);
    assert_eq!(log.matches("File too large").count(), 1, "a warning once:\n{log}");
    assert!(text.starts_with(&cut));
    let replica = Replica::of(&text);
    assert_eq!(replica.pods.len(), 41);
    let of_the_file: Vec<&str> = replica
        .heard
        .iter()
        .filter_map(|line| Some(line.split_once(' ')?.1))
        .filter(|line| line.contains("file"))
        .collect();
    assert_eq!(of_the_file, ["SET file 40", "ADD file 1"]);
}

#[test]
fn sighup_reloads_the_settings_and_rejects_invalid_ones() {
    let manifests = tempfile::tempdir().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    let write =
        |text: &str| fs::write(config.path(), format!("kind: PodmuxConfiguration\n{text}\n")).unwrap();
    write("shutdownGrace: 9s");
    let args = ["--config", config.path().to_str().unwrap()];
    let agent = Process::start(&mut podmux_run(manifests.path(), &args));
    agent.holds("the first sight", |held| held.seq == 1);

    write("shutdownGrace: never");
    agent.signal(Signal::HUP);
    let failed = agent.logs("reload failed: invalid settings; the previous ones stay in effect");
    assert!(failed.contains("shutdownGrace") && failed.contains("never"), "{failed}");

    write("shutdownGrace: 8s\nverbose: 1\nsink: [jsonl=/elsewhere]");
    agent.signal(Signal::HUP);
    let ignored = agent.logs("takes effect only after a restart");
    assert!(ignored.contains("setting=\"sink\""), "{ignored}");
    agent.logs("settings reloaded");
    let log = stop(agent);
    assert!(log.contains("DEBUG"), "the log says more from now on:\n{log}");
}

#[test]
fn sighup_applies_the_policy_for_invalid_manifests() {
    let manifests = tempfile::tempdir().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    let write =
        |text: &str| fs::write(config.path(), format!("kind: PodmuxConfiguration\n{text}\n")).unwrap();
    write("onInvalidManifest: keep");
    write_pod(manifests.path(), "web", "web:1");
    let args = ["--config", config.path().to_str().unwrap(), "--file-check-frequency", "1h"];
    let agent = Process::start(&mut podmux_run(manifests.path(), &args));
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    fs::write(manifests.path().join("web.yaml"), "kind: [").unwrap();
    agent.logs("manifest rejected");
    agent.signal(Signal::HUP);
    agent.logs("settings reloaded");
    write("onInvalidManifest: remove");
    agent.signal(Signal::HUP);
    let held = agent.holds("no web", |held| held.pods.is_empty() && held.seq > 1);
    assert_eq!(held.heard, ["1 ADD file 1", "2 REMOVE file 1"]);
    stop(agent);
}

#[test]
fn sighup_rescans_all_manifests() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    let path = manifests.path().join("web.yaml");
    let agent = Process::start(&mut podmux_run(manifests.path(), &["--file-check-frequency", "1h"]));
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    // A write to a file that stays open causes no event.
    let text = fs::read_to_string(&path).unwrap().replace("web:1", "web:2");
    let mut file = File::options().write(true).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    agent.signal(Signal::HUP);
    agent.holds("the new web", |held| held.pods.values().any(|pod| pod.contains("web:2")));
    stop(agent);
    drop(file);
}

/// Another process that shares it may have made it non-blocking.
#[test]
fn no_line_of_the_log_is_lost_if_stderr_is_non_blocking_and_read_late() {
    let manifests = tempfile::tempdir().unwrap();
    write_pod(manifests.path(), "web", "web:1");
    fs::write(manifests.path().join("bad.yaml"), "a: [").unwrap();
    let (reader, full) = full_pipe();
    fcntl_setfl(&full, OFlags::NONBLOCK).unwrap();
    let agent = Process::start(podmux_run(manifests.path(), &[]).stderr(full));
    agent.holds("web", |held| held.pods.contains_key("default/web-node1"));
    agent.stderr.read(reader);
    agent.logs("started");
    agent.logs("manifest rejected");
    stop(agent);
}

#[test]
fn the_log_is_json_with_log_format_json() {
    let manifests = tempfile::tempdir().unwrap();
    fs::write(manifests.path().join("bad.yaml"), "kind: [").unwrap();
    let agent = Process::start(&mut podmux_run(manifests.path(), &["--log-format", "json"]));
    agent.logs("bad.yaml");
    let log = stop(agent);
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        for field in ["timestamp", "level", "message", "target"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
    let bad = lines.iter().find(|line| line["path"].as_str().is_some_and(|path| path.ends_with("bad.yaml")));
    let bad = bad.expect("the fixed field `path`");
    assert_eq!((bad["source"].as_str(), bad["error"].is_string()), (Some("file"), true), "{bad}");
}

/// The log of an agent whose stderr is the journal, or only claims to be.
fn logged_to_the_journal(args: &[&str], really: bool) -> String {
    let manifests = tempfile::tempdir().unwrap();
    fs::write(manifests.path().join("bad.yaml"), "kind: [").unwrap();
    let logs = tempfile::NamedTempFile::new().unwrap();
    let stream = logs.as_file().metadata().unwrap();
    let inode = if really { stream.ino() } else { stream.ino() + 1 };
    let mut command = podmux_run(manifests.path(), args);
    command.env("JOURNAL_STREAM", format!("{}:{inode}", stream.dev()));
    let agent = Process::start(command.stderr(File::create(logs.path()).unwrap()));
    wait_for(|| fs::read_to_string(logs.path()).unwrap().contains("bad.yaml").then_some(()));
    stop(agent);
    let log = fs::read_to_string(logs.path()).unwrap();
    log.replace(manifests.path().to_str().unwrap(), "@")
}

/// The level as in sd-daemon(3). The journal adds time and program by itself.
#[test]
fn lines_for_the_journal_begin_with_the_level_and_have_no_time() {
    let log = logged_to_the_journal(&["-v"], true);
    let lines: Vec<&str> = log.lines().collect();
    let begins = |text: &str| lines.iter().any(|line| line.starts_with(text));
    assert!(begins("<6>podmux::agent: started version="), "{log}");
    assert!(begins("<4>podmux::source::file::worker: manifest rejected"), "{log}");
    assert!(begins("<6>podmux::agent::shutdown: stopped"), "{log}");
    for line in lines {
        assert!(line.starts_with('<') && line.as_bytes()[2] == b'>', "{line}");
        for word in ["INFO", "WARN", "DEBUG", "\u{1b}"] {
            assert!(!line.contains(word), "{line}");
        }
    }
    let log = logged_to_the_journal(&[], false);
    assert!(log.starts_with("20") && log.contains("INFO started") && !log.contains('\u{1b}'), "{log}");
}

#[test]
fn json_lines_for_the_journal_follow_their_level() {
    let log = logged_to_the_journal(&["--log-format", "json"], true);
    let mut warned = false;
    for line in log.lines() {
        let (priority, json) = line.split_at(3);
        let line: Value = serde_json::from_str(json).unwrap();
        assert_eq!(priority, if line["level"] == "WARN" { "<4>" } else { "<6>" }, "{line}");
        warned |= priority == "<4>";
    }
    assert!(warned, "{log}");
}

#[test]
fn the_error_of_a_failed_start_has_its_level_in_the_journal() {
    let logs = tempfile::NamedTempFile::new().unwrap();
    let stream = logs.as_file().metadata().unwrap();
    for args in [&["run", "--notify", "never"][..], &["run", "--check", "--notify", "never"]] {
        let mut command = podmux(args);
        command.env("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino()));
        let (code, _) = Process::start(command.stderr(File::create(logs.path()).unwrap())).ends();
        let log = fs::read_to_string(logs.path()).unwrap();
        assert_eq!((code, log.lines().count()), (2, 1), "{log}");
        assert!(log.starts_with("<3>--notify"), "{log}");
    }
}

#[test]
fn a_terminal_shows_a_summary_and_a_table_of_updates() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("m")).unwrap();
    write_pod(&dir.path().join("m"), "web", "web:1");
    fs::write(dir.path().join("m/bad.yaml"), "kind: Pod").unwrap();
    let run = |sink: &str| {
        let script = format!(
            "\"$0\" run --pod-manifest-path m --node-name node1 --listen unix:s --state-dir none {sink} & \
             until \"$0\" get pod web-node1 --server unix:s > /dev/null 2>&1; do :; done; kill -INT $!; wait $!"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_podmux")]).env_clear().current_dir(&dir);
        on_a_terminal(command).replace("\r\n", "\n")
    };
    let shown = run("");
    let summary = "podmux 0.1.0 on node node1\n  source file m: 1 pod, 1 rejected, see podmux get sources\n  \
                   source http posted pods, in memory only: 0 pods\n  sink        table\n  state       none: nothing survives a restart\n  \
                   listen      unix:s\nIn another terminal: podmux get pods -A --server unix:s. Ctrl-C stops the agent.\n";
    assert!(shown.contains(summary), "{shown}");
    assert!(shown.contains("SEQ    TIME                   OP          SOURCE   PODS\n1      20"), "{shown}");
    assert!(shown.contains("   \u{1b}[32mADD      \u{1b}[0m   file     default/web-node1\n"), "{shown}");
    assert!(!shown.contains("containers"), "{shown}");
    assert!(run("--sink jsonl").contains(r#"{"seq":1,"#));
    let plain = run("--sink table");
    assert!(plain.contains("   ADD         file     default/web-node1\n"), "{plain}");
}
