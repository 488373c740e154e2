//! Media that lose what they have acknowledged, return zeros, or fail at single blocks.

use bytes::Bytes;
use lockify_array::message::Action;
use lockify_array::{
    ArrayState, Block, Change, DeviceConfig, DeviceId, Header, HostAnswer, HostConfig, Layout,
    OpError, Redundancy, Scheme, Span, Work,
};

use crate::world::{Bad, Flight, MS, World, life, raid5, raid6};

const SCHEMES: [Scheme; 4] = [
    Scheme::TimestampOrdering,
    Scheme::DeviceLocking,
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
];

fn layouts() -> [Layout; 3] {
    let mirror = Layout { redundancy: Redundancy::Mirror, data: 1, groups: 2, ..raid5() };
    [raid5(), mirror, raid6()]
}

fn run(world: &mut World, work: Work) -> Result<HostAnswer, OpError> {
    world.submit(0, work);
    world.run();
    world.done.last().expect("it was answered").result.clone()
}

fn write(world: &mut World, start: u64, count: u64) {
    let work = world.write(Span { start, count });
    assert_eq!(run(world, work), Ok(HostAnswer::Done));
}

fn read(world: &mut World, start: u64, count: u64) -> Result<Bytes, OpError> {
    match run(world, Work::Read { span: Span { start, count } })? {
        HostAnswer::Read { data } => Ok(data),
        other => panic!("{other:?}"),
    }
}

/// An array in which each block has been written twice, by operations of several blocks and of one, and its content.
fn filled(layout: Layout, scheme: Scheme, seed: u64) -> (World, Bytes) {
    fill(World::new(layout, scheme, 2, seed))
}

fn fill(mut world: World) -> (World, Bytes) {
    let layout = world.layout;
    world.gossip = true;
    write(&mut world, 0, layout.blocks());
    for start in (0..layout.blocks()).step_by(3) {
        write(&mut world, start, 2.min(layout.blocks() - start));
    }
    let content = read(&mut world, 0, layout.blocks()).unwrap();
    forget(&mut world);
    (world, content)
}

/// Devices forget what they have written.
fn forget(world: &mut World) {
    for _ in 0..3 {
        world.now += world.configs[0].remember;
        for device in 0..world.devices.len() {
            let now = world.now;
            world.devices[device].handle(now, lockify_array::DeviceInput::Tick);
        }
        world.collect();
        world.run();
    }
}

fn never_written(layout: &Layout) -> Block {
    Block { header: Header::default(), data: vec![0; layout.block_size as usize].into() }
}

/// Each block of each device, one after the other, is zeros or what it was before. A scrub that repairs gives it back, or says
/// that it cannot know, and leaves everything as it is.
#[test]
fn a_repair_goes_towards_the_newer_side_or_leaves_everything() {
    let (mut given_back, mut left) = (0, 0);
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        let (mut world, content) = filled(layout, scheme, 3);
        let older = filled(layout, scheme, 4).0;
        for (device, number) in (0..layout.devices())
            .flat_map(|device| (0..layout.device_blocks()).map(move |number| (device, number)))
        {
            let old = older.disks[usize::from(device)].blocks[number as usize].clone();
            let header = Header { stamp: lockify_array::Stamp { time: 1, host: 0 }, ..old.header };
            let data: Bytes = vec![0x77; layout.block_size as usize].into();
            for lost in [never_written(&layout), Block { header, data }] {
                let before: Vec<_> = world.disks.iter().map(|disk| disk.blocks.clone()).collect();
                world.disks[usize::from(device)].blocks[number as usize] = lost;
                let stripe = layout.stripe_of(DeviceId(device), number).unwrap();
                let damaged: Vec<_> = world.disks.iter().map(|disk| disk.blocks.clone()).collect();
                match run(&mut world, Work::Scrub { stripe, repair: true }) {
                    Ok(HostAnswer::Scrubbed { mismatches: 1, lost: 0 }) => given_back += 1,
                    Ok(HostAnswer::Undecided { mismatches: 1, lost: 0, undecided: 1 }) => {
                        left += 1;
                        let now = world.disks.iter().map(|disk| disk.blocks.clone());
                        assert!(now.eq(damaged), "{scheme} {device} {number}");
                        for (disk, blocks) in world.disks.iter_mut().zip(before) {
                            disk.blocks = blocks;
                        }
                    }
                    other => panic!("{scheme} {device} {number}: {other:?}"),
                }
                let found = read(&mut world, 0, layout.blocks()).unwrap();
                assert_eq!(found, content, "{scheme} {device} {number}");
            }
        }
        let state = world.hosts[0].state().clone();
        assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme}");
    }
    assert!(given_back > 200 && left > 10, "{given_back} {left}");
}

