//! The built-in sinks and runtimes: how each is written in the settings, checked and opened.

use std::{
    fmt,
    path::{self, Path, PathBuf},
    sync::{Arc, LazyLock},
};

use serde_json::{Map, Value};

use crate::{
    camel_case::camel_case,
    db::Sequence,
    host::Host,
    kind::{Given, Kind},
    mux::Updates,
    runtime::{self, OpenRuntime, RuntimeKind},
    sink::{self, Acknowledged, OpenError, OpenSink, SinkKind},
};

/// Why a path is rejected that begins with `~/`.
pub const HOME: &str =
    "a path cannot begin with ~/ here, which only a shell replaces: write the home directory out";

/// A kind, and what it opens.
#[derive(Clone, Copy)]
enum Role {
    Sink(&'static SinkKind),
    Runtime(&'static RuntimeKind),
}

impl Role {
    fn kind(self) -> &'static Kind {
        match self {
            Self::Sink(sink) => &sink.kind,
            Self::Runtime(runtime) => &runtime.kind,
        }
    }
}

/// All kinds. A new one gets its own file, and one row in its module.
fn roles() -> impl Iterator<Item = Role> {
    let runtimes = runtime::KINDS.iter().copied().map(Role::Runtime);
    sink::KINDS.iter().copied().map(Role::Sink).chain(runtimes)
}

fn kinds() -> impl Iterator<Item = &'static Kind> {
    roles().map(Role::kind)
}

/// A built-in sink or runtime, its target and its options, as `--sink` names them.
#[derive(Clone)]
pub struct Config {
    role: Role,
    given: Given,
}

impl Config {
    /// A sink that is not built in, without a target and without options.
    pub fn of_sink(kind: &'static SinkKind) -> Self {
        Self { role: Role::Sink(kind), given: Given::default() }
    }

    /// A runtime that is not built in, without a target and without options.
    pub fn of_runtime(kind: &'static RuntimeKind) -> Self {
        Self { role: Role::Runtime(kind), given: Given::default() }
    }

