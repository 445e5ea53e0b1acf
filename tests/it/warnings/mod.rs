//! Warnings about valid pods: in the words of Kubernetes' own code and of a real kube-apiserver.

use std::collections::BTreeMap;

use podmux::{
    manifest::{self, Preparation},
    pod::{NodeName, Problem, SecurityLevel, Severity, SourceName, Stage},
};
use serde_json::{Value, json};

use self::{
    kinds::KINDS,
    provoke::{has_odd_quantity, provoked},
};
use crate::{
    conformance::{both, no, pod, with},
    oracle::cases,
    support::{
        corpus,
        kubernetes::Oracle,
        random::Random,
        server::{TestServer, manifest as posted},
    },
};

mod kinds;
mod provoke;

fn preparation(source: SourceName) -> Preparation {
    Preparation { source, node: NodeName::new("node1").unwrap(), generate: None, namespace: None }
}

/// Whether an API server has the warning too. It knows priority classes, and says in another way that a field is
/// unknown.
fn is_the_apis(problem: &Problem) -> bool {
    let field = problem.field.as_deref().unwrap_or_default();
    let is_decoding =
        ["unknown field", "duplicate key"].iter().any(|start| problem.detail.starts_with(start));
    problem.severity == Severity::Warning && !field.starts_with("spec.priority") && !is_decoding
}

/// The texts of the warnings, in order; and the pod, if it is valid at an API server.
fn reviewed(text: &str) -> Option<(Value, Vec<String>)> {
    let preparation = preparation(SourceName::Http);
    let problems = match manifest::review(text.as_bytes(), &preparation, SecurityLevel::Privileged) {
        Ok(manifest) => manifest.warnings,
        Err(invalid) if invalid.stage == Stage::Reference => invalid.problems,
        Err(_) => return None,
    };
    let pods = manifest::decode(text.as_bytes(), &preparation).unwrap();
    let [pod] = &pods.pods[..] else { return None };
    let text = |problem: &Problem| Problem { severity: Severity::Error, position: None, ..problem.clone() };
    let mut texts: Vec<String> = problems
        .iter()
        .filter(|problem| is_the_apis(problem))
        .map(|problem| text(problem).to_string())
        .collect();
    texts.sort();
    Some((pod.object().clone().into(), texts))
}

/// The result of a comparison with Kubernetes' own code.
#[derive(Default)]
struct Tally {
    pods: usize,
    /// The pods that only the kubelet accepts.
    rejected: usize,
    kinds: BTreeMap<&'static str, usize>,
    differ: Vec<String>,
}

impl Tally {
    fn compare(&mut self, oracle: &mut Oracle, id: &str, text: &str) {
        let Some((pod, ours)) = reviewed(text) else { return };
        let answer = oracle.ask(&json!({"op": "warnings", "pod": pod}));
        // The kubelet accepts a few pods that an API server rejects, such as one with an image volume without an image.
        if answer["errors"] != 0 {
            self.rejected += 1;
            return;
        }
        let mut theirs: Vec<String> = serde_json::from_value(answer["warnings"].clone()).unwrap();
        theirs.sort();
        self.pods += 1;
        for warning in &theirs {
            let fits = |(_, parts): &&(&str, &[&str])| parts.iter().all(|part| warning.contains(part));
            let kinds: Vec<_> = KINDS.iter().filter(fits).collect();
            assert!(!kinds.is_empty(), "a new kind of warning: {warning}");
            for (name, _) in kinds {
                *self.kinds.entry(name).or_default() += 1;
            }
        }
        // The texts are those of at most a hundred warnings.
        if ours != theirs && theirs.len() <= 100 && !has_odd_quantity(&theirs) {
            self.differ.push(format!("{id}:\nours   {ours:#?}\ntheirs {theirs:#?}\n{text}"));
        }
    }

    fn check(&self, name: &str) {
        println!("{name}: {} pods, {} rejected, warnings {:#?}", self.pods, self.rejected, self.kinds);
        assert!(self.rejected * 50 < self.pods, "{} of {} are rejected", self.rejected, self.pods);
        let shown = &self.differ[..self.differ.len().min(5)];
        assert!(shown.is_empty(), "{} of {} differ:\n{}", self.differ.len(), self.pods, shown.join("\n"));
    }
}

#[test]
fn the_pods_of_the_corpus_have_the_warnings_of_the_apis_own_code() {
    let Some(mut oracle) = Oracle::start() else { return };
    let mut tally = Tally::default();
    for file in ["pods.jsonl.gz", "yaml.jsonl.gz"] {
        for case in corpus(file) {
            tally.compare(&mut oracle, &case["id"].to_string(), case["data"].as_str().unwrap());
        }
    }
    tally.check("corpus");
    assert!(tally.pods > 2000 && tally.kinds.len() > 10, "{} {:?}", tally.pods, tally.kinds);
}

