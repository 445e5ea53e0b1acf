//! What a pod's containers need next, from what podman has. Pure; the rules are the kubelet's
//! (`pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `computePodActions`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::spec::{Container, RestartPolicy, Role, Translation};

/// The delay before the second restart of a container; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(10);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_mins(5);
/// How long a container must have run until its earlier restarts do not count.
const GOOD: Duration = Duration::from_mins(10);
/// The exit code of a container that could not be started, as with containerd.
pub(super) const START_ERROR: i32 = 128;
/// The exit code of a container that has ended with the machine, as with containerd.
pub(super) const LOST: i32 = 255;

/// What podman has of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Observation {
    /// Whether the pod's namespaces are there: its infra container runs, or it has none and no container has ended
    /// with the machine.
    pub(super) is_up: bool,
    /// The process of its infra container. A restart of the pod brings another one, and other addresses.
    pub(super) infra_pid: Option<i64>,
    pub(super) addresses: Vec<String>,
    pub(super) containers: Vec<Seen>,
}

/// A container in podman. Each is started once: a restart is a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    /// Its name in the pod.
    pub(super) name: String,
    /// How many containers of this name were before it.
    pub(super) restarts: u32,
    /// How many of them count for the delay before the next one.
    pub(super) backoff: u32,
    pub(super) state: State,
    pub(super) image: String,
    pub(super) image_id: String,
    pub(super) started: Option<Timestamp>,
}

impl Seen {
    /// What tells this start of a container from others: an operator may start it again.
    pub(super) fn start(&self) -> String {
        start(&self.id, self.started)
    }
}

/// What tells a start of a container from others, by its id.
pub(super) fn start(id: &str, started: Option<Timestamp>) -> String {
    format!("{id} {started:?}")
}

/// The state of a container in podman.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It was not started.
    Created,
    Running,
    Exited(Exit),
}

/// How a container has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    /// Never in the future.
    pub(super) finished: Timestamp,
    pub(super) is_oom: bool,
    /// Whether it was stopped because a probe has failed, or its pod has lost its namespaces.
    pub(super) is_unhealthy: bool,
    pub(super) message: String,
}

impl Observation {
    /// Whether a container runs.
    pub(super) fn runs(&self) -> bool {
        self.containers.iter().any(|seen| seen.state == State::Running)
    }

    /// The newest container of a name.
    pub(super) fn current(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().filter(|seen| seen.name == name).max_by_key(|seen| seen.restarts)
    }

    /// The container of a name before the newest one.
    pub(super) fn previous(&self, name: &str) -> Option<&Seen> {
        let current = self.current(name)?.restarts;
        let all = self.containers.iter().filter(|seen| seen.name == name && seen.restarts < current);
        all.max_by_key(|seen| seen.restarts)
    }

