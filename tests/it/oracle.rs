//! Random manifests, pods and histories: podmux and the kubelet's own code give the same results.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::discriminant,
    sync::LazyLock,
};

use podmux::{
    manifest::{self, Preparation, yaml},
    pod::{NodeName, Prepared, SecurityLevel, SourceName},
    validation::pod_security,
};
use serde_json::{Map, Value, json};

use crate::{
    decode_corpus::{comparable, object},
    replay,
    support::{corpus, kubernetes::Oracle, random::Random},
    validation_corpus::{Causes, causes},
};

/// The number of random cases: from the environment, or a few.
pub fn cases(variable: &str, few: u64) -> u64 {
    std::env::var(variable).map_or(few, |many| many.parse().unwrap())
}

fn decode(text: &str, source: &str) -> Value {
    json!({"op": "decode", "source": source, "node": "node1", "text": text})
}

/// The kubelet's (field, reason) pairs, of a case of the corpus or an answer of the oracle.
fn kubelets_causes(result: &Value) -> Causes {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = result["causes"].as_array().into_iter().flatten();
    causes.map(|cause| (text(&cause["field"]), text(&cause["reason"]))).collect()
}

#[test]
fn the_oracle_agrees_with_the_corpus() {
    let Some(mut oracle) = Oracle::start() else { return };
    for file in ["pods.jsonl.gz", "yaml.jsonl.gz"] {
        for case in corpus(file) {
            let answer =
                oracle.ask(&decode(case["data"].as_str().unwrap(), case["source"].as_str().unwrap()));
            let id = &case["id"];
            assert_eq!((&answer["ok"], &answer["stage"]), (&case["ok"], &case["stage"]), "{id}");
            assert_eq!(kubelets_causes(&answer), kubelets_causes(&case), "{id}");
            assert_eq!(answer["pods"], case["pods"], "{id}");
        }
    }
    for case in corpus("pod_security.jsonl.gz") {
        let answer = oracle.ask(&json!({"op": "pod-security", "pod": case["pod"]}));
        for level in ["baseline", "restricted"] {
            assert_eq!(answer[level], case[level], "{}", case["id"]);
        }
    }
    for case in corpus("merge.jsonl.gz") {
        let answer = oracle.ask(&json!({"op": "merge", "steps": case["steps"]}));
        let updates: Vec<Value> =
            case["steps"].as_array().unwrap().iter().map(|step| step["updates"].clone()).collect();
        assert_eq!(answer["steps"], json!(updates), "{}", case["id"]);
    }
}

/// Removes the escapes from paths: podmux escapes quotes and line breaks in keys, the API does not.
fn unescaped(causes: Causes) -> Causes {
    causes.into_iter().map(|(field, reason)| (field.replace('\\', ""), reason)).collect()
}

/// How the result of podmux for a text differs from the kubelet's.
fn difference(text: &str, source: &str, theirs: &Value) -> Option<String> {
    let name = if source == "file" { SourceName::File } else { SourceName::Url };
    let preparation =
        Preparation { source: name, node: NodeName::new("node1").unwrap(), generate: None, namespace: None };
    let stage = theirs["stage"].as_str();
    let invalid = match manifest::read(text.as_bytes(), &preparation) {
        Ok(_) if stage.is_some() => {
            return Some(format!(
                "accepted; the kubelet at {stage:?}: {} {:?}",
                theirs["error"],
                kubelets_causes(theirs)
            ));
        }
        Ok(ours) => {
            let pods = theirs["pods"].as_array().unwrap();
            let given = |pod: &Value| pod["metadata"].get("uid").is_some();
            let same = ours.pods.len() == pods.len()
                && ours.pods.iter().zip(pods).all(|(ours, theirs)| {
                    comparable(object(ours), given(theirs)) == comparable(theirs.clone(), true)
                });
            let ours: Vec<Value> = ours.pods.iter().map(object).collect();
            return (!same)
                .then(|| format!("another pod\nours   {}\ntheirs {}", json!(ours), theirs["pods"]));
        }
        Err(invalid) => invalid,
    };
    let ours = invalid.stage.as_str();
    if stage != Some(ours) {
        return Some(format!(
            "rejected at {ours}: {invalid}; the kubelet at {stage:?}: {} {:?}",
            theirs["error"],
            kubelets_causes(theirs)
        ));
    }
    let (ours, theirs) = (unescaped(causes(&invalid)), unescaped(kubelets_causes(theirs)));
    let same = stage != Some("validate") || ours == theirs;
    (!same).then(|| {
        let (more, fewer): (Vec<_>, Vec<_>) =
            (ours.difference(&theirs).collect(), theirs.difference(&ours).collect());
        format!("more causes {more:?}, fewer {fewer:?}")
    })
}

