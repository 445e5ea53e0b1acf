//! The work: pods that are created, changed and removed in each source.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use podmux_machine::{plain::Answer, random::Random};
use serde_json::{Value, json};

use super::{INTERVAL, PATIENCE, World};

/// Where the manifests are.
pub const MANIFESTS: &str = "/etc/podmux/manifests";
/// The API server's pods of the default namespace.
pub const OBJECTS: &str = "/api/v1/namespaces/default/pods";

/// How many pods each worker changes.
const PODS: usize = 4;
/// The pause between two steps of a worker.
const PAUSE: Duration = Duration::from_millis(400);

/// The two numbers of a pod: one that restarts nothing, and one that its container is started with.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    pub label: u64,
    pub spec: u64,
}

/// A pod that runs until it gets SIGTERM.
pub fn pod(name: &str, version: Version) -> Value {
    let script = format!("trap 'exit 0' TERM; sleep 1000000 & wait # {}", version.spec);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"version": version.label.to_string()}},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c"], "args": [script],
            }],
        },
    })
}

/// The number in the arguments that a pod's container is started with.
pub fn spec_of(arguments: &Value) -> &str {
    arguments[0].as_str().and_then(|script| script.rsplit(' ').next()).unwrap_or_default()
}

/// One that changes the pods of a source.
pub struct Worker {
    source: Source,
    random: Random,
    /// What it has last done to each pod that exists. Of the posted pods this is what was acknowledged.
    pods: BTreeMap<String, Version>,
    /// The name of each manifest's file.
    files: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    File,
    Http,
    Api,
}

/// A worker for each source.
pub fn workers(seed: u64) -> Vec<Worker> {
    let worker = |source| Worker {
        source,
        random: Random::new(seed.wrapping_mul(31).wrapping_add(source as u64)),
        pods: BTreeMap::new(),
        files: BTreeMap::new(),
    };
    [Source::File, Source::Http, Source::Api].map(worker).into()
}

/// The names of pods that never change. A directory without any manifest could be a mount that is missing, too.
pub const KEPT: [&str; 3] = ["kept-file", "kept-http", "kept-api"];

/// Creates the pods that never change.
pub fn kept_pods(world: &World, workers: &mut [Worker]) {
    for (worker, name) in workers.iter_mut().zip(KEPT) {
        worker.put(world, name, true);
    }
}

impl Worker {
    /// The posted pods that were acknowledged.
    pub fn posted(&self) -> Option<&BTreeMap<String, Version>> {
        (self.source == Source::Http).then_some(&self.pods)
    }

