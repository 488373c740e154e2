//! How fast the engine is.

use crate::{Config, Context, Input, LinkState, Machine, NodeId, Sim};
use std::time::{Duration, Instant};

/// The results of [`measure_engine`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSpeed {
    /// Nodes simulated.
    pub nodes: usize,
    /// Events handled.
    pub events: u64,
    /// Wall-clock time that they took, without the set-up.
    pub elapsed: Duration,
    /// Most events that ever waited.
    pub queue_peak: usize,
}

impl EngineSpeed {
    /// Events per second of wall-clock time.
    pub fn events_per_s(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Measures the engine with trivial machines: node `i` and node `i + 1` (`i` even) play ping-pong for about `events`
/// events, over the default network.
pub fn measure_engine(nodes: usize, events: u64) -> EngineSpeed {
    measure_engine_then(nodes, events, || ()).0
}

/// As [`measure_engine`]; `before_end` is called while everything is still in memory.
pub fn measure_engine_then<R>(
    nodes: usize,
    events: u64,
    before_end: impl FnOnce() -> R,
) -> (EngineSpeed, R) {
    let config = Config { event_limit: events, ..Config::default() };
    let mut sim = Sim::new(1, config, |_| Echo);
    sim.join_many(nodes);
    let started = Instant::now();
    // Reports (that nodes have started) are of no interest here.
    while sim.next_report(u64::MAX).is_ok() {}
    let elapsed = started.elapsed();
    let stats = sim.stats();
    let speed = EngineSpeed { nodes, events: stats.events, elapsed, queue_peak: stats.queue_peak };
    (speed, before_end())
}

struct Echo;

impl Machine for Echo {
    type Msg = u64;
    type Timer = ();
    type Note = ();

    fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
        match input {
            Input::Start => cx.connect(NodeId(cx.id().0 ^ 1)),
            Input::Link { peer, state: LinkState::Up { .. } } => cx.send(peer, 0),
            Input::Message { from, msg } => cx.send(from, msg.wrapping_add(1)),
            Input::Link { .. } | Input::Timer(()) | Input::Disk(_) => {}
        }
    }

    fn size_of(_msg: &u64) -> usize {
        64
    }
}
