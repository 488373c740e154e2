//! A storage transaction's computation on the blocks that it has read: a read's answer, and a write's blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::code;
use crate::galois::add_times;
use crate::message::{Blocks, Content, Flaw, Mark};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::plan::{self, Columns, Method, Missed, Plan, StripePlan, Unit};
use crate::recovery::records::Headers;
use crate::{DeviceId, Header, Layout, OpError, Skipped, Span, Stamp, Units, Work};

use super::repair::bad_blocks;

/// The reason why the read blocks cannot be used.
#[derive(Debug)]
pub(super) enum Unfit {
    /// The caller has to know.
    Fail(OpError),
    /// A block could not be read, or is older than another block says: the stripe has to be repaired first.
    Repair {
        /// The stripe.
        stripe: u64,
        /// The first block of the array that the operation does not get.
        block: u64,
    },
}

/// The blocks of one stripe as an operation sees them.
struct View<'a> {
    layout: &'a Layout,
    plan: &'a Plan,
    part: &'a StripePlan,
    contents: &'a [Option<Content>],
}

impl<'a> View<'a> {
    fn bytes(&self, columns: &Columns) -> usize {
        (columns.end - columns.start) as usize * self.layout.block_size as usize
    }

    /// A unit's content, and its first column.
    fn content(&self, unit: Unit) -> Option<(u32, &'a Content)> {
        let index = self.part.accesses.clone().find(|i| self.plan.accesses[*i].unit == unit)?;
        let content = self.contents.get(index)?.as_ref()?;
        Some((self.plan.accesses[index].read.as_ref()?.start, content))
    }

