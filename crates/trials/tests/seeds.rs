//! Seeds of simulated clusters, with every kind of fault, under every policy.

use lockify_core::{ClaimMode, Policy};
use lockify_trials::locks::{Options, run, run_one};
use lockify_trials::scenario::Faults;

const POLICIES: [Policy; 5] = [
    Policy::Directory,
    Policy::Claim(ClaimMode::Optimistic),
    Policy::Claim(ClaimMode::Strict),
    Policy::Broadcast,
    Policy::Home,
];

#[test]
fn without_faults_every_policy_is_clean() {
    for policy in POLICIES {
        let mut options = Options::new(policy, 0..60);
        options.faults = Faults::None;
        let summary = run(&options, |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert!(summary.calls > 60 * 50, "hardly anything happened: {summary}");
    }
}

#[test]
fn with_all_faults_every_policy_is_clean() {
    for policy in POLICIES {
        let options = Options::new(policy, 0..60);
        let summary = run(&options, |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert!(summary.recoveries > 60, "hardly anything failed: {summary}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let options = Options::new(Policy::Claim(ClaimMode::Optimistic), 0..1);
    for seed in 0..5 {
        let outcomes = [run_one(&options, seed), run_one(&options, seed)];
        let [first, second] =
            outcomes.map(|o| o.map(|o| (o.events, o.calls, o.coverage)).map_err(|f| f.message));
        assert_eq!(first, second, "seed {seed}");
    }
}
