//! The view of a program: take a lock, hold it, release it.

use crate::error::LockError;
use crate::fabric::{Fabric, Nanos};
use crate::grant::Grant;
use crate::letter::Claimant;
use crate::options::{Mode, Options, Protocol};
use crate::protocol::{Hold, cosed, drtm, rma, server, shift, spin, tail, ticket};
use crate::session::{Counts, Session, Spot, Stop};
use crate::table::{Generation, LockId, Table};

/// How a release ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// The lock was held until now.
    Yes,
    /// It had been taken away before: the lease had run out, and somebody else may have held it meanwhile.
    Revoked,
}

/// A lock that is held. Give it back with [`Client::unlock`]: dropping it keeps the lock until its lease is over, or for
/// ever if there are no leases.
#[derive(Debug)]
#[must_use = "the lock is held until unlock"]
pub struct Guard {
    pub(crate) lock: LockId,
    pub(crate) mode: Mode,
    pub(crate) generation: Generation,
    pub(crate) me: Claimant,
    pub(crate) until: Nanos,
    pub(crate) token: Option<u64>,
    pub(crate) hold: Hold,
}

impl Guard {
    /// The lock.
    pub fn lock(&self) -> LockId {
        self.lock
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The end of the hold, by [`Fabric::now`]. The protected data must not be touched later.
    pub fn valid_until(&self) -> Nanos {
        self.until
    }

    /// Grows from one exclusive holder of the lock to the next, if there are leases: storage that refuses smaller ones
    /// than it has seen is safe from holders that do not know that their lease is over.
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Of which generation of the lock: another one begins when it is repaired, or its counters have run out.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    fn spot(&self) -> Spot {
        Spot { lock: self.lock, generation: self.generation, me: self.me }
    }
}

/// Bits of a token below the generation.
const ORDER_BITS: u32 = 40;

/// One client of one table. It does one thing at a time, and may hold many locks.
pub struct Client<F> {
    session: Session<F>,
    held: Vec<LockId>,
}

impl<F: Fabric> Client<F> {
    /// A client.
    ///
    /// # Errors
    /// The settings are impossible ([`Options::check`]), or the fabric lacks a capability that the protocol needs.
    pub fn new(fabric: F, table: Table, options: Options) -> Result<Client<F>, LockError> {
        options.check()?;
        let protocol = options.protocol;
        if protocol.needs_clock() && fabric.capabilities().clock_error.is_none() {
            return Err(LockError::NoCommonClock(protocol.name()));
        }
        Ok(Client { session: Session::new(fabric, table, options), held: Vec::new() })
    }

    /// The fabric, for the program's own verbs.
    pub fn fabric(&self) -> &F {
        &self.session.fabric
    }

    /// The verbs posted so far.
    pub fn counts(&self) -> Counts {
        self.session.counts()
    }

    /// Returns true if the lock is still this client's. Ask before every access to the protected
    /// data.
    pub fn holds(&self, guard: &Guard) -> bool {
        self.session.fabric.now() < guard.until
    }

    /// Takes a lock; waits as long as it takes. An acquisition that a repair throws out begins again by itself.
    ///
    /// Take several in ascending order.
    ///
    /// # Errors
    /// There is no such lock, this client has it, or a verb failed.
    pub async fn lock(&mut self, lock: LockId, mode: Mode) -> Result<Guard, LockError> {
        let locks = self.session.table.locks();
        if lock.0 >= locks {
            return Err(LockError::NoSuchLock { lock, locks });
        }
        if self.held.contains(&lock) {
            return Err(LockError::Held(lock));
        }
        let taken = if self.session.options.protocol.shares() { mode } else { Mode::Exclusive };
        loop {
            let s = &self.session;
            let generation = s.generation(lock);
            let granted = match s.options.protocol {
                Protocol::Spin => spin::acquire(s, lock).await,
                Protocol::Dslr | Protocol::ShiftLockS => {
                    ticket::acquire(s, lock, generation, taken).await
                }
                Protocol::Mcs | Protocol::Dqnl => tail::acquire(s, lock, generation).await,
                Protocol::ShiftLock | Protocol::ShiftLockPlus => {
                    shift::acquire(s, lock, generation, taken).await
                }
                Protocol::NCosed => cosed::acquire(s, lock, generation, taken).await,
                Protocol::RmaRw => rma::acquire(s, lock, taken).await,
                Protocol::Drtm => drtm::acquire(s, lock, taken).await,
                Protocol::Srsl => server::acquire(s, lock, taken).await,
            };
            match granted {
                Ok(grant) => {
                    self.held.push(lock);
                    let guard = self.guard(grant, mode);
                    if self.holds(&guard) {
                        return Ok(guard);
                    }
                    // The grant was so late that others may have repaired the lock already.
                    self.unlock(guard).await?;
                }
                Err(stop) => {
                    s.leave_all(lock);
                    self.next_generation(lock, generation, stop).await?;
                }
            }
        }
    }

    fn guard(&self, grant: Grant, mode: Mode) -> Guard {
        let Grant { spot, since, order, hold } = grant;
        let token = (u64::from(spot.generation) << ORDER_BITS).wrapping_add(order);
        Guard {
            lock: spot.lock,
            mode,
            generation: spot.generation,
            me: spot.me,
            until: self.session.lease_end(since).min(hold.ends()),
            token: self.session.options.lease.map(|_| token + 1),
            hold,
        }
    }

    async fn next_generation(
        &self,
        lock: LockId,
        closed: Generation,
        stop: Stop,
    ) -> Result<(), LockError> {
        let advanced = match stop {
            Stop::Evicted => self.session.advance(lock, closed).await,
            failed => Err(failed),
        };
        match advanced {
            Ok(()) | Err(Stop::Evicted) => Ok(()),
            Err(Stop::Failed(error)) => Err(error.into()),
        }
    }

    /// Forgets a lock without giving it back, as a client that dies does: with leases, others repair it when its lease is
    /// over. For measurements of failures.
    pub fn abandon(&mut self, guard: Guard) {
        self.held.retain(|lock| *lock != guard.lock);
        self.session.leave(guard.spot());
    }

    /// Returns a lock, and hands it to the next client.
    ///
    /// # Errors
    /// A verb failed. The lock counts as given back; with leases others repair it, if need be.
    pub async fn unlock(&mut self, guard: Guard) -> Result<Released, LockError> {
        self.held.retain(|lock| *lock != guard.lock);
        let s = &self.session;
        let spot = guard.spot();
        let in_time = self.holds(&guard);
        if mutated!(s.options, LateReleaseOmitted) && !in_time {
            s.leave(spot);
            return Ok(Released::Revoked);
        }
        let released = match guard.hold {
            Hold::Spin(word) => spin::release(s, spot, word).await,
            Hold::Ticket(hold) => ticket::release(s, spot, hold).await,
            Hold::Tail(hold) => tail::release(s, spot, hold).await,
            Hold::Shift(hold) => shift::release(s, spot, hold).await,
            Hold::Cosed(hold) => cosed::release(s, spot, hold, guard.until).await,
            Hold::Rma(hold) => rma::release(s, spot, hold).await,
            Hold::Drtm(hold) => drtm::release(s, spot, hold).await,
            Hold::Server => server::release(s, spot, guard.until).await,
        };
        s.leave(spot);
        match released {
            Ok(()) => Ok(Released::Yes),
            // Nobody repairs before the lease is over: the lock was held until this call.
            Err(Stop::Evicted) if in_time => Ok(Released::Yes),
            Err(Stop::Evicted) => Ok(Released::Revoked),
            Err(Stop::Failed(error)) => Err(error.into()),
        }
    }
}
