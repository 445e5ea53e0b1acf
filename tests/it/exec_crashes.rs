//! The exec runtime's ledger: crashes at any moment, reboots, and a state that is late, damaged or full.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    path::Path,
    sync::Arc,
    time::Duration,
};

use podmux::{
    db::{self, Table},
    host::Host,
    mux::{Mux, SourceChannel},
    pod::{ListingBuilder, Origin, SourceName},
    runtime::{
        PodRuntime as _, PodWorkers,
        exec::{self, Exec},
    },
    storage::Merged,
};
use rustix::fs::{FlockOperation, flock};
use tokio::{
    sync::watch,
    task::{spawn_blocking, yield_now},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    exec::{Rig, to_kill, to_sync},
    files::soon,
    process::wait_for,
    random::Random,
    script,
    state::{Disk, ENOSPC, Fault, Operation, State},
};

async fn error(exec: &Exec) -> String {
    let error = soon(exec.list()).await.unwrap_err();
    assert_eq!(error.reason, "StateUnavailable");
    error.source.to_string()
}

#[tokio::test]
async fn after_a_reboot_nothing_runs_and_what_is_wanted_is_added_again() {
    let rig = Rig::new("");
    let run = rig.start().await;
    assert_eq!((run.add("web#1").await, run.add("db#1").await), ("ok".into(), "ok".into()));
    run.end().await;

    let run = rig.start_in("boot-2").await;
    assert_eq!(run.list().await, "");
    assert_eq!(rig.files(), "", "the files of the boot before");
    rig.calls();
    // One is wanted still. The other needs nothing.
    assert_eq!(run.add("web#1").await, "ok");
    assert_eq!(run.kill("db#1").await, "ok");
    assert_eq!((rig.calls(), run.list().await), ("ADD web#1".into(), "web#1".into()));
    run.end().await;
    let state = rig.state();
    let rows: Vec<_> = state.stored.tables[&Table::Runs].keys().collect();
    assert_eq!(rows, ["default/web/1"]);
    state.close().await;

    // A call was cut off by the power cut.
    let run = rig.start_in("boot-2").await;
    rig.script("exit 1");
    assert_ne!(run.kill("web#1").await, "ok");
    run.end().await;
    rig.calls();
    rig.script("");
    let run = rig.start_in("boot-3").await;
    assert_eq!((run.list().await, run.add("web#1").await), (String::new(), "ok".into()));
    assert_eq!(rig.calls(), "ADD web#1");
    run.end().await;
}

#[tokio::test]
async fn a_state_that_is_lost_or_put_back_orphans_and_forgets_no_pod() {
    let rig = Rig::new("");
    let run = rig.start().await;
    for pod in ["web#1", "db#1"] {
        assert_eq!(run.add(pod).await, "ok");
    }
    run.end().await;
    let (state, copy) = (rig.at("state"), rig.at("copy"));
    fs::rename(&state, &copy).unwrap();
    let run = rig.start().await;
    assert_eq!(run.list().await, "db#1 web#1", "the files say what runs");
    rig.calls();
    assert_eq!((run.add("web#1").await, run.kill("db#1").await), ("ok".into(), "ok".into()));
    assert_eq!(run.add("app#1").await, "ok");
    assert_eq!(rig.calls(), "REMOVE db#1, ADD app#1");
    run.end().await;

    // The copy does not know of app, and says that db runs.
    fs::remove_dir_all(&state).unwrap();
    fs::rename(&copy, &state).unwrap();
    let run = rig.start().await;
    assert_eq!(run.list().await, "app#1 db#1? web#1");
    assert_eq!((run.kill("app#1").await, run.add("db#1").await), ("ok".into(), "ok".into()));
    assert_eq!(rig.calls(), "REMOVE app#1, ADD db#1");
    run.end().await;
}

