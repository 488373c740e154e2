//! Every hole of the published protocols for arrays, opened, is found by seeds; closed, the same seeds are clean. Prints which
//! seed found it.
//!
//! Has no test harness, so that its table is seen in the output of `cargo test`.

#[path = "common/report.rs"]
mod report;

use lockify_array::Scheme;
use lockify_array::mutation::Mutation;
use lockify_trials::array::scenario::Faults;
use lockify_trials::array::seeds::{Run, run};

/// Seeds that a hole is looked for in.
const SEEDS: u64 = 150;

/// Where a hole shows.
fn place(mutation: Mutation) -> (Scheme, Faults) {
    match mutation {
        Mutation::TsoWritesUnconditionally | Mutation::TsoKeepsQueuedReads => {
            (Scheme::TimestampOrdering, Faults::None)
        }
        Mutation::DeltaAfterPartialWrite => (Scheme::TimestampOrdering, Faults::Restarts),
        Mutation::UnlockLeavesNoTombstone => (Scheme::DeviceLocking, Faults::Interruptions),
        Mutation::UnlockBeforeWritten => (Scheme::DeviceLocking, Faults::None),
    }
}

/// The first seed that fails, and why.
fn find(scheme: Scheme, faults: Faults, mutation: Option<Mutation>) -> Option<String> {
    let summary = run(&Run { faults, mutation, ..Run::new(scheme, 0..SEEDS) }, |_| {});
    let failure = summary.failures.first()?;
    let what = failure.failure.message.lines().next().unwrap_or_default();
    let what: String = what.chars().take(150).collect();
    Some(format!("{scheme}, {}, seed {}: {what}", faults.name(), failure.seed))
}

fn main() {
    if !report::is_wanted("every_hole_is_found") {
        return;
    }
    println!("\nhole                        found by");
    let mut missed = Vec::new();
    let mut show = |name: String, found: Option<String>| {
        println!("{name:<28}{}", found.as_deref().unwrap_or("NOTHING"));
        missed.extend(found.is_none().then_some(name));
    };
    show("NoControl".to_owned(), find(Scheme::ZeroOverhead, Faults::None, None));
    for mutation in Mutation::ALL {
        let (scheme, faults) = place(mutation);
        show(format!("{mutation:?}"), find(scheme, faults, Some(mutation)));
    }
    for mutation in Mutation::ALL {
        let (scheme, faults) = place(mutation);
        assert_eq!(find(scheme, faults, None), None, "with every hole closed");
    }
    println!("with every hole closed, the same seeds are clean");
    assert!(missed.is_empty(), "not found: {missed:?}");
}
