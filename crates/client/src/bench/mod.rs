//! What a lock costs, next to the bare round trips that it cannot do without.
//!
//! Each round measures the bare ping-pongs and the locks in short turns, on the same machine under
//! the same load, so that their ratio means something where absolute times do not. Both sides of
//! every exchange have a processor of their own ([`on_other_processor`]). A *pair* is one lock and
//! one unlock of a name that nobody else wants.

mod ping_pong;
mod place;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use lockify_core::{ClaimMode, LockFlags, Mode, NodeId, Policy};
use lockify_node::{NodeAddress, NodeConfig, SpaceConfig};
use lockify_report::{Metric, Row, metric};

pub use ping_pong::PingPong;
pub use place::on_other_processor;

use crate::{Client, EmbeddedConfig, Error, Guard, Lockspace};

/// Time of a pair relative to the bare round trips in it.
pub const RATIO_TO_BARE: Metric =
    Metric { name: "ratio_to_bare", unit: "1", title: "time relative to bare ping-pongs" };

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
    Ok(measured.rows("daemon_pairs"))
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
    Ok(measured.rows("remote_daemon_pairs"))
}

/// Pairs of an embedded node, of names that another node masters, relative to two TCP ping-pongs.
///
/// # Errors
/// As [`daemon_pairs`]; [`Error::Node`].
pub fn remote_embedded_pairs(effort: Effort) -> Result<Vec<Row>, Error> {
    let [asker, master] = two_nodes()?;
    let mut tcp = on_other_processor(PingPong::tcp).map_err(failed)?;
    let _mastered = master_there(&master)?;
    let measured = measure(effort, &asker, LockFlags::empty(), || tcp.exchange())?;
    Ok(measured.rows("remote_embedded_pairs"))
}

/// Pairs of an embedded node with claims (NOTIFY), relative to two TCP ping-pongs: what making
/// something new costs with the other node one message away.
///
/// # Errors
/// As [`remote_embedded_pairs`].
pub fn claimed_embedded_pairs(effort: Effort) -> Result<Vec<Row>, Error> {
    let [claimer, _other] = two_nodes()?;
    let mut tcp = on_other_processor(PingPong::tcp).map_err(failed)?;
    let measured = measure(effort, &claimer, LockFlags::NOTIFY, || tcp.exchange())?;
    Ok(measured.rows("claimed_embedded_pairs"))
}

fn failed(e: std::io::Error) -> Error {
    Error::Node(format!("the bare ping-pong failed: {e}"))
}

/// Pairs in a turn.
const TURN: usize = 50;

/// The name of every pair that is no claim.
const NAME: &str = "bench";

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
    place::on_this_processor(|| measure_here(effort, space, flags, exchange))
}

fn measure_here(
    effort: Effort,
    space: &Lockspace,
    flags: LockFlags,
    mut exchange: impl FnMut() -> std::io::Result<()>,
) -> Result<Measured, Error> {
    let mut measured = Measured { effort, bare: Vec::new(), pairs: Vec::new() };
    let mut number = 0;
    let mut pair = || -> Result<(), Error> {
        number += 1;
        // What is claimed is new: a name of its own each time.
        let request = match flags.contains(LockFlags::NOTIFY) {
            true => space.request(format!("{NAME} {number}"), Mode::EX),
            false => space.request(NAME, Mode::EX),
        };
        // Freed, as an object that is abandoned: the release does not wait for the claim.
        let guard = request.flags(flags).lock()?;
        if flags.contains(LockFlags::NOTIFY) { guard.freed().unlock() } else { guard.unlock() }
    };
    // Warm-up: first-time allocations, and the clock of the processor.
    for _ in 0..effort.pairs / 10 + 1 {
        pair()?;
        exchange().map_err(failed)?;
    }
    for _ in 0..effort.rounds {
        let (mut bare, mut pairs) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..effort.pairs.div_ceil(TURN) {
            let start = Instant::now();
            for _ in 0..2 * TURN {
                exchange().map_err(failed)?;
            }
            let middle = Instant::now();
            for _ in 0..TURN {
                pair()?;
            }
            bare += middle - start;
            pairs += middle.elapsed();
        }
        measured.bare.push(bare);
        measured.pairs.push(pairs);
    }
    Ok(measured)
}

impl Measured {
    fn rows(&self, bench: &str) -> Vec<Row> {
        let count = self.effort.pairs.div_ceil(TURN) * TURN;
        let micros = |times: &[Duration]| -> Vec<f64> {
            times.iter().map(|t| t.as_secs_f64() * 1e6 / count as f64).collect()
        };
        let (bare, pairs) = (micros(&self.bare), micros(&self.pairs));
        let ratios: Vec<f64> = pairs.iter().zip(&bare).map(|(p, b)| p / b).collect();
        let per_second: Vec<f64> = pairs.iter().map(|p| 1e6 / p).collect();
        vec![
            Row::of(bench, &RATIO_TO_BARE, &ratios),
            Row::of(bench, &metric::LOCKS_PER_S, &per_second),
            Row::of(bench, &metric::LATENCY_US, &pairs).with("of", "pair"),
            Row::of(bench, &metric::LATENCY_US, &bare).with("of", "two bare ping-pongs"),
        ]
    }
}

/// Two nodes of one cluster in this process, joined.
fn two_nodes() -> Result<[Lockspace; 2], Error> {
    let listeners = [listener()?, listener()?];
    let mut nodes = Vec::new();
    for (id, listener) in (1..).zip(&listeners) {
        let address = listener.local_addr().map_err(failed)?;
        nodes.push(NodeAddress { node: NodeId(id), address });
    }
    let mut clients = Vec::new();
    for (id, listener) in (1..).zip(listeners) {
        let node = NodeConfig {
            listener: Some(listener),
            ..NodeConfig::new("bench", NodeId(id), nodes.clone())
        };
        let policy = Policy::Claim(ClaimMode::Optimistic);
        let spaces = vec![(NAME.to_owned(), SpaceConfig::new(policy))];
        let config = EmbeddedConfig::new(node, spaces);
        // The first is the one that measures.
        clients.push(match id {
            1 => place::on_this_processor(|| Client::embedded(config))?,
            _ => on_other_processor(|| Client::embedded(config))?,
        });
    }
    await_members(&clients)?;
    Ok([clients[0].lockspace(NAME)?, clients[1].lockspace(NAME)?])
}

fn listener() -> Result<TcpListener, Error> {
    TcpListener::bind("127.0.0.1:0").map_err(failed)
}

/// Waits until every node sees all of them in the lockspace.
fn await_members(clients: &[Client]) -> Result<(), Error> {
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
