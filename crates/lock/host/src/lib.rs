//! Serving clients from an engine: the same for a daemon's sessions and for an embedded node.
#![forbid(unsafe_code)]

mod access;
mod departed;
mod external;
mod handover;
mod hosted;
mod lounge;
pub mod meter;
mod queries;
mod requests;
mod spaces;

use std::collections::HashMap;
use std::time::Duration;

use lockify_core::{
    ClientId, ConvertArgs, Ended, Input, LockArgs, LockFlags, LockId, NodeId, Status, UnlockArgs,
    UnlockFlags,
};
use lockify_node::{
    CallError, HostEvent, NodeEngine, NodeError, QueryId, SpaceConfig, SpaceId, requests_are_logged,
};
use lockify_session::protocol::{
    Answer, ConvertRequest, Done, Event, LockRef, LockRequest, Refusal, Request, Space,
    UnlockRequest,
};
use serde::{Deserialize, Serialize};

use crate::meter::{Figures, Meter};

pub use access::{Access, Rights, Who};
use departed::Departed;
pub use departed::DepartedImage;
pub use external::{ExternalEvent, ExternalLockspace};
pub use handover::{ClientImage, HostImage};
pub use hosted::{HostedClient, Quota};
use lounge::Lounge;
use queries::{Questioned, answer_parts};
use requests::Asked;
use spaces::{Origin, Settling};

/// To whom an event goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipient {
    /// One client.
    Client(ClientId),
    /// Every client.
    All,
}

/// The lockspaces of one shard, and the queries of its clients.
pub struct ClientHost {
    node: NodeId,
    shard: u32,
    spaces: Vec<HostedSpace>,
    /// Those whose locks are not the engine's.
    external: Vec<(SpaceId, Box<dyn ExternalLockspace>)>,
    queries: HashMap<QueryId, Questioned>,
    /// Changes of the cluster that were asked for: the client, and its query.
    changes: HashMap<u64, (ClientId, u64)>,
    scratch: Vec<HostEvent>,
    /// The effects of calls that concern the host, until its next turn.
    unclaimed: Vec<HostEvent>,
    /// Requests for locks in lockspaces that this node is not yet, or not now, a member of.
    waiting: Lounge,
    /// Some of them may be made now.
    joined: bool,
    /// Clients that wait until a lockspace runs, or has been left.
    settling: Vec<Settling>,
    /// Clients that are gone, but not all of their locks.
    departed: Departed,
    /// Measures, if anybody wants to know.
    meter: Option<Box<Meter>>,
}

/// The number of a lockspace is its place in the host's list, and is never used again.
#[derive(Clone, Serialize, Deserialize)]
struct HostedSpace {
    name: String,
    id: SpaceId,
    lvb_len: u32,
    life: u32,
    /// Calls are possible: it has run once since the last halt.
    member: bool,
    origin: Origin,
    /// The permissions, if a client with a known user made it at run time.
    access: Option<Access>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Waiting {
    client: ClientId,
    request: LockRequest,
    /// When its time-out is over, on the engine's clock.
    until: Option<u64>,
}

/// The events for clients.
pub type Outbox = Vec<(Recipient, Event)>;

impl ClientHost {
    /// Joins these lockspaces.
    ///
    /// # Errors
    /// As [`NodeEngine::join`].
    pub fn join(
        engine: &mut NodeEngine,
        spaces: &[(String, SpaceConfig)],
    ) -> Result<ClientHost, CallError> {
        let mut hosted = Vec::with_capacity(spaces.len());
        for (name, config) in spaces {
            let id = engine.join(name, config.clone())?;
            let lvb_len = config.core.lvb_len as u32;
            let (name, life, member, origin) = (name.clone(), 0, false, Origin::Configured);
            let access = None;
            hosted.push(HostedSpace { name, id, lvb_len, life, member, origin, access });
        }
        Ok(ClientHost { spaces: hosted, ..ClientHost::empty(engine) })
    }

    fn empty(engine: &NodeEngine) -> ClientHost {
        ClientHost {
            node: engine.node(),
            shard: engine.shard(),
            spaces: Vec::new(),
            external: Vec::new(),
            queries: HashMap::new(),
            changes: HashMap::new(),
            scratch: Vec::new(),
            unclaimed: Vec::new(),
            waiting: Lounge::default(),
            joined: false,
            settling: Vec::new(),
            departed: Departed::default(),
            meter: None,
        }
    }

