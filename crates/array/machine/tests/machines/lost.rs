//! Blocks that are marked lost (docs/design/array.md 3.5) are never returned as data, and are good again when they are written.

use lockify_array::{
    ArrayState, Condition, DeviceId, HostAnswer, Layout, OpError, Scheme, Span, Work,
};

use crate::world::{World, raid5};

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
    let mut state = ArrayState::new(layout.devices());
    state.devices[usize::from(place.device.0)] = Condition::Failed;
    let mut world = World::with_state(layout, Scheme::TimestampOrdering, 1, 1, state.clone());
    world.dead.insert(place.device);
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
