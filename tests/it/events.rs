//! Events: what they report, how they are counted and combined, what is held of them, and how they are read.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Write as _,
};

use expect_test::expect;
use imbl::OrdMap;
use jiff::{SignedDuration, Timestamp};
use podmux::{
    events::{EventLog, Fact, Involved, MAX_BYTES, MAX_EVENTS, Published, facts},
    history::Journaled,
    pod::{ListingBuilder, NodeName, Origin, PodKey, Prepared, RejectionReason, SourceName},
    runtime::{Observed, ObservedPod},
    source::SourceFailing,
    storage::PodStorage,
};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;

use crate::support::{
    reader::Reader,
    server::{Setup, TestServer, manifest, with_api},
    state::Dice,
};

const EVENTS: &str = "/api/v1/namespaces/default/events";

fn node() -> NodeName {
    NodeName::new("node1").unwrap()
}

/// client-go's event correlator with texts as keys and without bounds (`tools/record/events_cache.go`). Of ten
/// similar messages client-go forgets any one; this one forgets the newest.
#[derive(Default)]
struct Model {
    similar: HashMap<String, (HashSet<String>, i64)>,
    observed: HashMap<String, (u64, i64)>,
    /// The saved seconds, and when they were counted.
    buckets: HashMap<String, (i64, i64)>,
}

impl Model {
    /// The message, the count and the first time of the event that is reported.
    fn record(&mut self, fact: &Fact, now: i64) -> Option<(String, u64, i64)> {
        let Involved { kind, namespace, name, uid, field_path, .. } = &fact.involved;
        let object = format!("{kind} {namespace} {name} {uid} {}", fact.is_warning);
        let aggregate = format!("{object} {}", fact.reason);
        let event = format!("{aggregate} {field_path} {}", fact.message);

        let (messages, last) = self.similar.entry(aggregate.clone()).or_insert((HashSet::new(), now));
        if now - *last > 600 {
            messages.clear();
        }
        *last = now;
        let is_new = messages.insert(fact.message.clone());
        let (message, key) = if messages.len() < 10 {
            (fact.message.clone(), event)
        } else {
            assert!(is_new && messages.remove(&fact.message));
            (format!("(combined from similar events): {}", fact.message), aggregate)
        };

        let (count, first) = self.observed.entry(key).or_insert((0, now));
        *count += 1;

        let (saved, counted) = self.buckets.entry(object).or_insert((25 * 300, now));
        (*saved, *counted) = ((*saved + now - *counted).min(25 * 300), now);
        if *saved < 300 {
            return None;
        }
        *saved -= 300;
        Some((message, *count, *first))
    }
}

