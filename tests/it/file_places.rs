//! Changes of the source's path: missing, removed, recreated, replaced, mounted over.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    time::Duration,
};

use podmux::source::file::Timings;
use tokio::{runtime::Builder, time};

use crate::support::{
    files::{Place, RealFiles, Running, pod, settings, sh},
    logs::{collected, logged},
    namespace::inside,
};

const SHORT: Duration = Duration::from_millis(300);
/// So long that what has arrived is read before its end, on any machine.
const LONGER: Duration = Duration::from_secs(2);

async fn two(place: &Place, grace: Duration) -> Running {
    two_with(place, Timings::default().quiet, grace).await
}

/// The same with this quiet time: long enough for a machine that stalls while the directory is removed.
async fn two_with(place: &Place, quiet: Duration, grace: Duration) -> Running {
    fs::create_dir_all(place.path()).unwrap();
    place.write("a.yaml", &pod("a", "i:1"));
    place.write("b.yaml", &pod("b", "i:1"));
    let mut source = place.start_with(|settings| (settings.quiet, settings.missing_grace) = (quiet, grace));
    source.receives("ADD: a=i:1 b=i:1").await;
    source
}

#[tokio::test]
async fn a_missing_directory_is_read_when_it_appears() {
    let place = Place::missing();
    let mut source = place.start();
    source.receives("ADD:").await;
    fs::create_dir(place.path()).unwrap();
    place.write("a.yaml", &pod("a", "i:1"));
    source.receives("ADD: a=i:1").await;
    let status = source.status(|status| status.failing.is_none()).await;
    assert!(status.detail.ends_with("; 1 manifest"), "{}", status.detail);
}

#[tokio::test]
async fn a_missing_directory_with_missing_parents_is_read_when_it_appears() {
    let place = Place::missing();
    let mut source = Running::start(settings(&place.beside("x/y/z")));
    source.receives("ADD:").await;
    fs::create_dir_all(place.beside("x/y/z")).unwrap();
    fs::write(place.beside("x/y/z/a.yaml"), pod("a", "i:1")).unwrap();
    source.receives("ADD: a=i:1").await;
}

#[tokio::test]
async fn a_directory_moved_into_place_is_read() {
    let place = Place::missing();
    fs::create_dir(place.beside("ready")).unwrap();
    fs::write(place.beside("ready/a.yaml"), pod("a", "i:1")).unwrap();
    let mut source = place.start();
    source.receives("ADD:").await;
    fs::rename(place.beside("ready"), place.path()).unwrap();
    source.receives("ADD: a=i:1").await;
    place.write("a.yaml", &pod("a", "i:2"));
    source.receives("UPDATE: a=i:2").await;
}

// Untested upstream: directory deleted and recreated
#[tokio::test]
async fn a_directory_recreated_within_the_grace_keeps_its_pods() {
    let place = Place::missing();
    let mut source = two_with(&place, LONGER, Duration::from_mins(1)).await;
    place.sh("rm -r manifests").await;
    let status = source.status(|status| status.failing.is_some()).await;
    assert!(status.failing.unwrap().error.contains("the path no longer exists"));
    assert_eq!(source.mux.merged().borrow().len(), 2);
    place.sh("mkdir manifests").await;
    place.write("a.yaml", &pod("a", "i:1"));
    source.status(|status| status.failing.is_none()).await;
    place.write("b.yaml", &pod("b", "i:2"));
    source.receives("UPDATE: b=i:2").await;
    source.receives_nothing().await;
    place.write("a.yaml", &pod("a", "i:3"));
    source.receives("UPDATE: a=i:3").await;
}

