//! Which view is next: proposing, accepting, installing.

use super::*;

/// Refused proposals that are remembered: one that is repeated meanwhile comes soon.
const REFUSED: usize = 16;

/// The reason why there is no next view yet.
enum NotYet {
    /// A new member has not reported. It does so soon, and one view is better than two.
    Unreported,
    /// A node restarts and is expected back.
    Restarting,
    /// Not all members are connected, and connections may still be under way.
    Connecting,
    /// The next view is without this node, as far as it knows.
    WithoutThisNode,
    /// The next view would lack this.
    Lacks(String),
}

/// The possible members of a view, with their reports.
struct Candidates<'a> {
    all: BTreeMap<NodeId, (Member, &'a Report)>,
}

impl<'a> Candidates<'a> {
    /// The members of the group whose lives and reports are known.
    fn that_report(
        seats: &'a BTreeMap<NodeId, Seat>,
        memory: &Memory,
        now: Time,
        grace: Time,
    ) -> Result<Candidates<'a>, NotYet> {
        let mut all = BTreeMap::new();
        for (node, seat) in seats {
            // A node that does not know its own later lives takes another one first.
            let known = seat.life > 0 && seat.life >= memory.life(*node);
            match seat.report.as_ref().filter(|_| known) {
                Some(report) => {
                    let member =
                        Member { node: *node, incarnation: seat.life, weight: report.weight };
                    all.insert(*node, (member, report));
                }
                None if now < seat.since + grace => return Err(NotYet::Unreported),
                None => {}
            }
        }
        Ok(Candidates { all })
    }

    fn life(&self, node: NodeId) -> Option<u64> {
        self.all.get(&node).map(|(member, _)| member.incarnation)
    }

    /// Returns true if the first one reports that it is connected to this life of the other.
    fn reaches((member, report): &(Member, &Report), other: &Member) -> bool {
        member.node == other.node || report.reach.contains(&(other.node, other.incarnation))
    }

    /// The links that a member should have and has not. A link counts only if both ends report it, each with the other's
    /// present life.
    fn broken_links(&self, member: &Member) -> usize {
        let own = self.all.get(&member.node);
        let linked = |other: &&(Member, &Report)| {
            Self::reaches(other, member) && own.is_some_and(|own| Self::reaches(own, &other.0))
        };
        self.all.len() - self.all.values().filter(linked).count()
    }

    fn is_linked(&self, node: NodeId) -> bool {
        self.all.get(&node).is_some_and(|(member, _)| self.broken_links(member) == 0)
    }

    fn are_linked(&self) -> bool {
        self.all.keys().all(|node| self.is_linked(*node))
    }

    /// Members of the present view that nobody hears any more. They have stopped, whatever they last reported.
    fn deaf(&self, me: NodeId, installed: Option<&NodeView>) -> Vec<NodeId> {
        if self.all.len() <= 1 {
            return Vec::new();
        }
        let is_deaf = |member: &Member| {
            let heard = |other: &(Member, &Report)| {
                other.0.node != member.node && Self::reaches(other, member)
            };
            member.node != me
                && installed.and_then(|view| view.life(member.node)) == Some(member.incarnation)
                && !self.all.values().any(heard)
        };
        let members = self.all.values().map(|(member, _)| member);
        members.filter(|member| is_deaf(member)).map(|member| member.node).collect()
    }

    /// The member with the most broken links leaves first, so that many stay. Of equals, the higher number leaves.
    fn drop_unlinked(&mut self) {
        while !self.are_linked() {
            let worst = self.all.values().map(|(m, _)| (self.broken_links(m), m.node)).max();
            let Some((_, node)) = worst else { break };
            self.all.remove(&node);
        }
    }

    /// The number of the newest view that a member is in. One member may have entered a view that the others have not. The
    /// next view starts from the newest.
    fn newest_view(&self) -> u64 {
        self.all.values().map(|(_, report)| report.installed).max().unwrap_or(0)
    }

    fn members(&self) -> Vec<Member> {
        self.all.values().map(|(member, _)| *member).collect()
    }
}

