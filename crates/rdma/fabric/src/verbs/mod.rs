//! RDMA: reliable connections of libibverbs, one queue pair for each peer.
//!
//! ```no_run
//! use lockify_fabric::verbs::{Exchange, Settings, Verbs};
//! use lockify_onesided::{Fabric as _, Peer, Region, Verb};
//!
//! # fn client(exchange: Box<dyn Exchange>, me: Peer, region: Region) -> Result<(), Box<dyn std::error::Error>> {
//! // `exchange` reaches the other ends beside RDMA, and has given this one its number.
//! let client = Verbs::open(&Settings::default(), me)?;
//! client.meet(exchange);
//! let before = client.block_on(client.post(region.word(8), Verb::FetchAndAdd(1)))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Properties
//! - **Two ends are connected when one has something for the other**, by three words through the [`Exchange`]
//!   (`handshake.rs`). Both have to let their fabric go on for that ([`Verbs::block_on`]).
//! - **A failure breaks its connection**, as with all queue pairs: all else that was under way on it ends in
//!   [`VerbError::Unknown`], and the next verb makes a new one. No other connection is touched.
//! - **The home's own verbs take the way through its device**, by a pair that is connected to itself: a device's atomics
//!   exclude each other, not the processor.
//! - **A peer's device does not say whether a key is wrong or a place is outside of its region**: both are
//!   [`VerbError::WrongKey`].
//! - **A message arrives once, or its sender is told**, also if connections break under it: `link.rs`. Posted messages
//!   without a waiter still go out when the end is dropped, which takes a second at most.
//! - **Messages wait for a receiver in [`RECEIVES`] places**; a receiver that does not read them for two seconds, with
//!   all places taken, loses the connection.
//! - Results are words in memory that the device writes to; a region's addresses count from 0.

mod api;
mod card;
mod device;
mod endpoint;
mod error;
mod exchange;
mod handshake;
mod link;
mod memory;
mod pair;
#[cfg(test)]
mod schedules;
mod wait;
mod work;

use core::cell::{Cell, RefCell};
use core::future::Future;
use std::rc::Rc;

use lockify_onesided::{
    Address, Capabilities, Fabric, Key, Message, Nanos, Peer, Received, Region, RegionError, Verb,
    VerbError,
};
use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

pub use endpoint::BadWord;
pub use error::VerbsError;
pub use exchange::{Exchange, Heard, MOST_TOLD};

use crate::clock::now;
use crate::patience;
use device::Device;
use link::Links;
use memory::Memory;
use work::{Outcome, Work};

/// Verbs and messages to one peer that can be under way; more wait in this process.
pub const SENDS: u32 = 32;
/// Messages of one peer that the device takes before this process looks at them.
pub const RECEIVES: u32 = 32;

/// How an end uses its device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Which device, as `rdma link` names it; the first if none is named.
    pub device: Option<String>,
    /// Which of its ports, from 1 on.
    pub port: u8,
    /// Which of the port's addresses (GIDs). If none is named: on Ethernet, RoCE v2, of IPv4 if there is one.
    pub gid_index: Option<u8>,
    /// How long the device waits for an acknowledgement: 4.096 us times 2 to the power of this. It tries six times
    /// again, so a peer that has vanished is noticed after seven times that: 14 makes it half a second.
    pub ack_timeout: u8,
    /// Most peers that this end has connections with at a time, itself among them.
    pub peers: u16,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { device: None, port: 1, gid_index: None, ack_timeout: 14, peers: 64 }
    }
}

/// One peer's end. Clones are the same end.
#[derive(Clone)]
pub struct Verbs(Rc<End>);

struct End {
    me: Peer,
    device: Rc<Device>,
    links: RefCell<Links<Rc<Device>>>,
    regions: RefCell<Vec<Memory>>,
    random: RefCell<Xoshiro256PlusPlus>,
    /// The earliest time that the task waits for.
    wake: Cell<Nanos>,
}

