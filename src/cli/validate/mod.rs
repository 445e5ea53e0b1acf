//! `podmux validate`: checks manifests as the agent does.

use std::path::{Path, PathBuf};

use self::{
    check::{check, check_duplicates},
    report::ReportPrinter,
};
use super::{
    failure::Failure,
    manifests::{check_stdin, describe, is_stdin},
    terminal::ProgressLine,
};
use crate::{
    host::Clock,
    manifest::Preparation,
    pod::SourceName,
    settings::{self, Environment},
    source::file::{Contents, contents},
};

mod args;
mod check;
mod report;

pub(super) use self::args::Args;

/// The number of manifests between two updates of the progress.
const PROGRESS_STEP: usize = 50;

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let node = settings::node_name(args.node_name.as_deref(), environment).map_err(Failure::refused)?;
    check_stdin(&args.paths).map_err(Failure::Refused)?;
    let mut report = ReportPrinter::new(args.output, args.verbose, environment);
    let preparation = Preparation { source: args.source, node, generate: None, namespace: None };
    let mut is_missing = false;
    for path in &args.paths {
        match find(path) {
            Ok(found) => {
                for (path, reason) in found.skipped.iter().filter(|_| args.verbose) {
                    report.note(path, format_args!("skipped: {reason}"))?;
                }
                if found.manifests.is_empty() {
                    report.note(path, format_args!("no manifests in it"))?;
                }
                let is_directory = !is_stdin(path) && path.is_dir();
                check_all(&found.manifests, is_directory, &preparation, args, &mut report)?;
            }
            Err(error) => {
                is_missing = true;
                report.note(path, format_args!("{error}"))?;
            }
        }
    }
    report.finish()?;
    Ok(if is_missing { 2 } else { u8::from(report.invalid() > 0) })
}

/// Checks the manifests of one argument, and prints the results. The agent would publish the pods of a
/// directory together.
fn check_all(
    files: &[PathBuf],
    is_directory: bool,
    preparation: &Preparation,
    args: &Args,
    report: &mut ReportPrinter,
) -> Result<(), Failure> {
    let progress = ProgressLine::new(files.len(), files.len() > PROGRESS_STEP);
    let mut checked = Vec::with_capacity(files.len());
    for (done, path) in files.iter().enumerate() {
        if done.is_multiple_of(PROGRESS_STEP) {
            progress.show(done);
        }
        checked.push(check(path, preparation, args));
    }
    progress.clear();
    if is_directory && preparation.source == SourceName::File {
        check_duplicates(&mut checked, &Clock::default());
    }
    checked.iter().try_for_each(|checked| report.manifest(checked))
}

/// Lists the manifests of an argument. Nothing is opened.
fn find(path: &Path) -> Result<Contents, String> {
    if !is_stdin(path) {
        let kind = path.metadata().map_err(|error| describe(&error))?.file_type();
        if kind.is_dir() {
            return contents(path).map_err(|error| describe(&error));
        }
        if !kind.is_file() {
            return Err("neither a file nor a directory; pipe it into podmux validate -".to_owned());
        }
    }
    Ok(Contents { manifests: vec![path.to_owned()], skipped: Vec::new() })
}
