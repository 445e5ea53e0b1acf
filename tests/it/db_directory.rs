//! The directory of the database: what makes it durable, and what keeps a second process out.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use expect_test::expect;
use podmux::{
    db::{self, OpenError, Table},
    host::{Attributes, Disk, FileSystem, Host, Open, OpenFile},
};
use rustix::io::Errno;
use tokio::task::spawn_blocking;

use crate::support::{
    files::soon,
    state::{EIO, State, set},
};

/// Called with each event before it happens.
type Hook = dyn Fn(&str, &Path) + Send + Sync;

/// While a file of this name is beside a file, the syncs of that fail.
const BROKEN: &str = "broken";
/// While a file of this name is beside a file, no space can be reserved for that. It has the number of the error.
const FULL: &str = "full";

/// The real file system, which reports what is made durable.
#[derive(Clone)]
struct Observed {
    disk: Disk,
    hook: Arc<Hook>,
}

impl Observed {
    fn host(hook: impl Fn(&str, &Path) + Send + Sync + 'static) -> Host {
        let observed = Self { disk: Disk::default(), hook: Arc::new(hook) };
        Host { disk: Disk::on(observed), ..Host::default() }
    }
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observed")
    }
}

impl FileSystem for Observed {
    fn attributes(&self, path: &Path, follow: bool) -> io::Result<Attributes> {
        self.disk.attributes(path, follow)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.disk.list(directory)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk.canonical(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk.read_link(path)
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Box<dyn OpenFile>> {
        let file = self.disk.open(path, open)?;
        Ok(Box::new(ObservedFile { path: path.to_owned(), file, of: self.clone() }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        (self.hook)("create", path);
        self.disk.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.hook)("rename to", to);
        self.disk.rename(from, to)
    }
}

#[derive(Debug)]
struct ObservedFile {
    path: PathBuf,
    file: Box<dyn OpenFile>,
    of: Observed,
}

impl Read for ObservedFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes)
    }
}

