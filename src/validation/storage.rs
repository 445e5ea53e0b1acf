//! The sources of volumes, one function each.

use super::{
    container::pull_policy,
    errors::Errors,
    fields::{Object, given_text, is_true, list, number, object, objects, text},
    syntax,
};
use crate::pod::FieldPath;

/// The name of an iSCSI volume, a colon and its portal have this many bytes at most.
pub(super) const MAX_ISCSI_NAME: usize = 64;
/// The longest name of a CSI driver, in bytes.
const MAX_CSI_DRIVER: usize = 63;
/// The longest name of a Quobyte tenant, in bytes.
const MAX_QUOBYTE_TENANT: usize = 64;
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Requires texts that must not be empty.
fn require(source: &Object, fields: &[&str], path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for field in fields {
        errors.not_empty(&path.field(field), text(source, field));
    }
}

/// Requires lists that must not be empty.
fn require_items(source: &Object, field: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if list(source, field).is_empty() {
        errors.required(&path.field(field), "");
    }
}

fn range(source: &Object, field: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(number) = number(source, field).filter(|number| !(0..=255).contains(number)) {
        errors.invalid(&path.field(field), number, "must be between 0 and 255, inclusive");
    }
}

/// The mode of files.
pub(super) fn mode(source: &Object, field: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(mode) = number(source, field).filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(&path.field(field), mode, MODE);
    }
}

pub(super) fn empty_dir(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if text(source, "sizeLimit").starts_with('-') {
        errors.forbidden(&path.field("sizeLimit"), "the size cannot be negative");
    }
}

pub(super) fn host_path(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let place = text(source, "path");
    if place.is_empty() {
        return errors.required(&path.field("path"), "");
    }
    errors.check(&path.field("path"), place, syntax::no_backsteps(place));
    errors.one_of(&path.field("type"), text(source, "type"), &HOST_PATH_TYPES);
}

pub(super) fn git_repo(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["repository"], path, errors);
    let directory = text(source, "directory");
    errors.check(&path.field("directory"), directory, syntax::descending(directory));
}

pub(super) fn gce_disk(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let path = path.unnamed();
    let path = path.named("persistentDisk");
    require(source, &["pdName"], &path, errors);
    range(source, "partition", &path, errors);
}

pub(super) fn aws_disk(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["volumeID"], path, errors);
    range(source, "partition", path, errors);
}

pub(super) fn secret(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["secretName"], path, errors);
    keys(source, path, errors);
}

pub(super) fn config_map(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["name"], path, errors);
    keys(source, path, errors);
}

fn keys(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    mode(source, "defaultMode", path, errors);
    objects(&path.field("items"), source, "items", |path, item| key_to_path(item, path, errors));
}

/// A key, and the path of the file that holds its value.
pub(super) fn key_to_path(item: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(item, &["key", "path"], path, errors);
    let place = text(item, "path");
    errors.check(&path.field("path"), place, syntax::local_path(place));
    mode(item, "mode", path, errors);
}

pub(super) fn nfs(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["server", "path"], path, errors);
    let place = text(source, "path");
    if !place.starts_with('/') {
        errors.invalid(&path.field("path"), place, "must be an absolute path");
    }
}

pub(super) fn iscsi(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["targetPortal", "iqn"], path, errors);
    let target = text(source, "iqn");
    if !target.is_empty() {
        errors.check(&path.field("iqn"), target, iscsi_name(target));
    }
    range(source, "lun", path, errors);
    let needs_secret = is_true(source, "chapAuthDiscovery") || is_true(source, "chapAuthSession");
    if needs_secret && !source.contains_key("secretRef") {
        errors.required(&path.field("secretRef"), "");
    }
    if let Some(initiator) = given_text(source, "initiatorName") {
        let path = path.field("initiatorName").unnamed();
        errors.check(&path.named("initiatorname"), initiator, iscsi_name(initiator));
    }
}

/// An iSCSI name, in one of the three forms of RFC 3720.
fn iscsi_name(name: &str) -> syntax::Verdict {
    let identifier = |rest: &str, length| {
        // Any one character stands between the form and the identifier.
        let mut rest = rest.chars();
        rest.next().is_some_and(|separator| separator != '\n')
            && rest.as_str().len() == length
            && rest.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let fine = if name.starts_with("iqn") {
        is_qualified_iscsi_name(name)
    } else if let Some(rest) = name.strip_prefix("eui") {
        identifier(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa") {
        identifier(rest, 32)
    } else {
        return Err("must begin with iqn, eui or naa");
    };
    if fine { Ok(()) } else { Err("must be an iSCSI name (iqn.2026-11.com.example:disk)") }
}

/// Year, month, a domain, a colon and more: `iqn.2026-11.com.example:disk`. As in
/// Go anything may stand before it. Goes through the name once.
fn is_qualified_iscsi_name(name: &str) -> bool {
    // White space is ASCII's here, as in Go's regular expressions.
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

/// Whether a date stands somewhere after `iqn.`, and a domain after that.
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

pub(super) fn glusterfs(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["endpoints", "path"], path, errors);
}

pub(super) fn flocker(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (name, uuid) = (text(source, "datasetName"), text(source, "datasetUUID"));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => errors.required(path, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            errors.invalid(path, name, "datasetName and datasetUUID can not be specified simultaneously");
        }
        _ => {}
    }
    if name.contains('/') {
        errors.invalid(&path.field("datasetName"), name, "must not contain '/'");
    }
}

pub(super) fn claim(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["claimName"], path, errors);
}

