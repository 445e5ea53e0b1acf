//! The sources of volumes: one function for each source with rules of its own.

use serde_json::Value;

use super::{
    at::At,
    fields::{Object, given_text, is_true, list, number, object, text},
    syntax,
};

/// The most bytes of an iSCSI volume's name, a colon and its portal together.
pub(super) const MAX_ISCSI_NAME: usize = 64;
/// The longest name of a CSI driver, in bytes.
const MAX_CSI_DRIVER: usize = 63;
/// The longest name of a Quobyte tenant, in bytes.
const MAX_QUOBYTE_TENANT: usize = 64;
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Requires texts and lists that are not empty.
pub(super) fn require(source: &Object, fields: &[&str], at: &At<'_>) {
    for field in fields {
        let is_filled = match source.get(*field) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            _ => false,
        };
        if !is_filled {
            at.field(field).required("");
        }
    }
}

fn range(source: &Object, field: &str, at: &At<'_>) {
    if let Some(number) = number(source, field) {
        at.field(field).in_range(number, 0..=255, "must be between 0 and 255, inclusive");
    }
}

/// Validates the mode of files.
pub(super) fn mode(source: &Object, field: &str, at: &At<'_>) {
    if let Some(mode) = number(source, field) {
        at.field(field).in_range(mode, 0..=0o777, MODE);
    }
}

pub(super) fn empty_dir(source: &Object, at: &At<'_>) {
    if text(source, "sizeLimit").starts_with('-') {
        at.field("sizeLimit").forbidden("the size cannot be negative");
    }
}

pub(super) fn host_path(source: &Object, at: &At<'_>) {
    at.require_text(source, "path", syntax::no_backsteps);
    if !text(source, "path").is_empty() {
        at.field("type").one_of(text(source, "type"), &HOST_PATH_TYPES);
    }
}

pub(super) fn git_repo(source: &Object, at: &At<'_>) {
    at.check_text(source, "directory", syntax::descending);
}

pub(super) fn gce_disk(source: &Object, at: &At<'_>) {
    let at = at.unnamed();
    let at = at.named("persistentDisk");
    require(source, &["pdName"], &at);
    range(source, "partition", &at);
}

pub(super) fn aws_disk(source: &Object, at: &At<'_>) {
    range(source, "partition", at);
}

/// Validates the keys of a Secret or `ConfigMap` that become files.
pub(super) fn keys(source: &Object, at: &At<'_>) {
    mode(source, "defaultMode", at);
    at.objects(source, "items", |at, item| key_to_path(item, at));
}

/// Validates a key and the path of the file for its value.
pub(super) fn key_to_path(item: &Object, at: &At<'_>) {
    require(item, &["key", "path"], at);
    at.check_text(item, "path", syntax::local_path);
    mode(item, "mode", at);
}

pub(super) fn nfs(source: &Object, at: &At<'_>) {
    let place = text(source, "path");
    if !place.starts_with('/') {
        at.field("path").invalid(place, "must be an absolute path");
    }
}

pub(super) fn iscsi(source: &Object, at: &At<'_>) {
    at.check_filled(source, "iqn", iscsi_name);
    range(source, "lun", at);
    let needs_secret = is_true(source, "chapAuthDiscovery") || is_true(source, "chapAuthSession");
    if needs_secret && !source.contains_key("secretRef") {
        at.field("secretRef").required("");
    }
    if let Some(initiator) = given_text(source, "initiatorName") {
        let at = at.field("initiatorName").unnamed();
        at.named("initiatorname").check(initiator, iscsi_name);
    }
}

