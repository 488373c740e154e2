//! Stripes that have to be checked before they are used (docs/design/array.md 3.1.3 and 3.1.4). A restarted device has
//! forgotten its pre-writes and locks. A newer header would hide that a write was cut short. The device knows in which
//! *regions* something was written recently. It marks a region dirty in the record before the first pre-write, lock or
//! write there. It marks the region clean after a long time without any.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::record::Record;
use super::{Device, DeviceConfig};
use crate::message::{Action, Answer, Doubt};
use crate::{DeviceId, Extent, Layout, OpId, Time};

/// As many passes over a stripe are remembered: more than hosts try at once.
const MOST_PASSES: usize = 64;
/// As many stripes are put in order to be checked in the background.
const NEXT: usize = 1024;

#[derive(Debug)]
pub(super) struct Suspects {
    /// Regions that were dirty at the start, without those of which all has been repaired.
    regions: BTreeSet<u64>,
    /// Stripes of these that have been repaired.
    good: BTreeSet<u64>,
    /// The last passes of repairs that have asked for a suspect stripe since the start. A repair before a restart proves
    /// nothing about stripes that the restart has made suspect.
    examined: BTreeMap<u64, VecDeque<OpId>>,
    /// When a region was last used for writing.
    used: BTreeMap<u64, Time>,
    tidied: Time,
    units: u64,
    /// Of the array, as far as this device knows it.
    layout: Layout,
    device: DeviceId,
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
            layout: config.layout,
            device: config.id,
            good: BTreeSet::new(),
            examined: BTreeMap::new(),
            used: BTreeMap::new(),
            tidied: 0,
        }
    }

    pub(super) fn region(&self, stripe: u64) -> u64 {
        self.layout.row(stripe) / self.units
    }

    /// The stripes of a region of which this device has a unit.
    fn stripes(&self, region: u64) -> impl Iterator<Item = u64> + use<> {
        let (layout, device) = (self.layout, self.device);
        let first = region.saturating_mul(self.units);
        let end = layout.rows(device, 0..layout.stripes).end;
        let rows = first..first.saturating_add(self.units).min(end);
        rows.map(move |row| layout.stripe_in(device, row))
    }

    fn is_suspect(&self, stripe: u64) -> bool {
        self.regions.contains(&self.region(stripe)) && !self.good.contains(&stripe)
    }

    /// A pass has found nothing left to mend.
    pub(super) fn repaired(&mut self, stripe: u64, pass: OpId) {
        if self.examined.get(&stripe).is_some_and(|passes| passes.contains(&pass)) {
            self.examined.remove(&stripe);
            self.good.insert(stripe);
            let region = self.region(stripe);
            if self.stripes(region).all(|stripe| self.good.contains(&stripe)) {
                self.regions.remove(&region);
                let (layout, units) = (self.layout, self.units);
                self.good.retain(|stripe| layout.row(*stripe) / units != region);
            }
        }
    }

    fn examines(&mut self, stripe: u64, pass: OpId) {
        let passes = self.examined.entry(stripe).or_default();
        if passes.back() != Some(&pass) {
            passes.push_back(pass);
        }
        if passes.len() > MOST_PASSES {
            passes.pop_front();
        }
    }

    /// The array has more stripes.
    pub(super) fn grow(&mut self, layout: Layout) {
        self.layout = layout;
    }

    /// Something is being written in a region.
    pub(super) fn used(&mut self, now: Time, region: u64) {
        self.used.insert(region, now);
    }
}

/// A request for a repair says so.
fn repairs(action: &Action) -> bool {
    match action {
        Action::Read { repairs, .. }
        | Action::Prepare { repairs, .. }
        | Action::Lock { repairs, .. }
        | Action::Write { repairs, .. } => *repairs,
        // They need a pre-write or a lock, and stripes were checked at that time.
        _ => true,
    }
}

