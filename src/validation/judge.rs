//! What is wrong with a field, in the API's words.

use std::fmt;

use crate::pod::{FieldPath, quoted};

/// Tells a problem: where it stands, which field the API calls it by, the API's
/// word for the reason, and the rest for reading.
type Tell<'j> = &'j mut dyn FnMut(&FieldPath<'_>, &FieldPath<'_>, &'static str, &dyn Fn() -> String);

/// Takes down what is wrong with a pod, and counts it. Nothing is written before
/// it is needed: a pod with nothing wrong costs no allocation.
pub(super) struct Judge<'j> {
    tell: Tell<'j>,
    faults: usize,
}

/// A value as a problem shows it.
#[derive(Clone, Copy)]
pub(super) enum Shown<'v> {
    Text(&'v str),
    Number(i64),
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl<'v> From<&'v str> for Shown<'v> {
    fn from(text: &'v str) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Shown<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl<'j> Judge<'j> {
    pub(super) fn new(tell: Tell<'j>) -> Self {
        Self { tell, faults: 0 }
    }

    /// How many problems there are so far.
    pub(super) fn faults(&self) -> usize {
        self.faults
    }

    fn tell(&mut self, path: &FieldPath<'_>, reason: &'static str, detail: &dyn Fn() -> String) {
        self.faults += 1;
        (self.tell)(path, path, reason, detail);
    }

    /// A field that must be there is not. `why` may be empty.
    pub(super) fn required(&mut self, path: &FieldPath<'_>, why: &str) {
        self.tell(path, "FieldValueRequired", &|| match why {
            "" => "Required value".to_owned(),
            why => format!("Required value: {why}"),
        });
    }

    pub(super) fn invalid<'v>(&mut self, path: &FieldPath<'_>, value: impl Into<Shown<'v>>, why: &str) {
        self.invalid_at(path, path, value, why);
    }

    /// The same for a value that stands elsewhere than the field that the API calls it by.
    pub(super) fn invalid_at<'v>(
        &mut self,
        at: &FieldPath<'_>,
        path: &FieldPath<'_>,
        value: impl Into<Shown<'v>>,
        why: &str,
    ) {
        self.faults += 1;
        let value = value.into();
        (self.tell)(at, path, "FieldValueInvalid", &|| format!("Invalid value: {value}: {why}"));
    }

    /// Tells what a check of a text found.
    pub(super) fn check(&mut self, path: &FieldPath<'_>, text: &str, found: Result<(), &str>) {
        if let Err(why) = found {
            self.invalid(path, text, why);
        }
    }

    pub(super) fn not_supported(&mut self, path: &FieldPath<'_>, value: &str, supported: &[&str]) {
        self.tell(path, "FieldValueNotSupported", &|| {
            let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
            format!("Unsupported value: {}: supported values: {}", quoted(value), supported.join(", "))
        });
    }

    pub(super) fn duplicate(&mut self, path: &FieldPath<'_>, value: &str) {
        self.tell(path, "FieldValueDuplicate", &|| format!("Duplicate value: {}", quoted(value)));
    }

    pub(super) fn forbidden(&mut self, path: &FieldPath<'_>, why: &str) {
        self.tell(path, "FieldValueForbidden", &|| format!("Forbidden: {why}"));
    }

    pub(super) fn not_found(&mut self, path: &FieldPath<'_>, value: &str) {
        self.tell(path, "FieldValueNotFound", &|| format!("Not found: {}", quoted(value)));
    }

    pub(super) fn too_long(&mut self, path: &FieldPath<'_>, most: usize) {
        self.tell(path, "FieldValueTooLong", &|| format!("Too long: may not be more than {most} bytes"));
    }
}
