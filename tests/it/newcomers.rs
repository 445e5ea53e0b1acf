//! What podmux says to the mistakes of newcomers. Each is made for real; `tests/newcomers.md` is the golden table.

use std::{
    env,
    fmt::Write as _,
    fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    files::pod,
    process::{Process, podmux, wait_for},
    web::Authority,
};

/// What a newcomer has: a directory, and the table of what was said so far.
struct Desk {
    dir: TempDir,
    rows: Vec<(String, String)>,
    /// Texts that differ between runs, and what is shown for them.
    shown: Vec<(String, &'static str)>,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shown = vec![(dir.path().to_str().unwrap().to_owned(), "DIR")];
        fs::create_dir(dir.path().join("m")).unwrap();
        Self { dir, rows: Vec::new(), shown }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.at(name), content).unwrap();
    }

    /// `podmux` in the directory, on the node `n1`, without the addresses and the state of this machine.
    fn podmux(&self, command: &str) -> Command {
        let mut made = podmux(&command.split(' ').skip(1).collect::<Vec<_>>());
        for (name, value) in [("LISTEN", "none"), ("STATE_DIR", "none"), ("NODE_NAME", "n1")] {
            made.env(format!("PODMUX_{name}"), value);
        }
        made.current_dir(&self.dir);
        made
    }

    fn note(&mut self, done: String, said: &str) {
        let show =
            |text: String| self.shown.iter().fold(text, |text, (part, shown)| text.replace(part, shown));
        let row = (show(done), show(said.to_owned()));
        self.rows.push(row);
    }

    /// Runs a command to its end, and notes what it says.
    fn says(&mut self, done: &str, command: &str) {
        let made = self.podmux(command);
        self.notes(done, command, made);
    }

    fn notes(&mut self, done: &str, command: &str, mut made: Command) {
        let output = made.stdin(Stdio::null()).output().unwrap();
        let mut said = String::from_utf8(output.stdout).unwrap();
        said += &String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap();
        self.note(format!("{done}: `{command}`"), &format!("{said}exit {code}"));
    }

    /// The same under Linux's rules for users that are not root.
    fn says_without_rights(&mut self, done: &str, command: &str) {
        let made = self.podmux(command);
        let mut unshare = Command::new("unshare");
        unshare.arg("-U").arg(made.get_program()).args(made.get_args());
        unshare.env_clear().current_dir(&self.dir);
        unshare.envs(made.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.notes(done, command, unshare);
    }

    /// Writes a manifest, and notes what `podmux validate` says.
    fn manifest(&mut self, done: &str, name: &str, content: impl AsRef<[u8]>) {
        self.file(name, content);
        self.says(done, &format!("podmux validate {name}"));
    }

    /// Starts an agent, and notes the line of its log that has this text. The agent goes on.
    fn logs(&mut self, done: &str, command: &str, text: &str) -> Process {
        let agent = Process::start(&mut self.podmux(command));
        let line = agent.logs(text);
        self.note(
            format!("{done}: `{command}`"),
            line.split_once("Z ").map_or(&*line, |(_, line)| line).trim(),
        );
        agent
    }

    fn table(&self) -> String {
        let mut text = "# What podmux says to newcomers\n\nMade by `UPDATE_EXPECT=1 cargo test --test it -- newcomers::`; \
                        each mistake is made with the real program.\n\n| # | mistake | what podmux says |\n|---|---|---|\n"
            .to_owned();
        for (number, (done, said)) in self.rows.iter().enumerate() {
            let said: Vec<String> =
                said.lines().map(|line| format!("`{}`", line.replace('|', "\\|"))).collect();
            writeln!(text, "| {} | {done} | {} |", number + 1, said.join("<br>")).unwrap();
        }
        text
    }
}

fn stop(agent: Process) {
    agent.signal(Signal::TERM);
    agent.ends();
}

