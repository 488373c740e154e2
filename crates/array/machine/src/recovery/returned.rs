//! A device comes back with the medium that it left with (docs/design/array.md 3.9). This is about its blocks in stripes that
//! miss another unit as well.
//!
//! Hosts have gone on without the device, so its blocks may be old. The other blocks of the column tell, unless the only one
//! that could is on the other missing device. A [`Verdict`] says for each block what is known.
//!
//! *A data block.* Every write of it since has gone to parity. So it is the newest if parity is not newer. The same holds if
//! parity's last write is old enough: the medium has everything up to some time. If parity is newer than both, some unit of the
//! column was written since. Nobody knows which one, so the block counts as old. Parity may be on the other missing device.
//! Then nobody knows anything.
//!
//! *A parity block.* It does not fit any more if a data block of the column was written since. The other missing device's
//! block may have been written as well. Nobody knows that, and the block before that is what parity yields.
//!
//! A record of the stripe may also name the block, with a newer timestamp. Then it is old, even if that operation has skipped
//! the device.

use super::column::{Column, Mend, Seen, headers_of};
use crate::{DeviceId, Header, Outlook, Stamp, Time};

/// The knowledge of a block of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nobody has written the block since.
    Current,
    /// Only the other missing device could tell.
    MayBeOld,
    /// The block was written since, as far as anybody knows.
    Outdated,
    /// The medium does not have its content.
    Gone,
}

impl Outlook {
    /// Counts a data block of the device that comes back.
    pub(crate) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Current => self.current += 1,
            Verdict::MayBeOld => self.may_be_old += 1,
            Verdict::Outdated => self.outdated += 1,
            Verdict::Gone => self.gone += 1,
        }
    }
}

/// A device that comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Returned {
    pub device: DeviceId,
    /// Its unit of the stripe.
    pub unit: usize,
    /// Its medium has every write up to this timestamp.
    pub whole_to: Time,
}

impl Returned {
    /// By column: what is known of the device's block.
    pub fn verdicts(&self, columns: &[(Column<'_>, Vec<Seen>)]) -> Vec<Verdict> {
        let Some(headers) = headers_of(columns) else { return Vec::new() };
        // A write that has skipped the device was one of its block, too.
        let records: Vec<Header> = headers.all().map(|record| self.unskipped(record)).collect();
        let newest = headers.newest(records.iter());
        let verdict = |(at, (_, units)): (usize, &(Column<'_>, Vec<Seen>))| match units
            .get(self.unit)
            .and_then(Seen::header)
        {
            None => Verdict::Gone,
            Some(own) if newest.is_ahead(at, self.unit, Some(own)) => Verdict::Outdated,
            Some(own) => match self.beside(units, own.stamp) {
                Verdict::Current | Verdict::MayBeOld if own.lost => Verdict::Gone,
                verdict => verdict,
            },
        };
        columns.iter().enumerate().map(verdict).collect()
    }

    fn unskipped(&self, record: &Header) -> Header {
        Header { skipped: record.skipped.without(self.device), ..*record }
    }

    /// By the timestamps of the other blocks of the column.
    fn beside(&self, units: &[Seen], own: Stamp) -> Verdict {
        let written_since = |seen: &Seen| {
            let stamp = seen.header().map(|header| header.stamp);
            stamp.map(|stamp| stamp > own && stamp.time > self.whole_to)
        };
        let parity = units.len() - 1;
        if self.unit == parity {
            let mut data = units[..parity].iter().filter_map(written_since);
            return if data.any(|since| since) { Verdict::Outdated } else { Verdict::MayBeOld };
        }
        match written_since(&units[parity]) {
            Some(true) => Verdict::Outdated,
            Some(false) => Verdict::Current,
            None => Verdict::MayBeOld,
        }
    }

    /// The block again, as it is. Another block of the column gets a new timestamp, and must not look newer than this one.
    pub fn again(&self, units: &[Seen], mends: &[Mend]) -> Option<Mend> {
        let gets_a_new_stamp = |mend: &Mend| mend.kept.is_none();
        let Seen::There { header, data } = units.get(self.unit)? else { return None };
        if mends.iter().any(|mend| mend.unit == self.unit) || !mends.iter().any(gets_a_new_stamp) {
            return None;
        }
        let Header { lost, lost_data, .. } = *header;
        Some(Mend { lost_data, ..Mend::new(self.unit, data.clone(), lost) })
    }
}

#[cfg(test)]
mod tests;
