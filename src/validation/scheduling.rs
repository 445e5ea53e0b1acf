//! The scheduling of a pod: selectors, affinity, tolerations, spreading, gates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    errors::Errors,
    fields::{Object, each_object, list, number, object, objects, text, texts},
    metadata, syntax,
};
use crate::pod::FieldPath;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NO_SELECTOR: &str = "must not be specified when labelSelector is not set";
const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn affinity(affinity: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(nodes) = object(affinity, "nodeAffinity") {
        node_affinity(nodes, &path.field("nodeAffinity"), errors);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let (Some(pods), path) = (object(affinity, field), path.field(field)) else { continue };
        objects(&path.field(REQUIRED), pods, REQUIRED, |path, term| pod_term(term, path, errors));
        objects(&path.field(PREFERRED), pods, PREFERRED, |path, weighted| {
            weight(weighted, path, errors);
            let empty = Object::new();
            let term = object(weighted, "podAffinityTerm").unwrap_or(&empty);
            pod_term(term, &path.field("podAffinityTerm"), errors);
        });
    }
}

fn weight(weighted: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let weight = number(weighted, "weight").unwrap_or_default();
    errors.in_range(&path.field("weight"), weight, 1..=100, "must be in the range 1-100");
}

fn node_affinity(nodes: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(selector) = object(nodes, REQUIRED) {
        let path = path.field(REQUIRED);
        let path = path.field("nodeSelectorTerms");
        if list(selector, "nodeSelectorTerms").is_empty() {
            errors.required(&path, "must have at least one node selector term");
        }
        objects(&path, selector, "nodeSelectorTerms", |path, term| node_term(term, true, path, errors));
    }
    objects(&path.field(PREFERRED), nodes, PREFERRED, |path, weighted| {
        weight(weighted, path, errors);
        if let Some(term) = object(weighted, "preference") {
            // The API does not check the values of a preference.
            node_term(term, false, &path.field("preference"), errors);
        }
    });
}

fn node_term(term: &Object, checks_values: bool, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    objects(&path.field("matchExpressions"), term, "matchExpressions", |path, requirement| {
        if matches!(text(requirement, "operator"), "Gt" | "Lt") {
            if list(requirement, "values").len() != 1 {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.required(&path.field("values"), why);
            }
        } else {
            operator(requirement, path, errors);
        }
        errors.check_text(requirement, "key", path, syntax::qualified);
        if checks_values {
            label_values(requirement, &path.field("values"), errors);
        }
    });
    objects(&path.field("matchFields"), term, "matchFields", |path, requirement| {
        match text(requirement, "operator") {
            "In" | "NotIn" if list(requirement, "values").len() == 1 => {}
            "In" | "NotIn" => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.required(&path.field("values"), why);
            }
            other => errors.invalid(&path.field("operator"), other, NOT_AN_OPERATOR),
        }
        let key = text(requirement, "key");
        if key != "metadata.name" {
            return errors.invalid(&path.field("key"), key, "not a valid field selector key");
        }
        let path = path.field("values");
        for (index, value) in texts(requirement, "values").enumerate() {
            errors.check(&path.index(index), value, syntax::subdomain(value));
        }
    });
}