/// An operation that reads several blocks of a stripe sees that one of them is too old.
#[test]
fn an_operation_that_sees_a_newer_record_has_the_block_repaired() {
    for scheme in SCHEMES {
        let (mut world, content) = filled(raid5(), scheme, 5);
        let layout = world.layout;
        write(&mut world, 0, 8);
        forget(&mut world);
        let anew = read(&mut world, 0, 8).unwrap();
        let place = layout.place(3);
        world.disks[usize::from(place.device.0)].blocks[place.block as usize] =
            never_written(&layout);
        assert_eq!(read(&mut world, 0, 8).unwrap(), anew, "{scheme}");
        // A read-modify-write would take the difference to the zeros along.
        let place = layout.place(5);
        world.disks[usize::from(place.device.0)].blocks[place.block as usize] =
            never_written(&layout);
        write(&mut world, 5, 1);
        let found = read(&mut world, 0, layout.blocks()).unwrap();
        let size = layout.block_size as usize;
        assert_eq!(found[..5 * size], anew[..5 * size], "{scheme}");
        assert_eq!(found[6 * size..8 * size], anew[6 * size..], "{scheme}");
        assert_eq!(found[8 * size..], content[8 * size..], "{scheme}");
        let state = world.hosts[0].state().clone();
        assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme}");
    }
}

/// A device knows what it has written of late, so that even a read of one block does not return anything else.
#[test]
fn a_read_of_one_block_that_was_just_written_does_not_return_an_older_one() {
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        let host =
            |id| HostConfig::new(life(id), scheme, layout, ArrayState::new(layout.devices()));
        let device = |id| DeviceConfig {
            remember: 600_000 * MS,
            ..DeviceConfig::new(DeviceId(id), scheme, layout)
        };
        let devices = (0..layout.devices()).map(device).collect();
        let (mut world, _) = fill(World::of(vec![host(0)], devices, 6));
        let place = layout.place(1);
        let disk = usize::from(place.device.0);
        let before = world.disks[disk].blocks[place.block as usize].clone();
        write(&mut world, 1, 1);
        let written = read(&mut world, 1, 1).unwrap();
        for lost in [before, never_written(&layout)] {
            world.disks[disk].blocks[place.block as usize] = lost;
            assert_eq!(read(&mut world, 1, 1).unwrap(), written, "{scheme}");
        }
        assert!(world.devices[disk].medium().lost_writes >= 2);
    }
}

#[test]
fn an_unreadable_block_is_written_anew() {
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        for block in 0..layout.blocks() {
            let (mut world, content) = filled(layout, scheme, block);
            let place = layout.place(block);
            let disk = usize::from(place.device.0);
            world.disks[disk].bad.insert(place.block, Bad::UntilWritten);
            let size = layout.block_size as usize;
            let wanted = content.slice(block as usize * size..(block as usize + 1) * size);
            assert_eq!(read(&mut world, block, 1).unwrap(), wanted, "{scheme} {block}");
            assert!(world.disks[disk].bad.is_empty() && world.broken.is_empty());
            let counts = world.devices[disk].medium();
            assert_eq!((counts.errors, counts.unreadable, counts.rewritten), (2, 0, 1));
        }
    }
}

/// The array goes on without the device after a few attempts, and all is there.
#[test]
fn a_block_that_stays_bad_costs_the_device_and_nothing_else() {
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        for bad in [Bad::Unreadable, Bad::Dead, Bad::LosesWrites] {
            for writes in [false, true] {
                let case = format!("{scheme} {bad:?} {writes} {:?}", layout.redundancy);
                let (mut world, content) = filled(layout, scheme, 7);
                let place = layout.place(2);
                let device = place.device;
                world.disks[usize::from(device.0)].bad.insert(place.block, bad);
                let work = match writes {
                    true => world.write(Span { start: 2, count: 1 }),
                    false => Work::Read { span: Span { start: 2, count: 1 } },
                };
                let written = match &work {
                    Work::Write { data, .. } => Some(data.clone()),
                    _ => None,
                };
                world.submit(0, work);
                // Not for ever: a device that has given up waits for the array to go on without it.
                for _ in 0..20_000 {
                    if world.broken.contains(&device) || world.submitted.is_empty() {
                        break;
                    }
                    world.step();
                }
                // Later operations meet the bad block, if this one has not.
                for _ in 0..4 {
                    if world.submitted.is_empty() && !world.broken.contains(&device) {
                        world.submit(0, Work::Scrub { stripe: place.stripe, repair: true });
                        for _ in 0..20_000 {
                            if world.broken.contains(&device) || world.submitted.is_empty() {
                                break;
                            }
                            world.step();
                        }
                    }
                }
                if bad == Bad::LosesWrites && !writes {
                    assert!(world.submitted.is_empty(), "{case}");
                    continue;
                }
                assert!(world.broken.contains(&device), "{case}: {}", world.left());
                world.submit(1, Work::Change { change: Change::Fail(device, 0) });
                world.run();
                let found = read(&mut world, 0, layout.blocks()).unwrap();
                let size = layout.block_size as usize;
                assert_eq!(found[..2 * size], content[..2 * size], "{case}");
                assert_eq!(found[3 * size..], content[3 * size..], "{case}");
                let wanted = written.unwrap_or_else(|| content.slice(2 * size..3 * size));
                assert_eq!(found[2 * size..3 * size], wanted, "{case}");
            }
        }
    }
}

