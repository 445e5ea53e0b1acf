//! What an API server may do wrong, over TCP and over TLS: what must happen then, and that no pod is lost by it.

use std::{fs, time::Duration};

use podmux::{source::SourceStatus, storage::SourceState};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    time::{Instant, timeout},
};

use crate::support::{
    apiserver::{Answer, ApiServer, Ask, Asked, Then, bookmark, event, pod, status},
    files::soon,
    namespace::{Elsewhere, inside},
    reflected::{Reflected, over_both},
    web::Authority,
};

const SECOND: Duration = Duration::from_secs(1);

/// A server with two pods.
fn with_pods(server: &ApiServer) {
    server.put(pod("a", "i:1"));
    server.put(pod("b", "i:1"));
}

/// A source that watches two pods.
async fn at_work(server: &ApiServer) -> Reflected {
    with_pods(server);
    let mut source = Reflected::at_work(server).await;
    assert_eq!(source.heard(), ["ADD a", "ADD b"]);
    source
}

/// The times between requests.
fn gaps(asked: &[Asked]) -> Vec<Duration> {
    asked.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

/// Lets half a minute pass, in which at most 30 requests may come, and then
/// some minutes, until they come as seldom as they ever do.
async fn is_bounded(source: &mut Reflected) {
    let requests = source.requests_in(30 * SECOND).await;
    assert!((1..=30).contains(&requests), "{requests} in 30 s: {:?}", source.server.briefly());
    let requests = source.requests_in(5 * 60 * SECOND).await;
    assert!((8..=40).contains(&requests), "{requests} in 5 min: {:?}", source.server.briefly());
}

/// The same, where every request has failed: the delays have grown to between 15 and 30 s.
async fn backs_off(source: &mut Reflected) {
    let begin = source.server.seen().len();
    is_bounded(source).await;
    let gaps = gaps(&source.server.seen()[begin..]);
    let last = gaps.last().unwrap();
    assert!((14 * SECOND..=32 * SECOND).contains(last), "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap <= 32 * SECOND), "{gaps:?}");
}

// ---- The fault matrix.

#[test]
fn a_watch_that_begins_with_410_leads_to_a_fresh_listing() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let version = server.version();
        server.break_watches();
        server.delete("b");
        server.put(pod("c", "i:1"));
        server.compact();
        source.converges_within(5 * SECOND).await;
        source.watches().await;
        assert_eq!(source.heard(), ["REMOVE b", "ADD c"]);
        let asked = ["WatchList -".to_owned(), format!("Watch {version}"), format!("WatchList {version}")];
        assert_eq!(server.briefly(), asked);
        assert_eq!((source.errors("expired"), source.errors("broken")), (1, 1));
        assert_eq!(source.version(), server.version());
    });
}

#[test]
fn a_watch_at_a_version_that_is_too_large_leads_to_the_newest_listing() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        server.say_times(1, Ask::Watch, Answer::too_large());
        server.break_watches();
        server.put(pod("c", "i:1"));
        source.converges_within(10 * SECOND).await;
        assert_eq!(server.briefly()[2..], ["WatchList -"]);
        assert_eq!(source.heard(), ["ADD c"]);
    });
}

#[test]
fn a_version_that_goes_backwards_leaves_no_phantom_pods() {
    over_both(|server, log| async move {
        let mut source = at_work(&server).await;
        for version in 0..10 {
            server.put(pod("b", &format!("i:{version}")));
        }
        source.converges().await;
        source.heard();
        // etcd was restored: b is older, c is still there, d never was.
        let old = [pod("b", "i:0"), pod("c", "i:1"), pod("a", "i:1")];
        server.put(pod("d", "i:1"));
        source.converges().await;
        server.restore(2, &old);
        server.break_watches();
        source.converges().await;
        source.watches().await;
        assert_eq!(source.heard(), ["ADD d", "REMOVE d", "ADD c", "UPDATE b"]);
        assert_eq!(source.version(), "2", "the smaller one is taken over");
        server.put(pod("a", "i:2"));
        source.converges().await;
        assert_eq!(source.version(), "3");
        assert!(log.lines_with("Too large resource version").len() <= 1);
    });
}

