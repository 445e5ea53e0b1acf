//! Decodes the text of a manifest to prepared pods.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    defaults, go_types,
    other_kinds::{advice, other_version},
    tree::{Data, Fault, Node, Places, lossy},
    typed::{self, Findings},
    workload::{self, Other, Workload},
    yaml,
};
use crate::{
    pod::{
        FieldPath, InvalidManifest, NodeName, Object, PodKey, Prepared, Problem, SecurityLevel, SourceName,
        Stage, identity,
    },
    validation::{self, Report, pod_security},
};

/// The largest manifest that is read, in bytes (the kubelet's bound for a URL's body).
pub const MAX_MANIFEST: usize = 10 * 1024 * 1024;

/// The source and node for which a manifest is prepared.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// The source that read the manifest: `File`, `Http` or `Url`. For `Api` a manifest is prepared as for `Url`.
    pub source: SourceName,
    /// This node.
    pub node: NodeName,
    /// How names are generated for pods that have a `generateName` and no name. None
    /// means that such pods are rejected, as by the kubelet.
    pub generate: Option<Generate>,
    /// The namespace of a pod without one: that of the API path of a posted pod.
    /// None means `default`.
    pub namespace: Option<String>,
}

/// How names are generated.
#[derive(Clone)]
pub struct Generate {
    /// Returns random letters for the end of a name.
    pub letters: Arc<dyn Fn() -> String + Send + Sync>,
    /// Whether another pod has a name.
    pub is_taken: Arc<dyn Fn(&PodKey) -> bool + Send + Sync>,
}

impl fmt::Debug for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generate").finish_non_exhaustive()
    }
}

/// How many names are tried for one pod. If all exist, the pod gets the last one and the
/// source rejects it (`maxNameGenerationCreateAttempts` in
/// `k8s.io/apiserver/pkg/registry/generic/registry/store.go`).
pub const NAME_ATTEMPTS: usize = 8;

/// The longest prefix of a generated name, in bytes: a label without its last five
/// bytes (`k8s.io/apiserver/pkg/storage/names`).
pub const MAX_GENERATED_PREFIX: usize = 58;

/// The pods of a valid manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The prepared pods in the order of the text; at least one, unless the manifest is
    /// an explicit empty list.
    pub pods: Vec<Prepared>,
    /// The line on which each pod begins, from 1. Empty for posted pods, which have no file.
    pub lines: Vec<u32>,
    /// Whether one of the documents is a list.
    pub has_list: bool,
    /// Warnings, for example of unknown fields and duplicate keys.
    pub warnings: Vec<Problem>,
}

/// Decodes, prepares and validates a manifest as the kubelet does: a Pod, a PodList, a List or
/// several YAML documents, in YAML or JSON.
///
/// # Errors
/// All problems of the manifest, each with its position. A manifest is accepted as a whole or rejected.
pub fn read(text: &[u8], preparation: &Preparation) -> Result<Manifest, InvalidManifest> {
    admit(text, preparation, SecurityLevel::Privileged)
}

/// Reads a manifest as [`read`] does, and rejects pods that exceed a level of the Pod Security
/// Standards.
///
/// # Errors
/// As [`read`], and for each such pod how it violates the level, if it is valid otherwise.
pub fn admit(
    text: &[u8],
    preparation: &Preparation,
    level: SecurityLevel,
) -> Result<Manifest, InvalidManifest> {
    collect(text, preparation, level, VALIDATE, None)
}

/// Reads a manifest as [`admit`] does, and also warns as an API server does when it creates the pods:
/// of deprecated fields, ports that occur twice, paths that overlap and the like.
///
/// # Errors
/// As [`admit`].
pub fn review(
    text: &[u8],
    preparation: &Preparation,
    level: SecurityLevel,
) -> Result<Manifest, InvalidManifest> {
    collect(text, preparation, level, validation::validate_and_warn, None)
}

