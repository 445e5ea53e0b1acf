//! The commands of a running agent, as kubectl's users know them: sorting, templates, dry runs, diff, deletion of
//! many, and names for the shells.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use tempfile::{NamedTempFile, TempDir};

use crate::{
    cli::transcript,
    support::{
        kubectl::{Kubectl, programs},
        kubernetes::not_tested,
        namespace::inside,
        process::{Process, on_a_terminal, podmux, podmux_run, wait_for},
    },
};

/// Pods whose values are not in the order of their names.
const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web-10, labels: {app: web, rank: '2'}}
spec: {terminationGracePeriodSeconds: 30, containers: [{name: c, image: 'i:1', resources: {requests: {memory: 1Gi, cpu: 250m}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-9, labels: {app: web}}
spec: {terminationGracePeriodSeconds: 5, containers: [{name: c, image: 'i:10', resources: {requests: {memory: 900Mi, cpu: '1'}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: staging, labels: {app: db}}
spec: {containers: [{name: c, image: 'i:1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: other, rank: '10'}}
spec: {terminationGracePeriodSeconds: 100, containers: [{name: c, image: 'i:9', resources: {requests: {memory: 1500M, cpu: '0.3'}}}]}
";

/// An agent with the pods and a static one.
struct Agent {
    directory: TempDir,
    address: String,
    _process: Process,
}

impl Agent {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manifests = directory.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: fixed, labels: {app: web}}\nspec: {containers: [{name: c, image: 'i:0'}]}\n";
        fs::write(manifests.join("fixed.yaml"), pod).unwrap();
        let sink = format!("jsonl={}", directory.path().join("out").display());
        let flags = ["--listen", "127.0.0.1:0", "--anonymous-auth", "--sink", &sink];
        let mut command = podmux_run(&manifests, &flags);
        let process = Process::start(command.stdout(Stdio::null()));
        let line = process.logs("listening");
        let address = format!("http://{}", line.rsplit_once("address=").unwrap().1);
        let agent = Self { directory, address, _process: process };
        wait_for(|| agent.run(&["get", "pods", "-o", "name"], "").contains("pod/fixed-node1").then_some(()));
        assert!(agent.run(&["apply", "-f", "-"], PODS).ends_with("exit 0\n"));
        agent
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn podmux(&self, args: &[&str]) -> Command {
        let mut command = podmux(args);
        command.env("PODMUX_SERVER", &self.address).current_dir(self.path());
        command
    }

    fn run(&self, args: &[&str], stdin: &str) -> String {
        transcript(&mut self.podmux(args), stdin.as_bytes())
    }

    fn check(&self, args: &[&str], stdin: &str, expected: &Expect) {
        let directory = self.path().to_str().unwrap();
        expected.assert_eq(&self.run(args, stdin).replace(directory, "DIR"));
    }

    /// The real kubectl on this agent.
    fn kubectl(&self) -> Option<Kubectl> {
        let program = programs().into_iter().next()?;
        let args = vec![format!("--server={}", self.address)];
        Some(Kubectl { program, args, home: self.path().to_owned() })
    }
}

#[test]
fn pods_are_sorted_and_templates_applied_as_kubectl_does() {
    let agent = Agent::start();
    let Some(kubectl) = agent.kubectl() else { return not_tested("there is no kubectl") };
    let commands = [
        "get pods --sort-by=.metadata.name -o name",
        "get pods --sort-by={.metadata.name} -o name",
        "get pods --sort-by=spec.terminationGracePeriodSeconds -o name",
        "get pods --sort-by=.spec.containers[0].resources.requests.memory -o name -l app!=web",
        "get pods web-9 web-10 web-1 --sort-by=.spec.containers[0].resources.requests.memory -o name",
        "get pods web-9 web-10 web-1 --sort-by={.spec.containers[0].resources.requests.cpu} -o name",
        "get pods --sort-by=.spec.containers[0].image -o name",
        "get pods -A --sort-by=.metadata.labels.app -o name -l app!=web",
        // One of them has no rank.
        "get pods web-10 web-1 web-9 --sort-by=.metadata.labels.rank -o name",
        "get pods --sort-by=.metadata.creationTimestamp -o jsonpath={.items[0].metadata.name}",
        "get pods -o jsonpath={.items[*].metadata.name}",
        "get pods -o jsonpath={.kind}",
        "get pods -o jsonpath={range.items[*]}{.metadata.name}{\"\\n\"}{.spec.containers[0].image}{\"\\n\"}{end}",
        "get pods -o jsonpath={.items[?(@.metadata.name==\"web-9\")].spec.containers[*].image}",
        "get pod web-9 -o jsonpath={.metadata.name}{.missing}",
        "get pod web-9 web-1 -o jsonpath={.items[*].metadata.name}",
        "get pods -n none -o jsonpath={.items}",
    ];
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (theirs, ours) = (kubectl.run(command), agent.podmux(&words).output().unwrap());
        assert!(theirs.status.success() && ours.status.success(), "{command}: {theirs:?} {ours:?}");
        let [theirs, ours] = [theirs.stdout, ours.stdout].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(theirs, ours, "{command}");
    }
    // The rows of tables too.
    let names = |output: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(output).into_owned();
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let sorted = "get pods --sort-by=.spec.terminationGracePeriodSeconds --no-headers";
    let ours = agent.podmux(&sorted.split(' ').collect::<Vec<_>>()).output().unwrap().stdout;
    assert_eq!(names(&ours), names(&kubectl.run(sorted).stdout));
    assert_eq!(names(&ours), ["web-9", "fixed-node1", "web-10", "web-1"]);
}

#[test]
fn what_cannot_be_sorted_or_printed_is_an_error() {
    let agent = Agent::start();
    agent.check(
        &["get", "pods", "--sort-by", ".metadata.none"],
        "",
        &expect![[r#"
            ! podmux: couldn't find any field with path "{.metadata.none}" in the list of objects
            exit 1
        "#]],
    );
    agent.check(
        &["get", "pods", "--sort-by", ".metadata.labels"],
        "",
        &expect![[r#"
            ! podmux: cannot sort by {.metadata.labels}: its values are not all numbers, or all texts
            exit 1
        "#]],
    );
    agent.check(&["get", "pods", "--sort-by", "{.a}{.b}"], "", &expect![[r#"
        ! podmux: invalid value '{.a}{.b}' for '--sort-by <JSONPATH>': unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'; see podmux get --help
        exit 2
    "#]]);
    agent.check(
        &["get", "sources", "--sort-by", ".name"],
        "",
        &expect![[r#"
        ! podmux: --sort-by is for pods and events only
        exit 2
    "#]],
    );
    agent.check(
        &["get", "pods", "-w", "--sort-by", ".metadata.name"],
        "",
        &expect![[r#"
        ! podmux: what is watched cannot be sorted: omit --sort-by or --watch
        exit 2
    "#]],
    );
    agent.check(
        &["get", "pods", "-o", "jsonpath={.items[9]}"],
        "",
        &expect![[r#"
        ! podmux: error executing jsonpath "{.items[9]}": array index out of bounds: index 9, length 4
        exit 1
    "#]],
    );
    agent.check(&["get", "pods", "-o", "jsonpath={.items"], "", &expect![[r#"
        ! podmux: invalid value 'jsonpath={.items' for '--output <FORMAT>': unclosed action; see podmux get --help
        exit 2
    "#]]);
    agent.check(&["get", "pods", "-o", "jsonpath"], "", &expect![[r#"
        ! podmux: invalid value 'jsonpath' for '--output <FORMAT>': template format specified but no template given; see podmux get --help
        exit 2
    "#]]);
    agent.check(
        &["get", "sources", "-o", "jsonpath={.items[*].name}"],
        "",
        &expect![[r#"
        file http
        exit 0
    "#]],
    );
}

#[test]
fn a_template_prints_no_control_character_of_a_pod_on_a_terminal() {
    let agent = Agent::start();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: odd, annotations: {a: \"x\\e[31m\\ty\\n\"}}\nspec: {containers: [{name: c, image: 'i:1'}]}\n";
    agent.run(&["apply", "-f", "-"], pod);
    let template = "jsonpath={\"\\x1b[1m\"}{.metadata.annotations.a}";
    let output = agent.podmux(&["get", "pod", "odd", "-o", template]).output().unwrap();
    assert_eq!(output.stdout, b"\x1b[1mx\x1b[31m\ty\n");
    let screen = on_a_terminal(agent.podmux(&["get", "pod", "odd", "-o", template]));
    assert!(screen.contains("\x1b[1mx\\u{1b}[31m\ty"), "{screen:?}");
}

/// A pod with this image.
fn web(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web-9, labels: {{app: web}}}}\nspec: {{terminationGracePeriodSeconds: 5, containers: [{{name: c, image: '{image}', resources: {{requests: {{memory: 900Mi, cpu: '1'}}}}}}]}}\n"
    )
}

#[test]
fn a_dry_run_says_what_apply_would_do_and_warns() {
    let agent = Agent::start();
    let new = "apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: c, image: 'i:1', imagx: 1}]}\n";
    let all = [web("i:10"), new.to_owned(), web("i:11").replace("web-9", "web-10")].join("---\n");
    agent.check(
        &["apply", "--dry-run", "-f", "-"],
        &all,
        &expect![[r#"
        pod/web-9 unchanged (server dry run)
        pod/new created (server dry run)
        pod/web-10 configured (server dry run)
        ! Warning: unknown field "spec.containers[0].imagx"; did you mean image?
        exit 0
    "#]],
    );
    agent.check(&["apply", "--dry-run=client", "-f", "-"], &all, &expect![[r#"
        ! podmux: --dry-run=client: a dry run asks the agent: use --dry-run=server, or podmux validate to check manifests without it
        exit 2
    "#]]);
    agent.check(
        &["get", "pods", "-o", "name"],
        "",
        &expect![[r#"
        pod/fixed-node1
        pod/web-1
        pod/web-10
        pod/web-9
        exit 0
    "#]],
    );
}

#[test]
fn diff_shows_what_apply_would_change() {
    let agent = Agent::start();
    agent.check(
        &["diff", "-f", "-"],
        PODS,
        &expect![[r#"
        exit 0
    "#]],
    );
    agent.check(
        &["diff", "-f", "-"],
        &web("i:11"),
        &expect![[r#"
        --- stored/v1.Pod.default.web-9
        +++ applied/v1.Pod.default.web-9
        @@ -7,7 +7,7 @@
           namespace: default
         spec:
           containers:
        -  - image: i:10
        +  - image: i:11
             imagePullPolicy: IfNotPresent
             name: c
             resources:
        exit 1
    "#]],
    );
    let new = web("i:1").replace("web-9", "new");
    agent.check(
        &["diff", "-n", "staging", "-f", "-"],
        &new,
        &expect![[r#"
        --- stored/v1.Pod.staging.new
        +++ applied/v1.Pod.staging.new
        @@ -0,0 +1,25 @@
        +apiVersion: v1
        +kind: Pod
        +metadata:
        +  labels:
        +    app: web
        +  name: new
        +  namespace: staging
        +spec:
        +  containers:
        +  - image: i:1
        +    imagePullPolicy: IfNotPresent
        +    name: c
        +    resources:
        +      requests:
        +        cpu: "1"
        +        memory: 900Mi
        +    terminationMessagePath: /dev/termination-log
        +    terminationMessagePolicy: File
        +  dnsPolicy: ClusterFirst
        +  enableServiceLinks: true
        +  nodeName: node1
        +  restartPolicy: Always
        +  schedulerName: default-scheduler
        +  securityContext: {}
        +  terminationGracePeriodSeconds: 5
        exit 1
    "#]],
    );
    // What get prints differs in nothing, and diff has changed nothing.
    let stored =
        agent.podmux(&["get", "pods", "-A", "-l", "app!=none,app!=web", "-o", "yaml"]).output().unwrap();
    agent.check(
        &["diff", "-f", "-"],
        &String::from_utf8(stored.stdout).unwrap(),
        &expect![[r#"
        exit 0
    "#]],
    );
    agent.check(
        &["diff", "-f", "none.yaml"],
        "",
        &expect![[r#"
            ! podmux: none.yaml: No such file or directory; is the path right?
            exit 2
        "#]],
    );
    agent.check(
        &["diff"],
        "",
        &expect![[r#"
        ! podmux: no manifest: give -f PATH, or -f - for standard input
        exit 2
    "#]],
    );
    let fixed = web("i:1").replace("web-9", "fixed-node1");
    agent.check(&["diff", "-f", "-"], &(web("i:11") + "---\n" + &fixed), &expect![[r#"
        ! Error from server (Forbidden): error when comparing "STDIN": pods "fixed-node1" is forbidden: it is held by source file (from DIR/manifests/fixed.yaml): change it there
        exit 2
    "#]]);
    // No agent is no difference, whether one is named or looked for.
    for args in [&["diff", "-f", "-", "--server", "unix:/none"][..], &["diff", "-f", "-"]] {
        assert_eq!(podmux(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn diff_has_colours_on_a_terminal_only_and_no_control_characters() {
    let agent = Agent::start();
    fs::write(
        agent.path().join("web.yaml"),
        web("i:11").replace("labels: {app: web}", "annotations: {a: \"\\e[31m\"}"),
    )
    .unwrap();
    let diff = || {
        let mut command = agent.podmux(&["diff", "-f", "web.yaml"]);
        command.env("TERM", "xterm");
        command
    };
    let screen = on_a_terminal(diff());
    assert!(
        screen.contains("\x1b[32m+") && screen.contains("\x1b[36m@@") && !screen.contains("\x1b[31m\""),
        "{screen:?}"
    );
    let mut plain = diff();
    plain.env("NO_COLOR", "1");
    assert!(!on_a_terminal(plain).contains('\x1b'));
    assert!(!diff().output().unwrap().stdout.contains(&0x1b));
}

#[test]
fn delete_all_deletes_the_posted_pods_and_says_that_others_stay() {
    let agent = Agent::start();
    agent.check(&["delete", "pods", "-l", "app=web", "--dry-run"], "", &expect![[r#"
        pod "web-10" deleted (server dry run)
        pod "web-9" deleted (server dry run)
        ! podmux: 1 pod stays: it was not created over the API; change the source (podmux get pods -o wide names it)
        exit 0
    "#]]);
    agent.check(&["delete", "pods", "-l", "app=web"], "", &expect![[r#"
        pod "web-10" deleted
        pod "web-9" deleted
        ! podmux: 1 pod stays: it was not created over the API; change the source (podmux get pods -o wide names it)
        exit 0
    "#]]);
    agent.check(
        &["get", "pods", "-o", "name"],
        "",
        &expect![[r#"
        pod/fixed-node1
        pod/web-1
        exit 0
    "#]],
    );
    agent.check(&["delete", "--all", "-A"], "", &expect![[r#"
        pod "web-1" deleted
        pod "db" deleted
        ! podmux: 1 pod stays: it was not created over the API; change the source (podmux get pods -o wide names it)
        exit 0
    "#]]);
    agent.check(
        &["get", "pods", "-A", "-o", "name"],
        "",
        &expect![[r#"
        pod/fixed-node1
        exit 0
    "#]],
    );
    agent.check(
        &["delete", "pods", "--all", "-n", "none"],
        "",
        &expect![[r#"
        ! No resources found
        exit 0
    "#]],
    );
    agent.check(
        &["delete", "pods", "web", "--all"],
        "",
        &expect![[r#"
        ! podmux: give names, --all or a selector, only one of them
        exit 2
    "#]],
    );
    agent.check(
        &["delete", "pods", "web", "-A"],
        "",
        &expect![[r#"
        ! podmux: -A needs --all or -l SELECTOR; a name belongs to one namespace: use -n NS
        exit 2
    "#]],
    );
    agent.check(
        &["delete", "pods", "--all", "-l", "app=web"],
        "",
        &expect![[r#"
        ! podmux: the argument '--all' cannot be used with '--selector <SELECTOR>'; see podmux delete --help
        exit 2
    "#]],
    );
}

#[test]
fn the_tail_of_a_log_is_a_number_of_lines_or_all() {
    let output = podmux(&["logs", "web", "--tail=-7", "--server", "unix:/none"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_log_of_a_pod_of_a_file_without_the_name_of_its_node_is_an_error_with_a_hint() {
    Agent::start().check(
        &["logs", "fixed"],
        "",
        &expect![[r#"
        ! Error from server (NotFound): pods "fixed" not found
        ! podmux: podmux get pods -A shows the pods of all namespaces; the name of a pod from a file or a URL ends with that of its node
        exit 1
    "#]],
    );
}

/// What `podmux __complete` offers for the last of these words.
fn offered(agent: &Agent, words: &[&str]) -> Vec<String> {
    let output = agent.podmux(&[&["__complete"], words].concat()).output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn names_of_the_running_agent_complete_a_line() {
    let agent = Agent::start();
    let none: [&str; 0] = [];
    assert_eq!(offered(&agent, &["get", "pods", "web"]), ["web-1", "web-10", "web-9"]);
    assert_eq!(offered(&agent, &["get", "-w", "-l", "pods", "po", "web-1", "web-9"]), ["web-9"]);
    assert_eq!(offered(&agent, &["get", "pods", "-n", "staging", ""]), ["db"]);
    for namespace in ["--namespace=staging", "-nstaging", "-n=staging"] {
        assert_eq!(offered(&agent, &["get", "pods", namespace, ""]), ["db"]);
    }
    assert_eq!(offered(&agent, &["delete", "pod/w"]), ["pod/web-1", "pod/web-10", "pod/web-9"]);
    assert_eq!(offered(&agent, &["logs", "web-1"]), ["web-1", "web-10"]);
    assert_eq!(offered(&agent, &["get", "pods", "-n", ""]), ["default", "staging"]);
    assert_eq!(offered(&agent, &["get", "pods", "--namespace=s"]), ["staging"]);
    assert_eq!(offered(&agent, &["get", "sources", ""]), ["file", "http"]);
    let sink = format!("jsonl={}/out", agent.path().display());
    assert_eq!(offered(&agent, &["get", "sinks", "jsonl=/"]), [&*sink]);
    assert_eq!(offered(&agent, &["get", "sink/jsonl=/"]), [format!("sink/{sink}")]);
    // The words of bash, which breaks at = and :.
    assert_eq!(offered(&agent, &["get", "sinks", "jsonl", "="]), [&*sink]);
    assert_eq!(offered(&agent, &["get", "pods", "--namespace", "=", "s"]), ["staging"]);
    let (scheme, rest) = agent.address.split_once(':').unwrap();
    let mut command = podmux(&["__complete", "get", "--server", "=", scheme, ":", rest, "pods", "web-9"]);
    assert_eq!(command.output().unwrap().stdout, b"web-9\n");
    // Nothing that a name could complete.
    for words in [
        &["get", ""][..],
        &["get", "pods", "-"],
        &["run", ""],
        &["get", "pods", "-o", ""],
        &["none", ""],
        &[""],
        &[],
    ] {
        assert_eq!(offered(&agent, words), none, "{words:?}");
    }
    let output = podmux(&["__complete", "get", "pods", "--server", "unix:/none", ""]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(0), &b""[..], &b""[..]));
}

#[test]
fn an_agent_that_does_not_answer_delays_a_completion_by_a_second_only() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    // It accepts and never answers: without its limit, the command would wait for a minute.
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let server = format!("--server=unix:{}", socket.display());
    let output = podmux(&["__complete", "get", &server, "pods", ""]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(0), &b""[..], &b""[..]));
}

#[test]
fn a_name_that_is_not_resolved_delays_a_completion_by_a_second_only() {
    if !inside("-Urmn", "cli_verbs::a_name_that_is_not_resolved_delays_a_completion_by_a_second_only") {
        return;
    }
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
    // It never answers. The resolver would ask it for ten minutes.
    let server = std::net::UdpSocket::bind("127.0.0.77:53").unwrap();
    let settings = NamedTempFile::new().unwrap();
    fs::write(&settings, "nameserver 127.0.0.77\noptions timeout:30 attempts:5\n").unwrap();
    let bound = Command::new("mount").arg("--bind").arg(settings.path()).arg("/etc/resolv.conf").status();
    assert!(bound.unwrap().success());
    let words = ["__complete", "get", "--server=http://agent.example:1", "pods", ""];
    let (code, log) = Process::start(&mut podmux(&words)).ends();
    assert_eq!((code, &*log), (0, ""));
    // It was asked.
    server.recv(&mut [0; 512]).unwrap();
}

#[test]
fn shells_offer_the_names_of_the_running_agent() {
    let agent = Agent::start();
    let programs = PathBuf::from(env!("CARGO_BIN_EXE_podmux")).parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    let shell = |program: &str, args: &[&str], script: &str| {
        let mut command = Command::new(program);
        command
            .args(args)
            .arg(script)
            .env("PATH", &path)
            .env("PODMUX_SERVER", &agent.address)
            .env("HOME", agent.path());
        let output = command.stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
    };
    let bash = |line: &str| {
        let script = format!(
            "source <(podmux completion bash)\nCOMP_WORDS=({line})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             COMP_LINE='{}'\nCOMP_POINT=${{#COMP_LINE}}\n\
             $(complete -p podmux | sed 's/.*-F \\([^ ]*\\).*/\\1/') podmux \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
             echo ${{COMPREPLY[*]}}",
            line.replace(" =", "=").replace("= ", "=")
        );
        shell("bash", &["--norc", "-c"], &script).unwrap()
    };
    assert_eq!(bash("podmux get pods web"), "web-1 web-10 web-9\n");
    assert_eq!(bash("podmux delete pod ''"), "fixed-node1 web-1 web-10 web-9\n");
    assert_eq!(bash("podmux get pods --namespace = s"), "staging\n");
    let out = agent.path().join("out").display().to_string() + "\n";
    assert_eq!(bash("podmux get sinks jsonl ="), out);
    assert_eq!(bash("podmux get sinks jsonl = /"), out);
    assert_eq!(bash("podmux get sinks js"), format!("jsonl={out}"));
    assert_eq!(bash("podmux get so"), "sources\n");
    assert_eq!(bash("podmux comp"), "completion\n");
    match shell(
        "fish",
        &["--no-config", "-c"],
        "podmux completion fish | source; complete -C 'podmux get pods web-1'; complete -C 'podmux get pods -n s'",
    ) {
        Some(output) => assert_eq!(output, "web-1\nweb-10\nstaging\n"),
        None => not_tested("there is no fish"),
    }
}