/// Where redundancy is gone the operation is an error soon, and everything else goes on.
#[test]
fn a_bad_block_without_redundancy_is_an_error_in_bounded_time() {
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        for bad in [Bad::UntilWritten, Bad::Unreadable, Bad::Dead] {
            let case = format!("{scheme} {bad:?} {:?}", layout.redundancy);
            let (mut world, content) = filled(layout, scheme, 8);
            let place = layout.place(2);
            for gone in layout.beside(place.device).take(layout.parities().into()) {
                world.dead.insert(gone);
                let change = Change::Fail(gone, 0);
                assert_eq!(run(&mut world, Work::Change { change }), Ok(HostAnswer::Done));
            }
            forget(&mut world);
            world.disks[usize::from(place.device.0)].bad.insert(place.block, bad);
            for _ in 0..2 {
                let found = read(&mut world, 2, 1);
                assert_eq!(found, Err(OpError::Medium { block: 2 }), "{case}");
            }
            assert!(world.broken.is_empty(), "{case}");
            if bad == Bad::Dead {
                let work = world.write(Span { start: 2, count: 1 });
                let found = run(&mut world, work);
                assert!(matches!(found, Err(OpError::Medium { .. })), "{case}: {found:?}");
            }
            let size = layout.block_size as usize;
            let block = layout.blocks() - 1;
            let wanted = content.slice(block as usize * size..);
            assert_eq!(read(&mut world, block, 1).unwrap(), wanted, "{case}");
            // If the medium returns it after all, nothing is lost.
            world.disks[usize::from(place.device.0)].bad.clear();
            if bad != Bad::Dead {
                let found = read(&mut world, 0, layout.blocks()).unwrap();
                assert_eq!(found, content, "{case}");
            }
        }
    }
}

/// Parity names the block as lost, so that a repair has nothing to do there. An operation that meets it is an error soon all the same.
#[test]
fn a_lost_block_that_cannot_be_read_is_an_error_in_bounded_time() {
    for (scheme, layout) in
        SCHEMES.into_iter().flat_map(|s| [raid5(), raid6()].map(|layout| (s, layout)))
    {
        let case = format!("{scheme} {:?}", layout.redundancy);
        let mut world = World::new(layout, scheme, 2, 8);
        let place = layout.place(2);
        let disk = usize::from(place.device.0);
        world.disks[disk].blocks[place.block as usize].header.lost = true;
        let scrubbed = run(&mut world, Work::Scrub { stripe: place.stripe, repair: true });
        assert_eq!(scrubbed, Ok(HostAnswer::Scrubbed { mismatches: 0, lost: 1 }), "{case}");
        for gone in layout.beside(place.device).take(layout.parities().into()) {
            world.dead.insert(gone);
            let change = Change::Fail(gone, 0);
            assert_eq!(run(&mut world, Work::Change { change }), Ok(HostAnswer::Done));
        }
        world.disks[disk].bad.insert(place.block, Bad::Unreadable);
        for _ in 0..2 {
            assert_eq!(read(&mut world, 2, 1), Err(OpError::Medium { block: 2 }), "{case}");
        }
        let patch = world.patch(2 * u64::from(layout.block_size) + 1, 4);
        assert_eq!(run(&mut world, patch), Err(OpError::Medium { block: 2 }), "{case}");
        assert!(world.broken.is_empty(), "{case}");
        world.disks[disk].bad.clear();
        assert_eq!(read(&mut world, 2, 1), Err(OpError::Lost { block: 2 }), "{case}");
        write(&mut world, 2, 1);
        assert!(read(&mut world, 0, layout.blocks()).is_ok(), "{case}");
    }
}

