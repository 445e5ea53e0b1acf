//! Why no agent answers a command, and what to do about it.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::anyhow;

use super::failure::Failure;
use crate::{client::ClientError, settings::SERVER_VARIABLE};

/// What to do where no agent listens.
const START: &str = "start \"podmux run\", or see systemctl status podmux";

/// The failure of a request that got no response.
pub(super) fn unreachable(error: ClientError, is_write: bool) -> Failure {
    Failure::Failed(match error {
        ClientError::NoSocket(path) => anyhow!("no agent at unix:{}: {START}", path.display()),
        ClientError::Refused(to) if !to.contains(':') => anyhow!("no agent at unix:{to}: {START}"),
        ClientError::Refused(to) => anyhow!("no agent at {to}: {START}"),
        ClientError::CutOff(ref from) if !from.contains(':') => {
            anyhow!("{error} (has the agent stopped? see systemctl status podmux)")
        }
        ClientError::Timeout(..) if is_write => anyhow!("{error}; the request may still be carried out"),
        ClientError::Permission(path) => anyhow!(not_permitted(&path)),
        error => anyhow::Error::new(error),
    })
}

/// The error if none of these sockets exists.
pub(super) fn no_socket(sockets: &[PathBuf]) -> anyhow::Error {
    let names = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect::<Vec<_>>();
    let names = names.join(" or ");
    anyhow!("no agent at {names}: {START}, or name another address with --server or {SERVER_VARIABLE}")
}

/// Who may use a socket, as far as this user can find out.
fn not_permitted(socket: &Path) -> String {
    let shown = socket.display();
    let group = fs::metadata(socket).ok().and_then(|found| {
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        group_name(&groups, found.gid())
    });
    // Without a look at the socket it is the group of the package.
    let group = group.as_deref().unwrap_or("podmux");
    let join = match group {
        "root" => String::new(),
        group => format!(", or join the group with usermod -aG {group} USER and log in again"),
    };
    format!(
        "no permission to use the socket {shown}: only its owner and the group {group} may; become root{join}"
    )
}

/// The name of a group by its number, in the text of /etc/group.
fn group_name(groups: &str, wanted: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id.parse() == Ok(wanted)).then(|| name.to_owned())
    })
}
