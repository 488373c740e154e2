//! Serving clients from an engine: the same for a daemon's sessions and for an embedded node.

use std::collections::HashMap;
use std::time::Duration;

use lockify_core::{
    ClientId, ConvertArgs, Input, LockArgs, LockFlags, LockId, ResourceInfo, SbFlags, Status,
    UnlockArgs, UnlockFlags,
};
use lockify_node::{CallError, Engine, HostEvent, NodeError, QueryId, SpaceConfig, SpaceId};

use crate::protocol::{
    Answer, ConvertRequest, Done, Event, LockRef, LockRequest, Query, Refusal, Request, Space,
    UnlockRequest,
};

/// How long the nodes of the cluster may take to answer a query.
const QUERY_PATIENCE: Duration = Duration::from_secs(2);

/// Locks in one part of an answer, so that it fits a frame.
const LOCKS_PER_PART: usize = 500;

/// Locks in one answer; more would fill the memory of a daemon with a busy client.
const LOCKS_PER_ANSWER: usize = 100_000;

/// Queries of one client that may be unanswered.
const QUERIES: usize = 32;

/// A client as its host knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedClient {
    /// Unique on the node.
    pub id: ClientId,
    max_locks: u32,
    /// Its locks and requests for locks in each lockspace.
    locks: Vec<u32>,
}

impl HostedClient {
    /// A client that may have this many locks.
    pub fn new(id: ClientId, max_locks: u32) -> HostedClient {
        let locks = Vec::new();
        HostedClient { id, max_locks, locks }
    }

    /// How many locks, and requests for locks, it has.
    pub fn locks(&self) -> u32 {
        self.locks.iter().sum()
    }

