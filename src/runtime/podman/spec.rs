//! A pod in podman's words: the bodies of the requests that create it. Pure.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    budget::Budget,
    fields::unsupported,
    qos::{oom_score, requested},
};
use crate::{
    pod::{Digest, Pod, PodKey},
    runtime::qos::{amount, class},
};

/// A pod's `spec.terminationGracePeriodSeconds` by default, in seconds.
const DEFAULT_GRACE: u64 = 30;
/// The longest host name.
const LONGEST_HOST_NAME: usize = 63;
/// A day, in nanoseconds.
const DAY: u64 = 86_400_000_000_000;
/// The period of a CPU quota, in microseconds.
const CPU_PERIOD: i64 = 100_000;
/// The longest name of a volume, in bytes: podman has a directory of this name.
const LONGEST_NAME: usize = 255;
/// How much of a longer one is kept, in bytes: a hash of 32 digits and an underscore follow.
pub(super) const LONGEST_BEGIN: usize = LONGEST_NAME - 33;

/// A pod, translated for podman.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Translation {
    /// The body of `POST pods/create`, without labels.
    pub pod: Value,
    /// The containers: first the init containers, in their order.
    pub containers: Vec<Container>,
    /// The bodies of `POST volumes/create` for the emptyDirs, without labels.
    pub volumes: Vec<Value>,
    /// The paths on the host that are mounted, with the `type` of each.
    pub host_paths: Vec<(String, String)>,
    /// How long its containers have to end by themselves.
    pub grace: Duration,
    /// Whether it uses the host's network.
    pub host_network: bool,
    /// Its `qosClass`.
    pub qos_class: &'static str,
    /// The paths of the fields that podman cannot do.
    pub unsupported: Vec<String>,
    /// Whether its containers repeat too much of it to be started. They lack a part of it then.
    pub is_too_long: bool,
}

/// A container, translated for podman.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// What it does for the pod.
    pub role: Role,
    /// When it is started again: its own policy, or else the pod's.
    pub restart: RestartPolicy,
    /// The body of `POST containers/create`, without its name and labels.
    pub body: Value,
    /// When its image is pulled.
    pub pull: PullPolicy,
    /// Whether it must not run as root.
    pub non_root: bool,
    /// The file that it writes a message to before it ends; none if one of its volumes is there.
    pub message_path: Option<String>,
    /// Whether the end of its output is the message if it ends with an error and without a message.
    pub message_from_output: bool,
    /// Where it sees the emptyDirs that are on disk: the volume, and the path.
    pub empty_dirs: Vec<(String, String)>,
    /// Its probes, as the pod has them, by field. Ports are numbers, or null if no port has the name.
    pub probes: BTreeMap<&'static str, Value>,
}

/// What a container does for its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Role {
    /// It runs to its end before the next one starts.
    Init,
    /// It starts before the next one, and runs as long as the pod.
    Sidecar,
    /// It is what the pod is for.
    Main,
}

impl Role {
    /// The value of the label `podmux.role`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Sidecar => "sidecar",
            Self::Main => "main",
        }
    }
}

/// A `restartPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RestartPolicy {
    /// After each end.
    Always,
    /// After an error.
    OnFailure,
    /// Not at all.
    Never,
}

impl RestartPolicy {
    fn of(container: &Value, spec: &Value, role: Role) -> Self {
        let policy = container["restartPolicy"].as_str().or(spec["restartPolicy"].as_str());
        match policy {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            // An init container that has succeeded is done.
            _ if role == Role::Init => Self::OnFailure,
            _ => Self::Always,
        }
    }
}

/// A container's `imagePullPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PullPolicy {
    /// At each start.
    Always,
    /// If the image is not there.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// What the names of pods, containers and volumes in podman begin with.
pub(super) const PREFIX: &str = "podmux_";

/// The name of a pod in podman.
///
/// No name of Kubernetes has an underscore. So names of different pods, containers and volumes never collide, also
/// with dots in them.
pub(super) fn pod_name(key: &PodKey) -> String {
    format!("{PREFIX}{}_{}", key.namespace(), key.name())
}

