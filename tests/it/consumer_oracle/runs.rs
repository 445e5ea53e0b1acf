//! What every runtime beside the consumers can do for a case.

use std::collections::BTreeMap;

use rustix::process::Pid;
use serde_json::Value;

use super::world::pod_key;
use crate::support::random::Random;

/// What each pod that runs is made of, by `namespace/name` and UID.
pub type Running = BTreeMap<(String, String), String>;

/// A runtime, its faults, and what it runs.
pub trait Runs {
    /// The value of `--sink`.
    fn sink(&self) -> String;

    /// Makes images of these names.
    fn provide(&mut self, _images: &[String]) {}

    /// Begins to fail at random, or works from now on.
    fn set_faulty(&mut self, faulty: bool);

    /// Judges what has happened since.
    fn read(&mut self) {}

    /// What runs. Call it while it works.
    fn running(&self) -> Running;

    /// What should run of a pod that the agent lists.
    fn wanted(&self, pod: &Value) -> String {
        image(pod)
    }

    /// Something takes long: ends a hang of the runtime that is not the agent's fault.
    fn unblock(&self) {}

    /// What is known of it, for a report.
    fn report(&self) -> String;

    /// Kills one of its processes. Returns what was done.
    fn kill_one(&mut self, agent: Option<Pid>, random: &mut Random) -> String;

    /// Kills all processes that act for the agent. What runs goes on.
    fn kill_all(&mut self);

    /// Nothing runs any more, as after a reboot. The agent has ended.
    fn reboot(&mut self);

    /// All is at rest: judges what has happened since the last rest.
    fn rest(&mut self) {}

    /// What is left of pods that no source wants.
    fn left(&self) -> Vec<String> {
        self.running().into_keys().map(|(key, _)| key).collect()
    }

    /// Whether exactly one pod of a name runs, and has this image.
    fn has(&self, key: &str, image: &str) -> bool {
        let running = self.running();
        let mut images = running.iter().filter(|((of, _), _)| of == key).map(|(_, made_of)| made_of);
        let is_of = |made_of: &String| made_of.split(' ').next() == Some(image);
        images.next().is_some_and(is_of) && images.next().is_none()
    }

    /// How what runs differs from what the agent lists.
    fn differs(&self, listed: &[Value]) -> Option<String> {
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let wanted: Running = listed.iter().map(|pod| ((pod_key(pod), uid(pod)), self.wanted(pod))).collect();
        let running = self.running();
        (running != wanted).then(|| format!("what runs is {running:?} instead of {wanted:?}"))
    }
}

/// The image of a pod.
pub fn image(pod: &Value) -> String {
    pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
}
