//! The ledger: the pods that the program has started or may have started, in the database, and beside it in
//! files that live as long as the boot.

use std::{
    collections::BTreeMap,
    io, mem,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{files::PodFiles, run_id::RunId};
use crate::{
    db::{Change, Db, DbError, Stored, Table, Value},
    host::{Cancelled, Host},
    pod::{Pod, SourceName},
    runtime::ActualPod,
};

/// An open state directory: the database, and the rows of the ledger. Cheap to clone.
#[derive(Clone, Debug)]
pub struct State {
    db: Db,
    rows: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl State {
    /// Takes the rows of the ledger out of `stored`.
    pub fn new(db: Db, stored: &mut Stored) -> Self {
        let rows = stored.tables.remove(&Table::Runs).unwrap_or_default();
        Self { db, rows: Arc::new(Mutex::new(rows)) }
    }

    /// Frees the rows: the ledger has them.
    pub(super) fn release(&self) {
        mem::take(&mut *lock(&self.rows));
    }
}

/// A row: what the program was given last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    /// The hash that decides on a restart.
    pub(super) hash: Arc<str>,
    pub(super) source: SourceName,
    /// The digests of the pod and of its status, which are equal if there is nothing to tell the program.
    pub(super) digest: Arc<str>,
    /// When ADD was acknowledged; `None` if it was not, or if DELETE or REMOVE has begun since.
    pub(super) started: Option<Timestamp>,
    /// False before a call, true after it was acknowledged.
    pub(super) is_complete: bool,
    /// The pod, as JSON.
    pub(super) pod: Arc<[u8]>,
}

/// A row as it is stored.
#[derive(Deserialize)]
struct Row<'a> {
    id: Option<String>,
    boot: String,
    hash: String,
    source: String,
    digest: String,
    started: Option<String>,
    complete: bool,
    #[serde(borrow)]
    pod: &'a RawValue,
}

impl Run {
    pub(super) fn digest_of(pod: &Pod) -> Arc<str> {
        format!("{}-{}", pod.digest(), pod.status_digest()).into()
    }

    fn value(&self, id: &RunId, boot: &str) -> Value {
        let head = json!({
            "id": id.row(),
            "boot": boot,
            "hash": &*self.hash,
            "source": self.source.as_str(),
            "digest": &*self.digest,
            "started": self.started.map(|started| started.to_string()),
            "complete": self.is_complete,
        });
        let mut head = head.to_string();
        // The pod's text is not copied.
        head.pop();
        head.push_str(",\"pod\":");
        vec![head.into_bytes().into(), self.pod.clone(), Arc::from(*b"}")].into()
    }

    /// The run of a row, its key if the row has it, and the boot that it is of.
    fn parse(value: &[u8]) -> Option<(Option<RunId>, Self, String)> {
        let row: Row = serde_json::from_slice(value).ok()?;
        let run = Self {
            hash: row.hash.into(),
            source: row.source.parse().ok()?,
            digest: row.digest.into(),
            started: row.started.map(|started| started.parse()).transpose().ok()?,
            is_complete: row.complete,
            pod: row.pod.get().as_bytes().into(),
        };
        Some((row.id.and_then(|id| RunId::parse(&id)), run, row.boot))
    }
}

/// A row that this version cannot read.
#[derive(Debug, thiserror::Error)]
#[error(
    "the row {0} cannot be read; nothing is run until a copy of it is restored, or the podmux that wrote it is back"
)]
pub(super) struct UnreadableRow(String);

/// The ledger of this boot.
#[derive(Debug)]
pub(super) struct Ledger {
    db: Db,
    boot: Arc<str>,
    /// What is durable.
    runs: Mutex<BTreeMap<RunId, Run>>,
}

