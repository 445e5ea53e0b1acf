//! The flags that `apply` and `delete` share, and the manifests that `-f` names: how they are found,
//! read and scanned for names.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use clap::{ValueEnum, ValueHint};
use http::Method;
use rustix::io::Errno;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{
    connection::{Connection, with_query},
    failure::Failure,
    terminal::{Escaped, print_error},
};
use crate::{
    host::Disk,
    manifest::{MAX_MANIFEST, yaml},
};

/// The extensions of the files that are read in a directory.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// The flags that name manifests.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// A manifest, a directory of *.json, *.yaml and *.yml files (hidden ones, too), or - for standard input; may
    /// be repeated
    #[arg(short = 'f', long = "filename", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(super) files: Vec<PathBuf>,

    /// Read directories recursively
    #[arg(short = 'R', long, requires = "files")]
    pub(super) recursive: bool,
}

impl FileArgs {
    /// Lists the manifests in the order of the arguments, those of a directory by name.
    /// Nothing is opened.
    pub(super) fn find(&self) -> Result<Vec<PathBuf>, anyhow::Error> {
        let mut found = Vec::new();
        check_stdin(&self.files)?;
        for path in &self.files {
            let context = || path.display().to_string();
            if is_url(path) {
                let url = path.display();
                return Err(anyhow!("{url}: cannot fetch a URL: try curl -L {url} | podmux … -f -"));
            }
            let kind = || fs::metadata(path).map_err(|error| anyhow!(describe(&error))).with_context(context);
            if is_stdin(path) || !kind()?.is_dir() {
                found.push(path.clone());
                continue;
            }
            let before = found.len();
            walk(path, self.recursive, &mut found).with_context(context)?;
            if found.len() == before {
                return Err(anyhow!("the directory has no *.json, *.yaml or *.yml files"))
                    .with_context(context);
            }
        }
        Ok(found)
    }
}

/// Whether the agent changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// Make the changes
    None,
    /// Let the agent check the request without making the changes
    Server,
    /// Is not possible, and the error says what is
    #[value(hide = true)]
    Client,
}

impl DryRun {
    /// Rejects a dry run without the agent.
    pub(super) fn check(self) -> Result<(), Failure> {
        match self {
            Self::Client => Err(Failure::Refused(anyhow!(
                "--dry-run=client: a dry run asks the agent: use --dry-run=server, or podmux validate to check manifests without it"
            ))),
            Self::None | Self::Server => Ok(()),
        }
    }

    /// The query parameter.
    pub(super) fn query(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Server).then_some(("dryRun", "All"))
    }

    /// The end of each result line.
    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::None | Self::Client => "",
            Self::Server => " (server dry run)",
        }
    }
}

fn walk(directory: &Path, recursive: bool, found: &mut Vec<PathBuf>) -> Result<(), anyhow::Error> {
    let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(directory).and_then(Iterator::collect);
    let mut entries = entries.map_err(|error| anyhow!(describe(&error)))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // A symbolic link to a directory is not followed: it may lead to a parent.
        if entry.file_type().map_err(|error| anyhow!(describe(&error)))?.is_dir() {
            if recursive {
                walk(&path, recursive, found).with_context(|| path.display().to_string())?;
            }
        } else if !path.is_dir() && has_extension(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether a file in a directory has the extension of a manifest.
pub(super) fn has_extension(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|extension| EXTENSIONS.contains(&extension))
}

fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("http://") || text.starts_with("https://"))
}

/// Whether a path stands for standard input.
pub(super) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Rejects paths that name standard input more than once.
pub(super) fn check_stdin(paths: &[PathBuf]) -> Result<(), anyhow::Error> {
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(anyhow!("- is given twice, but standard input can be read only once"));
    }
    Ok(())
}

/// The name of a manifest in messages; kubectl's `STDIN` for standard input.
pub(super) fn display_name(path: &Path) -> String {
    if is_stdin(path) { "STDIN".to_owned() } else { path.display().to_string() }
}

/// Reads a manifest.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, anyhow::Error> {
    let read = if is_stdin(path) { read_stdin() } else { Disk::default().read(path, MAX_MANIFEST as u64) };
    read.map_err(|error| anyhow!(describe(&error)))
}

/// Reads standard input. Its errors are those of [`Disk::read`].
pub(super) fn read_stdin() -> io::Result<Vec<u8>> {
    read_stream(io::stdin().lock())
}

