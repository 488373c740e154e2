//! One of an array's lock servers (docs/design/array.md 3.6). It serves in the terms that the array's state gives it, and
//! stands by in others.
//!
//! - **A term** is agreed on by the array's voters. It names the process that serves by a random number. So two never serve in
//!   one term, also if they have the same id.
//! - **Complete logs.** Only a lock server whose log has every lock may ask for a term (`copies.rs`). To hosts, its first moment is
//!   a restart of the lock server with its log. [`LockServer`] argues why that is safe.
//! - **The former one** grants nothing after that. It needs the copy of the one that serves now, which takes nothing of an older
//!   term any more since it asked to serve. Hosts refuse what a former term says.
//! - **When to ask.** Devices tell for how long nobody has served. This only starts the question, so that clocks, pauses and
//!   links have no part in the answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::copies::{Copies, CopyMessage, mixed};
use super::journal::{LogAsk, LogToken, decode};
use super::service::{LockChange, LockService};
use super::standby::{Record, Silence, Standby, Verdict};
use super::{
    LockServer, ServerConfig, ServerError, ServerInput, ServerOutput, ServerReply, ServerRequest,
};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{ArrayState, DeviceId, Epoch, Life, ServerId, Time};

/// How a lock server is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaConfig {
    /// Which one it is.
    pub id: ServerId,
    /// How many devices and witnesses the array has.
    pub voters: u16,
    /// How it serves.
    pub server: ServerConfig,
    /// A random number, another one at each start.
    pub random: u64,
    /// An operator says that all hosts have ended and that no log is left: it may begin with an empty one.
    pub anew: bool,
    /// A rule that is left out, to show that checks find it.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

