//! `podmux get pods` and `podmux get events`: print the tables or objects of the server.

use anyhow::anyhow;
use jiff::Timestamp;
use serde_json::Value;

use super::{
    args::{Args, OutputFormat, Resource},
    printer::Printer,
    sort::sort,
};
use crate::{
    age::duration,
    cli::{
        connection::{Connection, JSON, TABLE, with_query},
        failure::{ELSEWHERE, Failure},
        output::{items, list, pairs, text, time},
        table::{Cell, Row},
        terminal::{Escaped, RED, YELLOW, print_error},
    },
    client::escaped,
    host::Clock,
    pod::SourceName,
};

/// The listed pods or events.
pub(super) struct PodList {
    /// Rows of a table, or objects.
    pub(super) items: Vec<Value>,
    /// The resourceVersion of the list.
    pub(super) version: String,
}

pub(super) struct Pods<'a> {
    pub(super) args: &'a Args,
    pub(super) names: &'a [String],
    pub(super) connection: &'a Connection,
    /// The places of the printed cells in a row, and the names of their columns in upper case.
    columns: Vec<(usize, String)>,
    pub(super) printer: Printer,
    clock: Clock,
}

impl<'a> Pods<'a> {
    pub(super) fn new(
        args: &'a Args,
        names: &'a [String],
        connection: &'a Connection,
        clock: Clock,
        colour: bool,
    ) -> Self {
        let printer = Printer::new(args, &[], &[], colour);
        Self { args, names, connection, columns: Vec::new(), printer, clock }
    }

    pub(super) async fn get(mut self) -> Result<u8, Failure> {
        if self.names.is_empty() { self.all().await } else { self.named().await }
    }

    async fn all(&mut self) -> Result<u8, Failure> {
        let PodList { mut items, version } = self.list().await?;
        let args = self.args;
        if let Some(by) = &args.sort_by {
            sort(&mut items, by)?;
        }
        if items.is_empty() && (args.output.is_table() || args.output == OutputFormat::Name) {
            if !args.ignore_not_found {
                print_error(nothing_found(args));
            }
            return Ok(0);
        }
        self.print(items, &version)?;
        Ok(0)
    }

    /// Prints the named pods that exist, and an error for each other name.
    async fn named(&mut self) -> Result<u8, Failure> {
        let mut pods = Vec::new();
        let mut code = 0;
        for name in self.names {
            let path = format!("{}/{}", self.selection().0, escaped(name));
            let path = with_query(&path, self.included().as_slice());
            match self.connection.get_as(&path, self.accept()).await {
                Ok(mut object) if self.args.output.is_table() => pods.append(&mut self.rows(&mut object)?),
                Ok(pod) => pods.push(pod),
                Err(failure) if failure.is_not_found() && self.args.ignore_not_found => {}
                Err(failure) => {
                    let is_missing = failure.is_not_found() && code == 0;
                    failure.print_server_error(None)?;
                    if is_missing && !self.is_events() {
                        print_error(ELSEWHERE);
                    }
                    code = 1;
                }
            }
        }
        if let Some(by) = &self.args.sort_by {
            sort(&mut pods, by)?;
        }
        let output = &self.args.output;
        if let ([_], [pod], OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Jsonpath(_)) =
            (self.names, &*pods, output)
        {
            self.printer.object(pod)?;
        } else if !pods.is_empty() {
            self.print(pods, "")?;
        }
        Ok(code)
    }

    fn print(&mut self, pods: Vec<Value>, version: &str) -> Result<(), Failure> {
        match &self.args.output {
            OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Jsonpath(_) => {
                self.printer.object(&list(pods, version))
            }
            _ => self.print_each(&pods, false),
        }
    }

    /// Prints rows of a table or pods, which may be those of pods that are gone.
    pub(super) fn print_each(&mut self, items: &[Value], is_removed: bool) -> Result<(), Failure> {
        if is_removed && self.is_events() {
            // It is too old to be held.
            return Ok(());
        }
        match self.args.output {
            OutputFormat::Table | OutputFormat::Wide => {
                let rows: Vec<Row> = items.iter().map(|row| self.row(row, is_removed)).collect();
                self.printer.rows(&rows)
            }
            OutputFormat::Name => {
                let kind = if self.is_events() { "event" } else { "pod" };
                items.iter().try_for_each(|item| self.printer.text(&format!("{kind}/{}\n", name(item))))
            }
            _ => items.iter().try_for_each(|pod| self.printer.object(pod)),
        }
    }

