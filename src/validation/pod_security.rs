//! The Pod Security Standards: what a pod may have at a level, in the words of
//! `k8s.io/pod-security-admission/policy` v0.36, version `latest`.

use std::collections::BTreeSet;

use super::{
    annotation::APP_ARMOR,
    fields::{Object, is_false, is_true, number, object, objects, text, texts},
};
use crate::pod::SecurityLevel;

/// The name of a control that forbids a pod, and how the pod violates it.
type Violation = (String, String);

type Control = fn(&PodParts<'_>) -> Option<Violation>;

/// The levels that have a control. The restricted level replaces some controls of the baseline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Both,
    Baseline,
    Restricted,
}

/// The controls in upstream's order.
const CONTROLS: [(On, Control); 19] = [
    (On::Both, app_armor),
    (On::Baseline, default_capabilities),
    (On::Both, host_namespaces),
    (On::Baseline, host_paths),
    (On::Both, host_ports),
    (On::Both, probe_hosts),
    (On::Both, privileged),
    (On::Baseline, |pod| if pod.has_own_users() { None } else { proc_mount(pod) }),
    (On::Both, se_linux),
    (On::Baseline, seccomp),
    (On::Both, sysctls),
    (On::Both, host_process),
    (On::Restricted, |pod| if pod.is_windows() { None } else { privilege_escalation(pod) }),
    (On::Restricted, |pod| if pod.is_windows() { None } else { dropped_capabilities(pod) }),
    (On::Restricted, proc_mount),
    (On::Restricted, volume_types),
    (On::Restricted, |pod| if pod.has_own_users() { None } else { non_root(pod) }),
    (On::Restricted, |pod| if pod.has_own_users() { None } else { user(pod) }),
    (On::Restricted, |pod| if pod.is_windows() { None } else { required_seccomp(pod) }),
];

/// The capabilities that a container may add at the baseline level.
const CAPABILITIES: &str = "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID \
    SETPCAP SETUID SYS_CHROOT";
const SYSCTLS: &str = "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports \
    net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout \
    net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_keepalive_time net.ipv4.tcp_rmem \
    net.ipv4.tcp_syncookies net.ipv4.tcp_wmem";
const SE_LINUX_TYPES: [&str; 4] =
    ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
/// The types of volumes at the restricted level.
const VOLUMES: &str =
    "configMap csi downwardAPI emptyDir ephemeral image persistentVolumeClaim projected secret";
/// The longest violation, in bytes: a pod may have very many containers.
const MAX_VIOLATION: usize = 4096;

/// How a valid pod violates a level, as an API server's admission words it; none if it does not.
pub fn violation(pod: &Object, level: SecurityLevel) -> Option<String> {
    let other = match level {
        SecurityLevel::Privileged => return None,
        SecurityLevel::Baseline => On::Restricted,
        SecurityLevel::Restricted => On::Baseline,
    };
    let parts = PodParts::of(pod)?;
    let violations =
        CONTROLS.iter().filter(|(on, _)| *on != other).filter_map(|(_, control)| control(&parts));
    let violations: Vec<String> = violations.map(|(name, detail)| format!("{name} ({detail})")).collect();
    if violations.is_empty() {
        return None;
    }
    let mut text = format!("violates PodSecurity \"{}:latest\": {}", level.as_str(), violations.join(", "));
    if text.len() > MAX_VIOLATION {
        text.truncate(text.floor_char_boundary(MAX_VIOLATION));
        text.push('…');
    }
    Some(text)
}

/// The parts of a pod that the controls visit.
struct PodParts<'v> {
    metadata: &'v Object,
    spec: &'v Object,
    containers: Vec<&'v Object>,
}

impl<'v> PodParts<'v> {
    fn of(pod: &'v Object) -> Option<Self> {
        let (metadata, spec) = (object(pod, "metadata")?, object(pod, "spec")?);
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let containers = lists.iter().flat_map(|field| objects(spec, field)).collect();
        Some(Self { metadata, spec, containers })
    }

    fn is_windows(&self) -> bool {
        object(self.spec, "os").is_some_and(|os| text(os, "name") == "windows")
    }

    /// Whether the pod has a user namespace of its own.
    fn has_own_users(&self) -> bool {
        is_false(self.spec, "hostUsers")
    }

