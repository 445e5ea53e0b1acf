//! The resource requests and limits of containers and pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    at::At,
    context::PodContext,
    fields::{Object, given_text, object, text},
    syntax,
};
use crate::pod::{Quantity, aggregate, quoted};

const HUGE_PAGES: &str = "hugepages-";
const REQUESTS: &str = "requests.";

/// The resources without a domain that count objects.
const COUNTS: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Whether a canonical quantity is above zero.
pub(super) fn is_positive(quantity: &str) -> bool {
    quantity != "0" && !quantity.starts_with('-')
}

/// Validates the resources of a container.
pub(super) fn of_container(requirements: &Object, at: &At<'_>, claims: &BTreeSet<&str>) {
    amounts(requirements, at, container_name);
    claim_names(requirements, at, claims);
}

/// Validates the overhead of a pod, which the API treats as limits.
pub(super) fn overhead(overhead: &Object, at: &At<'_>) {
    limits_and_requests(Some(overhead), &at.named("limits"), None, at, container_name);
}

/// Validates the resources of a pod as a whole.
pub(super) fn of_pod(requirements: &Object, at: &At<'_>, pod: &PodContext<'_>) {
    if pod.os == Some("windows") {
        return at.forbidden("may not be set for a windows pod");
    }
    if at.is_set(requirements, "claims") {
        at.field("claims").forbidden("claims may not be set for Resources at pod-level");
    }
    amounts(requirements, at, pod_name);
    claim_names(requirements, at, &pod.claims);
    consistency(pod.spec, requirements, at);
}

/// Checks the name of a resource.
type NameCheck = fn(&str, &At<'_>);

fn amounts(requirements: &Object, at: &At<'_>, name: NameCheck) {
    let (limits, requests) = (object(requirements, "limits"), object(requirements, "requests"));
    limits_and_requests(limits, &at.field("limits"), requests, at, name);
}

fn limits_and_requests(
    limits: Option<&Object>,
    limits_path: &At<'_>,
    requests: Option<&Object>,
    at: &At<'_>,
    name: NameCheck,
) {
    if let Some(amounts) = limits {
        list(amounts, limits_path, name);
    }
    let requests_path = at.field("requests");
    if let Some(amounts) = requests {
        list(amounts, &requests_path, name);
    }
    for (resource, amount) in requests.into_iter().flatten() {
        let amount = amount.as_str().unwrap_or_default();
        let may_exceed = is_native(resource) && !resource.starts_with(HUGE_PAGES);
        let limit = match limits.and_then(|limits| given_text(limits, resource)) {
            // Nearly always the texts are the same.
            Some(limit) if limit == amount => continue,
            Some(limit) => limit,
            None if may_exceed => continue,
            None => {
                let why = "a limit must be set for a resource that cannot be overcommitted";
                limits_path.required(why);
                continue;
            }
        };
        let (Some(request), Some(most)) = (Quantity::parse(amount), Quantity::parse(limit)) else { continue };
        let at = requests_path.key(resource).unnamed();
        let limit = || format!("the limit of {}, which is {}", quoted(resource), quoted(limit));
        if request.exceeds(&most) {
            at.invalid(amount, &format!("must be less than or equal to {}", limit()));
        } else if !may_exceed && most.exceeds(&request) {
            at.invalid(amount, &format!("must be equal to {}", limit()));
        }
    }
    let given = || limits.into_iter().chain(requests).flat_map(|amounts| amounts.keys());
    let is_base = |resource: &String| matches!(resource.as_str(), "cpu" | "memory");
    if given().any(|resource| resource.starts_with(HUGE_PAGES)) && !given().any(is_base) {
        at.forbidden("HugePages require cpu or memory");
    }
}

/// Validates the names and amounts of a list.
fn list(amounts: &Object, at: &At<'_>, name: NameCheck) {
    for (resource, amount) in amounts {
        let (at, amount) = (at.key(resource), amount.as_str().unwrap_or_default());
        name(resource, &at);
        if amount.starts_with('-') {
            at.invalid(amount, "must be greater than or equal to 0");
        }
        if is_counted(resource) && !Quantity::parse(amount).is_some_and(|amount| amount.is_whole()) {
            at.invalid(amount, "must be an integer");
        }
        if resource.starts_with(HUGE_PAGES) && !is_of_pages(resource, amount) {
            at.invalid(amount, "must be a multiple of the size of a page");
        }
    }
}

/// Whether a resource is one of Kubernetes.
fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

/// Whether a resource is an extended one.
fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with(REQUESTS)
        && syntax::qualified(&format!("{REQUESTS}{resource}")).is_ok()
}

/// Whether the amount of a resource must be an integer.
fn is_counted(resource: &str) -> bool {
    COUNTS.contains(&resource) || is_extended(resource)
}

