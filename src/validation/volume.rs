//! A pod's volumes: their names, and that each has one source.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    errors::Errors,
    fields::{Object, list, object, objects, text},
    projected, storage, syntax,
};
use crate::pod::{FieldPath, quoted};

/// The volumes that containers can have: those with nothing wrong.
#[derive(Debug, Default)]
pub(super) struct Volumes<'v>(BTreeMap<&'v str, &'v Object>);

impl Volumes<'_> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether a volume can be a block device.
    pub(super) fn is_claim(&self, name: &str) -> bool {
        let is_claim = |volume: &Object| {
            volume.contains_key("persistentVolumeClaim") || volume.contains_key("ephemeral")
        };
        self.0.get(name).is_some_and(|volume| is_claim(volume))
    }
}

/// What judges a source, at its path.
type Check = fn(&Object, &FieldPath<'_>, &mut Errors<'_>);

/// The kinds of sources in the order in which they are taken: of two in one
/// volume the later one is too many. With it the name by which the API calls the
/// second one.
const KINDS: [(&str, &str, Check); 30] = [
    ("emptyDir", "emptyDir", storage::empty_dir),
    ("hostPath", "hostPath", storage::host_path),
    ("gitRepo", "gitRepo", storage::git_repo),
    ("gcePersistentDisk", "gcePersistentDisk", storage::gce_disk),
    ("awsElasticBlockStore", "awsElasticBlockStore", storage::aws_disk),
    ("secret", "secret", storage::secret),
    ("nfs", "nfs", storage::nfs),
    ("iscsi", "iscsi", storage::iscsi),
    ("glusterfs", "glusterfs", storage::glusterfs),
    ("flocker", "flocker", storage::flocker),
    ("persistentVolumeClaim", "persistentVolumeClaim", storage::claim),
    ("rbd", "rbd", storage::rbd),
    ("cinder", "cinder", storage::cinder),
    ("cephfs", "cephFS", storage::cephfs),
    ("quobyte", "quobyte", storage::quobyte),
    ("downwardAPI", "downwarAPI", projected::downward_api),
    ("fc", "fc", storage::fibre_channel),
    ("flexVolume", "flexVolume", storage::flex_volume),
    ("configMap", "configMap", storage::config_map),
    ("azureFile", "azureFile", storage::azure_file),
    ("vsphereVolume", "vsphereVolume", storage::vsphere),
    ("photonPersistentDisk", "photonPersistentDisk", storage::photon_disk),
    ("portworxVolume", "portworxVolume", storage::portworx),
    ("azureDisk", "azureDisk", storage::azure_disk),
    ("storageos", "storageos", storage::storageos),
    ("projected", "projected", projected::validate),
    ("scaleIO", "scaleIO", storage::scale_io),
    ("csi", "csi", storage::csi),
    ("ephemeral", "ephemeral", super::claim::ephemeral),
    ("image", "image", storage::image),
];

/// Judges the volumes of a pod of a name, and gives those that are good.
pub(super) fn validate<'v>(
    spec: &'v Object,
    pod_name: &str,
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) -> Volumes<'v> {
    let mut good = BTreeMap::new();
    let has_account = !text(spec, "serviceAccountName").is_empty();
    let claims = LazyCell::new(|| claims_to_come(spec, pod_name));
    objects(path, spec, "volumes", |path, volume| {
        let (count, name, name_path) = (errors.count(), text(volume, "name"), path.field("name"));
        let kind = source(volume, pod_name, path, errors);
        if name.is_empty() {
            errors.required(&name_path, "");
        } else {
            errors.check(&name_path, name, syntax::label(name));
        }
        if good.contains_key(name) {
            errors.duplicate(&name_path, name);
        }
        if errors.count() == count {
            good.insert(name, volume);
        }
        if kind == Kind::Other {
            beyond_the_host(volume, path, has_account, &claims, errors);
        }
    });
    Volumes(good)
}

/// Whether a volume is one of the two that most pods have, about which there is no more to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    OnTheHost,
    Other,
}

/// Judges what of a volume depends on the rest of the pod; no fault of the source itself.
fn beyond_the_host(
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

/// The claims that the pod's own ephemeral volumes will make.
fn claims_to_come(spec: &Object, pod_name: &str) -> BTreeSet<String> {
    let volumes = list(spec, "volumes").iter().filter_map(|volume| volume.as_object());
    let ephemeral = volumes.filter(|volume| volume.contains_key("ephemeral"));
    ephemeral.map(|volume| format!("{pod_name}-{}", text(volume, "name"))).collect()
}

fn source(volume: &Object, pod_name: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) -> Kind {
    let kind_of = |field: &str| KINDS.iter().position(|(kind, ..)| *kind == field);
    let given = || volume.iter().filter_map(|(field, source)| Some((kind_of(field)?, source.as_object()?)));
    let mut sources = given();
    let (first, source) = match (sources.next(), sources.next()) {
        (None, _) => {
            errors.required(path, "must specify a volume type");
            return Kind::Other;
        }
        (Some(only), None) => only,
        (Some(_), Some(_)) => too_many(given(), path, errors),
    };
    let (kind, _, check) = KINDS[first];
    check(source, &path.field(kind), errors);
    if matches!(kind, "emptyDir" | "hostPath") && volume.len() == 2 {
        return Kind::OnTheHost;
    }
    let name = text(volume, "name");
    if let Some(iscsi) = object(volume, "iscsi")
        && iscsi.contains_key("initiatorName")
        && name.len() + 1 + text(iscsi, "targetPortal").len() > storage::MAX_ISCSI_NAME
    {
        let why =
            "with iscsi.initiatorName the name and iscsi.targetPortal have 63 characters together at most";
        errors.invalid(&path.field("name"), name, why);
    }
    if kind == "ephemeral" && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        if let Err(why) = syntax::subdomain(&claim) {
            errors.invalid(
                &path.field("name"),
                name,
                &format!("the claim {} would be made: {why}", quoted(&claim)),
            );
        }
    }
    Kind::Other
}

/// Refuses all sources of a volume but the first in their order, and gives that.
fn too_many<'v>(
    given: impl Iterator<Item = (usize, &'v Object)>,
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) -> (usize, &'v Object) {
    let mut given: Vec<_> = given.collect();
    given.sort_by_key(|(index, _)| *index);
    for (index, _) in &given[1..] {
        let (kind, name, _) = KINDS[*index];
        let path = path.field(kind).unnamed();
        errors.forbidden(&path.named(name), "may not specify more than 1 volume type");
    }
    given[0]
}
