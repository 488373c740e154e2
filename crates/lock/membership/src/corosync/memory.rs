//! A node's state on its disk: numbers that only grow, and the views in which it was.
//!
//! **Memory.** Every view but some that corosync's own rules allow (see below) has more than half of all votes, and
//! every member has its number on disk before it accepts. So nodes with more than half of all votes, whose disks are
//! whole, know of every view that there was. Without that no first view is proposed and no life begins: a node whose
//! disk is lost must not help the others to forget. While a view holds somewhere, its members know.
//!
//! **Minorities.** Corosync may let fewer nodes continue (`two_node`, `last_man_standing`, a quorum device). A view
//! of fewer than half of all votes must follow a loose view: all members of that one have on disk that this may
//! happen (`loose`). After a loose view, no node continues from the disks alone without all of its members.
//!
//! **Begin.** Nodes of which none remembers anything begin a cluster only when all of the list are here.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::log::{ERA_SHIFT, FIRST_ERA, ImageError, LAST_VIEW, open, seal};
use crate::writes::Writes;

/// How every image begins.
pub(crate) const MAGIC: &[u8; 8] = b"LOCKCOR\x01";

/// Views have larger numbers: above the seconds since 1970 up to the year 2029, by which earlier releases
/// numbered views.
pub(super) const FLOOR: u64 = FIRST_ERA << ERA_SHIFT;

/// Lives that a lost disk may have begun, and that nobody else has heard of.
const LEAP: u64 = 1 << 16;

/// A view, as far as it must be remembered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) seq: u64,
    pub(super) members: Vec<NodeId>,
    /// It may have a successor with fewer than half of all votes.
    pub(super) loose: bool,
}

impl Record {
    pub(super) fn of(view: &NodeView, loose: bool) -> Record {
        Record { seq: view.seq, members: view.members.iter().map(|m| m.node).collect(), loose }
    }
}

/// The memory of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    /// The largest number of a view that it accepted.
    pub(super) number: u64,
    /// The largest life of each node that it has heard of.
    pub(super) lives: BTreeMap<NodeId, u64>,
    /// The last view that it was in, or the beginning of an era.
    pub(super) installed: Option<Record>,
    /// The last view that it accepted, if that is a later one.
    pub(super) accepted: Option<Record>,
}

impl Memory {
    /// Returns true if it is of any use to others.
    pub(super) fn remembers(&self) -> bool {
        self.installed.is_some() || self.accepted.is_some()
    }

    pub(super) fn life(&self, node: NodeId) -> u64 {
        self.lives.get(&node).copied().unwrap_or(0)
    }

    /// Learns of lives; whether any was new.
    fn learn(&mut self, lives: &BTreeMap<NodeId, u64>) -> bool {
        let mut new = false;
        for (node, life) in lives {
            let known = self.lives.entry(*node).or_default();
            new |= *known < *life;
            *known = (*known).max(*life);
        }
        new
    }

    /// Returns true if its numbers are plausible.
    pub(super) fn is_sane(&self) -> bool {
        let records = self.installed.iter().chain(&self.accepted);
        let highest = records.map(|r| r.seq).max().unwrap_or(0).max(self.number);
        highest < LAST_VIEW && self.lives.values().all(|l| *l < MOST_LIVES)
    }
}

/// All that is on the disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Image {
    pub(super) cluster: String,
    pub(super) node: NodeId,
    pub(super) memory: Memory,
}

impl Image {
    pub(super) fn encode(&self) -> Vec<u8> {
        seal(MAGIC, self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Image, ImageError> {
        if bytes.starts_with(crate::log::MAGIC) {
            return Err(ImageError::Kind { found: "static", expected: "corosync" });
        }
        open(MAGIC, bytes)
    }
}

/// The highest number of a view that an image has.
pub(crate) fn highest_view(image: &[u8]) -> Result<u64, ImageError> {
    Image::decode(image).map(|i| i.memory.number)
}

/// The writes of the memory, and what waits for the disk. Numbers are those of changes.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskWrites {
    /// Each write keeps what it says.
    pub(super) schedule: Writes<Memory>,
    /// A life to be begun when the disk has it.
    pub(super) life: Option<(u64, u64)>,
    /// An acceptance to be said then.
    pub(super) held: Option<Held>,
    /// An operator's request to be answered then.
    answer: Option<(u64, u64, String)>,
}

/// An acceptance of a view.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) of: u64,
    pub(super) stamps: Vec<(NodeId, Time)>,
    since: Time,
    change: u64,
    /// It was said, at least as one that the disk does not have.
    pub(super) said: bool,
}

