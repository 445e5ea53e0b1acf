//! Python with packages of its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::kubernetes::not_tested;

/// A Python that has the packages of `tests/DIRECTORY/requirements.txt`; none if it cannot be installed here.
pub fn python(directory: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let installed = Command::new(program).arg(directory).output().unwrap();
    if installed.status.code() == Some(69) {
        not_tested(&String::from_utf8_lossy(&installed.stderr));
        return None;
    }
    assert!(installed.status.success(), "{installed:?}");
    Some(String::from_utf8(installed.stdout).unwrap().trim().into())
}
