//! Registered memory, and verbs on it.
//!
//! # Revoking
//! A verb is a check of its key, an atomic instruction, and a *second* check of the key. Its process may be stopped
//! between any two of them, for as long as it likes, so nobody waits for it. If the key is revoked meanwhile, the second
//! check fails the verb, and its change of the word stays invisible: a later reader of the word fails as well, and memory
//! of a revoked region is never given to another. So a verb that ends well was executed before the key was revoked, and
//! one that did not was never executed for all that anybody can tell.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;

use lockify_onesided::{Address, Key, Peer, Region, RegionError, Verb, VerbError};

use super::layout::{REGIONS, header};
use super::segment::Segment;

/// Words of a region's entry, as byte offsets.
mod word {
    /// `VALID | key`; 0: not complete, or revoked.
    pub const KEY: u64 = 0;
    pub const HOME: u64 = 8;
    pub const OFFSET: u64 = 16;
    pub const LEN: u64 = 24;
}

const VALID: u64 = 1 << 32;

/// Keys differ between segments, so that the key of another is refused and not taken for one's own.
fn key(segment: &Segment, index: u64) -> Key {
    Key((segment.salt() as u32) << 8 | index as u32)
}

/// Registers memory that was never anybody's, hence is zero.
pub(super) fn register(segment: &Segment, home: Peer, bytes: u64) -> Result<Region, RegionError> {
    if bytes == 0 || !bytes.is_multiple_of(8) {
        return Err(RegionError::Length(bytes));
    }
    let refused = |reason: String| RegionError::Refused { bytes, reason };
    let all = segment.layout().memory_bytes;
    let take = |used: u64| used.checked_add(bytes).filter(|end| *end <= all);
    let offset = segment.header(header::USED).fetch_update(SeqCst, SeqCst, take);
    let offset = offset.map_err(|used| {
        refused(format!("of the segment's {all} bytes {used} are used (make it with more memory)"))
    })?;
    let index = segment.header(header::REGIONS).fetch_add(1, SeqCst);
    if index >= REGIONS {
        segment.header(header::REGIONS).store(REGIONS, SeqCst);
        return Err(refused(format!("all {REGIONS} keys of this segment were used")));
    }
    let at = segment.layout().region(index);
    let key = key(segment, index);
    segment.header(at + word::HOME).store(home.0.into(), SeqCst);
    segment.header(at + word::OFFSET).store(offset, SeqCst);
    segment.header(at + word::LEN).store(bytes, SeqCst);
    segment.header(at + word::KEY).store(VALID | u64::from(key.0), SeqCst);
    Ok(Region { home, key, len: bytes })
}

/// Revokes a key of this home.
pub(super) fn revoke(segment: &Segment, home: Peer, key: Key) {
    let Some(at) = entry(segment, key) else { return };
    if segment.header(at + word::HOME).load(SeqCst) == u64::from(home.0) {
        segment.header(at + word::KEY).store(0, SeqCst);
        // Before whatever the caller tells others.
        fence(SeqCst);
    }
}

/// Where a key's entry is, if the key is valid.
fn entry(segment: &Segment, key: Key) -> Option<u64> {
    let index = u64::from(key.0 & 0xff);
    let at = segment.layout().region(index.min(REGIONS - 1));
    is_valid(segment, at, key).then_some(at)
}

fn is_valid(segment: &Segment, at: u64, key: Key) -> bool {
    segment.header(at + word::KEY).load(SeqCst) == VALID | u64::from(key.0)
}

/// Executes a verb.
///
/// All is sequentially consistent: verbs of one peer have the order of their posting for everybody, and a WRITE before a
/// READ is seen before that READ is executed (docs/design/onesided.md 2.8).
pub(super) fn execute(segment: &Segment, at: Address, verb: Verb) -> Result<u64, VerbError> {
    let entry = entry(segment, at.key).ok_or(VerbError::WrongKey(at))?;
    if segment.header(entry + word::HOME).load(SeqCst) != u64::from(at.home.0) {
        return Err(VerbError::WrongKey(at));
    }
    let len = segment.header(entry + word::LEN).load(SeqCst);
    let inside =
        at.offset.is_multiple_of(8) && at.offset.checked_add(8).is_some_and(|end| end <= len);
    let start = segment.header(entry + word::OFFSET).load(SeqCst);
    // The entry is memory that others can write to: it is not believed that far.
    let offset = start.checked_add(at.offset).filter(|_| inside);
    let place =
        offset.and_then(|offset| segment.memory(offset)).ok_or(VerbError::OutOfBounds(at))?;
    let before = match verb {
        Verb::Read => place.load(SeqCst),
        Verb::Write(value) => {
            place.store(value, SeqCst);
            0
        }
        Verb::FetchAndAdd(add) => place.fetch_add(add, SeqCst),
        Verb::CompareAndSwap { expected, new } => {
            place.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found)
        }
        Verb::MaskedCompareAndSwap { .. } => place
            .fetch_update(SeqCst, SeqCst, |found| verb.apply(found))
            .unwrap_or_else(|found| found),
    };
    if is_valid(segment, entry, at.key) { Ok(before) } else { Err(VerbError::WrongKey(at)) }
}
