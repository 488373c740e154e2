//! One test per paragraph of docs/design/semantics.md 3 to 8, named after it, each with the
//! master here and elsewhere.

use crate::common::place::{At, Place, Stage};
use crate::common::{self, Cluster, MS, node};
use lockify_core::*;

const NONE: LockFlags = LockFlags::empty();
const FORCE: UnlockFlags = UnlockFlags::FORCE;

fn everywhere(test: impl Fn(Stage)) {
    Place::ALL.into_iter().for_each(|place| test(Stage::new(place)));
}

/// The granted modes at the master, strongest first.
fn granted_modes(stage: &Stage) -> Vec<Mode> {
    let locks = stage.info().locks;
    locks.iter().filter(|l| l.queue == Queue::Granted).filter_map(|l| l.granted).collect()
}

// ---- docs/design/semantics.md 3: flags ----

/// NOQUEUE: EAGAIN at once; a new lock is gone, a conversion keeps its mode; never queued.
#[test]
fn flags_noqueue() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let other = s.hold(Mode::CR);
        let refused = s.request(Mode::EX, LockFlags::NOQUEUE);
        let done = s.completion(refused);
        assert_eq!((done.status, done.mode), (Status::Again, None));
        assert_eq!(s.unlock(refused, FORCE), Err(Error::NoEntry));
        s.convert(other, Mode::EX, LockFlags::NOQUEUE).unwrap();
        let done = s.completion(other);
        assert_eq!((done.status, done.mode), (Status::Again, Some(Mode::CR)));
        assert_eq!(s.info().locks.len(), 2);
        assert_eq!(s.notices(held), []);
        s.convert(other, Mode::NL, NONE).unwrap();
        assert_eq!(s.granted(other), Mode::NL);
    });
}

/// NOQUEUEBAST: a refused NOQUEUE call tells the blockers, those on C included; a call that is
/// queued tells those in G only.
#[test]
fn flags_noqueuebast() {
    everywhere(|mut s| {
        let (reader, converter) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(converter, Mode::EX, NONE).unwrap();
        s.waits(converter);
        assert_eq!(s.notices(reader), [Mode::EX]);
        s.request(Mode::PW, LockFlags::NOQUEUE);
        assert_eq!(s.notices(converter), []);
        let queued = s.request(Mode::PW, NONE);
        s.waits(queued);
        assert_eq!(s.notices(converter), [], "locks on C get no notice");
        s.request(Mode::PW, LockFlags::NOQUEUE | LockFlags::NOQUEUEBAST);
        assert_eq!(s.notices(converter), [Mode::PW]);
        assert_eq!(s.notices(reader), [], "it knows of something stronger");
    });
}

/// HEADQUE: at the head of W.
#[test]
fn flags_headque_waiting() {
    everywhere(|mut s| {
        let held = s.hold(Mode::EX);
        let first = s.request(Mode::EX, NONE);
        let second = s.request(Mode::EX, NONE);
        let head = s.request(Mode::EX, LockFlags::HEADQUE);
        assert_eq!(s.queue(Queue::Waiting), [head, first, second]);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(head), Mode::EX);
        s.waits(first);
    });
}

/// HEADQUE: at the head of C.
#[test]
fn flags_headque_converting() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let (a, b, c) = (s.hold(Mode::NL), s.hold(Mode::NL), s.hold(Mode::NL));
        s.convert(a, Mode::EX, NONE).unwrap();
        s.convert(b, Mode::EX, NONE).unwrap();
        s.convert(c, Mode::EX, LockFlags::HEADQUE).unwrap();
        assert_eq!(s.queue(Queue::Converting), [c, a, b]);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(c), Mode::EX);
        s.waits(a);
    });
}

/// NOORDER: granted whenever compatible with G and C, past all waiting locks.
#[test]
fn flags_noorder() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let waiter = s.request(Mode::EX, NONE);
        let polite = s.request(Mode::PR, NONE);
        let rude = s.request(Mode::PR, LockFlags::NOORDER);
        s.waits(waiter);
        s.waits(polite);
        assert_eq!(s.granted(rude), Mode::PR);
        // From the queue, too: not the first, but compatible once the PR locks are gone.
        let later = s.request(Mode::CW, LockFlags::NOORDER);
        s.waits(later);
        s.unlock(rude, UnlockFlags::empty()).unwrap();
        s.convert(held, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(later), Mode::CW);
        s.waits(waiter);
    });
}

/// The errors of docs/design/semantics.md 3, on requests.
#[test]
fn errors_einval_of_requests() {
    let cases = [
        (Mode::EX, LockFlags::QUECVT, Invalid::ConvertOnly),
        (Mode::EX, LockFlags::CONVDEADLK, Invalid::ConvertOnly),
        (Mode::EX, LockFlags::IVVALBLK, Invalid::ConvertOnly),
        (Mode::EX, LockFlags::FREED, Invalid::ConvertOnly),
        (Mode::NL, LockFlags::EXPEDITE.union(LockFlags::NOQUEUE), Invalid::Expedite),
        (Mode::NL, LockFlags::EXPEDITE.union(LockFlags::QUECVT), Invalid::ConvertOnly),
        (Mode::CR, LockFlags::EXPEDITE, Invalid::Expedite),
        (Mode::EX, LockFlags::EXPEDITE, Invalid::Expedite),
    ];
    everywhere(|mut s| {
        s.hold(Mode::NL);
        for (mode, flags, why) in cases {
            let refused = s.call(mode, flags, |_| ());
            assert_eq!(refused, Err(Error::Invalid(why)), "{mode} {flags:?}");
        }
        let without = s.call(Mode::PR, LockFlags::VALBLK, |a| a.lvb = None);
        assert_eq!(without, Err(Error::Invalid(Invalid::NoLvb)));
        let short = s.call(Mode::PR, LockFlags::VALBLK, |a| a.lvb = Some([0; 31].into()));
        assert_eq!(short, Err(Error::Invalid(Invalid::LvbLength)));
        s.cluster.run();
        assert_eq!(s.info().locks.len(), 1, "refused calls leave nothing behind");
        assert_eq!(s.cluster.told, []);
    });
}

