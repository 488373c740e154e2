//! Lives that are fenced (section 3.2), durably: a write of theirs that was delayed must not land after others have repaired
//! what they left.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Device, Effect};
use crate::message::{Answer, Call, Past};
use crate::{HostId, Life, OpId, Time};

/// Fenced lives: those of these hosts up to these incarnations.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Fences(BTreeMap<HostId, u64>);

impl Fences {
    pub(super) fn has(&self, life: Life) -> bool {
        self.0.get(&life.host).is_some_and(|floor| life.incarnation <= *floor)
    }

    /// Whether a request does not wait for what an operation holds. A repair waits for no fenced life, whichever it repairs:
    /// two repairs of two lives would wait for each other.
    pub(super) fn is_past(&self, past: &Past, op: OpId) -> bool {
        past.covers(op) || matches!(past, Past::Life(_)) && self.has(op.life)
    }
}

impl Device {
    pub(super) fn is_fenced(&self, life: Life) -> bool {
        self.record.fenced.has(life)
    }

    pub(super) fn fence(&mut self, now: Time, call: Call, life: Life, effects: &mut Vec<Effect>) {
        let news = !self.is_fenced(life);
        if news {
            self.record.fenced.0.insert(life.host, life.incarnation);
            let fenced = &self.record.fenced;
            self.tso.fence(now, fenced, &mut self.memory, effects);
            self.locks.fence(fenced, effects);
        }
        let theirs = self.in_flight().filter(|(holder, _)| *holder == life);
        let answer = Answer::InFlight(theirs.filter_map(|(_, extent)| extent).collect());
        // Even if it is no news: that it was fenced may still be on its way to the disk.
        if news || self.is_saving() {
            self.save(Some((call, answer)));
        } else {
            effects.push(Effect::answer(call, answer));
        }
    }

    pub(super) fn clear(&mut self, now: Time, call: Call, life: Life, effects: &mut Vec<Effect>) {
        if !self.is_fenced(life) {
            return effects.push(Effect::answer(call, Answer::Invalid));
        }
        self.tso.clear(now, Some(life), &mut self.memory, effects);
        self.locks.clear(Some(life), effects);
        self.heard.remove(&life);
        self.reported.remove(&life);
        effects.push(Effect::answer(call, Answer::Done));
    }
}
