//! The url source: polling, conditional requests, and the listings that follow.

use std::time::Duration;

use expect_test::{Expect, expect};
use http::HeaderValue;
use podmux::{pod::SourceName, source::url::Config, storage::SourceState};
use serde_json::{Value, json};

use crate::support::{
    files::pod,
    polled::{Polled, settings},
    web::{Reply, Web},
};

/// An empty list.
pub const NO_PODS: &str = r#"{"apiVersion": "v1", "kind": "PodList", "items": []}"#;

/// The pods of a source whose URL serves manifests.
async fn pods_at(manifests: &Value) -> Vec<Value> {
    let web = Web::start(Reply::ok(manifests.to_string())).await;
    let mut source = Polled::start(&web.at("/pods"));
    let update = source.updates.next().await.unwrap();
    assert_eq!(update.op.as_str(), "ADD");
    let mut pods: Vec<Value> =
        update.pods.iter().map(|pod| serde_json::from_slice(pod.text()).unwrap()).collect();
    for pod in &mut pods {
        pod["metadata"]["annotations"]["kubernetes.io/config.seen"] = json!("NOW");
    }
    source.end().await;
    pods
}

#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check(pods: &[Value], expect: Expect) {
    expect.assert_eq(&serde_json::to_string_pretty(pods).unwrap());
}

fn upstream_pod(name: &str, uid: &str, pull_policy: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "mynamespace", "uid": uid},
        "spec": {
            "nodeName": "a-host",
            "containers": [{
                "name": "1", "image": name, "imagePullPolicy": pull_policy,
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "securityContext": {},
        },
        "status": {"phase": "Pending"},
    })
}

#[tokio::test]
async fn a_url_may_be_the_source_of_another_name() {
    let web = Web::start(Reply::ok(upstream_pod("foo", "111", "Always").to_string())).await;
    let mut source = Polled::start_as(SourceName::File, settings(&web.at("/pods")), |source| source);
    source.receives("ADD: foo=foo").await;
    source.end().await;
}

