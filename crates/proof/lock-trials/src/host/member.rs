//! A node's part in the membership: the shipped service beside the lock manager, hosted as a daemon hosts it.
//!
//! Votes travel on the same connections as the lock manager's messages, but not by the link that sends again. A node
//! that halts tells its peers, closes all connections, and continues as another life.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use lockify_core::{Lockspace, NodeId, Time, View};
use lockify_membership::log::ImageError;
use lockify_membership::{
    Action, ClusterEvent, ClusterState, CorosyncMembership, Event, GroupConfig, LogConfig,
    LogMembership, Membership, MembershipImage, NodeView, Request, SpaceJoin, SpaceKeys, Vote,
};
use lockify_sim::{LinkState, MILLISECOND, SECOND, TimerId};

use super::store::{Ended, Store};
use super::{HostContext, Life, LockNode, Timer, sim_id};
use crate::note::Note;
use crate::transport::{Packet, Transport};

/// The lockspace that all nodes join.
pub const SPACE: &str = "space";

/// The time of a right clock at the beginning, in seconds since 1970.
const WALL: i64 = 1_790_000_000;

/// How long a disk that cannot be read is left alone.
const READ_AGAIN: Time = 5 * MILLISECOND;

/// The membership that a node's file names.
#[derive(Clone, Debug)]
pub enum File {
    /// A log of its own.
    Log(LogConfig),
    /// Corosync, as a model of its guarantees.
    Corosync(GroupConfig),
}

impl File {
    fn peers(&self) -> Vec<NodeId> {
        match self {
            File::Log(c) => c.nodes.keys().copied().filter(|n| *n != c.node).collect(),
            File::Corosync(c) => c.votes.keys().copied().filter(|n| *n != c.node).collect(),
        }
    }
}

/// The initial configuration of a node's membership service.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The service's configuration, as the node's file has it.
    pub file: File,
    /// By how many seconds the node's wall clock is wrong.
    pub wall: Rc<Cell<i64>>,
    /// A process that starts can tell that none of an earlier life runs, as on the same host.
    pub sole: bool,
    /// A defect of the service.
    #[cfg(feature = "mutations")]
    pub mutation: Option<lockify_membership::mutation::Mutation>,
}

impl Setting {
    fn open(
        &self,
        image: Option<&[u8]>,
        now: Time,
    ) -> Result<Box<dyn Membership + Send>, ImageError> {
        Ok(match &self.file {
            File::Log(config) => {
                let service = LogMembership::new(config.clone(), image, now)?;
                #[cfg(feature = "mutations")]
                let service = service.mutated(self.mutation);
                Box::new(service)
            }
            File::Corosync(config) => {
                let service = CorosyncMembership::new(config.clone(), image, now)?;
                #[cfg(feature = "mutations")]
                let service = service.mutated(self.mutation);
                Box::new(service)
            }
        })
    }
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// There is none, or this end has closed it.
    Down,
    /// It is there, and the peer has not said who it is.
    Up,
    /// Both may talk.
    Greeted,
}

/// The membership service of one process, and its environment.
pub struct Member {
    setting: Setting,
    /// None while the disk is being read.
    service: Option<Box<dyn Membership + Send>>,
    store: Store,
    lines: BTreeMap<NodeId, Line>,
    /// This process's life, 0 before it has one.
    life: u64,
    due: Time,
    lease_end: Option<Time>,
    timer: Option<(Time, TimerId)>,
    /// A view that the lockspace is to enter next.
    entering: Option<View>,
    parting: bool,
    announcing: bool,
    requests: u64,
    /// Nothing of the membership changes any more.
    rests: bool,
}

impl Member {
    /// A process that has not read its disk yet.
    pub fn new(setting: Setting) -> Member {
        Member {
            lines: setting.file.peers().into_iter().map(|n| (n, Line::Down)).collect(),
            setting,
            service: None,
            store: Store::new(),
            life: 0,
            due: Time::MAX,
            lease_end: None,
            timer: None,
            entering: None,
            parting: false,
            announcing: false,
            requests: 0,
            rests: false,
        }
    }

