//! Hosts and devices of an array, with real files and connections, in one process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Site, identity};
use bytes::Bytes;
use lockify_array::{Change, Condition, DeviceId, Group, Member, OpError, Scheme, Span, Usage};
use lockify_volume::host::{Array, Joining, Repair, Reservation};
use lockify_volume::status::{ask, make_room};
use lockify_volume::upkeep::{self, Pace};
use lockify_volume::{BLOCK, Durability, Timing};

struct Farm {
    site: Site,
    servers: Vec<Option<Running>>,
    lock_servers: Vec<Option<Running>>,
}

struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
}

impl Running {
    fn start<E: ToString>(
        run: impl FnOnce(&AtomicBool) -> Result<(), E> + Send + 'static,
    ) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || run(&stop).map_err(|e| e.to_string())
        });
        Running { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap().unwrap();
    }
}

impl Farm {
    fn new(scheme: Scheme, data: u16) -> Farm {
        let timing = Timing { lease_ms: 1000, ..Timing::default() };
        let site = Site::new(scheme, data, 20, Durability::Write, timing);
        Farm::of(site, data)
    }

    /// All of these start.
    fn of(site: Site, data: u16) -> Farm {
        let count = site.file.lock_servers().count();
        let lock_servers = (0..count).map(|_| None).collect();
        let mut farm = Farm { site, servers: Vec::new(), lock_servers };
        (0..count).for_each(|id| farm.start_lock_server(id, true));
        for id in 0..=data {
            farm.servers.push(None);
            farm.start(id, true);
        }
        farm
    }

    fn start(&mut self, id: u16, create: bool) {
        let server = self.site.device(id, create);
        self.servers[usize::from(id)] = Some(Running::start(move |stop| server.run(stop)));
    }

    fn stop(&mut self, id: u16) {
        self.servers[usize::from(id)].take().into_iter().for_each(Running::stop);
    }

    fn start_lock_server(&mut self, id: usize, create: bool) {
        let server = self.site.lock_server(id as u16, create);
        self.lock_servers[id] = Some(Running::start(move |stop| server.run(stop)));
    }

    fn stop_lock_server(&mut self, id: usize) {
        self.lock_servers[id].take().into_iter().for_each(Running::stop);
    }

    /// Until this lock server serves, and so many may serve.
    fn wait_for_lock_server(&self, id: u16, complete: usize) {
        let serves = || {
            let answers = ask(&self.site.file, identity(), PATIENCE).unwrap();
            let locks = answers.newest().unwrap().locks.clone();
            let report = answers.lock_servers[usize::from(id)].as_ref();
            let serving = locks.serving.0 == id && report.is_ok_and(|report| report.serving);
            serving && locks.complete.len() == complete
        };
        let end = Instant::now() + PATIENCE;
        while !serves() {
            assert!(Instant::now() < end, "lock server {id} does not serve");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        for server in self.servers.iter().chain(&self.lock_servers).flatten() {
            server.stop.store(true, Relaxed);
        }
    }
}

fn data(blocks: u64, byte: u8) -> Bytes {
    vec![byte; blocks as usize * BLOCK as usize].into()
}

fn span(start: u64, count: u64) -> Span {
    Span { start, count }
}

#[test]
fn what_one_host_writes_another_reads() {
    let farm = Farm::new(Scheme::TimestampOrdering, 4);
    let (one, two) = (farm.site.open(), farm.site.open());
    assert_eq!(one.blocks(), 20 * 4 * 4);
    assert_eq!(two.read(span(0, 320)).unwrap(), data(320, 0));
    for (i, part) in [span(0, 1), span(3, 2), span(16, 16), span(40, 100)].into_iter().enumerate() {
        one.write(part, data(part.count, i as u8 + 1)).unwrap();
        assert_eq!(two.read(part).unwrap(), data(part.count, i as u8 + 1));
    }
    two.flush().unwrap();
    assert!(one.read(span(320, 1)).is_err());
    assert!(one.write(span(0, 2), data(1, 0)).is_err());
    one.close();
    assert!(one.read(span(0, 1)).is_err());
    assert_eq!(two.read(span(16, 16)).unwrap(), data(16, 3));
}

/// Writes and reads on the same stripes, by both, while something happens.
fn while_both_write(arrays: [&Array; 2], byte: u8, happens: impl FnOnce()) {
    std::thread::scope(|scope| {
        for (host, array) in (0..).zip(arrays) {
            scope.spawn(move || {
                for i in 0..30_u8 {
                    array.write(span(2, 9), data(9, byte + host * 40 + i)).unwrap();
                    let found = array.read(span(2, 9)).unwrap();
                    assert!(found.iter().all(|b| *b == found[0]), "mixed");
                }
            });
        }
        happens();
    });
}

/// Twice in each direction: the former one joins again, and has every lock.
#[test]
fn another_lock_server_serves_when_the_first_is_gone() {
    let timing = Timing { lease_ms: 1000, ..Timing::default() };
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        let mut site = Site::new(scheme, 2, 20, Durability::Write, timing);
        site.add_standby();
        let mut farm = Farm::of(site, 2);
        let (one, two) = (farm.site.open(), farm.site.open());
        farm.wait_for_lock_server(0, 2);
        for round in 0..4_u8 {
            let (gone, next) = (usize::from(round % 2), (round + 1) % 2);
            while_both_write([&one, &two], 1 + round, || {
                farm.stop_lock_server(gone);
                farm.wait_for_lock_server(next.into(), 1);
                farm.start_lock_server(gone, false);
                farm.wait_for_lock_server(next.into(), 2);
            });
        }
        let terms = one.status().state.locks.term;
        assert_eq!(terms, 5, "{scheme}");
        // Both hosts are as they were.
        assert_eq!(one.read(span(2, 9)).unwrap(), two.read(span(2, 9)).unwrap());
    }
}

