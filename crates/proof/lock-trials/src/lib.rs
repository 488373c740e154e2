//! Hosts the lock manager in the simulator, with faults and checkers, and searches its states exhaustively.
//!
//! - [`locks`] runs seeds: `lockify sim locks`.
//! - [`cluster`] is one run: nodes ([`host`]) with the shipped membership service, faults, clients ([`workload`]),
//!   observers.
//! - [`quiescence`] has the conditions across nodes when nothing is under way.
//! - [`coverage`] counts how often each step of the claim protocol met each kind of fault.
//! - [`speed`] measures the simulator with the lock manager in it.
//! - [`model`] searches all interleavings of a small cluster.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod coverage;
pub mod group;
pub mod host;
pub mod locks;
pub mod model;
pub mod note;
pub mod observer;
pub mod port;
pub mod quiescence;
pub mod scenario;
pub mod speed;
pub mod transport;
pub mod workload;
