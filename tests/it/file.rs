//! The file source: the kubelet's own tests, and cases that they do not cover.

use std::{fs, os::unix::fs::symlink, time::Duration};

use podmux::{
    manifest::Preparation,
    mux::{Mux, Notify},
    pod::{NodeName, SecurityLevel, SourceName},
    source::file::{Config, FileSource, OnInvalid},
};
use tokio_util::sync::CancellationToken;

use crate::support::files::{Place, line, pod, settings, soon};

// TestExtractFromBadDataFile
#[tokio::test]
async fn a_file_that_is_not_a_manifest_is_rejected() {
    let place = Place::directory();
    place.write("bad.yaml", "not a pod\n");
    let mut source = place.start();
    source.receives("ADD:").await;
    let rejections = source.rejections();
    assert_eq!(rejections.len(), 1);
    assert!(
        rejections[0].starts_with(&format!("{}: 1:1: ", place.at("bad.yaml").display())),
        "{rejections:?}"
    );
}

/// A start may hold the mux up until other sources have been read.
#[tokio::test]
async fn changes_are_noticed_before_the_mux_begins() {
    let place = Place::directory();
    for name in ["a", "b"] {
        place.write(&format!("{name}.yaml"), &pod(name, "i:1"));
    }
    let (mux, merging) = Mux::new(&[SourceName::File]);
    // The status shows what has been published: a removal without the quiet time, and manifests that were never open.
    let mut settings = settings(&place.path());
    settings.quiet = Duration::ZERO;
    let (source, handle) = settings.source(mux.channel(SourceName::File).unwrap());
    let stop = CancellationToken::new();
    let source = tokio::spawn(source.run(stop.clone()));
    let mut status = handle.status();
    soon(status.wait_for(|status| status.detail == "watching; 2 manifests")).await.unwrap();
    fs::remove_file(place.at("a.yaml")).unwrap();
    soon(status.wait_for(|status| status.detail == "watching; 1 manifest")).await.unwrap();
    for (name, image) in [("b", "i:2"), ("c", "i:1")] {
        fs::write(place.beside(name), pod(name, image)).unwrap();
        fs::rename(place.beside(name), place.at(&format!("{name}.yaml"))).unwrap();
    }
    soon(status.wait_for(|status| status.detail == "watching; 2 manifests")).await.unwrap();
    tokio::spawn(merging.run());
    let mut updates = mux.updates(Notify::Incremental);
    assert_eq!(line(&soon(updates.next()).await.unwrap()), "ADD: b=i:2 c=i:1");
    stop.cancel();
    soon(source).await.unwrap();
}

/// As the second directory of an agent of one's own.
#[tokio::test]
async fn a_directory_may_be_the_source_of_another_name() {
    let place = Place::directory();
    place.write("a.yaml", &pod("a", "i:1"));
    let (mux, merging) = Mux::new(&[SourceName::Url]);
    tokio::spawn(merging.run());
    let node = NodeName::new("node").unwrap();
    let preparation = Preparation { source: SourceName::Url, node, generate: None, namespace: None };
    let config = Config {
        path: place.path(),
        check_frequency: Duration::from_hours(1),
        on_invalid: OnInvalid::Keep,
        pod_security: SecurityLevel::default(),
    };
    let (source, _handle) = FileSource::new(config, preparation, mux.channel(SourceName::Url).unwrap());
    let mut updates = mux.updates(Notify::Incremental);
    let stop = CancellationToken::new();
    let source = tokio::spawn(source.run(stop.clone()));
    assert_eq!(line(&soon(updates.next()).await.unwrap()), "ADD: a=i:1");
    stop.cancel();
    source.await.unwrap();
}

// TestExtractFromEmptyDir
#[tokio::test]
async fn an_empty_directory_is_synced() {
    let mut source = Place::directory().start();
    source.receives("ADD:").await;
}

