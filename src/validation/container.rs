//! The containers of a pod: regular, init and ephemeral ones.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    at::At,
    context::PodContext,
    environment,
    fields::{Object, list, number, object, objects, text},
    handler, mount, resources, security, syntax,
};

/// The role of a container.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Regular,
    Init,
    /// An init container with `restartPolicy: Always`, which runs beside the regular ones.
    Sidecar,
    Ephemeral,
}

/// The most restart rules of a container.
const MAX_RESTART_RULES: usize = 20;
/// The most exit codes of a restart rule.
const MAX_EXIT_CODES: usize = 255;

/// The fields that an ephemeral container cannot have, besides resources.
const NOT_EPHEMERAL: [&str; 8] = [
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
];

const ON_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

pub(super) fn regular(containers: &Value, at: &At<'_>, pod: &PodContext<'_>) {
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
    at.each_object(containers, |at, container| {
        validate(container, Role::Regular, at, pod);
        let name = text(container, "name");
        if !names.insert(name) {
            at.field("name").duplicate(name);
        }
        host_ports(container, at, &mut ports);
    });
}

pub(super) fn init(containers: &Value, at: &At<'_>, pod: &PodContext<'_>) {
    let mut names = names(pod.spec, "containers");
    let first = at.index(0);
    at.each_object(containers, |at, container| {
        let is_sidecar = text(container, "restartPolicy") == "Always";
        validate(container, if is_sidecar { Role::Sidecar } else { Role::Init }, at, pod);
        let name = text(container, "name");
        if names.contains(name) {
            at.field("name").duplicate(name);
        } else if !name.is_empty() {
            names.insert(name);
        }
        // Init containers run one after the other, so their host ports do not conflict.
        // The API reports the path of the first container for all of them.
        host_ports(container, &first, &mut BTreeSet::new());
    });
}

pub(super) fn ephemeral(containers: &Value, at: &At<'_>, pod: &PodContext<'_>) {
    at.forbidden("cannot be set on create");
    let mut others = names(pod.spec, "containers");
    others.extend(names(pod.spec, "initContainers"));
    let mut names = others.clone();
    at.each_object(containers, |at, container| {
        validate(container, Role::Ephemeral, at, pod);
        let name = text(container, "name");
        if !names.insert(name) {
            at.field("name").duplicate(name);
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            at.field("targetContainerName").not_found(target);
        }
        for field in NOT_EPHEMERAL {
            if at.is_set(container, field) {
                at.field(field).forbidden(ON_EPHEMERAL);
            }
        }
        if has_resources(container, at) {
            at.field("resources").forbidden(ON_EPHEMERAL);
        }
        at.objects(container, "volumeMounts", |at, mount| {
            for field in ["subPath", "subPathExpr"] {
                if !text(mount, field).is_empty() {
                    at.field(field).forbidden(ON_EPHEMERAL);
                }
            }
        });
    });
}

/// Whether a container has resources. The object itself is always present.
fn has_resources(container: &Object, at: &At<'_>) -> bool {
    let at = at.field("resources");
    let is_set =
        |resources: &Object| ["limits", "requests", "claims"].iter().any(|field| at.is_set(resources, field));
    object(container, "resources").is_some_and(is_set)
}

fn names<'v>(spec: &'v Object, field: &str) -> BTreeSet<&'v str> {
    objects(spec, field).map(|container| text(container, "name")).collect()
}

/// Validates a container, field by field.
fn validate(container: &Object, role: Role, at: &At<'_>, pod: &PodContext<'_>) {
    if !container.contains_key("image") {
        at.field("image").required("");
    }
    for (field, value) in container {
        part(container, field, value, at, pod);
        role_part(container, role, field, value, at, pod);
    }
}

/// Validates a field whose rules do not depend on the role.
fn part(container: &Object, field: &str, value: &Value, container_path: &At<'_>, pod: &PodContext<'_>) {
    let at = &container_path.field(field);
    match (field, value) {
        ("name", _) => container_path.require_text(container, field, syntax::label),
        ("image", Value::String(image)) if image.trim() != image && !pod.is_template => {
            at.invalid(&**image, "must not have leading or trailing whitespace");
        }
        ("terminationMessagePolicy", Value::String(policy)) => {
            at.required_one_of(policy, &["File", "FallbackToLogsOnError"]);
        }
        ("imagePullPolicy", Value::String(policy)) => {
            at.required_one_of(policy, &["Always", "IfNotPresent", "Never"]);
        }
        ("ports", list) => ports(list, at),
        ("env", list) => environment::variables(list, at, pod),
        ("envFrom", list) => environment::sources(list, at),
        ("volumeMounts", list) => mount::mounts(list, container, at, &pod.volumes),
        ("volumeDevices", list) => mount::devices(list, container, at, &pod.volumes),
        ("resources", Value::Object(requirements)) if !requirements.is_empty() => {
            resources::of_container(requirements, at, &pod.claims);
        }
        ("resizePolicy", list) => resize_policy(list, at, pod.never_restarts),
        ("securityContext", Value::Object(context)) => security::of_container(context, at, pod),
        _ => {}
    }
}

