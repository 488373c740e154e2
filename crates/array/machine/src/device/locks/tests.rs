//! Tests of each rule of docs/design/array.md 2.3.

use bytes::Bytes;

use super::*;
use crate::{Header, HostId, OpId};

struct Rig {
    locks: Locks,
    memory: Memory,
}

const B: Extent = Extent { start: 0, count: 2 };

fn call(op: u64) -> Call {
    let life = Life { host: HostId(1), incarnation: 1 };
    Call { op: OpId { life, seq: op }, sibling: 0, step: 1 }
}

fn done(op: u64) -> Effect {
    Effect::answer(call(op), Answer::Done)
}

fn has_lock(op: u64, waited: bool, seen: Time) -> Effect {
    Effect::Answer { call: call(op), waited, answer: Answer::Locked { seen, content: None } }
}

fn locked(op: u64) -> Effect {
    has_lock(op, false, 0)
}

fn late(op: u64) -> Effect {
    has_lock(op, true, 0)
}

fn denied(op: u64, waited: bool) -> Effect {
    Effect::Answer { call: call(op), waited, answer: Answer::Denied }
}

impl Rig {
    fn new() -> Self {
        Rig { locks: Locks::default(), memory: Memory::new(1_000, 0, 0) }
    }

    fn ask(&mut self, op: u64, mode: Mode, past: Past) -> Vec<Effect> {
        let (call, extent, stamp) = (call(op), B, Stamp::default());
        let (read, repairs) = (None, false);
        let ask = Ask { call, stamp, extent, mode, read, repairs, patience: 10, past };
        let mut effects = Vec::new();
        self.locks.lock(0, ask, &self.memory, &mut effects);
        effects
    }

    fn lock(&mut self, op: u64, mode: Mode) -> Vec<Effect> {
        self.ask(op, mode, Past::Nobody)
    }

    fn unlock(&mut self, op: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.locks.unlock(0, call(op), &mut self.memory, &mut effects);
        effects
    }

    fn write(&mut self, op: u64, extent: Extent) -> Vec<Effect> {
        let mut effects = Vec::new();
        let blocks =
            Blocks { extent, data: Bytes::new(), header: Header::default(), marks: vec![] };
        let stamp = Stamp::default();
        self.locks.write_unlock(0, call(op), stamp, blocks, &mut self.memory, &mut effects);
        effects
    }
}

use Mode::{Exclusive as X, Shared as S};

#[test]
fn readers_share_and_a_writer_waits_for_all() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, S), [locked(1)]);
    assert_eq!(rig.lock(2, S), [locked(2)]);
    assert_eq!(rig.lock(3, X), []);
    assert_eq!(rig.unlock(1), [done(1)]);
    assert_eq!(rig.unlock(2), [done(2), late(3)]);
}

#[test]
fn readers_do_not_pass_a_waiting_writer() {
    let mut rig = Rig::new();
    rig.lock(1, S);
    rig.lock(2, X);
    assert_eq!(rig.lock(3, S), []);
    assert_eq!(rig.unlock(1), [done(1), late(2)]);
    let effects = rig.write(2, B);
    assert!(matches!(effects[0], Effect::Write { .. }));
    assert_eq!(effects[1..], [late(3)]);
}

#[test]
fn who_waits_too_long_is_denied_and_lets_others_pass() {
    let mut rig = Rig::new();
    rig.lock(1, S);
    rig.lock(2, X);
    rig.lock(3, S);
    assert_eq!(rig.locks.next_timer(), Some(10));
    let mut effects = Vec::new();
    rig.locks.queue[2].until = 20;
    rig.locks.expire(10, &mut rig.memory, &mut effects);
    assert_eq!(effects, [denied(2, true), late(3)]);
    // The request that was denied comes once more.
    assert_eq!(rig.lock(2, X), [denied(2, false)]);
}

#[test]
fn an_unlock_that_overtakes_its_lock_leaves_a_tombstone() {
    let mut rig = Rig::new();
    assert_eq!(rig.unlock(1), [done(1)]);
    assert_eq!(rig.lock(1, X), [denied(1, false)]);
    assert_eq!(rig.lock(2, X), [locked(2)]);
}

#[test]
fn a_write_needs_its_lock_exclusively_and_all_of_it() {
    let mut rig = Rig::new();
    assert_eq!(rig.write(1, B), [Effect::not_prepared(call(1))]);
    rig.lock(2, S);
    assert_eq!(rig.write(2, B), [Effect::not_prepared(call(2))]);
    rig.unlock(2);
    rig.lock(3, X);
    assert_eq!(rig.write(3, Extent { start: 1, count: 2 }), [Effect::not_prepared(call(3))]);
    assert!(matches!(rig.write(3, B)[..], [Effect::Write { .. }]));
    assert_eq!(rig.write(3, B), [Effect::WrittenBefore { call: call(3) }]);
}

#[test]
fn a_lock_that_is_asked_for_twice_is_one() {
    let mut rig = Rig::new();
    rig.lock(1, X);
    assert_eq!(rig.lock(1, X), [locked(1)]);
    rig.lock(2, X);
    assert_eq!(rig.lock(2, X), []);
    assert_eq!(rig.unlock(1), [done(1), late(2)]);
    assert_eq!(rig.lock(1, X), [denied(1, false)]);
}

#[test]
fn a_try_that_goes_on_is_not_held_up_by_the_first() {
    let mut rig = Rig::new();
    rig.lock(1, X);
    rig.lock(2, S);
    assert_eq!(rig.ask(3, X, Past::Tries(vec![call(1).op])), []);
    rig.locks.queue.retain(|lock| lock.ask.call != call(2));
    assert_eq!(rig.ask(4, X, Past::Tries(vec![call(1).op, call(3).op])), [locked(4)]);
}

#[test]
fn who_gets_a_lock_learns_what_was_written_last() {
    let mut rig = Rig::new();
    rig.lock(1, X);
    let mut effects = Vec::new();
    let blocks = Blocks { extent: B, data: Bytes::new(), header: Header::default(), marks: vec![] };
    let stamp = Stamp { time: 7, host: 1 };
    rig.locks.write_unlock(0, call(1), stamp, blocks, &mut rig.memory, &mut effects);
    assert_eq!(rig.lock(2, X), [has_lock(2, false, 7)]);
}

/// Otherwise its host writes at a device that has not fenced it yet, when this one has told what it may write.
#[test]
fn a_fenced_life_gets_no_lock_for_which_it_waits() {
    let mut rig = Rig::new();
    rig.lock(1, X);
    let life = Life { host: HostId(2), incarnation: 1 };
    let theirs = Call { op: OpId { life, seq: 2 }, ..call(2) };
    let (stamp, past) = (Stamp::default(), Past::Nobody);
    let (read, repairs) = (None, false);
    let ask = Ask { call: theirs, stamp, extent: B, mode: X, read, repairs, patience: 10, past };
    let mut effects = Vec::new();
    rig.locks.lock(0, ask, &rig.memory, &mut effects);
    let mut fenced = Fences::default();
    fenced.add(life);
    rig.locks.fence(&fenced, &mut effects);
    let answer = Answer::Fenced;
    assert_eq!(effects, [Effect::Answer { call: theirs, waited: true, answer }]);
    assert_eq!(rig.unlock(1), [done(1)]);
    assert_eq!(rig.locks.holders().count(), 0);
}
