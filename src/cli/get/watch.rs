//! `podmux get pods --watch`: prints the pods, then each pod that changes in the update stream.

use std::{collections::BTreeMap, time::Duration};

use anyhow::anyhow;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    pods::{Pods, complete, name},
    updates::{key, parse},
};
use crate::cli::{connection::with_query, failure::Failure, status::Status};

/// The delay before a new list, when the stream has fallen behind.
const RELIST_DELAY: Duration = Duration::from_secs(1);

pub(super) async fn watch(pods: Pods<'_>) -> Result<u8, Failure> {
    Watch { pods, printed: BTreeMap::new() }.run().await
}

struct Watch<'a> {
    pods: Pods<'a>,
    /// The pods that were printed, by key; as text, which takes less memory.
    printed: BTreeMap<String, String>,
}

impl Watch<'_> {
    async fn run(&mut self) -> Result<u8, Failure> {
        let mut is_first = true;
        loop {
            let listed = self.pods.list().await?;
            let next: u64 = listed.seq.parse().map(|seq: u64| seq.saturating_add(1)).map_err(|_| {
                Failure::Failed(anyhow!("the list of pods has no resourceVersion (is this a podmux agent?)"))
            })?;
            let pods: Vec<Value> = listed.pods.into_iter().filter(|pod| self.is_named(pod)).collect();
            let is_listed = |wanted: &str| pods.iter().any(|pod| name(pod) == wanted);
            if std::mem::take(&mut is_first)
                && !self.pods.args.ignore_not_found
                && Status::print_missing("pods", self.pods.names, is_listed)
            {
                return Ok(1);
            }
            self.replace(pods)?;
            match self.follow(next).await {
                // The agent no longer holds the next update: a new list shows what was missed.
                Err(Failure::Server(status)) if status.code == 410 => sleep(RELIST_DELAY).await,
                ended => return ended.map(|()| 0),
            }
        }
    }

    /// Prints how these pods differ from the printed ones.
    fn replace(&mut self, pods: Vec<Value>) -> Result<(), Failure> {
        let mut old = std::mem::take(&mut self.printed);
        let mut changed = Vec::new();
        for pod in pods {
            let (key, text) = (key(&pod), pod.to_string());
            if old.remove(&key).as_ref() != Some(&text) {
                changed.push(pod);
            }
            self.printed.insert(key, text);
        }
        let gone: Vec<Value> = old.values().filter_map(|text| serde_json::from_str(text).ok()).collect();
        self.pods.print_each(&gone, None, true)?;
        self.pods.print_each(&changed, None, false)
    }

    /// Prints the updates of the stream from a sequence number on, until it ends.
    async fn follow(&mut self, from: u64) -> Result<(), Failure> {
        let path = with_query("/updates", &[("from", &from.to_string())]);
        let mut stream = self.pods.connection.lines(&path).await?;
        while let Some(line) = stream.next().await.transpose().map_err(Failure::failed)? {
            let mut update = parse(&line)?;
            let pods = match update["pods"].take() {
                Value::Array(pods) => pods,
                _ => Vec::new(),
            };
            let in_scope = pods.into_iter().filter(|pod| self.is_in_scope(pod));
            let mut pods: Vec<Value> = in_scope.map(complete).collect();
            let source = update["source"].as_str();
            match update["op"].as_str().unwrap_or_default() {
                "SET" => self.replace(pods)?,
                "REMOVE" => {
                    pods.retain(|pod| self.printed.remove(&key(pod)).is_some());
                    self.pods.print_each(&pods, source, true)?;
                }
                _ => {
                    self.printed.extend(pods.iter().map(|pod| (key(pod), pod.to_string())));
                    self.pods.print_each(&pods, source, false)?;
                }
            }
            if self.pods.printer.is_closed() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_named(&self, pod: &Value) -> bool {
        self.pods.names.is_empty() || self.pods.names.iter().any(|wanted| wanted == name(pod))
    }

    fn is_in_scope(&self, pod: &Value) -> bool {
        let args = self.pods.args;
        (args.all_namespaces || pod["metadata"]["namespace"] == *args.namespace) && self.is_named(pod)
    }
}
