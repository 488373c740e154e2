//! The cost of a lock, next to the bare round trips that it needs.
//!
//! Each round measures the bare ping-pongs and the locks in short turns, on the same machine under
//! the same load, so that their ratio means something where absolute times do not. Both sides of
//! every exchange have a processor of their own ([`on_other_processor`]). A *pair* is one lock and
//! one unlock of a name that nobody else wants.

mod ping_pong;
mod place;
pub mod recovery;
mod waiting;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockify_core::{ClaimMode, LockFlags, Mode, NodeId, Policy};
use lockify_node::{NodeAddress, NodeConfig, Security, SpaceConfig, StateDir};
use lockify_report::{Metric, Row, metric};
use lockify_trust::{Authority, Credentials, Keyring, Lifetime, TrustError};

pub use ping_pong::PingPong;
pub use place::{on_other_processor, on_this_processor};
pub use waiting::{WAKEUPS_PER_S, WaitEffort, waits};

use lockify_client::{Client, EmbeddedConfig, Error, Guard, Lockspace};

/// Time of a pair relative to the bare round trips in it.
pub const RATIO_TO_BARE: Metric =
    Metric { name: "ratio_to_bare", unit: "1", title: "time relative to bare ping-pongs" };

/// Time of a pair between nodes that use TLS relative to one between nodes that do not.
pub const RATIO_TO_PLAIN: Metric =
    Metric { name: "ratio_to_plain", unit: "1", title: "time relative to plain text" };

/// Time of a pair through a daemon that measures, for its metrics, relative to one that does not.
pub const RATIO_TO_UNMEASURED: Metric =
    Metric { name: "ratio_to_unmeasured", unit: "1", title: "time relative to no metrics" };

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Rounds; results are their medians.
    pub rounds: usize,
    /// Pairs in a round.
    pub pairs: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { rounds: 9, pairs: 2000 }
    }
}

/// Pairs through a daemon that need no other node, relative to two Unix-socket ping-pongs.
///
/// # Errors
/// Those of connecting and locking; ping-pongs that the system refuses.
pub fn daemon_pairs(socket: &Path, space: &str, effort: Effort) -> Result<Vec<Row>, Error> {
    let space = Client::connect(socket)?.lockspace(space)?;
    let mut bare = on_other_processor(PingPong::unix).map_err(failed)?;
    let measured = measure(effort, &space, LockFlags::empty(), || bare.exchange())?;
    Ok(measured.rows("daemon_pairs", &RATIO_TO_BARE, BARE))
}

/// Pairs through a daemon that serves metrics, relative to the same through one that does not.
///
/// # Errors
/// As [`daemon_pairs`].
pub fn measured_daemon_pairs(
    unmeasured: &Path,
    measured: &Path,
    space: &str,
    effort: Effort,
) -> Result<Vec<Row>, Error> {
    let unmeasured = Client::connect(unmeasured)?.lockspace(space)?;
    let measured = Client::connect(measured)?.lockspace(space)?;
    let times = place::on_this_processor(|| {
        let pair = |space: &Lockspace| space.lock(NAME, Mode::EX)?.unlock();
        alternate(effort, || pair(&unmeasured), || pair(&measured))
    })?;
    Ok(times.rows("measured_daemon_pairs", &RATIO_TO_UNMEASURED, "pair without metrics"))
}

/// Pairs through a daemon of names that another daemon's node masters, relative to two ping-pongs
/// over a Unix socket and TCP each. Both daemons are of one cluster.
///
/// # Errors
/// As [`daemon_pairs`].
pub fn remote_daemon_pairs(
    asker: &Path,
    master: &Path,
    space: &str,
    effort: Effort,
) -> Result<Vec<Row>, Error> {
    let master = Client::connect(master)?.lockspace(space)?;
    let asker = Client::connect(asker)?.lockspace(space)?;
    let mut unix = on_other_processor(PingPong::unix).map_err(failed)?;
    let mut tcp = on_other_processor(PingPong::tcp).map_err(failed)?;
    let _mastered = master_there(&master)?;
    let measured = measure(effort, &asker, LockFlags::empty(), || {
        unix.exchange()?;
        tcp.exchange()
    })?;
    Ok(measured.rows("remote_daemon_pairs", &RATIO_TO_BARE, BARE))
}

/// Pairs of an embedded node, of names that another node masters, relative to two TCP ping-pongs.
///
/// # Errors
/// As [`daemon_pairs`]; [`Error::Node`].
pub fn remote_embedded_pairs(effort: Effort) -> Result<Vec<Row>, Error> {
    let [asker, master] = two_nodes(None)?;
    let mut tcp = on_other_processor(PingPong::tcp).map_err(failed)?;
    let _mastered = master_there(&master)?;
    let measured = measure(effort, &asker, LockFlags::empty(), || tcp.exchange())?;
    Ok(measured.rows("remote_embedded_pairs", &RATIO_TO_BARE, BARE))
}

