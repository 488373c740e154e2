//! Content that is replaced whole. It has two slots, written in turn, each with a sequence number and a checksum. A
//! reader takes the newer whole slot. So a write that is cut short leaves the former content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use super::PIECE;
use super::buffer::Buffer;

/// Bytes in front of a slot's content: magic, sequence, length, checksum.
pub(super) const HEAD: usize = 8 + 8 + 4 + 4;

/// The places of two slots, and their magic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub at: [u64; 2],
    /// Bytes of a slot, a multiple of [`PIECE`].
    pub size: usize,
    pub magic: [u8; 8],
}

/// The content of two slots.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The sequence number of the newer one that is whole; 0 if none is.
    pub seq: u64,
    /// The content of the newer whole slot.
    pub held: Option<Bytes>,
    /// The number of slots with content that is not whole.
    pub damaged: usize,
    /// A slot has no content.
    pub zeroed: bool,
}

/// The content of a single slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// The slot was never written.
    Empty,
    Damaged,
    Whole(u64, Bytes),
}

impl Place {
    /// The most bytes that a slot holds.
    pub const fn longest(&self) -> usize {
        self.size - HEAD
    }

    /// Both as they are.
    ///
    /// # Errors
    /// The system's, but for a medium that fails there, or ends.
    pub fn slots(&self, file: &File) -> io::Result<[Slot; 2]> {
        let [one, other] = self.at;
        Ok([self.slot(file, one)?, self.slot(file, other)?])
    }

    fn slot(&self, file: &File, offset: u64) -> io::Result<Slot> {
        let mut buffer = Buffer::new(self.size);
        match file.read_exact_at(&mut buffer, offset) {
            Ok(()) => Ok(self.decode(&buffer.freeze())),
            Err(e) if is_of_medium(&e) || e.kind() == io::ErrorKind::UnexpectedEof => {
                Ok(Slot::Damaged)
            }
            Err(e) => Err(e),
        }
    }

    /// Reads both.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, file: &File) -> io::Result<Found> {
        let mut found = Found::default();
        for offset in self.at {
            let mut buffer = Buffer::new(self.size);
            match file.read_exact_at(&mut buffer, offset) {
                Ok(()) => {}
                Err(e) if is_of_medium(&e) => {
                    // The other slot may be whole.
                    found.damaged += 1;
                    continue;
                }
                Err(e) => return Err(e),
            }
            match self.decode(&buffer.freeze()) {
                Slot::Empty => found.zeroed = true,
                Slot::Damaged => found.damaged += 1,
                Slot::Whole(seq, held) if seq > found.seq => {
                    (found.seq, found.held) = (seq, Some(held));
                }
                Slot::Whole(..) => {}
            }
        }
        Ok(found)
    }

    /// Replaces the older slot, durably. Two threads must not call it at once. `seq` is the sequence number of the newer
    /// slot.
    ///
    /// # Errors
    /// The system's, or the content is too long.
    pub fn write(&self, file: &File, seq: &AtomicU64, held: &[u8]) -> io::Result<()> {
        if held.len() > self.longest() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is too long for its place",
            ));
        }
        let next = seq.load(Relaxed) + 1;
        file.write_all_at(&self.encode(next, held), self.at[(next % 2) as usize])?;
        file.sync_data()?;
        seq.store(next, Relaxed);
        Ok(())
    }

    pub fn encode(&self, seq: u64, held: &[u8]) -> Buffer {
        let mut slot = Buffer::new((HEAD + held.len()).next_multiple_of(PIECE));
        slot[..8].copy_from_slice(&self.magic);
        slot[8..16].copy_from_slice(&seq.to_le_bytes());
        slot[16..20].copy_from_slice(&(held.len() as u32).to_le_bytes());
        slot[HEAD..HEAD + held.len()].copy_from_slice(held);
        let crc = checksum(&slot, held.len());
        slot[20..24].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    pub fn decode(&self, slot: &Bytes) -> Slot {
        if slot[..HEAD].iter().all(|&byte| byte == 0) {
            return Slot::Empty;
        }
        let field = |at: usize| slot[at..].first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b));
        let seq = slot[8..].first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        let length = field(16) as usize;
        let whole = slot[..8] == self.magic
            && length <= slot.len() - HEAD
            && checksum(slot, length) == field(20);
        if whole { Slot::Whole(seq, slot.slice(HEAD..HEAD + length)) } else { Slot::Damaged }
    }
}

