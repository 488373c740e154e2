//! Everything at once: what holds whatever happens, and that a seed decides everything.

use lockify_sim::*;
use rand::RngExt;
use std::collections::HashMap;

/// Sends numbered messages to random peers for ever.
struct Chatter {
    peers: u32,
    sent: HashMap<NodeId, u64>,
}

#[derive(Clone, Debug)]
struct Chat {
    incarnation: u32,
    number: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Heard {
    Start,
    Chat { from: NodeId, incarnation: u32, number: u64 },
    Link(NodeId, LinkState),
}

impl Machine for Chatter {
    type Msg = Chat;
    type Timer = ();
    type Note = Heard;

    fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
        match input {
            Input::Start => {
                cx.note(Heard::Start);
                self.tick(cx);
            }
            Input::Timer(()) => self.tick(cx),
            Input::Message { from, msg } => {
                cx.note(Heard::Chat { from, incarnation: msg.incarnation, number: msg.number });
            }
            Input::Link { peer, state } => cx.note(Heard::Link(peer, state)),
            Input::Disk(_) => {}
        }
    }

    fn size_of(_msg: &Chat) -> usize {
        100
    }
}

impl Chatter {
    fn tick(&mut self, cx: &mut Context<'_, Self>) {
        let to = NodeId(cx.random().random_range(0..self.peers));
        if to != cx.id() {
            let number = self.sent.entry(to).or_default();
            *number += 1;
            let chat = Chat { incarnation: cx.incarnation(), number: *number };
            cx.send(to, chat);
        }
        cx.set_timer(300 * MICROSECOND, ());
    }
}

fn chaos(seed: u64, repeat: f64, trace_lines: usize) -> Sim<Chatter> {
    let network = NetworkConfig {
        repeat_after_reconnect: repeat,
        stall_timeout: 200 * MILLISECOND,
        link: LinkProfile {
            latency: Delay::Exponential { base: 0, mean: MILLISECOND },
            bandwidth: Some(10_000_000),
        },
        ..NetworkConfig::default()
    };
    let config = Config { network, trace_lines, event_limit: 2_000_000, ..Config::default() };
    let mut sim = Sim::new(seed, config, |_| Chatter { peers: 4, sent: HashMap::new() });
    let nodes = sim.join_many(4);
    let mix = FaultMix {
        max_down: 3,
        gap: Delay::Exponential { base: 0, mean: 10 * MILLISECOND },
        ..FaultMix::all(0, SECOND)
    };
    let plan = FaultPlan::generate(&mix, &nodes, 0, sim.fault_random());
    sim.apply_plan(&plan);
    sim
}

/// One incarnation's view of a peer.
#[derive(Default)]
struct View {
    up: Option<u32>,
    told_down: bool,
    /// Of this connection.
    last: Option<u64>,
    /// Of any connection with this incarnation of the peer.
    highest: u64,
    highest_of: u32,
}

impl View {
    fn link(&mut self, state: LinkState) {
        match state {
            LinkState::Up { incarnation } => {
                assert_eq!(self.up, None, "up twice");
                *self = View {
                    up: Some(incarnation),
                    told_down: false,
                    last: None,
                    ..std::mem::take(self)
                };
                if self.highest_of != incarnation {
                    (self.highest, self.highest_of) = (0, incarnation);
                }
            }
            LinkState::Down => {
                assert!(self.up.is_some() || !self.told_down, "down twice");
                (self.up, self.told_down) = (None, true);
            }
        }
    }

    /// Returns whether the number was seen before. A gap is in order only behind repeated messages: messages without a
    /// connection are lost.
    fn chat(&mut self, incarnation: u32, number: u64, gaps: bool) -> bool {
        assert_eq!(
            self.up,
            Some(incarnation),
            "only on a connection, from the incarnation that it is with"
        );
        if let Some(last) = self.last {
            let follows = if gaps { number > last } else { number == last + 1 };
            assert!(follows, "{number} after {last} on one connection");
        }
        self.last = Some(number);
        let again = number <= self.highest;
        self.highest = self.highest.max(number);
        again
    }
}

/// Runs one seed to its end; returns how many messages came again.
fn check(seed: u64, repeat: f64) -> u64 {
    let mut sim = chaos(seed, repeat, 0);
    let mut views: HashMap<(NodeId, NodeId), View> = HashMap::new();
    let mut again = 0;
    let end = 2 * SECOND;
    while let Ok(report) = sim.next_report(end) {
        let ReportEvent::Note { node, note, .. } = report.event else {
            continue;
        };
        match note {
            Heard::Start => views.retain(|(at, _), _| *at != node),
            Heard::Link(peer, state) => views.entry((node, peer)).or_default().link(state),
            Heard::Chat { from, incarnation, number } => {
                again += u64::from(views.entry((node, from)).or_default().chat(
                    incarnation,
                    number,
                    repeat > 0.0,
                ));
            }
        }
    }
    assert_eq!(sim.now(), end, "seed {seed} ran to its end");
    assert!(
        views.values().all(|view| view.up.is_some()),
        "seed {seed}: all are connected in the end"
    );
    assert_eq!(views.len(), 12);
    again
}

#[test]
fn connections_keep_their_promises_whatever_happens() {
    let seeds = Seeds {
        max_failures: 0,
        ..Seeds::new(0..200, "cargo test -p lockify-sim chaos # seed {seed}")
    };
    let again = |repeat: f64| {
        let report = run_seeds(&seeds, |seed| Ok(check(seed, repeat)), |_| {});
        let failures: Vec<_> = report.failures.iter().map(ToString::to_string).collect();
        assert!(report.is_clean(), "{}", failures.join("\n"));
        report.passed.iter().map(|(_, again)| again).sum::<u64>()
    };
    assert_eq!(again(0.0), 0, "nothing comes twice");
    assert!(again(0.5) > 100, "unless repeats are allowed");
}

#[test]
fn a_seed_decides_everything() {
    let run = |seed| {
        let mut sim = chaos(seed, 0.3, 100_000);
        let (reports, _) = sim.run_until(SECOND);
        let text = reports.iter().map(|report| format!("{report:?}\n")).collect::<String>();
        (sim.digest(), sim.stats(), text, sim.trace().to_string())
    };
    let first = run(7);
    assert!(first.3.lines().count() > 5_000, "the trace tells what happened");
    assert_eq!(first, run(7));
    assert_ne!(first.0, run(8).0);
}

#[test]
fn tracing_does_not_change_a_run() {
    let digest = |lines| {
        let mut sim = chaos(3, 0.3, lines);
        sim.run_until(SECOND);
        sim.digest()
    };
    assert_eq!(digest(0), digest(1_000));
}
