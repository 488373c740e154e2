//! Speed of the simulation engine.

use lockify_report::Row;

use super::{EVENTS_PER_S, Effort, Measured};

const EVENTS: u64 = 2_000_000;

/// Events per second of small and large clusters.
pub fn measure(effort: Effort) -> Measured {
    let events = EVENTS / effort.shorter as u64;
    let row = |nodes: usize| {
        let rounds = (0..effort.rounds.min(3))
            .map(|_| lockify_sim::measure_engine(nodes, events).events_per_s());
        Row::of("sim", &EVENTS_PER_S, &rounds.collect::<Vec<_>>()).with("nodes", nodes)
    };
    Ok([2, 10, 100, 1000].map(row).into())
}