/// Tries texts, and prints some of those with different results.
fn try_all(name: &str, tries: u64, mut make: impl FnMut(&mut Random) -> Option<(String, &'static str)>) {
    let Some(mut oracle) = Oracle::start() else { return };
    let (mut differ, mut stages) = (Vec::new(), BTreeMap::<String, usize>::new());
    for seed in 0..tries {
        let Some((text, source)) = make(&mut Random::new(seed)) else { continue };
        let theirs = oracle.ask(&decode(&text, source));
        *stages.entry(theirs["stage"].as_str().unwrap_or("accepted").to_owned()).or_default() += 1;
        if let Some(how) = difference(&text, source, &theirs) {
            differ.push(format!("{name} {seed} ({source}): {how}\n{text}\n"));
        }
    }
    println!("{name}: {stages:?}");
    let many = |stage: &str| stages.get(stage).is_some_and(|count| *count as u64 > tries / 50);
    assert!(many("accepted") && many("decode") && many("validate"), "the cases are too similar: {stages:?}");
    let shown = &differ[..differ.len().min(20)];
    assert!(differ.is_empty(), "{} of {tries} differ:\n{}", differ.len(), shown.join("\n"));
}

/// The values of each key in known pods, and the keys that occur together.
pub struct Known {
    pub bases: Vec<Value>,
    texts: Vec<String>,
    values: HashMap<String, Vec<Value>>,
    fields: HashMap<String, BTreeSet<String>>,
    odd: Vec<Value>,
}

pub static KNOWN: LazyLock<Known> = LazyLock::new(|| Known::of(corpus("pods.jsonl.gz")));

/// These and the pods that the Pod Security Standards are about, which are most of the bases.
static GUARDED: LazyLock<Known> = LazyLock::new(|| {
    let cases = corpus("pod_security.jsonl.gz").into_iter();
    let cases = cases.map(|case| json!({"data": case["pod"].to_string(), "ok": true}));
    Known::of(cases.chain(corpus("pods.jsonl.gz")))
});

impl Known {
    fn of(cases: impl IntoIterator<Item = Value>) -> Self {
        let mut known = Self {
            bases: Vec::new(),
            texts: Vec::new(),
            values: HashMap::new(),
            fields: HashMap::new(),
            odd: odd(),
        };
        for case in cases {
            let text = case["data"].as_str().unwrap();
            let Ok(value) = yaml::to_json(text) else { continue };
            known.learn("", &value);
            if case["ok"] == true {
                known.bases.push(value);
                if !text.trim_start().starts_with('{') {
                    known.texts.push(text.to_owned());
                }
            }
        }
        known
    }

    fn learn(&mut self, key: &str, value: &Value) {
        // A few of each are enough.
        let values = self.values.entry(key.to_owned()).or_default();
        if values.len() < 100 && !values.contains(value) {
            values.push(value.clone());
        }
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    self.fields.entry(key.to_owned()).or_default().insert(field.clone());
                    self.learn(field, value);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(key, item)),
            _ => {}
        }
    }

    /// A random pod, which is seldom valid but mostly of the right types.
    pub fn pod(&self, random: &mut Random) -> Value {
        loop {
            let mut pod = random.pick(&self.bases).clone();
            if pod["kind"] == "Pod" {
                for _ in 0..=random.below(4) {
                    self.mutate(random, &mut pod);
                }
                return pod;
            }
        }
    }

    /// Changes one value of a pod. All values are equally likely, so most changes are deep inside.
    pub(crate) fn mutate(&self, random: &mut Random, pod: &mut Value) {
        let mut places = Vec::new();
        // The kind and version stay: another kind is rejected at once.
        for part in ["metadata", "spec"] {
            if let Some(value) = pod.get(part) {
                places_in(part, &format!("/{part}"), value, &mut places);
            }
        }
        if places.is_empty() {
            return;
        }
        let (key, path) = random.pick(&places).clone();
        let value = pod.pointer_mut(&path).unwrap();
        match value {
            Value::Object(fields) if !random.once_in(8) => {
                if random.once_in(4) && !fields.is_empty() {
                    let names: Vec<String> = fields.keys().cloned().collect();
                    fields.remove(random.pick(&names));
                } else {
                    self.add(random, &key, fields);
                }
            }
            Value::Array(items) if !items.is_empty() && !random.once_in(8) => {
                let index = random.below(items.len());
                if random.once_in(3) {
                    items.remove(index);
                } else {
                    let item =
                        if random.once_in(2) { items[index].clone() } else { self.another(random, &key) };
                    items.push(item);
                }
            }
            _ => *value = self.instead_of(random, &key, value),
        }
    }

    pub(crate) fn add(&self, random: &mut Random, key: &str, fields: &mut Map<String, Value>) {
        let Some(known) = self.fields.get(key) else { return };
        let names: Vec<&String> = known.iter().collect();
        let name = *random.pick(&names);
        let seen = self.values.get(name).filter(|_| !random.once_in(10));
        let value = match seen {
            Some(values) => random.pick(values).clone(),
            None => self.another(random, name),
        };
        fields.insert(name.clone(), value);
    }

    /// Another value, mostly of the same type: another type is rejected before
    /// validation.
    pub(crate) fn instead_of(&self, random: &mut Random, key: &str, value: &Value) -> Value {
        if let Some(number) = value.as_i64()
            && random.once_in(2)
        {
            let change = *random.pick(&[1, -1, number.wrapping_neg(), number.wrapping_mul(-2)]);
            return json!(number.wrapping_add(change));
        }
        for _ in 0..10 {
            let other = self.another(random, key);
            if discriminant(&other) == discriminant(value) || random.once_in(20) {
                return other;
            }
        }
        Value::Null
    }

    /// A known value of this key, or an unusual one.
    pub(crate) fn another(&self, random: &mut Random, key: &str) -> Value {
        let known = self.values.get(key).filter(|_| !random.once_in(3));
        if let Some(values) = known {
            return random.pick(values).clone();
        }
        random.pick(&self.odd).clone()
    }
}

