//! The fault matrix of the apiserver source, over TCP and over TLS. No fault may remove a wanted pod.

use std::{fs, time::Duration};

use podmux::{source::SourceStatus, storage::SourceState};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    time::{Instant, timeout},
};

use crate::support::{
    apiserver::{Answer, ApiServer, ReceivedRequest, RequestKind, Then, bookmark, event, pod, status},
    files::soon,
    namespace::{Elsewhere, inside},
    reflected::{Reflected, over_both, over_tls, over_tls_and_protobuf},
    web::Authority,
};

const SECOND: Duration = Duration::from_secs(1);

/// A server with two pods.
fn with_pods(server: &ApiServer) {
    server.put(pod("a", "i:1"));
    server.put(pod("b", "i:1"));
}

/// A source that watches two pods.
async fn watching_source(server: &ApiServer) -> Reflected {
    with_pods(server);
    let mut source = Reflected::watching(server).await;
    assert_eq!(source.updates(), ["ADD a", "ADD b"]);
    source
}

/// The times between requests.
fn gaps(asked: &[ReceivedRequest]) -> Vec<Duration> {
    asked.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

/// Checks that at most 30 requests come in half a minute, and at most 40 in the next five.
async fn is_bounded(source: &mut Reflected) {
    let requests = source.requests_in(30 * SECOND).await;
    assert!((1..=30).contains(&requests), "{requests} in 30 s: {:?}", source.server.summaries());
    let requests = source.requests_in(5 * 60 * SECOND).await;
    assert!((8..=40).contains(&requests), "{requests} in 5 min: {:?}", source.server.summaries());
}

/// The same where every request fails: the delays must grow to between 15 and 30 s.
async fn backs_off(source: &mut Reflected) {
    let begin = source.server.received().len();
    is_bounded(source).await;
    let gaps = gaps(&source.server.received()[begin..]);
    let last = gaps.last().unwrap();
    assert!((14 * SECOND..=32 * SECOND).contains(last), "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap <= 32 * SECOND), "{gaps:?}");
}

// ---- The fault matrix.

#[test]
fn a_410_at_the_start_of_a_watch_relists() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let version = server.version();
        server.break_watches();
        server.delete("b");
        server.put(pod("c", "i:1"));
        server.compact();
        source.converges_within(5 * SECOND).await;
        source.wait_for_watch().await;
        assert_eq!(source.updates(), ["REMOVE b", "ADD c"]);
        let asked = ["WatchList -".to_owned(), format!("Watch {version}"), format!("WatchList {version}")];
        assert_eq!(server.summaries(), asked);
        assert_eq!((source.errors("expired"), source.errors("broken")), (1, 1));
        assert_eq!(source.version(), server.version());
    });
}

#[test]
fn a_watch_at_a_too_large_version_relists_the_most_recent() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        server.respond_times(1, RequestKind::Watch, Answer::too_large());
        server.break_watches();
        server.put(pod("c", "i:1"));
        source.converges_within(10 * SECOND).await;
        assert_eq!(server.summaries()[2..], ["WatchList -"]);
        assert_eq!(source.updates(), ["ADD c"]);
    });
}

#[test]
fn a_version_that_goes_backwards_leaves_no_phantom_pods() {
    over_both(|server, log| async move {
        let mut source = watching_source(&server).await;
        for version in 0..10 {
            server.put(pod("b", &format!("i:{version}")));
        }
        source.converges().await;
        source.updates();
        // etcd is restored: b is older, c exists, d never existed.
        let old = [pod("b", "i:0"), pod("c", "i:1"), pod("a", "i:1")];
        server.put(pod("d", "i:1"));
        source.converges().await;
        server.restore(2, &old);
        server.break_watches();
        source.converges().await;
        source.wait_for_watch().await;
        assert_eq!(source.updates(), ["ADD d", "REMOVE d", "ADD c", "UPDATE b"]);
        assert_eq!(source.version(), "2", "the smaller version is used");
        server.put(pod("a", "i:2"));
        source.converges().await;
        assert_eq!(source.version(), "3");
        assert!(log.lines_with("Too large resource version").len() <= 1);
    });
}

#[test]
fn a_restore_during_an_outage_leaves_no_phantom_pods() {
    // A role that is gone rejects the probe, too. The other watch ends at its timeout, before the outage is known.
    for (code, breaks) in [(403, true), (503, false)] {
        over_both(|server, _| async move {
            let mut source = watching_source(&server).await;
            for version in 0..10 {
                server.put(pod("b", &format!("i:{version}")));
            }
            source.converges().await;
            source.updates();
            server.respond_always(Answer::status(code, "", "not now"));
            if breaks {
                server.break_watches();
            }
            source.pass(11 * 60 * SECOND).await;
            source.wait_for_failure("not now").await;
            server.restore(2, &[pod("a", "i:1")]);
            server.respond_normally();
            source.converges().await;
            assert_eq!(source.updates(), ["REMOVE b"]);
        });
    }
}

#[test]
fn an_error_event_410_relists() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let version = server.version();
        server.send_event(&event("ERROR", &status(410, "Expired", "too old resource version")));
        server.end_watches();
        server.put(pod("c", "i:1"));
        source.converges_within(5 * SECOND).await;
        source.wait_for_watch().await;
        assert_eq!(server.summaries(), ["WatchList -".to_owned(), format!("WatchList {version}")]);
        assert_eq!(source.updates(), ["ADD c"]);
        assert_eq!(source.failing(), None);
    });
}

