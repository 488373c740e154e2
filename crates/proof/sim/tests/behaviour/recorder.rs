//! A machine that notes every input, and helpers to drive it.

use lockify_sim::*;

/// Notes every input; does nothing by itself.
#[derive(Default)]
pub struct Recorder {
    /// From the former incarnation: state that a host would salvage.
    pub starts: u32,
}

/// A message of a given size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered(pub u64, pub usize);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Start,
    Message(NodeId, u64),
    Timer(u64, Nanos),
    Up(NodeId, u32),
    Down(NodeId),
    Disk(u64, Result<Vec<u8>, DiskError>),
}

impl Machine for Recorder {
    type Msg = Numbered;
    type Timer = u64;
    type Note = Seen;

    fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
        let seen = match input {
            Input::Start => Seen::Start,
            Input::Message { from, msg } => Seen::Message(from, msg.0),
            Input::Timer(timer) => Seen::Timer(timer, cx.now()),
            Input::Link { peer, state: LinkState::Up { incarnation } } => {
                Seen::Up(peer, incarnation)
            }
            Input::Link { peer, state: LinkState::Down } => Seen::Down(peer),
            Input::Disk(done) => Seen::Disk(done.tag, done.result),
        };
        cx.note(seen);
    }

    fn size_of(msg: &Numbered) -> usize {
        msg.1
    }
}

pub const A: NodeId = NodeId(0);
pub const B: NodeId = NodeId(1);
pub const C: NodeId = NodeId(2);

/// Constant latency of 1 ms, notices at once, 10 ms until a reconnect, 1 s until a stalled connection breaks.
pub fn plain() -> Config {
    let network = NetworkConfig {
        link: LinkProfile { latency: Delay::Constant(MILLISECOND), bandwidth: None },
        break_notice: Delay::ZERO,
        reconnect: Delay::Constant(10 * MILLISECOND),
        ..NetworkConfig::default()
    };
    Config { network, ..Config::default() }
}

/// Three recorders, started.
pub fn cluster(seed: u64, config: Config) -> Sim<Recorder> {
    let mut sim = Sim::new(seed, config, |boot| Recorder {
        starts: boot.previous.map_or(0, |previous: Recorder| previous.starts) + 1,
    });
    sim.join_many(3);
    sim.run_until(0);
    sim
}

/// Three recorders, all connected, at 100 ms.
pub fn connected(seed: u64, config: Config) -> Sim<Recorder> {
    let mut sim = cluster(seed, config);
    for (from, to) in [(A, B), (A, C), (B, C)] {
        sim.with(from, |_, cx| cx.connect(to)).expect("running");
    }
    let seen = run(&mut sim, 100);
    assert_eq!(seen.iter().filter(|(_, seen)| matches!(seen, Seen::Up(_, 1))).count(), 6);
    sim
}

pub fn send(
    sim: &mut Sim<Recorder>,
    from: NodeId,
    to: NodeId,
    numbers: impl IntoIterator<Item = u64>,
) {
    for number in numbers {
        sim.with(from, |_, cx| cx.send(to, Numbered(number, 0))).expect("running");
    }
}

/// Runs until `ms` milliseconds of virtual time; returns the nodes' observations.
pub fn run(sim: &mut Sim<Recorder>, ms: u64) -> Vec<(NodeId, Seen)> {
    timed(sim, ms).into_iter().map(|(_, node, seen)| (node, seen)).collect()
}

/// As [`run`], with the virtual times.
pub fn timed(sim: &mut Sim<Recorder>, ms: u64) -> Vec<(Nanos, NodeId, Seen)> {
    let (reports, _) = sim.run_until(ms * MILLISECOND);
    let notes = reports.into_iter().filter_map(|report| match report.event {
        ReportEvent::Note { node, note, .. } => Some((report.at, node, note)),
        _ => None,
    });
    notes.collect()
}

/// The numbers of the messages that `node` got from `from`.
pub fn numbers(seen: &[(NodeId, Seen)], from: NodeId, node: NodeId) -> Vec<u64> {
    let messages = seen.iter().filter_map(|(at, seen)| match seen {
        Seen::Message(sender, number) if *at == node && *sender == from => Some(*number),
        _ => None,
    });
    messages.collect()
}
