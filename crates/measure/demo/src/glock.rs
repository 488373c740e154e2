//! Lock names in GFS2's manner, and the numbers that block allocation gives.

use lockify_core::Name;

/// The number of the shared folder: every node knows it.
pub const ROOT: u64 = 0x15;

/// The kind of object that a glock protects (`fs/gfs2/glock.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// `LM_TYPE_INODE`: an inode's contents.
    Inode = 2,
    /// `LM_TYPE_IOPEN`: who has the file open.
    Iopen = 5,
}

/// The identity of a glock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Glock {
    /// The kind of protected object.
    pub kind: Kind,
    /// The number of the inode's first block.
    pub number: u64,
}

impl Glock {
    /// An inode's glock.
    pub fn inode(number: u64) -> Glock {
        Glock { kind: Kind::Inode, number }
    }

    /// An inode's iopen glock.
    pub fn iopen(number: u64) -> Glock {
        Glock { kind: Kind::Iopen, number }
    }

    /// The lock's name: the 24 characters that `gdlm_lock` makes (`fs/gfs2/lock_dlm.c`), without
    /// allocation, because this is on the timed path.
    pub fn name(self) -> Name {
        let mut text = [b' '; 24];
        hex_right(&mut text[..8], self.kind as u64);
        hex_right(&mut text[8..], self.number);
        Name::new(text).unwrap_or_else(|_| unreachable!("24 bytes are a valid name"))
    }
}

/// Writes `value` in hexadecimal, right-aligned in `field`.
fn hex_right(field: &mut [u8], mut value: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 0xf) as usize];
        value >>= 4;
        if value == 0 {
            break;
        }
    }
}

/// Numbers for new inodes: every node allocates from block ranges (resource groups) of its own,
/// and no number comes twice.
#[derive(Clone, Debug)]
pub struct Allocator {
    next: u64,
}

impl Allocator {
    /// Blocks of one node's range: far more than any run creates.
    const RANGE: u64 = 1 << 40;

    /// The range of the node with this number (from 1).
    pub fn new(node: u32) -> Allocator {
        Allocator { next: u64::from(node) * Allocator::RANGE }
    }

    /// The next free number.
    pub fn allocate(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_gfs2s() {
        assert_eq!(Glock::inode(0x1f).name().as_bytes(), b"       2              1f");
        assert_eq!(Glock::iopen(0xabcdef).name().as_bytes(), b"       5          abcdef");
    }

    #[test]
    fn nodes_never_allocate_the_same_number() {
        let (mut a, mut b) = (Allocator::new(1), Allocator::new(2));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            assert!(seen.insert(a.allocate()) && seen.insert(b.allocate()));
        }
        assert!(!seen.contains(&ROOT));
    }
}