#[test]
fn repeated_error_events_410_relist_with_a_growing_backoff() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let listed = server.pods();
        let mut events: Vec<Value> = listed.values().map(|pod| event("ADDED", pod)).collect();
        events.push(bookmark(3, true));
        events.push(event("ERROR", &status(410, "Expired", "too old resource version")));
        server.respond(RequestKind::WatchList, Answer::events(&events, Then::End));
        server.send_event(&event("ERROR", &status(410, "Expired", "too old resource version")));
        server.end_watches();
        backs_off(&mut source).await;
        assert_eq!(server.count(RequestKind::Watch), 0);
        source.wait_for_failure("too old resource version").await;
        let attempts = source.failing().unwrap().attempts;
        assert!(attempts >= 8, "{attempts} although each list succeeds");
        assert_eq!(source.updates(), [""; 0]);
        server.respond_normally();
        source.marker("m").await;
        source.wait_for_watch().await;
    });
}

#[test]
fn relists_do_not_end_an_outage_of_the_watches() {
    let gone = Answer::expired();
    let error = event("ERROR", &status(500, "InternalError", "etcd is unavailable"));
    for (answer, wanted) in [(gone, "410 Gone"), (Answer::events(&[error], Then::End), "etcd is unavailable")]
    {
        let answer = &answer;
        over_both(|server, log| async move {
            server.know_watch_lists(false);
            let mut source = watching_source(&server).await;
            server.respond(RequestKind::Watch, answer.clone());
            server.break_watches();
            source.wait_for_failure(wanted).await;
            let last = source.status().last_success;
            let logged = || ["source failed", "source recovered"].map(|text| log.lines_with(text).len());
            let before = logged();
            // The pods of each list are published at once.
            for name in ["c", "d"] {
                source.pass(2 * 60 * SECOND).await;
                source.marker(name).await;
            }
            let failing = source.failing().expect("no watch works");
            assert!(failing.attempts >= 8, "{failing:?}");
            assert_eq!(source.status().last_success, last);
            assert_eq!((logged(), before[1]), (before, 0), "{:?}", log.lines_with("source "));
            server.respond_normally();
            source.wait_for_watch().await;
            assert_eq!(log.lines_with("source recovered").len(), 1);
            assert!(source.status().last_success > last);
        });
    }
}

#[test]
fn an_error_event_500_ends_the_watch_and_a_second_in_a_row_relists() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let error = event("ERROR", &status(500, "InternalError", "etcd is unavailable"));
        let (first, version) = ("WatchList -".to_owned(), server.version());
        server.respond_times(1, RequestKind::Watch, Answer::events(std::slice::from_ref(&error), Then::Hang));
        // The stream stays open without further events.
        server.send_event(&error);
        server.wait_for(2, RequestKind::WatchList).await;
        let asked = [first, format!("Watch {version}"), format!("WatchList {version}")];
        assert_eq!(server.summaries(), asked);
        source.marker("c").await;
        source.wait_for_watch().await;
        // With an event between them they are not in a row.
        for image in ["i:2", "i:3", "i:4"] {
            server.put(pod("a", image));
            source.converges().await;
            let (watches, version) = (server.count(RequestKind::Watch), server.version());
            server.send_event(&error);
            server.wait_for(watches + 1, RequestKind::Watch).await;
            assert_eq!(server.received().last().unwrap().query("resourceVersion"), version);
            source.marker("m").await;
        }
        assert_eq!(server.count(RequestKind::WatchList), 2);
        assert_eq!(source.errors("error-event"), 5);
    });
}

#[test]
fn lists_that_keep_failing_back_off_and_the_source_is_failing() {
    over_both(|server, log| async move {
        server.know_watch_lists(false);
        with_pods(&server);
        server.respond(RequestKind::List, Answer::status(500, "InternalError", "etcd is unavailable"));
        let mut source = Reflected::start(&server);
        source.wait_for_failure("500 Internal Server Error: etcd is unavailable").await;
        assert!(source.status().reflector.unwrap().next_attempt.is_some());
        assert_eq!(source.phase(), "waiting");
        backs_off(&mut source).await;
        let failing = source.failing().unwrap();
        assert_eq!(failing.attempts, source.errors("http") - server.count(RequestKind::WatchList) as u64);
        assert!(failing.attempts >= 10);
        assert_eq!(
            source.mux.merged().borrow().state(podmux::pod::SourceName::Api),
            Some(SourceState::Waiting)
        );
        assert_eq!(log.lines_with("etcd is unavailable").len(), 1, "it is logged once");
        server.respond_normally();
        source.converges().await;
        source.wait_for_watch().await;
        let recovered = log.lines_with("recovered");
        assert_eq!(recovered.len(), 1);
        assert!(recovered[0].contains(&format!("failed={}", failing.attempts)), "{recovered:?}");
    });
}

#[test]
fn lists_that_fail_after_a_successful_one_remove_no_pods() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        server.respond(RequestKind::WatchList, Answer::status(500, "InternalError", "etcd is unavailable"));
        server.break_watches();
        server.put(pod("c", "i:1"));
        server.compact();
        source.wait_for_failure("etcd is unavailable").await;
        backs_off(&mut source).await;
        assert_eq!(source.updates(), [""; 0]);
        server.respond_normally();
        source.converges().await;
        assert_eq!(source.updates(), ["ADD c"]);
    });
}

