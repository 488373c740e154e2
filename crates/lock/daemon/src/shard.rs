//! One shard of the daemon: an engine and the sessions of local clients, in one loop.

mod handover;
mod settings;

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockify_core::ClientId;
use lockify_host::{ClientHost, HostedClient, Outbox, Quota, Recipient};
use lockify_node::{HOST_TOKENS, HostEvent, NodeEngine, NodeError};
use lockify_session::protocol::{Event, Goodbye, Query, Request, client_id, pid_of};
use mio::{Interest, Token};
use slab::Slab;

use crate::config::{Access, Limits, QuorumLost, QuorumLostAction};
use crate::handover::Restart;
use crate::listener::Listener;
use crate::log::{Complaints, Log};
use crate::manager::{Manager, Pulse};
use crate::metrics::{Sessions, Snapshot, SnapshotCell};
use crate::session::{End, Session};
use crate::user::User;

#[cfg(test)]
pub(crate) use handover::ShardImage;

pub(crate) use settings::Reloading;

const LISTENER: Token = Token(HOST_TOKENS);
const FIRST_SESSION: usize = HOST_TOKENS + 1;

/// Requests of one session before the others, and the peers, have their turn.
const TURN: usize = 32;

/// How long a node that has no others may take to run its lockspaces.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

/// How long leaving the cluster may take.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);

/// The configuration of a shard.
pub(crate) struct ShardSetup {
    pub(crate) index: u16,
    pub(crate) shards: u16,
    pub(crate) limits: Limits,
    /// The permissions of each lockspace.
    pub(crate) access: Arc<[Access]>,
    /// The permissions to connect, where the socket is no file with permissions.
    pub(crate) door: Option<Access>,
    pub(crate) shutdown_grace: Duration,
    pub(crate) idle_exit: Option<Duration>,
    /// The node has no others.
    pub(crate) alone: bool,
    pub(crate) quorum_lost: QuorumLost,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) restart: Arc<Restart>,
    pub(crate) snapshot_cell: SnapshotCell,
    pub(crate) pulse: Pulse,
    pub(crate) manager: Manager,
    pub(crate) log: Log,
}

/// The use of limits by a user that is neither root nor the daemon's own.
struct UserUse {
    sessions: u32,
    /// Those that it has left as orphans included.
    locks: Arc<AtomicU32>,
}

pub(crate) struct Shard {
    setup: ShardSetup,
    engine: NodeEngine,
    host: ClientHost,
    listener: Listener,
    /// The listener may have more connections than there were file descriptors for.
    accept_again: bool,
    /// Connecting clients wait until the lockspaces run.
    joining: bool,
    sessions: Slab<Session>,
    clients: HashMap<ClientId, usize>,
    users: HashMap<u32, UserUse>,
    sessions_ever: u32,
    /// Of what clients do.
    complaints: Complaints,
    /// Figures of sessions that have ended.
    past: Sessions,
    /// Sessions that have, or may have, requests.
    due: VecDeque<usize>,
    out: Outbox,
    rest: Vec<HostEvent>,
    lefts: usize,
    /// The quorum was lost, and that is to be the end.
    quorum_lost: bool,
    /// Runs the command for that.
    quorum_command: Option<std::thread::JoinHandle<()>>,
    reloading: Option<Reloading>,
}

impl Shard {
    pub(crate) fn new(
        setup: ShardSetup,
        engine: NodeEngine,
        host: ClientHost,
        mut listener: Listener,
    ) -> std::io::Result<Shard> {
        engine.registry().register(&mut listener.socket, LISTENER, Interest::READABLE)?;
        Ok(Shard {
            complaints: Complaints::new(setup.log.clone()),
            setup,
            engine,
            host,
            listener,
            accept_again: false,
            joining: false,
            sessions: Slab::new(),
            clients: HashMap::new(),
            users: HashMap::new(),
            sessions_ever: 0,
            past: Sessions::default(),
            due: VecDeque::new(),
            out: Vec::new(),
            rest: Vec::new(),
            lefts: 0,
            quorum_lost: false,
            quorum_command: None,
            reloading: None,
        })
    }

    /// Measures what clients do from now on.
    pub(crate) fn measure(&mut self) {
        self.host.measure();
    }