/// Translates a pod for a node with so many bytes of memory. What podman cannot do is left out and named.
pub fn translate(pod: &Pod, memory: i64) -> Translation {
    let whole: Value = serde_json::from_slice(pod.text()).unwrap_or_default();
    let spec = &whole["spec"];
    let mut unsupported = unsupported(spec);
    let volumes = Volumes::new(spec, &pod_name(pod.key()));
    let list = |field: &'static str| {
        spec[field].as_array().into_iter().flatten().enumerate().map(move |item| (field, item))
    };
    let all = list("initContainers").chain(list("containers"));
    let qos_class = class(&spec["resources"], all.clone().map(|(_, (_, container))| &container["resources"]));
    let least = items(&spec["containers"]).map(requested).min().unwrap_or(0);
    let (mut containers, budget) = (Vec::new(), Budget::new());
    for (field, (index, container)) in all {
        let path = format!("spec.{field}[{index}]");
        let role = match field {
            "containers" => Role::Main,
            _ if container["restartPolicy"] == "Always" => Role::Sidecar,
            _ => Role::Init,
        };
        // A sidecar is not killed before all of the containers that need it.
        let request = requested(container).max(if role == Role::Sidecar { least } else { 0 });
        let oom_score = oom_score(qos_class, spec, request, memory);
        // It is in a label.
        budget.has_room(pod.uid().len());
        let reader = Reader { whole: &whole, spec, container, volumes: &volumes, oom_score, budget: &budget };
        containers.push(reader.read(role, &path, &mut unsupported));
    }
    unsupported.sort();
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(DEFAULT_GRACE);
    Translation {
        pod: pod_body(pod, spec, &volumes, &budget),
        containers,
        volumes: volumes.bodies,
        host_paths: volumes.host_paths,
        grace: Duration::from_secs(grace),
        host_network: spec["hostNetwork"] == true,
        qos_class,
        unsupported,
        is_too_long: budget.is_exceeded(),
    }
}

/// Whether a container of podman's own must hold namespaces or volumes that outlive the pod's containers. It costs as
/// much as one of them, so a pod that shares only the host's namespaces has none.
fn needs_infra(spec: &Value, volumes: &Volumes) -> bool {
    let containers = items(&spec["initContainers"]).chain(items(&spec["containers"])).count();
    spec["hostNetwork"] != true
        || (spec["hostIPC"] != true && containers > 1)
        || shares_processes(spec)
        || !volumes.in_memory.is_empty()
}

fn shares_processes(spec: &Value) -> bool {
    spec["shareProcessNamespace"] == true && spec["hostPID"] != true
}

fn pod_body(pod: &Pod, spec: &Value, volumes: &Volumes, budget: &Budget) -> Value {
    let mut body = json!({"name": pod_name(pod.key()), "exit_policy": "continue"});
    if !needs_infra(spec, volumes) {
        body["no_infra"] = true.into();
        return body;
    }
    let mut shared = vec!["net"];
    if spec["hostIPC"] != true {
        shared.push("ipc");
    }
    if shares_processes(spec) {
        shared.push("pid");
    }
    if spec["hostNetwork"] == true {
        // The containers have the host's name, and say themselves how names are resolved: podman ignores it here.
        body["netns"] = json!({"nsmode": "host"});
    } else {
        shared.push("uts");
        let name = [&spec["hostnameOverride"], &spec["hostname"]]
            .into_iter()
            .find_map(|name| name.as_str().filter(|name| !name.is_empty()));
        let name = name.unwrap_or(pod.key().name());
        let name = &name[..name.floor_char_boundary(LONGEST_HOST_NAME)];
        body["hostname"] = name.trim_end_matches(['-', '.']).into();
        put(&mut body, "portmappings", ports(spec));
        resolve(&mut body, spec, budget);
    }
    body["shared_namespaces"] = shared.into();
    put(&mut body, "volumes", volumes.in_memory.clone());
    body
}

/// Sets how host names are resolved.
fn resolve(body: &mut Value, spec: &Value, budget: &Budget) {
    let aliases = items(&spec["hostAliases"]).flat_map(|alias| {
        let names = items(&alias["hostnames"]).filter_map(Value::as_str);
        names.map(|name| format!("{name}:{}", alias["ip"].as_str().unwrap_or_default()))
    });
    put(body, "hostadd", budget.list(aliases));
    let texts = |field: &str| items(&spec["dnsConfig"][field]).filter_map(Value::as_str);
    put(body, "dns_server", budget.list(texts("nameservers").map(str::to_owned)));
    // To podman "." is none: it takes no others beside it.
    let has_domains = texts("searches").any(|search| search != ".");
    let searches = texts("searches").filter(|search| !has_domains || *search != ".").map(str::to_owned);
    let options = items(&spec["dnsConfig"]["options"]).map(|option| {
        let (name, value) = (option["name"].as_str().unwrap_or_default(), option["value"].as_str());
        value.filter(|value| !value.is_empty()).map_or(name.to_owned(), |value| format!("{name}:{value}"))
    });
    let (searches, options) = (budget.list(searches), budget.list(options));
    for (field, mut list, none) in [("dns_search", searches, "."), ("dns_option", options, "")] {
        if list.is_empty() && spec["dnsPolicy"] == "None" {
            // Without a list podman takes the node's.
            list.push(none.into());
        }
        put(body, field, list);
    }
}

