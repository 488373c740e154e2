use std::collections::BTreeSet;

use super::*;
use crate::message::Past;
use crate::server::journal::Entry;
use crate::{Change, Extent, HostId, LockMode, LockRange, OpId, Scheme};

const MS: Time = 1_000_000;
const LEASE: Time = 4_000 * MS;
const VOTERS: u16 = 3;

/// Lock servers, the devices as one that agrees at once, and a host that hears all of them.
struct World {
    now: Time,
    replicas: Vec<Option<Replica>>,
    logs: Vec<Vec<Bytes>>,
    state: ArrayState,
    /// When the devices heard whoever serves last.
    heard: Time,
    /// Nothing is done with their messages, and they are told nothing.
    paused: BTreeSet<usize>,
    /// Devices agree to nothing.
    split: bool,
    /// No lock server knows of the other ones that they know keys in records.
    early_release: bool,
    /// Devices agree to one change, and then to nothing.
    once: bool,
    refused: Vec<String>,
    letters: VecDeque<(usize, ReplicaInput)>,
    said: Vec<(usize, ServerReply)>,
    /// Those who have taken the host for dead.
    suspects: Vec<usize>,
    /// Devices answer nobody.
    deaf: bool,
    /// Devices that have missed all changes of the state.
    stale: BTreeSet<DeviceId>,
    seq: u64,
}

fn life() -> Life {
    Life { host: HostId(1), incarnation: 1 }
}

fn range() -> LockRange {
    let extent = Extent { start: 0, count: 4 };
    LockRange { device: DeviceId(0), extent, mode: LockMode::Exclusive }
}

impl World {
    fn new(count: usize) -> World {
        let mut world = World {
            now: 0,
            replicas: (0..count).map(|_| None).collect(),
            logs: vec![Vec::new(); count],
            state: ArrayState::new(VOTERS),
            heard: 0,
            paused: BTreeSet::new(),
            split: false,
            early_release: false,
            once: false,
            refused: Vec::new(),
            letters: VecDeque::new(),
            said: Vec::new(),
            suspects: Vec::new(),
            deaf: false,
            stale: BTreeSet::new(),
            seq: 0,
        };
        (0..count).for_each(|id| world.start(id));
        world
    }

    fn start(&mut self, id: usize) {
        self.start_with(id, false);
    }

    fn start_with(&mut self, id: usize, anew: bool) {
        let scheme = Scheme::ServerLocking;
        let server = ServerConfig { scheme, lease: LEASE, message_life: LEASE };
        let random = 1 + id as u64 + self.now;
        let config = ReplicaConfig::new(ServerId(id as u16), VOTERS, server, random);
        let config = ReplicaConfig { anew, ..config };
        let replica = Replica::new(config, self.logs[id].clone(), self.now).unwrap();
        self.replicas[id] = Some(replica);
        self.link(id, true);
        self.input(id, ReplicaInput::Connected { life: life() });
    }

    fn kill(&mut self, id: usize) {
        self.replicas[id] = None;
        self.letters.retain(|(to, _)| *to != id);
        self.link(id, false);
    }

    fn link(&mut self, id: usize, up: bool) {
        let renews = !self.early_release;
        let input = |server: usize| {
            let server = ServerId(server as u16);
            match up {
                true => ReplicaInput::PeerUp { server, renews },
                false => ReplicaInput::PeerDown { server },
            }
        };
        for other in (0..self.replicas.len()).filter(|other| *other != id) {
            if self.replicas[other].is_some() {
                self.input(other, input(id));
                self.input(id, input(other));
            }
        }
    }

    fn input(&mut self, id: usize, input: ReplicaInput) {
        self.letters.push_back((id, input));
    }

