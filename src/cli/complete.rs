//! `podmux __complete`: the names of a running agent that may stand at the end of a command line. The
//! completions of the shells ask it.

use std::{ffi::OsString, time::Duration};

use anyhow::anyhow;
use clap::{Args as _, FromArgMatches as _};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    connection::{Connection, ConnectionArgs, JSON, TABLE, block_on},
    failure::Failure,
    output::{Output, items, text},
};
use crate::{client::escaped, settings::Environment};

/// The word after `podmux`. It is in no help.
pub(super) const WORD: &str = "__complete";
/// How long the agent may take. What it has answered by then is offered.
const LIMIT: Duration = Duration::from_secs(1);

/// What may stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Namespaces,
    Pods,
    Sinks,
    Sources,
}

impl Kind {
    /// The kind of a resource.
    fn of_resource(word: &str) -> Option<Self> {
        match word {
            "pod" | "pods" | "po" => Some(Self::Pods),
            "sink" | "sinks" => Some(Self::Sinks),
            "source" | "sources" => Some(Self::Sources),
            _ => None,
        }
    }

    /// The kind of an option's value.
    fn of_option(long: &str) -> Option<Self> {
        match long {
            "namespace" => Some(Self::Namespaces),
            "source" => Some(Self::Sources),
            _ => None,
        }
    }
}

/// A command line whose last word is being completed.
struct Line {
    kind: Kind,
    /// What is before a name in the last word: `pod/`.
    lead: String,
    /// The beginning of the name.
    typed: String,
    namespace: String,
    /// The options of the connection.
    connection: Vec<String>,
}

/// Prints the names, one a line: none if there is no agent, or another error.
pub(super) fn run(
    words: &[OsString],
    environment: &Environment,
    command: &clap::Command,
) -> Result<u8, Failure> {
    let words = whole(words);
    let Some(line) = Line::read(&words, command) else { return Ok(0) };
    let Some(connection) = connection(&line, environment) else { return Ok(0) };
    let mut names = Vec::new();
    block_on(async {
        // What has arrived is offered, whatever ended it.
        let _ = timeout(LIMIT, list(&connection, &line, &mut names)).await;
        Ok(0)
    })?;
    let is_word = |name: &&String| !name.is_empty() && name.chars().all(|char| char.is_ascii_graphic());
    let names = names.iter().filter(is_word).filter(|name| name.starts_with(&line.typed));
    let lines: Vec<String> = names.map(|name| format!("{}{name}\n", line.lead)).collect();
    Output::new().print(&lines.concat())?;
    Ok(0)
}

/// The words of the line. bash gives `--server=unix:/x` in five pieces.
fn whole(words: &[OsString]) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in words {
        let word = word.to_string_lossy();
        let is_break = word == "=" || word == ":";
        match whole.last_mut() {
            Some(last) if is_break || is_open => *last += &word,
            _ => whole.push(word.into_owned()),
        }
        is_open = is_break;
    }
    whole
}

impl Line {
    fn read(words: &[String], command: &clap::Command) -> Option<Self> {
        let (typed, before) = words.split_last()?;
        let (name, before) = before.split_first()?;
        let subcommand = command.find_subcommand(name)?;
        let mut options: Vec<(&str, &str)> = Vec::new();
        let (mut waiting, mut others) = (None, Vec::new());
        for word in before {
            if let Some(option) = waiting.take() {
                options.push((option, word));
            } else if let Some((option, value, takes_value)) = option(subcommand, word) {
                match value {
                    Some(value) => options.push((option, value)),
                    None if takes_value => waiting = Some(option),
                    None => {}
                }
            } else {
                others.push(&**word);
            }
        }
        let (kind, lead, typed) = match (waiting, option(subcommand, typed)) {
            (Some(option), _) => (Kind::of_option(option)?, "", &**typed),
            (None, Some((option, Some(value), _))) => (Kind::of_option(option)?, "", value),
            (None, Some(_)) => return None,
            (None, None) => object(name, &others, typed)?,
        };
        let of =
            |name: &str| options.iter().rev().find(|(option, _)| *option == name).map(|(_, value)| *value);
        let connection = ["server", "token-file", "ca-file", "client-cert", "client-key"];
        let connection = connection.iter().filter_map(|name| Some(format!("--{name}={}", of(name)?)));
        Some(Self {
            kind,
            lead: lead.to_owned(),
            typed: typed.to_owned(),
            namespace: of("namespace").unwrap_or("default").to_owned(),
            connection: connection.collect(),
        })
    }
}

