//! Two parities (docs/design/array.md 3.10): two devices are missing, come back, or are replaced, and a host dies beside one.

use bytes::Bytes;
use lockify_array::{
    ArrayState, Change, Condition, DeviceId, HostAnswer, Layout, OpError, Scheme, Span, Work,
};
use rand::RngExt as _;

use crate::interleavings::{load, verdict};
use crate::world::{Bad, Flight, World, life, raid6};

const SCHEMES: [Scheme; 4] = [
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
    Scheme::DeviceLocking,
    Scheme::TimestampOrdering,
];

fn small() -> Layout {
    Layout { stripes: 2, ..raid6() }
}

/// Each two devices.
fn pairs() -> impl Iterator<Item = [DeviceId; 2]> {
    let devices = raid6().devices();
    (0..devices).flat_map(|one| (0..one).map(move |other| [one, other].map(DeviceId)))
}

fn without(gone: &[DeviceId]) -> ArrayState {
    gone.iter().fold(ArrayState::new(raid6().devices()), |state, device| {
        state.changed(Change::Fail(*device, 0)).unwrap().unwrap()
    })
}

fn run(world: &mut World, host: usize, work: Work) -> Result<HostAnswer, OpError> {
    world.submit(host, work);
    world.run();
    world.done.last().expect("it was answered").result.clone()
}

fn read_all(world: &mut World, host: usize) -> Result<Bytes, OpError> {
    let span = Span { start: 0, count: world.layout.blocks() };
    match run(world, host, Work::Read { span })? {
        HostAnswer::Read { data } => Ok(data),
        other => panic!("{other:?}"),
    }
}

fn change(world: &mut World, host: usize, change: Change) {
    let work = Work::Change { change };
    assert_eq!(run(world, host, work.clone()), Ok(HostAnswer::Done), "{work:?}");
}

#[test]
fn operations_go_on_without_two_devices() {
    for scheme in SCHEMES {
        for (seed, gone) in (0..).zip(pairs()) {
            let mut world = World::with_state(small(), scheme, 3, seed, without(&gone));
            world.dead.extend(gone);
            load(&mut world, 40);
            world.run();
            assert_eq!(verdict(&world), Ok(()), "{scheme} without {gone:?}");
        }
    }
}

/// One after the other, each in the middle of operations.
#[test]
fn two_devices_are_lost_in_the_middle() {
    for scheme in SCHEMES.into_iter().filter(|s| *s != Scheme::CallbackLocking) {
        for (seed, gone) in (0..).zip(pairs().chain(pairs()).chain(pairs())) {
            let mut world = World::new(small(), scheme, 3, seed);
            load(&mut world, 12);
            for count in 1..=2 {
                let state = without(&gone[..count]);
                world.dead.insert(gone[count - 1]);
                for host in 0..world.hosts.len() {
                    for _ in 0..world.random.random_range(0..40) {
                        world.step();
                    }
                    world.announce_state(host, &state);
                    load(&mut world, 6);
                }
            }
            world.run();
            assert_eq!(verdict(&world), Ok(()), "{scheme} without {gone:?}, seed {seed}");
        }
    }
}

#[test]
fn three_devices_are_too_many() {
    let mut state = without(&[DeviceId(0), DeviceId(1)]);
    state.devices[2] = Condition::Failed;
    let mut world = World::with_state(small(), Scheme::TimestampOrdering, 1, 1, state.clone());
    world.dead.extend([0, 1, 2].map(DeviceId));
    let whole = world.write(Span { start: 0, count: small().blocks() });
    assert!(matches!(run(&mut world, 0, whole), Err(OpError::Unavailable(_))));
    assert!(matches!(read_all(&mut world, 0), Err(OpError::Unavailable(_))));
}

fn filled(scheme: Scheme, seed: u64) -> (World, Bytes) {
    let mut world = World::new(raid6(), scheme, 3, seed);
    world.gossip = true;
    let work = world.write(Span { start: 0, count: raid6().blocks() });
    let Work::Write { data, .. } = work.clone() else { unreachable!() };
    assert_eq!(run(&mut world, 0, work), Ok(HostAnswer::Done));
    (world, data)
}

