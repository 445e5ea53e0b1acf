//! The law of the rooms: which room of `src/` may know which other, and which crates.
//!
//! The table is the law (ARCHITECTURE.md explains it). What is read is paths in
//! use-trees, expressions, types, attributes and macro calls, not words: a pod
//! has a field `env`, and that is no reason to forbid the letters.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{LineColumn, TokenStream, TokenTree};
use syn::{UseTree, visit::Visit};

/// A room's name and its rules: `+path` may be used, `-path` may not. The
/// longest rule that begins a path decides it; a path that no rule begins may
/// not be used.
type Row = (&'static str, &'static [&'static [&'static str]]);

/// The language, the nouns' encodings, time values. Nothing that waits, locks
/// or looks at the world.
const PURE: &[&str] = &[
    "+std",
    "-std::fs",
    "-std::net",
    "-std::env",
    "-std::os",
    "-std::process",
    "-std::thread",
    "-std::time::SystemTime",
    "-std::time::Instant",
    "-std::future",
    "-std::task",
    "-std::io::stdin",
    "-std::io::stdout",
    "-std::io::stderr",
    "-std::sync",
    "+std::sync::Arc",
    "+std::sync::Weak",
    "+std::sync::LazyLock",
    "+std::sync::OnceLock",
    "+base64",
    "+granit_parser",
    "+imbl",
    "+k8s_openapi",
    "+serde",
    "+serde_json",
    "+sha2",
    "+thiserror",
    "+jiff",
    "-jiff::Timestamp::now",
    "-jiff::Zoned::now",
    "-jiff::tz::TimeZone::system",
    "+uuid",
    "-uuid::Uuid::new_v4",
    "-uuid::Uuid::now_v7",
];

/// What every room outside the heart may use. The environment is for the edge.
const ASYNC: &[&str] = &[
    "+std",
    "-std::env",
    "-std::process",
    "-std::thread",
    "+jiff",
    "+rustix",
    "+serde",
    "+serde_json",
    "+thiserror",
    "+tokio",
    "+tokio_util",
    "+tracing",
];

/// The rooms at the edge, where text comes in and an exit code goes out.
const EDGE: &[&str] = &["+std::env", "+std::process", "+std::thread", "+anyhow"];

