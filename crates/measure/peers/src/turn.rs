//! One turn: one service does one thing for a short time.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lockify_bench::locks::{PingPong, on_other_processor, on_this_processor};

use crate::error::{During as _, Error};
use crate::service::{Client, PATIENCE, Service};

/// A measured task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Task {
    /// Lock and unlock of names that nobody else wants, each client its own.
    Uncontended {
        /// So many clients at once.
        clients: usize,
    },
    /// Lock and unlock of one name that the client's node decides about already.
    Relock,
    /// Lock and unlock of one name that another client's node decides about.
    Remote,
    /// From one client's unlock to the grant of another's lock that waits for it.
    Handover,
    /// Four clients that want one name, this share of them as readers, in percent.
    Mix {
        /// In percent.
        readers: u32,
    },
    /// Locks of new names, kept until the end, and all of them known to others.
    Create {
        /// Each with the making of an empty file.
        file: bool,
    },
}

impl Task {
    /// Its name in tables.
    pub fn name(self) -> String {
        match self {
            Task::Uncontended { clients: 1 } => "uncontended, 1 client".into(),
            Task::Uncontended { clients } => format!("uncontended, {clients} clients"),
            Task::Relock => "local re-lock".into(),
            Task::Remote => "another node's name".into(),
            Task::Handover => "hand-over".into(),
            Task::Mix { readers } => format!("4 clients, {readers} % readers"),
            Task::Create { file: false } => "creation, lock only".into(),
            Task::Create { file: true } => "creation with a file".into(),
        }
    }
}

/// Clients in mixes.
const MIXED: usize = 4;
/// Names of each client, taken in turn: with several nodes, their directories differ.
const NAMES: usize = 16;
/// Most creations in a turn: their locks are kept.
const CREATIONS: u64 = 20_000;

/// The findings of a turn.
pub struct Turn {
    /// Operations per second, of all clients together.
    pub per_second: f64,
    /// Each one's time in nanoseconds: that of lock and unlock; in mixes and creations, of the lock.
    pub times: Histogram<u64>,
}

/// An empty histogram: from 1 ns, with three digits.
fn histogram() -> Histogram<u64> {
    // The number of digits is a constant that is allowed.
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
}

/// Measures `task` for about `length`. `number` makes new names new, `folder` is for files.
///
/// # Errors
/// Those of the service; nothing was measured in time.
pub fn measure(
    service: &dyn Service,
    task: Task,
    length: Duration,
    number: usize,
    folder: &Path,
) -> Result<Turn, Error> {
    let turn = on_this_processor(|| match task {
        Task::Uncontended { clients } => uncontended(service, clients, length),
        Task::Relock => again(service, 0, length),
        Task::Remote => again(service, 2, length),
        Task::Handover => handover(service, length),
        Task::Mix { readers } => mix(service, readers, length),
        Task::Create { file } => create(service, file.then_some(folder), length, number),
    })?;
    if turn.times.is_empty() {
        return Err(Error::new(format!("{}, {}: nothing was done", service.name(), task.name())));
    }
    Ok(turn)
}

fn record(times: &mut Histogram<u64>, time: Duration) {
    // It resizes itself, and has no largest value.
    let _ = times.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
}

/// Has every client do `step` again and again for `length`, each on a thread of its own; all begin
/// together. `step` tells the time that counts.
fn together(
    mut clients: Vec<Box<dyn Client>>,
    length: Duration,
    step: impl Fn(usize, &mut dyn Client, u64) -> Result<Duration, Error> + Sync,
) -> Result<Turn, Error> {
    let barrier = std::sync::Barrier::new(clients.len());
    let run = |i: usize, client: &mut dyn Client| {
        barrier.wait();
        let (begin, mut times) = (Instant::now(), histogram());
        while begin.elapsed() < length {
            let time = step(i, client, times.len())?;
            record(&mut times, time);
        }
        Ok::<_, Error>((times, begin.elapsed()))
    };
    let done = std::thread::scope(|scope| {
        let run = &run;
        let threads = clients.iter_mut().enumerate();
        let threads: Vec<_> =
            threads.map(|(i, client)| scope.spawn(move || run(i, client.as_mut()))).collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(end) => end,
            Err(_) => Err(Error::new("a client's thread has panicked")),
        });
        ends.collect::<Result<Vec<_>, Error>>()
    })?;
    let mut turn = Turn { per_second: 0.0, times: histogram() };
    for (times, elapsed) in done {
        turn.per_second += times.len() as f64 / elapsed.as_secs_f64();
        turn.times.add(times).during("histogram")?;
    }
    Ok(turn)
}

