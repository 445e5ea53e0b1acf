//! The whole agent: the real binary with its socket, its state and its stream.

use std::{collections::BTreeSet, fs, io::Read as _, path::PathBuf};

use jiff::{SignedDuration, Timestamp};
use podmux::{db::Table, pod::SEEN};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    plain::Connection,
    process::{Process, full_pipe, podmux, wait_for},
    state::State,
    stream::{Replica, own_status},
};

/// The manifests, state and socket of an agent.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("manifests")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, more: &[&str]) -> std::process::Command {
        let path = |name: &str| self.path(name).display().to_string();
        let (manifests, state, socket) = (path("manifests"), path("state"), format!("unix:{}", path("s")));
        let mut args = vec!["run", "--node-name", "node1", "--pod-manifest-path", &manifests];
        args.extend(["--state-dir", &state, "--listen", &socket]);
        args.extend(more);
        podmux(&args)
    }

    /// A running agent that is ready.
    fn start(&self) -> (Process, Connection) {
        let agent = Process::start(&mut self.command(&[]));
        let connection = self.connect();
        (agent, connection)
    }

    fn connect(&self) -> Connection {
        wait_for(|| {
            let mut connection = Connection::unix(&self.path("s")).ok()?;
            (connection.ask("GET", "/readyz", b"").ok()?.code == 200).then_some(connection)
        })
    }

    fn write(&self, file: &str, pod: &Value) {
        fs::write(self.path("staged"), pod.to_string()).unwrap();
        fs::rename(self.path("staged"), self.path("manifests").join(file)).unwrap();
    }
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "registry.example/i:1"}]},
    })
}

fn ask(connection: &mut Connection, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = connection.ask(method, path, body.as_bytes()).unwrap();
    (answer.code, answer.json())
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect()
}

fn end(agent: Process) -> String {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(log.ends_with("stopped"), "nothing is left that waits:\n{log}");
    log
}

#[test]
fn a_posted_pod_is_published_and_restored_after_a_restart() {
    let place = Place::new();
    let (agent, mut connection) = place.start();
    let (code, answer) = ask(&mut connection, "POST", "/pods", &pod("web"));
    assert_eq!((code, &answer["items"][0]["result"]), (201, &json!("created")));
    let uid = &answer["items"][0]["pod"]["metadata"]["uid"];
    agent.holds("the posted pod", |replica| replica.pods.contains_key("default/web"));
    end(agent);

    let (agent, mut connection) = place.start();
    let (_, list) = ask(&mut connection, "GET", "/pods", &Value::Null);
    assert_eq!(names(&list), ["web"]);
    assert_eq!(&list["items"][0]["metadata"]["uid"], uid);
    agent.holds("the posted pod", |replica| replica.pods.contains_key("default/web"));
    end(agent);
}

#[test]
fn a_start_wants_nothing_that_was_removed_or_changed_meanwhile() {
    let place = Place::new();
    for name in ["kept", "changed", "removed"] {
        place.write(&format!("{name}.json"), &pod(name));
    }
    let (agent, _) = place.start();
    agent.holds("the pods", |replica| replica.pods.len() == 3);
    end(agent);
    fs::remove_file(place.path("manifests").join("removed.json")).unwrap();
    let mut changed = pod("changed");
    changed["spec"]["containers"][0]["image"] = "registry.example/i:2".into();
    place.write("changed.json", &changed);

    let (agent, mut connection) = place.start();
    assert_eq!(ask(&mut connection, "POST", "/pods", &pod("last")).0, 201);
    agent.holds("the posted pod", |replica| replica.pods.contains_key("default/last"));
    let updates = agent.stdout.text();
    let updates = updates.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: BTreeSet<String> = updates
        .flat_map(|update| update["pods"].as_array().cloned().unwrap_or_default())
        .map(|pod| format!("{} runs {}", pod["metadata"]["name"], pod["spec"]["containers"][0]["image"]))
        .collect();
    let runs = |name: &str, image: &str| format!("{:?} runs {:?}", name, format!("registry.example/{image}"));
    let wanted = [runs("changed-node1", "i:2"), runs("kept-node1", "i:1"), runs("last", "i:1")];
    assert_eq!(told, wanted.into());
    end(agent);
}

