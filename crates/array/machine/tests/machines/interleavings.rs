//! Several hosts on a few stripes, in random interleavings: stripes stay consistent, and operations are serializable.

use crate::world::{World, life, raid5, raid6};
use lockify_array::{
    ArrayState, DeviceConfig, DeviceId, HostConfig, Layout, Redundancy, Scheme, Work,
};
use rand::RngExt as _;

fn contended(layout: Layout, scheme: Scheme, seed: u64, doubles: bool) -> World {
    let mut world = World::new(Layout { stripes: 2, ..layout }, scheme, 3, seed);
    world.doubles = doubles;
    load(&mut world, 40);
    world.run();
    world
}

/// Operations of all hosts, some of them still under way.
pub fn load(world: &mut World, operations: u32) {
    let longest = world.layout.blocks().min(10);
    for _ in 0..operations {
        let host = world.random.random_range(0..world.hosts.len());
        let work = match world.random.random_bool(0.6) {
            true => world.random_write(longest),
            false => Work::Read { span: world.random_span(longest) },
        };
        world.submit(host, work);
        for _ in 0..world.random.random_range(0..30) {
            world.step();
        }
    }
}

/// That all has succeeded, and as it should.
pub fn verdict(world: &World) -> Result<(), String> {
    let failed = world.done.iter().find(|done| done.result.is_err());
    if let Some(failed) = failed {
        return Err(format!("host {}: {:?} of {:?}", failed.host, failed.result, failed.work));
    }
    world.verdict(world.hosts[0].state())
}

pub fn small_mirror() -> Layout {
    Layout { redundancy: Redundancy::Mirror, data: 1, ..raid5() }
}

pub fn smallest() -> Layout {
    Layout { data: 2, unit: 1, ..raid5() }
}

#[test]
fn operations_are_serializable_and_stripes_consistent() {
    for scheme in Scheme::ALL.into_iter().filter(|scheme| *scheme != Scheme::ZeroOverhead) {
        for layout in [raid5(), smallest(), small_mirror(), raid6()] {
            for seed in 0..60 {
                let world = contended(layout, scheme, seed, seed % 2 == 1);
                let what = format!("{scheme} {:?} seed {seed}", layout.redundancy);
                assert_eq!(verdict(&world), Ok(()), "{what}");
            }
        }
    }
}

/// The same with the options that change how operations are done.
#[test]
fn variants_are_as_good() {
    let layout = Layout { stripes: 2, ..raid5() };
    let state = ArrayState::new(layout.devices());
    let scheme = Scheme::TimestampOrdering;
    for seed in 0..60 {
        let host = |id| HostConfig {
            delta_at_half: true,
            starving_after: 1,
            ..HostConfig::new(life(id), scheme, layout, state.clone())
        };
        let device = |id| DeviceConfig {
            basic: seed % 2 == 0,
            ..DeviceConfig::new(DeviceId(id), scheme, layout)
        };
        let devices = (0..layout.devices()).map(device).collect();
        let mut world = World::of((0..3).map(host).collect(), devices, seed);
        load(&mut world, 40);
        world.run();
        assert_eq!(verdict(&world), Ok(()), "seed {seed}");
    }
}

#[test]
fn without_control_they_are_not() {
    let bad = (0..20)
        .filter(|seed| verdict(&contended(raid5(), Scheme::ZeroOverhead, *seed, false)).is_err());
    assert!(bad.count() > 10);
}
