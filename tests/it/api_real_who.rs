//! Credentials at a real kube-apiserver: tokens, certificates, permissions, proxies.

use std::{
    fs, io,
    path::Path,
    process::{Child, Command, Stdio},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::support::{
    cluster::{Admin, bound, kubeconfig, relayed},
    kubernetes::{Apiserver, At, not_tested},
    node::Node,
    process::{Lines, wait_for},
};

fn cluster(at: &At) -> Value {
    json!({"server": at.url, "certificate-authority": at.ca})
}

/// Grants a subject list and watch on pods.
fn grant(admin: &mut Admin, name: &str, subject: &Value) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]);
    admin
        .post(&format!("{rbac}/clusterroles"), &json!({"metadata": {"name": name}, "rules": rules}))
        .unwrap();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]});
    admin.post(&format!("{rbac}/clusterrolebindings"), &binding).unwrap();
}

#[test]
fn a_missing_permission_is_named_and_used_once_it_is_granted() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let user = json!({"token": apiserver.at.nobody_token});
    let file = kubeconfig(directory.path(), &cluster(&apiserver.at), &user);
    let mut node = Node::start("rights", &file);
    node.fails(&["403", "nobody", "cannot watch resource", "pods", "grant this user list and watch on pods"]);
    let mut admin = Admin::of(apiserver);
    admin.namespace("rights");
    let made = admin.create(&bound("rights/web", "rights")).unwrap();
    let nobody = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"});
    grant(&mut admin, "rights", &nobody);
    node.hear_of("ADD", &made);
    node.source_is(|source| source["failing"].is_null());
    node.agrees_with(&mut admin);
    node.ends();
}

#[test]
fn a_node_may_watch_its_own_pods_only() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let user = json!({"token": apiserver.at.node_token});
    let file = kubeconfig(directory.path(), &cluster(&apiserver.at), &user);
    let mut admin = Admin::of(apiserver);
    admin.namespace("nodes");
    admin.create(&bound("nodes/web", "node1")).unwrap();
    // Other tests have pods on this node, too.
    let node = Node::start("node1", &file);
    node.process.holds("the pod", |held| held.pods.contains_key("nodes/web"));
    admin.create(&bound("nodes/other", "node1")).unwrap();
    node.process.holds("the other", |held| held.pods.contains_key("nodes/other"));
    node.source_is(|source| source["failing"].is_null());
    let stranger = Node::start("node2", &file);
    stranger.fails(&["403", "system:node:node1", "pods with spec.nodeName"]);
    stranger.ends();
    node.ends();
}

/// A token of a service account that is valid until its secret is deleted.
fn account_token(admin: &mut Admin, namespace: &str, account: &str, secret: &str) -> String {
    let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
    let secret = admin.post(&secrets, &json!({"metadata": {"name": secret}})).unwrap();
    let (name, uid) = (&secret["metadata"]["name"], &secret["metadata"]["uid"]);
    let bound = json!({"kind": "Secret", "apiVersion": "v1", "name": name, "uid": uid});
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [], "boundObjectRef": bound},
    });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    admin.post(&path, &request).unwrap()["status"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn an_expired_token_is_renewed_from_its_file() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let mut admin = Admin::of(apiserver);
    admin.namespace("tokens");
    admin.post("/api/v1/namespaces/tokens/serviceaccounts", &json!({"metadata": {"name": "agent"}})).unwrap();
    grant(&mut admin, "tokens", &json!({"kind": "ServiceAccount", "namespace": "tokens", "name": "agent"}));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, account_token(&mut admin, "tokens", "agent", "first")).unwrap();
    let user = json!({"tokenFile": file});
    let (relay, config) = relayed(directory.path(), &apiserver.at, &user);
    let made = admin.create(&bound("tokens/first", "tokens")).unwrap();
    let mut node = Node::start("tokens", &config);
    node.hear_of("ADD", &made);
    admin.remove("/api/v1/namespaces/tokens/secrets/first").unwrap();
    // The server caches a valid token for some time, and checks it when a watch starts.
    let first = fs::read_to_string(&file).unwrap();
    let mut stranger = apiserver.at.connect(&first).unwrap();
    wait_for(|| (stranger.ask("GET", "/api/v1/pods", b"").unwrap().code == 401).then_some(()));
    relay.cut();
    relay.mend();
    node.fails(&["401"]);
    let made = admin.create(&bound("tokens/second", "tokens")).unwrap();
    let second = account_token(&mut admin, "tokens", "agent", "second");
    fs::write(&file, &second).unwrap();
    node.hear_of("ADD", &made);
    node.source_is(|source| source["failing"].is_null());
    node.agrees_with(&mut admin);
    let log = node.ends();
    assert!(!log.contains(&first) && !log.contains(&second), "the log contains a token:\n{log}");
}

/// Writes a CA certificate, and a client certificate of it with its key.
fn certificate(directory: &Path, user: &str, group: &str) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(directory.join("clients.crt"), authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(authority, key);
    let mut client = CertificateParams::new(Vec::new()).unwrap();
    client.distinguished_name.push(DnType::CommonName, user);
    client.distinguished_name.push(DnType::OrganizationName, group);
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    fs::write(directory.join("user.crt"), client.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    fs::write(directory.join("user.key"), key.serialize_pem()).unwrap();
}

#[test]
fn a_client_certificate_with_a_relative_path_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path(), "system:node:n", "system:nodes");
    let clients = directory.path().join("clients.crt");
    let flag = format!("--client-ca-file={}", clients.display());
    let Some(apiserver) = Apiserver::start_with(&[&flag]) else { return };
    let mut admin = Admin::of(&apiserver);
    admin.namespace("t");
    let made = admin.create(&bound("t/web", "n")).unwrap();
    fs::copy(&apiserver.at.ca, directory.path().join("ca.crt")).unwrap();
    let cluster = json!({"server": apiserver.at.url, "certificate-authority": "ca.crt"});
    let user = json!({"client-certificate": "user.crt", "client-key": "./user.key"});
    let mut node = Node::start("n", &kubeconfig(directory.path(), &cluster, &user));
    node.hear_of("ADD", &made);
    node.agrees_with(&mut admin);
    node.ends();
}

/// A running `kubectl`. Tests are skipped without one, except in CI.
struct Kubectl(Child);

impl Kubectl {
    /// Starts `kubectl proxy`, and returns its URL, which needs no credentials.
    fn proxy(config: &Path) -> Option<(Self, String)> {
        let mut command = Command::new("kubectl");
        command.args(["proxy", "--port=0", "--kubeconfig"]).arg(config).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                not_tested("kubectl is not installed");
                return None;
            }
            child => child.unwrap(),
        };
        let output = Lines::default();
        output.read(child.stdout.take().unwrap());
        let url = output.wait_for("address", |lines| {
            lines.iter().find_map(|line| line.strip_prefix("Starting to serve on ")).map(str::to_owned)
        });
        Some((Self(child), format!("http://{url}")))
    }
}

impl Drop for Kubectl {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn kubectl_proxy_needs_no_credentials() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let Some((_proxy, url)) = Kubectl::proxy(&apiserver.at.kubeconfig) else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start("proxied", &kubeconfig(directory.path(), &json!({"server": url}), &json!({})));
    node.hear("ADD");
    let mut admin = Admin::of(apiserver);
    admin.namespace("proxied");
    let made = admin.create(&bound("proxied/web", "proxied")).unwrap();
    node.hear_of("ADD", &made);
    node.agrees_with(&mut admin);
    node.ends();
}