/// Sets a field if the list is not empty.
fn put(body: &mut Value, field: &str, list: Vec<Value>) {
    if !list.is_empty() {
        body[field] = list.into();
    }
}

pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A path in a container as podman compares it. As with the kubelet, a relative path is one from the root.
fn rooted(path: &str) -> String {
    let mut rooted = PathBuf::from("/");
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => rooted.push(name),
            Component::ParentDir => drop(rooted.pop()),
            _ => {}
        }
    }
    rooted.display().to_string()
}

/// Where a container has its volumes.
fn mounted(body: &Value) -> impl Iterator<Item = &Value> {
    let (binds, volumes) = (items(&body["mounts"]), items(&body["volumes"]));
    binds.map(|mount| &mount["destination"]).chain(volumes.map(|volume| &volume["Dest"]))
}

/// The ports of the containers that stay: an init container that ends has none of the node, as with the kubelet.
fn ports(spec: &Value) -> Vec<Value> {
    let sidecars = items(&spec["initContainers"]).filter(|container| container["restartPolicy"] == "Always");
    let containers = sidecars.chain(items(&spec["containers"]));
    let ports = containers.flat_map(|container| items(&container["ports"]));
    let ports = ports.filter(|port| port["hostPort"].as_u64().is_some_and(|port| port > 0)).map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP").to_lowercase();
        json!({
            "container_port": port["containerPort"], "host_port": port["hostPort"],
            "host_ip": port["hostIP"].as_str().unwrap_or_default(), "protocol": protocol,
        })
    });
    ports.collect()
}

/// The volumes of a pod.
#[derive(Default)]
struct Volumes {
    bodies: Vec<Value>,
    /// The volumes in memory, which the pod keeps mounted: without a mount a tmpfs is lost.
    in_memory: Vec<Value>,
    host_paths: Vec<(String, String)>,
    by_name: BTreeMap<String, Source>,
}

enum Source {
    Host(String),
    /// The volume's name in podman, and whether it is in memory.
    Empty(String, bool),
}

impl Volumes {
    fn new(spec: &Value, pod: &str) -> Self {
        let mut volumes = Self::default();
        let containers = items(&spec["initContainers"]).chain(items(&spec["containers"]));
        let mounts = containers.flat_map(|container| items(&container["volumeMounts"]));
        let mounted: HashSet<&str> = mounts.filter_map(|mount| mount["name"].as_str()).collect();
        // As with the kubelet, what no container mounts is neither made nor missed.
        let is_mounted = |volume: &&Value| volume["name"].as_str().is_some_and(|name| mounted.contains(name));
        for volume in items(&spec["volumes"]).filter(is_mounted) {
            let name = volume["name"].as_str().unwrap_or_default();
            if let Some(path) = volume["hostPath"]["path"].as_str() {
                let kind = volume["hostPath"]["type"].as_str().unwrap_or_default();
                volumes.host_paths.push((path.to_owned(), kind.to_owned()));
                volumes.by_name.insert(name.to_owned(), Source::Host(path.to_owned()));
            } else if let Some(empty) = volume.get("emptyDir") {
                let mut full = format!("{pod}_{name}");
                if full.len() > LONGEST_NAME {
                    let hash = Digest::of(&[full.as_bytes()]).to_string();
                    full.truncate(full.floor_char_boundary(LONGEST_BEGIN));
                    full = format!("{full}_{hash}");
                }
                let in_memory = empty["medium"] == "Memory";
                let mut body = json!({"Name": full});
                if in_memory {
                    body["Options"] = json!({"type": "tmpfs", "device": "tmpfs", "o": "mode=0777"});
                    // Each container has it too: not where pods mount their own, such as /run.
                    let path = format!("/.podmux/{name}");
                    volumes.in_memory.push(json!({"Name": full, "Dest": path, "Options": ["ro"]}));
                }
                volumes.bodies.push(body);
                volumes.by_name.insert(name.to_owned(), Source::Empty(full, in_memory));
            }
        }
        volumes
    }
}

