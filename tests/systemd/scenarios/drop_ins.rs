//! The package's drop-ins. Those for sources with a server are in `sources.rs`, those for a
//! newer systemd in `newer.rs`.

use std::{fs, io, process::Command};

use podmux_machine::{
    machine::{Machine, Output, output},
    pods::pod,
};
use tempfile::NamedTempFile;

#[test]
fn manifests_elsewhere_are_read_by_the_group() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("manifests-elsewhere");
    machine.write_as("/srv/manifests/web.yaml", 0o640, pod("web").to_string());
    machine.ok("chgrp -R podmux /srv/manifests && chmod 2750 /srv/manifests");
    machine.restart();
    machine.wait_for_pods(&["web-node1"]);
    // A new file has the directory's group.
    machine.ok("umask 027 && cp /srv/manifests/web.yaml /srv/manifests/.second && \
         sed -i s/web/second/ /srv/manifests/.second && mv /srv/manifests/.second /srv/manifests/second.yaml");
    machine.wait_for_pods(&["second-node1", "web-node1"]);
}

#[test]
fn manifests_of_kubeadm_are_readable_and_other_secrets_are_not() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("kubeadm-manifests");
    machine.write_as("/etc/kubernetes/manifests/etcd.yaml", 0o600, pod("etcd").to_string());
    machine.write_as("/etc/kubernetes/pki/ca.key", 0o600, "a key");
    machine.write_as("/etc/kubernetes/admin.conf", 0o600, "a kubeconfig");
    machine.write_as("/var/lib/kubelet/pki/kubelet-client-current.pem", 0o600, "a certificate");
    machine.ok("chmod 0700 /etc/kubernetes/manifests");
    machine.restart();
    machine.wait_for_pods(&["etcd-node1"]);
    machine.write_as(
        "/etc/kubernetes/manifests/kube-apiserver.yaml",
        0o600,
        pod("kube-apiserver").to_string(),
    );
    machine.wait_for_pods(&["etcd-node1", "kube-apiserver-node1"]);
    // The agent's file system, read with more rights than it has.
    let view = format!("/proc/{}/root", machine.agent().unwrap().as_raw_nonzero());
    let read = |file: &str| fs::read_to_string(format!("{view}{file}"));
    // A readable file shows that this way of reading works.
    assert!(read("/etc/kubernetes/manifests/etcd.yaml").unwrap().contains("etcd"));
    // A hidden file is an empty file without rights; a hidden directory is empty.
    assert_eq!(read("/etc/shadow").unwrap(), "");
    assert_eq!(read("/etc/kubernetes/admin.conf").unwrap(), "");
    for file in ["/etc/kubernetes/pki/ca.key", "/var/lib/kubelet/pki/kubelet-client-current.pem"] {
        assert_eq!(read(file).unwrap_err().kind(), io::ErrorKind::NotFound, "{file}");
    }
}

#[test]
fn manifests_of_kubeadm_and_the_output_file_work_together() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("kubeadm-manifests");
    machine.packaged_drop_in("output-file");
    machine.write_as("/etc/kubernetes/manifests/etcd.yaml", 0o600, pod("etcd").to_string());
    machine.restart();
    machine.wait_for_pods(&["etcd-node1"]);
    machine.wait_for("the pod is in the output file", || {
        match machine.read("/var/log/podmux/updates.jsonl") {
            file if file.contains("etcd-node1") => Ok(()),
            file => Err(file),
        }
    });
}

/// Writes the files that listen-beyond-loopback.conf names; returns the certificate.
fn beyond_loopback(machine: &Machine) -> NamedTempFile {
    let (certificate, key) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-days", "2", "-subj", "/CN=node1", "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.arg("-out").arg(certificate.path()).arg("-keyout").arg(key.path());
    let made = output(&mut openssl);
    assert_eq!(made.code, 0, "{made:?}");
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/tls.pem", 0o600, fs::read(certificate.path()).unwrap());
    machine.write_as("/etc/podmux/secrets/tls.key", 0o600, fs::read(key.path()).unwrap());
    machine.write_as("/etc/podmux/secrets/token", 0o600, "the-token-of-this-test");
    certificate
}

#[test]
fn beyond_loopback_a_client_needs_tls_and_the_token() {
    let machine = Machine::with_podmux();
    let certificate = beyond_loopback(&machine);
    machine.packaged_drop_in("listen-beyond-loopback");
    machine.restart();
    machine.post(&pod("posted"));
    let ask = |token: &str| -> Output {
        let mut curl = machine.in_network("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--header"]);
        curl.arg(format!("Authorization: Bearer {token}")).arg("--cacert").arg(certificate.path());
        output(curl.arg("https://127.0.0.1:10250/pods"))
    };
    let answer = ask("the-token-of-this-test");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.stdout.contains("posted"), "{answer:?}");
    let rejected = ask("another-token");
    assert!(rejected.stdout.contains("Unauthorized"), "{rejected:?}");
    // It listens on port 10250 of all addresses.
    let sockets = machine.ok("cat /proc/net/tcp6");
    assert!(sockets.contains(&format!("{}:280A {}:0000 0A", "0".repeat(32), "0".repeat(32))), "{sockets}");
    // Only root can read the files.
    let denied = machine.run("runuser --user podmux -- cat /etc/podmux/secrets/token");
    assert_ne!(denied.code, 0);
    machine.reloads_valid_and_invalid_settings();
}

