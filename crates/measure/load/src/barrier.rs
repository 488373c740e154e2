//! The final barrier: work that a file system defers is over when the clock stops.

use std::fs::{self, File};
use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor, statfs};

use crate::failure::{Failure, OnFile as _};
use crate::witness::Witness;

/// `OCFS2_SUPER_MAGIC` of Linux's `include/uapi/linux/magic.h`.
const OCFS2: u64 = 0x7461_636f;

/// Ends when the directories' blocks are on disk, and the witness has seen them.
///
/// Without a witness, the work is the same as for giving the locks up. So one node, which has no other to give them
/// up to, is comparable. GFS2 writes the directory's own blocks (`inode_go_sync`). OCFS2 has one journal for all, and
/// gives no lock up before everything in it is in place (`ocfs2_ci_checkpointed`).
pub fn settle(folders: &[PathBuf], witness: Option<&mut Witness>) -> Result<(), Failure> {
    for folder in folders {
        sync(folder).on("sync", folder)?;
        if u64::try_from(statfs(folder).on("look at", folder)?.f_type) == Ok(OCFS2) {
            let device = device_below(folder)?;
            sync(&device).on("sync", &device)?;
        }
    }
    if let Some(witness) = witness {
        for folder in folders {
            witness.sees(folder)?;
        }
    }
    Ok(())
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// By the kernel's own name: where loads run, nobody makes links in /dev/block.
fn device_below(folder: &Path) -> Result<PathBuf, Failure> {
    let number = fs::metadata(folder).on("look at", folder)?.st_dev();
    let about = PathBuf::from(format!("/sys/dev/block/{}:{}/uevent", major(number), minor(number)));
    let lines = fs::read_to_string(&about).on("read", &about)?;
    let name = lines.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name =
        name.ok_or_else(|| Failure::Other(format!("{} names no device", about.display())))?;
    Ok(Path::new("/dev").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_cannot_be_settled() {
        let ended = settle(&[PathBuf::from("/nowhere")], None);
        assert!(
            matches!(&ended, Err(Failure::File { path, .. }) if path == "/nowhere"),
            "{ended:?}"
        );
    }

    #[test]
    fn a_directory_is_settled_wherever_it_is() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        settle(&[folder.path().to_owned()], None)?;
        Ok(())
    }
}
