//! `podmux get updates`: prints the update stream.

use anyhow::anyhow;
use serde_json::Value;

use super::{
    args::{Args, OutputFormat},
    printer::Printer,
};
use crate::cli::{
    connection::{Connection, with_query},
    failure::Failure,
    output::{items, text, time},
    status::Status,
    table::Cell,
};

/// How many pods a row names; `-o wide` names all.
const MAX_NAMES: usize = 3;

pub(super) async fn get(args: &Args, connection: &Connection, colour: bool) -> Result<u8, Failure> {
    let columns = ["SEQ", "TIME", "OP", "SOURCE", "PODS"];
    let mut printer = Printer::new(args, &columns, &["1000", "", "RECONCILE", "file", ""], colour);
    let from = args.from.map(|from| from.to_string());
    let query: Vec<(&str, &str)> = from.iter().map(|from| ("from", from.as_str())).collect();
    let mut stream = connection.lines(&with_query("/updates", &query)).await?;
    while let Some(line) = stream.next().await.transpose().map_err(Failure::failed)? {
        // An update begins with its number; a Status does not.
        if args.output == OutputFormat::Jsonl && line.starts_with(br#"{"seq":"#) {
            printer.line(&line)?;
        } else {
            let update = parse(&line)?;
            if args.output.is_table() {
                printer.rows(&[row(&update, args.output)])?;
            } else {
                printer.object(&update)?;
            }
        }
        if printer.is_closed() {
            break;
        }
    }
    Ok(0)
}

/// Parses a line of the stream. A Status is the error with which the server ends it.
pub(super) fn parse(line: &[u8]) -> Result<Value, Failure> {
    let update: Value = serde_json::from_slice(line).map_err(|_| {
        Failure::Failed(anyhow!("the update stream has a line that is not JSON: it was cut off (try again)"))
    })?;
    if update["kind"] == "Status" {
        return Err(Failure::Server(Status::of(&update, 500)));
    }
    Ok(update)
}

fn row(update: &Value, format: OutputFormat) -> Vec<Cell> {
    let time = time(&update["time"]).map(|time| format!("{time:.0}"));
    let pods = items(&update["pods"]);
    let named = if format == OutputFormat::Wide { pods.len() } else { MAX_NAMES };
    let mut keys: Vec<String> = pods.iter().take(named).map(key).collect();
    if pods.len() > named {
        keys.push(format!("and {} more", pods.len() - named));
    }
    vec![
        Cell::new(&update["seq"].to_string()),
        Cell::new(time.as_deref().unwrap_or_else(|| text(&update["time"]))),
        Cell::new(text(&update["op"])),
        Cell::new(text(&update["source"])),
        Cell::new(&keys.join(",")),
    ]
}

/// The key of a pod: `NAMESPACE/NAME`.
pub(super) fn key(pod: &Value) -> String {
    format!("{}/{}", text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]))
}
