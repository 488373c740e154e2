//! The array's state at a device, and the record that the device keeps durably.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::disk::{Job, Purpose};
use super::{Device, DeviceBoot, DeviceOutput, Effect};
use crate::message::{Answer, Call};
use crate::{ArrayState, Condition, Time};

/// A device's record makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the device's record cannot be read; replace the device, so that it is rebuilt")]
pub struct BootError;

/// What a device keeps durably beside its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The array's state.
    pub state: ArrayState,
}

impl Record {
    /// The record that a device starts with, and whether it has run before.
    pub(super) fn at_start(boot: &DeviceBoot) -> Result<(Self, bool), BootError> {
        match &boot.record {
            None => Ok((Record { state: boot.state.clone() }, false)),
            Some(record) => Ok((postcard::from_bytes(record).map_err(|_| BootError)?, true)),
        }
    }
}

/// Saves under way, and who is answered when they are done.
#[derive(Debug, Default)]
pub(super) struct Saving {
    next: u64,
    answers: Vec<(u64, Call)>,
}

impl Device {
    /// Saves the record; then answers the call.
    pub(super) fn save(&mut self, call: Option<Call>) {
        self.saving.next += 1;
        let number = self.saving.next;
        self.saving.answers.extend(call.map(|call| (number, call)));
        // Serialization to memory fails only for types that have no length; a record has.
        let record = postcard::to_allocvec(&self.record).unwrap_or_default();
        self.disk.add(None, Job::Save(Bytes::from(record)), Purpose::Save { number });
    }

    pub(super) fn saved(&mut self, number: u64) {
        let (done, rest) = self.saving.answers.drain(..).partition(|(n, _)| *n == number);
        self.saving.answers = rest;
        let done: Vec<(u64, Call)> = done;
        for (_, call) in done {
            self.reply(call, false, Answer::Done);
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
        if state.epoch <= self.record.state.epoch {
            return effects.push(Effect::answer(call, Answer::Done));
        }
        if state.devices.len() != self.record.state.devices.len() {
            return effects.push(Effect::answer(call, Answer::Invalid));
        }
        self.record.state = state.clone();
        self.output.push_back(DeviceOutput::State(state));
        let own = self.record.state.devices.get(usize::from(self.config.id.0));
        if own == Some(&Condition::Failed) {
            // Hosts go on without this device, and will not take back what they hold here.
            self.tso.clear(now, None, &mut self.memory, effects);
            self.locks.clear(None, effects);
        }
        self.save(Some(call));
    }
}
