//! The six lock modes and their relations (docs/design/semantics.md 1).

use serde::{Deserialize, Serialize};

/// A lock mode, ordered by strength; [`Mode::CW`] and [`Mode::PR`] are incomparable ("middle").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Mode {
    /// Null: interest only; compatible with everything.
    NL = 0,
    /// Concurrent read.
    CR = 1,
    /// Concurrent write.
    CW = 2,
    /// Protected read ("shared").
    PR = 3,
    /// Protected write ("update").
    PW = 4,
    /// Exclusive: one reader and writer, and no other access.
    EX = 5,
}

impl Mode {
    /// All modes, weakest first.
    pub const ALL: [Mode; 6] = [Mode::NL, Mode::CR, Mode::CW, Mode::PR, Mode::PW, Mode::EX];

    /// Returns true if two locks of one resource may be granted in these modes at the same time.
    pub const fn compatible(self, other: Mode) -> bool {
        const N: bool = false;
        const Y: bool = true;
        const TABLE: [[bool; 6]; 6] = [
            [Y, Y, Y, Y, Y, Y],
            [Y, Y, Y, Y, Y, N],
            [Y, Y, Y, N, N, N],
            [Y, Y, N, Y, N, N],
            [Y, Y, N, N, N, N],
            [Y, N, N, N, N, N],
        ];
        TABLE[self as usize][other as usize]
    }

    /// A conversion between CW and PR: neither up nor down, never free.
    pub const fn is_middle(self, to: Mode) -> bool {
        matches!((self, to), (Mode::PR, Mode::CW) | (Mode::CW, Mode::PR))
    }

    /// A conversion that every master grants at once, so that its owner need not ask.
    pub fn is_down(self, to: Mode) -> bool {
        to < self && !self.is_middle(to)
    }

    /// Returns true if a lock in this mode excludes everything that one in `other` excludes.
    pub fn covers(self, other: Mode) -> bool {
        Mode::ALL.into_iter().all(|m| other.compatible(m) || !self.compatible(m))
    }

    /// EX or PW: the modes that may write, carry a fencing token and fall under the claim barrier.
    pub fn writes(self) -> bool {
        self >= Mode::PW
    }

    /// The pairs for which QUECVT is allowed (docs/design/semantics.md 3).
    pub fn may_quecvt(self, to: Mode) -> bool {
        to > self || (self == Mode::PR && to == Mode::CW)
    }

    /// The name as written in histories and on command lines.
    pub const fn name(self) -> &'static str {
        ["NL", "CR", "CW", "PR", "PW", "EX"][self as usize]
    }
}

impl core::fmt::Display for Mode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is none of NL, CR, CW, PR, PW, EX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown lock mode: use one of NL, CR, CW, PR, PW, EX")]
pub struct UnknownMode;

impl core::str::FromStr for Mode {
    type Err = UnknownMode;
    fn from_str(s: &str) -> Result<Mode, UnknownMode> {
        Mode::ALL.into_iter().find(|m| m.name().eq_ignore_ascii_case(s)).ok_or(UnknownMode)
    }
}
