//! A directory of manifests under a real file source, a real mux and one consumer.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podmux::{
    manifest::Preparation,
    mux::{Mux, Notify, SourceChannel, Updates},
    pod::{NodeName, Pod, PodUpdate, SourceName},
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

/// No step of these tests waits for anything but the machine and the quiet time.
pub async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_mins(1), future).await.expect("nothing happened for a minute")
}

/// A manifest of one pod.
pub fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
    )
}

/// The settings of a test: nothing happens by the check timer, so what is seen
/// came from an event, a timer of its own or a rescan that was asked for.
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
        let config = file::Config { path, check_frequency, on_invalid };
        let (source, handle) = FileSource::new(config, preparation, channel);
        (source.with_timings(Timings { quiet, missing_grace }), handle)
    }
}

/// A place for manifests: `manifests` in a fresh directory, there or not.
pub struct Place {
    pub root: TempDir,
}

impl Place {
    /// Nothing there yet.
    pub fn missing() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// An empty directory.
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

    /// A path beside the place, on the same file system and not watched.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    /// Runs a shell script in the place's parent, while the source does its work.
    pub async fn sh(&self, script: &str) {
        sh(self.root.path(), script).await;
    }

    /// Starts a source on it.
    pub fn start(&self) -> Running {
        self.start_with(|_| ())
    }

    /// Starts a source on it with other settings.
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

/// A source at work.
pub struct Running {
    pub handle: FileHandle,
    pub updates: Updates,
    pub mux: Mux,
    pub stop: CancellationToken,
    pub source: JoinHandle<()>,
    path: PathBuf,
    markers: usize,
    /// Dropped when the source may run.
    gate: Option<oneshot::Sender<()>>,
}

impl Running {
    pub fn start(settings: FileSettings) -> Self {
        Self::hold(settings, |source| source).go()
    }

    /// A source that is given more than its settings, and does not run yet.
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

    /// Lets a source run that was held.
    pub fn go(mut self) -> Self {
        self.gate = None;
        self
    }

    /// The next update, as `OP: name=image …`.
    pub async fn heard(&mut self) -> String {
        line(&soon(self.updates.next()).await.expect("the mux goes on"))
    }

    /// Waits for the next update, which must be this one.
    pub async fn hear(&mut self, expected: &str) {
        assert_eq!(self.heard().await, expected);
    }

    /// Waits until these pods, and no others, have been removed, in one update or several.
    pub async fn hear_removed(&mut self, expected: &str) {
        let mut removed: Vec<String> = Vec::new();
        while removed.len() < expected.split(' ').count() {
            let line = self.heard().await;
            let pods = line.strip_prefix("REMOVE: ").unwrap_or_else(|| panic!("{line}"));
            removed.extend(pods.split(' ').map(str::to_owned));
        }
        removed.sort();
        assert_eq!(removed.join(" "), expected);
    }

    /// The pods that are wanted once everything has been looked at, as `name=image …`.
    pub async fn wanted(&self) -> String {
        assert!(soon(self.handle.rescanned()).await);
        let merged = self.mux.merged().borrow().clone();
        merged.iter().map(|(_, entry)| describe(entry.pod())).collect::<String>().trim_start().to_owned()
    }

    /// Waits until the status is as it should be.
    pub async fn status(&self, is: impl FnMut(&SourceStatus) -> bool) -> SourceStatus {
        soon(self.handle.status().wait_for(is)).await.expect("the source goes on").clone()
    }

    /// Waits until everything has been looked at once more and nothing is waited for.
    pub async fn calm(&self) {
        assert!(soon(self.handle.rescanned()).await);
        self.status(|status| !status.detail.contains("pending")).await;
    }

    /// Asserts that there is nothing to hear, also when everything has been
    /// looked at once more: the next update is one that is made here.
    pub async fn hear_nothing(&mut self) {
        self.calm().await;
        self.hear_nothing_yet().await;
    }

    /// The same while something is still waited for.
    pub async fn hear_nothing_yet(&mut self) {
        assert!(soon(self.handle.rescanned()).await);
        self.hear_nothing_of_events().await;
    }

    /// The same as far as events go: they come in order, so those of the past
    /// are done with when a later one has been told.
    pub async fn hear_nothing_of_events(&mut self) {
        self.markers += 1;
        let name = format!("marker{}", self.markers);
        let path = self.path.join(format!("zz-{name}.yaml"));
        fs::write(&path, pod(&name, "m")).unwrap();
        self.hear(&format!("ADD: {name}=m")).await;
    }

    /// Stops it, and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        soon(self.source).await.unwrap();
    }

    /// What was refused, as `path: reason`.
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
