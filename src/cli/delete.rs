//! `podmux delete`: takes pods from a running agent.

use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use clap::{ArgAction, ValueEnum};
use http::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    Failure, Output,
    apply::DryRun,
    connection::{Connection, ConnectionArgs, block_on, with_query},
    get::pod_path,
    manifests::{self, FileArgs, Named},
    terminal::Shown,
};
use crate::settings::{self, Environment};

/// How soon it is looked again whether a pod is gone, at first
const LOOK: Duration = Duration::from_millis(50);
/// and at most: a graceful end takes seconds.
const LOOK_MOST: Duration = Duration::from_secs(1);
/// Longer than any grace: a week.
const LONGEST_WAIT: Duration = Duration::from_hours(7 * 24);

/// Delete pods of a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags, said or not")]
pub(super) struct Args {
    /// pod NAME…, or pod/NAME…
    #[arg(value_name = "pod NAME", required_unless_present = "files")]
    what: Vec<String>,

    #[command(flatten)]
    manifests: FileArgs,

    /// The namespace; of a manifest's pod if it says none
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    /// How long the pod may take to end, in seconds, 1 at least; its own grace if absent
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    grace_period: Option<i64>,

    /// A grace of one second
    #[arg(long, conflicts_with = "grace_period")]
    now: bool,

    /// Erase at once, without waiting for anybody to end the pod
    #[arg(long, conflicts_with = "now")]
    force: bool,

    /// Wait until the pod is gone
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    wait: bool,

    /// How long to wait, like 30s or 2m; 0 is as long as it takes
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    timeout: Duration,

    /// A pod that is not there is no error
    #[arg(long)]
    ignore_not_found: bool,

    /// Say what would be done: server asks the agent, which changes nothing
    #[arg(long, value_name = "HOW", value_enum, default_value_t = DryRun::None)]
    dry_run: DryRun,

    /// The form of the output: name for pod/NAME alone
    #[arg(short, long, value_name = "FORM", value_enum)]
    output: Option<Form>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Delete pods of a running agent

Only pods that were given to the agent (podmux apply, POST) can be deleted; a pod of a manifest goes \
when its manifest goes. Deleting is graceful: the pod is terminating until it has been ended everywhere \
or its grace has run out, and the command waits for that.";

const EXAMPLES: &str = "\
Examples:
  podmux delete pod web
  podmux delete pod web db -n staging --now --wait=false
  podmux delete -f manifests/ --ignore-not-found

Exit codes: 0 all deleted; 1 some not, or not in time; 2 called wrongly, or a PATH is missing.";

/// The forms of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// pod/web
    Name,
}

/// A pod that is to be deleted.
struct Victim {
    namespace: String,
    name: String,
    /// The manifest that names it.
    origin: Option<String>,
}

/// A pod that is on its way out.
struct Ending {
    path: String,
    name: String,
    uid: String,
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let grace = grace(args).map_err(Failure::Refused)?;
    let named = victims(args).map_err(Failure::Refused)?;
    let found = args.manifests.find().map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let mut delete = Delete { args, grace, connection, output: Output::new(), endings: Vec::new(), code: 0 };
    block_on(async {
        for victim in &named {
            delete.pod(victim).await?;
        }
        for path in &found {
            let victims =
                manifests::read(path).and_then(|text| delete.of_manifest(&manifests::names(&text)?, path));
            match victims {
                Ok(victims) => {
                    for victim in &victims {
                        delete.pod(victim).await?;
                    }
                }
                Err(error) => {
                    let path = manifests::shown(path);
                    delete.connection.say(&format!("podmux: {}: {error:#}", Shown(&path)));
                    delete.code = 1;
                }
            }
        }
        delete.wait().await?;
        Ok(delete.code)
    })
}

/// How long the pods may take, if that is said. kubectl's rules.
fn grace(args: &Args) -> Result<Option<i64>, anyhow::Error> {
    match args.grace_period {
        Some(grace) if args.force && grace > 0 => {
            Err(anyhow!("--force erases at once: --grace-period={grace} does not go with it"))
        }
        _ if args.force => Ok(Some(0)),
        _ if args.now => Ok(Some(1)),
        // Erasing at once wants --force.
        Some(0) => Ok(Some(1)),
        // kubectl's way to say nothing.
        Some(grace) if grace < 0 => Ok(None),
        grace => Ok(grace),
    }
}

