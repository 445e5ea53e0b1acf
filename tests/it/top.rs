//! The screen of `podmux top`, drawn without a terminal: what is shown at each size, and what each key does.

use expect_test::{expect, expect_file};
use jiff::{SignedDuration, Timestamp};
use podmux::cli::top::{
    details::details,
    keys::action,
    model::{Columns, MAX_UPDATES, Model, News, Source, Update},
    screen::draw,
    view::{Action, Column, View},
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::Cell,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    style::{Color, Modifier},
};
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-11-21T09:01:00Z".parse().unwrap()
}

fn row(namespace: &str, name: &str, status: &str, restarts: &str, source: &str) -> Value {
    let created = if name == "db" { "2026-11-21T09:00:00Z" } else { "2026-11-19T09:00:00Z" };
    json!({
        "cells": [name, "1/1", status, restarts, "5s", "<none>", "node1", source],
        "object": {"metadata": {"namespace": namespace, "name": name, "creationTimestamp": created}},
    })
}

fn model() -> Model {
    let names = ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Source"];
    let table = json!({
        "columnDefinitions": names.map(|name| json!({"name": name})),
        "rows": [
            row("default", "web", "Running", "3 (5m ago)", "file"),
            row("default", "db", "CrashLoopBackOff", "12 (9s ago)", "file"),
            row("kube-system", &"n".repeat(253), "Pending", "0", "api"),
            row("default", "evil", "\u{1b}[2J\u{1b}]0;owned\u{7}\r\n", "0", "http"),
        ],
    });
    let sources = json!({"items": [
        {"name": "file", "state": "synced", "pods": 2, "target": "/etc/podmux/manifests",
            "lastSuccess": "2026-11-21T09:00:48Z", "problems": [{}, {}]},
        {"name": "http", "state": "synced", "pods": 1, "target": "posted pods", "problems": []},
        {"name": "url", "state": "failing", "pods": 0, "target": "https://hub.example/pods", "problems": [],
            "failing": {"error": "cannot connect to hub.example: connection refused", "attempts": 4}},
        {"name": "api", "state": "restored", "restored": "2026-11-21T08:01:00Z", "pods": 1, "target": "https://k8s",
            "problems": []},
    ]});
    let mut columns = Columns::default();
    columns.learn(&table);
    let mut model = Model::default();
    model.take(News::Pods(columns.pods(&table)), now());
    model.take(News::Sources(Source::all(&sources, now())), now());
    let many: Vec<Value> = (0..5).map(|number| pod(&format!("p{number}"))).collect();
    for (op, pods) in [
        ("SET", many.clone()),
        ("ADD", many),
        ("UPDATE", vec![pod("web")]),
        ("REMOVE", vec![pod("\u{1b}[31mred")]),
        ("ADD", Vec::new()),
    ] {
        model.take(News::Updated(update(op, &pods)), now());
    }
    model
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"namespace": "default", "name": name}, "spec": {}})
}

fn update(op: &str, pods: &[Value]) -> Update {
    let line = json!({"seq": 1, "time": "2026-11-21T09:00:59Z", "op": op, "source": "file", "pods": pods});
    Update::read(line.to_string().as_bytes()).unwrap()
}

fn drawn(model: &Model, view: &mut View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(model, view, now(), frame)).unwrap();
    terminal
}

/// The text of the screen, each line between bars.
fn text(model: &Model, view: &mut View, width: u16, height: u16) -> String {
    let terminal = drawn(model, view, width, height);
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width));
    let lines = rows.map(|row| format!("|{}|\n", row.iter().map(Cell::symbol).collect::<String>()));
    lines.collect()
}

