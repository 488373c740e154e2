//! Memory per lock and per resource: the growth of the process.

use lockify_core::Mode;
use lockify_report::Row;

use super::core::{lock, names, one_node};
use super::{BYTES_PER_LOCK, BYTES_PER_RESOURCE, Effort, Measured};
use crate::exit::{Code, Failure, OrFail as _};

const RESOURCES: usize = 500_000;
/// Further locks of each resource; compatible with the first.
const LOCKS: usize = 3;

/// One lock for each of many resources, then more locks for the same resources: the second step
/// gives the size of a lock, and the first, less one lock, that of a resource.
pub fn measure(effort: Effort) -> Measured {
    let count = RESOURCES / effort.shorter;
    let names = names(count)?;
    let mut space = one_node()?;
    let mut grow = |times: usize| -> Result<f64, Failure> {
        let before = resident()?;
        for _ in 0..times {
            for name in &names {
                lock(&mut space, *name, Mode::PR)?;
            }
        }
        Ok((resident()? - before) / count as f64)
    };
    let first = grow(1)?;
    let per_lock = grow(LOCKS)? / LOCKS as f64;
    let per_resource = first - per_lock;
    let entries = lockify_core::footprint();
    let row = |metric, of: &str, value: f64| Row::of("memory", metric, &[value]).with("of", of);
    Ok(vec![
        row(&BYTES_PER_LOCK, "entries", entries.lock as f64),
        row(&BYTES_PER_RESOURCE, "entries", entries.resource as f64),
        row(&BYTES_PER_LOCK, "resident", per_lock),
        row(&BYTES_PER_RESOURCE, "resident", per_resource),
    ])
}

/// This process's resident memory in bytes.
pub fn resident() -> Result<f64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm").or_fail(Code::Failed)?;
    let pages: Option<f64> = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    let pages =
        pages.ok_or_else(|| Failure::new(Code::Failed, "/proc/self/statm is unreadable"))?;
    Ok(pages * rustix::param::page_size() as f64)
}
