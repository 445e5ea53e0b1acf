//! Posted pods: writes, their results, and deletions.

use std::{path::Path, sync::Arc, time::Duration};

use expect_test::{Expect, expect};
use jiff::{SignedDuration, Timestamp};
use podmux::{
    db::{self, Sequence, UPGRADES},
    host::{Clock, Host, Threads},
    mux::{Mux, MuxLoop, Notify, SourceChannel},
    pod::{ListingBuilder, NodeName, Origin, PodKey, SourceName, Uid},
    runtime::Gone,
    sink::{Acknowledged, Delivery},
    source::{
        self, SourceFailing, StateWatch,
        http::{
            self, Config, HttpSource, Posts, Preconditions, Release, Selected, Submitted, Write, WriteError,
            Written,
        },
    },
};
use serde_json::json;
use tokio::{
    sync::watch,
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    process::PATIENCE,
    script::{self, update_line},
    sinks::{Behaviour, Received, SinkDouble},
    state::{Disk, ENOSPC, Fault, Operation, State},
};

/// A running source with a mux and one sink.
struct Agent {
    posts: Posts,
    received: watch::Receiver<Received>,
    mux: Mux,
    stop: CancellationToken,
}

impl Agent {
    async fn start(behaviour: Behaviour) -> Self {
        Self::start_on(Host::default(), behaviour).await
    }

    async fn start_on(host: Host, behaviour: Behaviour) -> Self {
        Self::start_beside(&[], host, behaviour).await
    }

    /// Waits until no pod is posted.
    async fn removes_all(&self) {
        let removed = async {
            while !self.posts.all().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, removed).await.expect("all are removed");
    }

    async fn start_beside(others: &[SourceName], host: Host, behaviour: Behaviour) -> Self {
        let (mux, turning) = Mux::new(&[others, &[SourceName::Http]].concat());
        let acknowledged: Acknowledged = Arc::new(watch::Sender::default());
        let (double, mut received) = SinkDouble::new(behaviour);
        let (delivery, _status) = Delivery::new("double", double, mux.updates(Notify::Incremental));
        let delivery = delivery.reporting(&acknowledged);
        let channel = mux.channel(SourceName::Http).unwrap();
        let release = Release::Sinks { acknowledged: acknowledged.subscribe(), merged: mux.merged() };
        let (source, posts) = HttpSource::new(None, Sequence::after("", 0), channel, release);
        let stop = CancellationToken::new();
        tokio::spawn(source.on(host).run(stop.clone()));
        tokio::spawn(turning.run());
        let never = CancellationToken::new();
        tokio::spawn(async { delivery.run(never).await.unwrap() });
        // The first sync without pods.
        timeout(PATIENCE, received.wait_for(|received| !received.attempts.is_empty()))
            .await
            .unwrap()
            .unwrap();
        Self { posts, received, mux, stop }
    }

    async fn write(&self, write: Write) -> Result<Vec<Written>, WriteError> {
        timeout(PATIENCE, self.posts.write(write, false)).await.unwrap()
    }

    /// Writes, and returns the result as one line.
    async fn result(&self, write: Write) -> String {
        answer(self.write(write).await)
    }

    /// Asserts what the sink has received when the last update begins with `last`.
    async fn receives(&mut self, last: &str, expect: &Expect) {
        let lines = |received: &Received| -> Vec<String> {
            received.attempts.iter().map(|(_, update)| update_line(&update.update)).collect()
        };
        let seen = self
            .received
            .wait_for(|received| lines(received).last().is_some_and(|line| line.starts_with(last)));
        let seen = timeout(PATIENCE, seen).await.expect("the sink receives it").unwrap().clone();
        expect.assert_eq(&lines(&seen).iter().map(|line| strip_uids(line) + "\n").collect::<String>());
    }
}

/// A host whose clock stands while tokio's does.
fn paused() -> Host {
    paused_at(Timestamp::now())
}

/// The same with the time at which it stands now.
fn paused_at(wall: Timestamp) -> Host {
    let begun = tokio::time::Instant::now();
    let clock = Clock::from_fn(move || wall + SignedDuration::try_from(begun.elapsed()).unwrap());
    Host { clock, ..Host::default() }
}

/// Removes random UIDs.
fn strip_uids(line: &str) -> String {
    let words = line.split(' ').map(|word| word.split_once('#').map_or(word, |(key, _)| key));
    words.collect::<Vec<_>>().join(" ")
}

fn pod(description: &str) -> Submitted {
    script::pod(description).into()
}