#[test]
fn a_directory_that_is_refilled_file_by_file_keeps_its_pods() {
    collected(Builder::new_current_thread().start_paused(true), |log| async move {
        let place = Place::directory();
        for name in ["a", "b", "c", "d"] {
            place.write(&format!("{name}.yaml"), &pod(name, "i:1"));
        }
        let mut settings = settings(&place.path());
        (settings.check_frequency, settings.missing_grace) =
            (Duration::from_secs(20), Duration::from_mins(10));
        let host = RealFiles { has_watches: false, ..RealFiles::default() }.host();
        let mut source = Running::hold(settings, |source| source.on(host)).go();
        source.receives("ADD: a=i:1 b=i:1 c=i:1 d=i:1").await;
        place.sh("rm -r manifests").await;
        source.status(|status| status.kept.len() == 4).await;
        // Virtual time: the first file comes when a scan has found nothing, each next one within the check frequency.
        time::sleep(Duration::from_secs(25)).await;
        fs::create_dir(place.path()).unwrap();
        for name in ["a", "b", "c"] {
            place.write(&format!("{name}.yaml"), &pod(name, "i:2"));
            source.receives(&format!("UPDATE: {name}=i:2")).await;
            time::sleep(Duration::from_secs(12)).await;
        }
        assert_eq!(log.lines_with("still missing"), [""; 0]);
        // The file that does not come.
        source.receives("REMOVE: d=i:1").await;
        let logged = log.lines_with("manifests still missing, their pods are removed");
        assert!(logged.len() == 1 && logged[0].contains("files=1"), "{logged:?}");
    });
}

#[test]
fn an_empty_directory_in_the_place_of_another_is_a_failure_while_pods_are_kept() {
    logged(|log| async move {
        let place = Place::missing();
        let mut source = two(&place, Duration::from_mins(1)).await;
        fs::create_dir(place.beside("empty")).unwrap();
        place.sh("mv manifests away; mv empty manifests").await;
        let is_empty = |error: &str| {
            error == "the directory is empty (is its file system mounted?); its pods are kept for 60s"
        };
        source.status(|status| status.failing.as_ref().is_some_and(|failing| is_empty(&failing.error))).await;
        assert_eq!(source.merged_pods().await, "a=i:1 b=i:1");
        assert_eq!(log.lines_with("source recovered"), [""; 0]);
        place.sh("rmdir manifests; mv away manifests").await;
        source.status(|status| status.failing.is_none()).await;
        source.receives_nothing().await;
        // It is empty again.
        fs::create_dir(place.beside("other")).unwrap();
        fs::write(place.beside("other/c.yaml"), pod("c", "i:1")).unwrap();
        place.sh("mv manifests away; mv other manifests").await;
        source.receives("ADD: c=i:1").await;
        place.sh("rm manifests/c.yaml").await;
        source.receives("REMOVE: c=i:1").await;
        source.status(|status| status.failing.as_ref().is_some_and(|failing| is_empty(&failing.error))).await;
        source.end().await;
        assert_eq!(log.lines_with("still missing"), [""; 0]);

        // No pods are kept of a manifest that has none.
        let place = Place::missing();
        fs::create_dir(place.path()).unwrap();
        fs::write(place.path().join("a.yaml"), "a: [").unwrap();
        let mut source = place.start();
        source.receives("ADD:").await;
        place.sh("mv manifests away; mkdir manifests").await;
        assert_eq!(source.merged_pods().await, "");
        let status = source.status(|status| status.detail.contains("0 manifests")).await;
        assert!(status.failing.is_none(), "{:?}", status.failing);
        source.end().await;

        let place = Place::missing();
        let mut source = two(&place, SHORT).await;
        place.sh("mv manifests away; mkdir manifests").await;
        source.receives_removals("a=i:1 b=i:1").await;
        source.status(|status| status.failing.is_none()).await;
        assert!(!log.lines_with("manifests still missing, their pods are removed").is_empty());
    });
}

