//! Writes of any bytes: a block that is written in part keeps its other bytes, also those that another host writes at the same
//! time.

use lockify_array::{
    ArrayState, Condition, DeviceId, HostAnswer, Layout, OpError, Scheme, Span, Work,
};
use rand::RngExt as _;

use crate::interleavings::{small_mirror, smallest, verdict};
use crate::world::{Bad, World, raid5, raid6};

const SCHEMES: [Scheme; 4] = [
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
    Scheme::DeviceLocking,
    Scheme::TimestampOrdering,
];

fn layouts() -> [Layout; 4] {
    [raid5(), smallest(), small_mirror(), raid6()]
}

fn run(world: &mut World, work: Work) -> Result<HostAnswer, OpError> {
    world.submit(0, work);
    world.run();
    world.done.last().unwrap().result.clone()
}

fn read(world: &mut World, start: u64, count: u64) -> Vec<u8> {
    match run(world, Work::Read { span: Span { start, count } }) {
        Ok(HostAnswer::Read { data }) => data.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn patch(start: u64, data: &'static [u8]) -> Work {
    Work::Patch { start, data: data.into() }
}

/// Each host has its own bytes of every block, as small as a byte, and writes them again and again.
#[test]
fn hosts_that_share_a_block_lose_nothing() {
    for scheme in SCHEMES {
        for layout in layouts() {
            for seed in 0..20 {
                let mut world = World::new(layout, scheme, 3, seed);
                world.doubles = seed % 2 == 1;
                let mut last = vec![0; 16];
                for _ in 0..10 {
                    for (host, part) in [0..1, 1..9, 9..16].into_iter().enumerate() {
                        let work = world.patch(16 + part.start as u64, part.len());
                        let Work::Patch { data, .. } = &work else { unreachable!() };
                        last[part].copy_from_slice(data);
                        world.submit(host, work);
                        for _ in 0..world.random.random_range(0..8) {
                            world.step();
                        }
                    }
                    world.run();
                }
                let case = format!("{scheme} {:?} seed {seed}", layout.redundancy);
                assert_eq!(read(&mut world, 1, 1), last, "{case}");
                assert_eq!(verdict(&world), Ok(()), "{case}");
            }
        }
    }
}

/// The bytes beside those of the write, also in the blocks before and after.
#[test]
fn a_write_of_any_length_from_any_byte_leaves_the_others() {
    for layout in layouts() {
        let mut world = World::new(layout, Scheme::TimestampOrdering, 1, 1);
        let blocks = layout.blocks().min(10);
        let mut model = vec![0; blocks as usize * 16];
        for start in 0..20_u64 {
            for length in [1, 2, 15, 16, 17, 40, 64, 90] {
                if start as usize + length > model.len() {
                    continue;
                }
                let work = world.patch(start, length);
                let Work::Patch { data, .. } = &work else { unreachable!() };
                model[start as usize..start as usize + length].copy_from_slice(data);
                assert_eq!(run(&mut world, work), Ok(HostAnswer::Done));
                assert_eq!(read(&mut world, 0, blocks), model, "{length} bytes from {start}");
            }
        }
        assert_eq!(verdict(&world), Ok(()));
    }
}

/// The device of the block is gone, or that of its parity or copy, or one beside.
#[test]
fn a_patch_needs_no_device_that_redundancy_replaces() {
    for scheme in SCHEMES {
        for layout in layouts() {
            for gone in (0..layout.devices()).map(DeviceId) {
                let mut state = ArrayState::new(layout.devices());
                let mut world = World::with_state(layout, scheme, 1, 1, state.clone());
                let whole = world.write(Span { start: 0, count: layout.blocks() });
                let Work::Write { data, .. } = whole.clone() else { unreachable!() };
                let mut model = data.to_vec();
                assert_eq!(run(&mut world, whole), Ok(HostAnswer::Done));
                state.devices[usize::from(gone.0)] = Condition::Failed;
                (state.epoch.0, state.since.0) = (state.epoch.0 + 1, state.epoch.0 + 1);
                world.dead.insert(gone);
                world.announce_state(0, &state);
                for block in 0..layout.blocks() {
                    let start = block as usize * 16 + 3;
                    model[start..start + 5].copy_from_slice(b"patch");
                    assert_eq!(
                        run(&mut world, patch(start as u64, b"patch")),
                        Ok(HostAnswer::Done)
                    );
                }
                let case = format!("{scheme} {:?} without {gone}", layout.redundancy);
                assert_eq!(read(&mut world, 0, layout.blocks()), model, "{case}");
                assert_eq!(verdict(&world), Ok(()), "{case}");
            }
        }
    }
}

/// Nobody knows the bytes that it would keep.
#[test]
fn a_lost_block_cannot_be_written_in_part() {
    for layout in layouts() {
        let mut world = World::new(layout, Scheme::TimestampOrdering, 1, 1);
        let place = layout.place(1);
        let disk = usize::from(place.device.0);
        world.disks[disk].blocks[place.block as usize].header.lost = true;
        for work in [patch(16, b"start"), patch(27, b"end and more"), patch(20, b"middle")] {
            assert_eq!(run(&mut world, work.clone()), Err(OpError::Lost { block: 1 }), "{work:?}");
        }
        // All of it, and a part of the next one.
        assert_eq!(run(&mut world, patch(16, b"a block, and then some")), Ok(HostAnswer::Done));
        assert_eq!(read(&mut world, 1, 2)[..22], *b"a block, and then some");
        assert_eq!(run(&mut world, patch(20, b"middle")), Ok(HostAnswer::Done));
        assert_eq!(world.verdict(world.hosts[0].state()), Ok(()));
    }
}

/// Parity's mark speaks for a missing unit's block.
#[test]
fn a_lost_block_of_a_missing_unit_cannot_be_written_in_part() {
    let layout = raid5();
    let place = layout.place(3);
    let mut state = ArrayState::new(layout.devices());
    state.devices[usize::from(place.device.0)] = Condition::Failed;
    let mut world = World::with_state(layout, Scheme::TimestampOrdering, 1, 1, state.clone());
    world.dead.insert(place.device);
    let parity = usize::from(layout.parity(0).0);
    world.disks[parity].blocks[place.block as usize].header.lost = true;
    assert_eq!(run(&mut world, patch(3 * 16 + 1, b"x")), Err(OpError::Lost { block: 3 }));
    // The block before it, of the same unit, is not lost.
    assert_eq!(run(&mut world, patch(2 * 16 + 1, b"x")), Ok(HostAnswer::Done));
    assert_eq!(run(&mut world, patch(3 * 16, b"0123456789abcdef")), Ok(HostAnswer::Done));
    assert_eq!(run(&mut world, patch(3 * 16 + 1, b"x")), Ok(HostAnswer::Done));
    assert_eq!(read(&mut world, 3, 1), b"0x23456789abcdef");
    assert_eq!(world.verdict(&state), Ok(()));
}

/// Redundancy has the block; the patch has it repaired.
#[test]
fn an_unreadable_block_is_repaired_before_it_is_written_in_part() {
    for scheme in SCHEMES {
        for layout in layouts() {
            let mut world = World::new(layout, scheme, 1, 1);
            assert_eq!(run(&mut world, patch(16, b"0123456789abcdef")), Ok(HostAnswer::Done));
            let place = layout.place(1);
            let disk = usize::from(place.device.0);
            world.disks[disk].bad.insert(place.block, Bad::UntilWritten);
            assert_eq!(run(&mut world, patch(17, b"x")), Ok(HostAnswer::Done));
            let case = format!("{scheme} {:?}", layout.redundancy);
            assert_eq!(read(&mut world, 1, 1), b"0x23456789abcdef", "{case}");
            assert_eq!(verdict(&world), Ok(()), "{case}");
        }
    }
}

/// The parity's device rejects the try after the data's device has read for it. Meanwhile another host writes the block. The
/// next try must not go on from what the first one has read.
#[test]
fn a_patch_that_starts_again_reads_again() {
    let mut restarted = 0;
    for seed in 0..200 {
        let mut world = World::new(raid5(), Scheme::TimestampOrdering, 2, seed);
        world.submit(0, patch(1, b"first"));
        for _ in 0..world.random.random_range(0..12) {
            world.step();
        }
        world.submit(1, patch(0, b"0123456789abcdef"));
        world.submit(1, patch(16 * 3, b"0123456789abcdef"));
        world.run();
        restarted += u32::from(world.hosts[0].counts().restarts > 0);
        assert_eq!(verdict(&world), Ok(()), "seed {seed}");
    }
    assert!(restarted > 10, "{restarted} of 200");
}

/// A write of less than half a stripe reads what it replaces anyway.
#[test]
fn a_patch_of_a_block_has_the_messages_of_its_write() {
    for scheme in SCHEMES {
        let messages = |work: Work| {
            let mut world = World::new(raid5(), scheme, 1, 1);
            assert_eq!(run(&mut world, work), Ok(HostAnswer::Done));
            world.hosts[0].counts().requests
        };
        let whole = messages(patch(0, b"0123456789abcdef"));
        assert_eq!(messages(patch(1, b"0123456789")), whole, "{scheme}");
    }
}
