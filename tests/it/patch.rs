//! PATCH of posted pods: owners, other writes at the same time, restarts, apply and bounds.

use std::{pin::pin, time::Duration};

use futures::future::join_all;
use podmux::{
    manifest::patch::{LastApplied, MAX_COPIED, MAX_OPERATIONS, MAX_PATCH, Patch, PatchError, PatchType},
    pod::PodKey,
    source::http::MAX_MANAGERS,
};
use serde_json::{Map, Value, json};
use tokio::{task::yield_now, time::timeout};

use crate::support::{
    files::soon,
    script,
    server::{Reply, Setup, TestServer, manifest},
    state::Disk,
};

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

async fn patch(server: &TestServer, path: &str, kind: &str, body: &Value) -> Reply {
    server.ask(&format!("PATCH {PODS}/{path}"), &[("content-type", kind)], body.to_string()).await
}

/// Applies a pod with other fields of metadata and spec, as a field manager.
async fn apply(server: &TestServer, manager: &str, metadata: &Value, spec: &Value) -> Value {
    let mut pod: Value = serde_json::from_str(&manifest("web")).unwrap();
    for (part, fields) in [("metadata", metadata), ("spec", spec)] {
        pod[part].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    }
    let reply = patch(server, &format!("web?fieldManager={manager}"), APPLY, &pod).await;
    assert!([200, 201].contains(&reply.code), "{}", reply.text());
    reply.json()
}

fn label(key: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

async fn with_web() -> TestServer {
    let server = TestServer::start().await;
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], manifest("web")).await.code, 201);
    server
}

