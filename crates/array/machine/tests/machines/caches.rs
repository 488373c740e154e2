//! Devices answer writes before they are durable, and lose their caches. A flush succeeds only if all that was answered before it
//! is there: devices still have it, or the others of the group have yielded it.

use lockify_array::message::{Action, Blocks, Call, Request};
#[cfg(feature = "mutations")]
use lockify_array::mutation::Mutation;
use lockify_array::{
    ArrayState, Change, Device, DeviceBoot, DeviceConfig, DeviceId, DeviceInput, DeviceOutput,
    DiskAnswer, DiskAsk, DiskToken, Epoch, Extent, Header, HostAnswer, HostConfig, Layout, OpError,
    OpId, Redundancy, Scheme, Span, Stamp, Time, Work,
};

use crate::world::{Bad, MS, START, World, life, raid5, raid6};

const SCHEMES: [Scheme; 4] = [
    Scheme::TimestampOrdering,
    Scheme::DeviceLocking,
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
];
/// Longer than a test.
const LONG: Time = 1_000_000 * MS;
/// Blocks of the first stripe.
const STRIPE: u64 = 8;

fn layouts() -> [Layout; 3] {
    let mirror = Layout { redundancy: Redundancy::Mirror, data: 1, ..raid5() };
    [raid5(), mirror, raid6()]
}

struct Caches {
    world: World,
    /// The last write of each block.
    content: Vec<Vec<u8>>,
}

impl Caches {
    fn of(layout: Layout, scheme: Scheme, seed: u64, tune: impl Fn(&mut DeviceConfig)) -> Caches {
        let state = ArrayState::new(layout.devices());
        let host = |id| HostConfig {
            durable: false,
            ..HostConfig::new(life(id), scheme, layout, state.clone())
        };
        let device = |id| {
            let mut config = DeviceConfig::new(DeviceId(id), scheme, layout);
            config.durable = false;
            config.region_units = 1;
            // Devices do not flush by themselves meanwhile.
            config.remember = LONG;
            tune(&mut config);
            config
        };
        let devices = (0..layout.devices()).map(device).collect();
        let world = World::of((0..2).map(host).collect(), devices, seed);
        let content = vec![vec![0; layout.block_size as usize]; layout.blocks() as usize];
        Caches { world, content }
    }

    fn new(scheme: Scheme, seed: u64) -> Caches {
        Caches::of(raid5(), scheme, seed, |_| ())
    }

    fn run(&mut self, host: usize, work: Work) -> Result<HostAnswer, OpError> {
        self.world.submit(host, work);
        self.world.run();
        self.world.done.last().expect("it was answered").result.clone()
    }

    /// Writes each block of the first stripe by itself, so that each record hides the one before.
    fn write_one_by_one(&mut self, host: usize) {
        for start in 0..STRIPE.min(self.world.layout.blocks()) {
            let work = self.world.write(Span { start, count: 1 });
            let Work::Write { data, .. } = &work else { unreachable!() };
            self.content[start as usize] = data.to_vec();
            assert_eq!(self.run(host, work), Ok(HostAnswer::Done));
        }
    }

    fn flush(&mut self, host: usize) -> Result<HostAnswer, OpError> {
        self.run(host, Work::Flush)
    }

