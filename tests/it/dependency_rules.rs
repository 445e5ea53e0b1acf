//! The dependency rules: what each module of `src/` may import, and that no files import each other in a cycle.
//!
//! The checker reads the tokens of each file, so paths in use-trees, expressions, types,
//! attributes and macro calls count, and words in comments and strings do not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    str::FromStr as _,
};

use proc_macro2::{TokenStream, TokenTree};

/// For library code that does no input or output, never waits and takes no lock.
const PURE: &str = "std -std::fs -std::net -std::env -std::os -std::process -std::thread -std::future \
    -std::task -std::io::stdin -std::io::stdout -std::io::stderr \
    -std::sync std::sync::Arc std::sync::Weak std::sync::LazyLock std::sync::OnceLock \
    base64 granit_parser imbl k8s_openapi serde serde_json sha2 thiserror jiff uuid";

/// For asynchronous modules. The environment and the disk come through settings and `host`.
const ASYNC: &str = "std -std::env -std::fs -std::process -std::thread \
    bytes http jiff rustix serde serde_json thiserror tokio tokio_util tracing";

/// For the modules that read the command line and return an exit code.
const PROGRAM: &str = "std::env std::fs std::process std::thread anyhow clap clap_complete";

/// For every module but `host`: the clock and randomness come through it.
const THROUGH_HOST: &str = "-std::time::SystemTime::now -jiff::Timestamp::now -jiff::Zoned::now \
    -jiff::tz::TimeZone::system -uuid::Uuid::new_v4 -uuid::Uuid::now_v7 -std::hash::RandomState";

