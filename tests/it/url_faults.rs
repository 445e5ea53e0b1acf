//! Faults of a URL: the pods stay, each fault is logged once, and no secret is logged.

use std::{
    fs, io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderValue;
use podmux::{certificate_files::CertificateFiles, manifest::MAX_MANIFEST, storage::SourceState};
use tracing::subscriber::set_default;
use tracing_subscriber::fmt::Subscriber;

use crate::{
    support::{
        files::{pod, soon},
        logs::logged,
        polled::{Polled, settings},
        web::{Authority, Reply, Step, Web, refusing},
    },
    url::NO_PODS,
};

/// A web server and a synced source with one pod.
async fn at_work() -> (Web, Polled) {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let mut source = Polled::start(&web.at("/pods"));
    source.receives("ADD: web=i:1").await;
    (web, source)
}

// TestURLErrorNotExistNoUpdate
#[tokio::test]
async fn an_unreachable_url_publishes_nothing() {
    let (_kept, free) = refusing();
    let mut source = Polled::start(&format!("http://{free}/_not_found_"));
    source.receives_nothing().await;
    assert_eq!(source.state(), SourceState::Waiting);
    let refused = format!("{free} refused the connection");
    assert!(source.error().starts_with(&refused), "{}", source.error());
    assert_eq!(source.status().target, format!("http://{free}/_not_found_"));
    assert_eq!(source.status().last_success, None);
}

// TestExtractFromHttpBadness, and upstream untested: non-200
#[tokio::test]
async fn any_status_but_200_is_an_error_that_keeps_the_pods() {
    let web = Web::start(Reply::new(404, "not found")).await;
    let mut waiting = Polled::start(&web.at("/_not_found_"));
    waiting.receives_nothing().await;
    assert_eq!(waiting.state(), SourceState::Waiting);
    let expected = "200 with the manifests is expected";
    assert_eq!(
        waiting.error(),
        format!("the server answered 404 Not Found (is the path right?); {expected}")
    );

    let (web, mut source) = at_work().await;
    for (status, expected_error) in [
        (201, "201 Created"),
        (204, "204 No Content"),
        (206, "206 Partial Content"),
        (302, "302 Found"),
        (401, "401 Unauthorized (does --manifest-url-header carry the right credentials?)"),
        (403, "403 Forbidden (does --manifest-url-header carry the right credentials?)"),
        (500, "500 Internal Server Error"),
        (503, "503 Service Unavailable"),
    ] {
        let body = if status == 204 { String::new() } else { pod("web", "i:2") };
        web.say(Reply::new(status, body));
        source.receives_nothing().await;
        assert_eq!(source.error(), format!("the server answered {expected_error}; {expected}"));
    }
    assert_eq!(source.status().failing.unwrap().attempts, 8);
    assert_eq!(source.rejections(), [""; 0], "the manifest is not rejected");
}

/// A reader of the status finds the reason in the log.
#[tokio::test]
async fn a_failure_and_its_end_are_logged_before_the_status_shows_them() {
    let (web, mut source) = at_work().await;
    let (status, failing) = (source.handle.status(), Arc::new(Mutex::new(Vec::new())));
    let notes = Arc::clone(&failing);
    let look = move || {
        notes.lock().unwrap().push(status.borrow().failing.is_some());
        io::sink()
    };
    let _log = set_default(Subscriber::builder().with_writer(look).finish());
    web.say(Reply::new(503, ""));
    source.receives_nothing().await;
    web.say(Reply::ok(pod("web", "i:1")));
    source.publishes_nothing().await;
    assert_eq!(*failing.lock().unwrap(), [false, true]);
}

// Untested upstream: HTTP empty body, same body after empty
#[tokio::test]
async fn an_empty_body_is_an_error_and_the_same_body_after_it_publishes_nothing() {
    let (web, mut source) = at_work().await;
    web.say(Reply::ok(""));
    source.receives_nothing().await;
    let error = source.error();
    assert!(error.starts_with("the body is empty; to remove all pods, serve an empty list: "), "{error}");
    let list = error.split_once("serve an empty list: ").unwrap().1.to_owned();
    web.say(Reply::ok(pod("web", "i:1")));
    source.publishes_nothing().await;
    assert_eq!(source.status().failing, None);
    // The list in the error removes all pods.
    web.say(Reply::ok(list.clone()));
    source.poll().await;
    source.receives("REMOVE: web=i:1").await;
    assert_eq!(list, NO_PODS);
}

// Untested upstream: broken then unchanged
#[test]
fn a_rejected_body_is_counted_each_time_and_logged_once() {
    logged(|log| async move {
        let (web, mut source) = at_work().await;
        let bad = pod("web", "i:2").replace("image: i:2", "image: 7");
        web.say(Reply::ok(bad.clone()).header("ETag", "\"bad\""));
        for attempts in 1..=3 {
            source.receives_nothing().await;
            let failing = source.status().failing.unwrap();
            assert_eq!(failing.attempts, attempts);
            assert!(failing.error.starts_with("8:12: spec.containers[0].image: "), "{}", failing.error);
        }
        assert_eq!(web.seen().last().unwrap().header("if-none-match"), "", "the request is not conditional");
        assert_eq!(source.rejections().len(), 1);
        assert!(source.rejections()[0].starts_with(&format!("{}: 8:12: ", web.at("/pods"))));
        let logged = log.lines_with("manifest rejected");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("pods_kept=1"), "{logged:?}");
        assert_eq!(log.lines_with("recovered").len(), 0);

        web.say(Reply::ok(pod("web", "i:2")));
        source.poll().await;
        source.receives("UPDATE: web=i:2").await;
        assert_eq!((source.status().failing, source.rejections().len()), (None, 0));
        source.receives_nothing().await;
        assert_eq!(log.lines_with("recovered").len(), 1);
        assert!(log.lines_with("recovered")[0].contains("failed=3"));
        // The next outage is logged again.
        web.say(Reply::ok(bad));
        source.receives_nothing().await;
        assert_eq!(log.lines_with("manifest rejected").len(), 2);
        // Only the current cause is shown.
        web.say(Reply::new(503, "busy"));
        source.receives_nothing().await;
        assert!(source.error().contains("503"), "{}", source.error());
        assert_eq!(source.rejections(), [""; 0]);
    });
}

