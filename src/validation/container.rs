//! The containers of a pod: regular ones, those that run before, and those for looking inside.

use std::collections::BTreeSet;

use super::{
    environment,
    fields::{Object, given_text, list, number, object, objects, text},
    handler,
    judge::Judge,
    mount, resources, security, syntax,
    volume::Volumes,
};
use crate::pod::FieldPath;

/// What a container is judged by beyond itself.
pub(super) struct Pod<'v> {
    pub(super) volumes: Volumes<'v>,
    /// The names of the pod's resource claims.
    pub(super) claims: BTreeSet<&'v str>,
    /// How many seconds the pod may take to end.
    pub(super) grace: Option<i64>,
    /// Whether the pod's restartPolicy is Never.
    pub(super) never_restarts: bool,
    /// Whether the pod has the host's users.
    pub(super) host_users: bool,
    /// The name of the pod's operating system, if the pod says one.
    pub(super) os: Option<&'v str>,
}

/// How many rules on restarts a container has at most.
const MAX_RESTART_RULES: usize = 20;
/// How many exit codes such a rule has at most.
const MAX_EXIT_CODES: usize = 255;

/// What a container for looking inside cannot have, beside resources: it comes when the pod runs.
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

/// The fields of a container that belong to its running beside others.
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// All containers of a pod, each with its path.
pub(super) fn each<'v>(
    spec: &'v Object,
    path: &FieldPath<'_>,
    mut visit: impl FnMut(&FieldPath<'_>, &'v Object),
) {
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        objects(&path.field(field), spec, field, &mut visit);
    }
}

pub(super) fn validate(spec: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
    regular(spec, &path.field("containers"), pod, judge);
    init(spec, &path.field("initContainers"), pod, judge);
    ephemeral(spec, &path.field("ephemeralContainers"), pod, judge);
}

fn regular(spec: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
    if list(spec, "containers").is_empty() {
        return judge.required(path, "");
    }
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
    objects(path, spec, "containers", |path, container| {
        common(container, path, pod, judge);
        let name = text(container, "name");
        if !names.insert(name) {
            judge.duplicate(&path.field("name"), name);
        }
        handler::lifecycle_and_probes(container, path, pod, judge);
        restart_policy(container, path, false, judge);
        host_ports(container, &path.field("ports"), &mut ports, judge);
    });
}

fn init(spec: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
    let mut names = names(spec, "containers");
    let first = path.index(0);
    objects(path, spec, "initContainers", |path, container| {
        common(container, path, pod, judge);
        let name = text(container, "name");
        if names.contains(name) {
            judge.duplicate(&path.field("name"), name);
        } else if !name.is_empty() {
            names.insert(name);
        }
        restart_policy(container, path, true, judge);
        // They run one by one, so each has the host's ports for itself. The API
        // says the first container's path for all of them.
        host_ports(container, &first.field("ports"), &mut BTreeSet::new(), judge);
        if text(container, "restartPolicy") == "Always" {
            return handler::lifecycle_and_probes(container, path, pod, judge);
        }
        for field in ["lifecycle"].into_iter().chain(PROBES) {
            if container.contains_key(field) {
                let why = "may not be set for init containers without restartPolicy=Always";
                judge.forbidden(&path.field(field), why);
            }
        }
        objects(&path.field("resizePolicy"), container, "resizePolicy", |path, policy| {
            if text(policy, "restartPolicy") == "RestartContainer" {
                let why = "an init container that is no sidecar is not restarted";
                judge.invalid(&path.field("restartPolicy"), "RestartContainer", why);
            }
        });
    });
}

fn ephemeral(spec: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
    if list(spec, "ephemeralContainers").is_empty() {
        return;
    }
    judge.forbidden(path, "cannot be set on create");
    let mut others = names(spec, "containers");
    others.extend(names(spec, "initContainers"));
    let mut names = others.clone();
    objects(path, spec, "ephemeralContainers", |path, container| {
        common(container, path, pod, judge);
        let name = text(container, "name");
        if !names.insert(name) {
            judge.duplicate(&path.field("name"), name);
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            judge.not_found(&path.field("targetContainerName"), target);
        }
        let why = "cannot be set for an Ephemeral Container";
        for field in NOT_EPHEMERAL {
            if judge.is_set(container, field, path) {
                judge.forbidden(&path.field(field), why);
            }
        }
        if has_resources(container, path, judge) {
            judge.forbidden(&path.field("resources"), why);
        }
        objects(&path.field("volumeMounts"), container, "volumeMounts", |path, mount| {
            for field in ["subPath", "subPathExpr"] {
                if !text(mount, field).is_empty() {
                    judge.forbidden(&path.field(field), why);
                }
            }
        });
    });
}

/// Whether a container has resources; Go always writes them.
fn has_resources(container: &Object, path: &FieldPath<'_>, judge: &Judge<'_>) -> bool {
    let path = path.field("resources");
    let is_set = |resources| {
        ["limits", "requests", "claims"].iter().any(|field| judge.is_set(resources, field, &path))
    };
    object(container, "resources").is_some_and(is_set)
}

fn names<'v>(spec: &'v Object, field: &str) -> BTreeSet<&'v str> {
    list(spec, field).iter().filter_map(|container| Some(text(container.as_object()?, "name"))).collect()
}

