//! The states of the model and the steps between them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};

use lockify_core::message::{Answer, Body, Message};
use lockify_core::{
    ClientId, Config, ConvertArgs, Input, LockArgs, LockFlags, LockId, Lockspace, LostReason,
    Member, Mode, Name, NodeId, Output, Time, UnlockArgs, UnlockFlags, View,
};
use xxhash_rust::xxh3::Xxh3;

use super::monitor::{Monitor, compatible};
use crate::quiescence;
use crate::transport::may_be_datagram;

/// A step of a scripted client. Slots number a client's locks.
#[derive(Clone, Copy, Debug)]
pub enum ClientStep {
    /// A new lock.
    Lock(usize, Name, Mode, LockFlags),
    /// A conversion, when nothing is outstanding for the lock.
    Convert(usize, Mode, LockFlags),
    /// An unlock, when nothing is outstanding for the lock.
    Unlock(usize, UnlockFlags),
    /// Go on when the lock is granted and nothing is outstanding.
    Await(usize),
    /// The client's process ends.
    Exit,
}

/// How far the search goes, besides the scripts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Claim messages that may get lost.
    pub drops: u8,
    /// Claim messages that may come twice.
    pub duplicates: u8,
    /// Times that a timer may expire while messages are on the way.
    pub ticks: u8,
    /// Nodes that may crash.
    pub crashes: u8,
    /// Members that the others may leave out while they run: their connections are cut, and they act until their
    /// lease ends.
    pub exclusions: u8,
    /// True if an excluded member is taken for dead at once, before its lease has ended: a defect.
    pub early: bool,
    /// True if the node outside may join.
    pub join: bool,
    /// True if a conflict is a violation: every lock in the way is released by itself.
    pub no_conflict: bool,
    /// Steps of a path.
    pub depth: usize,
    /// States; beyond, the search stops and says so.
    pub states: usize,
}

/// A possible next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A node's client takes its next step.
    Client(usize),
    /// The oldest message of a connection arrives.
    Deliver(usize, usize),
    /// A datagram arrives, whichever.
    Datagram(usize),
    /// A datagram is lost.
    Drop(usize),
    /// A datagram arrives and a copy stays on the way.
    Duplicate(usize),
    /// A node's timer expires.
    Tick(usize),
    /// A node crashes.
    Crash(usize),
    /// A node is cut off, and the others begin to part from it.
    Exclude(usize),
    /// The lease of a node that was cut off ends: it halts, and the others go on.
    LeaseEnds(usize),
    /// The node that is not in yet joins.
    Join,
    /// A node gets its next view.
    View(usize),
}

#[derive(Clone)]
struct Node {
    space: Lockspace,
    monitor: Monitor,
    slots: BTreeMap<usize, LockId>,
    position: usize,
    views: VecDeque<View>,
    /// Calls that the lockspace refused because the node no longer takes any.
    gone: bool,
}

/// A state of the whole cluster.
#[derive(Clone)]
pub struct State {
    config: Config,
    scripts: Vec<Vec<ClientStep>>,
    nodes: Vec<Option<Node>>,
    crashed: Vec<bool>,
    excluded: Vec<bool>,
    connections: BTreeMap<(usize, usize), VecDeque<Message>>,
    datagrams: Vec<(usize, usize, Message)>,
    bounds: Bounds,
    now: Time,
    seq: u64,
}

const CLIENT: ClientId = ClientId(1);

impl State {
    /// A cluster in which all nodes but a joining one are members and run.
    ///
    /// # Errors
    /// The violation on the way there.
    pub fn new(
        config: Config,
        scripts: Vec<Vec<ClientStep>>,
        bounds: Bounds,
    ) -> Result<State, String> {
        let count = scripts.len();
        let mut state = State {
            config,
            nodes: vec![None; count],
            crashed: vec![false; count],
            excluded: vec![false; count],
            scripts,
            connections: BTreeMap::new(),
            datagrams: Vec::new(),
            bounds,
            now: 1,
            seq: 0,
        };
        let first = if bounds.join { count - 1 } else { count };
        for node in 0..first {
            state.start(node);
        }
        state.announce();
        state.calm()?;
        Ok(state)
    }

