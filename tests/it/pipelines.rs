//! Ctrl-C and closed pipes: whatever ends a pipeline ends podmux cleanly. In a real terminal with a real process group.

use std::{
    fs,
    io::Read as _,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::json;

use crate::support::{
    agent::{Agent, Reply},
    files::pod,
    process::{PATIENCE, Screen, terminal},
    program::write_program,
};

/// A shell on a terminal of its own, whose Ctrl-C reaches the processes of its foreground.
struct Terminal {
    screen: Screen,
    shown: String,
    shell: std::process::Child,
}

impl Terminal {
    /// Runs a script, with `$podmux` as the program and the directory as its own.
    fn run(directory: &std::path::Path, script: &str) -> Self {
        let (screen, theirs) = terminal();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "bash", "-c", script]).env_clear().current_dir(directory);
        command.env("podmux", env!("CARGO_BIN_EXE_podmux")).env("PATH", std::env::var_os("PATH").unwrap());
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let shell = command.spawn().unwrap();
        // The command holds the other end of the terminal open.
        drop(command);
        Self { screen, shown: String::new(), shell }
    }

    /// Waits until the terminal shows a text.
    fn shows(&mut self, text: &str) {
        while !self.shown.contains(text) {
            let mut buffer = [0; 4096];
            let count = self.screen.read(&mut buffer).unwrap();
            assert!(count > 0, "no {text:?}:\n{}", self.shown);
            self.shown += &String::from_utf8_lossy(&buffer[..count]);
        }
    }

    fn press_ctrl_c(&mut self) {
        self.screen.types(b"\x03");
    }

    /// What it has shown at the end of the shell.
    fn ends(mut self) -> String {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).unwrap();
        self.shell.wait().unwrap();
        self.shown + &String::from_utf8_lossy(&rest)
    }
}

/// Runs a check on a thread, and fails if it takes too long.
fn in_time(check: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        check();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap(),
    }
}

/// The run of an agent whose reader is `reader`, until Ctrl-C. Returns what the terminal has shown.
fn interrupted(reader: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("m")).unwrap();
    fs::write(dir.path().join("m/web.yaml"), pod("web", "i:1")).unwrap();
    // The shell notes the exit codes after Ctrl-C.
    let script = format!(
        "trap : INT; $podmux run --pod-manifest-path m --node-name n1 --listen none --state-dir none {reader}; \
         echo codes ${{PIPESTATUS[*]}}"
    );
    let mut terminal = Terminal::run(dir.path(), &script);
    terminal.shows("web-n1");
    terminal.press_ctrl_c();
    terminal.ends()
}

#[test]
fn ctrl_c_on_a_pipeline_stops_the_agent_cleanly_whoever_ends_first() {
    in_time(|| {
        // `cat` dies of the signal; `sed` and a reader that ignores it end with the agent's output.
        for (reader, codes) in [
            ("", "codes 0"),
            ("| cat", "codes 0 130"),
            ("| python3 -u -c 'import sys\nfor line in sys.stdin: print(line)' 2>/dev/null", "codes 0"),
            ("| (trap '' INT; exec cat)", "codes 0 0"),
        ] {
            let shown = interrupted(reader);
            assert!(shown.contains(codes), "{reader}:\n{shown}");
            for error in ["ERROR", "failed", "WARN", "has closed it"] {
                assert!(!shown.contains(error), "{reader}:\n{shown}");
            }
        }
    });
}

/// The other order for certain: the reader ends first, and the signal follows.
#[test]
fn a_reader_that_ends_just_before_the_signal_is_no_failure() {
    in_time(|| {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("m")).unwrap();
        fs::write(dir.path().join("m/web.yaml"), pod("web", "i:1")).unwrap();
        // The reader interrupts its group with its last act, when its end of the pipe is closed.
        let reader = dir.path().join("reader");
        write_program(&reader, "#!/bin/bash\nread -r line\nexec 0<&-\nkill -INT 0\n");
        let script = "trap : INT; $podmux run --pod-manifest-path m --node-name n1 --listen none --state-dir none \
                      | ./reader; echo codes ${PIPESTATUS[*]}";
        let shown = Terminal::run(dir.path(), script).ends();
        assert!(shown.contains("codes 0 130"), "{shown}");
        assert!(!shown.contains("ERROR"), "{shown}");
    });
}

#[test]
fn a_reader_that_closes_ends_each_command_silently() {
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [
        {"metadata": {"namespace": "default", "name": "web"}},
    ]});
    let agent = Agent::start(move |asked, _| match &asked.line {
        line if line.contains("/updates") => {
            Reply::text(200, "{\"seq\":1,\"op\":\"SET\",\"pods\":[]}\n".repeat(10_000))
        }
        _ => Reply::json(200, &list),
    });
    for args in [
        &["get", "updates"][..],
        &["get", "updates", "-o", "jsonl"],
        &["get", "pods", "-o", "json"],
        &["get", "sources", "-o", "json"],
        &["help"],
        &["completion", "bash"],
    ] {
        let mut command = agent.podmux(args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn a_log_that_ends_with_the_agent_says_so() {
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}]}});
    let checks = "[+]source-file ok\n[-]shutdown failed: the agent is shutting down\nreadyz check failed\n";
    for (readiness, code, said) in [
        (Reply::text(200, "readyz check passed\n"), 0, ""),
        (
            Reply::text(503, checks),
            1,
            "podmux: the agent has stopped: the log ends here; run the command again when it runs\n",
        ),
    ] {
        let pod = pod.clone();
        let agent = Agent::start(move |asked, _| match &asked.line {
            line if line.contains("/log") => Reply::text(200, "hello\n"),
            line if line.contains("/readyz") => readiness.clone(),
            _ => Reply::json(200, &pod),
        });
        let output = agent.podmux(&["logs", "-f", "web"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello\n");
        assert_eq!((output.status.code(), &*String::from_utf8(output.stderr).unwrap()), (Some(code), said));
    }
}

/// A command that follows is killed by Ctrl-C alone and says nothing.
#[test]
fn ctrl_c_ends_a_command_that_follows_without_a_message() {
    in_time(|| {
        let agent = Agent::start(|_, _| {
            Reply::text(200, "{\"seq\":1,\"run\":\"r\",\"op\":\"SET\",\"source\":\"file\",\"pods\":[]}\n")
        });
        let dir = tempfile::tempdir().unwrap();
        let script =
            format!("trap : INT; $podmux get updates --server {} -o jsonl; echo code $?", agent.server());
        let mut terminal = Terminal::run(dir.path(), &script);
        terminal.shows("reconnecting");
        terminal.press_ctrl_c();
        let shown = terminal.ends();
        assert!(shown.contains("code 130"), "{shown}");
        assert!(!shown.contains("podmux:"), "{shown}");
    });
}
