//! examples/systemd-run.sh, with doubles of systemd-run and systemctl.

use std::{fs, process::Command};

use expect_test::expect;
use podmux::{
    pod::{Op, Prepared, SourceName},
    runtime::{KillPod, PodRuntime as _, SyncPod, runtime_hash},
};
use serde_json::{Value, json};

use crate::support::{exec::Rig, files::soon, kubernetes::not_tested};

fn sync(op: Op, uid: &str, spec: Value, metadata: &Value) -> SyncPod {
    let mut pod = json!({"metadata": {"name": "web", "uid": uid}, "spec": spec});
    for (field, value) in metadata.as_object().unwrap() {
        pod["metadata"][field] = value.clone();
    }
    let pod = Prepared::from_value(pod).unwrap().published_by(SourceName::File, jiff::Timestamp::UNIX_EPOCH);
    SyncPod { hash: runtime_hash(&pod).into(), source: SourceName::File, op, pod: pod.into() }
}

#[tokio::test]
async fn the_example_runs_a_service_for_each_pod() {
    if Command::new("jq").arg("--version").output().is_err() {
        return not_tested("examples/systemd-run.sh: jq is not installed");
    }
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/bin");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/systemd-run.sh");
    let rig = Rig::new(&format!("export PATH=\"{tests}:$PATH\" UNITS=\"$HERE/units\"\nexec sh '{example}'"));
    fs::create_dir(rig.at("units")).unwrap();
    let run = rig.start().await;
    let call = async |sync: SyncPod| run.text(soon(run.exec.sync(&sync)).await);
    let unit = |uid: &str, file: &str| rig.read(&format!("units/podmux-{uid}.service/{file}"));
    let log = || {
        let log = rig.read("units/log");
        let _ = fs::remove_file(rig.at("units/log"));
        log
    };

    let spec = |image: &str| {
        json!({
            "restartPolicy": "OnFailure",
            "containers": [{
                "name": "c",
                "image": image,
                "command": ["/bin/echo", "it's $HOME"],
                "args": ["two\nlines", ""],
                "env": [{"name": "A", "value": "1 2"}, {"name": "B", "valueFrom": {}}],
            }],
        })
    };
    assert_eq!(
        call(sync(Op::Add, "1", spec("i:1"), &json!({}))).await,
        "ok",
        "{}",
        rig.output("default_web/1")
    );
    expect![[r#"
        --quiet
        --collect
        --unit=podmux-1.service
        --description=pod default/web 5e0f7cbcd2ad9ae8a5e0f7cbcd2ad9ae
        --property=Type=exec
        --property=RemainAfterExit=yes
        --property=RestartSec=1
        --property=StartLimitIntervalSec=0
        --property=Restart=on-failure
        --property=TimeoutStopSec=30
        --setenv=A=1 2
        --
        /bin/echo
        it's $$HOME
        two
        lines

    "#]]
    .assert_eq(&unit("1", "arguments"));

    // A label restarts nothing, another image does.
    let label = json!({"labels": {"a": "b"}});
    assert_eq!(call(sync(Op::Update, "1", spec("i:1"), &label)).await, "ok");
    assert_eq!(log(), "start podmux-1.service\n");
    assert_eq!(call(sync(Op::Update, "1", spec("i:2"), &label)).await, "ok");
    assert_eq!(log(), "stop podmux-1.service\nstart podmux-1.service\n");

    // A deletion within its grace, of a service that does not stop.
    let actual = soon(run.exec.list()).await.unwrap().remove(0);
    fs::write(rig.at("units/podmux-1.service/hangs"), "").unwrap();
    let deleted = json!({"deletionTimestamp": "2026-11-22T00:00:00Z", "deletionGracePeriodSeconds": 1});
    let pod = Some(sync(Op::Add, "1", spec("i:2"), &deleted).pod);
    let kill = KillPod { actual, grace: Some(std::time::Duration::from_secs(1)), pod };
    assert_eq!(run.text(soon(run.exec.kill(&kill)).await), "ok", "{}", rig.output("default_web/1"));
    assert_eq!(log(), "kill podmux-1.service\nstop podmux-1.service\n");

    // A successor, which is removed.
    assert_eq!(
        call(sync(Op::Add, "2", json!({"containers": [{"name": "c", "command": ["a"]}]}), &label)).await,
        "ok"
    );
    assert!(unit("2", "arguments").contains("--property=Restart=always\n"));
    let actual = soon(run.exec.list()).await.unwrap().remove(0);
    // The service is gone already.
    fs::remove_dir_all(rig.at("units/podmux-2.service")).unwrap();
    let kill = KillPod { actual, grace: None, pod: None };
    assert_eq!(run.text(soon(run.exec.kill(&kill)).await), "ok", "{}", rig.output("default_web/2"));
    assert_eq!(log(), "start podmux-2.service\n");
    assert_eq!(run.list().await, "");
    run.end().await;
}
