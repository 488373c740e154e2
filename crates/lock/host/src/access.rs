//! Permissions of a lockspace: owner, group and mode, as a file has them.

use serde::{Deserialize, Serialize};

/// The rights of a client in a lockspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// See who holds what.
    pub look: bool,
    /// Take locks.
    pub lock: bool,
}

impl Rights {
    pub(super) const ALL: Rights = Rights { look: true, lock: true };
    pub(super) const NONE: Rights = Rights { look: false, lock: false };
}

/// The permissions of a lockspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Access {
    /// The user that owns it.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Permission bits: reading is seeing locks, reading and writing is taking them.
    pub mode: u32,
}

impl Access {
    /// The mode of a lockspace made at run time, if its maker does not say another: its owner's.
    pub const MADE: u32 = 0o600;

    /// Checks that permission bits mean something for a lockspace.
    ///
    /// # Errors
    /// Which bits do not, and what to use.
    pub fn check_mode(mode: u32) -> Result<(), String> {
        match mode & !0o666 {
            0 => Ok(()),
            _ => Err(format!(
                "mode {mode:03o}: a lockspace is read (4, seeing locks) and written (6, taking \
                 them), not executed; use \"660\", \"640\" or \"666\""
            )),
        }
    }
}

/// The user that a client runs as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The other groups that it is in.
    pub groups: Vec<u32>,
    /// It may everything.
    pub trusted: bool,
}

impl Who {
    /// As for files: the owner's bits count for the owner, else the group's for the group, else the
    /// others'. As on the kernel's devices for lockspaces, taking locks needs reading and writing.
    pub fn rights_in(&self, access: &Access) -> Rights {
        if self.trusted {
            return Rights::ALL;
        }
        let shift = if self.uid == access.owner {
            6
        } else if self.gid == access.group || self.groups.contains(&access.group) {
            3
        } else {
            0
        };
        let bits = access.mode >> shift;
        Rights { look: bits & 4 != 0, lock: bits & 6 == 6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Who {
        Who { uid, gid, groups: groups.to_vec(), trusted: false }
    }

    fn may(who: &Who, mode: u32) -> (bool, bool) {
        let Rights { look, lock } = who.rights_in(&Access { owner: 70, group: 80, mode });
        (look, lock)
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let (owner, member) = (user(70, 1, &[80]), user(71, 80, &[]));
        let (other_member, stranger) = (user(72, 1, &[3, 80]), user(73, 81, &[1]));
        for (who, shift) in [(&owner, 6), (&member, 3), (&other_member, 3), (&stranger, 0)] {
            assert_eq!(may(who, 0o6 << shift), (true, true));
            assert_eq!(may(who, 0o4 << shift), (true, false));
            assert_eq!(may(who, 0o2 << shift), (false, false));
            // Rights of the other classes are not for this one, even if it has fewer.
            assert_eq!(may(who, 0o666 & !(0o6 << shift)), (false, false));
        }
    }

    #[test]
    fn who_is_trusted_may_everything() {
        assert_eq!(may(&Who { trusted: true, ..user(73, 81, &[]) }, 0), (true, true));
    }

    #[test]
    fn only_reading_and_writing_mean_something() {
        for mode in [0, 0o600, 0o640, 0o666] {
            Access::check_mode(mode).unwrap();
        }
        for mode in [0o700, 0o601, 0o4600, u32::MAX] {
            assert!(Access::check_mode(mode).unwrap_err().contains("not executed"));
        }
    }
}
