//! Volumes with files made from API objects: the downward API, and projected volumes.

use std::collections::BTreeSet;

use super::{
    environment,
    errors::Errors,
    fields::{Object, given_text, number, object, objects, text},
    metadata, scheduling, storage, syntax,
};
use crate::pod::FieldPath;

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

const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

pub(super) fn downward_api(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    storage::mode(source, "defaultMode", path, errors);
    objects(&path.field("items").unnamed(), source, "items", |path, file| {
        downward_file(file, &path.unnamed(), errors);
    });
}

/// Validates a file of the downward API. The API's paths do not have the list and its index.
fn downward_file(file: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let place = text(file, "path");
    errors.not_empty(&path.field("path"), place);
    errors.check(&path.field("path"), place, syntax::local_path(place));
    match (object(file, "fieldRef"), object(file, "resourceFieldRef")) {
        (Some(field), resource) => {
            environment::field_reference(field, &environment::FILE_FIELDS, &path.field("fieldRef"), errors);
            if resource.is_some() {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(path, place, why);
            }
        }
        (None, Some(resource)) => {
            environment::resource_reference(resource, true, &path.field("resourceFieldRef"), errors);
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    storage::mode(file, "mode", path, errors);
}

/// The paths of the files of a projected volume, which must be unique.
struct FilePaths<'v, 'p> {
    paths: BTreeSet<&'v str>,
    volume: &'p FieldPath<'p>,
}

impl<'v> FilePaths<'v, '_> {
    fn add(&mut self, file: &'v str, errors: &mut Errors<'_>) {
        if !self.paths.insert(file) {
            errors.invalid(self.volume, file, "conflicting duplicate paths");
        }
    }
}

pub(super) fn validate(volume: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    storage::mode(volume, "defaultMode", path, errors);
    let mut files = FilePaths { paths: BTreeSet::new(), volume: path };
    objects(&path.field("sources"), volume, "sources", |path, source| {
        let mut count = 0;
        for (kind, source) in source {
            let Some(source) = source.as_object() else { continue };
            let path = path.field(kind);
            match kind.as_str() {
                "secret" | "configMap" => keys(source, &path, &mut files, errors),
                "downwardAPI" => {
                    objects(&path.field("items").unnamed(), source, "items", |path, file| {
                        downward_file(file, &path.unnamed(), errors);
                        let place = text(file, "path");
                        if !place.is_empty() {
                            files.add(place, errors);
                        }
                    });
                }
                "serviceAccountToken" => token(source, &path, files.volume, errors),
                "clusterTrustBundle" => {
                    trust_bundle(source, &path, errors);
                    files.add(text(source, "path"), errors);
                }
                "podCertificate" => certificate(source, &path, &mut files, errors),
                _ => continue,
            }
            count += 1;
        }
        if count > 1 {
            errors.forbidden(path, "may not specify more than 1 volume type per source");
        }
    });
}

/// Validates the keys of a Secret or `ConfigMap` that become files.
fn keys<'v>(
    source: &'v Object,
    path: &FieldPath<'_>,
    files: &mut FilePaths<'v, '_>,
    errors: &mut Errors<'_>,
) {
    errors.not_empty(&path.field("name"), text(source, "name"));
    objects(&path.field("items"), source, "items", |path, item| {
        storage::key_to_path(item, path, errors);
        let place = text(item, "path");
        if !place.is_empty() {
            files.add(place, errors);
        }
    });
}

/// Validates a token. The API's path of its file is that of the volume.
fn token(source: &Object, path: &FieldPath<'_>, volume: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let seconds = number(source, "expirationSeconds").unwrap_or_default();
    if seconds < MIN_TOKEN_SECONDS {
        let why = "may not specify a duration less than 10 minutes";
        errors.invalid(&path.field("expirationSeconds"), seconds, why);
    }
    if seconds > MAX_TOKEN_SECONDS {
        let why = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(&path.field("expirationSeconds"), seconds, why);
    }
    let (place, path) = (text(source, "path"), volume.field("path"));
    errors.not_empty(&path, place);
    errors.check(&path, place, syntax::local_path(place));
}

fn trust_bundle(source: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let selector = object(source, "labelSelector");
    match (given_text(source, "name"), given_text(source, "signerName")) {
        (Some(name), Some(_)) => errors.invalid(path, name, "only one of name and signerName may be used"),
        (Some(name), None) => {
            errors.not_empty(&path.field("name"), name);
            errors.check_text(source, "name", path, trust_bundle_name);
            if selector.is_some() {
                errors.invalid(&path.field("labelSelector"), "", "must be unset if name is specified");
            }
        }
        (None, Some(signer)) => {
            self::signer(signer, &path.field("signerName"), errors);
            if let Some(selector) = selector {
                scheduling::label_selector(selector, &path.field("labelSelector"), errors);
            }
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    errors.not_empty(&path.field("path"), text(source, "path"));
    errors.check_text(source, "path", path, syntax::local_path);
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
fn signer(name: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.invalid(path, name, why);
    };
    errors.max_bytes(path, domain.len(), MAX_DOMAIN);
    if let Some(why) = domain.split('.').find_map(|label| syntax::label(label).err()) {
        errors.invalid(path, domain, why);
    }
    if !domain.contains('.') {
        errors.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    if let Some(why) = rest.split('.').find_map(|label| syntax::subdomain(label).err()) {
        errors.invalid(path, rest, why);
    }
    errors.max_bytes(path, name.len(), MAX_SIGNER);
}

fn certificate<'v>(
    source: &'v Object,
    path: &FieldPath<'_>,
    files: &mut FilePaths<'v, '_>,
    errors: &mut Errors<'_>,
) {
    let signer = text(source, "signerName");
    self::signer(signer, &path.field("signerName"), errors);
    if let Some(annotations) = object(source, "userAnnotations") {
        user_annotations(annotations, &path.field("userAnnotations"), errors);
    }
    errors.one_of(&path.field("keyType"), text(source, "keyType"), &KEY_TYPES);
    if let Some(seconds) = number(source, "maxExpirationSeconds") {
        let domain = signer.split('/').next().unwrap_or_default();
        let is_kubernetes = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let most = if is_kubernetes { MAX_KUBERNETES_CERTIFICATE_SECONDS } else { MAX_CERTIFICATE_SECONDS };
        if !(MIN_CERTIFICATE_SECONDS..=most).contains(&seconds) {
            let why = format!("must be from {MIN_CERTIFICATE_SECONDS} to {most}");
            errors.invalid(&path.field("maxExpirationSeconds"), seconds, &why);
        }
    }
    let mut paths = 0;
    for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let place = text(source, field);
        if !place.is_empty() {
            paths += 1;
            errors.check(&path.field(field), place, syntax::local_path(place));
            files.add(place, errors);
        }
    }
    if paths == 0 {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(path, why);
    }
}

/// Validates annotations for a signer: each key must begin with a domain.
fn user_annotations(annotations: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for key in annotations.keys() {
        let path = path.key(key).unnamed();
        if key.is_empty() {
            errors.required(&path, "");
        } else if let Err(why) = syntax::qualified_caseless(key) {
            errors.invalid(&path, key.as_str(), why);
        } else if !key.contains('/') {
            errors.invalid(&path, key.as_str(), "must begin with a domain (acme.io/foo)");
        }
    }
    metadata::size(annotations, path, errors);
}
