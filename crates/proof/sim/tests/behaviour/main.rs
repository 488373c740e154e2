//! How the simulated cluster behaves, one file per subject.

mod chaos;
mod clocks;
mod connections;
mod datagrams;
mod disks;
mod nodes;
mod partitions;
mod plans;
mod recorder;
mod scale;
