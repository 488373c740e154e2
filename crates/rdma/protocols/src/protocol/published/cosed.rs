//! N-CoSED (docs/design/onesided.md 2.3), as the corrected machine.
//!
//! ```text
//! | progress : 19 | stamp : 4 | closed : 1 | E : 24 | S : 16 |
//! ```
//! `E` is the last exclusive requester, `S` counts the shared requests since. An exclusive requester swaps itself in and
//! takes `S` along; it asks the one before it, or the home, which counts the readers that leave. A shared requester adds
//! to `S`; if there is an `E`, it asks that one. With leases, every change of holder counts in `progress` before it is
//! told.
//!
//! A writer's swap compares `S`, so a steady stream of readers would fail it for ever (hole 9). After some failures it
//! counts itself into the lock's *intents*, which lie beside the generation's number and end with the generation. A reader
//! that has shared the lock a moment ago reads them first, and waits while there are any. They only order who goes first:
//! nothing is unsafe if they are wrong.

use core::future::Future;
use core::pin::Pin;

use crate::fabric::{Fabric, Nanos, Verb};
use crate::grant::Grant;
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::Mode;
use crate::protocol::{Field, Hold as AnyHold, counter};
use crate::session::{Law, Session, Spot, Stop, Watch};
use crate::table::{Generation, LockId};

/// The low half, since requests are counted by plain addition.
pub(crate) const S: Field = Field { shift: 0, bits: counter(16) };
pub(crate) const E: Field = S.above(Claimant::BITS);
const CLOSED: Field = E.above(1);
const STAMP: Field = CLOSED.above(4);
pub(crate) const PROGRESS: Field = Field::top(counter(19));

/// Anything counts as progress: readers that come show it in `S` only. No word comes back: a client that takes away from
/// `S` adds to `progress`.
pub(crate) const LAW: Law = Law { closed: CLOSED.mask(), stamp: STAMP, padding: 0, progress: !0 };

/// A free lock with more progress than this goes on in the next generation, so that tokens never shrink.
const TURNOVER: u64 = 1 << (PROGRESS.bits - 1);

/// Readers wait from here on until the home has taken away those that left (hole 10).
const MOST_READERS: u64 = 1 << (S.bits - 1);

/// Failed swaps until a writer asks readers to wait, and until it asks again.
const PATIENCE: u32 = if cfg!(test) { 1 } else { 4 };

/// A reader looks for waiting writers if it left this lock less than so many units ago. Those who share less often than
/// that may overtake: it takes hundreds of them to be in the way of each swap.
const RECENT: Nanos = 512;

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
    if s.has_shared(lock, RECENT * s.options.unit) && !mutated!(s.options, CosedReadersNeverYield) {
        yield_to_writers(s, lock).await?;
    }
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

/// Waits while writers ask for it. A client that has waited too long withdraws a dead writer's request.
async fn yield_to_writers<F: Fabric>(s: &Session<F>, lock: LockId) -> Result<(), Stop> {
    let mut watch: Option<Watch> = None;
    loop {
        let issued = s.fabric.now();
        let number = s.read(s.table.generation(lock)).await?;
        if !has_intents(number) {
            return Ok(());
        }
        let done = s.fabric.now();
        let watch = watch.get_or_insert_with(|| Watch::new(issued, done, number));
        watch.saw(issued, done, number);
        if s.is_dead(watch) {
            let none = u64::from(number as Generation);
            s.compare_and_swap(s.table.generation(lock), number, none).await?;
        } else {
            s.pause(s.options.unit).await;
        }
    }
}

/// Returns true if writers wait. Late verbs of a dead writer may leave the count wrong in either direction.
fn has_intents(number: u64) -> bool {
    (number >> Generation::BITS) as i32 > 0
}

/// To be added to a generation's number.
const INTENT: u64 = 1 << Generation::BITS;

