//! The proof: the creators' histories, merged by their common clock and checked.

use std::path::PathBuf;

use lockify_check::{Checker, Options, Report};
use lockify_history::{Event, Kind, ReadError, Reader};

/// Merges the histories of one run and checks them. They are whole: the run began with no locks
/// and has released all of its own.
///
/// # Errors
/// A history that cannot be read.
pub fn check(files: &[PathBuf]) -> Result<Report, ReadError> {
    let mut readers = files.iter().map(Reader::open).collect::<Result<Vec<_>, _>>()?;
    let mut heads = Vec::new();
    for reader in &mut readers {
        heads.push(reader.read()?);
    }
    let mut checker = Checker::new(Options::recorded());
    let mut last = first_time(&heads);
    // The report repeats every violation, so what `observe` returns can be left alone.
    let _ = checker.observe(&Event::anywhere(last, Kind::Begin));
    while let Some(next) = earliest(&heads) {
        let event = std::mem::replace(&mut heads[next], readers[next].read()?);
        if let Some(event) = event {
            last = event.t;
            let _ = checker.observe(&event);
        }
    }
    let _ = checker.observe(&Event::anywhere(last, Kind::End));
    Ok(checker.finish())
}

fn first_time(heads: &[Option<Event>]) -> u64 {
    heads.iter().flatten().map(|e| e.t).min().unwrap_or(0)
}

fn earliest(heads: &[Option<Event>]) -> Option<usize> {
    let present = heads.iter().enumerate().filter_map(|(i, e)| Some((e.as_ref()?.t, i)));
    present.min().map(|(_, i)| i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glock::Glock;
    use crate::recorder::{Record, Recorder, What};
    use lockify_core::{LockId, Mode, Status};

    /// One node's history of holding the folder exclusively from `from` to `to`.
    fn hold(dir: &std::path::Path, node: u32, from: u64, to: u64) -> PathBuf {
        let mut recorder = Recorder::default();
        let (lock, glock) = (LockId(7), Some(Glock::inode(crate::glock::ROOT)));
        let mut add = |t, what, op| recorder.add(Record { t, what, lock, glock, op });
        let grant = What::Grant { mode: Mode::EX, token: from, provisional: false };
        add(from, grant, 1);
        add(from - 1, What::Request(Mode::EX), 1);
        add(to, What::Unlock, 2);
        add(to + 1, What::Complete(Status::Unlocked), 2);
        let path = dir.join(format!("{node}.jsonl"));
        assert_eq!(recorder.write(node, &path).unwrap(), 4);
        path
    }

    #[test]
    fn holds_one_after_the_other_are_clean() {
        let dir = tempfile::tempdir().unwrap();
        let report = check(&[hold(dir.path(), 1, 10, 20), hold(dir.path(), 2, 25, 30)]).unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.counts.grants, 2);
    }

    #[test]
    fn two_holders_at_a_time_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let report = check(&[hold(dir.path(), 1, 10, 20), hold(dir.path(), 2, 15, 30)]).unwrap();
        assert_eq!(report.violations[0].rule, "compatible_grants", "{report}");
    }
}
