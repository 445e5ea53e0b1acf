//! The probes of a container, and its hooks after the start and before the stop.

use serde_json::Value;

use super::{
    at::At,
    context::PodContext,
    fields::{Object, given_text, list, number, object, text},
    syntax,
};

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

pub(super) fn lifecycle(lifecycle: &Object, at: &At<'_>, pod: &PodContext<'_>) {
    for field in ["postStart", "preStop"] {
        at.object(lifecycle, field, |at, handler| self::handler(handler, at, pod.grace));
    }
    if let Some(signal) = given_text(lifecycle, "stopSignal") {
        let at = at.field("stopSignal");
        let signals = match pod.os {
            None => {
                return at.forbidden("may not be set for containers with empty `spec.os.name`");
            }
            Some("windows") => WINDOWS_SIGNALS,
            Some("linux") => SIGNALS,
            Some(_) => return,
        };
        at.one_of(signal, &signals.split(' ').collect::<Vec<_>>());
    }
}

/// Validates a probe. Only a readiness probe may need several successes.
pub(super) fn probe(probe: &Object, is_readiness: bool, at: &At<'_>) {
    handler(probe, at, None);
    for (field, value) in probe {
        let Some(number) = value.as_i64() else { continue };
        let at = at.field(field);
        if field == "terminationGracePeriodSeconds" {
            if number <= 0 {
                at.invalid(number, "must be greater than 0");
            }
            if is_readiness {
                at.invalid(number, "must not be set for readinessProbes");
            }
        } else {
            at.not_negative(number);
            if field == "successThreshold" && number != 1 && !is_readiness {
                at.invalid(number, "must be 1");
            }
        }
    }
}

/// The handler types, in the order in which the API looks for the first.
const ACTIONS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// Validates a handler. If it has several types, the first is validated and the others are rejected.
fn handler(handler: &Object, at: &At<'_>, grace: Option<i64>) {
    let mut given = ACTIONS.iter().filter_map(|kind| Some((*kind, object(handler, kind)?)));
    let Some((kind, action)) = given.next() else {
        return at.required("must specify a handler type");
    };
    self::action(kind, action, &at.field(kind), grace);
    for (kind, _) in given {
        at.field(kind).forbidden("may not specify more than 1 handler type");
    }
}

fn action(kind: &str, action: &Object, at: &At<'_>, grace: Option<i64>) {
    match kind {
        "exec" if list(action, "command").is_empty() => at.field("command").required(""),
        "httpGet" => http_get(action, at),
        "tcpSocket" => port(action, &at.field("port")),
        "grpc" => port_number(number(action, "port").unwrap_or_default(), &at.field("port")),
        "sleep" => sleep(action, at, grace),
        _ => {}
    }
}

fn http_get(action: &Object, at: &At<'_>) {
    at.field("path").not_empty(text(action, "path"));
    port(action, &at.field("port"));
    at.field("scheme").one_of(text(action, "scheme"), &["HTTP", "HTTPS"]);
    at.objects(action, "httpHeaders", |at, header| {
        let name = text(header, "name");
        at.unnamed().check(name, syntax::header_name);
    });
}

fn sleep(action: &Object, at: &At<'_>, grace: Option<i64>) {
    let seconds = number(action, "seconds").unwrap_or_default();
    if let Some(grace) = grace
        && (seconds < 0 || seconds > grace)
    {
        let why = format!("must be from 0 to terminationGracePeriodSeconds ({grace})");
        at.invalid(seconds, &why);
    }
}

/// Validates the port of an action: a number, or the name of a port.
fn port(action: &Object, at: &At<'_>) {
    match action.get("port") {
        Some(Value::String(name)) => at.check(name, syntax::port_name),
        port => port_number(port.and_then(Value::as_i64).unwrap_or_default(), at),
    }
}

pub(super) fn port_number(number: i64, at: &At<'_>) {
    at.in_range(number, 1..=65_535, "must be between 1 and 65535, inclusive");
}
