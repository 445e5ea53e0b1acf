//! The packaged files agree with the program: man pages, completions, settings, units, documented flags.
//!
//! Man pages and completions are files of the repository, so that `cargo deb` works on a fresh
//! clone; `UPDATE_EXPECT=1 cargo test --test it packaged::` writes them again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use clap_complete::Shell;
use expect_test::{expect, expect_file};
use podmux::{
    cli,
    host::Disk,
    manifest::yaml,
    settings::{CommandLine, Environment, Setting, Settings, settings},
};

use crate::support::man;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn man_pages_agree_with_the_help() {
    let pages = man::pages(&cli::command());
    for (name, page) in &pages {
        expect_file![repository(&format!("systemd/man/{name}"))].assert_eq(page);
    }
    let made: BTreeSet<_> = pages.into_keys().collect();
    let there = fs::read_dir(repository("systemd/man")).unwrap();
    let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.filter(|name| name.ends_with(".1")).collect::<BTreeSet<_>>(), made);
}

#[test]
fn completions_agree_with_those_of_the_program() {
    for (shell, file) in [(Shell::Bash, "podmux.bash"), (Shell::Zsh, "_podmux"), (Shell::Fish, "podmux.fish")]
    {
        let script = cli::completion::script(shell, cli::command());
        expect_file![repository(&format!("systemd/completions/{file}"))].assert_eq(&script);
    }
}

/// A file of explained settings with all of them set: no blank follows the `#` of those that are
/// commented out.
fn uncommented(text: &str) -> String {
    let said = text.lines().filter_map(|line| match line.strip_prefix('#') {
        None => Some(line),
        Some(rest) => rest.starts_with(|first: char| first.is_ascii_alphabetic()).then_some(rest),
    });
    said.collect::<Vec<_>>().join("\n")
}

/// The variables of an `EnvironmentFile=`, as systemd reads them; of its quotes only `'…'`.
fn variables(text: &str) -> Environment {
    let lines = text.lines().filter(|line| !line.is_empty());
    let pairs = lines.map(|line| line.split_once('=').unwrap_or_else(|| panic!("no variable: {line}")));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned())).collect()
}

/// The defaults as they are written in the files; the service has one that the agent finds by itself.
fn defaults() -> Vec<(Setting, String)> {
    let of_the_service = |flag: &str| (flag == "state-dir").then(|| "/var/lib/podmux".to_owned());
    let default = |setting: Setting| {
        let default = setting.default.clone().or_else(|| of_the_service(&setting.flag))?;
        Some((setting, default))
    };
    settings().into_iter().filter_map(default).collect()
}

#[test]
fn the_packaged_environment_has_all_settings_with_their_defaults() {
    let variables = variables(&uncommented(&read("systemd/podmux.default")));
    let names: BTreeSet<_> = variables.keys().cloned().collect();
    assert_eq!(names, settings().into_iter().map(|setting| setting.variable).collect());
    for (setting, default) in defaults() {
        assert_eq!(variables[&setting.variable], default);
    }
    // The default of --sink-concurrency needs a runtime.
    let flags = CommandLine::default().with("sink", "jsonl").with("sink", "exec=/p");
    let environment = variables.into_iter().chain(home()).collect();
    let settings = Settings::load(&flags, &environment, &Disk::default()).unwrap();
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(settings.url.unwrap().headers.len(), 1);
}

#[test]
fn the_packaged_configuration_has_all_settings_with_their_defaults() {
    let text = uncommented(&read("systemd/config.yaml"));
    let fields: BTreeMap<_, _> =
        yaml::fields(&text).unwrap().into_iter().map(|field| (field.name, field.value)).collect();
    let names: BTreeSet<_> =
        fields.keys().filter(|name| !matches!(name.as_str(), "kind" | "apiVersion")).cloned().collect();
    assert_eq!(names, settings().into_iter().map(|setting| setting.field).collect());
    for (Setting { field, .. }, default) in defaults() {
        let value = &fields[&field];
        let value = value.as_array().map_or(value, |items| &items[0]);
        assert_eq!(value.as_str().map_or(value.to_string(), str::to_owned), default, "{field}");
    }
    // The default of sinkConcurrency needs a runtime.
    let settings = load(&text.replace("sink: [jsonl]", "sink: [jsonl, exec=/p]"));
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(settings.url.unwrap().headers.len(), 1);
}

