//! Every hole of the published protocols, opened, is found by the search; closed, the same searches find nothing. Prints
//! what was found after how many steps.

use crate::common::{S, X, options, timed};
use lockify_onesided::explore::{Fault, Scenario, search};
use lockify_onesided::mutation::Mutation;
use lockify_onesided::{Mode, Options, Protocol};
use lockify_sim::harness::{alone, show};

/// Where the hole shows.
fn scenario(hole: Mutation) -> Option<Scenario> {
    use Protocol::{Dqnl, Dslr, NCosed, ShiftLock, ShiftLockS};
    let plain = |protocol, clients: &[&[Mode]]| Scenario::new("", options(protocol), clients);
    let faulty = |protocol, clients: &[&[Mode]], fault| {
        let scenario = Scenario::new("", timed(protocol), clients).fault(fault);
        Scenario { masked: true, ..scenario }
    };
    let freeze = Fault::Freeze(3);
    Some(match hole {
        Mutation::TailWritesZero => plain(Dqnl, &[&[X, X], &[X], &[X]]),
        Mutation::CosedUnlockResets => plain(NCosed, &[&[X], &[X], &[X]]),
        Mutation::CosedIgnoresReadersBetween => plain(NCosed, &[&[X], &[S], &[X]]),
        Mutation::CosedHandsOverUncounted => plain(NCosed, &[&[X], &[S], &[X]]),
        Mutation::CosedResetForgetsReleases => plain(NCosed, &[&[S, S], &[S, S], &[X]]),
        Mutation::CosedGrantsWhileResetting => plain(NCosed, &[&[S, S], &[S, X], &[S]]),
        Mutation::CosedCountsFromTheRequest => plain(NCosed, &[&[S], &[S], &[X]]),
        Mutation::CosedDropsEarlyRequests => {
            Scenario { late: true, ..plain(NCosed, &[&[X], &[X]]) }
        }
        Mutation::CosedReadersLeaveAtTheWriter => plain(NCosed, &[&[X], &[S], &[X]]),
        Mutation::CosedLeavesUntold => plain(NCosed, &[&[X], &[S], &[S]]),
        Mutation::NothingIsRepaired => faulty(NCosed, &[&[X], &[X]], Fault::Crash),
        Mutation::ReaderTakesSiblingsForSkips => plain(Dslr, &[&[X, X], &[S], &[S]]),
        // Wrong in no state: `fairness.rs` has schedules that show who waits in vain.
        Mutation::CosedReadersNeverYield | Mutation::LateReleaseOmitted => return None,
        // A letter has to be late by leases, which is deep in a search: it has a schedule there, too.
        Mutation::LettersAreAnonymous => return None,
        // Shows when a counter is full: the crate's own tests, with counters of four bits, have it.
        Mutation::CosedFoldsAllOrNothing => return None,
        Mutation::RmaResetForgetsUndos => plain(Protocol::RmaRw, &[&[X], &[S], &[X]]),
        Mutation::SlotWithoutCheck | Mutation::SlotBeforeRelease => {
            plain(ShiftLockS, &[&[X, X], &[X, X]])
        }
        Mutation::ReaderCountsAsWriter | Mutation::WriterIgnoresReaders => {
            plain(Dslr, &[&[S], &[X], &[X]])
        }
        Mutation::ShiftIgnoresReaders => plain(ShiftLock, &[&[S], &[X], &[X]]),
        Mutation::ShiftForgetsAdmitted => {
            let batch = Options { batch: 1, ..options(ShiftLock) };
            Scenario::new("", batch, &[&[X], &[S], &[X]])
        }
        Mutation::ShiftNeverEndsABatch => {
            let batch = Options { batch: 1, ..options(ShiftLock) };
            Scenario { masked: true, ..Scenario::new("", batch, &[&[X, X], &[X, X], &[S]]) }
        }
        // Three in turn, each for most of a lease: longer than anybody waits for a sign of life.
        Mutation::SilentHandover => Scenario {
            hold: 900,
            ..faulty(Protocol::ShiftLockPlus, &[&[X], &[X], &[X]], Fault::Crash)
        },
        Mutation::RepairUnconditional => faulty(Dslr, &[&[X], &[X], &[X]], freeze),
        Mutation::RepairInPlace => faulty(Dslr, &[&[X], &[X, X]], freeze),
        Mutation::HolderNotFenced => faulty(Dslr, &[&[X], &[X]], freeze),
        Mutation::LeaseFromNotice => {
            Scenario { hold: 900, ..faulty(ShiftLockS, &[&[X], &[X]], Fault::Freeze(1)) }
        }
    })
}

#[test]
fn every_hole_is_found() {
    let _alone = alone();
    show("\nhole                          found");
    let mut missed = Vec::new();
    for hole in Mutation::ALL {
        let Some(scenario) = scenario(hole) else { continue };
        let closed = search(&Scenario { states: 150_000, ..scenario.clone() });
        if closed.counterexample.is_some() {
            missed.push(format!("{hole:?}, closed: {closed}"));
        }
        let options = Options { mutation: Some(hole), ..scenario.options };
        let open = search(&Scenario { options, ..scenario });
        match open.counterexample {
            Some(found) => {
                let (hole, steps) = (format!("{hole:?}"), found.steps.len());
                show(format_args!("{hole:<30}after {steps} steps: {}", found.what));
            }
            None => {
                let name = format!("{hole:?}");
                show(format_args!("{name:<30}NOTHING in {} states", open.states));
                missed.push(format!("{hole:?} is not found"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
