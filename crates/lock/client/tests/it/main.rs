//! The client: its session protocol, the node inside a process, and its benchmarks.

mod benchmarks;
mod embedded;
mod session_protocol;
