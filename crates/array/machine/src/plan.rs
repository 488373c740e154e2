//! The blocks that a host operation reads first and writes then (docs/design/array.md 1.2). An operation over several
//! stripes is one plan: all its reads come before any of its writes.
//!
//! Partial units are handled in whole blocks. A read-modify-write touches the blocks that the operation covers. It
//! touches the parity of their columns, from the first to the last. The other methods touch all units in these columns.
//! A block that is written in part is read as well, whatever the method.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::galois::{Element, coefficient};
use crate::{ArrayState, DeviceId, Extent, Layout, OpError, Skipped, Span, Time};

/// Columns of a stripe: offsets of blocks in its units.
pub type Columns = Range<u32>;

/// How the parity of a written stripe comes about, or how a stripe is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Read; nothing is missing.
    Read,
    /// Read; this data unit's device is missing, so that the unit is the sum of all others.
    ReadMissing(u16),
    /// With two parities: read, and data units are missing. Phase 1 reads all units that are there.
    ReadWithout,
    /// Parity is the sum of all data units. The units that are not written are read first; a large write reads none.
    Sum,
    /// The same, but for one data unit that is written in part. Its old content is the sum of all others.
    SumMissing(u16),
    /// With two parities: as [`Method::Sum`], but data units are missing, and their old content is needed. Phase 1 reads all units
    /// that are there.
    SumWithout,
    /// Parity changes by as much as data does: a read-modify-write.
    Delta,
    /// The devices of all parities are missing.
    NoParity,
}

/// A unit of a stripe, in the order in which columns have them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// A data unit, from 0.
    Data(u16),
    /// Parity, or a mirror's copy. It is the sum of the data units.
    Parity,
    /// The second parity of RAID-6. It is the sum of the data units, each times a factor of its own.
    SecondParity,
}

impl Unit {
    /// All units of a stripe.
    pub fn all(layout: &Layout) -> impl Iterator<Item = Unit> + use<> {
        let second = (layout.parities() > 1).then_some(Unit::SecondParity);
        (0..layout.data).map(Unit::Data).chain([Unit::Parity]).chain(second)
    }

    /// Its place in a column.
    pub fn index(self, layout: &Layout) -> usize {
        match self {
            Unit::Data(unit) => usize::from(unit),
            Unit::Parity => usize::from(layout.data),
            Unit::SecondParity => usize::from(layout.data) + 1,
        }
    }

    /// The factor with which a data unit is in a parity's sum; 1 in any other case.
    pub(crate) fn factor(self, data: u16) -> Element {
        match self {
            Unit::SecondParity => coefficient(data.into()),
            Unit::Data(_) | Unit::Parity => 1,
        }
    }
}

/// Which old blocks of a device are used that the array has gone on without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Old {
    /// Beside another missing unit. The medium has every write up to this timestamp (docs/design/array.md 3.9).
    WholeTo(Time),
    /// Those that marked parity vouches for (docs/design/array.md 3.11).
    VouchedFor,
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
    /// The array has gone on without the device, and the blocks are read that it left with.
    pub old: Option<Old>,
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
    /// The missing devices that the write leaves out.
    pub skipped: Skipped,
    /// The missing data unit that parity stands for, with one parity.
    pub missing: Option<Missed>,
    /// Its part of [`Plan::accesses`].
    pub accesses: Range<usize>,
}

/// A data unit that is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    /// Which data unit.
    pub unit: u16,
    /// Its device.
    pub device: DeviceId,
    /// The device comes back with its medium, which may have what parity does not yield.
    pub comes_back: bool,
}

impl StripePlan {
    /// Returns true if a device counts again that was left out.
    pub(crate) fn is_back(&self, state: &ArrayState) -> bool {
        self.skipped.devices().any(|device| state.has(device, self.stripe))
    }
}

/// An operation's siblings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// By stripe.
    pub stripes: Vec<StripePlan>,
    /// All of them, in the order of `stripes`.
    pub accesses: Vec<Access>,
    /// A rule to leave out.
    #[cfg(feature = "mutations")]
    pub mutation: Option<crate::mutation::Mutation>,
}