/// The commands and flags.
fn words(desk: &mut Desk) {
    for (done, command) in [
        ("a service's word", "podmux start"),
        ("a word of systemctl", "podmux status"),
        ("kubectl's word", "podmux edit pod web"),
        ("kubectl's word", "podmux create -f web.yaml"),
        ("docker's word", "podmux exec web sh"),
        ("a resource as a command", "podmux pods"),
        ("a misspelt command", "podmux rnu"),
        ("a resource of a cluster", "podmux get deployments"),
        ("everything", "podmux get all"),
        ("a misspelt format", "podmux get pods -o jsn"),
        ("no resource", "podmux get"),
        ("a name and all namespaces", "podmux get pods web -A"),
        ("a sequence number that is none", "podmux get updates --from start"),
        ("an address without its kind", "podmux get pods --server localhost:10240"),
        ("no name to delete", "podmux delete pod --server unix:s"),
        ("nothing to apply", "podmux apply --server unix:s"),
        ("a file that does not exist", "podmux apply -f nope.yaml --server unix:s"),
        ("an unknown shell", "podmux completion bsh"),
    ] {
        desk.says(done, command);
    }
}

/// The settings of the agent.
fn settings(desk: &mut Desk) {
    desk.file("typo.yaml", "kind: PodmuxConfiguration\npodManifestPth: m\n");
    desk.file("pod.yaml", pod("web", "i:1"));
    desk.file("tabs.yaml", "kind: PodmuxConfiguration\n\tpodManifestPath: m\n");
    desk.file("file", "");
    for (done, command) in [
        ("the directory without its flag", "podmux run m"),
        ("a misspelt flag", "podmux run --pod-manifest-pth m"),
        ("no source", "podmux run"),
        ("a duration without a unit", "podmux run --pod-manifest-path m --file-check-frequency 20"),
        ("an upper-case node name", "podmux run --pod-manifest-path m --node-name Node_1"),
        ("an unknown sink", "podmux run --pod-manifest-path m --sink kafka=topic"),
        ("an output file in no directory", "podmux run --pod-manifest-path m --sink jsonl=/nowhere/out"),
        ("a port alone", "podmux run --pod-manifest-path m --listen 10240"),
        ("a URL of another kind", "podmux run --manifest-url ftp://example/pods"),
        ("a config file that does not exist", "podmux run --config nope.yaml"),
        ("a misspelt field of the config file", "podmux run --config typo.yaml"),
        ("a pod as config file", "podmux run --config pod.yaml"),
        ("a tab in the config file", "podmux run --config tabs.yaml"),
        ("a file as state directory", "podmux run --pod-manifest-path m --state-dir file"),
        (
            "a token file that does not exist",
            "podmux run --pod-manifest-path m --listen 127.0.0.1:0 --token-file no",
        ),
    ] {
        desk.says(done, command);
    }
    let mut command = desk.podmux("podmux run --check --pod-manifest-path m");
    command.env("PODMUX_POD_MANIFESTS", "m");
    desk.notes(
        "a misspelt variable",
        "PODMUX_POD_MANIFESTS=m podmux run --check --pod-manifest-path m",
        command,
    );
    let mut command = desk.podmux("podmux run --pod-manifest-path m");
    command.env("PODMUX_NOTIFY", "never");
    desk.notes("an invalid variable", "PODMUX_NOTIFY=never podmux run --pod-manifest-path m", command);
    let authority = Authority::new(desk.dir.path(), "ca");
    authority.server_files("a");
    authority.server_files("b");
    desk.file("token", "secret\n");
    desk.says(
        "a key of another certificate",
        "podmux run --check --pod-manifest-path m --listen 127.0.0.1:0 --token-file token --tls-cert-file a.crt --tls-private-key-file b.key",
    );
}

