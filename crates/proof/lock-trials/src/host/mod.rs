//! A simulated node: the shipped lock manager, the shipped membership service, connections to its peers, and local
//! clients.

mod member;
mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use lockify_core::message::Body;
use lockify_core::{
    Clients, Config, Input, Lockspace, LostReason, Name, NodeId, Output, Time, Trace, View,
};
use lockify_membership as members;
use lockify_sim as sim;
use lockify_sim::{Context, Machine, TimerId};
use rand::RngExt;

use crate::coverage::Transition;
use crate::note::Note;
use crate::port::{Client, Phase, Port};
use crate::transport::{Packet, Transport};

pub use member::{File, Member, SPACE, Setting};
pub use store::DISK;

/// Makes the clients of a life.
pub type MakeClients = Rc<dyn Fn() -> Vec<Box<dyn Client>>>;

/// The context through which a node acts.
pub type HostContext<'a> = Context<'a, LockNode>;

/// The engine's name of a node; both count alike.
pub fn sim_id(node: NodeId) -> sim::NodeId {
    sim::NodeId(node.0)
}

/// The lock manager's name of a node.
pub fn core_id(node: sim::NodeId) -> NodeId {
    NodeId(node.0)
}

/// The longest time for which a node does not come to what can wait.
const MOST_BUSY: Time = 200 * sim::MICROSECOND;
/// The same for a node that has very much to do: the next view may come before it does.
const MOST_BEHIND: Time = 30 * sim::MILLISECOND;
/// How often a node has.
const SHARE_BEHIND: f64 = 0.05;
/// How often a peer's link takes no more when it does.
const SHARE_FULL: f64 = 0.3;

/// A node's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The lock manager's.
    Tick,
    /// It has work that need not be done at once.
    Work,
    /// A client's: of which set of clients, which, and its token.
    Client(u64, usize, u64),
    /// The membership service's.
    Members,
    /// The lockspace enters the view that was installed.
    Enter,
    /// The disk is read again.
    Read,
}

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It has not got a view yet.
    Outside,
    /// It is a member.
    Member,
    /// It was told to leave.
    Leaving,
    /// It has left in order.
    Left,
    /// It was halted: it must be restarted to come back.
    Halted,
}

/// A simulated node.
pub struct LockNode {
    node: NodeId,
    space: Lockspace,
    transport: Transport,
    clients: Vec<Box<dyn Client>>,
    make: MakeClients,
    /// Which set of clients: each life has its own.
    clients_of: u64,
    /// None where views are given from outside.
    member: Option<Member>,
    life: Life,
    /// That of all clients, those of lives to come included.
    phase: Phase,
    /// Never goes back, whatever the node's clock does: the lock manager is promised a monotonic one.
    now: Time,
    timer: Option<(Time, TimerId)>,
    /// A [`Timer::Work`] is set.
    works: bool,
    outputs: VecDeque<Output>,
    notes: Vec<Note>,
    wakes: Vec<(Time, usize, u64)>,
    counter: u64,
    /// Claims that left and are not settled: in which view they last left.
    claims: BTreeMap<Name, u64>,
    capped: u64,
    claim_waits: BTreeSet<u64>,
    next_claim_wait: u64,
}

impl LockNode {
    /// A node that is no member yet. Without a membership service of its own it has this life, and is given its views.
    pub fn new(config: Config, make: MakeClients, member: Option<Member>) -> LockNode {
        let datagrams = config.claim_resend.is_some();
        let clients = if member.is_some() { Vec::new() } else { make() };
        LockNode {
            node: config.node,
            transport: Transport::new(config.incarnation, datagrams),
            space: Lockspace::new(config),
            clients,
            make,
            clients_of: 0,
            member,
            life: Life::Outside,
            phase: Phase::Run,
            now: 0,
            timer: None,
            works: false,
            outputs: VecDeque::new(),
            notes: Vec::new(),
            wakes: Vec::new(),
            counter: 0,
            claims: BTreeMap::new(),
            capped: 0,
            claim_waits: BTreeSet::new(),
            next_claim_wait: 0,
        }
    }

    /// The lock manager.
    pub fn space(&self) -> &Lockspace {
        &self.space
    }

    /// Where the node is in its life.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns true if every client has come to rest.
    pub fn is_idle(&self) -> bool {
        self.clients.iter().all(|client| client.is_idle())
    }

    /// Fences that were asked for and not answered.
    pub fn open_claim_waits(&self) -> usize {
        self.claim_waits.len()
    }

    /// The membership service announces a view.
    pub fn view(&mut self, cx: &mut HostContext<'_>, view: View) {
        let first = self.life == Life::Outside;
        self.feed(cx, Input::View(view));
        if first {
            self.life = Life::Member;
            let phase = self.phase;
            self.each_client(cx, |client, port| {
                // In the end of a trial, clients of a new life begin nothing, either.
                if phase == Phase::Run { client.start(port) } else { client.enter(port, phase) }
            });
        }
    }

