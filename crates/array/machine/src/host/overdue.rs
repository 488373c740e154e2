//! Operations that wait for too long.
//!
//! A device may restart, or be replaced, and the array may go on without it. So an operation waits for a device that does not
//! answer. If more is gone than the redundancy bears, nothing of that happens. Two bounds end the wait:
//!
//! - A device owes an answer for [`super::HostConfig::patience_with_devices`]: operations that wait for it fail. Later ones fail at
//!   once, except one from time to time, which finds out if the device answers again.
//! - An operation takes twice as long, for whatever reason. It may wait behind another host's unfinished write.
//!
//! The caller then has an error. A write may have taken effect in part. Its try goes on, and keeps its locks and pre-writes: until
//! the device is back, until the array goes on without it, or until this life is fenced and others repair the write.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::{Later, Owner, Phase, Role, Sibling, Task, Try};
use super::repair_job::Then;
use super::{ArrayHost, HostOutput};
use crate::message::Action;
use crate::{DeviceId, OpError, Peer, Time, Work};

/// The answers that devices owe.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Since when a peer owes an answer about blocks, and has given none.
    since: BTreeMap<Peer, Time>,
    /// When the next operation may try a peer that owes an answer for too long.
    probe: BTreeMap<Peer, Time>,
    /// Peers to which there is no connection.
    disconnected: BTreeSet<Peer>,
    /// Those that were not told of a state of the array because of that. They are told when there is one.
    uninformed: BTreeSet<Peer>,
    /// When to look.
    look: Option<Time>,
}

impl Owed {
    pub fn next_timer(&self) -> Option<Time> {
        self.look
    }

    /// A request was sent that only a device answers whose blocks are the array's.
    pub fn asked(&mut self, now: Time, peer: Peer) {
        self.since.entry(peer).or_insert(now);
    }

    /// It was answered.
    pub fn answered(&mut self, now: Time, peer: Peer) {
        self.since.entry(peer).and_modify(|since| *since = now);
        self.probe.remove(&peer);
    }

    pub fn connected(&mut self, peer: Peer) {
        self.disconnected.remove(&peer);
        self.since.remove(&peer);
        self.probe.remove(&peer);
    }

    pub fn disconnected(&mut self, peer: Peer) {
        self.disconnected.insert(peer);
    }

    pub fn is_connected(&self, peer: Peer) -> bool {
        !self.disconnected.contains(&peer)
    }

    /// A peer is told of the array's state later.
    pub fn inform_later(&mut self, peer: Peer) {
        self.uninformed.insert(peer);
    }

    /// Returns true if a peer has to be told.
    pub fn is_to_be_informed(&mut self, peer: Peer) -> bool {
        self.uninformed.remove(&peer)
    }
}

/// Returns true if only a device that serves blocks answers this sibling's request.
pub(super) fn is_about_blocks(sibling: &Sibling) -> bool {
    let flushes =
        sibling.out.as_ref().is_some_and(|out| matches!(out.action, Action::Flush { .. }));
    sibling.access || flushes
}

impl ArrayHost {
    /// Longer than this, nobody waits for a device.
    fn patience_with_devices(&self) -> Time {
        self.config.patience_with_devices
    }

    /// Longer than this, no operation takes.
    fn longest(&self) -> Time {
        self.patience_with_devices().saturating_mul(2)
    }

    fn is_silent(&self, now: Time, peer: Peer) -> bool {
        let since = self.owed.since.get(&peer);
        since.is_some_and(|since| now.saturating_sub(*since) >= self.patience_with_devices())
    }

    /// Something is under way that may wait for too long.
    pub(super) fn watch(&mut self, now: Time) {
        if self.patience_with_devices() == Time::MAX {
            return;
        }
        let every = (self.patience_with_devices() / 8).max(1);
        self.owed.look.get_or_insert(now.saturating_add(every));
    }

    /// Fails a new operation that needs a device of which nobody expects an answer any more. One of them tries it now and then.
    pub(super) fn is_hopeless(
        &mut self,
        now: Time,
        task: &Task,
        peers: &[Peer],
    ) -> Option<OpError> {
        let callers = matches!((task.owner, &task.role), (Owner::Caller(_), Role::Work));
        if !callers || !task.superseded.is_empty() {
            return None;
        }
        let silent = peers.iter().copied().find(|peer| self.is_silent(now, *peer))?;
        let next = now.saturating_add(self.config.lease);
        let due = self.owed.probe.get(&silent).is_none_or(|at| *at <= now);
        if due {
            self.owed.probe.insert(silent, next);
            return None;
        }
        Some(self.no_answer(now, silent))
    }

