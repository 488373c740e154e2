//! One machine: processes that share a file.
//!
//! ```
//! use lockify_fabric::shm::{Owner, Segment, Shape, Shm};
//! use lockify_onesided::{Fabric as _, Verb};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("words");
//! let home = Shm::join(Segment::create(&path, Shape { peers: 8, memory: 4096 }, 0o600)?)?;
//! let region = home.register(64)?;
//! // Elsewhere:
//! let client = Shm::join(Segment::open(&path, Owner::Me)?)?;
//! let before = client.block_on(client.post(region.word(8), Verb::FetchAndAdd(1)))?;
//! assert_eq!(before, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Properties
//! - **The poster's processor executes a verb**, at once, by an atomic instruction. It is checked as a NIC would check
//!   it: key, bounds, alignment. See `regions.rs` for how a key can be revoked while a verb is under way.
//! - **The liveness of a peer** comes from the kernel, which drops a file lock however a process ends. See `slots.rs`.
//! - **Messages** go through one ring for each sender and receiver, so that a killed sender leaves nothing half-sent to
//!   others. See `rings.rs`.
//! - **Memory outlives the process that registered it**, as long as the file does. Verbs go on when a home is killed.
//! - **The file's mode and owner decide who may take part.** A process that may write to it may corrupt the locks in
//!   it: others see a wrong word or a lost message, but never panic. But a truncation kills those that have it mapped
//!   (SIGBUS); memory that is shared under a name cannot be protected from that.

mod error;
mod layout;
mod map;
mod regions;
mod rings;
mod segment;
mod slots;
mod wait;

use core::cell::{Cell, RefCell};
use core::future::Future;
use std::rc::Rc;

use lockify_onesided::{
    Address, Capabilities, Fabric, Key, Message, Nanos, Peer, Received, Region, RegionError, Verb,
    VerbError,
};
use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

pub use crate::clock::now;
use crate::patience;
pub use error::ShmError;
pub use layout::{MAX_PEERS, Shape};
pub use segment::{NOTICE_BYTES, Owner, Segment};

use crate::shm::rings::Rings;
use crate::shm::slots::Slot;

/// All peers are processes of one machine, and read its one clock.
const SAME_CLOCK: Option<Nanos> = Some(0);

/// One peer's end. Clones are the same end.
#[derive(Clone, Debug)]
pub struct Shm(Rc<End>);

#[derive(Debug)]
struct End {
    segment: Segment,
    slot: Slot,
    capabilities: Capabilities,
    rings: RefCell<Rings>,
    random: RefCell<Xoshiro256PlusPlus>,
    /// The earliest time that the task waits for.
    wake: Cell<Nanos>,
    /// How long it has spun since it let others run.
    alone: Cell<Nanos>,
}

impl Shm {
    /// Takes part as a peer, until the last clone is dropped or the process ends.
    ///
    /// # Errors
    /// [`ShmError::Full`]: as many peers live as the segment has room for; [`ShmError::Closed`]: its home ended.
    pub fn join(segment: Segment) -> Result<Shm, ShmError> {
        Shm::with(segment, Capabilities { masked: true, clock_error: SAME_CLOCK }, Slot::claim)
    }

    /// As [`Shm::join`], as the segment's home: one at a time, each the same peer as the one before.
    ///
    /// # Errors
    /// [`ShmError::Served`]: it has one; [`ShmError::Closed`].
    pub fn join_as_home(segment: Segment) -> Result<Shm, ShmError> {
        let capabilities = Capabilities { masked: true, clock_error: SAME_CLOCK };
        Shm::with(segment, capabilities, Slot::claim_home)
    }

    /// As [`Shm::join`], but without masked atomics, as Soft-RoCE and most NICs are.
    ///
    /// # Errors
    /// As [`Shm::join`].
    pub fn join_plain(segment: Segment) -> Result<Shm, ShmError> {
        Shm::with(segment, Capabilities { masked: false, clock_error: SAME_CLOCK }, Slot::claim)
    }

    fn with(
        segment: Segment,
        capabilities: Capabilities,
        claim: fn(&Segment) -> Result<Slot, ShmError>,
    ) -> Result<Shm, ShmError> {
        let open = || match segment.is_closed() {
            true => Err(ShmError::Closed { path: segment.path().to_owned() }),
            false => Ok(()),
        };
        open()?;
        let slot = claim(&segment)?;
        // Again with the place taken: who closes a segment and then finds nobody in it is alone for good.
        open()?;
        let rings = RefCell::new(Rings::new(&segment, &slot));
        let seed = segment.salt() ^ now() ^ u64::from(slot.peer().0) << 48;
        let random = RefCell::new(Xoshiro256PlusPlus::seed_from_u64(seed));
        let (wake, alone) = (Cell::new(Nanos::MAX), Cell::new(0));
        Ok(Shm(Rc::new(End { segment, slot, capabilities, rings, random, wake, alone })))
    }

    /// The file.
    pub fn segment(&self) -> &Segment {
        &self.0.segment
    }

    /// Returns true if a peer lives.
    pub fn lives(&self, peer: Peer) -> bool {
        slots::lives(&self.0.segment, self.me(), peer)
    }

    /// The peers that live, this one too.
    pub fn peers(&self) -> Vec<Peer> {
        slots::living(&self.0.segment, self.me())
    }

    /// Runs a future of this fabric to its end, on this thread. Waits for messages and times; spins at first, because a
    /// wait for a lock is often shorter than a sleep.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        wait::block_on(&self.0, future)
    }
}

impl Fabric for Shm {
    fn me(&self) -> Peer {
        self.0.slot.peer()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn now(&self) -> Nanos {
        now()
    }

    async fn sleep_until(&self, at: Nanos) {
        patience::until(&self.0.wake, at, || None::<()>).await;
    }

    fn random(&self) -> u64 {
        self.0.random.borrow_mut().next_u64()
    }

    fn post(&self, at: Address, verb: Verb) -> impl Future<Output = Result<u64, VerbError>> {
        let masked = matches!(verb, Verb::MaskedCompareAndSwap { .. });
        let result = if masked && !self.0.capabilities.masked {
            Err(VerbError::Unsupported("masked compare-and-swap"))
        } else {
            regions::execute(&self.0.segment, at, verb)
        };
        core::future::ready(result)
    }

    fn send(&self, to: Peer, message: Message) -> impl Future<Output = Result<(), VerbError>> {
        let sent = self.0.rings.borrow_mut().send(&self.0.segment, &self.0.slot, to, message);
        let end = Rc::clone(&self.0);
        async move {
            let Some(outcome) = sent? else { return Ok(()) };
            // The receiver does not tell when it has made room, so look again now and then.
            loop {
                end.rings.borrow_mut().go_on(&end.segment, &end.slot);
                if let Some(outcome) = outcome.take() {
                    return outcome;
                }
                patience::until(&end.wake, now() + rings::RETRY, || None::<()>).await;
            }
        }
    }

    async fn receive(&self, until: Nanos) -> Option<Received> {
        let end = &self.0;
        patience::until(&end.wake, until, || {
            end.rings.borrow_mut().receive(&end.segment, &end.slot)
        })
        .await
    }

    fn register(&self, bytes: u64) -> Result<Region, RegionError> {
        regions::register(&self.0.segment, self.me(), bytes)
    }

    fn revoke(&self, key: Key) {
        regions::revoke(&self.0.segment, self.me(), key);
    }
}
