//! Parses YAML text to a tree of values with positions, by the kubelet's rules.
//!
//! The events are granit-parser's (YAML 1.2 syntax). Their interpretation is that of
//! go-yaml v2 (YAML 1.1 scalars, merge keys, string keys), which the kubelet uses through
//! sigs.k8s.io/yaml.

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, StrInput, StructureStyle, Tag};
use serde_json::Value;

use super::{
    json,
    scalar::{self, Scalar},
    tabs::Tabs,
    tree::{Data, Fault, MAX_DEPTH, MAX_NODES, MAX_REPEATED, MapEntry, Node, Places, last_wins},
    yaml_advice::{A_MAP_AS_KEY, advised},
};
use crate::pod::Problem;

/// A field of the outermost map of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct RootField {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Value,
    /// Line and column of the name, both counted from 1.
    pub position: (u32, u32),
    /// The first field that was given twice: this one, or one below it.
    pub duplicate: Option<Duplicate>,
}

/// A field that its map has twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The name.
    pub name: String,
    /// Line and column of the name.
    pub position: (u32, u32),
    /// Line and column of the earlier name, whose value is lost.
    pub earlier: (u32, u32),
}

/// Reads a YAML or JSON text as one value; `null` if the text is empty.
///
/// # Errors
/// If the text is invalid or has several documents.
pub fn to_json(text: &str) -> Result<Value, Problem> {
    Ok(one(text)?.map_or(Value::Null, Node::into_json))
}

/// Reads the documents of a YAML or JSON text, without empty ones.
///
/// # Errors
/// If the text is invalid.
pub fn values(text: &str) -> Result<Vec<Value>, Problem> {
    let documents = documents(text).map_err(|fault| fault.into_problem(text))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).map(Node::into_json).collect())
}

/// Reads the fields of a YAML or JSON text that is one map; an empty text has none.
///
/// # Errors
/// If the text is invalid, has several documents or is not a map.
pub fn fields(text: &str) -> Result<Vec<RootField>, Problem> {
    let places = Places::new(text);
    let duplicate = |entry: &MapEntry<'_>| {
        let (name, position) = (entry.key.to_string(), places.of(entry.at));
        Some(Duplicate { name, position, earlier: places.of(entry.earlier?) })
    };
    match one(text)?.map(|node| (node.at, node.data)) {
        None => Ok(Vec::new()),
        Some((_, Data::Map(entries))) => Ok(entries
            .into_iter()
            .map(|entry| RootField {
                position: places.of(entry.at),
                duplicate: entry.duplicate().and_then(duplicate),
                value: entry.value.into_json(),
                name: entry.key.into_owned(),
            })
            .collect()),
        Some((at, _)) => Err(Fault::new(at, "a map of fields is expected").into_problem(text)),
    }
}

/// The document of a text; none if it is empty.
fn one(text: &str) -> Result<Option<Node<'_>>, Problem> {
    let mut full = documents(text).map_err(|fault| fault.into_problem(text))?;
    full.retain(|document| !document.is_null());
    if let Some(second) = full.get(1) {
        return Err(Fault::new(second.at, "a second document: only one is allowed here").into_problem(text));
    }
    Ok(full.pop())
}

/// The documents of a YAML text, or the value of a JSON text.
///
/// A text that begins with `{` is read as JSON first, as the kubelet does, because that is
/// faster. If it is not JSON, it is read as YAML. If it is neither, the fault further
/// on in the text is reported.
pub(super) fn documents(text: &str) -> Result<Vec<Node<'_>>, Fault> {
    if !text.trim_start().starts_with('{') {
        return compose(text);
    }
    json::read(text, None).map(|node| vec![node]).or_else(|json_fault| {
        if json_fault.is_bound {
            return Err(json_fault);
        }
        compose(text).map_err(|fault| if fault.at > json_fault.at { fault } else { json_fault })
    })
}

/// The documents of a YAML text.
pub(super) fn compose(text: &str) -> Result<Vec<Node<'_>>, Fault> {
    check_characters(text)?;
    let bom = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut options = granit_parser::options! { flow_nesting_limit: MAX_DEPTH, block_nesting_limit: MAX_DEPTH, emit_anchor_events: true };
    options.set_emit_comments(false);
    let mut composer = Composer {
        events: Parser::new_from_str_with_options(&text[bom..], options),
        text,
        begin: bom,
        anchors: HashMap::new(),
        depth: 0,
        in_flow: false,
        indent: 0,
        tabs: Tabs::new(text),
        values: 0,
        aliased: 0,
        held: 0,
        repeated: 0,
    };
    let mut documents = Vec::new();
    while let Some((event, span)) = composer.next()? {
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => break,
            event => documents.push(composer.node(event, &span)?),
        }
    }
    Ok(documents)
}

