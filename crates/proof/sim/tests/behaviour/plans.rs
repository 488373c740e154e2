//! Generated fault plans.

use crate::recorder::*;
use lockify_sim::*;
use std::collections::BTreeSet;

fn mix() -> FaultMix {
    let mut mix = FaultMix::all(SECOND, 60 * SECOND);
    mix.weights = FaultKind::ALL.iter().map(|kind| (*kind, 1)).collect();
    mix
}

fn five(seed: u64, config: Config) -> Sim<Recorder> {
    let config = Config { disks: vec![DiskConfig::default()], ..config };
    let mut sim = Sim::new(seed, config, |_| Recorder::default());
    let nodes = sim.join_many(5);
    for from in &nodes {
        for to in &nodes {
            sim.with(*from, |_, cx| cx.connect(*to)).expect("running");
        }
    }
    sim
}

fn plan(sim: &mut Sim<Recorder>, mix: &FaultMix) -> FaultPlan {
    let nodes: Vec<_> = sim.nodes().collect();
    FaultPlan::generate(mix, &nodes, 1, sim.fault_random())
}

#[test]
fn every_kind_happens_and_is_counted_and_all_is_well_in_the_end() {
    let mut sim = five(1, plain());
    let plan = plan(&mut sim, &mix());
    sim.apply_plan(&plan);
    let (reports, _) = sim.run_until(59 * SECOND);
    for kind in FaultKind::ALL {
        let planned =
            plan.entries().iter().filter(|(_, fault)| fault.kind() == Some(*kind)).count() as u64;
        let reported = reports.iter().filter(|report| match &report.event {
            ReportEvent::Fault(fault) => fault.kind() == Some(*kind),
            _ => false,
        });
        let counted = sim.fault_counts().get(*kind);
        assert_eq!(counted, reported.count() as u64);
        assert!(sim.last_fault(*kind).is_some_and(|at| at > SECOND && at < 60 * SECOND));
        assert!(counted > 0 && counted <= planned, "{kind}: {counted} of {planned}");
    }
    sim.run_until(70 * SECOND);
    for node in sim.nodes() {
        assert_eq!(sim.status(node), Some(NodeStatus::Running));
        assert_eq!(sim.clock(node).map(Clock::rate), Some(0));
    }
    let pairs = [0, 1, 2, 3, 4].map(NodeId);
    for from in pairs {
        for to in pairs {
            send(&mut sim, from, to, [1]);
        }
    }
    let seen = run(&mut sim, 71_000);
    let messages = seen.iter().filter(|(_, seen)| matches!(seen, Seen::Message(..)));
    assert_eq!(messages.count(), 25, "every pair is connected and fast again");
}

#[test]
fn faults_keep_to_their_window() {
    let mut sim = five(2, plain());
    let plan = plan(&mut sim, &mix());
    let entries = plan.entries();
    assert!(entries.len() > 300, "{} entries", entries.len());
    assert!(entries.iter().all(|(at, _)| (SECOND..=60 * SECOND).contains(at)));
    assert!(entries.iter().rev().all(|(at, fault)| *at < 60 * SECOND || fault.kind().is_none()));
    assert_eq!(entries.last(), Some(&(60 * SECOND, Fault::HealAll)));
}

#[test]
fn never_more_nodes_are_down_than_allowed() {
    for max_down in [0, 1, 2] {
        let mut sim = five(3, plain());
        let plan = plan(&mut sim, &FaultMix { max_down, ..mix() });
        sim.apply_plan(&plan);
        let mut most = 0;
        while sim.next_report(u64::MAX).is_ok() {
            let down =
                sim.nodes().filter(|node| sim.status(*node) != Some(NodeStatus::Running)).count();
            most = most.max(down);
        }
        assert_eq!(most, max_down);
    }
}

#[test]
fn partitions_come_in_all_shapes() {
    let mut sim = five(4, plain());
    let mix = FaultMix { weights: vec![(FaultKind::Partition, 1)], ..mix() };
    let mut shapes = BTreeSet::new();
    for (_, fault) in plan(&mut sim, &mix).entries() {
        if let Fault::Partition { cut: Cut::Groups(groups), .. } = fault {
            let mut sizes: Vec<_> = groups.iter().map(Vec::len).collect();
            assert_eq!(sizes.iter().sum::<usize>(), 5);
            sizes.sort_unstable();
            shapes.insert(sizes);
        }
    }
    // The last two leave nobody with a majority, or just one.
    let expected = [vec![1, 1, 3], vec![1, 2, 2], vec![1, 4], vec![2, 3]];
    assert!(shapes.into_iter().eq(expected));
}

#[test]
fn the_workload_does_not_change_the_plan() {
    use rand::Rng;
    let mut quiet = five(5, plain());
    let mut busy = five(5, plain());
    busy.workload_random().next_u64();
    send(&mut busy, A, B, 0..100);
    busy.run_until(SECOND);
    assert_eq!(plan(&mut quiet, &mix()), plan(&mut busy, &mix()));
}

#[test]
fn streams_of_one_seed_are_not_the_same() {
    use rand::Rng;
    let mut sim = five(5, plain());
    let machine = sim.with(A, |_, cx| cx.random().next_u64());
    let drawn = [
        machine.expect("running"),
        sim.workload_random().next_u64(),
        sim.fault_random().next_u64(),
    ];
    assert_eq!(BTreeSet::from(drawn).len(), 3);
}

#[test]
fn odd_mixes_make_empty_plans_not_panics() {
    let mut sim = five(6, plain());
    let nodes: Vec<_> = sim.nodes().collect();
    let all_zero = FaultMix { weights: vec![(FaultKind::Crash, 0)], ..mix() };
    let nothing = FaultMix { weights: Vec::new(), ..mix() };
    let backwards = FaultMix { quiet_at: 0, ..mix() };
    for (mix, nodes) in
        [(all_zero, &nodes[..]), (nothing, &nodes), (backwards, &nodes), (mix(), &[])]
    {
        let plan = FaultPlan::generate(&mix, nodes, 0, sim.fault_random());
        assert_eq!(plan.entries(), [(mix.quiet_at, Fault::HealAll)]);
    }
    let zero = FaultMix {
        gap: Delay::Constant(SECOND),
        max_clock_step: u64::MAX,
        max_clock_ppm: i32::MIN,
        max_slow_link: 0,
        max_disk_factor: 0,
        ..mix()
    };
    let plan = FaultPlan::generate(&zero, &nodes, 1, sim.fault_random());
    sim.apply_plan(&plan);
    while sim.next_report(u64::MAX).is_ok() {}
}
