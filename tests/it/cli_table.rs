//! Tables, ages and errors have kubectl's format.

use expect_test::{Expect, expect};
use jiff::SignedDuration;
use podmux::{
    age::duration,
    cli::{
        status::Status,
        table::{Cell, Row, Table},
    },
};
use serde_json::json;

fn row(cells: &[&str]) -> Row {
    cells.iter().map(Cell::from).collect()
}

#[test]
fn columns_are_as_wide_as_their_longest_cell_and_three_spaces() {
    let mut table = Table::new(&["NAME", "ID", "AGE"], true, false);
    expect![[r#"
        NAME           ID    AGE
        web            a     5m
        a-long-name1   b     10s
        <none>         \n    1d
    "#]]
    .assert_eq(&table.rows(&[
        row(&["web", "a", "5m"]),
        row(&["a-long-name1", "b", "10s"]),
        row(&["", "\n", "1d"]),
    ]));
}

#[test]
fn later_rows_keep_the_columns_or_widen_them() {
    let mut table = Table::new(&["NAME", "AGE"], true, false);
    let first = table.rows(&[row(&["a-name", "1s"])]);
    let second = table.rows(&[row(&["b", "2s"])]);
    let third = table.rows(&[row(&["a-longer-name", "3s"])]);
    let fourth = table.rows(&[row(&["c", "4s"])]);
    expect![[r#"
        NAME     AGE
        a-name   1s
        b        2s
        a-longer-name   3s
        c               4s
    "#]]
    .assert_eq(&(first + &second + &third + &fourth));
}

#[test]
fn no_rows_give_no_text_and_headers_are_optional() {
    let mut table = Table::new(&["NAME"], true, false);
    assert_eq!(table.rows(&[]), "");
    assert_eq!(table.rows(&[row(&["a"])]), "NAME\na\n");
    assert_eq!(Table::new(&["NAME"], false, false).rows(&[row(&["a"])]), "a\n");
}

#[test]
fn colours_do_not_move_columns() {
    let cells = || vec![Cell::new("failing").styled("31"), Cell::new("x")];
    let mut table = Table::new(&["STATE", "X"], false, true);
    assert_eq!(table.rows(&[cells()]), "\x1b[31mfailing\x1b[0m   x\n");
    let mut table = Table::new(&["STATE", "X"], false, false);
    assert_eq!(table.rows(&[cells()]), "failing   x\n");
}

#[test]
fn durations_have_kubectls_format() {
    // TestHumanDuration and its boundaries (apimachinery `pkg/util/duration`).
    let (minute, hour, day, year) = (60, 3600, 86_400, 365 * 86_400);
    let cases = [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (70, "70s"),
        (2 * minute - 1, "119s"),
        (2 * minute, "2m"),
        (2 * minute + 1, "2m1s"),
        (10 * minute - 1, "9m59s"),
        (10 * minute, "10m"),
        (3 * hour - 1, "179m"),
        (3 * hour, "3h"),
        (3 * hour + minute, "3h1m"),
        (8 * hour - 1, "7h59m"),
        (8 * hour, "8h"),
        (2 * day - 1, "47h"),
        (2 * day, "2d"),
        (2 * day + hour, "2d1h"),
        (8 * day - 1, "7d23h"),
        (8 * day, "8d"),
        (2 * year - 1, "729d"),
        (2 * year, "2y"),
        (2 * year + day, "2y1d"),
        (8 * year - 1, "7y364d"),
        (8 * year, "8y"),
    ];
    for (seconds, expected) in cases {
        assert_eq!(duration(SignedDuration::from_secs(seconds)), expected, "{seconds}");
    }
}

#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check(code: u16, body: &str, context: Option<&str>, expected: Expect) {
    expected.assert_eq(&Status::read(code, body.as_bytes()).to_lines(context));
}

#[test]
fn an_error_is_one_line_and_one_per_cause() {
    let not_found =
        json!({"kind": "Status", "reason": "NotFound", "message": "pods \"x\" not found", "code": 404});
    check(
        404,
        &not_found.to_string(),
        None,
        expect![[r#"Error from server (NotFound): pods "x" not found"#]],
    );
    let cause = |field: &str, message: &str| json!({"reason": "FieldValueRequired", "field": field, "message": message});
    let invalid = json!({
        "kind": "Status", "reason": "Invalid", "code": 422,
        "message": "Pod \"x\" is invalid: [spec.containers: Required value, metadata.name: Invalid value: \"x\"]",
        "details": {"causes": [cause("spec.containers", "Required value"), cause("metadata.name", "Invalid value: \"x\"")]},
    });
    check(
        422,
        &invalid.to_string(),
        Some("error when applying \"x.yaml\""),
        expect![[r#"
            Error from server (Invalid): error when applying "x.yaml": Pod "x" is invalid
            * spec.containers: Required value
            * metadata.name: Invalid value: "x""#]],
    );
}

#[test]
fn a_response_without_a_status_shows_its_first_line() {
    check(
        502,
        "\n<h1>Bad\x1b[31m Gateway</h1>\n<p>more",
        None,
        expect![[r"Error from server: 502 Bad Gateway: <h1>Bad\u{1b}[31m Gateway</h1>"]],
    );
    check(503, "", None, expect!["Error from server: 503 Service Unavailable"]);
    check(599, "[1]", None, expect!["Error from server: 599: [1]"]);
}
