//! The frames in which podman sends stdout and stderr. Pure.

/// The length of a frame's head: its stream, three zeros, and its length.
const HEAD: usize = 8;

/// Decodes a response in which each piece of stdout or stderr has a head.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: Vec<u8>,
    /// How many bytes of the frame are missing.
    left: usize,
    /// The stream of the frame.
    stream: u8,
    /// Whether each frame begins with a time and a space.
    has_times: bool,
    /// Whether the time of the frame is left out, and has not ended yet.
    in_time: bool,
    /// The streams whose last line has not ended, by the bits of their numbers.
    open_lines: u8,
}

impl Frames {
    /// Of lines that begin with their times. A long line comes in several frames: the times of all but the first
    /// are left out, as the kubelet does.
    pub(super) fn with_times(has_times: bool) -> Self {
        Self { has_times, ..Self::default() }
    }

    /// The text of the next part of the response.
    pub(super) fn text(&mut self, mut part: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(part.len());
        while !part.is_empty() {
            if self.left == 0 {
                let (more, rest) = part.split_at(part.len().min(HEAD - self.head.len()));
                self.head.extend_from_slice(more);
                part = rest;
                if let Some(&[stream, _, _, _, a, b, c, d]) = self.head.first_chunk::<HEAD>() {
                    self.left = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
                    self.stream = 1 << (stream & 3);
                    self.in_time = self.has_times && self.open_lines & self.stream != 0;
                    self.head.clear();
                }
                continue;
            }
            let (mut piece, rest) = part.split_at(part.len().min(self.left));
            self.left -= piece.len();
            part = rest;
            if self.in_time {
                let end = piece.iter().position(|byte| *byte == b' ');
                self.in_time = end.is_none();
                piece = end.map_or(&[], |end| &piece[end + 1..]);
            }
            if let Some(last) = piece.last() {
                let is_open = if *last == b'\n' { 0 } else { self.stream };
                self.open_lines = self.open_lines & !self.stream | is_open;
                text.extend_from_slice(piece);
            }
        }
        text
    }
}
