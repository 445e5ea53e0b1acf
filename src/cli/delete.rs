//! `podmux delete`: deletes pods of a running agent.

use std::{path::Path, time::Duration};

use anyhow::anyhow;
use clap::{ArgAction, builder::PossibleValue};
use http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    connection::{Connection, ConnectionArgs, JSON, block_on, pod_path, with_query},
    failure::Failure,
    manifests::{self, DryRun, FileArgs},
    output::{Output, first_of},
    posted::Posted,
    terminal::{Escaped, print_error},
};
use crate::settings::Environment;

/// The delay before the second check whether a pod is gone. It doubles with each check.
const MIN_DELAY: Duration = Duration::from_millis(50);
/// The maximum delay between two checks. A graceful deletion takes seconds.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// The maximum of `--timeout`, longer than any grace period.
const MAX_TIMEOUT: Duration = Duration::from_hours(7 * 24);

/// Delete pods of a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct Args {
    /// pod NAME…, or pod/NAME…
    #[arg(value_name = "pod NAME", required_unless_present_any = ["files", "all", "selector"])]
    pods: Vec<String>,

    #[command(flatten)]
    manifests: FileArgs,

    /// All posted pods of the namespace
    #[arg(long, conflicts_with_all = ["files", "selector"])]
    all: bool,

    /// The posted pods with these labels: app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "files")]
    selector: Option<String>,

    /// The namespace; with -f, of pods without one
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    /// With --all or --selector, pods of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "files"])]
    all_namespaces: bool,

    /// The grace period in seconds: 0 counts as 1, a negative number as each pod's own, the default
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    grace_period: Option<i64>,

    /// A grace period of one second
    #[arg(long, conflicts_with = "grace_period")]
    now: bool,

    /// Erase the pod at once, without waiting for sinks
    #[arg(long, conflicts_with = "now")]
    force: bool,

    /// Wait until the pod is gone
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    wait: bool,

    /// How long to wait for the agent's answers and for the end of the pods, like 30s or 2m; 0 means without
    /// limit
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    timeout: Duration,

    /// Do not report pods that do not exist
    #[arg(long)]
    ignore_not_found: bool,

    /// Let the agent check the request and change nothing; without a value, server
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true, default_value_t = DryRun::None, default_missing_value = "server")]
    dry_run: DryRun,

    /// The output format; name prints only pod/NAME
    #[arg(short, long, value_name = "FORMAT", value_parser = [PossibleValue::new("name").help("Names like pod/web")])]
    output: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Delete pods of a running agent

Only pods that were created over the API (podmux apply, POST) can be deleted; a pod of a manifest file is \
removed with its manifest. --all and --selector leave the other pods alone, and say how many there are. A posted pod \
whose name or UID a pod of another source has is in no list: --all deletes it, --selector does not. Deletion is graceful. The command waits until the pod is gone: with a runtime until it \
has stopped, else until every sink has acknowledged the deletion or the grace period is over.";

const EXAMPLES: &str = "\
Examples:
  podmux delete pod web
  podmux delete pod web db -n staging --now --wait=false
  podmux delete pods --all -n staging
  podmux delete pods -l app=web -A
  podmux delete -f manifests/ --ignore-not-found

Exit codes: 0 all deleted; 1 some failed or timed out; 2 invalid arguments, or a PATH does not exist.";

/// A pod to delete.
struct Deletion {
    namespace: String,
    name: String,
    /// The manifest that names it.
    origin: Option<String>,
    /// Its UID, if the agent has listed it.
    uid: Option<String>,
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    args.dry_run.check()?;
    let grace_period = grace_period(args).map_err(Failure::Refused)?;
    let named = named(args).map_err(Failure::Refused)?;
    let found = args.manifests.find().map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let output = Output::new();
    let deadline = (!args.timeout.is_zero()).then(|| Instant::now() + args.timeout);
    let terminating = Vec::new();
    let mut delete = Delete { args, grace_period, connection, deadline, output, terminating, code: 0 };
    block_on(async {
        delete.pods(named).await?;
        if args.selects() {
            delete.selected().await?;
        }
        for path in &found {
            let text = manifests::read(path);
            match text.and_then(|text| in_manifest(args.namespace(), path, &text)) {
                Ok(deletions) => delete.pods(deletions).await?,
                Err(error) => {
                    manifests::print_unusable(path, &error);
                    delete.code = 1;
                }
            }
        }
        delete.wait().await?;
        Ok(delete.code)
    })
}

impl Args {
    /// Whether the pods are those that the agent lists.
    fn selects(&self) -> bool {
        self.all || self.selector.is_some()
    }