    /// Delivers all that is under way.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let reaches = |(to, _): &(usize, ReplicaInput)| !self.paused.contains(to);
            let Some(at) = self.letters.iter().position(reaches) else { return };
            let Some((id, input)) = self.letters.remove(at) else { return };
            if let Some(replica) = &mut self.replicas[id] {
                replica.handle(self.now, input);
            }
            self.outputs(id);
        }
        panic!("it does not come to an end");
    }

    fn outputs(&mut self, id: usize) {
        while let Some(output) = self.replicas[id].as_mut().and_then(Replica::poll) {
            match output {
                ReplicaOutput::Send { reply, .. } => self.said.push((id, reply)),
                ReplicaOutput::Log(ask) => {
                    let (LogAsk::Append { token, .. } | LogAsk::Replace { token, .. }) = ask;
                    match ask {
                        LogAsk::Append { record, .. } => self.logs[id].push(record),
                        LogAsk::Replace { record, .. } => self.logs[id] = vec![record],
                    }
                    self.input(id, ReplicaInput::Logged { token });
                }
                ReplicaOutput::Attend { serving } => self.attended(id, serving),
                ReplicaOutput::Tell { to, message } => {
                    let from = ServerId(id as u16);
                    self.input(to.0.into(), ReplicaInput::Heard { from, message });
                }
                ReplicaOutput::Propose(change) if !self.split => {
                    match self.state.changed(Change::Locks(change)) {
                        Ok(Some(state)) => {
                            (self.state, self.heard) = (state, self.now);
                            self.split = self.once;
                        }
                        Ok(None) => {}
                        Err(why) => self.refused.push(why),
                    }
                }
                ReplicaOutput::Inform { to, state } => {
                    self.stale.retain(|device| *device != to || *state != self.state);
                }
                ReplicaOutput::Suspect(_) => self.suspects.push(id),
                ReplicaOutput::Propose(_)
                | ReplicaOutput::Serves { .. }
                | ReplicaOutput::Retired => {}
            }
        }
    }

    fn attended(&mut self, id: usize, serving: Option<u64>) {
        if serving == Some(self.state.locks.term) {
            self.heard = self.now;
        }
        let (state, silent) = (self.state.clone(), self.now - self.heard);
        if self.deaf {
            return;
        }
        for from in (0..VOTERS).map(DeviceId) {
            let state = match self.stale.contains(&from) {
                true => ArrayState::new(VOTERS),
                false => state.clone(),
            };
            self.input(id, ReplicaInput::Attended { from, state, silent });
        }
    }

    fn pass(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.now += LEASE / 16;
            for id in 0..self.replicas.len() {
                self.input(id, ReplicaInput::Tick);
            }
            self.settle();
        }
    }

    fn serving(&self) -> Vec<usize> {
        let serves = |id: &usize| self.replicas[*id].as_ref().is_some_and(|r| r.server().is_some());
        (0..self.replicas.len()).filter(serves).collect()
    }

    fn complete(&self) -> Vec<u16> {
        self.state.locks.complete.keys().map(|server| server.0).collect()
    }

    fn change_keys(&mut self) {
        for id in 0..self.replicas.len() {
            if self.paused.contains(&id) {
                continue;
            }
            if let Some(replica) = &mut self.replicas[id] {
                replica.change_keys(self.now);
            }
            self.outputs(id);
        }
        self.settle();
    }

    /// The keys in a lock server's log.
    fn keys(log: &[Bytes]) -> Vec<(ServerId, u64)> {
        let entries = log.iter().flat_map(|record| decode(record).unwrap());
        let key = |entry| match entry {
            Entry::Key { server, key } => Some((server, key)),
            _ => None,
        };
        entries.filter_map(key).collect()
    }

    /// Returns true if a lock server may serve by this log.
    fn counts(&self, id: usize, log: &[Bytes]) -> bool {
        let id = ServerId(id as u16);
        World::keys(log).iter().any(|(of, key)| *of == id && self.state.locks.may_serve(id, *key))
    }

    /// The host registers without a lock, and asks for one.
    fn lock(&mut self, id: usize) -> OpId {
        let incarnation = self.replicas[id].as_ref().unwrap().service().term;
        let held = Vec::new();
        let register = ServerRequest::Register { incarnation, held, newest: 0 };
        self.input(id, ReplicaInput::Request { from: life(), request: register });
        self.seq += 1;
        let op = OpId { life: life(), seq: self.seq };
        let (ranges, past, repair) = (vec![range()], Past::Nobody, false);
        let lock = ServerRequest::Lock { op, ranges, past, repair };
        self.input(id, ReplicaInput::Request { from: life(), request: lock });
        self.settle();
        op
    }

    fn has_granted(&self, id: usize, op: OpId) -> bool {
        let is_grant =
            |reply: &ServerReply| matches!(reply, ServerReply::Granted { op: of, .. } if *of == op);
        self.said.iter().any(|(by, reply)| *by == id && is_grant(reply))
    }

    fn holds(&self, id: usize, op: OpId) -> bool {
        let server = self.replicas[id].as_ref().and_then(Replica::server);
        server.is_some_and(|server| server.granted(op).is_some())
    }
}

