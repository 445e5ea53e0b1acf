//! Faults of manifests and watches: the pods stay, and each fault is logged once.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::{ffi::OsStrExt as _, net::UnixListener},
    path::Path,
    process::Command,
    time::Duration,
};

use podmux::{
    manifest::MAX_MANIFEST,
    mux::{Mux, Notify},
    pod::{SecurityLevel, SourceName},
    source::file::{self, OnInvalid},
};
use rustix::{
    fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with},
    process::Signal,
};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::{Place, RealFiles, Running, pod, settings, soon},
    logs::logged,
    namespace::inside,
    plain::Connection,
    process::{Process, podmux, wait_for},
};

// Untested upstream: manifest valid, invalid, valid
#[test]
fn a_rejected_manifest_keeps_its_pods_and_is_logged_once() {
    logged(|log| async move {
        let place = Place::directory();
        let path = place.at("web.yaml");
        place.write("web.yaml", &pod("web", "i:1"));
        let mut source = place.start();
        source.receives("ADD: web=i:1").await;

        let bad = pod("web", "i:2").replace("image: i:2", "image: 7");
        for _ in 0..3 {
            place.write("web.yaml", &bad);
            source.receives_nothing().await;
        }
        let logged = log.lines_with("manifest rejected");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains(&format!("path={} ", path.display())), "{logged:?}");
        assert!(logged[0].contains("error=8:12: spec.containers[0].image: "), "{logged:?}");
        assert_eq!(source.rejections().len(), 1);

        place.write("web.yaml", "{");
        source.receives_nothing().await;
        assert_eq!(log.lines_with("manifest rejected").len(), 2, "another error is logged");

        place.write("web.yaml", &pod("web", "i:1"));
        source.receives_nothing().await;
        place.write("web.yaml", &pod("web", "i:3"));
        source.receives("UPDATE: web=i:3").await;
        assert_eq!(log.lines_with("recovered").len(), 1);
        assert_eq!(source.rejections(), [""; 0]);
    });
}

#[test]
fn a_rejected_manifest_is_logged_with_its_misspelled_field() {
    logged(|log| async move {
        let place = Place::directory();
        place.write("web.yaml", &pod("web", "i:1").replace("containers:", "container:"));
        let source = place.start();
        source.status(|status| status.detail.contains(" 1 rejected")).await;
        let logged = log.lines_with("manifest rejected").concat();
        let misspelled = "warning: spec.container: unknown field, ignored; did you mean containers?";
        assert!(logged.contains("spec.containers: Required value"), "{logged}");
        assert!(logged.contains(misspelled), "{logged}");
        let rejections = source.rejections();
        assert!(rejections[0].contains(misspelled), "{rejections:?}");
    });
}

#[tokio::test]
async fn on_invalid_remove_removes_the_pods_of_a_rejected_manifest() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    place.write("x.yaml", &pod("x", "i:1"));
    let mut source = place.start_with(|settings| settings.on_invalid = OnInvalid::Remove);
    source.receives("ADD: web=i:1 x=i:1").await;
    place.write("web.yaml", "{");
    source.receives("REMOVE: web=i:1").await;
    assert_eq!(source.rejections().len(), 1);
    place.write("web.yaml", &pod("web", "i:2"));
    source.receives("ADD: web=i:2").await;
    source.receives_nothing().await;
}

#[tokio::test]
async fn a_reload_to_on_invalid_remove_removes_the_pods_of_manifests_that_are_invalid_already() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    place.write("x.yaml", &pod("x", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1 x=i:1").await;
    place.write("web.yaml", "{");
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    source.receives_nothing().await;
    source.handle.retune(file::Config {
        path: place.path(),
        check_frequency: Duration::from_hours(1),
        on_invalid: OnInvalid::Remove,
        pod_security: SecurityLevel::default(),
    });
    source.receives("REMOVE: web=i:1").await;
    assert_eq!(source.rejections().len(), 1);
    source.receives_nothing().await;
}

#[tokio::test]
async fn removing_a_rejected_manifest_removes_its_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    place.write("web.yaml", "{");
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    fs::remove_file(place.at("web.yaml")).unwrap();
    source.receives("REMOVE: web=i:1").await;
    assert_eq!(source.rejections(), [""; 0]);
}