// Untested upstream: log throttle
#[test]
fn each_of_a_few_errors_of_an_outage_is_logged_once() {
    logged(|log| async move {
        let (web, mut source) = at_work().await;
        for _ in 0..3 {
            for status in 500..=511 {
                web.say(Reply::new(status, "busy"));
                source.receives_nothing().await;
            }
        }
        assert_eq!(source.status().failing.unwrap().attempts, 36);
        let logged = log.lines_with("source failed");
        assert_eq!(logged.len(), 8, "{logged:?}");
        assert!(logged[0].contains("500 Internal Server Error") && logged[7].contains("507"), "{logged:?}");
        web.say(Reply::ok(pod("web", "i:1")));
        source.receives_nothing().await;
        assert_eq!(log.lines_with("recovered").len(), 1);
    });
}

#[tokio::test]
async fn a_rejected_body_before_the_first_sync_leaves_the_source_waiting() {
    let web = Web::start(Reply::ok("{")).await;
    let mut source = Polled::start(&web.url);
    source.receives_nothing().await;
    assert_eq!((source.state(), source.rejections().len()), (SourceState::Waiting, 0));
    assert!(source.status().failing.is_some());
    assert!(source.status().failing.is_some());
    web.say(Reply::ok(pod("web", "i:1")));
    source.poll().await;
    source.receives("ADD: web=i:1").await;
}

// Untested upstream: list with one bad item
#[tokio::test]
async fn a_list_with_an_invalid_item_is_rejected() {
    let (web, mut source) = at_work().await;
    let bad = pod("b", "i:2").replace("name: c\n", "name: 7\n");
    web.say(Reply::ok(
        [pod("web", "i:2"), bad, pod("c", "i:2").replace("kind: Pod", "kind: Job")].join("---\n"),
    ));
    source.receives_nothing().await;
    assert!(source.error().contains("spec.containers[0].name"), "{}", source.error());
    assert!(source.error().ends_with("(and 1 more error)"), "{}", source.error());
}

// TestExtractInvalidPods: no version, bad version, bad volume name, duplicate
// volume names, empty container name, bad container name
#[tokio::test]
async fn invalid_pods_are_rejected() {
    let (web, mut source) = at_work().await;
    let pod = |version: &str, spec: &str| {
        format!("{version}kind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - image: i:2\n{spec}")
    };
    let (v1, named) = ("apiVersion: v1\n", "    name: c\n");
    for (manifest, expected_error) in [
        (pod("", named), "1:1: apiVersion: Required value: apiVersion: v1 is expected"),
        (
            pod("apiVersion: v1betta2\n", named),
            "1:13: apiVersion: the version of Pod is \"v1betta2\": write apiVersion: v1",
        ),
        (
            pod(v1, &format!("{named}  volumes:\n  - name: _INVALID_\n    emptyDir: {{}}\n")),
            "10:11: spec.volumes[0].name: Invalid value: \"_INVALID_\"",
        ),
        (
            pod(
                v1,
                &format!(
                    "{named}  volumes:\n  - {{name: vol, emptyDir: {{}}}}\n  - {{name: vol, emptyDir: {{}}}}\n"
                ),
            ),
            "11:12: spec.volumes[1].name: Duplicate value: \"vol\"",
        ),
        (pod(v1, "    name: \"\"\n"), "8:11: spec.containers[0].name: Required value"),
        (pod(v1, "    name: _INVALID_\n"), "8:11: spec.containers[0].name: Invalid value: \"_INVALID_\""),
    ] {
        web.say(Reply::ok(manifest));
        source.receives_nothing().await;
        assert!(source.error().starts_with(expected_error), "{} instead of {expected_error}", source.error());
    }
}

