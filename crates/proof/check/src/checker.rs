//! Applies the rules to a history, event by event.

use hashbrown::HashMap;
use lockify_history::{Event, Kind};

use crate::invariant::{Counts, End, Fields, Invariant, Seen, Violation};
use crate::report::{Off, Report};
use crate::rules;
use crate::state::{Life, LockKey, State};

/// The assumptions of a checker.
#[derive(Clone, Debug)]
pub struct Options {
    /// The history is whole: it begins with an empty lockspace and ends when everything has come
    /// to rest. Without this, `begin` and `end` events say the same.
    pub whole: bool,
    /// Violations kept in detail; further ones are only counted.
    pub most_violations: usize,
    /// Resources whose fencing tokens are remembered at least.
    pub remembered_tokens: usize,
}

impl Options {
    /// For a recorded history, which may have begun late or broken off: `begin` and `end` events
    /// count.
    pub fn recorded() -> Options {
        Options { whole: false, most_violations: 100, remembered_tokens: 1 << 20 }
    }

    /// For a run that is watched from its first event to its rest, such as a simulation.
    pub fn whole() -> Options {
        Options { whole: true, ..Options::recorded() }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::recorded()
    }
}

/// Watches a history.
///
/// It needs memory for live objects: locks, claims, resources. Of past ones, it keeps a bounded
/// number of fencing tokens.
#[derive(Debug)]
pub struct Checker {
    options: Options,
    rules: Vec<Box<dyn Invariant + Send>>,
    state: State,
    fields: Fields,
    counts: Counts,
    violations: Found,
    incarnations: HashMap<u32, u64>,
    whole: bool,
    quiet: bool,
    line: u64,
    t: u64,
}

impl Checker {
    /// A checker with all rules.
    pub fn new(options: Options) -> Checker {
        Checker {
            rules: rules::all(options.remembered_tokens),
            state: State::default(),
            fields: Fields::default(),
            counts: Counts::default(),
            violations: Found { first: Vec::new(), most: options.most_violations, all: 0 },
            incarnations: HashMap::new(),
            whole: options.whole,
            quiet: options.whole,
            line: 0,
            t: 0,
            options,
        }
    }

    /// Takes the next event in; it counts as the next line. Events come in the order of their time.
    /// Those of one node come in the order in which its lock manager handled them.
    ///
    /// # Errors
    /// The first rule that this event breaks. The checker continues regardless, and
    /// [`Checker::finish`] reports it again.
    pub fn observe(&mut self, event: &Event) -> Result<(), Violation> {
        self.observe_line(event, self.line + 1)
    }

    /// Takes the event of this line in; as [`Checker::observe`].
    ///
    /// # Errors
    /// As [`Checker::observe`].
    pub fn observe_line(&mut self, event: &Event, line: u64) -> Result<(), Violation> {
        self.line = line;
        self.t = event.t;
        let mut verdict = Ok(());
        if let Err(missing) = event.validate() {
            let what = missing.to_string();
            verdict = Err(Violation { rule: "well_formed", t: event.t, lines: vec![line], what });
            self.violations.note(&verdict);
        } else {
            self.fields.learn(event);
            count(&mut self.counts, event);
            if event.kind == Kind::Begin {
                self.whole = true;
            }
            // Events after an `end` show that it was not the end.
            self.quiet = self.options.whole || event.kind == Kind::End;
            let (life, ended) = self.incarnation(event);
            if let Some(ended) = ended {
                let crash = Event::new(event.t, ended.node, Kind::Crash);
                verdict = self.step(ended, &crash, line);
            }
            verdict = verdict.and(self.step(life, event, line));
        }
        verdict
    }

    /// Violations so far, those not kept in detail too.
    pub fn violations(&self) -> u64 {
        self.violations.all
    }

