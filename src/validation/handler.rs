//! What is done to a container from outside: probes, and what runs after its start and before its end.

use serde_json::Value;

use super::{
    container::Pod,
    fields::{Object, given_text, list, number, object, objects, text},
    judge::Judge,
    syntax,
};
use crate::pod::FieldPath;

const ONE_HANDLER: &str = "may not specify more than 1 handler type";

/// Every signal that a container on Linux may be stopped with.
const SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
const WINDOWS_SIGNALS: [&str; 2] = ["SIGKILL", "SIGTERM"];

pub(super) fn lifecycle_and_probes(
    container: &Object,
    path: &FieldPath<'_>,
    pod: &Pod<'_>,
    judge: &mut Judge<'_>,
) {
    if let Some(lifecycle) = object(container, "lifecycle") {
        self::lifecycle(lifecycle, &path.field("lifecycle"), pod, judge);
    }
    for field in ["livenessProbe", "startupProbe"] {
        if let Some(probe) = object(container, field) {
            let path = path.field(field);
            self::probe(probe, &path, judge);
            if let Some(threshold) = number(probe, "successThreshold").filter(|threshold| *threshold != 1) {
                judge.invalid(&path.field("successThreshold"), threshold, "must be 1");
            }
        }
    }
    if let Some(probe) = object(container, "readinessProbe") {
        let path = path.field("readinessProbe");
        self::probe(probe, &path, judge);
        if let Some(grace) = number(probe, "terminationGracePeriodSeconds") {
            let why = "must not be set for readinessProbes";
            judge.invalid(&path.field("terminationGracePeriodSeconds"), grace, why);
        }
    }
}

fn lifecycle(lifecycle: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
    for field in ["postStart", "preStop"] {
        if let Some(handler) = object(lifecycle, field) {
            self::handler(
                handler,
                &["exec", "httpGet", "tcpSocket", "sleep"],
                &path.field(field),
                pod.grace,
                judge,
            );
        }
    }
    if let Some(signal) = given_text(lifecycle, "stopSignal") {
        let path = path.field("stopSignal");
        match pod.os {
            None => judge.forbidden(&path, "may not be set for containers with empty `spec.os.name`"),
            Some("windows") => judge.one_of(&path, signal, &WINDOWS_SIGNALS),
            Some("linux") => judge.one_of(&path, signal, &SIGNALS),
            Some(_) => {}
        }
    }
}

fn probe(probe: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], path, None, judge);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        if let Some(number) = number(probe, field) {
            judge.not_negative(&path.field(field), number);
        }
    }
    if let Some(grace) = number(probe, "terminationGracePeriodSeconds").filter(|grace| *grace <= 0) {
        judge.invalid(&path.field("terminationGracePeriodSeconds"), grace, "must be greater than 0");
    }
}

/// One way to act on a container: of those given the first is judged, and the rest is one too many.
fn handler(
    handler: &Object,
    kinds: &[&str],
    path: &FieldPath<'_>,
    grace: Option<i64>,
    judge: &mut Judge<'_>,
) {
    let mut given = kinds.iter().filter_map(|kind| Some((*kind, path.field(kind), object(handler, kind)?)));
    let Some((kind, first_path, action)) = given.next() else {
        return judge.required(path, "must specify a handler type");
    };
    match kind {
        "exec" if list(action, "command").is_empty() => judge.required(&first_path.field("command"), ""),
        "httpGet" => http_get(action, &first_path, judge),
        "tcpSocket" => port(action, &first_path.field("port"), judge),
        "grpc" => port_number(number(action, "port").unwrap_or_default(), &first_path.field("port"), judge),
        "sleep" => sleep(action, &first_path, grace, judge),
        _ => {}
    }
    for (_, path, _) in given {
        judge.forbidden(&path, ONE_HANDLER);
    }
}

fn http_get(action: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    judge.not_empty(&path.field("path"), text(action, "path"));
    port(action, &path.field("port"), judge);
    judge.one_of(&path.field("scheme"), text(action, "scheme"), &["HTTP", "HTTPS"]);
    objects(&path.field("httpHeaders"), action, "httpHeaders", |path, header| {
        let name = text(header, "name");
        judge.check(&path.unnamed(), name, syntax::header_name(name));
    });
}

fn sleep(action: &Object, path: &FieldPath<'_>, grace: Option<i64>, judge: &mut Judge<'_>) {
    let seconds = number(action, "seconds").unwrap_or_default();
    if let Some(grace) = grace
        && (seconds < 0 || seconds > grace)
    {
        let why = format!("must be from 0 to terminationGracePeriodSeconds ({grace})");
        judge.invalid(path, seconds, &why);
    }
}

/// The port of an action: a number, or the name of one of the container's ports.
fn port(action: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    match action.get("port") {
        Some(Value::String(name)) => judge.check(path, name, syntax::port_name(name)),
        port => port_number(port.and_then(Value::as_i64).unwrap_or_default(), path, judge),
    }
}

pub(super) fn port_number(number: i64, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    if !(1..=65_535).contains(&number) {
        judge.invalid(path, number, "must be between 1 and 65535, inclusive");
    }
}
