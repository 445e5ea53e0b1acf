//! The program `podmux`.

use std::{env, process::ExitCode};

use mimalloc::MiMalloc;

/// glibc's is slower, and lets no thread use what another one has freed, unless all of them wait for one another.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(podmux::cli::main(env::args_os(), env::vars_os()))
}