#[test]
fn an_error_event_410_leads_to_a_fresh_listing() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let version = server.version();
        server.send_event(&event("ERROR", &status(410, "Expired", "too old resource version")));
        server.end_watches();
        server.put(pod("c", "i:1"));
        source.converges_within(5 * SECOND).await;
        source.watches().await;
        assert_eq!(server.briefly(), ["WatchList -".to_owned(), format!("WatchList {version}")]);
        assert_eq!(source.heard(), ["ADD c"]);
        assert_eq!(source.failing(), None);
    });
}

#[test]
fn error_events_410_that_repeat_come_more_and_more_seldom() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let listed = server.pods();
        let mut events: Vec<Value> = listed.values().map(|pod| event("ADDED", pod)).collect();
        events.push(bookmark(3, true));
        events.push(event("ERROR", &status(410, "Expired", "too old resource version")));
        server.say(Ask::WatchList, Answer::events(&events, Then::End));
        server.send_event(&event("ERROR", &status(410, "Expired", "too old resource version")));
        server.end_watches();
        backs_off(&mut source).await;
        assert_eq!(server.count(Ask::Watch), 0);
        source.fails("too old resource version").await;
        assert_eq!(source.heard(), [""; 0]);
        server.be_honest();
        source.marker("m").await;
        source.watches().await;
    });
}

#[test]
fn an_error_event_500_ends_the_watch_and_a_second_one_in_a_row_lists_again() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let error = event("ERROR", &status(500, "InternalError", "etcd is away"));
        let (first, version) = ("WatchList -".to_owned(), server.version());
        server.say_times(1, Ask::Watch, Answer::events(std::slice::from_ref(&error), Then::Hang));
        // The stream stays open, and is dead.
        server.send_event(&error);
        server.asked_for(2, Ask::WatchList).await;
        let asked = [first, format!("Watch {version}"), format!("WatchList {version}")];
        assert_eq!(server.briefly(), asked);
        source.marker("c").await;
        source.watches().await;
        // With an event between there are no two in a row.
        for image in ["i:2", "i:3", "i:4"] {
            server.put(pod("a", image));
            source.converges().await;
            let (watches, version) = (server.count(Ask::Watch), server.version());
            server.send_event(&error);
            server.asked_for(watches + 1, Ask::Watch).await;
            assert_eq!(server.seen().last().unwrap().query("resourceVersion"), version);
            source.marker("m").await;
        }
        assert_eq!(server.count(Ask::WatchList), 2);
        assert_eq!(source.errors("error-event"), 5);
    });
}

#[test]
fn lists_that_fail_for_ever_come_seldom_and_the_source_is_said_to_fail() {
    over_both(|server, log| async move {
        server.forget_watch_lists();
        with_pods(&server);
        server.say(Ask::List, Answer::status(500, "InternalError", "etcd is away"));
        let mut source = Reflected::start(&server);
        source.fails("500 Internal Server Error: etcd is away").await;
        assert!(source.status().reflector.unwrap().next_attempt.is_some());
        assert_eq!(source.phase(), "waiting");
        backs_off(&mut source).await;
        let failing = source.failing().unwrap();
        assert_eq!(failing.attempts, source.errors("http") - server.count(Ask::WatchList) as u64);
        assert!(failing.attempts >= 10);
        assert_eq!(
            source.mux.merged().borrow().state(podmux::pod::SourceName::Api),
            Some(SourceState::Waiting)
        );
        assert_eq!(log.lines_with("etcd is away").len(), 1, "it is said once");
        server.be_honest();
        source.converges().await;
        source.watches().await;
        let recovered = log.lines_with("recovered");
        assert_eq!(recovered.len(), 1);
        assert!(recovered[0].contains(&format!("failed={}", failing.attempts)), "{recovered:?}");
    });
}

#[test]
fn lists_that_fail_after_a_good_one_cost_no_pods() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        server.say(Ask::WatchList, Answer::status(500, "InternalError", "etcd is away"));
        server.break_watches();
        server.put(pod("c", "i:1"));
        server.compact();
        source.fails("etcd is away").await;
        backs_off(&mut source).await;
        assert_eq!(source.heard(), [""; 0]);
        server.be_honest();
        source.converges().await;
        assert_eq!(source.heard(), ["ADD c"]);
    });
}

