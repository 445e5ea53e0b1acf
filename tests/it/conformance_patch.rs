//! PATCH answers like a real kube-apiserver: the same patches go to both.

use serde_json::{Value, json};

use crate::{
    conformance::{both, conforms, no, pod, with},
    support::{
        dialogue::{Answer, Side},
        random::Random,
    },
};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

async fn patch(side: &mut Side, label: &'static str, path: &str, kind: &str, body: &Value) -> Answer {
    side.ask_with(label, &format!("PATCH {path}"), &[("content-type", kind)], body.to_string()).await
}

/// A pod with two containers, a volume and labels.
fn rich(name: &str) -> Value {
    with(
        name,
        &json!({"labels": {"a": "1", "b": "2"}, "annotations": {"c": "d"}}),
        &json!({
            "containers": [
                {"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "args": ["x", "y"]},
                {"name": "d", "image": "i:2"},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k", "operator": "Exists"}],
        }),
    )
}

/// Why a change that the apiserver forbids is allowed.
const ANY_CHANGE: &str = "any change of a spec is allowed";

#[tokio::test]
async fn a_pod_is_patched_with_each_type_of_patch() {
    let meant = [("strategic: an added container", "200", ANY_CHANGE)];
    conforms("patched", &meant, async |side, pods| {
        side.aside(&format!("POST {pods}"), &rich("web")).await;
        let web = &*format!("{pods}/web");
        let image = |image: &str| json!({"spec": {"containers": [{"name": "d", "image": image}]}});
        patch(side, "strategic: an image", web, STRATEGIC, &image("i:3")).await;
        patch(side, "strategic: the same", web, STRATEGIC, &image("i:3")).await;
        let labels = json!({"metadata": {"labels": {"a": null, "e": "3"}, "annotations": null}});
        patch(side, "strategic: labels", web, STRATEGIC, &labels).await;
        patch(side, "merge: labels", web, MERGE, &json!({"metadata": {"labels": {"e": null, "f": "4"}}}))
            .await;
        patch(side, "merge: nothing", web, MERGE, &no()).await;
        let operations = json!([
            {"op": "test", "path": "/metadata/labels/f", "value": "4"},
            {"op": "replace", "path": "/metadata/labels/f", "value": "5"},
            {"op": "add", "path": "/metadata/labels/g~1h", "value": "6"},
            {"op": "copy", "from": "/metadata/labels/f", "path": "/metadata/labels/i"},
            {"op": "move", "from": "/metadata/labels/f", "path": "/metadata/labels/j"},
            {"op": "replace", "path": "/spec/containers/0/image", "value": "i:9"},
        ]);
        patch(side, "json: operations", web, JSON_PATCH, &operations).await;
        patch(side, "json: no operations", web, JSON_PATCH, &json!([])).await;
        let absent = json!([{"op": "replace", "path": "/metadata/labels/absent", "value": "x"}]);
        patch(side, "json: an absent label is replaced", web, JSON_PATCH, &absent).await;
        side.ask("read", &format!("GET {web}")).await;
        let generation = json!({"metadata": {"generation": 7, "creationTimestamp": null, "selfLink": "x"}});
        patch(side, "merge: what only the server sets", web, MERGE, &generation).await;
        let charset = "application/merge-patch+json; charset=utf-8";
        patch(side, "with a charset", web, charset, &json!({"metadata": {"labels": {"z": "9"}}})).await;
        let status = json!({"status": {"phase": "Failed", "reason": "x"}});
        patch(side, "merge: a status", web, MERGE, &status).await;
        let added = json!({"spec": {"containers": [{"name": "e", "image": "i:5"}]}});
        patch(side, "strategic: an added container", web, STRATEGIC, &added).await;
    })
    .await;
}

#[tokio::test]
async fn managed_fields_are_cleared() {
    conforms("managed", &[], async |side, pods| {
        let managed = json!({"metadata": {"managedFields": [{}]}});
        let replaced = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
        for (name, kind, body) in
            [("merge", MERGE, &managed), ("strategic", STRATEGIC, &managed), ("json", JSON_PATCH, &replaced)]
        {
            side.aside(&format!("POST {pods}"), &pod(name)).await;
            patch(side, name, &format!("{pods}/{name}"), kind, body).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_patch_has_preconditions() {
    let meant = [];
    conforms("conditional", &meant, async |side, pods| {
        let web = &*format!("{pods}/web");
        let label = |label: &str| json!({"metadata": {"labels": {"l": label}}});
        patch(side, "of an unknown pod", web, MERGE, &label("0")).await;
        patch(side, "of an unknown pod, strategic", web, STRATEGIC, &label("0")).await;
        patch(side, "of an unknown pod, json", web, JSON_PATCH, &json!([])).await;
        let first = side.send("create", &format!("POST {pods}"), &rich("web")).await;
        let second = patch(side, "without a version", web, MERGE, &label("1")).await;
        let versioned = |version: &str, value: &str| json!({"metadata": {"resourceVersion": version, "labels": {"l": value}}});
        for (kind, old, new) in [
            (MERGE, "merge: an old version", "merge: the right version"),
            (STRATEGIC, "strategic: an old version", "strategic: the right version"),
        ] {
            patch(side, old, web, kind, &versioned(&first.metadata("resourceVersion"), "2")).await;
            let read = side.aside(&format!("GET {web}"), &Value::Null).await;
            patch(side, new, web, kind, &versioned(&read.metadata("resourceVersion"), new.split(':').next().unwrap())).await;
        }
        patch(side, "version 0", web, MERGE, &versioned("0", "4")).await;
        patch(side, "an empty version", web, MERGE, &versioned("", "5")).await;
        let test = json!([{"op": "test", "path": "/metadata/resourceVersion", "value": second.metadata("resourceVersion")}]);
        patch(side, "json: a test of an old version", web, JSON_PATCH, &test).await;
        let read = side.aside(&format!("GET {web}"), &Value::Null).await;
        let test = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": read.metadata("resourceVersion")},
            {"op": "add", "path": "/metadata/labels/tested", "value": "yes"},
        ]);
        patch(side, "json: a test of the version", web, JSON_PATCH, &test).await;
        let uid = |uid: &str| json!({"metadata": {"uid": uid, "labels": {"u": "1"}}});
        patch(side, "its UID", web, MERGE, &uid(&first.metadata("uid"))).await;
        patch(side, "another UID", web, MERGE, &uid("another")).await;
        patch(side, "no UID", web, MERGE, &json!({"metadata": {"uid": null, "labels": {"u": "2"}}})).await;
        patch(side, "another name", web, MERGE, &json!({"metadata": {"name": "other"}})).await;
        patch(side, "no name", web, MERGE, &json!({"metadata": {"name": null}})).await;
        patch(side, "another namespace", web, MERGE, &json!({"metadata": {"namespace": "other"}})).await;
        patch(side, "no namespace", web, MERGE, &json!({"metadata": {"namespace": null}})).await;
        patch(side, "a dry run", &format!("{web}?dryRun=All"), MERGE, &label("dry")).await;
        patch(side, "another dry run", &format!("{web}?dryRun=Some"), MERGE, &label("dry")).await;
        side.ask("the pod after the dry run", &format!("GET {web}")).await;
    })
    .await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one bad patch after the other")]
async fn a_bad_patch_is_rejected() {
    let internal = "the apiserver answers 500";
    let types = "the response names the field";
    let details = ".details.causes .details.kind .details.name";
    let meant = [
        ("strategic: an unknown directive", "400 BadRequest", internal),
        ("strategic: an unknown directive of an item", "400 BadRequest", internal),
        ("strategic: no merge key", "400 BadRequest", internal),
        ("strategic: another order", "400 BadRequest", internal),
        ("strategic: an order of nothing", "400 BadRequest", internal),
        ("strategic: a list of lists", "400 BadRequest", internal),
        ("another kind", details, types),
        ("another version", details, types),
        ("a field of the wrong type", details, types),
        ("no containers", ".details.causes", ANY_CHANGE),
        ("no spec", ".details.causes", ANY_CHANGE),
        ("a finalizer", "422 Invalid", "nothing on the node would remove it"),
    ];
    conforms("bad-patches", &meant, async |side, pods| {
        side.aside(&format!("POST {pods}"), &rich("web")).await;
        let web = &*format!("{pods}/web");
        for (label, kind) in [
            ("plain JSON", "application/json"),
            ("YAML", "application/yaml"),
            ("no type", ""),
            ("an unknown type", "application/bogus-patch+json"),
            ("another case", "Application/Merge-Patch+JSON"),
        ] {
            patch(side, label, web, kind, &no()).await;
        }
        for (label, kind, body) in [
            ("json: no JSON", JSON_PATCH, "[{"),
            ("json: a map", JSON_PATCH, "{}"),
            ("json: null", JSON_PATCH, "null"),
            ("json: a text in the list", JSON_PATCH, "[\"x\"]"),
            ("merge: no JSON", MERGE, "{"),
            ("merge: a list", MERGE, "[]"),
            ("merge: null", MERGE, "null"),
            ("merge: nothing", MERGE, ""),
            ("strategic: no JSON", STRATEGIC, "{"),
            ("strategic: a list", STRATEGIC, "[]"),
            ("strategic: a text", STRATEGIC, "\"x\""),
            ("apply: no YAML", APPLY, "{"),
        ] {
            let path = if kind == APPLY { format!("PATCH {web}?fieldManager=m") } else { format!("PATCH {web}") };
            side.ask_with(label, &path, &[("content-type", kind)], body).await;
        }
        let test = json!([{"op": "test", "path": "/metadata/labels/a", "value": "other"}]);
        patch(side, "json: a test fails", web, JSON_PATCH, &test).await;
        patch(side, "json: an unknown operation", web, JSON_PATCH, &json!([{"op": "bogus", "path": "/a"}])).await;
        patch(side, "json: a missing path", web, JSON_PATCH, &json!([{"op": "remove", "path": "/none/none"}])).await;
        let many = |count: usize| vec![json!({"op": "test", "path": "/kind", "value": "Pod"}); count].into();
        patch(side, "json: 10,000 operations", web, JSON_PATCH, &many(10_000)).await;
        patch(side, "json: 10,001 operations", web, JSON_PATCH, &many(10_001)).await;
        let large = json!({"metadata": {"annotations": {"a": "x".repeat(3 << 20)}}});
        patch(side, "more than 3 MiB", web, MERGE, &large).await;
        let copies: Vec<Value> = (0..30)
            .map(|copy| json!({"op": "copy", "from": "/metadata/annotations", "path": format!("/metadata/annotations/{copy}")}))
            .collect();
        patch(side, "json: copies that grow exponentially", web, JSON_PATCH, &copies.into()).await;
        let containers = |containers: Value| json!({"spec": {"containers": containers}});
        for (label, body) in [
            ("strategic: an unknown directive", json!({"spec": {"$patch": "bogus"}})),
            ("strategic: an unknown directive of an item", containers(json!([{"name": "c", "$patch": "bogus"}]))),
            ("strategic: no merge key", containers(json!([{"image": "i:1"}]))),
            ("strategic: another order", json!({"spec": {"$setElementOrder/containers": [{"name": "d"}], "containers": [{"name": "c", "image": "x"}]}})),
            ("strategic: an order of nothing", json!({"spec": {"$setElementOrder/none": []}})),
            ("strategic: retained keys that are no list", json!({"spec": {"$retainKeys": "x"}})),
            ("strategic: a key that is not retained", json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "emptyDir": {}}]}})),
            ("strategic: a list of lists", containers(json!([[]]))),
            ("strategic: a deletion without a list", json!({"metadata": {"$deleteFromPrimitiveList": ["x"]}})),
        ] {
            patch(side, label, web, STRATEGIC, &body).await;
        }
        for (label, body) in [
            ("another kind", json!({"kind": "Service"})),
            ("another version", json!({"apiVersion": "v9"})),
            ("no kind", json!({"kind": null})),
            ("a field of the wrong type", json!({"spec": {"containers": "none"}})),
            ("an invalid label", json!({"metadata": {"labels": {"-": "b"}}})),
            ("no containers", json!({"spec": {"containers": []}})),
            ("no spec", json!({"spec": null})),
            ("no metadata", json!({"metadata": null})),
        ] {
            patch(side, label, web, MERGE, &body).await;
        }
        side.ask("the pod is unchanged", &format!("GET {web}")).await;
        let finalizer = json!({"metadata": {"finalizers": ["example.com/f"]}});
        patch(side, "a finalizer", web, MERGE, &finalizer).await;
    })
    .await;
}

