//! Evaluates kubectl's JSONPath templates, with a bound on the work.

use std::{borrow::Cow, cmp::Ordering, fmt::Write as _};

use serde_json::Value;

use super::syntax::{Filter, Node, Part, Slice, TemplateError};

/// How many values the steps of a template may give. Each `..` and each `{range}` in another one multiplies
/// them. `{..image}` of 100,000 pods gives 20 million.
const MAX_WORK: usize = 32 << 20;
/// How many bytes of text count as a value: a template makes at most 512 MiB.
const BYTES: usize = 16;
/// How deep ranges may be nested.
const MAX_RANGES: usize = 32;

/// A value of the object, or one that was written in the template.
type Found<'v> = Cow<'v, Value>;

/// The text that the parts make of an object.
pub(super) fn execute(
    parts: &[Part],
    object: &Value,
    escape: impl Fn(&str) -> String,
) -> Result<String, TemplateError> {
    let mut text = String::new();
    let mut evaluation = Evaluation::new(parts);
    evaluation.run(0, Some(object), 0, &mut |found, work| {
        for (index, value) in found.iter().enumerate() {
            let before = text.len();
            text.push_str(if index > 0 { " " } else { "" });
            match value {
                // What the template says is printed as it is.
                Cow::Owned(Value::String(own)) => text.push_str(own),
                value => text.push_str(&escape(&print(value))),
            }
            *work += (text.len() - before) / BYTES;
        }
    })?;
    Ok(text)
}

/// The first value that the parts find.
pub(super) fn first(parts: &[Part], object: &Value) -> Result<Option<Value>, TemplateError> {
    let mut first = None;
    Evaluation::new(parts).run(0, Some(object), 0, &mut |found, _| {
        first = first.take().or_else(|| found.first().map(|value| value.clone().into_owned()));
    })?;
    Ok(first)
}

/// Takes the values of a part, and adds to the work.
type Take<'t> = dyn FnMut(&[Found<'_>], &mut usize) + 't;

/// Where ranges of a template begin and end.
#[derive(Default)]
struct Words {
    begins: bool,
    ends: bool,
}

struct Evaluation<'p> {
    parts: &'p [Part],
    /// The values and bytes so far.
    work: usize,
    /// The last `{end}` that was reached. A range continues after it.
    last_end: Option<usize>,
}

impl<'p> Evaluation<'p> {
    fn new(parts: &'p [Part]) -> Self {
        Self { parts, work: 0, last_end: None }
    }

    /// Evaluates the parts from one on, on an object; on nothing in a range without values. `depth` counts
    /// the ranges around them.
    fn run(
        &mut self,
        from: usize,
        object: Option<&Value>,
        depth: usize,
        take: &mut Take<'_>,
    ) -> Result<(), TemplateError> {
        if depth > MAX_RANGES {
            return TemplateError::fail(format!(
                "more than {MAX_RANGES} ranges in each other: end some of them"
            ));
        }
        let mut at = from;
        while let Some(part) = self.parts.get(at) {
            let mut words = Words::default();
            let found = match part {
                Part::Text(text) => vec![Cow::Owned(Value::from(&**text))],
                Part::Action(nodes) => {
                    let input = object.map(Cow::Borrowed).into_iter().collect();
                    self.steps(nodes, input, depth, &mut words)?
                }
            };
            self.count(found.len() + 1)?;
            if words.ends {
                self.last_end = Some(at);
                return Ok(());
            }
            if words.begins {
                for value in &found {
                    self.run(at + 1, Some(value), depth + 1, take)?;
                }
                if found.is_empty() {
                    // The parts are passed over, to the end of the range.
                    self.run(at + 1, None, depth + 1, &mut |_, _| {})?;
                }
                at = self.last_end.filter(|end| *end > at).unwrap_or(at);
            } else {
                take(&found, &mut self.work);
            }
            at += 1;
        }
        Ok(())
    }

