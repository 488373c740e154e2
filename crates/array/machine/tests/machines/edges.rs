//! Single situations: clocks that are wrong, devices that start, hosts that fall silent, requests that make no sense.

use bytes::Bytes;
use lockify_array::message::{Action, Answer, Blocks, Call, Doubt, Past, Reply, Request};
use lockify_array::{
    ArrayHost, ArrayState, BadBlock, Block, BlockError, Change, Device, DeviceBoot, DeviceConfig,
    DeviceEvent, DeviceId, DeviceInput, DeviceOutput, DiskAnswer, DiskAsk, Epoch, Extent, Header,
    HostConfig, HostInput, HostOutput, Life, OpError, OpId, Peer, Scheme, ServerId, Span, Stamp,
    Ticket, Time, Work,
};

use crate::world::{MS, START, World, life, raid5};

/// One device, whose disk answers at once.
struct Rig {
    device: Device,
    record: Bytes,
    /// The expected state of each block.
    found: Result<Block, BadBlock>,
    /// Writes of blocks.
    writes: u32,
    /// Writes that were dropped for a newer one.
    drops: u32,
}

impl Rig {
    fn new(scheme: Scheme) -> Self {
        let boot = DeviceBoot { now: START, record: None, state: ArrayState::new(5), random: 1 };
        Rig::boot(scheme, boot)
    }

    fn boot(scheme: Scheme, boot: DeviceBoot) -> Self {
        let record = boot.record.clone().unwrap_or_default();
        let config = DeviceConfig::new(DeviceId(0), scheme, raid5());
        let block = Block { header: Header::default(), data: Bytes::from(vec![0; 16]) };
        let device = Device::new(config, boot).unwrap();
        let mut rig = Rig { device, record, found: Ok(block), writes: 0, drops: 0 };
        rig.outputs(START);
        rig
    }

    /// Lets it serve again after a restart. That takes two changes if it had asked for a number before.
    fn let_in(&mut self) {
        for seq in 900..902 {
            if seq > 900 && self.device.is_let_in() {
                break;
            }
            let change = self.device.wants_in().unwrap();
            let state = self.device.state().changed(change).unwrap().unwrap();
            let install = Action::Install(Box::new(state));
            assert_eq!(self.ask_at(START, seq, START, install), [Answer::Done]);
        }
        assert!(self.device.is_let_in());
    }

    /// Its outputs, with the disk's part done.
    fn outputs(&mut self, now: Time) -> Vec<DeviceOutput> {
        let mut outputs = Vec::new();
        while let Some(output) = self.device.poll() {
            let DeviceOutput::Disk(ask) = output else {
                if let DeviceOutput::Event(DeviceEvent::Write { dropped: true, .. }) = output {
                    self.drops += 1;
                }
                outputs.push(output);
                continue;
            };
            let (token, answer) = match ask {
                DiskAsk::Read { token, extent } => {
                    let found = vec![self.found.clone(); extent.count as usize];
                    (token, DiskAnswer::Read(found))
                }
                DiskAsk::Save { token, record } => {
                    self.record = record;
                    (token, DiskAnswer::Done)
                }
                DiskAsk::Write { token, .. } => {
                    self.writes += 1;
                    (token, DiskAnswer::Done)
                }
                DiskAsk::Flush { token } => (token, DiskAnswer::Done),
            };
            self.device.handle(now, DeviceInput::Disk { token, result: Ok(answer) });
        }
        outputs
    }

    fn ask_at(&mut self, now: Time, seq: u64, time: Time, action: Action) -> Vec<Answer> {
        self.ask_of(1, now, seq, time, action)
    }

    fn ask_of(
        &mut self,
        host: u32,
        now: Time,
        seq: u64,
        time: Time,
        action: Action,
    ) -> Vec<Answer> {
        let call = Call { op: OpId { life: life(host), seq }, sibling: 0, step: 1 };
        let stamp = Stamp { time, host };
        let request = Request { call, stamp, epoch: Epoch(1), action };
        self.device.handle(now, DeviceInput::Request { from: life(host), request });
        let outputs = self.outputs(now).into_iter();
        let answers = outputs.filter_map(|output| match output {
            DeviceOutput::Send { reply, .. } => Some(reply.answer),
            _ => None,
        });
        answers.collect()
    }
}

