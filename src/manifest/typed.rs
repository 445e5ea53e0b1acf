//! Converts a tree of values to a pod in Go's form: every field has its type, and zero values that Go omits are absent.

use serde_json::Value;

use super::{
    go_types::{Field, Presence, Struct, Type},
    time,
    tree::{Data, Node, place},
};
use crate::pod::{
    FieldPath, Object, Problem, Severity,
    quantity::{self, Quantity},
};

/// The most errors, and the most warnings, that are reported of one text.
const MAX_PROBLEMS: usize = 100;

/// The beginning of the warning about an unknown field.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field, ignored";
/// The beginning of the warning about a duplicate key.
pub(crate) const DUPLICATE_KEY: &str = "duplicate key";

const A_MAP: &str = "a map";
const A_LIST: &str = "a list";
const A_STRING: &str = "a string";

/// The problems of a text.
pub(super) struct Findings<'t> {
    text: &'t str,
    problems: Vec<Problem>,
    errors: usize,
    warnings: usize,
}

impl<'t> Findings<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, problems: Vec::new(), errors: 0, warnings: 0 }
    }

    /// Adds a problem at a byte of the text.
    pub(super) fn add(&mut self, at: usize, path: &FieldPath<'_>, problem: Problem) {
        self.add_with(problem.severity, path, |_| (at, problem));
    }

    /// Adds a problem that is made only if it is reported: finding its position walks
    /// through the text, and a text may have a million problems.
    pub(super) fn add_with(
        &mut self,
        severity: Severity,
        path: &FieldPath<'_>,
        problem: impl FnOnce(&Self) -> (usize, Problem),
    ) {
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *count += 1;
        if *count <= MAX_PROBLEMS {
            let (at, problem) = problem(self);
            let problem = match path.to_string() {
                field if field.is_empty() => problem,
                field => problem.of(field),
            };
            self.problems.push(problem.at(Some(self.place(at))));
        }
    }

    /// Line and column of a byte of the text.
    pub(super) fn place(&self, at: usize) -> (u32, u32) {
        place(self.text, at)
    }

    /// The number of errors.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// The problems in the order of the text.
    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| problem.position);
        if self.errors > MAX_PROBLEMS {
            self.problems.push(Problem::error(format!("and {} more errors", self.errors - MAX_PROBLEMS)));
        }
        if self.warnings > MAX_PROBLEMS {
            self.problems
                .push(Problem::warning(format!("and {} more warnings", self.warnings - MAX_PROBLEMS)));
        }
        self.problems
    }
}

/// Decodes a map as a Go struct.
///
/// The result has the fields that are not zero in Go's struct, in Go's normal form;
/// [`complete`] adds the zeros that Go writes. Keys that are not fields are dropped with
/// a warning.
pub(super) fn object(
    of: &Struct,
    node: &Node<'_>,
    path: &FieldPath<'_>,
    findings: &mut Findings<'_>,
) -> Object {
    let Data::Map(entries) = &node.data else {
        if !node.is_null() {
            misfit(node, A_MAP, path, findings);
        }
        return Object::new();
    };
    let mut map = Object::new();
    for entry in entries {
        let path = path.field(&entry.key);
        warn_of_duplicate(entry.earlier, entry.at, &path, findings);
        let Some(field) = of.field(&entry.key) else {
            let detail = match likely(of, &entry.key) {
                Some(name) => format!("{UNKNOWN_FIELD}; did you mean {name}?"),
                None => UNKNOWN_FIELD.to_owned(),
            };
            findings.add(entry.at, &path, Problem::warning(detail));
            continue;
        };
        let value = value(&field.kind, &entry.value, &path, findings);
        if keeps(field, &entry.value, &value) {
            map.insert(field.name.to_owned(), value);
        }
    }
    map
}

fn warn_of_duplicate(earlier: Option<usize>, at: usize, path: &FieldPath<'_>, findings: &mut Findings<'_>) {
    let Some(earlier) = earlier else { return };
    findings.add_with(Severity::Warning, path, |findings| {
        let ((first, _), (second, _)) = (findings.place(earlier), findings.place(at));
        let detail = format!("{DUPLICATE_KEY} in line {first} and line {second}; the last one is used");
        (at, Problem::warning(detail))
    });
}

