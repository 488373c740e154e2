//! Benchmark results.
