//! Letters: for whom they are, and those that come early.

use core::future::Future;

use super::{Session, Spot, Stop, Watch};
use crate::fabric::{Fabric, Nanos, Peer};
use crate::letter::{Claimant, Kind, LockLetter};
use crate::table::{Generation, LockId};

impl<F: Fabric> Session<F> {
    /// A new acquisition, for which letters are kept from now on.
    pub fn enter(&self, lock: LockId, generation: Generation) -> Spot {
        // 0 would make the first peer's first acquisition nobody.
        let number = self.number.get().checked_add(1).unwrap_or(1);
        self.number.set(number);
        self.enter_as(lock, generation, Claimant::new(self.fabric.me(), number))
    }

    pub fn enter_as(&self, lock: LockId, generation: Generation, me: Claimant) -> Spot {
        let spot = Spot { lock, generation, me };
        self.active.borrow_mut().push(spot);
        spot
    }

    fn is_for(&self, letter: &LockLetter, spot: Spot) -> bool {
        if mutated!(self.options, LettersAreAnonymous) {
            return letter.to.peer() == spot.me.peer();
        }
        (letter.lock, letter.generation, letter.to) == (spot.lock, spot.generation, spot.me)
    }

    /// The acquisition is over; what was still to come for it is not for anybody.
    pub fn leave(&self, spot: Spot) {
        self.active.borrow_mut().retain(|other| *other != spot);
        if mutated!(self.options, LettersAreAnonymous) {
            return;
        }
        self.inbox.borrow_mut().retain(|letter| !self.is_for(letter, spot));
    }

    /// Ends all acquisitions of a lock: the client has given up on them.
    pub fn leave_all(&self, lock: LockId) {
        let spots: Vec<Spot> =
            self.active.borrow().iter().filter(|s| s.lock == lock).copied().collect();
        spots.into_iter().for_each(|spot| self.leave(spot));
    }

    /// Sends a letter. With leases, whether it arrives is nobody's problem but of those who wait: they repair. So nobody
    /// else waits until a connection with a dead peer is given up. It is sent by the call, not when the future is polled.
    pub fn send(&self, to: Peer, letter: LockLetter) -> impl Future<Output = Result<(), Stop>> {
        self.count(|counts| counts.send += 1);
        let sent = self.fabric.send(to, letter.encode());
        let awaited = self.options.lease.is_none().then_some(sent);
        async move {
            match awaited {
                Some(sent) => Ok(sent.await?),
                None => Ok(()),
            }
        }
    }

    /// Sends a letter that may be lost without harm, e.g. since its receiver needed it no more and has gone.
    pub fn send_and_forget(&self, to: Peer, letter: LockLetter) {
        self.count(|counts| counts.send += 1);
        drop(self.fabric.send(to, letter.encode()));
    }

    /// Takes a letter that has arrived.
    pub fn find(&self, spot: Spot, wanted: impl Fn(&LockLetter) -> bool) -> Option<LockLetter> {
        let mut inbox = self.inbox.borrow_mut();
        let at = inbox.iter().position(|letter| self.is_for(letter, spot) && wanted(letter))?;
        Some(inbox.remove(at))
    }

    /// How many letters of this kind have arrived.
    pub fn known(&self, spot: Spot, wanted: impl Fn(&LockLetter) -> bool) -> u64 {
        let inbox = self.inbox.borrow();
        inbox.iter().filter(|letter| self.is_for(letter, spot) && wanted(letter)).count() as u64
    }

    /// Loses what has arrived, as who is not prepared for it does.
    pub async fn forget_letters(&self) {
        self.collect().await;
        self.inbox.borrow_mut().clear();
    }

    /// Takes everything that has arrived already into the inbox.
    pub async fn collect(&self) {
        while self.receive(0).await {}
    }

    /// Waits for the next message; false if none came until then.
    async fn receive(&self, until: Nanos) -> bool {
        let Some(received) = self.fabric.receive(until).await else { return false };
        self.count(|counts| counts.recv += 1);
        let letter = LockLetter::decode(received.message);
        // A letter with a wrong sender is ignored. The home speaks as nobody; hints name tickets.
        let genuine = letter.filter(|l| match l.from {
            Claimant::NOBODY => received.from == self.table.region().home,
            from => l.kind == Kind::Hint || from.peer() == received.from,
        });
        if let Some(letter) = genuine {
            let wanted = self.active.borrow().iter().any(|spot| self.is_for(&letter, *spot));
            if wanted || mutated!(self.options, LettersAreAnonymous) {
                self.inbox.borrow_mut().push(letter);
            }
        }
        true
    }

    /// Waits for a letter, but no longer than `net`, and with leases not longer than until it is time to look whether the
    /// lock is stuck; then the word.
    pub async fn wait_letter(
        &self,
        spot: Spot,
        watch: &mut Watch,
        net: Nanos,
        wanted: impl Fn(&LockLetter) -> bool,
    ) -> Result<Result<LockLetter, u64>, Stop> {
        loop {
            if let Some(letter) = self.find(spot, &wanted) {
                return Ok(Ok(letter));
            }
            let interval = self.interval().min(net);
            let until = self.fabric.now().saturating_add(interval);
            if self.receive(until).await {
                continue;
            }
            return Ok(Err(self.look(spot, watch).await?));
        }
    }

    /// As [`Self::wait_letter`], for letters that only a fault can keep away.
    pub async fn await_letter(
        &self,
        spot: Spot,
        watch: &mut Watch,
        wanted: impl Fn(&LockLetter) -> bool,
    ) -> Result<LockLetter, Stop> {
        loop {
            if let Ok(letter) = self.wait_letter(spot, watch, Nanos::MAX, &wanted).await? {
                return Ok(letter);
            }
        }
    }

    /// The next letter of this kind; `None` when it is time to ask again.
    pub async fn next_letter(
        &self,
        spot: Spot,
        wanted: impl Fn(&LockLetter) -> bool,
    ) -> Option<LockLetter> {
        let until = self.fabric.now().saturating_add(self.interval());
        loop {
            if let Some(letter) = self.find(spot, &wanted) {
                return Some(letter);
            }
            if !self.receive(until).await {
                return None;
            }
        }
    }
}
