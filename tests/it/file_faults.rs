//! What goes wrong with manifests and with watching them: what was good stays, and it is said once.

use std::{
    fs,
    os::unix::{ffi::OsStrExt as _, net::UnixListener},
    process::Command,
    time::Duration,
};

use podmux::{
    manifest::MAX_MANIFEST,
    mux::{Mux, Notify},
    pod::SourceName,
    source::file::OnInvalid,
};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::support::{
    files::{Place, pod, settings, soon},
    logs::logged,
    namespace::inside,
};

// Untested upstream: manifest valid, invalid, valid
#[test]
fn the_last_good_pods_stay_while_a_manifest_is_bad_and_it_is_said_once() {
    logged(|log| async move {
        let place = Place::directory();
        let path = place.at("web.yaml");
        place.write("web.yaml", &pod("web", "i:1"));
        let mut source = place.start();
        source.hear("ADD: web=i:1").await;

        let bad = pod("web", "i:2").replace("image: i:2", "image: 7");
        for _ in 0..3 {
            place.write("web.yaml", &bad);
            source.hear_nothing().await;
        }
        let said = log.lines_with("the manifest was refused");
        assert_eq!(said.len(), 1, "{said:?}");
        let place_in_file = format!("{}:8:12: spec.containers[0].image: ", path.display());
        assert!(said[0].contains(&place_in_file), "{said:?}");
        assert_eq!(source.rejections().len(), 1);

        place.write("web.yaml", "{");
        source.hear_nothing().await;
        assert_eq!(log.lines_with("the manifest was refused").len(), 2, "another fault is said");

        place.write("web.yaml", &pod("web", "i:1"));
        source.hear_nothing().await;
        place.write("web.yaml", &pod("web", "i:3"));
        source.hear("UPDATE: web=i:3").await;
        assert_eq!(log.lines_with("recovered").len(), 1);
        assert_eq!(source.rejections(), [""; 0]);
    });
}

#[tokio::test]
async fn the_pods_of_a_bad_manifest_go_if_that_is_wanted() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    place.write("x.yaml", &pod("x", "i:1"));
    let mut source = place.start_with(|settings| settings.on_invalid = OnInvalid::Remove);
    source.hear("ADD: web=i:1 x=i:1").await;
    place.write("web.yaml", "{");
    source.hear("REMOVE: web=i:1").await;
    assert_eq!(source.rejections().len(), 1);
    place.write("web.yaml", &pod("web", "i:2"));
    source.hear("ADD: web=i:2").await;
    source.hear_nothing().await;
}

#[tokio::test]
async fn a_bad_manifest_that_is_removed_takes_its_last_good_pods_with_it() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    place.write("web.yaml", "{");
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    fs::remove_file(place.at("web.yaml")).unwrap();
    source.hear("REMOVE: web=i:1").await;
    assert_eq!(source.rejections(), [""; 0]);
}

// Untested upstream: manifest valid → invalid → valid. TestInvalidPodFiltered
#[tokio::test]
async fn a_manifest_that_is_read_but_not_valid_keeps_its_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    place.write("web.yaml", &pod("web", "i:2").replace("name: c", "name: C"));
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    source.hear_nothing().await;
    let rejections = source.rejections();
    assert!(rejections[0].contains("spec.containers[0].name: Invalid value"), "{rejections:?}");
    place.write("web.yaml", &pod("web", "i:3"));
    source.hear("UPDATE: web=i:3").await;
    assert_eq!(source.rejections(), [""; 0]);
}

#[tokio::test]
async fn a_manifest_over_the_bound_is_not_read() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    let mut text = pod("web", "i:2");
    text.push_str(&"#".repeat(MAX_MANIFEST - text.len()));
    place.write("web.yaml", &text);
    source.hear("UPDATE: web=i:2").await;
    text.push('#');
    place.write("web.yaml", &text.replace("i:2", "i:3"));
    source.hear_nothing().await;
    let rejections = source.rejections();
    assert!(rejections[0].contains("web.yaml: 10485761 bytes are too many"), "{rejections:?}");
}