fn message(reply: &Reply) -> (u16, String) {
    (reply.code, reply.json()["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_pod_of_another_source_is_not_patched() {
    let server = with_web().await;
    server.file_pod("/manifests/db.yaml", script::pod("db#1")).await;
    for (kind, path) in [(MERGE, "db"), (STRATEGIC, "db"), (APPLY, "db?fieldManager=m")] {
        let why =
            "pods \"db\" is forbidden: it is held by source file (from /manifests/db.yaml): change it there";
        assert_eq!(message(&patch(&server, path, kind, &label("a", "b")).await), (403, why.to_owned()));
    }
    assert_eq!(message(&patch(&server, "none", MERGE, &label("a", "b")).await).0, 404);
}

#[tokio::test]
async fn a_pod_that_is_being_deleted_is_not_patched() {
    let server = with_web().await;
    assert_eq!(server.ask(&format!("DELETE {PODS}/web"), &[], "").await.code, 200);
    let why = "pods \"web\" is being deleted; try again when it is gone";
    assert_eq!(message(&patch(&server, "web", MERGE, &label("a", "b")).await), (409, why.to_owned()));
}

#[tokio::test]
async fn patches_at_the_same_time_lose_nothing() {
    let server = with_web().await;
    let labels = (0..64).map(|number| (format!("web?n={number}"), label(&format!("l{number}"), "x")));
    let labels: Vec<(String, Value)> = labels.collect();
    let patches = labels
        .iter()
        .enumerate()
        .map(|(number, (path, body))| patch(&server, path, [MERGE, STRATEGIC][number % 2], body));
    for reply in join_all(patches).await {
        assert_eq!(reply.code, 200, "{}", reply.text());
    }
    let web = server.get(&format!("{PODS}/web")).await.json();
    assert_eq!(web["metadata"]["labels"].as_object().unwrap().len(), 64);
}

#[tokio::test]
async fn a_patch_that_other_writes_overtake_is_tried_again() {
    let server = with_web().await;
    let put = |number: usize| {
        let mut pod: Value = serde_json::from_str(&manifest("web")).unwrap();
        pod["metadata"]["annotations"] = json!({"n": number.to_string()});
        let body = pod.to_string();
        let server = &server;
        async move { server.ask(&format!("PUT {PODS}/web"), &[], body).await }
    };
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let ours = patch(&server, "web", STRATEGIC, &image);
    let (ours, _) = tokio::join!(ours, join_all((0..2).map(put)));
    assert_eq!(ours.code, 200, "{}", ours.text());
    assert_eq!(ours.json()["spec"]["containers"][0]["image"], "i:2");
}

#[tokio::test]
async fn a_patch_that_conflicts_with_a_write_is_answered_when_that_write_can_be_read() {
    let server = with_web().await;
    let path = format!("{PODS}/web");
    let before = server.get(&path).await.json();
    server.merging.send_replace(false);
    let mut newer: Value = serde_json::from_str(&manifest("web")).unwrap();
    newer["metadata"]["labels"] = json!({"newer": "yes"});
    let put = format!("PUT {path}");
    let put = server.ask_inside(&put, &[("content-type", JSON)], newer.to_string());
    let patching = async {
        let is_posted =
            || server.posts.get(&PodKey::new("default", "web")).unwrap().labels().next().is_some();
        soon(async {
            while !is_posted() {
                yield_now().await;
            }
        })
        .await;
        let labels =
            json!({"resourceVersion": before["metadata"]["resourceVersion"], "labels": {"patched": "yes"}});
        let body = json!({"metadata": labels});
        let mut patched = pin!(patch(&server, "web", MERGE, &body));
        let early = timeout(Duration::from_millis(200), &mut patched).await;
        assert!(early.is_err(), "the write that it conflicts with is not merged: {}", early.unwrap().text());
        server.merging.send_replace(true);
        let patched = patched.await;
        assert_eq!(server.get(&path).await.json()["metadata"]["labels"]["newer"], "yes");
        patched
    };
    let (put, patched) = tokio::join!(put, patching);
    assert_eq!((put.code, patched.code), (200, 409), "{}", patched.text());
}

#[tokio::test]
async fn a_dry_run_of_a_patch_shows_the_version_and_the_hash_that_stay() {
    let server = with_web().await;
    let before = server.get(&format!("{PODS}/web")).await.json();
    let dry = patch(&server, "web?dryRun=All", MERGE, &label("a", "b")).await.json();
    assert_eq!(dry["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(dry["metadata"]["annotations"], before["metadata"]["annotations"]);
    assert_eq!(dry["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    assert_eq!(server.get(&format!("{PODS}/web")).await.json(), before);
}

#[tokio::test]
async fn what_a_field_manager_no_longer_applies_goes() {
    let server = TestServer::start().await;
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]);
    let env = |names: &[&str]| {
        let env: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        json!([{"name": "c", "image": "i:1", "env": env}])
    };
    let mut probed = env(&["A", "B"]);
    probed[0]["livenessProbe"] = json!({"tcpSocket": {"port": 80}});
    let made = apply(
        &server,
        "m",
        &json!({"labels": {"a": "1"}}),
        &json!({"volumes": volumes, "containers": probed}),
    )
    .await;
    assert_eq!(made["spec"]["containers"][0]["livenessProbe"]["timeoutSeconds"], 1);
    // Another client adds to the same lists and maps.
    let added = json!({
        "metadata": {"labels": {"b": "2"}},
        "spec": {"containers": [{"name": "c", "env": [{"name": "C", "value": "3"}]}], "volumes": [{"name": "x", "emptyDir": {}}]},
    });
    assert_eq!(patch(&server, "web", STRATEGIC, &added).await.code, 200);
    let left =
        apply(&server, "m", &json!({}), &json!({"volumes": [volumes[1]], "containers": env(&["B"])})).await;
    assert_eq!(left["metadata"]["labels"], json!({"b": "2"}));
    let names = |list: &Value| -> Vec<String> {
        let items = list.as_array().unwrap().iter();
        let mut names: Vec<String> = items.map(|item| item["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&left["spec"]["volumes"]), ["w", "x"]);
    let container = &left["spec"]["containers"][0];
    assert_eq!(names(&container["env"]), ["B", "C"]);
    assert_eq!(container.get("livenessProbe"), None, "with its defaults");
}

/// What an apply patch of these fields and no others makes of the pod.
async fn applied(server: &TestServer, manager: &str, fields: Value) -> Value {
    let mut config = json!({"apiVersion": "v1", "kind": "Pod"});
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let reply = patch(server, &format!("web?fieldManager={manager}"), APPLY, &config).await;
    assert!([200, 201].contains(&reply.code), "{}", reply.text());
    reply.json()
}

#[tokio::test]
async fn what_no_field_manager_applied_stays_in_structs_and_items_that_one_no_longer_applies() {
    let server = TestServer::start().await;
    let mut web: Value = serde_json::from_str(&manifest("web")).unwrap();
    web["spec"]["securityContext"] = json!({"runAsUser": 1000});
    web["spec"]["containers"][0]["securityContext"] = json!({"runAsNonRoot": true});
    web["spec"]["containers"][0]["livenessProbe"] = json!({"tcpSocket": {"port": 80}});
    let posted = server.ask(&format!("POST {PODS}"), &[], web.to_string()).await.json();
    let container = |fields: Value| {
        let mut container = json!({"name": web["spec"]["containers"][0]["name"]});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"spec": {"containers": [container]}})
    };
    let one = json!({"spec": {"securityContext": {"fsGroup": 5}, "activeDeadlineSeconds": 100}});
    let own = json!({
        "securityContext": {"readOnlyRootFilesystem": true}, "livenessProbe": {"periodSeconds": 3},
        "readinessProbe": {"httpGet": {"port": 80}}, "resources": {"limits": {"cpu": "1"}},
        "env": [{"name": "A", "value": "1"}], "imagePullPolicy": "Never",
    });
    for (first, less) in [
        (one.clone(), json!({"spec": {}})),
        (one, json!({"metadata": {"labels": {}}})),
        (container(own.clone()), container(json!({}))),
        (container(own), json!({})),
    ] {
        let more = applied(&server, "m", first.clone()).await;
        assert_ne!(more["spec"], posted["spec"], "{first}");
        assert_eq!(more["spec"]["securityContext"]["runAsUser"], 1000);
        assert_eq!(applied(&server, "m", less).await["spec"], posted["spec"], "{first}");
    }
}

#[tokio::test]
async fn the_items_that_a_field_manager_made_go_with_their_defaults() {
    let server = TestServer::start().await;
    let whole = json!({
        "hostNetwork": true, "volumes": [{"name": "v", "hostPath": {"path": "/v"}}, {"name": "w"},
            {"name": "x", "iscsi": {"targetPortal": "1.2.3.4:3260", "iqn": "iqn.2026-01.com.example:a"}}],
        "containers": [{"name": "d", "image": "i:1", "resources": {"limits": {"cpu": "1000m"}},
            "ports": [{"containerPort": 80}], "readinessProbe": {"httpGet": {"port": 80}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}],
    });
    let web: Value = serde_json::from_str(&manifest("web")).unwrap();
    // The URL has the name.
    let made = applied(&server, "m", json!({"spec": web["spec"]})).await;
    let more = applied(&server, "n", json!({"spec": whole})).await;
    assert_eq!(more["spec"]["containers"].as_array().unwrap().len(), 2);
    assert_eq!(applied(&server, "n", json!({})).await["spec"], made["spec"]);
}

/// A pod whose container and init container have these resources and a port.
fn sized(host_network: bool, resources: &Value) -> Value {
    let container = |name: &str, port: u16| {
        let ports = json!([{"containerPort": port}]);
        json!({"name": name, "image": "i:1", "ports": ports, "resources": resources})
    };
    json!({"spec": {"hostNetwork": host_network, "containers": [container("c", 80)], "initContainers": [container("i", 81)]}})
}

/// The spec of a new pod with these fields.
async fn fresh(server: &TestServer, fields: &Value) -> Value {
    let mut pod: Value = serde_json::from_str(&manifest("fresh")).unwrap();
    pod["spec"].as_object_mut().unwrap().extend(fields["spec"].as_object().unwrap().clone());
    let reply = server.ask(&format!("POST {PODS}?dryRun=All"), &[], pod.to_string()).await;
    assert_eq!(reply.code, 201, "{}", reply.text());
    reply.json()["spec"].clone()
}

#[tokio::test]
async fn an_apply_sets_the_defaults_that_depend_on_another_field_again() {
    let server = TestServer::start().await;
    let limits = |cpu: &str| json!({"limits": {"cpu": cpu, "memory": "1Mi"}});
    let mut memory_alone = limits("4");
    memory_alone["limits"].as_object_mut().unwrap().remove("cpu");
    for (host, resources) in [
        (true, limits("2")),
        (false, limits("1")),
        (true, limits("3")),
        (true, memory_alone),
        (false, json!({})),
    ] {
        let pod = sized(host, &resources);
        let left = applied(&server, "m", pod.clone()).await;
        assert_eq!(left["spec"], fresh(&server, &pod).await, "{pod}");
    }
    for (whole, of_container) in [("2", "1"), ("1", "0.5"), ("3", "2")] {
        let mut pod = sized(false, &limits(of_container));
        pod["spec"]["initContainers"] = json!([]);
        pod["spec"]["resources"] = limits(whole);
        let left = applied(&server, "m", pod.clone()).await;
        assert_eq!(left["spec"], fresh(&server, &pod).await, "{pod}");
    }
}

#[tokio::test]
async fn an_apply_keeps_requests_and_host_ports_that_a_manifest_names() {
    let server = TestServer::start().await;
    let limits = |cpu: &str| json!({"limits": {"cpu": cpu}});
    let more = |host: bool, cpu: &str| {
        let mut pod = sized(host, &limits(cpu));
        pod["spec"]["initContainers"] = json!([]);
        pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1"});
        pod["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(80);
        pod
    };
    applied(&server, "m", more(true, "1")).await;
    let left = applied(&server, "m", more(false, "2")).await;
    let container = |pod: &Value| pod["spec"]["containers"][0].clone();
    assert_eq!(container(&left)["resources"]["requests"]["cpu"], "1");
    assert_eq!(container(&left)["ports"][0]["hostPort"], 80);
    // Another manager applies the limits and the network.
    let mut named = more(true, "1");
    named["spec"]["containers"][0]["resources"].as_object_mut().unwrap().remove("limits");
    applied(&server, "m", named).await;
    for (host, cpu) in [(true, "1"), (false, "3")] {
        let left = applied(&server, "n", sized(host, &limits(cpu))).await;
        assert_eq!(container(&left)["resources"], json!({"limits": {"cpu": cpu}, "requests": {"cpu": "1"}}));
        assert_eq!(container(&left)["ports"][0]["hostPort"], 80);
    }
}

#[tokio::test]
async fn a_client_side_apply_sets_these_defaults_again_and_other_patches_do_not() {
    let server = TestServer::start().await;
    let limits = |cpu: &str| json!({"limits": {"cpu": cpu}});
    let changes = |host: bool, cpu: &str| {
        let containers = json!([{"name": "c", "resources": limits(cpu)}]);
        json!({"spec": {"hostNetwork": host, "containers": containers, "$setElementOrder/containers": [{"name": "c"}]}})
    };
    let noted = |manifest: &Value, changes: &Value| {
        let mut patch = changes.clone();
        patch["metadata"]["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": manifest.to_string()});
        patch
    };
    let mut web: Value = serde_json::from_str(&manifest("web")).unwrap();
    web["spec"]
        .as_object_mut()
        .unwrap()
        .extend(sized(true, &limits("2"))["spec"].as_object().unwrap().clone());
    web["spec"].as_object_mut().unwrap().remove("initContainers");
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], web.to_string()).await.code, 201);
    // An ordinary patch is of the pod as a client reads it.
    let reply = patch(&server, "web", STRATEGIC, &changes(true, "1")).await;
    assert_eq!(reply.code, 422, "{}", reply.text());
    let (mut less, mut more) = (web.clone(), web.clone());
    less["spec"]["hostNetwork"] = false.into();
    less["spec"]["containers"][0]["resources"] = limits("1");
    let reply = patch(&server, "web", STRATEGIC, &noted(&less, &changes(false, "1"))).await;
    assert_eq!(reply.code, 200, "{}", reply.text());
    let container = &reply.json()["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}));
    assert_eq!(container["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));
    // The manifest names a request that the pod has already.
    more["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}});
    let reply = patch(&server, "web", STRATEGIC, &noted(&more, &changes(true, "2"))).await;
    assert_eq!(reply.code, 200, "{}", reply.text());
    let container = &reply.json()["spec"]["containers"][0];
    assert_eq!(container["resources"], more["spec"]["containers"][0]["resources"]);
}

#[tokio::test]
async fn ports_of_two_protocols_and_two_constraints_of_one_topology_are_applied_again() {
    let server = TestServer::start().await;
    let spread = |when: &str| json!({"topologyKey": "k", "maxSkew": 1, "whenUnsatisfiable": when});
    let (udp, tcp) = (
        json!({"containerPort": 53, "hostPort": 1053, "protocol": "UDP"}),
        json!({"containerPort": 53, "name": "dns-tcp"}),
    );
    let pod = |ports: &[&Value], spreads: &[&str]| {
        let spreads: Vec<Value> = spreads.iter().map(|when| spread(when)).collect();
        let container = json!({"name": "c", "image": "i:1", "ports": ports});
        json!({"spec": {"containers": [container], "topologySpreadConstraints": spreads}})
    };
    let both = pod(&[&udp, &tcp], &["DoNotSchedule", "ScheduleAnyway"]);
    let made = applied(&server, "m", both.clone()).await;
    assert_eq!(applied(&server, "m", both.clone()).await["spec"], made["spec"]);
    let one = applied(&server, "m", pod(&[&tcp], &["ScheduleAnyway"])).await;
    let ports = &made["spec"]["containers"][0]["ports"];
    assert_eq!(one["spec"]["containers"][0]["ports"], json!([ports[1]]));
    let spreads = &made["spec"]["topologySpreadConstraints"];
    assert_eq!(one["spec"]["topologySpreadConstraints"], json!([spreads[1]]));
    // A port that has a field of another client keeps its protocol.
    applied(&server, "m", both).await;
    let name = json!([{"op": "add", "path": "/spec/containers/0/ports/0/name", "value": "dns"}]);
    assert_eq!(patch(&server, "web", JSON_PATCH, &name).await.code, 200);
    let left = applied(&server, "m", pod(&[&tcp], &[])).await;
    let dns = json!({"containerPort": 53, "name": "dns", "protocol": "UDP"});
    assert_eq!(left["spec"]["containers"][0]["ports"], json!([dns, ports[1]]));
}

#[tokio::test]
async fn an_item_goes_that_lacks_what_only_its_field_manager_applied() {
    let server = TestServer::start().await;
    let spread = |key: &str| json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
    let mount = |path: &str| json!({"name": "v", "mountPath": path});
    let pod = |names: &[&str], mounts: &[&str], spreads: &[&str]| {
        let mounts: Vec<Value> = mounts.iter().map(|path| mount(path)).collect();
        let container = |name: &&str| json!({"name": name, "image": "i:1", "volumeMounts": mounts});
        let containers: Vec<Value> = names.iter().map(container).collect();
        let spreads: Vec<Value> = spreads.iter().map(|key| spread(key)).collect();
        json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": containers,
            "initContainers": containers.iter().map(|container| {
                let mut init = container.clone();
                init["name"] = format!("init-{}", container["name"].as_str().unwrap()).into();
                init
            }).collect::<Vec<_>>(), "topologySpreadConstraints": spreads}})
    };
    let less = pod(&["c"], &["/a"], &["k"]);
    let made = applied(&server, "m", less.clone()).await;
    applied(&server, "m", pod(&["c", "d"], &["/a", "/b"], &["k", "l"])).await;
    // Another client sets fields of what goes.
    let probe = json!({"exec": {"command": ["x"]}});
    let others = json!({"spec": {
        "containers": [
            {"name": "c", "volumeMounts": [{"mountPath": "/b", "readOnly": true}]},
            {"name": "d", "env": [{"name": "A", "value": "1"}], "livenessProbe": probe}],
        "initContainers": [{"name": "init-d", "env": [{"name": "A", "value": "1"}]}],
        "topologySpreadConstraints": [{"topologyKey": "l", "minDomains": 2}],
    }});
    let reply = patch(&server, "web", STRATEGIC, &others).await;
    assert_eq!(reply.code, 200, "{}", reply.text());
    assert_eq!(applied(&server, "m", less).await["spec"], made["spec"]);
}

#[tokio::test]
async fn an_applied_selector_or_reference_replaces_the_one_of_another_manager() {
    let server = TestServer::start().await;
    let web: Value = serde_json::from_str(&manifest("web")).unwrap();
    applied(&server, "base", json!({"spec": web["spec"]})).await;
    let fields = |label: &str, of: &Value| {
        let selector = json!({"matchLabels": {label: "1"}});
        let spread = json!({"topologyKey": "k", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector});
        let env = json!([{"name": "A", "valueFrom": {"resourceFieldRef": of}}]);
        let container = json!({"name": web["spec"]["containers"][0]["name"], "env": env});
        json!({"spec": {"nodeSelector": {label: "1"}, "topologySpreadConstraints": [spread], "containers": [container]}})
    };
    let (first, second) = (
        fields(
            "a",
            &json!({"resource": "limits.cpu", "containerName": web["spec"]["containers"][0]["name"], "divisor": "1"}),
        ),
        fields("b", &json!({"resource": "limits.memory", "divisor": "0"})),
    );
    applied(&server, "m", first).await;
    let left = applied(&server, "n", second.clone()).await;
    for part in ["/nodeSelector", "/topologySpreadConstraints", "/containers/0/env"] {
        let part = format!("/spec{part}");
        assert_eq!(left.pointer(&part), second.pointer(&part), "{part}");
    }
    assert_eq!(applied(&server, "m", json!({})).await["spec"], left["spec"]);
    let none = applied(&server, "n", json!({})).await;
    let left = ["nodeSelector", "topologySpreadConstraints"].map(|field| none["spec"].get(field));
    assert_eq!((left, none["spec"]["containers"][0].get("env")), ([None, None], None));
}

/// In real time: while the disk keeps a thread, tokio's clock does not go on by itself.
#[tokio::test]
async fn patches_of_one_pod_wait_together_for_a_disk_that_hangs_and_their_errors_are_kept() {
    let disk = Disk::default();
    let server = TestServer::with(Setup { disk: Some(disk.clone()), ..Setup::default() }).await;
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], manifest("web")).await.code, 201);
    let (held, holds) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let hanging = std::thread::spawn(move || {
        let _platter = disk.platter();
        held.send(()).unwrap();
        // Until the other end is dropped.
        let _ = released.recv();
    });
    holds.recv().unwrap();
    // It takes a while until this one is rejected.
    let invalid = "not valid!".repeat(100_000);
    let cases = [
        ("web?n=1", "b", 500, "no answer within 30 s"),
        ("web?n=2", "b", 500, "no answer within 30 s"),
        ("web?n=3", "b", 500, "no answer within 30 s"),
        // These write nothing. A dry run does not wait for its turn.
        ("web?dryRun=All", &*invalid, 422, "metadata.labels: Invalid value"),
        ("none", "b", 500, "are slow; nothing was changed"),
    ];
    let patches = cases.map(|(path, value, ..)| {
        let server = &server;
        async move { timeout(Duration::from_secs(45), patch(server, path, MERGE, &label("a", value))).await }
    });
    let replies = join_all(patches).await;
    drop(release);
    hanging.join().unwrap();
    for (reply, (path, _, wanted, text)) in replies.into_iter().zip(cases) {
        let (code, why) = message(&reply.expect("the patches do not wait one after the other"));
        assert!(code == wanted && why.contains(text), "{path}: {code} {why}");
    }
}

#[tokio::test]
async fn an_applied_variable_replaces_all_of_its_name() {
    let server = TestServer::start().await;
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let resource = json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
    let mut web: Value = serde_json::from_str(&manifest("web")).unwrap();
    web["spec"]["containers"][0]["env"] =
        json!([variable("C", "1"), resource, variable("B", "x"), variable("A", "2"), variable("C", "2")]);
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], web.to_string()).await.code, 201);
    let config = json!({"spec": {"containers": [{"name": "c", "env": [variable("A", "3")]}]}});
    let left = applied(&server, "m", config).await;
    let wanted = json!([variable("C", "1"), variable("A", "3"), variable("B", "x"), variable("C", "2")]);
    assert_eq!(left["spec"]["containers"][0]["env"], wanted);
}

