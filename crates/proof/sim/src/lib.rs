//! Deterministic discrete-event simulation of a cluster of state machines.
//!
//! The engine has virtual time, an event queue, a network, disks and faults, and knows nothing of what it hosts. A seed
//! decides everything: two runs with one seed are equal event by event, on every platform.
//!
//! # Hosting a machine
//! Implement [`Machine`]: one function that handles an [`Input`] and acts through its [`Context`] (send, set a timer,
//! use a disk, note something for the host). Give [`Sim::new`] a closure that makes a node's machine from a [`Boot`],
//! [`join`](Sim::join) the nodes, and pull [`Report`]s with [`Sim::next_report`]: what machines note, nodes that come and
//! go, faults, and the host's own alarms ([`Sim::wake_at`]). Between two reports the host may call a machine as a local
//! client would ([`Sim::with`]), inspect it ([`Sim::machine`]), or inject a [`Fault`].
//!
//! ```
//! use lockify_sim::{Config, Context, Input, Machine, NodeId, ReportEvent, SECOND, Sim};
//!
//! struct Player;
//!
//! #[derive(Clone, Debug)]
//! struct Ball(u32);
//!
//! impl Machine for Player {
//!     type Msg = Ball;
//!     type Timer = ();
//!     type Note = u32;
//!
//!     fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
//!         match input {
//!             Input::Start if cx.id() == NodeId(0) => cx.send(NodeId(1), Ball(1)),
//!             Input::Message { msg: Ball(10), .. } => cx.note(10),
//!             Input::Message { from, msg: Ball(n) } => cx.send(from, Ball(n + 1)),
//!             _ => {}
//!         }
//!     }
//! }
//!
//! let mut sim = Sim::new(17, Config::default(), |_boot| Player);
//! sim.join_many(2);
//! let (reports, _) = sim.run_until(SECOND);
//! assert!(reports.iter().any(|report| matches!(report.event, ReportEvent::Note { note: 10, .. })));
//! ```
//!
//! # Faults
//! - over time: a [`FaultPlan`], written by hand or [generated](FaultPlan::generate) from a [`FaultMix`], with a quiet end;
//! - at a step of a protocol: a [`Hook`], usually [`at_nth`];
//! - on single messages: a [`Filter`].
//!
//! [`Sim::fault_counts`] says how often each kind was injected with effect.
//!
//! # Seeds
//! [`run_seeds`] runs a range of seeds on all cores; a [`SeedFailure`] prints the trace, the reason and the command that
//! replays it. [`mod@summary`] adds up what happened. [`run_parts`] runs the parts of an experiment on all cores.
//! [`trace_failures`] switches the trace on only for seeds that fail.
//!
//! # What is not modelled
//! Machines take no time; the network has no shared switches (each direction of a pair has its own bandwidth); a
//! connection's handshake is one round trip; memory is not limited.
#![forbid(unsafe_code)]

mod clock;
mod datagram;
mod delay;
mod disk;
mod engine;
mod fault;
mod filter;
pub mod harness;
mod hook;
mod inject;
mod link;
mod machine;
mod measure;
mod network;
mod partition;
mod parts;
mod plan;
mod queue;
mod random;
mod seeds;
pub mod summary;
mod time;
mod trace;
mod world;

pub use clock::Clock;
pub use datagram::DatagramConfig;
pub use delay::Delay;
pub use disk::{DiskConfig, DiskCopy, DiskDone, DiskError, DiskFault, DiskId};
pub use engine::{Boot, Config, Sim, Stop};
pub use fault::{Cut, Fault, FaultCounts, FaultKind, UnknownFaultKind};
pub use filter::{Envelope, Filter, FilterId, Verdict};
pub use hook::{Hook, Inject, Observed, Step, at_nth};
pub use link::LinkProfile;
pub use machine::{Context, Input, LinkState, Machine, NodeId, TimerId};
pub use measure::{EngineSpeed, measure_engine, measure_engine_then};
pub use network::NetworkConfig;
pub use parts::run_parts;
pub use plan::{FaultMix, FaultPlan};
pub use random::Random;
pub use seeds::{Failure, SeedFailure, SeedReport, Seeds, run_seeds, trace_failures};
pub use time::{MICROSECOND, MILLISECOND, Nanos, SECOND};
pub use trace::Trace;
pub use world::{NodeStatus, Report, ReportEvent, Stats};
