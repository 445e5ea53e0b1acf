//! Makes modules of podmux's sources that use shuttle's locks, atomics and channels, and broken variants of them.

use std::{env, fs, path::Path};

/// Shuttle changes the task where a lock is taken, not where it is released: here another thread may go on.
const BEFORE_WAITING: (&str, &str) =
    ("let due = async {", "shuttle::future::yield_now().await;\n            let due = async {");

/// The name of a variant, the file it is made of, and what is replaced in it.
const MODULES: [(&str, &str, &[(&str, &str)]); 9] = [
    ("mux", "mux.rs", &[]),
    (
        "mux_that_looks_twice",
        "mux.rs",
        &[(
            "let mut slots = self.inbox.lock();\n                (slots.take(), slots.all_ended(), slots.asked)",
            "let waiting = self.inbox.lock().take();
         let slots = self.inbox.lock();
         (waiting, slots.all_ended(), slots.asked)",
        )],
    ),
    ("work_queue", "runtime/work_queue.rs", &[BEFORE_WAITING]),
    (
        "work_queue_that_loses_a_wake_up",
        "runtime/work_queue.rs",
        &[BEFORE_WAITING, ("woken.as_mut().enable();", "")],
    ),
    ("sequence", "db/sequence.rs", &[]),
    (
        "sequence_in_two_steps",
        "db/sequence.rs",
        &[(
            "self.0.last.fetch_add(count, Ordering::SeqCst) + 1",
            "let last = self.0.last.load(Ordering::SeqCst);
         self.0.last.store(last + count, Ordering::SeqCst);
         last + 1",
        )],
    ),
    (
        "sequence_too_early",
        "db/sequence.rs",
        &[("db.commit(vec![", "self.0.ceiling.store(ceiling, Ordering::SeqCst);\ndb.commit(vec![")],
    ),
    (
        "history",
        "history/mod.rs",
        &[(
            "if self.journal.news.changed().await.is_err() {",
            "shuttle::future::yield_now().await;
             if self.journal.news.changed().await.is_err() {",
        )],
    ),
    (
        "history_that_looks_first",
        "history/mod.rs",
        &[
            ("self.journal.news.borrow_and_update();\n", "\n"),
            (
                "if self.journal.news.changed().await.is_err() {",
                "shuttle::future::yield_now().await;
             self.journal.news.borrow_and_update();
             if self.journal.news.changed().await.is_err() {",
            ),
        ],
    ),
];

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    println!("cargo::rerun-if-changed={}", source.display());
    for (name, file, replacements) in MODULES {
        // A private function of the crate. No test has restored listings.
        let mut text = module(&source.join(file)).replace("listing.over(&before)", "unreachable!()");
        for (before, after) in replacements {
            assert_eq!(
                text.matches(before).count(),
                1,
                "{file} has no single {before:?}: adapt the broken variant"
            );
            text = text.replace(before, after);
        }
        fs::write(Path::new(&env::var("OUT_DIR").unwrap()).join(name).with_extension("rs"), text).unwrap();
    }
}

/// A file with its modules, without the comments about whole files, which `include!` does not accept.
fn module(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let lines = text.lines().filter(|line| !line.starts_with("//!")).map(|line| {
        let child = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
        let Some(child) = child else { return format!("{line}\n") };
        format!("mod {child} {{\n{}}}\n", module(&file.with_file_name(child).with_extension("rs")))
    });
    let text = lines.collect::<String>();
    text.replace("use std::", "use crate::shuttled::std::")
        .replace("use tokio::", "use crate::shuttled::tokio::")
}
