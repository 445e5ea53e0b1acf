//! Nodes, namespaces and services: small collections for reading, whose objects are made when they may have changed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    future::pending,
    mem,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use jiff::Timestamp;
use rustix::system::uname;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    form::{Form, Included, table_head},
    objects::{check_given, check_version},
    page::PageRequest,
    resource::{Column, Selectable},
    select::Selector,
    watch::{BOOKMARK_INTERVAL, WatchOptions, error_frame, expired, frame, too_large},
};
use crate::{
    age::age,
    host::Host,
    pod::{SourceName, identity, names},
    pod_columns::text,
    server::{
        body::Endless,
        context::{Context, Params, json_text},
        observe::health,
        slots::{Slot, Watchers},
        stats::Open,
        status::ApiError,
    },
    storage::Merged,
};

/// How long a watch waits after a change, so that many changes are one comparison for all watchers.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a watch of nodes looks whether the agent is ready.
const READINESS_INTERVAL: Duration = Duration::from_secs(2);
/// The largest `/etc/os-release`, in bytes.
const MAX_RELEASE: u64 = 64 * 1024;

/// Objects by name.
type Objects = BTreeMap<String, Value>;
/// Makes the objects of a collection. It gets those that were made before.
type Make = Box<dyn Fn(&Context, &Objects) -> Vec<Value> + Send + Sync>;

/// A collection for reading.
struct Collection {
    /// As paths have it.
    name: &'static str,
    kind: &'static str,
    /// The fields of field selectors.
    fields: &'static [&'static str],
    columns: &'static [Column],
    /// The cells of an object, in the order of the columns.
    cells: fn(&Value, Timestamp) -> Vec<String>,
    make: Make,
    changes: Changes,
    /// An object that exists although no list has it.
    unlisted: fn(&str) -> Option<Value>,
    held: Mutex<Held>,
}

/// When the objects of a collection may change.
#[derive(Clone, Copy)]
enum Changes {
    WithPods,
    WithReadiness,
    Never,
}

impl Changes {
    /// Waits until the objects may have changed since the receiver was read.
    async fn next(self, merged: &mut watch::Receiver<Merged>) {
        match self {
            // At the end of the mux nothing changes any more.
            Self::WithPods if merged.changed().await.is_ok() => sleep(INTERVAL).await,
            Self::WithReadiness => sleep(READINESS_INTERVAL).await,
            _ => pending().await,
        }
    }
}

/// The objects that were made last, and the version of a list of them: it rises with each change.
#[derive(Clone, Default)]
struct Held {
    version: u64,
    /// The watchers share them.
    objects: Arc<Objects>,
    made: Option<Instant>,
    /// It tells whether the pods have changed since.
    merged: Option<watch::Receiver<Merged>>,
}

impl Selectable for Value {
    fn label(&self, key: &str) -> Option<&str> {
        self["metadata"]["labels"][key].as_str()
    }

    fn field(&self, name: &str) -> String {
        // A node can be used.
        if name == "spec.unschedulable" {
            return "false".to_owned();
        }
        text(name.split('.').fold(self, |value, part| &value[part])).to_owned()
    }
}

