//! Programs of the machine, or of Debian's packages that `tests/unpacked` unpacks.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::kubernetes::not_tested;

/// The path of the program that has the name of its package. None means that it cannot be had, which CI does not accept.
pub fn unpacked(program: &str) -> Option<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/unpacked");
    let found = Command::new(script).args([program, program]).output().unwrap();
    if !found.status.success() {
        not_tested(&format!("no {program}: {}", String::from_utf8_lossy(&found.stderr)));
        return None;
    }
    Some(Path::new(String::from_utf8(found.stdout).unwrap().trim()).join(program))
}
