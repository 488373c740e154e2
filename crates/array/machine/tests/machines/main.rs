//! Hosts and devices together, in memory.

mod caches;
mod clocks;
mod degraded;
mod double;
mod edges;
mod fences;
mod forgotten;
mod groups;
mod hidden;
mod in_part;
mod interleavings;
#[cfg(feature = "mutations")]
mod let_in;
mod lock_server;
mod lost;
mod media;
mod messages;
#[cfg(feature = "mutations")]
mod mutations;
mod patches;
mod recovery;
mod returned;
mod world;
