//! The command line: its definition, its one-line errors, and one module for each subcommand.

use std::{ffi::OsString, io};

use anyhow::anyhow;
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, error::ErrorKind, value_parser};

use self::failure::Failure;
use crate::{
    settings::{self, Environment, InvalidValue},
    systemd::Manager,
    telemetry,
};

mod apply;
mod complete;
pub mod completion;
mod connection;
mod delete;
mod describe;
mod diff;
mod failure;
mod get;
mod hints;
pub mod jsonpath;
mod kubeconfig;
mod logs;
mod manifests;
mod output;
mod posted;
mod run;
pub mod status;
pub mod table;
mod terminal;
pub mod top;
mod unreachable;
mod validate;
mod version;
pub mod yaml;

/// Merge a node's pod manifests from every source into one ordered stream of updates
///
/// podmux collects the pod manifests for one node from files, a URL, HTTP requests and an API server,
/// merges them, and publishes every change in order as JSON lines.
#[derive(clap::Parser)]
#[command(name = "podmux", version, after_long_help = EXAMPLES, max_term_width = 100)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  podmux run --pod-manifest-path /etc/kubernetes/manifests
  podmux validate /etc/kubernetes/manifests
  podmux apply -f web.yaml
  podmux get pods -A --watch
  podmux completion bash > /etc/bash_completion.d/podmux

Exit codes: 0 success, or stopped by a signal; 1 failed; 2 invalid arguments or settings.";

#[derive(clap::Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Validate(validate::Args),
    Get(get::Args),
    Describe(describe::Args),
    Apply(apply::Args),
    Diff(diff::Args),
    Delete(delete::Args),
    Logs(logs::Args),
    Top(top::Args),
    Kubeconfig(kubeconfig::Args),
    Version(version::Args),
    Completion(completion::Args),
}

/// Words of other programs, and what to use for them.
const ELSEWHERE: [(&[&str], &str); 4] = [
    (
        &["attach", "cp", "debug", "exec", "port-forward"],
        "podmux does not reach into containers: use a command of their runtime, such as podman exec",
    ),
    (
        &["annotate", "auth", "create", "edit", "explain", "label", "patch", "replace", "set", "wait"],
        "use kubectl, which works on this agent: podmux kubeconfig prints what it needs",
    ),
    (&["events", "list", "nodes", "pods", "ps", "sinks", "sources", "updates"], "use podmux get"),
    (
        &["disable", "enable", "reload", "restart", "start", "status", "stop"],
        "the agent is a service: use systemctl, or podmux run for one in this terminal",
    ),
];

/// Runs the program with its arguments (its name first) and environment. Returns the exit
/// code; if it is not 0, standard error has the reason on one line.
pub fn main(
    args: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let (environment, invalid) = environment(variables);
    dispatch(&args, &environment, invalid).unwrap_or_else(|failure| {
        match &failure {
            Failure::Server(status) => status.print(None),
            failure => telemetry::print(tracing::Level::ERROR, &failure.to_string(), &environment),
        }
        failure.code()
    })
}

/// Parses the arguments and runs the subcommand. An invalid environment still allows `--help`.
fn dispatch(args: &[OsString], environment: &Environment, unusable: Option<Failure>) -> Result<u8, Failure> {
    if let [_, word, words @ ..] = args
        && word == complete::WORD
    {
        return complete::run(words, environment, &command());
    }
    // Help and completions are without the values of switches.
    let parsed = command().try_get_matches_from(args).or_else(|error| {
        let command = command().mut_subcommands(|command| command.mut_args(with_value));
        let parsed = command.try_get_matches_from(args);
        parsed.map_err(|other| if other.kind() == error.kind() { error } else { other })
    });
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match (parsed, unusable) {
        (Ok(parsed), None) => parsed,
        (parsed, unusable) => {
            let answer = match parsed {
                Err(error) => help_or_refusal(&error, args),
                Ok(_) => unusable.map_or(Ok(0), Err),
            };
            if let Err(failure) = &answer
                && args.get(1).is_some_and(|command| command == "run")
            {
                // systemd shows why a unit with an invalid flag or variable does not start.
                run::tell_failure(&Manager::from_environment(environment), failure);
            }
            return answer;
        }
    };
    match cli.command {
        Command::Run(args) => {
            let matches = matches.subcommand().map_or(&matches, |(_, matches)| matches);
            run::run(&args, matches, environment)
        }
        Command::Validate(args) => validate::run(&args, environment),
        Command::Get(args) => get::run(&args, environment),
        Command::Describe(args) => describe::run(&args, environment),
        Command::Apply(args) => apply::run(&args, environment),
        Command::Diff(args) => diff::run(&args, environment),
        Command::Delete(args) => delete::run(&args, environment),
        Command::Logs(args) => logs::run(&args, environment),
        Command::Top(args) => top::run(&args, environment),
        Command::Kubeconfig(args) => kubeconfig::run(&args, environment),
        Command::Version(args) => version::run(&args, environment),
        Command::Completion(args) => completion::run(&args, command()),
    }
}

