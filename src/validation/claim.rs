//! Ephemeral volumes: the template of the volume claim.

use super::{
    errors::Errors,
    fields::{Object, given_text, object, text, texts},
    metadata, resources, scheduling, syntax,
};
use crate::pod::FieldPath;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(super) fn ephemeral(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let path = path.field("volumeClaimTemplate");
    let Some(template) = object(source, "volumeClaimTemplate") else { return errors.required(&path, "") };
    let empty = Object::new();
    template_metadata(object(template, "metadata").unwrap_or(&empty), &path.field("metadata"), errors);
    spec(object(template, "spec").unwrap_or(&empty), &path.field("spec"), errors);
}

/// Validates the metadata of a template, which may have only labels and annotations.
fn template_metadata(given: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for (field, value) in given {
        let path = path.field(field);
        match (field.as_str(), value.as_object()) {
            ("annotations", Some(annotations)) => metadata::annotations(annotations, &path, errors),
            ("labels", Some(labels)) => metadata::labels(labels, &path, errors),
            // The API reports Go's name of the field.
            ("uid", _) => errors.forbidden(&path.unnamed().named("uID"), "cannot be set"),
            _ => errors.forbidden(&path, "cannot be set"),
        }
    }
    // An empty list counts as set, but a prepared pod does not have it.
    for field in ["finalizers", "managedFields", "ownerReferences"] {
        if !given.contains_key(field) && errors.is_set(given, field, path) {
            errors.forbidden(&path.field(field), "cannot be set");
        }
    }
}

fn spec(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    access_modes(spec, &path.field("accessModes"), errors);
    if let Some(selector) = object(spec, "selector") {
        scheduling::label_selector(selector, &path.field("selector"), errors);
    }
    let requests = object(spec, "resources").and_then(|resources| object(resources, "requests"));
    let resources_path = path.field("resources");
    let storage_path = resources_path.key("storage");
    match requests.and_then(|requests| given_text(requests, "storage")) {
        None => errors.required(&storage_path, ""),
        Some(storage) if resources::is_positive(storage) => {}
        Some(storage) => errors.invalid(&storage_path, storage, "must be greater than zero"),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        errors.check_filled(spec, field, path, syntax::subdomain);
    }
    errors.given_one_of(spec, "volumeMode", path, &["Block", "Filesystem"]);
    data_sources(spec, path, errors);
}

fn access_modes(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (mut once, mut others, mut any) = (false, false, false);
    for mode in texts(spec, "accessModes") {
        any = true;
        errors.one_of(path, mode, &ACCESS_MODES);
        match mode {
            "ReadWriteOncePod" => once = true,
            mode => others |= ACCESS_MODES.contains(&mode),
        }
    }
    if !any {
        errors.required(path, "at least 1 access mode is required");
    }
    if once && others {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Validates the sources of the data of a claim.
fn data_sources(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (source, reference) = (object(spec, "dataSource"), object(spec, "dataSourceRef"));
    if let Some(source) = source {
        data_source(source, &path.field("dataSource"), errors);
    }
    let Some(reference) = reference else { return };
    let reference_path = path.field("dataSourceRef");
    data_source(reference, &reference_path, errors);
    errors.check_filled(reference, "namespace", &reference_path, syntax::label);
    let Some(source) = source else { return };
    let same = |field: &str| given_text(source, field) == given_text(reference, field);
    if !text(reference, "namespace").is_empty() {
        errors.invalid(path, "dataSource", "may not be specified when dataSourceRef.namespace is specified");
    } else if !(same("apiGroup") && same("kind") && same("name")) {
        errors.invalid(path, "dataSource", "must match dataSourceRef");
    }
}

fn data_source(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (kind, group) = (text(source, "kind"), text(source, "apiGroup"));
    errors.not_empty(&path.field("name"), text(source, "name"));
    errors.not_empty(&path.field("kind"), kind);
    if !group.is_empty() {
        errors.check(&path.field("apiGroup"), group, syntax::subdomain(group));
    } else if kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(path, kind, why);
    }
}
