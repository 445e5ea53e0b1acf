//! A place in a pod, at which errors are reported in the API's words.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::{
    fields::{Object, given_text, object, text, texts},
    syntax::{Check, SyntaxResult},
};
use crate::pod::{FieldPath, Problem, Stage, quoted};

/// Receives the problems of a pod. The decoder of a manifest implements it, because only
/// the decoder knows the positions of fields in the text.
pub trait Report {
    /// Reports an error, which rejects the pod at a stage. The problem is made only if it is
    /// kept: of the errors of a text, the first hundred are.
    fn error(&self, stage: Stage, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem);

    /// Reports what the author of the pod probably did not mean.
    fn warning(&self, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem);

    /// Whether the text has an empty list or map at a path. A prepared pod does not
    /// distinguish it from an absent one, and some rules of the API do.
    fn is_given_empty(&self, path: &FieldPath<'_>) -> bool;

    /// The number of errors so far, at all places.
    fn errors(&self) -> usize;
}

/// A place in a pod: its path, and the report of its errors. A text is made only for an
/// error: a valid pod costs no allocation.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    pub(super) path: FieldPath<'p>,
    pub(super) report: &'p dyn Report,
}

/// The value of a field in an error.
pub(super) trait BadValue: Copy {
    fn shown(&self) -> String;
}

impl BadValue for &str {
    fn shown(&self) -> String {
        quoted(self)
    }
}

impl BadValue for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Other places.
impl<'p> At<'p> {
    /// A field of this object.
    pub(super) fn field(&'p self, name: &'p str) -> Self {
        Self { path: self.path.field(name), ..*self }
    }

    /// An item of this list.
    pub(super) fn index(&'p self, index: usize) -> Self {
        Self { path: self.path.index(index), ..*self }
    }

    /// The value of a key in this map.
    pub(super) fn key(&'p self, key: &'p str) -> Self {
        Self { path: self.path.key(key), ..*self }
    }

    /// This place with one more step, which only the API's path has.
    pub(super) fn named(&'p self, word: &'p str) -> Self {
        Self { path: self.path.named(word), ..*self }
    }

    /// This place without showing its last step, which the API's path does not have.
    pub(super) fn unnamed(self) -> Self {
        Self { path: self.path.unnamed(), ..self }
    }

    /// Visits the object in a field, if it is present.
    pub(super) fn object<'v>(&self, of: &'v Object, field: &str, visit: impl FnOnce(&At<'_>, &'v Object)) {
        if let Some(inner) = object(of, field) {
            visit(&self.field(field), inner);
        }
    }

    /// Visits the objects of this list.
    pub(super) fn each_object<'v>(&self, list: &'v Value, mut visit: impl FnMut(&At<'_>, &'v Object)) {
        for (index, item) in list.as_array().into_iter().flatten().enumerate() {
            if let Value::Object(item) = item {
                visit(&self.index(index), item);
            }
        }
    }

    /// Visits the objects of the list in a field.
    pub(super) fn objects<'v>(&self, of: &'v Object, field: &str, visit: impl FnMut(&At<'_>, &'v Object)) {
        if let Some(list) = of.get(field) {
            self.field(field).each_object(list, visit);
        }
    }

    /// Visits all containers of the pod whose spec this is.
    pub(super) fn each_container<'v>(&self, spec: &'v Object, mut visit: impl FnMut(&At<'_>, &'v Object)) {
        for field in ["initContainers", "containers", "ephemeralContainers"] {
            self.objects(spec, field, &mut visit);
        }
    }
}