#[tokio::test]
async fn the_options_of_a_patch_are_checked() {
    let meant: [(&str, &str, &str); 0] = [];
    conforms("patch-options", &meant, async |side, pods| {
        side.aside(&format!("POST {pods}"), &rich("web")).await;
        let web = |query: &str| format!("{pods}/web?{query}");
        let unknown = json!({"spec": {"replicas": 3}, "metadata": {"labels": {"l": "1"}}});
        for (label, kind) in [("strategic", STRATEGIC), ("merge", MERGE)] {
            let named = |how: &str| -> &'static str {
                Box::leak(format!("{label}: unknown fields, {how}").into_boxed_str())
            };
            for how in ["Warn", "Ignore", "Strict", "Bogus"] {
                patch(side, named(how), &web(&format!("fieldValidation={how}")), kind, &unknown).await;
            }
            patch(side, named("by default"), &web(""), kind, &unknown).await;
            let twice = r#"{"metadata": {"labels": {"l": "1", "l": "2"}}}"#;
            for (how, query) in [("twice", ""), ("twice, Strict", "fieldValidation=Strict")] {
                side.ask_with(named(how), &format!("PATCH {}", web(query)), &[("content-type", kind)], twice)
                    .await;
            }
        }
        let add = json!([{"op": "add", "path": "/spec/replicas", "value": 3}]);
        patch(side, "json: unknown fields", &web(""), JSON_PATCH, &add).await;
        patch(side, "json: unknown fields, Strict", &web("fieldValidation=Strict"), JSON_PATCH, &add).await;
        let odd = r#"[{"op": "test", "path": "/kind", "value": "x", "value": "Pod", "foo": 1, "Op": ""}]"#;
        for (label, query) in [
            ("json: odd fields", ""),
            ("json: odd fields, Ignore", "fieldValidation=Ignore"),
            ("json: odd fields, Strict", "fieldValidation=Strict"),
        ] {
            let kind = [("content-type", JSON_PATCH)];
            side.ask_with(label, &format!("PATCH {}", web(query)), &kind, odd).await;
        }
        patch(side, "force", &web("force=true"), MERGE, &no()).await;
        patch(side, "a field manager", &web("fieldManager=m"), MERGE, &no()).await;
        patch(side, "a long field manager", &web(&format!("fieldManager={}", "m".repeat(129))), MERGE, &no())
            .await;
        patch(side, "an unprintable field manager", &web("fieldManager=%01"), MERGE, &no()).await;
        let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
        patch(side, "apply without a field manager", &web(""), APPLY, &config).await;
        let html = [("content-type", MERGE), ("accept", "text/html")];
        side.ask_with("HTML is requested", &format!("PATCH {}", web("")), &html, "{}").await;
        side.ask_with("a PATCH of all pods", &format!("PATCH {pods}"), &[("content-type", MERGE)], "{}")
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_applied() {
    let meant = [
        ("an unknown field", "400 BadRequest", "the apiserver answers 500"),
        ("without metadata", "201", "the URL has the name; the apiserver answers 400"),
    ];
    conforms("applied", &meant, async |side, pods| {
        let web = |query: &str| format!("{pods}/web?{query}");
        let applied = |metadata: &Value, spec: &Value| with("web", metadata, spec);
        let labels = |labels: Value| json!({"labels": labels});
        patch(side, "a dry run", &web("fieldManager=m&dryRun=All"), APPLY, &pod("web")).await;
        side.ask("there is no pod", &format!("GET {pods}/web")).await;
        let uid = applied(&json!({"uid": "x"}), &no());
        patch(side, "a UID without a pod", &web("fieldManager=m"), APPLY, &uid).await;
        let version = with("versioned", &json!({"resourceVersion": "5"}), &no());
        patch(side, "a version without a pod", &format!("{pods}/versioned?fieldManager=m"), APPLY, &version)
            .await;
        let first = applied(&labels(json!({"a": "1", "b": "2"})), &no());
        patch(side, "it is created", &web("fieldManager=m"), APPLY, &first).await;
        patch(side, "the same", &web("fieldManager=m"), APPLY, &first).await;
        patch(side, "a label of another client", &web(""), MERGE, &json!({"metadata": {"labels": {"c": "3"}}})).await;
        patch(side, "a label goes", &web("fieldManager=m"), APPLY, &applied(&labels(json!({"a": "1"})), &no())).await;
        patch(side, "a label changes", &web("fieldManager=m"), APPLY, &applied(&labels(json!({"a": "2"})), &no())).await;
        let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"d": "4", "a": "2"}}});
        patch(side, "another manager", &web("fieldManager=n"), APPLY, &other).await;
        patch(side, "a label that both have", &web("fieldManager=m"), APPLY, &applied(&no(), &no())).await;
        let gone = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
        patch(side, "the labels of the other manager go", &web("fieldManager=n"), APPLY, &gone).await;
        patch(side, "another image", &web("fieldManager=m"), APPLY, &applied(&no(), &json!({"containers": [{"name": "c", "image": "i:2"}]}))).await;
        patch(side, "forced", &web("fieldManager=m&force=true"), APPLY, &applied(&labels(json!({"c": "5"})), &json!({"containers": [{"name": "c", "image": "i:2"}]}))).await;
        let null = applied(&json!({"creationTimestamp": null, "labels": {"c": "5"}}), &json!({"containers": [{"name": "c", "image": "i:2"}]}));
        patch(side, "with a null", &web("fieldManager=m"), APPLY, &null).await;
        let old = applied(&json!({"resourceVersion": "1"}), &no());
        patch(side, "an old version", &web("fieldManager=m"), APPLY, &old).await;
        let uid = applied(&json!({"uid": "x"}), &no());
        patch(side, "another UID", &web("fieldManager=m"), APPLY, &uid).await;
        let mut nameless = pod("web");
        nameless["metadata"].as_object_mut().unwrap().remove("name");
        nameless["spec"]["containers"][0]["image"] = json!("i:2");
        patch(side, "without a name", &web("fieldManager=m"), APPLY, &nameless).await;
        let mut bare = pod("bare");
        bare.as_object_mut().unwrap().remove("metadata");
        patch(side, "without metadata", &format!("{pods}/bare?fieldManager=m"), APPLY, &bare).await;
        patch(side, "another name", &web("fieldManager=m"), APPLY, &pod("other")).await;
        patch(side, "another namespace", &web("fieldManager=m"), APPLY, &applied(&json!({"namespace": "other"}), &no())).await;
        let mut kind = pod("web");
        kind["kind"] = json!("Service");
        patch(side, "another kind", &web("fieldManager=m"), APPLY, &kind).await;
        let mut kindless = pod("web");
        kindless.as_object_mut().unwrap().remove("kind");
        patch(side, "no kind", &web("fieldManager=m"), APPLY, &kindless).await;
        let managed = applied(&json!({"managedFields": [{"manager": "m"}]}), &no());
        patch(side, "with managedFields", &web("fieldManager=m"), APPLY, &managed).await;
        let unknown = applied(&no(), &json!({"replicas": 3}));
        patch(side, "an unknown field", &web("fieldManager=m"), APPLY, &unknown).await;
        let yaml = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {c: '5', y: '1'}\nspec:\n  nodeName: node1\n  containers:\n  - name: c\n    image: i:2\n";
        side.ask_with("YAML", &format!("PATCH {}", web("fieldManager=m")), &[("content-type", APPLY)], yaml).await;
        side.ask("read at the end", &format!("GET {pods}/web")).await;
    })
    .await;
}

