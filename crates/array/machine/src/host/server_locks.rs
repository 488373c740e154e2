//! Locks from the lock server. A host requests them before phase 1. With server locking (docs/design/array.md 2.1) it returns
//! them when all of phase 2 is answered. With callback locking (docs/design/array.md 2.2) it keeps them until the server calls
//! them back.
//!
//! The connection delivers in order. On every new one the server that serves names its term. The host registers its locks
//! (docs/design/array.md 3.6), and then repeats unanswered messages. It hears the server of the newest term, and no other. The answer to a message proves that earlier messages have
//! arrived. Nobody acknowledges returned parts; this is how the host knows that they have arrived.

use std::collections::{BTreeMap, VecDeque};

use super::HostConfig;
use super::callback::{Freed, LockCache, Want};
use super::engine::{Phase, Role};
use super::{ArrayHost, HostOutput};
use crate::message::{Action, Answer, Past};
use crate::plan::{self, Plan};
use crate::{
    Held, Layout, LockMode, LockRange, OpError, OpId, PartId, Peer, Scheme, ServerId, ServerReply,
    ServerRequest, Stamp, Time,
};

/// More ranges than a lock server takes in one lock set.
const MOST_RANGES: usize = 16_384;

/// Where a lock set is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SetStage {
    /// The server has not granted it yet.
    Asked,
    /// The try holds it, or waits for others of this host under callback locking.
    Granted,
    /// The server has not confirmed yet that it is free.
    Unlocking,
}

struct LockSet {
    op: OpId,
    ranges: Vec<LockRange>,
    past: Past,
    repair: bool,
    stage: SetStage,
    /// Server locking: repairs may pass this lock, and so may reads of other continuing tries. Its try has written in part and
    /// sends nothing more.
    yielded: bool,
    /// The last message about it, and when it was sent.
    number: u64,
    sent: Time,
    /// Parts that were called back before the grant was known here.
    called: Vec<PartId>,
}

impl LockSet {
    fn parts(&self) -> impl Iterator<Item = PartId> {
        let op = self.op;
        (0u16..).zip(&self.ranges).map(move |(index, _)| PartId { op, index })
    }
}

/// Parts that were given back by a message that may not have arrived.
struct Returned {
    number: u64,
    free: Vec<PartId>,
    shared: Vec<PartId>,
}

/// A host's view of its locks at the server.
pub(super) struct ServerLocks {
    /// Callback locking: the kept locks.
    cache: Option<LockCache>,
    /// The locks have been registered on the present connection.
    registered: bool,
    /// The server of the newest term that has said so, and that term.
    server: ServerId,
    term: u64,
    /// How long the server believes a host that says nothing.
    lease: Time,
    /// By the number of the try.
    sets: BTreeMap<u64, LockSet>,
    returned: VecDeque<Returned>,
    /// Messages sent so far.
    sent: u64,
    /// A renewal that is not answered: its number, and when it was sent.
    renewal: Option<(u64, Time)>,
    /// When the server was last told something that renews the lease.
    renewed: Time,
    /// When unused parts were last given back.
    swept: Time,
}

