//! Programs of the exec runtime that hang, ignore signals, leave processes behind, or outlive the agent.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use podmux::{pod::Op, runtime::PodRuntime as _};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::spawn_blocking;

use crate::support::{
    exec::{Rig, Run, to_sync},
    namespace::inside,
    process::wait_for,
};

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Whether a process runs. A zombie does not.
fn runs(pid: Pid) -> bool {
    let path = format!("/proc/{}/stat", pid.as_raw_pid());
    let stat = fs::read_to_string(path).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

async fn ends(pid: Pid) {
    spawn_blocking(move || wait_for(|| (!runs(pid)).then_some(()))).await.unwrap();
}

/// A process that a script has left behind. It is killed in any case.
struct Left(Pid);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Long enough for what a program does before it hangs, also on a loaded machine.
const LIMIT: Duration = Duration::from_secs(10);

const TIMED_OUT: &str = "ExecTimeout: DIR/program ADD was stopped: it did not end within 10s; its output is in DIR/run/exec/default_web/1.output";

#[tokio::test]
async fn a_program_that_hangs_gets_sigterm_and_its_children_too() {
    let mut rig = Rig::new(
        r#"sh -c 'echo $$ > "$0/child"; exec sleep 1000' "$HERE" &
        trap 'echo stopped > "$HERE/stopped"; exit 0' TERM
        while :; do sleep 0.01; done"#,
    );
    rig.config.timeout = LIMIT;
    rig.patience = Duration::from_mins(1);
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, TIMED_OUT);
    assert_eq!(rig.read("stopped"), "stopped\n");
    assert!(!runs(pid(&rig.read("child"))));
    assert_eq!(run.list().await, "web#1?");
    rig.script("");
    assert_eq!(run.add("web#1").await, "ok", "nothing holds the lock");
    run.end().await;
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_gets_sigkill_and_its_children_too() {
    let mut rig = Rig::new(
        r#"trap '' TERM
        sh -c 'echo $$ > "$0/child"; while :; do sleep 1000; done' "$HERE" &
        echo $$ > "$HERE/parent"
        while :; do sleep 1000; done"#,
    );
    rig.config.timeout = LIMIT;
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, TIMED_OUT);
    for name in ["parent", "child"] {
        ends(pid(&rig.read(name))).await;
    }
    // A child that goes on after its parent has ended.
    rig.script(
        r#"sh -c 'trap "" TERM; echo $$ > "$0/orphan"; exec sleep 1000' "$HERE" &
        while :; do sleep 1000; done"#,
    );
    assert_eq!(run.add("db#1").await, TIMED_OUT.replace("default_web", "default_db"));
    ends(pid(&rig.read("orphan"))).await;
    run.end().await;
}

/// Leaves a process behind that has the standard input open.
const KEEPS_STDIN: &str = r#"exec 3<&0
sleep 1000 &
echo $! > "$HERE/left""#;

#[tokio::test]
async fn a_process_that_keeps_standard_input_open_holds_up_its_pod_alone() {
    let rig = Rig::new(KEEPS_STDIN);
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    let left = Left(pid(&rig.read("left")));
    rig.script("");
    let busy = "ExecBusy: an earlier call of DIR/program still runs: a process has DIR/run/exec/default_web/1.stdin open as its standard input; end it (fuser shows it), or wait for its end";
    assert_eq!(run.sync(Op::Update, "web#1+a:b").await, busy);
    assert_eq!(run.kill("web#1!").await, busy);
    assert_eq!(run.list().await, "web#1", "nothing has begun");
    // A successor of its name waits too, and other pods do not.
    assert_eq!(run.add("web#2").await, busy);
    assert_eq!(run.add("db#1").await, "ok");
    run.end().await;
    let run = rig.start().await;
    assert_eq!(run.kill("web#1").await, busy, "for the next agent too");
    assert_eq!(rig.calls(), "ADD web#1, ADD db#1");
    let (kill, end) = tokio::join!(
        async {
            loop {
                match run.kill("web#1").await {
                    text if text == busy => {}
                    text => return text,
                }
            }
        },
        async { drop(left) }
    );
    assert_eq!((&*kill, end), ("ok", ()));
    assert_eq!((run.list().await, rig.calls()), ("db#1".into(), "REMOVE web#1".into()));
    run.end().await;
}

#[tokio::test]
async fn a_process_that_outlives_its_removed_pod_holds_up_a_successor() {
    let rig = Rig::new("");
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    rig.script(KEEPS_STDIN);
    assert_eq!(run.kill("web#1").await, "ok");
    let left = Left(pid(&rig.read("left")));
    rig.script("");
    assert!(run.add("web#2").await.starts_with("ExecBusy: "));
    assert_eq!(run.list().await, "");
    run.end().await;
    let run = rig.start().await;
    assert!(run.add("web#2").await.starts_with("ExecBusy: "), "its lock outlives a restart");
    let gone = left.0;
    drop(left);
    ends(gone).await;
    assert_eq!(run.add("web#2").await, "ok");
    run.end().await;
    // What was left is removed at the next start.
    let run = rig.start().await;
    assert_eq!(rig.files(), "default_web/2.output 600, default_web/2.run 600, default_web/2.stdin 600");
    run.end().await;
}