impl OpenFile for ObservedFile {
    fn attributes(&self) -> io::Result<Attributes> {
        self.file.attributes()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        if let Ok(number) = fs::read_to_string(self.path.with_file_name(FULL)) {
            return Err(io::Error::from_raw_os_error(number.parse().unwrap()));
        }
        self.file.reserve(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.path.with_file_name(BROKEN).exists() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        (self.of.hook)("sync", &self.path);
        self.file.sync_all()
    }

    fn drop_cache(&self) -> io::Result<()> {
        (self.of.hook)("drop cache", &self.path);
        self.file.drop_cache()
    }

    fn lock(&self) -> io::Result<()> {
        (self.of.hook)("lock", &self.path);
        self.file.lock()
    }
}

#[test]
fn a_new_directory_and_its_parents_are_made_durable_before_the_state_is_used() {
    let root = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(String::new()));
    let (log, place) = (seen.clone(), root.path().to_owned());
    let host = Observed::host(move |what, path| {
        let path = path.strip_prefix(&place).unwrap_or(path).display().to_string();
        writeln!(log.lock().unwrap(), "{what} {}", if path.is_empty() { "." } else { &path }).unwrap();
    });
    let state = root.path().join("deep/state");
    drop(db::open(&host, &state).unwrap());
    expect![[r#"
        create deep/state
        sync deep
        sync .
        lock deep/state/lock
        lock deep/state/state.redb.new
        drop cache deep/state/state.redb.new
        sync deep/state/state.redb.new
        rename to deep/state/state.redb
        sync deep/state
        lock deep/state/state.redb
        drop cache deep/state/state.redb
    "#]]
    .assert_eq(&seen.lock().unwrap());
    // An existing directory is durable.
    seen.lock().unwrap().clear();
    drop(db::open(&host, &state).unwrap());
    expect![[r#"
        create deep/state
        lock deep/state/lock
        lock deep/state/state.redb
        drop cache deep/state/state.redb
    "#]]
    .assert_eq(&seen.lock().unwrap());
}

/// Linux keeps what it could not write: the next start would take it for durable.
#[tokio::test]
async fn what_a_failed_sync_has_not_written_is_not_read_from_the_cache() {
    let root = tempfile::tempdir().unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let seen = dropped.clone();
    let host = Observed::host(move |what, path| {
        if what == "drop cache" && path.ends_with("state.redb") {
            seen.store(true, Ordering::SeqCst);
        }
    });
    let (db, writer, _) = db::open(&host, root.path()).unwrap();
    let written = spawn_blocking(|| writer.run());
    let commit = async || soon(db.commit(vec![set(Table::Posted, "a", "1")])).await;
    commit().await.unwrap();
    dropped.store(false, Ordering::SeqCst);
    fs::write(root.path().join(BROKEN), "").unwrap();
    commit().await.unwrap_err();
    assert!(dropped.load(Ordering::SeqCst));
    fs::remove_file(root.path().join(BROKEN)).unwrap();
    commit().await.unwrap();
    drop(db);
    soon(written).await.unwrap();
}

/// Without blocks redb would use the new part for what fits into the old one, and not even small changes were stored.
#[tokio::test]
async fn the_file_does_not_grow_while_the_disk_or_a_quota_is_full() {
    for full in [Errno::NOSPC, Errno::DQUOT] {
        let root = tempfile::tempdir().unwrap();
        let (db, writer, _) = db::open(&Observed::host(|_, _| {}), root.path()).unwrap();
        let written = spawn_blocking(|| writer.run());
        let commit = async || soon(db.commit(vec![set(Table::Posted, "a", &*"x".repeat(4 << 20))])).await;
        let length = || fs::metadata(root.path().join("state.redb")).unwrap().len();
        let before = length();
        fs::write(root.path().join(FULL), full.raw_os_error().to_string()).unwrap();
        assert!(commit().await.unwrap_err().is_full());
        assert_eq!(length(), before, "{full}");
        fs::remove_file(root.path().join(FULL)).unwrap();
        commit().await.unwrap();
        drop(db);
        soon(written).await.unwrap();
    }
}

/// Otherwise a second agent opens the state, and both acknowledge writes.
#[tokio::test]
async fn a_state_whose_lock_file_was_deleted_is_still_in_use() {
    let root = tempfile::tempdir().unwrap();
    let state = State::open(root.path()).unwrap();
    fs::remove_file(root.path().join("lock")).unwrap();
    assert!(matches!(db::open(&Host::default(), root.path()), Err(OpenError::InUse(_))));
    state.close().await;
    State::open(root.path()).unwrap().close().await;
}

#[tokio::test]
async fn a_state_whose_file_was_replaced_is_still_in_use() {
    let root = tempfile::tempdir().unwrap();
    let state = State::open(root.path()).unwrap();
    fs::copy(root.path().join("state.redb"), root.path().join("copy")).unwrap();
    fs::rename(root.path().join("copy"), root.path().join("state.redb")).unwrap();
    assert!(matches!(db::open(&Host::default(), root.path()), Err(OpenError::InUse(_))));
    state.close().await;
}

/// What is written to a file that is gone, or is another state's, would be lost with the process.
#[tokio::test]
async fn nothing_is_acknowledged_while_the_state_is_not_in_its_place() {
    let root = tempfile::tempdir().unwrap();
    let (place, away) = (root.path().join("state"), root.path().join("away"));
    let state = State::open(&place).unwrap();
    state.put(Table::Posted, "a", "1").await;
    fs::rename(&place, &away).unwrap();
    let cause = async |key: &str| {
        let error = state.db.commit(vec![set(Table::Posted, key, "1")]).await.unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    let fails = async |key: &str| {
        assert_eq!(cause(key).await, "it was removed or replaced while it was used; restart podmux");
    };
    fails("b").await;
    // Whether it is there is not known.
    fs::write(&place, "").unwrap();
    assert_eq!(cause("b").await, "Not a directory (os error 20)");
    fs::remove_file(&place).unwrap();
    State::open(&place).unwrap().close().await;
    fails("c").await;
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    state.put(Table::Posted, "d", "1").await;
    state.close().await;
    let state = State::open(&place).unwrap();
    assert_eq!(state.rows(Table::Posted), "a=1 d=1");
    state.close().await;
}

/// Two processes create the state at the same time, and the lock file of one was deleted.
#[test]
fn a_state_that_another_process_has_just_created_is_in_use() {
    for moment in ["lock", "state.redb.new", "state.redb"] {
        let root = tempfile::tempdir().unwrap();
        let (place, other) = (root.path().to_owned(), Arc::new(Mutex::new(None)));
        let opened = other.clone();
        let host = Observed::host(move |what, path| {
            if what == "lock" && path.file_name().is_some_and(|name| name == moment) {
                let mut opened = opened.lock().unwrap();
                if opened.is_none() {
                    fs::remove_file(place.join("lock")).unwrap();
                    *opened = Some(db::open(&Host::default(), &place).unwrap());
                }
            }
        });
        assert!(matches!(db::open(&host, root.path()), Err(OpenError::InUse(_))), "{moment}");
        assert!(other.lock().unwrap().is_some(), "{moment}");
    }
}

#[tokio::test]
async fn a_state_that_was_replaced_before_it_was_locked_is_in_use() {
    let root = tempfile::tempdir().unwrap();
    State::open(root.path()).unwrap().close().await;
    let place = root.path().to_owned();
    let host = Observed::host(move |what, path| {
        if what == "lock" && path.ends_with("state.redb") {
            fs::copy(path, place.join("copy")).unwrap();
            fs::rename(place.join("copy"), path).unwrap();
        }
    });
    assert!(matches!(db::open(&host, root.path()), Err(OpenError::InUse(_))));
}
