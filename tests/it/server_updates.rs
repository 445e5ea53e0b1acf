//! `GET /updates`: the stream as lines and as events, resumed, and ended for clients that are too slow.

use std::{collections::BTreeMap, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use podmux::{
    history::Bounds,
    pod::{Origin, PodKey, Prepared},
    server::{KEEP_ALIVE, MAX_WATCHERS},
};
use serde_json::{Value, json};

use crate::support::{
    files::soon,
    script::pod,
    server::{Setup, TestServer, manifest},
    state::Dice,
    stream::Replica,
};

/// A reader of a stream.
struct Reader {
    body: Body,
    read: Vec<u8>,
}

impl Reader {
    fn of(body: impl hyper::body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static) -> Self {
        Self { body: Body::new(body), read: Vec::new() }
    }

    async fn open(server: &TestServer, query: &str, headers: &[(&str, &str)]) -> Self {
        let answer = server.open(&format!("GET /updates{query}"), headers, "").await;
        assert_eq!(answer.status(), 200);
        Self::of(answer.into_body())
    }

    /// The text up to the next separator; `None` at the end.
    async fn next(&mut self, separator: &[u8]) -> Option<String> {
        let mut searched = 0;
        loop {
            let mut windows = self.read[searched..].windows(separator.len());
            if let Some(at) = windows.position(|window| window == separator) {
                let text = self.read.drain(..searched + at + separator.len()).collect();
                return Some(String::from_utf8(text).unwrap());
            }
            searched = self.read.len().saturating_sub(separator.len() - 1);
            let frame = self.frame().await?;
            self.read.extend(frame);
        }
    }

    async fn frame(&mut self) -> Option<Bytes> {
        Some(soon(self.body.frame()).await?.unwrap().into_data().unwrap())
    }

    async fn line(&mut self) -> Value {
        let line = self.next(b"\n").await.expect("the stream continues");
        serde_json::from_str(&line).unwrap()
    }

    async fn event(&mut self) -> String {
        self.next(b"\n\n").await.expect("the stream continues")
    }

    /// `SEQ OP source name…` of the next line.
    async fn brief(&mut self) -> String {
        brief(&self.line().await)
    }
}

fn brief(line: &Value) -> String {
    let mut brief = format!("{} {} {}", line["seq"], text(&line["op"]), text(&line["source"]));
    for pod in line["pods"].as_array().unwrap() {
        brief.push(' ');
        brief.push_str(text(&pod["metadata"]["name"]));
    }
    brief
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[tokio::test]
async fn without_a_number_the_stream_begins_with_a_set_of_all_pods() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("a")).await;
    let mut reader = Reader::open(&server, "", &[]).await;
    assert_eq!(reader.brief().await, "3 SET * a");
    server.ask("POST /pods", &[], manifest("b")).await;
    assert_eq!(reader.brief().await, "4 ADD http b");
    server.ask("DELETE /api/v1/namespaces/default/pods/a", &[], "").await;
    assert_eq!(reader.brief().await, "5 DELETE http a");
    server.file_pod("c.yaml", pod("c")).await;
    assert_eq!(reader.brief().await, "6 ADD file c");
    server.end_sources().await;
    assert_eq!(reader.next(b"\n").await, None, "the stream ends with the agent");
}

#[tokio::test]
async fn from_a_number_the_stream_begins_with_the_missed_updates() {
    let server = TestServer::start().await;
    for name in ["a", "b", "c"] {
        server.ask("POST /pods", &[], manifest(name)).await;
    }
    let list = server.get("/pods").await.json();
    let version: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let mut missed = Reader::open(&server, "?from=4", &[]).await;
    assert_eq!(missed.brief().await, "4 ADD http b");
    assert_eq!(missed.brief().await, "5 ADD http c");
    let mut after = Reader::open(&server, &format!("?from={}", version + 1), &[]).await;
    server.ask("POST /pods", &[], manifest("d")).await;
    assert_eq!(missed.brief().await, "6 ADD http d");
    assert_eq!(after.brief().await, "6 ADD http d");
}

