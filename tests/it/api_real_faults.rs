//! Faults of a real kube-apiserver: restarts, compaction, a restored etcd, no WatchList. No wanted pod is removed.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    cluster::{Admin, bound, create_all, relayed},
    kubernetes::Apiserver,
    node::Node,
    process::wait_for,
};

/// A separate apiserver with a namespace `t`, and an agent on the node `n` that has
/// delivered its first, empty listing.
fn own() -> Option<(Apiserver, Node)> {
    let apiserver = Apiserver::start()?;
    Admin::of(&apiserver).namespace("t");
    let mut node = Node::start("n", &apiserver.at.kubeconfig);
    node.hear("ADD");
    Some((apiserver, node))
}

/// Creates a pod on the node, whose ADD must be the next update.
fn add(admin: &mut Admin, node: &mut Node, key: &str) -> Value {
    let made = admin.create(&bound(key, "n")).unwrap();
    node.hear_of("ADD", &made);
    made
}

fn label(admin: &mut Admin, key: &str, value: &str) -> Value {
    admin.patch(key, &json!({"metadata": {"labels": {"l": value}}})).unwrap()
}

/// How often a resource version had expired.
fn expired(node: &Node) -> u64 {
    node.counted("podmux_reflector_errors_total", "kind=\"expired\"")
}

#[test]
fn without_watch_list_the_updates_are_the_same() {
    let Some(apiserver) = Apiserver::start_with(&["--feature-gates=WatchList=false"]) else { return };
    let mut admin = Admin::of(&apiserver);
    admin.namespace("t");
    // The apiserver itself watches, too.
    let before = admin.request_count("WATCH", 422);
    let mut node = Node::start("n", &apiserver.at.kubeconfig);
    node.hear("ADD");
    assert_eq!(admin.request_count("WATCH", 422) - before, 1);
    add(&mut admin, &mut node, "t/web");
    let labelled = label(&mut admin, "t/web", "a");
    node.hear_of("UPDATE", &labelled);
    let lists = node.lists();
    node.signal(Signal::HUP);
    node.counts(|node| node.lists() > lists);
    add(&mut admin, &mut node, "t/later");
    assert_eq!(admin.request_count("WATCH", 422) - before, 1, "the fallback is remembered");
    admin.delete("t/web", 0).unwrap();
    node.hear_the_end("t/web");
    let view = node.agrees_with(&mut admin);
    node.has_told(&view);
    node.ends();
}

/// Without the watch cache, because a list from the cache ignores the limit.
#[test]
fn a_listing_of_many_pods_comes_in_pages() {
    let flags = ["--feature-gates=WatchList=false", "--watch-cache=false"];
    let Some(apiserver) = Apiserver::start_with(&flags) else { return };
    let mut admin = Admin::of(&apiserver);
    admin.namespace("t");
    let keys: Vec<String> = (0..1200).map(|number| format!("t/pod-{number}")).collect();
    create_all(&apiserver, &keys, "n");
    let before = admin.request_count("LIST", 200);
    let mut node = Node::start("n", &apiserver.at.kubeconfig);
    let (op, pods) = node.next();
    assert_eq!((&*op, pods.len()), ("ADD", 1200), "one update with all pods");
    assert_eq!(admin.request_count("LIST", 200) - before, 3, "pages of 500");
    let labelled = label(&mut admin, "t/pod-7", "a");
    node.hear_of("UPDATE", &labelled);
    node.agrees_with(&mut admin);
    node.ends();
}

#[test]
fn an_expired_version_is_relisted() {
    let Some(apiserver) = Apiserver::start() else { return };
    let mut admin = Admin::of(&apiserver);
    admin.namespace("t");
    let directory = tempfile::tempdir().unwrap();
    let (relay, file) = relayed(directory.path(), &apiserver.at, &json!({"token": apiserver.at.token}));
    let mut node = Node::start("n", &file);
    node.hear("ADD");
    for key in ["t/stays", "t/goes", "t/changes"] {
        add(&mut admin, &mut node, key);
    }
    assert_eq!((node.lists(), expired(&node)), (1, 0));
    relay.cut();
    wait_for(|| (relay.turned_away() > 0).then_some(()));
    admin.delete("t/goes", 0).unwrap();
    let comes = admin.create(&bound("t/comes", "n")).unwrap();
    let changed = label(&mut admin, "t/changes", "a");
    apiserver.command("compact");
    apiserver.command("restart");
    relay.mend();
    node.hear("REMOVE t/goes");
    node.hear_of("ADD", &comes);
    node.hear_of("UPDATE", &changed);
    assert_eq!((node.lists(), expired(&node)), (2, 1), "{}", node.process.stderr.text());
    let mut admin = Admin::of(&apiserver);
    // There was no other update.
    add(&mut admin, &mut node, "t/marker");
    node.agrees_with(&mut admin);
    node.ends();
}

#[test]
fn the_source_recovers_from_restarts_of_the_apiserver() {
    let Some((apiserver, mut node)) = own() else { return };
    let mut admin = Admin::of(&apiserver);
    let stays = add(&mut admin, &mut node, "t/stays");
    for (round, end) in ["stop", "kill"].into_iter().enumerate() {
        apiserver.command(end);
        let failing = node.source_is(|source| source["failing"].is_object());
        assert_eq!(failing["pods"], 1 + round);
        apiserver.command("start");
        let mut admin = Admin::of(&apiserver);
        let made = admin.create(&bound(&format!("t/new-{round}"), "n")).unwrap();
        node.hear_of("ADD", &made);
        node.source_is(|source| source["failing"].is_null());
        node.agrees_with(&mut admin);
    }
    assert!(node.pods().contains_key("t/stays"), "{stays}");
    assert!(node.lists() <= 1 + expired(&node), "no relist without an expired version");
    node.ends();
}

#[test]
fn the_source_follows_an_etcd_that_was_restored() {
    let Some((apiserver, mut node)) = own() else { return };
    let mut admin = Admin::of(&apiserver);
    for key in ["t/stays", "t/goes", "t/changes"] {
        add(&mut admin, &mut node, key);
    }
    let then: BTreeMap<String, Value> = admin.pods_of("n");
    apiserver.command("snapshot");
    let changed = label(&mut admin, "t/changes", "a");
    node.hear_of("UPDATE", &changed);
    admin.delete("t/goes", 0).unwrap();
    node.hear_the_end("t/goes");
    add(&mut admin, &mut node, "t/never-was");
    for value in 0..50 {
        label(&mut admin, "t/never-was", &value.to_string());
    }
    node.agrees_with(&mut admin);
    apiserver.command("restore");
    let mut admin = Admin::of(&apiserver);
    assert_eq!(node.agrees_with(&mut admin), then);
    // The stream gives the same view.
    node.has_told(&then);
    let made = admin.create(&bound("t/marker", "n")).unwrap();
    node.process.holds("the marker", |held| held.pods.contains_key("t/marker"));
    assert_eq!(node.agrees_with(&mut admin).len(), 4, "{made}");
    node.ends();
}
