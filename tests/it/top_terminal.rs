//! `podmux top` on a real terminal, against a real agent.

use std::{env, fs, process::Command, thread, time::Instant};

use podmux::cli::top::guard::Guard;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    files::pod,
    process::{Process, on_a_terminal, podmux, podmux_run},
    screen::OnScreen,
};

/// Tells a process of this test that it shall panic.
const PANICS: &str = "PODMUX_TEST_PANICS";

/// A real agent with two pods.
struct Real {
    dir: TempDir,
    agent: Process,
}

impl Real {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("m")).unwrap();
        for name in ["web", "db"] {
            fs::write(dir.path().join(format!("m/{name}.yaml")), pod(name, "i:1")).unwrap();
        }
        let agent = Self::run(&dir);
        Self { dir, agent }
    }

    fn run(dir: &TempDir) -> Process {
        let agent = Process::start(&mut podmux_run(&dir.path().join("m"), &["--listen", &address(dir)]));
        agent.logs("listening");
        agent
    }

    fn podmux(&self, args: &[&str]) -> Command {
        let mut command = podmux(args);
        command.env("PODMUX_SERVER", address(&self.dir)).env("TERM", "xterm-256color");
        command
    }

    fn top(&self, columns: u16, rows: u16) -> OnScreen {
        let top = OnScreen::start(&self.podmux(&["top"]), columns, rows);
        top.shows("the pods", |screen| screen.contains("web-node1") && screen.contains("q quit"));
        top
    }

    fn write(&self, name: &str, image: &str) {
        let path = self.dir.path().join("m");
        fs::write(path.join(".new"), pod(name, image)).unwrap();
        fs::rename(path.join(".new"), path.join(format!("{name}.yaml"))).unwrap();
    }
}

fn address(dir: &TempDir) -> String {
    format!("unix:{}", dir.path().join("s").display())
}

#[test]
fn the_screen_shows_sources_pods_and_updates_as_they_flow() {
    let real = Real::start();
    let mut top = real.top(80, 24);
    let shown = top.shows("the sources", |screen| screen.contains("synced"));
    for text in ["podmux top   2 pods", "SOURCE", "synced", "default    db-node1", "Wanted"] {
        assert!(shown.contains(text), "{text}:\n{shown}");
    }
    real.write("new", "i:1");
    let shown = top.shows("a new pod", |screen| screen.contains("3 pods") && screen.contains("ADD"));
    assert!(shown.contains("default/new-node1"), "{shown}");
    real.write("new", "i:2");
    top.shows("its update", |screen| screen.contains("UPDATE  file"));
    fs::remove_file(real.dir.path().join("m/new.yaml")).unwrap();
    top.shows("its end", |screen| screen.contains("podmux top   2 pods") && screen.contains("REMOVE"));
    top.press("q");
    assert_eq!(top.ends(), (Some(0), String::new()));
}

#[test]
fn keys_filter_and_open_pods() {
    let real = Real::start();
    let mut top = real.top(80, 24);
    top.press("/web");
    top.shows("the filter", |screen| screen.contains("1 of 2 pods") && screen.contains("filter: web_"));
    top.press("\r\r");
    let shown = top
        .shows("the open pod", |screen| screen.contains("pod default/web-node1") && screen.contains("i:1"));
    assert!(shown.contains("Status     Wanted") && shown.contains("Node       node1"), "{shown}");
    // What changes is shown.
    real.write("web", "i:2");
    top.shows("its new image", |screen| screen.contains("i:2"));
    fs::remove_file(real.dir.path().join("m/web.yaml")).unwrap();
    top.shows("its end", |screen| screen.contains("the pod is gone"));
    // A single Esc is a key once no further byte of a sequence has come.
    top.press("\u{1b}");
    top.shows("the list", |screen| screen.contains("0 of 1 pod "));
    top.press("\u{1b}");
    top.shows("all pods", |screen| screen.contains("podmux top   1 pod "));
    top.press("\u{1b}");
    assert_eq!(top.ends(), (Some(0), String::new()));
}

#[test]
fn the_screen_follows_the_size_of_the_terminal_down_to_nothing() {
    let real = Real::start();
    let mut top = real.top(80, 24);
    top.resize(10, 5);
    top.shows("ten columns", |screen| screen.lines().count() <= 5 && screen.contains("web-node1"));
    for (columns, rows) in [(1, 1), (3, 2), (10, 1)] {
        top.resize(columns, rows);
    }
    top.resize(120, 40);
    top.shows("all columns", |screen| screen.contains("RESTARTS") && screen.contains("TARGET"));
    top.press("\u{3}");
    assert_eq!(top.ends(), (Some(0), String::new()));
}

