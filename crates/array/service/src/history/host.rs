//! A host's requests and answers.

use std::collections::BTreeMap;
use std::path::Path;

use lockify_array::{HostAnswer, Layout, Life, OpError, OpId, Span, Stamp, Ticket, Work};
use lockify_history::array::{self, Kind};

use super::{History, HistoryError, SECTORS, by, tag};
use crate::{ArrayFile, BLOCK};

/// Bytes of a sector in histories: the least that most clients write.
const SECTOR: usize = (BLOCK / SECTORS) as usize;

/// The blocks that have these bytes; none if there are no such bytes.
fn blocks(start: u64, length: u64) -> Span {
    let block = u64::from(BLOCK);
    let end = start.checked_add(length).map_or(0, |end| end.div_ceil(block));
    Span { start: start / block, count: end.saturating_sub(start / block) }
}

/// A write of these bytes, which begin with this one of the array.
fn written(by: array::Life, op: u64, start: u64, data: &[u8]) -> Kind {
    let sector = SECTOR as u64;
    let first = data.len().min((start.next_multiple_of(sector) - start) as usize);
    let (edge, rest) = data.split_at(first);
    let pieces = Some(edge).filter(|edge| !edge.is_empty()).into_iter().chain(rest.chunks(SECTOR));
    let pieces: Vec<&[u8]> = pieces.collect();
    let partial = (0..).zip(&pieces).filter(|(_, piece)| piece.len() < SECTOR);
    let partial = partial.map(|(index, _)| index).collect();
    let tags = pieces.iter().map(|piece| tag(piece)).collect();
    Kind::Write { by, op, start: start / sector, tags, partial }
}

/// A host's history. None of its methods does anything when it has ended.
pub(crate) struct HostHistory {
    history: History,
    life: Life,
    /// Requests, each with its newest recorded try: unanswered ones, and failed writes, which may go on.
    open: BTreeMap<Ticket, Option<u64>>,
}

impl HostHistory {
    pub fn create(
        path: &Path,
        file: &ArrayFile,
        life: Life,
        log: fn(&str),
    ) -> Result<HostHistory, HistoryError> {
        let history = History::create(path, file, log)?;
        Ok(HostHistory { history, life, open: BTreeMap::new() })
    }

    /// The array has this layout by a newer state.
    pub fn grown(&mut self, layout: &Layout) {
        self.history.grown(layout);
    }

    /// It is asked for a piece of work.
    pub fn asked(&mut self, ticket: Ticket, work: &Work) {
        let (by, op) = (by(self.life), ticket.0);
        let fits = |span: &Span| span.count > 0 && span.end() <= self.history.layout.blocks();
        let (block, sectors) = (u64::from(BLOCK), u64::from(SECTORS));
        let kind = match work {
            Work::Read { span } if fits(span) => {
                Kind::Read { by, op, start: span.start * sectors, count: span.count * sectors }
            }
            Work::Write { span, data } if fits(span) => written(by, op, span.start * block, data),
            Work::Patch { start, data } if fits(&blocks(*start, data.len() as u64)) => {
                written(by, op, *start, data)
            }
            // They touch no block.
            Work::Read { .. } | Work::Write { .. } | Work::Patch { .. } => return,
            Work::Flush => Kind::Flush { by, op },
            Work::Scrub { .. }
            | Work::AcceptLoss { .. }
            | Work::Rebuild { .. }
            | Work::Survey { .. }
            | Work::Fence { .. }
            | Work::Change { .. } => Kind::Repair { by, op, note: Some(format!("{work:?}")) },
        };
        self.open.insert(ticket, None);
        self.history.note(kind);
    }

    /// It begins with a piece of work, or begins anew.
    pub fn tried(&mut self, ticket: Ticket, op: OpId, stamp: Stamp) {
        let Some(newest) = self.open.get_mut(&ticket) else { return };
        if newest.replace(op.seq) != Some(op.seq) {
            let stamp = Some((stamp.time, stamp.host));
            self.history.note(Kind::Try { by: by(op.life), op: ticket.0, seq: op.seq, stamp });
        }
    }

    /// It answers.
    pub fn answered(
        &mut self,
        ticket: Ticket,
        op: Option<(OpId, Stamp)>,
        result: &Result<HostAnswer, OpError>,
    ) {
        if let Some((op, stamp)) = op {
            self.tried(ticket, op, stamp);
        }
        // A write goes on after an error if a part of it may be written: its later tries belong to it.
        let goes_on = matches!(result, Err(OpError::Unreachable(_)));
        if !goes_on && self.open.remove(&ticket).is_none() {
            return;
        }
        let (tags, error) = match result {
            Ok(HostAnswer::Read { data }) => (data.chunks(SECTOR).map(tag).collect(), None),
            Ok(_) => (Vec::new(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        self.history.note(Kind::Done { by: by(self.life), op: ticket.0, tags, error });
    }

    /// Before anything is sent.
    pub fn flush(&mut self) {
        self.history.flush();
    }

    /// The host ends in order.
    pub fn end(mut self) {
        self.history.note(Kind::End {});
        self.history.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: u64, data: &[u8]) -> (u64, Vec<array::Tag>, Vec<u64>) {
        match written(array::Life::default(), 1, start, data) {
            Kind::Write { start, tags, partial, .. } => (start, tags, partial),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn sectors_at_the_ends_may_be_written_in_part() {
        let data: Vec<u8> = (0..1024_u32).map(|i| (i % 250) as u8 + 1).collect();
        let (first, second) = (tag(&data[..512]), tag(&data[512..]));
        assert_eq!(of(4096, &data), (8, vec![first, second], vec![]));
        assert_eq!(of(512, &data[..512]), (1, vec![first], vec![]));
        // From the middle of a sector to that of another.
        let (start, tags, partial) = of(4096 + 500, &data[..525]);
        assert_eq!((start, tags[1], partial), (8, tag(&data[12..524]), vec![0, 2]));
        // Within one.
        assert_eq!(of(700, &data[..3]).2, [0]);
        assert_eq!(of(1024, &data[..3]).2, [0]);
        assert_eq!(blocks(4095, 2), Span { start: 0, count: 2 });
        assert_eq!(blocks(u64::MAX, 2).count, 0);
    }
}
