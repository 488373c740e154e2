//! Recovery (docs/design/array.md 3): hosts that die after any message, devices that fail or restart after any disk write,
//! changes of the array's state, rebuilds.

use bytes::Bytes;
use lockify_array::{
    ArrayState, Change, Condition, DeviceId, DeviceInput, HostAnswer, OpError, Redundancy, Scheme,
    Span, Work,
};
use rand::RngExt as _;

use crate::world::{Bad, Flight, World, life, raid5, raid6};

/// The last of the hosts does repairs.
const REPAIRER: usize = 2;

/// Runs one piece of work alone.
fn run(world: &mut World, host: usize, work: Work) -> Result<HostAnswer, OpError> {
    let before = world.done.len();
    world.submit(host, work);
    world.run();
    let mut new = world.done.drain(before..);
    let answer = new.next_back().expect("it was answered").result;
    drop(new);
    answer
}

fn read(world: &mut World, span: Span) -> Result<Bytes, OpError> {
    match run(world, REPAIRER, Work::Read { span })? {
        HostAnswer::Read { data } => Ok(data),
        other => panic!("{other:?}"),
    }
}

/// The host stops. Some of its sent messages arrive later, at any time, and some do not.
fn crash(world: &mut World, host: usize) {
    let flights = std::mem::take(&mut world.flights);
    for flight in flights {
        let sent = matches!(&flight, Flight::Request(h, ..) if *h == host);
        if !sent || world.random.random_bool(0.5) {
            world.flights.push(flight);
        }
    }
    world.submitted.retain(|(h, _), _| *h != host);
    world.dead_hosts.insert(host);
}

fn blocks(world: &World, data: &Bytes) -> Vec<Bytes> {
    let size = world.layout.block_size as usize;
    (0..data.len() / size).map(|i| data.slice(i * size..(i + 1) * size)).collect()
}

/// Every block is old or new, or reported as lost if that is allowed.
fn judge(world: &mut World, old: &Bytes, span: Span, new: &Bytes, may_lose: bool, what: &str) {
    let old = blocks(world, old);
    let new = blocks(world, new);
    for block in 0..world.layout.blocks() {
        let written = block.checked_sub(span.start).and_then(|i| new.get(i as usize));
        match read(world, Span { start: block, count: 1 }) {
            Ok(data) => {
                let fits = data == old[block as usize] || Some(&data) == written;
                assert!(fits, "{what}: block {block} is neither old nor new");
            }
            Err(OpError::Lost { .. }) if may_lose => {}
            Err(error) => panic!("{what}: block {block}: {error}"),
        }
    }
}

fn three_hosts(layout: lockify_array::Layout, scheme: Scheme, seed: u64) -> World {
    let mut world = World::new(layout, scheme, 3, seed);
    world.gossip = true;
    world
}

fn filled(layout: lockify_array::Layout, scheme: Scheme, seed: u64) -> (World, Bytes) {
    let mut world = three_hosts(layout, scheme, seed);
    let span = Span { start: 0, count: layout.blocks() };
    let work = world.write(span);
    let Work::Write { data, .. } = work.clone() else { unreachable!() };
    run(&mut world, 0, work).unwrap();
    (world, data)
}

fn layouts() -> [lockify_array::Layout; 3] {
    let redundancy = Redundancy::Mirror;
    // Two groups, so that a majority is left when a device fails.
    [raid5(), lockify_array::Layout { redundancy, data: 1, groups: 2, ..raid5() }, raid6()]
}

/// A write whose host dies after so many steps; false if it was done by then.
fn cut_short(world: &mut World, span: Span, steps: usize) -> Option<Bytes> {
    let work = world.write(span);
    let Work::Write { data, .. } = work.clone() else { unreachable!() };
    world.submit(1, work);
    for _ in 0..steps {
        if world.submitted.is_empty() {
            return None;
        }
        world.step();
    }
    crash(world, 1);
    Some(data)
}

fn spans(world: &World) -> [Span; 4] {
    let stripe = u64::from(world.layout.data) * u64::from(world.layout.unit);
    [
        Span { start: 1, count: 1 },
        Span { start: 0, count: stripe },
        Span { start: stripe - 1, count: 3.min(stripe) },
        Span { start: 1, count: stripe - 1 },
    ]
}

const SCHEMES: [Scheme; 2] = [Scheme::TimestampOrdering, Scheme::DeviceLocking];

