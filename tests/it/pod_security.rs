//! The Pod Security Standards: upstream's verdicts, and the level of each source.

use std::time::Duration;

use podmux::{pod::SecurityLevel, validation::pod_security::violation};
use serde_json::{Value, json};

use crate::support::{
    apiserver::{self, ApiServer},
    corpus,
    dialogue::{Side, compare},
    kubernetes::Apiserver,
    process::{Process, podmux},
    reflected::{Reflected, over_both},
    server::{Setup, TestServer},
};

#[test]
fn upstreams_fixtures_get_upstreams_verdict_in_upstreams_words() {
    for case in corpus("pod_security.jsonl.gz") {
        let pod = case["pod"].as_object().unwrap();
        assert_eq!(violation(pod, SecurityLevel::Privileged), None);
        for level in [SecurityLevel::Baseline, SecurityLevel::Restricted] {
            let theirs = case[level.as_str()].as_str().unwrap();
            let wanted = format!("violates PodSecurity \"{}:latest\": {theirs}", level.as_str());
            let wanted = Some(wanted).filter(|_| !theirs.is_empty());
            assert_eq!(violation(pod, level), wanted, "{}", case["id"]);
        }
    }
}

/// A valid volume has one type. An API server has validated the pods that it binds, unless it is hostile.
#[test]
fn each_type_of_a_volume_with_several_counts() {
    let host_path = json!({"path": "/"});
    let volumes = json!([
        {"name": "v", "emptyDir": {}, "hostPath": host_path},
        {"name": "w", "configMap": {"name": "c"}, "nfs": {"path": "/", "server": "s"}, "hostPath": host_path},
        {"name": "x", "configMap": {"name": "c"}, "emptyDir": {}},
    ]);
    let pod = json!({"metadata": {"name": "web"}, "spec": {"volumes": volumes}});
    let text = violation(pod.as_object().unwrap(), SecurityLevel::Restricted).unwrap();
    let wanted =
        "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")";
    assert!(text.contains(wanted), "{text}");
}

#[test]
fn a_violation_by_very_many_containers_is_cut() {
    let container = |index| json!({"name": format!("c{index}"), "securityContext": {"privileged": true}});
    let containers: Vec<Value> = (0..10_000).map(container).collect();
    let pod = json!({"metadata": {"name": "many"}, "spec": {"containers": containers}});
    let text = violation(pod.as_object().unwrap(), SecurityLevel::Restricted).unwrap();
    assert!(text.starts_with("violates PodSecurity \"restricted:latest\": privileged (containers \"c0\", "));
    assert!(text.len() < 5000 && text.ends_with('…'), "{} bytes", text.len());
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i:1"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn on_host(name: &str) -> Value {
    pod(name, &json!({"hostNetwork": true}))
}

#[tokio::test]
async fn a_posted_pod_beyond_the_level_is_forbidden_as_by_an_api_servers_admission() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let mut kubernetes = Side::kubernetes(apiserver);
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"metadata": {"name": "guarded", "labels": labels}});
    assert_eq!(kubernetes.aside("POST /api/v1/namespaces", &namespace).await.code, 201);
    let mut run = podmux(&["run", "--node-name", "node1", "--listen", "127.0.0.1:0", "--state-dir", "none"]);
    let process = Process::start(run.args(["--anonymous-auth", "--pod-security", "http=baseline"]));
    let line = process.logs("listening");
    let mut podmux = Side::podmux(&format!("http://{}", line.rsplit_once("address=").unwrap().1));
    for side in [&mut kubernetes, &mut podmux] {
        let post = "POST /api/v1/namespaces/guarded/pods";
        side.send("a control", post, &on_host("host")).await;
        let container = json!({
            "name": "d", "image": "i:1", "ports": [{"containerPort": 80, "hostPort": 80}],
            "securityContext": {"privileged": true, "capabilities": {"add": ["SYS_TIME", "NET_RAW"]}},
        });
        let volumes = json!([{"name": "v", "hostPath": {"path": "/"}}]);
        let spec = json!({"containers": [container], "hostPID": true, "volumes": volumes});
        side.send("several controls", post, &pod("many", &spec)).await;
        side.send("a dry run", &format!("{post}?dryRun=All"), &on_host("dry")).await;
        side.send("an invalid pod", post, &pod("invalid", &json!({"hostPID": true, "dnsPolicy": "x"}))).await;
        side.send("an allowed pod", post, &pod("allowed", &json!({}))).await;
    }
    compare(&kubernetes, &podmux, &[]);
}

