//! Operations under way when the array's state changes, or when devices have forgotten their locks and pre-writes
//! (docs/design/array.md 3.3, 3.4).

use std::collections::BTreeSet;

use super::engine::{Phase, Refused, Role, Sibling, Task, Try, Unheld};
use super::job::New;
use super::repair::Wanted;
use super::{ArrayHost, HostOutput};
#[cfg(feature = "mutations")]
use crate::AddedGroup;
use crate::message::Action;
use crate::plan::{self, Unit};
use crate::recovery::column::Trace;
use crate::{ArrayState, Condition, HostAnswer, OpError, Peer, Scheme, Skipped, Time};

/// Stripes in which parity need not fit, after devices have refused a part of a try's writes. Parity may be wrong where some
/// counting devices have written and others have refused. It may also be wrong where a device counts again that was left out.
/// Where all parts were written, or none, parity fits. A restarted device may have written without an answer: that stripe is
/// suspect there, and is repaired first.
fn torn_stripes(this: &Try, state: &ArrayState) -> impl Iterator<Item = u64> {
    let torn = this.plan.stripes.iter().filter(|part| {
        let counts = |device| state.has(device, part.stripe);
        let accesses = this.plan.accesses.iter().zip(&this.siblings).take(part.accesses.end);
        let accesses = accesses.skip(part.accesses.start);
        let written =
            accesses.filter(|(access, _)| access.write.is_some() && counts(access.device));
        let refused: Vec<bool> = written.map(|(_, sibling)| sibling.refused.is_some()).collect();
        part.is_back(state) || refused.contains(&true) && refused.contains(&false)
    });
    torn.map(|part| part.stripe)
}

/// How a try goes on whose phase 2 some devices have refused.
enum Remedy {
    /// More units of a stripe are missing than redundancy replaces, so that the write cannot be finished.
    None { stripe: u64 },
    /// A medium has not taken its blocks, and the array cannot go on without that device.
    Unwritable { block: u64 },
    /// A repair finds its own writes, and continues from there.
    Restart,
    /// Blocks may have changed since: the operation runs once more, after a repair of this stripe.
    AnotherTry { suspect: Option<u64> },
    /// Devices have only left. The others hold their locks and pre-writes, so the computed blocks still fit.
    SendAgain,
}

impl ArrayHost {
    /// Continues by a newer state of the array. Operations that have not written yet start again. Operations that write do not
    /// wait for devices that are out.
    pub(super) fn adopt(&mut self, now: Time, state: ArrayState) {
        if state.epoch <= self.state.epoch {
            return;
        }
        let fits = state.since == self.state.since;
        self.config.layout = self.config.layout.grown(&state);
        #[cfg(feature = "mutations")]
        if self.mutated(crate::mutation::Mutation::MovesToNewGroup) {
            let stripes = self.config.layout.stripes;
            let early = |group: AddedGroup| match group.from < stripes {
                true => AddedGroup { from: group.from - 1, ..group },
                false => group,
            };
            self.config.layout.added = self.config.layout.added.iter().map(early).collect();
        }
        self.state = state.clone();
        self.output.push_back(HostOutput::State(state));
        self.learn_term();
        if fits {
            return;
        }
        let all: Vec<u64> = self.tries.keys().copied().collect();
        for seq in all {
            let Some(this) = self.tries.get(&seq) else { continue };
            let phase = this.phase;
            let task = this.task.as_ref();
            let votes = task.is_some_and(|task| {
                matches!(task.role, Role::Tell { action: Action::Agree(_), .. })
            });
            if matches!(phase, Phase::Gate | Phase::First) {
                self.restart(now, seq, 0);
                continue;
            }
            let siblings = this.siblings.iter().enumerate().map(|(i, s)| (i, s.peer, s.access));
            let gone = siblings.filter(|(_, peer, access)| match peer {
                Peer::Server => false,
                Peer::Device(device) if phase == Phase::Second && *access => self.is_out(*device),
                // Failed devices vote as well.
                Peer::Device(device) => self.is_out(*device) && !votes,
            });
            let gone: Vec<_> = gone.map(|(index, ..)| index).collect();
            let Some(this) = self.tries.get_mut(&seq) else { continue };
            for index in gone {
                let sibling = &mut this.siblings[index];
                if sibling.out.take().is_some_and(|out| !out.hidden) && sibling.access {
                    sibling.refused = Some(Refused::Gone);
                }
            }
            self.phase_ends(now, seq);
        }
    }

