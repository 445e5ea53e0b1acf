//! Lists with selectors and in pages.

use std::{fmt::Write as _, time::Duration};

use expect_test::{Expect, expect};
use futures::future::join_all;
use jiff::Timestamp;
use podmux::{
    history::SeenPod,
    host::Threads,
    pod::{ListingBuilder, Origin, Prepared, SourceName},
    server::Selector,
    source::api::ReflectorMetrics,
    storage::PodStorage,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    script::pod,
    server::{Setup, TestServer, manifest},
};

/// A pod with labels `name=value`.
fn labelled(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    })
}

/// A text encoded for a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        write!(out, "%{byte:02x}").unwrap();
        out
    })
}

/// Checks which of a few pods each selector matches, or its error.
async fn check(option: &str, selectors: &[&str], expect: &Expect) {
    let server = TestServer::start().await;
    let pods = [
        labelled("none", &[]),
        labelled("web", &[("app", "web"), ("tier", "1"), ("empty", "")]),
        labelled("db", &[("app", "db"), ("tier", "12"), ("example.com/x", "y")]),
    ];
    let mut list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    list["items"][2]["spec"]["restartPolicy"] = json!("Never");
    list["items"][2]["spec"]["hostNetwork"] = json!(true);
    list["items"][0]["metadata"]["namespace"] = json!("other");
    let reply = server.ask("POST /pods", &[], list.to_string()).await;
    assert_eq!(reply.code, 201, "{}", reply.text());
    server.file_pod("mine.yaml", pod("mine%Running")).await;
    let mut out = String::new();
    for selector in selectors {
        let encoded = encoded(selector);
        let reply = server.get(&format!("/pods?{option}={encoded}")).await;
        let result = match reply.code {
            200 => reply.names().join(" "),
            code => format!("{code} {}", reply.json()["message"].as_str().unwrap()),
        };
        writeln!(out, "{selector} → {result}").unwrap();
    }
    expect.assert_eq(&out);
}