impl Ledger {
    /// The ledger of an open state, and the changes that erase the rows of other boots: their processes
    /// ended with that boot. Until they are erased, they are not part of the ledger either.
    ///
    /// `files` are the rows in files. They are the newest ones of this boot, also if the state is not: a
    /// row without a file was erased or is of a copy, so its pod only may run.
    pub(super) fn open(
        state: &State,
        boot: &Arc<str>,
        files: &[(PathBuf, Vec<u8>)],
    ) -> Result<(Self, Vec<Change>), UnreadableRow> {
        let (mut runs, mut ended) = (BTreeMap::new(), Vec::new());
        for (row, value) in &*lock(&state.rows) {
            let read = RunId::parse(row).zip(Run::parse(value));
            let (id, (_, run, of)) =
                read.ok_or_else(|| UnreadableRow(format!("{row} of the table runs in the state")))?;
            if of == **boot {
                runs.insert(id, Run { started: None, is_complete: false, ..run });
            } else {
                ended.push(Change { table: Table::Runs, key: row.clone(), value: None });
            }
        }
        for (path, row) in files {
            let unreadable = || UnreadableRow(format!("in {}", path.display()));
            let (id, run, of) = Run::parse(row).ok_or_else(unreadable)?;
            let id = id.ok_or_else(unreadable)?;
            if of == **boot {
                runs.insert(id, run);
            }
        }
        Ok((Self { db: state.db.clone(), boot: boot.clone(), runs: Mutex::new(runs) }, ended))
    }

    pub(super) async fn commit(&self, changes: Vec<Change>) -> Result<(), DbError> {
        if changes.is_empty() { Ok(()) } else { self.db.commit(changes).await }
    }

    pub(super) fn get(&self, id: &RunId) -> Option<Run> {
        lock(&self.runs).get(id).cloned()
    }

    /// Makes a run durable: that it may run first in its file, and that it runs first in the database, so
    /// that the file never says more. Returns without a write if it is durable already.
    pub(super) async fn put(
        &self,
        id: &RunId,
        run: &Run,
        files: &PodFiles,
        host: &Host,
    ) -> Result<(), PutError> {
        let value = run.value(id, &self.boot);
        let (known, row) = (files.clone(), value.clone());
        // A row of a state that was put back has no file.
        if self.get(id).as_ref() == Some(run)
            && host.threads.blocking(move || known.has_run(&row.bytes())).await?
        {
            return Ok(());
        }
        if !run.is_complete {
            write(files, host, &value).await?;
        }
        let change = Change { table: Table::Runs, key: id.row(), value: Some(value.clone()) };
        self.db.commit(vec![change]).await?;
        lock(&self.runs).insert(id.clone(), run.clone());
        if run.is_complete {
            write(files, host, &value).await?;
        }
        Ok(())
    }

    pub(super) async fn erase(&self, id: &RunId) -> Result<(), DbError> {
        self.db.commit(vec![Change { table: Table::Runs, key: id.row(), value: None }]).await?;
        lock(&self.runs).remove(id);
        Ok(())
    }

    pub(super) fn ids(&self) -> Vec<RunId> {
        lock(&self.runs).keys().cloned().collect()
    }

    pub(super) fn list(&self) -> Vec<ActualPod> {
        let actual = |(id, run): (&RunId, &Run)| ActualPod {
            key: id.key.clone(),
            uid: id.uid.clone(),
            hash: run.hash.clone(),
            source: run.source,
            is_ours: true,
            is_complete: run.is_complete,
            started: run.started,
            status: None,
        };
        lock(&self.runs).iter().map(actual).collect()
    }
}

/// Why a row cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum PutError {
    #[error(transparent)]
    Db(#[from] DbError),
    #[error("cannot write {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

async fn write(files: &PodFiles, host: &Host, value: &Value) -> Result<(), PutError> {
    let (written, disk, value) = (files.clone(), host.disk.clone(), value.clone());
    let written = host.threads.blocking(move || written.write_run(&disk, &value.bytes())).await?;
    written.map_err(|error| PutError::File(files.directory.clone(), error))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic under the locks of this file leaves the rows inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