impl Verbs {
    /// Opens a device, as the end of `me`: a number that nobody else on the exchange has, and not 0.
    ///
    /// # Errors
    /// [`VerbsError`]: no library, no device, or one that is not fit.
    pub fn open(settings: &Settings, me: Peer) -> Result<Verbs, VerbsError> {
        let device = Device::open(settings)?;
        let seed = now() ^ u64::from(std::process::id()) << 32 ^ u64::from(me.0) << 16;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let links = Links::new(me, Rc::clone(&device), settings.peers, random.next_u64());
        Ok(Verbs(Rc::new(End {
            me,
            device,
            links: RefCell::new(links),
            regions: RefCell::default(),
            random: RefCell::new(random),
            wake: Cell::new(Nanos::MAX),
        })))
    }

    /// Others are reached by this from now on; before, only this end itself.
    pub fn meet(&self, exchange: Box<dyn Exchange>) {
        self.0.links.borrow_mut().meet(exchange);
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        self.0.device.name()
    }

    /// Runs a future of this fabric to its end, on this thread, and meanwhile whatever others want of this end. Looks
    /// for completions at first, and then sleeps until one comes.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        wait::block_on(&self.0, future)
    }

    /// Why a verb is not even posted. A refusal by the device costs its connection.
    fn refusal(&self, at: Address, verb: Verb) -> Option<VerbError> {
        if matches!(verb, Verb::MaskedCompareAndSwap { .. }) {
            return Some(VerbError::Unsupported("masked compare-and-swap"));
        }
        if !at.offset.is_multiple_of(8) {
            return Some(VerbError::OutOfBounds(at));
        }
        if at.home != self.me() {
            return None;
        }
        let regions = self.0.regions.borrow();
        let Some(region) = regions.iter().find(|memory| memory.key() == at.key.0) else {
            return Some(VerbError::WrongKey(at));
        };
        (at.offset >= region.bytes()).then_some(VerbError::OutOfBounds(at))
    }

    fn work(&self, to: Peer, work: Work) -> Completion {
        let outcome = Outcome::default();
        self.0.links.borrow_mut().take(to, work, Rc::clone(&outcome));
        Completion(outcome)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A panicking thread has no time.
        if !std::thread::panicking() {
            wait::finish(self);
        }
    }
}

/// Waits for a posted request.
struct Completion(Outcome);

impl Future for Completion {
    type Output = Result<u64, VerbError>;

    fn poll(
        self: core::pin::Pin<&mut Self>,
        _: &mut core::task::Context<'_>,
    ) -> core::task::Poll<Self::Output> {
        self.0.get().map_or(core::task::Poll::Pending, core::task::Poll::Ready)
    }
}

impl Fabric for Verbs {
    fn me(&self) -> Peer {
        self.0.me
    }

    fn capabilities(&self) -> Capabilities {
        // Clocks of machines may differ by any amount.
        Capabilities { masked: false, clock_error: None }
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
        match self.refusal(at, verb) {
            Some(refused) => Completion(Rc::new(Cell::new(Some(Err(refused))))),
            None => self.work(at.home, Work::Verb(at, verb)),
        }
    }

    fn send(&self, to: Peer, message: Message) -> impl Future<Output = Result<(), VerbError>> {
        let sent = self.work(to, Work::Message(message));
        async move { sent.await.map(|_| ()) }
    }

    async fn receive(&self, until: Nanos) -> Option<Received> {
        let end = &self.0;
        patience::until(&end.wake, until, || end.links.borrow_mut().receive()).await
    }

    fn register(&self, bytes: u64) -> Result<Region, RegionError> {
        let whole = usize::try_from(bytes).ok().filter(|n| *n > 0 && n.is_multiple_of(8));
        let whole = whole.ok_or(RegionError::Length(bytes))?;
        let refused = |e: VerbsError| RegionError::Refused { bytes, reason: e.to_string() };
        let memory = Memory::new(&self.0.device, whole, true).map_err(refused)?;
        let region = Region { home: self.me(), key: Key(memory.key()), len: bytes };
        self.0.regions.borrow_mut().push(memory);
        Ok(region)
    }

    fn revoke(&self, key: Key) {
        // Dropped memory is deregistered, and verbs that come later find no key.
        self.0.regions.borrow_mut().retain(|memory| memory.key() != key.0);
    }
}
