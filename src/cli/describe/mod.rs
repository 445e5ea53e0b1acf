//! `podmux describe`: all that the agent knows of one pod or source, for people.

use std::io;

use anyhow::anyhow;

use self::page::Page;
use super::{
    connection::{Connection, ConnectionArgs, block_on, namespace},
    failure::Failure,
    output::Output,
};
use crate::{host::Host, pod::SourceName, settings::Environment, telemetry::colours};

mod find;
mod page;
mod pod;
mod reports;
mod source;
mod spec;

/// Describe a pod or a source of a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// pod or source; also pod/NAME or source/NAME
    #[arg(value_name = "KIND")]
    kind: String,

    /// The name; of a pod also its beginning, if no other pod begins so
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// The namespace of the pod [default: default]
    #[arg(short, long, value_name = "NS", value_parser = namespace())]
    namespace: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Describe a pod or a source of a running agent

Of a pod: its source and where that has found it, its containers, the fields that have their default, its status, what \
is wrong with it, its newest updates and its events. Values of environment variables are not shown.

Of a source: what it reads, its state, its last error, its pods, its problems and its newest updates.";

const EXAMPLES: &str = "\
Examples:
  podmux describe pod web
  podmux describe pod dns-node1 -n kube-system
  podmux describe source file

Exit codes: 0 success; 1 a request failed, or the object does not exist; 2 invalid arguments.";

/// What is described.
enum Object {
    Pod(String),
    Source(SourceName),
}

impl Object {
    fn of(args: &Args) -> Result<Self, anyhow::Error> {
        let (kind, name) = match (&args.name, args.kind.split_once('/')) {
            (None, Some((kind, name))) => (kind, name),
            (Some(name), None) => (&*args.kind, &**name),
            (Some(_), Some(_)) => return Err(anyhow!("give one name: pod NAME or pod/NAME")),
            (None, None) => (&*args.kind, ""),
        };
        match kind {
            "pod" | "pods" | "po" if name.is_empty() => {
                Err(anyhow!("no pod is named: give pod NAME; podmux get pods -A lists them"))
            }
            "pod" | "pods" | "po" => Ok(Self::Pod(name.to_owned())),
            "source" | "sources" if name.is_empty() => {
                Err(anyhow!("no source is named: give source NAME; podmux get sources lists them"))
            }
            "source" | "sources" if args.namespace.is_some() => {
                Err(anyhow!("a source has no namespace: omit --namespace"))
            }
            "source" | "sources" => Ok(Self::Source(name.parse()?)),
            kind => Err(anyhow!("cannot describe {kind:?}: give pod NAME or source NAME")),
        }
    }
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let object = Object::of(args).map_err(Failure::Refused)?;
    let host = Host::default();
    let connection = Connection::new(&args.connection, environment)?;
    let mut page = Page::new(colours(&io::stdout(), environment), host.clock.now());
    block_on(async {
        match &object {
            Object::Pod(name) => {
                let pod =
                    find::pod(&connection, args.namespace.as_deref().unwrap_or("default"), name).await?;
                pod::describe(&connection, &pod, &mut page).await?;
            }
            Object::Source(name) => source::describe(&connection, *name, &mut page).await?,
        }
        Output::new().print(page.text())?;
        Ok(0)
    })
}
