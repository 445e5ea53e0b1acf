//! `metadata.resourceVersion` and the status in the canonical text of a pod, which is not parsed for that.

use std::{cmp::Ordering, ops::Range};

use super::Pod;

const METADATA: &[u8] = b"metadata";
const FIELD: &[u8] = b"resourceVersion";
const STATUS: &[u8] = b"status";

impl Pod {
    /// `metadata.resourceVersion`, if it is a number.
    pub fn resource_version(&self) -> Option<u64> {
        let place = Place::find(self.text())?;
        let value = str::from_utf8(self.text().get(place.value?)?).ok()?;
        value.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
    }

    /// The text with this `metadata.resourceVersion`: what is before the field, the field, and what
    /// is after it. O(n).
    pub fn with_resource_version(&self, version: u64) -> (Range<usize>, String, Range<usize>) {
        let length = self.text().len();
        let Some(Place { field, before, after, .. }) = Place::find(self.text()) else {
            // A pod always has metadata.
            return (0..length, String::new(), length..length);
        };
        (0..field.start, format!(r#"{before}"resourceVersion":"{version}"{after}"#), field.end..length)
    }

    /// Where the status is in the text; none without one. O(n).
    pub(crate) fn status_range(&self) -> Option<Range<usize>> {
        let text = self.text();
        members(text, 0).find(|member| text[member.name.clone()] == *STATUS).map(|member| member.value)
    }
}

/// Where the field is, or where it belongs, and what separates it from its neighbours.
struct Place {
    field: Range<usize>,
    /// Its value, if it is there.
    value: Option<Range<usize>>,
    before: &'static str,
    after: &'static str,
}

impl Place {
    fn find(text: &[u8]) -> Option<Self> {
        let metadata = members(text, 0).find(|member| text[member.name.clone()] == *METADATA)?;
        let mut next = None;
        for Member { begin, name, value } in members(text, metadata.value.start) {
            match text[name].cmp(FIELD) {
                Ordering::Equal => {
                    let field = begin..value.end;
                    return Some(Self { field, value: Some(value), before: "", after: "" });
                }
                Ordering::Greater if next.is_none() => next = Some(begin),
                _ => {}
            }
        }
        let end = metadata.value.end.checked_sub(1)?;
        let before = if text[end - 1] == b'{' { "" } else { "," };
        Some(match next {
            Some(next) => Self { field: next..next, value: None, before: "", after: "," },
            None => Self { field: end..end, value: None, before, after: "" },
        })
    }
}

/// A member of an object.
struct Member {
    begin: usize,
    /// Its name, without the quotes.
    name: Range<usize>,
    value: Range<usize>,
}

/// The members of the object that begins here. JSON without spaces is expected.
fn members(text: &[u8], object: usize) -> impl Iterator<Item = Member> {
    let mut at = object + 1;
    std::iter::from_fn(move || {
        let (begin, end) = (at, string_end(text, at)?);
        let value = end + 1..value_end(text, end + 1)?;
        at = value.end + 1;
        Some(Member { begin, name: begin + 1..end - 1, value })
    })
}

/// The end of the string that begins here; none if it is not a string.
fn string_end(text: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    (*text.get(begin)? == b'"').then_some(())?;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The end of the value that begins here, in an object.
fn value_end(text: &[u8], begin: usize) -> Option<usize> {
    let (mut at, mut depth) = (begin, 0_usize);
    loop {
        match text.get(at)? {
            b'"' => {
                at = string_end(text, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
}
