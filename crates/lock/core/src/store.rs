//! Where locks and resources live: slots that are reused, queues linked through the slots, and an
//! index by name. After warm-up nothing here allocates.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use hashbrown::{HashMap, HashTable};
use serde::{Deserialize, Serialize};
use slab::Slab;

use crate::crowd::{Counted, Crowd, CrowdKey, MANY, Notices, Tally};
use crate::ids::{ClientId, LockId, NodeId};
use crate::lock::{Lock, Owner};
use crate::mode::Mode;
use crate::name::Name;
use crate::owned::Owned;
use crate::queue::{Links, NIL, Queue};
use crate::resource::{Resource, ResourceKey};

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Image")]
pub(crate) struct Store {
    #[serde(with = "slots")]
    locks: Slab<Lock>,
    #[serde(with = "slots")]
    resources: Slab<Resource>,
    /// Makes lock ids unique over the life of the lockspace.
    generation: u32,
    /// The transactions of locks that belong to one of their own: few do, so that these eight bytes
    /// are not every lock's.
    transactions: HashMap<LockId, u64>,
    /// Locks that belong to nobody any more ([`Owner::Gone`]).
    disowned: usize,
    #[serde(skip_serializing)]
    by_name: HashTable<Indexed>,
    /// Locks in each queue, indexed by [`Queue`].
    #[serde(skip_serializing)]
    counts: [usize; 4],
    /// Of resources with many locks.
    #[serde(skip_serializing)]
    crowds: Slab<Crowd>,
    #[serde(skip_serializing)]
    owned: Owned,
    /// Locks of this node's clients, and the orphans that they have left.
    #[serde(skip_serializing)]
    local: usize,
    /// Locks that walks along queues have come by.
    #[serde(skip_serializing)]
    visits: u64,
}

/// A store as it is written: what can be found again from the rest is left out.
#[derive(Deserialize)]
struct Image {
    #[serde(with = "slots")]
    locks: Slab<Lock>,
    #[serde(with = "slots")]
    resources: Slab<Resource>,
    generation: u32,
    transactions: HashMap<LockId, u64>,
    disowned: usize,
}

/// A slab as the list of its slots: reading takes no more memory than was written.
mod slots {
    use alloc::vec::Vec;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use slab::Slab;

    pub fn serialize<T, S>(slab: &Slab<T>, serializer: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize,
        S: Serializer,
    {
        let end = slab.iter().next_back().map_or(0, |(last, _)| last + 1);
        serializer.collect_seq((0..end).map(|slot| slab.get(slot)))
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Slab<T>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let slots = Vec::<Option<T>>::deserialize(deserializer)?.into_iter().enumerate();
        Ok(slots.filter_map(|(slot, value)| Some((slot, value?))).collect())
    }
}

/// Inconsistent queues: a store of another version wrote them.
#[derive(Debug, thiserror::Error)]
#[error("the queue of a resource is broken")]
struct BrokenQueue;

impl TryFrom<Image> for Store {
    type Error = BrokenQueue;

