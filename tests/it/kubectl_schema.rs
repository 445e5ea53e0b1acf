//! The real kubectl with schemas, and with writes: the same commands on the agent and on a real kube-apiserver.

use std::{fs, path::Path};

use crate::support::kubectl::{Both, Kubectl, Row, compare, programs};

const FEWER: &str = "the agent has fewer resources";
const COLUMNS: &str =
    "the difference to an absent pod begins with temporary files, and admission adds fields";

/// Commands that read schemas.
#[rustfmt::skip]
const SCHEMAS: &[Row] = &[
    ("explain pod", None),
    ("explain pods", None),
    ("explain po.metadata", None),
    ("explain pod --recursive", None),
    ("explain pod --api-version=v1", None),
    ("explain pod.spec.containers", None),
    ("explain pod.spec.containers --recursive", None),
    ("explain pod.spec.containers.resources.limits", None),
    ("explain pod.status.conditions.lastTransitionTime", None),
    ("explain pod.spec.bogus", None),
    ("explain pod.bogus.name", None),
    ("explain node.status.nodeInfo", None),
    ("explain ns.status", None),
    ("explain svc.spec --recursive", None),
    ("explain event.involvedObject --api-version=v1", None),
    ("explain selfsubjectaccessreviews.spec", None),
    ("explain selfsubjectreviews.status --recursive", None),
    ("explain none", None),
    ("explain pod --api-version=v9", None),
    ("explain deployment", Some(("the server doesn't have a resource type \"deployment\"", FEWER))),
    ("explain pod --output plaintext-openapiv2", None),
    ("explain pod --recursive --output plaintext-openapiv2", None),
    ("explain pod.spec.containers --output plaintext-openapiv2", None),
    ("explain pod.spec.bogus --output plaintext-openapiv2", None),
    ("explain selfsubjectreviews --output plaintext-openapiv2", None),
];

/// Commands that write, one after the other. `@name` is a manifest of [`FILES`].
#[rustfmt::skip]
const WRITES: &[Row] = &[
    ("create --validate=strict -f @unknown", None),
    ("create --validate=true -f @unknown", None),
    ("apply --validate=strict -f @unknown", None),
    ("apply --validate=warn --dry-run=server -f @unknown", None),
    ("create --validate=ignore --dry-run=server -f @unknown", None),
    ("create --validate=strict -f @misspelt", Some(("\"spec.containers[0].imag\"; did you mean image?", "the agent suggests a field"))),
    ("create --validate=strict -f @wrong", Some(("spec.containers", "the response names the field, and not in Go's terms"))),
    ("get pods -o name", None),
    ("create --validate=warn -f @unknown", None),
    ("create -f @unknown", None),
    ("apply --validate=strict -f @two", None),
    ("apply --validate=strict -f @two", None),
    ("diff -f @two", None),
    ("diff -f @third", Some(("+ name: third", COLUMNS))),
    ("apply --prune --prune-allowlist=core/v1/Pod -l prune=yes -f @one", None),
    ("get pods -o name", None),
    ("create -f @third", None),
    ("create -f @third", None),
    ("replace -f @third-labelled", None),
    ("replace --force -f @third", None),
    ("replace -f @none", None),
    ("get pods -L app", None),
    ("run quick --image=i:1", None),
    ("run quick --image=i:1", None),
    ("run tried --image=i:1 --dry-run=server -o name", None),
    ("run labelled --image=i:1 --labels=app=y,b=c --port=80 --env=A=b --restart=Never", None),
    ("get pods --show-labels", None),
    ("delete pod none", None),
    ("delete pod none --ignore-not-found", None),
    ("delete pods --all --dry-run=server", None),
    ("delete pods -l app=none", None),
    ("delete pods -l app=y --wait=true", None),
    ("delete pod quick --wait=false", None),
    ("wait --for=delete pod/quick --timeout=30s", None),
    ("delete -f @one", None),
    ("get pods -o name", None),
    ("delete pods --field-selector metadata.name=third --force", None),
    ("create -f @two", None),
    ("delete pods --all --force --grace-period=0", None),
    ("create -f @two", None),
    ("delete pods --all --now", None),
    ("get pods", None),
];

/// Manifests. Their pods have no node, so that the kube-apiserver deletes them at once.
const FILES: [(&str, &str); 8] = [
    ("misspelt", "metadata: {name: misspelt}\nspec: {containers: [{name: c, image: 'i:1', imag: x}]}"),
    (
        "unknown",
        "metadata: {name: unknown}\nspec: {replicas: 3, containers: [{name: c, image: 'i:1', colour: x}]}",
    ),
    ("wrong", "metadata: {name: wrong}\nspec: {containers: none}"),
    ("one", "metadata: {name: one, labels: {prune: 'yes'}}\nspec: {containers: [{name: c, image: 'i:1'}]}"),
    (
        "another",
        "metadata: {name: another, labels: {prune: 'yes'}}\nspec: {containers: [{name: c, image: 'i:1'}]}",
    ),
    (
        "third",
        "metadata: {name: third, labels: {app: x}}\nspec: {tolerations: [{operator: Exists}], containers: [{name: c, image: 'i:1'}]}",
    ),
    (
        "third-labelled",
        "metadata: {name: third, labels: {app: z}}\nspec: {tolerations: [{operator: Exists}], containers: [{name: c, image: 'i:2'}]}",
    ),
    ("none", "metadata: {name: none}\nspec: {containers: [{name: c, image: 'i:1'}]}"),
];

fn write_manifests(directory: &Path) {
    let pod = |text: &str| format!("apiVersion: v1\nkind: Pod\n{text}\n");
    for (name, text) in FILES {
        fs::write(directory.join(name), pod(text)).unwrap();
    }
    let both =
        FILES.into_iter().filter(|(name, _)| ["one", "another"].contains(name)).map(|(_, text)| pod(text));
    fs::write(directory.join("two"), both.collect::<Vec<_>>().join("---\n")).unwrap();
}

/// The commands with the paths of the manifests in this directory.
fn with_paths(commands: &[Row], directory: &Path) -> Vec<(String, Option<(&'static str, &'static str)>)> {
    let path = format!("{}/", directory.display());
    commands.iter().map(|(command, difference)| (command.replace('@', &path), *difference)).collect()
}

fn both(namespace: &str, check: impl Fn(&Both, &[Kubectl; 2]) -> String) {
    let Some(both) = Both::start(namespace) else { return };
    let problems: String = programs().iter().map(|program| check(&both, &both.with(program))).collect();
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn kubectl_explains_what_is_served_as_with_an_apiserver() {
    both("schemas", |_, sides| compare(sides, SCHEMAS));
}

#[test]
fn kubectl_validates_creates_replaces_and_deletes_pods_as_with_an_apiserver() {
    both("writes", |both, sides| {
        write_manifests(both.home.path());
        let commands = with_paths(WRITES, both.home.path());
        let rows: Vec<Row<'_>> =
            commands.iter().map(|(command, difference)| (&**command, *difference)).collect();
        compare(sides, &rows)
    });
}