/// Reads a manifest as [`admit`] does, and also checks the pod templates of Deployments, `DaemonSets`,
/// `StatefulSets`, `ReplicaSets`, Jobs and `CronJobs`. The pods of the result are those of the manifest itself. A
/// template may refer to objects that only an API server can resolve. Also returns how many objects of other
/// kinds were skipped.
#[cfg(feature = "agent")]
pub(crate) fn admit_templates(
    text: &[u8],
    preparation: &Preparation,
    level: SecurityLevel,
) -> (Result<Manifest, InvalidManifest>, usize) {
    let skipped = Cell::new(0);
    let manifest = collect(text, preparation, level, validation::validate_and_warn, Some(&skipped));
    (manifest, skipped.get())
}

/// What a manifest is written in.
#[cfg(feature = "agent")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// JSON; YAML is rejected.
    Json,
    /// YAML, which includes JSON.
    Yaml,
    /// Protobuf in the envelope of the API.
    Protobuf,
}

/// Reads a manifest as [`review`] does, and passes each valid pod on as soon as it is decoded: a
/// decoded pod takes many times the memory of its text. The result has no pods. It ends when
/// `keep` returns false. If `is_pod`, an object without a kind and a version is a v1 Pod.
///
/// # Errors
/// As [`admit`]. Pods that were passed on before an error are then invalid too.
#[cfg(feature = "agent")]
pub(crate) fn admit_each(
    text: &[u8],
    syntax: Syntax,
    is_pod: bool,
    preparation: &Preparation,
    level: SecurityLevel,
    keep: &mut dyn FnMut(Prepared) -> bool,
) -> Result<Manifest, InvalidManifest> {
    let options = Options { preparation, level, check: validation::validate_and_warn, is_pod, skipped: None };
    let parse_json: Parse = |text| {
        let fault = |fault: Fault| {
            let detail = format!("not JSON: {}", fault.detail);
            if fault.is_bound { fault } else { Fault { detail, ..fault } }
        };
        super::json::read(text, None).map(|node| vec![node]).map_err(fault)
    };
    match syntax {
        Syntax::Json => decode_with(text, options, parse_json, keep),
        Syntax::Yaml => decode_with(text, options, yaml::documents, keep),
        Syntax::Protobuf => {
            check_length(text)?;
            let document = super::protobuf::document(text).map_err(undecodable)?;
            decode_documents(&[document], Findings::of_message(), options, keep)
        }
    }
}

/// Decodes and prepares a manifest without validating its pods.
///
/// # Errors
/// As [`read`], without those of validation.
pub fn decode(text: &[u8], preparation: &Preparation) -> Result<Manifest, InvalidManifest> {
    collect(text, preparation, SecurityLevel::Privileged, |_, _, _, _| {}, None)
}

/// Validates a prepared pod, which has a name and a path in its manifest.
type PodCheck = fn(&Object, &str, &FieldPath<'_>, &dyn Report);

const VALIDATE: PodCheck = |pod, _, path, report| validation::validate(pod, path, report);

/// Parses a text to its documents.
type Parse = for<'t> fn(&'t str) -> Result<Vec<Node<'t>>, Fault>;

fn collect(
    text: &[u8],
    preparation: &Preparation,
    level: SecurityLevel,
    check: PodCheck,
    skipped: Option<&Cell<usize>>,
) -> Result<Manifest, InvalidManifest> {
    let mut pods = Vec::new();
    let mut keep = |pod| {
        pods.push(pod);
        true
    };
    let options = Options { preparation, level, check, is_pod: false, skipped };
    let manifest = decode_with(text, options, yaml::documents, &mut keep)?;
    Ok(Manifest { pods, ..manifest })
}

/// How pods are decoded.
#[derive(Clone, Copy)]
struct Options<'r> {
    preparation: &'r Preparation,
    level: SecurityLevel,
    check: PodCheck,
    /// Whether an object without a kind and a version is a v1 Pod.
    is_pod: bool,
    /// The number of objects that are not checked, if pod templates are checked and other kinds skipped.
    skipped: Option<&'r Cell<usize>>,
}

