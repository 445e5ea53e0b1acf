//! `podmux get sources`: how each source is doing, and what is wrong with what it brings.

use anyhow::anyhow;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Args, Form, Printer};
use crate::{
    age::{age, duration},
    cli::{
        Failure,
        connection::Connection,
        status::Status,
        table::{Cell, Row, Table},
        terminal::{RED, YELLOW},
    },
    clock,
};

const PATH: &str = "/sources";

pub(super) async fn get(
    args: &Args,
    names: &[String],
    connection: &Connection,
    colour: bool,
) -> Result<u8, Failure> {
    let list = match connection.get(PATH).await? {
        Ok(list) => list,
        Err(status) => {
            connection.refused(&status, None);
            return Ok(1);
        }
    };
    let Value::Object(mut list) = list else { return Err(no_list()) };
    let Some(Value::Array(mut sources)) = list.remove("items") else { return Err(no_list()) };
    let mut code = 0;
    for wanted in names {
        if !sources.iter().any(|source| name(source) == wanted) && !args.ignore_not_found {
            let message = format!("sources \"{wanted}\" not found");
            let reason = "NotFound".to_owned();
            connection.refused(&Status { code: 404, reason, message, causes: Vec::new() }, None);
            code = 1;
        }
    }
    if !names.is_empty() {
        sources.retain(|source| names.iter().any(|wanted| wanted == name(source)));
    }
    let mut columns = vec!["NAME", "STATE", "PODS", "PROBLEMS", "LAST-SUCCESS", "TARGET"];
    if args.output == Form::Wide {
        columns.extend(["PHASE", "RESOURCE-VERSION", "LAST-EVENT", "NEXT-ATTEMPT", "DETAIL"]);
    }
    let mut printer = Printer::new(args, &columns, colour);
    match args.output {
        Form::Table | Form::Wide => table(args, &sources, &mut printer, colour)?,
        Form::Name => {
            sources.iter().try_for_each(|source| printer.text(&format!("source/{}\n", name(source))))?;
        }
        Form::Jsonl => sources.iter().try_for_each(|source| printer.object(source))?,
        Form::Json | Form::Yaml => match (names, &*sources) {
            ([_], [source]) => printer.object(source)?,
            ([_], []) => {}
            _ => {
                list.insert("items".to_owned(), sources.into());
                printer.object(&list.into())?;
            }
        },
    }
    Ok(code)
}

/// The sources, and below them a table of what is wrong, if anything is.
fn table(args: &Args, sources: &[Value], printer: &mut Printer, colour: bool) -> Result<(), Failure> {
    let now = clock::now();
    let rows: Vec<Row> = sources.iter().map(|source| row(source, args.output, now)).collect();
    printer.rows(&rows)?;
    let wide = args.output == Form::Wide;
    let problems: Vec<Row> = sources.iter().flat_map(|source| troubles(source, wide, now)).collect();
    let columns = ["SOURCE", "POD", "REASON", "WINNER", "ORIGIN", "MESSAGE"];
    let mut table = Table::new(&columns, !args.no_headers, colour);
    let text = table.rows(&problems);
    if !text.is_empty() {
        printer.text(&format!("\n{text}"))?;
    }
    Ok(())
}

fn row(source: &Value, form: Form, now: Timestamp) -> Row {
    let text = |field: &str| source[field].as_str().unwrap_or_default();
    let problems = problems(source).len() as u64 + more(source);
    let count = Cell::new(&problems.to_string()).styled(if problems > 0 { YELLOW } else { "" });
    let last = Cell::new(&since(&source["lastSuccess"], now));
    let pods = Cell::new(&source["pods"].as_u64().unwrap_or_default().to_string());
    let mut row =
        vec![Cell::new(text("name")), state(source, now), pods, count, last, Cell::new(text("target"))];
    if form == Form::Wide {
        row.extend(reflector(&source["reflector"], now));
        row.push(Cell::new(text("detail")));
    }
    row
}

/// How a source is doing: the server's word for it, how old what it shows is
/// while that is an earlier run's, and whether it fails besides.
fn state(source: &Value, now: Timestamp) -> Cell {
    let state = source["state"].as_str().unwrap_or_default();
    let failing = source["failing"].is_object();
    let old = time(&source["restored"]).map(|since| format!("{} old", age(Some(since), now)));
    let fails = (failing && state != "failing").then(|| "failing".to_owned());
    let parts: Vec<String> = [Some(state.to_owned()), old, fails].into_iter().flatten().collect();
    Cell::new(&parts.join(", ")).styled(match state {
        "failing" => RED,
        _ if failing => RED,
        "waiting" | "restored" => YELLOW,
        _ => "",
    })
}

