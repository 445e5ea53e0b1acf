//! What systemd does for a service that has a socket unit: it keeps the socket and starts the agent with it.

use std::{
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

/// The name by which the sockets are passed.
pub const UNIT: &str = "podmux.socket";

/// A command as systemd would start it with these sockets, from fd 3 on.
///
/// A shell moves them there, and says for whom they are: itself, and so the
/// program in its place. With two, standard output is the second's way in, and
/// goes nowhere afterwards.
pub fn activated(command: &Command, sockets: impl IntoIterator<Item = OwnedFd>) -> Command {
    activated_for(command, "$$", sockets)
}

/// The same, said to be for another process.
pub fn activated_for(command: &Command, whom: &str, sockets: impl IntoIterator<Item = OwnedFd>) -> Command {
    let mut sockets = sockets.into_iter();
    let (first, second) = (sockets.next().expect("a socket"), sockets.next());
    assert!(sockets.next().is_none(), "there is no way in for a third");
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
