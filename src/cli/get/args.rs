//! The arguments of `podmux get`.

use anyhow::anyhow;
use clap::{
    Arg, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    value_parser,
};

use crate::{
    cli::{
        connection::{ConnectionArgs, namespace},
        jsonpath::Template,
    },
    pod::SourceName,
};

/// Show pods, events, sources, sinks or updates of a running agent
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(in crate::cli) struct Args {
    /// What to show: pods (po, pod), events (ev), sources, sinks or updates; pod/NAME for one pod
    #[arg(value_name = "RESOURCE", value_parser = TargetParser)]
    pub(super) target: Target,

    /// Only objects with these names
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// The output format; jsonl prints one object per line
    #[arg(short, long, value_name = "FORMAT", value_parser = FormatParser, default_value = "table")]
    pub(super) output: OutputFormat,

    /// Sort pods or events by a value, such as .metadata.creationTimestamp
    #[arg(long, value_name = "JSONPATH", value_parser = Template::expression)]
    pub(super) sort_by: Option<Template>,

    /// List pods or events, then print each one that changes, until interrupted
    #[arg(short, long)]
    pub(super) watch: bool,

    /// The namespace [default: default]
    #[arg(short, long, value_name = "NS", value_parser = namespace())]
    namespace: Option<String>,

    /// Pods or events of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(super) all_namespaces: bool,

    /// Only objects with these labels: app=web,tier!=cache,zone in (a,b),canary
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,

    /// Only objects with these fields: spec.nodeName=n1,status.phase!=Running or involvedObject.name=web
    #[arg(long, value_name = "SELECTOR")]
    pub(super) field_selector: Option<String>,

    /// Only pods or updates of these sources
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = source())]
    pub(super) source: Vec<SourceName>,

    /// Add a column with the labels
    #[arg(long)]
    pub(super) show_labels: bool,

    /// Omit the header line
    #[arg(long)]
    pub(super) no_headers: bool,

    /// Do not report objects that do not exist
    #[arg(long)]
    pub(super) ignore_not_found: bool,

    /// For updates: start with this sequence number, if this run of the agent (or the named one) still holds it
    #[arg(long, value_name = "[RUN-]SEQ", value_parser = position)]
    pub(super) from: Option<String>,

    #[command(flatten)]
    pub(super) connection: ConnectionArgs,
}

/// A source, with the names of all for help and errors.
fn source() -> impl TypedValueParser<Value = SourceName> {
    PossibleValuesParser::new(SourceName::ALL.map(SourceName::as_str))
        .try_map(|name| name.parse::<SourceName>())
}

/// The text of a position in the update stream: `SEQ` or `RUN-SEQ`.
fn position(text: &str) -> Result<String, String> {
    let seq = text.rsplit_once('-').map_or(Some(text), |(run, seq)| (!run.is_empty()).then_some(seq));
    let is_number = seq.is_some_and(|seq| seq.parse::<u64>().is_ok());
    if is_number { Ok(text.to_owned()) } else { Err("must be SEQ or RUN-SEQ".to_owned()) }
}

const ABOUT: &str = "\
Show pods, events, sources, sinks or updates of a running agent

Pods are the merged pods of all sources. Events are what the agent reports of pods and of its node. Sources are shown with their problems: rejected manifests with \
the reason, and pods whose name another source owns; PROBLEMS is the number of these. Warnings, and manifests that are \
gone while their pods are kept, are listed with them and not counted. Sinks are shown with the number of pods that they are behind. Updates \
are the stream of all changes.

Updates and --watch are printed until interrupted. When the agent restarts or the connection breaks, the \
command connects again and reports it on standard error.";

const EXAMPLES: &str = "\
Examples:
  podmux get pods -A
  podmux get pods -n kube-system -l tier=control-plane -o wide
  podmux get pod web -o yaml
  podmux get pods -A --watch
  podmux get events --field-selector involvedObject.name=web
  podmux get sources
  podmux get sinks -o wide
  podmux get pods -A --source file,url
  podmux get updates -o jsonl | jq -c '[.seq, .op, .source]'

Exit codes: 0 success; 1 a request failed, or an object does not exist; 2 invalid arguments.";

/// The output formats.
#[derive(Clone, Debug, PartialEq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A table
    Table,
    /// A table with more columns
    Wide,
    /// Indented JSON
    Json,
    /// YAML
    Yaml,
    /// Names like pod/web
    Name,
    /// One JSON object per line
    Jsonl,
    /// What a template makes of each object, or of the list
    #[value(skip)]
    Jsonpath(Template),
}

