//! Durably fenced lives (docs/design/array.md 3.2). A late write of theirs must not land after others have repaired its
//! stripe.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Device, Effect};
use crate::message::{Answer, Call, Past};
use crate::{Extent, Header, HostId, Life, OpId, Time};

/// Fenced lives: those of these hosts up to these incarnations.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Fences(BTreeMap<HostId, u64>);

impl Fences {
    pub(super) fn has(&self, life: Life) -> bool {
        self.0.get(&life.host).is_some_and(|floor| life.incarnation <= *floor)
    }

    /// The last fenced life of each host.
    pub(super) fn lives(&self) -> impl Iterator<Item = Life> {
        self.0.iter().map(|(&host, &incarnation)| Life { host, incarnation })
    }

    pub(super) fn add(&mut self, life: Life) {
        let floor = self.0.entry(life.host).or_default();
        *floor = (*floor).max(life.incarnation);
    }

    /// Returns true if a request ignores the locks of an operation. A repair waits for no fenced life, whichever it repairs:
    /// two repairs of two lives would wait for each other.
    pub(super) fn is_past(&self, past: &Past, op: OpId) -> bool {
        past.covers(op) || matches!(past, Past::Life(_)) && self.has(op.life)
    }
}

impl Device {
    /// Durably fenced lives take nothing up any more. The stripes that they may have left half written are suspect.
    pub(super) fn release_fenced(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.is_saving() {
            return;
        }
        let fenced = self.readmission.awaited().filter(|life| self.is_fenced(*life));
        for life in fenced.collect::<Vec<_>>() {
            // Perhaps only by the fence of a later life of its host: whoever repairs after that one does not know it.
            // It may also be repaired by now: another save was under way.
            if self.readmission.forgot(life) {
                self.readmission.leaves(life);
                self.expect_repair(now, life);
            }
            self.returned(now, life, effects);
        }
    }

    /// Returns true if nothing of a life takes effect here any more. The fence may not be durable yet.
    pub fn is_fenced(&self, life: Life) -> bool {
        self.record.fenced.has(life)
    }

    /// Returns true if one of these lives was not fenced before.
    fn raise(&mut self, now: Time, lives: &[Life], effects: &mut Vec<Effect>) -> bool {
        let new: Vec<Life> = lives.iter().copied().filter(|life| !self.is_fenced(*life)).collect();
        new.iter().for_each(|life| self.record.fenced.add(*life));
        if !new.is_empty() {
            let fenced = &self.record.fenced;
            self.tso.fence(now, fenced, &mut self.memory, effects);
            self.locks.fence(fenced, effects);
        }
        !new.is_empty()
    }

    /// Lives that were fenced while this device was away. The device serves blocks only after it knows them. A write of
    /// theirs may still be under way. Under the schemes with a lock server only the fence stops it.
    pub(super) fn learn_fences(
        &mut self,
        now: Time,
        call: Call,
        lives: &[Life],
        effects: &mut Vec<Effect>,
    ) {
        let news = self.raise(now, lives, effects);
        self.answer_saved(news, call, Answer::Done, effects);
        self.note_fenced_when_saved(lives);
    }

    /// An answer that needs the fences to be durable. If they are no news, they may still be on their way to the disk.
    fn answer_saved(&mut self, news: bool, call: Call, answer: Answer, effects: &mut Vec<Effect>) {
        if news || self.is_saving() {
            self.save(Some((call, answer)));
        } else {
            effects.push(Effect::answer(call, answer));
        }
    }

    pub(super) fn list_fences(&self, call: Call, effects: &mut Vec<Effect>) {
        let lives = self.record.fenced.lives().collect();
        effects.push(Effect::answer(call, Answer::Fences(lives)));
    }

    pub(super) fn fence(&mut self, now: Time, call: Call, life: Life, effects: &mut Vec<Effect>) {
        if self.readmission.awaits(life) {
            self.readmission.leaves(life);
        }
        let news = self.raise(now, &[life], effects);
        let has_writes = !self.config.scheme.has_server() && self.memory.pin(life);
        if has_writes || self.readmission.leftovers().any(|left| left == life) {
            self.expect_repair(now, life);
        }
        let theirs = self.in_flight().filter(|held| held.life == life);
        let in_flight = theirs.filter_map(|held| Some((held.writes?, held.stamp))).collect();
        // In one order, whatever the table's: simulations are to repeat.
        let mut written: Vec<(Extent, Header)> = self.memory.written_by(life).collect();
        written.sort_unstable_by_key(|(extent, header)| (*extent, header.stamp));
        written.dedup();
        let (forgotten, forgot) = (self.memory.forgotten_of(life), self.readmission.forgot(life));
        let answer = Answer::InFlight { in_flight, written, forgotten, forgot };
        self.answer_saved(news, call, answer, effects);
    }

    /// Who fences a life repairs what it has left. If that does not come, the life is reported again.
    pub(super) fn expect_repair(&mut self, now: Time, life: Life) {
        self.heard.insert(life, now);
        self.reported.remove(&life);
        self.silence.get_or_insert(now.saturating_add(self.config.lease));
    }

    pub(super) fn clear(&mut self, now: Time, call: Call, life: Life, effects: &mut Vec<Effect>) {
        if !self.is_fenced(life) {
            return effects.push(Effect::answer(call, Answer::Invalid));
        }
        self.medium.are_resolved(|other| other == life);
        self.tso.clear(now, Some(life), &mut self.memory, effects);
        self.locks.clear(Some(life), effects);
        self.heard.remove(&life);
        self.reported.remove(&life);
        if !self.is_unsure_of(life) {
            // Saved with the next record: until then it is only waited for in vain, and found fenced.
            self.record.holders.remove(&life);
        }
        self.readmission.repaired(life);
        self.memory.unpin(life);
        self.note_fenced(life);
        effects.push(Effect::answer(call, Answer::Done));
    }
}
