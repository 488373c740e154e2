//! Hosts and devices together, in memory.

mod interleavings;
mod messages;
mod world;