#[test]
fn a_capability_and_credentials_work_together() {
    let machine = Machine::with_podmux();
    beyond_loopback(&machine);
    machine.packaged_drop_in("listen-beyond-loopback");
    // The second way of kubernetes.conf: the kubelet's kubeconfig, which needs the capability
    // of the other drop-in.
    machine.write_as("/etc/kubernetes/kubelet.conf", 0o600, KUBECONFIG);
    let examples = "/usr/share/doc/podmux/examples/drop-ins";
    let kubernetes = machine.read(&format!("{examples}/kubernetes.conf"));
    let (_, second) = kubernetes.split_once("# The second way").unwrap();
    let second = second.lines().filter_map(|line| line.strip_prefix('#'));
    let second = second.filter(|line| !line.starts_with(' ')).collect::<Vec<_>>().join("\n");
    assert!(second.contains("kubelet.conf") && second.contains("+dac_read_search"), "{second}");
    let manifests = machine.read(&format!("{examples}/kubeadm-manifests.conf"));
    machine.drop_in("kubeadm-manifests", &manifests.replace("InaccessiblePaths=-/var/lib/kubelet\n", ""));
    // It sorts after the drop-in whose ExecReload= it replaces.
    machine.drop_in("z-kubernetes", &format!("[Service]\n{second}\n"));
    machine.restart();
    machine.reloads_valid_and_invalid_settings();
}

#[test]
fn a_reload_of_an_agent_that_is_root_reads_its_credentials() {
    let machine = Machine::with_podmux();
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, KUBECONFIG);
    machine.ok(
        "install -D -m 0755 /usr/share/doc/podmux/examples/systemd-run.sh /usr/local/lib/podmux/systemd-run.sh",
    );
    machine.packaged_drop_in("exec");
    machine.packaged_drop_in("kubernetes");
    machine.restart();
    machine.reloads_valid_and_invalid_settings();
    // The check has no more rights than the agent, which cannot read what belongs to podmux alone.
    machine.write_as("/etc/podmux/token", 0o600, "the-token-of-this-test");
    machine.ok("chown podmux /etc/podmux/token");
    machine.settings("tokenFile: /etc/podmux/token");
    assert_ne!(machine.run("systemctl reload podmux.service").code, 0);
}

/// A kubeconfig for a server that does not exist.
pub const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: a-token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";

#[test]
fn a_missing_credential_is_an_error_without_a_restart_loop() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("kubernetes");
    assert_ne!(machine.run("systemctl restart podmux.service").code, 0);
    assert_eq!(machine.is("failed"), Ok(()));
    assert_eq!((machine.number("ExecMainStatus"), machine.number("NRestarts")), (243, 0));
    let journal = machine.journal("--output=cat");
    assert!(journal.contains("CREDENTIALS"), "{journal}");
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, KUBECONFIG);
    machine.ok("systemctl start podmux.service");
    assert_eq!(machine.is_active(), Ok(()));
}

#[test]
fn the_output_file_is_rotated_and_continues_in_a_new_one() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("output-file");
    rotates(&machine);
}

#[test]
fn the_output_file_of_an_agent_that_is_root_is_rotated_as_the_drop_in_says() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("exec");
    // Its PODMUX_SINK replaces that of exec.conf.
    machine.packaged_drop_in("output-file");
    let su = "su root podmux";
    let drop_in = machine.read("/etc/systemd/system/podmux.service.d/exec.conf");
    assert!(drop_in.contains(&format!("write \"{su}\" in /etc/logrotate.d/podmux")), "{drop_in}");
    machine.ok(&format!("sed -i 's/su podmux podmux/{su}/' /etc/logrotate.d/podmux"));
    rotates(&machine);
}

/// Starts the agent, rotates its output file, and looks at both files.
fn rotates(machine: &Machine) {
    machine.restart();
    machine.post(&pod("before"));
    let has = |file: &str, name: &str| {
        if machine.exists(file) && machine.read(file).contains(name) {
            return Ok(());
        }
        Err(machine.ok("ls -l /var/log/podmux; cat /var/log/podmux/updates.jsonl || true"))
    };
    machine.wait_for("the pod is in the output file", || has("/var/log/podmux/updates.jsonl", "before"));
    machine.ok("logrotate --force /etc/logrotate.d/podmux");
    machine.wait_for("the old file is kept", || has("/var/log/podmux/updates.jsonl.1", "before"));
    // The next line goes into the new file.
    machine.wait_for_reload();
    machine.post(&pod("after"));
    machine.wait_for("the pod is in the new file", || has("/var/log/podmux/updates.jsonl", "after"));
    assert!(!machine.read("/var/log/podmux/updates.jsonl.1").contains(r#""name":"after""#));
}
