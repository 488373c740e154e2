//! Locks in remote memory in the simulator: the same protocols as on hardware, over a fabric with a cost model.
//!
//! - [`profile`] has the costs of verbs and messages. [`host`] is the fabric: one home, any number of clients.
//! - [`seeds`] runs clients with faults and has their history checked: `lockify sim onesided`. [`overtaking`] is a rule
//!   that only such runs have.
//! - [`measure`] runs loads ([`traces`] and [`smallbank`] among them) and counts. [`paper`] makes the published tables of
//!   that: `lockify sim onesided --paper`.
#![forbid(unsafe_code)]

pub mod host;
pub mod measure;
pub mod overtaking;
pub mod paper;
pub mod profile;
pub mod seeds;
pub mod smallbank;
pub mod traces;
