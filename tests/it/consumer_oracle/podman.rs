//! The runtime beside the consumers: a real podman, whose service is killed and hangs.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use jiff::Timestamp;
use podmux::{
    pod::{Prepared, SourceName},
    runtime::runtime_hash,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    replay::Law,
    runs::{Running, Runs, image},
};
use crate::support::{podman::Podman, random::Random};

/// A podman, and the processes that it ran when all was at rest.
pub struct Pods {
    podman: Podman,
    law: Arc<Law>,
    random: Random,
    /// The files of termination messages.
    files: PathBuf,
}

impl Pods {
    /// None where podman cannot be had.
    pub fn new(runtime_directory: PathBuf, law: &Arc<Law>, seed: u64) -> Option<Self> {
        let podman = Podman::start()?;
        Some(Self { podman, law: law.clone(), random: Random::new(seed), files: runtime_directory })
    }

    /// The running containers.
    fn containers(&self) -> Vec<Value> {
        let filter = "label=podmux.container";
        let all = self.podman.json(&["ps", "--format", "json", "--filter", filter]);
        all.as_array().unwrap().clone()
    }

    fn restart_service(&self) {
        self.podman.kill_service();
        self.podman.heal_service();
    }
}

fn label(of: &Value, name: &str) -> String {
    of["Labels"][format!("podmux.{name}")].as_str().unwrap_or_default().to_owned()
}

fn key(of: &Value) -> (String, String) {
    (format!("{}/{}", label(of, "namespace"), label(of, "name")), label(of, "uid"))
}

impl Runs for Pods {
    fn sink(&self) -> String {
        format!("podman={}", self.podman.socket().display())
    }

    fn provide(&mut self, images: &[String]) {
        let names = images.iter().map(|image| format!("localhost/{image}"));
        self.podman.tag(&names.collect::<Vec<_>>());
    }

    /// podman's service is away, hangs, or works until it is killed.
    fn set_faulty(&mut self, faulty: bool) {
        match self.random.below(3) {
            _ if !faulty => self.podman.heal_service(),
            0 => self.podman.kill_service(),
            1 => self.podman.stop_service(),
            _ => self.restart_service(),
        }
    }

    /// The image and the hash of each pod, and its id as long as it has no running container.
    fn running(&self) -> Running {
        let containers = self.containers();
        let pods = self.podman.json(&["pod", "ps", "--format", "json"]);
        let made_of = |pod: &Value| {
            let mut own = containers.iter().filter(|container| container["Pod"] == pod["Id"]);
            match (own.next(), own.next()) {
                (Some(only), None) => {
                    let image = only["Image"].as_str().unwrap();
                    format!("{} {}", image.trim_start_matches("localhost/"), label(pod, "hash"))
                }
                _ => pod["Id"].to_string(),
            }
        };
        pods.as_array().unwrap().iter().map(|pod| (key(pod), made_of(pod))).collect()
    }

    fn wanted(&self, pod: &Value) -> String {
        let prepared = Prepared::from_json(pod.to_string().as_bytes()).unwrap();
        let published = prepared.published_by(SourceName::File, Timestamp::UNIX_EPOCH);
        format!("{} {}", image(pod), runtime_hash(&published))
    }

    fn unblock(&self) {
        self.podman.end_any_deadlock();
    }

    fn report(&self) -> String {
        format!("podman's service says:\n{}", self.podman.dump_service())
    }

    fn kill_one(&mut self, _agent: Option<Pid>, random: &mut Random) -> String {
        // While its service hangs or is away, nothing can be asked for.
        self.restart_service();
        let containers = self.containers();
        if containers.is_empty() || random.once_in(2) {
            return "podman's service".to_owned();
        }
        let container = random.pick(&containers);
        let (key, _) = key(container);
        self.law.touched(&key);
        let pid = i32::try_from(container["Pid"].as_i64().unwrap()).unwrap();
        // It may just have ended.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        format!("podman's service and the container of {key}")
    }

    fn kill_all(&mut self) {
        self.restart_service();
    }

    fn reboot(&mut self) {
        self.podman.reboot();
    }

    /// The process ids of what no source has changed are the same.
    fn rest(&mut self) {
        let id = |container: &Value| (key(container), container["Pid"].to_string());
        self.law.kept(self.containers().iter().map(id).collect::<BTreeMap<_, _>>());
    }

    fn left(&self) -> Vec<String> {
        let containers = self.podman.run(&["ps", "--all", "--format", "{{.Names}}"]);
        let files = fs::read_dir(&self.files).into_iter().flatten().map(|instance| instance.unwrap().path());
        let files = files.flat_map(|instance| fs::read_dir(instance.join("podman")).into_iter().flatten());
        let files = files.map(|file| file.unwrap().path().display().to_string());
        let containers = containers.lines().map(str::to_owned);
        containers.chain(self.podman.pods()).chain(self.podman.volumes()).chain(files).collect()
    }
}
