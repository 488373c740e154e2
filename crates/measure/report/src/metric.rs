//! The metrics, each with the one name and unit that it has everywhere.

/// A metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name in rows.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How a person would call it.
    pub title: &'static str,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $unit:literal, $title:literal;)*) => {
        $($(#[$doc])* pub const $constant: Metric =
            Metric { name: $name, unit: $unit, title: $title };)*

        /// All of them.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    /// Objects created per second, of all nodes together.
    CREATES_PER_S = "creates_per_s", "1/s", "creations per second";
    /// Throughput as a share of one node's in the same round.
    RATIO_TO_ONE_NODE = "ratio_to_one_node", "1", "throughput relative to one node";
    /// Round trips that a creation had to wait for.
    ROUND_TRIPS_PER_CREATE = "round_trips_per_create", "1", "synchronous round trips per creation";
    /// Lock messages per creation, synchronous or not.
    MESSAGES_PER_CREATE = "messages_per_create", "1", "messages per creation";
    /// Network packets per creation.
    PACKETS_PER_CREATE = "packets_per_create", "1", "packets per creation";
    /// Share of an operation's time that it waited for locks.
    LOCK_WAIT_SHARE = "lock_wait_share", "1", "share of lock wait";
    /// Time of an operation; the case says which `percentile`.
    LATENCY_US = "latency_us", "us", "latency";
    /// Violations that the checker found.
    VIOLATIONS = "violations", "1", "violations";
    /// Claims sent again.
    RESENDS = "resends", "1", "resends";
    /// Claims refused.
    REFUSALS = "refusals", "1", "refusals";
    /// Operations that waited behind the claim barrier.
    BARRIER_WAITS = "barrier_waits", "1", "barrier waits";
    /// Locks taken and released per second.
    LOCKS_PER_S = "locks_per_s", "1/s", "locks per second";
    /// The time relative to its unavoidable part, measured in the same run.
    RATIO_TO_BARE = "ratio_to_bare", "1", "time relative to bare";
    /// One-sided verbs per lock.
    VERBS_PER_LOCK = "verbs_per_lock", "1", "verbs per lock";
    /// Share of tries that have to be repeated.
    RETRY_SHARE = "retry_share", "1", "share of retries";
    /// Messages per lock.
    MESSAGES_PER_LOCK = "messages_per_lock", "1", "messages per lock";
    /// Storage operations per second.
    OPS_PER_S = "ops_per_s", "1/s", "operations per second";
    /// Processor time of all processes together per storage operation.
    PROCESSOR_US_PER_OP = "processor_us_per_op", "us", "processor time per operation";
    /// Messages per storage operation.
    MESSAGES_PER_OP = "messages_per_op", "1", "messages per operation";
    /// Share of operations that were delayed by others.
    DELAYED_SHARE = "delayed_share", "1", "share of delayed operations";
    /// Mean time of an operation.
    MEAN_LATENCY_MS = "mean_latency_ms", "ms", "mean latency";
    /// The most operations per second that can be kept up.
    PEAK_OPS_PER_S = "peak_ops_per_s", "1/s", "peak of operations per second";
    /// Share of the time that disks are busy.
    BUSY_SHARE = "busy_share", "1", "share of disks' time";
    /// Operations of which everything was checked.
    CHECKED_OPS = "checked_ops", "1", "operations checked";
    /// Events of the simulator per second of real time.
    EVENTS_PER_S = "events_per_s", "1/s", "simulated events per second of real time";
}

impl Metric {
    /// The metric with this name.
    pub fn named(name: &str) -> Option<Metric> {
        ALL.iter().find(|m| m.name == name).copied()
    }
}
