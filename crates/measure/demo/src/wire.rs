//! The messages between the parent and its workers, by [`lockify_report::crew`]: commands, and one
//! reply to each. A worker that cannot execute a command gives the reason, and ends.

use std::net::SocketAddr;
use std::path::PathBuf;

use lockify_core::Stats;
use serde::{Deserialize, Serialize};

/// A command of the parent to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Start the node and join a lockspace for each policy.
    Join {
        /// This worker's node.
        node: u32,
        /// Every node's address, by number from 1.
        nodes: Vec<SocketAddr>,
        /// Added to every message, nanoseconds.
        delay_ns: u64,
        /// Names of the policies.
        policies: Vec<String>,
        /// How long claims are gathered at most, nanoseconds.
        batch_age_ns: u64,
    },
    /// Run on these processors from now on.
    Place(Place),
    /// Get ready for a run: everything that is not to be timed.
    Prepare(Prepare),
    /// Create; the clock runs until this is answered.
    Go(Portion),
    /// Release every lock of the run and write its history.
    Release {
        /// To this file.
        history: PathBuf,
    },
    /// The counters of this policy's lockspace.
    Stats {
        /// The policy's name.
        policy: String,
    },
    /// Answer bare messages.
    Echo {
        /// After this long, nanoseconds.
        delay_ns: u64,
    },
    /// Measure bare round trips between creations.
    Ping {
        /// To these in turn.
        peers: Vec<SocketAddr>,
        /// Each message is delayed by this, nanoseconds.
        delay_ns: u64,
        /// Create from this file of entries…
        entries: PathBuf,
        /// …so many…
        count: u32,
        /// …in this folder.
        folder: PathBuf,
    },
}

/// Where a worker runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On the first processor.
    First,
    /// On any but the first, if there are others.
    Others,
    /// Wherever the scheduler puts it.
    Anywhere,
}

/// A run, as one of its creators needs it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prepare {
    /// The policy's name.
    pub policy: String,
    /// File with the entries, JSON.
    pub entries: PathBuf,
    /// Create only the first so many of them.
    pub limit: u32,
    /// The shared folder to create in.
    pub folder: PathBuf,
    /// Create entries `share.0`, `share.0 + share.1`, …
    pub share: (u32, u32),
    /// How long the parent's lock is kept after it was granted, nanoseconds.
    pub hold_ns: u64,
}

/// How much of a run is created at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Portion {
    /// Pause when so many entries of the run are there. Before that, the run is over when all are
    /// there, or the time is.
    pub pause_at: u32,
    /// Create for no more than this time, nanoseconds…
    pub budget_ns: u64,
    /// …if so many entries of the run are there.
    pub min: u32,
}

/// A worker's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// First of all: where this worker's node listens.
    Listening(SocketAddr),
    /// Every lockspace runs.
    Joined,
    /// Moved there.
    Placed,
    /// Ready for [`Command::Go`].
    Prepared,
    /// A portion is created.
    Created(Created),
    /// Released; the history has so many events.
    Released {
        /// How many.
        events: u64,
    },
    /// The counters.
    Stats(Box<Stats>),
    /// Bare messages are answered here.
    Echoing(SocketAddr),
    /// Bare round trips in the order measured, nanoseconds.
    Pinged(Vec<u64>),
}

/// The measurements of one creator in a portion. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Created {
    /// When the first creation began.
    pub began: u64,
    /// When the last creation ended or, if the run is over, the final barrier was passed.
    pub ended: u64,
    /// The run is over: everything is settled.
    pub over: bool,
    /// Time of each creation.
    pub latencies: Vec<u64>,
    /// Time spent in lock calls, together.
    pub lock_ns: u64,
}
