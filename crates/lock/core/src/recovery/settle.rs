//! The work of the new masters on the locks that have moved to them (step 7), and the grants when
//! the gate is open again (step 10).

use alloc::vec::Vec;

use crate::ids::LockId;
use crate::lock::{Lock, OpStage};
use crate::mode::Mode;
use crate::queue::Queue;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;

impl Lockspace {
    pub(super) fn settle_moved(&mut self, key: ResourceKey) {
        let here = self.store[key].master == Master::Here;
        let moved = core::mem::take(&mut self.store[key].moved);
        let lvb_lost = core::mem::take(&mut self.store[key].lvb_lost);
        if here && moved {
            self.resolve_unknown(key);
            self.recover_lvb(key);
            self.store[key].regrant = true;
            for id in self.ids_in(key, Queue::Converting) {
                self.store[id].disordered = true;
                self.store.recount(id);
            }
            // This master must repeat a notice that an earlier master has sent.
            for id in self.ids_in(key, Queue::Granted) {
                self.store[id].high_bast = None;
            }
            self.store.forget_made(key);
        } else if here && lvb_lost {
            self.store[key].lvb_invalid = true;
        }
    }

    /// When the gate is open: handles requests for a queued lock from that time, and grants locks
    /// after the recovery's changes.
    pub(super) fn grant_again(&mut self, key: ResourceKey) {
        for queue in [Queue::Converting, Queue::Waiting] {
            let asked = |l: &&Lock| l.stage == OpStage::Queued && l.overlap.is_some();
            for id in self.store.queue(key, queue).filter(asked).map(|l| l.id).collect::<Vec<_>>() {
                if self.store.get(id).is_some() {
                    self.continue_overlap(id);
                }
            }
            if !self.store.contains_resource(key) {
                return;
            }
        }
        if core::mem::take(&mut self.store[key].regrant) {
            if self.store[key].master == Master::Here {
                self.run_recovered(key);
            }
            self.drop_if_unused(key);
        }
    }

    /// A PR-CW conversion whose outcome nobody knows: the mode that other holders have shows it.
    /// (docs/design/semantics.md 9.7: converting ones count, too, as they hold theirs as well.)
    fn resolve_unknown(&mut self, key: ResourceKey) {
        let middle =
            |l: &&Lock| !l.granted_unknown && matches!(l.granted, Some(Mode::PR | Mode::CW));
        let granted = self.store.queue(key, Queue::Granted);
        let converting = self.store.queue(key, Queue::Converting);
        let held = granted.chain(converting).find(middle).and_then(|l| l.granted);
        for id in self.ids_in(key, Queue::Converting) {
            let lock = &mut self.store[id];
            if core::mem::take(&mut lock.granted_unknown) {
                lock.granted = held.or(lock.requested);
                self.store.recount(id);
            }
        }
    }

    /// The best copy that a lock has. One above CR has excluded all writers since it was granted,
    /// so its copy is the block if it read (or wrote) it then; any other copy may be old.
    fn recover_lvb(&mut self, key: ResourceKey) {
        let candidates = || {
            self.store
                .queue(key, Queue::Granted)
                .chain(self.store.queue(key, Queue::Converting))
                .filter(|l| l.lvb.is_some())
        };
        let current = candidates().find(|l| l.lvb_current && l.granted > Some(Mode::CR));
        let best = current.or_else(|| candidates().max_by_key(|l| l.lvb_seq));
        let Some((value, seq)) = best.map(|l| (l.lvb.clone(), l.lvb_seq)) else { return };
        let invalid = current.is_none();
        let resource = &mut self.store[key];
        resource.lvb = value;
        resource.lvb_seq = seq;
        resource.lvb_invalid |= invalid;
    }

    pub(super) fn ids_in(&self, key: ResourceKey, queue: Queue) -> Vec<LockId> {
        self.store.queue(key, queue).map(|l| l.id).collect()
    }
}
