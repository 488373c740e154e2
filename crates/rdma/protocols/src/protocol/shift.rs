//! ShiftLock (docs/design/onesided.md 2.7), published as a 128-bit entry, here in one word of 64 bits.
//!
//! ```text
//! | released : 22 | stamp : 4 | closed : 1 | mode : 1 | readers : 12 | tail : 24 |
//! ```
//! Writers queue by swapping the tail and hand over to each other by messages. Readers are counted; those that found a
//! tail wait until `mode` flips, which happens at the end of a batch of writers. `released` counts readers that left and
//! batches that ended, and stands still while writers own the lock. The word needs no more: `released` wraps at the top,
//! and only differences count. So masked operations of 8 bytes do where the fabric has them, and compare-and-swap loops
//! where it has not.
//!
//! With leases each hand-over counts in `released`, too (hole 1), and every change by a writer compares it (hole 3). A
//! late verb finds a closed generation (holes 2 to 5).

use crate::fabric::{Fabric, Verb};
use crate::grant::Grant;
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::{Mode, Protocol};
use crate::protocol::{Field, Hold as AnyHold, counter};
use crate::session::{Law, Session, Spot, Stop, Watch};
use crate::table::{Generation, LockId};

const TAIL: Field = Field { shift: 0, bits: Claimant::BITS };
const READERS: Field = TAIL.above(counter(12));
const FLIP: Field = READERS.above(1);
const CLOSED: Field = FLIP.above(1);
const STAMP: Field = CLOSED.above(4);
const RELEASED: Field = Field::top(counter(22));

/// Readers that leave late subtract from the padding.
pub(crate) const LAW: Law = Law {
    closed: CLOSED.mask(),
    stamp: STAMP,
    padding: HALF_OF_READERS,
    progress: RELEASED.mask(),
};

const HALF_OF_READERS: u64 = READERS.one() << (READERS.bits - 1);

/// The bits that show a word's openness and its generation.
const OPEN: u64 = LAW.closed | STAMP.mask();

/// A lock that is free after so many releases goes on in the next generation, so that tokens never shrink.
const TURNOVER: u64 = 1 << (RELEASED.bits - 1);

/// After the fast path failed on a lock, it is left out so often there (ShiftLock+; hole 7).
const SKIPS: u8 = 16;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    Reader,
    Writer(Writer),
}

/// The data that passes from writer to writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    /// `released` while this writer holds; only its low bits are in the word.
    released: u64,
    flip: u64,
    /// Writers of this batch before this one.
    before: u32,
}

impl Writer {
    fn first(word: u64) -> Writer {
        Writer { released: RELEASED.get(word), flip: FLIP.get(word), before: 0 }
    }

    /// `released` in 40 bits, 1 for the mode, 23 for the batch.
    fn encode(self) -> u64 {
        self.released << 24 | self.flip << 23 | u64::from(self.before) & 0x7f_ffff
    }

    fn decode(value: u64) -> Writer {
        Writer { released: value >> 24, flip: value >> 23 & 1, before: (value & 0x7f_ffff) as u32 }
    }
}

/// A change of some bits if others are as expected.
#[derive(Clone, Copy)]
struct Change {
    expected: u64,
    compare_mask: u64,
    new: u64,
    swap_mask: u64,
}

impl Change {
    fn fits(&self, word: u64) -> bool {
        (word ^ self.expected) & self.compare_mask == 0
    }

    /// Makes the change, masked or by comparing the whole word as often as others change the rest of it. The word as it
    /// was; the change was made if that fits.
    async fn make<F: Fabric>(self, s: &Session<F>, spot: Spot, guess: u64) -> Result<u64, Stop> {
        let Change { expected, compare_mask, new, swap_mask } = self;
        if s.fabric.capabilities().masked {
            let verb = Verb::MaskedCompareAndSwap { expected, compare_mask, new, swap_mask };
            return Ok(s.post(s.word(spot), verb).await?);
        }
        let mut whole = guess & !compare_mask | expected & compare_mask;
        loop {
            let found = s
                .compare_and_swap(s.word(spot), whole, whole & !swap_mask | new & swap_mask)
                .await?;
            if found == whole || !self.fits(found) {
                return Ok(found);
            }
            whole = found;
        }
    }
}

pub(crate) async fn acquire<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    generation: Generation,
    mode: Mode,
) -> Result<Grant, Stop> {
    match mode {
        Mode::Shared => read(s, lock, generation).await,
        Mode::Exclusive => write(s, s.enter(lock, generation)).await,
    }
}

