//! Benchmarks and their workers, as small as they go.

mod locks;
mod onesided;
