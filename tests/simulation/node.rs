//! The agent of a run, and the world around it.

use std::{
    array,
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::stream;
use jiff::{SignedDuration, Timestamp};
use podmux::{
    agent::Crew,
    host::{Clients, Clock, Disk, Host, Network, Random as HostRandom, Threads},
    pod::{Pod, SourceName},
    registry,
    settings::{CommandLine, Environment, Runtime, Settings, SettingsError},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet, spawn_local, yield_now},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    clients::{Address, listed, uid},
    consumer::{Consumer, FLAKY, NOTICES, STEADY},
    disk::{Saved, SimDisk},
    followers::{Follower, Way, follow},
    invariants::Broken,
    manifest_url::{ADDRESS, ManifestUrl, URL},
    network,
    runtime::{Machine, RUNTIME},
    script::{NAMES, Setup, Tuning},
    support::{apiserver::ApiServer, kubeconfig::config, random::Random},
    truth::{Image, OfApi, SLACK, Truth},
};

/// The first version of the API server, and how many it has in a run at most.
const API_VERSION: u64 = 1_000_000_000;
const API_VERSIONS: u64 = 100_000;
/// Where the agent keeps its state.
const STATE: &str = "/state";
/// Enough to cancel what the tasks of a killed agent have started.
const YIELDS: usize = 64;
/// The service manager starts the agent again after this time.
const RESTART: Duration = Duration::from_secs(1);
/// In this time the agent has stored what it has read,
const STORES: Duration = Duration::from_mins(1);
/// and in this time after a start that runs again.
const RUNS: Duration = Duration::from_mins(1);
/// In this time a pod is replaced by one with another spec.
const REPLACES: Duration = Duration::from_secs(15);
/// A start takes no longer, whatever its sources do: it waits 2 s for them, and 0.1 s for the clock.
const STARTS: Duration = Duration::from_millis(2_500);
/// After this time at the earliest a source tries again to reach the API server.
const TRIED_AGAIN: Duration = Duration::from_millis(400);
/// It kills an agent that does not stop in this time.
const STOPS: Duration = Duration::from_mins(1);

/// The state that was copied, and what was posted and could be read until then.
struct SavedState {
    files: Saved,
    posted: [BTreeSet<Image>; NAMES],
    could_read: [bool; 3],
}

