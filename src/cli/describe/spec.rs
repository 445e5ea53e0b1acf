//! What `podmux describe pod` shows of a pod's spec: containers and volumes.
//!
//! Values of environment variables and headers of probes may be secrets: they are never shown.

use serde_json::Value;

use super::page::{MAX_LINES, Page};
use crate::cli::output::{first_of, items, number, pairs, text};

/// The longest value of a field that a manifest makes as long as it likes, in characters.
const MAX_TEXT: usize = 500;
/// The lists of containers, the lists of their statuses, and their headings.
const CONTAINERS: [(&str, &str, &str); 3] = [
    ("initContainers", "initContainerStatuses", "Init containers"),
    ("containers", "containerStatuses", "Containers"),
    ("ephemeralContainers", "ephemeralContainerStatuses", "Ephemeral containers"),
];

pub(super) fn containers(page: &mut Page, pod: &Value) {
    for (list, statuses, heading) in CONTAINERS {
        let containers = items(&pod["spec"][list]);
        if containers.is_empty() {
            continue;
        }
        page.begin(heading);
        for one in containers.iter().take(MAX_LINES) {
            let mut statuses = items(&pod["status"][statuses]).iter();
            let status = statuses.find(|status| status["name"] == one["name"]).unwrap_or(&Value::Null);
            page.begin(text(&one["name"]));
            container(page, one);
            state(page, status);
            page.end();
        }
        let more = containers.len().saturating_sub(MAX_LINES);
        if more > 0 {
            page.field("and more", &more.to_string());
        }
        page.end();
    }
}