    fn start(&mut self, node: usize) {
        let config = Config { node: NodeId(node as u32), incarnation: 1, ..self.config.clone() };
        self.nodes[node] = Some(Node {
            space: Lockspace::new(config),
            monitor: Monitor::default(),
            slots: BTreeMap::new(),
            position: 0,
            views: VecDeque::new(),
            gone: false,
        });
    }

    fn announce(&mut self) {
        self.seq += 1;
        let member = |node: usize| Member { node: NodeId(node as u32), incarnation: 1, weight: 1 };
        let inside = |n: &usize| self.nodes[*n].is_some() && !self.excluded[*n];
        let inside: Vec<usize> = (0..self.nodes.len()).filter(inside).collect();
        let view = View { seq: self.seq, members: inside.iter().copied().map(member).collect() };
        for node in inside {
            if let Some(node) = &mut self.nodes[node] {
                node.views.push_back(view.clone());
            }
        }
    }

    /// Delivers everything, without the scripts, until nothing is on the way.
    fn calm(&mut self) -> Result<(), String> {
        while let Some(action) = self.messages().first().copied() {
            self.apply(action)?;
        }
        Ok(())
    }

    /// Views and messages that can arrive now.
    fn messages(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if node.as_ref().is_some_and(|node| !node.views.is_empty()) {
                actions.push(Action::View(i));
            }
        }
        let waiting = self.connections.iter().filter(|(_, queue)| !queue.is_empty());
        actions.extend(waiting.map(|((from, to), _)| Action::Deliver(*from, *to)));
        actions.extend((0..self.datagrams.len()).map(Action::Datagram));
        actions
    }

    /// Everything that can happen next.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions: Vec<_> =
            (0..self.nodes.len()).filter(|n| self.client_may_go(*n)).map(Action::Client).collect();
        actions.extend(self.messages());
        if self.bounds.drops > 0 {
            // A REMOVE is not lost: one that is is repeated only when somebody misses it.
            let lost = |i: &usize| !matches!(self.datagrams[*i].2.body, Body::Remove { .. });
            actions.extend((0..self.datagrams.len()).filter(lost).map(Action::Drop));
        }
        if self.bounds.duplicates > 0 {
            actions.extend((0..self.datagrams.len()).map(Action::Duplicate));
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            if self.bounds.ticks > 0 && node.space.next_timer().is_some() {
                actions.push(Action::Tick(i));
            }
            let several = self.nodes.iter().flatten().count() > 1;
            if self.bounds.crashes > 0 && several {
                actions.push(Action::Crash(i));
            }
            if self.excluded[i] {
                actions.push(Action::LeaseEnds(i));
            } else if self.bounds.exclusions > 0 && several {
                actions.push(Action::Exclude(i));
            }
        }
        if self.bounds.join {
            actions.push(Action::Join);
        }
        actions
    }

    fn client_may_go(&self, node: usize) -> bool {
        let Some(state) = &self.nodes[node] else { return false };
        let Some(step) = self.scripts[node].get(state.position) else { return false };
        if state.gone || state.space.view().seq == 0 {
            return false;
        }
        let held = |slot: &usize| state.slots.get(slot).and_then(|id| state.monitor.locks.get(id));
        match step {
            ClientStep::Lock(..) | ClientStep::Exit => true,
            // A lock that is gone (lost, or refused) has nothing to wait for.
            ClientStep::Convert(slot, ..)
            | ClientStep::Unlock(slot, _)
            | ClientStep::Await(slot) => held(slot).is_none_or(|held| !held.busy),
        }
    }

    /// Takes a step.
    ///
    /// # Errors
    /// The invariant that is violated by it.
    pub fn apply(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Client(node) => self.client(node)?,
            Action::Deliver(from, to) => {
                let queue = self.connections.entry((from, to)).or_default();
                if let Some(message) = queue.pop_front() {
                    self.receive(from, to, message)?;
                }
            }
            Action::Datagram(index) => {
                let (from, to, message) = self.datagrams.remove(index);
                self.receive(from, to, message)?;
            }
            Action::Drop(index) => {
                self.bounds.drops -= 1;
                self.datagrams.remove(index);
            }
            Action::Duplicate(index) => {
                self.bounds.duplicates -= 1;
                let (from, to, message) = self.datagrams[index].clone();
                self.receive(from, to, message)?;
            }
            Action::Tick(node) => {
                self.bounds.ticks -= 1;
                self.tick(node)?;
            }
            Action::Crash(node) => {
                self.bounds.crashes -= 1;
                self.end(node);
                self.announce();
            }
            Action::Exclude(node) => self.exclude(node),
            Action::LeaseEnds(node) => self.lease_ends(node)?,
            Action::Join => {
                self.bounds.join = false;
                self.start(self.nodes.len() - 1);
                self.announce();
            }
            Action::View(node) => self.view(node)?,
        }
        self.check()
    }

    /// A node does nothing any more.
    fn end(&mut self, node: usize) {
        self.nodes[node] = None;
        self.crashed[node] = true;
        for (_, queue) in self.connections.iter_mut().filter(|((_, to), _)| *to == node) {
            queue.clear();
        }
        self.datagrams.retain(|(_, to, _)| *to != node);
    }

    /// A node is cut off: nothing reaches it or comes from it, and its client goes on.
    fn exclude(&mut self, node: usize) {
        self.bounds.exclusions -= 1;
        self.excluded[node] = true;
        self.connections.retain(|(from, to), _| *from != node && *to != node);
        self.datagrams.retain(|(from, to, _)| *from != node && *to != node);
        if self.bounds.early {
            self.announce();
        }
    }

    /// An excluded node halts; only then do the others go on without it.
    fn lease_ends(&mut self, node: usize) -> Result<(), String> {
        self.feed(node, Input::Halt)?;
        self.excluded[node] = false;
        self.end(node);
        if !self.bounds.early {
            self.announce();
        }
        Ok(())
    }

    fn view(&mut self, node: usize) -> Result<(), String> {
        let Some(view) = self.nodes[node].as_mut().and_then(|n| n.views.pop_front()) else {
            return Ok(());
        };
        // The service has fenced the departed node: its messages do not arrive any more.
        let gone: Vec<_> = (0..self.nodes.len()).filter(|n| self.crashed[*n]).collect();
        for from in gone.into_iter().filter(|n| view.member(NodeId(*n as u32)).is_none()) {
            self.connections.remove(&(from, node));
            self.datagrams.retain(|(f, to, _)| (*f, *to) != (from, node));
        }
        self.feed(node, Input::View(view)).map(|_| ())
    }

    fn tick(&mut self, node: usize) -> Result<(), String> {
        let Some(at) = self.nodes[node].as_ref().and_then(|n| n.space.next_timer()) else {
            return Ok(());
        };
        self.now = self.now.max(at);
        self.feed(node, Input::Tick).map(|_| ())
    }

    fn receive(&mut self, from: usize, to: usize, message: Message) -> Result<(), String> {
        self.feed(to, Input::Receive { from: NodeId(from as u32), message }).map(|_| ())
    }

    fn client(&mut self, index: usize) -> Result<(), String> {
        let Some(node) = &mut self.nodes[index] else { return Ok(()) };
        let step = self.scripts[index][node.position];
        node.position += 1;
        let slot_lock =
            |slot| node.slots.get(&slot).copied().filter(|id| node.monitor.locks.contains_key(id));
        match step {
            ClientStep::Await(_) => Ok(()),
            ClientStep::Exit => self.feed(index, Input::ClientGone(CLIENT)).map(|_| ()),
            ClientStep::Lock(slot, name, mode, flags) => {
                let args = LockArgs { flags, bast: true, ..LockArgs::new(name, mode) };
                if let Some(id) = self.feed(index, Input::Lock { client: CLIENT, args })?
                    && let Some(node) = &mut self.nodes[index]
                {
                    node.slots.insert(slot, id);
                }
                Ok(())
            }
            ClientStep::Convert(slot, mode, flags) => {
                let Some(lock) = slot_lock(slot) else { return Ok(()) };
                let args = ConvertArgs {
                    client: CLIENT,
                    lock,
                    tag: 0,
                    mode,
                    flags,
                    lvb: None,
                    timeout: None,
                };
                self.feed(index, Input::Convert(args)).map(|_| ())
            }
            ClientStep::Unlock(slot, flags) => match slot_lock(slot) {
                Some(lock) => self.unlock(index, lock, flags),
                None => Ok(()),
            },
        }
    }

    fn unlock(&mut self, node: usize, lock: LockId, flags: UnlockFlags) -> Result<(), String> {
        let args = UnlockArgs { client: CLIENT, lock, tag: 0, flags, lvb: None };
        self.feed(node, Input::Unlock(args)).map(|_| ())
    }

    /// Feeds an input to a node and executes its outputs.
    fn feed(&mut self, index: usize, input: Input) -> Result<Option<LockId>, String> {
        let now = self.now;
        let Some(node) = &mut self.nodes[index] else { return Ok(None) };
        let from_client =
            matches!(input, Input::Lock { .. } | Input::Convert(_) | Input::Unlock(_));
        let result = node.space.handle(now, input.clone());
        let id = match result {
            Ok(id) => id,
            Err(lockify_core::Error::Lost) => None,
            Err(lockify_core::Error::NotMember | lockify_core::Error::Leaving) => {
                node.gone |= from_client;
                None
            }
            Err(error) if from_client => {
                return Err(format!("node {index}: {input:?} was refused: {error}"));
            }
            Err(_) => None,
        };
        if result.is_ok() {
            node.monitor.called(&input, id);
        }
        self.outputs(index)?;
        Ok(id)
    }

    fn outputs(&mut self, index: usize) -> Result<(), String> {
        let mut lost = Vec::new();
        loop {
            let Some(node) = &mut self.nodes[index] else { return Ok(()) };
            let Some(output) = node.space.poll() else {
                if !node.space.has_work(&[]) {
                    break;
                }
                let _ = node.space.handle(self.now, Input::Work { full: Vec::new() });
                continue;
            };
            node.monitor.said(&output).map_err(|error| format!("node {index}: {error}"))?;
            match output {
                Output::Send { to, message } => self.post(index, to, *message),
                Output::Lost { lock, reason: LostReason::Conflict, .. } => lost.push(lock),
                Output::Withdraw(reason) => {
                    return Err(format!("node {index} must withdraw: {reason:?}"));
                }
                _ => {}
            }
        }
        if self.bounds.no_conflict && !lost.is_empty() {
            return Err(format!(
                "node {index}: a conflict, though all that was in the way is being freed"
            ));
        }
        // A client that loses a lock to a conflict abandons the creation at once.
        for lock in lost {
            let node = self.nodes[index].as_ref();
            if node.is_some_and(|node| node.monitor.locks.contains_key(&lock)) {
                self.unlock(index, lock, UnlockFlags::empty())?;
            }
        }
        Ok(())
    }

    fn post(&mut self, from: usize, to: NodeId, message: Message) {
        let to = to.0 as usize;
        if self.nodes.get(to).is_none_or(Option::is_none)
            || self.excluded[from]
            || self.excluded[to]
        {
            return;
        }
        if self.config.claim_resend.is_some() && may_be_datagram(&message.body) {
            self.datagrams.push((from, to, message));
        } else {
            self.connections.entry((from, to)).or_default().push_back(message);
        }
    }

    /// To whom a node's messages are on the way.
    pub fn receivers(&self, from: usize) -> Vec<usize> {
        let waiting =
            self.connections.iter().filter(|((f, _), queue)| *f == from && !queue.is_empty());
        waiting.map(|((_, to), _)| *to).collect()
    }

    fn spaces(&self) -> Vec<&Lockspace> {
        self.nodes.iter().flatten().map(|node| &node.space).collect()
    }

    /// INV-1 and INV-2, and the structure of every node.
    fn check(&self) -> Result<(), String> {
        let held = self.nodes.iter().flatten().flat_map(|node| node.monitor.locks.values());
        compatible(held)?;
        for node in self.nodes.iter().flatten() {
            if let Some(defect) = node.space.defects().first() {
                return Err(format!(
                    "node {}: {}: {}",
                    node.space.config().node,
                    defect.name,
                    defect.what
                ));
            }
        }
        let spaces = self.spaces();
        let together =
            spaces.iter().all(|space| space.is_running() && space.view().seq == self.seq);
        if together { check_masters(&spaces) } else { Ok(()) }
    }

    /// Returns true if only lost messages, timers or failures could still happen.
    pub fn is_terminal(&self) -> bool {
        self.messages().is_empty() && (0..self.nodes.len()).all(|node| !self.client_may_go(node))
    }

    /// INV-3 and progress. Suppose that there are no more faults, and timers expire. Then every script ends, every
    /// claim is settled, and all nodes report the same state.
    ///
    /// # Errors
    /// The violation.
    pub fn finish(mut self) -> Result<(), String> {
        self.bounds = Bounds {
            no_conflict: self.bounds.no_conflict,
            early: self.bounds.early,
            ..Bounds::default()
        };
        for node in 0..self.nodes.len() {
            if self.excluded[node] {
                self.apply(Action::LeaseEnds(node))?;
            }
        }
        for _ in 0..400 {
            loop {
                let client =
                    (0..self.nodes.len()).find(|n| self.client_may_go(*n)).map(Action::Client);
                match self.messages().first().copied().or(client) {
                    Some(action) => self.apply(action)?,
                    None => break,
                }
            }
            if self.is_done() {
                quiescence::check_spaces(&self.spaces())?;
                if self.nodes.iter().flatten().all(|node| node.space.next_timer().is_none()) {
                    return self.nothing_left();
                }
            }
            let next = |n: &usize| self.nodes[*n].as_ref().and_then(|node| node.space.next_timer());
            let Some(node) =
                (0..self.nodes.len()).filter(|n| next(n).is_some()).min_by_key(|n| next(n))
            else {
                return if self.is_done() { self.nothing_left() } else { Err(self.no_progress()) };
            };
            self.tick(node)?;
            self.check()?;
        }
        Err(self.no_progress())
    }

    fn no_progress(&self) -> String {
        format!("INV-3: no progress: {}", self.stuck())
    }

    /// Scripts release everything, and idle resources have been dropped: no record may stay behind.
    fn nothing_left(&self) -> Result<(), String> {
        for space in self.spaces() {
            if let Some((name, master)) = space.directory().first() {
                let keeper = space.config().node;
                return Err(format!(
                    "the directory {keeper} still says that {master} masters {name}"
                ));
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.nodes.iter().enumerate().all(|(i, node)| {
            node.as_ref().is_none_or(|node| {
                let at_end = node.gone || node.position == self.scripts[i].len();
                let idle = node.monitor.locks.values().all(|held| !held.busy);
                at_end && idle && node.space.unsettled_claims() == 0 && node.space.is_running()
            })
        })
    }

    fn stuck(&self) -> String {
        let mut text = String::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(node) = node {
                let running = if node.space.is_running() { "runs" } else { "recovers" };
                text += &format!(
                    "node {i} {running}, step {} of {}, {} claims unsettled, locks {:?}; ",
                    node.position,
                    self.scripts[i].len(),
                    node.space.unsettled_claims(),
                    node.monitor.locks.values().collect::<Vec<_>>()
                );
            }
        }
        text
    }

    /// Identifies the state.
    pub fn fingerprint(&self) -> u128 {
        let mut hasher = Xxh3::new();
        for node in &self.nodes {
            node.is_some().hash(&mut hasher);
            if let Some(node) = node {
                node.space.fingerprint(&mut hasher);
                node.monitor.fingerprint(&mut hasher);
                (node.position, node.gone, node.views.len()).hash(&mut hasher);
            }
        }
        for ((from, to), queue) in self.connections.iter().filter(|(_, queue)| !queue.is_empty()) {
            (from, to, queue.len()).hash(&mut hasher);
            queue.iter().for_each(|message| hash_message(message, &mut hasher));
        }
        // The order of datagrams means nothing.
        let mut sum: u128 = 0;
        for (from, to, message) in &self.datagrams {
            let mut one = Xxh3::new();
            (from, to).hash(&mut one);
            hash_message(message, &mut one);
            sum = sum.wrapping_add(one.digest128());
        }
        sum.hash(&mut hasher);
        let b = &self.bounds;
        (b.drops, b.duplicates, b.ticks, b.crashes, b.join, &self.crashed).hash(&mut hasher);
        (b.exclusions, &self.excluded).hash(&mut hasher);
        hasher.digest128()
    }

    /// The meaning of an action in this state, for a counterexample.
    pub fn describe(&self, action: Action) -> String {
        match action {
            Action::Client(node) => {
                let position = self.nodes[node].as_ref().map_or(0, |n| n.position);
                format!("client of {node}: {:?}", self.scripts[node].get(position))
            }
            Action::Deliver(from, to) => {
                let message = self.connections.get(&(from, to)).and_then(VecDeque::front);
                format!("{from} -> {to}: {}", Shown(message))
            }
            Action::Datagram(index) => self.describe_datagram("arrives", index),
            Action::Drop(index) => self.describe_datagram("is lost", index),
            Action::Duplicate(index) => self.describe_datagram("arrives and stays", index),
            Action::Tick(node) => format!("timer of {node}"),
            Action::Crash(node) => format!("node {node} crashes"),
            Action::Exclude(node) => format!("node {node} is cut off"),
            Action::LeaseEnds(node) => format!("the lease of node {node} ends"),
            Action::Join => "the last node joins".to_owned(),
            Action::View(node) => format!("node {node} gets its next view"),
        }
    }

    fn describe_datagram(&self, fate: &str, index: usize) -> String {
        let (from, to, message) = &self.datagrams[index];
        format!("{from} -> {to} {fate}: {}", Shown(Some(message)))
    }
}

