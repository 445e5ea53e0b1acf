//! The lock of an instance, and the boot marker.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use jiff::{SignedDuration, Timestamp};
use podmux::{
    agent::Instance,
    host::{Clock, Host},
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
        format!(
            "another podmux runs the pods of this instance: it has locked {}; stop it, or choose another directory with --state-dir",
            lock.display()
        )
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
    // A reboot that has not emptied it.
    fs::write(directory.join("0123/boot"), format!("{again}\nanother-boot")).unwrap();
    let again = claim("0123").unwrap().boot;
    assert!(!boot.contains(&again));
    assert_eq!(claim("0123").unwrap().boot, again);
    // A reboot empties the file system.
    fs::remove_dir_all(root.path().join("deep")).unwrap();
    assert_ne!(claim("0123").unwrap().boot, again);

    fs::write(root.path().join("file"), "").unwrap();
    let error = error(Instance::claim(&Host::default(), &root.path().join("file"), "0123"));
    assert!(error.contains("/file/0123; give it to the user that podmux runs as"), "{error}");
}

/// A user who may write there could make root write elsewhere.
#[test]
fn a_directory_that_every_user_may_write_to_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("0123");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Instance::claim(&Host::default(), root.path(), "0123").err().unwrap();
    let why = std::error::Error::source(&refused).unwrap().to_string();
    assert!(why.contains("every user may write to it"), "{refused}: {why}");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    Instance::claim(&Host::default(), root.path(), "0123").unwrap();
}

#[test]
fn the_machine_was_started_before_the_marker_also_if_its_clock_was_set_since() {
    let root = tempfile::tempdir().unwrap();
    let booted = |ahead: i64| {
        let clock = Clock::from_fn(move || Timestamp::now() + SignedDuration::from_hours(ahead));
        let host = Host { clock, ..Host::default() };
        Instance::claim(&host, root.path(), "0123").unwrap().booted.unwrap()
    };
    let statistics = fs::read_to_string("/proc/stat").unwrap();
    let of_kernel = statistics.lines().find_map(|line| line.strip_prefix("btime ")).unwrap();
    let of_kernel: i64 = of_kernel.parse().unwrap();
    let is_of_kernel = |booted: Timestamp| (booted.as_second() - of_kernel).abs() <= 2;
    assert!(is_of_kernel(booted(0)));
    let written = fs::metadata(root.path().join("0123/boot")).unwrap().modified().unwrap();
    let written = Timestamp::try_from(written).unwrap().as_second();
    // It was far behind until now.
    assert_eq!(booted(24 * 365 * 50).as_second(), written);
    assert!(is_of_kernel(booted(0)));
    assert!(booted(-24) < booted(0));
}
