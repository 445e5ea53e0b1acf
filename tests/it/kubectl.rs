//! The real kubectl: the same commands on the agent and on a real kube-apiserver.

use std::{fs, process::Stdio};

use serde_json::Value;

use crate::support::{
    kubectl::{Both, Kubectl, NODE, Row, alike, compare, manifest, programs},
    process::{Lines, Process, podmux},
};

#[test]
fn kubectl_watches_and_waits_for_the_work_of_others_as_with_an_apiserver() {
    let Some(both) = Both::start("kubectl") else { return };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    manifest(&directory.path().join("pods"), &[("a", "x"), ("b", "y"), ("c", "x")]);
    both.same("get pods");
    both.same(&format!("create --validate=false -f {}", at("pods")));
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

const NOT_SERVED: &str = "a node agent has none";
const NO_CONTAINERS: &str = "the agent does not reach into containers; the apiserver finds no kubelet";
const NO_PODS: &str = "the agent runs no pods; the apiserver finds no kubelet";
const NO_PATCH: &str = "nodes are for reading";
const NO_AGE: &str = "the agent does not know when a namespace began";
const LESS: &str = "the agent serves less";

/// The commands that read, and those that cannot be done. Pods: a, b, c (manifest PODS); d, which is debugged.
#[rustfmt::skip]
const COMMANDS: &[Row] = &[
    ("get pods", None),
    ("get po -l app=x --show-labels", None),
    ("get pods -l app!=x --no-headers", None),
    ("get pods -l app,app!=x -L app,none", None),
    ("get pods -A -l suite=commands", None),
    ("get pods -A -l suite=commands -o name", None),
    ("get pods --field-selector metadata.name=b", None),
    ("get pods --field-selector status.phase=Running", None),
    ("get pods --field-selector spec.nodeName=kubectl-node,status.phase=Pending -o name", None),
    ("get pods --sort-by=.metadata.name --chunk-size=1", None),
    ("get pods --sort-by={.metadata.labels.app}", None),
    ("get pods -o name", None),
    ("get pods -o wide", Some(("SOURCE", "columns of the agent, and none that only a scheduler fills"))),
    ("get pods -o json", Some(("\"name\": \"a\"", "annotations of the agent, and what admission adds"))),
    ("get pods -o yaml", Some(("name: a", "annotations of the agent, and what admission adds"))),
    ("get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName", None),
    ("get pods -o jsonpath={.items[*].spec.containers[*].image}", None),
    ("get pods -o go-template={{range.items}}{{.metadata.name}};{{end}}", None),
    ("get pod a -o jsonpath={.kind}/{.metadata.none}", None),
    ("get pod a none b", None),
    ("get pod a none --ignore-not-found", None),
    ("get pod none --ignore-not-found", None),
    ("get pod/a pod/b -o name", None),
    ("get pods.v1. a -o name", None),
    ("get pod a --subresource=status", None),
    ("get all", Some(("NAME READY", "pods are the only resource of the category, so kubectl prints no prefix"))),
    ("get all -o name", None),
    ("get pods --watch --request-timeout=3s --output-watch-events", None),
    ("get pods --watch-only --request-timeout=3s", None),
    ("get pod b -w --request-timeout=3s -o name", None),
    ("get pods -l app==x==y", Some(("unable to parse", "the agent says what may follow"))),
    ("get pods --field-selector bogus=1", Some(("field label not supported: bogus", "the agent lists the fields"))),
    ("get pods -o bogus", None),
    ("get --raw /readyz", None),
    ("get --raw /api/v1/namespaces/commands/pods/none", None),
    ("get nodes kubectl-node", None),
    ("get node kubectl-node -o wide", None),
    ("get nodes -l kubernetes.io/hostname=kubectl-node -o name", None),
    ("get node none", None),
    ("get node kubectl-node -w --request-timeout=3s", None),
    ("describe node kubectl-node", Some(("Kubelet Version: podmux/", "admission adds a taint, and the agent has no leases"))),
    ("get namespaces commands default -o name", None),
    ("get ns commands", Some(("commands Active <unknown>", NO_AGE))),
    ("get ns -l kubernetes.io/metadata.name=commands -o name", None),
    ("get ns none", Some(("none Active <unknown>", "a pod can be posted to each namespace"))),
    ("describe ns commands", Some(("Status: Active", "the agent has no quotas"))),
    ("get services", None),
    ("get svc -A -l none=x", None),
    ("describe pod a", None),
    ("describe pods -l suite=commands", None),
    ("describe pod none", None),
    ("wait pod/a --for=jsonpath={.status.phase}=Pending --timeout=5s", None),
    ("wait pods -l app=x --for=jsonpath={.metadata.labels.app}=x --timeout=5s", None),
    ("wait pod/a --for=condition=Ready --timeout=3s", None),
    ("wait pod/a --for=create --timeout=5s", None),
    ("wait pod/none --for=delete --timeout=5s", None),
    ("wait pod/none --for=condition=Ready --timeout=3s", None),
    ("api-versions", Some(("authorization.k8s.io/v1\nv1\n", LESS))),
    ("api-resources -o wide", Some(("pods po v1 true Pod create,delete,deletecollection,get,list,patch,update,watch all\n", LESS))),
    ("api-resources --namespaced=false -o name", Some(("namespaces\nnodes\n", LESS))),
    ("api-resources --api-group=authentication.k8s.io", Some(("SelfSubjectReview", LESS))),
    ("version", Some(("Server Version: v0.1.", "its own version"))),
    ("cluster-info", Some(("http://127.0.0.1:", "another address"))),
    ("auth can-i get pods", None),
    ("auth can-i list nodes", None),
    ("auth can-i get pods --subresource=log", None),
    ("auth can-i delete pod/a -q", None),
    ("auth can-i get /metrics", None),
    ("auth can-i head /metrics", None),
    ("auth can-i patch pods", None),
    ("auth can-i create nodes", Some(("no - the caller may get, list, watch nodes", "nodes are for reading"))),
    ("auth can-i get deployments", Some(("no - the agent has no deployments", NOT_SERVED))),
    ("auth can-i get /nope", Some(("no - the caller may not get /nope", "there is no such path"))),
    ("auth can-i --list", Some(("pods [] [] [create delete deletecollection get list patch update watch]", LESS))),
    ("auth whoami", Some(("Username system:anonymous", "another user"))),
    ("logs none", None),
    ("logs a -c none", None),
    ("logs a", Some(("NotImplemented", NO_PODS))),
    ("logs -l app=x --all-containers --prefix", Some(("NotImplemented", NO_PODS))),
    ("logs a --tail=1 --prefix", Some(("NotImplemented", NO_PODS))),
    ("logs a --previous --timestamps", Some(("NotImplemented", NO_PODS))),
    ("logs a -c c --since=1h --limit-bytes=5", Some(("NotImplemented", NO_PODS))),
    ("logs none --tail=1", None),
    ("logs a -c none --previous", None),
    ("events", None),
    ("get events", None),
    ("top pods", None),
    ("top nodes", None),
    ("get deployments", Some(("the server doesn't have a resource type \"deployments\"", NOT_SERVED))),
    ("rollout status deployment/x", Some(("the server doesn't have a resource type \"deployment\"", NOT_SERVED))),
    ("rollout status pod/a", None),
    ("scale pod/a --replicas=2", Some(("the server does not serve /api/v1/namespaces/commands/pods/a/scale", "the agent names the path"))),
    ("autoscale pod/a --min=1 --max=2", None),
    ("taint nodes kubectl-node a=b:NoSchedule", Some(("does not allow PATCH on /api/v1/nodes/kubectl-node", NO_PATCH))),
    ("exec a -- ls", Some(("the agent does not reach into containers", NO_CONTAINERS))),
    ("exec none -- ls", None),
    ("attach a", Some(("the agent does not reach into containers", NO_CONTAINERS))),
    ("cp a:/etc/hosts /dev/null", Some(("the agent does not reach into containers", NO_CONTAINERS))),
    ("port-forward a 0:80", None),
    ("debug d --copy-to=copy --image=i:1 -c debugger", None),
    ("delete pod copy --force --grace-period=0", None),
    ("debug node/kubectl-node --image=i:1", Some(("Creating debugging pod node-debugger-kubectl-node-", "a random name"))),
    ("delete pods --field-selector metadata.name!=a,metadata.name!=b,metadata.name!=c,metadata.name!=d --force --grace-period=0", Some(("pod \"node-debugger-kubectl-node-", "a random name"))),
    ("debug d --image=i:1", Some(("ephemeral containers are disabled for this cluster", NO_CONTAINERS))),
    ("cordon kubectl-node", Some(("does not allow PATCH on /api/v1/nodes/kubectl-node", NO_PATCH))),
    ("drain kubectl-node", Some(("does not allow PATCH on /api/v1/nodes/kubectl-node", NO_PATCH))),
    ("uncordon kubectl-node", Some(("node/kubectl-node already uncordoned", "it was never cordoned"))),
];

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: x, suite: commands}, annotations: {k: v}}
spec:
  nodeName: kubectl-node
  tolerations: [{key: t, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
  containers: [{name: c, image: 'i:1'}]
---
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {app: z, suite: commands}, annotations: {k: v}}
spec:
  nodeName: kubectl-node
  tolerations: [{key: t, operator: Exists}]
  volumes: [{name: e, emptyDir: {}}, {name: h, hostPath: {path: /tmp}}]
  initContainers: [{name: i, image: 'i:0', command: [sh, -c, 'true']}]
  containers:
  - name: c
    image: 'i:1'
    ports: [{containerPort: 80, name: http}]
    env: [{name: A, value: b}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {requests: {cpu: 100m, memory: 10Mi}, limits: {cpu: 200m, memory: 20Mi}}
    livenessProbe: {httpGet: {path: /, port: 80}}
    volumeMounts: [{name: e, mountPath: /e}, {name: h, mountPath: /h, readOnly: true}]
  - {name: d, image: 'i:2'}
---
apiVersion: v1
kind: Pod
metadata: {name: c, labels: {app: x, suite: commands}, annotations: {k: v}}
spec:
  nodeName: kubectl-node
  tolerations: [{key: t, operator: Exists}]
  hostNetwork: true
  containers: [{name: c, image: 'i:1'}]
---
apiVersion: v1
kind: Pod
metadata: {name: d}
spec: {nodeName: kubectl-node, containers: [{name: c, image: 'i:1'}]}
";

/// Makes the agent's node in the kube-apiserver. It has no address, so that no kubelet is looked for.
fn make_node(both: &Both) {
    let mut node: Value = serde_json::from_str(&both.ours.must(&format!("get node {NODE} -o json"))).unwrap();
    node["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    node["status"].as_object_mut().unwrap().remove("addresses");
    let path = both.home.path().join("node");
    fs::write(&path, node.to_string()).unwrap();
    both.theirs.must(&format!("create -f {}", path.display()));
}

#[test]
fn the_commands_of_kubectl_end_as_with_an_apiserver() {
    let Some(both) = Both::start("commands") else { return };
    make_node(&both);
    let pods = both.home.path().join("pods");
    fs::write(&pods, PODS).unwrap();
    both.same(&format!("create --validate=false -f {}", pods.display()));
    let mut problems = String::new();
    for program in programs() {
        let sides = both.with(&program);
        problems += &compare(&sides, COMMANDS);
    }
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn a_caller_with_the_read_token_learns_what_it_may_not_do() {
    let Some(program) = programs().pop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let socket = format!("unix:{}", at("socket"));
    let (state, run) = (at("state"), ["run", "--listen", "127.0.0.1:0", "--listen", &socket, "--state-dir"]);
    let agent = Process::start(podmux(&run).arg(&state).stdout(Stdio::null()));
    agent.logs("started");
    let as_caller = |kind: &[&str], args: &str| {
        let made = podmux(&["kubeconfig", "--server", &socket]).args(kind).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        fs::write(at("kubeconfig"), made.stdout).unwrap();
        let args = format!("--kubeconfig={} {args}", at("kubeconfig"));
        let home = directory.path().to_owned();
        Kubectl { program: program.clone(), args: Vec::new(), home }.run(&args)
    };
    let answer = |kind: &[&str], args: &str| {
        let output = as_caller(kind, args);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    };
    for (command, full, reading) in [
        ("auth can-i get pods", "yes", "yes"),
        ("auth can-i create pods", "yes", "no - the caller may get, list, watch pods"),
        ("auth can-i delete pods", "yes", "no - the caller may get, list, watch pods"),
        ("auth can-i get pods/log", "yes", "yes"),
        ("auth can-i post /pods", "yes", "no - the caller may not post /pods"),
        (
            "auth can-i get /credentials",
            "no - the caller may not get /credentials",
            "no - the caller may not get /credentials",
        ),
        ("auth can-i create selfsubjectreviews", "yes", "yes"),
        ("auth whoami -o jsonpath={.status.userInfo.username}", "podmux:token", "podmux:read-token"),
    ] {
        assert_eq!([answer(&[], command), answer(&["--read-only"], command)], [full, reading], "{command}");
    }
    // What it says is so.
    let refused = as_caller(&["--read-only"], "delete pod none");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Forbidden"), "{refused:?}");
}
