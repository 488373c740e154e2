//! The lock table: granted and queued requests, and an index of their ranges by device (docs/design/array.md 2.1).

use std::collections::{BTreeMap, BTreeSet};

use crate::message::Past;
use crate::{DeviceId, Extent, Life, LockMode, LockRange, OpId, Time};

/// A request's place in the queue; requests are served in this order.
pub(super) type Order = u64;

pub(super) struct Part {
    pub range: LockRange,
    /// It has been called back, and its lease ends then: no renewal counts for it any more.
    pub called: Option<Time>,
    /// Its host has yielded it to repairs.
    pub yielded: bool,
}

pub(super) struct Request {
    pub op: OpId,
    pub past: Past,
    pub repair: bool,
    pub granted: bool,
    /// It was not granted at once.
    pub waited: bool,
    /// `None`: given back.
    pub parts: Vec<Option<Part>>,
}

#[derive(Default)]
struct Intervals {
    by_start: BTreeSet<(u64, Order, u16)>,
    /// No range indexed here is longer; it says how far before a block one has to look.
    longest: u64,
}

#[derive(Default)]
pub(super) struct Table {
    requests: BTreeMap<Order, Request>,
    orders: BTreeMap<OpId, Order>,
    devices: BTreeMap<DeviceId, Intervals>,
    next: Order,
}

impl Table {
    pub fn add(
        &mut self,
        op: OpId,
        ranges: &[LockRange],
        past: Past,
        repair: bool,
        granted: bool,
    ) -> Order {
        let order = self.next;
        self.next += 1;
        for (index, range) in ranges.iter().enumerate() {
            let intervals = self.devices.entry(range.device).or_default();
            intervals.by_start.insert((range.extent.start, order, index as u16));
            intervals.longest = intervals.longest.max(u64::from(range.extent.count));
        }
        let part = |&range| Some(Part { range, called: None, yielded: false });
        let parts = ranges.iter().map(part).collect();
        self.requests.insert(order, Request { op, past, repair, granted, waited: false, parts });
        self.orders.insert(op, order);
        order
    }

    pub fn order_of(&self, op: OpId) -> Option<Order> {
        self.orders.get(&op).copied()
    }

    pub fn get(&self, order: Order) -> Option<&Request> {
        self.requests.get(&order)
    }

    pub fn get_mut(&mut self, order: Order) -> Option<&mut Request> {
        self.requests.get_mut(&order)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Order, &Request)> {
        self.requests.iter().map(|(&order, request)| (order, request))
    }

    /// Takes a part out, and its request with the last one.
    pub fn remove_part(&mut self, order: Order, index: u16) -> Option<LockRange> {
        let request = self.requests.get_mut(&order)?;
        let part = request.parts.get_mut(usize::from(index))?.take()?;
        if let Some(intervals) = self.devices.get_mut(&part.range.device) {
            intervals.by_start.remove(&(part.range.extent.start, order, index));
            if intervals.by_start.is_empty() {
                self.devices.remove(&part.range.device);
            }
        }
        if request.parts.iter().all(Option::is_none) {
            let op = request.op;
            self.requests.remove(&order);
            self.orders.remove(&op);
        }
        Some(part.range)
    }

    pub fn remove(&mut self, order: Order) -> Vec<LockRange> {
        let count = self.requests.get(&order).map_or(0, |request| request.parts.len());
        (0..count as u16).filter_map(|index| self.remove_part(order, index)).collect()
    }

    /// Requests and parts that overlap a device's blocks.
    fn overlapping(
        &self,
        device: DeviceId,
        extent: Extent,
    ) -> impl Iterator<Item = (Order, u16, &Request, &Part)> {
        let end = extent.start + u64::from(extent.count);
        self.devices
            .get(&device)
            .into_iter()
            .flat_map(move |intervals| {
                let from = extent.start.saturating_sub(intervals.longest);
                intervals.by_start.range((from, 0, 0)..(end, 0, 0))
            })
            .filter_map(move |&(start, order, index)| {
                let request = self.requests.get(&order)?;
                let part = request.parts.get(usize::from(index))?.as_ref()?;
                let overlaps = start + u64::from(part.range.extent.count) > extent.start;
                overlaps.then_some((order, index, request, part))
            })
    }

    /// The requests and grants that delay a queued request: conflicting parts of all that is granted or queued before it. If
    /// only grants could delay a request, writers would starve. A request that works past others is delayed by grants only,
    /// because the requests before it wait for its result. A repair waits for no fenced life, whichever it repairs: two repairs
    /// of two lives would wait for each other. Nor does a repair wait for parts that were yielded to it. With `cached`, a
    /// life's requests do not exclude each other: the host itself keeps them apart.
    pub fn blockers(
        &self,
        order: Order,
        cached: bool,
        fenced: impl Fn(Life) -> bool,
    ) -> Vec<(Order, u16)> {
        let Some(request) = self.requests.get(&order) else { return Vec::new() };
        let mends = matches!(request.past, Past::Tries(_));
        let mut found = Vec::new();
        for part in request.parts.iter().flatten() {
            for (other, index, theirs, their_part) in
                self.overlapping(part.range.device, part.range.extent)
            {
                let own = cached && theirs.op.life == request.op.life;
                let before = other < order && request.past == Past::Nobody;
                let repairs = matches!(request.past, Past::Life(_));
                let reads_on = mends && part.range.mode == LockMode::Shared;
                let passed = request.past.covers(theirs.op)
                    || repairs && fenced(theirs.op.life)
                    || their_part.yielded && (request.repair || reads_on);
                if (before || theirs.granted)
                    && other != order
                    && !own
                    && !passed
                    && part.range.mode.conflicts(their_part.range.mode)
                {
                    found.push((other, index));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Queued requests that may be served now that these ranges are free.
    pub fn queued_over(&self, ranges: &[LockRange]) -> BTreeSet<Order> {
        ranges
            .iter()
            .flat_map(|range| self.overlapping(range.device, range.extent))
            .filter(|(_, _, request, _)| !request.granted)
            .map(|(order, ..)| order)
            .collect()
    }

    pub fn set_shared(&mut self, order: Order, index: u16) -> Option<LockRange> {
        let request = self.requests.get_mut(&order)?;
        let part = request.parts.get_mut(usize::from(index))?.as_mut()?;
        part.range.mode = LockMode::Shared;
        part.called = None;
        Some(part.range)
    }

    /// Ranges and requests in all: (requests, indexed ranges). Both are zero when nobody holds or waits.
    pub fn len(&self) -> (usize, usize) {
        let ranges = self.devices.values().map(|intervals| intervals.by_start.len()).sum();
        (self.requests.len(), ranges)
    }
}
