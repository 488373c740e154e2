//! The connections of one process: those that come, and those that it makes and makes again.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, DeviceId, Group, Member, ServerId};
use lockify_trust::{Address, End, Identity, Line, Mailbox, Security, TrustError, Versions};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

use super::frame::{Frame, Hello, Role, Welcome, Whom};
use super::report::{Report, Software};
use crate::versions::{HAS_GROUPS, TELLS_SOFTWARE};
use crate::{ArrayFile, ArrayId, DeviceEntry, LockServerEntry};

/// Connections that have not introduced themselves.
const STRANGERS: usize = 64;
/// Frames of one connection before others have their turn.
const FRAMES: usize = 64;
/// The limit of bytes that are kept for a slow reader. Its messages are not read meanwhile.
const QUEUE: usize = 16 << 20;
/// How long a peer may take none of the bytes that are kept for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long connecting, and proving who one is, may take.
const GREETING: Duration = Duration::from_secs(5);
/// How long a refused peer may take to read the reason.
const FAREWELL: Duration = Duration::from_millis(500);
/// When a connection is tried again: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// How often times are looked at, while there is one to keep.
const TICK: Duration = Duration::from_millis(100);
/// Complaints in a second.
const COMPLAINTS: u32 = 8;

/// The last word to a peer that cannot be told the array's state.
const TOO_OLD: &str = "the array has got a group of devices, which the other side's release does not know: upgrade it";

const WAKER: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);

/// The identity of this process.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub identity: Identity,
    pub array: ArrayId,
    pub digest: u64,
    /// Its role towards others.
    pub role: Role,
    /// Its role for those that connect to it, if it listens.
    pub listens_as: Option<Whom>,
    /// The node whose keys a device or lock server has to show when it connects. Any node of the cluster may be a host, but who
    /// passes for a device has its vote, and who passes for a lock server gets the locks.
    pub nodes: BTreeMap<Whom, u32>,
    /// How long another machine may not answer.
    pub silence: Duration,
    /// The versions that it speaks.
    pub spoken: Versions,
}

impl Me {
    pub fn new(file: &ArrayFile, identity: Identity, role: Role) -> Me {
        let listens_as = match role {
            Role::Device { id, .. } => Some(Whom::Device(id)),
            Role::Server(id) => Some(Whom::Server(id)),
            Role::Host(_) | Role::Watcher => None,
        };
        let silence = Duration::from_millis(file.timing.lease_ms);
        let nodes = Target::all(file).into_iter().map(|t| (t.whom, t.node)).collect();
        let (array, digest, spoken) = (file.id, file.digest(), file.spoken);
        Me { identity, array, digest, role, listens_as, nodes, silence, spoken }
    }
}

/// Somebody to be connected to, always.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub whom: Whom,
    pub address: Address,
    /// The node whose keys it has to show.
    pub node: u32,
}

impl Target {
    /// All that listen in an array: voters by id, and then the lock servers.
    pub fn all(file: &ArrayFile) -> Vec<Target> {
        let server = |(id, entry): (u16, &LockServerEntry)| Target {
            whom: Whom::Server(ServerId(id)),
            address: entry.address.clone(),
            node: entry.node,
        };
        file.voters().map(Target::of).chain((0..).zip(file.lock_servers()).map(server)).collect()
    }

    /// All that the array's file has, with the devices that the array has got since it was made or is to get.
    pub fn in_file(file: &ArrayFile) -> Vec<Target> {
        let mut all = Target::all(file);
        all.extend(file.added.iter().map(Target::of));
        all
    }

    /// A device or witness by its entry in the array's file.
    pub fn of(entry: &DeviceEntry) -> Target {
        let (address, node) = (entry.address.clone(), entry.node);
        Target { whom: Whom::Device(DeviceId(entry.id)), address, node }
    }

    /// The devices of the groups that an array has got. The file has the newer address, if it has one. The node is what all have agreed
    /// on. A device with an address that makes no sense is left out: nobody can connect to it.
    pub fn added(file: &ArrayFile, state: &ArrayState) -> Vec<Target> {
        let target = |(device, member): (DeviceId, &Member)| {
            let by_file = file.added.iter().find(|entry| entry.id == device.0);
            let address = match by_file {
                Some(entry) => entry.address.clone(),
                None => member.address.parse().ok()?,
            };
            Some(Target { whom: Whom::Device(device), address, node: member.node })
        };
        state.added.iter().flat_map(Group::devices).filter_map(target).collect()
    }
}

