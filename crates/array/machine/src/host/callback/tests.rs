use super::*;
use crate::{Extent, HostId, Life};
use LockMode::{Exclusive as X, Shared as S};

fn range(start: u64, count: u32, mode: LockMode) -> LockRange {
    LockRange { device: DeviceId(0), extent: Extent { start, count }, mode }
}

fn op(seq: u64) -> OpId {
    OpId { life: Life { host: HostId(1), incarnation: 1 }, seq }
}

fn part(seq: u64, index: u16) -> PartId {
    PartId { op: op(seq), index }
}

fn cache() -> LockCache {
    let mut cache = LockCache::default();
    cache.renewed(1000);
    cache
}

#[test]
fn what_is_covered_costs_no_message() {
    let mut c = cache();
    assert_eq!(c.want(1, &[range(0, 4, X)], &[], false, 0), Want::Ask);
    assert_eq!(c.granted(op(1), &[range(0, 4, X), range(4, 4, S)], &[], false), Want::Ready);
    c.done(1, 0);
    assert_eq!(c.want(2, &[range(2, 4, S)], &[], false, 0), Want::Ready);
    c.done(2, 0);
    assert_eq!(c.want(3, &[range(2, 4, X)], &[], false, 0), Want::Ask, "a part is only shared");
    assert_eq!(c.want(3, &[range(6, 4, S)], &[], false, 0), Want::Ask, "a part is not covered");
    assert_eq!(c.want(3, &[range(0, 1, S)], &[], false, 1000), Want::Ask, "the lease has ended");
}

#[test]
fn operations_of_one_host_that_conflict_run_one_after_the_other() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    assert_eq!(c.want(2, &[range(0, 1, X)], &[], false, 0), Want::Wait);
    assert_eq!(c.want(3, &[range(1, 1, S)], &[], false, 0), Want::Wait);
    assert_eq!(c.want(4, &[range(0, 2, X)], &[], false, 0), Want::Wait);
    let ready = c.done(1, 0).ready;
    assert_eq!(ready, [2, 3]);
    assert_eq!(c.done(3, 0).ready, [0; 0]);
    assert_eq!(c.done(2, 0).ready, [4]);
}

#[test]
fn a_callback_waits_for_users_and_lets_nobody_else_in() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X), range(4, 4, X)], &[], false);
    c.want(2, &[range(0, 1, X)], &[], false, 0);
    assert_eq!(c.call_back(&[part(1, 0)], false, 0), Freed::default());
    assert_eq!(c.want(3, &[range(1, 1, S)], &[], false, 0), Want::Ask);
    c.renewed(9000);
    assert!(c.in_time(2, 999));
    assert!(!c.in_time(2, 1000), "no renewal counts for what was called back");
    assert_eq!(c.done(1, 0), Freed { ready: vec![2], ..Freed::default() });
    assert_eq!(c.done(2, 0).free, [part(1, 0)]);
    assert_eq!(c.want(4, &[range(4, 4, X)], &[], false, 0), Want::Ready);
    assert!(c.in_time(4, 8999) && !c.in_time(4, 9000));
    // A part that does not exist any more is returned again.
    assert_eq!(c.call_back(&[part(1, 0)], false, 0).free, [part(1, 0)]);
    assert_eq!(c.held(), [Held { part: part(1, 1), mode: X }]);
}

#[test]
fn what_others_want_to_read_stays_here_to_read() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    c.done(1, 0);
    assert_eq!(c.call_back(&[part(1, 0)], true, 0).shared, [part(1, 0)]);
    assert_eq!(c.want(2, &[range(0, 4, S)], &[], false, 0), Want::Ready);
    // Shared already, and now wanted to be written.
    c.done(2, 0);
    assert_eq!(c.call_back(&[part(1, 0)], false, 0).free, [part(1, 0)]);
    assert!(c.is_empty());
    // Called for both: the stronger counts.
    c.granted(op(3), &[range(0, 4, X)], &[], false);
    c.call_back(&[part(3, 0)], true, 0);
    c.call_back(&[part(3, 0)], false, 0);
    assert_eq!(c.done(3, 0).free, [part(3, 0)]);
}

