//! Reading and writing histories: one JSON object per line. The type of a line is [`Line`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::event::{Event, Kind, MissingField};

/// A type of lines in a history: events of locks, or of an array.
pub trait Line: Serialize + DeserializeOwned {
    /// When it happened, in nanoseconds.
    fn t(&self) -> u64;

    /// Checks that it has all fields that its kind needs.
    ///
    /// # Errors
    /// The first field that is missing.
    fn validate(&self) -> Result<(), MissingField>;
}

impl Line for Event {
    fn t(&self) -> u64 {
        self.t
    }

    fn validate(&self) -> Result<(), MissingField> {
        Event::validate(self)
    }
}

/// The longest line that the reader accepts, in bytes. A `view` of some ten thousand members fits.
pub const LONGEST_LINE: usize = 1 << 20;

/// Why a history cannot be read. `line` counts from 1.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open the history: {0}")]
    Open(#[source] io::Error),
    /// Reading failed.
    #[error("line {line}: cannot read on: {source}")]
    Io {
        /// The line, counted from 1.
        line: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The line is too long to be an event.
    #[error(
        "line {line}: longer than {LONGEST_LINE} bytes: this is no history of one JSON object per line"
    )]
    TooLong {
        /// The line, counted from 1.
        line: u64,
    },
    /// The line is not UTF-8.
    #[error("line {line}, byte {byte}: not UTF-8 (resource names escape such bytes as %XX)")]
    NotUtf8 {
        /// The line, counted from 1.
        line: u64,
        /// The first bad byte, counted from 1.
        byte: usize,
    },
    /// The last line breaks off.
    #[error(
        "line {line}: the last line breaks off: its writer was stopped or its disk was full; \
         remove this line to check the {} before it", lines(.line - 1)
    )]
    Truncated {
        /// The line, counted from 1.
        line: u64,
    },
    /// The line is no event.
    #[error("line {line}, byte {byte}: {reason}")]
    NoEvent {
        /// The line, counted from 1.
        line: u64,
        /// The byte at which it was noticed, counted from 1.
        byte: usize,
        /// The error in it.
        reason: String,
    },
    /// The event lacks a field.
    #[error("line {line}: {missing}")]
    Missing {
        /// The line, counted from 1.
        line: u64,
        /// The missing field.
        missing: MissingField,
    },
    /// Time went backwards.
    #[error(
        "line {line}: its time {t} is before that of the line before, {before}: sort the history by `t`"
    )]
    Unsorted {
        /// The line, counted from 1.
        line: u64,
        /// Its time.
        t: u64,
        /// The time of the line before.
        before: u64,
    },
}

fn lines(n: u64) -> String {
    if n == 1 { "line".to_owned() } else { format!("{n} lines") }
}

impl ReadError {
    /// The line that cannot be read, if it is a line that is at fault.
    pub fn line(&self) -> Option<u64> {
        match self {
            ReadError::Open(_) => None,
            ReadError::Io { line, .. }
            | ReadError::TooLong { line }
            | ReadError::NotUtf8 { line, .. }
            | ReadError::Truncated { line }
            | ReadError::NoEvent { line, .. }
            | ReadError::Missing { line, .. }
            | ReadError::Unsorted { line, .. } => Some(*line),
        }
    }
}

/// Reads events one by one; holds one line in memory. Empty lines are skipped. Ends after the
/// first error.
#[derive(Debug)]
pub struct LineReader<R, L> {
    input: R,
    line: u64,
    last_t: u64,
    buffer: Vec<u8>,
    broken: bool,
    of: PhantomData<fn() -> L>,
}

/// Reads a history of locks.
pub type Reader<R> = LineReader<R, Event>;

impl<L: Line> LineReader<BufReader<File>, L> {
    /// Opens a history.
    ///
    /// # Errors
    /// [`ReadError::Open`] if the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        Ok(Self::new(BufReader::new(File::open(path).map_err(ReadError::Open)?)))
    }
}

