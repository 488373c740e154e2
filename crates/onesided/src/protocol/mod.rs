//! The protocols, one file each; tickets serve two of them, and so do queues by a tail.

pub(crate) mod cosed;
pub(crate) mod server;
pub(crate) mod shift;
pub(crate) mod spin;
pub(crate) mod tail;
pub(crate) mod ticket;

use crate::options::Protocol;
use crate::session::Law;

/// What a holder has to know to release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// The word as the holder made it.
    Spin(u64),
    Ticket(ticket::Hold),
    Tail(tail::Hold),
    Shift(shift::Hold),
    Cosed(cosed::Hold),
    Server,
}

/// How a protocol's words are judged.
pub(crate) fn law(protocol: Protocol) -> &'static Law {
    match protocol {
        Protocol::Spin | Protocol::Srsl => &spin::LAW,
        Protocol::Dslr | Protocol::ShiftLockS => &ticket::LAW,
        Protocol::Mcs | Protocol::Dqnl => &tail::LAW,
        Protocol::ShiftLock | Protocol::ShiftLockPlus => &shift::LAW,
        Protocol::NCosed => &cosed::LAW,
    }
}

/// Whether a lock's word says that nobody holds or waits.
pub(crate) fn is_idle(protocol: Protocol, word: u64) -> bool {
    match protocol {
        Protocol::Spin | Protocol::Srsl => spin::is_idle(word),
        Protocol::Dslr | Protocol::ShiftLockS => ticket::is_idle(word),
        Protocol::Mcs | Protocol::Dqnl => tail::is_idle(word),
        Protocol::ShiftLock | Protocol::ShiftLockPlus => shift::is_idle(word),
        Protocol::NCosed => cosed::is_idle(word),
    }
}

/// A field of a lock word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub shift: u32,
    pub bits: u32,
}

impl Field {
    pub const fn mask(self) -> u64 {
        ((1 << self.bits) - 1) << self.shift
    }

    pub const fn get(self, word: u64) -> u64 {
        word >> self.shift & ((1 << self.bits) - 1)
    }

    /// What to add to count by one.
    pub const fn one(self) -> u64 {
        1 << self.shift
    }

    /// The word with this value in the field; what does not fit is cut off.
    pub const fn set(self, word: u64, value: u64) -> u64 {
        word & !self.mask() | value << self.shift & self.mask()
    }
}
