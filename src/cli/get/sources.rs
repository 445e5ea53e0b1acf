//! `podmux get sources`: how each source is doing, and what is wrong with what it brings.

use anyhow::anyhow;
use jiff::Timestamp;
use serde_json::Value;

use super::{Args, Form, Printer};
use crate::{
    cli::{
        Failure,
        age::age,
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
        columns.push("DETAIL");
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
    let problems: Vec<Row> = sources.iter().flat_map(|source| troubles(source, now)).collect();
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
    let state = Cell::new(text("state")).styled(match text("state") {
        "failing" => RED,
        "waiting" | "restored" => YELLOW,
        _ => "",
    });
    let problems = problems(source).len();
    let count = Cell::new(&problems.to_string()).styled(if problems > 0 { YELLOW } else { "" });
    let last = text("lastSuccess").parse().ok();
    let last = Cell::new(&last.map(|last| age(Some(last), now)).unwrap_or_default());
    let pods = Cell::new(&source["pods"].as_u64().unwrap_or_default().to_string());
    let mut row = vec![Cell::new(text("name")), state, pods, count, last, Cell::new(text("target"))];
    if form == Form::Wide {
        row.push(Cell::new(text("detail")));
    }
    row
}

/// What is wrong with a source itself, then with single manifests and pods.
fn troubles(source: &Value, now: Timestamp) -> Vec<Row> {
    let mut rows = Vec::new();
    let failing = &source["failing"];
    if failing.is_object() {
        let since = failing["since"].as_str().and_then(|since| since.parse().ok());
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
    rows.extend(problems(source).iter().map(|problem| {
        let cell = |field: &str| Cell::new(problem[field].as_str().unwrap_or_default());
        let reason = cell("reason").styled(YELLOW);
        vec![Cell::new(name(source)), cell("pod"), reason, cell("winner"), cell("origin"), cell("message")]
    }));
    rows
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
