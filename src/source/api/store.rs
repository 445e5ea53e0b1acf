//! The UndeltaStore: single changes go in, the whole listing comes out, each time.
//!
//! Client-go's (`tools/cache/undelta_store.go`) copies its whole list for each
//! push; here the listing is a persistent map, and a push costs O(log n).
//!
//! A listing that is being collected edits the same builder, and nothing is
//! pushed before it is complete; so one that breaks off in the middle has done
//! no harm: the next one decides anew what there is.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use tracing::{debug, info, warn};

use super::kept::Kept;
use crate::{
    clock,
    mux::SourceChannel,
    pod::{Listing, ListingBuilder, MIRROR, NodeName, Origin, PodKey, Prepared, RejectionReason, SourceName},
    source::last_good::LastGood,
};

/// Where an object is filed whose name cannot be read.
const NAMELESS: &str = "an object whose name cannot be read";

/// An object of the server.
#[derive(Debug)]
pub(super) enum Object {
    /// A pod.
    Pod(Box<Prepared>),
    /// Something that should be one and is not.
    Bad { key: Option<PodKey>, why: String },
}

/// See the [module](self).
pub(super) struct UndeltaStore {
    node: NodeName,
    channel: SourceChannel,
    builder: ListingBuilder,
    good: LastGood,
    pushed: Option<Listing>,
    /// What the listing that is being collected has named so far.
    named: HashSet<Origin>,
    /// Whether it has an object that could be any pod.
    has_nameless: bool,
    /// Whose pods changed since the last push.
    changed: BTreeSet<Origin>,
    mirrors: HashSet<Origin>,
}

impl UndeltaStore {
    pub(super) fn new(node: NodeName, channel: SourceChannel) -> Self {
        Self {
            good: LastGood::none(SourceName::Api, node.clone()),
            node,
            channel,
            builder: ListingBuilder::new(SourceName::Api),
            pushed: None,
            named: HashSet::new(),
            has_nameless: false,
            changed: BTreeSet::new(),
            mirrors: HashSet::new(),
        }
    }

    /// Pushes what was good in an earlier run, and keeps what is good from now on.
    pub(super) fn restore(&mut self, mut good: LastGood) -> usize {
        for (origin, pods) in good.restored() {
            self.builder.put(&origin, pods, clock::now());
        }
        let listing = self.builder.restored_listing();
        let pods = listing.len();
        self.channel.publish(listing.clone());
        self.pushed = Some(listing);
        self.good = good;
        pods
    }

    /// Keeps what is good from now on, and has nothing to begin with.
    pub(super) fn keep(&mut self, good: LastGood) {
        self.good = good;
    }

    /// How many pods the listing has.
    pub(super) fn len(&self) -> usize {
        self.pushed.as_ref().map_or(0, Listing::len)
    }

    /// How many mirror pods are withheld.
    pub(super) fn mirrors(&self) -> usize {
        self.mirrors.len()
    }

    /// Begins to collect a listing.
    pub(super) fn begin(&mut self) {
        self.named.clear();
        self.has_nameless = false;
    }

    /// Takes an object of the listing that is being collected. Pushes nothing.
    pub(super) fn collect(&mut self, object: Object) {
        let named = match &object {
            Object::Pod(pod) => Some(origin(pod.key())),
            Object::Bad { key, .. } => key.as_ref().map(origin),
        };
        match named {
            Some(origin) => drop(self.named.insert(origin)),
            None => self.has_nameless = true,
        }
        self.put(object);
    }

    /// Takes an object out of the listing that is being collected: it was
    /// deleted meanwhile.
    pub(super) fn uncollect(&mut self, key: &PodKey) {
        let origin = origin(key);
        self.named.remove(&origin);
        self.remove(&origin);
    }

    /// What was collected is what there is now.
    pub(super) async fn replace(&mut self, kept: Option<&Kept>) {
        let gone: Vec<Origin> =
            self.builder.origins().filter(|origin| !self.named.contains(*origin)).cloned().collect();
        for origin in gone {
            // An object whose name cannot be read might be this very pod.
            if !self.has_nameless || self.builder.pods_of(&origin) == 0 && origin.as_str() != NAMELESS {
                self.remove(&origin);
            }
        }
        self.mirrors.retain(|origin| self.named.contains(origin));
        self.named = HashSet::new();
        self.push(kept).await;
    }

