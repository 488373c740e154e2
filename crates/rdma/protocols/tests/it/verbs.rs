//! Verbs per operation are those of docs/design/onesided.md 1.3; and what clients and tables refuse.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use lockify_onesided::port::{Port, Request, SharedMemory};
use lockify_onesided::{
    Capabilities, Client, Counts, Fabric as _, Key, LockError, LockId, Mode, Options, Peer,
    Protocol, Received, Region, Released, Table, Verb, VerbError, serve,
};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const LOCK: LockId = LockId(3);

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A fabric without delays: everything happens at once, in the order of posting.
struct Host {
    memory: SharedMemory,
    table: Table,
    options: Options,
    masked: bool,
    peers: BTreeMap<u16, (Port, Option<Task>)>,
    now: u64,
}

impl Host {
    fn new(protocol: Protocol, masked: bool) -> Host {
        let memory = SharedMemory::default();
        let region = memory.borrow_mut().register(Peer(1), Table::bytes(10, 64).unwrap()).unwrap();
        let table = Table::new(region, 10, 64).unwrap();
        let options = Options { net: u64::MAX, ..Options::new(protocol) };
        let mut host = Host { memory, table, options, masked, peers: BTreeMap::new(), now: 0 };
        host.start(1, move |port| {
            Box::pin(async move { serve(port, table, options).await.unwrap() })
        });
        host
    }

    fn start(&mut self, number: u16, task: impl FnOnce(Port) -> Task) {
        let port = Port::new(Peer(number), self.capabilities(), 1, self.memory.clone());
        let task = task(port.clone());
        self.peers.insert(number, (port, Some(task)));
        self.settle();
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { masked: self.masked, clock_error: Some(50_000) }
    }

    /// Runs all until nothing happens without time.
    fn settle(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            let numbers: Vec<u16> = self.peers.keys().copied().collect();
            for number in numbers {
                let (port, task) = self.peers.get_mut(&number).unwrap();
                if let Some(work) = task
                    && port.run(work, self.now) == Poll::Ready(())
                {
                    *task = None;
                }
                let port = port.clone();
                while let Some((ticket, request)) = port.take_request() {
                    moved = true;
                    let result = match request {
                        Request::Verb(at, verb) => self.memory.borrow_mut().execute(at, verb),
                        Request::Send(to, message) => match self.peers.get(&to.0) {
                            Some((other, _)) => {
                                other.deliver(Received { from: Peer(number), message });
                                Ok(0)
                            }
                            None => Err(VerbError::NotTaken(to)),
                        },
                    };
                    port.complete(ticket, result);
                }
            }
        }
    }

    /// Lets time pass until all sleeps that there are now have ended.
    fn sleep(&mut self) {
        let wakes =
            self.peers.values().map(|(port, _)| port.wake_at()).filter(|at| *at != u64::MAX);
        if let Some(latest) = wakes.max() {
            self.now = latest;
            self.settle();
        }
    }

    /// A client that takes the lock once, and releases it when it may.
    fn client(&mut self, number: u16, mode: Mode) -> Rc<Script> {
        let script: Rc<Script> = Rc::default();
        let (shared, table, options) = (script.clone(), self.table, self.options);
        self.start(number, move |port| {
            Box::pin(async move {
                let mut client = Client::new(port, table, options).unwrap();
                let guard = client.lock(LOCK, mode).await.unwrap();
                let taken = client.counts();
                shared.taken.set(Some(taken));
                core::future::poll_fn(|_| match shared.may_release.get() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                })
                .await;
                assert_eq!(client.unlock(guard).await, Ok(Released::Yes));
                shared.released.set(Some(client.counts().since(&taken)));
            })
        });
        script
    }

    fn release(&mut self, script: &Script) -> Counts {
        script.may_release.set(true);
        self.settle();
        script.released.get().expect("it releases without waiting")
    }
}

#[derive(Default)]
struct Script {
    taken: Cell<Option<Counts>>,
    may_release: Cell<bool>,
    released: Cell<Option<Counts>>,
}

fn counts(cas: u64, faa: u64, read: u64, write: u64, send: u64) -> Counts {
    Counts { cas, faa, read, write, send, ..Counts::default() }
}