/// The paths of all values inside, each with its key.
pub(crate) fn places_in(key: &str, path: &str, value: &Value, places: &mut Vec<(String, String)>) {
    places.push((key.to_owned(), path.to_owned()));
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                // `~` and `/` are special in such a path.
                let escaped = field.replace('~', "~0").replace('/', "~1");
                places_in(field, &format!("{path}/{escaped}"), value, places);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places_in(key, &format!("{path}/{index}"), item, places);
            }
        }
        _ => {}
    }
}

/// Unusual values.
fn odd() -> Vec<Value> {
    let texts = [
        "",
        "a",
        "A",
        "-a",
        "a-",
        "a.b",
        "a/b",
        "a/b/c",
        "/",
        "..",
        "../x",
        "/a/../b",
        "a b",
        "ä",
        "0",
        "-1",
        "1.5",
        "1Gi",
        "100m",
        "0.5",
        "1e3",
        "50%",
        "150%",
        "1:30",
        "true",
        "*",
        "10.0.0.1",
        "::1",
        "TCP",
        "http",
        "kubernetes.io/x",
        "metadata.name",
        "$(A)",
        "A_B",
        "a=b",
        "2026-01-02T03:04:05Z",
    ];
    let numbers =
        [0, 1, -1, 2, 80, 65535, 65536, 1000, 2_147_483_647, 2_147_483_648, -2_147_483_649, i64::MAX];
    let long = |length: usize| json!("a".repeat(length));
    let mut all: Vec<Value> = texts.iter().map(|text| json!(text)).collect();
    all.extend(numbers.map(|number| json!(number)));
    all.extend([
        long(63),
        long(64),
        long(253),
        long(254),
        json!(1.5),
        json!(1.0),
        json!(1e20),
        json!(true),
        json!(false),
    ]);
    all.extend([
        json!(null),
        json!([]),
        json!({}),
        json!([null]),
        json!([{}]),
        json!({"a": "b"}),
        json!(["a", "a"]),
    ]);
    all
}

