//! What all protocols share: counted verbs, letters that come early, generations, and how a stuck lock is noticed.

use core::cell::{Cell, RefCell};
use core::future::Future;

use hashbrown::HashMap;

use crate::fabric::{Address, Fabric, Nanos, Peer, Verb, VerbError};
use crate::letter::{Claimant, Kind, Letter};
use crate::options::Options;
use crate::protocol::{self, Field};
use crate::table::{Generation, LockId, Table, WORDS};

/// What a client has posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Compare-and-swaps, masked ones included.
    pub cas: u64,
    /// Those of them that changed nothing.
    pub cas_failed: u64,
    /// Fetch-and-adds.
    pub faa: u64,
    /// READs.
    pub read: u64,
    /// WRITEs.
    pub write: u64,
    /// Messages sent.
    pub send: u64,
    /// Messages received.
    pub recv: u64,
}

impl Counts {
    /// Verbs at the home.
    pub fn verbs(&self) -> u64 {
        self.cas + self.faa + self.read + self.write
    }

    /// What was added since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            cas: self.cas - before.cas,
            cas_failed: self.cas_failed - before.cas_failed,
            faa: self.faa - before.faa,
            read: self.read - before.read,
            write: self.write - before.write,
            send: self.send - before.send,
            recv: self.recv - before.recv,
        }
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.cas += other.cas;
        self.cas_failed += other.cas_failed;
        self.faa += other.faa;
        self.read += other.read;
        self.write += other.write;
        self.send += other.send;
        self.recv += other.recv;
    }
}

/// Why an acquisition or a release ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The generation is closed: somebody repaired the lock, or its counters have run out.
    Evicted,
    /// A verb failed.
    Failed(VerbError),
}

impl From<VerbError> for Stop {
    fn from(error: VerbError) -> Stop {
        Stop::Failed(error)
    }
}

/// One acquisition of one lock in one generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
    pub lock: LockId,
    pub generation: Generation,
    pub me: Claimant,
}

impl Spot {
    /// What this acquisition has to say to another one of the lock, or to the home (nobody).
    pub fn letter(self, kind: Kind, to: Claimant, value: u64) -> Letter {
        Letter { kind, lock: self.lock, generation: self.generation, to, from: self.me, value }
    }
}

/// How a protocol's words are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    /// Set in a closed word.
    pub closed: u64,
    /// How often the word's place was used before, so that who knows an old generation of that place notices.
    pub stamp: Field,
    /// Bits that are set with it, so that late fetch-and-adds borrow from nothing.
    pub padding: u64,
    /// The bits that change whenever somebody else becomes a holder, or a holder goes.
    pub progress: u64,
}

impl Law {
    pub fn is_closed(&self, word: u64) -> bool {
        word & self.closed != 0
    }

    /// A generation's word when nobody has used it.
    pub fn fresh_word(&self, generation: Generation) -> u64 {
        self.stamp.set(0, u64::from(generation / WORDS))
    }

    /// What becomes of a generation's word.
    pub fn closed_word(&self, generation: Generation) -> u64 {
        self.closed | self.padding | self.fresh_word(generation)
    }

    /// Whether a word at the place of this generation is of this generation.
    pub fn is_of(&self, word: u64, generation: Generation) -> bool {
        (word ^ self.fresh_word(generation)) & self.stamp.mask() == 0
    }
}

/// What a waiter has seen of a lock's progress, and when.
///
/// A lease starts with the *issue* of the last verb that showed another state than the one in which the lock was granted;
/// stillness lasts from the *completion* of the first to the *issue* of the last that showed the same. So whoever judges a
/// holder dead by more than a lease of stillness began to count after that holder did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    progress: u64,
    first_done: Nanos,
    last_issued: Nanos,
    /// Issue of the last verb that showed something else; of the first of all, if there was none.
    before: Nanos,
}

impl Watch {
    pub fn new(issued: Nanos, done: Nanos, progress: u64) -> Watch {
        Watch { progress, first_done: done, last_issued: issued, before: issued }
    }

    pub fn saw(&mut self, issued: Nanos, done: Nanos, progress: u64) {
        if progress == self.progress {
            self.last_issued = issued;
        } else {
            *self =
                Watch { progress, first_done: done, last_issued: issued, before: self.last_issued };
        }
    }

