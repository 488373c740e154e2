use super::*;
use crate::{DeviceId, Extent};

const SECOND: Time = 1_000_000_000;

/// A server, its log, and its messages.
struct World {
    server: LockServer,
    log: Vec<Bytes>,
    now: Time,
    said: Vec<(u32, ServerReply)>,
    suspects: Vec<u32>,
    /// Writes of the log are not answered.
    slow_log: bool,
    seq: u64,
}

fn life(host: u32) -> Life {
    Life { host: HostId(host), incarnation: 1 }
}

fn range(device: u16, start: u64, count: u32, mode: LockMode) -> LockRange {
    LockRange { device: DeviceId(device), extent: Extent { start, count }, mode }
}

use LockMode::{Exclusive as X, Shared as S};

impl World {
    fn new(scheme: Scheme) -> Self {
        let config = ServerConfig { scheme, lease: 4 * SECOND, message_life: 5 * SECOND };
        let server = LockServer::new(config, &[], 0).unwrap();
        let mut world = World {
            server,
            log: Vec::new(),
            now: 0,
            said: Vec::new(),
            suspects: Vec::new(),
            slow_log: false,
            seq: 0,
        };
        (1..=4).for_each(|host| world.register(host, 1, Vec::new()));
        world.said.clear();
        world
    }

    fn run(&mut self) {
        while let Some(output) = self.server.poll() {
            match output {
                ServerOutput::Send { to, reply } => self.said.push((to.host.0, reply)),
                ServerOutput::Suspect(life) => self.suspects.push(life.host.0),
                ServerOutput::Log(ask) => {
                    let token = match ask {
                        LogAsk::Append { token, record } => {
                            self.log.push(record);
                            token
                        }
                        LogAsk::Replace { token, record } => {
                            self.log = vec![record];
                            token
                        }
                    };
                    if !self.slow_log {
                        self.server.handle(self.now, ServerInput::Logged { token });
                    }
                }
            }
        }
    }

    fn ask(&mut self, host: u32, request: ServerRequest) {
        self.server.handle(self.now, ServerInput::Request { from: life(host), request });
        self.run();
    }

    fn register(&mut self, host: u32, incarnation: u64, held: Vec<Held>) {
        self.ask(host, ServerRequest::Register { incarnation, held, newest: 0 });
    }

    fn lock(&mut self, host: u32, ranges: &[LockRange]) -> OpId {
        self.seq += 1;
        let op = OpId { life: life(host), seq: self.seq };
        self.ask(
            host,
            ServerRequest::Lock { op, ranges: ranges.to_vec(), past: Past::Nobody, repair: false },
        );
        op
    }

    fn unlock(&mut self, op: OpId) {
        self.unlock_at(op, 0);
    }

    /// The same, of a host whose timestamps have come so far.
    fn unlock_at(&mut self, op: OpId, newest: Time) {
        self.ask(op.life.host.0, ServerRequest::Unlock { op, newest });
    }

    fn give_back(&mut self, part: PartId) {
        let (free, shared) = (vec![part], Vec::new());
        let request = ServerRequest::Relinquish { free, shared, newest: 0 };
        self.ask(part.op.life.host.0, request);
    }

    fn granted(&self, op: OpId) -> bool {
        self.granted_at(op).is_some()
    }

    /// How far timestamps had come when it was granted.
    fn granted_at(&self, op: OpId) -> Option<Time> {
        self.said.iter().find_map(|(to, reply)| match *reply {
            ServerReply::Granted { op: other, newest, .. } => {
                ((*to, other) == (op.life.host.0, op)).then_some(newest)
            }
            _ => None,
        })
    }

    fn advance(&mut self, by: Time) {
        self.now += by;
        self.server.handle(self.now, ServerInput::Tick);
        self.run();
    }

    /// The server dies and comes back with the durable entries.
    fn restart(&mut self) {
        self.server = LockServer::new(self.server.config, &self.log, self.now).unwrap();
        self.said.clear();
        self.run();
    }

    fn called(&self, host: u32) -> Vec<(PartId, bool)> {
        let parts =
            self.said.iter().filter(|(to, _)| *to == host).filter_map(|(_, reply)| match reply {
                ServerReply::Callback { parts, shared } => {
                    Some(parts.iter().map(|&part| (part, *shared)))
                }
                _ => None,
            });
        parts.flatten().collect()
    }
}

