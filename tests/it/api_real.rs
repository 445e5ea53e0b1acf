//! Pods of a real kube-apiserver: what is bound to the node is told, as the server has it.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    cluster::{Admin, bound, by_key, pod, relayed},
    kubernetes::{Apiserver, At},
    node::Node,
    process::wait_for,
};

/// A test's own place in the shared apiserver: a namespace, and a node of the
/// same name with an agent whose first listing, an empty one, has been told.
struct Place {
    admin: Admin<'static>,
    at: &'static At,
    node: Node,
    name: &'static str,
}

impl Place {
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

    /// Makes a pod on the node, which must be the next that is told.
    fn add(&mut self, pod: &str) -> Value {
        let made = self.admin.create(&bound(&self.key(pod), self.name)).unwrap();
        self.node.hear_of("ADD", &made);
        made
    }

    /// In the end the views are the same, and the replayed stream gives the same.
    fn ends(mut self) {
        let view = self.node.agrees_with(&mut self.admin);
        self.node.has_told(&view);
        self.node.ends();
    }
}

/// `TestNewSourceApiserver_UpdatesAndMultiplePods`
#[test]
fn each_change_of_each_pod_is_told() {
    let Some(mut place) = Place::new("updates") else { return };
    let (one, two) = (place.key("one"), place.key("two"));
    place.add("one");
    place.add("two");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let changed = place.admin.patch(&one, &image).unwrap();
    place.node.hear_of("UPDATE", &changed);
    assert_eq!(changed["spec"]["containers"][0]["image"], "i:2");
    assert_eq!(place.node.agrees_with(&mut place.admin).len(), 2);
    place.admin.delete(&one, 0).unwrap();
    place.node.hear_the_end(&one);
    assert_eq!(place.node.agrees_with(&mut place.admin).len(), 1);
    place.admin.delete(&two, 0).unwrap();
    place.node.hear_the_end(&two);
    assert_eq!(place.node.pods().len(), 0);
    place.ends();
}

/// `TestNewSourceApiserver_TwoNamespacesSameName`
#[test]
fn one_name_in_two_namespaces_is_two_pods() {
    let Some(mut place) = Place::new("namespaces") else { return };
    place.admin.namespace("namespaces-too");
    let here = place.add("foo");
    let there = place.admin.create(&bound("namespaces-too/foo", place.name)).unwrap();
    place.node.hear_of("ADD", &there);
    assert_eq!(place.node.agrees_with(&mut place.admin), by_key(&[here, there]));
    place.admin.delete("namespaces-too/foo", 0).unwrap();
    place.node.hear_the_end("namespaces-too/foo");
    assert_eq!(place.node.pods().into_keys().collect::<Vec<_>>(), [place.key("foo")]);
    place.ends();
}

/// `TestNewSourceApiserver_InitialEmptySendsEmptyPodUpdate`
#[test]
fn a_node_without_pods_is_told_so_once() {
    let Some(mut place) = Place::new("empty") else { return };
    let source = place.node.source_is(|source| source["state"] == "synced");
    assert_eq!((&source["pods"], &source["failing"]), (&json!(0), &Value::Null));
    // Nothing else has been told before this.
    place.add("first");
    place.ends();
}

#[test]
fn a_pods_whole_life_is_told() {
    let Some(mut place) = Place::new("life") else { return };
    let web = place.key("web");
    place.admin.create(&pod(&web)).unwrap();
    place.admin.patch(&web, &json!({"metadata": {"labels": {"not": "bound"}}})).unwrap();
    place.admin.create(&bound(&place.key("other"), "another-node")).unwrap();
    // Nothing of it is told.
    place.add("marker");
    let made = place.admin.bind(&web, place.name).unwrap();
    place.node.hear_of("ADD", &made);
    let (admin, node) = (&mut place.admin, &mut place.node);
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
    place.ends();
}

#[test]
fn what_is_not_compared_is_shown_and_not_told() {
    let Some(mut place) = Place::new("silent") else { return };
    let web = place.key("web");
    place.add("web");
    place.admin.patch(&web, &json!({"metadata": {"finalizers": ["example.com/held"]}})).unwrap();
    place.add("marker");
    place.node.agrees_with(&mut place.admin);
    place.admin.delete(&web, 0).unwrap();
    let held = place.admin.read(&web).unwrap();
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "the finalizer holds it");
    place.node.hear_of("DELETE", &held);
    place.admin.patch(&web, &json!({"metadata": {"finalizers": null}})).unwrap();
    place.node.hear(&format!("REMOVE {web}"));
    place.ends();
}

#[test]
fn a_terminating_pod_that_is_seen_first_is_an_add() {
    let Some(mut place) = Place::new("terminating") else { return };
    place.add("web");
    place.admin.delete(&place.key("web"), 30).unwrap();
    let terminating = place.admin.read(&place.key("web")).unwrap();
    place.node.hear_of("DELETE", &terminating);
    let mut late = Node::start(place.name, &place.at.kubeconfig);
    late.hear_of("ADD", &terminating);
    late.ends();
    place.ends();
}

#[test]
fn a_pod_that_is_made_anew_under_its_name_is_another_pod() {
    let Some(mut place) = Place::new("anew") else { return };
    let web = place.key("web");
    place.add("web");
    for _ in 0..5 {
        place.admin.delete(&web, 0).unwrap();
        let made = place.admin.create(&bound(&web, place.name)).unwrap();
        let removed = place.node.hear_the_end(&web);
        assert_ne!(removed["metadata"]["uid"], made["metadata"]["uid"]);
        place.node.hear_of("ADD", &made);
    }
    place.ends();
}

#[test]
fn a_mirror_pod_is_withheld() {
    let Some(mut place) = Place::new("mirror") else { return };
    let mut mirror = bound(&place.key("mirror"), place.name);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "0123"});
    place.admin.create(&mirror).unwrap();
    let marker = place.add("marker");
    place.admin.patch(&place.key("mirror"), &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    place.add("another");
    // Whoever lists does not see it either.
    let mut late = Node::start(place.name, &place.at.kubeconfig);
    late.hear(&format!("ADD {} {}", place.key("another"), place.key("marker")));
    assert!(!late.pods().contains_key(&place.key("mirror")));
    late.ends();
    assert_eq!(place.admin.pods_of(place.name).len(), 3);
    assert_eq!(place.node.pods()[&place.key("marker")], by_key(&[marker])[&place.key("marker")]);
    place.admin.delete(&place.key("mirror"), 0).unwrap();
    place.ends();
}

#[test]
fn a_cut_watch_goes_on_where_it_was() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let user = json!({"token": apiserver.at.token});
    let (relay, file) = relayed(directory.path(), &apiserver.at, &user);
    let mut place = Place::with(apiserver, "cut", &file);
    place.add("stays");
    place.add("goes-0");
    for round in 0..2 {
        let before = relay.turned_away();
        relay.cut();
        // It has noticed before anything happens behind its back.
        wait_for(|| (relay.turned_away() > before).then_some(()));
        let (goes, comes) = (format!("cut/goes-{round}"), format!("cut/goes-{}", round + 1));
        place.admin.delete(&goes, 0).unwrap();
        let made = place.admin.create(&bound(&comes, "cut")).unwrap();
        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let labelled = place.admin.patch("cut/stays", &label).unwrap();
        relay.mend();
        place.node.hear_the_end(&goes);
        place.node.hear_of("ADD", &made);
        place.node.hear_of("UPDATE", &labelled);
    }
    assert_eq!(place.node.lists(), 1, "nothing is listed again");
    place.ends();
}
