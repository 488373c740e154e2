//! Wall clocks of processes, which a test steps while they run: as when somebody sets a machine's time, only that each process
//! has a machine of its own. The kernel cannot do that for one process (its time namespaces have no CLOCK_REALTIME), so a small
//! library in C stands before the C library's.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::preload;

/// The clock of one process, or of several.
pub struct Wall {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Wall {
    /// A clock that is right, in a folder for its files.
    pub fn new(folder: &Path, name: &str) -> Wall {
        let library = preload::library(folder, name, "wall.c");
        let path = folder.join(name);
        let file = File::create(&path).unwrap();
        let wall = Wall { library, path, file };
        wall.set(0);
        wall
    }

    /// How far it is ahead of the right time, in milliseconds, from now on.
    pub fn set(&self, ahead_ms: i64) {
        self.file.write_all_at(&(ahead_ms * 1_000_000).to_ne_bytes(), 0).unwrap();
    }

    /// The environment of a process that has this clock.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library.clone()), ("WALL_CLOCK", self.path.clone())]
    }
}
