//! Validation reports each invalid field of a pod with its position and reason, as the API does.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    clippy::needless_pass_by_value,
    reason = "expectations are written by expect-test and as long as the output; a value made in place is easy to read"
)]

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use podmux::{
    manifest::{self, MAX_LOOKS, Manifest, Preparation},
    pod::{InvalidManifest, NodeName, Problem, SourceName, Stage},
    validation::invalid_name,
};
use serde_json::{Value, json};

fn read_as(source: SourceName, text: &str) -> Result<Manifest, InvalidManifest> {
    let node = NodeName::new("node1").unwrap();
    manifest::read(text.as_bytes(), &Preparation { source, node, generate: None, namespace: None })
}

fn read(text: &str) -> Result<Manifest, InvalidManifest> {
    read_as(SourceName::File, text)
}

fn line(problem: &Problem) -> String {
    let (line, column) = problem.position.unwrap_or_default();
    let field = problem.field.as_deref().unwrap_or("-");
    format!("{line}:{column} {field} {} {}", problem.reason.unwrap_or("-"), problem.detail)
}

/// Checks the stage or the names of the pods of a manifest, and each problem with its position.
fn check(text: &str, expected: &Expect) {
    let (head, problems) = match read_as(SourceName::Url, text) {
        Ok(manifest) => {
            let names: Vec<_> = manifest.pods.iter().map(|pod| pod.key().as_str().to_owned()).collect();
            (names.join(" "), manifest.warnings)
        }
        Err(invalid) => (format!("rejected: {}", invalid.stage.as_str()), invalid.problems),
    };
    let lines = problems.iter().fold(String::new(), |mut lines, problem| {
        writeln!(lines, "{}", line(problem)).unwrap();
        lines
    });
    expected.assert_eq(&format!("{head}\n{lines}"));
}

/// A pod with one valid container and more in its spec.
fn with(spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers: [{{name: c, image: i}}]\n{spec}"
    )
}

