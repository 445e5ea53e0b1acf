//! Converts a tree of values to a pod in Go's form: every field has its type, and zero values that Go omits are absent.

use std::{cell::RefCell, iter::successors};

use serde_json::Value;

use super::{
    go_types::{Field, Presence, Struct, Type},
    time,
    tree::{Data, MapEntry, Node, Places},
};
use crate::{
    pod::{
        FieldPath, Object, Problem, SUGGESTION, Stage, Step,
        quantity::{self, Quantity},
        quoted,
    },
    validation::Report,
};

/// The most errors, and the most warnings, that are reported of one text.
const MAX_PROBLEMS: usize = 100;

/// The beginning of the warning about an unknown field.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field, ignored";
/// The end of the warning about a duplicate key.
const LAST_COUNTS: &str = "; the last one is used";
/// The beginning of the warning about a duplicate key.
pub(crate) const DUPLICATE_KEY: &str = "duplicate key";

/// Whether a warning is an error with `fieldValidation=Strict`: that of an unknown field or a duplicate key.
#[cfg(feature = "agent")]
pub(crate) fn is_strict(warning: &Problem) -> bool {
    warning.detail.starts_with(UNKNOWN_FIELD) || warning.detail.starts_with(DUPLICATE_KEY)
}

/// Such a warning as the error, which does not say what would happen otherwise; another problem as it is.
#[cfg(feature = "agent")]
pub(crate) fn strictly(problem: Problem) -> Problem {
    if !is_strict(&problem) {
        return problem;
    }
    let detail = match problem.detail.strip_prefix(UNKNOWN_FIELD) {
        Some(hint) => format!("unknown field{hint}"),
        None => problem.detail.trim_end_matches(LAST_COUNTS).to_owned(),
    };
    let Problem { position, field, reason, .. } = problem;
    Problem { position, field, reason, ..Problem::error(detail) }
}

const A_MAP: &str = "a map";
pub(super) const A_LIST: &str = "a list";
pub(super) const A_STRING: &str = "a string";

/// How many problems a problem stands for: more than one if it says how many more a text has.
#[cfg(feature = "agent")]
pub(crate) fn number_of(problem: &Problem) -> usize {
    let more = || problem.detail.strip_prefix("and ")?.split_once(" more ")?.0.parse().ok();
    if problem.position.is_none() && problem.field.is_none() { more().unwrap_or(1) } else { 1 }
}

/// How often validation may look for empty lists and maps in a text. Each look walks
/// through the text from its beginning; usual pods need none.
pub const MAX_LOOKS: usize = 1_000;

/// The document before the first one.
static NO_DOCUMENT: Node<'static> = Node { data: Data::Null, at: 0 };

/// The problems of a text.
pub(super) struct Findings<'t> {
    /// The lines and columns of the text.
    pub(super) places: Places<'t>,
    /// Whether there is a text. Protobuf has no lines.
    pub(super) has_places: bool,
    /// The document that contains the paths of validation's problems.
    pub(super) document: &'t Node<'t>,
    problems: Vec<Problem>,
    errors: usize,
    /// The number of unknown fields and duplicate keys.
    strict: usize,
    /// The number of other warnings. They never hide an unknown field, which `--strict` rejects.
    warnings: usize,
    /// The first stage that found an error.
    stage: Option<Stage>,
    looks: usize,
}