/// The errors of docs/design/semantics.md 3, on conversions and unlocks; they change nothing.
#[test]
fn errors_einval_of_conversions() {
    let cases = [
        (Mode::NL, LockFlags::EXPEDITE, Invalid::RequestOnly),
        (Mode::EX, LockFlags::ORPHAN, Invalid::RequestOnly),
        (Mode::EX, LockFlags::NOTIFY, Invalid::RequestOnly),
        (Mode::EX, LockFlags::CONVDEADLK.union(LockFlags::NOQUEUE), Invalid::DeadlkNoqueue),
        (Mode::NL, LockFlags::QUECVT, Invalid::Quecvt),
    ];
    everywhere(|mut s| {
        let at = s.hold(Mode::PR);
        for (mode, flags, why) in cases {
            let refused = s.convert(at, mode, flags);
            assert_eq!(refused, Err(Error::Invalid(why)), "{mode} {flags:?}");
        }
        let without = s.convert_value(at, Mode::EX, LockFlags::VALBLK, None);
        assert_eq!(without, Err(Error::Invalid(Invalid::NoLvb)));
        let long = s.convert_value(at, Mode::EX, LockFlags::VALBLK, Some(&[0; 33]));
        assert_eq!(long, Err(Error::Invalid(Invalid::LvbLength)));
        let without = s.cluster.unlock_with(at.node, at.lock, UnlockFlags::VALBLK, None);
        assert_eq!(without, Err(Error::Invalid(Invalid::NoLvb)));
        s.waits(at);
        assert_eq!(granted_modes(&s), [Mode::PR]);
        s.convert(at, Mode::EX, NONE).unwrap();
        assert_eq!(s.granted(at), Mode::EX);
    });
}

/// CONVERT on a lock not in G: EBUSY. A lock that is not, or not the client's: ENOENT.
#[test]
fn errors_ebusy_and_enoent() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let (waiter, converter) = (s.request(Mode::EX, NONE), s.hold_nl_converting());
        for at in [waiter, converter] {
            assert_eq!(s.convert(at, Mode::NL, NONE), Err(Error::Busy));
            assert_eq!(s.unlock(at, UnlockFlags::empty()), Err(Error::Busy));
            s.waits(at);
        }
        let stranger =
            UnlockArgs { client: ClientId(2), lock: held.lock, tag: 0, flags: FORCE, lvb: None };
        let refused = s.cluster.input(held.node, Input::Unlock(stranger));
        assert_eq!(refused, Err(Error::NoEntry));
        s.unlock(held, UnlockFlags::empty()).unwrap();
        assert_eq!(s.convert(held, Mode::NL, NONE), Err(Error::NoEntry));
        assert_eq!(s.cancel(held), Err(Error::NoEntry));
    });
}

trait HoldConverting {
    fn hold_nl_converting(&mut self) -> At;
}

impl HoldConverting for Stage {
    /// A lock in NL that waits for EX (against a PR that somebody holds).
    fn hold_nl_converting(&mut self) -> At {
        let at = self.request(Mode::NL, LockFlags::EXPEDITE);
        assert_eq!(self.granted(at), Mode::NL);
        self.convert(at, Mode::EX, NONE).unwrap();
        self.waits(at);
        at
    }
}

// ---- docs/design/semantics.md 4: grant rules ----

/// Rule 1: EXPEDITE is granted past blocked conversions and waiters, where a plain NL waits.
#[test]
fn grant_rule_1_expedite_behind_blocked_c() {
    everywhere(|mut s| {
        s.hold(Mode::PR);
        s.hold_nl_converting();
        let waiter = s.request(Mode::EX, NONE);
        let plain = s.request(Mode::NL, NONE);
        let quick = s.request(Mode::NL, LockFlags::EXPEDITE);
        s.waits(waiter);
        s.waits(plain);
        assert_eq!(s.granted(quick), Mode::NL);
    });
}

/// Rule 2: granted modes conflict, also those that locks on C keep.
#[test]
fn grant_rule_2_a_converter_keeps_its_mode_in_force() {
    everywhere(|mut s| {
        let (reader, converter) = (s.hold(Mode::CR), s.hold(Mode::PR));
        s.convert(converter, Mode::EX, NONE).unwrap();
        s.waits(converter);
        let writer = s.request(Mode::CW, LockFlags::NOORDER);
        s.waits(writer);
        s.unlock(reader, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(converter), Mode::EX);
        s.waits(writer);
    });
}

/// Rule 4: a conversion that is possible at once is granted in place, past those on C.
#[test]
fn grant_rule_4_conversion_in_place_overtakes_c() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let waiting = s.hold_nl_converting();
        let quick = s.request(Mode::NL, LockFlags::EXPEDITE);
        assert_eq!(s.granted(quick), Mode::NL);
        s.convert(quick, Mode::PR, NONE).unwrap();
        assert_eq!(s.granted(quick), Mode::PR);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        s.waits(waiting);
    });
}

/// Rule 5: with QUECVT it goes behind them, even if NOORDER is given as well.
#[test]
fn grant_rule_5_quecvt_does_not_overtake_c() {
    for noorder in [NONE, LockFlags::NOORDER] {
        everywhere(|mut s| {
            let held = s.hold(Mode::CR);
            let first = s.hold(Mode::NL);
            s.convert(first, Mode::EX, LockFlags::QUECVT).unwrap();
            s.waits(first);
            let second = s.request(Mode::NL, LockFlags::EXPEDITE);
            assert_eq!(s.granted(second), Mode::NL);
            s.convert(second, Mode::CR, LockFlags::QUECVT | noorder).unwrap();
            s.waits(second);
            assert_eq!(s.queue(Queue::Converting), [first, second]);
            s.unlock(held, UnlockFlags::empty()).unwrap();
            assert_eq!(s.granted(first), Mode::EX);
            s.waits(second);
            s.convert(first, Mode::NL, NONE).unwrap();
            assert_eq!(s.granted(second), Mode::CR);
        });
    }
}

/// Rule 7: from C only the first is granted, though a later one is compatible.
#[test]
fn grant_rule_7_conversions_in_order() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PW);
        let (first, second) = (s.hold(Mode::NL), s.hold(Mode::NL));
        s.convert(first, Mode::EX, NONE).unwrap();
        s.convert(second, Mode::PR, NONE).unwrap();
        s.convert(held, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(held), Mode::CR);
        s.waits(first);
        s.waits(second);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(first), Mode::EX);
        s.waits(second);
        s.convert(first, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(second), Mode::PR);
    });
}

