//! Kubernetes' client library for Python against the real agent.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{
    kubernetes::not_tested,
    process::{Process, podmux},
};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_client").join(name)
}

#[test]
fn the_python_client_writes_lists_watches_and_resumes() {
    let installed = Command::new(file("python")).output().unwrap();
    if installed.status.code() == Some(69) {
        return not_tested(&String::from_utf8_lossy(&installed.stderr));
    }
    assert!(installed.status.success(), "{installed:?}");
    let manifests = tempfile::tempdir().unwrap();
    let run = ["run", "--node-name", "python", "--listen", "127.0.0.1:0", "--anonymous-auth"];
    let mut command = podmux(&run);
    command.args(["--state-dir", "none", "--pod-manifest-path"]).arg(manifests.path());
    let agent = Process::start(command.stdout(Stdio::null()));
    let line = agent.logs("listening");
    let (_, address) = line.rsplit_once("address=").unwrap();
    let python = String::from_utf8(installed.stdout).unwrap();
    // The client keeps what it has discovered there.
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(python.trim())
        .arg(file("client.py"))
        .arg(format!("http://{address}"))
        .arg(manifests.path())
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(output.stdout, b"done\n");
}