#[test]
fn retry_after_is_honoured_and_the_error_is_seen() {
    over_both(|server, _| async move {
        server.forget_watch_lists();
        let busy = |seconds: &str| {
            Answer::status(503, "ServiceUnavailable", "starting up").header("Retry-After", seconds)
        };
        server.say_times(1, Ask::List, busy("17"));
        // Nobody is told to wait for an hour.
        server.say_times(1, Ask::List, busy("3600"));
        server.say_times(1, Ask::List, busy("soon"));
        let mut source = Reflected::start(&server);
        source.fails("503 Service Unavailable: starting up").await;
        source.pass(7 * 60 * SECOND).await;
        source.converges().await;
        let lists: Vec<Asked> = server.seen().into_iter().filter(|asked| asked.ask == Ask::List).collect();
        let gaps = gaps(&lists);
        assert_eq!(gaps.len(), 3);
        assert!((17 * SECOND..20 * SECOND).contains(&gaps[0]), "{gaps:?}");
        assert!((300 * SECOND..303 * SECOND).contains(&gaps[1]), "{gaps:?}");
        assert!(gaps[2] < 10 * SECOND, "{gaps:?}");
    });
}

#[test]
fn too_many_requests_lead_to_the_same_watch_later() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let version = server.version();
        let busy = Answer::status(429, "TooManyRequests", "too many requests").header("Retry-After", "9");
        server.say_times(3, Ask::Watch, busy);
        server.break_watches();
        server.put(pod("c", "i:1"));
        source.converges().await;
        source.watches().await;
        let again = format!("Watch {version}");
        assert_eq!(server.briefly()[1..], [&*again; 4]);
        assert!(gaps(&server.seen())[1..].iter().all(|gap| *gap >= 9 * SECOND));
    });
}

#[test]
fn watches_that_are_closed_at_once_come_seldom_and_are_seen() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        server.say(Ask::Watch, Answer::events(&[], Then::End));
        server.end_watches();
        source.fails("closed").await;
        backs_off(&mut source).await;
        let metrics = source.handle.metrics();
        let watches = server.count(Ask::Watch) as u64;
        assert!(metrics.short_watches.get() >= watches - 1 && watches > 10, "{metrics:?}");
        assert_eq!(source.heard(), [""; 0]);
        assert_eq!(server.count(Ask::WatchList), 1);
        server.be_honest();
        source.marker("m").await;
        source.watches().await;
    });
}

#[test]
fn watches_that_are_hung_up_on_come_seldom() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        server.say(Ask::Watch, Answer::HangUp);
        server.break_watches();
        backs_off(&mut source).await;
        assert!(source.failing().is_some());
        assert_eq!(source.heard(), [""; 0]);
        server.be_honest();
        source.marker("m").await;
    });
}

#[test]
fn watches_with_one_event_each_are_no_faster_than_one_a_second() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let unchanged = server.pods()["default/a"].clone();
        server.say(Ask::Watch, Answer::events(&[event("MODIFIED", &unchanged)], Then::End));
        server.end_watches();
        let requests = source.requests_in(30 * SECOND).await;
        // It goes on; how fast at most is the promise. One pair more may lie across the ends of the time.
        assert!((4..=32).contains(&requests), "{requests}");
        assert_eq!(source.failing(), None);
    });
}

#[test]
fn a_watch_list_that_is_refused_leads_to_a_list_at_once() {
    for (code, reason) in [(400, "BadRequest"), (422, "Invalid")] {
        over_both(|server, log| async move {
            with_pods(&server);
            let refused = Answer::status(code, reason, "sendInitialEvents is forbidden");
            server.say_times(1, Ask::WatchList, refused);
            let begin = Instant::now();
            let mut source = Reflected::start(&server);
            source.converges_within(2 * SECOND).await;
            source.watches().await;
            assert!(begin.elapsed() <= 2 * SECOND);
            server.asked(3).await;
            assert_eq!(server.briefly(), ["WatchList -", "List 0", "Watch 3"]);
            assert_eq!(server.seen()[1].query("limit"), "500");
            assert_eq!(source.failing(), None);
            assert_eq!(log.lines_with("does not stream listings").len(), 1);
            // That is remembered for half an hour.
            source.pass(29 * 60 * SECOND).await;
            server.break_watches();
            server.put(pod("c", "i:1"));
            server.compact();
            source.converges().await;
            assert_eq!(server.count(Ask::WatchList), 1);
            let list = server.seen().iter().rfind(|asked| asked.ask == Ask::List).unwrap().clone();
            let query = ["limit", "resourceVersion", "resourceVersionMatch"].map(|name| list.query(name));
            assert_eq!(query, ["", "3", "NotOlderThan"], "a relist is whole, and at what is known");
            source.pass(2 * 60 * SECOND).await;
            server.break_watches();
            server.put(pod("d", "i:1"));
            server.compact();
            source.converges().await;
            assert_eq!(server.count(Ask::WatchList), 2);
        });
    }
}