#[test]
fn what_has_not_been_used_for_longest_goes_first() {
    let mut c = cache();
    for seq in 1..=2 {
        c.granted(op(seq), &[range(seq * 10, 1, S)], &[], false);
        c.done(seq, seq);
    }
    c.want(3, &[range(10, 1, S)], &[], false, 3);
    assert_eq!(c.drop_unused(3).free, [part(2, 0)], "the other is in use");
    c.done(3, 5);
    assert_eq!(c.oldest(), Some(5));
    assert_eq!(c.drop_unused(4), Freed::default());
    assert_eq!(c.drop_unused(5).free, [part(1, 0)]);
    assert!(c.is_empty());
}

#[test]
fn a_second_try_does_not_wait_for_the_first_or_for_those_behind_it() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    assert_eq!(c.want(2, &[range(0, 1, X)], &[], false, 0), Want::Wait);
    assert_eq!(c.want(3, &[range(0, 2, X)], &[1], false, 0), Want::Ready);
    assert_eq!(c.done(3, 0).ready, [0; 0]);
    assert_eq!(c.done(1, 0).ready, [2]);
}

#[test]
fn writes_that_wait_for_repairs_of_one_stripe_do_not_wait_for_each_other() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 1, X)], &[], false);
    c.granted(op(2), &[range(1, 1, X)], &[], false);
    c.superseded(1, 0);
    let stripe = [range(0, 4, X)];
    assert_eq!(c.granted(op(3), &stripe, &[1], true), Want::Wait, "the other may still write");
    assert_eq!(c.superseded(2, 0).ready, [3]);
    assert_eq!(c.granted(op(4), &stripe, &[2], true), Want::Wait, "one repair at a time");
    assert_eq!(c.done(3, 0).ready, [4]);
    // The write goes on, and no repair comes between.
    assert_eq!(c.want(5, &[range(0, 1, X)], &[1], false, 0), Want::Wait);
    assert_eq!(c.done(4, 0).ready, [5]);
    assert_eq!(c.granted(op(6), &stripe, &[2], true), Want::Wait);
    assert_eq!(c.done(5, 0).ready, [6]);
}

#[test]
fn who_is_passed_while_he_waits_waits_for_who_has_passed() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 1, X), range(4, 1, X)], &[], false);
    c.granted(op(2), &[range(9, 1, X)], &[], false);
    assert_eq!(c.granted(op(3), &[range(8, 2, X)], &[], false), Want::Wait);
    c.superseded(1, 0);
    assert_eq!(c.granted(op(4), &[range(0, 9, X)], &[1], true), Want::Ready);
    assert_eq!(c.done(2, 0).ready, [0; 0], "the repair is under way there");
    assert_eq!(c.done(4, 0).ready, [3]);
}

#[test]
fn what_is_called_back_is_yielded_when_only_superseded_tries_use_it() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    c.want(2, &[range(0, 1, X)], &[1], false, 0);
    assert_eq!(c.superseded(1, 0), Freed::default(), "nobody wants it");
    assert_eq!(c.call_back(&[part(1, 0)], true, 0), Freed::default(), "the other may write");
    assert_eq!(c.done(2, 0).yields, [part(1, 0)]);
    assert_eq!(c.yields(), [part(1, 0)]);
    // Kept to read, it could be used while a repair works there.
    assert_eq!(c.done(1, 0), Freed { free: vec![part(1, 0)], ..Freed::default() });
}

