//! examples/systemd-run.sh, with doubles of systemd-run and systemctl.

use std::{fs, process::Command, time::Duration};

use expect_test::expect;
use podmux::{
    pod::{Op, Prepared, SourceName},
    runtime::{KillPod, PodRuntime as _, SyncPod, runtime_hash},
};
use serde_json::{Value, json};

use crate::support::{
    exec::{Rig, Run},
    files::soon,
    kubernetes::not_tested,
};

/// The example, and the units that it has made.
struct Services {
    rig: Rig,
    run: Run,
}

impl Services {
    /// None if the example cannot run here.
    async fn new() -> Option<Self> {
        if Command::new("jq").arg("--version").output().is_err() {
            not_tested("examples/systemd-run.sh: jq is not installed");
            return None;
        }
        let doubles = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/bin");
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/systemd-run.sh");
        let rig =
            Rig::new(&format!("export PATH=\"{doubles}:$PATH\" UNITS=\"$HERE/units\"\nexec sh '{example}'"));
        fs::create_dir(rig.at("units")).unwrap();
        let run = rig.start().await;
        Some(Self { rig, run })
    }

    async fn sync(&self, pod: SyncPod) {
        let result = self.run.text(soon(self.run.exec.sync(&pod)).await);
        assert_eq!(result, "ok", "{}", self.rig.output(&format!("default_web/{}", pod.pod.uid())));
    }

    async fn fails(&self, pod: &SyncPod) {
        let result = self.run.text(soon(self.run.exec.sync(pod)).await);
        assert!(result.contains(&format!("{} failed: exit status: 1;", pod.op)), "{result}");
    }

    /// Kills the one pod that runs; within a second if it is being deleted.
    async fn kill(&self, deleted: Option<SyncPod>) {
        let actual = soon(self.run.exec.list()).await.unwrap().remove(0);
        let uid = actual.uid.clone();
        let grace = deleted.as_ref().map(|_| Duration::from_secs(1));
        let kill = KillPod { actual, grace, pod: deleted.map(|deleted| deleted.pod) };
        let result = self.run.text(soon(self.run.exec.kill(&kill)).await);
        assert_eq!(result, "ok", "{}", self.rig.output(&format!("default_web/{uid}")));
        assert_eq!(self.run.list().await, "");
    }

    fn arguments(&self, uid: &str) -> String {
        self.rig.read(&format!("units/podmux-{uid}.service/arguments"))
    }

    /// What the unit's shell is given.
    fn script(&self, uid: &str) -> String {
        self.rig.read(&format!("units/podmux-{uid}.service/script"))
    }

    /// What has happened to units since the last look.
    fn log(&self) -> String {
        let log = self.rig.read("units/log");
        let _ = fs::remove_file(self.rig.at("units/log"));
        log.replace('\n', ",")
    }
}

fn pod(op: Op, uid: &str, spec: &Value, metadata: &Value) -> SyncPod {
    let mut pod = json!({"metadata": {"name": "web", "uid": uid}, "spec": spec});
    for (field, value) in metadata.as_object().unwrap() {
        pod["metadata"][field] = value.clone();
    }
    let pod = Prepared::from_value(pod).unwrap().published_by(SourceName::File, jiff::Timestamp::UNIX_EPOCH);
    SyncPod { hash: runtime_hash(&pod).into(), source: SourceName::File, op, pod: pod.into() }
}

fn spec(image: &str) -> Value {
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
}

