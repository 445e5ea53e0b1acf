//! The environment variables of a container, and the sources of their values.

use serde_json::Value;

use super::{
    at::At,
    context::PodContext,
    fields::{Object, object, text},
    syntax,
};

/// The fields of the pod that a variable may refer to.
const VARIABLE_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The fields of the pod that a file may refer to.
pub(super) const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// The fields of the pod that the API knows and no reference supports.
const UNSUPPORTED_FIELDS: [&str; 3] = ["spec.restartPolicy", "spec.schedulerName", "status.phase"];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// The divisors of an amount of bytes.
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn variables(list: &Value, at: &At<'_>, pod: &PodContext<'_>) {
    at.each_object(list, |at, variable| {
        at.require_text(variable, "name", syntax::variable_name);
        let has_value = !text(variable, "value").is_empty();
        at.object(variable, "valueFrom", |at, source| value_from(source, has_value, at, pod));
    });
}

fn value_from(source: &Object, has_value: bool, at: &At<'_>, pod: &PodContext<'_>) {
    let mut sources = 0;
    for (kind, source) in source {
        let Some(source) = source.as_object() else { continue };
        let at = at.field(kind);
        match kind.as_str() {
            "fieldRef" => field_reference(source, &VARIABLE_FIELDS, &at),
            "resourceFieldRef" => resource_reference(source, false, &at),
            "configMapKeyRef" | "secretKeyRef" => key_reference(source, &at),
            "fileKeyRef" => file_reference(source, &at, pod),
            _ => continue,
        }
        sources += 1;
    }
    if sources == 0 {
        let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        at.invalid("", why);
    } else if has_value {
        at.invalid("", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        at.invalid("", "may not have more than one field specified at a time");
    }
}

/// Validates a reference to a field of the pod.
pub(super) fn field_reference(reference: &Object, supported: &[&str], at: &At<'_>) {
    let (version, field) = (text(reference, "apiVersion"), text(reference, "fieldPath"));
    let field_path = at.field("fieldPath");
    if version.is_empty() {
        return at.field("apiVersion").required("");
    }
    if field.is_empty() {
        return field_path.required("");
    }
    if version != "v1" {
        return field_path.invalid(field, "the apiVersion of a pod is v1");
    }
    match subscript(field) {
        Some(("metadata.annotations", key)) => at.check(key, syntax::qualified_caseless),
        Some(("metadata.labels", key)) => at.check(key, syntax::qualified),
        Some(_) => {
            field_path.invalid(field, "only metadata.annotations and metadata.labels may have a key");
        }
        None => {
            // Old clients write `spec.host`.
            let field = if field == "spec.host" { "spec.nodeName" } else { field };
            let known = [&VARIABLE_FIELDS[..], &FILE_FIELDS, &UNSUPPORTED_FIELDS];
            if !known.iter().any(|fields| fields.contains(&field)) {
                field_path.invalid(field, "must be a field that can be referred to");
            } else if !supported.contains(&field) {
                field_path.not_supported(field, supported);
            }
        }
    }
}

/// Splits `metadata.labels['app']` into the field and the key.
fn subscript(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['").filter(|(field, _)| !field.is_empty())
}

/// Validates a reference to a resource of a container. In a file it names the container.
pub(super) fn resource_reference(reference: &Object, for_file: bool, at: &At<'_>) {
    let resource = text(reference, "resource");
    let is_huge_pages =
        resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if for_file && text(reference, "containerName").is_empty() {
        at.field("containerName").required("");
    } else if resource.is_empty() {
        at.field("resource").required("");
    } else if !is_huge_pages {
        at.field("resource").one_of(resource, &RESOURCES);
    }
    let divisor = text(reference, "divisor");
    let is_valid = match resource {
        _ if matches!(divisor, "" | "0") => true,
        "limits.cpu" | "requests.cpu" => matches!(divisor, "1m" | "1"),
        resource if is_huge_pages || RESOURCES.contains(&resource) => BYTE_DIVISORS.contains(&divisor),
        _ => true,
    };
    if !is_valid {
        let why = "must be 1 or 1m for cpu, and 1 with an optional unit (1k … 1E, 1Ki … 1Ei) for bytes";
        at.field("divisor").invalid(divisor, why);
    }
}

/// Validates a reference to a key of a `ConfigMap` or Secret.
fn key_reference(reference: &Object, at: &At<'_>) {
    at.check_text(reference, "name", syntax::subdomain);
    at.require_text(reference, "key", syntax::config_key);
}

/// Validates a reference to a key of a file in a volume, which must be an emptyDir.
fn file_reference(reference: &Object, at: &At<'_>, pod: &PodContext<'_>) {
    at.require_text(reference, "key", syntax::variable_name);
    at.require_text(reference, "volumeName", syntax::label);
    at.require_text(reference, "path", syntax::no_backsteps);
    let (name, at) = (text(reference, "volumeName"), at.field("volumeName"));
    match pod.volume(name) {
        None => at.not_found(name),
        Some(volume) if volume.contains_key("emptyDir") => {}
        Some(_) => at.invalid(name, "the volume must be an emptyDir"),
    }
}

/// Validates the objects whose keys all become variables.
pub(super) fn sources(list: &Value, at: &At<'_>) {
    at.each_object(list, |at, source| {
        at.check_filled(source, "prefix", syntax::variable_name);
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(reference) = object(source, kind) else { continue };
            count += 1;
            at.field(kind).require_text(reference, "name", syntax::subdomain_prefix);
        }
        if count != 1 {
            at.unnamed().invalid("", "must specify one of: `configMapRef` or `secretRef`");
        }
    });
}
