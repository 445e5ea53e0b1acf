//! The reflector's state machine: every answer, and the request that follows from it.

use std::{fmt::Write as _, time::Duration};

use expect_test::{Expect, expect};
use http::{HeaderMap, HeaderValue, StatusCode};
use podmux::source::api::{
    answer::Refusal,
    reflector::{At, Deed, End, Reflector, Request, Verdict},
};
use serde_json::json;
use tokio::time::Instant;

/// What a reflector does, told line by line: the dice always show the longest delay.
struct Play {
    reflector: Reflector,
    began: Instant,
    now: Instant,
    told: String,
    /// Whether probes are told; else they are answered as they mostly are, at once.
    probes: bool,
}

impl Play {
    fn new(version: Option<&str>) -> Self {
        let now = Instant::now();
        Self {
            reflector: Reflector::new(version.map(Into::into), now),
            began: now,
            now,
            told: String::new(),
            probes: false,
        }
    }

    fn tell(&mut self, line: &str) {
        let at = (self.now - self.began).as_secs_f64();
        writeln!(self.told, "{at:.1} {line}").unwrap();
    }

    /// Waits until the next request may be made, and makes it.
    fn ask(&mut self) -> &mut Self {
        self.now = self.now.max(self.reflector.next_at());
        let request = match self.reflector.next(self.now, 1.0) {
            Request::WatchList { version, timeout } => {
                format!("WATCHLIST {} for {timeout:?}", version.as_deref().unwrap_or("newest"))
            }
            Request::Watch { version, timeout } => format!("WATCH {version} for {timeout:?}"),
            Request::Probe { .. } if !self.probes => {
                self.reflector.ended(&End::Listed, self.now, 1.0);
                return self.ask();
            }
            Request::Probe { version } => format!("PROBE {version}"),
            Request::List { at, limit } => {
                let at = match at {
                    At::Any => "any".to_owned(),
                    At::NotOlderThan(version) => format!("not older than {version}"),
                    At::Newest => "newest".to_owned(),
                    At::Page(token) => format!("page {token}"),
                };
                limit.map_or(format!("LIST {at}"), |limit| format!("LIST {at} limit {limit}"))
            }
        };
        self.tell(&request);
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
        self.reflector.heard(self.now);
        self.reflector.event(Some(version.into()));
        self
    }

    fn bookmark(&mut self, version: &str, ends_initial_events: bool) -> &mut Self {
        self.reflector.heard(self.now);
        let deed = self.reflector.bookmark(version.into(), ends_initial_events);
        self.deed(deed)
    }

    fn page(&mut self, version: &str, token: &str) -> &mut Self {
        let deed = self.reflector.page(version.into(), token);
        self.deed(deed)
    }

    fn deed(&mut self, deed: Deed) -> &mut Self {
        if deed == Deed::Replace {
            let version = self.reflector.version().unwrap().clone();
            self.tell(&format!("  the listing is that of {version}"));
        }
        self
    }

