//! The pods of a real kube-apiserver reach the sink as the server has them.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    cluster::{Admin, bound, by_key, key, pod, relayed},
    kubernetes::{Apiserver, At},
    node::Node,
    process::wait_for,
};

/// A namespace in the shared apiserver, and an agent on a node of the same name that has
/// delivered its first, empty listing.
struct TestNode {
    admin: Admin<'static>,
    at: &'static At,
    node: Node,
    name: &'static str,
}

impl TestNode {
    fn new(name: &'static str) -> Option<Self> {
        let apiserver = Apiserver::shared()?;
        Some(Self::with(apiserver, name, &apiserver.at.kubeconfig))
    }

    fn with(apiserver: &'static Apiserver, name: &'static str, kubeconfig: &Path) -> Self {
        let mut admin = Admin::of(apiserver);
        admin.namespace(name);
        let mut node = Node::start(name, kubeconfig);
        node.hear("ADD");
        Self { admin, at: &apiserver.at, node, name }
    }

    fn key(&self, pod: &str) -> String {
        format!("{}/{pod}", self.name)
    }

    /// Creates a pod on the node, whose ADD must be the next update.
    fn add(&mut self, pod: &str) -> Value {
        let made = self.admin.create(&bound(&self.key(pod), self.name)).unwrap();
        self.node.hear_of("ADD", &made);
        made
    }

    /// Compares the views of the server, the agent and the replayed stream, and stops.
    fn ends(mut self) {
        let view = self.node.agrees_with(&mut self.admin);
        self.node.has_told(&view);
        self.node.ends();
    }
}

/// `TestNewSourceApiserver_UpdatesAndMultiplePods`
#[test]
fn each_change_of_each_pod_is_delivered() {
    let Some(mut test) = TestNode::new("updates") else { return };
    let (one, two) = (test.key("one"), test.key("two"));
    test.add("one");
    test.add("two");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let changed = test.admin.patch(&one, &image).unwrap();
    test.node.hear_of("UPDATE", &changed);
    assert_eq!(changed["spec"]["containers"][0]["image"], "i:2");
    assert_eq!(test.node.agrees_with(&mut test.admin).len(), 2);
    test.admin.delete(&one, 0).unwrap();
    test.node.hear_the_end(&one);
    assert_eq!(test.node.agrees_with(&mut test.admin).len(), 1);
    test.admin.delete(&two, 0).unwrap();
    test.node.hear_the_end(&two);
    assert_eq!(test.node.pods().len(), 0);
    test.ends();
}

/// `TestNewSourceApiserver_TwoNamespacesSameName`
#[test]
fn one_name_in_two_namespaces_is_two_pods() {
    let Some(mut test) = TestNode::new("namespaces") else { return };
    test.admin.namespace("namespaces-too");
    let here = test.add("foo");
    let there = test.admin.create(&bound("namespaces-too/foo", test.name)).unwrap();
    test.node.hear_of("ADD", &there);
    assert_eq!(test.node.agrees_with(&mut test.admin), by_key(&[here, there]));
    test.admin.delete("namespaces-too/foo", 0).unwrap();
    test.node.hear_the_end("namespaces-too/foo");
    assert_eq!(test.node.pods().into_keys().collect::<Vec<_>>(), [test.key("foo")]);
    test.ends();
}

/// `TestNewSourceApiserver_InitialEmptySendsEmptyPodUpdate`
#[test]
fn a_node_without_pods_gives_one_empty_add() {
    let Some(mut test) = TestNode::new("empty") else { return };
    let source = test.node.source_is(|source| source["state"] == "synced");
    assert_eq!((&source["pods"], &source["failing"]), (&json!(0), &Value::Null));
    // This is the next update.
    test.add("first");
    test.ends();
}

#[test]
fn the_whole_life_of_a_pod_is_delivered() {
    let Some(mut test) = TestNode::new("life") else { return };
    let web = test.key("web");
    test.admin.create(&pod(&web)).unwrap();
    test.admin.patch(&web, &json!({"metadata": {"labels": {"not": "bound"}}})).unwrap();
    test.admin.create(&bound(&test.key("other"), "another-node")).unwrap();
    // The pods before gave no update.
    test.add("marker");
    let made = test.admin.bind(&web, test.name).unwrap();
    test.node.hear_of("ADD", &made);
    let (admin, node) = (&mut test.admin, &mut test.node);
    let labelled = admin.patch(&web, &json!({"metadata": {"labels": {"app": "web"}}})).unwrap();
    node.hear_of("UPDATE", &labelled);
    let running = admin.patch_status(&web, &json!({"phase": "Running", "podIP": "10.0.0.1"})).unwrap();
    node.hear_of("RECONCILE", &running);
    let annotated = admin.patch(&web, &json!({"metadata": {"annotations": {"note": "é \"x\""}}})).unwrap();
    node.hear_of("UPDATE", &annotated);
    let limited = admin.patch(&web, &json!({"spec": {"activeDeadlineSeconds": 600}})).unwrap();
    node.hear_of("UPDATE", &limited);
    admin.delete(&web, 30).unwrap();
    let terminating = admin.read(&web).unwrap();
    assert!(terminating["metadata"]["deletionTimestamp"].is_string());
    node.hear_of("DELETE", &terminating);
    admin.delete(&web, 5).unwrap();
    let sooner = admin.read(&web).unwrap();
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    node.hear_of("DELETE", &sooner);
    let failed = admin.patch_status(&web, &json!({"phase": "Failed"})).unwrap();
    node.hear_of("RECONCILE", &failed);
    admin.delete(&web, 0).unwrap();
    node.hear_the_end(&web);
    test.ends();
}

