//! The figures, in parts that can be measured at the same time.

use lockify_array::Scheme;
use lockify_report::{Case as Properties, Row, Value, metric};
use lockify_sim::{MILLISECOND, Nanos, SECOND};

use super::published::{LATENCY_LIMIT_MS, figure_6, published};
use super::reading::Lab;
use super::{Part, row};
use crate::measure::{Case, MeasureError, Measured, SCHEMES, measure};
use crate::profile::{Calibration, window};
use crate::scale;
use crate::setting::Turns;
use crate::workload::{Alignment, PER_HOST};

/// All runs have this seed.
const SEED: u64 = 1;

/// Table 1's hosts.
pub(super) const HOSTS: u32 = 16;

/// The rule for figures that the paper shows once; figure 6 is measured by both.
pub(super) const ALIGNMENT: Alignment = Alignment::Stripe;

/// Hosts between two loads: all published peaks are even numbers of hosts.
const STEP: u32 = 2;
/// Near a peak equal loads differ by 5 ms: the mean of these seeds counts.
const NEAR_PEAK: std::ops::Range<u64> = 1..4;

/// How long is counted at points of which there are many, and of which nothing rare is wanted.
const SHORT: Nanos = 12 * SECOND;

/// Shares of the array that are used, in percent (figures 5b and 8).
const USED: [f64; 11] = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0];
/// Those of them at which callback and server locking are compared (figure 5b).
pub(super) const SHARED: [f64; 6] = [100.0, 40.0, 20.0, 10.0, 5.0, 2.0];
/// Percent of reads (figure 10, right), and only reads.
const READS: [f64; 6] = [10.0, 30.0, 50.0, 70.0, 90.0, 100.0];
/// Longest latencies of messages in milliseconds (figure 11).
const WINDOWS: [u64; 6] = [2, 4, 8, 12, 16, 20];
/// Shares of cache hits, in percent, with the numbers of hosts that are tried (figure 12).
const HITS: [(f64, &[u32]); 2] = [
    (20.0, &[4, 8, 12, 16, 20, 24, 28, 32, 36, 38, 40, 42, 44, 46]),
    (60.0, &[4, 8, 16, 24, 32, 40, 46, 50, 52, 54, 56, 58, 60, 62]),
];
/// Fixed time-outs of device-served locks, in milliseconds; 150 is five times the baseline's median latency.
const LOCK_WAITS: [u64; 5] = [5, 10, 20, 150, 3000];
/// Where they are tried: shares of the array that are used, in percent.
const FEW: [f64; 5] = [0.2, 0.5, 1.0, 2.0, 5.0];
/// And hosts, with 60 % cache hits: where the paper's device locking collapses.
pub(super) const COLLAPSE: u32 = 58;

/// The time-out of locks at strict devices. The paper gives none, and this one is *fitted* to its figure 8. Of 2, 5, 7
/// and 10 ms, it is the one with which queues grow without bound on 2 % of the array and not on 5 %.
const STRICT_WAIT: Nanos = 5 * MILLISECOND;

/// When the paper's devices handle requests. It says "when conflicting requests build up in the disk queues" (the array
/// paper, section 4.7). With locks it also says "requests … queued behind the blocked (deadlocked) requests until
/// time-outs unlock" (4.4).
pub(super) fn papers_turns(scheme: Scheme) -> Turns {
    if scheme == Scheme::DeviceLocking { Turns::Strict } else { Turns::InTurn }
}

/// All parts.
pub(super) fn parts(lab: Lab) -> Vec<Part> {
    // The longest first, so that nobody waits for them at the end.
    let mut parts: Vec<Part> = SCHEMES.map(at_scale).into();
    parts.extend(compared(lab));
    for scheme in [Scheme::ZeroOverhead, Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        parts.push(other_turns(lab, scheme, Turns::AtOnce));
        let at_once = of_turns(lab.loaded(scheme, Calibration::Latency), Turns::AtOnce);
        let short = Case { length: SHORT, ..at_once };
        parts.extend(USED.map(|used| contention(short.clone(), used, "8, at once")));
    }
    parts.push(other_turns(lab, Scheme::DeviceLocking, Turns::InTurn));
    for lock_wait in LOCK_WAITS {
        parts.extend(FEW.map(|used| lock_waits(lab, lock_wait, used)));
        parts.push(many_hosts(lab, lock_wait));
    }
    parts
}