    /// The namespace. It is empty in scripts with a variable that is not set.
    fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty())
    }
}

/// The grace period of the request, by kubectl's rules.
fn grace_period(args: &Args) -> Result<Option<i64>, anyhow::Error> {
    match args.grace_period {
        Some(seconds) if args.force && seconds > 0 => {
            Err(anyhow!("--force has no grace period: omit --force or --grace-period={seconds}"))
        }
        _ if args.force => Ok(Some(0)),
        _ if args.now => Ok(Some(1)),
        // Only --force erases at once.
        Some(0) => Ok(Some(1)),
        // A negative number means the pod's own grace period.
        Some(seconds) if seconds < 0 => Ok(None),
        seconds => Ok(seconds),
    }
}

/// The pods that the arguments name: `pod web db`, `pod/web pod/db`.
fn named(args: &Args) -> Result<Vec<Deletion>, anyhow::Error> {
    if !args.pods.is_empty() && !args.manifests.files.is_empty() {
        return Err(anyhow!("give names or manifests (-f), not both"));
    }
    if args.all_namespaces && !args.selects() {
        return Err(anyhow!("-A needs --all or -l SELECTOR; a name belongs to one namespace: use -n NS"));
    }
    let named: Vec<(&str, &str)> = match &args.pods[..] {
        [kind] if is_pod(kind) && args.selects() => return Ok(Vec::new()),
        [_, ..] if args.selects() => {
            return Err(anyhow!("give names, --all or a selector, only one of them"));
        }
        [kind] if is_pod(kind) => return Err(anyhow!("no pod is named: give pod NAME…")),
        [kind, names @ ..] if !names.is_empty() && !kind.contains('/') => {
            names.iter().map(|name| (&**kind, &**name)).collect()
        }
        pods => pods.iter().map(|text| text.split_once('/').unwrap_or((text, ""))).collect(),
    };
    let namespace = args.namespace().unwrap_or("default");
    let deletion = |(kind, name): (&str, &str)| {
        if !is_pod(kind) {
            return Err(anyhow!("cannot delete {kind:?}: give pod NAME… or pod/NAME…"));
        }
        if name.is_empty() || name.contains('/') {
            return Err(anyhow!("invalid name {name:?}: give pod NAME… or pod/NAME…"));
        }
        Ok(Deletion { namespace: namespace.into(), name: name.into(), origin: None, uid: None })
    };
    named.into_iter().map(deletion).collect()
}

fn is_pod(kind: &str) -> bool {
    matches!(kind, "pod" | "pods" | "po")
}

/// The pods that a manifest names.
fn in_manifest(wanted: Option<&str>, path: &Path, text: &[u8]) -> Result<Vec<Deletion>, anyhow::Error> {
    if let Some(wanted) = wanted {
        manifests::check_namespace(text, wanted)?;
    }
    let deletion = |(namespace, name): (Option<String>, String)| Deletion {
        namespace: namespace.unwrap_or_else(|| wanted.unwrap_or("default").to_owned()),
        name,
        origin: Some(manifests::display_name(path)),
        uid: None,
    };
    Ok(manifests::references(text)?.into_iter().map(deletion).collect())
}

struct Delete<'a> {
    args: &'a Args,
    grace_period: Option<i64>,
    connection: Connection,
    /// The end of `--timeout`.
    deadline: Option<Instant>,
    output: Output,
    /// The pods that are being deleted, with their UIDs.
    terminating: Vec<(Deletion, String)>,
    code: u8,
}

