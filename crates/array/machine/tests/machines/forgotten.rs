//! Devices that forget locks and pre-writes in the middle of operations (docs/design/array.md 3.4).

use lockify_array::{Device, DeviceId, Layout, Scheme, Span};
use rand::RngExt as _;

use crate::world::{World, raid5, written};

/// Each host writes blocks of its own, one operation after the other, in stripes that all share. A device restarts from
/// time to time. At the end every block is its host's last write, and parity fits. Returns how many writes a forgetful
/// device has taken up.
pub fn restarts(world: &mut World) -> Result<u64, String> {
    let hosts = world.hosts.len() as u64;
    let own = world.layout.blocks() / hosts;
    let size = world.layout.block_size as usize;
    let mut last = vec![0; world.layout.blocks() as usize * size];
    for round in 0..8 {
        for host in 0..hosts {
            let count = world.random.random_range(1..=own);
            let start = host * own + world.random.random_range(0..=own - count);
            let work = match world.random.random_bool(0.7) {
                true => world.write(Span { start, count }),
                // All but a byte of the first and last block.
                false => world.patch(start * size as u64 + 1, count as usize * size - 2),
            };
            let (start, data) = written(&world.layout, &work).unwrap();
            last[start as usize..start as usize + data.len()].copy_from_slice(data);
            world.submit(host as usize, work);
        }
        for _ in 0..world.random.random_range(5..60) {
            world.step();
        }
        if round % 2 == 0 {
            let device = world.random.random_range(0..world.layout.devices());
            world.restart_device(DeviceId(device));
        }
        if !world.ends() {
            return Err(format!("it goes on for ever: {}", world.left()));
        }
    }
    if let Some(done) = world.done.iter().find(|done| done.result.is_err()) {
        return Err(format!("{:?}", done.result));
    }
    let state = world.hosts[0].state().clone();
    if let Some(stripe) = world.inconsistent_stripes(&state).first() {
        return Err(format!("parity of stripe {stripe} does not fit"));
    }
    for (block, data) in last.chunks(size).enumerate() {
        if world.content(&state, block as u64) != *data {
            return Err(format!("block {block} is not what was written last"));
        }
    }
    Ok(world.devices.iter().map(Device::taken_up).sum())
}

#[test]
fn what_is_partly_written_is_finished_whatever_devices_forget() {
    let layout = Layout { stripes: 2, unit: 3, ..raid5() };
    for scheme in [Scheme::DeviceLocking, Scheme::TimestampOrdering] {
        let mut taken_up = 0;
        for seed in 0..60 {
            let mut world = World::new(layout, scheme, 3, seed);
            match restarts(&mut world) {
                Ok(count) => taken_up += count,
                Err(what) => panic!("{scheme} seed {seed}: {what}"),
            }
        }
        assert!(taken_up > 10, "{scheme}: only {taken_up}");
    }
}
