//! `podmux kubeconfig`: the agent's address and credentials for kubectl and client libraries.

use anyhow::anyhow;
use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs, block_on},
    failure::Failure,
    output::Output,
    yaml,
};
use crate::settings::Environment;

/// Print a kubeconfig with the agent's address and credentials
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Print the token that permits reading only
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Print a kubeconfig with the agent's address and credentials

kubectl and client libraries need an address over TCP, a certificate authority and a token. The agent \
gives them to callers of its Unix socket only.";

const EXAMPLES: &str = "\
Examples:
  podmux kubeconfig > podmux.kubeconfig
  kubectl --kubeconfig podmux.kubeconfig get pods --all-namespaces";

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let connection = Connection::new(&args.connection, environment)?;
    block_on(async {
        let credentials = connection.get("/credentials").await?;
        if args.read_only && credentials["readToken"].is_null() {
            return Err(Failure::Failed(anyhow!(
                "the agent has no read token: it needs a state directory whose auth/read-token it can read, \
                 and no --anonymous-auth"
            )));
        }
        let document = yaml::document(&kubeconfig(&credentials, args.read_only)).map_err(Failure::failed)?;
        Output::new().print(&document)?;
        Ok(0)
    })
}

fn kubeconfig(credentials: &Value, read_only: bool) -> Value {
    let mut config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "podmux", "cluster": {"server": credentials["server"]}}],
        "contexts": [{"name": "podmux", "context": {"cluster": "podmux", "user": "podmux"}}],
        "current-context": "podmux",
        "users": [{"name": "podmux", "user": {}}],
    });
    // An agent with --anonymous-auth has neither.
    if let Some(authority) = credentials["certificateAuthorityData"].as_str() {
        config["clusters"][0]["cluster"]["certificate-authority-data"] = authority.into();
    }
    if let Some(name) = credentials["tlsServerName"].as_str() {
        config["clusters"][0]["cluster"]["tls-server-name"] = name.into();
    }
    if let Some(token) = credentials[if read_only { "readToken" } else { "token" }].as_str() {
        config["users"][0]["user"]["token"] = token.into();
    }
    config
}