fn either(random: &mut Random) -> &'static str {
    if random.once_in(3) { "http" } else { "file" }
}

#[test]
fn random_pods_give_the_kubelets_result() {
    try_all("pod", cases("PODMUX_MANIFESTS", 2000), |random| {
        let mut pod = random.pick(&KNOWN.bases).clone();
        for _ in 0..=random.below(3) {
            KNOWN.mutate(random, &mut pod);
        }
        Some((pod.to_string(), either(random)))
    });
}

#[test]
fn random_pods_violate_the_pod_security_standards_where_upstreams_checks_say_so() {
    let Some(mut oracle) = Oracle::start() else { return };
    let node = NodeName::new("node1").unwrap();
    let preparation = Preparation { source: SourceName::File, node, generate: None, namespace: None };
    let (mut tries, mut verdicts) = (0, BTreeMap::<String, usize>::new());
    for seed in 0..cases("PODMUX_MANIFESTS", 2000) {
        let random = &mut Random::new(seed);
        let mut pod = random.pick(&GUARDED.bases).clone();
        for _ in 0..random.below(4) {
            GUARDED.mutate(random, &mut pod);
        }
        // Only valid pods reach an admission.
        let Ok(manifest) = manifest::read(pod.to_string().as_bytes(), &preparation) else { continue };
        for pod in manifest.pods.iter().map(Prepared::object) {
            tries += 1;
            let theirs = oracle.ask(&json!({"op": "pod-security", "pod": pod}));
            for level in [SecurityLevel::Baseline, SecurityLevel::Restricted] {
                let theirs = theirs[level.as_str()].as_str().unwrap();
                let wanted = format!("violates PodSecurity \"{}:latest\": {theirs}", level.as_str());
                let wanted = Some(wanted).filter(|_| !theirs.is_empty());
                assert_eq!(pod_security::violation(pod, level), wanted, "{seed}: {}", json!(pod));
                let controls = theirs.split("), ").map(|violation| violation.split(" (").next().unwrap());
                controls.for_each(|control| *verdicts.entry(control.to_owned()).or_default() += 1);
            }
        }
    }
    println!("{tries} pods: {verdicts:#?}");
    assert!(tries > 200 && verdicts.len() > 15, "the cases are too similar: {verdicts:#?}");
}