/// The pods that are named on the command line: `pod web db`, `pod/web pod/db`.
fn victims(args: &Args) -> Result<Vec<Victim>, anyhow::Error> {
    const KINDS: [&str; 3] = ["pod", "pods", "po"];
    if !args.what.is_empty() && !args.manifests.files.is_empty() {
        return Err(anyhow!("give names or manifests (-f), not both"));
    }
    let kind = |kind: &str| {
        let known = KINDS.contains(&kind).then_some(());
        known.ok_or_else(|| anyhow!("{kind:?} cannot be deleted; pod NAME… or pod/NAME… can"))
    };
    let names: Vec<&str> = match args.what.split_first() {
        None => Vec::new(),
        Some((first, _)) if first.contains('/') => {
            let name = |text| {
                let (what, name) = str::split_once(text, '/').unwrap_or((text, ""));
                kind(what).map(|()| name)
            };
            args.what.iter().map(|text| name(text)).collect::<Result<_, _>>()?
        }
        Some((first, names)) => {
            kind(first)?;
            if names.is_empty() {
                return Err(anyhow!("which pod? give pod NAME…"));
            }
            names.iter().map(String::as_str).collect()
        }
    };
    if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('/')) {
        return Err(anyhow!("{name:?} is no name; give pod NAME… or pod/NAME…"));
    }
    let namespace = args.namespace.as_deref().unwrap_or("default");
    let victim = |name: &str| Victim { namespace: namespace.to_owned(), name: name.to_owned(), origin: None };
    Ok(names.into_iter().map(victim).collect())
}

struct Delete<'a> {
    args: &'a Args,
    grace: Option<i64>,
    connection: Connection,
    output: Output,
    endings: Vec<Ending>,
    code: u8,
}

impl Delete<'_> {
    /// The pods that a manifest names, where they are looked for.
    fn of_manifest(&self, named: &[Named], path: &std::path::Path) -> Result<Vec<Victim>, anyhow::Error> {
        let wanted = self.args.namespace.as_deref();
        let victim = |named: &Named| match (named.namespace.as_deref(), wanted) {
            (Some(its), Some(wanted)) if its != wanted => {
                Err(anyhow!("{} is in the namespace {its:?}, not in {wanted:?}: leave out -n", named.name))
            }
            (its, wanted) => Ok(Victim {
                namespace: its.or(wanted).unwrap_or("default").to_owned(),
                name: named.name.clone(),
                origin: Some(manifests::shown(path)),
            }),
        };
        named.iter().map(victim).collect()
    }

    async fn pod(&mut self, victim: &Victim) -> Result<(), Failure> {
        let path = pod_path(&victim.namespace, &victim.name);
        let grace = self.grace.map(|grace| grace.to_string());
        let grace = grace.as_deref().map(|grace| ("gracePeriodSeconds", grace));
        let query: Vec<_> = grace.into_iter().chain(self.args.dry_run.query()).collect();
        let asked =
            self.connection.ask(Method::DELETE, &with_query(&path, &query), None::<(_, Bytes)>).await?;
        let object = match asked {
            Ok(object) => object,
            Err(status) if status.is_not_found() && self.args.ignore_not_found => return Ok(()),
            Err(status) => {
                let doing = victim.origin.as_ref().map(|origin| format!("error when deleting \"{origin}\""));
                self.connection.refused(&status, doing.as_deref());
                self.code = 1;
                return Ok(());
            }
        };
        let shown = Shown(&victim.name);
        let line = match self.args.output {
            Some(Form::Name) => format!("pod/{shown}\n"),
            None if self.args.force => format!("pod \"{shown}\" force deleted{}\n", self.args.dry_run.note()),
            None => format!("pod \"{shown}\" deleted{}\n", self.args.dry_run.note()),
        };
        self.output.write(line.as_bytes())?;
        self.output.flush()?;
        // What was erased at once is answered with a Status.
        if object["kind"] == "Pod" && self.args.dry_run == DryRun::None {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            self.endings.push(Ending { path, name: victim.name.clone(), uid });
        }
        Ok(())
    }

    /// Waits until all of them are gone, if that is wanted.
    async fn wait(&mut self) -> Result<(), Failure> {
        if !self.args.wait {
            return Ok(());
        }
        let timeout = self.args.timeout;
        let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
        for ending in std::mem::take(&mut self.endings) {
            let mut pause = LOOK;
            while self.is_there(&ending).await? {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    let shown = Shown(&ending.name);
                    self.connection
                        .say(&format!("error: timed out waiting for the condition on pods/{shown}"));
                    self.code = 1;
                    break;
                }
                sleep(pause.min(left.unwrap_or(pause))).await;
                pause = (pause * 2).min(LOOK_MOST);
            }
        }
        Ok(())
    }

    /// Whether a pod is still there. Another one of its name is not it.
    async fn is_there(&mut self, ending: &Ending) -> Result<bool, Failure> {
        match self.connection.get(&ending.path).await? {
            Ok(pod) => Ok(pod["metadata"]["uid"].as_str() == Some(&*ending.uid) && is_terminating(&pod)),
            Err(status) if status.is_not_found() => Ok(false),
            Err(status) => {
                self.connection.refused(&status, None);
                self.code = 1;
                Ok(false)
            }
        }
    }
}

/// Whether a pod is being deleted. One that is not is not the one that was: it
/// was given again with the same UID, or another source has its name.
fn is_terminating(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

/// Reads how long to wait.
fn duration(text: &str) -> Result<Duration, String> {
    settings::duration::read(text, &(Duration::ZERO..=LONGEST_WAIT))
}