impl CorosyncMembership {
    /// Proposes a view if this node should, and none that says the same is on the way.
    pub(super) fn consider(&mut self, now: Time) {
        self.lack = None;
        if !self.is_quorate() || !self.seats.contains_key(&self.config.node) {
            return;
        }
        self.begin();
        self.seek_life(now);
        let (members, base) = match self.candidates(now) {
            Ok(candidates) => candidates,
            Err(reason) => return self.not_yet(now, reason),
        };
        self.lack = None;
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
        let says = |p: &&Proposal| p.offer.base == base && p.offer.view.says(&members, &spaces);
        let asked = self.proposal.as_ref().filter(says);
        if asked.is_some_and(|p| now < p.since + self.config.lease / 2) {
            return;
        }
        let again = asked.map(|p| p.offer.clone());
        if !self.is_proven(now, &members, base) {
            return;
        }
        self.patience = now + self.config.lease / 2;
        // The same one, and so with the same number, if somebody has not answered.
        let offer = again.or_else(|| self.offer(members, spaces, base));
        match offer {
            Some(offer) => self.cast(Word::Propose(Box::new(offer))),
            None => self.lack = Some("a number of a view: they are used up".into()),
        }
    }

    /// The members of the next view, and the number of the present view.
    fn candidates(&mut self, now: Time) -> Result<(Vec<Member>, u64), NotYet> {
        let me = self.config.node;
        let grace = 2 * self.config.lease;
        let mut candidates = Candidates::that_report(&self.seats, &self.kept.memory, now, grace)?;
        if candidates.life(me).is_none_or(|life| Some(life) != self.kept.life) {
            return Err(NotYet::WithoutThisNode);
        }
        // A node that restarts is back when it is connected with all, also with the deaf.
        let linked = |node| candidates.is_linked(node);
        let deaf = candidates.deaf(me, self.kept.installed.as_ref());
        if restart::are_expected(&mut self.absent, &self.seats, now, linked) {
            return Err(NotYet::Restarting);
        }
        candidates.all.retain(|node, _| !deaf.contains(node));
        if candidates.are_linked() {
            self.parted = None;
        } else {
            // At first, connections may still be under way. Members that cannot talk for long are parted.
            let parted = *self.parted.get_or_insert(now);
            if now < parted + grace {
                return Err(NotYet::Connecting);
            }
            candidates.drop_unlinked();
        }
        if candidates.life(me).is_none() {
            return Err(NotYet::WithoutThisNode);
        }
        let (members, base) = (candidates.members(), candidates.newest_view());
        match self.lack_of(&members, base) {
            Some(lack) => Err(NotYet::Lacks(lack)),
            None => Ok((members, base)),
        }
    }

    /// Remembers why there is no view yet, and when to look again.
    fn not_yet(&mut self, now: Time, reason: NotYet) {
        match reason {
            // These end soon, by themselves or by a time-out.
            NotYet::Unreported | NotYet::Restarting | NotYet::Connecting => {
                self.patience = self.patience.max(now + self.config.lease / 16);
            }
            // The others go on without this node, or its disk or its connections change that.
            NotYet::WithoutThisNode => {}
            NotYet::Lacks(lack) => self.lack = Some(lack),
        }
    }

    /// The deficiency of a view of these members, if it has one.
    fn lack_of(&self, members: &[Member], base: u64) -> Option<String> {
        if !self.are_enough(members, base) {
            return Some("members with more than half of all votes".into());
        }
        if base == 0 { self.gap() } else { None }
    }

    /// Returns true if these are enough for a view.
    fn are_enough(&self, members: &[Member], base: u64) -> bool {
        self.is_majority(members.iter().map(|m| &m.node)) || self.may_be_few(base)
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
                // Some members may have accepted a later proposal. They echo only its members.
                && self.kept.memory.number <= v.seq
                && self.reports().all(|(_, r)| r.memory.number <= v.seq)
                // A member that a ring's end kept from the last acceptance is not in the view: the others wait for it there.
                && self.reports().all(|(n, r)| r.installed == v.seq || v.life(n).is_none())
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
        let below = |n: NodeId| match self.kept.leases.is_unknown(n) {
            true => u64::MAX,
            false => self.kept.memory.life(n) + 1,
        };
        left.extend(unknown.into_iter().map(|n| (n, below(n))));
        self.fences.set(&left, now);
        self.run_agents(now);
        left.is_empty()
    }

