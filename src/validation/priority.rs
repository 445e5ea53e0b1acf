//! The priority of a static pod. Its class is not looked up, so class and value must be given together.

use super::{
    fields::{Object, number, text},
    report::Report,
};
use crate::pod::{FieldPath, Problem, quoted};

/// The classes that every cluster has, and their values.
const STANDARD: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Warns of a priority without a class, a class without a priority, and a contradiction.
pub(super) fn warnings(spec: &Object, path: &FieldPath<'_>, report: &mut dyn Report) {
    let (class, value) = (text(spec, "priorityClassName"), number(spec, "priority"));
    let standard = STANDARD.iter().find(|(name, _)| *name == class).map(|(_, value)| *value);
    match (class, value) {
        ("", None) => {}
        ("", Some(_)) => report.warning(&path.field("priority"), &|| {
            Problem::warning("priority is set without priorityClassName: set both")
        }),
        (class, None) => report.warning(&path.field("priorityClassName"), &|| {
            let value = standard.map_or("its value".to_owned(), |value| value.to_string());
            Problem::warning(format!(
                "the class {} of a static pod is not looked up: set priority to {value} too",
                quoted(class)
            ))
        }),
        (class, Some(value)) => {
            if let Some(standard) = standard.filter(|standard| *standard != value) {
                report.warning(&path.field("priority"), &|| {
                    Problem::warning(format!("the priority of the class {class} is {standard}, not {value}"))
                });
            }
        }
    }
}
