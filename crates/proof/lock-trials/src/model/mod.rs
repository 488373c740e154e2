//! Exhaustive search of the shipped lock manager's states. It has three nodes and scripted clients. It visits
//! every interleaving of messages, losses, duplicates, timers, a crash and a join, up to stated bounds.
//!
//! A state holds the nodes' [`lockify_core::Lockspace`]s themselves. Two states count as equal if their
//! fingerprints are equal. These have 128 bits: a collision among a billion states has a probability of about
//! 10^-21.

mod monitor;
mod scenarios;
mod search;
mod state;

pub use scenarios::{Scenario, proved_dead_too_early, scenarios};
pub use search::{Counterexample, Extent, Report, search};
pub use state::{Action, Bounds, ClientStep, State};
