//! A host that proposes a change of the array's state.

use std::collections::BTreeSet;

use super::{Agree, Agreed, Ballot};
use crate::{ArrayState, Change, DeviceId, Epoch, Layout, Life, OpError};

/// The proposer's next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Ask every voter this. Drop answers to earlier questions.
    AskAll(Agree),
    /// Wait a moment, the longer the larger the number, then call `again`: somebody else is at it.
    BackOff(u32),
    /// This state has been chosen: let everybody know. The change is in it, by whomever.
    Chosen(ArrayState),
    /// The change does not make sense in the newest state that was chosen.
    Refused(OpError),
}

/// One change on its way.
pub(crate) struct Proposer {
    life: Life,
    /// Of all the changes that this life proposes.
    number: u64,
    change: Change,
    voters: usize,
    layout: Layout,
    /// The newest state known to have been chosen.
    state: ArrayState,
    ballot: Ballot,
    /// The highest ballot heard of.
    highest: u64,
    phase: Phase,
    answered: BTreeSet<DeviceId>,
    agreed: usize,
    /// Those of them whose voters cannot have forgotten votes.
    sure: usize,
    /// The votes of all others count as well: nobody else has answered for this epoch. Further attempts do not wait again. Each
    /// would be outbid while another one waits.
    waited: bool,
    attempts: u32,
    /// The attempt follows another one without a back-off.
    at_once: bool,
}

enum Phase {
    Idle,
    Promising { best: Option<(Ballot, ArrayState)> },
    Accepting(ArrayState),
}

impl Proposer {
    /// The voters are the layout's devices and these witnesses.
    pub fn new(
        (life, number): (Life, u64),
        change: Change,
        (layout, witnesses): (Layout, u16),
        state: ArrayState,
    ) -> Self {
        Proposer {
            life,
            number,
            change,
            voters: usize::from(layout.devices()) + usize::from(witnesses),
            layout,
            state,
            ballot: Ballot::default(),
            highest: 0,
            phase: Phase::Idle,
            answered: BTreeSet::new(),
            agreed: 0,
            sure: 0,
            waited: false,
            attempts: 0,
            at_once: false,
        }
    }

    /// A new attempt: at first, after a back-off, or when too many voters have not answered in time. The change may make no sense
    /// in the state known: a proposer may have died that was the only one to know the next. So voters are asked in any case.
    pub fn again(&mut self) -> Step {
        self.phase = Phase::Idle;
        if self.next() == Ok(None) {
            return Step::Chosen(self.state.clone());
        }
        self.highest += 1;
        self.ballot = Ballot { round: self.highest, by: Some(self.life), change: self.number };
        self.attempts += 1;
        self.ask(Phase::Promising { best: None });
        let epoch = Epoch(self.state.epoch.0 + 1);
        Step::AskAll(Agree::Promise { epoch, ballot: self.ballot })
    }

    /// The state after the change; `None` if it is in the state known. Refuses a failure after which a stripe could not be
    /// reconstructed.
    fn next(&self) -> Result<Option<ArrayState>, OpError> {
        let next = self.state.changed(self.change.clone()).map_err(OpError::State)?;
        if let Change::Fail(device, _) = self.change
            && next.is_some()
            && let Some(other) =
                self.state.not_whole_beside(&self.layout.grown(&self.state), device)
        {
            return Err(OpError::Unavailable(format!(
                "{device} cannot be given up, because {other} is not whole"
            )));
        }
        Ok(next)
    }

    fn ask(&mut self, phase: Phase) {
        self.phase = phase;
        self.answered.clear();
        (self.agreed, self.sure) = (0, 0);
    }

    /// The newest state known, for voters that miss it.
    pub fn state(&self) -> &ArrayState {
        &self.state
    }

    /// A state that was chosen, heard from somewhere.
    pub fn learn(&mut self, state: ArrayState) -> Option<Step> {
        if state.epoch <= self.state.epoch {
            return None;
        }
        self.state = state;
        self.waited = false;
        Some(self.again())
    }

    /// A voter's answer to the last question, at most once per voter.
    pub fn answer(&mut self, voter: DeviceId, answer: Agreed) -> Option<Step> {
        if matches!(self.phase, Phase::Idle) || !self.answered.insert(voter) {
            return None;
        }
        match (answer, &mut self.phase) {
            (Agreed::Chosen(state), _) => return self.learn(state),
            (Agreed::Outbid { ballot }, phase) => {
                self.highest = self.highest.max(ballot.round);
                // Others have gone on during the back-off, so the ballot was an old one from the start. Another back-off would
                // make the next one old as well.
                let was_old = matches!(phase, Phase::Promising { .. });
                self.at_once = was_old && !self.at_once;
                if self.at_once {
                    return Some(self.again());
                }
                self.phase = Phase::Idle;
                return Some(Step::BackOff(self.attempts));
            }
            (Agreed::Promised { accepted, unsure }, Phase::Promising { best }) => {
                if let Some(accepted) = accepted
                    && best.as_ref().is_none_or(|best| accepted.0 > best.0)
                {
                    *best = Some(accepted);
                }
                self.agreed += 1;
                self.sure += usize::from(!unsure);
            }
            (Agreed::Accepted, Phase::Accepting(_)) => {
                self.agreed += 1;
                self.sure += 1;
            }
            // Not counted; a majority of others is needed.
            _ => {}
        }
        self.waited |= self.answered.len() == self.voters;
        self.decide()
    }

    /// Returns true if there is a majority only with voters that may have forgotten votes. Then the others should answer, too.
    pub fn is_unsure(&self) -> bool {
        self.agreed > self.voters / 2 && !matches!(self.phase, Phase::Idle)
    }

    /// The others have not answered for a lease.
    pub fn wait_no_more(&mut self) -> Option<Step> {
        self.waited = true;
        self.decide()
    }

    /// The next step, if there is a majority.
    fn decide(&mut self) -> Option<Step> {
        let counted = if self.waited { self.agreed } else { self.sure };
        if counted <= self.voters / 2 {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => None,
            Phase::Promising { best } => {
                // A state that may have been chosen already is proposed again; this change comes
                // after it.
                let next = match best.map_or_else(|| self.next(), |(_, state)| Ok(Some(state))) {
                    Ok(Some(next)) => next,
                    Ok(None) => return Some(self.again()),
                    Err(why) => return Some(Step::Refused(why)),
                };
                self.ask(Phase::Accepting(next.clone()));
                Some(Step::AskAll(Agree::Accept { ballot: self.ballot, state: Box::new(next) }))
            }
            Phase::Accepting(state) => {
                self.state = state;
                self.waited = false;
                Some(self.again())
            }
        }
    }
}
