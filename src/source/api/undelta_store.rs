//! The `UndeltaStore`: it applies single changes and publishes the whole listing after each.
//!
//! Client-go's (`tools/cache/undelta_store.go`) copies its whole list each time; here the
//! listing is a persistent map, and a change costs O(log n).
//!
//! A listing that is being collected changes the same builder, but nothing is published
//! before it is complete. One that breaks off needs no undo: the next listing decides again
//! which pods exist.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use serde_json::Value;
use tracing::{debug, info, warn};

use super::watch_event::Object;
use crate::{
    pod::{
        InvalidManifest, ListingBuilder, MIRROR, NodeName, Origin, PodKey, Prepared, Problem,
        RejectionReason, SecurityLevel, SourceName, Stage,
    },
    source::{
        control::{Conflicts, Output},
        last_good::LastGood,
    },
    validation::{self, pod_security},
};

/// The origin of all objects whose name cannot be read.
const NAMELESS: &str = "an object whose name cannot be read";

/// The pods of the node, as the API server has them.
pub(super) struct UndeltaStore {
    node: NodeName,
    pub(super) output: Output,
    builder: ListingBuilder,
    conflicts: Conflicts,
    /// What the listing that is being collected contains so far.
    pub(super) collected: HashSet<Origin>,
    /// The origins whose pods changed since the last publication.
    changed: BTreeSet<Origin>,
    /// The mirror pods, which are withheld.
    pub(super) mirrors: HashSet<Origin>,
    /// The level that the pods of later events may not exceed.
    pub(super) level: SecurityLevel,
}

impl UndeltaStore {
    pub(super) fn new(node: NodeName, output: Output, level: SecurityLevel) -> Self {
        Self {
            node,
            output,
            builder: ListingBuilder::new(SourceName::Api),
            conflicts: Conflicts::default(),
            collected: HashSet::new(),
            changed: BTreeSet::new(),
            mirrors: HashSet::new(),
            level,
        }
    }

    /// Publishes the last-known-good listing, stores changes there from now on, and returns
    /// the number of pods.
    pub(super) fn restore(&mut self, last_good: LastGood) -> usize {
        self.output.restore(last_good, |origin, pods| {
            self.builder.put_published(origin, pods);
            true
        });
        self.output.publish(self.builder.restored_listing());
        self.output.pods()
    }

    /// Adds an object to the listing that is being collected.
    pub(super) fn collect(&mut self, object: Object) {
        self.collected.insert(origin_of(&object));
        self.put(object);
    }

    /// Removes a deleted pod from the listing that is being collected.
    pub(super) fn uncollect(&mut self, key: &PodKey) {
        let origin = origin(key);
        self.collected.remove(&origin);
        self.remove(&origin);
    }

    /// Publishes the collected listing in place of the last one.
    pub(super) async fn replace(&mut self, details: Option<Value>) {
        let gone: Vec<Origin> =
            self.builder.origins().filter(|origin| !self.collected.contains(*origin)).cloned().collect();
        let has_nameless = self.collected.contains(&Origin::from(NAMELESS));
        for origin in gone {
            // An object whose name cannot be read may be this very pod.
            if !has_nameless || self.builder.pods_of(&origin) == 0 {
                self.remove(&origin);
            }
        }
        self.mirrors.retain(|origin| self.collected.contains(origin));
        self.collected = HashSet::new();
        self.publish(details).await;
    }

    /// Applies an added or changed object.
    pub(super) async fn apply(&mut self, object: Object, details: Option<Value>) {
        if self.put(object) {
            self.publish(details).await;
        }
    }

    /// Applies a deletion.
    pub(super) async fn delete(&mut self, key: &PodKey, details: Option<Value>) {
        self.mirrors.remove(&origin(key));
        if self.remove(&origin(key)) {
            self.publish(details).await;
        }
    }

