//! ShiftLock's motivation and experiments 1 to 8 (docs/design/onesided.md 3.2), with 240 clients.
//!
//! All but experiment 8 run without leases, at the cost of the published forms. Critical sections are empty, as
//! published, except in a second series of experiment 1.

use lockify_onesided::{Options, Protocol};
use lockify_report::{Row, metric};
use lockify_sim::{MILLISECOND, Nanos};

use super::{Part, row};
use crate::measure::{Case, LOCKS, Load, Measured, Section, Verbs, measure};
use crate::profile::hundred_gigabit;
use crate::smallbank::Guards;
use crate::traces::Trace;

const PROTOCOLS: [Protocol; 9] = [
    Protocol::Spin,
    Protocol::Drtm,
    Protocol::Srsl,
    Protocol::Dslr,
    Protocol::Mcs,
    Protocol::RmaRw,
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
    let mut parts = motivation();
    for protocol in PROTOCOLS {
        for (distribution, skewed) in [("zipf", true), ("uniform", false)] {
            for (mix, shared) in [("WI", 0.5), ("RI", 0.95), ("RO", 1.0)] {
                for (section, what) in SECTIONS {
                    let load = format!("{distribution} {mix}");
                    let name = format!("experiment 1, {} {load}, {what}", protocol.name());
                    parts.push(Part::new(name, move || {
                        let load_ = Load::Micro { locks: LOCKS, skewed, shared };
                        let found = measure(&Case { section, ..case(protocol, load_) }, SEED)?;
                        let case = [("load", load.as_str().into()), ("section", what.into())];
                        let mut rows = goodput(&found, "1", protocol, &case);
                        if skewed && mix == "WI" && section == Section::Empty {
                            rows.extend(verbs(&found, protocol));
                        }
                        Ok(rows)
                    }));
                }
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
    parts.extend(smallbank());
    parts.extend(batches());
    parts.extend(failures());
    parts
}

/// The accesses under the locks of experiment 1.
const SECTIONS: [(Section, &str); 2] = [(Section::Empty, "empty"), (Section::Touch, "touch")];

/// The paper's motivation: one lock by compare-and-swap. It tests the profile, since nothing but the NIC's handling of
/// atomics at one address decides it.
fn motivation() -> Vec<Part> {
    // Clients, unit of back-off, published locks per second and share of retries.
    let cases = [
        ("alone", 1, 1862, 278_300.0, 0.0),
        ("240 clients", 240, 1, 15_500.0, 0.944),
        ("240 clients that back off", 240, 1862, 278_300.0 * (1.0 - 0.492), 0.871),
    ];
    let part =
        |(name, clients, unit, published, retries): (&'static str, usize, Nanos, f64, f64)| {
            Part::new(format!("motivation, {name}"), move || {
                let mut case =
                    case(Protocol::Spin, Load::Micro { locks: 1, skewed: false, shared: 0.0 });
                case.clients = clients;
                case.options.unit = unit;
                // Back-off adapts once in a millisecond.
                case.warm_up = 20 * MILLISECOND;
                case.length = 100 * MILLISECOND;
                let found = measure(&case, SEED)?;
                let by = |row: Row| row.with("experiment", "0").with("load", name);
                let tries = found.all.counts.cas - found.all.pairs;
                let share = found.all.counts.cas_failed as f64 / tries.max(1) as f64;
                Ok(vec![
                    by(row(&metric::LOCKS_PER_S, found.per_s)).published(published),
                    by(row(&metric::RETRY_SHARE, share)).published(retries),
                ])
            })
        };
    let mut parts: Vec<Part> = cases.map(part).into();
    parts.push(Part::new("motivation, the artifact's sample", || {
        let mut case =
            case(Protocol::ShiftLock, Load::Micro { locks: 1, skewed: false, shared: 0.8 });
        (case.clients, case.options.unit) = (8, 1000);
        let found = measure(&case, SEED)?;
        let rate = row(&metric::LOCKS_PER_S, found.per_s).with("experiment", "0");
        Ok(vec![rate.with("load", SAMPLE).published(738_528.0)])
    }));
    parts
}

/// The artifact's smallest example, with its printed result and waits of 1000 ns. It shows the time of a message.
pub(super) const SAMPLE: &str = "8 clients by shiftlock, 4 of 5 share";

/// Experiment 5: SmallBank on a store.
fn smallbank() -> Vec<Part> {
    let locks = [
        (Guards::RedLock, "redlock", Protocol::ShiftLock, Some(5_560.0)),
        (Guards::Table, "shiftlock", Protocol::ShiftLock, Some(36_550.0)),
        (Guards::Table, "shiftlock-s", Protocol::ShiftLockS, None),
    ];
    let part =
        |(guards, name, protocol, published): (Guards, &'static str, Protocol, Option<f64>)| {
            Part::new(format!("experiment 5, {name}"), move || {
                let mut case = case(protocol, Load::SmallBank(guards));
                // Long enough for RedLock's pauses.
                case.warm_up = 500 * MILLISECOND;
                case.length = 2_000 * MILLISECOND;
                let found = measure(&case, SEED)?;
                let by = |row: Row| row.with("experiment", "5").with("protocol", name);
                let rate = by(row(&metric::OPS_PER_S, found.per_s));
                let rate = published.iter().fold(rate, |row, value| row.published(*value));
                let mut rows = vec![rate];
                if guards == Guards::RedLock {
                    rows.push(by(row(&metric::RETRY_SHARE, found.failed_tries)));
                }
                rows.extend([50.0, 99.0].map(|p| {
                    by(row(&metric::LATENCY_US, found.latency_us(p / 100.0))).with("percentile", p)
                }));
                Ok(rows)
            })
        };
    locks.map(part).into()
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
    let mut options = Options::new(protocol);
    // A READ is faster than a message here.
    options.net = options.unit;
    Case::new(hundred_gigabit(), options, load)
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

/// Experiment 3: the verbs and messages that reach the home, and the others. It counts all locks, and the most contended
/// one, which limits all.
fn verbs(found: &Measured, protocol: Protocol) -> Vec<Row> {
    let mut rows = Vec::new();
    for (which, verbs) in [("all", &found.all), ("the hottest", &found.hottest)] {
        let by = |row: Row| {
            row.with("experiment", "3").with("protocol", protocol.name()).with("of", which)
        };
        let share = ratio(verbs.pairs, found.all.pairs);
        rows.push(by(row(&metric::LOCKS_PER_S, found.per_s * share)));
        let published = protocol == Protocol::ShiftLock && which == "all";
        rows.extend(kinds(verbs).map(|(name, count, value)| {
            let row = by(row(&metric::VERBS_PER_LOCK, verbs.each(count))).with("verb", name);
            value.filter(|_| published).iter().fold(row, |row, value| row.published(*value))
        }));
    }
    rows
}

/// With ShiftLock's published figures.
fn kinds(verbs: &Verbs) -> [(&'static str, u64, Option<f64>); 5] {
    let counts = &verbs.counts;
    [
        ("atomics", counts.cas + counts.faa, Some(2.01)),
        ("of these, failed CAS", counts.cas_failed, None),
        ("READ", counts.read, Some(0.36)),
        ("WRITE", counts.write, None),
        ("messages", counts.send, None),
    ]
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}
