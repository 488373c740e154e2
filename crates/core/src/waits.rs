//! Who waits for whom, in what nodes say of their resources: the relation behind "who holds it up"
//! and behind the search for deadlocks (semantics section 8).
//!
//! Everything here is a function of [`ResourceInfo`]s as masters see them, so that a person's
//! question and the search answer alike.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::flags::LockFlags;
use crate::ids::{ClientId, LockId, NodeId};
use crate::inspect::{LockInfo, Queue, ResourceInfo, Wait};
use crate::mode::Mode;
use crate::name::Name;

/// Waits that one search takes into account: more would take too much of a node's time and memory.
/// What is left out is found when there are fewer.
const MOST_WAITS: usize = 1 << 18;

/// Who holds and waits, as far as deadlocks are concerned: one that does nothing else while it
/// waits.
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
    /// Its master, who knows of the wait.
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

    /// Whose it is; nobody waits on behalf of an orphan.
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

    /// Whether this lock's granted mode is compatible with none of the modes that `waiter` would
    /// take.
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
    /// way, and those that are first in the queues before it (semantics section 4, rules 2 and 7
    /// to 9). Only what its master says shows all of them.
    pub fn blockers<'a>(&'a self, waiter: &'a LockInfo) -> impl Iterator<Item = &'a LockInfo> {
        let first = |queue| self.locks.iter().find(|l| l.queue == queue).map(LockInfo::key);
        let in_order = !waiter.flags.contains(LockFlags::NOORDER);
        let converting = first(Queue::Converting).filter(|_| in_order);
        let waiting = first(Queue::Waiting).filter(|_| in_order && waiter.queue == Queue::Waiting);
        let ahead = [converting, waiting];
        let waits = waiter.waits_in_queue();
        self.locks.iter().filter(move |other| {
            let key = other.key();
            waits
                && key != waiter.key()
                && (ahead.contains(&Some(key)) || other.conflicts_with(waiter))
        })
    }
}

/// Finds circles of waits in what masters say. Parties of one circle's victim are in no other one:
/// ending its wait may have opened that, too.
///
/// NODLCKWT locks do not wait, granted NODLCKBLK locks block nobody, and a client does not wait for itself:
/// its threads may share a session. A transaction does.
pub fn cycles(resources: &[ResourceInfo]) -> Vec<Cycle> {
    let (mut found, mut victims) = (Vec::new(), Vec::new());
    // First those of holders only: whoever is but in a queue ahead of somebody gets on by their end,
    // and need not be ended for it.
    for queues in [false, true] {
        let mut graph = Graph::of(resources, queues);
        graph.waits.retain(|party, _| !victims.contains(party));
        while let Some((cycle, victim)) = graph.cycle() {
            graph.waits.remove(&victim);
            victims.push(victim);
            found.push(cycle);
        }
    }
    found
}

/// What a party waits for: one wait for each other party is enough to find circles.
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
        // Whoever waits for nothing is in no circle; mostly, that is nearly everybody.
        let waiting: BTreeSet<Party> = waiters().filter_map(LockInfo::party).collect();
        let mut graph = Graph { waits: BTreeMap::new() };
        let mut count = 0;
        for r in resources {
            for waiter in r.locks.iter().filter(waits) {
                let Some(party) = waiter.party() else { continue };
                for blocker in r.blockers(waiter).filter(|b| queues || b.conflicts_with(waiter)) {
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

    /// A circle, and the party whose wait in it is to be ended.
    fn cycle(&self) -> Option<(Cycle, Party)> {
        let mut done: BTreeSet<Party> = BTreeSet::new();
        for &start in self.waits.keys() {
            // Depth first, without recursion: a chain may be as long as there are parties.
            let mut path: Vec<(Party, Vec<Party>)> = Vec::new();
            let mut on_path: BTreeSet<Party> = BTreeSet::new();
            let mut next = Some(start).filter(|p| !done.contains(p));
            while let Some(party) = next.take() {
                on_path.insert(party);
                let to = self.waits.get(&party);
                path.push((party, to.map(|t| t.keys().copied().collect()).unwrap_or_default()));
                while let Some((party, rest)) = path.last_mut() {
                    match rest.pop() {
                        Some(other) if on_path.contains(&other) => {
                            let parties: Vec<Party> = path.iter().map(|(p, _)| *p).collect();
                            let from = parties.iter().position(|p| *p == other).unwrap_or(0);
                            return Some(self.circle(&parties[from..]));
                        }
                        Some(other) if done.contains(&other) => {}
                        Some(other) => {
                            next = Some(other);
                            break;
                        }
                        None => {
                            let party = *party;
                            done.insert(party);
                            on_path.remove(&party);
                            path.pop();
                        }
                    }
                }
            }
        }
        None
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