    /// The identity by which peers know this process's connections.
    fn identity(&self) -> u64 {
        self.service.as_ref().map_or(0, |s| s.identity())
    }

    fn greeted(&self) -> Vec<NodeId> {
        self.lines.iter().filter(|(_, line)| **line == Line::Greeted).map(|(n, _)| *n).collect()
    }
}

impl LockNode {
    /// The life that acts now, and in which view; `local` is the node's clock.
    pub fn acting(&self, local: Time) -> Option<(u64, u64)> {
        let member = self.member.as_ref()?;
        let inside = matches!(self.life, Life::Member | Life::Leaving);
        let view = member.service.as_ref()?.view()?;
        let holds = member.lease_end.is_none_or(|end| local.max(self.now) < end);
        (inside && holds).then_some((member.life, view.seq))
    }

    /// The agreed state of the cluster, as far as this node knows.
    pub fn cluster(&self) -> Option<&ClusterState> {
        self.member.as_ref()?.service.as_ref()?.cluster()
    }

    /// The reason for a wait of the membership service, for a run without progress.
    pub fn waits(&self) -> String {
        let service = self.member.as_ref().and_then(|m| m.service.as_ref());
        service.map_or("its disk".into(), |s| s.standing().waits.join(", "))
    }

    /// An operator wants something of the cluster.
    pub fn request(&mut self, cx: &mut HostContext<'_>, request: Request) {
        let Some(member) = &mut self.member else { return };
        member.requests += 1;
        let id = member.requests;
        self.tell_members(cx, Event::Request { id, request });
    }

    /// This node has found out that no process of another one runs.
    pub fn dead(&mut self, cx: &mut HostContext<'_>, node: NodeId) {
        self.tell_members(cx, Event::Dead { node });
    }

    /// Whether its disk has been read.
    pub fn has_service(&self) -> bool {
        self.member.as_ref().is_some_and(|m| m.service.is_some())
    }

    /// Corosync says something.
    pub fn told(&mut self, cx: &mut HostContext<'_>, event: ClusterEvent) {
        self.tell_members(cx, Event::Cluster(event));
    }

    /// The node is to go on as another program soon: the others may have to know.
    pub fn announce_reload(&mut self, cx: &mut HostContext<'_>) {
        self.clock(cx);
        let now = self.now;
        if let Some(service) = self.member.as_mut().and_then(|m| m.service.as_mut()) {
            service.prepare_image(now);
            self.act(cx);
        }
    }

    /// A fencing agent has ended.
    pub fn fenced(&mut self, cx: &mut HostContext<'_>, node: NodeId, success: bool) {
        self.tell_members(cx, Event::Fenced { node, success });
    }

    /// Nothing goes wrong any more: the service says no more, and its view stays. Its beats would be most of the events
    /// of a run at rest.
    pub fn rest(&mut self) {
        if let Some(member) = &mut self.member {
            (member.rests, member.lease_end) = (true, None);
        }
    }

    /// The process ends in order: peers need not wait for its lease.
    pub fn goodbye(&mut self, cx: &mut HostContext<'_>) {
        let Some(member) = &self.member else { return };
        for peer in member.greeted() {
            cx.send(sim_id(peer), Packet::Vote(Vote::Goodbye));
        }
    }

    /// The process begins: its disk is read, and everybody is called.
    pub(super) fn start_member(&mut self, cx: &mut HostContext<'_>) {
        let Some(member) = &mut self.member else { return };
        member.store.read(cx);
        member.lines.keys().for_each(|peer| cx.connect(sim_id(*peer)));
    }

    /// Halts a node whose lease has ended before it does anything else.
    pub(super) fn keep_lease(&mut self, cx: &mut HostContext<'_>) {
        let end = self.member.as_ref().and_then(|m| m.lease_end);
        if end.is_some_and(|end| self.now >= end) {
            self.tell_members(cx, Event::Tick);
        }
    }

