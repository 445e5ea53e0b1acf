//! `podmux get pods`: the pods of all sources, once or as they change.

use std::{collections::BTreeMap, time::Duration};

use anyhow::anyhow;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Args, Form, Printer, list};
use crate::{
    age::age,
    cli::{
        Failure,
        connection::{Answer, Connection, Stream, with_query},
        status::Status,
        table::{Cell, Row},
        terminal::{RED, Shown, YELLOW},
    },
    client::escaped,
    clock,
    pod::{SEEN, SOURCE, SourceName},
};

/// How many pods a request asks for, as kubectl's do: no answer is huge.
const PAGE: &str = "500";
/// How long it rests before it starts over after a stream was lost.
const AGAIN: Duration = Duration::from_secs(1);

/// What happened to a pod that is watched; the API's words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Added,
    Modified,
    Deleted,
}

impl Event {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// The pods that were asked for.
struct Listed {
    pods: Vec<Value>,
    /// The number of the last update that they include.
    seq: String,
}

struct Pods<'a> {
    args: &'a Args,
    names: &'a [String],
    connection: &'a Connection,
    printer: Printer,
}

pub(super) async fn get(
    args: &Args,
    names: &[String],
    connection: &Connection,
    colour: bool,
) -> Result<u8, Failure> {
    let columns = columns(args);
    let mut printer = Printer::new(args, &columns, colour);
    if args.watch {
        printer = printer.with_room_for(&columns.iter().map(|column| longest(column)).collect::<Vec<_>>());
    }
    let mut pods = Pods { args, names, connection, printer };
    if args.watch {
        pods.watch().await
    } else if names.is_empty() {
        pods.all().await
    } else {
        pods.named().await
    }
}

fn columns(args: &Args) -> Vec<&'static str> {
    let mut columns = Vec::new();
    if args.output_watch_events {
        columns.push("EVENT");
    }
    if args.all_namespaces {
        columns.push("NAMESPACE");
    }
    columns.extend(["NAME", "SOURCE", "STATUS", "AGE"]);
    if args.output == Form::Wide {
        columns.extend(["NODE", "UID", "PRIORITY", "HASH"]);
    }
    if args.show_labels {
        columns.push("LABELS");
    }
    columns
}

/// The longest text that may come to stand in a column, as far as that is known.
fn longest(column: &str) -> &str {
    match column {
        "EVENT" => "MODIFIED",
        "STATUS" => "Terminating",
        "AGE" => "119s",
        column => column,
    }
}