/// Found by the consumers' oracle: the row of the older state was as the new one, so no file was written.
#[tokio::test]
async fn a_pod_that_is_started_because_of_an_older_state_is_known_when_that_is_lost() {
    let rig = Rig::new("");
    let run = rig.start().await;
    assert_eq!(run.add("db#1").await, "ok");
    run.end().await;
    let (state, copy) = (rig.at("state"), rig.at("copy"));
    fs::rename(&state, &copy).unwrap();
    let run = rig.start().await;
    assert_eq!(run.kill("db#1").await, "ok");
    run.end().await;

    fs::remove_dir_all(&state).unwrap();
    fs::rename(&copy, &state).unwrap();
    let run = rig.start().await;
    rig.script("exit 1");
    assert_ne!(run.add("db#1").await, "ok");
    run.end().await;
    fs::remove_dir_all(&state).unwrap();
    let run = rig.start().await;
    assert_eq!(run.list().await, "db#1?");
    run.end().await;
}

#[tokio::test]
async fn until_the_state_is_open_nothing_is_known_and_then_it_works_at_once() {
    let rig = Rig::new("");
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    run.end().await;

    let mut state = rig.state();
    let (publish, watch) = watch::channel(Err(Arc::from("state.redb is damaged")));
    let exec = rig.exec(watch, "boot-1");
    let closed = "the state is not open, and nothing is run until it is mended: state.redb is damaged";
    assert_eq!(error(&exec).await, closed);
    for result in
        [exec.sync(&to_sync(podmux::pod::Op::Add, "db#1")).await, exec.kill(&to_kill("web#1")).await]
    {
        assert_eq!(result.unwrap_err().reason, "StateUnavailable");
    }
    // The same reason is not repeated at once, another one is.
    let mut again = Box::pin(exec.list());
    assert!(timeout(Duration::from_millis(50), &mut again).await.is_err());
    publish.send_replace(Err("it has a newer format".into())).unwrap_err();
    let error = soon(again).await.unwrap_err().source.to_string();
    assert_eq!(error, "the state is not open, and nothing is run until it is mended: it has a newer format");
    let mut again = Box::pin(exec.list());
    assert!(timeout(Duration::from_millis(50), &mut again).await.is_err());
    publish.send_modify(|now| *now = Ok(exec::State::new(state.db.clone(), &mut state.stored)));
    let listed = soon(again).await.unwrap();
    assert_eq!(listed.iter().map(|pod| pod.key.as_str()).collect::<Vec<_>>(), ["default/web"]);
    soon(exec.kill(&to_kill("web#1"))).await.unwrap();
    assert_eq!(rig.calls(), "ADD web#1, REMOVE web#1");
    // The runtime holds the database until it is dropped.
    drop((publish, exec));
    state.close().await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_stops_everything() {
    let rig = Rig::new("");
    let state = rig.state();
    state.put(Table::Runs, "default/web/1", "{\"future\": true}").await;
    state.close().await;
    let mut state = rig.state();
    let watch = watch::channel(Ok(exec::State::new(state.db.clone(), &mut state.stored))).1;
    let exec = rig.exec(watch, "boot-1");
    for _ in 0..2 {
        assert_eq!(
            error(&exec).await,
            "the row default/web/1 of the table runs in the state cannot be read; nothing is run until a copy of it is restored, or the podmux that wrote it is back"
        );
    }
    drop(exec);
    state.close().await;
}

#[tokio::test]
async fn a_row_in_a_file_that_cannot_be_read_stops_everything_and_stays() {
    let rig = Rig::new("");
    let file = rig.at("run/exec/default_web/1.run");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "{\"future\": true}").unwrap();
    let mut state = rig.state();
    let watch = watch::channel(Ok(exec::State::new(state.db.clone(), &mut state.stored))).1;
    let exec = rig.exec(watch, "boot-1");
    for _ in 0..2 {
        let error = error(&exec).await;
        assert!(error.starts_with("the row in "), "{error}");
        assert!(error.contains("default_web/1.run"), "{error}");
    }
    assert!(file.exists());
    drop(exec);
    state.close().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_an_error_and_not_no_pods() {
    let rig = Rig::new("");
    fs::create_dir_all(rig.at("run")).unwrap();
    fs::write(rig.at("run/exec"), "").unwrap();
    let mut state = rig.state();
    let watch = watch::channel(Ok(exec::State::new(state.db.clone(), &mut state.stored))).1;
    let exec = rig.exec(watch, "boot-1");
    let expected = format!("the files in {} cannot be used", rig.at("run/exec").display());
    assert_eq!(error(&exec).await, expected);
    fs::remove_file(rig.at("run/exec")).unwrap();
    assert_eq!(soon(exec.list()).await.unwrap().len(), 0);
    // A pod whose row was never durable.
    fs::create_dir_all(rig.at("run/exec/default_web/1.run")).unwrap();
    let failed = soon(exec.kill(&to_kill("web#1"))).await.unwrap_err();
    assert_eq!((failed.reason, failed.source.to_string()), ("StateUnavailable", expected));
    drop(exec);
    state.close().await;
}

#[tokio::test]
async fn a_row_that_was_cut_off_is_removed_at_the_next_start() {
    let rig = Rig::new("");
    fs::create_dir_all(rig.at("run/exec/default_web")).unwrap();
    fs::write(rig.at("run/exec/default_web/1.new"), "{\"id\":").unwrap();
    let run = rig.start().await;
    assert_eq!(run.exec.list().await.unwrap().len(), 0);
    assert_eq!(rig.files(), "");
    run.end().await;
}

/// A runtime whose state is on a disk that can fail.
fn on_disk(rig: &Rig, disk: &Disk) -> (Exec, State) {
    let mut state = State::open_on(disk).unwrap();
    let watch = watch::channel(Ok(exec::State::new(state.db.clone(), &mut state.stored))).1;
    (rig.exec(watch, "boot-1"), state)
}

#[tokio::test]
async fn without_a_durable_row_the_program_is_not_run() {
    let rig = Rig::new("");
    let disk = Disk::default();
    let (exec, state) = on_disk(&rig, &disk);
    soon(exec.list()).await.unwrap();
    let full = || {
        let fault = Fault { operation: Operation::Sync, from: 0, times: 1_000, errno: ENOSPC };
        disk.platter().fault = Some(fault);
    };
    full();
    let web = to_sync(podmux::pod::Op::Add, "web#1");
    assert_eq!(soon(exec.sync(&web)).await.unwrap_err().reason, "StateUnavailable");
    assert_eq!((rig.calls(), soon(exec.list()).await.unwrap().len()), (String::new(), 0));
    // A pod that was never given leaves no file.
    soon(exec.kill(&to_kill("web#1"))).await.unwrap();
    assert_eq!((rig.calls(), rig.files()), (String::new(), String::new()));
    disk.platter().fault = None;
    soon(exec.sync(&web)).await.unwrap();
    // The program has acted, and its end cannot be written: it is removed again.
    full();
    assert_eq!(soon(exec.kill(&to_kill("web#1"))).await.unwrap_err().reason, "StateUnavailable");
    assert_eq!((&*rig.calls(), soon(exec.list()).await.unwrap().len()), ("ADD web#1", 1));
    disk.platter().fault = None;
    soon(exec.kill(&to_kill("web#1"))).await.unwrap();
    assert_eq!((&*rig.calls(), soon(exec.list()).await.unwrap().len()), ("REMOVE web#1", 0));
    drop(exec);
    state.close().await;
}

/// Otherwise the next agent would give the pod again.
#[tokio::test]
async fn the_file_of_a_pod_is_written_again_if_that_has_failed() {
    let rig = Rig::new(r#"mkdir "$HERE/run/exec/default_web/1.new""#);
    let disk = Disk::default();
    let (exec, state) = on_disk(&rig, &disk);
    soon(exec.list()).await.unwrap();
    let web = to_sync(podmux::pod::Op::Add, "web#1");
    for _ in 0..2 {
        assert_eq!(soon(exec.sync(&web)).await.unwrap_err().reason, "StateUnavailable");
    }
    fs::remove_dir(rig.at("run/exec/default_web/1.new")).unwrap();
    soon(exec.sync(&web)).await.unwrap();
    assert!(rig.read("run/exec/default_web/1.run").contains("\"complete\":true"));
    assert_eq!(rig.calls(), "ADD web#1");
    drop(exec);
    state.close().await;
}

#[tokio::test]
async fn an_older_state_gets_the_ledger_and_an_older_podmux_rejects_it() {
    let disk = Disk::default();
    let before = State::open_with(&disk, &[]).unwrap();
    // Format 1 has eight bytes before each value.
    before.put(Table::Posted, "default/web", "checksum1").await;
    before.close().await;
    let rig = Rig::new("");
    let (exec, state) = on_disk(&rig, &disk);
    soon(exec.list()).await.unwrap();
    soon(exec.sync(&to_sync(podmux::pod::Op::Add, "web#1"))).await.unwrap();
    drop(exec);
    assert_eq!(state.rows(Table::Posted), "default/web=1");
    state.close().await;
    let older = db::open_on(&Host::default(), disk.clone(), Path::new("disk"), &[]);
    assert_eq!(
        older.err().unwrap().to_string(),
        "disk was written by a newer podmux: format 3, this one supports up to 1; run the newer one"
    );
}

/// Acts on `running-BOOT/`, a file for each pod, slowly and idempotently. It notes two UIDs of a name at once.
const EFFECTS: &str = r#"trap '' TERM
running="$HERE/running-$(cat "$HERE/boot")"
mkdir -p "$running"
pod="$running/$PODMUX_POD_NAME#$PODMUX_POD_UID"
case $PODMUX_OP in
ADD | UPDATE | RECONCILE)
    for other in "$running/$PODMUX_POD_NAME#"*; do
        [ "$other" = "$pod" ] || [ ! -e "$other" ] || echo "$PODMUX_OP $pod beside $other" >> "$HERE/violations"
    done
    if [ $(($$ % 6)) = 0 ]; then sleep 0.3; fi
    echo "$PODMUX_HASH" > "$pod"
    sleep 0.00$(($$ % 9))
    ;;
DELETE) sleep 0.00$(($$ % 9)) ;;
REMOVE)
    sleep 0.0$(($$ % 3))
    rm -f "$pod"
    ;;
