//! Every source and the sink in the hardened service.

use podmux_machine::{
    apiserver::Apiserver,
    machine::Machine,
    pods::{list, pod},
    web::Web,
};
use serde_json::json;

#[test]
fn a_manifest_file_and_a_posted_pod_reach_the_sink() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("output-file");
    machine.restart();
    let mut updates = machine.updates();
    for source in ["file", "http", "url", "api"] {
        let begin = format!(r#""op":"SET","source":"{source}""#);
        assert!(updates.next().unwrap().contains(&begin), "{source} begins");
    }
    machine.write("/etc/podmux/manifests/web.yaml", pod("web").to_string());
    let update = updates.next().unwrap();
    assert!(update.contains(r#""op":"ADD""#) && update.contains("web-node1"), "{update}");
    machine.post(&pod("posted"));
    let update = updates.next().unwrap();
    assert!(update.contains(r#""op":"ADD""#) && update.contains("posted"), "{update}");
    for name in ["web-node1", "posted"] {
        machine.wait_for("the file has a line for each", || {
            let file = machine.read("/var/log/podmux/updates.jsonl");
            let found = file.lines().any(|line| line.contains(r#""op":"ADD""#) && line.contains(name));
            if found { Ok(()) } else { Err(file) }
        });
    }
    assert_eq!(
        machine.ok("stat --format='%a %U:%G' /var/log/podmux /var/log/podmux/updates.jsonl"),
        "750 podmux:podmux\n600 podmux:podmux\n"
    );
    machine.ok("rm /etc/podmux/manifests/web.yaml");
    machine.wait_for_pods(&["posted"]);
}

#[test]
fn a_url_is_polled_and_its_outage_is_in_the_status() {
    let machine = Machine::with_podmux();
    let web = Web::serve(&machine, list(&["first"]));
    machine.variables(&format!("PODMUX_MANIFEST_URL={}\nPODMUX_HTTP_CHECK_FREQUENCY=200ms", web.url));
    machine.restart();
    machine.wait_for_pods(&["first-node1"]);
    web.set(Some(list(&["first", "second"])));
    machine.wait_for_pods(&["first-node1", "second-node1"]);
    web.set(None);
    machine.wait_for_status("has the outage", |status| status.starts_with("2 pods; url failing since 20"));
    // A failing server removes no pod, also after a restart, and does not delay the start.
    machine.restart();
    machine.wait_for_pods(&["first-node1", "second-node1"]);
    web.set(Some(list(&["second"])));
    machine.wait_for_pods(&["second-node1"]);
    machine.wait_for_status("has no error", |status| status == "1 pod");
}

#[test]
fn the_pods_of_this_node_come_from_an_api_server() {
    let machine = Machine::with_podmux();
    let apiserver = Apiserver::start(&machine);
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, apiserver.kubeconfig());
    machine.packaged_drop_in("kubernetes");
    machine.restart();
    apiserver.bind("bound", "node1");
    apiserver.bind("elsewhere", "node2");
    machine.wait_for_pods(&["bound"]);
    assert_eq!(machine.source("api")["state"], "synced");
    machine.reloads_valid_and_invalid_settings();
    // Without the server the pods stay, also after a restart.
    drop(apiserver);
    machine.restart();
    machine.wait_for_pods(&["bound"]);
    machine.wait_for_status("has the outage", |status| status.contains("api failing since 20"));
}

#[test]
fn a_kubeconfig_with_a_credential_plugin_works_with_its_drop_in() {
    let machine = Machine::with_podmux();
    let apiserver = Apiserver::start(&machine);
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": apiserver.node_token()},
    });
    // Like real plugins, it writes a cache into its home directory.
    machine.write_as(
        "/opt/plugin",
        0o755,
        format!("#!/bin/sh\nset -e\necho \"$$\" >\"$HOME/cached\"\necho '{credential}'\n"),
    );
    machine.write("/etc/podmux/ca.pem", apiserver.ca());
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {
            "server": apiserver.url(), "certificate-authority": "/etc/podmux/ca.pem",
        }}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/opt/plugin",
            "interactiveMode": "Never",
        }}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    });
    machine.write("/etc/podmux/kubeconfig", kubeconfig.to_string());
    machine.variables("PODMUX_KUBECONFIG=/etc/podmux/kubeconfig");
    apiserver.bind("bound", "node1");
    // The hardened service executes nothing outside of /usr, and reports that.
    machine.restart();
    machine.wait_for_status("has the failing api source", |status| {
        status.contains("api failing since") && status.contains("/opt/plugin cannot be run")
    });
    // The journal may have it a little later.
    machine.wait_for("the log has it", || match machine.journal("--output=cat") {
        log if log.contains("/opt/plugin") => Ok(()),
        log => Err(log),
    });
    machine.packaged_drop_in("credential-plugins");
    machine.restart();
    machine.wait_for_pods(&["bound"]);
    assert!(machine.exists("/var/cache/podmux/cached"));
}
