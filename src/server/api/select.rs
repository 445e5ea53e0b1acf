//! Label and field selectors with the API's syntax.

use super::resource::{Resource, Selectable};
use crate::{history::SeenPod, pod::names, server::status::ApiError};

/// How many terms and values of sets the selectors of a request may have: each is compared with each object.
const MAX_TERMS: usize = 1_000;

/// Selects objects by their labels and fields.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

impl Selector {
    /// Parses a label selector and a field selector of pods; either may be empty.
    ///
    /// # Errors
    /// 400 with the API's message.
    pub fn new(labels: &str, fields: &str) -> Result<Self, ApiError> {
        Self::with_fields(SeenPod::FIELDS, labels, fields)
    }

    /// Parses a label selector and a selector of these fields; either may be empty.
    ///
    /// # Errors
    /// 400 with the API's message.
    pub(crate) fn with_fields(known: &[&'static str], labels: &str, fields: &str) -> Result<Self, ApiError> {
        let terms = |selector: &str| selector.split(',').filter(|term| !term.is_empty()).count();
        if terms(labels) + terms(fields) > MAX_TERMS {
            let message =
                format!("the selectors are too long: at most {MAX_TERMS} terms and values are allowed");
            return Err(ApiError::bad_request(message));
        }
        let labels = parse_labels(labels)
            .map_err(|error| ApiError::bad_request(format!("unable to parse labelSelector: {error}")))?;
        let fields = parse_fields(known, fields).map_err(ApiError::bad_request)?;
        Ok(Self { labels, fields })
    }

    /// Whether it selects every object.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The number of its terms.
    pub(super) fn terms(&self) -> usize {
        self.labels.len() + self.fields.len()
    }

    /// Whether it selects this pod.
    pub fn matches(&self, pod: &SeenPod) -> bool {
        self.selects(pod)
    }

    /// Whether it selects this object.
    pub(crate) fn selects(&self, object: &impl Selectable) -> bool {
        let mut fields = self.fields.chunk_by(|a, b| a.name == b.name);
        self.labels.iter().all(|requirement| requirement.matches(object))
            && fields.all(|terms| match_one_field(terms, object))
    }
}

/// The objects of a list or a watch.
pub(crate) struct Scope {
    pub(crate) namespace: Option<String>,
    pub(crate) selector: Selector,
}

impl Scope {
    pub(crate) fn has(&self, object: &impl Resource) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| object.key().namespace() == namespace)
            && self.selector.selects(object)
    }
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
}

/// The condition on a label (`apimachinery/pkg/labels/selector.go`, `Requirement.Matches`).
#[derive(Clone, Debug, PartialEq)]
enum Operator {
    Exists,
    Absent,
    In(Vec<String>),
    /// Also matches an object without the label.
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl Requirement {
    fn matches(&self, object: &impl Selectable) -> bool {
        let value = object.label(&self.key);
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::Exists => value.is_some(),
            Operator::Absent => value.is_none(),
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|other| other == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|other| other != value)),
            Operator::Above(bound) => number().is_some_and(|number| number > *bound),
            Operator::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

const SIGNS: [&str; 9] = ["!=", "==", "!", "=", "(", ")", ",", ">", "<"];
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

/// The remaining tokens of a label selector: signs and words, and an empty token at the end. `in` and
/// `notin` are words: they can be keys and values too.
struct LabelTokens<'s> {
    rest: &'s str,
}

impl<'s> LabelTokens<'s> {
    fn next(&mut self) -> &'s str {
        let token = self.peek();
        self.rest = &self.rest.trim_start_matches(SPACES)[token.len()..];
        token
    }

    fn peek(&self) -> &'s str {
        let rest = self.rest.trim_start_matches(SPACES);
        let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign)).map(str::len);
        let word = || rest.find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<']);
        &rest[..sign.or_else(word).unwrap_or(rest.len())]
    }

    /// Consumes the next token if it is this sign.
    fn consume(&mut self, sign: &str) -> bool {
        let found = self.peek() == sign;
        if found {
            self.next();
        }
        found
    }
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !SIGNS.contains(&token)
}

fn unexpected(token: &str, expected: &str) -> String {
    format!("found '{token}', expected: {expected}")
}

/// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.
fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut tokens = LabelTokens { rest: text };
    let mut requirements = Vec::new();
    if tokens.peek().is_empty() {
        return Ok(requirements);
    }
    loop {
        requirements.push(requirement(&mut tokens)?);
        match (tokens.next(), tokens.peek()) {
            ("", _) => return Ok(requirements),
            (",", next) if next == "!" || is_word(next) => {}
            (",", other) => return Err(unexpected(other, "identifier after ','")),
            (other, _) => return Err(unexpected(other, "',' or 'end of string'")),
        }
    }
}

