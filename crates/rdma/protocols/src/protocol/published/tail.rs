//! Queues by a tail: DQNL (docs/design/onesided.md 2.2) and MCS (docs/design/onesided.md 2.6). Exclusive only, FIFO in the
//! order of the swaps.
//!
//! ```text
//! | progress : 35 | stamp : 4 | closed : 1 | tail : 24 |
//! ```
//! Whoever swaps itself into the tail tells the one before, and is told in turn. DQNL swaps by comparing, MCS by a masked
//! swap where the fabric has one. MCS counts its hand-overs in `progress`; DQNL does so only with leases, and then both
//! count releases, too, so that every change of holder is seen in the word before it is told. Without leases the verbs
//! are those published.
//!
//! A plain write of 0 by a holder that knows of no successor would wipe one out: release compares.

use crate::fabric::{Fabric, Verb};
use crate::grant::Grant;
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::Protocol;
use crate::protocol::{Field, Hold as AnyHold, counter};
use crate::session::{Law, Session, Spot, Stop, Watch};
use crate::table::{Generation, LockId};

const TAIL: Field = Field { shift: 0, bits: Claimant::BITS };
const CLOSED: Field = TAIL.above(1);
const STAMP: Field = CLOSED.above(4);
const PROGRESS: Field = Field::top(counter(35));

pub(crate) const LAW: Law =
    Law { closed: CLOSED.mask(), stamp: STAMP, padding: 0, progress: PROGRESS.mask() };

/// A free lock with more progress than this goes on in the next generation, so that tokens never shrink.
const TURNOVER: u64 = 1 << (PROGRESS.bits - 1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// The word's progress, once the hand-over before has counted.
    progress: u64,
}

pub(crate) async fn acquire<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    generation: Generation,
) -> Result<Grant, Stop> {
    let spot = s.enter(lock, generation);
    let issued = s.fabric.now();
    let old = swap(s, spot).await?;
    if LAW.is_closed(old) || !LAW.is_of(old, generation) {
        return Err(Stop::Evicted);
    }
    let mut progress = PROGRESS.get(old);
    let mut since = issued;
    if TAIL.get(old) != 0 {
        let mut watch = Watch::new(issued, s.fabric.now(), old & LAW.progress);
        let before = Claimant(TAIL.get(old) as u32);
        s.send(before.peer(), spot.letter(Kind::Successor, before, 0)).await?;
        let turn = s.await_letter(spot, &mut watch, |letter| letter.kind == Kind::Handover).await?;
        progress = turn.value;
        since = watch.lease_start(PROGRESS.set(0, progress));
    }
    Ok(Grant { spot, since, order: progress, hold: AnyHold::Tail(Hold { progress }) })
}

/// Swaps itself into the tail, unless the generation is closed; the word as it was.
async fn swap<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<u64, Stop> {
    let me = spot.me.0.into();
    if s.options.protocol == Protocol::Mcs && s.fabric.capabilities().masked {
        let verb = Verb::MaskedCompareAndSwap {
            expected: LAW.fresh_word(spot.generation),
            compare_mask: LAW.closed | STAMP.mask(),
            new: me,
            swap_mask: TAIL.mask(),
        };
        return Ok(s.post(s.word(spot), verb).await?);
    }
    // Lock-free: each failure is somebody else's success.
    let mut expected = s.guess(spot.lock);
    loop {
        let found = s.compare_and_swap(s.word(spot), expected, TAIL.set(expected, me)).await?;
        if found == expected || LAW.is_closed(found) || !LAW.is_of(found, spot.generation) {
            return Ok(found);
        }
        expected = found;
    }
}

pub(crate) async fn release<F: Fabric>(s: &Session<F>, spot: Spot, hold: Hold) -> Result<(), Stop> {
    s.collect().await;
    let successor = |letter: &LockLetter| letter.kind == Kind::Successor;
    let known = s.find(spot, successor);
    let next = match known {
        Some(letter) => letter.from,
        None => {
            let Some(seen) = free(s, spot, hold).await? else { return Ok(()) };
            // Somebody is behind: its letter is on its way, unless it died between its swap and its message.
            let now = s.fabric.now();
            let mut watch = Watch::new(now, now, seen & LAW.progress);
            s.await_letter(spot, &mut watch, successor).await?.from
        }
    };
    hand_over(s, spot, hold, next).await
}

/// Frees the lock if nobody is behind; else the word.
async fn free<F: Fabric>(s: &Session<F>, spot: Spot, hold: Hold) -> Result<Option<u64>, Stop> {
    let leased = s.options.lease.is_some();
    let fresh = LAW.fresh_word(spot.generation);
    let mine = TAIL.set(PROGRESS.set(fresh, hold.progress), spot.me.0.into());
    if mutated!(s.options, TailWritesZero) {
        s.post(s.word(spot), Verb::Write(0)).await?;
        return Ok(None);
    }
    let freed = PROGRESS.set(fresh, hold.progress + u64::from(leased));
    let freed =
        if leased && hold.progress >= TURNOVER { LAW.closed_word(spot.generation) } else { freed };
    loop {
        let found = s.compare_and_swap(s.word(spot), mine, freed).await?;
        if found == mine {
            s.remember(spot.lock, freed);
            return Ok(None);
        }
        if LAW.is_closed(found) {
            return Err(Stop::Evicted);
        }
        if TAIL.get(found) != u64::from(spot.me.0) {
            return Ok(Some(found));
        }
        // The hand-over to this holder has not been counted yet.
        s.pause(s.options.unit).await;
    }
}

async fn hand_over<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    hold: Hold,
    next: Claimant,
) -> Result<(), Stop> {
    let count = || s.post(s.word(spot), Verb::FetchAndAdd(PROGRESS.one()));
    let mut progress = hold.progress;
    if s.options.lease.is_some() && !mutated!(s.options, SilentHandover) {
        if LAW.is_closed(count().await?) {
            return Err(Stop::Evicted);
        }
        progress += 1;
    } else if s.options.protocol == Protocol::Mcs {
        drop(count());
        progress += 1;
    }
    s.send(next.peer(), spot.letter(Kind::Handover, next, progress)).await
}

/// The word of a free lock after so many changes.
#[cfg(test)]
pub(crate) fn worn(changes: u64) -> u64 {
    PROGRESS.set(0, changes)
}

/// Returns true if nobody holds or waits.
pub(crate) fn is_idle(word: u64) -> bool {
    TAIL.get(word) == 0
}
