//! A check that a daemon with a configuration could start, without starting it:
//! `lockify serve --check`.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, User, initgroups, setgid, setuid};
use rustix::fs::{Access as Wanted, access};

use crate::config::{Config, MembershipKind};
use crate::keys::Keys;
use crate::log::Log;

/// The user that the packaged service runs as.
const SERVICE_USER: &str = "lockify";

/// Has this process look at everything as the daemon will, from now on and for ever: as this user, or,
/// if root asks and the package has made its user, as that one. Returns its name.
///
/// # Errors
/// There is no such user, or only root could become it.
pub fn become_daemons_user(named: Option<&str>) -> Result<Option<String>, String> {
    let name = match named {
        Some(name) => name,
        None if Uid::effective().is_root() => SERVICE_USER,
        None => return Ok(None),
    };
    let found = User::from_name(name).map_err(|e| format!("user {name:?}: {e}"))?;
    let user = match (found, named) {
        (Some(user), _) => user,
        // Without the package, root is as good as any.
        (None, None) => return Ok(None),
        (None, Some(_)) => {
            return Err(format!("user {name:?} is not known on this machine: name another one"));
        }
    };
    if user.uid == Uid::effective() {
        return Ok(Some(user.name));
    }
    let become_it = || {
        let c_name = CString::new(user.name.as_bytes()).map_err(|_| nix::Error::EINVAL)?;
        initgroups(&c_name, user.gid)?;
        setgid(user.gid)?;
        setuid(user.uid)
    };
    become_it().map_err(|e| format!("only root can look as user {name:?}: {e}"))?;
    Ok(Some(user.name))
}

/// All obstacles to the start of a daemon of this user, a line each. Messages about its keys go to the
/// log.
pub fn obstacles(config: &Config, log: &Log) -> Vec<String> {
    let mut found = Vec::new();
    if config.membership == MembershipKind::Corosync && config.node == 0 {
        log.info("the keys were not looked at: only corosync knows which node this is");
    } else if let Err(e) = Keys::read(config, log) {
        found.push(e.to_string());
    }
    found.extend(place("socket", &config.socket));
    found.extend(config.metrics.socket.as_deref().and_then(|path| place("metrics.socket", path)));
    found.extend(config.history.as_deref().and_then(|path| place("history", path)));
    found.extend(program("fencing.command", &config.fencing.command));
    found.extend(program("quorum_lost.command", &config.quorum_lost.command));
    found
}

/// Why no file can be made there.
fn place(key: &str, path: &Path) -> Option<String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let (me, shown) = (Uid::effective(), folder.display());
    match access(&folder, Wanted::WRITE_OK | Wanted::EXEC_OK) {
        Ok(()) => None,
        // The service manager makes it when the service starts (RuntimeDirectory=), with its owner.
        Err(rustix::io::Errno::NOENT) if folder.starts_with("/run") => None,
        Err(rustix::io::Errno::NOENT) => {
            let (group, path) = (Gid::effective(), path.display());
            Some(format!(
                "{key}: there is no folder {shown} for {path}: `install -d -o {me} -g {group} -m 750 {shown}`"
            ))
        }
        Err(e) => Some(format!(
            "{key}: user {me} cannot make {} ({e}): let that user write to {shown}, or name another \
             folder",
            path.display()
        )),
    }
}

/// Why a program cannot be run.
fn program(key: &str, command: &[String]) -> Option<String> {
    let path = Path::new(command.first()?);
    // Others are looked for in $PATH, which the service has from elsewhere.
    let named = path.is_absolute().then(|| access(path, Wanted::EXEC_OK));
    let why = named?.err()?;
    let (me, path) = (Uid::effective(), path.display());
    Some(format!("{key}: user {me} cannot run {path} ({why}): install it, or correct its path"))
}
