//! Pulls by a real podman: their progress in the status of the pod, and on the terminal of the agent.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    podman::{Node, Podman, RUNS, container, pod},
    process::{Lines, Process, podmux, terminal, wait_for},
    registry::{LAYERS, Registry},
};

fn waiting<'s>(status: &'s Value, list: &str) -> &'s Value {
    &status[list][0]["state"]["waiting"]
}

/// The columns NAME and STATUS of a pod.
fn column(node: &Node, name: &str) -> String {
    let output = podmux(&["get", "pods", "--no-headers", &format!("{name}-node1")])
        .env("PODMUX_SERVER", node.address())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().nth(2).unwrap_or_default().to_owned()
}

#[test]
fn a_pull_is_shown_while_it_lasts() {
    let Some(podman) = Podman::start() else { return };
    let (registry, node) = (Registry::start(), Node::new(&podman));
    let (ours, theirs) = terminal();
    let agent = Process::start(node.command(&[]).stderr(theirs));
    let shown = Lines::default();
    shown.read(ours);

    let image = registry.image("1");
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["image"] = image.as_str().into();
    node.write("web.json", &web);
    let status = node.until("web", "asking the registry", |status| {
        let message = waiting(status, "containerStatuses")["message"].as_str();
        message.is_some_and(|message| message.ends_with(&format!("Trying to pull {image}...")))
    });
    assert_eq!(status["phase"], "Pending");
    let message = format!("pulling image {image:?}: Trying to pull {image}...");
    assert_eq!(
        *waiting(&status, "containerStatuses"),
        json!({"reason": "ContainerCreating", "message": message})
    );
    assert_eq!(column(&node, "web"), "Pulling");
    let mut watch = podmux(&["get", "pods", "--no-headers", "--watch"]);
    let watch = Process::start(watch.env("PODMUX_SERVER", node.address()));
    let is_shown = |name: &str, status: &str| {
        let is_it = |line: &String| line.split_whitespace().take(3).eq([name, "0/1", status]);
        watch.stdout.wait_for(status, |lines| lines.iter().any(is_it).then_some(()));
    };
    is_shown("web-node1", "Pulling");

    let mut with_init = pod("with-init", RUNS);
    with_init["spec"]["initContainers"] = json!([container("i", "true")]);
    with_init["spec"]["initContainers"][0]["image"] = registry.image("2").into();
    node.write("with-init.json", &with_init);
    let status = node.until("with-init", "asking the registry", |status| {
        waiting(status, "initContainerStatuses")["message"].is_string()
    });
    assert_eq!(waiting(&status, "initContainerStatuses")["reason"], "PodInitializing");
    assert_eq!(*waiting(&status, "containerStatuses"), json!({"reason": "PodInitializing"}));
    assert_eq!(column(&node, "with-init"), "Init:0/1");
    let is_on_it = |text: &str| {
        wait_for(|| {
            // It is answered with a line of the log, which ends the line before it.
            node.pod("web");
            shown.text().contains(text).then_some(())
        });
    };
    is_on_it(" (and 1 more)");

    registry.open("manifests/1");
    registry.open(&registry.config);
    let copying = format!("pulling image {image:?}: copying layer {LAYERS}");
    node.until("web", "copying its layers", |status| {
        waiting(status, "containerStatuses")["message"] == copying
    });
    is_on_it(&copying);
    is_shown("web-node1", &format!("Pulling:{LAYERS}"));
    registry.open("blobs");
    node.ready("web");
    is_on_it("image pulled");
    registry.open("manifests/2");
    node.ready("with-init");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    shown.wait_for_end();
    let all = shown.text();
    // What is left of each line when what was erased is left out: nothing of a pull.
    for line in all.lines().filter(|line| !line.contains("DEBUG")) {
        let left = line.rsplit_once("\x1b[K").map_or(line, |(_, left)| left);
        assert!(!left.contains("pulling image"), "{line:?}");
    }
}

#[test]
fn of_what_a_registry_says_4_kib_are_shown() {
    let Some(podman) = Podman::start() else { return };
    let (registry, node) = (Registry::start(), Node::new(&podman));
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["image"] = registry.image("refused").into();
    registry.open("refused");
    node.write("web.json", &web);
    let status = node
        .until("web", "refused", |status| waiting(status, "containerStatuses")["reason"] == "ErrImagePull");
    let message = waiting(&status, "containerStatuses")["message"].as_str().unwrap();
    assert!(message.contains("xxx") && message.len() < 5000, "{} bytes: {message:.200}", message.len());
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}
