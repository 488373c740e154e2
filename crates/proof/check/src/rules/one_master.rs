//! INV-1. At most one live node is master of a resource. The directory's record names it, except
//! while a claim is unsettled.
//!
//! During the recovery of a view, nodes learn of new masters at different times. An apparent
//! violation then is judged when all members have recovered. A directory's records are known from
//! `dir` events only. A resource without one since the last view is not compared.

use hashbrown::HashMap;
use lockify_history::{Kind, Resource};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::Life;

const NAME: &str = "one_master";

#[derive(Clone, Copy, Debug)]
struct Master {
    life: Life,
    line: u64,
    /// Known to be final: its claim, if it had one, was confirmed.
    settled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    directory: Life,
    master: u32,
    line: u64,
}

#[derive(Default, Debug)]
struct Entry {
    masters: Vec<Master>,
    record: Option<Record>,
}

/// Something that looks wrong, but may be explained by an event that follows at once.
#[derive(Clone, Debug)]
struct Suspect {
    resource: Resource,
    node: u32,
    t: u64,
}

/// INV-1: one master for each resource.
#[derive(Default, Debug)]
pub struct OneMaster {
    resources: HashMap<Resource, Entry>,
    suspects: Vec<Suspect>,
    /// The newest view, and the nodes that recover it or an older one and have not finished.
    view: u64,
    recovering: Vec<Life>,
}

impl Invariant for OneMaster {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Master]
    }

    fn wants(&self) -> &'static [(Field, &'static str)] {
        &[(Field::Dir, "whether directory records name the master")]
    }

    fn observe(&mut self, seen: &Seen<'_>, _: &mut Counts) -> Result<(), Violation> {
        let verdict = self.judge_suspects(seen);
        match seen.event.kind {
            Kind::Master => self.master(seen),
            Kind::Dir => self.directory(seen),
            Kind::Claim => self.claim(seen),
            Kind::Confirm => self.confirm(seen),
            Kind::Refuse | Kind::Merge | Kind::Conflict => self.give_up(seen),
            Kind::View => self.begin_recovery(seen),
            Kind::Recover => self.end_recovery(seen),
            Kind::Crash | Kind::Leave => self.node_gone(seen.life),
            _ => {}
        }
        verdict
    }

    fn finish(&mut self, end: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        let suspects = std::mem::take(&mut self.suspects);
        let wrong = suspects.into_iter().filter_map(|s| {
            let (lines, what) = self.resources.get(&s.resource)?.wrong(&s.resource)?;
            Some(end.violation(NAME, lines, what))
        });
        if self.recovering.is_empty() { wrong.collect() } else { Vec::new() }
    }
}

impl OneMaster {
    fn suspect(&mut self, seen: &Seen<'_>, resource: &Resource) {
        let wrong = self.resources.get(resource).is_some_and(|e| e.wrong(resource).is_some());
        if wrong && !self.suspects.iter().any(|s| s.resource == *resource) {
            let (node, t) = (seen.life.node, seen.event.t);
            self.suspects.push(Suspect { resource: resource.clone(), node, t });
        }
    }

    /// A node's events of one moment belong together: only their sum counts.
    fn judge_suspects(&mut self, seen: &Seen<'_>) -> Result<(), Violation> {
        if self.suspects.is_empty() || !self.recovering.is_empty() {
            return Ok(());
        }
        let now = |s: &Suspect| s.node == seen.life.node && s.t == seen.event.t;
        let ripe = self.suspects.extract_if(.., |s| !now(s)).collect::<Vec<_>>();
        let mut verdict = Ok(());
        for s in ripe {
            let entry = self.resources.get(&s.resource);
            if let Some((lines, what)) = entry.and_then(|e| e.wrong(&s.resource)) {
                verdict = verdict.and(Err(Violation { rule: NAME, t: s.t, lines, what }));
            }
        }
        verdict
    }

