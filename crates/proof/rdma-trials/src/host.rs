//! The simulated fabric: node 0 is the home, all others are clients, each a task over a port.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use lockify_onesided::port::{Port, Request, SharedMemory, Ticket};
use lockify_onesided::{
    Address, Capabilities, Generation, Message, Peer, Received, Verb, VerbError,
};
use lockify_sim::{
    Config, Context, Delay, Input, LinkProfile, LinkState, Machine, Nanos, NetworkConfig, NodeId,
    Sim, TimerId,
};
use rand::RngExt as _;

use crate::profile::Profile;

/// The task of a node.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A packet on the network.
#[derive(Clone, Debug)]
pub enum Packet {
    /// A verb to the home.
    Verb(Ticket, Address, Verb),
    /// Its completion.
    Done(Ticket, Result<u64, VerbError>),
    /// A message.
    Letter(Message),
}

/// A verb that a node has posted.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    from: NodeId,
    ticket: Ticket,
    at: Address,
    verb: Verb,
}

/// An alarm that a node has set for itself.
#[derive(Debug)]
pub enum Alarm {
    /// The task's own time has come.
    Wake,
    /// The home's NIC starts this verb.
    Start(Posted),
    /// A message is handled.
    Handle(Peer, Message),
    /// The next message in the send queue goes out.
    Send,
}

/// Delays of verbs by faults. Each verb of a client is delayed with a probability, and so are the verbs behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stalls {
    /// The probability that a verb is delayed.
    pub share: f64,
    /// The longest.
    pub longest: Nanos,
}

/// The setting that all nodes of a run share.
#[derive(Clone)]
pub struct Setting {
    /// The costs of verbs and messages.
    pub profile: Rc<Profile>,
    /// The home's memory.
    pub memory: SharedMemory,
    /// Verbs that are held up.
    pub stalls: Option<Stalls>,
    /// The capabilities of the fabric.
    pub capabilities: Capabilities,
    /// True if the home notes the fetch-and-adds of clients.
    pub notes_adds: bool,
}

/// The home's NIC.
#[derive(Default)]
struct Nic {
    atomics_free: Nanos,
    accesses_free: Nanos,
    addresses: HashMap<u64, Nanos>,
    /// By client: when the verbs before have started.
    queues: HashMap<u32, Nanos>,
    cpu_free: Nanos,
}

impl Nic {
    /// When this verb starts.
    fn admit(&mut self, profile: &Profile, now: Nanos, posted: &Posted, stall: Nanos) -> Nanos {
        let Posted { from, at, verb, .. } = *posted;
        let queue = self.queues.entry(from.0).or_default();
        let mut start = now.max(*queue).saturating_add(stall);
        if verb.is_atomic() {
            let address = self.addresses.entry(at.offset).or_default();
            start = start.max(self.atomics_free).max(*address);
            // A fault that delays one client delays no other.
            if stall == 0 {
                self.atomics_free = start + profile.atomic_gap;
                *address = start + profile.same_address;
            }
        } else if stall == 0 {
            start = start.max(self.accesses_free);
            self.accesses_free = start + profile.access_gap;
        }
        *self.queues.entry(from.0).or_default() = start;
        start
    }
}

/// A node of the fabric.
pub struct Node {
    setting: Setting,
    port: Port,
    task: Option<Task>,
    nic: Option<Nic>,
    alarm: Option<(Nanos, TimerId)>,
    /// Verbs under way: lost if the connection breaks.
    posted: Vec<(Ticket, Peer)>,
    /// Unreachable homes: verbs to them fail at once.
    cut_off: HashSet<Peer>,
    outgoing: VecDeque<(NodeId, Message)>,
    send_free: Nanos,
    notes: Notes,
}

/// The reports of a node's task to the host.
pub type Notes = Rc<RefCell<Vec<Note>>>;

/// A step of a client, for the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Which lock.
    pub lock: u64,
    /// Which of the client's acquisitions, from 1.
    pub hold: u64,
    /// The step.
    pub step: Step,
}