impl<R: BufRead, L: Line> LineReader<R, L> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        LineReader { input, line: 0, last_t: 0, buffer: Vec::new(), broken: false, of: PhantomData }
    }

    /// The number of the line read last, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// The line that cannot be read, and why.
    pub fn read(&mut self) -> Result<Option<L>, ReadError> {
        while self.read_line()? {
            if self.buffer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return self.parse().map(Some);
        }
        Ok(None)
    }

    fn read_line(&mut self) -> Result<bool, ReadError> {
        self.buffer.clear();
        self.line += 1;
        let line = self.line;
        let limit = LONGEST_LINE as u64 + 1;
        let n = (&mut self.input)
            .take(limit)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|source| ReadError::Io { line, source })?;
        if n as u64 == limit && self.buffer.last() != Some(&b'\n') {
            return Err(ReadError::TooLong { line });
        }
        Ok(n > 0)
    }

    fn parse(&mut self) -> Result<L, ReadError> {
        let line = self.line;
        let ended = self.buffer.last() == Some(&b'\n');
        let text = match std::str::from_utf8(&self.buffer) {
            Ok(text) => text,
            // A writer that stops within a character of the last line leaves this behind.
            Err(e) if !ended && e.error_len().is_none() => {
                return Err(ReadError::Truncated { line });
            }
            Err(e) => {
                return Err(ReadError::NotUtf8 { line, byte: e.valid_up_to() + 1 });
            }
        };
        let event: L = serde_json::from_str(text).map_err(|e| {
            if !ended && e.is_eof() {
                ReadError::Truncated { line }
            } else {
                ReadError::NoEvent { line, byte: e.column(), reason: reason(&e) }
            }
        })?;
        event.validate().map_err(|missing| ReadError::Missing { line, missing })?;
        if event.t() < self.last_t {
            return Err(ReadError::Unsorted { line, t: event.t(), before: self.last_t });
        }
        self.last_t = event.t();
        Ok(event)
    }
}

/// serde_json's message without its position: every event is on "line 1" of its own text.
fn reason(e: &serde_json::Error) -> String {
    let text = e.to_string();
    let position = format!(" at line {} column {}", e.line(), e.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}

impl<R: BufRead, L: Line> Iterator for LineReader<R, L> {
    type Item = Result<L, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        let event = self.read();
        self.broken = event.is_err();
        event.transpose()
    }
}

/// Why a history cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be created.
    #[error("cannot create the history: {0}")]
    Create(#[source] io::Error),
    /// The disk is full.
    #[error(
        "the disk under the history is full: free some space or write it elsewhere; \
         the {written} events before are kept"
    )]
    DiskFull {
        /// Events that are safe in the file.
        written: u64,
    },
    /// Writing failed.
    #[error("cannot write the history: {source}; the {written} events before are kept")]
    Io {
        /// Events that are safe in the file.
        written: u64,
        /// The system's error.
        source: io::Error,
    },
    /// An event was refused.
    #[error("cannot write an event: {0}")]
    Missing(#[from] MissingField),
}

/// Where a history can be written: something that can take back a line it could only begin.
pub trait Sink: Write {
    /// Drops everything after the first `len` bytes.
    ///
    /// # Errors
    /// As the medium has them.
    fn cut(&mut self, len: u64) -> io::Result<()>;
}

impl Sink for File {
    fn cut(&mut self, len: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        self.set_len(len)?;
        self.seek(SeekFrom::Start(len)).map(drop)
    }
}