// Untested upstream: manifest valid → invalid → valid. TestInvalidPodFiltered
#[tokio::test]
async fn a_manifest_that_fails_validation_keeps_its_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    place.write("web.yaml", &pod("web", "i:2").replace("name: c", "name: C"));
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    source.receives_nothing().await;
    let rejections = source.rejections();
    assert!(rejections[0].contains("spec.containers[0].name: Invalid value"), "{rejections:?}");
    place.write("web.yaml", &pod("web", "i:3"));
    source.receives("UPDATE: web=i:3").await;
    assert_eq!(source.rejections(), [""; 0]);
}

#[tokio::test]
async fn a_manifest_over_the_size_limit_is_rejected() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    let mut text = pod("web", "i:2");
    text.push_str(&"#".repeat(MAX_MANIFEST - text.len()));
    place.write("web.yaml", &text);
    source.receives("UPDATE: web=i:2").await;
    text.push('#');
    place.write("web.yaml", &text.replace("i:2", "i:3"));
    source.receives_nothing().await;
    let rejections = source.rejections();
    assert!(rejections[0].contains("web.yaml: 10485761 bytes are too many"), "{rejections:?}");
}

// Untested upstream: sub-directory, fifo, dangling symlink
#[test]
fn special_and_leftover_files_are_skipped_and_logged_once() {
    logged(|log| async move {
        let place = Place::directory();
        place
            .sh("cd manifests
             mkdir directory; mkfifo fifo; ln -s nowhere dangling; ln -s /dev/zero device; ln -s fifo link
             ln -s directory elsewhere")
            .await;
        fs::write(place.at("directory/nested.yaml"), pod("nested", "i:1")).unwrap();
        let _socket = UnixListener::bind(place.at("socket")).unwrap();
        place.write(".hidden.yaml", &pod("hidden", "i:1"));
        let leftovers = "a.yaml~ a.swp a.bak a.backup a.orig a.tmp 4913 #a# a.yaml.dpkg-old a.yaml.dpkg-new \
                         a.yaml.dpkg-tmp a.yaml.dpkg-dist a.yaml.dpkg-bak a.yaml.dpkg-backup a.yaml.dpkg-remove \
                         a.yaml.rpmnew a.yaml.rpmsave a.yaml.rpmorig a.yaml.ucf-old a.yaml.ucf-new a.yaml.ucf-dist";
        for name in leftovers.split(' ') {
            place.write(name, &pod("leftover", "i:1"));
        }
        place.write("web", &pod("web", "i:1"));
        let mut source = place.start();
        source.receives("ADD: web=i:1").await;
        source.receives_nothing().await;
        for what in [
            "a directory",
            "a link to a directory",
            "a fifo",
            "a fifo",
            "a socket",
            "a dangling symbolic link",
            "a device",
            "an editor's, a package manager's or a backup file",
        ] {
            let expected = match what {
                "a fifo" => 2,
                "an editor's, a package manager's or a backup file" => 21,
                _ => 1,
            };
            let logged = log.lines_with(&format!("reason={what}")).len();
            assert_eq!(logged, expected, "{what}");
        }
        assert_eq!(source.rejections(), [""; 0]);
    });
}

#[tokio::test]
async fn a_manifest_replaced_by_a_fifo_is_removed() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    place.sh("rm manifests/web.yaml; mkfifo manifests/web.yaml").await;
    source.receives("REMOVE: web=i:1").await;
}

