//! The `--config` file: podmux's own form, or the kubelet's of which a little is used.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use serde_json::Value;

use super::{Key, Place, SettingsError, api::IN_CLUSTER};
use crate::manifest::yaml::{self, RootField};

/// The largest config file that is read, in bytes: a thousand times a usual one.
const MAX: u64 = 1024 * 1024;

const OWN_KIND: &str = "PodmuxConfiguration";
const OWN_VERSION: &str = "podmux/v1";
const KUBELET_KIND: &str = "KubeletConfiguration";
const KUBELET_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// What a config file says.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) said: BTreeMap<Key, (Place, Vec<String>)>,
    pub(super) warnings: Vec<String>,
}

/// Reads a config file.
///
/// # Errors
/// If it cannot be read, is no YAML or JSON, or says what cannot be used.
pub(super) fn read(path: &Path) -> Result<ConfigFile, SettingsError> {
    let failed = |error| SettingsError::Config { path: path.to_owned(), error };
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(MAX + 1).read_to_end(&mut text)).map_err(failed)?;
    if text.len() as u64 > MAX {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
    }
    parse(path, &text)
}

fn parse(path: &Path, text: &[u8]) -> Result<ConfigFile, SettingsError> {
    let text =
        std::str::from_utf8(text).map_err(|_| refuse(path, None, None, "not UTF-8 text".to_owned()))?;
    let fields =
        yaml::fields(text).map_err(|problem| refuse(path, problem.position, None, problem.detail))?;
    let find = |name: &str| fields.iter().find(|field| field.name == name);
    let text_of = |name: &str| find(name).and_then(|field| field.value.as_str());
    let fault = |name: &str, problem: String| {
        refuse(path, find(name).map(|field| field.position), Some(name), problem)
    };
    let (version, form): (_, fn(&Path, &[RootField]) -> _) = match text_of("kind") {
        Some(KUBELET_KIND) => (KUBELET_VERSION, kubelet),
        Some(OWN_KIND) => (OWN_VERSION, own),
        None if find("kind").is_none() => (OWN_VERSION, own),
        _ => return Err(fault("kind", format!("expected {OWN_KIND} (or no kind at all) or {KUBELET_KIND}"))),
    };
    let optional = version == OWN_VERSION && find("apiVersion").is_none();
    if !optional && text_of("apiVersion") != Some(version) {
        return Err(fault("apiVersion", format!("expected {version}")));
    }
    form(path, &fields)
}

/// podmux's own form: every field is a setting.
fn own(path: &Path, fields: &[RootField]) -> Result<ConfigFile, SettingsError> {
    let mut file = ConfigFile::default();
    for field in fields {
        if let Some((line, _)) = field.earlier {
            return Err(refuse(
                path,
                Some(field.position),
                Some(&field.name),
                format!("said before, in line {line}"),
            ));
        }
        if matches!(field.name.as_str(), "kind" | "apiVersion") {
            continue;
        }
        let Some(key) = Key::ALL.into_iter().find(|key| key.field() == field.name) else {
            return Err(refuse(path, Some(field.position), Some(&field.name), unknown(&field.name)));
        };
        if let Some(values) = values(path, key, field)? {
            file.said.insert(key, (place(path, field), values));
        }
    }
    Ok(file)
}

fn unknown(name: &str) -> String {
    if matches!(name, "staticPodPath" | "staticPodURL") {
        return format!(
            "belongs to a kubelet's configuration: say kind: {KUBELET_KIND}, or podManifestPath and manifestUrl"
        );
    }
    let fields = Key::ALL.map(Key::field);
    match fields.iter().find(|field| field.eq_ignore_ascii_case(name)) {
        Some(field) => format!("unknown field; it is spelled {field}"),
        None => format!("unknown field; the fields are {}", fields.join(", ")),
    }
}