/// Pairs of an embedded node with claims (NOTIFY), relative to two TCP ping-pongs: the cost of a
/// creation with the other node one message away.
///
/// # Errors
/// As [`remote_embedded_pairs`].
pub fn claimed_embedded_pairs(effort: Effort) -> Result<Vec<Row>, Error> {
    let [claimer, _other] = two_nodes(None)?;
    let mut tcp = on_other_processor(PingPong::tcp).map_err(failed)?;
    let measured = measure(effort, &claimer, LockFlags::NOTIFY, || tcp.exchange())?;
    Ok(measured.rows("claimed_embedded_pairs", &RATIO_TO_BARE, BARE))
}

/// Pairs of an embedded node, of names that another node masters, with TLS between the two,
/// relative to the same in plain text.
///
/// # Errors
/// As [`remote_embedded_pairs`]; keys that cannot be made.
pub fn remote_tls_pairs(effort: Effort) -> Result<Vec<Row>, Error> {
    let unusable = |e: TrustError| Error::Node(e.to_string());
    let authority = Authority::new(NAME, Lifetime::Days(1)).map_err(unusable)?;
    let [plain, plain_master] = two_nodes(None)?;
    let [tls, tls_master] = two_nodes(Some(&authority))?;
    let _mastered = [master_there(&plain_master)?, master_there(&tls_master)?];
    let measured = on_this_processor(|| {
        let pair = |space: &Lockspace| space.lock(NAME, Mode::EX)?.unlock();
        alternate(effort, || pair(&plain), || pair(&tls))
    })?;
    Ok(measured.rows("remote_tls_pairs", &RATIO_TO_PLAIN, "pair in plain text"))
}

fn failed(e: std::io::Error) -> Error {
    Error::Node(format!("the bare ping-pong failed: {e}"))
}

/// Pairs in a turn.
const TURN: usize = 50;

/// The usual baseline of pairs.
const BARE: &str = "two bare ping-pongs";

/// The name of every pair that is no claim.
const NAME: &str = "bench";

/// The lockspace of [`embedded_cluster`].
pub const SPACE: &str = NAME;

/// Makes this node the master of [`NAME`] for as long as the guard lives.
fn master_there(space: &Lockspace) -> Result<Guard, Error> {
    space.lock(NAME, Mode::NL)
}

/// Times of each round.
struct Measured {
    effort: Effort,
    bare: Vec<Duration>,
    pairs: Vec<Duration>,
}

fn measure(
    effort: Effort,
    space: &Lockspace,
    flags: LockFlags,
    exchange: impl FnMut() -> std::io::Result<()>,
) -> Result<Measured, Error> {
    on_this_processor(|| measure_here(effort, space, flags, exchange))
}

fn measure_here(
    effort: Effort,
    space: &Lockspace,
    flags: LockFlags,
    mut exchange: impl FnMut() -> std::io::Result<()>,
) -> Result<Measured, Error> {
    let mut number = 0;
    let pair = || -> Result<(), Error> {
        number += 1;
        // A claimed name is new: a name of its own each time.
        let request = match flags.contains(LockFlags::NOTIFY) {
            true => space.request(format!("{NAME} {number}"), Mode::EX),
            false => space.request(NAME, Mode::EX),
        };
        // Freed, as an object that is abandoned: the release does not wait for the claim.
        let guard = request.flags(flags).lock()?;
        if flags.contains(LockFlags::NOTIFY) { guard.freed().unlock() } else { guard.unlock() }
    };
    let two_exchanges = || exchange().and_then(|()| exchange()).map_err(failed);
    alternate(effort, two_exchanges, pair)
}

/// Measures a pair and its baseline in turns.
fn alternate(
    effort: Effort,
    mut bare: impl FnMut() -> Result<(), Error>,
    mut pair: impl FnMut() -> Result<(), Error>,
) -> Result<Measured, Error> {
    let mut measured = Measured { effort, bare: Vec::new(), pairs: Vec::new() };
    // Warm-up: first-time allocations, and the clock of the processor.
    for _ in 0..effort.pairs / 10 + 1 {
        pair()?;
        bare()?;
    }
    for _ in 0..effort.rounds {
        let (mut of_bare, mut of_pairs) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..effort.pairs.div_ceil(TURN) {
            let start = Instant::now();
            for _ in 0..TURN {
                bare()?;
            }
            let middle = Instant::now();
            for _ in 0..TURN {
                pair()?;
            }
            of_bare += middle - start;
            of_pairs += middle.elapsed();
        }
        measured.bare.push(of_bare);
        measured.pairs.push(of_pairs);
    }
    Ok(measured)
}

