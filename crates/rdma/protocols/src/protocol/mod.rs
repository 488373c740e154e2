//! The protocols, one file each; tickets serve two of them, and so do queues by a tail.

pub(crate) mod published;
pub(crate) mod shift;
pub(crate) mod ticket;

pub(crate) use published::{cosed, drtm, rma, server, spin, tail};

use crate::fabric::Nanos;
use crate::memory::Memory;
use crate::options::Protocol;
use crate::session::Law;
use crate::table::{LockId, Table};

/// The data that a holder needs to release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// The word as the holder made it.
    Spin(u64),
    Ticket(ticket::Hold),
    Tail(tail::Hold),
    Shift(shift::Hold),
    Cosed(cosed::Hold),
    Rma(rma::Hold),
    Drtm(drtm::Hold),
    Server,
}

impl Hold {
    /// Until when it lasts by itself, leases of the settings aside.
    pub fn ends(&self) -> Nanos {
        match self {
            Hold::Drtm(hold) => hold.until,
            _ => Nanos::MAX,
        }
    }
}

/// How a protocol's words are judged.
pub(crate) fn law(protocol: Protocol) -> &'static Law {
    match protocol {
        Protocol::Spin | Protocol::Srsl | Protocol::RmaRw | Protocol::Drtm => &spin::LAW,
        Protocol::Dslr | Protocol::ShiftLockS => &ticket::LAW,
        Protocol::Mcs | Protocol::Dqnl => &tail::LAW,
        Protocol::ShiftLock | Protocol::ShiftLockPlus => &shift::LAW,
        Protocol::NCosed => &cosed::LAW,
    }
}

/// Returns true if memory shows neither holder nor waiter of the lock with this word.
pub(crate) fn is_idle(
    protocol: Protocol,
    table: &Table,
    memory: &Memory,
    lock: LockId,
    word: u64,
) -> bool {
    match protocol {
        Protocol::RmaRw => rma::is_idle(table, memory, lock),
        Protocol::Drtm => drtm::is_idle(word),
        Protocol::Spin | Protocol::Srsl => spin::is_idle(word),
        Protocol::Dslr | Protocol::ShiftLockS => ticket::is_idle(word),
        Protocol::Mcs | Protocol::Dqnl => tail::is_idle(word),
        Protocol::ShiftLock | Protocol::ShiftLockPlus => shift::is_idle(word),
        Protocol::NCosed => cosed::is_idle(word),
    }
}

/// How many bits a counter has. In this crate's own tests four, so that searches see counters wrap, run out, and touch
/// their neighbours if they can.
pub(crate) const fn counter(bits: u32) -> u32 {
    if cfg!(test) { 4 } else { bits }
}

/// A field of a lock word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub shift: u32,
    pub bits: u32,
}

impl Field {
    /// The word's highest bits: what overflows is gone.
    pub const fn top(bits: u32) -> Field {
        Field { shift: u64::BITS - bits, bits }
    }

    /// The bits above this field.
    pub const fn above(self, bits: u32) -> Field {
        Field { shift: self.shift + self.bits, bits }
    }

    pub const fn mask(self) -> u64 {
        ((1 << self.bits) - 1) << self.shift
    }

    pub const fn get(self, word: u64) -> u64 {
        word >> self.shift & ((1 << self.bits) - 1)
    }

    /// The summand that counts by one.
    pub const fn one(self) -> u64 {
        1 << self.shift
    }

    /// The word with this value in the field; what does not fit is cut off.
    pub const fn set(self, word: u64, value: u64) -> u64 {
        word & !self.mask() | value << self.shift & self.mask()
    }
}