// Untested upstream: sub-directory, fifo, dangling symlink
#[test]
fn what_is_no_regular_file_is_skipped_without_blocking_and_noted_once() {
    logged(|log| async move {
        let place = Place::directory();
        place
            .sh("cd manifests
             mkdir directory; mkfifo fifo; ln -s nowhere dangling; ln -s /dev/zero device; ln -s fifo link")
            .await;
        fs::write(place.at("directory/nested.yaml"), pod("nested", "i:1")).unwrap();
        let _socket = UnixListener::bind(place.at("socket")).unwrap();
        place.write(".hidden.yaml", &pod("hidden", "i:1"));
        for name in ["a.yaml~", "a.swp", "a.bak", "a.backup", "a.orig", "a.tmp", "4913", "#a#"] {
            place.write(name, &pod("leftover", "i:1"));
        }
        place.write("web", &pod("web", "i:1"));
        let mut source = place.start();
        source.hear("ADD: web=i:1").await;
        source.hear_nothing().await;
        for what in [
            "a directory",
            "a fifo",
            "a fifo",
            "a socket",
            "a dangling symbolic link",
            "a device",
            "left behind",
        ] {
            let expected = match what {
                "a fifo" => 2,
                "left behind" => 8,
                _ => 1,
            };
            let said = log.lines_with(&format!("skipped: {what}")).len()
                + log.lines_with(&format!("backup {what}")).len();
            assert_eq!(said, expected, "{what}");
        }
        assert_eq!(source.rejections(), [""; 0]);
    });
}

#[tokio::test]
async fn a_manifest_that_becomes_something_else_is_gone() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    place.sh("rm manifests/web.yaml; mkfifo manifests/web.yaml").await;
    source.hear("REMOVE: web=i:1").await;
}

#[tokio::test]
async fn a_name_that_is_no_text_is_a_name() {
    let place = Place::directory();
    let name = std::ffi::OsStr::from_bytes(b"\xff.yaml");
    fs::write(place.path().join(name), "{").unwrap();
    let mut source = place.start();
    source.hear("ADD:").await;
    assert!(source.rejections()[0].contains("/\\xff.yaml: "), "{:?}", source.rejections());
    fs::write(place.path().join(name), pod("web", "i:1")).unwrap();
    source.hear("ADD: web=i:1").await;
}

#[tokio::test]
async fn a_manifest_that_becomes_a_loop_of_links_keeps_its_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    place.sh("ln -s web.yaml tmp; mv -T tmp manifests/web.yaml").await;
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    source.hear_nothing().await;
    assert!(source.rejections()[0].contains("web.yaml: Too many levels of symbolic links"));
    fs::remove_file(place.at("web.yaml")).unwrap();
    place.write("web.yaml", &pod("web", "i:2"));
    source.hear("UPDATE: web=i:2").await;
}

#[test]
fn a_manifest_that_may_not_be_read_keeps_its_pods() {
    // As root, nothing is forbidden; in a user namespace that maps nobody, it is.
    if !inside("-U", "file_faults::a_manifest_that_may_not_be_read_keeps_its_pods") {
        return;
    }
    logged(|log| async move {
        let place = Place::directory();
        place.write("web.yaml", &pod("web", "i:1"));
        let mut source = place.start();
        source.hear("ADD: web=i:1").await;
        place
            .sh("cp manifests/web.yaml new; sed -i s/i:1/i:2/ new; chmod 0 new; mv new manifests/web.yaml")
            .await;
        source.status(|status| status.detail.contains(" 1 rejected")).await;
        source.hear_nothing().await;
        let said = log.lines_with("cannot be read");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("Permission denied"), "{said:?}");
        place.sh("chmod 600 manifests/web.yaml").await;
        source.hear("UPDATE: web=i:2").await;
        assert_eq!(log.lines_with("recovered").len(), 1);
    });
}

#[test]
fn a_directory_that_may_not_be_read_keeps_its_pods() {
    if !inside("-U", "file_faults::a_directory_that_may_not_be_read_keeps_its_pods") {
        return;
    }
    logged(|log| async move {
        let place = Place::directory();
        place.write("web.yaml", &pod("web", "i:1"));
        let mut source = place.start_with(|settings| settings.missing_grace = Duration::ZERO);
        source.hear("ADD: web=i:1").await;
        place.sh("chmod 0 manifests").await;
        let status = source.status(|status| status.failing.is_some()).await;
        assert!(status.failing.unwrap().error.contains("Permission denied"));
        assert!(soon(source.handle.rescanned()).await);
        assert_eq!(source.mux.merged().borrow().len(), 1);
        place.sh("chmod 700 manifests").await;
        source.status(|status| status.failing.is_none()).await;
        source.hear_nothing().await;
        assert_eq!(log.lines_with("Permission denied").len(), 1);
    });
}

#[test]
fn warnings_are_said_once() {
    logged(|log| async move {
        let place = Place::directory();
        let text = pod("web", "i:1").replace("spec:", "spec:\n  nosuch: 1");
        place.write("web.yaml", &text);
        let mut source = place.start();
        source.hear("ADD: web=i:1").await;
        place.write("web.yaml", &text);
        source.hear_nothing().await;
        let said = log.lines_with("nosuch");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("web.yaml:6:3: warning: "), "{said:?}");
    });
}