/// The paths of all collections.
pub(crate) fn routes(host: &Host) -> Router<Arc<Context>> {
    let node = node_info(host);
    let nodes = Collection {
        name: "nodes",
        kind: "Node",
        fields: &["metadata.name", "spec.unschedulable"],
        columns: &NODE_COLUMNS,
        cells: node_cells,
        make: Box::new(move |server, before| vec![make_node(server, before, &node)]),
        changes: Changes::WithReadiness,
        unlisted: |_| None,
        held: Mutex::default(),
    };
    let namespaces = Collection {
        name: "namespaces",
        kind: "Namespace",
        fields: &["metadata.name", "status.phase"],
        columns: &NAMESPACE_COLUMNS,
        cells: namespace_cells,
        make: Box::new(|server, _| make_namespaces(server)),
        changes: Changes::WithPods,
        // A pod can be posted to each namespace. kubectl asks for the namespace of a pod that does not exist.
        unlisted: |name| names::label(name).is_ok().then(|| namespace(name)),
        held: Mutex::default(),
    };
    // There are none. kubectl cluster-info lists them.
    let services = Collection {
        name: "services",
        kind: "Service",
        fields: &["metadata.name", "metadata.namespace"],
        columns: &[],
        cells: |_, _| Vec::new(),
        make: Box::new(|_, _| Vec::new()),
        changes: Changes::Never,
        unlisted: |_| None,
        held: Mutex::default(),
    };
    let paths = |collection, lists: &[&str], object| {
        let lists = lists.iter().fold(Router::new(), |router, path| router.route(path, get(list)));
        lists.route(object, get(read)).layer(Extension(Arc::new(collection)))
    };
    paths(nodes, &["/api/v1/nodes"], "/api/v1/nodes/{name}")
        // The parameter has the name that it has in the paths of pods.
        .merge(paths(namespaces, &["/api/v1/namespaces"], "/api/v1/namespaces/{namespace}"))
        .merge(paths(
            services,
            &["/api/v1/services", "/api/v1/namespaces/{namespace}/services"],
            "/api/v1/namespaces/{namespace}/services/{name}",
        ))
}

async fn list(
    State(server): State<Arc<Context>>,
    Extension(collection): Extension<Arc<Collection>>,
    Extension(watchers): Extension<Watchers>,
    params: Params,
) -> Result<Response, ApiError> {
    let (labels, fields) = (params.option("labelSelector"), params.option("fieldSelector"));
    let selector = Selector::with_fields(collection.fields, labels, fields)?;
    if params.flag("watch") {
        return watch_objects(server, collection, &watchers, selector, &params).await;
    }
    let form = Form::new(&params, true)?;
    // All objects are on one page.
    let page = PageRequest::new(&params)?;
    let Held { version, objects, .. } = collection.now(&server);
    check_version(&params, page.is_continued(), version)?;
    let now = server.view.host.clock.now();
    let list = move || {
        let objects = objects.values().filter(|object| selector.selects(*object));
        let items: Vec<String> = objects.map(|object| collection.item(form, object, now)).collect();
        let metadata = format!(r#"{{"resourceVersion":"{version}"}}"#);
        let head = form.list_head(&metadata, collection.kind, collection.columns);
        json_text(StatusCode::OK, format!("{head}{}]}}\n", items.join(","))).into_response()
    };
    server.read(list).await
}

async fn read(
    State(server): State<Arc<Context>>,
    Extension(collection): Extension<Arc<Collection>>,
    params: Params,
) -> Result<Response, ApiError> {
    let form = Form::new(&params, false)?;
    let name = params.part("name").or(params.part("namespace")).unwrap_or_default();
    let Held { version, objects, .. } = collection.now(&server);
    check_given(params.number("resourceVersion")?, version)?;
    let object = objects.get(name).cloned().or_else(|| (collection.unlisted)(name));
    let object = object.ok_or_else(|| ApiError::not_found(collection.name, name))?;
    let text = collection.object(form, &object, server.view.host.clock.now(), true);
    Ok(json_text(StatusCode::OK, text + "\n").into_response())
}

impl Collection {
    /// The objects as they are now. One that has changed gets a new version.
    fn now(&self, server: &Context) -> Held {
        self.remake(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner), server)
    }

    /// The objects as they were an [`INTERVAL`] ago or later, which all watchers share.
    fn recent(&self, server: &Context) -> Held {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.made.is_some_and(|made| made.elapsed() < INTERVAL) {
            return held.clone();
        }
        self.remake(&mut held, server)
    }

    fn remake(&self, held: &mut Held, server: &Context) -> Held {
        let made = Some(Instant::now());
        let merged = held.merged.get_or_insert_with(|| server.view.merged.clone());
        let may_differ = match self.changes {
            Changes::WithPods => merged.has_changed().unwrap_or(true),
            Changes::WithReadiness => true,
            Changes::Never => false,
        };
        if held.version > 0 && !may_differ {
            held.made = made;
            return held.clone();
        }
        // Before they are read, so that no change is missed.
        merged.mark_unchanged();
        let next = server.view.history.last().max(held.version + 1);
        let mut objects = Objects::new();
        for mut object in (self.make)(server, &held.objects) {
            let name = text(&object["metadata"]["name"]).to_owned();
            let before = held.objects.get(&name);
            let version = before.map_or(Value::Null, |before| before["metadata"]["resourceVersion"].clone());
            object["metadata"]["resourceVersion"] = version;
            if before != Some(&object) {
                object["metadata"]["resourceVersion"] = next.to_string().into();
            }
            objects.insert(name, object);
        }
        if held.version == 0 || objects != *held.objects {
            (held.version, held.objects) = (next, Arc::new(objects));
        }
        held.made = made;
        held.clone()
    }

    /// An object of a list.
    fn item(&self, form: Form, object: &Value, now: Timestamp) -> String {
        let metadata = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
        });
        match form {
            // Nothing here is answered in protobuf.
            Form::Object | Form::Protobuf => object.to_string(),
            Form::Metadata => metadata.to_string(),
            Form::Table(included) => {
                let shown = match included {
                    Included::Nothing => &Value::Null,
                    Included::Metadata => &metadata,
                    Included::Object => object,
                };
                json!({"cells": (self.cells)(object, now), "object": shown}).to_string()
            }
        }
    }

    /// An object that is not in a list. The first table of a stream has columns.
    fn object(&self, form: Form, object: &Value, now: Timestamp, has_columns: bool) -> String {
        let item = self.item(form, object, now);
        if !matches!(form, Form::Table(_)) {
            return item;
        }
        let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]}).to_string();
        format!("{}{item}]}}", table_head(&metadata, has_columns.then_some(self.columns)))
    }
}

