//! The place for state of a user's own domain that must outlive its daemon.
//!
//! The place is the same for every process of the user on this machine: the number of the user and
//! the system's list of users decide, the environment does not.
//!
//! 1. `/var/lib/lockify/user/UID`, if an administrator has made it;
//! 2. `HOME/.local/state/lockify/MACHINE`, with the home of passwd(5): homes may be shared by
//!    machines, so the machine's identity is in the path;
//! 3. `/var/tmp/lockify-UID/MACHINE` for users that have no home of their own.
//!
//! A home that is there but hidden or read-only (`ProtectHome=`) is an error: another place would
//! know nothing of the tokens that were given before.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::name::outer_user;
use crate::error::Error;

/// Why there is no place for the state of this user's domain.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The directory cannot be made, looked at or written to.
    #[error(
        "the state of this user's lock daemon belongs into {path}, which cannot be used here \
         ({error}): make it usable, start the daemon where it is (`lockify serve --user`), or have \
         root make {given} for this user alone"
    )]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
        /// Where root can make another one.
        given: PathBuf,
    },
    /// The directory is another user's, open to others, or no directory.
    #[error(
        "{0} is not a directory of this user alone, so the lock daemon's state is not safe there: \
         have it be a directory that this user owns, with mode 0700"
    )]
    Unsafe(PathBuf),
    /// Which user this is cannot be told.
    #[error(transparent)]
    User(#[from] Error),
    /// The system's list of users cannot be asked.
    #[error("the home of user {user} cannot be looked up ({error}): mend the list of users")]
    Lookup {
        /// The user.
        user: u32,
        /// The system's error.
        error: io::Error,
    },
}

/// Below it, root makes places for users.
const GIVEN: &str = "/var/lib/lockify/user";

/// The directory for the state of this user's own domain; it is made if it is not there. It belongs
/// to the user alone (mode 0700) and can be written to.
///
/// # Errors
/// [`StateError`]
pub fn state_dir() -> Result<PathBuf, StateError> {
    let user = outer_user()?;
    let given = Path::new(GIVEN).join(user.to_string());
    let unusable = |path: &Path, error| StateError::Unusable {
        path: path.to_owned(),
        error,
        given: given.clone(),
    };
    let (path, kept) = match look(&given).map_err(|e| unusable(&given, e))? {
        Some(_) => (given.clone(), given.clone()),
        None => {
            let error = |e: nix::Error| StateError::Lookup { user, error: e.into() };
            let known = User::from_uid(Uid::from_raw(user)).map_err(error)?;
            let home = known.map(|known| known.dir);
            place(user, home.as_deref()).map_err(|(path, e)| unusable(&path, e))?
        }
    };
    for dir in [&kept, &path] {
        DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(|e| unusable(dir, e))?;
        if !look(dir).map_err(|e| unusable(dir, e))?.is_some_and(|found| is_own(&found)) {
            return Err(StateError::Unsafe(dir.clone()));
        }
    }
    accessat(CWD, &path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|e| unusable(&path, e.into()))?;
    Ok(path)
}

/// The place of a user's state, and the part of its path that must be the user's alone, too.
fn place(user: u32, home: Option<&Path>) -> Result<(PathBuf, PathBuf), (PathBuf, io::Error)> {
    let me = rustix::process::geteuid().as_raw();
    let kept = match home.filter(|home| home.is_absolute()) {
        Some(home) if is_owned(home, me).map_err(|e| (home.to_owned(), e))? => {
            home.join(".local/state/lockify")
        }
        _ => PathBuf::from(format!("/var/tmp/lockify-{user}")),
    };
    Ok((kept.join(machine()), kept))
}

/// Returns true if a home exists and is its user's. Many users of the system have none, or another
/// user's.
fn is_owned(home: &Path, user: u32) -> io::Result<bool> {
    match std::fs::metadata(home) {
        Ok(found) => Ok(found.uid() == user),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// This machine among those that may share a directory.
fn machine() -> String {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"].into_iter().find_map(|path| {
        let id = std::fs::read_to_string(path).ok()?;
        let id = id.trim();
        (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
    });
    id.unwrap_or_else(|| {
        let name = rustix::system::uname();
        let name = name.nodename().to_string_lossy();
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        format!("host-{}", name.chars().map(plain).collect::<String>())
    })
}

/// The metadata of a path, not following links; `None` if it does not exist.
fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn is_own(found: &Metadata) -> bool {
    let own = found.uid() == rustix::process::geteuid().as_raw();
    found.is_dir() && own && found.mode() & 0o077 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_home_of_ones_own_is_the_place_and_others_are_not() {
        let home = tempfile::tempdir().unwrap();
        let (path, kept) = place(1000, Some(home.path())).unwrap();
        assert_eq!(kept, home.path().join(".local/state/lockify"));
        assert_eq!(path, kept.join(machine()));
        for none in [None, Some(Path::new("/nonexistent")), Some(Path::new("relative"))] {
            let (_, kept) = place(1000, none).unwrap();
            assert_eq!(kept, Path::new("/var/tmp/lockify-1000"), "{none:?}");
        }
        assert!(!is_owned(home.path(), rustix::process::geteuid().as_raw() + 1).unwrap());
    }

    #[test]
    fn a_link_or_a_directory_that_others_may_enter_is_not_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link) = (dir.path().join("own"), dir.path().join("link"));
        DirBuilder::new().mode(0o700).create(&own).unwrap();
        symlink(&own, &link).unwrap();
        let is = |path: &Path| look(path).unwrap().is_some_and(|found| is_own(&found));
        assert!(is(&own) && !is(&link) && !is(&dir.path().join("nothing")));
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(!is(&own));
    }

    #[test]
    fn the_machines_name_is_one_part_of_a_path() {
        let machine = machine();
        assert!(!machine.is_empty() && !machine.contains(['/', '.']), "{machine}");
    }
}
