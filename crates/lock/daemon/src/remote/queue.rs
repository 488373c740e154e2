//! Local clients' locks in a table of remote locks, as a state machine. It decides when each client is granted, and when
//! the daemon takes and returns a lock of the table.
//!
//! The daemon is one client of the table (spec 2.3, hole 8): for each of its locks it asks for one exclusive hold, or one
//! shared one, and queues its other clients. All local readers that come early enough take part in a shared hold. An
//! exclusive hold is one client's: if it were handed over locally, two holders would have one fencing token, and storage
//! could not tell a late write of the first from one of the second.
//!
//! A table's lock is held by a *hand*, because a client of a table does one thing at a time: while it waits for a lock,
//! it cannot give another one back.

use std::collections::{BTreeSet, HashMap, VecDeque};

use lockify_core::{
    ClientId, Completion, Ended, Error, LockArgs, LockFlags, LockId, LostReason, Mode, Name,
    Status, Time,
};

/// Readers that may take part in one shared hold: writers elsewhere wait for its end.
const BATCH: u32 = 64;

/// The wait of a request without waiting. The protocols have no attempt that leaves nothing behind, so a hand asks, and
/// returns a later grant.
pub const ATTEMPT: Time = 200_000_000;

/// An action to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// This hand is to take this lock of the table.
    Take {
        hand: usize,
        spot: u64,
        exclusive: bool,
    },
    /// It is to give it back.
    Give {
        hand: usize,
    },
    Complete(Completion),
    Lost {
        client: ClientId,
        lock: LockId,
        tag: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Granted,
    /// Its client has been told.
    Lost,
}

#[derive(Debug)]
struct Lock {
    client: ClientId,
    tag: u64,
    name: Name,
    mode: Mode,
    /// Which of the table's; none for NL.
    spot: Option<u64>,
    state: State,
    /// The limit of its wait, and its status then.
    deadline: Option<(Time, Status)>,
}

/// The daemon's state of a lock of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free,
    /// There is no hand.
    Starved,
    Asked {
        hand: usize,
    },
    Held {
        hand: usize,
        exclusive: bool,
        until: Time,
        token: u64,
        /// How many of the daemon's clients were granted it.
        granted: u32,
    },
    Giving {
        hand: usize,
    },
}

#[derive(Debug)]
struct Spot {
    phase: Phase,
    queue: VecDeque<LockId>,
    holders: Vec<LockId>,
}

/// The locks of one lockspace.
#[derive(Debug)]
pub struct Queue {
    /// Nanoseconds of a lease.
    lease: Time,
    /// The work of each hand.
    hands: Vec<Option<u64>>,
    spots: HashMap<u64, Spot>,
    /// Those that wait for a hand.
    starved: VecDeque<u64>,
    locks: HashMap<LockId, Lock>,
    last: u64,
    deadlines: BTreeSet<(Time, LockId)>,
    leases: BTreeSet<(Time, u64)>,
    actions: VecDeque<Action>,
}

/// Returns true if the mode excludes other holders.
fn excludes(mode: Mode) -> bool {
    matches!(mode, Mode::PW | Mode::EX)
}