fn requirement(tokens: &mut LabelTokens<'_>) -> Result<Requirement, String> {
    let absent = tokens.consume("!");
    let key = tokens.next();
    if !is_word(key) {
        let expected = if absent { "identifier" } else { "!, identifier, or 'end of string'" };
        return Err(unexpected(key, expected));
    }
    check_key(key)?;
    let operator = match tokens.peek() {
        _ if absent => Operator::Absent,
        "" | "," => Operator::Exists,
        _ => match tokens.next() {
            "=" | "==" => Operator::In(vec![value(tokens)?]),
            "!=" => Operator::NotIn(vec![value(tokens)?]),
            ">" => Operator::Above(number(tokens)?),
            "<" => Operator::Below(number(tokens)?),
            "in" => Operator::In(values(tokens)?),
            "notin" => Operator::NotIn(values(tokens)?),
            other => return Err(unexpected(other, "in, notin, =, ==, !=, >, <")),
        },
    };
    Ok(Requirement { key: key.to_owned(), operator })
}

/// A single value; `a=` has the empty one.
fn value(tokens: &mut LabelTokens<'_>) -> Result<String, String> {
    match tokens.peek() {
        "" | "," => Ok(String::new()),
        value if is_word(value) => check_value(tokens.next()),
        other => Err(unexpected(other, "identifier")),
    }
}

fn number(tokens: &mut LabelTokens<'_>) -> Result<i64, String> {
    let value = value(tokens)?;
    value.parse().map_err(|_| format!("for '>' and '<' the value must be an integer, but is '{value}'"))
}

/// The values of a set: `(a,b)`. Nothing is the empty value, as in `()`.
fn values(tokens: &mut LabelTokens<'_>) -> Result<Vec<String>, String> {
    if !tokens.consume("(") {
        return Err(unexpected(tokens.peek(), "'('"));
    }
    let mut values = Vec::new();
    loop {
        values.push(if is_word(tokens.peek()) { check_value(tokens.next())? } else { String::new() });
        match tokens.next() {
            "," => {}
            ")" => return Ok(values),
            other => return Err(unexpected(other, "',' or ')'")),
        }
    }
}

/// Checks a label's key: `[prefix/]name`.
fn check_key(key: &str) -> Result<(), String> {
    names::qualified(key).map_err(|_| format!(
        "'{key}' is not a valid label key: must be [dns.prefix/]name, with up to 63 letters, digits, '-', '_' and '.' in the name, beginning and ending with a letter or digit"
    ))
}

fn check_value(value: &str) -> Result<String, String> {
    names::label_value(value).map(|()| value.to_owned()).map_err(|_| format!(
        "'{value}' is not a valid label value: must be up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
    ))
}

/// One term of a field selector.
#[derive(Clone, Debug)]
struct FieldTerm {
    name: &'static str,
    equal: bool,
    value: String,
}

/// Whether all terms for one field match. The object is read once for them.
fn match_one_field(terms: &[FieldTerm], object: &impl Selectable) -> bool {
    let value = object.field(terms.first().map_or("", |term| term.name));
    terms.iter().all(|term| (value == term.value) == term.equal)
}

/// Parses `a=b,c==d,e!=f`. In a value, `\,`, `\=` and `\\` are escapes.
fn parse_fields(known: &[&'static str], text: &str) -> Result<Vec<FieldTerm>, String> {
    let terms = text.split(unescaped(&[','])).filter(|term| !term.is_empty());
    let mut terms = terms.map(|term| field_term(known, term)).collect::<Result<Vec<_>, _>>()?;
    terms.sort_by_key(|term| term.name);
    Ok(terms)
}

/// Finds these characters where they are not escaped.
fn unescaped(signs: &[char]) -> impl FnMut(char) -> bool {
    let mut escaped = false;
    move |c| {
        let plain = !escaped;
        escaped = plain && c == '\\';
        plain && signs.contains(&c)
    }
}

fn field_term(fields: &[&'static str], term: &str) -> Result<FieldTerm, String> {
    let Some((name, equal, value)) = split_operator(term) else {
        return Err(format!(
            "invalid field selector: '{term}': must be FIELD=VALUE, FIELD==VALUE or FIELD!=VALUE"
        ));
    };
    let value = unescape(value).ok_or_else(|| {
        format!("invalid field selector: '{term}': escape ',', '=' and '\\' in the value with a backslash, and nothing else")
    })?;
    let known = fields.iter().find(|known| **known == name);
    let name = known
        .ok_or_else(|| format!("field label not supported: {name}: use one of {}", fields.join(", ")))?;
    Ok(FieldTerm { name, equal, value })
}

/// Splits at the first operator that is not escaped.
fn split_operator(term: &str) -> Option<(&str, bool, &str)> {
    term.match_indices(unescaped(&['!', '='])).find_map(|(at, _)| {
        let split = |(operator, equal)| Some((&term[..at], equal, term[at..].strip_prefix(operator)?));
        [("!=", false), ("==", true), ("=", true)].into_iter().find_map(split)
    })
}

fn unescape(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            _ => text.push(c),
        }
    }
    Some(text)
}
