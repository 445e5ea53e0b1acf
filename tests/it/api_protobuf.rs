//! The apiserver source asks for protobuf first, and for JSON alone where protobuf does not work.

use std::time::Duration;

use crate::support::{
    apiserver::{Answer, ApiServer, RequestKind, Then, pod},
    reflected::{Reflected, over_both},
};

const BOTH: &str = "application/vnd.kubernetes.protobuf,application/json";

/// What the requests have accepted so far.
fn accepted(server: &ApiServer) -> Vec<String> {
    server.received().into_iter().map(|asked| asked.accept).collect()
}

#[test]
fn protobuf_is_asked_for_first_and_a_server_without_it_answers_in_json() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        let mut source = Reflected::watching(&server).await;
        server.break_watches();
        source.marker("b").await;
        assert!(accepted(&server).iter().all(|accept| accept == BOTH), "{:?}", accepted(&server));
    });
}

#[test]
fn after_a_response_that_is_malformed_in_protobuf_json_is_asked_for() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        let broken = Answer::new(200, &b"\xff\xff\xff\xff"[..], Then::End)
            .header("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch");
        server.respond_times(1, RequestKind::WatchList, broken);
        let mut source = Reflected::start(&server);
        source.converges().await;
        source.wait_for_watch().await;
        assert_eq!(accepted(&server), [BOTH, "application/json"]);
        assert_eq!(source.updates(), ["ADD a"]);
    });
}

#[test]
fn a_server_that_answers_406_is_asked_for_json() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        let status = Answer::status(406, "NotAcceptable", "only application/json");
        server.respond_times(1, RequestKind::WatchList, status);
        let mut source = Reflected::start(&server);
        source.converges_within(Duration::from_secs(10)).await;
        assert_eq!(accepted(&server), [BOTH, "application/json"]);
    });
}