    /// Judges the end and reports.
    pub fn finish(mut self) -> Report {
        let end = End { state: &self.state, quiet: self.quiet, t: self.t, line: self.line };
        let mut last = Vec::new();
        for rule in &mut self.rules {
            let mut violations = rule.finish(&end, &mut self.counts);
            violations.sort_by(|a, b| (&a.lines, &a.what).cmp(&(&b.lines, &b.what)));
            last.append(&mut violations);
        }
        last.into_iter().for_each(|violation| self.violations.note(&Err(violation)));
        if self.quiet {
            self.fields.insert(crate::invariant::Field::End);
        }
        let (mut checked, mut off) = (Vec::new(), Vec::new());
        for rule in &self.rules {
            off.extend(switched_off(rule.as_ref(), self.fields));
            let lacks = rule.needs().iter().any(|field| !self.fields.has(*field));
            if !lacks {
                checked.push(rule.name());
            }
        }
        Report {
            violated: self.violations.all,
            violations: self.violations.first,
            checked,
            off,
            counts: self.counts,
        }
    }

    /// The event's life of its node, and the earlier life that it shows to have ended.
    fn incarnation(&mut self, event: &Event) -> (Life, Option<Life>) {
        let node = event.node.unwrap_or(0);
        let known = self.incarnations.get(&node).copied();
        let incarnation = event.incarnation.or(known).unwrap_or(0);
        let is_newer = known.is_none_or(|known| known < incarnation);
        if event.node.is_some() && is_newer {
            self.incarnations.insert(node, incarnation);
        }
        let ended = known.filter(|_| is_newer).map(|old| Life { node, incarnation: old });
        (Life { node, incarnation }, ended)
    }

    fn step(&mut self, life: Life, event: &Event, line: u64) -> Result<(), Violation> {
        let key = event.lock.map(|lock| LockKey { life, lock });
        let lock = key.and_then(|key| self.state.lock(key));
        let ends = matches!(event.kind, Kind::Grant | Kind::Complete);
        let op = lock.filter(|_| ends).and_then(|l| Some(&l.ops[l.ended_by(event)?]));
        let seen = Seen {
            event,
            line,
            life,
            key,
            lock,
            op,
            state: &self.state,
            fields: self.fields,
            whole: self.whole,
        };
        let mut verdict = Ok(());
        for rule in &mut self.rules {
            let judged = rule.observe(&seen, &mut self.counts);
            self.violations.note(&judged);
            verdict = verdict.and(judged);
        }
        self.state.apply(life, event, line);
        verdict
    }
}

/// Violations: the first ones in detail.
#[derive(Debug)]
struct Found {
    first: Vec<Violation>,
    most: usize,
    all: u64,
}

impl Found {
    fn note(&mut self, verdict: &Result<(), Violation>) {
        if let Err(violation) = verdict {
            self.all += 1;
            if self.first.len() < self.most {
                self.first.push(violation.clone());
            }
        }
    }
}

/// The rule, or the parts of it, that this history cannot be judged by.
fn switched_off(rule: &(dyn Invariant + Send), fields: Fields) -> Vec<Off> {
    let missing: Vec<&str> =
        rule.needs().iter().filter(|f| !fields.has(**f)).map(|f| f.missing()).collect();
    let name = rule.name();
    if !missing.is_empty() {
        let reason = format!("the history has {}", missing.join(" and "));
        return vec![Off { rule: name, part: None, reason }];
    }
    let parts = rule.wants().iter().filter(|(field, _)| !fields.has(*field));
    parts
        .map(|(field, part)| Off {
            rule: name,
            part: Some(part),
            reason: format!("the history has {}", field.missing()),
        })
        .collect()
}

fn count(counts: &mut Counts, event: &Event) {
    counts.events += 1;
    let counter = match event.kind {
        Kind::Request => &mut counts.requests,
        Kind::Grant => &mut counts.grants,
        Kind::Claim => &mut counts.claims,
        Kind::Refuse => &mut counts.refusals,
        Kind::Merge => &mut counts.merges,
        Kind::Conflict => &mut counts.conflicts,
        Kind::Resend => &mut counts.resends,
        Kind::Barrier if event.waits == Some(true) => &mut counts.barrier_waits,
        Kind::Lost => &mut counts.lost,
        Kind::Crash => &mut counts.crashes,
        _ => return,
    };
    *counter += 1;
    counts.provisional += u64::from(event.kind == Kind::Grant && event.provisional);
}
