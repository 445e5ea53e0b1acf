//! Time limits and size limits of responses that the apiserver source does not need whole.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{
    apiserver::{Answer, RequestKind, Then, pod},
    reflected::{Reflected, over_both},
};

const SECOND: Duration = Duration::from_secs(1);
/// More than is read of an error's body.
const TOO_MUCH: usize = 65 << 10;

#[test]
fn a_response_that_does_not_begin_times_out_and_is_retried() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        server.respond_times(1, RequestKind::WatchList, Answer::Never);
        let mut source = Reflected::start(&server);
        source.wait_for_failure("the API server has sent nothing for too long").await;
        source.converges().await;
        assert_eq!(source.updates(), ["ADD a"]);
    });
}

#[test]
fn an_error_without_an_end_is_used_without_its_body() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        server.respond_times(1, RequestKind::WatchList, Answer::new(500, "{", Then::Hang));
        let mut source = Reflected::start(&server);
        source.wait_for_failure("the API server rejected the request: 500").await;
        source.converges().await;
    });
}

#[test]
fn the_body_of_an_error_is_read_up_to_a_limit() {
    over_both(|server, _| async move {
        server.respond_times(1, RequestKind::WatchList, Answer::new(500, "x".repeat(TOO_MUCH), Then::Hang));
        let begin = Instant::now();
        let source = Reflected::start(&server);
        source.wait_for_failure("the API server rejected the request: 500").await;
        // Without the limit it would wait 10 s for the end.
        assert!(begin.elapsed() < 8 * SECOND, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_cluster_that_cannot_be_identified_delays_the_source_only_briefly() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        let begins = Answer::new(200, r#"{"metadata""#, Then::Hang);
        for answer in [Answer::Never, Answer::HangUp, begins] {
            server.respond_to_cluster_check(answer);
            let mut source = Reflected::start(&server);
            source.converges_within(30 * SECOND).await;
            source.stop().await;
        }
        server.respond_to_cluster_check(Answer::new(200, "x".repeat(TOO_MUCH), Then::Hang));
        let mut source = Reflected::start(&server);
        // Without the limit it would wait 5 s for the end.
        source.converges_within(4 * SECOND).await;
        // The check is repeated when another cluster may answer.
        let asked = server.cluster_checks();
        server.end_watches();
        server.wait_for(1, RequestKind::Watch).await;
        assert_eq!(server.cluster_checks(), asked + 1);
        server.break_watches();
        server.wait_for(2, RequestKind::Watch).await;
        assert_eq!(server.cluster_checks(), asked + 2);
    });
}