impl ReplicaConfig {
    /// One with a log that was not lost.
    pub fn new(id: ServerId, voters: u16, server: ServerConfig, random: u64) -> Self {
        ReplicaConfig {
            id,
            voters,
            server,
            random,
            anew: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// An input of a lock server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaInput {
    /// A host can be talked to.
    Connected {
        /// Which life.
        life: Life,
    },
    /// A host's connection has broken.
    Gone {
        /// Which life.
        life: Life,
    },
    /// A host asks.
    Request {
        /// Which life.
        from: Life,
        /// The request.
        request: ServerRequest,
    },
    /// A write of the log is durable.
    Logged {
        /// The token of the durable record.
        token: LogToken,
    },
    /// A device or witness has answered [`ReplicaOutput::Attend`].
    Attended {
        /// Which one.
        from: DeviceId,
        /// The array's state.
        state: ArrayState,
        /// For how long it has not heard the lock server that serves in that state.
        silent: Time,
    },
    /// Another lock server can be talked to. Nothing of an earlier connection comes any more.
    PeerUp {
        /// Which one.
        server: ServerId,
        /// It knows the keys that records of the log bring. Those of earlier releases do not, and keep theirs.
        renews: bool,
    },
    /// The connection to another lock server has broken.
    PeerDown {
        /// Which one.
        server: ServerId,
    },
    /// Another lock server has said something.
    Heard {
        /// Which one.
        from: ServerId,
        /// The message.
        message: CopyMessage,
    },
    /// Time has passed.
    Tick,
}

/// An output of a lock server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaOutput {
    /// Send it to a host.
    Send {
        /// Which life.
        to: Life,
        /// The reply.
        reply: ServerReply,
    },
    /// Write the log.
    Log(LogAsk),
    /// As [`ServerOutput::Suspect`].
    Suspect(Life),
    /// Tell all devices and witnesses that this lock server is there.
    Attend {
        /// The term in which it serves, if it does.
        serving: Option<u64>,
    },
    /// Tell a device or witness that the array's state is this one.
    Inform {
        /// Which one.
        to: DeviceId,
        /// The state.
        state: Box<ArrayState>,
    },
    /// Send it to another lock server, if there is a connection.
    Tell {
        /// Which one.
        to: ServerId,
        /// The message.
        message: CopyMessage,
    },
    /// Ask for this change of the array's state. It is said again if nothing comes of it.
    Propose(LockChange),
    /// It serves from now on.
    Serves {
        /// In which term.
        term: u64,
    },
    /// It serves no longer: another one does.
    Retired,
}

enum Role {
    Standby(Standby),
    Serving(Box<Serving>),
}

fn standby(config: &ReplicaConfig, log: Vec<Bytes>) -> Role {
    #[cfg_attr(not(feature = "mutations"), expect(unused_mut))]
    let mut standby = Standby::new(config.id, log);
    #[cfg(feature = "mutations")]
    {
        standby.mutation = config.mutation;
    }
    Role::Standby(standby)
}

struct Serving {
    server: LockServer,
    term: u64,
    copies: Copies,
}

/// The next step when a write of the log is durable.
enum Written {
    /// Of the lock server that serves.
    Served,
    /// The claim may be made.
    Claimed { holder: u64 },
    /// The copy has a message.
    Copied { to: ServerId, term: u64, number: u64 },
}

/// One of an array's lock servers.
pub struct Replica {
    config: ReplicaConfig,
    now: Time,
    /// The newest state of the array that a device has told.
    state: ArrayState,
    service: LockService,
    silence: Silence,
    hosts: BTreeSet<Life>,
    /// Those that can be talked to, and whether they know keys in records.
    peers: BTreeMap<ServerId, bool>,
    role: Role,
    writes: BTreeMap<LogToken, Written>,
    next_token: u64,
    /// When devices are told next.
    attends: Time,
    outputs: VecDeque<ReplicaOutput>,
}

impl Replica {
    /// Starts with the records of its log; none for a new one.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn new(config: ReplicaConfig, log: Vec<Bytes>, now: Time) -> Result<Self, ServerError> {
        if !config.server.scheme.has_server() {
            return Err(ServerError::Scheme(config.server.scheme));
        }
        for (index, record) in log.iter().enumerate() {
            decode(record).map_err(|why| ServerError::Log { index, why: why.to_string() })?;
        }
        Ok(Replica {
            role: standby(&config, log),
            config,
            now,
            state: ArrayState::default(),
            service: LockService::default(),
            silence: Silence::default(),
            hosts: BTreeSet::new(),
            peers: BTreeMap::new(),
            writes: BTreeMap::new(),
            next_token: 0,
            attends: now,
            outputs: VecDeque::new(),
        })
    }

    /// The table of locks, if this lock server serves.
    pub fn server(&self) -> Option<&LockServer> {
        match &self.role {
            Role::Serving(serving) => Some(&serving.server),
            Role::Standby(_) => None,
        }
    }

    /// The newest agreement on lock servers that it knows.
    pub fn service(&self) -> &LockService {
        &self.service
    }

    /// Returns true if its log has every lock that was granted, as far as it knows.
    pub fn is_complete(&self) -> bool {
        match &self.role {
            Role::Serving(_) => true,
            Role::Standby(standby) => standby.is_complete(&self.service),
        }
    }

    /// Why it does not serve; none if it does.
    pub fn waits(&self) -> Option<String> {
        if self.server().is_some() {
            return None;
        }
        let LockService { term, serving, .. } = self.service;
        let complete = self.is_complete();
        Some(match (term, serving == self.config.id) {
            _ if self.state.epoch == Epoch(0) => "no device has answered yet".into(),
            (0, _) if !complete => "lock server 0 has to serve first".into(),
            (0, _) => "it asks the devices to let it serve".into(),
            (_, true) if complete => "it asks the devices to let it serve".into(),
            (_, true) => "its log is not the one with the array's locks".into(),
            (_, false) if complete => format!("it stands by: {serving} serves"),
            (_, false) => format!("it stands by without every lock: {serving} serves"),
        })
    }

