//! RMA-RW (docs/design/onesided.md 2.9; HPDC 2016): writers queue by a tail as in MCS, readers count themselves in and out of a
//! second word.
//!
//! ```text
//! | 0 : 40 | tail : 24 |
//! | departed : 32 | writing : 1 | arrived : 31 |
//! ```
//! A reader that finds `writing`, or too many arrived since the last reset, takes itself back out and polls: undoing is
//! what this protocol pays for. The writer at the head waits until as many have departed as had arrived, sets `writing`,
//! and waits again for those that came in between. After a batch, or when nobody is behind, it resets the counts.
//!
//! **Resets** take what has departed from both counts. Published is to take away what was seen: then a reader that has
//! still to undo makes `arrived` negative, and borrows from its neighbours.
//!
//! Nothing is repaired: a lock is two words here, and no single compare-and-swap could close them. So leases are refused.

use crate::fabric::{Address, Fabric, Verb};
use crate::grant::Grant;
use crate::letter::{Claimant, Kind};
use crate::memory::Memory;
use crate::options::Mode;
use crate::protocol::{Field, Hold as AnyHold, counter};
use crate::session::{Session, Spot, Stop, Watch};
use crate::table::{LockId, Table};

const TAIL: Field = Field { shift: 0, bits: Claimant::BITS };

const ARRIVED: Field = Field { shift: 0, bits: counter(31) };
const WRITING: Field = ARRIVED.above(1);
const DEPARTED: Field = Field::top(counter(32));

/// Readers between two resets.
const MOST_READERS: u64 = if cfg!(test) { 3 } else { 4000 };

#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    Reader,
    /// With the writers of its batch before it.
    Writer(u32),
}

fn counts<F: Fabric>(s: &Session<F>, lock: LockId) -> Address {
    counts_of(&s.table, lock)
}

/// This protocol has no generations, so their words are free.
fn counts_of(table: &Table, lock: LockId) -> Address {
    table.word(lock, 1)
}

pub(crate) async fn acquire<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    mode: Mode,
) -> Result<Grant, Stop> {
    let issued = s.fabric.now();
    let spot = s.enter(lock, 0);
    let hold = match mode {
        Mode::Shared => read(s, lock).await?,
        Mode::Exclusive => write(s, spot).await?,
    };
    Ok(Grant { spot, since: issued, order: 0, hold: AnyHold::Rma(hold) })
}

fn admits(word: u64) -> bool {
    WRITING.get(word) == 0 && ARRIVED.get(word) < MOST_READERS
}

async fn read<F: Fabric>(s: &Session<F>, lock: LockId) -> Result<Hold, Stop> {
    let counts = counts(s, lock);
    loop {
        if admits(s.fetch_and_add(counts, ARRIVED.one()).await?) {
            return Ok(Hold::Reader);
        }
        drop(s.post(counts, Verb::FetchAndAdd(ARRIVED.one().wrapping_neg())));
        loop {
            s.pause(s.options.unit).await;
            let word = s.read(counts).await?;
            if admits(word) {
                break;
            }
            // Published is that only the reader which arrives as the last one resets. But if it finds a writer that has
            // reset already and is about to go, nobody would; so everybody may, and compares.
            if WRITING.get(word) == 0 && TAIL.get(s.read(s.table.word(lock, 0)).await?) == 0 {
                s.compare_and_swap(counts, word, word.wrapping_sub(departed(word))).await?;
            }
        }
    }
}

/// The amount that a reset takes away: the departed, from both counts.
fn departed(word: u64) -> u64 {
    DEPARTED.get(word) * (DEPARTED.one() | ARRIVED.one())
}

async fn write<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<Hold, Stop> {
    let before = Claimant(TAIL.get(swap(s, spot).await?) as u32);
    if before != Claimant::NOBODY {
        s.send(before.peer(), spot.letter(Kind::Successor, before, 0)).await?;
        let now = s.fabric.now();
        let mut watch = Watch::new(now, now, 0);
        let wanted =
            |l: &crate::letter::LockLetter| matches!(l.kind, Kind::Handover | Kind::ModeChanged);
        let turn = s.await_letter(spot, &mut watch, wanted).await?;
        if turn.kind == Kind::Handover {
            return Ok(Hold::Writer(turn.value as u32));
        }
    }
    let counts = counts(s, spot.lock);
    wait_for_readers(s, counts).await?;
    // Only the head of the queue does this, so it is not set already, and the addition does not carry.
    s.fetch_and_add(counts, WRITING.one()).await?;
    wait_for_readers(s, counts).await?;
    Ok(Hold::Writer(0))
}

/// Swaps itself into the tail; the word as it was.
async fn swap<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<u64, Stop> {
    let me = spot.me.0.into();
    if s.fabric.capabilities().masked {
        let swap_mask = TAIL.mask();
        let verb = Verb::MaskedCompareAndSwap { expected: 0, compare_mask: 0, new: me, swap_mask };
        return Ok(s.post(s.word(spot), verb).await?);
    }
    // Lock-free: each failure is another client's success.
    let mut expected = 0;
    loop {
        let found = s.compare_and_swap(s.word(spot), expected, me).await?;
        if found == expected {
            return Ok(found);
        }
        expected = found;
    }
}

async fn wait_for_readers<F: Fabric>(s: &Session<F>, counts: Address) -> Result<(), Stop> {
    loop {
        let word = s.read(counts).await?;
        if ARRIVED.get(word) == DEPARTED.get(word) {
            return Ok(());
        }
        s.pause(s.options.unit).await;
    }
}

pub(crate) async fn release<F: Fabric>(s: &Session<F>, spot: Spot, hold: Hold) -> Result<(), Stop> {
    let before = match hold {
        Hold::Reader => {
            s.fetch_and_add(counts(s, spot.lock), DEPARTED.one()).await?;
            return Ok(());
        }
        Hold::Writer(before) => before,
    };
    s.collect().await;
    let successor = |letter: &crate::letter::LockLetter| letter.kind == Kind::Successor;
    let known = s.find(spot, successor).map(|letter| letter.from);
    if let Some(next) = known.filter(|_| before + 1 < s.options.batch) {
        let handover = spot.letter(Kind::Handover, next, u64::from(before) + 1);
        return s.send(next.peer(), handover).await;
    }
    reset(s, counts(s, spot.lock)).await?;
    let next = match known {
        Some(next) => next,
        None => {
            let mine = u64::from(spot.me.0);
            if s.compare_and_swap(s.word(spot), mine, 0).await? == mine {
                return Ok(());
            }
            let now = s.fabric.now();
            let mut watch = Watch::new(now, now, 0);
            s.await_letter(spot, &mut watch, successor).await?.from
        }
    };
    s.send(next.peer(), spot.letter(Kind::ModeChanged, next, 0)).await
}

/// Lets readers in. None departs while a writer holds, so the read counts are still right when they are taken away.
async fn reset<F: Fabric>(s: &Session<F>, counts: Address) -> Result<(), Stop> {
    let word = s.read(counts).await?;
    let seen = if mutated!(s.options, RmaResetForgetsUndos) {
        word
    } else {
        WRITING.one() + departed(word)
    };
    s.fetch_and_add(counts, seen.wrapping_neg()).await?;
    Ok(())
}

/// Returns true if nobody holds or waits.
pub(crate) fn is_idle(table: &Table, memory: &Memory, lock: LockId) -> bool {
    let counts = memory.peek(counts_of(table, lock));
    let gone = WRITING.get(counts) == 0 && ARRIVED.get(counts) == DEPARTED.get(counts);
    gone && TAIL.get(memory.peek(table.word(lock, 0))) == 0
}
