//! The locks and claims of a history so far, kept once for all rules.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use lockify_history::{EUNLOCK, Event, Flags, Kind, Member, Mode, Resource, SbFlags};

/// One life of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Life {
    /// The node.
    pub node: u32,
    /// Its incarnation.
    pub incarnation: u64,
}

impl Life {
    /// Returns true if a view still has this life of the node. A view without a list of members has none.
    pub fn is_among(self, members: Option<&[Member]>) -> bool {
        members
            .into_iter()
            .flatten()
            .any(|m| m.node == self.node && m.incarnation.is_none_or(|i| i == self.incarnation))
    }
}

/// A lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockKey {
    /// Its node.
    pub life: Life,
    /// Its id there.
    pub lock: u64,
}

impl std::fmt::Display for LockKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lock {} of node {}", self.lock, self.life.node)
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A new lock.
    Request,
    /// A conversion.
    Convert,
    /// An unlock.
    Unlock,
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OpKind::Request => "request",
            OpKind::Convert => "conversion",
            OpKind::Unlock => "unlock",
        })
    }
}

/// An operation that has not completed.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its id, if the history has it.
    pub id: Option<u64>,
    /// The kind of operation.
    pub kind: OpKind,
    /// The mode asked for; none for an unlock.
    pub mode: Option<Mode>,
    /// The mode granted when it was called.
    pub had: Option<Mode>,
    /// The call's flags.
    pub flags: Flags,
    /// The call's line.
    pub line: u64,
    /// Its completion may stay out: a forced unlock or the loss of the lock took it along.
    pub absorbed: bool,
    /// A cancel was called for it.
    pub cancelled: bool,
}

/// A lock that exists, as far as its client knows.
#[derive(Clone, Debug)]
pub struct Lock {
    /// Its resource, if the history says.
    pub resource: Option<Resource>,
    /// Its client, if the history says.
    pub client: Option<String>,
    /// The mode last granted.
    pub granted: Option<Mode>,
    /// The mode that the client may rely on: from the delivery of a grant to the call that ends it.
    pub held: Option<Mode>,
    /// The line of the last grant.
    pub line: u64,
    /// VALBLK on the last request or conversion.
    pub valblk: bool,
    /// PERSISTENT on the last request or conversion.
    pub persistent: bool,
    /// The grant is provisional.
    pub provisional: bool,
    /// It was reported lost.
    pub lost: bool,
    /// The outstanding operations, oldest first.
    pub ops: Vec<Op>,
}

impl Lock {
    /// Which of the outstanding operations this completion ends.
    pub fn ended_by(&self, event: &Event) -> Option<usize> {
        let position = |f: &dyn Fn(&Op) -> bool| self.ops.iter().position(f);
        if event.op.is_some() && self.ops.iter().any(|op| op.id.is_some()) {
            return position(&|op| op.id == event.op);
        }
        let unlock = |op: &Op| op.kind == OpKind::Unlock;
        match event.kind {
            Kind::Grant => position(&|op| !unlock(op)),
            _ if is_unlocked(event) => position(&unlock),
            _ => position(&|op| !unlock(op)).or_else(|| position(&unlock)),
        }
    }
}

/// Returns true if the event completes an unlock.
pub fn is_unlocked(event: &Event) -> bool {
    event.kind == Kind::Complete && event.status.is_some_and(|s| s.unsigned_abs() == EUNLOCK as u64)
}

/// The mode on which a client may rely while this conversion is under way.
pub fn held_during(granted: Mode, to: Mode, flags: Flags) -> Mode {
    if flags.contains(Flags::CONVDEADLK) {
        return Mode::NL;
    }
    let mut held = granted.meet(to);
    if flags.contains(Flags::ALTPR) {
        held = held.meet(Mode::PR);
    }
    if flags.contains(Flags::ALTCW) {
        held = held.meet(Mode::CW);
    }
    held
}

/// A claim that is not settled.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The claimed resource.
    pub resource: Resource,
    /// Its place among all claims of the history.
    pub seq: u64,
    /// Its line.
    pub line: u64,
}

/// The claims of one life of a node that are not settled.
#[derive(Default, Debug)]
pub struct Claims {
    by_id: HashMap<u64, Claim>,
    by_age: BTreeMap<u64, u64>,
    by_resource: HashMap<Resource, u32>,
}