#[test]
fn the_first_one_serves_a_new_array_and_the_others_join() {
    let mut w = World::new(3);
    w.pass(LEASE);
    assert_eq!((w.serving(), w.complete()), (vec![0], vec![0, 1, 2]));
    assert_eq!((w.state.locks.term, w.refused.len()), (1, 0));
    // Nothing more is agreed on.
    let epoch = w.state.epoch;
    w.pass(20 * LEASE);
    assert_eq!((w.state.epoch, w.serving()), (epoch, vec![0]));
    let waits = |id: usize| w.replicas[id].as_ref().unwrap().waits();
    assert_eq!(waits(0), None);
    assert!(waits(1).unwrap().contains("lock server 0 serves"), "{:?}", waits(1));
}

#[test]
fn the_only_one_serves_again_at_once_by_its_log() {
    let mut w = World::new(1);
    w.pass(LEASE);
    let op = w.lock(0);
    assert!(w.has_granted(0, op));
    w.kill(0);
    w.pass(LEASE / 2);
    w.start(0);
    w.pass(LEASE / 4);
    assert_eq!((w.serving(), w.state.locks.term), (vec![0], 2));
    assert!(w.holds(0, op));
}

#[test]
fn another_one_serves_with_every_lock_a_lease_after_the_first_has_gone() {
    let mut w = World::new(2);
    w.pass(LEASE);
    let op = w.lock(0);
    assert!(w.has_granted(0, op));
    w.kill(0);
    w.pass(LEASE - LEASE / 8);
    assert_eq!(w.serving(), [0; 0]);
    w.pass(LEASE / 2);
    assert_eq!((w.serving(), w.state.locks.term), (vec![1], 2));
    assert!(w.holds(1, op));
    assert_eq!(w.complete(), [1]);
    // The former one comes back, and joins again.
    w.start(0);
    w.pass(LEASE);
    assert_eq!((w.serving(), w.complete(), w.state.locks.term), (vec![1], vec![0, 1], 2));
    // And the other way round.
    w.kill(1);
    w.pass(2 * LEASE);
    assert_eq!((w.serving(), w.state.locks.term), (vec![0], 3));
    assert!(w.holds(0, op));
}

#[test]
fn one_that_stood_still_grants_nothing_when_another_one_serves() {
    let mut w = World::new(2);
    w.pass(LEASE);
    w.paused.insert(0);
    w.pass(2 * LEASE);
    assert_eq!((w.serving(), w.state.locks.term), (vec![0, 1], 2));
    let said = w.said.len();
    // It has not heard of that yet, and is asked first.
    w.paused.clear();
    w.letters.retain(|(to, input)| *to != 0 || matches!(input, ReplicaInput::PeerUp { .. }));
    let op = w.lock(0);
    assert!(!w.has_granted(0, op));
    w.pass(LEASE);
    assert_eq!(w.serving(), [1]);
    let by_former = w.said[said..].iter().filter(|(by, _)| *by == 0);
    let grants = by_former.filter(|(_, reply)| matches!(reply, ServerReply::Granted { .. }));
    assert_eq!(grants.count(), 0);
    // The messages to it are lost with the connection.
    w.link(0, false);
    w.link(0, true);
    w.pass(LEASE);
    assert_eq!(w.complete(), [0, 1]);
}

#[test]
fn nothing_is_granted_that_a_complete_log_lacks() {
    let mut w = World::new(2);
    w.pass(LEASE);
    w.paused.insert(1);
    w.split = true;
    let op = w.lock(0);
    w.pass(4 * LEASE);
    assert!(!w.has_granted(0, op), "the other one may serve without this lock");
    // The array agrees that it may not.
    w.split = false;
    w.pass(LEASE);
    assert!(w.has_granted(0, op));
    assert_eq!(w.complete(), [0]);
    // It has got everything by the time that it joins again.
    w.paused.clear();
    w.pass(LEASE);
    assert_eq!(w.complete(), [0, 1]);
    w.kill(0);
    w.pass(2 * LEASE);
    assert_eq!(w.serving(), [1]);
    assert!(w.holds(1, op));
}

/// A backup has copied the log of a lock server that ran. All end, and that one starts with the copy.
#[test]
fn a_log_that_was_put_back_to_an_older_copy_is_not_served_from() {
    for copied in [0, 1] {
        for renewed in [false, true] {
            let mut w = World::new(2);
            w.pass(LEASE);
            let copy = w.logs[copied].clone();
            let op = w.lock(0);
            assert!(w.has_granted(0, op));
            if renewed {
                w.change_keys();
                w.pass(LEASE);
                assert_eq!((w.serving(), w.complete()), (vec![0], vec![0, 1]));
            }
            (0..2).for_each(|id| w.kill(id));
            w.logs[copied] = copy;
            w.start(copied);
            w.pass(4 * LEASE);
            // A copy of this minute is taken for current.
            assert_eq!(w.serving().is_empty(), renewed, "{copied}");
            if renewed {
                w.start(1 - copied);
                w.pass(4 * LEASE);
                assert_eq!((w.serving(), w.complete()), (vec![1 - copied], vec![0, 1]));
                assert!(w.holds(1 - copied, op));
            }
        }
    }
}