#[tokio::test]
async fn an_entry_that_occurs_twice_is_not_applied() {
    let internal = "the apiserver answers 500";
    let meant = [
        ("two containers of one name", "400 BadRequest", internal),
        ("two variables of one name", "400 BadRequest", internal),
        ("two ports of one number", "400 BadRequest", internal),
        ("two constraints of one key", "400 BadRequest", internal),
    ];
    conforms("applied-twice", &meant, async |side, pods| {
        patch(side, "it is created", &format!("{pods}/web?fieldManager=m"), APPLY, &pod("web")).await;
        let container =
            |field: &str, items: &Value| json!({"containers": [{"name": "c", "image": "i:2", field: items}]});
        let port = |protocol: &str| json!({"containerPort": 53, "protocol": protocol});
        let spread = |when: &str| json!({"topologyKey": "k", "maxSkew": 1, "whenUnsatisfiable": when, "labelSelector": {}});
        let spreads = |both: [&str; 2]| json!({"topologySpreadConstraints": both.map(spread)});
        for (label, name, spec) in [
            (
                "two containers of one name",
                "web",
                json!({"containers": [{"name": "c", "image": "i:2"}, {"name": "c", "image": "i:3"}]}),
            ),
            (
                "two variables of one name",
                "web",
                container("env", &json!([{"name": "A"}, {"name": "A", "value": "b"}])),
            ),
            (
                "two ports of one number",
                "web",
                container("ports", &json!([{"containerPort": 53}, port("TCP")])),
            ),
            ("two constraints of one key", "web", spreads(["DoNotSchedule", "DoNotSchedule"])),
            ("two protocols of a port", "dns", container("ports", &json!([port("UDP"), port("TCP")]))),
            ("two protocols again", "dns", container("ports", &json!([port("UDP"), port("TCP")]))),
            ("two constraints of one topology", "spread", spreads(["DoNotSchedule", "ScheduleAnyway"])),
            ("two constraints again", "spread", spreads(["DoNotSchedule", "ScheduleAnyway"])),
        ] {
            let path = format!("{pods}/{name}?fieldManager=m");
            let answer = patch(side, label, &path, APPLY, &with(name, &no(), &spec)).await;
            let refused = answer.json.to_string().contains(": duplicate entries for key [");
            assert_eq!(refused, name == "web", "{label}: {}", answer.json);
        }
    })
    .await;
}

