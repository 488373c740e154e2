//! Shared arrays in the simulator: the same state machines as on real devices, over disks and a network with a cost model.
//!
//! - [`host`] hosts devices, lock server and hosts, [`places`] says on which nodes, [`setting`] what they are told; [`medium`] is
//!   what is on a device's disks, [`inbox`] a processor.
//! - [`profile`] says what disks, messages and processors cost, [`workload`] what hosts ask for.
//! - [`scenario`] is what a seed decides, [`trial`] one run, with a [`caretaker`] who has broken things repaired and a
//!   [`recorder`] of its history, for the checker; [`seeds`] runs many: `lockify sim array --seeds`. [`every_step`] crashes
//!   somebody after each step of a small piece of work. [`content`] is what blocks hold.
//! - [`measure`] runs one load; [`paper`] makes of that the published figures: `lockify sim array --paper`. [`scale`] is an
//!   array ten times the paper's.

pub mod caretaker;
pub mod content;
pub mod every_step;
pub mod host;
pub mod inbox;
pub mod measure;
pub mod medium;
pub mod paper;
pub mod places;
pub mod profile;
pub mod recorder;
pub mod scale;
pub mod scenario;
pub mod seeds;
pub mod setting;
pub mod trial;
pub mod workload;
