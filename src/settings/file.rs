//! The `--config` file: podmux's own format, or a KubeletConfiguration of which some fields are used.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::Value;

use super::{
    error::SettingsError,
    flags::{Setting, settings},
    layers::Given,
    values::FREQUENCIES,
};
use crate::{
    duration,
    host::Disk,
    manifest::yaml::{self, Duplicate, RootField},
    registry,
};

/// The largest config file that is read, in bytes: a thousand times a usual one.
const MAX: u64 = 1024 * 1024;

const OWN_KIND: &str = "PodmuxConfiguration";
const OWN_VERSION: &str = "podmux/v1";
const KUBELET_KIND: &str = "KubeletConfiguration";
const KUBELET_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The fields of a KubeletConfiguration that are used, with the flags that they set.
const KUBELET_FIELDS: [(&str, &str); 5] = [
    ("staticPodPath", "pod-manifest-path"),
    ("staticPodURL", "manifest-url"),
    ("staticPodURLHeader", "manifest-url-header"),
    ("fileCheckFrequency", "file-check-frequency"),
    ("httpCheckFrequency", "http-check-frequency"),
];

/// The values of a config file.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    /// The values by flag.
    pub(super) given: BTreeMap<String, Given>,
    pub(super) warnings: Vec<String>,
}

/// Reads a config file.
///
/// # Errors
/// If it cannot be read, is not YAML or JSON, or has an invalid field.
pub(super) fn read(path: &Path, disk: &Disk) -> Result<ConfigFile, SettingsError> {
    let text = disk.read(path, MAX);
    let text = text.map_err(|error| SettingsError::Config { path: path.to_owned(), error })?;
    let file = File { path, settings: settings() };
    let text = std::str::from_utf8(&text).map_err(|_| file.invalid(None, None, "not UTF-8 text"))?;
    file.parse(text)
}

/// Brings a frequency, for which a kubelet has no bounds, within podmux's. Returns a warning if it was not.
fn clamp(given: &mut Given) -> Option<String> {
    let text = given.texts.first_mut()?;
    let wanted = duration::read(text, &(Duration::ZERO..=Duration::MAX)).ok()?;
    let used = wanted.clamp(*FREQUENCIES.start(), *FREQUENCIES.end());
    if used == wanted {
        return None;
    }
    let warning = format!("{}: {text} is out of bounds: {used:?} is used", given.place);
    *text = format!("{used:?}");
    Some(warning)
}

/// A config file that is being read.
struct File<'a> {
    path: &'a Path,
    settings: Vec<Setting>,
}