/// A module and its rules, separated by spaces: `path` may be imported, `-path` may not.
/// The longest rule that begins a path decides; a path without a rule may not be imported.
/// A module may always import itself.
#[rustfmt::skip]
const RULES: &[(&str, &[&str])] = &[
    ("pod", &[PURE]),
    // Addresses are parsed; nothing is connected.
    ("validation", &[PURE, "std::net::Ipv4Addr std::net::Ipv6Addr", "crate::pod"]),
    ("manifest", &[PURE, "crate::pod crate::validation"]),
    ("manifest/patch", &["json_patch"]),
    ("storage", &[PURE, "crate::pod"]),
    ("mux", &[PURE, "std::future std::sync::Mutex std::sync::MutexGuard std::sync::PoisonError",
        "tokio::sync tracing", "crate::pod crate::storage"]),
    ("history", &[ASYNC, "-tokio imbl tokio::sync tokio::select tokio::time", "crate::pod crate::db crate::host crate::outage crate::error_chain",
        "crate::storage::Merged crate::mux::Updates crate::runtime::Observed"]),
    // It compares what the modules publish.
    ("events", &[ASYNC, "-tokio imbl futures_util tokio::select tokio::sync tokio::time uuid",
        "crate::pod crate::pod_columns crate::db::Sequence crate::host crate::history crate::source::SourceFailing crate::source::SourceStatus",
        "crate::storage::Merged crate::storage::PortConflict crate::storage::SourceState crate::runtime::Activity",
        "crate::runtime::Observed",
        "crate::runtime::ObservedPod crate::runtime::PodProgress crate::runtime::WorkersStatus"]),
    ("source", &[ASYNC, "base64 http_body http_body_util hyper hyper_rustls hyper_timeout hyper_util imbl k8s_openapi kube",
        "notify rustls secrecy sha2 tower_service uuid x509_cert prometheus_client::metrics",
        // The pipes of a credential plugin; tokio runs it.
        "std::process::Stdio",
        "crate::pod crate::manifest crate::validation crate::db crate::client crate::host",
        "crate::age crate::backoff crate::certificate_files crate::error_chain crate::grouped crate::hex crate::outage crate::pem",
        "crate::mux::SourceChannel crate::storage::Delivered crate::storage::Merged"]),
    // The file source lists and watches directories, which `host::Disk` does not.
    ("source/file", &["std::fs"]),
    // Where files of credentials are, and whether they changed.
    ("source/api/connect", &["std::fs"]),
    ("sink", &[ASYNC, "hyper hyper_util", "crate::pod crate::db crate::client crate::host",
        "crate::backoff crate::certificate_files crate::duration crate::error_chain crate::escaped crate::hex crate::kind crate::outage",
        "crate::mux::Updates crate::mux::Notify crate::storage::Merged crate::storage::Delivered"]),
    // It writes a file, a pipe or the standard output, and follows rotation.
    ("sink/jsonl", &["std::fs"]),
    // It signs bodies.
    ("sink/webhook", &["ring sha2"]),
    ("runtime", &[ASYNC, "futures_util imbl", "crate::pod crate::db crate::host",
        "crate::backoff crate::duration crate::error_chain crate::kind crate::outage",
        "crate::storage::Merged crate::storage::SourceState"]),
    // It starts processes, whose standard input is a file that they keep locked.
    ("runtime/exec", &["std::fs std::process::ExitStatus"]),
    // It makes the files that containers write messages to, and the paths of hostPaths.
    ("runtime/podman", &["std::fs crate::client crate::pod_columns"]),
    ("server", &[ASYNC, "axum base64 flate2 futures_util http_body_util hyper hyper_util prometheus_client rcgen rustls sha2 subtle",
        "listenfd tokio_rustls tower_http tower_service uuid x509_cert",
        // What the program is built for, for /version.
        "std::env::consts",
        "crate::pod crate::pod_columns crate::manifest crate::validation crate::events crate::history crate::host",
        "crate::age crate::backoff crate::certificate_files crate::duration crate::error_chain crate::hex crate::outage crate::pem",
        "crate::db::DbError crate::storage::Delivered crate::storage::Merged crate::storage::PortConflict crate::storage::SourceState",
        "crate::source::http crate::source::SourceStatus crate::source::SourceFailing",
        "crate::source::ReflectorStatus crate::source::api::ReflectorMetrics crate::sink::SinkStatus crate::sink::SinkFailing",
        "crate::runtime::Failing crate::runtime::Histogram crate::runtime::LogReader crate::runtime::LogRequest crate::runtime::Logging crate::runtime::NO_LOGS crate::runtime::Observed crate::runtime::QueueMetrics crate::runtime::Rank crate::runtime::RuntimeError crate::runtime::WorkQueue crate::runtime::WorkersStatus"]),
    // Files of sockets, certificates and tokens; /proc/self.
    ("server/transport", &["std::fs"]),
    ("server/observe/metrics", &["std::fs"]),
    ("settings", &[ASYNC, "-tokio std::env std::fs listenfd clap",
        "crate::pod crate::manifest::yaml crate::mux::Notify crate::host crate::error_chain crate::camel_case crate::duration",
        "crate::source -crate::source::http crate::source::http::Config -crate::source::last_good crate::certificate_files",
        "crate::server crate::registry crate::telemetry crate::client"]),
    ("db", &[ASYNC, "-tokio -tokio_util std::fs tokio::sync tokio::time redb sha2 uuid crate::host crate::error_chain crate::outage"]),
    ("client", &[ASYNC, "base64 futures_util http_body_util hyper hyper_rustls hyper_util percent_encoding rustls",
        "tower crate::host crate::certificate_files crate::error_chain crate::pem"]),
    ("supervise", &[ASYNC, "-rustix -serde -serde_json crate::error_chain"]),
    ("systemd", &[ASYNC, "-tokio -tokio_util tokio::net::UnixDatagram"]),
    ("telemetry", &[ASYNC, "-tokio -tokio_util tracing_subscriber crate::host crate::escaped",
        // Log lines are written by a thread of their own, outside the runtime.
        "std::thread::Builder"]),
    // Time, threads, files and random numbers of the machine: nothing else may use them directly.
    ("host", &[ASYNC, "std::fs std::thread rand uuid"]),
    // The only place that knows every kind of sink and of runtime.
    ("registry", &["std serde_json crate::camel_case crate::db::Sequence crate::host crate::kind crate::mux::Updates crate::runtime crate::sink"]),
    ("kind", &["std rustix thiserror crate::host"]),
    ("backoff", &["std jiff tokio::time crate::host"]),
    ("outage", &["std jiff tracing crate::host"]),
    ("error_chain", &["std::error std::fmt"]),
    ("escaped", &["std::borrow std::fmt"]),
    ("certificate_files", &["std::path crate::host crate::pem"]),
    ("grouped", &["std"]),
    ("hex", &["std"]),
    ("camel_case", &["std"]),
    ("duration", &["std"]),
    ("pem", &["jiff rustls thiserror x509_cert"]),
    ("age", &["std jiff"]),
    ("pod_columns", &["std jiff serde_json crate::age"]),
    ("agent", &[ASYNC, PROGRAM, "futures_util rustls sha2 crate -crate::cli"]),
    ("cli", &[ASYNC, PROGRAM, "serde_saphyr crate"]),
    // It shows what changes in a pod's text.
    ("cli/diff", &["similar"]),
    // Excerpts of manifests, paths in SARIF.
    ("cli/validate", &["percent_encoding unicode_width"]),
    // It follows several containers at once.
    ("cli/logs", &["futures_util"]),
    ("cli/top", &["ratatui"]),
    ("lib", &[ASYNC, "crate"]),
    // It has the allocator.
    ("main", &[PROGRAM, "mimalloc std crate::cli"]),
];

