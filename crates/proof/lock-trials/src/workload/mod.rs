//! The loads of simulated clients.

pub mod disk;
pub mod files;
pub mod general;
pub mod glock;
pub mod transactions;
