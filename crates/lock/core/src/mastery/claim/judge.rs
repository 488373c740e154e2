//! The directory node's side: its table of docs/design/claim.md 4.2.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::ids::NodeId;
use crate::mastery::directory::Record;
use crate::message::{Body, ClaimReply, Verdict};
use crate::name::Name;
use crate::space::Lockspace;

impl Lockspace {
    pub(crate) fn receive_claims(&mut self, from: NodeId, entries: Vec<(Name, u64)>) {
        let lossy = self.config.claim_resend.is_some();
        let mut replies = Vec::with_capacity(entries.len());
        for (name, id) in entries {
            let on_record =
                || self.directory.get(&name).is_some_and(|r| r.master == from && r.id >= id);
            if mutated!(self, DuplicateClaimUnanswered) && on_record() {
                continue;
            }
            let verdict = self.judge(from, &name, id);
            replies.push(ClaimReply { id, verdict, name: lossy.then(|| Box::new(name)) });
        }
        self.send(from, Body::ClaimReplies(replies));
    }

    /// The directory's table of docs/design/claim.md 4.2. It says the same however often it is asked.
    pub(super) fn judge(&mut self, claimer: NodeId, name: &Name, id: u64) -> Verdict {
        let hash = name.hash64();
        if self.directory_node(hash) != self.me() {
            return Verdict::WrongDirectory;
        }
        if self.mastered_here(name, hash).is_some() && !mutated!(self, DirectoryIgnoresOwnResources)
        {
            return Verdict::Exists(self.me());
        }
        if mutated!(self, DirectoryOverwrites) {
            self.directory.put(*name, Record { master: claimer, id });
        }
        match self.directory.get_or_record(name, claimer, id) {
            master if master == claimer => Verdict::Ok,
            master => Verdict::Exists(master),
        }
    }
}
