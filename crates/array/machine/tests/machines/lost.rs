//! Blocks that are marked lost (docs/design/array.md 3.5) are never returned as data, and are good again when they are written.

use lockify_array::{
    ArrayState, Change, Condition, DeviceId, HostAnswer, Layout, OpError, Scheme, Span, Work,
};

use crate::world::{Bad, World, raid5};

fn mark(world: &mut World, device: DeviceId, block: u64) {
    world.disks[usize::from(device.0)].blocks[block as usize].header.lost = true;
}

fn read(world: &mut World, start: u64, count: u64) -> Result<HostAnswer, OpError> {
    world.submit(0, Work::Read { span: Span { start, count } });
    world.run();
    world.done.last().unwrap().result.clone()
}

fn write(world: &mut World, start: u64, count: u64) {
    let work = world.write(Span { start, count });
    world.submit(0, work);
    world.run();
    assert_eq!(world.done.last().unwrap().result, Ok(HostAnswer::Done));
}

/// An array that goes on without a device, and its state.
fn without(layout: Layout, device: DeviceId) -> (World, ArrayState) {
    let mut state = ArrayState::new(layout.devices());
    state.devices[usize::from(device.0)] = Condition::Failed;
    let mut world = World::with_state(layout, Scheme::TimestampOrdering, 1, 1, state.clone());
    world.dead.insert(device);
    (world, state)
}

#[test]
fn a_lost_block_is_an_error_until_it_is_written() {
    let mut world = World::new(raid5(), Scheme::TimestampOrdering, 1, 1);
    let place = world.layout.place(3);
    mark(&mut world, place.device, place.block);
    assert_eq!(read(&mut world, 0, 8), Err(OpError::Lost { block: 3 }));
    assert!(read(&mut world, 0, 3).is_ok());
    // Writes of others in the stripe, of every kind, leave it as it is.
    for (start, count) in [(2, 1), (4, 4), (4, 2)] {
        write(&mut world, start, count);
        assert_eq!(read(&mut world, 3, 1), Err(OpError::Lost { block: 3 }));
    }
    write(&mut world, 3, 1);
    assert!(read(&mut world, 0, 8).is_ok());
    assert_eq!(world.verdict(&ArrayState::new(5)), Ok(()));
}

/// The device with the block is missing: parity's mark speaks for it.
#[test]
fn a_lost_block_of_a_missing_unit_is_an_error_until_it_is_written() {
    let layout: Layout = raid5();
    let place = layout.place(3);
    let (mut world, state) = without(layout, place.device);
    mark(&mut world, layout.parity(0), place.block);
    assert_eq!(read(&mut world, 2, 2), Err(OpError::Lost { block: 3 }));
    // Beside it, and the other block of its unit: the mark stays.
    for (start, count) in [(4, 4), (1, 1), (2, 1), (1, 2)] {
        write(&mut world, start, count);
        assert_eq!(read(&mut world, 3, 1), Err(OpError::Lost { block: 3 }), "{start} {count}");
    }
    assert!(read(&mut world, 4, 4).is_ok());
    write(&mut world, 3, 1);
    assert!(read(&mut world, 0, 8).is_ok());
    assert_eq!(world.verdict(&state), Ok(()));
}

/// A block was given up while parity could not be read. Parity can be read again, and has that block's former content. So it does not
/// yield a missing block, and others' writes do not hide that.
#[test]
fn parity_that_has_missed_a_loss_yields_nothing() {
    let layout: Layout = raid5();
    let (missing, lost) = (layout.place(3), layout.place(1));
    for before in [None, Some((7, 1)), Some((4, 4)), Some((3, 1))] {
        let (mut world, state) = without(layout, missing.device);
        write(&mut world, 0, 8);
        mark(&mut world, lost.device, lost.block);
        if let Some((start, count)) = before {
            write(&mut world, start, count);
        }
        match before {
            // The missing block has been written anew.
            Some((3, 1)) => assert!(read(&mut world, 3, 1).is_ok()),
            _ => assert_eq!(read(&mut world, 3, 1), Err(OpError::Lost { block: 3 }), "{before:?}"),
        }
        write(&mut world, 0, 8);
        assert!(read(&mut world, 0, 8).is_ok());
        assert_eq!(world.verdict(&state), Ok(()));
    }
}

