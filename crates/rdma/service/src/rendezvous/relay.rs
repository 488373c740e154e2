//! The host's thread: admits participants, and carries their messages.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockify_trust::speech::Framed as _;
use lockify_trust::{End, Line, Security};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::frame::{Frame, Who};
use super::shared::Shared;
use super::{GREETING, HOME, Identity, LAST_RANK, PATIENCE, QUEUE, SILENCE};

/// Connections that have not introduced themselves.
const STRANGERS: usize = 64;
/// Frames of one participant before others have their turn.
const FRAMES: usize = 64;
/// How long a refused peer may take to read the reason, and a participant to read that it is over.
const FAREWELL: Duration = Duration::from_millis(500);
/// How often times are looked at, while there is one to keep.
const TICK: Duration = Duration::from_millis(250);
/// Complaints in a second.
const COMPLAINTS: u32 = 8;

/// The hosted table.
#[derive(Clone, Debug)]
pub struct Hosting {
    /// Where it listens; port 0 for any.
    pub address: SocketAddr,
    /// The identity of this process.
    pub identity: Identity,
    /// How many can take part at a time, 1 to [`LAST_RANK`].
    pub places: u16,
    /// The offer for participants, at most [`MAX_BYTES`](super::MAX_BYTES).
    pub offer: Vec<u8>,
    /// Is told of those who are turned away, and why: some lines a second at most. From another thread.
    pub log: fn(&str),
}

struct Member {
    line: Line<Frame>,
    from: SocketAddr,
    since: Instant,
    /// Once it takes part.
    who: Option<Who>,
    /// Since when it is refused.
    refused: Option<Instant>,
    /// It may have said more than was heard.
    speaks: bool,
    /// Its message to a receiver with a full queue. It is not read until this is gone.
    held: Option<(Who, Vec<u8>)>,
}

pub(super) struct Relay {
    hosting: Hosting,
    listener: mio::net::TcpListener,
    poll: Poll,
    shared: Arc<Shared>,
    members: Slab<Member>,
    by_rank: BTreeMap<u16, usize>,
    last_rank: u16,
    lives: u64,
    /// There may be somebody to accept.
    knocks: bool,
    complaints: (Instant, u32),
}

impl Relay {
    pub const WAKER: Token = Token(usize::MAX);
    const LISTENER: Token = Token(usize::MAX - 1);

    pub fn new(
        hosting: Hosting,
        listener: TcpListener,
        poll: Poll,
        shared: Arc<Shared>,
    ) -> io::Result<Relay> {
        let mut listener = mio::net::TcpListener::from_std(listener);
        poll.registry().register(&mut listener, Relay::LISTENER, Interest::READABLE)?;
        let (members, by_rank) = (Slab::new(), BTreeMap::new());
        let (last_rank, lives, knocks) = (0, 0, false);
        let complaints = (Instant::now(), 0);
        Ok(Relay {
            hosting,
            listener,
            poll,
            shared,
            members,
            by_rank,
            last_rank,
            lives,
            knocks,
            complaints,
        })
    }

