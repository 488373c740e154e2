//! Which view is next: proposing, accepting, installing.

use super::*;

impl CorosyncMembership {
    /// Proposes a view if this node should, and none that says the same is on the way.
    pub(super) fn consider(&mut self, now: Time, wall: u64) {
        if !self.is_quorate() || !self.seats.contains_key(&self.config.node) {
            return;
        }
        let Some((members, base)) = self.candidates(now) else { return };
        let spaces = self.joined(&members);
        if self.is_settled(&members, &spaces, base) {
            self.wanting = None;
            self.fences.clear();
            return;
        }
        let since = *self.wanting.get_or_insert(now);
        if !self.is_my_turn(now, since, base, &members) || now < self.patience {
            return;
        }
        let asked = self.proposal.as_ref().is_some_and(|p| {
            p.view.says(&members, &spaces) && now < p.since + self.config.lease / 2
        });
        if asked || !self.is_proven(now, &members, base) {
            return;
        }
        self.propose(now, wall, members, spaces, base);
    }

    /// The possible members of the next view, and the number of the present view. `None`: not yet.
    fn candidates(&mut self, now: Time) -> Option<(Vec<Member>, u64)> {
        let grace = 2 * self.config.lease;
        let mut all = BTreeMap::<NodeId, (Member, &Report)>::new();
        for (node, seat) in &self.seats {
            match &seat.report {
                Some(report) => {
                    let member =
                        Member { node: *node, incarnation: seat.life, weight: report.weight };
                    all.insert(*node, (member, report));
                }
                // A new member reports soon: one view is better than two.
                None if now < seat.since + grace => {
                    self.patience = self.patience.max(now + self.config.lease / 16);
                    return None;
                }
                None => {}
            }
        }
        all.get(&self.config.node).filter(|(m, _)| m.incarnation == self.config.life)?;
        let reaches = |a: &(Member, &Report), b: &Member| {
            a.0.node == b.node || a.1.reach.contains(&(b.node, b.incarnation))
        };
        // Whom nobody hears any more has stopped, whatever it last said of itself.
        let deaf: Vec<NodeId> = all
            .values()
            .map(|(m, _)| *m)
            .filter(|m| {
                let was = self.kept.installed.as_ref().and_then(|v| v.life(m.node));
                was == Some(m.incarnation)
                    && m.node != self.config.node
                    && all.len() > 1
                    && !all.values().any(|a| a.0.node != m.node && reaches(a, m))
            })
            .map(|m| m.node)
            .collect();
        let missing = |all: &BTreeMap<NodeId, (Member, &Report)>, b: &Member| {
            let one = |a: &(Member, &Report)| {
                let back = all.get(&b.node).is_some_and(|b| reaches(b, &a.0));
                usize::from(!(reaches(a, b) && back))
            };
            all.values().map(one).sum::<usize>()
        };
        let linked = |node| all.get(&node).is_some_and(|(m, _)| missing(&all, m) == 0);
        if restart::are_expected(&mut self.absent, &self.seats, now, linked) {
            self.patience = self.patience.max(now + self.config.lease / 16);
            return None;
        }
        all.retain(|node, _| !deaf.contains(node));
        let whole = |all: &BTreeMap<NodeId, (Member, &Report)>| {
            all.values().all(|(m, _)| missing(all, m) == 0)
        };
        if whole(&all) {
            self.parted = None;
        } else {
            // Connections are still being made, at first; who cannot talk for long is parted.
            let parted = *self.parted.get_or_insert(now);
            if now < parted + grace {
                self.patience = self.patience.max(now + self.config.lease / 16);
                return None;
            }
            while !whole(&all) {
                let worst = all.values().map(|(m, _)| (missing(&all, m), m.node)).max();
                let Some((_, node)) = worst else { break };
                all.remove(&node);
            }
        }
        all.get(&self.config.node)?;
        let base = all.values().map(|(_, r)| r.installed).max().unwrap_or(0);
        let members: Vec<Member> = all.values().map(|(m, _)| *m).collect();
        if self.config.fence == FenceKind::Lease
            && !self.is_majority(members.iter().map(|m| &m.node))
        {
            return None;
        }
        Some((members, base))
    }

    /// The lowest node of the newest view proposes; the others in turn, if nothing comes of it.
    fn is_my_turn(&self, now: Time, since: Time, base: u64, members: &[Member]) -> bool {
        let mine = self.kept.installed.as_ref().map_or(0, |v| v.seq);
        let knows = |m: &&Member| {
            let report = self.seats.get(&m.node).and_then(|s| s.report.as_ref());
            report.is_some_and(|r| r.installed == base)
        };
        let before =
            members.iter().filter(knows).filter(|m| m.node < self.config.node).count() as u64;
        // Agents take as long as they take: two would only fence twice.
        let late = self.config.fence != FenceKind::Command
            && now >= since + (4 + before) * self.config.lease;
        mine == base && (before == 0 || late)
    }