    fn no_answer(&self, now: Time, peer: Peer) -> OpError {
        let since = self.owed.since.get(&peer).copied().unwrap_or(now);
        let ms = now.saturating_sub(since) / 1_000_000;
        OpError::Unreachable(match peer {
            Peer::Device(DeviceId(id)) => format!(
                "device {id} has not answered for {ms} ms, and the array does not go on without it (`lockify array status`)"
            ),
            Peer::Server => format!("the lock server has not answered for {ms} ms"),
        })
    }

    /// Ends the waiting that has lasted for too long.
    pub(super) fn end_waiting(&mut self, now: Time) {
        if self.owed.look.is_none_or(|at| at > now) {
            return;
        }
        self.owed.look = None;
        let overdue: Vec<(u64, OpError)> = self
            .tries
            .iter()
            .filter_map(|(seq, this)| Some((*seq, self.overdue(now, this)?)))
            .collect();
        for (seq, error) in overdue {
            self.end_try(now, seq, error);
        }
        self.end_later(now);
        self.end_resumes(now);
        self.forget_owed(now);
        if !(self.tries.is_empty() && self.repair_jobs.is_empty() && self.later.is_empty()) {
            self.watch(now);
        }
    }

    /// Why a try has waited for too long, if it has.
    fn overdue(&self, now: Time, this: &Try) -> Option<OpError> {
        let task = this.task.as_ref()?;
        let waited = now.saturating_sub(task.since);
        let is_vote = matches!(task.role, Role::Tell { action: Action::Agree(_), .. });
        let mut asked = this.siblings.iter().filter(|sibling| {
            sibling.out.as_ref().is_some_and(|out| !out.hidden)
                && is_about_blocks(sibling)
                && self.is_silent(now, sibling.peer)
        });
        // A device that answers again has the time to do so.
        if waited >= self.config.lease.min(self.patience_with_devices())
            && !is_vote
            && let Some(sibling) = asked.next()
        {
            return Some(self.no_answer(now, sibling.peer));
        }
        (waited >= self.longest()).then(|| self.took_too_long(waited, this))
    }

    fn took_too_long(&self, waited: Time, this: &Try) -> OpError {
        let asked = this.siblings.iter().filter(|s| s.out.as_ref().is_some_and(|out| !out.hidden));
        let peers: BTreeSet<Peer> = asked.map(|sibling| sibling.peer).collect();
        let peers: Vec<String> = peers.into_iter().map(name).collect();
        let whom = match (this.phase, peers.is_empty()) {
            (Phase::Gate, true) => "the lock server".to_owned(),
            (_, true) => "others' unfinished operations".to_owned(),
            (_, false) => peers.join(", "),
        };
        OpError::Unreachable(format!("it has waited for {whom} for {} ms", waited / 1_000_000))
    }