/// Parity's record is all that a repair changes: it names the lost block, and is still that of a host's write. The restarted device
/// takes it from the repair (docs/design/array.md 3.1.4).
#[test]
fn a_suspect_stripe_with_a_lost_block_is_repaired_under_every_scheme() {
    for scheme in [Scheme::ServerLocking, Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        let mut world = World::new(raid5(), scheme, 1, 1);
        write(&mut world, 0, 8);
        let (place, parity) = (world.layout.place(3), world.layout.parity(0));
        mark(&mut world, place.device, place.block);
        world.restart_device(parity);
        assert!(world.devices[usize::from(parity.0)].suspects_stripe(0), "{scheme}");
        write(&mut world, 4, 1);
        assert_eq!(read(&mut world, 3, 1), Err(OpError::Lost { block: 3 }), "{scheme}");
        let record = &world.disks[usize::from(parity.0)].blocks[place.block as usize].header;
        assert!(record.lost_data.has(usize::from(place.data_unit)), "{scheme}");
    }
}

/// Parity names the missing block. A write of a part of it would keep the zeros that stand for its content.
#[test]
fn a_part_of_a_lost_block_of_a_missing_unit_is_not_written() {
    let layout: Layout = raid5();
    let place = layout.place(3);
    let (mut world, _) = without(layout, place.device);
    let parity = &mut world.disks[usize::from(layout.parity(0).0)].blocks[place.block as usize];
    parity.header.lost_data = parity.header.lost_data.with(usize::from(place.data_unit));
    let patch = world.patch(3 * u64::from(layout.block_size) + 1, 4);
    world.submit(0, patch);
    world.run();
    assert_eq!(world.done.last().unwrap().result, Err(OpError::Lost { block: 3 }));
    assert_eq!(read(&mut world, 3, 1), Err(OpError::Lost { block: 3 }));
}

/// A rebuild marks the block, and its parity is good again: the next block that fails is made of the others.
#[test]
fn a_rebuilt_stripe_with_a_lost_block_bears_another_failure() {
    let layout: Layout = raid5();
    let gone = layout.place(3).device;
    for scheme in [Scheme::ServerLocking, Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        let mut world = World::new(layout, scheme, 1, 1);
        write(&mut world, 0, 8);
        let run = |world: &mut World, work: Work| {
            world.submit(0, work);
            world.run();
            world.done.last().unwrap().result.clone()
        };
        let change = |change| Work::Change { change };
        world.dead.insert(gone);
        assert_eq!(run(&mut world, change(Change::Fail(gone, 0))), Ok(HostAnswer::Done));
        mark(&mut world, layout.parity(0), layout.place(3).block);
        world.dead.remove(&gone);
        world.replace(gone);
        assert_eq!(run(&mut world, change(Change::Rebuild(gone))), Ok(HostAnswer::Done));
        let rebuilt = run(&mut world, Work::Rebuild { device: gone, stripe: 0 });
        assert_eq!(rebuilt, Ok(HostAnswer::Rebuilt { lost: 1, marked: 1 }), "{scheme}");
        for stripe in 1..layout.stripes {
            run(&mut world, Work::Rebuild { device: gone, stripe }).unwrap();
        }
        let done = world.hosts[0].state().rebuilt(gone, u64::MAX);
        assert_eq!(run(&mut world, change(done)), Ok(HostAnswer::Done), "{scheme}");
        // The other block of that column, in the first data unit.
        let other = layout.place(1);
        let bad = &mut world.disks[usize::from(other.device.0)].bad;
        bad.insert(other.block, Bad::UntilWritten);
        let repair = run(&mut world, Work::Scrub { stripe: 0, repair: true });
        assert_eq!(repair, Ok(HostAnswer::Scrubbed { mismatches: 1, lost: 1 }), "{scheme}");
        assert!(read(&mut world, 0, 3).is_ok(), "{scheme}");
        assert_eq!(read(&mut world, 3, 1), Err(OpError::Lost { block: 3 }), "{scheme}");
    }
}
