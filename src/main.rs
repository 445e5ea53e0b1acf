//! The program `podmux`.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    ExitCode::from(podmux::cli::main(env::args_os(), env::vars_os()))
}