    pub(super) fn disk_ended(&mut self, cx: &mut HostContext<'_>, done: lockify_sim::DiskDone) {
        let Some(member) = &mut self.member else { return };
        match member.store.ended(cx, done) {
            Ended::Nothing => {}
            Ended::Unreadable => {
                cx.set_timer(READ_AGAIN, Timer::Read);
            }
            Ended::Read(image) => self.begin_member(cx, image.as_deref()),
            Ended::Written { number, success } => {
                self.tell_members(cx, Event::Persisted { number, success });
            }
        }
    }

    pub(super) fn read_again(&mut self, cx: &mut HostContext<'_>) {
        if let Some(member) = &mut self.member {
            member.store.read(cx);
        }
    }

    /// The disk was read: the service continues from its content.
    fn begin_member(&mut self, cx: &mut HostContext<'_>, image: Option<&[u8]>) {
        let Some(member) = &mut self.member else { return };
        match member.setting.open(image, self.now) {
            Ok(service) => member.service = Some(service),
            Err(why) => return cx.note(Note::Broken(format!("the disk's image: {why}"))),
        }
        self.tell_members(cx, Event::Tick);
        // Earlier connections could not learn this identity.
        let Some(member) = &self.member else { return };
        let up: Vec<NodeId> =
            member.lines.iter().filter(|(_, line)| **line == Line::Up).map(|(n, _)| *n).collect();
        up.into_iter().for_each(|peer| self.close(cx, peer));
    }

    /// Closes a connection; the network makes another one.
    fn close(&mut self, cx: &mut HostContext<'_>, peer: NodeId) {
        if let Some(line) = self.member.as_mut().and_then(|m| m.lines.get_mut(&peer)) {
            *line = Line::Down;
        }
        self.transport.down(peer);
        cx.disconnect(sim_id(peer));
    }

    /// A connection came up or went down.
    pub(super) fn line(&mut self, cx: &mut HostContext<'_>, peer: NodeId, state: LinkState) {
        let before = match &mut self.member {
            Some(member) => {
                let line = if state == LinkState::Down { Line::Down } else { Line::Up };
                member.lines.insert(peer, line)
            }
            None => None,
        };
        if state == LinkState::Down {
            self.transport.down(peer);
            if before == Some(Line::Greeted) {
                self.tell_members(cx, Event::Disconnected { node: peer });
            }
            return;
        }
        let identity = self.member.as_ref().map_or(0, Member::identity);
        // A process that reads its disk has no name yet.
        if self.member.as_ref().is_none_or(|m| m.service.is_some()) {
            self.transport.up(cx, peer, identity);
        }
    }

    /// Returns true if a peer's packet is of a connection that this end has not closed.
    pub(super) fn hears(&self, from: NodeId, packet: &Packet) -> bool {
        let Some(member) = &self.member else { return true };
        match packet {
            Packet::Datagram { .. } => true,
            Packet::Hello { .. } => {
                member.lines.get(&from) == Some(&Line::Up) && member.service.is_some()
            }
            Packet::Frame(_) | Packet::Vote(_) => member.lines.get(&from) == Some(&Line::Greeted),
        }
    }

    /// A peer has said who it is.
    pub(super) fn greeted(&mut self, cx: &mut HostContext<'_>, node: NodeId, life: u64) {
        let Some(member) = &mut self.member else { return };
        member.lines.insert(node, Line::Greeted);
        let sole = member.setting.sole;
        self.tell_members(cx, Event::Connected { node, life, sole });
    }

    /// Passes an event to the membership service and executes its actions.
    pub(super) fn tell_members(&mut self, cx: &mut HostContext<'_>, event: Event) {
        self.clock(cx);
        let now = self.now;
        let Some(member) = self.member.as_mut().filter(|m| !m.rests) else { return };
        let Some(service) = &mut member.service else { return };
        let wall = WALL + member.setting.wall.get() + (now / SECOND) as i64;
        service.handle(now, wall.max(0) as u64, event);
        self.act(cx);
    }

