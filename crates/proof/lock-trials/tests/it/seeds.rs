//! Seeds of simulated clusters, with every kind of fault, under every policy.

use lockify_core::{ClaimMode, Policy};
use lockify_trials::locks::{Membership, Options, run, run_one, run_scenario};
use lockify_trials::scenario::{Faults, Scenario};

#[test]
fn without_faults_every_policy_is_clean() {
    for policy in Policy::ALL {
        let mut options = Options::new(policy, 0..60);
        options.faults = Faults::None;
        let summary = run(&options, |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert!(summary.calls > 60 * 50, "hardly anything happened: {summary}");
    }
}

#[test]
fn with_all_faults_every_policy_is_clean() {
    for policy in Policy::ALL {
        let options = Options::new(policy, 0..60);
        let summary = run(&options, |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert!(summary.recoveries > 60, "hardly anything failed: {summary}");
    }
}

#[test]
fn with_corosync_every_policy_is_clean() {
    for policy in Policy::ALL {
        let mut options = Options::new(policy, 0..40);
        options.membership = Membership::Corosync;
        let summary = run(&options, |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert!(summary.recoveries > 40, "hardly anything failed: {summary}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let options = Options::new(Policy::Claim(ClaimMode::Optimistic), 0..1);
    for seed in 0..8 {
        let outcomes = [run_one(&options, seed), run_one(&options, seed)];
        let [first, second] =
            outcomes.map(|o| o.map(|o| (o.events, o.calls, o.coverage)).map_err(|f| f.message));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn deadlocks_are_found_and_nobody_else_is_ended() {
    for policy in Policy::ALL {
        for faults in [Faults::None, Faults::All] {
            let mut options = Options::new(policy, 0..40);
            options.faults = faults;
            options.deadlocks = true;
            let summary = run(&options, |_| {});
            assert!(summary.is_clean(), "{summary}");
            assert!(summary.deadlocks > 100, "hardly any deadlocks: {}", summary.deadlocks);
        }
    }
}

#[test]
fn without_a_search_deadlocks_stay() {
    let policy = Policy::Claim(ClaimMode::Optimistic);
    let stuck = (0..10).filter(|&seed| {
        let mut scenario = Scenario::draw(seed, policy, &(3..=5), Faults::None).deadlocking();
        scenario.config.deadlock_after = None;
        let failed = run_scenario(scenario, false).err();
        failed.is_some_and(|f| f.message.contains("no progress"))
    });
    assert!(stuck.count() >= 5);
}