#[tokio::test]
async fn a_variable_of_a_resource_goes_with_its_divisor() {
    let server = TestServer::start().await;
    let web: Value = serde_json::from_str(&manifest("web")).unwrap();
    applied(&server, "m", json!({"spec": web["spec"]})).await;
    let env = |env: &Value| {
        let name = &web["spec"]["containers"][0]["name"];
        json!({"spec": {"containers": [{"name": name, "env": env}]}})
    };
    let resource = json!([{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]);
    let value = json!([{"name": "CPU", "value": "1"}]);
    for (less, left) in [(env(&value), value), (env(&json!([])), Value::Null), (json!({}), Value::Null)] {
        let made = applied(&server, "n", env(&resource)).await;
        let made = &made["spec"]["containers"][0]["env"][0]["valueFrom"]["resourceFieldRef"];
        assert_eq!(made["divisor"], "0");
        assert_eq!(applied(&server, "n", less).await["spec"]["containers"][0]["env"], left);
    }
}

#[tokio::test]
async fn kubectl_no_longer_applies_what_it_applied_on_its_own_side() {
    let server = TestServer::start().await;
    let mut web: Value = serde_json::from_str(&manifest("web")).unwrap();
    web["metadata"]["labels"] = json!({"a": "1", "b": "1"});
    let note = web.to_string();
    web["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": note});
    web["metadata"]["labels"]["c"] = "other".into();
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], web.to_string()).await.code, 201);
    let label_a = json!({"labels": {"a": "1"}});
    let left = apply(&server, "other", &label_a, &json!({})).await;
    assert_eq!(left["metadata"]["labels"], web["metadata"]["labels"]);
    let left = apply(&server, "kubectl", &label_a, &json!({})).await;
    assert_eq!(left["metadata"]["labels"], json!({"a": "1", "c": "other"}));
}

