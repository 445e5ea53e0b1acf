//! The real kubectl: the same commands on the agent and on a real kube-apiserver.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::support::{
    kubernetes::{Apiserver, not_tested},
    process::{Lines, Process, podmux},
};

/// kubectl for one of the two servers.
struct Kubectl {
    args: Vec<String>,
}

impl Kubectl {
    fn command(&self, args: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.args).args(["-n", "kubectl"]).args(args.split_whitespace());
        // No configuration of this machine.
        command.env("KUBECONFIG", "/dev/null").env("HOME", "/nonexistent");
        command
    }

    fn run(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    /// The output and the exit code, as far as they do not depend on the server.
    fn transcript(&self, args: &str) -> String {
        let output = self.run(args);
        let text = [output.stdout, output.stderr].concat();
        format!(
            "$ kubectl {args}\n{}exit {:?}\n",
            alike(&String::from_utf8(text).unwrap()),
            output.status.code()
        )
    }
}

/// Replaces what is deliberately different, and ages.
fn alike(text: &str) -> String {
    let word = |word: &str| match word {
        // The agent runs no pods here.
        "Wanted" => "Pending".to_owned(),
        age if age.len() > 1 && age.ends_with('s') && age[..age.len() - 1].parse::<u32>().is_ok() => {
            "AGE".to_owned()
        }
        other => other.to_owned(),
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
}

struct Both {
    theirs: Kubectl,
    ours: Kubectl,
    _agent: Process,
}

impl Both {
    fn start() -> Option<Self> {
        let apiserver = Apiserver::shared()?;
        if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
            not_tested("kubectl is not installed");
            return None;
        }
        let run = [
            "run",
            "--node-name",
            "node1",
            "--listen",
            "127.0.0.1:0",
            "--anonymous-auth",
            "--state-dir",
            "none",
        ];
        let agent = Process::start(podmux(&run).stdout(Stdio::null()));
        let line = agent.logs("listening");
        let (_, address) = line.rsplit_once("address=").unwrap();
        let ours = Kubectl { args: vec![format!("--server=http://{address}")] };
        let at = &apiserver.at;
        let args = [
            format!("--server={}", at.url),
            format!("--token={}", at.token),
            format!("--certificate-authority={}", at.ca.display()),
        ];
        let theirs = Kubectl { args: args.into() };
        Some(Self { theirs, ours, _agent: agent })
    }

    /// Runs a command on both and compares.
    fn same(&self, args: &str) {
        assert_eq!(self.theirs.transcript(args), self.ours.transcript(args));
    }
}

fn manifest(path: &Path, pods: &[(&str, &str)]) {
    let pod = |(name, label): &(&str, &str)| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {label}}}}}\n\
             spec: {{nodeName: node1, containers: [{{name: c, image: 'i:1'}}]}}\n---\n"
        )
    };
    fs::write(path, pods.iter().map(pod).collect::<String>()).unwrap();
}

#[test]
fn kubectl_reads_waits_and_watches_as_with_an_apiserver() {
    let Some(both) = Both::start() else { return };
    let made = both.theirs.run("create namespace kubectl");
    assert!(made.status.success(), "{made:?}");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    manifest(&directory.path().join("pods"), &[("a", "x"), ("b", "y"), ("c", "x")]);
    both.same("get pods");
    both.same(&format!("create --validate=false -f {}", at("pods")));
    for command in [
        "get pods",
        "get po -l app=x --show-labels",
        "get pods -l app!=x --no-headers",
        "get pods --field-selector metadata.name=b",
        "get pods --field-selector status.phase=Running",
        "get pods --sort-by=.metadata.name --chunk-size=1",
        "get pods -o name",
        "get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName",
        "get pods -o jsonpath={.items[*].metadata.name}",
        "get pod a -o jsonpath={.kind}",
        "get pod a none",
        "get pods -L app",
        "wait pod/a --for=jsonpath={.status.phase}=Pending --timeout=5s",
        "wait pod/a --for=condition=Ready --timeout=1s",
        "wait pod/none --for=delete --timeout=5s",
        "get pods --watch --request-timeout=1s --output-watch-events",
        "get pods --watch-only --request-timeout=1s",
        "get pod b -w --request-timeout=1s -o name",
    ] {
        both.same(command);
    }
    for command in ["get pods -l app==x==y", "get pods --field-selector bogus=1"] {
        let codes = [&both.theirs, &both.ours].map(|side| side.run(command).status.code());
        assert_eq!(codes, [Some(1); 2], "{command}: the words are others");
    }
    // Columns of the agent.
    let wide = both.ours.transcript("get pods a -o wide");
    assert!(
        wide.contains(
            "NAME READY STATUS RESTARTS AGE IP NODE SOURCE\na 0/1 Pending 0 AGE <none> node1 http\n"
        ),
        "{wide}"
    );

    // A watch sees the work of other commands.
    let watches = [&both.theirs, &both.ours].map(|side| {
        let mut command = side.command("get pods -w -l app=x --output-watch-events");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = Lines::default();
        lines.read(child.stdout.take().unwrap());
        lines.wait_for("the pods", |lines| (lines.len() == 3).then_some(()));
        (child, lines)
    });
    manifest(&directory.path().join("more"), &[("d", "x"), ("e", "y")]);
    both.same(&format!("create --validate=false -f {}", at("more")));
    let gone = [&both.theirs, &both.ours].map(|side| {
        let mut command = side.command("wait pod/d --for=delete --timeout=30s");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    both.same("delete pod d c --grace-period=0 --force");
    for child in gone {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let seen = watches.map(|(mut child, lines)| {
        let is_last = |line: &String| line.starts_with("DELETED") && line.contains(" c ");
        lines.wait_for("the events", |lines| lines.iter().any(is_last).then_some(()));
        child.kill().unwrap();
        child.wait().unwrap();
        // The apiserver shows a pod as terminating that is deleted at once.
        let text = alike(&lines.text());
        let lines = text.lines().filter(|line| !line.starts_with("MODIFIED"));
        lines.map(|line| line.replace("Terminating", "Pending") + "\n").collect::<String>()
    });
    assert_eq!(seen[0], seen[1]);
}
