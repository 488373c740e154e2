//! A crash at every step of a small piece of work on a shared array.

use std::collections::BTreeSet;

use lockify_array::Scheme;
use lockify_array_trials::every_step::{Summary, Victim, crash_at, run, scenario, steps};
use lockify_array_trials::scenario::Faults;

fn crashes(scheme: Scheme, faults: Faults, victim: Victim) -> Summary {
    let summary = run(scheme, faults, victim, |_| {}).expect("nothing is wrong if nobody crashes");
    println!("{summary}");
    assert!(summary.steps > 20, "hardly a step: {summary}");
    summary
}

const SCHEMES: [Scheme; 4] = [
    Scheme::TimestampOrdering,
    Scheme::DeviceLocking,
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
];

/// Crashes everybody under every scheme; nothing may fail.
fn survive(faults: Faults, also: impl Fn(Victim, &Summary)) {
    for scheme in SCHEMES {
        for victim in Victim::ALL.into_iter().filter(|victim| victim.is_in(scheme, faults)) {
            let summary = crashes(scheme, faults, victim);
            assert!(summary.failures.is_empty(), "{summary}");
            also(victim, &summary);
        }
    }
}

/// A crashed machine comes back before any other has missed it.
#[test]
fn no_step_is_the_wrong_one_to_restart_at() {
    survive(Faults::Restarts, |_, summary| {
        assert!(summary.total.restarts > 0, "nobody noticed: {summary}");
    });
}

/// A crashed machine is fenced, or taken out of the array and rebuilt.
#[test]
fn no_step_is_the_wrong_one_to_die_at() {
    survive(Faults::All, |victim, summary| {
        let repairs = summary.total.repairs;
        let unseen = matches!(victim, Victim::Server | Victim::Sector);
        assert!(unseen || repairs >= summary.steps, "unseen: {summary}");
    });
}

#[test]
fn a_failing_step_says_how_to_repeat_it() {
    let summary = crashes(Scheme::DeviceLocking, Faults::Restarts, Victim::Device);
    let scenario = scenario(Scheme::DeviceLocking, Faults::Restarts, Victim::Device);
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
