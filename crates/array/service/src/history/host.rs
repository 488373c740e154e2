//! A host's requests and answers.

use std::collections::BTreeMap;
use std::path::Path;

use lockify_array::{HostAnswer, Layout, Life, OpError, OpId, Span, Stamp, Ticket, Work};
use lockify_history::array::Kind;

use super::{History, HistoryError, by, tag};
use crate::{ArrayFile, BLOCK};

/// A host's history. None of its methods does anything when it has ended.
pub(crate) struct HostHistory {
    history: History,
    layout: Layout,
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
        Ok(HostHistory { history, layout: file.layout, life, open: BTreeMap::new() })
    }

    /// It is asked for a piece of work.
    pub fn asked(&mut self, ticket: Ticket, work: &Work) {
        let (by, op) = (by(self.life), ticket.0);
        let fits = |span: &Span| span.count > 0 && span.end() <= self.layout.blocks();
        let kind = match work {
            Work::Read { span } if fits(span) => {
                Kind::Read { by, op, start: span.start, count: span.count }
            }
            Work::Write { span, data } if fits(span) => {
                let tags = data.chunks(BLOCK as usize).map(tag).collect();
                Kind::Write { by, op, start: span.start, tags }
            }
            // They touch no block.
            Work::Read { .. } | Work::Write { .. } => return,
            Work::Flush => Kind::Flush { by, op },
            Work::Scrub { .. }
            | Work::AcceptLoss { .. }
            | Work::Rebuild { .. }
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
            Ok(HostAnswer::Read { data }) => (data.chunks(BLOCK as usize).map(tag).collect(), None),
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
