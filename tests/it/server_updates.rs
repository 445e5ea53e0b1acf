//! `GET /updates`: the stream as lines and as events, resumed, and begun again for clients that are too slow.

use std::{collections::BTreeMap, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use podmux::{
    history::Bounds,
    pod::{Origin, PodKey, Prepared},
    server::{KEEP_ALIVE, MAX_WATCHERS},
};
use serde_json::{Value, json};

use crate::support::{
    files::soon,
    script::pod,
    server::{Setup, TestServer, manifest, with_api, with_idle_runtime},
    state::Dice,
    stream::Replica,
};

/// What a stream begins with if no source has pods.
const NO_PODS: [&str; 4] = ["SET file", "SET http", "SET url", "SET api"];

/// A reader of a stream.
struct Reader {
    body: Body,
    read: Vec<u8>,
    /// The number of the last line or event.
    seq: u64,
}

impl Reader {
    fn of(body: impl hyper::body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static) -> Self {
        Self { body: Body::new(body), read: Vec::new(), seq: 0 }
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
        self.rises(serde_json::from_str(&line).unwrap())
    }

    fn rises(&mut self, line: Value) -> Value {
        let seq = line["seq"].as_u64().unwrap();
        assert!(seq > self.seq, "{seq} after {}", self.seq);
        self.seq = seq;
        line
    }

    async fn event(&mut self) -> String {
        self.next(b"\n\n").await.expect("the stream continues")
    }

    /// The line of the next event, whose id and type are those of the line.
    async fn data(&mut self) -> Value {
        let event = self.event().await;
        let [id, op, data] = event.trim_end().splitn(3, '\n').collect::<Vec<_>>()[..] else {
            panic!("{event:.200}")
        };
        let line: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(id, format!("id: run-{}", line["seq"]));
        assert_eq!(op, format!("event: {}", text(&line["op"])));
        self.rises(line)
    }

    /// `OP source name…` of the next line.
    async fn brief(&mut self) -> String {
        brief(&self.line().await)
    }

    /// The same of the next lines.
    async fn briefs<const COUNT: usize>(&mut self) -> [String; COUNT] {
        let mut briefs = [const { String::new() }; COUNT];
        for brief in &mut briefs {
            *brief = self.brief().await;
        }
        briefs
    }
}

fn brief(line: &Value) -> String {
    let mut brief = format!("{} {}", text(&line["op"]), text(&line["source"]));
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
async fn without_a_number_the_stream_begins_with_a_set_of_each_source() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("a")).await;
    let mut reader = Reader::open(&server, "", &[]).await;
    assert_eq!(reader.briefs().await, ["SET file", "SET http a", "SET url", "SET api"]);
    server.ask("POST /pods", &[], manifest("b")).await;
    assert_eq!(reader.brief().await, "ADD http b");
    server.ask("DELETE /api/v1/namespaces/default/pods/a", &[], "").await;
    assert_eq!(reader.brief().await, "DELETE http a");
    server.file_pod("c.yaml", pod("c")).await;
    assert_eq!(reader.brief().await, "ADD file c");
    server.end_sources().await;
    assert_eq!(reader.next(b"\n").await, None, "the stream ends with the agent");
}

#[tokio::test]
async fn a_source_begins_when_it_has_synced_and_not_before() {
    let server = TestServer::with(Setup { file_synced: false, ..with_api() }).await;
    server
        .api_restored(|api| api.put(&Origin::from("default/web"), vec![pod("web")], Timestamp::UNIX_EPOCH))
        .await;
    server.ask("POST /pods", &[], manifest("a")).await;
    let mut reader = Reader::open(&server, "", &[]).await;
    // The pods of a restored source are only added: what else the source has is not known.
    assert_eq!(reader.briefs().await, ["SET http a", "SET url", "ADD api web"]);
    server.file_pod("b.yaml", pod("b")).await;
    assert_eq!(reader.brief().await, "SET file b");
    server.api(|api| api.remove(&Origin::from("default/web"))).await;
    assert_eq!(reader.brief().await, "SET api", "without the restored pod");
    server.file(|file| file.remove(&Origin::from("b.yaml"))).await;
    assert_eq!(reader.brief().await, "REMOVE file b");
}

#[tokio::test]
async fn the_header_and_the_first_line_name_the_run() {
    let server = TestServer::start().await;
    let first = Reader::open(&server, "", &[]).await.line().await["seq"].clone();
    for (query, headers) in [("", &[][..]), ("", &[EVENTS]), (&*format!("?from={first}"), &[])] {
        server.ask("POST /pods", &[], manifest("a")).await;
        server.ask("DELETE /api/v1/namespaces/default/pods/a?gracePeriodSeconds=0", &[], "").await;
        let answer = server.open(&format!("GET /updates{query}"), headers, "").await;
        assert_eq!(answer.headers()["podmux-run"], "run");
        let mut reader = Reader::of(answer.into_body());
        for run in [Some("run"), None] {
            let line = if headers.is_empty() { reader.line().await } else { reader.data().await };
            assert_eq!(line["run"].as_str(), run);
        }
    }
}

