//! Fields of the metadata and the status in the canonical text of a pod, which is not parsed for that.

use std::{cmp::Ordering, ops::Range};

use super::Pod;

const METADATA: &[u8] = b"metadata";
const FIELD: &str = "resourceVersion";
const STATUS: &[u8] = b"status";

impl Pod {
    /// `metadata.resourceVersion`, if it is a number.
    pub fn resource_version(&self) -> Option<u64> {
        let place = Place::find(self.text(), FIELD)?;
        let value = str::from_utf8(self.text().get(place.value?)?).ok()?;
        value.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
    }

    /// The place in the text of a field of the metadata, and the text that sets it to this JSON value. O(n).
    pub fn metadata_edit(&self, field: &str, value: &str) -> (Range<usize>, String) {
        // A pod always has metadata.
        let end = self.text().len();
        let none = Place { field: end..end, value: None, before: "", after: "" };
        let Place { field: range, before, after, .. } = Place::find(self.text(), field).unwrap_or(none);
        (range, format!(r#"{before}"{field}":{value}{after}"#))
    }

    /// Where the metadata is in the text. O(n).
    pub(crate) fn metadata_range(&self) -> Option<Range<usize>> {
        member(self.text(), METADATA)
    }

    /// Where the status is in the text; none without one. O(n).
    pub(crate) fn status_range(&self) -> Option<Range<usize>> {
        member(self.text(), STATUS)
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
    fn find(text: &[u8], field: &str) -> Option<Self> {
        let metadata = member(text, METADATA)?;
        let mut next = None;
        for Member { begin, name, value } in members(text, metadata.start) {
            match text[name].cmp(field.as_bytes()) {
                Ordering::Equal => {
                    let field = begin..value.end;
                    return Some(Self { field, value: Some(value), before: "", after: "" });
                }
                Ordering::Greater if next.is_none() => next = Some(begin),
                _ => {}
            }
        }
        let end = metadata.end.checked_sub(1)?;
        let before = if text[end - 1] == b'{' { "" } else { "," };
        Some(match next {
            Some(next) => Self { field: next..next, value: None, before: "", after: "," },
            None => Self { field: end..end, value: None, before, after: "" },
        })
    }
}

/// The value of a member of the whole object.
fn member(text: &[u8], name: &[u8]) -> Option<Range<usize>> {
    members(text, 0).find(|member| text[member.name.clone()] == *name).map(|member| member.value)
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
