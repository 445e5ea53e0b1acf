//! Starts the agent as systemd does for a service with a socket unit: with the sockets that it holds.

use std::{
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

/// The name of the passed sockets.
pub const UNIT: &str = "podmux.socket";

/// A command as systemd would start it with these sockets, from fd 3 on.
///
/// A shell moves them there and sets `LISTEN_PID` to itself, so to the program that replaces
/// it. A second socket enters as standard output, which is then discarded.
pub fn activated(command: &Command, sockets: impl IntoIterator<Item = OwnedFd>) -> Command {
    activated_for(command, "$$", sockets)
}

/// The same with another `LISTEN_PID`.
pub fn activated_for(command: &Command, whom: &str, sockets: impl IntoIterator<Item = OwnedFd>) -> Command {
    let mut sockets = sockets.into_iter();
    let (first, second) = (sockets.next().expect("a socket"), sockets.next());
    assert!(sockets.next().is_none(), "a third socket cannot be passed");
    let (moves, count) = match &second {
        None => ("3<&0 </dev/null", 1),
        Some(_) => ("3<&0 4<&1 </dev/null >/dev/null", 2),
    };
    let names = [UNIT].repeat(count).join(":");
    let script = format!(
        "exec {moves}; LISTEN_PID={whom} LISTEN_FDS={count} LISTEN_FDNAMES={names} exec \"$0\" \"$@\""
    );
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().args(["-c", &script]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell.stdin(Stdio::from(first)).stderr(Stdio::piped());
    shell.stdout(second.map_or_else(Stdio::piped, Stdio::from));
    shell
}
