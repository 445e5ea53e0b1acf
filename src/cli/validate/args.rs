//! The arguments of `podmux validate`.

use std::path::PathBuf;

use clap::{
    ArgAction, ValueEnum, ValueHint,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use crate::{
    pod::{SecurityLevel, SourceName},
    settings::security_level,
};

/// Check manifests as the agent does
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// Manifests, directories of manifests, named pipes, or - for standard input
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(super) paths: Vec<PathBuf>,

    /// Check directories recursively, and only their *.json, *.yaml and *.yml files
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,

    /// Also check the pod templates of Deployments, DaemonSets, StatefulSets, ReplicaSets,
    /// ReplicationControllers, Jobs and CronJobs, and skip other kinds
    #[arg(long)]
    pub(super) templates: bool,

    /// Treat unknown fields and duplicate keys as errors; other warnings stay warnings
    #[arg(long)]
    pub(super) strict: bool,

    /// The source whose rules apply
    #[arg(long, value_name = "SOURCE", value_parser = source(), default_value = "file")]
    pub(super) source: SourceName,

    /// The level of the Pod Security Standards that the pods may not exceed
    #[arg(long, value_name = "LEVEL", value_parser = security_level(), default_value = "privileged")]
    pub(super) pod_security: SecurityLevel,

    /// The name of this node, a part of every static pod's name [default: the host name]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    pub(super) node_name: Option<String>,

    /// The output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = OutputFormat::Text)]
    pub(super) output: OutputFormat,

    /// Also print valid manifests and skipped files
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(super) verbose: bool,
}

/// A parser of the sources that prepare manifests.
fn source() -> impl TypedValueParser<Value = SourceName> {
    PossibleValuesParser::new([
        PossibleValue::new("file").help("Manifests in a directory"),
        PossibleValue::new("http").help("Manifests that are posted over HTTP"),
        PossibleValue::new("url").help("Manifests that are polled from a URL"),
    ])
    .try_map(|name| name.parse::<SourceName>())
}

/// The output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// One line per problem; on a terminal with the faulty line of the manifest
    Text,
    /// One JSON object per manifest and line
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// Workflow commands of GitHub Actions, which annotate a change
    Github,
    /// JUnit XML, for reports of tests
    Junit,
}

const ABOUT: &str = "\
Check manifests as the agent does

Decodes, defaults, prepares and validates each manifest like a source of the agent; no agent has to run. \
Prints each problem as FILE:LINE:COLUMN: FIELD: REASON: detail, without the parts that are unknown; on a \
terminal, with the faulty line, a progress and a summary. Prints nothing else if all manifests are valid.";

const EXAMPLES: &str = "\
Examples:
  podmux validate /etc/kubernetes/manifests
  podmux validate --strict web.yaml db.yaml
  helm template chart | podmux validate --templates -
  podmux validate -R -o sarif . > podmux.sarif
  podmux validate -o json manifests | jq -r 'select(.ok | not) | .path'

Exit codes: 0 all valid; 1 some invalid; 2 invalid arguments, or a PATH does not exist.";