impl Pods<'_> {
    /// Every pod that is selected.
    async fn all(&mut self) -> Result<u8, Failure> {
        let listed = match self.list().await? {
            Ok(listed) => listed,
            Err(status) => return Ok(self.refused(&status)),
        };
        if listed.pods.is_empty() && matches!(self.args.output, Form::Table | Form::Wide | Form::Name) {
            if !self.args.ignore_not_found {
                let namespace = (!self.args.all_namespaces).then_some(&self.args.namespace);
                let place = namespace.map(|namespace| format!(" in {} namespace.", Shown(namespace)));
                self.connection.say(&format!("No resources found{}", place.unwrap_or_default()));
            }
            return Ok(0);
        }
        self.print(listed.pods, &listed.seq)?;
        Ok(0)
    }

    /// The pods of these names; those that are not there do not hide the others.
    async fn named(&mut self) -> Result<u8, Failure> {
        let mut pods = Vec::new();
        let mut code = 0;
        for name in self.names {
            match self.connection.get(&pod_path(&self.args.namespace, name)).await? {
                Ok(pod) => pods.push(pod),
                Err(status) if status.is_not_found() && self.args.ignore_not_found => {}
                Err(status) => code = self.refused(&status),
            }
        }
        if let ([_], [pod], Form::Json | Form::Yaml) = (self.names, &*pods, self.args.output) {
            self.printer.object(pod)?;
        } else if !pods.is_empty() {
            self.print(pods, "")?;
        }
        Ok(code)
    }

    fn refused(&self, status: &Status) -> u8 {
        self.connection.refused(status, None);
        1
    }

    fn print(&mut self, pods: Vec<Value>, seq: &str) -> Result<(), Failure> {
        match self.args.output {
            Form::Table | Form::Wide => {
                let rows: Vec<Row> = pods.iter().map(|pod| self.row(pod, None, None)).collect();
                self.printer.rows(&rows)
            }
            Form::Json | Form::Yaml => self.printer.object(&list(pods, seq)),
            Form::Name => pods.iter().try_for_each(|pod| self.printer.text(&format!("pod/{}\n", name(pod)))),
            Form::Jsonl => pods.iter().try_for_each(|pod| self.printer.object(pod)),
        }
    }

    /// Asks for all pods that are selected, page by page.
    async fn list(&self) -> Result<Answer<Listed>, Failure> {
        let path = if self.args.all_namespaces {
            "/api/v1/pods".to_owned()
        } else {
            format!("/api/v1/namespaces/{}/pods", escaped(&self.args.namespace))
        };
        let mut pods = Vec::new();
        let mut next = String::new();
        let mut limit = Some(PAGE);
        loop {
            let query: Vec<(&str, &str)> = self
                .selectors()
                .chain(limit.map(|limit| ("limit", limit)))
                .chain((!next.is_empty()).then_some(("continue", &*next)))
                .collect();
            let page = match self.connection.get(&with_query(&path, &query)).await? {
                Ok(page) => page,
                // The pods have changed since the first page: all of them at once, then.
                Err(status) if status.code == 410 && !next.is_empty() => {
                    (pods, next, limit) = (Vec::new(), String::new(), None);
                    continue;
                }
                Err(status) => return Ok(Err(status)),
            };
            let Value::Object(mut page) = page else { return Err(no_list(&path)) };
            let Some(Value::Array(items)) = page.remove("items") else { return Err(no_list(&path)) };
            pods.extend(items.into_iter().map(complete));
            let metadata = page.remove("metadata").unwrap_or_default();
            let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
            next = text("continue");
            if next.is_empty() {
                return Ok(Ok(Listed { pods, seq: text("resourceVersion") }));
            }
        }
    }

    fn selectors(&self) -> impl Iterator<Item = (&str, &str)> {
        let Args { selector: labels, field_selector: fields, .. } = self.args;
        let labels = labels.iter().map(|labels| ("labelSelector", labels.as_str()));
        labels.chain(fields.iter().map(|fields| ("fieldSelector", fields.as_str())))
    }

    fn row(&self, pod: &Value, source: Option<&str>, event: Option<Event>) -> Row {
        let args = self.args;
        let metadata = &pod["metadata"];
        let text = |value: &Value| Cell::new(value.as_str().unwrap_or_default());
        let annotation = |name: &str| metadata["annotations"][name].as_str();
        let since = time(&metadata["creationTimestamp"]).or_else(|| time(&metadata["annotations"][SEEN]));
        let source = source.unwrap_or_else(|| origin(pod));
        let mut row = Vec::new();
        if args.output_watch_events {
            row.push(Cell::new(event.unwrap_or(Event::Added).as_str()));
        }
        if args.all_namespaces {
            row.push(text(&metadata["namespace"]));
        }
        row.extend([
            text(&metadata["name"]),
            Cell::new(source),
            status(pod, event),
            Cell::new(&age(since, clock::now())),
        ]);
        if args.output == Form::Wide {
            let priority = pod["spec"]["priority"].as_i64().map(|priority| priority.to_string());
            row.extend([
                text(&pod["spec"]["nodeName"]),
                text(&metadata["uid"]),
                Cell::new(&priority.unwrap_or_default()),
                Cell::new(annotation("kubernetes.io/config.hash").unwrap_or_default()),
            ]);
        }
        if args.show_labels {
            let labels = metadata["labels"].as_object();
            let labels = labels
                .into_iter()
                .flatten()
                .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            row.push(Cell::new(&labels.collect::<Vec<_>>().join(",")));
        }
        row
    }
}

