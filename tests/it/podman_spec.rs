//! A pod in podman's words: each field is translated, or named as not supported.

use std::{fs, path::PathBuf};

use expect_test::{expect, expect_file};
use jiff::Timestamp;
use podmux::{
    pod::{Prepared, SourceName},
    runtime::podman::{Support, TABLE, Translation, translate},
};
use serde_json::{Value, json};

fn translated(spec: &Value) -> Translation {
    annotated(spec, &json!({}))
}

fn annotated(spec: &Value, annotations: &Value) -> Translation {
    let metadata = json!({
        "name": "web", "namespace": "shop", "uid": "u1", "labels": {"tier": "front"}, "annotations": annotations,
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let prepared = Prepared::from_json(pod.to_string().as_bytes()).unwrap();
    translate(&prepared.published_by(SourceName::File, Timestamp::UNIX_EPOCH), 1 << 30)
}

fn golden(name: &str, spec: &Value) {
    let path = format!("{}/tests/golden/podman/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = serde_json::to_string_pretty(&translated(spec)).unwrap() + "\n";
    expect_file![path].assert_eq(&text);
}

#[test]
fn a_small_pod() {
    golden("small", &json!({"containers": [{"name": "c", "image": "i:1"}]}));
}

#[test]
fn a_pod_with_all_that_podman_can_do() {
    let probe = json!({"httpGet": {"port": "http", "path": "/ready"}, "periodSeconds": 2});
    golden(
        "full",
        &json!({
            "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 7, "hostname": "me",
            "shareProcessNamespace": true,
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}],
            "dnsPolicy": "None",
            "dnsConfig": {
                "nameservers": ["9.9.9.9"], "searches": ["x.y"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
            },
            "securityContext": {"runAsUser": 1000, "fsGroup": 5, "supplementalGroups": [6, 7], "runAsNonRoot": true},
            "initContainers": [
                {"name": "first", "image": "i:1", "args": ["$(A)", "$$(A)", "$(B)", "$("], "env": [{"name": "A", "value": "a"}]},
                {"name": "side", "image": "i:1", "restartPolicy": "Always"},
                {"name": "once", "image": "i:1", "restartPolicy": "Never"},
            ],
            "containers": [{
                "name": "c", "image": "i:1", "imagePullPolicy": "Always", "command": ["run", "$(NAME)"], "workingDir": "/w",
                "env": [
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "TIER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['tier']"}}},
                    {"name": "BOTH", "value": "$(NAME)-$(TIER)"},
                ],
                "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1", "protocol": "UDP"}],
                "readinessProbe": probe, "tty": true, "stdin": true,
                "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}},
                "securityContext": {
                    "runAsUser": 2, "runAsGroup": 3, "privileged": true, "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false, "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                    "seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"},
                    "seLinuxOptions": {"level": "s0", "type": "t"},
                },
                "terminationMessagePath": "m", "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "host", "mountPath": "/host", "readOnly": true, "mountPropagation": "HostToContainer"},
                    {"name": "disk", "mountPath": "disk"}, {"name": "memory", "mountPath": "/memory"},
                ],
            }],
            "volumes": [
                {"name": "host", "hostPath": {"path": "/srv", "type": "Directory"}}, {"name": "disk", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        }),
    );
}