#[test]
fn events_are_counted_combined_and_limited_as_by_client_go() {
    let mut outcomes = BTreeMap::new();
    for seed in 0..200 {
        let (mut dice, mut model, mut log) = (Dice(seed), Model::default(), EventLog::default());
        let (mut now, mut number, messages) = (1_800_000_000, 0, [3, 12, 40][dice.roll(3)]);
        let pace = [1, 30, 400][dice.roll(3)];
        let mut names: HashMap<String, String> = HashMap::new();
        for _ in 0..200 {
            now += i64::try_from(if dice.roll(40) == 0 { dice.roll(1500) } else { dice.roll(pace) }).unwrap();
            let key = PodKey::new("default", ["a", "b"][dice.roll(2)]);
            let mut involved = Involved::pod(&key, ["u1", "u2"][dice.roll(8) / 7]);
            if dice.roll(3) == 0 {
                involved = involved.container("containers", "c");
            }
            let reason = ["Failed", "BackOff"][dice.roll(2)];
            let message = format!("message {}", dice.roll(messages));
            let fact = Fact::new(involved, dice.roll(3) > 0, reason, message);
            let expected = model.record(&fact, now);
            let at = Timestamp::from_second(now).unwrap();
            let changes = log.record(&node(), fact.clone(), at, || {
                number += 1;
                number
            });
            let text = |time: i64| Timestamp::from_second(time).unwrap().to_string();
            let found = changes.first().map(|change| {
                let event: Value = serde_json::from_str(&change.new.as_ref().unwrap().to_json()).unwrap();
                assert_eq!(event["lastTimestamp"], text(now));
                assert_eq!(event["metadata"]["resourceVersion"], number.to_string());
                // An event keeps its name, and no two have the same.
                let is_combined = event["message"].as_str().unwrap().starts_with("(combined");
                let mut id = json!([event["involvedObject"], event["type"], event["reason"]]);
                if is_combined {
                    id[0].as_object_mut().unwrap().remove("fieldPath");
                } else {
                    id.as_array_mut().unwrap().push(event["message"].clone());
                }
                let name = event["metadata"]["name"].as_str().unwrap();
                assert_eq!(names.entry(name.to_owned()).or_insert(id.to_string()), &id.to_string());
                json!([event["message"], event["count"], event["firstTimestamp"]])
            });
            let kind = expected.as_ref().map_or("dropped", |(message, count, _)| match count {
                _ if message.starts_with('(') => "combined",
                1 => "new",
                _ => "counted",
            });
            *outcomes.entry(kind).or_insert(0_usize) += 1;
            let expected = expected.map(|(message, count, first)| json!([message, count, text(first)]));
            assert_eq!(found, expected, "seed {seed}");
        }
    }
    assert!(outcomes.len() == 4 && outcomes.values().all(|count| *count > 300), "{outcomes:?}");
}

#[test]
fn a_clock_that_is_set_back_silences_no_object() {
    let (mut log, mut number) = (EventLog::default(), 0);
    let mut record = |message: String, at: i64| {
        let fact = Fact::new(Involved::pod(&PodKey::new("default", "web"), ""), false, "Started", message);
        let changes = log.record(&node(), fact, Timestamp::from_second(at).unwrap(), || {
            number += 1;
            number
        });
        changes.len()
    };
    assert_eq!(record("before".to_owned(), 1_800_000_000), 1);
    let reported: usize = (0..30).map(|number| record(format!("after {number}"), 1_500_000_000)).sum();
    assert_eq!(reported, 25);
}

/// Records facts about different pods, with messages of a length. Returns how many events are gone.
fn fill(log: &mut EventLog, count: usize, length: usize) -> usize {
    let (mut number, mut gone) = (0, 0);
    let mut held: Vec<PodKey> = Vec::new();
    for index in 0..count {
        let involved = Involved::pod(&PodKey::new("default", &format!("pod-{index}")), "");
        let fact = Fact::new(involved, false, "Started", "x".repeat(length));
        let mut changes = log.record(&node(), fact, Timestamp::UNIX_EPOCH, || {
            number += 1;
            number
        });
        let first = changes.remove(0);
        held.push(first.new.unwrap().key().clone());
        for change in changes {
            assert!(change.new.is_none());
            assert_eq!(change.old.unwrap().key(), &held[gone], "the oldest goes first");
            gone += 1;
        }
        let size: usize = log.held().values().map(Journaled::size).sum();
        assert!(log.held().len() <= MAX_EVENTS && size <= MAX_BYTES);
    }
    gone
}

#[test]
fn the_oldest_events_go_when_there_are_too_many_or_they_are_too_large() {
    let mut log = EventLog::default();
    assert_eq!(fill(&mut log, MAX_EVENTS + 10, 10), 10);
    let mut log = EventLog::default();
    let gone = fill(&mut log, MAX_EVENTS, 5000);
    assert!(gone > 200, "{gone} events are gone");
    let largest = log.held().values().map(Journaled::size).max().unwrap();
    assert!(largest < 2000, "messages are cut, but an event has {largest} bytes");
}

