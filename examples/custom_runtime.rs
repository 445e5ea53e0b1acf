//! A runtime of one's own, built on the library alone: a pod is the command of its first container.
//!
//! ```text
//! cargo run --no-default-features --example custom_runtime
//! ```
//!
//! The runtime remembers nothing. The mark of a pod is a variable in the environment of its processes:
//! it is there as soon as a process is, and as long. So an agent that was killed orphans nothing, and the
//! next one finds what runs. Three agents run one after the other, each with other pods.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    unreachable_pub,
    missing_docs,
    reason = "an example shows what happens, and a test runs it"
)]

use std::{
    collections::BTreeMap,
    error::Error,
    fs, io,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio, id},
    str, thread,
    time::Duration,
};

use podmux::{
    host::Clock,
    manifest::{Preparation, read},
    mux::Mux,
    pod::{ListingBuilder, NodeName, Origin, Pod, PodKey, SourceName, Uid},
    runtime::{ActualPod, KillPod, PodRuntime, PodWorkers, RuntimeError, SyncPod, runtime_hash},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{sync::Notify, time::Instant, time::sleep};
use tokio_util::sync::CancellationToken;

/// The variable with the mark of a pod: `INSTANCE NAMESPACE NAME HASH SOURCE UID`.
const MARK: &str = "CUSTOM_RUNTIME_POD";
/// The time that processes have to end. A whole runtime reads `spec.terminationGracePeriodSeconds`.
const GRACE: Duration = Duration::from_secs(30);
/// The pause between two looks at processes that are ending.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Runs the command of the first container of each pod.
struct Processes {
    /// Tells our pods from those of other agents. It is the same in each run of an agent.
    instance: String,
    /// A process has ended.
    ended: &'static Notify,
    /// A call has ended. Only this example needs it: to know when all is done.
    done: Notify,
}

impl PodRuntime for &Processes {
    /// Reading `/proc` does not block: it is in memory.
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        // A pod may have several processes.
        let by_uid: BTreeMap<Uid, ActualPod> =
            self.processes()?.into_iter().map(|(_, pod)| (pod.uid.clone(), pod)).collect();
        Ok(by_uid.into_values().collect())
    }

    async fn sync(&self, sync: &SyncPod) -> Result<(), RuntimeError> {
        let (key, uid) = (sync.pod.key(), sync.pod.uid());
        let is_wanted = |pod: &ActualPod| pod.hash == sync.hash && pod.source == sync.source;
        if self.of(uid)?.iter().any(|(_, pod)| is_wanted(pod)) {
            return Ok(());
        }
        println!("{} {key}", sync.op);
        self.stop(uid, GRACE).await?;
        let command = command(&sync.pod)?;
        let (instance, hash, source) = (&self.instance, &sync.hash, sync.source);
        let mark = format!("{instance} {} {} {hash} {source} {uid}", key.namespace(), key.name());
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).env(MARK, mark).stdin(Stdio::null()).process_group(0);
        // The workers try again: after a second at first, after five minutes at most.
        let mut child = process.spawn().map_err(|error| RuntimeError::new("RunContainerError", error))?;
        let ended = self.ended;
        thread::spawn(move || {
            // It is no longer listed then, and the workers start the pod again.
            let _ = child.wait();
            ended.notify_one();
        });
        self.done.notify_one();
        Ok(())
    }

    async fn kill(&self, kill: &KillPod) -> Result<(), RuntimeError> {
        println!("kill {}", kill.actual.key);
        self.stop(&kill.actual.uid, kill.grace.unwrap_or(GRACE)).await?;
        self.done.notify_one();
        Ok(())
    }

    async fn changed(&self) {
        self.ended.notified().await;
    }
}

