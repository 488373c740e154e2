//! Histories: where they begin, and what happens when one cannot be written any more.

use lockify_history::WriteError;

use super::NodeEngine;
use crate::error::CallError;
use crate::history::{History, HistoryImage, file_of};
use crate::notice::Level;

impl NodeEngine {
    /// A lockspace is joined, for the first time or again.
    pub(super) fn begin_history(&mut self, space: &str, life: u64) -> Result<(), CallError> {
        let Some(path) = &self.history else { return Ok(()) };
        if let Some(history) = self.histories.get_mut(space) {
            // A history that has ended stays ended: the file must remain a valid prefix.
            if let Some(h) = history {
                h.begin_life(life);
            }
            return Ok(());
        }
        let path = file_of(path, self.histories.is_empty(), space);
        let failed = |e: WriteError| CallError::History(format!("{}: {e}", path.display()));
        let history = History::create(&path, self.identity.node.0, life).map_err(failed)?;
        self.histories.insert(space.to_owned(), Some(history));
        Ok(())
    }

    /// Writes to a lockspace's history, if it has one. A failure ends the history, not the locking.
    pub(super) fn record(
        &mut self,
        at: usize,
        write: impl FnOnce(&mut History) -> Result<(), WriteError>,
    ) {
        let Some(space) = &self.spaces[at] else { return };
        let Some(Some(history)) = self.histories.get_mut(&space.name) else { return };
        if let Err(e) = write(history) {
            let name = space.name.clone();
            self.end_history(&name, &e);
        }
    }

    fn end_history(&mut self, space: &str, error: &WriteError) {
        self.histories.insert(space.to_owned(), None);
        let text = format!("the history of lockspace {space} ends here: {error}; locking goes on");
        self.notice(Level::Error, text);
    }

    /// Goes on with a history, if there still is to be one.
    pub(super) fn resume_history(&mut self, space: String, image: Option<HistoryImage>) {
        if self.history.is_none() {
            return;
        }
        match image.map(History::resume).transpose() {
            Ok(history) => _ = self.histories.insert(space, history),
            Err(e) => self.end_history(&space, &e),
        }
    }

    /// Hands everything to the operating system: before anything is sent to another node, so that
    /// no other node has heard of an event that a killed process's record lacks.
    pub(super) fn write_histories(&mut self) {
        let failed = |(name, h): (&String, &mut Option<History>)| {
            h.as_mut()?.flush().err().map(|e| (name.clone(), e))
        };
        let failures: Vec<_> = self.histories.iter_mut().filter_map(failed).collect();
        failures.iter().for_each(|(name, e)| self.end_history(name, e));
    }
}