fn read(extent: Extent) -> Action {
    Action::Read { extent, repairs: false }
}

fn prepare(extent: Extent) -> Action {
    let past = Past::Nobody;
    Action::Prepare { read: None, write: Some(extent), repairs: false, starving: false, past }
}

const B: Extent = Extent { start: 0, count: 1 };

#[test]
fn what_a_device_does_not_have_is_refused() {
    let mut rig = Rig::new(Scheme::TimestampOrdering);
    let beyond = raid5().device_blocks();
    let bad = [(beyond, 1), (u64::MAX, 1), (0, 0), (1, 2), (0, u32::MAX), (u64::MAX, u32::MAX)];
    for (start, count) in bad {
        let extent = Extent { start, count };
        assert_eq!(rig.ask_at(START, 1, START, read(extent)), [Answer::Invalid], "{extent:?}");
        assert_eq!(rig.ask_at(START, 1, START, prepare(extent)), [Answer::Invalid], "{extent:?}");
    }
    let short = Blocks {
        extent: B,
        data: Bytes::from(vec![0; 15]),
        header: Header::default(),
        marks: vec![],
    };
    let write = Action::Write { blocks: short, repairs: false };
    assert_eq!(rig.ask_at(START, 2, START, write), [Answer::Invalid]);
    // In another's name.
    let call = Call { op: OpId { life: life(2), seq: 1 }, sibling: 0, step: 1 };
    let stamp = Stamp::default();
    let request = Request { call, stamp, epoch: Epoch(1), action: read(B) };
    rig.device.handle(START, DeviceInput::Request { from: life(1), request });
    let [DeviceOutput::Send { to, reply }] = &rig.outputs(START)[..] else { panic!() };
    assert_eq!((to, &reply.answer), (&life(1), &Answer::Invalid));
}

#[test]
fn a_device_that_starts_again_serves_nothing_that_could_be_older_than_what_it_forgot() {
    let first = Rig::new(Scheme::TimestampOrdering);
    let boot = DeviceBoot {
        now: START,
        record: Some(first.record.clone()),
        state: ArrayState::new(5),
        random: 1,
    };
    let mut rig = Rig::boot(Scheme::TimestampOrdering, boot.clone());
    rig.let_in();
    let wait = 100 * MS + 1;
    assert_eq!(rig.ask_at(START, 1, START, prepare(B)), [Answer::Starting { wait }]);
    let floor = START + 100 * MS;
    let later = floor + 1;
    assert_eq!(rig.ask_at(later, 2, floor, prepare(B)), [Answer::Rejected { seen: floor }]);
    assert_eq!(rig.ask_at(later, 3, later, prepare(B)), [Answer::Done]);
    let torn = DeviceBoot { record: Some(Bytes::from_static(b"\xff\xff")), ..boot };
    let config = DeviceConfig::new(DeviceId(0), Scheme::TimestampOrdering, raid5());
    assert!(Device::new(config, torn).is_err());
}