async fn write<F: Fabric>(s: &Session<F>, spot: Spot) -> Result<Grant, Stop> {
    let mut expected = s.guess(spot.lock);
    let intents = s.table.generation(spot.lock);
    let (mut failed, mut asked) = (0_u32, 0);
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
        failed += 1;
        if failed.is_multiple_of(PATIENCE) {
            let number = s.fetch_and_add(intents, INTENT).await?;
            if number as Generation != spot.generation {
                // Too late: it counts in the next generation, where nobody would take it back.
                drop(s.post(intents, Verb::FetchAndAdd(INTENT.wrapping_neg())));
                return Err(Stop::Evicted);
            }
            asked += INTENT;
        }
    };
    if asked > 0 {
        drop(s.post(intents, Verb::FetchAndAdd(asked.wrapping_neg())));
    }
    if mutated!(s.options, CosedDropsEarlyRequests) {
        s.forget_letters().await;
    }
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

/// A reader leaves at the home, even if another client granted it (hole 11).
async fn leave<F: Fabric>(s: &Session<F>, spot: Spot, until: Nanos) -> Result<(), Stop> {
    s.shares(spot.lock, RECENT * s.options.unit);
    let mut to = s.table.region().home;
    if mutated!(s.options, CosedReadersLeaveAtTheWriter) {
        let writer = Claimant(E.get(s.read(s.word(spot)).await?) as u32);
        to = if writer == Claimant::NOBODY { to } else { writer.peer() };
    }
    s.send(to, spot.letter(Kind::SharedDone, Claimant::NOBODY, 0)).await?;
    // A message tells nothing; only when the lease is over can it be that it came too late.
    if s.fabric.now() >= until && LAW.is_closed(s.read(s.word(spot)).await?) {
        return Err(Stop::Evicted);
    }
    Ok(())
}

async fn pass_on<F: Fabric>(s: &Session<F>, spot: Spot, progress: u64) -> Result<(), Stop> {
    s.collect().await;
    let mut admission = Admission { s, spot, progress, readers: 0, told: Vec::new() };
    // Whoever asked is counted under this holder's name, so every later writer waits for it: it may hold from now on.
    // With leases the word has to show the change first.
    if s.options.lease.is_none() {
        admission.grant_known();
    }
    let next = match s.find(spot, |l| l.kind == Kind::WantExclusive) {
        Some(next) => next,
        None => match free(&admission).await? {
            Freed::Alone => return Ok(()),
            Freed::ToReaders(readers, progress) => {
                let all_were_told = admission.readers == readers;
                admission.progress = progress;
                let word = S.set(PROGRESS.set(LAW.fresh_word(spot.generation), progress), readers);
                admission.grant(readers, word).await?;
                if all_were_told && !mutated!(s.options, CosedLeavesUntold) {
                    // They may all have left before the word was theirs, and the home could not take them out of it.
                    let home = s.table.region().home;
                    s.send(home, spot.letter(Kind::Recount, Claimant::NOBODY, 0)).await?;
                }
                return admission.end().await;
            }
            Freed::Not(seen) => admission.await_writer(seen).await?,
        },
    };
    let mut readers = next.value;
    if mutated!(s.options, CosedHandsOverUncounted) {
        readers = 0;
    }
    let word = count(s, spot, &mut admission.progress).await?;
    admission.grant(readers, word).await?;
    let progress = admission.progress;
    if next.value == 0 || mutated!(s.options, CosedIgnoresReadersBetween | CosedHandsOverUncounted)
    {
        s.send(next.from.peer(), spot.letter(Kind::Grant, next.from, progress)).await?;
    } else {
        let ask = LockLetter {
            from: next.from,
            ..spot.letter(Kind::Exclusive, Claimant::NOBODY, next.value)
        };
        s.send(s.table.region().home, ask).await?;
    }
    admission.end().await
}

/// How a holder that releases lets in the readers that asked it.
struct Admission<'a, F> {
    s: &'a Session<F>,
    spot: Spot,
    /// The word's, with which they hold.
    progress: u64,
    /// So many were told.
    readers: u64,
    told: Vec<Told<'a>>,
}