#[test]
fn signals_end_it_and_restore_the_terminal() {
    let real = Real::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let top = real.top(80, 24);
        top.signal(signal);
        assert_eq!(top.ends(), (Some(0), String::new()), "{signal:?}");
    }
}

#[test]
fn an_agent_that_stops_is_reported_and_found_again() {
    let mut real = Real::start();
    let mut top = real.top(80, 24);
    real.agent.signal(Signal::TERM);
    let shown = top.shows("the loss", |screen| screen.contains("connection lost"));
    assert!(shown.contains("ago: ") && shown.contains("web-node1"), "the last state stays:\n{shown}");
    fs::remove_file(real.dir.path().join("m/web.yaml")).unwrap();
    real.agent = Real::run(&real.dir);
    top.shows("the new agent", |screen| {
        !screen.contains("connection lost") && screen.contains("podmux top   1 pod ")
    });
    real.write("new", "i:1");
    top.shows("its updates", |screen| screen.contains("ADD") && screen.contains("default/new-node1"));
    top.press("q");
    assert_eq!(top.ends(), (Some(0), String::new()));
}

#[test]
fn without_an_agent_the_error_is_that_of_other_commands() {
    let real = Real::start();
    real.agent.signal(Signal::TERM);
    assert_eq!(real.agent.ends().0, 0);
    let server = address(&real.dir);
    let run = |args: &[&str]| {
        let mut command = podmux(args);
        command.env("PODMUX_SERVER", &server).env("TERM", "xterm");
        let (code, screen) = OnScreen::start(&command, 200, 24).ends();
        (code, screen.trim_end().to_owned())
    };
    let (code, error) = run(&["top"]);
    assert_eq!((code, &error), (Some(1), &run(&["get", "pods", "-A"]).1));
    assert!(error.starts_with("podmux: "), "{error}");
}

#[test]
fn without_a_usable_terminal_it_says_what_to_use() {
    let output = podmux(&["top"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "podmux: podmux top needs a terminal: use podmux get pods -A --watch, or podmux get updates\n"
    );
    let mut command = podmux(&["top"]);
    assert!(on_a_terminal(command).contains("needs a terminal"), "the standard input is none");
    for terminal in [None, Some("dumb")] {
        command = podmux(&["top"]);
        command.envs(terminal.map(|terminal| ("TERM", terminal)));
        let (code, shown) = OnScreen::start(&command, 160, 24).ends();
        assert_eq!(code, Some(2));
        assert!(shown.contains("this terminal cannot position the cursor"), "{shown}");
        assert!(shown.contains("use podmux get pods -A --watch"), "{shown}");
    }
}

#[test]
fn no_color_writes_no_colour() {
    let real = Real::start();
    let colours = |raw: &str| {
        ["\u{1b}[38;", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m"].iter().any(|code| raw.contains(code))
    };
    for (value, expected) in [("", true), ("1", false)] {
        let mut command = real.podmux(&["top"]);
        command.env("NO_COLOR", value);
        let mut top = OnScreen::start(&command, 80, 24);
        top.shows("the pods", |screen| screen.contains("web-node1"));
        real.write("web", &format!("i:{}", value.len()));
        top.shows("an update", |screen| screen.contains("UPDATE  file"));
        assert_eq!(colours(&top.raw()), expected, "{:?}", top.raw());
        top.press("q");
        assert_eq!(top.ends().0, Some(0));
    }
}

/// Many updates share a frame: at most ten are drawn a second, and one for each of the few keys.
#[test]
fn a_burst_of_updates_is_drawn_in_few_frames() {
    let real = Real::start();
    let begun = Instant::now();
    let mut top = real.top(80, 24);
    for number in 0..1000 {
        real.write(&format!("p{}", number % 50), &format!("i:{number}"));
    }
    real.write("last", "i:1");
    top.shows("all", |screen| {
        screen.contains("podmux top   53 pods") && screen.contains("default/last-node1")
    });
    // Each frame hides the cursor once.
    let frames = top.raw().matches("\u{1b}[?25l").count();
    let most = begun.elapsed().as_millis() / 100 + 2;
    assert!(frames as u128 <= most, "{frames} frames, at most {most}");
    top.press("q");
    assert_eq!(top.ends().0, Some(0));
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    if env::var_os(PANICS).is_some() {
        let mut guard = Guard::open().unwrap();
        guard.draw(|frame| frame.render_widget("drawn", frame.area())).unwrap();
        panic!("on purpose");
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let name = thread::current().name().unwrap().to_owned();
    command
        .args(["--exact", &name, "--nocapture", "--test-threads", "1"])
        .env(PANICS, "1")
        .env("TERM", "xterm");
    let top = OnScreen::start(&command, 100, 24);
    let (code, shown) = top.ends();
    assert_eq!(code, Some(101));
    assert!(shown.contains("on purpose") && !shown.contains("drawn"), "{shown}");
}