/// The parts of a module that may not import each other.
const SEPARATE: &[(&str, &[&str])] = &[
    ("source", &["file", "http", "url", "api"]),
    ("sink", &["jsonl", "webhook"]),
    ("runtime", &["exec", "podman"]),
];

/// The modules in which nothing is `async`.
const SYNC: &[&str] = &["pod", "manifest", "validation", "storage", "settings", "telemetry"];

/// A path that a file uses, from the crate's root or a crate's name.
struct Import {
    path: Vec<String>,
    line: usize,
    is_glob: bool,
    /// Whether it only passes a name on, as `pub use child::Name` does.
    is_reexport: bool,
}

/// What one file imports and declares.
struct File<'a> {
    crates: &'a BTreeSet<String>,
    /// The module that is being read, from the crate's root.
    module: Vec<String>,
    /// The names that the file declares or imports, with the paths that they stand for.
    names: BTreeMap<String, Vec<String>>,
    imports: Vec<Import>,
    /// The files that its `mod` items may be in, without `.rs` or `/mod.rs`.
    children: Vec<String>,
    /// Violations by line.
    violations: Vec<(usize, String)>,
}

fn is(token: Option<&TokenTree>, punct: char) -> bool {
    matches!(token, Some(TokenTree::Punct(found)) if found.as_char() == punct)
}

fn line(token: &TokenTree) -> usize {
    token.span().start().line
}