/// What a source's reflector does: its phase, where it is, when the server last
/// said anything, and when it tries again, while it waits.
fn reflector(reflector: &Value, now: Timestamp) -> [Cell; 4] {
    let text = |field: &str| Cell::new(reflector[field].as_str().unwrap_or_default());
    let next = time(&reflector["nextAttempt"]).map(|next| next.duration_since(now));
    // A time that has just passed is now.
    let next = next.map(|next| format!("in {}", duration(next.max(SignedDuration::ZERO))));
    [
        text("phase"),
        text("resourceVersion"),
        Cell::new(&since(&reflector["lastEvent"], now)),
        Cell::new(&next.unwrap_or_default()),
    ]
}

/// How long ago a time was; nothing if there is none.
fn since(text: &Value, now: Timestamp) -> String {
    time(text).map(|time| age(Some(time), now)).unwrap_or_default()
}

fn time(text: &Value) -> Option<Timestamp> {
    text.as_str()?.parse().ok()
}

/// What is wrong with a source itself, then with single manifests and pods.
fn troubles(source: &Value, wide: bool, now: Timestamp) -> Vec<Row> {
    let mut rows = Vec::new();
    let failing = &source["failing"];
    if failing.is_object() {
        let since = time(&failing["since"]);
        let error = failing["error"].as_str().unwrap_or_default();
        let attempts = failing["attempts"].as_u64().unwrap_or_default();
        let message = format!("{error} (for {}, {attempts} attempts)", age(since, now));
        rows.push(vec![
            Cell::new(name(source)),
            Cell::new(""),
            Cell::new("Failing").styled(RED),
            Cell::new(""),
            Cell::new(source["target"].as_str().unwrap_or_default()),
            Cell::new(&message),
        ]);
    }
    for problem in problems(source) {
        let text = |field: &str| problem[field].as_str().unwrap_or_default();
        let details = problem["details"].as_array().map(Vec::as_slice).unwrap_or_default();
        let messages = match details {
            [_, _, ..] if wide => details.iter().map(detail).collect(),
            _ => vec![text("message").to_owned()],
        };
        rows.extend(messages.iter().map(|message| {
            let reason = Cell::new(text("reason")).styled(YELLOW);
            let winner = Cell::new(&winner(&problem["winner"], text("pod")));
            vec![
                name(source).into(),
                text("pod").into(),
                reason,
                winner,
                text("origin").into(),
                message.into(),
            ]
        }));
    }
    if more(source) > 0 {
        let message = format!("and {} more that are not told", more(source));
        rows.push(vec![name(source).into(), "".into(), "".into(), "".into(), "".into(), message.into()]);
    }
    rows
}

/// Who has what the pod wanted: the source, the pod unless it is the same name,
/// and where it stands.
fn winner(winner: &Value, loser: &str) -> String {
    let text = |field: &str| winner[field].as_str().unwrap_or_default();
    let pod = if text("pod") == loser { "" } else { text("pod") };
    // A pod that was posted or bound stands under its own name.
    let is_own = text("origin").is_empty() || text("origin") == text("pod");
    let origin = if is_own { String::new() } else { format!("({})", text("origin")) };
    [text("source"), pod, &origin].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// One thing that is wrong with a manifest, as `podmux validate` would say it.
fn detail(detail: &Value) -> String {
    let place = detail["line"].as_u64().zip(detail["column"].as_u64());
    let place = place.map(|(line, column)| format!("{line}:{column}"));
    let text = |field: &str| detail[field].as_str().map(str::to_owned);
    let severity = text("severity").filter(|severity| severity == "warning");
    let parts = [place, severity, text("field"), text("detail")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// How many problems there are that the server does not tell of.
fn more(source: &Value) -> u64 {
    source["moreProblems"].as_u64().unwrap_or_default()
}

fn problems(source: &Value) -> &[Value] {
    source["problems"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name(source: &Value) -> &str {
    source["name"].as_str().unwrap_or_default()
}

fn no_list() -> Failure {
    Failure::Failed(anyhow!("what {PATH} answered is no list of sources; is this a podmux agent?"))
}