/// Checks an iSCSI name, which has one of the three forms of RFC 3720.
fn iscsi_name(name: &str) -> syntax::SyntaxResult {
    let identifier = |rest: &str, length| {
        // Any one character may separate the form and the identifier.
        let mut rest = rest.chars();
        rest.next().is_some_and(|separator| separator != '\n')
            && rest.as_str().len() == length
            && rest.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let is_valid = if name.starts_with("iqn") {
        is_qualified_iscsi_name(name)
    } else if let Some(rest) = name.strip_prefix("eui") {
        identifier(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa") {
        identifier(rest, 32)
    } else {
        return Err("must begin with iqn, eui or naa");
    };
    if is_valid { Ok(()) } else { Err("must be an iSCSI name (iqn.2026-11.com.example:disk)") }
}

/// Whether a name ends like `iqn.2026-11.com.example:disk`: year, month, domain, colon and
/// text. As in Go anything may precede it. Visits the name once.
fn is_qualified_iscsi_name(name: &str) -> bool {
    // Only ASCII white space counts, as in Go's regular expressions.
    let is_bad = |c| matches!(c, ',' | ';' | '*' | '&' | '$' | '|' | ' ' | '\t' | '\n' | '\r' | '\x0c');
    let unique_from = name.rfind(is_bad).map_or(0, |at| at + 1);
    let in_domain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let mut begin = 0;
    name.match_indices(':').any(|(colon, _)| {
        let front = &name[begin..colon];
        begin = colon + 1;
        let domain = &front[front.trim_end_matches(in_domain).len()..];
        begin >= unique_from && begin < name.len() && has_dated_domain(domain)
    })
}

/// Whether a text contains `iqn.`, a date and the beginning of a domain.
fn has_dated_domain(text: &str) -> bool {
    let is_date = |text: &[u8]| {
        text.iter().zip(b"dddd-dd.").all(|(byte, kind)| match kind {
            b'd' => byte.is_ascii_digit(),
            kind => byte == kind,
        })
    };
    let bytes = text.as_bytes();
    text.match_indices("iqn.")
        .any(|(at, _)| bytes.get(at + 4..at + 12).is_some_and(is_date) && bytes.len() > at + 12)
}

pub(super) fn flocker(source: &Object, at: &At<'_>) {
    let (name, uuid) = (text(source, "datasetName"), text(source, "datasetUUID"));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => at.required("one of datasetName and datasetUUID is required"),
        (false, false) => {
            at.invalid(name, "datasetName and datasetUUID can not be specified simultaneously");
        }
        _ => {}
    }
    if name.contains('/') {
        at.field("datasetName").invalid(name, "must not contain '/'");
    }
}

/// Validates a reference to a Secret, if there is one.
pub(super) fn secret_name(source: &Object, at: &At<'_>) {
    at.object(source, "secretRef", |at, secret| require(secret, &["name"], at));
}

pub(super) fn quobyte(source: &Object, at: &At<'_>) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        at.field("registry").required(PAIRS);
    } else if text(source, "tenant").len() > MAX_QUOBYTE_TENANT {
        at.field("tenant").required("must be a UUID and may not exceed a length of 64 characters");
    } else if !registry.split(',').all(is_host_and_port) {
        at.field("registry").invalid(registry, PAIRS);
    }
    require(source, &["volume"], at);
}

/// Whether a text is `host:port` as for Go's `net.SplitHostPort`: the host in brackets if it
/// contains colons, and no other bracket.
fn is_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[') {
        // In brackets there may be colons.
        Some(inner) => inner.strip_suffix(']').is_some_and(|inner| !inner.contains(['[', ']'])),
        None => !host.contains([':', '[', ']']),
    };
    is_host && !port.contains(['[', ']'])
}

pub(super) fn fibre_channel(source: &Object, at: &At<'_>) {
    let (targets, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    let both = at.field("targetWWNs");
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => both.required("must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            both.invalid("", "targetWWNs and wwids can not be specified simultaneously");
        }
        _ => {}
    }
    if !targets.is_empty() {
        if source.contains_key("lun") {
            range(source, "lun", at);
        } else {
            at.field("lun").required("lun is required if targetWWNs is specified");
        }
    }
}

pub(super) fn flex_volume(source: &Object, at: &At<'_>) {
    let at = at.field("options");
    for key in object(source, "options").into_iter().flat_map(|options| options.keys()) {
        let domain = syntax::lower(key.split_once('/').map_or(key.as_str(), |(domain, _)| domain));
        let reserved =
            |name: &str| domain.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if reserved("kubernetes.io") || reserved("k8s.io") {
            at.key(key).invalid(key.as_str(), "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

pub(super) fn azure_disk(source: &Object, at: &At<'_>) {
    at.given_one_of(source, "cachingMode", &["None", "ReadOnly", "ReadWrite"]);
    let (uri, path_of_uri) = (text(source, "diskURI"), at.field("diskURI"));
    let Some(kind) = given_text(source, "kind") else { return };
    at.field("kind").one_of(kind, &["Dedicated", "Managed", "Shared"]);
    let form = if kind == "Managed" {
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
    } else {
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
    };
    let beginning = if kind == "Managed" { "/subscriptions/" } else { "https://" };
    if !uri.starts_with(beginning) {
        path_of_uri.not_supported(uri, &[form]);
    }
}

pub(super) fn storageos(source: &Object, at: &At<'_>) {
    for field in ["volumeName", "volumeNamespace"] {
        at.check_filled(source, field, syntax::label);
    }
    secret_name(source, at);
}

pub(super) fn csi(source: &Object, at: &At<'_>) {
    let driver = text(source, "driver");
    at.field("driver").max_bytes(driver.len(), MAX_CSI_DRIVER);
    at.check_filled(source, "driver", |driver| syntax::subdomain(&syntax::lower(driver)));
    at.object(source, "nodePublishSecretRef", |at, secret| {
        require(secret, &["name"], at);
        // The API's path of an invalid name does not have the reference.
        at.unnamed().check_filled(secret, "name", syntax::subdomain);
    });
}

pub(super) fn image(source: &Object, at: &At<'_>) {
    let policies = ["Always", "IfNotPresent", "Never"];
    at.field("pullPolicy").required_one_of(text(source, "pullPolicy"), &policies);
}