    fn is_events(&self) -> bool {
        self.args.target.resource == Resource::Events
    }

    /// The plural name of the resource.
    pub(super) fn plural(&self) -> &'static str {
        if self.is_events() { "events" } else { "pods" }
    }

    /// The printed cells of a row, without what changes with the time alone.
    pub(super) fn timeless(&self, row: &Value) -> Vec<Value> {
        let cells = self.columns.iter().map(|(at, column)| (&row["cells"][at], &**column));
        let cells = cells.filter(|(_, column)| !matches!(*column, "AGE" | "LAST SEEN" | "FIRST SEEN"));
        let cells = cells.map(|(cell, column)| match (cell.as_str(), column) {
            // Such as `3 (5m ago)`.
            (Some(restarts), "RESTARTS") => restarts.split(' ').next().into(),
            _ => cell.clone(),
        });
        cells.collect()
    }

    /// The form of the responses.
    pub(super) fn accept(&self) -> &'static str {
        if self.args.output.is_table() { TABLE } else { JSON }
    }

    /// What rows have of their objects: to sort them, all.
    fn included(&self) -> Option<(&'static str, &'static str)> {
        let is_sorted = self.args.sort_by.is_some() && self.args.output.is_table();
        is_sorted.then_some(("includeObject", "Object"))
    }

    /// The path of the lists, and the query that selects the pods.
    pub(super) fn selection(&self) -> (String, Vec<(&'static str, String)>) {
        let (args, plural) = (self.args, self.plural());
        let path = if args.all_namespaces {
            format!("/api/v1/{plural}")
        } else {
            format!("/api/v1/namespaces/{}/{plural}", escaped(args.namespace()))
        };
        let labels = args.selector.iter().map(|labels| ("labelSelector", labels.clone()));
        let sources = (!args.source.is_empty()).then(|| pods_of(&args.source));
        let fields: Vec<String> = args.field_selector.iter().cloned().chain(sources).collect();
        let fields = (!fields.is_empty()).then(|| ("fieldSelector", fields.join(",")));
        (path, labels.chain(fields).collect())
    }

    /// Lists all pods that the selectors match, page by page.
    pub(super) async fn list(&mut self) -> Result<PodList, Failure> {
        let mut items = Vec::new();
        let (path, selectors) = self.selection();
        let query = selectors.iter().map(|(name, value)| (*name, &**value)).chain(self.included());
        let (query, connection, accept) = (query.collect::<Vec<_>>(), self.connection, self.accept());
        let read = |mut page: Value, pods: Vec<Value>| {
            let is_table = self.args.output.is_table();
            if is_table { self.rows(&mut page) } else { Ok(pods.into_iter().map(complete).collect()) }
        };
        let version = connection.pages(&path, &query, accept, &mut items, read).await?;
        Ok(PodList { items, version })
    }

    /// The rows of a table. The first table decides on the columns.
    pub(super) fn rows(&mut self, table: &mut Value) -> Result<Vec<Value>, Failure> {
        if table["kind"] != "Table" {
            return Err(Failure::failed(anyhow!(
                "the agent makes no tables (an older podmux?): use -o json, yaml or name"
            )));
        }
        let columns = items(&table["columnDefinitions"]);
        if self.columns.is_empty() && !columns.is_empty() {
            let is_wide = self.args.output == OutputFormat::Wide;
            let is_shown = |column: &Value| is_wide || column["priority"].as_i64().unwrap_or_default() == 0;
            let shown = columns.iter().enumerate().filter(|(_, column)| is_shown(column));
            self.columns = shown.map(|(at, column)| (at, text(&column["name"]).to_uppercase())).collect();
            let names = self.columns.iter().map(|(_, name)| &**name);
            let namespace = self.args.all_namespaces.then_some("NAMESPACE");
            let labels = self.args.show_labels.then_some("LABELS");
            let names: Vec<&str> = namespace.into_iter().chain(names).chain(labels).collect();
            // Later rows stay aligned.
            let widths = names.iter().map(|name| match *name {
                "STATUS" => "Terminating",
                "AGE" | "LAST SEEN" => "119s",
                "TYPE" => "Warning",
                "REASON" => "FailedValidation",
                name => name,
            });
            let widths = if self.args.watch { widths.collect() } else { Vec::new() };
            self.printer.set_columns(&names, &widths);
        }
        Ok(match table["rows"].take() {
            Value::Array(rows) => rows,
            _ => Vec::new(),
        })
    }

    fn row(&self, row: &Value, is_removed: bool) -> Row {
        let metadata = metadata(row);
        let namespace = self.args.all_namespaces.then(|| text(&metadata["namespace"]).into());
        let cells = self.columns.iter().map(|(at, column)| {
            let cell = &row["cells"][at];
            let cell = cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
            match &**column {
                // It may be there still, and not match any more.
                "STATUS" if is_removed && selects(self.args) => Cell::new("Not listed").styled(YELLOW),
                "STATUS" => status(row, &cell, is_removed, self.clock.now()),
                "TYPE" if cell == "Warning" => Cell::new(&cell).styled(YELLOW),
                _ => Cell::new(&cell),
            }
        });
        let labels = pairs(&metadata["labels"]).collect::<Vec<_>>().join(",");
        let labels = self.args.show_labels.then(|| labels.into());
        namespace.into_iter().chain(cells).chain(labels).collect()
    }
}