    fn act(&mut self, cx: &mut HostContext<'_>) {
        loop {
            let service = self.member.as_mut().and_then(|m| m.service.as_mut());
            let Some(action) = service.and_then(|s| s.poll()) else { break };
            self.do_action(cx, action);
        }
        let Some(member) = &mut self.member else { return };
        if std::mem::take(&mut member.parting) {
            return self.part(cx);
        }
        if std::mem::take(&mut member.announcing) {
            return self.announce(cx);
        }
        self.look_at_clock(cx);
    }

    fn do_action(&mut self, cx: &mut HostContext<'_>, action: Action) {
        let Some(member) = &mut self.member else { return };
        match action {
            Action::Send { to, vote } => {
                if member.lines.get(&to) == Some(&Line::Greeted) {
                    cx.send(sim_id(to), Packet::Vote(vote));
                }
            }
            Action::Install(view) => self.install(cx, view),
            Action::Halt(why) => {
                cx.trace(|| format!("halts: {why}"));
                member.parting = true;
                member.entering = None;
                self.halt(cx);
            }
            Action::Fence { node, .. } => cx.note(Note::Agent(node)),
            Action::Disconnect { node } => self.close(cx, node),
            Action::Persist { number, image } => member.store.write(cx, number, image),
            Action::Reconnect => self.live(cx),
            Action::Answer { result, .. } => cx.trace(|| format!("answers {result:?}")),
            Action::Cast(bytes) => cx.note(Note::Cast(bytes)),
            Action::Nodes(_) => {}
        }
    }

    /// The cluster has given this process a life: it joins the lockspace, and connects under it.
    fn live(&mut self, cx: &mut HostContext<'_>) {
        let Some(member) = &mut self.member else { return };
        member.life = member.service.as_ref().map_or(0, |s| s.identity());
        member.announcing = true;
        let life = member.life;
        self.begin_life(cx, life);
        self.clients = (self.make)();
        cx.note(Note::Lives(life));
        self.close_all(cx);
    }

    fn close_all(&mut self, cx: &mut HostContext<'_>) {
        let peers = self.member.as_ref().map(|m| m.lines.keys().copied().collect::<Vec<_>>());
        peers.unwrap_or_default().into_iter().for_each(|peer| self.close(cx, peer));
    }

    /// Another lock manager and other links: nothing of the former life is left.
    fn begin_life(&mut self, cx: &mut HostContext<'_>, life: u64) {
        let config = lockify_core::Config { incarnation: life, ..self.space.config().clone() };
        self.transport = Transport::new(life, config.claim_resend.is_some());
        self.space = Lockspace::new(config);
        self.clients.clear();
        self.clients_of += 1;
        self.life = Life::Outside;
        self.claims.clear();
        self.claim_waits.clear();
        self.capped = 0;
        self.set_timer(cx);
    }

    fn install(&mut self, cx: &mut HostContext<'_>, view: NodeView) {
        let Some(member) = &mut self.member else { return };
        let part = view.space(SPACE).cloned();
        cx.note(Note::Installed(view));
        let known = self.space.view().seq;
        let me = self.node;
        let enters =
            |v: &View| v.seq > known && v.member(me).is_some_and(|m| m.incarnation == member.life);
        if let Some(part) = part.filter(enters)
            && matches!(self.life, Life::Outside | Life::Member | Life::Leaving)
        {
            // Observers hear of the view before anything happens in it.
            member.entering = Some(part);
            cx.set_timer(0, Timer::Enter);
        }
    }

    pub(super) fn enter_view(&mut self, cx: &mut HostContext<'_>) {
        let view = self.member.as_mut().and_then(|m| m.entering.take());
        if let Some(view) = view.filter(|_| !matches!(self.life, Life::Left | Life::Halted)) {
            self.view(cx, view);
        }
    }