    fn read(&mut self, host: usize, block: u64) -> Result<Vec<u8>, OpError> {
        match self.run(host, Work::Read { span: Span { start: block, count: 1 } })? {
            HostAnswer::Read { data } => Ok(data.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    /// Every block is as it was written last.
    fn assert_whole(&mut self, host: usize, case: &str) {
        for block in 0..self.world.layout.blocks() {
            let expected = self.content[block as usize].clone();
            assert_eq!(self.read(host, block), Ok(expected), "{case}: block {block}");
        }
        self.check_all(host);
        let state = self.world.hosts[host].state().clone();
        assert_eq!(self.world.inconsistent_stripes(&state), [] as [u64; 0], "{case}");
    }

    /// The devices' work in the background.
    fn check_all(&mut self, host: usize) {
        for stripe in 0..self.world.layout.stripes {
            let answer = self.run(host, Work::Scrub { stripe, repair: true });
            assert!(matches!(answer, Ok(HostAnswer::Scrubbed { .. })), "{answer:?}");
        }
    }

    fn lose(&mut self, device: u16, all: bool) {
        self.world.lose_cache(DeviceId(device), all);
    }

    fn devices(&self) -> std::ops::Range<u16> {
        0..self.world.layout.devices()
    }
}

fn is_unflushed(result: &Result<HostAnswer, OpError>) -> bool {
    matches!(result, Err(OpError::Unflushed(_)))
}

/// The reported defect: one device loses its cache between write and flush.
#[test]
fn what_one_device_has_lost_comes_from_the_others() {
    for layout in layouts() {
        for scheme in SCHEMES {
            for device in 0..layout.devices() {
                for all in [true, false] {
                    let case = format!("{scheme} {:?} {device} {all}", layout.redundancy);
                    let mut caches = Caches::of(layout, scheme, u64::from(device), |_| ());
                    caches.write_one_by_one(0);
                    caches.lose(device, all);
                    assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{case}");
                    caches.assert_whole(1, &case);
                    // It is as durable as the flush has said.
                    for device in caches.devices() {
                        caches.lose(device, true);
                    }
                    caches.assert_whole(1, &format!("{case}, and all later"));
                }
            }
        }
    }
}

/// A host that has not written sees no old block before the flush either, and flushes need not come.
#[test]
fn nobody_reads_what_a_restarted_device_has_in_the_place_of_a_lost_write() {
    for scheme in SCHEMES {
        for device in 0..5 {
            let mut caches = Caches::new(scheme, u64::from(device));
            caches.write_one_by_one(0);
            caches.lose(device, true);
            caches.assert_whole(1, &format!("{scheme} {device}"));
        }
    }
}

/// One after the other: each is repaired before the next one loses its cache.
#[test]
fn devices_may_lose_their_caches_in_turn_if_each_is_repaired() {
    for scheme in SCHEMES {
        let mut caches = Caches::new(scheme, 1);
        caches.write_one_by_one(0);
        for device in caches.devices() {
            caches.lose(device, true);
            caches.assert_whole(1, &format!("{scheme} {device}"));
        }
        assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{scheme}");
    }
}

#[test]
fn a_flush_fails_if_more_devices_have_lost_their_caches_and_every_later_one_too() {
    for layout in layouts() {
        for scheme in SCHEMES {
            let case = format!("{scheme} {:?}", layout.redundancy);
            let mut caches = Caches::of(layout, scheme, 3, |_| ());
            caches.write_one_by_one(0);
            assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{case}");
            let before = caches.content.clone();
            caches.write_one_by_one(0);
            let after = caches.content.clone();
            for device in caches.devices() {
                caches.lose(device, true);
            }
            let failed = caches.flush(0);
            assert!(is_unflushed(&failed), "{case}: {failed:?}");
            assert!(is_unflushed(&caches.flush(0)), "{case}: the second flush");
            // Another host has nothing to lose.
            assert_eq!(caches.flush(1), Ok(HostAnswer::Done), "{case}");
            // Each block is old or new, and nothing else.
            for block in 0..layout.blocks() {
                let found = caches.read(1, block).unwrap();
                let index = block as usize;
                assert!(found == before[index] || found == after[index], "{case}: block {block}");
            }
            // Written anew, everything is well again.
            caches.write_one_by_one(0);
            assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{case}");
            caches.assert_whole(1, &case);
        }
    }
}

/// Two of a group lose some blocks each. A flush that succeeds has lost nothing. Blocks are old or new.
#[test]
fn two_lost_caches_leave_old_or_new_blocks_and_no_flush_hides_it() {
    let (mut failed, mut good) = (0, 0);
    for seed in 0..60 {
        let scheme = SCHEMES[seed as usize % SCHEMES.len()];
        let mut caches = Caches::new(scheme, seed);
        caches.write_one_by_one(0);
        assert_eq!(caches.flush(0), Ok(HostAnswer::Done));
        let before = caches.content.clone();
        caches.write_one_by_one(0);
        caches.lose((seed % 5) as u16, false);
        caches.lose(((seed + 1 + seed / 5 % 4) % 5) as u16, false);
        match caches.flush(0) {
            Ok(_) => {
                good += 1;
                caches.assert_whole(1, &format!("seed {seed}"));
            }
            Err(OpError::Unflushed(_)) => {
                failed += 1;
                for block in 0..STRIPE {
                    let found = caches.read(1, block).unwrap();
                    let index = block as usize;
                    let known = [&before[index], &caches.content[index]];
                    assert!(known.contains(&&found), "seed {seed}: block {block}");
                }
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(failed > 5 && good > 0, "{failed} failed, {good} did not");
}

/// Processes are killed, and caches live on.
#[test]
fn killed_processes_make_no_flush_fail() {
    for scheme in SCHEMES {
        let mut caches = Caches::new(scheme, 4);
        caches.write_one_by_one(0);
        for device in caches.devices() {
            caches.world.restart_device(DeviceId(device));
        }
        assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{scheme}");
        caches.assert_whole(1, &scheme.to_string());
    }
}

/// One host object is behind all connections of a client: no flush of one hides a loss from another.
#[test]
fn two_flushes_at_once_both_fail() {
    for scheme in SCHEMES {
        let mut caches = Caches::new(scheme, 5);
        caches.write_one_by_one(0);
        for device in caches.devices() {
            caches.lose(device, true);
        }
        caches.world.submit(0, Work::Flush);
        caches.world.submit(0, Work::Flush);
        caches.world.run();
        let flushes = caches.world.done.iter().filter(|done| done.work == Work::Flush);
        let failed = flushes.map(|done| is_unflushed(&done.result)).collect::<Vec<_>>();
        assert_eq!(failed, [true, true], "{scheme}");
    }
}

/// Devices lose their caches at any step of a flush. If it succeeds, nothing is lost. One device alone makes none fail.
#[test]
fn a_flush_that_races_with_a_power_loss_tells_the_truth() {
    for scheme in SCHEMES {
        let mut failed = 0;
        for step in 0..60_u64 {
            for losers in [1, 2] {
                let mut caches = Caches::new(scheme, step);
                caches.write_one_by_one(0);
                caches.world.submit(0, Work::Flush);
                for _ in 0..step / 2 {
                    caches.world.step();
                }
                for loser in 0..losers {
                    caches.lose(((step + loser * 2) % 5) as u16, true);
                }
                caches.world.run();
                let case = format!("{scheme} {step} {losers}");
                match caches.world.done.last().expect("it was answered").result.clone() {
                    Ok(_) => caches.assert_whole(1, &case),
                    Err(OpError::Unflushed(_)) if losers == 2 => failed += 1,
                    other => panic!("{case}: {other:?}"),
                }
            }
        }
        assert!(failed > 0, "{scheme}: two devices were lost in vain");
    }
}

fn exclude(caches: &mut Caches, device: u16) {
    let device = DeviceId(device);
    caches.world.dead.insert(device);
    let term = caches.world.hosts[0].state().term(device);
    let change = Work::Change { change: Change::Fail(device, term) };
    assert_eq!(caches.run(0, change), Ok(HostAnswer::Done));
}

fn rebuild(caches: &mut Caches, device: u16) {
    let id = DeviceId(device);
    caches.world.dead.remove(&id);
    caches.world.replace(id);
    caches.world.run();
    let change = |change| Work::Change { change };
    assert_eq!(caches.run(0, change(Change::Rebuild(id))), Ok(HostAnswer::Done));
    caches.world.run();
    for stripe in 0..caches.world.layout.stripes {
        let answer = caches.run(0, Work::Rebuild { device: id, stripe });
        assert!(matches!(answer, Ok(HostAnswer::Rebuilt { lost: 0, .. })), "{answer:?}");
    }
    let all = caches.world.hosts[0].state().rebuilt(id, u64::MAX);
    assert_eq!(caches.run(0, change(all)), Ok(HostAnswer::Done));
}

#[test]
fn a_device_that_was_excluded_and_rebuilt_makes_no_flush_fail() {
    for scheme in SCHEMES {
        for device in 0..5 {
            for back in [false, true] {
                let mut caches = Caches::new(scheme, u64::from(device));
                caches.write_one_by_one(0);
                exclude(&mut caches, device);
                if back {
                    rebuild(&mut caches, device);
                }
                let case = format!("{scheme} {device} {back}");
                assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{case}");
                // A degraded write is flushed, too.
                caches.write_one_by_one(0);
                assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{case}");
                for other in caches.devices().filter(|other| back || *other != device) {
                    caches.lose(other, true);
                }
                caches.assert_whole(1, &case);
            }
        }
    }
}

/// A rebuilt device has everything in its cache. It loses that before any flush, when it counts as whole.
#[test]
fn a_rebuilt_device_that_loses_its_cache_is_made_whole_again() {
    for scheme in SCHEMES {
        for device in 0..5 {
            let mut caches = Caches::new(scheme, u64::from(device));
            caches.write_one_by_one(0);
            assert_eq!(caches.flush(0), Ok(HostAnswer::Done));
            exclude(&mut caches, device);
            rebuild(&mut caches, device);
            caches.lose(device, true);
            caches.assert_whole(1, &format!("{scheme} {device}"));
        }
    }
}

/// A device counts as rebuilt. Then it loses its cache, and so does another one with a later write of the same column. Nobody can
/// tell that later write from an old block, and the blocks that were flushed before are there all the same.
#[test]
fn what_counts_as_rebuilt_is_durable() {
    for scheme in SCHEMES {
        let layout = raid5();
        for unit in 0..layout.data {
            let mut caches = Caches::new(scheme, u64::from(unit));
            caches.write_one_by_one(0);
            assert_eq!(caches.flush(0), Ok(HostAnswer::Done));
            let rebuilt = layout.data(0, unit).0;
            exclude(&mut caches, rebuilt);
            rebuild(&mut caches, rebuilt);
            let other = (unit + 1) % layout.data;
            let start = u64::from(other) * u64::from(layout.unit);
            let later = caches.world.write(Span { start, count: 1 });
            assert_eq!(caches.run(0, later), Ok(HostAnswer::Done));
            caches.lose(rebuilt, true);
            caches.lose(layout.data(0, other).0, true);
            caches.check_all(1);
            for block in (0..STRIPE).filter(|block| *block != start) {
                let expected = caches.content[block as usize].clone();
                let case = format!("{scheme}: block {block}, and unit {unit} was rebuilt");
                assert_eq!(caches.read(1, block), Ok(expected), "{case}");
            }
        }
    }
}

/// Devices lose their caches, and a block whose write was not flushed is bad. It is made of the others. If parity has lost the write,
/// too, the block is newer than the write and does not have it: no flush may succeed.
#[test]
fn a_block_that_was_made_of_others_counts_as_old_as_they_were() {
    for layout in layouts() {
        for scheme in SCHEMES {
            for all in [false, true] {
                let case = format!("{scheme} {:?} {all}", layout.redundancy);
                let mut caches = Caches::of(layout, scheme, 8, |_| ());
                caches.write_one_by_one(0);
                assert_eq!(caches.flush(0), Ok(HostAnswer::Done), "{case}");
                let work = caches.world.write(Span { start: 0, count: 1 });
                let Work::Write { data, .. } = &work else { unreachable!() };
                let new = data.to_vec();
                assert_eq!(caches.run(0, work), Ok(HostAnswer::Done), "{case}");
                let device = layout.data(0, 0).0;
                caches.world.disks[usize::from(device)].bad.insert(0, Bad::UntilWritten);
                for loser in caches.devices().filter(|loser| all || *loser == device) {
                    caches.lose(loser, true);
                }
                // Also if somebody else has had it made, long before.
                caches.check_all(1);
                for _ in 0..2 {
                    let flushed = caches.flush(0);
                    assert_eq!(is_unflushed(&flushed), all, "{case}: {flushed:?}");
                }
                assert_eq!(caches.read(1, 0).as_ref() == Ok(&new), !all, "{case}");
            }
        }
    }
}

/// One device is missing, and another one loses its cache: too much. Nothing that looks whole is wrong.
#[test]
fn a_flush_fails_if_a_device_is_missing_and_another_has_lost_its_cache() {
    for scheme in SCHEMES {
        for (missing, loser) in [(0, 1), (1, 4), (4, 2), (2, 4)] {
            let mut caches = Caches::new(scheme, 6);
            caches.write_one_by_one(0);
            assert_eq!(caches.flush(0), Ok(HostAnswer::Done));
            let before = caches.content.clone();
            exclude(&mut caches, missing);
            caches.write_one_by_one(0);
            caches.lose(loser, true);
            let case = format!("{scheme} {missing} {loser}");
            let result = caches.flush(0);
            assert!(is_unflushed(&result), "{case}: {result:?}");
            for block in 0..STRIPE {
                let index = block as usize;
                match caches.read(1, block) {
                    Ok(found) => {
                        let known = [&before[index], &caches.content[index]];
                        assert!(known.contains(&&found), "{case}: block {block}");
                    }
                    Err(OpError::Lost { .. }) => {}
                    other => panic!("{case}: {other:?}"),
                }
            }
        }
    }
}

/// Two devices of the group are given up, and a third one has restarted: the flush looks at the stripes. What only the two had is
/// lost, and the flush says so.
#[test]
fn a_flush_fails_if_two_devices_are_lost() {
    for scheme in SCHEMES {
        let mut caches = Caches::new(scheme, 7);
        caches.write_one_by_one(0);
        exclude(&mut caches, 0);
        caches.world.dead.insert(DeviceId(1));
        let change = caches.world.hosts[0].state().without_at_a_loss(DeviceId(1));
        assert_eq!(caches.run(0, Work::Change { change }), Ok(HostAnswer::Done));
        caches.world.restart_device(DeviceId(2));
        let result = caches.flush(0);
        assert!(result.is_err(), "{scheme}: {result:?}");
    }
}

/// A host dies after its writes were answered. Another one does not know of them, and they are not lost with one cache.
#[test]
fn a_dead_hosts_writes_outlive_a_lost_cache() {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        for device in 0..5 {
            let mut caches = Caches::new(scheme, u64::from(device));
            caches.write_one_by_one(0);
            caches.world.kill_host(0);
            caches.lose(device, true);
            assert_eq!(caches.run(1, Work::Fence { life: life(0) }), Ok(HostAnswer::Done));
            assert_eq!(caches.flush(1), Ok(HostAnswer::Done));
            caches.assert_whole(1, &format!("{scheme} {device}"));
        }
    }
}

/// Time goes by, so that regions become clean. A device loses its power after so many steps of that. Returns true if everything
/// is whole then.
fn survives_a_rest(steps: u64, tune: impl Fn(&mut DeviceConfig)) -> bool {
    let mut caches = Caches::of(raid5(), Scheme::TimestampOrdering, steps, |config| {
        config.remember = 5_000 * MS;
        tune(config);
    });
    caches.write_one_by_one(0);
    let work = caches.world.write(Span { start: 0, count: 1 });
    let Work::Write { data, .. } = &work else { unreachable!() };
    caches.content[0] = data.to_vec();
    caches.world.submit(0, work);
    while !caches.world.submitted.is_empty() {
        caches.world.step();
    }
    caches.world.now += 6_000 * MS;
    // Devices that have nothing to do tidy up.
    let now = caches.world.now;
    caches.world.devices[0].handle(now, DeviceInput::Tick);
    caches.world.collect();
    (0..steps).for_each(|_| {
        caches.world.step();
    });
    caches.lose(0, true);
    caches.world.run();
    (0..STRIPE).all(|block| {
        let expected = caches.content[block as usize].clone();
        caches.read(1, block) == Ok(expected)
    })
}

#[test]
fn a_region_is_clean_only_when_it_is_flushed() {
    for steps in 0..60 {
        assert!(survives_a_rest(steps, |_| ()), "{steps} steps");
    }
}

#[cfg(feature = "mutations")]
#[test]
fn regions_that_are_clean_too_early_are_found() {
    let early = |config: &mut DeviceConfig| {
        config.mutation = Some(Mutation::CleanBeforeFlushed);
    };
    assert!((0..60).any(|steps| !survives_a_rest(steps, early)));
}

/// A device of server locking, without hosts, whose disk does everything at once.
struct Alone {
    device: Device,
    epoch: Epoch,
    now: Time,
    seq: u64,
}

impl Alone {
    fn new() -> Alone {
        let layout = raid5();
        let mut config = DeviceConfig::new(DeviceId(0), Scheme::ServerLocking, layout);
        config.durable = false;
        let state = ArrayState::new(layout.devices());
        let epoch = state.since;
        let boot = DeviceBoot { now: START, record: None, state, random: 1 };
        Alone { device: Device::new(config, boot).unwrap(), epoch, now: START, seq: 0 }
    }

    /// Asks for something. Returns what the disk was asked for, in order.
    fn ask(&mut self, action: Action, time: Time) -> Vec<&'static str> {
        self.seq += 1;
        self.now += 6_000 * MS;
        let op = OpId { life: life(0), seq: self.seq };
        let call = Call { op, sibling: 0, step: 0 };
        let stamp = Stamp { time, host: 0 };
        let request = Request { call, stamp, epoch: self.epoch, action };
        self.device.handle(self.now, DeviceInput::Request { from: life(0), request });
        let mut asked = Vec::new();
        while let Some(output) = self.device.poll() {
            let DeviceOutput::Disk(ask) = output else { continue };
            let (what, token): (_, DiskToken) = match ask {
                DiskAsk::Write { token, .. } => ("write", token),
                DiskAsk::Flush { token } => ("flush", token),
                DiskAsk::Save { token, .. } => ("save", token),
                DiskAsk::Read { token, .. } => ("read", token),
            };
            asked.push(what);
            let result = Ok(DiskAnswer::Done);
            self.device.handle(self.now, DeviceInput::Disk { token, result });
        }
        asked
    }

    fn write(&mut self, time: Time) -> Vec<&'static str> {
        let stamp = Stamp { time, host: 0 };
        let header = Header { stamp, first: 0, last: 0, ..Header::default() };
        let extent = Extent { start: 0, count: 1 };
        let data = vec![7; 16].into();
        let blocks = Blocks { extent, data, header, marks: Vec::new() };
        self.ask(Action::Write { blocks, repairs: false }, time)
    }
}

/// The record says up to which timestamp writes are durable. An older one that comes late is not.
#[test]
fn a_late_write_waits_until_the_record_does_not_count_it_as_durable() {
    let mut alone = Alone::new();
    let first = alone.write(START + 500);
    assert!(first.contains(&"write"), "{first:?}");
    let flush = alone.ask(Action::Flush { newest: START }, START);
    assert!(flush.starts_with(&["flush"]) && flush.contains(&"save"), "{flush:?}");
    let newer = alone.write(START + 600);
    assert!(newer.starts_with(&["write"]), "nothing has to be saved first: {newer:?}");
    let late = alone.write(START + 400);
    let place = |what: &str| late.iter().position(|asked| *asked == what);
    assert!(place("save") < place("write") && place("save").is_some(), "{late:?}");
}
