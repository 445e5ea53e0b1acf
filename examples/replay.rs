//! Replays histories of listings through the merge and prints the updates.
//!
//! ```text
//! zcat tests/corpus/merge.jsonl.gz | cargo run --example replay
//! ```
//!
//! Each line of the input is one history, `{"id", "steps": [{"source", "pods": [v1.Pod, …]}, …]}`:
//! in each step a source publishes a listing of `pods`. Each line of the output has the updates
//! of each step, in order, with sorted pods:
//! `{"id", "steps": [[{"op", "source", "pods": ["namespace/name/uid", …]}, …], …]}`.
#![allow(dead_code, unreachable_pub, reason = "the tests use this file as a module")]
#![allow(clippy::print_stderr, reason = "rejections are for people, stdout is for programs")]

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

/// Applies the listings of a history to a new storage, with the updates after each one.
///
/// # Errors
/// If a source or a pod is invalid.
pub fn replay(history: History) -> Result<Replayed, Box<dyn Error>> {
    let mut storage = PodStorage::new(&SourceName::ALL);
    let mut sources: BTreeMap<SourceName, ListingBuilder> = BTreeMap::new();
    let mut delivered = Delivered::default();
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
        let (now, messages) = updates(&delivered, storage.merged(), Notify::Incremental);
        delivered = now;
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
