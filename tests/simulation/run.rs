//! Runs a script, and shortens one that fails.

use std::{
    future::pending,
    panic::{self, AssertUnwindSafe},
    rc::Rc,
    sync::atomic::Ordering,
    time::Duration,
};

use futures::future::join_all;
use podmux::pod::SourceName;
use serde_json::{Value, json};
use tokio::{
    runtime::Builder,
    sync::Mutex,
    task::{JoinSet, LocalSet},
    time::{Instant, sleep, timeout},
};

use super::{
    clients::{self, Half, How, Several, Trial, Write},
    consumer::SinkFaults,
    disk::DiskFaults,
    invariants::{self, CONVERGES},
    manifest_url::Serves,
    network::rise,
    node::{self, Node, World},
    runtime::RuntimeFaults,
    script::{Action, NAMES, Script, Tuning},
    support::apiserver::{Answer, NODE},
    truth::{File, SHARED, image, key, name},
};

/// How often a rare failure is tried while a script is shortened.
const ATTEMPTS: usize = 3;
/// How often the agent is started before a script goes on without it.
const STARTS: usize = 3;
/// How many milliseconds a request may take to be stored.
const STORES_WITHIN: usize = 100;
/// The interval at which it is looked whether all is as it must be.
const LOOK: Duration = Duration::from_secs(1);
/// In this time the agent has numbers for its events again after the disk was full. Before, a pod that comes and goes may
/// have none.
const RESERVES: Duration = Duration::from_secs(3);

/// What a bound pod has that may not run here.
const FORBIDDEN: usize = 3;
/// The image that wants a port of the node.
const WANTS_PORT: usize = 1;
/// After this time a run waits for something that never comes.
const LONGEST: Duration = Duration::from_hours(24);

