//! JSON patches, with bounds on what their operations copy, move and nest.

use std::slice;

use json_patch::{AddOperation, PatchOperation, jsonptr::Pointer, patch_unsafe};
use serde_json::Value;

use super::error::{PatchError, malformed};
use crate::{
    manifest::{UNKNOWN_FIELD, tree::MAX_DEPTH},
    pod::{FieldPath, Object, Problem},
};

/// The most operations of a JSON patch (`maxJSONPatchOperations`).
pub const MAX_OPERATIONS: usize = 10_000;
/// The most fields that are reported of one patch.
pub(super) const MAX_PROBLEMS: usize = 100;
/// The most bytes that the `copy` operations of a JSON patch add (`JSONPatchMaxCopyBytes`).
pub const MAX_COPIED: usize = 3 << 20;
/// The most values that all operations together may move, those of a list behind an added or removed item included. An
/// item at the beginning of a list moves the whole list.
const MAX_MOVED: usize = 16 << 20;

/// Checks the number of operations, and finds the fields that no operation has.
pub(super) fn check(operations: &[Value], found: &mut Vec<Problem>) -> Result<(), PatchError> {
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    for (index, operation) in operations.iter().enumerate() {
        for name in operation.as_object().into_iter().flat_map(Object::keys) {
            if !matches!(&**name, "op" | "path" | "from" | "value") && found.len() < MAX_PROBLEMS {
                let path = FieldPath::ROOT.index(index).field(name).to_string();
                found.push(Problem::warning(UNKNOWN_FIELD).of(path));
            }
        }
    }
    Ok(())
}

/// Applies operations one after the other.
pub(super) fn apply(mut pod: Value, operations: Vec<Value>) -> Result<Value, PatchError> {
    let mut work = Work::default();
    for (index, operation) in operations.into_iter().enumerate() {
        if !operation.is_object() {
            return Err(malformed(format!("error decoding patch: operation {index} is not a map")));
        }
        let bad = |why: &dyn ToString| {
            PatchError::Inapplicable(format!("operation {index} of the JSON patch: {}", why.to_string()))
        };
        let operation = serde_json::from_value(operation).map_err(|error| bad(&error))?;
        let Some(operation) = as_at_an_api_server(operation, &pod) else { continue };
        work.count(&operation, &pod).map_err(|why| bad(&why))?;
        let path = operation.path();
        patch_unsafe(&mut pod, slice::from_ref(&operation))
            .map_err(|error| bad(&format!("{:?}: {}", path.as_str(), error.kind)))?;
    }
    Ok(pod)
}

/// The operation that a kube-apiserver's library performs instead: `replace` adds a field that is absent, and `test`
/// and `copy` take an absent field for null. None if there is nothing to do.
fn as_at_an_api_server(operation: PatchOperation, pod: &Value) -> Option<PatchOperation> {
    let is_absent = |path: &Pointer| {
        let parent = path.split_back().and_then(|(parent, _)| pod.pointer(parent.as_str()));
        parent.is_some_and(Value::is_object) && pod.pointer(path.as_str()).is_none()
    };
    match operation {
        PatchOperation::Replace(replace) if is_absent(&replace.path) => {
            Some(PatchOperation::Add(AddOperation { path: replace.path, value: replace.value }))
        }
        PatchOperation::Copy(copy) if is_absent(&copy.from) => {
            Some(PatchOperation::Add(AddOperation { path: copy.path, value: Value::Null }))
        }
        PatchOperation::Test(test) if test.value.is_null() && is_absent(&test.path) => None,
        operation => Some(operation),
    }
}

/// What the operations have copied, in bytes, and moved, in values.
#[derive(Default)]
struct Work {
    copied: usize,
    moved: usize,
}

impl Work {
    /// Counts an operation before it is performed.
    fn count(&mut self, operation: &PatchOperation, pod: &Value) -> Result<(), String> {
        let path = operation.path();
        let value = match operation {
            PatchOperation::Add(add) => Some(&add.value),
            PatchOperation::Replace(replace) => Some(&replace.value),
            PatchOperation::Copy(copy) => pod.pointer(copy.from.as_str()),
            PatchOperation::Move(moved) => {
                self.moved += length_of_list(pod, &moved.from);
                pod.pointer(moved.from.as_str())
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
        };
        if !matches!(operation, PatchOperation::Replace(_) | PatchOperation::Test(_)) {
            self.moved += length_of_list(pod, path);
        }
        if let Some(value) = value {
            let mut size = Size::default();
            size.add(value, path.count() + 1);
            match operation {
                PatchOperation::Copy(_) => self.copied += size.bytes,
                PatchOperation::Move(_) => self.moved += size.values,
                _ => {}
            }
            if size.depth > MAX_DEPTH {
                return Err(format!("it nests values more than {MAX_DEPTH} levels deep"));
            }
        }
        if self.copied > MAX_COPIED {
            return Err(format!("the patch copies more than {MAX_COPIED} bytes"));
        }
        if self.moved > MAX_MOVED {
            return Err(format!("the patch moves more than {MAX_MOVED} values"));
        }
        Ok(())
    }
}

/// The length of the list that has the item at a path; 0 if it is no item.
fn length_of_list(pod: &Value, path: &Pointer) -> usize {
    let parent = path.split_back().and_then(|(parent, _)| pod.pointer(parent.as_str()));
    parent.and_then(Value::as_array).map_or(0, Vec::len)
}

/// The size of a value.
#[derive(Default)]
struct Size {
    /// About the length of its text.
    bytes: usize,
    values: usize,
    /// The deepest level, counted from the root of the pod.
    depth: usize,
}

impl Size {
    fn add(&mut self, value: &Value, depth: usize) {
        self.values += 1;
        self.bytes += 2;
        self.depth = self.depth.max(depth);
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => items.iter().for_each(|item| self.add(item, depth + 1)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.bytes += name.len() + 2;
                    self.add(value, depth + 1);
                }
            }
            _ => {}
        }
    }
}
