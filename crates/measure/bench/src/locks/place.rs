//! Which processor a thread runs on.
//!
//! The scheduler's placement of two communicating threads changes a round trip by more than any
//! effect measured here. So both sides of every measurement get a processor of their own.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Runs `start` with this thread on the second processor that it may use, if it may use two:
/// threads that `start` starts stay there. Start the daemon to be measured in it.
pub fn on_other_processor<T>(start: impl FnOnce() -> T) -> T {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    if let Some(second) = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).nth(1) {
        go_to(second);
    }
    let started = start();
    let _ = sched_setaffinity(None, &allowed);
    started
}

/// Runs `measure` with this thread on the process's first processor.
pub fn on_this_processor<T>(measure: impl FnOnce() -> T) -> T {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    if let Some(first) = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)) {
        go_to(first);
    }
    let measured = measure();
    let _ = sched_setaffinity(None, &allowed);
    measured
}

/// Where that is not allowed, the scheduler decides and the figures scatter more.
fn go_to(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    let _ = sched_setaffinity(None, &only);
}
