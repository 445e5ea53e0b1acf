//! `podmux get`: what the running agent holds, as kubectl would show it.

use std::io;

use anyhow::anyhow;
use clap::{
    Arg, ValueEnum,
    builder::{PossibleValue, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde_json::{Value, json};

use super::{
    Failure, Output,
    connection::{Connection, ConnectionArgs, block_on},
    table::{Cell, Row, Table},
    terminal::colours,
    yaml,
};
use crate::settings::Environment;

mod pods;
mod sources;
mod updates;

pub(super) use self::pods::pod_path;

/// Show pods, sources or updates of a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags, said or not")]
pub(super) struct Args {
    /// What to show: pods (po, pod), sources or updates; pod/NAME for one
    #[arg(value_name = "RESOURCE", value_parser = TargetParser)]
    what: Target,

    /// Only these
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// The form of the output; jsonl is an object a line
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Form::Table)]
    output: Form,

    /// Show pods, then every change, until stopped
    #[arg(short, long)]
    watch: bool,

    /// With --watch: say of each pod whether it was added, modified or deleted
    #[arg(long, requires = "watch")]
    output_watch_events: bool,

    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    namespace: String,

    /// Pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Only pods with these labels: app=web,tier!=cache,zone in (a,b),canary
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Only pods with these fields: spec.nodeName=n1,status.phase!=Running
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,

    /// A column with the pods' labels
    #[arg(long)]
    show_labels: bool,

    /// No line with the columns' names
    #[arg(long)]
    no_headers: bool,

    /// What is not there is no error
    #[arg(long)]
    ignore_not_found: bool,

    /// With updates: begin with this number, or say what is the first that is held
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Show pods, sources or updates of a running agent

Pods are those of all sources, as they were settled. Sources are shown with what is wrong with them: \
which manifest was refused and why, which pod lost its name to which source. Updates are the stream \
that the agent tells, as it goes on.";

const EXAMPLES: &str = "\
Examples:
  podmux get pods -A
  podmux get pods -n kube-system -l tier=control-plane -o wide
  podmux get pod web -o yaml
  podmux get pods -A --watch
  podmux get sources
  podmux get updates --from 1 -o jsonl | jq -c '[.seq, .op, .source]'

Exit codes: 0 done; 1 a request failed, or something is not there; 2 called wrongly.";

/// The forms of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Columns
    Table,
    /// More columns
    Wide,
    /// JSON for reading
    Json,
    /// YAML
    Yaml,
    /// Names as arguments take them: pod/web
    Name,
    /// A JSON object a line
    Jsonl,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Pods,
    Sources,
    Updates,
}

impl Resource {
    const ALL: [Self; 3] = [Self::Pods, Self::Sources, Self::Updates];

    /// The name, and what else it may be called.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Pods => &["pods", "pod", "po"],
            Self::Sources => &["sources", "source"],
            Self::Updates => &["updates", "update"],
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.names().contains(&text))
    }
}

/// `pods`, or `pod/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    resource: Resource,
    name: Option<String>,
}

impl Target {
    fn parse(text: &str) -> Option<Self> {
        let (resource, name) = text.split_once('/').map_or((text, None), |(what, name)| (what, Some(name)));
        let name = name.map(str::to_owned);
        let named = name.as_ref().is_none_or(|name| !name.is_empty());
        Resource::parse(resource).filter(|_| named).map(|resource| Self { resource, name })
    }
}

/// Reads a target; offers the resources to help and completion.
#[derive(Clone)]
struct TargetParser;

