//! Lockspaces whose locks are words in remote memory (docs/onesided-shm.md).

use std::path::PathBuf;

use lockify_core::Policy;
use serde::Deserialize;

use super::SpaceEntry;
use super::place::Wrong;

/// How remote memory is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// Shared memory: one machine.
    Shm,
}

/// The table of a lockspace's locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoteTable {
    pub(crate) path: PathBuf,
    pub(crate) hands: usize,
}

/// More would be more threads than locks are worth.
const MOST_HANDS: usize = 256;

impl SpaceEntry {
    /// Where its locks are, if they are words in remote memory.
    ///
    /// # Errors
    /// It contradicts itself, or says only half.
    pub(crate) fn remote(&self) -> Result<Option<RemoteTable>, Wrong> {
        let name = &self.name;
        let wrong =
            |key: &str, what: &str| Err(Wrong::new(key, format!("lockspace {name:?}: {what}")));
        match (self.fabric, &self.table) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                wrong("table", "a table goes with a fabric: write fabric = \"shm\", too")
            }
            (Some(_), None) => wrong(
                "fabric",
                "table is missing: name the file that `lockify memory-server` has printed",
            ),
            (Some(Fabric::Shm), Some(table)) => {
                if self.policy != Policy::Home {
                    let what = "locks in remote memory have their master where the table is: write policy = \"home\"";
                    return wrong("policy", what);
                }
                if self.deadlock_after.is_some() {
                    let what = "deadlocks of locks in remote memory cannot be searched for: remove deadlock_after";
                    return wrong("deadlock_after", what);
                }
                if !(1..=MOST_HANDS).contains(&self.hands) {
                    return wrong("hands", "hands is 1 to 256");
                }
                Ok(Some(RemoteTable { path: table.clone(), hands: self.hands }))
            }
        }
    }
}