/// Watching: a list, then what the update stream tells from there.
impl Pods<'_> {
    async fn watch(&mut self) -> Result<u8, Failure> {
        let mut known = Known::default();
        loop {
            let listed = match self.list().await? {
                Ok(listed) => listed,
                Err(status) => return Ok(self.refused(&status)),
            };
            let next: u64 = listed.seq.parse().map(|seq: u64| seq.saturating_add(1)).map_err(|_| {
                Failure::Failed(anyhow!(
                    "the list of pods does not say where in the updates it is; is this a podmux agent?"
                ))
            })?;
            let pods: Vec<Value> = listed.pods.into_iter().filter(|pod| self.is_named(pod)).collect();
            if known.is_new() && self.missing(&pods) {
                return Ok(1);
            }
            self.renew(&mut known, pods)?;
            let stream =
                self.connection.lines(&with_query("/updates", &[("from", &next.to_string())])).await?;
            let ended = match stream {
                Ok(stream) => self.follow(stream, &mut known).await?,
                Err(status) => Some(status),
            };
            match ended {
                // What was missed is in a new list.
                Some(status) if status.code == 410 => sleep(AGAIN).await,
                Some(status) => return Ok(self.refused(&status)),
                None => return Ok(0),
            }
        }
    }

    /// Says which of the names are not there.
    fn missing(&self, pods: &[Value]) -> bool {
        let missing = self.names.iter().filter(|wanted| !pods.iter().any(|pod| name(pod) == **wanted));
        let missing: Vec<_> = missing.filter(|_| !self.args.ignore_not_found).collect();
        for name in &missing {
            let message = format!("pods \"{name}\" not found");
            self.refused(&Status { code: 404, reason: "NotFound".to_owned(), message, causes: Vec::new() });
        }
        !missing.is_empty()
    }

    /// Tells how everything differs from what is known.
    fn renew(&mut self, known: &mut Known, pods: Vec<Value>) -> Result<(), Failure> {
        let (gone, changed) = known.renew(pods);
        for pod in gone {
            self.tell(&pod, None, Event::Deleted)?;
        }
        if matches!(self.args.output, Form::Table | Form::Wide) {
            let row = |(pod, event): &(Value, Event)| self.row(pod, None, Some(*event));
            let rows: Vec<Row> = changed.iter().map(row).collect();
            return self.printer.rows(&rows);
        }
        changed.iter().try_for_each(|(pod, event)| self.tell(pod, None, *event))
    }

    /// Tells what the stream tells. Gives the status with which it broke off, if it did.
    async fn follow(&mut self, mut stream: Stream, known: &mut Known) -> Result<Option<Status>, Failure> {
        while let Some(line) = stream.next().await? {
            let mut update: Value = serde_json::from_slice(&line)
                .map_err(|_| Failure::Failed(anyhow!("a line of the updates is no JSON: it was cut off")))?;
            if update["kind"] == "Status" {
                return Ok(Some(Status::of(&update, 500)));
            }
            let pods = match update["pods"].take() {
                Value::Array(pods) => pods,
                _ => Vec::new(),
            };
            let in_scope = pods.into_iter().filter(|pod| self.is_in_scope(pod));
            let pods: Vec<Value> = in_scope.map(complete).collect();
            let source = update["source"].as_str().unwrap_or_default();
            match update["op"].as_str().unwrap_or_default() {
                "SET" => {
                    let mut selected = Vec::new();
                    for pod in pods {
                        selected.extend(self.selected(pod).await?);
                    }
                    self.renew(known, selected)?;
                }
                "REMOVE" => {
                    for pod in pods.iter().filter(|pod| known.remove(pod)) {
                        self.tell(pod, Some(source), Event::Deleted)?;
                    }
                }
                _ => self.changed(pods, source, known).await?,
            }
            if self.printer.is_closed() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    async fn changed(&mut self, pods: Vec<Value>, source: &str, known: &mut Known) -> Result<(), Failure> {
        for pod in pods {
            match self.selected(pod.clone()).await? {
                Some(pod) => {
                    let event = if known.put(&pod) { Event::Modified } else { Event::Added };
                    self.tell(&pod, Some(source), event)?;
                }
                // It was selected, and now is not.
                None if known.remove(&pod) => self.tell(&pod, Some(source), Event::Deleted)?,
                None => {}
            }
        }
        Ok(())
    }

    fn tell(&mut self, pod: &Value, source: Option<&str>, event: Event) -> Result<(), Failure> {
        match self.args.output {
            Form::Table | Form::Wide => {
                let row = self.row(pod, source, Some(event));
                self.printer.rows(&[row])
            }
            Form::Name => self.printer.text(&format!("pod/{}\n", name(pod))),
            Form::Json | Form::Yaml | Form::Jsonl if self.args.output_watch_events => {
                self.printer.object(&json!({ "type": event.as_str(), "object": pod }))
            }
            Form::Json | Form::Yaml | Form::Jsonl => self.printer.object(pod),
        }
    }

    fn is_named(&self, pod: &Value) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name(pod))
    }

    fn is_in_scope(&self, pod: &Value) -> bool {
        let here = self.args.all_namespaces || pod["metadata"]["namespace"] == *self.args.namespace;
        here && self.is_named(pod)
    }

    /// The pod, if the selectors select it. The stream tells of all pods, so
    /// the server is asked about each: only it knows what a selector means.
    async fn selected(&self, pod: Value) -> Result<Option<Value>, Failure> {
        if self.selectors().next().is_none() {
            return Ok(Some(pod));
        }
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/{}/pods", escaped(namespace));
        let mut fields = format!("metadata.name={}", name(&pod));
        let mut query = Vec::new();
        for (what, selector) in self.selectors() {
            match what {
                "fieldSelector" => fields = format!("{fields},{selector}"),
                _ => query.push((what, selector)),
            }
        }
        query.push(("fieldSelector", &fields));
        match self.connection.get(&with_query(&path, &query)).await? {
            Ok(mut page) => match page["items"].take() {
                Value::Array(mut items) => Ok(items.pop().map(complete)),
                _ => Err(no_list(&path)),
            },
            Err(status) => Err(Failure::Failed(anyhow!(status.told(None)))),
        }
    }
}