/// Rule 8: a new lock waits while anybody waits, though it is compatible with all that is granted.
#[test]
fn grant_rule_8_new_locks_wait_behind_waiters() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let writer = s.request(Mode::EX, NONE);
        let reader = s.request(Mode::PR, NONE);
        let null = s.request(Mode::NL, NONE);
        for at in [writer, reader, null] {
            s.waits(at);
        }
        assert_eq!(s.queue(Queue::Waiting), [writer, reader, null]);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(writer), Mode::EX);
        s.waits(reader);
    });
}

/// Rule 9: waiters are granted in order, conversions before them; the first that is blocked stops
/// all that come after it.
#[test]
fn grant_rule_9_waiters_in_order_after_conversions() {
    everywhere(|mut s| {
        let held = s.hold(Mode::EX);
        let reader = s.request(Mode::PR, NONE);
        let writer = s.request(Mode::CW, NONE);
        let last = s.request(Mode::PR, NONE);
        s.convert(held, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(reader), Mode::PR);
        s.waits(writer);
        s.waits(last);
        assert_eq!(s.queue(Queue::Waiting), [writer, last]);
        s.convert(held, Mode::PW, NONE).unwrap();
        s.unlock(reader, UnlockFlags::empty()).unwrap();
        assert_eq!(granted_modes(&s), [Mode::PW], "the conversion comes first");
        s.waits(writer);
    });
}

/// Run pending: after each grant the scan of C starts over, so that a down-conversion can let a
/// whole chain through; waiters follow when C is empty.
#[test]
fn run_pending_restarts_after_a_grant() {
    everywhere(|mut s| {
        let held = s.hold(Mode::EX);
        let locks = [s.request(Mode::PR, NONE), s.request(Mode::PR, NONE)];
        let null = s.request(Mode::NL, LockFlags::EXPEDITE);
        assert_eq!(s.granted(null), Mode::NL);
        s.convert(null, Mode::PR, NONE).unwrap();
        s.waits(null);
        s.convert(held, Mode::PR, NONE).unwrap();
        for at in [null, locks[0], locks[1]] {
            assert_eq!(s.granted(at), Mode::PR);
        }
        assert_eq!(granted_modes(&s), [Mode::PR; 4]);
    });
}

/// Run pending ends with a notice to every lock in G that blocks the strongest that still waits.
#[test]
fn run_pending_tells_new_blockers() {
    everywhere(|mut s| {
        let held = s.hold(Mode::EX);
        let reader = s.request(Mode::PR, NONE);
        let writer = s.request(Mode::EX, NONE);
        assert_eq!(s.notices(reader), []);
        s.convert(held, Mode::NL, NONE).unwrap();
        assert_eq!(s.granted(reader), Mode::PR);
        s.waits(writer);
        assert_eq!(s.notices(reader), [Mode::EX]);
    });
}

/// Run pending with a CW waiter: a PR holder hears of CW although PR is the strongest wanted.
#[test]
fn run_pending_tells_pr_holders_of_cw() {
    everywhere(|mut s| {
        let held = s.hold(Mode::EX);
        let readers = [s.request(Mode::PR, NONE), s.request(Mode::PR, NONE)];
        let writer = s.request(Mode::CW, NONE);
        let later = s.request(Mode::PR, NONE);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        for at in readers {
            assert_eq!(s.granted(at), Mode::PR);
            assert_eq!(s.notices(at), [Mode::CW]);
        }
        s.waits(writer);
        s.waits(later);
    });
}

/// Without QUECVT conversions may starve another for ever; with it they cannot.
#[test]
fn starvation_without_quecvt_and_none_with_it() {
    for quecvt in [false, true] {
        everywhere(|mut s| {
            let flags = if quecvt { LockFlags::QUECVT } else { NONE };
            let (mut reader, mut next) = (s.hold(Mode::NL), s.hold(Mode::NL));
            let victim = s.hold(Mode::NL);
            s.convert(reader, Mode::PR, flags).unwrap();
            assert_eq!(s.granted(reader), Mode::PR);
            s.convert(victim, Mode::EX, flags).unwrap();
            let mut turns = 0;
            // Two readers hand PR to each other: one has it before the other gives it up.
            while s.completions(victim).is_empty() && turns < 50 {
                s.convert(next, Mode::PR, flags).unwrap();
                s.convert(reader, Mode::NL, NONE).unwrap();
                assert_eq!(s.granted(reader), Mode::NL);
                turns += 1;
                std::mem::swap(&mut reader, &mut next);
                if !quecvt {
                    assert_eq!(s.granted(reader), Mode::PR);
                }
            }
            assert_eq!(turns, if quecvt { 1 } else { 50 });
        });
    }
}

/// A down-conversion whose master is elsewhere is done at once: no answer is awaited, none is
/// sent; one between PR and CW is not down, and asks.
#[test]
fn down_conversion_is_applied_at_once_and_not_acknowledged() {
    for place in AWAY {
        let mut s = Stage::new(place);
        let held = s.hold(Mode::EX);
        let asked = s.cluster.nodes[&held.node].stats().round_trips;
        for mode in [Mode::PW, Mode::PR, Mode::CR, Mode::NL] {
            s.cluster.convert(held.node, held.lock, mode).unwrap();
            assert_eq!(s.granted(held), mode, "before any message has passed");
        }
        let answers = s.cluster.nodes[&s.master()].stats().messages_sent;
        s.cluster.run();
        assert_eq!(granted_modes(&s), [Mode::NL]);
        assert_eq!(s.cluster.nodes[&s.master()].stats().messages_sent, answers);
        assert_eq!(s.cluster.nodes[&held.node].stats().round_trips, asked);
        for (from, to) in [(Mode::PR, Mode::CW), (Mode::CW, Mode::PR)] {
            s.convert(held, from, NONE).unwrap();
            assert_eq!(s.granted(held), from);
            s.cluster.convert(held.node, held.lock, to).unwrap();
            s.waits(held);
            s.cluster.run();
            assert_eq!(s.granted(held), to);
        }
    }
}

// ---- docs/design/semantics.md 5: conversion deadlock ----