/// What outlives the agent.
pub struct World {
    pub setup: Setup,
    /// The source that the settings lack.
    without: Cell<Option<SourceName>>,
    /// Whether the settings are invalid that the agent reads next.
    has_invalid_settings: Cell<bool>,
    pub disk: SimDisk,
    pub server: ApiServer,
    pub url: ManifestUrl,
    pub runtime: Arc<Machine>,
    pub consumers: [Arc<Consumer>; 2],
    /// The clients of `/updates` and of the watches.
    pub followers: [Follower; 4],
    pub truth: Truth,
    /// The data of the API server that were saved, and what was true of them.
    pub backup: Cell<Option<(BTreeMap<String, Value>, OfApi)>>,
    /// The version with which the API server begins next: an earlier one each time.
    api_begins: Cell<u64>,
    pub broken: Broken,
    /// When a fault of the disk, of the threads or of the runtime last began or ended.
    disturbed: Cell<Instant>,
    /// When a fault of the disk or of the threads last began or ended.
    pub machine_disturbed: Cell<Instant>,
    /// When the faults began that have not been over for [`SLACK`] since.
    pub unquiet_since: Cell<Instant>,
    /// Whether the API server is away, and whether it answers nothing useful.
    pub api_is_down: Cell<bool>,
    pub api_fails: Cell<bool>,
    /// Since when the API server stands still.
    pub api_frozen_since: Cell<Option<Instant>>,
    /// The UID of a pod that was created and deleted after the last fault.
    pub deleted: RefCell<Option<String>>,
    /// Whether the clients that follow read nothing.
    pub readers_stop: Cell<bool>,
    saved_state: RefCell<Option<SavedState>>,
    /// Whether the manifests, the API server and the URL could be read at any time,
    could_read: Cell<[bool; 3]>,
    /// and in this run, while it cannot open the state.
    without_state: Cell<Option<[bool; 3]>>,
    /// Since when each of them can be read,
    reads_since: Cell<[Option<Instant>; 3]>,
    /// Whether the API server answers no request, and until when it last did so: those of that time are never answered.
    api_hangs: Cell<bool>,
    api_hung: Cell<Option<Instant>>,
    /// and when this run of the agent began.
    run_began: Cell<Instant>,
    /// Since when the manifests can be read.
    pub readable_since: Cell<Option<Instant>>,
    /// Whose turn it is to write each posted pod.
    pub turns: [tokio::sync::Mutex<()>; NAMES],
    /// The seconds by which the wall clock is wrong.
    pub jumped: Arc<AtomicI64>,
    /// The most milliseconds that work on a thread takes.
    pub slow: Arc<AtomicU64>,
    begun: Instant,
    random: Arc<Mutex<Random>>,
    /// Has the socket of the server; its clients come from this process.
    directory: tempfile::TempDir,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The world of the run on this thread.
pub fn world() -> Rc<World> {
    WORLD.with_borrow(|world| world.clone().unwrap())
}

/// Ends the run on this thread.
pub fn forget() {
    WORLD.take();
}

impl World {
    /// The world of a run, in which nothing has happened yet.
    pub fn begin(seed: u64, setup: Setup) -> Rc<Self> {
        let disk = SimDisk::new(Random::new(seed ^ 0x1357));
        let server = network::api_server();
        disk.put(
            "/kubeconfig",
            config(&json!({"server": server.url}), &json!({"token": "t"})).to_string().as_bytes(),
        );
        let world = Rc::new(Self {
            setup,
            without: Cell::default(),
            has_invalid_settings: Cell::default(),
            disk,
            server,
            url: ManifestUrl::default(),
            runtime: Arc::default(),
            consumers: [Consumer::new("steady"), Consumer::new("flaky")],
            followers: Default::default(),
            truth: Truth::new(setup.shares_uid),
            backup: Cell::default(),
            api_begins: Cell::new(API_VERSION),
            broken: Broken::default(),
            disturbed: Cell::new(Instant::now()),
            machine_disturbed: Cell::new(Instant::now()),
            unquiet_since: Cell::new(Instant::now()),
            api_is_down: Cell::new(false),
            api_fails: Cell::new(false),
            api_frozen_since: Cell::default(),
            readers_stop: Cell::default(),
            saved_state: RefCell::default(),
            could_read: Cell::default(),
            without_state: Cell::default(),
            reads_since: Cell::default(),
            api_hangs: Cell::default(),
            api_hung: Cell::default(),
            deleted: RefCell::default(),
            run_began: Cell::new(Instant::now()),
            readable_since: Cell::new(Some(Instant::now())),
            turns: Default::default(),
            jumped: Arc::default(),
            slow: Arc::default(),
            begun: Instant::now(),
            random: Arc::new(Mutex::new(Random::new(seed ^ 0x2468))),
            directory: tempfile::tempdir().unwrap(),
        });
        world.begin_api(BTreeMap::new());
        WORLD.set(Some(world.clone()));
        world
    }

    /// The API server begins with these pods, at an earlier version than before.
    pub fn begin_api(&self, pods: BTreeMap<String, Value>) {
        let version = self.api_begins.get();
        self.server.restore(version, &pods.into_values().collect::<Vec<_>>());
        self.server.break_watches();
        self.api_begins.set(version - API_VERSIONS);
    }

    /// Whether the disk, the threads and the runtime have worked for so long.
    pub fn is_quiet_for(&self, time: Duration) -> bool {
        let is_fine = !self.disk.faults().concerns_the_state()
            && self.slow.load(Ordering::SeqCst) == 0
            && self.runtime.works_now();
        is_fine && self.disturbed.get().elapsed() > time
    }

    /// A fault of the disk, of the threads or of the runtime begins or ends now.
    pub fn disturb(&self) {
        if self.is_quiet_for(SLACK) {
            self.unquiet_since.set(Instant::now());
        }
        self.disturbed.set(Instant::now());
    }

    /// The API server stands still, or goes on.
    pub fn freeze_api(&self, is_on: bool) {
        if is_on {
            self.server.freeze();
            self.api_frozen_since.set(self.api_frozen_since.get().or(Some(Instant::now())));
        } else {
            self.server.thaw();
            if let Some(since) = self.api_frozen_since.take() {
                self.truth.told_late(SourceName::Api, since);
            }
        }
    }

    /// The API server answers no request from now on, or it answers again those that come.
    pub fn hang_api(&self, hangs: bool) {
        if self.api_hangs.replace(hangs) {
            self.api_hung.set(Some(Instant::now()));
        }
    }

    /// What the API server sends is interrupted, or it is another one.
    pub fn disturb_api(&self) {
        let [file, _, url] = self.reads_since.get();
        self.reads_since.set([file, None, url]);
    }

