//! The cost of many waiters of one name, counted in locks that the lock manager visits, so that no
//! machine is too slow for it. Each is granted, cancelled or timed out with a few looks, however many
//! there are.

use lockify_core::*;

const ME: NodeId = NodeId(1);
const SECOND: Time = 1_000_000_000;

/// Looks per lock: one at the lock itself, when it is granted, and a few at its neighbours.
const MOST_LOOKS: u64 = 6;

struct Node {
    space: Lockspace,
    now: Time,
}

impl Node {
    fn alone() -> Node {
        let mut config = Config::new(ME, 1, Policy::Directory);
        config.deadlock_after = Some(SECOND);
        let mut space = Lockspace::new(config);
        let members = [Member { node: ME, incarnation: 1, weight: 1 }];
        space.handle(0, Input::View(View { seq: 1, members: members.into() })).unwrap();
        let mut node = Node { space, now: 0 };
        node.outputs();
        assert!(node.space.is_running());
        node
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.space.poll()).collect()
    }

    /// A call, and the rest of its effects, of which each call does a bounded part.
    fn handle(&mut self, input: Input) -> Option<LockId> {
        let ticks = input == Input::Tick;
        let id = self.space.handle(self.now, input).unwrap();
        while ticks && self.space.next_timer().is_some_and(|due| due <= self.now) {
            self.space.handle(self.now, Input::Tick).unwrap();
        }
        while self.space.has_work(&[]) {
            self.space.handle(self.now, Input::Work { full: Vec::new() }).unwrap();
        }
        id
    }

    fn lock(&mut self, client: u64, mode: Mode, flags: LockFlags) -> LockId {
        self.ask(client, "r", mode, flags, None)
    }

    fn ask(
        &mut self,
        client: u64,
        name: &str,
        mode: Mode,
        flags: LockFlags,
        timeout: Option<Time>,
    ) -> LockId {
        let args = LockArgs {
            tag: client,
            flags,
            bast: true,
            timeout,
            ..LockArgs::new(Name::new(name).unwrap(), mode)
        };
        self.handle(Input::Lock { client: ClientId(client), args }).unwrap()
    }

    fn unlock(&mut self, client: u64, lock: LockId) {
        let (client, flags) = (ClientId(client), UnlockFlags::empty());
        self.handle(Input::Unlock(UnlockArgs { client, lock, tag: 0, flags, lvb: None }));
    }

    fn convert(&mut self, client: u64, lock: LockId, mode: Mode, flags: LockFlags) {
        let (client, timeout) = (ClientId(client), None);
        let args = ConvertArgs { client, lock, tag: 0, mode, flags, lvb: None, timeout };
        self.handle(Input::Convert(args));
    }

    /// The locks that were granted since the last look.
    fn granted(&mut self) -> Vec<(u64, LockId)> {
        let all = Mode::ALL.into_iter();
        let outputs = self.outputs();
        all.flat_map(|mode| granted_in(&outputs, mode)).collect()
    }

    /// The same, in this mode.
    fn granted_in(&mut self, mode: Mode) -> Vec<(u64, LockId)> {
        granted_in(&self.outputs(), mode)
    }

    fn statuses(&mut self, wanted: Status) -> usize {
        let such = |o: &Output| matches!(o, Output::Complete(c) if c.status == wanted);
        self.outputs().iter().filter(|o| such(o)).count()
    }

    /// The looks that something takes.
    fn looks(&mut self, act: impl FnOnce(&mut Node)) -> u64 {
        let before = self.space.queue_visits();
        act(self);
        assert_eq!(self.space.defects(), []);
        self.space.queue_visits() - before
    }
}

fn granted_in(outputs: &[Output], mode: Mode) -> Vec<(u64, LockId)> {
    let granted = |output: &Output| match output {
        Output::Complete(c) if (c.status, c.mode) == (Status::Granted, Some(mode)) => {
            Some((c.client.0, c.lock))
        }
        _ => None,
    };
    outputs.iter().filter_map(granted).collect()
}

/// Has something done with `n` locks, and with ten times as many: the looks grow as they do.
#[track_caller]
fn is_linear(act: impl Fn(u64) -> u64) {
    for n in [300, 3_000] {
        let looks = act(n);
        assert!(looks <= MOST_LOOKS * n + 100, "{looks} looks for {n} locks");
    }
}

const PLAIN: LockFlags = LockFlags::empty();

/// Node with an EX holder and `n` that wait for it, each of a client of its own.
fn queue(n: u64, mode: Mode, flags: LockFlags) -> (Node, LockId, Vec<LockId>) {
    let mut node = Node::alone();
    let held = node.lock(0, Mode::EX, PLAIN);
    let waiters = (1..=n).map(|client| node.lock(client, mode, flags)).collect();
    node.outputs();
    (node, held, waiters)
}

/// Unlocks each granted lock until none waits; returns their number.
fn drain(node: &mut Node, held: LockId) -> u64 {
    node.unlock(0, held);
    let mut ended = 0;
    loop {
        let granted = node.granted();
        if granted.is_empty() {
            return ended;
        }
        for (client, lock) in granted {
            ended += 1;
            node.unlock(client, lock);
        }
    }
}

#[test]
fn waiters_are_granted_one_after_the_other() {
    for flags in [PLAIN, LockFlags::NOORDER] {
        is_linear(|n| {
            let (mut node, held, _) = queue(n, Mode::EX, flags);
            node.looks(|node| assert_eq!(drain(node, held), n))
        });
    }
}