#[tokio::test]
async fn a_name_that_is_not_utf_8_is_accepted() {
    let place = Place::directory();
    let name = std::ffi::OsStr::from_bytes(b"\xff.yaml");
    fs::write(place.path().join(name), "{").unwrap();
    let mut source = place.start();
    source.receives("ADD:").await;
    assert!(source.rejections()[0].contains("/\\xff.yaml: "), "{:?}", source.rejections());
    fs::write(place.path().join(name), pod("web", "i:1")).unwrap();
    source.receives("ADD: web=i:1").await;
}

#[tokio::test]
async fn names_that_differ_in_a_byte_and_its_escape_are_two() {
    let place = Place::directory();
    let [byte, escape] = [&b"a\xff.yaml"[..], &br"a\xff.yaml"[..]].map(std::ffi::OsStr::from_bytes);
    fs::write(place.path().join(byte), pod("byte", "i:1")).unwrap();
    fs::write(place.path().join(escape), pod("escape", "i:1")).unwrap();
    let mut source = place.start();
    source.receives("ADD: byte=i:1 escape=i:1").await;
    fs::write(place.path().join(byte), "{").unwrap();
    fs::write(place.path().join(escape), "{").unwrap();
    source.status(|status| status.detail.contains(" 2 rejected")).await;
    source.handle.retune(file::Config {
        path: place.path(),
        check_frequency: Duration::from_hours(1),
        on_invalid: OnInvalid::Remove,
        pod_security: SecurityLevel::default(),
    });
    source.receives_removals("byte=i:1 escape=i:1").await;
    assert_eq!(source.rejections().len(), 2);
}

#[tokio::test]
async fn a_manifest_that_becomes_a_loop_of_links_keeps_its_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    place.sh("ln -s web.yaml tmp; mv -T tmp manifests/web.yaml").await;
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    source.receives_nothing().await;
    assert!(source.rejections()[0].contains("web.yaml: Too many levels of symbolic links"));
    fs::remove_file(place.at("web.yaml")).unwrap();
    place.write("web.yaml", &pod("web", "i:2"));
    source.receives("UPDATE: web=i:2").await;
}

#[test]
fn an_unreadable_manifest_keeps_its_pods() {
    // Root may read everything, unless it is in a user namespace without a mapping.
    if !inside("-U", "file_faults::an_unreadable_manifest_keeps_its_pods") {
        return;
    }
    logged(|log| async move {
        let place = Place::directory();
        place.write("web.yaml", &pod("web", "i:1"));
        let mut source = place.start();
        source.receives("ADD: web=i:1").await;
        place
            .sh("cp manifests/web.yaml new; sed -i s/i:1/i:2/ new; chmod 0 new; mv new manifests/web.yaml")
            .await;
        source.status(|status| status.detail.contains(" 1 rejected")).await;
        source.receives_nothing().await;
        let logged = log.lines_with("manifest rejected");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("Permission denied"), "{logged:?}");
        place.sh("chmod 600 manifests/web.yaml").await;
        source.receives("UPDATE: web=i:2").await;
        assert_eq!(log.lines_with("recovered").len(), 1);
        // Also one that was read and that a scan has found as it was.
        source.is_idle().await;
        place.sh("chmod 0 manifests/web.yaml").await;
        source.status(|status| status.detail.contains(" 1 rejected")).await;
        place.sh("chmod 600 manifests/web.yaml").await;
        source.status(|status| !status.detail.contains(" 1 rejected")).await;
        source.receives_nothing().await;
    });
}

#[test]
fn an_unreadable_directory_keeps_its_pods() {
    if !inside("-U", "file_faults::an_unreadable_directory_keeps_its_pods") {
        return;
    }
    logged(|log| async move {
        let place = Place::directory();
        place.write("web.yaml", &pod("web", "i:1"));
        let mut source = place.start_with(|settings| settings.missing_grace = Duration::ZERO);
        source.receives("ADD: web=i:1").await;
        place.sh("chmod 0 manifests").await;
        let status = source.status(|status| status.failing.is_some()).await;
        assert!(status.failing.unwrap().error.contains("Permission denied"));
        assert!(soon(source.handle.rescanned()).await);
        assert_eq!(source.mux.merged().borrow().len(), 1);
        place.sh("chmod 700 manifests").await;
        source.status(|status| status.failing.is_none()).await;
        source.receives_nothing().await;
        assert_eq!(log.lines_with("Permission denied").len(), 1);
    });
}

