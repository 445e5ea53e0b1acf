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

/// Asks `podmux __complete` for the names of the running agent, and otherwise completes as above.
const NAMES_FOR_BASH: &str = r#"
_podmux_names() {
    local name names=() breaks=${COMP_WORDBREAKS//[^=:]/} word=${COMP_LINE:0:COMP_POINT}
    word=${word##* }
    # bash keeps what is before the last = or : of the word.
    local kept=${word%"${word##*["$breaks"]}"}
    while IFS= read -r name; do
        names+=("${name#"$kept"}")
    done < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if ((${#names[@]})); then
        COMPREPLY=("${names[@]}")
    else
        _podmux "$@"
    fi
}

complete -F _podmux_names -o bashdefault -o default podmux
"#;

/// The same at the beginning of the function.
const NAMES_FOR_ZSH: &str = r#"    local -a names
    names=("${(@f)$(${words[1]} __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n ${names[1]} ]]; then
        compset -P '--*='
        compadd -- $names
        return
    fi

"#;

/// The same as further completions.
const NAMES_FOR_FISH: &str = r#"
function __podmux_names
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] __complete $words[2..] 2>/dev/null
end

complete -c podmux -n "not __fish_podmux_needs_command" -a "(__podmux_names)"
complete -c podmux -n "not __fish_podmux_needs_command" -s n -l namespace -r -f -a "(__podmux_names)"
"#;

/// The completion script of a shell.
pub fn script(shell: Shell, mut command: clap::Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "podmux", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script += NAMES_FOR_BASH,
        Shell::Fish => {
            command.get_subcommands().for_each(|one| script += &words_for_fish(one));
            script += NAMES_FOR_FISH;
        }
        Shell::Zsh => {
            script = script.replacen("\n_podmux() {\n", &format!("\n_podmux() {{\n{NAMES_FOR_ZSH}"), 1);
        }
        _ => {}
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