#[tokio::test]
async fn what_another_field_manager_applies_stays() {
    let server = TestServer::start().await;
    apply(&server, "m", &json!({"labels": {"a": "1", "b": "1"}}), &json!({})).await;
    apply(&server, "n", &json!({"labels": {"a": "1"}}), &json!({})).await;
    let left = apply(&server, "m", &json!({}), &json!({})).await;
    assert_eq!(left["metadata"]["labels"], json!({"a": "1"}));
    let left = apply(&server, "n", &json!({}), &json!({})).await;
    assert_eq!(left["metadata"].get("labels"), None);
}

#[tokio::test]
async fn what_was_applied_outlives_a_restart_but_not_the_pod() {
    let disk = Disk::default();
    let server = TestServer::with(Setup { disk: Some(disk.clone()), ..Setup::default() }).await;
    apply(&server, "m", &json!({"labels": {"a": "1", "b": "2"}}), &json!({})).await;
    // What was answered is on the disk.
    let disk = Disk::with(disk.bytes());
    let server = TestServer::with(Setup { disk: Some(disk), ..Setup::default() }).await;
    let left = apply(&server, "m", &json!({"labels": {"a": "1"}}), &json!({})).await;
    assert_eq!(left["metadata"]["labels"], json!({"a": "1"}));

    assert_eq!(server.ask(&format!("DELETE {PODS}/web?gracePeriodSeconds=0"), &[], "").await.code, 200);
    let mut posted: Value = serde_json::from_str(&manifest("web")).unwrap();
    posted["metadata"]["labels"] = json!({"a": "1"});
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], posted.to_string()).await.code, 201);
    let left = apply(&server, "m", &json!({}), &json!({})).await;
    assert_eq!(left["metadata"]["labels"], json!({"a": "1"}), "of the new pod nothing was applied");
}