#[test]
fn warnings_are_logged_once() {
    logged(|log| async move {
        let place = Place::directory();
        let text = pod("web", "i:1").replace("spec:", "spec:\n  nosuch: 1");
        place.write("web.yaml", &text);
        let mut source = place.start();
        source.receives("ADD: web=i:1").await;
        place.write("web.yaml", &text);
        source.receives_nothing().await;
        let logged = log.lines_with("nosuch");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("web.yaml warning=6:3: "), "{logged:?}");
    });
}

#[test]
fn a_conflict_of_two_files_is_logged_once_and_a_rename_is_none() {
    logged(|log| async move {
        let place = Place::directory();
        place.write("a.yaml", &pod("web", "i:1"));
        // A rename counts as one for so long.
        let mut source = place.start_with(|settings| settings.quiet = Duration::from_secs(2));
        source.receives("ADD: web=i:1").await;
        place.sh("mv manifests/a.yaml manifests/b.yaml").await;
        source.receives_nothing().await;
        assert_eq!(log.lines_with("conflict found"), [""; 0]);
        place.write("c.yaml", &pod("web", "i:2"));
        source.receives_nothing().await;
        source.receives_nothing().await;
        let logged = log.lines_with("conflict found");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("c.yaml") && logged[0].contains("b.yaml has the same name"), "{logged:?}");
        place.sh("rm manifests/b.yaml").await;
        source.receives("UPDATE: web=i:2").await;
        source.receives_nothing().await;
        assert_eq!(log.lines_with("conflict resolved").len(), 1);
    });
}

// Untested upstream: queue overflow
#[tokio::test]
async fn a_scan_replaces_events_lost_to_an_overflow() {
    if !inside("-Urm", "file_faults::a_scan_replaces_events_lost_to_an_overflow") {
        return;
    }
    let place = Place::directory();
    place.write("old.yaml", &pod("old", "i:1"));
    let mut source = place.start();
    source.receives("ADD: old=i:1").await;
    let bound: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    // While this process is stopped, its queue overflows before the last events.
    fs::write(place.beside("new.yaml"), pod("new", "i:1")).unwrap();
    let script = format!(
        "kill -STOP {}
         cd manifests
         seq -f %.0f.tmp {} | xargs touch
         mv ../new.yaml new.yaml
         rm old.yaml
         kill -CONT {}",
        std::process::id(),
        bound / 2 + 1000,
        std::process::id(),
    );
    let mut child = Command::new("sh").args(["-ec", &script]).current_dir(place.root.path()).spawn().unwrap();
    // Their order is not defined.
    let mut updates = [source.next_update().await, source.next_update().await];
    updates.sort();
    assert_eq!(updates, ["ADD: new=i:1", "REMOVE: old=i:1"]);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_watches_the_source_scans_every_second_until_they_recover() {
    if !inside("-Ur", "file_faults::without_watches_the_source_scans_every_second_until_they_recover") {
        return;
    }
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        logged(|log| async move {
            let limit = format!("/proc/sys/user/{limit}");
            let usual = fs::read_to_string(&limit).unwrap();
            fs::write(&limit, "0").unwrap();
            let place = Place::directory();
            place.write("web.yaml", &pod("web", "i:1"));
            let mut source =
                place.start_with(|settings| settings.check_frequency = Duration::from_millis(2500));
            source.receives("ADD: web=i:1").await;
            let status = source.status(|status| !status.detail.starts_with("the first scan")).await;
            let why =
                status.detail.strip_prefix("scanning every second: ").unwrap_or_else(|| panic!("{status:?}"));
            assert!(why.contains("raise fs.inotify.max_user_"), "{why}");
            place.write("web.yaml", &pod("web", "i:2"));
            source.receives("UPDATE: web=i:2").await;
            place.sh("mv manifests/web.yaml manifests/renamed.yaml").await;
            place.write("other.yaml", &pod("other", "i:1"));
            source.receives("ADD: other=i:1").await;
            assert_eq!(log.lines_with("watch failed").len(), 1);

            fs::write(&limit, usual).unwrap();
            source.status(|status| status.detail.starts_with("watching")).await;
            assert_eq!(log.lines_with("watch recovered").len(), 1);
            source.receives_nothing().await;
            source.end().await;
        });
    }
}

