//! Arrays with real files and connections.

mod array;
mod common;
mod nbd;
