//! Volumes with files made from API objects: the downward API, and projected volumes.

use std::collections::BTreeSet;

use super::{
    at::At,
    environment,
    fields::{Object, given_text, number, object, objects, text},
    metadata, scheduling, storage, syntax,
};

/// The shortest lifetime of a projected token, in seconds.
const MIN_TOKEN_SECONDS: i64 = 10 * 60;
/// The longest lifetime of a projected token, in seconds.
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
/// The shortest lifetime of a pod certificate, in seconds.
const MIN_CERTIFICATE_SECONDS: i64 = 3600;
/// The longest lifetime of a pod certificate, in seconds.
const MAX_CERTIFICATE_SECONDS: i64 = 91 * 24 * 3600;
/// The longest lifetime of a pod certificate from a signer of Kubernetes, in seconds.
const MAX_KUBERNETES_CERTIFICATE_SECONDS: i64 = 24 * 3600;
/// The longest name of a signer, in bytes: domain, slash, label, dot and subdomain.
const MAX_SIGNER: usize = 253 + 1 + 63 + 1 + 253;
/// The longest domain, in bytes.
const MAX_DOMAIN: usize = 253;

const CERTIFICATE_PATHS: [&str; 3] = ["credentialBundlePath", "keyPath", "certificateChainPath"];
const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

pub(super) fn downward_api(source: &Object, at: &At<'_>) {
    storage::mode(source, "defaultMode", at);
    downward_files(source, at);
}

fn downward_files(source: &Object, at: &At<'_>) {
    if let Some(items) = source.get("items") {
        at.field("items").unnamed().each_object(items, |at, file| downward_file(file, &at.unnamed()));
    }
}

/// Validates a file of the downward API. The API's paths do not have the list and its index.
fn downward_file(file: &Object, at: &At<'_>) {
    let place = text(file, "path");
    path(place, at);
    match (object(file, "fieldRef"), object(file, "resourceFieldRef")) {
        (Some(field), resource) => {
            environment::field_reference(field, &environment::FILE_FIELDS, &at.field("fieldRef"));
            if resource.is_some() {
                at.invalid(place, "fieldRef and resourceFieldRef can not be specified simultaneously");
            }
        }
        (None, Some(resource)) => {
            environment::resource_reference(resource, true, &at.field("resourceFieldRef"));
        }
        (None, None) => at.required("one of fieldRef and resourceFieldRef is required"),
    }
    storage::mode(file, "mode", at);
}

/// Validates the path of a file, which is required.
fn path(place: &str, at: &At<'_>) {
    at.field("path").not_empty(place);
    at.field("path").check(place, syntax::local_path);
}

pub(super) fn validate(volume: &Object, volume_at: &At<'_>) {
    storage::mode(volume, "defaultMode", volume_at);
    let mut files = BTreeSet::new();
    volume_at.objects(volume, "sources", |at, source| {
        let mut count = 0;
        for (kind, source) in source {
            let Some(source) = source.as_object() else { continue };
            let at = at.field(kind);
            match kind.as_str() {
                "secret" | "configMap" => {
                    at.field("name").not_empty(text(source, "name"));
                    at.objects(source, "items", |at, item| storage::key_to_path(item, at));
                }
                "downwardAPI" => downward_files(source, &at),
                "serviceAccountToken" => token(source, &at, volume_at),
                "clusterTrustBundle" => trust_bundle(source, &at),
                "podCertificate" => certificate(source, &at),
                _ => continue,
            }
            count += 1;
            for place in places(kind, source) {
                let counts = !place.is_empty() || kind == "clusterTrustBundle";
                if counts && !files.insert(place) {
                    volume_at.invalid(place, "conflicting duplicate paths");
                }
            }
        }
        if count > 1 {
            at.forbidden("may not specify more than 1 volume type per source");
        }
    });
}

/// The paths of the files from a source, which must be unique in the volume. The API does
/// not compare the path of a token, and compares an empty one only of a trust bundle.
fn places<'v>(kind: &str, source: &'v Object) -> Vec<&'v str> {
    match kind {
        "serviceAccountToken" => Vec::new(),
        "clusterTrustBundle" => vec![text(source, "path")],
        "podCertificate" => CERTIFICATE_PATHS.map(|field| text(source, field)).into(),
        _ => objects(source, "items").filter_map(|item| given_text(item, "path")).collect(),
    }
}

