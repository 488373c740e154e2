//! Sending claims: gathered per directory node, sent when enough or old enough, at once when somebody
//! waits for the answers; sent again where the transport can lose them.
//!
//! All batches go together: sending wakes others, and they, or the processors that they share, are
//! awake already for the second message of a volley.

use alloc::vec::Vec;

use crate::ids::NodeId;
use crate::io::Trace;
use crate::message::Body;
use crate::resource::ResourceKey;
use crate::space::Lockspace;
use crate::timers::Timer;

impl Lockspace {
    /// Puts a claim that is made again, under a new id, into the batch for its directory node.
    pub(super) fn submit_claim(&mut self, ordinal: u64) {
        let id = self.directory.new_id();
        let Some(claim) = self.claims.open.get_mut(ordinal) else { return };
        claim.tries = 0;
        self.claims.open.set_id(ordinal, id);
        self.gather(ordinal);
    }

    fn gather(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get(ordinal) else { return };
        self.gather_claim(claim.resource, claim.id);
    }

    pub(super) fn gather_claim(&mut self, key: ResourceKey, id: u64) {
        let resource = &self.store[key];
        let (entry, node) = ((resource.name, id), self.directory_node(resource.hash));
        if self.claims.batches.is_empty() {
            self.claims.batches_due = self.now.saturating_add(self.config.batch_age);
        }
        let full = self.config.batch_entries;
        let batch = self.claims.batches.entry(node).or_insert_with(|| Vec::with_capacity(full));
        batch.push(entry);
        if batch.len() >= self.config.batch_entries {
            self.flush_batches();
        }
    }

    pub(crate) fn flush_batches(&mut self) {
        while let Some(&node) = self.claims.batches.keys().next() {
            self.flush_batch_to(node);
        }
    }

    pub(crate) fn flush_due_batches(&mut self) {
        if self.claims.next_batch_deadline().is_some_and(|due| due <= self.now) {
            self.flush_batches();
        }
    }

    pub(crate) fn flush_batch_to(&mut self, node: NodeId) {
        let Some(mut entries) = self.claims.batches.remove(&node) else { return };
        if mutated!(self, FailedSendConfirms) && entries.len() > 1 {
            let unsent = entries.pop().and_then(|(_, id)| self.claims.open.by_id(id));
            let ordinal = unsent.map(|(ordinal, _)| ordinal);
            ordinal.into_iter().for_each(|ordinal| self.confirm(ordinal));
        }
        if let Some(interval) = self.config.claim_resend.filter(|_| !mutated!(self, NeverResent)) {
            for (_, id) in &entries {
                let Some((ordinal, claim)) = self.claims.open.by_id(*id) else { continue };
                let tries = claim.tries;
                let wait =
                    interval.saturating_mul(1 << tries.min(5)).min(interval.saturating_mul(20));
                self.set_timer(wait, Timer::Resend(ordinal));
            }
        }
        self.stats.claim_batches += 1;
        self.send(node, Body::Claims(entries));
    }

    /// No answer in time on a transport that can lose messages: the same claim once more.
    pub(crate) fn resend_claim(&mut self, ordinal: u64) {
        // In a recovery there is no directory to ask; the claim is made again when there is one.
        if !self.running {
            return;
        }
        let Some(claim) = self.claims.pending(ordinal) else { return };
        claim.tries = claim.tries.saturating_add(1);
        let key = claim.resource;
        self.stats.resends += 1;
        self.trace_of(key, |name| Trace::Resend { name, claim: ordinal });
        self.gather(ordinal);
        self.flush_batch_to(self.directory_node(self.store[key].hash));
    }
}
