//! Why there is no rendezvous, or none any more.

use std::io;
use std::net::SocketAddr;

use lockify_trust::speech::Framed as _;
use lockify_trust::{PLAIN_TEXT, TrustError};

use super::frame::{Frame, MAX_BYTES};
use super::{LAST_RANK, PATIENCE};

/// Why there is no rendezvous, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The host cannot listen.
    #[error(
        "cannot listen at {address}: {error}; name an address of this machine with a port that is free"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// Others can reach the address, and nothing says how they prove who they are.
    #[error(
        "{address} is not loopback, and nothing says how both sides prove who they are: give --ca and --identity, or \
         --cluster-key (`lockify cluster` makes them), or --plain-text {PLAIN_TEXT:?}"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// Impossible numbers.
    #[error("a rendezvous has 1 to {LAST_RANK} participants, not {0}")]
    Places(u64),
    /// Bytes that are too many.
    #[error("an offer or a message has at most {MAX_BYTES} bytes, not {0}")]
    TooLong(usize),
    /// Nobody answers there.
    #[error(
        "cannot reach the memory server at {address}: {error}; does it run, with --listen, and is the address right?"
    )]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The keys cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The other side has not proved who it is.
    #[error("the memory server at {address} is not trusted: {why}")]
    Distrusted {
        /// The address.
        address: SocketAddr,
        /// Why, and what to do.
        why: String,
    },
    /// The host has said why not.
    #[error("the memory server at {address} refuses: {why}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Why, and what to do.
        why: String,
    },
    /// Something else is there, or another version.
    #[error("{address}: {why}")]
    Foreign {
        /// The address.
        address: SocketAddr,
        /// The error, and its remedy.
        why: String,
    },
    /// It was connected, and said nothing in time.
    #[error(
        "{address} does not answer: is it a memory server ({}), and is the address right?",
        Frame::SPOKEN
    )]
    Silent {
        /// The address.
        address: SocketAddr,
    },
    /// There is nobody of this rank.
    #[error("nobody has rank {0}: whoever had it has gone")]
    Nobody(u16),
    /// Messages are not accepted.
    #[error(
        "the memory server has taken nothing for {PATIENCE:?}: it, or who is told, does not read"
    )]
    Stuck,
    /// The rendezvous is over.
    #[error("the connection with the memory server is over: {0}; join again")]
    Over(String),
}