#[tokio::test]
async fn replaying_the_lines_gives_the_merged_pods() {
    let server = TestServer::start().await;
    let mut reader = Reader::open(&server, "?from=1", &[]).await;
    for n in 0..20 {
        server.ask("POST /pods", &[], [manifest(&format!("p{n}")), manifest("same")].join("\n---\n")).await;
        let path = format!("/api/v1/namespaces/default/pods/p{}?gracePeriodSeconds=0", n / 2);
        server.ask(&format!("DELETE {path}"), &[], "").await;
    }
    let list = server.get("/pods").await.json();
    let mut replica = Replica::default();
    while replica.seq.to_string() != list["metadata"]["resourceVersion"].as_str().unwrap() {
        replica.take_line(&reader.next(b"\n").await.unwrap());
    }
    let listed: Vec<String> = list["items"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(replica.pods.values().cloned().collect::<Vec<_>>(), listed);
    assert_eq!(listed.len(), 11);
}

/// Lists up to 15 pods in pages while they change, and then follows the updates.
async fn list_and_follow(dice: &mut Dice) {
    let server = TestServer::start().await;
    let write = async |dice: &mut Dice| {
        let name = format!("p{:02}", dice.roll(15));
        if dice.roll(3) == 0 {
            let path = format!("/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0");
            server.ask(&format!("DELETE {path}"), &[], "").await;
        } else {
            let pod = manifest(&name).replace("i:1", &format!("i:{}", dice.roll(3)));
            assert_eq!(server.ask("POST /pods", &[], pod).await.code / 100, 2);
        }
    };
    for _ in 0..12 {
        write(dice).await;
    }
    let (mut held, mut token, mut version) = (BTreeMap::new(), String::new(), None);
    loop {
        let page = server.get(&format!("/pods?limit={}&continue={token}", 1 + dice.roll(4))).await.json();
        version.get_or_insert(number(&page["metadata"]["resourceVersion"]));
        held.extend(page["items"].as_array().unwrap().iter().map(|pod| (key(pod), pod.clone())));
        page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut token);
        if token.is_empty() {
            break;
        }
        for _ in 0..dice.roll(4) {
            write(dice).await;
        }
    }
    let now = server.get("/pods").await.json();
    let last = number(&now["metadata"]["resourceVersion"]);
    let mut reader = Reader::open(&server, &format!("?from={}", version.unwrap() + 1), &[]).await;
    for _ in version.unwrap()..last {
        let line = reader.line().await;
        for pod in line["pods"].as_array().unwrap() {
            match text(&line["op"]) {
                "REMOVE" => drop(held.remove(&key(pod))),
                _ => drop(held.insert(key(pod), pod.clone())),
            }
        }
    }
    assert_eq!(&held.into_values().collect::<Value>(), &now["items"]);
}

fn key(pod: &Value) -> String {
    text(&pod["metadata"]["name"]).to_owned()
}

fn number(text: &Value) -> u64 {
    text.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_list_in_pages_and_the_updates_after_it_give_the_merged_pods() {
    for seed in 0..30 {
        list_and_follow(&mut Dice(seed)).await;
    }
}

const EVENTS: (&str, &str) = ("accept", "text/html, text/event-stream;q=0.9");

#[tokio::test]
async fn events_are_numbered_and_resume_after_the_last_event_id() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("a")).await;
    let answer = server.open("GET /updates", &[EVENTS], "").await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut reader = Reader::of(answer.into_body());
    let event = reader.event().await;
    let data = event.strip_prefix("id: 3\nevent: SET\ndata: ").unwrap_or_else(|| panic!("{event}"));
    assert_eq!(brief(&serde_json::from_str(data).unwrap()), "3 SET * a");
    drop(reader);
    for name in ["b", "c"] {
        server.ask("POST /pods", &[], manifest(name)).await;
    }
    // Last-Event-ID wins over the query.
    let mut reader = Reader::open(&server, "?from=1", &[EVENTS, ("last-event-id", "3")]).await;
    assert!(reader.event().await.starts_with("id: 4\nevent: ADD\ndata: {"));
    assert!(reader.event().await.starts_with("id: 5\nevent: ADD\ndata: {"));
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_has_keep_alive_comments_and_lines_have_none() {
    let server = TestServer::start().await;
    let open = async |headers: &[(&str, &str)]| {
        Reader::of(server.open_inside("GET /updates?from=3", headers, "").await.into_body())
    };
    let (mut events, mut lines) = (open(&[EVENTS]).await, open(&[]).await);
    for _ in 0..3 {
        let begin = tokio::time::Instant::now();
        assert_eq!(events.event().await, ": nothing new\n\n");
        assert!(begin.elapsed() <= KEEP_ALIVE + Duration::from_secs(1));
    }
    server.file_pod("a.yaml", pod("a")).await;
    assert!(events.event().await.starts_with("id: 3\nevent: ADD\n"));
    assert_eq!(lines.brief().await, "3 ADD file a", "without anything before it");
}

