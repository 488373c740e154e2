//! CAS-spin (docs/design/onesided.md 2.4): the word is its owner, and everybody tries until it is free. No order, no sharing.
//!
//! ```text
//! | count : 40 | owner : 24 |
//! ```
//! With leases, `count` grows with every holder. All changes compare the whole word, so a late one finds another count
//! and changes nothing; a lock whose word stands still for too long is taken over directly.

use crate::fabric::Fabric;
use crate::grant::Grant;
use crate::letter::Claimant;
use crate::protocol::{Field, Hold, counter};
use crate::session::{Law, Session, Spot, Stop, Watch};
use crate::table::LockId;

const OWNER: Field = Field { shift: 0, bits: Claimant::BITS };
const COUNT: Field = Field::top(counter(64 - Claimant::BITS));

/// Words are never closed.
pub(crate) const LAW: Law =
    Law { closed: 0, stamp: Field { shift: 0, bits: 0 }, padding: 0, progress: !0 };

pub(crate) async fn acquire<F: Fabric>(s: &Session<F>, lock: LockId) -> Result<Grant, Stop> {
    let spot = s.enter(lock, 0);
    let mut expected = s.guess(lock);
    let mut watch: Option<Watch> = None;
    let mut attempt = 0;
    loop {
        let next =
            if s.options.lease.is_some() { expected.wrapping_add(COUNT.one()) } else { expected };
        let mine = OWNER.set(next, spot.me.0.into());
        let issued = s.fabric.now();
        let found = s.compare_and_swap(s.word(spot), expected, mine).await?;
        if found == expected {
            s.count_success();
            return Ok(Grant {
                spot,
                since: issued,
                order: COUNT.get(mine),
                hold: Hold::Spin(mine),
            });
        }
        let done = s.fabric.now();
        let watch = watch.get_or_insert_with(|| Watch::new(issued, done, found));
        watch.saw(issued, done, found);
        if OWNER.get(found) == 0 || s.is_dead(watch) {
            expected = found;
        } else {
            expected = OWNER.set(found, 0);
            s.back_off(attempt).await;
            attempt += 1;
        }
    }
}

pub(crate) async fn release<F: Fabric>(s: &Session<F>, spot: Spot, mine: u64) -> Result<(), Stop> {
    let free = OWNER.set(mine, 0);
    let found = s.compare_and_swap(s.word(spot), mine, free).await?;
    if found != mine {
        return Err(Stop::Evicted);
    }
    s.remember(spot.lock, free);
    Ok(())
}

/// The word of a free lock after so many changes.
#[cfg(test)]
pub(crate) fn worn(changes: u64) -> u64 {
    COUNT.set(0, changes)
}

/// Returns true if nobody holds or waits.
pub(crate) fn is_idle(word: u64) -> bool {
    OWNER.get(word) == 0
}