impl<'t> Findings<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            places: Places::new(text),
            has_places: true,
            document: &NO_DOCUMENT,
            problems: Vec::new(),
            errors: 0,
            strict: 0,
            warnings: 0,
            stage: None,
            looks: 0,
        }
    }

    /// The problems of a message, which have no lines and columns.
    #[cfg(feature = "agent")]
    pub(super) fn of_message() -> Self {
        Self { has_places: false, ..Self::new("") }
    }

    /// Adds an error at a byte of the text.
    pub(super) fn error(&mut self, stage: Stage, at: usize, path: &FieldPath<'_>, problem: Problem) {
        self.add(Some(stage), path, |_| (at, problem));
    }

    /// Adds the error that a value is not what is expected.
    pub(super) fn misfit(&mut self, node: &Node<'_>, expected: &str, path: &FieldPath<'_>) {
        self.add(Some(Stage::Decode), path, |_| (node.at, unfit(node, expected, path)));
    }

    /// Adds an error that a stage found, or the warning of an unknown field or a duplicate key.
    pub(super) fn add(
        &mut self,
        stage: Option<Stage>,
        path: &FieldPath<'_>,
        problem: impl FnOnce(&Self) -> (usize, Problem),
    ) {
        self.stage = self.stage.into_iter().chain(stage).min();
        let count = if stage.is_some() { &mut self.errors } else { &mut self.strict };
        *count += 1;
        if *count <= MAX_PROBLEMS {
            self.keep(path, problem);
        }
    }

    /// Keeps a problem. It is made only then: finding its position walks through the text, and a text may have a
    /// million problems.
    fn keep(&mut self, path: &FieldPath<'_>, problem: impl FnOnce(&Self) -> (usize, Problem)) {
        let (at, problem) = problem(self);
        let problem = match path.to_string() {
            field if field.is_empty() => problem,
            field => problem.of(field),
        };
        self.problems.push(problem.at(self.has_places.then(|| self.places.of(at))));
    }

    /// The first stage that found an error, and the problems in the order of the text.
    pub(super) fn into_problems(mut self) -> (Option<Stage>, Vec<Problem>) {
        self.problems.sort_by_key(|problem| problem.position);
        let more = |counts: &[usize]| {
            let more: usize = counts.iter().map(|count| count.saturating_sub(MAX_PROBLEMS)).sum();
            (more > 0).then_some(more)
        };
        let text =
            |more: usize, one: &str| format!("and {more} more {one}{}", if more == 1 { "" } else { "s" });
        let errors = more(&[self.errors]);
        let errors = errors.map(|more| Problem { count: more, ..Problem::error(text(more, "error")) });
        let warnings = more(&[self.strict, self.warnings]);
        let warnings = warnings.map(|more| Problem::warning(text(more, "warning")));
        self.problems.extend(errors.into_iter().chain(warnings));
        (self.stage, self.problems)
    }
}

