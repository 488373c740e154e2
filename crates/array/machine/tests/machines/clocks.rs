//! Hosts whose clocks differ, under timestamp ordering: each gets its turn (docs/design/array.md 2.4).

use lockify_array::{HostAnswer, Scheme, Span, Time};

use crate::world::{MS, World, raid5};

const SPAN: Span = Span { start: 0, count: 1 };

/// Each of two hosts writes the same block again and again. Returns how often each has.
fn turns(world: &mut World) -> [usize; 2] {
    world.done.clear();
    let mut turns = [0; 2];
    for host in 0..2 {
        let write = world.write(SPAN);
        world.submit(host, write);
    }
    while turns.iter().sum::<usize>() < 400 {
        assert!(world.step(), "{}", world.left());
        for done in std::mem::take(&mut world.done) {
            assert_eq!(done.result, Ok(HostAnswer::Done));
            turns[done.host] += 1;
            let write = world.write(SPAN);
            world.submit(done.host, write);
        }
    }
    turns
}

fn world(skew: [Time; 2], seed: u64) -> World {
    let mut world = World::new(raid5(), Scheme::TimestampOrdering, 2, seed);
    world.skew = skew.to_vec();
    world
}

fn are_fair(turns: [usize; 2], what: &str) {
    assert!(turns.iter().all(|turns| *turns >= 100), "{what}: {turns:?}");
}

#[test]
fn a_host_whose_clock_is_behind_gets_its_turns() {
    for seed in 0..10 {
        for behind in [0, 5, 90] {
            let turns = turns(&mut world([0, behind * MS], seed));
            are_fair(turns, &format!("{behind} ms behind, seed {seed}"));
        }
    }
}

/// Devices refused its timestamps, so that it took earlier ones. When its clock is right again, these are too early.
#[test]
fn a_host_whose_clock_was_ahead_gets_its_turns() {
    for seed in 0..10 {
        let mut world = world([900 * MS, 0], seed);
        let write = world.write(SPAN);
        world.submit(0, write);
        world.run();
        world.now += 2_000 * MS;
        world.skew[0] = 0;
        let turns = turns(&mut world);
        are_fair(turns, &format!("seed {seed}"));
    }
}