/// Reports.
impl At<'_> {
    /// The number of errors so far, at all places.
    pub(super) fn errors(&self) -> usize {
        self.report.errors()
    }

    /// Whether a field is present, or was written as an empty list or map.
    pub(super) fn is_set(&self, of: &Object, field: &str) -> bool {
        of.contains_key(field) || self.report.is_given_empty(&self.path.field(field))
    }

    pub(super) fn error(&self, stage: Stage, problem: &dyn Fn() -> Problem) {
        self.report.error(stage, &self.path, problem);
    }

    pub(super) fn warning(&self, detail: &dyn Fn() -> String) {
        self.report.warning(&self.path, &|| Problem::warning(detail()));
    }

    fn add(&self, reason: &'static str, detail: &dyn Fn() -> String) {
        self.error(Stage::Validate, &|| Problem::error(detail()).because(reason));
    }

    /// Reports a missing field. `why` may be empty.
    pub(super) fn required(&self, why: &str) {
        self.add("FieldValueRequired", &|| match why {
            "" => "Required value".to_owned(),
            why => format!("Required value: {why}"),
        });
    }

    pub(super) fn invalid(&self, value: impl BadValue, why: &str) {
        self.add("FieldValueInvalid", &|| format!("Invalid value: {}: {why}", value.shown()));
    }

    /// Checks the syntax of a text.
    pub(super) fn check(&self, text: &str, check: impl Fn(&str) -> SyntaxResult) {
        if let Err(why) = check(text) {
            self.invalid(text, why);
        }
    }

    /// Checks the syntax of the texts in a list.
    pub(super) fn check_each(&self, of: &Object, field: &str, check: Check) {
        for (index, text) in texts(of, field).enumerate() {
            self.field(field).index(index).check(text, check);
        }
    }

    /// Checks the syntax of a field of an object; an absent field counts as empty.
    pub(super) fn check_text(&self, of: &Object, field: &str, check: Check) {
        self.field(field).check(text(of, field), check);
    }

    /// Checks the syntax of a field of an object, if it is present.
    pub(super) fn check_given(&self, of: &Object, field: &str, check: Check) {
        if let Some(value) = given_text(of, field) {
            self.field(field).check(value, check);
        }
    }

    /// Checks the syntax of a field of an object, if it is not empty.
    pub(super) fn check_filled(&self, of: &Object, field: &str, check: Check) {
        if !text(of, field).is_empty() {
            self.check_text(of, field, check);
        }
    }

    /// Requires a field of an object, and checks its syntax.
    pub(super) fn require_text(&self, of: &Object, field: &str, check: Check) {
        match text(of, field) {
            "" => self.field(field).required(""),
            value => self.field(field).check(value, check),
        }
    }

    /// Rejects a number outside a range.
    pub(super) fn in_range(&self, number: i64, range: RangeInclusive<i64>, why: &str) {
        if !range.contains(&number) {
            self.invalid(number, why);
        }
    }

    /// Rejects a number below zero.
    pub(super) fn not_negative(&self, number: i64) {
        self.in_range(number, 0..=i64::MAX, "must be greater than or equal to 0");
    }

    /// Rejects a value that is not supported.
    pub(super) fn one_of(&self, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.not_supported(value, supported);
        }
    }

    /// Rejects a field of an object that is present and has no supported value.
    pub(super) fn given_one_of(&self, of: &Object, field: &str, supported: &[&str]) {
        if let Some(value) = given_text(of, field) {
            self.field(field).one_of(value, supported);
        }
    }

    /// Rejects a value that is empty or not supported.
    pub(super) fn required_one_of(&self, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required("");
        } else {
            self.one_of(value, supported);
        }
    }

    /// Rejects an empty value.
    pub(super) fn not_empty(&self, value: &str) {
        if value.is_empty() {
            self.required("");
        }
    }

    /// Rejects a list with more than some items.
    pub(super) fn max_items(&self, count: usize, most: usize) {
        if count > most {
            let detail = || format!("Too many: {count}: must have at most {most} items");
            self.add("FieldValueTooMany", &detail);
        }
    }

    pub(super) fn not_supported(&self, value: &str, supported: &[&str]) {
        self.add("FieldValueNotSupported", &|| {
            let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
            format!("Unsupported value: {}: supported values: {}", quoted(value), supported.join(", "))
        });
    }

    pub(super) fn duplicate(&self, value: &str) {
        self.add("FieldValueDuplicate", &|| format!("Duplicate value: {}", quoted(value)));
    }

    pub(super) fn forbidden(&self, why: &str) {
        self.add("FieldValueForbidden", &|| format!("Forbidden: {why}"));
    }

    pub(super) fn not_found(&self, value: &str) {
        self.add("FieldValueNotFound", &|| format!("Not found: {}", quoted(value)));
    }

    /// Rejects a text with more than some bytes.
    pub(super) fn max_bytes(&self, length: usize, most: usize) {
        if length > most {
            self.add("FieldValueTooLong", &|| format!("Too long: may not be more than {most} bytes"));
        }
    }
}