pub(super) fn rbd(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require_items(source, "monitors", path, errors);
    require(source, &["image"], path, errors);
}

pub(super) fn cinder(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["volumeID"], path, errors);
    secret_name(source, path, errors);
}

fn secret_name(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(secret) = object(source, "secretRef") {
        require(secret, &["name"], &path.field("secretRef"), errors);
    }
}

pub(super) fn cephfs(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require_items(source, "monitors", path, errors);
}

pub(super) fn quobyte(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        errors.required(&path.field("registry"), PAIRS);
    } else if text(source, "tenant").len() > MAX_QUOBYTE_TENANT {
        errors.required(&path.field("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else if !registry.split(',').all(is_host_and_port) {
        errors.invalid(&path.field("registry"), registry, PAIRS);
    }
    require(source, &["volume"], path, errors);
}

/// `host:port` as Go's `net.SplitHostPort` takes it: the host in brackets if it
/// has colons of its own, and no other bracket.
fn is_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let host = match host.strip_prefix('[') {
        // In brackets there may be colons.
        Some(bracketed) => match bracketed.strip_suffix(']') {
            Some(inner) => return !inner.contains(['[', ']']) && !port.contains(['[', ']']),
            None => return false,
        },
        None => host,
    };
    !host.contains([':', '[', ']']) && !port.contains(['[', ']'])
}

pub(super) fn fibre_channel(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (targets, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    let both = path.field("targetWWNs");
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => errors.required(&both, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            errors.invalid(&both, "", "targetWWNs and wwids can not be specified simultaneously");
        }
        _ => {}
    }
    if !targets.is_empty() {
        if source.contains_key("lun") {
            range(source, "lun", path, errors);
        } else {
            errors.required(&path.field("lun"), "lun is required if targetWWNs is specified");
        }
    }
}

pub(super) fn flex_volume(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["driver"], path, errors);
    let path = path.field("options");
    for key in object(source, "options").into_iter().flat_map(|options| options.keys()) {
        let domain = syntax::lower(key.split_once('/').map_or(key.as_str(), |(domain, _)| domain));
        let reserved =
            |name: &str| domain.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if reserved("kubernetes.io") || reserved("k8s.io") {
            errors.invalid(&path.key(key), key.as_str(), "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

pub(super) fn azure_file(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["secretName", "shareName"], path, errors);
}

pub(super) fn azure_disk(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["diskName", "diskURI"], path, errors);
    if let Some(mode) = given_text(source, "cachingMode") {
        errors.one_of(&path.field("cachingMode"), mode, &["None", "ReadOnly", "ReadWrite"]);
    }
    let (uri, path_of_uri) = (text(source, "diskURI"), path.field("diskURI"));
    let Some(kind) = given_text(source, "kind") else { return };
    errors.one_of(&path.field("kind"), kind, &["Dedicated", "Managed", "Shared"]);
    let form = if kind == "Managed" {
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
    } else {
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
    };
    let beginning = if kind == "Managed" { "/subscriptions/" } else { "https://" };
    if !uri.starts_with(beginning) {
        errors.not_supported(&path_of_uri, uri, &[form]);
    }
}

pub(super) fn vsphere(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["volumePath"], path, errors);
}

pub(super) fn photon_disk(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["pdID"], path, errors);
}

pub(super) fn portworx(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["volumeID"], path, errors);
}

pub(super) fn scale_io(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["gateway", "system", "volumeName"], path, errors);
}

pub(super) fn storageos(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    require(source, &["volumeName"], path, errors);
    for field in ["volumeName", "volumeNamespace"] {
        let name = text(source, field);
        if !name.is_empty() {
            errors.check(&path.field(field), name, syntax::label(name));
        }
    }
    secret_name(source, path, errors);
}

pub(super) fn csi(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (driver, driver_path) = (text(source, "driver"), path.field("driver"));
    if driver.is_empty() {
        errors.required(&driver_path, "");
    } else {
        if driver.len() > MAX_CSI_DRIVER {
            errors.too_long(&driver_path, MAX_CSI_DRIVER);
        }
        errors.check(&driver_path, driver, syntax::subdomain(&syntax::lower(driver)));
    }
    if let Some(secret) = object(source, "nodePublishSecretRef") {
        let (name, path_of_secret) = (text(secret, "name"), path.field("nodePublishSecretRef"));
        if name.is_empty() {
            errors.required(&path_of_secret.field("name"), "");
        } else {
            // The API leaves the reference out of this path.
            let path = path_of_secret.unnamed();
            errors.check(&path.field("name"), name, syntax::subdomain(name));
        }
    }
}

pub(super) fn image(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    pull_policy(text(source, "pullPolicy"), &path.field("pullPolicy"), errors);
}
