//! A shard's part of a restart. It stands still and writes its state. In the new program, it
//! continues from there.

use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockify_core::ClientId;
use lockify_host::{ClientHost, DepartedImage, HostImage, HostedClient, Quota, Recipient};
use lockify_node::{EngineImage, NodeConfig, NodeEngine};
use lockify_session::protocol::{Answer, Event, Refusal, pid_of};
use mio::{Interest, Token};
use serde::{Deserialize, Serialize};

use super::{FIRST_SESSION, Shard, ShardSetup, UserUse};
use crate::handover::{Order, Outlet, Written};
use crate::listener::Listener;
use crate::session::{Session, SessionImage};
use crate::user::{User, trusted};

/// Turns in which a shard comes to rest: immediate work is done in the first few.
const TURNS: usize = 64;

/// All that a shard is. Its descriptors go along in this order: the clients' socket, the lock on its
/// path (or that socket again, if it has a name and no path), the peers' socket if there is one, and those of the sessions.
#[derive(Serialize, Deserialize)]
pub(crate) struct ShardImage<'a> {
    engine: EngineImage<'a>,
    host: HostImage,
    sessions: Vec<SessionImage>,
    sessions_ever: u32,
    has_peers: bool,
    /// Clients that wait to be told that the restart is done, with the numbers of their queries.
    askers: Vec<(ClientId, u64)>,
}

impl Shard {
    /// A client wants the daemon to be restarted.
    pub(super) fn asked_to_restart(&mut self, index: usize, id: u64) {
        let client = &self.sessions[index].client;
        let asked = match client.privileged {
            true => self.setup.restart.ask(self.setup.index, (client.id, id)),
            false => {
                Err("only root and the user that the lock daemon runs as may restart it".into())
            }
        };
        if let Err(why) = asked {
            let answer = Answer::Refused(Refusal::Failed(why));
            self.out
                .push((Recipient::Client(client.id), Event::Answer { id, answer, more: false }));
        }
    }

    /// Executes a restart's order for this shard: usually the shard does not exist any more
    /// afterwards.
    pub(super) fn stand_still(&mut self) {
        let restart = self.setup.restart.clone();
        for ((client, id), why) in restart.refused(self.setup.index) {
            let answer = Answer::Refused(Refusal::Failed(why));
            self.out.push((Recipient::Client(client), Event::Answer { id, answer, more: false }));
        }
        self.deliver();
        if !restart.is_wanted() {
            return;
        }
        let ready = self.come_to_rest();
        if let Order::Write(outlet) = restart.arrive(self.setup.index, ready) {
            restart.hand_in(self.setup.index, self.write(&outlet));
        }
    }

    /// Brings everything to an end that can be brought to an end at once.
    fn come_to_rest(&mut self) -> Result<(), String> {
        let mut why = String::new();
        for _ in 0..TURNS {
            let mut rest = Vec::new();
            self.host.prepare_image(&mut self.engine, &mut self.out, &mut rest);
            rest.into_iter().for_each(|event| self.event(event));
            self.deliver();
            match self.image() {
                Ok(_) => return Ok(()),
                Err(obstacle) => why = obstacle,
            }
            self.turn(Some(Duration::ZERO)).map_err(|e| e.to_string())?;
        }
        Err(why)
    }