/// An event of connections.
#[derive(Debug)]
pub(crate) enum Event {
    /// Somebody has connected, and is welcome.
    Came { key: usize, role: Role },
    /// A connection to a target can be used.
    Up { whom: Whom, key: usize, welcome: Welcome },
    /// A frame of somebody who came.
    Heard { key: usize, role: Role, frame: Frame },
    /// A frame of a target.
    Answered { whom: Whom, frame: Frame },
    /// A peer that had connected has left.
    Left { key: usize, role: Role },
    /// There is no connection to a target, or no more; it is tried again.
    Down { whom: Whom, why: Why },
}

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// Nothing listens there, on this machine.
    Absent(String),
    /// It cannot be reached, or has ended, or is not ready.
    Down(String),
    /// One of both does not want the other.
    Refused(String),
}

impl Why {
    pub fn text(self) -> String {
        match self {
            Why::Absent(text) | Why::Down(text) | Why::Refused(text) => text,
        }
    }
}

enum Who {
    Stranger,
    Came(Role),
    /// Of the target of this index; whether it has welcomed this process.
    Target(usize, bool),
    /// Was told that it ends, since then.
    Refused(Instant),
}

struct Connection {
    line: Line<Frame>,
    who: Who,
    from: SocketAddr,
    since: Instant,
    /// It may have said more than was heard.
    speaks: bool,
    dirty: bool,
}

impl Connection {
    /// Returns true if there is a time to keep.
    fn is_timed(&self) -> bool {
        !matches!(self.who, Who::Came(_) | Who::Target(_, true)) || self.line.unsent() > 0
    }
}

struct Place {
    target: Target,
    key: Option<usize>,
    next: Instant,
    pause: Duration,
    /// Its name is being looked up.
    looks_up: bool,
    /// How often its name was looked up: a name may have several addresses, which have their turn.
    lookups: usize,
}

impl Place {
    fn new(target: Target) -> Place {
        let (key, next, pause) = (None, Instant::now(), AGAIN[0]);
        Place { target, key, next, pause, looks_up: false, lookups: 0 }
    }
}

/// A place of this index, and the addresses that its name has.
type Found = (usize, Result<Vec<SocketAddr>, String>);

pub(crate) struct Net {
    me: Me,
    poll: Poll,
    waker: Arc<Waker>,
    found: Mailbox<Found>,
    listener: Option<TcpListener>,
    knocks: bool,
    connections: Slab<Connection>,
    /// Those that may have said more than was heard. A turn looks at no others, for a host or device has dozens.
    speaking: Vec<usize>,
    /// There may be a time to keep: somebody has not introduced himself, or reads slowly, or is to go.
    timed: bool,
    /// When all connections are looked at for that.
    look_at: Instant,
    places: Vec<Place>,
    /// A place may have no connection.
    dials: bool,
    events: VecDeque<Event>,
    dirty: Vec<usize>,
    /// This process's answer to those who connect.
    pub welcome: Welcome,
    /// Why hosts are not welcome at present.
    pub closed: Option<String>,
    /// Hosts are not read: their requests are too many already.
    pub hold: bool,
    /// Nobody is expected to want this process yet. It tries seldom.
    pub unwanted: bool,
    log: fn(&str),
    complaints: (Instant, u32),
}