#[tokio::test]
async fn label_selectors_match() {
    let selectors = [
        "",
        " ",
        "app",
        "!app",
        "app=web",
        "app==web",
        "app = web",
        "app!=web",
        "app=",
        "empty=",
        "empty",
        "app in (web,db)",
        "app in (web, nobody)",
        "app notin (web)",
        "app notin (web),app",
        "empty in (,x)",
        "empty in ()",
        "app notin ()",
        "tier>1",
        "tier<12",
        "tier>1,tier<100",
        "app>1",
        "example.com/x=y",
        "app=web,tier=1",
        "app=web,tier=2",
        "in",
        "in in (in)",
        "notin,in!=x",
    ];
    check(
        "labelSelector",
        &selectors,
        &expect![[r#"
         → default/db default/mine default/web other/none
          → default/db default/mine default/web other/none
        app → default/db default/web
        !app → default/mine other/none
        app=web → default/web
        app==web → default/web
        app = web → default/web
        app!=web → default/db default/mine other/none
        app= → 
        empty= → default/web
        empty → default/web
        app in (web,db) → default/db default/web
        app in (web, nobody) → default/web
        app notin (web) → default/db default/mine other/none
        app notin (web),app → default/db
        empty in (,x) → default/web
        empty in () → default/web
        app notin () → default/db default/mine default/web other/none
        tier>1 → default/db
        tier<12 → default/web
        tier>1,tier<100 → default/db
        app>1 → 
        example.com/x=y → default/db
        app=web,tier=1 → default/web
        app=web,tier=2 → 
        in → 
        in in (in) → 
        notin,in!=x → 
    "#]],
    )
    .await;
}

#[tokio::test]
async fn invalid_label_selectors_are_400() {
    let selectors = [
        ",",
        "app,",
        ",app",
        "app=web,,tier",
        "app in",
        "app in web",
        "app in (web",
        "app in (web tier)",
        "!app=web",
        "!",
        "=web",
        "app web",
        "app=web db",
        "app=(",
        "tier>x",
        "tier>",
        "-x",
        "x-",
        "/x",
        "a/b/c",
        "UPPER.example/x",
        "app=-",
        "app in (é)",
    ];
    check("labelSelector", &selectors, &expect![[r#"
        , → 400 unable to parse labelSelector: found ',', expected: !, identifier, or 'end of string'
        app, → 400 unable to parse labelSelector: found '', expected: identifier after ','
        ,app → 400 unable to parse labelSelector: found ',', expected: !, identifier, or 'end of string'
        app=web,,tier → 400 unable to parse labelSelector: found ',', expected: identifier after ','
        app in → 400 unable to parse labelSelector: found '', expected: '('
        app in web → 400 unable to parse labelSelector: found 'web', expected: '('
        app in (web → 400 unable to parse labelSelector: found '', expected: ',' or ')'
        app in (web tier) → 400 unable to parse labelSelector: found 'tier', expected: ',' or ')'
        !app=web → 400 unable to parse labelSelector: found '=', expected: ',' or 'end of string'
        ! → 400 unable to parse labelSelector: found '', expected: identifier
        =web → 400 unable to parse labelSelector: found '=', expected: !, identifier, or 'end of string'
        app web → 400 unable to parse labelSelector: found 'web', expected: in, notin, =, ==, !=, >, <
        app=web db → 400 unable to parse labelSelector: found 'db', expected: ',' or 'end of string'
        app=( → 400 unable to parse labelSelector: found '(', expected: identifier
        tier>x → 400 unable to parse labelSelector: for '>' and '<' the value must be an integer, but is 'x'
        tier> → 400 unable to parse labelSelector: for '>' and '<' the value must be an integer, but is ''
        -x → 400 unable to parse labelSelector: '-x' is not a valid label key: must be [dns.prefix/]name, with up to 63 letters, digits, '-', '_' and '.' in the name, beginning and ending with a letter or digit
        x- → 400 unable to parse labelSelector: 'x-' is not a valid label key: must be [dns.prefix/]name, with up to 63 letters, digits, '-', '_' and '.' in the name, beginning and ending with a letter or digit
        /x → 400 unable to parse labelSelector: '/x' is not a valid label key: must be [dns.prefix/]name, with up to 63 letters, digits, '-', '_' and '.' in the name, beginning and ending with a letter or digit
        a/b/c → 400 unable to parse labelSelector: 'a/b/c' is not a valid label key: must be [dns.prefix/]name, with up to 63 letters, digits, '-', '_' and '.' in the name, beginning and ending with a letter or digit
        UPPER.example/x → 400 unable to parse labelSelector: 'UPPER.example/x' is not a valid label key: must be [dns.prefix/]name, with up to 63 letters, digits, '-', '_' and '.' in the name, beginning and ending with a letter or digit
        app=- → 400 unable to parse labelSelector: '-' is not a valid label value: must be up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit
        app in (é) → 400 unable to parse labelSelector: 'é' is not a valid label value: must be up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit
    "#]]).await;
}

#[tokio::test]
async fn field_selectors_match_or_are_400() {
    let selectors = [
        "",
        "metadata.name=web",
        "metadata.name!=web",
        "metadata.namespace==other",
        "spec.nodeName=node1",
        "spec.nodeName=",
        "status.phase=Running",
        "status.phase!=Running",
        "spec.restartPolicy=Never",
        "spec.hostNetwork=true",
        "spec.hostNetwork=false,metadata.namespace=default",
        "spec.schedulerName=default-scheduler,metadata.name=db",
        "spec.serviceAccountName=",
        "status.podIP=",
        "status.podIPs=",
        "spec.host=node1",
        "status.nominatedNodeName!=",
        "metadata.name=a\\,b",
        ",metadata.name=web,",
        "metadata.name",
        "name=web",
        "metadata.name=a=b",
        "metadata.name=a\\x",
        "metadata.labels=x",
    ];
    check("fieldSelector", &selectors, &expect![[r#"
         → default/db default/mine default/web other/none
        metadata.name=web → default/web
        metadata.name!=web → default/db default/mine other/none
        metadata.namespace==other → other/none
        spec.nodeName=node1 → default/db default/web other/none
        spec.nodeName= → default/mine
        status.phase=Running → default/mine
        status.phase!=Running → default/db default/web other/none
        spec.restartPolicy=Never → default/db
        spec.hostNetwork=true → default/db
        spec.hostNetwork=false,metadata.namespace=default → default/mine default/web
        spec.schedulerName=default-scheduler,metadata.name=db → default/db
        spec.serviceAccountName= → default/db default/mine default/web other/none
        status.podIP= → default/db default/mine default/web other/none
        status.podIPs= → default/db default/mine default/web other/none
        spec.host=node1 → default/db default/web other/none
        status.nominatedNodeName!= → 
        metadata.name=a\,b → 
        ,metadata.name=web, → default/web
        metadata.name → 400 invalid field selector: 'metadata.name': must be FIELD=VALUE, FIELD==VALUE or FIELD!=VALUE
        name=web → 400 field label not supported: name: use one of metadata.name, metadata.namespace, spec.nodeName, spec.host, spec.restartPolicy, spec.schedulerName, spec.serviceAccountName, spec.hostNetwork, status.phase, status.podIP, status.podIPs, status.nominatedNodeName, podmux.dev/source
        metadata.name=a=b → 400 invalid field selector: 'metadata.name=a=b': escape ',', '=' and '\' in the value with a backslash, and nothing else
        metadata.name=a\x → 400 invalid field selector: 'metadata.name=a\x': escape ',', '=' and '\' in the value with a backslash, and nothing else
        metadata.labels=x → 400 field label not supported: metadata.labels: use one of metadata.name, metadata.namespace, spec.nodeName, spec.host, spec.restartPolicy, spec.schedulerName, spec.serviceAccountName, spec.hostNetwork, status.phase, status.podIP, status.podIPs, status.nominatedNodeName, podmux.dev/source
    "#]]).await;
}

#[tokio::test]
async fn selectors_and_the_namespace_are_combined() {
    let server = TestServer::start().await;
    for name in ["a", "b"] {
        let body = labelled(name, &[("app", "web")]).to_string();
        server.ask("POST /api/v1/namespaces/one/pods", &[], body.clone()).await;
        server.ask("POST /api/v1/namespaces/two/pods", &[], body).await;
    }
    let query = "labelSelector=app&fieldSelector=metadata.name%3Da";
    assert_eq!(server.get(&format!("/api/v1/pods?{query}")).await.names(), ["one/a", "two/a"]);
    assert_eq!(server.get(&format!("/api/v1/namespaces/two/pods?{query}")).await.names(), ["two/a"]);
}

/// All pages of a list in order.
async fn pages(server: &TestServer, query: &str) -> Vec<Value> {
    let (mut pages, mut token) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/pods?{query}&continue={token}")).await.json();
        page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut token);
        pages.push(page);
        if token.is_empty() {
            return pages;
        }
    }
}

#[tokio::test]
async fn all_pages_together_are_the_list() {
    let server = TestServer::start().await;
    let bodies: Vec<String> = (0..10).map(|n| manifest(&format!("p{n}"))).collect();
    server.ask("POST /pods", &[], bodies.join("\n---\n")).await;
    let names = |page: &Value| -> Vec<String> {
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = names(&server.get("/pods").await.json());
    for limit in 1..=11 {
        let pages = pages(&server, &format!("limit={limit}")).await;
        assert_eq!(pages.iter().flat_map(names).collect::<Vec<_>>(), all);
        assert_eq!(pages.len(), 10_usize.div_ceil(limit));
        for (n, page) in pages.iter().enumerate() {
            let rest = 10_usize.saturating_sub((n + 1) * limit);
            assert_eq!(page["metadata"].get("remainingItemCount").cloned(), (rest > 0).then(|| json!(rest)));
        }
    }
    // With a selector the remaining pods are not counted, and the last page is not empty.
    let pages = pages(&server, "limit=2&fieldSelector=metadata.name!%3Dp9").await;
    assert_eq!(pages.iter().map(|page| names(page).len()).collect::<Vec<_>>(), [2, 2, 2, 2, 1]);
    assert!(pages.iter().all(|page| page["metadata"].get("remainingItemCount").is_none()));
}

#[tokio::test]
async fn pages_continue_while_pods_change_and_have_the_first_pages_version() {
    let server = TestServer::start().await;
    for name in ["b", "d", "f", "h"] {
        server.ask("POST /pods", &[], manifest(name)).await;
    }
    let first = server.get("/pods?limit=2").await;
    assert_eq!(first.names(), ["default/b", "default/d"]);
    let version = first.json()["metadata"]["resourceVersion"].clone();
    let token = first.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!(
        server.get(&format!("/pods?limit=2&resourceVersion={}", version.as_str().unwrap())).await.code,
        200
    );
    // Changes before, at and after the end of the page.
    server.ask("POST /pods", &[], [manifest("a"), manifest("e")].join("\n---\n")).await;
    server.ask("DELETE /api/v1/namespaces/default/pods/d?gracePeriodSeconds=0", &[], "").await;
    let second = server.get(&format!("/pods?limit=2&continue={token}")).await;
    assert_eq!(second.names(), ["default/e", "default/f"]);
    assert_eq!(second.json()["metadata"]["resourceVersion"], version);
    let token = second.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let last = server.get(&format!("/pods?continue={token}")).await;
    assert_eq!(
        (last.names(), &last.json()["metadata"]["resourceVersion"]),
        (vec!["default/h".to_owned()], &version)
    );
    for (query, code) in [("limit=2&", 410), ("", 200), ("limit=2&resourceVersionMatch=NotOlderThan&", 200)] {
        let answer = server.get(&format!("/pods?{query}resourceVersion={}", version.as_str().unwrap())).await;
        assert_eq!(answer.code, code, "{query}");
    }
    assert_eq!(server.get("/pods?limit=2&resourceVersion=0").await.code, 200);
}

#[tokio::test]
async fn the_error_of_options_that_exclude_each_other_names_them() {
    let server = TestServer::start().await;
    for (query, why) in [
        (
            "resourceVersionMatch=Exact",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        ("sendInitialEvents=1", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        (
            "watch=1&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    ] {
        let reply = server.get(&format!("/api/v1/pods?{query}")).await.json();
        assert_eq!(reply["message"], format!("ListOptions.meta.k8s.io \"\" is invalid: {why}"));
        assert_eq!(reply["details"]["group"], "meta.k8s.io", "{query}");
    }
}

/// A long selector is compared with each object, and a pod may have very many labels.
#[tokio::test]
async fn selectors_have_a_maximal_number_of_terms_and_values() {
    let server = TestServer::start().await;
    let values = format!("z notin ({})", ["a"; 1_001].join(","));
    for (labels, fields, code) in [
        (["!z"; 1_000].join(","), String::new(), 200),
        (["!z"; 1_001].join(","), String::new(), 400),
        (values, String::new(), 400),
        (["!z"; 600].join(","), ["metadata.name!=z"; 600].join(","), 400),
    ] {
        let query = format!("labelSelector={}&fieldSelector={}", encoded(&labels), encoded(&fields));
        for path in ["/pods", "/api/v1/pods", "/api/v1/events", "/api/v1/namespaces"] {
            let reply = server.get(&format!("{path}?{query}")).await;
            assert_eq!(reply.code, code, "{path} {labels} {fields}");
        }
    }
}

fn frozen(labels: &[(String, String)]) -> SeenPod {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let pod = json!({"metadata": {"name": "p", "uid": "u", "labels": labels}}).to_string();
    let mut listing = ListingBuilder::new(SourceName::Http);
    let pod = Prepared::from_json(pod.as_bytes()).unwrap();
    listing.put(&Origin::from("p"), vec![pod], Timestamp::UNIX_EPOCH);
    let mut storage = PodStorage::new(&[SourceName::Http]);
    drop(storage.apply(&listing.listing()));
    SeenPod { entry: storage.merged().values().next().unwrap().clone(), status: None }
}

fn label() -> impl Strategy<Value = String> {
    prop_oneof!["[abc]", "[a-z]{1,3}(-[a-z0-9]{1,3})?", "in|notin"]
}

proptest! {
    #[test]
    fn no_selector_panics(labels in "[-a-z0-9=!<>(), \\\\./é]{0,20}", fields in "[a-zA-Z.=!,\\\\é]{0,20}") {
        let _ = Selector::new(&labels, &fields);
    }

    #[test]
    fn a_label_requirement_and_its_opposite_match_disjoint_pods(
        key in label(), values in prop::collection::vec(label(), 1..4),
        labels in prop::collection::vec((label(), label()), 0..4),
    ) {
        let seen = frozen(&labels);
        let pod = seen.entry.pod();
        let matches = |selector: String| Selector::new(&selector, "").unwrap().matches(&seen);
        let set = values.join(",");
        let exists = pod.labels().any(|(name, _)| name == key);
        let inside = pod.labels().any(|(name, value)| name == key && values.iter().any(|other| other == value));
        prop_assert_eq!(matches(key.clone()), exists);
        prop_assert_eq!(matches(format!("!{key}")), !exists);
        prop_assert_eq!(matches(format!("{key} in ({set})")), inside);
        prop_assert_eq!(matches(format!("{key} notin ({set})")), !inside);
        let (one, first) = (&values[0], pod.labels().find(|(name, _)| *name == key).map(|(_, value)| value.to_owned()));
        prop_assert_eq!(matches(format!("{key}={one}")), first.as_ref() == Some(one));
        prop_assert_eq!(matches(format!("{key} != {one}")), first.as_ref() != Some(one));
        // A comma means and.
        prop_assert_eq!(matches(format!("{key},{key} notin ({set})")), exists && !inside);
    }

    #[test]
    fn a_field_term_and_its_opposite_match_disjoint_pods(value in "[a-z,=\\\\]{0,6}") {
        let pod = frozen(&[]);
        let escaped = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        let matches = |operator: &str| {
            Selector::new("", &format!("metadata.name{operator}{escaped}")).unwrap().matches(&pod)
        };
        prop_assert_eq!(matches("="), value == "p");
        prop_assert_eq!(matches("=="), value == "p");
        prop_assert_eq!(matches("!="), value != "p");
    }
}

#[tokio::test]
async fn a_list_names_the_sources_that_are_not_known_yet() {
    let metrics = Some(ReflectorMetrics::default());
    let server = TestServer::with(Setup { reflector: metrics, ..Setup::default() }).await;
    let expected = "299 - \"pods of source api are not known yet and are missing: see podmux get sources (GET /sources)\"";
    let paths = ["/pods", "/api/v1/pods", "/api/v1/namespaces/default/pods"];
    for path in paths {
        for query in ["", "?labelSelector=a", "?limit=1"] {
            let reply = server.get(&format!("{path}{query}")).await;
            assert_eq!(reply.header("warning"), [expected], "{path}{query}");
        }
    }
    server.api(|_| {}).await;
    for path in paths {
        assert!(server.get(path).await.header("warning").is_empty(), "{path}");
    }
}

/// Each read takes a second, and so does each chunk of what is made when it is sent: here one, and the end.
#[tokio::test(start_paused = true)]
async fn four_lists_are_collected_at_a_time_and_what_is_made_for_a_client_is_made_off_the_runtime() {
    let threads = Threads::inline(|| Duration::from_secs(1));
    let server = TestServer::with(Setup { threads, ..Setup::default() }).await;
    server.file_pod("a.yaml", pod("a")).await;
    let seconds = async |accept: &str, requests: usize| {
        let begun = Instant::now();
        let headers = [("accept", accept)];
        let ask = |_| server.ask_inside("GET /api/v1/pods?labelSelector=!none", &headers, "");
        let replies = join_all((0..requests).map(ask)).await;
        assert!(replies.iter().all(|reply| reply.code == 200 && !reply.body.is_empty()));
        begun.elapsed().as_secs()
    };
    assert_eq!(seconds("application/json", 8).await, 2);
    assert_eq!(seconds("application/json;as=Table;v=v1;g=meta.k8s.io", 1).await, 3);
    assert_eq!(seconds("application/vnd.kubernetes.protobuf", 1).await, 3);
}

/// Each read takes a second.
#[tokio::test(start_paused = true)]
async fn namespaces_are_selected_off_the_runtime() {
    let threads = Threads::inline(|| Duration::from_secs(1));
    let server = TestServer::with(Setup { threads, ..Setup::default() }).await;
    for query in ["labelSelector=!none", "labelSelector=!none&watch=1&timeoutSeconds=9"] {
        let begun = Instant::now();
        let response = server.open_inside(&format!("GET /api/v1/namespaces?{query}"), &[], "").await;
        assert_eq!((response.status().as_u16(), begun.elapsed().as_secs()), (200, 1), "{query}");
    }
}
