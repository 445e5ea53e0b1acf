//! A kubeconfig in a directory of its own, and the server that it leads to.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::{Request, Response};
use kube::client::Body;
use podmux::source::api::{ConnectError, Connector, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    files::soon,
    web::{Authority, Reply, Seen, Web},
};

/// What must be in no error.
pub const SECRET: &str = "s3cr3t";

/// A server, its CA, and a directory for what leads to it.
pub struct Scene {
    pub directory: TempDir,
    pub authority: Authority,
    pub web: Web,
}

impl Scene {
    /// A server that wants no certificate.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(directory.path(), "ca");
        let web = Web::start_tls(authority.server("localhost", None), Reply::ok("{}")).await;
        Self { directory, authority, web }
    }

    /// A server that wants a certificate of its CA.
    pub async fn strict() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(directory.path(), "ca");
        let config = authority.server("localhost", Some(&authority));
        let web = Web::start_tls(config, Reply::ok("{}")).await;
        Self { directory, authority, web }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        put(&self.at(name), text);
    }

    /// The cluster of this server, whose CA stands beside the kubeconfig.
    pub fn cluster(&self) -> Value {
        json!({ "server": self.web.url, "certificate-authority": "ca.pem" })
    }

    /// Writes a kubeconfig with one user.
    pub fn kubeconfig(&self, cluster: &Value, user: &Value) -> PathBuf {
        let path = self.at("kubeconfig");
        put(&path, &config(cluster, user).to_string());
        path
    }

    /// The same, and what connects with it.
    pub fn connector(&self, user: &Value) -> Connector {
        Connector::new(Kubeconfig::File(self.kubeconfig(&self.cluster(), user)))
    }

    /// What the server sees of a request.
    pub async fn seen(&self, connector: &mut Connector) -> Seen {
        let before = self.web.seen().len();
        let answer = ask(connector).await.unwrap();
        assert_eq!(answer.status(), 200);
        self.web.seen().swap_remove(before)
    }
}

/// A kubeconfig of one cluster, one user and their context.
pub fn config(cluster: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{ "name": "here", "context": { "cluster": "home", "user": "node" } }],
        "clusters": [{ "name": "home", "cluster": cluster }],
        "users": [{ "name": "node", "user": user }],
    })
}

/// Puts a file in the place of another, as whoever renews a credential does.
pub fn put(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, text).unwrap();
    fs::rename(fresh, path).unwrap();
}

/// Asks for pods.
pub async fn ask(connector: &mut Connector) -> Result<Response<Body>, kube::Error> {
    let connected = soon(connector.client()).await.unwrap_or_else(|error| panic!("{}", told(&error)));
    let request = Request::get("/api/v1/pods?watch=1").body(Body::empty()).unwrap();
    soon(connected.client.send(request)).await
}

/// An error as people are told it: on one line, without a secret.
pub fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(!text.contains('\n') && !text.contains(SECRET), "{text}");
    text
}

/// Why there is no client.
pub async fn refused(connector: &mut Connector) -> String {
    let error: ConnectError = soon(connector.client()).await.err().expect("there is a client");
    assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    told(&error)
}
