//! Searches with counters of four bits ([`counter`](crate::protocol::counter)), as all are in this crate's own tests: they
//! wrap, run out and fill up within a few holds, and what one of them does to its neighbours shows. In N-CoSED writers
//! ask readers to wait after the first failure, in RMA-RW three readers are the most.

use crate::explore::{Fault, Report, Scenario, search};
use crate::options::{Mode, Options, Protocol};
use crate::protocol::{cosed, shift, spin, tail};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

fn scenario(name: &str, protocol: Protocol, clients: &[&[Mode]]) -> Scenario {
    let options = Options { net: u64::MAX, ..Options::new(protocol) };
    Scenario {
        masked: true,
        ..Scenario::new(&format!("{} {name}", protocol.name()), options, clients)
    }
}

/// With leases, and a client that stops.
fn faulty(name: &str, protocol: Protocol, clients: &[&[Mode]], fault: Fault) -> Scenario {
    let plain = scenario(name, protocol, clients).fault(fault);
    let options = Options { unit: 250, ..plain.options.with_lease(1000) };
    Scenario { options, states: 60_000, ..plain }
}

fn clean(scenario: &Scenario) -> Report {
    let report = search(scenario);
    println!("{report}");
    assert!(report.counterexample.is_none(), "{report}");
    report
}

#[test]
fn counters_wrap_and_nobody_notices() {
    // Twenty holds: more than four bits count.
    let many = [X; 10];
    for protocol in [Protocol::Mcs, Protocol::ShiftLock, Protocol::ShiftLockPlus] {
        clean(&Scenario { states: 60_000, ..scenario("twenty holds", protocol, &[&many, &many]) });
    }
    let mixed = [X, S, S, X, S, X, S, S, X];
    for protocol in [Protocol::ShiftLock, Protocol::NCosed, Protocol::RmaRw] {
        clean(&Scenario { states: 60_000, ..scenario("mixed", protocol, &[&mixed, &mixed]) });
    }
}

/// With leases a lock that is free goes on in the next generation before its counter wraps, and one that is not free
/// counts on.
#[test]
fn tokens_grow_when_counters_wrap() {
    let worn = |protocol| match protocol {
        Protocol::Spin => spin::worn(12),
        Protocol::NCosed => cosed::worn(7),
        Protocol::ShiftLock | Protocol::ShiftLockPlus => shift::worn(7),
        _ => tail::worn(7),
    };
    let protocols = [Protocol::Mcs, Protocol::Dqnl, Protocol::NCosed, Protocol::ShiftLock];
    for protocol in protocols {
        for fault in [Fault::Crash, Fault::Freeze(3)] {
            let many = [X; 6];
            let all = faulty("worn", protocol, &[&many, &many], fault);
            clean(&Scenario { word: worn(protocol), states: 30_000, ..all });
        }
    }
}

#[test]
fn tickets_run_out() {
    for protocol in [Protocol::Dslr, Protocol::ShiftLockS] {
        clean(&Scenario { states: 60_000, ..scenario("tickets", protocol, &[&[X; 9], &[S; 3]]) });
        clean(&Scenario { states: 60_000, ..scenario("tickets", protocol, &[&[S; 9], &[S; 3]]) });
        clean(&faulty("tickets", protocol, &[&[X; 9], &[X]], Fault::Freeze(3)));
    }
}

/// N-CoSED's hole 10: readers that overlap again and again fill the count.
#[test]
fn overlapping_readers_do_not_fill_the_count() {
    let readers = scenario("overlapping readers", Protocol::NCosed, &[&[S; 6], &[S; 6]]);
    let readers = Scenario { states: 300_000, ..readers };
    clean(&readers);
    #[cfg(feature = "mutations")]
    {
        let mutation = Some(crate::mutation::Mutation::CosedFoldsAllOrNothing);
        let open = Options { mutation, ..readers.options };
        let found = search(&Scenario { options: open, ..readers }).counterexample;
        println!("CosedFoldsAllOrNothing: {}", found.expect("the hole is not found").what);
    }
}

#[test]
fn writers_ask_readers_to_wait() {
    let clients: [&[&[Mode]]; 3] =
        [&[&[S, S, S], &[X, X]], &[&[S, S], &[S, S], &[X]], &[&[X, S], &[S, X], &[S]]];
    for clients in clients {
        for protocol in [Protocol::NCosed, Protocol::RmaRw] {
            clean(&Scenario { states: 60_000, ..scenario("asks", protocol, clients) });
        }
        for fault in [Fault::Crash, Fault::Freeze(3)] {
            clean(&faulty("asks", Protocol::NCosed, clients, fault));
        }
    }
}
