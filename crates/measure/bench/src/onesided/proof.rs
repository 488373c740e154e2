//! The proof: the workers' histories, merged by the clock that they share, and checked.

use std::io::Cursor;
use std::path::PathBuf;

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
    let mut readers = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let read = std::fs::read(&part.file).map_err(ReadError::Open);
        let whole = read.and_then(|written| match part.killed {
            None => Ok(written),
            Some((peer, dead)) => ended(written, peer, dead),
        });
        let whole = whole.map_err(|error| MergeError::Read { number: number + 1, error })?;
        readers.push(Reader::new(Cursor::new(whole)));
    }
    let mut merged = Writer::new(Vec::new());
    lockify_history::merge(readers, &mut merged)?;
    let merged = merged.into_inner()?;
    match check_reader(Reader::new(&merged[..]), Options::recorded()) {
        Outcome::Checked(report) => Ok(report),
        Outcome::Unreadable { error, .. } => Err(MergeError::Read { number: 0, error }),
    }
}

/// A killed worker's history with an end: a hold lasts until it was dead, or its lease was over.
fn ended(mut whole: Vec<u8>, peer: u16, dead: u64) -> Result<Vec<u8>, ReadError> {
    // It may have died within a line.
    whole.truncate(whole.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
    let mut reader = Reader::new(&whole[..]);
    let mut last = None;
    while let Some(event) = reader.read()? {
        last = Some(event);
    }
    let over = last.as_ref().and_then(|event| history::lease_over(event, dead));
    let bytes = whole.len() as u64;
    let mut writer = Writer::behind(whole, bytes);
    // A vector takes everything.
    let _ = over.map(|event| writer.write(&event));
    let _ = writer.write(&history::gone(dead, peer.into()));
    let _ = writer.end(dead);
    Ok(writer.into_inner().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_was_killed_within_a_line_has_said_what_came_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("history");
        let mut writer = Writer::new(Vec::new());
        writer.write(&history::gone(5, 1)).unwrap();
        let before = writer.into_inner().unwrap();
        std::fs::write(&file, [&before[..], b"{\"t\":6,\"ki"].concat()).unwrap();
        let part = Part { file, killed: Some((2, 9)) };
        assert!(check(&[part]).unwrap().is_clean());
    }
}
