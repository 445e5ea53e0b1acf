//! The volumes of a container: mounted as directories, and as block devices.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    context::Volumes,
    errors::Errors,
    fields::{Object, each_object, given_text, is_true, list, object, text},
    syntax,
};
use crate::pod::FieldPath;

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIONS: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

/// The paths in a list, by name. The last of equal names counts, as in Go's map.
fn places<'v>(container: &'v Object, list_field: &str, place: &str) -> BTreeMap<&'v str, &'v str> {
    let items = list(container, list_field).iter().filter_map(|item| item.as_object());
    items.map(|item| (text(item, "name"), text(item, place))).collect()
}

/// Validates the volumes that a container mounts as directories.
pub(super) fn mounts(
    list: &Value,
    container: &Object,
    path: &FieldPath<'_>,
    volumes: &Volumes<'_>,
    errors: &mut Errors<'_>,
) {
    let devices = places(container, "volumeDevices", "devicePath");
    let privileged =
        || object(container, "securityContext").is_some_and(|context| is_true(context, "privileged"));
    let device_paths: BTreeSet<&str> = devices.values().copied().collect();
    let mut taken = BTreeSet::new();
    each_object(list, path, |path, mount| {
        let (name, place) = (text(mount, "name"), text(mount, "mountPath"));
        errors.not_empty(&path.field("name"), name);
        if !volumes.contains_key(name) {
            errors.not_found(&path.field("name"), name);
        }
        errors.not_empty(&path.field("mountPath"), place);
        if !taken.insert(place) {
            errors.invalid(&path.field("mountPath"), place, "must be unique");
        }
        if devices.contains_key(name) {
            errors.invalid(&path.field("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(place) {
            let why = "must not already exist as a path in volumeDevices";
            errors.invalid(&path.field("mountPath"), place, why);
        }
        let is_plain = |field: &String| matches!(field.as_str(), "name" | "mountPath" | "readOnly");
        if !mount.keys().all(is_plain) {
            sub_paths(mount, path, errors);
            propagation(mount, privileged(), &path.unnamed(), errors);
        }
    });
}

/// Validates the path in the volume. The API's paths do not have the index of the mount.
fn sub_paths(mount: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (sub_path, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    let short = path.unnamed();
    errors.check_text(mount, "subPath", &short, syntax::descending);
    if !sub_path.is_empty() && !expression.is_empty() {
        let why = "subPathExpr and subPath are mutually exclusive";
        errors.invalid(&path.field("subPathExpr"), expression, why);
    }
    errors.check_text(mount, "subPathExpr", &short, syntax::descending);
}

/// Validates the propagation of mounts below the mount.
fn propagation(mount: &Object, privileged: bool, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let propagation = given_text(mount, "mountPropagation");
    if let Some(propagation) = propagation {
        let path = path.field("mountPropagation");
        errors.one_of(&path, propagation, &PROPAGATIONS);
        if propagation == "Bidirectional" && !privileged {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.forbidden(&path, why);
        }
    }
    let path = path.field("recursiveReadOnly");
    match given_text(mount, "recursiveReadOnly") {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !is_true(mount, "readOnly") {
                errors.forbidden(&path, "may only be specified when readOnly is true");
            }
            if propagation.is_some_and(|propagation| propagation != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(&path, why);
            }
        }
        Some(other) => errors.not_supported(&path, other, &RECURSIONS),
    }
}

/// Validates the volumes that a container has as block devices.
pub(super) fn devices(
    list: &Value,
    container: &Object,
    path: &FieldPath<'_>,
    volumes: &Volumes<'_>,
    errors: &mut Errors<'_>,
) {
    let mounts = places(container, "volumeMounts", "mountPath");
    let mount_paths: BTreeSet<&str> = mounts.values().copied().collect();
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    each_object(list, path, |path, device| {
        let (name, place) = (text(device, "name"), text(device, "devicePath"));
        let (name_path, place_path) = (path.field("name"), path.field("devicePath"));
        errors.not_empty(&name_path, name);
        if !name.is_empty() && !names.insert(name) {
            errors.invalid(&name_path, name, "must be unique");
        }
        let is_claim = |volume: &Object| {
            volume.contains_key("persistentVolumeClaim") || volume.contains_key("ephemeral")
        };
        match volumes.get(name) {
            None => errors.not_found(&name_path, name),
            Some(volume) if is_claim(volume) => {}
            Some(_) => {
                let why = "must be a persistentVolumeClaim or an ephemeral volume to be a block device";
                errors.invalid(&name_path, name, why);
            }
        }
        errors.not_empty(&place_path, place);
        if places.contains(place) {
            errors.invalid(&place_path, place, "must be unique");
        }
        match syntax::no_backsteps(place) {
            Ok(()) => {
                places.insert(place);
            }
            Err(why) => errors.invalid(&place_path, place, why),
        }
        if mounts.contains_key(name) {
            errors.invalid(&name_path, name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(place) {
            errors.invalid(&place_path, place, "must not already exist as a path in volumeMounts");
        }
    });
}
