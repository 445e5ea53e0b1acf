//! Reading and decoding manifests: one, or many at once on all cores.

use std::{
    num::NonZero,
    panic,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{ScopedJoinHandle, available_parallelism, scope},
};

use super::{
    disk::{self, Text},
    entries::{Moment, Reading},
    worker::{moment, too_large},
};
use crate::{
    manifest::{self, Manifest, Preparation},
    pod::RejectionReason,
};

/// How many threads read and decode at most: a node agent shares its node.
const MAX_THREADS: usize = 4;
/// A thread is worth its start from this many manifests on (about 2 ms of work).
const WORTH_A_THREAD: usize = 16;

/// What reading a manifest gave.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) reading: Reading,
    /// When it had been read.
    pub(super) at: Moment,
    /// Its pods, or why there are none; nothing if it is to be read again.
    pub(super) verdict: Option<Result<Manifest, RejectionReason>>,
}

/// Reads and decodes one manifest.
pub(super) fn load(path: &Path, preparation: &Preparation) -> Loaded {
    let text = disk::read(path);
    let at = moment();
    let refused = |refusal| RejectionReason::Invalid(Arc::new(refusal));
    let (reading, verdict) = match text {
        Text::Whole(text, stamp) => {
            (Reading::Whole(stamp), Some(manifest::read(&text, preparation).map_err(refused)))
        }
        Text::TooLarge(stamp) => (Reading::Whole(stamp), Some(Err(refused(too_large(stamp.size))))),
        Text::Torn(stamp) => (Reading::Torn(stamp), None),
        Text::Vanished => (Reading::Vanished, None),
        Text::Unreadable(error) => (Reading::Failed, Some(Err(RejectionReason::Unreadable(error.into())))),
    };
    Loaded { reading, at, verdict }
}

/// Reads and decodes many manifests, and gives what became of them in their order.
pub(super) fn load_all(paths: &[PathBuf], preparation: &Preparation) -> Vec<Loaded> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(MAX_THREADS).min(paths.len() / WORTH_A_THREAD).max(1);
    let load_part = |part: &[PathBuf]| part.iter().map(|path| load(path, preparation)).collect::<Vec<_>>();
    if threads == 1 {
        return load_part(paths);
    }
    scope(|scope| {
        let parts = paths.chunks(paths.len().div_ceil(threads));
        let working: Vec<_> = parts.map(|part| scope.spawn(|| load_part(part))).collect();
        let join = |thread: ScopedJoinHandle<'_, Vec<Loaded>>| {
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        };
        working.into_iter().flat_map(join).collect()
    })
}
