//! `podmux apply`: sends manifests to a running agent.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
};

use clap::ValueEnum;
use serde_json::Value;

use super::{
    connection::{Connection, ConnectionArgs, block_on},
    failure::Failure,
    manifests::{self, DryRun, FileArgs},
    output::{Output, document, list, text},
    terminal::{Escaped, ProgressLine},
};
use crate::settings::Environment;

/// Create or replace pods on a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    manifests: FileArgs,

    /// The namespace of pods without one
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    /// Let the agent check the request and change nothing; without a value, server
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true, default_value_t = DryRun::None, default_missing_value = "server")]
    dry_run: DryRun,

    /// How to treat unknown fields and duplicate keys
    #[arg(long, value_name = "HOW", value_enum, default_value_t = FieldValidation::Warn)]
    validate: FieldValidation,

    /// The output format; without it, one line per pod
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    output: Option<OutputFormat>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Create or replace pods on a running agent

A manifest is applied completely or not at all. When one is rejected, the others are still sent. A pod \
that is reported is stored on the agent's disk and merged.";

const EXAMPLES: &str = "\
Examples:
  podmux apply -f web.yaml
  podmux apply -f manifests/ --dry-run
  podmux get pod web -o yaml | sed s/1.27/1.28/ | podmux apply -f -

Exit codes: 0 all applied; 1 some rejected; 2 invalid arguments, or a PATH does not exist.";

/// How the server treats unknown fields and duplicate keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FieldValidation {
    /// Reject the manifest
    Strict,
    /// Apply it and print a warning
    Warn,
    /// Apply it
    Ignore,
}

impl FieldValidation {
    /// The query parameter; the server's default is to warn.
    const fn query(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Strict => Some(("fieldValidation", "Strict")),
            Self::Warn => None,
            Self::Ignore => Some(("fieldValidation", "Ignore")),
        }
    }
}

/// The output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// The stored pods as JSON
    Json,
    /// The stored pods as YAML
    Yaml,
    /// Names like pod/web
    Name,
    /// One JSON object per line
    Jsonl,
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    manifests::check_given(&args.manifests)?;
    args.dry_run.check()?;
    let found = args.manifests.find().map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let mut apply = Apply { args, connection, output: Output::new(), pods: Vec::new() };
    block_on(async {
        // Results on the same terminal already show the progress.
        let is_wanted = found.len() > 1 && !io::stdout().is_terminal();
        let progress = ProgressLine::new(found.len(), is_wanted, environment);
        let mut code = 0;
        for (done, path) in found.iter().enumerate() {
            progress.show(done);
            let applied = apply.manifest(path).await;
            progress.clear();
            if applied.is_err() {
                // What is stored is printed, whatever ends the command.
                apply.finish()?;
            }
            code |= u8::from(!applied?);
        }
        apply.finish()?;
        Ok(code)
    })
}

struct Apply<'a> {
    args: &'a Args,
    connection: Connection,
    output: Output,
    /// The pods that are printed at the end, as one object.
    pods: Vec<Value>,
}

impl Apply<'_> {
    /// Sends one manifest. Returns whether it was applied.
    async fn manifest(&mut self, path: &Path) -> Result<bool, Failure> {
        let options = self.args.dry_run.query().into_iter().chain(self.args.validate.query());
        let namespace = self.args.namespace.as_deref();
        let sent = manifests::send(&self.connection, path, namespace, options, "applying");
        let Some(items) = sent.await? else { return Ok(false) };
        items.into_iter().try_for_each(|item| self.item(item))?;
        // Each result is visible while the next manifest is sent.
        self.output.flush()?;
        Ok(true)
    }

    /// Prints the result for one pod.
    fn item(&mut self, mut item: Value) -> Result<(), Failure> {
        let pod = item["pod"].take();
        let name = Escaped(text(&pod["metadata"]["name"])).to_string();
        let line = match self.args.output {
            None => {
                let result = Escaped(text(&item["result"])).to_string();
                format!("pod/{name} {result}{}\n", self.args.dry_run.note())
            }
            Some(OutputFormat::Name) => format!("pod/{name}\n"),
            Some(OutputFormat::Jsonl) => format!("{pod}\n"),
            Some(OutputFormat::Json | OutputFormat::Yaml) => {
                self.pods.push(pod);
                return Ok(());
            }
        };
        self.output.write(line.as_bytes())
    }

    /// Prints what is printed as one object.
    fn finish(&mut self) -> Result<(), Failure> {
        let mut pods = std::mem::take(&mut self.pods);
        let object = match pods.len() {
            0 => return self.output.flush(),
            1 => pods.remove(0),
            _ => list(pods, ""),
        };
        self.output.print(&document(&object, self.args.output == Some(OutputFormat::Yaml))?)
    }
}
