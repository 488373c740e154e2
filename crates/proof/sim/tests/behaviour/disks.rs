//! Disks under the engine.

use crate::recorder::*;
use lockify_sim::*;

const D: DiskId = DiskId(0);

fn with_disk(seed: u64) -> Sim<Recorder> {
    let disk = DiskConfig {
        sector_size: 1,
        sectors: 1_000,
        queue_depth: 1,
        read: Delay::Constant(MILLISECOND),
        write: Delay::Constant(MILLISECOND),
        flush: Delay::Constant(MILLISECOND),
        bandwidth: None,
    };
    cluster(seed, Config { disks: vec![disk], ..plain() })
}

fn write(sim: &mut Sim<Recorder>, sector: u64, data: &[u8], tag: u64) {
    sim.with(A, |_, cx| cx.write(D, sector, data.to_vec(), tag)).expect("running");
}

fn read(sim: &mut Sim<Recorder>, until: u64) -> Vec<u8> {
    sim.with(A, |_, cx| cx.read(D, 0, 4, 99)).expect("running");
    let seen = run(sim, until);
    let data = seen.into_iter().find_map(|(_, seen)| match seen {
        Seen::Disk(99, result) => Some(result.expect("read")),
        _ => None,
    });
    data.expect("completed")
}

#[test]
fn operations_queue_and_complete() {
    let mut sim = with_disk(1);
    write(&mut sim, 0, &[1, 2], 10);
    write(&mut sim, 2, &[3], 11);
    sim.with(A, |_, cx| cx.flush(D, 12)).expect("running");
    sim.with(A, |_, cx| cx.read(DiskId(7), 0, 1, 13)).expect("running");
    let seen: Vec<_> =
        timed(&mut sim, 10).into_iter().map(|(at, _, seen)| (at / MILLISECOND, seen)).collect();
    let done = |tag| Seen::Disk(tag, Ok(Vec::new()));
    let no_disk = Seen::Disk(13, Err(DiskError::NoDisk));
    assert_eq!(seen, [(0, no_disk), (1, done(10)), (2, done(11)), (3, done(12))]);
    assert_eq!(read(&mut sim, 20), [1, 2, 3, 0]);
}

#[test]
fn a_crash_ends_operations_without_completion_and_power_loss_drops_the_cache() {
    let mut kept = [0; 2];
    for seed in 0..40 {
        for (power_loss, kept) in [false, true].into_iter().zip(&mut kept) {
            let mut sim = with_disk(seed);
            write(&mut sim, 0, &[1], 10);
            sim.with(A, |_, cx| cx.flush(D, 11)).expect("running");
            write(&mut sim, 1, &[2], 12);
            run(&mut sim, 3);
            write(&mut sim, 2, &[3], 13);
            sim.inject(Fault::Crash { node: A, power_loss });
            sim.inject(Fault::Restart(A));
            assert_eq!(
                run(&mut sim, 10),
                [(A, Seen::Start)],
                "no completion for the next incarnation"
            );
            let data = read(&mut sim, 20);
            assert_eq!(data[0], 1, "flushed");
            *kept += u32::from(data[1] == 2);
        }
    }
    assert_eq!(kept[0], 40, "without power loss a completed write stays");
    assert!((5..35).contains(&kept[1]), "with power loss it may be lost: {kept:?}");
}

#[test]
fn faults_show_in_the_completions_and_slow_disks_are_slow() {
    let mut sim = with_disk(1);
    let set = |fault| Fault::Disk { node: A, disk: D, fault };
    assert!(sim.inject(set(DiskFault::Error)));
    write(&mut sim, 0, &[1], 1);
    assert_eq!(run(&mut sim, 5), [(A, Seen::Disk(1, Err(DiskError::Io)))]);
    assert!(sim.inject(set(DiskFault::Full)));
    write(&mut sim, 0, &[1], 2);
    assert_eq!(run(&mut sim, 10), [(A, Seen::Disk(2, Err(DiskError::Full)))]);
    assert!(sim.inject(set(DiskFault::Slow(20))));
    write(&mut sim, 0, &[1], 3);
    assert_eq!(timed(&mut sim, 100), [(30 * MILLISECOND, A, Seen::Disk(3, Ok(Vec::new())))]);
    assert!(sim.inject(Fault::HealAll));
    assert!(!sim.inject(set(DiskFault::None)), "healed already");
    let missing = Fault::Disk { node: A, disk: DiskId(1), fault: DiskFault::Error };
    assert!(!sim.inject(missing.clone()), "no such disk");
    assert_eq!(sim.add_disk(A, DiskConfig::default()), Some(DiskId(1)));
    assert!(sim.inject(missing));
}

#[test]
fn a_node_that_is_down_can_get_another_disk_or_an_older_copy_of_its_own() {
    let mut sim = with_disk(1);
    write(&mut sim, 0, &[1], 10);
    sim.with(A, |_, cx| cx.flush(D, 11)).expect("running");
    run(&mut sim, 5);
    let copy = sim.copy_disk(A, D).expect("there is one");
    write(&mut sim, 0, &[2], 12);
    sim.with(A, |_, cx| cx.flush(D, 13)).expect("running");
    run(&mut sim, 10);
    assert!(!sim.replace_disk(A, D, copy.clone()), "a node that runs keeps its disk");
    for (disk, content) in [(copy, 1), (DiskCopy::default(), 0)] {
        sim.inject(Fault::Crash { node: A, power_loss: true });
        assert!(sim.replace_disk(A, D, disk));
        sim.inject(Fault::Restart(A));
        let until = sim.now() / MILLISECOND + 5;
        assert_eq!(read(&mut sim, until)[0], content);
    }
}
