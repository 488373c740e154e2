//! The content of sectors in simulations: each names its writer and its place. So stray or mixed content is noticed.

use std::ops::Range;

use bytes::{BufMut as _, Bytes, BytesMut};
use lockify_array::Span;
use lockify_history::array::Tag;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a sector in simulations. It is the least that hosts write.
pub const SECTOR_SIZE: u32 = 16;

/// Sectors of a block: as few as there can be if one may be written without the others.
pub const SECTORS: u32 = 2;

/// Bytes of a block in simulations.
pub const BLOCK_SIZE: u32 = SECTORS * SECTOR_SIZE;

/// The sectors of these blocks of the array.
pub fn sectors(span: Span) -> Range<u64> {
    span.start * u64::from(SECTORS)..span.end() * u64::from(SECTORS)
}

/// A sector's content: the tag, and what follows from tag and place.
fn sector(tag: Tag, place: u64) -> [u8; SECTOR_SIZE as usize] {
    let tag = tag.to_le_bytes();
    let mut content = [0; SECTOR_SIZE as usize];
    content[..8].copy_from_slice(&tag);
    content[8..].copy_from_slice(&xxh3_64_with_seed(&tag, place).to_le_bytes());
    content
}

/// The content of sectors of the array, from `start` on.
pub fn write(start: u64, tags: &[Tag]) -> Bytes {
    let mut data = BytesMut::with_capacity(tags.len() * SECTOR_SIZE as usize);
    (start..).zip(tags).for_each(|(place, tag)| data.put_slice(&sector(*tag, place)));
    data.freeze()
}

/// The tags of sectors of the array, from `start` on. Sectors that were never written have 0. Content that is no sector's,
/// or another one's, has a number that nobody writes.
pub fn read(start: u64, data: &[u8]) -> Vec<Tag> {
    let sectors = data.chunks(SECTOR_SIZE as usize);
    (start..).zip(sectors).map(|(place, content)| tag(content, place)).collect()
}

fn tag(content: &[u8], place: u64) -> Tag {
    if content.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let tag = content.first_chunk().map_or(0, |tag| Tag::from_le_bytes(*tag));
    if content == sector(tag, place) { tag } else { xxh3_64_with_seed(content, place) | 1 << 63 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_at_its_place_only() {
        let data = write(7, &[3, 4]);
        assert_eq!(read(7, &data), [3, 4]);
        assert!(read(8, &data).iter().all(|tag| tag >> 63 == 1));
        let mixed: Vec<u8> = data[..16].iter().zip(&data[16..]).map(|(a, b)| a ^ b).collect();
        assert_eq!(read(7, &mixed)[0] >> 63, 1);
        assert_eq!(read(7, &[0; 16]), [0]);
        assert_eq!(sectors(Span { start: 3, count: 2 }), 6..10);
    }
}
