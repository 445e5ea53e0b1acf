//! kubectl on the agent and on a real kube-apiserver.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use super::{
    kubernetes::{Apiserver, kubectl, not_tested},
    process::{Process, podmux},
};

/// The node of the agent, also in the kube-apiserver.
pub const NODE: &str = "kubectl-node";

/// A kubectl for one of the two servers.
#[derive(Clone)]
pub struct Kubectl {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Holds its cache.
    pub home: PathBuf,
}

impl Kubectl {
    pub fn command(&self, args: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).args(args.split_whitespace()).stdin(Stdio::null());
        // No configuration of this machine.
        command.env("KUBECONFIG", "/dev/null").env("HOME", &self.home);
        command
    }

    pub fn run(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    pub fn must(&self, args: &str) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "kubectl {args}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn transcript(&self, args: &str) -> String {
        transcript(args, &self.run(args))
    }
}

/// The output and the exit code, as far as they do not depend on the server.
pub fn transcript(args: &str, output: &Output) -> String {
    let text = [&*output.stdout, &*output.stderr].concat();
    format!("$ kubectl {args}\n{}exit {:?}\n", alike(&String::from_utf8_lossy(&text)), output.status.code())
}

/// Replaces what is deliberately different, and ages.
pub fn alike(text: &str) -> String {
    let word = |word: &str| match word {
        // The agent runs no pods here.
        "Wanted" => "Pending".to_owned(),
        age if is_age(age) => "AGE".to_owned(),
        other => other.to_owned(),
    };
    let line = |line: &str| {
        // What the apiserver's admission adds, and what the agent does.
        let added = [
            "node.kubernetes.io/",
            "kubernetes.io/config.",
            "Priority: 0",
            "Reason: Pending",
            "Message: the agent",
        ];
        let line = line.split_whitespace().map(word).filter(|word| word != "Tolerations:");
        let line = line.collect::<Vec<_>>().join(" ");
        if added.iter().any(|added| line.starts_with(added)) { String::new() } else { line + "\n" }
    };
    text.lines().map(line).collect()
}

/// Whether a word is an age: `5s`, `3m20s`.
pub fn is_age(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.chars().all(|char| char.is_ascii_digit() || "smhd".contains(char))
}

/// The programs: this machine's, that of the kube-apiserver's version, and 1.29 where it is installed beside
/// this machine's.
pub fn programs() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::split_paths(&path).map(|directory| directory.join("kubectl")).find(|path| path.is_file());
    let beside = |own: &PathBuf| fs::canonicalize(own).ok().map(|own| own.with_file_name("kubectl.1.29"));
    let oldest = own.as_ref().and_then(beside).filter(|path| path.is_file());
    if oldest.is_none() {
        not_tested("kubectl.1.29 is not there: put it beside the kubectl of PATH");
    }
    own.into_iter().chain(kubectl()).chain(oldest).collect()
}

/// kubectl on both servers.
pub struct Both {
    pub theirs: Kubectl,
    pub ours: Kubectl,
    pub home: TempDir,
    _agent: Process,
}

impl Both {
    /// Both servers, for a namespace, which exists then.
    pub fn start(namespace: &str) -> Option<Self> {
        let apiserver = Apiserver::shared()?;
        let program = programs().into_iter().next()?;
        let run = [
            "run",
            "--node-name",
            NODE,
            "--listen",
            "127.0.0.1:0",
            "--anonymous-auth",
            "--state-dir",
            "none",
        ];
        let agent = Process::start(podmux(&run).stdout(Stdio::null()));
        let line = agent.logs("listening");
        let (_, address) = line.rsplit_once("address=").unwrap();
        let home = tempfile::tempdir().unwrap();
        let kubectl = |args: &[String]| {
            let namespace = ["-n".to_owned(), namespace.to_owned()];
            let args = args.iter().cloned().chain(namespace).collect();
            Kubectl { program: program.clone(), args, home: home.path().to_owned() }
        };
        let ours = kubectl(&[format!("--server=http://{address}")]);
        let at = &apiserver.at;
        let theirs = kubectl(&[
            format!("--server={}", at.url),
            format!("--token={}", at.token),
            format!("--certificate-authority={}", at.ca.display()),
        ]);
        theirs.must(&format!("create namespace {namespace}"));
        Some(Self { theirs, ours, home, _agent: agent })
    }

    /// The same with another program.
    pub fn with(&self, program: &Path) -> [Kubectl; 2] {
        [&self.theirs, &self.ours].map(|side| Kubectl { program: program.to_owned(), ..side.clone() })
    }

    /// Runs a command on both and compares.
    pub fn same(&self, args: &str) {
        assert_eq!(self.theirs.transcript(args), self.ours.transcript(args));
    }
}

/// Writes a manifest of pods with these names and labels.
pub fn manifest(path: &Path, pods: &[(&str, &str)]) {
    let pod = |(name, label): &(&str, &str)| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {label}}}}}\n\
             spec: {{nodeName: {NODE}, containers: [{{name: c, image: 'i:1'}}]}}\n---\n"
        )
    };
    fs::write(path, pods.iter().map(pod).collect::<String>()).unwrap();
}

/// A command, and its difference if there is one: a part of the agent's output, and the reason.
pub type Row<'c> = (&'c str, Option<(&'static str, &'static str)>);

/// Runs commands on both servers, and describes what is not as it should be.
pub fn compare(sides: &[Kubectl; 2], commands: &[Row<'_>]) -> String {
    let mut problems = String::new();
    for (command, difference) in commands {
        // Two processes at once.
        let running = sides.each_ref().map(|side| {
            let mut command = side.command(command);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let [theirs, ours] = running.map(|child| transcript(command, &child.wait_with_output().unwrap()));
        let problem = match difference {
            _ if ours.contains("panic:") => "kubectl panics",
            None if theirs != ours => "the outputs differ",
            Some(_) if theirs == ours => "the outputs no longer differ",
            Some((part, _)) if !ours.contains(part) => "the difference is another one",
            _ => continue,
        };
        let program = sides[0].program.display();
        writeln!(problems, "{program}: {problem}\n{theirs}--- the agent\n{ours}").unwrap();
    }
    problems
}
