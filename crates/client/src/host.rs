//! Serving clients from an engine: the same for a daemon's sessions and for an embedded node.

mod access;
mod elsewhere;
mod handover;
mod requests;
mod spaces;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockify_core::{
    ClientId, ConvertArgs, Input, LockArgs, LockFlags, LockId, NodeId, ResourceInfo, SbFlags,
    Status, UnlockArgs, UnlockFlags,
};
use lockify_node::{
    CallError, Engine, HostEvent, NodeError, QueryId, SpaceConfig, SpaceId, requests_are_logged,
};
use serde::{Deserialize, Serialize};

use crate::meter::{Figures, Meter};
use crate::protocol::{
    Answer, ConvertRequest, Done, Event, KNOWS_RELOAD, LockRef, LockRequest, Query, Refusal,
    Request, Space, UnlockRequest, VERSION,
};

pub use access::{Access, Rights, Who};
pub use elsewhere::{Elsewhere, Told};
pub use handover::{ClientImage, HostImage};
use requests::Asked;
use spaces::{Origin, Settling};

/// How long the nodes of the cluster may take to answer a query.
const QUERY_PATIENCE: Duration = Duration::from_secs(2);

/// Locks in one part of an answer, so that it fits a frame.
const LOCKS_PER_PART: usize = 500;

/// Locks in one answer; more would fill the memory of a daemon with a busy client.
const LOCKS_PER_ANSWER: usize = 100_000;

/// Queries of one client that may be unanswered.
const QUERIES: usize = 32;

/// How many locks a client may have.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Locks, and requests for locks, of this client.
    pub locks: u32,
    /// Of all clients of its user together.
    pub of_user: u32,
    /// How many those have; shared by them.
    pub user: Arc<AtomicU32>,
}

impl Quota {
    /// No limit.
    pub fn unlimited() -> Quota {
        Quota { locks: u32::MAX, of_user: u32::MAX, user: Arc::default() }
    }
}

/// A client as its host knows it. Dropped, its locks no longer count as its user's.
#[derive(Debug)]
pub struct HostedClient {
    /// Unique on the node.
    pub id: ClientId,
    /// It may make and release lockspaces.
    pub privileged: bool,
    /// The version of the session protocol that it speaks.
    pub version: u16,
    quota: Quota,
    /// Who it is, and what it may do in each configured lockspace, in the order in which the host
    /// has joined them; without it, everything.
    who: Option<(Arc<Who>, Arc<[Rights]>)>,
    /// Its locks and requests for locks in each lockspace.
    locks: Vec<u32>,
}

impl HostedClient {
    /// A client that may have so many locks, and use every lockspace.
    pub fn new(id: ClientId, quota: Quota) -> HostedClient {
        let (privileged, version) = (false, VERSION);
        HostedClient { id, privileged, version, quota, who: None, locks: Vec::new() }
    }

    /// Restricts what it may do to that of a user, with these rights in the configured lockspaces.
    pub fn of(mut self, who: Arc<Who>, rights: Arc<[Rights]>) -> HostedClient {
        self.privileged = who.trusted;
        self.who = Some((who, rights));
        self
    }

    /// Changes what it may do in the configured lockspaces, for requests from now on.
    pub fn set_rights(&mut self, rights: Arc<[Rights]>) {
        if let Some((_, old)) = &mut self.who {
            *old = rights;
        }
    }

    /// Changes how many locks it, and all clients of its user, may have; what is there stays.
    pub fn set_limits(&mut self, locks: u32, of_user: u32) {
        (self.quota.locks, self.quota.of_user) = (locks, of_user);
    }

    /// How many locks, and requests for locks, it has.
    pub fn locks(&self) -> u32 {
        self.locks.iter().sum()
    }

    /// How many locks all clients of its user have.
    pub fn of_user(&self) -> Arc<AtomicU32> {
        self.quota.user.clone()
    }