/// Without those that the comparison does not name.
fn posted(c: Counts) -> Counts {
    Counts { cas_failed: 0, recv: 0, ..c }
}

#[test]
fn uncontended() {
    let none = counts(0, 0, 0, 0, 0);
    let (cas, faa, send) = (counts(1, 0, 0, 0, 0), counts(0, 1, 0, 0, 0), counts(0, 0, 0, 0, 1));
    let cases = [
        (Protocol::Srsl, [send, send], [send, send]),
        (Protocol::Dqnl, [cas, cas], [cas, cas]),
        (Protocol::NCosed, [cas, cas], [faa, send]),
        (Protocol::Spin, [cas, cas], [cas, cas]),
        (Protocol::Dslr, [faa, faa], [faa, faa]),
        (Protocol::Mcs, [cas, cas], [cas, cas]),
        (Protocol::ShiftLock, [cas, cas], [faa, faa]),
        (Protocol::ShiftLockPlus, [cas, cas], [faa, faa]),
        (Protocol::ShiftLockS, [faa, faa], [faa, faa]),
        (Protocol::RmaRw, [counts(1, 1, 2, 0, 0), counts(1, 1, 1, 0, 0)], [faa, faa]),
        (Protocol::Drtm, [cas, cas], [cas, none]),
    ];
    for (protocol, exclusive, shared) in cases {
        for (mode, [lock, unlock]) in [(X, exclusive), (S, shared)] {
            for masked in [false, true] {
                let mut host = Host::new(protocol, masked);
                let script = host.client(2, mode);
                let taken = script.taken.get().map(posted);
                assert_eq!(taken, Some(lock), "{} {mode:?}: lock", protocol.name());
                let released = posted(host.release(&script));
                assert_eq!(released, unlock, "{} {mode:?}: unlock", protocol.name());
                assert_eq!(script.taken.get().unwrap().cas_failed, none.cas_failed);
                host.settle();
                let idle = host.table.is_idle(&host.memory.borrow(), protocol, LOCK);
                assert!(idle, "{} {mode:?}: the word is not that of a free lock", protocol.name());
            }
        }
    }
}

/// A writer behind a writer: what it posts until it waits, and what the hand-over to it takes.
#[test]
fn hand_over() {
    let cases = [
        (Protocol::Srsl, counts(0, 0, 0, 0, 1), counts(0, 0, 0, 0, 1)),
        (Protocol::Dqnl, counts(2, 0, 0, 0, 1), counts(0, 0, 0, 0, 1)),
        (Protocol::NCosed, counts(2, 0, 0, 0, 1), counts(0, 0, 0, 0, 1)),
        (Protocol::Mcs, counts(1, 0, 0, 0, 1), counts(0, 1, 0, 0, 1)),
        // Two tries of the fast path; nothing at the home when it hands over.
        (Protocol::ShiftLock, counts(3, 0, 0, 0, 1), counts(0, 0, 0, 0, 1)),
        (Protocol::ShiftLockPlus, counts(2, 0, 0, 0, 1), counts(0, 0, 0, 0, 1)),
        (Protocol::ShiftLockS, counts(0, 1, 1, 1, 0), counts(0, 1, 1, 0, 1)),
        (Protocol::RmaRw, counts(1, 0, 0, 0, 1), counts(0, 0, 0, 0, 1)),
    ];
    for (protocol, lock, unlock) in cases {
        let mut host = Host::new(protocol, true);
        let first = host.client(2, X);
        let second = host.client(3, X);
        host.sleep();
        host.sleep();
        assert_eq!(second.taken.get(), None, "{}: two hold", protocol.name());
        let released = posted(host.release(&first));
        assert_eq!(released, unlock, "{}: hand-over", protocol.name());
        let taken = second.taken.get().map(posted);
        assert_eq!(taken, Some(lock), "{}: lock", protocol.name());
    }
}