    /// Returns whether the listing changed.
    fn put(&mut self, object: Object) -> bool {
        let origin = origin_of(&object);
        let is_known = self.builder.found(&origin).iter().any(|known| &**known.uid() == object.uid());
        let is_other = !is_known && !object.uid().is_empty();
        let unreadable = |why: String| RejectionReason::Unreadable(why.into());
        let reason = match object {
            Object::Pod(pod) => {
                match self.wrong_node(&pod).map(unreadable).or_else(|| self.forbidden(&pod, is_known)) {
                    None => return self.put_pod(origin, *pod),
                    Some(reason) => reason,
                }
            }
            Object::Undecodable { why, .. } => unreadable(why),
        };
        // A pod of this name with another UID is no earlier version, and no longer exists.
        if is_other && self.builder.pods_of(&origin) > 0 {
            self.remove(&origin);
        }
        let is_new = self.builder.reject(&origin, reason.clone());
        if is_new {
            let kept = self.builder.pods_of(&origin) > 0;
            warn!(source = "api", pod = %origin, kept, error = %reason, "pod rejected");
        }
        is_new
    }

    fn put_pod(&mut self, origin: Origin, pod: Prepared) -> bool {
        if pod.annotation(MIRROR).is_some() {
            if self.mirrors.insert(origin.clone()) {
                debug!(source = "api", pod = %origin, "mirror pod withheld");
            }
            return self.remove(&origin);
        }
        self.mirrors.remove(&origin);
        let was_rejected = self.builder.rejection(&origin).is_some();
        let changed = self.builder.put(&origin, vec![pod], self.output.host.clock.now());
        if was_rejected {
            info!(source = "api", pod = %origin, "pod recovered");
        }
        if changed {
            self.changed.insert(origin);
        }
        changed
    }

    /// Why a pod is not one of this node, if it is not: the server ignored the selector.
    fn wrong_node(&self, pod: &Prepared) -> Option<String> {
        let node =
            pod.object().get("spec").and_then(|spec| spec.get("nodeName")?.as_str()).unwrap_or_default();
        (node != self.node.as_str()).then(|| {
            format!(
                "spec.nodeName is {node:?}, but the pods of {:?} were requested (is this an API server?)",
                self.node.as_str()
            )
        })
    }

    /// Why a pod has an invalid name or exceeds the level, if it does. The end of a pod that was accepted before, its
    /// deletion or its last phase, is always published, so that one that runs since the level was another is stopped.
    /// Mirror pods are withheld.
    fn forbidden(&self, pod: &Prepared, is_known: bool) -> Option<RejectionReason> {
        let phase = pod.object().get("status").and_then(|status| status.get("phase")?.as_str());
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        let is_end = is_known && (has_ended || pod.metadata("deletionTimestamp").is_some());
        if is_end || pod.annotation(MIRROR).is_some() {
            return None;
        }
        let invalid = validation::invalid_name(pod.object()).map(|problem| (Stage::Validate, problem));
        let (stage, problem) = invalid.or_else(|| {
            let violation = pod_security::violation(pod.object(), self.level)?;
            Some((Stage::Security, Problem::error(violation)))
        })?;
        Some(RejectionReason::Invalid(Arc::new(InvalidManifest { stage, problems: vec![problem] })))
    }

    fn remove(&mut self, origin: &Origin) -> bool {
        let removed = self.builder.remove(origin);
        if removed {
            self.changed.insert(origin.clone());
        }
        removed
    }

    async fn publish(&mut self, details: Option<Value>) {
        for origin in std::mem::take(&mut self.changed) {
            self.output.last_good.put(&origin, self.builder.found(&origin));
        }
        if let Some(details) = details {
            self.output.last_good.set_details(details);
        }
        // The write begins before any sink can receive the listing.
        self.output.last_good.begin().await;
        let listing = self.builder.listing();
        self.conflicts.log(&listing);
        self.output.publish(listing);
    }
}

fn origin_of(object: &Object) -> Origin {
    object.key().map_or_else(|| Origin::from(NAMELESS), origin)
}

fn origin(key: &PodKey) -> Origin {
    Origin::from(key.as_str())
}
