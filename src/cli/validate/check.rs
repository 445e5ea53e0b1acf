//! Reads and checks manifests for `podmux validate`, on all cores.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fs::File,
    io,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    args::{Args, OutputFormat},
    excerpt::{Excerpt, excerpts},
    find::Input,
};
use crate::{
    cli::{
        manifests::{describe, is_stdin, read_stdin, read_stream},
        terminal::ProgressLine,
    },
    host::{Clock, Threads},
    manifest::{self, Manifest, Preparation, is_strict, number_of, strictly},
    pod::{
        InvalidManifest, ListingBuilder, Object, Origin, PodKey, Prepared, Problem, RejectionReason,
        Severity, SourceName, Stage,
    },
    source::file::read_manifest,
};

/// How many manifests are checked before their results are printed.
const BLOCK: usize = 512;
/// A further thread pays off from this many manifests on.
const WORTH_A_THREAD: usize = 8;

/// How many problems of each severity there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) errors: usize,
    pub(super) warnings: usize,
}

impl Counts {
    pub(super) fn of(problems: &[Problem]) -> Self {
        let mut counts = Self::default();
        for problem in problems {
            counts.add(problem);
        }
        counts
    }

    pub(super) fn add(&mut self, problem: &Problem) {
        *match problem.severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        } += number_of(problem);
    }

    pub(super) fn total(self) -> usize {
        self.errors + self.warnings
    }
}

/// A manifest that was checked.
pub(super) struct CheckedManifest {
    pub(super) path: PathBuf,
    /// The stage that rejected it, if one did.
    pub(super) stage: Option<Stage>,
    /// Its problems, or the first of them if only so many are printed.
    pub(super) problems: Vec<Problem>,
    /// The number of all its problems.
    pub(super) counts: Counts,
    /// The faulty line of each problem, if it is printed.
    pub(super) excerpts: Vec<Option<Excerpt>>,
    /// How many of its objects were skipped, because they are no pods.
    pub(super) skipped: usize,
    /// Its pods, if they are printed; otherwise only their names and UIDs.
    pods: Vec<Prepared>,
}

impl CheckedManifest {
    pub(super) fn is_valid(&self) -> bool {
        self.counts.errors == 0
    }

    /// The pods that the agent would publish: none of a rejected manifest.
    pub(super) fn pods(&self) -> &[Prepared] {
        if self.stage.is_some() { &[] } else { &self.pods }
    }

    /// Adds a problem of the whole manifest.
    fn add(&mut self, problem: Problem) {
        self.counts.add(&problem);
        self.problems.push(problem);
    }
}

/// Checks manifests one by one in their order, and many at once.
pub(super) struct Checker<'a> {
    args: &'a Args,
    preparation: &'a Preparation,
    /// The width of the terminal, if faulty lines are printed.
    width: Option<usize>,
    waiting: VecDeque<Input>,
    checked: VecDeque<CheckedManifest>,
    /// How many more problems are printed, if they are limited.
    left: Option<usize>,
    progress: ProgressLine,
    done: AtomicUsize,
    /// The number of manifests between two updates of the progress.
    step: usize,
}

impl<'a> Checker<'a> {
    pub(super) fn new(
        inputs: Vec<Input>,
        args: &'a Args,
        preparation: &'a Preparation,
        width: Option<usize>,
        limit: Option<usize>,
        progress: ProgressLine,
    ) -> Self {
        let step = (inputs.len() / 100).max(PROGRESS_STEP);
        Self {
            args,
            preparation,
            width,
            waiting: inputs.into(),
            checked: VecDeque::new(),
            left: limit,
            progress,
            done: AtomicUsize::new(0),
            step,
        }
    }

    /// Hides the progress until the next block.
    fn check_block(&mut self) {
        let block: Vec<Input> = self.waiting.drain(..self.waiting.len().min(BLOCK)).collect();
        let checked = Threads::on_all_cores().map(&block, WORTH_A_THREAD, |input| {
            let done = self.done.fetch_add(1, Ordering::Relaxed);
            if done.is_multiple_of(self.step) {
                self.progress.show(done);
            }
            self.check(input)
        });
        self.checked.extend(checked);
        for checked in &mut self.checked {
            if let Some(left) = &mut self.left {
                checked.problems.truncate(*left);
                checked.excerpts.truncate(*left);
                *left -= checked.problems.len();
            }
        }
        self.progress.clear();
    }

    /// Reads and checks one manifest. What is not printed of its pods is dropped at once: the pods of many
    /// manifests take much memory.
    fn check(&self, input: &Input) -> CheckedManifest {
        let mut checked = self.check_whole(input);
        if self.args.output != OutputFormat::Json {
            checked.pods.iter_mut().for_each(|pod| *pod = named(pod));
        }
        checked
    }