/// What holds for every container.
fn common(container: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
    let name = text(container, "name");
    if name.is_empty() {
        judge.required(&path.field("name"), "");
    } else {
        judge.check(&path.field("name"), name, syntax::label(name));
    }
    let image = text(container, "image");
    if image.is_empty() {
        judge.required(&path.field("image"), "");
    } else if image.trim() != image {
        judge.invalid(&path.field("image"), image, "must not have leading or trailing whitespace");
    }
    let policy = text(container, "terminationMessagePolicy");
    let supported = ["File", "FallbackToLogsOnError"];
    judge.required_one_of(&path.field("terminationMessagePolicy"), policy, &supported);
    pull_policy(text(container, "imagePullPolicy"), &path.field("imagePullPolicy"), judge);
    ports(container, &path.field("ports"), judge);
    environment::variables(container, &path.field("env"), judge);
    environment::sources(container, &path.field("envFrom"), judge);
    mount::validate(container, path, &pod.volumes, judge);
    if let Some(requirements) = object(container, "resources") {
        resources::of_container(requirements, &path.field("resources"), &pod.claims, judge);
    }
    resize_policy(container, &path.field("resizePolicy"), pod.never_restarts, judge);
    if let Some(context) = object(container, "securityContext") {
        security::of_container(context, &path.field("securityContext"), pod.host_users, judge);
    }
}

pub(super) fn pull_policy(policy: &str, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    judge.required_one_of(path, policy, &["Always", "IfNotPresent", "Never"]);
}

fn ports(container: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let mut names = BTreeSet::new();
    objects(path, container, "ports", |path, port| {
        let name = text(port, "name");
        if !name.is_empty() {
            match syntax::port_name(name) {
                Err(why) => judge.invalid(&path.field("name"), name, why),
                Ok(()) if names.insert(name) => {}
                Ok(()) => judge.duplicate(&path.field("name"), name),
            }
        }
        match number(port, "containerPort").unwrap_or_default() {
            0 => judge.required(&path.field("containerPort"), ""),
            number => handler::port_number(number, &path.field("containerPort"), judge),
        }
        match number(port, "hostPort").unwrap_or_default() {
            0 => {}
            number => handler::port_number(number, &path.field("hostPort"), judge),
        }
        judge.required_one_of(&path.field("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    });
}

/// A port of the host: its protocol, address and number.
type HostPort<'v> = (&'v str, &'v str, i64);

fn host_ports<'v>(
    container: &'v Object,
    path: &FieldPath<'_>,
    taken: &mut BTreeSet<HostPort<'v>>,
    judge: &mut Judge<'_>,
) {
    objects(path, container, "ports", |path, port| {
        let number = number(port, "hostPort").unwrap_or_default();
        let (protocol, address) = (text(port, "protocol"), text(port, "hostIP"));
        if number != 0 && !taken.insert((protocol, address, number)) {
            judge.duplicate(&path.field("hostPort"), &format!("{protocol}/{address}/{number}"));
        }
    });
}

fn resize_policy(container: &Object, path: &FieldPath<'_>, never_restarts: bool, judge: &mut Judge<'_>) {
    let mut resources = BTreeSet::new();
    objects(path, container, "resizePolicy", |item, policy| {
        let path = item.unnamed();
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !resources.insert(resource) {
            judge.duplicate(item, resource);
        }
        judge.required_one_of(&path, resource, &["cpu", "memory"]);
        judge.required_one_of(&path, restart, &["NotRequired", "RestartContainer"]);
        if never_restarts && restart != "NotRequired" {
            judge.invalid(&path, restart, "must be NotRequired where the pod's restartPolicy is Never");
        }
    });
}

fn restart_policy(container: &Object, path: &FieldPath<'_>, is_init: bool, judge: &mut Judge<'_>) {
    let rules = list(container, "restartPolicyRules").len();
    match given_text(container, "restartPolicy") {
        Some(policy) => {
            judge.one_of(&path.field("restartPolicy"), policy, &["Always", "Never", "OnFailure"]);
        }
        None if rules > 0 => {
            judge.required(
                &path.field("restartPolicy"),
                "must specify restartPolicy when restart rules are used",
            );
        }
        None => {}
    }
    // Without a policy an init container's rules are not looked at.
    if is_init && !container.contains_key("restartPolicy") {
        return;
    }
    let path = path.field("restartPolicyRules");
    if rules > MAX_RESTART_RULES {
        judge.too_many(&path, rules, MAX_RESTART_RULES);
    }
    objects(&path, container, "restartPolicyRules", |path, rule| {
        judge.one_of(&path.field("action"), text(rule, "action"), &["Restart", "RestartAllContainers"]);
        let path = path.field("exitCodes");
        let Some(codes) = object(rule, "exitCodes") else {
            return judge.required(&path, "must be specified");
        };
        judge.one_of(&path.field("operator"), text(codes, "operator"), &["In", "NotIn"]);
        let values = list(codes, "values").len();
        if values > MAX_EXIT_CODES {
            judge.too_many(&path.field("values"), values, MAX_EXIT_CODES);
        }
    });
}
