//! Random pods with something to warn of.

use serde_json::{Value, json};

use crate::{oracle::KNOWN, support::random::Random};

const LABELS: [&str; 9] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "beta.kubernetes.io/instance-type",
    "app.kubernetes.io/created-by",
    "scheduler.alpha.kubernetes.io/preferAvoidPods",
    "node-role.kubernetes.io/master",
    "kubernetes.io/os",
];

const ADDRESSES: [&str; 6] = ["10.0.0.1", "2001:DB8::1", "2001:db8::1", "0:0::1", "::1", "1:0:0:2:0:0:0:3"];
const AMOUNTS: [&str; 8] = ["1500m", "0.5", "1Gi", "100m", "2", "1e-3", "0.0000001", "1.5Ki"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// A pod, mostly valid, with some of everything that an API server warns of.
pub fn provoked(random: &mut Random) -> Value {
    let mut pod = loop {
        let pod = random.pick(&KNOWN.bases);
        if pod["kind"] == "Pod" && pod["spec"]["containers"].is_array() && pod["metadata"].is_object() {
            break pod.clone();
        }
    };
    for part in ["annotations", "labels"] {
        if pod["metadata"][part].is_null() {
            pod["metadata"][part] = json!({});
        }
    }
    for _ in 0..=random.below(4) {
        match random.below(5) {
            0 => of_metadata(random, &mut pod),
            1 => of_scheduling(random, &mut pod["spec"]),
            2 => of_volumes(random, &mut pod["spec"]),
            3 => of_container(random, &mut pod["spec"]),
            _ => of_spec(random, &mut pod["spec"]),
        }
    }
    if random.once_in(4) {
        KNOWN.mutate(random, &mut pod);
    }
    pod
}

/// Whether Go has warned of a quantity whose thousandths exceed 64 bits. It calculates with what is left of them.
pub fn has_odd_quantity(theirs: &[String]) -> bool {
    let is_odd =
        |text: &str| ["P", "E", "Pi", "Ei"].iter().any(|suffix| text.ends_with(suffix)) || text.len() > 15;
    let mut amounts = theirs
        .iter()
        .filter_map(|text| Some(text.split_once("fractional byte value \"")?.1.split_once('"')?.0));
    amounts.any(is_odd)
}

/// Adds an item to a list.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        list => *list = json!([item]),
    }
}

fn pick(random: &mut Random, among: &[&str]) -> Value {
    json!(random.pick(among))
}

/// A name that is new in most cases.
fn fresh(random: &mut Random) -> String {
    format!("n{}", random.below(1_000_000))
}

/// One of the containers.
fn container<'p>(random: &mut Random, spec: &'p mut Value) -> &'p mut Value {
    let field = if spec["initContainers"].as_array().is_some_and(|list| !list.is_empty()) && random.once_in(2)
    {
        "initContainers"
    } else {
        "containers"
    };
    let count = spec[field].as_array().map_or(0, Vec::len);
    let index = random.below(count.max(1));
    if count == 0 {
        push(&mut spec[field], json!({"name": "c", "image": "i:1"}));
    }
    &mut spec[field][index]
}

fn of_metadata(random: &mut Random, pod: &mut Value) {
    let long = "a".repeat(70);
    let long_with_dots = format!("{long}.b");
    let name = container(random, &mut pod["spec"])["name"].as_str().unwrap_or_default().to_owned();
    let of_container = |domain: &str| format!("container.{domain}.kubernetes.io/{name}");
    let profiles = ["runtime/default", "unconfined", "localhost/a", "localhost/", "localhost/ a"];
    let annotations = &mut pod["metadata"]["annotations"];
    match random.below(8) {
        0 => pod["metadata"]["name"] = pick(random, &["a.b", &long, &long_with_dots, "web"]),
        1 => {
            let names = ["critical-pod", "tolerations"];
            annotations[format!("scheduler.alpha.kubernetes.io/{}", random.pick(&names))] = json!("");
        }
        2 => annotations["security.alpha.kubernetes.io/sysctls"] = json!("a=b"),
        3 => annotations["security.alpha.kubernetes.io/unsafe-sysctls"] = json!("a=b"),
        4 => annotations["seccomp.security.alpha.kubernetes.io/pod"] = pick(random, &profiles),
        5 => annotations[of_container("seccomp.security.alpha")] = pick(random, &profiles),
        6 => annotations[of_container("apparmor.security.beta")] = pick(random, &profiles),
        _ => {
            let (field, annotation) = *random.pick(&[
                ("appArmorProfile", "apparmor.security.beta"),
                ("seccompProfile", "seccomp.security.alpha"),
            ]);
            let (kind, profile) =
                *random.pick(&[("RuntimeDefault", "runtime/default"), ("Unconfined", "unconfined")]);
            annotations[of_container(annotation)] = json!(profile);
            let of = if random.once_in(2) { &mut pod["spec"] } else { container(random, &mut pod["spec"]) };
            if !of["securityContext"].is_object() {
                of["securityContext"] = json!({});
            }
            of["securityContext"][field] = json!({"type": kind});
        }
    }
}