    fn try_from(image: Image) -> Result<Store, BrokenQueue> {
        let Image { locks, resources, generation, transactions, disowned } = image;
        let mut store =
            Store { locks, resources, generation, transactions, disowned, ..Store::default() };
        for (key, resource) in &store.resources {
            let key = key as ResourceKey;
            Indexed::new(key, resource.hash).enter(&mut store.by_name);
            for queue in Queue::ALL {
                store.counts[queue as usize] += store.count_queue(key, queue)?;
            }
        }
        // Each lock is in one queue, so none is in two, and none in a circle.
        let linked: usize = store.counts.iter().sum();
        if linked != store.locks.len() {
            return Err(BrokenQueue);
        }
        store.find_again();
        Ok(store)
    }
}

/// Two stores are equal if nothing tells them apart but where new locks will be placed.
impl PartialEq for Store {
    fn eq(&self, other: &Store) -> bool {
        let Store { locks, resources, generation, transactions, disowned, by_name, counts, .. } =
            self;
        let indexed =
            |(key, r): (usize, &Resource)| other.find(&r.name, r.hash) == Some(key as ResourceKey);
        locks.iter().eq(&other.locks)
            && resources.iter().eq(&other.resources)
            && *generation == other.generation
            && *transactions == other.transactions
            && *disowned == other.disowned
            && by_name.len() == other.by_name.len()
            && resources.iter().all(indexed)
            && *counts == other.counts
    }
}

impl Index<LockId> for Store {
    type Output = Lock;
    fn index(&self, id: LockId) -> &Lock {
        &self.locks[id.slot()]
    }
}
impl IndexMut<LockId> for Store {
    fn index_mut(&mut self, id: LockId) -> &mut Lock {
        &mut self.locks[id.slot()]
    }
}
impl Index<ResourceKey> for Store {
    type Output = Resource;
    fn index(&self, key: ResourceKey) -> &Resource {
        &self.resources[key as usize]
    }
}
impl IndexMut<ResourceKey> for Store {
    fn index_mut(&mut self, key: ResourceKey) -> &mut Resource {
        &mut self.resources[key as usize]
    }
}

/// An entry of the index by name. It has its hash along: when the index grows, in one turn of the node, it then need
/// not fetch a million resources, each from another place in memory.
#[derive(Clone, Copy)]
struct Indexed {
    key: ResourceKey,
    hash: u32,
}

impl Indexed {
    fn new(key: ResourceKey, hash: u64) -> Indexed {
        Indexed { key, hash: (hash >> 32) as u32 }
    }

    /// Where the table looks for it: its first and its last bits count there.
    fn place(self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }

    fn enter(self, index: &mut HashTable<Indexed>) {
        index.insert_unique(self.place(), self, |entry| entry.place());
    }
}

/// The content of a slab's slot: a value, or the number of the next free slot.
#[allow(dead_code)] // Only its size counts.
enum Slot<T> {
    Free(usize),
    Used(T),
}

impl Store {
    /// `life` tells this life of the node from others: ids given in one must not recur in the next,
    /// whose holders may not have heard yet that theirs are void.
    pub fn new(life: u64) -> Store {
        Store { generation: (life ^ (life >> 32)) as u32, ..Store::default() }
    }

    pub const BYTES_PER_LOCK: usize = size_of::<Slot<Lock>>();

    /// With an index entry: a key and its control byte, at the table's load of seven eighths.
    pub const BYTES_PER_RESOURCE: usize =
        size_of::<Slot<Resource>>() + ((size_of::<Indexed>() + 1) * 8).div_ceil(7);

    pub fn find(&self, name: &Name, hash: u64) -> Option<ResourceKey> {
        let sought = Indexed::new(NIL, hash);
        let is_it = |entry: &Indexed| self.resources[entry.key as usize].name == *name;
        self.by_name.find(sought.place(), is_it).map(|entry| entry.key)
    }

    pub fn find_or_insert(&mut self, name: &Name, hash: u64) -> ResourceKey {
        if let Some(key) = self.find(name, hash) {
            return key;
        }
        let key = self.resources.insert(Resource::new(*name, hash)) as ResourceKey;
        Indexed::new(key, hash).enter(&mut self.by_name);
        key
    }

    pub fn remove_resource(&mut self, key: ResourceKey) {
        let gone = self.resources.remove(key as usize);
        debug_assert!(!gone.has_locks());
        let place = Indexed::new(key, gone.hash).place();
        if let Ok(entry) = self.by_name.find_entry(place, |entry| entry.key == key) {
            entry.remove();
        }
    }

    pub fn resource_keys(&self) -> impl Iterator<Item = ResourceKey> + '_ {
        self.resources.iter().map(|(k, _)| k as ResourceKey)
    }

    /// No resource has this slot, or a later one.
    pub fn resource_slots(&self) -> ResourceKey {
        self.resources.capacity() as ResourceKey
    }

    pub fn contains_resource(&self, key: ResourceKey) -> bool {
        self.resources.contains(key as usize)
    }

