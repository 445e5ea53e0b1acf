//! Clients that follow the agent over HTTP and go on after each break: of the update stream, and of watches of pods
//! and events.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    clients::{Address, ask, key},
    invariants::Broken,
    node::World,
};

/// The pause after a stream that has ended.
const PAUSE: Duration = Duration::from_millis(700);

/// What a client holds: each pod with the source that it last came from.
#[derive(Default)]
pub struct Follower {
    held: Mutex<BTreeMap<String, (String, Value)>>,
    /// Where it goes on; from the beginning if there is none.
    next: Mutex<Option<String>>,
    run: Mutex<String>,
    /// How many changes a watch of this run of the agent has had.
    changes: AtomicUsize,
    /// The sources that had a SET since the stream began. Before it, restored pods may be added that are held.
    begun: Mutex<BTreeSet<String>>,
}

/// How a client follows.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Updates,
    Watch,
    /// A watch of the pods that run image 1.
    Selected,
    /// A watch of the events.
    Events,
}

impl Follower {
    /// The objects that it holds, by `namespace/name`.
    pub fn objects(&self) -> BTreeMap<String, Value> {
        self.held().iter().map(|(key, (_, pod))| (key.clone(), pod.clone())).collect()
    }

    /// How many changes a watch of this run of the agent has had.
    pub fn changes(&self) -> usize {
        self.changes.load(Ordering::SeqCst)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, (String, Value)>> {
        self.held.lock().unwrap()
    }

    fn go_on(&self, at: Option<String>) {
        *self.next.lock().unwrap() = at;
    }

    /// Takes a line of `/updates`, and says what is wrong with it.
    fn update(&self, line: &Value, broken: &Broken) -> Option<String> {
        if let Some(run) = line["run"].as_str() {
            run.clone_into(&mut self.run.lock().unwrap());
        }
        let number = line["seq"].as_u64()?;
        self.go_on(Some(format!("{}-{}", self.run.lock().unwrap(), number + 1)));
        let mut same = line.clone();
        same["run"].take();
        broken.numbered("/updates", &self.run.lock().unwrap(), number, same.to_string().as_bytes());
        let (op, source) = (line["op"].as_str()?, line["source"].as_str()?.to_owned());
        let mut held = self.held();
        let mut begun = self.begun.lock().unwrap();
        if op == "SET" {
            held.retain(|_, (of, _)| *of != source);
            begun.insert(source.clone());
        }
        let mut wrong = None;
        for pod in line["pods"].as_array()? {
            let key = key(pod);
            let before = if op == "REMOVE" {
                held.remove(&key)
            } else {
                held.insert(key.clone(), (source.clone(), pod.clone()))
            };
            let is_wrong = match op {
                _ if op == "SET" || !begun.contains(&source) => false,
                "ADD" => before.is_some_and(|(of, _)| of == source),
                _ => before.is_none(),
            };
            wrong = is_wrong.then(|| format!("/updates: {number} {op} of {key}")).or(wrong);
        }
        wrong
    }

    /// Takes an event of a watch, and says what is wrong with it.
    fn event(&self, event: &Value) -> Option<String> {
        let (kind, pod) = (event["type"].as_str()?, &event["object"]);
        if kind == "ERROR" {
            self.go_on(None);
            return None;
        }
        let version = pod["metadata"]["resourceVersion"].as_str()?.to_owned();
        let before = self.next.lock().unwrap().replace(version.clone())?;
        let number = |version: &str| version.parse::<u64>().unwrap();
        if number(&version) < number(&before) || version == before && kind != "BOOKMARK" {
            return Some(format!("watch: {kind} with {version} after {before}"));
        }
        let key = key(pod);
        let mut held = self.held();
        let before = match kind {
            "BOOKMARK" => return None,
            "DELETED" => held.remove(&key),
            _ => held.insert(key.clone(), (String::new(), pod.clone())),
        };
        self.changes.fetch_add(1, Ordering::SeqCst);
        (before.is_some() == (kind == "ADDED")).then(|| format!("watch: {kind} of {key}"))
    }
}

/// Follows one run of the agent until it ends. What is held stays.
pub async fn follow(world: Rc<World>, agent: Address, way: Way) {
    let follower = &world.followers[way as usize];
    follower.changes.store(0, Ordering::SeqCst);
    loop {
        if let Some(path) = follower.path(&agent, way).await {
            follower.read(&world, &agent, way, &path).await;
        }
        sleep(PAUSE).await;
    }
}

impl Follower {
    /// Where the next stream is; none if that is not known.
    async fn path(&self, agent: &Address, way: Way) -> Option<String> {
        let next = self.next.lock().unwrap().clone();
        Some(match (way, next) {
            (Way::Updates, Some(next)) => format!("/updates?from={next}"),
            (Way::Updates, None) => {
                // What it holds of a source stays until its SET.
                self.begun.lock().unwrap().clear();
                "/updates".to_owned()
            }
            (_, Some(version)) => way.watch(&version),
            (_, None) => way.watch(&list(self, agent, way).await?),
        })
    }

    /// Reads a stream to its end.
    async fn read(&self, world: &World, agent: &Address, way: Way, path: &str) {
        let request = Request::builder().uri(path).header("host", "podmux").body(String::new()).unwrap();
        let Some(answer) = agent.request(request).await else { return };
        if answer.status() == 410 {
            return self.go_on(None);
        }
        if answer.status() != 200 {
            return;
        }
        let (mut body, mut text) = (answer.into_body(), Vec::new());
        while let Some(Ok(frame)) = world.next_read(body.frame()).await {
            text.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Value = serde_json::from_slice(&text.drain(..=end).collect::<Vec<_>>()).unwrap();
                let wrong = match way {
                    Way::Updates => self.update(&line, &world.broken),
                    Way::Watch | Way::Selected | Way::Events => self.event(&line),
                };
                if let Some(wrong) = wrong {
                    world.broken.add(wrong);
                }
            }
        }
    }
}

impl Way {
    /// Where its objects are listed.
    pub fn list(self) -> &'static str {
        match self {
            Self::Updates | Self::Watch => "/api/v1/pods?",
            Self::Selected => "/api/v1/pods?labelSelector=v%3D1",
            Self::Events => "/api/v1/events?",
        }
    }

    fn watch(self, version: &str) -> String {
        format!("{}&watch=1&allowWatchBookmarks=1&resourceVersion={version}", self.list())
    }
}

/// Replaces what is held by a list, if all sources are known. Returns its version.
async fn list(follower: &Follower, agent: &Address, way: Way) -> Option<String> {
    let (code, body) = ask(agent, "GET", way.list(), "").await;
    let list: Value = serde_json::from_str(&body).unwrap_or_default();
    let version = list["metadata"]["resourceVersion"].as_str().filter(|_| code == 200)?;
    let pods = list["items"].as_array()?.iter().map(|pod| (key(pod), (String::new(), pod.clone())));
    *follower.held() = pods.collect();
    follower.go_on(Some(version.to_owned()));
    Some(version.to_owned())
}