#[test]
fn another_refusal_of_a_watch_list_is_no_reason_to_list() {
    over_both(|server, _| async move {
        with_pods(&server);
        server.say_times(2, Ask::WatchList, Answer::status(500, "InternalError", "etcd is away"));
        let mut source = Reflected::start(&server);
        source.converges().await;
        assert_eq!(server.briefly(), ["WatchList -"; 3]);
    });
}

#[test]
fn a_watch_list_that_is_taken_for_a_watch_leads_to_a_list_in_time() {
    over_both(|server, _| async move {
        with_pods(&server);
        // A server of old: all that it knows of the request is that it is a watch.
        server.say(Ask::WatchList, Answer::events(&[], Then::Changes));
        let mut source = Reflected::start(&server);
        source.converges_within(12 * SECOND).await;
        assert_eq!(server.briefly()[..2], ["WatchList -", "List 0"]);
        source.watches().await;
        assert_eq!(source.failing(), None);
    });
    over_both(|server, _| async move {
        with_pods(&server);
        let events: Vec<Value> = server.pods().values().map(|pod| event("ADDED", pod)).collect();
        server.say(Ask::WatchList, Answer::events(&events, Then::Changes));
        let mut source = Reflected::start(&server);
        // It is busy, and never comes to an end.
        for turn in 0..12 {
            source.pass(5 * SECOND).await;
            server.put(pod("a", &format!("i:{turn}")));
            if turn < 9 {
                assert_eq!(server.seen().len(), 1, "it says something");
                assert_eq!(source.heard(), [""; 0], "what is not complete is told to nobody");
            }
        }
        source.converges_within(5 * SECOND).await;
        assert_eq!(server.briefly()[..2], ["WatchList -", "List 0"]);
    });
}

#[test]
fn an_object_that_cannot_be_read_costs_no_other_one() {
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
                server.say_times(1, Ask::WatchList, Answer::events(&events, Then::Changes));
            } else {
                server.forget_watch_lists();
                let mut list = server.list();
                let items = list["items"].as_array_mut().unwrap();
                items.splice(1..1, bad.iter().cloned());
                server.say_times(1, Ask::List, Answer::new(200, list.to_string(), Then::End));
            }
            let mut source = Reflected::start(&server);
            source.converges().await;
            source.watches().await;
            let rejections = source.rejections();
            assert!(rejections.iter().any(|said| said.starts_with("default/s: ")), "{rejections:?}");
            assert!(rejections.iter().any(|said| said.contains("name cannot be read")), "{rejections:?}");
            assert_eq!(source.errors("undecodable"), 5);
            assert_eq!(
                log.lines_with("was refused").iter().filter(|line| line.contains("default/s")).count(),
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
            assert_eq!(server.watches(), 1, "the watch stands");
        });
    }
}