/// Each write is of one value; a reader must never see two.
#[test]
fn hosts_that_write_the_same_stripes_do_not_mix() {
    for scheme in Scheme::ALL.into_iter().filter(|scheme| *scheme != Scheme::ZeroOverhead) {
        let farm = Farm::new(scheme, 2);
        std::thread::scope(|scope| {
            for host in 1..=2_u32 {
                let array = farm.site.open();
                for thread in 0..2_u8 {
                    let array = array.clone();
                    scope.spawn(move || {
                        for i in 0..15_u8 {
                            let byte = host as u8 * 80 + thread * 40 + i;
                            array.write(span(2, 9), data(9, byte)).unwrap();
                            let found = array.read(span(2, 9)).unwrap();
                            assert!(found.iter().all(|b| *b == found[0]), "{scheme}: mixed");
                        }
                    });
                }
            }
        });
    }
}

impl Farm {
    /// The devices of another group start, by a file that has them. Returns their numbers.
    fn start_group(&mut self, size: u16) -> Vec<DeviceId> {
        let first = self.servers.len() as u16;
        self.site.add_group(first, size);
        for id in first..first + size {
            self.servers.push(None);
            self.start(id, true);
        }
        (first..first + size).map(DeviceId).collect()
    }

    /// The array gets a group, by a host.
    fn add_group(&self, host: &Array, devices: &[DeviceId], stripes: u64) {
        let (file, now) = (&self.site.file, host.layout());
        let state = host.status().state;
        let entry = |device: &DeviceId| file.entry(*device).unwrap();
        let member = |device| Member {
            address: entry(device).address.to_string(),
            node: entry(device).node,
        };
        let members = devices.iter().map(member).collect();
        let group = Group { from: now.stripes, first: devices[0], members };
        host.change(Change::Add { after: state.stripes, group }).unwrap();
        for device in devices {
            let pace = Pace::of(1);
            upkeep::bring_in(host, file, &identity(), *device, &pace, PATIENCE).unwrap();
        }
        let stripes = now.stripes + stripes;
        for device in devices {
            make_room(file, identity(), *device, stripes, PATIENCE).unwrap();
        }
        let groups = now.added.iter().count() + 1;
        host.change(Change::Grow { after: now.stripes, groups, stripes }).unwrap();
    }

    /// Has the array go on without a device that was stopped.
    fn lose(&mut self, host: &Array, id: u16) {
        self.stop(id);
        host.change(host.status().state.without(DeviceId(id))).unwrap();
    }
}

