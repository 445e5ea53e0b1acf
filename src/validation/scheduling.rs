//! The scheduling of a pod: selectors, affinity, tolerations, spreading, gates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    at::At,
    fields::{Object, list, number, object, text, texts},
    metadata, syntax,
};

pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NO_SELECTOR: &str = "must not be specified when labelSelector is not set";
const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn affinity(affinity: &Object, at: &At<'_>) {
    at.object(affinity, "nodeAffinity", node_affinity);
    for field in ["podAffinity", "podAntiAffinity"] {
        at.object(affinity, field, |at, pods| {
            at.objects(pods, REQUIRED, pod_term);
            at.objects(pods, PREFERRED, |at, weighted| {
                weight(weighted, at);
                let empty = Object::new();
                let term = object(weighted, "podAffinityTerm").unwrap_or(&empty);
                pod_term(&at.field("podAffinityTerm"), term);
            });
        });
    }
}

fn weight(weighted: &Object, at: &At<'_>) {
    let weight = number(weighted, "weight").unwrap_or_default();
    at.field("weight").in_range(weight, 1..=100, "must be in the range 1-100");
}

fn node_affinity(at: &At<'_>, nodes: &Object) {
    at.object(nodes, REQUIRED, |at, selector| {
        if list(selector, "nodeSelectorTerms").is_empty() {
            at.field("nodeSelectorTerms").required("must have at least one node selector term");
        }
        at.objects(selector, "nodeSelectorTerms", |at, term| node_term(term, true, at));
    });
    at.objects(nodes, PREFERRED, |at, weighted| {
        weight(weighted, at);
        // The API does not check the values of a preference.
        at.object(weighted, "preference", |at, term| node_term(term, false, at));
    });
}