impl File<'_> {
    fn parse(&self, text: &str) -> Result<ConfigFile, SettingsError> {
        // It is a pipe that is at its end, or a file that was truncated.
        if text.trim_start_matches('\u{feff}').trim().is_empty() {
            return Err(self.invalid(None, None, "the file is empty: write {} into it for the defaults"));
        }
        let fields =
            yaml::fields(text).map_err(|problem| self.invalid(problem.position, None, problem.detail))?;
        let find = |name: &str| fields.iter().find(|field| field.name == name);
        let text_of = |name: &str| find(name).and_then(|field| field.value.as_str());
        let unexpected = |name: &str, expected: String| {
            Err(self.invalid(find(name).map(|field| field.position), Some(name), expected))
        };
        let is_own = match text_of("kind") {
            Some(KUBELET_KIND) => false,
            Some(OWN_KIND) => true,
            None if find("kind").is_none() => true,
            _ => {
                let kinds = format!("expected {OWN_KIND} (or no kind at all) or {KUBELET_KIND}");
                return unexpected("kind", kinds);
            }
        };
        let version = if is_own { OWN_VERSION } else { KUBELET_VERSION };
        let is_optional = is_own && find("apiVersion").is_none();
        if !is_optional && text_of("apiVersion") != Some(version) {
            return unexpected("apiVersion", format!("expected {version}"));
        }
        let fields = fields.iter().filter(|field| !matches!(&*field.name, "kind" | "apiVersion"));
        if is_own { self.own(fields) } else { self.kubelet(fields) }
    }

    /// podmux's own format: each field is a setting.
    fn own<'f>(&self, fields: impl Iterator<Item = &'f RootField>) -> Result<ConfigFile, SettingsError> {
        let mut file = ConfigFile::default();
        for field in fields {
            if let Some(Duplicate { name, position, earlier: (line, _) }) = &field.duplicate {
                let problem = format!("given twice, first in line {line}");
                return Err(self.invalid(Some(*position), Some(name), problem));
            }
            let Some(setting) = self.settings.iter().find(|setting| setting.field == field.name) else {
                return Err(self.about(field, self.unknown(&field.name)));
            };
            if let Some(given) = self.given(setting, field)? {
                file.given.insert(setting.flag.clone(), given);
            }
        }
        Ok(file)
    }

    fn unknown(&self, name: &str) -> String {
        if matches!(name, "staticPodPath" | "staticPodURL") {
            return format!(
                "a field of a kubelet's configuration: add kind: {KUBELET_KIND} and apiVersion: {KUBELET_VERSION}, or use podManifestPath and manifestUrl"
            );
        }
        let fields: Vec<&str> = self.settings.iter().map(|setting| &*setting.field).collect();
        match fields.iter().find(|field| field.eq_ignore_ascii_case(name)) {
            Some(field) => format!("unknown field; it is spelled {field}"),
            None => format!("unknown field; the fields are {}", fields.join(", ")),
        }
    }

    /// The kubelet's format: the fields for its pod manifests are used.
    fn kubelet<'f>(&self, fields: impl Iterator<Item = &'f RootField>) -> Result<ConfigFile, SettingsError> {
        let mut file = ConfigFile::default();
        let mut ignored: usize = 0;
        for field in fields {
            let flag = KUBELET_FIELDS.iter().find(|(name, _)| *name == field.name).map(|(_, flag)| flag);
            let Some(setting) = self.settings.iter().find(|setting| Some(&&*setting.flag) == flag) else {
                ignored += 1;
                continue;
            };
            if let Some(Duplicate { name, position, earlier: (line, _) }) = &field.duplicate {
                // A kubelet starts with the last one, too.
                let place = self.place(Some(*position), Some(name));
                file.warnings.push(format!("{place}: given twice, first in line {line}; this one is used"));
            }
            // The zero value means the default in the kubelet's API.
            let is_zero = |given: &Given| {
                let text = given.texts.concat();
                text.is_empty() || duration::read(&text, &(Duration::ZERO..=Duration::ZERO)).is_ok()
            };
            if let Some(mut given) = self.given(setting, field)?.filter(|given| !is_zero(given)) {
                given.is_of_kubelet = true;
                if setting.value == "DURATION" {
                    file.warnings.extend(clamp(&mut given));
                }
                file.given.insert(setting.flag.clone(), given);
            }
        }
        if ignored > 0 {
            let path = self.path.display();
            let others = if ignored == 1 { "field is".to_owned() } else { format!("{ignored} fields are") };
            file.warnings.push(format!(
                "{path}: of a KubeletConfiguration staticPodPath, staticPodURL, staticPodURLHeader, fileCheckFrequency and httpCheckFrequency are used; the other {others} ignored"
            ));
        }
        Ok(file)
    }

    /// The values of a field; `None` if it is null or an empty list.
    fn given(&self, setting: &Setting, field: &RootField) -> Result<Option<Given>, SettingsError> {
        let wrong = |expected: &str, found: &Value| {
            let (found, is_plain) = match found {
                Value::Null => ("null", false),
                Value::Bool(_) => ("a boolean", true),
                Value::Number(_) => ("a number", true),
                Value::String(_) => ("a string", false),
                Value::Array(_) => ("a list", false),
                Value::Object(_) => ("a map", false),
            };
            let hint = if is_plain && expected.contains("string") { "; put it in quotes" } else { "" };
            self.about(field, format!("expected {expected}, found {found}{hint}"))
        };
        let texts = |items: &[Value], expected: &str| {
            let text = |item: &Value| match item {
                Value::String(text) => Ok(text.clone()),
                Value::Object(_) if setting.has_options() => Ok(item.to_string()),
                other => Err(wrong(expected, other)),
            };
            items.iter().map(text).collect::<Result<Vec<_>, _>>()
        };
        let texts = match &field.value {
            Value::Null => return Ok(None),
            Value::String(text) => vec![text.clone()],
            // The parser's error about a number without a unit is clearer than one about its type.
            Value::Number(number) if matches!(&*setting.value, "DURATION" | "LEVEL" | "NUMBER" | "BYTES") => {
                vec![number.to_string()]
            }
            Value::Bool(value) if setting.value == "BOOL" => vec![value.to_string()],
            // As in the kubelet's configuration: each header with its values.
            Value::Object(headers) if setting.value.contains(": ") => {
                let expected = "a map of headers to lists of strings";
                let mut lines = Vec::new();
                for (name, values) in headers {
                    let Value::Array(values) = values else { return Err(wrong(expected, values)) };
                    lines.extend(texts(values, expected)?.iter().map(|value| format!("{name}: {value}")));
                }
                lines
            }
            Value::Object(_) if setting.has_options() => vec![field.value.to_string()],
            Value::Array(items) if setting.separator.is_some() => texts(items, "a list of strings")?,
            other if setting.separator.is_some() => {
                return Err(wrong("a string or a list of strings", other));
            }
            other if matches!(&*setting.value, "LEVEL" | "NUMBER") => return Err(wrong("a number", other)),
            other if setting.value == "BOOL" => return Err(wrong("a boolean", other)),
            other => return Err(wrong("a string", other)),
        };
        if texts.is_empty() && setting.flag == "listen" {
            // Without a value the agent would listen on the default addresses.
            let problem = "an empty list: write none for no address, or remove the field for the default";
            return Err(self.about(field, problem.to_owned()));
        }
        let texts: Vec<_> = texts.into_iter().map(|text| self.anchored(setting, text)).collect();
        let place = || self.place(Some(field.position), Some(&field.name));
        Ok((!texts.is_empty()).then(|| Given { place: place(), texts, is_of_kubelet: false }))
    }

    /// A path in a config file is relative to the file's directory, as in the kubelet's.
    fn anchored(&self, setting: &Setting, text: String) -> String {
        let forms = || setting.value.split('|');
        let Some(directory) = self.path.parent().filter(|_| forms().all(|form| form != text)) else {
            return text;
        };
        if setting.has_options() {
            return registry::Config::anchored(&text, directory);
        }
        let path = forms().find_map(|form| {
            let prefix = ["PATH", "FILE", "DIR"].iter().find_map(|end| form.strip_suffix(end))?;
            text.strip_prefix(prefix)
                .filter(|path| !path.is_empty() && !path.starts_with("~/"))
                .map(|path| (prefix, path))
        });
        match path {
            Some((prefix, path)) => format!("{prefix}{}", directory.join(path).to_string_lossy()),
            None => text,
        }
    }

    fn about(&self, field: &RootField, problem: String) -> SettingsError {
        self.invalid(Some(field.position), Some(&field.name), problem)
    }

    fn invalid(
        &self,
        position: Option<(u32, u32)>,
        field: Option<&str>,
        problem: impl Into<String>,
    ) -> SettingsError {
        SettingsError::Value { place: self.place(position, field), problem: problem.into() }
    }

    /// `FILE:LINE:COLUMN: field`, without the parts that are not known.
    fn place(&self, position: Option<(u32, u32)>, field: Option<&str>) -> String {
        let position = position.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
        let field = field.map(|field| format!(": {field}")).unwrap_or_default();
        format!("{}{position}{field}", self.path.display())
    }
}
