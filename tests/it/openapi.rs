//! The `OpenAPI` documents: those of a real kube-apiserver, cut to what the agent serves.
//!
//! `UPDATE_EXPECT=1 cargo test --test it openapi::` with a kube-apiserver writes the stored documents again.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    path::PathBuf,
};

use bytes::Bytes;
use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use http::{HeaderMap, Request};
use podmux::client::{Client, ClientSettings};
use serde_json::{Value, json};

use crate::support::{
    kubernetes::Apiserver,
    openapi_cut::{METHODS, cut_json, cut_protobuf, references},
    server::TestServer,
};

/// What the agent serves: paths as the documents have them, and methods.
pub const SERVED: &[(&str, &[&str])] = &[
    ("/api/", &["get"]),
    ("/api/v1/", &["get"]),
    ("/api/v1/events", &["get"]),
    ("/api/v1/namespaces", &["get"]),
    ("/api/v1/namespaces/{name}", &["get"]),
    ("/api/v1/namespaces/{namespace}/events", &["get"]),
    ("/api/v1/namespaces/{namespace}/events/{name}", &["get"]),
    ("/api/v1/namespaces/{namespace}/pods", &["get", "post", "delete"]),
    ("/api/v1/namespaces/{namespace}/pods/{name}", &["get", "put", "patch", "delete"]),
    ("/api/v1/namespaces/{namespace}/pods/{name}/log", &["get"]),
    ("/api/v1/namespaces/{namespace}/pods/{name}/status", &["get"]),
    ("/api/v1/namespaces/{namespace}/services", &["get"]),
    ("/api/v1/nodes", &["get"]),
    ("/api/v1/nodes/{name}", &["get"]),
    ("/api/v1/pods", &["get"]),
    ("/api/v1/services", &["get"]),
    ("/apis/", &["get"]),
    ("/apis/authentication.k8s.io/", &["get"]),
    ("/apis/authentication.k8s.io/v1/", &["get"]),
    ("/apis/authentication.k8s.io/v1/selfsubjectreviews", &["post"]),
    ("/apis/authorization.k8s.io/", &["get"]),
    ("/apis/authorization.k8s.io/v1/", &["get"]),
    ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &["post"]),
    ("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &["post"]),
    ("/version/", &["get"]),
];

const CORE: &str = "/openapi/v3/api/v1";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The documents in JSON, and the files that hold them.
const DOCUMENTS: [(&str, &str); 4] = [
    (CORE, "core.json.gz"),
    ("/openapi/v3/apis/authentication.k8s.io/v1", "authentication.json.gz"),
    ("/openapi/v3/apis/authorization.k8s.io/v1", "authorization.json.gz"),
    ("/openapi/v2", "v2.json.gz"),
];

/// A server, and how to call it.
struct Asked {
    client: Client,
    base: String,
    token: String,
}

