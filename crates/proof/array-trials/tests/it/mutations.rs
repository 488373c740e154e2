//! Holes of the published protocols for arrays, opened, are found by seeds that are clean when they are closed. Prints which
//! seed found which.
//!
//! Three holes cannot show here, or hardly. An unlock overtakes its lock only where connections do not keep order, and parity that vouches
//! for any medium takes four failures (`crates/array/machine/tests/machines/mutations.rs`). No region becomes clean before the end of a run
//! (`crates/array/machine/tests/machines/caches.rs`).

use std::ops::Range;

use lockify_array::mutation::Mutation;
use lockify_array::{Redundancy, Scheme};
use lockify_array_trials::scenario::Faults;
use lockify_array_trials::seeds::{Run, run_one};
use lockify_sim::harness::show;

/// As many seeds are looked through for most holes.
const SEEDS: u64 = 1000;

/// A hole, and where it shows.
struct Hole {
    name: &'static str,
    open: (Scheme, Option<Mutation>),
    closed: Scheme,
    faults: Faults,
    /// The rule that it breaks.
    rule: &'static str,
    /// Seeds that it is looked for in.
    seeds: Range<u64>,
    redundancy: Option<Redundancy>,
}

const fn hole(name: &'static str, mutation: Mutation, faults: Faults, rule: &'static str) -> Hole {
    let scheme = Scheme::TimestampOrdering;
    let (open, redundancy) = ((scheme, Some(mutation)), None);
    Hole { name, open, closed: scheme, faults, rule, seeds: 0..SEEDS, redundancy }
}

/// One of arrays with several lock servers.
const fn of_servers(name: &'static str, mutation: Mutation) -> Hole {
    let scheme = Scheme::ServerLocking;
    let open = (scheme, Some(mutation));
    Hole { open, closed: scheme, ..hole(name, mutation, Faults::LockServers, "serializable") }
}

/// One of arrays with two parities.
const fn of_two(
    name: &'static str,
    mutation: Mutation,
    faults: Faults,
    rule: &'static str,
) -> Hole {
    Hole { redundancy: Some(Redundancy::Raid6), ..hole(name, mutation, faults, rule) }
}

const HOLES: [Hole; 22] = [
    Hole {
        name: "no control",
        open: (Scheme::ZeroOverhead, None),
        closed: Scheme::TimestampOrdering,
        faults: Faults::None,
        rule: "serializable",
        seeds: 0..SEEDS,
        redundancy: None,
    },
    hole("write unconditionally", Mutation::TsoWritesUnconditionally, Faults::None, "serializable"),
    hole("keep queued reads", Mutation::TsoKeepsQueuedReads, Faults::None, "timestamp_order"),
    hole("delta after partial write", Mutation::DeltaAfterPartialWrite, Faults::Restarts, "parity"),
    // An operation that reads several blocks has the mix repaired, so that the end finds parity that does not fit.
    hole("serve before settled", Mutation::ServesBeforeSettled, Faults::Restarts, "liveness"),
    hole("trust old copies", Mutation::TrustsOldCopies, Faults::All, "reads"),
    hole("serve by an inherited key", Mutation::ServesByInheritedKey, Faults::All, "reads"),
    Hole {
        name: "unlock before written",
        open: (Scheme::ServerLocking, Some(Mutation::UnlockBeforeWritten)),
        closed: Scheme::ServerLocking,
        faults: Faults::None,
        rule: "serializable",
        seeds: 0..SEEDS,
        redundancy: None,
    },
    of_servers("standby serves unagreed", Mutation::StandbyServesUnagreed),
    of_servers("grant before copied", Mutation::GrantsBeforeCopied),
    Hole { seeds: 1200..1250, ..of_servers("trust old logs", Mutation::TrustsOldLogs) },
    hole("grow unagreed", Mutation::GrowsUnagreed, Faults::Growth, "well_formed"),
    hole("move to new group", Mutation::MovesToNewGroup, Faults::Growth, "reads"),
    hole("zeros are data", Mutation::ZerosAreData, Faults::Restarts, "reads"),
    hole("forget read errors", Mutation::ReadErrorsAreForgotten, Faults::All, "liveness"),
    hole("flush trusts restarts", Mutation::FlushTrustsRestarts, Faults::Restarts, "durability"),
    hole("cache loss fits parity", Mutation::CacheLossFitsParity, Faults::Restarts, "durability"),
    hole("patch one's own copy", Mutation::PatchesOwnCopy, Faults::None, "reads"),
    // Takes three faults at once, which few seeds have.
    Hole {
        name: "give up beside unsettled",
        open: (Scheme::DeviceLocking, Some(Mutation::GivesUpBesideUnsettled)),
        closed: Scheme::DeviceLocking,
        faults: Faults::All,
        rule: "reads",
        seeds: 14_975..15_000,
        redundancy: None,
    },
    of_two("second parity stays", Mutation::SecondParityStays, Faults::None, "parity"),
    of_two("another unit's factor", Mutation::SecondParityOfAnotherUnit, Faults::None, "parity"),
    of_two("two units of one parity", Mutation::TwoUnitsOfOneParity, Faults::All, "reads"),
];

fn verdict(
    scheme: Scheme,
    faults: Faults,
    mutation: Option<Mutation>,
    (media, caches, patches, redundancy): (bool, bool, bool, Option<Redundancy>),
    seed: u64,
) -> Result<(), String> {
    let run =
        Run { faults, mutation, media, caches, patches, redundancy, ..Run::new(scheme, 0..SEEDS) };
    run_one(&run, seed, false).map(drop).map_err(|failure| failure.message)
}

/// The first seed that fails with the hole open and not with it closed, and why.
fn find(hole: &Hole) -> Option<String> {
    // Holes that have nothing to do with media are found by the same seeds as before media failed. So it is with caches and with
    // writes of less than a block.
    let of_media = [Mutation::ZerosAreData, Mutation::ReadErrorsAreForgotten];
    let media = hole.open.1.is_some_and(|mutation| of_media.contains(&mutation));
    let of_caches = [Mutation::FlushTrustsRestarts, Mutation::CacheLossFitsParity];
    let caches = hole.open.1.is_some_and(|mutation| of_caches.contains(&mutation));
    let patches = hole.open.1 == Some(Mutation::PatchesOwnCopy);
    let drawn = (media, caches, patches, hole.redundancy);
    hole.seeds.clone().find_map(|seed| {
        let what = verdict(hole.open.0, hole.faults, hole.open.1, drawn, seed).err()?;
        let broken = format!("VIOLATED {}", hole.rule);
        let what = what.lines().find(|line| line.starts_with(&broken))?;
        verdict(hole.closed, hole.faults, None, drawn, seed).ok()?;
        let what: String = what.chars().take(110).collect();
        Some(format!("{}, seed {seed}: {what}", hole.faults.name()))
    })
}

#[test]
fn every_hole_is_found() {
    let found: Vec<_> = HOLES.iter().map(|hole| (hole.name, find(hole))).collect();
    let row = |(name, how): &(_, Option<String>)| {
        format!("\n{name:<28}{}", how.as_deref().unwrap_or("NOTHING"))
    };
    let rows: String = found.iter().map(row).collect();
    // At once: other tests print meanwhile, as this one leaves a processor to them.
    show(format_args!("\nhole                        found by{rows}"));
    let missed: Vec<_> = found.iter().filter(|(_, how)| how.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