/// A watch, which compares the objects with those that it has sent.
struct ObjectWatch {
    server: Arc<Context>,
    collection: Arc<Collection>,
    form: Form,
    selector: Arc<Selector>,
    /// What it has compared last, also what the client does not select.
    sent: Arc<Objects>,
    merged: watch::Receiver<Merged>,
    frames: VecDeque<Bytes>,
    has_bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    /// Whether the client has the columns of its tables.
    has_columns: bool,
    _open: (Slot, Open),
}

/// Begins with all objects, or continues after the current version. There is no journal: a client of another version
/// has to list again, because it may hold objects that are gone.
async fn watch_objects(
    server: Arc<Context>,
    collection: Arc<Collection>,
    watchers: &Watchers,
    selector: Selector,
    params: &Params,
) -> Result<Response, ApiError> {
    if server.view.stopping.is_cancelled() {
        return Err(ApiError::stopping());
    }
    let form = Form::new(params, false)?;
    let options = WatchOptions::new(params, server.view.host.random.fraction())?;
    let open = (watchers.slot()?, server.view.connections.watching());
    let mut merged = server.view.merged.clone();
    merged.mark_unchanged();
    let Held { version, objects, .. } = collection.now(&server);
    let sent = if options.begins_with_all { Arc::default() } else { objects };
    let known = options.version.filter(|_| !options.begins_with_all);
    if let Some(known) = known.filter(|known| *known != version) {
        let error = if known > version { too_large(known, version) } else { expired(known, version) };
        return Ok(stream_of(Body::from(error_frame(form, &error))));
    }
    let now = Instant::now();
    let mut watch = ObjectWatch {
        server,
        collection,
        form,
        sent,
        selector: Arc::new(selector),
        merged,
        frames: VecDeque::new(),
        has_bookmarks: options.has_bookmarks,
        next_bookmark: now + BOOKMARK_INTERVAL,
        end: now + options.timeout,
        has_columns: false,
        _open: open,
    };
    let version = watch.compare().await.filter(|_| options.marks_end && options.has_bookmarks);
    if let Some(version) = version {
        watch.bookmark(version, true);
    }
    let frames = stream::unfold(watch, async |mut watch| {
        let frame = watch.next().await?;
        Some((Ok::<_, Infallible>(frame), watch))
    });
    Ok(stream_of(Body::from_stream(frames)))
}

fn stream_of(body: Body) -> Response {
    let body = json_text(StatusCode::OK, body);
    (Extension(Endless), body).into_response()
}