/// Validates the operator of a requirement, and that it has values if the operator needs them.
fn operator(requirement: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let is_empty = list(requirement, "values").is_empty();
    match text(requirement, "operator") {
        "In" | "NotIn" if is_empty => {
            errors.required(&path.field("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !is_empty => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&path.field("values"), why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.invalid(&path.field("operator"), other, NOT_AN_OPERATOR),
    }
}

fn label_values(requirement: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for (index, value) in texts(requirement, "values").enumerate() {
        errors.check(&path.index(index), value, syntax::label_value(value));
    }
}

pub(super) fn label_selector(selector: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(labels) = object(selector, "matchLabels") {
        metadata::labels(labels, &path.field("matchLabels"), errors);
    }
    objects(&path.field("matchExpressions"), selector, "matchExpressions", |path, requirement| {
        operator(requirement, path, errors);
        errors.check_text(requirement, "key", path, syntax::qualified);
        label_values(requirement, &path.field("values"), errors);
    });
}

fn pod_term(term: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for field in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = object(term, field) {
            label_selector(selector, &path.field(field), errors);
        }
    }
    for (index, namespace) in texts(term, "namespaces").enumerate() {
        // The API's path has `namespace`.
        let at = path.field("namespaces").unnamed();
        let at = at.index(index).unnamed();
        errors.check(&at.named("namespace"), namespace, syntax::label(namespace));
    }
    label_keys(term, path, errors);
    if text(term, "topologyKey").is_empty() {
        errors.required(&path.field("topologyKey"), "can not be empty");
    }
    errors.check_text(term, "topologyKey", path, syntax::qualified);
}

/// Validates the keys of labels whose values are the pod's own.
fn label_keys(term: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let selector = object(term, "labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let path = path.field(field);
        if selector.is_none() && !list(term, field).is_empty() {
            errors.forbidden(&path, NO_SELECTOR);
            continue;
        }
        for (index, key) in texts(term, field).enumerate() {
            errors.check(&path.index(index), key, syntax::qualified(key));
        }
    }
    let matching: Vec<&str> = texts(term, "matchLabelKeys").collect();
    if matching.is_empty() {
        return;
    }
    if let Some(selector) = selector {
        selected_keys(selector, &matching, path, errors);
    }
    let mismatching: BTreeSet<&str> = texts(term, "mismatchLabelKeys").collect();
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(*key)) {
        let why = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.invalid(&path.field("matchLabelKeys").index(index), *key, why);
    }
}

/// Validates that a key that is matched with the pod's own label is not selected too.
/// The API server adds one such requirement itself, so the second one is
/// wrong. The API's path is that of the term with the index of the key.
fn selected_keys(selector: &Object, matching: &[&str], path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let labels = object(selector, "matchLabels");
    let mut seen: BTreeSet<&str> =
        labels.into_iter().flat_map(|labels| labels.keys()).map(String::as_str).collect();
    let indices: BTreeMap<&str, usize> =
        matching.iter().enumerate().map(|(index, key)| (*key, index)).collect();
    objects(path, selector, "matchExpressions", |_, requirement| {
        let key = text(requirement, "key");
        if !seen.insert(key)
            && let Some(index) = indices.get(key)
        {
            errors.invalid(&path.index(*index), key, "exists in both matchLabelKeys and labelSelector");
        }
    });
}

pub(super) fn tolerations(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, toleration| self::toleration(toleration, path, errors));
}

fn toleration(toleration: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (key, value) = (text(toleration, "key"), text(toleration, "value"));
    let (operator, effect) = (text(toleration, "operator"), text(toleration, "effect"));
    let operator_path = path.field("operator");
    if !key.is_empty() {
        errors.check(&path.field("key"), key, syntax::qualified(key));
    } else if operator != "Exists" {
        errors.invalid(&operator_path, operator, "must be Exists when `key` is empty, which means all keys");
    }
    if toleration.contains_key("tolerationSeconds") && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(&path.field("effect"), effect, why);
    }
    match operator {
        "Equal" | "" => errors.check(&operator_path, value, syntax::label_value(value)),
        "Exists" if value.is_empty() => {}
        "Exists" => errors.invalid(&operator_path, value, "value must be empty when `operator` is 'Exists'"),
        other => errors.not_supported(&operator_path, other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        errors.one_of(&path.field("effect"), effect, &EFFECTS);
    }
}

pub(super) fn spread(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, constraint| {
        let skew = number(constraint, "maxSkew").unwrap_or_default();
        if skew <= 0 {
            errors.invalid(&path.field("maxSkew"), skew, "must be greater than zero");
        }
        if text(constraint, "topologyKey").is_empty() {
            errors.required(&path.field("topologyKey"), "can not be empty");
        }
        let action = text(constraint, "whenUnsatisfiable");
        errors.one_of(&path.field("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        if let Some(domains) = number(constraint, "minDomains") {
            if domains <= 0 {
                errors.invalid(&path.field("minDomains"), domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let why = "can only use minDomains if whenUnsatisfiable=DoNotSchedule";
                errors.invalid(&path.field("minDomains"), domains, why);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            errors.given_one_of(constraint, field, path, &["Honor", "Ignore"]);
        }
        label_keys(constraint, path, errors);
        if let Some(selector) = object(constraint, "labelSelector") {
            label_selector(selector, &path.field("labelSelector"), errors);
        }
    });
    repeated_constraints(list, path, errors);
}

/// Rejects all but the last of the constraints with the same key and action.
fn repeated_constraints(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let mut later = BTreeSet::new();
    for (index, constraint) in list.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate().rev() {
        let Some(constraint) = constraint.as_object() else { continue };
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if !later.insert((key, action)) {
            let path = path.index(index);
            let path = path.named("{topologyKey, whenUnsatisfiable}");
            errors.duplicate(&path, &format!("{{{key}, {action}}}"));
        }
    }
}

pub(super) fn readiness_gates(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, gate| {
        errors.check_text(gate, "conditionType", path, syntax::qualified);
    });
}

pub(super) fn scheduling_gates(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let mut seen = BTreeSet::new();
    each_object(list, path, |path, gate| {
        let name = text(gate, "name");
        errors.check(path, name, syntax::qualified(name));
        if !seen.insert(name) {
            errors.duplicate(path, name);
        }
    });
}