#[rustfmt::skip]
const LAW: &[Row] = &[
    ("pod", &[PURE, &["+crate::pod"]]),
    ("validation", &[PURE, &[
        "+crate::validation", "+crate::pod",
        // What an address is; nothing is connected.
        "+std::net::Ipv4Addr", "+std::net::Ipv6Addr",
    ]]),
    ("storage", &[PURE, &["+crate::storage", "+crate::pod"]]),
    // What the command line and the server say of times must read the same.
    ("age", &[&["+jiff"]]),
    ("causes", &[&["+std::error", "+std::fmt"]]),
    ("clock", &[&["+std", "+jiff"]]),
    ("mux", &[&[
        "+std", "-std::env", "-std::fs", "-std::net", "-std::process", "-std::thread",
        "+tokio::sync", "+tokio::select", "+tokio::pin", "+tokio_util::sync", "+tracing",
        "+crate::mux", "+crate::pod", "+crate::storage",
    ]]),
    ("history", &[&[
        "+std", "-std::env", "-std::fs", "-std::net", "-std::process", "-std::thread",
        "+thiserror", "+tokio::sync", "+tokio::select", "+tokio::time", "+tracing",
        "+crate::history", "+crate::pod", "+crate::clock", "+crate::db",
        "+crate::storage::Merged", "+crate::storage::everything",
        "+crate::mux::Updates",
    ]]),
    ("client", &[ASYNC, &[
        "+base64", "+bytes", "+http", "+http_body_util", "+hyper", "+hyper_rustls", "+hyper_util", "+rustls", "+tower_service",
        "+crate::client",
    ]]),
    ("source", &[ASYNC, &[
        "+base64", "+bytes", "+http", "+http_body", "+http_body_util", "+hyper", "+hyper_rustls", "+hyper_util", "+imbl",
        "+k8s_openapi", "+kube", "+notify", "+rustls", "+secrecy", "+sha2", "+tower_service", "+uuid",
        // What a credential plugin reads from and writes to; tokio runs it.
        "+std::process::Stdio",
        // What the reflector counts; the server only shows it.
        "+prometheus_client::metrics",
        "+crate::source", "+crate::pod", "+crate::validation", "+crate::db", "+crate::clock", "+crate::causes",
        "+crate::client",
        "+crate::mux::SourceChannel",
        // What the sinks have acknowledged: the way back to the posted set.
        "+crate::storage::Delivered",
        // Scoped threads end before the call does: no task without an owner.
        "+std::thread::scope", "+std::thread::available_parallelism", "+std::thread::ScopedJoinHandle",
    ]]),
    ("sink", &[ASYNC, &[
        "+http", "+hyper", "+hyper_util",
        "+crate::sink", "+crate::pod", "+crate::db", "+crate::clock", "+crate::causes",
        "+crate::mux::Updates",
        // What it has acknowledged, as it reports it.
        "+crate::storage::Delivered",
    ]]),
    ("server", &[ASYNC, &[
        "+axum", "+bytes", "+http", "+http_body_util", "+hyper", "+hyper_util", "+prometheus_client",
        "+base64", "+rustls", "+sha2", "+subtle", "+tokio_rustls", "+tower_service",
        // Random letters at the end of generated names.
        "+uuid::Uuid",
        // What it is built for, for /version.
        "+std::env::consts",
        // Why a write was not stored.
        "+crate::db::DbError",
        "+crate::age", "+crate::causes", "+crate::server", "+crate::pod", "+crate::validation", "+crate::clock", "+crate::history",
        "+crate::storage::Merged", "+crate::storage::SourceState",
        "+crate::source::http", "+crate::source::SourceStatus", "+crate::source::SourceFailing",
        "+crate::source::ReflectorStatus", "+crate::source::api::ReflectorMetrics",
        // Where it listens and whom it lets in is as it was said; nothing is gained by saying it twice.
        "+crate::settings::CertificateFiles", "+crate::settings::Listen", "+crate::settings::ServerSettings",
        // The sockets that were passed, with what the settings know of them.
        "+crate::settings::PassedListener", "+crate::settings::PassedSocket",
    ]]),
    ("db", &[&[
        "+std", "-std::env", "-std::net", "-std::process", "-std::thread",
        "+redb", "+rustix", "+serde", "+serde_json", "+sha2", "+thiserror", "+tokio::sync", "+tracing", "+uuid",
        "+crate::db",
    ]]),
    ("supervise", &[&[
        "+std", "-std::env", "-std::fs", "-std::net", "-std::process", "-std::thread",
        "+thiserror", "+tokio", "+tokio_util", "+tracing",
        "+crate::supervise",
    ]]),
    ("systemd", &[&[
        "+std", "-std::env", "-std::fs", "-std::process", "-std::thread",
        "+rustix", "+tokio::net::UnixDatagram", "+tracing",
        "+crate::systemd",
    ]]),
    ("telemetry", &[&[
        "+std", "-std::env", "-std::net", "-std::process", "-std::thread", "+std::thread::Builder",
        "+rustix", "+thiserror", "+tracing", "+tracing_subscriber",
        "+crate::telemetry", "+crate::clock", "+crate::settings",
    ]]),
    ("settings", &[&[
        "+std", "+std::env", "-std::net::TcpStream", "-std::process", "-std::thread",
        "+http", "+rustix", "+serde", "+serde_json", "+thiserror",
        // Sockets that are passed are announced in the environment.
        "+listenfd",
        "+crate::settings", "+crate::pod", "+crate::mux::Notify",
    ]]),
    ("agent", &[ASYNC, EDGE, &["+crate", "-crate::cli"]]),
    ("cli", &[ASYNC, EDGE, &[
        "+bytes", "+clap", "+clap_complete", "+http", "+tokio",
        "+crate::cli", "+crate::client", "+crate::age", "+crate::agent", "+crate::clock", "+crate::pod", "+crate::settings",
        "+crate::systemd", "+crate::telemetry", "+crate::validation",
        // `validate` finds and reads manifests as the source does.
        "+crate::source::file::Contents", "+crate::source::file::contents",
        "+crate::source::file::read_manifest",
    ]]),
    ("lib", &[&["+crate"]]),
    ("main", &[EDGE, &["+std", "+crate::cli"]]),
];

