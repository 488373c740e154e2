//! A request on its way through the array.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use lockify_array::{HostAnswer, OpError, Work};

use super::budget::{Budget, Permit};
use super::{Backend, Command, Errno, Export, FUA, MAX_REQUEST, Request};

/// The pieces of a request: whole stripes, as far as possible.
pub(crate) struct Pieces {
    offset: u64,
    end: u64,
    piece: u64,
}

impl Pieces {
    /// Of a request that is within the export.
    pub fn of(request: &Request, export: &Export) -> Pieces {
        let end = request.offset.saturating_add(request.length.into());
        Pieces { offset: request.offset, end, piece: export.piece().max(1) }
    }
}

impl Iterator for Pieces {
    /// Offset and length in bytes.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let next = (self.offset / self.piece + 1).saturating_mul(self.piece).min(self.end);
        let length = next.checked_sub(self.offset).filter(|length| *length > 0)?;
        let piece = (self.offset, length);
        self.offset = next;
        Some(piece)
    }
}

/// The result of a request.
pub(crate) enum Outcome {
    /// The data of a read, in order.
    Data(Vec<Bytes>),
    /// The bytes of a request for block status have a place on devices.
    Allocated,
    /// Anything else is done.
    Done,
    /// It was not tried.
    Refused(Errno, &'static str),
    /// It failed; parts of a write may have been done.
    Failed(OpError),
}

/// A finished request, and the resources that it holds until it is answered.
pub(crate) struct Finished {
    pub request: Request,
    pub outcome: Outcome,
    pub permit: Permit,
    /// For the steps that have to follow before the answer.
    pub to: Sink,
}

/// Takes finished requests, on any thread, and does not wait.
pub(crate) type Sink = Arc<dyn Fn(Finished) + Send + Sync>;

impl Finished {
    /// Has a write made durable that asks for it; `None` if that has begun, and the request comes to its sink once more.
    pub fn made_durable(mut self, export: &Export, backend: &dyn Backend) -> Option<Finished> {
        let asks =
            export.volatile && self.request.command.writes() && self.request.flags & FUA != 0;
        if !asks || !matches!(self.outcome, Outcome::Done) {
            return Some(self);
        }
        self.request.flags &= !FUA;
        let done = move |result: Result<_, _>| {
            let to = Arc::clone(&self.to);
            let outcome = result.map_or_else(Outcome::Failed, |_| Outcome::Done);
            to(Finished { outcome, ..self });
        };
        backend.submit(Work::Flush, Box::new(done));
        None
    }
}

/// A request that is under way, shared by its pieces.
struct Transfer {
    state: Mutex<State>,
}

struct State {
    left: usize,
    data: Vec<Bytes>,
    error: Option<OpError>,
    /// Until the last piece is done.
    end: Option<(Request, Permit, Sink)>,
}

impl Transfer {
    fn piece_done(&self, number: usize, result: Result<HostAnswer, OpError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.left = state.left.saturating_sub(1);
        match result {
            Ok(HostAnswer::Read { data }) => {
                if let Some(place) = state.data.get_mut(number) {
                    *place = data;
                }
            }
            Ok(_) => {}
            Err(error) => drop(state.error.get_or_insert(error)),
        }
        if state.left > 0 {
            return;
        }
        let Some((request, permit, to)) = state.end.take() else { return };
        let data = std::mem::take(&mut state.data);
        let outcome = match state.error.take() {
            Some(error) => Outcome::Failed(error),
            None if request.command != Command::Read => Outcome::Done,
            None if data.iter().map(Bytes::len).sum::<usize>() == request.length as usize => {
                Outcome::Data(data)
            }
            // A reply of another length would be taken for the next one.
            None => Outcome::Failed(OpError::State("a read gave another number of bytes".into())),
        };
        let again = Arc::clone(&to);
        to(Finished { request, outcome, permit, to: again });
    }
}

/// How many bytes of data a request has, at most. A read has those of all blocks that it touches.
pub(crate) fn bytes(request: &Request, export: &Export) -> usize {
    match request.command {
        Command::Write => request.length as usize,
        Command::Read => {
            let blocks = export.blocks(request.offset, request.length.into()).count;
            usize::try_from(blocks).map_or(usize::MAX, |b| b * export.block_size as usize)
        }
        _ => 0,
    }
}

/// Writes bytes of the array: as whole blocks, if they are such.
fn write(export: &Export, offset: u64, data: Bytes) -> Work {
    let block = u64::from(export.block_size);
    let length = data.len() as u64;
    if offset.is_multiple_of(block) && length.is_multiple_of(block) {
        return Work::Write { span: export.blocks(offset, length), data };
    }
    Work::Patch { start: offset, data }
}

/// The wanted bytes of the blocks that a piece has read, from this one of the first block on.
fn cut(answer: HostAnswer, from: usize, length: usize) -> HostAnswer {
    match answer {
        // Fewer bytes than that are noticed when all pieces are there.
        HostAnswer::Read { data } if data.len() >= from + length => {
            HostAnswer::Read { data: data.slice(from..from + length) }
        }
        other => other,
    }
}

/// Has a read, write, zeroing or flush done that was checked; what comes of it goes to `to`. Waits while the array has too
/// much to do.
///
/// Zeroes may be of gibibytes. A client that has lost patience asks for them again on another connection. So pieces that are
/// not begun yet are not done for a client that has `gone`: each attempt would add to the work, and none would end.
pub(crate) fn start(
    request: Request,
    payload: Bytes,
    (export, backend): (&Export, &dyn Backend),
    (permit, budget): (Permit, &Arc<Budget>),
    (to, gone): (&Sink, &dyn Fn() -> bool),
) {
    let pieces = Pieces::of(&request, export);
    let count =
        if request.command == Command::Flush { 1 } else { Pieces::of(&request, export).count() };
    let state = State {
        left: count,
        data: vec![Bytes::new(); if request.command == Command::Read { count } else { 0 }],
        error: None,
        end: Some((request, permit, Arc::clone(to))),
    };
    let transfer = Arc::new(Transfer { state: Mutex::new(state) });
    if request.command == Command::Flush {
        backend.submit(Work::Flush, Box::new(move |result| transfer.piece_done(0, result)));
        return;
    }
    let zeroes = match request.command {
        Command::WriteZeroes => Bytes::from(vec![
            0;
            export.piece().min(request.length.into()).min(MAX_REQUEST.into())
                as usize
        ]),
        _ => Bytes::new(),
    };
    for (number, (offset, length)) in pieces.enumerate() {
        let span = export.blocks(offset, length);
        // Pieces are at most as long as the longest request, or as a stripe of zeroes.
        let (from, length) = ((offset - request.offset) as usize, length as usize);
        let transfer = Arc::clone(&transfer);
        // Some requests have no length that bounds their pieces, so these are counted.
        let counted = match request.command {
            Command::Cache => Some(budget.take(length)),
            Command::WriteZeroes => Some(budget.take(0)),
            _ => None,
        };
        if counted.is_some() && number > 0 && gone() {
            let why = "its client hung up before all of the request was begun";
            transfer.piece_done(number, Err(OpError::State(why.into())));
            continue;
        }
        let work = match request.command {
            // For CACHE nothing is kept, but a stripe that needs a repair has had it before the client reads.
            Command::Read | Command::Cache => Work::Read { span },
            Command::WriteZeroes => write(export, offset, zeroes.slice(..length)),
            _ => write(export, offset, payload.slice(from..from + length)),
        };
        let skipped = (offset % u64::from(export.block_size)) as usize;
        let done = move |result: Result<HostAnswer, OpError>| {
            drop(counted);
            transfer.piece_done(number, result.map(|answer| cut(answer, skipped, length)));
        };
        backend.submit(work, Box::new(done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::testing::export;

    fn pieces(offset: u64, length: u32, export: &Export) -> Vec<(u64, u64)> {
        let request = Request { flags: 0, command: Command::Read, cookie: 1, offset, length };
        Pieces::of(&request, export).collect()
    }

    #[test]
    fn a_read_takes_the_room_of_all_blocks_that_it_touches() {
        let room = |command, offset, length| {
            let request = Request { flags: 0, command, cookie: 1, offset, length };
            bytes(&request, &export(64 << 20))
        };
        assert_eq!(room(Command::Read, 4096, 4096), 4096);
        assert_eq!(room(Command::Read, 4095, 2), 8192);
        assert_eq!(room(Command::Write, 4095, 2), 2);
        assert_eq!(room(Command::Flush, 0, 0), 0);
    }

    #[test]
    fn long_requests_are_split_at_stripes() {
        const MIB: u64 = 1 << 20;
        let small = export(64 * MIB);
        assert_eq!(pieces(4096, 8192, &small), [(4096, 8192)]);
        let long = pieces(MIB - 4096, 2 << 20, &small);
        assert_eq!(long, [(MIB - 4096, 4096), (MIB, MIB), (2 * MIB, MIB - 4096)]);
        let odd = Export { stripe: 3 * 65536, ..small.clone() };
        assert_eq!(pieces(0, 1 << 20, &odd), [(0, 15 * 65536), (15 * 65536, 65536)]);
        let long_stripe = Export { stripe: 4 * MIB, ..small };
        assert_eq!(pieces(MIB, 4 << 20, &long_stripe), [(MIB, 3 * MIB), (4 * MIB, MIB)]);
        // Only its ends can be within a block.
        let bytes = pieces(MIB - 1, (1 << 20) + 2, &export(64 * MIB));
        assert_eq!(bytes, [(MIB - 1, 1), (MIB, MIB), (2 * MIB, 1)]);
    }
}
