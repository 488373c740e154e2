//! Locks that a host keeps (callback locking, docs/design/array.md 2.2).
//!
//! A *part* is a range of a grant. It is held by the operations that use it, cached when there are none, and revoking after a
//! callback. An operation is *admitted* when parts cover all its ranges. From then on it counts as a user. Conflicting
//! operations of this host run in the order of their admission, because the server does not keep them apart.
//!
//! A superseded try has written in part. It uses parts while another try waits for the server. So it yields these parts to
//! repairs, of this host and of others ([`crate::LockServer`] says why it may). Operations that wait here for a superseded try
//! have begun with nothing. If other hosts want their parts, they lose them, and queue at the server behind those hosts. This
//! prevents deadlocks.

use std::collections::{BTreeMap, BTreeSet};

use crate::{DeviceId, Held, LockMode, LockRange, OpId, PartId, Time};

struct Part {
    range: LockRange,
    users: BTreeSet<u64>,
    /// It has been called back: to be kept shared, or not at all. One that may have passed another host's superseded try counts as
    /// called back from its beginning.
    called: Option<bool>,
    /// The end of a part that has been called back. It is not renewed, so its users must be done by then.
    until: Option<Time>,
    /// Its place among those without users.
    idle: Option<(Time, u64)>,
}

struct Admitted {
    ranges: Vec<LockRange>,
    parts: Vec<PartId>,
    /// Operations that it conflicts with and that were admitted before.
    behind: BTreeSet<u64>,
    /// It passes superseded tries.
    repair: bool,
    /// It continues earlier tries, and its reads pass superseded ones.
    mends: bool,
    /// It has written in part, sends nothing more, and another try goes on from there.
    superseded: bool,
}

impl Admitted {
    /// Returns true if another operation excludes this one.
    fn conflicts(&self, other: &Admitted) -> bool {
        let passes = |range: &LockRange| {
            other.superseded && (self.repair || self.mends && range.mode == LockMode::Shared)
        };
        self.ranges.iter().filter(|range| !passes(range)).any(|range| {
            other
                .ranges
                .iter()
                .any(|theirs| overlap(range, theirs) && range.mode.conflicts(theirs.mode))
        })
    }
}

/// The next step of an operation that wants ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Go on.
    Ready,
    /// Wait for others of this host.
    Wait,
    /// Ask the server.
    Ask,
}

/// Parts to return to the server, and operations that may continue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Freed {
    pub free: Vec<PartId>,
    pub shared: Vec<PartId>,
    /// Parts that repairs may go past.
    pub yields: Vec<PartId>,
    pub ready: Vec<u64>,
    /// Operations that waited, and have to ask the server.
    pub expelled: Vec<u64>,
}

/// More parts than this are not kept without users.
const MOST_IDLE: usize = 16_384;

/// The locks that a host gives back when the lock server calls some back. The array paper does not say. To give back more than
/// is called is always right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GiveBack {
    /// Those that are called, and shared use is kept if the caller only reads.
    #[default]
    Called,
    /// Altogether, with the unused ones of the same grant.
    Grant,
}

#[derive(Default)]
pub(super) struct LockCache {
    give_back: GiveBack,
    parts: BTreeMap<PartId, Part>,
    /// Parts by device and first block; none is longer than `longest` blocks.
    places: BTreeSet<(DeviceId, u64, PartId)>,
    longest: u64,
    admitted: BTreeMap<u64, Admitted>,
    /// Until when the host may begin something under its lease.
    lease_until: Time,
    /// Parts without users, the longest unused first.
    idle: BTreeSet<(Time, u64, PartId)>,
    turn: u64,
}

fn overlap(a: &LockRange, b: &LockRange) -> bool {
    a.device == b.device && a.extent.overlaps(b.extent)
}

impl LockCache {
    pub fn new(give_back: GiveBack) -> LockCache {
        LockCache { give_back, ..LockCache::default() }
    }

