//! The spec of a pod: its fields, and the rules that concern several of them.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeSet,
};

use serde_json::Value;

use super::{
    container,
    context::PodContext,
    errors::Errors,
    fields::{Object, given_text, is_false, is_true, list, number, object, objects, text},
    metadata, network, os, resources, scheduling, security, syntax, volume,
};
use crate::pod::{FieldPath, MIRROR};

pub(super) fn validate(spec: &Object, pod: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let context = PodContext {
        spec,
        volumes: volume::validate(spec, text(pod, "name"), &path.field("volumes"), errors),
        claims: resource_claims(spec, pod, &path.field("resourceClaims"), errors),
        grace: number(spec, "terminationGracePeriodSeconds"),
        never_restarts: text(spec, "restartPolicy") == "Never",
        host_users: !is_false(spec, "hostUsers"),
        os: object(spec, "os").map(|os| text(os, "name")),
        volumes_by_name: OnceCell::new(),
        has_windows_options: Cell::new(false),
    };
    if list(spec, "containers").is_empty() {
        errors.required(&path.field("containers"), "");
    }
    // Only the given fields are visited: looking for each possible field would take
    // most of the time.
    for (field, value) in spec {
        part(field, value, path, &context, errors);
        name_or_policy(field, value, &path.field(field), errors);
    }
    if context.has_windows_options.get() {
        os::host_processes(spec, path, errors);
    }
}

/// Validates one field of a spec that has fields of its own or concerns others.
fn part(
    field: &str,
    value: &Value,
    spec_path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    let path = &spec_path.field(field);
    match (field, value) {
        ("containers", list) => container::regular(list, path, pod, errors),
        ("initContainers", list) => container::init(list, path, pod, errors),
        ("ephemeralContainers", list) => container::ephemeral(list, path, pod, errors),
        ("resources", Value::Object(resources)) => resources::of_pod(resources, path, pod, errors),
        ("overhead", Value::Object(overhead)) => resources::overhead(overhead, path, errors),
        ("hostNetwork", Value::Bool(true)) => network::host_ports(pod.spec, spec_path, errors),
        ("hostUsers", Value::Bool(false)) => os::own_users(pod.spec, spec_path, errors),
        ("dnsPolicy", Value::String(policy)) => network::dns_policy(policy, pod.spec, spec_path, errors),
        ("dnsConfig", Value::Object(config)) => network::dns_config(config, pod.spec, path, errors),
        ("hostAliases", list) => network::hosts(list, path, errors),
        ("hostnameOverride", Value::String(name)) => network::host_name(name, pod.spec, path, errors),
        ("securityContext", Value::Object(context)) => security::of_pod(context, path, pod, errors),
        ("shareProcessNamespace", Value::Bool(true)) if is_true(pod.spec, "hostPID") => {
            // The API's internal type has this field in the security context.
            let path = path.unnamed();
            let path = path.named("securityContext");
            let why = "shareProcessNamespace and hostPID cannot both be enabled";
            errors.invalid(&path.named(field), "true", why);
        }
        ("os", Value::Object(_)) => os::validate(pod.spec, spec_path, errors),
        ("nodeSelector", Value::Object(labels)) => metadata::labels(labels, path, errors),
        ("affinity", Value::Object(affinity)) => scheduling::affinity(affinity, path, errors),
        ("tolerations", list) => scheduling::tolerations(list, path, errors),
        ("topologySpreadConstraints", list) => scheduling::spread(list, path, errors),
        ("readinessGates", list) => scheduling::readiness_gates(list, path, errors),
        ("schedulingGates", list) => {
            scheduling::scheduling_gates(list, path, errors);
            // The kubelet sets spec.nodeName, which the API forbids with a scheduling gate.
            let why = "cannot be set until all schedulingGates have been cleared";
            errors.forbidden(&spec_path.field("nodeName"), why);
        }
        _ => {}
    }
}

/// Validates one field of a spec that is a name, a number or one of some values.
fn name_or_policy(field: &str, value: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    match (field, value) {
        ("restartPolicy", Value::String(policy)) => {
            errors.required_one_of(path, policy, &["Always", "OnFailure", "Never"]);
        }
        ("preemptionPolicy", Value::String(policy)) => {
            errors.required_one_of(path, policy, &["PreemptLowerPriority", "Never"]);
        }
        ("hostname" | "subdomain", Value::String(name)) => errors.check(path, name, syntax::label(name)),
        (
            "serviceAccountName" | "nodeName" | "priorityClassName" | "runtimeClassName",
            Value::String(name),
        ) => errors.check(path, name, syntax::subdomain(name)),
        ("activeDeadlineSeconds", Value::Number(seconds)) => {
            let why = "must be between 1 and 2147483647, inclusive";
            errors.in_range(path, seconds.as_i64().unwrap_or_default(), 1..=i32::MAX.into(), why);
        }
        ("schedulingGroup", Value::Object(group)) => {
            let path = path.field("podGroupName");
            match given_text(group, "podGroupName") {
                None => errors.invalid(&path, "", "must specify one of: `podGroupName`"),
                Some(name) => errors.check(&path, name, syntax::subdomain(name)),
            }
        }
        _ => {}
    }
}

/// Validates the pod's resource claims, and returns their names.
fn resource_claims<'v>(
    spec: &'v Object,
    pod: &Object,
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
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
            // The API reports no path here.
            let why = "static pods do not support resource claims";
            return errors.forbidden(&FieldPath::ROOT.named("[]"), why);
        }
        let name_path = path.field("name");
        if name.is_empty() {
            errors.required(&name_path, "");
        } else if seen.insert(name) {
            errors.check(&name_path, name, syntax::label(name));
        } else {
            errors.duplicate(&name_path, name);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        match sources.iter().filter(|field| claim.contains_key(**field)).count() {
            1 => {}
            0 => {
                let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid(path, name, why);
            }
            _ => {
                let why = "only one of `resourceClaimName` and `resourceClaimTemplateName` may be specified";
                errors.invalid(path, name, why);
            }
        }
        for field in sources {
            errors.check_given(claim, field, path, syntax::subdomain);
        }
    });
    names
}