#[test]
fn a_present_manifest_has_a_pod_before_one_that_is_gone() {
    logged(|log| async move {
        let latin = OsStr::from_bytes(b"20-\xff.yaml");
        let names =
            [("10-web.yaml", "20-web.yaml"), ("20-web.yaml", "10-web.yaml"), ("10-web.yaml", r"20-\x.yaml")];
        let names = names.map(|(before, after)| (before, OsStr::new(after)));
        for (before, after) in names.into_iter().chain([("10-web.yaml", latin)]) {
            let place = Place::missing();
            for (version, name, image) in [("v1", OsStr::new(before), "i:1"), ("v2", after, "i:2")] {
                fs::create_dir(place.beside(version)).unwrap();
                fs::write(place.beside(version).join(name), pod("web", image)).unwrap();
            }
            let other = format!("{}---\n{}", pod("web", "i:1"), pod("other", "i:1"));
            fs::write(place.beside("v1").join(before), other).unwrap();
            symlink("v1", place.path()).unwrap();
            let mut source = place.start();
            source.receives("ADD: other=i:1 web=i:1").await;
            place.sh("ln -s v2 tmp; mv -T tmp manifests").await;
            source.receives("UPDATE: web=i:2").await;
            source.receives_nothing_yet().await;
            assert_eq!(source.rejections(), [""; 0]);
            // The pod that no present manifest has is kept.
            let kept = source.status(|status| !status.kept.is_empty()).await.kept;
            assert!(
                kept.len() == 1 && kept[0].pods == 1 && kept[0].origin.as_str().ends_with(before),
                "{kept:?}"
            );
            place.sh("ln -s v1 tmp; mv -T tmp manifests").await;
            source.receives("UPDATE: web=i:1").await;
            source.end().await;
        }
        assert_eq!(log.lines_with("conflict"), [""; 0]);
    });
}

#[tokio::test]
async fn a_directory_moved_away_and_back_within_the_grace_gives_no_update() {
    let place = Place::missing();
    let mut source = two(&place, Duration::from_mins(1)).await;
    place.sh("mv manifests aside; sleep 0.3; mv aside manifests").await;
    source.receives_nothing().await;
    assert_eq!(source.mux.merged().borrow().len(), 3);
}

#[tokio::test]
async fn a_directory_that_stays_missing_is_removed_after_the_grace() {
    let place = Place::missing();
    let mut source = two(&place, SHORT).await;
    place.sh("rm -r manifests").await;
    source.receives_removals("a=i:1 b=i:1").await;
    fs::create_dir(place.path()).unwrap();
    source.receives_nothing().await;
}

#[tokio::test]
async fn a_directory_swapped_for_another_is_followed() {
    let place = Place::missing();
    let mut source = two(&place, LONGER).await;
    fs::create_dir(place.beside("new")).unwrap();
    fs::write(place.beside("new/a.yaml"), pod("a", "i:2")).unwrap();
    place.sh("mv manifests old; mv new manifests").await;
    source.receives("UPDATE: a=i:2").await;
    source.receives("REMOVE: b=i:1").await;
    fs::write(place.beside("old/b.yaml"), pod("b", "i:9")).unwrap();
    source.receives_nothing().await;
}

#[tokio::test]
async fn a_link_to_the_directory_swapped_for_another_is_followed() {
    let place = Place::missing();
    for (version, image) in [("v1", "i:1"), ("v2", "i:2")] {
        fs::create_dir(place.beside(version)).unwrap();
        fs::write(place.beside(version).join("a.yaml"), pod("a", image)).unwrap();
    }
    symlink("v1", place.path()).unwrap();
    let mut source = place.start();
    source.receives("ADD: a=i:1").await;
    fs::write(place.beside("v1/a.yaml"), pod("a", "i:1.1")).unwrap();
    source.receives("UPDATE: a=i:1.1").await;
    place.sh("ln -s v2 tmp; mv -T tmp manifests").await;
    source.receives("UPDATE: a=i:2").await;
    fs::write(place.beside("v2/a.yaml"), pod("a", "i:3")).unwrap();
    source.receives("UPDATE: a=i:3").await;
    source.receives_nothing().await;
}

#[tokio::test]
async fn a_directory_on_the_way_that_was_moved_away_and_back_is_still_watched() {
    let place = Place::missing();
    fs::create_dir_all(place.beside("a/m")).unwrap();
    symlink("a", place.beside("link")).unwrap();
    let web = place.beside("a/m/web.yaml");
    fs::write(&web, pod("web", "i:1")).unwrap();
    let mut source = Running::start(settings(&place.beside("link/m")));
    source.receives("ADD: web=i:1").await;
    for n in 2..12 {
        fs::rename(place.beside("a"), place.beside("away")).unwrap();
        fs::rename(place.beside("away"), place.beside("a")).unwrap();
        let image = format!("i:{n}");
        fs::write(&web, pod("web", &image)).unwrap();
        source.receives(&format!("UPDATE: web={image}")).await;
    }
}

