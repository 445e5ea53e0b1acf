//! Decodes a protobuf message to the tree of values that YAML and JSON give.

use std::borrow::Cow;

use jiff::Timestamp;

use super::wire::{Fields, WireError, WireValue, varint};
use crate::manifest::{
    go_types::{Struct, Type},
    json,
    tree::{Data, Fault, MAX_NODES, MapEntry, Node, last_wins, lossy},
};

/// Decodes the message of a Go struct as the generated code of `k8s.io/api` does: of a repeated scalar the last one
/// counts, repeated messages are merged, and unknown fields are skipped. A field with the name `skipped` is not read.
///
/// The depth of the tree is that of the types. No value has a position.
pub(crate) fn tree<'m>(
    of: &'static Struct,
    message: &'m [u8],
    skipped: Option<&'static str>,
) -> Result<Node<'m>, Fault> {
    let mut decoder = Decoder { values: 0, skipped };
    let mut entries = Vec::new();
    decoder.fields(of, None, message, &mut entries)?;
    let mut node = node(Data::Map(entries));
    finish(&mut node);
    Ok(node)
}

struct Decoder {
    values: usize,
    skipped: Option<&'static str>,
}

pub(super) fn node(data: Data<'_>) -> Node<'_> {
    Node { data, at: 0 }
}

pub(super) fn entry<'m>(key: impl Into<Cow<'m, str>>, value: Data<'m>) -> MapEntry<'m> {
    MapEntry { key: key.into(), at: 0, earlier: None, merged: false, value: node(value) }
}

fn malformed(name: &str, error: WireError) -> Fault {
    Fault::new(0, format!("the protobuf of {name} is malformed: {error}"))
}

fn wrong_type(name: &str) -> Fault {
    Fault::new(0, format!("the protobuf of {name} is malformed: another wire type is expected"))
}

impl Decoder {
    fn count(&mut self) -> Result<(), Fault> {
        self.values += 1;
        if self.values > MAX_NODES { Err(Fault::too_many(0)) } else { Ok(()) }
    }

    /// Reads the fields of a struct, or of the message of a struct that Go embeds in it.
    fn fields<'m>(
        &mut self,
        of: &'static Struct,
        embedded: Option<u8>,
        message: &'m [u8],
        entries: &mut Vec<MapEntry<'m>>,
    ) -> Result<(), Fault> {
        for field in Fields::new(message) {
            let (number, value) = field.map_err(|error| malformed("an object", error))?;
            let Ok(number) = u8::try_from(number) else { continue };
            let Some(field) = of.numbered(embedded, number) else {
                if embedded.is_none() && of.embeds(number) {
                    let WireValue::Bytes(message) = value else {
                        return Err(wrong_type("an embedded message"));
                    };
                    self.fields(of, Some(number), message, entries)?;
                }
                continue;
            };
            if self.skipped == Some(field.name) {
                continue;
            }
            let earlier = entries.iter().rposition(|entry| entry.key == field.name);
            if earlier.is_none() {
                self.count()?;
                entries.push(entry(field.name, Data::Null));
            }
            let index = earlier.unwrap_or(entries.len() - 1);
            self.value(&field.kind, field.name, value, &mut entries[index].value.data)?;
        }
        Ok(())
    }

    /// Reads a value into that of the same field before, if there is one.
    fn value<'m>(
        &mut self,
        kind: &'static Type,
        name: &'static str,
        value: WireValue<'m>,
        into: &mut Data<'m>,
    ) -> Result<(), Fault> {
        if matches!(into, Data::Null) {
            *into = match kind {
                Type::Struct(_) | Type::Map(_) => Data::Map(Vec::new()),
                Type::List(_) => Data::List(Vec::new()),
                _ => Data::Null,
            };
        }
        match (kind, value, into) {
            (Type::Struct(of), WireValue::Bytes(message), Data::Map(entries)) => {
                return self.fields(of, None, message, entries);
            }
            (Type::List(of), value, Data::List(items)) => return self.items(of, name, value, items),
            (Type::Map(of), WireValue::Bytes(message), Data::Map(entries)) => {
                self.count()?;
                entries.push(self.map_entry(of, name, message)?);
            }
            (kind, value, into) => *into = scalar(kind, name, value)?,
        }
        Ok(())
    }

    /// Adds an item of a list, or several numbers that are packed in one field.
    fn items<'m>(
        &mut self,
        of: &'static Type,
        name: &'static str,
        value: WireValue<'m>,
        items: &mut Vec<Node<'m>>,
    ) -> Result<(), Fault> {
        if let (Type::Int32 | Type::Int64, WireValue::Bytes(mut packed)) = (of, value) {
            while !packed.is_empty() {
                let number = varint(&mut packed).map_err(|error| malformed(name, error))?;
                self.count()?;
                items.push(node(scalar(of, name, WireValue::Number(number))?));
            }
            return Ok(());
        }
        self.count()?;
        let mut item = Data::Null;
        self.value(of, name, value, &mut item)?;
        items.push(node(item));
        Ok(())
    }

    fn map_entry<'m>(
        &mut self,
        of: &'static Type,
        name: &'static str,
        message: &'m [u8],
    ) -> Result<MapEntry<'m>, Fault> {
        let mut read = entry("", Data::Null);
        for field in Fields::new(message) {
            match field.map_err(|error| malformed(name, error))? {
                (1, WireValue::Bytes(key)) => read.key = lossy(key),
                (2, value) => {
                    read.value.data = Data::Null;
                    self.value(of, name, value, &mut read.value.data)?;
                }
                (1, _) => return Err(wrong_type(name)),
                _ => {}
            }
        }
        Ok(read)
    }
}

