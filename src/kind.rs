//! How a kind of sink or of runtime is written in the settings.

use std::{collections::BTreeMap, error::Error, io, path::PathBuf};

use crate::host::Host;

/// Why a sink or a runtime cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened for appending.
    #[error("cannot write updates to {} (choose a file that can be created or appended to)", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// Another process or sink has locked the file.
    #[error("cannot write updates to {}: the file is in use by another process or sink (give each a file of its own)", .0.display())]
    InUse(PathBuf),
    /// The path is a named pipe without a reader.
    #[error("the named pipe {} has no reader (start its reader)", .0.display())]
    NoReader(PathBuf),
    /// Stdout cannot be used.
    #[error("cannot write updates to stdout")]
    Stdout(#[source] io::Error),
    /// What a runtime needs cannot be used.
    #[error("cannot run pods with {0}")]
    Program(String, #[source] io::Error),
    /// A file of the sink's options cannot be used.
    #[error("cannot open the sink {0}")]
    Options(String, #[source] Box<dyn Error + Send + Sync>),
}

impl OpenError {
    /// Whether it may pass without a change of the settings: a reader that starts later, another process that ends, or
    /// a disk that is full, read-only or broken.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoReader(_) | Self::InUse(_) => true,
            Self::File(_, error) => is_of_disk(error),
            Self::Stdout(_) | Self::Options(..) | Self::Program(..) => false,
        }
    }
}

/// Whether a disk is full, read-only or broken, which may pass without a change of the settings.
pub(crate) fn is_of_disk(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let disk = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| disk.contains(&code))
}

/// An option of a kind: `,NAME=VALUE` behind its target, or a field of its object.
pub struct KindOption {
    /// `token-file`; the field is `tokenFile`.
    pub name: &'static str,
    /// The syntax of its value. A `FILE` in a config file is relative to that file.
    pub value: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
}

/// The target and the options, as the settings give them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// Behind the `=`.
    pub target: Option<String>,
    /// By name.
    pub options: BTreeMap<&'static str, String>,
}

impl Given {
    /// The path of an option.
    pub(crate) fn path(&self, option: &str) -> Option<PathBuf> {
        self.options.get(option).map(PathBuf::from)
    }
}

/// How a kind of sink or of runtime is written in the settings, and checked.
pub struct Kind {
    /// The first part of its settings: `jsonl`.
    pub name: &'static str,
    /// How it is written without options, the forms separated by `|`: `jsonl|jsonl=PATH`. A `PATH`
    /// or `PROGRAM` in a config file is relative to that file.
    pub syntax: &'static str,
    /// What stands behind the target.
    pub options: &'static [KindOption],
    /// Its target for people: without what may be secret.
    pub shown: fn(target: &str) -> String,
    /// Whether these can be its target and its options. The error repeats nothing that may be secret.
    pub accepts: fn(&Given) -> Result<(), String>,
    /// Whether it could be opened, as far as that can be known without opening it. It blocks.
    pub check: fn(&Given, &Host) -> Result<(), OpenError>,
}
