//! The effect of an answer on its try.

use super::engine::{Held, Later, Owner, Phase, Refused, Role, Task};
use super::overdue;
use super::{ArrayHost, HostOutput};
use crate::message::{Action, Answer, Call, Reply, Request};
use crate::{DeviceId, Epoch, OpError, OpId, Peer, Stamp, Time};

/// After this number of rejections, an operation waits a little before it tries again. Otherwise hosts could keep rejecting
/// each other.
const REJECTIONS_AT_ONCE: u32 = 3;
const MS: Time = 1_000_000;

impl ArrayHost {
    pub(super) fn reply(&mut self, now: Time, from: Peer, reply: Reply) {
        let Call { op, sibling, step } = reply.call;
        if op.life != self.config.life {
            return;
        }
        match (&reply.answer, from) {
            (Answer::Fenced, _) => return self.fence(now),
            // The answer to an install: whatever the device refused for want of it is sent again.
            (Answer::Done, Peer::Device(_)) if op.seq == 0 && sibling == INSTALL => {
                self.installing.remove(&from);
                return self.resend(now, from);
            }
            _ => {}
        }
        let (seq, index) = (op.seq, sibling as usize);
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(sibling) = this.siblings.get_mut(index) else { return };
        if sibling.peer != from || sibling.out.as_ref().is_none_or(|out| out.step != step) {
            return;
        }
        if overdue::is_about_blocks(sibling) {
            self.owed.answered(now, from);
        }
        self.counts.replies += 1;
        match reply.answer {
            // These do not end the request.
            Answer::Starting { wait } => {
                let again = Later::Again { seq, sibling: index, step };
                return self.at(now.saturating_add(wait.max(MS)), again);
            }
            Answer::Behind(epoch) => return self.install(now, from, epoch, (seq, index)),
            Answer::Broken => {
                if let Peer::Device(device) = from {
                    self.output.push_back(HostOutput::Broken(device));
                    self.give_up_if_alone(now, seq, device);
                }
                return;
            }
            _ => {}
        }
        let Some(out) = sibling.out.take() else { return };
        if !out.hidden {
            sibling.boot = Some(reply.boot);
        }
        if let Some(task) = &mut this.task {
            task.delayed |= reply.waited;
        }
        if out.hidden {
            if let Answer::Stale(state) = reply.answer {
                self.adopt(now, *state);
            }
            return self.tidy(seq);
        }
        match this.phase {
            Phase::First => self.first_answered(now, seq, index, from, reply.answer),
            Phase::Second => self.second_answered(now, seq, index, reply.answer),
            Phase::Gate | Phase::Superseded | Phase::Last => self.tidy(seq),
        }
    }