    fn image(&self) -> Result<ShardImage<'_>, String> {
        if self.quorum_lost || self.quorum_command.is_some() {
            return Err("the quorum was lost, and the daemon does what is configured then".into());
        }
        if self.reloading.as_ref().is_some_and(|r| r.asked > 0) {
            return Err("the configuration is being read again".into());
        }
        if !self.out.is_empty() {
            return Err("clients have not been told all that there is".into());
        }
        Ok(ShardImage {
            engine: self.engine.image()?,
            host: self.host.image()?,
            sessions: self.sessions.iter().map(|(_, s)| s.image()).collect(),
            sessions_ever: self.sessions_ever,
            has_peers: self.engine.listener().is_some(),
            askers: self.setup.restart.askers(self.setup.index),
        })
    }

    /// Writes this shard's state, and sends its descriptors.
    fn write(&self, outlet: &Outlet) -> Result<Written, String> {
        let image = self.image()?;
        let image = postcard::to_allocvec(&image)
            .map_err(|e| format!("its state cannot be written: {e}"))?;
        let sessions = self.sessions.iter().map(|(_, s)| s.socket.as_fd());
        let [socket, lock] = self.listener.descriptors();
        let all: Vec<BorrowedFd<'_>> =
            [socket, lock].into_iter().chain(self.engine.listener()).chain(sessions).collect();
        outlet.send(self.setup.index, &all)?;
        let held = self.engine.held_locks().map(|(space, name, mode, client)| {
            format!("{mode} \"{name}\" in lockspace {space}, of process {}\n", pid_of(client))
        });
        Ok(Written { image, sessions: self.sessions.len(), held: held.collect() })
    }

    /// The shard that another program has written down.
    ///
    /// # Errors
    /// The mismatch.
    pub(crate) fn resume(
        setup: ShardSetup,
        mut node: NodeConfig,
        path: &Path,
        image: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Shard, String> {
        let unreadable = |e: postcard::Error| format!("the state is not understood: {e}");
        let image: ShardImage<'static> = postcard::from_bytes(image).map_err(unreadable)?;
        let ShardImage { engine, host, sessions, sessions_ever, has_peers, askers } = image;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or("a descriptor is missing");
        let listener = Listener::resume(path, next()?, next()?);
        if has_peers {
            node.listener = Some(TcpListener::from(next()?));
        }
        let engine = NodeEngine::resume(node, engine).map_err(|e| e.to_string())?;
        let (host, departed) = ClientHost::resume(&engine, host);
        let shard = Shard::new(setup, engine, host, listener);
        let mut shard = shard.map_err(|e| format!("cannot watch the clients' socket: {e}"))?;
        shard.sessions_ever = sessions_ever;
        for session in sessions {
            let socket = UnixStream::from(next()?);
            shard
                .take_session(session, socket)
                .map_err(|e| format!("a session is of no use: {e}"))?;
        }
        shard.take_departed(departed);
        for (client, id) in askers {
            let (answer, more) = (Answer::Done, false);
            shard.out.push((Recipient::Client(client), Event::Answer { id, answer, more }));
        }
        shard.deliver();
        Ok(shard)
    }

    /// Goes on with a session of the program before.
    fn take_session(&mut self, image: SessionImage, socket: UnixStream) -> std::io::Result<()> {
        let user = User::of(&socket)?;
        let (quota, max_unread) = (self.quota(&user), self.setup.limits.max_unread);
        let (who, rights) = (user.who.clone(), user.rights(&self.setup.access));
        let socket = mio::net::UnixStream::from_std(socket);
        let mut session = Session::resume(image, socket, user, max_unread, |known| {
            HostedClient::resume(known, quota).of(who, rights)
        });
        session.awaits_room = session.unread() > 0;
        let interest = match session.awaits_room {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        let entry = self.sessions.vacant_entry();
        let (index, token) = (entry.key(), Token(FIRST_SESSION + entry.key()));
        self.engine.registry().register(&mut session.socket, token, interest)?;
        if session.greeted {
            self.clients.insert(session.client.id, index);
        }
        let (user, locks) = (session.user.clone(), session.client.of_user());
        entry.insert(session);
        self.count(&user, locks);
        self.schedule(index);
        Ok(())
    }

    /// Goes on counting what clients of the program before have left that are gone.
    fn take_departed(&mut self, departed: Vec<DepartedImage>) {
        let users = &mut self.users;
        self.host.resume_departed(departed, |uid| {
            // Root and the daemon's user are not counted: they may leave as much as they like.
            let of_user = uid.filter(|uid| !trusted(*uid)).map(|uid| {
                let new = || UserUse { sessions: 0, locks: Arc::default() };
                users.entry(uid).or_insert_with(new).locks.clone()
            });
            Quota { user: of_user.unwrap_or_default(), ..Quota::unlimited() }
        });
    }
}