/// Rejects the characters that YAML 1.1 does not allow (5.1), except a BOM.
fn check_characters(text: &str) -> Result<(), Fault> {
    let is_forbidden = |c: char| {
        matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{84}'
            | '\u{86}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}')
    };
    match text.char_indices().find(|(_, c)| is_forbidden(*c)) {
        None => Ok(()),
        Some((at, c)) => {
            let code = u32::from(c);
            let advice = match c {
                '\0' => "if the text is UTF-16, save it as UTF-8".to_owned(),
                _ => format!("write \"\\x{code:02x}\""),
            };
            let detail = format!("the control character U+{code:04X} is not allowed in YAML: {advice}");
            Err(Fault::new(at, detail))
        }
    }
}

/// A value with an anchor, which an alias may repeat.
struct Anchor<'t> {
    node: Node<'t>,
    /// The number of values, including the value itself.
    values: usize,
    depth: usize,
    /// The length of its strings and keys.
    bytes: usize,
}

struct Composer<'t> {
    events: Parser<'t, StrInput<'t>>,
    text: &'t str,
    /// The position in the text at which the parser's input begins.
    begin: usize,
    /// The complete values with an anchor, by the parser's number of the anchor.
    anchors: HashMap<usize, Anchor<'t>>,
    /// The nesting depth of the current value.
    depth: usize,
    /// Whether the current collection is in brackets.
    in_flow: bool,
    /// The least column of the content of the innermost collection that is not in brackets.
    indent: usize,
    tabs: Tabs<'t>,
    /// The number of values so far.
    values: usize,
    /// The number of values that aliases made.
    aliased: usize,
    /// The number of values that are stored a second time, because they have an anchor.
    held: usize,
    /// The length of the strings that anchors hold and aliases repeat.
    repeated: usize,
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, Fault> {
        loop {
            let fault = |error: ScanError| {
                let at = self.begin + error.marker().byte_offset().unwrap_or_default();
                match error.kind() {
                    ErrorKind::RecursionLimitExceeded => Fault::too_deep(at),
                    // The parser names the beginning of the string, and not the tab below it.
                    ErrorKind::TabInPlainScalar => self
                        .tabs
                        .before(at, self.in_flow)
                        .and_then(|()| self.tabs.scalar(at, self.text.len(), ScalarStyle::Plain, self.indent))
                        .err()
                        .unwrap_or_else(|| Fault::new(at, advised(error.info()))),
                    _ => Fault::new(at, advised(error.info())),
                }
            };
            match self.events.next_event().transpose().map_err(fault)? {
                Some((Event::Anchor(_, name), span)) => self.check_anchor(&name, &span)?,
                Some((event, span)) => {
                    let at = self.at(&span);
                    self.tabs.before(at, self.in_flow)?;
                    if let Event::Scalar(_, style, ..) = event {
                        let end = self.begin + span.end.byte_offset().unwrap_or_default();
                        self.tabs.scalar(at, end, style, self.indent)?;
                    }
                    return Ok(Some((event, span)));
                }
                None => return Ok(None),
            }
        }
    }

    /// Rejects the name of an anchor that YAML 1.1 does not allow. There the name ends at the
    /// first such character, which is then an error; here a value would become part of the name.
    fn check_anchor(&self, name: &str, span: &Span) -> Result<(), Fault> {
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
            return Ok(());
        }
        let detail = "the name of an anchor may have letters, digits, '_' and '-': put a string that begins with & in quotes";
        Err(Fault::new(self.at(span), detail))
    }

    /// The next event in a collection. The end of the text is an error here.
    fn inside(&mut self, begin: usize) -> Result<(Event<'t>, Span), Fault> {
        self.next()?.ok_or_else(|| Fault::new(begin, "the text ends inside this value"))
    }

    fn at(&self, span: &Span) -> usize {
        self.begin + span.start.byte_offset().unwrap_or_default()
    }

    /// Composes the value that begins with an event.
    fn node(&mut self, event: Event<'t>, span: &Span) -> Result<Node<'t>, Fault> {
        let at = self.at(span);
        let before = self.values;
        self.count(at, 1)?;
        let (data, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_question_mark(&text, style, at)?;
                let text = self.without_added_break(text, style, span);
                let data = scalar(text, style, tag.as_deref()).and_then(Scalar::into_data);
                (data.map_err(|detail| Fault::new(at, detail))?, anchor)
            }
            Event::SequenceStart(style, anchor, _) => (self.collection(style, span, Self::list)?, anchor),
            Event::MappingStart(style, anchor, _) => (self.collection(style, span, Self::map)?, anchor),
            Event::Alias(id) => (self.alias(id, at)?, 0),
            other => return Err(Fault::new(at, format!("unexpected {other:?}"))),
        };
        let node = Node { data, at };
        if anchor != 0 {
            let values = self.values - before;
            // Nested anchors store their values once for each level.
            self.held += values;
            if self.held > MAX_NODES {
                return Err(Fault::too_many(at));
            }
            let (depth, bytes) = extent(&node);
            self.repeat(at, bytes)?;
            self.anchors.insert(anchor, Anchor { values, depth, bytes, node: node.clone() });
        }
        Ok(node)
    }

    fn count(&mut self, at: usize, values: usize) -> Result<(), Fault> {
        self.values += values;
        if self.values > MAX_NODES {
            return Err(Fault::too_many(at));
        }
        Ok(())
    }

    fn repeat(&mut self, at: usize, bytes: usize) -> Result<(), Fault> {
        self.repeated += bytes;
        if self.repeated > MAX_REPEATED {
            let detail = format!("anchors and aliases repeat more than {MAX_REPEATED} bytes of this text");
            return Err(Fault { is_bound: true, ..Fault::new(at, detail) });
        }
        Ok(())
    }

    fn descend(&mut self, at: usize, levels: usize) -> Result<(), Fault> {
        if self.depth + levels > MAX_DEPTH {
            return Err(Fault::too_deep(at));
        }
        self.depth += levels;
        Ok(())
    }

    fn collection(
        &mut self,
        style: StructureStyle,
        span: &Span,
        read: fn(&mut Self, usize) -> Result<Data<'t>, Fault>,
    ) -> Result<Data<'t>, Fault> {
        let at = self.at(span);
        self.descend(at, 1)?;
        let outer = (self.in_flow, self.indent);
        self.in_flow = style == StructureStyle::Flow;
        if !self.in_flow {
            self.indent = span.start.col() + 1;
        }
        let data = read(self, at)?;
        (self.in_flow, self.indent) = outer;
        self.depth -= 1;
        Ok(data)
    }

    /// Rejects a plain string with a question mark in brackets: in the kubelet's YAML 1.1 the
    /// question mark ends the string, which is then an error.
    fn check_question_mark(&self, text: &str, style: ScalarStyle, at: usize) -> Result<(), Fault> {
        if self.in_flow && style == ScalarStyle::Plain && text.contains('?') {
            return Err(Fault::new(at, "a string with a question mark within [ ] or { } must be in quotes"));
        }
        Ok(())
    }

    /// Removes the line break that the parser adds to a block scalar in the last line of a
    /// text that ends without one.
    fn without_added_break(&self, text: Cow<'t, str>, style: ScalarStyle, span: &Span) -> Cow<'t, str> {
        let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let end = self.begin + span.end.byte_offset().unwrap_or_default();
        let last_line = || self.text.rsplit(['\n', '\r']).next().unwrap_or_default();
        let added = is_block && end == self.text.len() && !last_line().trim_matches(' ').is_empty();
        match text.strip_suffix('\n') {
            Some(text) if added => Cow::Owned(text.to_owned()),
            _ => text,
        }
    }

    fn list(&mut self, at: usize) -> Result<Data<'t>, Fault> {
        let mut items = Vec::new();
        loop {
            match self.inside(at)? {
                (Event::SequenceEnd, _) => break,
                (event, span) => {
                    if !self.in_flow {
                        self.tabs.item(self.at(&span))?;
                    }
                    items.push(self.node(event, &span)?);
                }
            }
        }
        items.shrink_to_fit();
        Ok(Data::List(items))
    }

    fn map(&mut self, at: usize) -> Result<Data<'t>, Fault> {
        let mut entries = Vec::new();
        loop {
            let (event, span) = match self.inside(at)? {
                (Event::MappingEnd, _) => break,
                key => key,
            };
            if is_merge(&event) {
                self.merge(&mut entries, self.at(&span))?;
                continue;
            }
            let at = self.at(&span);
            let key = self.key(event, &span)?;
            let (event, span) = self.inside(at)?;
            let value = self.node(event, &span)?;
            entries.push(MapEntry { key, at, earlier: None, merged: false, value });
        }
        last_wins(&mut entries);
        entries.shrink_to_fit();
        Ok(Data::Map(entries))
    }

    fn key(&mut self, event: Event<'t>, span: &Span) -> Result<Cow<'t, str>, Fault> {
        let at = self.at(span);
        if span.start.line() != span.end.line()
            && matches!(event, Event::Scalar(..))
            && !self.is_explicit_key(at)
        {
            return Err(Fault::new(at, "a key must be on one line"));
        }
        if let Event::Scalar(text, style, 0, tag) = event {
            self.count(at, 1)?;
            self.check_question_mark(&text, style, at)?;
            let key = scalar(text, style, tag.as_deref()).and_then(Scalar::into_key);
            return key.map_err(|detail| Fault::new(at, detail));
        }
        let node = self.node(event, span)?;
        match node.data {
            Data::Text(text) | Data::Number(text) => Ok(text),
            Data::Bool(value) => Ok(value.to_string().into()),
            Data::Map(_) => Err(Fault::new(at, A_MAP_AS_KEY)),
            _ => Err(Fault::new(at, format!("{} cannot be a key: a key must be a string", node.kind()))),
        }
    }

    /// Whether a key at a byte of the text follows a `?`.
    fn is_explicit_key(&self, at: usize) -> bool {
        self.text.get(..at).is_some_and(|before| before.trim_end().ends_with('?'))
    }

    /// Adds the entries of the map, or of the list of maps, after a merge key. As in
    /// go-yaml v2 the position of the merge key counts: later keys win, earlier keys lose.
    fn merge(&mut self, entries: &mut Vec<MapEntry<'t>>, at: usize) -> Result<(), Fault> {
        let (event, span) = self.inside(at)?;
        let is_alias = matches!(event, Event::Alias(_));
        let value = self.node(event, &span)?;
        let maps = match value.data {
            Data::List(items) if !is_alias => items,
            _ => vec![value],
        };
        for map in maps.into_iter().rev() {
            let Data::Map(merged) = map.data else {
                return Err(Fault::new(
                    map.at,
                    "the value of a merge key (<<) must be a map or a list of maps",
                ));
            };
            entries.extend(merged.into_iter().map(|entry| MapEntry { merged: true, ..entry }));
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, at: usize) -> Result<Data<'t>, Fault> {
        let Some(anchor) = self.anchors.get(&id) else {
            return Err(Fault::new(at, "an alias cannot be inside the value that it repeats"));
        };
        let (values, levels, bytes) = (anchor.values, anchor.depth, anchor.bytes);
        self.repeat(at, bytes)?;
        self.aliased += values;
        self.count(at, values)?;
        if self.aliased > 100 && self.values > 1000 && !self.within_budget() {
            return Err(Fault::new(at, "aliases repeat too much of this text"));
        }
        self.descend(at, levels)?;
        self.depth -= levels;
        Ok(self.anchors.get(&id).map_or(Data::Null, |anchor| anchor.node.data.clone()))
    }

    /// Whether aliases made few enough values, by go-yaml v2's rule: up to 99 % of 400,000
    /// values, falling to 10 % of 4,000,000.
    fn within_budget(&self) -> bool {
        #[allow(clippy::cast_precision_loss, reason = "the ratio does not need every digit")]
        let (values, aliased) = (self.values as f64, self.aliased as f64);
        let share = 0.99 - 0.89 * ((values - 400_000.0) / 3_600_000.0).clamp(0.0, 1.0);
        aliased / values <= share
    }
}