/// The parts of a room that must not know each other.
const STRANGERS: &[(&str, &[&str])] =
    &[("source", &["file", "http", "url", "api"]), ("sink", &["jsonl", "exec", "webhook", "podman"])];

/// The rooms in which nothing is `async`.
const SYNC: &[&str] = &["pod", "validation", "storage", "clock", "settings", "telemetry"];

/// Where the paths of one file lead, and which of them may not.
struct Reader<'a> {
    file: &'a str,
    room: &'a str,
    crates: &'a BTreeSet<String>,
    /// The module that is being read, from the crate's root.
    module: Vec<String>,
    /// What the file's use-trees call what.
    aliases: BTreeMap<String, Vec<String>>,
    breaches: Vec<String>,
}

impl Reader<'_> {
    fn breach(&mut self, at: LineColumn, what: &str) {
        self.breaches.push(format!("{}:{}: {what}", self.file, at.line));
    }

    /// The path from the crate's root or a crate's name on. `None` for what is
    /// local: a type, a variant, a generic's associated item.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let below = |root: &[String], rest: &[String]| Some([root, rest].concat());
        match first {
            "crate" | "podmux" => below(&["crate".to_owned()], &path[1..]),
            "self" => below(&self.module, &path[1..]),
            "super" => {
                let mut module = self.module.clone();
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                module.truncate(module.len().saturating_sub(ups).max(1));
                below(&module, &path[ups..])
            }
            _ => match self.aliases.get(first) {
                Some(root) => below(root, &path[1..]),
                None => self.crates.contains(first).then(|| path.to_vec()),
            },
        }
    }

    fn judge(&mut self, at: LineColumn, path: &[String], glob: bool) {
        // `core` and `alloc` are `std` by another name.
        let mut path = path.to_vec();
        if path[0] == "core" || path[0] == "alloc" {
            "std".clone_into(&mut path[0]);
        }
        let path = path.join("::");
        let begins = |rule: &str, path: &str| {
            path.strip_prefix(rule).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let rules = rules(self.room, self.file);
        let decided = rules.iter().filter(|rule| begins(&rule[1..], &path)).max_by_key(|rule| rule.len());
        let allowed = decided.is_some_and(|rule| rule.starts_with('+'));
        let hidden = glob && rules.iter().any(|rule| rule.starts_with('-') && begins(&path, &rule[1..]));
        if !allowed || hidden {
            let star = if glob { "::*" } else { "" };
            self.breach(at, &format!("the room `{}` may not use `{path}{star}`", self.room));
        }
    }

    fn use_tree(&mut self, prefix: &[String], tree: &UseTree) {
        let longer = |name: &syn::Ident| {
            let mut path = prefix.to_vec();
            if name != "self" || path.is_empty() {
                path.push(name.to_string());
            }
            path
        };
        match tree {
            UseTree::Path(path) => self.use_tree(&longer(&path.ident), &path.tree),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(prefix, tree);
                }
            }
            UseTree::Glob(glob) => self.used(glob.star_token.span.start(), prefix, None, true),
            UseTree::Name(name) => {
                let path = longer(&name.ident);
                let alias = path.last().cloned();
                self.used(name.ident.span().start(), &path, alias, false);
            }
            UseTree::Rename(rename) => {
                let alias = rename.rename.to_string();
                self.used(rename.ident.span().start(), &longer(&rename.ident), Some(alias), false);
            }
        }
    }

    fn used(&mut self, at: LineColumn, path: &[String], alias: Option<String>, glob: bool) {
        // What is not known by name is beside or below this module.
        let path = self.resolve(path).unwrap_or_else(|| [&self.module, path].concat());
        self.judge(at, &path, glob);
        if let Some(alias) = alias {
            self.aliases.insert(alias, path);
        }
    }

    fn mentioned(&mut self, at: LineColumn, path: &[String]) {
        if path.len() > 1
            && let Some(path) = self.resolve(path)
        {
            self.judge(at, &path, false);
        }
    }

    fn no_async(&mut self, at: LineColumn) {
        if SYNC.contains(&self.room) {
            self.breach(at, &format!("nothing is async in the room `{}`", self.room));
        }
    }

    /// What the parser leaves as tokens: the inside of macro calls and attributes.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut at, mut colons) = (LineColumn { line: 0, column: 0 }, 0);
        for token in tokens {
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.mentioned(at, &std::mem::take(&mut path));
                        at = ident.span().start();
                    }
                    path.push(ident.to_string());
                    if ident == "async" || ident == "await" {
                        self.no_async(ident.span().start());
                    }
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            if !matches!(token, TokenTree::Ident(_)) {
                self.mentioned(at, &std::mem::take(&mut path));
            }
            colons = 0;
        }
        self.mentioned(at, &path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&[], &item.tree);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        self.breach(
            item.ident.span().start(),
            "`extern crate` hides where a path leads: use the crate's name",
        );
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.mentioned(path.segments[0].ident.span().start(), &names);
        syn::visit::visit_path(self, path);
    }

    /// `pub(crate)` and `pub(super)` lead nowhere.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            self.breach(
                item.ident.span().start(),
                "a module stands in the file of its own name, not at a #[path]",
            );
        }
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.visit_path(&list.path);
        self.tokens(list.tokens.clone());
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let Some(word) = &signature.asyncness {
            self.no_async(word.span.start());
        }
        syn::visit::visit_signature(self, signature);
    }

    fn visit_expr_async(&mut self, block: &'ast syn::ExprAsync) {
        self.no_async(block.async_token.span.start());
        syn::visit::visit_expr_async(self, block);
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        if let Some(word) = &closure.asyncness {
            self.no_async(word.span.start());
        }
        syn::visit::visit_expr_closure(self, closure);
    }

    fn visit_expr_await(&mut self, wait: &'ast syn::ExprAwait) {
        self.no_async(wait.await_token.span.start());
        syn::visit::visit_expr_await(self, wait);
    }
}

