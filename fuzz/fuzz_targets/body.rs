//! Any bytes as the body of a request, in every format that the server accepts.
//!
//! Nothing panics, every answer is one of the API's codes and is JSON, and a write that is only
//! tried changes nothing.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use std::{future::ready, sync::Arc};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use podmux::{
    db::Sequence,
    events::Events,
    history::{Bounds, History},
    host::Host,
    mux::{Mux, Notify},
    pod::{NodeName, SecurityLevel, SourceName},
    server::{ConnectionStats, LastReload, Limits, View, read_bodies, router},
    source::http::{HttpSource, Release},
    storage::Delivered,
};
use podmux_fuzz::bounded;
use serde_json::Value;
use tokio::{
    runtime::{self, Runtime},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

const FORMATS: [&str; 6] = [
    "application/json",
    "application/yaml",
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/vnd.kubernetes.protobuf",
    "",
];

const REQUESTS: [(&str, &str); 4] = [
    ("POST", "/pods?dryRun=All"),
    ("PUT", "/pods?dryRun=All"),
    ("POST", "/api/v1/namespaces/default/pods?dryRun=All"),
    ("DELETE", "/api/v1/namespaces/default/pods/a?dryRun=All"),
];

thread_local! {
    static SERVER: (Runtime, Router) = server();
}

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let choice = usize::from(choice);
    let (method, path) = REQUESTS[choice % REQUESTS.len()];
    let format = FORMATS[choice / REQUESTS.len() % FORMATS.len()];
    let request = Request::builder().method(method).uri(path).header("content-type", format);
    let request = request.body(Body::from(body.to_vec())).unwrap();
    // An alias repeats what the text has once, within a bound of its own.
    let length = if body.contains(&b'*') { 100 << 10 } else { body.len() };
    SERVER.with(|(runtime, router)| {
        let (code, answer) = bounded(length, || {
            runtime.block_on(async {
                let (head, body) = router.clone().call(request).await.unwrap().into_parts();
                (head.status, body.collect().await.unwrap().to_bytes())
            })
        });
        let expected = [200, 201, 400, 403, 404, 409, 413, 415, 422];
        assert!(expected.contains(&code.as_u16()), "{code}: {}", String::from_utf8_lossy(&answer));
        assert_ne!(code, StatusCode::INTERNAL_SERVER_ERROR);
        let _: Value = serde_json::from_slice(&answer).unwrap();
    });
});

/// The router of a server without sinks, and the runtime of its tasks.
fn server() -> (Runtime, Router) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let router = runtime.block_on(async {
        let node = NodeName::new("node1").unwrap();
        let (mux, turning) = Mux::new(&[SourceName::Http]);
        let (_acknowledged, seen) = watch::channel(vec![Delivered::default()]);
        let channel = mux.channel(SourceName::Http).unwrap();
        let sequence = Sequence::after("run", 0);
        let release = Release::Sinks { acknowledged: seen, merged: mux.merged() };
        let (source, posts) = HttpSource::new(None, sequence.clone(), channel, release);
        let sources = vec![(SourceName::Http, posts.status())];
        let (events, event_reader) =
            Events::new(node.clone(), mux.merged(), sources.clone(), sequence.clone(), Host::default());
        let (history, reader) = History::new(mux.updates(Notify::Incremental), sequence, Bounds::default());
        let stop = CancellationToken::new();
        tokio::spawn(turning.run());
        tokio::spawn(source.run(stop.clone()));
        tokio::spawn(history.run());
        tokio::spawn(events.run());
        let view = View {
            node,
            merged: mux.merged(),
            observed: None,
            runtime: None,
            posts: posts.clone(),
            history: reader,
            events: event_reader,
            sources: sources.into(),
            reflector: None,
            sinks: Arc::new([]),
            acknowledged: watch::channel(Vec::new()).1,
            turns: Arc::new(|| Box::pin(ready(true))),
            stopping: stop,
            started: Timestamp::UNIX_EPOCH,
            reload: watch::channel(LastReload::at_start(Timestamp::UNIX_EPOCH)).1,
            connections: ConnectionStats::default(),
            host: Host::default(),
            pod_security: watch::channel(SecurityLevel::Privileged).1,
        };
        read_bodies(router(view), &Limits::default(), ConnectionStats::default())
    });
    (runtime, router)
}
