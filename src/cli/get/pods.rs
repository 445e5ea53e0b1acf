//! `podmux get pods`: prints the merged pods of all sources.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    args::{Args, OutputFormat},
    printer::Printer,
};
use crate::{
    age::age,
    cli::{
        connection::{Connection, pod_path},
        failure::Failure,
        output::{items, list, text, time},
        table::{Cell, Row},
        terminal::{Escaped, RED, YELLOW, print_error},
    },
    client::escaped,
    host::Clock,
    pod::{SEEN, SOURCE, SourceName},
    pod_columns::PodColumns,
};

/// How many pods a request asks for, like kubectl: it bounds the size of a response.
const PAGE: &str = "500";

/// A list of pods.
pub(super) struct PodList {
    pub(super) pods: Vec<Value>,
    /// The sequence number of the last update that is in the list.
    pub(super) seq: String,
}

pub(super) struct Pods<'a> {
    pub(super) args: &'a Args,
    pub(super) names: &'a [String],
    pub(super) connection: &'a Connection,
    clock: &'a Clock,
    columns: Vec<&'static str>,
    pub(super) printer: Printer,
}

impl<'a> Pods<'a> {
    pub(super) fn new(
        args: &'a Args,
        names: &'a [String],
        connection: &'a Connection,
        clock: &'a Clock,
        colour: bool,
    ) -> Self {
        let columns = columns(args);
        let longest = |column: &&'static str| match *column {
            "STATUS" => "Terminating",
            "AGE" => "119s",
            column => column,
        };
        let widths: Vec<&str> = if args.watch { columns.iter().map(longest).collect() } else { Vec::new() };
        let printer = Printer::new(args, &columns, &widths, colour);
        Self { args, names, connection, clock, columns, printer }
    }

    pub(super) async fn get(mut self) -> Result<u8, Failure> {
        if self.names.is_empty() { self.all().await } else { self.named().await }
    }

    async fn all(&mut self) -> Result<u8, Failure> {
        let listed = self.list().await?;
        let args = self.args;
        if listed.pods.is_empty() && (args.output.is_table() || args.output == OutputFormat::Name) {
            if !args.ignore_not_found {
                let namespace = (!args.all_namespaces).then_some(&args.namespace);
                let place = namespace.map(|namespace| format!(" in {} namespace.", Escaped(namespace)));
                print_error(format_args!("No resources found{}", place.unwrap_or_default()));
            }
            return Ok(0);
        }
        self.print(listed.pods, &listed.seq)?;
        Ok(0)
    }

    /// Prints the named pods that exist, and an error for each other name.
    async fn named(&mut self) -> Result<u8, Failure> {
        let mut pods = Vec::new();
        let mut code = 0;
        for name in self.names {
            match self.connection.get(&pod_path(&self.args.namespace, name)).await {
                Ok(pod) => pods.push(pod),
                Err(failure) if failure.is_not_found() && self.args.ignore_not_found => {}
                Err(failure) => {
                    failure.print_server_error(None)?;
                    code = 1;
                }
            }
        }
        if let ([_], [pod], OutputFormat::Json | OutputFormat::Yaml) = (self.names, &*pods, self.args.output)
        {
            self.printer.object(pod)?;
        } else if !pods.is_empty() {
            self.print(pods, "")?;
        }
        Ok(code)
    }

    fn print(&mut self, pods: Vec<Value>, seq: &str) -> Result<(), Failure> {
        match self.args.output {
            OutputFormat::Json | OutputFormat::Yaml => self.printer.object(&list(pods, seq)),
            _ => self.print_each(&pods, None, false),
        }
    }

    /// Prints pods that came from a source, or that are removed. Without a source, it is
    /// derived from each pod.
    pub(super) fn print_each(
        &mut self,
        pods: &[Value],
        source: Option<&str>,
        is_removed: bool,
    ) -> Result<(), Failure> {
        match self.args.output {
            OutputFormat::Table | OutputFormat::Wide => {
                let rows: Vec<Row> = pods.iter().map(|pod| self.row(pod, source, is_removed)).collect();
                self.printer.rows(&rows)
            }
            OutputFormat::Name => {
                pods.iter().try_for_each(|pod| self.printer.text(&format!("pod/{}\n", name(pod))))
            }
            _ => pods.iter().try_for_each(|pod| self.printer.object(pod)),
        }
    }

    /// Lists all pods that the selectors match, page by page.
    pub(super) async fn list(&self) -> Result<PodList, Failure> {
        let path = if self.args.all_namespaces {
            "/api/v1/pods".to_owned()
        } else {
            format!("/api/v1/namespaces/{}/pods", escaped(&self.args.namespace))
        };
        let mut pods = Vec::new();
        let mut next = String::new();
        let mut limit = Some(PAGE);
        loop {
            let labels = self.args.selector.iter().map(|labels| ("labelSelector", &**labels));
            let query: Vec<(&str, &str)> = labels
                .chain(self.args.field_selector.iter().map(|fields| ("fieldSelector", &**fields)))
                .chain(limit.map(|limit| ("limit", limit)))
                .chain((!next.is_empty()).then_some(("continue", &*next)))
                .collect();
            let (page, items) = match self.connection.list(&path, &query, "PodList").await {
                // The first pages have expired: list everything in one response.
                Err(Failure::Server(status)) if status.code == 410 && !next.is_empty() => {
                    (pods, next, limit) = (Vec::new(), String::new(), None);
                    continue;
                }
                page => page?,
            };
            pods.extend(items.into_iter().map(complete));
            text(&page["metadata"]["continue"]).clone_into(&mut next);
            if next.is_empty() {
                let seq = text(&page["metadata"]["resourceVersion"]).to_owned();
                return Ok(PodList { pods, seq });
            }
        }
    }

    fn row(&self, pod: &Value, source: Option<&str>, is_removed: bool) -> Row {
        let metadata = &pod["metadata"];
        let since = time(&metadata["creationTimestamp"]).or_else(|| time(&metadata["annotations"][SEEN]));
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let labels = labels.map(|(name, value)| format!("{name}={}", text(value)));
        let priority = pod["spec"]["priority"].as_i64().map(|priority| priority.to_string());
        let now = self.clock.now();
        let columns = PodColumns::of(pod, now);
        let cell = |column: &&str| match *column {
            "NAMESPACE" => text(&metadata["namespace"]).into(),
            "NAME" => name(pod).into(),
            "READY" => (&columns.ready).into(),
            "STATUS" => status(pod, &columns.status, is_removed),
            "RESTARTS" => (&columns.restarts).into(),
            "AGE" => age(since, now).into(),
            "SOURCE" => source.unwrap_or_else(|| source_of(pod)).into(),
            "IP" => ip(&pod["status"]).into(),
            "NODE" => text(&pod["spec"]["nodeName"]).into(),
            "UID" => text(&metadata["uid"]).into(),
            "PRIORITY" => priority.as_deref().unwrap_or_default().into(),
            "HASH" => text(&metadata["annotations"]["kubernetes.io/config.hash"]).into(),
            _ => labels.clone().collect::<Vec<_>>().join(",").into(),
        };
        self.columns.iter().map(cell).collect()
    }
}

