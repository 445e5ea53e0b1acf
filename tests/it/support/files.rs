//! A file source with a directory, a mux and one consumer.

use std::{
    ffi::OsString,
    fs,
    future::Future,
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podmux::{
    host::{Attributes, Disk, FileSystem, Host, Open, OpenFile},
    manifest::Preparation,
    mux::{Mux, Notify, SourceChannel, Updates},
    pod::{NodeName, Pod, PodUpdate, SecurityLevel, SourceName},
    source::{
        SourceStatus,
        file::{self, FileHandle, FileSource, OnInvalid, Timings},
    },
};
use tempfile::TempDir;
use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Waits for a future at most a minute: it waits only for the machine and the quiet time.
pub async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_mins(1), future).await.expect("nothing happened for a minute")
}

/// The real file system, with a look at each path before it is opened. Without watches only timers bring a source
/// forward.
#[derive(Debug)]
pub struct RealFiles {
    pub has_watches: bool,
    pub before_open: fn(&Path),
    /// What is different in what is seen of a file or directory.
    pub seen: fn(&mut Attributes),
}

impl Default for RealFiles {
    fn default() -> Self {
        Self { has_watches: true, before_open: |_| (), seen: |_| () }
    }
}

impl RealFiles {
    pub fn host(self) -> Host {
        Host { disk: Disk::on(self), ..Host::default() }
    }
}

impl FileSystem for RealFiles {
    fn attributes(&self, path: &Path, follow: bool) -> io::Result<Attributes> {
        let mut attributes = Disk::default().attributes(path, follow)?;
        (self.seen)(&mut attributes);
        Ok(attributes)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        Disk::default().list(directory)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        Disk::default().canonical(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        Disk::default().read_link(path)
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Box<dyn OpenFile>> {
        (self.before_open)(path);
        Disk::default().open(path, open)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk::default().create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk::default().rename(from, to)
    }

    fn has_watches(&self) -> bool {
        self.has_watches
    }
}

/// A manifest of one pod.
pub fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
    )
}

/// The settings of a test. The check timer never fires, so every update comes from an event, a
/// delay of a file or a requested rescan.
pub fn settings(path: &Path) -> FileSettings {
    let Timings { quiet, missing_grace } = Timings::default();
    let check_frequency = Duration::from_hours(1);
    let node = NodeName::new("node").unwrap();
    FileSettings {
        path: path.to_owned(),
        node,
        check_frequency,
        on_invalid: OnInvalid::Keep,
        quiet,
        missing_grace,
    }
}

/// What a test may change: the source's settings and its delays.
#[derive(Clone, Debug)]
pub struct FileSettings {
    pub path: PathBuf,
    pub node: NodeName,
    pub check_frequency: Duration,
    pub on_invalid: OnInvalid,
    pub quiet: Duration,
    pub missing_grace: Duration,
}

impl FileSettings {
    pub fn source(self, channel: SourceChannel) -> (FileSource, FileHandle) {
        let Self { path, node, check_frequency, on_invalid, quiet, missing_grace } = self;
        let preparation = Preparation { source: SourceName::File, node, generate: None, namespace: None };
        let pod_security = SecurityLevel::default();
        let config = file::Config { path, check_frequency, on_invalid, pod_security };
        let (source, handle) = FileSource::new(config, preparation, channel);
        (source.with_timings(Timings { quiet, missing_grace }), handle)
    }
}

/// The path `manifests` in a temporary directory. It may be missing.
pub struct Place {
    pub root: TempDir,
}

impl Place {
    /// The path is missing.
    pub fn missing() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// The path is an empty directory.
    pub fn directory() -> Self {
        let place = Self::missing();
        fs::create_dir(place.path()).unwrap();
        place
    }

    pub fn path(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A path beside it, on the same file system and not watched.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    /// Runs a shell script in the parent directory while the source runs.
    pub async fn sh(&self, script: &str) {
        sh(self.root.path(), script).await;
    }

    /// Starts a source.
    pub fn start(&self) -> Running {
        self.start_with(|_| ())
    }

    /// Starts a source with other settings.
    pub fn start_with(&self, change: impl FnOnce(&mut FileSettings)) -> Running {
        let mut settings = settings(&self.path());
        change(&mut settings);
        Running::start(settings)
    }
}

/// Runs a shell script.
pub async fn sh(directory: &Path, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(directory);
    let status = spawn_blocking(move || command.status()).await.unwrap().unwrap();
    assert!(status.success(), "{script}: {status}");
}

/// A running source.
pub struct Running {
    pub handle: FileHandle,
    pub updates: Updates,
    pub mux: Mux,
    pub stop: CancellationToken,
    pub source: JoinHandle<()>,
    path: PathBuf,
    markers: usize,
    /// Dropped to start the source.
    gate: Option<oneshot::Sender<()>>,
}

impl Running {
    pub fn start(settings: FileSettings) -> Self {
        Self::hold(settings, |source| source).go()
    }

