//! The blocks that the records of a stripe name, and how old they should be at most. The cost grows with the number of blocks
//! and of records, and not with their product: units have up to 16,384 blocks.

use crate::{DeviceId, Header, Layout, Stamp, Units};

#[cfg(test)]
thread_local! {
    /// How many steps were taken, for tests: their number tells if the cost grows with the number of blocks.
    pub(super) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Newer than any record.
const NONE: Stamp = Stamp { time: u64::MAX, host: u32::MAX };

/// The headers of some adjacent columns of a stripe. Units are the data units, then parity, then the second parity.
pub(crate) struct Headers<'a> {
    layout: &'a Layout,
    stripe: u64,
    /// The first column.
    first: u32,
    /// By unit, then column. Blocks that were not read, or cannot be, have none.
    units: Vec<Vec<Option<&'a Header>>>,
}

/// By unit, then column: the stamp of the newest record that names the block.
pub(crate) struct Newest(Vec<Vec<Stamp>>);

/// By unit: the oldest stamp of a range of columns is found in a few steps.
pub(crate) struct Oldest(Vec<Vec<Stamp>>);

impl<'a> Headers<'a> {
    /// Of columns from `first` on; all without a header so far.
    pub fn new(layout: &'a Layout, stripe: u64, first: u32, columns: usize) -> Self {
        let units = vec![vec![None; columns]; usize::from(layout.group_size())];
        Headers { layout, stripe, first, units }
    }

    pub fn put(&mut self, unit: usize, column: u32, header: &'a Header) {
        let at = column.checked_sub(self.first).map(|at| at as usize);
        let place = at.and_then(|at| self.units.get_mut(unit)?.get_mut(at));
        place.into_iter().for_each(|place| *place = Some(header));
    }

    fn columns(&self) -> usize {
        self.units.first().map_or(0, Vec::len)
    }

    pub fn all(&self) -> impl Iterator<Item = &'a Header> {
        self.units.iter().flatten().filter_map(|header| *header)
    }

    /// The blocks that a record names: a unit, and a range of columns, counted from the first one. Parity's may overlap.
    fn named(&self, record: &Header) -> impl Iterator<Item = (usize, usize, usize)> {
        let (layout, stripe, columns) = (self.layout, self.stripe, self.columns() as u64);
        let (from, to, skipped) = (record.first, record.last, record.skipped);
        let parities: Vec<(usize, DeviceId)> = parities(layout, stripe).collect();
        (0..layout.data).flat_map(move |unit| {
            let base = layout.logical(stripe, unit) + u64::from(self.first);
            let (low, high) = (from.max(base), to.min(base + columns - 1));
            let range = (low <= high && columns > 0)
                .then(|| ((low - base) as usize, (high - base) as usize + 1));
            let of_data = [(usize::from(unit), layout.data(stripe, unit))].into_iter();
            let written = of_data.chain(parities.clone());
            let written = written.filter(move |(_, device)| !skipped.has(*device));
            written.filter_map(move |(unit, _)| range.map(|(low, high)| (unit, low, high)))
        })
    }

    /// How new these records say that blocks are.
    pub fn newest<'r>(&self, records: impl Iterator<Item = &'r Header>) -> Newest {
        let columns = self.columns();
        let mut newest = vec![vec![Stamp::default(); columns]; self.units.len()];
        // By unit: the next column from here on that no newer record has named.
        let mut next: Vec<Vec<u32>> = vec![(0..=columns as u32).collect(); self.units.len()];
        for record in newest_first(records) {
            for (unit, low, high) in self.named(record) {
                let (newest, next) = (&mut newest[unit], &mut next[unit]);
                let mut at = free(next, low);
                while at < high {
                    newest[at] = record.stamp;
                    next[at] = at as u32 + 1;
                    at = free(next, at);
                }
            }
        }
        Newest(newest)
    }

    /// Those of some records that name something, each once.
    pub fn distinct<'r>(&self, records: impl Iterator<Item = &'r Header>) -> Vec<&'r Header> {
        newest_first(records)
    }

    /// The units whose blocks of a column a record names. `at` counts from the first column.
    pub fn named_at(&self, record: &Header, at: usize) -> Units {
        let here = self.named(record).filter(|(_, low, high)| (*low..*high).contains(&at));
        here.map(|(unit, ..)| unit).collect()
    }

    /// The stamps of these columns' blocks.
    pub fn oldest(&self, counts: impl Fn(usize) -> bool) -> Oldest {
        let columns = self.columns();
        let unit = |headers: &Vec<Option<&Header>>| {
            let stamp = |(at, header): (usize, &Option<&Header>)| {
                header.filter(|_| counts(at)).map_or(NONE, |header| header.stamp)
            };
            let mut tree = vec![NONE; columns];
            tree.extend(headers.iter().enumerate().map(stamp));
            (1..columns).rev().for_each(|at| tree[at] = tree[2 * at].min(tree[2 * at + 1]));
            tree
        };
        Oldest(self.units.iter().map(unit).collect())
    }

    /// Returns true if a record says of a block that it is too old. The block's column, counted from the first one, is
    /// another than `but`.
    pub fn accuses(&self, oldest: &Oldest, record: &Header, but: Option<usize>) -> bool {
        self.named(record).any(|(unit, low, high)| {
            let least = |low, high| oldest.least(unit, low, high);
            let least = match but.filter(|but| (low..high).contains(but)) {
                Some(but) => least(low, but).min(least(but + 1, high)),
                None => least(low, high),
            };
            least < record.stamp
        })
    }

    /// The first block that is older than a record says: its column, and its unit.
    pub fn first_behind(&self) -> Option<(u32, usize)> {
        let oldest = self.all().map(|header| header.stamp).min()?;
        // Mostly, few operations have written the blocks that one operation reads.
        if self.all().filter(|header| names_something(header)).all(|h| h.stamp <= oldest) {
            return None;
        }
        let newest = self.newest(self.all());
        let behind = |at: usize, unit: usize| newest.is_ahead(at, unit, self.units[unit][at]);
        let unit = |at: usize| (0..self.units.len()).find(|unit| behind(at, *unit));
        (0..self.columns()).find_map(|at| Some((self.first + at as u32, unit(at)?)))
    }
}

