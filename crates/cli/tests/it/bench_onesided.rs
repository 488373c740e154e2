//! `lockify bench onesided` runs to its end with real processes, and writes its results.

use crate::common::{User, code, stdout};

#[test]
fn every_protocol_is_measured() {
    let user = User::new();
    let dir = user.dir().join("out");
    let out = user.lockify(&["bench", "onesided", "--quick", "--out", dir.to_str().unwrap()]);
    assert_eq!(code(&out), 0, "{out:?}");
    let rows = lockify_report::read_file(dir.join("report.jsonl")).unwrap();
    for protocol in lockify_onesided::Protocol::ALL {
        assert!(stdout(&out).contains(protocol.name()));
        let of = |metric: &str| {
            let name = protocol.name();
            let is = |row: &&lockify_report::Row| {
                row.metric == metric
                    && row.case.get("protocol").is_some_and(|p| p.to_string() == name)
            };
            rows.iter().filter(is).count()
        };
        assert_eq!((of("locks_per_s"), of("latency_us"), of("verbs_per_lock")), (3, 6, 3));
    }
    assert!(rows.iter().all(|row| row.rounds.len() >= 3 && row.value >= 0.0));
    assert!(std::fs::read_to_string(dir.join("report.html")).unwrap().contains("<svg"));
}
