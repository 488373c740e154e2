//! Schedules: where no state is wrong, but one that goes on and on is, since somebody waits; and where it takes a search
//! too long to get there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::common::{S, X};
use lockify_onesided::mutation::Mutation;
use lockify_onesided::port::{Port, Request, SharedMemory, Ticket};
use lockify_onesided::{
    Address, Capabilities, Client, Fabric as _, LockId, Mode, Options, Peer, Protocol, Received,
    Table, Verb, serve,
};

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Actor {
    port: Port,
    task: Option<Task>,
    verbs: Vec<(Ticket, Address, Verb)>,
}

/// A home (peer 1), clients of one lock (peers 2, 3, …), and who they are.
struct Stage {
    memory: SharedMemory,
    table: Table,
    actors: BTreeMap<u16, Actor>,
    /// Between these two, messages are held up.
    held_up: Option<(u16, u16)>,
    late: Vec<Received>,
}

impl Stage {
    fn new(options: Options, clients: &[&dyn Fn(Port, Table) -> Task]) -> Stage {
        let memory = SharedMemory::default();
        let region = memory.borrow_mut().register(Peer(1), Table::bytes(1, 1).unwrap()).unwrap();
        let table = Table::new(region, 1, 1).unwrap();
        let mut actors = BTreeMap::new();
        let mut add = |number: u16, work: &dyn Fn(Port, Table) -> Task| {
            let port = Port::new(Peer(number), Capabilities::default(), 1, Rc::clone(&memory));
            let task = Some(work(port.clone(), table));
            actors.insert(number, Actor { port, task, verbs: Vec::new() });
        };
        add(1, &|port, table| Box::pin(async move { serve(port, table, options).await.unwrap() }));
        for (number, work) in (2..).zip(clients) {
            add(number, *work);
        }
        Stage { memory, table, actors, held_up: None, late: Vec::new() }
    }

    fn peers(&self) -> Vec<u16> {
        self.actors.keys().copied().collect()
    }

    /// Lets everybody run until all wait for verbs.
    fn settle(&mut self, now: u64) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for number in self.peers() {
                let actor = self.actors.get_mut(&number).unwrap();
                let Some(task) = &mut actor.task else { continue };
                if actor.port.run(task, now) == Poll::Ready(()) {
                    actor.task = None;
                }
                let port = self.actors[&number].port.clone();
                while let Some((ticket, request)) = port.take_request() {
                    moved = true;
                    match request {
                        Request::Verb(at, verb) => {
                            self.actors.get_mut(&number).unwrap().verbs.push((ticket, at, verb));
                        }
                        Request::Send(to, message) => {
                            let received = Received { from: Peer(number), message };
                            if self.held_up == Some((number, to.0)) {
                                self.late.push(received);
                            } else {
                                self.actors[&to.0].port.deliver(received);
                            }
                            port.complete(ticket, Ok(0));
                        }
                    }
                }
            }
        }
    }

    fn execute(&mut self, number: u16) {
        let actor = self.actors.get_mut(&number).unwrap();
        if !actor.verbs.is_empty() {
            let (ticket, at, verb) = actor.verbs.remove(0);
            let result = self.memory.borrow_mut().execute(at, verb);
            actor.port.complete(ticket, result);
        }
    }

    fn is_done(&self, number: u16) -> bool {
        self.actors[&number].task.is_none()
    }

    fn word(&self) -> u64 {
        // The word of generation 0 is the second of the lock's record.
        self.memory.borrow().peek(self.table.region().word(8))
    }
}

fn client(port: Port, table: Table, options: Options, mode: Mode, times: u64) -> Task {
    Box::pin(async move {
        let mut client = Client::new(port, table, options).unwrap();
        for _ in 0..times {
            let guard = client.lock(LockId(0), mode).await.unwrap();
            client.unlock(guard).await.unwrap();
        }
    })
}

const WRITER: u16 = 2;

/// Four readers share one lock again and again, and a writer wants it. In each round, everybody's next verb executes; but
/// the writer's only when the lock's word has changed since its last one, or when nobody has changed it for a long time.
/// Rounds until the writer is through.
fn rounds(options: Options, most: u64) -> Option<u64> {
    let writer = |port, table| client(port, table, options, X, 1);
    let reader = |port, table| client(port, table, options, S, u64::MAX);
    let mut stage = Stage::new(options, &[&writer, &reader, &reader, &reader, &reader]);
    let (mut seen, mut since) = (stage.word(), 0);
    for round in 0..most {
        stage.settle(round * 2000);
        if stage.is_done(WRITER) {
            return Some(round);
        }
        stage.peers().into_iter().filter(|n| *n != WRITER).for_each(|n| stage.execute(n));
        since += 1;
        if stage.word() != seen || since > 100 {
            stage.execute(WRITER);
            (seen, since) = (stage.word(), 0);
        }
    }
    None
}

