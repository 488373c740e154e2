//! The one seam behind which a resource's master is found.
//!
//! The rest of the lock manager asks four things: the master of a name (`find_master`), the
//! acceptance of another node's lock (`accepts`), the fate of a resource without locks
//! (`drop_if_unused`), and the work of a recovery (`advertises`, and `crate::recovery`). Each
//! policy answers in its own file.

pub(crate) mod broadcast;
pub(crate) mod claim;
pub(crate) mod directory;
pub(crate) mod home;

use crate::config::Policy;
use crate::flags::LockFlags;
use crate::ids::{LockId, NodeId};
use crate::io::Trace;
use crate::name::Name;
use crate::remote::Accepts;
use crate::resource::{Finding, Master, ResourceKey};
use crate::space::Lockspace;

impl Lockspace {
    /// Finds the master for a lock's resource, whose master is unknown and not being looked for.
    pub(crate) fn find_master(&mut self, key: ResourceKey, id: LockId) {
        let notify = self.store[id].flags.contains(LockFlags::NOTIFY);
        match self.config.policy {
            Policy::Claim(mode) if notify && self.may_claim(key) => self.claim(key, id, mode),
            Policy::Directory | Policy::Claim(_) => self.look_up(key, id),
            Policy::Broadcast => self.ask_everybody(key, id),
            Policy::Home => self.go_home(key, id),
        }
    }

    pub(crate) fn become_master(&mut self, key: ResourceKey) {
        self.store[key].master = Master::Here;
        self.trace_of(key, |name| Trace::Master { name, gained: true });
    }

    /// Decides if this node accepts a new lock that `from` sent it as the master. With `current`,
    /// the lock was sent in the present view, so it is evidence of the present directory.
    pub(crate) fn accepts(&mut self, from: NodeId, name: &Name, current: bool) -> Accepts {
        let hash = name.hash64();
        if self.config.policy == Policy::Home {
            return self.accepts_at_home(name, hash);
        }
        let from_directory = current && self.has_directory() && self.directory_node(hash) == from;
        let Some(key) = self.store.find(name, hash) else {
            if !from_directory {
                return Accepts::No;
            }
            // The directory is the authority: it has this node on record, whose REMOVE crossed.
            let key = self.store.find_or_insert(name, hash);
            self.become_master(key);
            return Accepts::Yes(key);
        };
        let resource = &self.store[key];
        if let Some(ordinal) = resource.claim {
            return self.accepts_under_claim(key, ordinal, from_directory);
        }
        match (resource.master, resource.finding) {
            (Master::Here, Finding::Nothing) => Accepts::Yes(key),
            (Master::Unknown, Finding::Asserting) => Accepts::Later(key),
            // A request of the directory node itself says what its reply to our look-up will.
            (Master::Unknown, _) if from_directory => {
                self.store[key].finding = Finding::Nothing;
                self.become_master(key);
                self.place_waiting(key);
                Accepts::Yes(key)
            }
            _ => Accepts::No,
        }
    }

    /// The master has become known: the lock that asked for it and all others that wait for it go
    /// on, in the order of their calls.
    pub(crate) fn place_waiting(&mut self, key: ResourceKey) {
        use crate::lock::{Lock, OpStage};
        use crate::queue::Queue;
        let asked: alloc::vec::Vec<_> = self
            .store
            .queue(key, Queue::Unanswered)
            .filter(|l| l.stage == OpStage::LookUp)
            .map(|l| l.id)
            .collect();
        for id in asked {
            let lock = &mut self.store[id];
            lock.op_no = (lock.op_no + 1) & Lock::OP_MASK;
            lock.stage = OpStage::AwaitsMaster;
        }
        self.place_awaiting_master(key);
    }

    /// A resource without locks: dropped, or kept for a while where its mastership is worth it.
    pub(crate) fn drop_if_unused(&mut self, key: ResourceKey) {
        if !self.store.contains_resource(key) {
            return;
        }
        let resource = &mut self.store[key];
        if resource.has_locks() || resource.claim.is_some() || resource.finding != Finding::Nothing
        {
            return;
        }
        resource.lvb = None;
        resource.lvb_seq = 0;
        resource.lvb_invalid = false;
        resource.lvb_lost = false;
        if self.is_worth_keeping(key) {
            self.store[key].idle_since.get_or_insert(self.now);
            self.list_as_idle(key);
        } else {
            self.forget(key);
        }
    }

    /// Only once, however often the resource is locked meanwhile: a busy lock must not make the
    /// list grow.
    fn list_as_idle(&mut self, key: ResourceKey) {
        if self.store[key].idle_entry.is_none() {
            self.store[key].idle_entry = Some(self.now);
            self.idle.push_back((self.now, key));
        }
    }

    /// A master that is not the directory node keeps the directory's record alive for a while
    /// rather than send REMOVE at once; a slave keeps the master's name (kernel: 10 s).
    fn is_worth_keeping(&self, key: ResourceKey) -> bool {
        match (self.config.policy, self.store[key].master) {
            (Policy::Home, _) | (_, Master::Unknown) => false,
            (Policy::Broadcast, _) | (_, Master::At(_)) => true,
            (Policy::Directory | Policy::Claim(_), Master::Here) => !self.is_directory_of(key),
        }
    }

    pub(crate) fn forget(&mut self, key: ResourceKey) {
        if self.store[key].master == Master::Here {
            self.trace_of(key, |name| Trace::Master { name, gained: false });
        }
        self.store.remove_resource(key);
    }

    /// Drops resources that have been without locks for long enough. A resource that was locked
    /// since it came on the list waits for another turn. So do resources that are too many for one
    /// turn.
    pub(crate) fn toss_idle(&mut self) {
        for _ in 0..self.config.bulk.max(1) {
            let Some(&(listed, key)) = self.idle.front() else { return };
            if listed.saturating_add(self.config.toss_after) > self.now {
                return;
            }
            self.idle.pop_front();
            // The entry may be of an earlier resource in this slot.
            if !self.store.contains_resource(key) || self.store[key].idle_entry != Some(listed) {
                continue;
            }
            self.store[key].idle_entry = None;
            match self.store[key].idle_since {
                Some(since) if since.saturating_add(self.config.toss_after) <= self.now => {
                    self.toss(key)
                }
                Some(_) => self.list_as_idle(key),
                None => {}
            }
        }
    }

    fn toss(&mut self, key: ResourceKey) {
        let (name, master, hash) = {
            let r = &self.store[key];
            (r.name, r.master, r.hash)
        };
        self.forget(key);
        if master == Master::Here && self.has_directory() {
            self.send_remove(self.directory_node(hash), name);
        }
    }

    /// Returns true if recovery tells the directory nodes that this node masters the resource. A
    /// pending claim is left out: the directory might know another master, and the claim is made
    /// again.
    pub(crate) fn advertises(&self, key: ResourceKey) -> bool {
        let resource = &self.store[key];
        let settled = resource.claim.is_none() || mutated!(self, PendingAdvertised);
        let masters = resource.master == Master::Here && settled;
        // Broadcast keeps no directory, but needs one for the length of a recovery: those who
        // have lost their master ask there, and one may have found it in a recovery that another
        // view has cut short.
        masters && self.config.policy != Policy::Home
    }

    pub(crate) fn family(&self) -> u8 {
        self.config.policy.family()
    }
}