/// The definition of the command line, with each setting's default and variable in its help.
pub fn command() -> clap::Command {
    Cli::command()
        .mut_subcommand("run", |run| run.mut_args(settings::explain))
        .mut_subcommand("validate", |validate| validate.mut_arg("node_name", settings::explain))
}

/// A switch that may have a value, like kubectl's: `--watch=false`.
fn with_value(arg: clap::Arg) -> clap::Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    let arg = arg.action(ArgAction::Set).value_parser(value_parser!(bool)).num_args(0..=1);
    arg.require_equals(true).default_missing_value("true").default_value("false")
}

/// The variables that are text. A setting that is not UTF-8 is an error, other variables are ignored.
fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> (Environment, Option<Failure>) {
    let (mut environment, mut invalid) = (Environment::new(), None);
    for (name, value) in variables {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => drop(environment.insert(name, value)),
            Err(_) if name.starts_with("PODMUX_") => {
                invalid = Some(Failure::Refused(anyhow!("{name}: the value is not UTF-8 text")));
            }
            Err(_) => {}
        }
    }
    (environment, invalid)
}

/// Prints help and version; makes every other error of clap a failure on one line.
fn help_or_refusal(error: &clap::Error, args: &[OsString]) -> Result<u8, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(output::unwritable(error)),
            _ => Ok(0),
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(2)
        }
        ErrorKind::InvalidSubcommand if let Some((word, hint)) = elsewhere(args) => {
            Err(Failure::Refused(anyhow!("there is no podmux {word}: {hint}")))
        }
        _ => {
            let subcommand = args.get(1).and_then(|arg| arg.to_str());
            let subcommand = subcommand.filter(|name| command().find_subcommand(name).is_some());
            let help = subcommand.map(|name| format!("{name} --help"));
            let help = help.as_deref().unwrap_or("--help");
            if let (Some("run"), Some(InvalidValue { flag, problem, .. })) =
                (subcommand, InvalidValue::of(error))
            {
                // The same words as for a value of the environment or the config file.
                return Err(Failure::Refused(anyhow!("--{flag}: {problem}")));
            }
            let hint = hints::hint(subcommand.unwrap_or_default(), error);
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            Err(Failure::Refused(anyhow!("{}{hint}; see podmux {help}", explanation(error))))
        }
    }
}

/// The subcommand of another program that was given, and what to use for it.
fn elsewhere(args: &[OsString]) -> Option<(&str, &'static str)> {
    let word = args.get(1)?.to_str()?;
    let (_, hint) = ELSEWHERE.iter().find(|(words, _)| words.contains(&word))?;
    Some((word, hint))
}

/// An error of clap on one line, with its tips and without the usage.
fn explanation(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut line = String::new();
    // The tip how to give a flag as a value is left out.
    let is_useful = |part: &&str| !part.is_empty() && !part.starts_with("tip: to pass '");
    let parts = text.lines().map(str::trim).filter(is_useful);
    for part in parts.take_while(|part| !part.starts_with("Usage:") && !part.starts_with("For more")) {
        let joint = match line.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) => "; ",
        };
        line = line + joint + part.strip_prefix("error: ").unwrap_or(part);
    }
    line
}