    fn first_answered(&mut self, now: Time, seq: u64, index: usize, from: Peer, answer: Answer) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(task) = this.task.as_mut() else { return };
        let sibling = &mut this.siblings[index];
        match answer {
            Answer::Content(content) => {
                sibling.held = Held::All;
                this.contents[index] = Some(content);
                self.phase_ends(now, seq);
            }
            Answer::Done => {
                sibling.held = Held::All;
                self.phase_ends(now, seq);
            }
            Answer::Locked { seen, content } => {
                sibling.held = Held::All;
                this.contents[index] = content;
                self.clock.learn(seen);
                self.phase_ends(now, seq);
            }
            Answer::Rejected { seen } | Answer::Overtaken { seen } => {
                if let Answer::Rejected { .. } = answer {
                    sibling.held = Held::Nothing;
                }
                task.rejections += 1;
                let rejections = task.rejections;
                self.counts.rejected += 1;
                self.clock.catch_up(now, seen);
                let delay = match rejections.checked_sub(REJECTIONS_AT_ONCE) {
                    Some(further) => self.backoff(further),
                    None => 0,
                };
                self.restart(now, seq, delay);
            }
            Answer::Denied => {
                sibling.held = Held::Nothing;
                let denials = task.denials;
                task.denials += 1;
                self.counts.denied += 1;
                let delay = self.backoff(denials);
                self.restart(now, seq, delay);
            }
            Answer::Ahead { excess, ahead } => {
                if excess > self.config.clock_tolerance {
                    return self.fail(now, seq, OpError::Clock { ahead_ms: ahead / MS });
                }
                self.clock.slow_down(now, this.stamp.time.saturating_sub(excess));
                self.restart(now, seq, excess.max(1));
            }
            // These may also answer a request that has come before, and was granted then.
            Answer::Stale(state) => {
                let planned_anew = state.since > self.state.since;
                self.adopt(now, *state);
                if !planned_anew {
                    self.restart(now, seq, 0);
                }
            }
            Answer::Suspect { stripe } => {
                self.repair_needed(now, seq, stripe);
            }
            _ => {
                let what = format!("{from:?} refused a request as invalid; is it of this array?");
                self.fail(now, seq, OpError::State(what));
            }
        }
    }

    pub(super) fn second_answered(&mut self, now: Time, seq: u64, index: usize, answer: Answer) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let sibling = &mut this.siblings[index];
        if let Some(Task { role: Role::Tell { answers, .. }, owner, .. }) = &mut this.task {
            answers.push((sibling.peer, answer));
            return match *owner {
                Owner::RepairJob(job) => self.repair_job_heard(now, job, seq),
                Owner::Caller(_) | Owner::Answered(_) | Owner::Own => self.phase_ends(now, seq),
            };
        }
        match answer {
            Answer::Written | Answer::Done => {
                sibling.held = Held::Nothing;
                sibling.blocks = None;
                self.phase_ends(now, seq);
            }
            Answer::Stale(state) => {
                sibling.refused = Some(Refused::Epoch);
                self.adopt(now, *state);
                self.phase_ends(now, seq);
            }
            Answer::Suspect { stripe } => {
                sibling.refused = Some(Refused::Suspect { stripe });
                self.phase_ends(now, seq);
            }
            Answer::Unwritable => {
                sibling.refused = Some(Refused::Unwritable);
                self.phase_ends(now, seq);
            }
            _ => {
                sibling.refused = Some(Refused::Forgotten);
                self.phase_ends(now, seq);
            }
        }
    }

    /// Fails an operation that needs a device whose disk has failed, if the array cannot go on without it. Else the operation
    /// waits until the array does.
    fn give_up_if_alone(&mut self, now: Time, seq: u64, device: DeviceId) {
        let Some(other) = self.state.not_whole_beside(&self.config.layout, device) else { return };
        let task = self.tries.get(&seq).and_then(|this| this.task.as_ref());
        if task.is_some_and(|task| !matches!(task.role, Role::Tell { .. })) {
            let what = format!("the disk of {device} has failed, and {other} is not whole");
            self.fail(now, seq, OpError::Unavailable(what));
        }
    }

    /// A device has an older state than this host. The host sends the new state, and then repeats the request.
    fn install(&mut self, now: Time, to: Peer, epoch: Epoch, refused: (u64, usize)) {
        if epoch >= self.state.since {
            return self.transmit(now, refused.0, refused.1);
        }
        // One is enough: its answer makes everything be sent again.
        if self.installing.insert(to, self.state.epoch) == Some(self.state.epoch) {
            return;
        }
        self.install_at(now, to);
    }

    /// Tells a device the array's state.
    pub(super) fn install_at(&mut self, now: Time, to: Peer) {
        let op = OpId { life: self.config.life, seq: 0 };
        let call = Call { op, sibling: INSTALL, step: 0 };
        let stamp = Stamp { time: now, host: self.config.life.host.0 };
        let action = Action::Install(Box::new(self.state.clone()));
        self.post(now, to, Request { call, stamp, epoch: self.state.since, action });
    }

    /// This life is over: others take it for dead, and repair its unfinished writes.
    pub(super) fn fence(&mut self, now: Time) {
        if std::mem::replace(&mut self.fenced, true) {
            return;
        }
        self.forget_locks();
        for job in std::mem::take(&mut self.repair_jobs).into_values() {
            self.repair_job_over(now, job, Err(OpError::Fenced));
        }
        let tries = std::mem::take(&mut self.tries);
        let later = std::mem::take(&mut self.later);
        for (_, this) in tries {
            if let Some(task) = this.task {
                self.done(now, task, Some((this.id, this.stamp)), Err(OpError::Fenced));
            }
        }
        for (_, later) in later {
            if let Later::Start(task) | Later::Repair { task, .. } = later {
                self.done(now, *task, None, Err(OpError::Fenced));
            }
        }
    }

    /// Returns true if a device is not in the array.
    pub(super) fn is_out(&self, device: DeviceId) -> bool {
        self.state.condition(device).is_none_or(crate::Condition::is_out)
    }
}

/// The sibling number of an install, which is no try's.
const INSTALL: u32 = u32::MAX;
