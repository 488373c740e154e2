//! Seeds of simulated clients of locks in remote memory.

use lockify_onesided::Protocol;
use lockify_onesided::mutation::Mutation;
use lockify_rdma_trials::seeds::{Run, run, run_one};

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

/// Without a limit to a batch, readers wait longer than is promised; with one, the runs above are clean.
#[test]
fn writers_that_hand_over_without_a_limit_are_found() {
    for protocol in [Protocol::ShiftLock, Protocol::ShiftLockPlus] {
        let mutation = Some(Mutation::ShiftNeverEndsABatch);
        let run = Run { faults: false, mutation, ..Run::new(protocol, 0..30) };
        let found = (0..30).find_map(|seed| run_one(&run, seed, false).err());
        let found = found.unwrap_or_else(|| panic!("{}: no reader waits", protocol.name()));
        println!("{}: {}", protocol.name(), found.message);
        assert!(found.message.contains("waited to read"), "{}", found.message);
    }
}