impl CorosyncMembership {
    /// The memory has changed, and goes to the disk.
    pub(super) fn remember(&mut self) -> u64 {
        self.disk_writes.schedule.change()
    }

    /// Begins a write, if there is anything to write.
    pub(super) fn write(&mut self, now: Time) {
        if !self.disk_writes.schedule.is_due(now) {
            return;
        }
        let memory = self.kept.memory.clone();
        let number = self.disk_writes.schedule.begin(memory.clone());
        let (cluster, node) = (self.config.cluster.clone(), self.config.node);
        let image = Image { cluster, node, memory }.encode();
        self.actions.push_back(Action::Persist { number, image });
    }

    /// A write has ended.
    pub(super) fn persisted(&mut self, now: Time, number: u64, success: bool) {
        let again = now + (self.config.lease / 4).max(1);
        let Some(memory) = self.disk_writes.schedule.end(number, success, again) else { return };
        if !success {
            return self.accept_without_disk(now);
        }
        let began = !self.kept.written.remembers() && memory.remembers();
        self.kept.written = memory;
        self.begin_life(now);
        self.say_accepted();
        let DiskWrites { schedule, answer, .. } = &mut self.disk_writes;
        if let Some((id, _, text)) = answer.take_if(|(_, change, _)| schedule.has(*change)) {
            self.actions.push_back(Action::Answer { id, result: Ok(text) });
            self.report_soon(now);
        }
        if began {
            self.report_soon(now);
        }
    }

    /// The part of this node's memory that others may know: it is on the disk, and is not taken
    /// back.
    pub(super) fn told_memory(&self) -> Memory {
        let Kept { memory, written, .. } = &self.kept;
        let mut told = if memory.number < written.number { memory } else { written }.clone();
        told.lives.clone_from(&memory.lives);
        let own = (self.config.node, written.life(self.config.node));
        told.lives.extend(Some(own).filter(|(_, life)| *life > 0));
        if own.1 == 0 {
            told.lives.remove(&own.0);
        }
        told
    }

    // Lives.

    /// Takes a life, if this process has none and knows which.
    pub(super) fn seek_life(&mut self, now: Time) {
        if self.kept.life.is_some() || self.disk_writes.life.is_some() {
            return;
        }
        if !self.kept.asked {
            if !self.have_all_reported(now) || !self.is_cluster_known() {
                return;
            }
            self.kept.asked = true;
        }
        self.take_life();
    }

    /// Returns true if every node in the group has reported its memory. Nodes that are silent for long are not
    /// awaited.
    fn have_all_reported(&mut self, now: Time) -> bool {
        let grace = 2 * self.config.lease;
        let silent = |s: &&Seat| s.report.is_none() && now < s.since + grace;
        let silent = self.seats.values().any(|s| silent(&s));
        if silent {
            self.patience = self.patience.max(now + self.config.lease / 16);
        }
        !silent
    }

    /// Returns true if enough is known of the cluster's past: a view holds, or enough nodes
    /// remember.
    fn is_cluster_known(&mut self) -> bool {
        let holds = self.reports().any(|(_, r)| r.installed > 0);
        if !holds {
            self.lack = self.gap();
        }
        self.lack.is_none()
    }

    /// Begins a life above every one that is known of this node, when the disk has it.
    fn take_life(&mut self) {
        let me = self.config.node;
        let known = self.kept.memory.life(me);
        // Others remember a life that this disk does not: it may have begun more than they know of.
        let leap = if known > self.own_life || self.forgot { LEAP } else { 0 };
        let life = known + 1 + leap;
        #[cfg(feature = "mutations")]
        let life = self.mutated_life(life);
        (self.own_life, self.forgot) = (life, false);
        self.kept.memory.lives.insert(me, life);
        self.disk_writes.life = Some((life, self.remember()));
    }

    fn begin_life(&mut self, now: Time) {
        let DiskWrites { schedule, life, .. } = &mut self.disk_writes;
        let Some((life, _)) = life.take_if(|(_, change)| schedule.has(*change)) else { return };
        self.kept.life = Some(life);
        if self.kept.born == 0 {
            self.kept.born = life;
        }
        self.kept.reach.clear();
        self.kept.leases.reborn();
        self.actions.push_back(Action::Reconnect);
        self.report_soon(now);
    }

