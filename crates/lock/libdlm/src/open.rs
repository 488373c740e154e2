//! Opening, making and releasing lockspaces.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use lockify_client::domain::{Choice, Domain};
use lockify_client::protocol::{Answer, Event, Query, Refusal, Request};
use lockify_client::raw::Session;
use lockify_client::{Client, Error, NodeId};

use crate::abi::LVB_LEN;
use crate::errno;
use crate::handle::{Handle, PATIENCE, failed};
use crate::locks::Locks;

/// How long to wait before a lockspace that is being left is made again.
const AGAIN: Duration = Duration::from_millis(20);

fn domain() -> Result<Domain, c_int> {
    Domain::find(&Choice::Found).map_err(failed)
}

/// Checks that a daemon answers.
///
/// # Errors
/// ECONNREFUSED if none does; EPROTO if it speaks another version.
pub fn reach() -> Result<(), c_int> {
    domain()?.session(0).map(drop).map_err(failed)
}

impl Handle {
    /// Opens a lockspace that exists.
    ///
    /// # Errors
    /// ENOENT if it does not; ECONNREFUSED without a daemon; EINVAL if its value blocks do not have
    /// 32 bytes.
    pub fn open(name: &str) -> Result<Handle, c_int> {
        let mut sessions = connect()?;
        let mut locks = Locks::default();
        let mut node = NodeId(0);
        for session in &mut sessions {
            let query = Query::Open(name.into());
            match ask(session, query).map_err(|e| errno::of(&e))? {
                Answer::Opened { space, life, lvb_len, node: here } => {
                    if lvb_len as usize != LVB_LEN {
                        return Err(libc::EINVAL);
                    }
                    node = here;
                    locks.spaces.push((space, life));
                }
                _ => return Err(libc::EPROTO),
            }
        }
        Handle::new(name, node, sessions, locks)
    }

    /// Makes a lockspace with these permission bits, or uses the one that exists unless
    /// `exclusive`.
    ///
    /// # Errors
    /// EPERM, EEXIST, EINVAL, ...
    pub fn create(name: &str, exclusive: bool, mode: u32) -> Result<Handle, c_int> {
        // A device may be executable, and nobody minds.
        let mode = mode & 0o666;
        let client = Client::open().map_err(failed)?;
        let end = Instant::now() + PATIENCE;
        while let Err(e) = client.create_lockspace_with_mode(name, exclusive, mode) {
            let leaving = matches!(e, Error::Refused(Refusal::SpaceLeaving(_)));
            if !leaving || Instant::now() >= end {
                return Err(errno::of(&e));
            }
            std::thread::sleep(AGAIN);
        }
        Handle::open(name)
    }

    /// Undoes a creation of the lockspace; its handle is closed.
    ///
    /// # Errors
    /// EBUSY if this node's clients have locks in it and `force` is not given; EPERM, ENOENT.
    pub fn release(name: &str, force: bool) -> Result<(), c_int> {
        let client = Client::open().map_err(failed)?;
        client.release_lockspace(name, force).map_err(|e| errno::of(&e))
    }
}

fn connect() -> Result<Vec<Session>, c_int> {
    let domain = domain()?;
    let (first, shards) = domain.session(0).map_err(failed)?;
    let mut sessions = vec![first];
    for shard in 1..shards {
        sessions.push(domain.session(shard).map_err(failed)?.0);
    }
    Ok(sessions)
}

/// Asks before anything else is said in a session.
fn ask(session: &mut Session, query: Query) -> Result<Answer, Error> {
    session.submit(Request::Query { id: 0, query });
    let end = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut);
        }
        session.poll(Some(left), &mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Answer { answer: Answer::Refused(why), .. } => return Err(why.into()),
                Event::Answer { answer, .. } => return Ok(answer),
                Event::Goodbye(why) => return Err(why.into()),
                _ => {}
            }
        }
    }
}
