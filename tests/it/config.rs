//! The updates that a consumer receives when the listing of a source changes: the kubelet's `config_test.go`, and more.

use expect_test::expect;
use podmux::{pod::SourceName, storage::Notify};

use crate::support::script::{check, check_with};

// TestNewPodAdded
#[test]
fn a_new_pod_is_added() {
    check(
        "file: foo",
        &expect![[r#"
        > file: foo
        ADD file: default/foo#foo-uid
    "#]],
    );
}

// TestNewPodAddedInvalidNamespace
#[test]
fn a_namespace_is_passed_through_as_it_is() {
    check(
        "api: new/foo",
        &expect![[r#"
        > api: new/foo
        ADD api: new/foo#foo-uid
    "#]],
    );
}

// TestNewPodAddedDefaultNamespace
#[test]
fn a_pod_without_a_namespace_is_in_default() {
    let pod = podmux::pod::Prepared::from_value(serde_json::json!({"metadata": {"name": "foo"}})).unwrap();
    assert_eq!(pod.key().as_str(), "default/foo");
}

// TestNewPodAddedDifferentNamespaces
#[test]
fn a_second_namespace_adds_only_the_new_pod() {
    check(
        "file: default/foo
         file: default/foo new/foo#other",
        &expect![[r#"
            > file: default/foo
            ADD file: default/foo#foo-uid
            > file: default/foo new/foo#other
            ADD file: new/foo#other
        "#]],
    );
}

// TestInvalidPodFiltered
#[test]
fn the_same_listing_again_says_nothing() {
    check(
        "file: foo
         file: foo
         file: foo bar
         file: foo bar",
        &expect![[r#"
            > file: foo
            ADD file: default/foo#foo-uid
            > file: foo
            > file: foo bar
            ADD file: default/bar#bar-uid
            > file: foo bar
        "#]],
    );
}

// TestNewPodAddedUpdatedRemoved
#[test]
fn a_pod_is_added_updated_and_removed() {
    check(
        "file: foo
         file: foo=i:2
         file:
         file:",
        &expect![[r#"
            > file: foo
            ADD file: default/foo#foo-uid
            > file: foo=i:2
            UPDATE file: default/foo#foo-uid
            > file:
            REMOVE file: default/foo#foo-uid
            > file:
        "#]],
    );
}

// TestNewPodAddedDelete
#[test]
fn a_deletion_timestamp_is_a_delete_and_each_difference_after_it_too() {
    check(
        "api: foo
         api: foo!
         api: foo!
         api: foo!!
         api: foo!!+a:b
         api: foo!!+a:b%Failed
         api:",
        &expect![[r#"
            > api: foo
            ADD api: default/foo#foo-uid
            > api: foo!
            DELETE api: default/foo#foo-uid
            > api: foo!
            > api: foo!!
            DELETE api: default/foo#foo-uid
            > api: foo!!+a:b
            DELETE api: default/foo#foo-uid
            > api: foo!!+a:b%Failed
            RECONCILE api: default/foo#foo-uid
            > api:
            REMOVE api: default/foo#foo-uid
        "#]],
    );
}

#[test]
fn a_terminating_pod_seen_for_the_first_time_is_an_add() {
    check(
        "api: foo!",
        &expect![[r#"
        > api: foo!
        ADD api: default/foo#foo-uid
    "#]],
    );
}

// TestNewPodAddedUpdatedSet
#[test]
fn a_mixed_listing_is_told_as_remove_then_add_then_update() {
    check(
        "file: foo foo2 foo3
         file: foo2=i:2 foo3=i:2 foo4",
        &expect![[r#"
            > file: foo foo2 foo3
            ADD file: default/foo#foo-uid default/foo2#foo2-uid default/foo3#foo3-uid
            > file: foo2=i:2 foo3=i:2 foo4
            REMOVE file: default/foo#foo-uid
            ADD file: default/foo4#foo4-uid
            UPDATE file: default/foo2#foo2-uid default/foo3#foo3-uid
        "#]],
    );
}

// TestNewPodAddedSetReconciled
#[test]
fn a_status_alone_is_a_reconcile_of_that_pod_only() {
    check(
        "api: foo bar
         api: foo%Running bar
         api: foo%Failed=i:2 bar",
        &expect![[r#"
            > api: foo bar
            ADD api: default/bar#bar-uid default/foo#foo-uid
            > api: foo%Running bar
            RECONCILE api: default/foo#foo-uid
            > api: foo%Failed=i:2 bar
            UPDATE api: default/foo#foo-uid
        "#]],
    );
}

// TestInitialEmptySet
#[test]
fn the_first_sight_of_an_empty_source_is_an_empty_add() {
    check(
        "file:
         file:
         url:
         http:
         api: foo",
        &expect![[r#"
            > file:
            ADD file:
            > file:
            > url:
            ADD url:
            > http:
            ADD http:
            > api: foo
            ADD api: default/foo#foo-uid
        "#]],
    );
}

#[test]
fn an_empty_add_comes_after_deletes_and_before_reconciles() {
    check(
        "api: a b c
         asleep api: a! b%Running c=i:2
         file:",
        &expect![[r#"
            > api: a b c
            ADD api: default/a#a-uid default/b#b-uid default/c#c-uid
            > asleep api: a! b%Running c=i:2
            > file:
            UPDATE api: default/c#c-uid
            DELETE api: default/a#a-uid
            ADD file:
            RECONCILE api: default/b#b-uid
        "#]],
    );
}

// TestPodUpdateAnnotations
#[test]
fn an_annotation_that_changes_comes_or_goes_is_an_update() {
    check(
        "api: foo@a:1
         api: foo@a:2
         api: foo@b:2
         api: foo
         api: foo@kubernetes.io/config.mirror:x
         api: foo@kubernetes.io/config.hash:x",
        &expect![[r#"
            > api: foo@a:1
            ADD api: default/foo#foo-uid
            > api: foo@a:2
            UPDATE api: default/foo#foo-uid
            > api: foo@b:2
            UPDATE api: default/foo#foo-uid
            > api: foo
            UPDATE api: default/foo#foo-uid
            > api: foo@kubernetes.io/config.mirror:x
            > api: foo@kubernetes.io/config.hash:x
            UPDATE api: default/foo#foo-uid
        "#]],
    );
}

// TestPodUpdateLabels
#[test]
fn a_label_that_changes_is_an_update_and_empty_labels_are_not_absent_ones() {
    check(
        "api: foo+a:1
         api: foo+a:2
         api: foo+
         api: foo",
        &expect![[r#"
            > api: foo+a:1
            ADD api: default/foo#foo-uid
            > api: foo+a:2
            UPDATE api: default/foo#foo-uid
            > api: foo+
            UPDATE api: default/foo#foo-uid
            > api: foo
            UPDATE api: default/foo#foo-uid
        "#]],
    );
}

#[test]
fn what_is_not_compared_is_never_told_alone() {
    check(
        "api: foo<1
         api: foo<2",
        &expect![[r#"
            > api: foo<1
            ADD api: default/foo#foo-uid
            > api: foo<2
        "#]],
    );
}

#[test]
fn another_uid_under_a_name_is_a_remove_and_an_add() {
    check(
        "file: foo#1
         file: foo#2",
        &expect![[r#"
            > file: foo#1
            ADD file: default/foo#1
            > file: foo#2
            REMOVE file: default/foo#1
            ADD file: default/foo#2
        "#]],
    );
}

// TestNewSourceApiserver_TwoNamespacesSameName
#[test]
fn one_name_in_two_namespaces_is_two_pods() {
    check(
        "api: one/foo#1 two/foo#2
         api: one/foo#1",
        &expect![[r#"
            > api: one/foo#1 two/foo#2
            ADD api: one/foo#1 two/foo#2
            > api: one/foo#1
            REMOVE api: two/foo#2
        "#]],
    );
}

#[test]
fn the_important_are_added_first_and_removed_last() {
    check(
        "api: d c b^5 a^9<2 z^9<1
         api:",
        &expect![[r#"
            > api: d c b^5 a^9<2 z^9<1
            ADD api: default/z#z-uid default/a#a-uid default/b#b-uid default/c#c-uid default/d#d-uid
            > api:
            REMOVE api: default/d#d-uid default/c#c-uid default/b#b-uid default/a#a-uid default/z#z-uid
        "#]],
    );
}

#[test]
fn a_pod_that_was_gone_between_two_looks_is_removed_and_added() {
    check(
        "http: foo
         asleep http:
         http: foo",
        &expect![[r#"
            > http: foo
            ADD http: default/foo#foo-uid
            > asleep http:
            > http: foo
            REMOVE http: default/foo#foo-uid
            ADD http: default/foo#foo-uid
        "#]],
    );
}

#[test]
fn a_sleeper_is_told_one_difference() {
    check(
        "file: a b
         asleep file: a=i:2 b
         asleep file: a=i:3 b c
         asleep file: a=i:3 c
         file: a=i:4 c d",
        &expect![[r#"
            > file: a b
            ADD file: default/a#a-uid default/b#b-uid
            > asleep file: a=i:2 b
            > asleep file: a=i:3 b c
            > asleep file: a=i:3 c
            > file: a=i:4 c d
            REMOVE file: default/b#b-uid
            ADD file: default/c#c-uid default/d#d-uid
            UPDATE file: default/a#a-uid
        "#]],
    );
}

// Untested upstream: duplicate full name.
#[test]
fn two_files_with_one_name_the_lower_wins_and_the_other_takes_over() {
    check(
        "file: foo#u | foo#u=i:2
         file: | foo#u=i:2
         file: foo#u | foo#u=i:2",
        &expect![[r#"
            > file: foo#u | foo#u=i:2
            rejected: file default/foo: DuplicateName: the pod in 1.yaml has the same name; rename one of them
            ADD file: default/foo#u
            > file: | foo#u=i:2
            recovered: file default/foo: DuplicateName: the pod in 1.yaml has the same name; rename one of them
            UPDATE file: default/foo#u
            > file: foo#u | foo#u=i:2
            rejected: file default/foo: DuplicateName: the pod in 1.yaml has the same name; rename one of them
            UPDATE file: default/foo#u
        "#]],
    );
}

// Untested upstream: duplicate UID.
#[test]
fn two_files_with_one_uid_the_lower_wins() {
    check(
        "file: foo#u | bar#u
         file: | bar#u",
        &expect![[r#"
            > file: foo#u | bar#u
            rejected: file default/bar: DuplicateUID: the pod default/foo in 1.yaml has the same UID; remove metadata.uid from one of them
            ADD file: default/foo#u
            > file: | bar#u
            recovered: file default/bar: DuplicateUID: the pod default/foo in 1.yaml has the same UID; remove metadata.uid from one of them
            REMOVE file: default/foo#u
            ADD file: default/bar#u
        "#]],
    );
}

#[test]
fn a_chain_of_duplicates_is_settled_in_the_order_of_the_source() {
    // b loses its UID to a, so c may have b's name.
    check(
        "file: a#1 | b#1 | b#2",
        &expect![[r#"
            > file: a#1 | b#1 | b#2
            rejected: file default/b: DuplicateUID: the pod default/a in 1.yaml has the same UID; remove metadata.uid from one of them
            ADD file: default/a#1 default/b#2
        "#]],
    );
}

// Untested upstream: the same pod from two sources.
#[test]
fn file_wins_over_http_over_url_over_api_in_any_order() {
    check(
        "api: foo#a
         url: foo#u
         file: foo#f
         http: foo#h
         file:
         http:
         url:",
        &expect![[r#"
            > api: foo#a
            ADD api: default/foo#a
            > url: foo#u
            rejected: api default/foo: Conflict: a pod of source url has the same name; rename one of them
            REMOVE api: default/foo#a
            ADD url: default/foo#u
            > file: foo#f
            rejected: url default/foo: Conflict: a pod of source file has the same name; rename one of them
            rejected: api default/foo: Conflict: a pod of source file has the same name; rename one of them
            REMOVE url: default/foo#u
            ADD file: default/foo#f
            > http: foo#h
            rejected: http default/foo: Conflict: a pod of source file has the same name; rename one of them
            ADD http:
            > file:
            rejected: url default/foo: Conflict: a pod of source http has the same name; rename one of them
            rejected: api default/foo: Conflict: a pod of source http has the same name; rename one of them
            recovered: http default/foo: Conflict: a pod of source file has the same name; rename one of them
            REMOVE file: default/foo#f
            ADD http: default/foo#h
            > http:
            rejected: api default/foo: Conflict: a pod of source url has the same name; rename one of them
            recovered: url default/foo: Conflict: a pod of source http has the same name; rename one of them
            REMOVE http: default/foo#h
            ADD url: default/foo#u
            > url:
            recovered: api default/foo: Conflict: a pod of source url has the same name; rename one of them
            REMOVE url: default/foo#u
            ADD api: default/foo#a
        "#]],
    );
}

#[test]
fn a_winner_holds_its_name_while_it_terminates() {
    check(
        "http: foo#h!
         api: foo#a
         http:",
        &expect![[r#"
            > http: foo#h!
            ADD http: default/foo#h
            > api: foo#a
            rejected: api default/foo: Conflict: a pod of source http has the same name; rename one of them
            ADD api:
            > http:
            recovered: api default/foo: Conflict: a pod of source http has the same name; rename one of them
            REMOVE http: default/foo#h
            ADD api: default/foo#a
        "#]],
    );
}

#[test]
fn the_api_servers_pod_keeps_its_uid_from_a_local_copy() {
    check(
        "file: copy#u
         api: foo#u
         api:",
        &expect![[r#"
            > file: copy#u
            ADD file: default/copy#u
            > api: foo#u
            rejected: file default/copy: Conflict: the pod default/foo of source api has the same UID; remove metadata.uid
            REMOVE file: default/copy#u
            ADD api: default/foo#u
            > api:
            recovered: file default/copy: Conflict: the pod default/foo of source api has the same UID; remove metadata.uid
            REMOVE api: default/foo#u
            ADD file: default/copy#u
        "#]],
    );
}

#[test]
fn who_loses_its_uid_leaves_its_name_to_the_next() {
    check(
        "api: foo#u
         http: copy#h
         file: copy#u",
        &expect![[r#"
            > api: foo#u
            ADD api: default/foo#u
            > http: copy#h
            ADD http: default/copy#h
            > file: copy#u
            rejected: file default/copy: Conflict: a pod of source http has the same name; rename one of them
            ADD file:
        "#]],
    );
}

#[test]
fn pods_without_a_uid_do_not_share_one() {
    check(
        "file: a# b#",
        &expect![[r#"
        > file: a# b#
        ADD file: default/a# default/b#
    "#]],
    );
}

#[test]
fn a_restored_listing_adds_and_updates_and_never_removes() {
    check(
        "file (restored): a b
         file (restored): b=i:2
         file (restored): b#other
         file: b=i:2",
        &expect![[r#"
            > file (restored): a b
            ADD file: default/a#a-uid default/b#b-uid
            > file (restored): b=i:2
            UPDATE file: default/b#b-uid
            > file (restored): b#other
            > file: b=i:2
            REMOVE file: default/b#b-uid default/a#a-uid
            ADD file: default/b#b-uid
        "#]],
    );
}

#[test]
fn a_restored_listing_takes_no_name_from_a_pod_that_runs() {
    check(
        "api: foo#a
         file (restored): foo#f
         file: foo#f",
        &expect![[r#"
            > api: foo#a
            ADD api: default/foo#a
            > file (restored): foo#f
            rejected: file default/foo: Conflict: a pod of source api has the same name; rename one of them
            > file: foo#f
            rejected: api default/foo: Conflict: a pod of source file has the same name; rename one of them
            recovered: file default/foo: Conflict: a pod of source api has the same name; rename one of them
            REMOVE api: default/foo#a
            ADD file: default/foo#f
        "#]],
    );
}

#[test]
fn a_restored_winner_keeps_its_name_from_one_who_is_quicker() {
    check(
        "file (restored): foo#f
         api: foo#a
         file:",
        &expect![[r#"
            > file (restored): foo#f
            ADD file: default/foo#f
            > api: foo#a
            rejected: api default/foo: Conflict: a pod of source file has the same name; rename one of them
            ADD api:
            > file:
            recovered: api default/foo: Conflict: a pod of source file has the same name; rename one of them
            REMOVE file: default/foo#f
            ADD api: default/foo#a
            ADD file:
        "#]],
    );
}

#[test]
fn a_source_that_has_been_seen_removes_whatever_the_others_do() {
    // k#105543, k#140257
    check(
        "file: a
         file:",
        &expect![[r#"
            > file: a
            ADD file: default/a#a-uid
            > file:
            REMOVE file: default/a#a-uid
        "#]],
    );
}

#[test]
fn first_sight_after_a_restored_listing_is_told_once() {
    check(
        "file (restored): a
         file: a
         file: a",
        &expect![[r#"
            > file (restored): a
            ADD file: default/a#a-uid
            > file: a
            ADD file:
            > file: a
        "#]],
    );
}

#[test]
fn snapshot_is_one_set_with_everything_once_every_source_has_spoken() {
    check_with(
        &[SourceName::File, SourceName::Api],
        Notify::Snapshot,
        "file: a b
         api: c^1
         api: c^1
         api: c^1%Running
         file: b
         file: b=i:2",
        &expect![[r#"
            > file: a b
            SET file: default/a#a-uid default/b#b-uid
            > api: c^1
            SET *: default/c#c-uid default/a#a-uid default/b#b-uid
            > api: c^1
            > api: c^1%Running
            SET *: default/c#c-uid default/a#a-uid default/b#b-uid
            > file: b
            SET *: default/c#c-uid default/b#b-uid
            > file: b=i:2
            SET *: default/c#c-uid default/b#b-uid
        "#]],
    );
}

#[test]
fn snapshot_and_updates_is_a_set_when_pods_come_or_go_and_else_the_updates() {
    check_with(
        &[SourceName::File, SourceName::Api],
        Notify::SnapshotAndUpdates,
        "file: a b
         api:
         file: a b=i:2
         file: a%Running b!
         file: b!!=i:3",
        &expect![[r#"
            > file: a b
            SET file: default/a#a-uid default/b#b-uid
            > api:
            SET *: default/a#a-uid default/b#b-uid
            > file: a b=i:2
            UPDATE file: default/b#b-uid
            > file: a%Running b!
            DELETE file: default/b#b-uid
            RECONCILE file: default/a#a-uid
            > file: b!!=i:3
            SET *: default/b#b-uid
            DELETE file: default/b#b-uid
        "#]],
    );
}

#[test]
fn a_source_that_is_not_configured_is_not_heard() {
    check_with(
        &[SourceName::File],
        Notify::Incremental,
        "api: foo
         file: bar",
        &expect![[r#"
            > api: foo
            > file: bar
            ADD file: default/bar#bar-uid
        "#]],
    );
}

#[test]
fn a_pod_that_gives_up_a_contested_uid_is_no_longer_rejected() {
    check(
        "api: a#1
        file: b#1
        file: b#2",
        &expect![[r#"
            > api: a#1
            ADD api: default/a#1
            > file: b#1
            rejected: file default/b: Conflict: the pod default/a of source api has the same UID; remove metadata.uid
            ADD file:
            > file: b#2
            recovered: file default/b: Conflict: the pod default/a of source api has the same UID; remove metadata.uid
            ADD file: default/b#2
        "#]],
    );
}
