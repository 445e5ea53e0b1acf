//! The network of a pod: host names, DNS and host ports.

use serde_json::Value;

use super::{
    errors::Errors,
    fields::{Object, each_object, is_true, list, number, objects, text, texts},
    syntax,
};
use crate::pod::FieldPath;

/// The most name servers.
const MAX_NAME_SERVERS: usize = 3;
/// The most search domains.
const MAX_SEARCHES: usize = 32;
/// The most bytes of all search domains, with a space between two.
const MAX_SEARCH_BYTES: usize = 2048;
/// The longest host name of Linux, in bytes.
const MAX_HOST_NAME: usize = 64;

pub(super) fn dns_policy(policy: &str, spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.required_one_of(&path.field("dnsPolicy"), policy, &policies);
    if policy == "None" && !spec.contains_key("dnsConfig") {
        errors.required(&path.field("dnsConfig"), "must provide `dnsConfig` when `dnsPolicy` is None");
    }
}

pub(super) fn dns_config(config: &Object, spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let servers = path.field("nameservers");
    let count = list(config, "nameservers").len();
    if count == 0 && text(spec, "dnsPolicy") == "None" {
        return errors
            .required(&servers, "must provide at least one DNS nameserver when `dnsPolicy` is None");
    }
    if count > MAX_NAME_SERVERS {
        errors.invalid(&servers, "", "must not have more than 3 nameservers");
    }
    for (index, server) in texts(config, "nameservers").enumerate() {
        errors.check(&servers.index(index), server, syntax::address(server));
    }
    let searches = path.field("searches");
    let (mut count, mut bytes) = (0, 0);
    for (index, search) in texts(config, "searches").enumerate() {
        count += 1;
        bytes += search.len() + usize::from(index > 0);
        if search != "." {
            let domain = search.strip_suffix('.').unwrap_or(search);
            errors.check(&searches.index(index), search, syntax::subdomain_with_underscore(domain));
        }
    }
    if count > MAX_SEARCHES {
        errors.invalid(&searches, "", "must not have more than 32 search paths");
    }
    if bytes > MAX_SEARCH_BYTES {
        errors.invalid(&searches, "", "must not have more than 2048 characters (including spaces) together");
    }
    objects(&path.field("options"), config, "options", |path, option| {
        if text(option, "name").is_empty() {
            errors.required(path, "must not be empty");
        }
    });
}

pub(super) fn hosts(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, alias| {
        errors.check_text(alias, "ip", path, syntax::address);
        let path = path.field("hostnames");
        for (index, name) in texts(alias, "hostnames").enumerate() {
            errors.check(&path.index(index), name, syntax::subdomain(name));
        }
    });
}

/// Validates the host name that overrides the pod's.
pub(super) fn host_name(name: &str, spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if is_true(spec, field) {
            errors.forbidden(path, &format!("may not be specified when {field} is true"));
        }
    }
    errors.max_bytes(path, name.len(), MAX_HOST_NAME);
    errors.check(path, name, syntax::subdomain(name));
}

/// Validates ports in the host's network, where a container's port is the host's.
pub(super) fn host_ports(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    objects(&path.field("containers"), spec, "containers", |path, container| {
        objects(&path.field("ports"), container, "ports", |path, port| {
            let host = number(port, "hostPort").unwrap_or_default();
            if host != 0 && Some(host) != number(port, "containerPort") {
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&path.field("hostPort"), host, why);
            }
        });
    });
}