impl TypedValueParser for TargetParser {
    type Value = Target;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Target, clap::Error> {
        value.to_str().and_then(Target::parse).ok_or_else(|| {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(command);
            let mut insert = |kind, value| error.insert(kind, value);
            let arg = arg.map(ToString::to_string).unwrap_or_default();
            insert(ContextKind::InvalidArg, ContextValue::String(arg));
            insert(ContextKind::InvalidValue, ContextValue::String(value.to_string_lossy().into_owned()));
            let valid = Resource::ALL.map(|resource| resource.names()[0].to_owned());
            insert(ContextKind::ValidValue, ContextValue::Strings(valid.to_vec()));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |resource: Resource| {
            let names = resource.names();
            PossibleValue::new(names[0]).aliases(&names[1..])
        };
        Some(Box::new(Resource::ALL.into_iter().map(value)))
    }
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let names = names(args).map_err(Failure::Refused)?;
    check(args, &names).map_err(Failure::Refused)?;
    let connection = Connection::new(&args.connection, environment)?;
    let colour = colours(&io::stdout(), environment);
    block_on(async {
        match args.what.resource {
            Resource::Pods => pods::get(args, &names, &connection, colour).await,
            Resource::Sources => sources::get(args, &names, &connection, colour).await,
            Resource::Updates => updates::get(args, &connection, colour).await,
        }
    })
}

/// The names that were asked for: `pod/web pod/db`, or `pods web db`.
fn names(args: &Args) -> Result<Vec<String>, anyhow::Error> {
    let Some(first) = &args.what.name else {
        if let Some(name) = args.names.iter().find(|name| name.contains('/') || name.is_empty()) {
            return Err(anyhow!("{name:?} is no name; give either pods NAME… or pod/NAME…"));
        }
        return Ok(args.names.clone());
    };
    let further = args.names.iter().map(|text| match Target::parse(text) {
        Some(Target { resource, name: Some(name) }) if resource == args.what.resource => Ok(name),
        _ => Err(anyhow!("{text:?} beside {first:?}: give either pods NAME… or pod/NAME…, of one kind")),
    });
    std::iter::once(Ok(first.clone())).chain(further).collect()
}

/// Refuses what makes no sense together.
fn check(args: &Args, names: &[String]) -> Result<(), anyhow::Error> {
    let is = |resource| args.what.resource == resource;
    let selects = args.selector.is_some() || args.field_selector.is_some();
    if args.from.is_some() && !is(Resource::Updates) {
        return Err(anyhow!("--from goes with updates only"));
    }
    if !is(Resource::Pods) && (args.all_namespaces || selects || args.show_labels) {
        return Err(anyhow!(
            "--all-namespaces, --selector, --field-selector and --show-labels go with pods only"
        ));
    }
    if args.watch && is(Resource::Sources) {
        return Err(anyhow!("sources cannot be watched; watch updates or pods"));
    }
    if is(Resource::Updates) && !names.is_empty() {
        return Err(anyhow!("updates have no names; give --from SEQ to begin with one"));
    }
    if is(Resource::Updates) && args.output == Form::Name {
        return Err(anyhow!("updates have no names: -o table, wide, json, yaml or jsonl shows them"));
    }
    if !names.is_empty() && selects {
        return Err(anyhow!("give names or a selector, not both"));
    }
    if !names.is_empty() && args.all_namespaces {
        return Err(anyhow!("a name belongs to one namespace: give -n NS instead of -A"));
    }
    if args.output_watch_events && args.output == Form::Name {
        return Err(anyhow!("--output-watch-events does not go with -o name"));
    }
    Ok(())
}

/// Where objects go, in the form that was asked for.
struct Printer {
    form: Form,
    table: Table,
    output: Output,
    /// Whether something was printed.
    begun: bool,
}

impl Printer {
    fn new(args: &Args, columns: &[&str], colour: bool) -> Self {
        let table = Table::new(columns, !args.no_headers, colour);
        Self { form: args.output, table, output: Output::new(), begun: false }
    }

    /// The same with columns in which these texts fit: rows that come later can
    /// move nothing then.
    fn with_room_for(mut self, row: &[&str]) -> Self {
        self.table = self.table.with_room_for(&row.iter().map(Cell::from).collect());
        self
    }

    /// Rows, in the forms that have them.
    fn rows(&mut self, rows: &[Row]) -> Result<(), Failure> {
        let text = self.table.rows(rows);
        self.text(&text)
    }

    fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.output.write(text.as_bytes())?;
        self.output.flush()
    }

    /// One object, in the forms that show objects as they are. Several of them
    /// in a row are a stream that a reader can take apart.
    fn object(&mut self, object: &Value) -> Result<(), Failure> {
        let text = match self.form {
            Form::Jsonl => format!("{object}\n"),
            Form::Yaml if self.begun => format!("---\n{}", yaml::document(object)),
            Form::Yaml => yaml::document(object),
            _ => pretty(object)?,
        };
        self.begun = true;
        self.text(&text)
    }

    /// A line as it came.
    fn bytes(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.output.write(line)?;
        self.output.write(b"\n")?;
        self.output.flush()
    }

    /// Whether nobody reads any more.
    fn is_closed(&self) -> bool {
        self.output.out.is_none()
    }
}

/// JSON as kubectl indents it.
pub(super) fn pretty(object: &Value) -> Result<String, Failure> {
    use serde::Serialize as _;
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    object.serialize(&mut serializer).map_err(|error| Failure::Failed(error.into()))?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|error| Failure::Failed(error.into()))
}

/// Several objects as one, as kubectl has it.
pub(super) fn list(items: Vec<Value>, resource_version: &str) -> Value {
    let mut list = json!({
        "apiVersion": "v1",
        "kind": "List",
        "metadata": { "resourceVersion": resource_version },
    });
    list["items"] = items.into();
    list
}
