//! The last-known-good pods of a source, saved in the database for the next start.
//!
//! For a source whose input may be missing or invalid when it starts:
//!
//! 1. [`LastGood::new`] takes the source's rows out of what was stored. Rows that were
//!    prepared for another node are not restored: their pods become REMOVE and ADD.
//! 2. [`LastGood::restored`] yields the rest, as it was published. The source puts it into its
//!    [`ListingBuilder`](crate::pod::ListingBuilder) and publishes the `restored_listing()`
//!    before it reads its input. The input then edits the same builder, so that unchanged
//!    pods are no change. The source [forgets](LastGood::forget) origins that it no longer
//!    has.
//! 3. When the pods of an origin change, the source [puts](LastGood::put) them, or forgets
//!    the origin. A rejection changes nothing here.
//! 4. Before the source publishes the listing it [begins](LastGood::begin) to write. Its
//!    loop polls [`LastGood::write`]. When it stops, it [finishes](LastGood::finish).
//!
//! Only changes are written, in small commits, one at a time, so that other writers never
//! wait for more than one of them. A source never waits for the disk. A failed write is
//! logged once and retried with the next change or after some seconds; meanwhile
//! [`LastGood::error`] returns its error.
//!
//! If the state cannot be opened at the start, nothing is restored. Changes are saved
//! [later](LastGood::later), when it is open.
//!
//! If the origins of a source depend on each other (the pods of an API server's listing),
//! the source makes it [atomic](LastGood::atomic): all changes before a commit are one
//! commit, so that the restored pods are of one moment. The [details](LastGood::set_details)
//! of the listing (its server and its time) are written in the same commit.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::{pending, ready},
    iter,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::StateWatch;
use crate::{
    db::{Change, Db, DbError, Stored, Table, Value},
    error_chain::chain,
    host::Host,
    outage::Outage,
    pod::{NodeName, Origin, Pod, Prepared, SEEN, SourceName},
};

/// The size of a commit: some milliseconds of work.
const MAX_CHUNK_BYTES: usize = 64 << 10;
const MAX_CHUNK_ROWS: usize = 64;
/// The delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(5);
/// A further thread pays off from this many rows on: about 2 ms of work.
const WORTH_A_THREAD: usize = 32;
/// The most rows that are decoded at once. A decoded row is several times as large as its
/// text, and most of it is frozen again before the next rows are decoded.
const MAX_ROWS_DECODED: usize = 256;

/// The origin in the key of the row with the details. No pod has it.
const DETAILS: &str = "";

/// The last-known-good pods of one source, by origin. See the [module](self).
pub struct LastGood {
    pub(super) host: Host,
    source: SourceName,
    node: NodeName,
    /// `None` if nothing is saved, or not yet.
    db: Option<Db>,
    /// The state, if it was not open at the start. Changes wait for it.
    state: Option<StateWatch>,
    /// Whether the source has a listing. Until then the rows of a state that was opened late stay.
    has_listing: bool,
    /// Whether all changes go into one commit.
    atomic: bool,
    /// The rows of an earlier run that are not decoded yet.
    rows: VecDeque<(String, Vec<u8>)>,
    details: Option<Json>,
    /// The keys of the rows that may be in the database.
    stored: BTreeSet<String>,
    /// What must be written, by the key of the row. `None` if the row is removed.
    changes: BTreeMap<String, Option<Value>>,
    writing: Option<Writing>,
    retry_at: Option<Instant>,
    outage: Outage,
}

/// A commit in progress.
struct Writing {
    /// By key.
    chunk: Vec<Change>,
    commit: Pin<Box<dyn Future<Output = Result<(), DbError>> + Send>>,
}

/// A stored row: the pods of an origin, or the details.
#[derive(Deserialize)]
struct Row {
    node: String,
    #[serde(default)]
    pods: Vec<Json>,
    about: Option<Json>,
}

impl LastGood {
    /// Saves and restores nothing.
    pub fn none(source: SourceName, node: NodeName) -> Self {
        Self {
            host: Host::default(),
            source,
            node,
            db: None,
            state: None,
            has_listing: false,
            atomic: false,
            rows: VecDeque::new(),
            details: None,
            stored: BTreeSet::new(),
            changes: BTreeMap::new(),
            writing: None,
            retry_at: None,
            outage: Outage::default(),
        }
    }

