//! ShiftLock's experiments 1 to 4 and 6 to 8 (section 3.2), with 240 clients.
//!
//! Experiment 5 needs Redis. Critical sections are empty, as published. Without leases, but for experiment 8: what the
//! published forms cost.

use lockify_onesided::{Options, Protocol};
use lockify_report::{Row, metric};
use lockify_sim::{MILLISECOND, Nanos};

use super::{Part, row};
use crate::onesided::measure::{Case, LOCKS, Load, Measured, measure};
use crate::onesided::profile::hundred_gigabit;
use crate::onesided::traces::Trace;

const PROTOCOLS: [Protocol; 7] = [
    Protocol::Spin,
    Protocol::Srsl,
    Protocol::Dslr,
    Protocol::Mcs,
    Protocol::ShiftLock,
    Protocol::ShiftLockPlus,
    Protocol::ShiftLockS,
];

/// As the paper runs all but those with failures.
const SEED: u64 = 1;

fn write_intensive() -> Load {
    Load::Micro { locks: LOCKS, skewed: true, shared: 0.5 }
}

pub(super) fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for protocol in PROTOCOLS {
        for (distribution, skewed) in [("zipf", true), ("uniform", false)] {
            for (mix, shared) in [("WI", 0.5), ("RI", 0.95), ("RO", 1.0)] {
                let load = format!("{distribution} {mix}");
                parts.push(Part::new(
                    format!("experiment 1, {} {load}", protocol.name()),
                    move || {
                        let case = case(protocol, Load::Micro { locks: LOCKS, skewed, shared });
                        let found = measure(&case, SEED)?;
                        let mut rows =
                            goodput(&found, "1", protocol, &[("load", load.as_str().into())]);
                        if skewed && mix == "WI" {
                            rows.extend(verbs(&found, protocol));
                        }
                        Ok(rows)
                    },
                ));
            }
        }
        for locks in
            [1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000, 3_162_278, 10_000_000]
        {
            parts.push(Part::new(
                format!("experiment 2, {} {locks}", protocol.name()),
                move || {
                    let case = case(protocol, Load::Micro { locks, skewed: true, shared: 0.5 });
                    let found = measure(&case, SEED)?;
                    Ok(vec![rate(&found, "2", protocol).with("locks", locks as f64)])
                },
            ));
        }
        for trace in Trace::ALL {
            parts.push(Part::new(
                format!("experiment 4, {} {}", protocol.name(), trace.name()),
                move || {
                    let found = measure(&case(protocol, Load::Trace(trace)), SEED)?;
                    let ops = row(&metric::OPS_PER_S, found.per_s);
                    let ops = ops
                        .with("experiment", "4")
                        .with("protocol", protocol.name())
                        .with("load", trace.name());
                    let mut rows = vec![ops.clone()];
                    rows.extend([50.0, 99.0].map(|p| {
                        row(&metric::LATENCY_US, found.latency_us(p / 100.0))
                            .case(ops.case.clone())
                            .with("percentile", p)
                    }));
                    Ok(rows)
                },
            ));
        }
    }
    parts.extend(batches());
    parts.extend(failures());
    parts
}

/// Experiments 6 and 7: one client machine after the other with unbounded batches, and bounds.
fn batches() -> Vec<Part> {
    let mut parts = Vec::new();
    for threads in [1, 4, 8, 16, 24, 32, 40, 48] {
        parts.push(Part::new(format!("experiment 6, {threads} threads"), move || {
            let mut case = case(Protocol::ShiftLock, write_intensive());
            case.options.batch = u32::MAX;
            case.clients = threads * 5;
            let found = measure(&case, SEED)?;
            Ok(goodput(&found, "6", Protocol::ShiftLock, &[("threads", threads.into())]))
        }));
    }
    for protocol in [Protocol::ShiftLock, Protocol::ShiftLockPlus] {
        // The last stands for no bound.
        for batch in [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 1_000_000_u32] {
            parts.push(Part::new(
                format!("experiment 7, {} {batch}", protocol.name()),
                move || {
                    let mut case = case(protocol, write_intensive());
                    case.options.batch = batch;
                    let found = measure(&case, SEED)?;
                    Ok(goodput(&found, "7", protocol, &[("batch", f64::from(batch).into())]))
                },
            ));
        }
    }
    parts
}

/// Leases of experiment 8.
const LEASE: Nanos = 10 * MILLISECOND;

/// Experiment 8: a holder forgets its lock now and then.
fn failures() -> Vec<Part> {
    let mut parts = Vec::new();
    for protocol in
        [Protocol::Dslr, Protocol::ShiftLock, Protocol::ShiftLockPlus, Protocol::ShiftLockS]
    {
        for dies in [1e-5, 1e-4, 1e-3, 1e-2] {
            parts.push(Part::new(format!("experiment 8, {} {dies}", protocol.name()), move || {
                let mut case = case(protocol, write_intensive());
                case.options = case.options.with_lease(LEASE);
                case.dies = dies;
                case.length = 12 * LEASE;
                // As many clients as let a run of many leases end in seconds.
                case.clients = 48;
                let found = measure(&case, SEED)?;
                Ok(goodput(&found, "8", protocol, &[("dies", dies.into())]))
            }));
        }
    }
    parts
}

fn case(protocol: Protocol, load: Load) -> Case {
    Case::new(hundred_gigabit(), Options::new(protocol), load)
}

fn rate(found: &Measured, experiment: &str, protocol: Protocol) -> Row {
    let rate = row(&metric::LOCKS_PER_S, found.per_s);
    rate.with("experiment", experiment).with("protocol", protocol.name())
}

fn goodput(
    found: &Measured,
    experiment: &str,
    protocol: Protocol,
    case: &[(&str, lockify_report::Value)],
) -> Vec<Row> {
    let mut rate = rate(found, experiment, protocol);
    for (name, value) in case {
        rate = rate.with(name, value.clone());
    }
    let case = rate.case.clone();
    let mut rows = vec![rate];
    rows.extend([50.0, 99.0].map(|p| {
        row(&metric::LATENCY_US, found.latency_us(p / 100.0))
            .case(case.clone())
            .with("percentile", p)
    }));
    rows
}

/// Experiment 3: what reaches the home, and what does not.
fn verbs(found: &Measured, protocol: Protocol) -> Vec<Row> {
    let counts = &found.counts;
    let kinds = [
        ("atomics", counts.cas + counts.faa, (protocol == Protocol::ShiftLock).then_some(2.01)),
        ("of these, failed CAS", counts.cas_failed, None),
        ("READ", counts.read, (protocol == Protocol::ShiftLock).then_some(0.36)),
        ("WRITE", counts.write, None),
        ("messages", counts.send, None),
    ];
    let verb = |(name, count, published): (&str, u64, Option<f64>)| {
        let row = row(&metric::VERBS_PER_LOCK, found.each(count));
        let row = row.with("experiment", "3").with("protocol", protocol.name()).with("verb", name);
        match published {
            Some(value) => row.published(value),
            None => row,
        }
    };
    kinds.map(verb).to_vec()
}
