//! Tests of each rule of docs/design/array.md 2.4.

use bytes::Bytes;

use super::*;
use crate::{Header, HostId};

const T: Time = 1_000;
const AHEAD: Time = 50;

struct Rig {
    tso: Tso,
    memory: Memory,
    now: Time,
}

fn extent(start: u64, count: u32) -> Extent {
    Extent { start, count }
}

/// Each operation is named by its timestamp.
fn call(stamp: Time) -> Call {
    let life = Life { host: HostId(1), incarnation: 1 };
    Call { op: OpId { life, seq: stamp }, sibling: 0, step: 1 }
}

fn asked(stamp: Time, read: Option<Extent>, write: Option<Extent>) -> Prepare {
    Prepare {
        call: call(stamp),
        stamp: Stamp { time: stamp, host: 1 },
        read,
        write,
        repairs: false,
        starving: false,
        past: Past::Nobody,
    }
}

fn rejected(stamp: Time, seen: Time) -> Vec<Effect> {
    vec![Effect::answer(call(stamp), Answer::Rejected { seen })]
}

fn accepted(stamp: Time) -> Vec<Effect> {
    vec![Effect::answer(call(stamp), Answer::Done)]
}

fn data(stamp: Time, extent: Extent) -> Vec<Effect> {
    vec![Effect::granted(call(stamp), Some(extent), false, false)]
}

fn data_late(stamp: Time, extent: Extent) -> Effect {
    Effect::granted(call(stamp), Some(extent), false, true)
}

impl Rig {
    fn new() -> Self {
        Rig { tso: Tso::new(T, AHEAD, false, 0), memory: Memory::new(T, AHEAD, 0), now: 100 }
    }

    fn ask(&mut self, asked: Prepare) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.tso.prepare(self.now, asked, &mut self.memory, &mut effects);
        effects
    }

    fn r(&mut self, stamp: Time, extent: Extent) -> Vec<Effect> {
        self.ask(asked(stamp, Some(extent), None))
    }

    fn p(&mut self, stamp: Time, extent: Extent) -> Vec<Effect> {
        self.ask(asked(stamp, None, Some(extent)))
    }

    fn rp(&mut self, stamp: Time, extent: Extent) -> Vec<Effect> {
        self.ask(asked(stamp, Some(extent), Some(extent)))
    }

    fn c(&mut self, stamp: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.tso.cancel(self.now, call(stamp), &mut self.memory, &mut effects);
        effects
    }

    fn w(&mut self, stamp: Time, extent: Extent) -> Vec<Effect> {
        let mut effects = Vec::new();
        let blocks =
            Blocks { extent, data: Bytes::new(), header: Header::default(), marks: vec![] };
        self.tso.commit(self.now, call(stamp), blocks, &mut self.memory, &mut effects);
        effects
    }
}

/// Which parts of a write were applied; the other effects.
fn parts(effects: Vec<Effect>) -> (Vec<(Extent, bool)>, Vec<Effect>) {
    let mut parts = Vec::new();
    let mut others = Vec::new();
    for effect in effects {
        match effect {
            Effect::Write { parts: p, .. } => {
                parts.extend(p.into_iter().map(|p| (p.extent, p.applies)));
            }
            other => others.push(other),
        }
    }
    (parts, others)
}

const B: Extent = Extent { start: 0, count: 1 };

#[test]
fn a_read_that_is_older_than_the_last_write_is_rejected() {
    let mut rig = Rig::new();
    rig.p(10, B);
    rig.w(10, B);
    assert_eq!(rig.r(9, B), rejected(9, 10));
    assert_eq!(rig.r(11, B), data(11, B));
}

#[test]
fn a_read_waits_for_older_prewrites_only() {
    let mut rig = Rig::new();
    rig.p(10, B);
    assert_eq!(rig.r(9, B), data(9, B));
    assert_eq!(rig.r(11, B), []);
    let (written, others) = parts(rig.w(10, B));
    assert_eq!(written, [(B, true)]);
    assert_eq!(others, [data_late(11, B)]);
}

#[test]
fn a_prewrite_older_than_a_read_or_write_is_rejected() {
    let mut rig = Rig::new();
    rig.r(20, B);
    assert_eq!(rig.p(19, B), rejected(19, 20));
    assert_eq!(rig.p(30, B), accepted(30));
    rig.w(30, B);
    assert_eq!(rig.p(29, B), rejected(29, 30));
}

#[test]
fn prewrites_do_not_wait_for_prewrites() {
    let mut rig = Rig::new();
    assert_eq!(rig.p(30, B), accepted(30));
    assert_eq!(rig.p(20, B), accepted(20));
}

