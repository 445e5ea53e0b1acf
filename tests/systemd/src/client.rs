//! Requests to the agent in a machine.

use std::{collections::BTreeMap, fmt::Debug, io, os::unix::net::UnixStream, path::PathBuf};

use serde_json::Value;

use crate::{
    machine::Machine,
    plain::{Answer, Connection, Lines},
};

/// The agent's own address.
pub const ADDRESS: &str = "127.0.0.1:10240";

/// The socket of systemd.
pub const SOCKET: &str = "/run/podmux/podmux.sock";

impl Machine {
    /// The socket's path on the host.
    pub fn socket(&self) -> PathBuf {
        self.path(SOCKET)
    }

    /// Sends one request over a new connection.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
        Connection::unix(&self.socket())?.ask(method, path, body)
    }

    /// A GET that must be answered with 200.
    pub fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, b"").unwrap();
        assert_eq!(answer.code, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// Posts a pod, which must be accepted.
    pub fn post(&self, pod: &Value) {
        let answer = self.ask("POST", "/pods", pod.to_string().as_bytes()).unwrap();
        assert!(matches!(answer.code, 200 | 201), "{}: {}", answer.code, answer.text());
    }

    /// All pods by name.
    pub fn pods(&self) -> BTreeMap<String, Value> {
        let list = self.get("/pods");
        let pods = list["items"].as_array().unwrap().iter();
        pods.map(|pod| (pod["metadata"]["name"].as_str().unwrap().to_owned(), pod.clone())).collect()
    }

    /// Waits until the agent has exactly these pods.
    pub fn wait_for_pods<S: AsRef<str> + Debug>(&self, wanted: &[S]) {
        self.wait_for(&format!("the pods are {wanted:?}"), || {
            let answer = self.ask("GET", "/pods", b"").map_err(|error| error.to_string())?;
            if answer.code != 200 {
                return Err(answer.text());
            }
            let names = self.pods().into_keys().collect::<Vec<_>>();
            if names.iter().eq(wanted.iter().map(AsRef::as_ref)) {
                Ok(())
            } else {
                Err(format!("they are {names:?}"))
            }
        });
    }

    /// The status of a request over TCP with a token, sent by the command as root: it finds the
    /// authority that the agent has made.
    pub fn code_over_tcp(&self, token: &str) -> u16 {
        self.write_as("/root/token", 0o600, token);
        let command = format!("podmux get pods -A --server https://{ADDRESS} --token-file /root/token");
        let output = self.run(&command);
        match output.code {
            0 => 200,
            _ if output.stderr.contains("(Unauthorized)") => 401,
            _ => panic!("{output:?}"),
        }
    }

    /// The status of a source.
    pub fn source(&self, name: &str) -> Value {
        let sources = self.get("/sources");
        let list = sources["items"].as_array().or_else(|| sources["sources"].as_array()).unwrap();
        list.iter()
            .find(|source| source["name"] == name || source["source"] == name)
            .cloned()
            .unwrap_or_default()
    }

    /// The stream of updates, which starts with a SET of everything.
    pub fn updates(&self) -> Lines<UnixStream> {
        Connection::unix(&self.socket()).unwrap().lines("/updates").unwrap()
    }
}
