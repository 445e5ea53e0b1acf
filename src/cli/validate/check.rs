//! Reads and checks manifests for `podmux validate`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::args::Args;
use crate::{
    cli::manifests::{describe, is_stdin, read_stdin},
    host::Clock,
    manifest::{self, DUPLICATE_KEY, Preparation, UNKNOWN_FIELD},
    pod::{ListingBuilder, Origin, PodKey, Prepared, Problem, RejectionReason, Severity, SourceName, Stage},
    source::file::read_manifest,
};

/// A manifest that was checked.
pub(super) struct CheckedManifest {
    pub(super) path: PathBuf,
    /// The stage that rejected it, if one did.
    pub(super) stage: Option<Stage>,
    pub(super) problems: Vec<Problem>,
    pods: Vec<Prepared>,
}

impl CheckedManifest {
    pub(super) fn is_valid(&self) -> bool {
        self.problems.iter().all(|problem| problem.severity == Severity::Warning)
    }

    /// The pods that the agent would publish: none of a rejected manifest.
    pub(super) fn pods(&self) -> &[Prepared] {
        if self.stage.is_some() { &[] } else { &self.pods }
    }
}

/// Reads and checks one manifest. With `--strict`, an unknown field or a duplicate key rejects it.
pub(super) fn check(path: &Path, preparation: &Preparation, args: &Args) -> CheckedManifest {
    let checked = |stage, problems, pods| CheckedManifest { path: path.to_owned(), stage, problems, pods };
    let error = |detail: String| vec![Problem::error(detail)];
    let read = if is_stdin(path) {
        match read_stdin() {
            Err(why) if why.kind() == std::io::ErrorKind::FileTooLarge => {
                return checked(Some(Stage::Decode), error(describe(&why)), Vec::new());
            }
            read => read.map_err(|why| RejectionReason::Unreadable(describe(&why).into())),
        }
    } else {
        read_manifest(path)
    };
    let text = match read {
        Ok(text) => text,
        Err(RejectionReason::Invalid(refusal)) => {
            return checked(Some(refusal.stage), refusal.problems.clone(), Vec::new());
        }
        Err(why) => return checked(None, error(format!("cannot be read: {why}")), Vec::new()),
    };
    match manifest::review(&text, preparation, args.pod_security) {
        Err(refusal) => checked(Some(refusal.stage), refusal.problems, Vec::new()),
        Ok(manifest) if args.strict && manifest.warnings.iter().any(is_strict) => {
            let strictly = |problem| match problem {
                problem if is_strict(&problem) => Problem { severity: Severity::Error, ..problem },
                problem => problem,
            };
            let problems = manifest.warnings.into_iter().map(strictly).collect();
            checked(Some(Stage::Decode), problems, manifest.pods)
        }
        Ok(manifest) => checked(None, manifest.warnings, manifest.pods),
    }
}

/// Whether `--strict` rejects a manifest because of a warning, as `fieldValidation=Strict` does.
fn is_strict(warning: &Problem) -> bool {
    warning.detail.starts_with(UNKNOWN_FIELD) || warning.detail.starts_with(DUPLICATE_KEY)
}

/// Adds the problems of valid manifests that the agent would find in a directory: names and
/// UIDs that occur twice.
pub(super) fn check_duplicates(directory: &mut [CheckedManifest], clock: &Clock) {
    let origin = |checked: &CheckedManifest| Origin::from(&*checked.path.to_string_lossy());
    let mut builder = ListingBuilder::new(SourceName::File);
    for checked in directory.iter() {
        builder.put(&origin(checked), checked.pods.clone(), clock.now());
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
