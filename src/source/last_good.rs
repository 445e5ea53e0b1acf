//! Last good: what a source gave when all was well with it, kept over a restart.
//!
//! For a source that reads what may be missing or broken when it starts:
//!
//! 1. [`LastGood::new`] takes the source's rows out of what was stored. Rows that
//!    were prepared for another node are not restored: those pods come out as
//!    removed and added.
//! 2. [`LastGood::restored`] gives the rest. The source puts them into its
//!    [`ListingBuilder`](crate::pod::ListingBuilder) and pushes its
//!    `restored_listing()` at once, before it looks at the world. What it finds
//!    then edits the same builder, so what has not changed is no change. An
//!    origin that it does not want any more it [forgets](LastGood::forget).
//! 3. Whenever the builder says that an origin changed for good, the source
//!    [puts](LastGood::put) the origin's pods, or forgets it. A refusal changes
//!    nothing here: that is the point.
//! 4. Before it pushes the listing it [begins](LastGood::begin) to write; its loop
//!    has [`LastGood::write`] among the things that it waits for, and when it is
//!    stopped it [finishes](LastGood::finish).
//!
//! Only what changed is written, in small commits, one at a time: whoever
//! commits beside it never waits for more than one of them. A source never
//! waits for the disk. What cannot be written is said once, tried again with the
//! next change or after some seconds, and is in [`LastGood::trouble`] meanwhile.
//!
//! A source whose origins are no use without each other (the pods of one API
//! server's listing) keeps them [whole](LastGood::whole): what was noted before a
//! commit is one commit, so that what is restored was true at one moment. What
//! it must know of its listing (whose it is, as of when) it notes
//! [about](LastGood::about) it, and that is written with the pods it belongs to.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    future::{pending, ready},
    num::NonZero,
    panic,
    pin::Pin,
    sync::Arc,
    thread::{ScopedJoinHandle, available_parallelism, scope},
    time::Duration,
    vec,
};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::{
    db::{Change, Db, DbError, Stored, Table, Value},
    error_chain::chain,
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
/// How many rows are read back at once. What was read is some times as large as
/// its row, and most of it is frozen again before the next rows are read.
const MAX_ROWS_READ: usize = 256;

/// What the row about the listing has for an origin: no pod is of that one.
const ABOUT: &str = "";

/// What is to be written under a key.
enum Note {
    /// The pods of an origin; none if it is to be forgotten.
    Pods(Vec<Arc<Pod>>),
    About(Json),
}

impl Note {
    /// How long its row is, but for a few bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Pods(pods) => pods.iter().map(|pod| pod.text().len()).sum(),
            Self::About(_) => 0,
        }
    }
}

/// A row that is to be forgotten.
const GONE: Note = Note::Pods(Vec::new());

/// One source's last good, by origin. See the [module](self).
pub struct LastGood {
    source: SourceName,
    node: NodeName,
    /// `None` if nothing is kept.
    db: Option<Db>,
    /// Whether all that was noted is one commit.
    is_whole: bool,
    /// What an earlier run left, as far as nobody has asked for it.
    rows: VecDeque<(String, Vec<u8>)>,
    about: Option<Json>,
    /// The keys that have a row when all changes are written.
    kept: BTreeSet<String>,
    /// What is to be written, by the key of its row.
    changes: BTreeMap<String, Note>,
    writing: Option<Writing>,
    retry_at: Option<Instant>,
    trouble: Option<Arc<str>>,
}

/// A commit that is under way.
struct Writing {
    chunk: Vec<(String, Note)>,
    commit: Pin<Box<dyn Future<Output = Result<(), DbError>> + Send>>,
}

/// A row of an origin, as it is stored.
#[derive(Deserialize)]
struct Row {
    node: String,
    pods: Vec<Json>,
}

/// The row about the listing, as it is stored.
#[derive(Deserialize)]
struct About {
    node: String,
    about: Json,
}

/// What was good when the last run ended, read as it is asked for. See [`LastGood::restored`].
pub struct Restored<'g> {
    good: &'g mut LastGood,
    read: vec::IntoIter<(Origin, Vec<Prepared>)>,
}

impl LastGood {
    /// Keeps nothing.
    #[must_use]
    pub fn none(source: SourceName, node: NodeName) -> Self {
        Self {
            source,
            node,
            db: None,
            is_whole: false,
            rows: VecDeque::new(),
            about: None,
            kept: BTreeSet::new(),
            changes: BTreeMap::new(),
            writing: None,
            retry_at: None,
            trouble: None,
        }
    }