// TestExtractPodsFromHTTP: Single manifest
#[tokio::test]
async fn a_pod_at_a_url() {
    let pods = pods_at(&upstream_pod("foo", "111", "Always")).await;
    check(
        &pods,
        expect![[r#"
        [
          {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
              "annotations": {
                "kubernetes.io/config.hash": "fb72a21098a52a33501bbb6f6972db20",
                "kubernetes.io/config.seen": "NOW",
                "kubernetes.io/config.source": "http"
              },
              "name": "foo-node",
              "namespace": "mynamespace",
              "uid": "111"
            },
            "spec": {
              "containers": [
                {
                  "image": "foo",
                  "imagePullPolicy": "Always",
                  "name": "1",
                  "resources": {},
                  "terminationMessagePath": "/dev/termination-log",
                  "terminationMessagePolicy": "File"
                }
              ],
              "dnsPolicy": "ClusterFirst",
              "enableServiceLinks": true,
              "nodeName": "node",
              "restartPolicy": "Always",
              "schedulerName": "default-scheduler",
              "securityContext": {},
              "terminationGracePeriodSeconds": 30
            },
            "status": {
              "phase": "Pending"
            }
          }
        ]"#]],
    );
}

// TestExtractPodsFromHTTP: Multiple manifests
#[tokio::test]
async fn a_list_of_pods_at_a_url() {
    let items = [upstream_pod("foo", "111", "Always"), upstream_pod("bar", "222", "IfNotPresent")];
    let pods = pods_at(&json!({"apiVersion": "v1", "kind": "PodList", "items": items})).await;
    // Each pod alone gives the same.
    let mut alone = Vec::new();
    for item in [&items[1], &items[0]] {
        alone.extend(pods_at(item).await);
    }
    assert_eq!(pods, alone);
    assert_eq!(pods[0]["metadata"]["name"], "bar-node");
    assert_eq!(pods[0]["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
}

// TestURLWithHeader
#[tokio::test]
async fn every_request_has_the_headers() {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let mut settings = settings(&web.at("/pods?zone=1"));
    settings.headers.insert("Metadata-Flavor", HeaderValue::from_static("Google"));
    settings.headers.append("X-Two", HeaderValue::from_static("one"));
    settings.headers.append("X-Two", HeaderValue::from_static("two"));
    let mut source = Polled::start_with(settings, |source| source);
    source.receives("ADD: web=i:1").await;
    source.receives_nothing().await;
    for seen in web.seen() {
        assert_eq!((&*seen.method, &*seen.path), ("GET", "/pods?zone=1"));
        assert_eq!(seen.header("metadata-flavor"), "Google");
        assert_eq!(seen.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(seen.header("user-agent").starts_with("podmux/"));
        assert_eq!(seen.header("accept"), "application/yaml, application/json, */*;q=0.5");
    }
    // A header of the user replaces the source's own.
    let headers = [(http::header::USER_AGENT, HeaderValue::from_static("me"))].into_iter().collect();
    source.handle.retune(Config { headers, ..self::settings(&web.url) });
    let seen = web.asked(3).await;
    assert_eq!((seen[2].header("user-agent"), seen[2].header("metadata-flavor")), ("me", ""));
}

#[tokio::test]
async fn a_url_is_polled_at_once_and_then_every_frequency() {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let mut settings = settings(&web.url);
    settings.check_frequency = Duration::from_millis(10);
    let mut source = Polled::start_with(settings, |source| source);
    source.receives("ADD: web=i:1").await;
    web.asked(5).await;
    web.say(Reply::ok(pod("web", "i:2")));
    source.receives("UPDATE: web=i:2").await;
    assert_eq!(source.status().detail, "polling every 10ms");
    // Another frequency takes effect at once.
    source.handle.retune(self::settings(&web.url));
    source.poll().await;
    assert_eq!(source.status().detail, "polling every 3600s");
    let asked = web.seen().len();
    source.receives_nothing().await;
    assert_eq!(web.seen().len(), asked + 1);
}

#[tokio::test]
async fn the_body_replaces_all_pods() {
    let both = format!("{}---\n{}", pod("a", "i:1"), pod("b", "i:1"));
    let web = Web::start(Reply::ok(both)).await;
    let mut source = Polled::start(&web.url);
    source.receives("ADD: a=i:1 b=i:1").await;
    web.say(Reply::ok(format!("{}---\n{}", pod("b", "i:2"), pod("c", "i:1"))));
    source.poll().await;
    source.receives("REMOVE: a=i:1").await;
    source.receives("ADD: c=i:1").await;
    source.receives("UPDATE: b=i:2").await;
    web.say(Reply::ok(NO_PODS));
    source.poll().await;
    source.receives("REMOVE: c=i:1 b=i:2").await;
    assert!(source.status().last_success.is_some());
    assert_eq!(source.status().failing, None);
    source.end().await;
}

#[tokio::test]
async fn an_empty_list_at_the_start_is_synced() {
    let web = Web::start(Reply::ok(NO_PODS)).await;
    let mut source = Polled::start(&web.url);
    source.receives("ADD:").await;
    assert_eq!(source.state(), SourceState::Synced);
    web.say(Reply::ok(r#"{"apiVersion": "v1", "kind": "List", "items": []}"#));
    source.receives_nothing().await;
}

#[tokio::test]
async fn the_same_body_publishes_no_listing() {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let mut source = Polled::start(&web.url);
    source.receives("ADD: web=i:1").await;
    source.publishes_nothing().await;
    // Other bytes with the same pods, which begin on another line.
    web.say(Reply::ok(format!("# a comment\n{}", pod("web", "i:1"))));
    source.receives_nothing().await;
    source.publishes_nothing().await;
    web.say(Reply::new(503, "busy"));
    source.publishes_nothing().await;
    web.say(Reply::ok(format!("# a comment\n{}", pod("web", "i:1"))));
    source.publishes_nothing().await;
    assert_eq!(source.status().failing, None);
}

/// The settings of a source that polls all the time. Requested polls are unconditional.
fn polled_often(url: &str) -> Config {
    Config { check_frequency: Duration::from_millis(10), ..settings(url) }
}

/// Waits for a request with this entity tag.
async fn asks_with(web: &Web, etag: &str) {
    while web.seen().last().is_none_or(|seen| seen.header("if-none-match") != etag) {
        web.asked(web.seen().len() + 1).await;
    }
}

#[tokio::test]
async fn requests_are_conditional_if_the_server_gives_an_entity_tag() {
    let web = Web::start(Reply::ok("")).await;
    // As web servers behave.
    let versioned = |version: &'static str, body: String| {
        move |seen: &crate::support::web::Seen| {
            if seen.header("if-none-match") == version {
                Reply::new(304, "").header("ETag", version)
            } else {
                Reply::ok(body.clone()).header("ETag", version).header("Last-Modified", "yesterday")
            }
        }
    };
    web.play(versioned("\"1\"", pod("web", "i:1")));
    let mut source = Polled::start_with(polled_often(&web.url), |source| source);
    source.receives("ADD: web=i:1").await;
    let seen = web.asked(3).await;
    assert_eq!(seen[0].header("if-none-match"), "", "the first request is not conditional");
    assert_eq!(seen[1].header("if-none-match"), "\"1\"");
    web.play(versioned("\"2\"", pod("web", "i:2")));
    source.receives("UPDATE: web=i:2").await;
    asks_with(&web, "\"2\"").await;
    // The same body with another ETag, which replaces the known one.
    web.play(versioned("\"3\"", pod("web", "i:2")));
    asks_with(&web, "\"3\"").await;
    source.receives_nothing().await;
    assert_eq!(source.status().failing, None);
}

#[tokio::test]
async fn a_date_is_no_condition() {
    let web = Web::start(Reply::ok("")).await;
    // As web servers behave: what is put back is older.
    let dated = |date: &'static str, body: String| {
        move |seen: &crate::support::web::Seen| match seen.header("if-modified-since") {
            "" => Reply::ok(body.clone()).header("Last-Modified", date),
            _ => Reply::new(304, ""),
        }
    };
    web.play(dated("Fri, 20 Nov 2026 09:00:00 GMT", pod("web", "i:2")));
    let mut source = Polled::start_with(polled_often(&web.url), |source| source);
    source.receives("ADD: web=i:2").await;
    web.play(dated("Thu, 19 Nov 2026 09:00:00 GMT", pod("web", "i:1")));
    source.receives("UPDATE: web=i:1").await;
}

/// Bodies of one weak tag need not be the same bytes (RFC 9110, 8.8.1).
#[tokio::test]
async fn a_weak_entity_tag_is_no_condition() {
    let web = Web::start(Reply::ok("")).await;
    let tagged = |body: String| {
        move |seen: &crate::support::web::Seen| match seen.header("if-none-match") {
            "" => Reply::ok(body.clone()).header("ETag", "W/\"1\""),
            _ => Reply::new(304, ""),
        }
    };
    web.play(tagged(pod("web", "i:1")));
    let mut source = Polled::start_with(polled_often(&web.url), |source| source);
    source.receives("ADD: web=i:1").await;
    web.play(tagged(pod("web", "i:2")));
    source.receives("UPDATE: web=i:2").await;
}

#[tokio::test]
async fn an_entity_tag_is_of_one_url() {
    let web = Web::start(Reply::ok("")).await;
    // Two files of the same size and second have the same tag at many servers.
    let redirected = |path: &'static str, image: &'static str| {
        move |seen: &crate::support::web::Seen| match (&*seen.path, seen.header("if-none-match")) {
            ("/pods", _) => Reply::to(302, path),
            (_, "") => Reply::ok(pod("web", image)).header("ETag", "\"same\""),
            _ => Reply::new(304, ""),
        }
    };
    web.say(Reply::ok(pod("web", "i:1")).header("ETag", "\"same\""));
    let mut source = Polled::start_with(polled_often(&web.at("/pods")), |source| source);
    source.receives("ADD: web=i:1").await;
    asks_with(&web, "\"same\"").await;
    for (path, image) in [("/v2", "i:2"), ("/v3", "i:3")] {
        web.play(redirected(path, image));
        source.receives(&format!("UPDATE: web={image}")).await;
    }
}

#[tokio::test]
async fn a_requested_poll_is_unconditional() {
    let web = Web::start(Reply::ok(pod("web", "i:1")).header("ETag", "\"1\"")).await;
    let mut source = Polled::start_with(polled_often(&web.url), |source| source);
    source.receives("ADD: web=i:1").await;
    asks_with(&web, "\"1\"").await;
    // A server that does not change its tag.
    web.play(|seen| match seen.header("if-none-match") {
        "" => Reply::ok(pod("web", "i:2")).header("ETag", "\"1\""),
        _ => Reply::new(304, ""),
    });
    source.handle.rescan();
    source.receives("UPDATE: web=i:2").await;
    asks_with(&web, "\"1\"").await;
}

#[tokio::test]
async fn an_encoded_body_is_rejected_by_the_name_of_its_encoding() {
    let encoded = |image, coding| Reply::ok(pod("web", image)).header("Content-Encoding", coding);
    let web = Web::start(encoded("i:1", "identity")).await;
    let mut source = Polled::start(&web.url);
    source.receives("ADD: web=i:1").await;
    for (image, coding) in [("i:2", "Identity"), ("i:3", "")] {
        web.say(encoded(image, coding));
        source.handle.rescan();
        source.receives(&format!("UPDATE: web={image}")).await;
    }
    web.say(Reply::ok([0x1f, 0x8b, 8].as_slice()).header("Content-Encoding", "gzip"));
    source.receives_nothing().await;
    expect!["the body has the Content-Encoding gzip, but none was requested; serve it without one"]
        .assert_eq(&source.error());
}

#[tokio::test]
async fn a_304_to_an_unconditional_request_is_an_error() {
    let web = Web::start(Reply::new(304, "")).await;
    let source = Polled::start(&web.url);
    source.poll().await;
    assert_eq!(source.error(), "the server answered 304 Not Modified to an unconditional request");
    assert_eq!(source.state(), SourceState::Waiting);
}

#[tokio::test]
async fn a_known_body_is_accepted_again_after_a_rejected_one() {
    let web = Web::start(Reply::ok("")).await;
    let good = |seen: &crate::support::web::Seen| {
        if seen.header("if-none-match") == "\"good\"" {
            return Reply::new(304, "");
        }
        Reply::ok(pod("web", "i:1")).header("ETag", "\"good\"")
    };
    web.play(good);
    let mut source = Polled::start(&web.url);
    source.receives("ADD: web=i:1").await;
    web.say(Reply::ok("{").header("ETag", "\"broken\""));
    source.receives_nothing().await;
    assert_eq!(source.rejections().len(), 1);
    web.play(good);
    source.receives_nothing().await;
    assert_eq!((source.status().failing, source.rejections().len()), (None, 0));
}

#[tokio::test]
async fn only_a_body_with_the_pinned_digest_is_accepted() {
    use sha2::{Digest as _, Sha256};
    let (one, two) = (pod("web", "i:1"), pod("web", "i:2"));
    let hash = |text: &str| <[u8; 32]>::from(Sha256::digest(text)).map(|byte| format!("{byte:02x}")).concat();
    let web = Web::start(Reply::ok(one.clone()).header("ETag", "\"1\"")).await;
    let mut settings = settings(&web.url);
    settings.sha256 = Some(hash(&one));
    let mut source = Polled::start_with(settings, |source| source);
    source.receives("ADD: web=i:1").await;
    web.say(Reply::ok(two.clone()).header("ETag", "\"2\""));
    source.receives_nothing().await;
    let error = format!("the body's SHA-256 is {}, only {} is accepted", hash(&two), hash(&one));
    assert!(source.error().starts_with(&error), "{}", source.error());
    source.handle.retune(Config { sha256: Some(hash(&two)), ..self::settings(&web.url) });
    source.receives("UPDATE: web=i:2").await;
}

#[tokio::test]
async fn redirects_are_followed_and_lose_the_headers_with_the_host() {
    let (first, other) = (Web::start(Reply::ok("")).await, Web::start(Reply::ok(pod("web", "i:1"))).await);
    first.say(Reply::to(302, &other.at("/pods")));
    let mut settings = settings(&first.url);
    settings.headers.insert("Authorization", HeaderValue::from_static("Bearer s3cret"));
    let mut source = Polled::start_with(settings, |source| source);
    source.receives("ADD: web=i:1").await;
    assert_eq!(first.seen()[0].header("authorization"), "Bearer s3cret");
    assert_eq!((&*other.seen()[0].path, other.seen()[0].header("authorization")), ("/pods", ""));

    first.say(Reply::to(302, "/round"));
    source.receives_nothing().await;
    let host = first.url.strip_prefix("http://").unwrap();
    assert_eq!(source.error(), format!("more than 9 redirects, the last one to {host}"));
}

#[tokio::test]
async fn sighup_polls_at_once() {
    let web = Web::start(Reply::ok(pod("web", "i:1"))).await;
    let mut source = Polled::start(&web.url);
    source.receives("ADD: web=i:1").await;
    web.say(Reply::ok(pod("web", "i:2")));
    source.handle.rescan();
    source.receives("UPDATE: web=i:2").await;
}
