//! The lines that come at the end of a file.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    mem,
    path::Path,
};

/// A position in a file.
#[derive(Default)]
pub struct Appended {
    offset: u64,
    /// The beginning of the next line.
    rest: Vec<u8>,
}

impl Appended {
    /// The whole lines since the last call; none if there is no file.
    pub fn lines(&mut self, path: &Path) -> Vec<Vec<u8>> {
        let Ok(mut file) = File::open(path) else { return Vec::new() };
        file.seek(SeekFrom::Start(self.offset)).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        self.offset += read.len() as u64;
        let mut lines = Vec::new();
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") {
                lines.push(mem::take(&mut self.rest));
            }
        }
        lines
    }

    /// The beginning of a line that has no end.
    pub fn rest(self) -> Vec<u8> {
        self.rest
    }
}