#[test]
fn an_event_that_is_gone_comes_again_with_its_count() {
    let mut log = EventLog::default();
    fill(&mut log, MAX_EVENTS + 1, 10);
    let involved = Involved::pod(&PodKey::new("default", "pod-0"), "");
    let fact = Fact::new(involved, false, "Started", "x".repeat(10));
    let mut number = 1_000_000;
    let changes = log.record(&node(), fact, Timestamp::UNIX_EPOCH + SignedDuration::from_secs(5), || {
        number += 1;
        number
    });
    let (first, second) = (&changes[0], &changes[1]);
    assert!(first.old.is_none() && second.new.is_none(), "it is added, and the oldest goes for it");
    let event: Value = serde_json::from_str(&first.new.as_ref().unwrap().to_json()).unwrap();
    assert_eq!((&event["count"], &event["metadata"]["name"]), (&json!(2), &json!("pod-0.1")));
}

/// Watches all events from the beginning.
async fn watch(server: &TestServer, query: &str) -> Reader {
    let answer = server.open(&format!("GET /api/v1/events?watch=1&{query}"), &[], "").await;
    assert_eq!(answer.status(), 200);
    Reader::of(answer.into_body())
}

fn line(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let involved = &event["involvedObject"];
    let path = involved["fieldPath"].as_str().map(|path| format!(" {path}")).unwrap_or_default();
    format!(
        "{} {} {}/{}{path}: {}",
        text(&event["type"]),
        text(&event["reason"]),
        text(&involved["kind"]).to_lowercase(),
        text(&involved["name"]),
        text(&event["message"]),
    )
}

/// The next events of a watch as lines.
async fn lines(reader: &mut Reader, count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        let event = reader.next().await.unwrap();
        writeln!(text, "{} {}", event["type"].as_str().unwrap(), line(&event["object"])).unwrap();
    }
    text
}

fn prepared(name: &str) -> Prepared {
    let mut pod: Value = serde_json::from_str(&manifest(name)).unwrap();
    pod["metadata"]["uid"] = json!(format!("uid-{name}"));
    Prepared::from_value(pod).unwrap()
}