fn part(op: OpId, index: u16) -> PartId {
    PartId { op, index }
}

#[test]
fn a_lock_set_is_granted_all_or_nothing_and_in_order() {
    let mut w = World::new(Scheme::ServerLocking);
    let a = w.lock(1, &[range(0, 0, 4, X), range(4, 0, 4, X)]);
    let b = w.lock(2, &[range(1, 0, 4, X), range(4, 2, 4, X)]);
    // It conflicts with no grant, but with an earlier request. If it were granted, b could wait for ever.
    let c = w.lock(3, &[range(1, 3, 1, S)]);
    let d = w.lock(4, &[range(1, 4, 1, X), range(4, 6, 1, S)]);
    assert!(w.granted(a) && !w.granted(b) && !w.granted(c) && w.granted(d));
    w.unlock(a);
    assert!(w.granted(b) && !w.granted(c));
    w.unlock(b);
    assert!(w.granted(c));
    w.unlock(c);
    w.unlock(d);
    w.advance(5 * SECOND);
    assert!(w.server.is_empty());
}

#[test]
fn readers_share_and_a_writer_behind_them_is_not_overtaken() {
    let mut w = World::new(Scheme::ServerLocking);
    let a = w.lock(1, &[range(0, 0, 4, S)]);
    let b = w.lock(2, &[range(0, 0, 4, S)]);
    let writer = w.lock(3, &[range(0, 0, 1, X)]);
    let late = w.lock(4, &[range(0, 0, 1, S)]);
    assert!(w.granted(a) && w.granted(b) && !w.granted(writer) && !w.granted(late));
    w.unlock(a);
    w.unlock(b);
    assert!(w.granted(writer) && !w.granted(late));
}

#[test]
fn messages_that_come_twice_or_late_change_nothing() {
    let mut w = World::new(Scheme::ServerLocking);
    let ranges = [range(0, 0, 4, X)];
    let a = w.lock(1, &ranges);
    let again =
        ServerRequest::Lock { op: a, ranges: ranges.to_vec(), past: Past::Nobody, repair: false };
    w.ask(1, again.clone());
    w.unlock(a);
    w.unlock(a);
    // A copy behind the unlock must not lock anything: nobody would unlock it.
    w.ask(1, again);
    let b = w.lock(2, &ranges);
    assert!(w.granted(b));
    // Nobody unlocks for others.
    w.ask(1, ServerRequest::Unlock { op: b, newest: 0 });
    let c = w.lock(3, &ranges);
    assert!(!w.granted(c));
}

#[test]
fn a_grant_is_sent_when_it_is_durable_and_writes_are_gathered() {
    let mut w = World::new(Scheme::ServerLocking);
    w.slow_log = true;
    let before = w.log.len();
    let first = w.lock(1, &[range(0, 0, 1, X)]);
    let others = [2, 3, 4].map(|host| w.lock(host, &[range(0, u64::from(host), 1, X)]));
    assert!(!w.granted(first));
    assert_eq!(w.log.len(), before + 1);
    let token = LogToken(w.log.len() as u64 - 1);
    w.server.handle(0, ServerInput::Logged { token });
    w.run();
    assert!(w.granted(first) && !w.granted(others[0]));
    assert_eq!(w.log.len(), before + 2);
    // After a restart, the table has all sent grants and no others.
    w.log.pop();
    w.slow_log = false;
    w.restart();
    w.register(4, 2, Vec::new());
    let d = w.lock(4, &[range(0, 2, 1, X)]);
    let e = w.lock(4, &[range(0, 0, 1, X)]);
    assert!(w.granted(d) && !w.granted(e));
}

#[test]
fn a_grant_is_kept_by_its_host_until_it_is_called_back() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 4, X), range(1, 0, 4, X)]);
    // Its own locks do not keep a host out.
    let own = w.lock(1, &[range(0, 2, 4, X)]);
    assert!(w.granted(own));
    let reader = w.lock(2, &[range(0, 0, 1, S)]);
    assert!(!w.granted(reader));
    assert_eq!(w.called(1), [(part(a, 0), true)]);
    let (free, shared) = (Vec::new(), vec![part(a, 0)]);
    w.ask(1, ServerRequest::Relinquish { free, shared, newest: 0 });
    assert!(w.granted(reader));
    // Now both share; a writer calls both, and the part that nobody wants is left alone.
    w.said.clear();
    let writer = w.lock(3, &[range(0, 0, 1, X)]);
    assert_eq!(w.called(1), [(part(a, 0), false)]);
    assert_eq!(w.called(2), [(part(reader, 0), false)]);
    w.give_back(part(a, 0));
    assert!(!w.granted(writer));
    w.give_back(part(reader, 0));
    assert!(w.granted(writer));
}

