//! The leader's part: lives, exclusions, views, voters and leases, one command after the other.
//!
//! A leader that is none any more does no harm: each command says what it started from, and the state
//! skips what does not fit.

use super::choose::Matrix;
use super::state::Seal;
use super::*;
use crate::joined_spaces;
use lockify_core::Member;

/// After this many losses of a link its trial grows no longer: a returning node waits three leases at most. A link that
/// works for a lease at a time seems to work for two, since a lease's silence is what shows that it does not.
const MOST_FLAPS: u32 = 2;

/// A link that has held for so many leases is as good as one that never broke.
const FORGIVEN: Time = 64;

/// A break of a link that lasts this long costs a member its place, and counts as a flap.
fn patience(lease: Time) -> Time {
    lease / 4
}

/// The leader's memory between two turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Conduct {
    /// The proposals that have not come true yet.
    asked: Vec<(Command, Time)>,
    /// Before, no silence is held against anybody: this process has not listened long enough.
    listens_from: Time,
    /// Which nodes reach which, until a report or the list of nodes changes.
    matrix: Option<Matrix>,
    links: BTreeMap<(NodeId, NodeId), Link>,
    /// When a link last broke or came up: several that break at once are judged together.
    changed: Time,
}

/// How steady a link between two nodes is.
#[derive(Clone, Copy, Debug)]
struct Link {
    up: bool,
    since: Time,
    /// Both ends are reached by somebody. A node that nobody reaches has died or is alone: that says nothing of this link.
    alive: bool,
    flaps: u32,
    /// This break is among the flaps, or is none: the link has never worked.
    counted: bool,
}

impl Conduct {
    pub(super) fn new(now: Time) -> Conduct {
        Conduct { listens_from: now, ..Conduct::default() }
    }

    /// Another configuration: the proposals of the last one are void.
    pub(super) fn forget(&mut self, _now: Time) {
        self.asked.clear();
    }

    /// A report has changed, or the list of nodes.
    pub(super) fn links_may_differ(&mut self) {
        self.matrix = None;
    }

    /// Notes which links work now.
    fn note_links(&mut self, matrix: &Matrix, nodes: &BTreeSet<NodeId>, now: Time) {
        self.links.retain(|(a, b), _| nodes.contains(a) && nodes.contains(b));
        let reached = set(nodes.iter().copied().filter(|n| matrix.neighbours(*n).next().is_some()));
        for (i, a) in nodes.iter().enumerate() {
            for b in nodes.iter().skip(i + 1) {
                let up = matrix.linked(*a, *b);
                let new = Link { up, since: now, alive: true, flaps: 0, counted: !up };
                let link = self.links.entry((*a, *b)).or_insert(new);
                link.alive = reached.contains(a) && reached.contains(b);
                if link.up != up {
                    (link.up, link.since, link.counted) = (up, now, false);
                    self.changed = now;
                }
            }
        }
    }

    /// Counts the links that have been broken for long, and forgives those that have held.
    fn judge_links(&mut self, now: Time, lease: Time) {
        for link in self.links.values_mut() {
            let lasts = |time: Time| now >= link.since.saturating_add(time);
            if !link.up && !link.counted && link.alive && lasts(patience(lease)) {
                (link.flaps, link.counted) = ((link.flaps + 1).min(MOST_FLAPS), true);
            } else if link.up && lasts(FORGIVEN * lease) {
                link.flaps = 0;
            }
        }
    }

    /// Returns true if a repaired link has worked long enough to rely on it.
    fn is_steady(&self, a: NodeId, b: NodeId, now: Time, lease: Time) -> bool {
        let Some(link) = self.links.get(&(a.min(b), a.max(b))) else { return true };
        let trial = u64::from(link.flaps + 1) * lease;
        link.flaps == 0 || now >= link.since.saturating_add(trial)
    }

    /// Returns true if this was proposed just now.
    fn is_asked(&mut self, command: &Command, now: Time, patience: Time) -> bool {
        self.asked.retain(|(_, at)| now < at.saturating_add(patience));
        self.asked.iter().any(|(c, _)| c == command)
    }
}

