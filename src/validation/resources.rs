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
/// The other resources without a domain that a quota can have.
const STANDARD: [&str; 11] = [
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "storage",
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
    let limits = Limits { amounts: Some(overhead), path: &path.named("limits") };
    limits_and_requests(&limits, None, path, container_name, errors);
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

struct Limits<'v, 'p> {
    amounts: Option<&'v Object>,
    path: &'p FieldPath<'p>,
}

fn amounts(requirements: &Object, path: &FieldPath<'_>, name: NameCheck, errors: &mut Errors<'_>) {
    let limits = Limits { amounts: object(requirements, "limits"), path: &path.field("limits") };
    limits_and_requests(&limits, object(requirements, "requests"), path, name, errors);
}

fn limits_and_requests(
    limits: &Limits<'_, '_>,
    requests: Option<&Object>,
    path: &FieldPath<'_>,
    name: NameCheck,
    errors: &mut Errors<'_>,
) {
    if let Some(amounts) = limits.amounts {
        self::list(amounts, limits.path, name, errors);
    }
    let requests_path = path.field("requests");
    if let Some(amounts) = requests {
        self::list(amounts, &requests_path, name, errors);
        for (resource, amount) in amounts {
            let amount = amount.as_str().unwrap_or_default();
            let limit = limits.amounts.and_then(|limits| given_text(limits, resource));
            within_limit(resource, amount, limit, limits.path, &requests_path, errors);
        }
    }
    let given = || limits.amounts.into_iter().chain(requests).flat_map(|amounts| amounts.keys());
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

fn within_limit(
    resource: &str,
    amount: &str,
    limit: Option<&str>,
    limits_path: &FieldPath<'_>,
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) {
    let path = path.key(resource).unnamed();
    let may_exceed = is_native(resource) && !resource.starts_with(HUGE_PAGES);
    let Some(limit) = limit else {
        if !may_exceed {
            errors.required(limits_path, "a limit must be set for a resource that cannot be overcommitted");
        }
        return;
    };
    // Nearly always the texts are the same.
    if amount == limit {
        return;
    }
    let (Some(request), Some(most)) = (Quantity::parse(amount), Quantity::parse(limit)) else { return };
    let limit = || format!("the limit of {}, which is {}", quoted(resource), quoted(limit));
    if request.exceeds(&most) {
        errors.invalid(&path, amount, &format!("must be less than or equal to {}", limit()));
    } else if !may_exceed && most.exceeds(&request) {
        errors.invalid(&path, amount, &format!("must be equal to {}", limit()));
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
    let is_known =
        resource.contains('/') || is_huge || STANDARD.contains(&resource) || COUNTS.contains(&resource);
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
