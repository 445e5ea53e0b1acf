//! What a pod may not refer to on a node that has no API server to ask (`HasAPIObjectReference`).

use super::{
    fields::{Object, each_object, object, objects, text},
    report::Report,
};
use crate::pod::{FieldPath, Problem, Stage};

/// Tells every reference of a pod's spec that only an API server could resolve.
pub(super) fn references(spec: &Object, path: &FieldPath<'_>, report: &mut dyn Report) {
    for (field, value) in spec {
        let path = &path.field(field);
        match field.as_str() {
            "serviceAccountName" if value != "" => refuse(path, "serviceaccounts", report),
            "imagePullSecrets" => each_object(value, path, |path, secret| {
                named(path, secret, "name", "secrets", report);
            }),
            "containers" | "initContainers" | "ephemeralContainers" => {
                each_object(value, path, |path, container| environment(path, container, report));
            }
            "resourceClaims" if value.as_array().is_some_and(|claims| !claims.is_empty()) => {
                refuse(path, "resourceclaims", report);
            }
            "volumes" => each_object(value, path, |path, volume| volume_source(path, volume, report)),
            _ => {}
        }
    }
}

fn refuse(path: &FieldPath<'_>, resource: &str, report: &mut dyn Report) {
    report.error(Stage::Reference, path, &|| {
        Problem::error(format!("static pods may not reference {resource}: a node cannot resolve them alone"))
    });
}

/// Refuses what an object names in a field; an empty name refers to nothing.
fn named(path: &FieldPath<'_>, object: &Object, field: &str, resource: &str, report: &mut dyn Report) {
    if !text(object, field).is_empty() {
        refuse(&path.field(field), resource, report);
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
            "configMap" => refuse(&path, "configmaps (via configmap volumes)", report),
            "secret" => refuse(&path, "secrets (via secret volumes)", report),
            "csi" => refuse(&path, "csidrivers (via CSI volumes)", report),
            "glusterfs" => refuse(&path, "endpoints (via glusterFS volumes)", report),
            "persistentVolumeClaim" => refuse(&path, "persistentvolumeclaims", report),
            "ephemeral" => refuse(&path, "persistentvolumeclaims (via ephemeral volumes)", report),
            "azureFile" => refuse(&path, "secrets (via azureFile volumes)", report),
            "projected" => {
                let sources = path.field("sources");
                objects(&sources, source, "sources", |path, source| projection(path, source, report));
            }
            // iscsi, rbd, cephfs, cinder, flexVolume, scaleIO and storageos may have one.
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
        let why = "unknown source for a projected volume: a node alone can resolve downwardAPI only";
        return report.error(Stage::Reference, path, &|| Problem::error(why));
    }
    for kind in source.keys() {
        let path = path.field(kind);
        match kind.as_str() {
            "configMap" => refuse(&path, "configmaps (via projected volumes)", report),
            "secret" => refuse(&path, "secrets (via projected volumes)", report),
            "serviceAccountToken" => refuse(&path, "serviceaccounts (via projected volumes)", report),
            "clusterTrustBundle" => refuse(&path, "clustertrustbundles", report),
            "podCertificate" => refuse(&path, "podcertificates", report),
            _ => {}
        }
    }
}
