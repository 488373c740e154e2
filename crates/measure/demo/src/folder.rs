//! A folder to create in, where creating is as fast as the file system can.
//!
//! File systems remember deletions: ext4 without a journal skips each inode that was deleted in the
//! last minutes, one by one, so that creating where an earlier demo has cleaned up takes up to a
//! hundred times longer. It does so by block group, and each directory is in one group. So every
//! run tries several directories, before its clock starts, and takes the quickest.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags, statfs};

use crate::clock::now;

/// The folder's name.
pub const NAME: &str = "lockify-shared";

/// Directories that are tried.
const CANDIDATES: u32 = 12;

/// Files that are created in each.
const PROBES: u32 = 4;

/// Asks ext4 to put each directory in here into a block group of its own. Other file systems do not
/// know the flag and do not need it.
pub fn spread(path: &Path) {
    if let Ok(dir) = File::open(path)
        && let Ok(flags) = ioctl_getflags(&dir)
    {
        let _ = ioctl_setflags(&dir, flags | IFlags::TOPDIR);
    }
}

/// Removes a folder of a finished run, if that does not slow down what follows: in memory. On a disk
/// it stays until everything is removed at the end, without the files' contents.
///
/// # Errors
/// Those of the file system.
pub fn clean(folder: &Path) -> io::Result<()> {
    if in_memory(folder)? { std::fs::remove_dir_all(folder) } else { empty(folder) }
}

/// Truncates every file below a directory.
fn empty(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (path, found) = (entry.path(), entry.metadata()?);
        if found.is_dir() {
            empty(&path)?;
        } else if found.is_file() && found.len() > 0 {
            truncate(&path)?;
        }
    }
    Ok(())
}

fn in_memory(folder: &Path) -> io::Result<bool> {
    /// `TMPFS_MAGIC` of the kernel's `linux/magic.h`.
    const TMPFS: i128 = 0x0102_1994;
    Ok(i128::from(statfs(folder)?.f_type) == TMPFS)
}

fn truncate(file: &Path) -> io::Result<()> {
    match File::create(file) {
        // It was created read-only.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            std::fs::set_permissions(file, Permissions::from_mode(0o600))?;
            File::create(file).map(drop)
        }
        result => result.map(drop),
    }
}

/// Makes an empty folder in `scratch`.
///
/// # Errors
/// Those of the file system.
pub fn make(scratch: &Path) -> io::Result<PathBuf> {
    let base = now();
    let mut best: Option<(u64, PathBuf)> = None;
    for i in 0..CANDIDATES {
        let path = scratch.join(format!("run-{base}-{i}"));
        let took = probe(&path)?;
        match &mut best {
            Some((least, _)) if *least <= took => std::fs::remove_dir(&path)?,
            best => {
                if let Some((_, worse)) = best.replace((took, path)) {
                    std::fs::remove_dir(worse)?;
                }
            }
        }
    }
    best.map(|(_, path)| path).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Makes a directory; says how long creating in it takes.
fn probe(dir: &Path) -> io::Result<u64> {
    std::fs::create_dir(dir)?;
    let files: Vec<PathBuf> = (0..PROBES).map(|i| dir.join(i.to_string())).collect();
    let start = now();
    files.iter().try_for_each(|file| File::create_new(file).map(drop))?;
    let took = now() - start;
    files.iter().try_for_each(std::fs::remove_file)?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptying_keeps_the_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let file = dir.path().join("a/f");
        std::fs::write(&file, "content").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        empty(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
    }

    #[test]
    fn makes_one_empty_folder() {
        let dir = tempfile::tempdir().unwrap();
        spread(dir.path());
        let made = [make(dir.path()).unwrap(), make(dir.path()).unwrap()];
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(made.iter().all(|m| std::fs::read_dir(m).unwrap().count() == 0));
    }
}
