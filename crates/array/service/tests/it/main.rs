//! Arrays with real files and connections.

mod array;
#[allow(dead_code, reason = "the server's own tests use the rest")]
#[path = "../../src/nbd/testing/client.rs"]
mod client;
mod common;
mod nbd;
