//! Stripes that have to be checked before they are used (section 3.1 rules 3 and 4). A device that restarts has forgotten
//! which pre-writes and locks there were, and a newer header would hide that a write was cut short. It knows in which
//! *regions* something was written of late: a region is marked dirty in the record before the first pre-write, lock or write
//! in it, and clean when nothing has happened there for long.

use std::collections::{BTreeMap, BTreeSet};

use super::epoch::Record;
use super::{Device, DeviceConfig};
use crate::message::{Action, Answer, Mode, Request};
use crate::{Extent, Life, Time};

#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Regions that were dirty at the start.
    regions: BTreeSet<u64>,
    /// Stripes of these that have been repaired.
    good: BTreeSet<u64>,
    /// Single stripes elsewhere.
    stripes: BTreeSet<u64>,
    /// When a region was last used for writing.
    used: BTreeMap<u64, Time>,
    tidied: Time,
    /// Requests that wait until a region is marked dirty.
    parked: Vec<Parked>,
    units: u64,
    groups: u64,
}

#[derive(Debug)]
struct Parked {
    /// The number of the save.
    save: u64,
    region: u64,
    from: Life,
    request: Request,
}

impl Suspects {
    pub(super) fn at_start(config: &DeviceConfig, record: &Record) -> Self {
        let regions = record.dirty.clone();
        #[cfg(feature = "mutations")]
        let regions = match config.mutation {
            Some(crate::mutation::Mutation::DeltaAfterPartialWrite) => BTreeSet::new(),
            _ => regions,
        };
        Suspects {
            regions,
            units: config.region_units.max(1),
            groups: u64::from(config.layout.groups),
            ..Suspects::default()
        }
    }

    fn region(&self, stripe: u64) -> u64 {
        stripe / self.groups / self.units
    }

    fn is_suspect(&self, stripe: u64) -> bool {
        self.stripes.contains(&stripe)
            || self.regions.contains(&self.region(stripe)) && !self.good.contains(&stripe)
    }

    pub(super) fn repaired(&mut self, stripe: u64) {
        self.stripes.remove(&stripe);
        if self.regions.contains(&self.region(stripe)) {
            self.good.insert(stripe);
        }
    }

    pub(super) fn doubt(&mut self, stripe: u64) {
        self.good.remove(&stripe);
        self.stripes.insert(stripe);
    }

    /// Whether a region has stripes that are still to be checked.
    fn doubted(&self, region: u64) -> bool {
        self.regions.contains(&region) || self.stripes.iter().any(|s| self.region(*s) == region)
    }
}

/// Repairs ask for headers, and what they write names nothing.
fn repairs(action: &Action) -> bool {
    match action {
        Action::Read { headers, .. }
        | Action::Prepare { headers, .. }
        | Action::Lock { headers, .. } => *headers,
        Action::Write(blocks) => blocks.header.first > blocks.header.last,
        // They need what was prepared or locked, and that was looked at then.
        _ => true,
    }
}

impl Device {
    /// Refuses what touches a suspect stripe and does not repair it.
    pub(super) fn unsuspected(
        &self,
        action: &Action,
        extents: [Option<Extent>; 2],
    ) -> Result<(), Answer> {
        if repairs(action) {
            return Ok(());
        }
        for extent in extents.into_iter().flatten() {
            let stripe = self.config.layout.stripe_of(self.config.id, extent.start);
            if let Some(stripe) = stripe.filter(|stripe| self.suspects.is_suspect(*stripe)) {
                return Err(Answer::Suspect { stripe });
            }
        }
        Ok(())
    }

    /// The region that has to be marked dirty before a request may be served.
    pub(super) fn clean_region(&mut self, now: Time, request: &Request) -> Option<u64> {
        let extent = match &request.action {
            Action::Prepare { write, .. } => (*write)?,
            Action::Lock { extent, mode: Mode::Exclusive, .. } => *extent,
            Action::Write(blocks) => blocks.extent,
            _ => return None,
        };
        let stripe = self.config.layout.stripe_of(self.config.id, extent.start)?;
        let region = self.suspects.region(stripe);
        self.suspects.used.insert(region, now);
        let on_its_way = self.suspects.parked.iter().any(|parked| parked.region == region);
        (!self.record.dirty.contains(&region) || on_its_way).then_some(region)
    }

    /// Marks a region dirty; the request is served when that is durable.
    pub(super) fn park(&mut self, region: u64, from: Life, request: Request) {
        if self.record.dirty.insert(region) {
            self.save(None);
        }
        let first = self.suspects.parked.iter().find(|parked| parked.region == region);
        let save = first.map_or(self.last_save(), |parked| parked.save);
        self.suspects.parked.push(Parked { save, region, from, request });
    }

    pub(super) fn unpark(&mut self, now: Time, saved: u64) {
        let parked = std::mem::take(&mut self.suspects.parked);
        let (ready, rest): (Vec<_>, Vec<_>) = parked.into_iter().partition(|p| p.save <= saved);
        self.suspects.parked = rest;
        for Parked { from, request, .. } in ready {
            let mut effects = Vec::new();
            self.request(now, from, request, &mut effects);
            self.carry_out(effects);
        }
    }

    /// Regions in which nothing is under way and nothing has been for long become clean.
    pub(super) fn tidy_regions(&mut self, now: Time) {
        let every = self.config.remember;
        if now.saturating_sub(self.suspects.tidied) < every || !self.suspects.parked.is_empty() {
            return;
        }
        self.suspects.tidied = now;
        let layout = self.config.layout;
        let extents = self.in_flight().filter_map(|(_, extent)| extent);
        let stripes = extents.filter_map(|e| layout.stripe_of(self.config.id, e.start));
        let busy: BTreeSet<u64> = stripes.map(|stripe| self.suspects.region(stripe)).collect();
        let idle = self.disk.is_idle();
        let mut clean = Vec::new();
        for &region in &self.record.dirty {
            if busy.contains(&region) || self.suspects.doubted(region) || !idle {
                self.suspects.used.insert(region, now);
            }
            let used = *self.suspects.used.entry(region).or_insert(now);
            if now.saturating_sub(used) >= every {
                clean.push(region);
            }
        }
        if !clean.is_empty() {
            for region in clean {
                self.record.dirty.remove(&region);
                self.suspects.used.remove(&region);
            }
            self.save(None);
        }
    }
}