// Untested upstream: over 10 MiB
#[tokio::test]
async fn a_body_over_10_mib_is_an_error_with_and_without_content_length() {
    let (web, mut source) = at_work().await;
    let too_much = format!("sent more than the limit of {MAX_MANIFEST} bytes");
    let mebibyte = Step::Send(Bytes::from(format!("#{}\n", " ".repeat(1024 * 1024 - 2))));
    let eleven: Vec<Step> = vec![mebibyte.clone(); 11];
    for length in [Some(11 * 1024 * 1024), None] {
        web.say(Reply::steps(length, eleven.clone()));
        source.receives_nothing().await;
        assert!(source.error().ends_with(&too_much), "{}", source.error());
    }
    // 10 MiB are accepted.
    let mut ten = eleven[..9].to_vec();
    let manifest = pod("web", "i:2");
    ten.push(Step::Send(format!("{manifest}#{}", " ".repeat(1024 * 1024 - manifest.len() - 1)).into()));
    web.say(Reply::steps(None, ten));
    source.poll().await;
    source.receives("UPDATE: web=i:2").await;
}

#[tokio::test]
async fn a_slow_body_and_a_silent_server_time_out() {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let mut settings = settings(&web.url);
    // A busy machine may be that slow itself, then the next poll succeeds.
    settings.check_frequency = Duration::from_millis(20);
    let mut source = Polled::start_with(settings, |source| source.with_timeout(Duration::from_millis(300)));
    source.receives("ADD: web=i:1").await;
    let trickle = [Step::Send("#".into()), Step::Pause(Duration::from_millis(20))];
    for reply in [Reply::mute(), Reply::steps(None, trickle.iter().cycle().take(200_000).cloned().collect())]
    {
        web.say(reply);
        source.receives_nothing().await;
        let error = source.error();
        assert!(error.ends_with("sent no complete response within 300ms"), "{error}");
    }
}

#[tokio::test]
async fn a_truncated_body_is_an_error() {
    let (web, mut source) = at_work().await;
    // The received part is a valid manifest.
    for length in [Some(1000), None] {
        web.say(Reply::steps(length, vec![Step::Send(pod("web", "i:2").into()), Step::Break]));
        source.receives_nothing().await;
        let error = source.error();
        assert!(error.ends_with("closed the connection before its response was complete"), "{error}");
    }
}

#[tokio::test]
async fn it_stops_during_a_request() {
    let (web, source) = at_work().await;
    web.say(Reply::mute());
    source.handle.rescan();
    web.asked(2).await;
    source.end().await;

    let web = Web::start(Reply::steps(Some(10), vec![Step::Send("a".into()), Step::Hang])).await;
    let source = Polled::start(&web.url);
    web.asked(1).await;
    source.end().await;
}

#[tokio::test]
async fn tls_with_a_private_ca_and_client_certificates_that_are_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let other = Authority::new(directory.path(), "other");
    let config = ours.server("localhost", Some(&ours));
    let web = Web::start_tls(config, Reply::ok(pod("web", "i:1"))).await;
    let (cert_file, key_file) = other.client("node");
    let mut settings = settings(&web.url);
    settings.ca_file = Some(directory.path().join("trusted.pem"));
    settings.client_certificate = Some(CertificateFiles { certificate: cert_file, key: key_file });
    settings.check_frequency = Duration::from_millis(20);
    // Repaired files are found by the next poll without a reload.
    let mut source = Polled::start_with(settings, |source| source);
    source
        .fails(&format!(
            "cannot read {} (does it exist, and may podmux read it?): No such file",
            directory.path().join("trusted.pem").display()
        ))
        .await;
    let trust =
        |authority: &Authority| fs::copy(&authority.ca_file, directory.path().join("trusted.pem")).unwrap();
    trust(&other);
    source.fails("set the file of the right CA").await;
    trust(&ours);
    source.fails("rejected the client certificate").await;
    // The same files with another certificate in them.
    ours.client("node");
    source.receives("ADD: web=i:1").await;
    soon(source.handle.status().wait_for(|status| status.failing.is_none())).await.unwrap();
}