    fn end(&mut self, end: &End) -> &mut Self {
        let verdict = self.reflector.ended(end, self.now, 1.0);
        let what = match end {
            End::Refused(refusal) => format!("{}", refusal.code),
            End::Error(refusal) => format!("error {}", refusal.code),
            End::Broken(_) => "broken".to_owned(),
            End::Garbage(_) => "garbage".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        let verdict = match verdict {
            Verdict::Well => "",
            Verdict::Usual => ", as usual",
            Verdict::NoWatchList => ", no watch list",
            Verdict::Failing => ", failing",
        };
        self.tell(&format!("  {what}{verdict}"));
        self
    }

    /// As far as a watch that stands, of a listing of this version.
    fn synced(&mut self, version: &str) -> &mut Self {
        self.ask().accepted().bookmark(version, true)
    }

    #[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is used")]
    fn told(&self, expected: Expect) {
        expected.assert_eq(&self.told);
    }
}

fn refused(code: u16) -> End {
    refusal(code, "", &[])
}

fn refusal(code: u16, reason: &str, headers: &[(&'static str, &str)]) -> End {
    let status = json!({"kind": "Status", "code": code, "reason": reason, "message": "m"});
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let code = StatusCode::from_u16(code).unwrap();
    End::Refused(Refusal::of_answer(code, &map, status.to_string().as_bytes()))
}

fn too_large() -> Refusal {
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    let status = json!({"code": 504, "reason": "Timeout", "details": {"causes": [cause]}});
    Refusal::of_event(status.to_string().as_bytes())
}

fn error(code: u16) -> End {
    End::Error(Refusal::of_event(json!({"code": code}).to_string().as_bytes()))
}

fn broken() -> End {
    End::Broken("reset".to_owned())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_watch_list_becomes_a_watch_and_goes_on_from_its_last_word() {
    let mut play = Play::new(None);
    play.ask().accepted().event("90").bookmark("5", false).event("7").bookmark("12", true);
    play.event("15").pass(10 * SECOND).bookmark("20", false).pass(600 * SECOND).end(&End::Closed);
    play.ask().accepted().pass(2 * SECOND).end(&End::Closed).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 12
        610.0   closed
        610.0 WATCH 20 for 600s
        612.0   closed
        612.0 WATCH 20 for 600s
    "#]]);
}

/// A server whose etcd was restored takes a watch from its future, and is silent.
#[test]
fn a_watch_that_ended_before_its_time_goes_on_if_the_server_is_not_of_an_earlier_time() {
    let mut play = Play { probes: true, ..Play::new(None) };
    play.synced("12").pass(60 * SECOND).end(&End::Closed);
    play.ask().accepted().page("30", "").end(&End::Listed);
    play.ask().accepted().pass(600 * SECOND).end(&End::Closed).ask().accepted().pass(60 * SECOND);
    play.end(&broken()).ask().end(&broken()).ask().end(&refused(403)).ask().accepted();
    play.pass(60 * SECOND).end(&broken()).ask().end(&End::Refused(too_large())).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 12
        60.0   closed
        60.0 PROBE 12
        60.0   listed
        60.0 WATCH 12 for 600s
        660.0   closed
        660.0 WATCH 12 for 600s
        720.0   broken, as usual
        720.8 PROBE 12
        720.8   broken, failing
        722.4 PROBE 12
        722.4   403
        722.4 WATCH 12 for 600s
        782.4   broken, failing
        785.6 PROBE 12
        785.6   504, as usual
        786.4 WATCHLIST newest for 600s
    "#]]);
}

#[test]
fn a_server_that_knows_no_watch_list_lists_for_half_an_hour() {
    let mut play = Play::new(None);
    play.ask().end(&refused(400)).ask().accepted().page("3", "t1").end(&End::Listed);
    play.ask().page("4", "").end(&End::Listed).ask().accepted().pass(60 * SECOND);
    play.end(&refused(410)).ask().accepted().page("9", "").end(&End::Listed).ask();
    play.pass(1800 * SECOND).accepted().end(&refused(410)).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   400, no watch list
        0.0 LIST any limit 500
        0.0   listed
        0.0 LIST page t1 limit 500
        0.0   the listing is that of 3
        0.0   listed
        0.0 WATCH 3 for 600s
        60.0   410, as usual
        60.8 LIST not older than 3
        60.8   the listing is that of 9
        60.8   listed
        60.8 WATCH 9 for 600s
        1860.8   410, as usual
        1861.6 WATCHLIST 9 for 600s
    "#]]);
    let mut play = Play::new(None);
    play.ask().end(&refused(422)).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   422, no watch list
        0.0 LIST any limit 500
    "#]]);
}

#[test]
fn a_watch_list_that_does_not_come_to_its_end_is_given_up() {
    let mut play = Play::new(None);
    play.ask().accepted();
    let patience = |play: &Play| (play.reflector.patience() - play.began).as_secs();
    assert_eq!(patience(&play), 10);
    play.pass(9 * SECOND).event("1");
    assert_eq!(patience(&play), 19);
    for _ in 0..6 {
        play.pass(9 * SECOND).event("1");
    }
    assert_eq!(patience(&play), 60, "events that never come to an end");
    play.end(&End::Silent).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        63.0   silent, no watch list
        63.0 LIST any limit 500
    "#]]);
}

#[test]
fn a_watch_is_awaited_a_little_longer_than_it_was_asked_for_and_a_list_as_long_as_it_speaks() {
    let mut play = Play::new(None);
    play.synced("5");
    assert_eq!(play.reflector.patience() - play.began, 630 * SECOND);
    let mut play = Play::new(None);
    play.ask().end(&refused(400)).ask().accepted().pass(50 * SECOND);
    play.reflector.heard(play.now);
    assert_eq!(play.reflector.patience() - play.began, 110 * SECOND);
}

#[test]
fn a_restored_listing_is_asked_for_at_its_version() {
    let mut play = Play::new(Some("70"));
    play.ask().end(&refused(400)).ask().accepted().page("80", "").end(&End::Listed).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST 70 for 600s
        0.0   400, no watch list
        0.0 LIST not older than 70 limit 500
        0.0   the listing is that of 80
        0.0   listed
        0.0 WATCH 80 for 600s
    "#]]);
    let mut play = Play::new(Some("70"));
    play.reflector.forget();
    play.ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
    "#]]);
}

#[test]
fn a_version_that_is_gone_or_not_there_yet_is_not_asked_for_again() {
    for end in [refused(410), End::Refused(too_large()), End::Error(too_large()), error(410)] {
        let mut play = Play::new(Some("70"));
        play.ask().end(&end);
        assert_eq!(play.reflector.next_at(), play.now, "at once");
        play.ask().end(&end).ask();
        let told = play.told.replace("504", "410").replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST 70 for 600s
        0.0   410, as usual
        0.0 WATCHLIST newest for 600s
        0.0   410, failing
        0.8 WATCHLIST newest for 600s
        "#]]
        .assert_eq(&told);
    }
}

#[test]
fn a_list_that_is_stale_is_asked_for_again_at_once_as_the_newest() {
    let mut play = Play::new(Some("70"));
    play.ask().end(&refused(400)).ask().end(&refused(410)).ask().end(&refused(500)).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST 70 for 600s
        0.0   400, no watch list
        0.0 LIST not older than 70 limit 500
        0.0   410, as usual
        0.0 LIST newest limit 500
        0.0   500, failing
        0.8 LIST newest limit 500
    "#]]);
}

#[test]
fn a_page_whose_token_expired_leads_to_one_list_without_pages() {
    let mut play = Play::new(None);
    play.ask().end(&refused(400)).ask().accepted().page("3", "t1").end(&End::Listed);
    play.ask().end(&refused(410)).ask().accepted().page("8", "").end(&End::Listed).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   400, no watch list
        0.0 LIST any limit 500
        0.0   listed
        0.0 LIST page t1 limit 500
        0.0   410, as usual
        0.0 LIST any
        0.0   the listing is that of 8
        0.0   listed
        0.0 WATCH 8 for 600s
    "#]]);
}

#[test]
fn a_list_that_breaks_off_begins_with_its_first_page() {
    let mut play = Play::new(None);
    play.ask().end(&refused(400)).ask().accepted().page("3", "t1").end(&End::Listed);
    play.ask().end(&broken()).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   400, no watch list
        0.0 LIST any limit 500
        0.0   listed
        0.0 LIST page t1 limit 500
        0.0   broken, failing
        0.8 LIST any limit 500
    "#]]);
}

#[test]
fn what_fails_is_tried_again_later_and_later_but_never_after_more_than_half_a_minute() {
    let mut play = Play::new(None);
    for end in
        [broken(), refused(500), End::NoClient(String::new()), refused(403), broken(), broken(), broken()]
    {
        play.ask().end(&end);
    }
    play.ask().end(&broken()).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   broken, failing
        0.8 WATCHLIST newest for 600s
        0.8   500, failing
        2.4 WATCHLIST newest for 600s
        2.4   noclient(""), failing
        5.6 WATCHLIST newest for 600s
        5.6   403, failing
        12.0 WATCHLIST newest for 600s
        12.0   broken, failing
        24.8 WATCHLIST newest for 600s
        24.8   broken, failing
        50.4 WATCHLIST newest for 600s
        50.4   broken, failing
        80.4 WATCHLIST newest for 600s
        80.4   broken, failing
        110.4 WATCHLIST newest for 600s
    "#]]);
}

#[test]
fn a_delay_is_between_half_and_all_of_it_and_a_server_may_ask_for_more() {
    let delay = |end: &End, dice: f64| {
        let now = Instant::now();
        let mut reflector = Reflector::new(None, now);
        reflector.next(now, 0.0);
        reflector.ended(end, now, dice);
        reflector.next_at() - now
    };
    assert_eq!(delay(&broken(), 0.0), Duration::from_millis(400));
    assert_eq!(delay(&broken(), 1.0), Duration::from_millis(800));
    assert_eq!(delay(&refusal(503, "", &[("retry-after", "7")]), 1.0), 7 * SECOND);
    assert_eq!(delay(&refusal(429, "", &[("retry-after", "0")]), 1.0), Duration::from_millis(800));
    assert_eq!(delay(&refusal(429, "", &[("retry-after", "99999999")]), 1.0), 300 * SECOND, "not for ever");
    let asked = json!({"code": 429, "details": {"retryAfterSeconds": 9}}).to_string();
    assert_eq!(delay(&End::Error(Refusal::of_event(asked.as_bytes())), 1.0), 9 * SECOND);
    let mut reflector = Reflector::new(None, Instant::now());
    let Request::WatchList { timeout, .. } = reflector.next(Instant::now(), 0.0) else { panic!() };
    assert_eq!(timeout, 300 * SECOND, "watches of 5 to 10 minutes");
}

#[test]
fn two_minutes_without_a_failure_and_it_begins_anew() {
    let mut play = Play::new(None);
    play.ask().end(&broken()).ask().end(&broken()).synced("4").pass(119 * SECOND).end(&broken());
    play.ask().accepted().pass(120 * SECOND).end(&broken()).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   broken, failing
        0.8 WATCHLIST newest for 600s
        0.8   broken, failing
        2.4 WATCHLIST newest for 600s
        2.4   the listing is that of 4
        121.4   broken, as usual
        122.2 WATCH 4 for 600s
        242.2   broken, as usual
        243.0 WATCH 4 for 600s
    "#]]);
}

#[test]
fn a_watch_whose_version_is_gone_leads_to_a_relist_and_to_patience_if_that_repeats() {
    for end in [refused(410), error(410)] {
        let mut play = Play::new(None);
        play.synced("5").end(&broken()).ask().end(&end);
        play.ask().accepted().bookmark("9", true).pass(SECOND).end(&end);
        play.ask().accepted().bookmark("11", true).event("12").end(&end).ask();
        let told = play.told.replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 5
        0.0   broken, failing
        0.8 WATCH 5 for 600s
        0.8   410, as usual
        1.6 WATCHLIST 5 for 600s
        1.6   the listing is that of 9
        2.6   410, failing
        4.2 WATCHLIST 9 for 600s
        4.2   the listing is that of 11
        4.2   410, failing
        7.4 WATCHLIST 12 for 600s
        "#]]
        .assert_eq(&told);
    }
}

#[test]
fn a_watch_from_a_version_that_is_not_there_yet_leads_to_the_newest_listing() {
    for end in [End::Refused(too_large()), End::Error(too_large())] {
        let mut play = Play::new(None);
        play.synced("900").pass(60 * SECOND).end(&End::Closed).ask().end(&end);
        play.ask().accepted().bookmark("30", true).pass(60 * SECOND).end(&End::Closed).ask();
        let told = play.told.replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 900
        60.0   closed
        60.0 WATCH 900 for 600s
        60.0   504, as usual
        60.8 WATCHLIST newest for 600s
        60.8   the listing is that of 30
        120.8   closed
        120.8 WATCH 30 for 600s
        "#]]
        .assert_eq(&told);
    }
}

#[test]
fn an_error_of_the_server_ends_the_watch_and_the_second_in_a_row_leads_to_a_relist() {
    for end in [error(500), refused(500), End::Garbage(String::new())] {
        let mut play = Play::new(None);
        play.synced("5").event("6").pass(SECOND).end(&end).ask().accepted().event("7").end(&end);
        play.ask().accepted().end(&end).ask();
        let told = play.told.replace("garbage", "500").replace("error ", "");
        expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 5
        1.0   500, as usual
        1.8 WATCH 6 for 600s
        1.8   500, failing
        3.4 WATCH 7 for 600s
        3.4   500, failing
        6.6 WATCHLIST 7 for 600s
        "#]]
        .assert_eq(&told);
    }
}

#[test]
fn what_is_about_the_moment_never_leads_to_a_relist() {
    for end in [refused(401), refused(403), refused(429), refused(503), broken(), End::Silent] {
        let mut play = Play::new(None);
        play.synced("5").pass(60 * SECOND).end(&End::Closed);
        for _ in 0..5 {
            play.ask().end(&end);
        }
        play.ask();
        assert!(play.told.ends_with("WATCH 5 for 600s\n"), "{}", play.told);
        assert_eq!(play.told.matches("WATCHLIST").count(), 1, "{}", play.told);
        assert_eq!(play.told.matches(", failing").count(), 5, "{}", play.told);
    }
}

#[test]
fn a_watch_that_ends_at_once_is_a_failure_and_no_more_than_one_is_begun_in_a_second() {
    let mut play = Play::new(None);
    play.synced("5").pass(60 * SECOND).end(&End::Closed);
    play.ask().accepted().end(&End::Closed).ask().accepted().end(&End::Closed);
    play.ask().accepted().event("6").end(&End::Closed).ask().accepted().event("7").end(&End::Closed).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 5
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
fn a_watch_list_that_is_closed_before_its_end_is_a_failure_and_tried_again() {
    let mut play = Play::new(None);
    play.ask().accepted().event("5").pass(5 * SECOND).end(&End::Closed).ask().end(&error(500)).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        5.0   closed, failing
        5.8 WATCHLIST newest for 600s
        5.8   error 500, failing
        7.4 WATCHLIST newest for 600s
    "#]]);
}

#[test]
fn whoever_asks_gets_a_fresh_listing_at_once_in_any_state() {
    let mut play = Play::new(None);
    play.ask().end(&broken()).end(&End::Asked).ask().accepted().bookmark("5", true).end(&End::Asked).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   broken, failing
        0.0   asked
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 5
        0.0   asked
        0.0 WATCHLIST 5 for 600s
    "#]]);
}

#[test]
fn a_smaller_version_is_taken_as_it_comes() {
    let mut play = Play::new(None);
    play.synced("900").event("30").pass(60 * SECOND).end(&End::Closed).ask();
    play.told(expect![[r#"
        0.0 WATCHLIST newest for 600s
        0.0   the listing is that of 900
        60.0   closed
        60.0 WATCH 30 for 600s
    "#]]);
}

#[test]
fn a_relist_without_a_known_version_asks_for_the_newest() {
    // Any version would do for the first list only: a server that lags might resurrect a pod.
    let mut play = Play::new(None);
    play.ask().end(&refused(400)).ask().accepted().page("3", "").end(&End::Listed);
    play.reflector.forget();
    play.ask();
    assert!(play.told.ends_with("LIST newest\n"), "{}", play.told);
}

#[test]
fn a_refusal_says_what_may_be_done_and_not_more_than_fits() {
    let shown = |code: u16, body: &str| {
        Refusal::of_answer(StatusCode::from_u16(code).unwrap(), &HeaderMap::new(), body.as_bytes())
            .to_string()
    };
    assert_eq!(
        shown(403, r#"{"message": "pods is forbidden"}"#),
        "403 Forbidden: pods is forbidden; grant this user list and watch on pods (a node's own credentials have both, if --node-name is that node's)"
    );
    let quoted = r#"{"message": "User \"nobody\" cannot list \\ \"pods\""}"#;
    assert_eq!(shown(500, quoted), r#"500 Internal Server Error: User "nobody" cannot list \ "pods""#);
    assert_eq!(
        shown(401, r#"{"reason": "Unauthorized"}"#),
        "401 Unauthorized: Unauthorized; the credentials of the kubeconfig are not, or no longer, valid"
    );
    assert_eq!(shown(500, "<h1>no</h1>\n\u{1b}[2J"), "500 Internal Server Error: <h1>no</h1>\\n\\u{1b}[2J");
    assert!(shown(500, &"x".repeat(10_000)).len() < 600);
    assert_eq!(
        shown(400, "Client sent an HTTP request to an HTTPS server."),
        "400 Bad Request: Client sent an HTTP request to an HTTPS server.; it speaks TLS: begin the kubeconfig's server with https://"
    );
    assert_eq!(shown(404, ""), "404 Not Found; is this the API server's URL?");
}