/// Whether Go distinguishes a field's value from an absent one.
fn keeps(field: &Field, given: &Node<'_>, value: &Value) -> bool {
    match field.presence {
        _ if given.is_null() || value.is_null() => false,
        Presence::Pointer => true,
        Presence::Always if matches!(field.kind, Type::List(_) | Type::Map(_) | Type::Any) => true,
        Presence::Always | Presence::Omitted => !is_zero(&field.kind, value),
    }
}

fn is_zero(kind: &Type, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        // A port that is the string "" is not the number 0.
        Value::String(_) if matches!(kind, Type::IntOrString) => false,
        Value::String(text) if matches!(kind, Type::Quantity) => text == "0",
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Decodes a value as a Go value of a kind. Null is the zero value.
fn value(kind: &Type, node: &Node<'_>, path: &FieldPath<'_>, findings: &mut Findings<'_>) -> Value {
    if node.is_null() {
        return zero(kind);
    }
    match kind {
        Type::Struct(of) => return object(of, node, path, findings).into(),
        Type::List(of) => return list(of, node, path, findings),
        Type::Map(of) => return map(of, node, path, findings),
        _ => {}
    }
    let (read, expected) = scalar(kind, node);
    read.unwrap_or_else(|| {
        misfit(node, expected, path, findings);
        Value::Null
    })
}

/// Decodes a scalar of a kind, if the value is one. Also returns what is expected.
fn scalar(kind: &Type, node: &Node<'_>) -> (Option<Value>, &'static str) {
    match kind {
        Type::Struct(_) | Type::Map(_) => (None, A_MAP),
        Type::List(_) => (None, A_LIST),
        Type::Any => (Some(node.clone().into_json()), "anything"),
        Type::String => (node.text().map(Value::from), A_STRING),
        Type::Bool => {
            let is_boolean = matches!(node.data, Data::Bool(_));
            (is_boolean.then(|| node.clone().into_json()), "a boolean, true or false")
        }
        Type::Int32 => (integer(node, i32::MIN.into(), i32::MAX.into()), "an integer of 32 bits"),
        Type::Int64 => (integer(node, i64::MIN, i64::MAX), "an integer of 64 bits"),
        Type::IntOrString => {
            let text = || node.text().map(Value::from);
            (
                integer(node, i32::MIN.into(), i32::MAX.into()).or_else(text),
                "an integer of 32 bits or a string",
            )
        }
        Type::Quantity => (quantity(node), quantity::EXPECTED),
        Type::Time => (node.text().and_then(time::canonical), "a time like 2026-01-02T15:04:05Z"),
    }
}

/// Checks that a map can be decoded as a Go struct, up to the first field that cannot. Keys
/// that are not fields may have any value, as for Go's decoder.
pub(super) fn check(of: &Struct, node: &Node<'_>, path: &FieldPath<'_>) -> Result<(), Problem> {
    let entries = match &node.data {
        Data::Map(entries) => entries,
        Data::Null => return Ok(()),
        _ => return Err(unfit(node, A_MAP).of(path.to_string())),
    };
    for entry in entries {
        if let Some(field) = of.field(&entry.key) {
            check_value(&field.kind, &entry.value, &path.field(&entry.key))?;
        }
    }
    Ok(())
}

fn check_value(kind: &Type, node: &Node<'_>, path: &FieldPath<'_>) -> Result<(), Problem> {
    match (kind, &node.data) {
        (_, Data::Null) | (Type::Any, _) | (Type::String, Data::Text(_)) => Ok(()),
        (Type::Struct(of), _) => check(of, node, path),
        (Type::List(of), Data::List(items)) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| check_value(of, item, &path.index(index)))
        }
        (Type::Map(of), Data::Map(entries)) => {
            let mut entries = entries.iter();
            entries.try_for_each(|entry| check_value(of, &entry.value, &path.key(&entry.key)))
        }
        _ => match scalar(kind, node) {
            (Some(_), _) => Ok(()),
            (None, expected) => Err(unfit(node, expected).of(path.to_string())),
        },
    }
}

fn misfit(node: &Node<'_>, expected: &str, path: &FieldPath<'_>, findings: &mut Findings<'_>) {
    findings.add(node.at, path, unfit(node, expected));
}

/// The problem of a value that is not what is expected.
fn unfit(node: &Node<'_>, expected: &str) -> Problem {
    let hint = match (&node.data, expected) {
        (Data::Number(_) | Data::Bool(_), A_STRING) => ": put it in quotes",
        (Data::Text(text), _) if looks_like(text, expected) => ": remove the quotes",
        _ => "",
    };
    let detail = format!("must be {expected}, but is {}{hint}", node.describe());
    Problem::error(detail).because("FieldValueTypeInvalid")
}

