//! Each way to save a file gives exactly one correct update, and no conflict.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::symlink,
    thread,
    time::{Duration, SystemTime},
};

use podmux::{
    db::Sequence,
    events::{EventReader, Events},
    host::{Attributes, FileKind, Host},
    pod::NodeName,
    source::file::Timings,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::time::sleep;

use crate::support::{
    files::{Place, RealFiles, Running, line, pod, settings, soon},
    logs::logged,
};

/// A directory with `web.yaml` (web=i:1).
async fn web() -> (Place, Running) {
    web_with(Duration::from_millis(600)).await
}

/// The same with this quiet time: long enough for a machine that stalls during a save.
async fn web_with(quiet: Duration) -> (Place, Running) {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let mut source = place.start_with(|settings| settings.quiet = quiet);
    source.receives("ADD: web=i:1").await;
    (place, source)
}

/// The events of a source from now on.
fn events(source: &Running) -> EventReader {
    let (node, merged) = (NodeName::new("node").unwrap(), source.mux.merged());
    let (events, reader) = Events::new(node, merged, Vec::new(), Sequence::after("run", 0), Host::default());
    tokio::spawn(events.run());
    reader
}

fn reasons(events: &EventReader) -> Vec<String> {
    events.held().by_key.values().map(|event| event.field("reason").to_owned()).collect()
}

/// Runs a script that turns i:1 into i:2, and asserts that it gives exactly one UPDATE, and no conflict.
fn is_one_update(script: &str) {
    logged(|log| async move {
        let (place, mut source) = web_with(Duration::from_secs(2)).await;
        let events = events(&source);
        fs::write(place.beside("new.yaml"), pod("web", "i:2")).unwrap();
        place.sh(script).await;
        source.receives("UPDATE: web=i:2").await;
        source.receives_nothing().await;
        assert_eq!(source.rejections(), [""; 0]);
        assert_eq!(log.lines_with("conflict"), [""; 0]);
        assert_eq!(reasons(&events), [""; 0]);
    });
}

#[test]
fn vim() {
    is_one_update(
        "cd manifests
         : > 4913; rm 4913
         cp web.yaml .web.yaml.swp
         mv web.yaml web.yaml~
         sleep 0.2
         cat ../new.yaml > web.yaml
         chmod 644 web.yaml
         rm web.yaml~ .web.yaml.swp",
    );
}

#[test]
fn sed_in_place() {
    is_one_update("sed -i s/i:1/i:2/ manifests/web.yaml");
}

#[test]
fn sed_in_place_with_a_backup() {
    is_one_update("sed -i.bak s/i:1/i:2/ manifests/web.yaml; ls manifests/web.yaml.bak");
}

#[test]
fn cp_over() {
    is_one_update("cp new.yaml manifests/web.yaml");
}

#[test]
fn cp_with_attributes_over() {
    is_one_update("touch -d 2001-01-01 new.yaml; cp -p new.yaml manifests/web.yaml");
}

#[test]
fn install_over() {
    is_one_update("install -m 600 new.yaml manifests/web.yaml");
}

#[test]
fn a_shell_redirection() {
    is_one_update("cat new.yaml > manifests/web.yaml");
}

#[test]
fn a_rename_over_it() {
    is_one_update("mv new.yaml manifests/web.yaml");
}

#[test]
fn a_hidden_temporary_renamed_over_it_as_rsync_does() {
    is_one_update("cp new.yaml manifests/.web.yaml.Xy12; mv manifests/.web.yaml.Xy12 manifests/web.yaml");
}

#[test]
fn a_temporary_that_is_a_manifest_renamed_over_it() {
    for name in ["before.yaml", "zz-after.yaml"] {
        is_one_update(&format!("cp new.yaml manifests/{name}; mv manifests/{name} manifests/web.yaml"));
    }
}

#[tokio::test]
async fn a_hard_link_whose_first_name_is_gone() {
    let place = Place::directory();
    let mut source = place.start();
    source.receives("ADD:").await;
    for n in 0..20 {
        let (hidden, name) = (place.at(".new"), format!("web{n}"));
        fs::write(&hidden, pod(&name, "i:1")).unwrap();
        // It was written in an earlier tick of the file system's clock.
        let file = OpenOptions::new().write(true).open(&hidden).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(1)).unwrap();
        fs::hard_link(&hidden, place.at(&name)).unwrap();
        fs::remove_file(&hidden).unwrap();
        source.receives(&format!("ADD: {name}=i:1")).await;
    }
}