fn of_scheduling(random: &mut Random, spec: &mut Value) {
    if !spec["affinity"].is_object() {
        spec["affinity"] = json!({});
    }
    let label = *random.pick(&LABELS);
    let selector = if random.once_in(3) { json!({}) } else { Value::Null };
    let pods = *random.pick(&["podAffinity", "podAntiAffinity"]);
    match random.below(6) {
        0 => {
            if !spec["nodeSelector"].is_object() {
                spec["nodeSelector"] = json!({});
            }
            spec["nodeSelector"][label] = json!("x");
        }
        1 => {
            let term = json!({"matchExpressions": [{"key": label, "operator": "Exists"}]});
            push(&mut spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"], term);
        }
        2 => {
            let (long, odd) = ("v".repeat(64), format!("-{}", "v".repeat(64)));
            let values = pick(random, &["v", "", "-", "a b", "ä", &long, &odd, "a\"b"]);
            let term =
                json!({"matchExpressions": [{"key": label, "operator": "In", "values": [values, "x"]}]});
            push(&mut spec["affinity"]["nodeAffinity"][PREFERRED], json!({"weight": 1, "preference": term}));
        }
        3 => {
            let key = if random.once_in(2) { label.to_owned() } else { fresh(random) };
            let spread = json!({
                "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
            });
            push(&mut spec["topologySpreadConstraints"], spread);
        }
        4 => {
            let term = json!({"topologyKey": "zone", "labelSelector": selector});
            push(&mut spec["affinity"][pods][REQUIRED], term);
        }
        _ => {
            let term = json!({"topologyKey": "zone", "labelSelector": selector});
            push(&mut spec["affinity"][pods][PREFERRED], json!({"weight": 1, "podAffinityTerm": term}));
        }
    }
}

/// Some files, with paths that may overlap.
fn files(random: &mut Random) -> Vec<Value> {
    let paths = [
        "a",
        "a/b",
        "a/b/c",
        "a/",
        "b",
        "ab",
        "a//b",
        "ä/x",
        "ä",
        "a\"",
        "a\u{301}",
        "a\u{a0}/\t",
        "a-b",
        "b///",
    ];
    let file = |random: &mut Random| json!({"key": "k", "path": pick(random, &paths)});
    (0..=random.below(4)).map(|_| file(random)).collect()
}

/// The same of fields of the pod.
fn fields(random: &mut Random) -> Vec<Value> {
    let field = json!({"fieldPath": "metadata.name"});
    let files = files(random).into_iter();
    files.map(|file| json!({"path": file["path"], "fieldRef": field})).collect()
}

fn of_volumes(random: &mut Random, spec: &mut Value) {
    let amount = |random: &mut Random| json!({"storage": pick(random, &AMOUNTS)});
    let source = match random.below(15) {
        0 => json!({"photonPersistentDisk": {"pdID": "x"}}),
        1 => json!({"gitRepo": {"repository": "r"}}),
        2 => {
            json!({"scaleIO": {"gateway": "g", "system": "s", "volumeName": "v", "secretRef": {"name": "s"}}})
        }
        3 => json!({"flocker": {"datasetName": "d"}}),
        4 => json!({"storageos": {"volumeName": "v"}}),
        5 => json!({"quobyte": {"registry": "a:1", "volume": "v"}}),
        6 => json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
        7 => json!({"cephfs": {"monitors": ["a"]}}),
        8 => json!({"rbd": {"monitors": ["a"], "image": "i"}}),
        9 => {
            let field = *random.pick(&["requests", "limits"]);
            let mut resources = json!({"requests": {"storage": "1"}});
            resources[field] = amount(random);
            let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": resources});
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim}}})
        }
        10 => json!({"configMap": {"name": pick(random, &["m", "a\"b", "é"]), "items": files(random)}}),
        11 => json!({"secret": {"secretName": "s", "items": files(random)}}),
        12 => json!({"downwardAPI": {"items": fields(random)}}),
        _ => {
            // A token needs one.
            spec["serviceAccountName"] = json!("a");
            json!({"projected": {"sources": (0..=random.below(4)).map(|_| projected(random)).collect::<Vec<_>>()}})
        }
    };
    let mut volume = source;
    volume["name"] = json!(fresh(random));
    push(&mut spec["volumes"], volume);
}