#[test]
fn readers_and_writers_take_turns() {
    is_linear(|n| {
        let mut node = Node::alone();
        let held = node.lock(0, Mode::EX, PLAIN);
        for client in 1..=n {
            // Ten readers, then a writer.
            let mode = if client % 11 == 0 { Mode::EX } else { Mode::PR };
            node.lock(client, mode, PLAIN);
        }
        node.outputs();
        node.looks(|node| assert_eq!(drain(node, held), n))
    });
}

/// To queue behind many readers, and to be let through by the last of them.
#[test]
fn many_holders_of_one_mode_do_not_slow_each_other_down() {
    for mode in [Mode::NL, Mode::CR, Mode::CW, Mode::PR] {
        is_linear(|n| {
            let mut node = Node::alone();
            node.looks(|node| {
                let held: Vec<_> = (1..=n).map(|client| node.lock(client, mode, PLAIN)).collect();
                // Each of them is told of the first one only.
                for client in n + 1..=2 * n {
                    node.lock(client, Mode::EX, PLAIN);
                }
                (1..=n).zip(held).for_each(|(client, lock)| node.unlock(client, lock));
                node.outputs();
            })
        });
    }
}

/// As locks are kept at NL and converted when they are needed.
#[test]
fn converters_take_turns_among_many_that_hold_nothing() {
    for flags in [PLAIN, LockFlags::QUECVT] {
        is_linear(|n| {
            let mut node = Node::alone();
            let locks: Vec<_> = (1..=n).map(|c| (c, node.lock(c, Mode::NL, PLAIN))).collect();
            node.outputs();
            node.looks(|node| {
                for &(client, lock) in &locks {
                    node.convert(client, lock, Mode::EX, flags);
                }
                let mut converted = 0;
                while let [(client, lock)] = node.granted_in(Mode::EX)[..] {
                    converted += 1;
                    node.convert(client, lock, Mode::NL, PLAIN);
                }
                assert_eq!(converted, n);
            })
        });
    }
}

#[test]
fn waiters_in_the_middle_go() {
    is_linear(|n| {
        let (mut node, _, waiters) = queue(n, Mode::EX, PLAIN);
        node.looks(|node| {
            // From the middle outwards.
            let half = waiters.len() / 2;
            let (front, back) = waiters.split_at(half);
            let order = back.iter().chain(front.iter().rev());
            for &lock in order {
                let client = ClientId(1 + waiters.iter().position(|l| *l == lock).unwrap() as u64);
                node.handle(Input::Cancel { client, lock });
            }
            assert_eq!(node.statuses(Status::Canceled), waiters.len());
        })
    });
}

#[test]
fn time_outs_of_all_at_once() {
    is_linear(|n| {
        let mut node = Node::alone();
        node.lock(0, Mode::EX, PLAIN);
        for client in 1..=n {
            node.ask(client, "r", Mode::EX, PLAIN, Some(10 * SECOND));
        }
        node.outputs();
        node.now = 11 * SECOND;
        node.looks(|node| {
            node.handle(Input::Tick);
            assert_eq!(node.statuses(Status::TimedOut) as u64, n);
        })
    });
}

#[test]
fn a_client_with_many_waiting_requests_goes() {
    is_linear(|n| {
        let mut node = Node::alone();
        node.lock(0, Mode::EX, PLAIN);
        for _ in 0..n {
            node.lock(7, Mode::EX, PLAIN);
        }
        let last = node.lock(8, Mode::PR, PLAIN);
        node.outputs();
        node.looks(|node| {
            node.handle(Input::ClientGone(ClientId(7)));
            node.handle(Input::ClientGone(ClientId(0)));
            assert_eq!(node.granted(), [(8, last)]);
            assert_eq!(node.space.lock_count(), 1);
        })
    });
}

/// The exit of one client costs as much as its own locks, not those of others.
#[test]
fn clients_go_one_after_the_other() {
    let (mut node, held, _) = queue(2_000, Mode::EX, PLAIN);
    for client in (1..=2_000).rev() {
        node.handle(Input::ClientGone(ClientId(client)));
        assert_eq!(node.space.lock_count(), client as usize);
    }
    assert_eq!(node.space.own_lock_count(), 1);
    node.unlock(0, held);
    assert_eq!(node.space.defects(), []);
}

/// Time-outs that have not been needed are forgotten, long before their time.
#[test]
fn ended_operations_leave_no_timers() {
    let mut node = Node::alone();
    for client in 0..50_000 {
        let lock = node.ask(client, "r", Mode::EX, PLAIN, Some(3600 * SECOND));
        node.unlock(client, lock);
        node.outputs();
    }
    assert!(node.space.timer_count() < 10_000, "{} timers", node.space.timer_count());
    // Those that are needed stay.
    let held = node.lock(0, Mode::EX, PLAIN);
    node.ask(1, "r", Mode::EX, PLAIN, Some(SECOND));
    for client in 2..20_000 {
        let lock = node.ask(client, "other", Mode::EX, PLAIN, Some(3600 * SECOND));
        node.unlock(client, lock);
    }
    node.outputs();
    node.now += 2 * SECOND;
    node.handle(Input::Tick);
    assert_eq!(node.statuses(Status::TimedOut), 1);
    node.unlock(0, held);
}

/// A circle is found among many that wait for the same.
#[test]
fn a_deadlock_is_found_among_many_waiters() {
    let (mut node, _, _) = queue(3_000, Mode::EX, PLAIN);
    node.ask(5_000, "a", Mode::EX, PLAIN, None);
    node.ask(5_001, "b", Mode::EX, PLAIN, None);
    node.ask(5_000, "b", Mode::EX, PLAIN, None);
    node.ask(5_001, "a", Mode::EX, PLAIN, None);
    node.outputs();
    for _ in 0..3 {
        node.now += 2 * SECOND;
        node.handle(Input::Tick);
    }
    assert_eq!(node.statuses(Status::Deadlock), 1);
}
