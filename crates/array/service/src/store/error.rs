//! Why a device's file is not opened.

use std::io;
use std::path::{Path, PathBuf};

use super::LONGEST_RECORD;
use super::superblock::{VERSION, VERSION_OF_RAID6};
use crate::ArrayId;

/// Why a device's file, or block device, is not made or opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct StoreError {
    /// The file or block device.
    pub path: PathBuf,
    /// The reason.
    pub why: Why,
}

impl StoreError {
    pub(super) fn at(path: &Path) -> impl Fn(Why) -> StoreError + '_ {
        move |why| StoreError { path: path.to_owned(), why }
    }
}

/// The error, and its remedy.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The system says no.
    #[error("cannot {what} it: {error}")]
    System {
        /// The attempted step.
        what: &'static str,
        /// The answer.
        error: io::Error,
    },
    /// There is no room for it.
    #[error(
        "it needs {needed} bytes, and its file system has {free} free ({error}): make space there, name a file elsewhere, or give \
         --sparse, with which space is taken as blocks are written"
    )]
    Full {
        /// The needed amount.
        needed: u64,
        /// The present amount.
        free: u64,
        /// The system's error.
        error: io::Error,
    },
    /// It holds something.
    #[error(
        "it is a device of array {0} already; to begin anew, remove it (or zero the first 128 KiB of a block device)"
    )]
    IsDevice(ArrayId),
    /// A regular file with something in it.
    #[error("it exists and is not empty; name a new file, an empty one or a block device")]
    NotEmpty,
    /// A block device with something at its beginning.
    #[error(
        "its first 128 KiB are not zero, so that it may hold a file system, partitions or the like; if nobody needs what is on \
         it, zero them: dd if=/dev/zero of=DEVICE bs=128K count=1"
    )]
    InUse,
    /// A block device that is mounted, or that another process or device has.
    #[error(
        "it is in use: mounted, as swap, as a part of another device, or as a device of an array that is served already; `lsblk` \
         shows the first three"
    )]
    Claimed,
    /// Neither a file nor a block device.
    #[error("it is neither a regular file nor a block device")]
    Kind,
    /// There is no superblock.
    #[error("this is no device of an array; `lockify array device --create` makes one")]
    Foreign,
    /// There was one.
    #[error(
        "both copies of its superblock are damaged; if the array works without it, begin anew with --create on another file, \
         and have it rebuilt: lockify array replace"
    )]
    Torn,
    /// Another release made it.
    #[error(
        "its format has version {0}, and this release knows {VERSION} to {VERSION_OF_RAID6}: use the release that made it"
    )]
    Version(u32),
    /// Another array's.
    #[error(
        "it belongs to array {found}, and the array's file describes {wanted}: one of both is the wrong file"
    )]
    OtherArray {
        /// The array that the file belongs to.
        found: ArrayId,
        /// The requested array.
        wanted: ArrayId,
    },
    /// Devices were swapped.
    #[error(
        "it is device {found} of the array, not {wanted}: were devices swapped? give --id {found}"
    )]
    OtherDevice {
        /// Which it is.
        found: u16,
        /// Which was asked for.
        wanted: u16,
    },
    /// More than any medium has room for.
    #[error("no file can have its part of an array of {0} stripes: ask for fewer")]
    TooManyStripes(u64),
    /// Made for another layout.
    #[error(
        "it was made for another layout, or sectors of another size, than the array's file has now: give it the file that it was made with"
    )]
    OtherLayout,
    /// The array does not fit.
    #[error(
        "it has {found} bytes, and the array needs {needed} on each device: was it cut, or is it smaller than the --device-size \
         of the array?"
    )]
    TooSmall {
        /// The present amount.
        found: u64,
        /// The needed amount.
        needed: u64,
    },
    /// The file system does not allow a needed operation.
    #[error(
        "direct I/O is refused here ({0}): choose another file system or medium, or give --buffered, which uses the system's cache"
    )]
    Direct(io::Error),
    /// The file system, or the medium, reads and writes larger pieces only.
    #[error(
        "direct I/O in pieces of 512 bytes is refused here ({0}): make an array for such media (lockify array create \
         --sector-size 4KiB), choose another file system or medium, or give --buffered, which uses the system's cache"
    )]
    DirectSectors(io::Error),
    /// Another process has it.
    #[error("another process uses it: is the device served already?")]
    Locked,
    /// Both slots of the device's record are damaged.
    #[error(
        "its record (epochs, fenced hosts) is damaged; if the array works without it, begin anew with --create on another \
         file, and have it rebuilt: lockify array replace"
    )]
    Record,
    /// The record of an earlier release is longer than its present place.
    #[error(
        "its record (epochs, fenced hosts) has {0} bytes, and this release keeps at most {LONGEST_RECORD}: start it with the \
         release that wrote it, end all hosts, wait until its record is shorter, which takes a few minutes, and upgrade then; or \
         begin anew with --create on another file, and have it rebuilt: lockify array replace"
    )]
    LongRecord(usize),
}