fn undecodable(problem: Problem) -> InvalidManifest {
    InvalidManifest { stage: Stage::Decode, problems: vec![problem] }
}

fn check_length(text: &[u8]) -> Result<(), InvalidManifest> {
    if text.len() > MAX_MANIFEST {
        let detail = format!("{} bytes are too many: a manifest has at most {MAX_MANIFEST}", text.len());
        return Err(undecodable(Problem::error(detail)));
    }
    Ok(())
}

fn decode_with(
    text: &[u8],
    options: Options<'_>,
    parse: Parse,
    keep: &mut dyn FnMut(Prepared) -> bool,
) -> Result<Manifest, InvalidManifest> {
    check_length(text)?;
    let text = utf8(text).map_err(undecodable)?;
    let documents = parse(&text).map_err(|fault| undecodable(fault.into_problem(&text)))?;
    decode_documents(&documents, Findings::new(&text), options, keep)
}

fn decode_documents<'t>(
    documents: &'t [Node<'t>],
    findings: Findings<'t>,
    options: Options<'_>,
    keep: &mut dyn FnMut(Prepared) -> bool,
) -> Result<Manifest, InvalidManifest> {
    let mut decoder = Decoder {
        options,
        findings: RefCell::new(findings),
        keep,
        is_full: false,
        names: HashMap::new(),
        generated: HashSet::new(),
        lines: Vec::new(),
        lists: 0,
        templates: 0,
    };
    for document in documents {
        if !decoder.is_full {
            decoder.document(document);
        }
    }
    decoder.finish()
}

/// The text of a manifest. In JSON, as in Go, a byte that is not UTF-8 becomes U+FFFD.
fn utf8(bytes: &[u8]) -> Result<Cow<'_, str>, Problem> {
    let error = match str::from_utf8(bytes) {
        Ok(text) => return Ok(text.into()),
        Err(error) => error,
    };
    if bytes.trim_ascii_start().starts_with(b"{") {
        return Ok(lossy(bytes));
    }
    let valid = lossy(&bytes[..error.valid_up_to()]);
    let place = Places::new(&valid).of(valid.len());
    Err(Problem::error("not UTF-8: save the file as UTF-8").at(Some(place)))
}

/// A workload, and the object that is one.
type Owner<'n> = (&'static Workload, &'n Node<'n>);

struct Decoder<'r, 't> {
    options: Options<'r>,
    findings: RefCell<Findings<'t>>,
    /// Takes each pod, and returns whether it takes more.
    keep: &'r mut dyn FnMut(Prepared) -> bool,
    is_full: bool,
    /// The position of the first pod with each name.
    names: HashMap<PodKey, usize>,
    /// The names that were generated for the pods.
    generated: HashSet<PodKey>,
    lines: Vec<u32>,
    lists: usize,
    /// The number of pod templates.
    templates: usize,
}