/// Manifests.
fn manifests(desk: &mut Desk) {
    let web = pod("web", "i:1");
    let more = |text: &str| web.clone() + text;
    desk.says("a manifest that does not exist", "podmux validate nope.yaml");
    desk.says("an empty directory", "podmux validate m");
    let mut bom = b"\xef\xbb\xbf".to_vec();
    bom.extend(web.bytes());
    desk.manifest("a byte order mark, which is no mistake", "bom.yaml", bom);
    desk.manifest("Windows line ends, which are no mistake", "crlf.yaml", web.replace('\n', "\r\n"));
    desk.manifest("JSON with a last comma, which is YAML", "comma.json", JSON.replace("}]", "},]"));
    desk.manifest("JSON without its end", "cut.json", &JSON[..JSON.len() - 2]);
    desk.manifest("an empty file", "empty.yaml", "");
    desk.manifest("a binary file", "binary.yaml", b"\x7fELF\x02\x01\x01\x00\xff\xfe");
    desk.manifest("a text file", "text.yaml", "remember to write this\n");
    desk.manifest("UTF-16", "utf16.yaml", web.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>());
    desk.manifest("a tab in the indentation", "tab.yaml", web.replace("  name: web", "\tname: web"));
    desk.manifest("a field one column off", "indent.yaml", web.replace("    image", "   image"));
    desk.manifest("a quote without its end", "quote.yaml", web.replace("name: web", "name: \"web"));
    desk.manifest("a dash in brackets", "stdin.yaml", more("    args: [cat, -]\n"));
    desk.manifest("no space after a colon", "colon.yaml", web.replace("kind: Pod", "kind:Pod"));
    desk.manifest("no space after a dash", "dash.yaml", web.replace("- name", "-name"));
    desk.manifest("a template of a chart", "chart.yaml", web.replace("web", "{{ .Release.Name }}"));
    desk.manifest("a compose file", "compose.yaml", "services:\n  web:\n    image: nginx\n");
    let apps = |kind: &str| web.replace("kind: Pod", &format!("kind: {kind}")).replace("v1", "apps/v1");
    desk.manifest("a Deployment", "deployment.yaml", apps("Deployment"));
    desk.manifest("a CronJob", "cron.yaml", apps("CronJob").replace("apps", "batch"));
    desk.manifest("a Service", "service.yaml", web.replace("Pod", "Service"));
    desk.manifest("a ConfigMap", "map.yaml", web.replace("Pod", "ConfigMap"));
    desk.manifest("a kubeconfig", "config.yaml", "apiVersion: v1\nkind: Config\nclusters: []\n");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {}", apps("Deployment").replace('\n', "\n  "));
    desk.manifest("a Deployment in a List", "list.yaml", list.trim_end());
    desk.manifest("a kind in lower case", "kind.yaml", web.replace("Pod", "pod"));
    desk.manifest("no kind", "nokind.yaml", web.replace("kind: Pod\n", ""));
    desk.manifest("a wrong apiVersion", "version.yaml", web.replace("v1", "apps/v1"));
    desk.manifest("a misspelt field", "field.yaml", web.replace("containers", "conatiners"));
    desk.manifest("no image", "image.yaml", web.replace("    image: i:1\n", ""));
    desk.manifest("an upper-case name", "name.yaml", web.replace("web", "Web_1"));
    desk.manifest(
        "a number as value of a variable",
        "env.yaml",
        more("    env:\n    - name: A\n      value: 1\n"),
    );
    desk.manifest("a port out of range", "port.yaml", more("    ports:\n    - containerPort: 99999\n"));
    desk.manifest("a port in quotes", "quoted.yaml", more("    ports:\n    - containerPort: \"80\"\n"));
    desk.manifest(
        "a unit that does not exist",
        "unit.yaml",
        more("    resources:\n      limits:\n        memory: 1GB\n"),
    );
    desk.manifest("a policy in lower case", "policy.yaml", more("  restartPolicy: always\n"));
    desk.manifest("a command as text", "command.yaml", more("    command: nginx -g\n"));
    desk.manifest(
        "a volume that is not declared",
        "volume.yaml",
        more("    volumeMounts:\n    - {name: data, mountPath: /data}\n"),
    );
    desk.manifest("a secret", "secret.yaml", more("    envFrom:\n    - secretRef: {name: password}\n"));
    desk.manifest("a name twice in one file", "twice.yaml", format!("{web}---\n{web}"));
    desk.manifest("a key twice", "key.yaml", more("    image: i:2\n"));
    symlink("loop-b", desk.at("loop-a")).unwrap();
    symlink("loop-a", desk.at("loop-b")).unwrap();
    desk.says("links in a circle", "podmux validate loop-a");
    fs::create_dir(desk.at("closed")).unwrap();
    fs::set_permissions(desk.at("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    desk.says_without_rights("a directory without permission", "podmux validate closed");
    fs::set_permissions(desk.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// A pod in JSON.
const JSON: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;

/// An agent that cannot be reached, and one that can.
fn agents(desk: &mut Desk) {
    desk.says("no agent", "podmux get pods --server unix:s");
    desk.says("an agent that is elsewhere", "podmux get pods --server http://127.0.0.1:1");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    desk.shown.push((port.clone(), "PORT"));
    let run = format!("podmux run --pod-manifest-path m --anonymous-auth --listen 127.0.0.1:{port}");
    stop(desk.logs("a port that is in use", &run, "address unavailable"));
    stop(desk.logs("a directory that does not exist", "podmux run --pod-manifest-path n", "source failed"));

    desk.file("m/web.yaml", pod("web", "i:1"));
    desk.file("m/web-copy.yaml", pod("web", "i:1"));
    fs::copy(desk.at("deployment.yaml"), desk.at("m/deployment.yaml")).unwrap();
    let run = "podmux run --pod-manifest-path m --state-dir state --listen unix:s --listen 127.0.0.1:0";
    let agent = Process::start(&mut desk.podmux(run));
    let tcp = agent.logs("address=127.0.0.1:");
    let port = tcp.trim().rsplit(':').next().unwrap().to_owned();
    desk.shown.push((port.clone(), "PORT"));
    wait_for(|| {
        let found = desk.podmux("podmux get pod web-n1 --server unix:s").output().unwrap();
        found.status.success().then_some(())
    });
    // The certificates are made beside it.
    wait_for(|| desk.at("state/auth/server.crt").exists().then_some(()));
    desk.says("two agents with one state directory", &run.replace("unix:s", "unix:t"));
    // Without the columns, whose widths and ages differ.
    let output = desk.podmux("podmux get sources --server unix:s").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let problems = output.lines().skip_while(|line| !line.is_empty()).skip(2);
    let said: Vec<String> =
        problems.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let done = "a Deployment and a copy in the directory: `podmux get sources --server unix:s`";
    desk.note(done.to_owned(), &said.join("\n"));
    for (done, command) in [
        ("nothing in the namespace", "podmux get pods -n prod --server unix:s"),
        ("a pod without the name of its node", "podmux get pod web --server unix:s"),
        ("deleting a pod of a file", "podmux delete pod web-n1 --server unix:s"),
        ("a pod that does not exist", "podmux delete pod nope --server unix:s"),
        ("applying a Deployment", "podmux apply -f deployment.yaml --server unix:s"),
        ("applying an empty file", "podmux apply -f empty.yaml --server unix:s"),
        ("logs without a runtime", "podmux logs web-n1 --server unix:s"),
        ("http where TLS is", &*format!("podmux get pods --server http://127.0.0.1:{port}")),
        ("https without the CA", &*format!("podmux get pods --server https://127.0.0.1:{port}")),
        (
            "https without a token",
            &*format!("podmux get pods --server https://127.0.0.1:{port} --ca-file state/auth/ca.crt"),
        ),
        (
            "a wrong token",
            &format!(
                "podmux get pods --server https://127.0.0.1:{port} --ca-file state/auth/ca.crt --token-file token"
            ),
        ),
    ] {
        desk.says(done, command);
    }
    // The user's group depends on the machine.
    desk.shown.push(("nogroup".to_owned(), "GROUP"));
    fs::set_permissions(desk.at("s"), fs::Permissions::from_mode(0o0)).unwrap();
    desk.says_without_rights("no permission for the socket", "podmux get pods --server unix:s");
    stop(agent);
    desk.says("an agent that has stopped", "podmux get pods --server unix:s");
}

#[test]
fn each_mistake_is_answered_with_what_where_and_what_next() {
    let mut desk = Desk::new();
    words(&mut desk);
    settings(&mut desk);
    manifests(&mut desk);
    agents(&mut desk);
    assert!(desk.rows.len() >= 50, "{}", desk.rows.len());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/newcomers.md");
    let table = desk.table();
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &table).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    for (ours, golden) in table.lines().zip(golden.lines()) {
        assert_eq!(ours, golden, "UPDATE_EXPECT=1 rewrites tests/newcomers.md");
    }
    assert_eq!(table, golden);
}
