//! What a user sees in a terminal: its width, colours, keys, and nothing of others that commands it.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    files::pod,
    process::{Process, podmux, wait_for},
    terminal::{CTRL_C, Drawn, Window, sorted, timeless},
};

/// The directory `m` with a valid manifest and an invalid one.
fn manifests() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("m")).unwrap();
    fs::write(directory.path().join("m/web.yaml"), pod("web", "i:1")).unwrap();
    fs::write(directory.path().join("m/bad.yaml"), "apiVersion: v1\nkind: Pood\n").unwrap();
    directory
}

/// A command of podmux in a directory, for the agent there and a terminal.
fn command(directory: &Path, args: &[&str]) -> Command {
    let mut command = podmux(args);
    command.current_dir(directory).env("TERM", "xterm").env("PODMUX_SERVER", "unix:s");
    command
}

/// `podmux run` on the directory `m`.
fn run(directory: &Path, args: &[&str]) -> Command {
    let run = ["run", "--pod-manifest-path", "m", "--node-name", "node1"];
    let mut command = command(directory, &[&run, args].concat());
    command.envs([("PODMUX_LISTEN", "unix:s"), ("PODMUX_STATE_DIR", "none")]);
    command
}

/// An agent in no terminal.
fn agent(directory: &Path, args: &[&str]) -> Process {
    let agent = Process::start(&mut run(directory, args));
    agent.holds("the pods of the directory", |held| !held.pods.is_empty());
    agent
}

fn stop(agent: Process) {
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
}

/// What a command writes to a terminal of that width.
fn written(command: &Command, columns: u16) -> String {
    Window::open(command, columns).ends().1
}

/// Compares screens by their rows, in any order.
#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check_rows(expected: Expect, shown: &str) {
    if sorted(expected.data()) != sorted(shown) {
        expected.assert_eq(shown);
    }
}

/// Runs the agent until all is shown, presses Ctrl-C, and returns what was written.
fn run_and_stop(command: &Command, columns: u16) -> String {
    let window = Window::open(command, columns);
    for text in ["default/web-node1", "<none>", "started", "listening", "manifest rejected"] {
        window.wrote_text(text);
    }
    // A dumb terminal gets no summary.
    if !command.get_envs().any(|(name, value)| name == "TERM" && value == Some("dumb".as_ref())) {
        window.wrote_text("Ctrl-C stops the agent.");
    }
    window.press(CTRL_C);
    let (code, written) = window.ends();
    assert_eq!(code, 0, "{written}");
    timeless(&written)
}

/// The screen of an agent that ran in a window of this width.
fn screen_of_run(columns: u16) -> String {
    let directory = manifests();
    let written = run_and_stop(&run(directory.path(), &[]), columns);
    Drawn::new(&written, columns).rows() + "\n"
}

