//! Random patches of random pods: podmux and the code of a kube-apiserver give the same results.

use std::collections::BTreeMap;

use podmux::{
    manifest::{
        self, Preparation,
        patch::{LastApplied, Patch, PatchType},
    },
    pod::{NodeName, Prepared, SourceName},
};
use serde_json::{Map, Value, json};

use crate::{
    oracle::{KNOWN, Known, cases, places_in},
    support::{kubernetes::Oracle, random::Random},
};

/// The lists that are merged, with their merge keys.
const MERGED: [(&str, &str); 14] = [
    ("conditions", "type"),
    ("containers", "name"),
    ("env", "name"),
    ("ephemeralContainers", "name"),
    ("hostAliases", "ip"),
    ("imagePullSecrets", "name"),
    ("initContainers", "name"),
    ("ownerReferences", "uid"),
    ("podIPs", "ip"),
    ("ports", "containerPort"),
    ("topologySpreadConstraints", "topologyKey"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];

/// Makes strategic merge patches.
struct Maker<'r> {
    random: &'r mut Random,
    known: &'static Known,
}

impl Maker<'_> {
    /// A patch of a map, which is the value of a key.
    fn map(&mut self, key: &str, old: &Map<String, Value>) -> Value {
        let mut patch = Map::new();
        for (name, value) in old {
            if self.random.once_in(3) {
                patch.insert(name.clone(), self.field(name, value));
            }
        }
        if self.random.once_in(3) {
            self.known.add(self.random, key, &mut patch);
        }
        let lists: Vec<(&String, &Vec<Value>)> =
            old.iter().filter_map(|(name, value)| Some((name, value.as_array()?))).collect();
        for (name, items) in lists {
            if self.random.once_in(3) {
                self.order(name, items, &mut patch);
            } else if self.random.once_in(20) {
                // Go merges the fields of a map in no order.
                patch.remove(name);
                let gone: Vec<&Value> = items.iter().filter(|_| self.random.once_in(2)).collect();
                patch.insert(format!("$deleteFromPrimitiveList/{name}"), json!(gone));
            }
        }
        if self.random.once_in(12) {
            let names = old.keys().chain(patch.keys()).filter(|name| !name.starts_with('$'));
            let names: Vec<String> = names.filter(|_| !self.random.once_in(10)).cloned().collect();
            patch.insert("$retainKeys".to_owned(), json!(names));
        }
        if self.random.once_in(25) {
            let directive = *self.random.pick(&["replace", "delete", "replace", "delete", "merge", "bogus"]);
            patch.insert("$patch".to_owned(), directive.into());
        }
        patch.into()
    }

    fn field(&mut self, name: &str, old: &Value) -> Value {
        match old {
            _ if self.random.once_in(15) => Value::Null,
            _ if self.random.once_in(15) => self.known.instead_of(self.random, name, old),
            Value::Object(fields) => self.map(name, fields),
            Value::Array(items) => self.list(name, items),
            other => self.known.instead_of(self.random, name, other),
        }
    }

    fn list(&mut self, name: &str, old: &[Value]) -> Value {
        let key = MERGED.iter().find(|(known, _)| *known == name).map_or("name", |(_, key)| key);
        let mut patch = Vec::new();
        for item in old {
            match item {
                _ if self.random.once_in(2) => {}
                Value::Object(fields) if self.random.once_in(5) => {
                    patch.push(json!({key: fields.get(key), "$patch": "delete"}));
                }
                Value::Object(fields) => {
                    let mut item = self.map(name, fields);
                    if let Some(value) = fields.get(key).filter(|_| !self.random.once_in(30)) {
                        item[key] = value.clone();
                    }
                    patch.push(item);
                }
                scalar => patch.push(scalar.clone()),
            }
        }
        if self.random.once_in(3) {
            let new = self.known.another(self.random, name);
            patch.extend(new.as_array().and_then(|new| new.first()).cloned());
        }
        if self.random.once_in(20) {
            patch.push(json!({"$patch": "replace"}));
        }
        if patch.len() > 1 && self.random.once_in(3) {
            patch.swap(0, 1);
        }
        patch.into()
    }

    /// Adds the order of a list: of its items and of those that the patch has.
    fn order(&mut self, name: &str, items: &[Value], patch: &mut Map<String, Value>) {
        let Some((_, key)) = MERGED.iter().find(|(known, _)| *known == name) else { return };
        let patched = patch.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let patched = patched.iter().filter(|item| item["$patch"].is_null());
        let mut order: Vec<Value> = Vec::new();
        for item in patched.chain(items.iter().filter(|_| !self.random.once_in(4))) {
            let item = json!({*key: item[*key]});
            if !order.contains(&item) {
                order.push(item);
            }
        }
        if order.len() > 1 && self.random.once_in(4) {
            let last = order.len() - 1;
            order.swap(0, last);
        }
        // The order that Go makes of nothing depends on its sort.
        if !order.is_empty() {
            patch.insert(format!("$setElementOrder/{name}"), order.into());
        }
    }
}

/// A pod as it is stored.
fn stored(random: &mut Random) -> Option<Map<String, Value>> {
    let preparation = Preparation {
        source: SourceName::Http,
        node: NodeName::new("node1").unwrap(),
        generate: None,
        namespace: None,
    };
    let mut pod = random.pick(&KNOWN.bases).clone();
    for _ in 0..random.below(3) {
        KNOWN.mutate(random, &mut pod);
    }
    let read = manifest::read(pod.to_string().as_bytes(), &preparation).ok()?;
    read.pods.first().map(Prepared::object).cloned()
}

