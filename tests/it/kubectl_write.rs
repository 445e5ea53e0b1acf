//! The commands of the real kubectl that write: the same ones on the agent and on a real kube-apiserver.

use std::{fmt::Write as _, fs, path::Path, process::Stdio};

use serde_json::Value;

use crate::support::kubectl::{Both, Kubectl, NODE, Row, programs, transcript};

/// The manifests of the commands, by the names of their files.
const FILES: &[(&str, &str)] = &[
    (
        "web1",
        "metadata: {name: web, labels: {app: x}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:1'}]}",
    ),
    (
        "web2",
        "metadata: {name: web, labels: {app: y}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:2'}]}",
    ),
    ("web3", "metadata: {name: web}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:3'}]}"),
    ("bad", "metadata: {name: bad}\nspec: {nodeName: NODE, containers: []}"),
    (
        "odd",
        "metadata: {name: odd}\nspec: {nodeName: NODE, bogusBogus: 1, containers: [{name: c, image: 'i:1', env: [{name: A, value: '1'}, {name: A, value: '2'}]}]}",
    ),
    ("odder", "metadata: {name: odd}\nspec: {nodeName: NODE, bogusBogus: 1, containers: []}"),
    (
        "more",
        "metadata: {name: more, labels: {app: x}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:1', env: [{name: A, value: '1'}, {name: B, value: '2'}]}]}",
    ),
    (
        "less",
        "metadata: {name: more, labels: {app: x}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:9', env: [{name: A, value: '1'}, {name: B, value: '2'}]}]}",
    ),
    (
        "ssa1",
        "metadata: {name: ssa, labels: {a: '1', b: '2'}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:1'}]}",
    ),
    (
        "ssa2",
        "metadata: {name: ssa, labels: {a: '3'}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:2'}]}",
    ),
    (
        "ways-ab",
        "metadata: {name: ways, labels: {a: '1', b: '2'}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:1'}]}",
    ),
    (
        "ways-ac",
        "metadata: {name: ways, labels: {a: '1', c: '3'}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:1'}]}",
    ),
    (
        "ways-a",
        "metadata: {name: ways, labels: {a: '1'}}\nspec: {nodeName: NODE, containers: [{name: c, image: 'i:1'}]}",
    ),
];

const LABELS: &str = "get pod ways -o jsonpath={.metadata.labels}";

const READS_ALL: &str = "get pods -o jsonpath={range.items[*]}{.metadata.name}{.metadata.labels}{.spec.containers[*].image}{.metadata.generation};{end}";

const WHY: &str = "the response says what is wrong";

/// The commands, one after the other. `replace --force` is not among them: on the apiserver it waits for a kubelet.
#[rustfmt::skip]
const COMMANDS: &[Row<'_>] = &[
    ("create -f DIR/web1", None),
    ("create -f DIR/web1", None),
    ("create -f DIR/bad", None),
    ("create -f DIR/odd --validate=warn --dry-run=server", None),
    ("create -f DIR/odd --validate=ignore --dry-run=server", None),
    ("create -f DIR/odder --validate=warn", None),
    ("apply -f DIR/web1", None),
    ("apply -f DIR/web1", None),
    ("apply -f DIR/web2 --dry-run=server", None),
    ("apply -f DIR/web2 --dry-run=client", None),
    ("diff -f DIR/web2", None),
    (READS_ALL, None),
    ("apply -f DIR/web2", None),
    ("apply -f DIR/web2", None),
    ("diff -f DIR/web2", None),
    ("apply -f DIR/more", None),
    ("apply -f DIR/more --dry-run=server", None),
    ("apply -f DIR/less", None),
    ("apply view-last-applied pod/more", None),
    ("apply set-last-applied -f DIR/more", None),
    ("apply -f DIR/bad", None),
    (READS_ALL, None),
    ("label pod web tier=front", None),
    ("label pod web tier=front", None),
    ("label pod web tier=back", None),
    ("label pod web tier=back --overwrite", None),
    ("label pod web tier=none --overwrite --dry-run=server", None),
    ("label pod web tier-", None),
    ("label pod web tier-", None),
    ("label pods --all suite=write", None),
    ("label pods -l app=x other=1", None),
    ("label pod web tier=front --resource-version=1", None),
    ("label pod none tier=front", None),
    ("label pod web -bad=front", None),
    ("annotate pod web note=one", None),
    ("annotate pod web note=two", None),
    ("annotate pod web note=two --overwrite", None),
    ("annotate pod web note-", None),
    ("annotate pods --all suite=write", None),
    (READS_ALL, None),
    ("patch pod web -p {\"metadata\":{\"labels\":{\"p\":\"1\"}}}", None),
    ("patch pod web -p {\"metadata\":{\"labels\":{\"p\":\"1\"}}}", None),
    ("patch pod web -p {\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i:4\"}]}}", None),
    ("patch pod web --type=merge -p {\"metadata\":{\"labels\":{\"p\":null,\"q\":\"2\"}}}", None),
    ("patch pod web --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/containers/0/image\",\"value\":\"i:5\"}]", None),
    ("patch pod web --type=json -p [{\"op\":\"test\",\"path\":\"/spec/containers/0/image\",\"value\":\"none\"}]", Some(("operation 0 of the JSON patch: \"/spec/containers/0/image\": value did not match", WHY))),
    ("patch pod web --dry-run=server -p {\"metadata\":{\"labels\":{\"p\":\"3\"}}}", None),
    ("patch pod web -p {", Some(("BadRequest): error decoding patch: 1:2: the text ends inside a value", WHY))),
    ("patch pod none -p {}", None),
    ("set image pod/web c=i:6", None),
    ("set image pod/web c=i:6", None),
    ("set image pod/web none=i:6", None),
    ("set image pods --all c=i:7", None),
    ("edit pod web", None),
    ("edit pod web", None),
    (READS_ALL, None),
    ("replace -f DIR/web3", None),
    ("replace -f DIR/web3 --dry-run=server", None),
    ("replace -f DIR/bad", Some(("spec.containers: Required value", "the apiserver looks for the pod first"))),
    ("apply --server-side -f DIR/ssa1 --dry-run=server", None),
    ("apply --server-side -f DIR/ssa1", None),
    ("apply --server-side -f DIR/ssa1", None),
    ("diff --server-side -f DIR/ssa2", None),
    ("label pod ssa c=3", None),
    ("apply --server-side -f DIR/ssa2", None),
    ("apply --server-side -f DIR/ssa2 --field-manager=other", None),
    ("apply --server-side -f DIR/ssa1 --field-manager=other --force-conflicts", None),
    (READS_ALL, None),
    ("apply -f DIR/ways-ab", None),
    ("apply --server-side --force-conflicts -f DIR/ways-ac", None),
    (LABELS, None),
    ("apply view-last-applied pod/ways", None),
    ("apply -f DIR/ways-a", None),
    (LABELS, None),
    ("apply -f DIR/ways-ab", None),
    ("apply --server-side --force-conflicts -f DIR/ways-a", None),
    (LABELS, None),
    ("delete pod ways --grace-period=0 --force", None),
    ("apply --server-side -f DIR/ways-ac", None),
    ("apply -f DIR/ways-ab", None),
    (LABELS, None),
    ("apply --server-side --force-conflicts -f DIR/ways-a", None),
    (LABELS, None),
    ("run r --image=i:1 --labels=app=r", None),
    ("run r --image=i:1", None),
    ("run s --image=i:1 --dry-run=server", None),
    ("run s --image=i:1 --restart=Never --env=A=b --command -- sh -c true", None),
    ("get pod s -o jsonpath={.spec.containers[0].command}{.spec.restartPolicy}", None),
    ("delete pod r --now", None),
    ("delete pod s --dry-run=server", None),
    ("delete pod s", None),
    ("delete pod none", None),
    ("delete pod none --ignore-not-found", None),
    ("delete -f DIR/ssa1 --grace-period=0 --force", None),
    ("delete pods -l app=x --grace-period=0 --force", None),
    ("delete pods --all --grace-period=0 --force", None),
    ("get pods", None),
];