#[test]
fn a_read_and_prewrite_is_not_blocked_by_itself_but_blocks_younger_ones_at_once() {
    let mut rig = Rig::new();
    assert_eq!(rig.rp(10, B), data(10, B));
    assert_eq!(rig.rp(20, B), []);
    assert_eq!(rig.rp(30, B), []);
    let (_, others) = parts(rig.w(10, B));
    assert_eq!(others, [data_late(20, B)], "30 waits for 20");
    let (_, others) = parts(rig.w(20, B));
    assert_eq!(others, [data_late(30, B)]);
}

#[test]
fn a_range_is_tested_as_a_whole() {
    let mut rig = Rig::new();
    rig.r(20, extent(3, 1));
    assert_eq!(rig.p(19, extent(0, 4)), rejected(19, 20));
    assert_eq!(rig.r(25, extent(0, 1)), data(25, extent(0, 1)), "nothing is left of the pre-write");
}

#[test]
fn a_write_without_a_prewrite_is_refused() {
    let mut rig = Rig::new();
    assert_eq!(rig.w(10, B), [Effect::not_prepared(call(10))]);
    rig.p(20, B);
    let beyond = rig.w(20, extent(0, 2));
    assert_eq!(beyond, [Effect::answer(call(20), Answer::Invalid)]);
}

#[test]
fn a_write_that_comes_twice_is_written_once() {
    let mut rig = Rig::new();
    rig.p(10, B);
    rig.w(10, B);
    assert_eq!(rig.w(10, B), [Effect::WrittenBefore { call: call(10) }]);
    assert_eq!(rig.p(10, B), [], "a pre-write that comes after its write is none");
    assert_eq!(rig.r(11, B), data(11, B));
}

#[test]
fn a_write_is_dropped_where_a_newer_one_is() {
    let mut rig = Rig::new();
    rig.p(10, extent(0, 4));
    rig.p(20, extent(1, 2));
    rig.w(20, extent(1, 2));
    let (written, _) = parts(rig.w(10, extent(0, 4)));
    assert_eq!(written, [(extent(0, 1), true), (extent(1, 2), false), (extent(3, 1), true)]);
}

#[test]
fn a_queued_read_that_a_newer_write_overtakes_is_rejected() {
    let mut rig = Rig::new();
    rig.p(10, B);
    rig.p(30, B);
    assert_eq!(rig.r(20, B), []);
    let (_, others) = parts(rig.w(30, B));
    let rejection = Answer::Rejected { seen: 30 };
    assert_eq!(others, [Effect::Answer { call: call(20), waited: true, answer: rejection }]);
}

#[test]
fn a_queued_read_and_prewrite_that_is_rejected_takes_its_prewrite_along() {
    let mut rig = Rig::new();
    rig.p(10, B);
    rig.p(30, B);
    assert_eq!(rig.rp(20, B), []);
    let (_, others) = parts(rig.w(30, B));
    assert_eq!(others.len(), 1);
    rig.w(10, B);
    assert_eq!(rig.w(20, B), [Effect::not_prepared(call(20))]);
    assert_eq!(rig.tso.holders().count(), 0);
}

#[test]
fn a_cancel_serves_the_queue_and_a_late_request_is_refused() {
    let mut rig = Rig::new();
    rig.p(10, B);
    assert_eq!(rig.r(20, B), []);
    assert_eq!(rig.c(10), [Effect::answer(call(10), Answer::Done), data_late(20, B)]);
    rig.c(40);
    assert_eq!(rig.p(40, B), rejected(40, 40));
    assert_eq!(rig.tso.holders().count(), 0);
    // A waiting read is taken out as well.
    rig.p(50, B);
    rig.r(60, B);
    rig.c(60);
    let (_, others) = parts(rig.w(50, B));
    assert_eq!(others, []);
}

/// Its host regards it as finished. A second copy that arrives when nothing blocks it any more must have no
/// effect.
#[test]
fn what_was_rejected_stays_rejected_when_it_comes_again() {
    let mut rig = Rig::new();
    let dead = Life { host: HostId(2), incarnation: 1 };
    let mut left = asked(101, None, Some(B));
    left.call.op.life = dead;
    rig.ask(left);
    let mut fenced = Fences::default();
    fenced.add(dead);
    rig.tso.fence(rig.now, &fenced, &mut rig.memory, &mut Vec::new());
    assert_eq!(rig.rp(110, B), rejected(110, 110));
    rig.tso.clear(rig.now, Some(dead), &mut rig.memory, &mut Vec::new());
    assert_eq!(rig.rp(110, B), rejected(110, 110));
    assert_eq!(rig.rp(111, B), data(111, B));
    assert_eq!(rig.tso.holders().count(), 1);
}

