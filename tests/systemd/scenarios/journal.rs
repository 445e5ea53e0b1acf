//! The agent's lines in the journal.

use podmux_machine::{machine::Machine, pods::pod};
use serde_json::json;

#[test]
fn the_journal_has_levels_no_duplicate_time_and_no_secret() {
    let machine = Machine::with_podmux();
    machine.variables("PODMUX_VERBOSE=3");
    machine.restart();
    let mut good = pod("good");
    good["spec"]["containers"][0]["env"] = json!([{"name": "KEY", "value": "a-secret-of-the-good-one"}]);
    machine.write("/etc/podmux/manifests/good.yaml", good.to_string());
    machine.post(&{
        let mut posted = good.clone();
        posted["metadata"]["name"] = json!("posted");
        posted
    });
    let mut bad = good.clone();
    bad["metadata"]["name"] = json!("bad");
    bad["spec"]["containers"][0]["ports"] = json!("a-secret-at-the-wrong-place");
    bad["spec"]["containers"][0]["env"] = json!([{"name": "KEY", "value": "a-secret-of-the-bad-one"}]);
    machine.write("/etc/podmux/manifests/bad.yaml", bad.to_string());
    machine.wait_for_pods(&["good-node1", "posted"]);
    machine.wait_for("the journal has the invalid manifest", || {
        let warnings = machine.journal("--output=cat --priority=warning..warning");
        if warnings.contains("/etc/podmux/manifests/bad.yaml") { Ok(()) } else { Err(warnings) }
    });
    machine.ok("systemctl stop podmux.service 2>&1");
    let journal = machine.journal("--output=cat");
    for secret in ["a-secret-of-the-good-one", "a-secret-of-the-bad-one"] {
        assert!(!journal.contains(secret), "{secret} in {journal}");
    }
    let own = machine.journal("--output=json --identifier=podmux");
    assert!(own.lines().count() > 3, "{own}");
    let mut levels = std::collections::BTreeSet::new();
    for line in own.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let message = line["MESSAGE"].as_str().unwrap_or_else(|| panic!("{line}"));
        // The journal stores the time, the level and the program's name itself.
        assert!(!message.starts_with("20") && !message.starts_with('<'), "{message}");
        for level in ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"] {
            assert!(!message.starts_with(level), "{message}");
        }
        levels.insert(line["PRIORITY"].as_str().unwrap().to_owned());
    }
    // warning, info, debug
    for level in ["4", "6", "7"] {
        assert!(levels.contains(level), "no line of level {level}: {levels:?}");
    }
    assert_eq!(machine.journal("--output=cat --priority=err"), "", "nothing has failed");
}