/// `tests/earlier` has the files of version 0.1.0 before sinks had options.
#[test]
fn a_config_file_of_an_earlier_version_means_the_same() {
    let names = |text: &str| -> BTreeSet<String> {
        yaml::fields(text).unwrap().into_iter().map(|field| field.name).collect()
    };
    let (earlier, now) =
        (uncommented(&read("tests/earlier/config.yaml")), uncommented(&read("systemd/config.yaml")));
    assert!(names(&earlier).is_subset(&names(&now)));
    for sinks in ["sink: [jsonl]", "sink: jsonl=updates.jsonl", "sink: [jsonl, jsonl=/var/log/a=b]"] {
        let settings = load(&earlier.replace("sink: [jsonl]", sinks));
        assert_eq!(settings.warnings, Vec::<String>::new());
        let last = settings.sinks.last().unwrap().to_string();
        assert!(sinks.trim_end_matches(']').ends_with(last.rsplit('/').next().unwrap()), "{sinks}: {last}");
    }
}

#[test]
fn the_package_sets_only_the_directory_of_manifests() {
    let installed = load(&read("systemd/config.yaml"));
    let flags = CommandLine::default().with("pod-manifest-path", "/etc/podmux/manifests");
    assert_eq!(installed, Settings::load(&flags, &home(), &Disk::default()).unwrap());
    let nothing = |line: &str| line.is_empty() || line.starts_with('#');
    assert!(read("systemd/podmux.default").lines().all(nothing));
}

/// Settings of nothing but a config file of this text.
fn load(text: &str) -> Settings {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    let flags = CommandLine::default().with("config", file.path().to_str().unwrap());
    Settings::load(&flags, &home(), &Disk::default()).unwrap()
}

/// The smallest environment that settings need, those of a runtime included.
fn home() -> Environment {
    ["HOME", "RUNTIME_DIRECTORY"].map(|name| (name.to_owned(), "/nonexistent".to_owned())).into()
}

/// The assets of the Debian package: a pattern of files, and where they go.
fn assets() -> Vec<(String, String)> {
    let manifest = read("Cargo.toml");
    let assets =
        manifest.split_once("\nassets = [\n").and_then(|(_, rest)| rest.split_once("\n]\n")).unwrap();
    let quoted = |line: &str| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let lines = assets.0.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(quoted).map(|fields| (fields[0].clone(), fields[1].clone())).collect()
}

/// The installed path of a file of the repository, without the first `/`.
fn installed(path: &str) -> Option<String> {
    let (folder, name) = path.rsplit_once('/').unwrap();
    assets().into_iter().find_map(|(pattern, target)| {
        let (pattern_folder, pattern_name) = pattern.rsplit_once('/').unwrap_or(("", &*pattern));
        let fits = match pattern_name.split_once('*') {
            Some((start, end)) => name.starts_with(start) && name.ends_with(end),
            None => name == pattern_name,
        };
        let here = fits && folder == pattern_folder;
        here.then(|| if target.ends_with('/') { target + name } else { target })
    })
}

fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(repository(folder)).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| format!("{folder}/{}", entry.file_name().into_string().unwrap())).collect()
}

#[test]
fn every_file_is_packaged_and_every_asset_is_a_file() {
    for folder in ["systemd", "systemd/drop-ins", "systemd/completions", "systemd/man", "manifests"] {
        for file in files(folder).iter().filter(|file| !file.ends_with(".sections")) {
            assert!(installed(file).is_some(), "{file} is in no package");
        }
    }
    for (pattern, _) in assets() {
        let there = match pattern.rsplit_once("/*") {
            _ if pattern == "target/release/podmux" => true,
            Some((folder, end)) => files(folder).iter().any(|file| file.ends_with(end)),
            None => repository(&pattern).is_file(),
        };
        assert!(there, "{pattern} is no file");
    }
}

/// The directives of a unit or a drop-in, also those that are commented out.
fn directives(unit: &str) -> Vec<(String, String)> {
    let text = read(unit);
    let lines = text.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let named =
        pairs.filter(|(name, _)| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic()));
    named.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn units() -> Vec<String> {
    let units = ["systemd/podmux.service", "systemd/podmux.socket"].map(str::to_owned);
    units.into_iter().chain(files("systemd/drop-ins")).collect()
}

#[test]
fn units_call_the_program_with_valid_flags() {
    let mut calls = 0;
    for unit in units() {
        for (_, command) in directives(&unit).iter().filter(|(name, _)| name.starts_with("Exec")) {
            if let Some(args) = command.strip_prefix("/usr/bin/podmux ") {
                let args = std::iter::once("podmux").chain(args.split(' '));
                let matches = cli::command().try_get_matches_from(args);
                assert!(matches.is_ok(), "{unit}: {command}: {}", matches.unwrap_err());
                calls += 1;
            }
        }
    }
    assert!(calls >= 3, "the start, the reload, and the reload of the drop-in");
}

