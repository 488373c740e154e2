//! The name on which a user's own daemon listens: `@lockify-user-UID`, in the abstract namespace of
//! unix(7), which belongs to the network namespace and to no directory.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::error::Error;

const PREFIX: &str = "@lockify-user-";

/// The kernel's map of this process's users to those outside its user namespace.
const MAP: &str = "/proc/self/uid_map";

/// The name of this process's user.
///
/// # Errors
/// [`Error::NoDomain`] if the kernel does not say which user this is.
pub fn user_name() -> Result<PathBuf, Error> {
    Ok(format!("{PREFIX}{}", outer_user()?).into())
}

/// The number of this process's effective user outside of its user namespace: the same in a
/// container as beside it.
pub(super) fn outer_user() -> Result<u32, Error> {
    let map = std::fs::read_to_string(MAP).map_err(|e| {
        Error::NoDomain(format!(
            "{MAP} cannot be read ({e}), so which user this is cannot be told: mount /proc, or name \
             the lock daemon's socket by LOCKIFY_SOCKET"
        ))
    })?;
    let inner = rustix::process::geteuid().as_raw();
    outer(&map, inner).ok_or_else(|| {
        Error::NoDomain(format!(
            "user {inner} of this user namespace has no number outside of it ({MAP}): map it, or name \
             the lock daemon's socket by LOCKIFY_SOCKET"
        ))
    })
}

/// The number of a user outside (user_namespaces(7)).
fn outer(map: &str, inner: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inside, outside, length) = (next()?, next()?, next()?);
        let at = inner.checked_sub(inside).filter(|at| *at < length)?;
        outside.checked_add(at)
    })
}

/// The user whose process must listen on a socket, if its name says so; as this process sees that
/// user.
pub fn expected_user(socket: &Path) -> Option<u32> {
    let number = socket.as_os_str().as_bytes().strip_prefix(PREFIX.as_bytes())?;
    if user_name().is_ok_and(|own| own == socket) {
        return Some(rustix::process::geteuid().as_raw());
    }
    std::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_called_as_outside() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(outer(whole, 0), Some(0));
        assert_eq!(outer(whole, 1000), Some(1000));
        let container = "0 1000 1\n1 100000 65536\n";
        assert_eq!(outer(container, 0), Some(1000));
        assert_eq!(outer(container, 1), Some(100_000));
        assert_eq!(outer(container, 65_536), Some(165_535));
        assert_eq!(outer(container, 65_537), None);
        assert_eq!(outer("", 65_534), None);
        assert_eq!(outer("no numbers\n", 0), None);
        assert_eq!(outer("0 4294967295 2\n", 1), None);
    }

    #[test]
    fn a_name_says_whose_it_is() {
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(expected_user(&user_name().unwrap()), Some(me));
        assert_eq!(expected_user(Path::new("@lockify-user-4711")), Some(4711));
        assert_eq!(expected_user(Path::new("@other")), None);
        assert_eq!(expected_user(Path::new("/run/lockify/lockify.sock")), None);
    }
}
