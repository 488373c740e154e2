//! Locks by tickets: DSLR (docs/design/onesided.md 2.5) and ShiftLock-S (docs/design/onesided.md 2.8). Both are FIFO, and
//! free of starvation.
//!
//! ```text
//! | stamp : 4 | closed : 1 | nX : 14 | nS : 14 | maxX : 15 | maxS : 16 |
//! ```
//! A fetch-and-add on `max` draws a ticket and shows who is before it: `maxX` writers and `maxS` readers. A reader holds
//! once these writers are served, a writer once all are. Release counts `nX` or `nS` up.
//!
//! In DSLR waiters poll. In ShiftLock-S a writer that has to wait writes its name into a slot, then READs the word once
//! more: a releasing client counts first and then reads the slot, so that one of the two sees the other. The word stays
//! the only truth; a hint tells what it was, and may be lost.
//!
//! **When the counters run out**, nobody withdraws (a withdrawal may borrow from a neighbour after a reset). The client
//! with the last ticket of a kind waits until it is alone and releases by closing the generation; later tickets are void.

use crate::fabric::{Fabric, Verb};
use crate::grant::Grant;
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::{Mode, Options, Protocol};
use crate::protocol::{Field, Hold as AnyHold, counter};
use crate::session::{Law, Session, Spot, Stop, Watch};
use crate::table::{Generation, LockId};

const MAX_S: Field = Field { shift: 0, bits: counter(14) + 2 };
const MAX_X: Field = MAX_S.above(counter(14) + 1);
const NOW_S: Field = MAX_X.above(counter(14));
const NOW_X: Field = NOW_S.above(counter(14));
const CLOSED: Field = NOW_X.above(1);
const STAMP: Field = Field::top(4);

/// Most tickets of a kind in a generation: what is drawn past the end must not carry.
pub(crate) const MOST_TICKETS: u16 = 1 << (NOW_X.bits - 1);

/// Few tickets are valid in a generation, so that those drawn too late carry into no neighbour.
pub(crate) const LAW: Law =
    Law { closed: CLOSED.mask(), stamp: STAMP, padding: 0, progress: NOW_X.mask() | NOW_S.mask() };

/// A ticket: what the word was when it was drawn.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    mode: Mode,
    writers: u64,
    readers: u64,
    /// The last one of its kind.
    last: bool,
}

impl Ticket {
    fn alone(&self) -> bool {
        self.mode == Mode::Exclusive || self.last
    }

    fn writers_are_gone(&self, word: u64) -> bool {
        NOW_X.get(word) == self.writers
    }

    fn is_served(&self, options: &Options, word: u64) -> bool {
        let readers_count = self.alone() && !mutated!(options, WriterIgnoresReaders);
        self.writers_are_gone(word) && (!readers_count || NOW_S.get(word) == self.readers)
    }

    /// Turns until it is served, at most. In ShiftLock-S readers take one together: they come and go at once.
    fn ahead(&self, options: &Options, word: u64) -> u64 {
        let writers = self.writers.saturating_sub(NOW_X.get(word));
        let one_by_one = self.alone() && options.protocol == Protocol::Dslr;
        let readers = if one_by_one { self.readers.saturating_sub(NOW_S.get(word)) } else { 0 };
        (writers + readers).max(1)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    ticket: Ticket,
    /// It had to wait, so others are likely to wait for it.
    contended: bool,
}

pub(crate) async fn acquire<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    generation: Generation,
    mode: Mode,
) -> Result<Grant, Stop> {
    let field = if mode == Mode::Exclusive { MAX_X } else { MAX_S };
    let issued = s.fabric.now();
    let word = s.fetch_and_add(s.table.word(lock, generation), field.one()).await?;
    let generation = s.generation_of(lock, generation, word).await?;
    let end = u64::from(s.options.turnover);
    let (writers, readers) = (MAX_X.get(word), MAX_S.get(word));
    let last = field.get(word) == end - 1;
    let ticket = Ticket { mode, writers, readers, last };
    // Hints find the acquisition by its ticket.
    let spot = s.enter_as(lock, generation, claimant(writers));
    let mut watch = Watch::new(issued, s.fabric.now(), word & LAW.progress);
    if writers >= end || readers >= end {
        return Err(wait_for_closing(s, spot, ticket, watch, word).await);
    }
    let contended = !ticket.is_served(&s.options, word);
    let served = if contended { wait(s, spot, ticket, &mut watch, word).await? } else { word };
    let since = watch.lease_start(served & LAW.progress);
    Ok(Grant { spot, since, order: writers, hold: AnyHold::Ticket(Hold { ticket, contended }) })
}

/// Waits for its turn; the word that showed it, or as much of it as a hint told.
async fn wait<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    ticket: Ticket,
    watch: &mut Watch,
    mut word: u64,
) -> Result<u64, Stop> {
    let queues = s.options.protocol == Protocol::ShiftLockS && ticket.mode == Mode::Exclusive;
    if queues && !ticket.writers_are_gone(word) {
        word = leave_name(s, spot, ticket, watch, word).await?;
        while !ticket.writers_are_gone(word) {
            let hint = |letter: &LockLetter| letter.kind == Kind::Hint;
            let net = s.options.net.saturating_mul(ticket.ahead(&s.options, word));
            word = match s.wait_letter(spot, watch, net, hint).await? {
                // The word when the former writer had counted up.
                Ok(letter) => NOW_S.set(NOW_X.set(0, ticket.writers), letter.value),
                Err(word) => word,
            };
        }
    }
    while !ticket.is_served(&s.options, word) {
        s.pause(s.options.unit * ticket.ahead(&s.options, word)).await;
        word = s.look(spot, watch).await?;
        let overtaken = NOW_S.get(word) > ticket.readers;
        if mutated!(s.options, ReaderTakesSiblingsForSkips) && !ticket.alone() && overtaken {
            return Err(Stop::Evicted);
        }
    }
    Ok(word)
}