#[test]
fn random_pods_of_a_server_are_rejected_where_the_kubelets_decoder_rejects_them() {
    let Some(mut oracle) = Oracle::start() else { return };
    let (mut differ, mut accepted, mut rejected) = (Vec::new(), 0, 0);
    for seed in 0..cases("PODMUX_MANIFESTS", 2000) {
        let random = &mut Random::new(seed);
        let mut pod = random.pick(&KNOWN.bases).clone();
        if pod["kind"] != "Pod" {
            continue;
        }
        for _ in 0..=random.below(4) {
            KNOWN.mutate(random, &mut pod);
        }
        // They are skipped unread.
        if let Some(Value::Object(metadata)) = pod.get_mut("metadata") {
            metadata.remove("managedFields");
        }
        let text = pod.to_string();
        let theirs = oracle.ask(&decode(&text, "file"));
        let ours = Prepared::from_server(text.as_bytes());
        match (theirs["stage"].as_str(), &ours) {
            // The kubelet reports a missing name later.
            (Some("name"), Err(_)) => {}
            (Some("decode"), Err(_)) => rejected += 1,
            (stage, Ok(ours)) if stage != Some("decode") => {
                accepted += 1;
                assert_eq!(*ours, Prepared::from_value(pod).unwrap(), "{text}");
            }
            (stage, ours) => {
                differ.push(format!("{seed}: {stage:?} {}, ours {ours:?}\n{text}\n", theirs["error"]));
            }
        }
    }
    println!("{accepted} accepted, {rejected} rejected");
    assert!(
        accepted > 100 && rejected > 100,
        "the cases are too similar: {accepted} accepted, {rejected} rejected"
    );
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ[..differ.len().min(10)].join("\n"));
}

/// Parts of YAML that change the text around them.
const BITS: [&str; 40] = [
    "0644",
    "0o17",
    "0x1F",
    "0b101",
    "1_000",
    "08",
    "~",
    "null",
    "yes",
    "No",
    "y",
    "on",
    ".inf",
    ".5",
    "1e3",
    "1:30",
    "''",
    "\"\"",
    "\"\\x41\"",
    "!!str 5",
    "!!int 'a'",
    "&a x",
    "*a",
    "<<: *a",
    "|",
    ">-",
    "- ",
    "? a",
    "[",
    "]",
    "{",
    "}",
    ", ",
    ": ",
    " #",
    "\t",
    "'",
    "\"",
    "@",
    "  ",
];

#[test]
fn random_texts_give_the_kubelets_result() {
    try_all("text", cases("PODMUX_MANIFESTS", 2000), |random| {
        let mut lines: Vec<String> = random.pick(&KNOWN.texts).lines().map(str::to_owned).collect();
        for _ in 0..=random.below(2) {
            let index = random.below(lines.len());
            let line = lines[index].clone();
            let ends: Vec<usize> = line.char_indices().map(|(index, _)| index).chain([line.len()]).collect();
            let at = *random.pick(&ends);
            match random.below(7) {
                0 => drop(lines.remove(index)),
                1 => lines.insert(index, line),
                2 => lines[index] = format!(" {line}"),
                3 => lines[index] = line.strip_prefix(' ').unwrap_or(&line).to_owned(),
                4 => lines[index].insert_str(at, random.pick::<&str>(&BITS)),
                5 => lines[index].truncate(at),
                _ => {
                    let end = line.find(": ").map_or(0, |colon| colon + 2);
                    lines[index] = format!("{}{}", &line[..end], random.pick(&BITS));
                }
            }
            if lines.is_empty() {
                return None;
            }
        }
        let text = lines.join("\n") + "\n";
        // Only podmux accepts several documents, and flow mappings that are not JSON. The same
        // holds for an indented beginning: for the kubelet the rest is another document.
        let ours_alone = text.trim_start().starts_with(['{', '%'])
            || text.starts_with(' ')
            || text.contains("---")
            || text.contains("...");
        (!ours_alone).then(|| (text, either(random)))
    });
}

/// The pods of a source, by name. Each source has its own names and UIDs, and a UID belongs
/// to one name, because podmux deliberately treats other cases differently.
#[derive(Default)]
struct Wanted {
    pods: BTreeMap<usize, Value>,
    /// How many pods a name had.
    incarnation: usize,
}

impl Wanted {
    fn step(&mut self, random: &mut Random, source: &str) {
        for _ in 0..random.below(4) {
            let index = random.below(6);
            match self.pods.get_mut(&index) {
                None => drop(self.pods.insert(index, self.born(random, source, index))),
                Some(_) if random.once_in(5) => drop(self.pods.remove(&index)),
                Some(_) if random.once_in(8) => {
                    self.incarnation += 1;
                    let pod = self.born(random, source, index);
                    self.pods.insert(index, pod);
                }
                Some(pod) => change(random, pod),
            }
        }
    }