#[test]
fn a_file_beside_it_is_no_conflict_until_it_has_stayed() {
    logged(|log| async move {
        let place = Place::directory();
        // It stays for as long as the machine needs.
        let mut source = place.start_with(|settings| settings.quiet = Duration::from_hours(1));
        source.receives("ADD:").await;
        let events = events(&source);
        place.write("web.yaml", &pod("web", "i:1"));
        source.receives("ADD: web=i:1").await;
        place.write("copy.yaml", &pod("web", "i:2"));
        source.receives("UPDATE: web=i:2").await;
        source.receives_nothing_from_events().await;
        assert_eq!(source.rejections(), [""; 0]);
        fs::rename(place.at("copy.yaml"), place.at("web.yaml")).unwrap();
        source.receives_nothing_from_events().await;
        assert_eq!(source.rejections(), [""; 0]);
        assert_eq!(log.lines_with("conflict"), [""; 0]);
        assert_eq!(reasons(&events), [""; 0]);
    });
}

#[test]
fn a_conflict_that_stays_is_reported_once_though_its_files_are_edited() {
    logged(|log| async move {
        let (place, mut source) = web().await;
        let events = events(&source);
        place.write("two.yaml", &pod("web", "i:2"));
        source.receives("UPDATE: web=i:2").await;
        soon(source.mux.merged().wait_for(|merged| merged.rejections().count() == 1)).await.unwrap();
        let before = source.rejections();
        // The temporary file takes the name of the pod meanwhile.
        place.sh("sed -i s/i:2/i:3/ manifests/two.yaml").await;
        source.receives("UPDATE: web=i:3").await;
        place.sh("sed -i s/i:1/i:4/ manifests/web.yaml").await;
        source.handle.rescanned().await;
        assert_eq!(source.rejections(), before);
        let found = log.lines_with("conflict found");
        assert_eq!((found.len(), log.lines_with("conflict resolved")), (1, vec![]), "{found:?}");
        assert!(
            found[0].contains("web.yaml") && found[0].contains("two.yaml has the same name"),
            "{found:?}"
        );
        assert_eq!(reasons(&events), ["DuplicateName"]);
        place.sh("rm manifests/two.yaml").await;
        source.receives("UPDATE: web=i:4").await;
        source.receives_nothing().await;
        assert_eq!(source.rejections(), [""; 0]);
        assert_eq!(log.lines_with("conflict found"), found);
        assert_eq!(log.lines_with("conflict resolved").len(), 1);
    });
}

#[test]
fn a_hard_link_in_its_place() {
    is_one_update("rm manifests/web.yaml; ln new.yaml manifests/web.yaml");
}

#[test]
fn removed_and_written_again() {
    is_one_update("rm manifests/web.yaml; sleep 0.2; cat new.yaml > manifests/web.yaml");
}

#[test]
fn an_emacs_save_with_lock_and_backup() {
    is_one_update(
        "cd manifests
         ln -s user@host.1:1 .#web.yaml
         cp web.yaml '#web.yaml#'
         cp web.yaml web.yaml~
         cat ../new.yaml > web.yaml
         rm '.#web.yaml' '#web.yaml#'",
    );
}

#[tokio::test]
async fn moved_out_and_in_again() {
    let (place, mut source) = web().await;
    place.sh("mv manifests/web.yaml aside.yaml").await;
    source.receives("REMOVE: web=i:1").await;
    place.sh("mv aside.yaml manifests/web.yaml").await;
    source.receives("ADD: web=i:1").await;
    source.receives_nothing().await;
}

#[tokio::test]
async fn disabled_by_renaming_it() {
    let (place, mut source) = web().await;
    place.sh("mv manifests/web.yaml manifests/web.yaml.bak").await;
    source.receives("REMOVE: web=i:1").await;
    source.receives_nothing().await;
}

