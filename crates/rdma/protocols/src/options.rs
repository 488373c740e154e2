//! The settings on which all clients of a table have to agree.

use crate::error::LockError;
use crate::fabric::Nanos;
use crate::protocol::ticket::MOST_TICKETS;

/// How a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// With others that share it.
    Shared,
    /// Exclusive: no other holder.
    Exclusive,
}

macro_rules! protocols {
    ($($protocol:ident $name:literal $doc:literal,)*) => {
        /// How locks are taken; all clients of a table use the same.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Protocol { $(#[doc = $doc] $protocol,)* }

        impl Protocol {
            /// All of them.
            pub const ALL: &[Protocol] = &[$(Protocol::$protocol,)*];

            /// Short name, as printed in tables and read from command lines.
            pub fn name(self) -> &'static str {
                match self { $(Protocol::$protocol => $name,)* }
            }
        }
    };
}

protocols! {
    Srsl "srsl" "A server at the home, asked by messages.",
    Dqnl "dqnl" "A distributed queue, exclusive only: the word is its tail.",
    NCosed "n-cosed" "A distributed queue with shared locks (Narravula et al. 2007), with its holes closed.",
    Spin "cas-spin" "Compare-and-swap until it works, with back-off; exclusive only.",
    Dslr "dslr" "Tickets by fetch-and-add, waited for by polling (DSLR, SIGMOD 2018).",
    Mcs "mcs" "A queue by swapping its tail; exclusive only.",
    ShiftLock "shiftlock" "Writers queue and hand over, readers are counted and admitted between batches (FAST 2025).",
    ShiftLockPlus "shiftlock+" "ShiftLock whose fast path is left out where it has just failed, and that repairs sooner.",
    RmaRw "rma-rw" "Writers queue, readers count themselves in and out beside them (HPDC 2016). Never repaired.",
    Drtm "drtm" "Readers take leases that end by a common clock, writers compare-and-swap (SOSP 2015).",
    ShiftLockS "shiftlock-s" "DSLR's tickets; who waits leaves its name in a slot, and is told. Plain atomics, FIFO.",
}

impl Protocol {
    /// Returns true if shared locks are shared. Other protocols take them as exclusive ones.
    pub fn shares(self) -> bool {
        !matches!(self, Protocol::Dqnl | Protocol::Spin | Protocol::Mcs)
    }

    /// Returns true if the home has to run [`serve`](crate::serve).
    pub fn needs_home(self) -> bool {
        matches!(self, Protocol::Srsl | Protocol::NCosed)
    }

    /// Returns true if a dead client's locks can be repaired, so that there can be leases.
    pub fn repairs(self) -> bool {
        self != Protocol::RmaRw
    }

    /// Returns true if clocks of clients have to agree ([`Capabilities::clock_error`](crate::Capabilities::clock_error)).
    pub fn needs_clock(self) -> bool {
        self == Protocol::Drtm
    }

    /// How long nothing may change before a lock is repaired, in quarters of a lease. More than four is safe, since a
    /// lease starts before the change that gives it. The published figures: DSLR two leases, ShiftLock three.
    pub(crate) fn patience_quarters(self) -> u64 {
        match self {
            Protocol::ShiftLock => 12,
            Protocol::ShiftLockS | Protocol::ShiftLockPlus => 5,
            _ => 8,
        }
    }
}

/// A name that is no protocol's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown protocol {0:?}; use one of: {list}", list = names())]
pub struct UnknownProtocol(pub String);

fn names() -> String {
    let names: Vec<_> = Protocol::ALL.iter().map(|p| p.name()).collect();
    names.join(", ")
}

impl std::str::FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(name: &str) -> Result<Protocol, UnknownProtocol> {
        let found = Protocol::ALL.iter().find(|p| p.name() == name);
        found.copied().ok_or_else(|| UnknownProtocol(name.to_owned()))
    }
}

/// Settings of a table's clients.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// The protocol.
    pub protocol: Protocol,
    /// How long a hold is valid, from before its grant. Waiters repair the locks of a dead holder or waiter. Without
    /// leases there are no repairs and no fencing tokens, and verbs are those of the published protocols.
    pub lease: Option<Nanos>,
    /// Unit of waiting between two polls: about a round trip.
    pub unit: Nanos,
    /// How long a waiter that is to be told waits for each ticket ahead of it until it looks for itself, where a message may
    /// be missing without a fault (ShiftLock-S). About a unit where messages take longer than READs.
    pub net: Nanos,
    /// Tickets of a kind that a generation of a lock has (DSLR, ShiftLock-S), at most 2^13.
    pub turnover: u16,
    /// Writers that hand over to each other before waiting readers are admitted (ShiftLock).
    pub batch: u32,
    /// A hole to open.
    #[cfg(feature = "mutations")]
    pub mutation: Option<crate::mutation::Mutation>,
}

/// Most tickets of a kind in a generation: 2^13, since the counters have 14 bits and more, and what is drawn past the end
/// must not carry.
pub const MAX_TURNOVER: u16 = MOST_TICKETS;

impl Options {
    /// The published settings: unit 1862 ns, batches of 16, no leases.
    pub fn new(protocol: Protocol) -> Options {
        Options {
            protocol,
            lease: None,
            unit: 1862,
            net: 1_000_000,
            turnover: MAX_TURNOVER,
            batch: 16,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// Checks that clients can have these settings.
    ///
    /// # Errors
    /// They cannot: the reason.
    pub fn check(&self) -> Result<(), LockError> {
        if self.turnover == 0 || self.turnover > MAX_TURNOVER || self.batch == 0 {
            return Err(LockError::Settings);
        }
        if self.lease.is_some() && !self.protocol.repairs() {
            return Err(LockError::NoLeases(self.protocol.name()));
        }
        Ok(())
    }

    /// How many exclusive locks can be granted between the fetch-and-add by which a reader queues and its own grant,
    /// where a bound exists for any arrivals: in ShiftLock by a batch (docs/design/onesided.md 2.7). The end of a batch
    /// admits all readers that are counted by then, and the next writer waits for them. A client that a repair evicts
    /// queues again.
    pub fn most_writers_before_a_reader(&self) -> Option<u32> {
        matches!(self.protocol, Protocol::ShiftLock | Protocol::ShiftLockPlus).then_some(self.batch)
    }

    /// With leases of this length.
    pub fn with_lease(self, lease: Nanos) -> Options {
        Options { lease: Some(lease), ..self }
    }
}