impl OutputFormat {
    pub(super) fn is_table(&self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Parses an output format, and lists them for help and completion.
#[derive(Clone)]
struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = OutputFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<OutputFormat, clap::Error> {
        let text = value.to_str().unwrap_or_default();
        let template = text.strip_prefix("jsonpath");
        if !template.is_some_and(|rest| rest.is_empty() || rest.starts_with('=')) {
            let words = PossibleValuesParser::new(self.possible_values().into_iter().flatten());
            words.parse_ref(command, arg, value)?;
            return value_parser!(OutputFormat).parse_ref(command, arg, value);
        }
        // The error has the same form as that of another invalid value.
        let parse = |text: &str| Template::parse(text.split_once('=').map_or("", |(_, template)| template));
        Ok(OutputFormat::Jsonpath(parse.parse_ref(command, arg, value)?))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let formats = OutputFormat::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let template = PossibleValue::new("jsonpath=").help("A template follows: {.items[*].metadata.name}");
        Some(Box::new(formats.chain([template])))
    }
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Resource {
    #[value(aliases = ["pod", "po"])]
    Pods,
    #[value(aliases = ["event", "ev"])]
    Events,
    #[value(alias = "source")]
    Sources,
    #[value(alias = "sink")]
    Sinks,
    #[value(alias = "update")]
    Updates,
}

/// `pods`, or `pod/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) resource: Resource,
    name: Option<String>,
}

impl Target {
    fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once('/').map_or((text, None), |(kind, name)| (kind, Some(name)));
        let resource = Resource::from_str(kind, false).ok()?;
        (name != Some("")).then(|| Self { resource, name: name.map(str::to_owned) })
    }
}

/// Parses a target, and lists the resources for help and completion.
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
        let Some(target) = value.to_str().and_then(Target::parse) else {
            // It is not a resource: the error names them all.
            let resource = value_parser!(Resource).parse_ref(command, arg, value)?;
            return Ok(Target { resource, name: None });
        };
        Ok(target)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Resource::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

impl Args {
    pub(super) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// The names in the arguments: `pod/web pod/db`, or `pods web db`.
    pub(super) fn names(&self) -> Result<Vec<String>, anyhow::Error> {
        let Some(first) = &self.target.name else {
            // The name of a sink has the path of its file.
            let has_slash = |name: &String| name.contains('/') && self.target.resource != Resource::Sinks;
            if let Some(name) = self.names.iter().find(|name| has_slash(name) || name.is_empty()) {
                return Err(anyhow!("invalid name {name:?}: give either pods NAME… or pod/NAME…"));
            }
            return Ok(self.names.clone());
        };
        let further = self.names.iter().map(|text| match Target::parse(text) {
            Some(Target { resource, name: Some(name) }) if resource == self.target.resource => Ok(name),
            _ => Err(anyhow!("invalid name {text:?}: after {first:?}, give only names of the same form")),
        });
        std::iter::once(Ok(first.clone())).chain(further).collect()
    }

    /// Rejects arguments that exclude each other.
    pub(super) fn check(&self, names: &[String]) -> Result<(), anyhow::Error> {
        let is = |resource| self.target.resource == resource;
        let is_listed_by_namespace = is(Resource::Pods) || is(Resource::Events);
        let has_source = !self.source.is_empty();
        let has_selector = self.selector.is_some() || self.field_selector.is_some();
        let conflicts = [
            (self.from.is_some() && !is(Resource::Updates), "--from is for updates only"),
            (
                has_source && !is(Resource::Pods) && !is(Resource::Updates),
                "--source is for pods and updates only",
            ),
            (
                !is_listed_by_namespace
                    && (self.namespace.is_some() || self.all_namespaces || has_selector || self.show_labels),
                "--namespace, --all-namespaces, --selector, --field-selector and --show-labels are for pods and events only",
            ),
            (!is_listed_by_namespace && self.sort_by.is_some(), "--sort-by is for pods and events only"),
            (
                self.watch && self.sort_by.is_some(),
                "what is watched cannot be sorted: omit --sort-by or --watch",
            ),
            (
                self.watch && (is(Resource::Sources) || is(Resource::Sinks)),
                "sources and sinks cannot be watched: watch updates, pods or events",
            ),
            (
                is(Resource::Updates) && !names.is_empty(),
                "updates have no names: use --from SEQ to start with one",
            ),
            (
                is(Resource::Updates) && self.output == OutputFormat::Name,
                "updates have no names: use -o table, wide, json, yaml or jsonl",
            ),
            (!names.is_empty() && (has_selector || has_source), "give names or a selector, not both"),
            (
                !names.is_empty() && self.all_namespaces,
                "a name belongs to one namespace: use -n NS instead of -A",
            ),
        ];
        match conflicts.into_iter().find(|(is_conflict, _)| *is_conflict) {
            Some((_, message)) => Err(anyhow!(message)),
            None => Ok(()),
        }
    }
}