#[tokio::test]
async fn from_a_number_the_stream_begins_with_the_missed_updates() {
    let server = TestServer::start().await;
    let mut live = Reader::open(&server, "", &[]).await;
    assert_eq!(live.briefs().await, NO_PODS);
    let mut added = Vec::new();
    for name in ["a", "b", "c"] {
        server.ask("POST /pods", &[], manifest(name)).await;
        assert_eq!(live.brief().await, format!("ADD http {name}"));
        added.push(live.seq);
    }
    let list = server.get("/pods").await.json();
    let version = number(&list["metadata"]["resourceVersion"]);
    assert_eq!(version, added[2]);
    let mut after = Reader::open(&server, &format!("?from={}", version + 1), &[]).await;
    let mut missed = Vec::new();
    // The number of an update, or the one after the last update that the client has.
    for from in [added[1].to_string(), (added[0] + 1).to_string(), format!("run-{}", added[1])] {
        let mut reader = Reader::open(&server, &format!("?from={from}"), &[]).await;
        assert_eq!(reader.briefs().await, ["ADD http b", "ADD http c"]);
        assert_eq!(reader.seq, added[2]);
        missed.push(reader);
    }
    server.ask("POST /pods", &[], manifest("d")).await;
    for reader in missed.iter_mut().chain([&mut after]) {
        assert_eq!(reader.brief().await, "ADD http d");
    }
}

