//! One run: clients, their posted verbs, and the memory.

use core::cell::RefCell;
use core::future::Future;
use core::hash::{Hash, Hasher};
use core::pin::Pin;
use core::task::Poll;
use std::collections::{BTreeMap, VecDeque};
use std::hash::DefaultHasher;
use std::rc::Rc;

use crate::client::Client;
use crate::error::LockError;
use crate::explore::monitor::Monitor;
use crate::explore::{Fault, Scenario};
use crate::fabric::{Address, Capabilities, Fabric, Nanos, Peer, Received, Verb, VerbError};
use crate::memory::Memory;
use crate::options::{Mode, Protocol};
use crate::port::{Port, Request, SharedMemory, Ticket};
use crate::table::{LockId, Table};

const LOCK: LockId = LockId(0);

/// One step of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The next verb of this client executes.
    Verb(usize),
    /// The oldest verb of this client that has executed completes.
    Complete(usize),
    /// The next message between these two arrives.
    Deliver(usize, usize),
    /// This client's sleep ends.
    Wake(usize),
    /// Time passes until the next sleep ends.
    Time,
    /// This client stops.
    Stop(usize),
    /// The stopped client goes on.
    Thaw(usize),
}

type Work = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

/// The observations of a client. Polls that saw the same again and again count up to three, so that waiting is
/// finite.
#[derive(Default)]
struct Seen {
    history: u64,
    polls: BTreeMap<u64, (u64, u8)>,
}

impl Seen {
    fn add(&mut self, event: impl Hash) {
        let mut hasher = DefaultHasher::new();
        (self.history, &self.polls).hash(&mut hasher);
        event.hash(&mut hasher);
        self.history = hasher.finish();
        self.polls.clear();
    }

    fn poll(&mut self, at: Address, value: u64) {
        let (last, times) = self.polls.entry(at.offset).or_insert((value, 0));
        if *last != value {
            (*last, *times) = (value, 0);
        }
        *times = (*times + 1).min(3);
    }
}

struct Actor {
    port: Port,
    work: Option<Work>,
    /// Serves for ever.
    is_home: bool,
    /// The client before it that does the same, and begins first.
    twin: Option<usize>,
    clock: Nanos,
    stopped: Option<Nanos>,
    verbs: VecDeque<(Ticket, Address, Verb)>,
    executed: VecDeque<Executed>,
    seen: Seen,
}

/// A verb whose client does not know its result yet.
struct Executed {
    ticket: Ticket,
    at: Address,
    verb: Verb,
    result: Result<u64, VerbError>,
}

pub(super) struct World {
    memory: SharedMemory,
    pub monitor: Rc<RefCell<Monitor>>,
    actors: Vec<Actor>,
    /// Messages by sender and receiver.
    messages: BTreeMap<(usize, usize), VecDeque<(Ticket, Received)>>,
    table: Table,
    now: Nanos,
    late: bool,
    fault: Fault,
    lease: Nanos,
    protocol: Protocol,
    has_stopped: bool,
}

/// Peer 0 is nobody, so actor 0, the home, is peer 1.
fn peer(actor: usize) -> Peer {
    Peer(actor as u16 + 1)
}

