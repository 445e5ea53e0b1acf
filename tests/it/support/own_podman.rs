//! podman with its own storage, in a directory. It is a file of its own so that benchmarks can use it too.

use std::{
    fs,
    path::Path,
    process::{Command, ExitStatus, Stdio},
};

/// The image of a static busybox.
pub const IMAGE: &str = "localhost/busybox:1";

/// Writes the file system of the image. Installs what is needed; the exit code is 69 where it cannot be had.
pub fn make_image(file: &Path) -> ExitStatus {
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/podman");
    let mut command = Command::new("bash");
    command.args(["-c", r#""$0/tools" && "$0/image" "$1""#, scripts]).arg(file);
    command.stdout(Stdio::null()).status().unwrap()
}

/// Writes the configuration.
pub fn configure(directory: &Path) {
    // A container cannot have higher limits than this process where it may not raise them. CNI gives podmans beside
    // each other addresses of one range; locks in memory would be those of all podmans.
    let config = "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
                  lock_type = \"file\"\n\
                  [containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
                  log_driver = \"k8s-file\"\n[network]\nnetwork_backend = \"cni\"\n";
    fs::write(directory.join("containers.conf"), config).unwrap();
    // The registry of a test speaks plain HTTP.
    let registries = "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n";
    fs::write(directory.join("registries.conf"), registries).unwrap();
}

/// Completes a command that runs podman.
pub fn complete(mut command: Command, directory: &Path, args: &[&str]) -> Command {
    for (flag, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
        command.arg(flag).arg(directory.join(name));
    }
    command.args(args).stdin(Stdio::null());
    command.env("CONTAINERS_CONF", directory.join("containers.conf"));
    command.env("CONTAINERS_REGISTRIES_CONF", directory.join("registries.conf"));
    command
}