/// The units of a stripe's parities, and their devices.
fn parities(layout: &Layout, stripe: u64) -> impl Iterator<Item = (usize, DeviceId)> {
    (0..).zip(layout.units(stripe)).skip(layout.data.into())
}

fn names_something(record: &Header) -> bool {
    record.first <= record.last
}

/// Those that name something, each once.
fn newest_first<'r>(records: impl Iterator<Item = &'r Header>) -> Vec<&'r Header> {
    let mut all: Vec<&Header> = Vec::new();
    for record in records.filter(|record| names_something(record)) {
        // The records of one operation are mostly adjacent.
        if all.last() != Some(&record) {
            all.push(record);
        }
    }
    let key = |record: &&Header| {
        (std::cmp::Reverse(record.stamp), record.first, record.last, record.skipped)
    };
    all.sort_unstable_by_key(key);
    all.dedup_by_key(|record| key(record));
    all
}

/// The next free place from one on. The way there becomes shorter.
fn free(next: &mut [u32], from: usize) -> usize {
    let mut end = from;
    step();
    while next[end] as usize != end {
        step();
        end = next[end] as usize;
    }
    let mut at = from;
    while next[at] as usize != end {
        at = std::mem::replace(&mut next[at], end as u32) as usize;
    }
    end
}

impl Newest {
    /// Returns true if a record says that a block is newer than its header does. `at` counts from the first column.
    pub fn is_ahead(&self, at: usize, unit: usize, header: Option<&Header>) -> bool {
        header.is_some_and(|header| header.stamp < self.0[unit][at])
    }
}

impl Oldest {
    fn least(&self, unit: usize, low: usize, high: usize) -> Stamp {
        let tree = &self.0[unit];
        let columns = tree.len() / 2;
        let (mut low, mut high, mut least) = (low + columns, high + columns, NONE);
        while low < high {
            step();
            if low % 2 == 1 {
                least = least.min(tree[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                least = least.min(tree[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        least
    }
}
