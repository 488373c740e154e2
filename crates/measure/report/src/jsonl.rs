//! Rows in files: one JSON object per line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use crate::row::Row;

/// Why rows cannot be read. `line` counts from 1.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open the results: {0}")]
    Open(#[source] io::Error),
    /// Reading failed, or the line is not UTF-8.
    #[error("line {line}: cannot read on: {source}")]
    Io {
        /// The line, counted from 1.
        line: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The line is no row.
    #[error("line {line}: not a result row: {source}")]
    NoRow {
        /// The line, counted from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// Why a row cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be created or written.
    #[error("cannot write the results: {0}")]
    Io(#[from] io::Error),
    /// JSON has no infinities, and a result that is no number is a defect of its benchmark.
    #[error("{metric} of {bench} is not a finite number: the benchmark measured nothing")]
    NotFinite {
        /// The benchmark.
        bench: String,
        /// The metric.
        metric: String,
    },
}

/// Reads rows; skips empty lines.
///
/// # Errors
/// The first line that is no row.
pub fn read(input: impl BufRead) -> Result<Vec<Row>, ReadError> {
    let mut rows = Vec::new();
    for (i, text) in input.lines().enumerate() {
        let line = i + 1;
        let text = text.map_err(|source| ReadError::Io { line, source })?;
        if !text.trim().is_empty() {
            let row = serde_json::from_str(&text);
            rows.push(row.map_err(|source| ReadError::NoRow { line, source })?);
        }
    }
    Ok(rows)
}

/// Reads a file of rows.
///
/// # Errors
/// As [`read`]; or the file cannot be opened.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<Row>, ReadError> {
    read(BufReader::new(File::open(path).map_err(ReadError::Open)?))
}

/// Writes rows, each at once: results of hours of work do not wait in a buffer.
#[derive(Debug)]
pub struct Writer<W: Write> {
    output: BufWriter<W>,
}

impl Writer<File> {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, WriteError> {
        Ok(Writer::new(File::create(path)?))
    }
}

impl<W: Write> Writer<W> {
    /// Writes to `output`.
    pub fn new(output: W) -> Writer<W> {
        Writer { output: BufWriter::new(output) }
    }

    /// Writes a row.
    ///
    /// # Errors
    /// The output fails, or the row has a number that is not finite.
    pub fn write(&mut self, row: &Row) -> Result<(), WriteError> {
        let mut numbers = row.rounds.iter().chain(&row.published).chain([&row.value]);
        if !numbers.all(|n| n.is_finite()) {
            let (bench, metric) = (row.bench.clone(), row.metric.clone());
            return Err(WriteError::NotFinite { bench, metric });
        }
        serde_json::to_writer(&mut self.output, row).map_err(io::Error::from)?;
        self.output.write_all(b"\n")?;
        Ok(self.output.flush()?)
    }
}
