//! The benchmarks run and report; their figures are not judged here.

use lockify_client::bench::{self, Effort, RATIO_TO_BARE, RATIO_TO_PLAIN};

#[test]
fn embedded_benchmarks_report_a_ratio_and_their_times() {
    let effort = Effort { rounds: 2, pairs: 50 };
    for (rows, metric) in [
        (bench::remote_embedded_pairs(effort).unwrap(), RATIO_TO_BARE),
        (bench::claimed_embedded_pairs(effort).unwrap(), RATIO_TO_BARE),
        (bench::remote_tls_pairs(effort).unwrap(), RATIO_TO_PLAIN),
    ] {
        let ratio = rows.iter().find(|r| r.metric == metric.name).unwrap();
        assert_eq!(ratio.rounds.len(), 2);
        assert!(rows.iter().all(|r| r.value.is_finite() && r.value > 0.0), "{rows:?}");
        assert!(rows.iter().any(|r| r.metric == "locks_per_s"));
    }
}
