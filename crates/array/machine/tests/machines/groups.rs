//! An array gets another group of devices (docs/design/array.md 1.1.2).

use lockify_array::message::{Action, Answer, Call, Reply, Request};
use lockify_array::{
    ArrayState, Change, Condition, DeviceConfig, DeviceId, DeviceInput, Extent, Group, HostAnswer,
    HostConfig, Layout, Life, Member, OpError, OpId, Redundancy, Scheme, Span, Stamp, Work,
};

use crate::world::{Flight, World, life, raid5, raid6};

const SCHEMES: [Scheme; 4] = [
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
    Scheme::DeviceLocking,
    Scheme::TimestampOrdering,
];

fn layouts() -> [Layout; 3] {
    let mirror = Layout { redundancy: Redundancy::Mirror, data: 1, groups: 2, ..raid5() };
    [raid5(), raid6(), mirror]
}

/// Three hosts, an array with a witness, and the devices of a group that the array does not have yet.
fn world(layout: Layout, scheme: Scheme) -> World {
    let state = ArrayState::new(layout.devices());
    let host = |id| HostConfig {
        witnesses: 1,
        ..HostConfig::new(life(id), scheme, layout, state.clone())
    };
    let voters = layout.devices() + 1;
    let device = |id| DeviceConfig { voters, ..DeviceConfig::new(DeviceId(id), scheme, layout) };
    let devices = (0..voters + layout.group_size()).map(device).collect();
    let mut world = World::of((0..3).map(host).collect(), devices, 1);
    world.run();
    world
}

fn group(layout: &Layout) -> Group {
    let member = |id: u16| Member { address: format!("disk{id}:1"), node: 0 };
    let first = layout.devices() + 1;
    let members = (first..first + layout.group_size()).map(member).collect();
    Group { from: layout.stripes, first: DeviceId(first), members }
}

fn run(world: &mut World, host: usize, work: Work) -> Result<HostAnswer, OpError> {
    world.submit(host, work);
    world.run();
    world.done.pop().expect("it was answered").result
}

fn change(world: &mut World, host: usize, change: Change) {
    let work = Work::Change { change };
    assert_eq!(run(world, host, work.clone()), Ok(HostAnswer::Done), "{work:?}");
}

/// The devices of a group are let in one after the other, by this host.
fn bring_in(world: &mut World, host: usize, group: &Group) {
    for (device, _) in group.devices() {
        change(world, host, Change::Rebuild(device));
        let rebuilt = world.hosts[host].state().rebuilt(device, u64::MAX);
        change(world, host, rebuilt);
    }
}

/// The array gets a group, and as many stripes on it as it had.
fn with_group(world: &mut World, host: usize) -> Group {
    let layout = world.layout;
    let group = group(&layout);
    change(world, host, Change::Add { after: 0, group: group.clone() });
    bring_in(world, host, &group);
    let rows = layout.stripes / u64::from(layout.groups);
    change(
        world,
        host,
        Change::Grow { after: layout.stripes, groups: 1, stripes: layout.stripes + rows },
    );
    group
}

/// The answer of a device to a life's read of its first block.
fn asked(world: &mut World, device: DeviceId, from: Life, newest: bool) -> Option<Answer> {
    let (op, index) = (OpId { life: from, seq: 900 }, usize::from(device.0));
    let request = Request {
        call: Call { op, sibling: 0, step: 0 },
        stamp: Stamp { time: world.now, host: from.host.0 },
        epoch: if newest { world.devices[index].state().since } else { Default::default() },
        action: Action::Read { extent: Extent { start: 0, count: 1 }, repairs: false },
    };
    world.devices[index].handle(world.now, DeviceInput::Request { from, request });
    world.collect();
    let is = |flight: &Flight| match flight {
        Flight::Reply(of, _, Reply { call, answer, .. }) if *of == device && call.op == op => {
            Some(answer.clone())
        }
        _ => None,
    };
    let answer = world.flights.iter().find_map(is);
    // It is for nobody.
    world.flights.retain(|flight| is(flight).is_none());
    answer
}

#[test]
fn hosts_that_know_nothing_learn_of_a_group_and_use_it() {
    for (layout, scheme) in layouts().into_iter().flat_map(|l| SCHEMES.map(|s| (l, s))) {
        let mut world = world(layout, scheme);
        let group = with_group(&mut world, 2);
        let grown = *world.hosts[2].layout();
        assert!(grown.stripes > layout.stripes);
        assert_eq!(grown.stripe_of(group.first, 0), Some(layout.stripes));
        // Over the end of what was before.
        let span = Span { start: layout.blocks() - 2, count: 4 };
        let write = world.write(span);
        let Work::Write { data, .. } = write.clone() else { panic!("{write:?}") };
        // The second host knows only the layout that the array was made with, until a device tells it.
        assert_eq!(world.hosts[1].layout().stripes, layout.stripes, "{scheme}");
        let of_before = Span { start: 0, count: 1 };
        assert!(run(&mut world, 1, Work::Read { span: of_before }).is_ok());
        assert_eq!(run(&mut world, 1, write), Ok(HostAnswer::Done), "{scheme}");
        let read = run(&mut world, 0, Work::Read { span: of_before });
        assert!(read.is_ok(), "{read:?}");
        assert_eq!(run(&mut world, 0, Work::Read { span }), Ok(HostAnswer::Read { data }));
        // Then one device of each group is lost.
        let write = world.write(span);
        let Work::Write { data, .. } = write.clone() else { panic!("{write:?}") };
        for device in [grown.place(span.start).device, grown.place(span.end() - 1).device] {
            world.dead.insert(device);
            let fail = world.hosts[2].state().without(device);
            change(&mut world, 2, fail);
        }
        assert_eq!(run(&mut world, 2, write), Ok(HostAnswer::Done), "{scheme}");
        assert_eq!(run(&mut world, 2, Work::Read { span }), Ok(HostAnswer::Read { data }));
        world.layout = grown;
        let state = world.hosts[2].state().clone();
        assert_eq!(world.inconsistent_stripes(&state), [], "{scheme}");
    }
}

