//! What the checks of a container need of the pod around it.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use super::fields::{Object, objects, text};

/// Volumes by name.
pub(super) type Volumes<'v> = BTreeMap<&'v str, &'v Object>;

/// The pod around a container.
pub(super) struct PodContext<'v> {
    pub(super) spec: &'v Object,
    /// Whether this is the template of pods and no pod. Some of the API's rules are for pods only.
    pub(super) is_template: bool,
    /// The valid volumes.
    pub(super) volumes: Volumes<'v>,
    /// The names of the pod's resource claims.
    pub(super) claims: BTreeSet<&'v str>,
    /// The termination grace period in seconds.
    pub(super) grace: Option<i64>,
    /// Whether the pod's restartPolicy is Never.
    pub(super) never_restarts: bool,
    /// Whether the pod uses the user namespace of the host.
    pub(super) host_users: bool,
    /// The name of the pod's operating system, if given.
    pub(super) os: Option<&'v str>,
    /// All volumes, valid or not; made on first use.
    pub(super) volumes_by_name: OnceCell<Volumes<'v>>,
}

impl<'v> PodContext<'v> {
    /// The last volume with a name, valid or not.
    pub(super) fn volume(&self, name: &str) -> Option<&'v Object> {
        let by_name = || objects(self.spec, "volumes").map(|volume| (text(volume, "name"), volume)).collect();
        self.volumes_by_name.get_or_init(by_name).get(name).copied()
    }
}