#[tokio::test]
async fn a_list_with_a_pod_beyond_the_level_is_rejected_as_a_whole() {
    let server = TestServer::with(Setup { pod_security: SecurityLevel::Baseline, ..Setup::default() }).await;
    let items = [pod("a", &json!({})), on_host("b"), on_host("c")];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let reply = server.ask("POST /pods", &[], list.to_string()).await;
    assert_eq!(reply.code, 403, "{}", reply.text());
    let violation = "violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";
    let status = reply.json();
    let message = status["message"].as_str().unwrap();
    for item in ["items[1]", "items[2]"] {
        assert!(message.contains(&format!("{item}: {violation}")), "{message}");
    }
    let causes = status["details"]["causes"].as_array().unwrap();
    let fields: Vec<&Value> = causes.iter().map(|cause| &cause["field"]).collect();
    assert_eq!(
        (&status["reason"], fields),
        (&json!("Forbidden"), vec![&json!("items[1]"), &json!("items[2]")])
    );
    assert!(causes[0]["message"].as_str().unwrap().starts_with(violation), "{}", causes[0]);
    let documents = format!("{}\n---\n{}\n", pod("a", &json!({})), on_host("b"));
    let reply = server.ask("POST /pods", &[("content-type", "application/yaml")], documents).await;
    let message = format!("pods is forbidden: 3:1: {violation}");
    assert_eq!((reply.code, &reply.json()["message"]), (403, &json!(message)));
    let reply = server.ask("POST /pods", &[], on_host("b").to_string()).await;
    let message = format!("pods \"b\" is forbidden: {violation}");
    assert_eq!((reply.code, &reply.json()["message"]), (403, &json!(message)));
    assert_eq!(server.get("/pods").await.names(), [""; 0]);
}

/// Lets time pass until something holds.
async fn until(source: &mut Reflected, what: &str, holds: impl Fn(&mut Reflected) -> bool) {
    for _ in 0..240 {
        if holds(source) {
            return;
        }
        source.pass(Duration::from_millis(500)).await;
    }
    panic!("{what} has not happened: {:?}", source.rejections());
}

#[test]
fn a_running_pod_beyond_the_level_that_has_ended_for_its_server_is_published() {
    over_both(|server: ApiServer, _| async move {
        let mut evicted = apiserver::pod("evicted", "i:1");
        evicted["spec"]["hostPID"] = true.into();
        server.put(evicted.clone());
        let mut source = Reflected::watching(&server).await;
        source.set_level(SecurityLevel::Baseline);
        until(&mut source, "a relist", |source| source.rejections().len() == 1).await;
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted"});
        server.put(evicted);
        until(&mut source, "the end", |source| source.rejections().is_empty()).await;
        assert_eq!(source.updates(), ["ADD evicted", "RECONCILE evicted"]);
    });
}

#[test]
fn a_bound_pod_beyond_the_level_is_rejected_but_the_end_of_a_running_one_is_published() {
    over_both(|server: ApiServer, _| async move {
        let bound = |name: &str| {
            let mut pod = apiserver::pod(name, "i:1");
            pod["spec"]["hostPID"] = true.into();
            pod
        };
        server.put(bound("old"));
        server.put(bound("again"));
        let mut source = Reflected::watching(&server).await;
        assert_eq!(source.updates(), ["ADD again", "ADD old"]);
        source.set_level(SecurityLevel::Baseline);
        until(&mut source, "a relist", |source| source.rejections().len() == 2).await;
        server.put(bound("new"));
        let ending = |mut pod: Value| {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
            pod
        };
        server.put(ending(bound("never")));
        until(&mut source, "a rejection", |source| source.rejections().len() == 4).await;
        let why = "violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)";
        let rejections = ["again", "never", "new", "old"].map(|name| format!("default/{name}: {why}"));
        assert_eq!(source.rejections(), rejections);
        assert_eq!(source.updates(), [""; 0], "the pods that run stay, and one that never did does not come");

        server.put(ending(server.pods()["default/old"].clone()));
        until(&mut source, "the end", |source| source.rejections().len() == 3).await;
        assert_eq!(source.updates(), ["DELETE old"]);
        let mut again = bound("again");
        again["metadata"]["uid"] = "again-2".into();
        server.put(ending(again));
        server.delete("never");
        until(&mut source, "another pod", |source| source.rejections().len() == 2).await;
        assert_eq!(source.updates(), ["REMOVE again"]);

        source.set_level(SecurityLevel::Privileged);
        until(&mut source, "the new pod", |source| source.rejections().is_empty()).await;
        assert_eq!(source.updates(), ["ADD again", "ADD new"]);
    });
}