/// Writes the slot and reads the word, in this order on one queue pair.
async fn leave_name<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    ticket: Ticket,
    watch: &mut Watch,
    seen: u64,
) -> Result<u64, Stop> {
    let written = s.post(slot(s, spot, ticket.writers), Verb::Write(name(s, spot, ticket.writers)));
    if mutated!(s.options, SlotWithoutCheck) {
        written.await?;
        return Ok(seen);
    }
    let word = s.look(spot, watch).await?;
    written.await?;
    Ok(word)
}

/// A ticket drawn past the end: waits for the next generation.
async fn wait_for_closing<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    ticket: Ticket,
    mut watch: Watch,
    word: u64,
) -> Stop {
    let mut ahead = ticket.ahead(&s.options, word);
    loop {
        s.pause(s.options.unit * ahead).await;
        match s.look(spot, &mut watch).await {
            Ok(word) => ahead = ticket.ahead(&s.options, word),
            Err(stop) => return stop,
        }
    }
}

pub(crate) async fn release<F: Fabric>(s: &Session<F>, spot: Spot, hold: Hold) -> Result<(), Stop> {
    let ticket = hold.ticket;
    if ticket.last {
        return close(s, spot, ticket).await;
    }
    let counts = match ticket.mode {
        Mode::Shared if mutated!(s.options, ReaderCountsAsWriter) => NOW_X,
        Mode::Shared => NOW_S,
        Mode::Exclusive => NOW_X,
    };
    let may_hint = s.options.protocol == Protocol::ShiftLockS && ticket.mode == Mode::Exclusive;
    let next = ticket.writers + 1;
    if mutated!(s.options, SlotBeforeRelease) && may_hint {
        let early = s.read(slot(s, spot, next)).await?;
        let old = s.fetch_and_add(s.word(spot), counts.one()).await?;
        hint(s, spot, next, old, early);
        return Ok(());
    }
    let counted = s.post(s.word(spot), Verb::FetchAndAdd(counts.one()));
    // Where there was one waiter, there is likely another: the slot is read in the same round trip.
    let early = (may_hint && hold.contended).then(|| s.post(slot(s, spot, next), Verb::Read));
    let old = counted.await?;
    if LAW.is_closed(old) {
        return Err(Stop::Evicted);
    }
    if !may_hint || MAX_X.get(old) <= next {
        return Ok(());
    }
    let found = match early {
        Some(early) => early.await?,
        None => s.read(slot(s, spot, next)).await?,
    };
    hint(s, spot, next, old, found);
    Ok(())
}

/// Tells the next writer, if the slot names it: else it sees by itself what the word is. It may have seen that already,
/// and be gone (docs/design/onesided.md 2.8: a hint may be lost or late).
fn hint<F: Fabric>(s: &Session<F>, spot: Spot, next: u64, old: u64, found: u64) {
    let to = claimant(next);
    let waiter = crate::Peer(found as u16);
    if MAX_X.get(old) <= next || found >> 16 != name(s, spot, next) >> 16 || waiter.0 == 0 {
        return;
    }
    s.send_and_forget(waiter, spot.letter(Kind::Hint, to, NOW_S.get(old)));
}

/// The holder of the last ticket opens the next generation. Nobody else holds, and all who come now draw void tickets.
async fn close<F: Fabric>(s: &Session<F>, spot: Spot, ticket: Ticket) -> Result<(), Stop> {
    let mut expected =
        NOW_S.set(NOW_X.set(LAW.fresh_word(spot.generation), ticket.writers), ticket.readers);
    expected = MAX_S.set(MAX_X.set(expected, ticket.writers), ticket.readers);
    expected += if ticket.mode == Mode::Exclusive { MAX_X.one() } else { MAX_S.one() };
    loop {
        let found =
            s.compare_and_swap(s.word(spot), expected, LAW.closed_word(spot.generation)).await?;
        if found == expected {
            return Ok(());
        }
        if LAW.is_closed(found) {
            return Err(Stop::Evicted);
        }
        expected = found;
    }
}

/// A ticket as the acquisition that letters name; never nobody.
fn claimant(ticket: u64) -> Claimant {
    Claimant(ticket as u32 + 1)
}

/// Slots are shared by all locks; those that collide lose a hint, no more.
fn slot<F: Fabric>(s: &Session<F>, spot: Spot, ticket: u64) -> crate::Address {
    s.table
        .slot(spot.lock.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(24).wrapping_add(ticket))
}

/// A waiter's name for its slot: lock, generation and ticket in 48 bits, and itself.
fn name<F: Fabric>(s: &Session<F>, spot: Spot, ticket: u64) -> u64 {
    let lock = spot.lock.0.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
    let tag = lock << 24 | u64::from(spot.generation & 0xff) << 16 | ticket & 0xffff;
    tag << 16 | u64::from(s.fabric.me().0)
}

/// Returns true if nobody holds or waits.
pub(crate) fn is_idle(word: u64) -> bool {
    NOW_X.get(word) == MAX_X.get(word) && NOW_S.get(word) == MAX_S.get(word)
}
