//! The messages between front, guardian and command: packets, which may carry descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How many descriptors a packet may carry.
const MOST: usize = 4;

/// Longest packet: an environment with a name as long as an argument may be.
const LONGEST: usize = 256 * 1024;

/// A message from the front to the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToGuardian {
    /// A connection, which comes along, or the system's error.
    Dialed(Option<i32>),
    /// Signals are read: the command may start.
    Start,
    /// A signal came.
    Signal {
        /// The number of the signal.
        number: i32,
        /// True if a process sent it, false if the terminal did.
        from_process: bool,
    },
}

/// A message from the guardian to the front.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToFront {
    /// Connect to the socket at this path.
    Dial(Vec<u8>),
    /// The lock is held; what keeps it comes along.
    Locked,
    /// The exit code.
    Over(u8),
}

/// A message from the guardian to the process that becomes the command.
#[derive(Debug, Serialize, Deserialize)]
pub struct ToCommand {
    /// Additional environment variables. Inherited descriptors come along.
    pub environment: Vec<(String, String)>,
}

/// One end of a pair.
pub struct Link(OwnedFd);

impl Link {
    /// Two ends.
    pub fn pair() -> io::Result<(Link, Link)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (one, other) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Link(one), Link(other)))
    }

    /// Sends a packet; never waits.
    pub fn send(&self, message: &impl Serialize, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(with)) {
            return Err(io::Error::other("too many descriptors"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut rights, flags)?;
        Ok(())
    }

    /// Waits for a packet; `None` if the other end is gone.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let length = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        };
        if length == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        Ok(Some((serde_json::from_slice(&bytes[..length])?, descriptors)))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_whole_with_their_descriptor_and_then_the_end() {
        let (one, other) = Link::pair().unwrap();
        one.send(&ToFront::Over(7), &[]).unwrap();
        let long = ToCommand { environment: vec![("NAME".into(), "n".repeat(100_000))] };
        one.send(&long, &[std::io::stderr().as_fd(), std::io::stdin().as_fd()]).unwrap();
        let (first, none) = other.receive::<ToFront>().unwrap().unwrap();
        assert!(matches!(first, ToFront::Over(7)) && none.is_empty());
        let (second, some) = other.receive::<ToCommand>().unwrap().unwrap();
        assert!(second.environment[0].1.len() == 100_000 && some.len() == 2);
        drop(one);
        assert!(other.receive::<ToFront>().unwrap().is_none());
    }
}