#[test]
fn a_lease_that_ends_under_callback_makes_its_holder_suspect_and_is_granted_after_the_fence() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 4, X)]);
    w.advance(3 * SECOND);
    w.ask(1, ServerRequest::Renew);
    w.advance(3 * SECOND);
    let b = w.lock(2, &[range(0, 0, 4, X)]);
    assert_eq!(w.called(1).len(), 1);
    // A renewal does not count for parts that have been called back.
    w.ask(1, ServerRequest::Renew);
    assert!(w.suspects.is_empty());
    w.advance(SECOND);
    assert_eq!(w.suspects, [1]);
    assert!(!w.granted(b));
    w.advance(4 * SECOND);
    assert_eq!(w.suspects, [1, 1], "said again until it is done");

    w.ask(3, ServerRequest::Fence { life: life(1) });
    let ranges = vec![range(0, 0, 4, X)];
    assert!(w.said.contains(&(3, ServerReply::Fenced { life: life(1), ranges: ranges.clone() })));
    assert!(!w.granted(b), "not before the repair");
    // The repair works under the locks of the dead and ahead of those who wait for them.
    let op = OpId { life: life(3), seq: 900 };
    w.ask(
        3,
        ServerRequest::Lock {
            op,
            ranges: ranges.clone(),
            past: Past::Life(life(1)),
            repair: false,
        },
    );
    assert!(w.granted(op) && !w.granted(b));
    // Repairs keep each other out.
    let other = OpId { life: life(4), seq: 901 };
    w.ask(4, ServerRequest::Lock { op: other, ranges, past: Past::Life(life(1)), repair: false });
    assert!(!w.granted(other));
    w.give_back(part(op, 0));
    assert!(w.granted(other) && !w.granted(b));
    w.ask(3, ServerRequest::Clear { life: life(1) });
    assert!(!w.granted(b));
    w.give_back(part(other, 0));
    assert!(w.granted(b));
    // The server refuses the fenced host's messages now.
    w.said.clear();
    w.give_back(part(a, 0));
    w.lock(1, &[range(3, 0, 1, S)]);
    let fenced = ServerReply::Fenced { life: life(1), ranges: Vec::new() };
    assert_eq!(w.said, [(1, fenced.clone()), (1, fenced)]);
}

#[test]
fn an_idle_lease_that_has_ended_costs_nothing_until_somebody_wants_it() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 4, X)]);
    w.advance(60 * SECOND);
    assert!(w.suspects.is_empty());
    w.give_back(part(a, 0));
    w.advance(60 * SECOND);
    assert!(w.server.is_empty());
}

