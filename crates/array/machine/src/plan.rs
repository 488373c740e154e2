//! The blocks that a host operation reads first and writes then (docs/design/array.md 1.2). An operation over several
//! stripes is one plan: all its reads come before any of its writes.
//!
//! Partial units are handled in whole blocks. A read-modify-write touches the blocks that the operation covers. It
//! touches the parity of their columns, from the first to the last. The other methods touch all units in these columns.
//! A block that is written in part is read as well, whatever the method.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::{ArrayState, DeviceId, Extent, Layout, OpError, Span, Time};

/// Columns of a stripe: offsets of blocks in its units.
pub type Columns = Range<u32>;

/// How the parity of a written stripe comes about, or how a stripe is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Read; nothing is missing.
    Read,
    /// Read; this data unit's device is missing, so that the unit is the sum of all others.
    ReadMissing(u16),
    /// Parity is the sum of all data units. The units that are not written are read first; a large write reads none.
    Sum,
    /// The same, but for one data unit that is written in part. Its old content is the sum of all others.
    SumMissing(u16),
    /// Parity changes by as much as data does: a read-modify-write.
    Delta,
    /// The parity's device is missing.
    NoParity,
}

/// A unit of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// A data unit, from 0.
    Data(u16),
    /// Parity, or a mirror's copy.
    Parity,
}

/// The accesses to one unit of one stripe: a *sibling*. It has at least one of `read` and `write`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The device.
    pub device: DeviceId,
    /// The stripe.
    pub stripe: u64,
    /// The unit.
    pub unit: Unit,
    /// Columns to read in phase 1.
    pub read: Option<Columns>,
    /// Columns to write in phase 2.
    pub write: Option<Columns>,
    /// The array has gone on without the device, and reads the blocks that it left with. These have every write up to this
    /// timestamp (docs/design/array.md 3.9).
    pub whole_to: Option<Time>,
}

impl Access {
    /// The columns from the first that is touched to the last.
    pub fn hull(&self) -> Columns {
        match (&self.read, &self.write) {
            (Some(r), Some(w)) => r.start.min(w.start)..r.end.max(w.end),
            (Some(c), None) | (None, Some(c)) => c.clone(),
            (None, None) => 0..0,
        }
    }
}

/// The blocks of a device that are columns of a stripe's unit.
pub fn extent(layout: &Layout, stripe: u64, columns: &Columns) -> Extent {
    Extent {
        start: layout.unit_start(stripe) + u64::from(columns.start),
        count: columns.end - columns.start,
    }
}

/// One stripe's part of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripePlan {
    /// The stripe.
    pub stripe: u64,
    /// How it is read or written.
    pub method: Method,
    /// The data units that the operation covers, and which columns of them, in the order of the array's blocks.
    pub covered: Vec<(u16, Columns)>,
    /// The columns from the first that is covered to the last.
    pub hull: Columns,
    /// The missing device, if it affects the write.
    pub skipped: Option<DeviceId>,
    /// Its part of [`Plan::accesses`].
    pub accesses: Range<usize>,
}

impl StripePlan {
    /// Returns true if a device counts again that was left out.
    pub(crate) fn is_back(&self, state: &ArrayState) -> bool {
        self.skipped.is_some_and(|device| state.has(device, self.stripe))
    }
}

/// An operation's siblings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// By stripe.
    pub stripes: Vec<StripePlan>,
    /// All of them, in the order of `stripes`.
    pub accesses: Vec<Access>,
}

/// What has to be known of a write beside its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WriteRules {
    /// Half of the data units is written: read-modify-write rather than reconstruct-write. The paper does not say.
    pub delta_at_half: bool,
    /// A part of this operation is already written in these stripes. Old data and parity need not fit there, so the old parity
    /// must not be used (docs/design/array.md 3.4).
    pub parity_unfit: BTreeSet<u64>,
    /// The first block is written in part.
    pub partial_start: bool,
    /// The last block is written in part.
    pub partial_end: bool,
}

/// Blocks of a unit that an operation covers.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    unit: u16,
    columns: Columns,
    /// Those of them that are written as a whole. The others are at the ends.
    whole: Columns,
}

struct Stripe<'a> {
    layout: &'a Layout,
    stripe: u64,
    covered: Vec<Part>,
    hull: Columns,
    accesses: Vec<Access>,
}

