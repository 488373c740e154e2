//! The record of an array's process, for `lockify check`.
//!
//! Hosts record requests and answers, and devices record steps on their blocks. Each process writes a file of its own, on the
//! machine's clock. The checker merges them. The operating system has an event before any of its effects leaves the process. So
//! a killed process's history lacks nothing that others have seen.

mod device;
mod host;

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lockify_array::{AddedGroup, Layout, Life, Redundancy};
use lockify_history::WriteError;
use lockify_history::array::{self, Event, Kind, Tag, Writer};

use crate::clock::monotonic;
use crate::store::is_zero;
use crate::{ArrayFile, Durability};

pub(crate) use device::DeviceHistory;
pub(crate) use host::HostHistory;

/// Sectors per block in histories.
const SECTORS: u32 = 8;

/// Why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Something is there.
    #[error(
        "{} is not empty, and may be an earlier life's history, which is judged together with this one's: name another file",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// It cannot be written.
    #[error("{}: {error}; name another file, or leave --history away", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// The reason.
        error: WriteError,
    },
}

/// A history's file. A write error is reported once. It ends the history, not the service.
struct History {
    /// How the array is laid out, as far as the history says.
    layout: Layout,
    /// None if it has ended.
    writer: Option<Writer<File>>,
    path: PathBuf,
    log: fn(&str),
}

impl History {
    /// Begins one, in a file that is new or empty.
    fn create(path: &Path, file: &ArrayFile, log: fn(&str)) -> Result<History, HistoryError> {
        let failed = |error| HistoryError::Write { path: path.to_owned(), error };
        let made = match File::create_new(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                File::options().write(true).open(path)
            }
            made => made,
        };
        let made = made.map_err(|e| failed(WriteError::Create(e)))?;
        let length = made.metadata().map_err(|e| failed(WriteError::Create(e)))?.len();
        if length > 0 {
            return Err(HistoryError::NotEmpty(path.to_owned()));
        }
        let mut writer = Writer::new(made);
        let begin = Event::new(
            monotonic(),
            Kind::Begin {
                array: layout(file),
                scheme: file.scheme.name().to_owned(),
                volatile: file.durability == Durability::Flush,
            },
        );
        writer.write(&begin).and_then(|()| writer.flush()).map_err(failed)?;
        let layout = file.layout;
        Ok(History { layout, writer: Some(writer), path: path.to_owned(), log })
    }

    /// The array is laid out in this way by the state that this process knows.
    fn grown(&mut self, layout: &Layout) {
        if std::mem::replace(&mut self.layout, *layout) != *layout {
            let later =
                |group: AddedGroup| array::LaterGroup { from: group.from, first: group.first.0 };
            let groups = layout.added.iter().map(later).collect();
            self.note(Kind::Grown { stripes: layout.stripes, groups });
        }
    }

    fn note(&mut self, kind: Kind) {
        self.write(|writer| writer.write(&Event::new(monotonic(), kind)));
    }

    fn flush(&mut self) {
        self.write(Writer::flush);
    }

    fn write(&mut self, write: impl FnOnce(&mut Writer<File>) -> Result<(), WriteError>) {
        let Some(Err(error)) = self.writer.as_mut().map(write) else { return };
        self.writer = None;
        let path = self.path.display();
        (self.log)(&format!("the history {path} ends here: {error}; the array goes on"));
    }
}

fn layout(file: &ArrayFile) -> array::Layout {
    let Layout { redundancy, data, groups, unit, block_size, stripes, .. } = file.layout;
    let redundancy = match redundancy {
        Redundancy::Raid5 => array::Redundancy::Raid5,
        Redundancy::Mirror => array::Redundancy::Mirror,
        Redundancy::Raid6 => array::Redundancy::Raid6,
    };
    let later = array::LaterGroups::default();
    array::Layout { redundancy, data, groups, unit, block_size, stripes, sectors: SECTORS, later }
}

/// A life, in the checker's words.
fn by(life: Life) -> array::Life {
    array::Life { host: life.host.0, incarnation: life.incarnation }
}

/// Names a sector's content: a hash, and 0 for sectors that were never written.
fn tag(sector: &[u8]) -> Tag {
    if is_zero(sector) {
        return 0;
    }
    xxhash_rust::xxh3::xxh3_64(sector).max(1)
}

/// Something of a block that is linear as its array's parities are, in hexadecimal.
fn digest(redundancy: Redundancy, block: &[u8]) -> String {
    match redundancy {
        Redundancy::Raid5 | Redundancy::Mirror => format!("{:08x}", linear_in_bits(block)),
        Redundancy::Raid6 => format!("{:016x}", linear_in_bytes(block)),
    }
}

/// Linear in XOR: the CRC32C from zero.
fn linear_in_bits(block: &[u8]) -> u32 {
    // The usual CRC inverts before and after.
    !crc32c::crc32c_append(!0, block)
}

/// Also linear in the field of the second parity, where a CRC is not: eight sums of every eighth byte, each times a power of two.
fn linear_in_bytes(block: &[u8]) -> u64 {
    let double = |x: u8| (x << 1) ^ if x & 0x80 == 0 { 0 } else { 0x1d };
    let sums = block.chunks(8).fold([0_u8; 8], |mut sums, bytes| {
        sums.iter_mut().for_each(|sum| *sum = double(*sum));
        sums.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        sums
    });
    u64::from_be_bytes(sums)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn digests_are_linear() {
        let block =
            |seed: u8| (0..=255).map(|i: u8| i.wrapping_mul(seed) ^ seed).collect::<Vec<_>>();
        let (a, b) = (block(7), block(91));
        let sum: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a ^ b).collect();
        assert_eq!(linear_in_bits(&sum), linear_in_bits(&a) ^ linear_in_bits(&b));
        assert_eq!(linear_in_bytes(&sum), linear_in_bytes(&a) ^ linear_in_bytes(&b));
        for redundancy in [Redundancy::Raid5, Redundancy::Mirror, Redundancy::Raid6] {
            assert_ne!(digest(redundancy, &a), digest(redundancy, &b));
            let zeros = digest(redundancy, &[0; 4096]);
            assert!(
                zeros.len().is_multiple_of(8) && zeros.bytes().all(|digit| digit == b'0'),
                "{zeros}"
            );
        }
        // Twice each byte: twice each sum.
        let double = |x: &u8| ((u16::from(*x) << 1) ^ if *x < 128 { 0 } else { 0x11d }) as u8;
        let twice: Vec<u8> = a.iter().map(double).collect();
        let sums = linear_in_bytes(&a).to_be_bytes();
        assert_eq!(
            linear_in_bytes(&twice).to_be_bytes().to_vec(),
            sums.iter().map(double).collect::<Vec<_>>()
        );
    }

    /// The service goes on, and an operator is told once.
    #[test]
    fn a_full_disk_ends_the_history() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let log = |what: &str| {
            assert!(what.contains("/dev/full ends here") && what.contains("is full"), "{what}");
            TOLD.fetch_add(1, Relaxed);
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let path = PathBuf::from("/dev/full");
        let layout = crate::file::tests::file().layout;
        let mut history = History { layout, writer: Some(Writer::new(full)), path, log };
        for _ in 0..3 {
            history.note(Kind::End {});
            history.flush();
        }
        assert_eq!(TOLD.load(Relaxed), 1);
    }
}
