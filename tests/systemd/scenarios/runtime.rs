//! Pods that run: the exec runtime in the service, with the packaged drop-in and the example program.

use podmux_machine::{
    machine::{Machine, package},
    pods::pod,
};
use serde_json::{Value, json};

/// A pod whose container sleeps.
fn sleeper(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["command"] = json!(["sleep", "1000"]);
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    pod
}

/// The services of pods that run, each as `NAMESPACE/NAME` and the id of its process, in order.
fn services(machine: &Machine) -> Vec<(String, String)> {
    let units = machine.ok("systemctl list-units --state=active --plain --no-legend 'podmux-*.service'");
    let service = |line: &str| {
        let unit = line.split_whitespace().next()?;
        let show = |property| machine.ok(&format!("systemctl show -p {property} --value {unit}"));
        let description = show("Description");
        Some((description.split_whitespace().nth(1)?.to_owned(), show("MainPID").trim().to_owned()))
    };
    let mut services: Vec<_> = units.lines().filter_map(service).collect();
    services.sort();
    services
}

/// Waits until the services of these pods run, and returns the ids of their processes.
fn run(machine: &Machine, pods: &[&str]) -> Vec<String> {
    machine.wait_for("the services of the pods run", || {
        let (running, processes): (Vec<String>, Vec<String>) = services(machine).into_iter().unzip();
        if running == pods {
            Ok(processes)
        } else {
            Err(format!("{running:?}\n{}", machine.ok("podmux get sinks; podmux get pods")))
        }
    })
}

/// A machine with the drop-in and the example.
fn with_exec() -> Machine {
    installed(Machine::with_podmux())
}

fn installed(machine: Machine) -> Machine {
    machine.ok(
        "install -D -m 0755 /usr/share/doc/podmux/examples/systemd-run.sh /usr/local/lib/podmux/systemd-run.sh",
    );
    machine.packaged_drop_in("exec");
    machine.restart();
    machine
}

#[test]
fn pods_run_as_services_and_survive_the_agent() {
    let machine = with_exec();
    machine.write("/etc/podmux/manifests/web.yaml", sleeper("web").to_string());
    // A directory without any manifest could be a mount that is missing, and its pods would stay for a minute.
    machine.write("/etc/podmux/manifests/db.yaml", sleeper("db").to_string());
    let begun = run(&machine, &["default/db-node1", "default/web-node1"]);
    machine.post(&sleeper("posted"));
    let pods = ["default/db-node1", "default/posted", "default/web-node1"];
    let all = run(&machine, &pods);
    assert_eq!([&all[0], &all[2]], [&begun[0], &begun[1]]);

    // No pod ends with the agent, however that ends.
    machine.restart();
    machine.ok("systemctl kill -s KILL podmux.service");
    machine.wait_for("the agent runs again", || machine.is_active());
    // A label restarts nothing.
    let mut labelled = sleeper("web");
    labelled["metadata"]["labels"] = json!({"a": "b"});
    machine.write("/etc/podmux/manifests/web.yaml", labelled.to_string());
    machine.wait_for("the label was given to the program", || {
        let labelled = machine.ok("podmux get pods -l a=b --no-headers --ignore-not-found");
        let sinks = machine.ok("podmux get sinks --no-headers");
        let is_current = sinks.lines().any(|line| line.starts_with("exec=") && line.contains(" current "));
        if labelled.contains("web-node1") && is_current { Ok(()) } else { Err(format!("{labelled}{sinks}")) }
    });
    assert_eq!(run(&machine, &pods), all);

    // A manifest that goes while the agent is down ends its pod at the next start.
    machine.ok("systemctl stop podmux.service podmux.socket");
    assert_eq!(run(&machine, &pods), all);
    machine.ok("rm /etc/podmux/manifests/web.yaml");
    machine.ok("systemctl start podmux.socket podmux.service");
    assert_eq!(run(&machine, &pods[..2]), all[..2]);
    machine.ok("podmux delete pod posted");
    assert_eq!(run(&machine, &pods[..1]), all[..1]);
    // A container that ends by itself is started again.
    let mut ends = sleeper("ends");
    ends["spec"]["containers"][0]["command"] = json!(["sleep", "1"]);
    machine.write("/etc/podmux/manifests/ends.yaml", ends.to_string());
    machine.wait_for("the container is started again", || {
        let units = machine.ok("systemctl list-units --all --plain --no-legend 'podmux-*.service'");
        let unit = units.lines().find(|line| line.contains("default/ends-node1 ")).ok_or(units.clone())?;
        let unit = unit.split_whitespace().next().unwrap();
        match machine.ok(&format!("systemctl show -p NRestarts --value {unit}")).trim() {
            "0" => Err(units),
            _ => Ok(()),
        }
    });
    assert_eq!(machine.ok("systemctl list-units --failed --plain --no-legend"), "");
}