fn clients(service: &dyn Service, count: usize) -> Result<Vec<Box<dyn Client>>, Error> {
    (0..count).map(|number| service.client(number)).collect()
}

fn pair(client: &mut dyn Client, name: &str) -> Result<Duration, Error> {
    let begin = Instant::now();
    client.lock(name)?;
    client.unlock()?;
    Ok(begin.elapsed())
}

fn uncontended(service: &dyn Service, count: usize, length: Duration) -> Result<Turn, Error> {
    let mut clients = clients(service, count)?;
    let own = |i: usize| (0..NAMES).map(|n| format!("own-{i}-{n}")).collect::<Vec<_>>();
    let names: Vec<Vec<String>> = (0..count).map(own).collect();
    // Warm-up; folders of names are made, where a service has them.
    for (client, names) in clients.iter_mut().zip(&names) {
        names.iter().try_for_each(|name| pair(client.as_mut(), name).map(drop))?;
    }
    together(clients, length, |i, client, n| pair(client, &names[i][n as usize % NAMES]))
}

/// Lock and unlock of a name that the node of client number `master` decides about.
fn again(service: &dyn Service, master: usize, length: Duration) -> Result<Turn, Error> {
    const NAME: &str = "again";
    let mut master = service.client(master)?;
    master.decide_about(NAME)?;
    let mut client = service.client(0)?;
    pair(client.as_mut(), NAME)?;
    together(vec![client], length, |_, client, _| pair(client, NAME))
}

fn mix(service: &dyn Service, readers: u32, length: Duration) -> Result<Turn, Error> {
    const NAME: &str = "mixed";
    let mut clients = clients(service, MIXED)?;
    for client in &mut clients {
        client.lock_as(NAME, false)?;
        client.unlock()?;
    }
    together(clients, length, |i, client, n| {
        // An even spread that differs between clients; 37 and 100 have no common divisor.
        let shared = (n * 37 + i as u64 * 29) % 100 < u64::from(readers);
        let begin = Instant::now();
        client.lock_as(NAME, shared)?;
        let time = begin.elapsed();
        client.unlock()?;
        Ok(time)
    })
}

fn create(
    service: &dyn Service,
    folder: Option<&Path>,
    length: Duration,
    number: usize,
) -> Result<Turn, Error> {
    let mut client = service.client(0)?;
    let folder = match folder {
        None => None,
        Some(folder) => Some(tempfile::tempdir_in(folder).during("cannot make a folder")?),
    };
    let make = |client: &mut dyn Client, name: &str| {
        client.create(name)?;
        match &folder {
            None => Ok(()),
            Some(folder) => {
                File::create(folder.path().join(name)).map(drop).during("cannot make a file")
            }
        }
    };
    for n in 0..50 {
        make(client.as_mut(), &format!("first-{number}-{n}"))?;
    }
    client.settle()?;
    let (begin, mut times) = (Instant::now(), histogram());
    let mut last = begin;
    while last - begin < length && times.len() < CREATIONS {
        make(client.as_mut(), &format!("new-{number}-{}", times.len()))?;
        let now = Instant::now();
        record(&mut times, now - last);
        last = now;
    }
    // Others can ask for it only now: the clock stops after that.
    client.settle()?;
    Ok(Turn { per_second: times.len() as f64 / begin.elapsed().as_secs_f64(), times })
}

/// The common state of the two sides of a hand-over. Step `n` is that of client `n % 2`.
#[derive(Default)]
struct Relay {
    /// Step `asked - 1` asks for the lock, or has.
    asked: AtomicU64,
    /// Step `granted - 1` has it, or had.
    granted: AtomicU64,
    /// When the last unlock began, in nanoseconds of the turn.
    released: AtomicU64,
    /// The step that is the last one, plus 1; 0 if that is open.
    last: AtomicU64,
    failed: AtomicBool,
}