/// The long name of a word's option, its value if the word has one, and whether it takes one.
fn option<'w>(subcommand: &'w clap::Command, word: &'w str) -> Option<(&'w str, Option<&'w str>, bool)> {
    let dashed = word.strip_prefix('-').filter(|rest| !rest.is_empty())?;
    let (long, short, value) = if let Some(long) = dashed.strip_prefix('-') {
        let (long, value) = long.split_once('=').map_or((long, None), |(long, value)| (long, Some(value)));
        (Some(long), None, value)
    } else {
        // `-nNS` or `-n=NS`
        let mut rest = dashed.chars();
        let short = rest.next();
        let value = Some(rest.as_str()).filter(|rest| !rest.is_empty());
        (None, short, value.map(|value| value.strip_prefix('=').unwrap_or(value)))
    };
    let is_it = |arg: &&clap::Arg| match long {
        Some(_) => arg.get_long() == long,
        None => arg.get_short() == short,
    };
    // One that is not known takes no value.
    let Some(arg) = subcommand.get_arguments().find(is_it) else { return Some(("", None, false)) };
    let takes_value = arg.get_action().takes_values() && !arg.is_require_equals_set();
    Some((arg.get_long().unwrap_or_default(), value, takes_value))
}

/// What an object's place in a command takes: the kind, and the parts of the last word.
fn object<'w>(command: &str, others: &[&str], typed: &'w str) -> Option<(Kind, &'w str, &'w str)> {
    let (lead, name) = typed.split_at(typed.find('/').map_or(0, |slash| slash + 1));
    let kind = |word: &str| Kind::of_resource(word.split('/').next().unwrap_or_default());
    match command {
        "logs" if others.is_empty() => Some((Kind::Pods, lead, name)),
        "delete" | "describe" | "get" => match others.first() {
            // The name of a sink may have a slash.
            Some(first) if !first.contains('/') => Some((kind(first)?, "", typed)),
            Some(first) if !lead.is_empty() => Some((kind(first)?, lead, name)),
            None if !lead.is_empty() => Some((kind(lead)?, lead, name)),
            _ => None,
        },
        _ => None,
    }
}

fn connection(line: &Line, environment: &Environment) -> Option<Connection> {
    let parser = ConnectionArgs::augment_args(clap::Command::new("podmux").no_binary_name(true));
    let matches = parser.try_get_matches_from(&line.connection).ok()?;
    let args = ConnectionArgs::from_arg_matches(&matches).ok()?;
    Connection::new(&args, environment).ok()
}

/// Adds the names, page by page.
async fn list(connection: &Connection, line: &Line, names: &mut Vec<String>) -> Result<(), Failure> {
    let path = match line.kind {
        Kind::Namespaces => "/api/v1/namespaces".to_owned(),
        Kind::Pods => format!("/api/v1/namespaces/{}/pods", escaped(&line.namespace)),
        Kind::Sinks | Kind::Sources => {
            let path = if line.kind == Kind::Sinks { "/sinks" } else { "/sources" };
            let (_, listed) = connection.list(path, &[], JSON).await?;
            names.extend(listed.iter().map(|item| text(&item["name"]).to_owned()));
            return Ok(());
        }
    };
    let read = |page: Value, _| {
        if page["kind"] != "Table" {
            return Err(Failure::Failed(anyhow!("the agent makes no tables")));
        }
        // The first column is the name.
        Ok(items(&page["rows"]).iter().map(|row| text(&row["cells"][0]).to_owned()).collect())
    };
    connection.pages(&path, &[("includeObject", "None")], TABLE, names, read).await.map(drop)
}
