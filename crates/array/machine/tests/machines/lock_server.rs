//! The lock server dies and comes back, connections to it break, and hosts die with their locks.

use std::collections::BTreeMap;

use lockify_array::{DeviceEvent, HostInput, Layout, Scheme, Work};
use rand::RngExt as _;

use crate::interleavings::{load, verdict};
use crate::world::{World, life, raid5};

const SCHEMES: [Scheme; 2] = [Scheme::ServerLocking, Scheme::CallbackLocking];

fn world(scheme: Scheme, seed: u64) -> World {
    World::new(Layout { stripes: 2, ..raid5() }, scheme, 3, seed)
}

fn some_steps(world: &mut World) {
    for _ in 0..world.random.random_range(0..40) {
        world.step();
    }
}

#[test]
fn the_server_comes_back_and_hosts_keep_what_they_hold() {
    for scheme in SCHEMES {
        for seed in 0..40 {
            let mut world = world(scheme, seed);
            for _ in 0..3 {
                load(&mut world, 12);
                world.start_server();
                some_steps(&mut world);
            }
            world.run();
            assert_eq!(verdict(&world), Ok(()), "{scheme} seed {seed}");
            assert!(world.suspects.is_empty(), "{scheme} seed {seed}");
        }
    }
}

#[test]
fn what_was_under_way_on_a_connection_that_broke_is_said_again() {
    for scheme in SCHEMES {
        for seed in 0..40 {
            let mut world = world(scheme, seed);
            for _ in 0..6 {
                load(&mut world, 6);
                let host = world.random.random_range(0..3);
                world.connect_to_server(host);
                world.collect();
                some_steps(&mut world);
            }
            world.run();
            assert_eq!(verdict(&world), Ok(()), "{scheme} seed {seed}");
            assert!(world.suspects.is_empty(), "{scheme} seed {seed}");
        }
    }
}

/// Another host fences every life that the server suspects. At the end it fences the dead one in
/// any case.
#[test]
fn what_a_dead_host_held_is_repaired_and_freed() {
    let mut suspected = 0;
    for scheme in SCHEMES {
        for seed in 0..40 {
            let mut world = world(scheme, seed);
            load(&mut world, 12);
            world.kill_host(0);
            for _ in 0..12 {
                let host = world.random.random_range(1..3);
                let span = world.random_span(10);
                let work = world.write(span);
                world.submit(host, work);
                some_steps(&mut world);
            }
            let mut steps = 0;
            while world.step() {
                steps += 1;
                assert!(steps < 100_000, "{scheme} seed {seed} goes on for ever");
                if world.suspects.remove(&life(0)) {
                    suspected += 1;
                    world.submit(1, Work::Fence { life: life(0) });
                }
            }
            world.submit(1, Work::Fence { life: life(0) });
            world.run();
            let failed = world.done.iter().find(|done| done.result.is_err());
            let why = failed.map(|done| (done.host, &done.work, &done.result));
            assert!(why.is_none(), "{scheme} seed {seed}: {why:?}");
            let state = world.hosts[1].state().clone();
            assert!(world.inconsistent_stripes(&state).is_empty(), "{scheme} seed {seed}");
            assert!(world.suspects.is_empty(), "{scheme} seed {seed}");
            assert!(world.server.as_ref().unwrap().is_empty(), "{scheme} seed {seed}");
        }
    }
    assert!(suspected > 0);
}

/// The order of headers shows a repair the interrupted write.
#[test]
fn a_write_that_has_waited_for_locks_is_newer_than_what_it_has_waited_for() {
    for scheme in SCHEMES {
        for seed in 0..10 {
            let mut world = world(scheme, seed);
            world.skew.fill(0);
            load(&mut world, 30);
            world.run();
            let mut newest = BTreeMap::new();
            for (device, event) in &world.events {
                let DeviceEvent::Write { extent, stamp, .. } = event else { continue };
                for block in extent.start..extent.end() {
                    let before = newest.insert((*device, block), stamp.time);
                    assert!(before.is_none_or(|time| time <= stamp.time), "{scheme} seed {seed}");
                }
            }
            assert!(!newest.is_empty());
        }
    }
}

/// Otherwise the next host has to call its locks back, and to wait for its lease if it is gone by
/// then.
#[test]
fn a_host_that_leaves_keeps_nothing() {
    let mut world = world(Scheme::CallbackLocking, 1);
    let span = world.random_span(10);
    let work = world.write(span);
    world.submit(0, work);
    while world.done.is_empty() {
        assert!(world.step());
    }
    assert!(!world.server.as_ref().unwrap().is_empty());
    let now = world.now + world.skew[0];
    world.hosts[0].handle(now, HostInput::Leave);
    world.collect();
    while !world.flights.is_empty() {
        world.step();
    }
    let work = world.write(span);
    world.submit(1, work);
    while world.done.len() < 2 {
        assert!(world.step());
    }
    assert_eq!(world.hosts[1].counts().delayed, 0);
}