impl Net {
    pub fn new(me: Me, targets: &[Target], log: fn(&str)) -> io::Result<Net> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let now = Instant::now();
        Ok(Net {
            me,
            poll,
            found: Mailbox::new(waker.clone()),
            waker,
            listener: None,
            knocks: false,
            connections: Slab::new(),
            speaking: Vec::new(),
            timed: false,
            look_at: now,
            places: targets.iter().cloned().map(Place::new).collect(),
            dials: true,
            events: VecDeque::new(),
            dirty: Vec::new(),
            welcome: Welcome { life: 0, in_service: false },
            closed: None,
            hold: false,
            unwanted: false,
            log,
            complaints: (now, 0),
        })
    }

    /// Somebody else is to be connected to. One that is connected to already is left as it is.
    pub fn add_target(&mut self, target: Target) {
        self.know(target.whom, target.node);
        if self.places.iter().any(|place| place.target.whom == target.whom) {
            return;
        }
        self.places.push(Place::new(target));
        self.dials = true;
    }

    /// Returns true if this process's keys allow a connection to an address.
    pub fn allows_at(&self, address: &Address) -> bool {
        self.me.identity.allows_at(address)
    }

    /// Of which node a device is that may connect.
    pub fn know(&mut self, whom: Whom, node: u32) {
        self.me.nodes.insert(whom, node);
    }

    /// Lets others connect.
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<()> {
        let mut listener = TcpListener::bind(address)?;
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Wakes [`turn`](Net::turn) from other threads.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// This process's role has changed; for connections from now on.
    pub fn set_role(&mut self, role: Role) {
        self.me.role = role;
    }

    /// Sends a frame; a gone peer does not get it.
    pub fn say(&mut self, key: usize, frame: &Frame) {
        if let Some(connection) = self.connections.get_mut(key) {
            match frame.with_groups() {
                None => connection.line.say(frame),
                Some(_) if connection.line.version().is_none_or(|v| v < HAS_GROUPS) => {
                    return self.refuse(key, TOO_OLD.to_owned());
                }
                Some(with_groups) => connection.line.say(&with_groups),
            }
            if !std::mem::replace(&mut connection.dirty, true) {
                self.dirty.push(key);
            }
        }
    }

    /// Answers the question how this process stands.
    pub fn report(&mut self, key: usize, report: Report) {
        if self.speaks(key, TELLS_SOFTWARE) {
            let software = self.software();
            self.say(key, &Frame::Software(software));
        }
        self.say(key, &Frame::Report(report));
    }

    /// Returns true if a connection has this version or a newer one.
    pub fn speaks(&self, key: usize, version: u16) -> bool {
        let spoken = self.connections.get(key).and_then(|connection| connection.line.version());
        spoken.is_some_and(|spoken| spoken >= version)
    }

    fn software(&self) -> Software {
        let spoken = self.connections.iter().filter_map(|(_, connection)| {
            let version = connection.line.version()?;
            let peer = match connection.who {
                Who::Came(role) => role.peer()?,
                Who::Target(index, true) => self.places[index].target.whom.into(),
                Who::Target(_, false) | Who::Stranger | Who::Refused(_) => return None,
            };
            Some((peer, version))
        });
        Software {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            newest: self.me.spoken.newest,
            spoken: spoken.collect(),
        }
    }

    /// Sends a frame to a target, if it is connected; whether it is.
    pub fn send_to(&mut self, whom: Whom, frame: &Frame) -> bool {
        let key = self.key(whom);
        if let Some(key) = key {
            self.say(key, frame);
        }
        key.is_some()
    }

    fn key(&self, whom: Whom) -> Option<usize> {
        let place = self.places.iter().find(|place| place.target.whom == whom)?;
        place.key.filter(|&key| {
            self.connections.get(key).is_some_and(|c| matches!(c.who, Who::Target(_, true)))
        })
    }

    /// Ends a connection that somebody made, and says why.
    pub fn refuse(&mut self, key: usize, why: String) {
        let from = self.connections.get(key).map(|connection| connection.from);
        self.dismiss(key, &Frame::Refused(why.clone()));
        if let Some(from) = from {
            self.complain(from, &why);
        }
    }

    /// Ends a connection that somebody made, with these words.
    pub fn dismiss(&mut self, key: usize, last: &Frame) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.line.say(last);
        connection.line.finish();
        let who = std::mem::replace(&mut connection.who, Who::Refused(Instant::now()));
        self.timed = true;
        match who {
            Who::Came(role) => self.events.push_back(Event::Left { key, role }),
            Who::Target(index, _) => {
                self.places[index].key = None;
                self.dials = true;
                let whom = self.places[index].target.whom;
                let why = Why::Refused("it says what makes no sense".into());
                self.events.push_back(Event::Down { whom, why });
            }
            Who::Stranger | Who::Refused(_) => {}
        }
    }

    /// Returns true if a message is not fully written yet.
    pub fn has_unsent(&self) -> bool {
        self.connections.iter().any(|(_, c)| c.line.unsent() > 0)
    }

    /// Ends the connection to a target; it is made again.
    pub fn hang_up(&mut self, whom: Whom, why: &str) {
        let place = self.places.iter().find(|place| place.target.whom == whom);
        if let Some(key) = place.and_then(|place| place.key) {
            self.remove(key, Why::Down(why.to_owned()));
        }
    }

    /// Ends all connections to and from devices, also those that have not been reported yet. Those to devices are made again.
    pub fn part_from_devices(&mut self) {
        let of_device = |who: &Who| matches!(who, Who::Came(Role::Device { .. }) | Who::Target(..));
        let all = self.connections.iter().filter(|(_, c)| of_device(&c.who));
        let all: Vec<usize> = all.map(|(key, _)| key).collect();
        for key in all {
            self.remove(key, Why::Down("this device has another life".into()));
        }
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Writes pending output, waits until something happens or this time has passed, and reads.
    pub fn turn(&mut self, wait: Duration, events: &mut Events) -> io::Result<()> {
        self.flush();
        self.dial();
        let wait = self.wait(wait);
        match self.poll.poll(events, Some(wait)) {
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
            _ => {}
        }
        for event in events.iter() {
            match event.token() {
                WAKER => {}
                LISTENER => self.knocks = true,
                Token(key) => {
                    if let Some(connection) = self.connections.get_mut(key) {
                        if !std::mem::replace(&mut connection.speaks, true) {
                            self.speaking.push(key);
                        }
                        connection.line.woken(event.is_read_closed() || event.is_error());
                        connection.line.flush();
                    }
                }
            }
        }
        for (index, found) in self.found.take() {
            self.looked_up(index, found);
        }
        self.accept();
        let mut speaking = std::mem::take(&mut self.speaking);
        speaking.retain(|&key| {
            self.hear(key);
            self.connections.get(key).is_some_and(|connection| connection.speaks)
        });
        self.speaking.append(&mut speaking);
        self.expire_all();
        Ok(())
    }

    /// Puts out who takes too long, every [`TICK`] while there may be somebody.
    fn expire_all(&mut self) {
        let now = Instant::now();
        if !self.timed || now < self.look_at {
            return;
        }
        self.look_at = now + TICK;
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.expire(key));
        self.timed = self.connections.iter().any(|(_, connection)| connection.is_timed());
    }

    /// Writes what can be written.
    pub fn flush(&mut self) {
        for key in std::mem::take(&mut self.dirty) {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.dirty = false;
                connection.line.flush();
                self.timed |= connection.line.unsent() > 0;
            }
        }
    }

    /// How long it may wait for something to happen.
    fn wait(&self, most: Duration) -> Duration {
        let may_be_heard =
            |key: &usize| self.connections.get(*key).is_some_and(|c| c.speaks && !self.is_held(c));
        let busy = self.speaking.iter().any(may_be_heard);
        if busy || !self.events.is_empty() {
            return Duration::ZERO;
        }
        let tick = self.knocks || self.timed;
        if !self.dials {
            return most.min(if tick { TICK } else { most });
        }
        let now = Instant::now();
        let dial = self.places.iter().filter(|place| place.key.is_none() && !place.looks_up);
        let dial = dial.map(|place| place.next.saturating_duration_since(now)).min();
        most.min(dial.unwrap_or(most)).min(if tick { TICK } else { most })
    }

    fn is_held(&self, connection: &Connection) -> bool {
        connection.line.unsent() > QUEUE
            || self.hold && matches!(connection.who, Who::Came(Role::Host(_)))
    }

    fn accept(&mut self) {
        while self.knocks {
            let Some(listener) = &self.listener else { return };
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // Nobody more; or no descriptors, and then it is tried again in the next turn.
                Err(e) => {
                    self.knocks = e.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            let strangers = self.connections.iter().filter(|(_, c)| matches!(c.who, Who::Stranger));
            if strangers.clone().count() >= STRANGERS
                && let Some((oldest, _)) = strangers.min_by_key(|(_, c)| c.since)
            {
                self.connections.remove(oldest);
            }
            let session = match self.me.identity.security() {
                Security::Tls(keyring) => keyring.current().accept().map(Some),
                Security::Loopback | Security::PlainText => Ok(None),
            };
            match session {
                Ok(session) => {
                    let line = |stream| Line::new(stream, session, self.me.silence, self.me.spoken);
                    let added = add(&mut self.connections, &self.poll, stream, from, line);
                    drop(added);
                    self.timed = true;
                }
                Err(e) => self.complain(from, &e.to_string()),
            }
        }
    }

    /// Begins the connections that are due.
    fn dial(&mut self) {
        if !self.dials {
            return;
        }
        let now = Instant::now();
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            if place.key.is_some() || place.looks_up || place.next > now {
                continue;
            }
            place.next = now + place.pause;
            // A peer that was away for a moment is reached again well within a lease.
            place.pause = match self.unwanted {
                true => AGAIN[1],
                false => (2 * place.pause).min(AGAIN[1]).min(self.me.silence / 8),
            };
            match place.target.address.socket() {
                Some(address) => self.dial_at(index, Ok(address)),
                None => self.look_up(index),
            }
        }
        self.dials = self.places.iter().any(|place| place.key.is_none());
    }

    /// Looks a name up, on a thread: the system may take long to answer.
    fn look_up(&mut self, index: usize) {
        let place = &mut self.places[index];
        (place.looks_up, place.lookups) = (true, place.lookups.wrapping_add(1));
        let (address, found) = (place.target.address.clone(), self.found.clone());
        let look = move || found.post((index, address.look_up()));
        let thread = std::thread::Builder::new().name("names".into()).spawn(look);
        if let Err(e) = thread {
            self.found.post((index, Err(format!("the system refuses a thread: {e}"))));
        }
    }

    fn looked_up(&mut self, index: usize, found: Result<Vec<SocketAddr>, String>) {
        let place = &mut self.places[index];
        place.looks_up = false;
        let turn = |all: Vec<SocketAddr>| all.get(place.lookups % all.len().max(1)).copied();
        let none = || format!("{} has no address", place.target.address.host());
        let address = found.and_then(|all| turn(all).ok_or_else(none));
        self.dial_at(index, address);
    }

    fn dial_at(&mut self, index: usize, address: Result<SocketAddr, String>) {
        if let Err(why) = address.and_then(|address| self.connect(index, address)) {
            let whom = self.places[index].target.whom;
            self.events.push_back(Event::Down { whom, why: Why::Down(why) });
        }
    }

    fn connect(&mut self, index: usize, address: SocketAddr) -> Result<(), String> {
        let Target { whom, node, .. } = self.places[index].target;
        let session = match self.me.identity.security() {
            Security::Tls(keyring) => {
                let session = keyring.current().dial(node);
                Some(session.map_err(|e: TrustError| e.to_string())?)
            }
            Security::Loopback | Security::PlainText => None,
        };
        let stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
        let Me { silence, spoken, .. } = self.me;
        let line = |stream| Line::new(stream, session, silence, spoken);
        let key = add(&mut self.connections, &self.poll, stream, address, line);
        let key = key.map_err(|e| e.to_string())?;
        let hello = Hello {
            cluster: self.me.identity.cluster().to_owned(),
            node: self.me.identity.node(),
            to: whom,
            array: self.me.array,
            digest: self.me.digest,
            role: self.me.role,
        };
        self.connections[key].who = Who::Target(index, false);
        self.timed = true;
        self.places[index].key = Some(key);
        self.say(key, &Frame::Hello(hello));
        Ok(())
    }

    /// Hears a connection, as long as it is its turn.
    fn hear(&mut self, key: usize) {
        // A bounded number of frames, so that a busy peer does not delay the others.
        for _ in 0..FRAMES {
            let Some(connection) = self.connections.get(key) else { return };
            if !connection.speaks || self.is_held(connection) {
                return;
            }
            if matches!(connection.who, Who::Refused(_)) {
                return self.discard(key);
            }
            let Some(connection) = self.connections.get_mut(key) else { return };
            match connection.line.hear() {
                Ok(Some(frame)) => self.heard(key, frame),
                Ok(None) => {
                    connection.speaks = false;
                    // A handshake may have something to say.
                    connection.line.flush();
                    return;
                }
                Err(end) => self.ended(key, end),
            }
        }
    }

    /// Reads what a refused peer says. Unread input would turn the close into a reset, and the peer could lose the refusal.
    fn discard(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.line.discard() {
            self.connections.remove(key);
        } else {
            connection.speaks = false;
        }
    }

    /// Handles a frame. Its meaning depends on how far the connection is.
    fn heard(&mut self, key: usize, frame: Frame) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match (frame, &connection.who) {
            (Frame::Hello(hello), Who::Stranger) => self.meet(key, &hello),
            (Frame::Welcome(welcome), &Who::Target(index, false)) => {
                connection.who = Who::Target(index, true);
                connection.line.greeted();
                let whom = self.places[index].target.whom;
                self.places[index].pause = AGAIN[usize::from(self.unwanted)];
                self.events.push_back(Event::Up { whom, key, welcome });
            }
            (Frame::Refused(why), Who::Target(..)) => {
                self.remove(key, Why::Refused(format!("it refuses: {why}")));
            }
            (Frame::Later(why), Who::Target(_, false)) => self.remove(key, Why::Down(why)),
            (frame, &Who::Came(role)) => self.events.push_back(Event::Heard { key, role, frame }),
            (frame, &Who::Target(index, true)) => {
                let whom = self.places[index].target.whom;
                self.events.push_back(Event::Answered { whom, frame });
            }
            _ => self.refuse(key, "this cannot be said now".into()),
        }
    }

    /// Handles the end of a line. A peer that connected here is told the reason, if it said something foreign.
    fn ended(&mut self, key: usize, end: End) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match (end, &connection.who) {
            (End::Foreign(why), Who::Stranger | Who::Came(_)) => self.refuse(key, why.to_string()),
            (End::Distrusted(why), Who::Stranger | Who::Came(_)) => {
                // TLS has told it.
                let from = connection.from;
                connection.line.finish();
                self.complain(from, &why);
                self.remove(key, Why::Refused(why));
            }
            (End::Closed(kind), who) => {
                let named = |index: usize| self.places[index].target.address.socket().is_none();
                let why = match who {
                    // Whatever this machine takes the name for, its process may be on another one.
                    Who::Target(index, _) if named(*index) => {
                        Why::Down(closed(kind, who, connection.from).text())
                    }
                    _ => closed(kind, who, connection.from),
                };
                self.remove(key, why);
            }
            (end, _) => self.remove(key, Why::Refused(end.to_string())),
        }
    }

    fn meet(&mut self, key: usize, hello: &Hello) {
        if let Err(why) = self.why_not(key, hello) {
            return self.refuse(key, why);
        }
        if let (Some(why), Role::Host(_)) = (&self.closed, hello.role) {
            let later = Frame::Later(why.clone());
            return self.dismiss(key, &later);
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.who = Who::Came(hello.role);
        connection.line.greeted();
        let welcome = Frame::Welcome(self.welcome);
        self.say(key, &welcome);
        self.events.push_back(Event::Came { key, role: hello.role });
    }

    /// The reason to refuse a stranger, if there is one.
    fn why_not(&self, key: usize, hello: &Hello) -> Result<(), String> {
        let Me { identity, array, digest, listens_as, nodes, .. } = &self.me;
        let Hello { cluster, node, to, .. } = hello;
        if cluster != identity.cluster() {
            return Err(format!(
                "this is cluster {:?}, not {cluster:?}: correct --cluster",
                identity.cluster()
            ));
        }
        let connection = self.connections.get(key);
        if !connection.is_some_and(|c| c.line.proves(cluster, *node)) {
            return Err(format!(
                "the certificate is not that of node {node} of cluster {cluster:?}: give each node its own, and correct \
                 --node"
            ));
        }
        if hello.array != *array {
            return Err(format!(
                "this is of array {array}, not of {}: correct --array",
                hello.array
            ));
        }
        if let Some(me) = listens_as.filter(|me| me != to) {
            return Err(format!(
                "this is {me}, not {to}: correct the addresses in the array's file"
            ));
        }
        if hello.digest != *digest {
            return Err(
                "the array's files differ in scheme, layout, durability, timing or the number of devices: give all the same"
                    .into(),
            );
        }
        // Without keys the number is proved by nothing, and need not even be given.
        let listener = match hello.role {
            Role::Device { id, .. } => Some(Whom::Device(id)),
            Role::Server(id) => Some(Whom::Server(id)),
            Role::Host(_) | Role::Watcher => None,
        };
        if let Some(whom) = listener
            && let Some(entry) = nodes.get(&whom)
            && entry != node
            && identity.keyring().is_some()
        {
            return Err(format!(
                "{whom} is node {entry}'s here, and this is node {node}: give all processes the same array's file, and \
                 correct --node"
            ));
        }
        Ok(())
    }

    /// A connection is over.
    fn remove(&mut self, key: usize, why: Why) {
        let Some(connection) = self.connections.try_remove(key) else { return };
        match connection.who {
            Who::Came(role) => self.events.push_back(Event::Left { key, role }),
            Who::Target(index, _) => {
                let place = &mut self.places[index];
                place.key = None;
                self.dials = true;
                place.next = Instant::now() + place.pause;
                let whom = place.target.whom;
                self.events.push_back(Event::Down { whom, why });
            }
            Who::Stranger | Who::Refused(_) => {}
        }
    }

    /// Puts out who takes too long: to introduce himself, to read, to go.
    fn expire(&mut self, key: usize) {
        let Some(Connection { line, who, from, since, .. }) = self.connections.get(key) else {
            return;
        };
        let from = *from;
        let why = match who {
            Who::Refused(since) if since.elapsed() > FAREWELL => {
                self.connections.remove(key);
                return;
            }
            Who::Stranger if since.elapsed() > GREETING => "it did not introduce itself",
            Who::Target(_, false) if since.elapsed() > GREETING => "it does not answer",
            _ if line.stuck_for() > PATIENCE => "it does not read what it is told",
            _ => return,
        };
        if !matches!(who, Who::Target(..)) {
            self.complain(from, why);
        }
        self.remove(key, Why::Down(why.to_owned()));
    }

    fn complain(&mut self, from: SocketAddr, why: &str) {
        if self.complaints.0.elapsed() >= Duration::from_secs(1) {
            self.complaints = (Instant::now(), 0);
        }
        self.complaints.1 += 1;
        if self.complaints.1 <= COMPLAINTS {
            (self.log)(&format!("turned {from} away: {why}"));
        }
    }
}

