//! The benchmarks: the cost of locks, of locks in remote memory and of shared arrays, each beside a baseline.
//!
//! [`locks`] measures locks through a daemon and between embedded nodes. [`onesided`] measures the protocols of locks in remote
//! memory, and checks the histories of their clients. [`mod@array`] measures the schemes of shared arrays.
#![forbid(unsafe_code)]

pub mod array;
pub mod locks;
pub mod onesided;
