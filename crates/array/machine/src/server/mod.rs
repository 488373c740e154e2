//! The lock server of server locking and callback locking (docs/design/array.md 2.1, 2.2 and 3.6), as a state machine.
//!
//! A `Lock` has the whole lock set of an operation. The server grants all of it or nothing, in the order of arrival among
//! conflicting sets. No host holds one lock and waits for another, so there is no deadlock. No request is overtaken, so
//! there is no starvation.
//!
//! **Callback locking**: a grant is a lease that the host keeps until it is called back. The host renews its lease as a
//! whole, except for parts that have been called back. If a lease ends before its holder has returned the part, the
//! holder's life is *suspect*. Its locks are granted to others only after two steps. First it is fenced at all devices.
//! Then its unfinished writes are repaired ([`crate::Work::Fence`]). `Clear` ends this. A device therefore refuses a late
//! write, whatever the clocks say. A host whose lease ends while no other host wants its locks keeps it.
//!
//! **Yielded locks.** Suppose that a restarted device has refused a write, because the stripe has to be repaired first.
//! The write keeps its locks: others must not see it in part. It waits for the repair, and the repair waits for the whole
//! stripe. Two such writes in different columns of a stripe would wait for each other for ever. So would one beside a
//! dead host's. Therefore the host *yields* these locks. Only two requests may pass yielded locks: repairs, and reads by
//! a try that continues another refused write. This is safe, for these reasons:
//! - A try that yields has an answer for each of its writes. Otherwise the device that owes it is out of the array. So
//!   none of its messages is under way. It never sends another. A try with a lock set of its own continues the operation,
//!   and conflicts with repairs like any other. Devices accept nothing from connections that a life has replaced by newer
//!   ones.
//! - A repair gives nobody the blocks that it reads. It changes no readable block, only parity and torn or lost blocks.
//!   So a host outside the yielded locks still sees nothing of the operation, and an answered host loses nothing.
//! - The continuing try reads anew, after the repair, and does not use the old parity (docs/design/array.md 3.4). It
//!   reads the blocks that it does not write, to compute parity, whoever wrote them. It returns them to nobody. One of
//!   two such tries may have to read partial writes of the other's operation. Where a device of the stripe was missing,
//!   the operations' locks had nothing in common. When it is back, parity needs the other's blocks.
//! - A granted repair excludes that try, other repairs, and all other requests, by the ranges of its own lock.
//!
//! A host returns a yielded part as a whole, and never keeps it for its other operations. The log does not record yielded
//! parts: after a restart hosts name them again behind `Register`.
//!
//! **Timestamps** in blocks' headers show the order of writes, and hosts' clocks differ. So a host reports its newest
//! timestamp with each release. Each grant has the newest timestamp of the former holders of these blocks, and the new
//! holder continues from there. One number for all is enough, because timestamps need only grow. The log has it before
//! each release. After a restart, either both are there, or the release is not. Then the owner registers and repeats it,
//! or a repair reads the headers of all its blocks.
//!
//! **Restart**: the log restores the table, with a new incarnation. Each host in the table has to register within a
//! lease. A host that does not is suspect.

mod copies;
mod journal;
mod message;
mod replica;
mod restore;
mod service;
mod standby;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

pub use copies::CopyMessage;
pub use journal::{LogAsk, LogToken};
pub use message::{Held, LockMode, LockRange, PartId, ServerReply, ServerRequest};
pub use replica::{Replica, ReplicaConfig, ReplicaInput, ReplicaOutput};
pub use service::{LockChange, LockService};

use crate::message::Past;
use crate::{HostId, Life, OpId, Scheme, ServerId, Time};
use journal::{Entry, Journal, decode, encode};
use table::{Order, Table};

/// More ranges than this in one lock set are refused.
const MAX_RANGES: usize = 16_384;

/// How a lock server is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// [`Scheme::ServerLocking`] or [`Scheme::CallbackLocking`].
    pub scheme: Scheme,
    /// The length of a lease, in nanoseconds; 4 s in the paper. In server locking it bounds two times. Hosts have to
    /// register within it after a restart. A host that others wait for may be silent for it.
    pub lease: Time,
    /// How long a message may be under way, in nanoseconds. For this time the server recognizes a `Lock` that arrives behind
    /// its `Unlock`.
    pub message_life: Time,
}

