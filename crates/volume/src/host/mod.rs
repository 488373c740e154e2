//! A host of an array, as a library.
//!
//! [`Array::open`] connects to the array's devices and gives a handle that many threads may use at once. What they ask for
//! is done by one thread, which runs the state machine of a host; [`Array::submit`] does not wait for it, the others do.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use lockify_array::{
    ArrayState, Change, DeviceId, HostAnswer, HostId, Layout, OpError, Peer, Span, Work,
};
use lockify_trust::Identity;

use crate::ArrayFile;

mod calls;

use calls::Calls;
pub use calls::Done;

/// Pieces of work that are under way at most; who submits more waits.
pub const IN_FLIGHT: usize = 256;

/// Who opens an array, and how.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The host's number. Two processes at a time must not have the same: the newer one fences the older.
    pub host: HostId,
    /// How it proves who it is.
    pub identity: Identity,
    /// Where to write the history of its operations for `lockify check`, if anywhere.
    pub history: Option<PathBuf>,
    /// Is told what an operator should know, on the array's thread.
    pub log: fn(&str),
}

/// Why an array is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An address that others can reach, without keys.
    #[error(
        "{0} is not loopback, and nothing says how hosts and devices prove who they are: give --ca and --identity, or \
         --cluster-key (`lockify cluster` makes them), or --plain-text {words:?}", words = lockify_trust::PLAIN_TEXT
    )]
    Exposed(std::net::SocketAddr),
    /// Too few devices can be reached, or they refuse.
    #[error("cannot open the array: {0}")]
    Unreachable(String),
    /// The history cannot be written.
    #[error("cannot write the history {}: {error}", path.display())]
    History {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The system refuses threads or sockets.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
}

/// How a connection stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// With whom.
    pub peer: Peer,
    /// Why there is none; `None` if there is one.
    pub down: Option<String>,
}

/// What a host knows of the array.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The newest state that it has heard of.
    pub state: ArrayState,
    /// Its connections.
    pub connections: Vec<Connection>,
}

/// What a scrub found in a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Blocks at which parity did not fit.
    pub mismatches: u32,
    /// Blocks whose content is lost.
    pub lost: u32,
}

/// A host of an array. Clones are the same host; it ends with the last of them, or with [`Array::close`].
#[derive(Clone)]
pub struct Array {
    layout: Layout,
    calls: Arc<Calls>,
}

impl Array {
    /// Connects to the array's devices, as a new life of this host.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(_file: &ArrayFile, _joining: Joining) -> Result<Array, OpenError> {
        Err(OpenError::Unreachable("this release cannot yet".into()))
    }

    /// How the array is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes per block.
    pub fn block_size(&self) -> u32 {
        self.layout.block_size
    }

    /// The array's length in blocks.
    pub fn blocks(&self) -> u64 {
        self.layout.blocks()
    }

    /// Asks for a piece of work; `done` is called with its result on the array's thread, and must not wait for anything.
    /// Waits only while [`IN_FLIGHT`] others are under way.
    pub fn submit(&self, work: Work, done: Done) {
        self.calls.submit(work, done);
    }

    /// Does a piece of work.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn perform(&self, work: Work) -> Result<HostAnswer, OpError> {
        let (to, from) = std::sync::mpsc::sync_channel(1);
        // The receiver waits until it was called.
        self.submit(work, Box::new(move |result| drop(to.send(result))));
        from.recv().unwrap_or_else(|_| Err(closed()))
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn read(&self, span: Span) -> Result<Bytes, OpError> {
        match self.perform(Work::Read { span })? {
            HostAnswer::Read { data } => Ok(data),
            other => Err(OpError::State(format!("a read was answered by {other:?}"))),
        }
    }

    /// Writes blocks: all of `span`. They are as durable as the array's devices make them before this returns.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn write(&self, span: Span, data: Bytes) -> Result<(), OpError> {
        self.perform(Work::Write { span, data }).map(drop)
    }

    /// Makes durable what was written before, by any host.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn flush(&self) -> Result<(), OpError> {
        self.perform(Work::Flush).map(drop)
    }

    /// Checks a stripe, and repairs its parity if `repair`.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn scrub(&self, stripe: u64, repair: bool) -> Result<Scrubbed, OpError> {
        match self.perform(Work::Scrub { stripe, repair })? {
            HostAnswer::Scrubbed { mismatches, lost } => Ok(Scrubbed { mismatches, lost }),
            other => Err(OpError::State(format!("a scrub was answered by {other:?}"))),
        }
    }

    /// Writes a stripe's unit on a device that is being rebuilt.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn rebuild(&self, device: DeviceId, stripe: u64) -> Result<(), OpError> {
        self.perform(Work::Rebuild { device, stripe }).map(drop)
    }

    /// Changes the array's state.
    ///
    /// # Errors
    /// [`OpError`].
    pub fn change(&self, change: Change) -> Result<(), OpError> {
        self.perform(Work::Change { change }).map(drop)
    }

    /// What is known of the array now.
    pub fn status(&self) -> Status {
        self.calls.status()
    }

    /// Ends this host, when what is under way has come to an end. Other clones find it closed.
    pub fn close(&self) {
        self.calls.close();
    }
}

fn closed() -> OpError {
    OpError::State("the array was closed".into())
}