#[test]
fn variables_of_units_are_settings() {
    let known: BTreeSet<_> = settings().into_iter().map(|setting| setting.variable).collect();
    let mut said = 0;
    for unit in units() {
        for (_, value) in directives(&unit).iter().filter(|(name, _)| name == "Environment") {
            let names = value.split(' ').map(|pair| pair.split_once('=').unwrap().0);
            for name in names.filter(|name| *name != "HOME") {
                assert!(known.contains(name), "{unit}: {name} is no setting");
                said += 1;
            }
        }
    }
    assert!(said > 0);
}

#[test]
fn files_that_are_referred_to_are_installed() {
    let all = ["podmux.default", "config.yaml", "README.md"].map(|name| format!("systemd/{name}"));
    let mut texts: BTreeMap<_, _> = units().into_iter().chain(all).map(|file| (read(&file), file)).collect();
    texts.extend(files("systemd/man").into_iter().map(|file| (read(&file), file)));
    let there: BTreeSet<_> = files("systemd").into_iter().chain(files("systemd/drop-ins")).collect();
    let there: BTreeSet<_> =
        there.iter().chain(&files("systemd/man")).filter_map(|file| installed(file)).collect();
    let end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.' | '_'));
    for (text, file) in &texts {
        for (at, _) in text.match_indices("drop-ins/") {
            let name = text[at..].split(end).next().unwrap().trim_end_matches('.');
            let whole = format!("usr/share/doc/podmux/examples/{name}");
            assert!(name == "drop-ins/" || there.contains(&whole), "{file}: {name} is not there");
        }
        for (at, _) in text.match_indices("man:") {
            let page = text[at + 4..].split('(').next().unwrap();
            assert!(there.contains(&format!("usr/share/man/man1/{page}.1")), "{file}: no page {page}");
        }
        for start in
            ["/usr/share/doc/podmux/README", "/etc/podmux/config", "/etc/default/podmux", "/etc/logrotate.d/"]
        {
            for (at, _) in text.match_indices(start) {
                let path = text[at + 1..].split(end).next().unwrap().trim_end_matches('.');
                assert!(there.contains(path), "{file}: /{path} is not installed");
            }
        }
    }
}

#[test]
fn each_drop_in_states_its_purpose_and_what_it_opens_and_is_in_the_readme() {
    let readme = read("systemd/README.md");
    for file in files("systemd/drop-ins") {
        let text = read(&file);
        let name = file.rsplit('/').next().unwrap();
        assert!(text.starts_with("# For: "), "{file}");
        for part in ["# Install", "# Opens: ", name] {
            assert!(text.contains(part), "{file} has no {part:?}");
        }
        assert!(readme.contains(&format!("`{name}`")), "{name} is not in systemd/README.md");
    }
}

#[test]
fn the_package_and_the_program_have_one_version() {
    let changelog = read("systemd/debian/changelog");
    let newest = changelog.lines().next().unwrap();
    assert!(newest.starts_with(concat!("podmux (", env!("CARGO_PKG_VERSION"), "-")), "{newest}");
}

/// `UPDATE_EXPECT=1 cargo test --test it packaged::` writes the table.
#[test]
fn the_documented_table_of_settings_is_generated_from_the_flags() {
    const BEGIN: &str = "<!-- flags: generated -->\n";
    const END: &str = "<!-- end of flags -->\n";
    let mut table =
        "\n| flag | environment | config file field | default | meaning |\n|---|---|---|---|---|\n"
            .to_owned();
    let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
    for Setting { flag, variable, field, value, default_text, help, .. } in settings() {
        let default = default_text.map(|text| cell(&text)).unwrap_or_default();
        let (value, help) = (cell(&value), cell(&help));
        let value = match &*value {
            // On the command line it is counted: -vv.
            "LEVEL" => String::new(),
            // It may be left out, and is no argument of its own.
            "BOOL" => "[=BOOL]".to_owned(),
            _ => format!(" {value}"),
        };
        let row = format!("| `--{flag}{value}` | `{variable}` | `{field}` | {default} | {help} |\n");
        table += &row;
    }
    let path = "docs/configuration.md";
    let text = fs::read_to_string(repository(path)).unwrap_or_default();
    let (before, rest) = text.split_once(BEGIN).unwrap_or_else(|| panic!("{path} has no {BEGIN}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{path} has no {END}"));
    expect_file![repository(path)].assert_eq(&format!("{before}{BEGIN}{table}\n{END}{after}"));
}

