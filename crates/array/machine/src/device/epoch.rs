//! The array's state at a device, and when the device's record is durable.

use bytes::Bytes;

use super::covered::Covered;
use super::disk::{Job, Purpose};
use super::{Device, DeviceOutput, Effect};
use crate::message::{Answer, Call};
use crate::{Agree, ArrayState, Condition, DeviceEvent, Life, Time};

/// Saves under way, and the requests that are answered when they are done.
#[derive(Debug, Default)]
pub(super) struct Saving {
    next: u64,
    /// The last one that is durable; they are done in order.
    done: u64,
    answers: Vec<(u64, Call, Answer)>,
    /// Lives that are fenced for good when these are done.
    fenced: Vec<(u64, Life)>,
}

/// Returns true if a device has been out of the array between two of its conditions. The states in between need not be
/// known here.
fn was_out(before: Condition, after: Condition) -> bool {
    match (before, after) {
        (_, after) if after.is_out() => true,
        (Condition::Good, after) => after != Condition::Good,
        (before, after) => match (before.rebuilt_to(), after.rebuilt_to()) {
            (Some(done), Some(now)) => now < done,
            _ => false,
        },
    }
}

impl Device {
    /// Saves the record; then gives the answer.
    pub(super) fn save(&mut self, answer: Option<(Call, Answer)>) {
        self.saving.next += 1;
        let number = self.saving.next;
        self.saving.answers.extend(answer.map(|(call, answer)| (number, call, answer)));
        self.disk.add(None, Job::Save(self.record()), Purpose::Save { number });
    }

    /// The record that another life of this device goes on with.
    pub fn record(&self) -> Bytes {
        self.record.encode()
    }

    pub(super) fn saved(&mut self, number: u64) {
        self.saving.done = number;
        for (wanted, life) in std::mem::take(&mut self.saving.fenced) {
            if wanted <= number {
                self.note_fenced(life);
            } else {
                self.saving.fenced.push((wanted, life));
            }
        }
        let all = std::mem::take(&mut self.saving.answers);
        for (wanted, call, answer) in all {
            if wanted == number {
                self.reply(call, false, answer);
            } else {
                self.saving.answers.push((wanted, call, answer));
            }
        }
    }

    /// Reports fenced lives to histories when the present save is durable.
    pub(super) fn note_fenced_when_saved(&mut self, lives: &[Life]) {
        if self.is_saving() {
            let number = self.saving.next;
            self.saving.fenced.extend(lives.iter().map(|life| (number, *life)));
        } else {
            lives.iter().for_each(|life| self.note_fenced(*life));
        }
    }

    pub(super) fn note_fenced(&mut self, life: Life) {
        self.fencing.push(life);
    }

    /// Reports the fenced lives whose writes no longer wait for the disk. No later request of theirs comes before the
    /// fence.
    pub(super) fn tell_fenced(&mut self) {
        for life in std::mem::take(&mut self.fencing) {
            if self.disk.waits_with_writes_of(life) {
                self.fencing.push(life);
            } else {
                self.output.push_back(DeviceOutput::Event(DeviceEvent::Fenced { life }));
            }
        }
    }

    pub(super) fn last_save(&self) -> u64 {
        self.saving.next
    }

    /// Returns true if a change of the record may not be durable yet.
    pub(super) fn is_saving(&self) -> bool {
        self.saving.done < self.saving.next
    }

    /// A vote: kept before it is given.
    pub(super) fn vote(&mut self, call: Call, ask: Agree, effects: &mut Vec<Effect>) {
        // A medium that was put back has forgotten votes of later epochs. The others are a majority without it. Two voters have
        // no majority without it; but each majority has had both, and the other one has forgotten nothing.
        if self.is_out_of_date() && self.config.voters > 2 {
            return;
        }
        let unsure = !self.is_let_in();
        let (answer, changed) = self.record.acceptor.handle(ask, unsure);
        let answer = Answer::Agreed(Box::new(answer));
        // A vote that was asked for again may not be saved yet either; saves are in order.
        if changed || self.is_saving() {
            self.save(Some((call, answer)));
        } else {
            effects.push(Effect::answer(call, answer));
        }
    }

    /// A host knows a newer state. It counts from now on, and hosts are told when it is durable.
    pub(super) fn install(
        &mut self,
        now: Time,
        call: Call,
        state: ArrayState,
        effects: &mut Vec<Effect>,
    ) {
        if state.epoch <= self.record.state().epoch {
            return effects.push(Effect::answer(call, Answer::Done));
        }
        if !self.adopt(now, state, effects) {
            return effects.push(Effect::answer(call, Answer::Invalid));
        }
        self.save(Some((call, Answer::Done)));
    }

    /// A lock server knows a newer state. No host may have told this device.
    pub fn learn(&mut self, now: Time, state: ArrayState) {
        let mut effects = Vec::new();
        if state.epoch > self.record.state().epoch && self.adopt(now, state, &mut effects) {
            self.save(None);
        }
        self.carry_out(effects);
        self.use_disk(now);
    }

    /// Continues by a newer state, which the caller saves. Returns false if it is of another array.
    fn adopt(&mut self, now: Time, state: ArrayState, effects: &mut Vec<Effect>) -> bool {
        let before = self.record.state().condition(self.config.id);
        let served = self.is_let_in();
        if !self.record.acceptor.install(&state) {
            return false;
        }
        self.record.learn_key(self.config.id);
        let now_is = state.condition(self.config.id);
        self.config.layout = self.config.layout.grown(&state);
        self.suspects.grow(self.config.layout);
        self.output.push_back(DeviceOutput::State(state));
        if before.zip(now_is).is_some_and(|(before, now_is)| was_out(before, now_is)) {
            // Hosts continue without this device, and will not cancel their state here.
            self.medium.are_resolved(|_| true);
            self.tso.clear(now, None, &mut self.memory, effects);
            self.locks.clear(None, effects);
            self.forget_readmission();
        }
        if let Some((before, now_is)) = before.zip(now_is) {
            self.forget_durable(before, now_is);
            self.forget_leftovers(now, before, now_is);
        }
        if self.is_let_in() && !served {
            self.serve_waiting(now, effects);
        } else if self.record.state().term(self.config.id) > self.record.term {
            self.record.begin_term(self.config.id, self.random);
        } else if !self.is_let_in() {
            self.record.ask_for_key(self.random);
        }
        true
    }

    /// A device may have started while it was out. Others have repaired without it what hosts had left by then. If all of it is made
    /// anew, or beside parity that is made to fit, that is the end of it. Where an operator has its own old blocks used, they are still to
    /// be repaired: its earlier reports were of no use.
    fn forget_leftovers(&mut self, now: Time, before: Condition, now_is: Condition) {
        if !before.is_out() || now_is.is_out() {
            return;
        }
        match now_is.whole_to() {
            Some(_) => {
                let left: Vec<Life> = self.readmission.leftovers().collect();
                left.into_iter().for_each(|life| self.expect_repair(now, life));
            }
            None => self.forget_readmission(),
        }
    }

    /// Blocks that are made anew are covered by no earlier flush. A device that had everything when it went out keeps in its
    /// record what flushes had covered: its medium may come back as it is.
    fn forget_durable(&mut self, before: Condition, now_is: Condition) {
        let made_anew = was_out(before, now_is) || before.is_out() && !now_is.is_out();
        if before == now_is || !made_anew {
            return;
        }
        self.durable.forget();
        if now_is != Condition::Failed {
            self.record.durable = Covered::default();
        }
    }
}