#[test]
fn after_a_restart_hosts_say_what_they_hold_and_the_others_are_suspect() {
    let mut w = World::new(Scheme::ServerLocking);
    let a = w.lock(1, &[range(0, 0, 1, X), range(1, 0, 1, S)]);
    let b = w.lock(2, &[range(0, 1, 1, X)]);
    let c = w.lock(3, &[range(0, 2, 1, X)]);
    w.unlock(b);
    w.restart();
    // The server tells an unregistered host to register.
    w.lock(1, &[range(5, 0, 1, X)]);
    let welcome = ServerReply::Welcome { incarnation: 2, lease: 4 * SECOND };
    assert_eq!(w.said, [(1, welcome)]);
    let held = |op, index, mode| Held { part: part(op, index), mode };
    w.register(1, 2, vec![held(a, 0, X), held(a, 1, S)]);
    w.register(2, 2, Vec::new());
    w.register(4, 2, Vec::new());
    let free = w.lock(4, &[range(0, 1, 1, X)]);
    assert!(w.granted(free), "the unlock was not in the log, but its host does not hold it");
    let first = w.lock(4, &[range(0, 0, 1, X)]);
    let third = w.lock(4, &[range(0, 2, 1, X)]);
    w.advance(3 * SECOND);
    for host in [1, 2, 4] {
        w.ask(host, ServerRequest::Renew);
    }
    w.advance(SECOND);
    assert_eq!(w.suspects, [3]);
    assert!(!w.granted(first) && !w.granted(third));
    w.ask(1, ServerRequest::Fence { life: life(3) });
    let ranges = vec![range(0, 2, 1, X)];
    assert!(w.said.contains(&(1, ServerReply::Fenced { life: life(3), ranges })));
    // A fence holds across restarts, and so does the need for a repair.
    w.restart();
    w.register(1, 3, vec![held(a, 0, X)]);
    w.register(3, 3, vec![held(c, 0, X)]);
    let fenced = ServerReply::Fenced { life: life(3), ranges: Vec::new() };
    assert!(w.said.contains(&(3, fenced)));
    w.ask(1, ServerRequest::Fence { life: life(3) });
    let ranges = vec![range(0, 2, 1, X)];
    assert!(w.said.contains(&(1, ServerReply::Fenced { life: life(3), ranges })));
    w.ask(1, ServerRequest::Clear { life: life(3) });
    let third = w.lock(1, &[range(0, 2, 1, X)]);
    assert!(w.granted(third));
}

#[test]
fn a_newer_life_of_a_host_makes_the_older_one_suspect() {
    let mut w = World::new(Scheme::ServerLocking);
    w.lock(1, &[range(0, 0, 1, X)]);
    let newer = Life { host: HostId(1), incarnation: 2 };
    let request = ServerRequest::Register { incarnation: 1, held: Vec::new(), newest: 0 };
    w.server.handle(0, ServerInput::Request { from: newer, request });
    w.run();
    assert_eq!(w.suspects, [1]);
    w.ask(2, ServerRequest::Fence { life: life(1) });
    w.ask(2, ServerRequest::Clear { life: life(1) });
    let again = w.lock(2, &[range(0, 0, 1, X)]);
    assert!(w.granted(again));
}

#[test]
fn the_log_is_replaced_by_a_snapshot_that_says_the_same() {
    let mut w = World::new(Scheme::CallbackLocking);
    let kept = w.lock(1, &[range(0, 0, 1, X), range(1, 0, 1, X), range(2, 0, 1, X)]);
    w.give_back(part(kept, 1));
    w.lock(2, &[range(3, 0, 1, X)]);
    w.ask(1, ServerRequest::Fence { life: life(2) });
    for _ in 0..5000 {
        let op = w.lock(3, &[range(4, 7, 1, X)]);
        w.give_back(part(op, 0));
    }
    assert!(w.log.len() < 5000);
    w.restart();
    let held = [0, 2].map(|index| Held { part: part(kept, index), mode: X });
    w.register(1, 2, held.to_vec());
    w.register(4, 2, Vec::new());
    let free = w.lock(4, &[range(1, 0, 1, X)]);
    let taken = w.lock(4, &[range(2, 0, 1, X)]);
    let dead = w.lock(4, &[range(3, 0, 1, X)]);
    assert!(w.granted(free) && !w.granted(taken) && !w.granted(dead));
}

#[test]
fn nonsense_is_refused_and_a_log_that_cannot_be_read_is_an_error() {
    let mut w = World::new(Scheme::ServerLocking);
    for ranges in [vec![], vec![range(0, 0, 0, X)], vec![range(0, u64::MAX, 2, X)]] {
        w.said.clear();
        w.lock(1, &ranges);
        assert!(matches!(w.said[..], [(1, ServerReply::Refused { .. })]));
    }
    w.said.clear();
    w.ask(1, ServerRequest::Clear { life: life(2) });
    assert!(matches!(w.said[..], [(1, ServerReply::Refused { .. })]));
    let config = w.server.config;
    let log = [Bytes::from_static(&[0xff; 20])];
    assert!(matches!(LockServer::new(config, &log, 0), Err(ServerError::Log { index: 0, .. })));
    let config = ServerConfig { scheme: Scheme::TimestampOrdering, ..config };
    assert!(LockServer::new(config, &[], 0).is_err());
}

