//! Shared arrays in the simulator: the same state machines as on real devices, over disks and a network with a cost
//! model.
//!
//! - [`host`] hosts devices, lock server and hosts. [`places`] assigns them to nodes, and [`setting`] configures them.
//!   [`medium`] has a device's disks, and [`inbox`] is a processor.
//! - [`profile`] has the costs of disks, messages and processors. [`workload`] has the load of hosts.
//! - [`scenario`] has the decisions of a seed. [`trial`] is one run, with a [`caretaker`] for repairs and a [`recorder`]
//!   of its history for the checker. [`seeds`] runs many: `lockify sim array --seeds`. [`every_step`] crashes a machine
//!   after each step of a small piece of work. [`content`] is the content of blocks.
//! - [`measure`] runs one load. [`paper`] makes the published figures of that: `lockify sim array --paper`. [`scale`] is
//!   an array ten times the paper's.
#![forbid(unsafe_code)]

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
pub mod succession;
pub mod trial;
pub mod workload;
