//! The containers of a pod: regular, init and ephemeral ones.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    context::PodContext,
    environment,
    errors::Errors,
    fields::{Object, each_object, list, number, object, objects, text},
    handler, mount, resources, security, syntax,
};
use crate::pod::FieldPath;

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

pub(super) fn regular(
    containers: &Value,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
    each_object(containers, path, |path, container| {
        validate(container, Role::Regular, path, pod, errors);
        let name = text(container, "name");
        if !names.insert(name) {
            errors.duplicate(&path.field("name"), name);
        }
        host_ports(container, &path.field("ports"), &mut ports, errors);
    });
}

pub(super) fn init(containers: &Value, path: &FieldPath<'_>, pod: &PodContext<'_>, errors: &mut Errors<'_>) {
    let mut names = names(pod.spec, "containers");
    let first = path.index(0);
    each_object(containers, path, |path, container| {
        let is_sidecar = text(container, "restartPolicy") == "Always";
        validate(container, if is_sidecar { Role::Sidecar } else { Role::Init }, path, pod, errors);
        let name = text(container, "name");
        if names.contains(name) {
            errors.duplicate(&path.field("name"), name);
        } else if !name.is_empty() {
            names.insert(name);
        }
        // Init containers run one after the other, so their host ports do not conflict.
        // The API reports the path of the first container for all of them.
        host_ports(container, &first.field("ports"), &mut BTreeSet::new(), errors);
    });
}

pub(super) fn ephemeral(
    containers: &Value,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    errors.forbidden(path, "cannot be set on create");
    let mut others = names(pod.spec, "containers");
    others.extend(names(pod.spec, "initContainers"));
    let mut names = others.clone();
    each_object(containers, path, |path, container| {
        validate(container, Role::Ephemeral, path, pod, errors);
        let name = text(container, "name");
        if !names.insert(name) {
            errors.duplicate(&path.field("name"), name);
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&path.field("targetContainerName"), target);
        }
        for field in NOT_EPHEMERAL {
            if errors.is_set(container, field, path) {
                errors.forbidden(&path.field(field), ON_EPHEMERAL);
            }
        }
        if has_resources(container, path, errors) {
            errors.forbidden(&path.field("resources"), ON_EPHEMERAL);
        }
        objects(&path.field("volumeMounts"), container, "volumeMounts", |path, mount| {
            for field in ["subPath", "subPathExpr"] {
                if !text(mount, field).is_empty() {
                    errors.forbidden(&path.field(field), ON_EPHEMERAL);
                }
            }
        });
    });
}

/// Whether a container has resources. The object itself is always present.
fn has_resources(container: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) -> bool {
    let path = path.field("resources");
    let is_set = |resources: &Object| {
        ["limits", "requests", "claims"].iter().any(|field| errors.is_set(resources, field, &path))
    };
    object(container, "resources").is_some_and(is_set)
}

fn names<'v>(spec: &'v Object, field: &str) -> BTreeSet<&'v str> {
    list(spec, field).iter().filter_map(|container| Some(text(container.as_object()?, "name"))).collect()
}

/// Validates a container, field by field.
fn validate(
    container: &Object,
    role: Role,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    if !container.contains_key("image") {
        errors.required(&path.field("image"), "");
    }
    for (field, value) in container {
        part(container, field, value, path, pod, errors);
        role_part(container, role, field, value, path, pod, errors);
    }
}

/// Validates a field whose rules do not depend on the role.
fn part(
    container: &Object,
    field: &str,
    value: &Value,
    container_path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    let path = &container_path.field(field);
    match (field, value) {
        ("name", Value::String(name)) if name.is_empty() => errors.required(path, ""),
        ("name", Value::String(name)) => errors.check(path, name, syntax::label(name)),
        ("image", Value::String(image)) if image.trim() != image => {
            errors.invalid(path, &**image, "must not have leading or trailing whitespace");
        }
        ("terminationMessagePolicy", Value::String(policy)) => {
            errors.required_one_of(path, policy, &["File", "FallbackToLogsOnError"]);
        }
        ("imagePullPolicy", Value::String(policy)) => {
            errors.required_one_of(path, policy, &["Always", "IfNotPresent", "Never"]);
        }
        ("ports", list) => ports(list, path, errors),
        ("env", list) => environment::variables(list, path, pod, errors),
        ("envFrom", list) => environment::sources(list, path, errors),
        ("volumeMounts", list) => mount::mounts(list, container, path, &pod.volumes, errors),
        ("volumeDevices", list) => mount::devices(list, container, path, &pod.volumes, errors),
        ("resources", Value::Object(requirements)) if !requirements.is_empty() => {
            resources::of_container(requirements, path, &pod.claims, errors);
        }
        ("resizePolicy", list) => resize_policy(list, path, pod.never_restarts, errors),
        ("securityContext", Value::Object(context)) => security::of_container(context, path, pod, errors),
        _ => {}
    }
}