/// An older write comes behind a newer one that the medium has not taken, before and after the medium says so. Nobody has written the
/// older one, so that it is an error.
#[test]
fn a_write_is_not_done_because_a_newer_one_was_not_taken() {
    for (later, seed) in (0..20).map(|seed| (seed % 2 == 0, seed)) {
        let case = format!("later {later}, seed {seed}");
        let (mut world, content) = filled(raid5(), Scheme::TimestampOrdering, seed);
        let parity = world.layout.parity(0);
        world.dead.insert(parity);
        let change = Change::Fail(parity, 0);
        assert_eq!(run(&mut world, Work::Change { change }), Ok(HostAnswer::Done));
        let place = world.layout.place(2);
        world.disks[usize::from(place.device.0)].bad.insert(place.block, Bad::Dead);
        let count = |flight: &Flight| match flight {
            Flight::Request(_, _, request) => match &request.action {
                Action::Commit(blocks) => blocks.extent.count,
                _ => 0,
            },
            _ => 0,
        };
        // Its write waits on its way.
        let work = world.write(Span { start: 3, count: 1 });
        world.submit(0, work);
        while !world.flights.iter().any(|flight| count(flight) == 1) {
            assert!(world.step(), "{case}");
        }
        let at = world.flights.iter().position(|flight| count(flight) == 1).unwrap();
        let older = world.flights.swap_remove(at);
        let work = world.write(Span { start: 2, count: 2 });
        world.submit(0, work);
        if later {
            while world.done.last().is_none_or(|done| done.result.is_ok()) {
                assert!(world.step(), "{case}");
            }
        } else {
            let at_disk = |flight: &Flight| matches!(flight, Flight::Disk(..));
            while !world.flights.iter().any(at_disk) {
                assert!(world.step(), "{case}");
            }
        }
        world.flights.push(older);
        world.run();
        let results = world.done.iter().rev().take(2).map(|done| &done.result);
        let errors = results.filter(|result| matches!(result, Err(OpError::Medium { .. }))).count();
        let size = world.layout.block_size as usize;
        let found = read(&mut world, 3, 1).unwrap();
        assert_eq!(found, content[3 * size..4 * size], "{case}");
        assert_eq!(errors, 2, "{case}");
    }
}

/// A device's medium does not take a write, which parity has, and another write hides parity's record of it. Beside a missing device,
/// nobody makes blocks of both before the stripe is repaired.
#[test]
fn what_a_medium_has_not_taken_yields_nothing() {
    for scheme in SCHEMES {
        let (mut right, mut refused) = (0, 0);
        for seed in 0..300 {
            let case = format!("{scheme}, seed {seed}");
            let (mut world, content) = fill(World::new(raid5(), scheme, 3, seed));
            let missing = world.layout.place(1).device;
            world.dead.insert(missing);
            let change = Change::Fail(missing, 0);
            assert_eq!(run(&mut world, Work::Change { change }), Ok(HostAnswer::Done));
            let place = world.layout.place(2);
            world.disks[usize::from(place.device.0)].bad.insert(place.block, Bad::Dead);
            let work = world.write(Span { start: 0, count: 4 });
            let Work::Write { data: written, .. } = work.clone() else { unreachable!() };
            world.submit(0, work);
            let mut left = [20, 10];
            loop {
                for (host, left) in (1..).zip(&mut left) {
                    if *left > 0 && !world.submitted.keys().any(|(other, _)| *other == host) {
                        *left -= 1;
                        let work = match host {
                            1 => world.write(Span { start: 5, count: 1 }),
                            _ => Work::Read { span: Span { start: 1, count: 1 } },
                        };
                        world.submit(host, work);
                    }
                }
                if !world.step() {
                    break;
                }
            }
            let are_idle =
                world.devices.iter().all(|device| device.id() == missing || device.is_idle());
            assert!(world.submitted.is_empty() && are_idle, "{case}: {}", world.left());
            let size = world.layout.block_size as usize;
            for done in world.done.iter().filter(|done| done.host == 2) {
                match &done.result {
                    Ok(HostAnswer::Read { data }) => {
                        let either = [&content, &written].map(|all| all.slice(size..2 * size));
                        assert!(either.contains(data), "{case}: {data:?} is nobody's");
                        right += 1;
                    }
                    Err(OpError::Lost { .. } | OpError::Medium { .. }) => refused += 1,
                    other => panic!("{case}: {other:?}"),
                }
            }
        }
        assert!(right > 0 && refused > 0, "{scheme}: {right} {refused}");
    }
}
