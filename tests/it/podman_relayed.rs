//! The podman runtime when podman does not tell what happens, or refuses to stop a container.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use podmux::{
    pod::Uid,
    runtime::{
        KillPod, PodRuntime as _,
        podman::{Config, Podman as Runtime},
    },
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    podman::end,
    podman_adopted::{once, synced, until, with},
    support::{
        files::soon,
        podman::{Node, Podman, RUNS, container, pod, with_data},
        podman_relay::{Answer, PodmanRelay},
        process::wait_for,
    },
};

/// A relay that keeps podman's events to itself as long as the streams last that are open then.
fn silent(podman: &Podman) -> PodmanRelay {
    let mut has_begun = false;
    PodmanRelay::to(podman, move |request| {
        if request.contains("/events?") && !std::mem::replace(&mut has_begun, true) {
            Answer::Silence
        } else {
            Answer::Podmans
        }
    })
}

fn runtime(relay: &PodmanRelay, directory: &Path) -> Runtime {
    Runtime::new(Config::new(relay.socket(), directory.to_owned(), "me".into()))
}

/// How often podman was asked for the containers of a pod.
fn looks(relay: &PodmanRelay) -> usize {
    let is_look = |request: &&String| request.contains("/containers/json?") && request.contains("%22pod%22");
    relay.asked().iter().filter(is_look).count()
}

/// Syncs a pod that is started once, and waits until it runs. Returns its UID.
async fn started(runtime: &Runtime, name: &str) -> Uid {
    let sync = once(name, RUNS);
    runtime.sync(&sync).await.unwrap();
    until(runtime, sync.pod.uid(), "running", |status| status["phase"] == "Running").await;
    sync.pod.uid().clone()
}

/// podman 4.3 leaves a pod out while a container of it is made or removed.
#[tokio::test]
async fn a_pod_that_a_list_of_podman_leaves_out_goes_on() {
    let Some(podman) = Podman::start() else { return };
    let is_left_out = Arc::new(AtomicBool::new(false));
    let leaves_out = is_left_out.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        if request.contains("/pods/json?") && leaves_out.swap(false, Ordering::SeqCst) {
            Answer::Body("[]".into())
        } else {
            Answer::Podmans
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    with(&runtime, async || {
        let uid = started(&runtime, "web").await;
        runtime.list().await.unwrap();
        is_left_out.store(true, Ordering::SeqCst);
        let listed = soon(runtime.list()).await.unwrap();
        assert!(!is_left_out.load(Ordering::SeqCst), "it was left out");
        assert!(listed.iter().any(|pod| pod.uid == uid && pod.is_complete), "{listed:?}");
    })
    .await;
}

/// A pod that is being deleted would count as gone, and what is kept of its containers would be lost.
#[tokio::test]
async fn a_pod_that_the_first_list_of_podman_leaves_out_is_not_gone_and_keeps_its_files() {
    let Some(podman) = Podman::start() else { return };
    let left_out = Arc::new(AtomicUsize::new(0));
    let leaves_out = left_out.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let is_left_out = request.contains("/pods/json?")
            && leaves_out
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        if is_left_out { Answer::Body("[]".into()) } else { Answer::Podmans }
    });
    let directory = tempfile::tempdir().unwrap();
    let first = runtime(&relay, directory.path());
    let mut uid = None;
    with(&first, async || uid = Some(started(&first, "web").await)).await;
    let files = || fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files(), 1);
    // However often it is asked.
    left_out.store(1000, Ordering::SeqCst);
    runtime(&relay, directory.path()).list().await.unwrap();
    assert_eq!(files(), 1, "of a pod whose container runs");
    left_out.store(1, Ordering::SeqCst);
    let listed = runtime(&relay, directory.path()).list().await.unwrap();
    assert!(listed.iter().any(|pod| Some(&pod.uid) == uid.as_ref()), "{listed:?}");
    assert_eq!(left_out.load(Ordering::SeqCst), 0, "it was left out");
}

/// Otherwise a container that runs at most once would run again.
#[tokio::test]
async fn a_pod_without_its_namespaces_is_not_made_again_before_it_has_stopped() {
    let Some(podman) = Podman::start() else { return };
    let is_refused = Arc::new(AtomicBool::new(true));
    let refuses = is_refused.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        if request.contains("/kill?") && refuses.load(Ordering::SeqCst) {
            Answer::Refused("not now")
        } else {
            Answer::Podmans
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    // Two containers of the host's network have an infra container.
    let mut web = pod("web", RUNS);
    web["spec"]["containers"].as_array_mut().unwrap().push(container("d", RUNS));
    let sync = synced("web", web);
    let uid = sync.pod.uid();
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        let run = |status: &Value| {
            status["containerStatuses"]
                .as_array()
                .unwrap()
                .iter()
                .all(|one| one["state"]["running"].is_object())
        };
        until(&runtime, uid, "running", run).await;
        let containers = podman.run(&["ps", "--all", "--quiet", "--no-trunc"]);
        let infra = podman.json(&["pod", "inspect", "podmux_default_web"])["InfraContainerID"].clone();
        podman.run(&["kill", infra.as_str().unwrap()]);
        // It is tried again.
        let tries = async {
            while relay.asked().iter().filter(|request| request.contains("/kill?")).count() < 4 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        soon(tries).await;
        assert!(soon(runtime.list()).await.unwrap().iter().all(|pod| pod.is_complete));
        is_refused.store(false, Ordering::SeqCst);
        until(&runtime, uid, "over", |status| status["phase"] == "Succeeded").await;
        assert!(soon(runtime.list()).await.unwrap().iter().all(|pod| pod.is_complete));
        assert_eq!(podman.run(&["ps", "--all", "--quiet", "--no-trunc"]), containers);
    })
    .await;
}