#[test]
fn retry_after_is_honoured_and_the_error_is_visible() {
    over_both(|server, _| async move {
        server.know_watch_lists(false);
        let busy = |seconds: &str| {
            Answer::status(503, "ServiceUnavailable", "starting up").header("Retry-After", seconds)
        };
        server.respond_times(1, RequestKind::List, busy("17"));
        // An hour is too long.
        server.respond_times(1, RequestKind::List, busy("3600"));
        server.respond_times(1, RequestKind::List, busy("soon"));
        let mut source = Reflected::start(&server);
        source.wait_for_failure("503 Service Unavailable: starting up").await;
        source.pass(7 * 60 * SECOND).await;
        source.converges().await;
        let lists: Vec<ReceivedRequest> =
            server.received().into_iter().filter(|asked| asked.kind == RequestKind::List).collect();
        let gaps = gaps(&lists);
        assert_eq!(gaps.len(), 3);
        assert!((17 * SECOND..20 * SECOND).contains(&gaps[0]), "{gaps:?}");
        assert!((300 * SECOND..303 * SECOND).contains(&gaps[1]), "{gaps:?}");
        assert!(gaps[2] < 10 * SECOND, "{gaps:?}");
    });
}

#[test]
fn a_429_retries_the_watch_at_the_same_version() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let version = server.version();
        let busy = Answer::status(429, "TooManyRequests", "too many requests").header("Retry-After", "9");
        server.respond_times(3, RequestKind::Watch, busy);
        server.break_watches();
        server.put(pod("c", "i:1"));
        source.converges().await;
        source.wait_for_watch().await;
        let again = format!("Watch {version}");
        assert_eq!(server.summaries()[1..], [&*again; 4]);
        assert!(gaps(&server.received())[1..].iter().all(|gap| *gap >= 9 * SECOND));
    });
}

#[test]
fn watches_that_are_closed_at_once_back_off_and_are_counted() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        server.respond(RequestKind::Watch, Answer::events(&[], Then::End));
        server.end_watches();
        source.wait_for_failure("closed").await;
        backs_off(&mut source).await;
        let metrics = source.metrics.clone();
        let watches = server.count(RequestKind::Watch) as u64;
        assert!(metrics.short_watches.get() >= watches - 1 && watches > 10, "{metrics:?}");
        assert_eq!(source.updates(), [""; 0]);
        assert_eq!(server.count(RequestKind::WatchList), 1);
        server.respond_normally();
        source.marker("m").await;
        source.wait_for_watch().await;
    });
}

#[test]
fn watches_without_a_response_back_off() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        server.respond(RequestKind::Watch, Answer::HangUp);
        server.break_watches();
        backs_off(&mut source).await;
        assert!(source.failing().is_some());
        assert_eq!(source.updates(), [""; 0]);
        server.respond_normally();
        source.marker("m").await;
    });
}

#[test]
fn watches_with_one_event_each_are_no_faster_than_one_a_second() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let unchanged = server.pods()["default/a"].clone();
        server.respond(RequestKind::Watch, Answer::events(&[event("MODIFIED", &unchanged)], Then::End));
        server.end_watches();
        let requests = source.requests_in(30 * SECOND).await;
        // The limit allows one pair more across the ends of the interval.
        assert!((4..=32).contains(&requests), "{requests}");
        assert_eq!(source.failing(), None);
    });
}

#[test]
fn a_rejected_watch_list_falls_back_to_a_list_at_once() {
    for (code, reason) in [(400, "BadRequest"), (422, "Invalid")] {
        over_both(|server, log| async move {
            with_pods(&server);
            let rejected = Answer::status(code, reason, "sendInitialEvents is forbidden");
            server.respond_times(1, RequestKind::WatchList, rejected);
            let begin = Instant::now();
            let mut source = Reflected::start(&server);
            source.converges_within(2 * SECOND).await;
            source.wait_for_watch().await;
            assert!(begin.elapsed() <= 2 * SECOND);
            server.requests(3).await;
            assert_eq!(server.summaries(), ["WatchList -", "List 0", "Watch 3"]);
            assert_eq!(server.received()[1].query("limit"), "500");
            assert_eq!(source.failing(), None);
            assert_eq!(log.lines_with("WatchList is not supported by the server").len(), 1);
            // The fallback lasts half an hour.
            source.pass(29 * 60 * SECOND).await;
            server.break_watches();
            server.put(pod("c", "i:1"));
            server.compact();
            source.converges().await;
            assert_eq!(server.count(RequestKind::WatchList), 1);
            let list =
                server.received().iter().rfind(|asked| asked.kind == RequestKind::List).unwrap().clone();
            let query = ["limit", "resourceVersion", "resourceVersionMatch"].map(|name| list.query(name));
            assert_eq!(query, ["", "3", "NotOlderThan"], "a relist has no pages and is at the known version");
            source.pass(2 * 60 * SECOND).await;
            server.break_watches();
            server.put(pod("d", "i:1"));
            server.compact();
            source.converges().await;
            assert_eq!(server.count(RequestKind::WatchList), 2);
        });
    }
}

#[test]
fn another_error_of_a_watch_list_is_no_reason_to_fall_back() {
    over_both(|server, _| async move {
        with_pods(&server);
        server.respond_times(
            2,
            RequestKind::WatchList,
            Answer::status(500, "InternalError", "etcd is unavailable"),
        );
        let mut source = Reflected::start(&server);
        source.converges().await;
        assert_eq!(server.summaries(), ["WatchList -"; 3]);
    });
}

