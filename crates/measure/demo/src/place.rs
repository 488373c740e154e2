//! The processors of a worker.
//!
//! The scheduler's placement of two communicating processes changes a round trip by more than the
//! compared effects. So a single creator has a processor for itself, on one node as among five, and
//! so has the bare ping-pong.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::wire::Place;

/// Moves this thread, and with it the threads that it starts, among the processors that it was
/// `allowed` at first. Where that is refused, the scheduler decides and figures scatter more.
pub fn go(place: Place, allowed: &CpuSet) {
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let Some(first) = cpus.next() else { return };
    let mut chosen = *allowed;
    match place {
        Place::First => cpus.for_each(|cpu| chosen.unset(cpu)),
        Place::Others if cpus.next().is_some() => chosen.unset(first),
        Place::Others | Place::Anywhere => {}
    }
    let _ = sched_setaffinity(None, &chosen);
}

/// The processors that this thread may use; none if the system does not say.
pub fn allowed() -> CpuSet {
    sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_others_share_nothing_where_there_are_two() {
        let all = allowed();
        go(Place::First, &all);
        let first = allowed();
        go(Place::Others, &all);
        let others = allowed();
        go(Place::Anywhere, &all);
        assert_eq!(first.count(), 1);
        assert_eq!(others.count(), if all.count() > 1 { all.count() - 1 } else { 1 });
        assert_eq!(allowed(), all);
        assert!(
            all.count() == 1
                || (0..CpuSet::MAX_CPU).all(|c| !(first.is_set(c) && others.is_set(c)))
        );
    }
}
