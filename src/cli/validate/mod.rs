//! `podmux validate`: says what is wrong with manifests, as the agent would find it.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use self::report::Report;
use super::Failure;
use crate::{
    clock,
    manifest::{self, Preparation},
    pod::{
        InvalidManifest, ListingBuilder, Origin, PodKey, Prepared, Problem, RejectionReason, Severity,
        SourceName, Stage,
    },
    settings::{self, Environment},
    source::file::{Contents, contents, read_manifest},
};
use anyhow::anyhow;
use clap::{ArgAction, ValueEnum, ValueHint};

mod report;

/// Check manifests as the agent would take them
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Manifests, directories of them, or - for standard input
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,

    /// Take warnings (unknown fields, duplicate keys) for errors
    #[arg(long)]
    strict: bool,

    /// The source whose rules hold
    #[arg(long, value_name = "SOURCE", value_enum, default_value_t = SourceArg::File)]
    source: SourceArg,

    /// This node's name, a part of every static pod's name
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    node_name: Option<String>,

    /// The form of the output; json prints an object a line for each manifest
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = OutputArg::Text)]
    output: OutputArg,

    /// Name what is good and what is skipped, too
    #[arg(short, long, action = ArgAction::SetTrue)]
    verbose: bool,
}

/// The sources that prepare manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SourceArg {
    /// A manifest in a directory
    File,
    /// A manifest that is sent over HTTP
    Http,
    /// A manifest that is polled from a URL
    Url,
}

/// The forms of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputArg {
    /// A line for each problem
    Text,
    /// An object a line for each manifest
    Json,
}

const ABOUT: &str = "\
Check manifests as the agent would take them

Decodes, defaults, prepares and validates each manifest like the agent's source does; no agent is needed. \
Prints every problem as FILE:LINE:COLUMN: FIELD: REASON: detail, without the parts that are not \
known, and nothing if all is good.";

const EXAMPLES: &str = "\
Examples:
  podmux validate /etc/kubernetes/manifests
  podmux validate --strict web.yaml db.yaml
  helm template chart | podmux validate --source http -
  podmux validate -o json manifests | jq -r 'select(.ok | not) | .path'

Exit codes: 0 all good; 1 some bad; 2 called wrongly, or a PATH is missing.";

/// What became of one manifest.
struct Checked {
    path: PathBuf,
    /// How far it came, if it was refused.
    stage: Option<Stage>,
    problems: Vec<Problem>,
    pods: Vec<Prepared>,
}

impl Checked {
    fn ok(&self) -> bool {
        self.problems.iter().all(|problem| problem.severity == Severity::Warning)
    }

    /// The pods that the agent would take: none of a refused manifest.
    fn taken(&self) -> &[Prepared] {
        if self.stage.is_some() { &[] } else { &self.pods }
    }
}

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let node = settings::node_name(args.node_name.as_deref(), environment);
    let node = node.map_err(|error| Failure::Refused(error.into()))?;
    let source = match args.source {
        SourceArg::File => SourceName::File,
        SourceArg::Http => SourceName::Http,
        SourceArg::Url => SourceName::Url,
    };
    if args.paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(Failure::Refused(anyhow!("- is given twice, and standard input can be read once")));
    }
    let mut report = Report::new(args.output, args.verbose, environment);
    let preparation = Preparation { source, node, generate: None, namespace: None };
    let mut missing = false;
    for path in &args.paths {
        match expand(path) {
            Ok(found) => {
                for (path, what) in &found.skipped {
                    report.detail(path, format_args!("skipped: {what}"))?;
                }
                if found.files.is_empty() {
                    report.note(path, format_args!("no manifests in it"))?;
                }
                examine(&found, &preparation, args.strict, &mut report)?;
            }
            Err(why) => {
                missing = true;
                report.note(path, format_args!("{why}"))?;
            }
        }
    }
    report.end()?;
    Ok(if missing { 2 } else { u8::from(report.bad() > 0) })
}

