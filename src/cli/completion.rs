//! `podmux completion`: completions for a shell.

use clap_complete::Shell;

use super::{failure::Failure, output::Output};

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  podmux completion bash > /etc/bash_completion.d/podmux
  podmux completion zsh > \"${fpath[1]}/_podmux\"
  podmux completion fish > ~/.config/fish/completions/podmux.fish";

pub(super) fn run(args: &Args, command: clap::Command) -> Result<u8, Failure> {
    Output::new().print(&script(args.shell, command))?;
    Ok(0)
}

/// The completion script of a shell.
pub fn script(shell: Shell, mut command: clap::Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "podmux", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Fish {
        command.get_subcommands().for_each(|one| script += &words_for_fish(one));
    }
    script
}

/// The possible values of a subcommand's arguments: for fish `clap_complete` writes only those of
/// flags.
fn words_for_fish(subcommand: &clap::Command) -> String {
    let words: Vec<_> = subcommand.get_positionals().flat_map(clap::Arg::get_possible_values).collect();
    if words.is_empty() {
        return String::new();
    }
    let words: Vec<_> = words.iter().map(clap::builder::PossibleValue::get_name).collect();
    format!(
        "complete -c podmux -n \"__fish_podmux_using_subcommand {}\" -f -a \"{}\"\n",
        subcommand.get_name(),
        words.join(" ")
    )
}