#[test]
fn a_dead_host_that_others_wait_for_is_suspect_when_its_lease_has_ended() {
    let mut w = World::new(Scheme::ServerLocking);
    let a = w.lock(1, &[range(0, 0, 1, X)]);
    let b = w.lock(2, &[range(0, 0, 1, X)]);
    w.advance(3 * SECOND);
    w.ask(1, ServerRequest::Renew);
    w.advance(3 * SECOND);
    assert!(w.suspects.is_empty(), "it is alive");
    w.advance(SECOND);
    assert_eq!(w.suspects, [1]);
    assert!(!w.granted(b));
    w.ask(2, ServerRequest::Fence { life: life(1) });
    w.ask(2, ServerRequest::Clear { life: life(1) });
    assert!(
        w.granted(b)
            && w.said.contains(&(2, ServerReply::Granted { op: b, waited: true, newest: 0 }))
    );
    assert!(w.said.contains(&(1, ServerReply::Granted { op: a, waited: false, newest: 0 })));
}

#[test]
fn a_second_try_goes_past_the_first_and_past_those_who_wait_for_it() {
    let mut w = World::new(Scheme::ServerLocking);
    let first = w.lock(1, &[range(0, 0, 1, X)]);
    let waiting = w.lock(2, &[range(0, 0, 1, X), range(1, 0, 1, X)]);
    let op = OpId { life: life(1), seq: 800 };
    let ranges = vec![range(0, 0, 1, X), range(1, 0, 1, S)];
    w.ask(1, ServerRequest::Lock { op, ranges, past: Past::Tries(vec![first]), repair: false });
    assert!(w.granted(op) && !w.granted(waiting));
    w.unlock(first);
    assert!(!w.granted(waiting));
    w.unlock(op);
    assert!(w.granted(waiting));
}

#[test]
fn repairs_of_two_lives_do_not_wait_for_each_other() {
    let mut w = World::new(Scheme::ServerLocking);
    let ranges = vec![range(0, 0, 1, S)];
    w.lock(1, &ranges);
    w.lock(2, &ranges);
    w.ask(3, ServerRequest::Fence { life: life(1) });
    let op = OpId { life: life(3), seq: 800 };
    let lock = |op| ServerRequest::Lock {
        op,
        ranges: vec![range(0, 0, 1, X)],
        past: Past::Life(life(1)),
        repair: false,
    };
    w.ask(3, lock(op));
    assert!(!w.granted(op), "the other is alive");
    w.unlock(op);
    w.ask(3, ServerRequest::Fence { life: life(2) });
    let op = OpId { seq: 801, ..op };
    w.ask(3, lock(op));
    assert!(w.granted(op));
}

/// The lock that it waits for had no holder before, and no host returns any part of it.
#[test]
fn who_waits_behind_a_request_has_it_called_back_when_that_is_granted() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 1, X)]);
    let b = w.lock(2, &[range(0, 0, 1, X), range(1, 0, 1, X)]);
    let c = w.lock(3, &[range(1, 0, 1, X)]);
    w.give_back(part(a, 0));
    assert!(w.granted(b) && !w.granted(c));
    assert_eq!(w.called(2), [(part(b, 1), false)]);
    w.give_back(part(b, 1));
    assert!(w.granted(c));
}

#[test]
fn a_callback_that_was_lost_with_a_connection_is_said_again() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 4, X)]);
    w.lock(2, &[range(0, 0, 4, X)]);
    assert_eq!(w.called(1), [(part(a, 0), false)]);
    w.said.clear();
    w.register(1, 1, Vec::new());
    assert_eq!(w.called(1), [(part(a, 0), false)]);
}

#[test]
fn what_is_called_back_again_has_the_time_of_the_second_call() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 1, X)]);
    w.lock(2, &[range(0, 0, 1, S)]);
    let (free, shared) = (Vec::new(), vec![part(a, 0)]);
    let shared = ServerRequest::Relinquish { free, shared, newest: 0 };
    w.ask(1, shared);
    w.advance(3 * SECOND);
    for host in [1, 2] {
        w.ask(host, ServerRequest::Renew);
    }
    w.lock(3, &[range(0, 0, 1, X)]);
    w.advance(2 * SECOND);
    assert!(w.suspects.is_empty());
    w.advance(2 * SECOND);
    assert_eq!(w.suspects, [1, 2]);
}

