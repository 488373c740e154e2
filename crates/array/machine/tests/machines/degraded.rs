//! Without one of the devices: from the start, and from the middle of operations on.

use lockify_array::{
    ArrayState, Change, Condition, DeviceId, HostAnswer, Layout, OpError, Scheme, Span, Work,
};
use rand::RngExt as _;

use crate::interleavings::{load, small_mirror, smallest, verdict};
use crate::world::{World, raid5, raid6};

const SCHEMES: [Scheme; 4] = [
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
    Scheme::DeviceLocking,
    Scheme::TimestampOrdering,
];

fn small(layout: Layout) -> Layout {
    Layout { stripes: 2, ..layout }
}

fn without(layout: &Layout, device: DeviceId) -> ArrayState {
    ArrayState::new(layout.devices()).changed(Change::Fail(device, 0)).unwrap().unwrap()
}

#[test]
fn operations_go_on_without_a_device() {
    for scheme in SCHEMES {
        for layout in [raid5(), smallest(), small_mirror(), raid6()].map(small) {
            for seed in 0..15 {
                let gone = DeviceId((seed % u64::from(layout.devices())) as u16);
                let state = without(&layout, gone);
                let mut world = World::with_state(layout, scheme, 3, seed, state);
                world.dead.insert(gone);
                load(&mut world, 40);
                world.run();
                assert_eq!(verdict(&world), Ok(()), "{scheme} {:?} seed {seed}", layout.redundancy);
            }
        }
    }
}

/// Hosts learn of it at different times, by themselves or from devices, and have operations in every phase.
#[test]
fn a_device_is_lost_in_the_middle() {
    let mut resent = 0;
    // Under callback locking, a host that waits for a device for longer than a lease is taken for
    // dead.
    for scheme in SCHEMES.into_iter().filter(|s| *s != Scheme::CallbackLocking) {
        for layout in [raid5(), smallest(), small_mirror(), raid6()].map(small) {
            for seed in 0..40 {
                let mut world = World::new(layout, scheme, 3, seed);
                let gone = DeviceId((seed % u64::from(layout.devices())) as u16);
                let state = without(&layout, gone);
                load(&mut world, 12);
                world.dead.insert(gone);
                for host in 0..world.hosts.len() {
                    for _ in 0..world.random.random_range(0..40) {
                        world.step();
                    }
                    world.announce_state(host, &state);
                    load(&mut world, 12);
                }
                world.run();
                resent += u32::from(world.hosts.iter().any(|host| host.counts().restarts > 0));
                assert_eq!(verdict(&world), Ok(()), "{scheme} {:?} seed {seed}", layout.redundancy);
            }
        }
    }
    assert!(resent > 0);
}

#[test]
fn two_devices_are_too_many() {
    let layout = small(raid5());
    let mut state = without(&layout, DeviceId(0));
    state.devices[1] = Condition::Failed;
    let mut world = World::with_state(layout, Scheme::TimestampOrdering, 1, 1, state.clone());
    world.dead.extend([DeviceId(0), DeviceId(1)]);
    let whole = Span { start: 0, count: layout.blocks() };
    let write = world.write(whole);
    world.submit(0, write);
    world.submit(0, Work::Read { span: whole });
    // Content on a present device can still be read.
    let place = |block: &u64| state.has(layout.place(*block).device, 0);
    let block = (0..layout.blocks()).find(place).unwrap();
    world.submit(0, Work::Read { span: Span { start: block, count: 1 } });
    world.run();
    assert!(matches!(world.done[0].result, Err(OpError::Unavailable(_))));
    assert!(matches!(world.done[1].result, Err(OpError::Unavailable(_))));
    assert!(matches!(world.done[2].result, Ok(HostAnswer::Read { .. })));
}