impl Delete<'_> {
    /// Waits for the answer to a request until the deadline. The last looks at pods are after it.
    async fn answer<T>(&self, request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let Some(deadline) = self.deadline else { return request.await };
        let answer = timeout_at(deadline.max(Instant::now() + MAX_DELAY), request).await;
        answer.unwrap_or_else(|_| {
            let timeout = self.args.timeout;
            Err(Failure::Failed(anyhow!(
                "no answer within {timeout:?}: what was asked for may still be deleted"
            )))
        })
    }

    async fn pods(&mut self, deletions: Vec<Deletion>) -> Result<(), Failure> {
        for deletion in deletions {
            self.pod(deletion).await?;
        }
        Ok(())
    }

    /// Deletes the posted pods that `--all` or the selector match.
    async fn selected(&mut self) -> Result<(), Failure> {
        let namespace = self.args.namespace().unwrap_or("default");
        let namespace = (!self.args.all_namespaces).then_some(namespace);
        let posted = Posted::list(&self.connection, namespace, self.args.selector.as_deref());
        let posted = self.answer(posted).await?;
        let (mut hidden, has_more) = self.answer(Posted::hidden(&self.connection, namespace)).await?;
        // Meanwhile a listed pod may have been hidden.
        hidden.retain(|pod| !posted.pods.iter().any(|listed| listed[..2] == pod[..]));
        let is_nothing = posted.pods.is_empty() && posted.others == 0 && hidden.is_empty();
        if is_nothing && !self.args.ignore_not_found {
            print_error("No resources found");
        }
        if let Some(note) = posted.note() {
            print_error(note);
        }
        let deletion = |[namespace, name]: [String; 2], uid| Deletion { namespace, name, origin: None, uid };
        let listed =
            posted.pods.into_iter().map(|[namespace, name, uid]| deletion([namespace, name], Some(uid)));
        let mut deletions: Vec<Deletion> = listed.collect();
        if self.args.all {
            deletions.extend(hidden.into_iter().map(|pod| deletion(pod, None)));
            if has_more {
                print_error(
                    "podmux: the agent names only some of the posted pods that pods of other sources hide; \
                     delete the others by name",
                );
            }
        } else if !hidden.is_empty() {
            let names = first_of(hidden.iter().map(|pod| pod.join("/")), 3).join(", ");
            print_error(format_args!(
                "podmux: posted pods that pods of other sources hide stay: {}; delete them by name",
                Escaped(&names)
            ));
        }
        self.pods(deletions).await
    }

    async fn pod(&mut self, deletion: Deletion) -> Result<(), Failure> {
        let path = pod_path(&deletion.namespace, &deletion.name);
        let seconds = self.grace_period.map(|seconds| seconds.to_string());
        let seconds = seconds.as_deref().map(|seconds| ("gracePeriodSeconds", seconds));
        let query: Vec<_> = seconds.into_iter().chain(self.args.dry_run.query()).collect();
        let is_listed = deletion.uid.is_some() || self.args.all;
        // A pod that has taken the name since stays.
        let options = |uid| json!({"preconditions": {"uid": uid}}).to_string().into();
        let body = deletion.uid.as_ref().map(|uid| (JSON, options(uid)));
        let path = with_query(&path, &query);
        let object = match self.answer(self.connection.request(Method::DELETE, &path, body)).await {
            Ok(object) => object,
            Err(failure) if failure.is_not_found() && (is_listed || self.args.ignore_not_found) => {
                return Ok(());
            }
            Err(Failure::Server(status)) if is_listed && status.reason == "Conflict" => return Ok(()),
            Err(failure) => {
                let origin = deletion.origin.as_ref();
                let context = origin.map(|origin| format!("error when deleting \"{origin}\""));
                failure.print_server_error(context.as_deref())?;
                self.code = 1;
                return Ok(());
            }
        };
        let name = Escaped(&deletion.name);
        let forced = if self.args.force { "force " } else { "" };
        let line = match &self.args.output {
            Some(_) => format!("pod/{name}\n"),
            None => format!("pod \"{name}\" {forced}deleted{}\n", self.args.dry_run.note()),
        };
        self.output.print(&line)?;
        // A pod that was erased at once is answered with a Status.
        if object["kind"] == "Pod" && self.args.dry_run == DryRun::None {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            self.terminating.push((deletion, uid));
        }
        Ok(())
    }

    /// Waits until all pods are gone, unless `--wait=false`.
    async fn wait(&mut self) -> Result<(), Failure> {
        if !self.args.wait {
            return Ok(());
        }
        for (pod, uid) in std::mem::take(&mut self.terminating) {
            let mut delay = MIN_DELAY;
            while self.exists(&pod, &uid).await? {
                let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    let name = Escaped(&pod.name);
                    print_error(format_args!("error: timed out waiting for the condition on pods/{name}"));
                    self.code = 1;
                    break;
                }
                sleep(delay.min(left.unwrap_or(delay))).await;
                delay = (delay * 2).min(MAX_DELAY);
            }
        }
        Ok(())
    }

    /// Whether a pod still exists. A pod with its name is another one if it has another UID,
    /// or if it is not terminating: it was created again, or another source owns the name.
    async fn exists(&mut self, pod: &Deletion, uid: &str) -> Result<bool, Failure> {
        match self.answer(self.connection.get(&pod_path(&pod.namespace, &pod.name))).await {
            Ok(found) => {
                let metadata = &found["metadata"];
                Ok(metadata["uid"] == *uid && metadata["deletionTimestamp"].is_string())
            }
            Err(failure) if failure.is_not_found() => Ok(false),
            Err(failure) => {
                failure.print_server_error(None)?;
                self.code = 1;
                Ok(false)
            }
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    crate::duration::read(text, &(Duration::ZERO..=MAX_TIMEOUT))
}
