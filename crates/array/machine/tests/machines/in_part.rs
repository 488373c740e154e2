//! Writes of which devices have refused a part. What they have left must not be hidden, and must not come back over newer writes.

use lockify_array::message::{Action, Request};
use lockify_array::{Change, DeviceId, HostAnswer, OpError, Scheme, Span, Work};

use crate::world::{Bad, Flight, World, raid5};

fn run(world: &mut World, host: usize, work: Work) -> Result<HostAnswer, OpError> {
    world.submit(host, work);
    world.run();
    world.done.last().expect("it was answered").result.clone()
}

fn read(world: &mut World, host: usize, start: u64) -> Result<HostAnswer, OpError> {
    run(world, host, Work::Read { span: Span { start, count: 1 } })
}

/// A device of the group is missing. Another one restarts and refuses its part of a write of several stripes, so that the write
/// fails. In one of these stripes, only parity has got it. Another host's read-modify-write continues from that parity. Parity then
/// yields nothing for the missing unit.
#[test]
fn a_write_that_fails_leaves_no_parity_that_others_continue_from() {
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        for seed in 0..20 {
            let case = format!("{scheme}, seed {seed}");
            let mut world = World::new(raid5(), scheme, 3, seed);
            world.gossip = true;
            let whole = Span { start: 0, count: 24 };
            let work = world.write(whole);
            assert_eq!(run(&mut world, 0, work), Ok(HostAnswer::Done));
            let old = read(&mut world, 0, 22);
            let missing = DeviceId(1);
            world.dead.insert(missing);
            let change = Change::Fail(missing, 0);
            assert_eq!(run(&mut world, 2, Work::Change { change }), Ok(HostAnswer::Done));
            // It has a unit of the first stripe, and the first one of the third.
            let restarts = DeviceId(3);
            let work = world.write(Span { start: 6, count: 12 });
            world.submit(1, work);
            let second = world.layout.unit_start(1);
            // It gets the second stripe's parity, so that it knows after its restart that it was written.
            let writes = |flight: &Flight, to: DeviceId| match flight {
                Flight::Request(
                    1,
                    device,
                    Request { action: Action::Write { blocks, .. }, .. },
                ) => *device == to && blocks.extent.start != second,
                _ => false,
            };
            // Parity of the third stripe.
            let parity = usize::from(world.layout.parity(2).0);
            let block = world.layout.unit_start(2) as usize;
            let before = world.disks[parity].blocks[block].header.stamp;
            while world.disks[parity].blocks[block].header.stamp == before {
                world.flights.retain(|flight| !writes(flight, restarts));
                assert!(world.step(), "{case}");
            }
            // All else comes, and no time passes.
            loop {
                world.flights.retain(|flight| !writes(flight, restarts));
                if world.flights.is_empty() {
                    break;
                }
                world.step();
            }
            world.restart_device(restarts);
            world.run();
            let failed = world.done.last().unwrap().result.clone();
            assert!(matches!(failed, Err(OpError::Lost { .. })), "{case}: {failed:?}");
            // The second data unit of the third stripe, as a whole: records of other blocks would tell.
            let work = world.write(Span { start: 18, count: 2 });
            assert_eq!(run(&mut world, 2, work), Ok(HostAnswer::Done), "{case}");
            let found = read(&mut world, 0, 22);
            let lost = Err(OpError::Lost { block: 22 });
            assert!(found == old || found == lost, "{case}: {found:?}, and not {old:?}");
        }
    }
}

/// Parity's device restarts and cannot read its block, so that it refuses a write. Others see the write's data, and come over it. It is
/// done then: another try would bring it back.
#[test]
fn a_write_that_others_have_come_over_is_not_done_again() {
    for seed in 0..100 {
        let mut world = World::new(raid5(), Scheme::TimestampOrdering, 3, seed);
        world.gossip = true;
        let work = world.write(Span { start: 0, count: 8 });
        assert_eq!(run(&mut world, 0, work), Ok(HostAnswer::Done));
        let (data, parity) = (world.layout.place(6).device, world.layout.parity(0));
        let commits = |flight: &Flight| match flight {
            Flight::Request(0, device, Request { action: Action::Commit(_), .. }) => {
                *device == parity
            }
            _ => false,
        };
        let work = world.write(Span { start: 6, count: 1 });
        let Work::Write { data: first, .. } = &work else { panic!() };
        let first = first.clone();
        world.submit(0, work);
        while world.disks[usize::from(data.0)].blocks[0].data != first {
            world.flights.retain(|flight| !commits(flight));
            assert!(world.step(), "seed {seed}");
        }
        for _ in 0..50 {
            world.flights.retain(|flight| !commits(flight));
            world.step();
        }
        assert_eq!(read_one(&mut world, 6), first, "seed {seed}");
        world.disks[usize::from(parity.0)].bad.insert(0, Bad::UntilWritten);
        world.restart_device(parity);
        let work = world.write(Span { start: 6, count: 1 });
        let Work::Write { data: second, .. } = &work else { panic!() };
        let second = second.clone();
        world.submit(1, work);
        world.run();
        assert!(world.done.iter().all(|done| done.result.is_ok()), "seed {seed}");
        assert_eq!(read_one(&mut world, 6), second, "seed {seed}");
        let state = world.hosts[0].state().clone();
        assert_eq!(world.inconsistent_stripes(&state), [0; 0], "seed {seed}");
    }
}