/// N-CoSED's hole 9.
#[test]
fn readers_do_not_starve_a_writer() {
    let options = Options::new(Protocol::NCosed);
    let through = rounds(options, 10_000).expect("the writer starves");
    println!("n-cosed: the writer is through after {through} rounds");
    let open = Options { mutation: Some(Mutation::CosedReadersNeverYield), ..options };
    // Much later the count of readers is half full, and they pause.
    assert_eq!(rounds(open, 10_000), None, "nothing starves the writer here");
}

/// One holds for a lease and a half, another waits: when it gets the lock, in leases.
fn wait_behind_who_is_late(options: Options) -> f64 {
    let lease = options.lease.unwrap();
    let late = |port: Port, table| -> Task {
        Box::pin(async move {
            let mut client = Client::new(port.clone(), table, options).unwrap();
            let guard = client.lock(LockId(0), X).await.unwrap();
            port.sleep_until(lease * 3 / 2).await;
            client.unlock(guard).await.unwrap();
        })
    };
    let next = |port, table| client(port, table, options, X, 1);
    let mut stage = Stage::new(options, &[&late, &next]);
    let step = lease / 100;
    for round in 0..1000 {
        stage.settle(round * step);
        if stage.is_done(3) {
            return (round * step) as f64 / lease as f64;
        }
        stage.peers().into_iter().for_each(|n| stage.execute(n));
    }
    panic!("{} repairs nothing", options.protocol.name());
}

/// DSLR's rule for releases after the lease: they release all the same, and nobody waits for a repair.
#[test]
fn a_late_release_is_one() {
    let options = Options { unit: 2_000, ..Options::new(Protocol::Dslr).with_lease(1_000_000) };
    let waits = wait_behind_who_is_late(options);
    assert!((1.5..1.7).contains(&waits), "{waits} leases");
    let open = Options { mutation: Some(Mutation::LateReleaseOmitted), ..options };
    let waits = wait_behind_who_is_late(open);
    assert!(waits >= 2.0, "{waits} leases");
}

/// Peer 2 hands over to peer 3, and the letter is late: peer 3 repairs, and goes on. It arrives when peer 3 waits for the
/// lock again, which peer 4 holds. The result is true if both hold it then.
fn a_late_handover_is_taken(options: Options) -> bool {
    let lease = options.lease.unwrap();
    let holders: Rc<Cell<[bool; 2]>> = Rc::default();
    let first = |port: Port, table| -> Task {
        Box::pin(async move {
            let mut client = Client::new(port.clone(), table, options).unwrap();
            let guard = client.lock(LockId(0), X).await.unwrap();
            port.sleep_until(lease / 10).await;
            client.unlock(guard).await.unwrap();
        })
    };
    let again = |port: Port, table, who: usize, begin: u64| -> Task {
        let holders = holders.clone();
        let set = move |holds| {
            let mut now = holders.get();
            now[who] = holds;
            holders.set(now);
        };
        Box::pin(async move {
            port.sleep_until(begin).await;
            let mut client = Client::new(port.clone(), table, options).unwrap();
            loop {
                let guard = client.lock(LockId(0), X).await.unwrap();
                set(true);
                port.sleep_until(port.now() + lease / 4).await;
                set(false);
                client.unlock(guard).await.unwrap();
            }
        })
    };
    let second = |port, table| again(port, table, 0, lease / 50);
    let third = |port, table| again(port, table, 1, 5 * lease);
    let mut stage = Stage::new(options, &[&first, &second, &third]);
    stage.held_up = Some((2, 3));
    for round in 0..1000 {
        stage.settle(round * (lease / 100));
        if holders.get() == [true, true] {
            return true;
        }
        if holders.get() == [false, true] && round > 600 {
            std::mem::take(&mut stage.late)
                .into_iter()
                .for_each(|received| stage.actors[&3].port.deliver(received));
        }
        stage.peers().into_iter().for_each(|n| stage.execute(n));
    }
    assert!(stage.late.is_empty(), "the letter was never sent, or never arrived");
    false
}

/// ShiftLock's hole 5.
#[test]
fn a_late_letter_is_for_nobody() {
    let options =
        Options { unit: 2_000, ..Options::new(Protocol::ShiftLock).with_lease(1_000_000) };
    assert!(!a_late_handover_is_taken(options));
    let open = Options { mutation: Some(Mutation::LettersAreAnonymous), ..options };
    assert!(a_late_handover_is_taken(open), "the letter is dropped all the same");
}