    /// Whether a pod may be started that does not run: its source wants it, or did since this run of the agent began, or
    /// could not be read when it began. The API server is tried again soon.
    pub fn may_start(&self, source: SourceName, pod: &Pod, image: Image) -> bool {
        let began = self.run_began.get();
        let [file, api, url] = self.reads_since.get();
        let could_be_read = match source {
            SourceName::File => file.is_some_and(|since| since < began),
            SourceName::Api => {
                api.is_some_and(|since| since < began + TRIED_AGAIN)
                    && self.api_hung.get().is_none_or(|until| until < began)
            }
            SourceName::Url => url.is_some_and(|since| since < began),
            // The state has all that was posted.
            SourceName::Http => true,
        };
        let is_slow = self.slow.load(Ordering::SeqCst) > 0 || self.machine_disturbed.get() >= began;
        !could_be_read
            || is_slow
            || self.disk.faults().concerns_the_state()
            || self.truth.may_want(source, pod, image, began)
    }

    /// Copies the state, unless what is on the disk is not certain.
    pub fn back_up_state(&self) {
        if self.is_quiet_for(SLACK) {
            self.saved_state.replace(Some(SavedState {
                files: self.disk.saved(STATE),
                posted: self.truth.posted(),
                could_read: self.could_read.get(),
            }));
        }
    }

    /// Puts the state back if it was copied, and the clock is ahead of its numbers. Returns whether it did.
    pub fn put_state_back(&self) -> bool {
        let Some(SavedState { files, posted, could_read }) = self.saved_state.take() else { return false };
        if self.broken.set_back.load(Ordering::SeqCst) {
            return false;
        }
        self.disk.put_back(STATE, files);
        self.truth.posted_again(&posted);
        self.could_read.set(could_read);
        true
    }

    /// The settings lack this source from the next start on.
    pub fn configure(&self, without: Option<SourceName>) {
        self.without.set(without);
        self.truth.configured(without);
    }

    /// What a client reads next, once the clients read.
    pub async fn next_read<T>(&self, read: impl Future<Output = T>) -> T {
        while self.readers_stop.get() {
            sleep(NOTICES).await;
        }
        read.await
    }

    /// The machine under a run of the agent, on which it serves these clients.
    fn host(&self, clients: Clients) -> Host {
        let (begun, jumped) = (self.begun, self.jumped.clone());
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::from_fn(move || {
            let passed = SignedDuration::try_from(begun.elapsed()).unwrap();
            epoch + passed + SignedDuration::from_secs(jumped.load(Ordering::SeqCst))
        });
        let (slow, random) = (self.slow.clone(), self.random.clone());
        let takes = move || {
            let most = slow.load(Ordering::SeqCst);
            if most == 0 {
                return Duration::ZERO;
            }
            Duration::from_millis(random.lock().unwrap().below(usize::try_from(most).unwrap()) as u64)
        };
        let (server, url) = (self.server.clone(), self.url.clone());
        let seed = self.random.lock().unwrap().below(usize::MAX) as u64;
        Host {
            clock,
            random: HostRandom::seeded(seed),
            threads: Threads::inline(takes),
            disk: Disk::on(self.disk.clone()),
            network: Network::simulated(
                move |to| {
                    if to == ADDRESS { url.dial() } else { network::dial(&server) }
                },
            )
            .with_clients(clients),
        }
    }

    fn settings(&self) -> Result<Settings, SettingsError> {
        let tuning = self.truth.tuning();
        let max_posted = tuning.max_posted.to_string();
        let socket = format!("unix:{}", self.directory.path().join("s").display());
        let flags = [
            ("node-name", "node"),
            ("pod-manifest-path", "/manifests"),
            ("file-check-frequency", "2s"),
            ("kubeconfig", "/kubeconfig"),
            ("pod-security", if tuning.allows_all { "api=privileged" } else { "api=baseline" }),
            ("max-posted-pods", if self.has_invalid_settings.get() { "many" } else { &max_posted }),
            ("manifest-url", URL),
            ("http-check-frequency", "2s"),
            ("state-dir", STATE),
            ("listen", &socket),
        ];
        let is_there = |(flag, _): &&(&str, &str)| match self.without.get() {
            Some(SourceName::File) => *flag != "pod-manifest-path",
            Some(SourceName::Url) => *flag != "manifest-url",
            Some(SourceName::Api) => *flag != "kubeconfig",
            _ => true,
        };
        let line = flags
            .iter()
            .filter(is_there)
            .fold(CommandLine::default(), |line, (flag, value)| line.with(flag, value));
        let settings = Settings::load(&line, &Environment::new(), &Disk::on(self.disk.clone()))?;
        let runtime = Runtime {
            kind: registry::Config::of_runtime(&RUNTIME),
            concurrency: 2,
            directory: PathBuf::from("/run/podmux"),
            user_dir: None,
        };
        let sinks = [&STEADY, &FLAKY].map(registry::Config::of_sink).to_vec();
        let runtime = (!self.setup.has_no_runtime).then_some(runtime);
        Ok(Settings { sinks, runtime, notify: self.setup.notify, ..settings })
    }
}

/// The agent, if it runs.
#[derive(Default)]
pub struct Node {
    running: Option<Running>,
}

struct Running {
    address: Address,
    since: Instant,
    /// Its SIGHUP: several at once are one.
    hangups: mpsc::Sender<()>,
    /// Ends what waits for an answer of the agent when it is killed.
    dead: CancellationToken,
    stop: CancellationToken,
    crew: JoinHandle<()>,
    _followers: JoinSet<()>,
}

impl Node {
    /// The agent reads these settings, or others that are invalid.
    pub fn reload(&self, world: &World, tuning: Option<Tuning>) {
        world.has_invalid_settings.set(tuning.is_none());
        if let Some(tuning) = tuning {
            world.truth.tuned(tuning);
        }
        if let Some(running) = &self.running {
            let _ = running.hangups.try_send(());
        }
    }