#[test]
fn a_restart_does_not_change_when_a_pod_of_a_file_was_seen_first() {
    let place = Place::new();
    let mut web = pod("web");
    // No manifest can say so itself.
    web["metadata"]["annotations"] = json!({SEEN: "1999-01-01T00:00:00Z"});
    place.write("web.json", &web);
    let key = "default/web-node1";
    let path = "/api/v1/namespaces/default/pods/web-node1";
    let is_synced = |connection: &mut Connection| {
        wait_for(|| {
            let (_, sources) = ask(connection, "GET", "/sources", &Value::Null);
            (sources["items"][1]["state"] == "synced").then_some(())
        });
    };
    let times = |pod: &Value| {
        let metadata = &pod["metadata"];
        (metadata["annotations"][SEEN].clone(), metadata["creationTimestamp"].clone())
    };
    let (agent, mut connection) = place.start();
    is_synced(&mut connection);
    let first = ask(&mut connection, "GET", path, &Value::Null).1;
    let seen: Timestamp = first["metadata"]["annotations"][SEEN].as_str().unwrap().parse().unwrap();
    assert!(Timestamp::now().duration_since(seen) < SignedDuration::from_hours(1), "{seen}");
    assert_eq!(first["metadata"]["creationTimestamp"], format!("{seen:.0}"));
    let text = agent.holds("the pod", |replica| replica.pods.contains_key(key)).pods[key].clone();
    // The database writes in order: what was published before is stored before this.
    assert_eq!(ask(&mut connection, "POST", "/pods", &pod("posted")).0, 201);
    agent.signal(Signal::KILL);
    agent.ends();

    let (agent, mut connection) = place.start();
    is_synced(&mut connection);
    assert_eq!(times(&ask(&mut connection, "GET", path, &Value::Null).1), times(&first));
    let replica = agent.holds("the pod", |replica| replica.pods.contains_key(key));
    assert_eq!(replica.pods[key], text, "the whole pod is as before");
    // The restored pod is known when the manifest changes, and after one more restart.
    web["spec"]["containers"][0]["image"] = "registry.example/i:2".into();
    place.write("web.json", &web);
    agent.holds("the change", |replica| replica.pods[key].contains("i:2"));
    assert_eq!(times(&ask(&mut connection, "GET", path, &Value::Null).1), times(&first));
    end(agent);
    let (agent, mut connection) = place.start();
    is_synced(&mut connection);
    assert_eq!(times(&ask(&mut connection, "GET", path, &Value::Null).1), times(&first));
    place.write("new.json", &pod("new"));
    let new = wait_for(|| {
        let (code, new) = ask(&mut connection, "GET", &path.replace("web", "new"), &Value::Null);
        (code == 200).then_some(new)
    });
    let new: Timestamp = new["metadata"]["annotations"][SEEN].as_str().unwrap().parse().unwrap();
    assert!(new > seen, "{new}");
    end(agent);
}

