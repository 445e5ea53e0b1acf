//! Which pods the apiserver source accepts, and when it considers a pod deleted.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    apiserver::{Answer, ApiServer, RequestKind, Then, bookmark, event, pod},
    reflected::{Reflected, over_both},
};

const SECOND: Duration = Duration::from_secs(1);

/// A source that watches the pods a and b.
async fn watching_source(server: &ApiServer) -> Reflected {
    server.put(pod("a", "i:1"));
    server.put(pod("b", "i:1"));
    let mut source = Reflected::watching(server).await;
    assert_eq!(source.updates(), ["ADD a", "ADD b"]);
    source
}

/// Removes b from the server without an event.
fn without_b(server: &ApiServer) {
    let left: Vec<Value> =
        server.pods().into_iter().filter(|(key, _)| key != "default/b").map(|(_, pod)| pod).collect();
    server.restore(server.version().parse().unwrap(), &left);
}

/// Makes the source relist, and answers with these events and the final bookmark.
async fn relist_with(source: &mut Reflected, mut events: Vec<Value>) {
    let server = source.server.clone();
    events.push(bookmark(server.version().parse().unwrap(), true));
    server.respond_times(1, RequestKind::WatchList, Answer::events(&events, Then::Changes));
    let before = server.count(RequestKind::WatchList);
    source.handle.rescan();
    server.wait_for(before + 1, RequestKind::WatchList).await;
}

#[test]
fn a_pod_of_another_node_is_rejected() {
    over_both(|server, log| async move {
        let mut source = watching_source(&server).await;
        let known = server.pods()["default/a"].clone();
        for node in [json!("elsewhere"), Value::Null] {
            let mut stray = pod("stray", "i:1");
            stray["spec"]["nodeName"] = node.clone();
            server.send_event(&event("ADDED", &stray));
            // The last-known-good version of a pod that seems to have moved stays.
            let mut moved = known.clone();
            moved["spec"]["nodeName"] = node;
            server.send_event(&event("MODIFIED", &moved));
        }
        source.marker("c").await;
        assert_eq!(source.updates(), ["ADD c"]);
        let rejections = source.rejections();
        assert_eq!(rejections.len(), 2, "{rejections:?}");
        for (rejection, origin) in rejections.iter().zip(["default/a", "default/stray"]) {
            assert!(rejection.starts_with(&format!("{origin}: ")), "{rejection}");
            assert!(
                rejection.contains(r#"spec.nodeName is "", but the pods of "node" were requested"#),
                "{rejection}"
            );
        }
        assert_eq!(log.lines_with(r#"spec.nodeName is "elsewhere""#).len(), 2);
    });
}

#[test]
fn a_rejected_pod_with_another_uid_ends_the_pod_of_its_name() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        source.marker("c").await;
        source.updates();
        let again = |name: &str, uid: &str, field: &str, value: &str| {
            let mut pod = pod(name, "i:2");
            pod["metadata"]["uid"] = uid.into();
            *pod.pointer_mut(field).unwrap() = value.into();
            server.forget(name);
            event("ADDED", &pod)
        };
        let events = vec![
            again("a", "a-2", "/kind", "Service"),
            again("b", "b-2", "/spec/nodeName", "elsewhere"),
            // The same pod, of which the last valid version stays.
            again("c", "c-1", "/kind", "Service"),
        ];
        server.put(pod("c", "marker"));
        relist_with(&mut source, events).await;
        source.wait_until("rejecting", |_| source.rejections().len() == 3).await;
        source.pass(SECOND).await;
        assert_eq!(source.updates(), ["REMOVE b", "REMOVE a"]);
    });
}

/// A runtime makes paths of these names, and finds its pods by their UIDs.
#[test]
fn a_pod_with_an_invalid_name_or_without_a_uid_is_rejected() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let cases = [
            ("metadata.uid", "/metadata/uid", ""),
            ("metadata.name", "/metadata/name", "../x"),
            ("metadata.namespace", "/metadata/namespace", ".."),
            ("spec.containers[0].name", "/spec/containers/0/name", "../../../../victim/libfoo.so"),
            ("spec.initContainers[0].name", "/spec/initContainers/0/name", "A"),
            ("spec.volumes[0].name", "/spec/volumes/0/name", "v/w"),
        ];
        for (number, (_, pointer, name)) in cases.into_iter().enumerate() {
            let mut bad = pod(&format!("p{number}"), "i:1");
            bad["spec"]["initContainers"] = json!([{"name": "i", "image": "i:1"}]);
            bad["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
            *bad.pointer_mut(pointer).unwrap() = name.into();
            server.send_event(&event("ADDED", &bad));
        }
        // The last valid version of a pod that is known stays.
        let mut renamed = server.pods()["default/a"].clone();
        renamed["spec"]["containers"][0]["name"] = "../c".into();
        server.send_event(&event("MODIFIED", &renamed));
        source.marker("c").await;
        assert_eq!(source.updates(), ["ADD c"]);
        let rejections = source.rejections();
        assert_eq!(rejections.len(), cases.len() + 1, "{rejections:?}");
        for (field, _, name) in cases.into_iter().chain([("spec.containers[0].name", "", "../c")]) {
            let wanted = format!(": {field}: Invalid value: {name:?}: ");
            assert!(
                rejections.iter().any(|rejection| rejection.contains(&wanted)),
                "{wanted}: {rejections:?}"
            );
        }
    });
}