impl File<'_> {
    /// The absolute form of a path; none for a local name, a variant or an associated item.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let root = match first.as_str() {
            "crate" | "podmux" => vec!["crate".to_owned()],
            "self" => self.module.clone(),
            "super" => {
                let supers = path.iter().take_while(|segment| *segment == "super").count();
                let parents = self.module.len().saturating_sub(supers).max(1);
                return Some([&self.module[..parents], &path[supers..]].concat());
            }
            // Two names for parts of std.
            "core" | "alloc" => vec!["std".to_owned()],
            _ => match self.names.get(first) {
                Some(path) => path.clone(),
                None => vec![self.crates.get(first)?.clone()],
            },
        };
        Some([&root, rest].concat())
    }

    /// Reads the tokens of a file, a module, a block, an attribute or a macro call.
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let (mut at, mut is_public) = (0, false);
        while let Some(token) = tokens.get(at) {
            let next = tokens.get(at + 1);
            match token {
                TokenTree::Ident(word) if word == "use" => {
                    let length = tokens[at..].iter().take_while(|token| !is(Some(token), ';')).count();
                    self.use_tree(&tokens[at + 1..at + length], &[], is_public);
                    at += length;
                }
                TokenTree::Ident(word)
                    if word == "extern" && next.is_some_and(|next| next.to_string() == "crate") =>
                {
                    self.violations
                        .push((line(token), "`extern crate` hides imports: use the crate's name".into()));
                    at += 1;
                }
                TokenTree::Ident(word) if word == "mod" && matches!(next, Some(TokenTree::Ident(_))) => {
                    self.child(&tokens[at + 1].to_string(), tokens.get(at + 2));
                    at += 2;
                }
                TokenTree::Ident(word) => {
                    if word == "async" || word == "await" {
                        let why = format!("nothing is async in the module `{}`", self.module[1]);
                        self.violations.extend(self.is_sync().then(|| (line(token), why)));
                    }
                    // `pub`, perhaps with `(crate)`, stands before what it publishes.
                    is_public = word == "pub";
                    at = self.path(&tokens, at);
                    continue;
                }
                TokenTree::Group(group) => {
                    let attribute = group.stream().to_string();
                    if at > 0 && is(tokens.get(at - 1), '#') && attribute.starts_with("path =") {
                        let why = "a module is in the file of its name, not at a #[path]".to_owned();
                        self.violations.push((line(token), why));
                    }
                    self.read(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            is_public &= matches!(token, TokenTree::Group(_));
            at += 1;
        }
    }

    fn is_sync(&self) -> bool {
        self.module.get(1).is_some_and(|module| SYNC.contains(&module.as_str()))
    }

    /// Reads `mod name;` or `mod name { … }`.
    fn child(&mut self, name: &str, body: Option<&TokenTree>) {
        self.module.push(name.to_owned());
        self.names.insert(name.to_owned(), self.module.clone());
        match body {
            Some(TokenTree::Group(body)) => self.read(body.stream()),
            _ => self.children.push(self.module.join("/").replacen("crate", "src", 1)),
        }
        self.module.pop();
    }

    /// Reads `a::b::c` and returns where it ends. A single name imports nothing.
    fn path(&mut self, tokens: &[TokenTree], begin: usize) -> usize {
        let (mut path, mut at) = (vec![tokens[begin].to_string()], begin + 1);
        while is(tokens.get(at), ':')
            && is(tokens.get(at + 1), ':')
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 2)
        {
            path.push(name.to_string());
            at += 3;
        }
        if path.len() > 1
            && let Some(path) = self.resolve(&path)
        {
            let line = line(&tokens[begin]);
            self.imports.push(Import { path, line, is_glob: false, is_reexport: false });
        }
        at
    }

    fn use_tree(&mut self, tree: &[TokenTree], prefix: &[String], is_reexport: bool) {
        for branch in tree.split(|token| is(Some(token), ',')) {
            let mut names: Vec<&TokenTree> =
                branch.iter().filter(|token| !is(Some(token), ':') && token.to_string() != "as").collect();
            let is_renamed = branch.iter().any(|token| token.to_string() == "as");
            let alias = if is_renamed { names.pop().map(ToString::to_string) } else { None };
            let Some(last) = names.last().copied() else { continue };
            let is_glob = is(Some(last), '*');
            let mut path = prefix.to_vec();
            path.extend(
                names.iter().filter(|name| matches!(name, TokenTree::Ident(_))).map(ToString::to_string),
            );
            if let TokenTree::Group(group) = last {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                self.use_tree(&inner, &path, is_reexport);
                continue;
            }
            path.truncate(
                path.len() - usize::from(path.len() > 1 && path.last().is_some_and(|name| name == "self")),
            );
            let name = alias.or_else(|| path.last().cloned());
            // A name that is not known yet is in this module.
            let path = self.resolve(&path).unwrap_or_else(|| [&self.module, &path[..]].concat());
            if let Some(name) = name.filter(|_| !is_glob) {
                self.names.insert(name, path.clone());
            }
            self.imports.push(Import { path, line: line(last), is_glob, is_reexport });
        }
    }
}

/// `src/pod/yaml.rs` and `src/pod/yaml/mod.rs` → `crate`, `pod`, `yaml`.
fn module_of(file: &str) -> Vec<String> {
    let inside = file.strip_prefix("src/").unwrap().strip_suffix(".rs").unwrap();
    let names = inside.split('/').filter(|name| *name != "mod" && inside != "lib");
    ["crate"].into_iter().chain(names).map(str::to_owned).collect()
}

/// The rules of a module, and of the parts of it that a file is in.
fn rules(module: &[String]) -> Vec<String> {
    let place = module[1..].join("/");
    let holds = |row: &&(&str, &[&str])| format!("{place}/").starts_with(&format!("{}/", row.0));
    let rows =
        RULES.iter().filter(holds).flat_map(|row| row.1.iter().flat_map(|rules| rules.split_whitespace()));
    let mut rules: Vec<String> = rows.map(str::to_owned).collect();
    rules.push(format!("crate::{}", module[1]));
    if module[1] != "host" {
        rules.extend(THROUGH_HOST.split_whitespace().map(str::to_owned));
    }
    let parts =
        SEPARATE.iter().find(|separate| separate.0 == module[1]).map_or(&[][..], |separate| separate.1);
    if let Some(own) = module.get(2).filter(|part| parts.contains(&part.as_str())) {
        rules.extend(
            parts.iter().filter(|part| *part != own).map(|part| format!("-crate::{}::{part}", module[1])),
        );
    }
    rules
}