    /// Finishes a try whose phase 2 some devices have refused and others have done (docs/design/array.md 3.4).
    ///
    /// If devices have only left, the computed blocks still fit. All others hold their locks and pre-writes, so that no
    /// operation has come between. A device may have forgotten its locks, or an excluded one may be back. Then the
    /// operation runs once more, as a reconstruct or large write. It never runs as a read-modify-write, which would keep
    /// the difference between data and parity. The first try keeps its locks until then.
    pub(super) fn mend(&mut self, now: Time, seq: u64) {
        let Some(this) = self.tries.get(&seq) else { return };
        match self.remedy(this) {
            Remedy::None { stripe } => {
                let what = format!("stripe {stripe} has lost more units than it can");
                self.fail_in_part(now, seq, OpError::Unavailable(what));
            }
            Remedy::Unwritable { block } => {
                self.fail_in_part(now, seq, OpError::Medium { block });
            }
            Remedy::Restart => self.restart(now, seq, 0),
            Remedy::AnotherTry { suspect } => self.mend_by_another_try(now, seq, suspect),
            Remedy::SendAgain => self.send_writes_again(now, seq),
        }
    }

    fn remedy(&self, this: &Try) -> Remedy {
        let layout = self.config.layout;
        let bears = usize::from(layout.parities());
        let missing = |s: &plan::StripePlan| plan::missing_units(&layout, &self.state, s.stripe);
        let beyond = |s: &plan::StripePlan| missing(s) > bears;
        // Where a rebuild makes the best of it, it begins anew.
        let accepts =
            matches!(&this.task, Some(Task { role: Role::Pass(pass), .. }) if pass.onto.is_some());
        if let Some(part) = this.plan.stripes.iter().find(|part| !accepts && beyond(part)) {
            return Remedy::None { stripe: part.stripe };
        }
        let unwritable =
            |(_, sibling): &(_, &Sibling)| sibling.refused == Some(Refused::Unwritable);
        let accesses = this.plan.accesses.iter().zip(&this.siblings);
        if let Some((access, _)) = accesses.into_iter().find(unwritable) {
            let offset = access.write.as_ref().map_or(0, |columns| columns.start);
            let unit = match access.unit {
                plan::Unit::Data(unit) => unit,
                plan::Unit::Parity | plan::Unit::SecondParity => 0,
            };
            let block = layout.logical(access.stripe, unit) + u64::from(offset);
            return Remedy::Unwritable { block };
        }
        if matches!(this.task, Some(Task { role: Role::Pass(_), .. })) {
            return Remedy::Restart;
        }
        // A device that does not count yet will rebuild what it has forgotten.
        let counts = |index: usize| {
            let access = this.plan.accesses.get(index);
            access.is_some_and(|access| self.state.has(access.device, access.stripe))
        };
        let mut siblings = this.siblings.iter().enumerate();
        let forgotten =
            siblings.any(|(index, s)| s.refused == Some(Refused::Forgotten) && counts(index));
        let suspect = this.siblings.iter().find_map(|sibling| match sibling.refused {
            Some(Refused::Suspect { stripe }) => Some(stripe),
            _ => None,
        });
        let back = this.plan.stripes.iter().any(|part| part.is_back(&self.state));
        if forgotten || back || suspect.is_some() {
            return Remedy::AnotherTry { suspect };
        }
        Remedy::SendAgain
    }

    /// Sends the computed blocks to the devices that have refused them and are not gone.
    fn send_writes_again(&mut self, now: Time, seq: u64) {
        let layout = self.config.layout;
        let Some(this) = self.tries.get_mut(&seq) else { return };
        this.epoch = self.state.since;
        let repairs = this.repairs();
        let (mut again, mut unheld) = (Vec::new(), Vec::new());
        for part in &this.plan.stripes {
            // One that it does not cover, it does not skip (`View::skipped`).
            let is_written = |unit: &Unit| match unit {
                Unit::Data(unit) => {
                    layout.parities() > 1 || part.covered.iter().any(|(covered, _)| covered == unit)
                }
                Unit::Parity | Unit::SecondParity => true,
            };
            let units = Unit::all(&layout).zip(layout.units(part.stripe));
            let devices = units.filter(|(unit, _)| is_written(unit)).map(|(_, device)| device);
            let skipped: Skipped =
                devices.filter(|device| !self.state.has(*device, part.stripe)).collect();
            for index in part.accesses.clone() {
                let (sibling, access) = (&mut this.siblings[index], &this.plan.accesses[index]);
                let refused = sibling.refused.take().filter(|r| *r != Refused::Forgotten);
                let condition = self.state.condition(access.device);
                let present = condition.is_some_and(|c| !c.is_out());
                if let (Unit::Data(unit), Some(columns)) = (access.unit, &access.write)
                    && layout.parities() == 1
                    && self.config.durable
                    && condition == Some(Condition::Failed)
                    && !repairs
                    && refused == Some(Refused::Gone)
                {
                    let columns = columns.clone();
                    unheld.push(Unheld { stripe: part.stripe, unit, columns });
                }
                if let (Some(blocks), true, Some(_)) = (&mut sibling.blocks, present, refused) {
                    // The linkage record names the devices that this write leaves out. Marked parity names the one that it vouches for.
                    if !repairs && skipped != Skipped::default() {
                        blocks.header.skipped = skipped;
                    }
                    again.push((index, blocks.clone()));
                }
            }
        }
        let again = again.into_iter().filter_map(|(index, blocks)| {
            let access = &this.plan.accesses[index];
            let second = self.control.second(access, Some(blocks), repairs)?;
            Some(this.ask(index, second.action, second.hidden))
        });
        let requests = again.collect();
        if let Some(task) = &mut this.task {
            task.unheld.extend(unheld);
        }
        self.send(now, requests);
        self.phase_ends(now, seq);
    }

