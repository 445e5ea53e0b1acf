//! The long-lived tasks: they run together and stop together.

use std::{
    future::{Future, pending},
    time::Duration,
};

use podmux::supervise::{BoxError, TaskError, Tasks};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const GRACE: Duration = Duration::from_secs(10);

/// Tasks with one that ends when it is stopped, and their stop token.
fn tasks() -> (Tasks, CancellationToken) {
    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    tasks.spawn("good", stoppable(stop.clone()));
    (tasks, stop)
}

async fn stoppable(stop: CancellationToken) -> Result<(), BoxError> {
    stop.cancelled().await;
    Ok(())
}

async fn ended(tasks: Tasks) -> Result<Vec<String>, TaskError> {
    ended_within(tasks, GRACE).await
}

async fn ended_within(tasks: Tasks, grace: Duration) -> Result<Vec<String>, TaskError> {
    // The last grace stays in effect without its sender.
    soon(tasks.run(watch::channel(grace).1)).await
}

/// Waits for an hour of paused time at most.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_hours(1), future).await.expect("nothing happened for an hour")
}

#[tokio::test(start_paused = true)]
async fn tasks_that_are_stopped_end_without_error() {
    let (mut tasks, stop) = tasks();
    tasks.spawn("stops", async move {
        stop.cancel();
        Ok(())
    });
    assert_eq!(ended(tasks).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_early_stops_all_and_is_named() {
    let (mut tasks, stop) = tasks();
    tasks.spawn("short", async { Ok(()) });
    let error = ended(tasks).await.unwrap_err();
    assert_eq!(error.to_string(), "task short ended before the shutdown");
    assert!(stop.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_stops_all_and_is_named_with_its_reason() {
    let (mut tasks, stop) = tasks();
    tasks.spawn("bad", async { Err("no route to host".into()) });
    let error = ended(tasks).await.unwrap_err();
    assert_eq!(format!("{:#}", anyhow::Error::from(error)), "task bad failed: no route to host");
    assert!(stop.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_stops_all_and_is_named_with_its_message() {
    for (task, message) in [("static", "plain"), ("formatted", "number 7")] {
        let (mut tasks, stop) = tasks();
        tasks.spawn(task, async move {
            assert_ne!(task, "static", "plain");
            panic!("number {}", 7)
        });
        let error = ended(tasks).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("task {task} panicked: ")) && error.contains(message), "{error}");
        assert!(stop.is_cancelled());
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_reason_counts() {
    let (mut tasks, stop) = tasks();
    tasks.spawn("first", async { Err("the cause".into()) });
    tasks.spawn("second", async move {
        stop.cancelled().await;
        Err("the consequence".into())
    });
    assert!(matches!(ended(tasks).await.unwrap_err(), TaskError::Failed { task, .. } if task == "first"));
}

#[tokio::test(start_paused = true)]
async fn an_error_during_the_shutdown_counts() {
    let (mut tasks, stop) = tasks();
    stop.cancel();
    tasks.spawn("last", async { Err("lost updates".into()) });
    assert!(matches!(ended(tasks).await.unwrap_err(), TaskError::Failed { task, .. } if task == "last"));
}

#[tokio::test(start_paused = true)]
async fn unfinished_tasks_are_named_at_the_deadline_and_aborted() {
    let (mut tasks, stop) = tasks();
    let (alive, aborted) = watch::channel(());
    tasks.spawn("stuck", async move {
        pending::<()>().await;
        drop(alive);
        Ok(())
    });
    tasks.spawn("also stuck", pending());
    let begun = Instant::now();
    stop.cancel();
    assert_eq!(ended(tasks).await.unwrap(), ["also stuck", "stuck"]);
    assert_eq!(begun.elapsed(), GRACE);
    let mut aborted = aborted;
    soon(aborted.changed()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn the_deadline_can_start_before_the_tasks_are_stopped() {
    let (tasks, stop) = tasks();
    let finish = stop.child_token();
    let mut tasks = tasks.deadline_between(finish.clone(), CancellationToken::new());
    tasks.spawn("stuck", pending());
    let begun = Instant::now();
    finish.cancel();
    let stops = async {
        sleep(GRACE / 2).await;
        // A task that ended before this would be an error.
        stop.cancel();
    };
    assert_eq!(tokio::join!(ended(tasks), stops).0.unwrap(), ["stuck"]);
    assert_eq!(begun.elapsed(), GRACE);
}

#[tokio::test(start_paused = true)]
async fn a_failure_gives_the_rest_the_same_deadline() {
    let (mut tasks, _stop) = tasks();
    tasks.spawn("bad", async { Err("no route to host".into()) });
    tasks.spawn("stuck", pending());
    let begun = Instant::now();
    assert!(ended(tasks).await.is_err());
    assert_eq!(begun.elapsed(), GRACE);
}

#[tokio::test(start_paused = true)]
async fn without_grace_no_task_is_awaited() {
    let (mut tasks, stop) = tasks();
    tasks.spawn("stuck", pending());
    stop.cancel();
    let begun = Instant::now();
    assert!(ended_within(tasks, Duration::ZERO).await.unwrap().contains(&"stuck".to_owned()));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_grace_is_that_of_the_moment_of_the_stop() {
    let (mut tasks, stop) = tasks();
    tasks.spawn("stuck", pending());
    let (grace, now) = watch::channel(GRACE);
    let running = tokio::spawn(tasks.run(now));
    grace.send(GRACE * 2).unwrap();
    let begun = Instant::now();
    stop.cancel();
    assert_eq!(soon(running).await.unwrap().unwrap(), ["stuck"]);
    assert_eq!(begun.elapsed(), GRACE * 2);
}
