//! Processes that are killed at exactly the step that a test chooses: at their n-th write to a device's file, or before the n-th
//! time that they send something. From outside, SIGKILL hits somewhere. Or the device's file fails from that write on.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::preload;

/// When a process dies, or its file. The numbers are those in `fuse.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    BeforeWrite,
    /// Half of its sectors are written.
    WithinWrite,
    AfterWrite,
    BeforeSend,
    /// It does not die: the file of that write takes no write any more.
    NoMoreWrites,
}

/// The fuse of one process.
pub struct Fuse {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Fuse {
    /// One that does not burn, in a folder for its files.
    pub fn new(folder: &Path, name: &str) -> Fuse {
        let library = preload::library(folder, name, "fuse.c");
        let path = folder.join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let fuse = Fuse { library, path, file };
        fuse.light(0, Moment::BeforeWrite);
        fuse
    }

    /// From now on the process dies at its `nth` write or send, counted from 1.
    pub fn light(&self, nth: i64, moment: Moment) {
        // A reader of the number sees its kind.
        self.file.write_all_at(&(moment as i64).to_ne_bytes(), 8).unwrap();
        self.file.write_all_at(&nth.to_ne_bytes(), 0).unwrap();
    }

    /// Returns true if it was lit, and has killed its process or is about to.
    pub fn has_burnt_down(&self) -> bool {
        let mut left = [0; 8];
        self.file.read_exact_at(&mut left, 0).unwrap();
        i64::from_ne_bytes(left) == 0
    }

    /// The environment of a process that has this fuse.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library.clone()), ("FUSE", self.path.clone())]
    }
}