    fn is_settled(&self, members: &[Member], spaces: &[SpaceView], base: u64) -> bool {
        self.kept.installed.as_ref().is_some_and(|v| {
            v.seq == base
                && v.says(members, spaces)
                // A later proposal may have been accepted by some, who echo its members only.
                && self.kept.seen <= v.seq
        })
    }

    /// Returns true if no life outside a view of these members can still act. Starts agents where
    /// they have to prove it.
    fn is_proven(&mut self, now: Time, members: &[Member], base: u64) -> bool {
        let included = |node: NodeId| members.iter().find(|m| m.node == node);
        match self.config.fence {
            FenceKind::None => true,
            FenceKind::Lease => {
                let leased = self.leased(now, |n| included(n).map(|m| m.incarnation), base);
                if let Some(node) = leased {
                    // A connected node that is merely not wanted would be echoed for ever.
                    self.kept.leases.shun(node, now);
                    self.patience = now + self.config.lease / 16;
                }
                leased.is_none()
            }
            FenceKind::Command => self.are_fenced(now, members, base),
        }
    }

    /// Returns true if agents have fenced every node outside a view of these members; starts them.
    fn are_fenced(&mut self, now: Time, members: &[Member], base: u64) -> bool {
        let mut left = BTreeMap::new();
        for m in self.kept.installed.iter().flat_map(|v| &v.members) {
            if !members.iter().any(|i| (i.node, i.incarnation) == (m.node, m.incarnation))
                && !self.kept.leases.is_over(m.node, m.incarnation)
            {
                left.insert(m.node, m.incarnation.saturating_add(1));
            }
        }
        let unknown = if base == 0 { self.unknown_nodes(members) } else { Vec::new() };
        if !unknown.is_empty() && now < self.kept.started + self.config.startup {
            self.patience = now + self.config.lease / 16;
            return false;
        }
        left.extend(unknown.into_iter().map(|n| (n, u64::MAX)));
        self.fences.set(&left, now);
        self.run_agents(now);
        left.is_empty()
    }

    /// Nodes of the list outside of a first view of which nothing is known.
    fn unknown_nodes(&self, members: &[Member]) -> Vec<NodeId> {
        let outside = |n: &&NodeId| !members.iter().any(|m| m.node == **n);
        self.config
            .votes
            .keys()
            .filter(outside)
            .copied()
            .filter(|n| self.kept.leases.is_unknown(*n))
            .collect()
    }

    /// A node outside the view whose lease may still run.
    fn leased(
        &self,
        now: Time,
        included: impl Fn(NodeId) -> Option<u64>,
        base: u64,
    ) -> Option<NodeId> {
        let others = self.config.votes.keys().copied().filter(|n| *n != self.config.node);
        others.into_iter().find(|&node| {
            // Of a first view nobody has proof yet; a later one stands on that of the former.
            let unknown = base == 0
                && included(node).is_none()
                && self.kept.leases.is_unknown(node)
                && !self.kept.leases.has_outlived(now);
            // A new process of a node listens where the former did: that one is gone.
            let absent = included(node).is_none();
            unknown || absent && self.kept.leases.may_act(node, None, now)
        })
    }

    fn propose(
        &mut self,
        now: Time,
        wall: u64,
        members: Vec<Member>,
        spaces: Vec<SpaceView>,
        base: u64,
    ) {
        let seq = wall.max(self.kept.seen + 1).max(self.kept.promised + 1);
        let old = self.kept.installed.as_ref().filter(|v| v.seq == base);
        let spaces = numbered(spaces, seq, old);
        let view = NodeView { seq, members, spaces };
        self.patience = now + self.config.lease / 2;
        let group = self.digest();
        self.cast(Word::Propose { view, base, group });
    }

    /// A proposal has been delivered.
    pub(super) fn proposed(
        &mut self,
        now: Time,
        by: NodeId,
        view: NodeView,
        base: u64,
        group: u64,
    ) {
        let seq = view.seq;
        self.kept.seen = self.kept.seen.max(seq);
        if group != self.digest() || self.proposal.as_ref().is_some_and(|p| p.view.seq >= seq) {
            return;
        }
        let included = view.life(self.config.node) == Some(self.config.life) && !self.halted;
        if !included {
            self.proposal = Some(Proposal { view, accepted: BTreeSet::new(), by, since: now });
            return;
        }
        let verdict = self.accept(now, by, &view, base);
        let accepted = BTreeSet::new();
        self.proposal = Some(Proposal { view, accepted, by, since: now });
        match verdict {
            Ok(stamps) => self.cast(Word::Accept { seq, stamps }),
            Err(why) => self.cast(Word::Refuse { seq, why }),
        }
    }