/// Validates a field whose rules depend on the role.
fn role_part(
    container: &Object,
    role: Role,
    field: &str,
    value: &Value,
    container_path: &At<'_>,
    pod: &PodContext<'_>,
) {
    let at = &container_path.field(field);
    match (field, value, role) {
        // The caller reports the fields that an ephemeral container cannot have.
        (_, _, Role::Ephemeral) => {}
        ("lifecycle" | "livenessProbe" | "readinessProbe" | "startupProbe", _, Role::Init) => {
            at.forbidden("may not be set for init containers without restartPolicy=Always");
        }
        ("lifecycle", Value::Object(lifecycle), _) => handler::lifecycle(lifecycle, at, pod),
        ("livenessProbe" | "readinessProbe" | "startupProbe", Value::Object(probe), _) => {
            handler::probe(probe, field == "readinessProbe", at);
        }
        ("resizePolicy", list, Role::Init) => at.each_object(list, |at, policy| {
            if text(policy, "restartPolicy") == "RestartContainer" {
                let why = "an init container is restarted only if its restartPolicy is Always";
                at.field("restartPolicy").invalid("RestartContainer", why);
            }
        }),
        ("restartPolicy", Value::String(policy), _) => {
            at.one_of(policy, &["Always", "Never", "OnFailure"]);
        }
        ("restartPolicyRules", list, _) => {
            let has_policy = container.contains_key("restartPolicy");
            if !has_policy {
                let why = "must specify restartPolicy when restart rules are used";
                container_path.field("restartPolicy").required(why);
            }
            // The API does not check the rules of an init container without a policy.
            if has_policy || role == Role::Regular {
                restart_rules(list, at);
            }
        }
        _ => {}
    }
}

fn ports(list: &Value, at: &At<'_>) {
    let mut names = BTreeSet::new();
    at.each_object(list, |at, port| {
        let name = text(port, "name");
        if !name.is_empty() {
            match syntax::port_name(name) {
                Err(why) => at.field("name").invalid(name, why),
                Ok(()) if names.insert(name) => {}
                Ok(()) => at.field("name").duplicate(name),
            }
        }
        match number(port, "containerPort").unwrap_or_default() {
            0 => at.field("containerPort").required(""),
            number => handler::port_number(number, &at.field("containerPort")),
        }
        if let Some(number) = number(port, "hostPort").filter(|number| *number != 0) {
            handler::port_number(number, &at.field("hostPort"));
        }
        at.field("protocol").required_one_of(text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    });
}

/// A port of the host: protocol, address and number.
type HostPort<'v> = (&'v str, &'v str, i64);

fn host_ports<'v>(container: &'v Object, at: &At<'_>, taken: &mut BTreeSet<HostPort<'v>>) {
    at.objects(container, "ports", |at, port| {
        let number = number(port, "hostPort").unwrap_or_default();
        let (protocol, address) = (text(port, "protocol"), text(port, "hostIP"));
        if number != 0 && !taken.insert((protocol, address, number)) {
            at.field("hostPort").duplicate(&format!("{protocol}/{address}/{number}"));
        }
    });
}

fn resize_policy(list: &Value, at: &At<'_>, never_restarts: bool) {
    let mut resources = BTreeSet::new();
    at.each_object(list, |item, policy| {
        let at = item.unnamed();
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !resources.insert(resource) {
            item.duplicate(resource);
        }
        at.required_one_of(resource, &["cpu", "memory"]);
        at.required_one_of(restart, &["NotRequired", "RestartContainer"]);
        if never_restarts && restart != "NotRequired" {
            at.invalid(restart, "must be NotRequired if the pod's restartPolicy is Never");
        }
    });
}

fn restart_rules(rules: &Value, at: &At<'_>) {
    at.max_items(rules.as_array().map_or(0, Vec::len), MAX_RESTART_RULES);
    at.each_object(rules, |at, rule| {
        at.field("action").one_of(text(rule, "action"), &["Restart", "RestartAllContainers"]);
        let at = at.field("exitCodes");
        let Some(codes) = object(rule, "exitCodes") else { return at.required("must be specified") };
        at.field("operator").one_of(text(codes, "operator"), &["In", "NotIn"]);
        at.field("values").max_items(list(codes, "values").len(), MAX_EXIT_CODES);
    });
}
