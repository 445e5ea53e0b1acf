//! The crew: named tasks that live and fall together.

use std::{
    future::{Future, pending},
    time::Duration,
};

use podmux::supervise::{BoxError, Crew, CrewError};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const GRACE: Duration = Duration::from_secs(10);

/// A crew with a member that ends when it is told to, and a token for the rest.
fn crew() -> (Crew, CancellationToken) {
    let stop = CancellationToken::new();
    let mut crew = Crew::new(stop.clone());
    crew.spawn("good", obedient(stop.clone()));
    (crew, stop)
}

async fn obedient(stop: CancellationToken) -> Result<(), BoxError> {
    stop.cancelled().await;
    Ok(())
}

async fn ended(crew: Crew) -> Result<Vec<String>, CrewError> {
    ended_within(crew, GRACE).await
}

async fn ended_within(crew: Crew, grace: Duration) -> Result<Vec<String>, CrewError> {
    // The sender may be gone: the last grace holds.
    soon(crew.run(watch::channel(grace).1)).await
}

/// An hour of paused time.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_hours(1), future).await.expect("nothing happened for an hour")
}

#[tokio::test(start_paused = true)]
async fn a_crew_that_is_told_to_stop_ends_well() {
    let (mut crew, stop) = crew();
    crew.spawn("asks", async move {
        stop.cancel();
        Ok(())
    });
    assert_eq!(ended(crew).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_unasked_stops_all_and_is_named() {
    let (mut crew, stop) = crew();
    crew.spawn("short", async { Ok(()) });
    let error = ended(crew).await.unwrap_err();
    assert_eq!(error.to_string(), "task short ended although nobody had asked it to");
    assert!(stop.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_stops_all_and_is_named_with_its_reason() {
    let (mut crew, stop) = crew();
    crew.spawn("bad", async { Err("no such luck".into()) });
    let error = ended(crew).await.unwrap_err();
    assert_eq!(format!("{:#}", anyhow::Error::from(error)), "task bad failed: no such luck");
    assert!(stop.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_stops_all_and_is_named_with_its_message() {
    for (task, message) in [("static", "plain"), ("formatted", "number 7")] {
        let (mut crew, stop) = crew();
        crew.spawn(task, async move {
            assert_ne!(task, "static", "plain");
            panic!("number {}", 7)
        });
        let error = ended(crew).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("task {task} panicked: ")) && error.contains(message), "{error}");
        assert!(stop.is_cancelled());
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_reason_counts() {
    let (mut crew, stop) = crew();
    crew.spawn("first", async { Err("the cause".into()) });
    crew.spawn("second", async move {
        stop.cancelled().await;
        Err("the consequence".into())
    });
    assert!(matches!(ended(crew).await.unwrap_err(), CrewError::Failed { task, .. } if task == "first"));
}

#[tokio::test(start_paused = true)]
async fn an_error_on_the_way_out_counts() {
    let (mut crew, stop) = crew();
    stop.cancel();
    crew.spawn("last", async { Err("lost the rest".into()) });
    assert!(matches!(ended(crew).await.unwrap_err(), CrewError::Failed { task, .. } if task == "last"));
}

#[tokio::test(start_paused = true)]
async fn laggards_are_named_at_the_deadline_and_cut_off() {
    let (mut crew, stop) = crew();
    let (alive, aborted) = watch::channel(());
    crew.spawn("stuck", async move {
        pending::<()>().await;
        drop(alive);
        Ok(())
    });
    crew.spawn("also stuck", pending());
    let begun = Instant::now();
    stop.cancel();
    assert_eq!(ended(crew).await.unwrap(), ["also stuck", "stuck"]);
    assert_eq!(begun.elapsed(), GRACE);
    let mut aborted = aborted;
    soon(aborted.changed()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn the_grace_begins_with_the_warning_and_the_tasks_go_on_until_the_stop() {
    let (crew, stop) = crew();
    let warned = stop.child_token();
    let mut crew = crew.warned_by(warned.clone());
    crew.spawn("stuck", pending());
    let begun = Instant::now();
    warned.cancel();
    let stops = async {
        sleep(GRACE / 2).await;
        // Whoever ended before would have been missed.
        stop.cancel();
    };
    assert_eq!(tokio::join!(ended(crew), stops).0.unwrap(), ["stuck"]);
    assert_eq!(begun.elapsed(), GRACE);
}

#[tokio::test(start_paused = true)]
async fn a_failure_gives_the_rest_the_same_deadline() {
    let (mut crew, _stop) = crew();
    crew.spawn("bad", async { Err("no such luck".into()) });
    crew.spawn("stuck", pending());
    let begun = Instant::now();
    assert!(ended(crew).await.is_err());
    assert_eq!(begun.elapsed(), GRACE);
}

#[tokio::test(start_paused = true)]
async fn without_grace_nobody_is_waited_for() {
    let (mut crew, stop) = crew();
    crew.spawn("stuck", pending());
    stop.cancel();
    let begun = Instant::now();
    assert!(ended_within(crew, Duration::ZERO).await.unwrap().contains(&"stuck".to_owned()));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_grace_is_the_one_that_holds_when_the_stop_comes() {
    let (mut crew, stop) = crew();
    crew.spawn("stuck", pending());
    let (grace, now) = watch::channel(GRACE);
    let running = tokio::spawn(crew.run(now));
    grace.send(GRACE * 2).unwrap();
    let begun = Instant::now();
    stop.cancel();
    assert_eq!(soon(running).await.unwrap().unwrap(), ["stuck"]);
    assert_eq!(begun.elapsed(), GRACE * 2);
}
