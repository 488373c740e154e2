//! The messages between peers, as bytes. Encoding and decoding are pure functions.
//!
//! A connection begins with a [`Greeting`] in each direction. Then come frames
//! ([`lockify_trust::frame`]) of at most [`MAX_FRAME`] bytes, one [`Packet`] each.

mod greeting;

use lockify_core::link::Weigh;
use lockify_core::{Message, ResourceInfo};
use lockify_trust::frame::{self, BadFrame};
use serde::{Deserialize, Serialize};

use crate::membership::Vote;
use crate::page::Rest;
use crate::query::{NodeStatus, Query, Software};

pub use greeting::{
    COROSYNC, Greeting, GreetingError, Introduction, LOG, MAGIC, MAX_GREETING, decode_greeting,
    encode_greeting, is_greeting,
};
pub use lockify_trust::Versions;

/// The versions of the node protocol that this release speaks.
pub const SPOKEN: Versions = Versions { oldest: 3, newest: 5 };

/// From this version on, nodes tell each other which software they run ([`Part::Software`]).
pub const TELLS_SOFTWARE: u16 = 4;

/// From this version on, there are [`Query::Page`] and [`Part::Rest`].
pub const KNOWS_PAGES: u16 = 5;

/// The longest frame, in bytes without its length.
pub const MAX_FRAME: usize = 1 << 20;

/// The content of a frame.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Packet<P = Payload> {
    /// A message of the [link](lockify_core::link).
    Data {
        /// Its number.
        seq: u64,
        /// The sender has received every message up to this one.
        ack: u64,
        /// The message.
        payload: P,
    },
    /// The sender has received every message up to this one.
    Ack {
        /// Its number.
        ack: u64,
    },
    /// A message of the membership service; not part of the link.
    Vote(Vote),
    /// A question for `lockify status`, `locks` and `who`.
    Ask {
        /// Comes back with the answer.
        id: u64,
        /// The question.
        query: Query,
    },
    /// A part of the answer.
    Tell {
        /// The question's.
        id: u64,
        /// The part.
        part: Part,
        /// No more will come.
        last: bool,
    },
}

/// The payload of the link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Payload {
    /// From now on the sender's number `space` means this lockspace.
    Open {
        /// The sender's number.
        space: u32,
        /// The lockspace's name.
        name: String,
    },
    /// A message between two members of a lockspace.
    Lock {
        /// The sender's number of the lockspace.
        space: u32,
        /// The message.
        message: Message,
    },
}

impl Weigh for Payload {
    fn weight(&self) -> usize {
        match self {
            Payload::Open { name, .. } => size_of::<Payload>() + name.len(),
            Payload::Lock { message, .. } => message.weight(),
        }
    }
}

/// A part of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// The node's state.
    Status(Box<NodeStatus>),
    /// The node's knowledge of some resources.
    Resources(Vec<ResourceInfo>),
    /// After `Status`: the node's release. From version [`TELLS_SOFTWARE`] on.
    Software(Software),
    /// After the last `Resources` of a page: the omitted part. From version [`KNOWS_PAGES`] on.
    Rest(Rest),
}

/// Appends a frame.
///
/// # Errors
/// As [`frame::encode`].
pub fn encode_packet<P: Serialize>(out: &mut Vec<u8>, packet: &Packet<P>) -> Result<(), BadFrame> {
    frame::encode(out, packet, MAX_FRAME)
}

/// The packet in the first frame of `bytes`, and the frame's length with its prefix; `None` if it is not complete yet.
///
/// # Errors
/// These bytes are no frame of this protocol: close the connection.
pub fn decode_packet(bytes: &[u8]) -> Result<Option<(Packet, usize)>, BadFrame> {
    frame::decode(bytes, MAX_FRAME)
}
