//! Tests that need a system of their own: the same test once more, in namespaces of its own.

use std::{env, process::Command};

const INSIDE: &str = "PODMUX_TEST_INSIDE";

/// Whether the test is inside. If not, it has been run there with `unshare
/// FLAGS`, and has passed: the caller returns.
///
/// `-U` alone makes root somebody whom file permissions bind; `-Ur` gives it
/// limits of its own, `m` mounts of its own. None of it needs root where users
/// may make namespaces.
pub fn inside(flags: &str, test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = Command::new("unshare")
        .arg(flags)
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare(1) of util-linux runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "inside `unshare {flags}`:\n{said}\n{complained}"
    );
    false
}
