//! The waits between locks, in nodes' reports about their resources: the relation behind "who holds
//! it up" and behind the search for deadlocks (docs/design/semantics.md 8.3).
//!
//! Everything here is a function of [`ResourceInfo`]s as masters see them, so that a person's
//! question and the search answer alike.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::flags::LockFlags;
use crate::ids::{ClientId, LockId, NodeId};
use crate::inspect::{LockInfo, ResourceInfo, Wait};
use crate::mode::Mode;
use crate::name::Name;
use crate::queue::Queue;

/// Waits that one search takes into account: more would take too much of a node's time and memory.
/// The search finds the rest when there are fewer.
const MOST_WAITS: usize = 1 << 18;

/// The party that holds and waits in a deadlock: one that does nothing else while it waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Party {
    /// A client of a node.
    Client(NodeId, ClientId),
    /// A transaction, of whatever clients and nodes.
    Transaction(u64),
}

/// A lock anywhere in the cluster: its owner's node and its id there.
pub type LockKey = (NodeId, LockId);

/// One lock waits for another one of the same resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// The resource.
    pub name: Name,
    /// Its master, which knows of the wait.
    pub master: NodeId,
    /// The lock that waits.
    pub waiter: LockKey,
    /// The lock that it waits for.
    pub blocker: LockKey,
}

/// Parties that wait for each other in a circle: each edge's blocker belongs to the party of the
/// next edge's waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// The waits.
    pub edges: Vec<Edge>,
    /// Which of them is to be ended: the one that began last.
    pub victim: usize,
}

impl LockInfo {
    /// Names it in the whole cluster.
    pub fn key(&self) -> LockKey {
        (self.node, self.lock)
    }

    /// The party of a lock. An orphan has none that waits.
    pub fn party(&self) -> Option<Party> {
        match (self.transaction, self.client) {
            (0, client) => client.map(|client| Party::Client(self.node, client)),
            (transaction, _) => Some(Party::Transaction(transaction)),
        }
    }

    /// In the master's queue, granted or not.
    pub fn waits_in_queue(&self) -> bool {
        matches!(self.queue, Queue::Converting | Queue::Waiting)
    }

    /// Returns true if this lock's granted mode is compatible with none of the modes that `waiter`
    /// would take.
    fn conflicts_with(&self, waiter: &LockInfo) -> bool {
        let Some((held, wanted)) = self.granted.zip(waiter.requested) else { return false };
        let alternative = [(LockFlags::ALTPR, Mode::PR), (LockFlags::ALTCW, Mode::CW)]
            .into_iter()
            .find(|(flag, _)| waiter.flags.contains(*flag));
        !held.compatible(wanted) && alternative.is_none_or(|(_, mode)| !held.compatible(mode))
    }
}

impl ResourceInfo {
    /// The locks that `waiter`, one of this resource's, waits for: those that hold a mode in its
    /// way, and those that are first in the queues before it (docs/design/semantics.md 4.1, rules 2
    /// and 7 to 9). Only what its master says shows all of them.
    pub fn blockers<'a>(&'a self, waiter: &'a LockInfo) -> impl Iterator<Item = &'a LockInfo> {
        let heads = self.heads();
        self.locks.iter().filter(move |other| heads.block(other, waiter))
    }

    fn heads(&self) -> Heads {
        let first = |queue| self.locks.iter().find(|l| l.queue == queue).map(LockInfo::key);
        Heads { converting: first(Queue::Converting), waiting: first(Queue::Waiting) }
    }
}

/// The first locks of a resource's queues.
#[derive(Clone, Copy)]
struct Heads {
    converting: Option<LockKey>,
    waiting: Option<LockKey>,
}

impl Heads {
    fn is_first(self, lock: &LockInfo) -> bool {
        [self.converting, self.waiting].contains(&Some(lock.key()))
    }

    /// Returns true if `waiter` waits for another lock of their resource.
    fn block(self, other: &LockInfo, waiter: &LockInfo) -> bool {
        let in_order = !waiter.flags.contains(LockFlags::NOORDER);
        let key = Some(other.key());
        let converts_first = in_order && self.converting == key;
        let waits_first = in_order && waiter.queue == Queue::Waiting && self.waiting == key;
        waiter.waits_in_queue()
            && other.key() != waiter.key()
            && (converts_first || waits_first || other.conflicts_with(waiter))
    }
}

