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

pub(super) fn lifecycle(lifecycle: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, judge: &mut Judge<'_>) {
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

pub(super) fn probe(probe: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], path, None, judge);
    for (field, value) in probe {
        let Some(number) = value.as_i64() else { continue };
        if field == "terminationGracePeriodSeconds" {
            if number <= 0 {
                judge.invalid(&path.field(field), number, "must be greater than 0");
            }
        } else {
            judge.not_negative(&path.field(field), number);
        }
    }
}

/// One way to act on a container: of those given the first is judged, and the rest is one too many.
fn handler(
    handler: &Object,
    kinds: &[&'static str],
    path: &FieldPath<'_>,
    grace: Option<i64>,
    judge: &mut Judge<'_>,
) {
    let given = || kinds.iter().filter_map(|kind| Some((*kind, object(handler, kind)?)));
    let Some((kind, action)) = given().next() else {
        return judge.required(path, "must specify a handler type");
    };
    let path_of_kind = path.field(kind);
    match kind {
        "exec" if list(action, "command").is_empty() => judge.required(&path_of_kind.field("command"), ""),
        "httpGet" => http_get(action, &path_of_kind, judge),
        "tcpSocket" => port(action, &path_of_kind.field("port"), judge),
        "grpc" => port_number(number(action, "port").unwrap_or_default(), &path_of_kind.field("port"), judge),
        "sleep" => sleep(action, &path_of_kind, grace, judge),
        _ => {}
    }
    for (kind, _) in given().skip(1) {
        judge.forbidden(&path.field(kind), ONE_HANDLER);
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
