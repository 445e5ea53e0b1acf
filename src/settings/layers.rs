//! The layers that settings come from: command line, environment and config file, all as text.

use std::{collections::BTreeMap, fmt};

use clap::{
    ArgMatches, FromArgMatches as _,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{
    error::SettingsError,
    flags::{self, Flags, Setting},
    values::MAX_VERBOSITY,
};
use crate::{registry, server::Passed};

/// The environment variables by name, as they are passed in.
pub type Environment = BTreeMap<String, String>;

/// The variable with the address of the agent for `get`, `apply` and `delete`; the agent ignores it.
pub const SERVER_VARIABLE: &str = "PODMUX_SERVER";

/// The command line of `podmux run` and the sockets that systemd passed. It does not change while
/// the process runs.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The values by flag.
    texts: BTreeMap<String, Vec<String>>,
    /// The sockets that systemd passed.
    pub passed: Vec<Passed>,
    /// Whether systemd may pass other sockets to the agent that gets these settings: then a
    /// missing source of pods is not an error.
    pub may_be_passed: bool,
    /// The sink if none is given, in place of that of the flag: standard output is a terminal.
    pub terminal_sink: Option<registry::Config>,
}

impl CommandLine {
    /// The flags that were given.
    pub fn of(matches: &ArgMatches) -> Self {
        let mut command_line = Self::default();
        for arg in flags::command().get_arguments() {
            let (id, flag) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let texts = if arg.get_id() == "verbose" {
                vec![matches.get_count(id).min(MAX_VERBOSITY).to_string()]
            } else {
                let values = matches.get_raw(id).into_iter().flatten();
                values.map(|value| value.to_string_lossy().into_owned()).collect()
            };
            command_line.texts.insert(flag.to_owned(), texts);
        }
        command_line
    }

    /// The same with one more flag, without its dashes.
    #[must_use]
    pub fn with(mut self, flag: &str, value: &str) -> Self {
        self.texts.entry(flag.to_owned()).or_default().push(value.to_owned());
        self
    }
}

impl fmt::Debug for CommandLine {
    /// Without the values: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandLine").field("flags", &self.texts.keys()).finish_non_exhaustive()
    }
}

/// The values of a setting, and where they were given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// `--flag`, `PODMUX_VARIABLE` or `FILE:LINE:COLUMN: field`.
    pub(super) place: String,
    pub(super) texts: Vec<String>,
    /// Whether the config file is a kubelet's.
    pub(super) is_of_kubelet: bool,
}

/// The values of each setting from the first layer that has any.
pub(super) struct Layers(Vec<(String, Given)>);

impl Layers {
    /// Merges the layers. `file` holds the values of the config file by flag.
    pub(super) fn new(
        command_line: &CommandLine,
        environment: &Environment,
        mut file: BTreeMap<String, Given>,
    ) -> Self {
        let given = |arg: &clap::Arg| {
            let setting = Setting::of(arg);
            let given = given(&setting, command_line, environment).or_else(|| file.remove(&setting.flag))?;
            Some((setting.flag, given))
        };
        Self(flags::command().get_arguments().filter_map(given).collect())
    }

    /// Only one of the settings.
    pub(super) fn only(mut self, flag: &str) -> Self {
        self.0.retain(|(given, _)| given == flag);
        self
    }

    /// The typed values.
    pub(super) fn parse(&self) -> Result<Flags, SettingsError> {
        let one = |(flag, given): &(String, Given)| {
            given.texts.iter().map(|text| format!("--{flag}={text}")).collect::<Vec<_>>()
        };
        let command = flags::command().mut_args(flags::undelimited);
        let matches = command.try_get_matches_from(self.0.iter().flat_map(one));
        matches.and_then(|matches| Flags::from_arg_matches(&matches)).map_err(|error| self.error(&error))
    }

    /// An error about a setting.
    pub(super) fn invalid(&self, flag: &str, problem: impl Into<String>) -> SettingsError {
        let place = self.get(flag).map_or_else(|| format!("--{flag}"), |given| given.place.clone());
        SettingsError::Value { place, problem: problem.into() }
    }

    pub(super) fn get(&self, flag: &str) -> Option<&Given> {
        self.0.iter().find_map(|(name, given)| (name == flag).then_some(given))
    }

    fn error(&self, error: &clap::Error) -> SettingsError {
        let Some(InvalidValue { flag, value, problem }) = InvalidValue::of(error) else {
            return SettingsError::Value { place: "settings".to_owned(), problem: error.kind().to_string() };
        };
        let texts = self.get(&flag).map_or(&[][..], |given| &given.texts);
        let number = texts.iter().position(|text| *text == value).filter(|_| texts.len() > 1);
        let number = number.map(|at| format!("value {}: ", at + 1)).unwrap_or_default();
        self.invalid(&flag, format!("{number}{problem}"))
    }
}

/// A value that clap rejects, without repeating it where it may be a secret.
pub(crate) struct InvalidValue {
    /// The flag without its dashes.
    pub(crate) flag: String,
    value: String,
    /// What is wrong with the value.
    pub(crate) problem: String,
}

impl InvalidValue {
    /// The rejected value, if that is what the error is about.
    pub(crate) fn of(error: &clap::Error) -> Option<Self> {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            _ => None,
        };
        let (arg, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
        let problem = match (error.kind(), error.get(ContextKind::ValidValue)) {
            (ErrorKind::ValueValidation, _) => std::error::Error::source(error)?.to_string(),
            (ErrorKind::InvalidValue, Some(ContextValue::Strings(words))) => {
                match (&*value, words.join(", ")) {
                    ("", words) if words.is_empty() => "a value is required".to_owned(),
                    ("", words) => format!("a value is required: one of {words}"),
                    (value, words) => format!("{value:?} is not one of {words}"),
                }
            }
            _ => return None,
        };
        let flag = arg.trim_start_matches('-').split([' ', '[']).next()?.to_owned();
        Some(Self { flag, value, problem })
    }
}

/// The values of a setting from the command line or the environment.
pub(super) fn given(
    setting: &Setting,
    command_line: &CommandLine,
    environment: &Environment,
) -> Option<Given> {
    if let Some(texts) = command_line.texts.get(&setting.flag) {
        let place = format!("--{}", setting.flag);
        return Some(Given { place, texts: texts.clone(), is_of_kubelet: false });
    }
    // An EnvironmentFile of systemd cannot leave a variable out: an empty one counts as not set.
    let value = environment.get(&setting.variable).filter(|value| !value.is_empty())?;
    let texts = match setting.separator {
        _ if setting.has_options() => registry::Config::split(value.trim_end()),
        // A blank line is no header.
        Some('\n') => value.lines().map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect(),
        Some(separator) => value.trim_end().split(separator).map(|one| one.trim().to_owned()).collect(),
        None => vec![value.clone()],
    };
    Some(Given { place: setting.variable.clone(), texts, is_of_kubelet: false })
}