#[test]
fn a_watch_list_without_the_final_bookmark_falls_back_in_time() {
    over_both(|server, _| async move {
        with_pods(&server);
        // An old server treats it as a watch.
        server.respond(RequestKind::WatchList, Answer::events(&[], Then::Changes));
        let mut source = Reflected::start(&server);
        source.converges_within(12 * SECOND).await;
        assert_eq!(server.summaries()[..2], ["WatchList -", "List 0"]);
        source.wait_for_watch().await;
        assert_eq!(source.failing(), None);
    });
    over_both(|server, _| async move {
        with_pods(&server);
        let events: Vec<Value> = server.pods().values().map(|pod| event("ADDED", pod)).collect();
        server.respond(RequestKind::WatchList, Answer::events(&events, Then::Changes));
        let mut source = Reflected::start(&server);
        // Events keep arriving, but no final bookmark.
        for turn in 0..12 {
            source.pass(5 * SECOND).await;
            server.put(pod("a", &format!("i:{turn}")));
            if turn < 9 {
                assert_eq!(server.received().len(), 1, "events arrive");
                assert_eq!(source.updates(), [""; 0], "an incomplete listing is not published");
            }
        }
        source.converges_within(5 * SECOND).await;
        assert_eq!(server.summaries()[..2], ["WatchList -", "List 0"]);
    });
}

#[test]
fn an_undecodable_object_affects_no_other() {
    for watch_lists in [true, false] {
        over_both(|server, log| async move {
            with_pods(&server);
            let service = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "default"}});
            let nameless = json!({"metadata": {"namespace": "default"}, "spec": {}});
            let bad = [service, nameless, json!(7), json!("pod"), Value::Null];
            if watch_lists {
                let mut events: Vec<Value> = bad.iter().map(|object| event("ADDED", object)).collect();
                events.extend(server.pods().values().map(|pod| event("ADDED", pod)));
                events.push(bookmark(3, true));
                server.respond_times(1, RequestKind::WatchList, Answer::events(&events, Then::Changes));
            } else {
                server.know_watch_lists(false);
                let mut list = server.list();
                let items = list["items"].as_array_mut().unwrap();
                items.splice(1..1, bad.iter().cloned());
                server.respond_times(1, RequestKind::List, Answer::new(200, list.to_string(), Then::End));
            }
            let mut source = Reflected::start(&server);
            source.converges().await;
            source.wait_for_watch().await;
            let rejections = source.rejections();
            assert!(
                rejections.iter().any(|rejection| rejection.starts_with("default/s: ")),
                "{rejections:?}"
            );
            assert!(
                rejections.iter().any(|rejection| rejection.contains("name cannot be read")),
                "{rejections:?}"
            );
            assert_eq!(source.errors("undecodable"), 5);
            assert_eq!(
                log.lines_with("pod rejected").iter().filter(|line| line.contains("default/s")).count(),
                1
            );
            // The same in a watch.
            for object in &bad {
                server.send_event(&event("ADDED", object));
                server.send_event(&event("MODIFIED", object));
            }
            source.marker("c").await;
            assert_eq!(source.errors("undecodable"), 15);
            assert_eq!(source.failing(), None);
            assert_eq!(server.watches(), 1, "the watch stays open");
        });
    }
}

#[test]
fn the_last_known_good_version_of_an_object_stays_until_a_valid_one_or_its_deletion() {
    over_both(|server, log| async move {
        let mut source = watching_source(&server).await;
        let mut broken = server.pods()["default/a"].clone();
        broken["kind"] = "Service".into();
        broken["metadata"]["resourceVersion"] = "100".into();
        server.send_event(&event("MODIFIED", &broken));
        source
            .wait_until("at 100", |status| {
                status.reflector.as_ref().unwrap().resource_version.as_deref() == Some("100")
            })
            .await;
        source.marker("c").await;
        assert_eq!(source.image("a"), "i:1");
        assert_eq!(source.rejections().len(), 1);
        assert!(source.rejections()[0].starts_with("default/a: "), "{:?}", source.rejections());
        // A listing with the invalid object keeps the last-known-good one, too.
        let mut list: Vec<Value> = server.pods().into_values().map(|pod| event("ADDED", &pod)).collect();
        list[0]["object"] = broken.clone();
        list.push(bookmark(101, true));
        server.respond_times(1, RequestKind::WatchList, Answer::events(&list, Then::Changes));
        source.handle.rescan();
        server.wait_for(2, RequestKind::WatchList).await;
        source.marker("d").await;
        assert_eq!(source.image("a"), "i:1");
        assert_eq!(source.rejections().len(), 1);

        server.put(pod("a", "i:2"));
        source.converges().await;
        assert_eq!((source.image("a"), source.rejections().len()), ("i:2", 0));
        assert_eq!(log.lines_with("pod recovered").len(), 1);
        server.send_event(&event("MODIFIED", &broken));
        server.delete("a");
        source.converges().await;
        assert_eq!(source.image("a"), "");
        assert_eq!(source.rejections().len(), 0);
    });
}

