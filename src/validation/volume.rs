//! The volumes of a pod: each has a unique name and one source.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    claim,
    context::Volumes,
    errors::Errors,
    fields::{Object, list, object, objects, text},
    projected, storage, syntax,
};
use crate::pod::{FieldPath, quoted};

/// Validates a source at its path, besides its required fields.
type SourceCheck = fn(&Object, &FieldPath<'_>, &mut Errors<'_>);

const NO_MORE: SourceCheck = |_, _, _| {};

/// The kinds of sources with their required fields. If a volume has several, all but the
/// first in this order are rejected. The `cephfs` and `downwardAPI` sources have another
/// name in that error.
const KINDS: [(&str, &[&str], SourceCheck); 30] = [
    ("emptyDir", &[], storage::empty_dir),
    ("hostPath", &[], storage::host_path),
    ("gitRepo", &["repository"], storage::git_repo),
    ("gcePersistentDisk", &[], storage::gce_disk),
    ("awsElasticBlockStore", &["volumeID"], storage::aws_disk),
    ("secret", &["secretName"], storage::keys),
    ("nfs", &["server", "path"], storage::nfs),
    ("iscsi", &["targetPortal", "iqn"], storage::iscsi),
    ("glusterfs", &["endpoints", "path"], NO_MORE),
    ("flocker", &[], storage::flocker),
    ("persistentVolumeClaim", &["claimName"], NO_MORE),
    ("rbd", &["monitors", "image"], NO_MORE),
    ("cinder", &["volumeID"], storage::secret_name),
    ("cephfs", &["monitors"], NO_MORE),
    ("quobyte", &[], storage::quobyte),
    ("downwardAPI", &[], projected::downward_api),
    ("fc", &[], storage::fibre_channel),
    ("flexVolume", &["driver"], storage::flex_volume),
    ("configMap", &["name"], storage::keys),
    ("azureFile", &["secretName", "shareName"], NO_MORE),
    ("vsphereVolume", &["volumePath"], NO_MORE),
    ("photonPersistentDisk", &["pdID"], NO_MORE),
    ("portworxVolume", &["volumeID"], NO_MORE),
    ("azureDisk", &["diskName", "diskURI"], storage::azure_disk),
    ("storageos", &["volumeName"], storage::storageos),
    ("projected", &[], projected::validate),
    ("scaleIO", &["gateway", "system", "volumeName"], NO_MORE),
    ("csi", &["driver"], storage::csi),
    ("ephemeral", &[], claim::ephemeral),
    ("image", &[], storage::image),
];

/// Validates the volumes of a pod, and returns the valid ones.
pub(super) fn validate<'v>(
    spec: &'v Object,
    pod_name: &str,
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) -> Volumes<'v> {
    let mut valid = BTreeMap::new();
    let has_account = !text(spec, "serviceAccountName").is_empty();
    let claims = LazyCell::new(|| claims_to_come(spec, pod_name));
    objects(path, spec, "volumes", |path, volume| {
        let (count, name, name_path) = (errors.count(), text(volume, "name"), path.field("name"));
        source(volume, pod_name, path, errors);
        errors.require_text(volume, "name", path, syntax::label);
        if valid.contains_key(name) {
            errors.duplicate(&name_path, name);
        }
        if errors.count() == count {
            valid.insert(name, volume);
        }
        references(volume, path, has_account, &claims, errors);
    });
    valid
}

/// Validates what depends on the rest of the pod. These errors do not make the volume invalid.
fn references(
    volume: &Object,
    path: &FieldPath<'_>,
    has_account: bool,
    claims: &LazyCell<BTreeSet<String>, impl FnOnce() -> BTreeSet<String>>,
    errors: &mut Errors<'_>,
) {
    let claim = object(volume, "persistentVolumeClaim").map(|claim| text(claim, "claimName"));
    if let Some(claim) = claim.filter(|claim| claims.contains(*claim)) {
        let path = path.field("persistentVolumeClaim");
        errors.invalid(&path.field("claimName"), claim, "an ephemeral volume of this pod makes this claim");
    }
    if let Some(projected) = object(volume, "projected").filter(|_| !has_account) {
        let path = path.field("projected");
        objects(&path.field("sources"), projected, "sources", |path, source| {
            if source.contains_key("serviceAccountToken") {
                let why = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&path.field("serviceAccountToken"), why);
            }
        });
    }
}

/// The names of the claims for the pod's ephemeral volumes.
fn claims_to_come(spec: &Object, pod_name: &str) -> BTreeSet<String> {
    let volumes = list(spec, "volumes").iter().filter_map(|volume| volume.as_object());
    let ephemeral = volumes.filter(|volume| volume.contains_key("ephemeral"));
    ephemeral.map(|volume| format!("{pod_name}-{}", text(volume, "name"))).collect()
}

fn source(volume: &Object, pod_name: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let kind_of = |field: &str| KINDS.iter().position(|(kind, ..)| *kind == field);
    let given = || volume.iter().filter_map(|(field, source)| Some((kind_of(field)?, source.as_object()?)));
    let Some((first, source)) = given().min_by_key(|(index, _)| *index) else {
        return errors.required(path, "must specify a volume type");
    };
    for (index, _) in given().filter(|(index, _)| *index != first) {
        let kind = KINDS[index].0;
        // The API's own spelling.
        let name = match kind {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            kind => kind,
        };
        let path = path.field(kind).unnamed();
        errors.forbidden(&path.named(name), "may not specify more than 1 volume type");
    }
    let (kind, required, check) = KINDS[first];
    storage::require(source, required, &path.field(kind), errors);
    check(source, &path.field(kind), errors);
    let name = text(volume, "name");
    if let Some(iscsi) = object(volume, "iscsi")
        && iscsi.contains_key("initiatorName")
        && name.len() + 1 + text(iscsi, "targetPortal").len() > storage::MAX_ISCSI_NAME
    {
        let why = "with iscsi.initiatorName, the name and iscsi.targetPortal must have at most 63 characters together";
        errors.invalid(&path.field("name"), name, why);
    }
    if kind == "ephemeral" && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        if let Err(why) = syntax::subdomain(&claim) {
            let why = format!("it gives the claim name {}: {why}", quoted(&claim));
            errors.invalid(&path.field("name"), name, &why);
        }
    }
}
