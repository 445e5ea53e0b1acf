//! Each drop-in that comes with the package, tried with what it is for. Those for sources
//! that need a server are in `sources.rs`, those for a newer systemd in `newer.rs`.

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
    // A file that is made there has the group by itself.
    machine.ok("umask 027 && cp /srv/manifests/web.yaml /srv/manifests/.second && \
         sed -i s/web/second/ /srv/manifests/.second && mv /srv/manifests/.second /srv/manifests/second.yaml");
    machine.wait_for_pods(&["second-node1", "web-node1"]);
}

#[test]
fn manifests_of_kubeadm_are_read_and_nothing_else_that_is_secret() {
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
    // What the agent sees of the machine, with more rights than it has.
    let seen = format!("/proc/{}/root", machine.agent().unwrap().as_raw_nonzero());
    let read = |file: &str| fs::read_to_string(format!("{seen}{file}"));
    // So that it is not the way of looking that hides them.
    assert!(read("/etc/kubernetes/manifests/etcd.yaml").unwrap().contains("etcd"));
    // What is hidden is an empty file without rights; what is in a directory is not there.
    assert_eq!(read("/etc/shadow").unwrap(), "");
    assert_eq!(read("/etc/kubernetes/admin.conf").unwrap(), "");
    for file in ["/etc/kubernetes/pki/ca.key", "/var/lib/kubelet/pki/kubelet-client-current.pem"] {
        assert_eq!(read(file).unwrap_err().kind(), io::ErrorKind::NotFound, "{file}");
    }
}

#[test]
fn manifests_of_kubeadm_and_the_output_file_go_together() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("kubeadm-manifests");
    machine.packaged_drop_in("output-file");
    machine.write_as("/etc/kubernetes/manifests/etcd.yaml", 0o600, pod("etcd").to_string());
    machine.restart();
    machine.wait_for_pods(&["etcd-node1"]);
    machine.wait_for("the pod is told", || match machine.read("/var/log/podmux/updates.jsonl") {
        file if file.contains("etcd-node1") => Ok(()),
        file => Err(file),
    });
}

/// What listen-beyond-loopback.conf names: a key and a token, and the certificate that is
/// given back, too.
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
fn beyond_loopback_it_serves_who_bears_the_token_over_tls() {
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
    let refused = ask("another-token");
    assert!(refused.stdout.contains("Unauthorized"), "{refused:?}");
    // On all addresses: port 10250 of no address in particular, listening.
    let sockets = machine.ok("cat /proc/net/tcp6");
    assert!(sockets.contains(&format!("{}:280A {}:0000 0A", "0".repeat(32), "0".repeat(32))), "{sockets}");
    // The files stay root's.
    let denied = machine.run("runuser --user podmux -- cat /etc/podmux/secrets/token");
    assert_ne!(denied.code, 0);
    machine.reloads_well_and_badly();
}

#[test]
fn a_capability_and_credentials_go_together() {
    let machine = Machine::with_podmux();
    beyond_loopback(&machine);
    machine.packaged_drop_in("listen-beyond-loopback");
    // The second way of kubernetes.conf, with the kubelet's kubeconfig, which only the
    // capability of the other drop-in reads.
    machine.write_as("/etc/kubernetes/kubelet.conf", 0o600, KUBECONFIG);
    let examples = "/usr/share/doc/podmux/examples/drop-ins";
    let kubernetes = machine.read(&format!("{examples}/kubernetes.conf"));
    let (_, second) = kubernetes.split_once("# The second way").unwrap();
    let second = second.lines().filter_map(|line| line.strip_prefix('#'));
    let second = second.filter(|line| !line.starts_with(' ')).collect::<Vec<_>>().join("\n");
    assert!(second.contains("kubelet.conf") && second.contains("+dac_read_search"), "{second}");
    let manifests = machine.read(&format!("{examples}/kubeadm-manifests.conf"));
    machine.drop_in("kubeadm-manifests", &manifests.replace("InaccessiblePaths=-/var/lib/kubelet\n", ""));
    // Later than the one whose ExecReload= it replaces.
    machine.drop_in("z-kubernetes", &format!("[Service]\n{second}\n"));
    machine.restart();
    machine.reloads_well_and_badly();
}

/// Of a server that is not there.
pub const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: a-token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";

#[test]
fn a_credential_that_is_not_there_is_said_and_is_no_loop() {
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
fn the_output_file_is_rotated_and_goes_on_in_a_new_one() {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("output-file");
    machine.restart();
    machine.post(&pod("before"));
    let has = |file: &str, name: &str| {
        if machine.exists(file) && machine.read(file).contains(name) {
            return Ok(());
        }
        Err(machine.ok("ls -l /var/log/podmux; cat /var/log/podmux/updates.jsonl || true"))
    };
    machine.wait_for("the pod is told", || has("/var/log/podmux/updates.jsonl", "before"));
    machine.ok("logrotate --force /etc/logrotate.d/podmux");
    machine.wait_for("the file is kept", || has("/var/log/podmux/updates.jsonl.1", "before"));
    // The next line goes into the new one.
    machine.wait_for("the agent was told", || {
        let journal = machine.journal("--output=cat");
        if journal.contains("settings reloaded") { Ok(()) } else { Err(journal) }
    });
    machine.post(&pod("after"));
    machine.wait_for("the pod is told in the new file", || has("/var/log/podmux/updates.jsonl", "after"));
    assert!(!machine.read("/var/log/podmux/updates.jsonl.1").contains(r#""name":"after""#));
}