/// An input of a lock server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerInput {
    /// A host can be talked to.
    Connected {
        /// Which life.
        life: Life,
    },
    /// A host asks.
    Request {
        /// Which life.
        from: Life,
        /// The request.
        request: ServerRequest,
    },
    /// A write of the log is durable.
    Logged {
        /// The token of the durable entry.
        token: LogToken,
    },
    /// Time has passed.
    Tick,
}

/// An output of a lock server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerOutput {
    /// Send it to a host.
    Send {
        /// Which life.
        to: Life,
        /// The reply.
        reply: ServerReply,
    },
    /// Write the log.
    Log(LogAsk),
    /// This life seems to be dead, and others wait for its locks: give [`crate::Work::Fence`] to some host. Repeated
    /// every lease until it has been done.
    Suspect(Life),
}

/// Why a lock server cannot start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// The scheme has no lock server.
    #[error("{0} has no lock server")]
    Scheme(Scheme),
    /// A record of the log cannot be read.
    #[error(
        "record {index} of the lock server's log cannot be read ({why}); remove the log and scrub the whole array"
    )]
    Log {
        /// Which, from 0.
        index: usize,
        /// The error in it.
        why: String,
    },
}

struct RegisteredHost {
    registered: bool,
    /// When its lease ends, as the server counts.
    expiry: Time,
}

/// The lock server.
pub struct LockServer {
    config: ServerConfig,
    incarnation: u64,
    /// The key of its log, and whose log that is; with the keys that complete logs are to get.
    keys: Vec<(ServerId, u64)>,
    now: Time,
    table: Table,
    hosts: BTreeMap<Life, RegisteredHost>,
    /// Lives up to these incarnations are fenced.
    fenced: BTreeMap<HostId, u64>,
    /// Fenced lives whose locks are not cleared.
    uncleared: BTreeSet<Life>,
    /// Lives to be fenced, and when that is said again.
    suspects: BTreeMap<Life, Time>,
    /// Server locking: lives that others wait for, and when to see whether they are alive.
    watched: BTreeMap<Life, Time>,
    /// When the lease of a part that has been called back ends. May name parts that have been given back, or
    /// called back again since.
    deadlines: BTreeSet<(Time, PartId)>,
    /// Operations that were unlocked, until a late `Lock` of theirs cannot come any more.
    ended: BTreeMap<OpId, Time>,
    ended_at: VecDeque<(Time, OpId)>,
    /// The newest timestamp that a host has told.
    newest: Time,
    journal: Journal,
    outputs: VecDeque<ServerOutput>,
}

impl LockServer {
    /// Starts a server with the records of its log; none for a new one. Its incarnation is the next one after that of the log.
    pub fn new(config: ServerConfig, log: &[Bytes], now: Time) -> Result<Self, ServerError> {
        let mut server = LockServer::restored(config, log, now)?;
        let incarnation = server.incarnation + 1;
        server.begin(incarnation);
        Ok(server)
    }

    /// As [`LockServer::new`], for the term that the array has agreed on. The log has this key.
    pub(crate) fn in_term(
        config: ServerConfig,
        log: &[Bytes],
        now: Time,
        term: u64,
        key: (ServerId, u64),
    ) -> Result<Self, ServerError> {
        let mut server = LockServer::restored(config, log, now)?;
        server.keys = vec![key];
        server.begin(term);
        Ok(server)
    }

    fn restored(config: ServerConfig, log: &[Bytes], now: Time) -> Result<Self, ServerError> {
        if !config.scheme.has_server() {
            return Err(ServerError::Scheme(config.scheme));
        }
        let mut server = LockServer {
            config,
            incarnation: 0,
            keys: Vec::new(),
            now,
            table: Table::default(),
            hosts: BTreeMap::new(),
            fenced: BTreeMap::new(),
            uncleared: BTreeSet::new(),
            suspects: BTreeMap::new(),
            watched: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ended: BTreeMap::new(),
            ended_at: VecDeque::new(),
            newest: 0,
            journal: Journal::default(),
            outputs: VecDeque::new(),
        };
        let mut count = 0;
        for (index, record) in log.iter().enumerate() {
            let entries =
                decode(record).map_err(|why| ServerError::Log { index, why: why.to_string() })?;
            count += entries.len();
            entries.into_iter().for_each(|entry| server.replay(entry));
        }
        server.journal.restored(count);
        Ok(server)
    }