/// Whether a string would be what is expected, if it were not quoted.
fn looks_like(text: &str, expected: &str) -> bool {
    (expected.starts_with("an integer") && text.parse::<i64>().is_ok())
        || (expected.starts_with("a boolean") && matches!(text, "true" | "false"))
}

fn list(of: &Type, node: &Node<'_>, path: &FieldPath<'_>, findings: &mut Findings<'_>) -> Value {
    let Data::List(items) = &node.data else {
        misfit(node, A_LIST, path, findings);
        return Value::Null;
    };
    let item = |(index, item)| value(of, item, &path.index(index), findings);
    items.iter().enumerate().map(item).collect()
}

fn map(of: &Type, node: &Node<'_>, path: &FieldPath<'_>, findings: &mut Findings<'_>) -> Value {
    let Data::Map(entries) = &node.data else {
        misfit(node, A_MAP, path, findings);
        return Value::Null;
    };
    let mut map = Object::new();
    for entry in entries {
        let path = path.key(&entry.key);
        warn_of_duplicate(entry.earlier, entry.at, &path, findings);
        map.insert(entry.key.to_string(), value(of, &entry.value, &path, findings));
    }
    map.into()
}

/// Decodes an integer. As in Go, `1.0` in JSON is not an integer (in YAML it became `1`
/// when the scalar was read).
fn integer(node: &Node<'_>, least: i64, most: i64) -> Option<Value> {
    let Data::Number(text) = &node.data else { return None };
    let value = text.parse::<i64>().ok()?;
    (least..=most).contains(&value).then(|| value.into())
}

fn quantity(node: &Node<'_>) -> Option<Value> {
    let text = match &node.data {
        Data::Number(text) => text,
        // Go trims the JSON text, where a tab or a newline is an escape and not white space.
        Data::Text(text) => text.trim_matches(|c: char| {
            c.is_whitespace() && !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}')
        }),
        _ => return None,
    };
    Quantity::parse(text).map(|quantity| quantity.canonical().into())
}

/// The zero value of a kind, as Go writes it.
fn zero(kind: &Type) -> Value {
    match kind {
        Type::String => "".into(),
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 | Type::IntOrString => 0.into(),
        Type::Quantity => "0".into(),
        Type::Struct(_) => Object::new().into(),
        Type::Time | Type::Any | Type::List(_) | Type::Map(_) => Value::Null,
    }
}

/// Adds the zero values that Go always writes.
pub(super) fn complete(of: &Struct, map: &mut Object) {
    for field in of.0 {
        if field.presence == Presence::Always && !map.contains_key(field.name) {
            let zero = zero(&field.kind);
            if !zero.is_null() {
                map.insert(field.name.to_owned(), zero);
            }
        }
    }
    for (name, value) in map.iter_mut() {
        if let (Value::Object(_) | Value::Array(_), Some(field)) = (&*value, of.field(name)) {
            complete_value(&field.kind, value);
        }
    }
}

fn complete_value(kind: &Type, value: &mut Value) {
    match (kind, value) {
        (Type::Struct(of), Value::Object(map)) => complete(of, map),
        (Type::List(of), Value::Array(items)) if matches!(of, Type::Struct(_)) => {
            for item in items {
                complete_value(of, item);
            }
        }
        _ => {}
    }
}

/// The field that the author of an unknown field probably meant.
fn likely(of: &Struct, name: &str) -> Option<&'static str> {
    let names = || of.0.iter().map(|field| field.name);
    names()
        .find(|known| known.eq_ignore_ascii_case(name))
        .or_else(|| names().find(|known| known.len() > 3 && is_one_edit(known.as_bytes(), name.as_bytes())))
}

/// Whether two texts differ by one letter inserted, removed or changed, or by two swapped.
fn is_one_edit(a: &[u8], b: &[u8]) -> bool {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    match (a, b) {
        ([], [_]) | ([_], []) => true,
        ([_, rest_a @ ..], [_, rest_b @ ..]) => {
            rest_a == rest_b
                || rest_a == b
                || a == rest_b
                || (rest_a.first() == b.first()
                    && a.first() == rest_b.first()
                    && rest_a.get(1..) == rest_b.get(1..))
        }
        _ => false,
    }
}
