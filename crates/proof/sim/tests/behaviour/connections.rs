//! Order, loss and notices of connections.

use crate::recorder::*;
use lockify_sim::*;

fn uneven() -> Config {
    let mut config = plain();
    config.network.link.latency = Delay::Uniform(0, 20 * MILLISECOND);
    config
}

#[test]
fn one_connection_keeps_the_order() {
    let mut sim = connected(1, uneven());
    send(&mut sim, A, B, 0..200);
    let seen = run(&mut sim, 1_000);
    assert!(numbers(&seen, A, B).into_iter().eq(0..200));
}

#[test]
fn connections_do_not_wait_for_each_other() {
    let overtakes = (0..50).filter(|seed| {
        let mut sim = connected(*seed, uneven());
        send(&mut sim, A, C, [1]);
        send(&mut sim, B, C, [2]);
        let arrived: Vec<_> = run(&mut sim, 1_000).into_iter().map(|(_, seen)| seen).collect();
        arrived == [Seen::Message(B, 2), Seen::Message(A, 1)]
    });
    let overtakes = overtakes.count();
    assert!((10..40).contains(&overtakes), "{overtakes} of 50 overtook");
}

#[test]
fn bandwidth_serialises_one_direction_only() {
    let mut config = plain();
    config.network.link.bandwidth = Some(1_000_000);
    let mut sim = connected(1, config);
    for (from, to) in [(A, B), (A, B), (B, A), (A, C)] {
        sim.with(from, |_, cx| cx.send(to, Numbered(0, 5_000))).expect("running");
    }
    let arrivals = timed(&mut sim, 1_000).into_iter().map(|(at, node, _)| (at / MILLISECOND, node));
    // 5 ms on the wire, 1 ms on the way.
    assert!(arrivals.eq([(106, B), (106, A), (106, C), (111, B)]));
}

#[test]
fn a_link_can_have_a_profile_and_a_fault_of_its_own() {
    let mut sim = connected(1, plain());
    sim.set_link(A, B, LinkProfile { latency: Delay::Constant(30 * MILLISECOND), bandwidth: None });
    assert!(sim.inject(Fault::SlowLink { ends: (B, C), extra: 4 * MILLISECOND }));
    for (from, to) in [(A, B), (B, A), (B, C), (C, B)] {
        send(&mut sim, from, to, [0]);
    }
    let arrivals = timed(&mut sim, 1_000).into_iter().map(|(at, node, _)| (at / MILLISECOND, node));
    assert!(arrivals.eq([(101, A), (105, C), (105, B), (130, B)]));
}

#[test]
fn the_first_message_makes_the_connection_and_waits_for_it() {
    let mut sim = cluster(1, plain());
    send(&mut sim, A, B, [1, 2]);
    assert_eq!(sim.links(), 1);
    let seen = run(&mut sim, 10);
    let expected = [
        (A, Seen::Up(B, 1)),
        (B, Seen::Up(A, 1)),
        (B, Seen::Message(A, 1)),
        (B, Seen::Message(A, 2)),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_break_loses_a_suffix_tells_both_ends_and_reconnects() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let mut sim = connected(seed, uneven());
        send(&mut sim, A, B, 0..10);
        assert!(sim.inject(Fault::BreakConnection(A, B)));
        assert!(!sim.inject(Fault::BreakConnection(A, B)), "it is broken already");
        send(&mut sim, A, B, [99]);
        let seen = run(&mut sim, 1_000);
        let arrived = numbers(&seen, A, B);
        assert!(
            arrived.iter().copied().eq(0..arrived.len() as u64),
            "a prefix arrives: {arrived:?}"
        );
        lengths.insert(arrived.len());
        for (node, peer) in [(A, B), (B, A)] {
            let notices =
                seen.iter().filter(|(at, seen)| *at == node && !matches!(seen, Seen::Message(..)));
            let notices: Vec<_> = notices.map(|(_, seen)| seen.clone()).collect();
            assert_eq!(notices, [Seen::Down(peer), Seen::Up(peer, 1)]);
        }
        let down = seen
            .iter()
            .position(|(node, seen)| *node == B && *seen == Seen::Down(A))
            .expect("told");
        assert!(
            numbers(&seen[down..], A, B).is_empty(),
            "nothing of the old connection after the notice"
        );
        send(&mut sim, A, B, [100]);
        assert_eq!(numbers(&run(&mut sim, 2_000), A, B), [100]);
    }
    assert!(
        lengths.len() > 5 && lengths.contains(&0) && lengths.contains(&10),
        "cut anywhere: {lengths:?}"
    );
}

#[test]
fn a_crash_loses_what_is_on_the_way_to_the_node() {
    let mut sim = connected(1, plain());
    send(&mut sim, A, B, 0..5);
    sim.inject(Fault::Crash { node: B, power_loss: false });
    sim.inject(Fault::Restart(B));
    let seen = run(&mut sim, 1_000);
    assert!(numbers(&seen, A, B).is_empty());
    assert!(seen.contains(&(A, Seen::Down(B))) && seen.contains(&(A, Seen::Up(B, 2))));
    assert_eq!(sim.stats().lost, 5);
}