    pub fn lock_ids(&self) -> impl Iterator<Item = LockId> + '_ {
        self.locks.iter().map(|(_, l)| l.id)
    }

    pub fn lock_count(&self) -> usize {
        self.locks.len()
    }

    /// Locks in a queue, of all resources.
    pub fn count_in(&self, queue: Queue) -> usize {
        self.counts[queue as usize]
    }

    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// The lock with this id, if it still exists.
    pub fn get(&self, id: LockId) -> Option<&Lock> {
        self.locks.get(id.slot()).filter(|l| l.id == id)
    }

    /// Makes a lock, at the tail of `queue`.
    pub fn insert(&mut self, mut lock: Lock, queue: Queue) -> LockId {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.locks.vacant_entry();
        let id = LockId::new(entry.key(), self.generation);
        lock.id = id;
        let (owner, local) = (lock.owner, lock.is_local());
        entry.insert(lock);
        self.link(id, queue, NIL);
        self.own(id, owner);
        self.local += usize::from(local);
        id
    }

    /// Takes a lock out of its queue and forgets it.
    pub fn remove(&mut self, id: LockId) -> Lock {
        self.unlink(id);
        self.disown_quietly(id);
        if !self.transactions.is_empty() {
            self.transactions.remove(&id);
        }
        let lock = self.locks.remove(id.slot());
        self.local -= usize::from(lock.is_local());
        self.disowned -= usize::from(lock.owner == Owner::Gone);
        lock
    }

    /// A lock belongs to nobody any more: it is to be unlocked, and nobody will be told of anything.
    pub fn disown(&mut self, id: LockId) {
        self.disowned += usize::from(self[id].owner != Owner::Gone);
        self.set_owner(id, Owner::Gone);
    }

    /// A lock of this node becomes that of somebody else of this node.
    pub fn set_owner(&mut self, id: LockId, owner: Owner) {
        self.disown_quietly(id);
        self[id].owner = owner;
        self.own(id, owner);
    }

    /// The locks of a client, in the order of their slots.
    pub fn locks_of_client(&self, client: ClientId) -> Vec<LockId> {
        let mut slot = self.owned.first(client);
        let mut found = Vec::new();
        while let Some(lock) = self.locks.get(slot as usize) {
            found.push(lock.id);
            slot = lock.marks.mine.next;
        }
        found.sort_unstable_by_key(|id| id.slot());
        found
    }

    /// The client is gone, and all its locks have other owners.
    pub fn forget_client(&mut self, client: ClientId) {
        self.owned.forget(client);
    }

    /// Locks of this node's clients, and the orphans that they have left.
    pub fn local_count(&self) -> usize {
        self.local
    }

    /// Enters a lock among its client's, if it has one.
    fn own(&mut self, id: LockId, owner: Owner) {
        let Owner::Local(client) = owner else { return };
        let slot = id.slot() as u32;
        let next = core::mem::replace(self.owned.head(client), slot);
        if next != NIL {
            self.locks[next as usize].marks.mine.prev = slot;
        }
        self[id].marks.mine = Links { prev: NIL, next };
    }

    /// Takes a lock out of its client's.
    fn disown_quietly(&mut self, id: LockId) {
        let Owner::Local(client) = self[id].owner else { return };
        let Links { prev, next } = core::mem::replace(&mut self[id].marks.mine, Links::LOOSE);
        match prev {
            NIL => *self.owned.head(client) = next,
            p => self.locks[p as usize].marks.mine.next = next,
        }
        if next != NIL {
            self.locks[next as usize].marks.mine.prev = prev;
        }
    }

    /// How many such locks there are.
    pub fn disowned(&self) -> usize {
        self.disowned
    }

    /// The transaction that a lock belongs to; 0: its client is one.
    pub fn transaction(&self, id: LockId) -> u64 {
        self.transactions.get(&id).copied().unwrap_or(0)
    }

    pub fn set_transaction(&mut self, id: LockId, transaction: u64) {
        if transaction != 0 {
            self.transactions.insert(id, transaction);
        }
    }

    /// Moves a lock to the tail (or head) of a queue of its resource.
    pub fn enqueue(&mut self, id: LockId, queue: Queue, at_head: bool) {
        self.unlink(id);
        let before = if at_head { self.queue_head(id, queue) } else { NIL };
        self.link(id, queue, before);
    }

    /// Moves a lock to its place in the granted queue, which is kept strongest first.
    pub fn enqueue_granted(&mut self, id: LockId, mode: Mode) {
        self.unlink(id);
        let last = match self.crowd(self[id].resource) {
            Some(crowd) => crowd.last_from(mode),
            None => self.last_granted_from(id, mode),
        };
        let before = match last {
            NIL => self.queue_head(id, Queue::Granted),
            last => self.locks[last as usize].links.next,
        };
        self.link(id, Queue::Granted, before);
    }

    /// The last lock of the granted queue that is as strong as `mode`, or stronger.
    fn last_granted_from(&self, id: LockId, mode: Mode) -> u32 {
        let granted = self.queue(self[id].resource, Queue::Granted);
        let stronger = granted.take_while(|lock| lock.granted >= Some(mode));
        stronger.last().map_or(NIL, |lock| lock.id.slot() as u32)
    }

    fn crowd(&self, key: ResourceKey) -> Option<&Crowd> {
        self.crowds.get(self[key].crowd.0 as usize)
    }

    fn crowd_mut(&mut self, key: ResourceKey) -> Option<&mut Crowd> {
        let CrowdKey(place) = self[key].crowd;
        self.crowds.get_mut(place as usize)
    }

    /// A resource's queues, counted.
    pub fn tally(&self, key: ResourceKey) -> Tally {
        self.crowd(key).map_or_else(|| self.count(key), |crowd| crowd.tally.clone())
    }

    fn count(&self, key: ResourceKey) -> Tally {
        let mut tally = Tally::default();
        if self[key].queued > 0 {
            self.queued(key).for_each(|lock| tally.add(Counted::of(lock)));
        }
        tally
    }

    /// Returns true if the counts of a resource's queues are right; for tests.
    pub fn is_counted(&self, key: ResourceKey) -> bool {
        let queued = self.queued(key).count() == self[key].queued as usize;
        let counted = self.crowd(key).is_none_or(|crowd| crowd.tally == self.count(key));
        let in_order =
            self.queue(key, Queue::Granted).is_sorted_by_key(|l| core::cmp::Reverse(l.granted));
        queued && counted && in_order
    }

    /// Returns true if another lock than `id` keeps `wanted` from being granted to it.
    pub fn conflict(&self, id: LockId, wanted: Mode) -> bool {
        let lock = &self[id];
        let in_force = matches!(lock.queue, Queue::Granted | Queue::Converting);
        let alone = self[lock.resource].queued <= u32::from(in_force);
        let own = lock.granted.filter(|_| in_force);
        if alone {
            return false;
        }
        match self.crowd(lock.resource) {
            Some(crowd) => crowd.tally.conflict(wanted, own),
            None => self.count(lock.resource).conflict(wanted, own),
        }
    }

    /// Counts a lock again in its place, after its counted properties have changed. The place of a
    /// granted one depends on its mode: it is moved ([`Store::enqueue_granted`]).
    pub fn recount(&mut self, id: LockId) {
        if matches!(self[id].queue, Queue::Converting | Queue::Waiting) {
            self.uncount(id);
            self.count_in_crowd(id);
        }
    }

    /// The granted mode of a lock has been changed, wherever it is.
    pub fn mode_changed(&mut self, id: LockId) {
        match (self[id].queue, self[id].granted) {
            (Queue::Granted, Some(mode)) => self.enqueue_granted(id, mode),
            _ => self.recount(id),
        }
    }

    /// Returns true if such notices have been made, and nothing has changed since.
    pub fn has_made(&self, key: ResourceKey, notices: Notices) -> bool {
        self.crowd(key).is_some_and(|crowd| crowd.has_made(notices))
    }

    pub fn note_made(&mut self, key: ResourceKey, notices: Notices) {
        if let Some(crowd) = self.crowd_mut(key) {
            crowd.note_made(notices);
        }
    }

    /// Notices that have been made may be worth repeating.
    pub fn forget_made(&mut self, key: ResourceKey) {
        if let Some(crowd) = self.crowd_mut(key) {
            crowd.forget_made();
        }
    }

    /// A walk along a queue has come by a lock.
    pub fn visit(&mut self) {
        self.visits += 1;
    }

    /// How many locks such walks have come by.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    pub fn first(&self, key: ResourceKey, queue: Queue) -> Option<LockId> {
        self.at(self[key].queues[queue as usize].head)
    }

    pub fn next(&self, id: LockId) -> Option<LockId> {
        self.at(self[id].links.next)
    }

    /// The locks of a queue, in order.
    pub fn queue(&self, key: ResourceKey, queue: Queue) -> impl Iterator<Item = &Lock> + '_ {
        let mut slot = self[key].queues[queue as usize].head;
        core::iter::from_fn(move || {
            let lock = self.locks.get(slot as usize)?;
            slot = lock.links.next;
            Some(lock)
        })
    }

    /// The locks of a resource that are in its queues, not those without an answer from their master.
    fn queued(&self, key: ResourceKey) -> impl Iterator<Item = &Lock> + '_ {
        let queues = [Queue::Granted, Queue::Converting, Queue::Waiting];
        queues.into_iter().flat_map(move |queue| self.queue(key, queue))
    }

    /// Rebuilds the data that is not written: the counts of locks, and their owners.
    fn find_again(&mut self) {
        let ids: Vec<LockId> = self.lock_ids().collect();
        for id in ids {
            let Lock { resource, queue, owner, .. } = self[id];
            self.local += usize::from(self[id].is_local());
            self.own(id, owner);
            self[resource].queued += u32::from(queue != Queue::Unanswered);
        }
        let keys: Vec<ResourceKey> = self.resource_keys().collect();
        for key in keys {
            if self[key].queued >= MANY {
                self.gather(key);
            }
        }
    }

    /// From now on, many locks are in this resource's queues.
    fn gather(&mut self, key: ResourceKey) {
        self[key].crowd = CrowdKey(self.crowds.insert(Crowd::new()) as u32);
        for queue in [Queue::Granted, Queue::Converting, Queue::Waiting] {
            let mut slot = self[key].queues[queue as usize].head;
            while let Some(lock) = self.locks.get(slot as usize) {
                let (id, next) = (lock.id, lock.links.next);
                self.count_in_crowd(id);
                slot = next;
            }
        }
    }

    /// Counts a lock that is in its queue, if its resource's are counted.
    fn count_in_crowd(&mut self, id: LockId) {
        let lock = &self.locks[id.slot()];
        let (counted, granted) = (Counted::of(lock), lock.queue == Queue::Granted);
        let Some(crowd) = self.crowd_mut(lock.resource) else { return };
        crowd.tally.add(counted);
        if let Counted::Granted(mode) = counted
            && granted
        {
            crowd.last[mode as usize] = id.slot() as u32;
            crowd.forget_made();
        }
        self[id].marks.counted = counted;
    }

    /// The opposite, while it still is in its queue.
    fn uncount(&mut self, id: LockId) {
        let lock = &self.locks[id.slot()];
        let (slot, prev, counted) = (id.slot() as u32, lock.links.prev, lock.marks.counted);
        let before = self.locks.get(prev as usize).map(|lock| lock.marks.counted);
        let Some(crowd) = self.crowd_mut(lock.resource) else { return };
        crowd.tally.remove(counted);
        if let Counted::Granted(mode) = counted
            && crowd.last[mode as usize] == slot
        {
            crowd.last[mode as usize] = if before == Some(counted) { prev } else { NIL };
        }
        self[id].marks.counted = Counted::Nothing;
    }

    /// All locks of a resource, queue by queue.
    pub fn locks_of(&self, key: ResourceKey) -> impl Iterator<Item = &Lock> + '_ {
        Queue::ALL.into_iter().flat_map(move |q| self.queue(key, q))
    }

    /// The locks of a node's clients, by their ids there.
    pub fn locks_from(&mut self, key: ResourceKey, from: NodeId) -> HashMap<LockId, LockId> {
        let mut visits = 0;
        let locks = self.locks_of(key).inspect(|_| visits += 1);
        let theirs = locks.filter_map(|lock| match lock.owner {
            Owner::Remote { node, lkid, .. } if node == from => Some((lkid, lock.id)),
            _ => None,
        });
        let found = theirs.collect();
        self.visits += visits;
        found
    }

    /// How many locks are in a queue, whose links must lead from its head to its tail.
    fn count_queue(&self, key: ResourceKey, queue: Queue) -> Result<usize, BrokenQueue> {
        let list = self[key].queues[queue as usize];
        let (mut prev, mut slot, mut count) = (NIL, list.head, 0);
        while slot != NIL {
            let lock = self.locks.get(slot as usize).ok_or(BrokenQueue)?;
            let place = (lock.links.prev, lock.queue, lock.resource, lock.id.slot());
            count += 1;
            if place != (prev, queue, key, slot as usize) || count > self.locks.len() {
                return Err(BrokenQueue);
            }
            (prev, slot) = (slot, lock.links.next);
        }
        if list.tail == prev { Ok(count) } else { Err(BrokenQueue) }
    }

    fn at(&self, slot: u32) -> Option<LockId> {
        self.locks.get(slot as usize).map(|l| l.id)
    }

    fn queue_head(&self, id: LockId, queue: Queue) -> u32 {
        self[self[id].resource].queues[queue as usize].head
    }

    fn link(&mut self, id: LockId, queue: Queue, before: u32) {
        let slot = id.slot() as u32;
        let key = self[id].resource as usize;
        let list = &mut self.resources[key].queues[queue as usize];
        let prev = match before {
            NIL => list.tail,
            b => self.locks[b as usize].links.prev,
        };
        match prev {
            NIL => list.head = slot,
            p => self.locks[p as usize].links.next = slot,
        }
        match before {
            NIL => list.tail = slot,
            b => self.locks[b as usize].links.prev = slot,
        }
        let lock = &mut self.locks[slot as usize];
        lock.links = Links { prev, next: before };
        lock.queue = queue;
        self.counts[queue as usize] += 1;
        if queue != Queue::Unanswered {
            self.enter(id);
        }
    }

    /// A lock has come into one of the queues.
    fn enter(&mut self, id: LockId) {
        let key = self[id].resource;
        self[key].queued += 1;
        match self.crowd(key) {
            Some(_) => self.count_in_crowd(id),
            None if self[key].queued >= MANY => self.gather(key),
            None => {}
        }
    }

    /// A lock is about to leave its queue.
    fn exit(&mut self, id: LockId) {
        let key = self[id].resource;
        self.uncount(id);
        self[key].queued -= 1;
        let CrowdKey(place) = self[key].crowd;
        if self[key].queued <= 1 && place != NIL {
            self.crowds.remove(place as usize);
            self[key].crowd = CrowdKey::default();
        }
    }

    fn unlink(&mut self, id: LockId) {
        if self[id].queue != Queue::Unanswered {
            self.exit(id);
        }
        let Lock { links, queue, resource, .. } = self[id];
        let list = &mut self.resources[resource as usize].queues[queue as usize];
        match links.prev {
            NIL => list.head = links.next,
            p => self.locks[p as usize].links.next = links.next,
        }
        match links.next {
            NIL => list.tail = links.prev,
            n => self.locks[n as usize].links.prev = links.prev,
        }
        self.locks[id.slot()].links = Links::LOOSE;
        self.counts[queue as usize] -= 1;
    }
}