#[test]
fn run_shows_its_summary_and_updates_in_80_columns() {
    check_rows(
        expect![[r#"
            SEQ    TIME                   OP          SOURCE   PODS
            1      2026-11-21T09:00:00Z   ADD         http     <none>
            2026-11-21T09:00:00.000000Z  INFO started version="0.1.0" node=node1
            2026-11-21T09:00:00.000000Z  INFO listening address=unix:s
            2026-11-21T09:00:00.000000Z  WARN manifest rejected source="file" path=m/bad.yam
            l pods_kept=0 error=2:7: kind: Pood v1 is not a Pod: podmux runs pods only; Pod,
             PodList or List is expected here
            podmux 0.1.0 on node node1
              source file m: 1 pod, 1 rejected, see podmux get sources
              source http posted pods, in memory only: 0 pods
              sink        table
              state       none: nothing survives a restart
              listen      unix:s
            In another terminal: podmux get pods -A --server unix:s. Ctrl-C stops the agent.
            2      2026-11-21T09:00:00Z   ADD         file     default/web-node1
            ^C2026-11-21T09:00:00.000000Z  INFO stopping: pending updates are delivered sign
            al="SIGINT"
            2026-11-21T09:00:00.000000Z  INFO stopped
        "#]],
        &screen_of_run(80),
    );
}

#[test]
fn the_summary_names_a_command_that_reaches_this_agent() {
    let directory = manifests();
    let hint = |listen: &str, more: &[&str]| {
        let window = Window::open(
            run(directory.path(), more).env("PODMUX_LISTEN", listen).env("XDG_RUNTIME_DIR", directory.path()),
            200,
        );
        window.wrote_text("Ctrl-C stops the agent.");
        window.press(CTRL_C);
        let written = timeless(&window.ends().1);
        let line = written.lines().find(|line| line.contains("Ctrl-C stops")).unwrap().trim();
        line.replace(directory.path().to_str().unwrap(), "DIR") + "\n"
    };
    let mut hints = hint("none", &[]) + &hint("unix:s,127.0.0.1:0", &["--state-dir", "state"]);
    hints += &hint("127.0.0.1:10299", &["--state-dir", "state"]);
    hints += &hint("127.0.0.1:10299", &["--anonymous-auth"]);
    expect![[r#"
        Ctrl-C stops the agent.
        In another terminal: podmux get pods -A --server unix:s. Ctrl-C stops the agent.
        In another terminal: podmux get pods -A --server https://127.0.0.1:10299. Ctrl-C stops the agent.
        In another terminal: podmux get pods -A --server http://127.0.0.1:10299. Ctrl-C stops the agent.
    "#]]
    .assert_eq(&hints);
    if !rustix::process::geteuid().is_root() {
        let socket = format!("unix:{}/podmux/podmux.sock", directory.path().display());
        fs::create_dir(directory.path().join("podmux")).unwrap();
        assert_eq!(hint(&socket, &[]), "In another terminal: podmux get pods -A. Ctrl-C stops the agent.\n");
    }
}

#[test]
fn run_shows_its_summary_and_updates_in_40_columns() {
    check_rows(
        expect![[r#"
            SEQ    TIME                   OP
              SOURCE   PODS
            1      2026-11-21T09:00:00Z   ADD
              http     <none>
            2026-11-21T09:00:00.000000Z  INFO listen
            ing address=unix:s
            2026-11-21T09:00:00.000000Z  INFO starte
            d version="0.1.0" node=node1
            2026-11-21T09:00:00.000000Z  WARN manife
            st rejected source="file" path=m/bad.yam
            l pods_kept=0 error=2:7: kind: Pood v1 i
            s not a Pod: podmux runs pods only; Pod,
             PodList or List is expected here
            podmux 0.1.0 on node node1
              source file m: 1 pod, 1 rejected, see
            podmux get sources
              source http posted pods, in memory onl
            y: 0 pods
              sink        table
              state       none: nothing survives a r
            estart
              listen      unix:s
            In another terminal: podmux get pods -A
            --server unix:s. Ctrl-C stops the agent.
            2      2026-11-21T09:00:00Z   ADD
              file     default/web-node1
            ^C2026-11-21T09:00:00.000000Z  INFO stop
            ping: pending updates are delivered sign
            al="SIGINT"
            2026-11-21T09:00:00.000000Z  INFO stoppe
            d
        "#]],
        &screen_of_run(40),
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a screen of ten columns has many rows")]
fn run_shows_its_summary_and_updates_in_10_columns() {
    check_rows(
        expect![[r#"
            SEQ    TIM
            E

            OP
              SOURCE
             PODS
            1      202
            6-11-21T09
            :00:00Z
            ADD
              http
             <none>
            2026-11-21
            T09:00:00.
            000000Z  I
            NFO starte
            d version=
            "0.1.0" no
            de=node1
            2026-11-21
            T09:00:00.
            000000Z  I
            NFO listen
            ing addres
            s=unix:s
            2026-11-21
            T09:00:00.
            000000Z  W
            ARN manife
            st rejecte
            d source="
            file" path
            =m/bad.yam
            l pods_kep
            t=0 error=
            2:7: kind:
             Pood v1 i
            s not a Po
            d: podmux
            runs pods
            only; Pod,
             PodList o
            r List is
            expected h
            ere
            2      202
            6-11-21T09
            :00:00Z
            ADD
              file
             default/w
            eb-node1
            podmux 0.1
            .0 on node
             node1
              source f
            ile m: 1 p
            od, 1 reje
            cted, see
            podmux get
             sources
              source h
            ttp posted
             pods, in
            memory onl
            y: 0 pods
              sink
                table
              state
                none:
            nothing su
            rvives a r
            estart
              listen
                unix:s
            In another
             terminal:
             podmux ge
            t pods -A
            --server u
            nix:s. Ctr
            l-C stops
            the agent.
            ^C2026-11-
            21T09:00:0
            0.000000Z
             INFO stop
            ping: pend
            ing update
            s are deli
            vered sign
            al="SIGINT
            "
            2026-11-21
            T09:00:00.
            000000Z  I
            NFO stoppe
            d
        "#]],
        &screen_of_run(10),
    );
}

#[test]
fn run_has_colours_unless_they_are_not_wanted_or_not_known() {
    let directory = manifests();
    let shown = |variables: &[(&str, &str)]| {
        run_and_stop(run(directory.path(), &[]).envs(variables.iter().copied()), 200)
    };
    let coloured = Drawn::new(&shown(&[]), 200).styled();
    check_rows(
        expect![[r#"
            SEQ    TIME                   OP          SOURCE   PODS
            1      2026-11-21T09:00:00Z   ^[0;32mADD      ^[0m   http     <none>^[0m
            ^[0;2m2026-11-21T09:00:00.000000Z^[0m ^[0;32m INFO^[0m started ^[0;3mversion^[0;2m=^[0m"0.1.0" ^[0;3mnode^[0;2m=^[0mnode1^[0m
            ^[0;2m2026-11-21T09:00:00.000000Z^[0m ^[0;32m INFO^[0m listening ^[0;3maddress^[0;2m=^[0munix:s^[0m
            ^[0;2m2026-11-21T09:00:00.000000Z^[0m ^[0;33m WARN^[0m manifest rejected ^[0;3msource^[0;2m=^[0m"file" ^[0;3mpath^[0;2m=^[0mm/bad.yaml ^[0;3mpods_kept^[0;2m=^[0m0 ^[0;3merror^[0;2m=^[0m2:7: kind: Pood v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here^[0m
            podmux 0.1.0 on node node1
              source file m: 1 pod, 1 rejected, see podmux get sources
              source http posted pods, in memory only: 0 pods
              sink        table
              state       none: nothing survives a restart
              listen      unix:s
            In another terminal: podmux get pods -A --server unix:s. Ctrl-C stops the agent.
            2      2026-11-21T09:00:00Z   ^[0;32mADD      ^[0m   file     default/web-node1^[0m
            ^C^[0;2m2026-11-21T09:00:00.000000Z^[0m ^[0;32m INFO^[0m stopping: pending updates are delivered ^[0;3msignal^[0;2m=^[0m"SIGINT"^[0m
            ^[0;2m2026-11-21T09:00:00.000000Z^[0m ^[0;32m INFO^[0m stopped^[0m

        "#]],
        &format!("{}\n", coloured.replace('\x1b', "^")),
    );
    for variables in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = shown(&[variables]);
        assert!(!plain.contains('\x1b'), "{plain}");
        assert!(plain.contains("   ADD         file     default/web-node1\r\n"), "{plain}");
    }
}

#[test]
fn a_resized_window_shows_the_next_updates_in_its_width() {
    let directory = manifests();
    let window = Window::open(&run(directory.path(), &[]), 80);
    window.wrote_text("Ctrl-C stops the agent.");
    window.resize(40);
    fs::write(directory.path().join("m/next.yaml"), pod(&"n".repeat(60), "i:1")).unwrap();
    let name = format!("default/{}-node1", "n".repeat(60));
    window.shows("the name over the end of a row", |screen| {
        let is_whole = screen.lines().any(|row| row.contains(&name));
        (screen.replace('\n', "").contains(&name) && !is_whole).then_some(())
    });
    window.resize(160);
    fs::remove_file(directory.path().join("m/next.yaml")).unwrap();
    window.shows("the removal in one row", |screen| {
        screen.lines().any(|row| row.contains("REMOVE") && row.ends_with(&name)).then_some(())
    });
    window.press(CTRL_C);
    assert_eq!(window.ends().0, 0);
}

/// The system sends SIGHUP, which reloads; without a reader there is nothing to run for.
#[test]
fn a_closed_window_ends_run_and_what_follows_it() {
    let directory = manifests();
    let window = Window::open(&run(directory.path(), &[]), 80);
    window.wrote_text("Ctrl-C stops the agent.");
    let mut followers = Vec::new();
    for what in [&["get", "updates"][..], &["get", "pods", "--watch"]] {
        let follower = Window::open(&command(directory.path(), what), 80);
        follower.wrote_text("web-node1");
        followers.push(follower);
    }
    for follower in followers {
        assert_eq!(follower.close(), 128 + Signal::HUP.as_raw());
    }
    assert_eq!(window.close(), 1);
}

#[test]
fn ctrl_c_ends_what_follows_the_agent() {
    let directory = manifests();
    let agent = agent(directory.path(), &[]);
    for what in [&["get", "updates"][..], &["get", "pods", "--watch"], &["get", "events", "-A", "--watch"]] {
        let follower = Window::open(&command(directory.path(), what), 80);
        follower.shows("an object", |screen| (screen.lines().count() > 1).then_some(()));
        follower.press(CTRL_C);
        let (code, written) = follower.ends();
        assert_eq!(code, 128 + Signal::INT.as_raw(), "{written}");
    }
    stop(agent);
}

/// The screens of `get pods` and `get sources` in a window of this width.
fn tables(columns: u16) -> String {
    let directory = manifests();
    let agent = agent(directory.path(), &[]);
    let shown = [&["get", "pods"][..], &["get", "sources"]].map(|what| {
        let written = timeless(&written(&command(directory.path(), what), columns));
        Drawn::new(&written, columns).rows() + "\n"
    });
    stop(agent);
    shown.concat()
}

#[test]
fn tables_are_readable_in_80_columns() {
    expect![[r#"
        NAME        READY   STATUS   RESTARTS   AGE
        web-node1   0/1     Wanted   0          5s
        NAME   STATE    PODS   PROBLEMS   LAST-SUCCESS   TARGET
        file   synced   1      1          5s             m
        http   synced   0      0          <none>         posted pods, in memory only

        SOURCE   POD      REASON    WINNER   ORIGIN       MESSAGE
        file     <none>   Invalid   <none>   m/bad.yaml   2:7: kind: Pood v1 is not a Po
        d: podmux runs pods only; Pod, PodList or List is expected here
    "#]]
    .assert_eq(&tables(80));
}

#[test]
fn tables_are_readable_in_40_columns() {
    expect![[r#"
        NAME        READY   STATUS   RESTARTS
        AGE
        web-node1   0/1     Wanted   0
        5s
        NAME   STATE    PODS   PROBLEMS   LAST-S
        UCCESS   TARGET
        file   synced   1      1          5s
                 m
        http   synced   0      0          <none>
                 posted pods, in memory only

        SOURCE   POD      REASON    WINNER   ORI
        GIN       MESSAGE
        file     <none>   Invalid   <none>   m/b
        ad.yaml   2:7: kind: Pood v1 is not a Po
        d: podmux runs pods only; Pod, PodList o
        r List is expected here
    "#]]
    .assert_eq(&tables(40));
}

#[test]
fn tables_are_readable_in_10_columns() {
    expect![[r#"
        NAME
          READY
        STATUS   R
        ESTARTS
        AGE
        web-node1
          0/1
        Wanted   0

        5s
        NAME   STA
        TE    PODS
           PROBLEM
        S   LAST-S
        UCCESS   T
        ARGET
        file   syn
        ced   1
           1
            5s
                 m
        http   syn
        ced   0
           0
            <none>
                 p
        osted pods
        , in memor
        y only

        SOURCE   P
        OD      RE
        ASON    WI
        NNER   ORI
        GIN
        MESSAGE
        file     <
        none>   In
        valid   <n
        one>   m/b
        ad.yaml
        2:7: kind:
         Pood v1 i
        s not a Po
        d: podmux
        runs pods
        only; Pod,
         PodList o
        r List is
        expected h
        ere
    "#]]
    .assert_eq(&tables(10));
}

#[test]
fn the_longest_names_are_shown_in_full() {
    let directory = manifests();
    // Three labels of 63 characters, and one of 61 with the name of the node.
    let label = "a".repeat(63);
    let name = format!("{label}.{label}.{label}.{}", "z".repeat(55));
    let path = directory.path().join("m/long.yaml");
    fs::write(&path, pod(&name, "i:1")).unwrap();
    let full = format!("{name}-node1");
    assert_eq!(full.len(), 253);
    let window = Window::open(&run(directory.path(), &[]), 10);
    window.wrote_text(&format!("default/{full}"));
    let pods = command(directory.path(), &["get", "pods"]);
    for columns in [10, 40, 80] {
        let rows = Drawn::new(&written(&pods, columns), columns).rows();
        assert!(rows.replace('\n', "").contains(&full), "{rows}");
    }
    fs::write(&path, "kind: [").unwrap();
    let sources = command(directory.path(), &["get", "sources"]);
    wait_for(|| written(&sources, 10).contains("long.yaml").then_some(()));
    window.press(CTRL_C);
    assert_eq!(window.ends().0, 0);
}

/// Characters that command a terminal.
const COMMANDS: [char; 9] =
    ['\x1b', '\x07', '\x08', '\x7f', '\u{9b}', '\u{85}', '\u{9d}', '\u{202e}', '\u{2066}'];

/// The control characters in a text that are no line break and no style of podmux's own.
fn commands(written: &str) -> Vec<char> {
    let mut text = written.replace("\r\n", "\n").replace("\r\x1b[K", "");
    // What tables, errors and the log are styled with, and what the line of the progress is written with.
    for own in [
        "0m", "1m", "2m", "3m", "31m", "32m", "33m", "34m", "35m", "1;33m", "1;34m", "1;31m", "K", "?7l",
        "?7h",
    ] {
        text = text.replace(&format!("\x1b[{own}"), "");
    }
    text.chars()
        .filter(|letter| COMMANDS.contains(letter) || letter.is_control() && *letter != '\n')
        .collect()
}

/// Manifests with these characters wherever a text may have them.
fn hostile_manifests() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join("m").join(name);
    fs::create_dir(at("")).unwrap();
    let raw: String = COMMANDS.iter().collect::<String>() + "[2J\r";
    let quoted = COMMANDS.map(|letter| format!("\\u{:04x}", u32::from(letter))).concat() + "[2J\\r";
    let evil = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: evil, annotations: {{a: \"{quoted}\", b: \"x\\u202ey\"}}}}\n\
         spec: {{containers: [{{name: c, image: i, command: [\"{quoted}\"], env: [{{name: A, value: \"{quoted}\"}}]}}]}}\n"
    );
    fs::write(at("evil.yaml"), &evil).unwrap();
    fs::write(at(&format!("file{raw}.yaml")), format!("kind: \"{quoted}\"\napiVersion: v1\n")).unwrap();
    fs::write(at("name.yaml"), evil.replace("name: evil", &format!("name: \"{quoted}\""))).unwrap();
    fs::write(at("image.yaml"), evil.replace("image: i", &format!("image: \"{quoted}\""))).unwrap();
    fs::write(at("field.yaml"), evil.replace("image: i", &format!("image: i, \"{quoted}\": 1"))).unwrap();
    fs::write(at("label.yaml"), evil.replace("annotations: {a:", "labels: {a:")).unwrap();
    fs::write(at("syntax.yaml"), format!("kind: Pod\n{raw}: [")).unwrap();
    directory
}

#[test]
fn run_shows_no_control_characters_of_manifests() {
    let directory = hostile_manifests();
    for args in [&[][..], &["--sink", "jsonl"], &["--log-format", "json"]] {
        let window = Window::open(&run(directory.path(), args), 80);
        window.wrote_text("evil-node1");
        for file in ["[2J", "name.yaml", "image.yaml", "label.yaml", "syntax.yaml"] {
            window.wrote_text(file);
        }
        window.press(CTRL_C);
        let (code, written) = window.ends();
        assert_eq!(code, 0, "{written}");
        assert!(commands(&written).is_empty(), "{args:?}: {written:?}");
    }
}

#[test]
fn commands_show_no_control_characters_of_manifests() {
    let directory = hostile_manifests();
    let agent = agent(directory.path(), &[]);
    for file in ["file", "name.yaml", "image.yaml", "label.yaml", "syntax.yaml"] {
        agent.logs(file);
    }
    let mut shown: Vec<Vec<&str>> = Vec::new();
    for what in ["pods", "sources", "sinks", "events"] {
        for form in ["table", "wide", "name", "yaml", "json", "jsonl"] {
            shown.push(vec!["get", what, "-o", form]);
        }
    }
    shown.extend([
        vec!["get", "pods", "-A", "--show-labels"],
        vec!["validate", "m"],
        vec!["validate", "-v", "m"],
        vec!["validate", "-o", "json", "m"],
        vec!["apply", "-f", "m"],
        vec!["delete", "-f", "m"],
        vec!["get", "pod", "\x1b[31m\u{9b}"],
        vec!["get", "pods", "-l", "\x1b[31m\u{9b}=,"],
        vec!["apply", "-f", "\x1b[31m\u{9b}"],
        vec!["get", "\x1b[31m\u{9b}"],
        vec!["get", "pods", "--server", "unix:\x1b[31m\u{9b}"],
    ]);
    let faults: Vec<String> = shown
        .iter()
        .filter_map(|args| {
            let written = written(&command(directory.path(), args), 80);
            let found = commands(&written);
            (!found.is_empty()).then(|| format!("{args:?}: {found:?} in {written:?}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let updates = Window::open(&command(directory.path(), &["get", "updates", "-o", "jsonl"]), 80);
    updates.wrote_text("evil-node1");
    updates.press(CTRL_C);
    let (_, written) = updates.ends();
    assert!(commands(&written).is_empty(), "{written:?}");
    stop(agent);
}

/// A program reads exactly what the pod has.
#[test]
fn json_on_a_terminal_is_the_same_json() {
    let directory = hostile_manifests();
    let agent = agent(directory.path(), &[]);
    let get = |form: &str| command(directory.path(), &["get", "pod", "evil-node1", "-o", form]);
    let piped = |form: &str| String::from_utf8(get(form).output().unwrap().stdout).unwrap();
    let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    assert_eq!(json(&written(&get("json"), 80)), json(&piped("json")));
    assert!(COMMANDS.iter().all(|letter| json(&piped("json")).to_string().contains(&escaped(*letter))));
    let yaml = |text: &str| podmux::manifest::yaml::to_json(text).unwrap();
    assert_eq!(yaml(&written(&get("yaml"), 80).replace("\r\n", "\n")), yaml(&piped("yaml")));
    stop(agent);
}

/// A character as the JSON of a program has it.
fn escaped(letter: char) -> String {
    serde_json::to_string(&letter).unwrap().trim_matches('"').to_owned()
}

/// A log is read in terminals, too.
#[test]
fn the_log_in_a_file_has_no_control_characters_of_manifests() {
    let directory = hostile_manifests();
    for format in ["text", "json"] {
        let log = directory.path().join(format);
        let mut command = run(directory.path(), &["--log-format", format]);
        let agent = Process::start(command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap()));
        agent.holds("evil", |held| held.pods.contains_key("default/evil-node1"));
        wait_for(|| fs::read_to_string(&log).unwrap().contains("syntax.yaml").then_some(()));
        stop(agent);
        let log = fs::read_to_string(&log).unwrap();
        assert!(commands(&log).is_empty(), "{log:?}");
    }
}