    /// Decides on a proposal; the proposer asks itself, too.
    fn accept(
        &mut self,
        now: Time,
        by: NodeId,
        view: &NodeView,
        base: u64,
    ) -> Result<Vec<(NodeId, Time)>, Veto> {
        if view.seq <= self.kept.promised {
            return Err(Veto::Promised(self.kept.promised));
        }
        if !self.fits(by, view) {
            return Err(Veto::Misfit);
        }
        if !self.is_quorate() {
            return Err(Veto::NoQuorum);
        }
        if let Some(v) = self.kept.installed.as_ref().filter(|v| v.seq != base) {
            return Err(Veto::Base(v.seq));
        }
        let mut stamps = Vec::new();
        for m in view.members.iter().filter(|m| m.node != self.config.node) {
            let life = self.kept.reach.get(&m.node).map(|(life, _)| *life);
            match self.kept.leases.stamp(m.node).filter(|_| life == Some(m.incarnation)) {
                Some(stamp) => stamps.push((m.node, stamp)),
                None => return Err(Veto::Unreachable(m.node)),
            }
        }
        if self.config.fence == FenceKind::Lease
            && let Some(node) = self.leased(now, |n| view.life(n), base)
        {
            // It is connected and may be well, only not wanted: let its lease run out.
            self.kept.leases.shun(node, now);
            return Err(Veto::Leased(node));
        }
        for m in view.members.iter().filter(|m| m.node != self.config.node) {
            self.kept.leases.welcome(m.node);
            // The stamps that go with the acceptance are echoes.
            let _ = self.kept.leases.echo(m.node, m.incarnation, now);
        }
        self.kept.promised = view.seq;
        self.kept.accepted = Some(view.clone());
        Ok(stamps)
    }

    /// The view is well-formed, and this node, in this life, and the proposer are in it.
    fn fits(&self, by: NodeId, view: &NodeView) -> bool {
        let seated = |m: &Member| self.seats.get(&m.node).is_some_and(|s| s.life == m.incarnation);
        let enough = self.config.fence != FenceKind::Lease
            || self.is_majority(view.members.iter().map(|m| &m.node));
        view.is_well_formed()
            && enough
            && view.members.iter().all(seated)
            && view.life(self.config.node) == Some(self.config.life)
            && view.life(by).is_some()
    }

    pub(super) fn accepted_by(&mut self, now: Time, from: NodeId, seq: u64) {
        let Some(p) = self.proposal.as_mut().filter(|p| p.view.seq == seq) else { return };
        p.accepted.insert(from);
        if !p.view.members.iter().all(|m| p.accepted.contains(&m.node)) {
            return;
        }
        let Some(Proposal { view, .. }) = self.proposal.take() else { return };
        self.install(now, view);
    }

    fn install(&mut self, now: Time, view: NodeView) {
        for m in &view.members {
            if let Some(report) = self.seats.get_mut(&m.node).and_then(|s| s.report.as_mut()) {
                report.installed = view.seq;
            }
        }
        if view.life(self.config.node) != Some(self.config.life) || self.halted {
            // The others believe that this node has stopped: make it true.
            if self.kept.installed.is_some() {
                self.halt(Halt::LeftBehind);
            }
            return;
        }
        // An excluded node that still listens learns of it, and halts: it may have seen nothing.
        let outside: Vec<NodeId> =
            self.kept.reach.keys().copied().filter(|n| view.life(*n).is_none()).collect();
        for to in outside {
            let vote = Vote::Install { view: view.clone(), stamps: Vec::new() };
            self.actions.push_back(Action::Send { to, vote });
        }
        let origin =
            |m: &Member| Some((m.node, self.seats.get(&m.node).map(|s| (s.born, s.boot))?));
        self.kept.origins = view.members.iter().filter_map(origin).collect();
        self.wanting = None;
        self.patience = now;
        self.fences.clear();
        self.kept.installed = Some(view.clone());
        self.actions.push_back(Action::Install(view));
    }

    pub(super) fn refused(&mut self, now: Time, seq: u64, why: Veto) {
        let Some(p) = self.proposal.as_ref().filter(|p| p.view.seq == seq) else { return };
        let mine = p.by == self.config.node;
        self.proposal = None;
        if let Veto::Promised(n) | Veto::Base(n) = why {
            self.kept.seen = self.kept.seen.max(n);
        }
        if mine {
            self.patience = now + self.config.lease / 16;
        }
    }

    /// The lockspaces of these nodes, by name, not numbered yet.
    fn joined(&self, members: &[Member]) -> Vec<SpaceView> {
        let reports = members.iter().filter_map(|m| {
            let report = self.seats.get(&m.node)?.report.as_ref()?;
            Some((*m, report.spaces.as_slice()))
        });
        joined_spaces(reports)
    }
}