    fn born(&self, random: &mut Random, source: &str, index: usize) -> Value {
        // Without a new incarnation it is a pod that was removed and added again.
        let uid = format!("{source}-{index}-{}", self.incarnation);
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("{source}-{index}"), "namespace": if index < 3 { "default" } else { "prod" },
                "uid": uid, "annotations": {"kubernetes.io/config.hash": uid},
            },
            "spec": {"containers": [{"name": "c", "image": "i:1"}]},
            "status": {"phase": "Pending"},
        });
        for _ in 0..random.below(3) {
            change(random, &mut pod);
        }
        pod
    }
}

/// Changes a pod in a way that may be an update.
fn change(random: &mut Random, pod: &mut Value) {
    let number = random.below(3);
    let text = number.to_string();
    let ((part, field), value) = match random.below(18) {
        0 => (("metadata", "labels"), json!({"a": text})),
        1 => (("metadata", "labels"), json!({})),
        2 => (("metadata", "annotations"), json!({"a": text})),
        3 => (("metadata", "annotations"), json!({"kubernetes.io/config.mirror": text})),
        4 => (("metadata", "annotations"), json!({"kubernetes.io/config.hash": text})),
        5 => (("metadata", "annotations"), json!({})),
        6 => (("metadata", "deletionTimestamp"), json!(format!("2026-01-0{}T00:00:00Z", number + 1))),
        7 => (("metadata", "deletionGracePeriodSeconds"), json!(number)),
        8 => (("metadata", "finalizers"), json!([format!("a.b/{text}")])),
        9 => (("metadata", "resourceVersion"), json!(text)),
        10 => (("metadata", "creationTimestamp"), json!(format!("2026-01-0{}T00:00:00Z", number + 1))),
        11 => (("spec", "activeDeadlineSeconds"), json!(number)),
        12 => (("spec", "tolerations"), json!([])),
        13 => (("spec", "priority"), json!(number)),
        14 => (("spec", "containers"), json!([{"name": "c", "image": format!("i:{text}"), "args": []}])),
        15 => (("status", "phase"), json!(["Pending", "Running", "Failed"][number])),
        16 => (("status", "conditions"), json!([{"type": "Ready", "status": "True", "message": text}])),
        _ => (("metadata", "generation"), json!(number)),
    };
    let fields = pod[part].as_object_mut().unwrap();
    if random.once_in(4) { drop(fields.remove(field)) } else { drop(fields.insert(field.to_owned(), value)) }
}

#[test]
fn random_histories_give_the_kubelets_updates() {
    let Some(mut oracle) = Oracle::start() else { return };
    for seed in 0..cases("PODMUX_MERGES", 500) {
        let random = &mut Random::new(seed);
        let mut wanted = BTreeMap::<&str, Wanted>::new();
        let mut steps = Vec::new();
        for _ in 0..=random.below(20) {
            let source = *random.pick(&["file", "http", "api"]);
            let wanted = wanted.entry(source).or_default();
            wanted.step(random, source);
            steps.push(json!({"source": source, "pods": wanted.pods.values().collect::<Vec<_>>()}));
        }
        let theirs = oracle.ask(&json!({"op": "merge", "steps": steps}));
        let history = json!({"id": seed, "steps": steps});
        let ours = replay::replay(serde_json::from_value(history.clone()).unwrap()).unwrap();
        let theirs: Vec<Vec<replay::Line>> = serde_json::from_value(theirs["steps"].clone()).unwrap();
        for (step, (ours, theirs)) in ours.steps.iter().zip(&theirs).enumerate() {
            assert_eq!(ours, theirs, "history {seed}, step {step}: {history}");
        }
        assert_eq!(ours.steps.len(), theirs.len());
    }
}