    /// What a source left in the database, which is taken out of `stored`, and
    /// the way to leave more.
    #[must_use]
    pub fn new(source: SourceName, node: NodeName, db: Db, stored: &mut Stored) -> Self {
        let mut good = Self { db: Some(db), ..Self::none(source, node) };
        let (prefix, about) = (good.key(""), good.key(ABOUT));
        let table = stored.tables.entry(Table::LastGood).or_default();
        good.rows = table.extract_if(prefix.clone().., |key, _| key.starts_with(&prefix)).collect();
        good.kept = good.rows.iter().map(|(key, _)| key.clone()).collect();
        if good.rows.front().is_some_and(|(key, _)| *key == about)
            && let Some((key, row)) = good.rows.pop_front()
        {
            let row = serde_json::from_slice(&row).ok();
            match row.filter(|row: &About| row.node == good.node.as_str()) {
                Some(row) => good.about = Some(row.about),
                None => good.note(key, GONE),
            }
        }
        good
    }

    /// The same, but all that was noted when a commit is begun goes into this
    /// one commit, as much as it may be: on disk is what was noted before some
    /// commit was begun, whole, and never a part of it.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// What was good when the last run ended. Only the first call gives it.
    ///
    /// It is read on several cores, some rows at a time: 5,000 pods take much
    /// room while they are neither rows any more nor frozen yet.
    pub fn restored(&mut self) -> Restored<'_> {
        Restored { good: self, read: Vec::new().into_iter() }
    }

    /// What was noted about it. Only the first call gives it.
    pub fn restored_about(&mut self) -> Option<Json> {
        self.about.take()
    }

    /// Notes that these are an origin's pods now.
    pub fn put(&mut self, origin: &Origin, pods: Vec<Arc<Pod>>) {
        self.note(self.key(origin.as_str()), Note::Pods(pods));
    }

    /// Notes something about all that is kept, in place of what was noted. It is
    /// read back even if no pods are kept. For a source that keeps its origins
    /// [whole](Self::whole); for others it may be on disk before its pods are.
    pub fn about(&mut self, about: Json) {
        self.note(self.key(ABOUT), Note::About(about));
    }

    /// Notes that nothing is good any more, whether it was restored or noted
    /// since. What of it was not asked for yet is not given any more.
    pub fn forget_all(&mut self) {
        self.rows.clear();
        self.about = None;
        for key in self.kept.clone() {
            self.note(key, GONE);
        }
    }

    fn note(&mut self, key: String, note: Note) {
        if self.db.is_none() {
            return;
        }
        if note.is_gone() {
            self.kept.remove(&key);
        } else {
            self.kept.insert(key.clone());
        }
        self.changes.insert(key, note);
        self.retry_at = None;
    }

    /// Reads the next rows back. Those of another node, and those that nobody
    /// understands any more, are forgotten.
    fn read_some(&mut self) -> Vec<(Origin, Vec<Prepared>)> {
        let prefix = self.key("").len();
        let rows: Vec<_> = self.rows.drain(..self.rows.len().min(MAX_ROWS_READ)).collect();
        let mut read = Vec::new();
        for ((key, _), pods) in rows.iter().zip(read_all(&rows, &self.node)) {
            match pods {
                Some(pods) if !pods.is_empty() => read.push((Origin::from(&key[prefix..]), pods)),
                _ => self.note(key.clone(), GONE),
            }
        }
        read
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
            for (key, note) in chunk {
                // What was noted since is newer.
                self.changes.entry(key).or_insert(note);
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
        while self.is_whole || (bytes < MAX_CHUNK_BYTES && chunk.len() < MAX_CHUNK_ROWS) {
            let Some((key, note)) = self.changes.pop_first() else { break };
            let value = self.row(&note);
            bytes += note.bytes();
            changes.push(Change { table: Table::LastGood, key: key.clone(), value });
            chunk.push((key, note));
        }
        let commit = Box::pin(async move { db.commit(changes).await });
        (!chunk.is_empty()).then_some(Writing { chunk, commit })
    }

    /// What is stored of a note: pods' texts as they are.
    fn row(&self, note: &Note) -> Option<Value> {
        let of = json!(self.node.as_str());
        let pods = match note {
            Note::About(about) => {
                return Some(json!({"node": of, "about": about}).to_string().into_bytes().into());
            }
            Note::Pods(pods) if pods.is_empty() => return None,
            Note::Pods(pods) => pods,
        };
        let mut row: Vec<Arc<[u8]>> = vec![format!("{{\"node\":{of},\"pods\":[").into_bytes().into()];
        for (index, pod) in pods.iter().enumerate() {
            row.extend((index > 0).then(|| Arc::from(*b",")));
            row.push(pod.text().clone());
        }
        row.push(Arc::from(*b"]}"));
        Some(row.into())
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

impl fmt::Debug for LastGood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastGood").field("source", &self.source).field("db", &self.db).finish_non_exhaustive()
    }
}

impl Note {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Pods(pods) if pods.is_empty())
    }
}

impl Iterator for Restored<'_> {
    type Item = (Origin, Vec<Prepared>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(next) = self.read.next() {
                return Some(next);
            }
            if self.good.rows.is_empty() {
                return None;
            }
            self.read = self.good.read_some().into_iter();
        }
    }
}

impl fmt::Debug for Restored<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restored").field("good", &self.good).finish_non_exhaustive()
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