    /// Changes pods until it is over.
    pub fn work(&mut self, world: &World, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
            let prefix = match self.source {
                Source::File => "f",
                Source::Http => "h",
                Source::Api => "a",
            };
            let name = format!("{prefix}{}", self.random.below(PODS));
            match self.random.below(8) {
                0 | 1 => self.remove(world, &name),
                2 if self.source == Source::File => self.rename(world, &name),
                step => self.put(world, &name, step < 5),
            }
            // The rate of the work.
            thread::sleep(PAUSE);
        }
    }

    /// Removes its pods, but for those that stay.
    pub fn clear(&mut self, world: &World) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names.iter().filter(|name| !KEPT.contains(&&***name)) {
            self.remove(world, name);
        }
    }

    /// Creates or changes a pod: its label, or also what it runs.
    fn put(&mut self, world: &World, name: &str, runs_anew: bool) {
        let number = world.number();
        let known = self.pods.get(name).copied();
        let spec = known.filter(|_| !runs_anew).map_or(number, |known| known.spec);
        let version = Version { label: number, spec };
        let is_done = match self.source {
            Source::File => {
                self.write(world, name, version);
                true
            }
            Source::Http => post(world, name, version, known),
            Source::Api => replace(world, name, version, known),
        };
        world.note(&format!("{:?} put", self.source), &format!("{name} {version:?}, done: {is_done}"));
        if is_done {
            self.pods.insert(name.to_owned(), version);
        }
    }

    fn remove(&mut self, world: &World, name: &str) {
        match self.source {
            Source::File => {
                let Some(file) = self.files.remove(name) else { return };
                fs::remove_file(manifest(world, &file)).unwrap();
            }
            Source::Http => {
                let grace = self.random.below(2);
                let path = format!("{OBJECTS}/{name}?gracePeriodSeconds={grace}");
                let (answer, attempts) = send(world, "DELETE", &path, &Value::Null);
                // An attempt without an answer may have removed it.
                let may_lack = attempts > 1 || !self.pods.contains_key(name);
                if answer.code != 200 && !(answer.code == 404 && may_lack) {
                    world.fail(&format!("{name} was acknowledged; DELETE: {}", answer.text()));
                }
            }
            Source::Api => delete(world, name),
        }
        world.note(&format!("{:?} remove", self.source), name);
        self.pods.remove(name);
    }

    fn write(&mut self, world: &World, name: &str, version: Version) {
        let file = self.files.entry(name.to_owned()).or_insert_with(|| format!("{name}.yaml"));
        world.machine.write(&format!("{MANIFESTS}/{file}"), pod(name, version).to_string());
    }

    /// Gives a manifest another file name.
    fn rename(&mut self, world: &World, name: &str) {
        let Some(file) = self.files.get_mut(name) else { return };
        let to = format!("{name}-{}.yaml", world.number());
        fs::rename(manifest(world, file), manifest(world, &to)).unwrap();
        *file = to;
        world.note("File rename", name);
    }
}

fn manifest(world: &World, file: &str) -> PathBuf {
    world.machine.path(&format!("{MANIFESTS}/{file}"))
}

/// Sends a request until the agent answers it. Returns how many attempts that took, too.
fn send(world: &World, method: &str, path: &str, body: &Value) -> (Answer, u32) {
    let (begun, body) = (Instant::now(), body.to_string());
    let body = if body == "null" { "" } else { &body };
    for attempt in 1.. {
        match world.machine.ask(method, path, body.as_bytes()) {
            Ok(answer) if answer.code < 500 && answer.code != 429 => return (answer, attempt),
            other if begun.elapsed() > PATIENCE => world.fail(&format!("{method} {path}: {other:?}")),
            _ => thread::sleep(INTERVAL),
        }
    }
    unreachable!("it has returned or failed")
}

/// Posts or replaces a pod. Returns whether that was acknowledged.
fn post(world: &World, name: &str, version: Version, known: Option<Version>) -> bool {
    let body = pod(name, version);
    let (answer, _) = match known {
        Some(known) if known.label % 2 == 0 => send(world, "PUT", &format!("{OBJECTS}/{name}"), &body),
        _ => send(world, "POST", "/pods", &body),
    };
    match answer.code {
        200 | 201 => true,
        // It is still being stopped.
        409 if known.is_none() => false,
        _ => world.fail(&format!("{name} was acknowledged as {known:?}; now {}", answer.text())),
    }
}

/// Creates, patches or replaces a pod at the API server. What that has done is asked for later.
fn replace(world: &World, name: &str, version: Version, known: Option<Version>) -> bool {
    if known.is_some_and(|known| known.spec == version.spec) {
        let patch = json!({"metadata": {"labels": {"version": version.label.to_string()}}});
        return world.apiserver.try_ask("PATCH", &format!("{OBJECTS}/{name}"), &patch).is_ok();
    }
    delete(world, name);
    create(world, name, version)
}

/// Creates a pod at the API server. Returns whether it says so.
pub fn create(world: &World, name: &str, version: Version) -> bool {
    let mut pod = pod(name, version);
    pod["spec"]["nodeName"] = "node1".into();
    world.apiserver.try_ask("POST", OBJECTS, &pod).is_ok()
}

/// Deletes a pod at the API server at once, as if no node ran it.
pub fn delete(world: &World, name: &str) {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    // It may not exist, or the server may be away.
    let _ = world.apiserver.try_ask("DELETE", &format!("{OBJECTS}/{name}"), &options);
}
