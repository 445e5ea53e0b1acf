//! `podmux run`: the agent.

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
};

use clap::ArgMatches;

use super::failure::{Failure, one_line};
use crate::{
    agent::{self, AgentError},
    host::Disk,
    registry,
    server::PassedSocket,
    settings::{CommandLine, Environment, Flags, Settings},
    systemd::{Manager, State},
    telemetry::{self, Log},
};

/// Run the agent: read pod manifests and publish every change as one ordered stream
#[derive(clap::Args)]
#[command(long_about = ABOUT, after_long_help = after_help())]
pub(super) struct Args {
    #[command(flatten)]
    _flags: Flags,

    /// Check the settings and the files that they name, print the first invalid setting, or every file that
    /// cannot be used, and exit without starting: 0 if all are valid, else 2. Addresses, sockets from systemd and the state
    /// directory are not checked
    #[arg(long, help_heading = "Process")]
    check: bool,
}

const ABOUT: &str = "\
Run the agent: read pod manifests and publish every change as one ordered stream

Every flag can also be given in the environment (--sink is PODMUX_SINK, with commas between several \
values; PODMUX_MANIFEST_URL_HEADER has one header per line) and as a field of --config FILE \
(--file-check-frequency is fileCheckFrequency). A flag takes precedence over the environment, and the \
environment over the file.

SIGTERM and SIGINT stop the agent. SIGHUP reloads settings, certificates, tokens and manifests; check \
the settings with --check before.";

const EXAMPLES: &str = "\
Examples:
  Watch a directory, and print each change: a row on a terminal, otherwise one JSON object per line:
    podmux run --pod-manifest-path /etc/kubernetes/manifests

  Use the kubelet's own configuration, and append to a file:
    podmux run --config /var/lib/kubelet/config.yaml --sink jsonl=/var/log/podmux.jsonl

  The same settings in a file of podmux's own:
    kind: PodmuxConfiguration
    podManifestPath: /etc/kubernetes/manifests
    sink: [jsonl=/var/log/podmux.jsonl]

  Send each update to a server, with a token from a file:
    podmux run --config FILE --sink webhook=https://hub.example/pods,token-file=/etc/podmux/hub-token

Durations are written as in Go: 500ms, 20s, 1m30s, 1h.";

/// The examples and the options of the sinks.
fn after_help() -> String {
    let option = |[sink, target, name, _, value, help]: [String; 6]| {
        format!("\n  {sink}{target},{name}={value}\n    {help}")
    };
    let options: String = registry::Config::options().map(option).collect();
    format!(
        "{EXAMPLES}\n\nOptions of sinks, in a config file fields of an object {{kind: …, target: …}}:{options}"
    )
}

/// Runs the agent, or checks its settings. `matches` are the flags of `args` as text.
pub(super) fn run(args: &Args, matches: &ArgMatches, environment: &Environment) -> Result<u8, Failure> {
    let mut command_line = CommandLine::of(matches);
    if args.check {
        // systemd passes sockets to the agent only.
        command_line.may_be_passed = true;
        return check(&command_line, environment);
    }
    if io::stdout().is_terminal() {
        let color = if telemetry::colours(&io::stdout(), environment) { "yes" } else { "no" };
        command_line.terminal_sink = registry::Config::parse(&format!("table,color={color}")).ok();
    }
    let manager = Manager::from_environment(environment);
    serve(command_line, environment, &manager).inspect_err(|failure| tell_failure(&manager, failure))
}

/// Prints the first invalid setting, or each error that a start or a reload would report of files.
fn check(command_line: &CommandLine, environment: &Environment) -> Result<u8, Failure> {
    let settings = Settings::load(command_line, environment, &Disk::default()).map_err(Failure::refused)?;
    for warning in settings.warnings.iter().chain(&agent::warnings(&settings)) {
        telemetry::print(tracing::Level::WARN, warning, environment);
    }
    let problems = agent::check(&settings);
    for problem in &problems {
        telemetry::print(tracing::Level::ERROR, &one_line(problem), environment);
    }
    Ok(if problems.is_empty() { 0 } else { 2 })
}

/// Runs the agent. An error while it runs is in the log, and only an earlier one is a failure.
fn serve(mut command_line: CommandLine, environment: &Environment, manager: &Manager) -> Result<u8, Failure> {
    // Before the log has its thread, because this changes the environment.
    let sockets = PassedSocket::take(environment).map_err(Failure::refused)?;
    command_line.passed = sockets.iter().map(|socket| socket.passed.clone()).collect();
    let load = {
        let environment = environment.clone();
        move || Settings::load(&command_line, &environment, &Disk::default()).map_err(anyhow::Error::from)
    };
    let settings = load().map_err(Failure::Refused)?;
    let log = Log::start(&settings.log, environment).map_err(Failure::failed)?;
    match agent::run(&settings, sockets, Arc::new(load), &log, manager) {
        Ok(()) => {
            // Again: the notifier may have had no time to send STOPPING before the end.
            manager.notify_last(&[State::Stopping, State::Status("stopped".to_owned())]);
            Ok(0)
        }
        Err(AgentError::Refused(error)) => Err(Failure::Refused(error)),
        Err(AgentError::Failed(error)) => {
            // The log is still open here, and its format is the configured one.
            tracing::error!("{error:#}");
            tell_failure(manager, &Failure::Failed(error));
            Ok(1)
        }
    }
}

/// Sends the service manager the line that is printed on a terminal.
pub(super) fn tell_failure(manager: &Manager, failure: &Failure) {
    let mut message = vec![State::Status(failure.to_string())];
    message.extend(failure.errno().map(State::Errno));
    manager.notify_last(&message);
}