/// Finds circles of waits in what masters say. Parties of one circle's victim are in no other one:
/// ending its wait may have opened that, too.
///
/// NODLCKWT locks do not wait, granted NODLCKBLK locks block nobody, and a client does not wait for itself:
/// its threads may share a session. A transaction does.
pub fn cycles(resources: &[ResourceInfo]) -> Vec<Cycle> {
    first_cycles(resources, usize::MAX)
}

/// As [`cycles`], at most so many.
pub(crate) fn first_cycles(resources: &[ResourceInfo], most: usize) -> Vec<Cycle> {
    let (mut found, mut victims) = (Vec::new(), BTreeSet::new());
    // First those of holders only: a request that is merely ahead of another in a queue progresses by their
    // end, and need not be ended for it.
    for queues in [false, true] {
        let mut graph = Graph::of(resources, queues);
        graph.waits.retain(|party, _| !victims.contains(party));
        graph.take_cycles(most, &mut found, &mut victims);
    }
    found
}

/// The waits of a party. One wait for each other party is enough to find circles.
struct Graph {
    waits: BTreeMap<Party, BTreeMap<Party, Waiting>>,
}

#[derive(Clone, Copy)]
struct Waiting {
    edge: Edge,
    since: u64,
}

impl Graph {
    /// With or without the waits for those that are only ahead in a queue.
    fn of(resources: &[ResourceInfo], queues: bool) -> Graph {
        let waits = |l: &&LockInfo| {
            l.waits_in_queue() && l.wait == Wait::Queue && !l.flags.contains(LockFlags::NODLCKWT)
        };
        let waiters = || resources.iter().flat_map(|r| r.locks.iter().filter(waits));
        // A party that waits for nothing is in no circle; mostly, that is nearly every one.
        let waiting: BTreeSet<Party> = waiters().filter_map(LockInfo::party).collect();
        let mut graph = Graph { waits: BTreeMap::new() };
        let mut count = 0;
        for r in resources {
            let heads = r.heads();
            let waits_itself = |l: &LockInfo| l.party().is_some_and(|p| waiting.contains(&p));
            // Of those that hold or are first, only those that wait elsewhere can be in a circle.
            let matters =
                |l: &&LockInfo| (l.granted.is_some() || heads.is_first(l)) && waits_itself(l);
            let blockers: Vec<&LockInfo> = r.locks.iter().filter(matters).collect();
            for waiter in r.locks.iter().filter(waits) {
                let Some(party) = waiter.party() else { continue };
                let blocks =
                    |b: &&&LockInfo| heads.block(b, waiter) && (queues || b.conflicts_with(waiter));
                for blocker in blockers.iter().filter(blocks) {
                    if count >= MOST_WAITS {
                        return graph;
                    }
                    count += usize::from(graph.add(r, party, waiter, blocker, &waiting));
                }
            }
        }
        graph
    }

    /// Adds a wait; whether it is a new one.
    fn add(
        &mut self,
        r: &ResourceInfo,
        party: Party,
        waiter: &LockInfo,
        blocker: &LockInfo,
        waiting: &BTreeSet<Party>,
    ) -> bool {
        let Some(other) = blocker.party().filter(|other| waiting.contains(other)) else {
            return false;
        };
        let alone = other == party && matches!(party, Party::Client(..));
        // Its holder is asked to give it up; nobody asks one that waits itself.
        let yields =
            blocker.queue == Queue::Granted && blocker.flags.contains(LockFlags::NODLCKBLK);
        if alone || yields {
            return false;
        }
        let Some(master) = r.master else { return false };
        let edge = Edge { name: r.name, master, waiter: waiter.key(), blocker: blocker.key() };
        let waits = self.waits.entry(party).or_default();
        let new = !waits.contains_key(&other);
        waits.entry(other).or_insert(Waiting { edge, since: waiter.since });
        new
    }

    /// Takes circles out, until there are none or `most` have been found: each one's victim waits for
    /// nobody any more.
    fn take_cycles(&mut self, most: usize, found: &mut Vec<Cycle>, victims: &mut BTreeSet<Party>) {
        let mut done: BTreeSet<Party> = BTreeSet::new();
        let starts: Vec<Party> = self.waits.keys().copied().collect();
        for start in starts {
            // Depth first, without recursion: a chain may be as long as there are parties.
            let mut path = Path::default();
            if !done.contains(&start) {
                path.enter(start, self);
            }
            while let Some((party, next)) = path.step() {
                if found.len() >= most {
                    return;
                }
                match next {
                    None => {
                        done.insert(party);
                    }
                    Some(other) if done.contains(&other) => {}
                    Some(other) => match path.from(other) {
                        None => path.enter(other, self),
                        Some(parties) => {
                            let (cycle, victim) = self.circle(&parties);
                            found.push(cycle);
                            victims.insert(victim);
                            done.insert(victim);
                            self.waits.remove(&victim);
                            path.cut(victim);
                        }
                    },
                }
            }
        }
    }

