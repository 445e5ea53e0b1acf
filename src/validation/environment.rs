//! A container's environment variables, and where they take their values from.

use serde_json::Value;

use super::{
    container::Pod,
    errors::Errors,
    fields::{Object, each_object, object, text},
    syntax,
};
use crate::pod::FieldPath;

/// What a variable may hold of the pod's own fields.
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
/// What a file may hold of them.
pub(super) const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Every field that can be asked for at all.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// In what units an amount of bytes may be given.
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn variables(list: &Value, path: &FieldPath<'_>, pod: &Pod<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, variable| {
        let name = text(variable, "name");
        if name.is_empty() {
            errors.required(&path.field("name"), "");
        } else {
            errors.check(&path.field("name"), name, syntax::variable_name(name));
        }
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
    pod: &Pod<'_>,
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

/// A field of the pod, of those that are supported.
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
            errors.invalid(&field_path, field, "only metadata.annotations and metadata.labels have keys");
        }
        None => {
            // Clients of old say `spec.host`.
            let field = if field == "spec.host" { "spec.nodeName" } else { field };
            if !KNOWN_FIELDS.contains(&field) {
                errors.invalid(&field_path, field, "a pod has no such field to refer to");
            } else if !supported.contains(&field) {
                errors.not_supported(&field_path, field, supported);
            }
        }
    }
}

/// Takes `metadata.labels['app']` apart.
fn subscript(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['").filter(|(field, _)| !field.is_empty())
}

/// A resource of a container, of another one if it is for a file.
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
    let is_fine = match resource {
        _ if matches!(divisor, "" | "0") => true,
        "limits.cpu" | "requests.cpu" => matches!(divisor, "1m" | "1"),
        resource if is_huge_pages || RESOURCES.contains(&resource) => BYTE_DIVISORS.contains(&divisor),
        _ => true,
    };
    if !is_fine {
        let why = "a divisor is 1 or 1m for cpu, and 1 or 1 with a unit (1k … 1E, 1Ki … 1Ei) for bytes";
        errors.invalid(&path.field("divisor"), divisor, why);
    }
}

/// A key of a `ConfigMap` or Secret.
fn key_reference(reference: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (name, key) = (text(reference, "name"), text(reference, "key"));
    errors.check(&path.field("name"), name, syntax::subdomain(name));
    if key.is_empty() {
        errors.required(&path.field("key"), "");
    } else {
        errors.check(&path.field("key"), key, syntax::config_key(key));
    }
}

/// A key of a file in a volume, which must be one that the pod brings along empty.
fn file_reference(reference: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, errors: &mut Errors<'_>) {
    for (field, check) in [
        ("key", syntax::variable_name as fn(&str) -> syntax::Verdict),
        ("volumeName", syntax::label),
        ("path", syntax::no_backsteps),
    ] {
        let given = text(reference, field);
        if given.is_empty() {
            errors.required(&path.field(field), "");
        } else {
            errors.check(&path.field(field), given, check(given));
        }
    }
    let (name, path) = (text(reference, "volumeName"), path.field("volumeName"));
    match pod.volume(name) {
        None => errors.not_found(&path, name),
        Some(volume) if volume.contains_key("emptyDir") => {}
        Some(_) => errors.invalid(&path, name, "the volume must be an emptyDir"),
    }
}

/// What a container takes all variables from.
pub(super) fn sources(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, source| {
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            errors.check(&path.field("prefix"), prefix, syntax::variable_name(prefix));
        }
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(reference) = object(source, kind) else { continue };
            count += 1;
            let (name, path) = (text(reference, "name"), path.field(kind));
            if name.is_empty() {
                errors.required(&path.field("name"), "");
            } else {
                errors.check(&path.field("name"), name, syntax::subdomain_prefix(name));
            }
        }
        if count != 1 {
            errors.invalid(&path.unnamed(), "", "must specify one of: `configMapRef` or `secretRef`");
        }
    });
}