    /// Where the agent is reached.
    pub fn address(&self) -> Option<Address> {
        Some(self.running.as_ref()?.address.clone())
    }

    /// Notes which sources the agent can read now. Returns those that it never could, and has nothing stored of.
    pub fn never_read(&self, world: &World) -> Vec<&'static str> {
        let api =
            !world.api_is_down.get() && !world.api_fails.get() && world.api_frozen_since.get().is_none();
        let is_configured = |source| world.without.get() != Some(source);
        let now = [
            is_configured(SourceName::File) && world.readable_since.get().is_some(),
            is_configured(SourceName::Api) && api,
            is_configured(SourceName::Url) && world.url.works(),
        ];
        let noted = |before: [bool; 3]| {
            array::from_fn(|source| before[source] || now[source] && self.running.is_some())
        };
        let since = world.reads_since.get();
        let since = array::from_fn(|source| now[source].then(|| since[source].unwrap_or_else(Instant::now)));
        world.reads_since.set(since);
        world.could_read.set(noted(world.could_read.get()));
        let without_state = world.without_state.get().filter(|_| world.disk.faults().broken).map(noted);
        world.without_state.set(without_state);
        let could = without_state.unwrap_or(world.could_read.get());
        [SourceName::File, SourceName::Api, SourceName::Url]
            .into_iter()
            .zip(could)
            .filter(|(source, could)| is_configured(*source) && !could)
            .map(|(source, _)| source.as_str())
            .collect()
    }

    /// Since when the agent runs and can read the manifests.
    pub fn reads_since(&self, world: &World) -> Option<Instant> {
        let readable = world.readable_since.get()?;
        self.running.as_ref().map(|running| running.since.max(readable))
    }

    /// What the agent has certainly stored, so that it runs again after its next start, whatever its sources do.
    pub async fn stored(&self, world: &World) -> BTreeSet<String> {
        let running = self.running.as_ref().filter(|running| running.since.elapsed() > STORES);
        let Some(running) = running.filter(|_| world.is_quiet_for(STORES)) else { return BTreeSet::new() };
        // What an earlier agent has started and could not store is not known to this one until its source is read.
        let served = listed(&running.address).await;
        let there = world.truth.certain_for(STORES);
        let has_run = world.runtime.running_for(STORES);
        let stored = if world.setup.has_no_runtime { there.clone() } else { has_run };
        let is_known = |key: &&String| served.contains_key(*key) && !world.runtime.has_refused(key, STORES);
        stored.intersection(&there).filter(is_known).cloned().collect()
    }