/// Ends when a letter has been taken.
type Told<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + 'a>>;

fn wants_shared(letter: &LockLetter) -> bool {
    letter.kind == Kind::WantShared
}

impl<F: Fabric> Admission<'_, F> {
    fn grant_to(&mut self, reader: Claimant) {
        let grant = self.spot.letter(Kind::Grant, reader, self.progress);
        self.told.push(Box::pin(self.s.send(reader.peer(), grant)));
        self.readers += 1;
    }

    fn grant_known(&mut self) {
        while let Some(letter) = self.s.find(self.spot, wants_shared) {
            self.grant_to(letter.from);
        }
    }

    /// Lets in all counted readers: each adds first and asks then. `word` is the present word.
    async fn grant(&mut self, readers: u64, word: u64) -> Result<(), Stop> {
        self.grant_known();
        let now = self.s.fabric.now();
        let mut watch = Watch::new(now, now, word);
        while self.readers < readers {
            let letter = self.s.await_letter(self.spot, &mut watch, wants_shared).await?;
            self.grant_to(letter.from);
        }
        Ok(())
    }

    /// Waits for the writer behind, whose swap the word shows.
    async fn await_writer(&mut self, seen: u64) -> Result<LockLetter, Stop> {
        let now = self.s.fabric.now();
        let mut watch = Watch::new(now, now, seen);
        let tells = self.s.options.lease.is_none();
        let wanted =
            |l: &LockLetter| l.kind == Kind::WantExclusive || tells && l.kind == Kind::WantShared;
        loop {
            let letter = self.s.await_letter(self.spot, &mut watch, wanted).await?;
            if letter.kind == Kind::WantExclusive {
                return Ok(letter);
            }
            self.grant_to(letter.from);
        }
    }

    /// Waits until all that was said has been taken.
    async fn end(self) -> Result<(), Stop> {
        for told in self.told {
            told.await?;
        }
        Ok(())
    }
}

enum Freed {
    Alone,
    /// So many readers asked this holder, or are about to; and the progress with which they hold.
    ToReaders(u64, u64),
    /// Somebody exclusive is behind; the word.
    Not(u64),
}

/// Gives the lock up, to the readers that were counted under this holder's name, if no writer is behind.
async fn free<F: Fabric>(admission: &Admission<'_, F>) -> Result<Freed, Stop> {
    let &Admission { s, spot, progress, readers: told, .. } = admission;
    let leased = s.options.lease.is_some();
    let fresh = LAW.fresh_word(spot.generation);
    let mine = E.set(PROGRESS.set(fresh, progress), spot.me.0.into());
    // Those that are known are likely to be all.
    let mut mine = S.set(mine, told + s.known(spot, wants_shared));
    let after = progress + u64::from(leased);
    if mutated!(s.options, CosedUnlockResets) {
        s.post(s.word(spot), Verb::Write(0)).await?;
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
            return Ok(if readers == 0 { Freed::Alone } else { Freed::ToReaders(readers, after) });
        }
        if E.get(found) != u64::from(spot.me.0) {
            return Ok(Freed::Not(found));
        }
        mine = found;
    }
}

/// Shows in the word that the lock changes hands; the word after that.
async fn count<F: Fabric>(s: &Session<F>, spot: Spot, progress: &mut u64) -> Result<u64, Stop> {
    if s.options.lease.is_none() {
        return Ok(0);
    }
    let old = s.fetch_and_add(s.word(spot), PROGRESS.one()).await?;
    if LAW.is_closed(old) {
        return Err(Stop::Evicted);
    }
    *progress += 1;
    Ok(old.wrapping_add(PROGRESS.one()))
}

/// The word of a free lock after so many changes.
#[cfg(test)]
pub(crate) fn worn(changes: u64) -> u64 {
    PROGRESS.set(0, changes)
}

/// Returns true if nobody holds or waits.
pub(crate) fn is_idle(word: u64) -> bool {
    E.get(word) == 0 && S.get(word) == 0
}