    /// Measures from now on.
    pub fn measure(&mut self) {
        self.meter.get_or_insert_default();
    }

    /// The measurements, if there are any.
    pub fn figures(&self) -> Option<&Figures> {
        self.meter.as_ref().map(|meter| &meter.figures)
    }

    /// Begins to leave every lockspace; returns how many [`HostEvent::Left`] will come.
    pub fn leave(&self, engine: &mut NodeEngine) -> usize {
        let there = self.spaces.iter().filter(|s| s.exists());
        there.filter(|s| engine.leave(s.id).is_ok()).count()
    }

    /// Handles a request and appends all that comes of it at once to `out`.
    pub fn request(
        &mut self,
        engine: &mut NodeEngine,
        client: &mut HostedClient,
        request: Request,
        out: &mut Outbox,
    ) {
        let before = out.len();
        let measured = match &request {
            Request::Lock(LockRequest { args: LockArgs { tag, .. }, .. })
            | Request::Convert(ConvertRequest { tag, .. }) => {
                self.meter.is_some().then(|| (*tag, engine.now()))
            }
            _ => None,
        };
        match request {
            Request::Lock(request) => self.lock(engine, client, request, out),
            Request::Convert(request) => self.convert(engine, client.id, request, out),
            Request::Unlock(request) => self.unlock(engine, client.id, request, out),
            Request::Cancel(lock) => {
                self.log_call("cancel", client.id, lock, String::new);
                self.take_back(engine, lock, |lock| Input::Cancel { client: client.id, lock });
            }
            Request::BreakDeadlock(lock) => {
                let client = client.id;
                self.take_back(engine, lock, |lock| Input::BreakDeadlock { client, lock });
            }
            Request::Query { id, query } => self.query(engine, client, id, query, out),
        }
        self.collect(engine, out);
        self.note_ended(engine, &out[before..]);
        if let (Some(meter), Some((tag, since))) = (&mut self.meter, measured) {
            let ended = out[before..].iter().find_map(|(to, event)| match event {
                _ if *to != Recipient::Client(client.id) => None,
                Event::Completed(done) if done.tag == tag => Some(Ok(done.status)),
                Event::Refused { tag: refused, .. } if *refused == tag => Some(Err(())),
                _ => None,
            });
            match ended {
                Some(Ok(status)) => meter.ended_at_once(status, engine.now() - since),
                Some(Err(())) => meter.figures.outcomes.refused += 1,
                None => meter.waits(client.id, tag, since),
            }
        }
    }

    /// Removes all state of a client that has ended its session, or died. The locks that it leaves
    /// behind count as its user's until they are gone, too.
    pub fn client_gone(&mut self, engine: &mut NodeEngine, gone: HostedClient, out: &mut Outbox) {
        let client = gone.id;
        self.departed.add(gone);
        for i in 0..self.spaces.len() {
            let space = self.spaces[i].id;
            let asked = self.call(engine, space, Input::ClientGone(client));
            // Refused only if the node is no member: then it holds nothing. Where locks are not the
            // engine's, there are no orphans.
            if asked.is_err() || self.external(space).is_some() {
                self.departed.recount(client, i, |_| 0);
            }
        }
        self.queries.retain(|_, asked| asked.client != client);
        self.changes.retain(|_, (asker, _)| *asker != client);
        self.waiting.forget(client);
        self.settling.retain(|s| s.client != client);
        if let Some(meter) = &mut self.meter {
            meter.forget(client);
        }
        let before = out.len();
        self.collect(engine, out);
        self.note_ended(engine, &out[before..]);
    }

    /// Returns true if this client is gone, but not all of its locks.
    pub fn has_departed(&self, client: ClientId) -> bool {
        self.departed.contains(client)
    }