/// PR to EX twice: the second gets EDEADLK and keeps its mode.
#[test]
fn conversion_deadlock_pr_to_ex() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(one, Mode::EX, NONE).unwrap();
        s.waits(one);
        s.convert(two, Mode::EX, NONE).unwrap();
        let done = s.completion(two);
        assert_eq!((done.status, done.mode), (Status::Deadlock, Some(Mode::PR)));
        assert_eq!(s.queue(Queue::Granted), [two]);
        s.unlock(two, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(one), Mode::EX);
    });
}

/// NL to EX twice is none, as NL blocks nobody; a stronger mode behind it is.
#[test]
fn conversion_deadlock_nl_to_ex() {
    everywhere(|mut s| {
        let (held, holder) = (s.hold(Mode::CR), s.hold(Mode::CR));
        let (one, two) = (s.hold(Mode::NL), s.hold(Mode::NL));
        s.convert(one, Mode::EX, NONE).unwrap();
        s.convert(two, Mode::EX, NONE).unwrap();
        s.waits(one);
        s.waits(two);
        s.convert(holder, Mode::EX, NONE).unwrap();
        assert_eq!(s.status(holder), Status::Deadlock);
        s.unlock(held, UnlockFlags::empty()).unwrap();
        s.unlock(holder, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(one), Mode::EX);
        s.waits(two);
    });
}

/// A conversion that is possible at once is no deadlock; nor is one that NOQUEUE keeps from waiting.
#[test]
fn conversion_deadlock_needs_a_wait() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(one, Mode::EX, NONE).unwrap();
        s.convert(two, Mode::EX, LockFlags::NOQUEUE).unwrap();
        assert_eq!(s.status(two), Status::Again);
        s.convert(two, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(two), Mode::CR);
        s.waits(one);
    });
}

/// It stops there: no attempt with the alternative mode.
#[test]
fn conversion_deadlock_tries_no_alternative() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(one, Mode::EX, NONE).unwrap();
        s.convert(two, Mode::EX, LockFlags::ALTPR).unwrap();
        assert_eq!(s.status(two), Status::Deadlock);
    });
}

/// CONVDEADLK: the newcomer gives up its mode, the first is granted, and it is told when granted.
#[test]
fn convdeadlk_demotes_the_newcomer() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(one, Mode::EX, NONE).unwrap();
        s.convert(two, Mode::EX, LockFlags::CONVDEADLK).unwrap();
        assert_eq!(s.granted(one), Mode::EX);
        s.waits(two);
        assert_eq!(s.notices(one), [Mode::EX]);
        s.unlock(one, UnlockFlags::empty()).unwrap();
        let done = s.completion(two);
        assert_eq!((done.status, done.mode), (Status::Granted, Some(Mode::EX)));
        assert_eq!(done.status_flags, SbFlags::DEMOTED);
        s.convert(two, Mode::NL, NONE).unwrap();
        assert_eq!(
            s.completion(two).status_flags,
            SbFlags::empty(),
            "DEMOTED is of that conversion only"
        );
    });
}

/// Demoted and then cancelled: the lock is left in NL, and its client told so.
#[test]
fn convdeadlk_then_cancel_leaves_nl() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(one, Mode::EX, NONE).unwrap();
        s.convert(two, Mode::EX, LockFlags::CONVDEADLK).unwrap();
        assert_eq!(s.granted(one), Mode::EX);
        s.cancel(two).unwrap();
        let done = s.completion(two);
        assert_eq!((done.status, done.mode), (Status::Canceled, Some(Mode::NL)));
        assert_eq!(done.status_flags, SbFlags::DEMOTED);
    });
}

/// Demoted, and granted at once, because the released mode let all others through.
#[test]
fn convdeadlk_retries_once() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::CW), s.hold(Mode::CW));
        s.convert(one, Mode::PR, NONE).unwrap();
        s.waits(one);
        s.convert(two, Mode::PR, LockFlags::CONVDEADLK).unwrap();
        assert_eq!(s.granted(one), Mode::PR);
        let done = s.completion(two);
        assert_eq!((done.mode, done.status_flags), (Some(Mode::PR), SbFlags::DEMOTED));
    });
}

/// NODLCKWT: no EDEADLK on arrival; when the queue is scanned its owner gets a notice instead, to
/// give way.
#[test]
fn nodlckwt_waits_and_gets_a_notice() {
    everywhere(|mut s| {
        let (one, two, three) = (s.hold(Mode::CR), s.hold(Mode::PR), s.hold(Mode::CR));
        s.convert(one, Mode::CW, NONE).unwrap();
        s.waits(one);
        assert_eq!(s.notices(two), [Mode::CW]);
        s.convert(two, Mode::EX, LockFlags::NODLCKWT).unwrap();
        s.waits(two);
        assert_eq!(s.queue(Queue::Converting), [one, two]);
        assert_eq!(s.notices(two), []);
        s.unlock(three, UnlockFlags::empty()).unwrap();
        s.waits(one);
        s.waits(two);
        assert_eq!(s.notices(two), [Mode::EX]);
        s.cancel(two).unwrap();
        assert_eq!(s.status(two), Status::Canceled);
        s.convert(two, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(one), Mode::CW);
    });
}

/// PR to CW against another PR waits and is no deadlock; the PR holder hears of CW.
#[test]
fn pr_to_cw_against_pr() {
    everywhere(|mut s| {
        let (one, two) = (s.hold(Mode::PR), s.hold(Mode::PR));
        s.convert(one, Mode::CW, NONE).unwrap();
        s.waits(one);
        assert_eq!(s.notices(two), [Mode::CW]);
        s.convert(two, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(one), Mode::CW);
        assert_eq!(s.granted(two), Mode::CR);
    });
}

// ---- docs/design/semantics.md 7: cancel, unlock ----

/// Cancel of a waiting request: ECANCEL, the lock is gone, those behind it move up.
#[test]
fn cancel_of_a_request() {
    everywhere(|mut s| {
        s.hold(Mode::PR);
        let writer = s.request(Mode::EX, NONE);
        let reader = s.request(Mode::PR, NONE);
        s.waits(reader);
        s.cancel(writer).unwrap();
        let done = s.completion(writer);
        assert_eq!((done.status, done.mode), (Status::Canceled, None));
        assert_eq!(s.granted(reader), Mode::PR);
        assert_eq!(s.cancel(writer), Err(Error::NoEntry));
    });
}

