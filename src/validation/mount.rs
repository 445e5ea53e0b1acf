//! The volumes of a container: mounted as directories, and as block devices.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    at::At,
    context::Volumes,
    fields::{Object, given_text, is_true, object, objects, text},
    syntax,
};

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIONS: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

/// The paths in a list, by name. The last of equal names counts, as in Go's map.
fn places<'v>(container: &'v Object, list_field: &str, place: &str) -> BTreeMap<&'v str, &'v str> {
    objects(container, list_field).map(|item| (text(item, "name"), text(item, place))).collect()
}

/// Validates the volumes that a container mounts as directories.
pub(super) fn mounts(list: &Value, container: &Object, at: &At<'_>, volumes: &Volumes<'_>) {
    let devices = places(container, "volumeDevices", "devicePath");
    let privileged =
        || object(container, "securityContext").is_some_and(|context| is_true(context, "privileged"));
    let device_paths: BTreeSet<&str> = devices.values().copied().collect();
    let mut taken = BTreeSet::new();
    at.each_object(list, |at, mount| {
        let (name, place) = (text(mount, "name"), text(mount, "mountPath"));
        at.field("name").not_empty(name);
        if !volumes.contains_key(name) {
            at.field("name").not_found(name);
        }
        at.field("mountPath").not_empty(place);
        if !taken.insert(place) {
            at.field("mountPath").invalid(place, "must be unique");
        }
        if devices.contains_key(name) {
            at.field("name").invalid(name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(place) {
            at.field("mountPath").invalid(place, "must not already exist as a path in volumeDevices");
        }
        let is_plain = |field: &String| matches!(field.as_str(), "name" | "mountPath" | "readOnly");
        if !mount.keys().all(is_plain) {
            sub_paths(mount, at);
            propagation(mount, privileged(), &at.unnamed());
        }
    });
}

/// Validates the path in the volume. The API's paths do not have the index of the mount.
fn sub_paths(mount: &Object, at: &At<'_>) {
    let (sub_path, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    let short = at.unnamed();
    short.check_text(mount, "subPath", syntax::descending);
    if !sub_path.is_empty() && !expression.is_empty() {
        at.field("subPathExpr").invalid(expression, "subPathExpr and subPath are mutually exclusive");
    }
    short.check_text(mount, "subPathExpr", syntax::descending);
}

/// Validates the propagation of mounts below the mount.
fn propagation(mount: &Object, privileged: bool, at: &At<'_>) {
    let propagation = given_text(mount, "mountPropagation");
    if let Some(propagation) = propagation {
        let at = at.field("mountPropagation");
        at.one_of(propagation, &PROPAGATIONS);
        if propagation == "Bidirectional" && !privileged {
            at.forbidden("Bidirectional mount propagation is available only to privileged containers");
        }
    }
    let at = at.field("recursiveReadOnly");
    match given_text(mount, "recursiveReadOnly") {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !is_true(mount, "readOnly") {
                at.forbidden("may only be specified when readOnly is true");
            }
            if propagation.is_some_and(|propagation| propagation != "None") {
                at.forbidden("may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => at.not_supported(other, &RECURSIONS),
    }
}

/// Validates the volumes that a container has as block devices.
pub(super) fn devices(list: &Value, container: &Object, at: &At<'_>, volumes: &Volumes<'_>) {
    let mounts = places(container, "volumeMounts", "mountPath");
    let mount_paths: BTreeSet<&str> = mounts.values().copied().collect();
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    at.each_object(list, |at, device| {
        let (name, place) = (text(device, "name"), text(device, "devicePath"));
        let (name_path, place_path) = (at.field("name"), at.field("devicePath"));
        name_path.not_empty(name);
        if !name.is_empty() && !names.insert(name) {
            name_path.invalid(name, "must be unique");
        }
        let is_claim = |volume: &Object| {
            volume.contains_key("persistentVolumeClaim") || volume.contains_key("ephemeral")
        };
        match volumes.get(name) {
            None => name_path.not_found(name),
            Some(volume) if is_claim(volume) => {}
            Some(_) => {
                let why = "must be a persistentVolumeClaim or an ephemeral volume to be a block device";
                name_path.invalid(name, why);
            }
        }
        place_path.not_empty(place);
        if places.contains(place) {
            place_path.invalid(place, "must be unique");
        }
        match syntax::no_backsteps(place) {
            Ok(()) => {
                places.insert(place);
            }
            Err(why) => place_path.invalid(place, why),
        }
        if mounts.contains_key(name) {
            name_path.invalid(name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(place) {
            place_path.invalid(place, "must not already exist as a path in volumeMounts");
        }
    });
}