    /// Prepares a source that does not run yet.
    pub fn hold(settings: FileSettings, more: impl FnOnce(FileSource) -> FileSource) -> Self {
        let (mux, turn) = Mux::new(&[SourceName::File]);
        let path = settings.path.clone();
        let (source, handle) = settings.source(mux.channel(SourceName::File).unwrap());
        let source = more(source);
        let stop = CancellationToken::new();
        tokio::spawn(turn.run());
        let (gate, opened) = oneshot::channel();
        let source = tokio::spawn({
            let stop = stop.clone();
            async {
                let _ = opened.await;
                source.run(stop).await;
            }
        });
        let updates = mux.updates(Notify::Incremental);
        Self { handle, updates, mux, stop, source, path, markers: 0, gate: Some(gate) }
    }

    /// Starts the source.
    pub fn go(mut self) -> Self {
        self.gate = None;
        self
    }

    /// The next update, as `OP: name=image …`.
    pub async fn next_update(&mut self) -> String {
        line(&soon(self.updates.next()).await.expect("the mux runs"))
    }

    /// Asserts that the next update is this one.
    pub async fn receives(&mut self, expected: &str) {
        assert_eq!(self.next_update().await, expected);
    }

    /// Waits until these pods, and no others, have been removed, in one update or several.
    pub async fn receives_removals(&mut self, expected: &str) {
        let mut removed: Vec<String> = Vec::new();
        while removed.len() < expected.split(' ').count() {
            let line = self.next_update().await;
            let pods = line.strip_prefix("REMOVE: ").unwrap_or_else(|| panic!("{line}"));
            removed.extend(pods.split(' ').map(str::to_owned));
        }
        removed.sort();
        assert_eq!(removed.join(" "), expected);
    }

    /// The merged pods after a rescan, as `name=image …`.
    pub async fn merged_pods(&self) -> String {
        assert!(soon(self.handle.rescanned()).await);
        let merged = self.mux.merged().borrow().clone();
        merged.iter().map(|(_, entry)| describe(entry.pod())).collect::<String>().trim_start().to_owned()
    }

    /// Waits for a status.
    pub async fn status(&self, is: impl FnMut(&SourceStatus) -> bool) -> SourceStatus {
        soon(self.handle.status().wait_for(is)).await.expect("the source runs").clone()
    }

    /// Rescans, and waits until no file is unstable or missing.
    pub async fn is_idle(&self) {
        assert!(soon(self.handle.rescanned()).await);
        self.status(|status| !status.detail.contains("pending")).await;
    }

    /// Asserts that there is no update, also after a rescan: the next update is of a marker that
    /// is written here.
    pub async fn receives_nothing(&mut self) {
        self.is_idle().await;
        self.receives_nothing_yet().await;
    }

    /// The same while files are unstable or missing.
    pub async fn receives_nothing_yet(&mut self) {
        assert!(soon(self.handle.rescanned()).await);
        self.receives_nothing_from_events().await;
    }

    /// The same without a rescan: events come in order, so the earlier ones are handled when a
    /// later one is.
    pub async fn receives_nothing_from_events(&mut self) {
        self.markers += 1;
        let name = format!("marker{}", self.markers);
        let path = self.path.join(format!("zz-{name}.yaml"));
        fs::write(&path, pod(&name, "m")).unwrap();
        self.receives(&format!("ADD: {name}=m")).await;
    }

    /// Stops the source and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        soon(self.source).await.unwrap();
    }

    /// The rejections, as `path: reason`.
    pub fn rejections(&self) -> Vec<String> {
        let merged = self.mux.merged().borrow().clone();
        merged.rejections().map(|rejection| format!("{}: {}", rejection.origin, rejection.reason)).collect()
    }
}

/// An update as `OP: name=image …`.
pub fn line(update: &PodUpdate) -> String {
    let pods = update.pods.iter().map(|pod| describe(pod));
    format!("{}:{}", update.op, pods.collect::<String>())
}

fn describe(pod: &Pod) -> String {
    let object: serde_json::Value = serde_json::from_slice(pod.text()).unwrap();
    let name = pod.key().name().strip_suffix("-node").unwrap_or(pod.key().name());
    format!(" {name}={}", object["spec"]["containers"][0]["image"].as_str().unwrap())
}