#[test]
fn what_is_called_back_before_its_host_has_registered_is_called_again_then() {
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &[range(0, 0, 1, X)]);
    w.restart();
    w.register(2, 2, Vec::new());
    let b = w.lock(2, &[range(0, 0, 1, X)]);
    w.advance(3 * SECOND);
    w.said.clear();
    w.register(1, 2, vec![Held { part: part(a, 0), mode: X }]);
    assert_eq!(w.called(1), [(part(a, 0), false)]);
    w.advance(3 * SECOND);
    assert!(w.suspects.is_empty(), "it has a lease from then on");
    w.give_back(part(a, 0));
    assert!(w.granted(b));
}

/// Two writes in different columns of a stripe, both refused by a device that wants the stripe repaired first.
#[test]
fn writes_that_wait_for_repairs_of_one_stripe_do_not_wait_for_each_other() {
    let stripe = || (0..3).map(|device| range(device, 0, 4, X)).collect::<Vec<_>>();
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        let mut w = World::new(scheme);
        let column = |block| [range(0, block, 1, X), range(2, block, 1, X)];
        let first = w.lock(1, &column(0));
        let second = w.lock(2, &column(1));
        let reader = w.lock(3, &[range(0, 1, 1, S)]);
        let all = |op| Vec::from([part(op, 0), part(op, 1)]);
        let repair = |host, seq, past| {
            let op = OpId { life: life(host), seq };
            let past = Past::Tries(vec![past]);
            (op, ServerRequest::Lock { op, ranges: stripe(), past, repair: true })
        };
        let ((one, lock_one), (two, lock_two)) = (repair(1, 800, first), repair(2, 900, second));
        w.ask(1, ServerRequest::Yield { parts: all(first) });
        w.ask(1, lock_one);
        assert!(!w.granted(one), "{scheme}: the other may still write");
        // Nobody yields for others.
        w.ask(1, ServerRequest::Yield { parts: all(second) });
        assert!(!w.granted(one), "{scheme}");
        w.ask(2, ServerRequest::Yield { parts: all(second) });
        assert!(w.granted(one), "{scheme}");
        w.ask(2, lock_two);
        assert!(!w.granted(two), "{scheme}: one repair at a time");
        // The repair excludes the try that continues the first write, and that try excludes repairs.
        w.ask(1, ServerRequest::Unlock { op: one, newest: 0 });
        assert!(w.granted(two), "{scheme}");
        let again = OpId { life: life(1), seq: 801 };
        let ranges = (0..3).map(|device| range(device, 0, 1, X)).collect();
        let past = Past::Tries(vec![first]);
        w.ask(1, ServerRequest::Lock { op: again, ranges, past, repair: false });
        assert!(!w.granted(again), "{scheme}");
        w.ask(2, ServerRequest::Unlock { op: two, newest: 0 });
        assert!(w.granted(again), "{scheme}");
        let (third, lock_third) = repair(2, 901, second);
        w.ask(2, lock_third);
        assert!(!w.granted(third), "{scheme}");
        w.unlock(again);
        assert!(w.granted(third), "{scheme}");
        w.unlock(third);
        assert!(!w.granted(reader), "{scheme}: the second write is not done");
        w.unlock(second);
        assert!(w.granted(reader), "{scheme}");
    }
}

/// Two writes of a stripe without its parity's device, whose blocks have nothing in common. The device is back, and each
/// needs the other's blocks for the parity.
#[test]
fn who_goes_on_with_a_write_reads_past_what_was_yielded_and_writes_nothing_of_it() {
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        let mut w = World::new(scheme);
        let first = w.lock(1, &[range(0, 0, 1, X)]);
        let second = w.lock(2, &[range(1, 0, 1, X)]);
        let goes_on = |past: OpId, ranges| {
            let op = OpId { seq: past.seq + 800, ..past };
            let past = Past::Tries(vec![past]);
            (op, ServerRequest::Lock { op, ranges, past, repair: false })
        };
        let (one, lock_one) =
            goes_on(first, vec![range(0, 0, 1, X), range(1, 0, 1, S), range(2, 0, 1, X)]);
        let (two, lock_two) =
            goes_on(second, vec![range(0, 0, 1, S), range(1, 0, 1, X), range(2, 0, 1, X)]);
        w.ask(1, ServerRequest::Yield { parts: vec![part(first, 0)] });
        w.ask(1, lock_one);
        assert!(!w.granted(one), "{scheme}: the other may still write");
        w.ask(2, ServerRequest::Yield { parts: vec![part(second, 0)] });
        assert!(w.granted(one), "{scheme}");
        w.ask(2, lock_two);
        assert!(!w.granted(two), "{scheme}: the first is under way");
        let (writer, lock) = goes_on(OpId { seq: 50, ..first }, vec![range(1, 0, 1, X)]);
        w.ask(1, lock);
        w.unlock(one);
        w.unlock(first);
        assert!(w.granted(two) && !w.granted(writer), "{scheme}");
    }
}