/// Why a script fails; none if all invariants hold.
pub fn fails(script: &Script) -> Option<String> {
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let ended = LocalSet::new().block_on(&runtime, async { timeout(LONGEST, run(script)).await });
        node::forget();
        ended.unwrap_or_else(|_| Some(format!("it has not ended after {LONGEST:?} of its own time")))
    }));
    ran.unwrap_or_else(|panic| {
        node::forget();
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Some(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// A script that still fails, with fewer steps: first many are left out at once, then single ones.
pub fn shrunk(mut script: Script, mut why: String) -> (Script, String) {
    let mut size = script.steps.len().div_ceil(2);
    while size > 0 {
        // From the end on: what comes after the failure has nothing to do with it.
        let mut end = script.steps.len();
        while end > 0 {
            let begin = end.saturating_sub(size);
            let mut shorter = script.clone();
            let passed: u64 = shorter.steps.drain(begin..end).map(|step| step.after).sum();
            if let Some(next) = shorter.steps.get_mut(begin) {
                next.after += passed;
            }
            if let Some(reason) = (0..ATTEMPTS).find_map(|_| fails(&shorter)) {
                (script, why) = (shorter, reason);
            }
            end = begin;
        }
        size /= 2;
    }
    (script, why)
}

async fn run(script: &Script) -> Option<String> {
    let world = World::begin(script.seed, script.setup);
    let (mut node, mut clients) = (Node::default(), JoinSet::new());
    node.start(&world, STARTS).await;
    for step in &script.steps {
        sleep(Duration::from_millis(step.after)).await;
        // What it could read since the step before.
        node.never_read(&world);
        perform(step.action, &world, &mut node, &mut clients).await;
        let never_read = node.never_read(&world);
        invariants::readiness(&world, &node, &never_read).await;
        if let Some(why) = world.broken.first() {
            return Some(format!("before {step:?}: {why}"));
        }
    }
    heal(&world);
    if node.address().is_none() {
        node.start(&world, usize::MAX).await;
    }
    let (mut begun, mut is_used) = (Instant::now(), false);
    loop {
        while clients.try_join_next().is_some() {}
        let difference = match (clients.is_empty(), world.broken.first()) {
            (_, Some(why)) => return Some(format!("after the last step: {why}")),
            (false, None) => Some("a request is not answered".to_owned()),
            (true, None) => invariants::difference(&world, &node).await,
        };
        let Some(why) = difference else {
            if is_used {
                return invariants::memory(&world, &mut node).await;
            }
            if let Some(refused) = use_it(&world, &node).await {
                return Some(format!("after it was as it must be: {refused}"));
            }
            (begun, is_used) = (Instant::now(), true);
            continue;
        };
        if begun.elapsed() > CONVERGES {
            return Some(format!("after {CONVERGES:?} without a fault: {why}"));
        }
        sleep(LOOK).await;
    }
}

/// Writes a pod in each way while all works. Returns what is refused.
async fn use_it(world: &World, node: &Node) -> Option<String> {
    sleep(RESERVES).await;
    let (n, agent) = (0, node.address()?);
    let is_there = clients::listed(&agent).await.contains_key(&key(SourceName::Http, n));
    let has_room = world.truth.posted_beside(Some(n)).1 < world.truth.tuning().max_posted;
    let first = if is_there { Action::Replace { n, v: 0 } } else { Action::Create { n, v: 0 } };
    let patch = Action::Patch { n, v: 2, how: How::Strategic };
    let writes = [(first, Some(0)), (patch, Some(2)), (Action::Delete { n, grace: 1 }, None)];
    for (action, image) in writes.into_iter().filter(|_| is_there || has_room) {
        let write = Write::of(action).unwrap();
        let wrong = write.send(&agent, pending(), &node.stopping(), &world.truth).await;
        if wrong.is_some() || world.truth.possible(SourceName::Http, n) != [image].into() {
            return Some(wrong.unwrap_or_else(|| format!("{action:?} is refused")));
        }
        if let Action::Create { .. } = action {
            // A pod that was there may have had as many events as a pod may have.
            let listed = clients::listed(&agent).await;
            world
                .deleted
                .replace(listed.get(&key(SourceName::Http, n)).map(|pod| clients::uid(pod).to_owned()));
        }
    }
    None
}

/// Ends all faults.
fn heal(world: &World) {
    world.disturb();
    world.machine_disturbed.set(Instant::now());
    world.api_is_down.set(false);
    world.api_fails.set(false);
    world.freeze_api(false);
    world.readers_stop.set(false);
    world.disk.set_faults(|faults| *faults = DiskFaults::default());
    world.slow.store(0, Ordering::SeqCst);
    rise(&world.server);
    world.url.serve(Serves::Pods);
    world.server.respond_normally();
    for consumer in &world.consumers {
        *consumer.faults.lock().unwrap() = SinkFaults::default();
    }
    *world.runtime.faults.lock().unwrap() = RuntimeFaults::default();
    // What is on its way for ever ends as a broken connection does.
    world.server.break_watches();
}

async fn perform(action: Action, world: &Rc<World>, node: &mut Node, clients: &mut JoinSet<()>) {
    if let Some(write) = Write::of(action) {
        return request(write, world, node, clients);
    }
    match action {
        Action::WriteSeveral(write) => write_several(write, world, node, clients),
        Action::Try { n, trial } => attempt(n, trial, world, node, clients),
        Action::SinkForgets => world.consumers[1].forget(),
        Action::SendHalf(half) => send_half(half, world, node, clients),
        Action::PutFile { n, v } => put_file(File::First, n, v, world),
        Action::PutTwin { n, v } => put_file(File::Twin, n, v, world),
        Action::RemoveFile { n } => remove_file(File::First, n, world),
        Action::RemoveTwin { n } => remove_file(File::Twin, n, world),
        Action::BreakFile { n } => {
            world.disk.overwrite(&path(File::First, n), b"{\"apiVersion\": \"v1\", \"kind\": \"Po");
            world.truth.broken(n, node.reads_since(world));
        }
        Action::PutUrl { n, v } => put_url(n, v, world),
        Action::RemoveUrl { n } => remove_url(n, world),
        Action::Reconfigure { .. }
        | Action::Kill { .. }
        | Action::KillInSync { .. }
        | Action::StatePutBack { .. }
        | Action::Stop { .. }
        | Action::StopAndChange { .. }
        | Action::PowerCut { .. } => end_run(action, world, node, clients).await,
        Action::Reload(tuning) => reload(tuning, world, node),
        Action::StateBackup => world.back_up_state(),
        Action::Bind { .. }
        | Action::BindForbidden { .. }
        | Action::BindMirror { .. }
        | Action::Unbind { .. }
        | Action::End { .. }
        | Action::Terminate { .. }
        | Action::ApiBackup
        | Action::ApiRestore => change_api(action, world),
        fault => set_fault(fault, world),
    }
}

/// Changes what the API server has.
fn change_api(action: Action, world: &World) {
    match action {
        Action::Bind { n, v } => {
            let pod = bound(n, v, world);
            world.server.put(pod);
            world.truth.set(SourceName::Api, n, Some(v));
        }
        Action::BindForbidden { n } => {
            let mut pod = bound(n, FORBIDDEN, world);
            pod["spec"]["hostNetwork"] = true.into();
            world.server.put(pod);
            if world.truth.may_have_old_tuning() {
                world.truth.allowed(n, Some(FORBIDDEN));
            }
            judge(n, world);
        }
        Action::BindMirror { n } => {
            let mut pod = bound(n, FORBIDDEN, world);
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "of-another-kubelet"});
            world.server.put(pod);
            world.truth.set(SourceName::Api, n, None);
        }
        Action::Unbind { n } => unbind(world, n),
        Action::End { n } => {
            let is_valid = world.truth.is_running(n);
            let Some(mut pod) = api_pod(world, n).filter(|pod| is_valid && !is_over(pod)) else { return };
            pod["status"]["phase"] = "Succeeded".into();
            world.server.put(pod);
            world.truth.ended(n);
        }
        Action::Terminate { n } => {
            let Some(mut pod) = api_pod(world, n).filter(|pod| !is_terminating(pod)) else { return };
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["metadata"]["deletionGracePeriodSeconds"] = 1.into();
            world.server.put(pod);
            world.truth.terminates(n);
        }
        Action::ApiBackup => world.backup.set(Some((world.server.pods(), world.truth.of_api()))),
        Action::ApiRestore => {
            let Some((pods, truth)) = world.backup.take() else { return };
            world.begin_api(pods);
            world.disturb_api();
            world.truth.api_restored(&truth);
            (0..NAMES).for_each(|n| judge(n, world));
        }
        _ => unreachable!("{action:?} changes no API server"),
    }
}

/// Whether a pod that the level of the API server's pods may forbid is allowed.
fn judge(n: usize, world: &World) {
    let is_concerned = |pod: &Value| pod["spec"]["hostNetwork"] == true && !is_terminating(pod);
    if api_pod(world, n).as_ref().is_some_and(is_concerned) {
        if world.truth.tuning().allows_all {
            world.truth.allowed(n, Some(FORBIDDEN));
        } else {
            world.truth.forbidden(n);
        }
    }
}

/// The agent reads settings. Invalid ones do not hide valid ones that it may not have read.
fn reload(tuning: Option<Tuning>, world: &World, node: &Node) {
    if tuning.is_none() && world.truth.may_have_old_tuning() {
        return;
    }
    let allowed_all = world.truth.tuning().allows_all;
    node.reload(world, tuning);
    if world.truth.tuning().allows_all != allowed_all {
        (0..NAMES).for_each(|n| judge(n, world));
    }
}

/// Ends the agent, and starts it again.
async fn end_run(action: Action, world: &Rc<World>, node: &mut Node, clients: &mut JoinSet<()>) {
    use Action::{Kill, KillInSync, PowerCut, Reconfigure, StatePutBack, Stop, StopAndChange};
    let stored = node.stored(world).await;
    match action {
        Stop { .. } | Reconfigure { .. } | StopAndChange { reboots: false, .. } => node.stop(world).await,
        KillInSync { n, v, .. } => kill_in_sync(n, v, world, node, clients).await,
        _ => node.kill(world).await,
    }
    if let Reconfigure { without } = action {
        world.configure(without);
    }
    if matches!(action, PowerCut { .. } | StopAndChange { reboots: true, .. }) {
        world.disk.power_cut();
        world.runtime.rebooted();
    }
    if let StopAndChange { n, v, .. } = action {
        change(n, v, world);
    }
    let is_put_back = matches!(action, StatePutBack { .. }) && world.put_state_back();
    let down = match action {
        Kill { down }
        | KillInSync { down, .. }
        | StatePutBack { down }
        | Stop { down }
        | PowerCut { down } => down,
        _ => 0,
    };
    again(down, world, node).await;
    if !is_put_back {
        node.expect(world, stored);
    }
}

/// Removes a pod of each source, and changes the next one.
fn change(n: usize, v: usize, world: &World) {
    let next = (n + 1) % NAMES;
    remove_file(File::First, n, world);
    put_file(File::First, next, v, world);
    unbind(world, n);
    change_api(Action::Bind { n: next, v }, world);
    remove_url(n, world);
    put_url(next, v, world);
}

/// Kills the agent before a sync or while that fails, if it stores something soon.
async fn kill_in_sync(n: usize, v: usize, world: &Rc<World>, node: &mut Node, clients: &mut JoinSet<()>) {
    world.disturb();
    world.disk.set_faults(|faults| faults.kills = true);
    request(Write::of(Action::Replace { n, v }).unwrap(), world, node, clients);
    for _ in 0..STORES_WITHIN {
        if !world.disk.faults().kills {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    world.disk.set_faults(|faults| faults.kills = false);
    node.kill(world).await;
}

async fn again(down: usize, world: &Rc<World>, node: &mut Node) {
    world.truth.agent_ended();
    // A process takes some time to begin.
    sleep(Duration::from_secs(down as u64) + Duration::from_millis(10)).await;
    node.start(world, STARTS).await;
}

fn set_fault(action: Action, world: &World) {
    use Action::{DiskBroken, DiskFlaky, DiskFull, LosePod, RuntimeFails, RuntimeHangs, Slow, SyncFails};
    let of_machine = matches!(action, DiskBroken(_) | DiskFlaky { .. } | DiskFull(_) | LosePod | Slow { .. });
    if of_machine || matches!(action, RuntimeFails(_) | RuntimeHangs(_) | SyncFails(_)) {
        world.disturb();
    }
    if of_machine {
        world.machine_disturbed.set(Instant::now());
    }
    let sink = |change: fn(&mut SinkFaults, bool), is_on| {
        change(&mut world.consumers[1].faults.lock().unwrap(), is_on);
    };
    let rule = |is_on, answer| {
        world.api_fails.set(is_on);
        world.hang_api(matches!(action, Action::ApiHangs(true)));
        if is_on { world.server.respond_always(answer) } else { world.server.respond_normally() }
    };
    match action {
        Action::DiskFull(is_on) => world.disk.set_faults(|faults| faults.full = is_on),
        Action::DiskBroken(is_on) => world.disk.set_faults(|faults| faults.broken = is_on),
        Action::SyncFails(is_on) => world.disk.set_faults(|faults| faults.no_sync = is_on),
        Action::DiskFlaky { once_in } => {
            world.disk.set_faults(|faults| faults.fails_once_in = (once_in > 0).then_some(once_in));
        }
        Action::ManifestsUnreadable(is_on) => {
            world.disk.set_faults(|faults| faults.unreadable = is_on);
            world.readable_since.set((!is_on).then(Instant::now));
        }
        Action::Slow { ms } => world.slow.store(ms as u64, Ordering::SeqCst),
        Action::ApiDown(is_down) => {
            world.api_is_down.set(is_down);
            if is_down { world.server.down() } else { rise(&world.server) }
        }
        Action::ApiHangs(is_on) => rule(is_on, Answer::Never),
        Action::ApiForbids(is_on) => rule(is_on, Answer::status(403, "Forbidden", "may not")),
        Action::ApiErrors(is_on) => rule(is_on, Answer::status(503, "ServiceUnavailable", "not now")),
        Action::ApiFreezes(is_on) => world.freeze_api(is_on),
        Action::ApiChanges { knows_watch_list, speaks_protobuf } => {
            world.server.know_watch_lists(knows_watch_list);
            world.server.speak_protobuf(speaks_protobuf);
            world.disturb_api();
            world.server.break_watches();
        }
        Action::BreakWatches => {
            world.disturb_api();
            world.server.break_watches();
        }
        Action::Compact => {
            world.disturb_api();
            world.server.compact();
        }
        Action::Bookmark => world.server.bookmark(),
        Action::Url(serves) => world.url.serve(serves),
        Action::SinkFails(is_on) => sink(|faults, is_on| faults.fails = is_on, is_on),
        Action::SinkHangs(is_on) => sink(|faults, is_on| faults.hangs = is_on, is_on),
        Action::RuntimeFails(is_on) => world.runtime.faults.lock().unwrap().fails = is_on,
        Action::RuntimeHangs(is_on) => world.runtime.faults.lock().unwrap().hangs = is_on,
        Action::RuntimeRefuses(n) => world.runtime.refuse(n),
        Action::LosePod => world.runtime.lose(),
        Action::Restart => world.runtime.restart(),
        Action::ReadersStop(is_on) => world.readers_stop.set(is_on),
        Action::Jump { seconds } => {
            world.jumped.fetch_add(seconds, Ordering::SeqCst);
            world.broken.set_back.fetch_or(seconds < 0, Ordering::SeqCst);
        }
        _ => unreachable!("{action:?} is no fault"),
    }
}

/// Sends a write, if none for its pod is on its way and the agent runs.
fn request(write: Write, world: &Rc<World>, node: &Node, clients: &mut JoinSet<()>) {
    let Some(agent) = node.address() else { return };
    let (world, dead, stopping) = (world.clone(), node.dead(), node.stopping());
    clients.spawn_local(async move {
        let _turn = world.turns[write.n].lock().await;
        if dead.is_cancelled() {
            return;
        }
        if let Some(wrong) = write.send(&agent, dead.cancelled_owned(), &stopping, &world.truth).await {
            world.broken.add(wrong);
        }
    });
}

/// Writes several pods, if the agent runs. No other write is on its way meanwhile.
fn write_several(write: Several, world: &Rc<World>, node: &Node, clients: &mut JoinSet<()>) {
    let Some(agent) = node.address() else { return };
    let (world, dead, stopping) = (world.clone(), node.dead(), node.stopping());
    clients.spawn_local(async move {
        let _turns = join_all(world.turns.iter().map(Mutex::lock)).await;
        if dead.is_cancelled() {
            return;
        }
        if let Some(wrong) = write.send(&agent, dead.cancelled_owned(), &stopping, &world.truth).await {
            world.broken.add(wrong);
        }
    });
}

/// Sends a write that may change nothing, if none for its pod is on its way and the agent runs.
fn attempt(n: usize, trial: Trial, world: &Rc<World>, node: &Node, clients: &mut JoinSet<()>) {
    let Some(agent) = node.address() else { return };
    let (world, dead, stopping) = (world.clone(), node.dead(), node.stopping());
    clients.spawn_local(async move {
        let _turn = world.turns[n].lock().await;
        // A number of an earlier run may be given again.
        let may_repeat = matches!(trial, Trial::OldVersion { .. }) && world.broken.numbers_may_repeat();
        if dead.is_cancelled() || may_repeat {
            return;
        }
        if let Some(wrong) = trial.send(n, &agent, dead.cancelled_owned(), &stopping, &world.truth).await {
            world.broken.add(wrong);
        }
    });
}

/// Sends a part of a request, if the agent runs.
fn send_half(half: Half, world: &Rc<World>, node: &Node, clients: &mut JoinSet<()>) {
    let Some(agent) = node.address() else { return };
    let (world, dead) = (world.clone(), node.dead());
    clients.spawn_local(async move {
        if let Some(Some(wrong)) = dead.run_until_cancelled(agent.send_half(half)).await {
            world.broken.add(wrong);
        }
    });
}

fn api_pod(world: &World, n: usize) -> Option<Value> {
    world.server.pods().remove(&key(SourceName::Api, n))
}

fn is_terminating(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Whether a pod of the API server never runs again.
fn is_over(pod: &Value) -> bool {
    is_terminating(pod) || pod["status"]["phase"] == "Succeeded"
}

fn unbind(world: &World, n: usize) {
    if api_pod(world, n).is_some() {
        world.server.delete(&name(SourceName::Api, n));
    }
    world.truth.unbound(n);
}

fn put_file(file: File, n: usize, v: usize, world: &World) {
    world.disk.put(&path(file, n), static_pod(SourceName::File, n, v).to_string().as_bytes());
    world.truth.put_file(file, n, Some(v));
}

fn remove_file(file: File, n: usize, world: &World) {
    world.disk.remove(&path(file, n));
    world.truth.put_file(file, n, None);
}

fn put_url(n: usize, v: usize, world: &World) {
    world.url.put(n, v);
    world.truth.set(SourceName::Url, n, Some(v));
}

fn remove_url(n: usize, world: &World) {
    world.url.remove(n);
    world.truth.set(SourceName::Url, n, None);
}

fn path(file: File, n: usize) -> String {
    assert!(n < NAMES);
    match file {
        File::First => format!("/manifests/f{n}.json"),
        File::Twin => format!("/manifests/g{n}.json"),
    }
}

/// A pod of a manifest.
pub fn static_pod(source: SourceName, n: usize, v: usize) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(source, n), "labels": labels(v)},
           "spec": spec(v)});
    if n == SHARED && node::world().setup.shares_uid {
        pod["metadata"]["uid"] = "shared".into();
    }
    want_port(&mut pod, v);
    pod
}

/// Pods that run one of the images want the same port of the node.
pub fn want_port(pod: &mut Value, v: usize) {
    if v == WANTS_PORT {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
    }
}

/// The spec of a pod that runs this.
pub fn spec(v: usize) -> Value {
    json!({"terminationGracePeriodSeconds": 3, "containers": [{"name": "c", "image": image(v)}]})
}

/// The labels of a pod, which say what it runs.
pub fn labels(v: usize) -> Value {
    json!({"v": v.to_string()})
}

/// A pod that an API server has bound to the node.
fn bound(n: usize, v: usize, world: &World) -> Value {
    if api_pod(world, n).is_some_and(|pod| is_over(&pod)) {
        unbind(world, n);
    }
    let uid = world.truth.uid_of_bound(n);
    let mut spec = spec(v);
    spec["nodeName"] = NODE.into();
    // As an API server shows it in both encodings.
    spec["containers"][0]["resources"] = json!({});
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name(SourceName::Api, n), "namespace": "default", "uid": uid, "labels": labels(v)},
           "spec": spec})
}