impl Processes {
    /// The processes of all pods, of other agents too.
    fn processes(&self) -> Result<Vec<(Pid, ActualPod)>, RuntimeError> {
        let unknown = |error: io::Error| RuntimeError::new("ProcUnavailable", error);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").map_err(unknown)? {
            let entry = entry.map_err(unknown)?;
            let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            // Processes that have ended meanwhile, and those of other users, have no mark of ours.
            let Some((pid, environment)) = pid.zip(fs::read(entry.path().join("environ")).ok()) else {
                continue;
            };
            let mut texts = environment.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok());
            let mark = texts.find_map(|text| text.strip_prefix(MARK)?.strip_prefix('='));
            found.extend(mark.and_then(|mark| self.marked(mark)).map(|pod| (pid, pod)));
        }
        Ok(found)
    }

    fn marked(&self, mark: &str) -> Option<ActualPod> {
        let parts: Vec<&str> = mark.splitn(6, ' ').collect();
        let [instance, namespace, name, hash, source, uid] = parts.try_into().ok()?;
        Some(ActualPod {
            key: PodKey::new(namespace, name),
            uid: uid.into(),
            hash: hash.into(),
            source: source.parse().ok()?,
            is_ours: instance == self.instance,
            is_complete: true,
            started: None,
            status: None,
        })
    }

    /// Our processes of a pod.
    fn of(&self, uid: &Uid) -> Result<Vec<(Pid, ActualPod)>, RuntimeError> {
        let mut processes = self.processes()?;
        processes.retain(|(_, pod)| pod.is_ours && pod.uid == *uid);
        Ok(processes)
    }

    /// Asks the processes of a pod to end, and kills them when the grace is over.
    async fn stop(&self, uid: &Uid, grace: Duration) -> Result<(), RuntimeError> {
        let signal = |processes: &[(Pid, ActualPod)], signal| {
            for (pid, _) in processes {
                // One that has ended meanwhile needs no signal.
                let _ = kill_process(*pid, signal);
            }
        };
        signal(&self.of(uid)?, Signal::TERM);
        let until = Instant::now() + grace;
        loop {
            let left = self.of(uid)?;
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                signal(&left, Signal::KILL);
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// The command of the first container.
fn command(pod: &Pod) -> Result<Vec<String>, RuntimeError> {
    let invalid = |error: serde_json::Error| RuntimeError::new("InvalidPod", error);
    let pod: serde_json::Value = serde_json::from_slice(pod.text()).map_err(invalid)?;
    let command = pod["spec"]["containers"][0]["command"].clone();
    match serde_json::from_value::<Vec<String>>(command) {
        Ok(command) if !command.is_empty() => Ok(command),
        _ => Err(RuntimeError::new("InvalidPod", "the first container has no command")),
    }
}

/// The names of the pods of each agent, and how many seconds their process sleeps.
const WANTED: [&[(&str, u32)]; 3] = [&[("db", 1000), ("web", 1000)], &[("db", 1001), ("web", 1000)], &[]];

/// An agent with one source, which publishes these pods. It ends when they run, and leaves them running.
async fn agent(runtime: &Processes, pods: &[(&str, u32)]) -> Result<(), Box<dyn Error>> {
    let (mux, merging) = Mux::new(&[SourceName::File]);
    let channel = mux.channel(SourceName::File).ok_or("a source has one channel")?;
    let node = NodeName::new("node1")?;
    let preparation = Preparation { source: SourceName::File, node, generate: None, namespace: None };
    let mut listing = ListingBuilder::new(SourceName::File);
    for (name, seconds) in pods {
        let manifest = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, uid: {name}-1}}, spec: {{containers: \
              [{{name: main, image: none, command: [sleep, '{seconds}']}}]}}}}"
        );
        listing.put(
            &Origin::from(*name),
            read(manifest.as_bytes(), &preparation)?.pods,
            Clock::default().now(),
        );
    }
    channel.publish(listing.listing());
    let workers = PodWorkers::new(runtime, mux.merged()).run(CancellationToken::new());
    let source = async {
        channel.merged().await;
        let view = mux.merged().borrow().clone();
        let wanted: BTreeMap<_, _> =
            view.iter().map(|(key, entry)| (key.clone(), runtime_hash(entry.pod()))).collect();
        loop {
            let runs = runtime.list().await?.into_iter();
            let runs = runs.filter(|pod| pod.is_ours).map(|pod| (pod.key, pod.hash.to_string()));
            if runs.collect::<BTreeMap<_, _>>() == wanted {
                break;
            }
            runtime.done.notified().await;
        }
        // The source ends, then the mux, then the workers.
        drop(channel);
        Ok::<_, RuntimeError>(())
    };
    let (done, (), ()) = tokio::join!(source, merging.run(), workers);
    Ok(done?)
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    static ENDED: Notify = Notify::const_new();
    // An agent of a machine takes something that lasts, for example its state directory.
    let runtime = Processes { instance: format!("example-{}", id()), ended: &ENDED, done: Notify::new() };
    let mut seen = Vec::new();
    for (number, pods) in WANTED.iter().enumerate() {
        println!("agent {number} wants {} pods", pods.len());
        agent(&runtime, pods).await?;
        let runs = runtime.processes()?.into_iter().filter(|(_, pod)| pod.is_ours);
        let mut runs: Vec<(String, i32)> =
            runs.map(|(pid, pod)| (pod.key.to_string(), pid.as_raw_nonzero().get())).collect();
        runs.sort();
        println!("running: {runs:?}");
        seen.push(runs);
    }
    // The second agent has left the pod alone that was as wanted, and the last one has stopped all.
    assert_ne!(seen[0][0], seen[1][0]);
    assert_eq!(seen[0][1], seen[1][1]);
    assert!(seen[2].is_empty());
    Ok(())
}