    /// Wakes its loop.
    pub(crate) fn waker(&self) -> Arc<mio::Waker> {
        self.engine.waker()
    }

    /// Serves until it is told to stop, then leaves in order.
    pub(crate) fn run(mut self) -> Result<(), NodeError> {
        if let Some(before) = self.listener.before() {
            // Clients can connect already; they wait for their greeting.
            before.wait(&self.setup.log, || self.setup.stop.load(Ordering::SeqCst));
        }
        if self.setup.alone {
            self.join_alone()?;
        }
        let mut used = Instant::now();
        while !self.setup.stop.load(Ordering::SeqCst) {
            if self.quorum_lost {
                // The clients were told in the turn that lost it. A peer that this shard still
                // has to tell is told by the farewell.
                let command = self.quorum_command.take();
                self.shut_down()?;
                if let Some(command) = command {
                    // It is what the daemon's end is for. It has a time limit.
                    let _ = command.join();
                }
                return Err(NodeError::QuorumLost);
            }
            let left = self.setup.idle_exit.map(|idle| idle.saturating_sub(used.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                self.setup.log.info("ends, because nobody has used it for a while");
                break;
            }
            if self.setup.restart.concerns(self.setup.index) {
                self.stand_still();
            }
            // Somebody's session ends the counting, and begins it anew with its end.
            let busy = !self.sessions.is_empty();
            self.turn(left.filter(|_| !busy))?;
            if busy || !self.sessions.is_empty() {
                used = Instant::now();
            }
        }
        self.shut_down()
    }

    /// A node that has no others runs its lockspaces as soon as it has read its state; clients that
    /// come before would be refused.
    fn join_alone(&mut self) -> Result<(), NodeError> {
        let end = Instant::now() + JOIN_PATIENCE;
        let runs = |shard: &Shard| shard.engine.status().spaces.iter().all(|space| space.running);
        self.joining = true;
        while !runs(self) && !self.setup.stop.load(Ordering::SeqCst) && Instant::now() < end {
            self.turn(Some(Duration::from_millis(10)))?;
        }
        self.joining = false;
        self.accept();
        Ok(())
    }

    /// Waits for something to do, and does it.
    fn turn(&mut self, timeout: Option<Duration>) -> Result<(), NodeError> {
        self.setup.pulse.beat();
        let idle = self.due.is_empty() || self.engine.congested();
        let timeout = if idle { timeout } else { Some(Duration::ZERO) };
        let mut rest = std::mem::take(&mut self.rest);
        let ran = self.host.turn(&mut self.engine, timeout, &mut self.out, &mut rest);
        for event in rest.drain(..) {
            self.event(event);
        }
        self.rest = rest;
        ran?;
        self.serve_due();
        self.deliver();
        Ok(())
    }

    fn event(&mut self, event: HostEvent) {
        match event {
            HostEvent::Ready { token: LISTENER, .. } => self.accept(),
            HostEvent::Ready { token, readable, writable } => {
                let index = token.0 - FIRST_SESSION;
                let Some(session) = self.sessions.get_mut(index) else {
                    return;
                };
                if readable {
                    session.readable = true;
                    self.schedule(index);
                }
                if writable {
                    self.flush(index);
                }
            }
            HostEvent::Notice(notice) => self.setup.log.notice(&notice),
            HostEvent::Woken => {
                self.setup.snapshot_cell.answer(|| self.snapshot());
                self.open_letters();
            }
            HostEvent::Left { .. } => self.lefts += 1,
            HostEvent::QuorumLost => self.lost_quorum(),
            HostEvent::View(view) if self.setup.index == 0 => self.setup.manager.view(&view),
            // The engine's own notices tell the operator; clients have been told by the host.
            _ => {}
        }
    }

    /// Executes the configured action; one shard does it for all.
    fn lost_quorum(&mut self) {
        if self.setup.index != 0 {
            return;
        }
        let what = "has no quorum: no lock is granted; `lockify status` says who is missing";
        self.setup.manager.status(what.into());
        let QuorumLost { action, command, time_limit } = self.setup.quorum_lost.clone();
        self.quorum_lost = action == QuorumLostAction::Exit;
        if command.is_empty() {
            return;
        }
        let log = self.setup.log.clone();
        // A thread of its own: it must not hold up the loop.
        let spawned = std::thread::Builder::new().name("lockify-quorum-lost".into()).spawn({
            let log = log.clone();
            move || match lockify_node::run_agent(&command, &[], time_limit) {
                Ok(_) => log.info("quorum_lost.command has run"),
                Err(e) => log.warning(format!("quorum_lost.command failed: {e}")),
            }
        });
        match spawned {
            Ok(thread) => self.quorum_command = Some(thread),
            Err(e) => log.warning(format!("quorum_lost.command cannot be run: {e}")),
        }
    }

    /// The data for a reader of metrics.
    fn snapshot(&self) -> Snapshot {
        let mut sessions = self.past;
        sessions.open = self.sessions.len() as u64;
        for (_, session) in &self.sessions {
            sessions.bytes_received += session.received;
            sessions.bytes_sent += session.delivered;
            sessions.locks += u64::from(session.client.locks());
        }
        let figures = self.host.figures().cloned().unwrap_or_default();
        let view_changes = self.engine.view_changes();
        let era = self.engine.cluster().map(|c| c.config.era);
        Snapshot { status: self.engine.status(), view_changes, era, figures, sessions }
    }

    fn schedule(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else {
            return;
        };
        if !std::mem::replace(&mut session.scheduled, true) {
            self.due.push_back(index);
        }
    }

    fn accept(&mut self) {
        if self.joining {
            return;
        }
        self.accept_again = false;
        loop {
            match self.listener.socket.accept() {
                Ok((socket, _)) => self.welcome(socket),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) => {
                    let text = "cannot accept a client; raise the limit of open files or close \
                                sessions; will try again when one ends";
                    self.complaints.warning(format!("{text} ({e})"));
                    self.accept_again = true;
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: mio::net::UnixStream) {
        let user = match User::of(&socket) {
            Ok(user) => user,
            Err(e) => {
                let text = format!("refused a client: the kernel does not say who it is ({e})");
                return self.complaints.warning(text);
            }
        };
        if self.setup.door.is_some_and(|door| !user.who.rights_in(&door).lock) {
            // As from a file without permission, it hears nothing; nor does the log, which strangers
            // could fill.
            self.past.ended_by_force += 1;
            return;
        }
        let max_unread = self.setup.limits.max_unread;
        if let Err(why) = self.room(&user) {
            self.past.ended_by_force += 1;
            self.complaints.warning(format!("refused a client of user {}: {why}", user.who.uid));
            let client = HostedClient::new(ClientId(0), Quota::unlimited());
            return Session::new(socket, client, user, 0).refuse(self.setup.shards, why);
        }
        // Until it has greeted, nothing is done in its name.
        let client = HostedClient::new(ClientId(0), self.quota(&user))
            .of(user.who.clone(), user.rights(&self.setup.access));
        let mut session = Session::new(socket, client, user, max_unread);
        let entry = self.sessions.vacant_entry();
        let token = Token(FIRST_SESSION + entry.key());
        match self.engine.registry().register(&mut session.socket, token, Interest::READABLE) {
            Ok(()) => {
                let (index, user, locks) =
                    (entry.key(), session.user.clone(), session.client.of_user());
                entry.insert(session);
                self.count(&user, locks);
                self.past.opened += 1;
                self.schedule(index);
            }
            Err(e) => self.complaints.warning(format!("cannot serve a client: {e}")),
        }
    }

    /// Refuses another session to a user at the limit.
    fn room(&self, user: &User) -> Result<(), Goodbye> {
        let Limits { max_sessions, max_sessions_per_user, .. } = self.setup.limits;
        // Root and the daemon's user must get in when others have taken all that they may.
        let most = match user.who.trusted {
            true => max_sessions,
            false => max_sessions - max_sessions / 16,
        };
        if self.sessions.len() >= most as usize {
            return Err(Goodbye::TooManySessions(most));
        }
        let used = self.users.get(&user.who.uid).map_or(0, |used| used.sessions);
        if !user.who.trusted && used >= max_sessions_per_user {
            return Err(Goodbye::TooManySessionsOfUser(max_sessions_per_user));
        }
        Ok(())
    }

    fn quota(&self, user: &User) -> Quota {
        let Limits { max_locks, max_locks_per_user, .. } = self.setup.limits;
        let used = self.users.get(&user.who.uid).map(|used| used.locks.clone()).unwrap_or_default();
        let of_user = if user.who.trusted { u32::MAX } else { max_locks_per_user };
        Quota { locks: max_locks, of_user, user: used }
    }

    /// Locks of this user's count as these, from its first session on.
    fn count(&mut self, user: &User, locks: Arc<AtomicU32>) {
        if !user.who.trusted {
            let new = || UserUse { sessions: 0, locks };
            self.users.entry(user.who.uid).or_insert_with(new).sessions += 1;
        }
    }

    /// Gives sessions with requests their turn, each once at most: heartbeats wait meanwhile.
    fn serve_due(&mut self) {
        for served in 0..self.due.len() {
            if served > 0 && self.engine.is_turn_over() {
                return;
            }
            if self.engine.congested() {
                // Their requests wait where they are, and behind them the clients.
                return;
            }
            let Some(index) = self.due.pop_front() else {
                return;
            };
            let Some(session) = self.sessions.get_mut(index) else {
                continue;
            };
            session.scheduled = false;
            if let Err(end) = self.serve(index) {
                self.end(index, &end);
            }
        }
    }

    /// Reads, handles and answers. A client that is quick has its next request there by the time
    /// its answer is out: it is handled at once, without asking the event queue.
    fn serve(&mut self, index: usize) -> Result<(), End> {
        for _ in 0..TURN {
            self.sessions[index].fill()?;
            let more = self.handle(index)?;
            if self.sessions[index].ended && !more {
                return Err(End::Closed);
            }
            self.deliver();
            let Some(session) = self.sessions.get(index) else {
                return Ok(());
            };
            if !session.readable && !more {
                return Ok(());
            }
            if self.engine.congested() {
                break;
            }
        }
        self.schedule(index);
        Ok(())
    }

    /// Handles a session's requests; true if there may be more.
    fn handle(&mut self, index: usize) -> Result<bool, End> {
        if !self.sessions[index].greeted && !self.greet(index)? {
            return Ok(false);
        }
        for _ in 0..TURN {
            let session = &mut self.sessions[index];
            if self.engine.congested() {
                return Ok(true);
            }
            let Some(request) = session.request()? else {
                return Ok(false);
            };
            if let Request::Query { id, query: Query::Reload } = request {
                self.asked_to_reload(index, id);
                continue;
            }
            if let Request::Query { id, query: Query::Restart } = request {
                self.asked_to_restart(index, id);
                continue;
            }
            self.host.request(&mut self.engine, &mut session.client, request, &mut self.out);
        }
        Ok(true)
    }

    fn greet(&mut self, index: usize) -> Result<bool, End> {
        let Some(pid) = self.sessions[index].greet(self.setup.index, self.setup.shards)? else {
            return Ok(false);
        };
        let id = loop {
            // Shards count in steps, so that an id is unique on the node. After four billion
            // sessions the numbers come again: not those of sessions that still are.
            let shards = u32::from(self.setup.shards);
            self.sessions_ever = self.sessions_ever.wrapping_add(1);
            let number =
                self.sessions_ever.wrapping_mul(shards).wrapping_add(self.setup.index.into());
            let id = client_id(pid, number);
            if !self.clients.contains_key(&id) && !self.host.has_departed(id) {
                break id;
            }
        };
        self.clients.insert(id, index);
        let session = &mut self.sessions[index];
        session.client.id = id;
        session.flush()?;
        Ok(true)
    }

    /// Brings what clients are told to their sockets.
    fn deliver(&mut self) {
        while !self.out.is_empty() {
            let mut out = std::mem::take(&mut self.out);
            let mut touched = Vec::new();
            for (to, event) in out.drain(..) {
                match to {
                    Recipient::Client(client) => {
                        // A client that is gone needs not be told.
                        let Some(&index) = self.clients.get(&client) else {
                            continue;
                        };
                        self.queue_for_session(index, &event, &mut touched);
                    }
                    Recipient::All => {
                        let all: Vec<usize> = self.clients.values().copied().collect();
                        for index in all {
                            self.queue_for_session(index, &event, &mut touched);
                        }
                    }
                }
            }
            for index in touched {
                self.flush(index);
            }
            // Sessions that ended meanwhile may have led to more.
            if self.out.is_empty() {
                self.out = out;
                return;
            }
        }
    }

    fn queue_for_session(&mut self, index: usize, event: &Event, touched: &mut Vec<usize>) {
        let Some(session) = self.sessions.get_mut(index) else {
            return;
        };
        if session.unread() == 0 {
            touched.push(index);
        }
        if let Err(end) = session.queue_event(event) {
            self.end(index, &end);
        }
    }

    fn flush(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else {
            return;
        };
        let flushed = session.flush().and_then(|()| {
            // Only then: else every read of the client would wake this loop.
            let wanted = session.unread() > 0;
            if std::mem::replace(&mut session.awaits_room, wanted) == wanted {
                return Ok(());
            }
            let interest = match wanted {
                true => Interest::READABLE | Interest::WRITABLE,
                false => Interest::READABLE,
            };
            let token = Token(FIRST_SESSION + index);
            let registry = self.engine.registry();
            registry.reregister(&mut session.socket, token, interest).map_err(End::System)
        });
        if let Err(end) = flushed {
            self.end(index, &end);
        }
    }

    /// Ends a session: its locks go, and the operator is told unless the client ended it.
    fn end(&mut self, index: usize, end: &End) {
        let Some(mut session) = self.sessions.try_remove(index) else {
            return;
        };
        session.part(end);
        let _ = self.engine.registry().deregister(&mut session.socket);
        let id = session.client.id;
        self.past.bytes_received += session.received;
        self.past.bytes_sent += session.delivered;
        if let Some(why) = end.to_log() {
            self.past.ended_by_force += 1;
            self.complaints.warning(format!(
                "ended the session of process {} and released its {} locks: {why}",
                pid_of(id),
                session.client.locks()
            ));
        }
        let Session { client, user, socket, greeted, .. } = session;
        if greeted && self.clients.remove(&id).is_some() {
            self.host.client_gone(&mut self.engine, client, &mut self.out);
        }
        self.depart(&user);
        drop(socket);
        if self.accept_again {
            self.accept();
        }
    }

    /// One session of this user less. Users without sessions are remembered as long as they have left
    /// locks; when the last of those goes, nobody says so, so that all are looked at.
    fn depart(&mut self, user: &User) {
        if let Some(used) = self.users.get_mut(&user.who.uid) {
            used.sessions -= 1;
        }
        self.users.retain(|_, used| used.sessions > 0 || used.locks.load(Ordering::Relaxed) > 0);
    }

    /// Tells the clients, gives those with locks some time, then leaves the cluster.
    fn shut_down(mut self) -> Result<(), NodeError> {
        // New connections find nobody.
        let _ = self.engine.registry().deregister(&mut self.listener.socket);
        let all: Vec<usize> = self.sessions.iter().map(|(index, _)| index).collect();
        let mut touched = Vec::new();
        for index in all {
            self.queue_for_session(index, &Event::Goodbye(Goodbye::Shutdown), &mut touched);
            self.flush(index);
            if self.sessions.get(index).is_some_and(|s| s.client.locks() == 0) {
                self.end(index, &End::Closed);
            }
        }
        let end = Instant::now() + self.setup.shutdown_grace;
        while !self.sessions.is_empty() && Instant::now() < end {
            self.turn(Some(end.saturating_duration_since(Instant::now())))?;
        }
        self.leave()
    }

    fn leave(mut self) -> Result<(), NodeError> {
        let leaving = self.host.leave(&mut self.engine);
        let end = Instant::now() + LEAVE_PATIENCE;
        while self.lefts < leaving && Instant::now() < end {
            self.turn(Some(end.saturating_duration_since(Instant::now())))?;
        }
        if self.lefts < leaving {
            self.setup.log.warning("left without the others' consent: they recover this node");
        }
        self.engine.goodbye();
        Ok(())
    }
}

impl End {
    /// The message for the operator.
    fn to_log(&self) -> Option<String> {
        Some(match self {
            End::Closed => return None,
            End::Told(why) => why.to_string(),
            End::Stranger(why) => (*why).into(),
            End::System(e) => e.to_string(),
        })
    }
}