#[tokio::test]
async fn replaying_the_lines_gives_the_merged_pods() {
    let server = TestServer::with(with_idle_runtime()).await;
    let mut reader = Reader::open(&server, "", &[]).await;
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
    let server = TestServer::with(with_idle_runtime()).await;
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
    reader.seq = version.unwrap();
    while reader.seq < last {
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
    for set in ["SET file", "SET http a", "SET url", "SET api"] {
        assert_eq!(brief(&reader.data().await), set);
    }
    let last = reader.seq;
    drop(reader);
    for name in ["b", "c"] {
        server.ask("POST /pods", &[], manifest(name)).await;
    }
    // Last-Event-ID wins over the query. Older clients send the number alone.
    for id in [format!("run-{last}"), last.to_string()] {
        let mut reader = Reader::open(&server, "?from=1", &[EVENTS, ("last-event-id", &id)]).await;
        assert_eq!(brief(&reader.data().await), "ADD http b");
        assert_eq!(brief(&reader.data().await), "ADD http c");
    }
}

#[tokio::test]
async fn an_event_stream_that_cannot_be_continued_begins_with_sets_and_lines_get_a_410() {
    let bounds = Bounds { updates: 2, ..Bounds::default() };
    let server = TestServer::with(Setup { bounds, ..Setup::default() }).await;
    let mut reader = Reader::open(&server, "", &[EVENTS]).await;
    for set in NO_PODS {
        assert_eq!(brief(&reader.data().await), set);
    }
    let last = reader.seq;
    for name in ["a", "b", "c"] {
        server.ask("POST /pods", &[], manifest(name)).await;
        assert_eq!(brief(&reader.data().await), format!("ADD http {name}"));
    }
    let mut middle = Reader::open(&server, "", &[EVENTS]).await;
    assert_eq!(brief(&middle.data().await), "SET file");
    assert_eq!(brief(&middle.data().await), "SET http a b c");
    let cannot_continue = [
        (format!("other-{}", reader.seq), "of another run"),
        (format!("run-{last}"), "no longer held"),
        (format!("run-{}", middle.seq), "in the middle of a beginning"),
        (format!("run-{}", reader.seq + 1000), "of the future"),
        ("9".repeat(30), "no number at all"),
    ];
    for (id, why) in &cannot_continue[..4] {
        let mut reader = Reader::open(&server, "", &[EVENTS, ("last-event-id", id)]).await;
        let line = reader.data().await;
        assert_eq!((&*brief(&line), &line["run"]), ("SET file", &json!("run")), "{why}");
        assert_eq!(brief(&reader.data().await), "SET http a b c", "{why}");
        let (run, seq) = id.split_once('-').unwrap();
        let from = format!("{run}-{}", seq.parse::<u64>().unwrap() + 1);
        let reply = server.get(&format!("/updates?from={from}")).await;
        assert_eq!((reply.code, &reply.json()["reason"]), (410, &json!("Expired")), "{why}");
    }
    let (id, _) = &cannot_continue[4];
    assert_eq!(server.ask("GET /updates", &[EVENTS, ("last-event-id", id)], "").await.code, 400);
    // An event stream may also begin where a number says.
    let from = format!("?from=run-{}", reader.seq);
    assert_eq!(brief(&Reader::open(&server, &from, &[EVENTS]).await.data().await), "ADD http c");
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_has_keep_alive_comments_and_lines_have_none() {
    let server = TestServer::start().await;
    let next = soon(server.history.snapshot()).await.unwrap().seq + 1;
    let open = async |headers: &[(&str, &str)]| {
        let line = format!("GET /updates?from={next}");
        Reader::of(server.open_inside(&line, headers, "").await.into_body())
    };
    let (mut events, mut lines) = (open(&[EVENTS]).await, open(&[]).await);
    for _ in 0..3 {
        let begin = tokio::time::Instant::now();
        assert_eq!(events.event().await, ": nothing new\n\n");
        assert!(begin.elapsed() <= KEEP_ALIVE + Duration::from_secs(1));
    }
    server.file_pod("a.yaml", pod("a")).await;
    assert_eq!(brief(&events.data().await), "ADD file a");
    assert_eq!(lines.brief().await, "ADD file a", "without anything before it");
}

/// The nth state of a pod of this size in bytes.
fn large(n: usize, bytes: usize) -> Prepared {
    let mut pod = pod(&format!("a=i:{n}"));
    pod.set_metadata("annotations", Some(json!({"long": "x".repeat(bytes)})));
    pod
}

#[tokio::test]
async fn a_client_that_is_too_slow_gets_sets_again_and_delays_no_other() {
    let bounds = Bounds { updates: 8, ..Bounds::default() };
    let server = TestServer::with(Setup { bounds, ..Setup::default() }).await;
    server.ask("POST /pods", &[], manifest("b")).await;
    let mut slow = Reader::open(&server, "", &[]).await;
    let mut slow_events = Reader::open(&server, "", &[EVENTS]).await;
    let mut quick = Reader::open(&server, "", &[]).await;
    assert_eq!(quick.briefs().await, ["SET file", "SET http b", "SET url", "SET api"]);
    // 100 × 200 kB: more than the buffers of a connection, and more updates than the history.
    for n in 0..100 {
        server.file_pod("a.yaml", large(n, 200_000)).await;
        let op = if n == 0 { "ADD" } else { "UPDATE" };
        assert_eq!(quick.brief().await, format!("{op} file a"));
    }
    // A pod that goes away while they do not read has no REMOVE of its own.
    server.ask("DELETE /api/v1/namespaces/default/pods/b?gracePeriodSeconds=0", &[], "").await;
    assert_eq!(quick.brief().await, "REMOVE http b");
    let (mut lines, mut events) = (Vec::new(), Vec::new());
    while lines.iter().filter(|line| *line == "SET api").count() < 2 {
        lines.push(slow.brief().await);
    }
    while events.iter().filter(|line| *line == "SET api").count() < 2 {
        events.push(brief(&slow_events.data().await));
    }
    for read in [&lines, &events] {
        assert_eq!(read[..4], ["SET file", "SET http b", "SET url", "SET api"]);
        assert_eq!(read[read.len() - 4..], ["SET file a", "SET http", "SET url", "SET api"]);
        assert!(read.len() < 100 && !read.iter().any(|line| line == "REMOVE http b"), "{read:?}");
    }
    // They continue.
    server.ask("POST /pods", &[], manifest("c")).await;
    assert_eq!(slow.brief().await, "ADD http c");
    assert_eq!(brief(&slow_events.data().await), "ADD http c");
}

#[tokio::test]
async fn a_large_update_is_sent_in_chunks_and_a_large_pod_is_not_copied() {
    let server = TestServer::start().await;
    let mut pods: Vec<_> = (0..2000).map(|n| pod(&format!("p{n:04}"))).collect();
    pods.push(large(0, 1_000_000));
    server.file(|file| file.put(&Origin::from("all.yaml"), pods, Timestamp::UNIX_EPOCH)).await;
    let snapshot = soon(server.history.snapshot()).await.unwrap();
    let huge = snapshot.merged.get(&PodKey::new("default", "a")).unwrap().pod().text();
    for path in [&*format!("GET /updates?from={}", snapshot.seq), "GET /pods"] {
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
    assert_eq!(reader.briefs().await, NO_PODS);
    for n in 0..20 {
        server.file_pod("a.yaml", large(n, 20_000)).await;
        assert_eq!(reader.brief().await, if n == 0 { "ADD file a" } else { "UPDATE file a" });
    }
    let metrics = server.get("/metrics").await;
    let watchers: Vec<&str> =
        metrics.text().lines().filter(|line| line.starts_with("podmux_updates_watchers")).collect();
    assert_eq!(watchers, [format!("podmux_updates_watchers {MAX_WATCHERS}")]);
}
