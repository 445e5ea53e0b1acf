//! References to API objects, which a node without an API server cannot resolve (`HasAPIObjectReference`).

use super::{
    fields::{Object, each_object, object, objects, text},
    report::Report,
};
use crate::pod::{FieldPath, Problem, Stage};

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
