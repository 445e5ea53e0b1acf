//! Ephemeral volumes: the template of the volume claim.

use super::{
    at::At,
    fields::{Object, given_text, object, text, texts},
    metadata, resources, scheduling, syntax,
};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(super) fn ephemeral(source: &Object, at: &At<'_>) {
    let at = at.field("volumeClaimTemplate");
    let Some(template) = object(source, "volumeClaimTemplate") else { return at.required("") };
    let empty = Object::new();
    template_metadata(object(template, "metadata").unwrap_or(&empty), &at.field("metadata"));
    spec(object(template, "spec").unwrap_or(&empty), &at.field("spec"));
}

/// Validates the metadata of a template, which may have only labels and annotations.
fn template_metadata(given: &Object, at: &At<'_>) {
    for (field, value) in given {
        let at = at.field(field);
        match (field.as_str(), value.as_object()) {
            ("annotations", Some(annotations)) => metadata::annotations(&at, annotations),
            ("labels", Some(labels)) => metadata::labels(&at, labels),
            // The API reports Go's name of the field.
            ("uid", _) => at.unnamed().named("uID").forbidden("cannot be set"),
            _ => at.forbidden("cannot be set"),
        }
    }
    // An empty list counts as set, but a prepared pod does not have it.
    for field in ["finalizers", "managedFields", "ownerReferences"] {
        if !given.contains_key(field) && at.is_set(given, field) {
            at.field(field).forbidden("cannot be set");
        }
    }
}

fn spec(spec: &Object, at: &At<'_>) {
    access_modes(spec, &at.field("accessModes"));
    at.object(spec, "selector", scheduling::label_selector);
    let requests = object(spec, "resources").and_then(|resources| object(resources, "requests"));
    let resources_path = at.field("resources");
    let storage_path = resources_path.key("storage");
    match requests.and_then(|requests| given_text(requests, "storage")) {
        None => storage_path.required(""),
        Some(storage) if resources::is_positive(storage) => {}
        Some(storage) => storage_path.invalid(storage, "must be greater than zero"),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        at.check_filled(spec, field, syntax::subdomain);
    }
    at.given_one_of(spec, "volumeMode", &["Block", "Filesystem"]);
    data_sources(spec, at);
}

fn access_modes(spec: &Object, at: &At<'_>) {
    let (mut once, mut others, mut any) = (false, false, false);
    for mode in texts(spec, "accessModes") {
        any = true;
        at.one_of(mode, &ACCESS_MODES);
        match mode {
            "ReadWriteOncePod" => once = true,
            mode => others |= ACCESS_MODES.contains(&mode),
        }
    }
    if !any {
        at.required("at least 1 access mode is required");
    }
    if once && others {
        at.forbidden("may not use ReadWriteOncePod with other access modes");
    }
}

/// Validates the sources of the data of a claim.
fn data_sources(spec: &Object, at: &At<'_>) {
    let (source, reference) = (object(spec, "dataSource"), object(spec, "dataSourceRef"));
    at.object(spec, "dataSource", data_source);
    let Some(reference) = reference else { return };
    let reference_path = at.field("dataSourceRef");
    data_source(&reference_path, reference);
    reference_path.check_filled(reference, "namespace", syntax::label);
    let Some(source) = source else { return };
    let same = |field: &str| given_text(source, field) == given_text(reference, field);
    if !text(reference, "namespace").is_empty() {
        at.invalid("dataSource", "may not be specified when dataSourceRef.namespace is specified");
    } else if !(same("apiGroup") && same("kind") && same("name")) {
        at.invalid("dataSource", "must match dataSourceRef");
    }
}

fn data_source(at: &At<'_>, source: &Object) {
    let (kind, group) = (text(source, "kind"), text(source, "apiGroup"));
    at.field("name").not_empty(text(source, "name"));
    at.field("kind").not_empty(kind);
    at.check_filled(source, "apiGroup", syntax::subdomain);
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        at.invalid(kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
    }
}
