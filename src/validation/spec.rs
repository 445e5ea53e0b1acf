//! A pod's spec: its parts in turn, and what holds for the pod as a whole.

use std::collections::BTreeSet;

use super::{
    container, environment,
    fields::{Object, given_text, is_false, list, number, object, objects, text},
    judge::Judge,
    metadata, network, os, resources, scheduling, security, syntax, volume,
};
use crate::pod::FieldPath;

const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn validate(spec: &Object, pod: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let os_name = object(spec, "os").map(|os| text(os, "name"));
    let claims = resource_claims(spec, pod, &path.field("resourceClaims"), judge);
    let around = container::Pod {
        volumes: volume::validate(spec, text(pod, "name"), &path.field("volumes"), judge),
        claims,
        grace: number(spec, "terminationGracePeriodSeconds"),
        never_restarts: text(spec, "restartPolicy") == "Never",
        host_users: !is_false(spec, "hostUsers"),
        os: os_name,
    };
    container::validate(spec, path, &around, judge);
    environment::file_volumes(spec, path, judge);
    resources::of_pod(spec, &path.field("resources"), os_name == Some("windows"), &around.claims, judge);
    resources::overhead(spec, &path.field("overhead"), judge);
    network::host_ports(spec, path, judge);
    network::dns(spec, path, judge);
    network::hosts(spec, &path.field("hostAliases"), judge);
    network::names(spec, path, judge);
    security::of_pod(spec, &path.field("securityContext"), judge);
    os::validate(spec, path, judge);
    os::host_processes(spec, path, judge);
    os::own_users(spec, path, judge);
    if let Some(labels) = object(spec, "nodeSelector") {
        metadata::labels(labels, &path.field("nodeSelector"), judge);
    }
    scheduling::affinity(spec, &path.field("affinity"), judge);
    scheduling::tolerations(spec, &path.field("tolerations"), judge);
    scheduling::spread(spec, &path.field("topologySpreadConstraints"), judge);
    scheduling::readiness_gates(spec, &path.field("readinessGates"), judge);
    scheduling::scheduling_gates(spec, &path.field("schedulingGates"), judge);
    names_and_policies(spec, path, judge);
    token_without_account(spec, path, judge);
}

fn names_and_policies(spec: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let restart = text(spec, "restartPolicy");
    judge.required_one_of(&path.field("restartPolicy"), restart, &["Always", "OnFailure", "Never"]);
    for field in ["serviceAccountName", "nodeName", "priorityClassName"] {
        let name = text(spec, field);
        if !name.is_empty() {
            judge.check(&path.field(field), name, syntax::subdomain(name));
        }
    }
    if let Some(class) = given_text(spec, "runtimeClassName") {
        judge.check(&path.field("runtimeClassName"), class, syntax::subdomain(class));
    }
    if let Some(seconds) = number(spec, "activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let why = "must be between 1 and 2147483647, inclusive";
        judge.invalid(&path.field("activeDeadlineSeconds"), seconds, why);
    }
    if let Some(policy) = given_text(spec, "preemptionPolicy") {
        let policies = ["PreemptLowerPriority", "Never"];
        judge.required_one_of(&path.field("preemptionPolicy"), policy, &policies);
    }
    if let Some(group) = object(spec, "schedulingGroup") {
        let path = path.field("schedulingGroup");
        let path = path.field("podGroupName");
        match given_text(group, "podGroupName") {
            None => judge.invalid(&path, "", "must specify one of: `podGroupName`"),
            Some(name) => judge.check(&path, name, syntax::subdomain(name)),
        }
    }
    // The kubelet assigns the node itself, so a gate is always one too many.
    if !text(spec, "nodeName").is_empty() && !list(spec, "schedulingGates").is_empty() {
        judge.forbidden(&path.field("nodeName"), "cannot be set until all schedulingGates have been cleared");
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

/// A token is one of an account.
fn token_without_account(spec: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    if !text(spec, "serviceAccountName").is_empty() {
        return;
    }
    objects(&path.field("volumes"), spec, "volumes", |path, volume| {
        let Some(projected) = object(volume, "projected") else { return };
        let path = path.field("projected");
        objects(&path.field("sources"), projected, "sources", |path, source| {
            if source.contains_key("serviceAccountToken") {
                let why = "must not be specified when serviceAccountName is not set";
                judge.forbidden(&path.field("serviceAccountToken"), why);
            }
        });
    });
}
