//! What must hold, in plain sentences.
//!
//! At every moment:
//!
//! 1. No number names two updates, and the numbers of a consumer's stream rise: over all runs of the agent. If
//!    the clock was set back and the state could not be used at a start, they do so in each run.
//! 2. A stream of updates or of a watch adds nothing that is there, and changes or removes nothing that is not.
//! 3. No consumer is told that a pod is gone while its source has it: not by a source whose state is not known, not
//!    after a restart, not by a half-written manifest. What a source has that is not configured counts for nothing.
//! 4. The runtime is never told to add a pod that runs, nor to change one that runs as it is to be, nor to stop one that
//!    its source has as it runs, nor to do anything with a pod while another call for it is on its way. At a start no pod
//!    is started that its source no longer has, or as it was before, if the source can be read.
//! 5. A write that was acknowledged is not lost: no later answer contradicts it. A dry run changes nothing, and neither
//!    does a write of an earlier version or of an earlier pod.
//! 6. What ran for a minute is served and runs again a minute after a stop, a kill or a reboot, whether its source can
//!    be reached or not.
//! 7. The agent is not ready while there is a source that it could never read, and of which it has nothing stored.
//! 8. The agent neither panics nor ends by itself, and its state is never damaged. It starts in a few seconds, whatever is
//!    wrong with its state and its sources, answers each request while it runs, closes a connection whose request does
//!    not come to its end, and ends in a minute after a stop.
//!
//! Within [`CONVERGES`] after the last fault has ended:
//!
//! 9. Every consumer's replay of its stream is what the sources have, with the phase of the API server's pods.
//! 10. What the API answers is what the sources have, and every acknowledged write is in it. What a client of a watch
//!     holds is the same, with the observed status.
//! 11. Exactly what is wanted runs. What has ended for its API server does not.
//! 12. The agent is ready.
//! 13. One more pod can be posted if the quota allows it. Before that, no pod was created beyond it. A pod can be created,
//!     replaced, patched and deleted, and its deletion ends.
//! 14. An event says that a pod was deleted, no two say the same, and a client that watches them holds those that are listed.
//! 15. The memory that it holds is bounded: by [`HOLDS`], and a little for each change of a pod or an event that its
//!     history has.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use super::{
    ALLOCATOR,
    clients::{self, Address, uid},
    followers::Way,
    is_alone,
    node::{Node, World},
    truth::{Image, image},
};

/// The longest delay of a retry is five minutes, that of a pod's start.
pub const CONVERGES: Duration = Duration::from_mins(12);

/// The most memory that an agent with a dozen pods holds, in bytes: 0.5 to 1.1 million were seen, with its clients'
/// connections,
const HOLDS: usize = 1_200_000;
/// this for each change of a pod, which its history has, with its status, of which a condition takes 600: 6,100 is the
/// mean of 1,200 seeds,
const HOLDS_A_CHANGE: usize = 6_300;
/// and this for each change of an event, with a mean of 1,850.
const HOLDS_AN_EVENT: usize = 1_950;