/// New devices take the places of two. `at_once`: stripe by stripe in turn; else one after the other.
fn replaced(scheme: Scheme, gone: [DeviceId; 2], at_once: bool) {
    let (mut world, mut content) = filled(scheme, 7);
    for device in gone {
        change(&mut world, 2, Change::Fail(device, 0));
    }
    assert_eq!(read_all(&mut world, 1), Ok(content.clone()), "{gone:?}");
    for device in gone {
        world.replace(device);
        world.run();
    }
    let absences = |world: &World, device| world.hosts[2].state().absences(device);
    let rounds = if at_once { vec![gone.to_vec()] } else { gone.map(|d| vec![d]).to_vec() };
    for devices in rounds {
        for &device in &devices {
            change(&mut world, 2, Change::Rebuild(device));
        }
        for stripe in 0..raid6().stripes {
            for &device in &devices {
                let rebuilt = run(&mut world, 2, Work::Rebuild { device, stripe });
                assert_eq!(rebuilt, Ok(HostAnswer::Rebuilt { lost: 0, marked: 0 }), "{gone:?}");
                let to = Change::Rebuilt(device, stripe + 1, absences(&world, device));
                change(&mut world, 2, to);
                // Hosts write meanwhile, also to stripes of which one of the devices is rebuilt.
                let block = stripe * 6 + u64::from(device.0);
                let work = world.write(Span { start: block, count: 1 });
                let Work::Write { data, .. } = &work else { unreachable!() };
                let mut bytes = content.to_vec();
                bytes[block as usize * 16..][..16].copy_from_slice(data);
                content = bytes.into();
                assert_eq!(run(&mut world, 0, work), Ok(HostAnswer::Done));
                assert_eq!(read_all(&mut world, 1), Ok(content.clone()), "{gone:?} {stripe}");
            }
        }
        for device in devices {
            let done = Change::Rebuilt(device, u64::MAX, absences(&world, device));
            change(&mut world, 2, done);
        }
    }
    let state = world.hosts[2].state().clone();
    assert!(state.devices.iter().all(|condition| *condition == Condition::Good));
    assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme} {gone:?}");
    for stripe in 0..raid6().stripes {
        let found = run(&mut world, 2, Work::Scrub { stripe, repair: false });
        assert_eq!(found, Ok(HostAnswer::Scrubbed { mismatches: 0, lost: 0 }), "{gone:?}");
    }
}

#[test]
fn two_new_devices_are_rebuilt_while_hosts_write() {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        for gone in pairs() {
            replaced(scheme, gone, false);
            replaced(scheme, gone, true);
        }
    }
}

/// A host dies after any message of a write of one block, and any device is gone before the repair. Nothing is lost, and another
/// device may fail afterwards.
#[test]
fn a_host_dies_while_a_device_is_missing_and_nothing_is_lost() {
    let mut cut = 0;
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        for gone in (0..raid6().devices()).map(DeviceId) {
            for steps in 1.. {
                let (mut world, old) = filled(scheme, steps as u64);
                let work = world.write(Span { start: 1, count: 1 });
                let Work::Write { data, .. } = work.clone() else { unreachable!() };
                let mut new = old.to_vec();
                new[16..32].copy_from_slice(&data);
                world.submit(1, work);
                for _ in 0..steps {
                    world.step();
                }
                if world.submitted.is_empty() {
                    break;
                }
                cut += 1;
                // Some of its messages arrive, and some do not.
                for flight in std::mem::take(&mut world.flights) {
                    let sent = matches!(&flight, Flight::Request(1, ..));
                    if !sent || world.random.random_bool(0.5) {
                        world.flights.push(flight);
                    }
                }
                world.submitted.retain(|(host, _), _| *host != 1);
                world.dead_hosts.insert(1);
                let what = format!("{scheme} without {gone} after {steps}");
                let state = without(&[gone]);
                world.dead.insert(gone);
                for host in [0, 2] {
                    world.announce_state(host, &state);
                }
                let fence = Work::Fence { life: life(1) };
                assert_eq!(run(&mut world, 2, fence), Ok(HostAnswer::Done), "{what}");
                let after = read_all(&mut world, 0).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(after == old || after == new, "{what}: neither old nor new");
                let next = DeviceId((gone.0 + 1) % raid6().devices());
                world.announce_state(0, &without(&[gone, next]));
                world.dead.insert(next);
                assert_eq!(read_all(&mut world, 0), Ok(after), "{what}, then without {next}");
            }
        }
    }
    assert!(cut > 100, "{cut}");
}

