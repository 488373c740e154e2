//! Applies the rules to a history of an array.

use lockify_history::array::{Event, Kind};

use crate::array::graph::Graph;
use crate::array::report::Counts;
use crate::array::rules::{Seen, all};
use crate::array::run::{Did, Run, What};
use crate::array::{Report, register};
use crate::invariant::Violation;
use crate::report::Off;

/// Violations kept in detail; further ones are only counted.
const MOST_VIOLATIONS: usize = 100;

/// Gathers a history, and judges it at its end.
///
/// Needs memory for all of the history: which operation came before which shows only in the end.
#[derive(Default, Debug)]
pub struct Checker {
    run: Option<Run>,
    events: u64,
    stray: Option<Violation>,
}

impl Checker {
    /// A checker that has seen nothing yet.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Takes the next event in; it counts as the next line.
    pub fn observe(&mut self, event: &Event) {
        self.observe_line(event, self.events + 1);
    }

    /// Takes the event of this line in.
    pub fn observe_line(&mut self, event: &Event, line: u64) {
        self.events += 1;
        match (&mut self.run, &event.kind) {
            (Some(run), _) => run.take(event, line),
            (None, Kind::Begin { array, scheme, volatile }) => {
                let run = self.run.insert(Run::new(*array, scheme.clone()));
                run.volatile = *volatile;
            }
            (None, _) => {
                let what = "an array's history begins with its `begin`".to_owned();
                self.stray.get_or_insert(Violation {
                    rule: "well_formed",
                    t: event.t,
                    lines: vec![line],
                    what,
                });
            }
        }
    }

    /// Judges it.
    pub fn finish(self) -> Report {
        let mut counts = Counts { events: self.events, ..Counts::default() };
        let mut violations: Vec<Violation> = self.stray.into_iter().collect();
        let (mut checked, mut off) = (Vec::new(), Vec::new());
        if let Some(mut run) = self.run {
            violations.append(&mut run.malformed);
            count(&run, &mut counts);
            let graph = Graph::new(&run);
            let (registers, values) = register::judge(&run);
            counts.values = values;
            let seen = Seen { run: &run, graph: &graph, registers: &registers };
            for rule in all() {
                match rule.judge(&seen, &mut counts) {
                    Ok(mut found) => {
                        checked.push(rule.name());
                        violations.append(&mut found);
                    }
                    Err(reason) => {
                        off.push(Off { rule: rule.name(), part: None, reason: reason.to_owned() });
                    }
                }
            }
        }
        let violated = violations.len() as u64;
        violations.truncate(MOST_VIOLATIONS);
        Report { violated, violations, checked, off, counts }
    }
}

fn count(run: &Run, counts: &mut Counts) {
    for op in &run.ops {
        match op.what {
            What::Read => counts.reads += 1,
            What::Write(_) => counts.writes += 1,
            What::Repair => counts.repairs += 1,
            What::Flush => counts.flushes += 1,
        }
        counts.restarts += op.tries.len().saturating_sub(1) as u64;
        let failed = op.answer.as_ref().is_some_and(|answer| answer.error.is_some());
        counts.failed += u64::from(failed);
    }
    let accesses = run.blocks.values().flatten();
    counts.dropped = accesses.filter(|access| matches!(access.did, Did::Drop(_))).count() as u64;
}
