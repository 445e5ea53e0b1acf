//! Programs that a test writes and then runs.
//!
//! A process of its own writes them: while this one has a file open for writing, a child that another test has just
//! forked has it open too, and the file cannot be executed (ETXTBSY).

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Writes a program that all users can run.
pub fn write_program(path: &Path, text: &str) {
    let mut command = Command::new("install");
    let mut install =
        command.args(["--mode=755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success(), "{}", path.display());
}

/// Copies a program, so that all users can run it.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("install").arg("--mode=755").args([from, to]).status().unwrap();
    assert!(status.success(), "{}", to.display());
}
