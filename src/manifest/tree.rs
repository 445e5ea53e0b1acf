//! The tree of values of a YAML or JSON text, with the position of each value.

use std::{borrow::Cow, cell::OnceCell, collections::HashMap};

use serde_json::{Number, Value};

use crate::pod::{FieldPath, Problem, Step};

/// The deepest nesting of values. A pod needs about fifteen levels; the bound
/// keeps every recursion over a tree well within a thread's stack.
pub(super) const MAX_DEPTH: usize = 200;

/// The most values in a text, with aliases expanded. 10 MiB of real pods have less than a
/// million; a value needs at most 80 bytes.
pub(super) const MAX_NODES: usize = 2_000_000;

/// The most bytes of strings that anchors and aliases repeat: as many as a manifest may have.
pub(super) const MAX_REPEATED: usize = 10 * 1024 * 1024;

/// A value and the position where it begins, in bytes from the beginning of the text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node<'t> {
    pub(super) data: Data<'t>,
    pub(super) at: usize,
}

/// The data of a value. A number is the JSON text that the kubelet's own reader would
/// see, because quantities are parsed from that text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data<'t> {
    Null,
    Bool(bool),
    Number(Cow<'t, str>),
    Text(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Map(Vec<MapEntry<'t>>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MapEntry<'t> {
    pub(super) key: Cow<'t, str>,
    /// The position of the key.
    pub(super) at: usize,
    /// The position of the same key earlier in the map, whose value is lost.
    pub(super) earlier: Option<usize>,
    /// Whether the entry came through a merge key (`<<`).
    pub(super) merged: bool,
    pub(super) value: Node<'t>,
}

/// Why a text cannot be read, and the position in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) detail: String,
    /// Whether the text exceeds a bound, and is not invalid.
    pub(super) is_bound: bool,
}

impl Fault {
    pub(super) fn new(at: usize, detail: impl Into<String>) -> Self {
        Self { at, detail: detail.into(), is_bound: false }
    }

    /// The problem, with its line and column in the text.
    pub(super) fn into_problem(self, text: &str) -> Problem {
        Problem::error(self.detail).at(Some(Places::new(text).of(self.at)))
    }

    /// The fault of a value that is nested too deep.
    pub(super) fn too_deep(at: usize) -> Self {
        Self { is_bound: true, ..Self::new(at, format!("nested more than {MAX_DEPTH} levels deep")) }
    }

    /// The fault of the first value that is too many.
    pub(super) fn too_many(at: usize) -> Self {
        Self { is_bound: true, ..Self::new(at, format!("more than {MAX_NODES} values in one text")) }
    }
}

impl MapEntry<'_> {
    /// The first entry, of this one and those below it, whose key its map has twice.
    pub(super) fn duplicate(&self) -> Option<&MapEntry<'_>> {
        if self.earlier.is_some() { Some(self) } else { self.value.duplicate() }
    }
}

impl Node<'_> {
    fn duplicate(&self) -> Option<&MapEntry<'_>> {
        match &self.data {
            Data::List(items) => items.iter().find_map(Node::duplicate),
            Data::Map(entries) => entries.iter().find_map(MapEntry::duplicate),
            _ => None,
        }
    }

    /// The position of the value at a path below this node. If the text does not have the
    /// value, the position of its nearest parent.
    pub(super) fn position_of(&self, path: &FieldPath<'_>) -> usize {
        self.walk(path).map_or_else(|at| at, |node| node.at)
    }

    /// Whether the value at a path is an empty list or map.
    pub(super) fn is_empty_at(&self, path: &FieldPath<'_>) -> bool {
        match self.walk(path).map(|node| &node.data) {
            Ok(Data::List(items)) => items.is_empty(),
            Ok(Data::Map(entries)) => entries.is_empty(),
            _ => false,
        }
    }

    fn walk(&self, path: &FieldPath<'_>) -> Result<&Self, usize> {
        let Some(parent) = path.parent() else { return Ok(self) };
        let node = self.walk(parent)?;
        let next = match (path.step(), &node.data) {
            (Step::Word(_), _) => Some(node),
            (Step::Field(key) | Step::Key(key), Data::Map(_)) => node.get(key),
            (Step::Index(index), Data::List(items)) => items.get(index),
            _ => None,
        };
        next.ok_or(node.at)
    }

    /// The value under a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match &self.data {
            Data::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value),
            _ => None,
        }
    }

    /// The text of a string.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        self.data == Data::Null
    }

    /// The kind of the value, for an error. The value itself may be a secret.
    pub(super) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "null",
            Data::Bool(_) => "a boolean",
            Data::Number(_) => "a number",
            Data::Text(_) => "a string",
            Data::List(_) => "a list",
            Data::Map(_) => "a map",
        }
    }

    /// Converts the value to JSON.
    pub(super) fn into_json(self) -> Value {
        match self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(value),
            Data::Number(text) => number(&text),
            Data::Text(text) => text.into_owned().into(),
            Data::List(items) => items.into_iter().map(Node::into_json).collect(),
            Data::Map(entries) => {
                entries.into_iter().map(|entry| (entry.key, entry.value.into_json())).collect()
            }
        }
    }
}

