//! The benchmarks run and report; their figures are not judged here.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockify_bench::locks::{self, Effort, RATIO_TO_BARE, RATIO_TO_PLAIN, WaitEffort};
use lockify_daemon::{Config, Daemon, Log};

/// The benchmark of waiting counts the wake-ups of all sessions of this process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn embedded_benchmarks_report_a_ratio_and_their_times() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let effort = Effort { rounds: 2, pairs: 50 };
    for (rows, metric) in [
        (locks::remote_embedded_pairs(effort).unwrap(), RATIO_TO_BARE),
        (locks::claimed_embedded_pairs(effort).unwrap(), RATIO_TO_BARE),
        (locks::remote_tls_pairs(effort).unwrap(), RATIO_TO_PLAIN),
    ] {
        let ratio = rows.iter().find(|r| r.metric == metric.name).unwrap();
        assert_eq!(ratio.rounds.len(), 2);
        assert!(rows.iter().all(|r| r.value.is_finite() && r.value > 0.0), "{rows:?}");
        assert!(rows.iter().any(|r| r.metric == "locks_per_s"));
    }
}

#[test]
fn the_benchmark_of_waiting_reports_wakeups_and_the_time_of_a_grant() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let config = Config::alone(dir.path().join("lockify.sock"));
    let _daemon = Daemon::start(&config, &Log::new(|_| {})).unwrap();
    let effort = WaitEffort { rounds: 1, watch: Duration::from_millis(200) };
    // More of them than there are sessions.
    for waiters in [1, 150] {
        let rows = locks::waits(&config.socket, "default", waiters, effort).unwrap();
        let metrics: Vec<_> = rows.iter().map(|row| row.metric.clone()).collect();
        assert_eq!(metrics, ["wakeups_per_s", "latency_us"]);
        assert!(rows[0].value >= 0.0 && rows[1].value > 0.0, "{rows:?}");
    }
}
