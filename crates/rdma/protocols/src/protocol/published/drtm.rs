//! DrTM's locks (docs/design/onesided.md 2.10; SOSP 2015): the word is a lease, and clocks say whether it has ended.
//!
//! ```text
//! | write : 1 | owner : 24 | end : 39 |
//! ```
//! `end` is a time in units of 64 ns, as far as 39 bits tell. Without `write`, readers share the lock until `end`, and
//! nobody releases; who comes later shares what is left, or begins the next lease. With `write`, it is `owner`'s: without
//! leases until it releases, with leases until `end`. A writer that has released leaves `owner`, which says that `end`
//! means nothing but that the next one is later: it is the fencing token.
//!
//! **Clocks have to agree** up to [`Capabilities::clock_error`](crate::Capabilities::clock_error): a holder stops so much
//! before `end`, and everybody else goes by `end`. All changes compare the whole word, and `end` only grows, so what comes
//! late changes nothing. Left as published: writers can starve behind leases that are renewed.

use crate::fabric::{Fabric, Nanos};
use crate::grant::Grant;
use crate::letter::Claimant;
use crate::options::Mode;
use crate::protocol::{Field, Hold as AnyHold};
use crate::session::{Session, Spot, Stop};
use crate::table::LockId;

const END: Field = Field { shift: 0, bits: 39 };
const OWNER: Field = END.above(Claimant::BITS);
const WRITE: Field = OWNER.above(1);

const UNIT: Nanos = 64;

/// Of a read lease, where the clients' settings have none; as published.
const READ_LEASE: Nanos = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub until: Nanos,
    /// A writer's word.
    mine: Option<u64>,
}

/// The meaning of a word at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Readers have it until then.
    Read(Nanos),
    Written,
}

/// The constants of an acquisition.
struct Clock {
    lease: Nanos,
    error: Nanos,
    /// True if writers have leases.
    leased: bool,
}

impl Clock {
    fn of<F: Fabric>(s: &Session<F>) -> Clock {
        let Some(error) = s.fabric.capabilities().clock_error else {
            // Nobody is a client of this protocol without.
            return Clock { lease: 0, error: 0, leased: false };
        };
        let lease = s.options.lease.unwrap_or(READ_LEASE);
        Clock { lease, error, leased: s.options.lease.is_some() }
    }

    /// When a word's lease ends, if that is to come. No lease is longer than one and what clocks differ by; a time that
    /// seems to be later is one that 39 bits do not tell from it.
    fn end(&self, word: u64, now: Nanos) -> Option<Nanos> {
        let units = now / UNIT;
        let ahead = END.get(word).wrapping_sub(units) & END.mask();
        let longest = 2 * (self.lease + self.error) / UNIT + 2;
        (ahead > 0 && ahead <= longest).then(|| (units + ahead) * UNIT)
    }

    fn state(&self, word: u64, now: Nanos) -> State {
        let end = self.end(word, now);
        match (WRITE.get(word) != 0, end) {
            (true, None) if self.leased => State::Free,
            (true, _) => State::Written,
            (false, Some(end)) if OWNER.get(word) == 0 => State::Read(end),
            (false, _) => State::Free,
        }
    }

    /// The end of a lease that follows a free word.
    fn next_end(&self, word: u64, now: Nanos) -> Nanos {
        let earliest = self.end(word, now).map_or(0, |end| end + UNIT);
        ((now + self.lease) / UNIT * UNIT).max(earliest)
    }

    /// A holder's share of a lease.
    fn until(&self, end: Nanos) -> Nanos {
        end.saturating_sub(self.error)
    }
}

pub(crate) async fn acquire<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    mode: Mode,
) -> Result<Grant, Stop> {
    let spot = s.enter(lock, 0);
    let clock = Clock::of(s);
    let mut word = s.guess(lock);
    let mut attempt = 0;
    loop {
        let now = s.fabric.now();
        match clock.state(word, now) {
            State::Free => {
                let end = clock.next_end(word, now);
                let mut mine = END.set(0, end / UNIT);
                if mode == Mode::Exclusive {
                    mine = WRITE.set(OWNER.set(mine, spot.me.0.into()), 1);
                }
                let found = s.compare_and_swap(s.word(spot), word, mine).await?;
                if found == word {
                    s.count_success();
                    s.remember(lock, mine);
                    return Ok(grant(
                        &clock,
                        spot,
                        now,
                        end,
                        (mode == Mode::Exclusive).then_some(mine),
                    ));
                }
                word = found;
                // Readers that met while they began one.
                if let (Mode::Shared, State::Read(end)) = (mode, clock.state(word, now))
                    && clock.is_worth(end, s.fabric.now())
                {
                    s.remember(lock, word);
                    return Ok(grant(&clock, spot, now, end, None));
                }
            }
            // Known, but perhaps old: readers ask, and writers come back when it has ended.
            State::Read(end) if mode == Mode::Shared && clock.is_worth(end, now) => {
                word = s.read(s.word(spot)).await?;
                if clock.state(word, now) == State::Read(end) {
                    return Ok(grant(&clock, spot, now, end, None));
                }
            }
            State::Read(end) => s.fabric.sleep_until(end).await,
            State::Written => {
                s.back_off(attempt).await;
                attempt += 1;
                let released = WRITE.set(word, 0);
                let free = if clock.end(word, s.fabric.now()).is_none() && clock.leased {
                    word
                } else {
                    released
                };
                word = free;
            }
        }
    }
}

impl Clock {
    /// Returns true if enough is left of a lease to share it.
    fn is_worth(&self, end: Nanos, now: Nanos) -> bool {
        self.until(end).saturating_sub(now) >= self.lease / 4
    }
}

fn grant(clock: &Clock, spot: Spot, since: Nanos, end: Nanos, mine: Option<u64>) -> Grant {
    let ends = mine.is_none() || clock.leased;
    let until = if ends { clock.until(end) } else { Nanos::MAX };
    Grant { spot, since, order: end / UNIT, hold: AnyHold::Drtm(Hold { until, mine }) }
}

pub(crate) async fn release<F: Fabric>(s: &Session<F>, spot: Spot, hold: Hold) -> Result<(), Stop> {
    let Some(mine) = hold.mine else {
        // A lease ends by itself.
        return if s.fabric.now() < hold.until { Ok(()) } else { Err(Stop::Evicted) };
    };
    let free = WRITE.set(mine, 0);
    if s.compare_and_swap(s.word(spot), mine, free).await? != mine {
        return Err(Stop::Evicted);
    }
    s.remember(spot.lock, free);
    Ok(())
}

/// Returns true if nobody writes. Readers' leases end by themselves.
pub(crate) fn is_idle(word: u64) -> bool {
    WRITE.get(word) == 0
}