    /// The lease has been renewed, and can be used until then.
    pub fn renewed(&mut self, until: Time) {
        self.lease_until = self.lease_until.max(until);
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// An operation wants these ranges together. `earlier` are tries of the same operation that do not keep it out.
    pub fn want(
        &mut self,
        op: u64,
        ranges: &[LockRange],
        earlier: &[u64],
        repair: bool,
        now: Time,
    ) -> Want {
        if now >= self.lease_until {
            return Want::Ask;
        }
        let mut used = Vec::new();
        for range in ranges {
            match self.cover(range) {
                Some(parts) => used.extend(parts),
                None => return Want::Ask,
            }
        }
        self.admit(op, ranges, earlier, repair, used)
    }

    /// Parts that together cover a range, none of them called back.
    fn cover(&self, range: &LockRange) -> Option<Vec<PartId>> {
        let from = range.extent.start.saturating_sub(self.longest);
        let least = PartId { op: OpId::least(), index: 0 };
        let near = self
            .places
            .range((range.device, from, least)..(range.device, range.extent.end(), least));
        let mut reached = range.extent.start;
        let mut used = Vec::new();
        for (_, start, id) in near {
            let Some(part) = self.parts.get(id) else { continue };
            let fits = part.called.is_none()
                && (part.range.mode == LockMode::Exclusive || range.mode == LockMode::Shared);
            if fits && *start <= reached && part.range.extent.end() > reached {
                reached = part.range.extent.end();
                used.push(*id);
            }
        }
        (reached >= range.extent.end()).then_some(used)
    }

    /// The server has granted an operation its whole set. Repairs and continuing tries may have passed what a superseded try of
    /// another host holds. Such parts are theirs alone: a later operation would come between that try and the one that continues it.
    pub fn granted(
        &mut self,
        op: OpId,
        ranges: &[LockRange],
        earlier: &[u64],
        repair: bool,
    ) -> Want {
        let mut used = Vec::new();
        for (index, &range) in (0u16..).zip(ranges) {
            let id = PartId { op, index };
            let passes = repair || !earlier.is_empty() && range.mode == LockMode::Shared;
            let called = passes.then_some(false);
            let part = Part { range, users: BTreeSet::new(), called, until: None, idle: None };
            self.places.insert((range.device, range.extent.start, id));
            self.longest = self.longest.max(u64::from(range.extent.count));
            self.parts.insert(id, part);
            used.push(id);
        }
        self.admit(op.seq, ranges, earlier, repair, used)
    }

    /// A repair, or a try that continues earlier ones, waits only for running operations. Other waiting operations may wait for
    /// its result, and now wait for it as well. A repair does not wait for superseded tries. Nor does a continuing try, for
    /// ranges that it only reads.
    fn admit(
        &mut self,
        op: u64,
        ranges: &[LockRange],
        earlier: &[u64],
        repair: bool,
        parts: Vec<PartId>,
    ) -> Want {
        for id in &parts {
            if let Some(part) = self.parts.get_mut(id) {
                part.users.insert(op);
                if let Some((since, turn)) = part.idle.take() {
                    self.idle.remove(&(since, turn, *id));
                }
            }
        }
        let mut this = Admitted {
            ranges: ranges.to_vec(),
            parts,
            behind: BTreeSet::new(),
            repair,
            mends: !earlier.is_empty(),
            superseded: false,
        };
        for (&seq, other) in &mut self.admitted {
            if earlier.contains(&seq) || !this.conflicts(other) {
                continue;
            }
            if (this.mends || repair) && !other.behind.is_empty() {
                other.behind.insert(op);
            } else {
                this.behind.insert(seq);
            }
        }
        let want = if this.behind.is_empty() { Want::Ready } else { Want::Wait };
        self.admitted.insert(op, this);
        want
    }

    /// A try has written in part, sends nothing more, and is kept until another has gone on from there.
    pub fn superseded(&mut self, op: u64, now: Time) -> Freed {
        let mut freed = Freed::default();
        let Some(mut this) = self.admitted.remove(&op) else { return freed };
        this.superseded = true;
        for (&seq, other) in &mut self.admitted {
            if other.behind.contains(&op) && !other.conflicts(&this) {
                other.behind.remove(&op);
                if other.behind.is_empty() {
                    freed.ready.push(seq);
                }
            }
        }
        self.admitted.insert(op, this);
        // Also parts that waiting operations use.
        let called = self.parts.iter().filter(|(_, part)| part.called.is_some());
        for id in called.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.yield_part(id, now, &mut freed);
        }
        freed
    }

    /// Yields a part that was called back, if only superseded tries use it, and operations that wait for them. These lose
    /// it. No operation is admitted to a part that was called back, and it is returned as a whole afterwards. So it stays
    /// yielded until then.
    fn yield_part(&mut self, id: PartId, now: Time, freed: &mut Freed) {
        let Some(part) = self.parts.get(&id).filter(|part| part.called.is_some()) else { return };
        let waits = |op: &&u64| !self.is_superseded(**op);
        let waiting: Vec<u64> = part.users.iter().filter(waits).copied().collect();
        if !waiting.iter().all(|op| self.is_stuck(*op, &mut BTreeSet::new())) {
            return;
        }
        for op in waiting {
            // Perhaps it has gone with another.
            if self.admitted.contains_key(&op) {
                freed.expelled.push(op);
                self.leave(op, now, freed);
            }
        }
        if self.is_passable(id)
            && let Some(part) = self.parts.get_mut(&id)
        {
            part.called = Some(false);
            if !freed.yields.contains(&id) {
                freed.yields.push(id);
            }
        }
    }

    fn is_superseded(&self, op: u64) -> bool {
        self.admitted.get(&op).is_some_and(|admitted| admitted.superseded)
    }

    /// Returns true if an operation waits here for a superseded try, directly or through others.
    fn is_stuck(&self, op: u64, seen: &mut BTreeSet<u64>) -> bool {
        let Some(admitted) = self.admitted.get(&op).filter(|_| seen.insert(op)) else {
            return false;
        };
        let stuck = |other: &u64| self.is_superseded(*other) || self.is_stuck(*other, seen);
        !admitted.superseded && admitted.behind.iter().any(stuck)
    }