/// Cancel of a waiting conversion: ECANCEL, back in G with the old mode.
#[test]
fn cancel_of_a_conversion() {
    everywhere(|mut s| {
        let (held, converter) = (s.hold(Mode::PR), s.hold(Mode::CR));
        s.convert(converter, Mode::EX, NONE).unwrap();
        let behind = s.request(Mode::PR, NONE);
        s.waits(behind);
        s.cancel(converter).unwrap();
        let done = s.completion(converter);
        assert_eq!((done.status, done.mode), (Status::Canceled, Some(Mode::CR)));
        assert_eq!(s.granted(behind), Mode::PR);
        s.convert(converter, Mode::PR, NONE).unwrap();
        assert_eq!(s.granted(converter), Mode::PR);
        assert_eq!(s.notices(held), [Mode::EX]);
    });
}

/// Cancel of an idle lock does nothing, and nothing is told.
#[test]
fn cancel_of_an_idle_lock() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        s.cancel(held).unwrap();
        s.cancel(held).unwrap();
        s.waits(held);
        s.convert(held, Mode::EX, NONE).unwrap();
        assert_eq!(s.granted(held), Mode::EX);
    });
}

/// The places where the waiter of the races below is not at the master.
const AWAY: [Place; 2] = [Place::Remote, Place::Between];

/// A holder at the master, and a conversion or request at node 1 that waits for it.
fn race(convert: bool, place: Place) -> (Stage, At, At) {
    let mut s = Stage::new(place);
    s.next_node();
    let master = s.master();
    let resource = s.resource.clone();
    let waiter = match convert {
        true => s.hold(Mode::NL),
        false => At { node: master, lock: LockId(0) },
    };
    let lock = s.cluster.request(master, &resource, Mode::PR);
    let holder = At { node: master, lock };
    s.cluster.run();
    assert_eq!(s.granted(holder), Mode::PR);
    if convert {
        s.convert(waiter, Mode::EX, NONE).unwrap();
        s.waits(waiter);
        return (s, holder, waiter);
    }
    let waiter = s.request(Mode::EX, NONE);
    s.waits(waiter);
    (s, holder, waiter)
}

fn cancel_call(s: &mut Stage, at: At) -> Result<(), Error> {
    let input = Input::Cancel { client: ClientId(1), lock: at.lock };
    s.cluster.input(at.node, input).map(|_| ())
}

/// The grant was on its way when the cancel was called: only the grant is seen.
#[test]
fn cancel_grant_race_grant_first() {
    for (place, convert) in AWAY.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let (mut s, holder, waiter) = race(convert, place);
        s.cluster.unlock(holder.node, holder.lock).unwrap();
        cancel_call(&mut s, waiter).unwrap();
        s.cluster.run();
        assert_eq!(s.granted(waiter), Mode::EX, "{place:?} {convert}");
        // The cancel has ended with the race: the lock is as usable as any.
        s.convert(waiter, Mode::PR, NONE).unwrap();
        assert_eq!(s.granted(waiter), Mode::PR);
        s.unlock(waiter, UnlockFlags::empty()).unwrap();
        assert_eq!(s.status(waiter), Status::Unlocked);
    }
}

/// The cancel came to the master first: only the cancel is seen.
#[test]
fn cancel_grant_race_cancel_first() {
    for (place, convert) in AWAY.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let (mut s, holder, waiter) = race(convert, place);
        cancel_call(&mut s, waiter).unwrap();
        assert!(s.cluster.deliver(waiter.node, holder.node));
        s.cluster.unlock(holder.node, holder.lock).unwrap();
        s.cluster.run();
        let done = s.completion(waiter);
        let mode = convert.then_some(Mode::NL);
        assert_eq!((done.status, done.mode), (Status::Canceled, mode), "{place:?} {convert}");
    }
}

/// The victim of a deadlock: as a cancel, but the status says why, also from another node's queue.
#[test]
fn victim_of_a_deadlock() {
    for (place, convert) in AWAY.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let (mut s, holder, waiter) = race(convert, place);
        let input = Input::BreakDeadlock { client: ClientId(1), lock: waiter.lock };
        s.cluster.input(waiter.node, input).unwrap();
        s.cluster.run();
        let done = s.completion(waiter);
        let mode = convert.then_some(Mode::NL);
        assert_eq!((done.status, done.mode), (Status::Deadlock, mode), "{place:?} {convert}");
        let granted = if convert { vec![Mode::PR, Mode::NL] } else { vec![Mode::PR] };
        assert_eq!(granted_modes(&s), granted);
        s.cluster.unlock(holder.node, holder.lock).unwrap();
    }
}

/// A cancel that is called before the request has reached its master.
#[test]
fn cancel_of_a_request_under_way() {
    for place in AWAY {
        let (mut s, holder, _) = race(false, place);
        let late = s.call(Mode::PR, NONE, |_| ()).unwrap();
        cancel_call(&mut s, late).unwrap();
        assert_eq!(cancel_call(&mut s, late), Err(Error::Busy));
        s.cluster.run();
        assert_eq!(s.status(late), Status::Canceled);
        assert_eq!(s.queue(Queue::Granted), [holder]);
    }
}

/// Second cancel, or cancel after force unlock, while the first is under way: EBUSY.
#[test]
fn second_cancel_is_busy() {
    for (place, convert) in AWAY.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let (mut s, _, waiter) = race(convert, place);
        cancel_call(&mut s, waiter).unwrap();
        assert_eq!(cancel_call(&mut s, waiter), Err(Error::Busy));
        s.cluster.run();
        assert_eq!(s.status(waiter), Status::Canceled);

        let (mut s, _, waiter) = race(convert, place);
        s.cluster.unlock_with(waiter.node, waiter.lock, FORCE, None).unwrap();
        assert_eq!(cancel_call(&mut s, waiter), Err(Error::Busy));
        s.cluster.run();
        assert_eq!(s.status(waiter), Status::Unlocked);
    }
}

/// FORCEUNLOCK of a waiting request: one EUNLOCK, nothing of the request; the next is served.
#[test]
fn force_unlock_of_a_request() {
    everywhere(|mut s| {
        s.hold(Mode::PR);
        let writer = s.request(Mode::EX, NONE);
        let reader = s.request(Mode::PR, NONE);
        s.unlock(writer, FORCE).unwrap();
        assert_eq!(s.status(writer), Status::Unlocked);
        assert_eq!(s.granted(reader), Mode::PR);
    });
}

