//! The versions of a protocol, and the choice between them.
//!
//! `docs/compatibility.md` has the rule: the permitted changes of a new version, and the life of
//! old ones.

use std::fmt;

/// A range of versions of a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl Versions {
    /// One version alone.
    pub const fn only(version: u16) -> Versions {
        Versions { oldest: version, newest: version }
    }

    /// The version that two sides speak: the newest that both know.
    pub fn common(self, other: Versions) -> Option<u16> {
        let common = self.newest.min(other.newest);
        (common >= self.oldest.max(other.oldest)).then_some(common)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "version {}", self.newest),
            false => write!(f, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_both_know_is_spoken() {
        let v = |oldest, newest| Versions { oldest, newest };
        for (a, b, common) in [
            (v(3, 4), v(3, 4), Some(4)),
            (v(3, 4), v(3, 3), Some(3)),
            (v(3, 4), v(4, 7), Some(4)),
            (v(3, 4), v(5, 7), None),
            (v(5, 5), v(3, 4), None),
        ] {
            assert_eq!((a.common(b), b.common(a)), (common, common), "{a} and {b}");
        }
    }
}