#[test]
fn the_last_good_version_of_an_object_stays_until_a_better_one_or_its_deletion() {
    over_both(|server, log| async move {
        let mut source = at_work(&server).await;
        let mut broken = server.pods()["default/a"].clone();
        broken["kind"] = "Service".into();
        broken["metadata"]["resourceVersion"] = "100".into();
        server.send_event(&event("MODIFIED", &broken));
        source
            .is("at 100", |status| {
                status.reflector.as_ref().unwrap().resource_version.as_deref() == Some("100")
            })
            .await;
        source.marker("c").await;
        assert_eq!(source.image("a"), "i:1");
        assert_eq!(source.rejections().len(), 1);
        assert!(source.rejections()[0].starts_with("default/a: "), "{:?}", source.rejections());
        // A whole listing with it in it keeps it as well.
        let mut list: Vec<Value> = server.pods().into_values().map(|pod| event("ADDED", &pod)).collect();
        list[0]["object"] = broken.clone();
        list.push(bookmark(101, true));
        server.say_times(1, Ask::WatchList, Answer::events(&list, Then::Changes));
        source.handle.rescan();
        server.asked_for(2, Ask::WatchList).await;
        source.marker("d").await;
        assert_eq!(source.image("a"), "i:1");
        assert_eq!(source.rejections().len(), 1);

        server.put(pod("a", "i:2"));
        source.converges().await;
        assert_eq!((source.image("a"), source.rejections().len()), ("i:2", 0));
        assert_eq!(log.lines_with("can be read again").len(), 1);
        server.send_event(&event("MODIFIED", &broken));
        server.delete("a");
        source.converges().await;
        assert_eq!(source.image("a"), "");
        assert_eq!(source.rejections().len(), 0);
    });
}

#[test]
fn a_stream_that_breaks_is_gone_on_with_where_it_ended() {
    let object = event("ADDED", &pod("x", "i:1")).to_string();
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56".to_vec();
    let ends: [(&str, Vec<u8>, bool); 6] = [
        ("in the middle of an object", object.as_bytes()[..200].to_vec(), false),
        ("in the middle of an object, and the connection with it", object.as_bytes()[..200].to_vec(), true),
        ("garbage", b"<html>".to_vec(), false),
        ("garbage that goes on", b"\n\x00\x01garbage".to_vec(), true),
        ("an object that is none", b"{\"type\": }".to_vec(), false),
        ("bytes of gzip", gzip, true),
    ];
    over_both(|server, _| {
        let ends = ends.clone();
        async move {
            let mut source = at_work(&server).await;
            let mut marks = 0;
            for (what, bytes, breaks) in ends {
                println!("{what}");
                let (watches, version) = (server.count(Ask::Watch), server.version());
                server.send(bytes);
                if breaks {
                    server.break_watches();
                } else {
                    server.end_watches();
                }
                server.asked_for(watches + 1, Ask::Watch).await;
                assert_eq!(server.seen().last().unwrap().query("resourceVersion"), version);
                marks += 1;
                source.marker(&format!("m{marks}")).await;
                source.watches().await;
                // Long enough for the next one to be the first again.
                source.pass(3 * 60 * SECOND).await;
            }
            assert_eq!(server.count(Ask::WatchList), 1);
            let heard = source.heard();
            assert!(heard.iter().all(|heard| heard.starts_with("ADD m")), "{heard:?}");
        }
    });
}

#[test]
fn a_watch_that_is_compressed_though_nobody_asked_is_not_read() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let version = server.version();
        let gzip =
            Answer::new(200, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56".to_vec(), Then::Break);
        server.say_times(1, Ask::Watch, gzip.header("Content-Encoding", "gzip"));
        server.end_watches();
        source.fails("gzip").await;
        source.marker("c").await;
        source.watches().await;
        let again = format!("Watch {version}");
        assert_eq!(server.briefly()[1..3], [&*again; 2]);
    });
}

#[test]
fn a_list_that_breaks_is_listed_again_and_costs_nothing() {
    over_both(|server, _| async move {
        server.forget_watch_lists();
        let mut source = at_work(&server).await;
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
        let lists = server.count(Ask::List) + broken.len();
        for answer in broken {
            server.say_times(1, Ask::List, answer);
        }
        source.pass(3 * 60 * SECOND).await;
        source.converges().await;
        assert_eq!(source.heard(), ["ADD c"]);
        assert_eq!(server.count(Ask::List), lists + 1);
    });
}

