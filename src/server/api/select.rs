//! Label and field selectors, as the API reads them.

use serde::Deserialize;

use crate::pod::Pod;

use crate::server::status::ApiError;

/// Which pods a request asks for.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

impl Selector {
    /// Reads a label selector and a field selector; either may be empty.
    ///
    /// # Errors
    /// 400 with what cannot be read, as the API says it.
    pub fn new(labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = parse_labels(labels)
            .map_err(|error| ApiError::bad_request(format!("unable to parse labelSelector: {error}")))?;
        let fields = parse_fields(fields).map_err(ApiError::bad_request)?;
        Ok(Self { labels, fields })
    }

    /// Whether it selects every pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether it selects this pod.
    #[must_use]
    pub fn matches(&self, pod: &Pod) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(pod)) && self.fields_match(pod)
    }

    fn fields_match(&self, pod: &Pod) -> bool {
        // Only what is asked for is looked up: a pod's text is read for its spec and status alone.
        let inside = self.fields.iter().any(|term| !matches!(term.field, Field::Name | Field::Namespace));
        let read = inside.then(|| serde_json::from_slice(pod.text()).unwrap_or_default());
        let read: Read<'_> = read.unwrap_or_default();
        self.fields.iter().all(|term| (term.field.of(pod, &read) == term.value) == term.equal)
    }
}

/// One part of a label selector.
#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
}

/// What a label must be (`apimachinery/pkg/labels/selector.go`, `Requirement.Matches`).
#[derive(Clone, Debug, PartialEq)]
enum Operator {
    Exists,
    Absent,
    In(Vec<String>),
    /// Also true of a pod without the label.
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl Requirement {
    fn matches(&self, pod: &Pod) -> bool {
        let value = pod.labels().find(|(key, _)| *key == self.key).map(|(_, value)| value);
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

/// A word or a sign of a label selector. An operator's name is a word too: only
/// its place tells.
#[derive(Clone, Debug, PartialEq)]
enum Token<'s> {
    Word(&'s str),
    Sign(&'s str),
    End,
}

impl Token<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Word(text) | Self::Sign(text) => text,
            Self::End => "",
        }
    }

    /// What was found and what should have been.
    fn unexpected(&self, expected: &str) -> String {
        format!("found '{}', expected: {expected}", self.text())
    }
}

const SIGNS: [&str; 8] = ["!=", "==", "!", "=", "(", ")", ",", ">"];
const LESS: &str = "<";

/// The tokens of a label selector, one at a time.
struct Tokens<'s> {
    rest: &'s str,
}

impl<'s> Tokens<'s> {
    fn next(&mut self) -> Token<'s> {
        let (token, rest) = self.split();
        self.rest = rest;
        token
    }

    fn peek(&self) -> Token<'s> {
        self.split().0
    }

    /// Takes the next token if it is this sign.
    fn take(&mut self, sign: &str) -> bool {
        let there = self.peek() == Token::Sign(sign);
        if there {
            self.next();
        }
        there
    }

    fn split(&self) -> (Token<'s>, &'s str) {
        let rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            return (Token::End, rest);
        }
        if let Some(sign) = SIGNS.into_iter().chain([LESS]).find(|sign| rest.starts_with(sign)) {
            let (sign, rest) = rest.split_at(sign.len());
            return (Token::Sign(sign), rest);
        }
        let end = rest.find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<']);
        let (word, rest) = rest.split_at(end.unwrap_or(rest.len()));
        (Token::Word(word), rest)
    }
}

/// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.
fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut tokens = Tokens { rest: text };
    let mut requirements = Vec::new();
    if tokens.peek() == Token::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(requirement(&mut tokens)?);
        match tokens.next() {
            Token::End => return Ok(requirements),
            Token::Sign(",") => match tokens.peek() {
                Token::Word(_) | Token::Sign("!") => {}
                other => return Err(other.unexpected("identifier after ','")),
            },
            other => return Err(other.unexpected("',' or 'end of string'")),
        }
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, String> {
    let absent = tokens.take("!");
    let key = match tokens.next() {
        Token::Word(key) => key.to_owned(),
        other if absent => return Err(other.unexpected("identifier")),
        other => return Err(other.unexpected("!, identifier, or 'end of string'")),
    };
    check_key(&key)?;
    if absent {
        return Ok(Requirement { key, operator: Operator::Absent });
    }
    if matches!(tokens.peek(), Token::End | Token::Sign(",")) {
        return Ok(Requirement { key, operator: Operator::Exists });
    }
    let operator = match tokens.next() {
        Token::Sign("=" | "==") => Operator::In(vec![value(tokens)?]),
        Token::Sign("!=") => Operator::NotIn(vec![value(tokens)?]),
        Token::Sign(">") => Operator::Above(number(tokens)?),
        Token::Sign(LESS) => Operator::Below(number(tokens)?),
        Token::Word("in") => Operator::In(values(tokens)?),
        Token::Word("notin") => Operator::NotIn(values(tokens)?),
        other => return Err(other.unexpected("in, notin, =, ==, !=, >, <")),
    };
    Ok(Requirement { key, operator })
}

/// A single value, which may be missing: `a=` asks for the empty one.
fn value(tokens: &mut Tokens<'_>) -> Result<String, String> {
    if matches!(tokens.peek(), Token::End | Token::Sign(",")) {
        return Ok(String::new());
    }
    match tokens.next() {
        Token::Word(value) => check_value(value),
        other => Err(other.unexpected("identifier")),
    }
}

fn number(tokens: &mut Tokens<'_>) -> Result<i64, String> {
    let value = value(tokens)?;
    value.parse().map_err(|_| format!("for '>' and '<' the value must be an integer, but is '{value}'"))
}

/// The values of a set: `(a,b)`. An empty place between commas is the empty value.
fn values(tokens: &mut Tokens<'_>) -> Result<Vec<String>, String> {
    if !tokens.take("(") {
        return Err(tokens.peek().unexpected("'('"));
    }
    if tokens.take(")") {
        return Err("for 'in' and 'notin' the set of values cannot be empty".to_owned());
    }
    let mut values = Vec::new();
    loop {
        values.push(match tokens.peek() {
            Token::Word(value) => {
                tokens.next();
                check_value(value)?
            }
            _ => String::new(),
        });
        match tokens.next() {
            Token::Sign(",") => {}
            Token::Sign(")") => return Ok(values),
            other => return Err(other.unexpected("',' or ')'")),
        }
    }
}

/// The longest name, and the longest value, of a label.
const MAX_LABEL: usize = 63;
/// The longest prefix of a label's name: a DNS name.
const MAX_PREFIX: usize = 253;

/// Whether a text is a label's name: `[prefix/]name`.
fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let domain = |prefix: &str| {
        prefix.len() <= MAX_PREFIX
            && prefix.split('.').all(|label| is_word(label, |b| lower(b) || b == b'-', lower))
    };
    if prefix.is_none_or(domain) && is_label(name) && !name.is_empty() {
        return Ok(());
    }
    Err(format!(
        "'{key}' is not a label's name: [dns.prefix/]name, with up to {MAX_LABEL} letters, digits, '-', '_' and '.' in the name, a letter or digit at both ends"
    ))
}

fn check_value(value: &str) -> Result<String, String> {
    if is_label(value) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "'{value}' is not a label's value: up to {MAX_LABEL} letters, digits, '-', '_' and '.', a letter or digit at both ends"
    ))
}

/// Whether a text is empty or can be the name or the value of a label.
fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.is_empty() || text.len() <= MAX_LABEL && is_word(text, inner, |b| b.is_ascii_alphanumeric())
}

fn is_word(text: &str, inner: impl Fn(u8) -> bool, edge: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| edge(*b))
        && bytes.last().is_some_and(|b| edge(*b))
        && text.bytes().all(inner)
}

/// One part of a field selector.
#[derive(Clone, Debug, PartialEq)]
struct FieldTerm {
    field: Field,
    equal: bool,
    value: String,
}