#[test]
fn a_pod_with_the_other_values() {
    let probe = |port: Value| json!({"tcpSocket": {"port": port}});
    golden(
        "other",
        &json!({
            "restartPolicy": "Never", "hostname": format!("{}.{}", "h".repeat(62), "i"),
            "hostnameOverride": "", "securityContext": {"runAsUser": 7, "fsGroup": 5},
            "nodeName": "node1", "serviceAccountName": "account",
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"]},
            "containers": [
                {
                    "name": "c", "image": "i:1", "imagePullPolicy": "Never", "workingDir": "",
                    "terminationMessagePath": "", "tty": false, "stdin": false,
                    "env": [
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                        {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
                        {"name": "NONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['none']"}}},
                        {"name": "EMPTY"},
                    ],
                    "ports": [{"name": "a", "containerPort": 80, "hostPort": 0}, {"name": "b", "containerPort": 81, "hostPort": 1}],
                    "startupProbe": probe("b".into()), "livenessProbe": probe("none".into()),
                    "readinessProbe": probe(9.into()),
                    "resources": {"limits": {"cpu": "10", "memory": "0"}},
                    "securityContext": {
                        "runAsNonRoot": false, "privileged": false, "allowPrivilegeEscalation": true,
                        "readOnlyRootFilesystem": false, "capabilities": {"add": ["kill", "CAP_KILL", "SYS_TIME"], "drop": ["KILL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                        "appArmorProfile": {"type": "Unconfined"},
                    },
                    "volumeMounts": [
                        {"name": "host", "mountPath": "/a", "mountPropagation": "Bidirectional"},
                        {"name": "host", "mountPath": "/b", "subPath": ""},
                        {"name": "host", "mountPath": "/c", "subPathExpr": "$(NODE)"},
                        {"name": "disk", "mountPath": "/d", "readOnly": true, "mountPropagation": "HostToContainer"},
                    ],
                },
                {
                    "name": "d", "image": "i:1", "resources": {"requests": {"cpu": "1m"}, "limits": {"cpu": "1m"}},
                    "securityContext": {"runAsUser": 8, "runAsGroup": 9},
                    "livenessProbe": {"exec": {"command": ["a"]}},
                },
                {"name": "e", "image": "i:1", "resources": {"limits": {"cpu": "0"}}},
            ],
            "volumes": [{"name": "host", "hostPath": {"path": "/srv"}}, {"name": "disk", "emptyDir": {}}],
        }),
    );
}

#[test]
fn what_the_policy_none_leaves_out_is_not_that_of_the_node() {
    let resolved = |policy: &str, dns: Value| {
        let container = json!({"name": "c", "image": "i:1"});
        let pod = translated(&json!({"dnsPolicy": policy, "dnsConfig": dns, "containers": [container]})).pod;
        ["dns_server", "dns_search", "dns_option"].map(|field| pod.get(field).cloned().unwrap_or_default())
    };
    let servers = json!(["9.9.9.9"]);
    let only = json!({"nameservers": servers});
    assert_eq!(resolved("None", only.clone()), [servers.clone(), json!(["."]), json!([""])]);
    assert_eq!(resolved("Default", only), [servers, Value::Null, Value::Null]);
    // To podman "." is none, and takes no others beside it.
    let searches = |searches: Value| resolved("Default", json!({"searches": searches}))[1].clone();
    assert_eq!(searches(json!([".", "x", "dns.local"])), json!(["x", "dns.local"]));
    assert_eq!(searches(json!(["."])), json!(["."]));
    let option = resolved("Default", json!({"options": [{"name": "ndots", "value": ""}]}));
    assert_eq!(option[2], json!(["ndots"]), "as the kubelet writes it");
}

/// Each variable is ten times the one before it: a thousand bytes that stand for a hundred gigabytes.
#[test]
fn variables_that_refer_to_each_other_are_bounded() {
    let variable = |number: usize| match number {
        0 => json!({"name": "E0", "value": "x".repeat(10)}),
        _ => json!({"name": format!("E{number}"), "value": format!("$(E{})", number - 1).repeat(10)}),
    };
    let variables = |count: usize| (0..count).map(variable).collect::<Vec<_>>();
    let env = |count: usize| json!({"containers": [{"name": "c", "image": "i:1", "env": variables(count)}]});
    let within = translated(&env(6));
    assert!(!within.is_too_long);
    assert_eq!(within.containers[0].body["env"]["E5"].as_str().unwrap().len(), 1_000_000);
    for wanted in [env(7), env(11)] {
        let beyond = translated(&wanted);
        assert!(beyond.is_too_long && beyond.containers[0].body.to_string().len() < 5 << 20);
    }
    let words = json!(vec!["$(E4)"; 25]);
    for field in ["command", "args"] {
        let container = json!({"name": "c", "image": "i:1", "env": variables(5), field: words});
        assert!(translated(&json!({"containers": [container]})).is_too_long, "{field}");
    }
    let value = "x".repeat(100_000);
    let probe = json!({"exec": {"command": vec!["$(V)"; 25]}});
    let container =
        json!({"name": "c", "image": "i:1", "env": [{"name": "V", "value": value}], "livenessProbe": probe});
    assert!(translated(&json!({"containers": [container]})).is_too_long);
}

/// What a pod has once, and each of its containers, variables or mounts repeats: little text that stands for much.
#[test]
fn what_the_containers_of_a_pod_repeat_is_bounded() {
    let with = |field: &str, value: Value| {
        let mut container = json!({"name": "c", "image": "i:1"});
        container[field] = value;
        container
    };
    let containers = |count: usize| vec![with("args", json!([])); count];
    let many = |text: &str| (0..1000).map(|number| format!("{text}{number}")).collect::<Vec<_>>();
    let long = "x".repeat(10_000);
    let security = |field: &str, value: &Value| json!({"containers": containers(1000), "securityContext": {field: value}});
    let on_host = |field: &str, value: &Value| json!({"containers": containers(1000), "hostNetwork": true, field: value});
    let options: Vec<Value> = many("o").iter().map(|name| json!({"name": name})).collect();
    let variables =
        many("E").into_iter().map(|name| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['long']"}}}));
    let mounts = many("/m").iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
    let mut mounted = json!({"containers": [with("volumeMounts", mounts)]});
    mounted["volumes"] = json!([{"name": "v", "hostPath": {"path": format!("/{long}")}}]);
    for wanted in [
        security("supplementalGroups", &(0..1000).collect()),
        security("seLinuxOptions", &json!({"level": long})),
        security("appArmorProfile", &json!({"type": "Localhost", "localhostProfile": long})),
        on_host("hostAliases", &json!([{"ip": "10.0.0.1", "hostnames": many("h")}])),
        on_host("dnsConfig", &json!({"nameservers": many("10.0.0.")})),
        on_host("dnsConfig", &json!({"searches": many("s")})),
        on_host("dnsConfig", &json!({"options": options})),
        json!({"containers": containers(1), "hostAliases": [{"ip": long, "hostnames": many("h")}]}),
        json!({"containers": [with("env", variables.collect())]}),
        mounted,
    ] {
        let beyond = annotated(&wanted, &json!({"long": long}));
        let length = serde_json::to_string(&beyond).unwrap().len();
        assert!(beyond.is_too_long && length < 4 << 20, "{length}: {:.200}", wanted.to_string());
    }
}

#[test]
fn many_containers_with_long_lists_are_translated_whole() {
    let names = |number: usize| ["a", "b", "c"].map(|name| format!("{name}{number}.a-long-name.example.com"));
    let aliases =
        (0..200).map(|number| json!({"ip": format!("10.1.2.{number}"), "hostnames": names(number)}));
    let fields = ["name", "namespace", "uid"].map(
        |field| json!({"name": field, "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.{field}")}}}),
    );
    let mounts = (0..50).map(|number| json!({"name": "v", "mountPath": format!("/m{number}")}));
    let container =
        json!({"name": "c", "image": "i:1", "env": fields, "volumeMounts": mounts.collect::<Value>()});
    let translation = translated(&json!({
        "hostNetwork": true, "hostAliases": aliases.collect::<Value>(), "containers": vec![container; 16],
        "securityContext": {"supplementalGroups": (0..100).collect::<Value>()},
        "volumes": [{"name": "v", "hostPath": {"path": format!("/{}", "x".repeat(200))}}],
    }));
    assert!(!translation.is_too_long);
    for container in &translation.containers {
        let count = |field: &str| container.body[field].as_array().unwrap().len();
        assert_eq!(["hostadd", "groups", "mounts"].map(count), [600, 100, 50]);
    }
}