#[test]
fn a_host_that_dies_after_any_message_leaves_old_or_new_blocks_and_fitting_parity() {
    let mut cut = 0;
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        for shape in 0..4 {
            for steps in 1.. {
                let (mut world, old) = filled(layout, scheme, steps as u64);
                let span = spans(&world)[shape];
                let Some(new) = cut_short(&mut world, span, steps) else { break };
                cut += 1;
                let fence = Work::Fence { life: life(1) };
                let what = format!("{scheme} {span:?} after {steps}");
                assert_eq!(run(&mut world, REPAIRER, fence), Ok(HostAnswer::Done), "{what}");
                let state = ArrayState::new(layout.devices());
                assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{what}");
                assert!(world.devices.iter().all(lockify_array::Device::is_idle), "{what}");
                judge(&mut world, &old, span, &new, false, &what);
                // And any one device may fail now.
                let device = DeviceId((steps % usize::from(layout.devices())) as u16);
                let fail = Work::Change { change: Change::Fail(device, 0) };
                assert_eq!(run(&mut world, REPAIRER, fail), Ok(HostAnswer::Done));
                judge(&mut world, &old, span, &new, false, &what);
            }
        }
    }
    assert!(cut > 100, "{cut}");
}

#[test]
fn a_repairer_that_dies_is_fenced_like_any_other() {
    for steps in 1..60 {
        let layout = raid5();
        let (mut world, old) = filled(layout, Scheme::TimestampOrdering, steps);
        let span = Span { start: 1, count: 1 };
        let new = cut_short(&mut world, span, 9).expect("it is longer");
        world.submit(0, Work::Fence { life: life(1) });
        for _ in 0..steps {
            world.step();
        }
        crash(&mut world, 0);
        // At the same time: neither waits for the other's target.
        for host in [0, 1] {
            world.submit(REPAIRER, Work::Fence { life: life(host) });
        }
        world.run();
        assert!(world.done.iter().all(|done| done.result.is_ok()));
        let state = ArrayState::new(layout.devices());
        assert_eq!(world.inconsistent_stripes(&state), [0; 0]);
        judge(&mut world, &old, span, &new, false, &format!("{steps}"));
    }
}

#[test]
fn what_a_fenced_host_still_sends_is_refused() {
    let (mut world, old) = filled(raid5(), Scheme::TimestampOrdering, 1);
    let span = Span { start: 1, count: 1 };
    let work = world.write(span);
    let Work::Write { data: new, .. } = work.clone() else { unreachable!() };
    world.submit(1, work);
    for _ in 0..9 {
        world.step();
    }
    // It is only slow: its messages are kept for it.
    let (late, others) = std::mem::take(&mut world.flights).into_iter().partition(|f| match f {
        Flight::Request(host, ..) => *host == 1,
        Flight::Reply(_, to, _) => to.host.0 == 1,
        _ => false,
    });
    world.flights = others;
    let late: Vec<Flight> = late;
    assert!(!late.is_empty());
    world.submit(REPAIRER, Work::Fence { life: life(1) });
    while world.done.len() < 2 {
        assert!(world.step());
    }
    world.flights.extend(late);
    world.run();
    let failed = world.done.iter().find(|done| done.host == 1).expect("it is told");
    assert_eq!(failed.result, Err(OpError::Fenced));
    assert_eq!(world.inconsistent_stripes(&ArrayState::new(5)), [0; 0]);
    judge(&mut world, &old, span, &new, false, "late");
}

#[test]
fn the_write_hole_is_reported_and_never_read() {
    let mut lost = 0;
    for (scheme, order) in SCHEMES.into_iter().flat_map(|s| (0..6).map(move |o| (s, o))) {
        for failed in 0..5 {
            for steps in 1.. {
                let (mut world, old) = filled(raid5(), scheme, order * 1_000 + steps as u64);
                let span = Span { start: 1, count: 1 };
                let Some(new) = cut_short(&mut world, span, steps) else { break };
                let what = format!("{scheme} d{failed} after {steps}");
                let fail = Work::Change { change: Change::Fail(DeviceId(failed), 0) };
                world.dead.insert(DeviceId(failed));
                assert_eq!(run(&mut world, REPAIRER, fail), Ok(HostAnswer::Done), "{what}");
                let fence = Work::Fence { life: life(1) };
                assert_eq!(run(&mut world, REPAIRER, fence), Ok(HostAnswer::Done), "{what}");
                judge(&mut world, &old, span, &new, true, &what);
                let missing = |world: &mut World| {
                    (0..world.layout.blocks())
                        .filter(|b| read(world, Span { start: *b, count: 1 }).is_err())
                        .collect::<Vec<u64>>()
                };
                let before = missing(&mut world);
                assert!(before.len() <= 1, "{what}: {before:?}");
                lost += before.len();
                // A rebuild does not make data of it, and a write does.
                rebuild(&mut world, DeviceId(failed));
                assert_eq!(missing(&mut world), before, "{what}");
                for block in before {
                    let work = world.write(Span { start: block, count: 1 });
                    run(&mut world, REPAIRER, work).unwrap();
                }
                assert_eq!(missing(&mut world), [0; 0], "{what}");
            }
        }
    }
    assert!(lost > 0, "no write was cut short at the wrong time");
}