#[test]
fn a_file_takes_a_posted_name_until_it_is_removed() {
    let place = Place::new();
    let (agent, mut connection) = place.start();
    ask(&mut connection, "POST", "/pods", &pod("web-node1"));
    place.write("web.json", &pod("web"));
    let key = "default/web-node1";
    agent.holds("the file's pod", |replica| {
        replica.pods.get(key).is_some_and(|text| text.contains(r#""kubernetes.io/config.source":"file""#))
    });
    let (_, sources) = ask(&mut connection, "GET", "/sources", &Value::Null);
    let problem = &sources["items"][1]["problems"][0];
    assert_eq!((&problem["reason"], &problem["pod"]), (&json!("Conflict"), &json!(key)), "{sources}");
    let (code, _) = ask(&mut connection, "POST", "/pods", &pod("web-node1"));
    assert_eq!(code, 403, "it is held by another source");

    fs::remove_file(place.path("manifests/web.json")).unwrap();
    agent.holds("the posted pod again", |replica| {
        replica.pods.get(key).is_some_and(|text| text.contains(r#""kubernetes.io/config.source":"http""#))
    });
    end(agent);
}

#[test]
fn the_numbers_of_updates_continue_after_a_restart() {
    let place = Place::new();
    let start = u64::try_from(Timestamp::now().as_microsecond()).unwrap();
    let (agent, mut connection) = place.start();
    ask(&mut connection, "POST", "/pods", &pod("a"));
    let seq = |connection: &mut Connection| -> u64 {
        let (_, list) = ask(connection, "GET", "/pods", &Value::Null);
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let first_line = |place: &Place| -> Value {
        serde_json::from_str(&place.connect().first_line("/updates").unwrap()).unwrap()
    };
    let before = seq(&mut connection);
    assert!(before >= start, "{before}: numbers start at the clock in microseconds");
    let mut runs = BTreeSet::from([first_line(&place)["run"].to_string()]);
    end(agent);

    // After a stop and after a kill: no number is given twice, and no reader continues the stream of
    // another run.
    let mut last = before;
    for stop in [Signal::TERM, Signal::KILL] {
        let (agent, mut connection) = place.start();
        let (code, answer) = ask(&mut connection, "POST", "/pods", &pod("b"));
        assert_eq!(code / 100, 2, "{answer}");
        for from in [last, last + 1] {
            let (code, _) = ask(&mut connection, "GET", &format!("/updates?from={from}"), &Value::Null);
            assert_eq!(code, 410, "the updates of the earlier run are not in the history");
        }
        let line = first_line(&place);
        assert!(line["seq"].as_u64().unwrap() > last, "{line} after {last}");
        assert!(
            line["run"].is_string() && line["op"] == "SET" && runs.insert(line["run"].to_string()),
            "{line} after {runs:?}"
        );
        let after = seq(&mut connection);
        assert!(after > last, "{after} after {last}");
        last = after;
        agent.signal(stop);
        agent.ends();
    }
}

/// A file of `tests/earlier`: what an agent of November 2026 has left behind, before streams began
/// with SETs. It had posted pods `db` and `web`, and the pod `gone-node1` of a file.
fn earlier(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/earlier").join(name);
    let mut file = fs::read(&path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&*file).read_to_end(&mut text).unwrap();
        file = text;
    }
    file
}

#[test]
fn the_state_and_the_file_of_an_earlier_version_are_continued() {
    let place = Place::new();
    fs::create_dir(place.path("state")).unwrap();
    fs::write(place.path("state/state.redb"), earlier("state-1.redb.gz")).unwrap();
    let (updates, before) = (place.path("updates.jsonl"), earlier("updates.jsonl"));
    fs::write(&updates, &before).unwrap();
    let before = Replica::of(str::from_utf8(&before).unwrap());
    assert!(before.pods.keys().eq(["default/db", "default/gone-node1", "default/web"]), "{before:?}");
    let agent = Process::start(&mut place.command(&["--sink", &format!("jsonl={}", updates.display())]));
    let mut connection = place.connect();

    // The posted pods are the same, with their versions.
    let (_, list) = ask(&mut connection, "GET", "/pods", &Value::Null);
    assert_eq!(names(&list), ["db", "web"]);
    for pod in list["items"].as_array().unwrap() {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let held: Value = serde_json::from_str(&before.pods[&format!("default/{name}")]).unwrap();
        let mut pod = pod.clone();
        pod["status"] = own_status(&pod);
        assert_eq!(pod, held);
    }
    let version =
        |object: &Value| -> u64 { object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap() };
    let mut web = list["items"][1].clone();
    assert_eq!(version(&web), 3);
    web["spec"]["containers"][0]["image"] = "i:3".into();
    let (code, replaced) = ask(&mut connection, "PUT", "/api/v1/namespaces/default/pods/web", &web);
    assert_eq!(code, 200, "the version is a precondition: {replaced}");
    assert!(version(&replaced) > version(&list) && version(&list) > before.seq, "{list} {replaced}");

    // The file is continued: its pod that is gone has no REMOVE, but is not in the SET of its source.
    let held = wait_for(|| {
        let text = fs::read_to_string(&updates).ok().filter(|text| text.ends_with('\n'))?;
        let held = Replica::of(&text);
        held.pods.get("default/web").is_some_and(|pod| pod.contains("i:3")).then_some(held)
    });
    assert!(held.pods.keys().eq(["default/db", "default/web"]), "{held:?}");
    assert!(held.heard.starts_with(&before.heard) && held.run.is_some(), "{held:?}");
    let words = |line: &String| line.split_once(' ').unwrap().1.to_owned();
    let mut sets: Vec<String> = held.heard[before.heard.len()..].iter().map(words).collect();
    assert_eq!(sets.pop().unwrap(), "UPDATE http 1");
    sets.retain(|line| line.starts_with("SET "));
    sets.sort();
    assert_eq!(sets, ["SET api 0", "SET file 0", "SET http 2", "SET url 0"]);
    end(agent);
}

#[test]
fn a_missing_directory_at_the_start_removes_no_pod() {
    let place = Place::new();
    place.write("web.json", &pod("web"));
    let (agent, _) = place.start();
    agent.holds("the file's pod", |replica| replica.pods.contains_key("default/web-node1"));
    end(agent);

    fs::rename(place.path("manifests"), place.path("unmounted")).unwrap();
    let (agent, mut connection) = place.start();
    agent.holds("the last good pod", |replica| replica.pods.contains_key("default/web-node1"));
    assert_eq!(names(&ask(&mut connection, "GET", "/pods", &Value::Null).1), ["web-node1"]);
    agent.logs("the path no longer exists");
    end(agent);

    // And a half-written manifest does not either.
    fs::rename(place.path("unmounted"), place.path("manifests")).unwrap();
    fs::write(place.path("manifests/web.json"), r#"{"apiVersion": "v1", "ki"#).unwrap();
    let (agent, _) = place.start();
    agent.holds("the last good pod", |replica| replica.pods.contains_key("default/web-node1"));
    agent.logs("manifest rejected");
    let log = end(agent);
    assert!(!log.contains("REMOVE"), "{log}");
}

#[test]
fn a_file_that_was_removed_before_the_start_loses_its_pods() {
    let place = Place::new();
    place.write("web.json", &pod("web"));
    place.write("db.json", &pod("db"));
    let (agent, _) = place.start();
    agent.holds("both pods", |replica| replica.pods.len() == 2);
    end(agent);
    fs::remove_file(place.path("manifests/web.json")).unwrap();
    let (agent, mut connection) = place.start();
    agent.holds("the pod that is left", |replica| {
        replica.pods.len() == 1 && replica.pods.contains_key("default/db-node1")
    });
    assert_eq!(names(&ask(&mut connection, "GET", "/pods", &Value::Null).1), ["db-node1"]);
    end(agent);
}

#[test]
fn a_failed_start_logs_one_line() {
    let refused = |command: &mut std::process::Command, say: &[&str]| {
        let (code, log) = Process::start(command).ends();
        assert_eq!((code, log.lines().count()), (2, 1), "{log}");
        for text in say {
            assert!(log.contains(text), "{text}: {log}");
        }
    };
    let place = Place::new();
    let (agent, _) = place.start();
    let other = format!("unix:{}", place.path("other").display());
    let state = place.path("state").display().to_string();
    let mut second = podmux(&["run", "--node-name", "node1", "--state-dir", &state, "--listen", &other]);
    refused(&mut second, &["another podmux", "state"]);
    end(agent);

    fs::remove_dir_all(place.path("state")).unwrap();
    fs::write(place.path("state"), "somebody's notes").unwrap();
    refused(&mut place.command(&[]), &["state"]);
    assert_eq!(fs::read_to_string(place.path("state")).unwrap(), "somebody's notes");
}

#[test]
fn the_server_answers_while_a_sink_drains_and_reports_that_the_agent_stops() {
    let place = Place::new();
    let (reader, writer) = full_pipe();
    let agent = Process::start(place.command(&["--shutdown-grace", "5m"]).stdout(writer));
    let mut connection = wait_for(|| {
        let mut connection = Connection::unix(&place.path("s")).ok()?;
        (connection.ask("GET", "/livez", b"").ok()?.code == 200).then_some(connection)
    });
    assert_eq!(ask(&mut connection, "POST", "/pods", &pod("a")).0, 201, "whatever the sink does");
    agent.signal(Signal::TERM);
    agent.logs("stopping");
    wait_for(|| (connection.ask("GET", "/readyz", b"").unwrap().code == 503).then_some(()));
    wait_for(|| (ask(&mut connection, "POST", "/pods", &pod("b")).0 == 503).then_some(()));
    drop(connection);
    // The sink's reader comes back, takes what is pending, and it ends.
    let stdout = crate::support::process::Lines::default();
    stdout.read(reader);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    stdout.wait_for_end();
    assert!(stdout.text().contains(r#""name":"a""#));
}

/// It notices a missing delay only if the agent starts within it, which is usual on a machine without other work.
#[tokio::test]
async fn numbers_are_given_out_when_the_clock_has_passed_those_of_earlier_runs() {
    let place = Place::new();
    let state = State::open(&place.path("state")).unwrap();
    let ceiling = Timestamp::now() + SignedDuration::from_millis(95);
    state.put(Table::Streams, "ceiling", ceiling.as_microsecond().to_string()).await;
    state.close().await;
    let sink = format!("jsonl={}", place.path("updates").display());
    let agent = Process::start(&mut place.command(&["--sink", &sink]));
    let line = wait_for(|| {
        let text = fs::read_to_string(place.path("updates")).ok()?;
        text.split_once('\n').map(|(line, _)| serde_json::from_str::<Value>(line).unwrap())
    });
    let time: Timestamp = line["time"].as_str().unwrap().parse().unwrap();
    assert!(time >= ceiling, "{line}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}