/// A newer write was under way when the power went: had the older one not been done, the newer one would not have begun.
#[test]
fn an_older_write_is_not_taken_up_over_what_a_newer_one_has_torn() {
    let stamp = |time| Stamp { time, host: 1 };
    let torn = |time| Err(BadBlock { error: BlockError::Torn, stamp: time });
    let lies = |time| {
        let header = Header { stamp: stamp(time), ..Header::default() };
        Ok(Block { header, data: Bytes::from(vec![1; 16]) })
    };
    let own = START + 5;
    let cases = [
        (lies(own - 1), (1, 0)),
        (lies(own), (0, 0)),
        // The history has to say so: the crash may have undone it before the newer one came.
        (lies(own + 1), (0, 1)),
        (torn(Some(stamp(own - 1))), (1, 0)),
        // Itself was cut short; or it was done, and does no harm.
        (torn(Some(stamp(own))), (1, 0)),
        (torn(Some(stamp(own + 1))), (0, 0)),
        (torn(None), (1, 0)),
    ];
    for (found, effect) in cases {
        let mut rig = Rig::new(Scheme::TimestampOrdering);
        assert_eq!(rig.ask_at(START, 1, own, prepare(B)), [Answer::Done]);
        let boot = DeviceBoot {
            now: START,
            record: Some(rig.record.clone()),
            state: ArrayState::new(5),
            random: 1,
        };
        let mut rig = Rig::boot(Scheme::TimestampOrdering, boot);
        rig.let_in();
        let what = format!("{found:?}");
        rig.found = found;
        let header = Header { stamp: stamp(own), ..Header::default() };
        let blocks = Blocks { extent: B, data: vec![2; 16].into(), header, marks: vec![] };
        let commit = Action::Commit(blocks);
        assert_eq!(rig.ask_at(START, 1, own, commit), [Answer::Written], "{what}");
        assert_eq!((rig.writes, rig.drops), effect, "{what}");
    }
}

#[test]
fn older_and_newer_states_are_told_apart() {
    let mut rig = Rig::new(Scheme::ZeroOverhead);
    let newer = ArrayState { epoch: Epoch(3), since: Epoch(3), ..ArrayState::new(5) };
    assert_eq!(
        rig.ask_at(START, 1, START, Action::Install(Box::new(newer.clone()))),
        [Answer::Done]
    );
    assert_eq!(rig.ask_at(START, 2, START, read(B)), [Answer::Stale(Box::new(newer.clone()))]);
    let call = Call { op: OpId { life: life(1), seq: 3 }, sibling: 0, step: 1 };
    let request = Request { call, stamp: Stamp::default(), epoch: Epoch(4), action: read(B) };
    rig.device.handle(START, DeviceInput::Request { from: life(1), request });
    let [DeviceOutput::Send { reply, .. }] = &rig.outputs(START)[..] else { panic!() };
    assert_eq!(reply.answer, Answer::Behind(Epoch(3)));
    // It is there after a restart.
    let boot =
        DeviceBoot { now: START, record: Some(rig.record), state: ArrayState::new(5), random: 1 };
    assert_eq!(Rig::boot(Scheme::ZeroOverhead, boot).device.state(), &newer);
    // An older one changes nothing, one of another array is refused.
    let mut rig = Rig::new(Scheme::ZeroOverhead);
    let other = ArrayState { epoch: Epoch(9), ..ArrayState::new(4) };
    assert_eq!(rig.ask_at(START, 1, START, Action::Install(Box::new(other))), [Answer::Invalid]);
    assert_eq!(rig.device.state().epoch, Epoch(1));
}

#[test]
fn a_host_that_holds_something_and_falls_silent_is_reported_once() {
    let mut rig = Rig::new(Scheme::TimestampOrdering);
    assert_eq!(rig.device.next_timer(), None);
    rig.ask_at(START, 1, START, prepare(B));
    let lease = 4_000 * MS;
    assert_eq!(rig.device.next_timer(), Some(START + lease));
    rig.ask_at(START + lease / 2, 2, START, Action::Lease);
    rig.device.handle(START + lease, DeviceInput::Tick);
    assert_eq!(rig.outputs(START + lease), []);
    let silent = START + lease / 2 + lease;
    assert_eq!(rig.device.next_timer(), Some(silent));
    rig.device.handle(silent - 1, DeviceInput::Tick);
    assert_eq!(rig.outputs(silent - 1), []);
    rig.device.handle(silent, DeviceInput::Tick);
    assert_eq!(rig.outputs(silent), [DeviceOutput::Silent { life: life(1) }]);
    rig.device.handle(silent + lease, DeviceInput::Tick);
    assert_eq!(rig.outputs(silent + lease), []);
    assert!(!rig.device.is_idle(), "a pre-write is not dropped for want of a lease");
}

fn host() -> ArrayHost {
    let state = ArrayState::new(5);
    ArrayHost::new(HostConfig::new(life(1), Scheme::TimestampOrdering, raid5(), state))
}