    /// One turn of the engine ([`NodeEngine::run_once`]); appends what clients are told to `out` and
    /// what concerns the host to `rest`.
    ///
    /// # Errors
    /// As [`NodeEngine::run_once`].
    pub fn turn(
        &mut self,
        engine: &mut NodeEngine,
        timeout: Option<Duration>,
        out: &mut Outbox,
        rest: &mut Vec<HostEvent>,
    ) -> Result<(), NodeError> {
        rest.append(&mut self.unclaimed);
        let timeout = if rest.is_empty() { timeout } else { Some(Duration::ZERO) };
        let waiting = self.waiting.next_deadline().into_iter();
        let next = waiting.chain(self.external.iter().filter_map(|(_, s)| s.next_timer())).min();
        let next = next.map(|until| Duration::from_nanos(until.saturating_sub(engine.now())));
        let timeout = [timeout, next].into_iter().flatten().min();
        let mut events = std::mem::take(&mut self.scratch);
        let ran = engine.run_once(timeout, &mut events);
        self.turn_external(engine, &mut events);
        let before = out.len();
        for event in events.drain(..) {
            rest.extend(self.event(event, out));
        }
        self.scratch = events;
        if !self.waiting.is_empty() {
            self.make_waiting(engine, out);
        }
        self.note_ended(engine, &out[before..]);
        ran
    }

    /// Turns an engine's event into clients' events; returns the host's own.
    fn event(&mut self, event: HostEvent, out: &mut Outbox) -> Option<HostEvent> {
        match event {
            HostEvent::Completed { space, completion } => {
                self.log_end(space, &completion);
                let to = Recipient::Client(completion.client);
                if let Some(i) = self.number(space) {
                    out.push((to, Event::Completed(Done::new(Space(i as u32), completion))));
                }
            }
            HostEvent::Bast { client, tag, mode, .. } => {
                out.push((Recipient::Client(client), Event::Bast { tag, mode }));
            }
            HostEvent::Lost { space, client, lock, tag, reason } => {
                self.log_lost(space, client, lock, &reason);
                out.push((Recipient::Client(client), Event::Lost { tag, reason }));
            }
            HostEvent::Settled { client, tag, token, .. } => {
                out.push((Recipient::Client(client), Event::Settled { tag, token }));
            }
            HostEvent::Departed { space, client, orphans } => {
                if let Some(i) = self.number(space) {
                    self.departed.recount(client, i, |_| orphans);
                }
            }
            HostEvent::OrphanGone { space, client } => {
                if let Some(i) = self.number(space) {
                    self.departed.recount(client, i, |left| left.saturating_sub(1));
                }
            }
            HostEvent::Recovering { space, .. } => self.running(space, false, out),
            HostEvent::Running { space, .. } => self.running(space, true, out),
            HostEvent::Halted { space } => {
                if let Some(i) = self.number(space) {
                    let hosted = &mut self.spaces[i];
                    hosted.life += 1;
                    hosted.member = false;
                    self.departed.forget_space(i);
                    let event = Event::Halted { space: Space(i as u32), life: hosted.life };
                    out.push((Recipient::All, event));
                }
            }
            HostEvent::Left { space } if self.is_leaving(space) => self.left(space, out),
            HostEvent::Withdrawn { space, reason } => {
                self.withdrawn(space, reason, out);
                return Some(HostEvent::Withdrawn { space, reason });
            }
            HostEvent::Answered { query, answer } => {
                if let Some(asked) = self.queries.remove(&query) {
                    answer_parts(&asked, *answer, out);
                }
            }
            HostEvent::Requested { id, result } => {
                if let Some((client, id)) = self.changes.remove(&id) {
                    let failed = |why| Answer::Refused(Refusal::NotReloaded(why));
                    let answer = result.map_or_else(failed, Answer::Changed);
                    out.push((
                        Recipient::Client(client),
                        Event::Answer { id, answer, more: false },
                    ));
                }
            }
            other => return Some(other),
        }
        None
    }

    /// Measures the operations that have ended.
    fn note_ended(&mut self, engine: &NodeEngine, told: &[(Recipient, Event)]) {
        let Some(meter) = self.meter.as_mut().filter(|_| !told.is_empty()) else { return };
        let now = if meter.is_idle() { 0 } else { engine.now() };
        for (to, event) in told {
            match (to, event) {
                (Recipient::Client(client), Event::Completed(done)) => {
                    meter.ended(*client, done.tag, done.status, now);
                }
                (_, Event::Bast { .. }) => meter.figures.basts += 1,
                (_, Event::Lost { .. }) => meter.figures.lost += 1,
                (_, Event::Halted { .. }) => meter.forget_all(),
                _ => {}
            }
        }
    }

    fn number(&self, space: SpaceId) -> Option<usize> {
        self.spaces.iter().position(|s| s.id == space)
    }

