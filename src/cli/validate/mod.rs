//! `podmux validate`: checks manifests as the agent does.

use self::{
    check::{Checker, PROGRESS_STEP, check_duplicates},
    find::{Group, Input, find},
    report::ReportPrinter,
};
use super::{failure::Failure, manifests::check_stdin, terminal::ProgressLine};
use crate::{
    host::Clock,
    manifest::Preparation,
    pod::SourceName,
    settings::{self, Environment},
};

mod args;
mod check;
mod excerpt;
mod find;
mod report;

pub(super) use self::args::Args;

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let node = settings::node_name(args.node_name.as_deref(), environment).map_err(Failure::refused)?;
    check_stdin(&args.paths).map_err(Failure::Refused)?;
    let mut report = ReportPrinter::new(args, environment);
    let preparation = Preparation { source: args.source, node, generate: None, namespace: None };
    let mut found: Vec<Result<Vec<Group>, String>> = args.paths.iter().map(|path| find(path, args)).collect();
    let groups = found.iter_mut().filter_map(|found| found.as_mut().ok()).flatten();
    let mut inputs: Vec<Input> = Vec::new();
    let mut counts = Vec::new();
    for group in groups {
        counts.push(group.manifests.len());
        inputs.append(&mut group.manifests);
    }
    let progress = ProgressLine::new(inputs.len(), inputs.len() > PROGRESS_STEP, environment);
    let mut checker = Checker::new(inputs, args, &preparation, report.width(), report.limit(), progress);
    let mut counts = counts.into_iter();
    let mut is_missing = false;
    for (path, found) in args.paths.iter().zip(&found) {
        match found {
            Ok(groups) => {
                let mut total = 0;
                for (group, count) in groups.iter().zip(counts.by_ref()) {
                    total += count;
                    check_group(group, count, args, &mut checker, &mut report)?;
                }
                if total == 0 {
                    report.note(path, format_args!("no manifests in it"))?;
                }
            }
            Err(error) => {
                is_missing = true;
                report.unusable(path, error)?;
            }
        }
    }
    report.finish()?;
    Ok(if is_missing { 2 } else { u8::from(report.invalid() > 0) })
}

/// Checks the manifests of one group, and prints the results. The agent would publish the pods of a
/// directory together.
fn check_group(
    group: &Group,
    count: usize,
    args: &Args,
    checker: &mut Checker<'_>,
    report: &mut ReportPrinter,
) -> Result<(), Failure> {
    for (path, reason) in group.skipped.iter().filter(|_| args.verbose) {
        report.note(path, format_args!("skipped: {reason}"))?;
    }
    if !group.is_directory || args.source != SourceName::File {
        return checker.take(count).try_for_each(|manifest| report.manifest(&manifest));
    }
    let mut manifests: Vec<_> = checker.take(count).collect();
    check_duplicates(&mut manifests, &Clock::default());
    manifests.iter().try_for_each(|manifest| report.manifest(manifest))
}