    /// A unit's content in these columns, all of which were read.
    fn read(&self, unit: Unit, columns: &Columns) -> Option<&'a [u8]> {
        let (first, content) = self.content(unit)?;
        let from = self.bytes(&(first..columns.start.max(first)));
        content.data.get(from..from + self.bytes(columns))
    }

    /// The columns of a unit that were read and are lost.
    fn lost(&self, unit: Unit) -> impl Iterator<Item = u32> + use<'a> {
        let content = self.content(unit);
        let flaws = content.map_or(&[][..], |(_, content)| &content.flaws);
        let first = content.map_or(0, |(first, _)| first);
        flaws.iter().filter(|(_, f)| *f == Flaw::Lost).map(move |(i, _)| first + i)
    }

    /// The columns in which a parity was read and names lost data units, and which.
    fn marks(&self, parity: Unit) -> impl Iterator<Item = (u32, Units)> + use<'a> {
        let content = self.content(parity);
        let headers = content.map_or(&[][..], |(_, content)| &content.headers);
        let columns = content.map_or(0, |(first, _)| first)..;
        let marks = columns.zip(headers).map(|(column, header)| (column, header.lost_data));
        marks.filter(|(_, lost)| !lost.is_empty())
    }

    /// The columns in which a missing unit's block is lost, as parity says.
    fn lost_of_missing(&self, unit: u16) -> impl Iterator<Item = u32> + use<'a> {
        let marks = self.marks(Unit::Parity).filter(move |(_, lost)| lost.has(unit.into()));
        self.lost(Unit::Parity).chain(marks.map(|(column, _)| column))
    }

    /// Adds a unit's read blocks to a sum over `columns`.
    fn add(&self, sum: &mut [u8], columns: &Columns, unit: Unit) {
        self.add_times(sum, columns, unit, 1);
    }

    /// Adds a unit's read blocks, times a factor, to a sum over `columns`.
    fn add_times(&self, sum: &mut [u8], columns: &Columns, unit: Unit, factor: u8) {
        let Some((first, content)) = self.content(unit) else { return };
        let from = first.max(columns.start);
        let end = first + (content.data.len() / self.layout.block_size as usize) as u32;
        let both = from..end.min(columns.end);
        if !both.is_empty()
            && let Some(read) = self.read(unit, &both)
        {
            add_times(&mut sum[self.bytes(&(columns.start..from))..], factor, read);
        }
    }

    fn units(&self) -> impl Iterator<Item = Unit> + use<> {
        Unit::all(self.layout)
    }

    fn parities(&self) -> impl Iterator<Item = Unit> + use<> {
        self.units().skip(usize::from(self.layout.data))
    }

    /// The devices that the write's record says it has skipped. Beside a missing unit that it does not cover, that is one if a write
    /// before has skipped it.
    fn skipped(&self) -> Skipped {
        match self.beside() {
            None => self.part.skipped,
            Some(_) => self.passed_by().map_or_else(Skipped::default, Skipped::only),
        }
    }

    /// The missing unit's device, if a write before has skipped it in a column in which this one leaves the unit as it is. Parity's record
    /// has to tell that from one write to the next (docs/design/array.md 3.11). It is of all columns, so one of them counts for all.
    fn passed_by(&self) -> Option<DeviceId> {
        let Missed { unit, device, .. } = self.part.missing?;
        let parity = self.layout.parity(self.part.stripe);
        let covered = self.part.covered.iter().find(|(covered, _)| *covered == unit);
        let has_everything = |column| {
            let block = self.block(Unit::Parity, column);
            covered.is_some_and(|(_, columns)| columns.contains(&column))
                || block.is_some_and(|(header, _)| header.has_everything(parity, device))
        };
        (!self.part.hull.clone().all(has_everything)).then_some(device)
    }

    /// The device for whose block marked parity vouches. The new parity does so too, as the block is not written.
    fn vouched(&self, parity: Unit) -> Option<DeviceId> {
        let (_, content) = self.content(parity)?;
        let vouches = |device: &DeviceId| content.headers.iter().any(|h| h.vouches_for(*device));
        let device = self.part.missing.map(|missed| missed.device).filter(vouches)?;
        (self.beside().is_some() || self.part.skipped.has(device)).then_some(device)
    }

    /// The missing unit, if it is not written.
    fn beside(&self) -> Option<Missed> {
        self.part
            .missing
            .filter(|missed| self.part.covered.iter().all(|(covered, _)| *covered != missed.unit))
    }

    /// Marked parity may vouch for the medium of a device that comes back: the stripe is repaired first.
    fn check_marks(&self) -> Result<(), Unfit> {
        let Some(Missed { unit, device, comes_back: true }) = self.part.missing else {
            return Ok(());
        };
        let Some((first, content)) = self.content(Unit::Parity) else { return Ok(()) };
        let vouches = content.headers.iter().position(|header| header.vouches_for(device));
        vouches.map_or(Ok(()), |at| Err(self.repair(Unit::Data(unit), first + at as u32)))
    }

    /// The missing unit is to be made of the others, and parity has missed that one of these is lost: the stripe is repaired first.
    fn check_losses(&self) -> Result<(), Unfit> {
        let (Method::ReadMissing(missing) | Method::SumMissing(missing)) = self.part.method else {
            return Ok(());
        };
        for unit in (0..self.layout.data).filter(|unit| *unit != missing) {
            for column in self.lost(Unit::Data(unit)) {
                if let Some((parity, _)) = self.block(Unit::Parity, column)
                    && !parity.lost
                    && !parity.lost_data.has(unit.into())
                {
                    return Err(self.repair(Unit::Data(missing), column));
                }
            }
        }
        Ok(())
    }

    /// One block of a unit, and its record, if it was read.
    fn block(&self, unit: Unit, column: u32) -> Option<(&'a Header, Bytes)> {
        let (first, content) = self.content(unit)?;
        let header = content.headers.get(column.checked_sub(first)? as usize)?;
        let from = self.bytes(&(first..column));
        Some((header, content.data.slice(from..from + self.bytes(&(column..column + 1)))))
    }

    /// A column of a stripe with two parities. A parity that is lost yields nothing. A missing data unit counts as zeros if any parity
    /// names it. Of parities that another write has left behind, records tell, and the stripe is repaired first.
    fn known(&self, column: u32) -> Known {
        let mut blocks: code::Blocks =
            self.units().map(|unit| Some(self.block(unit, column)?.1)).collect();
        let parities =
            self.parities().filter_map(|parity| Some((parity, self.block(parity, column)?.0)));
        let mut marked = Units::default();
        for (parity, header) in parities {
            if header.lost {
                blocks[parity.index(self.layout)] = None;
            }
            marked = marked.and(header.lost_data);
        }
        let missing = (0..usize::from(self.layout.data)).filter(|unit| blocks[*unit].is_none());
        let lost: Units = missing.filter(|unit| marked.has(*unit)).collect();
        let zeros = Bytes::from(vec![0; self.layout.block_size as usize]);
        (0..blocks.len())
            .filter(|unit| lost.has(*unit))
            .for_each(|unit| blocks[unit] = Some(zeros.clone()));
        #[cfg(feature = "mutations")]
        if self.plan.mutation == Some(Mutation::TwoUnitsOfOneParity) {
            self.fill_by_one_parity(&mut blocks);
        }
        let solved = code::fill(self.layout, &mut blocks);
        Known { blocks, lost, solved }
    }

    #[cfg(feature = "mutations")]
    fn fill_by_one_parity(&self, blocks: &mut code::Blocks) {
        let (data, zeros) =
            (usize::from(self.layout.data), vec![0; self.layout.block_size as usize]);
        let unknown: Vec<usize> = (0..data).filter(|unit| blocks[*unit].is_none()).collect();
        let Some(parity) = blocks[data].clone().filter(|_| unknown.len() == 2) else { return };
        let mut block = code::parity(self.layout, Unit::Parity, blocks);
        add_times(&mut block, 1, &parity);
        blocks[unknown[0]] = Some(block.into());
        blocks[unknown[1]] = Some(zeros.into());
    }

    /// The content of a missing data unit in these columns; an error at the first that is lost.
    fn made_of_others(&self, unit: u16, columns: &Columns) -> Result<Vec<u8>, u32> {
        let mut all = Vec::with_capacity(self.bytes(columns));
        for column in columns.clone() {
            let known = self.known(column);
            let block = known.blocks[usize::from(unit)].as_ref();
            let block = block.filter(|_| known.solved && !known.lost.has(unit.into()));
            all.extend_from_slice(block.ok_or(column)?);
        }
        Ok(all)
    }

    fn lost_error(&self, unit: u16, column: u32) -> Unfit {
        let block = self.layout.logical(self.part.stripe, unit) + u64::from(column);
        Unfit::Fail(OpError::Lost { block })
    }

    /// Returns true if a data unit's old content is to be made of the others.
    fn is_made(&self, unit: u16) -> bool {
        matches!(self.part.method, Method::ReadWithout | Method::SumWithout)
            && self.content(Unit::Data(unit)).is_none()
    }

    /// The sum of all units but one, in these columns: that unit.
    fn missing(&self, missing: u16, columns: &Columns) -> Vec<u8> {
        let mut sum = vec![0; self.bytes(columns)];
        for unit in self.units().filter(|u| *u != Unit::Data(missing)) {
            self.add(&mut sum, columns, unit);
        }
        sum
    }

    /// What a data unit had in these columns, of which only some bytes are written. Fails if a block that keeps others is lost.
    /// Columns that are written as a whole need not have been read.
    fn old(&self, unit: u16, columns: &Columns, written: &Range<usize>) -> Result<Vec<u8>, Unfit> {
        let missing = self.part.method == Method::SumMissing(unit);
        // Parity may have been read in columns before these, for other units.
        let keeps = |column: &u32| {
            columns.contains(column) && {
                let start = self.bytes(&(columns.start..*column));
                let end = self.bytes(&(columns.start..column + 1));
                !(written.start <= start && end <= written.end)
            }
        };
        if self.is_made(unit) {
            let mut old = vec![0; self.bytes(columns)];
            for column in columns.clone().filter(&keeps) {
                let block = self.made_of_others(unit, &(column..column + 1));
                let block = block.map_err(|column| self.lost_error(unit, column))?;
                let from = self.bytes(&(columns.start..column));
                old[from..from + block.len()].copy_from_slice(&block);
            }
            return Ok(old);
        }
        let lost = match missing {
            true => self.lost_of_missing(unit).filter(&keeps).min(),
            false => self.lost(Unit::Data(unit)).filter(&keeps).min(),
        };
        if let Some(column) = lost {
            return Err(self.lost_error(unit, column));
        }
        if missing {
            return Ok(self.missing(unit, columns));
        }
        let mut old = vec![0; self.bytes(columns)];
        self.add(&mut old, columns, Unit::Data(unit));
        Ok(old)
    }

    /// Fails if one of the blocks could not be read.
    fn check(&self) -> Result<(), Unfit> {
        let units = self.units().filter_map(|unit| Some((unit, self.content(unit)?)));
        let flaws = units.flat_map(|(unit, (first, content))| {
            content.flaws.iter().map(move |(index, flaw)| (unit, first + index, flaw))
        });
        let mut bad = flaws.filter(|(_, _, flaw)| matches!(flaw, Flaw::Unreadable(_)));
        bad.next().map_or(Ok(()), |(unit, column, _)| Err(self.repair(unit, column)))
    }

    /// Fails if one of the blocks is older than another one's record says. All that was read is of one time.
    fn check_records(&self) -> Result<(), Unfit> {
        let parity = usize::from(self.layout.data);
        let read = self.part.accesses.clone().filter_map(|i| self.plan.accesses[i].read.as_ref());
        // One block has nothing beside it.
        if read.clone().map(|columns| columns.end - columns.start).sum::<u32>() < 2 {
            return Ok(());
        }
        let start = read.clone().map(|columns| columns.start).min().unwrap_or(0);
        let end = read.map(|columns| columns.end).max().unwrap_or(0);
        let count = end.saturating_sub(start) as usize;
        let mut headers = Headers::new(self.layout, self.part.stripe, start, count);
        for index in self.part.accesses.clone() {
            let Some(access) = self.plan.accesses.get(index) else { continue };
            let (Some(columns), Some(Some(content))) = (&access.read, self.contents.get(index))
            else {
                continue;
            };
            let unit = access.unit.index(self.layout);
            let bad = bad_blocks(content);
            for (at, header) in (0..).zip(&content.headers).filter(|(at, _)| !bad.contains_key(at))
            {
                headers.put(unit, columns.start + at, header);
            }
        }
        match headers.first_behind() {
            Some((column, unit)) if unit < parity => {
                Err(self.repair(Unit::Data(unit as u16), column))
            }
            Some((column, _)) => Err(self.repair(Unit::Parity, column)),
            None => Ok(()),
        }
    }

    /// That the stripe has to be repaired, because of a block. Parity's has no number: the first one that it stands for is
    /// named.
    fn repair(&self, unit: Unit, column: u32) -> Unfit {
        let unit = match unit {
            Unit::Data(unit) => unit,
            Unit::Parity | Unit::SecondParity => {
                self.part.covered.first().map_or(0, |(unit, _)| *unit)
            }
        };
        let stripe = self.part.stripe;
        Unfit::Repair { stripe, block: self.layout.logical(stripe, unit) + u64::from(column) }
    }
}