fn projected(random: &mut Random) -> Value {
    // Few paths, so that they often overlap.
    let path = json!(*random.pick(&["a", "a/b"]));
    match random.below(8) {
        0 => json!({}),
        1 => json!({"configMap": {"name": "m", "items": files(random)}}),
        2 => json!({"secret": {"name": "s", "items": files(random)}}),
        3 => json!({"downwardAPI": {"items": fields(random)}}),
        4 => json!({"serviceAccountToken": {"path": path}}),
        5 => json!({"clusterTrustBundle": {"name": "b", "path": path}}),
        6 => {
            json!({"clusterTrustBundle": {"signerName": "example.com/s", "labelSelector": {}, "path": path}})
        }
        _ => {
            let mut certificate = json!({"signerName": "example.com/s", "keyType": "ED25519"});
            if random.once_in(2) {
                certificate["credentialBundlePath"] = path;
            } else {
                certificate["keyPath"] = path;
                certificate["certificateChainPath"] = files(random)[0]["path"].clone();
            }
            json!({"podCertificate": certificate})
        }
    }
}

fn of_container(random: &mut Random, spec: &mut Value) {
    let container = container(random, spec);
    let amount = pick(random, &AMOUNTS);
    match random.below(6) {
        0 => {
            let resource = *random.pick(&["memory", "ephemeral-storage"]);
            let mut resources = json!({});
            for field in [*random.pick(&["limits", "requests"]), *random.pick(&["limits", "requests"])] {
                resources[field][resource] = amount.clone();
            }
            container["resources"] = resources;
        }
        1 | 2 => {
            for _ in 0..=random.below(3) {
                let name = pick(random, &["A", "B", "a b\"c"]);
                let value = pick(random, &["", "x", "$(A)", "$(A)x", "x$(B)$(A)"]);
                let mut variable = json!({"name": name, "value": value});
                if random.once_in(4) {
                    variable =
                        json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
                }
                push(&mut container["env"], variable);
            }
        }
        _ => {
            for _ in 0..=random.below(3) {
                let mut port = json!({"containerPort": 80 + random.below(2)});
                for (field, value) in [
                    ("hostIP", pick(random, &["10.0.0.1", "::1"])),
                    ("hostPort", json!(90 + random.below(2))),
                    ("protocol", pick(random, &["TCP", "UDP"])),
                    ("name", pick(random, &["http", "dns"])),
                ] {
                    if random.once_in(2) {
                        port[field] = value;
                    }
                }
                push(&mut container["ports"], port);
            }
        }
    }
}

fn of_spec(random: &mut Random, spec: &mut Value) {
    match random.below(5) {
        0 => spec["terminationGracePeriodSeconds"] = json!(-1),
        1 => {
            for _ in 0..=random.below(2) {
                let alias = json!({"ip": pick(random, &ADDRESSES), "hostnames": ["h"]});
                push(&mut spec["hostAliases"], alias);
            }
        }
        2 => {
            for _ in 0..=random.below(2) {
                let secret = json!({"name": pick(random, &["", "a", "ä\n\u{1}\u{202e}"])});
                push(&mut spec["imagePullSecrets"], secret);
            }
        }
        3 => {
            let resource = *random.pick(&["memory", "ephemeral-storage"]);
            spec["overhead"] = json!({resource: pick(random, &AMOUNTS)});
        }
        _ => spec["dnsConfig"] = json!({"nameservers": [pick(random, &ADDRESSES)]}),
    }
}