/// Reads one container.
struct Reader<'a> {
    whole: &'a Value,
    spec: &'a Value,
    container: &'a Value,
    volumes: &'a Volumes,
    oom_score: Option<i64>,
    budget: &'a Budget,
}

impl Reader<'_> {
    fn read(&self, role: Role, path: &str, unsupported: &mut Vec<String>) -> Container {
        let container = self.container;
        let environment = self.environment(path, unsupported);
        let expanded = |field: &str| -> Vec<String> {
            let texts = items(&container[field]).filter_map(Value::as_str);
            texts.map(|text| self.budget.expand(text, &environment)).collect()
        };
        let mut body = json!({
            "image": container["image"],
            // podman's systemd mode, by the name of the command, has writable mounts and another stop signal.
            "systemd": "false",
            "restart_policy": "no",
            "stop_timeout": self.spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(DEFAULT_GRACE),
            "env": environment,
        });
        for (field, list) in [("entrypoint", expanded("command")), ("command", expanded("args"))] {
            put(&mut body, field, list.into_iter().map(Value::from).collect());
        }
        if let Some(directory) = container["workingDir"].as_str().filter(|path| !path.is_empty()) {
            body["work_dir"] = directory.into();
            body["create_working_dir"] = true.into();
        }
        for (field, name) in [("tty", "terminal"), ("stdin", "stdin")] {
            if container[field] == true {
                body[name] = true.into();
            }
        }
        for (field, name) in [("hostPID", "pidns"), ("hostIPC", "ipcns")] {
            if self.spec[field] == true {
                body[name] = json!({"nsmode": "host"});
            }
        }
        if self.spec["hostNetwork"] == true {
            for name in ["netns", "utsns"] {
                body[name] = json!({"nsmode": "host"});
            }
            resolve(&mut body, self.spec, self.budget);
        }
        self.security(&mut body, path, unsupported);
        self.resources(&mut body);
        let empty_dirs = self.mounts(&mut body);
        let probes = self.probes(path, unsupported);
        body["healthconfig"] = health_check(&probes);
        let text = |field: &str| container[field].as_str().unwrap_or_default();
        let message_path = text("terminationMessagePath");
        let message_path = if message_path.is_empty() { "/dev/termination-log" } else { message_path };
        let message_path = rooted(message_path);
        // podman mounts one thing at a place.
        let is_free = mounted(&body).all(|target| *target != *message_path);
        if !is_free {
            unsupported.push(format!("{path}.terminationMessagePath"));
        }
        Container {
            name: text("name").to_owned(),
            role,
            restart: RestartPolicy::of(container, self.spec, role),
            body,
            pull: match text("imagePullPolicy") {
                "Always" => PullPolicy::Always,
                "Never" => PullPolicy::Never,
                _ => PullPolicy::IfNotPresent,
            },
            non_root: *self.security_field("runAsNonRoot") == true,
            message_path: is_free.then_some(message_path),
            message_from_output: text("terminationMessagePolicy") == "FallbackToLogsOnError",
            empty_dirs,
            probes,
        }
    }

    fn environment(&self, path: &str, unsupported: &mut Vec<String>) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for (index, variable) in items(&self.container["env"]).enumerate() {
            let Some(name) = variable["name"].as_str() else { continue };
            if name == "HOSTNAME" && self.spec["hostNetwork"] != true {
                // podman sets it to the pod's host name.
                unsupported.push(format!("{path}.env[{index}]"));
            }
            let value = match variable.get("valueFrom") {
                None => self.budget.expand(variable["value"].as_str().unwrap_or_default(), &all),
                Some(from) => {
                    let Some(field) = from["fieldRef"]["fieldPath"].as_str() else { continue };
                    let Some(value) = self.field(field) else {
                        unsupported.push(format!("{path}.env[{index}].valueFrom.fieldRef"));
                        continue;
                    };
                    if self.budget.has_room(value.len()) { value.to_owned() } else { String::new() }
                }
            };
            all.insert(name.to_owned(), value);
        }
        all
    }

    /// The value of a field that an environment variable refers to.
    fn field(&self, path: &str) -> Option<&str> {
        let metadata = &self.whole["metadata"];
        let value = match path.strip_suffix("']").and_then(|path| path.split_once("['")) {
            Some((field, name)) => &metadata[field.strip_prefix("metadata.")?][name],
            None => match path {
                "metadata.name" | "metadata.namespace" | "metadata.uid" => {
                    &metadata[path.strip_prefix("metadata.")?]
                }
                "spec.nodeName" | "spec.serviceAccountName" => &self.spec[path.strip_prefix("spec.")?],
                _ => return None,
            },
        };
        Some(value.as_str().unwrap_or_default())
    }

    /// A field of the container's securityContext, or else of the pod's.
    fn security_field(&self, field: &str) -> &Value {
        let own = &self.container["securityContext"][field];
        if own.is_null() { &self.spec["securityContext"][field] } else { own }
    }

    fn security(&self, body: &mut Value, path: &str, unsupported: &mut Vec<String>) {
        let own = &self.container["securityContext"];
        match (self.security_field("runAsUser").as_i64(), self.security_field("runAsGroup").as_i64()) {
            (Some(user), Some(group)) => body["user"] = format!("{user}:{group}").into(),
            (Some(user), None) => body["user"] = user.to_string().into(),
            (None, Some(_)) => unsupported.push(format!("{path}.securityContext.runAsGroup")),
            (None, None) => {}
        }
        let pod = &self.spec["securityContext"];
        let groups = items(&pod["supplementalGroups"]).chain(pod.get("fsGroup"));
        put(body, "groups", self.budget.list(groups.map(Value::to_string)));
        for (field, name) in
            [("privileged", "privileged"), ("readOnlyRootFilesystem", "read_only_filesystem")]
        {
            if own[field] == true {
                body[name] = true.into();
            }
        }
        if own["allowPrivilegeEscalation"] == false {
            body["no_new_privileges"] = true.into();
        }
        let names = |field| items(&own["capabilities"][field]).filter_map(Value::as_str);
        let plain = |name: &str| name.to_ascii_uppercase().trim_start_matches("CAP_").to_owned();
        let dropped: HashSet<String> = names("drop").map(plain).collect();
        // podman refuses what is added and dropped.
        let added = names("add").filter(|added| !dropped.contains(&plain(added)));
        put(body, "cap_add", added.map(Value::from).collect());
        put(body, "cap_drop", names("drop").map(Value::from).collect());
        if self.security_field("seccompProfile")["type"] == "Unconfined" {
            body["seccomp_profile_path"] = "unconfined".into();
        }
        if let Some(profile) = self.apparmor().filter(|profile| self.budget.has_room(profile.len())) {
            body["apparmor_profile"] = profile.into();
        }
        let selinux = self.security_field("seLinuxOptions").as_object().into_iter().flatten();
        let selinux = selinux.filter_map(|(field, value)| Some(format!("{field}:{}", value.as_str()?)));
        put(body, "selinux_opts", self.budget.list(selinux));
    }

    /// The profile for `AppArmor`, if it is not that of podman: of the container, of its annotation from before there was
    /// a field, or of the pod (`GetProfile` in `pkg/security/apparmor`).
    fn apparmor(&self) -> Option<&str> {
        // To podman the name means no profile, which a pod may not be allowed to have.
        let is_local = |name: &&str| *name != "unconfined";
        let name = self.container["name"].as_str().unwrap_or_default();
        let annotation = format!("container.apparmor.security.beta.kubernetes.io/{name}");
        let annotation = self.whole["metadata"]["annotations"][annotation].as_str();
        if let Some(profile) = annotation
            && self.container["securityContext"]["appArmorProfile"].is_null()
        {
            let own = profile.strip_prefix("localhost/").filter(is_local);
            return own.or((profile == "unconfined").then_some(profile));
        }
        let profile = self.security_field("appArmorProfile");
        match profile["type"].as_str()? {
            "Unconfined" => Some("unconfined"),
            "Localhost" => profile["localhostProfile"].as_str().filter(is_local),
            _ => None,
        }
    }

    fn resources(&self, body: &mut Value) {
        let of = |kind: &str, name: &str| amount(&self.container["resources"], kind, name);
        let milli = |kind: &str| of(kind, "cpu").map(|cpu| cpu.to_milli_i64_up());
        let mut limits = json!({});
        // Without an amount none: not each podman has the cgroup controller `cpu`.
        if let Some(milli) = milli("requests").or_else(|| milli("limits")) {
            limits["cpu"]["shares"] = (milli.saturating_mul(1024) / 1000).clamp(2, 262_144).into();
        }
        if let Some(milli) = milli("limits").filter(|milli| *milli > 0) {
            limits["cpu"]["quota"] = milli.saturating_mul(CPU_PERIOD / 1000).max(1000).into();
            limits["cpu"]["period"] = CPU_PERIOD.into();
        }
        if let Some(bytes) =
            of("limits", "memory").map(|memory| memory.to_i64_up()).filter(|bytes| *bytes > 0)
        {
            // The same with swap: none in addition.
            limits["memory"] = json!({"limit": bytes, "swap": bytes});
        }
        if limits != json!({}) {
            body["resource_limits"] = limits;
        }
        if let Some(score) = self.oom_score {
            body["oom_score_adj"] = score.into();
        }
    }

    /// Adds the mounts. Returns the emptyDirs on disk.
    fn mounts(&self, body: &mut Value) -> Vec<(String, String)> {
        let (mut binds, mut volumes, mut empty_dirs) = (Vec::new(), Vec::new(), Vec::new());
        for mount in items(&self.container["volumeMounts"]) {
            let has_sub_path = ["subPath", "subPathExpr"]
                .iter()
                .any(|field| !matches!(mount[field].as_str(), None | Some("")));
            let source = mount["name"].as_str().and_then(|name| self.volumes.by_name.get(name));
            let Some(source) = source.filter(|_| !has_sub_path) else { continue };
            let target = rooted(mount["mountPath"].as_str().unwrap_or_default());
            let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
            let propagation = match mount["mountPropagation"].as_str() {
                Some("HostToContainer") => "rslave",
                Some("Bidirectional") => "rshared",
                _ => "rprivate",
            };
            match source {
                Source::Host(path) if !self.budget.has_room(path.len()) => {}
                Source::Host(path) => {
                    binds.push(json!({
                        "type": "bind", "source": path, "destination": target,
                        "options": ["rbind", mode, propagation],
                    }));
                }
                Source::Empty(name, in_memory) => {
                    // The files that the image has at the path are not copied into it.
                    let options = json!([mode, "nocopy", "suid", "dev", propagation]);
                    volumes.push(json!({"Name": name, "Dest": target, "Options": options}));
                    if !in_memory {
                        empty_dirs.push((name.clone(), target));
                    }
                }
            }
        }
        put(body, "mounts", binds);
        put(body, "volumes", volumes);
        empty_dirs
    }

    fn probes(&self, path: &str, unsupported: &mut Vec<String>) -> BTreeMap<&'static str, Value> {
        let fields = ["startupProbe", "livenessProbe", "readinessProbe"];
        let probes = fields.into_iter().filter_map(|field| {
            let mut probe = self.container.get(field)?.clone();
            self.expand_command(&mut probe);
            for handler in ["httpGet", "tcpSocket"] {
                if let Some(name) = probe[handler]["port"].as_str() {
                    let mut ports = items(&self.container["ports"]);
                    let named = ports.find(|port| port["name"] == *name);
                    let number = named.map(|port| port["containerPort"].clone());
                    if number.is_none() {
                        unsupported.push(format!("{path}.{field}.{handler}.port"));
                    }
                    probe[handler]["port"] = number.unwrap_or_default();
                }
            }
            let is_known = ["exec", "httpGet", "tcpSocket"]
                .iter()
                .any(|handler| probe.get(handler).is_some_and(|handler| !handler.is_null()));
            is_known.then_some((field, probe))
        });
        probes.collect()
    }

    /// Expands the command of a probe by the values that are in the container's `env`, as the kubelet does
    /// (`ExpandContainerCommandOnlyStatic`): those that refer to others are not expanded, those of `valueFrom` are empty.
    fn expand_command(&self, probe: &mut Value) {
        let variables = items(&self.container["env"]).filter_map(|variable| {
            Some((
                variable["name"].as_str()?.to_owned(),
                variable["value"].as_str().unwrap_or_default().to_owned(),
            ))
        });
        let variables = variables.collect();
        let words = probe.pointer_mut("/exec/command").and_then(Value::as_array_mut);
        for word in words.into_iter().flatten() {
            *word = self.budget.expand(word.as_str().unwrap_or_default(), &variables).into();
        }
    }
}

/// The health check of a container: the command of its first probe that has one, or none. podman runs it only when it is
/// asked to: without an interval. That of an image is not used, as with the kubelet.
fn health_check(probes: &BTreeMap<&'static str, Value>) -> Value {
    let mut commands = probes.values().map(|probe| &probe["exec"]["command"]);
    let Some(command) = commands.find(|command| command.is_array()) else { return json!({"Test": ["NONE"]}) };
    let test: Vec<Value> = [json!("CMD")].into_iter().chain(items(command).cloned()).collect();
    // The time limits are the probes'.
    json!({"Test": test, "Timeout": DAY, "Retries": 1})
}