/// Otherwise a slow podman would get the requests of all pods at the same time.
#[tokio::test]
async fn podman_has_at_most_8_requests_to_answer_at_once() {
    let Some(podman) = Podman::start() else { return };
    let held = Arc::new(AtomicUsize::new(0));
    let holds = held.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        if request.contains("/json?") {
            holds.fetch_add(1, Ordering::SeqCst);
            Answer::Silence
        } else {
            Answer::Podmans
        }
    });
    let (directory, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = Config::new(relay.socket(), directory.path().to_owned(), "me".into());
    let runtime = Runtime::new(Config { timeout: Duration::from_hours(1), ..config });
    let other = Runtime::new(Config::new(podman.socket(), another.path().to_owned(), "other".into()));
    let work = async {
        while held.load(Ordering::SeqCst) < 8 {
            sleep(Duration::from_millis(10)).await;
        }
        // It shows that more of them have had the time.
        other.list().await.unwrap();
        assert_eq!(held.load(Ordering::SeqCst), 8);
    };
    tokio::select! {
        lists = join_all((0..12).map(|_| runtime.list())) => panic!("answered: {lists:?}"),
        () = soon(work) => {}
    }
}

#[tokio::test]
async fn the_command_of_a_probe_does_not_wait_for_what_podman_does_for_other_pods() {
    let Some(podman) = Podman::start() else { return };
    let (is_busy, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (busy, holds) = (is_busy.clone(), held.clone());
    let relay = PodmanRelay::to(&podman, move |request| {
        if request.contains("/containers/create") && busy.load(Ordering::SeqCst) {
            holds.fetch_add(1, Ordering::SeqCst);
            Answer::Silence
        } else {
            Answer::Podmans
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new(relay.socket(), directory.path().to_owned(), "me".into());
    let runtime = Runtime::new(Config { timeout: Duration::from_hours(1), ..config });
    let mut web = pod("web", RUNS);
    let own = &mut web["spec"]["containers"][0];
    // The first command is a health check.
    own["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 10_000});
    own["readinessProbe"] = json!({
        "exec": {"command": ["test", "-e", "/bin"]}, "periodSeconds": 1, "timeoutSeconds": 60,
    });
    let sync = synced("web", web);
    let runs =
        || relay.asked().iter().filter(|asked| asked.contains("/exec/") && asked.ends_with("/json")).count();
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        let is_ready = |status: &Value| status["containerStatuses"][0]["ready"] == true;
        until(&runtime, sync.pod.uid(), "ready", is_ready).await;
        is_busy.store(true, Ordering::SeqCst);
        for index in 0..8 {
            runtime.sync(&once(&format!("busy{index}"), RUNS)).await.unwrap();
        }
        let reached = async |number: &dyn Fn() -> usize, wanted: usize| {
            while number() < wanted {
                sleep(Duration::from_millis(20)).await;
            }
        };
        soon(reached(&|| held.load(Ordering::SeqCst), 8)).await;
        soon(reached(&runs, runs() + 4)).await;
        assert_eq!(held.load(Ordering::SeqCst), 8);
        is_busy.store(false, Ordering::SeqCst);
        relay.break_silence();
    })
    .await;
    podman.end_exec_sessions();
}

/// Otherwise podman that goes on would have containers stopped that are well.
#[tokio::test]
async fn a_command_that_podman_did_not_run_because_it_hung_has_not_failed() {
    let Some(podman) = Podman::start() else { return };
    let answers = Arc::new(AtomicBool::new(true));
    let (now, mut has_hung) = (answers.clone(), false);
    let relay = PodmanRelay::to(&podman, move |request| {
        let hangs = !now.load(Ordering::SeqCst);
        if request.contains("/healthcheck") {
            let is_first = hangs && !std::mem::replace(&mut has_hung, hangs);
            return if is_first { Answer::Silence } else { Answer::Body(r#"{"Status": "healthy"}"#.into()) };
        }
        if is_inspection(request) { Answer::Later(now.clone()) } else { Answer::Podmans }
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1});
    let sync = synced("web", web);
    let asked = |is_it: fn(&str) -> bool| relay.asked().iter().filter(|asked| is_it(asked)).count();
    let (is_run, is_kill) =
        (|asked: &str| asked.contains("/healthcheck"), |asked: &str| asked.contains("/kill?"));
    let reached = async |is_it: fn(&str) -> bool, more: usize| {
        let wanted = asked(is_it) + more;
        let reached = async {
            while asked(is_it) < wanted && asked(is_kill) == 0 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        soon(reached).await;
    };
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        reached(is_run, 1).await;
        answers.store(false, Ordering::SeqCst);
        reached(is_inspection, 2).await;
        relay.break_silence();
        answers.store(true, Ordering::SeqCst);
        // Each run begins when the result of the one before has had its effect.
        reached(is_run, 3).await;
        assert_eq!(asked(is_kill), 0, "{:#?}", relay.asked());
    })
    .await;
}

/// Whether a container is inspected.
fn is_inspection(request: &str) -> bool {
    request.contains("/containers/") && request.ends_with("/json")
}

/// Otherwise the container would wait for the end of its delay.
#[tokio::test]
async fn an_image_that_has_appeared_is_looked_for_until_podman_answers() {
    let Some(podman) = Podman::start() else { return };
    let is_refused = Arc::new(AtomicBool::new(false));
    let refuses = is_refused.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        if request.contains("/images/") && refuses.swap(false, Ordering::SeqCst) {
            Answer::Refused("not now")
        } else {
            Answer::Podmans
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    let own = &mut web["spec"]["containers"][0];
    (own["image"], own["imagePullPolicy"]) = ("localhost/later:1".into(), "Never".into());
    let sync = synced("web", web);
    let is_of_image = |asked: &String| asked.contains("/images/");
    let mut before = 0;
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        let is_held = |status: &Value| {
            status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
        };
        until(&runtime, sync.pod.uid(), "without an image", is_held).await;
        before = relay.asked().iter().filter(|asked| is_of_image(asked)).count();
        is_refused.store(true, Ordering::SeqCst);
        podman.tag(&["localhost/later:1".to_owned()]);
        until(&runtime, sync.pod.uid(), "running", |status| status["phase"] == "Running").await;
    })
    .await;
    // Refused, looked for again, and used. At the end of the delay it would only be used.
    assert_eq!(
        relay.asked().iter().filter(|asked| is_of_image(asked)).count() - before,
        3,
        "{:#?}",
        relay.asked()
    );
}

/// The directory of its files may be full.
#[tokio::test]
async fn a_container_that_cannot_be_started_has_failed_also_if_that_cannot_be_written() {
    let Some(podman) = Podman::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().to_owned();
    let relay = PodmanRelay::to(&podman, move |request| {
        let container = request.strip_suffix("/start").and_then(|path| path.rsplit('/').next());
        for (id, pod) in container.into_iter().zip(fs::read_dir(&files).unwrap()) {
            // It may be tried again.
            let _ = fs::create_dir(pod.unwrap().path().join(format!("{id}.end")));
        }
        Answer::Podmans
    });
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["command"] = json!(["/none"]);
    let sync = synced("web", web);
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        until(&runtime, sync.pod.uid(), "failed", |status| status["phase"] == "Failed").await;
        let status = runtime.status(sync.pod.uid()).unwrap();
        let ended = &status["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(ended["reason"], "StartError", "{status:#}");
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_looked_at_after_what_was_done_for_it_and_then_left_alone() {
    let Some(podman) = Podman::start() else { return };
    let (relay, directory) = (silent(&podman), tempfile::tempdir().unwrap());
    let runtime = runtime(&relay, directory.path());
    with(&runtime, async || {
        // It wakes each pod when it begins to follow the events.
        soon(runtime.changed()).await;
        // The second one shows that the first one has had the time for more.
        for (name, expected) in [("first", 2), ("second", 4)] {
            started(&runtime, name).await;
            assert_eq!(looks(&relay), expected, "{:#?}", relay.asked());
        }
    })
    .await;
}

#[tokio::test]
async fn a_pod_whose_container_waits_for_another_one_is_not_looked_at_meanwhile() {
    let Some(podman) = Podman::start() else { return };
    let relay = PodmanRelay::to(&podman, |_| Answer::Podmans);
    let (directory, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let started = host.path().join("started");
    fs::write(&started, "").unwrap();
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host.path()}}]);
    web["spec"]["initContainers"] = json!([container("side", RUNS)]);
    let sidecar = &mut web["spec"]["initContainers"][0];
    sidecar["restartPolicy"] = "Always".into();
    sidecar["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    sidecar["startupProbe"] = json!({
        "exec": {"command": ["test", "-e", "/host/started"]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1000,
    });
    let main = &mut web["spec"]["containers"][0];
    (main["image"], main["imagePullPolicy"]) = ("localhost/none:1".into(), "Never".into());
    let sync = synced("web", web);
    let uid = sync.pod.uid();
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        let is_held = |status: &Value| {
            status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
        };
        until(&runtime, uid, "without an image", is_held).await;
        fs::remove_file(&started).unwrap();
        podman.run(&["kill", "podmux_default_web_side_0"]);
        until(&runtime, uid, "restarted", |status| status["initContainerStatuses"][0]["restartCount"] == 1)
            .await;
        let probes = || relay.asked().iter().filter(|request| request.contains("/healthcheck")).count();
        // One a second: the first ones take longer than the container is held.
        let begun = probes();
        let mut before = None;
        while probes() < begun + 16 {
            if probes() >= begun + 12 {
                before.get_or_insert_with(|| looks(&relay));
            }
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(looks(&relay), before.unwrap(), "{:#?}", relay.asked());
    })
    .await;
}

#[tokio::test]
async fn what_podman_did_not_tell_is_found_in_its_list() {
    let Some(podman) = Podman::start() else { return };
    let (relay, directory) = (silent(&podman), tempfile::tempdir().unwrap());
    let runtime = runtime(&relay, directory.path());
    with(&runtime, async || {
        soon(runtime.changed()).await;
        let (killed, removed) = (started(&runtime, "killed").await, started(&runtime, "removed").await);
        runtime.list().await.unwrap();
        // It shows that the others have had the time for more.
        started(&runtime, "last").await;
        assert_eq!(looks(&relay), 6, "a list without news brings none: {:#?}", relay.asked());
        for (uid, commands) in [(&killed, &["kill", "wait"][..]), (&removed, &["rm --force --time 0"])] {
            let container = runtime.status(uid).unwrap()["containerStatuses"][0].clone();
            let name = format!("podmux_default_{}_c_0", uid.trim_end_matches("-1"));
            for command in commands {
                podman.run(&command.split(' ').chain([&*name]).collect::<Vec<_>>());
            }
            runtime.list().await.unwrap();
            until(&runtime, uid, "another", |status| status["containerStatuses"][0] != container).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_run_that_an_operator_has_started_counts_also_if_it_ends_before_it_was_seen() {
    let Some(podman) = Podman::start() else { return };
    let (relay, directory) = (silent(&podman), tempfile::tempdir().unwrap());
    let runtime = runtime(&relay, directory.path());
    let sync = once("web", "[ -e /tmp/again ] && exit 0; touch /tmp/again; sleep 1; exit 3");
    let uid = sync.pod.uid();
    with(&runtime, async || {
        soon(runtime.changed()).await;
        runtime.sync(&sync).await.unwrap();
        until(&runtime, uid, "running", |status| status["phase"] == "Running").await;
        let code = |code: i32| {
            move |status: &Value| status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
        };
        let name = "podmux_default_web_c_0";
        podman.run(&["wait", name]);
        runtime.list().await.unwrap();
        until(&runtime, uid, "failed", code(3)).await;
        podman.run(&["start", name]);
        podman.run(&["wait", name]);
        runtime.list().await.unwrap();
        until(&runtime, uid, "completed", code(0)).await;
    })
    .await;
}

#[tokio::test]
async fn what_podman_did_not_tell_is_found_when_its_events_are_followed_again() {
    let Some(podman) = Podman::start() else { return };
    let (relay, directory) = (silent(&podman), tempfile::tempdir().unwrap());
    let runtime = runtime(&relay, directory.path());
    with(&runtime, async || {
        soon(runtime.changed()).await;
        let web = started(&runtime, "web").await;
        podman.run(&["kill", "podmux_default_web_c_0"]);
        podman.run(&["wait", "podmux_default_web_c_0"]);
        relay.break_silence();
        until(&runtime, &web, "failed", |status| status["phase"] == "Failed").await;
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_container_that_has_just_ended_is_in_the_last_status_of_its_pod() {
    let Some(podman) = Podman::start() else { return };
    let (relay, directory) = (silent(&podman), tempfile::tempdir().unwrap());
    let runtime = runtime(&relay, directory.path());
    with(&runtime, async || {
        soon(runtime.changed()).await;
        let web = started(&runtime, "web").await;
        let actual = runtime.list().await.unwrap().into_iter().find(|actual| actual.uid == web).unwrap();
        podman.run(&["kill", "podmux_default_web_c_0"]);
        podman.run(&["wait", "podmux_default_web_c_0"]);
        let kill = KillPod { actual, grace: None, pod: Some(once("web", RUNS).pod) };
        runtime.kill(&kill).await.unwrap();
        let status = runtime.status(&web).unwrap();
        let ended = &status["containerStatuses"][0]["state"]["terminated"];
        assert_eq!((&ended["exitCode"], &status["phase"]), (&json!(137), &json!("Failed")), "{status:#}");
    })
    .await;
}

/// A pod that runs a script, and has an infra container because it shares its processes.
fn with_infra(name: &str, script: &str) -> Value {
    let mut pod = pod(name, script);
    pod["spec"]["shareProcessNamespace"] = true.into();
    pod
}

fn has_succeeded(status: &Value) -> bool {
    status["phase"] == "Succeeded"
}

/// podman looks at one container after the other.
#[tokio::test]
async fn a_completed_pod_whose_container_is_listed_as_running_is_left_alone() {
    let Some(podman) = Podman::start() else { return };
    let listed = Arc::<Mutex<Option<String>>>::default();
    let answer = listed.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let is_list = request.contains("/containers/json?") && request.contains("%22label%22");
        let listed = answer.lock().unwrap().clone().filter(|_| is_list);
        listed.map_or(Answer::Podmans, Answer::Body)
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    let sync = synced("job", with_infra("job", "exit 0"));
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        until(&runtime, sync.pod.uid(), "completed", has_succeeded).await;
        let has_ended = |one: &Value| one["State"] == "exited";
        let over = async {
            loop {
                let all = podman.json(&["ps", "--all", "--format", "json"]);
                if all.as_array().unwrap().iter().all(has_ended) {
                    break all;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let mut all = soon(over).await;
        let own = all.as_array_mut().unwrap().iter_mut().find(|one| one["IsInfra"] == false).unwrap();
        (own["State"], own["Exited"]) = ("running".into(), false.into());
        *listed.lock().unwrap() = Some(all.to_string());
        let actual = runtime.list().await.unwrap().remove(0);
        assert!(actual.is_complete && actual.hash == sync.hash, "{actual:#?}");
    })
    .await;
}

/// The id of the infra container of a pod.
fn infra_of(podman: &Podman, name: &str) -> String {
    let pod = podman.json(&["pod", "inspect", &format!("podmux_default_{name}")]);
    pod["InfraContainerID"].as_str().unwrap().to_owned()
}

/// How often podman was asked to start a container.
fn starts(relay: &PodmanRelay) -> usize {
    relay.asked().iter().filter(|request| request.ends_with("/start")).count()
}

/// The agent is killed when it has created the container and before that was started, and then the machine ends.
#[tokio::test]
async fn a_pod_that_is_never_restarted_and_of_which_nothing_has_run_is_made_again_and_runs() {
    let Some(podman) = Podman::start() else { return };
    let mut starts_asked_for = 0;
    let relay = PodmanRelay::to(&podman, move |request| {
        let is_start = request.ends_with("/start");
        starts_asked_for += u32::from(is_start);
        // The first one is that of the infra container.
        if is_start && starts_asked_for == 2 { Answer::Silence } else { Answer::Podmans }
    });
    let directory = tempfile::tempdir().unwrap();
    let sync = synced("job", with_infra("job", RUNS));
    let first = runtime(&relay, directory.path());
    first.sync(&sync).await.unwrap();
    let created = async {
        while starts(&relay) < 2 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let stop = CancellationToken::new();
    tokio::select! {
        () = first.run(&stop) => {}
        () = soon(created) => {}
    }
    let infra = infra_of(&podman, "job");
    podman.run(&["kill", &infra]);
    podman.run(&["wait", &infra]);
    let second = runtime(&relay, directory.path());
    with(&second, async || {
        second.sync(&sync).await.unwrap();
        until(&second, sync.pod.uid(), "running", |status| status["phase"] == "Running").await;
    })
    .await;
}

/// Otherwise they would find it in their next list, up to a minute later.
#[tokio::test]
async fn the_workers_are_told_at_once_that_the_namespaces_of_a_pod_are_gone() {
    let Some(podman) = Podman::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let runtime = Runtime::new(Config::new(podman.socket(), directory.path().to_owned(), "me".into()));
    // No container of it runs, so the list itself does not show the loss.
    let mut web = with_infra("web", RUNS);
    let own = &mut web["spec"]["containers"][0];
    (own["image"], own["imagePullPolicy"]) = ("localhost/none:1".into(), "Never".into());
    let sync = synced("web", web);
    with(&runtime, async || {
        // It wakes each pod when it begins to follow the events.
        soon(runtime.changed()).await;
        runtime.sync(&sync).await.unwrap();
        let is_held = |status: &Value| {
            status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
        };
        until(&runtime, sync.pod.uid(), "without an image", is_held).await;
        assert!(runtime.list().await.unwrap()[0].is_complete);
        // What was told before does not count.
        let _ = timeout(Duration::ZERO, runtime.changed()).await;
        podman.run(&["kill", &infra_of(&podman, "web")]);
        let told = async {
            loop {
                runtime.changed().await;
                if !runtime.list().await.unwrap()[0].is_complete {
                    break;
                }
            }
        };
        soon(told).await;
    })
    .await;
}

#[tokio::test]
async fn a_container_that_an_operator_starts_forgets_an_earlier_failure_and_gives_way_to_a_newer_one() {
    let Some(podman) = Podman::start() else { return };
    let is_broken = Arc::new(AtomicBool::new(false));
    let refuses = is_broken.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let is_refused = request.contains("/containers/create") && refuses.load(Ordering::SeqCst);
        if is_refused { Answer::Refused("no space left") } else { Answer::Podmans }
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["restartPolicy"] = "OnFailure".into();
    let sync = synced("web", web);
    let uid = sync.pod.uid();
    let (old, new) = ("podmux_default_web_c_0", "podmux_default_web_c_1");
    let own = |status: &Value| status["containerStatuses"][0].clone();
    let is_failing = |status: &Value| own(status)["state"]["waiting"]["reason"] == "CreateContainerError";
    let runs = |status: &Value| own(status)["state"]["running"].is_object();
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        until(&runtime, uid, "running", runs).await;
        is_broken.store(true, Ordering::SeqCst);
        podman.run(&["kill", old]);
        until(&runtime, uid, "refused", is_failing).await;
        podman.run(&["start", old]);
        until(&runtime, uid, "running again", runs).await;
        is_broken.store(false, Ordering::SeqCst);
        podman.run(&["kill", old]);
        let is_restarted = |status: &Value| {
            assert!(!is_failing(status), "that was before: {status:#}");
            runs(status) && own(status)["restartCount"] == 1
        };
        until(&runtime, uid, "restarted", is_restarted).await;

        podman.run(&["start", old]);
        let state = |name: &str| podman.json(&["inspect", name])[0]["State"]["Status"].clone();
        let ended = async {
            while state(old) != "exited" {
                sleep(Duration::from_millis(50)).await;
            }
        };
        soon(ended).await;
        assert_eq!(state(new), "running");
    })
    .await;
}

/// podman looks an image up by its name when it creates a container.
#[tokio::test]
async fn a_container_that_may_not_run_as_root_is_not_started_if_its_image_was_replaced() {
    let Some(podman) = Podman::start() else { return };
    let relay = PodmanRelay::to(&podman, |request| {
        // That of podman has none, so it runs as root.
        let before = json!({"User": "1000"});
        if request.contains("/images/") { Answer::Body(before.to_string()) } else { Answer::Podmans }
    });
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    web["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    let sync = synced("web", web);
    let uid = sync.pod.uid();
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        let state = |status: &Value| status["containerStatuses"][0]["state"].clone();
        let is_decided = |status: &Value| {
            state(status)["running"].is_object() || state(status)["waiting"]["message"].is_string()
        };
        until(&runtime, uid, "started or refused", is_decided).await;
        let refused = json!({"waiting": {
            "reason": "CreateContainerConfigError",
            "message": "container has runAsNonRoot and would run as root",
        }});
        assert_eq!(state(&runtime.status(uid).unwrap()), refused);
    })
    .await;
    assert_eq!(starts(&relay), 0, "{:#?}", relay.asked());
}

/// podman was killed while it made the pod: it refuses each container of it.
#[test]
fn a_pod_that_podman_has_left_broken_is_made_again() {
    let Some(podman) = Podman::start() else { return };
    let mut is_broken = true;
    let relay = PodmanRelay::to(&podman, move |request| {
        is_broken &= !(request.starts_with("DELETE ") && request.contains("/pods/"));
        if is_broken && request.contains("/containers/create") {
            Answer::Refused("getting the pod's cgroup: internal libpod error")
        } else {
            Answer::Podmans
        }
    });
    let node = Node::at(&relay.socket());
    let agent = node.start();
    node.write("web.json", &pod("web", RUNS));
    node.ready("web");
    end(agent);
}

/// podman does not notice the end of a container whose conmon was killed.
#[tokio::test]
async fn an_infra_container_that_cannot_be_stopped_is_not_stopped_all_the_time() {
    let Some(podman) = Podman::start() else { return };
    let relay = PodmanRelay::to(&podman, |_| Answer::Podmans);
    let (directory, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let runtime = runtime(&relay, directory.path());
    let mut job = with_infra("job", "until [ -e /host/end ]; do sleep 0.1; done");
    job["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host.path()}}]);
    job["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    job["spec"]["terminationGracePeriodSeconds"] = 1.into();
    let sync = synced("job", job);
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        until(&runtime, sync.pod.uid(), "running", |status| status["phase"] == "Running").await;
        let infra = infra_of(&podman, "job");
        let conmon = &podman.json(&["inspect", &infra])[0]["State"]["ConmonPid"];
        let conmon = i32::try_from(conmon.as_i64().unwrap()).unwrap();
        kill_process(Pid::from_raw(conmon).unwrap(), Signal::KILL).unwrap();
        fs::write(host.path().join("end"), "").unwrap();
        until(&runtime, sync.pod.uid(), "completed", has_succeeded).await;
        let asked = |what: &str| {
            let asked = relay.asked();
            asked.iter().filter(|request| request.contains(&infra) && request.contains(what)).count()
        };
        let stopped = async {
            while asked("/stop?") == 0 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        soon(stopped).await;
        // It shows that the first one has had the time for more.
        started(&runtime, "last").await;
        // An event of podman may lead to another one.
        assert!((1..=3).contains(&asked("/kill?")), "{:#?}", relay.asked());
    })
    .await;
}

/// It is also what podman says of a container that ended with the machine.
#[tokio::test]
async fn a_container_with_an_exit_code_of_255_is_inspected_once() {
    let Some(podman) = Podman::start() else { return };
    let relay = PodmanRelay::to(&podman, |_| Answer::Podmans);
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime(&relay, directory.path());
    let mut web = pod("web", RUNS);
    web["spec"]["containers"].as_array_mut().unwrap().push(container("lost", "exit 255"));
    let sync = synced("web", web);
    with(&runtime, async || {
        runtime.sync(&sync).await.unwrap();
        let has_ended =
            |status: &Value| status["containerStatuses"][1]["state"]["terminated"]["exitCode"] == 255;
        until(&runtime, sync.pod.uid(), "ended", has_ended).await;
        podman.run(&["kill", "podmux_default_web_c_0"]);
        until(&runtime, sync.pod.uid(), "failed", |status| status["phase"] == "Failed").await;
        let lost = &podman.json(&["inspect", "podmux_default_web_lost_0"])[0]["Id"];
        let inspected = format!("/containers/{}/json", lost.as_str().unwrap());
        let asked = relay.asked();
        let inspections = asked.iter().filter(|request| request.contains(&inspected));
        assert_eq!(inspections.count(), 1, "{asked:#?}");
    })
    .await;
}

/// What podman lists, with a change of the container that was restarted once.
fn listed_with(podman: &Podman, change: impl FnOnce(&mut Value)) -> String {
    let mut all = podman.json(&["ps", "--all", "--format", "json"]);
    let is_it = |one: &&mut Value| one["Labels"]["podmux.restarts"] == "1";
    change(all.as_array_mut().unwrap().iter_mut().find(is_it).unwrap());
    all.to_string()
}

#[tokio::test]
async fn a_crash_loop_waits_five_minutes_at_most_and_ends_with_a_run_of_ten() {
    let Some(podman) = Podman::start() else { return };
    let listed = Arc::<Mutex<Option<String>>>::default();
    let answer = listed.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let mut listed = answer.lock().unwrap();
        if request.contains("/containers/create") {
            *listed = None;
        }
        let is_look = request.contains("/containers/json?") && request.contains("%22pod%22");
        listed.clone().filter(|_| is_look).map_or(Answer::Podmans, Answer::Body)
    });
    let directory = tempfile::tempdir().unwrap();
    let mut web = pod("web", "exit 3");
    web["spec"]["containers"][0]["restartPolicy"] = "OnFailure".into();
    let sync = synced("web", web);
    // Each agent takes over what podman lists then.
    let waits = async |restarts: u64, words: &str| {
        let runtime = runtime(&relay, directory.path());
        with(&runtime, async || {
            runtime.sync(&sync).await.unwrap();
            let is_so = |status: &Value| {
                let container = &status["containerStatuses"][0];
                let message = container["state"]["waiting"]["message"].as_str();
                container["restartCount"] == restarts
                    && message.is_some_and(|message| message.starts_with(words))
            };
            until(&runtime, sync.pod.uid(), words, is_so).await;
        })
        .await;
    };
    waits(1, "back-off 10s ").await;
    let long = |one: &mut Value| one["Labels"]["podmux.backoff"] = "9".into();
    let in_loop = listed_with(&podman, long);
    let good = listed_with(&podman, |one| {
        long(one);
        one["StartedAt"] = (one["ExitedAt"].as_i64().unwrap() - 600).into();
    });
    *listed.lock().unwrap() = Some(in_loop);
    waits(1, "back-off 300s ").await;
    *listed.lock().unwrap() = Some(good);
    waits(2, "back-off 10s ").await;
}

/// podman fails to list volumes of which one is removed meanwhile.
#[tokio::test]
async fn a_pod_is_there_until_its_volumes_are_gone_too() {
    let Some(podman) = Podman::start() else { return };
    let (is_broken, directory) = (Arc::new(AtomicBool::new(false)), tempfile::tempdir().unwrap());
    let refuses = is_broken.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let is_refused = request.contains("podmux_default_web_") && refuses.load(Ordering::SeqCst);
        if is_refused {
            Answer::Refused("no volume with name v found in database: no such volume")
        } else {
            Answer::Podmans
        }
    });
    let runtime = runtime(&relay, directory.path());
    let sync = synced("web", with_data(pod("web", RUNS)));
    let kill = async || {
        let actual = runtime.list().await.unwrap().remove(0);
        assert_eq!(&actual.uid, sync.pod.uid());
        runtime.kill(&KillPod { actual, grace: None, pod: None }).await
    };
    runtime.sync(&sync).await.unwrap();
    is_broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let error = kill().await.unwrap_err();
        assert_eq!(error.reason, "KillPodSandboxError", "{:?}", error.source);
        assert_eq!((podman.pods(), podman.volumes()), (vec![], vec!["podmux_default_web_data".to_owned()]));
        let left = runtime.list().await.unwrap().remove(0);
        assert!(!left.is_complete && left.status.is_some(), "{left:#?}");
    }
    is_broken.store(false, Ordering::SeqCst);
    kill().await.unwrap();
    assert_eq!((podman.volumes(), runtime.list().await.unwrap()), (vec![], vec![]));
    let asked = relay.asked();
    let mut lists = asked.iter().filter(|request| request.contains("/volumes/json"));
    assert!(lists.all(|list| list.contains("?filters=")), "each may fail for those of others: {asked:#?}");
}

/// Its volumes are made before it.
#[tokio::test]
async fn what_is_left_of_a_pod_that_podman_does_not_make_is_listed_and_killed_also_by_the_next_agent() {
    let Some(podman) = Podman::start() else { return };
    let relay = PodmanRelay::to(&podman, |request| {
        if request.contains("/pods/create") { Answer::Refused("not now") } else { Answer::Podmans }
    });
    let directory = tempfile::tempdir().unwrap();
    let sync = synced("web", with_data(pod("web", RUNS)));
    for has_ended in [false, true] {
        let first = runtime(&relay, directory.path());
        first.sync(&sync).await.unwrap_err();
        assert_eq!(podman.volumes(), ["podmux_default_web_data"]);
        let runtime = if has_ended { runtime(&relay, directory.path()) } else { first };
        let mut listed = runtime.list().await.unwrap();
        let seen: Vec<_> = listed
            .iter()
            .map(|left| (&left.uid, &left.hash, left.source, left.is_ours, left.is_complete))
            .collect();
        assert_eq!(seen, [(sync.pod.uid(), &sync.hash, sync.source, true, false)]);
        let kill = KillPod { actual: listed.remove(0), grace: None, pod: None };
        runtime.kill(&kill).await.unwrap();
        assert_eq!((podman.volumes(), runtime.list().await.unwrap()), (vec![], vec![]));
    }
}

/// podman was killed while it made the pod again.
#[test]
fn an_empty_dir_stays_when_podman_cannot_use_what_it_has_stored_of_its_pod() {
    let Some(podman) = Podman::start() else { return };
    let refusals = Arc::new(AtomicUsize::new(0));
    let left = refusals.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let is_refused = request.contains("/containers/create")
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if is_refused { Answer::Refused("internal libpod error") } else { Answer::Podmans }
    });
    let node = Node::at(&relay.socket());
    let agent = node.start();
    node.write("web.json", &with_data(pod("web", RUNS)));
    node.ready("web");
    let inside = |script: &str| podman.run(&["exec", "podmux_default_web-node1_c_0", "sh", "-c", script]);
    inside("touch data/old; chmod 700 data");
    // A creation that is refused is tried once more.
    refusals.store(2, Ordering::SeqCst);
    let infra = podman.json(&["pod", "inspect", "podmux_default_web-node1"])["InfraContainerID"].clone();
    podman.run(&["kill", infra.as_str().unwrap()]);
    wait_for(|| (refusals.load(Ordering::SeqCst) == 0).then_some(()));
    agent.logs("the runtime no longer has all of the pod");
    node.ready("web");
    assert_eq!(inside("stat -c %a data; ls data"), "700\nold\n");
    end(agent);
    podman.end_exec_sessions();
}

#[test]
fn a_container_that_podman_did_not_stop_is_stopped_when_its_probe_fails_again() {
    let Some(podman) = Podman::start() else { return };
    let mut is_refused = false;
    let relay = PodmanRelay::to(&podman, move |request| {
        if request.contains("/kill?") && !is_refused {
            is_refused = true;
            return Answer::Refused("it is busy");
        }
        Answer::Podmans
    });
    let node = Node::at(&relay.socket());
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["containers"][0]["livenessProbe"] = json!({
        "exec": {"command": ["false"]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 2,
    });
    node.write("web.json", &web);
    let status = node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["message"], "stopped: Liveness probe failed: exit code 1", "{status:#}");
    let asked = relay.asked();
    let last = |request: &String| {
        ["healthcheck", "kill"].into_iter().find(|what| request.contains(&format!("/{what}")))
    };
    let asked: Vec<&str> = asked.iter().filter_map(last).take(5).collect();
    assert_eq!(asked, ["healthcheck", "healthcheck", "kill", "healthcheck", "kill"]);
    end(agent);
}

/// An agent that is killed while it stops a container, before or after podman has sent the signal.
#[test]
fn a_stop_that_podman_was_not_asked_for_counts_for_nothing_and_one_that_goes_on_counts() {
    for is_lost in [true, false] {
        let Some(podman) = Podman::start() else { return };
        let relay = PodmanRelay::to(&podman, move |request| {
            if is_lost && request.contains("/kill?") { Answer::Silence } else { Answer::Podmans }
        });
        let node = Node::at(&relay.socket());
        let host = node.path("host");
        fs::create_dir(&host).unwrap();
        let agent = node.start();
        let work = "until [ -e /host/done ]; do sleep 0.1; done; exit 0";
        let mut job = pod("job", &format!("trap '{work}' TERM; {work}"));
        job["spec"]["terminationGracePeriodSeconds"] = 600.into();
        job["spec"]["restartPolicy"] = "OnFailure".into();
        job["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
        let own = &mut job["spec"]["containers"][0];
        own["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
        own["livenessProbe"] = json!({
            "exec": {"command": ["test", "!", "-e", "/host/sick"]},
            "periodSeconds": 3, "timeoutSeconds": 60, "failureThreshold": 2,
        });
        node.write("job.json", &job);
        node.ready("job");
        fs::write(host.join("sick"), "").unwrap();
        let last = if is_lost { "/kill?" } else { "/wait?" };
        wait_for(|| relay.asked().iter().any(|request| request.contains(last)).then_some(()));
        agent.signal(Signal::KILL);
        agent.ends();
        relay.break_silence();
        fs::remove_file(host.join("sick")).unwrap();

        let agent = node.start();
        node.ready("job");
        assert!(!podman.pids("default", "job-node1").is_empty());
        fs::write(host.join("done"), "").unwrap();
        let status = node.until("job", "completed", |status| status["phase"] == "Succeeded");
        assert_eq!(status["containerStatuses"][0]["restartCount"], i32::from(!is_lost), "{status:#}");
        end(agent);
        podman.end_exec_sessions();
    }
}

#[test]
fn a_container_gets_the_stop_signal_of_its_image() {
    let Some(podman) = Podman::start() else { return };
    podman.import_with(&["STOPSIGNAL SIGUSR1"], "localhost/signal:1");
    let node = Node::new(&podman);
    let agent = node.start();
    let script = |signal: &str| format!("trap 'echo {signal} > /host/signal; exit 0' {signal}");
    let mut web = pod("web", &format!("{}; {}; while :; do sleep 0.1; done", script("USR1"), script("TERM")));
    web["spec"]["containers"][0]["image"] = "localhost/signal:1".into();
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": node.path("")}}]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    node.write("web.json", &web);
    node.ready("web");
    // It is the second of its traps.
    podman.wait_for_traps("default", "web-node1");
    node.remove("web.json");
    wait_for(|| podman.pods().is_empty().then_some(()));
    assert_eq!(fs::read_to_string(node.path("signal")).unwrap(), "USR1\n");
    end(agent);
}

/// podman's storage has lost an ended container.
#[test]
fn an_ended_container_that_podman_cannot_inspect_holds_up_nothing() {
    let Some(podman) = Podman::start() else { return };
    let broken = Arc::new(Mutex::new(String::new()));
    let refused = broken.clone();
    let relay = PodmanRelay::to(&podman, move |request| {
        let id = refused.lock().unwrap();
        if !id.is_empty() && request.contains(&format!("/containers/{id}/json")) {
            Answer::Refused("container not known")
        } else {
            Answer::Podmans
        }
    });
    let node = Node::at(&relay.socket());
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["restartPolicy"] = "OnFailure".into();
    web["spec"]["containers"].as_array_mut().unwrap().push(container("job", "exit 0"));
    node.write("web.json", &web);
    let ended = |status: &Value| status["containerStatuses"][1]["state"]["terminated"].clone();
    let is_ready = |status: &Value| status["containerStatuses"][0]["ready"] == true;
    node.until("web", "half over", |status| is_ready(status) && ended(status).is_object());
    let job = podman.json(&["inspect", "podmux_default_web-node1_job_0"])[0]["Id"].clone();
    end(agent);
    *broken.lock().unwrap() = job.as_str().unwrap().to_owned();

    let agent = node.start();
    let status = node.until("web", "adopted", is_ready);
    let ended = ended(&status);
    let shown = (&ended["exitCode"], &ended["message"]);
    assert_eq!(shown, (&json!(0), &json!("container not known")), "{status:#}");
    podman.run(&["kill", "podmux_default_web-node1_c_0"]);
    node.until("web", "restarted", |status| {
        is_ready(status) && status["containerStatuses"][0]["restartCount"] == 1
    });
    end(agent);
}