#[tokio::test]
async fn it_stops_at_once_when_idle_and_while_it_waits() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    source.is_idle().await;
    source.end().await;

    let mut source = place.start_with(|settings| settings.quiet = Duration::from_hours(1));
    fs::remove_file(place.at("web.yaml")).unwrap();
    source.receives("ADD:").await;
    source.end().await;
}

#[tokio::test]
async fn it_stops_during_a_scan_and_publishes_no_partial_listing() {
    let place = Place::directory();
    for index in 0..1000 {
        place.write(&format!("{index}.yaml"), &pod(&format!("p{index}"), "i:1"));
    }
    let (mux, turn) = Mux::new(&[SourceName::File]);
    let turn = tokio::spawn(turn.run());
    let settings = settings(&place.path());
    let (source, handle) = settings.source(mux.channel(SourceName::File).unwrap());
    let stop = CancellationToken::new();
    let source = tokio::spawn(source.run(stop.clone()));
    // The scan starts with the source, on another thread.
    tokio::task::yield_now().await;
    stop.cancel();
    soon(source).await.unwrap();
    assert!(!soon(handle.rescanned()).await, "the source has ended");
    soon(turn).await.unwrap();
    assert_eq!(soon(mux.updates(Notify::Incremental).next()).await, None, "nothing was published");
}