/// Reads a stream to its end. Its errors are those of [`Disk::read`].
pub(super) fn read_stream(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    stream.take(MAX_MANIFEST as u64 + 1).read_to_end(&mut text)?;
    if text.len() > MAX_MANIFEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// Rejects a command without manifests.
pub(super) fn check_given(args: &FileArgs) -> Result<(), Failure> {
    if args.files.is_empty() {
        return Err(Failure::Refused(anyhow!("no manifest: give -f PATH, or -f - for standard input")));
    }
    Ok(())
}

/// Reads a manifest, which is sent as it is, and its media type. Its pods have this namespace or none.
fn to_send(path: &Path, namespace: Option<&str>) -> Result<(&'static str, Bytes), anyhow::Error> {
    let text = read(path)?;
    namespace.map(|namespace| check_namespace(&text, namespace)).transpose()?;
    // Text that only resembles JSON, like `{a: 1}`, is YAML.
    let media_type = match serde_json::from_slice::<IgnoredAny>(&text) {
        Ok(_) => "application/json",
        Err(_) => "application/yaml",
    };
    Ok((media_type, text.into()))
}

/// Sends a manifest with these options. What `get` printed can be applied again: the UID and the version that it has
/// are no preconditions. Returns the items of the answer; none if it could not be sent or was rejected,
/// which is printed.
pub(super) async fn send<'a>(
    connection: &Connection,
    path: &Path,
    namespace: Option<&'a str>,
    options: impl IntoIterator<Item = (&'a str, &'a str)>,
    doing: &str,
) -> Result<Option<Vec<Value>>, Failure> {
    // It is empty in scripts with a variable that is not set.
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    let body = match to_send(path, namespace) {
        Ok(body) => body,
        Err(error) => {
            print_unusable(path, &error);
            return Ok(None);
        }
    };
    let namespace = namespace.map(|namespace| ("namespace", namespace));
    let query = [("ignorePreconditions", "true")].into_iter().chain(namespace).chain(options);
    let query: Vec<_> = query.collect();
    match connection.request(Method::POST, &with_query("/pods", &query), Some(body)).await {
        Ok(mut written) => match written["items"].take() {
            Value::Array(items) => Ok(Some(items)),
            _ => Err(Failure::Failed(anyhow!("the response has no items (is this a podmux agent?)"))),
        },
        Err(failure) => {
            let name = display_name(path);
            failure.print_server_error(Some(&format!("error when {doing} \"{name}\"")))?;
            Ok(None)
        }
    }
}

/// Prints why a manifest cannot be used.
pub(super) fn print_unusable(path: &Path, error: &anyhow::Error) {
    print_error(Escaped(&format!("podmux: {}: {error:#}", display_name(path))));
}

/// An error of a manifest's file, without its number.
pub(super) fn describe(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return format!("too large: a manifest has at most {MAX_MANIFEST} bytes; split it");
    }
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    match error.kind() {
        io::ErrorKind::NotFound => format!("{text}; is the path right?"),
        io::ErrorKind::PermissionDenied => format!("{text}; correct its permissions, or become another user"),
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            format!("{text}; the links lead in a circle: remove or correct them")
        }
        _ => text.to_owned(),
    }
}

/// The namespaces, if they are set, and names of the pods in a manifest. Nothing else is checked:
/// a manifest of pods to delete need not be valid.
pub(super) fn references(text: &[u8]) -> Result<Vec<(Option<String>, String)>, anyhow::Error> {
    let mut documents = documents(text)?;
    let pods = pods(&mut documents)?;
    if pods.is_empty() {
        return Err(anyhow!("no pod in it: a Pod, a PodList or a List is expected"));
    }
    pods.iter().map(|pod| reference(pod)).collect()
}

/// Rejects a manifest with a pod of another namespace. A manifest that cannot be decoded is
/// left to the server, which has the better error.
pub(super) fn check_namespace(text: &[u8], wanted: &str) -> Result<(), anyhow::Error> {
    let mut documents = documents(text).unwrap_or_default();
    let pods = pods(&mut documents).unwrap_or_default();
    let mut namespaces = pods.iter().filter_map(|pod| pod["metadata"]["namespace"].as_str());
    match namespaces.find(|namespace| !namespace.is_empty() && *namespace != wanted) {
        Some(other) => Err(anyhow!(
            "a pod in it has the namespace {other:?}, not {wanted:?}: omit -n, or change the manifest"
        )),
        None => Ok(()),
    }
}

/// The documents of a manifest.
fn documents(text: &[u8]) -> Result<Vec<Value>, anyhow::Error> {
    let text = str::from_utf8(text).map_err(|_| anyhow!("not UTF-8: save the file in this encoding"))?;
    yaml::values(text).map_err(|problem| anyhow!("{problem}"))
}

/// The pods of a manifest's documents, not validated.
fn pods(documents: &mut [Value]) -> Result<Vec<&mut Value>, anyhow::Error> {
    let mut pods = Vec::new();
    for document in documents {
        match document["kind"].as_str().unwrap_or_default() {
            "Pod" => pods.push(document),
            "List" | "PodList" => {
                let Some(Value::Array(items)) = document.get_mut("items") else { continue };
                let mut kinds = items.iter().filter_map(|item| item["kind"].as_str());
                if let Some(kind) = kinds.find(|kind| *kind != "Pod") {
                    return Err(anyhow!("a {kind} in it; Pod is expected"));
                }
                pods.extend(items);
            }
            "" => return Err(anyhow!("kind is not set: a Pod, a PodList or a List is expected")),
            kind => return Err(anyhow!("a {kind} in it; a Pod, a PodList or a List is expected")),
        }
    }
    Ok(pods)
}

fn reference(pod: &Value) -> Result<(Option<String>, String), anyhow::Error> {
    let text =
        |field: &str| pod["metadata"][field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let name = text("name").ok_or_else(|| anyhow!("metadata.name is not set in one of its pods"))?;
    Ok((text("namespace"), name))
}
