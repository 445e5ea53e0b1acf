//! The environment variables of a container, and the sources of their values.

use serde_json::Value;

use super::{
    context::PodContext,
    errors::Errors,
    fields::{Object, each_object, object, text},
    syntax,
};
use crate::pod::FieldPath;

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

pub(super) fn variables(list: &Value, path: &FieldPath<'_>, pod: &PodContext<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, variable| {
        errors.require_text(variable, "name", path, syntax::variable_name);
        if let Some(source) = object(variable, "valueFrom") {
            let has_value = !text(variable, "value").is_empty();
            value_from(source, has_value, &path.field("valueFrom"), pod, errors);
        }
    });
}

fn value_from(
    source: &Object,
    has_value: bool,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    let mut sources = 0;
    for (kind, source) in source {
        let Some(source) = source.as_object() else { continue };
        let path = path.field(kind);
        match kind.as_str() {
            "fieldRef" => field_reference(source, &VARIABLE_FIELDS, &path, errors),
            "resourceFieldRef" => resource_reference(source, false, &path, errors),
            "configMapKeyRef" | "secretKeyRef" => key_reference(source, &path, errors),
            "fileKeyRef" => file_reference(source, &path, pod, errors),
            _ => continue,
        }
        sources += 1;
    }
    if sources == 0 {
        let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(path, "", why);
    } else if has_value {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(path, "", "may not have more than one field specified at a time");
    }
}

/// Validates a reference to a field of the pod.
pub(super) fn field_reference(
    reference: &Object,
    supported: &[&str],
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) {
    let (version, field) = (text(reference, "apiVersion"), text(reference, "fieldPath"));
    let field_path = path.field("fieldPath");
    if version.is_empty() {
        return errors.required(&path.field("apiVersion"), "");
    }
    if field.is_empty() {
        return errors.required(&field_path, "");
    }
    if version != "v1" {
        return errors.invalid(&field_path, field, "the apiVersion of a pod is v1");
    }
    match subscript(field) {
        Some(("metadata.annotations", key)) => errors.check(path, key, syntax::qualified_caseless(key)),
        Some(("metadata.labels", key)) => errors.check(path, key, syntax::qualified(key)),
        Some(_) => {
            errors.invalid(
                &field_path,
                field,
                "only metadata.annotations and metadata.labels may have a key",
            );
        }
        None => {
            // Old clients write `spec.host`.
            let field = if field == "spec.host" { "spec.nodeName" } else { field };
            let known = [&VARIABLE_FIELDS[..], &FILE_FIELDS, &UNSUPPORTED_FIELDS];
            if !known.iter().any(|fields| fields.contains(&field)) {
                errors.invalid(&field_path, field, "must be a field that can be referred to");
            } else if !supported.contains(&field) {
                errors.not_supported(&field_path, field, supported);
            }
        }
    }
}

/// Splits `metadata.labels['app']` into the field and the key.
fn subscript(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['").filter(|(field, _)| !field.is_empty())
}

/// Validates a reference to a resource of a container. In a file it names the container.
pub(super) fn resource_reference(
    reference: &Object,
    for_file: bool,
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) {
    let resource = text(reference, "resource");
    let is_huge_pages =
        resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if for_file && text(reference, "containerName").is_empty() {
        errors.required(&path.field("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&path.field("resource"), "");
    } else if !is_huge_pages {
        errors.one_of(&path.field("resource"), resource, &RESOURCES);
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
        errors.invalid(&path.field("divisor"), divisor, why);
    }
}

/// Validates a reference to a key of a `ConfigMap` or Secret.
fn key_reference(reference: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    errors.check_text(reference, "name", path, syntax::subdomain);
    errors.require_text(reference, "key", path, syntax::config_key);
}

/// Validates a reference to a key of a file in a volume, which must be an emptyDir.
fn file_reference(reference: &Object, path: &FieldPath<'_>, pod: &PodContext<'_>, errors: &mut Errors<'_>) {
    errors.require_text(reference, "key", path, syntax::variable_name);
    errors.require_text(reference, "volumeName", path, syntax::label);
    errors.require_text(reference, "path", path, syntax::no_backsteps);
    let (name, path) = (text(reference, "volumeName"), path.field("volumeName"));
    match pod.volume(name) {
        None => errors.not_found(&path, name),
        Some(volume) if volume.contains_key("emptyDir") => {}
        Some(_) => errors.invalid(&path, name, "the volume must be an emptyDir"),
    }
}

/// Validates the objects whose keys all become variables.
pub(super) fn sources(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, source| {
        errors.check_filled(source, "prefix", path, syntax::variable_name);
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(reference) = object(source, kind) else { continue };
            count += 1;
            errors.require_text(reference, "name", &path.field(kind), syntax::subdomain_prefix);
        }
        if count != 1 {
            errors.invalid(&path.unnamed(), "", "must specify one of: `configMapRef` or `secretRef`");
        }
    });
}