impl LogMembership {
    /// The leader's next step, if this node leads.
    pub(super) fn lead(&mut self, now: Time) {
        if self.is_voter() {
            self.watch_links(now);
        }
        if !self.agreement.as_ref().is_some_and(Agreement::leads) || !self.has_begun() {
            self.conduct.asked.clear();
            self.fences.clear();
            return;
        }
        if self.is_alone() {
            self.prove_own_lives();
        }
        self.hand_out_lives(now);
        self.settle_lease(now);
        let Some(matrix) = self.conduct.matrix.take() else { return };
        let wanted = self.choose(&matrix, now);
        self.exclude(now, &matrix, &wanted);
        self.conduct.matrix = Some(matrix);
        self.end_excluded(now);
        self.enter_view(now, &wanted);
        self.change_voters(now);
    }

    /// Every voter watches: the next leader has to know which links do not hold.
    fn watch_links(&mut self, now: Time) {
        if self.conduct.matrix.is_none() {
            let (matrix, nodes) = (self.matrix(), set(self.state.nodes.keys().copied()));
            self.conduct.note_links(&matrix, &nodes, now);
            self.conduct.matrix = Some(matrix);
        }
        self.conduct.judge_links(now, self.state.lease_to_wait());
    }

    /// Proposes a command, unless it was proposed just now.
    fn ask(&mut self, now: Time, command: Command) {
        let patience = 4 * self.heartbeat();
        if !self.conduct.is_asked(&command, now, patience) {
            self.conduct.asked.push((command.clone(), now));
            self.propose(command);
        }
    }

    /// The only voter's log is on a disk that it has locked: no other process of it uses that.
    fn prove_own_lives(&mut self) {
        let me = self.me();
        let Some(newest) = self.state.lives.get(&me).copied() else { return };
        let below = if self.life == Some(newest.number) || newest.visit == self.visit {
            newest.number
        } else {
            newest.number + 1
        };
        self.prove(me, below);
    }

    fn hand_out_lives(&mut self, now: Time) {
        let waits = |r: &Report| {
            r.asks
                && r.life.is_none()
                && self.state.nodes.contains_key(&r.node)
                && self.state.lives.get(&r.node).is_none_or(|l| l.visit != r.visit)
        };
        let waiting: Vec<(NodeId, u64)> = self
            .reports
            .values()
            .map(|k| &k.report)
            .filter(|r| waits(r))
            .map(|r| (r.node, r.visit))
            .collect();
        for (node, visit) in waiting {
            // Only a process that is there: a report may be an old one's.
            let here = node == self.me() || self.is_reached(node, visit);
            if here && !self.may_be_ended(node) {
                self.ask(now, Command::Live { node, visit });
            }
        }
    }

    /// Returns true if an agent may be ending what runs on the node, some leader's.
    fn may_be_ended(&self, node: NodeId) -> bool {
        let excluded = self.state.excluded.get(&node);
        self.state.fence() == FenceKind::Command
            && excluded.is_some_and(|e| !self.state.is_over(node, e.life))
    }

    /// Returns true if a present node reaches the node under this number.
    fn is_reached(&self, node: NodeId, id: u64) -> bool {
        self.reports.values().any(|k| k.report.reach.get(&node) == Some(&id))
    }

    /// A new lease is settled when every member goes by it.
    fn settle_lease(&mut self, now: Time) {
        if self.state.next_lease.is_none() {
            return;
        }
        let keys = self.state.keys_version;
        let knows = |m: &Member| {
            self.reports
                .get(&m.node)
                .is_some_and(|k| k.report.keys == keys && k.report.life == Some(m.incarnation))
        };
        if self.state.view.members.iter().all(knows) {
            self.ask(now, Command::SettleLease { keys });
        }
    }

    /// Whom each node reaches, by the reports of all, where both ends know the same life or visit.
    fn matrix(&self) -> Matrix {
        let ids: BTreeMap<NodeId, u64> =
            self.reports.iter().map(|(n, k)| (*n, k.report.id())).collect();
        let reach = self.reports.iter().map(|(node, k)| {
            let right = |(n, id): (&NodeId, &u64)| (ids.get(n) == Some(id)).then_some(*n);
            (*node, k.report.reach.iter().filter_map(right).collect())
        });
        Matrix::new(&reach.collect())
    }