#[test]
fn what_a_break_left_on_the_way_does_not_reach_a_new_incarnation() {
    for seed in 0..40 {
        let mut sim = connected(seed, uneven());
        send(&mut sim, A, B, 0..10);
        sim.inject(Fault::BreakConnection(A, B));
        sim.inject(Fault::Crash { node: B, power_loss: false });
        sim.inject(Fault::Restart(B));
        assert!(numbers(&run(&mut sim, 1_000), A, B).is_empty());
    }
}

#[test]
fn a_power_loss_is_noticed_by_time_out_and_a_leave_loses_nothing() {
    let noticed = |fault: Fault| {
        let mut sim = connected(1, plain());
        send(&mut sim, B, A, 0..5);
        sim.inject(fault);
        let seen = timed(&mut sim, 5_000);
        let at = seen
            .iter()
            .find(|(_, node, seen)| *node == A && *seen == Seen::Down(B))
            .expect("noticed")
            .0;
        let seen: Vec<_> = seen.into_iter().map(|(_, node, seen)| (node, seen)).collect();
        (at / MILLISECOND, numbers(&seen, B, A).len())
    };
    assert_eq!(noticed(Fault::Crash { node: B, power_loss: true }).0, 1_100);
    assert!(noticed(Fault::Crash { node: B, power_loss: false }).0 <= 101);
    assert_eq!(noticed(Fault::Leave(B)), (101, 5));
}

#[test]
fn sending_to_a_dead_node_ends_in_a_notice_and_works_after_its_restart() {
    let mut sim = cluster(1, plain());
    sim.inject(Fault::Crash { node: B, power_loss: false });
    send(&mut sim, A, B, [1]);
    assert_eq!(run(&mut sim, 100), [(A, Seen::Down(B))]);
    sim.inject(Fault::Restart(B));
    let seen = run(&mut sim, 200);
    assert_eq!(seen, [(B, Seen::Start), (A, Seen::Up(B, 2)), (B, Seen::Up(A, 1))]);
    send(&mut sim, A, B, [2]);
    assert_eq!(run(&mut sim, 300), [(B, Seen::Message(A, 2))]);
}

#[test]
fn a_node_that_joins_later_is_connected_to_those_who_wanted_it() {
    let mut sim = cluster(1, plain());
    let late = NodeId(3);
    send(&mut sim, A, late, [1]);
    assert_eq!(run(&mut sim, 100), [(A, Seen::Down(late))]);
    assert_eq!(sim.join(), late);
    let seen = run(&mut sim, 200);
    assert_eq!(seen, [(late, Seen::Start), (A, Seen::Up(late, 1)), (late, Seen::Up(A, 1))]);
}

#[test]
fn messages_are_repeated_only_after_a_reconnect_and_only_if_allowed() {
    let arrived = |probability: f64, fault: Option<Fault>| {
        let mut config = plain();
        config.network.repeat_after_reconnect = probability;
        let mut sim = connected(3, config);
        send(&mut sim, A, B, 0..5);
        let mut seen = run(&mut sim, 200);
        if let Some(fault) = fault {
            sim.inject(fault);
            sim.inject(Fault::Restart(B));
        }
        seen.extend(run(&mut sim, 1_000));
        numbers(&seen, A, B)
    };
    let broken = Some(Fault::BreakConnection(A, B));
    assert_eq!(arrived(1.0, None), [0, 1, 2, 3, 4]);
    assert_eq!(arrived(0.0, broken.clone()), [0, 1, 2, 3, 4]);
    let repeated = arrived(1.0, broken);
    assert!(repeated.len() > 5, "{repeated:?}");
    assert!(
        repeated[5..].iter().copied().eq(10 - repeated.len() as u64..5),
        "a suffix, in order: {repeated:?}"
    );
    let restarted = arrived(1.0, Some(Fault::Crash { node: B, power_loss: false }));
    assert_eq!(restarted, [0, 1, 2, 3, 4], "a new incarnation gets nothing of the old");
}

#[test]
fn filters_decide_about_single_messages() {
    let mut sim = connected(1, plain());
    let filter = sim.add_filter(Box::new(|envelope| match envelope.msg.0 {
        1 => Verdict::Lose,
        2 => Verdict::Duplicate,
        3 => Verdict::Delay(10 * MILLISECOND),
        5 => Verdict::Break,
        _ => Verdict::Pass,
    }));
    send(&mut sim, A, B, 0..5);
    let seen = timed(&mut sim, 200);
    let arrivals = seen.iter().map(|(at, _, seen)| (at / MILLISECOND, seen.clone()));
    let message = |number| Seen::Message(A, number);
    // Messages behind a delayed one wait for it.
    let expected = [(101, 0), (101, 2), (101, 2), (111, 3), (111, 4)]
        .map(|(at, number)| (at, message(number)));
    assert!(arrivals.eq(expected));
    send(&mut sim, A, B, 5..8);
    let seen = run(&mut sim, 400);
    assert!(numbers(&seen, A, B).is_empty() && seen.contains(&(B, Seen::Down(A))));
    assert_eq!(sim.fault_counts().get(FaultKind::BreakConnection), 1);
    sim.remove_filter(filter);
    send(&mut sim, A, B, [5]);
    assert_eq!(numbers(&run(&mut sim, 600), A, B), [5]);
}

#[test]
fn a_node_reaches_itself() {
    let mut sim = cluster(1, plain());
    send(&mut sim, A, A, [1]);
    assert_eq!(run(&mut sim, 0), [(A, Seen::Message(A, 1))]);
}
