//! The load of one host: it starts an operation as soon as an earlier one has ended.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use lockify_array::{Layout, OpError, Scheme, Span, Work};
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::case::{DATA, messages};

/// A host's load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// It uses stripes below this.
    pub stripes: u64,
    /// Share of reads.
    pub reads: f64,
    /// Operations under way.
    pub depth: u32,
    /// How long.
    pub duration_ns: u64,
    /// The seed of its choices.
    pub seed: u64,
}

impl Load {
    /// The load before it, which is not counted: connections get their memory, devices note their writers, and files get space.
    pub fn warm_up(&self) -> Load {
        Load { duration_ns: self.duration_ns / 2, seed: !self.seed, ..self.clone() }
    }
}

/// The work that it has done.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The number of operations.
    pub ops: u64,
    /// How long it took.
    pub elapsed_ns: u64,
    /// Messages that the model expects of them.
    pub expected: u64,
    /// Messages that there were.
    pub messages: u64,
    /// Operations that waited for others, or were begun again.
    pub delayed: u64,
    /// Processor time of the host's process, in nanoseconds.
    pub processor_ns: u64,
    /// How often an operation took how many nanoseconds, to three digits.
    pub times: Vec<(u64, u64)>,
}

/// How long operations took, in nanoseconds, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// An executor of operations: a host of the array, or bare files. It calls the given function once with the
/// result.
pub(super) trait Doer {
    fn begin(&self, work: Work, done: Box<dyn FnOnce(Result<(), OpError>) + Send>);
}

/// Puts a load on an array of this layout.
///
/// # Errors
/// The first operation that failed.
pub(super) fn put(
    load: &Load,
    layout: &Layout,
    scheme: Scheme,
    doer: &impl Doer,
) -> Result<Done, OpError> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(load.seed);
    let unit = u64::from(layout.unit);
    let longest = (unit * u64::from(DATA) * u64::from(layout.block_size)) as usize;
    let mut content = vec![0u8; longest];
    random.fill(&mut content[..]);
    let content = Bytes::from(content);
    let mut done = Done::default();
    let mut next = || {
        let read = random.random_bool(load.reads.clamp(0.0, 1.0));
        let touched = random.random_range(1..=u64::from(DATA));
        let first = random.random_range(0..=u64::from(DATA) - touched);
        let stripe = random.random_range(0..load.stripes.clamp(1, layout.stripes));
        let start = layout.logical(stripe, first as u16);
        let span = Span { start, count: touched * unit };
        let bytes = (span.count * u64::from(layout.block_size)) as usize;
        let work = match read {
            true => Work::Read { span },
            false => Work::Write { span, data: content.slice(..bytes) },
        };
        (work, messages(scheme, read, touched))
    };
    let (to, ended) = channel();
    let start = Instant::now();
    let end = start + Duration::from_nanos(load.duration_ns);
    let mut begin = |done: &mut Done| {
        let (work, expected) = next();
        done.expected += expected;
        let (to, begun) = (to.clone(), Instant::now());
        let finish = move |result| {
            // The receiver waits for all.
            let _ = to.send((result, begun.elapsed()));
        };
        doer.begin(work, Box::new(finish));
    };
    let mut times = histogram();
    let mut under_way = load.depth.max(1);
    (0..under_way).for_each(|_| begin(&mut done));
    while under_way > 0 {
        let Ok((result, time)) = ended.recv() else { break };
        result?;
        done.ops += 1;
        // It resizes itself, so every value has its place.
        let _ = times.record(time.as_nanos() as u64);
        if Instant::now() < end {
            begin(&mut done);
        } else {
            under_way -= 1;
        }
    }
    done.elapsed_ns = start.elapsed().as_nanos() as u64;
    done.times =
        times.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
    Ok(done)
}
