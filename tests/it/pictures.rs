//! The pictures of the documents: made of the real program, and as it is now.

use std::{env, fs, os::unix::fs::symlink, path::Path, process::Command};

use anstyle_svg::Term;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::support::terminal::{CTRL_C, Drawn, Window, sorted, timeless};

/// The columns of the pictures.
const COLUMNS: u16 = 112;

/// A shell in a window, in a directory with the examples of the repository.
struct Session {
    window: Window,
    directory: String,
    commands: usize,
}

impl Session {
    fn start(directory: &Path) -> Self {
        let mut bash = Command::new("bash");
        let path = format!("{}/bin:{}", directory.display(), env::var("PATH").unwrap());
        bash.args(["--norc", "--noprofile", "--noediting", "-i"]).env("PATH", path).env("TERM", "xterm");
        bash.envs([("PS1", "$ "), ("TZ", "UTC"), ("PODMUX_NODE_NAME", "node1")]);
        bash.envs([("PODMUX_LISTEN", "unix:podmux.sock"), ("PODMUX_SERVER", "unix:podmux.sock")]);
        bash.env("PODMUX_STATE_DIR", "state").current_dir(directory);
        let window = Window::open(&bash, COLUMNS);
        window.shows("a prompt", |screen| (screen == "$").then_some(()));
        Self { window, directory: format!("{}/", directory.display()), commands: 0 }
    }

    fn begin(&mut self, command: &str) {
        self.commands += 1;
        self.window.press(&format!("{command}\n"));
    }

    /// Waits until the shell asks for the next command.
    fn ends(&self) {
        self.window.wrote("end of the command", |lines| {
            let prompts = lines.iter().filter(|line| line.starts_with("$ ")).count();
            let is_at_prompt = lines.last().is_some_and(|line| line == "$ ");
            (is_at_prompt && prompts == self.commands + 1).then_some(())
        });
    }

    fn runs(&mut self, command: &str) {
        self.begin(command);
        self.ends();
    }

    /// The picture of the window, without the last prompt.
    fn picture(self) -> String {
        let written = timeless(&self.window.written());
        let written = written.strip_suffix("$ ").unwrap().replace(&self.directory, "");
        self.window.press("exit\n");
        assert_eq!(self.window.ends().0, 0);
        Term::new().render_svg(Drawn::new(&written, COLUMNS).styled().trim_end())
    }
}

/// A directory in which the two sessions take place.
fn place() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for folder in ["bin", "manifests", "examples"] {
        fs::create_dir(directory.path().join(folder)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_podmux"), directory.path().join("bin/podmux")).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    for name in ["web.yaml", "registry-mirror.json"] {
        fs::copy(examples.join(name), directory.path().join("examples").join(name)).unwrap();
    }
    fs::copy(examples.join("web.yaml"), directory.path().join("manifests/web.yaml")).unwrap();
    directory
}

/// Compares a picture with that of the documents by its rows, or writes it with `UPDATE_EXPECT=1`.
fn check(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures").join(name);
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let rows = |picture: &str| {
        let without_place = |row: &str| match row.split_once(" y=\"") {
            Some((before, after)) => {
                format!("{before}{}", after.split_once('"').map_or(after, |(_, text)| text))
            }
            None => row.to_owned(),
        };
        sorted(&picture.lines().map(without_place).collect::<Vec<_>>().join("\n"))
    };
    if rows(&kept) == rows(made) {
        return;
    }
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, made).unwrap();
        return;
    }
    let old: Vec<String> = rows(&kept).into_iter().filter(|row| !rows(made).contains(row)).collect();
    let new: Vec<String> = rows(made).into_iter().filter(|row| !rows(&kept).contains(row)).collect();
    panic!(
        "{} is old. Make it again with tests/pictures.\nonly in it:\n{}\nonly now:\n{}",
        path.display(),
        old.join("\n"),
        new.join("\n")
    );
}

#[test]
fn the_pictures_of_the_terminal_are_what_a_user_sees_now() {
    let directory = place();
    let mut agent = Session::start(directory.path());
    agent.begin("podmux run --pod-manifest-path manifests");
    agent.window.wrote_text("Ctrl-C stops the agent.");
    agent.window.wrote_text("default/web-node1");
    agent.window.wrote_text("listening");

    let mut user = Session::start(directory.path());
    user.runs("podmux get pods");
    user.runs("podmux apply -f examples/registry-mirror.json");
    agent.window.wrote_text("infra/registry-mirror");
    // Written in one piece, so that the agent reads it once.
    user.runs("sed 's/containerPort: 8080/containerPort: http/' examples/web.yaml > broken.yaml");
    user.runs("podmux validate broken.yaml");
    user.runs("mv broken.yaml manifests/web.yaml");
    agent.window.wrote_text("manifest rejected");
    user.runs("podmux get sources");
    user.runs("podmux get pods --all-namespaces -o wide");
    check("commands.svg", &user.picture());

    agent.window.press(CTRL_C);
    agent.ends();
    check("run.svg", &agent.picture());
}

/// A real Grafana is not at hand: tests/observability/draw makes the picture of real values of a real
/// Prometheus, and notes in it of which dashboard.
#[test]
fn the_picture_of_the_dashboard_is_of_the_dashboard_as_it_is_now() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let digest = Sha256::digest(read("systemd/grafana.json"));
    let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    let picture = read("docs/pictures/dashboard.svg");
    assert!(
        picture.contains(&format!("systemd/grafana.json {digest}")),
        "docs/pictures/dashboard.svg is of another systemd/grafana.json. Make it again with tests/pictures."
    );
}