esac
if [ -e "$HERE/fails" ] && [ $(($$ % 5)) = 0 ]; then exit 1; fi"#;

/// What is wanted, and its source.
struct Source {
    channel: SourceChannel,
    wanted: BTreeMap<&'static str, String>,
}

impl Source {
    fn publish(&self) {
        let mut listing = ListingBuilder::new(SourceName::File);
        for (name, pod) in &self.wanted {
            listing.put(&Origin::from(*name), vec![script::pod(pod)], jiff::Timestamp::UNIX_EPOCH);
        }
        self.channel.publish(listing.listing());
    }

    fn change(&mut self, random: &mut Random) {
        let name = *random.pick(&["a", "b", "c"]);
        let uid = random.pick(&["1", "2"]);
        let pod = format!("{name}#{uid}={}{}", random.pick(&["i:1", "i:2"]), random.pick(&["", "+a:b", "!"]));
        if random.once_in(4) {
            self.wanted.remove(name)
        } else {
            self.wanted.insert(name, pod)
        };
        self.publish();
    }
}

/// The files that are to be there: `name#uid` with the hash.
fn expected(view: &Merged) -> BTreeMap<String, String> {
    let pods = view.values().map(podmux::pod::Entry::pod).filter(|pod| pod.deletion_timestamp().is_none());
    let file = |pod: &Arc<podmux::pod::Pod>| {
        (format!("{}#{}", pod.key().name(), pod.uid()), podmux::runtime::runtime_hash(pod))
    };
    pods.map(file).collect()
}

