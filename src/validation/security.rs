//! With what rights a pod and its containers run.

use std::collections::BTreeSet;

use super::{
    container::Pod,
    errors::Errors,
    fields::{Object, given_text, is_false, is_true, list, number, object, objects, text, texts},
    syntax,
};
use crate::pod::FieldPath;

/// The longest name of a sysctl, in bytes.
const MAX_SYSCTL: usize = 253;
/// The longest path of an `AppArmor` profile, in bytes.
const MAX_APP_ARMOR_PROFILE: usize = 4095;
/// The longest GMSA credential spec, in bytes.
const MAX_GMSA_SPEC: usize = 64 * 1024;
/// The domain of a Windows user has fewer bytes than this.
const MAX_WINDOWS_DOMAIN: usize = 256;
/// The longest name of a Windows user, in bytes.
const MAX_WINDOWS_USER: usize = 104;

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// User and group numbers fit into 31 bits.
fn id(context: &Object, field: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(id) = number(context, field) {
        id_number(id, &path.field(field), errors);
    }
}

fn id_number(id: i64, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if !(0..=i64::from(i32::MAX)).contains(&id) {
        errors.invalid(path, id, "must be between 0 and 2147483647, inclusive");
    }
}

/// The rights of a container.
pub(super) fn of_container(context: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, errors: &mut Errors<'_>) {
    id(context, "runAsUser", path, errors);
    id(context, "runAsGroup", path, errors);
    if let Some(mount) = given_text(context, "procMount") {
        errors.one_of(&path.field("procMount"), mount, &["Default", "Unmasked"]);
        if pod.host_users && mount == "Unmasked" {
            errors.invalid(&path.field("procMount"), mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if is_false(context, "allowPrivilegeEscalation") {
        let adds = object(context, "capabilities").into_iter().flat_map(|sets| texts(sets, "add"));
        for _ in adds.filter(|capability| *capability == "CAP_SYS_ADMIN") {
            errors.invalid(path, "CAP_SYS_ADMIN", "cannot be had with `allowPrivilegeEscalation` false");
        }
        if is_true(context, "privileged") {
            errors.invalid(path, "privileged", "cannot be had with `allowPrivilegeEscalation` false");
        }
    }
    profiles(context, path, pod, errors);
}

/// What is the same for containers and pods.
fn profiles(context: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, errors: &mut Errors<'_>) {
    if let Some(profile) = object(context, "seccompProfile") {
        seccomp(profile, &path.field("seccompProfile"), errors);
    }
    if let Some(profile) = object(context, "appArmorProfile") {
        app_armor(profile, &path.field("appArmorProfile"), errors);
    }
    if let Some(options) = object(context, "windowsOptions") {
        pod.has_windows_options.set(true);
        windows_options(options, &path.field("windowsOptions"), errors);
    }
}

fn seccomp(profile: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (kind, file) = (text(profile, "type"), given_text(profile, "localhostProfile"));
    errors.required_one_of(&path.field("type"), kind, &PROFILE_TYPES);
    let path = path.field("localhostProfile");
    match (kind == "Localhost", file) {
        (true, None) => errors.required(&path, "must be set when seccomp type is Localhost"),
        (true, Some(file)) => errors.check(&path, file, syntax::descending(file)),
        (false, Some(file)) => errors.invalid(&path, file, "can only be set when seccomp type is Localhost"),
        (false, None) => {}
    }
}

fn app_armor(profile: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (kind, name) = (text(profile, "type"), given_text(profile, "localhostProfile"));
    errors.required_one_of(&path.field("type"), kind, &PROFILE_TYPES);
    let path = path.field("localhostProfile");
    match (kind, name) {
        ("Localhost", Some(name)) if name.trim() != name => {
            errors.invalid(&path, name, "must not be padded with whitespace");
        }
        ("Localhost", None | Some("")) => {
            errors.required(&path, "must be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.invalid(&path, name, "can only be set when AppArmor type is Localhost");
        }
        _ => {}
    }
    if kind == "Localhost" && name.is_some_and(|name| name.len() > MAX_APP_ARMOR_PROFILE) {
        errors.too_long(&path, MAX_APP_ARMOR_PROFILE);
    }
}

fn windows_options(options: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(name) = given_text(options, "gmsaCredentialSpecName") {
        errors.check(&path.field("gmsaCredentialSpecName"), name, syntax::subdomain(name));
    }
    if let Some(spec) = given_text(options, "gmsaCredentialSpec")
        && (spec.is_empty() || spec.len() > MAX_GMSA_SPEC)
    {
        let why = "must not be empty, and must have 64 KiB at most";
        errors.invalid(&path.field("gmsaCredentialSpec"), "", why);
    }
    if let Some(user) = given_text(options, "runAsUserName") {
        errors.check(&path.field("runAsUserName"), user, windows_user(user));
    }
}

/// A Windows user, perhaps with a domain in front: `DOMAIN\user`.
fn windows_user(name: &str) -> syntax::Verdict {
    let (domain, user) = match name.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    if name.is_empty() || user.is_empty() {
        Err("the user's name cannot be empty")
    } else if name.bytes().any(|byte| byte.is_ascii_control()) {
        Err("cannot contain control characters")
    } else if user.contains('\\') {
        Err("cannot contain more than one backslash")
    } else if domain.is_some_and(|domain| domain.len() >= MAX_WINDOWS_DOMAIN || !is_windows_domain(domain)) {
        Err("the domain must be a NetBIOS or DNS name")
    } else if user.len() > MAX_WINDOWS_USER {
        Err("the user's name must not be longer than 104 characters")
    } else if user.chars().all(|c| matches!(c, '.' | ' ')) {
        Err("the user's name cannot contain only periods or spaces")
    } else if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']'])
    {
        Err("the user's name cannot contain any of \"/\\:;|=,+*?<>@[]")
    } else {
        Ok(())
    }
}

fn is_windows_domain(domain: &str) -> bool {
    let is_reserved = |c: char| matches!(c, '\\' | '/' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let is_net_bios = (1..=15).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(is_reserved);
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        label.len() <= 63 && syntax::is_made_of(label, inner, |byte| byte.is_ascii_alphanumeric())
    };
    is_net_bios || domain.split('.').all(is_label)
}

/// The rights of a pod as a whole.
pub(super) fn of_pod(context: &Object, path: &FieldPath<'_>, pod: &Pod<'_>, errors: &mut Errors<'_>) {
    if context.is_empty() {
        return;
    }
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(context, field, path, errors);
    }
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        id_number(group.as_i64().unwrap_or_default(), &path.field("supplementalGroups").index(index), errors);
    }
    sysctls(pod.spec, context, &path.field("sysctls"), errors);
    for (field, supported) in [
        ("fsGroupChangePolicy", &["Always", "OnRootMismatch"][..]),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["Recursive"]),
    ] {
        if let Some(policy) = given_text(context, field) {
            errors.one_of(&path.field(field), policy, supported);
        }
    }
    profiles(context, path, pod, errors);
}

