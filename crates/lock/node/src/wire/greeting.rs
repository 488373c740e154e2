//! The first thing that each side of a connection says.
//!
//! `magic (8 bytes) | version (u16) | kind (u8: 0 introduction, 1 refusal) | length (u32) | bytes`,
//! integers little-endian. This head and a refusal's bytes (UTF-8 text, perhaps cut) are the same in every
//! version, so that nodes of different versions can tell each other what is wrong. The version is the
//! oldest that the sender speaks; its introduction says the newest. An introduction's fields stay, too;
//! further ones may follow, which older releases do not read.

use lockify_core::NodeId;
use lockify_core::link::Hello;
use lockify_trust::frame::{self, PREFIX};
use lockify_trust::printable_start;
use serde::{Deserialize, Serialize};

use super::{SPOKEN, Versions};

/// The value of a node with corosync's membership ([`Introduction::membership`]).
pub const COROSYNC: u64 = u64::MAX;
/// The same of a node with a replicated log.
pub const LOG: u64 = u64::MAX - 1;

/// How a connection begins.
pub const MAGIC: [u8; 8] = *b"LOCKIFY\0";
/// The first version whose introductions are as they are now.
const FIRST: u16 = 3;
/// The longest greeting, in bytes without its head.
pub const MAX_GREETING: usize = 4096;

const HEAD: usize = 15;

/// How a TLS record of a handshake begins, and that of an alert (RFC 8446, 5.1).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];
const TLS_ALERT: [u8; 2] = [21, 3];

/// A node's identity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// Its cluster.
    pub cluster: String,
    /// Its id.
    pub node: NodeId,
    /// The node that it intends to reach.
    pub to: NodeId,
    /// Which of its shards this is.
    pub shard: u32,
    /// How many shards it has.
    pub shards: u32,
    /// Which membership service it has: [`LOG`] or [`COROSYNC`]. Releases with a fixed list of nodes
    /// said the list's hash here.
    pub membership: u64,
    /// The newest version of the protocol that it speaks; in version 3, nodes said 0 here, and meant
    /// that one.
    pub newest: u16,
    /// Its life and the number of payloads that it has received from the other one.
    pub link: Hello,
    /// The oldest version that it speaks: the head says it.
    #[serde(skip)]
    pub oldest: u16,
}

impl Introduction {
    /// The versions that it speaks.
    pub fn versions(&self) -> Versions {
        Versions { oldest: self.oldest, newest: self.newest.max(self.oldest) }
    }
}

/// A greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Greeting {
    /// "I am …"
    Introduction(Introduction),
    /// "I will not talk to you, because …"
    Refusal(String),
}

/// Bytes that are no greeting, or one that cannot be answered by talking on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GreetingError {
    /// Something else than a Lockify node.
    #[error("it does not speak Lockify's protocol: is the address right?")]
    Magic,
    /// A node that has been told to use TLS.
    #[error("it speaks TLS and this node does not: give all nodes the same [security]")]
    Tls,
    /// A node whose versions are all older, or so new that it cannot introduce itself.
    #[error(
        "it speaks version {0} of Lockify's protocol and this node {ours}: upgrade the older one, \
         over a release that speaks a version of each if they are far apart",
        ours = SPOKEN
    )]
    Version(u16),
    /// The kind is unknown, the length impossible, or the contents are.
    #[error("its greeting is malformed: is the address right, and the same release on both?")]
    Malformed,
}

/// Appends a greeting; a refusal's text is cut to [`MAX_GREETING`] bytes.
pub fn encode_greeting(out: &mut Vec<u8>, greeting: &Greeting) {
    out.extend_from_slice(&MAGIC);
    let version = match greeting {
        Greeting::Introduction(i) => i.oldest,
        Greeting::Refusal(_) => SPOKEN.oldest,
    };
    out.extend_from_slice(&version.to_le_bytes());
    out.push(matches!(greeting, Greeting::Refusal(_)) as u8);
    match greeting {
        Greeting::Introduction(i) => {
            // The length of a cluster's name is limited, and nothing else in it is long.
            let written = frame::encode(out, i, MAX_GREETING);
            debug_assert!(written.is_ok());
        }
        Greeting::Refusal(text) => {
            let text = &text.as_bytes()[..text.len().min(MAX_GREETING)];
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text);
        }
    }
}

/// Returns true if these bytes begin as a greeting does. No frame of [`super::MAX_FRAME`] bytes or less begins so,
/// so that a refusal that comes late is told from frames.
pub fn is_greeting(bytes: &[u8]) -> bool {
    bytes.first_chunk::<PREFIX>().is_some_and(|first| MAGIC.starts_with(first))
}

/// The greeting at the start of `bytes` and its length; `None` if it is not complete yet.
pub fn decode_greeting(bytes: &[u8]) -> Result<Option<(Greeting, usize)>, GreetingError> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        let tls = bytes.starts_with(&TLS_HANDSHAKE) || bytes.starts_with(&TLS_ALERT);
        return Err(if tls { GreetingError::Tls } else { GreetingError::Magic });
    }
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let version = u16::from_le_bytes([head[8], head[9]]);
    let kind = head[10];
    let length = u32::from_le_bytes([head[11], head[12], head[13], head[14]]) as usize;
    if version < FIRST && kind != 1 {
        return Err(GreetingError::Version(version));
    }
    if length > MAX_GREETING {
        return Err(GreetingError::Malformed);
    }
    let Some(body) = bytes.get(HEAD..HEAD + length) else { return Ok(None) };
    let greeting = match kind {
        0 => Greeting::Introduction(introduction(body, version)?),
        1 => Greeting::Refusal(printable_start(body, MAX_GREETING)),
        _ => return Err(GreetingError::Malformed),
    };
    Ok(Some((greeting, HEAD + length)))
}

/// Reads the fields of an introduction that this release knows.
fn introduction(body: &[u8], oldest: u16) -> Result<Introduction, GreetingError> {
    match postcard::take_from_bytes::<Introduction>(body) {
        Ok((introduction, rest)) if rest.is_empty() || introduction.newest > SPOKEN.newest => {
            Ok(Introduction { oldest, ..introduction })
        }
        _ if oldest > SPOKEN.newest => Err(GreetingError::Version(oldest)),
        _ => Err(GreetingError::Malformed),
    }
}