    /// Whether nothing proves that the last known life of a node is over: this process may have heard no more of it
    /// than that it acts.
    fn is_at_large(&self, node: NodeId) -> bool {
        let leases = &self.kept.leases;
        leases.is_unknown(node) || !leases.is_over(node, self.kept.memory.life(node))
    }

    /// Nodes of the list outside of a first view that may still act.
    fn unknown_nodes(&self, members: &[Member]) -> Vec<NodeId> {
        let outside = |n: &&NodeId| !members.iter().any(|m| m.node == **n);
        self.config.votes.keys().filter(outside).copied().filter(|n| self.is_at_large(*n)).collect()
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
                && self.is_at_large(node)
                && !self.kept.leases.has_outlived(now);
            // A new process of a node listens where the former did: that one is gone.
            let absent = included(node).is_none();
            unknown || absent && self.kept.leases.may_act(node, None, now)
        })
    }

    fn offer(&mut self, members: Vec<Member>, spaces: Vec<SpaceView>, base: u64) -> Option<Offer> {
        let seq = self.next_number()?;
        #[cfg(feature = "mutations")]
        let seq = self.mutated_number(seq);
        let old = self.kept.installed.as_ref().filter(|v| v.seq == base);
        let spaces = numbered(spaces, seq, old);
        let view = NodeView { seq, members, spaces };
        let (group, loose) = (self.digest(), self.are_minorities_allowed());
        Some(Offer { view, base, group, loose, mark: self.kept.random.next() })
    }

    /// A proposal has been delivered.
    pub(super) fn proposed(&mut self, now: Time, by: NodeId, offer: Offer) {
        let of = offer.of();
        if offer.group != self.digest() || self.refused.contains(&of) {
            return;
        }
        if let Some(p) = self.proposal.as_mut().filter(|p| p.of == of) {
            p.since = now;
            return self.accept_again(of);
        }
        if self.proposal.as_ref().is_some_and(|p| p.offer.view.seq >= offer.view.seq) {
            return;
        }
        self.drop_proposal();
        let included = self.is_me(offer.view.life(self.config.node));
        let verdict = included.then(|| self.accept(now, by, of, &offer));
        let (accepted, durable) = Default::default();
        self.proposal = Some(Proposal { offer, of, accepted, durable, by, since: now });
        match verdict {
            Some(Ok(stamps)) => self.accept_soon(now, of, stamps),
            Some(Err(why)) => self.cast(Word::Refuse { of, why }),
            None => {}
        }
    }

    /// The proposer asks again: not everybody has answered.
    fn accept_again(&mut self, of: u64) {
        let accepted = self.former.as_ref().is_some_and(|f| f.of == of);
        if accepted && self.disk_writes.held.is_none() {
            self.cast(Word::Accept { of, stamps: Vec::new(), durable: true });
        }
    }

    /// The proposal is void, or another one takes its place: who was heard to accept it has promised its number.
    pub(super) fn drop_proposal(&mut self) {
        let Some(p) = self.proposal.take() else { return };
        for node in p.accepted {
            self.note_number(node, p.offer.view.seq);
        }
        if self.disk_writes.held.take().is_some_and(|h| h.of == p.of && !h.said) {
            self.take_back(p.of);
        }
    }

    /// A member has promised this number.
    fn note_number(&mut self, node: NodeId, number: u64) {
        if let Some(report) = self.seats.get_mut(&node).and_then(|s| s.report.as_mut()) {
            report.memory.number = report.memory.number.max(number);
        }
    }

    /// Nobody can have agreed on a proposal: what its acceptance has changed is as before.
    fn take_back(&mut self, of: u64) {
        if let Some(f) = self.former.take_if(|f| f.of == of) {
            (self.kept.memory.number, self.kept.memory.accepted) = (f.number, f.record);
            self.kept.accepted = f.view.filter(|_| !self.halted);
        }
    }

    /// Decides on a proposal; the proposer asks itself, too.
    fn accept(
        &mut self,
        now: Time,
        by: NodeId,
        of: u64,
        offer: &Offer,
    ) -> Result<Vec<(NodeId, Time)>, Veto> {
        let (view, base) = (&offer.view, offer.base);
        if view.seq <= self.kept.memory.number {
            return Err(Veto::Promised(self.kept.memory.number));
        }
        if !self.fits(by, view, base) {
            return Err(Veto::Misfit);
        }
        if !self.is_quorate() {
            return Err(Veto::NoQuorum);
        }
        if let Some(v) = self.kept.installed.as_ref().filter(|v| v.seq != base) {
            return Err(Veto::Base(v.seq));
        }
        if base == 0 && self.gap().is_some() {
            return Err(Veto::Forgotten);
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
        self.promise(of, offer);
        Ok(stamps)
    }

    fn promise(&mut self, of: u64, offer: &Offer) {
        let (view, memory) = (&offer.view, &mut self.kept.memory);
        let (number, record) = (memory.number, memory.accepted.take());
        memory.number = view.seq;
        memory.accepted = Some(Record::of(view, offer.loose));
        for m in &view.members {
            let known = memory.lives.entry(m.node).or_default();
            *known = (*known).max(m.incarnation);
        }
        let before = self.kept.accepted.replace(view.clone());
        self.former = Some(Former { of, number, record, view: before });
    }

    /// The view is well-formed, and this node, in this life, and the proposer are in it.
    fn fits(&self, by: NodeId, view: &NodeView, base: u64) -> bool {
        let seated = |m: &Member| {
            m.incarnation >= self.kept.memory.life(m.node)
                && self.seats.get(&m.node).is_some_and(|s| s.life == m.incarnation)
        };
        let old = self.kept.installed.as_ref();
        let follows = |s: &SpaceView| s.may_follow(old.and_then(|v| v.space_view(&s.name)));
        view.is_well_formed()
            && self.are_enough(&view.members, base)
            && view.spaces.iter().all(follows)
            && view.members.iter().all(seated)
            && self.is_me(view.life(self.config.node))
            && view.life(by).is_some()
    }

    pub(super) fn accepted_by(&mut self, now: Time, from: NodeId, of: u64, durable: bool) {
        let Some(p) = self.proposal.as_mut().filter(|p| p.of == of) else { return };
        p.accepted.insert(from);
        if durable {
            p.durable.insert(from);
        }
        let Some(p) = &self.proposal else { return };
        let all =
            |nodes: &BTreeSet<NodeId>| p.offer.view.members.iter().all(|m| nodes.contains(&m.node));
        // State on the disks of more than half of the votes is not forgotten.
        let kept = all(&p.durable) || !p.offer.loose && self.is_majority(p.durable.iter());
        if !all(&p.accepted) || !kept {
            return;
        }
        let Some(Proposal { offer, .. }) = self.proposal.take() else { return };
        self.install(now, offer.view, offer.loose);
    }

    fn install(&mut self, now: Time, view: NodeView, loose: bool) {
        let record = Record::of(&view, loose);
        for m in &view.members {
            self.note_number(m.node, view.seq);
            if let Some(report) = self.seats.get_mut(&m.node).and_then(|s| s.report.as_mut()) {
                report.installed = view.seq;
                report.memory.installed = Some(record.clone());
            }
        }
        if !self.is_me(view.life(self.config.node)) {
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
        (self.kept.memory.installed, self.kept.memory.accepted) = (Some(record), None);
        self.former = None;
        self.remember();
        self.wanting = None;
        self.patience = now;
        self.fences.clear();
        self.kept.installed = Some(view.clone());
        self.actions.push_back(Action::Install(view));
    }

    pub(super) fn refused(&mut self, now: Time, from: NodeId, of: u64, why: Veto) {
        if let Veto::Promised(n) | Veto::Base(n) = why {
            self.note_number(from, n);
        }
        let Some(p) = self.proposal.take_if(|p| p.of == of) else { return };
        self.refused.push_front(of);
        self.refused.truncate(REFUSED);
        let _ = self.disk_writes.held.take_if(|h| h.of == of);
        if mutated!(self, RefusedUsesNumbers) {
            #[cfg(feature = "mutations")]
            {
                self.kept.memory.number = self.mutated_refusal();
            }
        } else {
            self.take_back(of);
        }
        if p.by == self.config.node {
            self.patience = now + self.config.lease / 16;
        }
    }

    /// The lockspaces of these nodes, by name, not numbered yet.
    fn joined(&self, members: &[Member]) -> Vec<SpaceView> {
        let reports = members.iter().filter_map(|m| {
            let report = self.seats.get(&m.node)?.report.as_ref()?;
            Some((*m, report.spaces.as_slice()))
        });
        joined_spaces(reports, self.kept.installed.as_ref())
    }
}
