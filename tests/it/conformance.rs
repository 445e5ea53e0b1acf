//! Kubernetes' paths answer like a real kube-apiserver: the same requests go to both.

use std::{io::PipeReader, process::Stdio};

use serde_json::{Value, json};

use crate::support::{
    dialogue::{Answer, Deliberate, Side, compare},
    kubernetes::Apiserver,
    process::{Process, full_pipe, podmux},
};

/// A running agent. Its sink accepts no update, so that a terminating pod stays for its grace
/// period, as in an apiserver without a kubelet.
pub(crate) struct Agent {
    url: String,
    _process: Process,
    _unread: PipeReader,
}

impl Agent {
    fn start() -> Self {
        let (unread, full) = full_pipe();
        let mut run = podmux(&[
            "run",
            "--node-name",
            "node1",
            "--listen",
            "127.0.0.1:0",
            "--anonymous-auth",
            "--state-dir",
            "none",
        ]);
        let process = Process::start(run.stdout(Stdio::from(full)));
        let line = process.logs("listening");
        let (_, address) = line.rsplit_once("address=").unwrap();
        Self { url: format!("http://{address}"), _process: process, _unread: unread }
    }
}

/// Why podmux answers 422 where the apiserver answers 400.
const TYPES: &str = "the response names all invalid fields, and not in Go's terms";

/// Sends the same requests to both, in a namespace of their own, and compares the responses.
/// podmux needs no namespace objects.
pub(crate) async fn conforms(
    namespace: &str,
    deliberate: &[Deliberate],
    requests: impl AsyncFn(&mut Side, &str),
) {
    let Some((mut kubernetes, mut podmux, _agent)) = both(namespace).await else { return };
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    requests(&mut kubernetes, &pods).await;
    requests(&mut podmux, &pods).await;
    compare(&kubernetes, &podmux, deliberate);
}

/// An apiserver with a namespace, and an agent, which ends when it is dropped.
pub(crate) async fn both(namespace: &str) -> Option<(Side, Side, Agent)> {
    let mut kubernetes = Side::kubernetes(Apiserver::shared()?);
    let made = json!({"metadata": {"name": namespace}});
    let made = kubernetes.aside("POST /api/v1/namespaces", &made).await;
    assert_eq!(made.code, 201, "{}", made.json);
    let agent = Agent::start();
    let podmux = Side::podmux(&agent.url);
    Some((kubernetes, podmux, agent))
}

/// The tests with a real apiserver depend on this.
#[tokio::test]
async fn the_apiserver_restarts_with_its_data_and_can_be_compacted() {
    let Some(apiserver) = Apiserver::start() else { return };
    // Each run of the server needs a new client: no connection survives it.
    let mut side = Side::kubernetes(&apiserver);
    let made = side.aside("POST /api/v1/namespaces/default/pods", &pod("web")).await;
    assert_eq!(made.code, 201, "{}", made.json);
    let labelled = with("web", &json!({"labels": {"a": "b"}}), &no());
    assert_eq!(side.aside("PUT /api/v1/namespaces/default/pods/web", &labelled).await.code, 200);
    let compacted = apiserver.command("compact");
    assert!(compacted["revision"].as_u64() > made.metadata("resourceVersion").parse().ok(), "{compacted}");
    assert_eq!(apiserver.command("restart"), json!({"done": "restart"}));
    let mut side = Side::kubernetes(&apiserver);
    let read = side.aside("GET /api/v1/namespaces/default/pods/web", &Value::Null).await;
    assert_eq!(read.metadata("uid"), made.metadata("uid"));
    let watch = format!(
        "GET /api/v1/pods?watch=1&timeoutSeconds=5&resourceVersion={}",
        made.metadata("resourceVersion")
    );
    let expired = side.aside(&watch, &Value::Null).await;
    assert_eq!(
        (&expired.json["type"], &expired.json["object"]["code"]),
        (&json!("ERROR"), &json!(410)),
        "{}",
        expired.json
    );
    apiserver.command("stop");
    assert!(std::net::TcpStream::connect(apiserver.at.url.trim_start_matches("https://")).is_err());
    apiserver.command("start");
    let mut side = Side::kubernetes(&apiserver);
    let read = side.aside("GET /api/v1/namespaces/default/pods/web", &Value::Null).await;
    assert_eq!(read.code, 200);
}

/// A pod on a node: the apiserver deletes a pod without a node at once.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i:1"}]},
    })
}

/// The pod with other fields of metadata and spec.
pub(crate) fn with(name: &str, metadata: &Value, spec: &Value) -> Value {
    let mut pod = pod(name);
    for (part, fields) in [("metadata", metadata), ("spec", spec)] {
        for (field, value) in fields.as_object().unwrap() {
            pod[part][field] = value.clone();
        }
    }
    pod
}

pub(crate) fn no() -> Value {
    json!({})
}

const JSON: (&str, &str) = ("content-type", "application/json");
const YAML: (&str, &str) = ("content-type", "application/yaml");

