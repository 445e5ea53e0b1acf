//! Kubeconfigs, and a server to connect to with them.

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

/// A text that no error may contain.
pub const SECRET: &str = "s3cr3t";

/// A server, its CA, and a directory for the kubeconfig and its files.
pub struct Scene {
    pub directory: TempDir,
    pub authority: Authority,
    pub web: Web,
}

impl Scene {
    /// A server that accepts clients without a certificate.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(directory.path(), "ca");
        let web = Web::start_tls(authority.server("localhost", None), Reply::ok("{}")).await;
        Self { directory, authority, web }
    }

    /// A server that requires a client certificate of its CA.
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
        replace_file(&self.at(name), text);
    }

    /// The kubeconfig's cluster for this server.
    pub fn cluster(&self) -> Value {
        json!({ "server": self.web.url, "certificate-authority": "ca.pem" })
    }

    /// Writes a kubeconfig.
    pub fn kubeconfig(&self, cluster: &Value, user: &Value) -> PathBuf {
        let path = self.at("kubeconfig");
        replace_file(&path, &config(cluster, user).to_string());
        path
    }

    /// Writes a kubeconfig for this server, and returns a connector of it.
    pub fn connector(&self, user: &Value) -> Connector {
        Connector::new(Kubeconfig::File(self.kubeconfig(&self.cluster(), user)))
    }

    /// Sends a request and returns it as the server receives it.
    pub async fn seen(&self, connector: &mut Connector) -> Seen {
        let before = self.web.seen().len();
        let response = request(connector).await.unwrap();
        assert_eq!(response.status(), 200);
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

/// Replaces a file in one step, as programs that renew credentials do.
pub fn replace_file(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, text).unwrap();
    fs::rename(fresh, path).unwrap();
}

/// Sends a request for pods.
pub async fn request(connector: &mut Connector) -> Result<Response<Body>, kube::Error> {
    let connected = soon(connector.client()).await.unwrap_or_else(|error| panic!("{}", on_one_line(&error)));
    let request = Request::get("/api/v1/pods?watch=1").body(Body::empty()).unwrap();
    soon(connected.client.send(request)).await
}

/// An error with its causes, which must be one line without a secret.
pub fn on_one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(!text.contains('\n') && !text.contains(SECRET), "{text}");
    text
}

/// The error for a kubeconfig that no client can be made from.
pub async fn connect_error(connector: &mut Connector) -> String {
    let error: ConnectError = soon(connector.client()).await.err().expect("no client can be made");
    assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    on_one_line(&error)
}