    fn begin(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
        self.journal.commit(Entry::Started { incarnation }, None);
        // docs/design/array.md 3.6: who held something has a lease's time to say so.
        let lives: BTreeSet<Life> = self.table.iter().map(|(_, r)| r.op.life).collect();
        let expiry = self.now.saturating_add(self.config.lease);
        for life in lives {
            self.hosts.insert(life, RegisteredHost { registered: false, expiry });
        }
    }

    /// Logs are to get these keys. The next record of the log has them.
    pub(crate) fn new_keys(&mut self, keys: Vec<(ServerId, u64)>) {
        for (server, key) in keys {
            self.keys.push((server, key));
            self.journal.commit(Entry::Key { server, key }, None);
        }
    }

    /// Its log has this key, and no log is to get another one.
    pub(crate) fn key_is(&mut self, server: ServerId, key: u64) {
        self.keys = vec![(server, key)];
    }

    /// All that a copy of the log has to have, as one record.
    pub(crate) fn whole(&self) -> Bytes {
        encode(&self.snapshot())
    }

    fn raise(&mut self, life: Life) {
        let floor = self.fenced.entry(life.host).or_default();
        *floor = (*floor).max(life.incarnation);
    }

    /// Returns true if a life gets no lock any more. The fence may not be durable yet.
    pub fn is_fenced(&self, life: Life) -> bool {
        self.fenced.get(&life.host).is_some_and(|&floor| life.incarnation <= floor)
    }

    fn orders_of(&self, life: Life) -> Vec<Order> {
        self.table.iter().filter(|(_, r)| r.op.life == life).map(|(order, _)| order).collect()
    }

    fn callback(&self) -> bool {
        self.config.scheme == Scheme::CallbackLocking
    }

    /// Handles an input. `now` is the server's clock, which must not go back.
    pub fn handle(&mut self, now: Time, input: ServerInput) {
        self.now = self.now.max(now);
        match input {
            ServerInput::Connected { life } => self.welcome(life),
            ServerInput::Request { from, request } => self.request(from, request),
            ServerInput::Logged { token } => {
                let replies = self.journal.written(token);
                replies.into_iter().for_each(|(to, reply)| self.send(to, reply));
            }
            ServerInput::Tick => {}
        }
        self.expire();
    }