    /// Reads `KIND[=TARGET][,OPTION=VALUE…]`, or a JSON object with the fields `kind`, `target` and
    /// an option each.
    ///
    /// The target of a kind with options ends at the first comma. The target of a kind without
    /// options may hold commas, but nothing that looks like an option.
    ///
    /// # Errors
    /// What is wrong with it. Only names are repeated: a target may hold a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('{') {
            return Self::from_object(text);
        }
        let (name, mut rest) = text.split_at(text.find(['=', ',']).unwrap_or(text.len()));
        let mut sink = Self { role: find(name)?, given: Given::default() };
        if let Some(target) = rest.strip_prefix('=') {
            let end = if sink.kind().options.is_empty() { first_option(target) } else { target.find(',') };
            let (target, options) = target.split_at(end.unwrap_or(target.len()));
            sink.given.target = Some(target.to_owned());
            rest = options;
        }
        for option in rest.split(',').skip(1) {
            let is_known = sink.kind().options.iter().any(|known| known.name == option);
            // It may be a part of the target, which is not repeated.
            let none = || "a comma begins an option, NAME=VALUE; in a URL it is written %2C".to_owned();
            let alone = || if is_known { Ok((option, "")) } else { Err(none()) };
            let (name, value) = option.split_once('=').map_or_else(alone, Ok)?;
            sink.set(str::to_owned, name, &value.into())?;
        }
        sink.accepted()
    }

    fn from_object(text: &str) -> Result<Self, String> {
        let fields: Map<String, Value> = serde_json::from_str(text).map_err(
            |_| "this is not a JSON object (in a variable a comma ends it: give --sink or a config file)",
        )?;
        let name = fields.get("kind").and_then(Value::as_str).unwrap_or_default();
        let mut sink = Self { role: find(name)?, given: Given::default() };
        for (field, value) in &fields {
            match &**field {
                "kind" => {}
                "target" => sink.given.target = Some(written(field, value, "")?),
                _ => sink.set(camel_case, field, value)?,
            }
        }
        sink.accepted()
    }

    /// Sets an option, whose name is spelled in this way.
    fn set(&mut self, spell: fn(&str) -> String, name: &str, value: &Value) -> Result<(), String> {
        let (kind, shown) = (self.kind(), named(name));
        let Some(option) = kind.options.iter().find(|option| spell(option.name) == name) else {
            let known: Vec<_> = kind.options.iter().map(|option| spell(option.name)).collect();
            return Err(if known.is_empty() {
                let object =
                    r#"a target with a comma before a "=" is given as an object: {"kind": …, "target": …}"#;
                format!("{shown}: {} has no options; {object}", kind.name)
            } else {
                format!("unknown option {shown}; the options of {} are {}", kind.name, known.join(", "))
            });
        };
        let value = written(name, value, option.value)?;
        if value.is_empty() {
            return Err(format!("{shown} needs a value: {name}={}", option.value));
        }
        match self.given.options.insert(option.name, value) {
            Some(_) => Err(format!("{shown} is given twice")),
            None => Ok(()),
        }
    }

    fn accepted(self) -> Result<Self, String> {
        if self.given.target.iter().chain(self.given.options.values()).any(|text| text.starts_with("~/")) {
            return Err(HOME.to_owned());
        }
        (self.kind().accepts)(&self.given)?;
        Ok(self)
    }

    /// Divides the value of an environment variable: a comma separates sinks, unless an option
    /// follows it.
    pub fn split(text: &str) -> Vec<String> {
        let is_option = |part: &str| {
            let name = part.split_once('=').map_or("", |(name, _)| name).trim();
            kinds().flat_map(|kind| kind.options).any(|option| option.name == name)
        };
        let mut sinks: Vec<String> = Vec::new();
        for part in text.split(',') {
            match sinks.last_mut() {
                Some(sink) if is_option(part) => *sink = format!("{sink},{}", part.trim()),
                _ => sinks.push(part.trim().to_owned()),
            }
        }
        sinks
    }

    /// The same with its relative paths below a directory.
    #[must_use]
    pub fn below(mut self, directory: &Path) -> Self {
        let (kind, given) = (self.role.kind(), &mut self.given);
        let anchor = |path: &mut String| *path = directory.join(&*path).to_string_lossy().into_owned();
        if kind.syntax.ends_with("PATH") || kind.syntax.ends_with("PROGRAM") {
            given.target.iter_mut().for_each(anchor);
        }
        for option in kind.options.iter().filter(|option| option.value == "FILE") {
            given.options.get_mut(option.name).into_iter().for_each(anchor);
        }
        self
    }

    /// The same sink with its relative paths below a directory, as text. A text that is invalid
    /// stays as it is.
    pub fn anchored(text: &str, directory: &Path) -> String {
        let Ok(sink) = Self::parse(text) else { return text.to_owned() };
        let Self { role, given } = sink.below(directory);
        let kind = role.kind();
        let target = given.target.map(|target| ("target".to_owned(), target));
        let options = given.options.into_iter().map(|(name, value)| (camel_case(name), value));
        let fields = [("kind".to_owned(), kind.name.to_owned())].into_iter().chain(target).chain(options);
        Value::Object(fields.map(|(name, value)| (name, Value::String(value))).collect()).to_string()
    }

    /// The forms of all sinks, separated by `|`.
    pub fn syntax() -> &'static str {
        static SYNTAX: LazyLock<String> = LazyLock::new(|| {
            let options = |kind: &Kind| if kind.options.is_empty() { "" } else { "[,OPTION=VALUE…]" };
            let forms: Vec<_> = kinds().map(|kind| format!("{}{}", kind.syntax, options(kind))).collect();
            forms.join("|")
        });
        &SYNTAX
    }

    /// The options of all sinks: the sink, `=…` if it has a target, the name, the field in a config file,
    /// the value's syntax, and what it does.
    pub fn options() -> impl Iterator<Item = [String; 6]> {
        let all = kinds().flat_map(|kind| kind.options.iter().map(move |option| (kind, option)));
        all.map(|(kind, option)| {
            let target = if kind.syntax.contains('=') { "=…" } else { "" };
            let field = camel_case(option.name);
            [kind.name, target, option.name, &field, option.value, option.help].map(str::to_owned)
        })
    }

    /// Whether the sink could be opened, as far as that can be known without opening it. It blocks.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub fn check(&self) -> Result<(), OpenError> {
        (self.kind().check)(&self.given, &Host::default())
    }

    /// Whether it is a runtime. Otherwise it is a sink.
    pub fn is_runtime(&self) -> bool {
        matches!(self.role, Role::Runtime(_))
    }

    /// The file that it writes to, however its path is spelled. A sink without a target writes to standard output.
    pub fn output(&self) -> Option<PathBuf> {
        match &self.given.target {
            Some(path) if self.kind().syntax.ends_with("PATH") => path::absolute(path).ok(),
            None if !self.is_runtime() => Some("/dev/stdout".into()),
            _ => None,
        }
    }

    /// Opens the sink and makes its delivery; `None` if it is a runtime. The numbers of a stream that
    /// continues the one of an earlier run are from `sequence`, and `instance` tells its agent from others.
    /// It blocks.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open_sink(
        &self,
        updates: Updates,
        sequence: Sequence,
        instance: &Arc<str>,
        acknowledged: &Acknowledged,
        host: Host,
    ) -> Option<Result<OpenSink, OpenError>> {
        let Role::Sink(sink) = self.role else { return None };
        let (name, acknowledged, instance) = (self.to_string(), acknowledged.clone(), instance.clone());
        Some((sink.open)(
            &self.given,
            sink::Opening { name, instance, updates, sequence, acknowledged, host },
        ))
    }

    /// Makes the runtime and its pod workers; `None` if it is a sink.
    pub fn open_runtime(&self, opening: runtime::Opening) -> Option<OpenRuntime> {
        let Role::Runtime(runtime) = self.role else { return None };
        Some((runtime.open)(&self.given, opening))
    }

    fn kind(&self) -> &'static Kind {
        self.role.kind()
    }
}

