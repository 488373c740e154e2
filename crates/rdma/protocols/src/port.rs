//! A fabric's end without the fabric. A host takes a task's verbs from it, and puts completions into it, and decides
//! the order of all events. The simulator and the explorer are such hosts.

use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;

use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::fabric::{
    Address, Capabilities, Fabric, Key, Message, Nanos, Peer, Received, Region, RegionError, Verb,
    VerbError,
};
use crate::memory::Memory;

/// Names something posted, to the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u32);

/// A request that a task posted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// A verb.
    Verb(Address, Verb),
    /// A message.
    Send(Peer, Message),
}

/// The home's memory, which all ports of one host share.
pub type SharedMemory = Rc<RefCell<Memory>>;

struct Inner {
    me: Peer,
    capabilities: Capabilities,
    now: Nanos,
    random: Xoshiro256PlusPlus,
    memory: SharedMemory,
    next: u32,
    requests: VecDeque<(Ticket, Request)>,
    /// Those that somebody waits for.
    waiting: Vec<(Ticket, Option<Result<u64, VerbError>>)>,
    mailbox: VecDeque<Received>,
    /// The earliest time that the task waits for.
    wake: Nanos,
}

/// One peer's end. Clones are the same end.
#[derive(Clone)]
pub struct Port(Rc<RefCell<Inner>>);

impl Port {
    /// An end of `me`, whose random numbers follow from `seed`.
    pub fn new(me: Peer, capabilities: Capabilities, seed: u64, memory: SharedMemory) -> Port {
        Port(Rc::new(RefCell::new(Inner {
            me,
            capabilities,
            now: 0,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            memory,
            next: 0,
            requests: VecDeque::new(),
            waiting: Vec::new(),
            mailbox: VecDeque::new(),
            wake: Nanos::MAX,
        })))
    }

    /// The first posted request that was not taken yet.
    pub fn take_request(&self) -> Option<(Ticket, Request)> {
        self.0.borrow_mut().requests.pop_front()
    }

    /// Completes a posted request. For messages the value does not count.
    pub fn complete(&self, ticket: Ticket, result: Result<u64, VerbError>) {
        let mut inner = self.0.borrow_mut();
        if let Some(waiting) = inner.waiting.iter_mut().find(|(t, _)| *t == ticket) {
            waiting.1 = Some(result);
        }
    }

    /// A message arrives.
    pub fn deliver(&self, received: Received) {
        self.0.borrow_mut().mailbox.push_back(received);
    }

    /// The time that the task waits for, besides completions and messages.
    pub fn wake_at(&self) -> Nanos {
        self.0.borrow().wake
    }

    /// Lets the task run until it waits. Its clock shows `now`.
    pub fn run<T>(&self, task: &mut Pin<Box<dyn Future<Output = T>>>, now: Nanos) -> Poll<T> {
        {
            let mut inner = self.0.borrow_mut();
            inner.now = inner.now.max(now);
            inner.wake = Nanos::MAX;
        }
        task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn request(&self, request: Request) -> Completion {
        let mut inner = self.0.borrow_mut();
        let ticket = Ticket(inner.next);
        inner.next = inner.next.wrapping_add(1);
        let unsupported = !inner.capabilities.masked
            && matches!(request, Request::Verb(_, Verb::MaskedCompareAndSwap { .. }));
        if unsupported {
            let refused = VerbError::Unsupported("masked compare-and-swap");
            inner.waiting.push((ticket, Some(Err(refused))));
        } else {
            inner.waiting.push((ticket, None));
            inner.requests.push_back((ticket, request));
        }
        drop(inner);
        Completion { port: self.clone(), ticket }
    }
}

/// Waits for a posted request.
struct Completion {
    port: Port,
    ticket: Ticket,
}

impl Future for Completion {
    type Output = Result<u64, VerbError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = self.port.0.borrow();
        let found = inner.waiting.iter().find(|(t, _)| *t == self.ticket);
        found.and_then(|(_, result)| *result).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.port.0.borrow_mut().waiting.retain(|(t, _)| *t != self.ticket);
    }
}

/// Polls `ready` until it is, or until the port's clock is there.
async fn wait_for<T>(
    port: &Port,
    until: Nanos,
    mut ready: impl FnMut(&mut Inner) -> Option<T>,
) -> Option<T> {
    core::future::poll_fn(|_| {
        let mut inner = port.0.borrow_mut();
        if let Some(found) = ready(&mut inner) {
            return Poll::Ready(Some(found));
        }
        if inner.now >= until {
            return Poll::Ready(None);
        }
        inner.wake = inner.wake.min(until);
        Poll::Pending
    })
    .await
}

impl Fabric for Port {
    fn me(&self) -> Peer {
        self.0.borrow().me
    }

    fn capabilities(&self) -> Capabilities {
        self.0.borrow().capabilities
    }

    fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    async fn sleep_until(&self, at: Nanos) {
        wait_for(self, at, |_| None::<()>).await;
    }

    fn random(&self) -> u64 {
        self.0.borrow_mut().random.next_u64()
    }

    fn post(&self, at: Address, verb: Verb) -> impl Future<Output = Result<u64, VerbError>> {
        self.request(Request::Verb(at, verb))
    }

    fn send(&self, to: Peer, message: Message) -> impl Future<Output = Result<(), VerbError>> {
        let completion = self.request(Request::Send(to, message));
        async move { completion.await.map(|_| ()) }
    }

    async fn receive(&self, until: Nanos) -> Option<Received> {
        wait_for(self, until, |inner| inner.mailbox.pop_front()).await
    }

    fn register(&self, bytes: u64) -> Result<Region, RegionError> {
        let inner = self.0.borrow();
        inner.memory.borrow_mut().register(inner.me, bytes)
    }

    fn revoke(&self, key: Key) {
        let inner = self.0.borrow();
        inner.memory.borrow_mut().revoke(inner.me, key);
    }
}