fn number(text: &str) -> Value {
    let integer = || text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
    let float = || text.parse().ok().and_then(Number::from_f64);
    integer().ok().or_else(float).map_or(Value::Null, Value::Number)
}

/// Finds lines and columns. It walks through the text once, and then only from the nearest known place.
pub(super) struct Places<'t> {
    text: &'t [u8],
    /// The line and the column at each multiple of [`STRIDE`].
    known: OnceCell<Vec<(u32, u32)>>,
}

/// The distance of the known places, in bytes.
const STRIDE: usize = 256;

impl<'t> Places<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text: text.as_bytes(), known: OnceCell::new() }
    }

    /// The line and the column of a byte, both counted from 1, the column in characters.
    pub(super) fn of(&self, at: usize) -> (u32, u32) {
        let at = at.min(self.text.len());
        let stride = at / STRIDE;
        // A byte order mark is not a column.
        let first = (1, u32::from(!self.text.starts_with("\u{feff}".as_bytes())));
        let known = || {
            self.known.get_or_init(|| {
                let strides = self.text.chunks(STRIDE).chain([&[][..]]);
                let begins = strides.scan(first, |next, stride| {
                    let begin = *next;
                    *next = advance(begin, stride);
                    Some(begin)
                });
                begins.collect()
            })
        };
        let begin = if stride == 0 { first } else { known()[stride] };
        let (line, column) = advance(begin, &self.text[stride * STRIDE..at]);
        (line, column.max(1))
    }
}

/// The place after some more bytes.
fn advance(place: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    bytes.iter().fold(place, |(line, column), byte| match byte {
        b'\n' => (line.saturating_add(1), 1),
        // Not the first byte of a character.
        0x80..=0xbf => (line, column),
        _ => (line, column.saturating_add(1)),
    })
}

/// Keeps the last of equal keys, with the position of the one before.
pub(super) fn last_wins(entries: &mut Vec<MapEntry<'_>>) {
    if !has_duplicates(entries) {
        return;
    }
    let mut last: HashMap<Cow<'_, str>, usize> = HashMap::new();
    let mut kept: Vec<Option<MapEntry<'_>>> = Vec::with_capacity(entries.len());
    for mut entry in entries.drain(..) {
        if let Some(earlier) = last.insert(entry.key.clone(), kept.len()).and_then(|index| kept[index].take())
            && !entry.merged
            && !earlier.merged
        {
            entry.earlier = Some(earlier.at);
        }
        kept.push(Some(entry));
    }
    entries.extend(kept.into_iter().flatten());
}

fn has_duplicates(entries: &[MapEntry<'_>]) -> bool {
    // Nearly every map is small, and then comparing all pairs is faster than hashing.
    if entries.len() <= 12 {
        entries.iter().enumerate().any(|(i, a)| entries[i + 1..].iter().any(|b| a.key == b.key))
    } else {
        let mut seen = std::collections::HashSet::with_capacity(entries.len());
        !entries.iter().all(|entry| seen.insert(&*entry.key))
    }
}

/// Converts bytes to text. As in Go, each byte that is not UTF-8 becomes one U+FFFD.
pub(super) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '\u{fffd}'));
    }
    text.into()
}