    /// Handles an input. `now` is the lock server's clock, which must not go back.
    pub fn handle(&mut self, now: Time, input: ReplicaInput) {
        self.now = self.now.max(now);
        match input {
            ReplicaInput::Connected { life } => {
                self.hosts.insert(life);
                self.serve(ServerInput::Connected { life });
            }
            ReplicaInput::Gone { life } => drop(self.hosts.remove(&life)),
            ReplicaInput::Request { from, request } => {
                self.serve(ServerInput::Request { from, request });
            }
            ReplicaInput::Logged { token } => self.logged(token),
            ReplicaInput::Attended { from, state, silent } => {
                self.silence.heard(self.now, from, state.locks.term, silent);
                self.inform(from, &state);
                self.learn(state);
            }
            ReplicaInput::PeerUp { server, renews } => {
                self.peers.insert(server, renews);
                self.copy_begins(server);
            }
            ReplicaInput::PeerDown { server } => {
                self.peers.remove(&server);
                if let Role::Serving(serving) = &mut self.role {
                    serving.copies.lost(server);
                }
            }
            ReplicaInput::Heard { from, message } => self.heard(from, message),
            ReplicaInput::Tick => {}
        }
        self.attend();
        self.keep_serving();
        self.stand_by();
    }

    /// The logs of all that may serve get other keys, by which copies that were made of them before are known to be older.
    pub fn change_keys(&mut self, now: Time) {
        self.now = self.now.max(now);
        if let Role::Serving(serving) = &mut self.role {
            let id = self.config.id;
            let renews = |server| server == id || self.peers.get(&server) == Some(&true);
            let keys = serving.copies.renew(&self.service, renews);
            serving.server.new_keys(keys);
        }
        self.keep_serving();
    }

    /// The next output; call until it returns `None`.
    pub fn poll(&mut self) -> Option<ReplicaOutput> {
        self.outputs.pop_front()
    }

    /// When to call with a tick, if nothing else happens before.
    pub fn next_timer(&self) -> Option<Time> {
        let serving = match &self.role {
            Role::Serving(serving) => {
                let copies = serving.copies.next_timer();
                copies.into_iter().chain(serving.server.next_timer()).min()
            }
            Role::Standby(_) => None,
        };
        Some(serving.map_or(self.attends, |at| at.min(self.attends)))
    }

    fn lease(&self) -> Time {
        self.config.server.lease
    }

    fn attend(&mut self) {
        if self.now < self.attends {
            return;
        }
        self.attends = self.now.saturating_add(self.lease() / 8);
        let serving = match &self.role {
            Role::Serving(serving) => Some(serving.term),
            Role::Standby(_) => None,
        };
        self.outputs.push_back(ReplicaOutput::Attend { serving });
    }

    /// Something for the lock server that serves; others say nothing to hosts.
    fn serve(&mut self, input: ServerInput) {
        if let Role::Serving(serving) = &mut self.role {
            serving.server.handle(self.now, input);
        }
    }

    /// A device may have missed a change. Its word on who serves would not count until some host tells it.
    fn inform(&mut self, device: DeviceId, knows: &ArrayState) {
        if knows.epoch < self.state.epoch {
            let state = Box::new(self.state.clone());
            self.outputs.push_back(ReplicaOutput::Inform { to: device, state });
        }
    }

    fn learn(&mut self, state: ArrayState) {
        if state.epoch <= self.state.epoch {
            return;
        }
        let before = std::mem::replace(&mut self.service, state.locks.clone());
        self.state = state;
        match &mut self.role {
            Role::Serving(serving) if serving.term < self.service.term => self.retire(),
            Role::Serving(serving) => {
                let out = serving.copies.agreed(&before, &self.service);
                if let (false, Some(key)) =
                    (serving.copies.is_renewing(), self.service.complete.get(&self.config.id))
                {
                    serving.server.key_is(self.config.id, *key);
                }
                for server in out {
                    self.copy_begins(server);
                }
            }
            Role::Standby(standby) => match standby.verdict(&self.service) {
                Verdict::Open => {}
                Verdict::Serves => self.begin(),
                Verdict::Void => standby.claim = None,
            },
        }
    }