fn golden(name: &str) -> expect_test::ExpectFile {
    expect_file![format!("{}/tests/golden/top/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

fn names(view: &View, model: &Model) -> String {
    view.pods(model)
        .iter()
        .map(|pod| pod.key.1.chars().take(4).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

fn press(view: &mut View, model: &Model, keys: &str) -> bool {
    keys.chars().all(|key| {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        let key = KeyEvent::new(code, KeyModifiers::NONE);
        action(key, view.is_typing).is_none_or(|action| view.act(action, model))
    })
}

#[test]
fn the_screen_fits_into_each_size() {
    for (width, height) in [(80, 24), (120, 40), (40, 10), (10, 5)] {
        let shown = text(&model(), &mut View::new(true), width, height);
        golden(&format!("{width}x{height}")).assert_eq(&shown);
    }
}

#[test]
fn an_open_pod_shows_its_status_conditions_containers_and_events() {
    let (mut model, mut view) = (model(), View::new(true));
    let pod = json!({
        "metadata": {"name": "db", "namespace": "default", "uid": "u1", "creationTimestamp": "2026-11-21T09:00:00Z",
            "annotations": {"kubernetes.io/config.source": "file"}, "labels": {"app": "db\u{1b}[2J"}},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "db:1"}, {"name": "new", "image": "i"}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.2",
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady",
                "message": "containers with unready status: [c], which have a long message that is wrapped at spaces"}],
            "containerStatuses": [{"name": "c", "ready": false, "restartCount": 12,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}],
        },
    });
    let events = [json!({"type": "Warning", "reason": "BackOff", "message": "restarting c", "count": 3,
        "lastTimestamp": "2026-11-21T09:00:30Z"})];
    view.open = Some(("default".into(), "db".into()));
    assert!(text(&model, &mut view, 80, 10).contains("pod default/db   reading"));
    model.take(News::Opened(("default".into(), "db".into()), Some(details(&pod, &events, now()))), now());
    golden("open-80x24").assert_eq(&text(&model, &mut view, 80, 24));
    golden("open-10x5").assert_eq(&text(&model, &mut view, 10, 5));
    // A scroll beyond the end stops at the last line.
    assert!(view.act(Action::Move(isize::MAX), &model));
    assert!(text(&model, &mut view, 80, 8).contains("BackOff: restarting c (3 times)"));
    model.take(News::Opened(("default".into(), "db".into()), None), now());
    let shown = text(&model, &mut view, 80, 24);
    assert!(shown.contains("the pod is gone") && shown.contains("db:1"), "{shown}");
    assert!(press(&mut view, &model, "\u{1b}") && view.open.is_none());
}

#[test]
fn every_size_from_0_to_200_columns_is_drawn() {
    let mut model = model();
    model.set_lost(Some("cannot connect"), now());
    model.take(
        News::Opened(("default".into(), "web".into()), Some(vec![("Label".into(), "x ".repeat(99))])),
        now(),
    );
    for width in (0..30).chain([80, 200]) {
        for height in (0..30).chain([100]) {
            for open in [None, Some(("default".to_owned(), "web".to_owned()))] {
                let mut view = View::new(true);
                view.open = open;
                drawn(&model, &mut view, width, height);
            }
        }
    }
}

#[test]
fn without_colours_only_emphasis_is_used() {
    let terminal = drawn(&model(), &mut View::new(false), 80, 24);
    let cells = terminal.backend().buffer().content();
    assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    // The selected pod can be seen.
    assert!(cells.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
    let terminal = drawn(&model(), &mut View::new(true), 80, 24);
    let colours = |cells: &[Cell], colour| cells.iter().any(|cell| cell.fg == colour);
    let cells = terminal.backend().buffer().content();
    assert!([Color::Red, Color::Green, Color::Yellow].into_iter().all(|colour| colours(cells, colour)));
}

#[test]
fn control_characters_are_shown_as_text() {
    let shown = text(&model(), &mut View::new(true), 120, 40);
    assert!(!shown.chars().any(|character| character.is_control() && character != '\n'), "{shown}");
    assert!(shown.contains(r"\u{1b}[31mred"), "{shown}");
    let model = model();
    let status = &model.pods.values().find(|pod| pod.key.1 == "evil").unwrap().status;
    assert_eq!(status, r"\u{1b}[2J\u{1b}]0;owned\u{7}\r\n");
}

#[test]
fn a_lost_connection_is_shown_with_its_age() {
    let mut model = model();
    model.set_lost(Some("no agent"), now() - SignedDuration::from_secs(12));
    model.set_lost(Some("still no agent"), now());
    let shown = text(&model, &mut View::new(false), 80, 24);
    assert!(shown.starts_with("|connection lost 12s ago: still no agent; reconnecting "), "{shown}");
    model.set_lost(None, now());
    assert!(text(&model, &mut View::new(false), 80, 24).starts_with("|podmux top "));
}

#[test]
fn keys_filter_sort_and_move() {
    let (model, mut view) = (model(), View::new(true));
    assert_eq!(names(&view, &model), "db evil web nnnn");
    assert!(press(&mut view, &model, "/CRASHq\u{8}\n"));
    assert_eq!((names(&view, &model), &*view.filter), ("db".into(), "CRASH"));
    assert!(press(&mut view, &model, "\u{1b}"), "Esc removes the filter first");
    let mut orders = Vec::new();
    for _ in 0..6 {
        orders.push(format!("{:?}: {}\n", view.sort, names(&view, &model)));
        assert!(press(&mut view, &model, "s"));
    }
    expect![[r#"
            Name: db evil web nnnn
            Ready: db evil web nnnn
            Status: db nnnn web evil
            Restarts: evil nnnn web db
            Age: db evil web nnnn
            Source: nnnn db web evil
        "#]]
    .assert_eq(&orders.concat());
    assert!(press(&mut view, &model, "r"));
    assert_eq!((names(&view, &model), view.sort), ("nnnn web evil db".into(), Column::Name));
    assert!(press(&mut view, &model, "jj"));
    let selected = |view: &View, model: &Model| {
        let pods = view.pods(model);
        pods[view.selected(&pods)].key.1.clone()
    };
    assert_eq!(selected(&view, &model), "evil");
    assert!(press(&mut view, &model, "r"));
    assert_eq!(selected(&view, &model), "evil", "the selection stays on the pod");
    drawn(&model, &mut view, 80, 24);
    let mut fewer = model.clone();
    fewer.take(News::Removed(("default".into(), "evil".into())), now());
    assert_eq!(selected(&view, &fewer), "web", "the selection stays at the place of a pod that is gone");
    assert!(press(&mut view, &fewer, "k"));
    assert_eq!(selected(&view, &fewer), "db", "moved from that place");
    assert!(press(&mut view, &model, "G\n"));
    assert_eq!(view.open.as_ref().unwrap().1.len(), 253);
    assert!(press(&mut view, &model, "\u{1b}"));
    assert!(!press(&mut view, &model, "\u{1b}") && !press(&mut view, &model, "q"));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!([true, false].map(|typing| action(control_c, typing)), [Some(Action::Quit); 2]);
}

#[test]
fn the_number_of_updates_that_are_kept_and_of_characters_is_bounded() {
    let mut model = Model::default();
    for _ in 0..MAX_UPDATES * 3 {
        model.take(News::Updated(update("ADD", &[pod(&"x".repeat(10_000))])), now());
    }
    assert_eq!(model.updates.len(), MAX_UPDATES);
    assert!(model.updates.iter().all(|update| update.pods.len() <= 1000));
    let (many, mut view) = ("y".repeat(1000), View::default());
    view.is_typing = true;
    assert!(press(&mut view, &model, &many));
    assert_eq!(view.filter.len(), 253);
}

#[test]
fn a_rate_is_that_of_the_last_ten_seconds() {
    let mut model = Model::default();
    let pods = [pod("a"), pod("b")];
    for second in 0..30 {
        model.take(News::Updated(update("ADD", &pods)), now() + SignedDuration::from_secs(second));
    }
    // A SET repeats what is wanted: it is no change.
    model.take(News::Updated(update("SET", &pods)), now() + SignedDuration::from_secs(29));
    let rates =
        [29, 34, 39].map(|second| model.changes.per_second(now() + SignedDuration::from_secs(second)));
    assert_eq!(rates.map(|rate| format!("{rate:.1}")), ["2.0", "1.0", "0.0"]);
}