/// Whether an amount of huge pages is a multiple of the page size in the resource's name.
fn is_of_pages(resource: &str, amount: &str) -> bool {
    let size = resource.strip_prefix(HUGE_PAGES).and_then(Quantity::parse);
    let Some(size) = size.filter(Quantity::is_whole) else { return false };
    let size = size.to_i64_up();
    let amount = Quantity::parse(amount).map_or(0, |amount| amount.to_i64_up());
    size > 0 && amount % size == 0
}

/// Checks the name of a resource of a container.
fn container_name(resource: &str, at: &At<'_>) {
    let standard =
        matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with(HUGE_PAGES);
    if let Err(why) = syntax::qualified(resource) {
        at.invalid(resource, why);
    } else if !resource.contains('/') && !standard {
        let why = "must be a resource of containers (cpu, memory, ephemeral-storage, hugepages-…) or begin with a domain";
        at.invalid(resource, why);
    } else if !is_native(resource) && !is_extended(resource) {
        at.invalid(resource, "must be the name of an extended resource");
    }
}

/// Checks the name of a resource of a pod as a whole.
fn pod_name(resource: &str, at: &At<'_>) {
    if let Err(why) = syntax::qualified(resource) {
        return at.invalid(resource, why);
    }
    let is_huge = resource.starts_with(HUGE_PAGES) || resource.starts_with("requests.hugepages-");
    // The other resources without a domain that a quota can have.
    let base =
        resource.strip_prefix("limits.").or_else(|| resource.strip_prefix(REQUESTS)).unwrap_or(resource);
    let is_standard = matches!(base, "cpu" | "memory" | "ephemeral-storage")
        || matches!(resource, "storage" | "requests.storage");
    let is_known = resource.contains('/') || is_huge || is_standard || COUNTS.contains(&resource);
    if !is_known {
        at.invalid(resource, "must be a standard resource type or fully qualified");
    } else if !matches!(resource, "cpu" | "memory") && !resource.starts_with(HUGE_PAGES) {
        at.not_supported(resource, &["cpu", HUGE_PAGES, "memory"]);
    }
}

/// Validates the claims that are used: each must be a claim of the pod, and used once.
fn claim_names(requirements: &Object, at: &At<'_>, claims: &BTreeSet<&str>) {
    // A claim without a request means all of its requests.
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    at.objects(requirements, "claims", |at, claim| {
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            return at.required("");
        }
        if used.contains(&(name, "")) {
            at.duplicate(name);
        } else {
            at.check_filled(claim, "request", syntax::label);
            let overlaps = used.range((name, "")..).next().is_some_and(|(other, _)| *other == name);
            if used.contains(&(name, request)) || (request.is_empty() && overlaps) {
                at.duplicate(name);
            }
            used.insert((name, request));
        }
        if !claims.contains(name) {
            at.not_found(name);
        }
    });
}

/// Validates that the resources of the pod cover those of its containers.
fn consistency(spec: &Object, requirements: &Object, at: &At<'_>) {
    for field in ["requests", "limits"] {
        let (Some(whole), list_path) = (object(requirements, field), at.field(field)) else { continue };
        for (resource, sum) in aggregate(spec, field) {
            if field == "limits" && !resource.starts_with(HUGE_PAGES) {
                continue;
            }
            let Some(given) = given_text(whole, &resource) else { continue };
            let exceeds =
                Quantity::parse(&sum).zip(Quantity::parse(given)).is_some_and(|(a, b)| a.exceeds(&b));
            if exceeds {
                let why = format!("must be at least the sum over the containers, {}", quoted(&sum));
                list_path.key(&resource).invalid(given, &why);
            }
        }
    }
    if let Some(containers) = spec.get("containers") {
        within_pod(containers, requirements, &at.named("containers"));
    }
}

/// Validates that no container's limit is above the pod's.
fn within_pod(containers: &Value, requirements: &Object, at: &At<'_>) {
    let limits = object(requirements, "limits").into_iter().flatten();
    let limits: BTreeMap<&str, Quantity<'_>> =
        limits.filter_map(|(name, limit)| Some((name.as_str(), Quantity::parse(limit.as_str()?)?))).collect();
    at.each_object(containers, |at, container| {
        let own = object(container, "resources").and_then(|resources| object(resources, "limits"));
        for (resource, limit) in own.into_iter().flatten() {
            let limit = limit.as_str().unwrap_or_default();
            let (Some(most), Some(own)) = (limits.get(resource.as_str()), Quantity::parse(limit)) else {
                continue;
            };
            if own.exceeds(most) {
                let why =
                    format!("must be less than or equal to the pod's limit of {}", quoted(&most.canonical()));
                at.key(resource).named("limits").invalid(limit, &why);
            }
        }
    });
}