    /// Takes note of what the client is told, to know how many locks it has.
    pub fn told(&mut self, event: &Event) {
        match event {
            Event::Completed(Done { space, mode: None, .. }) => {
                if let Some(count) = self.locks.get_mut(space.0 as usize) {
                    *count = count.saturating_sub(1);
                }
            }
            Event::Halted { space, .. } => {
                if let Some(count) = self.locks.get_mut(space.0 as usize) {
                    *count = 0;
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, space: Space) {
        let index = space.0 as usize;
        if self.locks.len() <= index {
            self.locks.resize(index + 1, 0);
        }
        self.locks[index] += 1;
    }
}

/// To whom an event goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// One client.
    Client(ClientId),
    /// Every client.
    All,
}

/// The lockspaces of one shard, and the queries of its clients.
pub struct Host {
    spaces: Vec<HostedSpace>,
    queries: HashMap<QueryId, (ClientId, u64)>,
    scratch: Vec<HostEvent>,
    /// What calls led to that concerns the host, until its next turn.
    unclaimed: Vec<HostEvent>,
    /// Requests for locks in lockspaces that this node is not yet, or not now, a member of.
    waiting: Vec<Waiting>,
    /// Some of them may be made now.
    joined: bool,
}

struct HostedSpace {
    name: String,
    id: SpaceId,
    lvb_len: u32,
    life: u32,
    /// Calls are possible: it has run once since the last halt.
    member: bool,
}

struct Waiting {
    client: ClientId,
    request: LockRequest,
    /// When its time-out is over, on the engine's clock.
    until: Option<u64>,
}

/// What clients are told.
pub type Outbox = Vec<(To, Event)>;

impl Host {
    /// Joins these lockspaces.
    ///
    /// # Errors
    /// As [`Engine::join`].
    pub fn join(engine: &mut Engine, spaces: &[(String, SpaceConfig)]) -> Result<Host, CallError> {
        let mut hosted = Vec::with_capacity(spaces.len());
        for (name, config) in spaces {
            let id = engine.join(name, config.clone())?;
            let lvb_len = config.core.lvb_len as u32;
            let (name, life, member) = (name.clone(), 0, false);
            hosted.push(HostedSpace { name, id, lvb_len, life, member });
        }
        Ok(Host {
            spaces: hosted,
            queries: HashMap::new(),
            scratch: Vec::new(),
            unclaimed: Vec::new(),
            waiting: Vec::new(),
            joined: false,
        })
    }

    /// Begins to leave every lockspace; returns how many [`HostEvent::Left`] will come.
    pub fn leave(&self, engine: &mut Engine) -> usize {
        self.spaces.iter().filter(|s| engine.leave(s.id).is_ok()).count()
    }

    /// Handles a request and appends all that comes of it at once to `out`.
    pub fn request(
        &mut self,
        engine: &mut Engine,
        client: &mut HostedClient,
        request: Request,
        out: &mut Outbox,
    ) {
        match request {
            Request::Lock(request) => self.lock(engine, client, request, out),
            Request::Convert(request) => self.convert(engine, client.id, request, out),
            Request::Unlock(request) => self.unlock(engine, client.id, request, out),
            Request::Cancel(lock) => self.cancel(engine, client.id, lock),
            Request::Query { id, query } => self.query(engine, client.id, id, query, out),
        }
        self.collect(engine, out);
    }

    /// Everything of a client goes: it has ended its session, or died.
    pub fn client_gone(&mut self, engine: &mut Engine, client: ClientId, out: &mut Outbox) {
        for space in &self.spaces {
            // Refused only if the node is no member: then it holds nothing.
            let _ = engine.handle(space.id, Input::ClientGone(client));
        }
        self.queries.retain(|_, (asker, _)| *asker != client);
        self.waiting.retain(|w| w.client != client);
        self.collect(engine, out);
    }

    /// One turn of the engine ([`Engine::run_once`]); appends what clients are told to `out` and
    /// what concerns the host to `rest`.
    ///
    /// # Errors
    /// As [`Engine::run_once`].
    pub fn turn(
        &mut self,
        engine: &mut Engine,
        timeout: Option<Duration>,
        out: &mut Outbox,
        rest: &mut Vec<HostEvent>,
    ) -> Result<(), NodeError> {
        rest.append(&mut self.unclaimed);
        let timeout = if rest.is_empty() { timeout } else { Some(Duration::ZERO) };
        let next = self.waiting.iter().filter_map(|w| w.until).min();
        let next = next.map(|until| Duration::from_nanos(until.saturating_sub(engine.now())));
        let timeout = [timeout, next].into_iter().flatten().min();
        let mut events = std::mem::take(&mut self.scratch);
        let ran = engine.run_once(timeout, &mut events);
        for event in events.drain(..) {
            rest.extend(self.event(event, out));
        }
        self.scratch = events;
        if !self.waiting.is_empty() {
            self.make_waiting(engine, out);
        }
        ran
    }

    /// Turns what the engine tells into what clients are told; gives back what concerns the host.
    fn event(&mut self, event: HostEvent, out: &mut Outbox) -> Option<HostEvent> {
        match event {
            HostEvent::Completed { space, completion } => {
                let to = To::Client(completion.client);
                if let Some(i) = self.number(space) {
                    out.push((to, Event::Completed(Done::new(Space(i as u32), completion))));
                }
            }
            HostEvent::Bast { client, tag, mode, .. } => {
                out.push((To::Client(client), Event::Bast { tag, mode }));
            }
            HostEvent::Lost { client, tag, reason, .. } => {
                out.push((To::Client(client), Event::Lost { tag, reason }));
            }
            HostEvent::Settled { client, tag, token, .. } => {
                out.push((To::Client(client), Event::Settled { tag, token }));
            }
            HostEvent::Recovering { space, .. } => self.running(space, false, out),
            HostEvent::Running { space, .. } => self.running(space, true, out),
            HostEvent::Halted { space } => {
                if let Some(i) = self.number(space) {
                    let hosted = &mut self.spaces[i];
                    hosted.life += 1;
                    hosted.member = false;
                    let event = Event::Halted { space: Space(i as u32), life: hosted.life };
                    out.push((To::All, event));
                }
            }
            HostEvent::Answered { query, answer } => {
                if let Some((client, id)) = self.queries.remove(&query) {
                    answer_parts(client, id, answer, out);
                }
            }
            other => return Some(other),
        }
        None
    }

    fn number(&self, space: SpaceId) -> Option<usize> {
        self.spaces.iter().position(|s| s.id == space)
    }

    fn running(&mut self, space: SpaceId, running: bool, out: &mut Outbox) {
        if let Some(i) = self.number(space) {
            self.spaces[i].member |= running;
            self.joined |= running;
            out.push((To::All, Event::Running { space: Space(i as u32), running }));
        }
    }

    /// What the last call led to at once.
    fn collect(&mut self, engine: &mut Engine, out: &mut Outbox) {
        let mut events = std::mem::take(&mut self.scratch);
        engine.take_events(&mut events);
        for event in events.drain(..) {
            if let Some(rest) = self.event(event, out) {
                self.unclaimed.push(rest);
            }
        }
        self.scratch = events;
    }

    fn lock(
        &mut self,
        engine: &mut Engine,
        client: &mut HostedClient,
        request: LockRequest,
        out: &mut Outbox,
    ) {
        let admitted = self.space(request.space).and_then(|space| {
            check_flags(request.flags)?;
            if client.locks() >= client.max_locks {
                return Err(Refusal::TooManyLocks(client.max_locks));
            }
            Ok(space.member || request.flags.contains(LockFlags::NOQUEUE))
        });
        match admitted {
            Err(why) => {
                let tag = request.tag;
                out.push((To::Client(client.id), Event::Refused { tag, why }));
            }
            Ok(possible) => {
                client.add(request.space);
                let until = request.timeout.map(|t| engine.now().saturating_add(t));
                let waiting = Waiting { client: client.id, request, until };
                match possible {
                    true => self.make(engine, waiting, out),
                    false => self.waiting.push(waiting),
                }
            }
        }
    }

    /// Makes a lock that has been admitted.
    fn make(&mut self, engine: &mut Engine, waiting: Waiting, out: &mut Outbox) {
        let Waiting { client, request, .. } = waiting;
        let (space, tag, to) = (request.space, request.tag, To::Client(client));
        let made = self.space(space).and_then(|space| {
            let args = LockArgs {
                client,
                tag,
                name: request.name,
                mode: request.mode,
                flags: request.flags,
                lvb: request.lvb,
                bast: request.bast,
                timeout: request.timeout,
            };
            engine.handle(space.id, Input::Lock(args)).map_err(refusal)
        });
        let lock = match made {
            Ok(Some(lock)) => lock,
            // The engine's contract is an id for every lock.
            Ok(None) => return,
            Err(Refusal::Core(e)) => {
                return out.push((to, Event::Completed(ended(space, tag, Status::Refused(e)))));
            }
            Err(why) => return out.push((to, Event::Refused { tag, why })),
        };
        let before = out.len();
        self.collect(engine, out);
        let completed =
            |e: &(To, Event)| e.0 == to && matches!(&e.1, Event::Completed(d) if d.tag == tag);
        if !out[before..].iter().any(completed) {
            out.insert(before, (to, Event::Accepted { tag, lock }));
        }
    }

    /// Makes the requests that waited for their lockspace, and ends those that waited too long.
    fn make_waiting(&mut self, engine: &mut Engine, out: &mut Outbox) {
        let (joined, now) = (std::mem::take(&mut self.joined), engine.now());
        let late = |w: &Waiting| w.until.is_some_and(|until| until <= now);
        if !joined && !self.waiting.iter().any(late) {
            return;
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let LockRequest { space, tag, .. } = waiting.request;
            if late(&waiting) {
                let done = ended(space, tag, Status::TimedOut);
                out.push((To::Client(waiting.client), Event::Completed(done)));
            } else if self.space(space).is_ok_and(|s| s.member) && !engine.congested() {
                self.make(engine, waiting, out);
            } else {
                self.joined |= self.space(space).is_ok_and(|s| s.member);
                self.waiting.push(waiting);
            }
        }
    }

    fn convert(
        &mut self,
        engine: &mut Engine,
        client: ClientId,
        request: ConvertRequest,
        out: &mut Outbox,
    ) {
        let tag = request.tag;
        let made = self.held(request.lock).and_then(|space| {
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
            engine.handle(space.id, Input::Convert(args)).map_err(refusal)
        });
        if let Err(why) = made {
            out.push((To::Client(client), Event::Refused { tag, why }));
        }
    }

    fn unlock(
        &mut self,
        engine: &mut Engine,
        client: ClientId,
        request: UnlockRequest,
        out: &mut Outbox,
    ) {
        let (tag, lock) = (request.tag, request.lock.lock);
        let made = self.held(request.lock).and_then(|space| {
            check_unlock_flags(request.flags)?;
            let (flags, lvb) = (request.flags, request.lvb);
            let args = UnlockArgs { client, lock, tag, flags, lvb };
            engine.handle(space.id, Input::Unlock(args)).map_err(refusal)
        });
        if let Err(why) = made {
            out.push((To::Client(client), Event::Refused { tag, why }));
        }
    }

    fn cancel(&mut self, engine: &mut Engine, client: ClientId, lock: LockRef) {
        if let Ok(space) = self.held(lock) {
            // Refused if there is nothing to cancel any more: the operation's end says it.
            let _ = engine.handle(space.id, Input::Cancel { client, lock: lock.lock });
        }
    }

    fn query(
        &mut self,
        engine: &mut Engine,
        client: ClientId,
        id: u64,
        query: Query,
        out: &mut Outbox,
    ) {
        let answer = match query {
            Query::Open(name) => self.open(name),
            Query::Purge { space, node, client } => self.space(space).and_then(|space| {
                let purge = Input::Purge { node, client };
                engine.handle(space.id, purge).map_err(refusal).map(|_| Answer::Done)
            }),
            cluster_wide => match self.ask(engine, client, id, cluster_wide) {
                // The answer comes with an event.
                Ok(()) => return,
                Err(why) => Err(why),
            },
        };
        let answer = answer.unwrap_or_else(Answer::Refused);
        out.push((To::Client(client), Event::Answer { id, answer, more: false }));
    }

    fn open(&self, wanted: String) -> Result<Answer, Refusal> {
        let Some(i) = self.spaces.iter().position(|s| s.name == wanted) else {
            let known: Vec<_> = self.spaces.iter().map(|s| s.name.as_str()).collect();
            return Err(Refusal::NoSuchSpace { wanted, known: known.join(", ") });
        };
        let HostedSpace { life, lvb_len, .. } = self.spaces[i];
        Ok(Answer::Opened { space: Space(i as u32), life, lvb_len })
    }

    /// Asks all nodes.
    fn ask(
        &mut self,
        engine: &mut Engine,
        client: ClientId,
        id: u64,
        query: Query,
    ) -> Result<(), Refusal> {
        use lockify_node::Query as Ask;
        let query = match query {
            Query::Status => Ask::Status,
            Query::Locks(space) => Ask::Locks { space: self.space(space)?.name.clone() },
            Query::Who(space, name) => Ask::Who { space: self.space(space)?.name.clone(), name },
            Query::Open(_) | Query::Purge { .. } => {
                return Err(Refusal::Failed("this is no question to all nodes".into()));
            }
        };
        if self.queries.values().filter(|(asker, _)| *asker == client).count() >= QUERIES {
            let why =
                format!("{QUERIES} queries of this session wait already: await their answers");
            return Err(Refusal::Failed(why));
        }
        let query = engine.query(query, QUERY_PATIENCE);
        self.queries.insert(query, (client, id));
        Ok(())
    }

    fn space(&self, space: Space) -> Result<&HostedSpace, Refusal> {
        self.spaces.get(space.0 as usize).ok_or(Refusal::NotOpen)
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
    Done {
        space,
        tag,
        lock: LockId(0),
        status,
        mode: None,
        sb: SbFlags::empty(),
        lvb: None,
        token: 0,
        provisional: false,
    }
}

/// Sends a cluster's answer in parts that fit frames.
fn answer_parts(client: ClientId, id: u64, answer: lockify_node::Answer, out: &mut Outbox) {
    let mut part =
        |answer| out.push((To::Client(client), Event::Answer { id, answer, more: true }));
    answer.status.into_iter().for_each(|status| part(Answer::Status(status)));
    let mut pieces = Vec::new();
    let (mut locks, mut room, mut omitted) = (0, LOCKS_PER_ANSWER, 0);
    for piece in answer.resources.into_iter().flat_map(pieces_of) {
        if room < piece.locks.len() {
            omitted += piece.locks.len() as u64;
            continue;
        }
        room -= piece.locks.len();
        // An empty resource takes room, too.
        locks += piece.locks.len() + 1;
        pieces.push(piece);
        if locks >= LOCKS_PER_PART {
            part(Answer::Resources(std::mem::take(&mut pieces)));
            locks = 0;
        }
    }
    if !pieces.is_empty() {
        part(Answer::Resources(pieces));
    }
    if omitted > 0 {
        part(Answer::Omitted(omitted));
    }
    if !answer.silent.is_empty() {
        part(Answer::Silent(answer.silent));
    }
    out.push((To::Client(client), Event::Answer { id, answer: Answer::Done, more: false }));
}

/// A resource as pieces of at most [`LOCKS_PER_PART`] locks.
fn pieces_of(mut resource: ResourceInfo) -> Vec<ResourceInfo> {
    let mut pieces = Vec::new();
    while resource.locks.len() > LOCKS_PER_PART {
        let rest = resource.locks.split_off(LOCKS_PER_PART);
        let piece = ResourceInfo { locks: rest, ..resource.clone() };
        pieces.push(std::mem::replace(&mut resource, piece));
    }
    pieces.push(resource);
    pieces
}
