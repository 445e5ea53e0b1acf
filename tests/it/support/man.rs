//! Man pages: generated from the definitions of the command line, with a few sections written by hand.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use clap::Command;
use clap_mangen::Man;

/// Each page by its file name: one for the program, one for each subcommand.
///
/// `systemd/man/NAME.sections` holds further sections.
pub fn pages(command: &Command) -> BTreeMap<String, String> {
    let mut command = command.clone();
    command.build();
    let names: Vec<_> = subcommands(&command).map(|one| format!("podmux-{}", one.get_name())).collect();
    let mut pages = BTreeMap::new();
    for one in subcommands(&command) {
        let others = names.iter().filter(|name| !name.ends_with(one.get_name()));
        let see: Vec<_> = std::iter::once("podmux").chain(others.map(String::as_str)).collect();
        pages.insert(format!("podmux-{}.1", one.get_name()), page(one.clone(), &see));
    }
    pages.insert("podmux.1".to_owned(), page(command, &names.iter().map(String::as_str).collect::<Vec<_>>()));
    pages
}

/// All but `help`, which `--help` is for.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| one.get_name() != "help")
}

fn page(mut command: Command, see: &[&str]) -> String {
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    // Without the flags: they are listed below.
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let version = format!("podmux {}", env!("CARGO_PKG_VERSION"));
    let command = command.override_usage(usage).disable_help_flag(true);
    let has_subcommands = command.has_subcommands();
    let options = command.get_arguments().next().is_some();
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let man = Man::new(command).source(version).manual("podmux");
    let mut roff = Vec::new();
    man.render_title(&mut roff).unwrap();
    man.render_name_section(&mut roff).unwrap();
    man.render_synopsis_section(&mut roff).unwrap();
    man.render_description_section(&mut roff).unwrap();
    if options {
        man.render_options_section(&mut roff).unwrap();
    }
    if has_subcommands {
        man.render_subcommands_section(&mut roff).unwrap();
    }
    let mut text = String::from_utf8(roff).unwrap();
    // `podmux help` has no page.
    if let Some((before, rest)) = text.split_once(".TP\npodmux\\-help(1)\n") {
        let (_, after) = rest.split_once('\n').unwrap();
        text = format!("{before}{after}");
    }
    let by_hand = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("systemd/man/{name}.sections"));
    text += &fs::read_to_string(by_hand).unwrap_or_default();
    text += &after_help(&help);
    writeln!(text, ".SH \"SEE ALSO\"").unwrap();
    let last = see.len() - 1;
    for (at, page) in see.iter().enumerate() {
        let comma = if at == last { "" } else { "," };
        writeln!(text, ".BR {} (1){comma}", page.replace('-', "\\-")).unwrap();
    }
    text
}

/// The text after the options: literal examples, and paragraphs.
fn after_help(help: &str) -> String {
    let mut text = String::new();
    let mut literal = false;
    for line in help.lines() {
        if (line.starts_with("  ") && !line.trim().is_empty()) != literal && !line.is_empty() {
            literal = !literal;
            text += if literal { ".PP\n.nf\n" } else { ".fi\n" };
        }
        match line {
            "Examples:" => text += ".SH EXAMPLES\n",
            "Keys:" => text += ".SH KEYS\n",
            line if line.starts_with("Exit codes: ") => {
                text += ".SH \"EXIT STATUS\"\n";
                for code in line.trim_start_matches("Exit codes: ").trim_end_matches('.').split("; ") {
                    let (code, meaning) = code.split_once(' ').unwrap();
                    writeln!(text, ".TP\n.B {code}\n{}", escaped(meaning)).unwrap();
                }
            }
            "" if literal => text += "\n",
            "" => text += ".PP\n",
            line => writeln!(text, "{}", escaped(line)).unwrap(),
        }
    }
    text + if literal { ".fi\n" } else { "" }
}

/// Escapes text for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}
