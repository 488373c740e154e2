//! A crash at every step of a small piece of work on a shared array.

use std::collections::BTreeSet;

use lockify_array::Scheme;
use lockify_trials::array::every_step::{Summary, Victim, crash_at, run, scenario, steps};
use lockify_trials::array::scenario::Faults;

fn crashes(scheme: Scheme, faults: Faults, victim: Victim) -> Summary {
    let summary = run(scheme, faults, victim, |_| {}).expect("nothing is wrong if nobody crashes");
    println!("{summary}");
    assert!(summary.steps > 20, "hardly a step: {summary}");
    summary
}

/// Devices that come back before anybody has missed them.
#[test]
fn timestamp_ordering_survives_a_device_that_restarts_at_any_step() {
    for victim in Victim::ALL {
        if victim.is_in(Scheme::TimestampOrdering, Faults::Restarts) {
            let summary = crashes(Scheme::TimestampOrdering, Faults::Restarts, victim);
            assert!(summary.failures.is_empty(), "{summary}");
            assert!(summary.total.restarts > 0, "nobody noticed: {summary}");
        }
    }
}

/// What it had in flight is repaired by the other.
#[test]
fn device_locking_survives_a_host_that_dies_at_any_step() {
    let summary = crashes(Scheme::DeviceLocking, Faults::All, Victim::Host);
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.total.repairs >= summary.steps, "not every dead host was fenced: {summary}");
}

#[test]
fn a_failing_step_says_how_to_repeat_it() {
    let summary = crashes(Scheme::DeviceLocking, Faults::Restarts, Victim::Device);
    let scenario = scenario(Scheme::DeviceLocking, Faults::Restarts);
    let known: BTreeSet<u64> = summary.failures.iter().map(|failure| failure.seed).collect();
    for failure in &summary.failures {
        let replay = format!("--every-step=device --replay {}", failure.seed);
        assert!(failure.replay.ends_with(&replay), "{}", failure.replay);
    }
    for nth in [1, summary.steps] {
        let again = crash_at(&scenario, Victim::Device, nth, false);
        assert_eq!(again.is_err(), known.contains(&nth), "step {nth}");
    }
    let beyond = crash_at(&scenario, Victim::Device, summary.steps + 1, false);
    assert!(beyond.is_err_and(|failure| failure.message.contains("no such step")));
    assert_eq!(steps(&scenario, Victim::Server), Ok(0), "there is no lock server");
}
