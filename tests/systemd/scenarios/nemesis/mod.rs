//! A soak of the packaged agent beside a real kube-apiserver and podman: random work in all sources, and faults of
//! all kinds. After each round everything is healed, and every view is what the sources hold.
//!
//! | variable | meaning |
//! |---|---|
//! | `PODMUX_NEMESIS_SECONDS` | how long it lasts at least (20); each kind of fault occurs at least once |
//! | `PODMUX_NEMESIS_SEED` | repeats the choices of a run; a run prints its seed |
//! | `PODMUX_NEMESIS_TRACE` | prints each step |

mod faults;
mod views;
mod workload;

use std::{
    collections::BTreeMap,
    env,
    io::{self, Write as _},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use podmux_machine::{apiserver::Apiserver, machine::Machine, random::Random, relay::Relay};

use self::{
    faults::{AHEAD, CLOCK, Fault, Faults, TRUE},
    views::Views,
    workload::{Worker, kept_pods, workers},
};

/// The least number of seconds without `PODMUX_NEMESIS_SECONDS`.
const SHORT: u64 = 20;
/// A run of so many seconds begins with each fault alone.
const LONG: u64 = 100;
/// How many faults occur at once in a shorter run, and the most in a longer one.
const AT_ONCE: [usize; 2] = [4, 3];
/// The timeout until all views are equal. The agent lists podman each minute, and retries its other sources sooner.
const PATIENCE: Duration = Duration::from_mins(3);
/// The interval at which a wait checks its condition.
const INTERVAL: Duration = Duration::from_millis(200);

/// The settings of the soak. The manifests are not scanned without a reason, so that a change that the agent has
/// missed is not found by chance. The clock of the agent is that of a file.
const DROP_IN: &str = "[Service]
Environment=PODMUX_SINK=podman,jsonl=/var/log/podmux/updates.jsonl PODMUX_FILE_CHECK_FREQUENCY=24h
Environment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1
Environment=FAKETIME_TIMESTAMP_FILE=/etc/podmux/clock FAKETIME_CACHE_DURATION=1
Environment=DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
";

/// What the threads of a soak share.
pub struct World<'a> {
    machine: &'a Machine,
    apiserver: &'a Apiserver<'a>,
    /// Between the agent and the API server.
    relay: &'a Relay,
    seed: u64,
    begun: Instant,
    /// Each version of a pod has another number.
    numbers: AtomicU64,
    /// What was done since all views were equal.
    steps: Mutex<Vec<String>>,
    /// How often each thing was done.
    counts: Mutex<BTreeMap<String, u64>>,
}

impl World<'_> {
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a step of a kind, and counts it.
    fn note(&self, kind: &str, what: &str) {
        *lock(&self.counts).entry(kind.to_owned()).or_default() += 1;
        self.detail(kind, what);
    }

    /// Notes a step without counting it.
    fn detail(&self, kind: &str, what: &str) {
        let step = format!("{:9.3} {kind}: {what}", self.begun.elapsed().as_secs_f64());
        trace(&step);
        lock(&self.steps).push(step);
    }

    fn count(&self, kind: &str) -> u64 {
        lock(&self.counts).get(kind).copied().unwrap_or_default()
    }

    /// Fails with all that is known.
    fn fail(&self, what: &str) -> ! {
        let steps = lock(&self.steps).join("\n  ");
        panic!("PODMUX_NEMESIS_SEED={}: {what}\nsteps since the views were equal:\n  {steps}", self.seed);
    }

    /// Works while these faults occur.
    fn play(&self, workers: &mut [Worker], faults: &Faults, kinds: &[Fault], random: &mut Random) {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also if a fault panics: the workers would go on for ever.
            let _ends = Ends(&over);
            for worker in workers {
                scope.spawn(|| worker.work(self, &over));
            }
            thread::scope(|scope| {
                for kind in kinds {
                    let random = Random::new(random.below(usize::MAX) as u64);
                    scope.spawn(move || faults.occur(self, *kind, random));
                }
            });
        });
    }

    /// Waits until all views are equal. Returns how long that took.
    fn rest(&self, views: &mut Views, workers: &[Worker]) -> Duration {
        let (begun, mut last) = (Instant::now(), String::new());
        loop {
            match views.compare(self, workers) {
                Ok(()) => break,
                Err(differences) if begun.elapsed() > PATIENCE => {
                    self.fail(&format!("the views are not equal after {PATIENCE:?}: {differences}"));
                }
                Err(differences) if differences != last => {
                    trace(&format!("  {:.1} s: {differences:.1000}", begun.elapsed().as_secs_f64()));
                    last = differences;
                }
                Err(_) => thread::sleep(INTERVAL),
            }
        }
        views.check(self);
        let took = begun.elapsed();
        trace(&format!("  equal after {:.1} s", took.as_secs_f64()));
        lock(&self.steps).clear();
        took
    }
}

