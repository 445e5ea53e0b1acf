//! Standard output, and objects as kubectl prints them.

use std::{
    future::pending,
    io::{self, BufWriter, IsTerminal as _, StdoutLock, Write},
    os::fd::AsFd as _,
};

use jiff::Timestamp;
use serde::Serialize as _;
use serde_json::{Value, json};
use tokio::{io::Interest, net::unix::pipe::Sender};

use super::{failure::Failure, yaml};
use crate::escaped::for_a_terminal;
pub(super) use crate::pod_columns::{items, text};

/// Waits until the reader of standard output has closed the pipe; for ever if it is a file.
pub(super) async fn closed() {
    let out = io::stdout().as_fd().try_clone_to_owned();
    match out.and_then(Sender::from_owned_fd_unchecked) {
        Ok(out) => drop(out.ready(Interest::ERROR).await),
        Err(_) => pending().await,
    }
}

/// Standard output. When its reader has closed the pipe (`| head`), output is discarded:
/// the command continues, because its exit code still has to be right.
pub(super) struct Output {
    out: Option<BufWriter<StdoutLock<'static>>>,
    is_terminal: bool,
}

impl Output {
    pub(super) fn new() -> Self {
        let out = io::stdout();
        Self { is_terminal: out.is_terminal(), out: Some(BufWriter::new(out.lock())) }
    }

    /// Whether the reader has closed the pipe.
    pub(super) fn is_closed(&self) -> bool {
        self.out.is_none()
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let bytes = if self.is_terminal { for_a_terminal(bytes) } else { bytes.into() };
        self.attempt(|out| out.write_all(&bytes))
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.attempt(Write::flush)
    }

    /// Writes a text and flushes it.
    pub(super) fn print(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text.as_bytes())?;
        self.flush()
    }

    fn attempt(
        &mut self,
        write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let Some(out) = &mut self.out else { return Ok(()) };
        match write(out) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                // Taken apart so that dropping it does not write the buffer again.
                self.out.take().map(BufWriter::into_parts);
                Ok(())
            }
            Err(error) => Err(unwritable(error)),
        }
    }
}

/// Standard output cannot be written.
pub(super) fn unwritable(error: io::Error) -> Failure {
    Failure::Failed(anyhow::Error::new(error).context("cannot write to standard output"))
}

/// An object as a document of YAML, or of JSON with kubectl's indentation.
pub(super) fn document(object: &Value, is_yaml: bool) -> Result<String, Failure> {
    if is_yaml { yaml::document(object).map_err(Failure::failed) } else { pretty(object) }
}

fn pretty(object: &Value) -> Result<String, Failure> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    object.serialize(&mut serializer).map_err(Failure::failed)?;
    text.push(b'\n');
    String::from_utf8(text).map_err(Failure::failed)
}

/// A number of an object as text; empty if it is missing.
pub(super) fn number(value: &Value) -> String {
    value.as_number().map(ToString::to_string).unwrap_or_default()
}

/// The texts of a map as `name=value`, such as labels; none if it is missing.
pub(super) fn pairs(map: &Value) -> impl Iterator<Item = String> {
    map.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={}", text(value)))
}

/// The first of these texts, and how many more there are.
pub(super) fn first_of(texts: impl ExactSizeIterator<Item = String>, most: usize) -> Vec<String> {
    let more = texts.len().saturating_sub(most);
    let more = (more > 0).then(|| format!("and {more} more"));
    texts.take(most).chain(more).collect()
}

/// A time of an object.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Several objects as one `List`, as kubectl prints them.
pub(super) fn list(items: Vec<Value>, resource_version: &str) -> Value {
    let mut list = json!({
        "apiVersion": "v1",
        "kind": "List",
        "metadata": { "resourceVersion": resource_version },
    });
    list["items"] = items.into();
    list
}
