//! A device is back while the others have continued without it. A host that knows as little as the device must not read
//! its memory.

use lockify_array::mutation::Mutation;
use lockify_array::{
    ArrayState, DeviceConfig, DeviceId, HostAnswer, HostConfig, Layout, Scheme, Span, Work,
};

use crate::world::{World, life, raid5};

const SCHEMES: [Scheme; 4] = [
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
    Scheme::DeviceLocking,
    Scheme::TimestampOrdering,
];

fn three_hosts(scheme: Scheme, mutation: Option<Mutation>) -> World {
    let layout = raid5();
    let state = ArrayState::new(layout.devices());
    let host = |id| HostConfig::new(life(id), scheme, layout, state.clone());
    let device = |id| DeviceConfig { mutation, ..DeviceConfig::new(DeviceId(id), scheme, layout) };
    let devices = (0..layout.devices()).map(device).collect();
    World::of((0..3).map(host).collect(), devices, 1)
}

/// Returns true if a host without any news reads the newest write.
fn reads_the_newest(scheme: Scheme, mutation: Option<Mutation>) -> bool {
    let (mut world, span) = (three_hosts(scheme, mutation), Span { start: 0, count: 1 });
    let away = raid5().place(0).device;
    // Records are on their way to the disks.
    world.run();
    world.dead.insert(away);
    let fail = world.hosts[2].state().without(away);
    world.submit(2, Work::Change { change: fail });
    world.run();
    let write = world.write(span);
    let Work::Write { data: newest, .. } = write.clone() else { unreachable!() };
    world.submit(2, write);
    world.run();
    world.dead.remove(&away);
    world.restart_device(away);
    world.submit(0, Work::Read { span });
    world.run();
    let answer = world.done.pop().expect("it was answered").result;
    matches!(answer, Ok(HostAnswer::Read { data }) if data == newest)
}

#[test]
fn a_device_that_is_back_serves_nothing_of_what_the_others_went_on_without() {
    for scheme in SCHEMES {
        assert!(reads_the_newest(scheme, None), "{scheme}");
        assert!(!reads_the_newest(scheme, Some(Mutation::ServesBeforeLetIn)), "{scheme}");
    }
}

/// When a copy of a device's medium was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    /// While the device did not run.
    Ended,
    /// The device was given another number since.
    Running,
    /// When the device had asked for another number, and before the array took it.
    Asking,
}

/// Returns what a host reads after a device's medium was put back to a copy, and whether the device knows.
fn after_an_old_copy(scheme: Scheme, copied: Copied, mutation: Option<Mutation>) -> (bool, bool) {
    let (mut world, span) = (three_hosts(scheme, mutation), Span { start: 0, count: 1 });
    let put_back = raid5().place(0).device;
    let index = usize::from(put_back.0);
    world.run();
    let first = world.write(span);
    world.submit(1, first);
    world.run();
    if copied == Copied::Asking {
        world.unheard.insert(put_back);
        let now = world.now;
        world.devices[index].change_key(now);
        world.collect();
        world.run();
        world.unheard.remove(&put_back);
    }
    let copy = world.disks[index].clone();
    if copied == Copied::Running {
        let now = world.now;
        world.devices[index].change_key(now);
    } else {
        world.restart_device(put_back);
    }
    world.run();
    assert!(world.devices[index].is_let_in());
    let write = world.write(span);
    let Work::Write { data: newest, .. } = write.clone() else { unreachable!() };
    world.submit(2, write);
    world.run();
    world.disks[index] = copy;
    world.restart_device(put_back);
    world.run();
    let knows = world.devices[index].is_out_of_date();
    if knows {
        let fail = world.hosts[2].state().without(put_back);
        world.submit(2, Work::Change { change: fail });
        world.run();
        world.let_in_again(put_back);
        world.run();
        assert!(!world.devices[index].is_out_of_date(), "it is rebuilt now");
        assert!(world.devices[index].is_let_in());
    }
    world.submit(0, Work::Read { span });
    world.run();
    let answer = world.done.pop().expect("it was answered").result;
    (matches!(answer, Ok(HostAnswer::Read { data }) if data == newest), knows)
}

/// The others are a majority without a medium that was put back. Of two voters none is, so that it has to vote.
#[test]
fn an_older_copy_votes_where_no_majority_is_without_it() {
    let layout = Layout { data: 1, ..raid5() };
    let state = ArrayState::new(layout.devices());
    let scheme = Scheme::TimestampOrdering;
    let host = HostConfig::new(life(0), scheme, layout, state);
    let device = |id| DeviceConfig::new(DeviceId(id), scheme, layout);
    let mut world = World::of(vec![host], (0..2).map(device).collect(), 1);
    world.run();
    let copy = world.disks[1].clone();
    world.restart_device(DeviceId(1));
    world.run();
    world.disks[1] = copy;
    world.restart_device(DeviceId(1));
    world.run();
    assert!(world.devices[1].is_out_of_date());
    let fail = world.hosts[0].state().without(DeviceId(1));
    world.submit(0, Work::Change { change: fail });
    world.run();
    assert!(world.hosts[0].state().is_failed(DeviceId(1)));
}

#[test]
fn a_medium_that_was_put_back_to_an_older_copy_serves_nothing_of_it() {
    let mut old = 0;
    for scheme in SCHEMES {
        for copied in [Copied::Ended, Copied::Running, Copied::Asking] {
            assert_eq!(
                after_an_old_copy(scheme, copied, None),
                (true, true),
                "{scheme}, {copied:?}"
            );
            let mutation = match copied {
                Copied::Asking => Mutation::ServesByInheritedKey,
                _ => Mutation::TrustsOldCopies,
            };
            let (newest, knows) = after_an_old_copy(scheme, copied, Some(mutation));
            assert!(!knows, "{scheme}, {copied:?}");
            old += u32::from(!newest);
        }
    }
    // Some schemes notice it by what the device remembers of its writes.
    assert!(old >= 2, "{old}");
}