/// The parts that are compared with published results.
pub(super) fn compared(lab: Lab) -> Vec<Part> {
    let mut parts = Vec::new();
    for scheme in SCHEMES {
        parts.extend(Alignment::ALL.map(|alignment| scaling(lab, scheme, alignment)));
    }
    for (hits, hosts) in HITS {
        parts.extend(SCHEMES.map(|scheme| faster_disks(lab, scheme, hits, hosts)));
    }
    for scheme in SCHEMES {
        parts.extend(Alignment::ALL.map(|alignment| baseline(lab, scheme, alignment)));
        // For latencies, which need no rare events.
        let short = Case { length: SHORT, ..lab.loaded(scheme, Calibration::Peak) };
        parts.extend(USED.map(|used| contention(short.clone(), used, "5b")));
        parts.extend(
            USED.map(|used| contention(lab.loaded(scheme, Calibration::Latency), used, "8")),
        );
        parts.extend(READS.map(|reads| messages(lab, scheme, reads)));
        parts.extend(WINDOWS.map(|longest| skew(lab, scheme, longest)));
    }
    parts
}

/// The parts that the disputed results need ([`super::criteria::disputed`]).
pub(super) fn disputed(lab: Lab) -> Vec<Part> {
    let mut parts = Vec::new();
    for scheme in SCHEMES {
        parts.extend(Alignment::ALL.map(|alignment| baseline(lab, scheme, alignment)));
        if scheme != Scheme::CallbackLocking {
            parts.extend(READS.map(|reads| messages(lab, scheme, reads)));
        }
    }
    for scheme in [Scheme::ZeroOverhead, Scheme::ServerLocking, Scheme::CallbackLocking] {
        let short = Case { length: SHORT, ..lab.loaded(scheme, Calibration::Peak) };
        parts.extend(SHARED.map(|used| contention(short.clone(), used, "5b")));
    }
    parts
}

/// The properties that a measurement's rows share.
fn properties(figure: &str, alignment: Alignment, scheme: Scheme) -> Properties {
    let mut case = Properties::new();
    case.insert("figure".to_owned(), figure.into());
    case.insert("alignment".to_owned(), alignment.name().into());
    case.insert("scheme".to_owned(), scheme.name().into());
    case
}

/// The rows of a measurement.
fn rows(found: &Measured, case: &Properties) -> Vec<Row> {
    found.rows().into_iter().map(|row| row.case(case.clone())).collect()
}

pub(super) fn keeps_up(found: &Measured) -> bool {
    !found.swamped && found.mean_ms() <= LATENCY_LIMIT_MS
}

/// Figure 6 but for the peak, by the calibration for latencies.
fn baseline(lab: Lab, scheme: Scheme, alignment: Alignment) -> Part {
    Part::new(move || {
        let mut case = lab.table_1(scheme, HOSTS, alignment, Calibration::Latency);
        case.length = 60 * SECOND;
        let found = measure(&case, SEED)?;
        let mut rows = rows(&found, &properties("6", alignment, scheme));
        let published = figure_6(scheme);
        for row in &mut rows {
            row.published = match row.metric.as_str() {
                "ops_per_s" => Some(published.per_s),
                "mean_latency_ms" => Some(published.latency_ms),
                "messages_per_op" => Some(published.messages),
                "delayed_share" => Some(published.delayed),
                _ => None,
            };
        }
        Ok(rows)
    })
}

