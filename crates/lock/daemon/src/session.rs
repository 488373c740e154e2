//! One local client's session: its socket, what came in, what goes out.

use std::io::{self, ErrorKind, Write};

use lockify_host::{ClientImage, HostedClient};
use lockify_session::codec::{self, Inbox};
use lockify_session::protocol::{Event, Goodbye, Greeting, OLDEST, Request, VERSION};
use lockify_trust::frame::BadFrame;
use mio::net::UnixStream;
use serde::{Deserialize, Serialize};

use crate::user::User;

/// Why a session ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it or died.
    Closed,
    /// It must be ended, and the client is told why.
    Told(Goodbye),
    /// It does not speak the protocol at all.
    Stranger(&'static str),
    /// The system's error.
    System(io::Error),
}

pub(crate) struct Session {
    pub(crate) socket: UnixStream,
    pub(crate) client: HostedClient,
    pub(crate) user: User,
    inbox: Inbox,
    /// Its greeting has been answered.
    pub(crate) greeted: bool,
    /// Encoded events from `sent` on.
    outbox: Vec<u8>,
    sent: usize,
    /// As in the configuration.
    pub(crate) max_unread: usize,
    /// Registered to hear when the socket takes more.
    pub(crate) awaits_room: bool,
    /// The socket has, or may have, more to read.
    pub(crate) readable: bool,
    /// The client will send no more; its sent requests are still handled.
    pub(crate) ended: bool,
    /// In the list of sessions with something to do.
    pub(crate) scheduled: bool,
    /// Bytes that came and went.
    pub(crate) received: u64,
    pub(crate) delivered: u64,
}

/// A session that another program is to go on with; its socket goes along.
#[derive(Serialize, Deserialize)]
pub(crate) struct SessionImage {
    client: ClientImage,
    inbox: Vec<u8>,
    greeted: bool,
    outbox: Vec<u8>,
    received: u64,
    delivered: u64,
}

impl Session {
    pub(crate) fn image(&self) -> SessionImage {
        // Without `..`: who adds a field has to say here what becomes of it.
        let Session {
            client,
            inbox,
            greeted,
            outbox,
            sent,
            received,
            delivered,
            // Seen from the socket, or as the configuration says.
            socket: _,
            user: _,
            max_unread: _,
            awaits_room: _,
            readable: _,
            ended: _,
            scheduled: _,
        } = self;
        SessionImage {
            client: client.image(),
            inbox: inbox.rest().to_vec(),
            greeted: *greeted,
            outbox: outbox[*sent..].to_vec(),
            received: *received,
            delivered: *delivered,
        }
    }

    /// The session of which this is the image.
    pub(crate) fn resume(
        image: SessionImage,
        socket: UnixStream,
        user: User,
        max_unread: usize,
        client: impl FnOnce(ClientImage) -> HostedClient,
    ) -> Session {
        let SessionImage { client: known, inbox, greeted, outbox, received, delivered } = image;
        let mut session = Session::new(socket, client(known), user, max_unread);
        session.inbox = Inbox::resume(inbox);
        session.outbox = outbox;
        (session.greeted, session.received, session.delivered) = (greeted, received, delivered);
        session
    }

    pub(crate) fn new(
        socket: UnixStream,
        client: HostedClient,
        user: User,
        max_unread: usize,
    ) -> Session {
        Session {
            socket,
            client,
            user,
            inbox: Inbox::default(),
            greeted: false,
            outbox: Vec::new(),
            sent: 0,
            max_unread,
            awaits_room: false,
            readable: true,
            ended: false,
            scheduled: false,
            received: 0,
            delivered: 0,
        }
    }

    /// Reads some of the input, if there is room for it.
    pub(crate) fn fill(&mut self) -> Result<(), End> {
        if !self.readable || self.inbox.pending() > codec::MAX_FRAME {
            return Ok(());
        }
        match self.inbox.fill(&mut self.socket) {
            Ok(0) => {
                self.ended = true;
                self.readable = false;
                Ok(())
            }
            Ok(n) => {
                self.received += n as u64;
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Err(End::Closed),
            Err(e) => Err(End::System(e)),
        }
    }

    /// Answers the client's greeting; returns its process id when it has come.
    pub(crate) fn greet(&mut self, shard: u16, shards: u16) -> Result<Option<u32>, End> {
        let Some(bytes) = self.inbox.take::<{ Greeting::LEN }>() else {
            return Ok(None);
        };
        let Some(theirs) = Greeting::decode(&bytes) else {
            return Err(End::Stranger("it does not speak the session protocol"));
        };
        let version = theirs.version.clamp(OLDEST, VERSION);
        let pid = std::process::id();
        self.outbox.extend_from_slice(&Greeting { version, shard: shards, pid }.encode());
        self.greeted = true;
        if theirs.version > version {
            // It knows what to do: come again with this version, or tell its user.
            return Err(End::Closed);
        }
        if theirs.version < version {
            return Err(End::Stranger("it speaks a version that is too old: upgrade it"));
        }
        self.client.version = version;
        if theirs.shard != shard {
            return Err(End::Told(Goodbye::WrongShard(shard)));
        }
        // The kernel's information counts more than the client's.
        Ok(Some(if self.user.pid == 0 { theirs.pid } else { self.user.pid }))
    }

    /// The next request; `None` until more bytes come.
    pub(crate) fn request(&mut self) -> Result<Option<Request>, End> {
        let told = |e: BadFrame| End::Told(Goodbye::BadRequest(e.to_string()));
        self.inbox.next_frame().map_err(told)
    }

    /// Queues an event.
    pub(crate) fn queue_event(&mut self, event: &Event) -> Result<(), End> {
        self.client.told(event);
        let encoded = codec::encode(event, &mut self.outbox);
        encoded.map_err(|e| End::System(io::Error::other(e)))?;
        match self.unread() {
            n if n > self.max_unread => Err(End::Told(Goodbye::SlowReader(n as u64))),
            _ => Ok(()),
        }
    }

    /// Bytes that the socket has not taken.
    pub(crate) fn unread(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), End> {
        while self.unread() > 0 {
            match self.socket.write(&self.outbox[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    self.delivered += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.compact(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Closed),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Moving the rest costs its length: only when at least as much has been sent.
    fn compact(&mut self) -> Result<(), End> {
        if self.sent > self.outbox.len() / 2 {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Tells a client that has just connected why it is not served.
    pub(crate) fn refuse(&mut self, shards: u16, why: Goodbye) {
        // Every version can read this: the goodbye is older than all of them.
        let (version, pid) = (OLDEST, std::process::id());
        self.outbox.extend_from_slice(&Greeting { version, shard: shards, pid }.encode());
        self.part(&End::Told(why));
    }

    /// Says goodbye, if the client still listens; the session is dropped next.
    pub(crate) fn part(&mut self, end: &End) {
        if let End::Told(goodbye) = end {
            // It may not fit any more: then the end of the stream has to do.
            let _ = codec::encode(&Event::Goodbye(goodbye.clone()), &mut self.outbox);
        }
        let _ = self.flush();
    }
}
