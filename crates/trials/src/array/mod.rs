//! Shared arrays in the simulator: the same state machines as on real devices, over disks and a network with a cost model.

pub mod inbox;
pub mod medium;
pub mod profile;
pub mod workload;
