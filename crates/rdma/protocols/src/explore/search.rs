//! Depth first through all states.

use core::fmt;

use hashbrown::HashSet;

use crate::explore::Scenario;
use crate::explore::world::{Step, World};

/// How to reach something wrong.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The violation.
    pub what: String,
    /// The steps that lead there.
    pub steps: Vec<String>,
}

/// The results of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario.
    pub name: String,
    /// States visited.
    pub states: usize,
    /// True if these were all states.
    pub complete: bool,
    /// The first state that is wrong.
    pub counterexample: Option<Counterexample>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounded = if self.complete { "" } else { " (bound reached)" };
        write!(f, "{:<44} {:>8} states{bounded}", self.name, self.states)?;
        let Some(found) = &self.counterexample else { return Ok(()) };
        writeln!(f, "\n{} after {} steps:", found.what, found.steps.len())?;
        found.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// Visits every state of a scenario until one is wrong.
pub fn search(scenario: &Scenario) -> Report {
    let mut visited: HashSet<u64> = HashSet::new();
    let mut open: Vec<Vec<Step>> = vec![Vec::new()];
    let mut report =
        Report { name: scenario.name.clone(), states: 0, complete: true, counterexample: None };
    while let Some(mut path) = open.pop() {
        let mut world = replay(scenario, &path);
        loop {
            if let Some(what) = defect(scenario, &world, &path) {
                let steps = path.iter().map(|step| format!("{step:?}")).collect();
                report.counterexample = Some(Counterexample { what, steps });
                return report;
            }
            if !visited.insert(world.hash()) {
                break;
            }
            report.states += 1;
            if report.states >= scenario.states {
                report.complete = false;
                return report;
            }
            let steps = world.steps();
            let Some((first, others)) = steps.split_first() else { break };
            for other in others.iter().rev() {
                let mut branch = path.clone();
                branch.push(*other);
                open.push(branch);
            }
            world.take(*first);
            path.push(*first);
        }
    }
    report
}

fn replay(scenario: &Scenario, path: &[Step]) -> World {
    let mut world = World::new(scenario);
    path.iter().for_each(|step| world.take(*step));
    world
}

fn defect(scenario: &Scenario, world: &World, path: &[Step]) -> Option<String> {
    let stuck = || {
        let polls_in_vain =
            world.only_sleeps() && !world.is_done() && !replay(scenario, path).goes_on();
        polls_in_vain.then(|| "all poll, and nothing will change".to_owned())
    };
    world.defect().or_else(stuck)
}