/// `src/pod/yaml.rs` → `crate`, `pod`, `yaml`.
fn module_of(file: &str) -> Vec<String> {
    let inside = file.strip_prefix("src/").unwrap().strip_suffix(".rs").unwrap();
    let names = inside.split('/').filter(|name| !["mod", "lib", "main"].contains(name));
    ["crate"].into_iter().chain(names).map(str::to_owned).collect()
}

/// `src/pod/yaml.rs` → `pod`, `src/main.rs` → `main`.
fn room_of(file: &str) -> &str {
    file.strip_prefix("src/").unwrap().split(['/', '.']).next().unwrap()
}

/// The rules that a file is held to.
fn rules(room: &str, file: &str) -> Vec<String> {
    let row = LAW.iter().find(|row| row.0 == room);
    let mut rules: Vec<_> = row.into_iter().flat_map(|row| row.1.concat()).map(str::to_owned).collect();
    let module = module_of(file);
    for (_, parts) in STRANGERS.iter().filter(|strangers| strangers.0 == room) {
        if let Some(own) = module.get(2).filter(|part| parts.contains(&part.as_str())) {
            let others = parts.iter().filter(|part| *part != own);
            rules.extend(others.map(|part| format!("-crate::{room}::{part}")));
        }
    }
    rules
}