    /// Until the home stops it.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut busy = false;
        while !self.shared.state().stop {
            let idle = !self.knocks && self.members.iter().all(|(_, m)| m.is_at_rest());
            let timeout = if busy { Some(Duration::ZERO) } else { (!idle).then_some(TICK) };
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    self.shared.state().over = Some(format!("waiting for events failed: {e}"));
                    self.shared.ring();
                    return;
                }
                _ => {}
            }
            for event in &events {
                match event.token() {
                    Relay::WAKER => {}
                    Relay::LISTENER => self.knocks = true,
                    Token(key) => {
                        if let Some(member) = self.members.get_mut(key) {
                            member.speaks = true;
                            member.line.woken(event.is_read_closed() || event.is_error());
                        }
                    }
                }
            }
            busy = self.turn();
        }
        self.farewell();
    }

    /// Does what can be done now; whether more can be.
    fn turn(&mut self) -> bool {
        self.accept();
        let mut moved = self.carry_for_home();
        let keys: Vec<usize> = self.members.iter().map(|(key, _)| key).collect();
        for &key in &keys {
            moved |= self.hear(key);
        }
        for &key in &keys {
            moved |= self.members.get_mut(key).is_some_and(|member| member.line.flush());
            self.expire(key);
        }
        moved
    }

    fn accept(&mut self) {
        // Each new participant is one more event for the home.
        while self.knocks && !self.shared.state().incoming.is_full() {
            let (mut stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // Nobody more; or no descriptors, and then it is tried again in the next turn.
                Err(e) => {
                    self.knocks = e.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            let strangers = self.members.iter().filter(|(_, m)| m.who.is_none());
            if strangers.clone().count() >= STRANGERS
                && let Some((oldest, _)) = strangers.min_by_key(|(_, m)| m.since)
            {
                self.members.remove(oldest);
            }
            let session = match self.hosting.identity.security() {
                Security::Tls(keyring) => match keyring.current().accept() {
                    Ok(session) => Some(session),
                    Err(e) => {
                        self.complain(from, &e.to_string());
                        continue;
                    }
                },
                Security::Loopback | Security::PlainText => None,
            };
            let entry = self.members.vacant_entry();
            let both = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, Token(entry.key()), both).is_ok() {
                let (line, since) =
                    (Line::new(stream, session, SILENCE, Frame::SPOKEN), Instant::now());
                let (who, refused, held) = (None, None, None);
                entry.insert(Member { line, from, since, who, refused, speaks: true, held });
            }
        }
    }

    /// Reads a member, as long as its messages can be carried; returns if there may be more.
    fn hear(&mut self, key: usize) -> bool {
        for _ in 0..FRAMES {
            let Some(member) = self.members.get_mut(key) else { return false };
            if let Some((to, bytes)) = member.held.take() {
                let from = member.who.map_or(HOME, |who| who.rank);
                if let Some(bytes) = self.carry(from, to, bytes) {
                    if let Some(member) = self.members.get_mut(key) {
                        member.held = Some((to, bytes));
                    }
                    return false;
                }
                continue;
            }
            if !member.speaks {
                return false;
            }
            if member.refused.is_some() {
                if member.line.discard() {
                    self.remove(key);
                    return true;
                }
                member.speaks = false;
                return false;
            }
            match member.line.hear() {
                Ok(None) => {
                    member.speaks = false;
                    return false;
                }
                Ok(Some(Frame::Hello { cluster, node, to })) if member.who.is_none() => {
                    match self.why_not(key, &cluster, node, to) {
                        Some(why) => self.refuse(key, why),
                        None => self.admit(key),
                    }
                }
                Ok(Some(Frame::Tell { to, bytes })) if member.who.is_some() => {
                    member.held = Some((to, bytes));
                }
                Ok(Some(_)) => self.refuse(key, "this cannot be said now".into()),
                Err(End::Foreign(why)) => self.refuse(key, why.to_string()),
                Err(End::Distrusted(why)) => {
                    // TLS has told it.
                    let from = member.from;
                    member.refused = Some(Instant::now());
                    member.line.finish();
                    self.announce_gone(key);
                    self.complain(from, &why);
                }
                Err(End::Closed(_)) => {
                    self.remove(key);
                    return true;
                }
            }
        }
        true
    }

    /// Why a stranger may not take part.
    fn why_not(&self, key: usize, cluster: &str, node: u32, to: u32) -> Option<String> {
        let identity = &self.hosting.identity;
        if cluster != identity.cluster() {
            return Some(format!(
                "this is the memory server of cluster {:?}, not of {cluster:?}: correct --cluster",
                identity.cluster()
            ));
        }
        if to != identity.node() {
            return Some(format!(
                "this is node {}, not {to}: correct the address or the server's node",
                identity.node()
            ));
        }
        if !self.members.get(key).is_some_and(|member| member.line.proves(cluster, node)) {
            return Some(format!(
                "the certificate is not that of node {node} of cluster {cluster:?}: give each node its own, and correct \
                 --node"
            ));
        }
        let places = usize::from(self.hosting.places);
        (self.by_rank.len() >= places).then(|| {
            format!("all {places} places are taken: end some clients, or serve more with --clients")
        })
    }

    fn refuse(&mut self, key: usize, why: String) {
        let Some(member) = self.members.get_mut(key) else { return };
        let from = member.from;
        member.refused = Some(Instant::now());
        member.held = None;
        member.line.say(&Frame::Refused(why.clone()));
        member.line.finish();
        self.announce_gone(key);
        self.complain(from, &why);
    }

    fn admit(&mut self, key: usize) {
        // There are fewer places than ranks.
        loop {
            self.last_rank = if self.last_rank == LAST_RANK { 1 } else { self.last_rank + 1 };
            if !self.by_rank.contains_key(&self.last_rank) {
                break;
            }
        }
        self.lives += 1;
        let who = Who { rank: self.last_rank, life: self.lives };
        let others = self.by_rank.values().filter_map(|&other| self.members.get(other)?.who);
        let others: Vec<Who> = others.collect();
        let Some(member) = self.members.get_mut(key) else { return };
        member.who = Some(who);
        let offer = self.hosting.offer.clone();
        member.line.say(&Frame::Welcome { rank: who.rank, offer });
        others.into_iter().for_each(|other| member.line.say(&Frame::Joined(other)));
        self.announce(&Frame::Joined(who));
        self.by_rank.insert(who.rank, key);
    }

    /// Tells everybody who takes part.
    fn announce(&mut self, frame: &Frame) {
        for key in self.by_rank.values() {
            if let Some(member) = self.members.get_mut(*key) {
                member.line.say(frame);
            }
        }
        self.shared.state().incoming.add(frame.clone());
        self.shared.ring();
    }

    fn announce_gone(&mut self, key: usize) {
        let who = self.members.get_mut(key).and_then(|member| member.who.take());
        if let Some(Who { rank, .. }) = who {
            self.by_rank.remove(&rank);
            self.announce(&Frame::Gone { rank });
        }
    }

    fn remove(&mut self, key: usize) {
        self.announce_gone(key);
        self.members.try_remove(key);
    }

    /// Puts out who takes too long: to introduce itself, to read, to go.
    fn expire(&mut self, key: usize) {
        let Some(Member { line, since, who, refused, from, .. }) = self.members.get(key) else {
            return;
        };
        let from = *from;
        let why = match (refused, who) {
            (Some(since), _) if since.elapsed() > FAREWELL => "",
            (None, None) if since.elapsed() > GREETING => "it did not introduce itself",
            (None, Some(_)) if line.stuck_for() > PATIENCE || line.unsent() > 2 * QUEUE => {
                "it does not read what it is told"
            }
            _ => return,
        };
        self.remove(key);
        if !why.is_empty() {
            self.complain(from, why);
        }
    }

    /// Carries a message; gives it back if the receiver has too much already. A message for a gone participant is
    /// dropped.
    fn carry(&mut self, from: u16, to: Who, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if to.rank == HOME {
            let mut state = self.shared.state();
            if state.incoming.is_full() {
                return Some(bytes);
            }
            state.incoming.add(Frame::Told { from, bytes });
            self.shared.ring();
            return None;
        }
        let key = self.by_rank.get(&to.rank);
        let member = key.and_then(|key| self.members.get_mut(*key));
        let member = member.filter(|member| member.who == Some(to))?;
        if member.line.unsent() >= QUEUE {
            return Some(bytes);
        }
        member.line.say(&Frame::Told { from, bytes });
        None
    }

    /// Carries the home's messages; returns if there were any.
    fn carry_for_home(&mut self) -> bool {
        let mut moved = false;
        loop {
            let Some((to, bytes)) = self.shared.state().outgoing.pop_front() else { return moved };
            let length = bytes.len();
            if let Some(bytes) = self.carry(HOME, to, bytes) {
                // Only this thread takes from the front.
                self.shared.state().outgoing.push_front((to, bytes));
                return moved;
            }
            self.shared.state().unsent -= length;
            self.shared.ring();
            moved = true;
        }
    }

    fn complain(&mut self, from: SocketAddr, why: &str) {
        if self.complaints.0.elapsed() >= Duration::from_secs(1) {
            self.complaints = (Instant::now(), 0);
        }
        self.complaints.1 += 1;
        if self.complaints.1 <= COMPLAINTS {
            (self.hosting.log)(&format!("turned {from} away: {why}"));
        }
    }

    /// Says that it is over, and waits a moment until it was heard.
    fn farewell(mut self) {
        for (_, member) in &mut self.members {
            if member.who.is_some() {
                member.line.say(&Frame::Ended);
            }
            member.line.finish();
        }
        let begin = Instant::now();
        while !self.members.is_empty() && begin.elapsed() < FAREWELL {
            self.members.retain(|_, member| !member.line.discard());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Member {
    /// Returns true if nothing of it depends on time.
    fn is_at_rest(&self) -> bool {
        self.who.is_some() && self.held.is_none() && self.line.unsent() == 0
    }
}