/// FORCEUNLOCK of a waiting conversion: its granted mode goes too.
#[test]
fn force_unlock_of_a_conversion() {
    everywhere(|mut s| {
        let (held, converter) = (s.hold(Mode::CR), s.hold(Mode::PR));
        s.convert(converter, Mode::EX, NONE).unwrap();
        s.waits(converter);
        let writer = s.request(Mode::CW, NONE);
        s.waits(writer);
        s.unlock(converter, FORCE).unwrap();
        assert_eq!(s.status(converter), Status::Unlocked);
        assert_eq!(s.granted(writer), Mode::CW);
        assert_eq!(s.queue(Queue::Granted).len(), 2);
        assert_eq!(s.notices(held), [Mode::EX]);
    });
}

/// FORCEUNLOCK that is called before the request's or conversion's answer has come, in every state
/// of the resource: one EUNLOCK, and the lock is gone at the master.
#[test]
fn force_unlock_over_what_is_under_way() {
    for place in AWAY {
        for convert in [false, true] {
            for blocked in [false, true] {
                let mut s = Stage::new(place);
                let held = s.hold(if blocked { Mode::PR } else { Mode::NL });
                let at = if convert {
                    let at = s.hold(Mode::NL);
                    s.cluster.convert(at.node, at.lock, Mode::EX).unwrap();
                    at
                } else {
                    s.call(Mode::EX, NONE, |_| ()).unwrap()
                };
                s.cluster.unlock_with(at.node, at.lock, FORCE, None).unwrap();
                let twice = s.cluster.unlock_with(at.node, at.lock, FORCE, None);
                assert_eq!(twice, Err(Error::Busy));
                s.cluster.run();
                assert_eq!(s.status(at), Status::Unlocked, "{place:?} {convert} {blocked}");
                assert_eq!(s.queue(Queue::Granted), [held]);
                assert_eq!(s.info().locks.len(), 1);
            }
        }
    }
}

/// FORCEUNLOCK crossing the grant: one EUNLOCK, nothing else, and the lock is gone.
#[test]
fn force_unlock_grant_race() {
    for (place, convert) in AWAY.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let (mut s, holder, waiter) = race(convert, place);
        s.cluster.convert(holder.node, holder.lock, Mode::NL).unwrap();
        s.cluster.unlock_with(waiter.node, waiter.lock, FORCE, None).unwrap();
        s.cluster.run();
        assert_eq!(s.status(waiter), Status::Unlocked, "{place:?} {convert}");
        assert_eq!(s.queue(Queue::Granted), [holder]);
    }
}

/// Unlock of an idle lock: EUNLOCK; its tag replaces the old one.
#[test]
fn unlock_replaces_the_tag() {
    everywhere(|mut s| {
        let at = s.call(Mode::PR, NONE, |a| a.tag = 5).unwrap();
        s.cluster.run();
        assert_eq!(s.completion(at).tag, 5);
        let args = UnlockArgs {
            client: ClientId(1),
            lock: at.lock,
            tag: 6,
            flags: UnlockFlags::empty(),
            lvb: None,
        };
        s.cluster.input(at.node, Input::Unlock(args)).unwrap();
        s.cluster.run();
        let done = s.completion(at);
        assert_eq!((done.status, done.mode, done.tag), (Status::Unlocked, None, 6));
    });
}

/// Blocking notices: no storm while the conflict lasts, and again after the next grant.
#[test]
fn notices_are_sent_once_and_again_after_a_grant() {
    everywhere(|mut s| {
        let held = s.hold(Mode::EX);
        let waiters: Vec<At> = (0..5).map(|_| s.request(Mode::PR, NONE)).collect();
        assert_eq!(s.notices(held), [Mode::PR]);
        for at in &waiters[1..] {
            s.cancel(*at).unwrap();
        }
        assert_eq!(s.notices(held), []);
        s.convert(held, Mode::PW, NONE).unwrap();
        assert_eq!(s.granted(held), Mode::PW);
        assert_eq!(s.notices(held), [Mode::PR], "the conflict lasts");
        s.convert(held, Mode::CR, NONE).unwrap();
        assert_eq!(s.granted(waiters[0]), Mode::PR);
        assert_eq!(s.notices(held), []);
    });
}

/// Between PR and CW "stronger" says nothing: the master sends a notice of CW to a PR holder that
/// it told of PW before; the owner passes it on if its last callback was another.
#[test]
fn notices_between_pr_and_cw() {
    everywhere(|mut s| {
        let (held, other) = (s.hold(Mode::PR), s.hold(Mode::PR));
        let writer = s.request(Mode::PW, NONE);
        assert_eq!(s.notices(held), [Mode::PW]);
        assert_eq!(s.notices(other), [Mode::PW]);
        s.cancel(writer).unwrap();
        s.convert(held, Mode::EX, LockFlags::NOQUEUE).unwrap();
        assert_eq!(s.status(held), Status::Again);
        s.request(Mode::CW, NONE);
        assert_eq!(s.notices(held), [Mode::CW]);
        assert_eq!(s.notices(other), []);
    });
}

/// A lock that gave no bast gets no notices.
#[test]
fn notices_only_to_those_who_want_them() {
    everywhere(|mut s| {
        let held = s.call(Mode::EX, NONE, |a| a.bast = false).unwrap();
        s.cluster.run();
        assert_eq!(s.granted(held), Mode::EX);
        let waiter = s.request(Mode::PR, NONE);
        s.waits(waiter);
        assert_eq!(s.notices(held), []);
    });
}

/// A notice that was on its way when its lock was converted out of the way is not delivered.
#[test]
fn notices_that_are_no_longer_true_are_suppressed() {
    let mut s = Stage::new(Place::Between);
    let held = s.hold(Mode::EX);
    let waiter = s.request(Mode::PR, NONE);
    assert_eq!(s.notices(held), [Mode::PR]);
    let stronger = s.call(Mode::PW, NONE, |_| ()).unwrap();
    assert!(s.cluster.deliver(stronger.node, s.master()));
    s.cluster.convert(held.node, held.lock, Mode::NL).unwrap();
    s.cluster.run();
    assert_eq!(s.granted(held), Mode::NL);
    assert_eq!(s.notices(held), []);
    assert_eq!(s.granted(waiter), Mode::PR);
}