impl Device {
    /// Stripes that this device serves only after they have been checked: a scrub that may repair does it. Until then a stripe
    /// may be inconsistent, so that somebody should see to it even if nobody uses them.
    pub fn suspects(&self) -> impl Iterator<Item = u64> {
        let regions = self.suspects.regions.iter();
        let stripes = regions.flat_map(|region| self.suspects.stripes(*region));
        stripes.filter(|stripe| self.suspects_stripe(*stripe))
    }

    /// Those of them that are to be checked next, in order; none if there are none. If several devices have started again, each
    /// begins with others: those whose parity it has.
    pub fn next_suspects(&self) -> Vec<u64> {
        let mut next: Vec<u64> = self.suspects().take(NEXT).collect();
        next.sort_by_key(|stripe| (self.config.layout.parity(*stripe) != self.config.id, *stripe));
        next
    }

    /// Returns true if a stripe is suspect. The stripe units that this device still lacks will be rebuilt from the others, and
    /// no repair reads them here.
    pub fn suspects_stripe(&self, stripe: u64) -> bool {
        self.suspects.is_suspect(stripe) && self.record.state().has(self.config.id, stripe)
    }

    /// What a repair has to know of a stripe here.
    pub(super) fn doubt(&self, extent: Extent) -> Doubt {
        let stripe = self.config.layout.stripe_of(self.config.id, extent.start);
        let is_unsure = self.has_forgotten_writes();
        #[cfg(feature = "mutations")]
        let is_unsure = is_unsure
            || self.config.mutation == Some(crate::mutation::Mutation::CacheLossFitsParity);
        match stripe.is_some_and(|stripe| self.suspects_stripe(stripe)) {
            false => Doubt::None,
            true if is_unsure => Doubt::Unsure,
            true => Doubt::Suspect,
        }
    }

    /// Refuses what touches a suspect stripe and does not repair it.
    pub(super) fn unsuspected(
        &mut self,
        op: OpId,
        action: &Action,
        extents: [Option<Extent>; 2],
    ) -> Result<(), Answer> {
        let layout = self.config.layout;
        for extent in extents.into_iter().flatten() {
            let stripe = layout.stripe_of(self.config.id, extent.start);
            let Some(stripe) = stripe.filter(|stripe| self.suspects_stripe(*stripe)) else {
                continue;
            };
            if !repairs(action) {
                return Err(Answer::Suspect { stripe });
            }
            if extent.count == layout.unit {
                self.suspects.examines(stripe, op);
            }
        }
        Ok(())
    }

    /// Marks regions clean that have had no operation for long. Forgets lives that have no state here and were silent for long.
    pub(super) fn tidy_record(&mut self, now: Time) {
        let every = self.config.remember;
        if now.saturating_sub(self.suspects.tidied) < every || self.is_marking() {
            return;
        }
        self.suspects.tidied = now;
        let layout = self.config.layout;
        let extents = self.in_flight().filter_map(|held| held.writes);
        let stripes = extents.filter_map(|e| layout.stripe_of(self.config.id, e.start));
        let busy: BTreeSet<u64> = stripes.map(|stripe| self.suspects.region(stripe)).collect();
        let idle = self.disk.is_idle();
        let mut clean = Vec::new();
        for &region in &self.record.dirty {
            if busy.contains(&region) || self.suspects.regions.contains(&region) || !idle {
                self.suspects.used.insert(region, now);
            }
            let used = *self.suspects.used.entry(region).or_insert(now);
            if now.saturating_sub(used) >= every {
                clean.push((region, used));
            }
        }
        let count = clean.len();
        clean.retain(|(_, used)| self.is_flushed(*used));
        self.sweep(now, clean.len() < count);
        let gone = self.gone_holders(now);
        if !clean.is_empty() || !gone.is_empty() {
            for (region, _) in clean {
                self.record.dirty.remove(&region);
                self.suspects.used.remove(&region);
            }
            self.record.holders.retain(|life| !gone.contains(life));
            self.save(None);
        }
    }
}