/// Fails if records say that a block which was read is not the newest one. That can be known only if the operation reads
/// several blocks of a stripe.
pub(super) fn fits(
    layout: &Layout,
    plan: &Plan,
    contents: &[Option<Content>],
) -> Result<(), Unfit> {
    plan.stripes.iter().try_for_each(|part| {
        let view = View { layout, plan, part, contents };
        view.check_marks()?;
        view.check_losses()?;
        view.check_records()
    })
}

/// Returns true if devices delivered all requested blocks, so that later code may rely on lengths.
pub(super) fn complete(layout: &Layout, plan: &Plan, contents: &[Option<Content>]) -> bool {
    plan.accesses.iter().zip(contents).all(|(access, content)| {
        let blocks = access.read.as_ref().map_or(0, |c| c.end - c.start);
        let wanted = blocks as usize * layout.block_size as usize;
        content.as_ref().map_or(0, |c| c.data.len()) == wanted
    })
}

/// The blocks of a read. In a mirror or a stripe without parity's device, parity is not read. A parity block that is marked
/// lost says so of the missing unit's block in its column.
pub(super) fn answer(
    layout: &Layout,
    plan: &Plan,
    contents: &[Option<Content>],
) -> Result<Bytes, Unfit> {
    let mut pieces = Vec::new();
    for part in &plan.stripes {
        let view = View { layout, plan, part, contents };
        view.check()?;
        for (unit, columns) in &part.covered {
            if view.is_made(*unit) {
                let block = view.made_of_others(*unit, columns);
                pieces.push(block.map_err(|column| view.lost_error(*unit, column))?.into());
                continue;
            }
            let missing = part.method == Method::ReadMissing(*unit);
            let first = |lost: &mut dyn Iterator<Item = u32>| {
                lost.filter(|column| columns.contains(column)).min()
            };
            let lost = match missing {
                true => first(&mut view.lost_of_missing(*unit)),
                false => first(&mut view.lost(Unit::Data(*unit))),
            };
            if let Some(column) = lost {
                return Err(view.lost_error(*unit, column));
            }
            if missing {
                pieces.push(Bytes::from(view.missing(*unit, columns)));
            } else if let Some((first, content)) = view.content(Unit::Data(*unit)) {
                let from = view.bytes(&(first..columns.start));
                pieces.push(content.data.slice(from..from + view.bytes(columns)));
            }
        }
    }
    if pieces.len() == 1 {
        return Ok(pieces.swap_remove(0));
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces {
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// The new content of a write's blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct New {
    /// The blocks.
    pub span: Span,
    /// Bytes of the first block that stay.
    before: usize,
    /// Bytes of the last block that stay.
    after: usize,
    data: Bytes,
}

impl New {
    /// That of a write; `None` if the work is another.
    ///
    /// # Errors
    /// Its data does not fit its blocks, or there is none.
    pub fn of(layout: &Layout, work: &Work) -> Option<Result<New, OpError>> {
        let block = u64::from(layout.block_size);
        match work {
            Work::Write { span, data } => {
                let fits = span.count.checked_mul(block) == Some(data.len() as u64);
                let new = New { span: *span, before: 0, after: 0, data: data.clone() };
                Some(fits.then_some(new).ok_or(OpError::Range))
            }
            Work::Patch { start, data } => {
                Some(New::patch(*start, data, block).ok_or(OpError::Range))
            }
            _ => None,
        }
    }

    fn patch(start: u64, data: &Bytes, block: u64) -> Option<New> {
        let end = start.checked_add(data.len() as u64).filter(|_| !data.is_empty())?;
        let (first, behind) = (start / block, end.div_ceil(block));
        let before = (start % block) as usize;
        let after = (behind.checked_mul(block)? - end) as usize;
        let span = Span { start: first, count: behind - first };
        Some(New { span, before, after, data: data.clone() })
    }

    /// The first block keeps some of its bytes.
    pub fn partial_start(&self) -> bool {
        self.before > 0
    }

    /// The last block keeps some of its bytes.
    pub fn partial_end(&self) -> bool {
        self.after > 0
    }

    /// The blocks, with these bytes where they keep some; `None` without them.
    #[cfg(feature = "mutations")]
    pub fn over(&self, old: Option<Vec<Bytes>>) -> Option<Bytes> {
        if self.before + self.after == 0 {
            return Some(self.data.clone());
        }
        let mut merged = old?.concat();
        merged[self.before..self.before + self.data.len()].copy_from_slice(&self.data);
        Some(merged.into())
    }

    /// The content of some of the blocks, from this byte of the first one on. Bytes that stay come from `old`, which is not asked
    /// if there are none.
    fn piece(
        &self,
        from: usize,
        length: usize,
        old: impl FnOnce(Range<usize>) -> Result<Vec<u8>, Unfit>,
    ) -> Result<Bytes, Unfit> {
        let end = self.before + self.data.len();
        let (first, last) = (from.max(self.before), end.min(from + length));
        let new = self.data.slice(first - self.before..last - self.before);
        if new.len() == length {
            return Ok(new);
        }
        let place = first - from..last - from;
        let mut merged = old(place.clone())?;
        merged[place].copy_from_slice(&new);
        Ok(merged.into())
    }
}

/// The blocks that each access of a write writes.
pub(super) fn writes(
    layout: &Layout,
    plan: &Plan,
    contents: &[Option<Content>],
    stamp: Stamp,
    content: &New,
) -> Result<Vec<Option<Blocks>>, Unfit> {
    let mut writes = vec![None; plan.accesses.len()];
    let block = layout.block_size as usize;
    let span = content.span;
    let mut offset = 0;
    for part in &plan.stripes {
        let view = View { layout, plan, part, contents };
        view.check()?;
        let header = Header {
            stamp,
            first: span.start,
            last: span.end() - 1,
            skipped: view.skipped(),
            lost: false,
            lost_data: Units::default(),
        };
        let mut new = Vec::with_capacity(part.covered.len());
        for (unit, columns) in &part.covered {
            let length = view.bytes(columns);
            let old = |written| view.old(*unit, columns, &written);
            new.push((*unit, columns, content.piece(offset, length, old)?));
            offset += length;
        }
        for index in part.accesses.clone() {
            let access = &plan.accesses[index];
            let Some(columns) = &access.write else { continue };
            let mut header = header;
            let (data, marks) = match access.unit {
                Unit::Data(unit) => {
                    let piece = new.iter().find(|(u, _, _)| *u == unit);
                    (piece.map(|(_, _, piece)| piece.clone()).unwrap_or_default(), Vec::new())
                }
                Unit::Parity | Unit::SecondParity if part.method == Method::SumWithout => {
                    parity_without(&view, access.unit, &new)
                }
                Unit::Parity | Unit::SecondParity => {
                    let device = view.vouched(access.unit).or_else(|| view.passed_by());
                    header.skipped = device.map_or(header.skipped, Skipped::only);
                    (parity(&view, access.unit, &new).into(), marks_of_parity(&view, access.unit))
                }
            };
            debug_assert_eq!(data.len(), (columns.end - columns.start) as usize * block);
            let extent = plan::extent(layout, part.stripe, columns);
            writes[index] = Some(Blocks { extent, data, header, marks });
        }
    }
    Ok(writes)
}

/// A column of a stripe with two parities, as far as the read blocks tell.
struct Known {
    /// Its units' blocks. If it is solved, there are all.
    blocks: code::Blocks,
    /// Missing data units that are marked as lost.
    lost: Units,
    solved: bool,
}

/// New parity over the hull of the written columns, beside missing data units the old content of which is needed. Where nobody
/// knows that, and it is not written, parity is lost.
fn parity_without(
    view: &View<'_>,
    parity: Unit,
    new: &[(u16, &Columns, Bytes)],
) -> (Bytes, Vec<Mark>) {
    let (mut all, mut marks) = (Vec::new(), Vec::new());
    for column in view.part.hull.clone() {
        let Known { mut blocks, lost: mut lost_data, .. } = view.known(column);
        let lost_there = (0..view.layout.data)
            .filter(|unit| view.lost(Unit::Data(*unit)).any(|lost| lost == column));
        lost_data = lost_data.and(lost_there.map(usize::from).collect());
        for (unit, columns, data) in new.iter().filter(|(_, c, _)| c.contains(&column)) {
            let from = view.bytes(&(columns.start..column));
            let block = data.slice(from..from + view.bytes(&(column..column + 1)));
            blocks[usize::from(*unit)] = Some(block);
            lost_data = lost_data.without((*unit).into());
        }
        all.extend(code::parity(view.layout, parity, &blocks));
        let lost = blocks.iter().take(view.layout.data.into()).any(Option::is_none);
        if lost || !lost_data.is_empty() {
            let index = column - view.part.hull.start;
            marks.push(Mark { index, lost, lost_data, content: None });
        }
    }
    (all.into(), marks)
}

/// A new parity over the hull of the written columns.
fn parity(view: &View<'_>, parity: Unit, new: &[(u16, &Columns, Bytes)]) -> Vec<u8> {
    let hull = &view.part.hull;
    let at = |columns: &Columns| {
        let from = view.bytes(&(hull.start..columns.start));
        from..from + view.bytes(columns)
    };
    let mut sum = vec![0; view.bytes(hull)];
    if view.part.method == Method::Delta {
        view.add(&mut sum, hull, parity);
        #[cfg(feature = "mutations")]
        if parity == Unit::SecondParity && view.plan.mutation == Some(Mutation::SecondParityStays) {
            return sum;
        }
        for (unit, columns, data) in new {
            let factor = parity.factor(*unit);
            #[cfg(feature = "mutations")]
            let factor = match view.plan.mutation {
                Some(Mutation::SecondParityOfAnotherUnit) => parity.factor(*unit + 1),
                _ => factor,
            };
            view.add_times(&mut sum[at(columns)], columns, Unit::Data(*unit), factor);
            add_times(&mut sum[at(columns)], factor, data);
        }
        return sum;
    }
    for unit in 0..view.layout.data {
        let mut content = vec![0; view.bytes(hull)];
        if view.part.method == Method::SumMissing(unit) {
            content = view.missing(unit, hull);
        } else {
            view.add(&mut content, hull, Unit::Data(unit));
        }
        if let Some((_, columns, data)) = new.iter().find(|(u, _, _)| *u == unit) {
            content[at(columns)].copy_from_slice(data);
        }
        add_times(&mut sum, parity.factor(unit), &content);
    }
    sum
}

/// The marks of a new parity.
fn marks_of_parity(view: &View<'_>, parity: Unit) -> Vec<Mark> {
    let mut all: BTreeMap<u32, Mark> = BTreeMap::new();
    let mut of = |column: u32, itself: bool, data: Units| {
        let index = column - view.part.hull.start;
        let mark = all.entry(column).or_insert(Mark { index, ..Mark::default() });
        (mark.lost, mark.lost_data) = (mark.lost || itself, mark.lost_data.and(data));
    };
    still_lost(view, parity).for_each(|column| of(column, true, Units::default()));
    lost_data(view, parity).for_each(|(column, units)| of(column, false, units));
    let vouched = view.vouched(parity);
    for (column, mark) in &mut all {
        let old = view.block(parity, *column).map(|(header, _)| header);
        let vouches = |old: &&Header| vouched.is_some_and(|device| old.vouches_for(device));
        mark.content = old.filter(vouches).filter(|_| mark.lost).map(Header::content);
    }
    all.into_values().collect()
}

/// The columns of lost data units that parity names from now on, and which: those that it has named and those that were read,
/// without those that are written.
fn lost_data<'a>(view: &View<'a>, parity: Unit) -> impl Iterator<Item = (u32, Units)> + use<'a> {
    let mut all: BTreeMap<u32, Units> = view.marks(parity).collect();
    for unit in 0..view.layout.data {
        for column in view.lost(Unit::Data(unit)).filter(|column| view.part.hull.contains(column)) {
            let lost = all.entry(column).or_default();
            *lost = lost.with(unit.into());
        }
    }
    for (unit, columns) in &view.part.covered {
        for (_, lost) in all.range_mut(columns.clone()) {
            *lost = lost.without(usize::from(*unit));
        }
    }
    all.into_iter().filter(|(_, lost)| !lost.is_empty())
}