    /// Parity has a write that a device has not answered before it left. Its record must not vouch for that device's medium
    /// (docs/design/array.md 3.11).
    pub(super) fn disavow(&mut self, now: Time, seq: u64) {
        let Some(mut task) = self.supersede(now, seq) else { return };
        task.looks = Some(task.unheld.iter().map(|unheld| unheld.stripe).collect());
        self.start(now, task);
    }

    fn mend_by_another_try(&mut self, now: Time, seq: u64, suspect: Option<u64>) {
        #[cfg(feature = "mutations")]
        let delta_again = self.mutated(crate::mutation::Mutation::DeltaAfterPartialWrite);
        #[cfg(not(feature = "mutations"))]
        let delta_again = false;
        let Some(mut task) = self.supersede(now, seq) else { return };
        self.counts.mended += 1;
        if delta_again {
            task.parity_unfit.clear();
        }
        task.delayed = true;
        let is_written = !task.parity_unfit.is_empty();
        if suspect.is_none() && is_written && self.config.scheme == Scheme::TimestampOrdering {
            task.looks = self.refused_stripes(seq);
        }
        match suspect {
            Some(stripe) => self.repair_first(now, task, stripe),
            None => self.start(now, task),
        }
    }

    /// The stripes of which devices have refused something of a try. With timestamp ordering, the try holds nothing where it has
    /// written. Others may have seen that and come over it since, and another try would bring it back. A block that a device could not
    /// read will be made of the others, and these may have the try's effect (docs/design/array.md 3.4).
    fn refused_stripes(&self, seq: u64) -> Option<BTreeSet<u64>> {
        let this = self.tries.get(&seq)?;
        let accesses = this.plan.accesses.iter().zip(&this.siblings);
        let refused = accesses.filter(|(_, sibling)| sibling.refused.is_some());
        Some(refused.map(|(access, _)| access.stripe).collect())
    }

    /// The blocks of a stripe that a task's last try has written, or was to write.
    pub(super) fn wanted(&self, task: &Task, stripe: u64) -> Vec<Wanted> {
        let layout = &self.config.layout;
        let last = task.superseded.last().and_then(|seq| self.tries.get(seq));
        let new = New::of(layout, &task.work).and_then(Result::ok);
        let Some((this, new)) = last.zip(new) else { return Vec::new() };
        let places = (new.span.start..new.span.end()).map(|block| layout.place(block));
        let here = places.filter(|place| place.stripe == stripe);
        here.map(|place| Wanted::of(place, this.stamp, false)).collect()
    }

    /// A task's last try is there as a whole, although devices have refused a part of it.
    pub(super) fn is_there(&mut self, now: Time, task: Task) {
        let last = task.superseded.last().and_then(|seq| self.tries.get(seq));
        let op = last.map(|this| (this.id, this.stamp));
        if let Some((id, _)) = op {
            self.note_written(now, id.seq, &task.work);
        }
        self.done(now, task, op, Ok(HostAnswer::Done));
    }

    /// Takes the task of a try that has written a part. The try keeps its locks until the task is done.
    fn supersede(&mut self, now: Time, seq: u64) -> Option<Task> {
        let this = self.tries.get_mut(&seq)?;
        let torn: Vec<u64> = torn_stripes(this, &self.state).collect();
        let mut task = this.task.take()?;
        this.phase = Phase::Superseded;
        task.parity_unfit.extend(torn);
        task.superseded.push(seq);
        self.yield_locks(now, seq);
        Some(task)
    }

    /// Fails a try of which devices have refused a part for good.
    fn fail_in_part(&mut self, now: Time, seq: u64, error: OpError) {
        let Some(this) = self.tries.get(&seq) else { return };
        if this.repairs() {
            return self.fail(now, seq, error);
        }
        if let Some(task) = self.supersede(now, seq) {
            self.fail_task(now, task, error);
        }
    }

    /// The records of a task's writes to a stripe that some device has refused.
    pub(super) fn cut_short(&self, task: &Task, stripe: u64) -> Vec<Trace> {
        let tries = task.superseded.iter().filter_map(|seq| self.tries.get(seq));
        let mut traces: Vec<Trace> = Vec::new();
        for this in tries {
            let accesses = this.plan.accesses.iter().zip(&this.siblings);
            let here = accesses.filter(|(access, _)| access.stripe == stripe);
            let blocks = here.filter_map(|(_, sibling)| sibling.blocks.as_ref());
            traces.extend(blocks.map(|blocks| Trace::Written(blocks.header)));
        }
        traces.dedup();
        traces
    }
}