/// Tries patches of a type, and prints some of those with different results.
fn try_all(
    kind: PatchType,
    make: impl Fn(&mut Random, &Map<String, Value>) -> Value,
    alike: impl Fn(&Value, Value) -> Value,
) {
    let Some(mut oracle) = Oracle::start() else { return };
    let (mut differ, mut results) = (Vec::new(), BTreeMap::<&str, u64>::new());
    let tries = cases("PODMUX_PATCHES", 1000);
    let mut seed = 0;
    while results.values().sum::<u64>() < tries {
        seed += 1;
        let random = &mut Random::new(seed);
        let Some(pod) = stored(random) else { continue };
        let patch = make(random, &pod);
        let question = json!({"op": "patch", "type": kind.media_type(), "pod": pod, "patch": patch});
        let theirs = oracle.ask(&question);
        let ours = Patch::parse(kind, patch.to_string().as_bytes())
            .and_then(|patch| patch.apply_to(pod.clone(), &LastApplied::default()));
        let same = match (&theirs["error"], &ours) {
            (Value::Null, Ok(ours)) => {
                alike(&patch, theirs["pod"].clone()) == alike(&patch, ours.clone().into())
            }
            (Value::Null, Err(_)) => false,
            (_, ours) => ours.is_err(),
        };
        let result = match &ours {
            Ok(ours) if *ours == pod => "unchanged",
            Ok(_) => "patched",
            Err(_) => "rejected",
        };
        *results.entry(result).or_default() += 1;
        if !same {
            let (pod, ours) = (Value::from(pod), ours.map(Value::from));
            differ.push(format!("{seed}: patch {patch}\npod    {pod}\ntheirs {theirs}\nours   {ours:?}\n"));
        }
    }
    println!("{}: {results:?} of {seed} seeds", kind.media_type());
    let shown = &differ[..differ.len().min(10)];
    assert!(differ.is_empty(), "{} of {tries} differ:\n{}", differ.len(), shown.join("\n"));
    let many = |result: &str| results.get(result).is_some_and(|count| *count > tries / 20);
    assert!(many("patched") && many("rejected"), "the cases are too similar: {results:?}");
}

#[test]
fn random_strategic_merge_patches_give_the_result_of_strategicpatch() {
    let make = |random: &mut Random, pod: &Map<String, Value>| Maker { random, known: &KNOWN }.map("", pod);
    try_all(PatchType::Strategic, make, |patch, pod| without_accidents(patch, whole_numbers(pod)));
}

/// Sorts the lists of a pod if the patch sets an order and deletes items: Go's code then reads the order of the pod from
/// memory that it has overwritten with the items of the patch.
fn without_accidents(patch: &Value, mut pod: Value) -> Value {
    fn sort(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(sort),
            Value::Array(items) => {
                items.iter_mut().for_each(sort);
                items.sort_by_key(Value::to_string);
            }
            _ => {}
        }
    }
    let text = patch.to_string();
    if text.contains("\"$setElementOrder/") && text.contains("\"$patch\":\"delete\"") {
        sort(&mut pod);
    }
    pod
}

/// Writes numbers as Go does, without a fraction that is 0.
fn whole_numbers(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => fields.values_mut().for_each(|value| *value = whole_numbers(value.take())),
        Value::Array(items) => items.iter_mut().for_each(|item| *item = whole_numbers(item.take())),
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            if let Some(whole) = text.strip_suffix(".0").and_then(|text| text.parse::<i64>().ok()) {
                value = whole.into();
            }
        }
        _ => {}
    }
    value
}

/// Removes nulls: they are absent fields. The code of a kube-apiserver leaves some that a merge patch has.
fn without_nulls(mut value: Value) -> Value {
    fn discard(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|_, value| !value.is_null());
                fields.values_mut().for_each(discard);
            }
            Value::Array(items) => items.iter_mut().for_each(discard),
            _ => {}
        }
    }
    discard(&mut value);
    value
}

#[test]
fn random_merge_patches_give_the_result_of_a_kube_apiserver() {
    let make = |random: &mut Random, pod: &Map<String, Value>| {
        if random.once_in(10) {
            return random.pick(&[json!("x"), json!(1), json!(null)]).clone();
        }
        Maker { random, known: &KNOWN }.map("", pod)
    };
    try_all(PatchType::Merge, make, |_, pod| without_nulls(pod));
}

#[test]
fn random_json_patches_give_the_result_of_a_kube_apiserver() {
    let make = |random: &mut Random, pod: &Map<String, Value>| {
        let mut places = Vec::new();
        places_in("", "", &pod.clone().into(), &mut places);
        // The whole pod is no place for the code of a kube-apiserver.
        places.remove(0);
        let operations = (0..=random.below(4)).map(|_| {
            let (key, path) = random.pick(&places).clone();
            let (_, from) = random.pick(&places).clone();
            let path = match random.below(8) {
                0 => format!("{path}/-"),
                1 => format!("{path}/0"),
                2 => format!("{path}/none"),
                _ => path,
            };
            let op = *random.pick(&["add", "remove", "replace", "move", "copy", "test", "test", "bogus"]);
            let old = Value::from(pod.clone()).pointer(&path).cloned();
            let value = match old {
                Some(old) if random.once_in(2) => old,
                _ => KNOWN.another(random, &key),
            };
            // RFC 6902 forbids it; the code of a kube-apiserver does it.
            let is_inside = op == "move" && path.starts_with(&format!("{from}/"));
            json!({"op": if is_inside { "copy" } else { op }, "path": path, "from": from, "value": value})
        });
        operations.collect::<Vec<_>>().into()
    };
    try_all(PatchType::Json, make, |_, pod| pod);
}
