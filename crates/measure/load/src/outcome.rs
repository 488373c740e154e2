//! The output of a load: one line of JSON.

use serde::Serialize;

use crate::failure::Failure;
use crate::latency::{Latency, Sampler};
use crate::start::Span;

/// A load's result.
#[derive(Serialize, Debug)]
pub struct Outcome {
    /// Which load.
    pub workload: &'static str,
    /// Its phases, in their order.
    pub phases: Vec<Phase>,
}

/// One phase.
#[derive(Serialize, Debug)]
pub struct Phase {
    /// The kind of work: create, stat, remove, mix.
    pub phase: &'static str,
    /// To what: directories, files.
    pub kind: &'static str,
    /// How many operations.
    pub operations: u64,
    /// From the first operation to the end of the last.
    pub seconds: f64,
    /// From the first operation to the end of the final barrier: the parent's blocks are on disk,
    /// and the witness, if there is one, has seen the parent.
    pub settled_seconds: f64,
    /// Beginning in seconds since 1970, by this node's clock.
    pub begin: f64,
    /// Bytes written and read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Latency of single operations in microseconds, of a sample.
    pub latency_us: Option<Latency>,
}

impl Phase {
    /// A phase of these operations.
    pub fn new(phase: &'static str, kind: &'static str, sampler: &Sampler, span: &Span) -> Phase {
        Phase {
            phase,
            kind,
            operations: sampler.operations(),
            seconds: span.done.as_secs_f64(),
            settled_seconds: span.settled.as_secs_f64(),
            begin: span.begin,
            bytes: None,
            latency_us: sampler.latency(),
        }
    }
}

impl Outcome {
    /// Prints it.
    pub fn print(&self) -> Result<(), Failure> {
        let line = serde_json::to_string(self)
            .map_err(|e| Failure::Other(format!("the result cannot be written: {e}")))?;
        println!("{line}");
        Ok(())
    }
}