#[tokio::test]
async fn sighup_reloads_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let web = Web::start_tls(ours.server("localhost", None), Reply::ok(pod("web", "i:1"))).await;
    let mut settings = settings(&web.url);
    settings.ca_file = Some(ours.ca_file.clone());
    let mut source = Polled::start_with(settings, |source| source);
    source.receives("ADD: web=i:1").await;
    // A CA that was removed is no longer trusted.
    fs::copy(Authority::new(directory.path(), "other").ca_file, &ours.ca_file).unwrap();
    source.receives_nothing().await;
    assert!(source.error().contains("set the file of the right CA"), "{}", source.error());
}

#[tokio::test]
async fn invalid_certificates_leave_the_previous_ones_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let web = Web::start_tls(ours.server("localhost", None), Reply::ok(pod("web", "i:1"))).await;
    let mut settings = settings(&web.url);
    settings.ca_file = Some(ours.ca_file.clone());
    let mut source = Polled::start_with(settings, |source| source);
    source.receives("ADD: web=i:1").await;
    fs::write(&ours.ca_file, "no certificate").unwrap();
    web.say(Reply::new(503, "later"));
    source.receives_nothing().await;
    assert!(source.error().contains("503"), "{}", source.error());
    web.say(Reply::ok(pod("web", "i:2")));
    source.poll().await;
    source.receives("UPDATE: web=i:2").await;
}

#[test]
fn no_secret_is_logged() {
    logged(|log| async move {
        let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
        let host = web.url.strip_prefix("http://").unwrap();
        let mut settings = settings(&format!("http://user:s3cret@{host}/pods?token=s3cret"));
        settings.headers.insert("X-Token", HeaderValue::from_static("s3cret"));
        assert!(!format!("{settings:?}").contains("s3cret"));
        assert!(format!("{settings:?}").contains("x-token"));
        let mut source = Polled::start_with(settings, |source| source);
        source.receives("ADD: web=i:1").await;
        let seen = &web.seen()[0];
        assert_eq!((&*seen.path, seen.header("x-token")), ("/pods?token=s3cret", "s3cret"));
        assert_eq!(seen.header("authorization"), "Basic dXNlcjpzM2NyZXQ=");

        let replies = [
            Reply::new(401, "who is s3cret?"),
            Reply::ok(""),
            Reply::ok("{"),
            Reply::to(302, "ftp://user:s3cret@host/?s3cret"),
            Reply::to(302, "/?token=s3cret"),
            Reply::steps(Some(9), vec![Step::Break]),
            Reply::ok(pod("web", "i:1")),
        ];
        for reply in replies {
            web.say(reply);
            source.receives_nothing().await;
            let shown = format!("{:?} {:?} {:?}", source.status(), source.rejections(), source.handle);
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        assert_eq!(log.lines_with("s3cret"), [""; 0]);
        assert!(log.lines_with(&web.at("/pods")).len() >= 6, "the URL is named without its secrets");
    });
}

#[test]
fn warnings_are_logged_for_each_new_body() {
    logged(|log| async move {
        let (web, mut source) = at_work().await;
        web.say(Reply::ok(pod("web", "i:2").replace("spec:", "spce: {}\nspec:")));
        source.poll().await;
        source.receives("UPDATE: web=i:2").await;
        source.receives_nothing().await;
        let logged = log.lines_with("unknown field");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(
            logged[0].contains(&format!("path={} warning=5:1: warning: spce: ", web.at("/pods"))),
            "{logged:?}"
        );
    });
}

#[test]
fn a_conflict_of_uids_is_logged_once() {
    logged(|log| async move {
        let (web, mut source) = at_work().await;
        let with_uid = |name: &str| pod(name, "i:1").replace("metadata:", "metadata:\n  uid: same");
        web.say(Reply::ok([pod("web", "i:1"), with_uid("a"), with_uid("b")].join("---\n")));
        source.poll().await;
        source.receives("ADD: a=i:1").await;
        source.receives_nothing().await;
        let logged = log.lines_with("conflict found");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert_eq!(source.rejections().len(), 1);
        web.say(Reply::ok([pod("web", "i:1"), with_uid("b")].join("---\n")));
        source.poll().await;
        source.receives("REMOVE: a=i:1").await;
        source.receives("ADD: b=i:1").await;
        assert_eq!(log.lines_with("conflict resolved").len(), 1);
    });
}

#[tokio::test]
async fn a_poll_requested_during_a_poll_is_another_poll() {
    let web = Web::start(Reply::mute()).await;
    let settings = settings(&web.url);
    let mut source = Polled::start_with(settings, |source| source.with_timeout(Duration::from_secs(2)));
    web.asked(1).await;
    web.say(Reply::ok(pod("web", "i:1")));
    source.poll().await;
    source.receives("ADD: web=i:1").await;
    source.end().await;
}
