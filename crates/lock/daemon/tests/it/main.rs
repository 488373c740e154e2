//! The daemon, as threads of this process and as the program `lockifyd`. `waiting.rs` is beside it.

mod bad_clients;
mod clients;
mod common;
mod configuration;
mod configuration_page;
mod keys;
mod lockspaces;
mod log;
mod manager;
mod metrics;
mod processes;
mod reload;
mod remote_memory;
mod restart;
mod unit;
mod users;
mod versions;