impl Plan {
    /// These, by the rules.
    pub fn new(stripes: Vec<StripePlan>, accesses: Vec<Access>) -> Plan {
        Plan {
            stripes,
            accesses,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
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
    state: &'a ArrayState,
    stripe: u64,
    covered: Vec<Part>,
    hull: Columns,
    missed: Option<Missed>,
    accesses: Vec<Access>,
}

impl Stripe<'_> {
    fn part(&self, unit: u16) -> Option<&Part> {
        self.covered.iter().find(|part| part.unit == unit)
    }

    fn covered(&self, unit: u16) -> Option<&Columns> {
        self.part(unit).map(|part| &part.columns)
    }

    fn device(&self, unit: Unit) -> DeviceId {
        match unit {
            Unit::Data(unit) => self.layout.data(self.stripe, unit),
            // Only RAID-6 has a second parity.
            Unit::Parity => self.layout.parity(self.stripe),
            Unit::SecondParity => {
                self.layout.second_parity(self.stripe).unwrap_or(self.layout.parity(self.stripe))
            }
        }
    }

    fn add(&mut self, unit: Unit, read: Option<Columns>, write: Option<Columns>) {
        let device = self.device(unit);
        let read = read.filter(|c| !c.is_empty());
        if read.is_some() || write.is_some() {
            let stripe = self.stripe;
            self.accesses.push(Access { device, stripe, unit, read, write, old: None });
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

    /// Notes that a unit is missing. Returns its device.
    fn misses(&mut self, unit: u16) -> DeviceId {
        let device = self.layout.data(self.stripe, unit);
        let comes_back = self.state.comes_back(device);
        self.missed = Some(Missed { unit, device, comes_back });
        device
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

    fn is_missing(&self, unit: Unit) -> bool {
        !self.state.has(self.device(unit), self.stripe)
    }

    /// A device in rebuilding is written but not read. So rebuilt blocks stay right until all hosts know of them.
    fn is_written(&self, unit: Unit) -> bool {
        !self.is_missing(unit) || self.state.is_rebuilding(self.device(unit))
    }

    fn parities(&self) -> impl Iterator<Item = Unit> + use<> {
        Unit::all(self.layout).skip(usize::from(self.layout.data))
    }

    /// The devices that a write leaves out.
    fn left_out(&self) -> Skipped {
        let units = Unit::all(self.layout).filter(|unit| !self.is_written(*unit));
        units.map(|unit| self.device(unit)).collect()
    }

    /// With two parities: all units that are there yield the missing ones, over the columns in which missing units are covered.
    fn read_without(&mut self) -> Method {
        let lost =
            |part: &Part| self.is_missing(Unit::Data(part.unit)).then(|| part.columns.clone());
        let lost = self.covered.iter().filter_map(lost);
        let lost = lost.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for unit in
            Unit::all(self.layout).filter(|unit| !self.is_missing(*unit)).collect::<Vec<_>>()
        {
            let covered = match unit {
                Unit::Data(unit) => self.covered(unit),
                Unit::Parity | Unit::SecondParity => None,
            };
            let columns = match covered {
                Some(c) => c.start.min(lost.start)..c.end.max(lost.end),
                None => lost.clone(),
            };
            self.add(unit, Some(columns), None);
        }
        Method::ReadWithout
    }

    /// With two parities: new parities are sums of all data units. `needs_missing`: the old content of missing ones is needed, so
    /// that all that is there is read.
    fn sum_without(&mut self, needs_missing: bool) -> Method {
        for unit in Unit::all(self.layout).collect::<Vec<_>>() {
            let is_there = !self.is_missing(unit);
            let (rest, write) = match unit {
                Unit::Data(unit) => (self.rest(unit), self.covered(unit).cloned()),
                Unit::Parity | Unit::SecondParity => (None, Some(self.hull.clone())),
            };
            let read = if needs_missing { Some(self.hull.clone()) } else { rest };
            let write = write.filter(|_| self.is_written(unit));
            self.add(unit, read.filter(|_| is_there), write);
        }
        if needs_missing { Method::SumWithout } else { Method::Sum }
    }

    /// With two parities: those that are there change by as much as data does.
    fn delta_without(&mut self) -> Method {
        for Part { unit, columns, .. } in self.covered.clone() {
            self.add(Unit::Data(unit), Some(columns.clone()), Some(columns));
        }
        let hull = self.hull.clone();
        for parity in self.parities().filter(|parity| !self.is_missing(*parity)).collect::<Vec<_>>()
        {
            self.add(parity, Some(hull.clone()), Some(hull.clone()));
        }
        Method::Delta
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
    layout.units(stripe).filter(|device| !state.has(*device, stripe)).count()
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
    (layout, state): (&Layout, &ArrayState),
    span: Span,
    partial: (bool, bool),
    mut choose: impl FnMut(&mut Stripe<'_>) -> Result<(Method, Skipped), OpError>,
) -> Result<Plan, OpError> {
    if !layout.contains(span) {
        return Err(OpError::Range);
    }
    let mut plan = Plan::default();
    for (stripe, covered) in stripes_of(layout, span, partial) {
        let columns = || covered.iter().map(|part| &part.columns);
        let hull = columns().map(|c| c.start).min().unwrap_or(0)
            ..columns().map(|c| c.end).max().unwrap_or(0);
        let mut part =
            Stripe { layout, state, stripe, covered, hull, missed: None, accesses: Vec::new() };
        let (method, skipped) = choose(&mut part)?;
        let first = plan.accesses.len();
        plan.accesses.append(&mut part.accesses);
        plan.stripes.push(StripePlan {
            stripe,
            method,
            covered: part.covered.into_iter().map(|part| (part.unit, part.columns)).collect(),
            hull: part.hull,
            skipped,
            missing: part.missed,
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
    build((layout, state), span, (false, false), |part| {
        if layout.parities() > 1 {
            return read_of_double(part);
        }
        let missing = Missing::of(layout, state, part.stripe);
        let wanted = missing.data.iter().copied().find(|unit| part.covered(*unit).is_some());
        if wanted.is_some() && missing.count() > 1 {
            return Err(unavailable(part.stripe));
        }
        wanted.map(|unit| part.misses(unit));
        Ok((part.read(wanted), Skipped::default()))
    })
}

/// With two parities.
fn read_of_double(part: &mut Stripe<'_>) -> Result<(Method, Skipped), OpError> {
    let needs_others = part.covered.iter().any(|covered| part.is_missing(Unit::Data(covered.unit)));
    if !needs_others {
        return Ok((part.read(None), Skipped::default()));
    }
    match missing_units(part.layout, part.state, part.stripe) {
        ..=2 => Ok((part.read_without(), Skipped::default())),
        _ => Err(unavailable(part.stripe)),
    }
}

/// With two parities. A missing data unit that is not written keeps its content if the parities that are there change only by as
/// much as data does. So old parity is needed for it, in one way or the other.
fn write_of_double(
    part: &mut Stripe<'_>,
    rules: &WriteRules,
) -> Result<(Method, Skipped), OpError> {
    let (layout, skipped) = (part.layout, part.left_out());
    if missing_units(layout, part.state, part.stripe) > 2 {
        return Err(unavailable(part.stripe));
    }
    if !part.parities().any(|parity| part.is_written(parity)) {
        return Ok((part.without_parity(), skipped));
    }
    let parity_unfit = rules.parity_unfit.contains(&part.stripe);
    let missing: Vec<u16> =
        (0..layout.data).filter(|unit| part.is_missing(Unit::Data(*unit))).collect();
    let needed = missing.iter().copied().find(|unit| part.rest(*unit).is_some());
    if let Some(unit) = needed.filter(|_| parity_unfit) {
        return Err(OpError::Lost { block: layout.logical(part.stripe, unit) });
    }
    let is_covered = missing.iter().any(|unit| part.covered(*unit).is_some());
    // Parity that is being rebuilt is written and cannot be read.
    let rebuilds = part.parities().any(|parity| part.is_missing(parity) && part.is_written(parity));
    let (touched, data) = (part.covered.len() * 2, usize::from(layout.data));
    let is_small = touched < data || touched == data && rules.delta_at_half || needed.is_some();
    if is_small && !is_covered && !rebuilds && !parity_unfit {
        return Ok((part.delta_without(), skipped));
    }
    Ok((part.sum_without(needed.is_some()), skipped))
}

/// The plan of a write. It fails if more units of a stripe are missing than its redundancy replaces. It also fails if only a parity
/// that does not fit would make the write possible (docs/design/array.md 3.5). A block that is written in part needs its old content
/// for that.
pub fn write(
    layout: &Layout,
    state: &ArrayState,
    span: Span,
    rules: &WriteRules,
) -> Result<Plan, OpError> {
    let lost = |stripe: u64, unit: u16| OpError::Lost { block: layout.logical(stripe, unit) };
    build((layout, state), span, (rules.partial_start, rules.partial_end), |part| {
        if layout.parities() > 1 {
            return write_of_double(part, rules);
        }
        let missing = Missing::of(layout, state, part.stripe);
        let parity_unfit = rules.parity_unfit.contains(&part.stripe);
        if missing.count() > 1 {
            return Err(unavailable(part.stripe));
        }
        // A device in rebuilding is written but not read. So rebuilt blocks stay right until all hosts know of them.
        let rebuilding = |device: DeviceId| state.is_rebuilding(device);
        if missing.parity && rebuilding(layout.parity(part.stripe)) {
            return Ok((part.sum(None), Skipped::default()));
        }
        if missing.parity {
            return Ok((part.without_parity(), Skipped::only(layout.parity(part.stripe))));
        }
        if let Some(&unit) = missing.data.first() {
            let device = part.misses(unit);
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
                return Ok((method, Skipped::only(device)));
            }
            if let Some(columns) = part.covered(unit).cloned() {
                part.add(Unit::Data(unit), None, Some(columns));
            }
            return Ok((method, Skipped::default()));
        }
        let (touched, data) = (part.covered.len() * 2, usize::from(layout.data));
        let delta = touched < data || touched == data && rules.delta_at_half;
        // Of a mirror's only data unit, half is not one.
        if delta && !parity_unfit && data > 1 {
            Ok((part.delta(), Skipped::default()))
        } else {
            Ok((part.sum(None), Skipped::default()))
        }
    })
}

#[cfg(test)]
mod tests;