#[test]
fn random_pods_have_the_warnings_of_the_apis_own_code() {
    let Some(mut oracle) = Oracle::start() else { return };
    let mut tally = Tally::default();
    let tries = cases("PODMUX_MANIFESTS", 5000);
    for seed in 0..tries {
        let pod = provoked(&mut Random::new(seed));
        tally.compare(&mut oracle, &format!("seed {seed}"), &pod.to_string());
    }
    tally.check("random");
    assert!(tally.pods as u64 > tries / 4, "the cases are too similar: {} of {tries}", tally.pods);
    let never: Vec<&str> =
        KINDS.iter().map(|(name, _)| *name).filter(|name| !tally.kinds.contains_key(name)).collect();
    assert!(never.is_empty(), "no pod has these warnings: {never:?}");
}

/// The `Warning` headers, without those that only podmux has.
fn headers(headers: &http::HeaderMap) -> Vec<String> {
    let values = headers.get_all("warning").iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.filter(|value| !value.contains("spec.priority")).map(std::borrow::Cow::into_owned).collect()
}

#[tokio::test]
async fn responses_have_the_warning_headers_of_a_real_kube_apiserver() {
    let Some((mut kubernetes, mut agent, _process)) = both("warned").await else { return };
    let post = "POST /api/v1/namespaces/warned/pods?dryRun=All";
    let (mut compared, mut warned, mut rejected) = (0, 0, 0);
    let known = corpus("pods.jsonl.gz").into_iter().step_by(40).filter_map(|case| {
        let pod = podmux::manifest::yaml::to_json(case["data"].as_str()?).ok()?;
        (pod["kind"] == "Pod" && pod["metadata"].is_object()).then_some(pod)
    });
    let random = (0..200).map(|seed| provoked(&mut Random::new(seed)));
    for (index, mut pod) in known.chain(random).enumerate() {
        // The server drops the fields of these features, which it does not have by default.
        if ["clusterTrustBundle", "podCertificate"].iter().any(|field| pod.to_string().contains(field)) {
            continue;
        }
        pod["metadata"]["namespace"] = json!("warned");
        if index % 4 == 0 {
            // No field has a similar name, which podmux would suggest.
            pod["spec"]["bogusBogus"] = json!(1);
        }
        let theirs = kubernetes.aside(post, &pod).await;
        // 400: it cannot be decoded, and podmux answers with other texts.
        if !matches!(theirs.code, 201 | 422) {
            continue;
        }
        let ours = agent.aside(post, &pod).await;
        let (mut ours_sorted, mut theirs_sorted) = (headers(&ours.headers), headers(&theirs.headers));
        ours_sorted.sort();
        theirs_sorted.sort();
        assert_eq!(ours_sorted, theirs_sorted, "{} {} {pod}\n{}", ours.code, theirs.code, theirs.json);
        compared += 1;
        warned += usize::from(!theirs_sorted.is_empty());
        rejected += usize::from(!theirs_sorted.is_empty() && theirs.code == 422);
    }
    println!("{compared} compared, {warned} with warnings, {rejected} of them rejected");
    assert!(compared > 200 && warned > 100 && rejected > 10, "{compared} {warned} {rejected}");
}

/// A pod with variables of this name, each of which hides the previous one.
fn hiding(count: usize, name: &str) -> Value {
    let env = vec![json!({"name": name, "value": "v"}); count + 1];
    with("hiding", &no(), &json!({"containers": [{"name": "c", "image": "i:1", "env": env}]}))
}

#[tokio::test]
async fn warnings_are_cut_where_a_real_kube_apiserver_cuts_them() {
    let Some((mut kubernetes, mut agent, _process)) = both("warnings-cut").await else { return };
    let post = "POST /api/v1/namespaces/warnings-cut/pods?dryRun=All";
    for (count, name) in [
        (1, "N".repeat(5000)),
        (10, "N".repeat(300)),
        (13, "N".repeat(300)),
        (30, "N".repeat(300)),
        (40, "N".repeat(40)),
    ] {
        let pod = hiding(count, &name);
        let (theirs, ours) = (kubernetes.aside(post, &pod).await, agent.aside(post, &pod).await);
        assert!(!headers(&theirs.headers).is_empty());
        assert_eq!(headers(&ours.headers), headers(&theirs.headers), "{count} {}", name.len());
    }
}

