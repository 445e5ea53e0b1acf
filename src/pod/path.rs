//! The path of a field in a manifest.

use std::fmt;

/// The most bytes of a name that are shown. An API server shows as much of a warning.
const LONGEST_NAME: usize = 4_096;

/// The path to a value in a manifest, as a list on the stack.
///
/// `Display` writes it as the API does: `spec.containers[0].name`, `metadata.labels[app]`.
#[derive(Clone, Copy, Debug)]
pub struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    step: Step<'a>,
    is_shown: bool,
}

/// A step of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
    /// A step that only the API's path has, not the text.
    Word(&'a str),
}

impl FieldPath<'static> {
    /// The path to the whole document.
    pub const ROOT: Self = Self { parent: None, step: Step::Root, is_shown: false };
}

impl<'a> FieldPath<'a> {
    fn join(&'a self, step: Step<'a>) -> Self {
        Self { parent: Some(self), step, is_shown: true }
    }

    /// The path to a field of this value.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Self {
        self.join(Step::Field(name))
    }

    /// The path to an item of this list, counted from 0.
    #[must_use]
    pub fn index(&'a self, index: usize) -> Self {
        self.join(Step::Index(index))
    }

    /// The path to the value of a key in this map.
    #[must_use]
    pub fn key(&'a self, key: &'a str) -> Self {
        self.join(Step::Key(key))
    }

    /// The same place with one more step, which only the API's path has.
    #[must_use]
    pub fn named(&'a self, word: &'a str) -> Self {
        self.join(Step::Word(word))
    }

    /// The same place without showing its last step, which the API's path does not have.
    #[must_use]
    pub fn unnamed(self) -> Self {
        Self { is_shown: false, ..self }
    }

    /// The path of the value that contains this one; none for the root.
    pub(crate) fn parent(&self) -> Option<&'a FieldPath<'a>> {
        self.parent
    }

    /// The last step.
    pub(crate) fn step(&self) -> Step<'a> {
        self.step
    }

    /// Writes the path. Returns whether it wrote anything.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let inner = match self.parent {
            Some(parent) => parent.write(f)?,
            None => false,
        };
        if !self.is_shown {
            return Ok(inner);
        }
        match self.step {
            Step::Root => {}
            Step::Field(name) | Step::Word(name) => {
                write!(f, "{}{}", if inner { "." } else { "" }, shown(name))?;
            }
            Step::Index(index) => write!(f, "[{index}]")?,
            Step::Key(key) => write!(f, "[{}]", shown(key))?,
        }
        Ok(true)
    }
}

/// A name, or the beginning of one that is too long.
fn shown(name: &str) -> String {
    let begin = &name[..name.floor_char_boundary(LONGEST_NAME)];
    begin.escape_debug().to_string() + if begin.len() < name.len() { "…" } else { "" }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f).map(drop)
    }
}