    /// Counts work, and stops when it is too much.
    fn count(&mut self, work: usize) -> Result<(), TemplateError> {
        self.work += work;
        if self.work > MAX_WORK {
            return TemplateError::fail("the template gives too many values: use fewer .. and {range}");
        }
        Ok(())
    }

    fn steps<'v>(
        &mut self,
        nodes: &[Node],
        input: Vec<Found<'v>>,
        depth: usize,
        words: &mut Words,
    ) -> Result<Vec<Found<'v>>, TemplateError> {
        let mut values = input;
        for node in nodes {
            values = match node {
                Node::Literal(Value::String(text)) => vec![Cow::Owned(Value::from(&**text))],
                Node::Literal(literal) => values.iter().map(|_| Cow::Owned(literal.clone())).collect(),
                Node::Identifier(word) => match &**word {
                    "range" => {
                        words.begins = true;
                        values
                    }
                    "end" if depth > 0 => {
                        words.ends = true;
                        Vec::new()
                    }
                    "end" => return TemplateError::fail("not in range, nothing to end"),
                    word => return TemplateError::fail(format!("unrecognized identifier {word}")),
                },
                Node::Field(name) => values.into_iter().filter_map(|value| field(value, name)).collect(),
                Node::Wildcard => values.into_iter().flat_map(children).collect(),
                Node::Recursive => {
                    let mut all = Vec::new();
                    self.descend(values, &mut all)?;
                    all
                }
                Node::Slice(slice) => slices(values, *slice)?,
                Node::Union(parts) => {
                    let mut all = Vec::new();
                    for part in parts {
                        all.append(&mut self.steps(part, values.clone(), depth, words)?);
                    }
                    all
                }
                Node::Filter(filter) => self.filter(values, filter, depth, words)?,
            };
            self.count(values.len() + 1)?;
        }
        Ok(values)
    }

    /// Adds each value that has values in it, followed by those.
    fn descend<'v>(&mut self, values: Vec<Found<'v>>, all: &mut Vec<Found<'v>>) -> Result<(), TemplateError> {
        self.count(values.len())?;
        for value in values {
            match &*value {
                Value::String(text) if !text.is_empty() => all.push(value),
                Value::Array(_) | Value::Object(_) => {
                    let inner = children(value.clone());
                    if !inner.is_empty() {
                        all.push(value);
                        self.descend(inner, all)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn filter<'v>(
        &mut self,
        values: Vec<Found<'v>>,
        filter: &Filter,
        depth: usize,
        words: &mut Words,
    ) -> Result<Vec<Found<'v>>, TemplateError> {
        let mut passed = Vec::new();
        for value in values {
            if !value.is_array() {
                let text = print(&value);
                return TemplateError::fail(format!("{text} is not array or slice and cannot be filtered"));
            }
            for item in children(value) {
                let left = self.steps(&filter.left, vec![item.clone()], depth, words);
                let Some((operator, right)) = &filter.comparison else {
                    // A step that does not fit counts as a value.
                    if left.map_or(true, |left| !left.is_empty()) {
                        passed.push(item);
                    }
                    self.count(1)?;
                    continue;
                };
                let Some(left) = single(left?)? else { continue };
                let right = self.steps(right, vec![item.clone()], depth, words)?;
                let Some(right) = single(right)? else { continue };
                if compare(&left, operator, &right)? {
                    passed.push(item);
                }
            }
        }
        Ok(passed)
    }
}

fn single(values: Vec<Found<'_>>) -> Result<Option<Found<'_>>, TemplateError> {
    if values.len() > 1 {
        return TemplateError::fail("can only compare one element at a time");
    }
    Ok(values.into_iter().next())
}

fn field<'v>(value: Found<'v>, name: &str) -> Option<Found<'v>> {
    match value {
        Cow::Borrowed(value) => value.as_object()?.get(name).map(Cow::Borrowed),
        Cow::Owned(mut value) => value.as_object_mut()?.remove(name).map(Cow::Owned),
    }
}