    fn end_try(&mut self, now: Time, seq: u64, error: OpError) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let phase = this.phase;
        let Some(task) = &mut this.task else { return };
        let begun = !task.superseded.is_empty() || phase == Phase::Second && is_written(task);
        let op = Some((this.id, this.stamp));
        let owner = task.owner;
        match owner {
            // It keeps its place for as long as it may be written in part.
            Owner::Caller(ticket) if begun => {
                task.owner = Owner::Answered(ticket);
                self.tell_failure(ticket, op, error);
            }
            Owner::Answered(_) => {}
            Owner::RepairJob(job) if begun => self.end_job(now, job, &error),
            Owner::RepairJob(job) if self.is_installing(job) => self.skip_unanswered(now, seq),
            Owner::Caller(_) | Owner::Own | Owner::RepairJob(_) => self.fail(now, seq, error),
        }
    }

    fn tell_failure(
        &mut self,
        ticket: crate::Ticket,
        op: Option<(crate::OpId, crate::Stamp)>,
        error: OpError,
    ) {
        self.counts.done += 1;
        self.counts.failed += 1;
        self.output.push_back(HostOutput::Done { ticket, op, result: Err(error) });
    }

    /// A repair goes on by itself; who waits for it has the error.
    fn end_job(&mut self, now: Time, id: u64, error: &OpError) {
        let Some(job) = self.repair_jobs.get_mut(&id) else { return };
        match std::mem::replace(&mut job.done, Then::Nobody) {
            Then::Answer(ticket) => {
                let op = job.op;
                self.output.push_back(HostOutput::Done { ticket, op, result: Err(error.clone()) });
            }
            Then::Resume(task) => {
                if let Some(task) = self.answer_early(now, *task, error)
                    && let Some(job) = self.repair_jobs.get_mut(&id)
                {
                    job.done = Then::Resume(Box::new(task));
                }
            }
            // It writes nothing, and may not succeed without the stripe.
            Then::Flush(task) => self.fail_task(now, *task, error.clone()),
            Then::Nobody => {}
        }
    }

    /// Answers the caller of a task. Returns the task if it has to go on, because it has been written in part.
    fn answer_early(&mut self, now: Time, mut task: Task, error: &OpError) -> Option<Task> {
        if task.superseded.is_empty() {
            self.fail_task(now, task, error.clone());
            return None;
        }
        if let Owner::Caller(ticket) = task.owner {
            let error = task.failed.as_ref().unwrap_or(error);
            let last = task.superseded.last().and_then(|seq| self.tries.get(seq));
            let op = last.map(|this| (this.id, this.stamp));
            task.owner = Owner::Answered(ticket);
            self.tell_failure(ticket, op, error.clone());
        }
        Some(task)
    }

    /// A repair that a task needed has ended by a bound. The task fails, or comes again.
    pub(super) fn repair_was_late(&mut self, now: Time, task: Task, work: &Work, error: &OpError) {
        let Some(task) = self.answer_early(now, task, error) else { return };
        let task = Box::new(task);
        let at = now.saturating_add(self.config.lease);
        match *work {
            Work::Scrub { stripe, .. } => self.at(at, Later::Repair { task, stripe }),
            _ => self.at(at, Later::Start(task)),
        }
    }

    /// Tasks that are to begin again at some time.
    fn end_later(&mut self, now: Time) {
        let longest = self.longest();
        let is_late = |task: &Task| {
            matches!(task.owner, Owner::Caller(_)) && now.saturating_sub(task.since) >= longest
        };
        let late: Vec<(Time, u64)> = self
            .later
            .iter()
            .filter(|(_, later)| match later {
                Later::Start(task) | Later::Repair { task, .. } => is_late(task),
                Later::Propose { .. } | Later::Decide { .. } | Later::Again { .. } => false,
            })
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            let Some(later) = self.later.remove(&key) else { continue };
            let error = OpError::Unreachable("others' operations have been in its way".into());
            match later {
                Later::Start(task) => {
                    if let Some(task) = self.answer_early(now, *task, &error) {
                        self.later.insert(key, Later::Start(Box::new(task)));
                    }
                }
                Later::Repair { task, stripe } => {
                    if let Some(task) = self.answer_early(now, *task, &error) {
                        self.later.insert(key, Later::Repair { task: Box::new(task), stripe });
                    }
                }
                other => drop(self.later.insert(key, other)),
            }
        }
    }

    /// Tasks that wait for a repair.
    fn end_resumes(&mut self, now: Time) {
        let longest = self.longest();
        let late = self.repair_jobs.iter().filter(|(_, job)| match &job.done {
            Then::Resume(task) => {
                matches!(task.owner, Owner::Caller(_)) && now.saturating_sub(task.since) >= longest
            }
            Then::Flush(task) => now.saturating_sub(task.since) >= longest,
            Then::Answer(_) | Then::Nobody => false,
        });
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            let error = OpError::Unreachable("its stripe could not be repaired in time".into());
            self.end_job(now, id, &error);
        }
    }

    /// Peers that owe nothing any more. Those that are silent stay, until they answer.
    fn forget_owed(&mut self, now: Time) {
        let owes = |peer: Peer| {
            self.tries.values().any(|this| {
                let mut all = this.siblings.iter();
                all.any(|s| s.peer == peer && s.out.is_some() && is_about_blocks(s))
            })
        };
        let gone: Vec<Peer> = self
            .owed
            .since
            .keys()
            .copied()
            .filter(|peer| !self.is_silent(now, *peer) && !owes(*peer))
            .collect();
        for peer in gone {
            self.owed.since.remove(&peer);
        }
    }
}

/// Returns true if the second phase of a task writes.
fn is_written(task: &Task) -> bool {
    !matches!(task.role, Role::Tell { .. }) && task.work != Work::Flush
}

fn name(peer: Peer) -> String {
    match peer {
        Peer::Device(DeviceId(id)) => format!("device {id}"),
        Peer::Server => "the lock server".to_owned(),
    }
}