    /// The members of the next view.
    fn choose(&self, matrix: &Matrix, now: Time) -> Vec<NodeId> {
        let lease = self.state.lease_to_wait();
        let present = self.present();
        let voters = |node: NodeId| {
            let own = usize::from(self.state.voters.contains_key(&node));
            own + matrix.neighbours(node).filter(|n| self.state.voters.contains_key(n)).count()
        };
        let may_join = |r: &Report| {
            r.life.is_some_and(|life| self.state.may_join(r.node, life))
                && self.state.is_majority(voters(r.node))
        };
        // A new member needs links that hold.
        let steady = |node: NodeId| {
            present.contains(&node)
                || present.iter().all(|m| {
                    !matrix.linked(node, *m) || self.conduct.is_steady(node, *m, now, lease)
                })
        };
        let candidates = self.reports.values().map(|k| &k.report).filter(|r| may_join(r));
        let candidates = set(candidates.map(|r| r.node).filter(|n| steady(*n)));
        matrix.choose(&candidates, &present)
    }

    /// The members of the view, in the lives that may go on.
    fn present(&self) -> BTreeSet<NodeId> {
        let stays = |m: &&Member| self.state.may_join(m.node, m.incarnation);
        set(self.state.view.members.iter().filter(stays).map(|m| m.node))
    }

    /// Begins to part from members that the next view is without.
    fn exclude(&mut self, now: Time, matrix: &Matrix, wanted: &[NodeId]) {
        let members = self.state.view.members.clone();
        let lease = self.state.lease_to_wait();
        let deaf =
            now < (self.conduct.listens_from + lease).max(self.conduct.changed + patience(lease));
        for m in members {
            let (node, life) = (m.node, m.incarnation);
            if self.state.is_excluded(node, life) || self.state.is_over(node, life) {
                continue;
            }
            let stays = wanted.contains(&node) && self.state.life(node) == Some(life);
            let asks =
                self.reports.get(&node).is_some_and(|k| k.report.id() != life && k.report.asks);
            let why = if !self.state.nodes.contains_key(&node) {
                Why::Removed
            } else if self.state.life(node) != Some(life) || asks || self.is_proven(node, life) {
                Why::Reborn
            } else if stays || deaf || wanted.is_empty() {
                continue;
            } else {
                blame(matrix, node, wanted)
            };
            self.ask(now, Command::Exclude { node, life, why });
        }
    }

    /// Returns true if a node knows that the life's process is gone.
    fn is_proven(&self, node: NodeId, life: u64) -> bool {
        let own = self.proofs.get(&node).copied().unwrap_or(0);
        let others = self.reports.values().filter_map(|k| k.report.proofs.get(&node).copied());
        others.max().unwrap_or(0).max(own) > life
    }

    /// Records which excluded members cannot act any more.
    fn end_excluded(&mut self, now: Time) {
        let keys = self.state.keys_version;
        let wait = 2 * self.state.lease_to_wait();
        let excluded: Vec<(NodeId, u64)> =
            self.state.excluded.iter().map(|(n, e)| (*n, e.life)).collect();
        let mut left = BTreeMap::new();
        for (node, life) in excluded {
            if self.state.is_over(node, life) {
                continue;
            }
            let since = self.excluded_at.get(&(node, life)).copied().unwrap_or(now);
            let waited = now >= since.saturating_add(wait) || mutated!(self, ExclusionDoesNotWait);
            let over = self.is_proven(node, life)
                || match self.state.fence() {
                    FenceKind::None => true,
                    FenceKind::Lease => waited,
                    FenceKind::Command => false,
                };
            if over {
                self.ask(now, Command::Over { node, below: life + 1, keys });
            } else if waited {
                // A lease is no proof where an agent's word is wanted.
                left.insert(node, life + 1);
            }
        }
        self.run_agents(now, &left, keys);
    }

    fn run_agents(&mut self, now: Time, left: &BTreeMap<NodeId, u64>, keys: u64) {
        self.fences.set(left, now);
        for node in self.fences.start(now, |node| self.state.life(node).unwrap_or(0)) {
            let born = left.get(&node).map_or(0, |below| below.saturating_sub(1));
            self.actions.push_back(Action::Fence { node, born });
        }
        for (node, below) in self.fences.reports_due(now, 4 * self.heartbeat()) {
            self.ask(now, Command::Over { node, below, keys });
        }
    }