    /// The next output; call until it returns `None`.
    pub fn poll(&mut self) -> Option<ServerOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let mut journal = std::mem::take(&mut self.journal);
        let asked = journal.poll(self.table.len().0, || self.snapshot());
        self.journal = journal;
        asked.map(ServerOutput::Log)
    }

    /// When to call with a tick, if nothing else happens before.
    pub fn next_timer(&self) -> Option<Time> {
        self.unregistered()
            .map(|(_, expiry)| expiry)
            .chain(self.deadlines.first().map(|&(at, _)| at))
            .chain(self.ended_at.front().map(|&(at, _)| at))
            .chain(self.watched.values().copied())
            .chain(self.suspects.values().copied())
            .min()
    }

    /// Returns true if a life is to be fenced or cleared.
    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty() || !self.uncleared.is_empty()
    }

    /// Nobody holds or waits for anything, and nothing is remembered of those who did.
    pub fn is_empty(&self) -> bool {
        self.table.len() == (0, 0)
            && self.ended.is_empty()
            && self.suspects.is_empty()
            && self.uncleared.is_empty()
            && self.journal.idle()
    }

    /// The amounts of state that the server keeps for hosts, as [`crate::Device::kept`].
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("locks and waiting requests", self.table.len().0),
            ("operations that have ended", self.ended.len()),
            ("lives to be fenced or cleared", self.suspects.len() + self.uncleared.len()),
        ]
    }

    /// Lives in the log that have not registered.
    fn unregistered(&self) -> impl Iterator<Item = (Life, Time)> {
        self.hosts
            .iter()
            .filter(|(life, host)| !host.registered && !self.suspects.contains_key(life))
            .map(|(&life, host)| (life, host.expiry))
    }

    fn send(&mut self, to: Life, reply: ServerReply) {
        self.outputs.push_back(ServerOutput::Send { to, reply });
    }

    /// The incarnation must be durable before a host knows it: two servers' lives must not have the same.
    fn welcome(&mut self, life: Life) {
        let reply = if self.is_fenced(life) {
            ServerReply::Fenced { life, ranges: Vec::new() }
        } else {
            ServerReply::Welcome { incarnation: self.incarnation, lease: self.config.lease }
        };
        self.journal.after(Some((life, reply)));
    }

    fn request(&mut self, from: Life, request: ServerRequest) {
        if self.is_fenced(from) {
            return self.send(from, ServerReply::Fenced { life: from, ranges: Vec::new() });
        }
        if let ServerRequest::Register { incarnation, held, newest } = request {
            self.learn(newest);
            return self.register(from, incarnation, &held);
        }
        if !self.hosts.get(&from).is_some_and(|host| host.registered) {
            return self.welcome(from);
        }
        match request {
            ServerRequest::Register { .. } => {}
            ServerRequest::Lock { op, ranges, past, repair } => {
                self.lock(from, op, &ranges, past, repair);
            }
            ServerRequest::Unlock { op, newest } => {
                self.learn(newest);
                self.unlock(from, op);
            }
            ServerRequest::Relinquish { free, shared, newest } => {
                self.learn(newest);
                self.relinquish(from, &free, &shared);
            }
            ServerRequest::Yield { parts } => self.yielded(from, &parts),
            ServerRequest::Renew => {
                self.renew(from);
                self.send(from, ServerReply::Renewed);
            }
            ServerRequest::Fence { life } => self.fence(from, life),
            ServerRequest::Clear { life } => self.clear(from, life),
        }
    }

    fn learn(&mut self, newest: Time) {
        if newest > self.newest {
            self.newest = newest;
            self.journal.note(Entry::Newest { time: newest });
        }
    }

    fn renew(&mut self, life: Life) {
        if let Some(host) = self.hosts.get_mut(&life) {
            host.expiry = host.expiry.max(self.now.saturating_add(self.config.lease));
        }
    }

    fn register(&mut self, from: Life, incarnation: u64, held: &[Held]) {
        if incarnation != self.incarnation {
            return self.welcome(from);
        }
        if self.hosts.get(&from).is_some_and(|host| host.registered) {
            // On a new connection, the host's list may be out of date. Messages on the old connection may be lost.
            return self.call_again(from);
        }
        // A newer life of the host: the older ones are dead.
        let dead: Vec<Life> = self
            .hosts
            .keys()
            .filter(|life| life.host == from.host && life.incarnation < from.incarnation)
            .copied()
            .collect();
        for life in dead {
            if self.orders_of(life).is_empty() {
                self.hosts.remove(&life);
            } else if !self.is_fenced(life) {
                self.suspects.entry(life).or_insert(self.now);
            }
        }
        self.suspects.remove(&from);
        let expiry = self.now.saturating_add(self.config.lease);
        self.hosts.insert(from, RegisteredHost { registered: true, expiry });
        let modes: BTreeMap<PartId, LockMode> = held.iter().map(|h| (h.part, h.mode)).collect();
        let mut released = Vec::new();
        for order in self.orders_of(from) {
            let Some(request) = self.table.get(order) else { continue };
            let op = request.op;
            let parts: Vec<(u16, LockMode)> = request
                .parts
                .iter()
                .enumerate()
                .filter_map(|(i, part)| part.as_ref().map(|p| (i as u16, p.range.mode)))
                .collect();
            for (index, mode) in parts {
                match modes.get(&PartId { op, index }) {
                    None => released.extend(self.free_part(order, PartId { op, index })),
                    Some(LockMode::Shared) if mode == LockMode::Exclusive => {
                        released.extend(self.share_part(order, PartId { op, index }));
                    }
                    Some(_) => {}
                }
            }
        }
        // A part that was called back before the host could hear it gets the time of a new call.
        for order in self.orders_of(from) {
            let Some(request) = self.table.get_mut(order) else { continue };
            let op = request.op;
            for (index, part) in (0u16..).zip(&mut request.parts) {
                if let Some(part) = part.as_mut().filter(|part| part.called.is_some()) {
                    part.called = Some(expiry);
                    self.deadlines.insert((expiry, PartId { op, index }));
                }
            }
        }
        self.call_again(from);
        self.serve_over(&released);
    }

    fn lock(&mut self, from: Life, op: OpId, ranges: &[LockRange], past: Past, repair: bool) {
        if let Some(reason) = refusal(from, op, ranges) {
            return self.send(from, ServerReply::Refused { reason });
        }
        self.renew(from);
        if self.ended.contains_key(&op) {
            return self.send(from, ServerReply::Unlocked { op });
        }
        if let Some(order) = self.table.order_of(op) {
            // It came twice. If the answer is on its way, it is so twice.
            if let Some(request) = self.table.get(order).filter(|request| request.granted) {
                let (waited, newest) = (request.waited, self.newest);
                self.journal.after(Some((from, ServerReply::Granted { op, waited, newest })));
            }
            return;
        }
        let order = self.table.add(op, ranges, past, repair, false);
        self.serve(BTreeSet::from([order]));
    }

    fn unlock(&mut self, from: Life, op: OpId) {
        if op.life != from {
            let reason = "an operation is unlocked by its own host".to_owned();
            return self.send(from, ServerReply::Refused { reason });
        }
        if self.ended.insert(op, self.now).is_none() {
            let until = self.now.saturating_add(self.config.message_life);
            self.ended_at.push_back((until, op));
        }
        if let Some(order) = self.table.order_of(op) {
            let granted = self.table.get(order).is_some_and(|request| request.granted);
            let released = self.table.remove(order);
            if granted {
                self.journal.note(Entry::Freed { op });
            }
            self.serve_over(&released);
        }
        self.send(from, ServerReply::Unlocked { op });
    }

    fn relinquish(&mut self, from: Life, free: &[PartId], shared: &[PartId]) {
        let mut released = Vec::new();
        for &part in free.iter().filter(|part| part.op.life == from) {
            if let Some(order) = self.granted(part.op) {
                released.extend(self.free_part(order, part));
            }
        }
        for &part in shared.iter().filter(|part| part.op.life == from) {
            if let Some(order) = self.granted(part.op) {
                released.extend(self.share_part(order, part));
            }
        }
        self.serve_over(&released);
    }

    /// Repairs that wait for these parts wait no longer.
    fn yielded(&mut self, from: Life, parts: &[PartId]) {
        let mut passable = Vec::new();
        for part in parts.iter().filter(|part| part.op.life == from) {
            let Some(order) = self.granted(part.op) else { continue };
            let Some(request) = self.table.get_mut(order) else { continue };
            if let Some(Some(held)) = request.parts.get_mut(usize::from(part.index)) {
                held.yielded = true;
                passable.push(held.range);
            }
        }
        self.serve_over(&passable);
    }

    fn granted(&self, op: OpId) -> Option<Order> {
        let order = self.table.order_of(op)?;
        self.table.get(order)?.granted.then_some(order)
    }

    fn free_part(&mut self, order: Order, part: PartId) -> Option<LockRange> {
        let range = self.table.remove_part(order, part.index)?;
        self.journal.note(Entry::PartFreed { part });
        Some(range)
    }

    fn share_part(&mut self, order: Order, part: PartId) -> Option<LockRange> {
        let range = self.table.set_shared(order, part.index)?;
        self.journal.note(Entry::PartShared { part });
        Some(range)
    }

    fn fence(&mut self, from: Life, life: Life) {
        if !self.is_fenced(life) {
            self.raise(life);
            self.uncleared.insert(life);
            self.journal.commit(Entry::Fenced { life }, None);
        }
        if self.suspects.contains_key(&life) {
            self.suspects.insert(life, self.now.saturating_add(self.config.lease));
        }
        let queued: Vec<Order> = self
            .orders_of(life)
            .into_iter()
            .filter(|&order| self.table.get(order).is_some_and(|request| !request.granted))
            .collect();
        let released: Vec<LockRange> =
            queued.into_iter().flat_map(|order| self.table.remove(order)).collect();
        let ranges = self
            .table
            .iter()
            .filter(|(_, request)| request.op.life == life)
            .flat_map(|(_, request)| request.parts.iter().flatten())
            .filter(|part| part.range.mode == LockMode::Exclusive)
            .map(|part| part.range)
            .collect();
        self.journal.after(Some((from, ServerReply::Fenced { life, ranges })));
        self.serve_over(&released);
    }

    fn clear(&mut self, from: Life, life: Life) {
        if !self.is_fenced(life) {
            let reason = "only a fenced life can be cleared".to_owned();
            return self.send(from, ServerReply::Refused { reason });
        }
        self.suspects.remove(&life);
        self.hosts.remove(&life);
        if self.uncleared.remove(&life) || !self.orders_of(life).is_empty() {
            self.journal.note(Entry::Cleared { life });
        }
        let released: Vec<LockRange> =
            self.orders_of(life).into_iter().flat_map(|order| self.table.remove(order)).collect();
        self.journal.after(Some((from, ServerReply::Cleared { life })));
        self.serve_over(&released);
    }

    fn serve_over(&mut self, released: &[LockRange]) {
        let candidates = self.table.queued_over(released);
        self.serve(candidates);
    }

    /// Grants the requests that can be granted, and calls back the parts that block the rest.
    fn serve(&mut self, mut candidates: BTreeSet<Order>) {
        while let Some(order) = candidates.pop_first() {
            let blockers = self.table.blockers(order, self.callback(), |life| self.is_fenced(life));
            if !blockers.is_empty() {
                if let Some(request) = self.table.get_mut(order) {
                    request.waited = true;
                }
                if self.callback() {
                    self.call_back(order, &blockers);
                } else {
                    self.watch(&blockers);
                }
                continue;
            }
            let Some(request) = self.table.get_mut(order) else { continue };
            request.granted = true;
            let (op, waited) = (request.op, request.waited);
            let ranges = request.parts.iter().enumerate();
            let ranges: Vec<(u16, LockRange)> =
                ranges.filter_map(|(i, part)| part.as_ref().map(|p| (i as u16, p.range))).collect();
            let granted: Vec<LockRange> = ranges.iter().map(|(_, range)| *range).collect();
            let entry = Entry::Granted { op, ranges, past: request.past.clone() };
            let reply = ServerReply::Granted { op, waited, newest: self.newest };
            self.journal.commit(entry, Some((op.life, reply)));
            // A request that waited behind this one now waits for a holder. The server has to ask that holder, also for parts
            // that no host has just returned.
            candidates.extend(self.table.queued_over(&granted));
        }
    }

    fn call_back(&mut self, waiting: Order, blockers: &[(Order, u16)]) {
        let mut calls: BTreeMap<(Life, bool), Vec<PartId>> = BTreeMap::new();
        for &(order, index) in blockers {
            let Some(request) = self.table.get(order) else { continue };
            let part = request.parts.get(usize::from(index)).and_then(Option::as_ref);
            let Some(part) = part.filter(|part| request.granted && part.called.is_none()) else {
                continue;
            };
            let life = request.op.life;
            // Shared is enough if all of the waiting request that overlaps only reads.
            let shared = part.range.mode == LockMode::Exclusive
                && self.table.get(waiting).is_some_and(|waiting| {
                    waiting.parts.iter().flatten().all(|theirs| {
                        theirs.range.device != part.range.device
                            || !overlap(theirs.range, part.range)
                            || theirs.range.mode == LockMode::Shared
                    })
                });
            calls.entry((life, shared)).or_default().push(PartId { op: request.op, index });
        }
        for ((life, shared), parts) in calls {
            let deadline = self.hosts.get(&life).map_or(self.now, |host| host.expiry);
            for part in &parts {
                let Some(order) = self.table.order_of(part.op) else { continue };
                let Some(request) = self.table.get_mut(order) else { continue };
                if let Some(Some(held)) = request.parts.get_mut(usize::from(part.index)) {
                    held.called = Some(deadline);
                    self.deadlines.insert((deadline, *part));
                }
            }
            // Not before the grant itself has been sent.
            self.journal.after(Some((life, ServerReply::Callback { parts, shared })));
        }
    }

    /// Repeats the callbacks for this life's held parts.
    fn call_again(&mut self, life: Life) {
        let mut called = Vec::new();
        for order in self.orders_of(life) {
            let Some(request) = self.table.get(order) else { continue };
            for (index, part) in (0u16..).zip(&request.parts) {
                if part.as_ref().is_some_and(|part| part.called.is_some()) {
                    called.push(PartId { op: request.op, index });
                }
            }
        }
        if !called.is_empty() {
            let reply = ServerReply::Callback { parts: called, shared: false };
            self.journal.after(Some((life, reply)));
        }
    }

    /// Others wait for what these hold: should they be dead, that must come out.
    fn watch(&mut self, blockers: &[(Order, u16)]) {
        for (order, _) in blockers {
            let Some(request) = self.table.get(*order).filter(|request| request.granted) else {
                continue;
            };
            if let Some(host) = self.hosts.get(&request.op.life) {
                self.watched.entry(request.op.life).or_insert(host.expiry);
            }
        }
    }

    /// Watched lives whose leases have ended although they hold something.
    fn dead_among_watched(&mut self) -> Vec<Life> {
        let now = self.now;
        let due: Vec<Life> =
            self.watched.iter().filter(|(_, at)| **at <= now).map(|(life, _)| *life).collect();
        let mut dead = Vec::new();
        for life in due {
            self.watched.remove(&life);
            let Some(host) = self.hosts.get(&life).filter(|host| host.registered) else { continue };
            let expiry = host.expiry;
            let holds = self.table.iter().any(|(_, r)| r.granted && r.op.life == life);
            if !holds || self.is_fenced(life) {
                continue;
            }
            if expiry > now {
                self.watched.insert(life, expiry);
            } else {
                dead.push(life);
            }
        }
        dead
    }

    /// Handles the passage of time: ended leases, and late messages that cannot arrive any more.
    fn expire(&mut self) {
        while let Some(&(until, op)) = self.ended_at.front() {
            if until > self.now {
                break;
            }
            self.ended_at.pop_front();
            self.ended.remove(&op);
        }
        let mut dead: BTreeSet<Life> =
            self.unregistered().filter(|&(_, at)| at <= self.now).map(|(life, _)| life).collect();
        while let Some(&(at, part)) = self.deadlines.first() {
            if at > self.now {
                break;
            }
            self.deadlines.pop_first();
            let held = self.granted(part.op).and_then(|order| self.table.get(order));
            let held = held.and_then(|r| r.parts.get(usize::from(part.index))?.as_ref());
            if held.is_some_and(|held| held.called == Some(at)) && !self.is_fenced(part.op.life) {
                dead.insert(part.op.life);
            }
        }
        dead.extend(self.dead_among_watched());
        for life in dead {
            self.suspects.entry(life).or_insert(self.now);
        }
        for (&life, again) in &mut self.suspects {
            if *again <= self.now {
                *again = self.now.saturating_add(self.config.lease);
                self.outputs.push_back(ServerOutput::Suspect(life));
            }
        }
    }
}

fn overlap(a: LockRange, b: LockRange) -> bool {
    a.extent.start < b.extent.start + u64::from(b.extent.count)
        && b.extent.start < a.extent.start + u64::from(a.extent.count)
}

fn refusal(from: Life, op: OpId, ranges: &[LockRange]) -> Option<String> {
    if op.life != from {
        return Some("an operation is locked by its own host".to_owned());
    }
    if ranges.is_empty() || ranges.len() > MAX_RANGES {
        return Some(format!("a lock set has 1 to {MAX_RANGES} ranges, not {}", ranges.len()));
    }
    let bad = |range: &LockRange| {
        range.extent.count == 0
            || range.extent.start.checked_add(u64::from(range.extent.count)).is_none()
    };
    ranges.iter().any(bad).then(|| "a range is empty or ends behind the last block".to_owned())
}
