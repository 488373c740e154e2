//! Merges the histories of several nodes, or of several processes, into one.

use std::io::BufRead;

use crate::event::{Event, Kind};
use crate::history::{ReadError, Reader, Sink, WriteError, Writer};

/// Why histories cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// One of them cannot be read.
    #[error("history {number}: {error}")]
    Read {
        /// Which, counted from 1.
        number: usize,
        /// The reason.
        error: ReadError,
    },
    /// The merged one cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

struct Part<R> {
    reader: Reader<R>,
    next: Option<Event>,
    begin: Option<Vec<String>>,
    ended: bool,
}

/// Merges histories whose `t` are of one clock: by `t`, and at the same `t` in the order of the
/// parts. The result has a `begin` if all parts have one. It declares the kinds that all of them
/// declare. The result has an `end` if all parts end with one. Returns the number of events
/// written.
///
/// # Errors
/// A part cannot be read (`output` has the events before the error), or `output` cannot be written.
pub fn merge<R: BufRead, W: Sink>(
    parts: impl IntoIterator<Item = Reader<R>>,
    output: &mut Writer<W>,
) -> Result<u64, MergeError> {
    let mut parts: Vec<Part<R>> = parts
        .into_iter()
        .map(|reader| Part { reader, next: None, begin: None, ended: false })
        .collect();
    for (i, part) in parts.iter_mut().enumerate() {
        part.advance(i)?;
    }
    let mut written = 0;
    let mut last = parts.iter().filter_map(|p| p.next.as_ref()).map(|e| e.t).min().unwrap_or(0);
    if let Some(writes) = declared_by_all(&parts) {
        output.write(&Event { writes: Some(writes), ..Event::anywhere(last, Kind::Begin) })?;
        written += 1;
    }
    while let Some((i, event)) = take_first(&mut parts) {
        output.write(&event)?;
        written += 1;
        last = event.t;
        parts[i].advance(i)?;
    }
    if !parts.is_empty() && parts.iter().all(|part| part.ended) {
        output.write(&Event::anywhere(last, Kind::End))?;
        written += 1;
    }
    output.flush()?;
    Ok(written)
}

fn declared_by_all<R>(parts: &[Part<R>]) -> Option<Vec<String>> {
    let mut all = parts.iter().map(|part| part.begin.clone());
    let first = all.next()??;
    all.try_fold(first, |mut common, writes| {
        let writes = writes?;
        common.retain(|name| writes.contains(name));
        Some(common)
    })
}

fn take_first<R>(parts: &mut [Part<R>]) -> Option<(usize, Event)> {
    let times = parts.iter().enumerate().filter_map(|(i, p)| Some((p.next.as_ref()?.t, i)));
    let (_, i) = times.min()?;
    Some((i, parts[i].next.take()?))
}

impl<R: BufRead> Part<R> {
    /// Reads on to the next event that is neither the part's beginning nor its end.
    fn advance(&mut self, i: usize) -> Result<(), MergeError> {
        loop {
            let next = self.reader.read();
            let next = next.map_err(|error| MergeError::Read { number: i + 1, error })?;
            match next {
                Some(event) if event.kind == Kind::Begin => {
                    self.begin = Some(event.writes.unwrap_or_default());
                }
                Some(event) if event.kind == Kind::End => self.ended = true,
                next => {
                    // Events after an `end` show that it was not the end.
                    self.ended &= next.is_none();
                    self.next = next;
                    return Ok(());
                }
            }
        }
    }
}