/// Everything in one file that the law forbids, as `file:line: what`.
fn breaches(file: &str, text: &str, crates: &BTreeSet<String>) -> Vec<String> {
    let room = room_of(file);
    let mut reader = Reader {
        file,
        room,
        crates,
        module: module_of(file),
        aliases: BTreeMap::new(),
        breaches: Vec::new(),
    };
    let start = LineColumn { line: 1, column: 0 };
    if !text.starts_with("//! ") {
        reader.breach(start, "the first line does not say what the file is for: `//! …`");
    }
    if !LAW.iter().any(|row| row.0 == room) {
        reader.breach(start, &format!("the room `{room}` has no row in the law"));
    }
    if room == "supervise" {
        for (index, line) in text.lines().enumerate().filter(|line| line.1.to_lowercase().contains("pod")) {
            let at = LineColumn { line: index + 1, column: 0 };
            reader.breach(at, &format!("`supervise` knows no domain word: {}", line.trim()));
        }
    }
    match syn::parse_file(text) {
        Ok(syntax) => reader.visit_file(&syntax),
        Err(error) => reader.breach(error.span().start(), &format!("cannot be read: {error}")),
    }
    reader.breaches
}

/// The files that no `mod` names, given every file of `src/`.
fn orphans(files: &BTreeMap<String, String>) -> Vec<String> {
    fn walk(
        file: &str,
        module: &str,
        items: &[syn::Item],
        files: &BTreeMap<String, String>,
        seen: &mut BTreeSet<String>,
    ) {
        seen.insert(file.to_owned());
        for item in items {
            let syn::Item::Mod(item) = item else { continue };
            let below = format!("{module}/{}", item.ident);
            if let Some((_, inside)) = &item.content {
                walk(file, &below, inside, files, seen);
                continue;
            }
            for file in [format!("{below}.rs"), format!("{below}/mod.rs")] {
                if let Some(text) = files.get(&file) {
                    walk(&file, &below, &syn::parse_file(text).unwrap().items, files, seen);
                }
            }
        }
    }
    let mut seen = BTreeSet::new();
    for root in ["src/lib.rs", "src/main.rs"] {
        if let Some(text) = files.get(root) {
            walk(root, "src", &syn::parse_file(text).unwrap().items, files, &mut seen);
        }
    }
    files
        .keys()
        .filter(|file| !seen.contains(*file))
        .map(|file| format!("{file}:1: no `mod` names this file, so nobody compiles it"))
        .collect()
}

/// The names that the first segment of a path can have: the dependencies, and what the language brings.
fn crates(cargo_toml: &str) -> BTreeSet<String> {
    let section = cargo_toml.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names = section
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once([' ', '=', '.']))
        .filter(|(name, _)| !name.is_empty() && !name.starts_with('#'))
        .map(|(name, _)| name.replace('-', "_"));
    names.chain(["std", "core", "alloc"].map(str::to_owned)).collect()
}

fn read(directory: &Path, root: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, root, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_law_of_the_rooms_holds() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeMap::new();
    read(&root.join("src"), &root, &mut files);
    assert!(files.contains_key("src/lib.rs") && files.contains_key("src/main.rs"));
    let crates = crates(&fs::read_to_string(root.join("Cargo.toml")).unwrap());
    let mut found: Vec<_> = files.iter().flat_map(|(file, text)| breaches(file, text, &crates)).collect();
    found.extend(orphans(&files));
    assert!(found.is_empty(), "the law of the rooms is broken:\n{}", found.join("\n"));
}

/// What the law says of a file, with `//! Some file.` as its first line.
fn check(file: &str, text: &str, expected: &[&str]) {
    let crates = ["std", "core", "alloc", "anyhow", "clap", "kube", "serde", "tokio", "tracing"];
    let crates = crates.map(str::to_owned).into();
    let found = breaches(file, &format!("//! Some file.\n{text}"), &crates);
    let expected: Vec<_> = expected.iter().map(|line| format!("{file}:{line}")).collect();
    assert_eq!(found, expected, "in {text}");
}