    /// The node is fenced: it stops before others go on.
    pub fn halt(&mut self, cx: &mut HostContext<'_>) {
        self.life = Life::Halted;
        self.feed(cx, Input::Halt);
    }

    /// The node leaves in order.
    pub fn leave(&mut self, cx: &mut HostContext<'_>) {
        self.life = Life::Leaving;
        self.feed(cx, Input::Leave);
    }

    /// Tells the clients what to do from now on.
    pub fn enter(&mut self, cx: &mut HostContext<'_>, phase: Phase) {
        self.phase = phase;
        self.each_client(cx, |client, port| client.enter(port, phase));
    }

    /// Clients give back what they have, before the node leaves in order. Those of its next life work again.
    pub fn drain(&mut self, cx: &mut HostContext<'_>) {
        self.each_client(cx, |client, port| client.enter(port, Phase::Drain));
    }

    /// Asks to be told when all claims made so far are settled.
    pub fn await_claims(&mut self, cx: &mut HostContext<'_>) {
        self.next_claim_wait += 1;
        self.claim_waits.insert(self.next_claim_wait);
        self.feed(cx, Input::AwaitClaims(self.next_claim_wait));
    }

    /// Drops every orphan of this node.
    pub fn purge(&mut self, cx: &mut HostContext<'_>) {
        self.feed(cx, Input::Purge { node: self.node, clients: Clients::ALL });
    }

    /// Goes on from what an image of the node's state says; false if the node cannot hand itself over now.
    pub fn reload(&mut self, cx: &mut HostContext<'_>) -> bool {
        #[cfg(feature = "mutations")]
        if self.has_defective_member() {
            return false;
        }
        let service = match self.reloaded_member() {
            Ok(Some(service)) => service,
            Ok(None) => return false,
            Err(why) => {
                cx.note(Note::Broken(format!("the membership's image: {why}")));
                return false;
            }
        };
        match self.reloaded() {
            Ok(state) => (self.space, self.transport) = state,
            Err(why) => cx.note(Note::Broken(format!("the node's image: {why}"))),
        }
        self.resume_member(cx, service);
        true
    }

    fn reloaded(&self) -> Result<(Lockspace, Transport), String> {
        let image = postcard::to_allocvec(&(&self.space, &self.transport));
        let image = image.map_err(|e| format!("cannot be written: {e}"))?;
        let state: (Lockspace, Transport) =
            postcard::from_bytes(&image).map_err(|e| format!("cannot be read: {e}"))?;
        #[cfg(feature = "mutations")]
        let state = (state.0.mutated(self.space.config().mutation), state.1);
        // Equality is derived, so it sees what serialization would leave out.
        if state.0 != self.space || state.1 != self.transport {
            return Err("says something else than the state it was made from".into());
        }
        Ok(state)
    }

    fn packet(&mut self, cx: &mut HostContext<'_>, from: NodeId, packet: Packet) {
        if !self.hears(from, &packet) {
            return;
        }
        let packet = match packet {
            Packet::Vote(vote) => {
                return self.tell_members(cx, members::Event::Vote { from, vote });
            }
            Packet::Hello { identity, .. } => {
                self.greeted(cx, from, identity);
                packet
            }
            packet => packet,
        };
        match self.transport.receive(cx, from, packet) {
            Ok(Some(message)) if self.life != Life::Halted => {
                let body = message.body.clone();
                // A message that makes no sense is counted by the lock manager itself.
                let _ = self.space.handle(self.now, Input::Receive { from, message });
                self.settle(cx, Some(&body));
            }
            Ok(_) => {}
            Err(error) => cx.note(Note::Broken(format!("link with {from}: {error}"))),
        }
    }

    /// An input that no client made.
    fn feed(&mut self, cx: &mut HostContext<'_>, input: Input) {
        self.clock(cx);
        let result = self.space.handle(self.now, input.clone());
        if !matches!(input, Input::Tick | Input::Work { .. } | Input::Receive { .. }) {
            self.notes.push(Note::Called { input, result });
        }
        self.settle(cx, None);
    }

    fn clock(&mut self, cx: &HostContext<'_>) {
        self.now = self.now.max(cx.now());
    }

