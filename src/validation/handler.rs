//! The probes of a container, and its hooks after the start and before the stop.

use serde_json::Value;

use super::{
    context::PodContext,
    errors::Errors,
    fields::{Object, given_text, list, number, object, objects, text},
    syntax,
};
use crate::pod::FieldPath;

/// The signals that may stop a container on Linux.
const SIGNALS: &str = "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL \
    SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMAX-1 SIGRTMAX-10 SIGRTMAX-11 SIGRTMAX-12 \
    SIGRTMAX-13 SIGRTMAX-14 SIGRTMAX-2 SIGRTMAX-3 SIGRTMAX-4 SIGRTMAX-5 SIGRTMAX-6 SIGRTMAX-7 SIGRTMAX-8 \
    SIGRTMAX-9 SIGRTMIN SIGRTMIN+1 SIGRTMIN+10 SIGRTMIN+11 SIGRTMIN+12 SIGRTMIN+13 SIGRTMIN+14 \
    SIGRTMIN+15 SIGRTMIN+2 SIGRTMIN+3 SIGRTMIN+4 SIGRTMIN+5 SIGRTMIN+6 SIGRTMIN+7 SIGRTMIN+8 SIGRTMIN+9 \
    SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 \
    SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ";
/// The signals that may stop a container on Windows.
const WINDOWS_SIGNALS: &str = "SIGKILL SIGTERM";

pub(super) fn lifecycle(
    lifecycle: &Object,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    for field in ["postStart", "preStop"] {
        if let Some(handler) = object(lifecycle, field) {
            self::handler(handler, &path.field(field), pod.grace, errors);
        }
    }
    if let Some(signal) = given_text(lifecycle, "stopSignal") {
        let path = path.field("stopSignal");
        let signals = match pod.os {
            None => {
                return errors.forbidden(&path, "may not be set for containers with empty `spec.os.name`");
            }
            Some("windows") => WINDOWS_SIGNALS,
            Some("linux") => SIGNALS,
            Some(_) => return,
        };
        errors.one_of(&path, signal, &signals.split(' ').collect::<Vec<_>>());
    }
}

/// Validates a probe. Only a readiness probe may need several successes.
pub(super) fn probe(probe: &Object, is_readiness: bool, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    handler(probe, path, None, errors);
    for (field, value) in probe {
        let Some(number) = value.as_i64() else { continue };
        let path = path.field(field);
        if field == "terminationGracePeriodSeconds" {
            if number <= 0 {
                errors.invalid(&path, number, "must be greater than 0");
            }
            if is_readiness {
                errors.invalid(&path, number, "must not be set for readinessProbes");
            }
        } else {
            errors.not_negative(&path, number);
            if field == "successThreshold" && number != 1 && !is_readiness {
                errors.invalid(&path, number, "must be 1");
            }
        }
    }
}

/// The handler types, in the order in which the API looks for the first.
const ACTIONS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// Validates a handler. If it has several types, the first is validated and the others are rejected.
fn handler(handler: &Object, path: &FieldPath<'_>, grace: Option<i64>, errors: &mut Errors<'_>) {
    let mut given = ACTIONS.iter().filter_map(|kind| Some((*kind, object(handler, kind)?)));
    let Some((kind, action)) = given.next() else {
        return errors.required(path, "must specify a handler type");
    };
    self::action(kind, action, &path.field(kind), grace, errors);
    for (kind, _) in given {
        errors.forbidden(&path.field(kind), "may not specify more than 1 handler type");
    }
}

fn action(kind: &str, action: &Object, path: &FieldPath<'_>, grace: Option<i64>, errors: &mut Errors<'_>) {
    match kind {
        "exec" if list(action, "command").is_empty() => errors.required(&path.field("command"), ""),
        "httpGet" => http_get(action, path, errors),
        "tcpSocket" => port(action, &path.field("port"), errors),
        "grpc" => port_number(number(action, "port").unwrap_or_default(), &path.field("port"), errors),
        "sleep" => sleep(action, path, grace, errors),
        _ => {}
    }
}

fn http_get(action: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    errors.not_empty(&path.field("path"), text(action, "path"));
    port(action, &path.field("port"), errors);
    errors.one_of(&path.field("scheme"), text(action, "scheme"), &["HTTP", "HTTPS"]);
    objects(&path.field("httpHeaders"), action, "httpHeaders", |path, header| {
        let name = text(header, "name");
        errors.check(&path.unnamed(), name, syntax::header_name(name));
    });
}

fn sleep(action: &Object, path: &FieldPath<'_>, grace: Option<i64>, errors: &mut Errors<'_>) {
    let seconds = number(action, "seconds").unwrap_or_default();
    if let Some(grace) = grace
        && (seconds < 0 || seconds > grace)
    {
        let why = format!("must be from 0 to terminationGracePeriodSeconds ({grace})");
        errors.invalid(path, seconds, &why);
    }
}

/// Validates the port of an action: a number, or the name of a port.
fn port(action: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    match action.get("port") {
        Some(Value::String(name)) => errors.check(path, name, syntax::port_name(name)),
        port => port_number(port.and_then(Value::as_i64).unwrap_or_default(), path, errors),
    }
}

pub(super) fn port_number(number: i64, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    errors.in_range(path, number, 1..=65_535, "must be between 1 and 65535, inclusive");
}