/// It would be stored with what the manager applied, too deep to be read after a restart.
#[tokio::test]
async fn a_resource_version_that_is_no_text_is_rejected() {
    let server = with_web().await;
    let deep = (0..150).fold(json!(1), |value, _| json!({ "a": value }));
    for version in [json!(1), json!(["1"]), deep] {
        let mut body = json!({"metadata": {"resourceVersion": version}});
        for kind in [MERGE, STRATEGIC] {
            let reply = patch(&server, "web", kind, &body).await;
            assert_eq!(message(&reply).0, 422, "{}", reply.text());
        }
        let path = "/metadata/resourceVersion";
        let replaced = json!([{"op": "add", "path": path, "value": body["metadata"]["resourceVersion"]}]);
        assert_eq!(patch(&server, "web", JSON_PATCH, &replaced).await.code, 422);
        body["apiVersion"] = "v1".into();
        body["kind"] = "Pod".into();
        let reply = patch(&server, "web?fieldManager=m", APPLY, &body).await;
        assert_eq!(message(&reply).0, 422, "{}", reply.text());
    }
    let reply = patch(&server, "web", MERGE, &json!({"metadata": {"resourceVersion": null}})).await;
    assert_eq!(reply.code, 200, "{}", reply.text());
}

#[tokio::test]
async fn a_patch_makes_no_list_of_a_pod() {
    let server = with_web().await;
    let other: Value = serde_json::from_str(&manifest("other")).unwrap();
    let web: Value = serde_json::from_str(&manifest("web")).unwrap();
    for (kind, items) in [("PodList", json!([])), ("List", json!([web])), ("List", json!([other]))] {
        let reply = patch(&server, "web", MERGE, &json!({"kind": kind, "items": items})).await;
        let expected = (400, "the patched pod is a list: a patch cannot change its kind".to_owned());
        assert_eq!(message(&reply), expected, "{}", reply.text());
    }
}