#[test]
fn a_pod_that_has_failed_and_is_never_started_again_stays_failed_until_it_is_removed() {
    let machine = with_exec();
    // See above: the directory must not become empty.
    machine.write("/etc/podmux/manifests/db.yaml", sleeper("db").to_string());
    let mut once = sleeper("once");
    once["spec"]["restartPolicy"] = "Never".into();
    once["spec"]["containers"][0]["env"] = json!([{"name": "my-var.x", "value": "$1"}]);
    // In a manifest $$ is one dollar sign.
    once["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "tr '\\0' '\\n' < /proc/$$$$/environ | grep my-var.x >> /run/once; exit 1"]);
    machine.write("/etc/podmux/manifests/once.yaml", once.to_string());
    let failed = |expected: usize| {
        machine.wait_for("the units that have failed", || {
            let units = machine.ok("systemctl list-units --failed --plain --no-legend");
            if units.lines().count() == expected { Ok(()) } else { Err(units) }
        });
    };
    failed(1);
    once["metadata"]["labels"] = json!({"a": "b"});
    machine.write("/etc/podmux/manifests/once.yaml", once.to_string());
    machine.wait_for("the label was given to the program", || {
        let given = machine.ok("cat /run/podmux-agent/*/exec/default_once-node1/*.stdin");
        let sinks = machine.ok("podmux get sinks --no-headers");
        if given.contains(r#""a":"b""#) && sinks.contains(" current ") { Ok(()) } else { Err(given + &sinks) }
    });
    assert_eq!(machine.read("/run/once"), "my-var.x=$1\n");
    machine.ok("rm /etc/podmux/manifests/once.yaml");
    failed(0);
}

/// systemd may see the end of such a program before its start.
#[test]
fn pods_that_fail_at_once_and_are_never_started_again_run_once() {
    let machine = with_exec();
    let names: Vec<String> = (10..30).map(|number| format!("once{number}")).collect();
    for name in &names {
        let mut once = sleeper(name);
        once["spec"]["restartPolicy"] = "Never".into();
        once["spec"]["containers"][0]["command"] =
            json!(["sh", "-c", format!("echo {name} >> /run/ran; exit 1")]);
        machine.write(&format!("/etc/podmux/manifests/{name}.yaml"), once.to_string());
    }
    machine.wait_for("each pod has failed", || {
        let units = machine.ok("systemctl list-units --failed --plain --no-legend");
        let sinks = machine.ok("podmux get sinks --no-headers");
        if units.lines().count() == names.len() && sinks.contains(" current ") {
            Ok(())
        } else {
            Err(units + &sinks)
        }
    });
    let ran = machine.read("/run/ran");
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    assert_eq!(ran, names);
}

/// The words of a command, its environment and its input, as a pod of this machine notes them at each start.
fn notes_its_words(machine: &Machine) {
    let program = "#!/bin/sh\n\
        { printf '<%s>' \"$@\" \"$A\" \"$(readlink /proc/self/fd/0)\" \"$(tr '\\0' '\\n' < /proc/$$/environ | grep my-var)\"; } | base64 --wrap=0 >> /run/words\n\
        echo >> /run/words; exit 1\n";
    machine.ok("mkdir /opt/words");
    machine.write_as("/opt/words/a=$b", 0o755, program);
    let mut words = sleeper("words");
    // systemd holds no such time.
    words["spec"]["terminationGracePeriodSeconds"] = i64::MAX.into();
    let long = "x".repeat(100_000);
    words["spec"]["containers"][0]["command"] = json!(["a=$b", "a; b", ";", "$A", "$(A)"]);
    words["spec"]["containers"][0]["args"] = json!(["%n", "", "1\n2", "\\x41", "it's \"", "-x", long]);
    words["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "$x; %n"}, {"name": "my-var.x", "value": "\\1"}, {"name": "PATH", "value": "/opt/words:/usr/bin"}]);
    machine.write("/etc/podmux/manifests/words.yaml", words.to_string());
    let lines = |at_least: usize| {
        machine.wait_for("the container is started again", || {
            let words = if machine.exists("/run/words") { machine.read("/run/words") } else { String::new() };
            // The last one may be incomplete.
            let lines: Vec<String> =
                words.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect();
            if lines.len() >= at_least { Ok(lines) } else { Err(format!("{} lines", lines.len())) }
        })
    };
    let before = lines(2);
    machine.write(
        "/run/expected",
        format!(
            "<a; b><;><$A><$x; %n><%n><><1\n2><\\x41><it's \"><-x><{long}><$x; %n></dev/null><my-var.x=\\1>"
        ),
    );
    let expected = machine.ok("base64 --wrap=0 /run/expected") + "\n";
    machine.ok("systemctl daemon-reload");
    let after = lines(before.len() + 2);
    assert!(after.iter().all(|line| *line == expected), "{after:?}");
}

/// In the `ExecStart=` that systemd-run makes some words are others when systemd reads it again.
#[test]
fn a_command_stays_what_it_is_after_a_daemon_reload() {
    notes_its_words(&with_exec());
    let newer = Machine::boot_newer();
    newer.install(&package());
    notes_its_words(&installed(newer));
}

/// As in a container, where all processes end with the first one.
#[test]
fn what_a_failed_pod_has_left_ends_with_it() {
    let machine = with_exec();
    let mut once = sleeper("once");
    once["spec"]["restartPolicy"] = "Never".into();
    once["spec"]["terminationGracePeriodSeconds"] = 1000.into();
    once["spec"]["containers"][0]["command"] = json!([
        "sh",
        "-c",
        "(trap '' TERM; touch /run/left; sleep 1000) & until [ -e /run/left ]; do sleep 0.1; done; exit 1"
    ]);
    machine.write("/etc/podmux/manifests/once.yaml", once.to_string());
    machine.wait_for("the unit has failed", || {
        let units = machine.ok("systemctl list-units --failed --plain --no-legend");
        if units.lines().count() == 1 { Ok(()) } else { Err(units + &machine.ok("podmux get sinks")) }
    });
    assert_eq!(machine.run("pgrep -x sleep").stdout, "");
}