fn node_term(term: &Object, checks_values: bool, at: &At<'_>) {
    at.objects(term, "matchExpressions", |at, requirement| {
        if matches!(text(requirement, "operator"), "Gt" | "Lt") {
            if list(requirement, "values").len() != 1 {
                at.field("values").required("must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
        } else {
            operator(requirement, at);
        }
        at.check_text(requirement, "key", syntax::qualified);
        if checks_values {
            at.check_each(requirement, "values", syntax::label_value);
        }
    });
    at.objects(term, "matchFields", |at, requirement| {
        match text(requirement, "operator") {
            "In" | "NotIn" if list(requirement, "values").len() == 1 => {}
            "In" | "NotIn" => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                at.field("values").required(why);
            }
            other => at.field("operator").invalid(other, NOT_AN_OPERATOR),
        }
        let key = text(requirement, "key");
        if key != "metadata.name" {
            return at.field("key").invalid(key, "not a valid field selector key");
        }
        at.check_each(requirement, "values", syntax::subdomain);
    });
}

/// Validates the operator of a requirement, and that it has values if the operator needs them.
fn operator(requirement: &Object, at: &At<'_>) {
    let is_empty = list(requirement, "values").is_empty();
    match text(requirement, "operator") {
        "In" | "NotIn" if is_empty => {
            at.field("values").required("must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !is_empty => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            at.field("values").forbidden(why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => at.field("operator").invalid(other, NOT_AN_OPERATOR),
    }
}

pub(super) fn label_selector(at: &At<'_>, selector: &Object) {
    at.object(selector, "matchLabels", metadata::labels);
    at.objects(selector, "matchExpressions", |at, requirement| {
        operator(requirement, at);
        at.check_text(requirement, "key", syntax::qualified);
        at.check_each(requirement, "values", syntax::label_value);
    });
}

fn pod_term(at: &At<'_>, term: &Object) {
    for field in ["labelSelector", "namespaceSelector"] {
        at.object(term, field, label_selector);
    }
    for (index, namespace) in texts(term, "namespaces").enumerate() {
        // The API's path has `namespace`.
        let at = at.field("namespaces").unnamed();
        let at = at.index(index).unnamed();
        at.named("namespace").check(namespace, syntax::label);
    }
    label_keys(term, at);
    topology_key(term, at);
    at.check_text(term, "topologyKey", syntax::qualified);
}

fn topology_key(term: &Object, at: &At<'_>) {
    if text(term, "topologyKey").is_empty() {
        at.field("topologyKey").required("can not be empty");
    }
}

/// Validates the keys of labels whose values are the pod's own.
fn label_keys(term: &Object, at: &At<'_>) {
    let selector = object(term, "labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        if selector.is_none() && !list(term, field).is_empty() {
            at.field(field).forbidden(NO_SELECTOR);
        } else {
            at.check_each(term, field, syntax::qualified);
        }
    }
    let matching: Vec<&str> = texts(term, "matchLabelKeys").collect();
    if matching.is_empty() {
        return;
    }
    if let Some(selector) = selector {
        selected_keys(selector, &matching, at);
    }
    let mismatching: BTreeSet<&str> = texts(term, "mismatchLabelKeys").collect();
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(*key)) {
        let why = "exists in both matchLabelKeys and mismatchLabelKeys";
        at.field("matchLabelKeys").index(index).invalid(*key, why);
    }
}

/// Validates that a key that is matched with the pod's own label is not selected too.
/// The API server adds one such requirement itself, so the second one is
/// wrong. The API's path is that of the term with the index of the key.
fn selected_keys(selector: &Object, matching: &[&str], at: &At<'_>) {
    let labels = object(selector, "matchLabels");
    let mut seen: BTreeSet<&str> =
        labels.into_iter().flat_map(|labels| labels.keys()).map(String::as_str).collect();
    let indices: BTreeMap<&str, usize> =
        matching.iter().enumerate().map(|(index, key)| (*key, index)).collect();
    at.objects(selector, "matchExpressions", |_, requirement| {
        let key = text(requirement, "key");
        if !seen.insert(key)
            && let Some(index) = indices.get(key)
        {
            at.index(*index).invalid(key, "exists in both matchLabelKeys and labelSelector");
        }
    });
}

pub(super) fn tolerations(list: &Value, at: &At<'_>) {
    at.each_object(list, toleration);
}

fn toleration(at: &At<'_>, toleration: &Object) {
    let (key, value) = (text(toleration, "key"), text(toleration, "value"));
    let (operator, effect) = (text(toleration, "operator"), text(toleration, "effect"));
    let operator_path = at.field("operator");
    if !key.is_empty() {
        at.field("key").check(key, syntax::qualified);
    } else if operator != "Exists" {
        operator_path.invalid(operator, "must be Exists when `key` is empty, which means all keys");
    }
    if toleration.contains_key("tolerationSeconds") && effect != "NoExecute" {
        at.field("effect").invalid(effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
    }
    match operator {
        "Equal" | "" => operator_path.check(value, syntax::label_value),
        "Exists" if value.is_empty() => {}
        "Exists" => operator_path.invalid(value, "value must be empty when `operator` is 'Exists'"),
        other => operator_path.not_supported(other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        at.field("effect").one_of(effect, &EFFECTS);
    }
}

pub(super) fn spread(list: &Value, at: &At<'_>) {
    at.each_object(list, |at, constraint| {
        let skew = number(constraint, "maxSkew").unwrap_or_default();
        if skew <= 0 {
            at.field("maxSkew").invalid(skew, "must be greater than zero");
        }
        topology_key(constraint, at);
        let action = text(constraint, "whenUnsatisfiable");
        at.field("whenUnsatisfiable").one_of(action, &["DoNotSchedule", "ScheduleAnyway"]);
        if let Some(domains) = number(constraint, "minDomains") {
            if domains <= 0 {
                at.field("minDomains").invalid(domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let why = "can only use minDomains if whenUnsatisfiable=DoNotSchedule";
                at.field("minDomains").invalid(domains, why);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            at.given_one_of(constraint, field, &["Honor", "Ignore"]);
        }
        label_keys(constraint, at);
        at.object(constraint, "labelSelector", label_selector);
    });
    repeated_constraints(list, at);
}

/// Rejects all but the last of the constraints with the same key and action.
fn repeated_constraints(list: &Value, at: &At<'_>) {
    let mut later = BTreeSet::new();
    for (index, constraint) in list.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate().rev() {
        let Some(constraint) = constraint.as_object() else { continue };
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if !later.insert((key, action)) {
            let at = at.index(index);
            at.named("{topologyKey, whenUnsatisfiable}").duplicate(&format!("{{{key}, {action}}}"));
        }
    }
}

pub(super) fn scheduling_gates(list: &Value, at: &At<'_>) {
    let mut seen = BTreeSet::new();
    at.each_object(list, |at, gate| {
        let name = text(gate, "name");
        at.check(name, syntax::qualified);
        if !seen.insert(name) {
            at.duplicate(name);
        }
    });
}
