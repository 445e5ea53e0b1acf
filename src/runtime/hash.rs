//! The hash by which a runtime decides whether what runs has to be restarted.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::pod::{Digest, Pod};

/// The fields of a spec that say where and before which others a pod is placed, and how long it may run, and the
/// containers that `kubectl debug` adds to a running pod. No other container is different because of them.
const NOT_USED: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "ephemeralContainers",
    "nodeSelector",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "schedulerName",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
];

/// The annotations for the profiles of `AppArmor`, from before there was a field.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The parts of a pod that are hashed.
#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    spec: BTreeMap<Cow<'a, str>, &'a RawValue>,
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    annotations: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

/// The hash of the fields that a runtime uses: 32 hexadecimal digits.
///
/// These are the fields of the spec but `activeDeadlineSeconds`, `affinity`, `ephemeralContainers`, `nodeSelector`,
/// `preemptionPolicy`, `priority`, `priorityClassName`, `schedulerName`, `schedulingGates`, `tolerations` and
/// `topologySpreadConstraints`, and the annotations for `AppArmor`. An edit of these fields, of labels, other annotations
/// or any other metadata, and a new status restart nothing, whatever source the pod is of. A new field of the API is
/// included.
///
/// O(length of the pod's text).
pub fn runtime_hash(pod: &Pod) -> String {
    let Ok(parts) = serde_json::from_slice::<Parts<'_>>(pod.text()) else {
        return Digest::of(&[pod.text()]).to_string();
    };
    let profiles = parts.metadata.annotations.iter().filter(|(name, _)| name.starts_with(APP_ARMOR));
    let used = parts.spec.iter().filter(|(name, _)| !NOT_USED.contains(&name.as_ref())).chain(profiles);
    let texts: Vec<&[u8]> =
        used.flat_map(|(name, value)| [name.as_bytes(), value.get().as_bytes()]).collect();
    Digest::of(&texts).to_string()
}