#[test]
fn a_token_that_is_refused_is_read_again() {
    over_both(|server, log| async move {
        with_pods(&server);
        server.want_token("s3cret-old");
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        fs::write(&token_file, "s3cret-old").unwrap();
        let mut source = Reflected::start_with(&server, &json!({"tokenFile": token_file}), |source| source);
        source.converges().await;
        source.watches().await;
        server.want_token("s3cret-new");
        server.break_watches();
        source.fails("401").await;
        let requests = source.requests_in(30 * SECOND).await;
        assert!((1..=30).contains(&requests), "{requests}");
        fs::write(&token_file, "s3cret-new\n").unwrap();
        source.marker("c").await;
        source.watches().await;
        assert_eq!(server.count(Ask::WatchList), 1, "nobody doubts the version");
        assert_eq!(log.lines_with("s3cret"), [""; 0]);
        assert_eq!(source.heard(), ["ADD a", "ADD b", "ADD c"]);
    });
}

#[test]
fn a_right_that_is_missing_is_waited_for() {
    over_both(|server, _| async move {
        with_pods(&server);
        server.say_always(Answer::status(403, "Forbidden", "pods is forbidden: User \"x\" cannot list"));
        let mut source = Reflected::start(&server);
        source.fails("403 Forbidden: pods is forbidden").await;
        source.fails("grant this user list and watch on pods").await;
        backs_off(&mut source).await;
        server.be_honest();
        source.converges().await;
        source.watches().await;
        // And taken away while it watches.
        server.say(Ask::Watch, Answer::status(403, "Forbidden", "no more"));
        server.break_watches();
        source.fails("403 Forbidden: no more").await;
        backs_off(&mut source).await;
        server.be_honest();
        source.marker("c").await;
        assert_eq!(source.heard(), ["ADD a", "ADD b", "ADD c"]);
    });
}

#[test]
fn a_server_that_is_down_at_the_start_is_found_when_it_comes() {
    over_both(|server, log| async move {
        with_pods(&server);
        server.down();
        let mut source = Reflected::start(&server);
        source.fails("").await;
        source.pass(60 * SECOND).await;
        assert_eq!(source.phase(), "waiting");
        assert_eq!(server.seen().len(), 0);
        assert!(source.errors("connect") >= 5);
        server.up();
        source.converges_within(31 * SECOND).await;
        source.watches().await;
        assert_eq!(log.lines_with("recovered").len(), 1);
    });
}

#[test]
fn a_server_that_goes_down_costs_no_pods_and_is_watched_on_when_it_comes() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        let version = server.version();
        server.down();
        source.fails("").await;
        source.pass(10 * 60 * SECOND).await;
        assert_eq!((source.heard(), source.image("a")), (vec![], "i:1"));
        server.delete("b");
        server.put(pod("c", "i:1"));
        server.up();
        source.converges_within(31 * SECOND).await;
        source.watches().await;
        assert_eq!(server.briefly(), ["WatchList -".to_owned(), format!("Watch {version}")]);
        assert_eq!(source.heard(), ["REMOVE b", "ADD c"]);
    });
}

/// The packets are dropped for real, in a network of the test's own, and the time
/// is real too: it is the kernel that notices.
#[test]
fn a_connection_that_goes_half_open_is_noticed_within_a_minute() {
    if !inside("-Urn", "api_faults::a_connection_that_goes_half_open_is_noticed_within_a_minute") {
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
            sources.push(at_work(&server).await);
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
            source.watches().await;
            assert_eq!(source.heard(), ["REMOVE b"]);
            assert_eq!(source.server.briefly()[1..], [format!("Watch {version}")]);
        }
    });
}

#[test]
fn a_burst_of_100_000_events_that_nobody_hears_costs_no_memory() {
    // Alone in its process, for its memory is looked at.
    if !inside("-U", "api_faults::a_burst_of_100_000_events_that_nobody_hears_costs_no_memory") {
        return;
    }
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
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
            source.is(&format!("at {version}"), at).await;
        }
        // Each event kept would be some kilobytes.
        let grown = memory().saturating_sub(before);
        assert!(grown < 64 << 20, "{} MiB for 500 pods", grown >> 20);
        source.converges().await;
        assert_eq!(source.heard().len(), 500, "the backlog is one difference");
        assert_eq!((server.count(Ask::WatchList), source.failing()), (1, None));
    });
}

/// What the process has in memory, in bytes.
fn memory() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

// ---- What else a server may do.