/// A step of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Called for it.
    Call(lockify_onesided::Mode),
    /// Got it.
    Grant {
        /// When the lease ends.
        until: Nanos,
        /// The fencing token.
        token: Option<u64>,
        /// Of the lock.
        generation: Generation,
    },
    /// Called for its release.
    Release,
    /// A lock was released.
    Released,
    /// A verb failed; the client has given up.
    Failed(String),
    /// Has done all it had to do.
    Done,
    /// By the home: a fetch-and-add of this client was executed, of whichever lock it is about.
    Added(NodeId),
}

impl Node {
    fn run(&mut self, cx: &mut Context<'_, Node>) {
        let now = cx.now();
        let done =
            self.task.as_mut().is_some_and(|task| self.port.run(task, now) == Poll::Ready(()));
        if done {
            self.task = None;
        }
        for note in self.notes.borrow_mut().drain(..) {
            cx.note(note);
        }
        let mut again = false;
        while let Some((ticket, request)) = self.port.take_request() {
            match request {
                Request::Verb(at, verb) if at.home == peer(cx.id()) => {
                    self.admit(Posted { from: cx.id(), ticket, at, verb }, cx)
                }
                Request::Verb(at, _) if self.cut_off.contains(&at.home) => {
                    self.port.complete(ticket, Err(VerbError::Unknown(at.home)));
                    again = true;
                }
                Request::Verb(at, verb) => {
                    self.posted.push((ticket, at.home));
                    cx.send(node(at.home), Packet::Verb(ticket, at, verb));
                }
                Request::Send(to, message) => {
                    // Sends are not waited for one by one: whether they arrive, the connection will tell.
                    self.port.complete(ticket, Ok(0));
                    again = true;
                    self.outgoing.push_back((node(to), message));
                    self.send_next(cx);
                }
            }
        }
        self.set_alarm(cx);
        // A verb that is complete already wakes nobody.
        if again {
            self.run(cx);
        }
    }

    fn set_alarm(&mut self, cx: &mut Context<'_, Node>) {
        let wanted = self.port.wake_at();
        if self.alarm.is_some_and(|(at, _)| at == wanted) {
            return;
        }
        if let Some((_, timer)) = self.alarm.take() {
            cx.cancel_timer(timer);
        }
        if wanted != Nanos::MAX && self.task.is_some() {
            self.alarm = Some((wanted, cx.set_timer_at(wanted, Alarm::Wake)));
        }
    }

    /// One message after the other leaves.
    fn send_next(&mut self, cx: &mut Context<'_, Node>) {
        // The gap between two messages of a NIC is the same on every node. At the home, the CPU may take longer.
        let cpu = if self.nic.is_some() { self.setting.profile.home_message } else { 0 };
        let gap = self.setting.profile.send_gap.max(cpu);
        let now = cx.now();
        while let Some((to, message)) = self.outgoing.front().copied() {
            if now < self.send_free {
                cx.set_timer_at(self.send_free, Alarm::Send);
                return;
            }
            self.outgoing.pop_front();
            self.send_free = now + gap;
            cx.send(to, Packet::Letter(message));
        }
    }

    fn admit(&mut self, posted: Posted, cx: &mut Context<'_, Node>) {
        let Some(nic) = &mut self.nic else { return };
        let stall = match self.setting.stalls {
            Some(stalls) if posted.from != cx.id() && cx.random().random_bool(stalls.share) => {
                cx.random().random_range(0..=stalls.longest)
            }
            _ => 0,
        };
        let start = nic.admit(&self.setting.profile, cx.now(), &posted, stall);
        if start <= cx.now() {
            self.execute(posted, cx);
        } else {
            cx.set_timer_at(start, Alarm::Start(posted));
        }
    }

    fn execute(&mut self, posted: Posted, cx: &mut Context<'_, Node>) {
        let Posted { from, ticket, at, verb } = posted;
        let result = self.setting.memory.borrow_mut().execute(at, verb);
        cx.trace(|| format!("{verb:?} of {from} at {:#x}: {result:x?}", at.offset));
        if self.setting.notes_adds && matches!(verb, Verb::FetchAndAdd(_)) {
            cx.note(Note { lock: 0, hold: 0, step: Step::Added(from) });
        }
        if from == cx.id() {
            self.port.complete(ticket, result);
            self.run(cx);
        } else {
            cx.send(from, Packet::Done(ticket, result));
        }
    }

