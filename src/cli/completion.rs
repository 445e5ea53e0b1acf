//! `podmux completion`: completions for a shell.

use clap_complete::Shell;

use super::{Failure, Output};

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

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "podmux", &mut script);
    let mut output = Output::new();
    output.write(&script)?;
    output.flush()?;
    Ok(0)
}
