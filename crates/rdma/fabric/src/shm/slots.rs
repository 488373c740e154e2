//! The participants.
//!
//! A peer holds a lock on one byte of the file, that of its slot: a lock of the open file description (`F_OFD_SETLK`).
//! The kernel drops it when the process ends, in whatever way, after its last instruction; and only then. So there is no
//! number of a process that could be another's by now, nothing to open beforehand as for a pidfd, it works between
//! containers, and the same call that tells whether a place is free takes it.
//!
//! A child that is forked without exec shares the description, and keeps the place: peers do not fork so. Programs that
//! they start close it (`O_CLOEXEC`).
//!
//! # Peers' numbers
//! The peer in slot `s` of `n` has the numbers `s + 1 + n k`, with another `k` for each incarnation. A number is not used
//! again for `65,535 / n` incarnations of its slot, so that a word or letter that names a dead peer names nobody.

use core::sync::atomic::Ordering::SeqCst;

use lockify_onesided::Peer;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::error::ShmError;
use super::layout::{MAX_PEERS, header};
use super::segment::Segment;

/// Words of a slot, as byte offsets.
pub(super) mod word {
    /// The peer's number; 0: nobody yet, or somebody who left in order.
    pub const PEER: u64 = 0;
    pub const INCARNATION: u64 = 8;
    /// Counts what its owner has to look at; a futex.
    pub const BELL: u64 = 64;
    /// Not 0: the owner sleeps, or is about to.
    pub const SLEEPS: u64 = 68;
}

/// The home's place, in a segment that keeps one.
const HOME: u64 = 0;

/// The place that a peer has.
#[derive(Debug)]
pub(super) struct Slot {
    index: u64,
    incarnation: u64,
    peer: Peer,
}

impl Slot {
    /// Takes a free place.
    pub fn claim(segment: &Segment) -> Result<Slot, ShmError> {
        let peers = segment.places();
        let first = if segment.header(header::HOME).load(SeqCst) != 0 { HOME + 1 } else { 0 };
        for index in first..peers {
            if try_lock(segment, index)? {
                return Ok(Slot::numbered(segment, index));
            }
        }
        Err(ShmError::Full { peers })
    }

    /// Takes the home's place, which nobody else is given from then on. A process that takes it again is the same peer:
    /// earlier messages to the home are for the next home.
    pub fn claim_home(segment: &Segment) -> Result<Slot, ShmError> {
        segment.header(header::HOME).store(1, SeqCst);
        if !try_lock(segment, HOME)? {
            return Err(ShmError::Served { path: segment.path().to_owned() });
        }
        let at = segment.layout().slot(HOME);
        let before = u16::try_from(segment.header(at + word::PEER).load(SeqCst)).map(Peer);
        let Some(peer) = before.ok().filter(|peer| index_of(segment, *peer) == Some(HOME)) else {
            return Ok(Slot::numbered(segment, HOME));
        };
        segment.half(at + word::SLEEPS).store(0, SeqCst);
        let incarnation = segment.header(at + word::INCARNATION).load(SeqCst);
        Ok(Slot { index: HOME, incarnation, peer })
    }

    /// A new peer in a place that is taken already.
    fn numbered(segment: &Segment, index: u64) -> Slot {
        let peers = segment.places();
        let at = segment.layout().slot(index);
        // Nobody sends to a place without a number; earlier messages name the old incarnation.
        segment.header(at + word::PEER).store(0, SeqCst);
        let incarnation =
            segment.header(at + word::INCARNATION).fetch_add(1, SeqCst).wrapping_add(1);
        segment.half(at + word::SLEEPS).store(0, SeqCst);
        let rounds = u64::from(u16::MAX) / peers;
        let number = index + 1 + peers * (incarnation % rounds);
        let peer = Peer(u16::try_from(number).unwrap_or(u16::MAX));
        segment.header(at + word::PEER).store(number, SeqCst);
        Slot { index, incarnation, peer }
    }

    pub fn index(&self) -> u64 {
        self.index
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn peer(&self) -> Peer {
        self.peer
    }
}

/// The place of the peer with this number.
pub(super) fn index_of(segment: &Segment, peer: Peer) -> Option<u64> {
    u64::from(peer.0).checked_sub(1).map(|n| n % segment.places())
}

/// Which incarnation the peer with this number is, if it is the latest of its place. Says nothing about its life.
pub(super) fn incarnation_of(segment: &Segment, peer: Peer) -> Option<(u64, u64)> {
    let index = index_of(segment, peer)?;
    let at = segment.layout().slot(index);
    let is_it = || segment.header(at + word::PEER).load(SeqCst) == u64::from(peer.0);
    if !is_it() {
        return None;
    }
    let incarnation = segment.header(at + word::INCARNATION).load(SeqCst);
    // The number goes before the incarnation changes, so it was that peer's.
    is_it().then_some((index, incarnation))
}

/// Returns true if the peer with this number lives. The caller knows that of itself: its own locks are not shown to it.
pub(super) fn lives(segment: &Segment, me: Peer, peer: Peer) -> bool {
    let Some((index, _)) = incarnation_of(segment, peer) else { return false };
    peer == me || is_locked(segment, index)
}

pub(super) fn living(segment: &Segment, me: Peer) -> Vec<Peer> {
    let number = |index| segment.header(segment.layout().slot(index) + word::PEER).load(SeqCst);
    let peers = (0..segment.places()).filter_map(|index| u16::try_from(number(index)).ok());
    peers.map(Peer).filter(|peer| lives(segment, me, *peer)).collect()
}

/// The system's word for one byte of the file.
fn byte(index: u64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: i64::try_from(index).unwrap_or(i64::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

/// Returns true if this end alone may remove the file now. Its byte is no slot's.
pub(super) fn lock_for_removal(segment: &Segment) -> Result<bool, ShmError> {
    try_lock(segment, MAX_PEERS)
}

fn try_lock(segment: &Segment, index: u64) -> Result<bool, ShmError> {
    match fcntl(segment.file(), FcntlArg::F_OFD_SETLK(&byte(index))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(ShmError::System {
            what: "lock a byte of",
            path: segment.path().to_owned(),
            error: e.into(),
        }),
    }
}

/// Returns true if another end than this one has the place. A failed query counts as alive: no peer is declared dead by
/// mistake.
fn is_locked(segment: &Segment, index: u64) -> bool {
    let mut asked = byte(index);
    let answer = fcntl(segment.file(), FcntlArg::F_OFD_GETLK(&mut asked));
    answer.is_err() || asked.l_type != libc::F_UNLCK as i16
}
