//! The security contexts of pods and containers.

use std::collections::BTreeSet;

use super::{
    at::At,
    context::PodContext,
    fields::{Object, given_text, is_false, is_true, list, number, object, text, texts},
    syntax,
};

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

/// Validates the numbers of users or groups in some fields.
fn ids(context: &Object, fields: &[&str], at: &At<'_>) {
    for field in fields {
        if let Some(id) = number(context, field) {
            id_number(id, &at.field(field));
        }
    }
}

/// Validates the number of a user or group, which has 31 bits.
fn id_number(id: i64, at: &At<'_>) {
    at.in_range(id, 0..=i32::MAX.into(), "must be between 0 and 2147483647, inclusive");
}

/// Validates the security context of a container.
pub(super) fn of_container(context: &Object, at: &At<'_>, pod: &PodContext<'_>) {
    ids(context, &["runAsUser", "runAsGroup"], at);
    at.given_one_of(context, "procMount", &["Default", "Unmasked"]);
    if pod.host_users && text(context, "procMount") == "Unmasked" {
        at.field("procMount").invalid("Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    if is_false(context, "allowPrivilegeEscalation") {
        let adds = object(context, "capabilities").into_iter().flat_map(|sets| texts(sets, "add"));
        for _ in adds.filter(|capability| *capability == "CAP_SYS_ADMIN") {
            at.invalid("CAP_SYS_ADMIN", "cannot be set if `allowPrivilegeEscalation` is false");
        }
        if is_true(context, "privileged") {
            at.invalid("privileged", "cannot be set if `allowPrivilegeEscalation` is false");
        }
    }
    profiles(context, at);
}

/// Validates the profiles of a container or a pod.
fn profiles(context: &Object, at: &At<'_>) {
    at.object(context, "seccompProfile", seccomp);
    at.object(context, "appArmorProfile", app_armor);
    at.object(context, "windowsOptions", windows_options);
}

fn seccomp(at: &At<'_>, profile: &Object) {
    let (kind, file) = (text(profile, "type"), given_text(profile, "localhostProfile"));
    at.field("type").required_one_of(kind, &PROFILE_TYPES);
    let at = at.field("localhostProfile");
    match (kind == "Localhost", file) {
        (true, None) => at.required("must be set when seccomp type is Localhost"),
        (true, Some(file)) => at.check(file, syntax::descending),
        (false, Some(file)) => at.invalid(file, "can only be set when seccomp type is Localhost"),
        (false, None) => {}
    }
}

fn app_armor(at: &At<'_>, profile: &Object) {
    let (kind, name) = (text(profile, "type"), given_text(profile, "localhostProfile"));
    at.field("type").required_one_of(kind, &PROFILE_TYPES);
    let at = at.field("localhostProfile");
    match (kind, name) {
        ("Localhost", Some(name)) if name.trim() != name => {
            at.invalid(name, "must not be padded with whitespace");
        }
        ("Localhost", None | Some("")) => {
            at.required("must be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            at.invalid(name, "can only be set when AppArmor type is Localhost");
        }
        _ => {}
    }
    if let ("Localhost", Some(name)) = (kind, name) {
        at.max_bytes(name.len(), MAX_APP_ARMOR_PROFILE);
    }
}

fn windows_options(at: &At<'_>, options: &Object) {
    at.check_given(options, "gmsaCredentialSpecName", syntax::subdomain);
    if let Some(spec) = given_text(options, "gmsaCredentialSpec")
        && (spec.is_empty() || spec.len() > MAX_GMSA_SPEC)
    {
        at.field("gmsaCredentialSpec").invalid("", "must have from 1 byte to 64 KiB");
    }
    at.check_given(options, "runAsUserName", windows_user);
}

/// Checks the name of a Windows user, with an optional domain: `DOMAIN\user`.
fn windows_user(name: &str) -> syntax::SyntaxResult {
    let (domain, user) = name.split_once('\\').map_or((None, name), |(domain, user)| (Some(domain), user));
    let reserved = "\"/\\:;|=,+*?<>@[]";
    let is_domain = |domain: &str| domain.len() < MAX_WINDOWS_DOMAIN && is_windows_domain(domain);
    syntax::first_broken([
        (name.is_empty() || user.is_empty(), "the user's name cannot be empty"),
        (name.bytes().any(|byte| byte.is_ascii_control()), "cannot contain control characters"),
        (user.contains('\\'), "cannot contain more than one backslash"),
        (!domain.is_none_or(is_domain), "the domain must be a NetBIOS or DNS name"),
        (user.len() > MAX_WINDOWS_USER, "the user's name must not be longer than 104 characters"),
        (
            user.chars().all(|c| matches!(c, '.' | ' ')),
            "the user's name cannot contain only periods or spaces",
        ),
        (user.contains(|c| reserved.contains(c)), "the user's name cannot contain any of \"/\\:;|=,+*?<>@[]"),
    ])
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
pub(super) fn of_pod(context: &Object, at: &At<'_>, pod: &PodContext<'_>) {
    if context.is_empty() {
        return;
    }
    ids(context, &["fsGroup", "runAsUser", "runAsGroup"], at);
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        id_number(group.as_i64().unwrap_or_default(), &at.field("supplementalGroups").index(index));
    }
    sysctls(pod.spec, context, at);
    for (field, supported) in [
        ("fsGroupChangePolicy", &["Always", "OnRootMismatch"][..]),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["Recursive"]),
    ] {
        at.given_one_of(context, field, supported);
    }
    profiles(context, at);
}

fn sysctls(spec: &Object, context: &Object, at: &At<'_>) {
    let mut names = BTreeSet::new();
    at.objects(context, "sysctls", |at, sysctl| {
        let (name, at) = (text(sysctl, "name"), at.field("name"));
        if name.is_empty() {
            at.required("");
        } else if !is_sysctl(name) {
            at.invalid(name, "must be the name of a sysctl of at most 253 characters");
        } else if names.contains(name) {
            at.duplicate(name);
        }
        names.insert(name);
        if let Some(field) = host_namespace(name).filter(|field| is_true(spec, field)) {
            at.invalid(name, &format!("may not be specified when '{field}' is true"));
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
