//! `podmux get pods --watch` and `podmux get events --watch`: print the list, then each event of a watch.

use std::{collections::BTreeMap, pin::pin};

use serde_json::Value;
use tokio::time::sleep;

use super::{
    pods::{PodList, Pods, metadata, name},
    stream::{FIRST_DELAY, LONGEST_DELAY, next_event},
};
use crate::{
    backoff::Backoff,
    cli::{
        connection::with_query,
        failure::Failure,
        output::{self, closed, text},
        status::Status,
        terminal::print_error,
    },
    host::Random,
    pod::SEEN,
};

pub(super) async fn watch(mut pods: Pods<'_>, random: &Random) -> Result<u8, Failure> {
    let PodList { items, version } = pods.list().await?;
    let is_listed = |wanted: &str| items.iter().any(|pod| name(pod) == wanted);
    if !pods.args.ignore_not_found && Status::print_missing(pods.plural(), pods.names, is_listed) {
        return Ok(1);
    }
    let mut watch =
        Watch { pods, printed: BTreeMap::new(), version: None, has_begun: false, is_partial: false };
    watch.show_all(items, version)?;
    watch.run(random).await
}

struct Watch<'a> {
    pods: Pods<'a>,
    /// The rows or pods that were printed, by namespace and name.
    printed: BTreeMap<(String, String), Value>,
    /// Where the watch continues; after a new list if there is none.
    version: Option<String>,
    /// Whether it was connected once.
    has_begun: bool,
    /// Whether the last list lacks the pods of a source that is not known yet: pods that it lacks stay.
    is_partial: bool,
}

impl Watch<'_> {
    /// Watches until standard output is closed, and connects again when the watch ends.
    async fn run(&mut self, random: &Random) -> Result<u8, Failure> {
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        let (mut closed, mut is_reported) = (pin!(closed()), false);
        while !self.pods.printer.is_closed() {
            let end = tokio::select! {
                biased;
                () = &mut closed => return Ok(0),
                end = self.follow(&mut backoff, &mut is_reported) => end,
            };
            match end {
                Err(failure) if failure.is_lasting() || !self.has_begun => return Err(failure),
                Err(failure) if !is_reported => {
                    is_reported = true;
                    print_error(format_args!("connection lost: {failure}; reconnecting"));
                }
                _ => {}
            }
            sleep(backoff.next(random.fraction())).await;
        }
        Ok(0)
    }

    /// Prints what is new in a list, if the watch cannot be continued, then events until the watch ends.
    async fn follow(&mut self, backoff: &mut Backoff, is_reported: &mut bool) -> Result<(), Failure> {
        if self.version.is_none() {
            let PodList { items, version } = self.pods.list().await?;
            let sources = self.pods.connection.get("/sources").await?;
            self.is_partial =
                output::items(&sources["items"]).iter().any(|source| source["state"] == "waiting");
            self.show_all(items, version)?;
        }
        let version = self.version.clone().unwrap_or_default();
        let (path, selectors) = self.pods.selection();
        let mut query: Vec<(&str, &str)> = selectors.iter().map(|(name, value)| (*name, &**value)).collect();
        query.extend([("watch", "1"), ("allowWatchBookmarks", "1"), ("resourceVersion", &*version)]);
        let connection = self.pods.connection;
        let mut lines = connection.lines(&with_query(&path, &query), self.pods.accept()).await?;
        self.has_begun = true;
        if std::mem::take(is_reported) {
            print_error("reconnected");
        }
        while self.version.is_some()
            && let Some((kind, object)) = next_event(&mut lines, &mut self.version, backoff).await?
        {
            self.event(&kind, object)?;
        }
        Ok(())
    }

    /// Prints an event. An error ends the watch.
    fn event(&mut self, kind: &str, mut object: Value) -> Result<(), Failure> {
        if kind == "BOOKMARK" {
            // The sources may be known now.
            self.version.take_if(|_| self.is_partial);
            return Ok(());
        }
        let is_table = self.pods.args.output.is_table();
        let items = if is_table { self.pods.rows(&mut object)? } else { vec![object] };
        for item in items {
            if !is_named(self.pods.names, &item) {
                continue;
            }
            self.pods.print_each(std::slice::from_ref(&item), kind == "DELETED")?;
            match kind {
                "DELETED" => drop(self.printed.remove(&key(&item))),
                _ => drop(self.printed.insert(key(&item), item)),
            }
        }
        Ok(())
    }

    /// Prints what is not printed of a list yet, and what is gone since.
    fn show_all(&mut self, items: Vec<Value>, version: String) -> Result<(), Failure> {
        let items = items.into_iter().filter(|item| is_named(self.pods.names, item));
        let listed: BTreeMap<_, _> = items.map(|item| (key(&item), item)).collect();
        let before = std::mem::take(&mut self.printed);
        let gone = before.iter().filter(|(key, _)| !listed.contains_key(*key));
        let gone: BTreeMap<_, _> = gone.map(|(key, item)| (key.clone(), item.clone())).collect();
        let compared = |item: &Value| compared(item, &self.pods);
        let is_new =
            |(key, item): &(&_, &Value)| before.get(*key).is_none_or(|old| compared(old) != compared(item));
        let new: Vec<Value> = listed.iter().filter(is_new).map(|(_, item)| item.clone()).collect();
        (self.printed, self.version) = (listed, Some(version));
        if self.is_partial {
            self.printed.extend(gone);
        } else {
            self.pods.print_each(&gone.into_values().collect::<Vec<_>>(), true)?;
        }
        self.pods.print_each(&new, false)
    }
}

/// A pod without its resourceVersion and the time when the agent first saw it, which are others after a
/// restart; a row with what is printed of it, without its ages.
fn compared(item: &Value, pods: &Pods<'_>) -> Value {
    let mut item = item.clone();
    let pod = if item["cells"].is_array() { &mut item["object"] } else { &mut item };
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("creationTimestamp");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(SEEN);
        }
    }
    if item["cells"].is_array() {
        item["cells"] = pods.timeless(&item).into();
    }
    item
}

fn key(item: &Value) -> (String, String) {
    let metadata = metadata(item);
    (text(&metadata["namespace"]).to_owned(), text(&metadata["name"]).to_owned())
}

fn is_named(names: &[String], item: &Value) -> bool {
    names.is_empty() || names.iter().any(|wanted| wanted == name(item))
}
