//! Scripts of listings and the resulting updates, as text.
//!
//! A line is one listing: `SOURCE: POD POD | POD`, where `|` begins the next origin of the
//! source (for example a file). `SOURCE (restored): …` is a restored listing. A
//! line that begins with `asleep` is merged while the consumer does not read.
//!
//! A pod is `[namespace/]name` and marks: `#uid` (else `name-uid`; `#` alone for
//! none), `=image`, `+label:value`, `+` (empty labels), `@annotation:value`,
//! `%phase`, `!` (being deleted), `!!` (for longer), `^priority`, `<day` of creation,
//! `~system` of `spec.os`.

use std::fmt::Write as _;

use expect_test::Expect;
use podmux::{
    pod::{Listing, ListingBuilder, Origin, PodUpdate, Prepared, Rejection, SourceName},
    storage::{Delivered, Notify, PodStorage, updates},
};
use serde_json::{Value, json};

/// Runs a script with all four sources and an incremental consumer.
pub fn check(script: &str, expect: &Expect) {
    check_with(&SourceName::ALL, Notify::Incremental, script, expect);
}

pub fn check_with(configured: &[SourceName], notify: Notify, script: &str, expect: &Expect) {
    let mut storage = PodStorage::new(configured);
    let mut builders = SourceName::ALL.map(ListingBuilder::new);
    let (mut delivered, mut out) = (Delivered::default(), String::new());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        writeln!(out, "> {line}").unwrap();
        let (asleep, listing) = read(line, &mut builders);
        let outcome = storage.apply(&listing);
        describe(&mut out, "rejected", &outcome.rejected);
        describe(&mut out, "recovered", &outcome.recovered);
        if !asleep {
            let (goal, messages) = updates(&delivered, storage.merged(), notify);
            delivered = goal;
            for update in &messages {
                writeln!(out, "{}", update_line(update)).unwrap();
            }
        }
    }
    expect.assert_eq(&out);
}

/// `OP source: namespace/name#uid …`
pub fn update_line(update: &PodUpdate) -> String {
    let pods = update.pods.iter().map(|pod| format!(" {}#{}", pod.key(), pod.uid()));
    format!("{} {}:{}", update.op, update.source, pods.collect::<String>())
}

fn describe(out: &mut String, word: &str, rejections: &[Rejection]) {
    for rejection in rejections {
        let pod = rejection.pod.as_ref().unwrap();
        let (source, reason) = (rejection.source, rejection.reason.as_str());
        writeln!(out, "{word}: {source} {pod}: {reason}: {}", rejection.reason).unwrap();
    }
}

fn read(line: &str, builders: &mut [ListingBuilder; 4]) -> (bool, Listing) {
    let (asleep, line) = line.strip_prefix("asleep ").map_or((false, line), |line| (true, line));
    let (head, pods) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    let (source, restored) = head.strip_suffix(" (restored)").map_or((head, false), |source| (source, true));
    let builder = &mut builders[source.parse::<SourceName>().unwrap() as usize];
    let old: Vec<Origin> = builder.origins().cloned().collect();
    let parts: Vec<&str> = pods.split('|').collect();
    for (index, part) in parts.iter().enumerate() {
        let pods = part.split_whitespace().map(pod).collect();
        builder.put(&origin(index), pods, jiff::Timestamp::UNIX_EPOCH);
    }
    for gone in old.iter().filter(|old| !(0..parts.len()).any(|index| origin(index) == **old)) {
        builder.remove(gone);
    }
    (asleep, if restored { builder.restored_listing() } else { builder.listing() })
}

fn origin(index: usize) -> Origin {
    Origin::from(&*format!("{}.yaml", index + 1))
}

/// Makes a pod from its marks.
pub fn pod(text: &str) -> Prepared {
    const MARKS: &[char] = &['#', '=', '+', '@', '%', '!', '^', '<', '~'];
    let (full, mut rest) = text.split_at(text.find(MARKS).unwrap_or(text.len()));
    let (namespace, name) = full.split_once('/').unwrap_or(("default", full));
    let mut pod = json!({
        "metadata": {"namespace": namespace, "name": name, "uid": format!("{name}-uid")},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    while let Some(mark) = rest.chars().next() {
        let end = rest[1..].find(MARKS).map_or(rest.len(), |end| end + 1);
        let value = &rest[1..end];
        rest = &rest[end..];
        set_mark(&mut pod, mark, value);
    }
    Prepared::from_value(pod).unwrap()
}

fn set_mark(pod: &mut Value, mark: char, value: &str) {
    let pair = || value.split_once(':').map_or_else(|| json!({}), |(name, value)| json!({name: value}));
    match mark {
        '#' => pod["metadata"]["uid"] = json!(value),
        '=' => pod["spec"]["containers"][0]["image"] = json!(value),
        '+' => pod["metadata"]["labels"] = pair(),
        '@' => pod["metadata"]["annotations"] = pair(),
        '%' => pod["status"]["phase"] = json!(value),
        '^' => pod["spec"]["priority"] = json!(value.parse::<i32>().unwrap()),
        '~' => pod["spec"]["os"] = json!({"name": value}),
        '<' => pod["metadata"]["creationTimestamp"] = json!(format!("2026-01-0{value}T00:00:00Z")),
        '!' => {
            let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) + 30;
            pod["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        }
        other => panic!("unknown mark {other}"),
    }
}