/// One release lets all readers in that wait behind a writer.
#[test]
fn readers_behind_a_writer_come_in_together() {
    for protocol in [
        Protocol::Dslr,
        Protocol::ShiftLock,
        Protocol::ShiftLockS,
        Protocol::NCosed,
        Protocol::Srsl,
        Protocol::RmaRw,
    ] {
        let mut host = Host::new(protocol, true);
        let writer = host.client(2, X);
        let readers: Vec<_> = (3..8).map(|number| host.client(number, S)).collect();
        assert!(readers.iter().all(|reader| reader.taken.get().is_none()), "{}", protocol.name());
        host.release(&writer);
        (0..20).for_each(|_| host.sleep());
        assert!(readers.iter().all(|reader| reader.taken.get().is_some()), "{}", protocol.name());
    }
}

/// The result of a future that needs no time.
fn now<T>(host: &mut Host, work: impl FnOnce(Port, Table) -> Pin<Box<dyn Future<Output = T>>>) -> T
where
    T: 'static,
{
    let result: Rc<Cell<Option<T>>> = Rc::default();
    let (shared, table) = (result.clone(), host.table);
    host.start(9, move |port| {
        let work = work(port, table);
        Box::pin(async move { shared.set(Some(work.await)) })
    });
    result.take().expect("it ends at once")
}

#[test]
fn bad_input_is_refused() {
    let mut host = Host::new(Protocol::Dslr, false);
    let options = host.options;
    let error = now(&mut host, move |port, table| {
        Box::pin(async move {
            Client::new(port, table, options).unwrap().lock(LockId(10), X).await.unwrap_err()
        })
    });
    assert_eq!(error, LockError::NoSuchLock { lock: LockId(10), locks: 10 });
    let error = now(&mut host, move |port, table| {
        Box::pin(async move {
            let mut client = Client::new(port, table, options).unwrap();
            let guard = client.lock(LOCK, S).await.unwrap();
            let error = client.lock(LOCK, S).await.unwrap_err();
            client.unlock(guard).await.unwrap();
            error
        })
    });
    assert_eq!(error, LockError::Held(LOCK));
    let error = now(&mut host, move |port, table| {
        Box::pin(async move {
            let region = Region { key: Key(77), ..table.region() };
            let table = Table::new(region, 10, 64).unwrap();
            Client::new(port, table, options).unwrap().lock(LOCK, X).await.unwrap_err()
        })
    });
    assert!(error.to_string().starts_with("peer 1 refused key 0x4d"), "{error}");
    let error = now(&mut host, move |port, table| {
        let masked =
            Verb::MaskedCompareAndSwap { expected: 0, compare_mask: 0, new: 1, swap_mask: 1 };
        Box::pin(async move { port.post(table.region().word(0), masked).await.unwrap_err() })
    });
    assert_eq!(error, VerbError::Unsupported("masked compare-and-swap"));
    let leased = Options::new(Protocol::RmaRw).with_lease(1000);
    let refused = now(&mut host, move |port, table| {
        Box::pin(async move { Client::new(port, table, leased).err() })
    });
    assert_eq!(refused, Some(LockError::NoLeases("rma-rw")));
    let without = Port::new(Peer(2), Capabilities::default(), 1, host.memory.clone());
    let refused = Client::new(without, host.table, Options::new(Protocol::Drtm)).err();
    assert_eq!(refused, Some(LockError::NoCommonClock("drtm")));
    let wrong = Options { turnover: 0, ..options };
    let refused = now(&mut host, move |port, table| {
        Box::pin(async move { Client::new(port, table, wrong).err() })
    });
    assert_eq!(refused, Some(LockError::Settings));
}

/// Messages that no client sends change nothing.
#[test]
fn rubbish_is_dropped() {
    for &protocol in Protocol::ALL {
        let mut host = Host::new(protocol, true);
        let first = host.client(2, X);
        let second = host.client(3, X);
        host.start(7, |port| {
            Box::pin(async move {
                for to in 1..4 {
                    for kind in 0..16 {
                        let _ = port
                            .send(Peer(to), [LOCK.0, kind, u64::from(to) << 40 | 1 << 32, u64::MAX])
                            .await;
                        let _ = port.send(Peer(to), [u64::MAX, kind, u64::MAX, u64::MAX]).await;
                    }
                }
            })
        });
        (0..3).for_each(|_| host.sleep());
        assert_eq!(
            (first.taken.get().is_some(), second.taken.get()),
            (true, None),
            "{}",
            protocol.name()
        );
    }
}
