//! The lock of an instance, and the boot marker.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

use podmux::{
    agent::{Instance, runtime_dir},
    host::Host,
};

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

#[test]
fn the_place_of_instances_comes_from_the_environment() {
    let place = |variables: &[(&str, &str)], is_root| {
        let environment: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        match runtime_dir(&environment, is_root) {
            Ok(path) => path.display().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let user = ("XDG_RUNTIME_DIR", "/run/user/1000");
    assert_eq!(place(&[], true), "/run/podmux-agent");
    assert_eq!(place(&[user], true), "/run/podmux-agent");
    assert_eq!(place(&[user], false), "/run/user/1000/podmux-agent");
    for is_root in [true, false] {
        assert_eq!(place(&[user, ("RUNTIME_DIRECTORY", "/run/a:/run/b")], is_root), "/run/a");
    }
    assert_eq!(place(&[user, ("RUNTIME_DIRECTORY", "relative")], false), "/run/user/1000/podmux-agent");
    for variables in [&[][..], &[("XDG_RUNTIME_DIR", "relative")]] {
        assert_eq!(
            place(variables, false),
            "no directory that a reboot empties: set RUNTIME_DIRECTORY (RuntimeDirectory= in a unit) or XDG_RUNTIME_DIR to one that is on a tmpfs and that only this user can write"
        );
    }
}