#[tokio::test]
async fn only_so_many_field_managers_apply_a_pod() {
    let server = TestServer::start().await;
    for number in 0..MAX_MANAGERS {
        apply(&server, &format!("m{number}"), &json!({}), &json!({})).await;
    }
    let pod: Value = serde_json::from_str(&manifest("web")).unwrap();
    let (code, why) = message(&patch(&server, "web?fieldManager=more", APPLY, &pod).await);
    assert_eq!(code, 422);
    assert!(why.contains("fieldManager: Too many: 16 field managers have applied the pod"), "{why}");
    apply(&server, "m0", &json!({"labels": {"a": "1"}}), &json!({})).await;
    for (path, kind) in [("web", MERGE), ("web?fieldManager=more", STRATEGIC)] {
        assert_eq!(patch(&server, path, kind, &label("a", "b")).await.code, 200, "only an apply counts");
    }
    // One that sets nothing does not count, and frees the place of its manager.
    for manager in ["more", "m0"] {
        applied(&server, manager, json!({"metadata": {"name": "web"}})).await;
    }
    apply(&server, "more", &json!({}), &json!({})).await;
}

/// The result of a patch of a pod with one container and a long list of arguments.
fn patched(kind: PatchType, patch: &Value) -> Result<Map<String, Value>, PatchError> {
    let args: Vec<&str> = vec!["x"; 10_000];
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "args": args}]}});
    let pod = pod.as_object().unwrap().clone();
    Patch::parse(kind, patch.to_string().as_bytes())?.apply_to(pod, &LastApplied::default())
}

