//! The messages between peers, as bytes. Encoding and decoding are pure functions.
//!
//! A connection begins with a [`Greeting`] in each direction; then come frames: a length (`u32`,
//! little-endian, at most [`MAX_FRAME`]) and that many bytes, one [`Packet`] in postcard's
//! encoding.

mod greeting;
mod versions;

use lockify_core::link::Weigh;
use lockify_core::{Message, ResourceInfo};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::membership::Vote;
use crate::page::Rest;
use crate::query::{NodeStatus, Query, Software};

pub use greeting::{
    COROSYNC, Greeting, GreetingError, Introduction, LOG, MAGIC, MAX_GREETING, decode_greeting,
    encode_greeting, is_greeting,
};
pub use versions::{KNOWS_PAGES, TELLS_SOFTWARE, Versions};

/// The longest frame, in bytes without its length.
pub const MAX_FRAME: usize = 1 << 20;

/// Bytes of a frame's length.
pub const PREFIX: usize = 4;

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

/// Bytes that are no frame of this protocol: close the connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Longer than [`MAX_FRAME`].
    #[error("a frame of {0} bytes, where at most {MAX_FRAME} are allowed")]
    TooLong(usize),
    /// The bytes are no packet.
    #[error("a frame of {length} bytes that is no packet ({reason})")]
    NoPacket {
        /// The frame's length.
        length: usize,
        /// The decoder's error.
        reason: postcard::Error,
    },
    /// A packet with something after it.
    #[error("a frame of {length} bytes with {extra} bytes after its packet")]
    Extra {
        /// The frame's length.
        length: usize,
        /// How many are too many.
        extra: usize,
    },
}

/// The packet is longer than [`MAX_FRAME`] and was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a packet of {0} bytes, where at most {MAX_FRAME} are allowed")]
pub struct TooLong(pub usize);

/// Lets postcard append to a buffer that keeps its capacity.
pub struct Append<'a>(pub &'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends a value in postcard's encoding.
fn append<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    let end = out.len();
    // Only a serializer of unknown lengths could fail, and these types have none.
    if postcard::serialize_with_flavor(value, Append(out)).is_err() {
        out.truncate(end);
    }
}

/// Reads a value that must fill `bytes`.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let length = bytes.len();
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(WireError::Extra { length, extra: rest.len() }),
        Err(reason) => Err(WireError::NoPacket { length, reason }),
    }
}

/// Appends a frame.
pub fn encode_packet<P: Serialize>(out: &mut Vec<u8>, packet: &Packet<P>) -> Result<(), TooLong> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    append(out, packet);
    let length = out.len() - start - PREFIX;
    if length > MAX_FRAME {
        out.truncate(start);
        return Err(TooLong(length));
    }
    out[start..start + PREFIX].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// The contents of the first frame in `bytes`; `None` if it is not complete yet. It ends
/// [`PREFIX`] bytes after its length.
pub fn first_frame(bytes: &[u8]) -> Result<Option<&[u8]>, WireError> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > MAX_FRAME {
        return Err(WireError::TooLong(length));
    }
    Ok(bytes.get(PREFIX..PREFIX + length))
}

/// Decodes a frame's contents.
pub fn decode_packet(frame: &[u8]) -> Result<Packet, WireError> {
    parse(frame)
}