/// Until a host knows that the array has so many blocks.
fn wait_for_blocks(host: &Array, blocks: u64) {
    let end = Instant::now() + PATIENCE;
    while host.blocks() != blocks {
        assert!(Instant::now() < end, "the host knows {} blocks", host.blocks());
        host.read(span(0, 1)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Hosts that were started with the former file go on, and find the new devices. Then devices of both groups are lost and rebuilt, and
/// all start again.
#[test]
fn a_group_comes_while_hosts_write() {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking, Scheme::CallbackLocking] {
        let mut farm = Farm::new(scheme, 2);
        let (one, two) = (farm.site.open(), farm.site.open());
        let former_file = farm.site.file.clone();
        let former = one.blocks();
        let group = farm.start_group(3);
        let operator = farm.site.open();
        while_both_write([&one, &two], 1, || farm.add_group(&operator, &group, 10));
        let blocks = former + 10 * 2 * 4;
        wait_for_blocks(&one, blocks);
        wait_for_blocks(&two, blocks);
        let over = span(former - 9, 20);
        one.write(over, data(20, 7)).unwrap();
        assert_eq!(two.read(over).unwrap(), data(20, 7), "{scheme}");
        farm.lose(&one, group[1].0);
        farm.lose(&one, 0);
        assert_eq!(two.read(over).unwrap(), data(20, 7), "{scheme}");
        two.write(over, data(20, 8)).unwrap();
        for id in [group[1].0, 0] {
            farm.start(id, false);
            let rebuilt = || upkeep::rebuild(&one, DeviceId(id), false, &Pace::of(2), &|_| ());
            wait_for_service(&farm, id);
            rebuilt().unwrap();
        }
        farm.lose(&one, group[2].0);
        assert_eq!(one.read(over).unwrap(), data(20, 8), "{scheme}");
        farm.start(group[2].0, false);
        wait_for_service(&farm, group[2].0);
        upkeep::rebuild(&one, group[2], false, &Pace::of(2), &|_| ()).unwrap();
        let scrub =
            upkeep::scrub(&two, 0..two.layout().stripes, Repair::None, &Pace::of(2), &|| {});
        let found = upkeep::Found { stripes: 30, ..upkeep::Found::default() };
        assert_eq!(scrub.unwrap().found, found, "{scheme}");
        for host in [one, two, operator] {
            host.leave(PATIENCE);
        }
        let all: Vec<u16> = (0..farm.servers.len() as u16).collect();
        all.iter().for_each(|id| farm.stop(*id));
        all.iter().for_each(|id| farm.start(*id, false));
        // Hosts with the former file. None sees the array as it was, not even for a moment.
        let open = || Array::open(&former_file, &farm.site.joining(None)).unwrap();
        for _ in 0..20 {
            let host = open();
            assert_eq!(host.blocks(), blocks, "{scheme}");
            host.leave(PATIENCE);
        }
        let host = open();
        assert_eq!(host.read(over).unwrap(), data(20, 8), "{scheme}");
        host.write(over, data(20, 9)).unwrap();
        assert_eq!(host.read(over).unwrap(), data(20, 9), "{scheme}");
    }
}

/// Until a device is there with the others.
fn wait_for_service(farm: &Farm, id: u16) {
    let end = Instant::now() + PATIENCE;
    loop {
        let answers = ask(&farm.site.file, identity(), PATIENCE).unwrap();
        let answer = answers.of(DeviceId(id)).cloned();
        if matches!(&answer, Some(Ok(report)) if report.serving) {
            return;
        }
        assert!(Instant::now() < end, "device {id} does not serve: {answer:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_device_that_ends_for_a_moment_is_waited_for() {
    let mut farm = Farm::new(Scheme::TimestampOrdering, 2);
    let host = farm.site.open();
    host.write(span(0, 20), data(20, 7)).unwrap();
    farm.stop(1);
    farm.start(1, false);
    host.write(span(5, 3), data(3, 8)).unwrap();
    assert_eq!(host.read(span(4, 1)).unwrap(), data(1, 7));
    assert_eq!(host.read(span(5, 3)).unwrap(), data(3, 8));
    assert!(host.status().state.devices.iter().all(|c| *c == Condition::Good));
}

#[test]
fn an_array_goes_on_without_a_device_and_takes_a_new_one() {
    let mut farm = Farm::new(Scheme::TimestampOrdering, 2);
    let host = farm.site.open();
    let all = span(0, host.blocks());
    host.write(all, data(all.count, 7)).unwrap();
    farm.stop(1);
    // One at a time, so that the host waits for nobody but the device that is gone.
    for block in 0..12 {
        assert_eq!(host.read(span(block, 1)).unwrap(), data(1, 7));
    }
    assert_eq!(host.status().state.devices[1], Condition::Failed);
    host.write(span(3, 30), data(30, 8)).unwrap();
    std::fs::remove_file(farm.site.path(1)).unwrap();
    farm.start(1, true);
    // On a busy machine it may not be there within a lease, and is given up again.
    let mut tries = Vec::new();
    while tries.len() < 40
        && let Err(why) = upkeep::rebuild(&host, DeviceId(1), false, &Pace::of(4), &|_| {})
    {
        tries.push(why);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(tries.len() < 40, "{tries:?}");
    assert!(host.status().state.devices.iter().all(|c| *c == Condition::Good));
    let scrub =
        upkeep::scrub(&host, 0..host.layout().stripes, Repair::None, &Pace::of(4), &|| {}).unwrap();
    let found = upkeep::Found { stripes: host.layout().stripes, ..upkeep::Found::default() };
    assert_eq!(scrub, upkeep::Scrub { found, ..upkeep::Scrub::default() });
    // The new device has its part: another one may end now.
    farm.stop(0);
    assert_eq!(host.read(span(3, 30)).unwrap(), data(30, 8));
    assert_eq!(host.read(span(33, 40)).unwrap(), data(40, 7));
}

/// Hosts wait for the server, and continue with their locks when it is back.
#[test]
fn a_lock_server_that_ends_is_waited_for() {
    for scheme in [Scheme::ServerLocking, Scheme::CallbackLocking] {
        let mut farm = Farm::new(scheme, 2);
        let (one, two) = (farm.site.open(), farm.site.open());
        one.write(span(0, 20), data(20, 1)).unwrap();
        for round in 2..6 {
            farm.stop_lock_server(0);
            std::thread::scope(|scope| {
                let writers = [&one, &two].map(|array| {
                    scope.spawn(move || array.write(span(3, 9), data(9, round)).unwrap())
                });
                farm.start_lock_server(0, false);
                writers.into_iter().for_each(|writer| writer.join().unwrap());
            });
            assert_eq!(two.read(span(3, 9)).unwrap(), data(9, round), "{scheme}");
            assert_eq!(one.read(span(0, 3)).unwrap(), data(3, 1), "{scheme}");
        }
    }
}

/// Otherwise the next host would have to wait for its lease.
#[test]
fn a_host_that_leaves_keeps_no_locks() {
    let farm = Farm::new(Scheme::CallbackLocking, 2);
    let one = farm.site.open();
    one.write(span(0, 20), data(20, 1)).unwrap();
    one.leave(PATIENCE);
    let two = farm.site.open();
    two.write(span(0, 20), data(20, 2)).unwrap();
    assert_eq!(two.counts().delayed, 0);
}

/// Two command lines that are the same, also with the same number, as releases before had it.
#[test]
fn hosts_never_have_the_same_number() {
    let farm = Farm::new(Scheme::TimestampOrdering, 2);
    let hosts: Vec<_> = (0..6).map(|_| farm.site.open()).collect();
    let numbers: BTreeSet<u32> = hosts.iter().map(Array::number).collect();
    assert_eq!(numbers.len(), hosts.len(), "{numbers:?}");
    let last = *numbers.last().unwrap();
    drop(hosts);
    std::thread::scope(|scope| {
        let later: Vec<_> = (0..4).map(|_| scope.spawn(|| farm.site.open().number())).collect();
        let later: BTreeSet<u32> = later.into_iter().map(|host| host.join().unwrap()).collect();
        assert!(later.len() == 4 && later.iter().all(|number| *number > last), "{later:?}");
    });
}

/// A machine is restored from a backup while it runs elsewhere, or its files are copied.
#[test]
fn a_host_fences_the_process_that_it_was_before_and_that_did_not_end() {
    for scheme in [Scheme::TimestampOrdering, Scheme::CallbackLocking] {
        let farm = Farm::new(scheme, 2);
        let (memory, copy) =
            (farm.site.folder.path().join("host"), farm.site.folder.path().join("copy"));
        let former = Array::open(&farm.site.file, &farm.site.joining(Some(&memory))).unwrap();
        former.write(span(0, 20), data(20, 1)).unwrap();
        let second = Array::open(&farm.site.file, &farm.site.joining(Some(&memory)));
        let why = second.err().unwrap().to_string();
        assert!(why.contains("in use by another process"), "{why}");
        std::fs::copy(&memory, &copy).unwrap();
        let host = Array::open(&farm.site.file, &farm.site.joining(Some(&copy))).unwrap();
        host.write(span(0, 20), data(20, 2)).unwrap();
        assert_eq!(former.write(span(0, 20), data(20, 3)), Err(OpError::Fenced), "{scheme}");
        assert_eq!(host.read(span(0, 20)).unwrap(), data(20, 2), "{scheme}");
        // One that ends in order leaves nobody to fence.
        host.leave(PATIENCE);
        drop(host);
        let next = Array::open(&farm.site.file, &farm.site.joining(Some(&copy))).unwrap();
        next.write(span(0, 20), data(20, 4)).unwrap();
    }
}

#[test]
fn a_device_file_that_is_put_back_to_an_older_copy_is_left_out_until_it_is_rebuilt() {
    for scheme in [Scheme::TimestampOrdering, Scheme::DeviceLocking] {
        let mut farm = Farm::new(scheme, 2);
        let host = farm.site.open();
        host.write(span(0, 160), data(160, 1)).unwrap();
        farm.stop(1);
        let (file, copy) = (farm.site.path(1), farm.site.folder.path().join("copy"));
        std::fs::copy(&file, &copy).unwrap();
        farm.start(1, false);
        host.write(span(0, 160), data(160, 2)).unwrap();
        farm.stop(1);
        std::fs::copy(&copy, &file).unwrap();
        farm.start(1, false);
        let failed = || host.status().state.devices[1] == Condition::Failed;
        let end = Instant::now() + PATIENCE;
        while !failed() {
            assert_eq!(host.read(span(0, 160)).unwrap(), data(160, 2), "{scheme}");
            assert!(Instant::now() < end, "{scheme}: {:?}", host.status());
        }
        assert_eq!(host.read(span(0, 160)).unwrap(), data(160, 2), "{scheme}");
        upkeep::rebuild(&host, DeviceId(1), false, &Pace::of(4), &|_| {}).unwrap();
        assert_eq!(host.status().state.devices[1], Condition::Good);
        // Its content counts again.
        farm.stop(0);
        assert_eq!(host.read(span(0, 160)).unwrap(), data(160, 2), "{scheme}");
    }
}

/// A host that does nothing hears of its fence, too: devices and lock server end its connections. One that has ended in order is
/// on its node no more, under every scheme, whatever it did last.
#[test]
fn a_node_has_the_hosts_that_have_neither_ended_nor_been_fenced() {
    for scheme in Scheme::ALL {
        let farm = Farm::new(scheme, 2);
        let node = "alpha".parse().unwrap();
        let joining = Joining { node, ..farm.site.joining(None) };
        let one = Array::open(&farm.site.file, &joining).unwrap();
        one.write(span(0, 20), data(20, 1)).unwrap();
        let (tell, told) = channel();
        one.on_fence(Box::new(move || tell.send(()).unwrap()));
        let ended = Array::open(&farm.site.file, &joining).unwrap();
        ended.write(span(40, 20), data(20, 1)).unwrap();
        ended.read(span(0, 20)).unwrap();
        ended.leave(PATIENCE);
        let two = farm.site.open();
        assert_eq!(two.fence_node(node, PATIENCE), Ok(vec![one.number()]), "{scheme}");
        told.recv_timeout(PATIENCE).unwrap();
        assert!(one.is_fenced() && !two.is_fenced(), "{scheme}");
        assert_eq!(one.write(span(0, 20), data(20, 2)), Err(OpError::Fenced), "{scheme}");
        let is_cut_off = || {
            let answers = ask(&farm.site.file, identity(), PATIENCE).unwrap();
            let reports = answers.voters.iter().chain(&answers.lock_servers);
            let mut hosts = reports.flat_map(|report| report.as_ref().unwrap().hosts.clone());
            hosts.all(|(host, _)| host != one.number())
        };
        assert!((0..100).any(|_| is_cut_off()), "{scheme}");
        assert_eq!(two.read(span(0, 20)).unwrap(), data(20, 1), "{scheme}");
        assert_eq!(two.status().state.nodes.get(node).unwrap().hosts().count(), 0, "{scheme}");
        // The next one is let in.
        let next = Array::open(&farm.site.file, &joining).unwrap();
        next.write(span(0, 20), data(20, 3)).unwrap();
        // It came after the host that fences.
        assert!(!two.fence_node(node, PATIENCE).unwrap().contains(&next.number()), "{scheme}");
        assert!(!next.is_fenced(), "{scheme}");
    }
}

/// A reservation outlives its host, in whatever way that ends. It is not given again when others have ended it.
#[test]
fn a_reservation_keeps_the_array_for_the_next_process() {
    let farm = Farm::new(Scheme::TimestampOrdering, 2);
    let node = "alpha".parse().unwrap();
    let memory = farm.site.folder.path().join("memory");
    let joining = Joining { node, ..farm.site.joining(Some(&memory)) };
    let open = || Array::open_reserved(&farm.site.file, &joining, None).unwrap();
    let refused = || {
        let why = Array::open(&farm.site.file, &farm.site.joining(None)).err().unwrap().to_string();
        assert!(why.contains("has the array for itself"), "{why}");
    };
    let upkeep = Joining { usage: Usage::Upkeep, ..farm.site.joining(None) };
    let upkeep = Array::open(&farm.site.file, &upkeep).unwrap();
    let one = open();
    let first = one.reservation().unwrap();
    assert_eq!((first.continued, first.lost), (false, None));
    let again = Some(Reservation { continued: true, ..first });
    one.write(span(0, 20), data(20, 1)).unwrap();
    // As devices do it when a host is silent.
    upkeep.fence(one.number(), PATIENCE).unwrap();
    refused();
    drop(one);
    let two = open();
    assert_eq!(two.reservation(), again);
    assert_eq!(two.read(span(0, 20)).unwrap(), data(20, 1));
    two.leave_reserved(PATIENCE);
    refused();
    drop(two);
    let three = open();
    assert_eq!(three.reservation(), again);
    // As a cluster manager: the array is free for others, so nothing of this process may go on.
    let hosts = upkeep.fence_node(node, PATIENCE).unwrap();
    assert!(hosts.is_empty(), "it came after this host: {hosts:?}");
    let manager = Joining { usage: Usage::Upkeep, ..farm.site.joining(None) };
    let manager = Array::open(&farm.site.file, &manager).unwrap();
    let mut hosts = manager.fence_node(node, PATIENCE).unwrap();
    hosts.sort_unstable();
    assert_eq!(hosts, [first.number, three.number()]);
    drop(three);
    let other = farm.site.open();
    other.write(span(0, 20), data(20, 2)).unwrap();
    other.leave(PATIENCE);
    let four = open();
    let second = four.reservation().unwrap();
    assert_eq!((second.continued, second.lost), (false, Some(first.number)));
    assert!(second.number > first.number);
    four.leave(PATIENCE);
    drop(four);
    let free = farm.site.open();
    assert_eq!(free.reservation(), None);
    free.leave(PATIENCE);
    // Whoever ends a reservation ends its owner first, also one that attached later than himself.
    let manager = Joining { usage: Usage::Upkeep, ..farm.site.joining(None) };
    let (former, by_number) = (open(), Array::open(&farm.site.file, &manager).unwrap());
    former.leave_reserved(PATIENCE);
    drop(former);
    let owner = open();
    assert!(owner.reservation().unwrap().continued);
    by_number.fence(owner.reservation().unwrap().number, PATIENCE).unwrap();
    assert_eq!(owner.write(span(0, 20), data(20, 3)), Err(OpError::Fenced));
    assert!(!by_number.is_fenced());
    drop(owner);
    let former = open();
    let by_name = Array::open(&farm.site.file, &manager).unwrap();
    former.leave_reserved(PATIENCE);
    drop(former);
    let owner = open();
    assert!(owner.reservation().unwrap().continued);
    by_name.fence_node(node, PATIENCE).unwrap();
    assert_eq!(owner.write(span(0, 20), data(20, 3)), Err(OpError::Fenced));
    drop(owner);
    let look = farm.site.open();
    assert_eq!(look.attached().unwrap().nodes.get(node).unwrap().hosts().count(), 0);
    look.leave(PATIENCE);
    by_number.leave(PATIENCE);
    by_name.leave(PATIENCE);
    // One that is not wanted any more does not stay.
    open().leave_reserved(PATIENCE);
    refused();
    let plain = Joining { usage: Usage::Exclusive, ..joining.clone() };
    let plain = Array::open(&farm.site.file, &plain).unwrap();
    assert_eq!(plain.reservation(), None);
    plain.leave(PATIENCE);
    farm.site.open().leave(PATIENCE);
}

/// Nothing waits for ever: not for a device that neither answers nor is given up.
#[test]
fn a_fence_that_cannot_be_confirmed_fails_with_a_reason() {
    let mut farm = Farm::new(Scheme::TimestampOrdering, 2);
    let (one, two) = (farm.site.open(), farm.site.open());
    one.write(span(0, 20), data(20, 1)).unwrap();
    farm.stop(1);
    farm.stop(2);
    let why = two.fence(one.number(), Duration::from_secs(2)).unwrap_err().to_string();
    assert!(why.contains("not all of the array's processes have answered in time"), "{why}");
    assert!(why.contains("device 1: "), "{why}");
}
