//! What the sources want, as the harness knows it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The names that each source uses, and one that all use in some rounds.
pub const FILES: [&str; 5] = ["f0", "f1", "f2", "f3", "f4"];
pub const POSTS: [&str; 5] = ["h0", "h1", "h2", "h3", "h4"];
pub const AT_URL: [&str; 4] = ["u0", "u1", "u2", "u3"];
pub const AT_API: [&str; 4] = ["a0", "a1", "a2", "a3"];
/// The first node, and the one that it is renamed to.
pub const NODE: &str = "node";
pub const OTHER_NODE: &str = "node-2";
pub const SHARED: &str = "c";
/// The posted pod that shows how far a consumer is.
pub const MARKER: &str = "default/marker";

/// The pods of a source: names without the node's, and images.
pub type Images = BTreeMap<String, String>;

/// How the agent is configured.
#[allow(clippy::struct_excessive_bools, reason = "each source is configured or not, whatever the others are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub file: bool,
    pub url: bool,
    pub api: bool,
    pub node: &'static str,
    pub has_state: bool,
    pub notify: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self { file: true, url: true, api: true, node: NODE, has_state: true, notify: "incremental" }
    }
}

/// What each source wants.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub files: Images,
    pub posts: Images,
    pub url: Images,
    pub api: Images,
    /// The posted pods of the state directory while the agent runs without it.
    pub stored: Images,
}

impl Model {
    /// Source and image of each wanted pod, by `namespace/name`: of two sources the first of file, http,
    /// url and api gets a name.
    pub fn wanted(&self, settings: &Settings) -> BTreeMap<String, (String, String)> {
        let mut all = BTreeMap::new();
        let mut add = |source: &str, pods: &Images, configured: bool| {
            for (name, image) in pods.iter().filter(|_| configured) {
                all.insert(key(source, name, settings), (source.to_owned(), image.clone()));
            }
        };
        add("api", &self.api, settings.api);
        add("url", &self.url, settings.url);
        add("http", &self.posts, true);
        add("file", &self.files, settings.file);
        all
    }

    /// The list that the URL serves.
    pub fn at_url(&self) -> String {
        let items: Vec<Value> = self.url.iter().map(|(name, image)| pod(name, image)).collect();
        json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
    }
}

/// A pod's `namespace/name`.
pub fn key(source: &str, name: &str, settings: &Settings) -> String {
    format!("default/{}", full_name(source, name, settings))
}

/// Static pods have the node's name at the end; on the first node all sources share a name.
pub fn full_name(source: &str, name: &str, settings: &Settings) -> String {
    match source {
        "file" | "url" => format!("{name}-{}", settings.node),
        _ if name == SHARED => format!("{name}-{NODE}"),
        _ => name.to_owned(),
    }
}

/// A pod; some have a volume. In the host's network a real runtime starts it sooner, and podman makes an infra container
/// only for those with a volume in memory.
pub fn pod(name: &str, image: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": image}]},
    });
    let medium = if name.ends_with('0') { "" } else { "Memory" };
    if name.ends_with(['0', '1']) {
        pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {"medium": medium}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    }
    pod
}