    /// Every client knows that its locks are lost: tells the peers, and begins a new life.
    fn part(&mut self, cx: &mut HostContext<'_>) {
        self.goodbye(cx);
        self.close_all(cx);
        if let Some(member) = &mut self.member {
            member.life = 0;
        }
        self.begin_life(cx, 0);
        self.tell_members(cx, Event::Reborn { life: 0 });
    }

    /// Reports this node's lockspaces to the membership service.
    fn announce(&mut self, cx: &mut HostContext<'_>) {
        let Some(member) = &self.member else { return };
        let joined = !matches!(self.life, Life::Left) && member.life > 0;
        let lockify_core::Config { policy, lvb_len, .. } = *self.space.config();
        let keys = SpaceKeys { policy, lvb_len: lvb_len as u32 };
        let join = joined.then(|| SpaceJoin { name: SPACE.into(), life: member.life, keys });
        self.tell_members(cx, Event::Spaces(join.into_iter().collect()));
    }

    /// The lockspace has been left in order: the others go on without this node.
    pub(super) fn has_left(&mut self) {
        if let Some(member) = &mut self.member {
            member.announcing = true;
        }
    }

    /// Reports outside changes to the service.
    pub(super) fn settle_member(&mut self, cx: &mut HostContext<'_>) {
        if self.member.as_mut().is_some_and(|m| std::mem::take(&mut m.announcing)) {
            self.announce(cx);
        }
    }

    pub(super) fn member_timer(&mut self, cx: &mut HostContext<'_>) {
        if let Some(member) = self.member.as_mut().filter(|m| !m.rests) {
            member.timer = None;
            if self.now >= member.due {
                return self.tell_members(cx, Event::Tick);
            }
        }
        self.look_at_clock(cx);
    }

    /// Notes until when the node may act, and when the service wants to be called.
    fn look_at_clock(&mut self, cx: &mut HostContext<'_>) {
        let Some(member) = self.member.as_mut().filter(|m| !m.rests) else { return };
        let Some(service) = &member.service else { return };
        member.lease_end = service.lease_end();
        member.due = service.next_timer();
        let due = member.due;
        // One that comes too early finds out, and costs less than to move it with every beat.
        if due == Time::MAX || member.timer.is_some_and(|(at, _)| at <= due) {
            return;
        }
        if let Some((_, old)) = member.timer.take() {
            cx.cancel_timer(old);
        }
        member.timer = Some((due, cx.set_timer_at(due, Timer::Members)));
    }

    /// The service as it goes on in another process; `Ok(None)` if it cannot be handed over now.
    pub(super) fn reloaded_member(&mut self) -> Result<Option<Box<dyn Membership + Send>>, String> {
        let now = self.now;
        let Some(service) = self.member.as_mut().and_then(|m| m.service.as_mut()) else {
            return Ok(None);
        };
        service.prepare_image(now);
        let Ok(image) = service.image() else { return Ok(None) };
        let bytes = postcard::to_allocvec(&image).map_err(|e| format!("cannot be written: {e}"))?;
        let image: MembershipImage =
            postcard::from_bytes(&bytes).map_err(|e| format!("cannot be read: {e}"))?;
        image.into_service().map(Some).map_err(|e| format!("cannot be used: {e}"))
    }

    /// Goes on with this service; connections do not outlive that.
    pub(super) fn resume_member(
        &mut self,
        cx: &mut HostContext<'_>,
        service: Box<dyn Membership + Send>,
    ) {
        let Some(member) = &mut self.member else { return };
        member.service = Some(service);
        let cut = member.greeted();
        self.close_all(cx);
        for node in cut {
            self.tell_members(cx, Event::Disconnected { node });
        }
        self.tell_members(cx, Event::Tick);
    }

    /// Returns true if the service has a known defect, which an image would not keep.
    #[cfg(feature = "mutations")]
    pub(super) fn has_defective_member(&self) -> bool {
        self.member.as_ref().is_some_and(|m| m.setting.mutation.is_some())
    }
}
