//! A lockspace that is written and read again is the same, and other bytes are refused.

use crate::common::{Cluster, MS, node};

use lockify_core::*;

fn image(space: &Lockspace) -> Vec<u8> {
    postcard::to_allocvec(space).unwrap()
}

/// One of everything: granted, converting and waiting locks, value blocks, a cached master, claims
/// that are gathered and on their way, operations behind the barrier and behind the gate.
fn rich(policy: Policy) -> Cluster {
    let mut c = Cluster::with(3, policy, |config| {
        config.deadlock_after = Some(10 * MS);
        config.trace = true;
    });
    for directory in 1..=3 {
        let held = c.name_at(node(directory));
        let a = c.request(node(1), &held, Mode::PR);
        let b = c.request_with(node(2), &held, Mode::PR, LockFlags::VALBLK);
        c.run();
        c.convert(node(1), a, Mode::EX).unwrap();
        c.request(node(3), &held, Mode::EX);
        c.run();
        let new = format!("new {directory}");
        let created = c.request_with(node(1), &new, Mode::EX, LockFlags::NOTIFY);
        c.request_with(node(1), "one more", Mode::EX, LockFlags::NOTIFY);
        // Waits at the barrier while claims are not settled.
        let _ = c.convert(node(1), created, Mode::NL);
        c.deliver(node(1), node(2));
        c.unlock(node(2), b).unwrap();
    }
    c
}

#[test]
fn an_image_holds_everything() {
    for policy in Policy::ALL {
        let mut c = rich(policy);
        let same = |c: &Cluster| {
            for space in c.nodes.values() {
                let again: Lockspace = postcard::from_bytes(&image(space)).unwrap();
                assert!(again == *space, "{policy:?}");
                assert_eq!(again.resources(), space.resources());
                assert_eq!(again.next_timer(), space.next_timer());
            }
        };
        same(&c);
        // Also in the middle of a recovery, message by message.
        c.kill(node(3));
        c.view();
        for from in [1, 2, 1, 2, 1, 2] {
            same(&c);
            c.deliver(node(from), node(3 - from));
        }
        c.run();
        same(&c);
    }
}

#[test]
fn it_goes_on_where_it_was() {
    for policy in Policy::ALL {
        let mut c = Cluster::new(3, policy);
        let name = c.name_at(node(2));
        let held = c.request(node(1), &name, Mode::EX);
        c.run();
        let waiting = c.request(node(3), &name, Mode::EX);
        for space in c.nodes.values_mut() {
            *space = postcard::from_bytes(&image(space)).unwrap();
        }
        c.run();
        assert_eq!(c.completions(node(3), waiting), []);
        assert_eq!(c.granted(node(1), held), Mode::EX);
        c.unlock(node(1), held).unwrap();
        c.run();
        assert_eq!(c.granted(node(3), waiting), Mode::EX, "{policy:?}");
        // Ids that were given before are not given again.
        let next = c.request(node(3), "another", Mode::PR);
        assert_ne!(next, waiting);
    }
}

#[test]
fn equality_sees_what_differs() {
    let c = rich(Policy::Claim(ClaimMode::Optimistic));
    let space = &c.nodes[&node(1)];
    let mut later = space.clone();
    later.handle(c.now + 1, Input::Tick).unwrap();
    assert!(later != *space, "its clock has gone on");
    let other = &c.nodes[&node(2)];
    assert!(other != space);
}

#[test]
fn what_is_no_image_is_refused_without_harm() {
    let c = rich(Policy::Claim(ClaimMode::Optimistic));
    let bytes = image(&c.nodes[&node(1)]);
    for end in 0..bytes.len() {
        assert!(postcard::from_bytes::<Lockspace>(&bytes[..end]).is_err(), "{end}");
    }
    let mut refused = 0;
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            refused += usize::from(postcard::from_bytes::<Lockspace>(&bad).is_err());
        }
    }
    // Numbers and names may be any; queues, enumerations and lengths may not.
    assert!(refused > bytes.len() / 4, "{refused} of {}", 3 * bytes.len());
}