    /// A term begins, with the log that this lock server has.
    fn begin(&mut self) {
        let Role::Standby(standby) = &mut self.role else { return };
        let (term, holder, id) = (self.service.term, self.service.holder, self.config.id);
        let (config, now) = (self.config.server, self.now);
        let started = LockServer::in_term(config, standby.records(), now, term, (id, holder));
        // All records were looked at when they came.
        let Ok(server) = started else { return standby.claim = None };
        let copies = Copies::new(term, self.lease() / 4, mixed(self.config.random ^ term));
        self.role = Role::Serving(Box::new(Serving { server, term, copies }));
        self.outputs.push_back(ReplicaOutput::Serves { term });
        // The devices hear of it at once.
        self.attends = self.now;
        for life in self.hosts.clone() {
            self.serve(ServerInput::Connected { life });
        }
        for server in self.peers.keys().copied().collect::<Vec<_>>() {
            self.copy_begins(server);
        }
    }

    /// Another lock server serves. What this one has is of no use until that one has sent its log.
    fn retire(&mut self) {
        self.role = standby(&self.config, Vec::new());
        self.writes.clear();
        self.outputs.push_back(ReplicaOutput::Retired);
    }

    fn copy_begins(&mut self, server: ServerId) {
        let Role::Serving(serving) = &mut self.role else { return };
        if self.peers.contains_key(&server) {
            let message = serving.copies.begin(server, &self.service, serving.server.whole());
            self.outputs.push_back(ReplicaOutput::Tell { to: server, message });
        }
    }

    fn heard(&mut self, from: ServerId, message: CopyMessage) {
        let (CopyMessage::Whole { term, .. }
        | CopyMessage::More { term, .. }
        | CopyMessage::Copied { term, .. }) = message;
        match (&mut self.role, message) {
            (Role::Serving(serving), CopyMessage::Copied { number, .. }) => {
                if serving.term == term {
                    serving.copies.confirmed(from, number);
                }
            }
            // The lock server of a newer term sends its log once.
            (Role::Serving(serving), message) if serving.term < term => {
                self.retire();
                self.copy(from, message);
            }
            (Role::Serving(_), _) => {}
            (Role::Standby(_), message) => self.copy(from, message),
        }
    }

    fn copy(&mut self, from: ServerId, message: CopyMessage) {
        let Role::Standby(standby) = &mut self.role else { return };
        if let Some((record, term, number)) = standby.copy(from, message, &self.service) {
            self.log(record, Written::Copied { to: from, term, number });
        }
    }

    fn log(&mut self, record: Record, written: Written) {
        let token = LogToken(self.next_token);
        self.next_token += 1;
        self.writes.insert(token, written);
        self.outputs.push_back(ReplicaOutput::Log(match record {
            Record::Append(record) => LogAsk::Append { token, record },
            Record::Replace(record) => LogAsk::Replace { token, record },
        }));
    }

    fn logged(&mut self, token: LogToken) {
        match (self.writes.remove(&token), &mut self.role) {
            (Some(Written::Served), Role::Serving(serving)) => serving.copies.written_here(),
            (Some(Written::Claimed { holder }), Role::Standby(standby)) => {
                if let Some(claim) = standby.claim.as_mut().filter(|c| c.holder == holder) {
                    claim.logged = true;
                }
            }
            (Some(Written::Copied { to, term, number }), Role::Standby(_)) => {
                let message = CopyMessage::Copied { term, number };
                self.outputs.push_back(ReplicaOutput::Tell { to, message });
            }
            _ => {}
        }
    }

    /// Passes the outputs of the lock server on, and asks for the copies that it needs.
    fn keep_serving(&mut self) {
        self.serve(ServerInput::Tick);
        loop {
            while let Some(output) = self.next_of_server() {
                self.pass_on(output);
            }
            let Some(token) = self.copied() else { break };
            self.serve(ServerInput::Logged { token });
        }
        let Role::Serving(serving) = &mut self.role else { return };
        let connected = |server: ServerId| self.peers.contains_key(&server);
        let wanted = serving.copies.wanted(self.now, &self.service, connected);
        self.outputs.extend(wanted.map(ReplicaOutput::Propose));
    }