/// A block, as a host reads it while others work.
fn read_one(world: &mut World, block: u64) -> bytes::Bytes {
    world.submit(2, Work::Read { span: Span { start: block, count: 1 } });
    loop {
        let done = world.done.iter().rfind(|done| done.host == 2);
        if let Some(Ok(HostAnswer::Read { data })) = done.map(|done| &done.result) {
            let data = data.clone();
            world.done.retain(|done| done.host != 2);
            return data;
        }
        assert!(world.step(), "it is not answered");
    }
}

/// Of a write of two units of the first stripe, the second one is there, and another host has read it. Some devices do not get their
/// parts.
fn part_that_others_have_read(world: &mut World, held_back: &[DeviceId]) {
    let work = world.write(Span { start: 0, count: 8 });
    assert_eq!(run(world, 0, work), Ok(HostAnswer::Done));
    let data = world.layout.place(6).device;
    let commits = |flight: &Flight| match flight {
        Flight::Request(0, device, Request { action: Action::Commit(_), .. }) => {
            held_back.contains(device)
        }
        _ => false,
    };
    let work = world.write(Span { start: 4, count: 4 });
    let Work::Write { data: first, .. } = &work else { panic!() };
    let first = first.slice(32..48);
    world.submit(0, work);
    while world.disks[usize::from(data.0)].blocks[0].data != first {
        world.flights.retain(|flight| !commits(flight));
        assert!(world.step());
    }
    for _ in 0..50 {
        world.flights.retain(|flight| !commits(flight));
        world.step();
    }
    assert_eq!(read_one(world, 6), first);
}

/// In the end, the second unit has what came over the write.
fn second_unit_has(world: &mut World, newer: &bytes::Bytes, case: &str) {
    world.disks.iter_mut().for_each(|disk| disk.bad.clear());
    let found = read(world, 2, 6);
    assert_eq!(found, Ok(HostAnswer::Read { data: newer.clone() }), "{case}");
}

/// The device of one unit leaves in the middle of a write, so that only parity has its block. Then parity cannot be read. The write is not
/// done again: others have come over the other unit.
#[test]
fn a_write_whose_parity_cannot_be_read_does_not_come_over_newer_ones() {
    for seed in 0..50 {
        let case = format!("seed {seed}");
        let mut world = World::new(raid5(), Scheme::TimestampOrdering, 3, seed);
        let (leaves, parity) = (world.layout.place(4).device, world.layout.parity(0));
        part_that_others_have_read(&mut world, &[leaves]);
        world.dead.insert(leaves);
        world.submit(2, Work::Change { change: Change::Fail(leaves, 0) });
        while world.done.iter().all(|done| done.host != 2) {
            assert!(world.step(), "{case}");
        }
        world.disks[usize::from(parity.0)].bad.extend([(0, Bad::Unreadable), (1, Bad::Unreadable)]);
        let state = world.hosts[2].state().clone();
        world.announce_state(1, &state);
        // All of the stripe's other units, which needs no parity that is there.
        let work = world.write(Span { start: 0, count: 8 });
        let Work::Write { data, .. } = &work else { panic!() };
        let newer = data.slice(96..112);
        world.submit(1, work);
        while world.done.iter().all(|done| done.host != 1) {
            assert!(world.step(), "{case}");
        }
        world.announce_state(0, &state);
        world.run();
        second_unit_has(&mut world, &newer, &case);
    }
}

/// The devices of the other unit and of parity start again, refuse their parts of a write, and cannot read their blocks. So no repair
/// completes that write.
#[test]
fn a_write_that_no_repair_completes_does_not_come_over_newer_ones() {
    for seed in 0..50 {
        let case = format!("seed {seed}");
        let mut world = World::new(raid5(), Scheme::TimestampOrdering, 3, seed);
        world.gossip = true;
        let restart = [world.layout.place(4).device, world.layout.parity(0)];
        part_that_others_have_read(&mut world, &restart);
        for device in restart {
            world.disks[usize::from(device.0)].bad.insert(0, Bad::UntilWritten);
            world.restart_device(device);
        }
        let work = world.write(Span { start: 0, count: 8 });
        let Work::Write { data, .. } = &work else { panic!() };
        let newer = data.slice(96..112);
        world.submit(1, work);
        world.run();
        let written = world.done.iter().rfind(|done| done.host == 1).unwrap();
        assert_eq!(written.result, Ok(HostAnswer::Done), "{case}");
        second_unit_has(&mut world, &newer, &case);
    }
}