impl ObjectWatch {
    /// The next frame; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            let due = if self.has_bookmarks { self.end.min(self.next_bookmark) } else { self.end };
            let mut merged = self.merged.clone();
            tokio::select! {
                () = self.server.view.stopping.cancelled() => return None,
                () = sleep_until(due) => {
                    if self.end <= due {
                        return None;
                    }
                    self.next_bookmark = due + BOOKMARK_INTERVAL;
                    if let Some(version) = self.compare().await {
                        self.bookmark(version, false);
                    }
                }
                () = self.collection.changes.next(&mut merged) => {
                    self.merged = merged;
                    self.compare().await;
                }
            }
        }
    }

    /// Adds the events since the last time, and returns the version of the objects. None if it has failed: then the watch
    /// ends, and its client lists again.
    async fn compare(&mut self) -> Option<u64> {
        let Held { version, objects, .. } = self.collection.recent(&self.server);
        let sent = mem::replace(&mut self.sent, objects.clone());
        if Arc::ptr_eq(&sent, &objects) {
            return Some(version);
        }
        let selector = self.selector.clone();
        let compare = move || changes(&selector, &sent, &objects, version);
        let Ok(events) = self.server.read(compare).await else {
            self.end = Instant::now();
            return None;
        };
        for (kind, object) in events {
            self.send(kind, &object);
        }
        Some(version)
    }

    fn send(&mut self, kind: &str, object: &Value) {
        let is_first = !mem::replace(&mut self.has_columns, true);
        let now = self.server.view.host.clock.now();
        let object = self.collection.object(self.form, object, now, is_first);
        self.frames.extend(frame(kind, vec![object.into()]));
    }

    fn bookmark(&mut self, version: u64, ends_initial_events: bool) {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let kind = self.collection.kind;
        self.send("BOOKMARK", &json!({"kind": kind, "apiVersion": "v1", "metadata": metadata}));
    }
}

/// The events that lead from the selected objects to those of a version, by their types.
fn changes(
    selector: &Selector,
    sent: &Objects,
    objects: &Objects,
    version: u64,
) -> Vec<(&'static str, Value)> {
    let is_selected = |object: &&Value| selector.selects(*object);
    let before = |name: &String| sent.get(name).filter(is_selected);
    let after = |name: &String| objects.get(name).filter(is_selected);
    let gone = sent.keys().filter(|name| after(name).is_none()).filter_map(before);
    let gone = gone.map(|gone| {
        let mut gone = gone.clone();
        gone["metadata"]["resourceVersion"] = version.to_string().into();
        ("DELETED", gone)
    });
    let here = objects.keys().filter_map(|name| match (before(name), after(name)?) {
        (None, object) => Some(("ADDED", object.clone())),
        (Some(before), object) => (before != object).then(|| ("MODIFIED", object.clone())),
    });
    gone.chain(here).collect()
}

const NODE_COLUMNS: [Column; 10] = [
    ("Name", "name", 0, "The name of the node."),
    ("Status", "", 0, "Whether the agent is ready, as GET /readyz has it."),
    ("Roles", "", 0, "The roles of the node: none."),
    ("Age", "", 0, "The time since the agent started."),
    ("Version", "", 0, "The version of the agent."),
    ("Internal-IP", "", 1, "An address of the node, if the agent knows one."),
    ("External-IP", "", 1, "An address of the node, if the agent knows one."),
    ("OS-Image", "", 1, "The operating system, from /etc/os-release."),
    ("Kernel-Version", "", 1, "The release of the kernel."),
    ("Container-Runtime", "", 1, "The runtime of the agent."),
];

fn node_cells(node: &Value, now: Timestamp) -> Vec<String> {
    let (metadata, status) = (&node["metadata"], &node["status"]);
    let info = |field: &str| Some(text(&status["nodeInfo"][field])).filter(|text| !text.is_empty());
    let kernel = info("kernelVersion").unwrap_or("<unknown>");
    let kernel = info("architecture").map_or_else(|| kernel.to_owned(), |arch| format!("{kernel} ({arch})"));
    let ready = if status["conditions"][0]["status"] == "True" { "Ready" } else { "NotReady" };
    let cells = [
        text(&metadata["name"]),
        ready,
        "<none>",
        &age(text(&metadata["creationTimestamp"]).parse().ok(), now),
        info("kubeletVersion").unwrap_or_default(),
        "<none>",
        "<none>",
        info("osImage").unwrap_or("<unknown>"),
        &kernel,
        info("containerRuntimeVersion").unwrap_or("<unknown>"),
    ];
    cells.map(str::to_owned).to_vec()
}