/// The value of an object's field as it would stand behind a `=`. YAML takes a `yes` for a boolean.
fn written(field: &str, value: &Value, syntax: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(is_set) if syntax == "BOOL" => Ok(if *is_set { "yes" } else { "no" }.to_owned()),
        _ => Err(format!("{}: expected a string", named(field))),
    }
}

fn find(name: &str) -> Result<Role, String> {
    roles().find(|role| role.kind().name == name).ok_or_else(|| {
        let known: Vec<_> = kinds().map(|kind| kind.syntax.replace('|', ", ")).collect();
        let unknown =
            Some(name).filter(|name| !name.is_empty()).map(|name| format!("unknown sink {}", named(name)));
        let wrong = unknown.as_deref().unwrap_or("kind is missing");
        format!("{wrong}; the sinks are {}", known.join(", "))
    })
}

/// A name in quotes. Something else than a name may hold a secret and is not repeated.
fn named(name: &str) -> String {
    let is_name = name.len() <= 32 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if is_name { format!("{name:?}") } else { "(not a name)".to_owned() }
}

/// Where the first `,NAME=` begins.
fn first_option(text: &str) -> Option<usize> {
    text.match_indices(',').map(|(at, _)| at).find(|at| {
        let name = text[at + 1..].split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    })
}

impl fmt::Display for Config {
    /// Its name: the kind, and the target without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name)?;
        self.given.target.iter().try_for_each(|target| write!(f, "={}", (self.kind().shown)(target)))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({self})")
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        (self.kind().name, &self.given) == (other.kind().name, &other.given)
    }
}

impl Eq for Config {}