#[test]
fn after_a_broken_stream_the_next_watch_starts_at_the_last_version() {
    let object = event("ADDED", &pod("x", "i:1")).to_string();
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56".to_vec();
    let ends: [(&str, Vec<u8>, bool); 6] = [
        ("in the middle of an object", object.as_bytes()[..200].to_vec(), false),
        ("in the middle of an object, and the connection with it", object.as_bytes()[..200].to_vec(), true),
        ("garbage", b"<html>".to_vec(), false),
        ("garbage that goes on", b"\n\x00\x01garbage".to_vec(), true),
        ("an invalid object", b"{\"type\": }".to_vec(), false),
        ("bytes of gzip", gzip, true),
    ];
    over_both(|server, _| {
        let ends = ends.clone();
        async move {
            let mut source = watching_source(&server).await;
            let mut marks = 0;
            for (what, bytes, breaks) in ends {
                println!("{what}");
                let (watches, version) = (server.count(RequestKind::Watch), server.version());
                server.send(bytes);
                if breaks {
                    server.break_watches();
                } else {
                    server.end_watches();
                }
                server.wait_for(watches + 1, RequestKind::Watch).await;
                assert_eq!(server.received().last().unwrap().query("resourceVersion"), version);
                marks += 1;
                source.marker(&format!("m{marks}")).await;
                source.wait_for_watch().await;
                // Reset the backoff.
                source.pass(3 * 60 * SECOND).await;
            }
            assert_eq!(server.count(RequestKind::WatchList), 1);
            let updates = source.updates();
            assert!(updates.iter().all(|update| update.starts_with("ADD m")), "{updates:?}");
        }
    });
}

#[test]
fn a_compressed_watch_is_rejected() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let version = server.version();
        let gzip =
            Answer::new(200, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56".to_vec(), Then::Break);
        server.respond_times(1, RequestKind::Watch, gzip.header("Content-Encoding", "gzip"));
        server.end_watches();
        source.wait_for_failure("the response is encoded, but no encoding was requested").await;
        source.marker("c").await;
        source.wait_for_watch().await;
        let again = format!("Watch {version}");
        assert_eq!(server.summaries()[1..3], [&*again; 2]);
    });
}

#[test]
fn the_encoding_identity_and_an_empty_one_are_none() {
    for coding in ["identity", "Identity", ""] {
        over_both(|server, _| async move {
            with_pods(&server);
            let mut events: Vec<Value> = server.pods().values().map(|pod| event("ADDED", pod)).collect();
            events.push(bookmark(3, true));
            let whole = Answer::events(&events, Then::Changes).header("Content-Encoding", coding);
            server.respond_times(1, RequestKind::WatchList, whole);
            let mut source = Reflected::watching(&server).await;
            source.marker("c").await;
            assert_eq!(server.summaries(), ["WatchList -"]);
        });
    }
}

#[test]
fn an_incomplete_or_malformed_list_is_repeated_and_changes_nothing() {
    over_both(|server, _| async move {
        server.know_watch_lists(false);
        let mut source = watching_source(&server).await;
        let whole = server.list().to_string();
        server.break_watches();
        server.put(pod("c", "i:1"));
        server.compact();
        let broken = [
            Answer::new(200, whole[..whole.len() / 2].to_owned(), Then::Break),
            Answer::new(200, whole[..whole.len() - 1].to_owned(), Then::End),
            Answer::new(200, "<html><body>Log in</body></html>", Then::End),
            Answer::new(200, "{}", Then::End),
            Answer::new(200, "", Then::End),
            Answer::new(200, "[]", Then::End),
            Answer::new(200, json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": []}).to_string(), Then::End),
            Answer::new(200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}).to_string(), Then::End),
            Answer::new(200, json!({"kind": "PodList", "apiVersion": "v1", "items": {}}).to_string(), Then::End),
        ];
        let lists = server.count(RequestKind::List) + broken.len();
        for answer in broken {
            server.respond_times(1, RequestKind::List, answer);
        }
        source.pass(3 * 60 * SECOND).await;
        source.converges().await;
        assert_eq!(source.updates(), ["ADD c"]);
        assert_eq!(server.count(RequestKind::List), lists + 1);
    });
}

#[test]
fn a_rejected_token_is_read_again() {
    over_tls(|server, log| async move {
        with_pods(&server);
        server.require_token("s3cret-old");
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        fs::write(&token_file, "s3cret-old").unwrap();
        let mut source = Reflected::start_with(&server, &json!({"tokenFile": token_file}), |source| source);
        source.converges().await;
        source.wait_for_watch().await;
        server.require_token("s3cret-new");
        server.break_watches();
        source.wait_for_failure("401").await;
        let requests = source.requests_in(30 * SECOND).await;
        assert!((1..=30).contains(&requests), "{requests}");
        fs::write(&token_file, "s3cret-new\n").unwrap();
        source.marker("c").await;
        source.wait_for_watch().await;
        assert_eq!(server.count(RequestKind::WatchList), 1, "the version stays valid");
        assert_eq!(log.lines_with("s3cret"), [""; 0]);
        assert_eq!(source.updates(), ["ADD a", "ADD b", "ADD c"]);
    });
}

#[test]
fn a_missing_permission_is_retried_until_it_is_granted() {
    over_both(|server, _| async move {
        with_pods(&server);
        server.respond_always(Answer::status(403, "Forbidden", "pods is forbidden: User \"x\" cannot list"));
        let mut source = Reflected::start(&server);
        source.wait_for_failure("403 Forbidden: pods is forbidden").await;
        source.wait_for_failure("grant this user list and watch on pods").await;
        backs_off(&mut source).await;
        server.respond_normally();
        source.converges().await;
        source.wait_for_watch().await;
        // The permission is withdrawn during a watch.
        server.respond(RequestKind::Watch, Answer::status(403, "Forbidden", "no more"));
        server.break_watches();
        source.wait_for_failure("403 Forbidden: no more").await;
        backs_off(&mut source).await;
        server.respond_normally();
        source.marker("c").await;
        assert_eq!(source.updates(), ["ADD a", "ADD b", "ADD c"]);
    });
}