/// The kubelet's form: what concerns its pod config is used, the rest is another program's business.
fn kubelet(path: &Path, fields: &[RootField]) -> Result<ConfigFile, SettingsError> {
    let mut file = ConfigFile::default();
    let mut ignored: usize = 0;
    for field in fields {
        let key = match field.name.as_str() {
            "staticPodPath" => Key::PodManifestPath,
            "fileCheckFrequency" => Key::FileCheckFrequency,
            "staticPodURL" => Key::ManifestUrl,
            "staticPodURLHeader" => Key::ManifestUrlHeader,
            "httpCheckFrequency" => Key::HttpCheckFrequency,
            "apiVersion" | "kind" => continue,
            _ => {
                ignored += 1;
                continue;
            }
        };
        // The zero value is how the kubelet says that its default holds.
        let values =
            values(path, key, field)?.filter(|values| !matches!(values.concat().as_str(), "" | "0" | "0s"));
        if let Some(values) = values {
            file.said.insert(key, (place(path, field), values));
        }
    }
    if ignored > 0 {
        let path = path.display();
        file.warnings.push(format!(
            "{path}: of a KubeletConfiguration staticPodPath, staticPodURL, staticPodURLHeader, fileCheckFrequency and httpCheckFrequency are used; the rest, {ignored} fields here, is ignored"
        ));
    }
    Ok(file)
}

/// The values of a field as text; `None` if it is null.
fn values(path: &Path, key: Key, field: &RootField) -> Result<Option<Vec<String>>, SettingsError> {
    let wrong = |expected: &str, found: &Value| {
        let found = match found {
            Value::Null => "null",
            Value::Bool(_) => "a boolean; put it in quotes",
            Value::Number(_) => "a number; put it in quotes",
            Value::String(_) => "a text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a mapping",
        };
        refuse(
            path,
            Some(field.position),
            Some(&field.name),
            format!("{expected} is expected, and this is {found}"),
        )
    };
    let texts = |items: &[Value], expected: &str| {
        let text = |item: &Value| item.as_str().map(str::to_owned).ok_or_else(|| wrong(expected, item));
        items.iter().map(text).collect::<Result<Vec<_>, _>>()
    };
    let values = match (&field.value, key) {
        (Value::Null, _) => return Ok(None),
        (Value::String(text), _) => vec![text.clone()],
        // What the reader says about a number without a unit is clearer than its type.
        (
            Value::Number(number),
            Key::Verbose | Key::FileCheckFrequency | Key::HttpCheckFrequency | Key::ShutdownGrace,
        ) => vec![number.to_string()],
        // As the kubelet has headers: each name with its values.
        (Value::Object(headers), Key::ManifestUrlHeader) => {
            let expected = "a map of headers to lists of texts";
            let mut lines = Vec::new();
            for (name, values) in headers {
                let Value::Array(values) = values else { return Err(wrong(expected, values)) };
                lines.extend(texts(values, expected)?.iter().map(|value| format!("{name}: {value}")));
            }
            lines
        }
        (Value::Array(items), key) if key.separator().is_some() => texts(items, "a list of texts")?,
        (other, key) if key.separator().is_some() => return Err(wrong("a text or a list of texts", other)),
        (other, Key::Verbose) => return Err(wrong("a number", other)),
        (other, _) => return Err(wrong("a text", other)),
    };
    // An empty list says as little as null.
    let values: Vec<_> = values.into_iter().map(|text| anchored(path, key, text)).collect();
    Ok(Some(values).filter(|values| !values.is_empty()))
}

/// A path in a config file is relative to the file's directory, as the kubelet has it.
fn anchored(file: &Path, key: Key, text: String) -> String {
    let Some(base) = file.parent() else { return text };
    let join = |path: &str| base.join(path).to_string_lossy().into_owned();
    match key {
        key if key.is_path() && !text.is_empty() => join(&text),
        Key::Kubeconfig if !matches!(text.as_str(), "" | IN_CLUSTER) => join(&text),
        Key::StateDir if !matches!(text.as_str(), "" | "none") => join(&text),
        Key::Listen => match text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            Some(path) => format!("unix:{}", join(path)),
            None => text,
        },
        Key::Sink => match text.strip_prefix("jsonl=").filter(|path| !path.is_empty()) {
            Some(path) => format!("jsonl={}", join(path)),
            None => text,
        },
        _ => text,
    }
}

fn place(path: &Path, field: &RootField) -> Place {
    Place::File { path: path.to_owned(), position: Some(field.position), field: Some(field.name.clone()) }
}

fn refuse(path: &Path, position: Option<(u32, u32)>, field: Option<&str>, problem: String) -> SettingsError {
    let place = Place::File { path: path.to_owned(), position, field: field.map(str::to_owned) };
    SettingsError::Value { place, problem }
}