    /// A pod is there, or is another now.
    pub(super) async fn apply(&mut self, object: Object, kept: Option<&Kept>) {
        if self.put(object) {
            self.push(kept).await;
        }
    }

    /// A pod is gone.
    pub(super) async fn delete(&mut self, key: &PodKey, kept: Option<&Kept>) {
        self.mirrors.remove(&origin(key));
        if self.remove(&origin(key)) {
            self.push(kept).await;
        }
    }

    /// Returns whether anything changed.
    fn put(&mut self, object: Object) -> bool {
        let (key, why) = match object {
            Object::Pod(pod) => match self.objection(&pod) {
                None => return self.put_pod(*pod),
                Some(why) => (Some(pod.key().clone()), why),
            },
            Object::Bad { key, why } => (key, why),
        };
        let origin = key.as_ref().map_or_else(|| Origin::from(NAMELESS), origin);
        let news = self.builder.reject(&origin, RejectionReason::Unreadable(why.as_str().into()));
        if news {
            let kept = self.builder.pods_of(&origin) > 0;
            warn!(source = "api", pod = %origin, kept, error = %why, "an object of the API server was refused");
        }
        news
    }

    fn put_pod(&mut self, pod: Prepared) -> bool {
        let origin = origin(pod.key());
        if pod.annotation(MIRROR).is_some() {
            if self.mirrors.insert(origin.clone()) {
                debug!(source = "api", pod = %origin, "a mirror pod is withheld: it reflects a pod of another source");
            }
            return self.remove(&origin);
        }
        self.mirrors.remove(&origin);
        let was_refused = self.builder.rejection(&origin).is_some();
        let changed = self.builder.put(&origin, vec![pod], clock::now());
        if was_refused {
            info!(source = "api", pod = %origin, "recovered: the pod can be read again");
        }
        if changed {
            self.changed.insert(origin);
        }
        changed
    }

    /// Why a pod is not this node's, if it is not: then the server did not do
    /// what it was asked for.
    fn objection(&self, pod: &Prepared) -> Option<String> {
        let node =
            pod.object().get("spec").and_then(|spec| spec.get("nodeName")?.as_str()).unwrap_or_default();
        (node != self.node.as_str()).then(|| {
            format!(
                "spec.nodeName is {node:?}, and pods of {:?} were asked for; is this an API server?",
                self.node.as_str()
            )
        })
    }

    fn remove(&mut self, origin: &Origin) -> bool {
        let removed = self.builder.remove(origin);
        if removed {
            self.changed.insert(origin.clone());
        }
        removed
    }

    async fn push(&mut self, kept: Option<&Kept>) {
        for origin in std::mem::take(&mut self.changed) {
            self.good.put(&origin, self.builder.found(&origin).to_vec());
        }
        self.note(kept);
        // It is on its way to the disk before anybody hears of it.
        self.good.begin().await;
        let listing = self.builder.listing();
        self.tell_duplicates(&listing);
        self.channel.publish(listing.clone());
        self.pushed = Some(listing);
    }

    /// Notes what the listing is, for the next start.
    pub(super) fn note(&mut self, kept: Option<&Kept>) {
        if let Some(kept) = kept {
            self.good.set_details(kept.about());
        }
    }

    /// Why the listing cannot be kept for the next start, if it cannot.
    pub(super) fn trouble(&self) -> Option<Arc<str>> {
        self.good.error()
    }

    /// Writes some of what is to be kept. Cancel-safe; waits while there is nothing.
    pub(super) async fn write(&mut self) {
        self.good.write().await;
    }

    /// Ends the source for the mux, and writes the rest.
    pub(super) async fn finish(self) {
        let Self { channel, good, .. } = self;
        // Nobody waits for what is written last.
        drop(channel);
        good.finish().await;
    }

    fn tell_duplicates(&self, listing: &Listing) {
        let (refused, recovered) = listing.duplicates_since(self.pushed.as_ref());
        for rejection in refused {
            warn!(source = "api", pod = %rejection.origin, error = %rejection.reason, "a pod was refused");
        }
        for rejection in recovered {
            info!(source = "api", pod = %rejection.origin, "recovered: no other pod stands in its way");
        }
    }
}

fn origin(key: &PodKey) -> Origin {
    Origin::from(key.as_str())
}