    /// Takes note of what the client is told, to know how many locks it has.
    pub fn told(&mut self, event: &Event) {
        match event {
            Event::Completed(Done { space, mode: None, .. }) => {
                if let Some(count) = self.locks.get_mut(space.0 as usize)
                    && *count > 0
                {
                    *count -= 1;
                    self.quota.user.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Event::Halted { space, .. } => {
                if let Some(count) = self.locks.get_mut(space.0 as usize) {
                    self.quota.user.fetch_sub(std::mem::take(count), Ordering::Relaxed);
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
        self.quota.user.fetch_add(1, Ordering::Relaxed);
    }

    fn rights(&self, number: usize, space: &HostedSpace) -> Rights {
        match (&self.who, &space.access) {
            (None, _) => Rights::ALL,
            (Some((who, _)), Some(access)) => who.rights_in(access),
            (Some((_, rights)), None) => rights.get(number).copied().unwrap_or(Rights::NONE),
        }
    }

    /// Whether it may have one more lock.
    fn room(&self) -> Result<(), Refusal> {
        let Quota { locks, of_user, user } = &self.quota;
        if self.locks() >= *locks {
            return Err(Refusal::TooManyLocks(*locks));
        }
        if user.load(Ordering::Relaxed) >= *of_user {
            return Err(Refusal::TooManyLocksOfUser(*of_user));
        }
        Ok(())
    }
}

impl Drop for HostedClient {
    fn drop(&mut self) {
        self.quota.user.fetch_sub(self.locks(), Ordering::Relaxed);
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
    node: NodeId,
    shard: u32,
    spaces: Vec<HostedSpace>,
    /// Those whose locks are not the engine's.
    elsewhere: Vec<(SpaceId, Box<dyn Elsewhere>)>,
    queries: HashMap<QueryId, Questioned>,
    scratch: Vec<HostEvent>,
    /// What calls led to that concerns the host, until its next turn.
    unclaimed: Vec<HostEvent>,
    /// Requests for locks in lockspaces that this node is not yet, or not now, a member of.
    waiting: Vec<Waiting>,
    /// Some of them may be made now.
    joined: bool,
    /// Clients that wait until a lockspace runs, or has been left.
    settling: Vec<Settling>,
    /// Measures, if anybody wants to know.
    meter: Option<Box<Meter>>,
}

/// The number of a lockspace is its place in the host's list, and is never used again.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct HostedSpace {
    name: String,
    id: SpaceId,
    lvb_len: u32,
    life: u32,
    /// Calls are possible: it has run once since the last halt.
    member: bool,
    origin: Origin,
    /// Who may use it, if it was made at run time, by a client that is somebody.
    access: Option<Access>,
}

/// A query of a client, which speaks this version.
struct Questioned {
    client: ClientId,
    id: u64,
    version: u16,
}

#[derive(Clone, Serialize, Deserialize)]
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
            let (name, life, member, origin) = (name.clone(), 0, false, Origin::Configured);
            let access = None;
            hosted.push(HostedSpace { name, id, lvb_len, life, member, origin, access });
        }
        Ok(Host { spaces: hosted, ..Host::empty(engine) })
    }

    fn empty(engine: &Engine) -> Host {
        Host {
            node: engine.node(),
            shard: engine.shard(),
            spaces: Vec::new(),
            elsewhere: Vec::new(),
            queries: HashMap::new(),
            scratch: Vec::new(),
            unclaimed: Vec::new(),
            waiting: Vec::new(),
            joined: false,
            settling: Vec::new(),
            meter: None,
        }
    }

    /// Measures from now on.
    pub fn measure(&mut self) {
        self.meter.get_or_insert_default();
    }

    /// What has been measured, if anything is.
    pub fn figures(&self) -> Option<&Figures> {
        self.meter.as_ref().map(|meter| &meter.figures)
    }

    /// Begins to leave every lockspace; returns how many [`HostEvent::Left`] will come.
    pub fn leave(&self, engine: &mut Engine) -> usize {
        let there = self.spaces.iter().filter(|s| s.exists());
        there.filter(|s| engine.leave(s.id).is_ok()).count()
    }

    /// Handles a request and appends all that comes of it at once to `out`.
    pub fn request(
        &mut self,
        engine: &mut Engine,
        client: &mut HostedClient,
        request: Request,
        out: &mut Outbox,
    ) {
        let before = out.len();
        let measured = match &request {
            Request::Lock(LockRequest { tag, .. })
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
                _ if *to != To::Client(client.id) => None,
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

    /// Everything of a client goes: it has ended its session, or died.
    pub fn client_gone(&mut self, engine: &mut Engine, client: ClientId, out: &mut Outbox) {
        for i in 0..self.spaces.len() {
            // Refused only if the node is no member: then it holds nothing.
            let _ = self.call(engine, self.spaces[i].id, Input::ClientGone(client));
        }
        self.queries.retain(|_, asked| asked.client != client);
        self.waiting.retain(|w| w.client != client);
        self.settling.retain(|s| s.client != client);
        if let Some(meter) = &mut self.meter {
            meter.forget(client);
        }
        let before = out.len();
        self.collect(engine, out);
        self.note_ended(engine, &out[before..]);
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
        let waiting = self.waiting.iter().filter_map(|w| w.until);
        let next = waiting.chain(self.elsewhere.iter().filter_map(|(_, s)| s.next_timer())).min();
        let next = next.map(|until| Duration::from_nanos(until.saturating_sub(engine.now())));
        let timeout = [timeout, next].into_iter().flatten().min();
        let mut events = std::mem::take(&mut self.scratch);
        let ran = engine.run_once(timeout, &mut events);
        self.turn_elsewhere(engine, &mut events);
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

    /// Turns what the engine tells into what clients are told; gives back what concerns the host.
    fn event(&mut self, event: HostEvent, out: &mut Outbox) -> Option<HostEvent> {
        match event {
            HostEvent::Completed { space, completion } => {
                self.log_end(space, &completion);
                let to = To::Client(completion.client);
                if let Some(i) = self.number(space) {
                    out.push((to, Event::Completed(Done::new(Space(i as u32), completion))));
                }
            }
            HostEvent::Bast { client, tag, mode, .. } => {
                out.push((To::Client(client), Event::Bast { tag, mode }));
            }
            HostEvent::Lost { space, client, lock, tag, reason } => {
                self.log_lost(space, client, lock, &reason);
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
            HostEvent::Left { space } if self.is_leaving(space) => self.left(space, out),
            HostEvent::Withdrawn { space, reason } => {
                self.withdrawn(space, reason, out);
                return Some(HostEvent::Withdrawn { space, reason });
            }
            HostEvent::Answered { query, answer } => {
                if let Some(asked) = self.queries.remove(&query) {
                    answer_parts(&asked, answer, out);
                }
            }
            other => return Some(other),
        }
        None
    }

    /// Measures what has been ended.
    fn note_ended(&mut self, engine: &Engine, told: &[(To, Event)]) {
        let Some(meter) = self.meter.as_mut().filter(|_| !told.is_empty()) else { return };
        let now = if meter.is_idle() { 0 } else { engine.now() };
        for (to, event) in told {
            match (to, event) {
                (To::Client(client), Event::Completed(done)) => {
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
            out.push((To::All, Event::Running { space: Space(i as u32), running }));
            if running {
                self.runs(i, out);
            }
        }
    }

    /// What the last call led to at once.
    fn collect(&mut self, engine: &mut Engine, out: &mut Outbox) {
        let mut events = std::mem::take(&mut self.scratch);
        engine.take_events(&mut events);
        self.turn_elsewhere(engine, &mut events);
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
        let admitted = self.lockable(request.space, client).and_then(|space| {
            check_flags(request.flags)?;
            client.room()?;
            if let Some(elsewhere) = self.elsewhere(space.id) {
                elsewhere.check(client.id, &request).map_err(Refusal::Failed)?;
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
        let asked = requests_are_logged().then(|| Asked::of(&request));
        let made = self.space(space).map(|space| space.id).and_then(|id| {
            let args = LockArgs {
                client,
                tag,
                name: request.name,
                mode: request.mode,
                flags: request.flags,
                lvb: request.lvb,
                bast: request.bast,
                timeout: request.timeout,
                transaction: request.transaction,
            };
            self.call(engine, id, Input::Lock(args))
        });
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
        self.log_call("unlock", client, request.lock, || format!("{:?}", request.flags));
        let made = self.held(request.lock).map(|space| space.id).and_then(|id| {
            check_unlock_flags(request.flags)?;
            let (flags, lvb) = (request.flags, request.lvb);
            let args = UnlockArgs { client, lock, tag, flags, lvb };
            self.call(engine, id, Input::Unlock(args))
        });
        if let Err(why) = made {
            out.push((To::Client(client), Event::Refused { tag, why }));
        }
    }

    fn take_back(
        &mut self,
        engine: &mut Engine,
        lock: LockRef,
        input: impl FnOnce(LockId) -> Input,
    ) {
        if let Ok(id) = self.held(lock).map(|space| space.id) {
            // Refused if there is nothing to cancel any more: the operation's end says it.
            let _ = self.call(engine, id, input(lock.lock));
        }
    }

    fn query(
        &mut self,
        engine: &mut Engine,
        asker: &HostedClient,
        id: u64,
        query: Query,
        out: &mut Outbox,
    ) {
        let to = To::Client(asker.id);
        let answer = match query {
            Query::Open(name) => self.open(name, asker),
            Query::Create { .. }
            | Query::CreateWithMode { .. }
            | Query::Release { .. }
            | Query::MayRelease(_) => match self.make_or_release(engine, asker, id, query, out) {
                Ok(None) => return,
                Ok(Some(answer)) => Ok(answer),
                Err(why) => Err(why),
            },
            // A daemon does so itself.
            Query::Reload => Err(Refusal::Failed("there is no configuration file".into())),
            Query::Purge { space, node, clients } => {
                self.lockable(space, asker).map(|space| space.id).and_then(|id| {
                    let node = node.unwrap_or(self.node);
                    let purge = Input::Purge { node, clients };
                    self.call(engine, id, purge).map(|_| Answer::Done)
                })
            }
            cluster_wide => match self.ask(engine, asker, id, cluster_wide) {
                // The answer comes with an event.
                Ok(()) => return,
                Err(why) => Err(why),
            },
        };
        let answer = answer.unwrap_or_else(Answer::Refused);
        out.push((to, Event::Answer { id, answer, more: false }));
    }

    fn open(&self, wanted: String, client: &HostedClient) -> Result<Answer, Refusal> {
        match self.find(&wanted) {
            Some(i) if !client.rights(i, &self.spaces[i]).look => Err(Refusal::MayNotLook(wanted)),
            Some(i) => Ok(self.opened(i)),
            None => Err(self.no_such_space(wanted)),
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

    /// Asks all nodes.
    fn ask(
        &mut self,
        engine: &mut Engine,
        client: &HostedClient,
        id: u64,
        query: Query,
    ) -> Result<(), Refusal> {
        use lockify_node::Query as Ask;
        let known = |space| {
            let found = self.visible(space, client)?;
            match self.elsewhere(found.id) {
                None => Ok(found.name.clone()),
                Some(_) => Err(Refusal::Failed(format!(
                    "the locks of lockspace {:?} are words in remote memory, and no daemon knows who holds them elsewhere",
                    found.name
                ))),
            }
        };
        let query = match query {
            Query::Status => Ask::Status,
            Query::Locks(space) => Ask::Locks { space: known(space)? },
            Query::Who(space, name) => Ask::Who { space: known(space)?, name },
            // A daemon does that itself.
            Query::Restart
            | Query::Open(_)
            | Query::Create { .. }
            | Query::CreateWithMode { .. }
            | Query::Release { .. }
            | Query::MayRelease(_)
            | Query::Purge { .. }
            | Query::Reload => {
                return Err(Refusal::Failed("this is no question to all nodes".into()));
            }
        };
        if self.queries.values().filter(|asked| asked.client == client.id).count() >= QUERIES {
            let why =
                format!("{QUERIES} queries of this session wait already: await their answers");
            return Err(Refusal::Failed(why));
        }
        let query = engine.query(query, QUERY_PATIENCE);
        let HostedClient { id: client, version, .. } = *client;
        self.queries.insert(query, Questioned { client, id, version });
        Ok(())
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
fn answer_parts(asked: &Questioned, answer: lockify_node::Answer, out: &mut Outbox) {
    let (client, id) = (asked.client, asked.id);
    let mut part =
        |answer| out.push((To::Client(client), Event::Answer { id, answer, more: true }));
    for mut status in answer.status {
        let (node, shard, software) = (status.node, status.shard, status.software.take());
        part(Answer::Status(status.into()));
        if let Some(software) = software.filter(|_| asked.version >= KNOWS_RELOAD) {
            part(Answer::Software { node, shard, software });
        }
    }
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