/// The field selector of the pods of these sources: a selector has no "or", so it excludes the others.
pub(in crate::cli) fn pods_of(sources: &[SourceName]) -> String {
    let others = SourceName::ALL.into_iter().filter(|source| !sources.contains(source));
    others.map(|source| format!("podmux.dev/source!={source}")).collect::<Vec<_>>().join(",")
}

/// Whether a pod is listed only as long as it matches.
fn selects(args: &Args) -> bool {
    args.selector.is_some() || args.field_selector.is_some()
}

/// What is printed in place of a table without rows, first in kubectl's words.
fn nothing_found(args: &Args) -> String {
    let is_pods = args.target.resource == Resource::Pods;
    let what = if is_pods { "pods" } else { "events" };
    let hint = match (selects(args), args.all_namespaces) {
        (true, _) => ". No object matches the selector.",
        (false, false) => &format!(". podmux get {what} -A shows all namespaces."),
        (false, true) if is_pods => ". podmux get sources shows what each source has read.",
        (false, true) => "",
    };
    let place = format!(" in {} namespace", Escaped(args.namespace()));
    format!("No resources found{}{hint}", if args.all_namespaces { "" } else { &place })
}

fn status(row: &Value, status: &str, is_removed: bool, now: Timestamp) -> Cell {
    if is_removed {
        return Cell::new("Removed").styled(YELLOW);
    }
    if let Some(end) = time(&metadata(row)["deletionTimestamp"]).filter(|_| status == "Terminating") {
        let left = end.duration_since(now);
        let (left, word) = if left.is_negative() { (-left, "late") } else { (left, "left") };
        return Cell::new(&format!("Terminating ({} {word})", duration(left))).styled(YELLOW);
    }
    let has_failed = items(&row["conditions"]).iter().any(|condition| condition["reason"] == "Failed");
    let style = match status {
        "Terminating" => YELLOW,
        _ if has_failed => RED,
        _ => "",
    };
    Cell::new(if status.is_empty() { "Unknown" } else { status }).styled(style)
}

/// Adds `apiVersion` and `kind`, which the items of a `PodList` do not have.
fn complete(mut pod: Value) -> Value {
    if let Value::Object(fields) = &mut pod {
        fields.entry("apiVersion").or_insert_with(|| "v1".into());
        fields.entry("kind").or_insert_with(|| "Pod".into());
    }
    pod
}

/// The metadata of a pod, or of the pod of a row.
pub(super) fn metadata(item: &Value) -> &Value {
    if item["cells"].is_array() { &item["object"]["metadata"] } else { &item["metadata"] }
}

pub(super) fn name(item: &Value) -> &str {
    text(&metadata(item)["name"])
}