async fn read<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    generation: Generation,
) -> Result<Grant, Stop> {
    let issued = s.fabric.now();
    let mut word = s.fetch_and_add(s.table.word(lock, generation), READERS.one()).await?;
    let mut watch = Watch::new(issued, s.fabric.now(), word & LAW.progress);
    let spot = s.enter(lock, s.generation_of(lock, generation, word).await?);
    if TAIL.get(word) != 0 {
        let flip = FLIP.get(word);
        while FLIP.get(word) == flip {
            s.pause(s.options.unit).await;
            word = s.look(spot, &mut watch).await?;
        }
    }
    let since = watch.lease_start(watch.seen());
    Ok(Grant { spot, since, order: RELEASED.get(word), hold: AnyHold::Shift(Hold::Reader) })
}

async fn write<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<Grant, Stop> {
    let granted = |since, writer: Writer| Grant {
        spot,
        since,
        order: writer.released,
        hold: AnyHold::Shift(Hold::Writer(writer)),
    };
    if let Some((issued, word)) = fast_path(s, spot).await? {
        return Ok(granted(issued, Writer::first(word)));
    }
    let issued = s.fabric.now();
    let me = spot.me.0.into();
    let expected = LAW.fresh_word(spot.generation);
    let swap = Change { expected, compare_mask: OPEN, new: me, swap_mask: TAIL.mask() };
    let word = swap.make(s, spot, s.guess(spot.lock)).await?;
    if !swap.fits(word) {
        return Err(Stop::Evicted);
    }
    let mut watch = Watch::new(issued, s.fabric.now(), word & LAW.progress);
    let mut writer = Writer::first(word);
    if TAIL.get(word) == 0 {
        if !mutated!(s.options, ShiftIgnoresReaders) {
            writer.released += READERS.get(word);
        }
        wait_for_readers(s, spot, &mut watch, writer.released, word).await?;
    } else {
        let before = Claimant(TAIL.get(word) as u32);
        s.send(before.peer(), spot.letter(Kind::Successor, before, 0)).await?;
        let wanted =
            |letter: &LockLetter| matches!(letter.kind, Kind::Handover | Kind::ModeChanged);
        let turn = s.await_letter(spot, &mut watch, wanted).await?;
        writer = Writer::decode(turn.value);
        if turn.kind == Kind::ModeChanged {
            let word = s.look(spot, &mut watch).await?;
            wait_for_readers(s, spot, &mut watch, writer.released, word).await?;
        }
    }
    Ok(granted(watch.lease_start(RELEASED.set(0, writer.released)), writer))
}

/// Takes a free lock; returns the word before, and the time of posting.
async fn fast_path<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<Option<(u64, u64)>, Stop> {
    let adapts = s.options.protocol == Protocol::ShiftLockPlus;
    if adapts && is_crowded(s, spot.lock) {
        return Ok(None);
    }
    let compare_mask = TAIL.mask() | READERS.mask() | OPEN;
    let expected = LAW.fresh_word(spot.generation);
    let change = Change { expected, compare_mask, new: spot.me.0.into(), swap_mask: TAIL.mask() };
    let mut guess = s.guess(spot.lock);
    for attempt in 0..if adapts { 1 } else { 2 } {
        if attempt > 0 {
            s.pause(s.options.unit).await;
        }
        let issued = s.fabric.now();
        let word = change.make(s, spot, guess).await?;
        if (word ^ expected) & OPEN != 0 {
            return Err(Stop::Evicted);
        }
        if change.fits(word) {
            return Ok(Some((issued, word)));
        }
        guess = word;
    }
    if adapts {
        s.crowded.borrow_mut().insert(spot.lock, SKIPS);
    }
    Ok(None)
}

fn is_crowded<F: Fabric>(s: &Session<F>, lock: LockId) -> bool {
    let mut crowded = s.crowded.borrow_mut();
    let Some(left) = crowded.get_mut(&lock) else { return false };
    *left -= 1;
    if *left == 0 {
        crowded.remove(&lock);
    }
    true
}

/// Waits until as many have released as there were readers to wait for.
async fn wait_for_readers<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    watch: &mut Watch,
    released: u64,
    mut word: u64,
) -> Result<(), Stop> {
    while RELEASED.get(word) != released & (RELEASED.mask() >> RELEASED.shift) {
        s.pause(s.options.unit).await;
        word = s.look(spot, watch).await?;
    }
    Ok(())
}

