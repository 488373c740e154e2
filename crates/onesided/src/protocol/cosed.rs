//! N-CoSED (section 2.3), as the corrected machine.
//!
//! ```text
//! | progress : 19 | stamp : 4 | closed : 1 | E : 24 | S : 16 |
//! ```
//! `E` is the last exclusive requester, `S` counts the shared requests since. An exclusive requester swaps itself in and
//! takes `S` along; it asks the one before it, or the home, which counts the readers that leave. A shared requester adds
//! to `S`; if there is an `E`, it asks that one. With leases, every change of holder counts in `progress` before it is
//! told.
//!
//! Left as published: a steady stream of readers can starve a writer, whose swap compares `S` (hole 9).

use crate::client::Grant;
use crate::fabric::{Fabric, Nanos};
use crate::letter::{Claimant, Kind, Letter};
use crate::options::Mode;
use crate::protocol::{Field, Hold as AnyHold};
use crate::session::{Law, Session, Spot, Stop, Watch};
use crate::table::{Generation, LockId};

/// The low half, since requests are counted by plain addition.
pub(crate) const S: Field = Field { shift: 0, bits: 16 };
pub(crate) const E: Field = Field { shift: 16, bits: Claimant::BITS };
const STAMP: Field = Field { shift: 41, bits: 4 };
pub(crate) const PROGRESS: Field = Field { shift: 45, bits: 19 };

/// Anything counts as progress: readers that come show it in `S` only. No word comes back: whoever takes away from `S`
/// adds to `progress`.
pub(crate) const LAW: Law = Law { closed: 1 << 40, stamp: STAMP, padding: 0, progress: !0 };

/// A free lock with more progress than this goes on in the next generation, so that tokens never shrink.
const TURNOVER: u64 = 1 << 18;

/// Readers wait from here on until the home has taken away those that left (hole 10).
const MOST_READERS: u64 = 1 << 15;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    Reader,
    /// With the word's progress while it holds.
    Writer(u64),
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
    let old = s.fetch_and_add(s.table.word(lock, generation), S.one()).await?;
    let done = s.fabric.now();
    let spot = s.enter(lock, s.generation_of(lock, generation, old).await?);
    let mut watch = Watch::new(issued, done, old);
    let mut since = issued;
    if E.get(old) != 0 {
        let holder = Claimant(E.get(old) as u32);
        s.send(holder.peer(), spot.letter(Kind::WantShared, holder, 0)).await?;
        let turn = s.await_letter(spot, &mut watch, |l| l.kind == Kind::Grant).await?;
        since = granted_since(&watch, turn.value);
    }
    while S.get(old) >= MOST_READERS && S.get(s.look(spot, &mut watch).await?) >= MOST_READERS {
        s.pause(s.options.unit).await;
    }
    Ok(Grant { spot, since, order: 0, hold: AnyHold::Cosed(Hold::Reader) })
}

async fn write<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<Grant, Stop> {
    let mut expected = s.guess(spot.lock);
    let (issued, old) = loop {
        let mine = S.set(E.set(expected, spot.me.0.into()), 0);
        let issued = s.fabric.now();
        let found = s.compare_and_swap(s.word(spot), expected, mine).await?;
        if LAW.is_closed(found) || !LAW.is_of(found, spot.generation) {
            return Err(Stop::Evicted);
        }
        if found == expected {
            break (issued, found);
        }
        expected = found;
    };
    let swapped = S.set(E.set(old, spot.me.0.into()), 0);
    let mut watch = Watch::new(issued, s.fabric.now(), swapped);
    let mut progress = PROGRESS.get(old);
    let mut since = issued;
    let (before, readers) = (Claimant(E.get(old) as u32), S.get(old));
    if before != Claimant::NOBODY || readers > 0 {
        if before == Claimant::NOBODY {
            s.send(s.table.region().home, spot.letter(Kind::Exclusive, Claimant::NOBODY, readers))
                .await?;
        } else {
            s.send(before.peer(), spot.letter(Kind::WantExclusive, before, readers)).await?;
        }
        let turn = s.await_letter(spot, &mut watch, |l| l.kind == Kind::Grant).await?;
        since = granted_since(&watch, turn.value);
        progress = turn.value;
    }
    Ok(Grant { spot, since, order: progress, hold: AnyHold::Cosed(Hold::Writer(progress)) })
}

/// When a lease starts that was given by the change to this progress. If the word has gone on since, as it may while a
/// reader's grant is late, what was seen last says nothing: the lease starts with what was seen before.
fn granted_since(watch: &Watch, progress: u64) -> Nanos {
    let ahead =
        progress.wrapping_sub(PROGRESS.get(watch.seen())) & (PROGRESS.mask() >> PROGRESS.shift);
    let is_news = ahead != 0 && ahead < TURNOVER;
    watch.lease_start(if is_news { !watch.seen() } else { watch.seen() })
}

pub(crate) async fn release<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    hold: Hold,
    until: Nanos,
) -> Result<(), Stop> {
    match hold {
        Hold::Reader => leave(s, spot, until).await,
        Hold::Writer(progress) => pass_on(s, spot, progress).await,
    }
}