    fn master(&mut self, seen: &Seen<'_>) {
        let Some(resource) = &seen.event.resource else {
            return;
        };
        if seen.event.gained == Some(false) {
            return self.give_up(seen);
        }
        let claimed = seen.state.claims(seen.life).is_some_and(|claims| claims.has(resource));
        let entry = self.resources.entry(resource.clone()).or_default();
        entry.masters.retain(|m| m.life != seen.life);
        entry.masters.push(Master { life: seen.life, line: seen.line, settled: !claimed });
        self.suspect(seen, resource);
    }

    fn claim(&mut self, seen: &Seen<'_>) {
        self.set_settled(seen, false);
    }

    fn confirm(&mut self, seen: &Seen<'_>) {
        self.set_settled(seen, true);
        if let Some(resource) = &seen.event.resource {
            self.suspect(seen, resource);
        }
    }

    fn set_settled(&mut self, seen: &Seen<'_>, settled: bool) {
        let entry = seen.event.resource.as_ref().and_then(|r| self.resources.get_mut(r));
        for master in entry.into_iter().flat_map(|e| &mut e.masters) {
            if master.life == seen.life {
                master.settled = settled;
            }
        }
    }

    fn give_up(&mut self, seen: &Seen<'_>) {
        let Some(resource) = &seen.event.resource else {
            return;
        };
        let Some(entry) = self.resources.get_mut(resource) else {
            return;
        };
        entry.masters.retain(|m| m.life != seen.life);
        if entry.masters.is_empty() && entry.record.is_none() {
            self.resources.remove(resource);
        }
    }

    fn directory(&mut self, seen: &Seen<'_>) {
        let Some(resource) = &seen.event.resource else {
            return;
        };
        let Some(master) = seen.event.master else {
            return self.remove_record(seen, resource);
        };
        let record = Record { directory: seen.life, master, line: seen.line };
        self.resources.entry(resource.clone()).or_default().record = Some(record);
        self.suspect(seen, resource);
    }

    fn remove_record(&mut self, seen: &Seen<'_>, resource: &Resource) {
        let Some(entry) = self.resources.get_mut(resource) else {
            return;
        };
        entry.record = entry.record.filter(|r| r.directory != seen.life);
        if entry.masters.is_empty() && entry.record.is_none() {
            self.resources.remove(resource);
        }
    }

    fn begin_recovery(&mut self, seen: &Seen<'_>) {
        let view = seen.event.view.unwrap_or(self.view + 1);
        if view > self.view {
            self.view = view;
            // A member that still recovers an older view keeps what it has not looked at until it enters this one.
            let members = seen.event.members.as_deref();
            self.recovering.retain(|life| life.is_among(members));
            self.forget_records();
        }
        if view == self.view && !self.recovering.contains(&seen.life) {
            self.recovering.push(seen.life);
        }
    }

    fn end_recovery(&mut self, seen: &Seen<'_>) {
        if seen.event.view.is_none_or(|view| view >= self.view) {
            self.recovering.retain(|life| *life != seen.life);
        }
    }

    fn node_gone(&mut self, life: Life) {
        self.recovering.retain(|l| *l != life);
        for entry in self.resources.values_mut() {
            entry.masters.retain(|m| m.life != life);
        }
        self.forget_records();
    }

    /// The next view rebuilds the directory; until then its records are worth nothing.
    fn forget_records(&mut self) {
        self.resources.retain(|_, entry| {
            entry.record = None;
            !entry.masters.is_empty()
        });
    }
}

impl Entry {
    /// The violation, and the lines that show it.
    fn wrong(&self, resource: &Resource) -> Option<(Vec<u64>, String)> {
        let mut settled = self.masters.iter().filter(|m| m.settled);
        let first = settled.next()?;
        if let Some(second) = settled.next() {
            let (a, b) = (first.life.node, second.life.node);
            let what = format!("{resource:?} has two masters, node {a} and node {b}");
            return Some((vec![first.line, second.line], what));
        }
        let record = self.record.filter(|record| record.master != first.life.node)?;
        let mut lines = vec![first.line, record.line];
        lines.sort_unstable();
        let what = format!(
            "{resource:?}: its master is node {}, but its directory, node {}, says node {}",
            first.life.node, record.directory.node, record.master
        );
        Some((lines, what))
    }
}