fn answer(result: Result<Vec<Written>, WriteError>) -> String {
    match result {
        Ok(written) => {
            let one = |w: &Written| {
                let pod = w.pod.typed().unwrap().metadata;
                let version = pod.resource_version.map(|version| format!(" at {version}"));
                format!("{} {}{}", w.pod.key(), w.outcome.as_str(), version.unwrap_or_default())
            };
            written.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!("error: {error}"),
    }
}

fn delete(key: &str, grace: Option<i64>) -> Write {
    let (namespace, name) = key.split_once('/').unwrap();
    Write::Delete { key: PodKey::new(namespace, name), grace, preconditions: Preconditions::default() }
}

#[tokio::test]
async fn a_posted_pod_is_created_configured_or_unchanged() {
    let mut agent = Agent::start(Behaviour::Accepts).await;
    assert_eq!(
        agent.result(Write::Apply(vec![pod("a#"), pod("b#")])).await,
        "default/a created at 1, default/b created at 2"
    );
    let first = agent.posts.get(&PodKey::new("default", "a")).unwrap();
    assert_eq!(agent.result(Write::Apply(vec![pod("a#")])).await, "default/a unchanged at 1");
    assert_eq!(
        agent.result(Write::Apply(vec![pod("a#=i:2"), pod("b#")])).await,
        "default/a configured at 3, default/b unchanged at 2"
    );
    let second = agent.posts.get(&PodKey::new("default", "a")).unwrap();
    assert_eq!(first.uid(), second.uid(), "a replaced pod keeps its UID");
    assert_eq!(first.creation_timestamp(), second.creation_timestamp());
    assert!(uuid::Uuid::parse_str(first.uid()).is_ok(), "a pod without a UID gets one");
    agent
        .receives(
            "UPDATE",
            &expect![[r#"
        ADD http:
        ADD http: default/a default/b
        UPDATE http: default/a
    "#]],
        )
        .await;
}

#[tokio::test]
async fn create_replace_and_delete_are_rejected_as_at_an_api_server() {
    let agent = Agent::start(Behaviour::Accepts).await;
    assert_eq!(agent.result(Write::Replace(pod("a#"))).await, "error: pods \"a\" not found");
    assert_eq!(agent.result(Write::Create(pod("a#"))).await, "default/a created at 1");
    assert_eq!(agent.result(Write::Create(pod("a#=i:2"))).await, "error: pods \"a\" already exists");
    let versioned = |description: &str, version: &str| -> Submitted {
        let mut pod = script::pod(description);
        pod.set_metadata("resourceVersion", Some(version.into()));
        pod.into()
    };
    assert_eq!(
        agent.result(Write::Replace(versioned("a#=i:2", "7"))).await,
        "error: pods \"a\" was not written: its resourceVersion is 1, not \"7\"; read it again"
    );
    assert_eq!(agent.result(Write::Replace(versioned("a#=i:2", "1"))).await, "default/a configured at 2");
    let other = agent.result(Write::Replace(pod("a#another"))).await;
    assert!(other.starts_with("error: pods \"a\" was not written: its uid is "), "{other}");
    assert_eq!(agent.result(delete("default/none", None)).await, "error: pods \"none\" not found");
}

#[tokio::test]
async fn a_write_is_atomic() {
    let agent = Agent::start(Behaviour::Accepts).await;
    agent.write(Write::Create(pod("b#"))).await.unwrap();
    let result = agent.result(Write::Apply(vec![pod("a#"), pod("b#x"), pod("b#y")])).await;
    assert_eq!(result.matches("pods \"b\" was not written: its uid is ").count(), 2, "{result}");
    assert_eq!(agent.posts.all().len(), 1);
    assert_eq!(agent.mux.merged().borrow().len(), 1);
}

#[tokio::test]
async fn a_selection_is_deleted_but_for_pods_that_came_after_it() {
    let agent = Agent::start(Behaviour::Accepts).await;
    agent.write(Write::Apply(vec![pod("a#"), pod("b#"), pod("c#")])).await.unwrap();
    let selected = |name: &str| {
        let key = PodKey::new("default", name);
        let uid = agent.posts.get(&key).unwrap().uid().clone();
        Selected { key, uid, preconditions: Preconditions::default() }
    };
    let pods = vec![selected("a"), selected("b"), selected("c")];
    agent.write(delete("default/a", Some(0))).await.unwrap();
    agent.write(delete("default/b", Some(0))).await.unwrap();
    agent.write(Write::Create(pod("b#"))).await.unwrap();
    let result = agent.result(Write::DeleteSelected { pods, grace: Some(0) }).await;
    assert!(result.starts_with("default/c deleted at ") && !result.contains(','), "{result}");
    assert_eq!(agent.posts.all().keys().map(PodKey::as_str).collect::<Vec<_>>(), ["default/b"]);
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let agent = Agent::start(Behaviour::Accepts).await;
    let dry = agent.posts.write(Write::Apply(vec![pod("a#")]), true).await;
    assert_eq!(answer(dry), "default/a created");
    assert!(agent.posts.all().is_empty());
    assert_eq!(agent.result(Write::Apply(vec![pod("b#")])).await, "default/b created at 2");
    let dry = agent.posts.write(Write::Apply(vec![pod("b#=i:2")]), true).await;
    assert_eq!(answer(dry), "default/b configured at 2", "with its own version");
}

#[tokio::test]
async fn writing_back_what_was_read_changes_nothing() {
    let agent = Agent::start(Behaviour::Accepts).await;
    let hashed = |hash: &str| -> Submitted {
        let mut pod = script::pod("a#");
        pod.set_annotation("kubernetes.io/config.hash", Some(hash));
        pod.into()
    };
    agent.write(Write::Create(hashed("of the manifest"))).await.unwrap();
    let text = agent.posts.get(&PodKey::new("default", "a")).unwrap().text().clone();
    assert!(String::from_utf8_lossy(&text).contains("config.seen"));
    let mut read = podmux::pod::Prepared::from_json(&text).unwrap();
    read.set_annotation("kubernetes.io/config.hash", Some("with its defaults"));
    assert_eq!(agent.result(Write::Replace(read.clone().into())).await, "default/a unchanged at 1");
    read.set_metadata("resourceVersion", Some("0".into()));
    read.set_annotation("a", Some("b"));
    assert_eq!(
        agent.result(Write::Replace(read.into())).await,
        "default/a configured at 2",
        "0 is any version"
    );
}

#[tokio::test]
async fn fields_of_the_server_are_ignored() {
    let agent = Agent::start(Behaviour::Accepts).await;
    let mut given = script::pod("a#%Running!");
    given.set_metadata("generation", Some(7.into()));
    let created = agent.write(Write::Create(given.into())).await.unwrap()[0].pod.typed().unwrap();
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!((created.metadata.generation, created.metadata.deletion_timestamp), (Some(1), None));
    let generation = |written: Vec<Written>| written[0].pod.typed().unwrap().metadata.generation;
    assert_eq!(generation(agent.write(Write::Apply(vec![pod("a#+l:1")])).await.unwrap()), Some(1));
    assert_eq!(generation(agent.write(Write::Apply(vec![pod("a#=i:2")])).await.unwrap()), Some(2));
}

#[tokio::test]
async fn writes_that_share_a_commit_return_their_own_results() {
    let agent = Agent::start(Behaviour::Accepts).await;
    let images =
        results_of(&agent, (0..20).map(|number| Write::Apply(vec![pod(&format!("a#=i:{number}"))]))).await;
    for (number, written) in images.into_iter().enumerate() {
        let spec = written.unwrap()[0].pod.typed().unwrap().spec.unwrap();
        assert_eq!(spec.containers[0].image.as_deref(), Some(&*format!("i:{number}")));
    }
}

/// The results of concurrent writes.
async fn results_of(
    agent: &Agent,
    writes: impl Iterator<Item = Write>,
) -> Vec<Result<Vec<Written>, WriteError>> {
    let mut tasks = Vec::new();
    for write in writes {
        let posts = agent.posts.clone();
        tasks.push(tokio::spawn(async move { posts.write(write, false).await }));
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(timeout(PATIENCE, task).await.unwrap().unwrap());
    }
    answers
}

#[tokio::test]
async fn an_answered_write_is_merged() {
    let (_gate, hung) = watch::channel(false);
    let agent = Agent::start(Behaviour::HangsUntil(hung)).await;
    for index in 0..50 {
        let name = format!("p{index}#");
        agent.write(Write::Apply(vec![pod(&name)])).await.unwrap();
        assert_eq!(
            agent.mux.merged().borrow().len(),
            index + 1,
            "a GET after the answer shows it, even if the sink hangs"
        );
    }
}

#[tokio::test]
async fn a_deleted_pod_is_removed_when_the_sink_has_acknowledged_it() {
    let mut agent = Agent::start(Behaviour::Accepts).await;
    agent.write(Write::Apply(vec![pod("a#")])).await.unwrap();
    assert_eq!(agent.result(delete("default/a", None)).await, "default/a terminating at 2");
    // Before its grace period of 30 s is over.
    agent
        .receives(
            "REMOVE",
            &expect![[r#"
        ADD http:
        ADD http: default/a
        DELETE http: default/a
        REMOVE http: default/a
    "#]],
        )
        .await;
    assert!(agent.posts.all().is_empty());
}

#[tokio::test]
async fn a_deleted_pod_whose_name_another_source_has_is_removed_at_once() {
    let mut agent = Agent::start_beside(&[SourceName::File], Host::default(), Behaviour::Accepts).await;
    let channel = agent.mux.channel(SourceName::File).unwrap();
    let mut listing = ListingBuilder::new(SourceName::File);
    listing.put(&Origin::from("a.yaml"), vec![script::pod("a#file")], Timestamp::UNIX_EPOCH);
    channel.publish(listing.listing());
    agent.received.wait_for(|received| received.replica.pods.len() == 1).await.unwrap();
    // The source may have to look at an earlier acknowledgement when the first deletion begins.
    for _ in 0..2 {
        agent.write(Write::Create(pod("a#"))).await.unwrap();
        // The sink receives nothing of it, so it acknowledges nothing more.
        assert!(agent.result(delete("default/a", Some(24 * 3600))).await.contains("terminating"));
        agent.removes_all().await;
    }
}

#[tokio::test]
async fn a_deleted_pod_whose_uid_another_source_has_is_removed_at_once() {
    let mut agent = Agent::start_beside(&[SourceName::File], Host::default(), Behaviour::Accepts).await;
    let channel = agent.mux.channel(SourceName::File).unwrap();
    let written = agent.write(Write::Create(pod("a#"))).await.unwrap();
    agent.received.wait_for(|received| received.replica.pods.len() == 1).await.unwrap();
    let mut listing = ListingBuilder::new(SourceName::File);
    let copy = script::pod(&format!("b#{}", written[0].pod.uid()));
    listing.put(&Origin::from("b.yaml"), vec![copy], Timestamp::UNIX_EPOCH);
    channel.publish(listing.listing());
    agent.received.wait_for(|received| received.replica.pods.keys().eq(["default/b"])).await.unwrap();
    assert!(agent.result(delete("default/a", Some(24 * 3600))).await.contains("terminating"));
    agent.removes_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_whose_uid_another_source_gets_is_removed_at_once_also_if_the_sink_hangs() {
    let (_gate, hung) = watch::channel(false);
    let agent = Agent::start_beside(&[SourceName::File], Host::default(), Behaviour::HangsUntil(hung)).await;
    let channel = agent.mux.channel(SourceName::File).unwrap();
    let written = agent.write(Write::Create(pod("a#"))).await.unwrap();
    assert!(agent.result(delete("default/a", Some(24 * 3600))).await.contains("terminating"));
    let mut listing = ListingBuilder::new(SourceName::File);
    let copy = script::pod(&format!("b#{}", written[0].pod.uid()));
    listing.put(&Origin::from("b.yaml"), vec![copy], Timestamp::UNIX_EPOCH);
    channel.publish(listing.listing());
    agent.removes_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_stays_while_the_sink_has_acknowledged_only_the_pod() {
    let (gate, open) = watch::channel(true);
    let mut agent = Agent::start(Behaviour::HangsUntil(open)).await;
    agent.write(Write::Apply(vec![pod("a#")])).await.unwrap();
    agent.received.wait_for(|received| received.replica.pods.len() == 1).await.unwrap();
    gate.send_replace(false);
    assert_eq!(agent.result(delete("default/a", Some(600))).await, "default/a terminating at 2");
    sleep(Duration::from_mins(5)).await;
    assert_eq!(agent.posts.all().len(), 1);
    gate.send_replace(true);
    agent.mux.merged().wait_for(|merged| merged.is_empty()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_removed_after_its_grace_period() {
    let (gate, hung) = watch::channel(false);
    let agent = Agent::start(Behaviour::HangsUntil(hung)).await;
    agent.write(Write::Apply(vec![pod("a#")])).await.unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(agent.result(delete("default/a", Some(7))).await, "default/a terminating at 2");
    assert_eq!(
        agent.result(Write::Apply(vec![pod("a#")])).await,
        "error: pods \"a\" is being deleted; try again when it is gone"
    );
    assert_eq!(
        agent.result(Write::Create(pod("a#"))).await,
        "error: pods \"a\" already exists: it is being deleted; try again when it is gone"
    );
    assert_eq!(
        agent.result(Write::Replace(pod("a#"))).await,
        "error: pods \"a\" is being deleted; try again when it is gone"
    );
    agent.mux.merged().wait_for(|merged| merged.is_empty()).await.unwrap();
    let took = begun.elapsed();
    assert!((Duration::from_secs(5)..=Duration::from_secs(8)).contains(&took), "{took:?}");
    drop(gate);
    assert_eq!(agent.result(Write::Apply(vec![pod("a#")])).await, "default/a created at 3");
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_has_its_own_grace_if_its_predecessor_is_erased_in_the_same_commit() {
    let (_gate, hung) = watch::channel(false);
    let agent = Agent::start_on(paused(), Behaviour::HangsUntil(hung)).await;
    agent.write(Write::Create(pod("a#"))).await.unwrap();
    agent.write(delete("default/a", Some(20))).await.unwrap();
    sleep(Duration::from_secs(14)).await;
    let begun = tokio::time::Instant::now();
    let (erased, created, deleted) = tokio::join!(
        agent.result(delete("default/a", Some(0))),
        agent.result(Write::Create(pod("a#"))),
        agent.result(delete("default/a", Some(20)))
    );
    assert!(erased.starts_with("default/a deleted"), "{erased}");
    assert!(created.starts_with("default/a created"), "{created}");
    assert!(deleted.starts_with("default/a terminating"), "{deleted}");
    agent.mux.merged().wait_for(|merged| merged.is_empty()).await.unwrap();
    let took = begun.elapsed();
    assert!((Duration::from_secs(18)..=Duration::from_secs(21)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_deletion_may_only_shorten_the_first() {
    let (_gate, hung) = watch::channel(false);
    let agent = Agent::start_on(paused(), Behaviour::HangsUntil(hung)).await;
    agent.write(Write::Apply(vec![pod("a#"), pod("b#")])).await.unwrap();
    let deleted_of = async |key: &str, grace| {
        let pod = agent.write(delete(key, grace)).await.unwrap()[0].pod.clone();
        let end: Timestamp = pod.deletion_timestamp().unwrap().parse().unwrap();
        (pod.deletion_grace_period_seconds().unwrap(), end)
    };
    let deleted = async |grace| deleted_of("default/a", grace).await;
    assert_eq!(deleted_of("default/b", Some(600)).await.0, 600);
    let (grace, end) = deleted(Some(600)).await;
    assert_eq!(grace, 600);
    for longer in [Some(900), Some(600), None] {
        assert_eq!(deleted(longer).await, (600, end));
    }
    sleep(Duration::from_mins(5)).await;
    // It counts from the first deletion, and so do the next ones.
    for shorter in [590, 400] {
        let end = end - SignedDuration::from_secs(600 - shorter);
        assert_eq!(deleted(Some(shorter)).await, (shorter, end));
    }
    let begun = tokio::time::Instant::now();
    let (grace, now) = deleted(Some(-5)).await;
    assert_eq!(grace, 1, "negative is 1");
    let left = end.duration_since(now).as_secs();
    assert!((290..=310).contains(&left), "it has passed, so the pod ends now: {left}");
    assert_eq!(deleted_of("default/b", Some(200)).await.0, 1, "as at an API server if it has passed");
    agent.mux.merged().wait_for(|merged| merged.is_empty()).await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn grace_0_removes_at_once() {
    let mut agent = Agent::start(Behaviour::Accepts).await;
    agent.write(Write::Apply(vec![pod("a#")])).await.unwrap();
    agent.received.wait_for(|received| received.replica.pods.len() == 1).await.unwrap();
    let gone = agent.write(delete("default/a", Some(0))).await.unwrap();
    assert_eq!(gone[0].outcome.as_str(), "deleted");
    assert_eq!(gone[0].pod.deletion_grace_period_seconds(), Some(0), "as an API server answers");
    assert!(agent.mux.merged().borrow().is_empty());
    agent
        .receives(
            "REMOVE",
            &expect![[r#"
        ADD http:
        ADD http: default/a
        REMOVE http: default/a
    "#]],
        )
        .await;
}

#[tokio::test]
async fn replacing_all_pods_deletes_the_others() {
    let mut agent = Agent::start(Behaviour::Accepts).await;
    agent.write(Write::Apply(vec![pod("a#"), pod("b#")])).await.unwrap();
    agent.received.wait_for(|received| received.replica.pods.len() == 2).await.unwrap();
    assert_eq!(
        agent.result(Write::ReplaceAll(vec![pod("b#"), pod("c#")])).await,
        "default/a terminating at 3, default/b unchanged at 2, default/c created at 4"
    );
    agent
        .receives(
            "REMOVE",
            &expect![[r#"
        ADD http:
        ADD http: default/a default/b
        ADD http: default/c
        DELETE http: default/a
        REMOVE http: default/a
    "#]],
        )
        .await;
    assert_eq!(
        agent.result(Write::ReplaceAll(Vec::new())).await,
        "default/b terminating at 5, default/c terminating at 6"
    );
}

#[tokio::test]
async fn a_pod_removed_and_created_in_one_commit_is_another_incarnation() {
    let (open, hung) = watch::channel(false);
    let mut agent = Agent::start(Behaviour::HangsUntil(hung)).await;
    agent.write(Write::Apply(vec![pod("a#same")])).await.unwrap();
    open.send_replace(true);
    agent.received.wait_for(|received| received.replica.pods.len() == 1).await.unwrap();
    let (gone, back) =
        tokio::join!(agent.write(delete("default/a", Some(0))), agent.write(Write::Create(pod("a#same"))));
    gone.unwrap();
    back.unwrap();
    agent
        .receives(
            "ADD http: default/a",
            &expect![[r#"
        ADD http:
        ADD http: default/a
        REMOVE http: default/a
        ADD http: default/a
    "#]],
        )
        .await;
}

#[tokio::test]
async fn writes_after_the_stop_fail() {
    let agent = Agent::start(Behaviour::Accepts).await;
    agent.stop.cancel();
    agent.mux.merged().wait_for(|_| false).await.unwrap_err();
    assert!(matches!(agent.write(Write::Apply(vec![pod("a#")])).await, Err(WriteError::Stopping)));
}

/// A pod whose name, UID and annotation of some bytes are given.
fn sized(text: &str, bytes: usize) -> Submitted {
    let mut pod = script::pod(text);
    pod.set_annotation("padding", Some(&"x".repeat(bytes)));
    pod.into()
}

#[tokio::test]
async fn a_clients_uid_is_ignored_when_a_pod_is_created() {
    let agent = Agent::start(Behaviour::Accepts).await;
    let created = agent.write(Write::Apply(vec![pod("a#u"), pod("b#u")])).await.unwrap();
    let uids: Vec<_> = created.iter().map(|written| written.pod.uid().to_string()).collect();
    assert_ne!(uids[0], uids[1]);
    assert!(uids.iter().all(|uid| uuid::Uuid::parse_str(uid).is_ok()), "{uids:?}");
}

#[tokio::test]
async fn a_version_of_a_pod_that_is_not_the_current_one_fails_an_apply() {
    let agent = Agent::start(Behaviour::Accepts).await;
    let versioned = |name: &str, version: &str| {
        let mut pod = script::pod(name);
        pod.set_metadata("resourceVersion", Some(version.into()));
        Write::Apply(vec![pod.into()])
    };
    assert_eq!(
        agent.result(versioned("a#", "5")).await,
        "error: pods \"a\" was not written: it does not exist, and has no resourceVersion 5; remove the field"
    );
    assert_eq!(agent.result(versioned("a#", "0")).await, "default/a created at 1");
    assert_eq!(agent.result(versioned("a#=i:2", "1")).await, "default/a configured at 2");
    assert_eq!(
        agent.result(versioned("a#=i:3", "1")).await,
        "error: pods \"a\" was not written: its resourceVersion is 2, not \"1\"; read it again"
    );
}

#[tokio::test]
async fn pods_above_the_quota_are_rejected_and_those_that_exist_can_be_replaced_and_deleted() {
    let agent = Agent::start(Behaviour::Accepts).await;
    agent.posts.retune(Config { max_pods: 2, max_bytes: 100_000 });
    agent.write(Write::Apply(vec![pod("a#"), sized("b#", 60_000)])).await.unwrap();
    let rejected = agent.result(Write::Create(pod("c#"))).await;
    assert_eq!(
        rejected,
        "error: pods \"c\" is forbidden: exceeded quota: max-posted-pods, requested: 1, used: 2, limited: 2; \
         delete posted pods, or raise --max-posted-pods, which takes effect at a reload"
    );
    let rejected = agent.result(Write::Apply(vec![sized("a#", 40_000)])).await;
    assert!(rejected.contains("exceeded quota: max-posted-bytes, requested: 4"), "{rejected}");
    // Replacements that are small, or not larger than before, are always possible.
    agent.posts.retune(Config { max_pods: 1, max_bytes: 1000 });
    agent.write(Write::Apply(vec![sized("a#", 15_000), sized("b#", 59_990)])).await.unwrap();
    let rejected = agent.result(Write::Apply(vec![sized("a#", 17_000)])).await;
    assert!(rejected.contains("exceeded quota: max-posted-bytes"), "{rejected}");
    // A dry run checks the quota too.
    let dry = agent.posts.write(Write::Create(pod("c#")), true).await;
    assert!(answer(dry).contains("exceeded quota: max-posted-pods"));
    agent.posts.retune(Config { max_pods: 2, max_bytes: 100_000 });
    agent.write(delete("default/b", Some(0))).await.unwrap();
    agent.write(Write::Create(pod("c#"))).await.unwrap();
}

#[tokio::test]
async fn the_quota_of_bytes_is_used_up_to_the_last_one_and_free_after_a_deletion() {
    // The text of a pod has the time.
    let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
    let agent = Agent::start_on(Host { clock, ..Host::default() }, Behaviour::Accepts).await;
    agent.write(Write::Create(sized("a#", 60_000))).await.unwrap();
    let size = agent.posts.all().values().map(|pod| pod.text().len() as u64).sum();
    agent.write(delete("default/a", Some(0))).await.unwrap();
    agent.posts.retune(Config { max_pods: 2, max_bytes: size - 1 });
    let rejected = agent.result(Write::Create(sized("a#", 60_000))).await;
    assert!(
        rejected.contains(&format!("max-posted-bytes, requested: {size}, used: 0, limited: ")),
        "{rejected}"
    );
    agent.posts.retune(Config { max_pods: 2, max_bytes: size });
    for _ in 0..2 {
        agent.write(Write::Create(sized("a#", 60_000))).await.unwrap();
        assert!(agent.result(Write::Create(pod("b#"))).await.contains("max-posted-bytes"));
        agent.write(delete("default/a", Some(0))).await.unwrap();
    }
}

#[tokio::test]
async fn what_field_managers_applied_counts_for_the_quota() {
    let agent = Agent::start(Behaviour::Accepts).await;
    agent.posts.retune(Config { max_pods: 1, max_bytes: 50_000 });
    let config = json!({"metadata": {"annotations": {"large": "x".repeat(50_000)}}});
    let applied = pod("a#").applied_by("manager", config.as_object());
    assert!(agent.result(Write::Create(applied)).await.contains("max-posted-bytes"));
    agent.write(Write::Create(pod("a#"))).await.unwrap();
}

#[tokio::test]
async fn what_two_field_managers_applied_is_known_after_a_restart() {
    let (disk, key) = (Disk::default(), PodKey::new("default", "a"));
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    let by = |manager: &str| pod("a#").applied_by(manager, json!({"by": manager}).as_object());
    node.agent.write(Write::Create(by("one"))).await.unwrap();
    node.agent.write(Write::Replace(by("two"))).await.unwrap();
    let (_, applied) = node.agent.posts.get_applied(&key).unwrap();
    node.ends().await;
    state.close().await;

    let mut state = State::open_on(&disk).unwrap();
    let (_, after) = Node::start(Some(&mut state)).agent.posts.get_applied(&key).unwrap();
    assert_eq!(format!("{after:?}"), format!("{applied:?}"));
    assert!(format!("{applied:?}").contains("one") && format!("{applied:?}").contains("two"), "{applied:?}");
}

#[tokio::test]
async fn a_list_has_room_for_as_much_as_the_quota_allows() {
    let agent = Agent::start(Behaviour::Accepts).await;
    agent.posts.retune(Config { max_pods: 2, max_bytes: 100_000 });
    let mut room = agent.posts.room();
    let taken: Vec<bool> = [1, 1, 1].map(|size| room.take(size).is_ok()).into();
    assert_eq!(taken, [true, true, false], "two pods");
    // Each may be a small replacement, which is always accepted.
    let most = 100_000 + 2 * (16 << 10) - 1;
    let mut room = agent.posts.room();
    assert!(room.take(1).is_ok() && room.take(most).is_ok());
    let mut room = agent.posts.room();
    assert!(room.take(1).is_ok() && room.take(most + 1).is_err());
}

#[tokio::test]
async fn writes_that_wait_at_the_stop_are_rejected_whether_the_state_is_open_or_not() {
    let failing = SourceFailing {
        since: podmux::host::Moment::at(Timestamp::UNIX_EPOCH),
        attempts: 1,
        error: "".into(),
        quotes: false,
    };
    for state in [None, Some(watch::channel(Err(failing)).1)] {
        let (mux, _turning) = Mux::new(&[SourceName::Http]);
        let channel = mux.channel(SourceName::Http).unwrap();
        let acknowledged = watch::channel(Vec::new()).1;
        let release = Release::Sinks { acknowledged, merged: mux.merged() };
        let (source, posts) = HttpSource::new(state, Sequence::after("", 0), channel, release);
        let stop = CancellationToken::new();
        stop.cancel();
        // The write is in the queue when the source begins.
        let (late, ()) = tokio::join!(posts.write(Write::Create(pod("a#")), false), source.run(stop));
        assert!(matches!(late, Err(WriteError::Stopping)), "{late:?}");
        assert!(posts.all().is_empty());
    }
}

/// A source whose pods a runtime runs, beside a file source.
struct Node {
    agent: Agent,
    /// The deleted pods that the runtime no longer has.
    gone: watch::Sender<Gone>,
    file: (SourceChannel, ListingBuilder),
    ended: JoinHandle<()>,
}

impl Node {
    fn start(state: Option<&mut State>) -> Self {
        let state = state.map(|state| state.watch(&NodeName::new("node").unwrap()));
        let (node, merging) = Self::start_on(paused(), state);
        tokio::spawn(merging.run());
        node
    }

    /// On this host. Nothing is merged before the loop runs.
    fn start_on(host: Host, state: Option<StateWatch>) -> (Self, MuxLoop) {
        let (mux, turning) = Mux::new(&[SourceName::File, SourceName::Http]);
        let (channel, gone) = (mux.channel(SourceName::Http).unwrap(), watch::Sender::new(Gone::new()));
        let release = Release::Runtime { gone: gone.subscribe(), merged: mux.merged() };
        let (source, posts) = HttpSource::new(state, Sequence::after("", 0), channel, release);
        let stop = CancellationToken::new();
        let ended = tokio::spawn(source.on(host).run(stop.clone()));
        let file = (mux.channel(SourceName::File).unwrap(), ListingBuilder::new(SourceName::File));
        let received = watch::channel(Received::default()).1;
        (Self { agent: Agent { posts, received, mux, stop }, gone, file, ended }, turning)
    }

    /// Posts `default/a` and deletes it with this grace, in seconds. Returns its UID.
    async fn deletes(&self, grace: i64) -> Uid {
        self.agent.write(Write::Create(pod("a#"))).await.unwrap();
        let terminating = self.agent.result(delete("default/a", Some(grace))).await;
        assert!(terminating.starts_with("default/a terminating at "), "{terminating}");
        self.posted().unwrap()
    }

    /// The UID of the posted `default/a`.
    fn posted(&self) -> Option<Uid> {
        Some(self.agent.posts.get(&PodKey::new("default", "a"))?.uid().clone())
    }

    fn is_gone(&self, uid: &Uid) {
        self.gone.send_modify(|gone| drop(gone.insert(PodKey::new("default", "a"), uid.clone())));
    }

    /// Waits until the posted pod is erased.
    async fn erases(&self) {
        let erased = async {
            while self.posted().is_some() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, erased).await.expect("it is erased");
    }

    /// Stops the source as the agent does.
    async fn ends(self) {
        self.agent.stop.cancel();
        self.ended.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_stays_until_the_runtime_no_longer_has_its_uid() {
    let node = Node::start(None);
    let uid = node.deletes(1).await;
    // Long after its grace: the runtime may take longer.
    sleep(Duration::from_hours(3)).await;
    assert_eq!(node.posted(), Some(uid.clone()));
    // Another pod of the name is gone.
    node.is_gone(&"another".into());
    sleep(Duration::from_hours(3)).await;
    assert_eq!(node.posted(), Some(uid.clone()));
    let mut shown = String::new();
    for write in [Write::Create(pod("a#")), Write::Apply(vec![pod("a#")]), Write::Replace(pod("a#"))] {
        shown += &(node.agent.result(write).await + "\n");
    }
    expect![[r#"
        error: pods "a" already exists: it is being deleted; try again when it is gone
        error: pods "a" is being deleted; try again when it is gone
        error: pods "a" is being deleted; try again when it is gone
    "#]]
    .assert_eq(&shown);
    let merged = node.agent.mux.merged().borrow().clone();
    let (_, entry) = merged.iter().next().unwrap();
    assert!(entry.pod().deletion_timestamp().is_some());

    node.is_gone(&uid);
    node.erases().await;
    node.agent.mux.merged().wait_for(|merged| merged.is_empty()).await.unwrap();
    let created = node.agent.result(Write::Create(pod("a#"))).await;
    assert!(created.starts_with("default/a created at "), "{created}");
    // What is known of the previous pod does not erase the new one when it is deleted.
    assert!(node.agent.result(delete("default/a", None)).await.contains("terminating"));
    sleep(Duration::from_hours(1)).await;
    assert!(node.posted().is_some_and(|posted| posted != uid));
}

#[tokio::test(start_paused = true)]
async fn grace_0_erases_at_once_also_if_a_runtime_has_the_pod() {
    let node = Node::start(None);
    node.agent.write(Write::Create(pod("a#"))).await.unwrap();
    assert!(node.agent.result(delete("default/a", Some(0))).await.starts_with("default/a deleted"));
    assert_eq!(node.posted(), None);
    // The same for a pod that terminates already, also if its grace period is over.
    for waits in [Duration::ZERO, Duration::from_hours(1)] {
        node.deletes(600).await;
        sleep(waits).await;
        assert!(node.agent.result(delete("default/a", Some(0))).await.starts_with("default/a deleted"));
        assert_eq!(node.posted(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_whose_name_or_uid_another_source_has_ends_with_its_grace() {
    for name in ["a", "b"] {
        let mut node = Node::start(None);
        node.agent.write(Write::Create(pod("a#"))).await.unwrap();
        let other = script::pod(&format!("{name}#{}", node.posted().unwrap()));
        let (channel, listing) = &mut node.file;
        listing.put(&Origin::from("a.yaml"), vec![other], Timestamp::UNIX_EPOCH);
        channel.publish(listing.listing());
        assert!(channel.merged().await);
        assert!(node.agent.result(delete("default/a", Some(7))).await.contains("terminating"));
        // It does not run, so nothing will ever say that it is gone.
        let begun = tokio::time::Instant::now();
        node.erases().await;
        let took = begun.elapsed();
        assert!((Duration::from_secs(5)..=Duration::from_secs(8)).contains(&took), "{took:?}");
        let merged = node.agent.mux.merged().borrow().clone();
        assert_eq!(merged.iter().map(|(_, entry)| entry.source()).collect::<Vec<_>>(), [SourceName::File]);
    }
}

/// In real time: while the disk keeps a thread, tokio's clock does not go on by itself.
#[tokio::test]
async fn a_disk_that_hangs_is_a_failure_of_the_source_and_each_write_is_answered() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    let (held, holds) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let platter = disk.clone();
    let hanging = std::thread::spawn(move || {
        let _platter = platter.platter();
        held.send(()).unwrap();
        // Until the other end is dropped.
        let _ = released.recv();
    });
    holds.recv().unwrap();
    let mut status = node.agent.posts.status();
    let begun = tokio::time::Instant::now();
    let answer = timeout(PATIENCE, node.agent.result(Write::Create(pod("a#")))).await.unwrap();
    let expected = "no answer within 30 s: the disk of the state directory or the requests before are slow";
    assert_eq!(answer, format!("error: {expected}"));
    assert!(begun.elapsed() >= Duration::from_secs(30), "{:?}", begun.elapsed());
    // Dry runs, which take turns, wait as long together.
    let dry_run = || timeout(Duration::from_secs(45), node.agent.posts.write(Write::Create(pod("b#")), true));
    let (first, second) = tokio::join!(dry_run(), dry_run());
    assert_eq!([first, second].map(|answer| answer.unwrap().unwrap_err().to_string()), [expected; 2]);
    let failing = status.borrow_and_update().failing.clone().unwrap().error;
    assert_eq!(&*failing, "the disk of the state directory has not answered for 10s");
    drop(release);
    hanging.join().unwrap();
    timeout(PATIENCE, status.wait_for(|status| status.failing.is_none())).await.unwrap().unwrap();
    // It went on.
    let mut merged = node.agent.mux.merged();
    timeout(PATIENCE, merged.wait_for(|merged| !merged.is_empty())).await.unwrap().unwrap();
    node.ends().await;
    state.close().await;
}

/// Each acknowledgement began the time until the next attempt anew.
#[tokio::test]
async fn the_source_recovers_also_while_sinks_acknowledge_all_the_time() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    node.deletes(600).await;
    disk.platter().fault = Some(Fault { operation: Operation::Write, from: 0, times: 1, errno: ENOSPC });
    let refused = node.agent.result(Write::Create(pod("b#"))).await;
    assert!(refused.starts_with("error: "), "{refused}");
    let mut status = node.agent.posts.status();
    let recovered = status.wait_for(|status| status.failing.is_none());
    let others = async {
        loop {
            node.is_gone(&"another".into());
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        recovered = timeout(PATIENCE, recovered) => drop(recovered.expect("it recovers").unwrap()),
        () = others => {}
    }
    node.ends().await;
    state.close().await;
}

/// An alert would go on for ever.
#[tokio::test]
async fn the_source_recovers_from_a_failed_write_without_another_one() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    disk.platter().fault = Some(Fault { operation: Operation::Write, from: 0, times: 1, errno: ENOSPC });
    let refused = node.agent.result(Write::Create(pod("a#"))).await;
    assert!(refused.starts_with("error: "), "{refused}");
    let mut status = node.agent.posts.status();
    assert!(status.borrow_and_update().failing.is_some());
    // What changes nothing is answered meanwhile.
    let refused = node.agent.result(delete("default/none", None)).await;
    assert!(refused.contains("not found"), "{refused}");
    disk.platter().fault = None;
    timeout(PATIENCE, status.wait_for(|status| status.failing.is_none())).await.unwrap().unwrap();
    node.ends().await;
    state.close().await;
}

#[tokio::test]
async fn the_removal_of_a_deleted_pod_is_retried_until_it_is_stored() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    let uid = node.deletes(600).await;
    disk.platter().fault =
        Some(Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC });
    node.is_gone(&uid);
    let mut status = node.agent.posts.status();
    let failing = timeout(PATIENCE, status.wait_for(|status| status.failing.is_some())).await.unwrap();
    let error = failing.unwrap().failing.clone().unwrap().error;
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(node.posted(), Some(uid));
    disk.platter().fault = None;
    node.erases().await;
    timeout(PATIENCE, status.wait_for(|status| status.failing.is_none())).await.unwrap().unwrap();
}

/// On a slow disk each attempt takes long, and what is acknowledged meanwhile must not begin the next one.
#[tokio::test]
async fn writes_are_answered_while_a_deleted_pod_cannot_be_removed() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    let uid = node.deletes(600).await;
    disk.platter().fault =
        Some(Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC });
    node.is_gone(&uid);
    let gone = node.gone.clone();
    let changes = tokio::spawn(async move {
        loop {
            gone.send_modify(|_| ());
            yield_now().await;
        }
    });
    let mut status = node.agent.posts.status();
    timeout(PATIENCE, status.wait_for(|status| status.failing.is_some())).await.unwrap().unwrap();
    let answer = node.agent.result(Write::Create(pod("b#"))).await;
    assert!(answer.starts_with("error: "), "{answer}");
    disk.platter().fault = None;
    node.erases().await;
    changes.abort();
}

/// A disk of an agent that has ended while it deleted a pod, and the UID of the pod.
async fn with_deleted() -> (Disk, Uid) {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    let uid = node.deletes(1).await;
    node.ends().await;
    state.close().await;
    (disk, uid)
}

#[tokio::test]
async fn a_deletion_goes_on_after_a_restart() {
    let (disk, uid) = with_deleted().await;
    let mut state = State::open_on(&disk).unwrap();
    let node = Node::start(Some(&mut state));
    assert_eq!(node.posted(), Some(uid.clone()));
    let refused = node.agent.result(Write::Create(pod("a#"))).await;
    assert!(refused.contains("it is being deleted"), "{refused}");
    node.is_gone(&uid);
    node.erases().await;
    node.ends().await;
    state.close().await;

    let mut state = State::open_on(&disk).unwrap();
    assert_eq!(Node::start(Some(&mut state)).posted(), None);
}

/// The merged view is empty at first. That does not mean that another source has the name.
#[tokio::test]
async fn a_deleted_pod_whose_grace_has_ended_before_the_start_stays_until_the_runtime_no_longer_has_it() {
    let (disk, uid) = with_deleted().await;
    let mut state = State::open_on(&disk).unwrap();
    let later = Clock::from_fn(|| Timestamp::now() + SignedDuration::from_hours(1));
    let watch = state.watch(&NodeName::new("node").unwrap());
    let (node, merging) = Node::start_on(Host { clock: later, ..Host::default() }, Some(watch));
    // The source looks at its deleted pods after each write, and before the next one.
    for _ in 0..2 {
        assert!(node.agent.result(delete("default/none", None)).await.contains("not found"));
    }
    assert_eq!(node.posted(), Some(uid.clone()));
    tokio::spawn(merging.run());
    assert!(node.agent.result(Write::Create(pod("b#"))).await.contains("created"));
    assert_eq!(node.posted(), Some(uid.clone()));
    node.is_gone(&uid);
    node.erases().await;
    node.ends().await;
    state.close().await;
}

/// A state whose writer needs no thread: paused time stands while a thread works.
fn without_threads(disk: &Disk) -> (StateWatch, JoinHandle<()>) {
    let (db, writer, mut stored) =
        db::open_on(&Host::default(), disk.clone(), Path::new("disk"), UPGRADES).unwrap();
    let written = tokio::spawn(async move {
        writer.run_on(&Threads::inline(|| Duration::ZERO)).await.unwrap();
    });
    let posted = http::load(&mut stored, &NodeName::new("node").unwrap()).unwrap();
    let state = source::State::new(db, posted, stored);
    (watch::channel(Ok(Arc::new(state))).1, written)
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_between_two_runs_makes_no_grace_longer() {
    let disk = Disk::default();
    let (state, written) = without_threads(&disk);
    let (node, merging) = Node::start_on(paused(), Some(state));
    tokio::spawn(merging.run());
    node.deletes(20).await;
    node.ends().await;
    written.await.unwrap();

    let (state, written) = without_threads(&disk);
    let earlier = Timestamp::now() - SignedDuration::from_hours(1);
    let (mut node, merging) = Node::start_on(paused_at(earlier), Some(state));
    let begun = tokio::time::Instant::now();
    tokio::spawn(merging.run());
    let (channel, listing) = &mut node.file;
    listing.put(&Origin::from("a.yaml"), vec![script::pod("a#file")], Timestamp::UNIX_EPOCH);
    channel.publish(listing.listing());
    assert!(channel.merged().await);
    // The file's pod hides it, so it ends with its grace.
    node.erases().await;
    assert!(begun.elapsed() <= Duration::from_secs(21), "{:?}", begun.elapsed());
    node.ends().await;
    written.await.unwrap();
}