#[test]
fn a_write_that_waits_for_a_repair_does_not_hold_up_the_repair_of_a_dead_host() {
    let mut w = World::new(Scheme::ServerLocking);
    let dead = w.lock(1, &[range(0, 0, 1, X)]);
    let write = w.lock(2, &[range(0, 1, 1, X)]);
    w.ask(2, ServerRequest::Yield { parts: vec![part(write, 0)] });
    let lock =
        |op, past| ServerRequest::Lock { op, ranges: vec![range(0, 0, 4, X)], past, repair: true };
    let own = OpId { life: life(2), seq: 800 };
    w.ask(2, lock(own, Past::Tries(vec![write])));
    w.ask(3, ServerRequest::Fence { life: life(1) });
    let repair = OpId { life: life(3), seq: 800 };
    w.ask(3, lock(repair, Past::Life(life(1))));
    assert!(w.granted(repair) && !w.granted(own));
    w.unlock(repair);
    w.ask(3, ServerRequest::Clear { life: dead.life });
    assert!(w.granted(own));
}

#[test]
fn what_was_yielded_is_not_after_a_restart_until_its_host_says_so_again() {
    let mut w = World::new(Scheme::ServerLocking);
    let write = w.lock(1, &[range(0, 0, 1, X)]);
    w.ask(1, ServerRequest::Yield { parts: vec![part(write, 0)] });
    w.restart();
    w.register(1, 2, vec![Held { part: part(write, 0), mode: X }]);
    w.register(2, 2, Vec::new());
    let op = OpId { life: life(2), seq: 800 };
    let (ranges, past) = (vec![range(0, 0, 4, X)], Past::Nobody);
    w.ask(2, ServerRequest::Lock { op, ranges, past, repair: true });
    assert!(!w.granted(op));
    w.ask(1, ServerRequest::Yield { parts: vec![part(write, 0)] });
    assert!(w.granted(op));
}

#[test]
fn who_is_granted_a_lock_hears_how_far_timestamps_had_come_before() {
    let blocks = [range(0, 0, 4, X)];
    let mut w = World::new(Scheme::ServerLocking);
    let a = w.lock(1, &blocks);
    let b = w.lock(2, &blocks);
    assert_eq!(w.granted_at(a), Some(0));
    w.unlock_at(a, 700);
    assert_eq!(w.granted_at(b), Some(700));
    // Of a clock that is behind.
    w.unlock_at(b, 500);
    let c = w.lock(3, &blocks);
    assert_eq!(w.granted_at(c), Some(700));
    // The log has the timestamp of each release.
    w.unlock_at(c, 900);
    w.lock(1, &[range(1, 0, 1, S)]);
    w.restart();
    (1..=4).for_each(|host| w.register(host, 2, Vec::new()));
    let d = w.lock(4, &blocks);
    assert_eq!(w.granted_at(d), Some(900));
}

#[test]
fn after_a_restart_hosts_say_again_how_far_their_timestamps_had_come() {
    let blocks = [range(0, 0, 4, X)];
    let mut w = World::new(Scheme::CallbackLocking);
    let a = w.lock(1, &blocks);
    let (free, shared) = (vec![part(a, 0)], Vec::new());
    w.ask(1, ServerRequest::Relinquish { free, shared, newest: 800 });
    w.restart();
    w.register(2, 2, Vec::new());
    let b = w.lock(2, &blocks);
    assert!(!w.granted(b), "host 1 may have it yet");
    w.ask(1, ServerRequest::Register { incarnation: 2, held: Vec::new(), newest: 800 });
    assert_eq!(w.granted_at(b), Some(800));
}
