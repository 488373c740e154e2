//! The end of a trial: nothing of the faults before it goes on behind it.

use lockify_core::Policy;

use super::*;
use crate::scenario::Faults;

/// Three nodes that work, without faults.
fn at_work() -> Cluster {
    let scenario = Scenario::draw(1, Policy::Directory, &(3..=3), Faults::None);
    let mut cluster = Cluster::new(scenario, 0);
    cluster.sim.join_many(3);
    cluster.until_whole().unwrap();
    cluster.run_until(cluster.sim.now() + 50 * MILLISECOND).unwrap();
    cluster
}

#[test]
fn a_node_that_leaves_has_left_and_come_back_before_a_trial_comes_to_rest() {
    let mut cluster = at_work();
    cluster.leave(NodeId(0), 1);
    let leaves = cluster.nodes().first().map(|machine| machine.life());
    assert_eq!(leaves, Some(Life::Leaving), "its locks are unlocked first");
    // It still acts, but its process is about to end.
    assert!(cluster.is_whole() && cluster.is_more_planned());
    cluster.calm().unwrap();
    assert_eq!(cluster.sim.incarnation(sim_id(NodeId(0))), 2);
    assert!(cluster.nodes().iter().all(|machine| machine.life() == Life::Member));
    cluster.check_settled().unwrap();
}

#[test]
fn agents_fail_while_faults_happen_and_not_after_that() {
    let mut cluster = at_work();
    let failures = |cluster: &mut Cluster| (0..100).filter(|_| !cluster.agent_succeeds()).count();
    cluster.quiet_at = cluster.sim.now() + SECOND;
    assert!(failures(&mut cluster) > 0);
    cluster.quiet_at = cluster.sim.now();
    assert_eq!(failures(&mut cluster), 0);
}
