//! Broadcast mastery, as in O2CB (docs/design/claim.md 1.2): ask every member; if nobody is the master,
//! the lowest of those who try becomes it and tells everybody.
//!
//! O2CB counts references so that a master knows who remembers it. Here a master without locks may
//! forget the resource: a node that remembered it is told "not the master" and asks again.
//!
//! A node that waits for a lower one to become the master would wait for ever if that one finds another master, since it then
//! tells nobody. So it says that it no longer tries, and those that waited for it ask again.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{LockId, NodeId};
use crate::lock::OpStage;
use crate::message::{Body, Mastering};
use crate::name::Name;
use crate::resource::{Finding, Master, ResourceKey};
use crate::space::Lockspace;

/// In the place of a round's number: the sender no longer tries to become the master.
const NO_LONGER: u64 = 0;

/// One attempt to find or become the master.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    number: u64,
    /// The nodes whose answer (or acknowledgement) is missing.
    missing: BTreeSet<NodeId>,
    /// The other nodes that try.
    rivals: BTreeSet<NodeId>,
    master: Option<NodeId>,
}

impl Lockspace {
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let me = self.me();
        self.view.members.iter().map(|m| m.node).filter(|&n| n != me).collect()
    }

    pub(crate) fn ask_everybody(&mut self, key: ResourceKey, id: LockId) {
        self.store[id].stage = OpStage::AwaitsMaster;
        self.begin_search(key, BTreeSet::new());
    }

    /// `rivals` wait for this node already.
    fn begin_search(&mut self, key: ResourceKey, rivals: BTreeSet<NodeId>) {
        let others = self.others();
        let number = self.directory.new_id();
        let missing = others.iter().copied().collect();
        self.rounds.insert(key, Round { number, missing, rivals, master: None });
        self.store[key].finding = Finding::Asking;
        let name = self.name_of(key);
        for node in others {
            self.send(node, Body::WhoMasters { name, round: number });
        }
        self.decide(key);
    }

    pub(crate) fn receive_who_masters(&mut self, from: NodeId, name: Name, round: u64) {
        let answer = match self.store.find(&name, name.hash64()) {
            None => Mastering::No,
            Some(key) => match (self.store[key].master, self.store[key].finding) {
                (Master::Here, _) | (_, Finding::Asserting) => Mastering::Yes,
                (_, Finding::Asking) => {
                    if let Some(mine) = self.rounds.get_mut(&key) {
                        mine.rivals.insert(from);
                    }
                    Mastering::Maybe
                }
                _ => Mastering::No,
            },
        };
        self.send(from, Body::Masters { name, round, answer });
    }

    pub(crate) fn receive_masters(
        &mut self,
        from: NodeId,
        name: Name,
        number: u64,
        answer: Mastering,
    ) {
        let Some(key) = self.store.find(&name, name.hash64()) else { return };
        if number == NO_LONGER {
            return self.rival_gives_up(key, from);
        }
        let Some(round) = self.rounds.get_mut(&key).filter(|r| r.number == number) else { return };
        round.missing.remove(&from);
        match answer {
            Mastering::Yes => round.master = Some(from),
            Mastering::Maybe => _ = round.rivals.insert(from),
            Mastering::No => {}
        }
        if self.store[key].finding == Finding::Asking {
            self.decide(key);
        }
    }

    /// When everybody has answered.
    fn decide(&mut self, key: ResourceKey) {
        let Some(round) = self.rounds.get_mut(&key).filter(|r| r.missing.is_empty()) else {
            return;
        };
        self.stats.round_trips += u64::from(self.view.members.len() > 1);
        if let Some(master) = round.master {
            let rivals = core::mem::take(&mut round.rivals);
            self.tell_rivals(key, &rivals);
            return self.mastered_at(key, master);
        }
        if round.rivals.first().is_some_and(|&lowest| lowest < self.config.node) {
            self.store[key].finding = Finding::Awaiting;
            return;
        }
        let number = round.number;
        let others = self.others();
        if let Some(round) = self.rounds.get_mut(&key) {
            round.missing = others.iter().copied().collect();
        }
        self.store[key].finding = Finding::Asserting;
        let name = self.name_of(key);
        for node in others {
            self.send(node, Body::Assert { name, round: number });
        }
        self.asserted(key);
    }

    /// Those above this node wait for it.
    fn tell_rivals(&mut self, key: ResourceKey, rivals: &BTreeSet<NodeId>) {
        let (name, me) = (self.name_of(key), self.config.node);
        for rival in rivals.iter().copied().filter(|rival| *rival > me) {
            let body = Body::Masters { name, round: NO_LONGER, answer: Mastering::No };
            self.send(rival, body);
        }
    }

    /// A node that tried to become the master has found one, which may have forgotten the resource since.
    fn rival_gives_up(&mut self, key: ResourceKey, from: NodeId) {
        let (me, finding) = (self.config.node, self.store[key].finding);
        let Some(round) = self.rounds.get_mut(&key) else { return };
        round.rivals.remove(&from);
        let waits = round.rivals.first().is_some_and(|lowest| *lowest < me);
        if finding == Finding::Awaiting && !waits {
            let rivals = core::mem::take(&mut round.rivals);
            self.begin_search(key, rivals);
        }
    }

    pub(crate) fn receive_assert(&mut self, from: NodeId, name: Name, round: u64) {
        if let Some(key) = self.store.find(&name, name.hash64()) {
            match self.store[key].finding {
                Finding::Asking | Finding::Awaiting => self.mastered_at(key, from),
                _ if !self.store[key].has_locks() => self.store[key].master = Master::At(from),
                _ => self.stats.dropped += 1,
            }
        }
        self.send(from, Body::AssertAck { name, round });
    }

    pub(crate) fn receive_assert_ack(&mut self, from: NodeId, name: Name, number: u64) {
        let Some(key) = self.store.find(&name, name.hash64()) else { return };
        let asserting = self.store[key].finding == Finding::Asserting;
        let Some(round) = self.rounds.get_mut(&key).filter(|r| asserting && r.number == number)
        else {
            return;
        };
        round.missing.remove(&from);
        self.asserted(key);
    }

    /// When everybody has heard that this node is the master.
    fn asserted(&mut self, key: ResourceKey) {
        if self.rounds.get(&key).is_some_and(|r| r.missing.is_empty()) {
            self.stats.round_trips += u64::from(self.view.members.len() > 1);
            self.rounds.remove(&key);
            self.store[key].finding = Finding::Nothing;
            self.become_master(key);
            self.place_awaiting_master(key);
            self.drop_if_unused(key);
            self.replay_awaiting_mastership(key);
        }
    }

    fn mastered_at(&mut self, key: ResourceKey, master: NodeId) {
        self.rounds.remove(&key);
        self.store[key].finding = Finding::Nothing;
        self.store[key].master = Master::At(master);
        self.place_awaiting_master(key);
        self.drop_if_unused(key);
        self.replay_awaiting_mastership(key);
    }
}
