//! Ephemeral volumes: the template of the claim that is made for the pod.

use super::{
    fields::{Object, given_text, object, text, texts},
    judge::Judge,
    metadata, resources, scheduling, syntax,
};
use crate::pod::FieldPath;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(super) fn ephemeral(source: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let path = path.field("volumeClaimTemplate");
    let Some(template) = object(source, "volumeClaimTemplate") else { return judge.required(&path, "") };
    let empty = Object::new();
    template_metadata(object(template, "metadata").unwrap_or(&empty), &path.field("metadata"), judge);
    spec(object(template, "spec").unwrap_or(&empty), &path.field("spec"), judge);
}

/// A template has labels and annotations and nothing else.
fn template_metadata(given: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    for (field, value) in given {
        let path = path.field(field);
        match (field.as_str(), value.as_object()) {
            ("annotations", Some(annotations)) => metadata::annotations(annotations, &path, judge),
            ("labels", Some(labels)) => metadata::labels(labels, &path, judge),
            // The API says Go's name of the field.
            ("uid", _) => judge.forbidden(&path.unnamed().named("uID"), "cannot be set"),
            _ => judge.forbidden(&path, "cannot be set"),
        }
    }
    // Empty ones are set, too, and not in the prepared pod.
    for field in ["finalizers", "managedFields", "ownerReferences"] {
        if !given.contains_key(field) && judge.is_set(given, field, path) {
            judge.forbidden(&path.field(field), "cannot be set");
        }
    }
}

fn spec(spec: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    access_modes(spec, &path.field("accessModes"), judge);
    if let Some(selector) = object(spec, "selector") {
        scheduling::label_selector(selector, &path.field("selector"), judge);
    }
    let requests = object(spec, "resources").and_then(|resources| object(resources, "requests"));
    let resources_path = path.field("resources");
    let storage_path = resources_path.key("storage");
    match requests.and_then(|requests| given_text(requests, "storage")) {
        None => judge.required(&storage_path, ""),
        Some(storage) if resources::is_positive(storage) => {}
        Some(storage) => judge.invalid(&storage_path, storage, "must be greater than zero"),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let class = text(spec, field);
        if !class.is_empty() {
            judge.check(&path.field(field), class, syntax::subdomain(class));
        }
    }
    if let Some(mode) = given_text(spec, "volumeMode") {
        judge.one_of(&path.field("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    data_sources(spec, path, judge);
}

fn access_modes(spec: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let (mut once, mut others, mut any) = (false, false, false);
    for mode in texts(spec, "accessModes") {
        any = true;
        judge.one_of(path, mode, &ACCESS_MODES);
        match mode {
            "ReadWriteOncePod" => once = true,
            mode => others |= ACCESS_MODES.contains(&mode),
        }
    }
    if !any {
        judge.required(path, "at least 1 access mode is required");
    }
    if once && others {
        judge.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// What the claim is filled from.
fn data_sources(spec: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let (source, reference) = (object(spec, "dataSource"), object(spec, "dataSourceRef"));
    if let Some(source) = source {
        data_source(source, &path.field("dataSource"), judge);
    }
    let Some(reference) = reference else { return };
    let reference_path = path.field("dataSourceRef");
    data_source(reference, &reference_path, judge);
    let namespace = text(reference, "namespace");
    if !namespace.is_empty() {
        judge.check(&reference_path.field("namespace"), namespace, syntax::label(namespace));
    }
    let Some(source) = source else { return };
    let same = |field: &str| given_text(source, field) == given_text(reference, field);
    if !namespace.is_empty() {
        judge.invalid(path, "dataSource", "may not be specified when dataSourceRef.namespace is specified");
    } else if !(same("apiGroup") && same("kind") && same("name")) {
        judge.invalid(path, "dataSource", "must match dataSourceRef");
    }
}

fn data_source(source: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let (kind, group) = (text(source, "kind"), text(source, "apiGroup"));
    judge.not_empty(&path.field("name"), text(source, "name"));
    judge.not_empty(&path.field("kind"), kind);
    if !group.is_empty() {
        judge.check(&path.field("apiGroup"), group, syntax::subdomain(group));
    } else if kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        judge.invalid(path, kind, why);
    }
}
