//! How participants of a fabric find each other before they can post a verb: over TCP, proving who they are as the
//! daemons of a cluster do (docs/security.md).
//!
//! A home opens a [`RendezvousHost`] with an *offer* for its clients (the place of the table, the address of its network card). A
//! process that [joins](Rendezvous::join) gets the offer and a rank. From then on everybody can tell everybody bytes,
//! through the host: addresses of queue pairs, say. The host tells of those who come and go.
//!
//! - **Ranks.** The home is 0. Participants get 1 to [`LAST_RANK`] in turn, so that one is not used again before all
//!   others were: lock words name peers by such numbers, and what still names one that has gone must name nobody.
//! - **Order.** A message arrives once and in order, after `Joined` and before `Gone` of its sender. A message to a gone
//!   participant reaches nobody, even if its rank has a new owner.
//! - **Limits.** A message has at most [`MAX_BYTES`]. For each receiver the host keeps [`QUEUE`]; when that is full, it
//!   does not read from senders that would add to it. A participant that takes nothing for [`PATIENCE`] is excluded: so
//!   call `next` often, or from a thread of its own.
//! - **Death.** A process that ends is `Gone` at once; a machine that vanishes, after at most [`SILENCE`].

mod error;
mod frame;
mod host;
mod join;
mod queue;
mod relay;
mod shared;

use std::net::SocketAddr;
use std::time::Duration;

pub use error::RendezvousError;
pub use frame::MAX_BYTES;
pub use host::RendezvousHost;
pub use join::Rendezvous;
pub use lockify_trust::Identity;
pub use relay::Hosting;

/// The home's rank.
pub const HOME: u16 = 0;
/// The last rank that a participant can have; one less than the largest number, so that fabrics whose peers count from 1
/// have a number for each.
pub const LAST_RANK: u16 = u16::MAX - 1;
/// Bytes that the host keeps for a receiver.
pub const QUEUE: usize = 256 * 1024;
/// How long a receiver may take none of its kept messages.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may be silent although its system was asked whether it is there. Longer than [`PATIENCE`]: a
/// sender that is not read, because its receiver takes nothing, cannot write for so long, and TCP takes that for silence.
pub const SILENCE: Duration = Duration::from_secs(15);
/// How long connecting, and proving who one is, may take.
const GREETING: Duration = Duration::from_secs(10);

/// An event at a rendezvous.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody takes part. A new participant is told of all present ones.
    Joined {
        /// The rank of the participant.
        rank: u16,
    },
    /// Somebody has told something.
    Told {
        /// The rank of the sender.
        from: u16,
        /// The content.
        bytes: Vec<u8>,
    },
    /// Somebody has left, died, or was put out.
    Gone {
        /// The rank of the participant.
        rank: u16,
    },
    /// The home has ended the rendezvous, in order. Nothing follows.
    Ended,
}

/// The welcome of a new participant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Its rank.
    pub rank: u16,
    /// The home's offer.
    pub offer: Vec<u8>,
}

/// Without keys, nobody else may reach the host.
fn allow(identity: &Identity, address: SocketAddr) -> Result<(), RendezvousError> {
    if identity.allows(address) { Ok(()) } else { Err(RendezvousError::Exposed { address }) }
}