#[test]
fn a_server_that_is_down_at_the_start_is_listed_when_it_returns() {
    over_both(|server, log| async move {
        with_pods(&server);
        server.down();
        let mut source = Reflected::start(&server);
        source.wait_for_failure("").await;
        source.pass(60 * SECOND).await;
        assert_eq!(source.phase(), "waiting");
        assert_eq!(server.received().len(), 0);
        assert!(source.errors("connect") >= 5);
        server.up();
        source.converges_within(31 * SECOND).await;
        source.wait_for_watch().await;
        assert_eq!(log.lines_with("recovered").len(), 1);
    });
}

#[test]
fn a_server_that_goes_down_removes_no_pods_and_is_watched_again_when_it_returns() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let version = server.version();
        server.down();
        source.wait_for_failure("").await;
        source.pass(10 * 60 * SECOND).await;
        assert_eq!((source.updates(), source.image("a")), (vec![], "i:1"));
        server.delete("b");
        server.put(pod("c", "i:1"));
        server.up();
        source.converges_within(31 * SECOND).await;
        source.wait_for_watch().await;
        assert_eq!(server.summaries(), ["WatchList -".to_owned(), format!("Watch {version}")]);
        assert_eq!(source.updates(), ["REMOVE b", "ADD c"]);
    });
}

/// With real packet loss in a network namespace and in real time, because the kernel detects
/// it.
#[test]
fn a_half_open_connection_is_noticed_within_a_minute() {
    if !inside("-Urn", "api_faults::a_half_open_connection_is_noticed_within_a_minute") {
        return;
    }
    let elsewhere = Elsewhere::new();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut sources = Vec::new();
        for authority in [None, Some(&authority)] {
            let server = ApiServer::on(TcpListener::from_std(elsewhere.listener()).unwrap(), authority);
            sources.push(watching_source(&server).await);
        }
        elsewhere.drop_packets();
        let all_notice = async {
            for source in &sources {
                let phase = |status: &SourceStatus| status.reflector.as_ref().unwrap().phase;
                source.handle.status().wait_for(|status| phase(status) != "watching").await.unwrap();
            }
        };
        timeout(60 * SECOND, all_notice).await.expect("it is noticed");
        elsewhere.pass_packets();
        for source in &mut sources {
            let version = source.server.version();
            source.server.delete("b");
            source.converges().await;
            source.wait_for_watch().await;
            assert_eq!(source.updates(), ["REMOVE b"]);
            assert_eq!(source.server.summaries()[1..], [format!("Watch {version}")]);
        }
    });
}

#[test]
fn a_burst_of_100_000_events_with_a_stalled_sink_uses_bounded_memory() {
    // In a process of its own, because the test measures its memory.
    if !inside("-U", "api_faults::a_burst_of_100_000_events_with_a_stalled_sink_uses_bounded_memory") {
        return;
    }
    over_tls_and_protobuf(|server, _| async move {
        let mut source = watching_source(&server).await;
        let before = memory();
        for batch in 0..100 {
            for number in 0..1_000 {
                server.put(pod(&format!("p{:03}", number % 500), &format!("i:{batch}-{number}")));
            }
            server.compact();
            let version = server.version();
            let at = |status: &SourceStatus| {
                status.reflector.as_ref().unwrap().resource_version.as_deref() == Some(&*version)
            };
            source.wait_until(&format!("at {version}"), at).await;
        }
        // An event has some kilobytes.
        let grown = memory().saturating_sub(before);
        assert!(grown < 64 << 20, "{} MiB for 500 pods", grown >> 20);
        source.converges().await;
        assert_eq!(source.updates().len(), 500, "the backlog is one diff");
        assert_eq!((server.count(RequestKind::WatchList), source.failing()), (1, None));
    });
}

/// The resident memory of the process, in bytes.
fn memory() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

// ---- Beyond the fault matrix.

#[test]
fn watches_that_end_at_their_timeout_are_no_failure() {
    over_both(|server, log| async move {
        let mut source = watching_source(&server).await;
        source.pass(60 * 60 * SECOND).await;
        source.marker("c").await;
        source.wait_for_watch().await;
        let watches = server.count(RequestKind::Watch);
        assert!((5..=12).contains(&watches), "{watches}");
        assert_eq!((server.count(RequestKind::WatchList), source.failing()), (1, None));
        let metrics = source.metrics.clone();
        let errors: u64 = ["connect", "http", "broken", "silent", "short-watch"]
            .map(|kind| source.errors(kind))
            .iter()
            .sum();
        assert_eq!((metrics.short_watches.get(), errors), (0, 0));
        assert_eq!((metrics.lists.get(), metrics.watches.get()), (1, 1 + watches as u64));
        assert_eq!(log.lines_with("WARN"), [""; 0]);
    });
}

#[test]
fn a_server_that_is_frozen_in_a_watch_is_noticed() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        server.bookmark();
        let version = server.version();
        source.wait_until("at the bookmark", |_| source.version() == version).await;
        server.freeze();
        source.pass(4 * 60 * SECOND).await;
        assert_eq!((source.errors("silent"), source.phase()), (1, "connecting"));
        source.wait_for_failure("has sent nothing for too long").await;
        assert_eq!(source.updates(), [""; 0]);
        server.thaw();
        source.marker("c").await;
        assert_eq!(source.updates(), ["ADD c"]);
    });
}

