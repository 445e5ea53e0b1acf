//! The spec of a pod: its fields, and the rules that concern several of them.

use std::{cell::OnceCell, collections::BTreeSet};

use serde_json::Value;

use super::{
    at::At,
    container,
    context::PodContext,
    fields::{Object, given_text, is_false, is_true, list, number, object, text},
    metadata, network, os, resources, scheduling, security, syntax, volume,
};
use crate::pod::{FieldPath, MIRROR};

/// Validates the spec of a pod with this metadata, or that of a template, which has none of a pod.
pub(super) fn validate(spec: &Object, metadata: Option<&Object>, at: &At<'_>) {
    let context = PodContext {
        spec,
        is_template: metadata.is_none(),
        volumes: volume::validate(spec, metadata.map(|metadata| text(metadata, "name")), at),
        claims: resource_claims(spec, metadata, at),
        grace: number(spec, "terminationGracePeriodSeconds"),
        never_restarts: text(spec, "restartPolicy") == "Never",
        host_users: !is_false(spec, "hostUsers"),
        os: object(spec, "os").map(|os| text(os, "name")),
        volumes_by_name: OnceCell::new(),
    };
    if list(spec, "containers").is_empty() {
        at.field("containers").required("");
    }
    // Only the given fields are visited: looking for each possible field would take
    // most of the time.
    for (field, value) in spec {
        part(field, value, at, &context);
        name_or_policy(field, value, &at.field(field));
    }
    os::host_processes(spec, at);
}

/// Validates one field of a spec that has fields of its own or concerns others.
fn part(field: &str, value: &Value, spec_path: &At<'_>, pod: &PodContext<'_>) {
    let at = &spec_path.field(field);
    match (field, value) {
        ("containers", list) => container::regular(list, at, pod),
        ("initContainers", list) => container::init(list, at, pod),
        ("ephemeralContainers", list) => container::ephemeral(list, at, pod),
        ("resources", Value::Object(resources)) => resources::of_pod(resources, at, pod),
        ("overhead", Value::Object(overhead)) => resources::overhead(overhead, at),
        ("hostNetwork", Value::Bool(true)) => network::host_ports(pod.spec, spec_path),
        ("hostUsers", Value::Bool(false)) => os::own_users(pod.spec, spec_path),
        ("dnsPolicy", Value::String(policy)) => network::dns_policy(policy, pod.spec, spec_path),
        ("dnsConfig", Value::Object(config)) => network::dns_config(config, pod.spec, at),
        ("hostAliases", list) => network::hosts(list, at),
        ("hostnameOverride", Value::String(name)) => network::host_name(name, pod.spec, at),
        ("securityContext", Value::Object(context)) => security::of_pod(context, at, pod),
        ("shareProcessNamespace", Value::Bool(true)) if is_true(pod.spec, "hostPID") => {
            // The API's internal type has this field in the security context.
            let at = at.unnamed();
            let at = at.named("securityContext");
            at.named(field).invalid("true", "shareProcessNamespace and hostPID cannot both be enabled");
        }
        ("os", Value::Object(_)) => os::validate(pod.spec, spec_path),
        ("nodeSelector", Value::Object(labels)) => metadata::labels(at, labels),
        ("affinity", Value::Object(affinity)) => scheduling::affinity(affinity, at),
        ("tolerations", list) => scheduling::tolerations(list, at),
        ("topologySpreadConstraints", list) => scheduling::spread(list, at),
        ("readinessGates", list) => {
            at.each_object(list, |at, gate| at.check_text(gate, "conditionType", syntax::qualified));
        }
        ("schedulingGates", list) => {
            scheduling::scheduling_gates(list, at);
            // The kubelet sets spec.nodeName, which the API forbids with a scheduling gate.
            if !pod.is_template {
                let why = "cannot be set until all schedulingGates have been cleared";
                spec_path.field("nodeName").forbidden(why);
            }
        }
        _ => {}
    }
}

/// Validates one field of a spec that is a name, a number or one of some values.
fn name_or_policy(field: &str, value: &Value, at: &At<'_>) {
    match (field, value) {
        ("restartPolicy", Value::String(policy)) => {
            at.required_one_of(policy, &["Always", "OnFailure", "Never"]);
        }
        ("preemptionPolicy", Value::String(policy)) => {
            at.required_one_of(policy, &["PreemptLowerPriority", "Never"]);
        }
        ("hostname" | "subdomain", Value::String(name)) => at.check(name, syntax::label),
        (
            "serviceAccountName" | "nodeName" | "priorityClassName" | "runtimeClassName",
            Value::String(name),
        ) => at.check(name, syntax::subdomain),
        ("activeDeadlineSeconds", Value::Number(seconds)) => {
            let why = "must be between 1 and 2147483647, inclusive";
            at.in_range(seconds.as_i64().unwrap_or_default(), 1..=i32::MAX.into(), why);
        }
        ("schedulingGroup", Value::Object(group)) => {
            let at = at.field("podGroupName");
            match given_text(group, "podGroupName") {
                None => at.invalid("", "must specify one of: `podGroupName`"),
                Some(name) => at.check(name, syntax::subdomain),
            }
        }
        _ => {}
    }
}

/// Validates the pod's resource claims, and returns their names.
fn resource_claims<'v>(spec: &'v Object, metadata: Option<&Object>, at: &At<'_>) -> BTreeSet<&'v str> {
    let (mut seen, mut names) = (BTreeSet::new(), BTreeSet::new());
    if !spec.contains_key("resourceClaims") {
        return names;
    }
    let annotations = metadata.and_then(|metadata| object(metadata, "annotations"));
    let is_mirror = annotations.is_some_and(|annotations| annotations.contains_key(MIRROR));
    at.objects(spec, "resourceClaims", |at, claim| {
        let name = text(claim, "name");
        if !name.is_empty() {
            names.insert(name);
        }
        if is_mirror {
            // The API reports no path here.
            let at = At { path: FieldPath::ROOT, ..*at };
            return at.named("[]").forbidden("static pods do not support resource claims");
        }
        let name_path = at.field("name");
        if name.is_empty() {
            name_path.required("");
        } else if seen.insert(name) {
            name_path.check(name, syntax::label);
        } else {
            name_path.duplicate(name);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        match sources.iter().filter(|field| claim.contains_key(**field)).count() {
            1 => {}
            0 => {
                at.invalid(name, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`");
            }
            _ => {
                let why = "only one of `resourceClaimName` and `resourceClaimTemplateName` may be specified";
                at.invalid(name, why);
            }
        }
        for field in sources {
            at.check_given(claim, field, syntax::subdomain);
        }
    });
    names
}