/// Figures 5a and 10, left: more and more hosts, up to the first overload. It also gives figure 6's peak.
fn scaling(lab: Lab, scheme: Scheme, alignment: Alignment) -> Part {
    Part::new(move || {
        let shared = properties("5a", alignment, scheme);
        let case = |hosts| lab.table_1(scheme, hosts, alignment, Calibration::Peak);
        let mut all = Vec::new();
        let mut most = STEP;
        for hosts in [4, 8, 12, 16, 20, 24, 28].into_iter().chain((30..).step_by(STEP as usize)) {
            let found = measure(&Case { length: SHORT, ..case(hosts) }, SEED)?;
            all.extend(rows(&found, &shared).into_iter().map(|row| row.with("hosts", hosts)));
            if !keeps_up(&found) {
                break;
            }
            most = hosts;
        }
        all.push(peak(most, case)?.case(properties("6", alignment, scheme)));
        Ok(all)
    })
}

/// Figure 6's peak, in the published steps, looked for from a number of hosts on.
fn peak(from: u32, case: impl Fn(u32) -> Case) -> Result<Row, MeasureError> {
    let kept = |hosts: u32| {
        let mut sum = 0.0;
        for seed in NEAR_PEAK {
            let found = measure(&Case { length: 20 * SECOND, ..case(hosts) }, seed)?;
            if found.swamped {
                return Ok(false);
            }
            sum += found.mean_ms();
        }
        Ok::<bool, MeasureError>(sum / NEAR_PEAK.count() as f64 <= LATENCY_LIMIT_MS)
    };
    let mut hosts = from;
    if kept(hosts)? {
        while kept(hosts + STEP)? {
            hosts += STEP;
        }
    } else {
        hosts = hosts.saturating_sub(STEP);
        while hosts > 0 && !kept(hosts)? {
            hosts = hosts.saturating_sub(STEP);
        }
    }
    let peak = row(&metric::PEAK_OPS_PER_S, f64::from(hosts) * PER_HOST);
    Ok(peak.published(figure_6(case(hosts).scheme).peak))
}

/// Figure 6 with devices that handle requests in another way.
fn other_turns(lab: Lab, scheme: Scheme, turns: Turns) -> Part {
    Part::new(move || {
        let case = |hosts, calibration| {
            of_turns(lab.table_1(scheme, hosts, ALIGNMENT, calibration), turns)
        };
        let found = measure(&case(HOSTS, Calibration::Latency), SEED)?;
        let mut shared = properties("6, turns", ALIGNMENT, scheme);
        shared.insert("turns".to_owned(), turns.name().into());
        let mut all = rows(&found, &shared);
        all.push(peak(34, |hosts| case(hosts, Calibration::Peak))?.case(shared));
        Ok(all)
    })
}

/// A case with devices that handle requests in this way. Only at strict ones is the time-out fixed.
pub(super) fn of_turns(case: Case, turns: Turns) -> Case {
    Case { turns, lock_wait: (turns == Turns::Strict).then_some(STRICT_WAIT), ..case }
}

/// One point of a figure.
fn point(figure: &'static str, x: &'static str, at: impl Into<Value>, case: Case) -> Part {
    point_of(figure, x, at, case, None)
}