/// The fields by which pods can be selected, those of the API
/// (`pkg/apis/core/v1/conversion.go`, `AddFieldLabelConversionsForPod`).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    Name,
    Namespace,
    NodeName,
    RestartPolicy,
    SchedulerName,
    ServiceAccountName,
    HostNetwork,
    Phase,
    PodIp,
    NominatedNodeName,
}

impl Field {
    const ALL: [(&'static str, Self); 10] = [
        ("metadata.name", Self::Name),
        ("metadata.namespace", Self::Namespace),
        ("spec.nodeName", Self::NodeName),
        ("spec.restartPolicy", Self::RestartPolicy),
        ("spec.schedulerName", Self::SchedulerName),
        ("spec.serviceAccountName", Self::ServiceAccountName),
        ("spec.hostNetwork", Self::HostNetwork),
        ("status.phase", Self::Phase),
        ("status.podIP", Self::PodIp),
        ("status.nominatedNodeName", Self::NominatedNodeName),
    ];

    fn of<'p>(self, pod: &'p Pod, read: &'p Read<'p>) -> &'p str {
        match self {
            Self::Name => pod.key().name(),
            Self::Namespace => pod.key().namespace(),
            Self::NodeName => &read.spec.node_name,
            Self::RestartPolicy => &read.spec.restart_policy,
            Self::SchedulerName => &read.spec.scheduler_name,
            Self::ServiceAccountName => &read.spec.service_account_name,
            Self::HostNetwork if read.spec.host_network => "true",
            Self::HostNetwork => "false",
            Self::Phase => &read.status.phase,
            Self::PodIp => &read.status.pod_ip,
            Self::NominatedNodeName => &read.status.nominated_node_name,
        }
    }
}

/// What field selectors see of a pod's text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Read<'p> {
    #[serde(borrow)]
    spec: ReadSpec<'p>,
    #[serde(borrow)]
    status: ReadStatus<'p>,
}

type Text<'p> = std::borrow::Cow<'p, str>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadSpec<'p> {
    #[serde(borrow)]
    node_name: Text<'p>,
    #[serde(borrow)]
    restart_policy: Text<'p>,
    #[serde(borrow)]
    scheduler_name: Text<'p>,
    #[serde(borrow)]
    service_account_name: Text<'p>,
    host_network: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadStatus<'p> {
    #[serde(borrow)]
    phase: Text<'p>,
    #[serde(borrow, rename = "podIP")]
    pod_ip: Text<'p>,
    #[serde(borrow)]
    nominated_node_name: Text<'p>,
}

/// Reads `a=b,c==d,e!=f`; `\,`, `\=` and `\\` stand for themselves in a value.
fn parse_fields(text: &str) -> Result<Vec<FieldTerm>, String> {
    split_terms(text).into_iter().filter(|term| !term.is_empty()).map(field_term).collect()
}

fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut begin, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == ',' && !escaped {
            terms.push(&text[begin..at]);
            begin = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    terms.push(&text[begin..]);
    terms
}

fn field_term(term: &str) -> Result<FieldTerm, String> {
    let Some((name, equal, value)) = split_operator(term) else {
        return Err(format!(
            "invalid field selector: '{term}': FIELD=VALUE, FIELD==VALUE or FIELD!=VALUE is expected"
        ));
    };
    let value = unescape(value).ok_or_else(|| {
        format!("invalid field selector: '{term}': a backslash stands before ',', '=' or another one only, and these before nothing else")
    })?;
    let field = Field::ALL.into_iter().find(|(known, _)| *known == name);
    let (_, field) = field.ok_or_else(|| {
        let known = Field::ALL.map(|(known, _)| known).join(", ");
        format!("field label not supported: {name}; these are: {known}")
    })?;
    Ok(FieldTerm { field, equal, value })
}

/// Splits at the first operator that is not escaped.
fn split_operator(term: &str) -> Option<(&str, bool, &str)> {
    let mut escaped = false;
    for (at, c) in term.char_indices() {
        let rest = &term[at..];
        if !escaped {
            for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
                if let Some(value) = rest.strip_prefix(operator) {
                    return Some((&term[..at], equal, value));
                }
            }
        }
        escaped = c == '\\' && !escaped;
    }
    None
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