    fn exit(&self, name: &str) -> Option<&Exit> {
        match &self.current(name)?.state {
            State::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// To create a container, by its index, and to start it.
    Create { index: usize, restarts: u32, backoff: u32 },
    /// To start a container that was created before a crash.
    Start { index: usize, id: String },
    /// To stop a container that nothing needs any more.
    Stop(String),
    /// To remove a container that was restarted twice.
    Remove(String),
}

/// What to do now, and what waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    /// The delays of the containers that are started again after one, by name, until they have been created.
    pub(super) waiting: BTreeMap<String, Duration>,
    /// When the first of these delays ends that have not ended.
    pub(super) next: Option<Timestamp>,
    /// The containers that are needed, and not created because that has failed.
    pub(super) held: BTreeSet<String>,
}

/// Decides what to do next. `has_started` tells whether a running container has passed its startup probe, and `held`
/// until when a container is not created because that has failed.
pub(super) fn plan(
    pod: &Translation,
    seen: &Observation,
    now: Timestamp,
    has_started: impl Fn(&Seen) -> bool,
    held: impl Fn(&str) -> bool,
) -> Plan {
    let mut planning = Planning { seen, now, held: &held, plan: Plan::default() };
    for old in &seen.containers {
        let is_before = |newer: Option<&Seen>| newer.is_some_and(|newer| old.restarts < newer.restarts);
        if old.state == State::Running && is_before(seen.current(&old.name)) {
            // An operator has started it again.
            planning.plan.actions.push(Action::Stop(old.id.clone()));
        } else if is_before(seen.previous(&old.name)) {
            planning.plan.actions.push(Action::Remove(old.id.clone()));
        }
    }
    let is_over = is_over(pod, seen);
    let has_main = has_main(pod, seen);
    for (index, container) in pod.containers.iter().enumerate() {
        let current = seen.current(&container.name);
        match container.role {
            Role::Main if !is_over => planning.keep(index, container),
            Role::Main => {}
            Role::Sidecar if is_over => {
                if let Some(running) = current.filter(|current| current.state == State::Running) {
                    // The last one is stopped first.
                    planning.plan.actions.insert(0, Action::Stop(running.id.clone()));
                }
            }
            Role::Sidecar => {
                planning.keep(index, container);
                let is_up = |current: &Seen| current.state == State::Running && has_started(current);
                let mut later = pod.containers[index + 1..].iter();
                let is_last = later.all(|later| seen.current(&later.name).is_none());
                if is_last && !current.is_some_and(is_up) {
                    break;
                }
            }
            Role::Init
                if has_main
                    || seen.exit(&container.name).is_some_and(|exit| !has_failed(Role::Init, exit)) => {}
            Role::Init => {
                if !is_over {
                    planning.keep(index, container);
                    break;
                }
            }
        }
    }
    planning.plan
}

/// Whether a container of the pod's own was created: its init containers have done their work.
pub(super) fn has_main(pod: &Translation, seen: &Observation) -> bool {
    let mut main = pod.containers.iter().filter(|container| container.role == Role::Main);
    main.any(|container| seen.current(&container.name).is_some())
}

/// Whether nothing of the pod will be started again.
pub(super) fn is_over(pod: &Translation, seen: &Observation) -> bool {
    if !has_main(pod, seen) {
        return has_failed_init(pod, seen);
    }
    let mut main = pod.containers.iter().filter(|container| container.role == Role::Main);
    let has_ended = main.clone().any(|main| seen.exit(&main.name).is_some());
    main.all(|main| match seen.current(&main.name).map(|current| &current.state) {
        Some(State::Exited(exit)) => !is_restarted(main, exit),
        Some(State::Running) => false,
        // It has not run, and without namespaces those that have ended would run again with it.
        Some(State::Created) | None => has_ended && !seen.is_up && main.restart == RestartPolicy::Never,
    })
}

/// Whether an init container has failed and is not started again.
pub(super) fn has_failed_init(pod: &Translation, seen: &Observation) -> bool {
    let mut init = pod.containers.iter().filter(|container| container.role == Role::Init);
    let has_failed = |init: &Container, exit| has_failed(Role::Init, exit) && !is_restarted(init, exit);
    init.any(|init| seen.exit(&init.name).is_some_and(|exit| has_failed(init, exit)))
}

/// Whether a container has ended with a failure. An init container that was out of memory or was stopped has, whatever its
/// exit code is.
pub(super) fn has_failed(role: Role, exit: &Exit) -> bool {
    exit.code != 0 || (role == Role::Init && (exit.is_oom || exit.is_unhealthy))
}

/// Whether a container that has ended is started again.
pub(super) fn is_restarted(container: &Container, exit: &Exit) -> bool {
    match container.restart {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => has_failed(container.role, exit) || exit.is_unhealthy,
        RestartPolicy::Never => false,
    }
}

struct Planning<'a> {
    seen: &'a Observation,
    now: Timestamp,
    held: &'a dyn Fn(&str) -> bool,
    plan: Plan,
}

impl Planning<'_> {
    /// Starts a container if it does not run and shall.
    fn keep(&mut self, index: usize, container: &Container) {
        let name = &container.name;
        if (self.held)(name) {
            self.plan.held.insert(name.clone());
            return;
        }
        let Some(current) = self.seen.current(name) else {
            return self.plan.actions.push(Action::Create { index, restarts: 0, backoff: 0 });
        };
        match &current.state {
            State::Created => self.plan.actions.push(Action::Start { index, id: current.id.clone() }),
            State::Exited(exit) if is_restarted(container, exit) => {
                let ran = current.started.map(|started| exit.finished.duration_since(started));
                let was_good = ran.is_some_and(|ran| ran >= GOOD.try_into().unwrap_or_default());
                let backoff = if was_good { 0 } else { current.backoff };
                let delay = delay(backoff);
                let until = exit.finished.checked_add(delay).unwrap_or(self.now);
                if !delay.is_zero() {
                    self.plan.waiting.insert(name.clone(), delay);
                }
                if self.now >= until {
                    let (restarts, backoff) = (current.restarts.saturating_add(1), backoff.saturating_add(1));
                    self.plan.actions.push(Action::Create { index, restarts, backoff });
                } else {
                    self.plan.next = Some(self.plan.next.map_or(until, |next| next.min(until)));
                }
            }
            State::Running | State::Exited(_) => {}
        }
    }
}

/// The delay after the end of a container before which so many restarts count: none, 10 s, 20 s, …, 5 min.
pub(super) fn delay(backoff: u32) -> Duration {
    match backoff.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_DELAY.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_DELAY),
    }
}