#[tokio::test]
async fn a_process_that_keeps_only_the_output_open_holds_up_nothing() {
    let rig = Rig::new(
        r#"sleep 1000 &
        echo $! > "$HERE/left"
        echo printed"#,
    );
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    let _left = Left(pid(&rig.read("left")));
    assert_eq!(rig.output("default_web/1"), "printed\n");
    assert_eq!(run.kill("web#1").await, "ok");
    let _left_by_remove = Left(pid(&rig.read("left")));
    // One that prints for ever has no reader any more.
    rig.script(
        r#"yes &
        echo $! > "$HERE/prints""#,
    );
    assert_eq!(run.add("web#2").await, "ok");
    let prints = Left(pid(&rig.read("prints")));
    ends(prints.0).await;
    run.end().await;
}

/// Ends when there is a file `go`, and then acts. No signal ends it before.
const SLOW: &str = r#"trap '' TERM
echo $$ > "$HERE/begun.$PODMUX_OP"
if [ $PODMUX_OP = ADD ]; then
    until [ -e "$HERE/go" ]; do sleep 0.01; done
fi
echo "$PODMUX_OP $PODMUX_POD_UID" >> "$HERE/done"
exit 0"#;

/// Cuts a call off when its program has begun, as a crash of the agent does.
async fn crash_during_add(rig: &Rig, run: Run, text: &str) -> Pid {
    let add = to_sync(Op::Add, text);
    let begun = tokio::select! {
        result = run.exec.sync(&add) => panic!("{}", run.text(result)),
        begun = rig.wait_for("begun.ADD") => begun,
    };
    run.end().await;
    pid(&begun)
}

#[tokio::test]
async fn a_program_that_outlives_the_agent_ends_its_add_before_the_remove() {
    let rig = Rig::new(SLOW);
    let left = Left(crash_during_add(&rig, rig.start().await, "web#1").await);
    assert!(runs(left.0));
    let run = rig.start().await;
    assert_eq!(run.list().await, "web#1?", "it may have been started");
    // It is not wanted any more.
    assert!(run.kill("web#1").await.starts_with("ExecBusy: "));
    assert!(run.add("web#2").await.starts_with("ExecBusy: "), "nor does its successor start");
    fs::write(rig.at("go"), "").unwrap();
    ends(left.0).await;
    assert_eq!(run.kill("web#1").await, "ok");
    assert_eq!(run.add("web#2").await, "ok");
    assert_eq!(rig.read("done"), "ADD 1\nREMOVE 1\nADD 2\n");
    assert_eq!(run.list().await, "web#2");
    run.end().await;
}

#[tokio::test]
async fn a_call_that_is_still_wanted_after_a_crash_is_repeated_when_the_first_has_ended() {
    let mut rig = Rig::new(SLOW);
    // Longer than the program takes: the call waits for it.
    rig.patience = Duration::from_mins(1);
    let left = Left(crash_during_add(&rig, rig.start().await, "web#1").await);
    let run = rig.start().await;
    let (text, ()) = tokio::join!(run.sync(Op::Update, "web#1"), async {
        fs::write(rig.at("go"), "").unwrap();
        ends(left.0).await;
    });
    assert_eq!(text, "ok");
    assert_eq!(rig.read("done"), "ADD 1\nADD 1\n");
    run.end().await;
}

#[tokio::test]
async fn the_shutdown_deadline_is_the_end_of_a_time_limit() {
    let rig = Rig::new(
        r#"echo $$ > "$HERE/begun.ADD"
        while :; do sleep 0.01; done"#,
    );
    let left = crash_during_add(&rig, rig.start().await, "web#1").await;
    ends(left).await;
    let run = rig.start().await;
    rig.script("");
    assert_eq!((run.list().await, run.kill("web#1").await), ("web#1?".into(), "ok".into()));
    run.end().await;
}

/// What the open files of this process are.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The children of this process, zombies too.
fn children() -> BTreeSet<i32> {
    let ours = format!(" {} ", std::process::id());
    let children = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.ok()?.file_name().into_string().ok()?.parse().ok()?;
        let stat = fs::read_to_string(Path::new("/proc").join(format!("{pid}/stat"))).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        rest[1..].starts_with(&ours).then_some(pid)
    });
    children.collect()
}

#[test]
fn calls_leave_no_zombie_and_no_open_file() {
    // Alone in a process: other tests have children and files too.
    if !inside("-Ur", "exec_programs::calls_leave_no_zombie_and_no_open_file") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let rig = Rig::new("echo output");
        let run = rig.start().await;
        assert_eq!(run.add("web#1").await, "ok");
        let before = open_files();
        for round in 0..100 {
            let text = format!("p{}#{round}", round % 3);
            assert_eq!(run.add(&text).await, "ok");
            if round % 10 == 0 {
                // A call that is cut off.
                rig.script("sleep 1000");
                let (sync, text) = (to_sync(Op::Update, &format!("{text}+a:b")), text.clone());
                let cut = tokio::time::timeout(Duration::from_millis(20), run.exec.sync(&sync)).await;
                assert!(cut.is_err());
                rig.script("echo output");
                // The program ends by SIGTERM, and then its lock is free.
                while run.kill(&text).await != "ok" {}
            }
            assert_eq!(run.kill(&text).await, "ok");
        }
        spawn_blocking(move || wait_for(|| (open_files() <= before && children().is_empty()).then_some(())))
            .await
            .unwrap();
        assert_eq!(rig.files(), "default_web/1.output 600, default_web/1.run 600, default_web/1.stdin 600");
        run.end().await;
    });
}