/// Removes what differs in each run of `diff`: the names of its files and the places in them.
fn without_places(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !["diff -", "--- ", "+++ ", "@@"].iter().any(|begin| line.starts_with(begin)));
    lines.map(|line| line.to_owned() + "\n").collect()
}

fn run(side: &Kubectl, command: &str, directory: &Path) -> String {
    let args = command.replace("DIR", &directory.display().to_string());
    let mut process = side.command(&args);
    // Each edit changes the image of the first run, and nothing in the second.
    process.env("KUBE_EDITOR", "sed -i s/i:7/i:8/").env("KUBECTL_EXTERNAL_DIFF", "diff -U0");
    let output = process.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    without_places(&transcript(command, &output).replace(&directory.display().to_string(), "DIR"))
}

#[test]
fn the_writing_commands_of_kubectl_end_as_with_an_apiserver() {
    let Some(both) = Both::start("writing") else { return };
    let directory = tempfile::tempdir().unwrap();
    for (name, manifest) in FILES {
        let manifest = format!("apiVersion: v1\nkind: Pod\n{}\n", manifest.replace("NODE", NODE));
        fs::write(directory.path().join(name), manifest).unwrap();
    }
    let mut problems = String::new();
    for program in programs() {
        let sides = both.with(&program);
        for (command, difference) in COMMANDS {
            let [theirs, ours] = sides.each_ref().map(|side| run(side, command, directory.path()));
            let problem = match difference {
                _ if ours.contains("panic:") => "kubectl panics",
                None if theirs != ours => "the outputs differ",
                Some(_) if theirs == ours => "the outputs no longer differ",
                Some((part, _)) if !ours.contains(part) => "the difference is another one",
                _ => continue,
            };
            writeln!(problems, "{}: {problem}\n{theirs}--- the agent\n{ours}", program.display()).unwrap();
        }
    }
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn a_label_of_kubectl_changes_nothing_else() {
    let Some(both) = Both::start("label-only") else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pod");
    fs::write(&path, format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{nodeName: {NODE}, containers: [{{name: c, image: 'i:1'}}]}}\n")).unwrap();
    for program in programs() {
        let [_, ours] = both.with(&program);
        ours.must(&format!("create -f {}", path.display()));
        let read = || serde_json::from_str::<Value>(&ours.must("get pod web -o json")).unwrap();
        let (before, _, after) = (read(), ours.must("label pod web a=b"), read());
        assert_eq!(after["metadata"]["labels"]["a"], "b");
        assert_eq!(before["spec"], after["spec"]);
        assert_eq!(before["metadata"]["generation"], after["metadata"]["generation"]);
        assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
        let replaced = ours.must(&format!("replace --force --grace-period=0 -f {}", path.display()));
        assert!(replaced.ends_with("pod/web replaced\n"), "{replaced}");
        ours.must("delete pod web --grace-period=0 --force");
    }
}
