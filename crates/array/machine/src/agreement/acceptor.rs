//! A voter. It keeps its promises across crashes: its state is saved before it answers.

use serde::{Deserialize, Serialize};

use super::{Agree, Agreed, Ballot};
use crate::{ArrayState, Epoch, Group};

/// The state of a voter, which it keeps durably.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Acceptor {
    /// The newest state that it knows to have been chosen.
    state: ArrayState,
    /// For the epoch after it: nothing of a lower ballot is accepted.
    promised: Ballot,
    accepted: Option<(Ballot, ArrayState)>,
}

impl Acceptor {
    pub fn new(state: ArrayState) -> Self {
        Acceptor { state, promised: Ballot::default(), accepted: None }
    }

    /// One that has voted before.
    pub fn resume(
        state: ArrayState,
        promised: Ballot,
        accepted: Option<(Ballot, ArrayState)>,
    ) -> Self {
        Acceptor { state, promised, accepted }
    }

    /// The epoch for which it has accepted a state, if it has.
    pub fn accepted(&self) -> Option<Epoch> {
        self.accepted.as_ref().map(|(_, state)| state.epoch)
    }

    pub fn state(&self) -> &ArrayState {
        &self.state
    }

    /// The groups of both states, which are not serialized with them.
    pub fn groups(&self) -> (Vec<Group>, Vec<Group>) {
        let accepted = self.accepted.as_ref().map(|(_, state)| state.added.clone());
        (self.state.added.clone(), accepted.unwrap_or_default())
    }

    /// With the groups that [`Acceptor::groups`] has given.
    pub fn with_groups(self, (own, accepted): (Vec<Group>, Vec<Group>)) -> Acceptor {
        let vote = self.accepted;
        Acceptor {
            state: self.state.with_groups(own),
            promised: self.promised,
            accepted: vote.map(|(ballot, state)| (ballot, state.with_groups(accepted))),
        }
    }

    /// A state that has been chosen. Returns whether it is news, and then has to be saved.
    pub fn install(&mut self, state: &ArrayState) -> bool {
        let news = state.epoch > self.state.epoch && state.fits(&self.state);
        if news {
            *self = Acceptor::new(state.clone());
        }
        news
    }

    /// The answer, and whether the acceptor has changed and must be saved before it is sent. `unsure`: it may have forgotten votes.
    pub fn handle(&mut self, ask: Agree, unsure: bool) -> (Agreed, bool) {
        let (epoch, ballot) = match &ask {
            Agree::Promise { epoch, ballot } => (*epoch, *ballot),
            Agree::Accept { ballot, state } => (state.epoch, *ballot),
        };
        if epoch <= self.state.epoch {
            return (Agreed::Chosen(self.state.clone()), false);
        }
        if epoch.0 > self.state.epoch.0 + 1 {
            return (Agreed::Missing(self.state.epoch), false);
        }
        if ballot < self.promised {
            return (Agreed::Outbid { ballot: self.promised }, false);
        }
        match ask {
            Agree::Promise { .. } => {
                let changed = ballot > self.promised;
                self.promised = ballot;
                (Agreed::Promised { accepted: self.accepted.clone(), unsure }, changed)
            }
            Agree::Accept { state, .. } => {
                if !state.fits(&self.state) {
                    return (Agreed::Missing(self.state.epoch), false);
                }
                self.promised = ballot;
                let accepted = Some((ballot, *state));
                let changed = self.accepted != accepted;
                self.accepted = accepted;
                (Agreed::Accepted, changed)
            }
        }
    }
}