/// Checks what a path stands for, and reports it.
fn examine(
    found: &Found,
    preparation: &Preparation,
    strict: bool,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut checked = Vec::with_capacity(found.files.len());
    for (done, path) in found.files.iter().enumerate() {
        report.progress(done, found.files.len());
        checked.push(check(path, preparation, strict));
    }
    report.progressed(found.files.len());
    if found.directory && preparation.source == SourceName::File {
        duplicates(&mut checked);
    }
    checked.iter().try_for_each(|checked| report.manifest(checked))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The manifests that a path stands for.
struct Found {
    files: Vec<PathBuf>,
    /// What the file source leaves alone in a directory.
    skipped: Vec<(PathBuf, &'static str)>,
    /// Whether they are one directory's, so that the agent would take them together.
    directory: bool,
}

/// Finds a path's manifests without opening one.
fn expand(path: &Path) -> Result<Found, String> {
    let alone = |path: &Path| Found { files: vec![path.to_owned()], skipped: Vec::new(), directory: false };
    if is_stdin(path) {
        return Ok(alone(path));
    }
    let kind = path.metadata().map_err(|error| plain(&error))?.file_type();
    if kind.is_file() {
        return Ok(alone(path));
    }
    if !kind.is_dir() {
        return Err("neither a file nor a directory; pipe it into podmux validate -".to_owned());
    }
    let Contents { manifests, skipped } = contents(path).map_err(|error| plain(&error))?;
    Ok(Found { files: manifests, skipped, directory: true })
}

/// An I/O error without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Reads and decodes one manifest.
fn check(path: &Path, preparation: &Preparation, strict: bool) -> Checked {
    let checked = |stage, problems, pods| Checked { path: path.to_owned(), stage, problems, pods };
    let read = if is_stdin(path) { read_stdin() } else { read_manifest(path) };
    let text = match read {
        Ok(text) => text,
        Err(RejectionReason::Invalid(refusal)) => {
            return checked(Some(refusal.stage), refusal.problems.clone(), Vec::new());
        }
        Err(why) => return checked(None, vec![Problem::error(format!("cannot be read: {why}"))], Vec::new()),
    };
    match manifest::read(&text, preparation) {
        Err(refusal) => checked(Some(refusal.stage), refusal.problems, Vec::new()),
        Ok(manifest) if strict && !manifest.warnings.is_empty() => {
            let strictly = |problem| Problem { severity: Severity::Error, ..problem };
            let problems = manifest.warnings.into_iter().map(strictly).collect();
            checked(Some(Stage::Decode), problems, manifest.pods)
        }
        Ok(manifest) => checked(None, manifest.warnings, manifest.pods),
    }
}

fn read_stdin() -> Result<Vec<u8>, RejectionReason> {
    let mut text = Vec::new();
    let read = io::stdin().lock().take(manifest::MAX_MANIFEST as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| RejectionReason::Unreadable(plain(&error).into()))?;
    if text.len() > manifest::MAX_MANIFEST {
        let detail = format!("too much for a manifest: {} bytes at most; split it", manifest::MAX_MANIFEST);
        let refusal = InvalidManifest { stage: Stage::Decode, problems: vec![Problem::error(detail)] };
        return Err(RejectionReason::Invalid(refusal.into()));
    }
    Ok(text)
}

/// Adds what the agent would refuse although each manifest alone is good: names
/// and UIDs that occur twice in a directory.
fn duplicates(directory: &mut [Checked]) {
    let origin = |checked: &Checked| Origin::from(&*checked.path.to_string_lossy());
    let mut builder = ListingBuilder::new(SourceName::File);
    for checked in directory.iter() {
        builder.put(&origin(checked), checked.pods.clone(), clock::now());
    }
    let mut losers: BTreeMap<Origin, Vec<(Option<PodKey>, Problem)>> = BTreeMap::new();
    for rejection in builder.listing().rejections() {
        let problem = Problem::error(match &rejection.pod {
            Some(pod) => format!("{pod}: {}", rejection.reason),
            None => rejection.reason.to_string(),
        });
        let field = match rejection.reason {
            RejectionReason::DuplicateUid { .. } => "metadata.uid",
            _ => "metadata.name",
        };
        let problem = problem.of(field).because(rejection.reason.as_str());
        losers.entry(rejection.origin.clone()).or_default().push((rejection.pod.clone(), problem));
    }
    for checked in directory {
        for (pod, problem) in losers.remove(&origin(checked)).unwrap_or_default() {
            checked.pods.retain(|prepared| Some(prepared.key()) != pod.as_ref());
            checked.problems.push(problem);
        }
    }
}
