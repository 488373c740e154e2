//! The carrier of verbs and messages between clients and the memory with the locks.
//!
//! # Facts of the transport
//! The trait promises what reliable connections of RDMA (RC queue pairs) really give, and no more:
//!
//! - **Atomics are atomic among verbs only.** A NIC's atomics exclude each other, not the CPU of the node whose memory
//!   it is (`IBV_ATOMIC_HCA`). So the home touches lock words through its own fabric, in a loop back to itself.
//! - **Order holds per peer.** Verbs that one client posts to one home execute in the order of posting. Between clients,
//!   between homes, and between verbs and messages there is no order. Messages from one peer to another arrive in the
//!   order of sending.
//! - **A verb that ends in [`VerbError::Unknown`] may have executed, or may yet.** Nobody may post it again blindly:
//!   read the word, or recover.
//! - **Words are 8 bytes, aligned.** Nothing reads two words at one instant.
//! - **A verb outlives its client.** A client that dies, or drops a future, does not withdraw its posted verbs.
//! - **A revoked [`Key`] stops verbs for good.** Later ones are refused and change nothing.
//! - **A message to a peer that is gone fails**, and fails alone: other messages of that client are not lost with it. (A
//!   fabric on real queue pairs has one per peer for that.)

use core::future::Future;

/// Nanoseconds of a clock that never goes back. Clocks of different peers have nothing to do with each other, unless
/// [`Capabilities::clock_error`] says so.
pub type Nanos = u64;

/// A process on the fabric: a client, or a home of locks. 0 is nobody; the largest is 65,535, since lock words name
/// peers in 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer(pub u16);

/// The key that a region's owner gives to its users (an rkey). Keys are never used twice for different regions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u32);

/// A word of remote memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The peer whose memory it is.
    pub home: Peer,
    /// Which region of it.
    pub key: Key,
    /// Bytes from the region's start, a multiple of 8.
    pub offset: u64,
}

/// Registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Region {
    /// Its owner.
    pub home: Peer,
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub len: u64,
}

impl Region {
    /// The word at this offset. The fabric checks at use that it lies inside.
    pub fn word(&self, offset: u64) -> Address {
        Address { home: self.home, key: self.key, offset }
    }
}

/// An operation on one word. Its result is the word as it was before; for [`Verb::Write`], 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// Reads the word.
    Read,
    /// Writes. Not atomic with anything, but whole.
    Write(u64),
    /// Replaces the word if it is the one expected.
    CompareAndSwap {
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
    /// Adds, modulo 2^64.
    FetchAndAdd(u64),
    /// Replaces the bits in `swap_mask` if those in `compare_mask` are the ones expected. With an empty `compare_mask`
    /// it is a fetch-and-store of a field. Only where [`Capabilities::masked`] is set.
    MaskedCompareAndSwap {
        /// The expected bits under `compare_mask`.
        expected: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// The new bits under `swap_mask`.
        new: u64,
        /// Which bits are replaced.
        swap_mask: u64,
    },
}

impl Verb {
    /// The value of the word after this verb found it as `word`: the meaning of verbs, for every fabric that executes
    /// them itself. `None` if the word stays as it is.
    pub fn apply(self, word: u64) -> Option<u64> {
        match self {
            Verb::Read => None,
            Verb::Write(value) => Some(value),
            Verb::CompareAndSwap { expected, new } => (word == expected).then_some(new),
            Verb::FetchAndAdd(add) => Some(word.wrapping_add(add)),
            Verb::MaskedCompareAndSwap { expected, compare_mask, new, swap_mask } => {
                let equal = (word ^ expected) & compare_mask == 0;
                equal.then_some(word & !swap_mask | new & swap_mask)
            }
        }
    }

    /// Returns true if it changes memory atomically, as a NIC's atomics unit does.
    pub fn is_atomic(self) -> bool {
        !matches!(self, Verb::Read | Verb::Write(_))
    }
}

/// Words of a message.
pub const MESSAGE_WORDS: usize = 4;

/// A message: 32 bytes, so that it is sent inline. The protocols define their meaning, and each receiver checks them.
pub type Message = [u64; MESSAGE_WORDS];

/// A message that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Received {
    /// Its sender, from the connection, not from the message.
    pub from: Peer,
    /// Its content.
    pub message: Message,
}

/// The capabilities of a fabric beyond 8-byte CAS, FAA, READ, WRITE and messages, which all have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// It has [`Verb::MaskedCompareAndSwap`] (mlx5's extended atomics; not Soft-RoCE).
    pub masked: bool,
    /// Clocks of any two peers ([`Fabric::now`]) differ by less than this, if they agree at all (DrTM needs that).
    pub clock_error: Option<Nanos>,
}