impl Claims {
    /// A claim that is made again, because the master that refused it has left, keeps its age if it has not ended here.
    fn open(&mut self, id: u64, claim: Claim) {
        if self.by_id.contains_key(&id) {
            return;
        }
        *self.by_resource.entry(claim.resource.clone()).or_default() += 1;
        self.by_age.insert(claim.seq, id);
        self.by_id.insert(id, claim);
    }

    fn settle(&mut self, id: u64) {
        let Some(claim) = self.by_id.remove(&id) else {
            return;
        };
        self.by_age.remove(&claim.seq);
        if let Some(n) = self.by_resource.get_mut(&claim.resource) {
            *n -= 1;
            if *n == 0 {
                self.by_resource.remove(&claim.resource);
            }
        }
    }

    /// The oldest one.
    pub fn oldest(&self) -> Option<&Claim> {
        self.by_age.values().next().and_then(|id| self.by_id.get(id))
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Claim)> {
        self.by_age.values().filter_map(|id| Some((*id, self.by_id.get(id)?)))
    }

    /// Returns true if one of them is for this resource.
    pub fn has(&self, resource: &Resource) -> bool {
        self.by_resource.contains_key(resource)
    }
}

/// The locks and claims of a history up to an event.
#[derive(Default, Debug)]
pub struct State {
    locks: HashMap<Life, BTreeMap<u64, Lock>>,
    claims: HashMap<Life, Claims>,
    claims_made: u64,
}

impl State {
    /// The lock, if it exists.
    pub fn lock(&self, key: LockKey) -> Option<&Lock> {
        self.locks.get(&key.life)?.get(&key.lock)
    }

    /// All locks.
    pub fn locks(&self) -> impl Iterator<Item = (LockKey, &Lock)> {
        self.locks.iter().flat_map(|(life, locks)| {
            locks.iter().map(|(lock, l)| (LockKey { life: *life, lock: *lock }, l))
        })
    }

    /// The locks of one client.
    pub fn locks_of<'a>(
        &'a self,
        life: Life,
        client: &'a str,
    ) -> impl Iterator<Item = (LockKey, &'a Lock)> {
        let locks = self.locks.get(&life).into_iter().flatten();
        locks
            .filter(move |(_, lock)| lock.client.as_deref() == Some(client))
            .map(move |(id, lock)| (LockKey { life, lock: *id }, lock))
    }

    /// The unsettled claims of this life of a node.
    pub fn claims(&self, life: Life) -> Option<&Claims> {
        self.claims.get(&life)
    }

    /// All unsettled claims.
    pub fn all_claims(&self) -> impl Iterator<Item = (Life, u64, &Claim)> {
        self.claims.iter().flat_map(|(life, claims)| claims.iter().map(|(id, c)| (*life, id, c)))
    }

    /// How many claims were made so far.
    pub fn claims_made(&self) -> u64 {
        self.claims_made
    }

    /// Takes the event in.
    pub fn apply(&mut self, life: Life, event: &Event, line: u64) {
        match event.kind {
            Kind::Request
            | Kind::Convert
            | Kind::Unlock
            | Kind::Cancel
            | Kind::Grant
            | Kind::Complete
            | Kind::Settled
            | Kind::Lost => self.apply_to_lock(life, event, line),
            Kind::Claim => self.apply_claim(life, event, line),
            Kind::Refuse if self.has_provisional(life, event.resource.as_ref()) => {}
            Kind::Confirm | Kind::Refuse | Kind::Merge | Kind::Conflict | Kind::Drop => {
                if let (Some(claims), Some(id)) = (self.claims.get_mut(&life), event.claim_id) {
                    claims.settle(id);
                }
            }
            Kind::Gone => {
                if let (Some(locks), Some(client)) = (self.locks.get_mut(&life), &event.client) {
                    locks.retain(|_, lock| lock.client.as_ref() != Some(client));
                }
            }
            Kind::Crash | Kind::Leave => {
                self.locks.remove(&life);
                self.claims.remove(&life);
            }
            _ => {}
        }
    }

    /// Returns true if a claim's refusal would affect a grant. A strict claim has no grant until it
    /// is confirmed. A claim whose lock has gone has none left. If refused, such claims become
    /// ordinary requests, and are settled.
    fn has_provisional(&self, life: Life, resource: Option<&Resource>) -> bool {
        let locks = self.locks.get(&life).into_iter().flat_map(|locks| locks.values());
        locks.into_iter().any(|lock| lock.provisional && lock.resource.as_ref() == resource)
    }

    fn apply_claim(&mut self, life: Life, event: &Event, line: u64) {
        if let (Some(id), Some(resource)) = (event.claim_id, &event.resource) {
            let claim = Claim { resource: resource.clone(), seq: self.claims_made, line };
            self.claims.entry(life).or_default().open(id, claim);
            self.claims_made += 1;
        }
    }

    fn apply_to_lock(&mut self, life: Life, event: &Event, line: u64) {
        let Some(id) = event.lock else { return };
        let locks = self.locks.entry(life).or_default();
        if event.kind == Kind::Request || (event.kind == Kind::Grant && !locks.contains_key(&id)) {
            locks.insert(id, new_lock(event));
        }
        let Some(lock) = locks.get_mut(&id) else {
            return;
        };
        let gone = match event.kind {
            Kind::Request | Kind::Convert | Kind::Unlock => lock.begin(event, line),
            Kind::Grant | Kind::Complete => lock.complete(event, line),
            Kind::Cancel => lock.cancel(),
            Kind::Settled => {
                lock.provisional = false;
                false
            }
            _ => lock.lose(),
        };
        if gone {
            locks.remove(&id);
        }
    }
}