#[test]
fn while_an_object_has_no_name_no_pod_is_considered_deleted() {
    let nameless = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "default"}});
    for unreadable in [event("ADDED", &nameless), json!({"type": "ADDED"})] {
        over_both(|server, _| {
            let unreadable = unreadable.clone();
            async move {
                let mut source = watching_source(&server).await;
                let a = server.pods()["default/a"].clone();
                // It may be b.
                relist_with(&mut source, vec![event("ADDED", &a), unreadable]).await;
                source.marker("c").await;
                assert_eq!(source.updates(), ["ADD c"]);
                let rejections = source.rejections();
                assert!(
                    rejections.iter().any(|rejection| rejection.contains("name cannot be read")),
                    "{rejections:?}"
                );
                // The next listing does not contain it, so b is deleted.
                without_b(&server);
                let left = server.pods().into_values().map(|pod| event("ADDED", &pod)).collect();
                relist_with(&mut source, left).await;
                source.converges().await;
                assert_eq!(source.updates(), ["REMOVE b"]);
                assert_eq!(source.rejections(), [""; 0]);
            }
        });
    }
}

#[test]
fn a_pod_that_is_deleted_during_the_listing_is_not_published() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let b = server.pods()["default/b"].clone();
        let mut fleeting = pod("fleeting", "i:1");
        fleeting["metadata"]["resourceVersion"] = server.version().into();
        without_b(&server);
        let a = server.pods()["default/a"].clone();
        let events =
            [("ADDED", &a), ("ADDED", &b), ("ADDED", &fleeting), ("DELETED", &fleeting), ("DELETED", &b)];
        relist_with(&mut source, events.map(|(kind, pod)| event(kind, pod)).to_vec()).await;
        source.converges().await;
        assert_eq!(source.updates(), ["REMOVE b"]);
    });
}

#[test]
fn a_listing_that_broke_off_keeps_no_deleted_pod() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let events: Vec<Value> = server.pods().values().map(|pod| event("ADDED", pod)).collect();
        server.respond_times(1, RequestKind::WatchList, Answer::events(&events, Then::Break));
        source.handle.rescan();
        source.wait_for_failure("").await;
        without_b(&server);
        source.converges().await;
        assert_eq!(source.updates(), ["REMOVE b"]);
    });
}

#[test]
fn an_undecodable_event_ends_the_watch() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let unread = [
            "7",
            r#"{"type": "MODIFIED"}"#,
            r#"{"type": "BOOKMARK", "object": {"metadata": {}}}"#,
            // It does not name its pod.
            r#"{"type": "DELETED", "object": {"kind": "Pod", "metadata": {"namespace": "default"}}}"#,
        ];
        for (number, text) in unread.iter().enumerate() {
            println!("{text}");
            let watches = server.count(RequestKind::Watch);
            server.send(format!("{text}\n"));
            server.wait_for(watches + 1, RequestKind::Watch).await;
            source.marker(&format!("m{number}")).await;
            // Reset the backoff.
            source.pass(3 * 60 * SECOND).await;
        }
        assert_eq!(source.errors("garbage"), 4);
        assert_eq!(server.count(RequestKind::WatchList), 1);
        assert_eq!(source.updates(), ["ADD m0", "ADD m1", "ADD m2", "ADD m3"]);
    });
}

#[test]
fn mirror_pods_are_counted_until_they_are_deleted() {
    over_both(|server, _| async move {
        for name in ["k", "l", "m"] {
            let mut mirror = pod(name, "i:1");
            mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "abc"});
            server.put(mirror);
        }
        let mut source = watching_source(&server).await;
        let detail = |source: &Reflected| source.status().detail;
        let lists = server.count(RequestKind::WatchList);
        assert!(detail(&source).ends_with("; 3 mirror pods withheld"), "{}", detail(&source));
        // One is deleted, and one becomes a normal pod.
        server.delete("k");
        server.put(pod("l", "i:1"));
        source.converges().await;
        source.wait_until("one less", |status| status.detail.ends_with("; 1 mirror pod withheld")).await;
        // One is missing in the next listing.
        let listed: Vec<Value> =
            server.pods().into_iter().filter(|(key, _)| key != "default/m").map(|(_, pod)| pod).collect();
        server.restore(server.version().parse().unwrap(), &listed);
        source.handle.rescan();
        server.wait_for(lists + 1, RequestKind::WatchList).await;
        source.marker("z").await;
        source.wait_for_watch().await;
        assert_eq!(detail(&source), "pods of node node");
    });
}

#[test]
fn an_open_watch_is_healthy_even_without_events() {
    over_both(|server, log| async move {
        let mut source = watching_source(&server).await;
        server.respond_times(2, RequestKind::Watch, Answer::status(503, "", "not now"));
        server.break_watches();
        source.wait_for_failure("not now").await;
        source.wait_for_watch().await;
        assert_eq!(source.updates(), [""; 0]);
        assert_eq!(log.lines_with("recovered").len(), 1);
    });
}