#[test]
fn a_log_keeps_its_key_at_an_earlier_release() {
    let mut w = World::new(2);
    w.early_release = true;
    w.link(1, false);
    w.link(1, true);
    w.pass(LEASE);
    let op = w.lock(0);
    let before = w.state.locks.complete.clone();
    w.change_keys();
    w.pass(LEASE);
    let after = &w.state.locks.complete;
    assert_eq!(before.iter().filter(|(id, key)| after[id] != **key).count(), 1);
    assert_eq!(before[&ServerId(1)], after[&ServerId(1)]);
    w.kill(0);
    w.pass(4 * LEASE);
    assert!(w.holds(1, op));
}

/// The devices agree to no new key, to one, or to both, before all end. Or the log was replaced meanwhile by a snapshot.
#[test]
fn a_log_counts_by_its_former_key_until_the_next_one_is_agreed_on() {
    for agreed in 0..=2 {
        for first in [0, 1] {
            let mut w = World::new(2);
            w.pass(LEASE);
            let op = w.lock(0);
            let before = w.state.locks.complete.clone();
            w.split = true;
            w.change_keys();
            w.pass(LEASE);
            if agreed > 0 {
                // One change in each round.
                w.split = false;
                w.once = agreed == 1;
                w.pass(LEASE / 2);
            }
            let after = &w.state.locks.complete;
            let others = before.iter().filter(|(id, key)| after[id] != **key).count();
            assert_eq!(others, agreed);
            (w.split, w.once) = (false, false);
            (0..2).for_each(|id| w.kill(id));
            w.start(first);
            w.pass(4 * LEASE);
            assert_eq!(w.serving(), [first]);
            assert!(w.holds(first, op));
        }
    }
}

#[test]
fn keys_are_renewed_only_if_the_log_has_changed_and_copies_keep_few() {
    let mut w = World::new(2);
    w.pass(LEASE);
    let op = w.lock(0);
    for _ in 0..3 {
        w.input(0, ReplicaInput::Request { from: life(), request: ServerRequest::Renew });
        w.change_keys();
        w.pass(LEASE / 2);
    }
    let epoch = w.state.epoch;
    w.change_keys();
    w.pass(LEASE);
    assert_eq!(w.state.epoch, epoch);
    // A new connection brings the whole log, and only the key that is listed.
    w.link(1, false);
    w.link(1, true);
    w.pass(LEASE);
    assert_eq!((w.logs[1].len(), World::keys(&w.logs[1]).len()), (1, 1));
    w.kill(0);
    w.pass(4 * LEASE);
    assert_eq!(w.serving(), [1]);
    assert!(w.holds(1, op));
}

#[test]
fn one_that_has_asked_to_serve_takes_no_lock_of_the_former() {
    let mut w = World::new(2);
    w.pass(LEASE);
    // Nobody hears the first one, and the devices agree to nothing: the other one asks in vain.
    w.paused.insert(0);
    w.split = true;
    w.pass(3 * LEASE);
    w.paused.clear();
    let op = w.lock(0);
    w.pass(LEASE);
    assert!(!w.has_granted(0, op));
    // One of both is agreed on; then there is one, and it has the lock or never granted it.
    w.split = false;
    w.pass(4 * LEASE);
    let serving = w.serving();
    assert_eq!(serving.len(), 1);
    assert!(!w.has_granted(0, op) || w.holds(serving[0], op));
    assert_eq!(w.complete(), [0, 1]);
}

#[test]
fn a_log_without_every_lock_serves_only_by_an_operators_word() {
    let mut w = World::new(1);
    w.pass(LEASE);
    let op = w.lock(0);
    w.kill(0);
    let log = std::mem::take(&mut w.logs[0]);
    w.start(0);
    w.pass(4 * LEASE);
    assert_eq!(w.serving(), [0; 0]);
    let waits = w.replicas[0].as_ref().unwrap().waits().unwrap();
    assert!(waits.contains("not the one with the array's locks"), "{waits}");
    w.kill(0);
    w.logs[0].clear();
    w.start_with(0, true);
    w.pass(4 * LEASE);
    assert_eq!((w.serving(), w.state.locks.term), (vec![0], 2));
    assert!(!w.holds(0, op));
    // The old log is found again. Others have locks by now.
    w.kill(0);
    w.logs[0] = log;
    w.start(0);
    w.pass(4 * LEASE);
    assert_eq!(w.serving(), [0; 0]);
}