impl Stripe<'_> {
    fn part(&self, unit: u16) -> Option<&Part> {
        self.covered.iter().find(|part| part.unit == unit)
    }

    fn covered(&self, unit: u16) -> Option<&Columns> {
        self.part(unit).map(|part| &part.columns)
    }

    fn add(&mut self, unit: Unit, read: Option<Columns>, write: Option<Columns>) {
        let device = match unit {
            Unit::Data(unit) => self.layout.data(self.stripe, unit),
            Unit::Parity => self.layout.parity(self.stripe),
        };
        let read = read.filter(|c| !c.is_empty());
        if read.is_some() || write.is_some() {
            let stripe = self.stripe;
            self.accesses.push(Access { device, stripe, unit, read, write, whole_to: None });
        }
    }

    /// The part of a data unit that has to be read to know the whole hull afterwards. It is the hull without the columns that are
    /// written as a whole, and touches one end of it.
    fn rest(&self, unit: u16) -> Option<Columns> {
        match self.part(unit).map(|part| &part.whole).filter(|c| !c.is_empty()) {
            None => Some(self.hull.clone()),
            Some(c) if c.start > self.hull.start && c.end < self.hull.end => {
                Some(self.hull.clone())
            }
            Some(c) if c.start > self.hull.start => Some(self.hull.start..c.start),
            Some(c) => Some(c.end..self.hull.end),
        }
        .filter(|c| !c.is_empty())
    }

    fn read(&mut self, missing: Option<u16>) -> Method {
        let lost = missing.and_then(|unit| self.covered(unit).cloned().map(|c| (unit, c)));
        let Some((missing, lost)) = lost else {
            for Part { unit, columns, .. } in self.covered.clone() {
                self.add(Unit::Data(unit), Some(columns), None);
            }
            return Method::Read;
        };
        for unit in (0..self.layout.data).filter(|u| *u != missing) {
            let columns = match self.covered(unit) {
                Some(c) => c.start.min(lost.start)..c.end.max(lost.end),
                None => lost.clone(),
            };
            self.add(Unit::Data(unit), Some(columns), None);
        }
        self.add(Unit::Parity, Some(lost), None);
        Method::ReadMissing(missing)
    }

    fn sum(&mut self, missing: Option<u16>) -> Method {
        let incomplete = missing.filter(|unit| self.rest(*unit).is_some());
        for unit in (0..self.layout.data).filter(|u| Some(*u) != missing) {
            let read = if incomplete.is_some() { Some(self.hull.clone()) } else { self.rest(unit) };
            let write = self.covered(unit).cloned();
            self.add(Unit::Data(unit), read, write);
        }
        let hull = self.hull.clone();
        self.add(Unit::Parity, incomplete.map(|_| hull.clone()), Some(hull));
        incomplete.map_or(Method::Sum, Method::SumMissing)
    }

    fn delta(&mut self) -> Method {
        for Part { unit, columns, .. } in self.covered.clone() {
            self.add(Unit::Data(unit), Some(columns.clone()), Some(columns));
        }
        let hull = self.hull.clone();
        self.add(Unit::Parity, Some(hull.clone()), Some(hull));
        Method::Delta
    }

    fn without_parity(&mut self) -> Method {
        for Part { unit, columns, whole } in self.covered.clone() {
            let read = (whole != columns).then(|| columns.clone());
            self.add(Unit::Data(unit), read, Some(columns));
        }
        Method::NoParity
    }
}

/// Which units of a stripe are missing.
struct Missing {
    data: Vec<u16>,
    parity: bool,
}

impl Missing {
    fn of(layout: &Layout, state: &ArrayState, stripe: u64) -> Self {
        Missing {
            data: (0..layout.data)
                .filter(|u| !state.has(layout.data(stripe, *u), stripe))
                .collect(),
            parity: !state.has(layout.parity(stripe), stripe),
        }
    }

    fn count(&self) -> usize {
        self.data.len() + usize::from(self.parity)
    }
}

/// How many units of a stripe are missing.
pub fn missing_units(layout: &Layout, state: &ArrayState, stripe: u64) -> usize {
    Missing::of(layout, state, stripe).count()
}

/// The parts of an operation, by stripe. Its first or last block may be partial.
fn stripes_of(layout: &Layout, span: Span, partial: (bool, bool)) -> Vec<(u64, Vec<Part>)> {
    let mut stripes: Vec<(u64, Vec<Part>)> = Vec::new();
    let whole = span.start + u64::from(partial.0)..span.end() - u64::from(partial.1);
    let mut block = span.start;
    while block < span.end() {
        let place = layout.place(block);
        let left = u64::from(layout.unit - place.offset).min(span.end() - block);
        let columns = place.offset..place.offset + left as u32;
        let column =
            |other: u64| place.offset + other.clamp(block, block + left).abs_diff(block) as u32;
        let whole = column(whole.start)..column(whole.end);
        let part = Part { unit: place.data_unit, columns, whole };
        match stripes.last_mut() {
            Some((stripe, parts)) if *stripe == place.stripe => parts.push(part),
            _ => stripes.push((place.stripe, vec![part])),
        }
        block += left;
    }
    stripes
}