    /// When a lease starts that was given by the change to `granted`.
    pub fn lease_start(&self, granted: u64) -> Nanos {
        if granted == self.progress { self.before } else { self.last_issued }
    }

    /// What was seen last.
    pub fn seen(&self) -> u64 {
        self.progress
    }

    fn still_for(&self) -> Nanos {
        self.last_issued.saturating_sub(self.first_done)
    }
}

/// The back-off of CAS-spin (after SMART, ASPLOS 2024): the longest wait follows the share of retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    longest: Nanos,
    tries: u64,
    retries: u64,
    since: Nanos,
}

/// The part of a client that does not depend on its protocol.
pub(crate) struct Session<F> {
    pub fabric: F,
    pub table: Table,
    pub options: Options,
    pub law: Law,
    counts: Cell<Counts>,
    generations: RefCell<HashMap<LockId, Generation>>,
    /// What lock words were when they were last free, for protocols that have to guess them.
    guesses: RefCell<HashMap<LockId, u64>>,
    /// Acquisitions under way or held: letters for others are dropped.
    active: RefCell<Vec<Spot>>,
    inbox: RefCell<Vec<Letter>>,
    number: Cell<u8>,
    backoff: Cell<Backoff>,
    /// Locks whose fast path has just failed, and how often it is to be left out.
    pub crowded: RefCell<HashMap<LockId, u8>>,
    /// When this client stopped sharing a lock.
    shared: RefCell<HashMap<LockId, Nanos>>,
}

/// As many locks that were shared a moment ago are kept in mind.
const MOST_SHARED: usize = 4096;

