//! The security contexts of pods and containers.

use std::collections::BTreeSet;

use super::{
    context::PodContext,
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
/// The domain of a Windows user must have fewer bytes than this.
const MAX_WINDOWS_DOMAIN: usize = 256;
/// The longest name of a Windows user, in bytes.
const MAX_WINDOWS_USER: usize = 104;

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// Validates the number of a user or group, which has 31 bits.
fn id(context: &Object, field: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if let Some(id) = number(context, field) {
        id_number(id, &path.field(field), errors);
    }
}

fn id_number(id: i64, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    errors.in_range(path, id, 0..=i32::MAX.into(), "must be between 0 and 2147483647, inclusive");
}

/// Validates the security context of a container.
pub(super) fn of_container(
    context: &Object,
    path: &FieldPath<'_>,
    pod: &PodContext<'_>,
    errors: &mut Errors<'_>,
) {
    id(context, "runAsUser", path, errors);
    id(context, "runAsGroup", path, errors);
    errors.given_one_of(context, "procMount", path, &["Default", "Unmasked"]);
    if pod.host_users && text(context, "procMount") == "Unmasked" {
        errors.invalid(&path.field("procMount"), "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    if is_false(context, "allowPrivilegeEscalation") {
        let adds = object(context, "capabilities").into_iter().flat_map(|sets| texts(sets, "add"));
        for _ in adds.filter(|capability| *capability == "CAP_SYS_ADMIN") {
            errors.invalid(path, "CAP_SYS_ADMIN", "cannot be set if `allowPrivilegeEscalation` is false");
        }
        if is_true(context, "privileged") {
            errors.invalid(path, "privileged", "cannot be set if `allowPrivilegeEscalation` is false");
        }
    }
    profiles(context, path, pod, errors);
}

/// Validates the profiles of a container or a pod.
fn profiles(context: &Object, path: &FieldPath<'_>, pod: &PodContext<'_>, errors: &mut Errors<'_>) {
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
    if let ("Localhost", Some(name)) = (kind, name) {
        errors.max_bytes(&path, name.len(), MAX_APP_ARMOR_PROFILE);
    }
}

fn windows_options(options: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    errors.check_given(options, "gmsaCredentialSpecName", path, syntax::subdomain);
    if let Some(spec) = given_text(options, "gmsaCredentialSpec")
        && (spec.is_empty() || spec.len() > MAX_GMSA_SPEC)
    {
        let why = "must have from 1 byte to 64 KiB";
        errors.invalid(&path.field("gmsaCredentialSpec"), "", why);
    }
    errors.check_given(options, "runAsUserName", path, windows_user);
}

/// Checks the name of a Windows user, with an optional domain: `DOMAIN\user`.
fn windows_user(name: &str) -> syntax::SyntaxResult {
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
        label.len() <= 63 && syntax::consists_of(label, inner, |byte| byte.is_ascii_alphanumeric())
    };
    is_net_bios || domain.split('.').all(is_label)
}

/// Validates the security context of a pod.
pub(super) fn of_pod(context: &Object, path: &FieldPath<'_>, pod: &PodContext<'_>, errors: &mut Errors<'_>) {
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
        errors.given_one_of(context, field, path, supported);
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
            let why = "must be the name of a sysctl of at most 253 characters";
            errors.invalid(&path, name, why);
        } else if names.contains(name) {
            errors.duplicate(&path, name);
        }
        names.insert(name);
        if let Some(field) = host_namespace(name).filter(|field| is_true(spec, field)) {
            errors.invalid(&path, name, &format!("may not be specified when '{field}' is true"));
        }
    });
}

/// Whether a name consists of words of lower-case letters, digits, `-` and `_`, joined by dots or slashes.
fn is_sysctl(name: &str) -> bool {
    let inner = |byte| syntax::is_lower(byte) || matches!(byte, b'-' | b'_');
    let is_word = |word: &str| syntax::consists_of(word, inner, syntax::is_lower);
    name.len() <= MAX_SYSCTL && name.split(['.', '/']).all(is_word)
}

/// The sysctls of the IPC namespace, after `kernel.`.
const IPC_SYSCTLS: [&str; 10] =
    ["sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "shm", "msgmax", "msgmnb", "msgmni", "msg"];

/// The field of a spec by which a pod shares the kernel namespace of a sysctl with the host.
fn host_namespace(name: &str) -> Option<&'static str> {
    // If a slash is the first separator, slashes and dots are swapped.
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        c => c,
    };
    let is_swapped = name.find(['.', '/']).is_some_and(|at| name[at..].starts_with('/'));
    let name: String = if is_swapped { name.chars().map(swap).collect() } else { name.to_owned() };
    let name = name.split('*').next().unwrap_or_default();
    let is_ipc = name.strip_prefix("kernel.").is_some_and(|name| IPC_SYSCTLS.contains(&name));
    if is_ipc || name.starts_with("fs.mqueue.") {
        Some("hostIPC")
    } else if name.starts_with("net.") {
        Some("hostNetwork")
    } else {
        None
    }
}