impl Relay {
    /// Sleeps until `there`; a spinning thread would take the processor of those who work.
    fn wait(&self, there: impl Fn() -> bool) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        while !there() {
            if self.failed.load(Ordering::SeqCst) || Instant::now() > end {
                return Err(Error::new("the other side of the hand-over did not come"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

/// The rest of all processes before the baseline of a hand-over.
const REST: Duration = Duration::from_millis(1);

fn handover(service: &dyn Service, length: Duration) -> Result<Turn, Error> {
    const NAME: &str = "wanted";
    // A third client's node decides, so that both sides are a message away, if there are three.
    let mut third = service.client(2)?;
    third.decide_about(NAME)?;
    let mut sides = clients(service, 2)?;
    let mut pairs = histogram();
    for _ in 0..5 {
        for side in &mut sides {
            record(&mut pairs, pair(side.as_mut(), NAME)?);
        }
    }
    let rest = service.rest().max(3 * Duration::from_nanos(pairs.value_at_quantile(0.5)));
    // Ten at least.
    let length = length.max(10 * rest);
    let relay = Relay::default();
    let begin = Instant::now();
    let play = |side: u64, client: &mut dyn Client| {
        let played = play(side, client, NAME, &relay, begin, rest, length);
        if played.is_err() {
            relay.failed.store(true, Ordering::SeqCst);
        }
        played
    };
    let mut times = histogram();
    let played = std::thread::scope(|scope| {
        let play = &play;
        let threads: Vec<_> = (0..)
            .zip(&mut sides)
            .map(|(side, client)| scope.spawn(move || play(side, client.as_mut())))
            .collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(end) => end,
            Err(_) => Err(Error::new("a client's thread has panicked")),
        });
        ends.collect::<Vec<_>>()
    });
    // The first error is the cause; the other side's is that it waits in vain.
    for side in played {
        times.add(side?).during("histogram")?;
    }
    Ok(Turn { per_second: 1e9 / times.mean().max(1.0), times })
}

/// One side: takes every other step, and lets go only when the other side waits for the lock.
fn play(
    side: u64,
    client: &mut dyn Client,
    name: &str,
    relay: &Relay,
    begin: Instant,
    rest: Duration,
    length: Duration,
) -> Result<Histogram<u64>, Error> {
    let now = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut times = histogram();
    let mut step = side;
    loop {
        // The step before has the lock: this one queues behind it, and overtakes nobody.
        relay.wait(|| relay.granted.load(Ordering::SeqCst) >= step)?;
        relay.asked.store(step + 1, Ordering::SeqCst);
        client.lock(name)?;
        let granted = now();
        if step > 0 {
            let waited = granted.saturating_sub(relay.released.load(Ordering::SeqCst));
            record(&mut times, Duration::from_nanos(waited));
        }
        relay.granted.store(step + 1, Ordering::SeqCst);
        if relay.last.load(Ordering::SeqCst) == step + 1 {
            client.unlock()?;
            return Ok(times);
        }
        relay.wait(|| relay.asked.load(Ordering::SeqCst) >= step + 2)?;
        std::thread::sleep(rest);
        let over = begin.elapsed() > length;
        if over {
            relay.last.store(step + 2, Ordering::SeqCst);
        }
        relay.released.store(now(), Ordering::SeqCst);
        client.unlock()?;
        if over {
            return Ok(times);
        }
        step += 2;
    }
}

/// The baseline of a hand-over: bare round trips, each after the same rest as a hand-over, since a
/// processor that has rested is slower to answer. In microseconds, their median.
///
/// # Errors
/// The system refuses sockets or threads.
pub fn bare_round_trip(tcp: bool, length: Duration) -> Result<f64, Error> {
    let what = "the bare ping-pong failed";
    let start = if tcp { PingPong::tcp } else { PingPong::unix };
    let mut bare = on_other_processor(start).during(what)?;
    on_this_processor(|| {
        let (begin, mut times) = (Instant::now(), histogram());
        while begin.elapsed() < length {
            std::thread::sleep(REST);
            let sent = Instant::now();
            bare.exchange().during(what)?;
            record(&mut times, sent.elapsed());
        }
        Ok(times.value_at_quantile(0.5) as f64 / 1e3)
    })
}
