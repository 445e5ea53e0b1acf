//! `podmux version`: the versions of this program and of the running agent.

use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs, block_on},
    failure::Failure,
    output::{Output, document, text},
    terminal::Escaped,
};
use crate::settings::Environment;

/// Show the versions of this program and of the running agent
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only the version of this program; no agent is asked
    #[arg(long)]
    client: bool,

    /// Print JSON or YAML
    #[arg(short, long, value_name = "FORMAT", value_parser = ["json", "yaml"])]
    output: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let (mut output, client) = (Output::new(), concat!("v", env!("CARGO_PKG_VERSION")));
    if args.output.is_none() {
        output.print(&format!("Client Version: {client}\n"))?;
    }
    let mut versions = json!({"clientVersion": {"gitVersion": client}});
    let asked = if args.client { Ok(0) } else { ask(args, environment, &mut versions) };
    match &args.output {
        Some(format) => output.print(&document(&versions, format == "yaml")?)?,
        None if versions["agentVersion"].is_null() => {}
        None => {
            let agent = text(&versions["agentVersion"]["gitVersion"]);
            output.print(&format!("Agent Version: {}\n", Escaped(agent)))?;
        }
    }
    // What is known without an agent was printed.
    asked
}

fn ask(args: &Args, environment: &Environment, versions: &mut Value) -> Result<u8, Failure> {
    let connection = Connection::new(&args.connection, environment)?;
    block_on(async {
        versions["agentVersion"] = connection.get("/version").await?;
        Ok(0)
    })
}