/// Validates a token. The API's path of its file is that of the volume.
fn token(source: &Object, at: &At<'_>, volume: &At<'_>) {
    let seconds = number(source, "expirationSeconds").unwrap_or_default();
    if seconds < MIN_TOKEN_SECONDS {
        at.field("expirationSeconds").invalid(seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_TOKEN_SECONDS {
        at.field("expirationSeconds").invalid(seconds, "may not specify a duration larger than 2^32 seconds");
    }
    path(text(source, "path"), volume);
}

fn trust_bundle(source: &Object, at: &At<'_>) {
    match (given_text(source, "name"), given_text(source, "signerName")) {
        (Some(name), Some(_)) => at.invalid(name, "only one of name and signerName may be used"),
        (Some(name), None) => {
            at.field("name").not_empty(name);
            at.check_text(source, "name", trust_bundle_name);
            if source.contains_key("labelSelector") {
                at.field("labelSelector").invalid("", "must be unset if name is specified");
            }
        }
        (None, Some(signer)) => {
            self::signer(signer, &at.field("signerName"));
            at.object(source, "labelSelector", scheduling::label_selector);
        }
        (None, None) => at.required("either name or signerName must be specified"),
    }
    path(text(source, "path"), at);
}

/// Checks the name of a bundle: a subdomain, with an optional signer's name and colon before it.
fn trust_bundle_name(name: &str) -> syntax::SyntaxResult {
    match name.rsplit_once(':') {
        Some(("", _)) => Err("must not begin with ':'"),
        Some((signer, _)) if signer.contains('/') => {
            Err("must have ':' in place of '/' in the signer's name")
        }
        Some((_, name)) => syntax::subdomain(name),
        None => syntax::subdomain(name),
    }
}

/// Validates the name of a signer: `example.com/signer-name`.
fn signer(name: &str, at: &At<'_>) {
    if name.is_empty() {
        return at.required("");
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return at.invalid(name, why);
    };
    at.max_bytes(domain.len(), MAX_DOMAIN);
    if let Some(why) = domain.split('.').find_map(|label| syntax::label(label).err()) {
        at.invalid(domain, why);
    }
    if !domain.contains('.') {
        at.invalid(domain, "should be a domain with at least two segments separated by dots");
    }
    if let Some(why) = rest.split('.').find_map(|label| syntax::subdomain(label).err()) {
        at.invalid(rest, why);
    }
    at.max_bytes(name.len(), MAX_SIGNER);
}

fn certificate(source: &Object, at: &At<'_>) {
    let signer = text(source, "signerName");
    self::signer(signer, &at.field("signerName"));
    at.object(source, "userAnnotations", user_annotations);
    at.field("keyType").one_of(text(source, "keyType"), &KEY_TYPES);
    if let Some(seconds) = number(source, "maxExpirationSeconds") {
        let domain = signer.split('/').next().unwrap_or_default();
        let is_kubernetes = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let most = if is_kubernetes { MAX_KUBERNETES_CERTIFICATE_SECONDS } else { MAX_CERTIFICATE_SECONDS };
        if !(MIN_CERTIFICATE_SECONDS..=most).contains(&seconds) {
            let why = format!("must be from {MIN_CERTIFICATE_SECONDS} to {most}");
            at.field("maxExpirationSeconds").invalid(seconds, &why);
        }
    }
    for field in CERTIFICATE_PATHS {
        at.check_filled(source, field, syntax::local_path);
    }
    if CERTIFICATE_PATHS.iter().all(|field| text(source, field).is_empty()) {
        at.required("specify at least one of credentialBundlePath, keyPath, and certificateChainPath");
    }
}

/// Validates annotations for a signer: each key must begin with a domain.
fn user_annotations(at: &At<'_>, annotations: &Object) {
    for key in annotations.keys() {
        let at = at.key(key).unnamed();
        if key.is_empty() {
            at.required("");
        } else if let Err(why) = syntax::qualified_caseless(key) {
            at.invalid(key.as_str(), why);
        } else if !key.contains('/') {
            at.invalid(key.as_str(), "must begin with a domain (acme.io/foo)");
        }
    }
    metadata::size(annotations, at);
}