/// The reason for the end of a connection that the other side has closed.
fn closed(kind: Option<ErrorKind>, who: &Who, from: SocketAddr) -> Why {
    let refused = kind == Some(ErrorKind::ConnectionRefused);
    let why = match (kind, who) {
        (None, Who::Target(_, false)) => {
            "it closed the connection before it answered: is it of an array, does it run the same \
             release, and do both have keys, or none?"
                .to_owned()
        }
        _ if refused => format!("nothing listens at {from}"),
        _ => End::Closed(kind).to_string(),
    };
    // Only on this machine does a refused connection prove that the process is gone.
    if refused && from.ip().to_canonical().is_loopback() {
        Why::Absent(why)
    } else {
        Why::Down(why)
    }
}

fn add(
    connections: &mut Slab<Connection>,
    poll: &Poll,
    mut stream: TcpStream,
    from: SocketAddr,
    line: impl FnOnce(TcpStream) -> Line<Frame>,
) -> io::Result<usize> {
    let entry = connections.vacant_entry();
    let key = entry.key();
    let both = Interest::READABLE | Interest::WRITABLE;
    poll.registry().register(&mut stream, Token(key), both)?;
    let (since, who) = (Instant::now(), Who::Stranger);
    entry.insert(Connection { line: line(stream), who, from, since, speaks: false, dirty: false });
    Ok(key)
}
