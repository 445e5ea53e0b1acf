//! `podmux get updates`: prints the update stream.

use std::pin::pin;

use serde_json::Value;

use super::{
    args::{Args, OutputFormat},
    printer::Printer,
    stream::{Link, UpdateStream, parse},
};
use crate::{
    cli::{
        connection::Connection,
        failure::Failure,
        output::{closed, first_of, items, text, time},
        status::Status,
        table::Cell,
        terminal::print_error,
    },
    host::Random,
};

/// How many pods a row names; `-o wide` names all.
const MAX_NAMES: usize = 3;

pub(super) async fn get(
    args: &Args,
    connection: &Connection,
    random: &Random,
    colour: bool,
) -> Result<u8, Failure> {
    let columns = ["SEQ", "TIME", "OP", "SOURCE", "PODS"];
    let mut printer =
        Printer::new(args, &columns, &["1793000000000000", "", "RECONCILE", "file", ""], colour);
    let stream = UpdateStream::open(connection, random, args.from.clone(), &print_link).await;
    let mut stream = stream.map_err(not_held)?;
    let mut closed = pin!(closed());
    while !printer.is_closed() {
        let line = tokio::select! {
            biased;
            () = &mut closed => break,
            line = stream.next() => line?,
        };
        let is_line = args.output == OutputFormat::Jsonl && line.starts_with(br#"{"seq":"#);
        if is_line && args.source.is_empty() {
            printer.line(&line)?;
        } else {
            let update = parse(&line)?;
            if !args.source.is_empty() && !args.source.iter().any(|of| update["source"] == of.as_str()) {
                continue;
            }
            if is_line {
                printer.line(&line)?;
            } else if args.output.is_table() {
                printer.rows(&[row(&update, &args.output)])?;
            } else {
                printer.object(&update)?;
            }
        }
    }
    Ok(0)
}

fn print_link(link: Link<'_>) {
    match link {
        Link::Lost(failure) => print_error(format_args!("connection lost: {failure}; reconnecting")),
        Link::Continues => print_error("reconnected: the stream continues"),
        Link::StartsAgain => print_error("reconnected: the stream starts again, with all pods"),
    }
}

/// What to do about a number of `--from` that is not held.
fn not_held(failure: Failure) -> Failure {
    match failure {
        Failure::Server(status) if status.code == 410 => {
            let message =
                "this run of the agent does not hold that update: leave out --from to begin with all pods";
            Failure::Server(Status { message: message.to_owned(), ..status })
        }
        failure => failure,
    }
}

fn row(update: &Value, format: &OutputFormat) -> Vec<Cell> {
    let time = time(&update["time"]).map(|time| format!("{time:.0}"));
    let pods = items(&update["pods"]);
    let named = if *format == OutputFormat::Wide { pods.len() } else { MAX_NAMES };
    let keys = first_of(pods.iter().map(key), named);
    vec![
        Cell::new(&update["seq"].to_string()),
        Cell::new(time.as_deref().unwrap_or_else(|| text(&update["time"]))),
        Cell::new(text(&update["op"])),
        Cell::new(text(&update["source"])),
        Cell::new(&keys.join(",")),
    ]
}

/// The key of a pod: `NAMESPACE/NAME`.
fn key(pod: &Value) -> String {
    format!("{}/{}", text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]))
}
