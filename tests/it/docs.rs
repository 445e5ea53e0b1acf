//! The documents: their commands run and print what is shown, their links have targets, their flags exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::{
    kubernetes::not_tested,
    process::{PATIENCE, Process, podmux, podmux_run, wait_for},
    program::write_program,
    terminal::{CTRL_C, Window},
};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All documents of the repository, by their path in it.
fn documents() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(repository(&folder)).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{folder}{name}");
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path + "/");
                }
            } else if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                found.insert(path.clone(), read(&path));
            }
        }
    }
    found
}

/// The documents that are about using podmux.
fn manuals() -> BTreeMap<String, String> {
    let is_manual = |path: &str| {
        path.starts_with("docs/") || ["README.md", "CHANGELOG.md", "systemd/README.md"].contains(&path)
    };
    documents().into_iter().filter(|(path, _)| is_manual(path)).collect()
}

#[test]
fn documents_keep_their_length() {
    for (path, most) in [("README.md", 150), ("ARCHITECTURE.md", 220)] {
        let lines = read(path).lines().count();
        assert!(lines <= most, "{path}: {lines} lines, at most {most}");
    }
}

/// A fenced block of a document.
struct Block {
    /// The line of its fence.
    line: usize,
    language: String,
    text: String,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(document.lines()) {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { line: number, language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    found
}

/// The part of a document under a heading of the second level.
fn section<'d>(document: &'d str, heading: &str) -> &'d str {
    let (_, rest) = document.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

#[test]
fn the_tour_of_the_readme_runs() {
    run_tour(section(&read("README.md"), "Tour"));
}

#[test]
fn the_operators_guide_saves_the_posted_pods_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("manifests")).unwrap();
    fs::create_dir(at("bin")).unwrap();
    fs::copy(repository("manifests/web.yaml"), at("manifests/web.yaml")).unwrap();
    symlink(env!("CARGO_BIN_EXE_podmux"), at("bin/podmux")).unwrap();
    let socket = format!("unix:{}", at("socket").display());
    let mut command = podmux(&["run", "--listen", &socket, "--state-dir"]);
    command.arg(at("state")).arg("--pod-manifest-path").arg(at("manifests"));
    let agent = Process::start(&mut command);
    agent.logs("started");
    let client = |args: &[&str]| {
        let output = podmux(args).env("PODMUX_SERVER", &socket).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    client(&["apply", "-f", repository("manifests/registry-mirror.json").to_str().unwrap()]);
    wait_for(|| client(&["get", "pods", "-A", "-o", "wide"]).contains(" file").then_some(()));
    let page = read("systemd/README.md");
    let blocks = blocks(section(&page, "Back up and restore")).into_iter();
    let blocks = blocks.map(|block| block.text).filter(|text| text.contains("/root/pods"));
    let script = blocks.collect::<Vec<_>>().join("\n").replace("/root/pods", at("pods").to_str().unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).env("PATH", path_with(&at("bin"))).env("PODMUX_SERVER", &socket);
    assert!(bash.status().unwrap().success());
    let saved: Vec<_> = fs::read_dir(at("pods")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(saved, ["2.yaml"]);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

#[test]
fn the_long_tour_runs() {
    run_tour(&read("docs/tour.md"));
}

/// Runs the `sh` blocks in one shell. The lines of a `text` block must be printed by the block
/// before it, or by what runs in the background meanwhile.
fn run_tour(document: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(directory.path());
    let ran = shell.run_all(document);
    assert!(ran >= 8, "only {ran} blocks");
    shell.ends();
    let temporary = fs::read_dir(directory.path().join("tmp")).unwrap();
    assert_eq!(temporary.count(), 0, "the tour removes all of its files");
}

/// The examples name the packaged agent: here its socket, state and address are those of another one.
#[test]
fn the_ways_to_call_are_as_shown() {
    if Command::new("kubectl").arg("version").output().is_err() {
        return not_tested("the ways to call: kubectl is not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let socket = format!("unix:{}", at("podmux.sock"));
    let agent = Process::start(&mut podmux(&[
        "run",
        "--node-name",
        "node1",
        "--state-dir",
        &at("state"),
        "--listen",
        "127.0.0.1:0",
        "--listen",
        &socket,
    ]));
    agent.logs("started");
    let line = agent.logs("listening address=127.0.0.1:");
    let (_, address) = line.rsplit_once("address=").unwrap();
    wait_for(|| Path::new(&at("state/auth/server.crt")).exists().then_some(()));
    let text = section(&read("docs/http-api.md"), "Who may call")
        .replace("/run/podmux/podmux.sock", &at("podmux.sock"));
    let text = text.replace("/var/lib/podmux", &at("state")).replace("127.0.0.1:10240", address);
    let mut shell = Shell::start(directory.path());
    let setup = format!("export PATH=\"$PWD/target/release:$PATH\" PODMUX_SERVER='{socket}'\n");
    shell.run(&Block { line: 0, language: "sh".to_owned(), text: setup }, "");
    assert!(shell.run_all(&text) >= 4);
    shell.ends();
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

/// A shell in a terminal, in a copy of the repository in which podmux has been built.
struct Shell {
    window: Window,
    work: PathBuf,
}

impl Shell {
    fn start(directory: &Path) -> Self {
        let work = directory.join("repository");
        let programs = directory.join("bin");
        for folder in [&work.join("target/release"), &programs, &directory.join("tmp")] {
            fs::create_dir_all(folder).unwrap();
        }
        symlink(repository("manifests"), work.join("manifests")).unwrap();
        symlink(env!("CARGO_BIN_EXE_podmux"), work.join("target/release/podmux")).unwrap();
        // The binary is built already.
        program(&programs.join("cargo"), "exit 0");
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "--noediting", "-i"])
            .env("PATH", path_with(&programs))
            .env("HOME", directory)
            .env("TMPDIR", directory.join("tmp"))
            .env("TZ", "UTC")
            .envs([("PS1", ""), ("PS2", "")])
            .current_dir(&work);
        let window = Window::open(&bash, 500);
        // The lines that are typed are not among those that are printed.
        window.press("stty -echo; echo is ready\n");
        window.wrote("shell", |lines| lines.iter().any(|line| line == "is ready").then_some(()));
        Self { window, work }
    }

    /// Runs the `sh` and `console` blocks of a document. Returns how many there are.
    fn run_all(&mut self, document: &str) -> usize {
        let blocks = blocks(document);
        let mut ran = 0;
        for (index, block) in blocks.iter().enumerate() {
            let shown = blocks.get(index + 1).filter(|next| next.language == "text");
            match &*block.language {
                "sh" => self.run(block, shown.map_or("", |shown| &shown.text)),
                "console" => self.type_in(block),
                _ => continue,
            }
            ran += 1;
        }
        ran
    }

    /// Types the commands of a block, and waits for what is shown below each. `^C` is the key.
    fn type_in(&mut self, block: &Block) {
        let mut before = self.window.lines().len();
        for line in block.text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                before = self.window.lines().len();
                self.window.press(&format!("{command}\n"));
            } else if line == "^C" {
                self.window.press(CTRL_C);
            } else {
                let line = timeless(line);
                self.window.wrote(&format!("{line:?} of the block in line {}", block.line), |lines| {
                    lines.iter().skip(before).any(|shown| fits(&timeless(shown), &line)).then_some(())
                });
            }
        }
        self.mark(block, "");
    }

    /// Runs a block, which must succeed and print the lines shown. A block that only reads is repeated
    /// until it does.
    fn run(&mut self, block: &Block, shown: &str) {
        let begun = Instant::now();
        let before = self.window.lines().len();
        let shown: Vec<&str> = shown.lines().collect();
        let readers = ["podmux get ", "podmux describe ", "podmux validate ", "tail ", "grep ", "cat "];
        let only_reads = block.text.lines().all(|line| readers.iter().any(|reader| line.starts_with(reader)));
        loop {
            let attempt = self.window.lines().len();
            let missing = self.try_block(block, attempt.min(before), &shown, only_reads);
            if missing.is_empty() {
                return;
            }
            assert!(
                only_reads && begun.elapsed() < PATIENCE / 2,
                "line {}: not printed:\n{}\nbut:\n{}",
                block.line,
                missing.join("\n"),
                self.window.lines()[attempt..].join("\n")
            );
            // The interval of the attempts: what is shown depends on another process.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The lines that are shown and were not printed.
    fn try_block<'s>(
        &mut self,
        block: &Block,
        before: usize,
        shown: &[&'s str],
        at_once: bool,
    ) -> Vec<&'s str> {
        let script = self.work.join("../block");
        fs::write(&script, &block.text).unwrap();
        self.mark(block, &format!(". '{}'; ", script.display()));
        let missing = |lines: &[String]| -> Vec<&'s str> {
            let printed: Vec<String> = lines.iter().skip(before).map(|line| timeless(line)).collect();
            let is_printed = |line: &&str| printed.iter().any(|printed| fits(printed, &timeless(line)));
            shown.iter().copied().filter(|line| !is_printed(line)).collect()
        };
        if !at_once && !missing(&self.window.lines()).is_empty() {
            // `podmux get updates` prints in the background.
            let deadline = Instant::now() + PATIENCE / 2;
            wait_for(|| {
                let done = missing(&self.window.lines()).is_empty() || Instant::now() > deadline;
                done.then_some(())
            });
        }
        missing(&self.window.lines())
    }

    /// Types a command, which must succeed, and waits for its end.
    fn mark(&mut self, block: &Block, command: &str) {
        let mark = format!("=== {} {:?}", block.line, Instant::now());
        self.window.press(&format!("{command}echo '{mark}' $?\n"));
        let line = self.window.wrote(&format!("end of line {}", block.line), |lines| {
            lines.iter().find(|line| line.starts_with(&mark)).cloned()
        });
        assert!(line.ends_with(" 0"), "line {} fails:\n{}", block.line, self.window.lines().join("\n"));
    }

    fn ends(self) {
        self.window.press("exit\n");
        assert_eq!(self.window.process.wait(), Some(0));
    }
}

impl Drop for Shell {
    /// The agents of a tour that failed go with the shell.
    fn drop(&mut self) {
        self.window.press(&format!("{CTRL_C}{CTRL_C}\nkill -KILL $(jobs -p) 2> /dev/null; exit\n"));
        let _ = self.window.process.wait();
    }
}

fn program(path: &Path, script: &str) {
    write_program(path, &format!("#!/bin/bash\n{script}\n"));
}

fn path_with(first: &Path) -> String {
    format!("{}:{}", first.display(), env::var("PATH").unwrap())
}

/// A line without what is different each time: times, ages, a number at its beginning, widths of columns.
fn timeless(line: &str) -> String {
    let word = |(index, word): (usize, &str)| {
        let digits = word.trim_end_matches(['s', 'm', 'h', 'd']);
        let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match word {
            _ if word.parse::<Timestamp>().is_ok() => "TIME".to_owned(),
            _ if number && digits.len() < word.len() => "AGE".to_owned(),
            _ if number && index == 0 => "NUMBER".to_owned(),
            _ => word.to_owned(),
        }
    };
    line.split_whitespace().enumerate().map(word).collect::<Vec<_>>().join(" ")
}

/// Whether a line is as shown, where `…` stands for anything.
fn fits(line: &str, shown: &str) -> bool {
    let parts: Vec<&str> = shown.split('…').collect();
    let [first, middle @ .., last] = &*parts else { return line == shown };
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    for part in middle {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The consumer calls podman for each change, with the pod on standard input.
#[test]
fn the_consumer_in_bash_follows_a_directory() {
    if Command::new("jq").arg("--version").output().is_err() {
        return not_tested("the consumer in bash: jq is not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let page = read("docs/stream.md");
    let mut found = blocks(section(&page, "A consumer in bash")).into_iter();
    let block = found.find(|block| block.language == "bash").unwrap();
    fs::write(at("consumer"), block.text).unwrap();
    fs::create_dir_all(at("bin")).unwrap();
    fs::create_dir_all(at("manifests")).unwrap();
    let run = format!("echo $$ > {}; exec {} \"$@\"", at("agent").display(), env!("CARGO_BIN_EXE_podmux"));
    program(&at("bin/podmux"), &run);
    let calls = at("calls").display().to_string();
    program(&at("bin/podman"), &format!(r#"echo "$* $(jq -r .metadata.name)" >> {calls}"#));
    let mut child = Command::new("bash")
        .args([at("consumer"), at("manifests")])
        .env_clear()
        .env("PATH", path_with(&at("bin")))
        .envs([("PODMUX_LISTEN", "none"), ("PODMUX_STATE_DIR", "none"), ("PODMUX_NODE_NAME", "node1")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stop = Stop(at("agent"));
    let web = read("manifests/web.yaml");
    let called = |count: usize| {
        wait_for(|| {
            let calls = fs::read_to_string(&calls).unwrap_or_default();
            (calls.lines().count() >= count).then_some(calls)
        })
    };
    let place = |text: &str| {
        fs::write(at("web"), text).unwrap();
        fs::rename(at("web"), at("manifests/web.yaml")).unwrap();
    };
    place(&web);
    called(1);
    place(&web.replace("1.29", "1.28"));
    called(2);
    fs::remove_file(at("manifests/web.yaml")).unwrap();
    let calls = called(3);
    assert_eq!(
        calls,
        "kube play --replace - web-node1\nkube play --replace - web-node1\nkube down - web-node1\n"
    );
    drop(stop);
    assert!(child.wait().unwrap().success());
}

/// The receiver holds what is wanted over a change, a kill and a restart, for each of two sinks, and refuses another key's
/// requests.
#[test]
fn the_receiver_in_python_holds_what_is_wanted() {
    if Command::new("python3").arg("--version").output().is_err() {
        return not_tested("the receiver in Python: python3 is not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let block = blocks(&read("docs/sinks.md")).into_iter().find(|block| block.language == "python").unwrap();
    let serve = r#"http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Receiver).serve_forever()"#;
    assert!(block.text.contains(serve));
    // On a free port, and it says how many streams it has and what the one that has changed holds.
    let told = r#"
apply = Receiver.apply
def told(self, pods, *update):
    apply(self, pods, *update)
    print(len(streams), *sorted(f"{key}={pod['spec']['containers'][0]['image']}" for key, (_, pod) in pods.items()), flush=True)
Receiver.apply = told
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()
"#;
    fs::write(at("receiver.py"), block.text.replace(serve, told)).unwrap();
    let mut python = Command::new("python3");
    let python = python.arg(at("receiver.py")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let receiver = Process::start(python);
    let port: u16 = receiver.stdout.wait_for("port", |lines| lines.first()?.parse().ok());
    let holds = |pods: &str| {
        let line = format!("2 {pods}");
        let ends =
            |lines: &[String]| lines.len() > 2 && lines[lines.len() - 2..].iter().all(|last| *last == line);
        receiver.stdout.wait_for(pods, |lines| ends(lines).then_some(()));
    };
    fs::create_dir(at("manifests")).unwrap();
    fs::write(at("key"), "the key in hmac-file, without its line end\n").unwrap();
    fs::write(at("wrong-key"), "another key").unwrap();
    let place = |name: &str, image: &str| {
        let containers = json!([{"name": "c", "image": image}]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}});
        fs::write(at("new"), pod.to_string()).unwrap();
        fs::rename(at("new"), at("manifests").join(format!("{name}.json"))).unwrap();
    };
    let start = |key: &str| {
        let sink = |path| format!("webhook=http://127.0.0.1:{port}/{path},hmac-file={}", at(key).display());
        let state = at("state").display().to_string();
        let args = ["--state-dir", &state, "--sink", &sink("a"), "--sink", &sink("b")];
        Process::start(&mut podmux_run(&at("manifests"), &args))
    };
    place("a", "i:1");
    place("b", "i:1");
    let agent = start("key");
    holds("default/a-node1=i:1 default/b-node1=i:1");
    place("a", "i:2");
    holds("default/a-node1=i:2 default/b-node1=i:1");
    agent.signal(Signal::KILL);
    agent.ends();
    fs::remove_file(at("manifests/b.json")).unwrap();
    place("c", "i:1");
    let stranger = start("wrong-key");
    stranger.logs("401");
    stranger.signal(Signal::TERM);
    stranger.ends();
    let _agent = start("key");
    holds("default/a-node1=i:2 default/c-node1=i:1");
}

/// Stops the process whose number is in a file, also when a test fails.
struct Stop(PathBuf);

impl Drop for Stop {
    fn drop(&mut self) {
        let number = fs::read_to_string(&self.0).unwrap_or_default().trim().parse();
        if let Some(pid) = number.ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// A document without its fenced blocks and its code.
fn prose(document: &str) -> String {
    let mut text = String::new();
    let mut fenced = false;
    for line in document.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            text.extend(line.split('`').step_by(2));
            text.push('\n');
        }
    }
    text
}

/// A document's code: its fenced blocks and what stands between backticks, a piece a line.
fn code(document: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let (mut fenced, mut continued) = (false, false);
    for line in document.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let (text, goes_on) = line.strip_suffix('\\').map_or((line, false), |text| (text, true));
            match pieces.last_mut().filter(|_| continued) {
                Some(last) => *last = format!("{last} {}", text.trim_start()),
                None => pieces.push(text.to_owned()),
            }
            continued = goes_on;
        } else {
            pieces.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    pieces
}

/// The anchors of a document's headings, as GitHub and GitLab make them.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let headings = document.lines().filter(|line| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('#')
    });
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_relative_link_has_a_target() {
    let documents = documents();
    let mut broken = Vec::new();
    for (path, document) in &documents {
        let prose = prose(document);
        let folder = Path::new(path).parent().unwrap();
        for target in prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { Path::new(path).to_owned() } else { folder.join(file) };
            let there = repository("").join(&file);
            let exists = there.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&there).is_ok_and(|text| anchors(&text).contains(anchor)));
            if !exists {
                broken.push(format!("{path}: {target}"));
            }
        }
    }
    assert!(documents.len() > 10);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The flags in a text: `--node-name`.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')));
    words.filter(|word| word.strip_prefix("--").is_some_and(|name| name.starts_with(char::is_alphabetic)))
}

/// The flags of each subcommand, as its help has them.
fn subcommands() -> BTreeMap<String, BTreeSet<String>> {
    let help = |args: &[&str]| String::from_utf8(podmux(args).output().unwrap().stdout).unwrap();
    let all = help(&["--help"]);
    let commands = all.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter_map(|line| line.split_whitespace().next());
    names
        .map(|name| {
            let help = help(&[name, "--help"]);
            (name.to_owned(), flags(&help).map(str::to_owned).collect())
        })
        .collect()
}

/// Flags of other programs that the documents name.
const OTHER_FLAGS: [&str; 39] = [
    "--api-version",
    "--as",
    "--as-group",
    "--as-uid",
    "--bench",
    "--bump-revision",
    "--cacert",
    "--chunk-size",
    "--copy-to",
    "--create",
    "--data-binary",
    "--delay-updates",
    "--delete-after",
    "--example",
    "--feature-gates",
    "--figures",
    "--force-conflicts",
    "--format",
    "--image",
    "--list",
    "--locked",
    "--log-level",
    "--mark-compacted",
    "--no-default-features",
    "--no-deps",
    "--open",
    "--path",
    "--pipe",
    "--profile",
    "--prune",
    "--prune-allowlist",
    "--release",
    "--replace",
    "--server-side",
    "--timings",
    "--unbuffered",
    "--unix-socket",
    "--user",
    "--watch-only",
];

/// The metrics of the server's and the reflector's goldens.
#[test]
fn every_metric_is_in_the_reference() {
    let reference = read("docs/metrics.md");
    let measured = read("tests/golden/metrics.txt") + &read("tests/golden/metrics-reflector.txt");
    let names = measured.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<&str> =
        names.filter(|name| name != &"podmux_build" && !reference.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = read("Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap().lines();
    let names =
        dependencies.filter_map(|line| Some(line.split_once(" = ")?.0)).filter(|name| !name.starts_with('#'));
    let table = read("docs/design/dependencies.md");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let explained: BTreeSet<&str> = rows.flat_map(|names| names.split(", ")).collect();
    let missing: Vec<&str> = names.filter(|name| !explained.contains(name)).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_flag_and_subcommand_that_is_named_exists() {
    let subcommands = subcommands();
    let known: BTreeSet<&str> = subcommands.values().flatten().map(String::as_str).collect();
    let (mut wrong, mut others) = (Vec::new(), BTreeSet::new());
    for (path, document) in manuals() {
        for piece in code(&document) {
            for call in calls(&piece) {
                let name = call.split_whitespace().next().unwrap();
                match subcommands.get(name) {
                    None => wrong.push(format!("{path}: podmux {name}")),
                    Some(known) => {
                        let unknown = flags(call).filter(|flag| !known.contains(*flag));
                        wrong.extend(unknown.map(|flag| format!("{path}: podmux {name} {flag}")));
                    }
                }
            }
        }
        for flag in flags(&document).filter(|flag| !known.contains(flag)) {
            match OTHER_FLAGS.iter().find(|other| **other == flag) {
                Some(other) => drop(others.insert(*other)),
                None => wrong.push(format!("{path}: {flag}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(others, BTreeSet::from(OTHER_FLAGS), "flags of other programs that no document names");
}

/// The subcommands that a piece of code calls, each with its arguments.
fn calls(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("podmux ").filter_map(|(at, name)| {
        let before = code[..at].trim_end();
        let is_command =
            before.is_empty() || before.ends_with(['|', '&', ';', '$', '(']) || before.ends_with("bin/");
        let call = code[at + name.len()..].split(['|', '&', ';', ')', '#']).next().unwrap();
        (is_command && call.starts_with(|c: char| c.is_ascii_lowercase())).then_some(call)
    })
}