/// Nothing is delivered to clients while a recovery runs: it comes, once, when that is done.
#[test]
fn callbacks_wait_for_the_end_of_a_recovery() {
    let mut s = Stage::new(Place::Between);
    let held = s.hold(Mode::EX);
    let waiter = s.request(Mode::PR, NONE);
    assert_eq!(s.notices(held), [Mode::PR]);
    let (owner, master) = (held.node, s.master());
    s.cluster.unlock(owner, held.lock).unwrap();
    assert!(s.cluster.deliver(owner, master), "the unlock");
    s.cluster.view();
    assert!(s.cluster.deliver(master, owner), "the answer, inside the recovery");
    assert!(s.cluster.deliver(master, waiter.node), "the grant, too");
    assert!(!s.cluster.nodes[&owner].is_running());
    s.waits(held);
    s.waits(waiter);
    s.cluster.run();
    assert_eq!(s.status(held), Status::Unlocked);
    assert_eq!(s.granted(waiter), Mode::PR);
}

/// A conversion that gave its mode up says so when it is granted, even by a later master.
#[test]
fn a_later_master_does_not_hide_a_demotion() {
    for policy in Policy::ALL {
        let mut c = Cluster::new(3, policy);
        let resource = c.name_at(node(2));
        let first = c.request(node(2), &resource, Mode::NL);
        c.run();
        let (one, three) = (c.request(node(1), &resource, Mode::PR), node(3));
        let demoted = c.request(three, &resource, Mode::PR);
        c.run();
        c.unlock(node(2), first).unwrap();
        c.convert(node(1), one, Mode::EX).unwrap();
        c.run();
        c.completions(three, demoted);
        c.convert_with(three, demoted, Mode::EX, LockFlags::CONVDEADLK, None).unwrap();
        c.run();
        c.kill(node(2));
        c.view();
        c.run();
        assert_eq!(c.completions(three, demoted), [], "{policy:?}");
        c.unlock(node(1), one).unwrap();
        c.run();
        let done = c.completions(three, demoted);
        assert_eq!(done.len(), 1, "{policy:?}");
        assert_eq!(done[0].status, Status::Granted);
        assert_eq!(done[0].status_flags, SbFlags::DEMOTED, "{policy:?}");
    }
}

/// Ids are not used again: a new lock in a former one's place is another lock.
#[test]
fn ids_are_not_reused() {
    everywhere(|mut s| {
        s.hold(Mode::NL);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let at = s.hold(Mode::PR);
            assert!(seen.insert((at.node, at.lock.0)));
            s.unlock(at, UnlockFlags::empty()).unwrap();
            assert_eq!(s.status(at), Status::Unlocked);
            assert_eq!(s.unlock(at, FORCE), Err(Error::NoEntry));
        }
    });
}

// ---- docs/design/semantics.md 8: orphans, time-outs ----

fn gone(s: &mut Stage, node: NodeId) {
    s.cluster.input(node, Input::ClientGone(ClientId(1))).unwrap();
    s.cluster.run();
}

fn adopt(s: &mut Stage, node: NodeId, client: u64, mode: Mode) -> Result<At, Error> {
    let args = LockArgs {
        flags: LockFlags::ORPHAN,
        bast: true,
        ..LockArgs::new(common::name(&s.resource), mode)
    };
    let lock =
        s.cluster.input(node, Input::Lock { client: ClientId(client), args })?.expect("an id");
    s.cluster.run();
    Ok(At { node, lock })
}

/// The places where all locks are on node 1.
const ONE_OWNER: [Place; 2] = [Place::Alone, Place::Remote];

/// A client's exit: PERSISTENT locks stay as orphans, the others go, and value blocks that they
/// could have written become invalid.
#[test]
fn exit_keeps_persistent_locks_and_drops_the_others() {
    for place in ONE_OWNER {
        let mut s = Stage::new(place);
        let kept = s.request(Mode::CR, LockFlags::PERSISTENT);
        assert_eq!(s.granted(kept), Mode::CR);
        let dropped = s.hold(Mode::PW);
        assert!(!s.info().lvb_invalid);
        gone(&mut s, node(1));
        assert_eq!(s.queue(Queue::Granted), [kept]);
        let owned = s.cluster.nodes[&node(1)].resource(&common::name(&s.resource)).unwrap();
        assert_eq!(owned.locks[0].client, None, "an orphan");
        assert!(s.info().lvb_invalid);
        assert_eq!(s.completions(dropped), [], "nobody is there to be told");
        assert_eq!(s.completions(kept), []);
    }
}

/// A client's exit: a persistent lock's conversion is cancelled, a persistent request is gone.
#[test]
fn exit_cancels_what_is_pending() {
    for place in ONE_OWNER {
        let mut s = Stage::new(place);
        let other = s.call_of(ClientId(2), Mode::PR, NONE, |_| ()).unwrap();
        s.cluster.run();
        let converter = s.request(Mode::CR, LockFlags::PERSISTENT);
        s.convert(converter, Mode::EX, LockFlags::PERSISTENT).unwrap();
        let waiter = s.request(Mode::EX, LockFlags::PERSISTENT);
        assert_eq!(s.queue(Queue::Waiting), [waiter]);
        gone(&mut s, node(1));
        assert_eq!(s.queue(Queue::Granted), [other, converter]);
        assert_eq!(s.info().locks.len(), 2);
        let adopted = adopt(&mut s, node(1), 3, Mode::CR).unwrap();
        assert_eq!(adopted, converter);
    }
}

/// Adoption: same mode, the lock's own id comes back and it is the adopter's; another mode
/// EAGAIN; no orphan ENOENT.
#[test]
fn adoption() {
    for place in ONE_OWNER {
        let mut s = Stage::new(place);
        let kept = s.request(Mode::PR, LockFlags::PERSISTENT);
        assert_eq!(s.granted(kept), Mode::PR);
        assert_eq!(adopt(&mut s, node(1), 2, Mode::PR), Err(Error::NoEntry), "not orphaned yet");
        gone(&mut s, node(1));
        assert_eq!(adopt(&mut s, node(1), 2, Mode::EX), Err(Error::OtherMode));
        assert_eq!(adopt(&mut s, node(1), 2, Mode::PR), Ok(kept));
        let done = s.completion(kept);
        assert_eq!((done.client, done.status), (ClientId(2), Status::Granted));
        assert_eq!(done.mode, Some(Mode::PR));
        assert_eq!(adopt(&mut s, node(1), 3, Mode::PR), Err(Error::NoEntry), "adopted already");
        assert_eq!(s.unlock(kept, UnlockFlags::empty()), Err(Error::NoEntry), "not the first's");
        let convert = ConvertArgs {
            client: ClientId(2),
            lock: kept.lock,
            tag: 0,
            mode: Mode::EX,
            flags: NONE,
            lvb: None,
            timeout: None,
        };
        s.cluster.input(node(1), Input::Convert(convert)).unwrap();
        s.cluster.run();
        assert_eq!(s.granted(kept), Mode::EX);
    }
}