    fn each_client(
        &mut self,
        cx: &mut HostContext<'_>,
        mut call: impl FnMut(&mut dyn Client, &mut Port<'_>),
    ) {
        for index in 0..self.clients.len() {
            self.client(cx, index, &mut call);
        }
        self.settle(cx, None);
    }

    /// Lets a client act; on a node that leaves or is no member there are none.
    fn client(
        &mut self,
        cx: &mut HostContext<'_>,
        index: usize,
        call: impl FnOnce(&mut dyn Client, &mut Port<'_>),
    ) {
        if self.life != Life::Member {
            return;
        }
        self.clock(cx);
        let mut port = Port {
            node: self.node,
            now: self.now,
            random: cx.random(),
            space: &mut self.space,
            notes: &mut self.notes,
            wakes: &mut self.wakes,
            outputs: &mut self.outputs,
            counter: &mut self.counter,
            index,
        };
        call(&mut *self.clients[index], &mut port);
        self.observe_cap();
    }

    fn observe_cap(&mut self) {
        let capped = self.space.stats().capped;
        for _ in self.capped..capped {
            self.notes.push(Note::Step(Transition::Capped));
        }
        self.capped = capped;
    }

    /// Carries out everything that the lock manager wants done, and what follows from it.
    fn settle(&mut self, cx: &mut HostContext<'_>, cause: Option<&Body>) {
        self.collect();
        let healed = match cause {
            Some(Body::ClaimReplies(_)) => self.healed(),
            _ => 0,
        };
        for _ in 0..healed {
            self.notes.push(Note::Step(Transition::Healed));
        }
        let mut implied = matches!(cause, Some(Body::Request(_)));
        while !self.outputs.is_empty() {
            let said: Vec<Output> = self.outputs.drain(..).collect();
            // All of it is so before any client hears of any of it.
            for output in &said {
                if let Output::Trace(trace) = output {
                    self.observe(trace, implied);
                }
                self.carry_out(cx, output);
            }
            for output in said {
                self.deliver_output(cx, output);
                self.collect();
            }
            implied = false;
        }
        self.flush(cx);
        self.set_timer(cx);
        self.work_later(cx);
    }

    /// A node does what can wait when it has time for it, so that anything may come between.
    fn work_later(&mut self, cx: &mut HostContext<'_>) {
        if !self.works && self.space.has_work(&[]) {
            self.works = true;
            let behind = cx.random().random_bool(SHARE_BEHIND);
            let most = if behind { MOST_BEHIND } else { MOST_BUSY };
            let after = cx.random().random_range(1..=most);
            cx.set_timer(after, Timer::Work);
        }
    }

    fn work(&mut self, cx: &mut HostContext<'_>) {
        self.works = false;
        let full = self.full_link(cx).into_iter().collect();
        self.feed(cx, Input::Work { full });
    }

    /// The peer whose link takes no more for now, if there is one.
    fn full_link(&self, cx: &mut HostContext<'_>) -> Option<NodeId> {
        if !cx.random().random_bool(SHARE_FULL) {
            return None;
        }
        let members = &self.space.view().members;
        let drawn = cx.random().random_range(0..members.len().max(1));
        members.get(drawn).map(|m| m.node).filter(|&node| node != self.node)
    }

    fn collect(&mut self) {
        while let Some(output) = self.space.poll() {
            self.outputs.push_back(output);
        }
    }

    fn carry_out(&mut self, cx: &mut HostContext<'_>, output: &Output) {
        match output {
            Output::Send { to, message } => {
                self.observe_send(&message.body);
                self.transport.send(cx, self.space.view(), *to, (**message).clone());
            }
            output => self.notes.push(Note::Said(output.clone())),
        }
    }

    fn deliver_output(&mut self, cx: &mut HostContext<'_>, output: Output) {
        match output {
            Output::Complete(done) => {
                self.tell_client(cx, done.client, |c, port| c.complete(port, &done));
            }
            Output::Bast { client, lock, mode, .. } => {
                self.tell_client(cx, client, |c, port| c.bast(port, lock, mode));
            }
            Output::Lost { reason: LostReason::Halted, .. } => {}
            Output::Lost { client, lock, reason, .. } => {
                self.tell_client(cx, client, |c, port| c.lost(port, lock, reason));
            }
            Output::Left => {
                self.life = Life::Left;
                self.has_left();
            }
            Output::Withdraw(_) => self.life = Life::Halted,
            Output::ClaimsSettled(number) if !self.claim_waits.remove(&number) => {
                self.notes
                    .push(Note::Broken(format!("the wait for claims {number} is answered twice")));
            }
            _ => {}
        }
    }

    fn tell_client(
        &mut self,
        cx: &mut HostContext<'_>,
        id: lockify_core::ClientId,
        call: impl FnOnce(&mut dyn Client, &mut Port<'_>),
    ) {
        // A client that has exited hears nothing any more.
        if let Some(index) = self.clients.iter().position(|client| client.is(id)) {
            self.client(cx, index, call);
        }
    }

    fn flush(&mut self, cx: &mut HostContext<'_>) {
        for note in self.notes.drain(..) {
            cx.note(note);
        }
        for (after, index, token) in self.wakes.drain(..) {
            cx.set_timer(after, Timer::Client(self.clients_of, index, token));
        }
    }

    fn set_timer(&mut self, cx: &mut HostContext<'_>) {
        let wanted = self.space.next_timer();
        if self.timer.map(|(at, _)| at) == wanted {
            return;
        }
        if let Some((_, old)) = self.timer.take() {
            cx.cancel_timer(old);
        }
        self.timer = wanted.map(|at| (at, cx.set_timer_at(at, Timer::Tick)));
    }

    fn observe_send(&mut self, body: &Body) {
        let Body::Claims(claims) = body else { return };
        if claims.len() > 1 {
            self.notes.push(Note::Step(Transition::BatchSent));
        }
        let view = self.space.view().seq;
        for (name, _) in claims {
            self.notes.push(Note::Step(Transition::Sent));
            let before = self.claims.insert(*name, view);
            if before.is_some_and(|before| before < view) {
                self.notes.push(Note::Step(Transition::Reclaimed));
            }
        }
    }

    /// Finds the claim protocol's steps in the lock manager's traces.
    fn observe(&mut self, trace: &Trace, implied: bool) {
        let (step, settled) = match trace {
            Trace::Confirm { name, .. } if implied => (Transition::Implied, Some(name)),
            Trace::Confirm { name, .. } => (Transition::Confirmed, Some(name)),
            Trace::Refuse { .. } => (Transition::Refused, None),
            Trace::Merge { name, .. } => (Transition::Merged, Some(name)),
            Trace::Conflict { .. } => (Transition::Conflict, None),
            Trace::Drop { name, .. } => (Transition::Ended, Some(name)),
            Trace::Resend { .. } => (Transition::Resent, None),
            Trace::Barrier { waits: true, .. } => (Transition::Waited, None),
            Trace::Barrier { waits: false, .. } => (Transition::Released, None),
            Trace::Claim { .. } | Trace::Master { .. } => return,
        };
        self.notes.push(Note::Step(step));
        if let Some(name) = settled {
            self.claims.remove(name);
        }
    }

    /// REMOVEs sent at once after a confirmation that settled nothing: a late duplicate had made a record.
    fn healed(&self) -> usize {
        let settles = |name: &Name| {
            self.outputs.iter().any(|output| match output {
                Output::Trace(trace) => match &**trace {
                    Trace::Confirm { name: n, .. } | Trace::Drop { name: n, .. } => n == name,
                    _ => false,
                },
                _ => false,
            })
        };
        let heals = |output: &&Output| match output {
            Output::Send { message, .. } => {
                matches!(&message.body, Body::Remove { name, .. } if !settles(name))
            }
            _ => false,
        };
        self.outputs.iter().filter(heals).count()
    }
}

impl Machine for LockNode {
    type Msg = Packet;
    type Timer = Timer;
    type Note = Note;

    fn handle(&mut self, input: sim::Input<Self>, cx: &mut HostContext<'_>) {
        self.clock(cx);
        self.keep_lease(cx);
        match input {
            sim::Input::Message { from, msg } => {
                self.packet(cx, core_id(from), msg);
            }
            sim::Input::Timer(Timer::Tick) => {
                self.timer = None;
                self.feed(cx, Input::Tick);
            }
            sim::Input::Timer(Timer::Work) => self.work(cx),
            sim::Input::Timer(Timer::Client(of, index, token)) if of == self.clients_of => {
                self.client(cx, index, |client, port| client.wake(port, token));
                self.settle(cx, None);
            }
            sim::Input::Timer(Timer::Client(..)) => {}
            sim::Input::Timer(Timer::Members) => self.member_timer(cx),
            sim::Input::Timer(Timer::Enter) => self.enter_view(cx),
            sim::Input::Timer(Timer::Read) => self.read_again(cx),
            sim::Input::Link { peer, state } => self.line(cx, core_id(peer), state),
            sim::Input::Start => self.start_member(cx),
            sim::Input::Disk(done) => self.disk_ended(cx, done),
        }
        self.settle_member(cx);
    }

    fn size_of(msg: &Packet) -> usize {
        if let Packet::Vote(vote) = msg {
            return size_of_vote(vote);
        }
        match msg.message().map(|message| &message.body) {
            None => 24,
            Some(Body::Claims(claims)) => 40 + 32 * claims.len(),
            Some(Body::Moved(locks)) => 40 + 80 * locks.len(),
            Some(Body::Names { names, .. }) => 40 + 24 * names.len(),
            Some(_) => 100,
        }
    }
}

/// The approximate size of a vote on the wire.
fn size_of_vote(vote: &members::Vote) -> usize {
    match vote {
        members::Vote::Log(members::LogWord::Paxos { bytes, .. }) => 40 + bytes.len(),
        members::Vote::Log(members::LogWord::Truth { .. } | members::LogWord::Begin(_)) => 1_000,
        _ => 60,
    }
}
