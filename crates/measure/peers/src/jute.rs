//! As much of ZooKeeper's protocol as its lock recipes need, without a thread or a task of its own.
//!
//! The published clients are async, with 100 crates; here a call is a write and a read, so that
//! ZooKeeper is measured with the least that a client can cost.

use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::error::{During as _, Error};
use crate::service::PATIENCE;

/// The kind of a node at its creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Goes with the session; its name gets a number.
    EphemeralSequential,
    /// A folder; goes some time after its last node.
    Container,
}

/// A session.
pub struct Session {
    stream: BufReader<TcpStream>,
    last_request: i32,
}

// Numbers of `zookeeper.jute` and `ZooDefs.java`.
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const CHILDREN: i32 = 8;
const CREATE_CONTAINER: i32 = 19;
const CLOSE: i32 = -11;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// In the place of a request's number.
const EVENT: i32 = -1;
/// An event's type.
const NODE_DELETED: i32 = 2;
/// Longest answer that is believed.
const LONGEST: usize = 16 << 20;

const WHAT: &str = "zookeeper";

impl Session {
    /// Connects to `IP:PORT`, which may take as long as `patience`: a server that is starting may
    /// leave the request for a session unanswered.
    ///
    /// # Errors
    /// Nobody answers there in time, or the ensemble has no leader yet.
    pub fn open(address: &str, patience: Duration) -> Result<Session, Error> {
        let stream = TcpStream::connect(address).during(WHAT)?;
        stream.set_nodelay(true).during(WHAT)?;
        stream.set_read_timeout(Some(patience)).during(WHAT)?;
        stream.set_write_timeout(Some(PATIENCE)).during(WHAT)?;
        let mut session = Session { stream: BufReader::new(stream), last_request: 0 };
        // ConnectRequest: version, last zxid, time-out, session, password, not read-only.
        let life = i32::try_from(PATIENCE.as_millis()).unwrap_or(i32::MAX);
        let mut connect = Out::default();
        connect.int(0).long(0).int(life).long(0).buffer(&[0; 16]).0.push(0);
        session.send(&connect)?;
        let answer = session.receive()?;
        let mut answer = In(&answer);
        answer.int()?;
        if answer.int()? <= 0 {
            return Err(Error::new("zookeeper refuses the session"));
        }
        session.stream.get_ref().set_read_timeout(Some(PATIENCE)).during(WHAT)?;
        Ok(session)
    }