#[test]
fn a_forbidden_crate_is_found_in_use_trees_expressions_types_attributes_and_macros() {
    let forbidden = "the room `pod` may not use `tokio";
    for (text, path) in [
        ("use tokio::sync::mpsc;", "::sync::mpsc`"),
        ("use std::{fmt, sync::Arc};use ::{serde, tokio::{time}};", "::time`"),
        ("fn f() { tokio::task::yield_now(); }", "::task::yield_now`"),
        ("fn f(_: Vec<Option<tokio::time::Instant>>) {}", "::time::Instant`"),
        ("#[tokio::main]\nfn f() {}", "::main`"),
        ("#[derive(Debug, tokio::X)]\nstruct F;", "::X`"),
        ("fn f() { println!(\"{}\", a::<B>(1 + tokio::time::f())); }", "::time::f`"),
        ("macro_rules! m { () => { tokio::pin!(x) } }", "::pin`"),
        ("use tokio as calm;", "`"),
        ("use tokio::*;", "::*`"),
        ("impl<T: tokio::io::AsyncRead> A for B<T> {}", "::io::AsyncRead`"),
    ] {
        check("src/pod/x.rs", text, &[&format!("2: {forbidden}{path}")]);
    }
}

#[test]
fn the_line_of_a_breach_is_that_of_the_path() {
    check(
        "src/storage/merged.rs",
        "use std::{\n    fmt,\n    fs,\n};\n\nfn f() {\n    std::env::var(\"X\");\n}",
        &["4: the room `storage` may not use `std::fs`", "8: the room `storage` may not use `std::env::var`"],
    );
}

#[test]
fn an_alias_a_glob_and_a_way_round_hide_nothing() {
    check(
        "src/pod/x.rs",
        "use std as s; fn f() { s::fs::read(\"x\"); }",
        &["2: the room `pod` may not use `std::fs::read`"],
    );
    check("src/pod/x.rs", "use std::*;", &["2: the room `pod` may not use `std::*`"]);
    check("src/pod/x.rs", "use core::task::Poll;", &["2: the room `pod` may not use `std::task::Poll`"]);
    check(
        "src/pod/x.rs",
        "use super::super as root; fn f() { root::mux::f(); }",
        &["2: the room `pod` may not use `crate`", "2: the room `pod` may not use `crate::mux::f`"],
    );
    check(
        "src/pod/yaml/mod.rs",
        "mod inner { use super::super::super::storage::Merged; }",
        &["2: the room `pod` may not use `crate::storage::Merged`"],
    );
    check(
        "src/pod/x.rs",
        "extern crate tokio;",
        &["2: `extern crate` hides where a path leads: use the crate's name"],
    );
}

