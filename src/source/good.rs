//! Last good: what a source gave when all was well with it, kept over a restart.
//!
//! For a source that reads what may be missing or broken when it starts:
//!
//! 1. [`Good::new`] takes the source's rows out of what was stored. Rows that
//!    were prepared for another node are not restored: those pods come out as
//!    removed and added.
//! 2. [`Good::restored`] gives the rest. The source puts them into its
//!    [`ListingBuilder`](crate::pod::ListingBuilder) and pushes its
//!    `restored_listing()` at once, before it looks at the world. What it finds
//!    then edits the same builder, so what has not changed is no change. An
//!    origin that it does not want any more it [forgets](Good::forget).
//! 3. Whenever the builder says that an origin changed for good, the source
//!    [puts](Good::put) the origin's pods, or forgets it. A refusal changes
//!    nothing here: that is the point.
//! 4. Before it pushes the listing it [begins](Good::begin) to write; its loop
//!    has [`Good::write`] among the things that it waits for, and when it is
//!    stopped it [finishes](Good::finish).
//!
//! Only what changed is written, in small commits, one at a time: whoever
//! commits beside it never waits for more than one of them. A source never
//! waits for the disk. What cannot be written is said once, tried again with the
//! next change or after some seconds, and is in [`Good::trouble`] meanwhile.