#[test]
fn watches_that_end_in_their_time_are_no_failure() {
    over_both(|server, log| async move {
        let mut source = at_work(&server).await;
        source.pass(60 * 60 * SECOND).await;
        source.marker("c").await;
        source.watches().await;
        let watches = server.count(Ask::Watch);
        assert!((5..=12).contains(&watches), "{watches}");
        assert_eq!((server.count(Ask::WatchList), source.failing()), (1, None));
        let metrics = source.handle.metrics();
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
fn bookmarks_move_the_version_on() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        for _ in 0..5 {
            server.bookmark();
        }
        let version = server.version();
        let at = version.clone();
        source
            .is("at the bookmark", move |status| {
                status.reflector.as_ref().unwrap().resource_version.as_deref() == Some(&*at)
            })
            .await;
        assert!(source.status().reflector.unwrap().last_event.is_some());
        server.compact();
        server.break_watches();
        source.marker("c").await;
        assert_eq!(server.briefly()[1..], [format!("Watch {version}")]);
        assert_eq!(source.heard(), ["ADD c"]);
    });
}

#[test]
fn a_first_list_comes_in_pages_and_an_expired_page_leads_to_one_whole_list() {
    over_both(|server, _| async move {
        server.forget_watch_lists();
        for number in 0..1_200 {
            server.put(pod(&format!("p{number:04}"), "i:1"));
        }
        server.compact();
        server.say_times(1, Ask::Page, Answer::Honest);
        server.say_times(1, Ask::Page, Answer::expired());
        let mut source = Reflected::start(&server);
        source.converges().await;
        source.watches().await;
        let asked = ["WatchList -", "List 0", "Page -", "Page -", "List 0", "Watch 1201"];
        server.asked(asked.len()).await;
        assert_eq!(server.briefly(), asked);
        let limits: Vec<String> = server.seen().iter().map(|asked| asked.query("limit").to_owned()).collect();
        assert_eq!(limits, ["", "500", "500", "500", "", ""]);
        assert_eq!(source.failing(), None);
        assert_eq!(source.heard().len(), 1_200);
    });
}

#[test]
fn pages_that_all_come_make_one_listing() {
    over_both(|server, _| async move {
        server.forget_watch_lists();
        for number in 0..1_200 {
            server.put(pod(&format!("p{number:04}"), "i:1"));
        }
        let mut source = Reflected::start(&server);
        source.converges().await;
        source.watches().await;
        server.asked(5).await;
        assert_eq!(server.briefly(), ["WatchList -", "List 0", "Page -", "Page -", "Watch 1201"]);
        let metrics = source.handle.metrics();
        assert_eq!(metrics.lists.get(), 2, "the WatchList that was refused, and the pages as one");
    });
}

#[test]
fn pages_that_expire_for_ever_are_bounded() {
    over_both(|server, _| async move {
        server.forget_watch_lists();
        with_pods(&server);
        let mut page = server.list();
        page["metadata"]["continue"] = "more".into();
        server.say(Ask::List, Answer::new(200, page.to_string(), Then::End));
        server.say(Ask::Page, Answer::expired());
        let mut source = Reflected::start(&server);
        is_bounded(&mut source).await;
        assert!(source.failing().is_some());
        server.be_honest();
        source.converges().await;
    });
}

#[test]
fn a_list_at_a_version_that_expired_comes_at_once_at_the_newest() {
    over_both(|server, _| async move {
        server.forget_watch_lists();
        let mut source = at_work(&server).await;
        for stale in [Answer::expired(), Answer::too_large()] {
            let (seen, version) = (server.seen().len(), server.version());
            server.say_times(1, Ask::List, stale);
            server.break_watches();
            server.put(pod("c", "i:1"));
            server.compact();
            source.converges().await;
            source.watches().await;
            let asked = server.asked(seen + 4).await[seen..].to_vec();
            let briefly: Vec<String> = asked.iter().map(Asked::brief).collect();
            let [watch, list] = ["Watch", "List"].map(|ask| format!("{ask} {version}"));
            assert_eq!(briefly, [watch, list, "List -".to_owned(), format!("Watch {}", server.version())]);
            assert!(gaps(&asked)[1] < SECOND, "{asked:?}");
            source.pass(3 * 60 * SECOND).await;
        }
        assert_eq!(source.failing(), None);
    });
}