fn columns(args: &Args) -> Vec<&'static str> {
    let mut columns = Vec::new();
    if args.all_namespaces {
        columns.push("NAMESPACE");
    }
    columns.extend(["NAME", "READY", "STATUS", "RESTARTS", "AGE", "SOURCE"]);
    if args.output == OutputFormat::Wide {
        columns.extend(["IP", "NODE", "UID", "PRIORITY", "HASH"]);
    }
    if args.show_labels {
        columns.push("LABELS");
    }
    columns
}

/// The source of a pod. The annotation has the kubelet's names, where a polled URL is `http`,
/// too. But a posted pod has the time when it was first seen, in whole seconds, as its
/// `creationTimestamp`; a polled pod does not.
pub(super) fn source_of(pod: &Value) -> &str {
    let source = text(&pod["metadata"]["annotations"][SOURCE]);
    let second = |time: Option<Timestamp>| time.map(Timestamp::as_second);
    let created = second(time(&pod["metadata"]["creationTimestamp"]));
    let seen = second(time(&pod["metadata"]["annotations"][SEEN]));
    let is_posted = created.is_some() && created == seen;
    if source == SourceName::Url.annotation() && !is_posted { SourceName::Url.as_str() } else { source }
}

fn status(pod: &Value, status: &str, is_removed: bool) -> Cell {
    if is_removed {
        return Cell::new("Removed").styled(YELLOW);
    }
    let style = match status {
        "Terminating" => YELLOW,
        _ if pod["status"]["phase"] == "Failed" => RED,
        _ => "",
    };
    Cell::new(if status.is_empty() { "Unknown" } else { status }).styled(style)
}

fn ip(status: &Value) -> &str {
    let first = items(&status["podIPs"]).first().map(|address| text(&address["ip"]));
    first.unwrap_or_else(|| text(&status["podIP"]))
}

/// Adds `apiVersion` and `kind`, which the items of a `PodList` do not have.
pub(super) fn complete(mut pod: Value) -> Value {
    if let Value::Object(fields) = &mut pod {
        fields.entry("apiVersion").or_insert_with(|| "v1".into());
        fields.entry("kind").or_insert_with(|| "Pod".into());
    }
    pod
}

pub(super) fn name(pod: &Value) -> &str {
    text(&pod["metadata"]["name"])
}