#[test]
fn a_change_of_an_ignored_field_is_shown_but_gives_no_update() {
    let Some(mut test) = TestNode::new("silent") else { return };
    let web = test.key("web");
    test.add("web");
    test.admin.patch(&web, &json!({"metadata": {"finalizers": ["example.com/held"]}})).unwrap();
    test.add("marker");
    test.node.agrees_with(&mut test.admin);
    test.admin.delete(&web, 0).unwrap();
    let held = test.admin.read(&web).unwrap();
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "the finalizer keeps it");
    test.node.hear_of("DELETE", &held);
    test.admin.patch(&web, &json!({"metadata": {"finalizers": null}})).unwrap();
    test.node.hear(&format!("REMOVE {web}"));
    test.ends();
}

#[test]
fn a_terminating_pod_in_the_first_listing_is_an_add() {
    let Some(mut test) = TestNode::new("terminating") else { return };
    test.add("web");
    test.admin.delete(&test.key("web"), 30).unwrap();
    let terminating = test.admin.read(&test.key("web")).unwrap();
    test.node.hear_of("DELETE", &terminating);
    let mut late = Node::start(test.name, &test.at.kubeconfig);
    late.hear_of("ADD", &terminating);
    late.ends();
    test.ends();
}

#[test]
fn a_recreated_pod_is_another_pod() {
    let Some(mut test) = TestNode::new("recreated") else { return };
    let web = test.key("web");
    test.add("web");
    for _ in 0..5 {
        test.admin.delete(&web, 0).unwrap();
        let made = test.admin.create(&bound(&web, test.name)).unwrap();
        let removed = test.node.hear_the_end(&web);
        assert_ne!(removed["metadata"]["uid"], made["metadata"]["uid"]);
        test.node.hear_of("ADD", &made);
    }
    test.ends();
}

#[test]
fn a_mirror_pod_is_withheld() {
    let Some(mut test) = TestNode::new("mirror") else { return };
    let mut mirror = bound(&test.key("mirror"), test.name);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "0123"});
    test.admin.create(&mirror).unwrap();
    let marker = test.add("marker");
    test.admin.patch(&test.key("mirror"), &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    test.add("another");
    // A first listing withholds it, too.
    let mut late = Node::start(test.name, &test.at.kubeconfig);
    // The older one comes first, if they were not made in the same second.
    let (op, pods) = late.next();
    let mut keys: Vec<String> = pods.iter().map(key).collect();
    keys.sort();
    assert_eq!((&*op, keys), ("ADD", vec![test.key("another"), test.key("marker")]));
    assert!(!late.pods().contains_key(&test.key("mirror")));
    late.ends();
    assert_eq!(test.admin.pods_of(test.name).len(), 3);
    assert_eq!(test.node.pods()[&test.key("marker")], by_key(&[marker])[&test.key("marker")]);
    test.admin.delete(&test.key("mirror"), 0).unwrap();
    test.ends();
}

#[test]
fn a_broken_watch_resumes_at_its_version() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let user = json!({"token": apiserver.at.token});
    let (relay, file) = relayed(directory.path(), &apiserver.at, &user);
    let mut test = TestNode::with(apiserver, "cut", &file);
    test.add("stays");
    test.add("goes-0");
    for round in 0..2 {
        let before = relay.turned_away();
        relay.cut();
        // Wait until the agent has noticed.
        wait_for(|| (relay.turned_away() > before).then_some(()));
        let (goes, comes) = (format!("cut/goes-{round}"), format!("cut/goes-{}", round + 1));
        test.admin.delete(&goes, 0).unwrap();
        let made = test.admin.create(&bound(&comes, "cut")).unwrap();
        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let labelled = test.admin.patch("cut/stays", &label).unwrap();
        relay.mend();
        test.node.hear_the_end(&goes);
        test.node.hear_of("ADD", &made);
        test.node.hear_of("UPDATE", &labelled);
    }
    assert_eq!(test.node.lists(), 1, "no relist");
    test.ends();
}