impl Queue {
    /// Nobody has anything; `last` is the last lock that there was.
    pub fn new(hands: usize, lease: Time, last: u64) -> Queue {
        Queue {
            lease,
            hands: vec![None; hands],
            spots: HashMap::new(),
            starved: VecDeque::new(),
            locks: HashMap::new(),
            last,
            deadlines: BTreeSet::new(),
            leases: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// The last lock that was made.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Queue::tick`] is due.
    pub fn next_timer(&self) -> Option<Time> {
        let first = |set: &BTreeSet<(Time, u64)>| set.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        [deadline, first(&self.leases)].into_iter().flatten().min()
    }

    /// Returns true if a request of this client could wait for a hand that only the client itself
    /// can free.
    pub fn would_starve(&self, client: ClientId, spot: u64) -> bool {
        let has = |lock: &Lock| lock.client == client && lock.spot.is_some();
        let phase = |at: &u64| self.spots.get(at).map(|spot| spot.phase);
        // One that gives back is free soon.
        let busy = |at: &Option<u64>| {
            at.is_some_and(|at| !matches!(phase(&at), Some(Phase::Giving { .. })))
        };
        !self.spots.contains_key(&spot)
            && self.hands.iter().all(busy)
            && self.locks.values().any(has)
    }

    /// A request, for NL, PR, PW or EX; names are mapped to the table's locks.
    pub fn lock(&mut self, client: ClientId, args: &LockArgs, spot: u64, now: Time) -> LockId {
        self.last += 1;
        let id = LockId(self.last);
        let LockArgs { tag, name, mode, .. } = *args;
        let lock =
            Lock { client, tag, name, mode, spot: None, state: State::Granted, deadline: None };
        if mode == Mode::NL {
            self.locks.insert(id, lock);
            self.complete(id, Status::Granted, 0);
            return id;
        }
        let attempt = args.flags.contains(LockFlags::NOQUEUE);
        let timeout = match attempt {
            true => Some((ATTEMPT, Status::Again)),
            false => args.timeout.map(|timeout| (timeout, Status::TimedOut)),
        };
        let deadline = timeout.map(|(timeout, status)| (now.saturating_add(timeout), status));
        self.locks.insert(id, Lock { spot: Some(spot), state: State::Waiting, deadline, ..lock });
        // It waits for its own client, which does not know that two names share a lock of the table.
        let own = |lock: &Lock| lock.client == client && lock.name != name;
        let held = self.spots.get(&spot).map(|spot| &spot.holders);
        let shared = mode == Mode::PR && self.joins(spot, now);
        if !shared && held.is_some_and(|held| held.iter().any(|l| own(&self.locks[l]))) {
            self.end(id, if attempt { Status::Again } else { Status::Deadlock });
            return id;
        }
        let at_once = match self.spots.get(&spot) {
            None => true,
            Some(Spot { queue, .. }) if !queue.is_empty() => false,
            Some(Spot { phase: Phase::Giving { .. }, .. }) => true,
            Some(_) => shared,
        };
        if attempt && !at_once {
            self.end(id, Status::Again);
            return id;
        }
        if let Some((at, _)) = deadline {
            self.deadlines.insert((at, id));
        }
        let free = || Spot { phase: Phase::Free, queue: VecDeque::new(), holders: Vec::new() };
        self.spots.entry(spot).or_insert_with(free).queue.push_back(id);
        self.advance(spot, now);
        id
    }

    /// Returns true if a client has a lock, and it waits.
    pub fn waits(&self, client: ClientId, id: LockId) -> Result<bool, Error> {
        let lock = self.locks.get(&id).filter(|lock| lock.client == client);
        lock.map(|lock| lock.state == State::Waiting).ok_or(Error::NoEntry)
    }

    /// Gives a lock back.
    pub fn unlock(
        &mut self,
        client: ClientId,
        id: LockId,
        tag: u64,
        now: Time,
    ) -> Result<(), Error> {
        if self.waits(client, id)? {
            return Err(Error::Busy);
        }
        let Some(lock) = self.locks.get_mut(&id) else { return Err(Error::NoEntry) };
        lock.tag = tag;
        let spot = lock.spot;
        self.end(id, Status::Unlocked);
        if let Some(spot) = spot {
            self.leave(spot, id, now);
        }
        Ok(())
    }

    /// Takes a request back that waits; others end as they would have.
    pub fn cancel(&mut self, client: ClientId, id: LockId, status: Status, now: Time) {
        if self.waits(client, id) == Ok(true) {
            self.withdraw(id, status, now);
        }
    }

    /// A client has ended, and is told nothing any more.
    pub fn client_gone(&mut self, client: ClientId, now: Time) {
        let own = self.locks.iter().filter(|(_, lock)| lock.client == client);
        let mut own: Vec<LockId> = own.map(|(id, _)| *id).collect();
        own.sort_unstable();
        for id in own {
            let Some(lock) = self.remove(id) else { continue };
            if let Some(spot) = lock.spot {
                self.leave(spot, id, now);
            }
        }
    }

    /// A hand has got its lock.
    pub fn taken(&mut self, hand: usize, exclusive: bool, until: Time, token: u64, now: Time) {
        let Some((at, spot)) = self.of(hand, |phase| matches!(phase, Phase::Asked { .. })) else {
            return;
        };
        spot.phase = Phase::Held { hand, exclusive, until, token, granted: 0 };
        self.leases.insert((until, at));
        self.tick(now);
        self.advance(at, now);
    }

    /// A hand has returned its lock.
    pub fn given(&mut self, hand: usize, now: Time) {
        if let Some((at, spot)) = self.of(hand, |phase| matches!(phase, Phase::Giving { .. })) {
            spot.phase = Phase::Free;
            self.release_hand(hand, at, now);
        }
    }

    /// A hand cannot get its lock: none of its waiters gets it.
    pub fn failed(&mut self, hand: usize, now: Time) {
        let Some((at, spot)) = self.of(hand, |phase| matches!(phase, Phase::Asked { .. })) else {
            return self.given(hand, now);
        };
        spot.phase = Phase::Free;
        let waiting: Vec<LockId> = spot.queue.drain(..).collect();
        for id in waiting {
            self.end(id, Status::Refused(Error::NotMember));
        }
        self.release_hand(hand, at, now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            let late = self.locks.get(&id).and_then(|lock| lock.deadline);
            self.withdraw(id, late.map_or(Status::TimedOut, |(_, status)| status), now);
        }
        while let Some(&(until, at)) = self.leases.first()
            && until <= now
        {
            self.leases.pop_first();
            let Some(spot) = self.spots.get_mut(&at) else { continue };
            let holders = std::mem::take(&mut spot.holders);
            for id in holders {
                self.lose(id);
            }
            self.give(at);
        }
    }

    /// The table is no more: everything is lost, and forgotten. The remaining actions are for clients.
    pub fn halt(&mut self) {
        self.actions.retain(|a| matches!(a, Action::Complete(_) | Action::Lost { .. }));
        let mut all: Vec<LockId> = self.locks.keys().copied().collect();
        all.sort_unstable();
        for id in all {
            if self.locks[&id].state == State::Granted {
                self.lose(id);
            }
        }
        let actions = std::mem::take(&mut self.actions);
        *self = Queue { actions, ..Queue::new(self.hands.len(), self.lease, self.last) };
    }

    fn of(&mut self, hand: usize, expected: impl Fn(&Phase) -> bool) -> Option<(u64, &mut Spot)> {
        let at = (*self.hands.get(hand)?)?;
        let spot = self.spots.get_mut(&at).filter(|spot| expected(&spot.phase))?;
        Some((at, spot))
    }

    /// Returns true if a reader may join a present hold.
    fn joins(&self, at: u64, now: Time) -> bool {
        let Some(Spot { phase: Phase::Held { until, granted, .. }, queue, holders }) =
            self.spots.get(&at)
        else {
            return false;
        };
        queue.is_empty() && self.may_read(holders, *granted, *until, now)
    }

    /// Returns true if one more reader may be granted now. The second half of a lease is closed to new readers: their
    /// hold would be lost soon, and a stream of readers would never end.
    fn may_read(&self, holders: &[LockId], granted: u32, until: Time, now: Time) -> bool {
        let readers = holders.iter().all(|id| self.locks[id].mode == Mode::PR);
        readers && granted < BATCH && now.saturating_add(self.lease / 2) < until
    }

    /// Does what can be done for a lock of the table.
    fn advance(&mut self, at: u64, now: Time) {
        loop {
            let Some(Spot { phase, queue, holders }) = self.spots.get(&at) else { return };
            let head = queue.front().map(|id| (*id, self.locks[id].mode));
            match (*phase, head) {
                (Phase::Asked { .. } | Phase::Giving { .. }, _) => return,
                (Phase::Free | Phase::Starved, None) => {
                    self.spots.remove(&at);
                    return;
                }
                (Phase::Free | Phase::Starved, Some((_, mode))) => {
                    return self.ask(at, excludes(mode));
                }
                (Phase::Held { exclusive, until, granted, .. }, Some((id, mode))) => {
                    let may = match excludes(mode) {
                        true => exclusive && granted == 0,
                        // The first one is the one that was asked for.
                        false => granted == 0 || self.may_read(holders, granted, until, now),
                    };
                    match (may, holders.is_empty()) {
                        (true, _) => self.grant(at, id),
                        (false, true) => return self.give(at),
                        (false, false) => return,
                    }
                }
                (Phase::Held { .. }, None) if holders.is_empty() => return self.give(at),
                (Phase::Held { .. }, None) => return,
            }
        }
    }

    fn ask(&mut self, at: u64, exclusive: bool) {
        let hand = self.hands.iter().position(Option::is_none);
        let Some(spot) = self.spots.get_mut(&at) else { return };
        let Some(hand) = hand else {
            if spot.phase != Phase::Starved {
                spot.phase = Phase::Starved;
                self.starved.push_back(at);
            }
            return;
        };
        spot.phase = Phase::Asked { hand };
        self.hands[hand] = Some(at);
        self.actions.push_back(Action::Take { hand, spot: at, exclusive });
    }

    fn grant(&mut self, at: u64, id: LockId) {
        let Some(Spot { phase: Phase::Held { token, granted, .. }, queue, holders }) =
            self.spots.get_mut(&at)
        else {
            return;
        };
        *granted += 1;
        let token = *token;
        queue.pop_front();
        holders.push(id);
        let Some(lock) = self.locks.get_mut(&id) else { return };
        lock.state = State::Granted;
        if let Some((at, _)) = lock.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
        let token = if excludes(lock.mode) { token } else { 0 };
        self.complete(id, Status::Granted, token);
    }

    fn give(&mut self, at: u64) {
        let Some(spot) = self.spots.get_mut(&at) else { return };
        if let Phase::Held { hand, until, .. } = spot.phase {
            spot.phase = Phase::Giving { hand };
            self.leases.remove(&(until, at));
            self.actions.push_back(Action::Give { hand });
        }
    }

    fn release_hand(&mut self, hand: usize, at: u64, now: Time) {
        self.hands[hand] = None;
        // The longest waiter comes first.
        while self.hands[hand].is_none()
            && let Some(next) = self.starved.pop_front()
        {
            if self.spots.get(&next).is_some_and(|spot| spot.phase == Phase::Starved) {
                self.advance(next, now);
            }
        }
        self.advance(at, now);
    }

    /// Neither holds nor waits any more.
    fn leave(&mut self, at: u64, id: LockId, now: Time) {
        if let Some(spot) = self.spots.get_mut(&at) {
            spot.holders.retain(|holder| *holder != id);
            spot.queue.retain(|waiter| *waiter != id);
            self.advance(at, now);
        }
    }

    fn withdraw(&mut self, id: LockId, status: Status, now: Time) {
        let spot = self.locks.get(&id).and_then(|lock| lock.spot);
        self.end(id, status);
        if let Some(spot) = spot {
            self.leave(spot, id, now);
        }
    }

    fn lose(&mut self, id: LockId) {
        if let Some(lock) = self.locks.get_mut(&id) {
            lock.state = State::Lost;
            let (client, tag) = (lock.client, lock.tag);
            self.actions.push_back(Action::Lost { client, lock: id, tag });
        }
    }

    fn remove(&mut self, id: LockId) -> Option<Lock> {
        let lock = self.locks.remove(&id)?;
        if let Some((at, _)) = lock.deadline {
            self.deadlines.remove(&(at, id));
        }
        Some(lock)
    }

    /// An operation ends, and the lock with it.
    fn end(&mut self, id: LockId, status: Status) {
        if let Some(lock) = self.remove(id) {
            self.actions.push_back(Action::Complete(completion(&lock, id, status, None, 0)));
        }
    }

    fn complete(&mut self, id: LockId, status: Status, token: u64) {
        let lock = &self.locks[&id];
        let done = completion(lock, id, status, Some(lock.mode), token);
        self.actions.push_back(Action::Complete(done));
    }
}

/// Why clients are told that a lock is lost.
pub const LOST: LostReason = LostReason::Halted;

fn completion(
    lock: &Lock,
    id: LockId,
    status: Status,
    mode: Option<Mode>,
    token: u64,
) -> Completion {
    let Lock { client, tag, .. } = *lock;
    Completion { client, lock: id, tag, ended: Ended { mode, token, ..Ended::new(status) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Time = 1_000_000_000;

    /// The recipients and messages that tests look at.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Seen {
        Take(usize, u64, bool),
        Give(usize),
        Granted(u64, u64),
        Ended(u64, Status),
        Lost(u64),
    }
    use Seen::*;

    fn seen(queue: &mut Queue) -> Vec<Seen> {
        std::iter::from_fn(|| queue.poll())
            .map(|action| match action {
                Action::Take { hand, spot, exclusive } => Take(hand, spot, exclusive),
                Action::Give { hand } => Give(hand),
                Action::Complete(c) if c.status == Status::Granted => Granted(c.lock.0, c.token),
                Action::Complete(c) => {
                    assert_eq!(c.mode, None);
                    Ended(c.lock.0, c.status)
                }
                Action::Lost { lock, .. } => Lost(lock.0),
            })
            .collect()
    }

    fn args(name: &str, mode: Mode) -> LockArgs {
        LockArgs::new(Name::new(name).unwrap(), mode)
    }

    fn queue() -> Queue {
        Queue::new(2, LEASE, 0)
    }

    fn unlock(queue: &mut Queue, client: u64, lock: LockId, now: Time) -> Vec<Seen> {
        queue.unlock(ClientId(client), lock, 0, now).unwrap();
        seen(queue)
    }

    #[test]
    fn readers_share_a_hold_and_writers_do_not_inherit_one() {
        let mut q = queue();
        let first = q.lock(ClientId(1), &args("a", Mode::PR), 7, 0);
        let second = q.lock(ClientId(2), &args("a", Mode::PR), 7, 0);
        assert_eq!(seen(&mut q), [Take(0, 7, false)]);
        q.taken(0, false, LEASE, 5, 0);
        assert_eq!(seen(&mut q), [Granted(1, 0), Granted(2, 0)]);
        let third = q.lock(ClientId(3), &args("a", Mode::PR), 7, LEASE / 4);
        assert_eq!(seen(&mut q), [Granted(3, 0)]);
        // Too late for this hold; and a request after a writer waits behind it.
        q.lock(ClientId(4), &args("a", Mode::PR), 7, LEASE * 3 / 4);
        q.lock(ClientId(5), &args("a", Mode::EX), 7, LEASE * 3 / 4);
        assert_eq!(seen(&mut q), []);
        for (client, lock) in [(1, first), (2, second)] {
            assert_eq!(unlock(&mut q, client, lock, LEASE), [Ended(lock.0, Status::Unlocked)]);
        }
        assert_eq!(unlock(&mut q, 3, third, LEASE), [Ended(3, Status::Unlocked), Give(0)]);
        q.given(0, LEASE);
        q.taken(0, false, 2 * LEASE, 5, LEASE);
        assert_eq!(seen(&mut q), [Take(0, 7, false), Granted(4, 0)]);
        let ended = unlock(&mut q, 4, LockId(4), LEASE);
        assert_eq!(ended, [Ended(4, Status::Unlocked), Give(0)]);
        q.given(0, 9);
        assert_eq!(seen(&mut q), [Take(0, 7, true)]);
        q.lock(ClientId(6), &args("a", Mode::PW), 7, 9);
        q.taken(0, true, LEASE, 6, 9);
        assert_eq!(seen(&mut q), [Granted(5, 6)]);
        // The next writer has a hold, and a token, of its own.
        let ended = unlock(&mut q, 5, LockId(5), 9);
        assert_eq!(ended, [Ended(5, Status::Unlocked), Give(0)]);
        q.given(0, 9);
        q.taken(0, true, LEASE, 7, 9);
        assert_eq!(seen(&mut q), [Take(0, 7, true), Granted(6, 7)]);
    }

    #[test]
    fn a_batch_of_readers_ends() {
        let mut q = queue();
        q.lock(ClientId(1), &args("a", Mode::PR), 7, 0);
        q.taken(0, false, LEASE, 1, 0);
        for n in 1..u64::from(BATCH) + 5 {
            q.lock(ClientId(n), &args("a", Mode::PR), 7, 0);
        }
        let granted = seen(&mut q).iter().filter(|s| matches!(s, Granted(..))).count();
        assert_eq!(granted, BATCH as usize);
    }

    #[test]
    fn a_lease_ends_holds_whatever_clients_do() {
        let mut q = queue();
        let lock = q.lock(ClientId(1), &args("a", Mode::EX), 7, 0);
        q.taken(0, true, LEASE, 1, 0);
        assert_eq!(q.next_timer(), Some(LEASE));
        seen(&mut q);
        q.tick(LEASE - 1);
        assert_eq!(seen(&mut q), []);
        q.tick(LEASE);
        assert_eq!(seen(&mut q), [Lost(1), Give(0)]);
        assert_eq!(unlock(&mut q, 1, lock, LEASE), [Ended(1, Status::Unlocked)]);
        q.given(0, LEASE);
        assert_eq!((q.spots.len(), q.locks.len(), q.next_timer()), (0, 0, None));
        // A grant that is too late is none.
        q.lock(ClientId(1), &args("a", Mode::EX), 7, LEASE);
        q.taken(0, true, 2 * LEASE, 2, 3 * LEASE);
        assert_eq!(seen(&mut q), [Take(0, 7, true), Give(0)]);
        q.given(0, 3 * LEASE);
        assert_eq!(seen(&mut q), [Take(0, 7, true)]);
    }

    #[test]
    fn who_gives_up_is_told_and_what_comes_for_it_goes_back() {
        let mut q = queue();
        let timeout = |mode| LockArgs { timeout: Some(10), ..args("a", mode) };
        q.lock(ClientId(1), &timeout(Mode::EX), 7, 0);
        q.tick(10);
        assert_eq!(seen(&mut q), [Take(0, 7, true), Ended(1, Status::TimedOut)]);
        let attempt = LockArgs { flags: LockFlags::NOQUEUE, ..args("a", Mode::EX) };
        q.lock(ClientId(1), &attempt, 7, 10);
        q.tick(10 + ATTEMPT);
        q.lock(ClientId(2), &args("a", Mode::EX), 7, 11);
        q.cancel(ClientId(2), LockId(3), Status::Canceled, 12);
        assert_eq!(q.unlock(ClientId(2), LockId(3), 0, 12), Err(Error::NoEntry));
        q.taken(0, true, LEASE, 1, 12);
        let ends = seen(&mut q);
        assert_eq!(ends, [Ended(2, Status::Again), Ended(3, Status::Canceled), Give(0)]);
        q.given(0, 13);
        assert_eq!((q.spots.len(), q.locks.len(), q.next_timer()), (0, 0, None));
    }

    #[test]
    fn hands_are_given_to_those_who_have_waited_longest() {
        let mut q = queue();
        for (client, name, spot) in [(1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "d", 4)] {
            q.lock(ClientId(client), &args(name, Mode::EX), spot, 0);
        }
        assert_eq!(seen(&mut q), [Take(0, 1, true), Take(1, 2, true)]);
        // Client 1 holds, and only a hand that is busy could have more for it.
        assert!(q.would_starve(ClientId(1), 9) && !q.would_starve(ClientId(5), 9));
        q.taken(1, true, LEASE, 1, 0);
        seen(&mut q);
        q.client_gone(ClientId(3), 0);
        q.client_gone(ClientId(2), 0);
        assert!(!q.would_starve(ClientId(1), 9), "a hand is free soon");
        q.given(1, 0);
        assert_eq!(seen(&mut q), [Give(1), Take(1, 4, true)]);
        q.failed(1, 0);
        assert_eq!(seen(&mut q), [Ended(4, Status::Refused(Error::NotMember))]);
    }

    #[test]
    fn names_that_share_a_lock_do_not_make_a_client_wait_for_itself() {
        let mut q = queue();
        q.lock(ClientId(1), &args("a", Mode::EX), 7, 0);
        q.taken(0, true, LEASE, 1, 0);
        seen(&mut q);
        q.lock(ClientId(1), &args("b", Mode::PR), 7, 0);
        assert_eq!(seen(&mut q), [Ended(2, Status::Deadlock)]);
        // Somebody else waits.
        q.lock(ClientId(2), &args("b", Mode::PR), 7, 0);
        assert_eq!(seen(&mut q), []);
    }

    #[test]
    fn a_halt_forgets_everything() {
        let mut q = queue();
        q.lock(ClientId(1), &args("a", Mode::EX), 7, 0);
        q.taken(0, true, LEASE, 1, 0);
        q.lock(ClientId(2), &args("a", Mode::EX), 7, 0);
        seen(&mut q);
        q.halt();
        assert_eq!(seen(&mut q), [Lost(1)]);
        assert_eq!((q.spots.len(), q.locks.len(), q.next_timer()), (0, 0, None));
        assert_eq!(q.lock(ClientId(1), &args("a", Mode::NL), 7, 0), LockId(3));
    }
}