    fn is_passable(&self, id: PartId) -> bool {
        self.parts.get(&id).is_some_and(|part| {
            let superseded = |op: &u64| self.is_superseded(*op);
            part.called.is_some() && !part.users.is_empty() && part.users.iter().all(superseded)
        })
    }

    /// The yielded parts.
    pub fn yields(&self) -> Vec<PartId> {
        self.parts.keys().copied().filter(|id| self.is_passable(*id)).collect()
    }

    /// Returns true if an admitted operation can still begin with its last phase.
    pub fn in_time(&self, op: u64, now: Time) -> bool {
        let Some(admitted) = self.admitted.get(&op) else { return false };
        let called = admitted.parts.iter().filter_map(|id| self.parts.get(id)?.until).min();
        // The lease as a whole continues for the parts that have not been called back.
        now < called.unwrap_or(self.lease_until)
    }

    /// An operation is done, or gives up.
    pub fn done(&mut self, op: u64, now: Time) -> Freed {
        let mut freed = Freed::default();
        self.leave(op, now, &mut freed);
        while self.idle.len() > MOST_IDLE {
            self.drop_oldest(&mut freed);
        }
        freed
    }

    fn leave(&mut self, op: u64, now: Time, freed: &mut Freed) {
        let Some(admitted) = self.admitted.remove(&op) else { return };
        for (&seq, other) in &mut self.admitted {
            if other.behind.remove(&op) && other.behind.is_empty() {
                freed.ready.push(seq);
            }
        }
        for id in admitted.parts {
            let Some(part) = self.parts.get_mut(&id) else { continue };
            part.users.remove(&op);
            if part.users.is_empty() {
                self.unused(id, now, freed);
            } else {
                self.yield_part(id, now, freed);
            }
        }
    }

    fn unused(&mut self, id: PartId, now: Time, freed: &mut Freed) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        match part.called {
            Some(true) if part.range.mode == LockMode::Exclusive => {
                part.range.mode = LockMode::Shared;
                part.called = None;
                part.until = None;
                freed.shared.push(id);
            }
            Some(_) => {
                self.forget(id);
                freed.free.push(id);
                return;
            }
            None => {}
        }
        self.turn += 1;
        if let Some(old) = part.idle.replace((now, self.turn)) {
            self.idle.remove(&(old.0, old.1, id));
        }
        self.idle.insert((now, self.turn, id));
    }

    fn forget(&mut self, id: PartId) {
        let Some(part) = self.parts.remove(&id) else { return };
        self.places.remove(&(part.range.device, part.range.extent.start, id));
        if let Some((since, turn)) = part.idle {
            self.idle.remove(&(since, turn, id));
        }
    }

    fn drop_oldest(&mut self, freed: &mut Freed) {
        if let Some(&(_, _, id)) = self.idle.first() {
            self.forget(id);
            freed.free.push(id);
        }
    }

    /// When the part that has not been used for longest was.
    pub fn oldest(&self) -> Option<Time> {
        self.idle.first().map(|(since, ..)| *since)
    }

    /// Returns the parts that have not been used since then.
    pub fn drop_unused(&mut self, since: Time) -> Freed {
        let mut freed = Freed::default();
        while self.oldest().is_some_and(|oldest| oldest <= since) {
            self.drop_oldest(&mut freed);
        }
        freed
    }

    /// The server calls parts back. A part without users is returned at once.
    pub fn call_back(&mut self, parts: &[PartId], shared: bool, now: Time) -> Freed {
        let mut freed = Freed::default();
        for id in parts {
            let Some(part) = self.parts.get_mut(id) else {
                // It was given back meanwhile; said again, in case that was lost.
                freed.free.push(*id);
                continue;
            };
            // Called to be shared and then altogether: the stronger counts.
            let shared = shared && self.give_back == GiveBack::Called;
            part.called = Some(part.called.unwrap_or(true) && shared);
            part.until = Some(part.until.unwrap_or(self.lease_until));
            if part.users.is_empty() {
                self.unused(*id, now, &mut freed);
            } else {
                self.yield_part(*id, now, &mut freed);
            }
        }
        if self.give_back == GiveBack::Grant {
            parts.iter().for_each(|id| self.give_back_grant(id.op, &mut freed));
        }
        freed
    }

    /// Gives back the unused parts of a grant.
    fn give_back_grant(&mut self, op: OpId, freed: &mut Freed) {
        let all = PartId { op, index: 0 }..=PartId { op, index: u16::MAX };
        let unused = self.parts.range(all).filter(|(_, part)| part.users.is_empty());
        for id in unused.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.forget(id);
            freed.free.push(id);
        }
    }

    /// All that is held, for a server that has restarted.
    pub fn held(&self) -> Vec<Held> {
        self.parts.iter().map(|(&part, p)| Held { part, mode: p.range.mode }).collect()
    }
}

#[cfg(test)]
mod tests;
