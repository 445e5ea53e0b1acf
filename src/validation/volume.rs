//! The volumes of a pod: each has a unique name and one source.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    at::At,
    claim,
    context::Volumes,
    fields::{Object, object, objects, text},
    projected, storage, syntax,
};
use crate::pod::quoted;

/// Validates a source at its path, besides its required fields.
type SourceCheck = fn(&Object, &At<'_>);

const NO_MORE: SourceCheck = |_, _| {};

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

/// Validates the volumes of a pod with this name, or those of a template without one, and returns the valid ones.
pub(super) fn validate<'v>(spec: &'v Object, pod_name: Option<&str>, at: &At<'_>) -> Volumes<'v> {
    let mut valid = BTreeMap::new();
    // The pods of a template get an account when an API server creates them.
    let has_account = pod_name.is_none() || !text(spec, "serviceAccountName").is_empty();
    let claims = pod_name.map(|pod| claims_to_come(spec, pod)).unwrap_or_default();
    at.objects(spec, "volumes", |at, volume| {
        let (count, name, name_path) = (at.errors(), text(volume, "name"), at.field("name"));
        source(volume, pod_name, at);
        at.require_text(volume, "name", syntax::label);
        if valid.contains_key(name) {
            name_path.duplicate(name);
        }
        if at.errors() == count {
            valid.insert(name, volume);
        }
        references(volume, at, has_account, &claims);
    });
    valid
}

/// Validates what depends on the rest of the pod. These errors do not make the volume invalid.
fn references(volume: &Object, at: &At<'_>, has_account: bool, claims: &BTreeSet<String>) {
    let claim = object(volume, "persistentVolumeClaim").map(|claim| text(claim, "claimName"));
    if let Some(claim) = claim.filter(|claim| claims.contains(*claim)) {
        let at = at.field("persistentVolumeClaim");
        at.field("claimName").invalid(claim, "an ephemeral volume of this pod makes this claim");
    }
    at.object(volume, "projected", |at, projected| {
        at.objects(projected, "sources", |at, source| {
            if !has_account && source.contains_key("serviceAccountToken") {
                let why = "must not be specified when serviceAccountName is not set";
                at.field("serviceAccountToken").forbidden(why);
            }
        });
    });
}

/// The names of the claims for the pod's ephemeral volumes.
fn claims_to_come(spec: &Object, pod_name: &str) -> BTreeSet<String> {
    let ephemeral = objects(spec, "volumes").filter(|volume| volume.contains_key("ephemeral"));
    ephemeral.map(|volume| format!("{pod_name}-{}", text(volume, "name"))).collect()
}

fn source(volume: &Object, pod_name: Option<&str>, at: &At<'_>) {
    let kind_of = |field: &str| KINDS.iter().position(|(kind, ..)| *kind == field);
    let given = || volume.iter().filter_map(|(field, source)| Some((kind_of(field)?, source.as_object()?)));
    let Some((first, source)) = given().min_by_key(|(index, _)| *index) else {
        return at.required("must specify a volume type");
    };
    for (index, _) in given().filter(|(index, _)| *index != first) {
        let kind = KINDS[index].0;
        // The API's own spelling.
        let name = match kind {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            kind => kind,
        };
        let at = at.field(kind).unnamed();
        at.named(name).forbidden("may not specify more than 1 volume type");
    }
    let (kind, required, check) = KINDS[first];
    storage::require(source, required, &at.field(kind));
    check(source, &at.field(kind));
    let name = text(volume, "name");
    if let Some(iscsi) = object(volume, "iscsi")
        && iscsi.contains_key("initiatorName")
        && name.len() + 1 + text(iscsi, "targetPortal").len() > storage::MAX_ISCSI_NAME
    {
        let why = "with iscsi.initiatorName, the name and iscsi.targetPortal must have at most 63 characters together";
        at.field("name").invalid(name, why);
    }
    if let Some(pod) = pod_name
        && kind == "ephemeral"
        && !name.is_empty()
    {
        let claim = format!("{pod}-{name}");
        if let Err(why) = syntax::subdomain(&claim) {
            let why = format!("it gives the claim name {}: {why}", quoted(&claim));
            at.field("name").invalid(name, &why);
        }
    }
}