#[test]
fn the_operations_of_a_json_patch_are_bounded() {
    let many = |count: usize, operation: &dyn Fn(usize) -> Value| -> Result<_, PatchError> {
        patched(PatchType::Json, &(0..count).map(operation).collect::<Vec<_>>().into())
    };
    let is = |result: Result<Map<String, Value>, PatchError>, part: &str| {
        let error = result.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    let test = |_| json!({"op": "test", "path": "/metadata/name", "value": "a"});
    many(MAX_OPERATIONS, &test).unwrap();
    is(many(MAX_OPERATIONS + 1, &test), "The allowed maximum operations in a JSON patch is 10000, got 10001");
    let copy = |number| json!({"op": "copy", "from": "/spec", "path": format!("/spec/x{number}")});
    many(5, &copy).unwrap();
    is(many(100, &copy), &format!("copies more than {MAX_COPIED} bytes"));
    // An item at the beginning of a list moves the others.
    let push = |_| json!({"op": "add", "path": "/spec/containers/0/args/0", "value": "y"});
    many(1000, &push).unwrap();
    is(many(MAX_OPERATIONS, &push), "moves more than 16777216 values");
    let shift = |number| {
        let (from, to) = if number % 2 == 0 { ("/spec", "/moved") } else { ("/moved", "/spec") };
        json!({"op": "move", "from": from, "path": to})
    };
    many(1000, &shift).unwrap();
    is(many(MAX_OPERATIONS, &shift), "moves more than 16777216 values");
    // Each pair of operations puts what is there one level deeper.
    let nest = |number| {
        if number % 2 == 0 {
            json!({"op": "move", "from": "/metadata", "path": "/inner"})
        } else {
            json!({"op": "add", "path": "/metadata", "value": {}})
        }
    };
    many(4, &nest).unwrap();
    let deeper: Vec<Value> = (0..300)
        .flat_map(|_| {
            [
                json!({"op": "add", "path": "/outer", "value": {}}),
                json!({"op": "move", "from": "/metadata", "path": "/outer/inner"}),
                json!({"op": "move", "from": "/outer", "path": "/metadata"}),
            ]
        })
        .collect();
    is(patched(PatchType::Json, &deeper.into()), "nests values more than 200 levels deep");
}

#[test]
fn the_text_of_a_patch_is_bounded() {
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(MAX_PATCH));
    for kind in PatchType::ALL {
        let error = Patch::parse(kind, large.as_bytes()).unwrap_err();
        assert!(matches!(error, PatchError::TooLarge(_)), "{error}");
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let error = Patch::parse(kind, deep.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("nested more than 200 levels deep"), "{error}");
    }
}