pub(crate) async fn release<F: Fabric>(s: &Session<F>, spot: Spot, hold: Hold) -> Result<(), Stop> {
    let writer = match hold {
        Hold::Reader => return leave(s, spot).await,
        Hold::Writer(writer) => writer,
    };
    s.collect().await;
    let successor = |letter: &LockLetter| letter.kind == Kind::Successor;
    let mut known = s.find(spot, successor).map(|letter| letter.from);
    if known.is_none() && free(s, spot, writer).await? {
        return Ok(());
    }
    let ends = writer.before + 1 >= s.options.batch && !mutated!(s.options, ShiftNeverEndsABatch);
    let flipped = if ends { Some(flip(s, spot, writer).await?) } else { None };
    if known.is_none() {
        let now = s.fabric.now();
        let mut watch =
            Watch::new(now, now, RELEASED.set(0, flipped.map_or(writer.released, |w| w.0)));
        known = Some(s.await_letter(spot, &mut watch, successor).await?.from);
    }
    let next = known.unwrap_or(Claimant::NOBODY);
    let (kind, value) = match flipped {
        Some((_, after)) => (Kind::ModeChanged, after),
        None => {
            let mut released = writer.released;
            if s.options.lease.is_some() && !mutated!(s.options, SilentHandover) {
                // Seen in the word before it is told: the new holder's lease starts before this change, and whoever
                // waits for stillness starts after it.
                if LAW.is_closed(s.fetch_and_add(s.word(spot), RELEASED.one()).await?) {
                    return Err(Stop::Evicted);
                }
                released += 1;
            }
            (Kind::Handover, Writer { released, before: writer.before + 1, ..writer })
        }
    };
    s.send(next.peer(), spot.letter(kind, next, value.encode())).await
}

/// A reader leaves by one addition: one reader fewer, one release more.
async fn leave<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<(), Stop> {
    let delta = RELEASED.one().wrapping_sub(READERS.one());
    let old = s.fetch_and_add(s.word(spot), delta).await?;
    if LAW.is_closed(old) {
        return Err(Stop::Evicted);
    }
    let last = READERS.get(old) == 1 && TAIL.get(old) == 0;
    if s.options.lease.is_some() && last && RELEASED.get(old) >= TURNOVER {
        let now = old.wrapping_add(delta);
        s.compare_and_swap(s.word(spot), now, LAW.closed_word(spot.generation)).await?;
    }
    Ok(())
}

/// Frees the lock and lets readers in, if no writer is behind.
async fn free<F: Fabric>(s: &Session<F>, spot: Spot, writer: Writer) -> Result<bool, Stop> {
    let fresh = LAW.fresh_word(spot.generation);
    let mine =
        RELEASED.set(FLIP.set(TAIL.set(fresh, spot.me.0.into()), writer.flip), writer.released);
    let freed = RELEASED.set(FLIP.set(fresh, writer.flip ^ 1), writer.released + 1);
    let turn_over = s.options.lease.is_some() && writer.released >= TURNOVER;
    let change = Change {
        expected: mine,
        compare_mask: TAIL.mask() | RELEASED.mask() | FLIP.mask() | OPEN,
        new: if turn_over { LAW.closed_word(spot.generation) } else { freed },
        swap_mask: if turn_over { !0 } else { TAIL.mask() | RELEASED.mask() | FLIP.mask() },
    };
    let found = change.make(s, spot, 0).await?;
    if LAW.is_closed(found) {
        return Err(Stop::Evicted);
    }
    if change.fits(found) {
        s.remember(spot.lock, READERS.set(freed, READERS.get(found)));
        return Ok(true);
    }
    if (found ^ mine) & (RELEASED.mask() | FLIP.mask()) != 0 {
        // Nobody else changes these while this writer holds.
        return Err(Stop::Evicted);
    }
    Ok(false)
}

/// Ends a batch: lets waiting readers in, and counts them for the next writer. `released` before the next one holds, as
/// it is now and as it will be.
async fn flip<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    writer: Writer,
) -> Result<(u64, Writer), Stop> {
    let mine =
        RELEASED.set(FLIP.set(LAW.fresh_word(spot.generation), writer.flip), writer.released);
    let change = Change {
        expected: mine,
        compare_mask: RELEASED.mask() | FLIP.mask() | OPEN,
        new: RELEASED.set(FLIP.set(0, writer.flip ^ 1), writer.released + 1),
        swap_mask: RELEASED.mask() | FLIP.mask(),
    };
    let found = change.make(s, spot, spot.me.0.into()).await?;
    if !change.fits(found) {
        return Err(Stop::Evicted);
    }
    let admitted = if mutated!(s.options, ShiftForgetsAdmitted) { 0 } else { READERS.get(found) };
    let released = writer.released + 1;
    Ok((released, Writer { released: released + admitted, flip: writer.flip ^ 1, before: 0 }))
}

/// The word of a free lock after so many changes.
#[cfg(test)]
pub(crate) fn worn(changes: u64) -> u64 {
    RELEASED.set(0, changes)
}

/// Returns true if nobody holds or waits.
pub(crate) fn is_idle(word: u64) -> bool {
    TAIL.get(word) == 0 && READERS.get(word) == 0
}