impl World {
    pub fn new(scenario: &Scenario) -> World {
        let memory: SharedMemory = Rc::default();
        let table = table(&memory, scenario.word);
        // A stopped client's acquisition may be granted after a repair, beside the lock that waits for it.
        let limit = scenario.options.most_writers_before_a_reader();
        let limit = limit.filter(|_| scenario.fault == Fault::None);
        let monitor = Rc::new(RefCell::new(Monitor::new(limit)));
        let capabilities =
            Capabilities { masked: scenario.masked, clock_error: Some(scenario.lease() / 16) };
        let options = scenario.options;
        let twin = |number: usize| {
            let does = |n: usize| scenario.clients.get(n.checked_sub(1)?);
            (1..number).rev().find(|other| does(*other) == does(number))
        };
        let actor = |number: usize, work: &dyn Fn(Port) -> Work| {
            let port = Port::new(peer(number), capabilities, number as u64, memory.clone());
            let work = Some(work(port.clone()));
            let is_home = number == 0;
            let (verbs, executed, seen) = (VecDeque::new(), VecDeque::new(), Seen::default());
            let twin = twin(number);
            Actor { port, work, is_home, twin, clock: 0, stopped: None, verbs, executed, seen }
        };
        let home = |port: Port| -> Work { Box::pin(crate::serve(port, table, options)) };
        let script = Script {
            hold: scenario.hold,
            fifo: scenario.fifo,
            longest_wait: scenario.longest_wait,
        };
        let mut actors = vec![actor(0, &home)];
        for (i, modes) in scenario.clients.iter().enumerate() {
            let client = |port: Port| -> Work {
                Box::pin(run_client(
                    port,
                    table,
                    scenario.options,
                    script,
                    modes.clone(),
                    monitor.clone(),
                ))
            };
            actors.push(actor(i + 1, &client));
        }
        let (fault, lease) = (scenario.fault, scenario.lease());
        let mut world = World {
            memory,
            monitor,
            actors,
            messages: BTreeMap::new(),
            table,
            now: 0,
            late: scenario.late,
            fault,
            lease,
            protocol: options.protocol,
            has_stopped: false,
        };
        (0..world.actors.len()).for_each(|actor| world.run(actor));
        world
    }