#[tokio::test]
async fn a_fifo_that_replaces_a_manifest_before_it_is_opened_does_not_block() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    let (manifest, fifo) = (place.at("web.yaml"), place.at("fifo.tmp"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let exchange = move || {
        for _ in 0..50_000 {
            renameat_with(CWD, &manifest, CWD, &fifo, RenameFlags::EXCHANGE).unwrap();
        }
    };
    spawn_blocking(exchange).await.unwrap();
    place.write("other.yaml", &pod("other", "i:1"));
    // The other pod may have gone and come back meanwhile.
    while !source.next_update().await.contains("other=i:1") {}
}

#[tokio::test]
async fn it_runs_without_its_handle() {
    let place = Place::directory();
    let (mux, turn) = Mux::new(&[SourceName::File]);
    tokio::spawn(turn.run());
    let (source, handle) = settings(&place.path()).source(mux.channel(SourceName::File).unwrap());
    drop(handle);
    let stop = CancellationToken::new();
    let source = tokio::spawn(source.run(stop.clone()));
    let mut updates = mux.updates(Notify::Incremental);
    assert!(soon(updates.next()).await.unwrap().pods.is_empty());
    place.write("web.yaml", &pod("web", "i:1"));
    assert_eq!(soon(updates.next()).await.unwrap().pods.len(), 1);
    stop.cancel();
    soon(source).await.unwrap();
}

/// Mounts a FUSE file system whose server never answers, as a dead NFS server does not. It hangs
/// until the returned file is dropped.
fn mount_hanging(directory: &Path) -> File {
    let server = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
    let mut mount = Command::new("mount");
    mount.args(["-i", "-t", "fuse", "-o", options, "hanging"]).arg(directory);
    assert!(mount.stdin(server.try_clone().unwrap()).status().unwrap().success());
    server
}

/// What the source says of a file system that hangs.
const HANGS: &str = "the file system has not answered for 10s";

/// An agent whose files are in the directory `name`.
fn agent_at(name: &Path) -> Process {
    let at = |part: &str| name.join(part).display().to_string();
    let (manifests, state, socket) = (at("manifests"), at("state"), format!("unix:{}", at("s")));
    let mut args = vec!["run", "--node-name", "node1", "--pod-manifest-path", &manifests];
    args.extend(["--state-dir", &state, "--listen", &socket, "--file-check-frequency", "1s"]);
    Process::start(&mut podmux(&args))
}

fn ask(name: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut connection = wait_for(|| Connection::unix(&name.join("s")).ok());
    let answer = connection.ask_as(method, path, "application/yaml", body.as_bytes()).unwrap();
    (answer.code, answer.text())
}

#[test]
fn a_manifest_file_system_that_hangs_is_shown_and_stops_nothing_else() {
    if !inside("-Urm", "file_faults::a_manifest_file_system_that_hangs_is_shown_and_stops_nothing_else") {
        return;
    }
    let (known, unknown) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for place in [known.path(), unknown.path()] {
        fs::create_dir(place.join("manifests")).unwrap();
    }
    fs::write(known.path().join("manifests/web.yaml"), pod("web", "i:1")).unwrap();
    let agent = agent_at(known.path());
    agent.holds("the manifest", |held| held.pods.contains_key("default/web-node1"));
    let server = mount_hanging(&known.path().join("manifests"));
    let other_server = mount_hanging(&unknown.path().join("manifests"));
    let other = agent_at(unknown.path());

    // A source that was read stays ready, with a note.
    agent.logs(HANGS);
    let (code, ready) = ask(known.path(), "GET", "/readyz?verbose", "");
    assert!(ready.contains(&format!("[+]source-file ok: failing: {HANGS}")), "{code} {ready}");
    assert_eq!(code, 200, "{ready}");
    let (_, sources) = ask(known.path(), "GET", "/sources", "");
    assert!(sources.contains(HANGS), "{sources}");
    let (code, posted) = ask(known.path(), "POST", "/pods", &pod("posted", "i:1"));
    assert_eq!(code, 201, "{posted}");
    let held = agent.holds("the posted pod", |held| held.pods.contains_key("default/posted"));
    assert!(held.pods.contains_key("default/web-node1"), "its pods stay");

    // One that was never read is not ready, and nothing else waits for it.
    other.logs(HANGS);
    let (code, ready) = ask(unknown.path(), "GET", "/readyz?verbose", "");
    let failed = format!("[-]source-file failed: not synced yet: {HANGS}");
    assert!(ready.contains(&failed), "{code} {ready}");
    assert_eq!(code, 503, "{ready}");
    other.signal(Signal::TERM);
    let (code, log) = other.ends();
    assert_eq!(code, 0, "{log}");
    assert!(log.ends_with("stopped"), "{log}");
    drop(other_server);

    // When the mount is gone, the source goes on.
    let unmount = Command::new("umount").arg("-l").arg(known.path().join("manifests")).status();
    assert!(unmount.unwrap().success());
    drop(server);
    agent.logs("source recovered");
    fs::write(known.path().join("manifests/web.yaml"), pod("web", "i:2")).unwrap();
    agent.holds("the update", |held| {
        held.pods.get("default/web-node1").is_some_and(|pod| pod.contains("i:2"))
    });
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
}

/// The agent then stops with an error, and systemd starts it again: see `supervise`.
#[tokio::test]
async fn a_panic_in_the_watchers_thread_ends_the_source_at_once() {
    let place = Place::directory();
    let before_open = |path: &Path| assert!(!path.ends_with("panics.yaml"), "a bug");
    let host = RealFiles { before_open, ..RealFiles::default() }.host();
    let mut source = Running::hold(settings(&place.path()), |source| source.on(host)).go();
    source.receives("ADD:").await;
    place.write("web.yaml", &pod("web", "i:1"));
    source.receives("ADD: web=i:1").await;
    place.write("panics.yaml", &pod("other", "i:1"));
    assert!(soon(source.source).await.unwrap_err().is_panic());
}