#[tokio::test]
async fn a_pod_is_created() {
    let meant = [
        ("create with a finalizer", "422 Invalid", "nothing on the node would remove it"),
        ("create with managedFields that are no list", "422 Invalid", TYPES),
        (
            "replace with empty managedFields",
            ".metadata.resourceVersion",
            "podmux has none, so that the pod does not change",
        ),
    ];
    conforms("created", &meant, async |side, pods| {
        let post = format!("POST {pods}");
        side.send("create", &post, &pod("web")).await;
        side.send("create again", &post, &pod("web")).await;
        side.ask("read", &format!("GET {pods}/web")).await;
        side.ask("read an unknown pod", &format!("GET {pods}/none")).await;
        let full = with(
            "full",
            &json!({
                "labels": {"a": "b"}, "annotations": {"c": "d"},
                "generation": 7, "creationTimestamp": "2020-01-01T00:00:00Z", "selfLink": "/x",
                "deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
            }),
            &json!({"hostNetwork": true, "terminationGracePeriodSeconds": 5}),
        );
        side.send("create with much metadata", &post, &full).await;
        let any = with("any", &json!({"resourceVersion": "0"}), &no());
        side.send("create with the resourceVersion 0", &post, &any).await;
        side.send("create with a UID", &post, &with("uid", &json!({"uid": "mine"}), &no())).await;
        let mut status = pod("status");
        status["status"] = json!({"phase": "Running", "podIP": "10.0.0.1"});
        side.send("create with a status", &post, &status).await;
        let yaml = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: yaml\nspec:\n  nodeName: node1\n  containers:\n  - {name: c, image: 'i:1'}\n";
        side.ask_with("create from YAML", &post, &[YAML], yaml).await;
        let charset = ("content-type", "application/json; charset=utf-8");
        side.ask_with("create with a charset", &post, &[charset], pod("charset").to_string()).await;
        side.ask_with("create without a media type", &post, &[], pod("untyped").to_string()).await;
        let generated = with("", &json!({"name": null, "generateName": "gen-"}), &no());
        side.send("create with generateName", &post, &generated).await;
        let both = with("both", &json!({"generateName": "gen-"}), &no());
        side.send("create with a name and generateName", &post, &both).await;
        let long = with("", &json!({"name": null, "generateName": "g".repeat(100)}), &no());
        side.send("create with a long generateName", &post, &long).await;
        let mut bare = pod("bare");
        bare.as_object_mut().unwrap().retain(|field, _| field != "kind" && field != "apiVersion");
        side.send("create without a kind", &post, &bare).await;
        let cluster_wide = "POST /api/v1/pods";
        side.send("create without a namespace in the path", cluster_wide, &pod("nowhere")).await;
        for (label, name, managed) in [
            ("create with empty managedFields", "managed", json!([{}])),
            ("create with managedFields", "managed2", json!([{"manager": "m", "operation": "Bogus", "fieldsType": "x"}])),
            ("create with managedFields that are no list", "managed3", json!("x")),
        ] {
            side.send(label, &post, &with(name, &json!({"managedFields": managed}), &no())).await;
        }
        let managed = with("managed", &json!({"managedFields": [{}]}), &no());
        side.send("replace with empty managedFields", &format!("PUT {pods}/managed"), &managed).await;
        let long = format!("fieldManager={}", "m".repeat(129));
        side.send("create with a long field manager", &format!("{post}?{long}"), &pod("long")).await;
        side.send("create with a field manager", &format!("{post}?fieldManager=m"), &pod("fielded")).await;
        side.send("replace with a long field manager", &format!("PUT {pods}/web?{long}"), &pod("web")).await;
        let finalizers = with("finalizer", &json!({"finalizers": ["example.com/f"]}), &no());
        side.send("create with a finalizer", &post, &finalizers).await;
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let meant = [];
    conforms("dry", &meant, async |side, pods| {
        side.send("create", &format!("POST {pods}?dryRun=All"), &pod("web")).await;
        side.ask("the pod does not exist", &format!("GET {pods}/web")).await;
        let generated = with("", &json!({"name": null, "generateName": "gen-"}), &no());
        side.send("create with generateName", &format!("POST {pods}?dryRun=All"), &generated).await;
        side.send("another value", &format!("POST {pods}?dryRun=Some"), &pod("web")).await;
        side.send("both values", &format!("POST {pods}?dryRun=All&dryRun=All"), &pod("web")).await;
        side.send("no value", &format!("POST {pods}?dryRun="), &pod("empty")).await;
        side.send("create without a dry run", &format!("POST {pods}"), &pod("web")).await;
        side.send("create an existing pod", &format!("POST {pods}?dryRun=All"), &pod("web")).await;
        let labelled = with("web", &json!({"labels": {"a": "b"}}), &no());
        side.send("replace", &format!("PUT {pods}/web?dryRun=All"), &labelled).await;
        side.ask("the pod is unchanged", &format!("GET {pods}/web")).await;
        side.ask("delete", &format!("DELETE {pods}/web?dryRun=All")).await;
        side.send("delete by a body", &format!("DELETE {pods}/web"), &json!({"dryRun": ["All"]})).await;
        side.send("delete by another body", &format!("DELETE {pods}/web"), &json!({"dryRun": ["Some"]}))
            .await;
        side.ask("delete at once", &format!("DELETE {pods}/web?dryRun=All&gracePeriodSeconds=0")).await;
        side.ask("the pod is still unchanged", &format!("GET {pods}/web")).await;
    })
    .await;
}

#[tokio::test]
async fn a_body_that_is_not_a_pod_is_rejected() {
    let meant = [
        ("null", "400 BadRequest", "it is not a pod, rather than an empty one"),
        ("an empty object", ".details.causes", "a manifest needs a kind, in every source"),
        ("a field of the wrong type", "422 Invalid", TYPES),
        ("a label that is a number", "422 Invalid", TYPES),
        ("another kind", "422 Invalid", TYPES),
        ("an unknown kind", "422 Invalid", TYPES),
        ("an unknown version", "422 Invalid", TYPES),
        ("a resourceVersion", "400 BadRequest", "the apiserver answers the same with 500"),
    ];
    conforms("bodies", &meant, async |side, pods| {
        let post = format!("POST {pods}");
        side.ask_with("no body", &post, &[JSON], "").await;
        side.ask_with("incomplete JSON", &post, &[JSON], "{\"kind\": \"Pod\", ").await;
        side.ask_with("YAML as JSON", &post, &[JSON], "kind: Pod\n").await;
        side.ask_with("broken YAML", &post, &[YAML], "kind: [Pod\n").await;
        side.ask_with("an array", &post, &[JSON], "[]").await;
        side.ask_with("a string", &post, &[JSON], "\"x\"").await;
        side.ask_with("null", &post, &[JSON], "null").await;
        side.ask_with("an empty object", &post, &[JSON], "{}").await;
        let wrong = with("wrong", &no(), &json!({"containers": "none"}));
        side.send("a field of the wrong type", &post, &wrong).await;
        let number = with("number", &json!({"labels": {"a": 5}}), &no());
        side.send("a label that is a number", &post, &number).await;
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}});
        side.send("another kind", &post, &service).await;
        let unknown = json!({"apiVersion": "v1", "kind": "Bogus", "metadata": {"name": "s"}});
        side.send("an unknown kind", &post, &unknown).await;
        let version = json!({"apiVersion": "v9", "kind": "Pod", "metadata": {"name": "s"}});
        side.send("an unknown version", &post, &version).await;
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [pod("a")]});
        side.send("a list", &post, &list).await;
        side.ask_with(
            "an unknown media type",
            &post,
            &[("content-type", "text/plain")],
            pod("a").to_string(),
        )
        .await;
        side.ask_with("a broken media type", &post, &[("content-type", "json")], pod("a").to_string()).await;
        let namespace = with("elsewhere", &json!({"namespace": "other"}), &no());
        side.send("another namespace", &post, &namespace).await;
        let version = with("versioned", &json!({"resourceVersion": "1"}), &no());
        side.send("a resourceVersion", &post, &version).await;
    })
    .await;
}