/// What a number names: the consumer, and the line of the update.
type Named = (&'static str, Vec<u8>);

/// What was found to be broken, and what is remembered to find it.
#[derive(Default)]
pub struct Broken {
    found: Mutex<Vec<String>>,
    numbers: Mutex<BTreeMap<(String, u64), Named>>,
    /// Whether the clock was set back,
    pub set_back: AtomicBool,
    /// and whether the state could not be read or not be written when the agent started.
    pub without_state: AtomicBool,
}

impl Broken {
    pub fn add(&self, what: String) {
        self.found.lock().unwrap().push(what);
    }

    pub fn first(&self) -> Option<String> {
        self.found.lock().unwrap().first().cloned()
    }

    pub fn numbers_may_repeat(&self) -> bool {
        self.set_back.load(Ordering::SeqCst) && self.without_state.load(Ordering::SeqCst)
    }

    /// Notes the update that a number names for a consumer.
    pub fn numbered(&self, consumer: &'static str, run: &str, number: u64, line: &[u8]) {
        let mut numbers = self.numbers.lock().unwrap();
        let run = if self.numbers_may_repeat() { run } else { "" };
        let (of, known) =
            numbers.entry((run.to_owned(), number)).or_insert_with(|| (consumer, line.to_vec()));
        if *of != consumer || known != line {
            let shown = |line: &[u8]| String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
            self.add(format!(
                "number {number} names two updates: {} to {of}, {} to {consumer}",
                shown(known),
                shown(line)
            ));
        }
    }
}

/// Checks that the agent is not ready if there is a source that it could never read.
pub async fn readiness(world: &World, node: &Node, never_read: &[&str]) {
    let Some(agent) = node.address().filter(|_| !never_read.is_empty()) else { return };
    let (code, body) = clients::ask(&agent, "GET", "/readyz?verbose", "").await;
    if code == 0 {
        world.broken.add("it does not say whether it is ready".to_owned());
    }
    if code == 200 {
        let never = never_read.join(" and ");
        world.broken.add(format!("it is ready, and could never read source {never}: {body}"));
    }
}

/// What is not as it must be after the faults have ended; none if all is.
pub async fn difference(world: &World, node: &Node) -> Option<String> {
    let Some(agent) = node.address() else { return Some("the agent does not run".to_owned()) };
    let (code, body) = clients::ask(&agent, "GET", "/readyz?verbose", "").await;
    if code != 200 {
        return Some(format!("it is not ready: {body}"));
    }
    for consumer in &world.consumers {
        let pods = consumer.pods();
        let held = pods.iter().map(|(key, held)| (key.clone(), of_text(&held.text)));
        if let Some(difference) = compared(world, &held.collect()) {
            return Some(format!("consumer {}: {difference}", consumer.name));
        }
    }
    for (follower, name) in world.followers.iter().zip(["/updates", "watch"]) {
        let held = follower.objects().into_iter().map(|(key, pod)| (key, of_pod(&pod)));
        if let Some(difference) = compared(world, &held.collect()) {
            return Some(format!("the client of {name}: {difference}"));
        }
    }
    let checked = phases(world).or_else(|| selection(world));
    if checked.is_some() {
        return checked;
    }
    if let Some(difference) = events(world, &agent).await {
        return Some(difference);
    }
    if let Some(difference) = quota(world, &agent).await {
        return Some(difference);
    }
    let listed = clients::listed(&agent).await;
    if let Some(key) = listed.iter().find_map(|(key, pod)| is_deleted_here(pod).then_some(key)) {
        return Some(format!("{key} is still being deleted"));
    }
    let watched = world.followers[Way::Watch as usize].objects();
    if let Some((key, pod)) = listed.iter().find(|(key, pod)| watched.get(*key) != Some(pod)) {
        return Some(format!(
            "{key} is {pod} in a list, and for the client of a watch: {:?}",
            watched.get(key)
        ));
    }
    // The API server may be one that was restored, and the pod that stays had ended before.
    let is_kept_over = |pod: &Value| pod["status"]["phase"] == "Succeeded" && world.truth.is_kept(uid(pod));
    let over = listed.iter().filter(|(_, pod)| world.truth.has_ended(uid(pod)) || is_kept_over(pod));
    let over: Vec<String> = over.map(|(key, _)| key.clone()).collect();
    let statuses = world.runtime.statuses();
    let is_restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].clone();
    let shown = |key| listed.get(key).filter(|pod| of_pod(pod).is_some()).map(is_restarted);
    if let Some((key, status)) = statuses.iter().find(|(key, status)| {
        shown(*key).is_some_and(|restarts| restarts != status["containerStatuses"][0]["restartCount"])
    }) {
        return Some(format!("{key} is {status} in the runtime, and in a list {}", listed[key]));
    }
    let listed: BTreeMap<String, Image> =
        listed.iter().map(|(key, pod)| (key.clone(), of_pod(pod))).collect();
    if let Some(difference) = compared(world, &listed) {
        return Some(format!("GET of the pods: {difference}"));
    }
    let (mut wanted, running) = (listed, world.runtime.running());
    wanted.retain(|key, image| image.is_some() && !over.contains(key));
    if running != wanted && !world.setup.has_no_runtime {
        return Some(format!("wanted: {wanted:?}, but what runs is: {running:?}"));
    }
    None
}

/// What is not as it must be with the phase of a pod of the API server, of which the consumers are told.
fn phases(world: &World) -> Option<String> {
    let there = world.server.pods();
    let consumers = world.consumers.iter().flat_map(|consumer| {
        let api = consumer.pods().into_iter().filter(|(_, held)| held.source == "api");
        api.map(|(key, held)| (consumer.name, key, serde_json::from_slice::<Value>(&held.text).unwrap()))
    });
    consumers.into_iter().find_map(|(name, key, held)| {
        let pod = there.get(&key).filter(|pod| of_pod(pod) == of_pod(&held))?;
        let (held, phase) = (&held["status"]["phase"], &pod["status"]["phase"]);
        (held != phase).then(|| format!("consumer {name}: the phase of {key} is {held} instead of {phase}"))
    })
}