#[tokio::test]
async fn rejections_conflicts_restored_pods_and_failing_sources_are_events() {
    let server = TestServer::with(with_api()).await;
    let mut reader = watch(&server, "").await;
    let unreadable = |why: &str| RejectionReason::Unreadable(why.into());

    server.file_rejects("bad.yaml", unreadable("permission denied")).await;
    expect![[r#"
        ADDED Warning Unreadable node/node1: rejected bad.yaml of source file: permission denied
    "#]]
    .assert_eq(&lines(&mut reader, 1).await);
    // The pod of the file stays, and shows why it does not change.
    server.file_pod("web.yaml", prepared("web")).await;
    server.file_rejects("web.yaml", unreadable("no")).await;
    expect![[r#"
        ADDED Warning Unreadable pod/web: rejected web.yaml of source file: no
    "#]]
    .assert_eq(&lines(&mut reader, 1).await);
    // Of a file with several pods no pod is meant.
    server
        .file(|file| {
            file.put(&Origin::from("two.yaml"), vec![prepared("x"), prepared("y")], Timestamp::UNIX_EPOCH)
        })
        .await;
    server.file_rejects("two.yaml", unreadable("no")).await;
    expect![[r#"
        ADDED Warning Unreadable node/node1: rejected two.yaml of source file: no
    "#]]
    .assert_eq(&lines(&mut reader, 1).await);
    // The event is found with the pod that owns the name.
    assert_eq!(server.ask("POST /pods", &[], manifest("late")).await.code, 201);
    server.file_pod("late.yaml", prepared("late")).await;
    let conflict = reader.next().await.unwrap();
    expect!["Warning Conflict pod/late: rejected default/late of source http: a pod of source file has the same name; rename one of them"]
        .assert_eq(&line(&conflict["object"]));
    let late = server.get("/api/v1/namespaces/default/pods/late").await.json();
    assert_eq!(conflict["object"]["involvedObject"]["uid"], late["metadata"]["uid"]);
    // It is rejected again after it was not: the count rises.
    server.file(|file| file.remove(&Origin::from("late.yaml"))).await;
    server.file_pod("late.yaml", prepared("late")).await;
    let again = reader.next().await.unwrap();
    assert_eq!((&again["type"], &again["object"]["count"]), (&json!("MODIFIED"), &json!(2)));
    assert_eq!(again["object"]["metadata"]["name"], conflict["object"]["metadata"]["name"]);

    let bound = Origin::from("default/k");
    server.api_restored(|api| api.put(&bound, vec![prepared("k")], Timestamp::UNIX_EPOCH)).await;
    expect![[r#"
        ADDED Normal Restored pod/k: restored from the state directory: source api has not synced
    "#]]
    .assert_eq(&lines(&mut reader, 1).await);
    // The name of a bound pod is known, although it cannot be decoded.
    server.api(|api| api.reject(&Origin::from("default/broken"), unreadable("no pod"))).await;
    expect![[r#"
        ADDED Warning Unreadable pod/broken: rejected default/broken of source api: no pod
    "#]]
    .assert_eq(&lines(&mut reader, 1).await);

    let since = podmux::host::Moment::at(Timestamp::UNIX_EPOCH);
    let failing =
        |attempts, error: &str| SourceFailing { since, attempts, error: error.into(), quotes: false };
    let steps = [
        (Some(failing(1, "gone")), 1),
        (Some(failing(2, "gone")), 0),
        (Some(failing(3, "denied")), 1),
        (None, 1),
    ];
    for (failing, count) in steps {
        server.file_status.send_modify(|status| status.failing = failing);
        lines(&mut reader, count).await;
    }
    let list =
        server.get("/api/v1/events?fieldSelector=involvedObject.kind=Node,reason!=Unreadable").await.json();
    let all: Vec<String> = list["items"].as_array().unwrap().iter().map(line).collect();
    expect![[r#"
        Warning SourceFailing node/node1: source file is failing: gone
        Warning SourceFailing node/node1: source file is failing: denied
        Normal SourceRecovered node/node1: source file recovered"#]]
    .assert_eq(&all.join("\n"));
}

#[test]
fn of_many_restored_pods_as_many_are_told_as_events_are_held() {
    let mut storage = PodStorage::new(&[SourceName::File]);
    let published = |storage: &PodStorage| Published {
        merged: storage.merged().clone(),
        failing: Vec::new(),
        observed: Observed::default(),
        workers: OrdMap::default(),
    };
    let before = published(&storage);
    let mut file = ListingBuilder::new(SourceName::File);
    let pods = (0..2 * MAX_EVENTS).map(|number| prepared(&format!("p{number}"))).collect();
    file.put(&Origin::from("many.yaml"), pods, Timestamp::UNIX_EPOCH);
    drop(storage.apply(&file.restored_listing()));
    let facts = facts(&node(), Timestamp::UNIX_EPOCH, &before, &published(&storage));
    assert_eq!(facts.len(), MAX_EVENTS);
}

/// Observes a status of a pod.
fn observe(observed: &Sender<Observed>, name: &str, status: Value) {
    let key = PodKey::new("default", name);
    let pod = ObservedPod { uid: format!("uid-{name}").as_str().into(), status: status.into() };
    observed.send_modify(|all| drop(all.insert(key, pod)));
}

fn with_container(state: &Value, more: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "i:1", "ready": false, "state": state});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"phase": "Pending", "containerStatuses": [container]})
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": message}})
}

fn running(at: &str) -> Value {
    json!({"running": {"startedAt": at}})
}

#[tokio::test]
async fn what_is_observed_of_containers_is_events_as_of_a_kubelet() {
    let observed = Sender::new(Observed::default());
    let server = TestServer::with(Setup { observed: Some(observed.subscribe()), ..Setup::default() }).await;
    let mut reader = watch(&server, "").await;
    let killed = |id: &str, message: &str| {
        let last = json!({"terminated": {"containerID": id, "message": message}});
        json!({"containerID": format!("{id}0"), "lastState": last})
    };
    let steps = [
        (waiting("ContainerCreating", "pulling image \"i:1\""), json!({}), 1),
        (waiting("ContainerCreating", "pulling image \"i:1\": copying layer 1"), json!({}), 0),
        (waiting("ErrImagePull", "no such image"), json!({}), 1),
        (waiting("ImagePullBackOff", "Back-off pulling image: no such image"), json!({}), 1),
        (waiting("ContainerCreating", "pulling image \"i:1\""), json!({}), 1),
        (running("2999-01-01T00:00:00Z"), json!({"containerID": "x://1", "ready": true}), 3),
        (running("2999-01-01T00:00:00Z"), json!({"containerID": "x://1", "ready": false}), 1),
        (waiting("CrashLoopBackOff", "back-off 10s"), json!({"containerID": "x://1"}), 1),
        (running("2999-01-01T00:01:00Z"), json!({"containerID": "x://2"}), 2),
        (running("2999-01-01T00:02:00Z"), killed("x://2", "stopped: Liveness probe failed: exit code 1"), 3),
        (running("2999-01-01T00:03:00Z"), killed("x://3", "stopped: by its user"), 2),
        (waiting("CreateContainerConfigError", "no user"), json!({"containerID": "x://30"}), 1),
    ];
    let mut text = String::new();
    for (state, more, count) in steps {
        observe(&observed, "a", with_container(&state, &more));
        text += &lines(&mut reader, count).await;
    }
    let rejected =
        json!({"phase": "Failed", "reason": "WaitingForSource", "message": "source api has not synced"});
    observe(&observed, "a", rejected);
    text += &lines(&mut reader, 1).await;
    expect![[r#"
        ADDED Normal Pulling pod/a spec.containers{c}: Pulling image "i:1"
        ADDED Warning Failed pod/a spec.containers{c}: Failed to pull image "i:1": no such image
        ADDED Normal BackOff pod/a spec.containers{c}: Back-off pulling image "i:1"
        MODIFIED Normal Pulling pod/a spec.containers{c}: Pulling image "i:1"
        ADDED Normal Pulled pod/a spec.containers{c}: Successfully pulled image "i:1"
        ADDED Normal Created pod/a spec.containers{c}: Container created
        ADDED Normal Started pod/a spec.containers{c}: Container started
        ADDED Warning Unhealthy pod/a spec.containers{c}: Readiness probe failed
        ADDED Warning BackOff pod/a spec.containers{c}: Back-off restarting failed container c in pod a_default(uid-a)
        MODIFIED Normal Created pod/a spec.containers{c}: Container created
        MODIFIED Normal Started pod/a spec.containers{c}: Container started
        MODIFIED Normal Created pod/a spec.containers{c}: Container created
        MODIFIED Normal Started pod/a spec.containers{c}: Container started
        ADDED Warning Unhealthy pod/a spec.containers{c}: Liveness probe failed: exit code 1
        MODIFIED Normal Created pod/a spec.containers{c}: Container created
        MODIFIED Normal Started pod/a spec.containers{c}: Container started
        ADDED Warning Failed pod/a spec.containers{c}: Error: no user
        ADDED Warning WaitingForSource pod/a: source api has not synced
    "#]].assert_eq(&text);
}

/// Whether it runs, has ended or waits to be restarted, and also if the runtime had not looked at it at first, as that of
/// `c`, `c0` and `c1`.
#[tokio::test]
async fn what_ran_before_the_agent_began_is_no_event() {
    let observed = Sender::new(Observed::default());
    let server = TestServer::with(Setup { observed: Some(observed.subscribe()), ..Setup::default() }).await;
    let mut reader = watch(&server, "").await;
    let id = |number: u8| json!({"containerID": format!("x://{number}")});
    let ended = json!({"terminated": {"startedAt": "2001-01-01T00:00:00Z", "containerID": "x://0"}});
    for name in ["c", "c0", "c1"] {
        observe(&observed, name, with_container(&waiting("PodInitializing", ""), &json!({})));
    }
    observe(&observed, "d", with_container(&waiting("CrashLoopBackOff", ""), &json!({})));
    let mut text = lines(&mut reader, 1).await;
    for name in ["b", "c"] {
        let back_off = json!({"containerID": "x://0", "lastState": ended});
        observe(&observed, name, with_container(&waiting("CrashLoopBackOff", ""), &back_off));
        let old = running("2001-01-01T00:00:00Z");
        observe(&observed, &format!("{name}0"), with_container(&old, &id(0)));
        observe(&observed, &format!("{name}1"), with_container(&ended, &id(0)));
    }
    text += &lines(&mut reader, 2).await;
    for name in ["b", "c"] {
        observe(&observed, name, with_container(&running("2999-01-01T00:00:00Z"), &id(1)));
    }
    text += &lines(&mut reader, 4).await;
    expect![[r#"
        ADDED Warning BackOff pod/d spec.containers{c}: Back-off restarting failed container c in pod d_default(uid-d)
        ADDED Warning BackOff pod/b spec.containers{c}: Back-off restarting failed container c in pod b_default(uid-b)
        ADDED Warning BackOff pod/c spec.containers{c}: Back-off restarting failed container c in pod c_default(uid-c)
        ADDED Normal Created pod/b spec.containers{c}: Container created
        ADDED Normal Started pod/b spec.containers{c}: Container started
        ADDED Normal Created pod/c spec.containers{c}: Container created
        ADDED Normal Started pod/c spec.containers{c}: Container started
    "#]].assert_eq(&text);
}

/// A client that continues a watch after it misses nothing, and sees nothing again.
#[tokio::test]
async fn an_event_that_goes_has_the_version_of_its_end() {
    let server = TestServer::start().await;
    let rejects = async |name: &str| {
        let (file, reason) = (format!("{name}.yaml"), RejectionReason::Unreadable("no".into()));
        server.file_pod(&file, prepared(name)).await;
        server.file_rejects(&file, reason).await;
    };
    for number in 0..MAX_EVENTS {
        rejects(&format!("pod-{number}")).await;
    }
    let list = loop {
        let list = server.get(EVENTS).await.json();
        if list["items"].as_array().unwrap().len() == MAX_EVENTS {
            break list;
        }
    };
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = watch(&server, &format!("resourceVersion={version}")).await;
    rejects("last").await;
    let told = [events.next().await.unwrap(), events.next().await.unwrap()];
    assert_eq!([&told[0]["type"], &told[1]["type"]], ["ADDED", "DELETED"]);
    let number = |event: &Value| {
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
    };
    assert!(number(&told[1]) > number(&told[0]), "{told:?}");
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history of events, with their texts")]
async fn events_are_listed_read_and_watched_as_at_an_api_server() {
    let server = TestServer::start().await;
    let mut all = watch(&server, "").await;
    for name in ["a", "b", "c"] {
        server.file_pod(&format!("{name}.yaml"), prepared(name)).await;
        server.file_rejects(&format!("{name}.yaml"), RejectionReason::Unreadable("no".into())).await;
        all.next().await.unwrap();
    }
    server.file_rejects("d.yaml", RejectionReason::Unreadable("no".into())).await;
    all.next().await.unwrap();
    let list = server.get(EVENTS).await.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("v1")));
    assert_eq!(list["items"].as_array().unwrap().len(), 4);
    let one = &list["items"][0];
    let name = one["metadata"]["name"].as_str().unwrap();
    let mut read = server.get(&format!("{EVENTS}/{name}")).await.json();
    assert_eq!(&read, one);
    for changing in ["firstTimestamp", "lastTimestamp"] {
        assert!(read[changing].take().as_str().unwrap().ends_with('Z'));
    }
    for changing in ["name", "uid", "resourceVersion", "creationTimestamp"] {
        read["metadata"][changing].take();
    }
    expect![[r#"
        {
          "apiVersion": "v1",
          "count": 1,
          "eventTime": null,
          "firstTimestamp": null,
          "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "a",
            "namespace": "default",
            "uid": "uid-a"
          },
          "kind": "Event",
          "lastTimestamp": null,
          "message": "rejected a.yaml of source file: no",
          "metadata": {
            "creationTimestamp": null,
            "name": null,
            "namespace": "default",
            "resourceVersion": null,
            "uid": null
          },
          "reason": "Unreadable",
          "reportingComponent": "podmux",
          "reportingInstance": "node1",
          "source": {
            "component": "podmux",
            "host": "node1"
          },
          "type": "Warning"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&read).unwrap());

    let count = async |query: &str| {
        let list = server.get(&format!("/api/v1/events?{query}")).await.json();
        list["items"].as_array().unwrap_or_else(|| panic!("{list}")).len()
    };
    let uid = one["involvedObject"]["uid"].as_str().unwrap();
    for (selector, expected) in [
        ("involvedObject.name=a".to_owned(), 1),
        ("involvedObject.name!=a".to_owned(), 3),
        (format!("involvedObject.uid={uid},involvedObject.kind=Pod"), 1),
        ("involvedObject.kind=Node,involvedObject.namespace=".to_owned(), 1),
        ("involvedObject.apiVersion=v1,involvedObject.fieldPath=".to_owned(), 4),
        ("reason=Unreadable,type=Warning,source=podmux,reportingComponent=podmux".to_owned(), 4),
        ("type=Normal".to_owned(), 0),
        (format!("metadata.name={name},metadata.namespace=default"), 1),
    ] {
        assert_eq!(count(&format!("fieldSelector={selector}")).await, expected, "{selector}");
    }
    assert_eq!((count("labelSelector=a").await, count("labelSelector=!a").await), (0, 4));
    assert_eq!(server.get("/api/v1/namespaces/none/events").await.json()["items"], json!([]));
    let mut pages = Vec::new();
    let mut next = String::new();
    while pages.is_empty() || !next.is_empty() {
        let page = server.get(&format!("{EVENTS}?limit=3&continue={next}")).await.json();
        pages.push(page["items"].as_array().unwrap().len());
        next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    }
    assert_eq!(pages, [3, 1]);
    for (path, code) in [
        (format!("{EVENTS}/none"), 404),
        (format!("{EVENTS}?fieldSelector=spec.nodeName=x"), 400),
        (format!("{EVENTS}?resourceVersion=99999999999999999"), 504),
        (format!("{EVENTS}/{name}?resourceVersion=99999999999999999"), 504),
    ] {
        assert_eq!(server.get(&path).await.code, code, "{path}");
    }
    assert_eq!(server.ask(&format!("DELETE {EVENTS}/{name}"), &[], "").await.code, 405);

    // A watch continues after a list, or after an event.
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut after_list =
        watch(&server, &format!("resourceVersion={version}&fieldSelector=involvedObject.name=z")).await;
    let mut after_first =
        watch(&server, &format!("resourceVersion={}", one["metadata"]["resourceVersion"].as_str().unwrap()))
            .await;
    server.file_pod("z.yaml", prepared("z")).await;
    server.file_rejects("z.yaml", RejectionReason::Unreadable("no".into())).await;
    assert_eq!(
        line(&after_list.next().await.unwrap()["object"]),
        "Warning Unreadable pod/z: rejected z.yaml of source file: no"
    );
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(after_first.next().await.unwrap()["object"]["involvedObject"]["name"].clone());
    }
    assert_eq!(names, ["b", "c", "node1", "z"]);
    let marked =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let mut marked = watch(&server, &format!("{marked}&fieldSelector=involvedObject.name=z")).await;
    assert_eq!(marked.next().await.unwrap()["type"], "ADDED");
    let mut bookmark = marked.next().await.unwrap();
    let version = bookmark["object"]["metadata"]["resourceVersion"].take();
    assert_eq!(version, server.get(EVENTS).await.json()["metadata"]["resourceVersion"]);
    expect![[r#"{"object":{"apiVersion":"v1","eventTime":null,"firstTimestamp":null,"involvedObject":{},"kind":"Event","lastTimestamp":null,"metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":null},"reportingComponent":"","reportingInstance":"","source":{}},"type":"BOOKMARK"}"#]].assert_eq(&bookmark.to_string());
}