    /// The containers that have bad values (`containers "a", "b"`; empty without any), and the values.
    fn containers<T: Ord, I: IntoIterator<Item = T>>(
        &self,
        bad: impl Fn(&'v Object) -> I,
    ) -> (String, BTreeSet<T>) {
        let (mut names, mut values) = (Vec::new(), BTreeSet::new());
        for container in &self.containers {
            let mut bad = bad(container).into_iter().peekable();
            if bad.peek().is_some() {
                names.push(text(container, "name"));
                values.extend(bad);
            }
        }
        (named("container", names), values)
    }

    /// The containers that satisfy a condition.
    fn containers_that(&self, is_bad: impl Fn(&'v Object) -> bool) -> String {
        self.containers(|container| is_bad(container).then_some(())).0
    }

    /// The pod and the containers whose security contexts have bad values (`pod and container
    /// "a"`; empty without any), and the values.
    fn setters<T: Ord, I: IntoIterator<Item = T>>(
        &self,
        bad: impl Fn(&'v Object) -> I,
    ) -> (String, BTreeSet<T>) {
        let of_pod: Vec<T> = context(self.spec).into_iter().flat_map(&bad).collect();
        let pod = if of_pod.is_empty() { "" } else { "pod" };
        let (containers, mut values) =
            self.containers(|container| context(container).into_iter().flat_map(&bad).collect::<Vec<T>>());
        values.extend(of_pod);
        (both(pod, &containers, " and "), values)
    }

    /// The setters of a forbidden type of a profile, and the types.
    fn profiles(&self, field: &str) -> (String, BTreeSet<&'v str>) {
        self.setters(|context| {
            let kind = object(context, field).map(|profile| text(profile, "type"));
            kind.filter(|kind| !matches!(*kind, "RuntimeDefault" | "Localhost"))
        })
    }

    /// The containers without a field of the security context that the pod does not set either
    /// (`pod or container "a"`).
    fn without(&self, field: &str) -> String {
        let has = |of| context(of).is_some_and(|context| context.contains_key(field));
        let containers = self.containers_that(|container| !has(self.spec) && !has(container));
        if containers.is_empty() { containers } else { format!("pod or {containers}") }
    }

    /// How containers add capabilities that are not allowed; empty if they do not.
    fn added(&self, allowed: &str) -> String {
        let (containers, added) = self.containers(|container| {
            let sets = context(container).and_then(|context| object(context, "capabilities"));
            let added = sets.into_iter().flat_map(|sets| texts(sets, "add"));
            added.filter(|capability| !is_in(allowed, capability)).collect::<Vec<_>>()
        });
        if containers.is_empty() {
            return containers;
        }
        format!("{containers} must not include {} in securityContext.capabilities.add", quoted(added))
    }
}

fn context(of: &Object) -> Option<&Object> {
    object(of, "securityContext")
}

/// Whether a word is one of a list, separated by spaces.
fn is_in(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn quoted<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("\"{}\"", word.as_ref())).collect();
    words.join(", ")
}

/// Things with their names: `volume "a"`, `volumes "a", "b"`; empty without any.
fn named<'n>(thing: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() { String::new() } else { format!("{} {}", plural(thing, names.len()), quoted(names)) }
}

/// Two texts, of which both may be empty, with a separator between them.
fn both(a: &str, b: &str, separator: &str) -> String {
    let separator = if a.is_empty() || b.is_empty() { "" } else { separator };
    format!("{a}{separator}{b}")
}

/// The verb of a subject that [`named`] returned.
fn uses(subject: &str) -> &'static str {
    if subject.starts_with("container ") || subject.starts_with("volume ") { "uses" } else { "use" }
}

/// A violation by subjects, if there are any.
fn by(subjects: &str, control: &str, detail: &str) -> Option<Violation> {
    (!subjects.is_empty()).then(|| (control.to_owned(), both(subjects, detail, " ")))
}

