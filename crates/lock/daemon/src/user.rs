//! A local client's identity, from the kernel, and its rights.
//!
//! With nix, not rustix: rustix knows no names of users and groups, and its process ids cannot be 0,
//! which is that of a client in another PID namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::Arc;

use lockify_host::{Rights, Who};
use nix::libc;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::config::Access;

/// The process that has connected, as it was then: a process that gets its socket later inherits
/// its rights, as with every open file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct User {
    pub(crate) who: Arc<Who>,
    /// 0 if it cannot be seen from here (another PID namespace).
    pub(crate) pid: u32,
}

impl User {
    /// Of the other end of a Unix socket.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<User> {
        let known = getsockopt(socket, PeerCredentials)?;
        let pid = u32::try_from(known.pid()).unwrap_or(0);
        let (uid, gid, groups) = (known.uid(), known.gid(), groups(socket)?);
        Ok(User { who: Arc::new(Who { uid, gid, groups, trusted: trusted(uid) }), pid })
    }

    /// Its rights in each lockspace.
    pub(crate) fn rights(&self, spaces: &[Access]) -> Arc<[Rights]> {
        spaces.iter().map(|access| self.who.rights_in(access)).collect()
    }
}

/// Root, or the daemon's own user: either has full power over the daemon anyway.
pub(crate) fn trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// `SO_PEERGROUPS` (unix(7)), for which no library that is used here has a call. Not the system's
/// database: a process may have given up groups of its user's.
#[allow(unsafe_code, reason = "a system call that rustix and nix do not offer")]
fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: `groups` is `length` bytes of plain numbers, valid for writing, and `length` is
        // writable; the kernel writes no more than `length` bytes and then how many they are.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut length,
            )
        };
        let needed = length as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        match io::Error::last_os_error() {
            // There are more; the kernel says how many.
            e if e.raw_os_error() == Some(libc::ERANGE) && needed > groups.len() => {
                groups.resize(needed, 0);
            }
            e => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_daemons_user_are_trusted() {
        let me = rustix::process::geteuid().as_raw();
        assert!(trusted(0) && trusted(me));
        assert!(!trusted(me + 1));
    }

    #[test]
    fn the_kernel_says_who_is_there() {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let user = User::of(&here).unwrap();
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!((user.who.uid, user.who.gid, user.pid), (me.0, me.1, std::process::id()));
        let mut mine: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|g| g.as_raw()).collect();
        let mut theirs = user.who.groups.clone();
        mine.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(theirs, mine);
    }
}