fn build(
    layout: &Layout,
    span: Span,
    partial: (bool, bool),
    mut choose: impl FnMut(&mut Stripe<'_>) -> Result<(Method, Option<DeviceId>), OpError>,
) -> Result<Plan, OpError> {
    if !layout.contains(span) {
        return Err(OpError::Range);
    }
    let mut plan = Plan::default();
    for (stripe, covered) in stripes_of(layout, span, partial) {
        let columns = || covered.iter().map(|part| &part.columns);
        let hull = columns().map(|c| c.start).min().unwrap_or(0)
            ..columns().map(|c| c.end).max().unwrap_or(0);
        let mut part = Stripe { layout, stripe, covered, hull, accesses: Vec::new() };
        let (method, skipped) = choose(&mut part)?;
        let first = plan.accesses.len();
        plan.accesses.append(&mut part.accesses);
        plan.stripes.push(StripePlan {
            stripe,
            method,
            covered: part.covered.into_iter().map(|part| (part.unit, part.columns)).collect(),
            hull: part.hull,
            skipped,
            accesses: first..plan.accesses.len(),
        });
    }
    Ok(plan)
}

fn unavailable(stripe: u64) -> OpError {
    OpError::Unavailable(format!("stripe {stripe} has lost more units than its redundancy covers"))
}

/// The plan of a read. Fails if a missing unit cannot be had from the others.
pub fn read(layout: &Layout, state: &ArrayState, span: Span) -> Result<Plan, OpError> {
    build(layout, span, (false, false), |part| {
        let missing = Missing::of(layout, state, part.stripe);
        let wanted = missing.data.iter().copied().find(|unit| part.covered(*unit).is_some());
        if wanted.is_some() && missing.count() > 1 {
            return Err(unavailable(part.stripe));
        }
        Ok((part.read(wanted), None))
    })
}

/// The plan of a write. It fails if more than one unit of a stripe is missing. It also fails if only a parity that does not fit
/// would make the write possible (docs/design/array.md 3.5). A block that is written in part needs its old content for that.
pub fn write(
    layout: &Layout,
    state: &ArrayState,
    span: Span,
    rules: &WriteRules,
) -> Result<Plan, OpError> {
    let lost = |stripe: u64, unit: u16| OpError::Lost { block: layout.logical(stripe, unit) };
    build(layout, span, (rules.partial_start, rules.partial_end), |part| {
        let missing = Missing::of(layout, state, part.stripe);
        let parity_unfit = rules.parity_unfit.contains(&part.stripe);
        if missing.count() > 1 {
            return Err(unavailable(part.stripe));
        }
        // A device in rebuilding is written but not read. So rebuilt blocks stay right until all hosts know of them.
        let rebuilding = |device: DeviceId| state.is_rebuilding(device);
        if missing.parity && rebuilding(layout.parity(part.stripe)) {
            return Ok((part.sum(None), None));
        }
        if missing.parity {
            return Ok((part.without_parity(), Some(layout.parity(part.stripe))));
        }
        if let Some(&unit) = missing.data.first() {
            let device = layout.data(part.stripe, unit);
            let whole = part.covered(unit).is_some() && part.rest(unit).is_none();
            if parity_unfit && !whole {
                return Err(lost(part.stripe, unit));
            }
            // Only parity knows the content of the missing unit. Unless that unit is written, parity may change only by the
            // difference of the others.
            let method = match part.covered(unit) {
                Some(_) => part.sum(Some(unit)),
                None => part.delta(),
            };
            if !rebuilding(device) {
                return Ok((method, Some(device)));
            }
            if let Some(columns) = part.covered(unit).cloned() {
                part.add(Unit::Data(unit), None, Some(columns));
            }
            return Ok((method, None));
        }
        let (touched, data) = (part.covered.len() * 2, usize::from(layout.data));
        let delta = touched < data || touched == data && rules.delta_at_half;
        // Of a mirror's only data unit, half is not one.
        if delta && !parity_unfit && data > 1 {
            Ok((part.delta(), None))
        } else {
            Ok((part.sum(None), None))
        }
    })
}

#[cfg(test)]
mod tests;
