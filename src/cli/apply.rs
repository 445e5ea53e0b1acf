//! `podmux apply`: gives manifests to a running agent.

use std::path::Path;

use anyhow::anyhow;
use bytes::Bytes;
use clap::ValueEnum;
use http::Method;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{
    Failure, Output,
    connection::{Connection, ConnectionArgs, Progress, block_on, with_query},
    get::{list, pretty},
    manifests::{self, FileArgs},
    terminal::Shown,
    yaml,
};
use crate::settings::Environment;

/// Create or replace pods on a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    manifests: FileArgs,

    /// The namespace of pods that say none
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    /// Say what would be done: server asks the agent, which changes nothing
    #[arg(long, value_name = "HOW", value_enum, default_value_t = DryRun::None)]
    dry_run: DryRun,

    /// What to do about fields that nobody knows and keys that stand twice
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Validate::Warn)]
    validate: Validate,

    /// The form of the output: a line for each pod if absent
    #[arg(short, long, value_name = "FORM", value_enum)]
    output: Option<Form>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Create or replace pods on a running agent

Each manifest is taken whole or not at all; when one is refused, the others are still sent. A pod \
that is reported is on the agent's disk and merged. The manifests' bytes are sent as they are.";

const EXAMPLES: &str = "\
Examples:
  podmux apply -f web.yaml
  podmux apply -f manifests/ --dry-run=server
  kubectl get pod web -o yaml | podmux apply -f -

Exit codes: 0 all taken; 1 some refused; 2 called wrongly, or a PATH is missing.";

/// What becomes of a manifest with unknown fields and duplicate keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Validate {
    /// The manifest is refused
    Strict,
    /// It is taken, with a warning
    Warn,
    /// It is taken
    Ignore,
}

impl Validate {
    /// What is asked for; to warn is the agent's way.
    const fn query(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Strict => Some(("fieldValidation", "Strict")),
            Self::Warn => None,
            Self::Ignore => Some(("fieldValidation", "Ignore")),
        }
    }
}

/// Whether anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// Everything is done
    None,
    /// The agent says what it would do
    Server,
}

impl DryRun {
    /// What is asked for.
    pub(super) fn query(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Server).then_some(("dryRun", "All"))
    }

    /// What is said of it in each line.
    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Server => " (server dry run)",
        }
    }
}

/// The forms of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The pods as they are now, as JSON
    Json,
    /// The same as YAML
    Yaml,
    /// Their names as arguments take them: pod/web
    Name,
    /// A JSON object a line
    Jsonl,
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    if args.manifests.files.is_empty() {
        return Err(Failure::Refused(anyhow!("which manifests? give -f PATH, or -f - for standard input")));
    }
    let found = args.manifests.find().map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let mut apply = Apply { args, connection, output: Output::new(), pods: Vec::new() };
    block_on(async {
        let progress = Progress::new(found.len());
        let mut code = 0;
        for (done, path) in found.iter().enumerate() {
            progress.step(done, "manifests");
            let taken = apply.file(path).await;
            progress.end();
            code |= u8::from(!taken?);
        }
        apply.end()?;
        Ok(code)
    })
}

struct Apply<'a> {
    args: &'a Args,
    connection: Connection,
    output: Output,
    /// What is shown at the end.
    pods: Vec<Value>,
}

impl Apply<'_> {
    /// Sends one manifest. Says whether it was taken.
    async fn file(&mut self, path: &Path) -> Result<bool, Failure> {
        let namespace = self.args.namespace.as_deref();
        let read = manifests::read(path).and_then(|text| {
            namespace.map(|namespace| manifests::check_namespace(&text, namespace)).transpose()?;
            Ok(text)
        });
        let text = match read {
            Ok(text) => text,
            Err(error) => {
                self.connection.say(&format!("podmux: {}: {error:#}", Shown(&manifests::shown(path))));
                return Ok(false);
            }
        };
        let options = [
            namespace.map(|namespace| ("namespace", namespace)),
            self.args.dry_run.query(),
            self.args.validate.query(),
        ];
        let query: Vec<_> = options.into_iter().flatten().collect();
        let body = (media_type(&text), Bytes::from(text));
        match self.connection.ask(Method::POST, &with_query("/pods", &query), Some(body)).await? {
            Ok(mut written) => {
                if let Value::Array(items) = written["items"].take() {
                    items.into_iter().try_for_each(|item| self.item(item))?;
                }
                // Whoever reads along learns what is done while the rest is under way.
                self.output.flush()?;
                Ok(true)
            }
            Err(status) => {
                let doing = format!("error when applying \"{}\"", manifests::shown(path));
                self.connection.refused(&status, Some(&doing));
                Ok(false)
            }
        }
    }

    /// Tells what became of one pod.
    fn item(&mut self, mut item: Value) -> Result<(), Failure> {
        let pod = item["pod"].take();
        let name = Shown(pod["metadata"]["name"].as_str().unwrap_or_default()).to_string();
        let line = match self.args.output {
            None => {
                let result = Shown(item["result"].as_str().unwrap_or_default()).to_string();
                format!("pod/{name} {result}{}\n", self.args.dry_run.note())
            }
            Some(Form::Name) => format!("pod/{name}\n"),
            Some(Form::Jsonl) => format!("{pod}\n"),
            Some(Form::Json | Form::Yaml) => {
                self.pods.push(pod);
                return Ok(());
            }
        };
        self.output.write(line.as_bytes())
    }

    /// Shows what is shown at the end.
    fn end(&mut self) -> Result<(), Failure> {
        let mut pods = std::mem::take(&mut self.pods);
        let object = match pods.len() {
            0 => return self.output.flush(),
            1 => pods.remove(0),
            _ => list(pods, ""),
        };
        let text =
            if self.args.output == Some(Form::Yaml) { yaml::document(&object) } else { pretty(&object)? };
        self.output.write(text.as_bytes())?;
        self.output.flush()
    }
}

/// What the server is told that a manifest is. YAML that looks like JSON is
/// YAML: the server takes the word for it.
fn media_type(text: &[u8]) -> &'static str {
    match serde_json::from_slice::<IgnoredAny>(text) {
        Ok(_) => "application/json",
        Err(_) => "application/yaml",
    }
}