/// Why an import is forbidden, if it is.
fn forbidden(rules: &[String], module: &str, import: &Import) -> Option<String> {
    let path = import.path.join("::");
    let begins = |rule: &str, path: &str| {
        path.strip_prefix(rule).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let matching = rules.iter().filter(|rule| begins(rule.trim_start_matches('-'), &path));
    let is_allowed = matching
        .max_by_key(|rule| rule.trim_start_matches('-').len())
        .is_some_and(|rule| !rule.starts_with('-'));
    let hides = import.is_glob
        && rules.iter().any(|rule| rule.strip_prefix('-').is_some_and(|rule| begins(&path, rule)));
    let star = if import.is_glob { "::*" } else { "" };
    (!is_allowed || hides).then(|| format!("the module `{module}` may not import `{path}{star}`"))
}

/// Reads one file and checks it against the rules.
fn read<'a>(name: &str, text: &str, crates: &'a BTreeSet<String>) -> File<'a> {
    let module = module_of(name);
    let top = module.get(1).map_or("lib", String::as_str).to_owned();
    let mut file = File {
        crates,
        module: module.clone(),
        names: BTreeMap::new(),
        imports: Vec::new(),
        children: Vec::new(),
        violations: Vec::new(),
    };
    match TokenStream::from_str(text) {
        Ok(tokens) => file.read(tokens),
        Err(error) => file.violations.push((error.span().start().line, format!("cannot be read: {error}"))),
    }
    let full = if module.len() > 1 { module } else { vec!["crate".to_owned(), top.clone()] };
    let rules = rules(&full);
    let found =
        file.imports.iter().filter_map(|import| Some((import.line, forbidden(&rules, &top, import)?)));
    file.violations.extend(found.collect::<Vec<_>>());
    if !text.starts_with("//! ") {
        file.violations.push((1, "the first line does not describe the file: `//! …`".to_owned()));
    }
    if !RULES.iter().any(|row| row.0 == top) {
        file.violations.push((1, format!("the module `{top}` has no dependency rules")));
    }
    if top == "supervise" {
        let domain = text.lines().enumerate().filter(|(_, line)| line.to_lowercase().contains("pod"));
        file.violations.extend(domain.map(|(index, _)| (index + 1, "`supervise` knows no pods".to_owned())));
    }
    file.violations.sort_by_key(|violation| violation.0);
    file
}

/// The file that defines the item at a path; re-exported names are followed to their origin.
fn definition<'a>(path: &[String], files: &'a BTreeMap<&str, File<'_>>) -> Option<&'a str> {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let depth = |module: &Vec<String>| path.starts_with(module) && module.len() < path.len();
        let (name, file) = files
            .iter()
            .filter(|(name, _)| **name != "src/main.rs" && depth(&module_of(name)))
            .max_by_key(|(name, _)| module_of(name).len())?;
        let module = module_of(name);
        match file.names.get(&path[module.len()]) {
            Some(origin) if *origin != path[..=module.len()] => {
                path = [origin, &path[module.len() + 1..]].concat();
            }
            // The path of a module and not of an item in it.
            _ if files.keys().any(|name| module_of(name) == path) => return None,
            _ => return Some(name),
        }
    }
    None
}

/// The imports that are part of a cycle between files of one module, or lie between two cycles.
fn cycles(files: &BTreeMap<&str, File<'_>>) -> Vec<String> {
    let mut edges = BTreeSet::new();
    for (from, file) in files {
        for import in file.imports.iter().filter(|import| !import.is_reexport) {
            let to = definition(&import.path, files).filter(|to| to != from);
            edges
                .extend(to.filter(|to| module_of(to).get(1) == module_of(from).get(1)).map(|to| (*from, to)));
        }
    }
    loop {
        let is_inner = |edge: &&(&str, &str)| {
            edges.iter().any(|other| other.0 == edge.1) && edges.iter().any(|other| other.1 == edge.0)
        };
        let inner: BTreeSet<_> = edges.iter().filter(is_inner).copied().collect();
        if inner.len() == edges.len() {
            return edges.iter().map(|(from, to)| format!("{from} imports {to} in a cycle")).collect();
        }
        edges = inner;
    }
}

