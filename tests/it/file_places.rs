//! Changes of the source's path: missing, removed, recreated, replaced, mounted over.

use std::{fs, os::unix::fs::symlink, time::Duration};

use crate::support::{
    files::{Place, Running, pod, sh},
    logs::logged,
    namespace::inside,
};

const SHORT: Duration = Duration::from_millis(300);

async fn two(place: &Place, grace: Duration) -> Running {
    fs::create_dir_all(place.path()).unwrap();
    place.write("a.yaml", &pod("a", "i:1"));
    place.write("b.yaml", &pod("b", "i:1"));
    let mut source = place.start_with(|settings| settings.missing_grace = grace);
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
    let mut source = Running::start(crate::support::files::settings(&place.beside("x/y/z")));
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
    let mut source = two(&place, Duration::from_mins(1)).await;
    place.sh("rm -r manifests").await;
    let status = source.status(|status| status.failing.is_some()).await;
    assert!(status.failing.unwrap().error.contains("the path no longer exists"));
    assert_eq!(source.mux.merged().borrow().len(), 2);
    place.sh("mkdir manifests").await;
    source.status(|status| status.failing.is_none()).await;
    place.write("a.yaml", &pod("a", "i:1"));
    place.write("b.yaml", &pod("b", "i:2"));
    source.receives("UPDATE: b=i:2").await;
    source.receives_nothing().await;
    place.write("a.yaml", &pod("a", "i:3"));
    source.receives("UPDATE: a=i:3").await;
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
    let mut source = two(&place, SHORT).await;
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
    let mut source = Running::start(crate::support::files::settings(&place.beside("link/m")));
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
        let mut source = two(&place, SHORT).await;
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

#[tokio::test]
async fn a_single_file_is_removed_after_the_quiet_time_not_the_grace() {
    let place = Place::missing();
    fs::write(place.path(), pod("a", "i:1")).unwrap();
    let mut source = place.start_with(|settings| settings.missing_grace = Duration::from_hours(1));
    source.receives("ADD: a=i:1").await;
    fs::remove_file(place.path()).unwrap();
    source.receives("REMOVE: a=i:1").await;
    fs::write(place.path(), pod("a", "i:2")).unwrap();
    source.receives("ADD: a=i:2").await;
}

#[tokio::test]
async fn vim_saves_a_single_file() {
    let place = Place::missing();
    fs::write(place.path(), pod("a", "i:1")).unwrap();
    fs::write(place.beside("new"), pod("a", "i:2")).unwrap();
    let mut source = place.start_with(|settings| settings.quiet = Duration::from_secs(1));
    source.receives("ADD: a=i:1").await;
    place.sh("mv manifests manifests~; cat new > manifests; rm manifests~").await;
    source.receives("UPDATE: a=i:2").await;
    assert!(source.handle.rescanned().await);
    source.status(|status| !status.detail.contains("pending")).await;
    fs::write(place.path(), pod("a", "i:3")).unwrap();
    source.receives("UPDATE: a=i:3").await;
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
    place.write("c.yaml", &pod("c", "i:1"));
    source.receives("ADD: c=i:1").await;
    place.write("a.yaml", &pod("a", "i:2"));
    source.receives("UPDATE: a=i:2").await;
    // An unmount gives one. The files below it are the old ones, and c is kept for the grace time.
    place.sh("umount manifests").await;
    source.receives("UPDATE: a=i:1").await;
    assert_eq!(source.mux.merged().borrow().len(), 3);
    place.write("b.yaml", &pod("b", "i:3"));
    source.receives("UPDATE: b=i:3").await;
}