    /// Every step that can come next.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let lively = |actor: &Actor| actor.stopped.is_none();
        let may_begin = |i: &usize| {
            let begun = |i: usize| self.actors[i].has_begun();
            begun(*i) || self.actors[*i].twin.is_none_or(begun)
        };
        let with_verbs = |i: &usize| !self.actors[*i].verbs.is_empty() && may_begin(i);
        steps.extend((0..self.actors.len()).filter(with_verbs).map(Step::Verb));
        let executed = |i: &usize| !self.actors[*i].executed.is_empty();
        steps.extend((0..self.actors.len()).filter(executed).map(Step::Complete));
        let sent = self.messages.iter().filter(|(_, queue)| !queue.is_empty());
        steps.extend(sent.map(|((from, to), _)| Step::Deliver(*from, *to)));
        let live_work = steps.iter().any(|step| match step {
            Step::Verb(i) | Step::Complete(i) => lively(&self.actors[*i]),
            Step::Deliver(from, to) => lively(&self.actors[*from]) && lively(&self.actors[*to]),
            _ => false,
        });
        let sleepers = self.actors.iter().enumerate().filter(|(_, a)| a.sleeps());
        if self.fault == Fault::None {
            steps.extend(sleepers.map(|(i, _)| Step::Wake(i)));
            return steps;
        }
        let thaws_later = self.thaw_at().is_some_and(|at| at > self.now);
        if !live_work && (sleepers.count() > 0 || thaws_later) {
            steps.push(Step::Time);
        }
        if !self.has_stopped {
            let stops = |(i, a): &(usize, &Actor)| !a.is_home && a.work.is_some() && may_begin(i);
            steps.extend(self.actors.iter().enumerate().filter(stops).map(|(i, _)| Step::Stop(i)));
        }
        if !live_work && self.thaw_at().is_some_and(|at| at <= self.now) {
            let stopped = |(_, a): &(usize, &Actor)| a.stopped.is_some();
            steps
                .extend(self.actors.iter().enumerate().filter(stopped).map(|(i, _)| Step::Thaw(i)));
        }
        steps
    }

    /// When the stopped client may go on.
    fn thaw_at(&self) -> Option<Nanos> {
        let Fault::Freeze(leases) = self.fault else { return None };
        let stopped = self.actors.iter().find_map(|actor| actor.stopped)?;
        Some(stopped + leases * self.lease)
    }

    /// Returns true if only sleeps can continue.
    pub fn only_sleeps(&self) -> bool {
        let steps = self.steps();
        !steps.is_empty() && steps.iter().all(|step| matches!(step, Step::Wake(_)))
    }

    pub fn take(&mut self, step: Step) {
        match step {
            Step::Verb(i) => {
                let Some((ticket, at, verb)) = self.actors[i].verbs.pop_front() else { return };
                let result = self.memory.borrow_mut().execute(at, verb);
                let before = result.unwrap_or_default();
                // A client with a ticket queues by adding, and all others by comparing.
                let adds = matches!(verb, Verb::FetchAndAdd(_));
                let by_ticket = matches!(self.protocol, Protocol::Dslr | Protocol::ShiftLockS);
                if adds {
                    self.monitor.borrow_mut().adds(peer(i));
                }
                if verb.is_atomic()
                    && adds == by_ticket
                    && verb.apply(before).is_some_and(|after| after != before)
                {
                    self.monitor.borrow_mut().changes(peer(i));
                }
                self.actors[i].executed.push_back(Executed { ticket, at, verb, result });
                if !self.late {
                    self.take(Step::Complete(i));
                }
            }
            Step::Complete(i) => {
                let actor = &mut self.actors[i];
                let Some(Executed { ticket, at, verb, result }) = actor.executed.pop_front() else {
                    return;
                };
                actor.port.complete(ticket, result);
                let before = result.unwrap_or_default();
                let timed = self.fault != Fault::None;
                match verb.apply(before) {
                    None if !timed => actor.seen.poll(at, before),
                    _ => actor.seen.add((self.now, result)),
                }
                self.run(i);
            }
            Step::Deliver(from, to) => {
                let Some(queue) = self.messages.get_mut(&(from, to)) else { return };
                let Some((ticket, received)) = queue.pop_front() else { return };
                self.actors[to].seen.add((self.now, received));
                self.actors[to].port.deliver(received);
                self.actors[from].seen.add((self.now, "sent"));
                self.actors[from].port.complete(ticket, Ok(0));
                self.run(to);
                self.run(from);
            }
            Step::Wake(i) => {
                self.actors[i].clock = self.actors[i].port.wake_at();
                self.run(i);
            }
            Step::Time => {
                let sleepers: Vec<usize> =
                    (0..self.actors.len()).filter(|i| self.actors[*i].sleeps()).collect();
                let wake = |i: &usize| self.actors[*i].port.wake_at();
                let next = sleepers.iter().map(wake).min().or(self.thaw_at());
                self.now = next.unwrap_or(self.now).max(self.now);
                for i in sleepers {
                    self.run(i);
                }
            }
            Step::Stop(i) => {
                self.has_stopped = true;
                self.actors[i].stopped = Some(self.now);
                self.monitor.borrow_mut().stopped = Some(peer(i));
            }
            Step::Thaw(i) => {
                self.actors[i].stopped = None;
                self.actors[i].seen.add((self.now, "thaw"));
                self.run(i);
            }
        }
    }

    /// Lets a client run until it waits, and takes its verbs.
    fn run(&mut self, i: usize) {
        let timed = self.fault != Fault::None;
        let actor = &mut self.actors[i];
        if actor.stopped.is_some() {
            return;
        }
        let Some(work) = &mut actor.work else { return };
        let now = if timed { self.now } else { actor.clock };
        if let Poll::Ready(ended) = actor.port.run(work, now) {
            actor.work = None;
            if let Err(error) = ended {
                self.monitor.borrow_mut().violate(format!("{:?} failed: {error}", peer(i)));
            }
        }
        while let Some((ticket, request)) = actor.port.take_request() {
            match request {
                Request::Verb(at, verb) => actor.verbs.push_back((ticket, at, verb)),
                Request::Send(to, message) => {
                    let received = Received { from: peer(i), message };
                    let to = usize::from(to.0).saturating_sub(1);
                    self.messages.entry((i, to)).or_default().push_back((ticket, received));
                }
            }
        }
    }

    /// The identity of a state.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (at, word) in self.memory.borrow().contents() {
            (at.offset, word).hash(&mut hasher);
        }
        for actor in &self.actors {
            (actor.seen.history, &actor.seen.polls, actor.stopped, actor.work.is_some())
                .hash(&mut hasher);
            for (_, at, verb) in &actor.verbs {
                (at.offset, verb).hash(&mut hasher);
            }
            for Executed { at, verb, result, .. } in &actor.executed {
                (at.offset, verb, result).hash(&mut hasher);
            }
        }
        for (pair, queue) in self.messages.iter().filter(|(_, queue)| !queue.is_empty()) {
            pair.hash(&mut hasher);
            queue.iter().for_each(|(_, received)| received.hash(&mut hasher));
        }
        self.monitor.borrow().state().hash(&mut hasher);
        self.now.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns true if every running client has done its work.
    pub fn is_done(&self) -> bool {
        self.actors.iter().all(|a| a.is_home || a.work.is_none() || a.stopped.is_some())
    }

    /// The defect of a state, besides the clients' reports.
    pub fn defect(&self) -> Option<String> {
        if let Some(violation) = &self.monitor.borrow().violation {
            return Some(violation.clone());
        }
        if self.fault != Fault::None {
            let stuck = self.now > 12 * self.lease && !self.is_done();
            return stuck.then(|| format!("not done after {} leases", self.now / self.lease));
        }
        let at_rest = self.actors.iter().all(|a| a.verbs.is_empty() && a.executed.is_empty())
            && self.messages.values().all(VecDeque::is_empty);
        if !self.is_done() {
            let sleeps = self.actors.iter().any(Actor::sleeps);
            return (at_rest && !sleeps).then(|| "a client waits for ever".to_owned());
        }
        let idle = self.table.is_idle(&self.memory.borrow(), self.protocol, LOCK);
        (at_rest && !idle)
            .then(|| "all have released, and the word is not that of a free lock".to_owned())
    }

    /// Where only sleeps can go on: whether they do. Lets all clients poll in turn, some times.
    pub fn goes_on(&mut self) -> bool {
        let words = |world: &World| world.memory.borrow().contents();
        let before = words(self);
        for _ in 0..5 {
            for i in 0..self.actors.len() {
                if self.actors[i].sleeps() {
                    self.take(Step::Wake(i));
                }
                while !self.actors[i].verbs.is_empty() {
                    self.take(Step::Verb(i));
                    if self.late {
                        self.take(Step::Complete(i));
                    }
                }
            }
            if words(self) != before
                || self.is_done()
                || self.messages.values().any(|queue| !queue.is_empty())
            {
                return true;
            }
        }
        false
    }
}

