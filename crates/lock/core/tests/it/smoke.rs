//! Every policy locks, converts, blocks, hands over and recovers.

use crate::common::{self, Cluster, MS, node};

use lockify_core::*;

/// The default of `Config::batch_age`: claims are sent by then.
const BATCH_AGE: u64 = 50 * MS;

#[test]
fn hand_over_between_nodes() {
    for policy in Policy::ALL {
        for directory in 1..=3 {
            let mut c = Cluster::new(3, policy);
            let r = c.name_at(node(directory));
            let a = c.request(node(1), &r, Mode::EX);
            c.run();
            assert_eq!(c.granted(node(1), a), Mode::EX, "{policy:?}");
            let b = c.request(node(2), &r, Mode::PR);
            c.run();
            assert_eq!(c.completions(node(2), b), []);
            assert_eq!(c.basts(node(1), a), [Mode::PR]);
            c.convert(node(1), a, Mode::PR).unwrap();
            c.run();
            assert_eq!(c.granted(node(1), a), Mode::PR);
            assert_eq!(c.granted(node(2), b), Mode::PR, "{policy:?} {directory}");
            c.unlock(node(1), a).unwrap();
            c.run();
            c.convert(node(2), b, Mode::EX).unwrap();
            c.run();
            assert_eq!(c.status(node(1), a), Status::Unlocked);
            assert_eq!(c.granted(node(2), b), Mode::EX);
            c.unlock(node(2), b).unwrap();
            c.run();
            for _ in 0..3 {
                c.pass(11_000 * MS);
            }
            for space in c.nodes.values() {
                assert_eq!(space.resources(), []);
                assert_eq!(space.directory(), [], "{policy:?}");
            }
        }
    }
}

#[test]
fn master_or_directory_dies() {
    for policy in Policy::ALL {
        for directory in 1..=4 {
            for victim in 1..=4 {
                let mut c = Cluster::new(4, policy);
                let r = c.name_at(node(directory));
                let locks: Vec<_> =
                    (1..=4).map(|n| (n, c.request(node(n), &r, Mode::CR))).collect();
                c.run();
                c.kill(node(victim));
                c.view();
                c.run();
                for (n, lock) in locks.into_iter().filter(|(n, _)| *n != victim) {
                    assert_eq!(c.granted(node(n), lock), Mode::CR);
                    c.unlock(node(n), lock).unwrap();
                    c.run();
                    assert_eq!(c.status(node(n), lock), Status::Unlocked, "{policy:?}");
                }
            }
        }
    }
}

#[test]
fn claimed_creation_asks_nobody() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let r = c.name_at(node(2));
    let a = c.request_with(node(1), &r, Mode::EX, LockFlags::NOTIFY);
    let done = c.completions(node(1), a);
    assert_eq!(done.len(), 1);
    assert!(done[0].provisional && done[0].token > 0);
    assert_eq!(c.nodes[&node(1)].unsettled_claims(), 1);
    c.pass(BATCH_AGE);
    assert_eq!(c.nodes[&node(1)].unsettled_claims(), 0);
    assert_eq!(c.nodes[&node(1)].stats().round_trips, 0);
    assert_eq!(c.nodes[&node(2)].directory(), [(common::name(&r), node(1))]);
}

#[test]
fn barrier_keeps_the_parent_until_the_claim_is_settled() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let parent = c.request(node(1), "parent", Mode::EX);
    c.run();
    c.granted(node(1), parent);
    let r = c.name_at(node(2));
    c.request_with(node(1), &r, Mode::EX, LockFlags::NOTIFY);
    c.convert(node(1), parent, Mode::PR).unwrap();
    assert_eq!(c.completions(node(1), parent), []);
    c.run();
    assert_eq!(c.granted(node(1), parent), Mode::PR);
    assert_eq!(c.nodes[&node(1)].stats().barrier_waits, 1);
}

#[test]
fn refused_claim_is_merged() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let r = c.name_at(node(2));
    let idle = c.request(node(3), &r, Mode::NL);
    c.run();
    c.granted(node(3), idle);
    let a = c.request_with(node(1), &r, Mode::EX, LockFlags::NOTIFY);
    assert_eq!(c.granted(node(1), a), Mode::EX);
    c.pass(BATCH_AGE);
    assert_eq!(c.nodes[&node(1)].stats().merges, 1);
    assert_eq!(c.nodes[&node(1)].unsettled_claims(), 0);
    let b = c.request(node(2), &r, Mode::PR);
    c.run();
    assert_eq!(c.basts(node(1), a), [Mode::PR]);
    c.unlock(node(1), a).unwrap();
    c.run();
    assert_eq!(c.granted(node(2), b), Mode::PR);
}

#[test]
fn refused_claim_against_a_lock_that_stays_is_a_conflict() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let r = c.name_at(node(2));
    let other = c.request(node(3), &r, Mode::PR);
    c.run();
    let a = c.request_with(node(1), &r, Mode::EX, LockFlags::NOTIFY);
    c.pass(BATCH_AGE);
    assert_eq!(c.basts(node(3), other), [Mode::EX]);
    c.pass(6_000 * MS);
    assert!(c.told.iter().any(|(n, o)| *n == node(1)
        && matches!(o, Output::Lost { lock, reason: LostReason::Conflict, .. } if *lock == a)));
    assert_eq!(c.convert(node(1), a, Mode::PR), Err(Error::Lost));
    assert_eq!(c.nodes[&node(1)].unsettled_claims(), 1);
    c.unlock(node(1), a).unwrap();
    c.run();
    assert_eq!(c.nodes[&node(1)].unsettled_claims(), 0);
}

#[test]
fn settled_token_outgrows_earlier_objects_of_the_name() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let n = c.name_at(node(1));
    let l = c.request_with(node(2), &n, Mode::EX, LockFlags::NOTIFY);
    c.pass(BATCH_AGE);
    for _ in 0..5 {
        c.convert(node(2), l, Mode::NL).unwrap();
        c.convert(node(2), l, Mode::EX).unwrap();
    }
    c.pass(BATCH_AGE);
    let last = c.completions(node(2), l).last().unwrap().token;
    c.unlock(node(2), l).unwrap();
    for _ in 0..5 {
        c.pass(10_000 * MS);
    }
    let m = c.request_with(node(3), &n, Mode::EX, LockFlags::NOTIFY);
    c.pass(BATCH_AGE);
    let first = c.completions(node(3), m);
    let settled = c.told.iter().rev().find_map(|(n, o)| match o {
        Output::Settled { lock, token, .. } if *n == node(3) && *lock == m => Some(*token),
        _ => None,
    });
    assert!(first[0].provisional);
    assert!(settled.is_some_and(|token| token > last), "{settled:?} after {last}");
}