    /// Makes a node that anybody may use; returns its path. `None`: its parent is not there.
    ///
    /// # Errors
    /// The server is gone or refuses.
    pub fn create(&mut self, path: &str, kind: Kind) -> Result<Option<String>, Error> {
        let (request, flags) = match kind {
            Kind::EphemeralSequential => (CREATE, 3),
            Kind::Container => (CREATE_CONTAINER, 4),
        };
        // CreateRequest: path, data, ACL (one: all rights, world, anyone), flags.
        let mut create = Out::default();
        create.buffer(path.as_bytes()).buffer(b"");
        create.int(1).int(31).buffer(b"world").buffer(b"anyone").int(flags);
        match self.call(request, &create, &[NO_NODE, NODE_EXISTS])? {
            Ok(answer) => Ok(Some(In(&answer).text()?)),
            Err(NODE_EXISTS) => Ok(Some(path.to_owned())),
            Err(_) => Ok(None),
        }
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// As [`Session::create`]; it is not there.
    pub fn delete(&mut self, path: &str) -> Result<(), Error> {
        let mut delete = Out::default();
        delete.buffer(path.as_bytes()).int(-1);
        self.call(DELETE, &delete, &[]).map(drop)
    }

    /// The names of a node's children.
    ///
    /// # Errors
    /// As [`Session::delete`].
    pub fn children(&mut self, path: &str) -> Result<Vec<String>, Error> {
        let mut request = Out::default();
        request.buffer(path.as_bytes()).0.push(0);
        let answer = match self.call(CHILDREN, &request, &[])? {
            Ok(answer) => answer,
            Err(_) => return Ok(Vec::new()),
        };
        let mut answer = In(&answer);
        (0..answer.int()?).map(|_| answer.text()).collect()
    }

    /// Waits until a node is not there any more.
    ///
    /// # Errors
    /// As [`Session::create`]; it takes too long.
    pub fn await_deletion(&mut self, path: &str) -> Result<(), Error> {
        // ExistsRequest: path, watch.
        let mut exists = Out::default();
        exists.buffer(path.as_bytes()).0.push(1);
        if self.call(EXISTS, &exists, &[NO_NODE])?.is_err() {
            return Ok(());
        }
        loop {
            let event = self.receive()?;
            let mut event = In(&event);
            if event.int()? != EVENT {
                return Err(Error::new("zookeeper answers what was not asked"));
            }
            // ReplyHeader: zxid, error. WatcherEvent: type, state, path.
            event.long()?;
            event.int()?;
            let kind = event.int()?;
            event.int()?;
            if event.text()? == path {
                return match kind {
                    NODE_DELETED => Ok(()),
                    _ => Err(Error::new("zookeeper: the watched node has changed")),
                };
            }
        }
    }

    /// Makes a request; its answer, or one of the errors that the caller `expects`.
    fn call(
        &mut self,
        request: i32,
        body: &Out,
        expects: &[i32],
    ) -> Result<Result<Vec<u8>, i32>, Error> {
        self.last_request += 1;
        let mut whole = Out::default();
        whole.int(self.last_request).int(request).0.extend_from_slice(&body.0);
        self.send(&whole)?;
        loop {
            let answer = self.receive()?;
            let mut header = In(&answer);
            let number = header.int()?;
            header.long()?;
            let error = header.int()?;
            if number == EVENT {
                // Of a watch whose node was awaited by a client that gave up.
                continue;
            }
            if number != self.last_request {
                return Err(Error::new("zookeeper answers another request"));
            }
            return match error {
                0 => Ok(Ok(header.0.to_vec())),
                error if expects.contains(&error) => Ok(Err(error)),
                error => Err(Error::new(format!("zookeeper refuses request {request}: {error}"))),
            };
        }
    }

    fn send(&mut self, message: &Out) -> Result<(), Error> {
        let mut framed = Vec::with_capacity(4 + message.0.len());
        framed.extend_from_slice(&(message.0.len() as u32).to_be_bytes());
        framed.extend_from_slice(&message.0);
        self.stream.get_mut().write_all(&framed).during(WHAT)
    }

    fn receive(&mut self) -> Result<Vec<u8>, Error> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST {
            return Err(Error::new(format!("zookeeper announces an answer of {length} bytes")));
        }
        let mut answer = vec![0; length];
        self.read(&mut answer)?;
        Ok(answer)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let read = self.stream.read_exact(bytes).map_err(|e| match e.kind() {
            // The errors that stand for a socket's time limit.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                std::io::Error::other("no answer: is its disk, or the machine, too busy?")
            }
            _ => e,
        });
        read.during(WHAT)
    }
}

impl Drop for Session {
    /// The session's end is that of its ephemeral nodes.
    fn drop(&mut self) {
        let _ = self.call(CLOSE, &Out::default(), &[]);
    }
}

/// Numbers and bytes as jute writes them.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn int(&mut self, value: i32) -> &mut Out {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Out {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn buffer(&mut self, value: &[u8]) -> &mut Out {
        self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.0.extend_from_slice(value);
        self
    }
}

/// The unread rest of an answer.
struct In<'a>(&'a [u8]);

impl In<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (value, rest) = self.0.split_first_chunk().ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(*value)
    }

    fn int(&mut self) -> Result<i32, Error> {
        self.take().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Result<i64, Error> {
        self.take().map(i64::from_be_bytes)
    }

    fn text(&mut self) -> Result<String, Error> {
        let length = usize::try_from(self.int()?).map_err(|_| cut_off())?;
        let (value, rest) = self.0.split_at_checked(length).ok_or_else(cut_off)?;
        self.0 = rest;
        String::from_utf8(value.to_vec()).during(WHAT)
    }
}

fn cut_off() -> Error {
    Error::new("zookeeper's answer cannot be understood")
}

#[cfg(test)]
mod tests {
    use super::{In, Out};

    #[test]
    fn what_is_written_can_be_read_and_what_is_cut_off_is_refused() {
        let mut out = Out::default();
        out.int(-7).long(1 << 40).buffer(b"name");
        let mut read = In(&out.0);
        assert_eq!(read.int().unwrap(), -7);
        assert_eq!(read.long().unwrap(), 1 << 40);
        assert_eq!(read.text().unwrap(), "name");
        assert!(read.int().is_err());
        assert!(In(&out.0[12..out.0.len() - 1]).text().is_err());
    }
}
