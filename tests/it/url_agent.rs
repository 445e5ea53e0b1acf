//! `podmux run --manifest-url`: the real binary at a real web server.

use std::fs;

use rustix::process::Signal;

use crate::support::{
    files::pod,
    plain::Connection,
    process::{Process, podmux, wait_for},
    web::{Reply, Web},
};

fn run(args: &[&str]) -> Process {
    let mut all = vec!["run", "--node-name", "node1", "--listen", "none"];
    all.extend(args);
    Process::start(&mut podmux(&all))
}

#[tokio::test(flavor = "multi_thread")]
async fn timely_shutdown_url() {
    let web = Web::start(Reply::mute()).await;
    let agent = run(&["--state-dir", "none", "--manifest-url", &web.url]);
    web.asked(1).await;
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(log.ends_with("stopped"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_polls_reloads_and_keeps_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let url = web.at("/pods?token=s3cret").replace("http://", "http://user:s3cret@");
    let configure = |secret: &str| {
        let text = format!(
            "manifestUrl: \"{url}\"\nmanifestUrlHeader: [\"X-Token: {secret}\"]\nhttpCheckFrequency: 1h\n"
        );
        fs::write(&config, text).unwrap();
    };
    configure("s3cret-1");
    let agent = run(&["--state-dir", "none", "--config", config.to_str().unwrap(), "-vvv"]);
    agent.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    assert_eq!(web.seen()[0].header("x-token"), "s3cret-1");

    web.say(Reply::new(503, "s3cret"));
    configure("s3cret-2");
    agent.signal(Signal::HUP);
    agent.logs("the server answered 503 Service Unavailable");
    assert_eq!(web.asked(2).await[1].header("x-token"), "s3cret-2");

    web.say(Reply::ok(pod("web", "i:2")));
    agent.signal(Signal::HUP);
    agent.logs("recovered");
    agent.holds("the update", |held| held.pods["default/web-node1"].contains("i:2"));
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(!log.contains("s3cret"), "{log}");
}

/// To the kubelet's annotation both are `http`.
#[tokio::test(flavor = "multi_thread")]
async fn get_pods_distinguishes_polled_and_posted_pods() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    // As it comes out of a cluster.
    let exported = pod("exported", "i:1").replace(
        "  name: exported\n",
        "  name: exported\n  uid: its-own\n  creationTimestamp: \"2026-01-02T03:04:05Z\"\n  resourceVersion: \"7\"\n  generation: 1\n",
    );
    let web = Web::start(Reply::ok(format!("{exported}---\n{}", pod("plain", "i:1")))).await;
    let socket = format!("unix:{}", at("socket"));
    let args = ["run", "--node-name", "node1", "--listen", &socket, "--state-dir", &at("state")];
    for run in 1..=2 {
        let agent = Process::start(podmux(&args).args(["--manifest-url", &web.url]));
        agent.holds("the polled pods", |held| held.pods.contains_key("default/exported-node1"));
        if run == 1 {
            fs::write(at("posted.yaml"), pod("posted-node1", "i:1")).unwrap();
            let applied = podmux(&["apply", "-f", &at("posted.yaml"), "--server", &socket]).output().unwrap();
            assert!(applied.status.success(), "{applied:?}");
        }
        agent.holds("the posted pod", |held| held.pods.contains_key("default/posted-node1"));
        let table =
            podmux(&["get", "pods", "--no-headers", "-o", "wide", "--server", &socket]).output().unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().step_by(7).collect()).collect();
        assert_eq!(rows, [["exported-node1", "url"], ["plain-node1", "url"], ["posted-node1", "http"]]);
        agent.signal(Signal::TERM);
        assert_eq!(agent.ends().0, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_while_the_url_is_down_restores_its_pods() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let args = ["--state-dir", state.to_str().unwrap(), "--manifest-url", &web.url];
    for _ in 0..2 {
        let agent = run(&args);
        agent.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
        agent.signal(Signal::TERM);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
        web.say(Reply::new(503, "busy"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_waits_for_its_sources_is_stopped_as_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let args = ["--state-dir", state.to_str().unwrap(), "--manifest-url", &web.url];
    let agent = run(&args);
    agent.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    let polls = web.seen().len();
    web.say(Reply::mute());
    let agent = run(&args);
    web.asked(polls + 1).await;
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    // Its tasks have ended by themselves.
    assert!(log.ends_with("stopped"), "{log}");
}

/// While the agent waits for the URL, it has no pods.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_not_answered_before_the_restored_pods_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let (state, socket) = (directory.path().join("state"), directory.path().join("s"));
    let listen = format!("unix:{}", socket.display());
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let args = ["run", "--node-name", "node1", "--state-dir", state.to_str().unwrap(), "--listen", &listen];
    let start = || Process::start(podmux(&args).args(["--manifest-url", &web.url]));
    let agent = start();
    agent.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    web.say(Reply::mute());
    let agent = start();
    let mut connection = wait_for(|| Connection::unix(&socket).ok());
    let answer = connection.ask("GET", "/api/v1/pods", b"").unwrap();
    assert!(answer.code == 200 && answer.text().contains("web-node1"), "{}", answer.text());
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}
