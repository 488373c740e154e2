//! Seeds of hosts that share an array.

use lockify_array::Scheme;
use lockify_trials::array::scenario::Faults;
use lockify_trials::array::seeds::{Run, run, run_one};

#[test]
fn without_faults_every_scheme_is_clean() {
    for scheme in [Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        let summary = run(&Run { faults: Faults::None, ..Run::new(scheme, 0..60) }, |_| {});
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{summary}");
        assert!(summary.total.operations > 60 * 50, "hardly anything happened: {summary}");
        assert_eq!((summary.total.failed, summary.total.lost), (0, 0), "{summary}");
    }
}

#[test]
fn devices_that_start_again_and_broken_connections_leave_nothing_to_repair() {
    for scheme in [Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        let what = Run { faults: Faults::Restarts, trace: true, ..Run::new(scheme, 0..100) };
        let summary = run(&what, |_| {});
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{summary}");
        assert!(summary.total.faults > 100 * 3, "hardly anything failed: {summary}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for scheme in [Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        let run = Run { faults: Faults::Restarts, ..Run::new(scheme, 0..1) };
        let [first, second] = [(); 2].map(|()| run_one(&run, 3, false).map_err(|f| f.message));
        assert_eq!(first, second, "{scheme}");
    }
}
