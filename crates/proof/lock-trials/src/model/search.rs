//! Depth-first search over all states within the bounds.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::scenarios::Scenario;
use super::state::{Action, State};

/// A path to a violation.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The violation.
    pub what: String,
    /// The steps, one line each.
    pub steps: Vec<String>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>4}  {step}", i + 1)?;
        }
        write!(f, "violated after {} steps: {}", self.steps.len(), self.what)
    }
}

/// How far a search came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Extent {
    /// Every state that can be reached.
    Everything,
    /// Every state that can be reached in so many steps.
    Steps(usize),
    /// The limit of states was reached: some paths were not followed to the end.
    Cut,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Everything => write!(f, "all states"),
            Extent::Steps(steps) => write!(f, "all states within {steps} steps"),
            Extent::Cut => write!(f, "stopped at the limit of states"),
        }
    }
}

/// The results of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Different states.
    pub states: usize,
    /// Steps taken between them.
    pub transitions: u64,
    /// Length of the longest path.
    pub depth: usize,
    /// How much of the state space that was.
    pub extent: Extent,
    /// The first violation found.
    pub counterexample: Option<Counterexample>,
    /// Wall-clock time.
    pub elapsed: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<20} {:>9} states {:>10} transitions, depth {:>3}, {}, {:.1} s",
            self.scenario,
            self.states,
            self.transitions,
            self.depth,
            self.extent,
            self.elapsed.as_secs_f64()
        )?;
        match &self.counterexample {
            Some(found) => write!(f, "\n{found}"),
            None => Ok(()),
        }
    }
}

/// A state on the current path, and the steps that remain to be tried from it.
struct Level {
    state: State,
    todo: Vec<Action>,
    taken: Option<Action>,
}

/// Searches a scenario.
pub fn search(scenario: &Scenario) -> Report {
    let started = Instant::now();
    let mut report = Report {
        scenario: scenario.name,
        states: 0,
        transitions: 0,
        depth: 0,
        extent: Extent::Everything,
        counterexample: None,
        elapsed: Duration::ZERO,
    };
    match scenario.start() {
        Ok(state) => walk(scenario, state, &mut report),
        Err(what) => report.counterexample = Some(Counterexample { what, steps: Vec::new() }),
    }
    report.elapsed = started.elapsed();
    report
}

fn walk(scenario: &Scenario, first: State, report: &mut Report) {
    // The depth at which a state was first seen. A shorter path to it leaves more steps for its successors.
    let mut seen: HashMap<u128, u32> = HashMap::new();
    seen.insert(first.fingerprint(), 0);
    let todo = first.actions();
    let mut path = vec![Level { state: first, todo, taken: None }];
    while let Some(level) = path.last_mut() {
        let Some(action) = level.todo.pop() else {
            path.pop();
            continue;
        };
        level.taken = Some(action);
        let mut next = level.state.clone();
        report.transitions += 1;
        let outcome = next
            .apply(action)
            .and_then(|()| if next.is_terminal() { next.clone().finish() } else { Ok(()) });
        if let Err(what) = outcome {
            report.counterexample = Some(Counterexample { what, steps: steps(&path) });
            break;
        }
        let depth = path.len() as u32;
        report.depth = report.depth.max(path.len());
        match seen.get_mut(&next.fingerprint()) {
            Some(before) if *before <= depth => continue,
            Some(before) => *before = depth,
            None => {
                seen.insert(next.fingerprint(), depth);
            }
        }
        if seen.len() >= scenario.bounds.states {
            report.extent = Extent::Cut;
            continue;
        }
        if path.len() >= scenario.bounds.depth {
            report.extent = report.extent.max(Extent::Steps(scenario.bounds.depth));
            continue;
        }
        let todo = next.actions();
        path.push(Level { state: next, todo, taken: None });
    }
    report.states = seen.len();
}

fn steps(path: &[Level]) -> Vec<String> {
    let shown = |level: &Level| level.taken.map(|action| level.state.describe(action));
    path.iter().filter_map(shown).collect()
}
