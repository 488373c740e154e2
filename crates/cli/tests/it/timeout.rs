//! `lockify run --timeout` where a node does not answer.

use rustix::process::Signal;

use crate::common::cluster::Cluster;
use crate::common::{code, stderr, wait_for};
use lockify_client::Mode;

#[test]
fn a_time_out_is_kept_while_the_master_does_not_answer() {
    // Nobody counts as dead as long as this test runs.
    let cluster = Cluster::start("lease = \"100s\"");
    let [one, two, three] = [1, 2, 3].map(|n| cluster.space(n));
    let _master = three.lock("x", Mode::NL).unwrap();
    let _known = one.lock("x", Mode::NL).unwrap();
    cluster.signal(3, Signal::STOP);
    let out = cluster.lockify(1, &["run", "--timeout", "100ms", "x", "--", "true"]);
    assert_eq!(code(&out), 124, "{}", stderr(&out));
    assert_eq!(cluster.members(1), 3, "node 3 has not been given up");
    cluster.signal(3, Signal::CONT);
    // A later grant of node 3 is unlocked again.
    two.lock("x", Mode::EX).unwrap().unlock().unwrap();
    wait_for(|| {
        let locks = two.who("x").unwrap().resources.remove(0).locks;
        locks.len() == 2 && locks.iter().all(|l| l.granted == Some(Mode::NL))
    });
}