#[tokio::test]
async fn the_example_runs_a_service_for_each_pod() {
    let Some(services) = Services::new().await else { return };
    services.sync(pod(Op::Add, "1", &spec("i:1"), &json!({}))).await;
    expect![[r#"
        --quiet
        --unit=podmux-1.service
        --description=pod default/web e238cee441e9b59bcb4d6902103625df
        --property=Type=exec
        --property=RestartSec=1
        --property=StartLimitIntervalSec=0
        --property=KillMode=mixed
        --property=IgnoreSIGPIPE=no
        --property=StandardInput=data
        --property=TimeoutStopSec=30
        --property=Restart=on-failure
        --collect
        --property=RemainAfterExit=true
        --
        /bin/sh
    "#]]
    .assert_eq(&services.arguments("1"));
    expect![[r#"
        exec 'env' '--' 'A=1 2' '/usr/bin/nice' '-n' '0' '--' '/bin/echo' 'it'\''s $HOME' 'two
        lines' '' < /dev/null"#]]
    .assert_eq(&services.script("1"));

    // A label restarts nothing, another image does.
    let label = json!({"labels": {"a": "b"}});
    services.sync(pod(Op::Update, "1", &spec("i:1"), &label)).await;
    assert_eq!(services.log(), "start podmux-1.service,");
    services.sync(pod(Op::Update, "1", &spec("i:2"), &label)).await;
    assert_eq!(services.log(), "stop podmux-1.service,start podmux-1.service,");

    // A deletion within its grace, of a service that does not stop.
    fs::write(services.rig.at("units/podmux-1.service/hangs"), "").unwrap();
    let deletion = json!({"deletionTimestamp": "2026-11-22T00:00:00Z", "deletionGracePeriodSeconds": 1});
    services.kill(Some(pod(Op::Delete, "1", &spec("i:2"), &deletion))).await;
    assert_eq!(services.log(), "kill podmux-1.service,stop podmux-1.service,");

    // A successor, whose service is gone when it is removed.
    let container = json!({"containers": [{"name": "c", "command": ["cat"]}]});
    services.sync(pod(Op::Add, "2", &container, &label)).await;
    assert!(services.arguments("2").contains("--property=Restart=always\n"));
    assert!(services.arguments("2").contains("--property=RemainAfterExit=false\n"));
    fs::remove_dir_all(services.rig.at("units/podmux-2.service")).unwrap();
    services.kill(None).await;
    assert_eq!(services.log(), "start podmux-2.service,");

    // A deletion without a grace, of a service that does not stop.
    services.sync(pod(Op::Add, "3", &container, &label)).await;
    fs::write(services.rig.at("units/podmux-3.service/hangs"), "").unwrap();
    let deletion = json!({"deletionTimestamp": "2026-11-22T00:00:00Z", "deletionGracePeriodSeconds": 0});
    services.kill(Some(pod(Op::Delete, "3", &container, &deletion))).await;
    assert_eq!(services.log(), "start podmux-3.service,kill podmux-3.service,stop podmux-3.service,");
    services.run.end().await;
}

#[tokio::test]
async fn the_example_starts_nothing_for_a_uid_that_is_a_pattern() {
    let Some(services) = Services::new().await else { return };
    for uid in ["*", "../[1]", "1\n2", &"1".repeat(201)] {
        services.fails(&pod(Op::Add, uid, &spec("i:1"), &json!({}))).await;
        services.kill(None).await;
    }
    assert_eq!(services.log(), "");
    services.run.end().await;
}

#[tokio::test]
async fn the_example_starts_no_pod_that_needs_a_user_namespace() {
    let Some(services) = Services::new().await else { return };
    let mut spec = spec("i:1");
    services.sync(pod(Op::Add, "1", &spec, &json!({}))).await;
    spec["hostUsers"] = json!(false);
    services.fails(&pod(Op::Update, "1", &spec, &json!({}))).await;
    let output = services.rig.output("default_web/1");
    assert_eq!(output, "hostUsers: false needs a user namespace, and this program makes none\n");
    services.kill(None).await;
    services.fails(&pod(Op::Add, "2", &spec, &json!({}))).await;
    services.kill(None).await;
    assert_eq!(services.log(), "start podmux-1.service,stop podmux-1.service,");
    services.run.end().await;
}

#[tokio::test]
async fn the_example_starts_a_failed_pod_only_again_if_its_policy_says_so() {
    let Some(services) = Services::new().await else { return };
    let spec = |policy: &str, command: &str| json!({"restartPolicy": policy, "containers": [{"name": "c", "command": [command]}]});
    services.sync(pod(Op::Add, "1", &spec("Never", "cat"), &json!({}))).await;
    assert!(!services.arguments("1").contains("--collect\n"));
    fs::write(services.rig.at("units/podmux-1.service/failed"), "").unwrap();
    services.log();
    // A label starts nothing again, and another command does.
    services.sync(pod(Op::Update, "1", &spec("Never", "cat"), &json!({"labels": {"a": "b"}}))).await;
    assert_eq!(services.log(), "");
    // Nor while it ends.
    fs::rename(
        services.rig.at("units/podmux-1.service/failed"),
        services.rig.at("units/podmux-1.service/ending"),
    )
    .unwrap();
    services.sync(pod(Op::Update, "1", &spec("Never", "cat"), &json!({"labels": {"a": "c"}}))).await;
    assert_eq!(services.log(), "");
    // A stop that was interrupted is followed by a start.
    fs::write(services.rig.at("units/podmux-1.service/stops"), "").unwrap();
    services.sync(pod(Op::Update, "1", &spec("Never", "cat"), &json!({"labels": {"a": "d"}}))).await;
    assert_eq!(services.log(), "stop podmux-1.service,start podmux-1.service,");
    fs::write(services.rig.at("units/podmux-1.service/failed"), "").unwrap();
    services.sync(pod(Op::Update, "1", &spec("Never", "ls"), &json!({}))).await;
    assert_eq!(services.log(), "stop podmux-1.service,start podmux-1.service,");
    fs::write(services.rig.at("units/podmux-1.service/failed"), "").unwrap();
    services.kill(None).await;
    assert!(!services.rig.at("units/podmux-1.service").exists());
    // What could not be started fails each time.
    let unstartable = json!({"containers": [{"name": "c", "command": ["cat", "unstartable"]}]});
    let refused = "spec.containers[0]: there is no program '/missing'\n";
    for (uid, spec, why) in [("2", &unstartable, ""), ("3", &spec("Always", "/missing"), refused)] {
        let pod = pod(Op::Add, uid, spec, &json!({}));
        services.fails(&pod).await;
        services.fails(&pod).await;
        assert_eq!(services.rig.output(&format!("default_web/{uid}")), why);
        services.kill(None).await;
    }
    services.run.end().await;
}

#[tokio::test]
async fn the_example_replaces_references_to_variables_and_sets_empty_ones() {
    let Some(services) = Services::new().await else { return };
    let variables = [("E", ""), ("A", "1"), ("B", "$(A)-$(C)-$$(A)"), ("C", "$x")];
    let env = variables.map(|(name, value)| json!({"name": name, "value": value}));
    let args = ["$(B) $(C)", "$(NONE) $$(A) $$$(A) $$x $(A", "[$(E)]", "$"];
    let spec = json!({"containers": [{"name": "c", "command": ["cat", "$(A)"], "args": args, "env": env}]});
    services.sync(pod(Op::Add, "1", &spec, &json!({}))).await;
    assert_eq!(
        services.script("1"),
        "exec 'env' '--' 'E=' 'A=1' 'B=1-$(C)-$(A)' 'C=$x' '/usr/bin/nice' '-n' '0' '--' 'cat' '1' \
         '1-$(C)-$(A) $x' '$(NONE) $(A) $1 $x $(A' '[]' '$' < /dev/null"
    );
    services.kill(None).await;
    services.run.end().await;
}

#[tokio::test]
async fn the_example_sets_variables_with_any_name() {
    let Some(services) = Services::new().await else { return };
    let names = ["A_1", "my-var.x", "-x", "1"];
    let env = names.map(|name| json!({"name": name, "value": "$1\n2"}));
    let spec = json!({"containers": [{"name": "c", "command": ["cat"], "env": env}]});
    services.sync(pod(Op::Add, "1", &spec, &json!({}))).await;
    assert_eq!(
        services.script("1"),
        "exec 'env' '--' 'A_1=$1\n2' 'my-var.x=$1\n2' '-x=$1\n2' '1=$1\n2' '/usr/bin/nice' '-n' '0' '--' 'cat' \
         < /dev/null"
    );
    services.kill(None).await;
    services.run.end().await;
}