impl Measured {
    /// The result rows; `ratio` is that of pairs to their baseline, `bare`.
    fn rows(&self, bench: &str, ratio: &Metric, bare_is: &str) -> Vec<Row> {
        let count = self.effort.pairs.div_ceil(TURN) * TURN;
        let micros = |times: &[Duration]| -> Vec<f64> {
            times.iter().map(|t| t.as_secs_f64() * 1e6 / count as f64).collect()
        };
        let (bare, pairs) = (micros(&self.bare), micros(&self.pairs));
        let ratios: Vec<f64> = pairs.iter().zip(&bare).map(|(p, b)| p / b).collect();
        let per_second: Vec<f64> = pairs.iter().map(|p| 1e6 / p).collect();
        vec![
            Row::of(bench, ratio, &ratios),
            Row::of(bench, &metric::LOCKS_PER_S, &per_second),
            Row::of(bench, &metric::LATENCY_US, &pairs).with("of", "pair"),
            Row::of(bench, &metric::LATENCY_US, &bare).with("of", bare_is),
        ]
    }
}

/// Two nodes of one cluster in this process, joined; with TLS if there is an authority.
fn two_nodes(authority: Option<&Authority>) -> Result<[Lockspace; 2], Error> {
    let clients = cluster(2, authority, Duration::ZERO)?;
    Ok([clients[0].lockspace(NAME)?, clients[1].lockspace(NAME)?])
}

/// Nodes of one cluster in this process, joined, with one lockspace ([`SPACE`]) and claims. Each
/// message between them is delayed by `delay`. The first node, whose user measures, is on this
/// thread's first processor, the others on the other one.
///
/// # Errors
/// [`Error::Node`]; the nodes do not find each other within 30 s.
pub fn embedded_cluster(nodes: u32, delay: Duration) -> Result<Vec<Client>, Error> {
    cluster(nodes, None, delay)
}

fn cluster(
    count: u32,
    authority: Option<&Authority>,
    delay: Duration,
) -> Result<Vec<Client>, Error> {
    let listeners = (0..count).map(|_| listener()).collect::<Result<Vec<_>, Error>>()?;
    let mut nodes = Vec::new();
    for (id, listener) in (1..).zip(&listeners) {
        let address = listener.local_addr().map_err(failed)?;
        nodes.push(NodeAddress { node: NodeId(id), address });
    }
    let mut clients = Vec::new();
    for (id, listener) in (1..).zip(listeners) {
        let node = NodeConfig {
            listener: Some(listener),
            state_dir: StateDir::Memory,
            security: security(authority, id)?,
            delay,
            ..NodeConfig::new(NAME, NodeId(id), nodes.clone())
        };
        let policy = Policy::Claim(ClaimMode::Optimistic);
        let spaces = vec![(SPACE.to_owned(), SpaceConfig::new(policy))];
        let config = EmbeddedConfig::new(node, spaces);
        // The first is the one that measures.
        clients.push(match id {
            1 => on_this_processor(|| Client::embedded(config))?,
            _ => on_other_processor(|| Client::embedded(config))?,
        });
    }
    await_members(&clients)?;
    Ok(clients)
}

fn security(authority: Option<&Authority>, node: u32) -> Result<Security, Error> {
    let Some(authority) = authority else { return Ok(Security::Loopback) };
    let unusable = |e: &dyn std::fmt::Display| Error::Node(e.to_string());
    let identity = authority.issue(NAME, node, Lifetime::Days(1)).map_err(|e| unusable(&e))?;
    let own = Credentials::new(NAME, node, &identity, authority.certificate());
    Ok(Security::Tls(Arc::new(Keyring::new(own.map_err(|e| unusable(&e))?))))
}

fn listener() -> Result<TcpListener, Error> {
    TcpListener::bind("127.0.0.1:0").map_err(failed)
}

/// Waits until every client's node sees the nodes of all of them in each lockspace.
///
/// # Errors
/// [`Error::Node`] if that takes longer than 30 s; those of asking.
pub fn await_members(clients: &[Client]) -> Result<(), Error> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let end = Instant::now() + PATIENCE;
    loop {
        let mut complete = true;
        for client in clients {
            let status = client.status()?;
            let spaces = || status.nodes.iter().flat_map(|n| &n.spaces);
            complete &= status.nodes.len() == clients.len()
                && spaces().all(|s| s.running && s.members.len() == clients.len());
        }
        if complete {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(Error::Node("the nodes of the benchmark did not find each other".into()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
