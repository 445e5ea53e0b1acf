//! What happens to the sources and to the state directory.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    model::{Images, MARKER, SHARED, Settings, full_name, key, pod},
    replay::Upheaval,
    world::World,
};
use crate::support::{apiserver, process::wait_for, web::Reply};

/// The sources.
impl World {
    /// A new image.
    pub fn image(&mut self) -> String {
        self.images += 1;
        format!("i:{}", self.images)
    }

    /// A pod of a source may go.
    fn may_go(&self, source: &str, name: &str) {
        self.law.unwanted(&key(source, name, &self.settings));
    }

    /// All pods of a source may go.
    pub fn unwanted(&self, source: &str) {
        let pods = match source {
            "file" => &self.model.files,
            "http" => &self.model.posts,
            "url" => &self.model.url,
            _ => &self.model.api,
        };
        for name in pods.keys() {
            self.may_go(source, name);
        }
        if source == "http" {
            self.law.unwanted(MARKER);
        }
    }

    /// Where the manifests are: while the agent finds none, they are elsewhere.
    fn manifests(&self) -> PathBuf {
        let away = self.at("away");
        if away.exists() { away } else { self.at("manifests") }
    }

    pub fn write_file(&mut self, name: &str) {
        self.may_go("file", name);
        let image = self.image();
        let fresh = self.at("fresh");
        fs::write(&fresh, pod(name, &image).to_string()).unwrap();
        fs::rename(fresh, self.manifests().join(format!("{name}.yaml"))).unwrap();
        self.model.files.insert(name.to_owned(), image);
    }

    pub fn remove_file(&mut self, name: &str) {
        self.may_go("file", name);
        if self.model.files.remove(name).is_some() {
            fs::remove_file(self.manifests().join(format!("{name}.yaml"))).unwrap();
        }
    }

    /// Creates or replaces posted pods, all or none.
    pub fn post(&mut self, names: &[impl AsRef<str>]) -> u16 {
        let mut images = Images::new();
        let mut items = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            self.may_go("http", name);
            let image = self.image();
            items.push(pod(&full_name("http", name, &self.settings), &image));
            images.insert(name.to_owned(), image);
        }
        let list = serde_json::json!({"apiVersion": "v1", "kind": "PodList", "items": items});
        let answer = self.answer("POST", "/pods", &list.to_string());
        match answer.code {
            200 | 201 => self.model.posts.extend(images),
            // Another source has the name, or the pod is terminating.
            403 if images.contains_key(SHARED) => {}
            409 => {}
            _ => self.fail(&answer.text()),
        }
        self.stored();
        answer.code
    }

    pub fn delete(&mut self, name: &str, grace: u32) {
        self.may_go("http", name);
        let full = full_name("http", name, &self.settings);
        let path = format!("/api/v1/namespaces/default/pods/{full}?gracePeriodSeconds={grace}");
        let answer = self.answer("DELETE", &path, "");
        match answer.code {
            200 | 202 => drop(self.model.posts.remove(name)),
            403 if name == SHARED => {}
            404 if !self.model.posts.contains_key(name) => {}
            _ => self.fail(&answer.text()),
        }
        self.stored();
    }

    pub(super) fn stored(&mut self) {
        if self.settings.has_state {
            self.model.stored = self.model.posts.clone();
        }
    }

    /// Adds or changes a pod at the URL, or removes it.
    pub fn change_url(&mut self, name: &str, wanted: bool) {
        self.may_go("url", name);
        let image = self.image();
        if wanted {
            self.model.url.insert(name.to_owned(), image);
        } else {
            self.model.url.remove(name);
        }
        self.serve_url();
    }

    pub fn serve_url(&mut self) {
        self.web.say(Reply::ok(self.model.at_url()));
    }

    /// Adds or changes a pod of the API server, or removes it.
    pub fn change_api(&mut self, name: &str, wanted: bool) {
        self.may_go("api", name);
        let image = self.image();
        if wanted {
            self.model.api.insert(name.to_owned(), image);
            self.put_api(name);
        } else if self.model.api.remove(name).is_some() {
            self.api.delete(&full_name("api", name, &self.settings));
        }
    }

    fn put_api(&self, name: &str) {
        let mut pod = apiserver::pod(&full_name("api", name, &self.settings), &self.model.api[name]);
        (pod["spec"]["nodeName"], pod["spec"]["hostNetwork"]) = (self.settings.node.into(), true.into());
        self.api.put(pod);
    }

    pub fn set_api_up(&mut self, up: bool) {
        let _inside = self.runtime.enter();
        match (self.api_is_down, up) {
            (true, true) => self.api.up(),
            (false, false) => {
                self.api.down();
                // The listener ends a little later.
                let address = self.api.url.trim_start_matches("http://").to_owned();
                wait_for(|| TcpStream::connect(&address).is_err().then_some(()));
            }
            _ => {}
        }
        self.api_is_down = !up;
    }
}

/// What happens while the agent is down.
impl World {
    pub fn rename_node(&mut self, node: &'static str) {
        for source in ["file", "http", "url", "api"] {
            self.unwanted(source);
        }
        let names: Vec<String> = self.model.api.keys().cloned().collect();
        for name in &names {
            self.api.delete(&full_name("api", name, &self.settings));
        }
        self.settings.node = node;
        for source in ["file", "http", "url", "api"] {
            self.unwanted(source);
        }
        for name in &names {
            self.put_api(name);
        }
    }

    pub fn configure(&mut self, settings: Settings) {
        for source in ["file", "url", "api"] {
            self.unwanted(source);
        }
        if settings.has_state != self.settings.has_state {
            self.unwanted("http");
            self.model.posts = if settings.has_state { self.model.stored.clone() } else { Images::new() };
            self.unwanted("http");
        }
        self.settings = settings;
    }

    /// The directory of the manifests is missing until the rest.
    pub fn hide_manifests(&mut self) {
        self.unwanted("file");
        fs::rename(self.manifests(), self.at("away")).unwrap();
    }

    pub fn copy_state(&mut self) {
        let (state, copy) = (self.at("state"), self.at("copy"));
        if state.exists() {
            replace(&state, &copy);
            self.copy = Some(self.model.stored.clone());
        }
    }

    /// Puts the copy in the place of the state. Returns whether there is one.
    pub fn put_back(&mut self) -> bool {
        let Some(posts) = self.copy.clone() else { return false };
        replace(&self.at("copy"), &self.at("state"));
        self.state_is(posts);
        true
    }

    pub fn lose_state(&mut self) {
        // There may be none.
        let _ = fs::remove_dir_all(self.at("state"));
        self.state_is(Images::new());
    }

    fn state_is(&mut self, posts: Images) {
        self.law.happened(Upheaval::State);
        self.model.stored = posts;
        if self.settings.has_state {
            self.unwanted("http");
            self.model.posts = self.model.stored.clone();
            self.unwanted("http");
        }
    }
}

/// Copies a directory in the place of another.
fn replace(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}
