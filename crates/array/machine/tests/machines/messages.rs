//! The cost of operations in messages. One host alone reads its own writes under every scheme.

use crate::world::{World, raid5};
use lockify_array::{HostAnswer, Scheme, Span, Work};

/// Messages of one operation on an idle array: of a read, if `write` is not set, of so many whole units.
fn messages(scheme: Scheme, write: bool, units: u64) -> u64 {
    let mut world = World::new(raid5(), scheme, 1, 1);
    let span = Span { start: 0, count: units * u64::from(world.layout.unit) };
    let work = if write { world.write(span) } else { Work::Read { span } };
    world.submit(0, work);
    world.run();
    assert!(world.done[0].result.is_ok());
    let counts = world.hosts[0].counts();
    assert_eq!(counts.requests, counts.replies);
    counts.requests + counts.replies
}

/// docs/design/array.md 5.5: 2 messages per device that is read under zero-overhead and timestamp ordering, 4 under device
/// locking; a write takes 4 where a device is read and written, else 2 (zero-overhead: written or read; timestamp ordering: 4
/// written, 2 read; device locking: 4 whatever it is). Server locking takes 4 more,
/// whatever the operation.
#[test]
fn messages_per_operation_are_those_of_the_model() {
    for units in 1..=4 {
        assert_eq!(messages(Scheme::ZeroOverhead, false, units), 2 * units);
        assert_eq!(messages(Scheme::ServerLocking, false, units), 2 * units + 4);
        assert_eq!(messages(Scheme::DeviceLocking, false, units), 4 * units);
        assert_eq!(messages(Scheme::TimestampOrdering, false, units), 2 * units);
    }
    // (read and written, only written, only read) of 1 to 4 units
    let writes = [(2, 0, 0), (0, 3, 2), (0, 4, 1), (0, 5, 0)];
    for (units, (both, written, read)) in (1..=4).zip(writes) {
        let zero = 4 * both + 2 * written + 2 * read;
        assert_eq!(messages(Scheme::ZeroOverhead, true, units), zero);
        assert_eq!(messages(Scheme::ServerLocking, true, units), zero + 4);
        assert_eq!(messages(Scheme::DeviceLocking, true, units), 4 * (both + written + read));
        assert_eq!(
            messages(Scheme::TimestampOrdering, true, units),
            4 * both + 4 * written + 2 * read
        );
    }
}

#[test]
fn one_host_reads_what_it_wrote() {
    for scheme in Scheme::ALL {
        for seed in 0..20 {
            let mut world = World::new(raid5(), scheme, 1, seed);
            let state = world.hosts[0].state().clone();
            for _ in 0..20 {
                let span = world.random_span(12);
                let write = world.write(span);
                world.submit(0, write.clone());
                world.run();
                world.submit(0, Work::Read { span });
                world.run();
                let Work::Write { data, .. } = write else { unreachable!() };
                let last = world.done.last().unwrap();
                assert_eq!(last.result, Ok(HostAnswer::Read { data }), "{scheme} seed {seed}");
            }
            assert_eq!(world.verdict(&state), Ok(()), "{scheme} seed {seed}");
        }
    }
}
