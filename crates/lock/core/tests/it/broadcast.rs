//! Broadcast mastery with messages that cross.

use lockify_core::{ClientId, Input, Mode, Policy};

use crate::common::{Cluster, node};

/// Node 1 finds a master that forgets the resource before node 1 has asked it for the lock, and node 2 waits for node 1.
#[test]
fn who_waits_for_a_node_that_finds_another_master_asks_again() {
    for cancels in [false, true] {
        let mut cluster = Cluster::with(4, Policy::Broadcast, |config| config.toss_after = 5);
        let (one, two, three, four) = (node(1), node(2), node(3), node(4));
        let held = cluster.request(four, "a", Mode::EX);
        cluster.run();
        assert_eq!(cluster.granted(four, held), Mode::EX);
        // Node 4 says that it is the master; the answer of node 3 is late.
        let first = cluster.request(one, "a", Mode::PR);
        for other in [two, four] {
            assert!(cluster.deliver(one, other) && cluster.deliver(other, one));
        }
        cluster.unlock(four, held).unwrap();
        cluster.now += 10;
        cluster.tick(four);
        let second = cluster.request(two, "a", Mode::PR);
        for other in [one, three, four] {
            while cluster.deliver(two, other) {}
            while cluster.deliver(other, two) {}
        }
        if cancels {
            cluster.input(one, Input::Cancel { client: ClientId(1), lock: first }).unwrap();
        }
        cluster.run();
        if !cancels {
            assert_eq!(cluster.granted(one, first), Mode::PR);
        }
        assert_eq!(cluster.granted(two, second), Mode::PR, "cancels: {cancels}");
        cluster.assert_sound();
    }
}
