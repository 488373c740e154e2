//! The state that one program leaves for the next one in the same process, and its transport.
//!
//! State is in memory that has no name (memfd_create(2)) and is sealed. It and all open sockets are
//! sent through a pair of sockets of the process with itself (`SCM_RIGHTS`, unix(7)), whose reading
//! end becomes standard input of the new program. So only that is inherited, and descriptors that
//! nobody takes out are closed with it: a program that cannot read this ends every session by that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use xxhash_rust::xxh3::xxh3_64;

use super::VERSION;

/// Begins the state.
const MAGIC: &[u8; 8] = b"lockify>";

/// Comes with the state itself.
const STATE: &[u8] = b"lockify hands over";

/// Descriptors that one message takes (`SCM_MAX_FD`).
const MOST: usize = 253;

/// Room for messages on their way: each takes about a kilobyte.
const ROOM: usize = 4 << 20;

/// State as it is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The facts on which both programs must agree.
    pub(super) facts: String,
    /// The locks of the node's clients, for people: a line each.
    pub(super) held: String,
    /// When the program before stopped to work, on the monotonic clock.
    pub(super) stopped: u64,
    pub(super) shards: Vec<Vec<u8>>,
}

impl State {
    /// Into sealed memory.
    pub(super) fn write(&self) -> std::io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("lockify-state", flags)?);
        file.write_all(MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        let stopped = self.stopped.to_le_bytes();
        let first = [self.facts.as_bytes(), self.held.as_bytes(), &stopped];
        for part in first.into_iter().chain(self.shards.iter().map(Vec::as_slice)) {
            file.write_all(&(part.len() as u64).to_le_bytes())?;
            file.write_all(&xxh3_64(part).to_le_bytes())?;
            file.write_all(part)?;
        }
        let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, all)?;
        Ok(file.into())
    }

    /// Decodes these bytes. The parts before an error are there: `held` follows the facts and is
    /// written in the same way in every version.
    pub(super) fn read(bytes: &[u8]) -> (State, Result<(), String>) {
        let mut state = State::default();
        let read = state.fill(bytes);
        (state, read)
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<(), String> {
        let rest = bytes.strip_prefix(MAGIC).ok_or("it is not the state of a lock daemon")?;
        let (version, mut rest) = rest.split_first_chunk::<4>().ok_or("it is cut off")?;
        let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
        self.facts = text(next(&mut rest)?);
        self.held = text(next(&mut rest)?);
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(format!("it is state of version {version}, and this is for {VERSION}"));
        }
        let stopped = next(&mut rest)?.try_into().map_err(|_| "it makes no sense")?;
        self.stopped = u64::from_le_bytes(stopped);
        while !rest.is_empty() {
            self.shards.push(next(&mut rest)?.to_vec());
        }
        Ok(())
    }
}

/// The next part of the state.
fn next<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let take = || {
        let (length, after) = rest.split_first_chunk::<8>()?;
        let (sum, after) = after.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (part, after) = after.split_at_checked(length)?;
        Some((part, u64::from_le_bytes(*sum), after))
    };
    let (part, sum, after) = take().ok_or("it is cut off")?;
    if xxh3_64(part) != sum {
        return Err("its checksum is wrong".into());
    }
    *rest = after;
    Ok(part)
}

/// Where the next program's descriptors go.
#[derive(Clone)]
pub(crate) struct Outlet(Arc<OwnedFd>);

/// The way from this program to the next one: where to put things, and what becomes its standard
/// input.
pub(super) fn way() -> std::io::Result<(Outlet, OwnedFd)> {
    let (family, kind, flags) = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (from, to) = socketpair(family, kind, flags, None)?;
    // The kernel may give less; what does not fit is an error later.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&from, ROOM)
        .or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(&from, ROOM));
    Ok((Outlet(Arc::new(from)), to))
}

impl Outlet {
    /// Descriptors of a shard.
    pub(crate) fn send(&self, shard: u16, all: &[BorrowedFd<'_>]) -> Result<(), String> {
        all.chunks(MOST).try_for_each(|some| self.message(&shard.to_le_bytes(), some))
    }

    /// The state.
    pub(super) fn send_state(&self, state: &OwnedFd) -> Result<(), String> {
        self.message(STATE, &[state.as_fd()])
    }

    fn message(&self, text: &[u8], some: &[BorrowedFd<'_>]) -> Result<(), String> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(some));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&*self.0, &[IoSlice::new(text)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(e) => Err(format!(
                "the open sockets cannot be handed over ({e}): there are too many sessions, or the \
                 limit of open files is too low"
            )),
        }
    }
}

/// The state that the former program has left.
#[derive(Default)]
pub(super) struct Received {
    pub(super) state: Vec<u8>,
    pub(super) descriptors: BTreeMap<u16, Vec<OwnedFd>>,
}

/// Returns true if standard input comes from this very process, before it became this program.
pub(super) fn is_left_here() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let kind = rustix::net::sockopt::socket_type(std::io::stdin());
    kind == Ok(SocketType::SEQPACKET)
        && getsockopt(&std::io::stdin(), PeerCredentials).is_ok_and(|peer| peer.pid() == own)
}

/// Takes the former program's state from standard input, which is empty afterwards.
pub(super) fn receive() -> std::io::Result<Received> {
    let mut received = Received::default();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 64];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let came =
            recvmsg(std::io::stdin(), &mut [IoSliceMut::new(&mut text)], &mut control, flags);
        let length = match came {
            // All of it was sent before this program began.
            Ok(message) if message.bytes == 0 => break,
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR) => continue,
            Ok(message) => message.bytes,
            Err(e) => return Err(e.into()),
        };
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(some) => some.collect(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = descriptors.collect();
        match &text[..length] {
            STATE => {
                for state in descriptors {
                    let mut file = File::from(state);
                    file.rewind()?;
                    file.read_to_end(&mut received.state)?;
                }
            }
            [low, high] => {
                let shard = u16::from_le_bytes([*low, *high]);
                received.descriptors.entry(shard).or_default().extend(descriptors);
            }
            _ => {}
        }
    }
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(state: &State) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = File::from(state.write().unwrap());
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert!(file.set_len(0).is_err(), "it is sealed");
        bytes
    }

    fn example() -> State {
        let (facts, held) = ("image = 1".into(), "EX \"a\"\n".into());
        State { facts, held, stopped: 7, shards: vec![vec![1; 1000], vec![], vec![2]] }
    }

    #[test]
    fn state_is_read_as_it_was_written() {
        let (read, result) = State::read(&bytes(&example()));
        result.unwrap();
        assert_eq!(read, example());
    }

    #[test]
    fn damage_is_seen_and_what_was_held_is_known_if_it_is_not_hit() {
        let whole = bytes(&example());
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x40;
            let (read, result) = State::read(&bad);
            assert!(result.is_err(), "byte {at}");
            assert!(read.shards.len() < 3);
            if at >= whole.len() - 1000 || (8..12).contains(&at) {
                assert_eq!(read.held, example().held, "byte {at}");
            }
        }
        for end in 0..whole.len() - 16 - 1 {
            let (read, result) = State::read(&whole[..end]);
            assert!(result.is_err() || read.shards.len() < 3, "{end}");
        }
    }

    #[test]
    fn descriptors_and_state_go_along() {
        let (outlet, inlet) = way().unwrap();
        let null = File::open("/dev/null").unwrap();
        let many: Vec<_> = (0..600).map(|_| null.as_fd()).collect();
        outlet.send(3, &many).unwrap();
        outlet.send_state(&example().write().unwrap()).unwrap();
        drop((outlet, inlet));
    }
}