fn effects(rig: &Rig) -> BTreeMap<String, String> {
    let directory = rig.at(&format!("running-{}", rig.read("boot").trim()));
    let files = fs::read_dir(directory).into_iter().flatten().map(Result::unwrap);
    let file = |file: fs::DirEntry| {
        let hash = fs::read_to_string(file.path()).unwrap_or_default();
        (file.file_name().into_string().unwrap(), hash.trim().to_owned())
    };
    files.map(file).collect()
}

/// Whether no program has its standard input open.
fn calls_end(directory: &Path) -> bool {
    let keys = fs::read_dir(directory).into_iter().flatten().map(|key| key.unwrap().path());
    let mut files = keys.flat_map(|key| fs::read_dir(key).unwrap()).map(|file| file.unwrap().path());
    files.all(|file| flock(File::open(file).unwrap(), FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Ends when what runs is what is wanted.
async fn quiet(rig: &Rig, mux: &Mux) {
    while effects(rig) != expected(&mux.merged().borrow()) {
        sleep(Duration::from_millis(5)).await;
    }
}

/// One round: an agent that crashes and reboots at any moment, while what is wanted changes.
async fn round(seed: u64) {
    let random = &mut Random::new(seed);
    let mut rig = Rig::new(EFFECTS);
    rig.patience = Duration::from_secs(5);
    fs::write(rig.at("fails"), "").unwrap();
    let mut boot = 1;
    fs::write(rig.at("boot"), "1\n").unwrap();
    let mut source = None;
    for crashes in 0..=6 {
        let is_last = crashes == 6;
        let (mux, merging) = Mux::new(&[SourceName::File]);
        let channel = mux.channel(SourceName::File).unwrap();
        let wanted = source.map_or_else(BTreeMap::new, |source: Source| source.wanted);
        let mut now = Source { channel, wanted };
        let run = rig.start_in(&format!("boot-{boot}")).await;
        let workers = PodWorkers::new(run.exec, mux.merged());
        let mut status = workers.status();
        if is_last {
            fs::remove_file(rig.at("fails")).unwrap();
        }
        now.publish();
        let stop = CancellationToken::new();
        let life = async {
            for _ in 0..random.below(6) {
                sleep(Duration::from_millis(random.below(40) as u64)).await;
                now.change(random);
            }
            mux.turns().await;
            if !is_last {
                // Some lives last until all is as wanted.
                if random.once_in(2) {
                    drop(timeout(Duration::from_millis(500), quiet(&rig, &mux)).await);
                }
                return sleep(Duration::from_millis(random.below(60) as u64)).await;
            }
            let begun = Instant::now();
            while effects(&rig) != expected(&mux.merged().borrow()) || !status.borrow().pods.is_empty() {
                assert!(
                    begun.elapsed() < Duration::from_mins(1),
                    "seed {seed}: {:?} instead of {:?}; {:?}\n{}",
                    effects(&rig),
                    expected(&mux.merged().borrow()),
                    status.borrow_and_update(),
                    rig.read("calls"),
                );
                let _ = timeout(Duration::from_millis(5), status.changed()).await;
                yield_now().await;
            }
        };
        tokio::select! {
            () = life => {}
            () = merging.run() => unreachable!(),
            // The crash drops its calls.
            () = workers.run(stop.clone()) => unreachable!(),
        }
        drop(mux);
        run.state.close().await;
        source = Some(now);
        if !is_last && random.once_in(3) {
            // No program survives it.
            spawn_blocking({
                let directory = rig.at("run/exec");
                move || wait_for(|| calls_end(&directory).then_some(()))
            })
            .await
            .unwrap();
            boot += 1;
            fs::write(rig.at("boot"), format!("{boot}\n")).unwrap();
        }
    }
    assert_eq!(rig.read("violations"), "", "seed {seed}");
}

/// `PODMUX_EXEC_ROUNDS=5000` runs more of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_crashes_exactly_what_is_wanted_runs() {
    let rounds = env::var("PODMUX_EXEC_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap());
    for seed in 0..rounds {
        round(seed).await;
    }
}
