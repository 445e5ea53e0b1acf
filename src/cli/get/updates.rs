//! `podmux get updates`: the update stream, as it goes on.

use anyhow::anyhow;
use jiff::Timestamp;
use serde_json::Value;

use super::{Args, Form, Printer};
use crate::cli::{
    Failure,
    connection::{Connection, with_query},
    status::Status,
    table::Cell,
};

/// How many pods are named in a row; `-o wide` names all.
const NAMED: usize = 3;

pub(super) async fn get(args: &Args, connection: &Connection, colour: bool) -> Result<u8, Failure> {
    let printer = Printer::new(args, &["SEQ", "TIME", "OP", "SOURCE", "PODS"], colour);
    let mut printer = printer.with_room_for(&["1000", "", "RECONCILE", "file", ""]);
    let from = args.from.map(|from| from.to_string());
    let query: Vec<(&str, &str)> = from.iter().map(|from| ("from", from.as_str())).collect();
    let mut stream = match connection.lines(&with_query("/updates", &query)).await? {
        Ok(stream) => stream,
        Err(status) => {
            connection.refused(&status, None);
            return Ok(1);
        }
    };
    while let Some(line) = stream.next().await? {
        // An update begins with its number, and only a Status does not.
        let is_update = line.starts_with(br#"{"seq":"#);
        if is_update && args.output == Form::Jsonl {
            printer.bytes(&line)?;
        } else {
            let update: Value = serde_json::from_slice(&line)
                .map_err(|_| Failure::Failed(anyhow!("a line of the updates is no JSON: it was cut off")))?;
            if update["kind"] == "Status" {
                connection.refused(&Status::of(&update, 500), None);
                return Ok(1);
            }
            match args.output {
                Form::Table | Form::Wide => printer.rows(&[row(&update, args.output)])?,
                _ => printer.object(&update)?,
            }
        }
        if printer.is_closed() {
            break;
        }
    }
    Ok(0)
}

fn row(update: &Value, form: Form) -> Vec<Cell> {
    let text = |field: &str| update[field].as_str().unwrap_or_default();
    let time = text("time").parse().map(|time: Timestamp| format!("{time:.0}"));
    let pods = update["pods"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = if form == Form::Wide { pods.len() } else { NAMED };
    let mut keys: Vec<String> = pods.iter().take(named).map(key).collect();
    if pods.len() > named {
        keys.push(format!("and {} more", pods.len() - named));
    }
    vec![
        Cell::new(&update["seq"].to_string()),
        Cell::new(&time.unwrap_or_else(|_| text("time").to_owned())),
        Cell::new(text("op")),
        Cell::new(text("source")),
        Cell::new(&keys.join(",")),
    ]
}

fn key(pod: &Value) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}