/// The parts of the node that do not change while the agent runs: its labels, and its status without conditions.
fn node_info(host: &Host) -> Value {
    let system = uname();
    let release = host.disk.read(Path::new("/etc/os-release"), MAX_RELEASE).unwrap_or_default();
    let release = String::from_utf8_lossy(&release).into_owned();
    let image = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let capacity =
        json!({"cpu": host.threads.cores().to_string(), "memory": format!("{}Ki", host.memory() / 1024)});
    json!({
        "capacity": capacity, "allocatable": capacity,
        "nodeInfo": {
            "kubeletVersion": concat!("podmux/", env!("CARGO_PKG_VERSION")), "kubeProxyVersion": "",
            "operatingSystem": std::env::consts::OS, "architecture": architecture(),
            "kernelVersion": system.release().to_string_lossy(),
            "osImage": image.unwrap_or_default().trim_matches('"'),
            "machineID": "", "systemUUID": "", "bootID": "",
        },
    })
}

/// The name that Kubernetes has for this machine's architecture.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn make_node(server: &Context, before: &Objects, info: &Value) -> Value {
    let view = &server.view;
    let (name, now) = (view.node.as_str(), view.host.clock.now());
    let checks = health::readiness(view, now).into_iter();
    let (failing, times): (Vec<String>, Vec<Timestamp>) = checks
        .filter_map(|(check, outcome)| {
            let (why, since) = outcome.err()?;
            Some((format!("{check}: {why}"), since))
        })
        .unzip();
    let (status, reason, message) = match &*failing.join("; ") {
        "" => ("True", "AgentReady", "every source is known and no sink is stuck".to_owned()),
        failing => ("False", "AgentNotReady", failing.to_owned()),
    };
    let before = before.get(name).map(|before| &before["status"]["conditions"][0]);
    let since =
        before.filter(|before| before["status"] == status).map(|before| &before["lastTransitionTime"]);
    let since = since.cloned().unwrap_or_else(|| {
        let first = if before.is_none() { view.started } else { now };
        format!("{:.0}", times.into_iter().min().unwrap_or(first)).into()
    });
    let mut node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {
            // kubectl looks for the events of a node twice, the first time by its UID.
            "name": name, "uid": identity::uid(SourceName::Api, name, "", "").to_string(),
            "creationTimestamp": format!("{:.0}", view.started),
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": std::env::consts::OS,
                "kubernetes.io/arch": architecture(),
            },
        },
        "spec": {}, "status": info,
    });
    node["status"]["nodeInfo"]["containerRuntimeVersion"] =
        view.runtime.as_ref().map_or("none", |runtime| &*runtime.name).into();
    node["status"]["addresses"] = json!([{"type": "Hostname", "address": name}]);
    node["status"]["conditions"] = json!([{
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since,
    }]);
    node
}

const NAMESPACE_COLUMNS: [Column; 3] = [
    ("Name", "name", 0, "The name of the namespace."),
    ("Status", "", 0, "Always Active."),
    ("Age", "", 0, "Unknown: namespaces are not created."),
];

fn namespace_cells(namespace: &Value, now: Timestamp) -> Vec<String> {
    vec![text(&namespace["metadata"]["name"]).to_owned(), "Active".to_owned(), age(None, now)]
}

/// The namespaces of all pods, and `default`.
fn make_namespaces(server: &Context) -> Vec<Value> {
    let merged = server.view.merged.borrow().clone();
    let used = merged.values().map(|entry| entry.pod().key().namespace());
    let names: BTreeSet<&str> = used.chain(["default"]).collect();
    names.into_iter().map(namespace).collect()
}

fn namespace(name: &str) -> Value {
    json!({
        "kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {}, "status": {"phase": "Active"},
    })
}
