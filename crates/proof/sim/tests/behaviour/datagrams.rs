//! Messages without connection.

use crate::recorder::*;
use lockify_sim::*;

fn arrivals(datagram: DatagramConfig, latency: Delay) -> Vec<u64> {
    let mut config = plain();
    config.network.datagram = datagram;
    config.network.link.latency = latency;
    let mut sim = cluster(5, config);
    for number in 0..1_000 {
        sim.with(A, |_, cx| cx.send_datagram(B, Numbered(number, 0))).expect("running");
    }
    let seen = run(&mut sim, 1_000);
    assert!(
        seen.iter().all(|(_, seen)| matches!(seen, Seen::Message(..))),
        "no connection is made"
    );
    numbers(&seen, A, B)
}

fn is_sorted(numbers: &[u64]) -> bool {
    numbers.is_sorted()
}

#[test]
fn they_are_lost_doubled_and_reordered_as_configured_and_not_otherwise() {
    let constant = Delay::Constant(MILLISECOND);
    assert!(arrivals(DatagramConfig::default(), constant.clone()).into_iter().eq(0..1_000));

    let lossy = arrivals(DatagramConfig { lose: 0.2, ..Default::default() }, constant.clone());
    assert!((700..900).contains(&lossy.len()) && is_sorted(&lossy));

    let doubled =
        arrivals(DatagramConfig { duplicate: 0.2, ..Default::default() }, constant.clone());
    assert!((1_100..1_300).contains(&doubled.len()) && is_sorted(&doubled));

    let held = DatagramConfig { reorder: 0.1, hold_back: MILLISECOND, ..Default::default() };
    let mut reordered = arrivals(held, constant);
    assert!(!is_sorted(&reordered));
    reordered.sort_unstable();
    assert!(reordered.into_iter().eq(0..1_000));

    assert!(!is_sorted(&arrivals(DatagramConfig::default(), Delay::Uniform(0, MILLISECOND))));
}

#[test]
fn partitions_and_dead_nodes_swallow_them_filters_see_them() {
    let mut sim = cluster(1, plain());
    let one_way = Cut::OneWay { from: vec![A], to: vec![B] };
    sim.inject(Fault::Partition { id: 1, cut: one_way });
    sim.inject(Fault::Crash { node: C, power_loss: false });
    sim.add_filter(Box::new(|envelope| {
        if envelope.datagram && envelope.msg.0 == 9 { Verdict::Lose } else { Verdict::Pass }
    }));
    for (from, to, number) in [(A, B, 1), (B, A, 2), (A, C, 3), (B, A, 9)] {
        sim.with(from, |_, cx| cx.send_datagram(to, Numbered(number, 0))).expect("running");
    }
    assert_eq!(run(&mut sim, 5_000), [(A, Seen::Message(B, 2))]);
    assert_eq!(sim.stats().lost, 3);
}
