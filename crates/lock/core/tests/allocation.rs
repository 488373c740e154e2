//! After warm-up, an uncontended local lock allocates nothing: not for the lock, its conversions,
//! its unlock, nor for a resource that comes, goes, or stays cached.
//!
//! A program of its own, because a program has one allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockify_core::*;

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and no test to count for.
    let _ = CALLS.try_with(|c| c.set(c.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's conditions.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `ptr` came from the system's allocator.
        unsafe { System.realloc(ptr, layout, size) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; `ptr` came from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CLIENT: ClientId = ClientId(1);
const NAMES: u32 = 100;

/// Node 1 of a lockspace of `nodes`; the others exist in the view's weights only.
fn first_of(nodes: u32, policy: Policy) -> Lockspace {
    let mut space = Lockspace::new(Config::new(NodeId(1), 1, policy));
    let members = (1..=nodes).map(|n| Member {
        node: NodeId(n),
        incarnation: 1,
        // The directory is at the last node.
        weight: u32::from(n == nodes),
    });
    let view = View { seq: 1, members: members.collect() };
    let mut others: Vec<Lockspace> =
        (2..=nodes).map(|n| Lockspace::new(Config::new(NodeId(n), 1, policy))).collect();
    for other in &mut others {
        other.handle(0, Input::View(view.clone())).unwrap();
    }
    space.handle(0, Input::View(view)).unwrap();
    exchange(&mut space, &mut others);
    assert!(space.is_running());
    // Make this node the master of all names, so that later locks need nobody else.
    let warm: Vec<LockId> = (0..NAMES).map(|i| request(&mut space, i, Mode::NL)).collect();
    exchange(&mut space, &mut others);
    for id in warm {
        unlock(&mut space, id);
    }
    exchange(&mut space, &mut others);
    space
}

/// Delivers messages until there are none.
fn exchange(space: &mut Lockspace, others: &mut [Lockspace]) {
    loop {
        let mut mail = Vec::new();
        for s in std::iter::once(&mut *space).chain(others.iter_mut()) {
            let from = s.config().node;
            while let Some(output) = s.poll() {
                if let Output::Send { to, message } = output {
                    mail.push((from, to, *message));
                }
            }
        }
        if mail.is_empty() {
            return;
        }
        for (from, to, message) in mail {
            let receiver = match to {
                NodeId(1) => &mut *space,
                NodeId(n) => &mut others[n as usize - 2],
            };
            receiver.handle(0, Input::Receive { from, message }).unwrap();
        }
    }
}

fn request(space: &mut Lockspace, i: u32, mode: Mode) -> LockId {
    let args = LockArgs { bast: true, ..LockArgs::new(Name::new(i.to_be_bytes()).unwrap(), mode) };
    space.handle(0, Input::Lock { client: CLIENT, args }).unwrap().unwrap()
}

fn convert(space: &mut Lockspace, lock: LockId, mode: Mode) {
    let flags = LockFlags::empty();
    let args = ConvertArgs { client: CLIENT, lock, tag: 0, mode, flags, lvb: None, timeout: None };
    space.handle(0, Input::Convert(args)).unwrap();
}

fn unlock(space: &mut Lockspace, lock: LockId) {
    let flags = UnlockFlags::empty();
    let args = UnlockArgs { client: CLIENT, lock, tag: 0, flags, lvb: None };
    space.handle(0, Input::Unlock(args)).unwrap();
}

/// The next output is a completion of that status.
fn expect(space: &mut Lockspace, status: Status) {
    match space.poll() {
        Some(Output::Complete(c)) => assert_eq!(c.status, status),
        other => panic!("expected {status:?}, got {other:?}"),
    }
    assert!(space.poll().is_none());
}

/// Locks, converts down and up, and unlocks each name in turn.
fn cycle(space: &mut Lockspace, times: u32) {
    for i in 0..times {
        let lock = request(space, i % NAMES, Mode::EX);
        expect(space, Status::Granted);
        for mode in [Mode::PR, Mode::CW, Mode::NL, Mode::EX] {
            convert(space, lock, mode);
            expect(space, Status::Granted);
        }
        unlock(space, lock);
        expect(space, Status::Unlocked);
    }
}

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(1)))), 1);
    assert_eq!(allocations_of(|| ()), 0);
}

#[test]
fn uncontended_lock_convert_unlock_allocates_nothing() {
    for policy in Policy::ALL {
        let mut space = first_of(1, policy);
        cycle(&mut space, 2 * NAMES);
        let made = allocations_of(|| cycle(&mut space, 100_000));
        assert_eq!(made, 0, "{policy:?}");
    }
}

/// The master is this node, the directory another: resources stay cached when they are unlocked.
#[test]
fn cached_mastery_allocates_nothing() {
    for policy in [Policy::Directory, Policy::Claim(ClaimMode::Optimistic), Policy::Broadcast] {
        let mut space = first_of(3, policy);
        cycle(&mut space, 2 * NAMES);
        let made = allocations_of(|| cycle(&mut space, 100_000));
        assert_eq!(made, 0, "{policy:?}");
    }
}