impl<'t> Decoder<'_, 't> {
    fn document(&mut self, document: &'t Node<'t>) {
        let root = FieldPath::ROOT;
        self.findings.get_mut().document = document;
        match kind(document, self.options.is_pod) {
            _ if document.is_null() => {}
            Ok("Pod") => self.pod(document, &root),
            Ok(list @ ("PodList" | "List")) => {
                self.lists += 1;
                self.list(document, list == "PodList", &root);
            }
            kind => self.other(kind, "Pod, PodList or List", document, &root),
        }
    }

    /// Checks or skips an object that is no pod, if templates are checked, and otherwise rejects it: it has another
    /// kind than the expected ones, or none.
    fn other(
        &mut self,
        kind: Result<&str, KindError>,
        expected: &str,
        node: &Node<'_>,
        path: &FieldPath<'_>,
    ) {
        let Some((skipped, other)) = self.options.skipped.zip(workload::of(node)) else {
            let (at, field, problem) = kind.map_or_else(
                |error| error,
                |kind| {
                    let detail = advice(kind, "v1", expected);
                    let at = node.get("kind").map_or(node.at, |kind| kind.at);
                    (at, Some("kind"), Problem::error(detail))
                },
            );
            let path = field.map_or(*path, |field| path.field(field));
            return self.findings.get_mut().error(Stage::Decode, at, &path, problem);
        };
        match other {
            Other::Workload(workload) => {
                self.templates += 1;
                self.template((workload, node), workload.template, node, path);
            }
            Other::Object => skipped.set(skipped.get() + 1),
        }
    }

    /// Checks the pod template of a workload that these fields lead to.
    fn template(&mut self, owner: Owner<'_>, fields: &[&str], node: &Node<'_>, path: &FieldPath<'_>) {
        let Some((field, rest)) = fields.split_first() else {
            return self.pod_template(owner, node, path);
        };
        let path = path.field(field);
        match node.get(field) {
            Some(inner) if !inner.is_null() => self.template(owner, rest, inner, &path),
            _ => {
                let problem = Problem::error("Required value").because("FieldValueRequired");
                self.findings.get_mut().error(Stage::Decode, node.at, &path, problem);
            }
        }
    }

    /// Checks a pod template. It is not prepared: it is no pod of this node.
    fn pod_template(&mut self, (workload, object): Owner<'_>, node: &Node<'_>, path: &FieldPath<'_>) {
        let errors = self.findings.errors();
        let mut pod = typed::object(&go_types::POD, node, path, self.findings.get_mut());
        if self.findings.errors() > errors {
            return;
        }
        // The API takes no other metadata from a template.
        let metadata = defaults::child(&mut pod, "metadata");
        metadata.retain(|field, _| matches!(field.as_str(), "labels" | "annotations"));
        workload.change(object, defaults::child(&mut pod, "spec"));
        defaults::set_in_template(&mut pod);
        defaults::convert(&mut pod);
        typed::complete(&go_types::POD, &mut pod);
        validation::validate_template(&pod, workload.restart_policies, path, &self.findings);
        self.check_level(&pod, errors, node, path);
    }

    /// Rejects a pod that is valid otherwise and exceeds the level of the Pod Security Standards.
    fn check_level(&mut self, pod: &Object, errors: usize, node: &Node<'_>, path: &FieldPath<'_>) {
        if self.findings.errors() == errors
            && let Some(violation) = pod_security::violation(pod, self.options.level)
        {
            self.findings.get_mut().error(Stage::Security, node.at, path, Problem::error(violation));
        }
    }

    fn list(&mut self, list: &Node<'_>, of_pods: bool, root: &FieldPath<'_>) {
        let path = root.field("items");
        let items = match list.get("items") {
            None => return,
            Some(items) if items.is_null() => return,
            Some(Node { data: Data::List(items), .. }) => items,
            Some(other) => return self.findings.get_mut().misfit(other, typed::A_LIST, &path),
        };
        for (index, item) in items.iter().enumerate() {
            if self.is_full {
                return;
            }
            let path = path.index(index);
            // The items of a PodList usually have no kind and apiVersion.
            let kind = match kind(item, false) {
                Err((_, Some(field), _)) if of_pods && item.get(field).is_none_or(Node::is_null) => Ok("Pod"),
                kind => kind,
            };
            match kind {
                Ok("Pod") => self.pod(item, &path),
                kind => self.other(kind, "Pod", item, &path),
            }
        }
    }

    /// Decodes the pod of a node at a path of its document.
    fn pod(&mut self, node: &Node<'_>, path: &FieldPath<'_>) {
        let errors = self.findings.errors();
        let mut pod = typed::object(&go_types::POD, node, path, self.findings.get_mut());
        if self.findings.errors() > errors {
            return;
        }
        let metadata = path.field("metadata");
        let name = metadata.field("name");
        if !is_named(&mut pod, self.options.preparation, &mut self.generated) {
            let at = node.get("metadata").map_or(node.at, |metadata| metadata.at);
            let problem = Problem::error("Required value: a pod needs a name").because("FieldValueRequired");
            return self.findings.get_mut().error(Stage::Name, at, &name, problem);
        }
        let key = prepare(&mut pod, self.options.preparation);
        let Preparation { source, node: host, .. } = self.options.preparation;
        let suffix = if *source == SourceName::Http { String::new() } else { format!("-{host}") };
        let given = key.name().strip_suffix(&suffix).unwrap_or_default();
        // A kubelet validates managedFields, an API server replaces them. podmux does not keep them.
        let discard = |pod: &mut Object| drop(defaults::child(pod, "metadata").remove("managedFields"));
        if *source == SourceName::Http {
            discard(&mut pod);
        }
        (self.options.check)(&pod, given, path, &self.findings);
        self.check_level(&pod, errors, node, path);
        if let Some(first) = self.names.get(&key) {
            self.findings.get_mut().add(Some(Stage::Decode), &name, |findings| {
                let (line, column) = findings.places.of(*first);
                let place = if findings.has_places {
                    format!("the pod at {line}:{column}")
                } else {
                    "an earlier pod".into()
                };
                let detail =
                    format!("Duplicate value: {key} is also the name of {place}; rename one of them");
                (node.at, Problem::error(detail).because("FieldValueDuplicate"))
            });
        } else {
            self.names.insert(key.clone(), node.at);
        }
        discard(&mut pod);
        // A manifest with an error is rejected as a whole, with all its problems.
        if self.findings.errors() == 0 {
            if self.options.preparation.source != SourceName::Http {
                self.lines.push(self.findings.get_mut().places.of(node.at).0);
            }
            self.is_full |= !(self.keep)(Prepared::from_canonical(pod, key));
        }
    }

    fn finish(mut self) -> Result<Manifest, InvalidManifest> {
        let skipped = self.options.skipped.map_or(0, Cell::get);
        let objects = self.names.len() + self.lists + self.templates + skipped;
        if objects == 0 && self.findings.errors() == 0 {
            let problem =
                Problem::error("no pod found (is it empty?): a Pod, a PodList or a List is expected");
            self.findings.get_mut().error(Stage::Decode, 0, &FieldPath::ROOT, problem);
        }
        match self.findings.into_inner().into_problems() {
            (Some(stage), problems) => Err(InvalidManifest { stage, problems }),
            (None, warnings) => {
                Ok(Manifest { pods: Vec::new(), lines: self.lines, has_list: self.lists > 0, warnings })
            }
        }
    }
}