    fn circle(&self, parties: &[Party]) -> (Cycle, Party) {
        let after = parties.iter().skip(1).chain(parties.first());
        let waits: Vec<(Waiting, Party)> = parties
            .iter()
            .zip(after)
            .filter_map(|(p, next)| Some((*self.waits.get(p)?.get(next)?, *p)))
            .collect();
        let age = |(_, (w, _)): &(usize, &(Waiting, Party))| (w.since, w.edge.waiter);
        let victim = waits.iter().enumerate().max_by_key(age).map_or(0, |(i, _)| i);
        let party = waits.get(victim).map_or(parties[0], |(_, p)| *p);
        (Cycle { edges: waits.into_iter().map(|(w, _)| w.edge).collect(), victim }, party)
    }
}

/// A way along waits, from party to party.
#[derive(Default)]
struct Path {
    /// Each party with those that it waits for and that have not been looked at.
    steps: Vec<(Party, Vec<Party>)>,
    places: BTreeMap<Party, usize>,
}

impl Path {
    fn enter(&mut self, party: Party, graph: &Graph) {
        let to = graph.waits.get(&party);
        self.places.insert(party, self.steps.len());
        self.steps.push((party, to.map(|to| to.keys().copied().collect()).unwrap_or_default()));
    }

    /// The last party and the next one that it waits for; without one, it is left.
    fn step(&mut self) -> Option<(Party, Option<Party>)> {
        let (party, rest) = self.steps.last_mut()?;
        let step = (*party, rest.pop());
        if step.1.is_none() {
            self.cut(step.0);
        }
        Some(step)
    }

    /// The parties from this one on, if it is on the way.
    fn from(&self, party: Party) -> Option<Vec<Party>> {
        let place = *self.places.get(&party)?;
        Some(self.steps[place..].iter().map(|(party, _)| *party).collect())
    }