#[tokio::test]
async fn a_file_that_is_never_closed_is_read_when_two_scans_agree() {
    let place = Place::directory();
    let mut source = place.start();
    source.receives("ADD:").await;
    let mut file = File::create(place.at("web.yaml")).unwrap();
    file.write_all(pod("web", "i:1").as_bytes()).unwrap();
    // No scan meets it before the event of its creation is handled.
    source.receives_nothing_from_events().await;
    source.receives_nothing_yet().await;
    source.handle.rescan();
    source.receives("ADD: web=i:1").await;
    drop(file);
    source.receives_nothing().await;
}

/// Writes a manifest byte by byte over about a second, with pauses that are shorter than the
/// quiet time, and keeps it open.
async fn trickle(file: &mut File, text: &str, source: &Running) {
    for (index, chunk) in text.as_bytes().chunks(8).enumerate() {
        file.write_all(chunk).unwrap();
        sleep(Duration::from_millis(if index == 5 { 300 } else { 40 })).await;
        source.handle.rescan();
    }
}

#[tokio::test]
async fn a_slow_writer_of_a_new_file() {
    let place = Place::directory();
    let mut source = place.start();
    source.receives("ADD:").await;
    let mut file = File::create(place.at("web.yaml")).unwrap();
    for chunk in pod("web", "i:1").as_bytes().chunks(8) {
        file.write_all(chunk).unwrap();
        sleep(Duration::from_millis(60)).await;
    }
    place.write("other.yaml", &pod("other", "i:1"));
    source.receives("ADD: other=i:1").await;
    assert_eq!(source.rejections(), [""; 0]);
    drop(file);
    source.receives("ADD: web=i:1").await;
    source.receives_nothing().await;
}

#[test]
fn a_slow_writer_over_an_old_file_during_scans() {
    logged(|log| async move {
        let (place, mut source) = web().await;
        let mut file = OpenOptions::new().write(true).truncate(true).open(place.at("web.yaml")).unwrap();
        trickle(&mut file, &pod("web", "i:2"), &source).await;
        drop(file);
        source.receives("UPDATE: web=i:2").await;
        source.receives_nothing().await;
        assert_eq!(log.lines_with("rejected"), [""; 0], "no part of it was read");
    });
}

#[tokio::test]
async fn a_slow_writer_that_started_before_the_source() {
    let place = Place::directory();
    place.write("a.yaml", &pod("a", "i:1"));
    let text = pod("web", "i:1");
    let (begin, rest) = text.split_at(text.len() - "i:1\n".len());
    let mut file = File::create(place.at("web.yaml")).unwrap();
    file.write_all(begin.as_bytes()).unwrap();
    let writer = tokio::spawn(async move {
        // Longer than the first listing waits.
        for _ in 0..40 {
            file.write_all(b" ").unwrap();
            sleep(Duration::from_millis(40)).await;
        }
        file
    });
    let mut source = place.start();
    source.receives("ADD: a=i:1").await;
    let mut file = writer.await.unwrap();
    assert_eq!(source.rejections(), [""; 0]);
    file.write_all(rest.as_bytes()).unwrap();
    drop(file);
    source.receives("ADD: web=i:1").await;
}

// Untested upstream: truncate, then write
#[tokio::test]
async fn truncated_then_written() {
    let (place, mut source) = web().await;
    place.write("web.yaml", "");
    source.status(|status| status.detail.contains(" 1 rejected")).await;
    place.write("web.yaml", &pod("web", "i:2"));
    source.receives("UPDATE: web=i:2").await;
    source.receives_nothing().await;
    assert_eq!(source.rejections(), [""; 0]);
}

/// A `ConfigMap` volume as the kubelet writes it: the manifests are links through `..data`, which
/// is replaced by a link to another directory.
fn config_map(place: &Place, version: &str, image: &str) {
    fs::create_dir(place.at(version)).unwrap();
    for name in ["one", "two"] {
        fs::write(place.at(version).join(format!("{name}.yaml")), pod(name, image)).unwrap();
    }
    swap(place, version);
}

fn swap(place: &Place, version: &str) {
    symlink(version, place.at("..data_tmp")).unwrap();
    fs::rename(place.at("..data_tmp"), place.at("..data")).unwrap();
}

/// The directory of such a volume.
fn config_map_place() -> Place {
    let place = Place::directory();
    config_map(&place, "..v1", "i:1");
    for name in ["one.yaml", "two.yaml"] {
        symlink(format!("..data/{name}"), place.at(name)).unwrap();
    }
    place
}

