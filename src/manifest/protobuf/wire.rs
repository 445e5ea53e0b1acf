//! The wire format of protobuf: the fields of a message.

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends in the middle of a field, or a length is more than what follows.
    #[error("it ends inside a field")]
    Incomplete,
    /// A number has more bytes than 64 bits need.
    #[error("a number has more than 64 bits")]
    Overflow,
    /// A field has no number.
    #[error("a field has the number 0")]
    NoNumber,
    /// A group ends that has not begun.
    #[error("a group ends that did not begin")]
    EndOfGroup,
    /// The wire type is 6 or 7.
    #[error("a field has an unknown wire type")]
    UnknownType,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireValue<'m> {
    /// An integer or a boolean.
    Number(u64),
    /// A text, a message or packed numbers.
    Bytes(&'m [u8]),
    /// A value of a type that no field of the API has: a fixed number, or a group.
    Other,
}

/// The fields of a message, in their order. A broken field is the last one.
#[derive(Clone, Debug)]
pub struct Fields<'m> {
    rest: &'m [u8],
}

impl<'m> Fields<'m> {
    /// The fields of these bytes.
    pub fn new(message: &'m [u8]) -> Self {
        Self { rest: message }
    }

    /// The bytes that follow the last field.
    pub fn rest(&self) -> &'m [u8] {
        self.rest
    }

    fn field(&mut self) -> Result<(u32, WireValue<'m>), WireError> {
        let (number, kind) = tag(&mut self.rest)?;
        let value = match kind {
            0 => WireValue::Number(varint(&mut self.rest)?),
            2 => WireValue::Bytes(bytes(&mut self.rest)?),
            4 => return Err(WireError::EndOfGroup),
            _ => {
                skip(&mut self.rest, kind)?;
                WireValue::Other
            }
        };
        Ok((number, value))
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u32, WireValue<'m>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Consumes a tag: the number of a field and its wire type. As in Go, only 32 bits of the number count.
pub(crate) fn tag(rest: &mut &[u8]) -> Result<(u32, u64), WireError> {
    let tag = varint(rest)?;
    let number = u32::try_from((tag >> 3) & u64::from(u32::MAX)).unwrap_or_default();
    if number == 0 || number > i32::MAX.cast_unsigned() {
        return Err(WireError::NoNumber);
    }
    Ok((number, tag & 7))
}

/// Consumes a number of up to ten bytes.
pub(crate) fn varint(rest: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(WireError::Incomplete)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(WireError::Overflow)
}

/// Consumes a length and as many bytes.
fn bytes<'m>(rest: &mut &'m [u8]) -> Result<&'m [u8], WireError> {
    let length = usize::try_from(varint(rest)?).map_err(|_| WireError::Incomplete)?;
    take(rest, length)
}

fn take<'m>(rest: &mut &'m [u8], length: usize) -> Result<&'m [u8], WireError> {
    let (taken, after) = rest.split_at_checked(length).ok_or(WireError::Incomplete)?;
    *rest = after;
    Ok(taken)
}

/// Skips the value of a field with this wire type. Groups are counted, not entered, so that no depth is too deep.
fn skip(rest: &mut &[u8], mut kind: u64) -> Result<(), WireError> {
    let mut depth = 0_usize;
    loop {
        match kind {
            0 => drop(varint(rest)?),
            1 => drop(take(rest, 8)?),
            2 => drop(bytes(rest)?),
            3 => depth += 1,
            4 => depth = depth.checked_sub(1).ok_or(WireError::EndOfGroup)?,
            5 => drop(take(rest, 4)?),
            _ => return Err(WireError::UnknownType),
        }
        if depth == 0 {
            return Ok(());
        }
        kind = varint(rest)? & 7;
    }
}

/// Appends a field that is a number.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u8, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

/// Appends a field that is a text or a message.
pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    put_head(out, number, value.len());
    out.extend_from_slice(value);
}

/// Appends the head of a field of this length, which follows.
pub(crate) fn put_head(out: &mut Vec<u8>, number: u8, length: usize) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, length as u64);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let byte = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}