/// Three units of a stripe are gone, as after a power loss beside a missing device. Its blocks are lost, and nothing else is. Hosts write
/// them anew, and what is written survives. After the rebuild, the stripe bears two other failures.
#[test]
fn torn_parities_beside_a_missing_device_are_good_again() {
    let layout = raid6();
    let unit = u64::from(layout.unit);
    let gone = layout.data(0, 0);
    for scheme in SCHEMES {
        for writes in [false, true] {
            let what = format!("{scheme} {writes}");
            let (mut world, mut content) = filled(scheme, 7);
            change(&mut world, 2, Change::Fail(gone, 0));
            world.dead.insert(gone);
            for parity in [layout.parity(0), layout.second_parity(0).unwrap()] {
                let blocks = layout.unit_start(0)..layout.unit_start(0) + unit;
                let bad = &mut world.disks[usize::from(parity.0)].bad;
                bad.extend(blocks.map(|block| (block, Bad::Torn)));
            }
            let first = Work::Read { span: Span { start: 0, count: 1 } };
            let lost = Err(OpError::Lost { block: 0 });
            assert_eq!(run(&mut world, 1, first.clone()), lost, "{what}");
            // All of the missing unit but its last block, and a block beside that one.
            let written = [(0, unit - 1), (2 * unit - 1, 1)];
            for (start, count) in written.into_iter().filter(|_| writes) {
                let work = world.write(Span { start, count });
                let Work::Write { data, .. } = &work else { unreachable!() };
                let mut bytes = content.to_vec();
                let at = start as usize * 16;
                bytes[at..at + data.len()].copy_from_slice(data);
                content = bytes.into();
                assert_eq!(run(&mut world, 0, work), Ok(HostAnswer::Done), "{what} {start}");
            }
            world.dead.remove(&gone);
            world.replace(gone);
            world.run();
            change(&mut world, 2, Change::Rebuild(gone));
            for stripe in 0..layout.stripes {
                run(&mut world, 2, Work::Rebuild { device: gone, stripe }).unwrap();
            }
            let done = world.hosts[2].state().rebuilt(gone, u64::MAX);
            change(&mut world, 2, done);
            let still_lost = if writes { unit - 1..unit } else { 0..unit };
            let lost = (still_lost.end - still_lost.start) as u32;
            let scrub = run(&mut world, 2, Work::Scrub { stripe: 0, repair: false });
            assert_eq!(scrub, Ok(HostAnswer::Scrubbed { mismatches: 0, lost }), "{what}");
            let next = [layout.data(0, 1), layout.parity(0)];
            world.dead.extend(next);
            world.announce_state(0, &without_more(&world, &next));
            for block in 0..layout.blocks() {
                let read = Work::Read { span: Span { start: block, count: 1 } };
                let expected = match still_lost.contains(&block) {
                    true => Err(OpError::Lost { block }),
                    false => {
                        let at = block as usize * 16;
                        Ok(HostAnswer::Read { data: content.slice(at..at + 16) })
                    }
                };
                assert_eq!(run(&mut world, 0, read), expected, "{what}, block {block}");
            }
        }
    }
}

/// The present state, without two more devices.
fn without_more(world: &World, gone: &[DeviceId]) -> ArrayState {
    gone.iter().fold(world.hosts[2].state().clone(), |state, device| {
        state.changed(Change::Fail(*device, state.term(*device))).unwrap().unwrap()
    })
}