// TestExtractInvalidPods: no version, invalid version.
#[test]
fn a_pod_with_a_missing_or_wrong_version_is_rejected() {
    check(
        "kind: Pod\nmetadata: {name: a}\n",
        &expect![[r#"
            rejected: decode
            1:1 apiVersion FieldValueRequired Required value: apiVersion: v1 is expected
        "#]],
    );
    check(
        "apiVersion: v1betta2\nkind: Pod\nmetadata: {name: a}\n",
        &expect![[r#"
            rejected: decode
            1:13 apiVersion - the version of Pod is "v1betta2": write apiVersion: v1
        "#]],
    );
}

// TestExtractInvalidPods: invalid volume name, duplicate volume names.
#[test]
fn a_volume_has_a_unique_name() {
    check(
        &with("  volumes:\n  - name: _INVALID_\n"),
        &expect![[r#"
            rejected: validate
            7:11 spec.volumes[0].name FieldValueInvalid Invalid value: "_INVALID_": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
        "#]],
    );
    check(
        &with("  volumes:\n  - name: repeated\n  - name: repeated\n"),
        &expect![[r#"
        rejected: validate
        8:11 spec.volumes[1].name FieldValueDuplicate Duplicate value: "repeated"
    "#]],
    );
}

// TestExtractInvalidPods: unspecified container name, invalid container name.
#[test]
fn a_container_has_a_name() {
    let text = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers:\n  - image: i\n    name: {name}\n"
        )
    };
    check(
        &text("''"),
        &expect![[r#"
        rejected: validate
        7:11 spec.containers[0].name FieldValueRequired Required value
    "#]],
    );
    check(
        &text("_INVALID_"),
        &expect![[r#"
            rejected: validate
            7:11 spec.containers[0].name FieldValueInvalid Invalid value: "_INVALID_": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
        "#]],
    );
}

#[test]
fn all_problems_of_all_items_are_reported_with_their_positions() {
    check(
        "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: A, labels: {-: b, ok: 'a b'}}
  spec:
    containers:
    - name: c
      ports: [{containerPort: 70000}, {name: web}]
      volumeMounts: [{name: data, mountPath: /data}]
      readinessProbe: {httpGet: {port: 80}, exec: {command: [a]}}
      resources: {limits: {cpu: 1}, requests: {cpu: 2}}
    volumes:
    - name: secret
      secret: {secretName: s}
    restartPolicy: Sometimes
- apiVersion: v1
  kind: Pod
  metadata: {name: b}
  spec: {}
",
        &expect![[r#"
            rejected: validate
            6:20 items[0].metadata.name FieldValueInvalid Invalid value: "A-node1": a lowercase RFC 1123 subdomain consists of lower-case letters, digits, '-' and '.', and each of its parts begins and ends with a letter or digit
            6:35 items[0].metadata.labels FieldValueInvalid Invalid value: "-": the name part consists of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit
            6:42 items[0].metadata.labels FieldValueInvalid Invalid value: "a b": a label's value is empty or consists of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit
            9:7 items[0].spec.containers[0].image FieldValueRequired Required value
            10:31 items[0].spec.containers[0].ports[0].containerPort FieldValueInvalid Invalid value: 70000: must be between 1 and 65535, inclusive
            10:39 items[0].spec.containers[0].ports[1].containerPort FieldValueRequired Required value
            11:29 items[0].spec.containers[0].volumeMounts[0].name FieldValueNotFound Not found: "data"
            12:33 items[0].spec.containers[0].readinessProbe.httpGet FieldValueForbidden Forbidden: may not specify more than 1 handler type
            13:53 items[0].spec.containers[0].resources.requests FieldValueInvalid Invalid value: "2": must be less than or equal to the limit of "cpu", which is "1"
            16:15 items[0].spec.volumes[0].secret - pods of file, http and url may not reference secrets (via secret volumes): only an API server can resolve them
            17:20 items[0].spec.restartPolicy FieldValueNotSupported Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"
            21:9 items[1].spec.containers FieldValueRequired Required value
        "#]],
    );
}

// TestDecodeSinglePodRejectsClusterTrustBundleVolumes, TestDecodeSinglePodRejectsResourceClaims
#[test]
fn references_that_need_an_api_server_are_rejected() {
    check(
        &with(
            "  volumes:
  - name: v
    projected: {sources: [{clusterTrustBundle: {name: my-ctb, path: ctb-file}}]}
",
        ),
        &expect![[r#"
            rejected: reference
            8:48 spec.volumes[0].projected.sources[0].clusterTrustBundle - pods of file, http and url may not reference clustertrustbundles: only an API server can resolve them
        "#]],
    );
    check(
        "\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - {name: c, image: i, resources: {claims: [{name: my-claim}]}}
  resourceClaims:
  - {name: my-claim, resourceClaimName: some-external-claim}
",
        &expect![[r#"
            rejected: reference
            8:5 spec.resourceClaims - pods of file, http and url may not reference resourceclaims: only an API server can resolve them
        "#]],
    );
}

#[test]
fn every_reference_is_reported() {
    check(
        "\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  serviceAccount: me
  imagePullSecrets: [{name: s}, {}]
  containers:
  - name: c
    image: i
    envFrom: [{secretRef: {name: s}}, {configMapRef: {name: m}}]
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}
    - {name: B, valueFrom: {configMapKeyRef: {name: m, key: k}}}
    - {name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  volumes:
  - {name: v1, configMap: {name: m}}
  - {name: v2, secret: {secretName: s}}
  - {name: v3, csi: {driver: d.example.com}}
  - {name: v4, glusterfs: {endpoints: e, path: p}}
  - {name: v5, persistentVolumeClaim: {claimName: c}}
  - name: v6
    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}}
  - {name: v7, azureFile: {shareName: s, secretName: s}}
  - name: v8
    projected:
      sources:
      - configMap: {name: m}
      - secret: {name: s}
      - serviceAccountToken: {path: t}
      - clusterTrustBundle: {name: b, path: b}
      - podCertificate: {signerName: example.com/s, keyType: ED25519, keyPath: k}
      - downwardAPI: {items: [{path: f, fieldRef: {fieldPath: metadata.name}}]}
      - {}
  - {name: v9, iscsi: {targetPortal: p, iqn: 'iqn.2026-11.com.example:d', lun: 0, secretRef: {name: s}}}
  - {name: w1, rbd: {monitors: [m], image: i, secretRef: {name: s}}}
  - {name: w2, cephfs: {monitors: [m], secretRef: {name: s}}}
  - {name: w3, cinder: {volumeID: v, secretRef: {name: s}}}
  - {name: w4, flexVolume: {driver: d, secretRef: {name: s}}}
  - {name: w5, scaleIO: {gateway: g, system: s, volumeName: v, secretRef: {name: s}}}
  - {name: w6, storageos: {volumeName: v, secretRef: {name: s}}}
  - {name: x1, hostPath: {path: /}}
  - {name: x2, emptyDir: {}}
  - {name: x3, downwardAPI: {items: [{path: f, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: x4, image: {reference: i}}
  - {name: x5, nfs: {server: s, path: /}}
  - {name: x6, iscsi: {targetPortal: p, iqn: 'iqn.2026-11.com.example:d', lun: 0}}
  - {name: x7, fc: {wwids: [a]}}
",
        &expect![[r#"
            rejected: reference
            5:3 spec.serviceAccountName - pods of file, http and url may not reference serviceaccounts: only an API server can resolve them
            6:29 spec.imagePullSecrets[0].name - pods of file, http and url may not reference secrets: only an API server can resolve them
            10:34 spec.containers[0].envFrom[0].secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            10:61 spec.containers[0].envFrom[1].configMapRef.name - pods of file, http and url may not reference configmaps: only an API server can resolve them
            12:50 spec.containers[0].env[0].valueFrom.secretKeyRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            13:53 spec.containers[0].env[1].valueFrom.configMapKeyRef.name - pods of file, http and url may not reference configmaps: only an API server can resolve them
            16:27 spec.volumes[0].configMap - pods of file, http and url may not reference configmaps (via configmap volumes): only an API server can resolve them
            17:24 spec.volumes[1].secret - pods of file, http and url may not reference secrets (via secret volumes): only an API server can resolve them
            18:21 spec.volumes[2].csi - pods of file, http and url may not reference csidrivers (via CSI volumes): only an API server can resolve them
            19:27 spec.volumes[3].glusterfs - pods of file, http and url may not reference endpoints (via glusterFS volumes): only an API server can resolve them
            20:39 spec.volumes[4].persistentVolumeClaim - pods of file, http and url may not reference persistentvolumeclaims: only an API server can resolve them
            22:16 spec.volumes[5].ephemeral - pods of file, http and url may not reference persistentvolumeclaims (via ephemeral volumes): only an API server can resolve them
            23:27 spec.volumes[6].azureFile - pods of file, http and url may not reference secrets (via azureFile volumes): only an API server can resolve them
            27:20 spec.volumes[7].projected.sources[0].configMap - pods of file, http and url may not reference configmaps (via projected volumes): only an API server can resolve them
            28:17 spec.volumes[7].projected.sources[1].secret - pods of file, http and url may not reference secrets (via projected volumes): only an API server can resolve them
            29:30 spec.volumes[7].projected.sources[2].serviceAccountToken - pods of file, http and url may not reference serviceaccounts (via projected volumes): only an API server can resolve them
            30:29 spec.volumes[7].projected.sources[3].clusterTrustBundle - pods of file, http and url may not reference clustertrustbundles: only an API server can resolve them
            31:25 spec.volumes[7].projected.sources[4].podCertificate - pods of file, http and url may not reference podcertificates: only an API server can resolve them
            33:9 spec.volumes[7].projected.sources[6] - unknown source of a projected volume: without an API server only downwardAPI can be resolved
            34:101 spec.volumes[8].iscsi.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            35:65 spec.volumes[9].rbd.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            36:58 spec.volumes[10].cephfs.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            37:56 spec.volumes[11].cinder.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            38:58 spec.volumes[12].flexVolume.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            39:82 spec.volumes[13].scaleIO.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
            40:61 spec.volumes[14].storageos.secretRef.name - pods of file, http and url may not reference secrets: only an API server can resolve them
        "#]],
    );
}

// TestDecodeSinglePodWithOptions
#[test]
fn a_container_may_have_its_own_restart_policy() {
    let read = read(
        "\
apiVersion: v1
kind: Pod
metadata: {name: test, uid: '12345', namespace: mynamespace}
spec:
  restartPolicy: Never
  containers:
  - {name: image, image: test/image, restartPolicy: Always}
  - name: ruled
    image: i
    restartPolicy: OnFailure
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
",
    );
    let pods = read.unwrap().pods;
    assert_eq!(pods[0].object()["spec"]["containers"][0]["restartPolicy"], "Always");
    assert_eq!(pods[0].object()["spec"]["containers"][1]["restartPolicyRules"][0]["action"], "Restart");
}

// The five priority warnings of upstream master.
#[test]
fn a_priority_class_without_a_value_is_a_warning() {
    check(
        &with("  priorityClassName: system-node-critical\n"),
        &expect![[r#"
            default/a-node1
            6:22 spec.priorityClassName - the class "system-node-critical" of a static pod is not looked up: set priority to 2000001000 too
        "#]],
    );
    check(
        &with("  priorityClassName: mine\n"),
        &expect![[r#"
            default/a-node1
            6:22 spec.priorityClassName - the class "mine" of a static pod is not looked up: set priority to its value too
        "#]],
    );
}

#[test]
fn a_priority_without_a_class_is_a_warning() {
    check(
        &with("  priority: 1000\n"),
        &expect![[r#"
            default/a-node1
            6:13 spec.priority - priority is set without priorityClassName: set both
        "#]],
    );
}

#[test]
fn a_system_class_with_another_value_is_a_warning() {
    check(
        &with("  priorityClassName: system-cluster-critical\n  priority: 2000001000\n"),
        &expect![[r#"
            default/a-node1
            7:13 spec.priority - the priority of the class system-cluster-critical is 2000000000, not 2000001000
        "#]],
    );
}

#[test]
fn a_priority_class_with_its_value_is_no_warning() {
    for (class, value) in
        [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000), ("mine", 7)]
    {
        let pod = with(&format!("  priorityClassName: {class}\n  priority: {value}\n"));
        assert_eq!(read(&pod).unwrap().warnings, []);
    }
}

// The basis of TestInvalidPodFiltered: an invalid manifest is rejected as a whole, with the same problems each time.
#[test]
fn a_manifest_with_one_invalid_pod_is_rejected() {
    let valid = with("").replace("name: a", "name: good");
    let text = format!("{valid}---\n{}", with("  dnsPolicy: Sometimes\n"));
    let first = read(&text).unwrap_err();
    assert_eq!(first.stage, Stage::Validate);
    assert_eq!(
        first.to_string(),
        "12:14: spec.dnsPolicy: Unsupported value: \"Sometimes\": supported values: \
         \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\""
    );
    assert_eq!(read(&text).unwrap_err(), first);
}

/// The (field, reason) pairs of the problems of a pod.
fn causes(metadata: Value, spec: Value) -> Vec<(String, &'static str)> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    // Those of posted pods are discarded.
    let source = if metadata["managedFields"].is_null() { SourceName::Http } else { SourceName::File };
    for (part, more) in [("metadata", metadata), ("spec", spec)] {
        for (field, value) in more.as_object().unwrap() {
            pod[part][field] = value.clone();
        }
    }
    match read_as(source, &pod.to_string()) {
        Ok(_) => Vec::new(),
        Err(invalid) => {
            let pair = |problem: &Problem| Some((problem.field.clone()?, problem.reason?));
            invalid.problems.iter().filter_map(pair).collect()
        }
    }
}

/// A bound: how to make a pod of a size, the largest valid size, and the problem of one more.
type Bound = (&'static str, &'static str, usize, fn(usize) -> (Value, Value));

fn text(length: usize) -> String {
    "a".repeat(length)
}

fn spec(spec: Value) -> (Value, Value) {
    (json!({}), spec)
}

fn container(more: Value) -> (Value, Value) {
    let mut container = json!({"name": "c", "image": "i"});
    for (field, value) in more.as_object().unwrap() {
        container[field] = value.clone();
    }
    spec(json!({"containers": [container]}))
}

fn volume(source: &str, value: Value) -> (Value, Value) {
    let mut volume = json!({"name": "v"});
    volume[source] = value;
    spec(json!({"volumes": [volume]}))
}

const BOUNDS: &[Bound] = &[
    ("metadata.name", "FieldValueInvalid", 253, |n| (json!({"name": text(n)}), json!({}))),
    ("metadata.namespace", "FieldValueInvalid", 63, |n| (json!({"namespace": text(n)}), json!({}))),
    // The dash is not counted: an `a` replaces the last two bytes.
    ("metadata.generateName", "FieldValueInvalid", 254, |n| {
        (json!({"generateName": format!("{}-", text(n - 1))}), json!({}))
    }),
    ("metadata.labels", "FieldValueInvalid", 63, |n| (json!({"labels": {text(n): ""}}), json!({}))),
    ("metadata.labels", "FieldValueInvalid", 63, |n| (json!({"labels": {"a": text(n)}}), json!({}))),
    ("metadata.labels", "FieldValueInvalid", 253, |n| {
        (json!({"labels": {format!("{}/a", text(n)): ""}}), json!({}))
    }),
    // The kubelet's own annotation counts: its name and 32 bytes.
    ("metadata.annotations", "FieldValueTooLong", 256 * 1024 - 25 - 32 - 1, |n| {
        (json!({"annotations": {"a": text(n)}}), json!({}))
    }),
    ("metadata.managedFields[0].manager", "FieldValueTooLong", 128, |n| {
        (json!({"managedFields": [{"operation": "Apply", "manager": text(n)}]}), json!({}))
    }),
    ("metadata.managedFields[0].subresource", "FieldValueTooLong", 256, |n| {
        (json!({"managedFields": [{"operation": "Apply", "subresource": text(n)}]}), json!({}))
    }),
    ("spec.containers[0].name", "FieldValueInvalid", 63, |n| container(json!({"name": text(n)}))),
    ("spec.containers[0].ports[0].name", "FieldValueInvalid", 15, |n| {
        container(json!({"ports": [{"containerPort": 80, "name": text(n)}]}))
    }),
    ("spec.containers[0].ports[0].containerPort", "FieldValueInvalid", 65_535, |n| {
        container(json!({"ports": [{"containerPort": n}]}))
    }),
    ("spec.containers[0].restartPolicyRules", "FieldValueTooMany", 20, |n| {
        let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}});
        container(json!({"restartPolicy": "Never", "restartPolicyRules": vec![rule; n]}))
    }),
    ("spec.containers[0].restartPolicyRules[0].exitCodes.values", "FieldValueTooMany", 255, |n| {
        let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": vec![1; n]}});
        container(json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}))
    }),
    ("spec.containers[0].lifecycle.preStop.sleep", "FieldValueInvalid", 30, |n| {
        container(json!({"lifecycle": {"preStop": {"sleep": {"seconds": n}}}}))
    }),
    ("spec.containers[0].securityContext.runAsUser", "FieldValueInvalid", 2_147_483_647, |n| {
        container(json!({"securityContext": {"runAsUser": n}}))
    }),
    ("spec.containers[0].securityContext.appArmorProfile.localhostProfile", "FieldValueTooLong", 4095, |n| {
        let profile = json!({"type": "Localhost", "localhostProfile": text(n)});
        container(json!({"securityContext": {"appArmorProfile": profile}}))
    }),
    (
        "spec.containers[0].securityContext.windowsOptions.gmsaCredentialSpec",
        "FieldValueInvalid",
        65_536,
        |n| container(json!({"securityContext": {"windowsOptions": {"gmsaCredentialSpec": text(n)}}})),
    ),
    ("spec.containers[0].securityContext.windowsOptions.runAsUserName", "FieldValueInvalid", 104, |n| {
        container(json!({"securityContext": {"windowsOptions": {"runAsUserName": text(n)}}}))
    }),
    ("spec.containers[0].securityContext.windowsOptions.runAsUserName", "FieldValueInvalid", 255, |n| {
        let domain = format!("{}.{}", "a.".repeat(100), text(n - 201));
        let domain = domain.replace("..", ".a");
        container(json!({"securityContext": {"windowsOptions": {"runAsUserName": format!("{domain}\\u")}}}))
    }),
    ("spec.containers[0].env[0].valueFrom.configMapKeyRef.key", "FieldValueInvalid", 253, |n| {
        container(
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": text(n)}}}]}),
        )
    }),
    ("spec.securityContext.sysctls[0].name", "FieldValueInvalid", 253, |n| {
        spec(json!({"securityContext": {"sysctls": [{"name": text(n), "value": "1"}]}}))
    }),
    ("spec.activeDeadlineSeconds", "FieldValueInvalid", 2_147_483_647, |n| {
        spec(json!({"activeDeadlineSeconds": n}))
    }),
    ("spec.hostnameOverride", "FieldValueTooLong", 64, |n| {
        spec(json!({"hostnameOverride": format!("a.{}", text(n - 2))}))
    }),
    ("spec.dnsConfig.nameservers", "FieldValueInvalid", 3, |n| {
        spec(json!({"dnsConfig": {"nameservers": vec!["::1"; n]}}))
    }),
    ("spec.dnsConfig.searches", "FieldValueInvalid", 32, |n| {
        spec(json!({"dnsConfig": {"searches": vec!["a"; n]}}))
    }),
    ("spec.dnsConfig.searches", "FieldValueInvalid", 2048, |n| {
        // Nine of 200 bytes, and the spaces between them.
        let mut searches = vec![text(200); 9];
        searches.push(text(n - 9 * 201));
        spec(json!({"dnsConfig": {"searches": searches}}))
    }),
    ("spec.volumes[0].secret.defaultMode", "FieldValueInvalid", 0o777, |n| {
        volume("secret", json!({"secretName": "s", "defaultMode": n}))
    }),
    ("spec.volumes[0].awsElasticBlockStore.partition", "FieldValueInvalid", 255, |n| {
        volume("awsElasticBlockStore", json!({"volumeID": "v", "partition": n}))
    }),
    // A longer name of a driver is still a valid subdomain.
    ("spec.volumes[0].csi.driver", "FieldValueTooLong", 63, |n| volume("csi", json!({"driver": text(n)}))),
    ("spec.volumes[0].name", "FieldValueInvalid", 62, |n| {
        let iqn = "iqn.2026-11.com.example:d";
        volume("iscsi", json!({"iqn": iqn, "lun": 0, "initiatorName": iqn, "targetPortal": text(n)}))
    }),
    ("spec.volumes[0].quobyte.tenant", "FieldValueRequired", 64, |n| {
        volume("quobyte", json!({"registry": "h:1", "volume": "v", "tenant": text(n)}))
    }),
    (
        "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds",
        "FieldValueInvalid",
        1 << 32,
        |n| {
            let token = json!({"path": "t", "expirationSeconds": n});
            let (_, mut spec) = volume("projected", json!({"sources": [{"serviceAccountToken": token}]}));
            spec["serviceAccountName"] = "me".into();
            (json!({}), spec)
        },
    ),
    (
        "spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds",
        "FieldValueInvalid",
        91 * 24 * 3600,
        |n| certificate("example.com/s", n),
    ),
    (
        "spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds",
        "FieldValueInvalid",
        24 * 3600,
        |n| certificate("kubernetes.io/s", n),
    ),
];

fn certificate(signer: &str, seconds: usize) -> (Value, Value) {
    let source =
        json!({"signerName": signer, "keyType": "ED25519", "keyPath": "k", "maxExpirationSeconds": seconds});
    volume("projected", json!({"sources": [{"podCertificate": source}]}))
}

#[test]
fn managed_fields_are_validated_unless_the_pod_is_posted() {
    let read = |source, managed: &str| {
        let pod = with("").replace("{name: a}", &format!("{{name: a, managedFields: {managed}}}"));
        read_as(source, &pod).map(drop).map_err(|invalid| invalid.stage)
    };
    assert_eq!(read(SourceName::File, "[{}]"), Err(Stage::Validate));
    assert_eq!(read(SourceName::Http, "[{}]"), Ok(()));
    assert_eq!(read(SourceName::Http, "x"), Err(Stage::Decode));
}

#[test]
fn every_bound_is_the_apis() {
    for (field, reason, most, make) in BOUNDS {
        let (metadata, spec) = make(*most);
        assert_eq!(causes(metadata, spec), [], "{field} at {most}");
        let (metadata, spec) = make(most + 1);
        assert_eq!(
            causes(metadata, spec),
            [((*field).to_owned(), *reason)],
            "{field} at one more than {most}"
        );
    }
}

#[test]
fn a_duration_or_number_has_a_least_value() {
    let (_, token) = volume(
        "projected",
        json!({"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 599}}]}),
    );
    let field = "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds".to_owned();
    assert!(causes(json!({}), token).contains(&(field, "FieldValueInvalid")));
    let (_, spec) = certificate("example.com/s", 3599);
    let field = "spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds".to_owned();
    assert_eq!(causes(json!({}), spec), [(field, "FieldValueInvalid")]);
}

// A log line is one line, whatever the manifest contains.
#[test]
fn a_line_break_in_a_name_does_not_break_a_message() {
    let resources = json!({"limits": {"a\nb": "1"}, "requests": {"a\nb": "2"}});
    let (metadata, spec) = container(json!({"resources": resources, "image": "\n"}));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a\nb", "labels": metadata}, "spec": spec});
    let invalid = read(&pod.to_string()).unwrap_err();
    assert_eq!(invalid.problems.iter().filter(|problem| problem.to_string().contains('\n')).count(), 0);
    assert_eq!(invalid.problems.len(), 5, "{invalid:?}");
}

#[test]
fn tolerations_in_an_annotation_are_read_as_by_go() {
    let causes = |value: &str| {
        causes(json!({"annotations": {"scheduler.alpha.kubernetes.io/tolerations": value}}), json!({}))
    };
    for fine in [
        "",
        "null",
        "[]",
        r#"[{"Key": "a", "OPERATOR": "Exists", "more": 5}]"#,
        r#"[{"operator": "Exists", "value": null}]"#,
    ] {
        assert_eq!(causes(fine), [], "{fine}");
    }
    let field = "metadata.annotations".to_owned();
    for bad in ["{}", "[5]", "[", r#"[{"key": 5}]"#, r#"[{"tolerationSeconds": "1"}]"#] {
        assert_eq!(causes(bad), [(field.clone(), "FieldValueInvalid")], "{bad}");
    }
    let field = "metadata.annotations.scheduler.alpha.kubernetes.io/tolerations[1].operator".to_owned();
    assert_eq!(causes(r#"[{"operator": "Exists"}, null]"#), [(field, "FieldValueInvalid")]);
}

// Validation looks for empty lists in the text a limited number of times: each look walks
// from the beginning of the text, which may have a hundred thousand containers.
#[test]
fn looks_into_the_text_are_bounded() {
    let ports = |count: usize| {
        let container = |index| json!({"name": format!("e{index}"), "image": "i", "ports": []});
        let containers: Vec<Value> = (0..count).map(container).collect();
        let causes = causes(json!({}), json!({"ephemeralContainers": containers}));
        causes.iter().filter(|(field, _)| field.ends_with("].ports")).count()
    };
    assert_eq!(ports(3), 3);
    // Each container needs eleven looks.
    assert_eq!(ports(200), MAX_LOOKS.div_ceil(11));
}

#[test]
fn the_name_of_a_pod_without_a_spec_is_checked() {
    let named = |name| json!({"metadata": {"name": name, "namespace": "default", "uid": "1"}});
    let field = |pod: &Value| invalid_name(pod.as_object().unwrap()).map(|problem| problem.field.unwrap());
    assert_eq!(field(&named("../x")).as_deref(), Some("metadata.name"));
    assert_eq!(field(&named("x")), None);
}
