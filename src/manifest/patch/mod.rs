//! Patches of a pod: JSON patch, merge patch, strategic merge patch and apply. Pure.

mod apply;
mod dependent;
mod error;
mod json;
mod list;
mod strategic;

use serde_json::Value;

use self::error::malformed;
pub use self::{
    apply::LastApplied,
    error::PatchError,
    json::{MAX_COPIED, MAX_OPERATIONS},
};
use super::{
    DUPLICATE_KEY, json as json_text,
    tree::{Data, Node, lossy},
    yaml,
};
use crate::pod::{FieldPath, Object, Problem};

/// The largest patch, in bytes (`MaxRequestBodyBytes` of a kube-apiserver).
pub const MAX_PATCH: usize = 3 << 20;

/// The annotation with what client-side `kubectl apply` applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What client-side `kubectl apply` applied to a pod, if it has noted that.
pub fn noted(pod: &Object) -> Option<Object> {
    let note = pod.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    serde_json::from_str(note).ok()
}

/// The type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// A list of operations (RFC 6902).
    Json,
    /// The fields that change; null removes one (RFC 7386).
    Merge,
    /// The same, but lists are merged by the merge keys of the API's types, and there are directives.
    Strategic,
    /// A manifest with the fields that one field manager wants.
    Apply,
}

impl PatchType {
    /// All types, in the order in which a kube-apiserver lists them.
    pub const ALL: [Self; 4] = [Self::Json, Self::Merge, Self::Strategic, Self::Apply];

    /// The media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// A patch that was parsed.
#[derive(Clone, Debug)]
pub struct Patch {
    kind: PatchType,
    value: Value,
    /// Fields that the text has twice, or that no operation has.
    problems: Vec<Problem>,
}

impl Patch {
    /// Parses a text: JSON, or YAML for [`PatchType::Apply`].
    ///
    /// # Errors
    /// If the text is invalid, is not a list of operations or a map, or exceeds a bound.
    pub fn parse(kind: PatchType, text: &[u8]) -> Result<Self, PatchError> {
        if text.len() > MAX_PATCH {
            let detail = format!("{} bytes are too many: a patch has at most {MAX_PATCH}", text.len());
            return Err(PatchError::TooLarge(detail));
        }
        let text = lossy(text);
        let mut documents = if kind == PatchType::Apply {
            let documents = yaml::documents(&text);
            documents.map(|all| all.into_iter().filter(|document| !document.is_null()).collect())
        } else {
            json_text::read(&text, None).map(|node| vec![node])
        }
        .map_err(|fault| malformed(format!("error decoding patch: {}", fault.into_problem(&text))))?;
        let (Some(node), None) = (documents.pop(), documents.pop()) else {
            return Err(malformed("error decoding patch: one document is expected"));
        };
        let mut problems = Vec::new();
        find_duplicates(&node, &FieldPath::ROOT, &mut problems);
        let mut value = node.into_json();
        if kind == PatchType::Json && value.is_null() {
            value = Value::Array(Vec::new());
        }
        match (kind, &value) {
            (PatchType::Json, Value::Array(operations)) => json::check(operations, &mut problems)?,
            (PatchType::Json, _) => {
                return Err(malformed("error decoding patch: a list of operations is expected"));
            }
            (_, Value::Object(_)) => {}
            _ => return Err(malformed("error decoding patch: a map is expected")),
        }
        if kind == PatchType::Apply {
            apply::check(&mut value)?;
        }
        Ok(Self { kind, value, problems })
    }

    /// The type of the patch.
    pub fn kind(&self) -> PatchType {
        self.kind
    }

    /// The fields that the text has twice, of which the last value is used, and those that no operation has.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Applies the patch to a pod. `applied` is what the field manager and the others applied last.
    ///
    /// # Errors
    /// If the patch does not apply to the pod, or the result exceeds a bound.
    pub fn apply_to(&self, mut pod: Object, applied: &LastApplied) -> Result<Object, PatchError> {
        if let Some(manifest) = self.manifest() {
            let noted = noted(&pod);
            let before = noted.iter().chain(&applied.own).chain(&applied.others);
            dependent::remove(&mut pod, before.chain([&manifest]));
        }
        let patched = match (self.kind, self.value.clone()) {
            (PatchType::Json, Value::Array(operations)) => json::apply(pod.into(), operations)?,
            (PatchType::Merge, patch) => {
                let mut pod = Value::from(pod);
                json_patch::merge(&mut pod, &patch);
                pod
            }
            (PatchType::Strategic, Value::Object(patch)) => {
                strategic::merge(pod, patch, list::STRATEGIC)?.into()
            }
            (PatchType::Apply, Value::Object(config)) => apply::apply(pod, config, applied)?.into(),
            _ => Value::Null,
        };
        match patched {
            Value::Object(patched) => Ok(patched),
            _ => Err(PatchError::Inapplicable("the patched pod is not a map".to_owned())),
        }
    }

    /// The manifest that is applied: the patch itself, or what client-side `kubectl apply` notes with it.
    fn manifest(&self) -> Option<Object> {
        match self.kind {
            PatchType::Apply => self.value.as_object().cloned(),
            _ => noted(self.value.as_object()?),
        }
    }

    /// What an apply patch sets, to be kept until the next one of its field manager. None if it only names the pod.
    pub fn config(&self) -> Option<&Object> {
        let config = self.value.as_object().filter(|_| self.kind == PatchType::Apply)?;
        let names = |(field, value): (&String, &Value)| match (&**field, value) {
            ("metadata", Value::Object(metadata)) => {
                metadata.keys().all(|field| matches!(&**field, "name" | "namespace"))
            }
            (field, _) => matches!(field, "apiVersion" | "kind"),
        };
        (!config.iter().all(names)).then_some(config)
    }
}

/// Finds the keys that a text has twice.
fn find_duplicates(node: &Node<'_>, path: &FieldPath<'_>, found: &mut Vec<Problem>) {
    match &node.data {
        Data::Map(entries) => {
            for entry in entries {
                let path = path.field(&entry.key);
                if entry.earlier.is_some() && found.len() < json::MAX_PROBLEMS {
                    found.push(Problem::warning(DUPLICATE_KEY).of(path.to_string()));
                }
                find_duplicates(&entry.value, &path, found);
            }
        }
        Data::List(items) => {
            for (index, item) in items.iter().enumerate() {
                find_duplicates(item, &path.index(index), found);
            }
        }
        _ => {}
    }
}