impl ServerLocks {
    /// None for schemes that have no lock server.
    pub(super) fn of(config: &HostConfig) -> Option<Self> {
        let HostConfig { scheme, lease, give_back, .. } = *config;
        scheme.has_server().then(|| ServerLocks {
            cache: (scheme == Scheme::CallbackLocking).then(|| LockCache::new(give_back)),
            registered: false,
            server: ServerId(0),
            term: 0,
            lease,
            sets: BTreeMap::new(),
            returned: VecDeque::new(),
            sent: 0,
            renewal: None,
            renewed: 0,
            swept: 0,
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sets.is_empty()
    }

    fn holds(&self) -> bool {
        let cached = self.cache.as_ref().is_some_and(|cache| !cache.is_empty());
        cached || !self.sets.is_empty() || !self.returned.is_empty()
    }

    /// When [`ArrayHost::keep_locks`] has something to do.
    pub(super) fn next_timer(&self) -> Option<Time> {
        if !self.registered || !self.holds() {
            return None;
        }
        let renewal = self.renewed.saturating_add(self.lease / 3);
        let sweep = self.cache.as_ref().and_then(LockCache::oldest).map(|o| self.sweep_at(o));
        Some(sweep.map_or(renewal, |sweep| sweep.min(renewal)))
    }

    /// Parts that have not been used for a lease go back, several in one message.
    fn sweep_at(&self, oldest: Time) -> Time {
        oldest.saturating_add(self.lease).max(self.swept.saturating_add(self.lease / 8))
    }

    /// How long a lease lasts after the sending of the message that renewed it. The server counts from the arrival. The
    /// difference covers the duration of I/O, and clocks with different rates.
    fn usable_until(&self, sent: Time) -> Time {
        sent.saturating_add(self.lease - self.lease / 4)
    }

    fn held(&self) -> Vec<Held> {
        if let Some(cache) = &self.cache {
            return cache.held();
        }
        let granted = self.sets.values().filter(|set| set.stage == SetStage::Granted);
        let parts = granted.flat_map(|set| {
            set.parts().zip(&set.ranges).map(|(part, range)| Held { part, mode: range.mode })
        });
        parts.collect()
    }

    /// The parts that repairs may pass; repeated on every new connection.
    fn yields(&self) -> Vec<PartId> {
        match &self.cache {
            Some(cache) => cache.yields(),
            None => {
                let yielded = self.sets.values().filter(|set| set.yielded);
                yielded.flat_map(LockSet::parts).collect()
            }
        }
    }

    /// An answer shows that everything up to this message has arrived.
    fn arrived(&mut self, number: u64) {
        while self.returned.front().is_some_and(|returned| returned.number <= number) {
            self.returned.pop_front();
        }
    }
}

/// All ranges that an operation reads or writes, parity included. A try that continues earlier ones may read more than it may
/// write. So a unit's range that is only read is separate.
fn lock_set(layout: &Layout, plan: &Plan, goes_on: bool) -> Vec<LockRange> {
    let ranges = |access: &plan::Access| {
        let range = |columns: plan::Columns, mode: LockMode| {
            let extent = plan::extent(layout, access.stripe, &columns);
            (!columns.is_empty()).then_some(LockRange { device: access.device, extent, mode })
        };
        let hull = access.hull();
        match &access.write {
            None => [None, range(hull, LockMode::Shared), None],
            Some(_) if !goes_on => [None, range(hull, LockMode::Exclusive), None],
            Some(written) => [
                range(hull.start..written.start, LockMode::Shared),
                range(written.clone(), LockMode::Exclusive),
                range(written.end..hull.end, LockMode::Shared),
            ],
        }
    };
    plan.accesses.iter().flat_map(ranges).flatten().collect()
}

/// Tries that have written a part of this one's operation.
fn earlier(past: &Past) -> Vec<u64> {
    match past {
        Past::Tries(tries) => tries.iter().map(|op| op.seq).collect(),
        Past::Nobody | Past::Life(_) => Vec::new(),
    }
}

fn works_past_yielded(role: &Role) -> bool {
    matches!(role, Role::Pass(pass) if pass.repair)
}

impl ArrayHost {
    /// Before phase 1: requests all locks of a try together. If the scheme has no lock server, it continues at once.
    pub(super) fn gate(&mut self, now: Time, seq: u64) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let Some(locks) = self.locks.as_mut().filter(|_| !this.plan.accesses.is_empty()) else {
            return self.first(now, seq);
        };
        let goes_on = matches!(this.past, Past::Tries(_));
        let ranges = lock_set(&self.config.layout, &this.plan, goes_on);
        if ranges.len() > MOST_RANGES {
            let what = format!("an operation on more than {MOST_RANGES} units cannot be locked");
            return self.fail(now, seq, OpError::State(what));
        }
        this.phase = Phase::Gate;
        let (op, past) = (this.id, this.past.clone());
        let repair = this.task.as_ref().is_some_and(|task| works_past_yielded(&task.role));
        let want = match &mut locks.cache {
            Some(cache) => cache.want(seq, &ranges, &earlier(&past), repair, now),
            None => Want::Ask,
        };
        let stage = if want == Want::Ask { SetStage::Asked } else { SetStage::Granted };
        let (number, called) = (0, Vec::new());
        let yielded = false;
        let set = LockSet { op, ranges, past, repair, stage, yielded, number, sent: now, called };
        locks.sets.insert(seq, set);
        match want {
            Want::Ask => self.say_of_set(now, seq),
            want => self.admitted(now, seq, want),
        }
    }

    fn admitted(&mut self, now: Time, seq: u64, want: Want) {
        match want {
            Want::Ready => self.first(now, seq),
            Want::Wait | Want::Ask => self.delayed(seq),
        }
    }

    fn delayed(&mut self, seq: u64) {
        if let Some(task) = self.tries.get_mut(&seq).and_then(|this| this.task.as_mut()) {
            task.delayed = true;
        }
    }

    /// Returns true if a try may begin with phase 2 under its lease. Otherwise its locks may go to others before it is done.
    pub(super) fn lease_lasts(&self, now: Time, seq: u64) -> bool {
        let cache = self.locks.as_ref().and_then(|locks| {
            locks.sets.get(&seq)?;
            locks.cache.as_ref()
        });
        cache.is_none_or(|cache| cache.in_time(seq, now))
    }

    /// A try needs its locks no longer.
    pub(super) fn release(&mut self, now: Time, seq: u64) {
        let Some(locks) = &mut self.locks else { return };
        let Some(set) = locks.sets.get_mut(&seq) else { return };
        match (set.stage, &mut locks.cache) {
            (SetStage::Unlocking, _) => {}
            (SetStage::Granted, Some(cache)) => {
                let freed = cache.done(seq, now);
                locks.sets.remove(&seq);
                self.freed(now, freed);
            }
            (SetStage::Asked, _) | (SetStage::Granted, None) => {
                set.stage = SetStage::Unlocking;
                self.say_of_set(now, seq);
            }
        }
    }

    /// Yields the locks of a superseded try to repairs. The try has written in part and sends nothing more; another try
    /// continues the operation.
    pub(super) fn yield_locks(&mut self, now: Time, seq: u64) {
        let Some(locks) = &mut self.locks else { return };
        let Some(set) = locks.sets.get_mut(&seq).filter(|set| set.stage == SetStage::Granted)
        else {
            return;
        };
        match &mut locks.cache {
            Some(cache) => {
                let freed = cache.superseded(seq, now);
                self.freed(now, freed);
            }
            None => {
                set.yielded = true;
                let parts = set.parts().collect();
                self.say(ServerRequest::Yield { parts });
            }
        }
    }

    /// Gives parts back, and lets those go on that waited for them here.
    fn freed(&mut self, now: Time, freed: Freed) {
        let Freed { free, shared, yields, ready, expelled } = freed;
        if !yields.is_empty() {
            self.say(ServerRequest::Yield { parts: yields });
        }
        if !free.is_empty() || !shared.is_empty() {
            let newest = self.clock.newest();
            let (back, read) = (free.clone(), shared.clone());
            let request = ServerRequest::Relinquish { free: back, shared: read, newest };
            let number = self.say(request);
            if let Some(locks) = &mut self.locks {
                locks.returned.push_back(Returned { number, free, shared });
            }
        }
        let waits = |host: &ArrayHost, seq: u64| {
            host.tries.get(&seq).is_some_and(|this| this.phase == Phase::Gate)
        };
        for seq in ready {
            if waits(self, seq) {
                self.first(now, seq);
            }
        }
        for seq in expelled {
            if waits(self, seq) {
                self.restart(now, seq, 0);
            }
        }
    }

    /// Sends to the server, if it knows this host; else it is said when it does. Returns the message's number.
    fn say(&mut self, request: ServerRequest) -> u64 {
        let Some(locks) = &mut self.locks else { return 0 };
        locks.sent += 1;
        if locks.registered {
            self.counts.requests += 1;
            self.output.push_back(HostOutput::SendServer { to: locks.server, request });
        }
        locks.sent
    }

    /// Sends the message of a lock set's stage.
    fn say_of_set(&mut self, now: Time, seq: u64) {
        let Some(set) = self.locks.as_ref().and_then(|locks| locks.sets.get(&seq)) else { return };
        let op = set.op;
        let request = match set.stage {
            SetStage::Asked => {
                let (ranges, past) = (set.ranges.clone(), set.past.clone());
                ServerRequest::Lock { op, ranges, past, repair: set.repair }
            }
            SetStage::Unlocking => ServerRequest::Unlock { op, newest: self.clock.newest() },
            SetStage::Granted => return,
        };
        let asks = set.stage == SetStage::Asked;
        let number = self.say(request);
        let Some(locks) = &mut self.locks else { return };
        if asks && locks.registered {
            locks.renewed = now;
        }
        if let Some(set) = locks.sets.get_mut(&seq) {
            set.number = number;
            set.sent = now;
        }
    }

    /// Something that a repair tells the server.
    pub(super) fn tell_server(&mut self, action: &Action) {
        match *action {
            Action::Fence { life } => self.say(ServerRequest::Fence { life }),
            Action::Clear { life } => self.say(ServerRequest::Clear { life }),
            // Nothing else is for the server.
            _ => return,
        };
    }

    /// There is another connection to a server, or none; if it serves, it says so on the next.
    pub(super) fn server_link(&mut self, server: ServerId) {
        if self.locks.as_ref().is_some_and(|locks| locks.server == server) {
            self.server_lost();
        }
    }

    fn server_lost(&mut self) {
        if let Some(locks) = &mut self.locks {
            locks.registered = false;
            locks.renewal = None;
            self.owed.disconnected(Peer::Server);
        }
    }

    /// The array has agreed on a newer term. What a server of an older one grants does not count.
    pub(super) fn learn_term(&mut self) {
        let newest = self.state.locks.term;
        if self.locks.as_ref().is_some_and(|locks| locks.term < newest) {
            self.server_lost();
        }
    }

    /// Returns true if this server serves, as far as this host knows. A welcome tells.
    fn hears(&mut self, from: ServerId, reply: &ServerReply) -> bool {
        let newest = self.state.locks.term;
        let Some(locks) = &mut self.locks else { return false };
        match reply {
            ServerReply::Welcome { incarnation, .. } => {
                let is_newer = *incarnation > locks.term;
                let is_same = *incarnation == locks.term && locks.server == from;
                let hears = *incarnation >= newest && (is_newer || is_same);
                if hears {
                    (locks.server, locks.term) = (from, *incarnation);
                }
                hears
            }
            // For ever, whoever says so.
            ServerReply::Fenced { life, .. } if *life == self.config.life => true,
            _ => locks.server == from && locks.registered,
        }
    }

    pub(super) fn server_reply(&mut self, now: Time, from: ServerId, reply: ServerReply) {
        if self.fenced || !self.hears(from, &reply) {
            return;
        }
        match reply {
            ServerReply::Welcome { incarnation, lease } => self.register(now, incarnation, lease),
            ServerReply::Granted { op, waited, newest } => {
                self.clock.learn(newest);
                self.set_granted(now, op, waited);
            }
            ServerReply::Unlocked { op } => {
                let Some(locks) = &mut self.locks else { return };
                let unlocking = |set: &&LockSet| set.op == op && set.stage == SetStage::Unlocking;
                if let Some(set) = locks.sets.get(&op.seq).filter(unlocking) {
                    let number = set.number;
                    locks.sets.remove(&op.seq);
                    locks.arrived(number);
                    self.counts.replies += 1;
                }
            }
            ServerReply::Callback { parts, shared } => self.called_back(now, parts, shared),
            ServerReply::Renewed => {
                let Some(locks) = &mut self.locks else { return };
                if let Some((number, sent)) = locks.renewal.take() {
                    locks.arrived(number);
                    let until = locks.usable_until(sent);
                    locks.cache.iter_mut().for_each(|cache| cache.renewed(until));
                }
            }
            ServerReply::Fenced { life, .. } if life == self.config.life => self.fence(now),
            ServerReply::Fenced { life, ranges } => {
                self.server_told(now, &Action::Fence { life }, &ranges);
            }
            ServerReply::Cleared { life } => self.server_told(now, &Action::Clear { life }, &[]),
            // Lock sets are looked at before they are asked for, so that this can only be a repair\x27s message.
            ServerReply::Refused { .. } => {
                for (seq, index) in self.outstanding(|sibling| sibling.peer == Peer::Server) {
                    self.answered_by_server(now, seq, index, Vec::new(), Answer::Invalid);
                }
            }
        }
    }

    /// The server does not know this host's locks, or there is a new connection.
    fn register(&mut self, now: Time, incarnation: u64, lease: Time) {
        self.owed.connected(Peer::Server);
        let Some(locks) = &mut self.locks else { return };
        locks.lease = lease;
        locks.registered = true;
        locks.renewal = None;
        locks.renewed = now;
        let (held, newest) = (locks.held(), self.clock.newest());
        let request = ServerRequest::Register { incarnation, held, newest };
        self.output.push_back(HostOutput::SendServer { to: locks.server, request });
        let returned = std::mem::take(&mut locks.returned);
        let unanswered = locks.sets.iter().filter(|(_, set)| set.stage != SetStage::Granted);
        let unanswered: Vec<u64> = unanswered.map(|(seq, _)| *seq).collect();
        for Returned { free, shared, .. } in returned {
            self.freed(now, Freed { free, shared, ..Freed::default() });
        }
        let yields = self.locks.as_ref().map(ServerLocks::yields).unwrap_or_default();
        self.freed(now, Freed { yields, ..Freed::default() });
        for seq in unanswered {
            self.say_of_set(now, seq);
        }
        self.resend(now, Peer::Server);
    }

    fn set_granted(&mut self, now: Time, op: OpId, waited: bool) {
        let Some(locks) = &mut self.locks else { return };
        let asked = |set: &&mut LockSet| set.op == op && set.stage == SetStage::Asked;
        let Some(set) = locks.sets.get_mut(&op.seq).filter(asked) else { return };
        self.counts.replies += 1;
        set.stage = SetStage::Granted;
        let (number, sent, called) = (set.number, set.sent, std::mem::take(&mut set.called));
        let (ranges, earlier, repair) = (set.ranges.clone(), earlier(&set.past), set.repair);
        locks.arrived(number);
        let until = locks.usable_until(sent);
        let (want, freed) = match &mut locks.cache {
            Some(cache) => {
                cache.renewed(until);
                let want = cache.granted(op, &ranges, &earlier, repair);
                (want, cache.call_back(&called, false, now))
            }
            None => (Want::Ready, Freed::default()),
        };
        if waited {
            self.delayed(op.seq);
        }
        self.admitted(now, op.seq, want);
        self.freed(now, freed);
    }

    fn called_back(&mut self, now: Time, parts: Vec<PartId>, shared: bool) {
        let Some(locks) = &mut self.locks else { return };
        self.counts.replies += 1;
        let mut known = Vec::new();
        for part in parts {
            match locks.sets.get_mut(&part.op.seq) {
                Some(set) if set.op == part.op && set.stage == SetStage::Asked => {
                    set.called.push(part);
                }
                _ => known.push(part),
            }
        }
        let freed = locks.cache.as_mut().map(|cache| cache.call_back(&known, shared, now));
        self.freed(now, freed.unwrap_or_default());
    }

    /// The server has done what repairs told it.
    fn server_told(&mut self, now: Time, action: &Action, ranges: &[LockRange]) {
        for (seq, index) in self.outstanding(|sibling| {
            let out = sibling.out.as_ref();
            sibling.peer == Peer::Server && out.is_some_and(|out| out.action == *action)
        }) {
            let in_flight = ranges.iter().map(|range| {
                let in_flight = vec![(range.extent, Stamp::default())];
                let (written, forgotten, forgot) = (Vec::new(), 0, false);
                let answer = Answer::InFlight { in_flight, written, forgotten, forgot };
                (Peer::Device(range.device), answer)
            });
            self.answered_by_server(now, seq, index, in_flight.collect(), Answer::Done);
        }
    }

    fn answered_by_server(
        &mut self,
        now: Time,
        seq: u64,
        index: usize,
        found: Vec<(Peer, Answer)>,
        answer: Answer,
    ) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        this.siblings[index].out = None;
        self.counts.replies += 1;
        this.note(found);
        self.second_answered(now, seq, index, answer);
    }