/// Replaces a failed device and rebuilds it.
fn rebuild(world: &mut World, device: DeviceId) {
    world.dead.remove(&device);
    world.replace(device);
    let change = |change| Work::Change { change };
    assert_eq!(run(world, REPAIRER, change(Change::Rebuild(device))), Ok(HostAnswer::Done));
    for stripe in 0..world.layout.stripes {
        run(world, REPAIRER, Work::Rebuild { device, stripe }).unwrap();
    }
    let all = world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
    assert_eq!(run(world, REPAIRER, change(all)), Ok(HostAnswer::Done));
    let state = world.hosts[REPAIRER].state().clone();
    assert_eq!(state.devices[usize::from(device.0)], Condition::Good);
    for stripe in 0..world.layout.stripes {
        run(world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
    }
    assert_eq!(world.inconsistent_stripes(&state), [0; 0]);
}

#[test]
fn a_second_failure_in_a_group_and_nonsense_are_refused() {
    let (mut world, _) = filled(raid5(), Scheme::TimestampOrdering, 3);
    let change = |change| Work::Change { change };
    let first = change(Change::Fail(DeviceId(1), 0));
    assert_eq!(run(&mut world, 0, first.clone()), Ok(HostAnswer::Done));
    assert_eq!(run(&mut world, REPAIRER, first), Ok(HostAnswer::Done), "it has failed already");
    let second = run(&mut world, REPAIRER, change(Change::Fail(DeviceId(2), 0)));
    assert!(matches!(second, Err(OpError::Unavailable(_))), "{second:?}");
    let unknown = run(&mut world, 0, change(Change::Fail(DeviceId(9), 0)));
    assert!(matches!(unknown, Err(OpError::State(_))));
    let own = run(&mut world, 0, Work::Fence { life: life(0) });
    assert!(matches!(own, Err(OpError::State(_))));
    let stripe = world.layout.stripes;
    assert_eq!(run(&mut world, 0, Work::Scrub { stripe, repair: false }), Err(OpError::Range));
    let good = run(&mut world, 0, Work::Rebuild { device: DeviceId(1), stripe: 0 });
    assert!(matches!(good, Err(OpError::State(_))));
}

#[test]
fn a_scrub_finds_what_is_wrong_and_repairs_it_only_if_it_may() {
    for scheme in Scheme::ALL.into_iter().filter(|scheme| !scheme.has_server()) {
        let (mut world, data) = filled(raid5(), scheme, 5);
        let parity = world.layout.parity(2);
        let block = world.layout.unit_start(2) as usize;
        world.disks[usize::from(parity.0)].blocks[block].data = vec![7; 16].into();
        let check = Work::Scrub { stripe: 2, repair: false };
        let found = Ok(HostAnswer::Undecided { mismatches: 1, lost: 0, undecided: 1 });
        assert_eq!(run(&mut world, 0, check.clone()), found);
        assert_eq!(run(&mut world, 0, check.clone()), found);
        // All headers are of one operation: any of the blocks may be the wrong one.
        assert_eq!(run(&mut world, 0, Work::Scrub { stripe: 2, repair: true }), found);
        assert_eq!(run(&mut world, 0, check.clone()), found);
        let found = Ok(HostAnswer::Scrubbed { mismatches: 1, lost: 0 });
        assert_eq!(run(&mut world, 0, Work::AcceptLoss { stripe: 2 }), found);
        assert_eq!(run(&mut world, 0, check), Ok(HostAnswer::Scrubbed { mismatches: 0, lost: 0 }));
        let span = Span { start: 0, count: world.layout.blocks() };
        assert_eq!(read(&mut world, span), Ok(data));
    }
}

#[test]
fn a_device_that_restarts_has_its_dirty_stripes_checked_before_they_are_used() {
    for seed in 0..40 {
        let (mut world, old) = filled(raid5(), Scheme::TimestampOrdering, seed);
        let span = Span { start: 1, count: 1 };
        // The host dies in the middle, and all devices lose power: nothing is left but headers.
        let Some(new) = cut_short(&mut world, span, 5 + seed as usize % 16) else { continue };
        world.now += 1_000_000;
        for device in 0..5 {
            world.restart_device(DeviceId(device));
        }
        let fence = Work::Fence { life: life(1) };
        assert_eq!(run(&mut world, REPAIRER, fence), Ok(HostAnswer::Done));
        judge(&mut world, &old, span, &new, false, &format!("{seed}"));
        let device = DeviceId((seed % 5) as u16);
        let fail = Work::Change { change: world.hosts[2].state().without(device) };
        assert_eq!(run(&mut world, REPAIRER, fail), Ok(HostAnswer::Done));
        // The stripe was repaired when it was first used.
        judge(&mut world, &old, span, &new, false, &format!("{seed}, degraded"));
    }
}

#[test]
fn what_a_restarted_device_suspects_is_over_when_all_of_it_is_checked() {
    let (mut world, old) = filled(raid5(), Scheme::TimestampOrdering, 1);
    for device in 0..5 {
        world.restart_device(DeviceId(device));
    }
    world.run();
    for (index, device) in world.devices.iter().enumerate() {
        let next = device.next_suspects();
        assert_eq!(next.len() as u64, world.layout.stripes);
        assert_eq!(usize::from(world.layout.parity(next[0]).0), index, "each begins with its own");
    }
    for stripe in world.devices[0].next_suspects() {
        let found = run(&mut world, REPAIRER, Work::Scrub { stripe, repair: true });
        assert_eq!(found, Ok(HostAnswer::Scrubbed { mismatches: 0, lost: 0 }));
        assert!(world.devices.iter().all(|device| !device.next_suspects().contains(&stripe)));
    }
    // A restart after that suspects it again, unless nothing was written there for long.
    world.restart_device(DeviceId(0));
    world.run();
    assert_eq!(world.devices[0].suspects().count() as u64, world.layout.stripes);
    for stripe in world.devices[0].next_suspects() {
        run(&mut world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
    }
    for _ in 0..3 {
        world.now += world.configs[0].remember;
        world.devices[0].handle(world.now, DeviceInput::Tick);
        world.collect();
        world.run();
    }
    world.restart_device(DeviceId(0));
    world.run();
    assert_eq!(world.devices[0].suspects().count(), 0);
    let all = Span { start: 0, count: world.layout.blocks() };
    assert_eq!(read(&mut world, all), Ok(old));
}

#[test]
fn a_device_that_fails_under_load_and_is_rebuilt_under_load_has_everything() {
    for (scheme, layout) in SCHEMES.into_iter().flat_map(|s| layouts().map(|l| (s, l))) {
        for seed in 0..8 {
            let mut world = three_hosts(layout, scheme, seed);
            let device = DeviceId((seed % u64::from(layout.devices())) as u16);
            let load = |world: &mut World| {
                for host in 0..2 {
                    for _ in 0..4 {
                        let work = world.random_write(10);
                        world.submit(host, work);
                    }
                    let span = world.random_span(10);
                    world.submit(host, Work::Read { span });
                }
            };
            load(&mut world);
            for _ in 0..30 {
                world.step();
            }
            world.dead.insert(device);
            world.submit(REPAIRER, Work::Change { change: Change::Fail(device, 0) });
            load(&mut world);
            world.run();
            world.dead.remove(&device);
            world.replace(device);
            world.submit(REPAIRER, Work::Change { change: Change::Rebuild(device) });
            load(&mut world);
            world.run();
            for stripe in 0..layout.stripes {
                load(&mut world);
                world.submit(REPAIRER, Work::Rebuild { device, stripe });
                world.run();
                if stripe == 2 {
                    let change = world.hosts[REPAIRER].state().rebuilt(device, stripe + 1);
                    world.submit(REPAIRER, Work::Change { change });
                }
            }
            let change = world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
            world.submit(REPAIRER, Work::Change { change });
            load(&mut world);
            world.run();
            for done in &world.done {
                assert!(done.result.is_ok(), "{scheme} {seed}: {:?} {:?}", done.work, done.result);
            }
            let state = world.hosts[REPAIRER].state().clone();
            assert!(state.devices.iter().all(|c| *c == Condition::Good));
            assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme} {seed}");
            for host in 0..world.hosts.len() {
                assert!(world.hosts[host].is_idle());
            }
        }
    }
}

/// Two devices of a group are lost, and an operator accepts that. What was on the others stays, what was on these is an error
/// and never other data, and parity fits in the end.
#[test]
fn a_rebuild_beside_a_lost_device_marks_the_blocks_of_both() {
    for scheme in Scheme::ALL.into_iter().filter(|scheme| !scheme.has_server()) {
        let (mut world, data) = filled(raid5(), scheme, 11);
        let gone = [DeviceId(1), DeviceId(3)];
        for device in gone {
            let lose = world.hosts[REPAIRER].state().without_at_a_loss(device);
            assert_eq!(
                run(&mut world, REPAIRER, Work::Change { change: lose }),
                Ok(HostAnswer::Done)
            );
        }
        for device in gone {
            let again = world.hosts[REPAIRER].state().changed(Change::Lose(device, 0));
            assert_eq!(again, Ok(None));
        }
        let mut marked = 0;
        for device in gone {
            world.replace(device);
            world.run();
            let begin = Work::Change { change: Change::Rebuild(device) };
            assert_eq!(run(&mut world, REPAIRER, begin), Ok(HostAnswer::Done));
            for stripe in 0..world.layout.stripes {
                match run(&mut world, REPAIRER, Work::Rebuild { device, stripe }) {
                    Ok(HostAnswer::Rebuilt { marked: new, .. }) => marked += u64::from(new),
                    other => panic!("{scheme}: {other:?}"),
                }
            }
            let change = world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
            let end = Work::Change { change };
            assert_eq!(run(&mut world, REPAIRER, end), Ok(HostAnswer::Done));
        }
        let layout = world.layout;
        let (mut lost, size) = (0, layout.block_size as usize);
        for block in 0..layout.blocks() {
            let place = layout.place(block);
            let device = layout.data(place.stripe, place.data_unit);
            let found = read(&mut world, Span { start: block, count: 1 });
            if gone.contains(&device) {
                assert_eq!(found, Err(OpError::Lost { block }), "{scheme}");
                lost += 1;
            } else {
                let at = block as usize * size;
                assert_eq!(found, Ok(data.slice(at..at + size)), "{scheme}, block {block}");
            }
        }
        assert_eq!(marked, lost, "{scheme}");
        for stripe in 0..layout.stripes {
            run(&mut world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
        }
        let state = world.hosts[REPAIRER].state().clone();
        assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme}");
    }
}

/// A host dies in the middle of a write, and an operator accepts that two devices of the group are lost. The repair of the host's
/// leftovers ends, also where both had units. So the rebuild of both does not wait for it, and no block is made up.
#[test]
fn a_dead_hosts_leftovers_end_in_stripes_that_miss_two_units() {
    let (mut pending, layout) = (0, raid5());
    for (scheme, gone) in SCHEMES.into_iter().flat_map(|s| [(s, [0, 1]), (s, [2, 4])]) {
        let gone = gone.map(DeviceId);
        for steps in 1.. {
            let (mut world, old) = filled(layout, scheme, steps as u64);
            let span = spans(&world)[steps % 4];
            let Some(new) = cut_short(&mut world, span, steps) else { break };
            let what = format!("{scheme} without {gone:?} after {steps}");
            for device in gone {
                world.dead.insert(device);
                let change = world.hosts[REPAIRER].state().without_at_a_loss(device);
                assert_eq!(
                    run(&mut world, REPAIRER, Work::Change { change }),
                    Ok(HostAnswer::Done)
                );
            }
            let there = |device: &&lockify_array::Device| !gone.contains(&device.id());
            pending +=
                world.devices.iter().filter(there).filter(|device| !device.is_idle()).count();
            let fence = Work::Fence { life: life(1) };
            assert_eq!(run(&mut world, REPAIRER, fence), Ok(HostAnswer::Done), "{what}");
            assert!(world.devices.iter().filter(there).all(|device| device.is_idle()), "{what}");
            for device in gone {
                world.dead.remove(&device);
                world.replace(device);
                let begin = Work::Change { change: Change::Rebuild(device) };
                assert_eq!(run(&mut world, REPAIRER, begin), Ok(HostAnswer::Done), "{what}");
                for stripe in 0..layout.stripes {
                    run(&mut world, REPAIRER, Work::Rebuild { device, stripe }).unwrap();
                }
                let change = world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
                assert_eq!(
                    run(&mut world, REPAIRER, Work::Change { change }),
                    Ok(HostAnswer::Done)
                );
            }
            for stripe in 0..layout.stripes {
                run(&mut world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
            }
            let state = world.hosts[REPAIRER].state().clone();
            assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{what}");
            judge(&mut world, &old, span, &new, true, &what);
        }
    }
    assert!(pending > 0, "no leftovers were pending");
}

/// A device fails, and a new one is rebuilt in its place. Returns the number of blocks that this has marked as lost.
fn rebuild_anew(world: &mut World, device: DeviceId) -> u32 {
    let fail = world.hosts[REPAIRER].state().without(device);
    assert_eq!(run(world, REPAIRER, Work::Change { change: fail }), Ok(HostAnswer::Done));
    world.replace(device);
    let begin = Work::Change { change: Change::Rebuild(device) };
    assert_eq!(run(world, REPAIRER, begin), Ok(HostAnswer::Done));
    let mut marked = 0;
    for stripe in 0..world.layout.stripes {
        match run(world, REPAIRER, Work::Rebuild { device, stripe }) {
            Ok(HostAnswer::Rebuilt { marked: new, .. }) => marked += new,
            other => panic!("{other:?}"),
        }
    }
    let change = world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
    let end = Work::Change { change };
    assert_eq!(run(world, REPAIRER, end), Ok(HostAnswer::Done));
    marked
}

/// The mark of a lost block outlives its device. Writes of the other units do not take it away, in any way of writing; a write of
/// the block does.
#[test]
fn a_lost_block_stays_lost_when_its_device_is_replaced() {
    let one = |start| Span { start, count: 1 };
    // Small writes, half a stripe, all but the block, and over the end of the stripe.
    let beside = [(2, 1), (1, 1), (4, 4), (4, 2), (0, 3), (6, 4)];
    for scheme in Scheme::ALL.into_iter().filter(|scheme| !scheme.has_server()) {
        let (mut world, _) = filled(raid5(), scheme, 7);
        let (layout, block) = (world.layout, 3);
        let device = layout.place(block).device;
        let number = layout.place(block).block as usize;
        world.disks[usize::from(device.0)].blocks[number].header.lost = true;
        let scrub = Work::Scrub { stripe: 0, repair: true };
        run(&mut world, REPAIRER, scrub.clone()).unwrap();
        let writes_beside = |world: &mut World, when: &str| {
            for (start, count) in beside {
                let write = world.write(Span { start, count });
                assert_eq!(run(world, 0, write), Ok(HostAnswer::Done));
                let found = read(world, one(block));
                assert_eq!(found, Err(OpError::Lost { block }), "{scheme}, {when}, {start}");
            }
        };
        writes_beside(&mut world, "on its device");
        // The mark is no news for a rebuild.
        assert_eq!(rebuild_anew(&mut world, device), 0, "{scheme}");
        writes_beside(&mut world, "rebuilt");
        let fail = world.hosts[REPAIRER].state().without(device);
        assert_eq!(run(&mut world, REPAIRER, Work::Change { change: fail }), Ok(HostAnswer::Done));
        writes_beside(&mut world, "without its device");
        world.replace(device);
        let begin = Work::Change { change: Change::Rebuild(device) };
        assert_eq!(run(&mut world, REPAIRER, begin), Ok(HostAnswer::Done));
        writes_beside(&mut world, "in rebuilding");
        for stripe in 0..layout.stripes {
            run(&mut world, REPAIRER, Work::Rebuild { device, stripe }).unwrap();
        }
        let change = world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
        let end = Work::Change { change };
        assert_eq!(run(&mut world, REPAIRER, end), Ok(HostAnswer::Done));
        assert_eq!(read(&mut world, one(block)), Err(OpError::Lost { block }), "{scheme}");
        // The parity's device is replaced, too: the block's own mark is there.
        rebuild_anew(&mut world, layout.parity(0));
        rebuild_anew(&mut world, device);
        assert_eq!(read(&mut world, one(block)), Err(OpError::Lost { block }), "{scheme}");
        // Written anew, it is good, and stays so.
        let write = world.write(one(block));
        let Work::Write { data, .. } = write.clone() else { unreachable!() };
        assert_eq!(run(&mut world, 0, write), Ok(HostAnswer::Done));
        assert_eq!(rebuild_anew(&mut world, device), 0);
        assert_eq!(read(&mut world, one(block)), Ok(data), "{scheme}");
        let found = run(&mut world, REPAIRER, scrub);
        assert_eq!(found, Ok(HostAnswer::Scrubbed { mismatches: 0, lost: 0 }), "{scheme}");
        let state = world.hosts[REPAIRER].state().clone();
        assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme}");
    }
}

/// A medium loses the record of a lost block: the zeros in its place are not data. Parity knows.
#[test]
fn a_lost_block_stays_lost_when_its_record_is_zeroed() {
    for scheme in Scheme::ALL.into_iter().filter(|scheme| !scheme.has_server()) {
        let (mut world, _) = filled(raid5(), scheme, 8);
        let (layout, block) = (world.layout, 3);
        let place = layout.place(block);
        let disk = usize::from(place.device.0);
        world.disks[disk].blocks[place.block as usize].header.lost = true;
        let scrub = Work::Scrub { stripe: 0, repair: true };
        run(&mut world, REPAIRER, scrub.clone()).unwrap();
        let zeros = vec![0; layout.block_size as usize].into();
        world.disks[disk].blocks[place.block as usize] =
            lockify_array::Block { header: lockify_array::Header::default(), data: zeros };
        run(&mut world, REPAIRER, scrub).unwrap();
        let found = read(&mut world, Span { start: block, count: 1 });
        assert_eq!(found, Err(OpError::Lost { block }), "{scheme}");
    }
}

/// A host dies in a write that has reached parity only, and another one goes on from that parity. The data's device restarts, so
/// that only the repair after the dead host knows of its write. Another repair of the stripe comes first, for a block that its
/// medium does not return: it does not make that of others which do not fit.
#[test]
fn a_repair_waits_for_that_of_a_dead_hosts_leftovers() {
    let one = |start| Span { start, count: 1 };
    let mut hidden = 0;
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        for seed in 0..80 {
            let (mut world, data) = filled(raid5(), scheme, seed);
            let (layout, size) = (world.layout, world.layout.block_size as usize);
            let (written, parity) = (layout.place(0).device, layout.parity(0));
            let stamp = |world: &World, device: DeviceId| {
                world.disks[usize::from(device.0)].blocks[0].header.stamp
            };
            let before = stamp(&world, written);
            let cut_short = world.write(one(0));
            world.submit(1, cut_short);
            let only_in_parity = (0..2000).any(|_| {
                world.step();
                stamp(&world, parity) > before
            });
            if !only_in_parity || stamp(&world, written) > before {
                continue;
            }
            // It reads old data and new parity, and takes the difference along.
            let beside = world.write(one(2));
            world.submit(0, beside);
            let reached = stamp(&world, parity);
            let goes_on = (0..2000).any(|_| {
                let waits =
                    |flight: &Flight| matches!(flight, Flight::Request(_, to, _) if *to == written);
                world.flights.retain(|flight| !waits(flight));
                world.step();
                stamp(&world, parity) > reached
            });
            if !goes_on || stamp(&world, written) > before {
                continue;
            }
            hidden += 1;
            crash(&mut world, 1);
            world.restart_device(written);
            let block = 4;
            let place = layout.place(block);
            world.disks[usize::from(place.device.0)].bad.insert(place.block, Bad::UntilWritten);
            world.submit(0, Work::Read { span: one(block) });
            world.submit(REPAIRER, Work::Fence { life: life(1) });
            world.run();
            let at = block as usize * size;
            let found = read(&mut world, one(block));
            let is_right = found == Ok(data.slice(at..at + size));
            assert!(is_right || found.is_err(), "{scheme} {seed}: {found:?}");
            for stripe in 0..layout.stripes {
                run(&mut world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
            }
            let state = world.hosts[REPAIRER].state().clone();
            assert_eq!(world.inconsistent_stripes(&state), [0; 0], "{scheme} {seed}");
        }
    }
    assert!(hidden > 10, "{hidden}");
}