/// A reader leaves at the home, whoever granted it (hole 11).
async fn leave<F: Fabric>(s: &Session<F>, spot: Spot, until: Nanos) -> Result<(), Stop> {
    s.send(s.table.region().home, spot.letter(Kind::SharedDone, Claimant::NOBODY, 0)).await?;
    // A message tells nothing; only when the lease is over can it be that it came too late.
    if s.fabric.now() >= until && LAW.is_closed(s.read(s.word(spot)).await?) {
        return Err(Stop::Evicted);
    }
    Ok(())
}

async fn pass_on<F: Fabric>(s: &Session<F>, spot: Spot, progress: u64) -> Result<(), Stop> {
    let next_kind = |l: &Letter| l.kind == Kind::WantExclusive;
    s.collect().await;
    let next = match s.find(spot, next_kind) {
        Some(next) => next,
        None => match free(s, spot, progress).await? {
            Freed::Alone => return Ok(()),
            Freed::WithReaders(readers, progress) => {
                return admit(s, spot, readers, progress).await;
            }
            Freed::Not(seen) => {
                let now = s.fabric.now();
                let mut watch = Watch::new(now, now, seen);
                s.await_letter(spot, &mut watch, next_kind).await?
            }
        },
    };
    let mut readers = next.value;
    if mutated!(s.options, CosedHandsOverUncounted) {
        readers = 0;
    }
    let waiting = collect_readers(s, spot, readers).await?;
    let progress = count(s, spot, progress).await?;
    for reader in waiting {
        s.send(reader.peer(), spot.letter(Kind::Grant, reader, progress)).await?;
    }
    if next.value == 0 || mutated!(s.options, CosedIgnoresReadersBetween | CosedHandsOverUncounted)
    {
        s.send(next.from.peer(), spot.letter(Kind::Grant, next.from, progress)).await
    } else {
        let ask = Letter {
            from: next.from,
            ..spot.letter(Kind::Exclusive, Claimant::NOBODY, next.value)
        };
        s.send(s.table.region().home, ask).await
    }
}

enum Freed {
    Alone,
    /// So many readers asked this holder, or are about to; and the progress with which they hold.
    WithReaders(u64, u64),
    /// Somebody exclusive is behind; the word.
    Not(u64),
}

async fn free<F: Fabric>(s: &Session<F>, spot: Spot, progress: u64) -> Result<Freed, Stop> {
    let leased = s.options.lease.is_some();
    let fresh = LAW.fresh_word(spot.generation);
    let mut mine = E.set(PROGRESS.set(fresh, progress), spot.me.0.into());
    let after = progress + u64::from(leased);
    if mutated!(s.options, CosedUnlockResets) {
        s.post(s.word(spot), crate::Verb::Write(0)).await?;
        return Ok(Freed::Alone);
    }
    loop {
        let readers = S.get(mine);
        let turn_over = leased && progress >= TURNOVER && readers == 0;
        let freed = S.set(PROGRESS.set(fresh, after), readers);
        let freed = if turn_over { LAW.closed_word(spot.generation) } else { freed };
        let found = s.compare_and_swap(s.word(spot), mine, freed).await?;
        if LAW.is_closed(found) {
            return Err(Stop::Evicted);
        }
        if found == mine {
            s.remember(spot.lock, freed);
            return Ok(if readers == 0 {
                Freed::Alone
            } else {
                Freed::WithReaders(readers, after)
            });
        }
        if E.get(found) != u64::from(spot.me.0) {
            return Ok(Freed::Not(found));
        }
        mine = found;
    }
}

/// Waits for the requests of as many readers as were counted: each adds first and asks then.
async fn collect_readers<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    readers: u64,
) -> Result<Vec<Claimant>, Stop> {
    let wanted = |l: &Letter| l.kind == Kind::WantShared;
    let mut waiting: Vec<Claimant> = Vec::new();
    while (waiting.len() as u64) < readers {
        let seen = s.read(s.word(spot)).await?;
        let now = s.fabric.now();
        let mut watch = Watch::new(now, now, seen);
        waiting.push(s.await_letter(spot, &mut watch, wanted).await?.from);
    }
    if mutated!(s.options, CosedHandsOverUncounted) {
        while let Some(letter) = s.find(spot, wanted) {
            waiting.push(letter.from);
        }
    }
    Ok(waiting)
}

/// Grants readers after the lock was given up to them.
async fn admit<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    readers: u64,
    progress: u64,
) -> Result<(), Stop> {
    let now = s.fabric.now();
    for _ in 0..readers {
        let mut watch = Watch::new(
            now,
            now,
            S.set(PROGRESS.set(LAW.fresh_word(spot.generation), progress), readers),
        );
        let reader = s.await_letter(spot, &mut watch, |l| l.kind == Kind::WantShared).await?.from;
        s.send(reader.peer(), spot.letter(Kind::Grant, reader, progress)).await?;
    }
    Ok(())
}

/// Shows in the word that the lock changes hands.
async fn count<F: Fabric>(s: &Session<F>, spot: Spot, progress: u64) -> Result<u64, Stop> {
    if s.options.lease.is_none() {
        return Ok(progress);
    }
    let old = s.fetch_and_add(s.word(spot), PROGRESS.one()).await?;
    if LAW.is_closed(old) { Err(Stop::Evicted) } else { Ok(progress + 1) }
}

/// Whether nobody holds or waits.
pub(crate) fn is_idle(word: u64) -> bool {
    E.get(word) == 0 && S.get(word) == 0
}
