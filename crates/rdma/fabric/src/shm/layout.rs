//! Where everything is in a segment.
//!
//! ```text
//! header | a slot per peer | regions | tails | heads | rings | memory
//! ```
//! All parts begin at whole cache lines. `tails[r][s]` and `heads[r][s]` count the messages that sender `s` has put into,
//! and receiver `r` has taken from, `rings[r][s]`; all tails of a receiver are side by side, since it looks at all.

/// First word of a segment.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"LckfyShm");
/// Grows with every change of the layout in this file.
pub(super) const VERSION: u64 = 2;

/// Most peers of a segment: rings grow with their square.
pub const MAX_PEERS: u64 = 512;
/// Messages that a ring holds.
pub(super) const DEPTH: u64 = 32;
/// Regions that can be registered in a segment's life.
pub(super) const REGIONS: u64 = 255;

const LINE: u64 = 64;
/// A ring's entry is a cache line.
const ENTRY: u64 = LINE;
/// The identity in one line, data that others write in another.
const SLOT: u64 = 2 * LINE;
const REGION: u64 = LINE;

/// Bytes of the header, its notice included.
pub(super) const HEADER: u64 = 4096;

/// Words of the header, as byte offsets.
pub(super) mod header {
    pub const MAGIC: u64 = 0;
    pub const VERSION: u64 = 8;
    pub const BYTES: u64 = 16;
    pub const PEERS: u64 = 24;
    pub const MEMORY: u64 = 32;
    /// The salt of this segment's keys.
    pub const SALT: u64 = 40;
    /// Not 0: closed.
    pub const CLOSED: u64 = 48;
    /// Bytes of memory that were given to regions.
    pub const USED: u64 = 56;
    /// Regions that were begun.
    pub const REGIONS: u64 = 64;
    /// Not 0: the first place is kept for the home.
    pub const HOME: u64 = 72;
    /// Length of the notice, and then the notice.
    pub const NOTICE_LEN: u64 = 120;
    pub const NOTICE: u64 = 128;
}

/// How large a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Processes that can take part at a time, 2 to [`MAX_PEERS`].
    pub peers: u64,
    /// Bytes that can be registered, in all regions together.
    pub memory: u64,
}

/// Where its parts are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub peers: u64,
    pub memory_bytes: u64,
    slots: u64,
    regions: u64,
    tails: u64,
    heads: u64,
    rings: u64,
    memory: u64,
    /// Of the whole segment.
    pub bytes: u64,
}

impl Layout {
    /// `None` if the shape is impossible.
    pub fn of(shape: Shape) -> Option<Layout> {
        let peers = shape.peers;
        if !(2..=MAX_PEERS).contains(&peers) || shape.memory < 8 {
            return None;
        }
        let counters = peers * counters_bytes(peers);
        let slots = HEADER;
        let regions = slots + peers * SLOT;
        let tails = regions + REGIONS * REGION;
        let heads = tails + counters;
        let rings = heads + counters;
        let memory = rings + peers * peers * DEPTH * ENTRY;
        let memory_bytes = shape.memory.checked_next_multiple_of(8)?;
        // No file is longer than this.
        let bytes = memory.checked_add(memory_bytes).filter(|b| i64::try_from(*b).is_ok())?;
        Some(Layout { peers, memory_bytes, slots, regions, tails, heads, rings, memory, bytes })
    }

    pub fn slot(&self, slot: u64) -> u64 {
        self.slots + slot * SLOT
    }

    pub fn region(&self, index: u64) -> u64 {
        self.regions + index * REGION
    }

    pub fn tail(&self, receiver: u64, sender: u64) -> u64 {
        self.tails + receiver * counters_bytes(self.peers) + 4 * sender
    }

    pub fn head(&self, receiver: u64, sender: u64) -> u64 {
        self.heads + receiver * counters_bytes(self.peers) + 4 * sender
    }

    pub fn entry(&self, receiver: u64, sender: u64, number: u32) -> u64 {
        let ring = receiver * self.peers + sender;
        self.rings + (ring * DEPTH + u64::from(number) % DEPTH) * ENTRY
    }

    pub fn memory(&self, offset: u64) -> u64 {
        self.memory + offset
    }
}

/// A receiver's counters, in lines of their own.
fn counters_bytes(peers: u64) -> u64 {
    (4 * peers).next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_end_where_the_segment_ends() {
        for peers in [2, 3, 17, MAX_PEERS] {
            let layout = Layout::of(Shape { peers, memory: 24 }).unwrap();
            let last = peers - 1;
            let parts = [
                (HEADER, layout.slot(0)),
                (layout.slot(last) + SLOT, layout.region(0)),
                (layout.region(REGIONS - 1) + REGION, layout.tail(0, 0)),
                (layout.tail(last, last) + 4, layout.head(0, 0)),
                (layout.head(last, last) + 4, layout.entry(0, 0, 0)),
                (layout.entry(last, last, DEPTH as u32 - 1) + ENTRY, layout.memory(0)),
                (layout.memory(24), layout.bytes),
            ];
            for (end, next) in parts {
                assert!(end <= next && next - end < LINE, "{peers} peers: {end} and {next}");
            }
            assert_eq!(layout.entry(0, 1, 0) - layout.entry(0, 0, 0), DEPTH * ENTRY);
            assert_eq!(layout.entry(0, 0, DEPTH as u32), layout.entry(0, 0, 0));
        }
    }

    #[test]
    fn impossible_shapes_have_no_layout() {
        for (peers, memory) in [(0, 64), (1, 64), (MAX_PEERS + 1, 64), (2, 0), (2, u64::MAX)] {
            assert_eq!(Layout::of(Shape { peers, memory }), None, "{peers} {memory}");
        }
    }
}
