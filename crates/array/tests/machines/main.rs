//! Hosts and devices together, in memory.

mod degraded;
mod edges;
mod forgotten;
mod interleavings;
mod messages;
#[cfg(feature = "mutations")]
mod mutations;
mod world;