#[tokio::test]
async fn a_config_map_swap() {
    let place = config_map_place();
    let mut source = place.start();
    source.receives("ADD: one=i:1 two=i:1").await;
    for version in 2..5 {
        let (new, old) = (format!("..v{version}"), format!("..v{}", version - 1));
        config_map(&place, &new, &format!("i:{version}"));
        fs::remove_dir_all(place.at(&old)).unwrap();
        source.receives(&format!("UPDATE: one=i:{version} two=i:{version}")).await;
        source.receives_nothing().await;
    }
}

#[tokio::test]
async fn a_config_map_swap_is_one_update_on_a_slow_disk_also_under_scans() {
    let place = config_map_place();
    // A look at a manifest takes longer than the quiet time.
    let seen = |attributes: &mut Attributes| {
        if attributes.kind == FileKind::Link {
            thread::sleep(Timings::default().quiet * 2);
        }
    };
    let host = RealFiles { seen, ..RealFiles::default() }.host();
    let mut source = Running::hold(settings(&place.path()), |source| source.on(host)).go();
    source.receives("ADD: one=i:1 two=i:1").await;
    config_map(&place, "..v2", "i:2");
    let scans = async {
        loop {
            source.handle.rescan();
            sleep(Duration::from_millis(10)).await;
        }
    };
    let update = soon(async {
        tokio::select! { update = source.updates.next() => update, () = scans => None }
    });
    assert_eq!(line(&update.await.unwrap()), "UPDATE: one=i:2 two=i:2");
    // Its links lead nowhere.
    fs::create_dir(place.at("..v3")).unwrap();
    swap(&place, "..v3");
    let removal = source.next_update().await;
    let mut words: Vec<&str> = removal.split(' ').collect();
    words.sort_unstable();
    assert_eq!(words, ["REMOVE:", "one=i:2", "two=i:2"], "in any order");
}

#[tokio::test]
async fn a_changed_link_target_is_found_by_a_scan() {
    let place = Place::directory();
    fs::create_dir(place.at("sub")).unwrap();
    fs::write(place.at("sub/real"), pod("web", "i:1")).unwrap();
    symlink("sub/real", place.at("web.yaml")).unwrap();
    let mut source = place.start();
    source.receives("ADD: web=i:1").await;
    fs::write(place.at("sub/real"), pod("web", "i:2")).unwrap();
    source.handle.rescan();
    source.receives("UPDATE: web=i:2").await;
    fs::remove_file(place.at("sub/real")).unwrap();
    source.handle.rescan();
    source.receives("REMOVE: web=i:2").await;
    fs::write(place.at("sub/real"), pod("web", "i:3")).unwrap();
    source.handle.rescan();
    source.receives("ADD: web=i:3").await;
    place.sh("rm -r manifests/sub").await;
    source.handle.rescan();
    source.receives("REMOVE: web=i:3").await;
    place.sh("mkdir manifests/sub").await;
    source.receives_nothing().await;
    fs::write(place.at("sub/real"), pod("web", "i:4")).unwrap();
    source.handle.rescan();
    source.receives("ADD: web=i:4").await;
}

#[tokio::test]
async fn a_link_created_after_the_start_is_followed() {
    let place = Place::directory();
    fs::create_dir(place.at("sub")).unwrap();
    fs::write(place.at("sub/real"), pod("web", "i:1")).unwrap();
    let mut source = place.start();
    source.receives("ADD:").await;
    symlink("sub/real", place.at("web.yaml")).unwrap();
    source.receives("ADD: web=i:1").await;
    fs::write(place.at("sub/real"), pod("web", "i:2")).unwrap();
    source.handle.rescan();
    source.receives("UPDATE: web=i:2").await;
}

#[tokio::test]
async fn two_files_that_are_swapped_in_one_step_give_no_update() {
    let place = Place::directory();
    let [web, other] = ["web", "other"].map(|name| {
        place.write(&format!("{name}.yaml"), &pod(name, "i:1"));
        place.at(&format!("{name}.yaml"))
    });
    let mut source = place.start_with(|settings| settings.quiet = Duration::from_millis(600));
    source.receives("ADD: other=i:1 web=i:1").await;
    for _ in 0..3 {
        renameat_with(CWD, &web, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        source.receives_nothing().await;
    }
}