    /// Somebody remembers a later life of this node: what it has is an older one's.
    fn outlived(&mut self) {
        // Nothing says how those between came to their end.
        self.kept.born = 0;
        if self.kept.installed.is_some() {
            self.halt(Halt::LeftBehind);
        } else if self.disk_writes.life.is_none() && !self.halted {
            self.take_life();
        }
    }

    /// A member has said what it remembers of lives.
    pub(super) fn learn_lives(&mut self, memory: &Memory) {
        let me = self.config.node;
        let known = self.kept.memory.life(me);
        if !self.kept.memory.learn(&memory.lives) || self.kept.memory.life(me) <= known {
            return;
        }
        // Also one that waits for the disk: a larger one is taken instead.
        if self.disk_writes.life.take().is_some() {
            return self.take_life();
        }
        if self.kept.life.is_some() {
            self.outlived();
        }
    }

    // Numbers of views.

    pub(super) fn reports(&self) -> impl Iterator<Item = (NodeId, &Report)> {
        self.seats.iter().filter_map(|(n, s)| Some((*n, s.report.as_ref()?)))
    }

    /// The next view's number: above every one that a member accepted. `None`: they are used up.
    pub(super) fn next_number(&self) -> Option<u64> {
        let said = self.reports().map(|(_, r)| r.memory.number).max().unwrap_or(0);
        let under_way = self.proposal.as_ref().map_or(0, |p| p.offer.view.seq);
        let last = said.max(self.kept.memory.number).max(under_way).max(FLOOR);
        Some(last + 1).filter(|next| *next < LAST_VIEW)
    }

    /// Notes an acceptance, to be said when the disk has it.
    pub(super) fn accept_soon(&mut self, now: Time, of: u64, stamps: Vec<(NodeId, Time)>) {
        let change = self.remember();
        self.disk_writes.held = Some(Held { of, stamps, since: now, change, said: false });
    }

    fn say_accepted(&mut self) {
        let DiskWrites { schedule, held, .. } = &mut self.disk_writes;
        if let Some(held) = held.take_if(|h| schedule.has(h.change)) {
            self.cast_accept(held.of, held.stamps, true);
        }
    }

    fn cast_accept(&mut self, of: u64, stamps: Vec<(NodeId, Time)>, durable: bool) {
        if self.proposal.as_ref().is_some_and(|p| p.of == of) {
            self.cast(Word::Accept { of, stamps, durable });
        }
    }

    /// A node that cannot write delays nobody: enough others remember a view that has more than half of the votes.
    pub(super) fn accept_without_disk(&mut self, now: Time) {
        let failed = self.disk_writes.schedule.has_failed();
        let patience = self.config.lease / 4;
        let late = |h: &&mut Held| !h.said && (failed || now >= h.since + patience);
        if let Some(held) = self.disk_writes.held.as_mut().filter(late) {
            held.said = true;
            let (of, stamps) = (held.of, held.stamps.clone());
            self.cast_accept(of, stamps, false);
        }
    }

    /// When an acceptance is said without the disk.
    pub(super) fn disk_due(&self) -> Time {
        let patience = self.config.lease / 4;
        let held = self.disk_writes.held.as_ref().filter(|h| !h.said);
        let held = held.map_or(Time::MAX, |h| h.since + patience);
        held.min(self.disk_writes.schedule.again().unwrap_or(Time::MAX))
    }

    // The requirements of a first view.

    /// Begins the cluster's memory, if all nodes are here and none has any.
    pub(super) fn begin(&mut self) {
        if self.kept.memory.remembers() {
            return;
        }
        let all: BTreeSet<NodeId> = self.config.votes.keys().copied().collect();
        let begins = |m: &Memory| {
            m.accepted.is_none() && m.installed.as_ref().is_none_or(|r| r.seq == FLOOR)
        };
        let new = |r: &Report| r.installed == 0 && begins(&r.memory);
        let here: BTreeSet<NodeId> =
            self.reports().filter(|(_, r)| new(r)).map(|(n, _)| n).collect();
        if here.is_superset(&all) {
            let members = all.into_iter().collect();
            self.kept.memory.installed = Some(Record { seq: FLOOR, members, loose: false });
            self.kept.memory.number = self.kept.memory.number.max(FLOOR);
            self.forgot = false;
            self.remember();
        }
    }

    /// The nodes with a memory, and their memories.
    fn remembering(&self) -> BTreeMap<NodeId, &Memory> {
        let known = self.reports().map(|(n, r)| (n, &r.memory));
        known.filter(|(_, m)| m.remembers()).collect()
    }

