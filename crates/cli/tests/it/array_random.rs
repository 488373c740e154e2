//! Faults at random, on arrays of real processes of every scheme and redundancy, while three hosts read and write the same stripes.
//! Never more is gone than the redundancy replaces, so that nothing may be lost. The processes' histories are the evidence.
//!
//! One round is an array, some faults, and the judgement. `.ci/long arrays` runs rounds for an hour.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::common::array::{Array, Export};
use crate::common::relay::{Link, Network, Place};
use crate::common::traffic::{
    Busy, Numbers, SHARED, attempt, content, judge, pile_while_it_lives, status, tear,
};
use crate::common::wall::Wall;
use crate::common::{code, stderr, stdout};
use rustix::process::Signal;

const SCHEMES: [&str; 4] =
    ["timestamp-ordering", "device-locking", "server-locking", "callback-locking"];
/// The host whose fate is a fault. The others' numbers are 1 to 3.
const VICTIM: u32 = 9;
const WORKERS: u32 = 3;
/// Until an array is whole again.
const PATIENCE: Duration = Duration::from_secs(120);
/// The number of blocks that are torn at once, among the first ones of a device, which hosts use.
const TORN: usize = 6;
const UNITS: usize = 12;

/// Devices, witnesses, and the options of `create`.
const SHAPES: [(usize, usize, &[&str]); 4] =
    [(3, 0, &[]), (5, 0, &[]), (4, 0, &["--raid6"]), (2, 1, &["--mirror"])];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    HostKilled,
    HostStopped,
    HostCutOff,
    HostClock,
    DeviceKilled,
    DeviceStopped,
    DeviceCutOff,
    DeviceClock,
    /// Its medium is lost for good.
    DeviceReplaced,
    /// Its medium is put back to an older copy.
    OlderCopy,
    TornBlocks,
    AllDevicesKilled,
    LockServerKilled,
}

const ALL: [Fault; 13] = [
    Fault::HostKilled,
    Fault::HostStopped,
    Fault::HostCutOff,
    Fault::HostClock,
    Fault::DeviceKilled,
    Fault::DeviceStopped,
    Fault::DeviceCutOff,
    Fault::DeviceClock,
    Fault::DeviceReplaced,
    Fault::OlderCopy,
    Fault::TornBlocks,
    Fault::AllDevicesKilled,
    Fault::LockServerKilled,
];

/// An array under load.
struct Storm<'a> {
    array: &'a Mutex<Array>,
    devices: usize,
    /// Media get new names when they are replaced.
    media: Vec<String>,
    numbers: Numbers,
}