#[tokio::test]
async fn fieldvalidation_ignores_warns_or_rejects() {
    let meant = [
        ("both in YAML", ".warnings", "duplicate keys of YAML are reported like those of JSON"),
        ("several", ".warnings", "the warning suggests a field"),
        ("another case", ".warnings", "the warning suggests a field"),
    ];
    conforms("fields", &meant, async |side, pods| {
        let unknown = |name: &str| with(name, &no(), &json!({"replicas": 3}));
        side.send("by default", &format!("POST {pods}"), &unknown("default")).await;
        side.send("with a warning", &format!("POST {pods}?fieldValidation=Warn"), &unknown("warn")).await;
        side.send("ignored", &format!("POST {pods}?fieldValidation=Ignore"), &unknown("ignore")).await;
        side.send("rejected", &format!("POST {pods}?fieldValidation=Strict"), &unknown("strict")).await;
        side.send("an unknown value", &format!("POST {pods}?fieldValidation=Bogus"), &unknown("bogus")).await;
        let mut several = unknown("several");
        several["metadata"]["nickname"] = json!("x");
        several["spec"]["containers"][0]["imag"] = json!("i:1");
        several["colour"] = json!("red");
        side.send("several", &format!("POST {pods}"), &several).await;
        side.send("several, rejected", &format!("POST {pods}?fieldValidation=Strict"), &several).await;
        // The field that is meant is missing, which is invalid too.
        let mut misspelt = pod("misspelt");
        misspelt["spec"]["containers"] = json!([{"nam": "c", "image": "i:1"}]);
        side.send("misspelt, rejected", &format!("POST {pods}?fieldValidation=Strict"), &misspelt).await;
        let twice = |name: &str| pod(name).to_string().replace("\"metadata\":", "\"kind\":\"Pod\",\"metadata\":");
        let strict = format!("POST {pods}?fieldValidation=Strict");
        side.ask_with("twice the same field", &format!("POST {pods}"), &[JSON], twice("twice")).await;
        side.ask_with("twice the same field, rejected", &strict, &[JSON], twice("twice-strict")).await;
        let yaml = |name: &str| format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{a: b}}\n  labels: {{a: c}}\nspec:\n  nodeName: node1\n  containers:\n  - name: c\n    image: i:1\n    colour: red\n");
        side.ask_with("both in YAML", &format!("POST {pods}"), &[YAML], yaml("yaml")).await;
        side.ask_with("both in YAML, rejected", &strict, &[YAML], yaml("yaml-strict")).await;
        let case = with("case", &no(), &json!({"NodeName": "x"}));
        side.send("another case", &format!("POST {pods}"), &case).await;
        side.send("replace", &format!("PUT {pods}/default"), &unknown("default")).await;
        side.send("replace, rejected", &format!("PUT {pods}/default?fieldValidation=Strict"), &unknown("default")).await;
    })
    .await;
}