impl Sink for Vec<u8> {
    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// Bytes gathered before they are written.
const BATCH: usize = 64 * 1024;

/// Writes events, whole lines only. After any failure of the disk, the file is a valid history of the
/// events up to some point. It buffers 64 KiB. Call [`LineWriter::flush`] if a reader must see the
/// events now.
#[derive(Debug)]
pub struct LineWriter<W: Sink, L> {
    sink: W,
    batch: Vec<u8>,
    batched: u64,
    written: u64,
    bytes: u64,
    failed: Option<ErrorKind>,
    of: PhantomData<fn(L)>,
}

/// Writes a history of locks.
pub type Writer<W> = LineWriter<W, Event>;

impl<L: Line> LineWriter<File, L> {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// [`WriteError::Create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self, WriteError> {
        Ok(Self::new(File::create(path).map_err(WriteError::Create)?))
    }
}

impl<W: Sink, L> LineWriter<W, L> {
    /// Writes to an empty sink.
    pub fn new(sink: W) -> Self {
        Self::behind(sink, 0)
    }

    /// Writes behind `bytes` of whole lines that the sink has already. They stay, whatever fails.
    pub fn behind(sink: W, bytes: u64) -> Self {
        let batch = Vec::with_capacity(BATCH + 4096);
        LineWriter { sink, batch, batched: 0, written: 0, bytes, failed: None, of: PhantomData }
    }

    /// Appends an event.
    ///
    /// # Errors
    /// A full disk or another failure to write, also of events appended earlier. From then on
    /// nothing more is written, so that the file stays a prefix.
    pub fn write(&mut self, event: &L) -> Result<(), WriteError>
    where
        L: Line,
    {
        event.validate()?;
        if let Some(kind) = self.failed {
            return Err(self.failure(kind.into()));
        }
        let before = self.batch.len();
        if let Err(e) = serde_json::to_writer(&mut self.batch, event) {
            self.batch.truncate(before);
            return Err(self.failure(e.into()));
        }
        self.batch.push(b'\n');
        self.batched += 1;
        if self.batch.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    /// As for [`LineWriter::write`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        if let Some(kind) = self.failed {
            return Err(self.failure(kind.into()));
        }
        let mut done = 0;
        while done < self.batch.len() {
            match self.sink.write(&self.batch[done..]) {
                Ok(0) => return Err(self.give_up(done, ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.give_up(done, e)),
            }
        }
        self.sink.flush().map_err(|e| self.give_up(done, e))?;
        self.bytes += self.batch.len() as u64;
        self.written += self.batched;
        self.batched = 0;
        self.batch.clear();
        Ok(())
    }

    /// Events of this writer that the operating system has.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The sink, after a flush.
    ///
    /// # Errors
    /// As for [`LineWriter::write`].
    pub fn into_inner(mut self) -> Result<W, WriteError>
    where
        W: Default,
    {
        self.flush()?;
        Ok(std::mem::take(&mut self.sink))
    }

    /// Keeps the whole lines of the first `done` bytes of the batch.
    fn give_up(&mut self, done: usize, source: io::Error) -> WriteError {
        self.failed = Some(source.kind());
        let whole = self.batch[..done].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let lines = self.batch[..whole].iter().filter(|b| **b == b'\n').count() as u64;
        self.bytes += whole as u64;
        self.written += lines;
        self.batch.clear();
        // If even this fails, the reader's message about the broken last line says what to do.
        let _ = self.sink.cut(self.bytes);
        self.failure(source)
    }

    fn failure(&self, source: io::Error) -> WriteError {
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                WriteError::DiskFull { written: self.written }
            }
            _ => WriteError::Io { written: self.written, source },
        }
    }
}

impl<W: Sink> Writer<W> {
    /// Writes an `end` event: everything had come to rest. Without one, a checker does not judge
    /// operations that are unfinished at the end.
    ///
    /// # Errors
    /// As for [`LineWriter::write`].
    pub fn end(&mut self, t: u64) -> Result<(), WriteError> {
        self.write(&Event::anywhere(t, Kind::End))?;
        self.flush()
    }
}

impl<W: Sink, L> Drop for LineWriter<W, L> {
    fn drop(&mut self) {
        if self.failed.is_none() {
            // Nobody is left to tell; a caller that wants to know calls flush.
            let _ = self.flush();
        }
    }
}
