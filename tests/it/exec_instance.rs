//! The lock of an instance, and the boot marker.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use podmux::{agent::Instance, host::Host};

fn error<T>(result: Result<T, impl std::error::Error>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn one_agent_at_a_time_has_an_instance() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("deep/podmux-agent");
    let claim = |instance| Instance::claim(&Host::default(), &directory, instance);
    let first = claim("0123").unwrap();
    let lock = directory.join("0123/lock");
    assert_eq!(
        error(claim("0123")),
        format!("another podmux runs the pods of this instance: it has locked {}; stop it", lock.display())
    );
    let other = claim("4567").unwrap();
    assert_ne!(first.boot, other.boot);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&directory), mode(&directory.join("0123"))], [0o700; 2]);
    assert_eq!([mode(&lock), mode(&directory.join("0123/boot"))], [0o600; 2]);

    let boot = first.boot.clone();
    drop(first);
    let next = claim("0123").unwrap();
    assert_eq!(next.boot, boot, "the same boot");
    drop(next);
    // An agent that was killed while it wrote the marker.
    fs::write(directory.join("0123/boot"), &boot[..10]).unwrap();
    let again = claim("0123").unwrap().boot;
    assert_ne!(again, boot);
    assert_eq!(claim("0123").unwrap().boot, again);
    // A reboot empties the file system.
    fs::remove_dir_all(root.path().join("deep")).unwrap();
    assert_ne!(claim("0123").unwrap().boot, again);

    fs::write(root.path().join("file"), "").unwrap();
    let error = error(Instance::claim(&Host::default(), &root.path().join("file"), "0123"));
    assert!(error.contains("/file/0123; give it to the user that podmux runs as"), "{error}");
}