use std::{
    collections::BTreeMap,
    fmt,
    future::{pending, ready},
    mem,
    num::NonZero,
    panic,
    pin::Pin,
    sync::Arc,
    thread::{ScopedJoinHandle, available_parallelism, scope},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::{
    causes::chain,
    db::{Change, Db, DbError, Stored, Table},
    pod::{NodeName, Origin, Pod, Prepared, SourceName},
};

/// How much goes into one commit: some milliseconds of work.
const MAX_CHUNK_BYTES: usize = 64 << 10;
const MAX_CHUNK_ROWS: usize = 64;
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How many threads read rows back at most: a node agent shares its node.
const MAX_THREADS: usize = 4;
/// A thread is worth its start from this many rows on (about 2 ms of work).
const WORTH_A_THREAD: usize = 32;

/// The pods of an origin; none if it is to be forgotten.
type Pods = Vec<Arc<Pod>>;

/// One source's last good, by origin. See the [module](self).
pub struct Good {
    source: SourceName,
    node: NodeName,
    /// `None` if nothing is kept.
    db: Option<Db>,
    restored: Vec<(Origin, Vec<Prepared>)>,
    /// What is to be written, by the key of its row.
    changes: BTreeMap<String, Pods>,
    writing: Option<Writing>,
    retry_at: Option<Instant>,
    trouble: Option<Arc<str>>,
}

/// A commit that is under way.
struct Writing {
    chunk: Vec<(String, Pods)>,
    commit: Pin<Box<dyn Future<Output = Result<(), DbError>> + Send>>,
}

/// A row, as it is stored.
#[derive(Deserialize)]
struct Row {
    node: String,
    pods: Vec<Value>,
}

impl Good {
    /// Keeps nothing.
    #[must_use]
    pub fn none(source: SourceName, node: NodeName) -> Self {
        Self {
            source,
            node,
            db: None,
            restored: Vec::new(),
            changes: BTreeMap::new(),
            writing: None,
            retry_at: None,
            trouble: None,
        }
    }

    /// What a source left in the database, which is taken out of `stored`, and
    /// the way to leave more. It reads the rows back on several cores.
    #[must_use]
    pub fn new(source: SourceName, node: NodeName, db: Db, stored: &mut Stored) -> Self {
        let mut good = Self { db: Some(db), ..Self::none(source, node) };
        let prefix = good.key("");
        let table = stored.tables.entry(Table::Good).or_default();
        let rows: Vec<(String, Vec<u8>)> =
            table.extract_if(prefix.clone().., |key, _| key.starts_with(&prefix)).collect();
        for ((key, _), pods) in rows.iter().zip(read_all(&rows, &good.node)) {
            match pods {
                Some(pods) if !pods.is_empty() => {
                    good.restored.push((Origin::from(&key[prefix.len()..]), pods));
                }
                _ => drop(good.changes.insert(key.clone(), Vec::new())),
            }
        }
        good
    }

    /// What was good when the last run ended. Only the first call gives it.
    pub fn restored(&mut self) -> Vec<(Origin, Vec<Prepared>)> {
        mem::take(&mut self.restored)
    }

    /// Notes that these are an origin's pods now.
    pub fn put(&mut self, origin: &Origin, pods: Vec<Arc<Pod>>) {
        if self.db.is_some() {
            self.changes.insert(self.key(origin.as_str()), pods);
            self.retry_at = None;
        }
    }

    /// Notes that an origin has no pods any more.
    pub fn forget(&mut self, origin: &Origin) {
        self.put(origin, Vec::new());
    }

    /// Why it cannot be kept, if it cannot.
    #[must_use]
    pub fn trouble(&self) -> Option<Arc<str>> {
        self.trouble.clone()
    }

    /// Begins to write what was noted, if nothing is being written, and does not
    /// wait for the end.
    pub async fn begin(&mut self) {
        tokio::select! {
            biased;
            () = self.write() => {}
            () = ready(()) => {}
        }
    }

    /// Writes some of what was noted. Waits while there is nothing to write, or
    /// it is not time to try again. Cancel-safe: what is being written goes on.
    pub async fn write(&mut self) {
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
        self.tell(written.as_ref().err());
        if written.is_err() {
            for (key, pods) in chunk {
                // What was noted since is newer.
                self.changes.entry(key).or_insert(pods);
            }
            self.retry_at = Some(Instant::now() + RETRY);
        }
    }

    /// Writes all that was noted, unless that fails.
    pub async fn finish(mut self) {
        self.retry_at = None;
        while self.writing.is_some() || (!self.changes.is_empty() && self.retry_at.is_none()) {
            self.write().await;
        }
    }

    fn next_chunk(&mut self) -> Option<Writing> {
        let db = self.db.clone()?;
        let (mut chunk, mut changes, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < MAX_CHUNK_BYTES && chunk.len() < MAX_CHUNK_ROWS {
            let Some((key, pods)) = self.changes.pop_first() else { break };
            let value = (!pods.is_empty()).then(|| self.row(&pods));
            bytes += value.as_ref().map_or(0, Vec::len);
            changes.push(Change { table: Table::Good, key: key.clone(), value });
            chunk.push((key, pods));
        }
        let commit = Box::pin(async move { db.commit(changes).await });
        (!chunk.is_empty()).then_some(Writing { chunk, commit })
    }

    /// The pods' texts as they are, in a row.
    fn row(&self, pods: &[Arc<Pod>]) -> Vec<u8> {
        let mut row = format!("{{\"node\":{},\"pods\":[", json!(self.node.as_str())).into_bytes();
        for (index, pod) in pods.iter().enumerate() {
            row.extend((index > 0).then_some(b','));
            row.extend_from_slice(pod.text());
        }
        row.extend(b"]}");
        row
    }

    fn key(&self, origin: &str) -> String {
        format!("{}/{origin}", self.source)
    }

    /// Loud, then quiet, then "recovered".
    fn tell(&mut self, error: Option<&DbError>) {
        let trouble = error.map(|error| Arc::from(chain(error)));
        let source = self.source.as_str();
        match (&self.trouble, &trouble) {
            (None, Some(error)) => {
                warn!(source, %error, "what is good now cannot be kept for the next start; it is tried again");
            }
            (Some(_), None) => info!(source, "recovered: what is good is kept for the next start"),
            _ => {}
        }
        self.trouble = trouble;
    }
}

impl fmt::Debug for Good {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Good").field("source", &self.source).field("db", &self.db).finish_non_exhaustive()
    }
}

/// Reads rows back, in their order. `None` for those of another node, and for
/// those that nobody understands any more.
fn read_all(rows: &[(String, Vec<u8>)], node: &NodeName) -> Vec<Option<Vec<Prepared>>> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(MAX_THREADS).min(rows.len() / WORTH_A_THREAD).max(1);
    let read_part =
        |part: &[(String, Vec<u8>)]| part.iter().map(|(_, value)| read(value, node)).collect::<Vec<_>>();
    if threads == 1 {
        return read_part(rows);
    }
    scope(|scope| {
        let parts = rows.chunks(rows.len().div_ceil(threads));
        let working: Vec<_> = parts.map(|part| scope.spawn(|| read_part(part))).collect();
        let join = |thread: ScopedJoinHandle<'_, Vec<_>>| {
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        };
        working.into_iter().flat_map(join).collect()
    })
}

fn read(value: &[u8], node: &NodeName) -> Option<Vec<Prepared>> {
    let row: Row = serde_json::from_slice(value).ok().filter(|row: &Row| row.node == node.as_str())?;
    row.pods.into_iter().map(|pod| Prepared::from_value(pod).ok()).collect()
}
