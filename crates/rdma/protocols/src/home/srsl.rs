//! SRSL's server (docs/design/onesided.md 2.1): for each lock who holds it and who waits, first come first served.
//!
//! It is gone with its process, but for the number of grants: a server that another one may follow keeps
//! that in the lock's word, which this protocol has no other use for.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::error::LockError;
use crate::fabric::{Fabric, Nanos, Verb};
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::{Mode, Options};
use crate::protocol::server::EXCLUSIVE;
use crate::table::{LockId, Table};

/// The generation that all locks have: this protocol repairs nothing in memory.
const GENERATION: u32 = 0;

struct Waiter {
    who: Claimant,
    mode: Mode,
    /// The latest of its questions.
    number: u64,
}

#[derive(Default)]
struct Lock {
    holders: Vec<(Claimant, Nanos)>,
    /// Of the holders; exclusive has one.
    exclusive: bool,
    queue: VecDeque<Waiter>,
    granted: u64,
}

impl Lock {
    /// Takes from the queue who may hold now, with the letter's value.
    fn grant(&mut self, until: Nanos) -> Vec<(Claimant, u64)> {
        let mut granted = Vec::new();
        while let Some(head) = self.queue.front() {
            let fits = self.holders.is_empty() || !self.exclusive && head.mode == Mode::Shared;
            if !fits {
                break;
            }
            self.exclusive = head.mode == Mode::Exclusive;
            self.granted += 1;
            self.holders.push((head.who, until));
            granted.push((head.who, self.granted << 16 | head.number));
            self.queue.pop_front();
        }
        granted
    }
}

pub(super) async fn serve<F: Fabric>(
    fabric: &F,
    table: Table,
    options: Options,
    follows: Option<Nanos>,
) -> Result<(), LockError> {
    if let Some(quiet) = follows {
        // A waiter asks again. A holder by the grace of the former server has a lease that ends by then.
        while fabric.receive(quiet).await.is_some() {}
    }
    let mut locks: HashMap<LockId, Lock> = HashMap::new();
    // Leases in the order in which they end: all have one length.
    let mut leases: VecDeque<(Nanos, LockId, Claimant)> = VecDeque::new();
    loop {
        let until = leases.front().map_or(Nanos::MAX, |(until, ..)| *until);
        let touched = match fabric.receive(until).await {
            Some(received) => {
                let letter = LockLetter::decode(received.message);
                let genuine =
                    letter.filter(|l| l.from.peer() == received.from && l.lock.0 < table.locks());
                let Some(letter) = genuine else { continue };
                if follows.is_some() && !locks.contains_key(&letter.lock) {
                    let granted =
                        fabric.post(table.word(letter.lock, GENERATION), Verb::Read).await?;
                    locks.insert(letter.lock, Lock { granted, ..Lock::default() });
                }
                take(locks.entry(letter.lock).or_default(), &letter);
                letter.lock
            }
            None => {
                let Some((_, lock, who)) = leases.pop_front() else { continue };
                let Some(state) = locks.get_mut(&lock) else { continue };
                let now = fabric.now();
                state.holders.retain(|(holder, until)| *holder != who || *until > now);
                lock
            }
        };
        let Some(lock) = locks.get_mut(&touched) else { continue };
        let until = options.lease.map_or(Nanos::MAX, |lease| fabric.now().saturating_add(lease));
        let granted = lock.grant(until);
        if follows.is_some() && !granted.is_empty() {
            // Before anybody hears of it.
            fabric.post(table.word(touched, GENERATION), Verb::Write(lock.granted)).await?;
        }
        for (who, value) in granted {
            if until != Nanos::MAX {
                leases.push_back((until, touched, who));
            }
            let letter = LockLetter {
                kind: Kind::Grant,
                lock: touched,
                generation: 0,
                to: who,
                from: Claimant::NOBODY,
                value,
            };
            // Without a wait: if the receiver is gone, its lock ends with its lease.
            drop(fabric.send(who.peer(), letter.encode()));
        }
    }
}

fn take(lock: &mut Lock, letter: &LockLetter) {
    match letter.kind {
        Kind::Request => {
            let mode = if letter.value & EXCLUSIVE != 0 { Mode::Exclusive } else { Mode::Shared };
            let number = letter.value & (EXCLUSIVE - 1);
            let who = letter.from;
            if let Some(waiter) = lock.queue.iter_mut().find(|w| w.who == who) {
                waiter.number = number;
            } else if !lock.holders.iter().any(|(holder, _)| *holder == who) {
                // Not only the first question counts: it, or its grant, may be lost with a connection. A holder's
                // question has crossed its grant. A grant to a client that has given up costs one lease.
                lock.queue.push_back(Waiter { who, mode, number });
            }
        }
        Kind::Release => {
            lock.holders.retain(|(holder, _)| *holder != letter.from);
            lock.queue.retain(|waiter| waiter.who != letter.from);
        }
        _ => {}
    }
}
