//! The exec runtime: what the program is given for each operation, what is acknowledged, and what a failure says.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::Arc,
    time::Duration,
};

use expect_test::expect;
use jiff::Timestamp;
use podmux::{
    db::Table,
    mux::Mux,
    pod::{ListingBuilder, Op, Origin, Prepared, SourceName},
    runtime::{LogRequest, PodRuntime as _, PodWorkers, SyncPod, runtime_hash},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{
    exec::{Rig, Run, pod},
    files::soon,
    logs::logged,
    script,
};

/// Keeps the environment and the standard input of each call.
const KEEP: &str = r#"
name=$PODMUX_OP-$PODMUX_POD_UID
tr '\0' '\n' < /proc/$$/environ | sort > "$HERE/$name.environment"
cat > "$HERE/$name.stdin"
pwd > "$HERE/$name.pwd"
"#;

#[tokio::test]
async fn each_operation_has_its_environment_and_the_pod_on_standard_input() {
    let rig = Rig::new(KEEP);
    let run = rig.start().await;
    let steps = [(Op::Add, "web#1"), (Op::Update, "web#1+a:b"), (Op::Reconcile, "web#1+a:b%Running")];
    for (op, text) in steps {
        assert_eq!(run.sync(op, text).await, "ok");
        assert_eq!(rig.read(&format!("{op}-1.stdin")).as_bytes(), &**pod(text).text());
    }
    assert_eq!(run.list().await, "web#1");
    // Deleted gracefully: DELETE and REMOVE have the deletionTimestamp and the grace.
    assert_eq!(run.kill("web#1!").await, "ok");
    for op in [Op::Delete, Op::Remove] {
        assert_eq!(rig.read(&format!("{op}-1.stdin")).as_bytes(), &**pod("web#1!").text());
    }
    // Removed otherwise: REMOVE has what was given last.
    assert_eq!(run.sync(Op::Add, "db#2").await, "ok");
    assert_eq!(run.sync(Op::Update, "db#2=i:2").await, "ok");
    assert_eq!(run.kill("db#2").await, "ok");
    assert_eq!(rig.read("REMOVE-2.stdin").as_bytes(), &**pod("db#2=i:2").text());
    assert_eq!(run.list().await, "");
    expect!["ADD web#1, UPDATE web#1, RECONCILE web#1, DELETE web#1, REMOVE web#1, ADD db#2, UPDATE db#2, REMOVE db#2"].assert_eq(&rig.calls());
    expect![[r"
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        PODMUX_HASH=a0ee74c39ca13c25588e318cc321152a
        PODMUX_OP=RECONCILE
        PODMUX_POD_NAME=web
        PODMUX_POD_NAMESPACE=default
        PODMUX_POD_UID=1
        PODMUX_SOURCE=file
    "]]
    .assert_eq(&rig.read("RECONCILE-1.environment"));
    let hash = |call: &str| {
        let text = rig.read(&format!("{call}.environment"));
        text.lines().find_map(|line| line.strip_prefix("PODMUX_HASH=").map(str::to_owned)).unwrap()
    };
    assert_eq!(hash("ADD-1"), hash("UPDATE-1"), "an edit of a label restarts nothing");
    assert_ne!(hash("ADD-2"), hash("UPDATE-2"));
    assert_eq!(hash("UPDATE-2"), hash("REMOVE-2"));
    assert_eq!(rig.read("ADD-1.pwd"), "/\n");
    run.end().await;
}

#[tokio::test]
async fn what_is_unchanged_is_given_once_also_over_a_restart() {
    let rig = Rig::new("");
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    let started = soon(list(&run)).await;
    assert_eq!(run.sync(Op::Update, "web#1").await, "ok");
    run.end().await;
    let run = rig.start().await;
    assert_eq!(run.list().await, "web#1");
    assert_eq!(soon(list(&run)).await, started);
    assert_eq!(run.sync(Op::Update, "web#1").await, "ok");
    assert_eq!(rig.calls(), "ADD web#1");
    // A label that was edited meanwhile.
    assert_eq!(run.sync(Op::Update, "web#1+a:b").await, "ok");
    assert_eq!(rig.calls(), "UPDATE web#1");
    assert_eq!(soon(list(&run)).await, started, "it was not restarted");
    assert_eq!(run.sync(Op::Update, "web#1=i:2").await, "ok");
    assert_ne!(soon(list(&run)).await, started);
    assert_eq!(run.kill("web#1").await, "ok");
    assert_eq!(run.kill("web#1").await, "ok", "it is gone");
    assert_eq!(rig.calls(), "UPDATE web#1, REMOVE web#1");
    run.end().await;
}

/// The listed pods with what is known of them.
async fn list(run: &crate::support::exec::Run) -> String {
    use podmux::runtime::PodRuntime as _;
    format!("{:?}", run.exec.list().await.unwrap())
}

#[tokio::test]
async fn a_call_that_failed_is_repeated_until_it_is_acknowledged() {
    let rig = Rig::new("exit 3");
    let run = rig.start().await;
    let failed = "ExecFailed: DIR/program ADD failed: exit status: 3; its output is in DIR/run/exec/default_web/1.output";
    assert_eq!(run.add("web#1").await, failed);
    // As PodWorkers calls it when something may be there.
    assert_eq!(run.sync(Op::Update, "web#1=i:2").await, failed);
    assert_eq!(run.list().await, "web#1?");
    rig.script("");
    assert_eq!(run.sync(Op::Update, "web#1=i:2").await, "ok");
    assert_eq!((rig.calls(), run.list().await), ("ADD web#1, ADD web#1, ADD web#1".into(), "web#1".into()));

    rig.script("kill -9 $$");
    let killed = "ExecFailed: DIR/program UPDATE failed: signal: 9 (SIGKILL); its output is in DIR/run/exec/default_web/1.output";
    assert_eq!(run.sync(Op::Update, "web#1+a:b").await, killed);
    assert_eq!(run.list().await, "web#1?");
    rig.script("");
    assert_eq!(run.sync(Op::Update, "web#1+a:b").await, "ok");
    assert_eq!(rig.calls(), "UPDATE web#1, UPDATE web#1");

    // DELETE fails, then REMOVE: it begins again.
    rig.script("exit 1");
    assert!(run.kill("web#1!").await.starts_with("ExecFailed: DIR/program DELETE failed: exit status: 1;"));
    rig.script("[ $PODMUX_OP = DELETE ]");
    assert!(run.kill("web#1!").await.starts_with("ExecFailed: DIR/program REMOVE failed: exit status: 1;"));
    assert_eq!(run.list().await, "web#1?");
    // It is wanted again: what is left of it is not enough.
    rig.script("");
    assert_eq!(run.sync(Op::Update, "web#1").await, "ok");
    assert_eq!(run.kill("web#1!").await, "ok");
    assert_eq!(
        rig.calls(),
        "DELETE web#1, DELETE web#1, REMOVE web#1, ADD web#1, DELETE web#1, REMOVE web#1"
    );
    assert_eq!(run.list().await, "");
    run.end().await;
}

#[tokio::test]
async fn a_program_that_cannot_be_run_fails_its_pod_alone() {
    let mut rig = Rig::new("");
    let program = rig.at("other");
    rig.config.program.clone_from(&program);
    let run = rig.start().await;
    expect!["ExecFailed: DIR/other cannot be run for ADD; check that it and the interpreter in its first line exist, and its mode: No such file or directory (os error 2)"].assert_eq(&run.add("web#1").await);
    fs::create_dir(&program).unwrap();
    expect!["ExecFailed: DIR/other cannot be run for ADD; check that it and the interpreter in its first line exist, and its mode: Permission denied (os error 13)"].assert_eq(&run.add("web#1").await);
    fs::remove_dir(&program).unwrap();
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    expect!["ExecFailed: DIR/other cannot be run for ADD; check that it and the interpreter in its first line exist, and its mode: Permission denied (os error 13)"].assert_eq(&run.add("web#1").await);
    fs::remove_file(&program).unwrap();
    symlink("/dev/null", &program).unwrap();
    assert!(run.add("web#1").await.starts_with("ExecFailed: "));
    fs::remove_file(&program).unwrap();
    symlink(rig.at("program"), &program).unwrap();
    assert_eq!((run.list().await, run.add("web#1").await), ("web#1?".to_owned(), "ok".to_owned()));
    assert_eq!(run.list().await, "web#1");
    run.end().await;
}

#[tokio::test]
async fn a_uid_that_cannot_be_a_variable_is_rejected_and_leaves_nothing() {
    let rig = Rig::new("");
    let run = rig.start().await;
    let long = "u".repeat(120_001);
    for text in [format!("web#{long}"), "web#a\0b".to_owned()] {
        expect!["ExecFailed: metadata.uid has a NUL or more than 120000 bytes, so no program can be given it; choose another"].assert_eq(&run.add(&text).await);
        assert_eq!((run.list().await, rig.files()), (String::new(), String::new()));
        assert_eq!(run.kill(&text).await, "ok");
    }
    assert_eq!(run.add(&format!("web#{}", &long[1..])).await, "ok");
    assert_eq!(run.kill(&format!("web#{}", &long[1..])).await, "ok");
    run.end().await;
}

#[tokio::test]
async fn files_are_private_and_go_with_the_pod() {
    let rig = Rig::new("echo out; echo err >&2");
    let run = rig.start().await;
    let long = "n".repeat(253);
    assert_eq!(run.add("web#1").await, "ok");
    assert_eq!(rig.output("default_web/1"), "out\nerr\n");
    assert_eq!(rig.files(), "default_web/1.output 600, default_web/1.run 600, default_web/1.stdin 600");
    rig.script("");
    assert_eq!(run.sync(Op::Update, "web#1+a:b").await, "ok");
    assert_eq!(rig.output("default_web/1"), "", "the last call");
    // Names that no file can have, and a UID that looks like a path.
    for text in [format!("{long}#../../x"), "web#".to_owned(), "web#A".to_owned()] {
        assert_eq!(run.kill("web#1").await, "ok");
        assert_eq!((run.add(&text).await, run.kill(&text).await), ("ok".into(), "ok".into()));
        assert_eq!((rig.files(), run.list().await), (String::new(), String::new()), "{text}");
        assert_eq!(run.add("web#1").await, "ok");
    }
    assert_eq!(fs::read_dir(rig.at("run/exec")).unwrap().count(), 1);
    let mode = fs::metadata(rig.at("run/exec")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    assert_eq!(run.kill("web#1").await, "ok");
    assert_eq!(fs::read_dir(rig.at("run/exec")).unwrap().count(), 0);
    run.end().await;
    let state = rig.state();
    assert_eq!(state.rows(Table::Runs), "");
    state.close().await;
}

#[tokio::test]
async fn output_is_capped_and_the_program_ends_as_if_all_were_read() {
    let rig = Rig::new("yes 0123456789abcde | head -c 50000000; echo the last line");
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    let output = rig.output("default_web/1");
    let (kept, note) = output.split_at(64 << 10);
    assert_eq!(kept, "0123456789abcde\n".repeat(1 << 12));
    assert_eq!(note, "\n[podmux: the output is longer: 49934478 bytes are not in this file]\n");
    run.end().await;
}

#[tokio::test]
async fn there_are_no_logs_of_containers() {
    let rig = Rig::new("echo hello");
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    let pod = pod("web#1");
    let request = LogRequest {
        key: pod.key().clone(),
        uid: pod.uid().clone(),
        container_id: "".into(),
        follow: false,
        tail: None,
        since: None,
        timestamps: false,
    };
    let answer = run.text(run.exec.logs(&request, mpsc::channel(1).0).await);
    expect!["LogsNotSupported: the exec runtime keeps no output of containers; what DIR/program has printed last is in DIR/run/exec/default_web/1.output"].assert_eq(&answer);
    run.end().await;
}

#[test]
fn no_secret_is_in_the_log_or_on_the_pod() {
    logged(|log| async move {
        let rig = Rig::new("cat; cat >&2; echo SECRET; exit 3");
        let run = rig.start().await;
        let (mux, merging) = Mux::new(&[SourceName::File]);
        let channel = mux.channel(SourceName::File).unwrap();
        let mut wanted = ListingBuilder::new(SourceName::File);
        let origin = Origin::from("web.yaml");
        wanted.put(&origin, vec![script::pod("web#1+a:SECRET=SECRET")], jiff::Timestamp::UNIX_EPOCH);
        channel.publish(wanted.listing());
        let workers = PodWorkers::new(run.exec, mux.merged());
        let (mut status, stop) = (workers.status(), CancellationToken::new());
        let observed = async {
            let failing = status.wait_for(|status| status.pods.values().any(|pod| pod.failing.is_some()));
            let failing = soon(failing).await.unwrap().pods.values().next().unwrap().failing.clone().unwrap();
            stop.cancel();
            drop(channel);
            failing
        };
        let (failing, ..) = tokio::join!(observed, merging.run(), workers.run(stop.clone()));
        assert_eq!(failing.reason, "ExecFailed");
        assert!(failing.error.contains("ADD failed: exit status: 3; its output is in "), "{}", failing.error);
        assert!(!failing.error.contains("SECRET"));
        assert!(rig.output("default_web/1").contains("SECRET"));
        let lines = log.lines_with("exit status: 3");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("pod failed"), "{lines:?}");
        assert_eq!(log.lines_with("SECRET"), Vec::<String>::new());
        run.state.close().await;
    });
}

#[tokio::test]
async fn a_grace_is_added_to_the_time_limit() {
    let mut rig = Rig::new("case $PODMUX_OP$PODMUX_POD_UID in DELETE1 | REMOVE2) sleep 0.3 ;; esac");
    let run = rig.start().await;
    assert_eq!((run.add("web#1").await, run.add("db#2").await), ("ok".into(), "ok".into()));
    run.end().await;
    rig.config.timeout = Duration::from_millis(100);
    let run = rig.start().await;
    // Deleted gracefully, within 30 s: only the REMOVE after it may take too long, on a busy machine.
    loop {
        match run.kill("web#1!").await {
            text if text == "ok" => break,
            text => assert!(text.contains("REMOVE was stopped"), "{text}"),
        }
    }
    // Removed otherwise: within its terminationGracePeriodSeconds, 30 s by default.
    assert_eq!(run.kill("db#2").await, "ok");
    run.end().await;
}

#[test]
fn what_places_a_pod_and_what_debugs_it_restart_nothing() {
    let hash = |more: &str| {
        let text =
            format!(r#"{{"metadata": {{"name": "web", "uid": "1"}}, "spec": {{"nodeName": "n"{more}}}}}"#);
        let pod = Prepared::from_json(text.as_bytes()).unwrap();
        runtime_hash(&pod.published_by(SourceName::Api, Timestamp::UNIX_EPOCH))
    };
    for more in [r#", "tolerations": [{}]"#, r#", "ephemeralContainers": [{"name": "debug"}]"#] {
        assert_eq!(hash(more), hash(""), "{more}");
    }
    assert_ne!(hash(r#", "containers": [{"name": "c"}]"#), hash(""));
}

#[tokio::test]
async fn a_remove_has_the_grace_that_the_pod_asks_for() {
    let mut rig = Rig::new("if [ $PODMUX_OP = REMOVE ]; then sleep 1000; fi");
    let run = rig.start().await;
    let text = br#"{"metadata": {"name": "web", "uid": "1"}, "spec": {"terminationGracePeriodSeconds": 1}}"#;
    let pod =
        Arc::new(Prepared::from_json(text).unwrap().published_by(SourceName::File, Timestamp::UNIX_EPOCH));
    let hash = runtime_hash(&pod).into();
    run.exec.sync(&SyncPod { hash, source: SourceName::File, op: Op::Add, pod }).await.unwrap();
    run.end().await;
    // Only what must exceed it has the short limit.
    rig.config.timeout = Duration::from_secs(2);
    let run = rig.start().await;
    let error = run.kill("web#1").await;
    assert!(error.contains("it did not end within 3s"), "{error}");
    run.end().await;
}

/// A pod with this `terminationGracePeriodSeconds` and label.
fn with_grace(op: Op, grace: u64, label: &str) -> SyncPod {
    let text = format!(
        r#"{{"metadata": {{"name": "web", "uid": "1", "labels": {{"a": "{label}"}}}},
        "spec": {{"terminationGracePeriodSeconds": {grace}}}}}"#
    );
    let pod = Prepared::from_json(text.as_bytes()).unwrap();
    let pod = Arc::new(pod.published_by(SourceName::File, Timestamp::UNIX_EPOCH));
    SyncPod { hash: runtime_hash(&pod).into(), source: SourceName::File, op, pod }
}

#[tokio::test]
async fn a_restart_has_the_longer_grace_also_when_it_is_repeated() {
    let mut rig = Rig::new("");
    let (default, short) = (rig.config.timeout, Duration::from_secs(2));
    let sync = async |run: &Run, op, grace, label: &str| {
        run.text(run.exec.sync(&with_grace(op, grace, label)).await)
    };
    // Only what must exceed it has the short limit.
    let run = rig.start().await;
    assert_eq!(sync(&run, Op::Add, 2, "").await, "ok");
    run.end().await;
    rig.script("sleep 1000");
    rig.config.timeout = short;
    let run = rig.start().await;
    // What runs has 2 s, and what replaces it 1 s. Then the ledger has the latter alone.
    for limit in ["4s", "3s"] {
        let error = sync(&run, Op::Update, 1, "").await;
        assert!(error.contains(&format!("it did not end within {limit}")), "{error}");
    }
    run.end().await;
    rig.script("");
    rig.config.timeout = default;
    let run = rig.start().await;
    assert_eq!(sync(&run, Op::Update, 1, "").await, "ok");
    run.end().await;
    // A label restarts nothing.
    rig.script("sleep 1000");
    rig.config.timeout = short;
    let run = rig.start().await;
    let error = sync(&run, Op::Update, 1, "b").await;
    assert!(error.contains("it did not end within 2s"), "{error}");
    run.end().await;
}

#[tokio::test]
async fn an_add_that_is_repeated_stops_nothing_and_has_no_grace() {
    let mut rig = Rig::new("sleep 1000");
    rig.config.timeout = Duration::from_secs(1);
    let run = rig.start().await;
    for _ in 0..2 {
        let error = run.text(run.exec.sync(&with_grace(Op::Add, 9, "")).await);
        assert!(error.contains("it did not end within 1s"), "{error}");
    }
    // It may have begun to start the pod that is replaced.
    let error = run.text(run.exec.sync(&with_grace(Op::Update, 1, "")).await);
    assert!(error.contains("it did not end within 10s"), "{error}");
    run.end().await;
}

#[tokio::test]
async fn a_restart_that_failed_at_first_counts_as_a_new_start() {
    let rig = Rig::new("");
    let run = rig.start().await;
    assert_eq!(run.add("web#1").await, "ok");
    let started = run.exec.list().await.unwrap()[0].started;
    rig.script("exit 1");
    assert_ne!(run.sync(Op::Update, "web#1=i:2").await, "ok");
    // The program may have restarted it.
    let attempted = run.exec.list().await.unwrap()[0].started;
    assert!(attempted > started, "{attempted:?} {started:?}");
    rig.script(r#"date +%s%N > "$HERE/ended""#);
    assert_eq!(run.sync(Op::Update, "web#1=i:2").await, "ok");
    let restarted = run.exec.list().await.unwrap()[0].started;
    // It runs since the program has acknowledged it.
    let ended = Timestamp::from_nanosecond(rig.read("ended").trim().parse().unwrap()).unwrap();
    assert!(restarted > started && restarted > Some(ended), "{restarted:?} {ended}");
    run.end().await;
}

/// The calls of two pods run at once.
#[tokio::test]
async fn pods_do_not_wait_for_each_other() {
    let rig = Rig::new(
        r#"echo > "$HERE/$PODMUX_POD_NAME.runs"
        until [ -e "$HERE/a.runs" ] && [ -e "$HERE/b.runs" ]; do sleep 0.01; done"#,
    );
    let run = rig.start().await;
    assert_eq!(tokio::join!(run.add("a#1"), run.add("b#1")), ("ok".into(), "ok".into()));
    assert_eq!(run.list().await, "a#1 b#1");
    run.end().await;
}