#[test]
fn an_apply_patch_has_each_entry_of_a_list_once() {
    let check = |spec: &Value| {
        let config = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
        let parsed = Patch::parse(PatchType::Apply, config.to_string().as_bytes());
        parsed.map(drop).map_err(|error| error.to_string())
    };
    let containers = |fields: &Value| {
        let mut container = json!({"name": "c"});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"containers": [{"name": "d"}, container]})
    };
    let port = |protocol: &str| json!({"containerPort": 53, "protocol": protocol});
    let spread = |when: &str| json!({"topologyKey": "k", "whenUnsatisfiable": when});
    for (spec, place) in [
        (containers(&json!({"name": "d"})), r#".spec.containers: duplicate entries for key [name="d"]"#),
        (
            containers(&json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]})),
            r#".spec.containers[name="c"].env: duplicate entries for key [name="A"]"#,
        ),
        (
            containers(&json!({"ports": [port("TCP"), {"containerPort": 53}]})),
            r#".spec.containers[name="c"].ports: duplicate entries for key [containerPort=53,protocol="TCP"]"#,
        ),
        (
            json!({"topologySpreadConstraints": [spread("x"), spread("x")]}),
            r#".spec.topologySpreadConstraints: duplicate entries for key [topologyKey="k",whenUnsatisfiable="x"]"#,
        ),
    ] {
        assert_eq!(check(&spec), Err(place.to_owned()));
    }
    let both = [
        containers(&json!({"ports": [port("UDP"), port("TCP")]})),
        json!({"topologySpreadConstraints": [spread("x"), spread("y")]}),
        json!({"tolerations": [{"key": "k"}, {"key": "k"}], "containers": [{}, {}]}),
    ];
    assert_eq!(both.each_ref().map(check), [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn an_apply_patch_has_no_directives() {
    let config = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "$patch": "delete"}]}});
    let error = patched(PatchType::Apply, &config).unwrap_err().to_string();
    assert!(error.contains("\"$patch\" is a directive of a strategic merge patch"), "{error}");
}