// TestExtractFromNonExistentFile, TestUpdateOnNonExistentFile
#[tokio::test]
async fn a_missing_path_is_synced() {
    let place = Place::missing();
    let mut source = place.start();
    source.receives("ADD:").await;
    let status = source.status(|status| status.failing.is_some()).await;
    assert!(status.failing.unwrap().error.contains("does not exist"));
}

// TestReadPodsFromFileExistAlready
#[tokio::test]
async fn manifests_at_the_start_are_one_add() {
    let place = Place::directory();
    place.write("b.yaml", &pod("b", "i:1"));
    place.write("a.json", r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i:2"}]}}"#);
    let mut source = place.start();
    source.receives("ADD: a=i:2 b=i:1").await;
    source.receives_nothing().await;
}

// TestReadPodsFromFileExistAlready, path to a file
#[tokio::test]
async fn the_path_may_be_one_manifest() {
    let place = Place::missing();
    fs::write(place.path(), pod("a", "i:1")).unwrap();
    let mut source = place.start();
    source.receives("ADD: a=i:1").await;
}

/// `TestWatchFileAdded` and `TestWatchFileChanged`: a directory or a file, plain or through a symbolic link.
async fn added_and_changed(directory: bool, link: bool) {
    let place = if directory { Place::directory() } else { Place::missing() };
    let mut source = place.start();
    source.receives("ADD:").await;
    let path = if directory { place.at("web.yaml") } else { place.path() };
    let real = if link { place.beside("real.yaml") } else { path.clone() };
    fs::write(&real, pod("web", "i:1")).unwrap();
    if link {
        symlink(&real, &path).unwrap();
    }
    source.receives("ADD: web=i:1").await;
    fs::write(&real, pod("web", "i:2")).unwrap();
    if link && directory {
        // The target is outside the tree: a scan finds it, as with the kubelet.
        source.handle.rescan();
    }
    source.receives("UPDATE: web=i:2").await;
    fs::remove_file(&path).unwrap();
    source.receives("REMOVE: web=i:2").await;
}

#[tokio::test]
async fn a_file_added_to_a_directory_and_changed() {
    added_and_changed(true, false).await;
}

#[tokio::test]
async fn a_link_added_to_a_directory_and_its_target_changed() {
    added_and_changed(true, true).await;
}

#[tokio::test]
async fn the_one_file_added_and_changed() {
    added_and_changed(false, false).await;
}

#[tokio::test]
async fn the_one_file_added_as_a_link_and_changed() {
    added_and_changed(false, true).await;
}

// "two files with one pod name" of upstream's master
#[tokio::test]
async fn of_two_files_with_one_pod_name_the_first_by_name_wins_and_the_other_takes_over() {
    let place = Place::directory();
    place.write("a.yaml", &pod("web", "i:1"));
    place.write("b.yaml", &pod("web", "i:2"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    soon(source.mux.merged().wait_for(|merged| merged.rejections().count() == 1)).await.unwrap();
    let rejections = source.rejections();
    assert!(rejections[0].contains("b.yaml: the pod in"), "{rejections:?}");
    fs::remove_file(place.at("a.yaml")).unwrap();
    source.receives("UPDATE: web=i:2").await;
    assert_eq!(source.rejections(), [""; 0]);
}

// Untested upstream: file rename
#[tokio::test]
async fn a_renamed_file_gives_no_update() {
    for names in [["a.yaml", "b.yaml"], ["b.yaml", "a.yaml"]] {
        let place = Place::directory();
        place.write(names[0], &pod("web", "i:1"));
        // A rename counts as one for so long.
        let mut source = place.start_with(|settings| settings.quiet = Duration::from_secs(2));
        source.receives("ADD: web=i:1").await;
        fs::rename(place.at(names[0]), place.at(names[1])).unwrap();
        source.receives_nothing().await;
        place.write(names[1], &pod("web", "i:2"));
        source.receives("UPDATE: web=i:2").await;
        assert_eq!(source.rejections(), [""; 0]);
    }
}

#[tokio::test]
async fn two_names_of_a_file_that_is_renamed_are_no_conflict_before_both_exist() {
    let place = Place::directory();
    // A rename counts as one for so long.
    let mut source = place.start_with(|settings| settings.quiet = Duration::from_hours(1));
    source.receives("ADD:").await;
    place.write("a.yaml", &pod("web", "i:1"));
    source.receives("ADD: web=i:1").await;
    fs::rename(place.at("a.yaml"), place.at("b.yaml")).unwrap();
    source.receives_nothing_from_events().await;
    assert_eq!(source.rejections(), [""; 0]);
    source.end().await;
    let mut source = place.start();
    source.receives("ADD: marker1=m web=i:1").await;
    fs::copy(place.at("b.yaml"), place.at("a.yaml")).unwrap();
    soon(source.mux.merged().wait_for(|merged| merged.rejections().count() == 1)).await.unwrap();
    let expected = format!(
        "{}: the pod in {} has the same name; rename one of them",
        place.at("b.yaml").display(),
        place.at("a.yaml").display()
    );
    assert_eq!(source.rejections(), [expected]);
}

// Untested upstream: name edited inside a file
#[tokio::test]
async fn a_name_edited_inside_a_file_is_another_pod() {
    let place = Place::directory();
    place.write("a.yaml", &pod("old", "i:1"));
    let mut source = place.start();
    source.receives("ADD: old=i:1").await;
    place.write("a.yaml", &pod("new", "i:1"));
    source.receives("REMOVE: old=i:1").await;
    source.receives("ADD: new=i:1").await;
}

#[tokio::test]
async fn writing_the_same_bytes_gives_no_update() {
    let place = Place::directory();
    place.write("a.yaml", &pod("web", "i:1"));
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    place.write("a.yaml", &pod("web", "i:1"));
    place.sh("touch manifests/a.yaml; chmod 600 manifests/a.yaml").await;
    source.receives_nothing().await;
}

#[tokio::test]
async fn a_thousand_files_at_once_are_all_published() {
    let place = Place::directory();
    let mut source = place.start();
    source.receives("ADD:").await;
    for index in 0..1000 {
        place.write(&format!("{index}.yaml"), &pod(&format!("p{index}"), "i:1"));
    }
    let mut pods = 0;
    while pods < 1000 {
        let line = source.next_update().await;
        assert!(line.starts_with("ADD: "), "{line}");
        pods += line.matches('=').count();
    }
    source.receives_nothing().await;
    place.sh("rm manifests/[0-9]*.yaml").await;
    while pods > 0 {
        let line = source.next_update().await;
        assert!(line.starts_with("REMOVE: "), "{line}");
        pods -= line.matches('=').count();
    }
}

#[tokio::test]
async fn a_rescan_finds_changes_without_events() {
    let place = Place::directory();
    fs::create_dir(place.beside("outside")).unwrap();
    fs::write(place.beside("outside/web.yaml"), pod("web", "i:1")).unwrap();
    symlink(place.beside("outside/web.yaml"), place.at("web.yaml")).unwrap();
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    fs::write(place.beside("outside/web.yaml"), pod("web", "i:2")).unwrap();
    assert!(source.handle.rescanned().await);
    let merged = source.mux.merged().borrow().clone();
    let (_, entry) = merged.iter().next().unwrap();
    assert!(String::from_utf8_lossy(entry.pod().text()).contains("i:2"), "rescanned means merged");
    source.receives("UPDATE: web=i:2").await;
}

#[tokio::test]
async fn after_a_rescan_a_manifest_that_is_gone_has_no_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    place.write("other.yaml", &pod("other", "i:1"));
    let mut source = place.start();
    source.receives("ADD: other=i:1 web=i:1").await;
    fs::remove_file(place.at("web.yaml")).unwrap();
    assert_eq!(source.merged_pods().await, "other=i:1");
}