    fn running(&mut self, space: SpaceId, running: bool, out: &mut Outbox) {
        if let Some(i) = self.number(space) {
            self.spaces[i].member |= running;
            self.joined |= running;
            out.push((Recipient::All, Event::Running { space: Space(i as u32), running }));
            if running {
                self.runs(i, out);
            }
        }
    }

    /// Collects the immediate effects of the last call.
    fn collect(&mut self, engine: &mut NodeEngine, out: &mut Outbox) {
        let mut events = std::mem::take(&mut self.scratch);
        engine.take_events(&mut events);
        self.turn_external(engine, &mut events);
        for event in events.drain(..) {
            if let Some(rest) = self.event(event, out) {
                self.unclaimed.push(rest);
            }
        }
        self.scratch = events;
    }

    fn lock(
        &mut self,
        engine: &mut NodeEngine,
        client: &mut HostedClient,
        request: LockRequest,
        out: &mut Outbox,
    ) {
        let admitted = self.lockable(request.space, client).and_then(|space| {
            check_flags(request.args.flags)?;
            client.room()?;
            if let Some(external) = self.external(space.id) {
                external.check(client.id, &request.args).map_err(Refusal::Failed)?;
            }
            Ok(space.member || request.args.flags.contains(LockFlags::NOQUEUE))
        });
        match admitted {
            Err(why) => {
                let tag = request.args.tag;
                out.push((Recipient::Client(client.id), Event::Refused { tag, why }));
            }
            Ok(possible) => {
                client.add(request.space);
                let until = request.args.timeout.map(|t| engine.now().saturating_add(t));
                let waiting = Waiting { client: client.id, request, until };
                match possible {
                    true => self.make(engine, waiting, out),
                    false => self.waiting.push(waiting),
                }
            }
        }
    }

    /// Makes a lock that has been admitted.
    fn make(&mut self, engine: &mut NodeEngine, waiting: Waiting, out: &mut Outbox) {
        let Waiting { client, request: LockRequest { space, args }, .. } = waiting;
        let (tag, to) = (args.tag, Recipient::Client(client));
        let asked = requests_are_logged().then(|| Asked::of(&args));
        let id = self.space(space).map(|space| space.id);
        let made = id.and_then(|id| self.call(engine, id, Input::Lock { client, args }));
        let lock = match made {
            Ok(Some(lock)) => lock,
            // The engine's contract is an id for every lock.
            Ok(None) => return,
            Err(Refusal::Core(e)) => {
                self.log_refused(client, asked.as_ref(), &e);
                return out.push((to, Event::Completed(ended(space, tag, Status::Refused(e)))));
            }
            Err(why) => {
                self.log_refused(client, asked.as_ref(), &why);
                return out.push((to, Event::Refused { tag, why }));
            }
        };
        self.log_lock(space, client, lock, asked.as_ref());
        let before = out.len();
        self.collect(engine, out);
        let completed = |e: &(Recipient, Event)| {
            e.0 == to && matches!(&e.1, Event::Completed(d) if d.tag == tag)
        };
        if !out[before..].iter().any(completed) {
            out.insert(before, (to, Event::Accepted { tag, lock }));
        }
    }

    /// Makes the requests that waited for their lockspace, and ends those that waited too long.
    fn make_waiting(&mut self, engine: &mut NodeEngine, out: &mut Outbox) {
        let now = engine.now();
        while let Some(Waiting { client, request, .. }) = self.waiting.take_late(now) {
            let done = ended(request.space, request.args.tag, Status::TimedOut);
            out.push((Recipient::Client(client), Event::Completed(done)));
        }
        if !std::mem::take(&mut self.joined) {
            return;
        }
        for waiting in self.waiting.take_all() {
            let space = waiting.request.space;
            if self.space(space).is_ok_and(|s| s.member) && !engine.congested() {
                self.make(engine, waiting, out);
            } else {
                self.joined |= self.space(space).is_ok_and(|s| s.member);
                self.waiting.push(waiting);
            }
        }
    }