/// Its hosts may have gone over to another one.
#[test]
fn who_hears_no_device_takes_no_host_for_dead() {
    let mut w = World::new(1);
    w.pass(LEASE);
    let op = w.lock(0);
    assert!(w.has_granted(0, op));
    w.deaf = true;
    // Another operation of it waits for what it holds.
    let waiting = w.lock(0);
    assert!(!w.has_granted(0, waiting));
    w.pass(4 * LEASE);
    assert_eq!(w.suspects, [0; 0]);
    w.deaf = false;
    w.pass(2 * LEASE);
    assert!(w.suspects.contains(&0));
}

/// The simulator has found that two of three devices may know an old state for ever.
#[test]
fn a_device_that_has_missed_a_change_is_told() {
    let mut w = World::new(2);
    w.pass(LEASE);
    w.stale = [DeviceId(1), DeviceId(2)].into();
    w.pass(LEASE);
    assert!(w.stale.is_empty());
    w.stale = [DeviceId(1), DeviceId(2)].into();
    w.kill(0);
    w.pass(2 * LEASE);
    assert_eq!(w.serving(), [1]);
}

#[test]
fn of_several_the_lower_one_serves_next() {
    let mut w = World::new(3);
    w.pass(LEASE);
    w.kill(0);
    w.pass(2 * LEASE);
    assert_eq!((w.serving(), w.state.locks.term), (vec![1], 2));
    assert_eq!(w.complete(), [1, 2]);
    w.kill(1);
    w.pass(2 * LEASE);
    assert_eq!(w.serving(), [2]);
}

/// Each may die at any moment and come back with its log, or with a copy that is known to be older. Whoever serves holds what was
/// granted and not returned.
#[test]
fn no_granted_lock_is_ever_missing() {
    use rand::{RngExt as _, SeedableRng as _};
    let mut put_back = 0;
    for seed in 0..300 {
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut w = World::new(2 + (seed % 2) as usize);
        let mut granted: Option<OpId> = None;
        let mut copies: Vec<Vec<Bytes>> = w.logs.clone();
        for _ in 0..60 {
            let id = random.random_range(0..w.replicas.len());
            match random.random_range(0..11) {
                0 if w.replicas[id].is_some() => w.kill(id),
                0 | 1 if w.replicas[id].is_none() => {
                    let others = (0..w.replicas.len()).filter(|other| *other != id);
                    let whole = others.filter(|other| w.counts(*other, &w.logs[*other]));
                    if whole.count() > 0 && !w.counts(id, &copies[id]) && random.random() {
                        w.logs[id] = copies[id].clone();
                        put_back += 1;
                    }
                    w.start(id);
                }
                6 | 7 => w.change_keys(),
                8 => copies[id] = w.logs[id].clone(),
                2 if !w.paused.remove(&id) => drop(w.paused.insert(id)),
                3 => w.split = !w.split,
                4 | 5 if granted.is_none() && w.replicas[id].is_some() => {
                    let op = w.lock(id);
                    granted = (0..w.replicas.len()).any(|by| w.has_granted(by, op)).then_some(op);
                }
                _ => {}
            }
            w.pass(random.random_range(0..LEASE));
            // Some grants come late.
            let last = OpId { life: life(), seq: w.seq };
            if (0..w.replicas.len()).any(|by| w.has_granted(by, last)) {
                granted = Some(last);
            }
            let term = w.state.locks.term;
            let serving = w
                .serving()
                .into_iter()
                .filter(|id| w.replicas[*id].as_ref().is_some_and(|r| r.service().term == term));
            let serving: Vec<usize> = serving.collect();
            assert!(serving.len() <= 1, "seed {seed}");
            if let (Some(op), [id]) = (granted, &serving[..]) {
                assert!(w.holds(*id, op), "seed {seed}: lock server {id} lacks {op:?}");
            }
        }
        w.paused.clear();
        w.split = false;
        (0..w.replicas.len())
            .filter(|id| w.replicas[*id].is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|id| w.start(id));
        w.pass(8 * LEASE);
        let waits = w.replicas.iter().flatten().map(Replica::waits).collect::<Vec<_>>();
        let all = (1, w.replicas.len());
        assert_eq!(
            (w.serving().len(), w.complete().len()),
            all,
            "seed {seed}: {:?}, {waits:?}, {:?}",
            w.state.locks,
            w.refused
        );
    }
    assert!(put_back > 100, "{put_back}");
}