/// Ends a round.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The content of a mutex, whatever has happened to its other users.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a line, past the test harness, which shows the output of failed tests only.
fn say(line: &str) {
    io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Prints a line if each step is asked for.
fn trace(line: &str) {
    if env::var_os("PODMUX_NEMESIS_TRACE").is_some() {
        say(line);
    }
}

/// The number in a variable.
fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap())
}

/// All kinds of faults, in a random order.
fn shuffled(random: &mut Random) -> Vec<Fault> {
    let mut all = Fault::ALL.to_vec();
    for index in (1..all.len()).rev() {
        all.swap(index, random.below(index + 1));
    }
    all
}

/// Configures the agent.
fn configure(machine: &Machine, apiserver: &Apiserver, relay: &Relay) {
    let url = format!("https://{}", relay.address);
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    let kubeconfig = apiserver.kubeconfig().replace(apiserver.url(), &url);
    assert!(kubeconfig.contains(&url), "{kubeconfig}");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, kubeconfig);
    machine.write(CLOCK, AHEAD);
    machine.packaged_drop_in("kubernetes");
    machine.packaged_drop_in("output-file");
    machine.drop_in("soak", DROP_IN);
    machine.restart();
}

#[test]
fn after_faults_of_all_kinds_the_views_are_equal() {
    let seconds = variable("PODMUX_NEMESIS_SECONDS").unwrap_or(SHORT);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = variable("PODMUX_NEMESIS_SEED").unwrap_or(now.as_secs());
    say(&format!("PODMUX_NEMESIS_SEED={seed}"));
    let machine = Machine::with_podman();
    let apiserver = Apiserver::start(&machine);
    let relay = machine.within(|| Relay::to(apiserver.url().trim_start_matches("https://")));
    configure(&machine, &apiserver, &relay);
    let world = World {
        machine: &machine,
        apiserver: &apiserver,
        relay: &relay,
        seed,
        begun: Instant::now(),
        numbers: AtomicU64::new(1),
        steps: Mutex::default(),
        counts: Mutex::default(),
    };
    let mut random = Random::new(seed);
    let (mut workers, mut views) = (workers(seed), Views::new(&machine));
    kept_pods(&world, &mut workers);
    let (faults, mut bag, mut bags, mut rests) = (Faults::default(), Vec::new(), 0, Vec::new());
    faults.miss(&world);
    world.rest(&mut views, &workers);
    machine.write(CLOCK, TRUE);
    let is_over = || world.begun.elapsed() >= Duration::from_secs(seconds);
    // Each fault occurs, however long that takes.
    while bags == 0 || bags == 1 && !bag.is_empty() || !is_over() {
        if bag.is_empty() {
            bag = shuffled(&mut random);
            bags += 1;
        }
        let most = match seconds {
            ..LONG => AT_ONCE[0],
            _ if bags == 1 => 1,
            _ => 2 + random.below(AT_ONCE[1] - 1),
        };
        let kinds = bag.split_off(bag.len().saturating_sub(most));
        world.play(&mut workers, &faults, &kinds, &mut random);
        rests.push(world.rest(&mut views, &workers));
    }
    for worker in &mut workers {
        worker.clear(&world);
    }
    world.rest(&mut views, &workers);
    report(&world, &views, &rests);
}

/// Prints what was done, and checks that everything was.
fn report(world: &World, views: &Views, rests: &[Duration]) {
    let counts = lock(&world.counts).clone();
    let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    let slowest = rests.iter().max().unwrap().as_secs_f64();
    say(&format!(
        "PODMUX_NEMESIS_SEED={}, {} s, {} rounds, all views equal after at most {slowest:.1} s; {}\n{}",
        world.seed,
        world.begun.elapsed().as_secs(),
        rests.len(),
        views.summary(),
        counts.join(", "),
    ));
    for kind in Fault::ALL {
        assert!(world.count(kind.name()) > 0, "no {}", kind.name());
    }
    views.has_seen_all();
}
