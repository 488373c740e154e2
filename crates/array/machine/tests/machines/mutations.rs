//! Every rule that can be left out is missed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockify_array::mutation::Mutation;
use lockify_array::{ArrayState, DeviceConfig, DeviceId, HostConfig, Layout, Scheme};

use crate::forgotten::restarts;
use crate::interleavings::{load, verdict};
use crate::returned::node_ends;
use crate::world::{World, life, raid5};

fn world(scheme: Scheme, seed: u64, mutation: Mutation) -> World {
    world_of(Layout { stripes: 2, ..raid5() }, scheme, seed, mutation)
}

fn world_of(layout: Layout, scheme: Scheme, seed: u64, mutation: Mutation) -> World {
    let state = ArrayState::new(layout.devices());
    let host = |id| HostConfig {
        mutation: Some(mutation),
        ..HostConfig::new(life(id), scheme, layout, state.clone())
    };
    let device = |id| DeviceConfig {
        mutation: Some(mutation),
        ..DeviceConfig::new(DeviceId(id), scheme, layout)
    };
    let devices = (0..layout.devices()).map(device).collect();
    World::of((0..3).map(host).collect(), devices, seed)
}

/// Returns true if the judge rejects one of some seeds.
fn found(scheme: Scheme, mutation: Mutation) -> bool {
    (0..60).any(|seed| {
        let mut world = world(scheme, seed, mutation);
        load(&mut world, 40);
        !world.ends() || verdict(&world).is_err()
    })
}

#[test]
fn unconditional_writes_are_found() {
    assert!(found(Scheme::TimestampOrdering, Mutation::TsoWritesUnconditionally));
}

#[test]
fn queued_reads_that_are_kept_are_found() {
    assert!(found(Scheme::TimestampOrdering, Mutation::TsoKeepsQueuedReads));
}

#[test]
fn unlocking_before_all_is_written_is_found() {
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        assert!(found(scheme, Mutation::UnlockBeforeWritten), "{scheme}");
    }
}

/// Other hosts have written without the device, and parity says that its old block is the newest.
#[test]
fn vouching_for_any_medium_is_found() {
    let (scheme, mutation) = (Scheme::TimestampOrdering, Mutation::VouchesForAnyMedium);
    let reads_old_content = |seed: u64| {
        let world = world_of(raid5(), scheme, seed, mutation);
        catch_unwind(AssertUnwindSafe(|| node_ends(world, seed, 3, false))).is_err()
    };
    assert!((0..80).any(reads_old_content));
}

#[test]
fn missing_tombstones_are_found() {
    assert!(found(Scheme::DeviceLocking, Mutation::UnlockLeavesNoTombstone));
}

#[test]
fn a_patch_of_what_the_host_remembers_is_found() {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking, Scheme::ServerLocking] {
        assert!(found(scheme, Mutation::PatchesOwnCopy), "{scheme}");
    }
}

#[test]
fn a_read_modify_write_of_what_is_partly_written_is_found() {
    let bad = |seed| {
        let mutation = Mutation::DeltaAfterPartialWrite;
        restarts(&mut world(Scheme::TimestampOrdering, seed, mutation)).is_err()
    };
    assert!((0..200).any(bad));
}
