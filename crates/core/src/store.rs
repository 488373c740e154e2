//! Where locks and resources live: slots that are reused, queues linked through the slots, and an
//! index by name. After warm-up nothing here allocates.

use core::ops::{Index, IndexMut};

use hashbrown::{HashMap, HashTable};
use serde::{Deserialize, Serialize};
use slab::Slab;

use crate::ids::LockId;
use crate::inspect::Queue;
use crate::lock::{Links, Lock, NIL, Owner};
use crate::mode::Mode;
use crate::name::Name;
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
    by_name: HashTable<ResourceKey>,
    /// Locks in each queue, indexed by [`Queue`].
    #[serde(skip_serializing)]
    counts: [usize; 4],
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

/// A slab as the list of its slots: what is read takes no more memory than what was written.
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

/// Queues that do not hold together: whoever wrote them was not a store of this version.
#[derive(Debug, thiserror::Error)]
#[error("the queue of a resource is broken")]
struct BrokenQueue;

impl TryFrom<Image> for Store {
    type Error = BrokenQueue;

    fn try_from(image: Image) -> Result<Store, BrokenQueue> {
        let Image { locks, resources, generation, transactions, disowned } = image;
        let (by_name, counts) = Default::default();
        let mut store =
            Store { locks, resources, generation, transactions, disowned, by_name, counts };
        let resources = &store.resources;
        for (key, resource) in resources {
            let (key, hash) = (key as ResourceKey, |&k: &ResourceKey| resources[k as usize].hash);
            store.by_name.insert_unique(resource.hash, key, hash);
            for queue in Queue::ALL {
                store.counts[queue as usize] += store.count_queue(key, queue)?;
            }
        }
        // Each lock is in one queue, so none is in two, and none in a circle.
        let linked: usize = store.counts.iter().sum();
        if linked == store.locks.len() { Ok(store) } else { Err(BrokenQueue) }
    }
}

/// Two stores are equal if nothing tells them apart but where new locks will be placed.
impl PartialEq for Store {
    fn eq(&self, other: &Store) -> bool {
        let Store { locks, resources, generation, transactions, disowned, by_name, counts } = self;
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

/// What a slab's slot holds: a value, or the number of the next free slot.
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
        size_of::<Slot<Resource>>() + ((size_of::<ResourceKey>() + 1) * 8).div_ceil(7);

    pub fn find(&self, name: &Name, hash: u64) -> Option<ResourceKey> {
        self.by_name.find(hash, |&k| self.resources[k as usize].name == *name).copied()
    }

    pub fn find_or_insert(&mut self, name: &Name, hash: u64) -> ResourceKey {
        if let Some(key) = self.find(name, hash) {
            return key;
        }
        let key = self.resources.insert(Resource::new(*name, hash)) as ResourceKey;
        let resources = &self.resources;
        self.by_name.insert_unique(hash, key, |&k| resources[k as usize].hash);
        key
    }

    pub fn remove_resource(&mut self, key: ResourceKey) {
        let gone = self.resources.remove(key as usize);
        debug_assert!(!gone.has_locks());
        if let Ok(entry) = self.by_name.find_entry(gone.hash, |&k| k == key) {
            entry.remove();
        }
    }

    pub fn resource_keys(&self) -> impl Iterator<Item = ResourceKey> + '_ {
        self.resources.iter().map(|(k, _)| k as ResourceKey)
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
        entry.insert(lock);
        self.link(id, queue, NIL);
        id
    }

    /// Takes a lock out of its queue and forgets it.
    pub fn remove(&mut self, id: LockId) -> Lock {
        self.unlink(id);
        if !self.transactions.is_empty() {
            self.transactions.remove(&id);
        }
        let lock = self.locks.remove(id.slot());
        self.disowned -= usize::from(lock.owner == Owner::Gone);
        lock
    }

    /// A lock belongs to nobody any more: it is to be unlocked, and nobody will be told of anything.
    pub fn disown(&mut self, id: LockId) {
        let lock = &mut self.locks[id.slot()];
        self.disowned += usize::from(lock.owner != Owner::Gone);
        lock.owner = Owner::Gone;
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
        let mut before = self.queue_head(id, Queue::Granted);
        while before != NIL && self.locks[before as usize].granted >= Some(mode) {
            before = self.locks[before as usize].links.next;
        }
        self.link(id, Queue::Granted, before);
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

    /// All locks of a resource, queue by queue.
    pub fn locks_of(&self, key: ResourceKey) -> impl Iterator<Item = &Lock> + '_ {
        Queue::ALL.into_iter().flat_map(move |q| self.queue(key, q))
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
    }

    fn unlink(&mut self, id: LockId) {
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
