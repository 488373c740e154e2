//! Every known defect, switched on, is found by seeds or by the model check; switched off, the same configuration is
//! clean. Prints which seed, or which scenario of the model at which depth, found it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockify_core::mutation::Mutation;
use lockify_core::{ClaimMode, Policy};
use lockify_membership::mutation::Mutation as MemberMutation;
use lockify_sim::harness::{alone, show};
use lockify_trials::locks::{Membership, Options, run};
use lockify_trials::model::{scenarios, search};

/// Seeds that a defect is looked for in before the model is searched, per policy.
const FIRST_SEEDS: u64 = 60;
/// Seeds that it is looked for in after that.
const ALL_SEEDS: u64 = 150;
/// States of each scenario of the model that a defect is looked for in.
const STATES: usize = 150_000;

/// A defect of the lock manager, or of the membership service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    Lock(Mutation),
    Member(MemberMutation),
    /// The same with corosync.
    Corosync(MemberMutation),
}

/// Defects that the membership by corosync can have.
const COROSYNC: [MemberMutation; 3] = [
    MemberMutation::LifeFromClock,
    MemberMutation::ViewFromClock,
    MemberMutation::RefusedUsesNumbers,
];

impl Defect {
    fn all() -> Vec<Defect> {
        let member = MemberMutation::ALL.into_iter().map(Defect::Member);
        let corosync = COROSYNC.into_iter().map(Defect::Corosync);
        member.chain(corosync).chain(Mutation::ALL.into_iter().map(Defect::Lock)).collect()
    }

    fn name(self) -> String {
        match self {
            Defect::Lock(mutation) => format!("{mutation:?}"),
            Defect::Member(mutation) => format!("{mutation:?}"),
            Defect::Corosync(mutation) => format!("{mutation:?}, corosync"),
        }
    }
}

fn policies() -> [Policy; 2] {
    [Policy::Claim(ClaimMode::Optimistic), Policy::Claim(ClaimMode::Strict)]
}

fn options(policy: Policy, seeds: u64, defect: Option<Defect>) -> Options {
    let mut options = Options::new(policy, 0..seeds);
    match defect {
        Some(Defect::Lock(mutation)) => options.mutation = Some(mutation),
        Some(Defect::Member(mutation)) => {
            options.member_mutation = Some(mutation);
            options.membership = Membership::Log;
        }
        Some(Defect::Corosync(mutation)) => {
            options.member_mutation = Some(mutation);
            options.membership = Membership::Corosync;
        }
        None => {}
    }
    // Searches run side by side.
    options.threads = usize::from(defect.is_some());
    options.value_blocks = false;
    options
}

fn found_by_seeds(defect: Defect, seeds: u64) -> Option<String> {
    policies().into_iter().find_map(|policy| {
        let summary = run(&options(policy, seeds, Some(defect)), |_| {});
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

/// How a defect was found, if it was.
fn find(defect: Defect) -> Option<String> {
    found_by_seeds(defect, FIRST_SEEDS)
        .or_else(|| match defect {
            Defect::Lock(mutation) => found_by_model(mutation),
            // The model has no membership service: its states assume what the service guarantees.
            Defect::Member(_) | Defect::Corosync(_) => None,
        })
        .or_else(|| found_by_seeds(defect, ALL_SEEDS))
}

/// Looks for all of them, on as many threads as there are cores.
fn find_all() -> Vec<(Defect, Option<String>)> {
    let all = Defect::all();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(defect) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let how = find(*defect);
                    found.lock().expect("no search panics").push((*defect, how));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no search panics");
    found.sort_by_key(|(defect, _)| all.iter().position(|other| other == defect));
    found
}

fn without_mutation_the_same_seeds_are_clean() {
    for policy in policies() {
        let summary = run(&options(policy, ALL_SEEDS, None), |_| {});
        assert!(summary.is_clean(), "{summary}");
        assert_eq!(summary.runs, ALL_SEEDS);
    }
    show(format_args!("unmodified: seeds 0..{ALL_SEEDS} are clean"));
}

#[test]
fn every_mutation_is_found() {
    let _alone = alone();
    show("\nmutation                      found by");
    let found = find_all();
    for (defect, how) in &found {
        let how = how.as_deref().unwrap_or("NOTHING");
        show(format_args!("{:<30}{}", defect.name(), short(how)));
    }
    let missed: Vec<_> = found.iter().filter(|(_, how)| how.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
    without_mutation_the_same_seeds_are_clean();
}