/// The columns whose parity stays lost: those in which a lost block of the missing unit is not written.
fn still_lost<'a>(view: &View<'a>, parity: Unit) -> impl Iterator<Item = u32> + use<'a> {
    let (method, covered) = (view.part.method, &view.part.covered);
    let covers = move |column: &u32| match method {
        Method::SumMissing(unit) => {
            covered.iter().any(|(u, columns)| *u == unit && columns.contains(column))
        }
        _ => false,
    };
    view.lost(parity).filter(move |column| !covers(column))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redundancy;
    use crate::message::Doubt;
    use crate::plan::Access;

    /// An operation covers more of other units. So it reads parity also in columns before those of the missing one.
    #[test]
    fn lost_blocks_beside_those_of_a_missing_unit_do_not_concern_it() {
        let layout = Layout {
            redundancy: Redundancy::Raid5,
            data: 2,
            groups: 1,
            unit: 4,
            block_size: 2,
            stripes: 1,
            added: Default::default(),
        };
        let whole = Some(0..4);
        let access = |device, unit| {
            let (device, stripe, old) = (DeviceId(device), 0, None);
            Access { device, stripe, unit, read: whole.clone(), write: whole.clone(), old }
        };
        let accesses = vec![access(0, Unit::Data(1)), access(1, Unit::Parity)];
        let part = StripePlan {
            stripe: 0,
            method: Method::SumMissing(0),
            accesses: 0..2,
            covered: vec![(0, 2..4)],
            hull: 2..4,
            skipped: Skipped::default(),
            missing: None,
        };
        let plan = Plan::new(vec![part.clone()], accesses);
        let lost = Units::default().with(0);
        let content = |lost_data: [Units; 4], flaws: &[(u32, Flaw)]| {
            let headers = lost_data.map(|lost_data| Header { lost_data, ..Header::default() });
            Some(Content {
                data: vec![5; 8].into(),
                flaws: flaws.to_vec(),
                headers: headers.to_vec(),
                doubt: Doubt::None,
                durable_to: 0,
                left: Box::default(),
            })
        };
        let none = Units::default();
        let old = |parity| {
            let contents = [content([none; 4], &[]), parity];
            let view = View { layout: &layout, plan: &plan, part: &part, contents: &contents };
            view.old(0, &(2..4), &(1..4))
        };
        assert!(
            matches!(old(content([lost, lost, none, none], &[])), Ok(bytes) if bytes == [0; 4])
        );
        assert!(old(content([none; 4], &[(1, Flaw::Lost)])).is_ok());
        let Err(Unfit::Fail(why)) = old(content([none, none, lost, lost], &[])) else { panic!() };
        // All of the other column is written.
        assert_eq!(why, OpError::Lost { block: 2 });
    }
}