impl Storm<'_> {
    /// No worker starts a host while it is held.
    fn array(&self) -> MutexGuard<'_, Array> {
        self.array.lock().unwrap()
    }

    fn some_device(&mut self) -> usize {
        self.numbers.below(self.devices)
    }

    /// Shorter than a lease, about as long, or longer.
    fn pause(&mut self) {
        let times = [50, 300, 900, 1500, 3000];
        std::thread::sleep(Duration::from_millis(times[self.numbers.below(times.len())]));
    }

    fn happens(&mut self, fault: Fault) {
        match fault {
            Fault::HostKilled => self.on_a_host(|_, export| export.process.kill()),
            Fault::HostStopped => self.on_a_host(|storm, export| {
                export.process.signal(Signal::STOP);
                storm.pause();
                export.process.signal(Signal::CONT);
            }),
            Fault::HostCutOff => self.on_a_host(|storm, _| storm.cut_off(Place::Host(VICTIM))),
            Fault::HostClock => self.step(Place::Host(1)),
            Fault::DeviceKilled => {
                let id = self.some_device();
                self.away(id, |_, _| {});
            }
            Fault::DeviceStopped => {
                let id = self.some_device();
                let signal = |storm: &Self, signal| {
                    storm.array().devices[id].as_ref().unwrap().signal(signal);
                };
                signal(self, Signal::STOP);
                self.pause();
                signal(self, Signal::CONT);
            }
            Fault::DeviceCutOff => {
                let id = self.some_device();
                self.cut_off(Place::Device(id));
            }
            Fault::DeviceClock => {
                let id = self.some_device();
                self.step(Place::Device(id));
            }
            Fault::DeviceReplaced => self.replace(),
            Fault::OlderCopy => self.older_copy(),
            Fault::TornBlocks => self.tear_blocks(),
            Fault::AllDevicesKilled => self.kill_all(),
            Fault::LockServerKilled => self.kill_the_lock_server(),
        }
        self.until_whole();
    }

    /// A host has writes under way, and something happens to it. It may be fenced.
    fn on_a_host(&mut self, happens: impl FnOnce(&mut Self, &mut Export)) {
        let mut export = self.array().export(VICTIM);
        let seed = self.numbers.below(1 << 20) as u64;
        let mut blocks = export.connect();
        pile_while_it_lives(&mut blocks, seed, 48);
        happens(self, &mut export);
        while blocks.0.reply_unless_over().is_ok_and(|(error, _)| error == 0) {
            if self.numbers.below(48) == 0 {
                break;
            }
        }
        let ended = export.process.0.try_wait().unwrap();
        let ended = ended.map_or_else(|| export.process.end(), |status| status.code());
        assert!([None, Some(0), Some(3)].contains(&ended), "the host ended with {ended:?}");
    }

    /// A device is killed, and started again some time after something was done to its medium.
    fn away(&mut self, id: usize, to: impl FnOnce(&mut Self, &str)) {
        self.array().devices[id].take().unwrap().kill();
        let disk = self.media[id].clone();
        to(self, &disk);
        self.pause();
        self.array().start(id, &disk, &[]);
    }

    fn replace(&mut self) {
        let id = self.some_device();
        self.array().devices[id].take().unwrap().kill();
        self.pause();
        self.media[id].push_str("-new");
        let disk = self.media[id].clone();
        self.array().start(id, &disk, &["--create"]);
        let replaced = self.array().lockify("replace", &["--id", &id.to_string()]);
        assert_eq!(code(&replaced), 0, "{}{}", stdout(&replaced), stderr(&replaced));
    }

    /// The device has asked for another number of its medium since, and others have written.
    fn older_copy(&mut self) {
        let id = self.some_device();
        let disk = self.media[id].clone();
        let older = format!("{disk}-older");
        self.away(id, |storm, disk| {
            let array = storm.array();
            std::fs::copy(array.disk(disk), array.disk(&older)).unwrap();
        });
        self.until_whole();
        self.pause();
        self.away(id, |storm, disk| {
            let array = storm.array();
            std::fs::rename(array.disk(&older), array.disk(disk)).unwrap();
        });
    }

    /// Nobody knows of those that nobody reads, and so a scrub mends them.
    fn tear_blocks(&mut self) {
        let id = self.some_device();
        self.away(id, |storm, disk| {
            let blocks: Vec<usize> = (0..TORN).map(|_| storm.numbers.below(UNITS)).collect();
            tear(&storm.array().disk(disk), blocks);
        });
        self.until_whole();
        let scrub = self.array().lockify("scrub", &["--repair"]);
        assert!(code(&scrub) <= 1, "{}{}", stdout(&scrub), stderr(&scrub));
    }

    fn kill_all(&mut self) {
        // Nobody attaches while no majority is there.
        let mut array = self.array();
        array.devices.iter_mut().for_each(|device| device.take().unwrap().kill());
        for id in 0..array.devices.len() {
            let disk = self.media[id].clone();
            array.start(id, &disk, &[]);
        }
    }

    fn kill_the_lock_server(&mut self) {
        let Some(mut server) = self.array().lock_server.take() else { return };
        server.kill();
        self.pause();
        self.array().start_lock_server(&[]);
    }

    /// Messages from that time arrive later, or connections are broken.
    fn cut_off(&mut self, place: Place) {
        let link = [Link::Silent, Link::Broken][self.numbers.below(2)];
        let everybody: Vec<Place> = {
            let array = self.array();
            let devices = (0..array.devices.len()).map(Place::Device);
            let server = array.lock_server.iter().map(|_| Place::Server);
            devices.chain(server).filter(|other| *other != place).collect()
        };
        self.array().network.as_ref().unwrap().set(&[place], &everybody, link);
        self.pause();
        self.array().network.as_ref().unwrap().heal();
    }

    fn step(&mut self, place: Place) {
        let by = [-1000, 1000][self.numbers.below(2)];
        self.array().walls[&place].set(by);
        self.pause();
        self.array().walls[&place].set(0);
    }

    /// All devices are good, and know all that hosts have written: a device may be lost again. Those that the array has gone on
    /// without are rebuilt.
    fn until_whole(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let array = self.array();
            let status = status(&array);
            let devices = || (0..self.devices).map(|id| &status["devices"][id]);
            if status["healthy"] == true && devices().all(|device| device["unsettled"] == false) {
                return;
            }
            assert!(Instant::now() < deadline, "the array does not become whole: {status}");
            for failed in devices().filter(|device| device["condition"] == "failed") {
                array.lockify("rebuild", &["--id", &failed["id"].to_string()]);
            }
            drop(array);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A host reads and writes. One that was fenced starts again as another.
fn worker(array: &Mutex<Array>, number: u32, over: &AtomicBool) -> Export {
    let export = || array.lock().unwrap().export(number);
    let (mut host, mut numbers) = (export(), Numbers::new(u64::from(number)));
    let mut blocks = host.connect();
    while !over.load(Relaxed) {
        if let Err(error) = attempt(&mut blocks, &mut numbers, 10) {
            let ended = host.process.ended().code();
            assert_eq!(ended, Some(3), "host {number} was not fenced: {error}");
            host = export();
            blocks = host.connect();
        }
        // So that there is not too much to judge.
        std::thread::sleep(Duration::from_millis(20));
    }
    host
}

fn round(seed: u64, faults: usize) {
    let mut numbers = Numbers::new(seed);
    let scheme = SCHEMES[numbers.below(SCHEMES.len())];
    let (devices, witnesses, options) = SHAPES[numbers.below(SHAPES.len())];
    let faults: Vec<Fault> = (0..faults).map(|_| ALL[numbers.below(ALL.len())]).collect();
    println!("seed {seed}: {scheme}, {devices} devices {options:?}: {faults:?}");
    let options = [&["--scheme", scheme], options].concat();
    let mut array = Array::with_witnesses(devices, witnesses, &options);
    array.recorded = true;
    array.network = Some(Network::default());
    let clocks = (0..devices).map(Place::Device).chain([Place::Host(1)]);
    for place in clocks {
        let wall = Wall::new(array.user.dir(), &format!("wall-{place:?}"));
        array.walls.insert(place, wall);
    }
    array.start_all();
    let media = (0..devices + witnesses).map(|id| format!("disk{id}")).collect();
    let (array, over) = (Mutex::new(array), AtomicBool::new(false));
    let mut storm = Storm { array: &array, devices, media, numbers };
    let hosts = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=WORKERS)
            .map(|number| {
                let (array, over) = (&array, &over);
                scope.spawn(move || worker(array, number, over))
            })
            .collect();
        let busy = Busy(&over);
        for fault in faults {
            storm.pause();
            storm.happens(fault);
        }
        drop(busy);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<Export>>()
    });
    hosts[0].connect().write(0, &content(SHARED));
    // A device that was cut off may be given up when it can be reached again, and miss that write.
    storm.until_whole();
    judge(array.into_inner().unwrap(), hosts);
}

#[test]
fn faults_at_random_lose_nothing() {
    round(1, 3);
}

/// For LOCKIFY_ARRAY_MINUTES (10), from LOCKIFY_ARRAY_SEED (1) on.
#[test]
#[ignore = "takes as long as it is told to: .ci/long arrays"]
fn faults_at_random_for_long_lose_nothing() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let length = Duration::from_secs(60 * number("LOCKIFY_ARRAY_MINUTES", 10));
    let (begun, mut seed) = (Instant::now(), number("LOCKIFY_ARRAY_SEED", 1));
    while begun.elapsed() < length {
        round(seed, 5);
        seed += 1;
    }
}
