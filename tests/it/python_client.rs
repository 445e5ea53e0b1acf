//! Kubernetes' client library for Python against the real agent.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{
    process::{Process, podmux},
    python::python,
};

#[test]
fn the_python_client_writes_lists_watches_and_resumes() {
    let Some(python) = python("python_client") else { return };
    let manifests = tempfile::tempdir().unwrap();
    let run = ["run", "--node-name", "python", "--listen", "127.0.0.1:0", "--anonymous-auth"];
    let mut command = podmux(&run);
    command.args(["--state-dir", "none", "--pod-manifest-path"]).arg(manifests.path());
    let agent = Process::start(command.stdout(Stdio::null()));
    let line = agent.logs("listening");
    let (_, address) = line.rsplit_once("address=").unwrap();
    // The client keeps what it has discovered there.
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_client/client.py"))
        .arg(format!("http://{address}"))
        .arg(manifests.path())
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(output.stdout, b"done\n");
}