#[tokio::test]
async fn a_response_has_at_most_64_warnings() {
    let server = TestServer::start().await;
    let mut pod = pod("many");
    for number in 0..90 {
        pod["spec"][format!("x{number}")] = json!(1);
    }
    let reply = server.ask("POST /pods", &[], pod.to_string()).await;
    let warnings = reply.header("warning");
    assert_eq!((reply.code, warnings.len()), (201, 64));
    assert_eq!(warnings[63], "299 - \"and more warnings\"");
    // Equal ones are sent once.
    let twice = format!("{}\n---\n{}", posted("a.b"), posted("c.d"));
    let reply = server.ask("POST /pods", &[("content-type", "application/yaml")], twice).await;
    assert_eq!((reply.code, reply.header("warning").len()), (201, 1), "{}", reply.text());
}

const UNKNOWN: &str = "299 - \"unknown field \\\"spec.bogus\\\"\"";
const HOST_NAME: &str = "299 - \"metadata.name: this is used in the Pod's hostname, which can result in surprising \
    behavior; a DNS label is recommended: [must not contain dots]\"";

#[tokio::test]
async fn errors_carry_the_warnings_that_came_before_them() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/pods";
    let bogus = |name: &str, spec: &Value| {
        let mut pod = with(name, &no(), spec);
        pod["spec"]["bogus"] = json!(1);
        pod.to_string()
    };
    let invalid = json!({"restartPolicy": "Sometimes"});
    let both = [UNKNOWN, HOST_NAME];
    let sorted = [HOST_NAME, UNKNOWN];
    for (line, spec, code, expected) in [
        (format!("POST {path}"), &invalid, 422, &[UNKNOWN][..]),
        ("POST /pods".to_owned(), &invalid, 422, &[UNKNOWN]),
        ("PUT /pods".to_owned(), &invalid, 422, &[UNKNOWN]),
        (format!("POST {path}?fieldValidation=Ignore"), &invalid, 422, &[]),
        (format!("POST {path}?fieldValidation=Strict"), &invalid, 400, &[]),
        (format!("POST {path}?fieldValidation=Ignore"), &no(), 201, &[HOST_NAME]),
        (format!("POST {path}"), &no(), 409, &both),
        (format!("PUT {path}/a.b?dryRun=All"), &no(), 200, &both),
        (format!("PUT {path}/other"), &no(), 400, &both),
        (format!("PUT {path}/a.b"), &invalid, 422, &[UNKNOWN]),
    ] {
        let reply = server.ask(&line, &[], bogus("a.b", spec)).await;
        let mut warnings = reply.header("warning");
        warnings.sort_unstable();
        let expected: Vec<&str> = sorted.into_iter().filter(|warning| expected.contains(warning)).collect();
        assert_eq!((reply.code, warnings), (code, expected), "{line}: {}", reply.text());
    }
    let mut patched = pod("a.b");
    patched["spec"]["restartPolicy"] = json!("Sometimes");
    patched["spec"]["bogus"] = json!(1);
    let merge = [("content-type", "application/merge-patch+json")];
    let reply = server.ask(&format!("PATCH {path}/a.b"), &merge, patched.to_string()).await;
    assert_eq!((reply.code, reply.header("warning")), (422, vec![UNKNOWN]), "{}", reply.text());
}

/// A kubelet says nothing about such a pod.
#[test]
fn a_source_reads_a_pod_without_the_warnings_of_an_api_server() {
    let text = hiding(2, "N").to_string();
    for source in [SourceName::File, SourceName::Url] {
        let level = SecurityLevel::Privileged;
        assert_eq!(manifest::admit(text.as_bytes(), &preparation(source), level).unwrap().warnings, []);
        assert_eq!(manifest::review(text.as_bytes(), &preparation(source), level).unwrap().warnings.len(), 2);
    }
}

/// What the preparation adds to the name of a static pod is no reason for a warning.
#[test]
fn the_name_of_a_static_pod_is_that_in_its_manifest() {
    let node = NodeName::new("node1.example.com").unwrap();
    for (name, source, expected) in [
        ("web", SourceName::File, 0),
        ("web", SourceName::Url, 0),
        ("web.a", SourceName::File, 1),
        ("web-node1.example.com", SourceName::Http, 1),
    ] {
        let preparation = Preparation { node: node.clone(), ..preparation(source) };
        let text = pod(name).to_string();
        let warnings =
            manifest::review(text.as_bytes(), &preparation, SecurityLevel::Privileged).unwrap().warnings;
        assert_eq!(warnings.len(), expected, "{name}: {warnings:?}");
    }
}

/// A hundred warnings about one pod do not hide that the next one has an unknown field.
#[tokio::test]
async fn no_number_of_warnings_hides_an_unknown_field() {
    let mut bogus = pod("bogus");
    bogus["spec"]["bogus"] = json!(1);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [hiding(150, "N"), bogus]});
    let server = TestServer::start().await;
    let reply = server.ask("POST /pods?fieldValidation=Strict", &[], list.to_string()).await;
    assert_eq!(reply.code, 400, "{}", reply.text());
}