/// What is not as it must be with a client that watches the events.
async fn events(world: &World, agent: &Address) -> Option<String> {
    let held = world.followers[Way::Events as usize].objects();
    let listed = clients::objects(agent, Way::Events.list()).await;
    if let Some((key, event)) = listed.iter().find(|(key, event)| held.get(*key) != Some(event)) {
        let held = held.get(key);
        return Some(format!(
            "{key} is {event} in a list of the events, and for the client of a watch: {held:?}"
        ));
    }
    let gone = held.keys().find(|key| !listed.contains_key(*key));
    if let Some(key) = gone {
        return Some(format!("the client of a watch of the events holds {key}, which is not listed"));
    }
    let is_of = |event: &Value, uid: &str| {
        event["reason"] == "Terminating" && event["involvedObject"]["uid"].as_str() == Some(uid)
    };
    if let Some(uid) = &*world.deleted.borrow()
        && !listed.values().any(|event| is_of(event, uid))
    {
        return Some(format!("no event says that pod {uid} was deleted"));
    }
    let mut told = BTreeMap::new();
    listed.iter().find_map(|(key, event)| {
        let what = ["reason", "message", "type"].map(|field| event[field].to_string());
        let before = told.insert((event["involvedObject"].to_string(), what), key)?;
        Some(format!("{before} and {key} are events of the same: {event}"))
    })
}

/// What is not as it must be with the quota of the posted pods: a dry run shows whether one more can be posted.
async fn quota(world: &World, agent: &Address) -> Option<String> {
    let max = world.truth.tuning().max_posted;
    let (least, most) = world.truth.posted_beside(None);
    let (code, body) = clients::create_another(agent).await;
    let is_right = match code {
        201 => least < max,
        403 => most >= max && body.contains("exceeded quota"),
        _ => false,
    };
    (!is_right).then(|| format!("{code} {body}, with {least} to {most} posted pods of {max}"))
}

/// What is not as it must be with a client that watches the pods that run image 1.
fn selection(world: &World) -> Option<String> {
    let selected = world.followers[Way::Selected as usize].objects();
    let all = world.followers[Way::Watch as usize].objects();
    let is_selected = |pod: &Value| pod["spec"]["containers"][0]["image"] == image(1);
    let wanted = all.into_iter().filter(|(_, pod)| is_selected(pod)).collect::<BTreeMap<_, _>>();
    (selected != wanted)
        .then(|| format!("the client of a watch with a selector holds {selected:?} instead of {wanted:?}"))
}

/// Says if the agent holds too much memory, which it releases when it is killed.
pub async fn memory(world: &World, node: &mut Node) -> Option<String> {
    let held = || {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    };
    let before = held();
    node.kill(world).await;
    let held = before.saturating_sub(held());
    let [changes, events] = [Way::Watch, Way::Events].map(|way| world.followers[way as usize].changes());
    // The tests of one process allocate at the same time.
    let most = HOLDS + HOLDS_A_CHANGE * changes + HOLDS_AN_EVENT * events;
    let is_too_much = is_alone() && held > most;
    is_too_much
        .then(|| format!("it holds {held} bytes after {changes} changes of pods and {events} of events"))
}

fn of_text(text: &[u8]) -> Image {
    of_pod(&serde_json::from_slice(text).unwrap())
}

/// Whether the agent itself is deleting a pod.
fn is_deleted_here(pod: &Value) -> bool {
    let metadata = &pod["metadata"];
    metadata["annotations"]["kubernetes.io/config.source"] == "http"
        && !metadata["deletionTimestamp"].is_null()
}

/// What a pod runs. None of one that is being deleted.
fn of_pod(pod: &Value) -> Image {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let text = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
    (0..10).find(|v| image(*v) == text)
}

/// The first pod that is not as its source has it.
fn compared(world: &World, held: &BTreeMap<String, Image>) -> Option<String> {
    let keys = world.truth.keys();
    if let Some(key) = held.keys().find(|key| !keys.contains_key(*key)) {
        return Some(format!("{key} is of no source"));
    }
    let wrong = keys.iter().find(|(key, possible)| !possible.contains(&held.get(*key).copied().flatten()));
    wrong.map(|(key, possible)| format!("{key} is {:?}, and must be one of {possible:?}", held.get(key)))
}
