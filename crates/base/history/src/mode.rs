//! Lock modes, as a checker needs them.
//!
//! The tables are written here a second time on purpose. A checker that shared them with the lock
//! manager could not see a wrong entry.

use serde::{Deserialize, Serialize};

/// A lock mode (docs/design/semantics.md 1), ordered by strength; CW and PR are incomparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Mode {
    /// Null: a place in the queue, without access.
    NL = 0,
    /// Concurrent read.
    CR = 1,
    /// Concurrent write.
    CW = 2,
    /// Protected read.
    PR = 3,
    /// Protected write.
    PW = 4,
    /// Exclusive: one reader and writer, and no other access.
    EX = 5,
}

use Mode::{CR, CW, EX, NL, PR, PW};

impl Mode {
    /// All modes, weakest first.
    pub const ALL: [Mode; 6] = [NL, CR, CW, PR, PW, EX];

    /// The mode with this number (NL 0 … EX 5), as the kernel and libdlm number them.
    pub fn from_number(n: u8) -> Option<Mode> {
        Mode::ALL.get(usize::from(n)).copied()
    }

    /// The name, as histories write it.
    pub const fn name(self) -> &'static str {
        ["NL", "CR", "CW", "PR", "PW", "EX"][self as usize]
    }

    /// Returns true if two locks of one resource may be granted in these modes at the same time.
    pub fn compatible(self, other: Mode) -> bool {
        let (weak, strong) = if self <= other { (self, other) } else { (other, self) };
        match strong {
            NL | CR => true,
            CW => true,
            PR => weak != CW,
            PW => weak <= CR,
            EX => weak == NL,
        }
    }

    /// The strongest mode whose conflicts are conflicts of both. A holder can rely on it while a
    /// conversion from one to the other is under way.
    pub fn meet(self, other: Mode) -> Mode {
        match (self, other) {
            (CW, PR) | (PR, CW) => CR,
            (a, b) => a.min(b),
        }
    }

    /// PW or EX: modes that may write, carry fencing tokens and fall under the claim barrier.
    pub fn writes(self) -> bool {
        self >= PW
    }

    /// A conversion that has to wait for others, if anything does: upwards, but not CW to PR.
    pub fn is_up(self, to: Mode) -> bool {
        to > self && (self, to) != (CW, PR)
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_is_the_table_of_semantics_section_1() {
        let table = ["yyyyyy", "yyyyyn", "yyynnn", "yynynn", "yynnnn", "ynnnnn"];
        for a in Mode::ALL {
            for b in Mode::ALL {
                let expect = table[a as usize].as_bytes()[b as usize] == b'y';
                assert_eq!(a.compatible(b), expect, "{a} {b}");
            }
        }
    }

    #[test]
    fn what_conflicts_with_a_meet_conflicts_with_both() {
        for a in Mode::ALL {
            for b in Mode::ALL {
                for c in Mode::ALL.into_iter().filter(|c| !a.meet(b).compatible(*c)) {
                    assert!(!a.compatible(c) && !b.compatible(c), "{a} {b} {c}");
                }
            }
        }
    }
}