fn sysctls(spec: &Object, context: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let mut names = BTreeSet::new();
    objects(path, context, "sysctls", |path, sysctl| {
        let (name, path) = (text(sysctl, "name"), path.field("name"));
        if name.is_empty() {
            errors.required(&path, "");
        } else if !is_sysctl(name) {
            let why = "must be the name of a sysctl, of 253 characters at most";
            errors.invalid(&path, name, why);
        } else if names.contains(name) {
            errors.duplicate(&path, name);
        }
        names.insert(name);
        match sysctl_namespace(name) {
            Some(Namespace::Net) if is_true(spec, "hostNetwork") => {
                errors.invalid(&path, name, "may not be specified when 'hostNetwork' is true");
            }
            Some(Namespace::Ipc) if is_true(spec, "hostIPC") => {
                errors.invalid(&path, name, "may not be specified when 'hostIPC' is true");
            }
            _ => {}
        }
    });
}

/// Words of lower-case letters, digits, `-` and `_`, joined by dots or slashes.
fn is_sysctl(name: &str) -> bool {
    let inner = |byte| syntax::is_lower(byte) || matches!(byte, b'-' | b'_');
    let is_word = |word: &str| syntax::is_made_of(word, inner, syntax::is_lower);
    name.len() <= MAX_SYSCTL && name.split(['.', '/']).all(is_word)
}

/// The kernel's namespace that a sysctl belongs to.
enum Namespace {
    Ipc,
    Net,
}

fn sysctl_namespace(name: &str) -> Option<Namespace> {
    // Where a slash is the first separator, slashes and dots have changed places.
    let swapped = match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => String::new(),
    };
    let name = if swapped.is_empty() { name } else { &swapped };
    let name = name.split('*').next().unwrap_or_default();
    match name {
        "kernel.sem"
        | "kernel.shmall"
        | "kernel.shmmax"
        | "kernel.shmmni"
        | "kernel.shm_rmid_forced"
        | "kernel.shm"
        | "kernel.msgmax"
        | "kernel.msgmnb"
        | "kernel.msgmni"
        | "kernel.msg" => Some(Namespace::Ipc),
        name if name.starts_with("fs.mqueue.") => Some(Namespace::Ipc),
        name if name.starts_with("net.") => Some(Namespace::Net),
        _ => None,
    }
}