/// Why a verb or a message did not end well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum VerbError {
    /// It completed in error; it may have executed, or may yet.
    #[error("the connection with peer {} broke: what was under way may or may not have happened; connect again", .0.0)]
    Unknown(Peer),
    /// The message was not taken: its receiver is gone or has no room for it.
    #[error("peer {} does not take messages: it is gone, or has no receive buffers left", .0.0)]
    NotTaken(Peer),
    /// The key is not, or no longer, valid at that peer. Nothing was executed.
    #[error(
        "peer {} refused key {:#x}: it is wrong or was revoked; ask the memory server for the table again",
        .0.home.0, .0.key.0
    )]
    WrongKey(Address),
    /// The word is not inside its region, or not aligned. Nothing was executed.
    #[error(
        "offset {} is not an aligned word of the region with key {:#x} at peer {}: the table is larger than its region",
        .0.offset, .0.key.0, .0.home.0
    )]
    OutOfBounds(Address),
    /// The fabric does not have this operation. Nothing was executed.
    #[error("this fabric has no {0}: choose a protocol that needs none, or a fabric that has it")]
    Unsupported(&'static str),
}

/// Why memory was not registered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// Not a whole number of words, or none.
    #[error("a region of {0} bytes cannot hold words of 8 bytes: ask for a multiple of 8")]
    Length(u64),
    /// The system refused.
    #[error(
        "cannot register {bytes} bytes: {reason}; raise the limit of locked memory or register less"
    )]
    Refused {
        /// How much.
        bytes: u64,
        /// Why, in the system's words.
        reason: String,
    },
}

/// The carrier of verbs and messages. See the [module's documentation](self) for what it promises.
///
/// One value is one peer's end, used by one thread; so nothing here is `Send`, and all take `&self`. Futures may be
/// polled by any executor: a fabric wakes the task by its waker, or is polled in a loop that knows the fabric.
///
/// **Posting happens in the call, not when the future is polled**:
/// `let write = f.write(a, 1); f.read(b).await?; write.await?` has both under way together, in this order, and waits for
/// one round trip. Dropping a future takes nothing back.
pub trait Fabric {
    /// The peer of this end.
    fn me(&self) -> Peer;

    /// Its capabilities.
    fn capabilities(&self) -> Capabilities;

    /// This peer's clock.
    fn now(&self) -> Nanos;

    /// Ends at or after this time of [`Fabric::now`].
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()>;

    /// A random number, for back-off and nothing else.
    fn random(&self) -> u64;

    /// Posts a verb. The future ends with its completion: the word as it was before.
    fn post(&self, at: Address, verb: Verb) -> impl Future<Output = Result<u64, VerbError>>;

    /// Sends a message. The future ends when the receiver's end has taken it into a receive buffer, which does not mean
    /// that the receiver has looked at it.
    fn send(&self, to: Peer, message: Message) -> impl Future<Output = Result<(), VerbError>>;

    /// The next message that arrived, in the order of arrival; `None` at or after `until`. A message that is there is
    /// returned even past `until`. Dropping the future loses no message.
    fn receive(&self, until: Nanos) -> impl Future<Output = Option<Received>>;

    /// Registers zeroed memory of this peer.
    ///
    /// # Errors
    /// The length is no whole number of words, or the system refuses.
    fn register(&self, bytes: u64) -> Result<Region, RegionError>;

    /// Revokes a key of this peer: from the return of the call on, no verb with it executes. Does nothing for a key
    /// that is not valid.
    fn revoke(&self, key: Key);

    /// Posts a READ.
    fn read(&self, at: Address) -> impl Future<Output = Result<u64, VerbError>> {
        self.post(at, Verb::Read)
    }

    /// Posts a WRITE; its result says nothing.
    fn write(&self, at: Address, value: u64) -> impl Future<Output = Result<u64, VerbError>> {
        self.post(at, Verb::Write(value))
    }

    /// Posts a compare-and-swap; it took effect if the result is `expected`.
    fn compare_and_swap(
        &self,
        at: Address,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, VerbError>> {
        self.post(at, Verb::CompareAndSwap { expected, new })
    }

    /// Posts a fetch-and-add.
    fn fetch_and_add(&self, at: Address, add: u64) -> impl Future<Output = Result<u64, VerbError>> {
        self.post(at, Verb::FetchAndAdd(add))
    }
}