impl Report for RefCell<Findings<'_>> {
    fn error(&self, stage: Stage, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem) {
        let problem = |findings: &Findings<'_>| (findings.document.position_of(path), problem());
        self.borrow_mut().add(Some(stage), path, problem);
    }

    fn warning(&self, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem) {
        let problem = |findings: &Findings<'_>| (findings.document.position_of(path), problem());
        let findings = &mut *self.borrow_mut();
        findings.warnings += 1;
        if findings.warnings <= MAX_PROBLEMS {
            findings.keep(path, problem);
        }
    }

    /// Returns false after [`MAX_LOOKS`] calls.
    fn is_given_empty(&self, path: &FieldPath<'_>) -> bool {
        let findings = &mut *self.borrow_mut();
        findings.looks += 1;
        findings.looks <= MAX_LOOKS && findings.document.is_empty_at(path)
    }

    fn errors(&self) -> usize {
        self.borrow().errors
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
            findings.misfit(node, A_MAP, path);
        }
        return Object::new();
    };
    let mut map = Object::new();
    for entry in entries {
        let path = path.field(&entry.key);
        warn_of_duplicate(entry.earlier, entry.at, &path, findings);
        let Some(field) = of.field(&entry.key) else {
            findings.add(None, &path, |_| {
                let hint = likely(of, &entry.key).map(|name| format!("{SUGGESTION}{name}?"));
                (entry.at, Problem::warning(format!("{UNKNOWN_FIELD}{}", hint.unwrap_or_default())))
            });
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
    findings.add(None, path, |findings| {
        let ((first, _), (second, _)) = (findings.places.of(earlier), findings.places.of(at));
        let detail = format!("{DUPLICATE_KEY} in line {first} and line {second}{LAST_COUNTS}");
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
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => *value == zero(kind),
    }
}

/// Decodes a value as a Go value of a kind. Null is the zero value.
fn value(kind: &Type, node: &Node<'_>, path: &FieldPath<'_>, findings: &mut Findings<'_>) -> Value {
    if node.is_null() {
        return zero(kind);
    }
    match (kind, &node.data) {
        (Type::Struct(of), _) => return object(of, node, path, findings).into(),
        (Type::List(of), Data::List(items)) => return list(of, items, path, findings),
        (Type::Map(of), Data::Map(entries)) => return map(of, entries, path, findings),
        _ => {}
    }
    let (read, expected) = scalar(kind, node);
    read.unwrap_or_else(|| {
        findings.misfit(node, expected, path);
        Value::Null
    })
}

/// Decodes a scalar of a kind, if the value is one. Also returns what is expected.
fn scalar(kind: &Type, node: &Node<'_>) -> (Option<Value>, &'static str) {
    let text = || node.text().map(Value::from);
    let int32 = || integer(node, i32::MIN.into(), i32::MAX.into());
    match kind {
        Type::Struct(_) | Type::Map(_) => (None, A_MAP),
        Type::List(_) => (None, A_LIST),
        Type::Any => (Some(node.clone().into_json()), "anything"),
        Type::String => (text(), A_STRING),
        Type::Bool => {
            let is_boolean = matches!(node.data, Data::Bool(_));
            (is_boolean.then(|| node.clone().into_json()), "a boolean, true or false")
        }
        Type::Int32 => (int32(), "an integer of 32 bits"),
        Type::Int64 => (integer(node, i64::MIN, i64::MAX), "an integer of 64 bits"),
        Type::IntOrString => (int32().or_else(text), "an integer of 32 bits or a string"),
        Type::Quantity if is_long(node) => (None, LONG_QUANTITY),
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
        _ => return Err(unfit(node, A_MAP, path).of(path.to_string())),
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
            (None, expected) => Err(unfit(node, expected, path).of(path.to_string())),
        },
    }
}

/// The fields whose values may be secrets, as those of every string.
const SECRET: [&str; 6] = ["annotations", "args", "command", "env", "envFrom", "httpHeaders"];

/// The problem of a value that is not what is expected. It shows only a value that cannot be a secret:
/// one that is given for a number, a boolean, a quantity or a time.
pub(super) fn unfit(node: &Node<'_>, expected: &str, path: &FieldPath<'_>) -> Problem {
    let hint = match (&node.data, expected) {
        (Data::Number(_) | Data::Bool(_), A_STRING) => ": put it in quotes",
        (Data::Text(text), _) if looks_like(text, expected) => ": remove the quotes",
        _ => "",
    };
    let is_secret = successors(Some(path), |path| path.parent())
        .any(|path| matches!(path.step(), Step::Field(name) if SECRET.contains(&name)));
    let given = match &node.data {
        _ if is_secret || matches!(expected, A_STRING | A_LIST | A_MAP) => node.kind().to_owned(),
        Data::Bool(value) => format!("the boolean {value}"),
        Data::Number(text) => format!("the number {text}"),
        Data::Text(text) => format!("the string {}", quoted(text)),
        _ => node.kind().to_owned(),
    };
    let detail = format!("must be {expected}, but is {given}{hint}");
    Problem::error(detail).because("FieldValueTypeInvalid")
}

/// Whether a string would be what is expected, if it were not quoted.
fn looks_like(text: &str, expected: &str) -> bool {
    (expected.starts_with("an integer") && text.parse::<i64>().is_ok())
        || (expected.starts_with("a boolean") && matches!(text, "true" | "false"))
}

fn list(of: &Type, items: &[Node<'_>], path: &FieldPath<'_>, findings: &mut Findings<'_>) -> Value {
    let item = |(index, item)| value(of, item, &path.index(index), findings);
    items.iter().enumerate().map(item).collect()
}

fn map(of: &Type, entries: &[MapEntry<'_>], path: &FieldPath<'_>, findings: &mut Findings<'_>) -> Value {
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

/// The longest quantity, in bytes. The kubelet has no bound, but adds every digit for each container.
const MAX_QUANTITY: usize = 1_000;
const LONG_QUANTITY: &str = "a quantity of at most 1,000 characters";

fn is_long(node: &Node<'_>) -> bool {
    matches!(&node.data, Data::Text(text) | Data::Number(text) if text.len() > MAX_QUANTITY)
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