    /// Leaves this party, and those after it.
    fn cut(&mut self, party: Party) {
        let place = self.places.get(&party).copied().unwrap_or(self.steps.len());
        for (left, _) in self.steps.drain(place..) {
            self.places.remove(&left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    fn lock(client: u64, id: u64, queue: Queue, mode: Mode) -> LockInfo {
        let waits = queue != Queue::Granted;
        LockInfo {
            node: NodeId(1),
            client: Some(ClientId(client)),
            lock: LockId(id),
            queue,
            granted: (!waits).then_some(mode),
            requested: waits.then_some(mode),
            token: 0,
            since: id,
            wait: if waits { Wait::Queue } else { Wait::Nothing },
            op: 1,
            flags: LockFlags::empty(),
            transaction: 0,
        }
    }

    fn resource(name: &str, locks: Vec<LockInfo>) -> ResourceInfo {
        ResourceInfo {
            name: Name::new(name).unwrap(),
            master: Some(NodeId(1)),
            claim_pending: false,
            locks,
            lvb: None,
            lvb_invalid: false,
        }
    }

    const G: Queue = Queue::Granted;
    const W: Queue = Queue::Waiting;

    fn crossed() -> Vec<ResourceInfo> {
        vec![
            resource("a", vec![lock(1, 1, G, Mode::EX), lock(2, 4, W, Mode::PR)]),
            resource("b", vec![lock(2, 2, G, Mode::EX), lock(1, 3, W, Mode::EX)]),
        ]
    }

    #[test]
    fn two_that_hold_what_the_other_wants_are_found_and_the_younger_wait_ends() {
        let found = cycles(&crossed());
        assert_eq!(found.len(), 1);
        let victim = &found[0].edges[found[0].victim];
        assert_eq!((victim.waiter.1, victim.name.to_string()), (LockId(4), "a".into()));
    }

    #[test]
    fn a_chain_is_no_circle() {
        let mut chain = crossed();
        chain[0].locks.pop();
        assert_eq!(cycles(&chain), []);
    }

    #[test]
    fn flags_take_waiters_and_blockers_out() {
        let mut waits = crossed();
        waits[0].locks[1].flags = LockFlags::NODLCKWT;
        assert_eq!(cycles(&waits), []);
        let mut blocks = crossed();
        blocks[1].locks[0].flags = LockFlags::NODLCKBLK;
        assert_eq!(cycles(&blocks), []);
        blocks[1].locks[0].queue = Queue::Converting;
        assert_eq!(cycles(&blocks).len(), 1, "a place in the queue is not given up");
        let mut merging = crossed();
        merging[0].locks[1].wait = Wait::Merge;
        assert_eq!(cycles(&merging), []);
    }

    /// 2 reads behind 3's wait to write, which waits for 1 to stop reading, which waits for 2.
    #[test]
    fn a_place_in_the_queue_is_waited_for_as_well() {
        let queue = vec![lock(1, 1, G, Mode::PR), lock(3, 3, W, Mode::EX), lock(2, 4, W, Mode::PR)];
        let other = vec![lock(2, 2, G, Mode::EX), lock(1, 5, W, Mode::EX)];
        let mut both = vec![resource("a", queue), resource("b", other)];
        let found = cycles(&both);
        assert_eq!((found.len(), found[0].edges.len()), (1, 3));
        both[0].locks[2].flags = LockFlags::NOORDER;
        assert_eq!(cycles(&both), [], "PR goes with PR, if it need not wait for its turn");
    }

    /// 3 waits for what 1 holds, ahead of 2, and holds nothing: ending its wait would help nobody.
    #[test]
    fn who_is_only_ahead_in_a_queue_is_no_victim() {
        let mut both = crossed();
        both[0].locks.insert(1, lock(3, 9, W, Mode::EX));
        let found = cycles(&both);
        assert_eq!((found.len(), found[0].edges.len()), (1, 2));
    }

    #[test]
    fn a_mode_that_would_do_instead_is_no_wait() {
        let mut waits = crossed();
        waits[0].locks[0].granted = Some(Mode::PR);
        waits[0].locks[1].requested = Some(Mode::EX);
        assert_eq!(cycles(&waits).len(), 1);
        waits[0].locks[1].flags = LockFlags::ALTPR;
        assert_eq!(cycles(&waits), []);
    }

    #[test]
    fn a_transaction_waits_for_itself_and_a_client_does_not() {
        let locks = vec![lock(1, 1, G, Mode::EX), lock(1, 2, W, Mode::EX)];
        let mut alone = vec![resource("a", locks)];
        assert_eq!(cycles(&alone), []);
        alone[0].locks.iter_mut().for_each(|l| l.transaction = 7);
        assert_eq!(cycles(&alone).len(), 1);
    }

    /// As many circles as there are names, and one round of all: each is found, once.
    #[test]
    fn every_circle_of_many_is_found() {
        const PAIRS: u64 = 2_000;
        let pair = |i: u64| {
            let (a, b) = (2 * i, 2 * i + 1);
            let one = vec![lock(a, 10 * i, G, Mode::EX), lock(b, 10 * i + 1, W, Mode::EX)];
            let other = vec![lock(b, 10 * i + 2, G, Mode::EX), lock(a, 10 * i + 3, W, Mode::EX)];
            let name = i.to_string();
            [resource(&name, one), resource(&(name.clone() + "'"), other)]
        };
        let pairs: Vec<ResourceInfo> = (0..PAIRS).flat_map(pair).collect();
        assert_eq!(cycles(&pairs).len() as u64, PAIRS);
        assert_eq!(first_cycles(&pairs, 64).len(), 64);
        let round = |i: u64| {
            let waiter = lock((i + 1) % PAIRS, PAIRS + i, W, Mode::EX);
            resource(&i.to_string(), vec![lock(i, i, G, Mode::EX), waiter])
        };
        let found = cycles(&(0..PAIRS).map(round).collect::<Vec<_>>());
        assert_eq!((found.len(), found[0].edges.len() as u64), (1, PAIRS));
    }

    #[test]
    fn one_wait_in_two_circles_is_ended_once() {
        let mut all = crossed();
        all[0].locks[0].granted = Some(Mode::PR);
        all[0].locks[1].requested = Some(Mode::EX);
        // A third client reads `a`, too, and waits for the second as the first one does.
        all[0].locks.insert(1, lock(3, 0, G, Mode::PR));
        all[1].locks.push(lock(3, 2, W, Mode::EX));
        let found = cycles(&all);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