    fn arrive(&mut self, from: NodeId, message: Message, cx: &mut Context<'_, Node>) {
        let profile = &self.setting.profile;
        // The lanes to and from the home have the latency of verbs.
        let mut at = cx.now();
        if self.nic.is_some() || from == NodeId(0) {
            at += profile.home_letter;
        }
        if let Some(nic) = self.nic.as_mut() {
            at = at.max(nic.cpu_free) + profile.home_message;
            nic.cpu_free = at;
        }
        if at > cx.now() {
            cx.set_timer_at(at, Alarm::Handle(peer(from), message));
            return;
        }
        self.port.deliver(Received { from: peer(from), message });
        self.run(cx);
    }
}

impl Machine for Node {
    type Msg = Packet;
    type Timer = Alarm;
    type Note = Note;

    fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
        match input {
            Input::Message { from, msg: Packet::Verb(ticket, at, verb) } => {
                self.admit(Posted { from, ticket, at, verb }, cx)
            }
            Input::Message { msg: Packet::Done(ticket, result), .. } => {
                self.posted.retain(|(other, _)| *other != ticket);
                self.port.complete(ticket, result);
                self.run(cx);
            }
            Input::Message { from, msg: Packet::Letter(message) } => self.arrive(from, message, cx),
            Input::Timer(Alarm::Start(posted)) => self.execute(posted, cx),
            Input::Timer(Alarm::Handle(from, message)) => {
                self.port.deliver(Received { from, message });
                self.run(cx);
            }
            Input::Timer(Alarm::Send) => self.send_next(cx),
            Input::Timer(Alarm::Wake) => {
                self.alarm = None;
                self.run(cx);
            }
            Input::Link { peer: other, state: LinkState::Down } => {
                let other = peer(other);
                self.cut_off.insert(other);
                let (lost, kept) = self.posted.drain(..).partition(|(_, home)| *home == other);
                self.posted = kept;
                let lost: Vec<(Ticket, Peer)> = lost;
                for (ticket, home) in lost {
                    self.port.complete(ticket, Err(VerbError::Unknown(home)));
                }
                self.run(cx);
            }
            Input::Link { peer: other, state: LinkState::Up { .. } } => {
                self.cut_off.remove(&peer(other));
            }
            Input::Start => self.run(cx),
            Input::Disk(_) => {}
        }
    }
}

/// Peer 0 is nobody.
pub fn peer(node: NodeId) -> Peer {
    Peer(u16::try_from(node.0 + 1).unwrap_or(u16::MAX))
}

fn node(peer: Peer) -> NodeId {
    NodeId(u32::from(peer.0).saturating_sub(1))
}

/// Makes a node's task from its port and where it notes.
pub type MakeTask = Box<dyn FnMut(NodeId, Port, Notes) -> Task>;

/// A fabric with a home and so many clients, not started yet.
pub fn fabric(
    seed: u64,
    setting: Setting,
    clients: usize,
    trace_lines: usize,
    mut make: MakeTask,
) -> Sim<Node> {
    let lane = |latency: Delay| LinkProfile { latency, bandwidth: None };
    let profile = setting.profile.clone();
    let network = NetworkConfig { link: lane(profile.message.clone()), ..NetworkConfig::default() };
    let config = Config { network, trace_lines, ..Config::default() };
    let mut sim = Sim::new(seed, config, move |boot| {
        let seed = seed ^ u64::from(boot.node.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let port = Port::new(peer(boot.node), setting.capabilities, seed, setting.memory.clone());
        let notes = Notes::default();
        Node {
            setting: setting.clone(),
            task: Some(make(boot.node, port.clone(), notes.clone())),
            port,
            nic: (boot.node == NodeId(0)).then(Nic::default),
            alarm: None,
            posted: Vec::new(),
            cut_off: HashSet::new(),
            outgoing: VecDeque::new(),
            send_free: 0,
            notes,
        }
    });
    sim.join_many(clients + 1);
    for client in (1..=clients as u32).map(NodeId) {
        sim.set_link(client, NodeId(0), lane(profile.there.clone()));
        sim.set_link(NodeId(0), client, lane(profile.back.clone()));
    }
    sim
}