#[tokio::test]
async fn what_kubectl_applies_is_noted_in_its_annotation() {
    const NOTE: &str = "kubectl.kubernetes.io/last-applied-configuration";
    conforms("noted", &[], async |side, pods| {
        let labels = |labels: Value| with("web", &json!({"labels": labels}), &no());
        let mut web = labels(json!({"a": "1"}));
        let note = web.to_string();
        web["metadata"]["annotations"] = json!({NOTE: note});
        side.aside(&format!("POST {pods}"), &web).await;
        side.aside(&format!("POST {pods}"), &pod("bare")).await;
        let kubectl = |name: &str| format!("{pods}/{name}?fieldManager=kubectl&force=true");
        let more = labels(json!({"a": "1", "b": "2"}));
        patch(side, "another manager", &format!("{pods}/web?fieldManager=m"), APPLY, &more).await;
        let answer = patch(side, "kubectl", &kubectl("web"), APPLY, &more).await;
        assert!(answer.json.to_string().contains(r#"\"b\":\"2\""#), "{}", answer.json);
        patch(side, "the annotation is applied", &kubectl("web"), APPLY, &web).await;
        patch(side, "no annotation", &kubectl("bare"), APPLY, &pod("bare")).await;
        let large = with(
            "web",
            &json!({"labels": {"a": "1"}, "annotations": {"large": "x".repeat(200 << 10)}}),
            &no(),
        );
        patch(side, "no room for the annotation", &kubectl("web"), APPLY, &large).await;
    })
    .await;
}

/// Applies a container with these variables, each list as a field manager of its own. Returns the variables at the end.
async fn applied_in_turn(side: &mut Side, path: &str, is_template: bool, lists: &[Vec<char>]) -> Value {
    let mut end = Value::Null;
    for (number, list) in lists.iter().enumerate() {
        let env: Vec<Value> = list.iter().map(|name| json!({"name": name})).collect();
        let name = path.rsplit('/').next().unwrap();
        let mut object =
            with(name, &no(), &json!({"containers": [{"name": "c", "image": "i:1", "env": env}]}));
        if is_template {
            let spec = object["spec"].take();
            object = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": {"spec": spec}});
        }
        let path = format!("{path}?fieldManager=m{number}&force=true");
        let label: &'static str = Box::leak(path.clone().into_boxed_str());
        let answer = patch(side, label, &path, APPLY, &object).await;
        assert!([200, 201].contains(&answer.code), "{}", answer.json);
        end = answer.json;
    }
    let spec = if is_template { &end["template"]["spec"] } else { &end["spec"] };
    spec["containers"][0]["env"].clone()
}

#[tokio::test]
async fn the_items_of_field_managers_are_in_the_order_of_an_apiserver() {
    // Of a pod the apiserver changes no list.
    let Some((mut kubernetes, mut podmux, _agent)) = both("apply-order").await else { return };
    let random = &mut Random::new(1);
    let mut list = || {
        let mut names: Vec<char> = "ABCDEF".chars().collect();
        for place in 0..names.len() {
            names.swap(place, random.below(6));
        }
        names.truncate(1 + random.below(5));
        names
    };
    for case in 0..100 {
        let lists = [list(), list(), list()];
        let path = |kind: &str| format!("/api/v1/namespaces/apply-order/{kind}/c{case}");
        let theirs = applied_in_turn(&mut kubernetes, &path("podtemplates"), true, &lists).await;
        let ours = applied_in_turn(&mut podmux, &path("pods"), false, &lists).await;
        assert_eq!(theirs, ours, "{lists:?}");
    }
}

/// Applies and patches the containers and the node selector of a pod, or of a template. Returns both after each step.
async fn changed_in_turn(side: &mut Side, path: &str, is_template: bool) -> Vec<Value> {
    let container = |name: &str| json!({"name": name, "image": "i:1", "ports": [{"containerPort": 80}]});
    let (c, d) = (container("c"), container("d"));
    let selects = |label: &str| json!({"nodeSelector": {label: "1"}});
    let others = json!({"containers": [{"name": "d", "env": [{"name": "A"}], "livenessProbe": {"exec": {"command": ["x"]}}}]});
    let mut after = Vec::new();
    for (label, kind, spec) in [
        ("m", APPLY, json!({"containers": [c, d], "nodeSelector": {"a": "1"}})),
        ("a patch", STRATEGIC, others),
        ("n", APPLY, selects("b")),
        ("m again", APPLY, json!({"containers": [c]})),
        ("n again", APPLY, json!({})),
    ] {
        let mut object =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
        if is_template {
            object = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "web"}, "template": {"spec": spec}});
        }
        let options =
            if kind == APPLY { format!("?fieldManager={}&force=true", &label[..1]) } else { String::new() };
        let answer = patch(side, label, &format!("{path}{options}"), kind, &object).await;
        assert!([200, 201].contains(&answer.code), "{}", answer.json);
        let spec = if is_template { &answer.json["template"]["spec"] } else { &answer.json["spec"] };
        let of = |container: &Value| json!([container["name"], container["env"]]);
        let containers: Vec<Value> = spec["containers"].as_array().unwrap().iter().map(of).collect();
        after.push(json!([containers, spec["nodeSelector"]]));
    }
    after
}

#[tokio::test]
async fn a_container_that_others_have_changed_goes_and_a_selector_is_replaced() {
    // Of a pod the apiserver changes neither.
    let Some((mut kubernetes, mut podmux, _agent)) = both("apply-parts").await else { return };
    let path = |kind: &str| format!("/api/v1/namespaces/apply-parts/{kind}/web");
    let theirs = changed_in_turn(&mut kubernetes, &path("podtemplates"), true).await;
    assert_eq!(theirs, changed_in_turn(&mut podmux, &path("pods"), false).await);
    assert_eq!(theirs.last(), Some(&json!([[["c", null]], null])));
}