/// Each container has it in a label, which podman repeats in each list.
#[test]
fn a_long_uid_is_repeated_by_few_containers() {
    let of = |containers: usize| {
        let containers = vec![json!({"name": "c", "image": "i:1"}); containers];
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "u".repeat(60_000)});
        let pod = json!({"metadata": metadata, "spec": {"containers": containers}}).to_string();
        let prepared = Prepared::from_json(pod.as_bytes()).unwrap();
        translate(&prepared.published_by(SourceName::File, Timestamp::UNIX_EPOCH), 1 << 30).is_too_long
    };
    assert_eq!([30, 40].map(of), [false, true]);
}

/// Where a reference ends is looked for once.
#[test]
fn references_without_an_end_stay() {
    let text = format!("$$(A){}$$", "$(".repeat(1 << 20));
    let translation =
        translated(&json!({"containers": [{"name": "c", "image": "i:1", "args": [text, "$(A", "$$$"]}]}));
    let expected = [format!("$(A){}$", "$(".repeat(1 << 20)), "$(A".to_owned(), "$$".to_owned()];
    assert_eq!(translation.containers[0].body["command"], json!(expected));
}

#[test]
fn the_command_of_a_probe_is_expanded_by_what_the_manifest_says() {
    let env = json!([
        {"name": "A", "value": "a"}, {"name": "B", "value": "$(A)"}, {"name": "EMPTY"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]);
    let command = json!(["$(A)$$(A)", "$(B)", "<$(EMPTY)$(NAME)>", "$(NONE)"]);
    let probe = json!({"exec": {"command": command}});
    let container = json!({"name": "c", "image": "i:1", "env": env, "livenessProbe": probe});
    let container = &translated(&json!({"containers": [container]})).containers[0];
    let expanded = json!(["a$(A)", "$(A)", "<>", "$(NONE)"]);
    assert_eq!(container.probes["livenessProbe"]["exec"]["command"], expanded);
    let check = container.body["healthconfig"]["Test"].as_array().unwrap();
    assert_eq!((&check[0], &json!(check[1..])), (&"CMD".into(), &expanded));
}

/// From before there was a field, which the kubelet obeys in manifests.
#[test]
fn the_annotation_of_an_apparmor_profile_is_obeyed_without_a_field_of_the_container() {
    let field = |profile: &str| json!({"type": "Localhost", "localhostProfile": profile});
    let obeyed = |annotation: &str, own: Value| {
        let name = "container.apparmor.security.beta.kubernetes.io/c";
        let container = json!({"name": "c", "image": "i:1", "securityContext": {"appArmorProfile": own}});
        let spec =
            json!({"containers": [container], "securityContext": {"appArmorProfile": field("the-pods")}});
        annotated(&spec, &json!({name: annotation})).containers[0].body["apparmor_profile"].clone()
    };
    assert_eq!(obeyed("localhost/a", Value::Null), "a");
    assert_eq!(obeyed("unconfined", Value::Null), "unconfined");
    assert_eq!(obeyed("runtime/default", Value::Null), Value::Null);
    assert_eq!(obeyed("localhost/a", field("own")), "own");
    // podman would run it without a profile.
    assert_eq!(obeyed("localhost/unconfined", Value::Null), Value::Null);
    assert_eq!(obeyed("runtime/default", field("unconfined")), Value::Null);
}

#[test]
fn an_init_container_that_ends_has_no_port_of_the_node() {
    let container = |name: &str, port: u16| {
        let ports = json!([{"containerPort": port, "hostPort": port}]);
        json!({"name": name, "image": "i:1", "ports": ports})
    };
    let mut sidecar = container("b", 2);
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({"initContainers": [container("a", 1), sidecar], "containers": [container("c", 3)]});
    let pod = translated(&spec).pod;
    let ports = pod["portmappings"].as_array().unwrap().iter().map(|port| port["host_port"].clone());
    assert_eq!(ports.collect::<Value>(), json!([2, 3]));
}

#[test]
fn a_volume_at_the_path_of_the_termination_message_is_what_the_container_has_there() {
    for (path, mounted, is_there) in [
        ("", "dev/termination-log", true),
        ("m", "/m/", true),
        ("/m//n", "/m/./x/../n", true),
        ("/m", "/m/n", false),
    ] {
        let container = json!({
            "name": "c", "image": "i:1", "terminationMessagePath": path,
            "volumeMounts": [{"name": "v", "mountPath": mounted}],
        });
        for volume in [json!({"hostPath": {"path": "/srv"}}), json!({"emptyDir": {}})] {
            let mut volume = volume;
            volume["name"] = "v".into();
            let translation = translated(&json!({"containers": [container], "volumes": [volume]}));
            assert_eq!(translation.containers[0].message_path.is_none(), is_there, "{path}");
            let unsupported = ["spec.containers[0].terminationMessagePath"];
            assert_eq!(translation.unsupported, unsupported[..usize::from(is_there)], "{path}");
        }
    }
}

#[test]
fn what_is_empty_is_not_named() {
    let container = json!({
        "name": "c", "image": "i:1", "lifecycle": {}, "envFrom": [], "resizePolicy": null, "volumeDevices": [],
    });
    let translation = translated(&json!({
        "containers": [container], "ephemeralContainers": [], "resourceClaims": null,
        "volumes": [{"name": "claim", "persistentVolumeClaim": {}}],
    }));
    assert_eq!(translation.unsupported, ["spec.volumes[0].persistentVolumeClaim"]);
}

#[test]
fn a_pod_in_the_namespaces_of_the_host() {
    let env = json!([{"name": "HOSTNAME", "value": "h"}]);
    let container =
        json!({"name": "c", "image": "i:1", "env": env, "ports": [{"containerPort": 80, "hostPort": 80}]});
    golden(
        "host",
        &json!({"hostNetwork": true, "hostPID": true, "hostIPC": true, "containers": [container]}),
    );
}

#[test]
fn only_a_pod_that_shares_more_than_the_namespaces_of_the_host_has_an_infra_container() {
    let mounts = json!([{"name": "a", "image": "i:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let (one, two) = (json!([{"name": "a", "image": "i:1"}]), json!([{"name": "b", "image": "i:1"}]));
    let both = json!([one[0], two[0]]);
    for (has_infra, spec) in [
        (true, json!({"containers": one})),
        (false, json!({"hostNetwork": true, "containers": one})),
        (true, json!({"hostNetwork": true, "containers": both})),
        (true, json!({"hostNetwork": true, "containers": one, "initContainers": two})),
        (false, json!({"hostNetwork": true, "hostIPC": true, "containers": both})),
        (true, json!({"hostNetwork": true, "shareProcessNamespace": true, "containers": one})),
        (
            false,
            json!({"hostNetwork": true, "containers": mounts, "volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        (
            true,
            json!({
                "hostNetwork": true, "containers": mounts,
                "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
            }),
        ),
    ] {
        let translation = translated(&spec);
        assert_eq!(translation.pod.get("no_infra").is_none(), has_infra, "{spec}");
        for container in translation.containers {
            let is_own = container.body.get("netns").is_none() && container.body.get("utsns").is_none();
            assert_eq!(is_own, spec["hostNetwork"] != true, "{spec}");
        }
    }
}

#[test]
fn the_qos_class_decides_on_the_order_in_which_the_kernel_kills() {
    let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    let none = json!({});
    let limits = |limits: &Value| json!({"limits": limits});
    let guaranteed = json!({"requests": both("500m", "1Gi"), "limits": both("0.5", "1024Mi")});
    let less = json!({"requests": both("500m", "512Mi"), "limits": both("0.5", "1Gi")});
    for (class, scores, resources) in [
        ("BestEffort", vec![Some(1000), Some(1000)], vec![&none, &json!({"requests": both("0", "0")})]),
        ("Guaranteed", vec![None, None], vec![&guaranteed, &limits(&both("1", "1Mi"))]),
        ("Burstable", vec![Some(999), Some(200)], vec![&none, &guaranteed]),
        ("Burstable", vec![Some(500), Some(999)], vec![&less, &json!({"requests": {"cpu": "1m"}})]),
        ("Burstable", vec![Some(750)], vec![&limits(&json!({"memory": "256Mi"}))]),
        (
            "Burstable",
            vec![Some(999)],
            vec![&json!({"requests": both("0", "0"), "limits": both("1", "1Gi")})],
        ),
    ] {
        let containers: Vec<Value> = resources
            .iter()
            .map(|resources| json!({"name": "c", "image": "i:1", "resources": resources}))
            .collect();
        let (init, rest) = containers.split_at(containers.len() - 1);
        let mut spec = json!({"initContainers": init, "containers": rest});
        let translation = translated(&spec);
        let found = |translation: &Translation| -> Vec<Option<i64>> {
            translation.containers.iter().map(|container| container.body["oom_score_adj"].as_i64()).collect()
        };
        assert_eq!((translation.qos_class, found(&translation)), (class, scores), "{spec}");
        spec["priorityClassName"] = "system-node-critical".into();
        assert!(found(&translated(&spec)).iter().all(Option::is_none), "{spec}");
    }
    // A sidecar has the score of the first of the containers that need it.
    let container = |resources: &Value| json!({"name": "c", "image": "i:1", "resources": resources});
    let mut sidecar = container(&none);
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({"initContainers": [sidecar], "containers": [container(&less), container(&guaranteed)]});
    assert_eq!(translated(&spec).containers[0].body["oom_score_adj"], 500);
    let whole = json!({"containers": [{"name": "c", "image": "i:1"}], "resources": guaranteed});
    assert_eq!(translated(&whole).qos_class, "Guaranteed");
}

#[test]
fn a_long_name_of_a_volume_is_cut_and_stays_its_own() {
    let name = |last: &str| format!("{}{last}", "v".repeat(240));
    let mounts = ["a", "b"].map(|last| json!({"name": name(last), "mountPath": format!("/{last}")}));
    let volumes = ["a", "b"].map(|last| json!({"name": name(last), "emptyDir": {}}));
    let container = json!({"name": "c", "image": "i:1", "volumeMounts": mounts});
    let translation = translated(&json!({"containers": [container], "volumes": volumes}));
    let names: Vec<&str> = translation.volumes.iter().map(|body| body["Name"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| name.len() == 255 && name.starts_with("podmux_shop_web_v")), "{names:?}");
    assert_ne!(names[0], names[1]);
    for (name, empty_dir) in names.iter().zip(&translation.containers[0].empty_dirs) {
        assert_eq!(empty_dir.0, *name);
    }
}

#[test]
fn what_podman_cannot_do_is_named() {
    let translation = translated(&json!({
        "activeDeadlineSeconds": 5, "runtimeClassName": "gvisor", "nodeSelector": {"a": "b"},
        "someField": {"of": "later"},
        "securityContext": {"sysctls": [{"name": "a", "value": "b"}], "runAsGroup": 5},
        "containers": [
            {
                "name": "a", "image": "i:1", "ports": [{"name": "web", "containerPort": 80}],
                "restartPolicy": "Always", "restartPolicyRules": [{"action": "Restart"}],
                "startupProbe": {"tcpSocket": {"port": "web"}}, "livenessProbe": {"tcpSocket": {"port": "none"}},
            },
            {
                "name": "b", "image": "i:1",
                "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "HOSTNAME", "value": "h"},
                ],
                "envFrom": [{"configMapRef": {"name": "c"}}],
                "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
                "livenessProbe": {"grpc": {"port": 1}},
                "readinessProbe": {"grpc": {"port": 1}},
                "resources": {"limits": {"ephemeral-storage": "1Gi", "cpu": "1"}},
                "securityContext": {"procMount": "Unmasked"},
                "volumeMounts": [
                    {"name": "config", "mountPath": "/c"},
                    {"name": "disk", "mountPath": "/d", "subPath": "x"},
                ],
            },
        ],
        "volumes": [{"name": "config", "configMap": {"name": "c"}}, {"name": "disk", "emptyDir": {"sizeLimit": "1Gi"}}],
    }));
    expect![[r#"
        spec.activeDeadlineSeconds
        spec.containers[0].livenessProbe.tcpSocket.port
        spec.containers[0].restartPolicyRules
        spec.containers[0].securityContext.runAsGroup
        spec.containers[1].envFrom
        spec.containers[1].env[0].valueFrom.secretKeyRef
        spec.containers[1].env[1].valueFrom.fieldRef
        spec.containers[1].env[2]
        spec.containers[1].lifecycle
        spec.containers[1].livenessProbe.grpc
        spec.containers[1].readinessProbe.grpc
        spec.containers[1].resources.limits.ephemeral-storage
        spec.containers[1].securityContext.procMount
        spec.containers[1].securityContext.runAsGroup
        spec.containers[1].volumeMounts[1].subPath
        spec.runtimeClassName
        spec.securityContext.sysctls
        spec.someField
        spec.volumes[0].configMap
        spec.volumes[1].emptyDir.sizeLimit
    "#]]
    .assert_eq(&(translation.unsupported.join("\n") + "\n"));
    // A part of a volume is not replaced by the whole.
    assert_eq!(translation.containers[1].body.get("volumes"), None);
}

/// A spec with a value at the path of a row.
fn spec_with(path: &str, value: Value) -> Value {
    let mut value = value;
    for step in path.rsplit('.') {
        value = match step.strip_suffix("[]") {
            Some(name) => json!({name: [value]}),
            None => json!({step: value}),
        };
    }
    value["spec"].take()
}

#[test]
fn each_row_of_the_table_is_what_the_code_does() {
    for (path, support, _) in TABLE {
        let reported = |value: Value| {
            let mut spec = spec_with(path, value);
            // It is above, or the one that has it.
            if spec["containers"].is_null() {
                spec["containers"] = json!([{"name": "c", "image": "i:1"}]);
            }
            translated(&spec).unsupported
        };
        let shown = path.replace("[]", "[0]");
        match support {
            Support::Yes | Support::Inert if path.ends_with("fieldRef") || path.ends_with("runAsGroup") => {}
            Support::Yes | Support::Inert => assert_eq!(reported(json!("x")), Vec::<String>::new(), "{path}"),
            Support::Only(values) => {
                for value in *values {
                    assert_eq!(reported(json!(value)), Vec::<String>::new(), "{path}={value}");
                }
                assert_eq!(reported(json!("x")), [shown]);
            }
            Support::No => assert_eq!(reported(json!("x")), [shown]),
        }
    }
}

/// `UPDATE_EXPECT=1 cargo test --test it podman_spec::` writes the table.
#[test]
fn the_documented_fields_are_those_of_the_code() {
    const BEGIN: &str = "<!-- fields: generated -->\n";
    const END: &str = "<!-- end of fields -->\n";
    let mut table = "\n| field | with podman | note |\n|---|---|---|\n".to_owned();
    for (path, support, note) in TABLE {
        let support = match support {
            Support::Yes => "yes".to_owned(),
            Support::Inert => "no effect".to_owned(),
            Support::No => "**no**".to_owned(),
            Support::Only(values) => {
                let values: Vec<String> = values
                    .iter()
                    .map(|value| format!("`{}`", if value.is_empty() { "\"\"" } else { value }))
                    .collect();
                format!("only {}", values.join(", "))
            }
        };
        let row = format!("| `{}` | {support} | {note} |\n", path.strip_prefix("spec.").unwrap());
        table += &row;
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/podman.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    expect_file![path].assert_eq(&format!("{before}{BEGIN}{table}\n{END}{after}"));
}
