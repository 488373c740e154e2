//! Agreement on the array's state (docs/design/array.md 3.3). A majority of the voters chooses each epoch's state once,
//! whichever hosts propose.
//!
//! It is single-decree Paxos for each epoch (Lamport, *Paxos made simple*, 2001), with devices as acceptors and hosts as
//! proposers. A proposer proposes a state only if it knows that its predecessor was chosen.
//!
//! Voters are all devices of the layout, failed ones included, and witnesses (devices without blocks). The set is fixed, so
//! that two majorities always share a voter.
//!
//! That voter may have forgotten. An operator may have put its medium back to an older copy, and only a later state tells. So the
//! promise of a device that has started and was not let in since is *unsure*. If there is no majority without such promises, the
//! proposer waits for the other voters, for a lease at most. One that remembers tells of the later state.

mod acceptor;
mod proposer;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(crate) use acceptor::Acceptor;

pub(crate) use proposer::{Proposer, Step};

use crate::{ArrayState, Epoch, Life};

/// Orders attempts at choosing a state.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Ballot {
    /// Grows with each attempt.
    pub round: u64,
    /// The life that proposes; none for the ballot below all others.
    pub by: Option<Life>,
    /// Which of the changes that this life proposes: two at once must not take each other's votes for their own.
    pub change: u64,
}

/// A proposer's request to a voter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Agree {
    /// Promise to accept nothing of a lower ballot for this epoch, and report the accepted state.
    Promise {
        /// The epoch to be decided.
        epoch: Epoch,
        /// The attempt.
        ballot: Ballot,
    },
    /// Accept this as the state of its epoch.
    Accept {
        /// The attempt.
        ballot: Ballot,
        /// The proposed state.
        state: Box<ArrayState>,
    },
}

/// A voter's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Agreed {
    /// It has promised, and had accepted this.
    Promised {
        /// In which attempt, and what.
        accepted: Option<(Ballot, ArrayState)>,
        /// Its medium may be an older copy, which has forgotten votes: it has started, and was not let in since.
        unsure: bool,
    },
    /// It has accepted.
    Accepted,
    /// It has promised a higher ballot to somebody.
    Outbid {
        /// That one.
        ballot: Ballot,
    },
    /// This epoch's state, or a later one's, has been chosen: this one.
    Chosen(ArrayState),
    /// The voter does not know the state before it: it needs an `Install` first.
    Missing(Epoch),
}
