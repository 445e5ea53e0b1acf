//! The reflector's state machine: how a request ends, and the next request.

use std::{fmt::Write as _, time::Duration};

use expect_test::{Expect, expect};
use http::{HeaderMap, HeaderValue, StatusCode, header::LOCATION};
use podmux::source::api::{
    reflector::{ListVersion, Reflector, Request, RequestEnd, RequestResult},
    status_error::StatusError,
};
use serde_json::json;
use tokio::time::Instant;

/// Runs a reflector and logs its requests, one a line, with the longest delays.
struct Script {
    reflector: Reflector,
    began: Instant,
    now: Instant,
    log: String,
    /// Whether probes are logged and the test ends them; else they succeed at once.
    probes: bool,
}

impl Script {
    fn new(version: Option<&str>) -> Self {
        let now = Instant::now();
        Self {
            reflector: Reflector::new(version.map(Into::into), now),
            began: now,
            now,
            log: String::new(),
            probes: false,
        }
    }

    fn log(&mut self, line: &str) {
        let at = (self.now - self.began).as_secs_f64();
        writeln!(self.log, "{at:.1} {line}").unwrap();
    }

    /// Waits until the next request may be made, and makes it.
    fn request(&mut self) -> &mut Self {
        self.now = self.now.max(self.reflector.next_at());
        let request = match self.reflector.next(self.now, 1.0) {
            Request::WatchList { version, timeout } => {
                format!("WATCHLIST {} for {timeout:?}", version.as_deref().unwrap_or("most recent"))
            }
            Request::Watch { version, timeout } => format!("WATCH {version} for {timeout:?}"),
            Request::Probe { .. } if !self.probes => {
                self.reflector.end(&RequestEnd::Listed, self.now, 1.0);
                return self.request();
            }
            Request::Probe { version } => format!("PROBE {version}"),
            Request::List { at, limit } => {
                let at = match at {
                    ListVersion::Any => "any".to_owned(),
                    ListVersion::NotOlderThan(version) => format!("not older than {version}"),
                    ListVersion::MostRecent => "most recent".to_owned(),
                    ListVersion::Continue(token) => format!("page {token}"),
                };
                limit.map_or(format!("LIST {at}"), |limit| format!("LIST {at} limit {limit}"))
            }
        };
        self.log(&request);
        self
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn accepted(&mut self) -> &mut Self {
        self.reflector.accepted(self.now);
        self
    }

    fn event(&mut self, version: &str) -> &mut Self {
        self.reflector.received(self.now);
        self.reflector.event(Some(version.into()));
        self
    }

    fn bookmark(&mut self, version: &str, ends_initial_events: bool) -> &mut Self {
        self.reflector.received(self.now);
        let completes = self.reflector.bookmark(version.into(), ends_initial_events);
        self.completed(completes)
    }

    fn page(&mut self, version: &str, token: &str) -> &mut Self {
        let completes = self.reflector.page(version.into(), token);
        self.completed(completes)
    }

    fn completed(&mut self, completes: bool) -> &mut Self {
        if completes {
            let version = self.reflector.version().unwrap().clone();
            self.log(&format!("  listing complete at {version}"));
        }
        self
    }

    fn end(&mut self, end: &RequestEnd) -> &mut Self {
        let result = self.reflector.end(end, self.now, 1.0);
        let what = match end {
            RequestEnd::Rejected(error) => format!("{}", error.code),
            RequestEnd::ErrorEvent(error) => format!("error {}", error.code),
            RequestEnd::Broken(_) => "broken".to_owned(),
            RequestEnd::Malformed(_) => "malformed".to_owned(),
            RequestEnd::RelistRequested => "relist requested".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        let result = match result {
            RequestResult::Healthy => "",
            RequestResult::Interrupted => ", interrupted",
            RequestResult::ListFallback => ", falls back to lists",
            RequestResult::Failing => ", failing",
        };
        self.log(&format!("  {what}{result}"));
        self
    }

    /// Goes on until a watch is open after a listing of this version.
    fn synced(&mut self, version: &str) -> &mut Self {
        self.request().accepted().bookmark(version, true)
    }

    #[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is used")]
    fn check(&self, expected: Expect) {
        expected.assert_eq(&self.log);
    }
}

fn rejected(code: u16) -> RequestEnd {
    rejection(code, "", &[])
}

fn rejection(code: u16, reason: &str, headers: &[(&'static str, &str)]) -> RequestEnd {
    let status = json!({"kind": "Status", "code": code, "reason": reason, "message": "m"});
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let code = StatusCode::from_u16(code).unwrap();
    RequestEnd::Rejected(StatusError::from_response(code, &map, status.to_string().as_bytes()))
}

fn too_large() -> StatusError {
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    let status = json!({"code": 504, "reason": "Timeout", "details": {"causes": [cause]}});
    StatusError::from_event(status.to_string().as_bytes())
}

fn error(code: u16) -> RequestEnd {
    RequestEnd::ErrorEvent(StatusError::from_event(json!({"code": code}).to_string().as_bytes()))
}

fn broken() -> RequestEnd {
    RequestEnd::Broken("reset".to_owned())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_watch_list_becomes_a_watch_and_the_next_watch_starts_at_its_last_bookmark() {
    let mut script = Script::new(None);
    script.request().accepted().event("90").bookmark("5", false).event("7").bookmark("12", true);
    script.event("15").pass(10 * SECOND).bookmark("20", false).pass(600 * SECOND).end(&RequestEnd::Closed);
    script.request().accepted().pass(2 * SECOND).end(&RequestEnd::Closed).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 12
        610.0   closed
        610.0 WATCH 20 for 600s
        612.0   closed
        612.0 WATCH 20 for 600s
    "#]]);
}

/// A server whose etcd was restored accepts a watch from a future version, and sends nothing.
#[test]
fn after_a_watch_that_ended_early_or_empty_a_probe_finds_out_whether_the_server_went_back_in_time() {
    let mut script = Script { probes: true, ..Script::new(None) };
    script.synced("12").pass(60 * SECOND).end(&RequestEnd::Closed);
    script.request().accepted().page("30", "").end(&RequestEnd::Listed);
    script.request().accepted().bookmark("12", false).pass(600 * SECOND).end(&RequestEnd::Closed);
    script.request().accepted().pass(600 * SECOND).end(&RequestEnd::Closed);
    script.request().accepted().page("30", "").end(&RequestEnd::Listed);
    script.request().accepted().pass(60 * SECOND);
    script.end(&broken()).request().end(&broken()).request().end(&rejected(403)).synced("12");
    script.pass(60 * SECOND).end(&broken()).request().end(&RequestEnd::Rejected(too_large())).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 12
        60.0   closed
        60.0 PROBE 12
        60.0   listed
        60.0 WATCH 12 for 600s
        660.0   closed
        660.0 WATCH 12 for 600s
        1260.0   closed
        1260.0 PROBE 12
        1260.0   listed
        1260.0 WATCH 12 for 600s
        1320.0   broken, interrupted
        1320.8 PROBE 12
        1320.8   broken, failing
        1322.4 PROBE 12
        1322.4   403
        1322.4 WATCHLIST 12 for 600s
        1322.4   listing complete at 12
        1382.4   broken, failing
        1385.6 PROBE 12
        1385.6   504, interrupted
        1386.4 WATCHLIST most recent for 600s
    "#]]);
}

#[test]
fn after_an_error_of_the_server_a_probe_comes_before_the_next_watch() {
    for end in [rejected(503), rejected(401), error(500), RequestEnd::NoClient(String::new())] {
        let mut script = Script { probes: true, ..Script::new(None) };
        script.synced("12").pass(600 * SECOND).end(&RequestEnd::Closed).request().end(&end).request();
        assert!(script.log.ends_with(" PROBE 12\n"), "{}", script.log);
    }
}

#[test]
fn a_server_without_watch_list_is_listed_for_half_an_hour() {
    let mut script = Script::new(None);
    script.request().end(&rejected(400)).request().accepted().page("3", "t1").end(&RequestEnd::Listed);
    script.request().page("4", "").end(&RequestEnd::Listed).request().accepted().pass(60 * SECOND);
    script.end(&rejected(410)).request().accepted().page("9", "").end(&RequestEnd::Listed).request();
    script.pass(1800 * SECOND).accepted().end(&rejected(410)).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   400, falls back to lists
        0.0 LIST any limit 500
        0.0   listed
        0.0 LIST page t1 limit 500
        0.0   listing complete at 3
        0.0   listed
        0.0 WATCH 3 for 600s
        60.0   410, interrupted
        60.8 LIST not older than 3
        60.8   listing complete at 9
        60.8   listed
        60.8 WATCH 9 for 600s
        1860.8   410, interrupted
        1861.6 WATCHLIST 9 for 600s
    "#]]);
    let mut script = Script::new(None);
    script.request().end(&rejected(422)).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   422, falls back to lists
        0.0 LIST any limit 500
    "#]]);
}

#[test]
fn a_watch_list_without_its_last_bookmark_falls_back_to_lists() {
    let mut script = Script::new(None);
    script.request().accepted();
    let deadline = |script: &Script| (script.reflector.deadline() - script.began).as_secs();
    assert_eq!(deadline(&script), 10);
    script.pass(9 * SECOND).event("1");
    assert_eq!(deadline(&script), 19);
    for _ in 0..6 {
        script.pass(9 * SECOND).event("1");
    }
    assert_eq!(deadline(&script), 60, "the initial events have no end");
    script.end(&RequestEnd::Silent).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        63.0   silent, falls back to lists
        63.0 LIST any limit 500
    "#]]);
}

#[test]
fn a_watch_may_last_a_little_longer_than_requested_and_a_list_as_long_as_data_arrives() {
    let mut script = Script::new(None);
    script.synced("5");
    assert_eq!(script.reflector.deadline() - script.began, 630 * SECOND);
    let mut script = Script::new(None);
    script.request().end(&rejected(400)).request().accepted().pass(50 * SECOND);
    script.reflector.received(script.now);
    assert_eq!(script.reflector.deadline() - script.began, 110 * SECOND);
}

/// The server is frozen, and its kernel keeps the connection.
#[test]
fn a_watch_that_had_a_bookmark_ends_three_minutes_after_the_last_event() {
    let mut script = Script::new(None);
    script.synced("5").pass(10 * SECOND).event("6");
    let deadline = |script: &Script| script.reflector.deadline() - script.began;
    assert_eq!(deadline(&script), 630 * SECOND, "a server that may send no bookmarks");
    script.pass(50 * SECOND).bookmark("7", false);
    assert_eq!(deadline(&script), 240 * SECOND);
    script.pass(30 * SECOND).event("8");
    assert_eq!(deadline(&script), 270 * SECOND);
    script.pass(500 * SECOND).event("9");
    assert_eq!(deadline(&script), 630 * SECOND, "no longer than without bookmarks");
    script.end(&RequestEnd::Silent).request().accepted();
    assert_eq!(script.reflector.deadline() - script.now, 630 * SECOND, "the next one may have none");
}

#[test]
fn a_watch_is_healthy_a_second_after_its_response_has_begun() {
    let mut script = Script::new(None);
    script.synced("5").pass(60 * SECOND).end(&broken()).request();
    assert_eq!(script.reflector.healthy_at(), None);
    script.pass(3 * SECOND).accepted();
    assert_eq!(script.reflector.healthy_at(), Some(script.now + SECOND));
    // A WatchList, after the bookmark that ends its initial events.
    let mut script = Script::new(None);
    script.request().accepted().pass(5 * SECOND).bookmark("5", true);
    assert_eq!(script.reflector.healthy_at(), Some(script.now + SECOND));
}

#[test]
fn the_first_request_after_a_restore_is_at_the_restored_version() {
    let mut script = Script::new(Some("70"));
    script
        .request()
        .end(&rejected(400))
        .request()
        .accepted()
        .page("80", "")
        .end(&RequestEnd::Listed)
        .request();
    script.check(expect![[r#"
        0.0 WATCHLIST 70 for 600s
        0.0   400, falls back to lists
        0.0 LIST not older than 70 limit 500
        0.0   listing complete at 80
        0.0   listed
        0.0 WATCH 80 for 600s
    "#]]);
    let mut script = Script::new(Some("70"));
    script.reflector.forget_version();
    script.request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
    "#]]);
}

#[test]
fn an_expired_or_too_large_version_is_not_requested_again() {
    for end in
        [rejected(410), RequestEnd::Rejected(too_large()), RequestEnd::ErrorEvent(too_large()), error(410)]
    {
        let mut script = Script::new(Some("70"));
        script.request().end(&end);
        assert_eq!(script.reflector.next_at(), script.now, "at once");
        script.request().end(&end).request();
        let log = script.log.replace("504", "410").replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST 70 for 600s
        0.0   410, interrupted
        0.0 WATCHLIST most recent for 600s
        0.0   410, failing
        0.8 WATCHLIST most recent for 600s
        "#]]
        .assert_eq(&log);
    }
}

#[test]
fn a_stale_list_is_repeated_at_once_as_the_most_recent() {
    let mut script = Script::new(Some("70"));
    script
        .request()
        .end(&rejected(400))
        .request()
        .end(&rejected(410))
        .request()
        .end(&rejected(500))
        .request();
    script.check(expect![[r#"
        0.0 WATCHLIST 70 for 600s
        0.0   400, falls back to lists
        0.0 LIST not older than 70 limit 500
        0.0   410, interrupted
        0.0 LIST most recent limit 500
        0.0   500, failing
        0.8 LIST most recent limit 500
    "#]]);
}

#[test]
fn after_an_expired_continue_token_one_list_without_pages_follows() {
    let mut script = Script::new(None);
    script.request().end(&rejected(400)).request().accepted().page("3", "t1").end(&RequestEnd::Listed);
    script
        .request()
        .end(&rejected(410))
        .request()
        .accepted()
        .page("8", "")
        .end(&RequestEnd::Listed)
        .request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   400, falls back to lists
        0.0 LIST any limit 500
        0.0   listed
        0.0 LIST page t1 limit 500
        0.0   410, interrupted
        0.0 LIST any
        0.0   listing complete at 8
        0.0   listed
        0.0 WATCH 8 for 600s
    "#]]);
}

#[test]
fn a_list_that_breaks_off_starts_again_with_the_first_page() {
    let mut script = Script::new(None);
    script.request().end(&rejected(400)).request().accepted().page("3", "t1").end(&RequestEnd::Listed);
    script.request().end(&broken()).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   400, falls back to lists
        0.0 LIST any limit 500
        0.0   listed
        0.0 LIST page t1 limit 500
        0.0   broken, failing
        0.8 LIST any limit 500
    "#]]);
}

#[test]
fn the_delay_doubles_up_to_half_a_minute() {
    let mut script = Script::new(None);
    for end in [
        broken(),
        rejected(500),
        RequestEnd::NoClient(String::new()),
        rejected(403),
        broken(),
        broken(),
        broken(),
    ] {
        script.request().end(&end);
    }
    script.request().end(&broken()).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   broken, failing
        0.8 WATCHLIST most recent for 600s
        0.8   500, failing
        2.4 WATCHLIST most recent for 600s
        2.4   noclient(""), failing
        5.6 WATCHLIST most recent for 600s
        5.6   403, failing
        12.0 WATCHLIST most recent for 600s
        12.0   broken, failing
        24.8 WATCHLIST most recent for 600s
        24.8   broken, failing
        50.4 WATCHLIST most recent for 600s
        50.4   broken, failing
        80.4 WATCHLIST most recent for 600s
        80.4   broken, failing
        110.4 WATCHLIST most recent for 600s
    "#]]);
}

#[test]
fn a_delay_is_random_from_half_to_all_of_it_and_retry_after_is_honoured() {
    let delay = |end: &RequestEnd, fraction: f64| {
        let now = Instant::now();
        let mut reflector = Reflector::new(None, now);
        reflector.next(now, 0.0);
        reflector.end(end, now, fraction);
        reflector.next_at() - now
    };
    assert_eq!(delay(&broken(), 0.0), Duration::from_millis(400));
    assert_eq!(delay(&broken(), 1.0), Duration::from_millis(800));
    assert_eq!(delay(&rejection(503, "", &[("retry-after", "7")]), 1.0), 7 * SECOND);
    assert_eq!(delay(&rejection(429, "", &[("retry-after", "0")]), 1.0), Duration::from_millis(800));
    assert_eq!(
        delay(&rejection(429, "", &[("retry-after", "99999999")]), 1.0),
        300 * SECOND,
        "a limited time"
    );
    let status = json!({"code": 429, "details": {"retryAfterSeconds": 9}}).to_string();
    assert_eq!(delay(&RequestEnd::ErrorEvent(StatusError::from_event(status.as_bytes())), 1.0), 9 * SECOND);
    let mut reflector = Reflector::new(None, Instant::now());
    let Request::WatchList { timeout, .. } = reflector.next(Instant::now(), 0.0) else { panic!() };
    assert_eq!(timeout, 300 * SECOND, "watches of 5 to 10 minutes");
}

#[test]
fn two_minutes_without_a_failure_reset_the_delay() {
    let mut script = Script::new(None);
    script.request().end(&broken()).request().end(&broken()).synced("4").pass(119 * SECOND).end(&broken());
    script.request().accepted().pass(120 * SECOND).end(&broken()).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   broken, failing
        0.8 WATCHLIST most recent for 600s
        0.8   broken, failing
        2.4 WATCHLIST most recent for 600s
        2.4   listing complete at 4
        121.4   broken, interrupted
        122.2 WATCH 4 for 600s
        242.2   broken, interrupted
        243.0 WATCH 4 for 600s
    "#]]);
}

#[test]
fn an_expired_watch_relists_with_a_growing_delay() {
    for end in [rejected(410), error(410)] {
        let mut script = Script::new(None);
        script.synced("5").end(&broken()).request().end(&end);
        script.request().accepted().bookmark("9", true).pass(SECOND).end(&end);
        script.request().accepted().bookmark("11", true).event("12").end(&end).request();
        let log = script.log.replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 5
        0.0   broken, failing
        0.8 WATCH 5 for 600s
        0.8   410, interrupted
        1.6 WATCHLIST 5 for 600s
        1.6   listing complete at 9
        2.6   410, failing
        4.2 WATCHLIST 9 for 600s
        4.2   listing complete at 11
        4.2   410, failing
        7.4 WATCHLIST 12 for 600s
        "#]]
        .assert_eq(&log);
    }
}

#[test]
fn a_watch_from_a_too_large_version_relists_the_most_recent() {
    for end in [RequestEnd::Rejected(too_large()), RequestEnd::ErrorEvent(too_large())] {
        let mut script = Script::new(None);
        script.synced("900").pass(60 * SECOND).end(&RequestEnd::Closed).request().end(&end);
        script.request().accepted().bookmark("30", true).pass(60 * SECOND).end(&RequestEnd::Closed).request();
        let log = script.log.replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 900
        60.0   closed
        60.0 WATCH 900 for 600s
        60.0   504, interrupted
        60.8 WATCHLIST most recent for 600s
        60.8   listing complete at 30
        120.8   closed
        120.8 WATCH 30 for 600s
        "#]]
        .assert_eq(&log);
    }
}

#[test]
fn the_second_server_error_in_a_row_relists() {
    for end in [error(500), rejected(500), RequestEnd::Malformed(String::new())] {
        let mut script = Script::new(None);
        script.synced("5").event("6").pass(SECOND).end(&end).request().accepted().event("7").end(&end);
        script.request().accepted().end(&end).request();
        let log = script.log.replace("malformed", "500").replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 5
        1.0   500, interrupted
        1.8 WATCH 6 for 600s
        1.8   500, failing
        3.4 WATCH 7 for 600s
        3.4   500, failing
        6.6 WATCHLIST 7 for 600s
        "#]]
        .assert_eq(&log);
    }
}

#[test]
fn a_temporary_error_never_relists() {
    for end in [rejected(401), rejected(403), rejected(429), rejected(503), broken(), RequestEnd::Silent] {
        let mut script = Script::new(None);
        script.synced("5").pass(60 * SECOND).end(&RequestEnd::Closed);
        for _ in 0..5 {
            script.request().end(&end);
        }
        script.request();
        assert!(script.log.ends_with("WATCH 5 for 600s\n"), "{}", script.log);
        assert_eq!(script.log.matches("WATCHLIST").count(), 1, "{}", script.log);
        assert_eq!(script.log.matches(", failing").count(), 5, "{}", script.log);
    }
}

#[test]
fn a_watch_that_ends_at_once_fails_and_at_most_one_watch_starts_a_second() {
    let mut script = Script::new(None);
    script.synced("5").pass(60 * SECOND).end(&RequestEnd::Closed);
    script.request().accepted().end(&RequestEnd::Closed).request().accepted().end(&RequestEnd::Closed);
    script
        .request()
        .accepted()
        .event("6")
        .end(&RequestEnd::Closed)
        .request()
        .accepted()
        .event("7")
        .end(&RequestEnd::Closed)
        .request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 5
        60.0   closed
        60.0 WATCH 5 for 600s
        60.0   closed, failing
        60.8 WATCH 5 for 600s
        60.8   closed, failing
        62.4 WATCH 5 for 600s
        62.4   closed
        64.4 WATCH 6 for 600s
        64.4   closed
        66.4 WATCH 7 for 600s
    "#]]);
}

#[test]
fn a_watch_list_that_is_closed_early_is_retried_as_a_watch_list() {
    let mut script = Script::new(None);
    script
        .request()
        .accepted()
        .event("5")
        .pass(5 * SECOND)
        .end(&RequestEnd::Closed)
        .request()
        .end(&error(500))
        .request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        5.0   closed, failing
        5.8 WATCHLIST most recent for 600s
        5.8   error 500, failing
        7.4 WATCHLIST most recent for 600s
    "#]]);
}

#[test]
fn a_second_watch_list_in_a_row_that_ends_without_its_last_bookmark_falls_back_to_lists() {
    for end in [broken(), RequestEnd::Closed] {
        let mut script = Script::new(None);
        for _ in 0..2 {
            script.request().accepted().event("5").pass(5 * SECOND).end(&end);
        }
        script.request().accepted().page("7", "").end(&RequestEnd::Listed).request();
        let log = script.log.replace("broken", "closed");
        expect![[r#"
        0.0 WATCHLIST most recent for 600s
        5.0   closed, failing
        5.8 WATCHLIST most recent for 600s
        10.8   closed, falls back to lists
        10.8 LIST any limit 500
        10.8   listing complete at 7
        10.8   listed
        10.8 WATCH 7 for 600s
        "#]]
        .assert_eq(&log);
    }
    // Without a response they say nothing.
    let mut script = Script::new(None);
    script.request().end(&broken()).request().end(&broken()).request();
    assert!(!script.log.contains("LIST any"), "{}", script.log);
}

#[test]
fn a_requested_relist_happens_at_once_in_any_state() {
    let mut script = Script::new(None);
    script
        .request()
        .end(&broken())
        .end(&RequestEnd::RelistRequested)
        .request()
        .accepted()
        .bookmark("5", true)
        .end(&RequestEnd::RelistRequested)
        .request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   broken, failing
        0.0   relist requested
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 5
        0.0   relist requested
        0.0 WATCHLIST 5 for 600s
    "#]]);
}

#[test]
fn a_smaller_version_is_used_verbatim() {
    let mut script = Script::new(None);
    script.synced("900").event("30").pass(60 * SECOND).end(&RequestEnd::Closed).request();
    script.check(expect![[r#"
        0.0 WATCHLIST most recent for 600s
        0.0   listing complete at 900
        60.0   closed
        60.0 WATCH 30 for 600s
    "#]]);
}

#[test]
fn a_relist_without_a_version_is_the_most_recent() {
    // Only the first list may be at any version: a server that lags could bring back a deleted pod.
    let mut script = Script::new(None);
    script.request().end(&rejected(400)).request().accepted().page("3", "").end(&RequestEnd::Listed);
    script.reflector.forget_version();
    script.request();
    assert!(script.log.ends_with("LIST most recent\n"), "{}", script.log);
}

#[test]
fn the_code_of_an_error_event_of_another_kind_counts() {
    let object = json!({"kind": "Other", "apiVersion": "example.org/v2", "code": 410, "message": "too old"});
    let error = StatusError::from_event(object.to_string().as_bytes());
    assert!(error.is_expired());
    assert_eq!(error.to_string(), "410 Gone: too old");
}

#[test]
fn a_status_error_names_the_next_step_and_quotes_a_limited_message() {
    let shown = |code: u16, body: &str| {
        StatusError::from_response(StatusCode::from_u16(code).unwrap(), &HeaderMap::new(), body.as_bytes())
            .to_string()
    };
    assert_eq!(
        shown(403, r#"{"message": "pods is forbidden"}"#),
        "403 Forbidden: pods is forbidden (grant this user list and watch on pods; a node's own credentials have both if --node-name is that node)"
    );
    let quoted = r#"{"message": "User \"nobody\" cannot list \\ \"pods\""}"#;
    assert_eq!(shown(500, quoted), r#"500 Internal Server Error: User "nobody" cannot list \ "pods""#);
    assert_eq!(
        shown(401, r#"{"reason": "Unauthorized"}"#),
        "401 Unauthorized: Unauthorized (are the credentials in the kubeconfig valid, and have they expired?)"
    );
    assert_eq!(shown(500, "<h1>no</h1>\n\u{1b}[2J"), "500 Internal Server Error: <h1>no</h1>\\n\\u{1b}[2J");
    assert!(shown(500, &"x".repeat(10_000)).len() < 600);
    assert_eq!(
        shown(400, "Client sent an HTTP request to an HTTPS server."),
        "400 Bad Request: Client sent an HTTP request to an HTTPS server. (the server uses TLS: write https:// in the kubeconfig's server)"
    );
    assert_eq!(shown(404, ""), "404 Not Found (is this the URL of the API server?)");
}

#[test]
fn a_redirect_that_is_not_followed_names_its_target_without_secrets() {
    let location = HeaderValue::from_static("https://user:s3cret@other.example/k8s/api/v1/pods?token=s3cret");
    let headers: HeaderMap = [(LOCATION, location)].into_iter().collect();
    let body = b"<a href=\"https://user:s3cret@other.example/\">Temporary Redirect</a>.";
    let error = StatusError::from_response(StatusCode::TEMPORARY_REDIRECT, &headers, body);
    assert_eq!(
        error.to_string(),
        "307 Temporary Redirect: to https://other.example/k8s/api/v1/pods (write the URL of the API server itself in the kubeconfig)"
    );
}