#[test]
fn bookmarks_update_the_version() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        for _ in 0..5 {
            server.bookmark();
        }
        let version = server.version();
        let at = version.clone();
        source
            .wait_until("at the bookmark", move |status| {
                status.reflector.as_ref().unwrap().resource_version.as_deref() == Some(&*at)
            })
            .await;
        assert!(source.status().reflector.unwrap().last_event.is_some());
        server.compact();
        server.break_watches();
        source.marker("c").await;
        assert_eq!(server.summaries()[1..], [format!("Watch {version}")]);
        assert_eq!(source.updates(), ["ADD c"]);
    });
}

#[test]
fn an_expired_page_of_the_first_list_is_followed_by_one_list_without_pages() {
    over_both(|server, _| async move {
        server.know_watch_lists(false);
        for number in 0..1_200 {
            server.put(pod(&format!("p{number:04}"), "i:1"));
        }
        server.compact();
        server.respond_times(1, RequestKind::Page, Answer::Normal);
        server.respond_times(1, RequestKind::Page, Answer::expired());
        let mut source = Reflected::start(&server);
        source.converges().await;
        source.wait_for_watch().await;
        let asked = ["WatchList -", "List 0", "Page -", "Page -", "List 0", "Watch 1201"];
        server.requests(asked.len()).await;
        assert_eq!(server.summaries(), asked);
        let limits: Vec<String> =
            server.received().iter().map(|asked| asked.query("limit").to_owned()).collect();
        assert_eq!(limits, ["", "500", "500", "500", "", ""]);
        assert_eq!(source.failing(), None);
        assert_eq!(source.updates().len(), 1_200);
    });
}

#[test]
fn the_pages_of_the_first_list_make_one_listing() {
    over_both(|server, _| async move {
        server.know_watch_lists(false);
        for number in 0..1_200 {
            server.put(pod(&format!("p{number:04}"), "i:1"));
        }
        let mut source = Reflected::start(&server);
        source.converges().await;
        source.wait_for_watch().await;
        server.requests(5).await;
        assert_eq!(server.summaries(), ["WatchList -", "List 0", "Page -", "Page -", "Watch 1201"]);
        let metrics = source.metrics.clone();
        assert_eq!(metrics.lists.get(), 2, "the rejected WatchList, and all pages as one");
    });
}

#[test]
fn pages_that_keep_expiring_are_bounded() {
    over_both(|server, _| async move {
        server.know_watch_lists(false);
        with_pods(&server);
        let mut page = server.list();
        page["metadata"]["continue"] = "more".into();
        server.respond(RequestKind::List, Answer::new(200, page.to_string(), Then::End));
        server.respond(RequestKind::Page, Answer::expired());
        let mut source = Reflected::start(&server);
        is_bounded(&mut source).await;
        assert!(source.failing().is_some());
        server.respond_normally();
        source.converges().await;
    });
}

#[test]
fn the_status_of_an_error_counts_although_its_body_is_cut_off() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        server.respond_times(1, RequestKind::Watch, Answer::new(410, "<html>", Then::Break));
        server.break_watches();
        server.put(pod("c", "i:1"));
        source.converges().await;
        source.wait_for_watch().await;
        assert_eq!(server.count(RequestKind::WatchList), 2, "{:?}", server.summaries());
    });
}

#[test]
fn a_watch_that_ends_before_its_initial_events_are_complete_is_broken() {
    over_both(|server, _| async move {
        with_pods(&server);
        let begin = Answer::events(&[event("ADDED", &server.pods()["default/a"])], Then::End);
        server.respond_times(1, RequestKind::WatchList, begin);
        let mut source = Reflected::start(&server);
        source.wait_for_failure("closed the watch before its initial events were complete").await;
        assert_eq!((source.errors("broken"), source.errors("short-watch")), (1, 0));
        source.converges().await;
    });
    // An old server treats it as a watch, and a proxy ends what is idle.
    over_both(|server, _| async move {
        with_pods(&server);
        server.respond(RequestKind::WatchList, Answer::events(&[], Then::End));
        let mut source = Reflected::start(&server);
        source.converges_within(5 * SECOND).await;
        source.wait_for_watch().await;
        assert_eq!(server.summaries()[..3], ["WatchList -", "WatchList -", "List 0"]);
    });
}

#[test]
fn a_list_at_an_expired_version_is_repeated_at_once_as_the_most_recent() {
    over_both(|server, _| async move {
        server.know_watch_lists(false);
        let mut source = watching_source(&server).await;
        for stale in [Answer::expired(), Answer::too_large()] {
            let (seen, version) = (server.received().len(), server.version());
            server.respond_times(1, RequestKind::List, stale);
            server.break_watches();
            server.put(pod("c", "i:1"));
            server.compact();
            source.converges().await;
            source.wait_for_watch().await;
            let asked = server.requests(seen + 4).await[seen..].to_vec();
            let briefly: Vec<String> = asked.iter().map(ReceivedRequest::summary).collect();
            let [watch, list] = ["Watch", "List"].map(|ask| format!("{ask} {version}"));
            assert_eq!(briefly, [watch, list, "List -".to_owned(), format!("Watch {}", server.version())]);
            assert!(gaps(&asked)[1] < SECOND, "{asked:?}");
            source.pass(3 * 60 * SECOND).await;
        }
        assert_eq!(source.failing(), None);
    });
}