/// The nth state of a pod of this size in bytes.
fn large(n: usize, bytes: usize) -> Prepared {
    let mut pod = pod(&format!("a=i:{n}"));
    pod.set_metadata("annotations", Some(json!({"long": "x".repeat(bytes)})));
    pod
}

#[tokio::test]
async fn a_client_that_is_too_slow_gets_a_410_and_delays_no_other() {
    let bounds = Bounds { updates: 8, ..Bounds::default() };
    let server = TestServer::with(Setup { bounds, ..Setup::default() }).await;
    let mut slow = Reader::open(&server, "", &[]).await;
    let mut slow_events = Reader::open(&server, "", &[EVENTS]).await;
    let mut quick = Reader::open(&server, "", &[]).await;
    assert_eq!(quick.brief().await, "2 SET *");
    // 100 × 200 kB: more than the buffers of a connection, and more updates than the history.
    for n in 0..100 {
        server.file_pod("a.yaml", large(n, 200_000)).await;
        let op = if n == 0 { "ADD" } else { "UPDATE" };
        assert_eq!(quick.brief().await, format!("{} {op} file a", n + 3));
    }
    let mut last = slow.line().await;
    while last["kind"] != "Status" {
        last = slow.line().await;
    }
    assert_eq!((&last["code"], &last["reason"]), (&410.into(), &"Expired".into()));
    assert_eq!(slow.next(b"\n").await, None, "the stream has ended");
    let mut event = slow_events.event().await;
    while !event.starts_with("event: error\ndata: {\"kind\":\"Status\"") {
        assert!(event.starts_with("id: "), "{event:.100}");
        event = slow_events.event().await;
    }
    assert_eq!(slow_events.next(b"\n").await, None, "the stream has ended");
    // The client can start again.
    assert_eq!(Reader::open(&server, "", &[]).await.brief().await, "102 SET * a");
}

#[tokio::test]
async fn a_large_update_is_sent_in_chunks_and_a_large_pod_is_not_copied() {
    let server = TestServer::start().await;
    let mut pods: Vec<_> = (0..2000).map(|n| pod(&format!("p{n:04}"))).collect();
    pods.push(large(0, 1_000_000));
    server.file(|file| file.put(&Origin::from("all.yaml"), pods, jiff::Timestamp::UNIX_EPOCH)).await;
    let snapshot = soon(server.history.snapshot()).await.unwrap();
    let huge = snapshot.merged.get(&PodKey::new("default", "a")).unwrap().pod().text();
    for path in ["GET /updates?from=3", "GET /pods"] {
        let (mut body, mut text, mut uncopied) =
            (server.open_inside(path, &[], "").await.into_body(), Vec::new(), 0);
        while !text.ends_with(b"]}\n") {
            let frame = soon(body.frame()).await.unwrap().unwrap().into_data().unwrap();
            assert!(frame.len() <= 16 * 1024 || frame.as_ptr() == huge.as_ptr(), "{}", frame.len());
            uncopied += u32::from(frame.as_ptr() == huge.as_ptr());
            text.extend(frame);
        }
        assert_eq!(uncopied, 1);
        let object: Value = serde_json::from_slice(&text).unwrap();
        let pods = object.get("pods").or(object.get("items")).unwrap();
        assert_eq!(pods.as_array().unwrap().len(), 2001);
    }
}

#[tokio::test]
async fn watchers_that_never_read_delay_no_other() {
    let server = TestServer::start().await;
    let mut idle = Vec::new();
    for _ in 0..MAX_WATCHERS - 1 {
        idle.push(server.open("GET /updates", &[], "").await);
    }
    let mut reader = Reader::open(&server, "", &[]).await;
    assert_eq!(reader.brief().await, "2 SET *");
    for n in 0..20 {
        server.file_pod("a.yaml", large(n, 20_000)).await;
        assert!(reader.brief().await.starts_with(&format!("{} ", n + 3)));
    }
    let metrics = server.get("/metrics").await;
    let watchers: Vec<&str> =
        metrics.text().lines().filter(|line| line.starts_with("podmux_updates_watchers")).collect();
    assert_eq!(watchers, [format!("podmux_updates_watchers {MAX_WATCHERS}")]);
}