    fn convert(
        &mut self,
        engine: &mut NodeEngine,
        client: ClientId,
        request: ConvertRequest,
        out: &mut Outbox,
    ) {
        let tag = request.tag;
        self.log_call("convert", client, request.lock, || {
            format!("{:?} {:?}", request.mode, request.flags)
        });
        let made = self.held(request.lock).map(|space| space.id).and_then(|id| {
            check_flags(request.flags)?;
            let args = ConvertArgs {
                client,
                lock: request.lock.lock,
                tag,
                mode: request.mode,
                flags: request.flags,
                lvb: request.lvb,
                timeout: request.timeout,
            };
            self.call(engine, id, Input::Convert(args))
        });
        if let Err(why) = made {
            out.push((Recipient::Client(client), Event::Refused { tag, why }));
        }
    }

    fn unlock(
        &mut self,
        engine: &mut NodeEngine,
        client: ClientId,
        request: UnlockRequest,
        out: &mut Outbox,
    ) {
        let (tag, lock) = (request.tag, request.lock.lock);
        self.log_call("unlock", client, request.lock, || format!("{:?}", request.flags));
        let made = self.held(request.lock).map(|space| space.id).and_then(|id| {
            check_unlock_flags(request.flags)?;
            let (flags, lvb) = (request.flags, request.lvb);
            let args = UnlockArgs { client, lock, tag, flags, lvb };
            self.call(engine, id, Input::Unlock(args))
        });
        if let Err(why) = made {
            out.push((Recipient::Client(client), Event::Refused { tag, why }));
        }
    }

    fn take_back(
        &mut self,
        engine: &mut NodeEngine,
        lock: LockRef,
        input: impl FnOnce(LockId) -> Input,
    ) {
        if let Ok(id) = self.held(lock).map(|space| space.id) {
            // Refused if there is nothing to cancel any more: the operation's end says it.
            let _ = self.call(engine, id, input(lock.lock));
        }
    }

    /// The lockspace of this name.
    fn find(&self, name: &str) -> Option<usize> {
        self.spaces.iter().position(|s| s.exists() && s.name == name)
    }

    fn no_such_space(&self, wanted: String) -> Refusal {
        let there = self.spaces.iter().filter(|s| s.exists());
        let known: Vec<_> = there.map(|s| s.name.as_str()).collect();
        Refusal::NoSuchSpace { wanted, known: known.join(", ") }
    }

    fn opened(&self, i: usize) -> Answer {
        let HostedSpace { life, lvb_len, .. } = self.spaces[i];
        Answer::Opened { space: Space(i as u32), life, lvb_len, node: self.node }
    }

    fn space(&self, space: Space) -> Result<&HostedSpace, Refusal> {
        self.spaces.get(space.0 as usize).filter(|s| s.exists()).ok_or(Refusal::NotOpen)
    }

    /// A lockspace in which this client may take locks.
    fn lockable(&self, space: Space, client: &HostedClient) -> Result<&HostedSpace, Refusal> {
        let found = self.space(space)?;
        match client.rights(space.0 as usize, found).lock {
            true => Ok(found),
            false => Err(Refusal::MayNotLock(found.name.clone())),
        }
    }

    /// A lockspace whose locks this client may see.
    fn visible(&self, space: Space, client: &HostedClient) -> Result<&HostedSpace, Refusal> {
        let found = self.space(space)?;
        match client.rights(space.0 as usize, found).look {
            true => Ok(found),
            false => Err(Refusal::MayNotLook(found.name.clone())),
        }
    }

    /// The lockspace of a lock, if its id still means something.
    fn held(&self, lock: LockRef) -> Result<&HostedSpace, Refusal> {
        let space = self.space(lock.space)?;
        if space.life != lock.life {
            return Err(Refusal::Core(lockify_core::Error::Lost));
        }
        Ok(space)
    }
}

fn refusal(e: CallError) -> Refusal {
    match e {
        CallError::Lock(e) => Refusal::Core(e),
        other => Refusal::Failed(other.to_string()),
    }
}

fn check_flags(flags: LockFlags) -> Result<(), Refusal> {
    match flags.bits() & !LockFlags::all().bits() {
        0 => Ok(()),
        unknown => Err(Refusal::UnknownFlags(unknown)),
    }
}

fn check_unlock_flags(flags: UnlockFlags) -> Result<(), Refusal> {
    match flags.bits() & !UnlockFlags::all().bits() {
        0 => Ok(()),
        unknown => Err(Refusal::UnknownFlags(unknown)),
    }
}

/// The end of a request that never became a lock.
fn ended(space: Space, tag: u64, status: Status) -> Done {
    Done { space, tag, lock: LockId(0), ended: Ended::new(status) }
}