#[test]
fn events_that_say_nothing_new_or_of_nobody_are_no_harm() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
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
        assert_eq!(source.heard(), ["ADD c"]);
        assert_eq!((source.failing(), source.rejections()), (None, vec![]));
        // The watch that began with the listing stands.
        assert_eq!(server.count(Ask::Watch), 0);
    });
}

#[test]
fn pods_live_and_die() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        // What is of no consequence to anybody is told to nobody.
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
        assert_eq!(source.heard(), ["UPDATE a", "RECONCILE a", "DELETE a", "REMOVE a"]);
        // Another pod of the same name, without a look between.
        let mut again = pod("b", "i:1");
        again["metadata"]["uid"] = "b-2".into();
        server.delete("b");
        server.put(again);
        source.converges().await;
        assert_eq!(source.heard(), ["REMOVE b", "ADD b"]);
    });
}

#[test]
fn mirror_pods_are_withheld() {
    over_both(|server, _| async move {
        with_pods(&server);
        let mut mirror = pod("m", "i:1");
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "abc"});
        server.put(mirror.clone());
        let mut source = Reflected::at_work(&server).await;
        assert_eq!(source.heard(), ["ADD a", "ADD b"]);
        assert!(source.status().detail.contains("1 mirror pod withheld"), "{}", source.status().detail);
        mirror["spec"]["containers"][0]["image"] = "i:2".into();
        server.put(mirror.clone());
        mirror["metadata"]["name"] = "n".into();
        server.put(mirror);
        source.marker("c").await;
        server.delete("m");
        source.marker("d").await;
        assert_eq!(source.heard(), ["ADD c", "ADD d"]);
    });
}

#[test]
fn a_rescan_lists_anew() {
    over_both(|server, _| async move {
        let mut source = at_work(&server).await;
        source.handle.rescan();
        server.asked_for(2, Ask::WatchList).await;
        source.marker("c").await;
        source.watches().await;
        assert_eq!((source.heard(), source.failing()), (vec!["ADD c".to_owned()], None));
        // Also while it waits for the next attempt.
        server.down();
        source.fails("").await;
        source.pass(10 * 60 * SECOND).await;
        server.up();
        source.handle.rescan();
        server.asked_for(3, Ask::WatchList).await;
        source.watches().await;
    });
}

// timely_shutdown
#[test]
fn it_stops_at_once_whatever_it_waits_for() {
    type Say = fn(&ApiServer);
    let half = r#"{"kind":"PodList","items":[{"metadata""#;
    let says: [(&str, Say, usize); 8] = [
        ("a watch", |_| (), 1),
        ("the head of an answer", |server| server.say_always(Answer::Mute), 1),
        ("the rest of a refusal", |server| server.say_always(Answer::new(500, "{", Then::Hang)), 1),
        ("the rest of a listing", |server| server.say_always(Answer::new(200, "{", Then::Hang)), 1),
        ("the first event", |server| server.say_always(Answer::new(200, "", Then::Hang)), 1),
        ("the next attempt", |server| server.say_always(Answer::status(500, "", "")), 2),
        ("anything at all", ApiServer::freeze, 0),
        ("a server", ApiServer::down, 0),
    ];
    over_both(move |server, _| async move {
        for (what, say, requests) in says {
            println!("{what}");
            let before = server.seen().len();
            say(&server);
            let source = Reflected::start(&server);
            server.asked(before + requests).await;
            if requests == 0 {
                source
                    .is("connecting", |status| {
                        let reflector = status.reflector.as_ref().unwrap();
                        reflector.phase == "connecting" || status.failing.is_some()
                    })
                    .await;
            }
            let (begin, stop, work) = (Instant::now(), source.stop.clone(), source.source);
            stop.cancel();
            soon(work).await.unwrap();
            // Not even the clock was needed.
            assert!(begin.elapsed() < SECOND, "{what}: {:?}", begin.elapsed());
            server.be_honest();
        }
    });
    over_both(move |server, _| async move {
        server.forget_watch_lists();
        server.say(Ask::List, Answer::new(200, half, Then::Hang));
        let source = Reflected::start(&server);
        server.asked_for(1, Ask::List).await;
        source.end().await;
        assert_eq!(server.count(Ask::List), 1);
    });
}