#[test]
fn two_files_with_one_pod_are_said_once_and_a_rename_is_not_said() {
    logged(|log| async move {
        let place = Place::directory();
        place.write("a.yaml", &pod("web", "i:1"));
        let mut source = place.start();
        source.hear("ADD: web=i:1").await;
        place.sh("mv manifests/a.yaml manifests/b.yaml").await;
        source.hear_nothing().await;
        assert_eq!(log.lines_with("a pod was refused"), [""; 0]);
        place.write("c.yaml", &pod("web", "i:2"));
        source.hear_nothing().await;
        source.hear_nothing().await;
        let said = log.lines_with("a pod was refused");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("c.yaml") && said[0].contains("b.yaml; rename one of them"), "{said:?}");
        place.sh("rm manifests/b.yaml").await;
        source.hear("UPDATE: web=i:2").await;
        source.hear_nothing().await;
        assert_eq!(log.lines_with("recovered").len(), 1);
    });
}

// Untested upstream: queue overflow
#[tokio::test]
async fn events_lost_to_an_overflow_are_made_up_for_by_a_scan() {
    if !inside("-Urm", "file_faults::events_lost_to_an_overflow_are_made_up_for_by_a_scan") {
        return;
    }
    let place = Place::directory();
    place.write("old.yaml", &pod("old", "i:1"));
    let mut source = place.start();
    source.hear("ADD: old=i:1").await;
    let bound: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    // While this process is stopped, its queue takes two events of each file at least, and none of the last ones.
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
    // Neither waits for the other.
    let mut heard = [source.heard().await, source.heard().await];
    heard.sort();
    assert_eq!(heard, ["ADD: new=i:1", "REMOVE: old=i:1"]);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_watch_everything_is_scanned_each_second_and_the_watch_is_taken_up_again() {
    if !inside(
        "-Ur",
        "file_faults::without_a_watch_everything_is_scanned_each_second_and_the_watch_is_taken_up_again",
    ) {
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
            source.hear("ADD: web=i:1").await;
            let status = source.status(|status| !status.detail.starts_with("the first scan")).await;
            let why =
                status.detail.strip_prefix("scanning every second: ").unwrap_or_else(|| panic!("{status:?}"));
            assert!(why.contains("raise fs.inotify.max_user_"), "{why}");
            place.write("web.yaml", &pod("web", "i:2"));
            source.hear("UPDATE: web=i:2").await;
            place.sh("mv manifests/web.yaml manifests/renamed.yaml").await;
            place.write("other.yaml", &pod("other", "i:1"));
            source.hear("ADD: other=i:1").await;
            assert_eq!(log.lines_with("cannot watch for changes").len(), 1);

            fs::write(&limit, usual).unwrap();
            source.status(|status| status.detail.starts_with("watching")).await;
            assert_eq!(log.lines_with("recovered: watching").len(), 1);
            source.hear_nothing().await;
            source.end().await;
        });
    }
}

#[tokio::test]
async fn it_stops_at_once_when_idle_and_while_it_waits() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    source.calm().await;
    source.end().await;

    let mut source = place.start_with(|settings| settings.quiet = Duration::from_hours(1));
    fs::remove_file(place.at("web.yaml")).unwrap();
    source.hear("ADD:").await;
    source.end().await;
}

#[tokio::test]
async fn it_stops_in_the_middle_of_a_scan_and_pushes_no_half_of_it() {
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
    // The scan begins with the source, on another thread.
    tokio::task::yield_now().await;
    stop.cancel();
    soon(source).await.unwrap();
    assert!(!soon(handle.rescanned()).await, "it has ended");
    soon(turn).await.unwrap();
    assert_eq!(soon(mux.updates(Notify::Incremental).next()).await, None, "nothing was pushed");
}

#[tokio::test]
async fn a_fifo_that_takes_a_manifests_place_between_the_look_and_the_opening_does_not_block() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.hear("ADD: web=i:1").await;
    let (manifest, fifo) = (place.at("web.yaml"), place.at("fifo.tmp"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let exchange = move || {
        for _ in 0..50_000 {
            renameat_with(CWD, &manifest, CWD, &fifo, RenameFlags::EXCHANGE).unwrap();
        }
    };
    spawn_blocking(exchange).await.unwrap();
    place.write("other.yaml", &pod("other", "i:1"));
    while source.heard().await != "ADD: other=i:1" {}
}

#[tokio::test]
async fn it_goes_on_without_its_handle() {
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
