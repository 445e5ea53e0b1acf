//! `podmux logs`: the output of a pod's containers, as `kubectl logs` prints it.

use std::{cell::Cell, time::Duration};

use anyhow::anyhow;
use bytes::Bytes;
use clap::value_parser;
use futures_util::{
    StreamExt as _,
    stream::{BoxStream, select_all, unfold},
};
use serde_json::Value;
use tokio::signal::ctrl_c;

use super::{
    connection::{Connection, ConnectionArgs, block_on, namespace, pod_path, with_query},
    failure::{ELSEWHERE, Failure},
    output::{Output, closed, items, text},
    terminal::{Escaped, print_error},
};
use crate::{client::ClientError, settings::Environment};

/// The annotation that names the container to choose by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// A log is text, and an error is JSON.
const TEXT: &str = "text/plain, application/json";
/// The longest `--since`.
const MAX_SINCE: Duration = Duration::from_hours(10 * 365 * 24);

/// Print the output of the containers of a pod
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct Args {
    /// The pod: NAME or pod/NAME
    #[arg(value_name = "POD")]
    pod: String,

    /// The container [default: that of the annotation kubectl.kubernetes.io/default-container, or the first]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// All containers of the pod, init containers first
    #[arg(long, conflicts_with = "container")]
    all_containers: bool,

    /// Print new output until the container ends or the command is interrupted
    #[arg(short, long)]
    follow: bool,

    /// The output of the container before the last restart
    #[arg(short, long)]
    previous: bool,

    /// Only the last lines; -1 means all
    #[arg(long, value_name = "LINES", default_value_t = -1, allow_negative_numbers = true, value_parser = value_parser!(i64).range(-1..))]
    tail: i64,

    /// Only output that is not older than this: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = since)]
    since: Option<Duration>,

    /// Begin each line with its time
    #[arg(long)]
    timestamps: bool,

    /// The largest number of bytes of each container
    #[arg(long, value_name = "BYTES")]
    limit_bytes: Option<u64>,

    /// The namespace
    #[arg(short, long, value_name = "NS", value_parser = namespace(), default_value = "default")]
    namespace: String,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Print the output of the containers of a pod

The agent must run the pods itself, with --sink podman. Standard output and standard error of a container are \
printed in the order in which podman has stored them.";

const EXAMPLES: &str = "\
Examples:
  podmux logs web
  podmux logs -f --tail 20 web -c proxy
  podmux logs --previous web
  podmux logs --since 10m --timestamps --all-containers pod/web -n staging

Exit codes: 0 success, or interrupted; 1 a request failed, or the connection broke; 2 invalid arguments.";

fn since(text: &str) -> Result<Duration, String> {
    crate::duration::read(text, &(Duration::from_secs(1)..=MAX_SINCE))
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let name = args
        .pod
        .split_once('/')
        .map_or(Some(&*args.pod), |(kind, name)| matches!(kind, "pod" | "pods" | "po").then_some(name));
    let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
    let name = name.ok_or_else(|| anyhow!("invalid pod {:?}: give NAME or pod/NAME", args.pod));
    let name = name.map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let has_begun = Cell::new(false);
    block_on(async {
        tokio::select! {
            biased;
            interrupted = ctrl_c() => interrupted.map_err(Failure::failed)?,
            () = closed() => {}
            printed = print(args, name, &connection, &has_begun) => {
                if args.follow && has_begun.get() && connection.is_stopping().await {
                    print_error("podmux: the agent has stopped: the log ends here; run the command again when it runs");
                    return Ok(1);
                }
                return printed;
            }
        }
        Ok(0)
    })
}

async fn print(
    args: &Args,
    name: &str,
    connection: &Connection,
    has_begun: &Cell<bool>,
) -> Result<u8, Failure> {
    let path = pod_path(&args.namespace, name);
    let pod = match connection.get(&path).await {
        Err(failure) if failure.is_not_found() => {
            failure.print_server_error(None)?;
            print_error(ELSEWHERE);
            return Ok(1);
        }
        pod => pod?,
    };
    let containers = containers(args, name, &pod);
    let path = |container: &String| log_path(args, &path, container);
    let mut output = Output::new();
    if args.follow && containers.len() > 1 {
        let mut logs: Vec<BoxStream<'_, Result<Bytes, ClientError>>> = Vec::new();
        for container in &containers {
            let lines = connection.lines(&path(container), TEXT).await?;
            has_begun.set(true);
            let lines = unfold(lines, async |mut lines| Some((lines.next().await?, lines)));
            logs.push(lines.boxed());
        }
        let mut lines = select_all(logs);
        while let Some(line) = lines.next().await {
            output.write(&line.map_err(Failure::failed)?)?;
            output.print("\n")?;
        }
        return Ok(0);
    }
    for container in &containers {
        let mut log = connection.stream(&path(container), TEXT).await?;
        has_begun.set(true);
        while let Some(chunk) = log.chunk().await {
            output.write(&chunk.map_err(Failure::failed)?)?;
            output.flush()?;
        }
    }
    Ok(0)
}

fn log_path(args: &Args, pod: &str, container: &str) -> String {
    let tail = (args.tail >= 0).then(|| args.tail.to_string());
    // As kubectl does it, in whole seconds.
    let since = args.since.map(|since| since.as_secs_f64().round().to_string());
    let limit = args.limit_bytes.map(|limit| limit.to_string());
    let flag = |is_set: bool| is_set.then(|| "true".to_owned());
    let options = [
        ("container", Some(container.to_owned())),
        ("follow", flag(args.follow)),
        ("limitBytes", limit),
        ("previous", flag(args.previous)),
        ("sinceSeconds", since),
        ("tailLines", tail),
        ("timestamps", flag(args.timestamps)),
    ];
    let options: Vec<(&str, &str)> =
        options.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    with_query(&format!("{pod}/log"), &options)
}

/// The containers that are meant, by kubectl's rules: what it chooses is printed on standard error.
fn containers(args: &Args, name: &str, pod: &Value) -> Vec<String> {
    let of = |list: &str, mark: &str| -> Vec<(String, String)> {
        let names = items(&pod["spec"][list]).iter().map(|container| text(&container["name"]));
        names.map(|name| (name.to_owned(), format!("{name}{mark}"))).collect()
    };
    let init = of("initContainers", " (init)");
    let [own, ephemeral] =
        [("containers", ""), ("ephemeralContainers", " (ephem)")].map(|(list, mark)| of(list, mark));
    if args.all_containers {
        return [init, own, ephemeral].concat().into_iter().map(|(name, _)| name).collect();
    }
    if let Some(container) = &args.container {
        return vec![container.clone()];
    }
    let first = own.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let all = [own, ephemeral, init].concat();
    let annotated = text(&pod["metadata"]["annotations"][DEFAULT_CONTAINER]);
    if all.iter().any(|(name, _)| name == annotated) {
        return vec![annotated.to_owned()];
    }
    if !annotated.is_empty() {
        let (annotated, name) = (Escaped(annotated), Escaped(name));
        print_error(format_args!("Default container name \"{annotated}\" not found in pod {name}"));
    }
    if all.len() > 1 {
        let all = all.into_iter().map(|(_, shown)| shown).collect::<Vec<_>>().join(", ");
        let (first, all) = (Escaped(&first), Escaped(&all));
        print_error(format_args!("Defaulted container \"{first}\" out of: {all}"));
    }
    vec![first]
}