/// The pods that were told, as text: many of them take little room so.
#[derive(Default)]
struct Known {
    pods: BTreeMap<String, String>,
    renewed: bool,
}

impl Known {
    /// Whether nothing was told yet.
    fn is_new(&self) -> bool {
        !self.renewed
    }

    /// Takes a pod; says whether it was known.
    fn put(&mut self, pod: &Value) -> bool {
        self.pods.insert(key(pod), pod.to_string()).is_some()
    }

    /// Forgets a pod; says whether it was known.
    fn remove(&mut self, pod: &Value) -> bool {
        self.pods.remove(&key(pod)).is_some()
    }

    /// Takes these pods in place of all; gives those that are gone, and what is new of the others.
    fn renew(&mut self, pods: Vec<Value>) -> (Vec<Value>, Vec<(Value, Event)>) {
        self.renewed = true;
        let mut old = std::mem::take(&mut self.pods);
        let mut changed = Vec::new();
        for pod in pods {
            let (key, text) = (key(&pod), pod.to_string());
            match old.remove(&key) {
                Some(known) if known == text => {}
                Some(_) => changed.push((pod, Event::Modified)),
                None => changed.push((pod, Event::Added)),
            }
            self.pods.insert(key, text);
        }
        let gone = old.values().filter_map(|text| serde_json::from_str(text).ok());
        (gone.collect(), changed)
    }
}

/// Whose pod it is. The annotation has the kubelet's names, and to it a polled
/// URL is `http` too. But a posted pod was created when it was first seen, to the
/// second; what a polled manifest says of its creation was written before that.
fn origin(pod: &Value) -> &str {
    let source = pod["metadata"]["annotations"][SOURCE].as_str().unwrap_or_default();
    let second = |time: Option<Timestamp>| time.map(Timestamp::as_second);
    let created = second(time(&pod["metadata"]["creationTimestamp"]));
    let seen = second(time(&pod["metadata"]["annotations"][SEEN]));
    let is_posted = created.is_some() && created == seen;
    if source == SourceName::Url.annotation() && !is_posted { SourceName::Url.as_str() } else { source }
}

/// What a pod does, as far as a mux knows.
fn status(pod: &Value, event: Option<Event>) -> Cell {
    let phase = pod["status"]["phase"].as_str().unwrap_or("Unknown");
    if event == Some(Event::Deleted) {
        Cell::new("Removed").styled(YELLOW)
    } else if pod["metadata"]["deletionTimestamp"].is_string() {
        Cell::new("Terminating").styled(YELLOW)
    } else if phase == "Failed" {
        Cell::new(phase).styled(RED)
    } else {
        Cell::new(phase)
    }
}

/// The items of a PodList come without kind and apiVersion; alone they need them.
fn complete(mut pod: Value) -> Value {
    if let Value::Object(fields) = &mut pod {
        fields.entry("apiVersion").or_insert_with(|| "v1".into());
        fields.entry("kind").or_insert_with(|| "Pod".into());
    }
    pod
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

fn key(pod: &Value) -> String {
    format!("{}/{}", pod["metadata"]["namespace"].as_str().unwrap_or_default(), name(pod))
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// The path of one pod.
pub(in crate::cli) fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", escaped(namespace), escaped(name))
}

fn no_list(path: &str) -> Failure {
    Failure::Failed(anyhow!("what {path} answered is no list of pods; is this a podmux agent?"))
}