/// The fence was before the group. A device that did not know it would take a late write.
#[test]
fn devices_of_a_group_know_the_fences_of_before() {
    for scheme in SCHEMES {
        let mut world = world(raid5(), scheme);
        assert_eq!(run(&mut world, 2, Work::Fence { life: life(1) }), Ok(HostAnswer::Done));
        let group = with_group(&mut world, 2);
        for (device, _) in group.devices() {
            assert_eq!(asked(&mut world, device, life(1), true), Some(Answer::Fenced), "{scheme}");
            assert_ne!(asked(&mut world, device, life(2), true), Some(Answer::Fenced), "{scheme}");
        }
    }
}

/// A host that has not heard of the group fences by an older state. The new devices learn it all the same.
#[test]
fn a_fence_by_an_older_state_reaches_the_devices_of_a_group() {
    for scheme in SCHEMES {
        let mut world = world(raid5(), scheme);
        let group = with_group(&mut world, 2);
        assert_ne!(world.hosts[0].state(), world.hosts[2].state());
        assert_eq!(run(&mut world, 0, Work::Fence { life: life(1) }), Ok(HostAnswer::Done));
        for (device, _) in group.devices() {
            assert_eq!(asked(&mut world, device, life(1), true), Some(Answer::Fenced), "{scheme}");
        }
    }
}

#[test]
fn a_device_has_no_blocks_before_its_group_has_stripes() {
    let mut world = world(raid5(), Scheme::TimestampOrdering);
    let group = group(&world.layout);
    let (device, _) = group.devices().next().unwrap();
    let state = |world: &World| world.devices[usize::from(device.0)].state().clone();
    assert_eq!(state(&world).condition(device), None);
    assert_eq!(asked(&mut world, device, life(2), true), Some(Answer::Invalid));
    change(&mut world, 2, Change::Add { after: 0, group: group.clone() });
    // Hosts go on without it.
    assert_eq!(world.hosts[2].state().condition(device), Some(Condition::Failed));
    assert_eq!(asked(&mut world, device, life(2), true), Some(Answer::Invalid));
    bring_in(&mut world, 2, &group);
    assert!(state(&world).is_good(device));
    assert_eq!(asked(&mut world, device, life(2), true), Some(Answer::Invalid));
    let span = Span { start: world.layout.blocks(), count: 1 };
    assert_eq!(run(&mut world, 2, Work::Read { span }), Err(OpError::Range));
    let grow =
        Change::Grow { after: world.layout.stripes, groups: 1, stripes: world.layout.stripes + 1 };
    change(&mut world, 2, grow);
    assert!(matches!(asked(&mut world, device, life(2), false), Some(Answer::Stale(_))));
    assert!(run(&mut world, 2, Work::Read { span }).is_ok());
}

#[test]
fn a_group_that_does_not_fit_the_layout_is_refused() {
    let mut world = world(raid5(), Scheme::TimestampOrdering);
    let good = group(&world.layout);
    let early = Group { from: good.from - 1, ..good.clone() };
    let witness = Group { first: DeviceId(good.first.0 - 1), ..good.clone() };
    let small = Group { members: good.members[1..].to_vec(), ..good.clone() };
    for group in [early, witness, small] {
        let work = Work::Change { change: Change::Add { after: 0, group } };
        let Err(OpError::State(why)) = run(&mut world, 2, work) else { panic!() };
        assert!(why.contains("5 devices, from number 6 and stripe 6 on"), "{why}");
    }
    change(&mut world, 2, Change::Add { after: 0, group: good.clone() });
    // Once more, it is there already.
    change(&mut world, 2, Change::Add { after: 0, group: good });
}

/// All devices restart: their records have the group.
#[test]
fn a_group_outlives_restarts_of_all() {
    for scheme in SCHEMES {
        let mut world = world(raid5(), scheme);
        let group = with_group(&mut world, 2);
        let span = Span { start: world.layout.blocks(), count: 3 };
        let write = world.write(span);
        let Work::Write { data, .. } = write.clone() else { panic!("{write:?}") };
        assert_eq!(run(&mut world, 2, write), Ok(HostAnswer::Done));
        let devices: Vec<DeviceId> = world.hosts[2].state().ids().collect();
        for device in devices {
            world.restart_device(device);
        }
        world.run();
        let last = usize::from(group.first.0);
        assert_eq!(world.devices[last].state().added, [group], "{scheme}");
        assert_eq!(run(&mut world, 2, Work::Read { span }), Ok(HostAnswer::Read { data }));
    }
}
