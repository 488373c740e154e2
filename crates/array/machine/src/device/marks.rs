//! The marks that the record needs before a request is served. By them a restarted device knows its forgotten state. It
//! has regions with writes under way (docs/design/array.md 3.1.3), and lives with locks or pre-writes here.

use std::collections::BTreeMap;

use super::Device;
use crate::message::{Action, Mode, Request};
use crate::{Extent, Life, Time};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Mark {
    /// Dirty, by its number.
    Region(u64),
    Holder(Life),
}

#[derive(Debug)]
struct Parked {
    /// The number of the save after which it may be served.
    save: u64,
    from: Life,
    request: Request,
}

/// Marks on their way to the disk, and what waits for them.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Marks that may not be durable yet, and the save that makes them so.
    fresh: BTreeMap<Mark, u64>,
    parked: Vec<Parked>,
    /// The record's timestamp of durable writes when blocks were left out, and the save that makes it so.
    lowered: Option<(Time, u64)>,
    /// When a life that is in the record was heard of last.
    heard: BTreeMap<Life, Time>,
}

/// The blocks that a request may lead to a write of.
fn written(action: &Action) -> Option<Extent> {
    match action {
        Action::Prepare { write, .. } => *write,
        Action::Lock { extent, mode: Mode::Exclusive, .. } => Some(*extent),
        Action::Write { blocks, .. } => Some(blocks.extent),
        _ => None,
    }
}

impl Marks {
    /// The record leaves out blocks of which older writes come.
    pub(super) fn lower(&mut self, was: Time, save: u64) {
        let was = self.lowered.map_or(was, |(before, _)| before.max(was));
        self.lowered = Some((was, save));
    }

    /// The save that a write with this timestamp has to wait for.
    pub(super) fn lowered_over(&self, time: Time) -> Option<u64> {
        self.lowered.filter(|(was, _)| time <= *was).map(|(_, save)| save)
    }
}

impl Device {
    /// The marks that a request needs; none if it leaves no state here.
    fn marks_for(&self, from: Life, request: &Request) -> [Option<Mark>; 2] {
        let written = written(&request.action);
        let holds = match &request.action {
            Action::Prepare { write, .. } => write.is_some(),
            // A host that only reads relies on its lock as well.
            Action::Lock { .. } => true,
            _ => false,
        };
        let layout = self.config.layout;
        let stripe = written.and_then(|extent| layout.stripe_of(self.config.id, extent.start));
        let region = stripe.map(|stripe| Mark::Region(self.suspects.region(stripe)));
        [region, holds.then_some(Mark::Holder(from))]
    }

    /// Notes the marks of a request. Returns it if it may be served at once; otherwise it is served when they are
    /// durable.
    pub(super) fn noted(&mut self, now: Time, from: Life, request: Request) -> Option<Request> {
        let marks = self.marks_for(from, &request);
        let mut wait = None;
        if let Some(extent) = written(&request.action) {
            wait = self.admits_write(request.stamp.time, extent);
        }
        for mark in marks.into_iter().flatten() {
            let new = match mark {
                Mark::Region(region) => {
                    self.suspects.used(now, region);
                    self.record.dirty.insert(region)
                }
                Mark::Holder(life) => self.record.holders.insert(life),
            };
            if new {
                self.save(None);
                self.marks.fresh.insert(mark, self.last_save());
            }
            wait = wait.max(self.marks.fresh.get(&mark).copied());
        }
        if self.record.holders.contains(&from) {
            self.marks.heard.insert(from, now);
        }
        match wait {
            None => Some(request),
            Some(save) => {
                self.marks.parked.push(Parked { save, from, request });
                None
            }
        }
    }

    /// Serves what waited for this save.
    pub(super) fn unpark(&mut self, now: Time, saved: u64) {
        self.marks.fresh.retain(|_, save| *save > saved);
        self.marks.lowered = self.marks.lowered.filter(|(_, save)| *save > saved);
        let parked = std::mem::take(&mut self.marks.parked);
        let (ready, rest): (Vec<_>, Vec<_>) = parked.into_iter().partition(|p| p.save <= saved);
        self.marks.parked = rest;
        for Parked { from, request, .. } in ready {
            let mut effects = Vec::new();
            self.request(now, from, request, &mut effects);
            self.carry_out(effects);
        }
    }

    /// Returns true if a mark is on its way to the disk.
    pub(super) fn is_marking(&self) -> bool {
        !self.marks.fresh.is_empty() || self.marks.lowered.is_some()
    }

    /// Lives in the record that have no state here and were silent for as long as siblings are remembered. Their requests were
    /// answered, or will not come again.
    pub(super) fn gone_holders(&mut self, now: Time) -> Vec<Life> {
        let keep = self.config.remember;
        let holding: Vec<Life> = self.in_flight().map(|held| held.life).collect();
        let mut gone = Vec::new();
        for &life in &self.record.holders {
            let heard = *self.marks.heard.entry(life).or_insert(now);
            let busy = holding.contains(&life) || self.readmission.awaits(life);
            let unsure = self.is_unsure_of(life);
            if !busy && !unsure && now.saturating_sub(heard) >= keep {
                gone.push(life);
            }
        }
        self.marks.heard.retain(|life, _| !gone.contains(life));
        gone
    }
}