    /// Takes the rows of a source out of `stored`, and saves changes in the database.
    pub fn new(source: SourceName, node: NodeName, db: Db, stored: &mut Stored) -> Self {
        let mut new = Self { db: Some(db), ..Self::none(source, node) };
        let details = new.key(DETAILS);
        new.rows = new.take_rows(stored);
        new.stored = new.rows.iter().map(|(key, _)| key.clone()).collect();
        if new.rows.front().is_some_and(|(key, _)| *key == details)
            && let Some((key, row)) = new.rows.pop_front()
        {
            new.details = parse(&row, &new.node).and_then(|row| row.about);
            if new.details.is_none() {
                new.set(key, None);
            }
        }
        new
    }

    /// Restores nothing, and saves changes once the state is open.
    #[must_use]
    pub fn later(mut self, state: StateWatch) -> Self {
        self.state = Some(state);
        self
    }

    fn take_rows(&self, stored: &mut Stored) -> VecDeque<(String, Vec<u8>)> {
        let prefix = self.key("");
        let table = stored.tables.entry(Table::LastGood).or_default();
        table.extract_if(prefix.clone().., |key, _| key.starts_with(&prefix)).collect()
    }

    /// Puts all changes before a commit into that commit. The database then always contains
    /// the state before some commit, never a part of it.
    #[must_use]
    pub fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }

    /// The pods of the earlier run by origin, with their `kubernetes.io/config.seen`. Only the first call yields them.
    ///
    /// They are decoded on several threads, some rows at a time: while 5,000 pods are
    /// decoded and not frozen yet they need much memory.
    pub fn restored(&mut self) -> impl Iterator<Item = (Origin, Vec<Arc<Pod>>)> {
        iter::from_fn(|| (!self.rows.is_empty()).then(|| self.decode_some())).flatten()
    }

    /// The details of the earlier run. Only the first call returns them.
    pub fn restored_details(&mut self) -> Option<Json> {
        self.details.take()
    }

    /// Sets the pods of an origin, which must not be empty. Their texts are not copied.
    pub fn put(&mut self, origin: &Origin, pods: &[Arc<Pod>]) {
        if pods.is_empty() {
            return self.forget(origin);
        }
        let node = json!(self.node.as_str());
        let mut row: Vec<Arc<[u8]>> = vec![format!("{{\"node\":{node},\"pods\":[").into_bytes().into()];
        for (index, pod) in pods.iter().enumerate() {
            row.extend((index > 0).then(|| Arc::from(*b",")));
            row.push(pod.text().clone());
        }
        row.push(Arc::from(*b"]}"));
        self.set(self.key(origin.as_str()), Some(row.into()));
    }

    /// Removes an origin.
    pub fn forget(&mut self, origin: &Origin) {
        self.set(self.key(origin.as_str()), None);
    }

    /// Sets the details of the listing. They are restored even if it has no pods. Unless this
    /// is [atomic](Self::atomic), they may be written before the pods.
    pub fn set_details(&mut self, details: Json) {
        let mut row = json!({"node": self.node.as_str()});
        row["about"] = details;
        self.set(self.key(DETAILS), Some(row.to_string().into_bytes().into()));
    }

    /// Removes everything, also what is not restored yet.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.details = None;
        let written = self.writing.iter().flat_map(|writing| &writing.chunk).map(|change| &change.key);
        let keys: Vec<_> = self.stored.iter().chain(self.changes.keys()).chain(written).cloned().collect();
        for key in keys {
            self.set(key, None);
        }
    }

    /// Removes everything, also from a state that opens later, until `stop` is cancelled.
    pub async fn erase(mut self, stop: CancellationToken) {
        self.clear();
        self.has_listing = true;
        let writes = async {
            loop {
                self.write().await;
            }
        };
        stop.run_until_cancelled(writes).await;
        self.finish().await;
    }

    fn set(&mut self, key: String, value: Option<Value>) {
        if self.db.is_none() && self.state.is_none() {
            return;
        }
        self.retry_at = None;
        let is_written = |writing: &Writing| writing.chunk.binary_search_by(|at| at.key.cmp(&key)).is_ok();
        if value.is_none() && !self.stored.contains(&key) && !self.writing.as_ref().is_some_and(is_written) {
            // There is no such row. When the state opens, those that are not put are removed.
            self.changes.remove(&key);
        } else {
            self.changes.insert(key, value);
        }
    }

    /// Decodes the next rows. Removes those of another node or an unknown format.
    fn decode_some(&mut self) -> Vec<(Origin, Vec<Arc<Pod>>)> {
        let (prefix, now) = (self.key("").len(), self.host.clock.now());
        let rows: Vec<_> = self.rows.drain(..self.rows.len().min(MAX_ROWS_DECODED)).collect();
        let decode = |(_, value): &(String, Vec<u8>)| decode(value, &self.node, self.source, now);
        let decoded = self.host.threads.map(&rows, WORTH_A_THREAD, decode);
        let mut restored = Vec::new();
        for ((key, _), pods) in rows.into_iter().zip(decoded) {
            match pods {
                Some(pods) if !pods.is_empty() => restored.push((Origin::from(&key[prefix..]), pods)),
                _ => self.set(key, None),
            }
        }
        restored
    }

    /// Why changes cannot be written, if there are any.
    pub fn error(&self) -> Option<Arc<str>> {
        self.outage.error().filter(|_| !self.changes.is_empty() || self.writing.is_some())
    }

    /// Starts to write changes if no write is in progress, and does not wait for its end.
    pub async fn begin(&mut self) {
        self.has_listing = true;
        tokio::select! {
            biased;
            () = self.write() => {}
            () = ready(()) => {}
        }
    }

    /// Writes some of the changes. Waits while there are none, or before a retry.
    /// Cancel-safe: the next call continues a write in progress.
    pub async fn write(&mut self) {
        self.open().await;
        if self.writing.is_none() {
            if let (Some(at), false) = (self.retry_at, self.changes.is_empty()) {
                sleep_until(at).await;
                self.retry_at = None;
            }
            self.writing = self.next_chunk();
        }
        let Some(writing) = &mut self.writing else { return pending().await };
        let written = writing.commit.as_mut().await;
        let chunk = self.writing.take().map(|writing| writing.chunk).unwrap_or_default();
        let (source, error) = (self.source.as_str(), written.as_ref().err().map(|error| chain(error)));
        let now = self.host.clock.now();
        self.outage.log(source, "saving last-known-good pods", error.as_deref(), now);
        let may_be_stored = matches!(written, Ok(()) | Err(DbError::Uncertain(_)));
        for Change { key, value, .. } in chunk {
            if value.is_some() && may_be_stored {
                self.stored.insert(key.clone());
            } else if written.is_ok() {
                self.stored.remove(&key);
            }
            if written.is_err() {
                // A change since then is newer.
                let newer = self.changes.remove(&key);
                self.set(key, newer.unwrap_or(value));
            }
        }
        self.retry_at = written.is_err().then(|| Instant::now() + RETRY);
    }

    /// Waits until the state is open and the source has a listing, which replaces the rows of the
    /// earlier run. Cancel-safe.
    async fn open(&mut self) {
        let Some(state) = &mut self.state else { return };
        if !self.has_listing {
            return pending().await;
        }
        let open = state.wait_for(Result::is_ok).await.ok().and_then(|state| state.clone().ok());
        self.state = None;
        let Some(open) = open else { return };
        self.db = Some(open.db.clone());
        for (key, _) in self.take_rows(&mut open.stored()) {
            self.stored.insert(key.clone());
            if !self.changes.contains_key(&key) {
                self.set(key, None);
            }
        }
    }

    /// Writes all changes, until a write fails. Writes none if the state is not open.
    pub async fn finish(mut self) {
        if self.db.is_none() {
            return;
        }
        self.retry_at = None;
        while self.writing.is_some() || (!self.changes.is_empty() && self.retry_at.is_none()) {
            self.write().await;
        }
    }

    fn next_chunk(&mut self) -> Option<Writing> {
        let db = self.db.clone()?;
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while self.atomic || (bytes < MAX_CHUNK_BYTES && chunk.len() < MAX_CHUNK_ROWS) {
            let Some((key, value)) = self.changes.pop_first() else { break };
            bytes += value.as_ref().map_or(0, Value::len);
            chunk.push(Change { table: Table::LastGood, key, value });
        }
        let changes = chunk.clone();
        let commit = Box::pin(async move { db.commit(changes).await });
        (!chunk.is_empty()).then_some(Writing { chunk, commit })
    }

    fn key(&self, origin: &str) -> String {
        format!("{}/{origin}", self.source)
    }
}

/// Parses a row. `None` if it is of another node or of an unknown format.
fn parse(value: &[u8], node: &NodeName) -> Option<Row> {
    serde_json::from_slice(value).ok().filter(|row: &Row| row.node == node.as_str())
}

/// Decodes the pods of a row as they were published.
fn decode(value: &[u8], node: &NodeName, source: SourceName, now: Timestamp) -> Option<Vec<Arc<Pod>>> {
    let freeze = |pod| {
        let pod = Prepared::from_value(pod).ok()?;
        let seen = pod.annotation(SEEN).and_then(|seen| seen.parse().ok()).unwrap_or(now);
        Some(Arc::new(pod.published_by(source, seen)))
    };
    parse(value, node)?.pods.into_iter().map(freeze).collect()
}
