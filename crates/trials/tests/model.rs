//! The exhaustive search: prints its bounds and numbers of states.

use lockify_trials::model::{scenarios, search};

#[test]
fn no_reachable_state_violates_an_invariant() {
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
    println!("{states} states");
    assert!(states > 100_000, "the scenarios have become trivial");
}