#[tokio::test]
async fn an_invalid_pod_is_rejected_with_its_causes() {
    let meant = [
        ("a bad generateName", ".details.name", "no name is generated for a rejected pod"),
        (
            "replace it by an invalid pod",
            ".details.causes",
            "any change of a spec is allowed, so none is a cause",
        ),
    ];
    conforms("invalid", &meant, async |side, pods| {
        let post = format!("POST {pods}");
        side.send("no name", &post, &with("", &json!({"name": null}), &no())).await;
        side.send("an empty name", &post, &pod("")).await;
        side.send("a bad name", &post, &pod("Bad_Name")).await;
        side.send("a long name", &post, &pod(&"a".repeat(254))).await;
        let generated = with("", &json!({"name": null, "generateName": "Bad_"}), &no());
        side.send("a bad generateName", &post, &generated).await;
        side.send("no containers", &post, &with("x", &no(), &json!({"containers": []}))).await;
        let mut no_spec = pod("x");
        no_spec.as_object_mut().unwrap().remove("spec");
        side.send("no spec", &post, &no_spec).await;
        let several = with(
            "x",
            &json!({"labels": {"-bad": "b"}, "annotations": {"a/b/c": "d"}}),
            &json!({
                "restartPolicy": "Sometimes", "terminationGracePeriodSeconds": -1,
                "containers": [{"name": "C", "image": ""}, {"name": "d", "image": "i", "ports": [{"containerPort": 0}]}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}],
            }),
        );
        side.send("several", &post, &several).await;
        side.send("a bad finalizer", &post, &with("x", &json!({"finalizers": ["x"]}), &no())).await;
        side.send("create a valid pod", &post, &pod("x")).await;
        side.send("replace it by an invalid pod", &format!("PUT {pods}/x"), &several).await;
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_replaced() {
    let meant = [
        (
            "with an invalid version",
            "409 Conflict",
            "the apiserver answers 500; podmux compares versions as texts",
        ),
        ("without a name", "422 Invalid", TYPES),
        ("with another command", "200", "any change of a spec is allowed"),
    ];
    conforms("replaced", &meant, async |side, pods| {
        let put = format!("PUT {pods}/web");
        side.send("replace an unknown pod", &put, &pod("web")).await;
        let first = side.send("create", &format!("POST {pods}"), &pod("web")).await;
        let image = |image: &str| json!({"containers": [{"name": "c", "image": image}]});
        side.send("without a version", &put, &with("web", &no(), &image("i:2"))).await;
        let read = side.ask("read", &format!("GET {pods}/web")).await;
        let version = |version: &str| json!({"resourceVersion": version});
        let old = with("web", &version(&first.metadata("resourceVersion")), &image("i:3"));
        side.send("with an old version", &put, &old).await;
        let new = with("web", &version(&read.metadata("resourceVersion")), &image("i:3"));
        let third = side.send("with the right version", &put, &new).await;
        side.send("with the previous response", &put, &third.json).await;
        side.send("with an invalid version", &put, &with("web", &version("x"), &image("i:4"))).await;
        side.send("with version 0", &put, &with("web", &version("0"), &image("i:4"))).await;
        let uid = with("web", &json!({"uid": first.metadata("uid")}), &image("i:4"));
        side.send("with its UID", &put, &uid).await;
        let uid = with("web", &json!({"uid": "another"}), &image("i:5"));
        side.send("with another UID", &put, &uid).await;
        side.send("with labels", &put, &with("web", &json!({"labels": {"a": "b"}}), &image("i:4"))).await;
        side.send("without them again", &put, &with("web", &no(), &image("i:4"))).await;
        side.send("with another name", &put, &with("other", &no(), &no())).await;
        side.send("without a name", &put, &with("", &json!({"name": null}), &no())).await;
        side.send("with another namespace", &put, &with("web", &json!({"namespace": "other"}), &no())).await;
        let mut status = with("web", &no(), &image("i:4"));
        status["status"] = json!({"phase": "Failed"});
        side.send("with a status", &put, &status).await;
        side.ask("read at the end", &format!("GET {pods}/web")).await;
        side.send(
            "with another command",
            &put,
            &with("web", &no(), &json!({"containers": [{"name": "c", "image": "i:4", "command": ["x"]}]})),
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_deleted_with_grace() {
    let meant = [("replace", "409 Conflict", "a terminating pod is not replaced")];
    conforms("graceful", &meant, async |side, pods| {
        let web = format!("{pods}/web");
        side.ask("an unknown pod", &format!("DELETE {web}")).await;
        let made = side.send("create", &format!("POST {pods}"), &pod("web")).await;
        side.ask("delete", &format!("DELETE {web}")).await;
        side.ask("read", &format!("GET {web}")).await;
        side.ask("delete again", &format!("DELETE {web}")).await;
        side.ask("delete sooner", &format!("DELETE {web}?gracePeriodSeconds=20")).await;
        side.ask("delete later", &format!("DELETE {web}?gracePeriodSeconds=25")).await;
        side.send("create it again", &format!("POST {pods}"), &pod("web")).await;
        side.ask("with a negative grace", &format!("DELETE {web}?gracePeriodSeconds=-5")).await;
        side.ask("at once", &format!("DELETE {web}?gracePeriodSeconds=0")).await;
        side.ask("it is gone", &format!("GET {web}")).await;
        side.ask("delete a deleted pod", &format!("DELETE {web}")).await;
        let again = side.send("create under the old name", &format!("POST {pods}"), &pod("web")).await;
        assert_ne!(made.metadata("uid"), again.metadata("uid"));
        side.ask("its own grace", &format!("DELETE {web}?gracePeriodSeconds=")).await;
        for (name, grace) in [("short", 5), ("none", 0)] {
            let spec = json!({"terminationGracePeriodSeconds": grace});
            side.aside(&format!("POST {pods}"), &with(name, &no(), &spec)).await;
        }
        side.ask("a pod with a short grace", &format!("DELETE {pods}/short")).await;
        side.ask("a pod without grace", &format!("DELETE {pods}/none")).await;
        side.ask("it is gone at once", &format!("GET {pods}/none")).await;
        side.ask("the remaining pods", &format!("GET {pods}")).await;
        side.ask("delete the new one", &format!("DELETE {web}")).await;
        let labelled = with("web", &json!({"labels": {"a": "b"}}), &no());
        side.send("replace", &format!("PUT {web}"), &labelled).await;
    })
    .await;
}

#[tokio::test]
async fn a_delete_has_options() {
    let meant = [
        ("another UID", ".details.kind", "here the apiserver has Pod instead of pods"),
        ("another version", ".details.kind", "here the apiserver has Pod instead of pods"),
        ("another UID in the query", ".details.kind", "here the apiserver has Pod instead of pods"),
        ("another version in the query", ".details.kind", "here the apiserver has Pod instead of pods"),
        ("an empty UID", ".details.kind", "here the apiserver has Pod instead of pods"),
        ("an empty version", ".details.kind", "here the apiserver has Pod instead of pods"),
        (
            "another UID in the query beside a body",
            "409 Conflict",
            "the apiserver ignores the query if there is a body",
        ),
    ];
    conforms("options", &meant, async |side, pods| {
        let web = format!("DELETE {pods}/web");
        let made = side.send("create", &format!("POST {pods}"), &pod("web")).await;
        let only_if = |field: &str, value: &str| json!({"preconditions": {field: value}});
        side.send("another UID", &web, &only_if("uid", "x")).await;
        side.send("another version", &web, &only_if("resourceVersion", "999999")).await;
        side.ask("another UID in the query", &format!("{web}?uid=x")).await;
        side.ask("another version in the query", &format!("{web}?resourceVersion=999999")).await;
        side.send("an empty UID", &web, &only_if("uid", "")).await;
        side.send("an empty version", &web, &only_if("resourceVersion", "")).await;
        side.ask("empty ones in the query", &format!("{web}?uid=&resourceVersion=&dryRun=All")).await;
        let own = format!("uid={}&resourceVersion={}", made.metadata("uid"), made.metadata("resourceVersion"));
        side.ask("its own in the query", &format!("{web}?{own}&dryRun=All")).await;
        side.send(
            "another UID in the query beside a body",
            &format!("{web}?uid=x"),
            &json!({"dryRun": ["All"]}),
        )
        .await;
        side.ask("a grace that is not a number", &format!("{web}?gracePeriodSeconds=x")).await;
        side.ask_with("an incomplete body", &web, &[JSON], "{").await;
        side.ask_with("a body of another media type", &web, &[("content-type", "text/plain")], "{}").await;
        side.send("a body of another kind", &web, &pod("web")).await;
        side.send("a grace that is a string", &web, &json!({"gracePeriodSeconds": "5"})).await;
        side.ask("an invalid propagation policy", &format!("{web}?propagationPolicy=x")).await;
        side.ask("an empty propagation policy", &format!("{web}?propagationPolicy=")).await;
        side.send("an empty propagation policy of the body", &web, &json!({"propagationPolicy": ""})).await;
        side.send("orphans and a policy", &web, &json!({"orphanDependents": false, "propagationPolicy": "Orphan"}))
            .await;
        let query = "orphanDependents=true&propagationPolicy=Orphan";
        side.ask("orphans and a policy in the query", &format!("{web}?{query}")).await;
        side.send("orphans that are no boolean", &web, &json!({"orphanDependents": "x"})).await;
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 25, "propagationPolicy": "Background",
            "preconditions": {"uid": made.metadata("uid"), "resourceVersion": made.metadata("resourceVersion")},
        });
        side.send("all options", &web, &options).await;
        let both = json!({"gracePeriodSeconds": 20});
        side.send("a body and a query", &format!("{web}?gracePeriodSeconds=10"), &both).await;
        side.ask_with("a body of YAML", &web, &[YAML], "gracePeriodSeconds: 9\n").await;
        side.send("an unknown option", &web, &json!({"gracePeriod": 5})).await;
        let empty = json!({"apiVersion": "", "kind": "", "dryRun": null, "gracePeriodSeconds": null, "preconditions": null});
        side.send("empty options", &web, &empty).await;
        side.send("no options", &web, &no()).await;
        side.ask_with("a body that is null", &web, &[JSON], "null").await;
    })
    .await;
}

#[tokio::test]
async fn a_collection_is_deleted() {
    let meant = [
        ("a UID that no pod has", ".details.kind", "the same as for one pod"),
        ("a UID in the query that no pod has", ".details.kind", "the same as for one pod"),
    ];
    conforms("collected", &meant, async |side, pods| {
        for (name, app) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "z")] {
            let pod = with(name, &json!({"labels": {"app": app}}), &no());
            side.aside(&format!("POST {pods}"), &pod).await;
        }
        let b = side.aside(&format!("GET {pods}/b"), &Value::Null).await;
        side.ask("nothing", &format!("DELETE {pods}?labelSelector=none")).await;
        side.ask("a bad selector", &format!("DELETE {pods}?labelSelector=a=b=c")).await;
        side.ask("an unknown field", &format!("DELETE {pods}?fieldSelector=bogus=x")).await;
        side.ask("a grace that is no number", &format!("DELETE {pods}?gracePeriodSeconds=x")).await;
        side.send("a body of another kind", &format!("DELETE {pods}"), &pod("a")).await;
        side.ask("an invalid propagation policy", &format!("DELETE {pods}?propagationPolicy=x")).await;
        side.ask("an unknown parameter", &format!("DELETE {pods}?bogus=1&labelSelector=none")).await;
        side.ask("a version of the future", &format!("DELETE {pods}?resourceVersion=9000000000000000000"))
            .await;
        side.ask("a dry run", &format!("DELETE {pods}?dryRun=All")).await;
        side.ask("the pods are there", &format!("GET {pods}")).await;
        let other = json!({"preconditions": {"uid": "other"}});
        side.send("a UID that no pod has", &format!("DELETE {pods}?labelSelector=app=y"), &other).await;
        let of_b = format!("DELETE {pods}?labelSelector=app=y");
        side.ask("a UID in the query that no pod has", &format!("{of_b}&uid=other")).await;
        let own = json!({"gracePeriodSeconds": 7, "preconditions": {
            "uid": b.metadata("uid"), "resourceVersion": b.metadata("resourceVersion"),
        }});
        side.send("the UID of the pod", &format!("DELETE {pods}?fieldSelector=metadata.name=b"), &own).await;
        side.ask("it is being deleted", &format!("GET {pods}/b")).await;
        side.ask("by a label", &format!("DELETE {pods}?labelSelector=app=x")).await;
        side.ask("a page", &format!("DELETE {pods}?labelSelector=app=z&limit=1")).await;
        side.ask("they are being deleted", &format!("GET {pods}")).await;
        side.ask("all at once", &format!("DELETE {pods}?gracePeriodSeconds=0")).await;
        side.ask("none is left", &format!("GET {pods}")).await;
        side.ask("an empty collection", &format!("DELETE {pods}")).await;
        side.ask("of a namespace without pods", "DELETE /api/v1/namespaces/nothing-here/pods").await;
    })
    .await;
}

#[tokio::test]
async fn pods_are_selected_by_labels() {
    conforms("labels", &[], async |side, pods| {
        for (name, labels) in [
            ("bare", json!({})),
            ("db", json!({"app": "db", "tier": "back", "n": "10"})),
            ("web", json!({"app": "web", "tier": "front", "n": "9"})),
            ("empty", json!({"app": ""})),
            ("prefixed", json!({"example.com/app": "x.y_z-1"})),
        ] {
            side.aside(&format!("POST {pods}"), &with(name, &json!({"labels": labels}), &no())).await;
        }
        for selector in [
            "",
            "app",
            "!app",
            "app=web",
            "app==web",
            "app!=web",
            "app in (web,db)",
            "app in ( web , db )",
            "app notin (web)",
            "app=web,tier=front",
            "app=web,tier=back",
            "app, tier!=back",
            "n>9",
            "n<10",
            "app=",
            "app in ()",
            "app notin ()",
            "app in (,web)",
            "example.com/app=x.y_z-1",
            "app = web",
            " app=web ",
            "n>09",
            "app>1",
            // Invalid ones.
            "app=web=db",
            "=web",
            "app in",
            "app in (web",
            "app in web",
            "app,,tier",
            ",",
            "app,",
            "/app",
            "a/b/c",
            "app=we b",
            "-app",
            "app=-web",
            "n>x",
            "!",
            "app!",
            "(app)",
            "app notin",
            "!app=web",
            "app=web,",
            "in (a)",
            "APP in (web)",
            "app IN (web)",
            "example.com/",
            "app=ä",
            "n>1,n<99999999999999999999",
        ] {
            let label: &'static str = Box::leak(format!("{selector:?}").into_boxed_str());
            side.ask(label, &format!("GET {pods}?labelSelector={selector}")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn pods_are_selected_by_fields() {
    conforms("fields-of", &[], async |side, pods| {
        side.aside(&format!("POST {pods}"), &pod("web")).await;
        let other = json!({"restartPolicy": "Never", "schedulerName": "mine", "hostNetwork": true, "serviceAccountName": ""});
        side.aside(&format!("POST {pods}"), &with("db", &no(), &other)).await;
        for selector in [
            "", "metadata.name=web", "metadata.name==web", "metadata.name!=web", "metadata.namespace=fields-of",
            "metadata.namespace=other", "spec.nodeName=node1", "spec.nodeName=other", "spec.nodeName!=other",
            "status.phase=Pending", "status.phase=Running", "spec.restartPolicy=Always", "spec.restartPolicy!=Always",
            "spec.schedulerName=mine", "spec.serviceAccountName=", "spec.serviceAccountName=x", "spec.hostNetwork=true",
            "spec.hostNetwork=false", "status.podIP=", "status.podIPs=", "spec.host=node1", "spec.host!=node1", "status.nominatedNodeName=", "metadata.name=",
            "metadata.name=web,spec.nodeName=node1", "metadata.name=web,metadata.name=db", " metadata.name=web",
            "metadata.name= web", "metadata.name=web,", ",",
            // Invalid ones.
            "metadata.uid=x", "spec.containers=x", "metadata.labels.app=x", "name=web", "metadata.name", "!metadata.name",
            "metadata.name in (web)", "metadata.name=web=db", "=web", "metadata.name=a\\,b", "metadata.name=a\\=b",
            "metadata.name=a\\b", "metadata.name=Web_", "status.phase",
        ] {
            let label: &'static str = Box::leak(format!("{selector:?}").into_boxed_str());
            side.ask(label, &format!("GET {pods}?fieldSelector={selector}")).await;
        }
        let both = format!("GET {pods}?fieldSelector=metadata.name=web&labelSelector=app");
        side.ask("fields and labels", &both).await;
    })
    .await;
}

#[tokio::test]
async fn a_list_has_pages() {
    let meant = [("one pod at an invalid version", "400 BadRequest", "the apiserver answers 500")];
    conforms("pages", &meant, async |side, pods| {
        side.ask("an empty list", &format!("GET {pods}")).await;
        for name in ["e", "a", "c", "d", "b"] {
            let labels =
                json!({"labels": {"odd": if ["a", "c", "e"].contains(&name) { "yes" } else { "no" }}});
            side.aside(&format!("POST {pods}"), &with(name, &labels, &no())).await;
        }
        let all = side.ask("all", &format!("GET {pods}")).await;
        let first = side.ask("the first page", &format!("GET {pods}?limit=2")).await;
        let next = |answer: &Answer| answer.metadata("continue");
        let second = side.ask("the second", &format!("GET {pods}?limit=2&continue={}", next(&first))).await;
        side.ask("the third", &format!("GET {pods}?limit=2&continue={}", next(&second))).await;
        side.ask("the rest at once", &format!("GET {pods}?continue={}", next(&first))).await;
        side.ask("the rest in a larger page", &format!("GET {pods}?limit=100&continue={}", next(&first)))
            .await;
        side.ask("exactly all", &format!("GET {pods}?limit=5")).await;
        side.ask("no limit", &format!("GET {pods}?limit=0")).await;
        side.ask("a negative limit", &format!("GET {pods}?limit=-1")).await;
        side.ask("a limit that is not a number", &format!("GET {pods}?limit=x")).await;
        side.ask("an empty limit", &format!("GET {pods}?limit=")).await;
        side.ask("empty seconds", &format!("GET {pods}?timeoutSeconds=")).await;
        side.ask("an empty version", &format!("GET {pods}?resourceVersion=")).await;
        side.ask("an invalid token", &format!("GET {pods}?limit=2&continue=x")).await;
        let odd =
            side.ask("a page of a selection", &format!("GET {pods}?limit=2&labelSelector=odd=yes")).await;
        let rest = format!("GET {pods}?limit=2&labelSelector=odd=yes&continue={}", next(&odd));
        side.ask("its rest", &rest).await;
        let version = all.metadata("resourceVersion");
        side.ask("not older than", &format!("GET {pods}?resourceVersion={version}")).await;
        side.ask("any version", &format!("GET {pods}?resourceVersion=0")).await;
        side.ask("an invalid version", &format!("GET {pods}?resourceVersion=x")).await;
        let matching = |how: &str| format!("GET {pods}?resourceVersionMatch={how}&resourceVersion={version}");
        side.ask("matching not older", &matching("NotOlderThan")).await;
        side.ask("matching exactly", &matching("Exact")).await;
        side.ask("an unknown match", &matching("Bogus")).await;
        let page = format!("GET {pods}?limit=2&resourceVersion={version}");
        side.ask("a page of this version", &page).await;
        side.ask("a timeout", &format!("GET {pods}?timeout=1m30s&timeoutSeconds=5")).await;
        side.ask("a timeout without a whole number", &format!("GET {pods}?timeout=.5m")).await;
        side.ask("a timeout of ISO 8601", &format!("GET {pods}?timeout=PT1M")).await;
        side.ask("a timeout with a space", &format!("GET {pods}?timeout=1m%201s")).await;
        side.ask("a timeout that is none", &format!("GET {pods}?timeout=invalid")).await;
        side.ask("a timeout without a unit", &format!("GET {pods}/a?timeout=5")).await;
        side.ask("seconds that are none", &format!("GET {pods}?timeoutSeconds=x")).await;
        side.ask("matching without a version", &format!("GET {pods}?resourceVersionMatch=Exact")).await;
        let any = format!("GET {pods}?resourceVersionMatch=Exact&resourceVersion=0");
        side.ask("matching any version exactly", &any).await;
        let token = format!("GET {pods}?limit=2&continue={}", next(&first));
        let matching = "resourceVersionMatch=NotOlderThan&resourceVersion=0";
        side.ask("a token and a match", &format!("{token}&{matching}")).await;
        side.ask(
            "a token and a version",
            &format!("GET {pods}?limit=2&continue={}&resourceVersion={version}", next(&first)),
        )
        .await;
        let everywhere = "GET /api/v1/pods?labelSelector=odd";
        side.ask("in all namespaces", everywhere).await;
        let one = side.ask("a page in all namespaces", &format!("{everywhere}&limit=1")).await;
        side.ask("its next", &format!("{everywhere}&limit=3&continue={}", next(&one))).await;
        side.ask("a namespace without pods", "GET /api/v1/namespaces/nothing-here/pods").await;
        side.ask("a version of the future", &format!("GET {pods}?resourceVersion=9000000000000000000")).await;
        side.ask("one pod at a version", &format!("GET {pods}/a?resourceVersion=0")).await;
        side.ask("one pod at an invalid version", &format!("GET {pods}/a?resourceVersion=x")).await;
        side.ask("one pod of the future", &format!("GET {pods}/a?resourceVersion=9000000000000000000")).await;
        let none = format!("GET {pods}/none?resourceVersion=9000000000000000000");
        side.ask("a missing pod of the future", &none).await;
    })
    .await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_rejected() {
    let meant = [
        ("an unknown path", "404 NotFound", "every error is a Status"),
        ("an empty namespace", "404 NotFound", "the apiserver reads it as all namespaces"),
        ("exec", "404 NotFound", "the agent does not reach into containers"),
        ("ephemeral containers", "404 NotFound", "the agent does not reach into containers"),
        ("YAML is requested", "406 NotAcceptable", "only JSON is supported"),
        ("HEAD", "200", "a GET without its body"),
        ("a name with a slash", "400 BadRequest", "the response has the reason"),
    ];
    conforms("methods", &meant, async |side, pods| {
        side.aside(&format!("POST {pods}"), &pod("web")).await;
        let json = pod("web").to_string();
        side.ask_with("PUT of a collection", &format!("PUT {pods}"), &[JSON], json.clone()).await;
        side.ask_with("POST of a pod", &format!("POST {pods}/web"), &[JSON], json.clone()).await;
        side.ask_with("an invented method", &format!("BREW {pods}/web"), &[], "").await;
        side.ask("an unknown resource", "GET /api/v1/namespaces/methods/bogus").await;
        side.ask("an unknown subresource", &format!("GET {pods}/web/bogus")).await;
        side.ask("an unknown path", "GET /bogus").await;
        side.ask("an unknown version", "GET /api/v9/pods").await;
        side.ask("a slash at the end", &format!("GET {pods}/")).await;
        side.ask("a slash at the end of a pod", &format!("GET {pods}/none/?pretty=true")).await;
        side.ask("an empty namespace", "GET /api/v1/namespaces//pods?labelSelector=none").await;
        side.ask("two slashes", "GET /api/v1//pods").await;
        side.ask("the status of a pod", &format!("GET {pods}/web/status")).await;
        side.ask("the status of no pod", &format!("GET {pods}/none/status")).await;
        // Of a pod with a node the apiserver looks for this node, which other tests may have made.
        let unscheduled = with("unscheduled", &no(), &json!({"nodeName": null}));
        side.aside(&format!("POST {pods}"), &unscheduled).await;
        side.send("exec", &format!("POST {pods}/unscheduled/exec?command=ls"), &no()).await;
        let strategic = [("content-type", "application/strategic-merge-patch+json")];
        side.ask_with(
            "ephemeral containers",
            &format!("PATCH {pods}/web/ephemeralcontainers"),
            &strategic,
            "{}",
        )
        .await;
        side.ask_with("HTML is requested", &format!("GET {pods}/web"), &[("accept", "text/html")], "").await;
        side.ask_with("JSON is requested", &format!("GET {pods}/web"), &[("accept", "application/json")], "")
            .await;
        side.ask_with("anything is requested", &format!("GET {pods}/web"), &[("accept", "*/*")], "").await;
        side.ask_with("YAML is requested", &format!("GET {pods}/web"), &[("accept", "application/yaml")], "")
            .await;
        let table = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
        side.ask_with("a table is requested", &format!("GET {pods}/web"), &[table], "").await;
        side.ask_with(
            "HTML or JSON is requested",
            "GET /api/v1/namespaces/methods/pods/none",
            &[("accept", "text/html, application/json")],
            "",
        )
        .await;
        side.ask_with("HEAD", &format!("HEAD {pods}/web"), &[], "").await;
        side.ask("livez", "GET /livez").await;
        side.ask("a name with a slash", &format!("GET {pods}/a%2Fb")).await;
        side.ask("an invalid name", &format!("GET {pods}/Bad_Name")).await;
        side.ask("pretty", &format!("GET {pods}/web?pretty=true")).await;
        side.ask("an unknown parameter", &format!("GET {pods}/web?bogus=1")).await;
        side.ask("DELETE of all namespaces", "DELETE /api/v1/pods?labelSelector=none").await;
    })
    .await;
}

#[tokio::test]
async fn only_what_a_client_accepts_is_answered() {
    let meant = [
        ("nothing is acceptable", "406 NotAcceptable", "the apiserver ignores q=0"),
        ("a document, but nothing is acceptable", "406 NotAcceptable", "the apiserver ignores q=0"),
        ("a pod is created, and YAML is requested", "406 NotAcceptable", "only JSON is supported"),
    ];
    conforms("accepted", &meant, async |side, pods| {
        side.aside(&format!("POST {pods}"), &pod("web")).await;
        for (label, path) in [
            ("nothing is acceptable", &*format!("{pods}?labelSelector=none")),
            ("a document, but nothing is acceptable", "/version"),
        ] {
            side.ask_with(label, &format!("GET {path}"), &[("accept", "application/json;q=0")], "").await;
        }
        side.ask_with("HTML of a document", "GET /version", &[("accept", "text/html")], "").await;
        side.ask_with("HTML of discovery", "GET /api/v1", &[("accept", "text/html")], "").await;
        let yaml = [JSON, ("accept", "application/yaml")];
        let other = pod("other").to_string();
        side.ask_with("a pod is created, and YAML is requested", &format!("POST {pods}"), &yaml, other).await;
        side.ask_with(
            "a pod is created, and HTML is requested",
            &format!("POST {pods}"),
            &[JSON, ("accept", "text/html")],
            pod("third").to_string(),
        )
        .await;
        side.ask_with(
            "a pod is deleted, and HTML is requested",
            &format!("DELETE {pods}/web"),
            &[("accept", "text/html")],
            "",
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn the_options_of_logs_are_validated() {
    conforms("logs", &[], async |side, pods| {
        side.aside(&format!("POST {pods}"), &pod("one")).await;
        let containers = json!([{"name": "a", "image": "i:1"}, {"name": "b", "image": "i:1"}]);
        let init = json!([{"name": "i", "image": "i:1"}]);
        let two = with("two", &no(), &json!({"containers": containers, "initContainers": init}));
        side.aside(&format!("POST {pods}"), &two).await;
        for (label, request) in [
            ("an unknown pod", "none/log"),
            ("no container", "two/log"),
            ("an empty container", "two/log?container="),
            ("an unknown container", "one/log?container=x"),
            ("a container of another pod", "two/log?container=c"),
            ("negative lines", "one/log?tailLines=-1"),
            ("no bytes", "one/log?limitBytes=0"),
            ("no seconds", "one/log?sinceSeconds=0"),
            ("two beginnings", "one/log?sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z"),
            ("two bad beginnings", "one/log?sinceSeconds=0&sinceTime=2020-01-01T00:00:00Z"),
            ("all bad", "none/log?limitBytes=-1&tailLines=-2&sinceSeconds=-1&stream=All"),
            ("a stream", "one/log?stream=Stdout"),
            ("lines that are no number", "one/log?tailLines=x"),
            ("no number", "one/log?tailLines="),
            ("too many lines", "one/log?tailLines=99999999999999999999"),
            ("too few lines", "one/log?tailLines=-99999999999999999999"),
            ("a time that is none", "one/log?sinceTime=x"),
        ] {
            side.ask(label, &format!("GET {pods}/{request}")).await;
        }
        side.send("a post", &format!("POST {pods}/one/log"), &no()).await;
    })
    .await;
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

#[tokio::test]
async fn pods_are_watched() {
    let meant = [
        (
            "of the future",
            ".text .events",
            "the apiserver is silent until the version is reached, also if another run has given it out",
        ),
        ("as YAML", "406 NotAcceptable", "the error is JSON, too"),
        ("of a pod that is deleted at once", ".events", "it is not being deleted before it is gone"),
    ];
    conforms("watched", &meant, async |side, pods| {
        // A loaded kube-apiserver may need more than a second for what there is to be seen.
        let watch = |query: &str| format!("GET {pods}?watch=1&timeoutSeconds=3{query}");
        let briefly = |query: &str| watch(query).replace("timeoutSeconds=3", "timeoutSeconds=1");
        side.ask("of no pods", &briefly("")).await;
        let first =
            side.aside(&format!("POST {pods}"), &with("a", &json!({"labels": {"l": "1"}}), &no())).await;
        side.aside(&format!("POST {pods}"), &with("b", &json!({"labels": {"l": "2"}}), &no())).await;
        let list = side.aside(&format!("GET {pods}"), &Value::Null).await;
        side.aside(&format!("PUT {pods}/a"), &with("a", &json!({"labels": {"l": "2"}}), &no())).await;
        // Longer than all these watches.
        side.aside(&format!("DELETE {pods}/a"), &json!({"gracePeriodSeconds": 3600})).await;
        let (first, list) = (first.metadata("resourceVersion"), list.metadata("resourceVersion"));
        let from = |version: &str, query: &str| watch(&format!("&resourceVersion={version}{query}"));
        side.ask("without a version", &watch("")).await;
        side.ask("of any version", &from("0", "")).await;
        side.ask("from an event on", &from(&first, "")).await;
        side.ask("from a list on", &from(&list, "")).await;
        side.ask("of labels that a pod leaves", &from(&list, "&labelSelector=l=1")).await;
        side.ask("of labels that a pod gets", &from(&list, "&labelSelector=l=2")).await;
        side.ask("of one name", &from(&list, "&fieldSelector=metadata.name=b")).await;
        side.ask("of a name that does not exist", &from(&list, "&fieldSelector=metadata.name=c")).await;
        // Others write pods to the same kube-apiserver.
        let own = from(&list, "&fieldSelector=metadata.namespace=watched");
        side.ask("in all namespaces", &own.replace("/namespaces/watched", "")).await;
        let initial = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        side.ask("with initial events", &watch(initial)).await;
        let marked = format!("{initial}&allowWatchBookmarks=true");
        side.ask("with a mark at their end", &watch(&format!("{marked}&labelSelector=l=2"))).await;
        side.ask(
            "without initial events",
            &watch("&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"),
        )
        .await;
        side.ask(
            "with initial events of the future",
            &briefly(&format!("{marked}&resourceVersion=9000000000000000000")),
        )
        .await;
        side.ask("of the future", &briefly("&resourceVersion=9000000000000000000")).await;
        side.aside(&format!("DELETE {pods}/b"), &json!({"gracePeriodSeconds": 0})).await;
        side.ask("of a pod that is deleted at once", &from(&list, "&fieldSelector=metadata.name=b")).await;
        side.ask_with("as tables", &watch(&marked), &[("accept", TABLE)], "").await;
        side.ask_with("as metadata", &watch(&marked), &[("accept", PARTIAL)], "").await;
        side.ask_with("as HTML", &watch(""), &[("accept", "text/html")], "").await;
        side.ask_with("as YAML", &watch(""), &[("accept", "application/yaml")], "").await;
    })
    .await;
}

#[tokio::test]
async fn the_options_of_a_watch_are_checked() {
    let invalid = "the apiserver answers 500";
    let meant = [
        ("of an invalid version", "400 BadRequest", invalid),
        ("of a negative version", "400 BadRequest", invalid),
    ];
    conforms("watch-options", &meant, async |side, pods| {
        let watch = |query: &str| format!("GET {pods}?watch=1&timeoutSeconds=1{query}");
        side.ask("of an invalid version", &watch("&resourceVersion=x")).await;
        side.ask("of a negative version", &watch("&resourceVersion=-1")).await;
        for query in [
            "resourceVersionMatch=Exact",
            "resourceVersionMatch=NotOlderThan",
            "sendInitialEvents=true",
            "sendInitialEvents=true&resourceVersionMatch=Exact",
            "labelSelector=a=b=c",
            "fieldSelector=bogus=1",
            "continue=x",
            "limit=1&labelSelector=l=2",
            "limit=abc",
            "limit=",
            "sendInitialEvents=bogus&resourceVersionMatch=NotOlderThan&labelSelector=none",
        ] {
            let label: &'static str = Box::leak(query.to_owned().into_boxed_str());
            side.ask(label, &watch(&format!("&{query}"))).await;
        }
        side.ask("an invalid timeout", &format!("GET {pods}?watch=1&timeoutSeconds=x")).await;
        // Depending on chance, the apiserver sends an error before it ends.
        let ended = side.aside(&format!("GET {pods}?watch=1&timeoutSeconds=-5"), &Value::Null).await;
        assert_eq!(ended.code, 200);
        for no in ["0", "false", "False", "FALSE"] {
            let label: &'static str = Box::leak(format!("no watch: {no}").into_boxed_str());
            side.ask(label, &format!("GET {pods}?watch={no}")).await;
        }
        side.ask("an empty word", &format!("GET {pods}?watch=&timeoutSeconds=1")).await;
        side.ask("no initial events", &watch("&sendInitialEvents=False&resourceVersionMatch=NotOlderThan"))
            .await;
        side.ask("another word for true", &format!("GET {pods}?watch=bogus&timeoutSeconds=1")).await;
        side.ask("initial events of a list", &format!("GET {pods}?sendInitialEvents=1")).await;
    })
    .await;
}

#[tokio::test]
async fn pods_are_tables() {
    let meant = [(
        "as the first version",
        ".apiVersion .columns .continue .kind .rows .version .metadata .spec .status",
        "kubectl prefers v1 since 1.16",
    )];
    conforms("tables", &meant, async |side, pods| {
        for (name, labels) in [("a", json!({"l": "1"})), ("b", json!({}))] {
            side.aside(&format!("POST {pods}"), &with(name, &json!({"labels": labels}), &no())).await;
        }
        let accept = [("accept", TABLE)];
        side.ask_with("a list", &format!("GET {pods}"), &accept, "").await;
        side.ask_with("a page", &format!("GET {pods}?limit=1"), &accept, "").await;
        side.ask_with("no pods", &format!("GET {pods}?labelSelector=none"), &accept, "").await;
        side.ask_with("one pod", &format!("GET {pods}/a"), &accept, "").await;
        side.ask_with("no such pod", &format!("GET {pods}/none"), &accept, "").await;
        for included in ["None", "Metadata", "Object", "", "Bogus"] {
            let label: &'static str = Box::leak(format!("with {included:?}").into_boxed_str());
            side.ask_with(label, &format!("GET {pods}?includeObject={included}"), &accept, "").await;
        }
        for (label, accept) in [
            ("metadata of a pod", PARTIAL.to_owned()),
            ("as the second version", "application/json;as=Table;v=v2;g=meta.k8s.io".to_owned()),
            (
                "as the first version",
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json".to_owned(),
            ),
            ("of no group", "application/json;as=Table;v=v1".to_owned()),
            ("as something else", "application/json;as=Bogus;v=v1;g=meta.k8s.io".to_owned()),
            (
                "by quality",
                "application/json;q=0.1,application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5".to_owned(),
            ),
            ("by order", format!("application/json,{TABLE}")),
        ] {
            side.ask_with(label, &format!("GET {pods}/a"), &[("accept", &*accept)], "").await;
        }
        side.ask_with(
            "metadata of a list",
            &format!("GET {pods}"),
            &[("accept", &*PARTIAL.replace("Metadata;", "MetadataList;"))],
            "",
        )
        .await;
        for (accept, label) in [(TABLE, "a table"), (PARTIAL, "metadata")] {
            let headers = [JSON, ("accept", accept)];
            let labelled = |label: &str| {
                let metadata = json!({"labels": {"l": label}});
                with("c", &metadata, &no()).to_string()
            };
            for (request, body) in [
                (format!("POST {pods}"), labelled("1")),
                (format!("PUT {pods}/c"), labelled("2")),
                (format!("DELETE {pods}/c"), String::new()),
                (format!("DELETE {pods}/c?gracePeriodSeconds=0"), String::new()),
            ] {
                let label: &'static str = Box::leak(format!("{label} of {request}").into_boxed_str());
                side.ask_with(label, &request, &headers, body).await;
            }
        }
    })
    .await;
}