fn app_armor(pod: &PodParts<'_>) -> Option<Violation> {
    let (setters, types) = pod.profiles("appArmorProfile");
    let is_allowed = |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations = object(pod.metadata, "annotations").into_iter().flatten();
    let annotations = annotations.filter_map(|(key, value)| Some((key, value.as_str()?)));
    let annotations = annotations.filter(|(key, value)| key.starts_with(APP_ARMOR) && !is_allowed(value));
    let annotations: BTreeSet<String> = annotations.map(|(key, value)| format!("{key}={value:?}")).collect();
    let count = annotations.len();
    let annotation = if count == 0 { String::new() } else { plural("annotation", count) };
    let control = plural("forbidden AppArmor profile", types.len() + count);
    let values = quoted(types.into_iter().map(str::to_owned).chain(annotations));
    let detail = format!("must not set AppArmor profile type to {values}");
    by(&both(&setters, &annotation, " and "), &control, &detail)
}

fn default_capabilities(pod: &PodParts<'_>) -> Option<Violation> {
    by(&pod.added(CAPABILITIES), "non-default capabilities", "")
}

fn host_namespaces(pod: &PodParts<'_>) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| is_true(pod.spec, field));
    let shared: Vec<String> = shared.map(|field| format!("{field}=true")).collect();
    by(&shared.join(", "), "host namespaces", "")
}

fn host_paths(pod: &PodParts<'_>) -> Option<Violation> {
    let volumes = objects(pod.spec, "volumes").filter(|volume| volume.contains_key("hostPath"));
    by(&named("volume", volumes.map(|volume| text(volume, "name"))), "hostPath volumes", "")
}

fn host_ports(pod: &PodParts<'_>) -> Option<Violation> {
    let (containers, ports) = pod.containers(|container| {
        let ports = objects(container, "ports").filter_map(|port| number(port, "hostPort"));
        ports.filter(|port| *port != 0).map(|port| port.to_string())
    });
    let ports: Vec<String> = ports.into_iter().collect();
    let detail = format!("{} {} {}", uses(&containers), plural("hostPort", ports.len()), ports.join(", "));
    by(&containers, "hostPort", &detail)
}

/// The hosts that the probes and hooks of a container connect to, other than the pod.
fn hosts(container: &Object) -> impl Iterator<Item = &str> {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
    let probes = probes.into_iter().filter_map(|probe| object(container, probe));
    let hooks = ["postStart", "preStop"].into_iter();
    let hooks = hooks.filter_map(|hook| object(object(container, "lifecycle")?, hook));
    let actions = probes.chain(hooks).flat_map(|of| [object(of, "httpGet"), object(of, "tcpSocket")]);
    actions.flatten().map(|action| text(action, "host")).filter(|host| !host.is_empty())
}

fn probe_hosts(pod: &PodParts<'_>) -> Option<Violation> {
    let containers = || pod.containers.iter().copied();
    let names = containers().filter(|container| hosts(container).next().is_some());
    let names: BTreeSet<&str> = names.map(|container| text(container, "name")).collect();
    let hosts: BTreeSet<&str> = containers().flat_map(hosts).collect();
    let names = named("container", names);
    let detail = format!("{} {}", uses(&names), named("probe or lifecycle host", hosts));
    by(&names, "probe or lifecycle host", &detail)
}

fn privileged(pod: &PodParts<'_>) -> Option<Violation> {
    let is_privileged = |context| is_true(context, "privileged");
    let containers = pod.containers_that(|container| context(container).is_some_and(is_privileged));
    by(&containers, "privileged", "must not set securityContext.privileged=true")
}

fn proc_mount(pod: &PodParts<'_>) -> Option<Violation> {
    let (containers, types) = pod.containers(|container| {
        let kind = context(container).map(|context| text(context, "procMount"));
        kind.filter(|kind| !matches!(*kind, "" | "Default"))
    });
    let detail = format!("must not set securityContext.procMount to {}", quoted(types));
    by(&containers, "procMount", &detail)
}