fn container(page: &mut Page, container: &Value) {
    page.field("Image", text(&container["image"]));
    for (name, field) in [("Command", "command"), ("Args", "args")] {
        page.field(name, &words(&container[field]));
    }
    page.field("Ports", &joined(&container["ports"], port));
    page.field("Env", &joined(&container["env"], variable));
    page.field("Env from", &joined(&container["envFrom"], variables));
    page.field("Mounts", &joined(&container["volumeMounts"], mount));
    for (name, field) in [("Limits", "limits"), ("Requests", "requests")] {
        let quantities = pairs(&container["resources"][field]).take(MAX_LINES);
        page.field(name, &quantities.collect::<Vec<_>>().join(", "));
    }
    for (name, field) in
        [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
    {
        page.field(name, &probe(&container[field]));
    }
}

fn state(page: &mut Page, status: &Value) {
    for (name, state) in [("State", &status["state"]), ("Last state", &status["lastState"])] {
        let Some((kind, state)) = state.as_object().and_then(|states| states.iter().next()) else { continue };
        let code = state["exitCode"].as_i64().map(|code| format!("exit code {code}"));
        let begin = page.moment(&state["startedAt"]);
        let end = page.moment(&state["finishedAt"]);
        let times = [("since", begin), ("until", end)];
        let times = times.into_iter().filter(|(_, time)| !time.is_empty());
        let (reason, message) = (text(&state["reason"]), text(&state["message"]));
        // A runtime's message may begin with its reason.
        let reason = Some(reason).filter(|reason| !message.starts_with(&format!("{reason}:")));
        let parts = [reason.map(str::to_owned), code, Some(cut(message))];
        let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
        let parts = parts.chain(times.map(|(word, time)| format!("{word} {time}")));
        let parts: Vec<String> = std::iter::once(kind.clone()).chain(parts).collect();
        page.field(name, &parts.join(", "));
    }
    page.field("Restarts", &number(&status["restartCount"]));
}

pub(super) fn volumes(page: &mut Page, spec: &Value) {
    let volume = |volume: &Value| {
        let kind = volume.as_object().into_iter().flatten().find(|(field, _)| *field != "name");
        let (kind, details) = kind.map_or(("", &Value::Null), |(kind, details)| (&**kind, details));
        let named = ["path", "secretName", "name", "claimName", "server", "reference", "driver", "medium"];
        let detail = named.into_iter().map(|field| text(&details[field])).find(|detail| !detail.is_empty());
        format!("{}: {kind} {}", text(&volume["name"]), detail.unwrap_or_default()).trim_end().to_owned()
    };
    page.list("Volumes", &items(&spec["volumes"]).iter().map(volume).collect::<Vec<_>>());
}

/// The texts of some items on one line.
fn joined(list: &Value, shown: fn(&Value) -> String) -> String {
    first_of(items(list).iter().map(shown), MAX_LINES).join(", ")
}

/// The words of a command as a list of JSON: it shows where each begins and ends.
fn words(command: &Value) -> String {
    if items(command).is_empty() { String::new() } else { cut(&command.to_string()) }
}

fn cut(value: &str) -> String {
    match value.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

fn port(port: &Value) -> String {
    let name = Some(text(&port["name"])).filter(|name| !name.is_empty());
    let name = name.map(|name| format!("{name} ")).unwrap_or_default();
    let address = Some(text(&port["hostIP"])).filter(|address| !address.is_empty());
    let address = address.map(|address| format!("{address}:")).unwrap_or_default();
    let host = port["hostPort"].as_u64().filter(|host| *host > 0);
    let host = host.map(|host| format!(" (host {address}{host})")).unwrap_or_default();
    format!("{name}{}/{}{host}", port["containerPort"], text(&port["protocol"]))
}

/// The name of a variable, and where its value is from if the manifest does not have it.
fn variable(variable: &Value) -> String {
    let from = &variable["valueFrom"];
    let [secret, map, file] = ["secretKeyRef", "configMapKeyRef", "fileKeyRef"].map(|kind| &from[kind]);
    let origin = match text(&variable["name"]) {
        _ if secret.is_object() => format!(" (secret {}: {})", text(&secret["name"]), text(&secret["key"])),
        _ if map.is_object() => format!(" (config map {}: {})", text(&map["name"]), text(&map["key"])),
        _ if file.is_object() => format!(" (file {}: {})", text(&file["path"]), text(&file["key"])),
        _ if from.is_object() => {
            let field = text(&from["fieldRef"]["fieldPath"]);
            format!(
                " ({})",
                if field.is_empty() { text(&from["resourceFieldRef"]["resource"]) } else { field }
            )
        }
        _ => String::new(),
    };
    format!("{}{origin}", text(&variable["name"]))
}

fn variables(from: &Value) -> String {
    let (kind, name) = match (&from["secretRef"]["name"], &from["configMapRef"]["name"]) {
        (Value::String(name), _) => ("secret", name.as_str()),
        (_, name) => ("config map", text(name)),
    };
    format!("{kind} {name}")
}

fn mount(mount: &Value) -> String {
    let read_only = if mount["readOnly"] == true { " (read-only)" } else { "" };
    format!("{} from {}{read_only}", text(&mount["mountPath"]), text(&mount["name"]))
}

/// What a probe does and how often. Its headers may have secrets.
fn probe(probe: &Value) -> String {
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let [http, tcp, grpc, exec] = ["httpGet", "tcpSocket", "grpc", "exec"].map(|kind| &probe[kind]);
    let what = if http.is_object() {
        let scheme = text(&http["scheme"]).to_lowercase();
        format!("GET {scheme}://{}:{}{}", text(&http["host"]), shown(&http["port"]), cut(text(&http["path"])))
    } else if tcp.is_object() {
        format!("TCP {}:{}", text(&tcp["host"]), shown(&tcp["port"]))
    } else if grpc.is_object() {
        format!("gRPC :{} {}", shown(&grpc["port"]), text(&grpc["service"])).trim_end().to_owned()
    } else if exec.is_object() {
        format!("exec {}", words(&exec["command"]))
    } else {
        return String::new();
    };
    let number = |field: &str| probe[field].as_i64().unwrap_or_default();
    format!(
        "{what}, every {}s, timeout {}s, fails after {}",
        number("periodSeconds"),
        number("timeoutSeconds"),
        number("failureThreshold"),
    )
}
