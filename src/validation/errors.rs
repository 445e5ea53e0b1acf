//! The errors of fields, in the API's words.

use std::ops::RangeInclusive;

use super::{
    fields::{Object, given_text, text},
    syntax::{Check, SyntaxResult},
};
use crate::pod::{FieldPath, Problem, Stage, quoted};

/// Receives the problems of a pod. The decoder of a manifest implements it, because only
/// the decoder knows the positions of fields in the text.
pub trait Report {
    /// Reports an error, which rejects the pod at a stage. The problem is made only if it is
    /// kept: of the errors of a text, the first hundred are.
    fn error(&mut self, stage: Stage, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem);

    /// Reports what the author of the pod probably did not mean.
    fn warning(&mut self, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem);

    /// Whether the text has an empty list or map at a path. A prepared pod does not
    /// distinguish it from an absent one, and some rules of the API do.
    fn is_given_empty(&mut self, path: &FieldPath<'_>) -> bool;
}

/// Reports the errors of a pod, in the API's words, and counts them. A text is made
/// only for an error: a valid pod costs no allocation.
pub(super) struct Errors<'e> {
    report: &'e mut dyn Report,
    count: usize,
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

impl<'e> Errors<'e> {
    pub(super) fn new(report: &'e mut dyn Report) -> Self {
        Self { report, count: 0 }
    }

    /// The number of errors so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether a field is present, or was written as an empty list or map.
    pub(super) fn is_set(&mut self, object: &Object, field: &str, path: &FieldPath<'_>) -> bool {
        object.contains_key(field) || self.report.is_given_empty(&path.field(field))
    }

    fn add(&mut self, path: &FieldPath<'_>, reason: &'static str, detail: &dyn Fn() -> String) {
        self.count += 1;
        self.report.error(Stage::Validate, path, &|| Problem::error(detail()).because(reason));
    }

    /// Reports a missing field. `why` may be empty.
    pub(super) fn required(&mut self, path: &FieldPath<'_>, why: &str) {
        self.add(path, "FieldValueRequired", &|| match why {
            "" => "Required value".to_owned(),
            why => format!("Required value: {why}"),
        });
    }

    pub(super) fn invalid(&mut self, path: &FieldPath<'_>, value: impl BadValue, why: &str) {
        self.add(path, "FieldValueInvalid", &|| format!("Invalid value: {}: {why}", value.shown()));
    }

    /// Reports the error of a syntax check, if there is one.
    pub(super) fn check(&mut self, path: &FieldPath<'_>, text: &str, result: SyntaxResult) {
        if let Err(why) = result {
            self.invalid(path, text, why);
        }
    }

    /// Checks the syntax of a field of an object; an absent field counts as empty.
    pub(super) fn check_text(&mut self, of: &Object, field: &str, path: &FieldPath<'_>, check: Check) {
        let value = text(of, field);
        self.check(&path.field(field), value, check(value));
    }

    /// Checks the syntax of a field of an object, if it is present.
    pub(super) fn check_given(&mut self, of: &Object, field: &str, path: &FieldPath<'_>, check: Check) {
        if let Some(value) = given_text(of, field) {
            self.check(&path.field(field), value, check(value));
        }
    }

    /// Checks the syntax of a field of an object, if it is not empty.
    pub(super) fn check_filled(&mut self, of: &Object, field: &str, path: &FieldPath<'_>, check: Check) {
        if !text(of, field).is_empty() {
            self.check_text(of, field, path, check);
        }
    }

    /// Requires a field of an object, and checks its syntax.
    pub(super) fn require_text(&mut self, of: &Object, field: &str, path: &FieldPath<'_>, check: Check) {
        match text(of, field) {
            "" => self.required(&path.field(field), ""),
            value => self.check(&path.field(field), value, check(value)),
        }
    }

    /// Rejects a number outside a range.
    pub(super) fn in_range(
        &mut self,
        path: &FieldPath<'_>,
        number: i64,
        range: RangeInclusive<i64>,
        why: &str,
    ) {
        if !range.contains(&number) {
            self.invalid(path, number, why);
        }
    }

    /// Rejects a number below zero.
    pub(super) fn not_negative(&mut self, path: &FieldPath<'_>, number: i64) {
        if number < 0 {
            self.invalid(path, number, "must be greater than or equal to 0");
        }
    }

    /// Rejects a value that is not supported.
    pub(super) fn one_of(&mut self, path: &FieldPath<'_>, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.not_supported(path, value, supported);
        }
    }

    /// Rejects a field of an object that is present and has no supported value.
    pub(super) fn given_one_of(
        &mut self,
        of: &Object,
        field: &str,
        path: &FieldPath<'_>,
        supported: &[&str],
    ) {
        if let Some(value) = given_text(of, field) {
            self.one_of(&path.field(field), value, supported);
        }
    }

    /// Rejects a value that is empty or not supported.
    pub(super) fn required_one_of(&mut self, path: &FieldPath<'_>, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.one_of(path, value, supported);
        }
    }

    /// Rejects an empty value.
    pub(super) fn not_empty(&mut self, path: &FieldPath<'_>, value: &str) {
        if value.is_empty() {
            self.required(path, "");
        }
    }

    /// Rejects a list with more than some items.
    pub(super) fn max_items(&mut self, path: &FieldPath<'_>, count: usize, most: usize) {
        if count > most {
            let detail = || format!("Too many: {count}: must have at most {most} items");
            self.add(path, "FieldValueTooMany", &detail);
        }
    }

    pub(super) fn not_supported(&mut self, path: &FieldPath<'_>, value: &str, supported: &[&str]) {
        self.add(path, "FieldValueNotSupported", &|| {
            let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
            format!("Unsupported value: {}: supported values: {}", quoted(value), supported.join(", "))
        });
    }

    pub(super) fn duplicate(&mut self, path: &FieldPath<'_>, value: &str) {
        self.add(path, "FieldValueDuplicate", &|| format!("Duplicate value: {}", quoted(value)));
    }

    pub(super) fn forbidden(&mut self, path: &FieldPath<'_>, why: &str) {
        self.add(path, "FieldValueForbidden", &|| format!("Forbidden: {why}"));
    }

    pub(super) fn not_found(&mut self, path: &FieldPath<'_>, value: &str) {
        self.add(path, "FieldValueNotFound", &|| format!("Not found: {}", quoted(value)));
    }

    /// Rejects a text with more than some bytes.
    pub(super) fn max_bytes(&mut self, path: &FieldPath<'_>, length: usize, most: usize) {
        if length > most {
            self.add(path, "FieldValueTooLong", &|| format!("Too long: may not be more than {most} bytes"));
        }
    }
}