/// Returns true if the medium fails there, rather than all of it or the request.
fn is_of_medium(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// The checksum that a slot must have: of all its bytes but the checksum.
fn checksum(slot: &[u8], length: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&slot[..20]), &slot[HEAD..HEAD + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { at: [0, 16384], size: 16384, magic: *b"LkTested" };
    /// The piece that a medium writes at once, in bytes.
    const SECTOR: usize = 512;

    /// A slot as it is read, with the rest of it zeros.
    fn slot(seq: u64, held: &[u8]) -> Vec<u8> {
        let mut bytes = PLACE.encode(seq, held).to_vec();
        bytes.resize(PLACE.size, 0);
        bytes
    }

    fn decode(bytes: Vec<u8>) -> Slot {
        PLACE.decode(&Bytes::from(bytes))
    }

    fn held(byte: u8) -> Vec<u8> {
        (0..5000_u32).map(|i| (i as u8).wrapping_mul(byte)).collect()
    }

    #[test]
    fn a_write_that_is_cut_short_at_any_byte_is_found_out() {
        let (old, new) = (slot(1, &held(3)), slot(3, &held(5)));
        let written = Slot::Whole(3, held(5).into());
        assert_eq!(decode(new.clone()), written);
        for cut in 1..HEAD + 5000 {
            let front = [&new[..cut], &old[cut..]].concat();
            let back = [&old[..cut], &new[cut..]].concat();
            for torn in [front, back] {
                // If the rest is the same in both, the slot is whole.
                let whole = torn == new || torn == old;
                assert!(whole || decode(torn) == Slot::Damaged, "cut at {cut}");
            }
        }
    }

    /// A disk may write sectors in any order.
    #[test]
    fn a_write_of_which_any_sectors_are_missing_is_found_out() {
        let (old, new) = (slot(1, &held(3)), slot(3, &held(5)));
        let sectors = (HEAD + 5000).div_ceil(SECTOR);
        for written in 1..(1_u32 << sectors) - 1 {
            let mut torn = old.clone();
            for at in (0..sectors).filter(|at| written & 1 << at != 0) {
                torn[at * SECTOR..][..SECTOR].copy_from_slice(&new[at * SECTOR..][..SECTOR]);
            }
            assert!([Slot::Damaged].contains(&decode(torn)), "sectors {written:b}");
        }
    }

    #[test]
    fn every_wrong_bit_is_found_out() {
        let right = slot(7, b"kept");
        for bit in 0..(HEAD + 4) * 8 {
            let mut wrong = right.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(wrong), Slot::Damaged, "bit {bit}");
        }
        assert_eq!(decode(vec![0; PLACE.size]), Slot::Empty);
        assert_eq!(decode(vec![0xff; PLACE.size]), Slot::Damaged);
    }

    /// Any remainder of the third write leaves the second one valid. The next write takes the third's number again.
    #[test]
    fn what_was_there_before_counts_after_a_torn_write() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * PLACE.size as u64).unwrap();
        let seq = AtomicU64::new(0);
        for held in [b"first".as_slice(), b"second"] {
            PLACE.write(&file, &seq, held).unwrap();
        }
        let third = PLACE.encode(3, b"third");
        for cut in 0..HEAD + 5 {
            file.write_all_at(&third[..cut], PLACE.at[1]).unwrap();
            let found = PLACE.read(&file).unwrap();
            assert_eq!((found.seq, found.held.as_deref()), (2, Some(b"second".as_slice())));
        }
        let found = PLACE.read(&file).unwrap();
        assert_eq!(found.damaged, 1);
        PLACE.write(&file, &AtomicU64::new(found.seq), b"third").unwrap();
        assert_eq!(PLACE.read(&file).unwrap().held.as_deref(), Some(b"third".as_slice()));
        assert!(PLACE.write(&file, &seq, &vec![0; PLACE.longest() + 1]).is_err());
    }
}