#[test]
fn repeated_unknown_and_foreign_events_change_nothing() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let known = server.pods()["default/a"].clone();
        let mut unknown = pod("x", "i:1");
        unknown["metadata"]["resourceVersion"] = "4".into();
        for object in [
            event("RENAMED", &known),
            event("ADDED", &known),
            event("ADDED", &known),
            event("MODIFIED", &known),
            event("DELETED", &unknown),
        ] {
            server.send_event(&object);
        }
        source.marker("c").await;
        assert_eq!(source.updates(), ["ADD c"]);
        assert_eq!((source.failing(), source.rejections()), (None, vec![]));
        // The WatchList stays open.
        assert_eq!(server.count(RequestKind::Watch), 0);
    });
}

#[test]
fn a_deleted_event_needs_no_more_than_the_name() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let name = json!({"kind": "Pod", "metadata": {"namespace": "default", "name": "a"}});
        server.forget("a");
        server.send_event(&event("DELETED", &name));
        source.marker("c").await;
        assert_eq!(source.updates(), ["REMOVE a", "ADD c"]);
        assert_eq!((source.failing(), source.rejections()), (None, vec![]));
    });
}

#[test]
fn the_life_of_a_pod_gives_each_operation() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        let mut labelled = pod("a", "i:1");
        labelled["metadata"]["labels"] = json!({"app": "web"});
        server.put(labelled.clone());
        source.converges().await;
        labelled["status"]["phase"] = "Running".into();
        server.put(labelled.clone());
        source.converges().await;
        labelled["metadata"]["deletionTimestamp"] = "2026-01-02T03:05:05Z".into();
        labelled["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        server.put(labelled);
        source.converges().await;
        server.delete("a");
        source.converges().await;
        assert_eq!(source.updates(), ["UPDATE a", "RECONCILE a", "DELETE a", "REMOVE a"]);
        // Another pod of the same name follows at once.
        let mut again = pod("b", "i:1");
        again["metadata"]["uid"] = "b-2".into();
        server.delete("b");
        server.put(again);
        source.converges().await;
        assert_eq!(source.updates(), ["REMOVE b", "ADD b"]);
    });
}

#[test]
fn mirror_pods_are_withheld() {
    over_both(|server, _| async move {
        with_pods(&server);
        let mut mirror = pod("m", "i:1");
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "abc"});
        server.put(mirror.clone());
        let mut source = Reflected::watching(&server).await;
        assert_eq!(source.updates(), ["ADD a", "ADD b"]);
        assert!(source.status().detail.contains("1 mirror pod withheld"), "{}", source.status().detail);
        mirror["spec"]["containers"][0]["image"] = "i:2".into();
        server.put(mirror.clone());
        mirror["metadata"]["name"] = "n".into();
        server.put(mirror);
        source.marker("c").await;
        server.delete("m");
        source.marker("d").await;
        assert_eq!(source.updates(), ["ADD c", "ADD d"]);
    });
}

#[test]
fn a_rescan_relists() {
    over_both(|server, _| async move {
        let mut source = watching_source(&server).await;
        source.handle.rescan();
        server.wait_for(2, RequestKind::WatchList).await;
        source.marker("c").await;
        source.wait_for_watch().await;
        assert_eq!((source.updates(), source.failing()), (vec!["ADD c".to_owned()], None));
        // A rescan ends the wait for the next attempt, too.
        server.down();
        source.wait_for_failure("").await;
        source.pass(10 * 60 * SECOND).await;
        server.up();
        source.handle.rescan();
        server.wait_for(3, RequestKind::WatchList).await;
        source.wait_for_watch().await;
    });
}

// timely_shutdown
#[test]
fn it_stops_at_once_in_every_state() {
    type Setup = fn(&ApiServer);
    let half = r#"{"kind":"PodList","items":[{"metadata""#;
    let states: [(&str, Setup, usize); 8] = [
        ("a watch", |_| (), 1),
        ("the head of a response", |server| server.respond_always(Answer::Never), 1),
        ("the rest of an error", |server| server.respond_always(Answer::new(500, "{", Then::Hang)), 1),
        ("the rest of a listing", |server| server.respond_always(Answer::new(200, "{", Then::Hang)), 1),
        ("the first event", |server| server.respond_always(Answer::new(200, "", Then::Hang)), 1),
        ("the next attempt", |server| server.respond_always(Answer::status(500, "", "")), 2),
        ("anything at all", ApiServer::freeze, 0),
        ("a server", ApiServer::down, 0),
    ];
    over_both(move |server, _| async move {
        for (what, setup, requests) in states {
            println!("{what}");
            let before = server.received().len();
            setup(&server);
            let source = Reflected::start(&server);
            server.requests(before + requests).await;
            if requests == 0 {
                source
                    .wait_until("connecting", |status| {
                        let reflector = status.reflector.as_ref().unwrap();
                        reflector.phase == "connecting" || status.failing.is_some()
                    })
                    .await;
            }
            let (begin, stop, work) = (Instant::now(), source.stop.clone(), source.source);
            stop.cancel();
            soon(work).await.unwrap();
            // Without any timer.
            assert!(begin.elapsed() < SECOND, "{what}: {:?}", begin.elapsed());
            server.respond_normally();
        }
    });
    over_both(move |server, _| async move {
        server.know_watch_lists(false);
        server.respond(RequestKind::List, Answer::new(200, half, Then::Hang));
        let source = Reflected::start(&server);
        server.wait_for(1, RequestKind::List).await;
        source.stop().await;
        assert_eq!(server.count(RequestKind::List), 1);
    });
}