#[test]
fn who_waits_for_a_superseded_try_loses_what_others_want() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    assert_eq!(c.want(2, &[range(2, 1, S)], &[], false, 0), Want::Wait);
    assert_eq!(c.granted(op(3), &[range(2, 6, X)], &[], false), Want::Wait);
    assert_eq!(
        c.call_back(&[part(1, 0), part(3, 0)], false, 0),
        Freed::default(),
        "they may be done soon"
    );
    // Not any more: the repair that the first waits for may wait for these parts.
    let freed = c.superseded(1, 0);
    assert_eq!((freed.yields, freed.free), (vec![part(1, 0)], vec![part(3, 0)]));
    assert_eq!(freed.expelled, [2, 3]);
    assert_eq!(c.done(2, 0), Freed::default());
    assert_eq!(c.done(1, 0).free, [part(1, 0)]);
    assert!(c.is_empty());
}

#[test]
fn what_comes_behind_a_superseded_try_is_not_kept_when_it_is_called_back() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    c.superseded(1, 0);
    assert_eq!(c.granted(op(2), &[range(0, 8, X)], &[], false), Want::Wait);
    let freed = c.call_back(&[part(2, 0)], false, 0);
    assert_eq!((freed.free, freed.expelled), (vec![part(2, 0)], vec![2]));
    assert_eq!(c.held(), [Held { part: part(1, 0), mode: X }]);
}

#[test]
fn who_goes_on_reads_past_another_superseded_try() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 1, X)], &[], false);
    c.granted(op(2), &[range(1, 1, X)], &[], false);
    c.superseded(1, 0);
    let ranges = [range(0, 1, X), range(1, 1, S)];
    assert_eq!(c.granted(op(3), &ranges, &[1], false), Want::Wait, "the other may still write");
    assert_eq!(c.superseded(2, 0).ready, [3]);
    assert_eq!(c.want(4, &[range(1, 1, X)], &[1], false, 0), Want::Wait);
    assert_eq!(c.granted(op(5), &[range(0, 1, S), range(1, 1, X)], &[2], false), Want::Wait);
    assert_eq!(c.done(3, 0).ready, [5]);
}

/// An operation behind a superseded try may wait for another repair. That one may wait for this repair
/// of a dead host.
#[test]
fn no_repair_waits_for_who_waits() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], false);
    assert_eq!(c.want(2, &[range(0, 1, X)], &[], false, 0), Want::Wait);
    c.superseded(1, 0);
    assert_eq!(c.granted(op(3), &[range(0, 4, X)], &[], true), Want::Ready);
    assert_eq!(c.done(1, 0).ready, [0; 0], "the repair is under way");
    assert_eq!(c.done(3, 0).ready, [2]);
}

#[test]
fn a_callback_may_bring_back_the_rest_of_its_grant() {
    let granted = |give_back| {
        let mut c = LockCache::new(give_back);
        c.renewed(1000);
        c.granted(op(1), &[range(0, 4, X), range(8, 4, X), range(16, 4, X)], &[], false);
        c.done(1, 0);
        // The third one is in use again, and stays.
        assert_eq!(c.want(2, &[range(16, 4, S)], &[], false, 0), Want::Ready);
        let freed = c.call_back(&[part(1, 0)], true, 0);
        (freed.free, freed.shared)
    };
    assert_eq!(granted(GiveBack::Called), (vec![], vec![part(1, 0)]));
    assert_eq!(granted(GiveBack::Grant), (vec![part(1, 0), part(1, 1)], vec![]));
}

/// Another host's superseded try still holds what these have passed.
#[test]
fn what_may_have_passed_a_superseded_try_serves_nobody_else() {
    let mut c = cache();
    c.granted(op(1), &[range(0, 4, X)], &[], true);
    assert_eq!(c.want(2, &[range(0, 4, X)], &[], false, 0), Want::Ask);
    assert_eq!(c.done(1, 0).free, [part(1, 0)]);
    c.granted(op(3), &[range(0, 2, X)], &[], false);
    c.superseded(3, 0);
    c.granted(op(4), &[range(0, 2, X), range(2, 4, S)], &[3], false);
    assert_eq!(c.want(5, &[range(2, 1, S)], &[], false, 0), Want::Ask);
    assert_eq!(c.done(4, 0).free, [part(4, 1)]);
    assert_eq!(c.done(3, 0).free, [], "these passed nobody");
}