    /// Looks after a while whether this is served and runs, if the agent still does and nothing else was in its way.
    pub fn expect(&self, world: &Rc<World>, stored: BTreeSet<String>) {
        let Some(Running { address, dead, stop, .. }) = &self.running else { return };
        let (world, address, stop, begun) = (world.clone(), address.clone(), stop.clone(), Instant::now());
        spawn_local(dead.clone().run_until_cancelled_owned(async move {
            sleep(RUNS).await;
            let mut down = stored.clone();
            // A pod that is being replaced is away for its grace.
            let pauses =
                if world.setup.replaces_pods { &[REPLACES, Duration::ZERO][..] } else { &[Duration::ZERO] };
            for pause in pauses {
                if stop.is_cancelled() || !world.is_quiet_for(begun.elapsed()) {
                    return;
                }
                let (served, running) = (listed(&address).await, world.runtime.running());
                let there = world.truth.certain_for(begun.elapsed());
                let is_over =
                    |key: &String| served.get(key).is_some_and(|pod| world.truth.has_ended(uid(pod)));
                let runs =
                    |key: &String| running.contains_key(key) || world.setup.has_no_runtime || is_over(key);
                let refused = |key: &String| world.runtime.has_refused(key, begun.elapsed());
                if let Some(key) = stored.intersection(&there).find(|key| !served.contains_key(*key)) {
                    return world.broken.add(format!("{key} ran, and is not served {RUNS:?} after a start"));
                }
                down.retain(|key| there.contains(key) && !runs(key) && !refused(key));
                if down.is_empty() {
                    return;
                }
                sleep(*pause).await;
            }
            for key in down {
                world.broken.add(format!("{key} ran, and does not run {RUNS:?} after a start"));
            }
        }));
    }

    /// When the agent that runs now begins to stop.
    pub fn stopping(&self) -> CancellationToken {
        self.running.as_ref().map_or_else(CancellationToken::new, |running| running.stop.clone())
    }

    /// The end of the agent that runs now.
    pub fn dead(&self) -> CancellationToken {
        self.running.as_ref().map_or_else(CancellationToken::new, |running| running.dead.clone())
    }

    /// Starts the agent as a service manager does: again and again while it refuses.
    pub async fn start(&mut self, world: &Rc<World>, attempts: usize) {
        world.has_invalid_settings.set(false);
        for _ in 0..attempts {
            let (address, clients) = Address::new();
            let (settings, host) = (world.settings().unwrap(), world.host(clients));
            let (hangups, mut hung_up) = mpsc::channel(1);
            let hung_up = stream::poll_fn(move |context| hung_up.poll_recv(context));
            let reload = Arc::new(|| Ok(self::world().settings()?));
            let is_away = world.disk.faults().concerns_the_state();
            world.broken.without_state.fetch_or(is_away, Ordering::SeqCst);
            world.run_began.set(Instant::now());
            match Crew::start(&settings, &host, reload, hung_up).await {
                Ok(crew) => {
                    world.without_state.set(world.disk.faults().broken.then_some([false; 3]));
                    self.running = Some(run(world, crew, address, hangups));
                    return;
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    // A reboot has emptied it, and it is on the same disk here.
                    if !is_away || !text.contains("/run/podmux") {
                        world.broken.add(format!("it does not start: {text}"));
                    }
                    sleep(RESTART).await;
                }
            }
        }
    }

    /// Ends the agent between two of its steps.
    pub async fn kill(&mut self, world: &World) {
        world.disk.kill();
        if let Some(running) = self.running.take() {
            running.dead.cancel();
            running.crew.abort();
            let _ = running.crew.await;
        }
        for _ in 0..YIELDS {
            yield_now().await;
        }
        world.runtime.abandoned();
    }

    /// Stops the agent as a service manager does: it is killed when its time is over.
    pub async fn stop(&mut self, world: &World) {
        if let Some(running) = &mut self.running {
            running.stop.cancel();
            if timeout(STOPS, &mut running.crew).await.is_ok() {
                running.dead.cancel();
                self.running = None;
            } else if world.is_quiet_for(STOPS) {
                world.broken.add(format!("it does not end {STOPS:?} after a stop"));
            }
        }
        self.kill(world).await;
    }
}

fn run(world: &Rc<World>, crew: Crew, address: Address, hangups: mpsc::Sender<()>) -> Running {
    let (dead, stop) = (CancellationToken::new(), CancellationToken::new());
    let (stopping, broken) = (stop.clone(), world.clone());
    let (begun, checked) = (crew.begun(), world.clone());
    let local = async move {
        match crew.run(&stopping).await {
            Ok(_) if stopping.is_cancelled() => {}
            ended => broken.broken.add(format!("the agent ended: {ended:?}")),
        }
    };
    let mut followers = JoinSet::new();
    followers.spawn_local(async move {
        if timeout(STARTS, begun).await.is_err() && checked.is_quiet_for(STARTS) {
            checked.broken.add(format!("a start takes longer than {STARTS:?}"));
        }
    });
    for way in [Way::Updates, Way::Watch, Way::Selected, Way::Events] {
        followers.spawn_local(follow(world.clone(), address.clone(), way));
    }
    let crew = spawn_local(local);
    Running { address, since: Instant::now(), hangups, dead, stop, crew, _followers: followers }
}