struct Answer {
    code: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Asked {
    fn apiserver(server: &Apiserver) -> Self {
        let settings = ClientSettings { ca_file: Some(server.at.ca.clone()), ..ClientSettings::default() };
        Self::new(settings, &server.at.url, &server.at.token)
    }

    fn agent(server: &TestServer) -> Self {
        Self::new(ClientSettings::default(), &format!("http://{}", server.address), "")
    }

    fn new(settings: ClientSettings, base: &str, token: &str) -> Self {
        Self { client: Client::new(settings).unwrap(), base: base.to_owned(), token: token.to_owned() }
    }

    async fn ask(&self, request: &str, headers: &[(&str, &str)]) -> Answer {
        let (method, path) = request.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header("authorization", format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.client.send(request.body(Bytes::new()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = body.whole(64 << 20).await.unwrap();
        Answer { code: head.status.as_u16(), headers: head.headers, body }
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/server/api/openapi").join(name)
}

fn stored(name: &str) -> Vec<u8> {
    let (compressed, mut text) = (fs::read(file(name)).unwrap(), Vec::new());
    GzDecoder::new(&*compressed).read_to_end(&mut text).unwrap();
    text
}

/// Compares a stored document with the one that it should be, or stores that.
fn check(name: &str, wanted: &[u8]) {
    if stored(name) == wanted {
        return;
    }
    assert!(
        env::var_os("UPDATE_EXPECT").is_some(),
        "{name} is not the kube-apiserver's document cut to what is served: UPDATE_EXPECT=1 writes it again"
    );
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(wanted).unwrap();
    fs::write(file(name), gzip.finish().unwrap()).unwrap();
}

#[tokio::test]
async fn the_documents_are_those_of_an_apiserver_cut_to_what_is_served() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let theirs = Asked::apiserver(apiserver);
    let mut whole = Value::Null;
    for (path, name) in DOCUMENTS {
        whole = theirs.ask(&format!("GET {path}"), &[("accept", "application/json")]).await.json();
        cut_json(&mut whole, SERVED);
        check(name, whole.to_string().as_bytes());
    }
    // The last one is version 2, which is the same in protobuf.
    let protobuf = theirs.ask("GET /openapi/v2", &[("accept", PROTOBUF)]).await;
    check("v2.pb.gz", &cut_protobuf(&protobuf.body, &whole));
}

/// The stored documents in JSON, by their paths.
fn documents() -> Vec<(&'static str, Value)> {
    DOCUMENTS.iter().map(|(path, name)| (*path, serde_json::from_slice(&stored(name)).unwrap())).collect()
}

#[test]
fn the_documents_define_what_they_refer_to() {
    for (path, document) in documents() {
        for reference in references(&document) {
            assert!(document.pointer(&reference).is_some(), "{path}: {reference}");
        }
    }
}

#[tokio::test]
async fn each_operation_of_the_documents_is_served() {
    let server = TestServer::start().await;
    let ours = Asked::agent(&server);
    let mut operations = 0;
    for (_, document) in documents() {
        for (path, item) in document["paths"].as_object().unwrap() {
            let path = path.replace("{namespace}", "default").replace("{name}", "none");
            for method in METHODS.iter().filter(|(method, _)| item.get(method).is_some()) {
                let answer = ours.ask(&format!("{} {path}", method.0.to_uppercase()), &[]).await;
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                assert!(
                    answer.code != 405 && !text.contains("does not serve"),
                    "{} {path}: {text}",
                    method.0
                );
                operations += 1;
            }
        }
    }
    assert!(operations > 40, "{operations}");
}

/// The parts of an answer in which the agent is as an API server.
fn shape(answer: &Answer) -> Value {
    let redirect = answer.header("location").split("hash=").next();
    json!({
        "code": answer.code,
        "type": if answer.code == 200 { answer.header("content-type") } else { "" },
        "tag": answer.code != 301 && answer.header("etag").starts_with('"'),
        "may be kept": answer.header("cache-control").contains("immutable"),
        "expires": answer.header("expires").ends_with("GMT") || answer.header("expires").ends_with("UTC"),
        "redirect": redirect,
        "body": if answer.code == 200 { !answer.body.is_empty() } else { false },
    })
}

#[tokio::test]
async fn documents_are_served_and_kept_as_those_of_an_apiserver() {
    let server = TestServer::start().await;
    let mut sides = vec![Asked::agent(&server)];
    sides.extend(Apiserver::shared().map(Asked::apiserver));
    let mut shapes = Vec::new();
    for side in &sides {
        let index = side.ask("GET /openapi/v3", &[]).await;
        let url = index.json()["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
        let kept = side.ask(&format!("GET {url}"), &[]).await;
        let tag = kept.header("etag").to_owned();
        assert_eq!(url, format!("{CORE}?hash={}", tag.trim_matches('"')));
        let wrong = side.ask(&format!("GET {CORE}?hash=wrong"), &[]).await;
        assert_eq!(wrong.header("location"), url);
        let mut answers = vec![kept, wrong];
        let tags = format!("\"x\", W/{tag}");
        let protobuf =
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf;q=0.9,application/json;q=0.8";
        for (path, header) in [
            (CORE, ("accept", "*/*")),
            (CORE, ("accept", "text/html, application/json;q=0.5")),
            (CORE, ("accept", "text/html")),
            (CORE, ("if-none-match", &*tag)),
            (CORE, ("if-none-match", &*tags)),
            (CORE, ("if-none-match", "*")),
            (CORE, ("if-none-match", "\"x\"")),
            (&*url, ("if-none-match", &*tag)),
            ("/openapi/v2", ("accept", "*/*")),
            ("/openapi/v2", ("accept", PROTOBUF)),
            ("/openapi/v2", ("accept", protobuf)),
            ("/openapi/v2", ("accept", "application/json")),
            ("/openapi/v2", ("accept", "text/html")),
        ] {
            answers.push(side.ask(&format!("GET {path}"), &[header]).await);
        }
        answers.push(side.ask(&format!("HEAD {CORE}"), &[]).await);
        shapes.push(answers.iter().map(shape).collect::<Vec<_>>());
    }
    let codes: Vec<&Value> = shapes[0].iter().map(|shape| &shape["code"]).collect();
    assert_eq!(codes, [200, 301, 200, 200, 406, 304, 304, 304, 200, 304, 200, 200, 200, 200, 406, 200]);
    for theirs in &shapes[1..] {
        assert_eq!(shapes[0], *theirs);
    }
}

#[tokio::test]
async fn a_document_is_sent_as_it_is_stored_to_a_client_that_accepts_gzip() {
    let server = TestServer::start().await;
    let ours = Asked::agent(&server);
    let plain = ours.ask(&format!("GET {CORE}"), &[]).await;
    assert_eq!(plain.body, stored("core.json.gz"));
    assert_eq!(plain.header("content-length"), plain.body.len().to_string());
    assert_eq!(plain.header("vary"), "Accept, Accept-Encoding");
    let answer = ours.ask(&format!("GET {CORE}"), &[("accept-encoding", "br, gzip")]).await;
    assert_eq!(
        (answer.header("content-encoding"), &*answer.body),
        ("gzip", &*fs::read(file("core.json.gz")).unwrap())
    );
    // The tag of other bytes is another one.
    assert_eq!(answer.header("etag"), format!("W/{}", plain.header("etag")));
    let refused = ours.ask(&format!("GET {CORE}"), &[("accept-encoding", "gzip;q=0")]).await;
    assert_eq!((refused.header("content-encoding"), &refused.body), ("", &plain.body));
    let only_protobuf = ours.ask(&format!("GET {CORE}"), &[("accept", PROTOBUF)]).await;
    assert_eq!(only_protobuf.code, 406);
    assert!(String::from_utf8_lossy(&only_protobuf.body).contains("accepted: application/json"));
}