fn se_linux(pod: &PodParts<'_>) -> Option<Violation> {
    let (setters, bad) = pod.setters(|context| {
        let options = object(context, "seLinuxOptions").into_iter();
        let given = options.flat_map(|options| {
            ["type", "user", "role"].into_iter().map(|field| (field, text(options, field)))
        });
        given.filter(|(field, value)| {
            !value.is_empty() && (*field != "type" || !SE_LINUX_TYPES.contains(value))
        })
    });
    let types = bad.iter().filter(|(field, _)| *field == "type").map(|(_, value)| *value);
    let others = ["user", "role"].into_iter().filter(|name| bad.iter().any(|(field, _)| field == name));
    let others: Vec<String> = others.map(|field| format!("{field} may not be set")).collect();
    let bad = both(&named("type", types), &others.join("; "), "; ");
    by(&setters, "seLinuxOptions", &format!("set forbidden securityContext.seLinuxOptions: {bad}"))
}

fn seccomp(pod: &PodParts<'_>) -> Option<Violation> {
    let (setters, types) = pod.profiles("seccompProfile");
    let detail = format!("must not set securityContext.seccompProfile.type to {}", quoted(types));
    by(&setters, "seccompProfile", &detail)
}

fn required_seccomp(pod: &PodParts<'_>) -> Option<Violation> {
    let detail = "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
    seccomp(pod).or_else(|| by(&pod.without("seccompProfile"), "seccompProfile", detail))
}

fn sysctls(pod: &PodParts<'_>) -> Option<Violation> {
    let names = objects(context(pod.spec)?, "sysctls").map(|sysctl| text(sysctl, "name"));
    let names: Vec<&str> = names.filter(|name| !is_in(SYSCTLS, name)).collect();
    by(&names.join(", "), "forbidden sysctls", "")
}

fn host_process(pod: &PodParts<'_>) -> Option<Violation> {
    let is_host = |options: &Object| is_true(options, "hostProcess").then_some(());
    let (setters, _) = pod.setters(|context| object(context, "windowsOptions").and_then(is_host));
    by(&setters, "hostProcess", "must not set securityContext.windowsOptions.hostProcess=true")
}

fn privilege_escalation(pod: &PodParts<'_>) -> Option<Violation> {
    let forbids = |context| is_false(context, "allowPrivilegeEscalation");
    let containers = pod.containers_that(|container| !context(container).is_some_and(forbids));
    let detail = "must set securityContext.allowPrivilegeEscalation=false";
    by(&containers, "allowPrivilegeEscalation != false", detail)
}

fn dropped_capabilities(pod: &PodParts<'_>) -> Option<Violation> {
    let keeping = pod.containers_that(|container| {
        let sets = context(container).and_then(|context| object(context, "capabilities"));
        !sets.is_some_and(|sets| texts(sets, "drop").any(|capability| capability == "ALL"))
    });
    let must = "must set securityContext.capabilities.drop=[\"ALL\"]";
    let keeping = if keeping.is_empty() { keeping } else { format!("{keeping} {must}") };
    by(&both(&keeping, &pod.added("NET_BIND_SERVICE"), "; "), "unrestricted capabilities", "")
}

fn volume_types(pod: &PodParts<'_>) -> Option<Violation> {
    let (mut names, mut types) = (Vec::new(), BTreeSet::new());
    for volume in objects(pod.spec, "volumes") {
        // A server that validates nothing may bind a pod whose volume has several.
        let kinds = volume.keys().filter(|field| *field != "name");
        let mut bad = kinds.filter(|kind| !is_in(VOLUMES, kind)).peekable();
        if bad.peek().is_some() {
            names.push(text(volume, "name"));
            types.extend(bad);
        }
    }
    let volumes = named("volume", names);
    let detail =
        format!("{} {} {}", uses(&volumes), plural("restricted volume type", types.len()), quoted(types));
    by(&volumes, "restricted volume types", &detail)
}

fn non_root(pod: &PodParts<'_>) -> Option<Violation> {
    let (setters, _) = pod.setters(|context| is_false(context, "runAsNonRoot").then_some(()));
    let detail = "must not set securityContext.runAsNonRoot=false";
    by(&setters, "runAsNonRoot != true", detail).or_else(|| {
        let detail = "must set securityContext.runAsNonRoot=true";
        by(&pod.without("runAsNonRoot"), "runAsNonRoot != true", detail)
    })
}

fn user(pod: &PodParts<'_>) -> Option<Violation> {
    let (setters, _) = pod.setters(|context| number(context, "runAsUser").filter(|user| *user == 0));
    by(&setters, "runAsUser=0", "must not set runAsUser=0")
}
