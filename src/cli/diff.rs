//! `podmux diff`: what `podmux apply` would change.

use std::{io, path::Path, time::Duration};

use serde_json::Value;
use similar::TextDiff;

use super::{
    connection::{Connection, ConnectionArgs, block_on, pod_path},
    failure::Failure,
    manifests::{self, DryRun, FileArgs},
    output::{Output, text},
    terminal::{BOLD, CYAN, Escaped, GREEN, RED, styled},
    yaml,
};
use crate::{settings::Environment, telemetry::colours};

/// How long the search for the shortest difference of a pod may take. After it, any difference is shown.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Show what apply would change on a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    manifests: FileArgs,

    /// The namespace of pods without one
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Show what apply would change on a running agent

The agent checks each manifest as it does for podmux apply, without storing it. The answer is compared with the \
pod that is stored. What the agent sets itself, such as the status, is not compared.";

const EXAMPLES: &str = "\
Examples:
  podmux diff -f web.yaml
  podmux diff -f manifests/ || podmux apply -f manifests/

Exit codes: 0 nothing would change; 1 something would; 2 an error.";

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    // 1 means that something would change.
    match compare(args, environment) {
        Err(Failure::Failed(error)) => Err(Failure::Refused(error)),
        Err(Failure::Server(status)) => {
            status.print(None);
            Ok(2)
        }
        ended => ended,
    }
}

fn compare(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    manifests::check_given(&args.manifests)?;
    let found = args.manifests.find().map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let colour = colours(&io::stdout(), environment);
    let mut diff = Diff { args, connection, colour, output: Output::new(), code: 0 };
    block_on(async {
        for path in &found {
            diff.manifest(path).await?;
        }
        Ok(diff.code)
    })
}

struct Diff<'a> {
    args: &'a Args,
    connection: Connection,
    colour: bool,
    output: Output,
    code: u8,
}

impl Diff<'_> {
    /// Prints what a manifest would change.
    async fn manifest(&mut self, path: &Path) -> Result<(), Failure> {
        let (namespace, dry_run) = (self.args.namespace.as_deref(), DryRun::Server.query());
        let sent = manifests::send(&self.connection, path, namespace, dry_run, "comparing");
        let Some(items) = sent.await? else {
            self.code = 2;
            return Ok(());
        };
        for mut item in items {
            self.pod(item["pod"].take()).await?;
        }
        Ok(())
    }

    /// Prints what would change in a pod.
    async fn pod(&mut self, wanted: Value) -> Result<(), Failure> {
        let metadata = &wanted["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let stored = match self.connection.get(&pod_path(namespace, name)).await {
            Ok(pod) => document(pod)?,
            Err(failure) if failure.is_not_found() => String::new(),
            Err(failure) => return Err(failure),
        };
        let title = format!("v1.Pod.{}.{}", Escaped(namespace), Escaped(name));
        let wanted = document(wanted)?;
        if stored == wanted {
            return Ok(());
        }
        self.code = self.code.max(1);
        let diff = TextDiff::configure().timeout(TIMEOUT).diff_lines(&*stored, &*wanted);
        let (from, to) = (format!("stored/{title}"), format!("applied/{title}"));
        let text = diff.unified_diff().header(&from, &to).to_string();
        let lines = text.lines().map(|line| self.line(line) + "\n").collect::<String>();
        self.output.print(&lines)
    }

    /// A line in the colour of what it says.
    fn line(&self, line: &str) -> String {
        let style = match line.as_bytes() {
            [b'-', b'-', b'-', b' ', ..] | [b'+', b'+', b'+', b' ', ..] => BOLD,
            [b'-', ..] => RED,
            [b'+', ..] => GREEN,
            [b'@', ..] => CYAN,
            _ => "",
        };
        styled(self.colour, style, &Escaped(line).to_string())
    }
}

/// A pod as YAML, without what the agent sets.
fn document(mut pod: Value) -> Result<String, Failure> {
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        for field in [
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "selfLink",
        ] {
            metadata.remove(field);
        }
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.retain(|name, _| !name.starts_with("kubernetes.io/config."));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    yaml::document(&pod).map_err(Failure::failed)
}