fn requests(host: &mut ArrayHost) -> Vec<(Peer, Request)> {
    let mut all = Vec::new();
    while let Some(output) = host.poll() {
        if let HostOutput::Send { to, request } = output {
            all.push((to, request));
        }
    }
    all
}

fn read_one() -> Work {
    Work::Read { span: Span { start: 0, count: 1 } }
}

fn answer(host: &mut ArrayHost, now: Time, (from, request): &(Peer, Request), answer: Answer) {
    let reply = Reply { call: request.call, waited: false, boot: 0, answer };
    host.handle(now, HostInput::Reply { from: *from, reply });
}

#[test]
fn a_clock_that_is_behind_follows_what_devices_have_seen() {
    let mut host = host();
    host.handle(START, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    let sent = requests(&mut host);
    assert_eq!(sent[0].1.stamp, Stamp { time: START, host: 1 });
    answer(&mut host, START, &sent[0], Answer::Rejected { seen: START + 77 });
    let again = requests(&mut host);
    assert_eq!(again.len(), 1, "nothing is left to be cancelled");
    assert_eq!(again[0].1.stamp.time, START + 78);
    assert_ne!(again[0].1.call.op, sent[0].1.call.op);
}

#[test]
fn a_clock_that_is_ahead_waits_a_little_and_fails_if_that_is_not_enough() {
    let mut host = host();
    host.handle(START, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    let sent = requests(&mut host);
    answer(&mut host, START, &sent[0], Answer::Ahead { excess: MS, ahead: 101 * MS });
    assert!(matches!(requests(&mut host)[0].1.action, Action::Cancel));
    assert_eq!(host.next_timer(), Some(START + MS));
    host.handle(START + MS, HostInput::Tick);
    let again = requests(&mut host);
    let (excess, ahead) = (3_600_000 * MS, 3_600_100 * MS);
    answer(&mut host, START + MS, &again[0], Answer::Ahead { excess, ahead });
    let failed = OpError::Clock { ahead_ms: 3_600_100 };
    let mut outputs = std::iter::from_fn(|| host.poll());
    assert!(outputs.any(|o| matches!(o, HostOutput::Done { result: Err(e), .. } if e == failed)));
}

#[test]
fn a_read_that_is_rejected_again_and_again_asks_writers_to_wait() {
    let mut host = host();
    let mut now = START;
    host.handle(now, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    for rejections in 0..10 {
        let sent = loop {
            let sent = requests(&mut host);
            if !sent.is_empty() {
                break sent;
            }
            now = host.next_timer().unwrap();
            host.handle(now, HostInput::Tick);
        };
        let Action::Prepare { starving, .. } = sent[0].1.action else { panic!() };
        assert_eq!(starving, rejections >= 8);
        answer(&mut host, now, &sent[0], Answer::Rejected { seen: now });
    }
}

#[test]
fn what_was_not_answered_is_sent_again_on_a_new_connection() {
    let mut host = host();
    host.handle(START, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    let sent = requests(&mut host);
    host.handle(START, HostInput::Disconnected { peer: sent[0].0 });
    host.handle(START, HostInput::Connected { peer: sent[0].0, boot: 1 });
    let again = requests(&mut host);
    assert_eq!(again[..1], sent, "it is the first connection that is told");
    // Of writes there is nothing to be taken up.
    let [(peer, Request { action: Action::Settled, .. })] = &again[1..] else {
        panic!("{again:?}")
    };
    assert_eq!(*peer, sent[0].0);
    host.handle(START, HostInput::ServerLink { server: ServerId(0) });
    assert_eq!(requests(&mut host), []);
    // The device has restarted: its former grants are void.
    host.handle(START, HostInput::Connected { peer: sent[0].0, boot: 2 });
    let anew: Vec<Action> = requests(&mut host).into_iter().map(|(_, r)| r.action).collect();
    assert_eq!(anew, [Action::Cancel, sent[0].1.action.clone(), Action::Settled]);
}

#[test]
fn a_lease_is_renewed_while_something_is_held() {
    let mut host = host();
    host.handle(START, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    let sent = requests(&mut host);
    let due = START + 4_000 * MS / 3;
    assert_eq!(host.next_timer(), Some(due));
    host.handle(due, HostInput::Tick);
    let lease = requests(&mut host);
    assert_eq!(lease.len(), 1);
    assert_eq!((lease[0].0, &lease[0].1.action), (sent[0].0, &Action::Lease));
    assert_eq!(host.counts().leases, 1);
    assert_eq!(host.counts().requests, 1);
}

#[test]
fn a_fenced_host_fails_everything() {
    let mut host = host();
    host.handle(START, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    host.handle(START, HostInput::Submit { ticket: Ticket(2), work: read_one() });
    let sent = requests(&mut host);
    answer(&mut host, START, &sent[0], Answer::Fenced);
    host.handle(START, HostInput::Submit { ticket: Ticket(3), work: read_one() });
    let results = std::iter::from_fn(|| host.poll()).filter_map(|output| match output {
        HostOutput::Done { result, .. } => Some(result),
        _ => None,
    });
    let results: Vec<_> = results.collect();
    assert_eq!(results, vec![Err(OpError::Fenced); 3]);
    assert!(host.is_idle());
    // An answer to another life is nobody's.
    let other = Life { incarnation: 2, ..life(1) };
    let call = Call { op: OpId { life: other, seq: 1 }, sibling: 0, step: 1 };
    let reply = Reply { call, waited: false, boot: 0, answer: Answer::Done };
    host.handle(START, HostInput::Reply { from: sent[0].0, reply });
}

#[test]
fn an_answer_of_the_wrong_length_is_an_error() {
    let mut host = host();
    host.handle(START, HostInput::Submit { ticket: Ticket(1), work: read_one() });
    let sent = requests(&mut host);
    let content = lockify_array::message::Content {
        data: Bytes::from_static(b"short"),
        flaws: vec![],
        headers: vec![],
        doubt: Doubt::None,
        durable_to: Time::MAX,
        left: Box::default(),
    };
    answer(&mut host, START, &sent[0], Answer::Content(content));
    let mut outputs = std::iter::from_fn(|| host.poll());
    assert!(outputs.any(|o| matches!(o, HostOutput::Done { result: Err(OpError::State(_)), .. })));
}

#[test]
fn a_flush_reaches_every_device_that_serves() {
    let mut world = World::new(raid5(), Scheme::TimestampOrdering, 1, 1);
    world.submit(0, Work::Flush);
    assert_eq!(world.flights.len(), 5 + 5, "and five records of new devices are saved");
    world.run();
    assert!(world.done[0].result.is_ok());
}

#[test]
fn work_beyond_the_array_fails_at_once() {
    let mut host = host();
    let blocks = raid5().blocks();
    let bad = [
        Work::Read { span: Span { start: blocks, count: 1 } },
        Work::Write { span: Span { start: 0, count: 1 }, data: Bytes::new() },
        Work::Write { span: Span { start: 0, count: u64::MAX }, data: Bytes::new() },
        Work::Patch { start: blocks * 16 - 1, data: Bytes::from_static(b"ab") },
        Work::Patch { start: u64::MAX - 1, data: Bytes::from_static(b"a") },
        Work::Patch { start: u64::MAX, data: Bytes::from_static(b"ab") },
        Work::Patch { start: 0, data: Bytes::new() },
    ];
    for work in bad {
        host.handle(START, HostInput::Submit { ticket: Ticket(1), work });
        let Some(HostOutput::Done { result, .. }) = host.poll() else { panic!() };
        assert_eq!(result, Err(OpError::Range));
    }
}

/// The repair may wait for a device that is away for longer than that.
#[test]
fn the_writes_of_a_fenced_life_are_remembered_until_it_is_repaired() {
    let mut rig = Rig::new(Scheme::TimestampOrdering);
    let stamp = Stamp { time: START, host: 2 };
    let header = Header { stamp, first: 0, last: 0, ..Header::default() };
    let blocks = Blocks { extent: B, data: vec![7; 16].into(), header, marks: vec![] };
    assert_eq!(rig.ask_of(2, START, 1, START, prepare(B)), [Answer::Done]);
    assert_eq!(rig.ask_of(2, START, 1, START, Action::Commit(blocks)), [Answer::Written]);
    let mut fence = |now: Time, seq: u64| {
        let action = Action::Fence { life: life(2) };
        match &rig.ask_at(now, seq, now, action)[..] {
            [Answer::InFlight { written, forgotten, .. }] => (written.clone(), *forgotten),
            other => panic!("{other:?}"),
        }
    };
    let first = fence(START + 1, 1);
    assert_eq!(first.0, [(B, header)]);
    let late = START + 60_000 * MS;
    assert_eq!(fence(late, 2), first);
    assert_eq!(rig.ask_at(late, 3, late, Action::Clear { life: life(2) }), [Answer::Done]);
    let action = Action::Fence { life: life(2) };
    let [Answer::InFlight { written, .. }] = &rig.ask_at(late, 4, late, action)[..] else {
        panic!()
    };
    assert_eq!(written, &[]);
}

/// A device restarts between a fence and the repair. It still knows that the life may have left something.
#[test]
fn the_leftovers_of_a_fenced_life_outlive_a_restart() {
    leaves_something(restarted(&fenced_with_a_pre_write()));
}

/// A host has started again, and died again. The device learns only of the fence of its second life.
#[test]
fn a_life_that_the_fence_of_a_later_one_covers_has_leftovers() {
    let mut rig = Rig::new(Scheme::TimestampOrdering);
    assert_eq!(rig.ask_of(2, START, 1, START, prepare(B)), [Answer::Done]);
    let mut rig = restarted(&rig);
    let action = Action::Fence { life: Life { incarnation: 2, ..life(2) } };
    assert!(matches!(rig.ask_at(START, 1, START, action)[..], [Answer::InFlight { .. }]));
    leaves_something(rig);
}

/// Life 2 was fenced between a pre-write and its write.
fn fenced_with_a_pre_write() -> Rig {
    let mut rig = Rig::new(Scheme::TimestampOrdering);
    assert_eq!(rig.ask_of(2, START, 1, START, prepare(B)), [Answer::Done]);
    let action = Action::Fence { life: life(2) };
    assert!(matches!(rig.ask_at(START, 1, START, action)[..], [Answer::InFlight { .. }]));
    rig
}

fn restarted(rig: &Rig) -> Rig {
    let (record, state) = (Some(rig.record.clone()), ArrayState::new(5));
    let boot = DeviceBoot { now: START, record, state, random: 2 };
    let mut rig = Rig::boot(Scheme::TimestampOrdering, boot);
    rig.let_in();
    rig
}

/// Until life 2 is repaired, only repairs after dead hosts are served, and hear of it.
fn leaves_something(mut rig: Rig) {
    let extent = Extent { start: 0, count: raid5().unit };
    let mut seq = 10;
    let mut repair = |rig: &mut Rig, past: Past| {
        seq += 1;
        let time = START + 1_000 * MS + seq;
        let (read, starving) = (Some(extent), false);
        let action = Action::Prepare { read, write: None, repairs: true, starving, past };
        rig.ask_at(time, seq, time, action).remove(0)
    };
    assert_eq!(repair(&mut rig, Past::Nobody), Answer::Denied);
    let left = |answer: Answer| match answer {
        Answer::Content(content) => content.left,
        other => panic!("{other:?}"),
    };
    assert_eq!(*left(repair(&mut rig, Past::Life(life(3)))), [life(2)]);
    let clear = Action::Clear { life: life(2) };
    assert_eq!(rig.ask_at(START + 2_000 * MS, 30, START, clear), [Answer::Done]);
    assert_eq!(*left(repair(&mut rig, Past::Life(life(3)))), []);
}

/// A device that knows fewer stripes does not call those behind them invalid: it is told the newer state first.
#[test]
fn a_device_that_has_not_heard_of_growth_is_told() {
    let mut rig = Rig::new(Scheme::ZeroOverhead);
    let layout = *rig.device.layout();
    let grow = Change::Grow { after: 0, groups: 0, stripes: layout.stripes + 1 };
    let grown = rig.device.state().changed(grow).unwrap().unwrap();
    let behind = Extent { start: layout.unit_start(layout.stripes), count: 1 };
    let mut ask = |seq, epoch, action| {
        let call = Call { op: OpId { life: life(1), seq }, sibling: 0, step: 1 };
        let request = Request { call, stamp: Stamp::default(), epoch, action };
        rig.device.handle(START, DeviceInput::Request { from: life(1), request });
        let answers = rig.outputs(START).into_iter().filter_map(|output| match output {
            DeviceOutput::Send { reply, .. } => Some(reply.answer),
            _ => None,
        });
        answers.collect::<Vec<_>>()
    };
    assert_eq!(ask(1, Epoch(1), read(behind)), [Answer::Invalid]);
    assert_eq!(ask(2, grown.since, read(behind)), [Answer::Behind(Epoch(1))]);
    let install = Action::Install(Box::new(grown.clone()));
    assert_eq!(ask(3, grown.since, install), [Answer::Done]);
    assert!(matches!(ask(4, grown.since, read(behind))[..], [Answer::Content(_)]));
    // A host that knows fewer stripes learns it.
    assert_eq!(ask(5, Epoch(1), read(B)), [Answer::Stale(Box::new(grown))]);
}

/// Others have repaired without a device that is out what a dead host has left. When it is rebuilt, nobody repairs it once more.
#[test]
fn a_device_that_is_rebuilt_has_no_leftovers_of_before() {
    let mut rig = fenced_with_a_pre_write();
    let change = |state: &ArrayState, change| state.changed(change).unwrap().unwrap();
    let failed = change(rig.device.state(), Change::Fail(DeviceId(0), 0));
    assert_eq!(rig.ask_at(START, 2, START, Action::Install(failed.into())), [Answer::Done]);
    let mut rig = restarted(&rig);
    let rebuilding = change(rig.device.state(), Change::Rebuild(DeviceId(0)));
    let rebuilt = change(&rebuilding, rebuilding.rebuilt(DeviceId(0), u64::MAX));
    for (seq, state) in [(3, rebuilding), (4, rebuilt)] {
        assert_eq!(rig.ask_at(START, seq, START, Action::Install(state.into())), [Answer::Done]);
    }
    assert!(rig.device.suspects_stripe(0));
    let since = rig.device.state().since;
    let (time, read) = (START + 1_000 * MS, Some(Extent { start: 0, count: raid5().unit }));
    let call = Call { op: OpId { life: life(1), seq: 9 }, sibling: 0, step: 1 };
    let (repairs, starving, past) = (true, false, Past::Nobody);
    let action = Action::Prepare { read, write: None, repairs, starving, past };
    let request = Request { call, stamp: Stamp { time, host: 1 }, epoch: since, action };
    rig.device.handle(time, DeviceInput::Request { from: life(1), request });
    let outputs = rig.outputs(time);
    let served = |output: &DeviceOutput| matches!(output, DeviceOutput::Send { reply, .. } if matches!(reply.answer, Answer::Content(_)));
    assert!(outputs.iter().any(served), "{outputs:?}");
}

/// The newest write of a block that cannot be read is not known. An older one must not come in its place.
#[test]
fn a_write_of_a_block_that_cannot_be_read_is_not_taken_up_by_its_timestamp() {
    let mut rig = Rig::new(Scheme::TimestampOrdering);
    assert_eq!(rig.ask_of(2, START, 1, START, prepare(B)), [Answer::Done]);
    for readable in [false, true] {
        let mut rig = restarted(&rig);
        if !readable {
            rig.found = Err(BlockError::Unreadable.into());
        }
        let stamp = Stamp { time: START, host: 2 };
        let header = Header { stamp, first: 0, last: 0, ..Header::default() };
        let blocks = Blocks { extent: B, data: vec![7; 16].into(), header, marks: vec![] };
        let answers = rig.ask_of(2, START, 1, START, Action::Commit(blocks));
        let wanted = if readable { Answer::Written } else { Answer::NotPrepared };
        assert_eq!((answers, rig.writes), (vec![wanted], u32::from(readable)));
    }
}
