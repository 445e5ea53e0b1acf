//! The exec runtime with a shell script as its program.

use std::{
    error::Error,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podmux::{
    host::Host,
    pod::{Op, Pod, SourceName},
    runtime::{
        ActualPod, KillPod, PodRuntime as _, RuntimeError, SyncPod,
        exec::{self, Config, Exec},
        runtime_hash,
    },
};
use tempfile::TempDir;
use tokio::{sync::watch, task::spawn_blocking};

use super::{files::soon, process::wait_for, script, state::State};

/// A directory with the program, the state, and what the program writes.
pub struct Rig {
    pub root: TempDir,
    pub config: Config,
    pub patience: Duration,
}

/// One run of the agent.
pub struct Run {
    pub exec: Exec,
    pub state: State,
    root: String,
}

/// What a script begins with: each call is a line in `calls`.
const NOTE: &str = "echo \"$PODMUX_OP $PODMUX_POD_NAME#$PODMUX_POD_UID\" >> \"$HERE/calls\"\n";

/// A directory with `program`, which runs the text of `script`, and an empty directory of manifests.
pub fn directory(script: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // A file that this process has written may be busy in a child that another test has forked.
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/program");
    symlink(program, at("program")).unwrap();
    fs::write(at("script"), script).unwrap();
    fs::create_dir(at("manifests")).unwrap();
    directory
}

impl Rig {
    pub fn new(script: &str) -> Self {
        let root = directory("");
        let config = Config::new(root.path().join("program"));
        let rig = Self { config, root, patience: Duration::from_millis(300) };
        rig.script(script);
        rig
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Another script from the next call on.
    pub fn script(&self, script: &str) {
        fs::write(self.at("new"), format!("{NOTE}{script}\n")).unwrap();
        fs::rename(self.at("new"), self.at("script")).unwrap();
    }

    /// A file; empty if it is missing.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// The calls since the last look, as `OP name#uid, …`.
    pub fn calls(&self) -> String {
        let calls = self.read("calls");
        let _ = fs::remove_file(self.at("calls"));
        calls.trim_end().replace('\n', ", ")
    }

    /// Waits until a file has some content, and returns it.
    pub async fn wait_for(&self, name: &str) -> String {
        let path = self.at(name);
        let look = move || fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
        spawn_blocking(|| wait_for(look)).await.unwrap().trim_end().to_owned()
    }

    /// The files of the runtime and their modes.
    pub fn files(&self) -> String {
        let mut files = Vec::new();
        for key in fs::read_dir(self.at("run/exec")).into_iter().flatten() {
            for file in fs::read_dir(key.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                let path = path.strip_prefix(self.at("run/exec")).unwrap().display().to_string();
                files.push(format!("{path} {mode:o}"));
            }
        }
        files.sort();
        files.join(", ")
    }

    pub fn output(&self, name: &str) -> String {
        self.read(&format!("run/exec/{name}.output"))
    }

    pub fn exec(&self, state: exec::StateWatch, boot: &str) -> Exec {
        let (config, directory) = (self.config.clone(), self.at("run/exec"));
        Exec::new(config, directory, state, boot, Host::default()).with_patience(self.patience)
    }

    /// The agent in the first boot of the machine.
    pub async fn start(&self) -> Run {
        self.start_in("boot-1").await
    }

    /// The open state.
    pub fn state(&self) -> State {
        State::open(&self.at("state")).unwrap()
    }

    pub async fn start_in(&self, boot: &str) -> Run {
        let mut state = self.state();
        let watch = watch::channel(Ok(exec::State::new(state.db.clone(), &mut state.stored))).1;
        let run =
            Run { exec: self.exec(watch, boot), state, root: self.root.path().to_str().unwrap().to_owned() };
        soon(run.exec.list()).await.unwrap();
        run
    }
}

/// A published pod of [`script::pod`]'s form.
pub fn pod(text: &str) -> Arc<Pod> {
    Arc::new(script::pod(text).published_by(SourceName::File, jiff::Timestamp::UNIX_EPOCH))
}

pub fn to_sync(op: Op, text: &str) -> SyncPod {
    let pod = pod(text);
    SyncPod { hash: runtime_hash(&pod).into(), source: SourceName::File, op, pod }
}

/// To kill what runs of a pod; if the text says so, because it is being deleted.
pub fn to_kill(text: &str) -> KillPod {
    let pod = pod(text);
    let actual = ActualPod {
        key: pod.key().clone(),
        uid: pod.uid().clone(),
        hash: runtime_hash(&pod).into(),
        source: SourceName::File,
        is_ours: true,
        is_complete: true,
        started: None,
        status: None,
    };
    let seconds = pod.deletion_grace_period_seconds();
    let grace = seconds.map(|seconds| Duration::from_secs(seconds.try_into().unwrap()));
    KillPod { actual, grace, pod: pod.deletion_timestamp().is_some().then_some(pod) }
}

impl Run {
    /// The error, or `ok`.
    pub fn text(&self, result: Result<(), RuntimeError>) -> String {
        let Err(error) = result else { return "ok".to_owned() };
        let (mut text, mut cause) = (error.to_string(), error.source());
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text.replace(&self.root, "DIR")
    }

    pub async fn sync(&self, op: Op, text: &str) -> String {
        self.text(soon(self.exec.sync(&to_sync(op, text))).await)
    }

    pub async fn add(&self, text: &str) -> String {
        self.sync(Op::Add, text).await
    }

    pub async fn kill(&self, text: &str) -> String {
        self.text(soon(self.exec.kill(&to_kill(text))).await)
    }

    /// `name#uid` of what is listed; `?` if it may run in part.
    pub async fn list(&self) -> String {
        let pods = soon(self.exec.list()).await.unwrap();
        let text = |pod: &ActualPod| {
            format!("{}#{}{}", pod.key.name(), pod.uid, if pod.is_complete { "" } else { "?" })
        };
        pods.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    /// The agent ends. Its programs go on.
    pub async fn end(self) {
        drop(self.exec);
        self.state.close().await;
    }
}
