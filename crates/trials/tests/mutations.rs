//! Every known defect, switched on, is found by seeds or by the model check; switched off, the same configuration is
//! clean. Prints which seed, or which scenario of the model at which depth, found it.
#![cfg(feature = "mutations")]

use lockify_core::mutation::Mutation;
use lockify_core::{ClaimMode, Policy};
use lockify_trials::locks::{Options, run};
use lockify_trials::model::{scenarios, search};

/// Seeds that a defect is looked for in, per policy.
const SEEDS: u64 = 400;
/// States of each scenario of the model that a defect is looked for in.
const STATES: usize = 150_000;

fn policies() -> [Policy; 2] {
    [Policy::Claim(ClaimMode::Optimistic), Policy::Claim(ClaimMode::Strict)]
}

fn options(policy: Policy, mutation: Option<Mutation>) -> Options {
    let mut options = Options::new(policy, 0..SEEDS);
    options.mutation = mutation;
    options
}

fn found_by_seeds(mutation: Mutation) -> Option<String> {
    policies().into_iter().find_map(|policy| {
        let summary = run(&options(policy, Some(mutation)), |_| {});
        let failure = summary.failures.first()?;
        let what = failure.failure.message.lines().next().unwrap_or_default().to_owned();
        Some(format!("{} seed {}: {what}", policy.name(), failure.seed))
    })
}

fn found_by_model(mutation: Mutation) -> Option<String> {
    scenarios().into_iter().find_map(|mut scenario| {
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
        match found_by_seeds(mutation).or_else(|| found_by_model(mutation)) {
            Some(how) => println!("{mutation:?}: {}", short(&how)),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn without_mutation_the_same_seeds_are_clean() {
    for policy in policies() {
        let summary = run(&options(policy, None), |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert_eq!(summary.runs, SEEDS);
    }
}