impl Actor {
    /// Returns true if it has begun.
    fn has_begun(&self) -> bool {
        let untouched = self.seen.history == 0 && self.seen.polls.is_empty();
        !untouched || !self.executed.is_empty() || self.stopped.is_some() || self.work.is_none()
    }

    fn sleeps(&self) -> bool {
        self.work.is_some()
            && self.stopped.is_none()
            && self.verbs.is_empty()
            && self.executed.is_empty()
            && self.port.wake_at() != Nanos::MAX
    }
}

/// A table of one lock.
fn table(memory: &SharedMemory, word: u64) -> Table {
    let slots = 64;
    let bytes = Table::bytes(1, slots).unwrap_or(0);
    let table = Memory::register(&mut memory.borrow_mut(), peer(0), bytes).ok();
    let table = table.and_then(|region| Table::new(region, 1, slots).ok());
    let table = table.expect("a table of one lock is a table");
    let _ = memory.borrow_mut().execute(table.word(LOCK, 0), Verb::Write(word));
    table
}

/// The additional work of a client, and the promises to it.
#[derive(Clone, Copy)]
struct Script {
    hold: Nanos,
    fifo: bool,
    longest_wait: Nanos,
}

async fn run_client(
    port: Port,
    table: Table,
    options: crate::Options,
    script: Script,
    modes: Vec<Mode>,
    monitor: Rc<RefCell<Monitor>>,
) -> Result<(), LockError> {
    let me = port.me();
    let mut client = Client::new(port.clone(), table, options)?;
    for mode in modes {
        let mode = if options.protocol.shares() { mode } else { Mode::Exclusive };
        monitor.borrow_mut().calls(me, mode);
        let called = port.now();
        let guard = client.lock(LOCK, mode).await?;
        let now = port.now();
        {
            let mut monitor = monitor.borrow_mut();
            if now - called > script.longest_wait && monitor.stopped != Some(me) {
                monitor.violate(format!("{me:?} has waited {}", now - called));
            }
            monitor.enters(me, mode, now, guard.valid_until(), guard.token(), script.fifo);
        }
        // Others run while it holds.
        port.read(table.slot(0)).await?;
        port.sleep_until(now + script.hold).await;
        monitor.borrow_mut().leaves(me);
        client.unlock(guard).await?;
    }
    Ok(())
}
