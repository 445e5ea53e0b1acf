//! The network of a pod: host names, DNS and host ports.

use serde_json::Value;

use super::{
    at::At,
    fields::{Object, is_true, list, number, text, texts},
    syntax,
};

/// The most name servers.
const MAX_NAME_SERVERS: usize = 3;
/// The most search domains.
const MAX_SEARCHES: usize = 32;
/// The most bytes of all search domains, with a space between two.
const MAX_SEARCH_BYTES: usize = 2048;
/// The longest host name of Linux, in bytes.
const MAX_HOST_NAME: usize = 64;

pub(super) fn dns_policy(policy: &str, spec: &Object, at: &At<'_>) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    at.field("dnsPolicy").required_one_of(policy, &policies);
    if policy == "None" && !spec.contains_key("dnsConfig") {
        at.field("dnsConfig").required("must provide `dnsConfig` when `dnsPolicy` is None");
    }
}

pub(super) fn dns_config(config: &Object, spec: &Object, at: &At<'_>) {
    let servers = at.field("nameservers");
    let count = list(config, "nameservers").len();
    if count == 0 && text(spec, "dnsPolicy") == "None" {
        return servers.required("must provide at least one DNS nameserver when `dnsPolicy` is None");
    }
    if count > MAX_NAME_SERVERS {
        servers.invalid("", "must not have more than 3 nameservers");
    }
    at.check_each(config, "nameservers", syntax::address);
    let searches = at.field("searches");
    let (mut count, mut bytes) = (0, 0);
    for (index, search) in texts(config, "searches").enumerate() {
        count += 1;
        bytes += search.len() + usize::from(index > 0);
        if search != "." {
            let domain = search.strip_suffix('.').unwrap_or(search);
            searches.index(index).check(search, |_| syntax::subdomain_with_underscore(domain));
        }
    }
    if count > MAX_SEARCHES {
        searches.invalid("", "must not have more than 32 search paths");
    }
    if bytes > MAX_SEARCH_BYTES {
        searches.invalid("", "must not have more than 2048 characters (including spaces) together");
    }
    at.objects(config, "options", |at, option| {
        if text(option, "name").is_empty() {
            at.required("must not be empty");
        }
    });
}

pub(super) fn hosts(list: &Value, at: &At<'_>) {
    at.each_object(list, |at, alias| {
        at.check_text(alias, "ip", syntax::address);
        at.check_each(alias, "hostnames", syntax::subdomain);
    });
}

/// Validates the host name that overrides the pod's.
pub(super) fn host_name(name: &str, spec: &Object, at: &At<'_>) {
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if is_true(spec, field) {
            at.forbidden(&format!("may not be specified when {field} is true"));
        }
    }
    at.max_bytes(name.len(), MAX_HOST_NAME);
    at.check(name, syntax::subdomain);
}

/// Validates ports in the host's network, where a container's port is the host's.
pub(super) fn host_ports(spec: &Object, at: &At<'_>) {
    at.objects(spec, "containers", |at, container| {
        at.objects(container, "ports", |at, port| {
            let host = number(port, "hostPort").unwrap_or_default();
            if host != 0 && Some(host) != number(port, "containerPort") {
                at.field("hostPort").invalid(host, "must match `containerPort` when `hostNetwork` is true");
            }
        });
    });
}