#[test]
fn timestamps_far_ahead_are_refused() {
    let mut rig = Rig::new();
    assert_eq!(rig.p(150, B), accepted(150));
    let answer = Answer::Ahead { excess: 1, ahead: 51 };
    assert_eq!(rig.r(151, B), [Effect::answer(call(151), answer)]);
}

#[test]
fn what_was_forgotten_counts_as_read_and_written_at_the_floor() {
    let mut rig = Rig::new();
    rig.r(100, B);
    rig.now = 5_000;
    rig.tso.forget(rig.now);
    assert_eq!(rig.tso.times.len(), 0);
    assert_eq!(rig.p(4_000, B), rejected(4_000, 4_000));
    assert_eq!(rig.r(3_999, extent(7, 1)), rejected(3_999, 4_000));
    assert_eq!(rig.p(4_001, B), accepted(4_001));
}

#[test]
fn the_floor_does_not_fall_with_the_clock() {
    let mut rig = Rig::new();
    rig.tso.forget(5_000);
    rig.tso.forget(3_000);
    rig.tso.swept = 0;
    rig.tso.forget(2_000);
    rig.now = 5_000;
    assert_eq!(rig.p(4_000, B), rejected(4_000, 4_000));
}

#[test]
fn a_write_is_valid_however_old_its_prewrite_is() {
    let mut rig = Rig::new();
    rig.p(100, extent(0, 2));
    rig.now = 50_000;
    rig.tso.forget(rig.now);
    let (written, _) = parts(rig.w(100, extent(0, 2)));
    assert_eq!(written, [(extent(0, 2), true)]);
}

#[test]
fn a_queued_read_is_not_forgotten_with_age() {
    let mut rig = Rig::new();
    rig.p(100, B);
    rig.r(110, B);
    rig.now = 50_000;
    rig.tso.forget(rig.now);
    let (_, others) = parts(rig.w(100, B));
    assert_eq!(others, [data_late(110, B)]);
}

#[test]
fn in_the_basic_variant_a_write_waits_for_older_reads() {
    let mut rig = Rig::new();
    rig.tso.basic = true;
    rig.p(10, B);
    rig.p(30, B);
    assert_eq!(rig.r(20, B), []);
    assert_eq!(rig.w(30, B), [], "the read with 20 waits");
    let effects = rig.w(10, B);
    assert!(matches!(effects[0], Effect::Write { stamp: Stamp { time: 10, .. }, .. }));
    assert_eq!(effects[1], data_late(20, B));
    assert!(matches!(
        effects[2],
        Effect::Write { stamp: Stamp { time: 30, .. }, waited: true, .. }
    ));
}

#[test]
fn writes_wait_for_a_starving_read() {
    let mut rig = Rig::new();
    rig.p(10, B);
    rig.p(30, B);
    let starving = Prepare { starving: true, ..asked(20, Some(B), None) };
    assert_eq!(rig.ask(starving), []);
    assert_eq!(rig.w(30, B), []);
    let effects = rig.c(10);
    assert_eq!(effects[1], data_late(20, B));
    assert!(matches!(effects[2], Effect::Write { stamp: Stamp { time: 30, .. }, .. }));
}

#[test]
fn a_try_that_goes_on_is_not_held_up_by_the_first() {
    let mut rig = Rig::new();
    rig.p(10, B);
    let past = Past::Tries(vec![call(10).op]);
    let asked = Prepare { past, ..asked(20, Some(B), Some(B)) };
    assert_eq!(rig.ask(asked), data(20, B));
    rig.c(10);
    let (written, _) = parts(rig.w(20, B));
    assert_eq!(written, [(B, true)]);
}

#[test]
fn a_request_that_comes_twice_has_the_same_answer_or_none() {
    let mut rig = Rig::new();
    assert_eq!(rig.rp(10, B), data(10, B));
    assert_eq!(rig.rp(10, B), data(10, B));
    rig.p(30, B);
    rig.w(30, B);
    let answer = Answer::Overtaken { seen: 30 };
    assert_eq!(rig.rp(10, B), [Effect::answer(call(10), answer)]);
    let (written, _) = parts(rig.w(10, B));
    assert_eq!(written, [(B, false)], "its pre-write is still there");
}
