//! Seeds of simulated clients of locks in remote memory.

use lockify_onesided::Protocol;
use lockify_trials::onesided::seeds::{Run, run, run_one};

#[test]
fn without_faults_every_protocol_is_clean() {
    for &protocol in Protocol::ALL {
        let summary = run(&Run { faults: false, ..Run::new(protocol, 0..30) }, |_| {});
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{summary}");
        assert!(summary.total.grants > 30 * 100, "hardly anything happened: {summary}");
    }
}

#[test]
fn with_faults_every_protocol_is_clean() {
    for &protocol in Protocol::ALL {
        let summary = run(&Run { trace: true, ..Run::new(protocol, 0..100) }, |_| {});
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{summary}");
        let enough = summary.total.revoked > 10 && summary.total.faults > 100;
        assert!(enough || !protocol.repairs(), "hardly anything failed: {summary}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for &protocol in Protocol::ALL {
        let run = Run::new(protocol, 0..1);
        let [first, second] = [(); 2].map(|()| run_one(&run, 3, false).map_err(|f| f.message));
        assert_eq!(first, second, "{}", protocol.name());
    }
}
