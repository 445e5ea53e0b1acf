//! The command line: its definition, its errors of one line each, and one file for each subcommand.

use std::{
    ffi::OsString,
    fmt,
    io::{self, Write},
};

use anyhow::anyhow;
use clap::{CommandFactory as _, FromArgMatches as _, error::ErrorKind};

use crate::{
    settings::{self, Environment, InvalidValue},
    systemd::Manager,
    telemetry,
};

mod apply;
pub mod completion;
mod connection;
mod delete;
mod get;
mod manifests;
mod run;
pub mod status;
pub mod table;
mod terminal;
mod validate;
pub mod yaml;

/// Pods from every source of a node, as one ordered stream of updates
///
/// podmux collects the pod manifests for one node from files, HTTP, a URL and an API
/// server, merges them, and publishes every change once, in order, as JSON lines.
#[derive(clap::Parser)]
#[command(name = "podmux", version, after_long_help = EXAMPLES, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
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

Exit codes: 0 done, or stopped on request; 1 failed; 2 invalid call or settings, with a line that says why.";

#[derive(clap::Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Validate(validate::Args),
    Get(get::Args),
    Apply(apply::Args),
    Delete(delete::Args),
    Completion(completion::Args),
}

/// Why the exit code is not 0.
#[derive(Debug)]
pub enum Failure {
    /// The command was not run: exit code 2.
    Refused(anyhow::Error),
    /// The command failed: exit code 1.
    Failed(anyhow::Error),
}

impl Failure {
    /// The exit code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => 2,
            Self::Failed(_) => 1,
        }
    }
}

impl Failure {
    /// The number of the system's error, if there is one.
    fn errno(&self) -> Option<i32> {
        let (Self::Refused(error) | Self::Failed(error)) = self;
        error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
    }
}

impl fmt::Display for Failure {
    /// The whole chain of causes, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(error) | Self::Failed(error)) = self;
        f.write_str(&one_line(error))
    }
}

/// The whole chain of causes, on one line.
fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Runs the program with its arguments (its own name first) and environment, and returns the exit
/// code. An error is printed on standard error in one line.
pub fn main(
    args: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let (environment, unusable) = environment(variables);
    work(&args, &environment, unusable).unwrap_or_else(|failure| {
        telemetry::say(tracing::Level::ERROR, &failure.to_string(), &environment);
        failure.code()
    })
}

fn work(args: &[OsString], environment: &Environment, unusable: Option<Failure>) -> Result<u8, Failure> {
    let parsed = command().try_get_matches_from(args);
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
                run::tell_failure(&Manager::named_in(environment), failure);
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
        Command::Apply(args) => apply::run(&args, environment),
        Command::Delete(args) => delete::run(&args, environment),
        Command::Completion(args) => completion::run(&args),
    }
}

/// The definition of the command line, with each setting's default and variable in its help.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
        .mut_subcommand("run", |run| run.mut_args(settings::explain))
        .mut_subcommand("validate", |validate| validate.mut_arg("node_name", settings::explain))
}

/// The variables that are text. A setting that is not UTF-8 is an error, other variables are ignored.
fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> (Environment, Option<Failure>) {
    let (mut environment, mut unusable) = (Environment::new(), None);
    for (name, value) in variables {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => drop(environment.insert(name, value)),
            Err(_) if name.starts_with("PODMUX_") => {
                unusable = Some(Failure::Refused(anyhow!("{name}: its value is not UTF-8 text")));
            }
            Err(_) => {}
        }
    }
    (environment, unusable)
}

/// Prints help and version. Everything else that clap rejects becomes an error of one line.
fn help_or_refusal(error: &clap::Error, args: &[OsString]) -> Result<u8, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed standard output is not an error here.
            let _ = error.print();
            Ok(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(2)
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
            Err(Failure::Refused(anyhow!("{}; see podmux {help}", explanation(error))))
        }
    }
}

/// Clap's explanation in one line.
fn explanation(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut line = String::new();
    let parts = text.lines().map(str::trim).filter(|part| !part.is_empty());
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

/// Standard output until its reader closes it.
///
/// A closed pipe is not an error (`| head`), but the exit code must still be right, so the
/// command continues.
struct Output {
    out: Option<io::BufWriter<io::StdoutLock<'static>>>,
}

impl Output {
    fn new() -> Self {
        Self { out: Some(io::BufWriter::new(io::stdout().lock())) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.attempt(|out| out.write_all(bytes))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.attempt(Write::flush)
    }

    fn attempt(
        &mut self,
        write: impl FnOnce(&mut io::BufWriter<io::StdoutLock<'static>>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let Some(out) = &mut self.out else { return Ok(()) };
        match write(out) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                // Without its buffer, which would be written again when it is dropped.
                self.out.take().map(io::BufWriter::into_parts);
                Ok(())
            }
            Err(error) => Err(Failure::Failed(anyhow::Error::new(error).context("standard output"))),
        }
    }
}
