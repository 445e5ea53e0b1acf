//! The resource requests and limits of containers and pods.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    context::PodContext,
    errors::Errors,
    fields::{Object, given_text, object, objects, text},
    syntax::{self, SyntaxResult},
};
use crate::pod::{FieldPath, Quantity, aggregate, quoted};

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
pub(super) fn of_container(
    requirements: &Object,
    path: &FieldPath<'_>,
    claims: &BTreeSet<&str>,
    errors: &mut Errors<'_>,
) {
    amounts(requirements, path, container_name, errors);
    claim_names(requirements, &path.field("claims"), claims, errors);
}

/// Validates the overhead of a pod, which the API treats as limits.
pub(super) fn overhead(overhead: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    limits_and_requests(Some(overhead), &path.named("limits"), None, path, container_name, errors);
}

/// Validates the resources of a pod as a whole.
pub(super) fn of_pod(
    requirements: &Object,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    if pod.os == Some("windows") {
        return errors.forbidden(path, "may not be set for a windows pod");
    }
    if errors.is_set(requirements, "claims", path) {
        errors.forbidden(&path.field("claims"), "claims may not be set for Resources at pod-level");
    }
    amounts(requirements, path, pod_name, errors);
    claim_names(requirements, &path.field("claims"), &pod.claims, errors);
    consistency(pod.spec, requirements, path, errors);
}

/// Checks the name of a resource.
type NameCheck = fn(&str, &FieldPath<'_>, &mut Errors<'_>);

fn amounts(requirements: &Object, path: &FieldPath<'_>, name: NameCheck, errors: &mut Errors<'_>) {
    let (limits, requests) = (object(requirements, "limits"), object(requirements, "requests"));
    limits_and_requests(limits, &path.field("limits"), requests, path, name, errors);
}

fn limits_and_requests(
    limits: Option<&Object>,
    limits_path: &FieldPath<'_>,
    requests: Option<&Object>,
    path: &FieldPath<'_>,
    name: NameCheck,
    errors: &mut Errors<'_>,
) {
    if let Some(amounts) = limits {
        self::list(amounts, limits_path, name, errors);
    }
    let requests_path = path.field("requests");
    if let Some(amounts) = requests {
        self::list(amounts, &requests_path, name, errors);
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
                errors.required(limits_path, why);
                continue;
            }
        };
        let (Some(request), Some(most)) = (Quantity::parse(amount), Quantity::parse(limit)) else { continue };
        let path = requests_path.key(resource).unnamed();
        let limit = || format!("the limit of {}, which is {}", quoted(resource), quoted(limit));
        if request.exceeds(&most) {
            errors.invalid(&path, amount, &format!("must be less than or equal to {}", limit()));
        } else if !may_exceed && most.exceeds(&request) {
            errors.invalid(&path, amount, &format!("must be equal to {}", limit()));
        }
    }
    let given = || limits.into_iter().chain(requests).flat_map(|amounts| amounts.keys());
    let is_base = |resource: &String| matches!(resource.as_str(), "cpu" | "memory");
    if given().any(|resource| resource.starts_with(HUGE_PAGES)) && !given().any(is_base) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
}

