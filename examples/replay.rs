//! Replays histories of listings through the heart of podmux and prints the updates.
//!
//! ```text
//! zcat tests/corpus/merge.jsonl.gz | cargo run --example replay
//! ```
//!
//! Each line of the input is one history, `{"id", "steps": [{"source", "pods": [v1.Pod, …]}, …]}`:
//! after each step a source's listing is `pods`. Each line of the output is
//! `{"id", "steps": [[{"op", "source", "pods": ["namespace/name/uid", …]}, …], …]}`: the updates
//! that each step gives, in their order, the pods of an update sorted.
#![allow(dead_code, unreachable_pub, reason = "the tests use this file as a module, without its main")]
#![allow(clippy::print_stderr, reason = "a rejection is for people, the output is not")]

use std::{
    collections::BTreeMap,
    error::Error,
    io::{BufRead, Write, stdin, stdout},
};

use podmux::{
    pod::{ListingBuilder, Origin, PodUpdate, Prepared, SourceName},
    storage::{Delivered, Notify, PodStorage, updates},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One line of the input.
#[derive(Deserialize)]
pub struct History {
    /// Copied into the output.
    pub id: Value,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    source: String,
    pods: Vec<Value>,
}

/// One line of the output.
#[derive(Serialize)]
pub struct Replayed {
    id: Value,
    /// For each step, its updates.
    pub steps: Vec<Vec<Line>>,
}

/// One update, for reading.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    op: String,
    source: String,
    pods: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    for line in stdin().lock().lines() {
        let history: History = serde_json::from_str(&line?)?;
        serde_json::to_writer(&mut out, &replay(history)?)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Applies each listing of a history to a fresh storage, and asks for the
/// updates after each, as a consumer does that never sleeps.
///
/// # Errors
/// If a source is none, or a pod is none.
pub fn replay(history: History) -> Result<Replayed, Box<dyn Error>> {
    let mut storage = PodStorage::new(&SourceName::ALL);
    let mut sources: BTreeMap<SourceName, ListingBuilder> = BTreeMap::new();
    let mut told = Delivered::default();
    let mut steps = Vec::new();
    for step in history.steps {
        let source = step.source.parse()?;
        let pods = step.pods.into_iter().map(Prepared::from_value).collect::<Result<Vec<_>, _>>()?;
        let builder = sources.entry(source).or_insert_with(|| ListingBuilder::new(source));
        builder.put(&Origin::from("history"), pods, jiff::Timestamp::UNIX_EPOCH);
        let outcome = storage.apply(&builder.listing());
        for rejection in &outcome.rejected {
            eprintln!("{}: {:?} rejected: {}", history.id, rejection.pod, rejection.reason);
        }
        let (now, messages) = updates(&told, storage.merged(), Notify::Incremental);
        told = now;
        steps.push(messages.iter().map(line).collect());
    }
    Ok(Replayed { id: history.id, steps })
}

fn line(update: &PodUpdate) -> Line {
    let mut pods: Vec<String> =
        update.pods.iter().map(|pod| format!("{}/{}", pod.key(), pod.uid())).collect();
    pods.sort();
    Line { op: update.op.to_string(), source: update.source.to_string(), pods }
}