/// Validates a field whose rules depend on the role.
fn role_part(
    container: &Object,
    role: Role,
    field: &str,
    value: &Value,
    container_path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    let path = &container_path.field(field);
    match (field, value, role) {
        // The caller reports the fields that an ephemeral container cannot have.
        (_, _, Role::Ephemeral) => {}
        ("lifecycle" | "livenessProbe" | "readinessProbe" | "startupProbe", _, Role::Init) => {
            errors.forbidden(path, "may not be set for init containers without restartPolicy=Always");
        }
        ("lifecycle", Value::Object(lifecycle), _) => handler::lifecycle(lifecycle, path, pod, errors),
        ("livenessProbe" | "startupProbe", Value::Object(probe), _) => {
            handler::probe(probe, false, path, errors);
        }
        ("readinessProbe", Value::Object(probe), _) => handler::probe(probe, true, path, errors),
        ("resizePolicy", list, Role::Init) => each_object(list, path, |path, policy| {
            if text(policy, "restartPolicy") == "RestartContainer" {
                let why = "an init container is restarted only if its restartPolicy is Always";
                errors.invalid(&path.field("restartPolicy"), "RestartContainer", why);
            }
        }),
        ("restartPolicy", Value::String(policy), _) => {
            errors.one_of(path, policy, &["Always", "Never", "OnFailure"]);
        }
        ("restartPolicyRules", list, _) => {
            let has_policy = container.contains_key("restartPolicy");
            if !has_policy {
                let why = "must specify restartPolicy when restart rules are used";
                errors.required(&container_path.field("restartPolicy"), why);
            }
            // The API does not check the rules of an init container without a policy.
            if has_policy || role == Role::Regular {
                restart_rules(list, path, errors);
            }
        }
        _ => {}
    }
}

fn ports(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let mut names = BTreeSet::new();
    each_object(list, path, |path, port| {
        let name = text(port, "name");
        if !name.is_empty() {
            match syntax::port_name(name) {
                Err(why) => errors.invalid(&path.field("name"), name, why),
                Ok(()) if names.insert(name) => {}
                Ok(()) => errors.duplicate(&path.field("name"), name),
            }
        }
        match number(port, "containerPort").unwrap_or_default() {
            0 => errors.required(&path.field("containerPort"), ""),
            number => handler::port_number(number, &path.field("containerPort"), errors),
        }
        match number(port, "hostPort").unwrap_or_default() {
            0 => {}
            number => handler::port_number(number, &path.field("hostPort"), errors),
        }
        errors.required_one_of(&path.field("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    });
}

/// A port of the host: protocol, address and number.
type HostPort<'v> = (&'v str, &'v str, i64);

fn host_ports<'v>(
    container: &'v Object,
    path: &FieldPath<'_>,
    taken: &mut BTreeSet<HostPort<'v>>,
    errors: &mut Errors<'_>,
) {
    objects(path, container, "ports", |path, port| {
        let number = number(port, "hostPort").unwrap_or_default();
        let (protocol, address) = (text(port, "protocol"), text(port, "hostIP"));
        if number != 0 && !taken.insert((protocol, address, number)) {
            errors.duplicate(&path.field("hostPort"), &format!("{protocol}/{address}/{number}"));
        }
    });
}

fn resize_policy(list: &Value, path: &FieldPath<'_>, never_restarts: bool, errors: &mut Errors<'_>) {
    let mut resources = BTreeSet::new();
    each_object(list, path, |item, policy| {
        let path = item.unnamed();
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !resources.insert(resource) {
            errors.duplicate(item, resource);
        }
        errors.required_one_of(&path, resource, &["cpu", "memory"]);
        errors.required_one_of(&path, restart, &["NotRequired", "RestartContainer"]);
        if never_restarts && restart != "NotRequired" {
            errors.invalid(&path, restart, "must be NotRequired if the pod's restartPolicy is Never");
        }
    });
}

fn restart_rules(rules: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    errors.max_items(path, rules.as_array().map_or(0, Vec::len), MAX_RESTART_RULES);
    each_object(rules, path, |path, rule| {
        errors.one_of(&path.field("action"), text(rule, "action"), &["Restart", "RestartAllContainers"]);
        let path = path.field("exitCodes");
        let Some(codes) = object(rule, "exitCodes") else {
            return errors.required(&path, "must be specified");
        };
        errors.one_of(&path.field("operator"), text(codes, "operator"), &["In", "NotIn"]);
        errors.max_items(&path.field("values"), list(codes, "values").len(), MAX_EXIT_CODES);
    });
}