#[test]
fn words_are_not_paths() {
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
fn a_room_sees_of_another_what_its_row_says() {
    check("src/source/file.rs", "use crate::{clock, mux::SourceChannel, pod::Listing};", &[]);
    check(
        "src/source/file.rs",
        "use crate::mux::{Mux, SourceChannel};",
        &["2: the room `source` may not use `crate::mux::Mux`"],
    );
    check(
        "src/sink/jsonl.rs",
        "use crate::mux::SourceChannel;",
        &["2: the room `sink` may not use `crate::mux::SourceChannel`"],
    );
    check(
        "src/server/routes.rs",
        "use crate::{sink, storage::{Merged, PodStorage}};",
        &[
            "2: the room `server` may not use `crate::sink`",
            "2: the room `server` may not use `crate::storage::PodStorage`",
        ],
    );
    check(
        "src/mux.rs",
        "use crate::{clock, storage::Merged};",
        &["2: the room `mux` may not use `crate::clock`"],
    );
    check("src/mux.rs", "fn f() { tokio::spawn(g()); }", &["2: the room `mux` may not use `tokio::spawn`"]);
    check(
        "src/db/mod.rs",
        "use crate::{db::Change, source::http};",
        &["2: the room `db` may not use `crate::source::http`"],
    );
    check("src/sink/mod.rs", "use crate::PodUpdate;", &["2: the room `sink` may not use `crate::PodUpdate`"]);
    check(
        "src/main.rs",
        "fn main() { podmux::agent::run(); }",
        &["2: the room `main` may not use `crate::agent::run`"],
    );
}

#[test]
fn flags_environment_and_anyhow_stay_at_the_edge() {
    for file in ["src/source/file.rs", "src/sink/jsonl.rs", "src/server/mod.rs", "src/mux.rs"] {
        let room = room_of(file);
        check(file, "use anyhow::Result;", &[&format!("2: the room `{room}` may not use `anyhow::Result`")]);
        check(file, "use clap::Parser;", &[&format!("2: the room `{room}` may not use `clap::Parser`")]);
        check(file, "use std::env;", &[&format!("2: the room `{room}` may not use `std::env`")]);
    }
    check("src/cli/run.rs", "use std::env;use anyhow::Result;use clap::Parser;", &[]);
}

#[test]
fn sources_are_strangers_to_each_other_and_so_are_sinks() {
    check(
        "src/source/url.rs",
        "use crate::source::{Shared, file::File};",
        &["2: the room `source` may not use `crate::source::file::File`"],
    );
    check(
        "src/source/file/scan.rs",
        "use super::super::api;use super::watch;",
        &["2: the room `source` may not use `crate::source::api`"],
    );
    check(
        "src/sink/exec/mod.rs",
        "use crate::sink::podman;",
        &["2: the room `sink` may not use `crate::sink::podman`"],
    );
    check(
        "src/sink/mod.rs",
        "pub mod exec; pub mod podman; pub use exec::Exec; pub use podman::Podman;",
        &[],
    );
}

#[test]
fn nothing_waits_in_the_heart() {
    let breach = "nothing is async in the room `storage`";
    check("src/storage/mod.rs", "async fn f() {}", &[&format!("2: {breach}")]);
    check("src/storage/mod.rs", "fn f() { g().await; }", &[&format!("2: {breach}")]);
    check("src/storage/mod.rs", "fn f() { async { 1 }; }", &[&format!("2: {breach}")]);
    check("src/storage/mod.rs", "fn f() { g(async || 1); }", &[&format!("2: {breach}")]);
    check("src/storage/mod.rs", "fn f() { vec![async { 1 }]; }", &[&format!("2: {breach}")]);
    check("src/mux.rs", "async fn f() {}", &[]);
    check(
        "src/storage/mod.rs",
        "use std::sync::Mutex;",
        &["2: the room `storage` may not use `std::sync::Mutex`"],
    );
}

#[test]
fn a_file_says_in_its_first_line_what_it_is_for() {
    let found = breaches("src/pod/x.rs", "\n//! Too late.\n", &BTreeSet::new());
    assert_eq!(found, ["src/pod/x.rs:1: the first line does not say what the file is for: `//! …`"]);
}

#[test]
fn supervise_knows_no_domain_word() {
    check(
        "src/supervise.rs",
        "struct Tasks;\nstruct PodTask;",
        &["3: `supervise` knows no domain word: struct PodTask;"],
    );
}

#[test]
fn a_room_without_a_row_is_a_breach() {
    check("src/utils.rs", "", &["1: the room `utils` has no row in the law"]);
}

#[test]
fn a_file_that_no_mod_names_is_found() {
    let files = [
        ("src/lib.rs", "pub mod pod;\nmod inline { mod deep; }"),
        ("src/main.rs", "fn main() {}"),
        ("src/pod/mod.rs", "mod yaml;"),
        ("src/pod/yaml.rs", "#[cfg(test)] mod tests;"),
        ("src/pod/yaml/tests.rs", ""),
        ("src/pod/lost.rs", ""),
        ("src/inline/deep.rs", ""),
    ];
    let files = files.map(|(file, text)| (file.to_owned(), text.to_owned())).into();
    assert_eq!(orphans(&files), ["src/pod/lost.rs:1: no `mod` names this file, so nobody compiles it"]);
}

#[test]
fn a_module_stands_in_the_file_of_its_name() {
    check(
        "src/pod/mod.rs",
        "#[path = \"elsewhere.rs\"]\nmod yaml;",
        &["3: a module stands in the file of its own name, not at a #[path]"],
    );
}

#[test]
fn the_crates_are_read_from_the_manifest() {
    let text = "[package]\nname = \"x\"\n\n[dependencies]\n# kept lean\nk8s-openapi = { version = \"1\" }\n\
        serde.workspace = true\n\n[dev-dependencies]\nsyn = \"2\"\n";
    assert_eq!(crates(text), ["std", "core", "alloc", "k8s_openapi", "serde"].map(str::to_owned).into());
}
