//! Shared arrays in the simulator: the same state machines as on real devices, over disks and a network with a cost model.
//!
//! - [`host`] hosts devices, lock server and hosts; [`medium`] is what is on a device's disks, [`inbox`] a processor.
//! - [`profile`] says what disks, messages and processors cost, [`workload`] what hosts ask for.
//! - [`measure`] runs one load; [`paper`] makes of that the published figures: `lockify sim array --paper`.

pub mod host;
pub mod inbox;
pub mod measure;
pub mod medium;
pub mod paper;
pub mod profile;
pub mod workload;