/// The nesting depth of a value, and the length of its strings and keys.
fn extent(node: &Node<'_>) -> (usize, usize) {
    let add = |(depth, bytes): (usize, usize), inner: &Node<'_>| {
        let (levels, more) = extent(inner);
        (depth.max(1 + levels), bytes + more)
    };
    match &node.data {
        Data::List(items) => items.iter().fold((1, 0), add),
        Data::Map(entries) => entries
            .iter()
            .fold((1, 0), |(depth, bytes), entry| add((depth, bytes + entry.key.len()), &entry.value)),
        Data::Text(text) | Data::Number(text) => (0, text.len()),
        Data::Null | Data::Bool(_) => (0, 0),
    }
}

fn is_merge(event: &Event<'_>) -> bool {
    match event {
        Event::Scalar(text, style, _, tag) if text == "<<" => match tag.as_deref() {
            None => *style == ScalarStyle::Plain,
            Some(tag) => is_non_specific(tag) || core_tag(tag).is_some_and(|suffix| suffix == "merge"),
        },
        _ => false,
    }
}

/// The value of a scalar. The tag `!` alone makes it a string.
fn scalar<'t>(text: Cow<'t, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Scalar<'t>, String> {
    match tag {
        None if style == ScalarStyle::Plain => Ok(scalar::plain(text)),
        None => Ok(Scalar::Text(text)),
        Some(tag) => match core_tag(tag) {
            Some(suffix) => scalar::tagged(&suffix, text),
            None => Ok(Scalar::Text(text)),
        },
    }
}

fn is_non_specific(tag: &Tag) -> bool {
    tag.parts() == ("", "!") || tag.parts() == ("!", "")
}

/// The part of a tag after `tag:yaml.org,2002:`, usually written `!!`.
fn core_tag(tag: &Tag) -> Option<Cow<'_, str>> {
    tag.suffix_in_namespace("tag:yaml.org,2002:")
}