    /// Takes the next view when nobody of the old one can act beside it.
    fn enter_view(&mut self, now: Time, wanted: &[NodeId]) {
        let life = |node: NodeId| self.reports.get(&node).and_then(|k| k.report.life);
        let weight = |node: NodeId| self.reports.get(&node).map_or(0, |k| k.report.weight);
        let members: Vec<Member> = wanted
            .iter()
            .filter_map(|n| Some(Member { node: *n, incarnation: life(*n)?, weight: weight(*n) }))
            .collect();
        let view = &self.state.view;
        let joins = |m: &Member| Some((*m, self.reports.get(&m.node)?.report.spaces.as_slice()));
        let spaces = joined_spaces(members.iter().filter_map(joins), Some(view));
        let stays =
            |m: &Member| members.iter().any(|n| (n.node, n.incarnation) == (m.node, m.incarnation));
        let proven = |m: &Member| stays(m) || self.state.is_over(m.node, m.incarnation);
        if members.is_empty() || view.says(&members, &spaces) || !view.members.iter().all(proven) {
            return;
        }
        // A node that is just coming is taken into the same view.
        let coming = |r: &Report| {
            r.asks
                || r.life
                    .is_some_and(|l| self.state.may_join(r.node, l) && !wanted.contains(&r.node))
        };
        let others = self.reports.values().map(|k| &k.report);
        let soon = others.filter(|r| coming(r) && self.is_reached(r.node, r.id())).count() > 0;
        let (base, seq) = (view.seq, view.seq.max(self.config.floor) + 1);
        #[cfg(feature = "mutations")]
        let base = self.mutated_base(base);
        let command = Command::View { base, seq, members, spaces };
        if soon
            && view.members.is_empty()
            && now < self.conduct.listens_from + self.state.lease_to_wait() / 2
        {
            return;
        }
        self.ask(now, command);
    }

    /// Makes the voters those that the nodes' entries name, one at a time.
    fn change_voters(&mut self, now: Time) {
        let config = self.state.config;
        let installed = |m: &Member| {
            self.reports
                .get(&m.node)
                .is_some_and(|k| k.report.config == config && k.report.life == Some(m.incarnation))
        };
        let limit = agree::long(self.state.nodes.len());
        let long = self.agreement.as_ref().is_some_and(|a| a.taken() >= limit);
        // Majorities of two successive configurations share a node only if nobody is further behind.
        let next = match self.state.view.members.iter().all(installed) {
            true => self.next_voters(now),
            false => None,
        };
        let voters = next.or_else(|| long.then(|| self.state.voters.clone()));
        if let Some(voters) = voters {
            self.ask(now, Command::Seal(Seal { voters }));
        }
    }

    fn next_voters(&self, now: Time) -> Option<BTreeMap<NodeId, u64>> {
        let reach = self.reach(now);
        let disk = |node: &NodeId| {
            let peer = self
                .peers
                .get(node)
                .filter(|p| p.connected.is_some() && reach.contains_key(node))?;
            let hello = peer.hello.as_ref()?;
            let ours = hello.cluster == 0
                || hello.cluster == self.state.cluster
                || peer.position.config.era < self.state.config.era;
            ours.then_some(hello.witness.disk)
        };
        let marked = |node: &NodeId| self.state.nodes.get(node).is_some_and(|e| e.voter);
        let mut voters = self.state.voters.clone();
        // A voter that comes with another disk has lost its records.
        for (node, named) in &self.state.voters {
            if let Some(new) = disk(node).filter(|d| d != named && marked(node)) {
                voters.insert(*node, new);
                return Some(voters);
            }
        }
        let gone = self.state.voters.keys().find(|n| !marked(n) && self.state.voters.len() > 1);
        if let Some(node) = gone {
            voters.remove(node);
            return Some(voters);
        }
        let joins = |node: &&NodeId| marked(node) && !self.state.voters.contains_key(*node);
        let (node, disk) =
            self.state.nodes.keys().filter(joins).find_map(|n| Some((*n, disk(n)?)))?;
        voters.insert(node, disk);
        Some(voters)
    }
}

/// Why a member that lives cannot stay.
fn blame(matrix: &Matrix, node: NodeId, wanted: &[NodeId]) -> Why {
    let unlinked = wanted.iter().find(|n| **n != node && !matrix.linked(**n, node));
    match unlinked {
        Some(other) if wanted.iter().any(|n| matrix.linked(*n, node)) => Why::Link(*other),
        _ => Why::Silent,
    }
}