fn new_lock(event: &Event) -> Lock {
    Lock {
        resource: event.resource.clone(),
        client: event.client.clone(),
        granted: None,
        held: None,
        line: 0,
        valblk: false,
        persistent: event.flags.contains(Flags::PERSISTENT),
        provisional: false,
        lost: false,
        ops: Vec::new(),
    }
}

/// The effects of events on a lock; true if it is gone afterwards.
impl Lock {
    fn begin(&mut self, event: &Event, line: u64) -> bool {
        let kind = match event.kind {
            Kind::Request => OpKind::Request,
            Kind::Convert => OpKind::Convert,
            _ => OpKind::Unlock,
        };
        if kind == OpKind::Unlock {
            self.held = None;
            if event.flags.contains(Flags::FORCE) {
                self.ops.iter_mut().for_each(|op| op.absorbed = true);
            }
        } else {
            self.valblk = event.flags.contains(Flags::VALBLK);
            self.persistent = event.flags.contains(Flags::PERSISTENT);
        }
        if let (OpKind::Convert, Some(held), Some(to)) = (kind, self.held, event.mode) {
            self.held = Some(held_during(held, to, event.flags));
        }
        self.ops.push(Op {
            id: event.op,
            kind,
            mode: event.mode.filter(|_| kind != OpKind::Unlock),
            had: self.granted,
            flags: event.flags,
            line,
            absorbed: false,
            cancelled: false,
        });
        false
    }

    fn complete(&mut self, event: &Event, line: u64) -> bool {
        let op = self.ended_by(event).map(|i| self.ops.remove(i));
        if event.kind == Kind::Grant {
            self.granted = event.mode;
            self.provisional = event.provisional;
            self.line = line;
            // An unlock may have been called while this grant was on its way.
            self.held = event.mode.filter(|_| !self.lost && self.ops.is_empty());
            return false;
        }
        match op.as_ref().map(|op| op.kind) {
            _ if is_unlocked(event) => true,
            Some(OpKind::Request) => true,
            Some(OpKind::Convert) => {
                self.granted = mode_kept(event, self.granted);
                self.held = self.granted.filter(|_| !self.lost && self.ops.is_empty());
                false
            }
            _ => false,
        }
    }

    fn cancel(&mut self) -> bool {
        self.ops.iter_mut().for_each(|op| op.cancelled = true);
        false
    }

    fn lose(&mut self) -> bool {
        self.held = None;
        self.provisional = false;
        self.lost = true;
        self.ops.iter_mut().for_each(|op| op.absorbed = true);
        false
    }
}

/// The mode that a lock keeps when its conversion did not succeed.
pub fn mode_kept(event: &Event, before: Option<Mode>) -> Option<Mode> {
    event.mode.or(if event.sb_flags.contains(SbFlags::DEMOTED) { Some(Mode::NL) } else { before })
}