    fn next_of_server(&mut self) -> Option<ServerOutput> {
        match &mut self.role {
            Role::Serving(serving) => serving.server.poll(),
            Role::Standby(_) => None,
        }
    }

    /// The write of the log that all complete logs have.
    fn copied(&mut self) -> Option<LogToken> {
        let Role::Serving(serving) = &mut self.role else { return None };
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::GrantsBeforeCopied) {
            serving.copies.need_nobody();
        }
        serving.copies.done(&self.service)
    }

    fn pass_on(&mut self, output: ServerOutput) {
        let output = match output {
            ServerOutput::Send { to, reply } => ReplicaOutput::Send { to, reply },
            // It says so again after a lease.
            ServerOutput::Suspect(_) if !self.is_confirmed() => return,
            ServerOutput::Suspect(life) => ReplicaOutput::Suspect(life),
            ServerOutput::Log(ask) => return self.log_and_copy(&ask),
        };
        self.outputs.push_back(output);
    }

    /// Returns true if a majority has said lately that it serves. Hosts that are silent here may talk to another lock server
    /// otherwise, and must not be fenced.
    fn is_confirmed(&self) -> bool {
        let Role::Serving(serving) = &self.role else { return false };
        let lately = self.lease() / 2;
        self.silence.lasts(self.now, lately, serving.term, self.config.voters, 0)
    }

    fn log_and_copy(&mut self, ask: &LogAsk) {
        let Role::Serving(serving) = &mut self.role else { return };
        let connected = |server: ServerId| self.peers.contains_key(&server);
        let messages = serving.copies.write(self.now, ask, connected);
        let tell = |(to, message)| ReplicaOutput::Tell { to, message };
        self.outputs.extend(messages.into_iter().map(tell));
        let record = match ask {
            LogAsk::Append { record, .. } => Record::Append(record.clone()),
            LogAsk::Replace { record, .. } => Record::Replace(record.clone()),
        };
        self.log(record, Written::Served);
    }

    /// Asks to serve, if nobody else does.
    fn stand_by(&mut self) {
        let (id, lease, now) = (self.config.id, self.lease(), self.now);
        let due = self.is_vacant();
        let Role::Standby(standby) = &mut self.role else { return };
        if !due {
            return;
        }
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::StandbyServesUnagreed) && self.service.term > 0 {
            return self.begin();
        }
        match &mut standby.claim {
            None => {
                let holder = mixed(self.config.random ^ mixed(now));
                let anew = self.config.anew && self.service.term > 0;
                if let Some(record) = standby.claim(&self.service, holder, anew) {
                    self.log(record, Written::Claimed { holder });
                }
            }
            Some(claim) => {
                let again = claim.asked.is_none_or(|at| now.saturating_sub(at) >= lease / 4);
                if claim.logged && again {
                    claim.asked = Some(now);
                    self.outputs.push_back(ReplicaOutput::Propose(claim.change(id)));
                }
            }
        }
    }

    /// Returns true if this lock server may ask to serve. The one that served last, with its log, asks at once. Of several others, the
    /// lower ids ask first.
    fn is_vacant(&self) -> bool {
        let Role::Standby(standby) = &self.role else { return false };
        let LockService { term, serving, ref complete, .. } = self.service;
        let rank = complete.keys().filter(|id| **id != serving && **id < self.config.id).count();
        let lease = self.lease();
        let own = standby.served_last(&self.service) && standby.is_complete(&self.service);
        // One that serves is heard twice in a quarter of a lease.
        let least = match own {
            true if term == 0 => 0,
            true => lease / 4,
            false => lease.saturating_add(lease / 2 * rank as u64),
        };
        self.silence.lasts(self.now, lease / 2, term, self.config.voters, least)
    }
}

#[cfg(test)]
mod tests;