/// All violations in the files of `src/`.
fn violations(texts: &BTreeMap<String, String>, crates: &BTreeSet<String>) -> Vec<String> {
    let files: BTreeMap<&str, File<'_>> =
        texts.iter().map(|(name, text)| (name.as_str(), read(name, text, crates))).collect();
    let mut found = Vec::new();
    for (name, file) in &files {
        found.extend(file.violations.iter().map(|(line, why)| format!("{name}:{line}: {why}")));
        let stem = name.strip_suffix(".rs").unwrap();
        if files.keys().any(|other| other.starts_with(&format!("{stem}/"))) {
            found.push(format!("{name}:1: a module with children is in {stem}/mod.rs"));
        }
        let is_root = matches!(*name, "src/lib.rs" | "src/main.rs");
        let stem = stem.strip_suffix("/mod").unwrap_or(stem);
        if !is_root && !files.values().any(|parent| parent.children.iter().any(|child| child == stem)) {
            found.push(format!("{name}:1: no `mod` names this file, so it is not compiled"));
        }
    }
    found.extend(cycles(&files));
    found
}

/// The names that the first segment of a path can have: the dependencies and the standard library.
fn crates(cargo_toml: &str) -> BTreeSet<String> {
    let section = cargo_toml.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names = section
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once([' ', '=', '.']))
        .filter(|(name, _)| !name.is_empty() && !name.starts_with('#'))
        .map(|(name, _)| name.replace('-', "_"));
    names.chain(["std".to_owned()]).collect()
}