/// Why a value has no kind: position, field and problem.
type KindError = (usize, Option<&'static str>, Problem);

/// The kind of an object of the API version `v1`. If `is_pod`, they may be absent.
fn kind<'n>(node: &'n Node<'_>, is_pod: bool) -> Result<&'n str, KindError> {
    if !matches!(node.data, Data::Map(_)) {
        let detail = format!(
            "a map with apiVersion and kind is expected, but this is {} (is this a manifest?)",
            node.kind()
        );
        return Err((node.at, None, Problem::error(detail)));
    }
    let text = |field: &'static str, example: &str, default: &'static str| match node.get(field) {
        Some(value) if !value.is_null() && value.text() != Some("") => value
            .text()
            .ok_or_else(|| (value.at, Some(field), typed::unfit(value, typed::A_STRING, &FieldPath::ROOT))),
        _ if is_pod => Ok(default),
        _ => {
            let detail = format!("Required value: {example} is expected");
            Err((node.at, Some(field), Problem::error(detail).because("FieldValueRequired")))
        }
    };
    let kind = text("kind", "kind: Pod", "Pod")?;
    let version = text("apiVersion", "apiVersion: v1", "v1")?;
    // `/v1` names the group without a name explicitly.
    if version != "v1" && version != "/v1" {
        let (field, detail) = match kind {
            "Pod" | "PodList" | "List" => ("apiVersion", other_version(kind, version)),
            _ => ("kind", advice(kind, version, "Pod, PodList or List")),
        };
        let at = node.get(field).map_or(node.at, |value| value.at);
        return Err((at, Some(field), Problem::error(detail)));
    }
    Ok(kind)
}

/// Whether a pod has a name. Generates one from its `generateName`, if allowed.
fn is_named(pod: &mut Object, preparation: &Preparation, generated: &mut HashSet<PodKey>) -> bool {
    let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) else { return false };
    if metadata.contains_key("name") {
        return true;
    }
    let prefix = metadata.get("generateName").and_then(Value::as_str);
    let Some((Generate { letters, is_taken }, prefix)) = preparation.generate.as_ref().zip(prefix) else {
        return false;
    };
    let prefix = &prefix[..prefix.floor_char_boundary(MAX_GENERATED_PREFIX)];
    let namespace = namespace(metadata, preparation);
    let mut name = String::new();
    for _ in 0..NAME_ATTEMPTS {
        name = format!("{prefix}{}", letters());
        let key = PodKey::new(namespace, &name);
        if !is_taken(&key) && generated.insert(key) {
            break;
        }
    }
    metadata.insert("name".to_owned(), name.into());
    true
}

