//! Gathers the examples in the documentation of podmux, so that they are tested without the program, too.

use std::{env, fs, path::Path};

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut found = String::new();
    gather(&source, &mut found);
    assert!(found.contains("```"), "no example in {}", source.display());
    fs::write(Path::new(&env::var("OUT_DIR").unwrap()).join("examples.md"), found).unwrap();
}

/// Appends the examples of a Rust file, or of all below a directory, each under the name of its file.
fn gather(path: &Path, found: &mut String) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| gather(entry, found));
        return;
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let documentation = text.lines().map(str::trim_start).filter_map(|line| {
        let line = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
        Some(line.strip_prefix(' ').unwrap_or(line))
    });
    let mut is_inside = false;
    for line in documentation {
        let is_fence = line.starts_with("```");
        if is_fence && !is_inside {
            *found += &format!("\n{}:\n\n", path.file_name().unwrap().display());
        }
        if is_fence || is_inside {
            *found += line;
            found.push('\n');
        }
        is_inside ^= is_fence;
    }
}