impl<F: Fabric> Session<F> {
    pub fn new(fabric: F, table: Table, options: Options) -> Session<F> {
        Session {
            fabric,
            table,
            law: *protocol::law(options.protocol),
            options,
            counts: Cell::default(),
            generations: RefCell::default(),
            guesses: RefCell::default(),
            active: RefCell::default(),
            inbox: RefCell::default(),
            number: Cell::new(0),
            backoff: Cell::default(),
            crowded: RefCell::default(),
            shared: RefCell::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

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

    fn is_for(&self, letter: &Letter, spot: Spot) -> bool {
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

    pub fn word(&self, spot: Spot) -> Address {
        self.table.word(spot.lock, spot.generation)
    }

    /// Posts a verb, and counts it.
    pub fn post(&self, at: Address, verb: Verb) -> impl Future<Output = Result<u64, VerbError>> {
        self.count(|counts| match verb {
            Verb::Read => counts.read += 1,
            Verb::Write(_) => counts.write += 1,
            Verb::FetchAndAdd(_) => counts.faa += 1,
            Verb::CompareAndSwap { .. } | Verb::MaskedCompareAndSwap { .. } => counts.cas += 1,
        });
        let posted = self.fabric.post(at, verb);
        async move {
            let before = posted.await?;
            let is_cas =
                matches!(verb, Verb::CompareAndSwap { .. } | Verb::MaskedCompareAndSwap { .. });
            if is_cas && verb.apply(before).is_none() {
                self.count(|counts| counts.cas_failed += 1);
            }
            Ok(before)
        }
    }

    pub async fn read(&self, at: Address) -> Result<u64, Stop> {
        Ok(self.post(at, Verb::Read).await?)
    }

    pub async fn compare_and_swap(
        &self,
        at: Address,
        expected: u64,
        new: u64,
    ) -> Result<u64, Stop> {
        Ok(self.post(at, Verb::CompareAndSwap { expected, new }).await?)
    }

    pub async fn fetch_and_add(&self, at: Address, add: u64) -> Result<u64, Stop> {
        Ok(self.post(at, Verb::FetchAndAdd(add)).await?)
    }

    pub async fn pause(&self, nanos: Nanos) {
        self.fabric.sleep_until(self.fabric.now().saturating_add(nanos)).await;
    }

    /// Sends a letter. With leases, whether it arrives is nobody's problem but of those who wait: they repair. So nobody
    /// else waits until a connection with a dead peer is given up. It is sent by the call, not when the future is polled.
    pub fn send(&self, to: Peer, letter: Letter) -> impl Future<Output = Result<(), Stop>> {
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
    pub fn tell(&self, to: Peer, letter: Letter) {
        self.count(|counts| counts.send += 1);
        drop(self.fabric.send(to, letter.encode()));
    }

    /// Takes a letter that has arrived.
    pub fn find(&self, spot: Spot, wanted: impl Fn(&Letter) -> bool) -> Option<Letter> {
        let mut inbox = self.inbox.borrow_mut();
        let at = inbox.iter().position(|letter| self.is_for(letter, spot) && wanted(letter))?;
        Some(inbox.remove(at))
    }

    /// How many letters of this kind have arrived.
    pub fn known(&self, spot: Spot, wanted: impl Fn(&Letter) -> bool) -> u64 {
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
        let letter = Letter::decode(received.message);
        // Who claims to be somebody else is not listened to. The home speaks as nobody; hints name tickets.
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
        wanted: impl Fn(&Letter) -> bool,
    ) -> Result<Result<Letter, u64>, Stop> {
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
        wanted: impl Fn(&Letter) -> bool,
    ) -> Result<Letter, Stop> {
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
        wanted: impl Fn(&Letter) -> bool,
    ) -> Option<Letter> {
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

    /// How often a waiter looks whether its lock is stuck.
    fn interval(&self) -> Nanos {
        self.options.lease.map_or(Nanos::MAX, |lease| (lease / 4).max(1))
    }

    /// Reads the word. If nothing has changed for too long, closes the generation.
    pub async fn look(&self, spot: Spot, watch: &mut Watch) -> Result<u64, Stop> {
        let issued = self.fabric.now();
        let word = self.read(self.word(spot)).await?;
        self.judge(spot, watch, issued, word).await?;
        Ok(word)
    }

    /// What a waiter makes of a word that it saw.
    pub async fn judge(
        &self,
        spot: Spot,
        watch: &mut Watch,
        issued: Nanos,
        word: u64,
    ) -> Result<(), Stop> {
        if self.law.is_closed(word) {
            return Err(Stop::Evicted);
        }
        watch.saw(issued, self.fabric.now(), word & self.law.progress);
        if self.is_dead(watch) && self.close(spot, word).await? {
            return Err(Stop::Evicted);
        }
        Ok(())
    }

    /// Closes the generation unless the lock has made progress since it was seen as `seen`; whether it is closed.
    pub async fn close(&self, spot: Spot, seen: u64) -> Result<bool, Stop> {
        let in_place = mutated!(self.options, RepairInPlace) && self.options.lease.is_some();
        let closed = if in_place { 0 } else { self.law.closed_word(spot.generation) };
        let mut expected = seen;
        loop {
            let found = self.compare_and_swap(self.word(spot), expected, closed).await?;
            if found == expected || self.law.is_closed(found) {
                return Ok(true);
            }
            // Rule for ShiftLock's hole 2: who arrives meanwhile changes nothing, but a new holder does.
            if (found ^ seen) & self.law.progress != 0
                && !mutated!(self.options, RepairUnconditional)
            {
                return Ok(false);
            }
            expected = found;
        }
    }

    /// Whether nothing has changed for so long that whoever holds the lock has no lease any more.
    pub fn is_dead(&self, watch: &Watch) -> bool {
        let quarters = self.options.protocol.patience_quarters();
        let repairs = !mutated!(self.options, NothingIsRepaired);
        let lease = self.options.lease.filter(|_| repairs);
        lease.is_some_and(|lease| watch.still_for() >= (lease / 4).max(1) * quarters)
    }

    /// The latest generation that this client knows of.
    pub fn generation(&self, lock: LockId) -> Generation {
        self.generations.borrow().get(&lock).copied().unwrap_or(0)
    }

    /// Finds the generation after a closed one, and opens it if nobody has. Any number of clients may do so at once.
    pub async fn advance(&self, lock: LockId, closed: Generation) -> Result<(), Stop> {
        if mutated!(self.options, RepairInPlace) && self.options.lease.is_some() {
            return Ok(());
        }
        let next = closed.wrapping_add(1);
        let place = self.table.word(lock, next);
        loop {
            // The word first: if the number has not changed after that, the word had not been opened.
            let word = self.read(place).await?;
            let number = self.read(self.table.generation(lock)).await?;
            if self.note_generation(lock, number) != closed {
                return Ok(());
            }
            if self.law.is_of(word, next) {
                // Ready, perhaps even in use by somebody who knows it from long ago. What else is beside the number
                // (N-CoSED's intents) ends with the generation.
                self.compare_and_swap(self.table.generation(lock), number, next.into()).await?;
            } else {
                // Nobody uses it until the number says so; what was counted there late is gone with it.
                self.compare_and_swap(place, word, self.law.fresh_word(next)).await?;
            }
        }
    }

    /// Reads the lock's generation.
    async fn refresh(&self, lock: LockId) -> Result<Generation, Stop> {
        let number = self.read(self.table.generation(lock)).await?;
        Ok(self.note_generation(lock, number))
    }

    fn note_generation(&self, lock: LockId, number: u64) -> Generation {
        let now = number as Generation;
        self.generations.borrow_mut().insert(lock, now);
        self.guesses.borrow_mut().remove(&lock);
        now
    }

    /// This client stops sharing the lock. That is kept for `recently`.
    pub fn shares(&self, lock: LockId, recently: Nanos) {
        let now = self.fabric.now();
        let mut shared = self.shared.borrow_mut();
        if shared.len() >= MOST_SHARED {
            shared.retain(|_, at| now.saturating_sub(*at) < recently);
        }
        if shared.len() < MOST_SHARED {
            shared.insert(lock, now);
        }
    }

    /// Whether this client shared the lock less than `recently` ago.
    pub fn has_shared(&self, lock: LockId, recently: Nanos) -> bool {
        let now = self.fabric.now();
        self.shared.borrow().get(&lock).is_some_and(|at| now.saturating_sub(*at) < recently)
    }

    /// The generation of a word that this client has just counted itself into, believing it to be of `believed`. It may be
    /// a later one at the same place: then the client belongs to that one.
    pub async fn generation_of(
        &self,
        lock: LockId,
        believed: Generation,
        word: u64,
    ) -> Result<Generation, Stop> {
        if self.law.is_closed(word) {
            return Err(Stop::Evicted);
        }
        if self.law.is_of(word, believed) {
            return Ok(believed);
        }
        loop {
            let now = self.refresh(lock).await?;
            if now % WORDS == believed % WORDS && self.law.is_of(word, now) {
                return Ok(now);
            }
            if now % WORDS != believed.wrapping_sub(1) % WORDS {
                // That generation is over, too.
                return Err(Stop::Evicted);
            }
            // It is ready, but nobody has said so yet.
            self.advance(lock, now).await?;
        }
    }

    /// What the word is expected to be when nobody has the lock.
    pub fn guess(&self, lock: LockId) -> u64 {
        self.guesses.borrow().get(&lock).copied().unwrap_or(0)
    }

    pub fn remember(&self, lock: LockId, free: u64) {
        let mut guesses = self.guesses.borrow_mut();
        match free {
            0 => guesses.remove(&lock),
            free => guesses.insert(lock, free),
        };
    }

    /// When a hold ends that was given at `start`.
    pub fn lease_end(&self, start: Nanos) -> Nanos {
        let start = if mutated!(self.options, LeaseFromNotice) { self.fabric.now() } else { start };
        let endless = mutated!(self.options, HolderNotFenced);
        self.options
            .lease
            .filter(|_| !endless)
            .map_or(Nanos::MAX, |lease| start.saturating_add(lease))
    }

    /// Waits after the `attempt`th failed compare-and-swap.
    pub async fn back_off(&self, attempt: u32) {
        let unit = self.options.unit.max(1);
        let (now, ceiling) = (self.fabric.now(), unit << 10);
        let mut state = self.backoff.get();
        if state.longest == 0 {
            state = Backoff { longest: unit, since: now, ..state };
        }
        state.retries += 1;
        if now.saturating_sub(state.since) >= 1_000_000 {
            let tries = (state.tries + state.retries).max(1);
            if state.retries * 2 > tries {
                state.longest = (state.longest * 2).min(ceiling);
            } else if state.retries * 10 < tries {
                state.longest = (state.longest / 2).max(unit);
            }
            state = Backoff { tries: 0, retries: 0, since: now, ..state };
        }
        self.backoff.set(state);
        let wait = (unit << attempt.min(10)).min(state.longest);
        self.pause(wait + self.fabric.random() % unit).await;
    }

    /// A compare-and-swap worked at once.
    pub fn count_success(&self) {
        let state = self.backoff.get();
        self.backoff.set(Backoff { tries: state.tries + 1, ..state });
    }
}
