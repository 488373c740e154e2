//! Permissions of a lockspace: owner, group and mode, as a file has them.

use std::fmt::Display;

pub use lockify_host::Access;
use nix::unistd::{Gid, Group, Uid, User};

use super::SpaceEntry;
use super::place::Wrong;

/// Every user that may connect to the socket, if the configuration says nothing else.
const DEFAULT_MODE: u32 = 0o666;

impl SpaceEntry {
    /// The permissions of the lockspace. Names are looked up now: they mean what they meant at the
    /// daemon's start.
    ///
    /// # Errors
    /// No such user or group; bits that mean nothing.
    pub(crate) fn access(&self) -> Result<Access, Wrong> {
        let space = &self.name;
        let mode = self.mode.unwrap_or(DEFAULT_MODE);
        Access::check_mode(mode)
            .map_err(|e| Wrong::new("mode", format!("lockspace {space:?}: {e}")))?;
        let wrong =
            |what: &str, e: String| Wrong::new(what, format!("lockspace {space:?}: {what}: {e}"));
        let owner = match &self.owner {
            None => Uid::effective().as_raw(),
            Some(name) => {
                let found = User::from_name(name).map(|user| user.map(|u| u.uid.as_raw()));
                id(name, found).map_err(|e| wrong("owner", e))?
            }
        };
        let group = match &self.group {
            None => Gid::effective().as_raw(),
            Some(name) => {
                let found = Group::from_name(name).map(|group| group.map(|g| g.gid.as_raw()));
                id(name, found).map_err(|e| wrong("group", e))?
            }
        };
        Ok(Access { owner, group, mode })
    }
}

/// The number behind a name, or of a number.
fn id(name: &str, found: Result<Option<u32>, impl Display>) -> Result<u32, String> {
    match found {
        Ok(Some(id)) => Ok(id),
        Ok(None) => name.parse().map_err(|_| {
            format!("{name:?} is not known on this machine: add it, or write its number")
        }),
        Err(e) => Err(format!("{name:?} cannot be looked up: {e}")),
    }
}
