//! Speed and memory of the simulator, bare and with the lock manager in it.

use lockify_core::Policy;
use lockify_report::Row;
use lockify_report::metric::EVENTS_PER_S;

use super::memory::resident;
use super::{BYTES_PER_NODE, Effort, Measured};
use crate::exit::Failure;

/// Nodes of the largest cluster, whose memory is measured too.
const LARGEST: usize = 1000;
const EVENTS: u64 = 1_000_000;
/// Events of a cluster that hosts the lock manager, after its first recovery. That recovery takes most of the time:
/// each node meets each other.
const HOSTED_EVENTS: u64 = 200_000;

/// Events per second and memory of small and large clusters.
pub fn measure(effort: Effort) -> Measured {
    let mut rows = Vec::new();
    for nodes in [2, 10, 100, LARGEST] {
        rows.extend(bare(nodes, effort)?);
    }
    for nodes in [10, LARGEST] {
        rows.extend(hosted(nodes, effort)?);
    }
    Ok(rows)
}

fn bare(nodes: usize, effort: Effort) -> Measured {
    let events = EVENTS / effort.shorter as u64;
    let (mut speeds, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds.min(3) {
        let before = resident()?;
        let (speed, after) = lockify_sim::measure_engine_then(nodes, events, resident);
        speeds.push(speed.events_per_s());
        bytes.push(after? - before);
    }
    Ok(rows("bare", nodes, &speeds, &bytes))
}

fn hosted(nodes: usize, effort: Effort) -> Measured {
    let events = HOSTED_EVENTS / effort.shorter as u64;
    let before = resident()?;
    let (speed, after) =
        lockify_trials::speed::measure_hosted(nodes, Policy::Directory, events, resident);
    let after: Result<f64, Failure> = after;
    Ok(rows("lock manager", nodes, &[speed.events_per_s()], &[after? - before]))
}

fn rows(hosts: &str, nodes: usize, speeds: &[f64], bytes: &[f64]) -> Vec<Row> {
    let row = |metric, values: &[f64]| {
        Row::of("sim", metric, values).with("nodes", nodes).with("hosts", hosts)
    };
    let mut rows = vec![row(&EVENTS_PER_S, speeds)];
    // Small clusters fit into the process's present memory. Later rounds reuse the freed memory of earlier ones.
    // Only the one that grew most shows a node's size.
    if nodes == LARGEST {
        let most = bytes.iter().copied().fold(0.0, f64::max) / nodes as f64;
        rows.push(row(&BYTES_PER_NODE, &[most]));
    }
    rows
}
