//! The proof: the workers' histories, merged by the clock that they share, and checked.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use lockify_check::{Options, Outcome, Report, check_reader};
use lockify_history::{MergeError, ReadError, Reader, Writer};

use super::history;

/// A worker's history, and when it was killed, if it was.
#[derive(Clone, Debug)]
pub struct Part {
    /// The file.
    pub file: PathBuf,
    /// The peer's number, and a time at which it was dead.
    pub killed: Option<(u16, u64)>,
}

/// Merges and checks the histories of one table. They are whole: the table was new, and every surviving client has
/// released everything.
///
/// # Errors
/// A history cannot be read.
pub fn check(parts: &[Part]) -> Result<Report, MergeError> {
    let mut readers: Vec<Reader<BufReader<Box<dyn std::io::Read>>>> = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let unreadable = |error| MergeError::Read { number: number + 1, error };
        let file = File::open(&part.file).map_err(|e| unreadable(ReadError::Open(e)))?;
        let end = part.killed.map(|(peer, dead)| ending(&part.file, peer, dead)).transpose();
        let end = end.map_err(unreadable)?.unwrap_or_default();
        let whole: Box<dyn std::io::Read> =
            Box::new(std::io::Read::chain(file, std::io::Cursor::new(end)));
        readers.push(Reader::new(BufReader::new(whole)));
    }
    let mut merged = Writer::new(Vec::new());
    lockify_history::merge(readers, &mut merged)?;
    let merged = merged.into_inner()?;
    match check_reader(Reader::new(&merged[..]), Options::recorded()) {
        Outcome::Checked(report) => Ok(report),
        Outcome::Unreadable { error, .. } => Err(MergeError::Read { number: 0, error }),
    }
}

/// The end of a killed worker's history: a hold lasts until it was dead, or its lease was over.
fn ending(file: &Path, peer: u16, dead: u64) -> Result<Vec<u8>, ReadError> {
    let mut reader = Reader::open(file)?;
    let mut last = None;
    while let Some(event) = reader.read()? {
        last = Some(event);
    }
    let over = last.as_ref().and_then(|event| history::lease_over(event, dead));
    let mut writer = Writer::new(Vec::new());
    // A vector takes everything.
    let _ = over.map(|event| writer.write(&event));
    let _ = writer.write(&history::gone(dead, peer.into()));
    let _ = writer.end(dead);
    Ok(writer.into_inner().unwrap_or_default())
}
