//! How long an API server may take over an answer, and how much may be in what nobody wants: the source works all the same.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{
    apiserver::{Answer, RequestKind, Then, pod},
    reflected::{Reflected, over_both},
};

const SECOND: Duration = Duration::from_secs(1);
/// More than is read of what is not wanted.
const TOO_MUCH: usize = 65 << 10;

#[test]
fn an_answer_that_does_not_begin_is_given_up_and_asked_for_again() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        server.respond_times(1, RequestKind::WatchList, Answer::Never);
        let mut source = Reflected::start(&server);
        source.wait_for_failure("the API server has said nothing for too long").await;
        source.converges().await;
        assert_eq!(source.updates(), ["ADD a"]);
    });
}

#[test]
fn a_refusal_that_does_not_end_is_taken_without_its_end() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        server.respond_times(1, RequestKind::WatchList, Answer::new(500, "{", Then::Hang));
        let mut source = Reflected::start(&server);
        source.wait_for_failure("the API server refused: 500").await;
        source.converges().await;
    });
}

#[test]
fn a_refusal_is_read_so_far_and_no_further() {
    over_both(|server, _| async move {
        server.respond_times(1, RequestKind::WatchList, Answer::new(500, "x".repeat(TOO_MUCH), Then::Hang));
        let begin = Instant::now();
        let source = Reflected::start(&server);
        source.wait_for_failure("the API server refused: 500").await;
        // Its end would be waited for for 10 s.
        assert!(begin.elapsed() < 8 * SECOND, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_cluster_that_does_not_say_which_one_it_is_is_not_waited_for() {
    over_both(|server, _| async move {
        server.put(pod("a", "i:1"));
        let begins = Answer::new(200, r#"{"metadata""#, Then::Hang);
        for answer in [Answer::Never, begins] {
            server.respond_to_cluster_check(answer);
            let mut source = Reflected::start(&server);
            source.converges_within(30 * SECOND).await;
            source.stop().await;
        }
        server.respond_to_cluster_check(Answer::new(200, "x".repeat(TOO_MUCH), Then::Hang));
        let mut source = Reflected::start(&server);
        // Its end would be waited for for 5 s.
        source.converges_within(4 * SECOND).await;
        // Nor is it asked again.
        let asked = server.cluster_checks();
        server.break_watches();
        server.wait_for(1, RequestKind::Watch).await;
        assert_eq!(server.cluster_checks(), asked);
    });
}
