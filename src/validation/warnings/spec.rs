//! Warnings about fields of a spec that have no part of their own.

use std::{collections::BTreeSet, net::Ipv6Addr};

use super::{
    super::{
        at::At,
        fields::{Object, number, object, text, texts},
        scheduling::{PREFERRED, REQUIRED},
    },
    bounds::MAX_LABEL,
    text::{cut, quoted},
};

const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
    used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// The API's words about a label of nodes, if it is deprecated.
fn deprecated(label: &str) -> Option<&'static str> {
    Some(match label {
        "beta.kubernetes.io/arch" => r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
        "beta.kubernetes.io/os" => r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
        "failure-domain.beta.kubernetes.io/region" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
        }
        "beta.kubernetes.io/instance-type" => {
            r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => r#"use "node-role.kubernetes.io/control-plane" instead"#,
        _ => return None,
    })
}

/// Warns about the selection of nodes and the spreading of pods.
pub(super) fn scheduling(spec: &Object, at: &At<'_>) {
    at.object(spec, "nodeSelector", |at, labels| {
        for (label, why) in labels.keys().filter_map(|label| Some((label, deprecated(label)?))) {
            at.key(label).warning(&|| why.to_owned());
        }
    });
    at.object(spec, "affinity", |at, affinity| {
        at.object(affinity, "nodeAffinity", |at, nodes| {
            at.object(nodes, REQUIRED, |at, selector| {
                at.objects(selector, "nodeSelectorTerms", |at, term| node_term(term, false, at));
            });
            at.objects(nodes, PREFERRED, |at, weighted| {
                at.object(weighted, "preference", |at, term| node_term(term, true, at));
            });
        });
    });
    at.objects(spec, "topologySpreadConstraints", |at, constraint| {
        deprecated_label(constraint, "topologyKey", at);
        selects_nothing(constraint, at);
    });
}

fn node_term(term: &Object, checks_values: bool, at: &At<'_>) {
    at.objects(term, "matchExpressions", |at, requirement| {
        deprecated_label(requirement, "key", at);
        if checks_values {
            for (index, value) in texts(requirement, "values").enumerate() {
                label_value(value, &at.field("values").index(index));
            }
        }
    });
}

fn deprecated_label(of: &Object, field: &str, at: &At<'_>) {
    let label = text(of, field);
    if let Some(why) = deprecated(label) {
        at.field(field).warning(&|| format!("{label} is {why}"));
    }
}

fn label_value(value: &str, at: &At<'_>) {
    let too_long = (value.len() > MAX_LABEL).then_some("must be no more than 63 bytes");
    let letters =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let ends = |text: &str| {
        let is_word = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
        is_word(text.as_bytes().first()) && is_word(text.as_bytes().last())
    };
    let not_a_value = (!letters(value) || !ends(value)).then_some(LABEL_VALUE);
    for why in too_long.into_iter().chain(not_a_value) {
        at.warning(&|| format!("{} is invalid, {why}", cut(value)));
    }
}

/// Warns of a term without a selector of labels.
fn selects_nothing(term: &Object, at: &At<'_>) {
    if !term.contains_key("labelSelector") {
        let why = || "a null labelSelector results in matching no pod".to_owned();
        at.field("labelSelector").warning(&why);
    }
}

/// Warns of hosts and secrets that occur twice, and of a secret without a name.
pub(super) fn repeated(spec: &Object, at: &At<'_>) {
    for (list, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let mut seen = BTreeSet::new();
        at.objects(spec, list, |at, item| {
            let value = text(item, field);
            if !seen.insert(value) {
                at.field(field).warning(&|| format!("duplicate {field} {}", quoted(value)));
            }
        });
    }
    at.objects(spec, "imagePullSecrets", |at, secret| {
        if text(secret, "name").is_empty() {
            at.field("name").warning(&|| "invalid empty name \"\"".to_owned());
        }
    });
}

/// Warns about the grace period, the affinity to pods and the addresses.
pub(super) fn rest(spec: &Object, at: &At<'_>) {
    if number(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        let why = || "must be >= 0; negative values are invalid and will be treated as 1".to_owned();
        at.field("terminationGracePeriodSeconds").warning(&why);
    }
    at.object(spec, "affinity", |at, affinity| {
        for field in ["podAffinity", "podAntiAffinity"] {
            at.object(affinity, field, |at, pods| {
                at.objects(pods, REQUIRED, |at, term| selects_nothing(term, at));
                at.objects(pods, PREFERRED, |at, weighted| {
                    let empty = Object::new();
                    let term = object(weighted, "podAffinityTerm").unwrap_or(&empty);
                    selects_nothing(term, &at.field("podAffinityTerm"));
                });
            });
        }
    });
    at.object(spec, "dnsConfig", |at, config| {
        for (index, server) in texts(config, "nameservers").enumerate() {
            address(server, &at.field("nameservers").index(index));
        }
    });
    at.objects(spec, "hostAliases", |at, alias| address(text(alias, "ip"), &at.field("ip")));
}

/// Warns of an IPv6 address that has a shorter or a more usual form.
fn address(address: &str, at: &At<'_>) {
    let usual = address.parse::<Ipv6Addr>().map(|address| address.to_string());
    if let Some(usual) = usual.ok().filter(|usual| usual != address) {
        at.warning(&|| {
            format!("IPv6 address {address:?} should be in RFC 5952 canonical format ({usual:?})")
        });
    }
}
