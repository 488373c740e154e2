//! Running nodes, connected over loopback.

mod bad_peers;
mod cluster;
mod common;
mod fuzz_frames;
mod histories;
mod pressure;
mod tls;
mod versions;