/// One point of a figure that has more than a line for each scheme.
fn point_of(
    figure: &'static str,
    x: &'static str,
    at: impl Into<Value>,
    case: Case,
    line: Option<(&'static str, Value)>,
) -> Part {
    let at = at.into();
    Part::new(move || {
        let scheme = case.scheme;
        let found = measure(&case, SEED)?;
        let mut case = properties(figure, case.mix.alignment, case.scheme);
        case.extend(line.clone().map(|(name, value)| (name.to_owned(), value)));
        let point = rows(&found, &case).into_iter().map(|row| {
            let published = at.number().and_then(|at| published(figure, scheme, &row.metric, at));
            Row { published, ..row.with(x, at.clone()) }
        });
        Ok(point.collect())
    })
}

/// Figures 5b and 8: a smaller part of the array is used.
fn contention(mut case: Case, percent: f64, figure: &'static str) -> Part {
    case.mix.used = percent / 100.0;
    point(figure, "used_percent", percent, case)
}

/// Beside figure 8: devices at once, and device locking with a fixed time-out.
fn lock_waits(lab: Lab, lock_wait_ms: u64, percent: f64) -> Part {
    let case = lab.loaded(Scheme::DeviceLocking, Calibration::Latency);
    let mut case = of_turns(case, Turns::AtOnce);
    case.mix.used = percent / 100.0;
    case.lock_wait = Some(lock_wait_ms * MILLISECOND);
    case.length = SHORT;
    let series = format!("{lock_wait_ms} ms");
    point_of("8, time-outs", "used_percent", percent, case, Some(("lock_wait", series.into())))
}

/// Beside figure 12: the same with 60 % cache hits, and as many hosts as in the paper's collapse.
fn many_hosts(lab: Lab, lock_wait_ms: u64) -> Part {
    let case = lab.table_1(Scheme::DeviceLocking, COLLAPSE, ALIGNMENT, Calibration::Peak);
    let mut case = of_turns(case, Turns::AtOnce);
    case.profile.hits = 0.6;
    case.lock_wait = Some(lock_wait_ms * MILLISECOND);
    case.length = SHORT;
    point("12, time-outs", "lock_wait_ms", lock_wait_ms as f64, case)
}

/// Figure 10, right: messages by the share of reads.
fn messages(lab: Lab, scheme: Scheme, percent: f64) -> Part {
    let mut case = lab.table_1(scheme, HOSTS, ALIGNMENT, Calibration::Peak);
    case.mix.reads = percent / 100.0;
    case.length = SHORT;
    point("10", "read_percent", percent, case)
}

/// Figure 11: messages take from 1 ms up to ever longer.
fn skew(lab: Lab, scheme: Scheme, longest_ms: Nanos) -> Part {
    let mut case = lab.table_1(scheme, HOSTS, ALIGNMENT, Calibration::Latency);
    case.profile.message = window(longest_ms * MILLISECOND);
    case.length = 20 * SECOND;
    point("11", "window_ms", longest_ms as f64, case)
}

/// Figure 12: disks with caches, and more and more hosts, up to the first overload. It goes at least to the point where
/// the paper's device locking collapses.
fn faster_disks(lab: Lab, scheme: Scheme, percent: f64, hosts: &'static [u32]) -> Part {
    Part::new(move || {
        let mut all = Vec::new();
        for &hosts in hosts {
            let mut case = lab.table_1(scheme, hosts, ALIGNMENT, Calibration::Peak);
            case.profile.hits = percent / 100.0;
            case.length = SHORT;
            let found = measure(&case, SEED)?;
            let shared = properties("12", ALIGNMENT, scheme);
            let collapses = scheme == Scheme::DeviceLocking && percent == 60.0;
            all.extend(rows(&found, &shared).into_iter().map(|row| {
                let published = published("12", scheme, &row.metric, f64::from(hosts));
                Row { published, ..row.with("hits_percent", percent).with("hosts", hosts) }
            }));
            let goes_on = keeps_up(&found) || collapses && hosts < COLLAPSE;
            if !goes_on {
                break;
            }
        }
        Ok(all)
    })
}

/// Beyond the paper: ten times its array.
fn at_scale(scheme: Scheme) -> Part {
    Part::new(move || {
        let found = scale::run(scheme, scale::HOSTS, scale::DEVICES, SEED)?;
        let rows = found.rows().into_iter().map(|row| {
            row.case(properties("scale", Alignment::Stripe, scheme))
                .with("hosts", scale::HOSTS)
                .with("devices", u32::from(scale::DEVICES))
        });
        Ok(rows.collect())
    })
}

/// The rows of a part.
pub(super) type Found = Result<Vec<Row>, MeasureError>;