    /// Renews the lease, and returns locks that were unused for long.
    pub(super) fn keep_locks(&mut self, now: Time) {
        let Some(locks) = &mut self.locks else { return };
        if !locks.registered || !locks.holds() {
            return;
        }
        let oldest = locks.cache.as_ref().and_then(LockCache::oldest);
        if oldest.is_some_and(|oldest| locks.sweep_at(oldest) <= now) {
            locks.swept = now;
            let since = now.saturating_sub(locks.lease);
            let freed = locks.cache.as_mut().map(|cache| cache.drop_unused(since));
            self.freed(now, freed.unwrap_or_default());
        }
        let Some(locks) = &mut self.locks else { return };
        if locks.renewed.saturating_add(locks.lease / 3) <= now {
            locks.renewed = now;
            locks.sent += 1;
            locks.renewal.get_or_insert((locks.sent, now));
            self.counts.leases += 1;
            let (to, request) = (locks.server, ServerRequest::Renew);
            self.output.push_back(HostOutput::SendServer { to, request });
        }
    }

    /// Returns the unused locks.
    pub(super) fn leave(&mut self, now: Time) {
        let cache = self.locks.as_mut().and_then(|locks| locks.cache.as_mut());
        let freed = cache.map(|cache| cache.drop_unused(now));
        self.freed(now, freed.unwrap_or_default());
    }

