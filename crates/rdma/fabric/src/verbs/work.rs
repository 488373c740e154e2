//! The work to be posted, and its end.

use core::cell::Cell;
use std::rc::Rc;

use lockify_onesided::{Address, Message, Nanos, Peer, Verb, VerbError};

use super::api::status;

/// How something that was posted ended; `None` while it is under way.
pub(super) type Outcome = Rc<Cell<Option<Result<u64, VerbError>>>>;

/// Something to post.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Verb(Address, Verb),
    Message(Message),
}

impl Work {
    /// Its result if the peer is not there.
    pub fn unreachable(&self, peer: Peer) -> VerbError {
        match self {
            Work::Verb(..) => VerbError::Unknown(peer),
            Work::Message(_) => VerbError::NotTaken(peer),
        }
    }

    /// Its result for this status of its completion.
    pub fn failed(&self, peer: Peer, code: u32) -> VerbError {
        match (self, code) {
            (Work::Verb(at, _), status::REM_ACCESS_ERR) => VerbError::WrongKey(*at),
            (Work::Verb(at, _), status::REM_INV_REQ_ERR) => VerbError::OutOfBounds(*at),
            (Work::Message(_), status::RNR_RETRY_EXC_ERR) => VerbError::NotTaken(peer),
            _ => VerbError::Unknown(peer),
        }
    }
}

/// A verb that returns a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fetch {
    Read,
    Atomic,
}

impl Work {
    pub fn fetch(&self) -> Option<Fetch> {
        match self {
            Work::Message(_) | Work::Verb(_, Verb::Write(_)) => None,
            Work::Verb(_, Verb::Read) => Some(Fetch::Read),
            Work::Verb(..) => Some(Fetch::Atomic),
        }
    }

    /// Returns true if it could overtake verbs under way, which it must not: InfiniBand orders what comes after a READ or
    /// an atomic only if that is of the same kind. (It can be told to, by a fence; but then Soft-RoCE's atomics wait for
    /// themselves when they are sent again.)
    pub fn overtakes(&self, under_way: Option<Fetch>) -> bool {
        match self {
            Work::Message(_) => false,
            Work::Verb(..) => under_way.is_some() && self.fetch() != under_way,
        }
    }
}

pub(super) struct Waiting {
    pub work: Work,
    pub outcome: Outcome,
    pub give_up: Nanos,
    /// Of a message that was under way on an earlier connection, as long as it is not known whether it was taken: the how
    /// manieth it was.
    pub number: Option<u64>,
    /// How many connections have broken under it.
    pub broken: u8,
}

/// The request that the device was given.
pub(super) enum Posted {
    /// For messages, `number` says the how manieth for that peer, and `broken` how many connections broke under it.
    Work {
        work: Work,
        outcome: Outcome,
        place: usize,
        number: u64,
        broken: u8,
    },
    Receive {
        place: usize,
    },
}
