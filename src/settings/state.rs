//! Where the agent keeps what has to outlive it.

use std::path::PathBuf;

use super::{Environment, Key, Layers, SettingsError, read_path};

/// The state directory; `None` if nothing is kept.
pub(super) fn read(layers: &Layers) -> Result<Option<PathBuf>, SettingsError> {
    match layers.one(Key::StateDir, read_path)? {
        Some(path) if path.as_os_str() == "none" => Ok(None),
        Some(path) => Ok(Some(path)),
        None => {
            let root = rustix::process::geteuid().is_root();
            default(layers.environment, root).map(Some).ok_or(SettingsError::NoStateDir)
        }
    }
}

/// Where state is kept if nobody says: where systemd says, else in root's or the user's usual place.
#[must_use]
pub fn default(environment: &Environment, root: bool) -> Option<PathBuf> {
    let absolute = |name: &str| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // With several in StateDirectory= they stand in a row, the unit's first one first.
    let given = environment.get("STATE_DIRECTORY").and_then(|all| all.split(':').next());
    let given = given.map(PathBuf::from).filter(|path| path.is_absolute());
    if root {
        return given.or_else(|| Some("/var/lib/podmux".into()));
    }
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    given.or_else(|| absolute("XDG_STATE_HOME").or_else(home).map(|path| path.join("podmux")))
}