/// Validates the names and amounts of a list.
fn list(amounts: &Object, path: &FieldPath<'_>, name: NameCheck, errors: &mut Errors<'_>) {
    for (resource, amount) in amounts {
        let (path, amount) = (path.key(resource), amount.as_str().unwrap_or_default());
        name(resource, &path, errors);
        if amount.starts_with('-') {
            errors.invalid(&path, amount, "must be greater than or equal to 0");
        }
        if is_counted(resource) && !Quantity::parse(amount).is_some_and(|amount| amount.is_whole()) {
            errors.invalid(&path, amount, "must be an integer");
        }
        if resource.starts_with(HUGE_PAGES) && !is_of_pages(resource, amount) {
            errors.invalid(&path, amount, "must be a multiple of the size of a page");
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
fn container_name(resource: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let standard =
        matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with(HUGE_PAGES);
    let result: SyntaxResult = syntax::qualified(resource).and_then(|()| {
        if !resource.contains('/') && !standard {
            Err("must be a resource of containers (cpu, memory, ephemeral-storage, hugepages-…) or begin with a domain")
        } else if !is_native(resource) && !is_extended(resource) {
            Err("must be the name of an extended resource")
        } else {
            Ok(())
        }
    });
    errors.check(path, resource, result);
}

/// Checks the name of a resource of a pod as a whole.
fn pod_name(resource: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Err(why) = syntax::qualified(resource) {
        return errors.invalid(path, resource, why);
    }
    let is_huge = resource.starts_with(HUGE_PAGES) || resource.starts_with("requests.hugepages-");
    // The other resources without a domain that a quota can have.
    let base =
        resource.strip_prefix("limits.").or_else(|| resource.strip_prefix(REQUESTS)).unwrap_or(resource);
    let is_standard = matches!(base, "cpu" | "memory" | "ephemeral-storage")
        || matches!(resource, "storage" | "requests.storage");
    let is_known = resource.contains('/') || is_huge || is_standard || COUNTS.contains(&resource);
    if !is_known {
        errors.invalid(path, resource, "must be a standard resource type or fully qualified");
    } else if !matches!(resource, "cpu" | "memory") && !resource.starts_with(HUGE_PAGES) {
        errors.not_supported(path, resource, &["cpu", HUGE_PAGES, "memory"]);
    }
}

/// Validates the claims that are used: each must be a claim of the pod, and used once.
fn claim_names(
    requirements: &Object,
    path: &FieldPath<'_>,
    claims: &BTreeSet<&str>,
    errors: &mut Errors<'_>,
) {
    // A claim without a request means all of its requests.
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    objects(path, requirements, "claims", |path, claim| {
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            return errors.required(path, "");
        }
        if used.contains(&(name, "")) {
            errors.duplicate(path, name);
        } else {
            errors.check_filled(claim, "request", path, syntax::label);
            let overlaps = used.range((name, "")..).next().is_some_and(|(other, _)| *other == name);
            if used.contains(&(name, request)) || (request.is_empty() && overlaps) {
                errors.duplicate(path, name);
            }
            used.insert((name, request));
        }
        if !claims.contains(name) {
            errors.not_found(path, name);
        }
    });
}

/// Validates that the resources of the pod cover those of its containers.
fn consistency(spec: &Object, requirements: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for field in ["requests", "limits"] {
        let (Some(whole), list_path) = (object(requirements, field), path.field(field)) else { continue };
        for (resource, sum) in aggregate(spec, field) {
            if field == "limits" && !resource.starts_with(HUGE_PAGES) {
                continue;
            }
            let Some(given) = given_text(whole, &resource) else { continue };
            let exceeds =
                Quantity::parse(&sum).zip(Quantity::parse(given)).is_some_and(|(a, b)| a.exceeds(&b));
            if exceeds {
                let why = format!("must be at least the sum over the containers, {}", quoted(&sum));
                errors.invalid(&list_path.key(&resource), given, &why);
            }
        }
    }
    within_pod(spec, requirements, &path.named("containers"), errors);
}

/// Validates that no container's limit is above the pod's.
fn within_pod(spec: &Object, requirements: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let limits = object(requirements, "limits").into_iter().flatten();
    let limits: BTreeMap<&str, Quantity<'_>> =
        limits.filter_map(|(name, limit)| Some((name.as_str(), Quantity::parse(limit.as_str()?)?))).collect();
    objects(path, spec, "containers", |path, container| {
        let own = object(container, "resources").and_then(|resources| object(resources, "limits"));
        for (resource, limit) in own.into_iter().flatten() {
            let limit = limit.as_str().unwrap_or_default();
            let (Some(most), Some(own)) = (limits.get(resource.as_str()), Quantity::parse(limit)) else {
                continue;
            };
            if own.exceeds(most) {
                let why =
                    format!("must be less than or equal to the pod's limit of {}", quoted(&most.canonical()));
                errors.invalid(&path.key(resource).named("limits"), limit, &why);
            }
        }
    });
}
