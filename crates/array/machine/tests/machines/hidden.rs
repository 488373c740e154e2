//! A host dies, and its write has reached parity but not its data. Another host's read-modify-write continues from that parity,
//! so no header shows it. A device of the stripe is missing during the repair after the dead host. The content that parity
//! would give for the missing device must not be returned.

use lockify_array::message::{Action, Request};
use lockify_array::{Change, DeviceId, HostAnswer, OpError, Scheme, Span, Work};

use rand::RngExt as _;

use crate::world::{Bad, Flight, World, life, raid5};

/// Of the first stripe: the second data unit's, the fourth's, and parity's.
const MISSING: DeviceId = DeviceId(1);
const DATA: DeviceId = DeviceId(3);
const PARITY: DeviceId = DeviceId(4);
/// The first blocks of the first, second and fourth data unit.
const BESIDE: u64 = 0;
const UNTOUCHED: u64 = 2;
const CUT_SHORT: u64 = 6;

/// How far the dead host's write gets.
#[derive(Clone, Copy, PartialEq)]
enum Got {
    Nothing,
    Parity,
}

fn run(world: &mut World, host: usize, work: Work) -> Result<HostAnswer, OpError> {
    world.submit(host, work);
    world.run();
    world.done.last().expect("it was answered").result.clone()
}

fn write(world: &mut World, host: usize, start: u64, count: u64) {
    let work = world.write(Span { start, count });
    assert_eq!(run(world, host, work), Ok(HostAnswer::Done));
}

fn read(world: &mut World, host: usize) -> Result<HostAnswer, OpError> {
    run(world, host, Work::Read { span: Span { start: UNTOUCHED, count: 1 } })
}

fn fence(world: &mut World, host: usize) {
    assert_eq!(run(world, host, Work::Fence { life: life(1) }), Ok(HostAnswer::Done));
}

fn fail(world: &mut World) {
    world.dead.insert(MISSING);
    let change = Work::Change { change: Change::Fail(MISSING, 0) };
    assert_eq!(run(world, 2, change), Ok(HostAnswer::Done));
}

/// Host 1 dies in the middle of a write of one block.
fn die_writing(world: &mut World, got: Got) {
    let work = world.write(Span { start: CUT_SHORT, count: 1 });
    die(world, 1, work, DATA, got);
}

/// A host dies in the middle of a write of one block, whose device does not get it.
fn die(world: &mut World, host: usize, work: Work, data: DeviceId, got: Got) {
    let writes = |flight: &Flight, to: DeviceId| {
        let Flight::Request(from, device, Request { action, .. }) = flight else { return false };
        (*from, *device) == (host, to)
            && matches!(action, Action::Commit(_) | Action::WriteUnlock(_))
    };
    let before = world.disks[usize::from(PARITY.0)].blocks[0].header.stamp;
    world.submit(host, work);
    loop {
        let begun =
            world.flights.iter().any(|flight| writes(flight, data) || writes(flight, PARITY));
        world.flights.retain(|flight| !writes(flight, data));
        if got == Got::Nothing {
            world.flights.retain(|flight| !writes(flight, PARITY));
        }
        let there = world.disks[usize::from(PARITY.0)].blocks[0].header.stamp > before;
        if there || begun && got == Got::Nothing {
            break;
        }
        assert!(world.step(), "it never writes");
    }
    world.kill_host(host);
}

/// Each order of the other host's write and the device's failure, with and without a restart of the parity's device.
fn stories(each: impl Fn(Scheme, bool, bool, u64)) {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        for (degraded, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
            (0..10).for_each(|seed| each(scheme, degraded, restarts, seed));
        }
    }
}

fn begin(scheme: Scheme, seed: u64) -> World {
    let mut world = World::new(raid5(), scheme, 3, seed);
    world.gossip = true;
    write(&mut world, 0, 0, 8);
    world
}

#[test]
fn what_a_write_took_along_that_was_cut_short_is_found() {
    stories(|scheme, degraded, restarts, seed| {
        let case = format!("{scheme} degraded {degraded} restarts {restarts} seed {seed}");
        let mut world = begin(scheme, seed);
        die_writing(&mut world, Got::Parity);
        if degraded {
            fail(&mut world);
        }
        write(&mut world, 2, BESIDE, 1);
        if restarts {
            world.restart_device(PARITY);
        }
        if !degraded {
            fail(&mut world);
        }
        fence(&mut world, 2);
        assert_eq!(read(&mut world, 0), Err(OpError::Lost { block: UNTOUCHED }), "{case}");
        // It is found once: who repairs again, since nobody knows that it has been done, takes nothing away.
        write(&mut world, 2, UNTOUCHED, 1);
        fence(&mut world, 0);
        assert!(matches!(read(&mut world, 2), Ok(HostAnswer::Read { .. })), "{case}");
    });
}

#[test]
fn what_got_nowhere_costs_nothing() {
    stories(|scheme, degraded, restarts, seed| {
        let case = format!("{scheme} degraded {degraded} restarts {restarts} seed {seed}");
        let mut world = begin(scheme, seed);
        if degraded {
            fail(&mut world);
        }
        die_writing(&mut world, Got::Nothing);
        if restarts {
            world.restart_device(PARITY);
        }
        if !degraded {
            fail(&mut world);
        }
        fence(&mut world, 2);
        write(&mut world, 2, BESIDE, 1);
        assert!(matches!(read(&mut world, 0), Ok(HostAnswer::Read { .. })), "{case}");
    });
}

/// Two hosts die in writes of a stripe. Parity hides the first one's. A block cannot be read, and the others seem to yield it. The
/// repair after the second host has to know of the first one, also if a device has forgotten it.
#[test]
fn the_repair_after_one_host_knows_what_another_dead_host_has_hidden() {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        for (restarts, seed) in (0..40).map(|seed| (seed % 2 == 0, seed)) {
            let case = format!("{scheme} restarts {restarts} seed {seed}");
            let mut world = World::new(raid5(), scheme, 4, seed);
            world.gossip = true;
            write(&mut world, 0, 0, 8);
            let old = read(&mut world, 0);
            die_writing(&mut world, Got::Parity);
            write(&mut world, 2, BESIDE, 1);
            // The next column.
            let work = world.write(Span { start: UNTOUCHED + 1, count: 1 });
            die(&mut world, 3, work, MISSING, Got::Nothing);
            world.disks[usize::from(MISSING.0)].bad.insert(0, Bad::UntilWritten);
            if restarts {
                world.restart_device(DATA);
            }
            world.submit(0, Work::Fence { life: life(3) });
            for _ in 0..world.random.random_range(0..60) {
                world.step();
            }
            world.submit(2, Work::Fence { life: life(1) });
            world.run();
            let found = read(&mut world, 0);
            let lost = Err(OpError::Lost { block: UNTOUCHED });
            assert!(found == old || found == lost, "{case}: {found:?}, and not {old:?}");
            let state = world.hosts[0].state().clone();
            assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{case}");
        }
    }
}
