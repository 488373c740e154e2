//! Devices that were away learn the fences of that time: a fenced life's writes may still be under way to their address.

use lockify_array::message::{Action, Answer, Call, Reply, Request};
use lockify_array::{
    Change, DeviceId, DeviceInput, Extent, HostAnswer, Life, OpId, Scheme, Stamp, Work,
};

use crate::world::{Flight, World, life, raid5};

const DEVICE: DeviceId = DeviceId(1);

fn run(world: &mut World, host: usize, work: Work) {
    world.submit(host, work);
    world.run();
    let answer = world.done.pop().expect("it was answered").result;
    assert!(matches!(answer, Ok(HostAnswer::Done)), "{answer:?}");
}

fn change(world: &mut World, host: usize, change: Change) {
    run(world, host, Work::Change { change });
}

/// Returns true if a device refuses a life's request.
fn refuses(world: &mut World, device: DeviceId, from: Life) -> bool {
    let op = OpId { life: from, seq: 900 };
    let request = Request {
        call: Call { op, sibling: 0, step: 0 },
        stamp: Stamp { time: world.now, host: from.host.0 },
        epoch: world.devices[usize::from(device.0)].state().epoch,
        action: Action::Read { extent: Extent { start: 0, count: 1 }, repairs: false },
    };
    let input = DeviceInput::Request { from, request };
    world.devices[usize::from(device.0)].handle(world.now, input);
    world.collect();
    let refusal = |flight: &Flight| {
        matches!(flight, Flight::Reply(d, _, Reply { call, answer: Answer::Fenced, .. })
            if *d == device && call.op == op)
    };
    let refused = world.flights.iter().any(refusal);
    // It is for nobody.
    world.flights.retain(|flight| !refusal(flight));
    refused
}

#[test]
fn a_device_in_anothers_place_learns_the_fences_before_it_is_rebuilt() {
    for scheme in Scheme::ALL {
        let mut world = World::new(raid5(), scheme, 3, 1);
        world.gossip = true;
        run(&mut world, 2, Work::Fence { life: life(1) });
        assert!(refuses(&mut world, DEVICE, life(1)), "{scheme}");
        world.dead.insert(DEVICE);
        change(&mut world, 2, Change::Fail(DEVICE, 0));
        world.dead.remove(&DEVICE);
        world.replace(DEVICE);
        assert!(!refuses(&mut world, DEVICE, life(1)), "{scheme}: it is new");
        change(&mut world, 2, Change::Rebuild(DEVICE));
        assert!(refuses(&mut world, DEVICE, life(1)), "{scheme}");
        assert!(!refuses(&mut world, DEVICE, life(2)), "{scheme}");
        // It keeps that.
        world.restart_device(DEVICE);
        assert!(refuses(&mut world, DEVICE, life(1)), "{scheme}");
    }
}

/// The host that fences believes that the device is out; the others know better.
#[test]
fn a_fence_by_an_older_state_reaches_the_device_that_is_back() {
    for scheme in Scheme::ALL {
        let mut world = World::new(raid5(), scheme, 3, 1);
        world.dead.insert(DEVICE);
        change(&mut world, 2, Change::Fail(DEVICE, 0));
        world.dead.remove(&DEVICE);
        world.replace(DEVICE);
        let state = world.hosts[2].state().clone();
        world.announce_state(0, &state);
        change(&mut world, 0, Change::Rebuild(DEVICE));
        assert_ne!(world.hosts[0].state(), world.hosts[2].state(), "{scheme}");
        run(&mut world, 2, Work::Fence { life: life(1) });
        assert!(refuses(&mut world, DEVICE, life(1)), "{scheme}");
    }
}