    /// The views that may have been the last ones.
    fn last_records(&self) -> Vec<&Record> {
        let all = self.remembering();
        let newest = all.values().filter_map(|m| m.installed.as_ref()).map(|r| r.seq).max();
        let newest = newest.unwrap_or(0);
        let installed = all.values().filter_map(|m| m.installed.as_ref());
        let accepted = all.values().filter_map(|m| m.accepted.as_ref());
        let later =
            installed.filter(|r| r.seq >= newest).chain(accepted.filter(|r| r.seq > newest));
        later.collect()
    }

    /// Why the nodes that are here cannot know of every view that there was; `None`: they can.
    pub(super) fn gap(&self) -> Option<String> {
        let who = self.remembering();
        let records = self.last_records();
        let covers = |r: &&Record| {
            r.members.iter().all(|n| who.contains_key(n))
                || !r.loose && self.is_majority(who.keys())
        };
        let missing: BTreeSet<NodeId> = match records.iter().find(|r| !covers(r)) {
            None if !records.is_empty() => return None,
            Some(r) if r.loose => r.members.iter().copied().collect(),
            _ => self.config.votes.keys().copied().collect(),
        };
        let state = |n: &NodeId| match self.seats.get(n).map(|s| s.report.as_ref()) {
            None => Some(format!("node {n} is not there")),
            Some(None) => Some(format!("node {n} has not said what it remembers")),
            Some(Some(r)) if !r.memory.remembers() => Some(format!("node {n} has no state")),
            Some(Some(_)) => None,
        };
        let missing: Vec<String> = missing.iter().filter_map(state).collect();
        let why = if records.is_empty() {
            "a new cluster begins when all nodes are there"
        } else {
            "those that are there cannot know every number that was used"
        };
        Some(format!(
            "nodes that remember the numbers of views: {why}, and {} (or run `lockify cluster recover` on one \
             that is there)",
            missing.join(", ")
        ))
    }

    /// Returns true if a view with so few members may follow the one of this number; 0: none holds.
    pub(super) fn may_be_few(&self, base: u64) -> bool {
        if self.config.fence == FenceKind::Lease || !self.are_minorities_allowed() {
            return false;
        }
        if base == 0 {
            let records = self.last_records();
            return !records.is_empty() && records.iter().all(|r| r.loose);
        }
        let own = Some(&self.kept.memory);
        let mut all = self.reports().map(|(_, r)| &r.memory).chain(own);
        all.any(|m| m.installed.as_ref().is_some_and(|r| r.seq == base && r.loose))
    }

    /// Returns true if corosync's rules let fewer nodes continue than have half of all votes, as far as any node here
    /// knows.
    pub(super) fn are_minorities_allowed(&self) -> bool {
        self.minorities || self.reports().any(|(_, r)| r.minorities)
    }

    // An operator's requests.

    pub(super) fn request(&mut self, id: u64, request: &Request) {
        match request {
            Request::Recover => self.recover(id),
            _ => self.actions.push_back(crate::no_log(id)),
        }
    }

    /// Begins an era above all that is known here: an operator says that the rest is lost for good.
    fn recover(&mut self, id: u64) {
        let holds = self.kept.installed.is_some() || self.reports().any(|(_, r)| r.installed > 0);
        let whole = self.is_quorate() && self.kept.memory.remembers() && self.gap().is_none();
        let last = self.reports().map(|(_, r)| r.memory.number).max().unwrap_or(0);
        let last = last.max(self.kept.memory.number).max(FLOOR);
        let seq = ((last >> ERA_SHIFT) + 1) << ERA_SHIFT;
        let refusal = match (holds || whole, seq < LAST_VIEW) {
            (true, _) => "enough nodes that remember are here: nothing is to be recovered",
            (_, false) => "no era is left: token numbers are used up",
            _ => {
                let me = self.config.node;
                self.kept.memory.number = seq;
                self.kept.memory.installed = Some(Record { seq, members: vec![me], loose: true });
                self.kept.memory.accepted = None;
                let text = format!(
                    "era {} has begun on node {me}: it goes on when corosync has a quorum",
                    seq >> ERA_SHIFT
                );
                self.disk_writes.answer = Some((id, self.remember(), text));
                return;
            }
        };
        self.actions.push_back(Action::Answer { id, result: Err(refusal.into()) });
    }

    /// For the status.
    pub(super) fn lacks(&self) -> impl Iterator<Item = String> + '_ {
        let disk = self.disk_writes.schedule.has_failed();
        let disk = disk.then(|| "a write of state_dir, which failed: see the log".to_owned());
        self.lack.clone().into_iter().chain(disk)
    }
}
