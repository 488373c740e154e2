//! Every known defect, switched on, is found by seeds or by the model check; switched off, the same configuration is
//! clean. Prints which seed, or which scenario of the model at which depth, found it.
#![cfg(feature = "mutations")]

use lockify_core::mutation::Mutation;
use lockify_core::{ClaimMode, Policy};
use lockify_trials::locks::{Options, run};
use lockify_trials::model::{scenarios, search};

/// Seeds that a defect is looked for in before the model is searched, per policy.
const FIRST_SEEDS: u64 = 60;
/// Seeds that it is looked for in after that.
const ALL_SEEDS: u64 = 200;
/// States of each scenario of the model that a defect is looked for in.
const STATES: usize = 150_000;

fn policies() -> [Policy; 2] {
    [Policy::Claim(ClaimMode::Optimistic), Policy::Claim(ClaimMode::Strict)]
}

fn options(policy: Policy, seeds: u64, mutation: Option<Mutation>) -> Options {
    let mut options = Options::new(policy, 0..seeds);
    options.mutation = mutation;
    options.value_blocks = false;
    options
}

fn found_by_seeds(mutation: Mutation, seeds: u64) -> Option<String> {
    policies().into_iter().find_map(|policy| {
        let summary = run(&options(policy, seeds, Some(mutation)), |_| {});
        let failure = summary.failures.first()?;
        let what = failure.failure.message.lines().next().unwrap_or_default().to_owned();
        Some(format!("{} seed {}: {what}", policy.name(), failure.seed))
    })
}

fn found_by_model(mutation: Mutation) -> Option<String> {
    let mut scenarios = scenarios();
    // The cheap ones first.
    scenarios
        .sort_by_key(|scenario| (scenario.config.claim_resend.is_some(), scenario.bounds.depth));
    scenarios.into_iter().find_map(|mut scenario| {
        scenario.config.mutation = Some(mutation);
        scenario.bounds.states = scenario.bounds.states.min(STATES);
        let report = search(&scenario);
        let found = report.counterexample?;
        Some(format!("model {:?} at depth {}: {}", scenario.name, found.steps.len(), found.what))
    })
}

fn short(text: &str) -> String {
    text.chars().take(150).collect()
}

#[test]
fn every_mutation_is_found() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let found = found_by_seeds(mutation, FIRST_SEEDS)
            .or_else(|| found_by_model(mutation))
            .or_else(|| found_by_seeds(mutation, ALL_SEEDS));
        match found {
            Some(how) => println!("{mutation:?}: {}", short(&how)),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn without_mutation_the_same_seeds_are_clean() {
    for policy in policies() {
        let summary = run(&options(policy, ALL_SEEDS, None), |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert_eq!(summary.runs, ALL_SEEDS);
    }
}
