//! What an API server warns of when it creates a pod, in its words.
//!
//! The rules are those of `GetWarningsForPod` (`pkg/api/pod/warnings.go`) and of the pods' `WarningsOnCreate`
//! (`pkg/registry/core/pod/strategy.go`) in Kubernetes v1.36. Their warnings about IPv4 addresses are missing:
//! a pod with such an address is invalid.

mod bounds;
mod paths;
mod ports;
mod spec;
mod text;

use std::collections::BTreeSet;

use self::{bounds::MAX_LABEL, text::quoted};
use super::{
    annotation::{APP_ARMOR, SECCOMP, SECCOMP_OF_POD},
    at::At,
    fields::{Object, given_text, object, text},
};
use crate::pod::Quantity;

const NO_SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
/// The longest name of an `AppArmor` profile, in bytes.
const MAX_PROFILE: usize = 4095;

const SYSCTLS: &str = r#"non-functional in v1.11+; use the "sysctls" field instead"#;
const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", SYSCTLS),
    ("security.alpha.kubernetes.io/unsafe-sysctls", SYSCTLS),
];

const DEPRECATED_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Warns of everything in a valid pod. `name` is its name in the manifest.
pub(super) fn of_valid_pod(pod: &Object, name: &str, at: &At<'_>) {
    let (Some(metadata), Some(spec)) = (object(pod, "metadata"), object(pod, "spec")) else { return };
    let (metadata_at, spec_at) = (at.field("metadata"), at.field("spec"));
    of_name(name, &metadata_at.field("name"));
    spec::scheduling(spec, &spec_at);
    let annotations = object(metadata, "annotations");
    let annotations_at = metadata_at.field("annotations");
    let has = |key: &str| annotations.is_some_and(|annotations| annotations.contains_key(key));
    for (key, why) in DEPRECATED_ANNOTATIONS.into_iter().filter(|(key, _)| has(key)) {
        annotations_at.key(key).warning(&|| why.to_owned());
    }
    volumes(spec, &spec_at);
    spec::repeated(spec, &spec_at);
    spec_at
        .object(spec, "overhead", |at, overhead| fractions(overhead, &["memory", "ephemeral-storage"], at));
    if has(SECCOMP_OF_POD) && !has_profile(spec, "seccompProfile") {
        annotations_at.key(SECCOMP_OF_POD).warning(&|| NO_SECCOMP.to_owned());
    }
    spec_at.each_container(spec, |at, container| {
        let key = format!("{SECCOMP}{}", text(container, "name"));
        if has(&key) && !has_profile(container, "seccompProfile") {
            annotations_at.key(&key).warning(&|| NO_SECCOMP.to_owned());
        }
        at.object(container, "resources", |at, resources| {
            for resource in ["memory", "ephemeral-storage"] {
                for field in ["limits", "requests"] {
                    at.object(resources, field, |at, amounts| fractions(amounts, &[resource], at));
                }
            }
        });
        environment(container, at);
    });
    ports::warn(spec, &spec_at);
    spec::rest(spec, &spec_at);
}

/// Warns of annotations for `AppArmor` that an API server would copy into fields. It does so before validation, so
/// it warns of an invalid pod too.
pub(super) fn of_app_armor(pod: &Object, at: &At<'_>) {
    let (Some(metadata), Some(spec)) = (object(pod, "metadata"), object(pod, "spec")) else { return };
    let Some(annotations) = object(metadata, "annotations") else { return };
    if object(spec, "os").is_some_and(|os| text(os, "name") == "windows") {
        return;
    }
    let (spec_at, metadata_at) = (at.field("spec"), at.field("metadata"));
    let annotations_at = metadata_at.field("annotations");
    let of_pod = object(spec, "securityContext").and_then(|context| object(context, "appArmorProfile"));
    spec_at.each_container(spec, |_, container| {
        let key = format!("{APP_ARMOR}{}", text(container, "name"));
        let Some(annotation) = given_text(annotations, &key) else { return };
        if has_profile(container, "appArmorProfile")
            || of_pod.is_some_and(|profile| is_same(annotation, profile))
        {
            return;
        }
        let why = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
        annotations_at.key(&key).warning(&|| why.to_owned());
    });
}

/// Whether an annotation is valid and has the same meaning as a profile.
fn is_same(annotation: &str, profile: &Object) -> bool {
    match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default",
        "Localhost" => annotation.strip_prefix("localhost/").is_some_and(|name| {
            Some(name) == given_text(profile, "localhostProfile")
                && name.trim() == name
                && !name.is_empty()
                && name.len() <= MAX_PROFILE
        }),
        _ => false,
    }
}

/// Whether the security context of a pod or a container has a profile.
fn has_profile(of: &Object, field: &str) -> bool {
    object(of, "securityContext").is_some_and(|context| context.contains_key(field))
}

/// Warns of a name that is no label. As the name of a valid pod, it is a subdomain.
fn of_name(name: &str, at: &At<'_>) {
    let too_long = (name.len() > MAX_LABEL).then_some("must be no more than 63 characters");
    let dots = name.contains('.').then_some("must not contain dots");
    let why: Vec<&str> = too_long.into_iter().chain(dots).collect();
    if !why.is_empty() {
        at.warning(&|| {
            let why = why.join(" ");
            format!(
                "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
                recommended: [{why}]"
            )
        });
    }
}

fn volumes(spec: &Object, at: &At<'_>) {
    at.objects(spec, "volumes", |at, volume| {
        for (field, why) in DEPRECATED_VOLUMES.into_iter().filter(|(field, _)| volume.contains_key(*field)) {
            let at = at.field(field);
            match field {
                // The API's path has another name here.
                "storageos" => at.unnamed().named("storageOS").warning(&|| why.to_owned()),
                _ => at.warning(&|| why.to_owned()),
            }
        }
        at.object(volume, "ephemeral", |at, ephemeral| {
            at.object(ephemeral, "volumeClaimTemplate", |at, template| {
                at.object(template, "spec", |at, claim| {
                    at.object(claim, "resources", |at, resources| {
                        for field in ["requests", "limits"] {
                            at.object(resources, field, |at, amounts| fractions(amounts, &["storage"], at));
                        }
                    });
                });
            });
        });
    });
    // The API's words about paths have no path of a field.
    let at = at.unnamed();
    let at = at.field("volumes").unnamed();
    if let Some(volumes) = spec.get("volumes") {
        at.each_object(volumes, |at, volume| paths::warn(volume, &at.unnamed()));
    }
}

/// Warns of amounts of these resources that are not whole bytes.
fn fractions(amounts: &Object, resources: &[&str], at: &At<'_>) {
    for resource in resources {
        let Some(amount) = given_text(amounts, resource) else { continue };
        if Quantity::parse(amount).is_some_and(|amount| amount.to_milli_i64_up() % 1000 != 0) {
            at.key(resource).warning(&|| {
                format!("fractional byte value {} is invalid, must be an integer", quoted(amount))
            });
        }
    }
}

/// Warns of a variable that hides another one without using it.
fn environment(container: &Object, at: &At<'_>) {
    let mut names = BTreeSet::new();
    at.objects(container, "env", |at, variable| {
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        if names.insert(name) {
            return;
        }
        let reference = format!("$({name})");
        if variable.contains_key("valueFrom") || value == reference || !value.contains(&reference) {
            at.warning(&|| {
                let name = quoted(name);
                format!("hides previous definition of {name}, which may be dropped when using apply")
            });
        }
    });
}