fn read_directory(directory: &Path, root: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_directory(&path, root, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            texts.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_module_keeps_the_dependency_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = BTreeMap::new();
    read_directory(&root.join("src"), root, &mut texts);
    assert!(texts.contains_key("src/lib.rs") && texts.contains_key("src/main.rs"));
    let crates = crates(&fs::read_to_string(root.join("Cargo.toml")).unwrap());
    let found = violations(&texts, &crates);
    assert!(found.is_empty(), "{} violations of the dependency rules:\n{}", found.len(), found.join("\n"));
}

/// Checks one file with `//! Some file.` as its first line.
fn check(name: &str, text: &str, expected: &[&str]) {
    let crates = ["std", "anyhow", "clap", "jiff", "kube", "serde", "tokio", "tracing", "uuid"];
    let crates = crates.map(str::to_owned).into();
    let file = read(name, &format!("//! Some file.\n{text}"), &crates);
    let found: Vec<_> = file.violations.iter().map(|(line, why)| format!("{line}: {why}")).collect();
    assert_eq!(found, expected, "in {text}");
}

/// Checks that each line imports one path that is forbidden.
fn check_forbidden(name: &str, cases: &[(&str, &str)]) {
    let module = name.split(['/', '.']).nth(1).unwrap();
    for (text, path) in cases {
        check(name, text, &[&format!("2: the module `{module}` may not import `{path}`")]);
    }
}

#[test]
fn imports_are_found_in_use_trees_expressions_types_attributes_and_macros() {
    check_forbidden(
        "src/pod/x.rs",
        &[
            ("use tokio::sync::mpsc;", "tokio::sync::mpsc"),
            ("use std::{fmt, sync::Arc};use ::{serde, tokio::{time}};", "tokio::time"),
            ("fn f() { tokio::task::yield_now(); }", "tokio::task::yield_now"),
            ("fn f(_: Vec<Option<tokio::time::Instant>>) {}", "tokio::time::Instant"),
            ("#[tokio::main] fn f() {}", "tokio::main"),
            ("#[derive(Debug, tokio::X)] struct F;", "tokio::X"),
            ("fn f() { println!(\"{}\", a::<B>(1 + tokio::time::f())); }", "tokio::time::f"),
            ("macro_rules! m { () => { tokio::pin!(x) } }", "tokio::pin"),
            ("use tokio as calm;", "tokio"),
            ("use tokio::*;", "tokio::*"),
            ("impl<T: tokio::io::AsyncRead> A for B<T> {}", "tokio::io::AsyncRead"),
        ],
    );
    let text = "use std::{\n    fmt,\n    fs,\n};\n\nfn f() {\n    std::env::var(\"X\");\n}";
    let module = "the module `storage` may not import";
    check(
        "src/storage/x.rs",
        text,
        &[&format!("4: {module} `std::fs`"), &format!("8: {module} `std::env::var`")],
    );
}

#[test]
fn aliases_globs_and_other_names_hide_nothing() {
    check_forbidden(
        "src/pod/x.rs",
        &[
            ("use std as s; fn f() { s::fs::read(\"x\"); }", "std::fs::read"),
            ("use std::*;", "std::*"),
            ("use core::task::Poll;", "std::task::Poll"),
            ("mod inner { use super::super::super::storage::Merged; }", "crate::storage::Merged"),
            ("use crate::PodUpdate;", "crate::PodUpdate"),
        ],
    );
    let module = "2: the module `pod` may not import";
    let text = "use super::super as root; fn f() { root::mux::f(); }";
    check("src/pod/x.rs", text, &[&format!("{module} `crate`"), &format!("{module} `crate::mux::f`")]);
    check("src/pod/x.rs", "extern crate tokio;", &["2: `extern crate` hides imports: use the crate's name"]);
}

#[test]
fn words_are_not_imports() {
    let text = "use std::sync::Arc;\nstruct A { env: u8, fs: u8 }\n/// Not tokio::spawn.\npub(crate) fn f(a: &A) -> u8 \
        { let env = a.env; let text = \"std::fs::read\"; vec![env, a.fs, env::LIMIT, B::fs]; env }";
    check("src/pod/x.rs", text, &[]);
    check(
        "src/pod/mod.rs",
        "mod yaml;\npub use yaml::{Tree, self as y};\nuse self::yaml::X;\nuse super::pod::Y;",
        &[],
    );
}

#[test]
fn a_module_imports_what_its_rules_allow() {
    check("src/source/file.rs", "use crate::{host::Host, mux::SourceChannel, pod::Listing};", &[]);
    check("src/mux.rs", "async fn f() {}", &[]);
    check("src/cli/run.rs", "use std::env;use anyhow::Result;use clap::Parser;use crate::settings;", &[]);
    for (file, text, path) in [
        ("src/source/file.rs", "use crate::mux::{Mux, SourceChannel};", "crate::mux::Mux"),
        ("src/sink/jsonl.rs", "use crate::mux::SourceChannel;", "crate::mux::SourceChannel"),
        ("src/server/x.rs", "use crate::storage::{Merged, PodStorage};", "crate::storage::PodStorage"),
        ("src/server/x.rs", "use crate::settings::Listen;", "crate::settings::Listen"),
        ("src/mux.rs", "use crate::{host, storage::Merged};", "crate::host"),
        ("src/mux.rs", "fn f() { tokio::spawn(g()); }", "tokio::spawn"),
        ("src/db/mod.rs", "use crate::{db::Change, source::http};", "crate::source::http"),
        ("src/main.rs", "fn main() { podmux::agent::run(); }", "crate::agent::run"),
        ("src/storage/x.rs", "use std::sync::Mutex;", "std::sync::Mutex"),
        ("src/source/url.rs", "use crate::source::{Shared, file::File};", "crate::source::file::File"),
        ("src/source/file/scan.rs", "use super::super::api::X;use super::watch;", "crate::source::api::X"),
        ("src/sink/jsonl/mod.rs", "use crate::sink::webhook;", "crate::sink::webhook"),
        ("src/source/x.rs", "fn f() { std::fs::read(1); }", "std::fs::read"),
        ("src/history/mod.rs", "use jiff::Timestamp;fn f() { Timestamp::now(); }", "jiff::Timestamp::now"),
        ("src/cli/x.rs", "fn f() { uuid::Uuid::new_v4(); }", "uuid::Uuid::new_v4"),
    ] {
        check_forbidden(file, &[(text, path)]);
    }
    for file in ["src/source/file.rs", "src/sink/jsonl.rs", "src/server/mod.rs", "src/mux.rs"] {
        let cases = [("use anyhow::Result;", "anyhow::Result"), ("use clap::Parser;", "clap::Parser")];
        check_forbidden(file, &cases);
        check_forbidden(file, &[("use std::env;", "std::env")]);
    }
    check("src/sink/mod.rs", "pub mod jsonl; pub mod webhook; pub use jsonl::X; pub use webhook::Y;", &[]);
    check("src/utils.rs", "", &["1: the module `utils` has no dependency rules"]);
}

#[test]
fn nothing_is_async_in_pure_modules() {
    for text in [
        "async fn f() {}",
        "fn f() { g().await; }",
        "fn f() { async { 1 }; }",
        "fn f() { g(async || 1); }",
        "fn f() { vec![async { 1 }]; }",
    ] {
        check("src/storage/mod.rs", text, &["2: nothing is async in the module `storage`"]);
    }
}

#[test]
fn a_file_has_a_first_line_and_its_place() {
    let crates = BTreeSet::new();
    let file = read("src/pod/x.rs", "\n//! Too late.\n", &crates);
    assert_eq!(file.violations, [(1, "the first line does not describe the file: `//! …`".to_owned())]);
    check(
        "src/pod/mod.rs",
        "#[path = \"elsewhere.rs\"]\nmod yaml;",
        &["2: a module is in the file of its name, not at a #[path]"],
    );
    check("src/supervise.rs", "struct Tasks;\nstruct PodTask;", &["3: `supervise` knows no pods"]);
}

/// Checks some files together, each with `//! Some file.` as its first line.
fn check_files(files: &[(&str, &str)], expected: &[&str]) {
    let texts = files.iter().map(|(name, text)| ((*name).to_owned(), format!("//! Some file.\n{text}")));
    assert_eq!(violations(&texts.collect(), &BTreeSet::from(["std".to_owned()])), expected);
}

#[test]
fn a_file_that_no_mod_names_is_found() {
    check_files(
        &[
            ("src/lib.rs", "pub mod pod;\nmod storage { mod deep; }"),
            ("src/pod/mod.rs", "mod yaml;"),
            ("src/pod/yaml/mod.rs", "#[cfg(test)] mod tests;"),
            ("src/pod/yaml/tests.rs", ""),
            ("src/pod/lost.rs", ""),
            ("src/storage/deep.rs", ""),
        ],
        &["src/pod/lost.rs:1: no `mod` names this file, so it is not compiled"],
    );
}

#[test]
fn a_module_with_children_has_one_style() {
    check_files(
        &[("src/lib.rs", "mod pod;"), ("src/pod.rs", "mod key;"), ("src/pod/key.rs", "")],
        &["src/pod.rs:1: a module with children is in src/pod/mod.rs"],
    );
}

#[test]
fn import_cycles_are_found_and_re_exports_are_none() {
    let lib = ("src/lib.rs", "mod pod;");
    let parent = ("src/pod/mod.rs", "mod a; mod b; pub use a::A; pub use b::B; struct Root;");
    // Each child imports the other's type through the parent.
    check_files(
        &[lib, parent, ("src/pod/a.rs", "use super::B;"), ("src/pod/b.rs", "use super::{A};")],
        &["src/pod/a.rs imports src/pod/b.rs in a cycle", "src/pod/b.rs imports src/pod/a.rs in a cycle"],
    );
    check_files(
        &[lib, parent, ("src/pod/a.rs", ""), ("src/pod/b.rs", "use super::{A, a}; fn f() { a::g(); }")],
        &[],
    );
    // A parent that uses its child, and a child that uses what the parent defines.
    let parent = ("src/pod/mod.rs", "mod a; struct Root; fn f() { a::g(); }");
    check_files(
        &[lib, parent, ("src/pod/a.rs", "fn g(_: super::Root) {}")],
        &["src/pod/a.rs imports src/pod/mod.rs in a cycle", "src/pod/mod.rs imports src/pod/a.rs in a cycle"],
    );
}

#[test]
fn the_crates_are_read_from_the_manifest() {
    let text = "[package]\nname = \"x\"\n\n[dependencies]\n# kept lean\nk8s-openapi = { version = \"1\" }\n\
        serde.workspace = true\n\n[dev-dependencies]\nsyn = \"2\"\n";
    assert_eq!(crates(text), ["std", "k8s_openapi", "serde"].map(str::to_owned).into());
}
