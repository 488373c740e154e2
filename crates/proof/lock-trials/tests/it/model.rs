//! The exhaustive search: prints its bounds and numbers of states.

use lockify_sim::harness::{alone, show};
use lockify_trials::model::{proved_dead_too_early, scenarios, search};

/// Two nodes hold one lock if the membership takes a member for dead before it has halted: the search finds that.
#[test]
fn a_member_that_is_taken_for_dead_too_early_is_found() {
    let found = search(&proved_dead_too_early()).counterexample.expect("two holders");
    assert!(found.what.starts_with("INV-2"), "{found}");
}

#[test]
fn no_reachable_state_violates_an_invariant() {
    let _alone = alone();
    show("\nmodel check");
    let reports: Vec<_> = std::thread::scope(|scope| {
        let searches: Vec<_> =
            scenarios().into_iter().map(|s| (s.bounds, scope.spawn(move || search(&s)))).collect();
        searches.into_iter().map(|(bounds, search)| (bounds, search.join())).collect()
    });
    let mut states = 0;
    for (bounds, report) in reports {
        let report = report.expect("the search itself does not fail");
        show(format_args!("{report}; bounds: {bounds:?}"));
        assert!(report.counterexample.is_none(), "{report}");
        states += report.states;
    }
    show(format_args!("{states} states"));
    assert!(states > 100_000, "the scenarios have become trivial");
}
