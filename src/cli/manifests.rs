//! The manifests that `-f` names: found as kubectl finds them, read within a bound, looked at lightly.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use clap::ValueHint;
use serde_json::Value;

use crate::manifest::{MAX_MANIFEST, yaml};

/// What is taken in a directory.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// Which manifests.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// A manifest, a directory of *.json, *.yaml and *.yml, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(super) files: Vec<PathBuf>,

    /// Directories with all that is below them
    #[arg(short = 'R', long, requires = "files")]
    pub(super) recursive: bool,
}

impl FileArgs {
    /// The manifests, in the order of the arguments and in a directory by name.
    /// None is opened yet.
    pub(super) fn find(&self) -> Result<Vec<PathBuf>, anyhow::Error> {
        let mut found = Vec::new();
        for path in &self.files {
            let shown = path.display();
            if is_stdin(path) {
                if found.iter().any(|found: &PathBuf| is_stdin(found)) {
                    return Err(anyhow!("- is given twice, and standard input can be read once"));
                }
                found.push(path.clone());
            } else if is_url(path) {
                return Err(anyhow!(
                    "{shown}: a URL is not fetched here; try curl -L {shown} | podmux … -f -"
                ));
            } else if fs::metadata(path)
                .map_err(|error| plain(&error))
                .with_context(|| shown.to_string())?
                .is_dir()
            {
                let before = found.len();
                walk(path, self.recursive, &mut found).with_context(|| shown.to_string())?;
                if found.len() == before {
                    return Err(anyhow!("{shown}: no manifests in it: *.json, *.yaml and *.yml are taken"));
                }
            } else {
                found.push(path.clone());
            }
        }
        Ok(found)
    }
}

fn walk(directory: &Path, recursive: bool, found: &mut Vec<PathBuf>) -> Result<(), anyhow::Error> {
    let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(directory).and_then(Iterator::collect);
    let mut entries = entries.map_err(|error| plain(&error))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // A link to a directory is not followed: it may lead in a circle.
        if entry.file_type().map_err(|error| plain(&error))?.is_dir() {
            if recursive {
                walk(&path, recursive, found).with_context(|| path.display().to_string())?;
            }
        } else if !path.is_dir()
            && path
                .extension()
                .and_then(OsStr::to_str)
                .is_some_and(|extension| EXTENSIONS.contains(&extension))
        {
            found.push(path);
        }
    }
    Ok(())
}

fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("http://") || text.starts_with("https://"))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A manifest's name for reading: kubectl's `STDIN` for what is piped in.
pub(super) fn shown(path: &Path) -> String {
    if is_stdin(path) { "STDIN".to_owned() } else { path.display().to_string() }
}

/// The bytes of a manifest.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, anyhow::Error> {
    let mut text = Vec::new();
    let bound = MAX_MANIFEST as u64 + 1;
    let read = if is_stdin(path) {
        io::stdin().lock().take(bound).read_to_end(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(bound).read_to_end(&mut text))
    };
    read.map_err(|error| plain(&error))?;
    if text.len() > MAX_MANIFEST {
        return Err(anyhow!("too large: a manifest has {MAX_MANIFEST} bytes at most; split it"));
    }
    Ok(text)
}

/// An I/O error without its number.
fn plain(error: &io::Error) -> anyhow::Error {
    let text = error.to_string();
    anyhow!(text.split(" (os error").next().unwrap_or(&text).to_owned())
}

/// Whose manifest it is: a pod's namespace, if it says one, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// The pods that a manifest names. Nothing else about them is looked at: what
/// is to be deleted need not be valid.
pub(super) fn names(text: &[u8]) -> Result<Vec<Named>, anyhow::Error> {
    let pods = pods(text)?;
    if pods.is_empty() {
        return Err(anyhow!("no pod in it: a Pod, a PodList or a List is expected"));
    }
    pods.iter().map(named).collect()
}

/// Refuses a manifest with a pod of another namespace. One that cannot be read
/// is not refused: whoever it is for has the better explanation.
pub(super) fn check_namespace(text: &[u8], wanted: &str) -> Result<(), anyhow::Error> {
    let pods = pods(text).unwrap_or_default();
    let namespaces = pods.iter().filter_map(|pod| pod["metadata"]["namespace"].as_str());
    match namespaces.into_iter().find(|namespace| !namespace.is_empty() && *namespace != wanted) {
        Some(other) => {
            Err(anyhow!("a pod in it is in the namespace {other:?}, not in {wanted:?}: leave out -n"))
        }
        None => Ok(()),
    }
}

/// The pods of a manifest as they stand in it.
fn pods(text: &[u8]) -> Result<Vec<Value>, anyhow::Error> {
    let text = str::from_utf8(text).map_err(|_| anyhow!("not UTF-8: save the file in that encoding"))?;
    let mut pods = Vec::new();
    for mut document in yaml::values(text).map_err(|problem| anyhow!("{problem}"))? {
        match document["kind"].as_str().unwrap_or_default() {
            "Pod" => pods.push(document),
            "List" | "PodList" => {
                let Value::Array(items) = document["items"].take() else { continue };
                if let Some(kind) =
                    items.iter().find_map(|item| item["kind"].as_str().filter(|kind| *kind != "Pod"))
                {
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

fn named(pod: &Value) -> Result<Named, anyhow::Error> {
    let text =
        |field: &str| pod["metadata"][field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let name = text("name").ok_or_else(|| anyhow!("metadata.name is not set in one of its pods"))?;
    Ok(Named { namespace: text("namespace"), name })
}