struct Shown<'a>(Option<&'a Message>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(message) => write!(f, "{:?} (view {})", message.body, message.view),
            None => write!(f, "nothing"),
        }
    }
}

/// INV-1: at most one master among live nodes, and its directory knows it, except while a claim is pending.
fn check_masters(spaces: &[&Lockspace]) -> Result<(), String> {
    let mut masters: BTreeMap<Name, NodeId> = BTreeMap::new();
    for space in spaces {
        let node = space.config().node;
        for resource in space.resources() {
            if resource.master != Some(node) || resource.claim_pending {
                continue;
            }
            if let Some(other) = masters.insert(resource.name, node) {
                return Err(format!(
                    "INV-1: {} has two masters, {other} and {node}",
                    resource.name
                ));
            }
        }
    }
    for space in spaces {
        for (name, recorded) in space.directory() {
            if let Some(master) = masters.get(&name)
                && *master != recorded
            {
                let keeper = space.config().node;
                return Err(format!(
                    "INV-1: the directory {keeper} says that {recorded} masters {name}: {master} does"
                ));
            }
        }
    }
    Ok(())
}

/// Clocks, and values drawn from them, only order: two states with no other difference are equal.
fn hash_message(message: &Message, hasher: &mut impl Hasher) {
    message.view.hash(hasher);
    let mut body = message.body.clone();
    match &mut body {
        Body::Grant { granted, .. } => granted.token = 0,
        Body::Reply { answer: Answer::Granted(granted), .. } => granted.token = 0,
        _ => {}
    }
    body.hash(hasher);
}
