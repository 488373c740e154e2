//! Partitions: stalls, breaks, healing.

use crate::recorder::*;
use lockify_sim::*;

fn split(groups: &[&[NodeId]]) -> Fault {
    Fault::Partition {
        id: 1,
        cut: Cut::Groups(groups.iter().map(|group| group.to_vec()).collect()),
    }
}

#[test]
fn a_short_one_delays_but_loses_nothing() {
    let mut sim = connected(1, plain());
    send(&mut sim, A, B, 0..3); // on the way when it begins
    sim.inject(split(&[&[A], &[B, C]]));
    send(&mut sim, A, B, 3..6);
    send(&mut sim, C, B, [7]);
    let seen = run(&mut sim, 500);
    assert_eq!(seen, [(B, Seen::Message(C, 7))], "only the own side is heard");
    sim.inject(Fault::Heal(1));
    send(&mut sim, A, B, 6..9);
    let seen = run(&mut sim, 5_000);
    assert!(numbers(&seen, A, B).into_iter().eq(0..9), "{seen:?}");
    assert_eq!(seen.len(), 9, "nobody was told anything");
}

#[test]
fn a_long_one_breaks_connections_which_come_back_when_it_heals() {
    let mut sim = connected(1, plain());
    sim.inject(split(&[&[A], &[B, C]]));
    send(&mut sim, A, B, 0..3);
    let seen = run(&mut sim, 3_000);
    for (node, peer) in [(A, B), (B, A), (A, C), (C, A)] {
        assert!(seen.contains(&(node, Seen::Down(peer))), "{node} is told about {peer}");
    }
    assert_eq!(seen.len(), 4, "B and C still have each other: {seen:?}");
    send(&mut sim, A, B, [9]);
    sim.inject(Fault::Heal(1));
    let seen = run(&mut sim, 4_000);
    assert_eq!(seen.len(), 4);
    assert!(seen.contains(&(A, Seen::Up(B, 1))) && seen.contains(&(C, Seen::Up(A, 1))));
    send(&mut sim, A, B, [10]);
    assert_eq!(run(&mut sim, 5_000), [(B, Seen::Message(A, 10))]);
}

#[test]
fn a_one_way_partition_lets_the_other_direction_through_until_the_break() {
    let mut sim = connected(1, plain());
    sim.inject(Fault::Partition { id: 1, cut: Cut::OneWay { from: vec![A], to: vec![B] } });
    send(&mut sim, A, B, [1]);
    send(&mut sim, B, A, [2]);
    assert_eq!(run(&mut sim, 500), [(A, Seen::Message(B, 2))]);
    let seen = run(&mut sim, 2_000);
    assert!(seen.contains(&(A, Seen::Down(B))) && seen.contains(&(B, Seen::Down(A))));
    assert!(numbers(&seen, A, B).is_empty());
}

#[test]
fn connecting_across_one_is_refused_until_it_heals() {
    let mut sim = cluster(1, plain());
    sim.inject(split(&[&[A], &[B], &[C]]));
    send(&mut sim, A, B, [1]);
    assert_eq!(run(&mut sim, 100), [(A, Seen::Down(B))]);
    sim.inject(Fault::HealAll);
    assert_eq!(run(&mut sim, 200), [(A, Seen::Up(B, 1)), (B, Seen::Up(A, 1))]);
}

#[test]
fn a_break_while_messages_stall_loses_all_of_them() {
    for seed in 0..20 {
        let mut sim = connected(seed, plain());
        sim.inject(split(&[&[A], &[B, C]]));
        send(&mut sim, A, B, [1]);
        run(&mut sim, 200);
        sim.inject(Fault::Heal(1));
        send(&mut sim, A, B, [2]);
        sim.inject(Fault::BreakConnection(A, B));
        assert!(numbers(&run(&mut sim, 1_000), A, B).is_empty(), "2 must not arrive without 1");
    }
}