/// `UPDATE_EXPECT=1 cargo test --test it packaged::` writes the table.
#[test]
fn the_documented_options_of_sinks_are_those_of_the_registry() {
    const BEGIN: &str = "<!-- options: generated -->\n";
    const END: &str = "<!-- end of options -->\n";
    let mut table = "\n| sink | option | field | meaning |\n|---|---|---|---|\n".to_owned();
    for [sink, _, name, field, value, help] in podmux::registry::Config::options() {
        let row = format!("| `{sink}` | `{name}={value}` | `{field}` | {help} |\n");
        table += &row;
    }
    let path = "docs/sinks.md";
    let text = read(path);
    let (before, rest) = text.split_once(BEGIN).unwrap_or_else(|| panic!("{path} has no {BEGIN}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{path} has no {END}"));
    expect_file![repository(path)].assert_eq(&format!("{before}{BEGIN}{table}\n{END}{after}"));
}

/// The lines of `src/` that use one of these names outside of the module itself and of the client
/// commands.
fn uses(module: &str, names: &[&str]) -> String {
    let mut folders = vec![repository("src")];
    let mut uses = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let file = path.strip_prefix(repository("")).unwrap().to_str().unwrap().to_owned();
            if file.starts_with(module) || file.starts_with("src/cli") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
            let found = code.filter(|line| names.iter().any(|name| line.contains(name)));
            uses.extend(found.map(|line| format!("{file}: {line}\n")));
        }
    }
    uses.into_iter().collect()
}

/// CONTRIBUTING.md lists what a new sink touches. The default value of --sink and the re-export for
/// library users are this sink's own.
#[test]
fn a_sink_touches_its_file_and_one_row_of_the_registry() {
    expect![[r#"
        src/settings/flags.rs: #[arg(long, value_name = registry::Config::syntax(), value_parser = registry::Config::parse, value_delimiter = ',', default_value = "jsonl", help_heading = "Sinks")]
        src/sink/mod.rs: jsonl::{Jsonl, Reopen},
        src/sink/mod.rs: mod jsonl;
        src/sink/mod.rs: pub(crate) const KINDS: [&SinkKind; 3] = [&jsonl::KIND, &jsonl::TABLE, &webhook::KIND];
    "#]].assert_eq(&uses("src/sink/jsonl.rs", &["jsonl", "Jsonl"]));
    expect![[r#"
        src/sink/mod.rs: mod webhook;
        src/sink/mod.rs: pub(crate) const KINDS: [&SinkKind; 3] = [&jsonl::KIND, &jsonl::TABLE, &webhook::KIND];
    "#]]
    .assert_eq(&uses("src/sink/webhook.rs", &["webhook", "Webhook"]));
}

/// CONTRIBUTING.md lists what a new source touches.
#[test]
fn a_source_touches_its_module_its_name_its_settings_and_one_row_of_the_table() {
    let names = [
        "UrlSource",
        "url::Config",
        "url_config",
        "SourceName::Url",
        "Self::Url =>",
        "Self::Url, ",
        "pub mod url",
    ];
    expect![[r#"
        src/agent/sources.rs: Source { name: SourceName::Url, is_configured: |settings| settings.url.is_some(), start: url },
        src/agent/sources.rs: let (source, handle) = UrlSource::new(settings.url.clone()?, parts.preparation(), parts.channel);
        src/agent/sources.rs: url::UrlSource,
        src/pod/source.rs: Self::Url => "http",
        src/pod/source.rs: Self::Url => "url",
        src/pod/source.rs: pub const ALL: [Self; 4] = [Self::File, Self::Http, Self::Url, Self::Api];
        src/settings/combine.rs: ) -> Result<Option<url::Config>, SettingsError> {
        src/settings/combine.rs: Ok(Some(url::Config {
        src/settings/combine.rs: pod_security: level(flags, SourceName::Url),
        src/settings/combine.rs: pub(super) fn url_config(
        src/settings/mod.rs: combine::{absolute, api_config, consumers, distinct, level, server_config, url_config},
        src/settings/mod.rs: pub url: Option<source::url::Config>,
        src/settings/mod.rs: url: url_config(&mut flags, &layers, &mut warnings)?,
        src/source/mod.rs: pub mod url;
    "#]].assert_eq(&uses("src/source/url/", &names));
}