#[test]
fn a_directory_replaced_by_a_file_and_back() {
    logged(|log| async move {
        let place = Place::missing();
        let mut source = two_with(&place, Duration::from_secs(1), LONGER).await;
        fs::write(place.beside("file"), pod("c", "i:1")).unwrap();
        place.sh("rm -r manifests; mv file manifests").await;
        source.receives("ADD: c=i:1").await;
        source.receives_removals("a=i:1 b=i:1").await;
        fs::write(place.path(), pod("c", "i:2")).unwrap();
        source.receives("UPDATE: c=i:2").await;
        place.sh("rm manifests; mkdir manifests").await;
        source.receives("REMOVE: c=i:2").await;
        source.receives_nothing().await;
        assert_eq!(log.lines_with("file skipped"), [""; 0]);
    });
}

#[test]
fn a_single_file_is_removed_after_the_quiet_time_not_the_grace() {
    logged(|log| async move {
        let place = Place::missing();
        fs::write(place.path(), pod("a", "i:1")).unwrap();
        let mut source = place.start_with(|settings| settings.missing_grace = Duration::from_hours(1));
        source.receives("ADD: a=i:1").await;
        fs::remove_file(place.path()).unwrap();
        source.receives("REMOVE: a=i:1").await;
        let status = source.status(|status| status.failing.is_some()).await;
        assert!(status.failing.unwrap().error.starts_with("the path does not exist"));
        assert_eq!(log.lines_with("source failed").len(), 1);
        fs::write(place.path(), pod("a", "i:2")).unwrap();
        source.receives("ADD: a=i:2").await;
        source.status(|status| status.failing.is_none()).await;
    });
}

#[test]
fn vim_saves_a_single_file() {
    logged(|log| async move {
        let place = Place::missing();
        fs::write(place.path(), pod("a", "i:1")).unwrap();
        fs::write(place.beside("new"), pod("a", "i:2")).unwrap();
        let mut source = place.start_with(|settings| settings.quiet = Duration::from_secs(1));
        source.receives("ADD: a=i:1").await;
        fs::rename(place.path(), place.beside("manifests~")).unwrap();
        source.status(|status| status.detail.contains("pending")).await;
        place.sh("cat new > manifests; rm manifests~").await;
        source.receives("UPDATE: a=i:2").await;
        assert!(source.handle.rescanned().await);
        source.status(|status| !status.detail.contains("pending")).await;
        fs::write(place.path(), pod("a", "i:3")).unwrap();
        source.receives("UPDATE: a=i:3").await;
        assert_eq!(log.lines_with("source failed"), [""; 0]);
    });
}

#[tokio::test]
async fn a_mount_over_the_directory_keeps_the_pods_and_is_followed() {
    if !inside("-Urm", "file_places::a_mount_over_the_directory_keeps_the_pods_and_is_followed") {
        return;
    }
    let place = Place::missing();
    let mut source = two(&place, Duration::from_hours(1)).await;
    sh(&place.path(), "mount -t tmpfs none .").await;
    // A mount gives no event: a scan finds it.
    assert!(source.handle.rescanned().await);
    assert_eq!(source.mux.merged().borrow().len(), 2);
    source.status(|status| status.failing.is_some()).await;
    place.write("c.yaml", &pod("c", "i:1"));
    source.receives("ADD: c=i:1").await;
    source.status(|status| status.failing.is_none()).await;
    place.write("a.yaml", &pod("a", "i:2"));
    source.receives("UPDATE: a=i:2").await;
    // An unmount gives one. The files below it are the old ones, and c is kept for the grace time.
    place.sh("umount manifests").await;
    source.receives("UPDATE: a=i:1").await;
    assert_eq!(source.mux.merged().borrow().len(), 3);
    place.write("b.yaml", &pod("b", "i:3"));
    source.receives("UPDATE: b=i:3").await;
}