/// The namespace of a pod, given or not.
fn namespace<'p>(metadata: &'p Object, preparation: &'p Preparation) -> &'p str {
    match metadata.get("namespace").and_then(Value::as_str) {
        None | Some("") => preparation.namespace.as_deref().unwrap_or("default"),
        Some(namespace) => namespace,
    }
}

/// Prepares a pod for the listing: defaults, name, namespace, UID, hash, node
/// (`applyDefaults` in the kubelet's `pkg/kubelet/config/common.go`). Returns the pod's key.
fn prepare(pod: &mut Object, preparation: &Preparation) -> PodKey {
    let Preparation { source, node, .. } = preparation;
    let hash = identity::hash(pod);
    pod.insert("apiVersion".to_owned(), "v1".into());
    pod.insert("kind".to_owned(), "Pod".into());
    defaults::set(pod);
    defaults::convert(pod);

    let metadata = defaults::child(pod, "metadata");
    let namespace = namespace(metadata, preparation).to_owned();
    let mut name = metadata.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if *source != SourceName::Http {
        name = format!("{name}-{node}");
    }
    if !metadata.contains_key("uid") && *source != SourceName::Http {
        let uid = identity::uid(*source, node.as_str(), &namespace, &name);
        metadata.insert("uid".to_owned(), uid.to_string().into());
    }
    let key = PodKey::new(&namespace, &name);
    metadata.insert("name".to_owned(), name.into());
    metadata.insert("namespace".to_owned(), namespace.into());
    defaults::child(metadata, "annotations").insert(identity::HASH.to_owned(), hash.into());

    let spec = defaults::child(pod, "spec");
    spec.insert("nodeName".to_owned(), node.as_str().into());
    if *source == SourceName::File {
        tolerate(spec);
    }
    defaults::child(pod, "status").insert("phase".to_owned(), "Pending".into());
    typed::complete(&go_types::POD, pod);
    key
}

/// Adds the toleration of every taint with the effect `NoExecute`, so that a static pod stays
/// when its node has problems. It replaces a toleration for the same taints.
fn tolerate(spec: &mut Object) {
    let toleration = json!({ "operator": "Exists", "effect": "NoExecute" });
    let tolerations = spec.entry("tolerations").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(tolerations) = tolerations else { return };
    let alike = |other: &Value| {
        let field = |name: &str| other.get(name).and_then(Value::as_str).unwrap_or_default();
        field("operator") == "Exists"
            && field("effect") == "NoExecute"
            && field("key").is_empty()
            && field("value").is_empty()
    };
    let mut found = false;
    for other in tolerations.iter_mut().filter(|other| alike(other)) {
        *other = toleration.clone();
        found = true;
    }
    if !found {
        tolerations.push(toleration);
    }
}
