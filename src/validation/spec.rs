//! A pod's spec: its parts in turn, and what holds for the pod as a whole.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeSet,
};

use serde_json::Value;

use super::{
    container,
    fields::{Object, given_text, is_false, is_true, list, number, object, objects, text},
    judge::Judge,
    metadata, network, os, resources, scheduling, security, syntax, volume,
};
use crate::pod::{FieldPath, MIRROR};

pub(super) fn validate(spec: &Object, pod: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let around = container::Pod {
        spec,
        volumes: volume::validate(spec, text(pod, "name"), &path.field("volumes"), judge),
        claims: resource_claims(spec, pod, &path.field("resourceClaims"), judge),
        grace: number(spec, "terminationGracePeriodSeconds"),
        never_restarts: text(spec, "restartPolicy") == "Never",
        host_users: !is_false(spec, "hostUsers"),
        os: object(spec, "os").map(|os| text(os, "name")),
        volumes_by_name: OnceCell::new(),
        has_windows_options: Cell::new(false),
    };
    if list(spec, "containers").is_empty() {
        judge.required(&path.field("containers"), "");
    }
    // What is given is gone through once: looking for each field that there
    // could be would cost more than all else.
    for (field, value) in spec {
        part(field, value, path, &around, judge);
        name_or_policy(field, value, &path.field(field), judge);
    }
    if around.has_windows_options.get() {
        os::host_processes(spec, path, judge);
    }
}

/// Judges one field of a spec that is made of others.
fn part(
    field: &str,
    value: &Value,
    spec_path: &FieldPath<'_>,
    pod: &container::Pod<'_>,
    judge: &mut Judge<'_>,
) {
    let path = &spec_path.field(field);
    match (field, value) {
        ("containers", list) => container::regular(list, path, pod, judge),
        ("initContainers", list) => container::init(list, path, pod, judge),
        ("ephemeralContainers", list) => container::ephemeral(list, path, pod, judge),
        ("resources", Value::Object(resources)) => resources::of_pod(resources, path, pod, judge),
        ("overhead", Value::Object(overhead)) => resources::overhead(overhead, path, judge),
        ("hostNetwork", Value::Bool(true)) => network::host_ports(pod.spec, spec_path, judge),
        ("hostUsers", Value::Bool(false)) => os::own_users(pod.spec, spec_path, judge),
        ("dnsPolicy", Value::String(policy)) => network::dns_policy(policy, pod.spec, spec_path, judge),
        ("dnsConfig", Value::Object(config)) => network::dns_config(config, pod.spec, path, judge),
        ("hostAliases", list) => network::hosts(list, path, judge),
        ("hostnameOverride", Value::String(name)) => network::host_name(name, pod.spec, path, judge),
        ("securityContext", Value::Object(context)) => security::of_pod(context, path, pod, judge),
        ("shareProcessNamespace", Value::Bool(true)) if is_true(pod.spec, "hostPID") => {
            // The API's own type has this field in the security context.
            let path = path.unnamed();
            let path = path.named("securityContext");
            let why = "shareProcessNamespace and hostPID cannot both be enabled";
            judge.invalid(&path.named(field), "true", why);
        }
        ("os", Value::Object(_)) => os::validate(pod.spec, spec_path, judge),
        ("nodeSelector", Value::Object(labels)) => metadata::labels(labels, path, judge),
        ("affinity", Value::Object(affinity)) => scheduling::affinity(affinity, path, judge),
        ("tolerations", list) => scheduling::tolerations(list, path, judge),
        ("topologySpreadConstraints", list) => scheduling::spread(list, path, judge),
        ("readinessGates", list) => scheduling::readiness_gates(list, path, judge),
        ("schedulingGates", list) => {
            scheduling::scheduling_gates(list, path, judge);
            // The kubelet assigns the node itself, so a gate is always one too many.
            let why = "cannot be set until all schedulingGates have been cleared";
            judge.forbidden(&spec_path.field("nodeName"), why);
        }
        _ => {}
    }
}

/// Judges one field of a spec that is a name, a number or one of a few words.
fn name_or_policy(field: &str, value: &Value, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    match (field, value) {
        ("restartPolicy", Value::String(policy)) => {
            judge.required_one_of(path, policy, &["Always", "OnFailure", "Never"]);
        }
        ("preemptionPolicy", Value::String(policy)) => {
            judge.required_one_of(path, policy, &["PreemptLowerPriority", "Never"]);
        }
        ("hostname" | "subdomain", Value::String(name)) => judge.check(path, name, syntax::label(name)),
        (
            "serviceAccountName" | "nodeName" | "priorityClassName" | "runtimeClassName",
            Value::String(name),
        ) => judge.check(path, name, syntax::subdomain(name)),
        ("activeDeadlineSeconds", Value::Number(seconds)) => {
            let seconds = seconds.as_i64().unwrap_or_default();
            if !(1..=i64::from(i32::MAX)).contains(&seconds) {
                judge.invalid(path, seconds, "must be between 1 and 2147483647, inclusive");
            }
        }
        ("schedulingGroup", Value::Object(group)) => {
            let path = path.field("podGroupName");
            match given_text(group, "podGroupName") {
                None => judge.invalid(&path, "", "must specify one of: `podGroupName`"),
                Some(name) => judge.check(&path, name, syntax::subdomain(name)),
            }
        }
        _ => {}
    }
}

/// Judges the pod's resource claims, and gives their names.
fn resource_claims<'v>(
    spec: &'v Object,
    pod: &Object,
    path: &FieldPath<'_>,
    judge: &mut Judge<'_>,
) -> BTreeSet<&'v str> {
    let (mut seen, mut names) = (BTreeSet::new(), BTreeSet::new());
    if !spec.contains_key("resourceClaims") {
        return names;
    }
    let is_mirror = object(pod, "annotations").is_some_and(|annotations| annotations.contains_key(MIRROR));
    objects(path, spec, "resourceClaims", |path, claim| {
        let name = text(claim, "name");
        if !name.is_empty() {
            names.insert(name);
        }
        if is_mirror {
            // The API gives this one no path.
            let why = "static pods do not support resource claims";
            return judge.forbidden(&FieldPath::ROOT.named("[]"), why);
        }
        resource_claim(claim, name, path, &mut seen, judge);
    });
    names
}

fn resource_claim<'v>(
    claim: &'v Object,
    name: &'v str,
    path: &FieldPath<'_>,
    seen: &mut BTreeSet<&'v str>,
    judge: &mut Judge<'_>,
) {
    let name_path = path.field("name");
    if name.is_empty() {
        judge.required(&name_path, "");
    } else if seen.insert(name) {
        judge.check(&name_path, name, syntax::label(name));
    } else {
        judge.duplicate(&name_path, name);
    }
    let sources = ["resourceClaimName", "resourceClaimTemplateName"];
    match sources.iter().filter(|field| claim.contains_key(**field)).count() {
        1 => {}
        0 => {
            judge.invalid(
                path,
                name,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            );
        }
        _ => judge.invalid(
            path,
            name,
            "only one of `resourceClaimName` and `resourceClaimTemplateName` may be specified",
        ),
    }
    for field in sources {
        if let Some(source) = given_text(claim, field) {
            judge.check(&path.field(field), source, syntax::subdomain(source));
        }
    }
}