/// Keeps the last of equal keys of each map, which is no mistake here.
fn finish(node: &mut Node<'_>) {
    match &mut node.data {
        Data::Map(entries) => {
            last_wins(entries);
            for entry in entries {
                entry.earlier = None;
                finish(&mut entry.value);
            }
        }
        Data::List(items) => items.iter_mut().for_each(finish),
        _ => {}
    }
}

fn scalar<'m>(kind: &Type, name: &str, value: WireValue<'m>) -> Result<Data<'m>, Fault> {
    match (kind, value) {
        (Type::String, WireValue::Bytes(bytes)) => Ok(Data::Text(lossy(bytes))),
        (Type::Bool, WireValue::Number(number)) => Ok(Data::Bool(number != 0)),
        (Type::Int32, WireValue::Number(number)) => Ok(integer(int32(number).into())),
        (Type::Int64, WireValue::Number(number)) => Ok(integer(number.cast_signed())),
        (Type::Quantity, WireValue::Bytes(message)) => {
            let last = last(message, 1, name)?;
            Ok(Data::Text(last.map_or("0".into(), lossy)))
        }
        (Type::Time, WireValue::Bytes(message)) => time(message, name),
        (Type::IntOrString, WireValue::Bytes(message)) => int_or_string(message, name),
        (Type::Any, WireValue::Bytes(message)) => {
            let text = last(message, 1, name)?.unwrap_or_default();
            if text.is_empty() {
                return Ok(Data::Null);
            }
            let text = str::from_utf8(text).map_err(|_| Fault::new(0, format!("{name} is not UTF-8")))?;
            let fault = |fault: Fault| Fault {
                at: 0,
                detail: format!("{name} is not JSON: {}", fault.detail),
                ..fault
            };
            Ok(json::read(text, None).map_err(fault)?.data)
        }
        _ => Err(wrong_type(name)),
    }
}

fn integer(value: i64) -> Data<'static> {
    Data::Number(value.to_string().into())
}

/// As in Go, the upper half is cut off.
fn int32(number: u64) -> i32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default().cast_signed()
}

/// The last field with a number that is a text or a message.
fn last<'m>(message: &'m [u8], number: u32, name: &str) -> Result<Option<&'m [u8]>, Fault> {
    let mut last = None;
    for field in Fields::new(message) {
        match field.map_err(|error| malformed(name, error))? {
            (other, WireValue::Bytes(bytes)) if other == number => last = Some(bytes),
            (other, _) if other == number => return Err(wrong_type(name)),
            _ => {}
        }
    }
    Ok(last)
}

/// A `Timestamp` of seconds and nanoseconds. An empty one is Go's zero time; as in Go, only the seconds count.
fn time(message: &[u8], name: &str) -> Result<Data<'static>, Fault> {
    if message.is_empty() {
        return Ok(Data::Null);
    }
    let mut seconds = 0;
    for field in Fields::new(message) {
        match field.map_err(|error| malformed(name, error))? {
            (1, WireValue::Number(number)) => seconds = number.cast_signed(),
            (1 | 2, WireValue::Bytes(_) | WireValue::Other) => return Err(wrong_type(name)),
            _ => {}
        }
    }
    let time = Timestamp::from_second(seconds).map(|time| format!("{time:.0}"));
    // A year has four digits in JSON.
    match time {
        Ok(time) if !time.starts_with('-') => Ok(Data::Text(time.into())),
        _ => Err(Fault::new(0, format!("{name} is a time before the year 0 or after 9999"))),
    }
}

fn int_or_string<'m>(message: &'m [u8], name: &str) -> Result<Data<'m>, Fault> {
    let (mut kind, mut number, mut string) = (0, 0, &b""[..]);
    for field in Fields::new(message) {
        match field.map_err(|error| malformed(name, error))? {
            (1, WireValue::Number(value)) => kind = value,
            (2, WireValue::Number(value)) => number = int32(value),
            (3, WireValue::Bytes(value)) => string = value,
            (1..=3, _) => return Err(wrong_type(name)),
            _ => {}
        }
    }
    match kind {
        0 => Ok(integer(number.into())),
        1 => Ok(Data::Text(lossy(string))),
        _ => Err(Fault::new(0, format!("{name} is neither an integer nor a string"))),
    }
}
