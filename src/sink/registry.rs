//! The built-in sinks: how each is written in the settings, checked and opened.

use std::{fmt, sync::LazyLock};

use super::{
    delivery::Acknowledged,
    jsonl,
    kind::{Kind, OpenError, OpenSink, Opening},
};
use crate::{db::Sequence, host::Host, mux::Updates};

/// The built-in sinks. A new one gets its own file and one row here.
const KINDS: &[&Kind] = &[&jsonl::KIND];

/// A built-in sink and its target, as `--sink` names them.
#[derive(Clone)]
pub struct Config {
    kind: &'static Kind,
    target: Option<String>,
}

impl Config {
    /// Reads `KIND` or `KIND=TARGET`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, target) = text.split_once('=').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            return Err(format!(
                "unknown sink {text:?}; the sinks are {}",
                Self::syntax().replace('|', ", ")
            ));
        };
        (kind.accepts)(target)?;
        Ok(Self { kind, target: target.map(str::to_owned) })
    }

    /// The forms of all sinks, separated by `|`.
    pub fn syntax() -> &'static str {
        static SYNTAX: LazyLock<String> =
            LazyLock::new(|| KINDS.iter().map(|kind| kind.syntax).collect::<Vec<_>>().join("|"));
        &SYNTAX
    }

    /// Whether the sink could be opened, as far as that can be known without opening it. It blocks.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub fn check(&self) -> Result<(), OpenError> {
        (self.kind.check)(self.target.as_deref())
    }

    /// Opens the sink and makes its delivery. The numbers of a stream that continues the one of an
    /// earlier run are from `sequence`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(
        &self,
        updates: Updates,
        sequence: Sequence,
        acknowledged: &Acknowledged,
        host: Host,
    ) -> Result<OpenSink, OpenError> {
        let (name, acknowledged) = (self.to_string(), acknowledged.clone());
        let opening = Opening { name, updates, sequence, acknowledged, host };
        (self.kind.open)(self.target.as_deref(), opening)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        self.target.iter().try_for_each(|target| write!(f, "={target}"))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({self})")
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        (self.kind.name, &self.target) == (other.kind.name, &other.target)
    }
}

impl Eq for Config {}