/// An orphan blocks as any lock, and gets no notices.
#[test]
fn orphans_stay_in_force_until_purged() {
    for place in ONE_OWNER {
        let mut s = Stage::new(place);
        let kept = s.request(Mode::EX, LockFlags::PERSISTENT);
        assert_eq!(s.granted(kept), Mode::EX);
        gone(&mut s, node(1));
        let waiter = s.call_of(ClientId(2), Mode::PR, NONE, |_| ()).unwrap();
        s.cluster.run();
        s.waits(waiter);
        assert_eq!(s.notices(kept), []);
        let purge = |client| Input::Purge { node: node(1), clients: Clients::one(client) };
        s.cluster.input(node(1), purge(ClientId(9))).unwrap();
        s.cluster.run();
        s.waits(waiter);
        s.cluster.input(node(1), purge(ClientId(1))).unwrap();
        s.cluster.run();
        assert_eq!(s.granted(waiter), Mode::PR);
        assert!(s.info().lvb_invalid, "it could have been writing");
    }
}

/// A client's exit: whoever counts locks hears how many are left, and of each one's end as an orphan,
/// whether it is adopted, purged, or was a request that now ends.
#[test]
fn orphans_are_counted() {
    for place in ONE_OWNER {
        let mut s = Stage::new(place);
        let kept: Vec<At> = (0..3).map(|_| s.request(Mode::CR, LockFlags::PERSISTENT)).collect();
        let dropped = s.hold(Mode::CR);
        let waiter = s.request(Mode::EX, LockFlags::PERSISTENT);
        s.waits(waiter);
        assert_eq!(s.cluster.orphans(node(1), ClientId(1)), []);
        gone(&mut s, node(1));
        assert_eq!(s.cluster.orphans(node(1), ClientId(1)), [4, -1], "the request cannot stay");
        let adopted = adopt(&mut s, node(1), 2, Mode::CR).unwrap();
        assert!(kept.iter().any(|k| k.lock == adopted.lock) && dropped.lock != adopted.lock);
        assert_eq!(s.cluster.orphans(node(1), ClientId(1)), [-1]);
        let purge = Input::Purge { node: node(1), clients: Clients::ALL };
        s.cluster.input(node(1), purge).unwrap();
        s.cluster.run();
        assert_eq!(s.cluster.orphans(node(1), ClientId(1)), [-1, -1]);
        s.cluster.input(node(1), Input::ClientGone(ClientId(2))).unwrap();
        s.cluster.run();
        assert_eq!(s.cluster.orphans(node(1), ClientId(2)), [1], "it is still PERSISTENT");
        assert_eq!(s.cluster.orphans(node(1), ClientId(1)), []);
    }
}

/// Purge of another node's orphans is forwarded; of no member's, ENOENT.
#[test]
fn purge_of_another_node() {
    let mut s = Stage::new(Place::Remote);
    let kept = s.request(Mode::EX, LockFlags::PERSISTENT);
    assert_eq!(s.granted(kept), Mode::EX);
    gone(&mut s, node(1));
    let purge = |node| Input::Purge { node, clients: Clients::ALL };
    assert_eq!(s.cluster.input(node(2), purge(node(7))), Err(Error::NoEntry));
    s.cluster.input(node(2), purge(node(2))).unwrap();
    s.cluster.run();
    assert_eq!(s.queue(Queue::Granted), [kept], "orphans of other nodes stay");
    s.cluster.input(node(2), purge(node(1))).unwrap();
    s.cluster.run();
    assert!(s.cluster.nodes.values().all(|n| n.lock_count() == 0));
}

/// Time-outs: a request and a conversion that waited too long end with ETIMEDOUT, as if cancelled.
#[test]
fn timeouts() {
    everywhere(|mut s| {
        let (held, converter) = (s.hold(Mode::PR), s.hold(Mode::CR));
        let waiter = s.call(Mode::EX, NONE, |a| a.timeout = Some(100 * MS)).unwrap();
        let args = ConvertArgs {
            client: ClientId(1),
            lock: converter.lock,
            tag: 0,
            mode: Mode::EX,
            flags: NONE,
            lvb: None,
            timeout: Some(200 * MS),
        };
        s.cluster.input(converter.node, Input::Convert(args)).unwrap();
        s.cluster.run();
        s.cluster.pass(99 * MS);
        s.waits(waiter);
        s.cluster.pass(MS);
        let done = s.completion(waiter);
        assert_eq!((done.status, done.mode), (Status::TimedOut, None));
        s.waits(converter);
        s.cluster.pass(100 * MS);
        let done = s.completion(converter);
        assert_eq!((done.status, done.mode), (Status::TimedOut, Some(Mode::CR)));
        assert_eq!(s.info().locks.len(), 2);
        s.convert(held, Mode::NL, NONE).unwrap();
        assert_eq!(s.granted(held), Mode::NL);
    });
}

/// A time-out that comes after the grant, or in a later operation of the lock, does nothing.
#[test]
fn timeouts_end_with_their_operation() {
    everywhere(|mut s| {
        let held = s.hold(Mode::PR);
        let waiter = s.call(Mode::PW, NONE, |a| a.timeout = Some(100 * MS)).unwrap();
        s.cluster.run();
        s.convert(held, Mode::NL, NONE).unwrap();
        assert_eq!(s.granted(waiter), Mode::PW);
        let other = s.hold(Mode::CR);
        s.convert(waiter, Mode::EX, NONE).unwrap();
        s.cluster.pass(500 * MS);
        s.waits(waiter);
        s.unlock(other, UnlockFlags::empty()).unwrap();
        assert_eq!(s.granted(waiter), Mode::EX);
    });
}