    /// Reads and checks one manifest. With `--strict`, an unknown field or a duplicate key rejects it.
    fn check_whole(&self, input: &Input) -> CheckedManifest {
        let error = |detail: String| vec![Problem::error(detail)];
        let text = match read(input) {
            Ok(text) => text,
            Err(RejectionReason::Invalid(refusal)) => {
                return self.checked(input, &[], Some(refusal.stage), refusal.problems.clone());
            }
            Err(why) => return self.checked(input, &[], None, error(format!("cannot be read: {why}"))),
        };
        let (manifest, skipped) = self.admit(&text);
        let (stage, problems, pods) = match manifest {
            Err(refusal) => (Some(refusal.stage), refusal.problems, Vec::new()),
            Ok(Manifest { pods, warnings, .. }) if self.args.strict && warnings.iter().any(is_strict) => {
                (Some(Stage::Decode), warnings.into_iter().map(strictly).collect(), pods)
            }
            Ok(Manifest { pods, warnings, .. }) => (None, warnings, pods),
        };
        CheckedManifest { skipped, pods, ..self.checked(input, &text, stage, problems) }
    }

    fn admit(&self, text: &[u8]) -> (Result<Manifest, InvalidManifest>, usize) {
        if self.args.templates {
            manifest::admit_templates(text, self.preparation, self.args.pod_security)
        } else {
            (manifest::review(text, self.preparation, self.args.pod_security), 0)
        }
    }

    /// The result of a manifest without its pods.
    fn checked(
        &self,
        input: &Input,
        text: &[u8],
        stage: Option<Stage>,
        mut problems: Vec<Problem>,
    ) -> CheckedManifest {
        let counts = Counts::of(&problems);
        if self.left == Some(0) {
            problems.clear();
        }
        let excerpts = self.width.map_or_else(Vec::new, |width| excerpts(text, &problems, width));
        let path = input.path.clone();
        CheckedManifest { path, stage, problems, counts, excerpts, skipped: 0, pods: Vec::new() }
    }
}

impl Iterator for Checker<'_> {
    type Item = CheckedManifest;

    fn next(&mut self) -> Option<CheckedManifest> {
        if self.checked.is_empty() {
            self.check_block();
        }
        self.checked.pop_front()
    }
}

/// A pod with only its name and its UID.
fn named(pod: &Prepared) -> Prepared {
    let fields = ["name", "namespace", "uid"].map(|field| Some((field, pod.metadata(field)?)));
    let fields = fields.into_iter().flatten().map(|(field, value)| (field.to_owned(), value.clone()));
    let metadata: Object = fields.collect();
    let object = std::iter::once(("metadata".to_owned(), metadata.into())).collect();
    Prepared::from_canonical(object, pod.key().clone())
}

/// The least number of manifests between two updates of the progress.
pub(super) const PROGRESS_STEP: usize = 50;

/// Reads a manifest.
fn read(input: &Input) -> Result<Vec<u8>, RejectionReason> {
    if !input.is_stream {
        return read_manifest(&input.path);
    }
    let read =
        if is_stdin(&input.path) { read_stdin() } else { File::open(&input.path).and_then(read_stream) };
    read.map_err(|why| match why.kind() {
        io::ErrorKind::FileTooLarge => RejectionReason::Invalid(
            InvalidManifest { stage: Stage::Decode, problems: vec![Problem::error(describe(&why))] }.into(),
        ),
        _ => RejectionReason::Unreadable(describe(&why).into()),
    })
}

/// Adds the problems of valid manifests that the agent would find in a directory: names and
/// UIDs that occur twice.
pub(super) fn check_duplicates(directory: &mut [CheckedManifest], clock: &Clock) {
    let origin = |checked: &CheckedManifest| Origin::from(&*checked.path.to_string_lossy());
    let mut builder = ListingBuilder::new(SourceName::File);
    let shared = shared(directory);
    let is_shared = |pod: &Prepared| claims(pod).any(|claim| shared.contains(claim));
    let found = directory.iter().filter(|checked| checked.pods.iter().any(is_shared));
    for checked in found {
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
    if losers.is_empty() {
        return;
    }
    for checked in directory {
        for (pod, problem) in losers.remove(&origin(checked)).unwrap_or_default() {
            checked.pods.retain(|prepared| Some(prepared.key()) != pod.as_ref());
            checked.add(problem);
        }
    }
}

/// The names and UIDs that more than one pod has. Nearly all directories have none, and then no listing is
/// made of the pods.
fn shared(directory: &[CheckedManifest]) -> HashSet<&str> {
    let (mut seen, mut shared) = (HashSet::new(), HashSet::new());
    for claim in directory.iter().flat_map(|checked| &checked.pods).flat_map(claims) {
        if !seen.insert(claim) {
            shared.insert(claim);
        }
    }
    shared
}

/// The name and the UID of a pod. A name has a slash, a UID may be equal to another pod's name at most.
fn claims(pod: &Prepared) -> impl Iterator<Item = &str> {
    [pod.key().as_str(), pod.uid()].into_iter().filter(|claim| !claim.is_empty())
}
