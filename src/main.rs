//! Text in, exit code out.

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

fn main() -> ExitCode {
    match podmux::cli::main(env::args_os(), env::vars_os()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // If standard error is closed, the exit code has to say it alone.
            let _ = writeln!(io::stderr(), "podmux: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