    /// Nothing is held any more: this life is over.
    pub(super) fn forget_locks(&mut self) {
        self.locks = ServerLocks::of(&self.config);
    }

    /// Whom a repair has to tell of a life beside devices.
    pub(super) fn lock_server(&self) -> Option<Peer> {
        self.locks.as_ref().map(|_| Peer::Server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Access, Unit};
    use crate::{DeviceId, Extent, Redundancy};

    #[test]
    fn who_goes_on_locks_for_himself_only_what_he_writes() {
        let layout = Layout {
            redundancy: Redundancy::Raid5,
            data: 2,
            groups: 1,
            unit: 4,
            block_size: 16,
            stripes: 2,
            added: Default::default(),
        };
        let access = |read, write| Access {
            device: DeviceId(1),
            stripe: 1,
            unit: Unit::Data(0),
            read,
            write,
            old: None,
        };
        let accesses = vec![access(Some(0..4), Some(1..3)), access(Some(0..2), None)];
        let plan = Plan { accesses, ..Plan::default() };
        let range = |start, count, mode| LockRange {
            device: DeviceId(1),
            extent: Extent { start, count },
            mode,
        };
        use LockMode::{Exclusive as X, Shared as S};
        assert_eq!(lock_set(&layout, &plan, false), [range(4, 4, X), range(4, 2, S)]);
        let apart = [range(4, 1, S), range(5, 2, X), range(7, 1, S), range(4, 2, S)];
        assert_eq!(lock_set(&layout, &plan, true), apart);
    }
}