/// The values in a value; those of a text are its bytes.
fn children(value: Found<'_>) -> Vec<Found<'_>> {
    match value {
        Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Object(fields)) => fields.values().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
        Cow::Owned(Value::Object(fields)) => fields.into_iter().map(|(_, value)| Cow::Owned(value)).collect(),
        value => value.as_str().unwrap_or_default().bytes().map(|byte| Cow::Owned(byte.into())).collect(),
    }
}

fn slices(values: Vec<Found<'_>>, slice: Slice) -> Result<Vec<Found<'_>>, TemplateError> {
    let mut all = Vec::new();
    for value in values.into_iter().filter(|value| !value.is_null()) {
        let Some(length) = value.as_array().map(Vec::len) else {
            return TemplateError::fail(format!("{} is not array or slice", type_name(&value)));
        };
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let wrap = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
        let start = wrap(slice.start.unwrap_or_default());
        // The end after the last value is not 0.
        let end = match slice.end {
            Some(0) if slice.is_index => length,
            end => wrap(end.unwrap_or(length)),
        };
        if start == end {
            return Ok(all);
        }
        let out_of_bounds = |index: i64| {
            TemplateError::fail(format!("array index out of bounds: index {index}, length {length}"))
        };
        if start >= length || start < 0 {
            return out_of_bounds(start);
        }
        if end > length || end < 0 {
            return out_of_bounds(end - 1);
        }
        if start > end {
            return TemplateError::fail(format!("starting index {start} is greater than ending index {end}"));
        }
        let step = slice.step.unwrap_or(1);
        if step <= 0 {
            return TemplateError::fail("step must be > 0");
        }
        let [start, end, step] =
            [start, end, step].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        all.extend(children(value).into_iter().skip(start).take(end - start).step_by(step));
    }
    Ok(all)
}

/// Go's name of the type of a value.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Compares two values of the same type, by the rules of Go's templates.
fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, TemplateError> {
    let is_equality = match operator {
        "==" | "!=" => true,
        "<" | "<=" | ">" | ">=" => false,
        _ => return TemplateError::fail(format!("unrecognized filter operator {operator}")),
    };
    let is_basic = |value: &Value| !value.is_null() && !value.is_array() && !value.is_object();
    let order = match (left, right) {
        (left, right) if !is_basic(left) || !is_basic(right) => None,
        (Value::Bool(left), Value::Bool(right)) => is_equality.then(|| left.cmp(right)),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) if left.is_f64() && right.is_f64() => {
            left.as_f64().partial_cmp(&right.as_f64())
        }
        (Value::Number(left), Value::Number(right)) if !left.is_f64() && !right.is_f64() => {
            Some(left.as_i128().cmp(&right.as_i128()))
        }
        _ => return TemplateError::fail("incompatible types for comparison"),
    };
    let Some(order) = order else { return TemplateError::fail("invalid type for comparison") };
    Ok(match operator {
        "==" => order == Ordering::Equal,
        "!=" => order != Ordering::Equal,
        "<" => order == Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    })
}

/// A value as Go prints it: texts bare, objects and lists as JSON.
fn print(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().map(float).unwrap_or_default(),
        Value::Array(_) | Value::Object(_) => json(value),
        value => value.to_string(),
    }
}

/// A number as Go prints it: with an exponent if that is at least 6 or less than -4.
fn float(number: f64) -> String {
    let text = format!("{number:e}");
    let exponent = text.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse().ok()?)));
    match exponent {
        Some((digits, exponent @ (6.. | ..=-5))) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", i32::abs(exponent))
        }
        _ => number.to_string(),
    }
}

/// JSON as Go writes it.
fn json(value: &Value) -> String {
    let mut text = String::new();
    for char in value.to_string().chars() {
        match char {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(char));
            }
            char => text.push(char),
        }
    }
    text
}
