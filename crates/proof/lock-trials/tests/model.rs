//! The exhaustive search: prints its bounds and numbers of states.
//!
//! Has no test harness, so that they are seen in the output of `cargo test`.

use lockify_trials::model::{proved_dead_too_early, scenarios, search};

/// Two nodes hold one lock if the membership takes a member for dead before it has halted: the search finds that.
fn a_member_that_is_taken_for_dead_too_early_is_found() {
    let found = search(&proved_dead_too_early()).counterexample.expect("two holders");
    assert!(found.what.starts_with("INV-2"), "{found}");
}

fn main() {
    if !lockify_sim::harness::is_wanted("no_reachable_state_violates_an_invariant") {
        return;
    }
    println!("\nmodel check");
    let reports: Vec<_> = std::thread::scope(|scope| {
        let searches: Vec<_> =
            scenarios().into_iter().map(|s| (s.bounds, scope.spawn(move || search(&s)))).collect();
        searches.into_iter().map(|(bounds, search)| (bounds, search.join())).collect()
    });
    let mut states = 0;
    for (bounds, report) in reports {
        let report = report.expect("the search itself does not fail");
        println!("{report}; bounds: {bounds:?}");
        assert!(report.counterexample.is_none(), "{report}");
        states += report.states;
    }
    a_member_that_is_taken_for_dead_too_early_is_found();
    println!("{states} states");
    assert!(states > 100_000, "the scenarios have become trivial");
}
