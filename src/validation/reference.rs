//! References to API objects, which a node without an API server cannot resolve (`HasAPIObjectReference`).

use super::{
    errors::Report,
    fields::{Object, each_object, number, object, objects, text},
};
use crate::pod::{FieldPath, Problem, Stage, quoted};

/// Reports every reference in a pod's spec that only an API server can resolve.
pub(super) fn references(spec: &Object, path: &FieldPath<'_>, report: &mut dyn Report) {
    for (field, value) in spec {
        let path = &path.field(field);
        match field.as_str() {
            "serviceAccountName" if value != "" => reject(path, "serviceaccounts", report),
            "imagePullSecrets" => each_object(value, path, |path, secret| {
                named(path, secret, "name", "secrets", report);
            }),
            "containers" | "initContainers" | "ephemeralContainers" => {
                each_object(value, path, |path, container| environment(path, container, report));
            }
            "resourceClaims" if value.as_array().is_some_and(|claims| !claims.is_empty()) => {
                reject(path, "resourceclaims", report);
            }
            "volumes" => each_object(value, path, |path, volume| volume_source(path, volume, report)),
            _ => {}
        }
    }
}

fn reject(path: &FieldPath<'_>, resource: &str, report: &mut dyn Report) {
    report.error(Stage::Reference, path, &|| {
        Problem::error(format!(
            "static pods may not reference {resource}: only an API server can resolve them"
        ))
    });
}

/// Rejects a name in a field of an object; an empty name is no reference.
fn named(path: &FieldPath<'_>, object: &Object, field: &str, resource: &str, report: &mut dyn Report) {
    if !text(object, field).is_empty() {
        reject(&path.field(field), resource, report);
    }
}

fn environment(path: &FieldPath<'_>, container: &Object, report: &mut dyn Report) {
    let mut refer = |path: &FieldPath<'_>, source: &Object, field: &str, resource| {
        if let Some(reference) = object(source, field) {
            named(&path.field(field), reference, "name", resource, report);
        }
    };
    objects(&path.field("envFrom"), container, "envFrom", |path, source| {
        refer(path, source, "secretRef", "secrets");
        refer(path, source, "configMapRef", "configmaps");
    });
    objects(&path.field("env"), container, "env", |path, variable| {
        if let Some(source) = object(variable, "valueFrom") {
            let path = path.field("valueFrom");
            refer(&path, source, "secretKeyRef", "secrets");
            refer(&path, source, "configMapKeyRef", "configmaps");
        }
    });
}

fn volume_source(path: &FieldPath<'_>, volume: &Object, report: &mut dyn Report) {
    for (kind, source) in volume {
        let path = path.field(kind);
        let Some(source) = source.as_object() else { continue };
        match kind.as_str() {
            "configMap" => reject(&path, "configmaps (via configmap volumes)", report),
            "secret" => reject(&path, "secrets (via secret volumes)", report),
            "csi" => reject(&path, "csidrivers (via CSI volumes)", report),
            "glusterfs" => reject(&path, "endpoints (via glusterFS volumes)", report),
            "persistentVolumeClaim" => reject(&path, "persistentvolumeclaims", report),
            "ephemeral" => reject(&path, "persistentvolumeclaims (via ephemeral volumes)", report),
            "azureFile" => reject(&path, "secrets (via azureFile volumes)", report),
            "projected" => {
                let sources = path.field("sources");
                objects(&sources, source, "sources", |path, source| projection(path, source, report));
            }
            // iscsi, rbd, cephfs, cinder, flexVolume, scaleIO and storageos may have a secretRef.
            _ => {
                if let Some(secret) = object(source, "secretRef") {
                    named(&path.field("secretRef"), secret, "name", "secrets", report);
                }
            }
        }
    }
}

fn projection(path: &FieldPath<'_>, source: &Object, report: &mut dyn Report) {
    if source.is_empty() {
        let why =
            "unknown source of a projected volume: without an API server only downwardAPI can be resolved";
        return report.error(Stage::Reference, path, &|| Problem::error(why));
    }
    for kind in source.keys() {
        let path = path.field(kind);
        match kind.as_str() {
            "configMap" => reject(&path, "configmaps (via projected volumes)", report),
            "secret" => reject(&path, "secrets (via projected volumes)", report),
            "serviceAccountToken" => reject(&path, "serviceaccounts (via projected volumes)", report),
            "clusterTrustBundle" => reject(&path, "clustertrustbundles", report),
            "podCertificate" => reject(&path, "podcertificates", report),
            _ => {}
        }
    }
}

/// The classes that every cluster has, and their values.
const STANDARD: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Warns of a priority without a class, a class without a priority, and a contradiction.
/// The class of a static pod is not looked up, so class and value must be given together.
pub(super) fn priority(spec: &Object, path: &FieldPath<'_>, report: &mut dyn Report) {
    let (class, value) = (text(spec, "priorityClassName"), number(spec, "priority"));
    let standard = STANDARD.iter().find(|(name, _)| *name == class).map(|(_, value)| *value);
    match (class, value) {
        ("", None) => {}
        ("", Some(_)) => report.warning(&path.field("priority"), &|| {
            Problem::warning("priority is set without priorityClassName: set both")
        }),
        (class, None) => report.warning(&path.field("priorityClassName"), &|| {
            let value = standard.map_or("its value".to_owned(), |value| value.to_string());
            Problem::warning(format!(
                "the class {} of a static pod is not looked up: set priority to {value} too",
                quoted(class)
            ))
        }),
        (class, Some(value)) => {
            if let Some(standard) = standard.filter(|standard| *standard != value) {
                report.warning(&path.field("priority"), &|| {
                    Problem::warning(format!("the priority of the class {class} is {standard}, not {value}"))
                });
            }
        }
    }
}
