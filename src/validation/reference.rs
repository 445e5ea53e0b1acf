//! References to API objects, which a node without an API server cannot resolve (`HasAPIObjectReference`).

use super::{
    at::At,
    fields::{Object, number, text},
};
use crate::pod::{Problem, Stage, quoted};

/// Reports every reference in a pod's spec that only an API server can resolve.
pub(super) fn references(spec: &Object, at: &At<'_>) {
    for (field, value) in spec {
        let at = &at.field(field);
        match field.as_str() {
            "serviceAccountName" if value != "" => reject(at, "serviceaccounts"),
            "imagePullSecrets" => at.each_object(value, |at, secret| named(at, secret, "secrets")),
            "containers" | "initContainers" | "ephemeralContainers" => {
                at.each_object(value, environment);
            }
            "resourceClaims" if value.as_array().is_some_and(|claims| !claims.is_empty()) => {
                reject(at, "resourceclaims");
            }
            "volumes" => at.each_object(value, volume_source),
            _ => {}
        }
    }
}

fn reject(at: &At<'_>, resource: &str) {
    let rule = "pods of file, http and url may not reference";
    let why = || format!("{rule} {resource}: only an API server can resolve them");
    at.error(Stage::Reference, &|| Problem::error(why()));
}

/// Rejects the name in an object; an empty name is no reference.
fn named(at: &At<'_>, object: &Object, resource: &str) {
    if !text(object, "name").is_empty() {
        reject(&at.field("name"), resource);
    }
}

fn environment(at: &At<'_>, container: &Object) {
    let refer = |at: &At<'_>, source, field, resource| {
        at.object(source, field, |at, reference| named(at, reference, resource));
    };
    at.objects(container, "envFrom", |at, source| {
        refer(at, source, "secretRef", "secrets");
        refer(at, source, "configMapRef", "configmaps");
    });
    at.objects(container, "env", |at, variable| {
        at.object(variable, "valueFrom", |at, source| {
            refer(at, source, "secretKeyRef", "secrets");
            refer(at, source, "configMapKeyRef", "configmaps");
        });
    });
}

fn volume_source(at: &At<'_>, volume: &Object) {
    for (kind, source) in volume {
        let at = at.field(kind);
        let Some(source) = source.as_object() else { continue };
        match kind.as_str() {
            "configMap" => reject(&at, "configmaps (via configmap volumes)"),
            "secret" => reject(&at, "secrets (via secret volumes)"),
            "csi" => reject(&at, "csidrivers (via CSI volumes)"),
            "glusterfs" => reject(&at, "endpoints (via glusterFS volumes)"),
            "persistentVolumeClaim" => reject(&at, "persistentvolumeclaims"),
            "ephemeral" => reject(&at, "persistentvolumeclaims (via ephemeral volumes)"),
            "azureFile" => reject(&at, "secrets (via azureFile volumes)"),
            "projected" => at.objects(source, "sources", projection),
            // iscsi, rbd, cephfs, cinder, flexVolume, scaleIO and storageos may have a secretRef.
            _ => at.object(source, "secretRef", |at, secret| named(at, secret, "secrets")),
        }
    }
}

fn projection(at: &At<'_>, source: &Object) {
    if source.is_empty() {
        let why =
            "unknown source of a projected volume: without an API server only downwardAPI can be resolved";
        return at.error(Stage::Reference, &|| Problem::error(why));
    }
    for kind in source.keys() {
        let at = at.field(kind);
        match kind.as_str() {
            "configMap" => reject(&at, "configmaps (via projected volumes)"),
            "secret" => reject(&at, "secrets (via projected volumes)"),
            "serviceAccountToken" => reject(&at, "serviceaccounts (via projected volumes)"),
            "clusterTrustBundle" => reject(&at, "clustertrustbundles"),
            "podCertificate" => reject(&at, "podcertificates"),
            _ => {}
        }
    }
}

/// The classes that every cluster has, and their values.
const STANDARD: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Warns of a priority without a class, a class without a priority, and a contradiction.
/// The class of a static pod is not looked up, so class and value must be given together.
pub(super) fn priority(spec: &Object, at: &At<'_>) {
    let (class, value) = (text(spec, "priorityClassName"), number(spec, "priority"));
    let standard = STANDARD.iter().find(|(name, _)| *name == class).map(|(_, value)| *value);
    match (class, value) {
        ("", None) => {}
        ("", Some(_)) => {
            let why = || "priority is set without priorityClassName: set both".to_owned();
            at.field("priority").warning(&why);
        }
        (class, None) => at.field("priorityClassName").warning(&|| {
            let (class, value) =
                (quoted(class), standard.map_or("its value".into(), |value| value.to_string()));
            format!("the class {class} of a static pod is not looked up: set priority to {value} too")
        }),
        (class, Some(value)) => {
            if let Some(standard) = standard.filter(|standard| *standard != value) {
                let why = || format!("the priority of the class {class} is {standard}, not {value}");
                at.field("priority").warning(&why);
            }
        }
    }
}
