//! Several hosts export one array, and clients use all of these block devices at the same time. fio is run where `LOCKIFY_TEST_NBD`
//! is set, and fails there if it is missing.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::client::Client;
use crate::common::{PATIENCE, Site, log};
use lockify_array::{Extent, Scheme, Span};
use lockify_volume::door::{Export, Stopper};
use lockify_volume::host::Array;
use lockify_volume::nbd::{Ended, Listen, Server};
use lockify_volume::store::{Access, Store};
use lockify_volume::{BLOCK, Durability, Timing};

/// Bytes per stripe: four units of 16 KiB.
const STRIPE: u64 = 64 * 1024;
const STRIPES: u64 = 64;

/// Five devices, and hosts that export their array.
struct Farm {
    site: Site,
    stop: Arc<AtomicBool>,
    /// Devices and lock server.
    devices: Vec<JoinHandle<()>>,
    exports: Vec<Exported>,
}

struct Exported {
    array: Array,
    socket: PathBuf,
    uri: String,
    stopper: Stopper,
    thread: JoinHandle<Ended>,
}

impl Farm {
    fn new(scheme: Scheme, hosts: u32) -> Farm {
        let site = Site::new(scheme, 4, STRIPES, Durability::Flush, Timing::default());
        let stop = Arc::new(AtomicBool::new(false));
        let mut farm = Farm { site, stop, devices: Vec::new(), exports: Vec::new() };
        for id in 0..=4 {
            let device = farm.site.device(id, true);
            let stop = Arc::clone(&farm.stop);
            farm.devices.push(std::thread::spawn(move || device.run(&stop).unwrap()));
        }
        if scheme.has_server() {
            let server = farm.site.lock_server(0, true);
            let stop = Arc::clone(&farm.stop);
            farm.devices.push(std::thread::spawn(move || server.run(&stop).unwrap()));
        }
        for host in 1..=hosts {
            farm.export(host);
        }
        farm
    }

    fn export(&mut self, host: u32) {
        let array = self.site.open();
        let socket = self.site.folder.path().join(format!("host{host}"));
        let export = Export::of(&self.site.file, "array".into(), String::new(), false);
        let listen = Listen::Unix { path: socket.clone(), mode: 0o600, group: None };
        let server = Server::listen(&listen, export, None, log).unwrap();
        let (uri, stopper) = (server.uri().unwrap(), server.stopper().unwrap());
        let backend = array.clone();
        let thread = std::thread::spawn(move || server.run(Arc::new(backend)).unwrap());
        self.exports.push(Exported { array, socket, uri, stopper, thread });
    }

    /// Runs fio on every export at once, with additional options for each.
    fn fio_on_all(&self, own: impl Fn(u64, &Path) -> Vec<String>) {
        let start = |(number, export): (usize, &Exported)| {
            let aux = self.site.folder.path().join(format!("fio{number}"));
            std::fs::create_dir(&aux).unwrap();
            let mut args = own(number as u64, &aux);
            args.push(format!("--uri={}", export.uri));
            std::thread::spawn(move || fio(&args))
        };
        let running: Vec<_> = self.exports.iter().enumerate().map(start).collect();
        running.into_iter().for_each(|fio| fio.join().unwrap());
    }

    /// Every server ends in order, and then the devices' files have no stripe whose parity is wrong.
    fn end(mut self) {
        for export in self.exports.drain(..) {
            export.stopper.stop();
            assert_eq!(export.thread.join().unwrap(), Ended::Stopped);
            export.array.close();
        }
        self.stop.store(true, Relaxed);
        self.devices.drain(..).for_each(|device| device.join().unwrap());
        let open = |id: u16| {
            Store::open(&self.site.path(id), &self.site.file, id, Access::Direct).unwrap()
        };
        let stores: Vec<Store> = (0..self.site.file.layout.devices()).map(open).collect();
        for start in 0..self.site.file.layout.device_blocks() {
            let mut parity = vec![0; BLOCK as usize];
            for store in &stores {
                let blocks = store.read(Extent { start, count: 1 }).unwrap();
                let block = blocks[0].as_ref().unwrap();
                parity.iter_mut().zip(&block.data[..]).for_each(|(sum, byte)| *sum ^= byte);
            }
            assert!(parity.iter().all(|byte| *byte == 0), "parity of the devices' block {start}");
        }
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Returns true if fio is to be run.
fn wanted() -> bool {
    let wanted = std::env::var_os("LOCKIFY_TEST_NBD").is_some();
    if !wanted {
        eprintln!(
            "not run: fio is not everywhere; apt-get install fio, and LOCKIFY_TEST_NBD=1 runs it"
        );
    }
    wanted
}

fn fio(args: &[String]) {
    let common = ["--name=test", "--ioengine=nbd", "--iodepth=8"];
    let output = Command::new("fio").args(common).args(args).stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = output
        .unwrap_or_else(|e| panic!("fio cannot be started ({e}); install it: apt-get install fio"));
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success() && !text.contains("verify:"), "fio {args:?}: {status}\n{text}");
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Each host writes its own units of every stripe, and verifies them.
fn neighbours(scheme: Scheme, hosts: u32) {
    if !wanted() {
        return;
    }
    let farm = Farm::new(scheme, hosts);
    let unit = STRIPE / u64::from(hosts);
    farm.fio_on_all(|number, aux| {
        let mut args = strings(&[
            "--rw=write",
            "--bs=4k",
            "--zonemode=strided",
            "--verify=crc32c",
            "--verify_state_save=0",
        ]);
        args.push(format!("--offset={}", number * unit));
        args.push(format!("--size={}", STRIPE * STRIPES - number * unit));
        args.push(format!("--io_size={}", unit * STRIPES));
        args.push(format!("--zonesize={unit}"));
        args.push(format!("--zonerange={STRIPE}"));
        args.push(format!("--aux-path={}", aux.display()));
        args
    });
    farm.end();
}

/// All hosts write everything; afterwards each request's blocks are all of one host.
fn rivals(scheme: Scheme, hosts: u32) {
    if !wanted() {
        return;
    }
    const REQUEST: u64 = 32 * 1024;
    let farm = Farm::new(scheme, hosts);
    farm.fio_on_all(|number, aux| {
        let mut args = strings(&["--rw=randwrite", "--loops=3"]);
        args.push(format!("--bs={REQUEST}"));
        args.push(format!("--size={}", STRIPE * STRIPES));
        args.push(format!("--randseed={}", number + 1));
        args.push(format!("--buffer_pattern=0x{:02x}", number + 1));
        args.push(format!("--aux-path={}", aux.display()));
        args
    });
    let count = REQUEST / u64::from(BLOCK);
    let mut last = vec![0; hosts as usize + 1];
    for start in (0..farm.site.file.layout.blocks()).step_by(count as usize) {
        let data = farm.exports[0].array.read(Span { start, count }).unwrap();
        assert!(data.iter().all(|byte| *byte == data[0]), "the request at block {start} is mixed");
        last[usize::from(data[0])] += 1;
    }
    println!("who wrote last, by host: {:?}", &last[1..]);
    assert_eq!(last[0], 0);
    farm.end();
}

/// Bytes from the third block on, which begin with a stripe's first unit and end with its second. Each piece is one host's. Most
/// blocks have pieces of both.
const SHARED: u64 = 2 * BLOCK as u64;
const PIECES: [Range<u64>; 9] = [
    0..512,
    512..1024,
    1024..2049,
    2049..2050,
    2050..4000,
    4000..4196,
    4196..8191,
    8191..8193,
    8193..12288,
];

/// The content of a piece after so many writes of it.
fn content(piece: usize, round: u32) -> Vec<u8> {
    let bytes = PIECES[piece].clone();
    bytes.map(|at| (at as u32 * 3 + round * 7 + piece as u32) as u8 | 1).collect()
}

/// A client writes its pieces again and again, and reads each afterwards, with all blocks that it is in.
fn write_pieces(socket: &Path, own: usize, hosts: usize) {
    const ROUNDS: u32 = 25;
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = Client(stream);
    client.greet(false);
    for round in 0..ROUNDS {
        for (piece, place) in PIECES.iter().enumerate().filter(|(piece, _)| piece % hosts == own) {
            let (offset, length) = (SHARED + place.start, (place.end - place.start) as u32);
            let (cookie, data) = (u64::from(round), content(piece, round));
            // Every other one with FUA.
            client.request(((round % 2) as u16, 1), cookie, offset, length);
            client.put(&data);
            assert_eq!(client.reply(), (0, cookie));
            client.request((0, 0), cookie, offset, length);
            assert_eq!(client.reply(), (0, cookie));
            assert!(client.get(length as usize) == data, "piece {piece} in round {round}");
        }
    }
    // Zeroes in the end, of one byte less than the piece.
    for (piece, place) in PIECES.iter().enumerate().filter(|(piece, _)| piece % hosts == own) {
        let length = (place.end - place.start - 1) as u32;
        if length > 0 {
            client.request((0, 6), 1, SHARED + place.start, length);
            assert_eq!(client.reply(), (0, 1), "piece {piece}");
        }
    }
}

/// Hosts write different bytes of the same blocks at the same time, and lose none.
fn sharers(scheme: Scheme, hosts: usize) {
    let farm = Farm::new(scheme, hosts as u32);
    std::thread::scope(|scope| {
        for (own, export) in farm.exports.iter().enumerate() {
            scope.spawn(move || write_pieces(&export.socket, own, hosts));
        }
    });
    let mut expected = vec![0; 3 * BLOCK as usize];
    for (piece, place) in PIECES.into_iter().enumerate() {
        let last = *content(piece, 24).last().unwrap();
        expected[place.end as usize - 1] = last;
    }
    for export in &farm.exports {
        let data = export.array.read(Span { start: 2, count: 3 }).unwrap();
        assert!(data == expected, "{scheme}");
        for start in [1, 5] {
            let beside = export.array.read(Span { start, count: 1 }).unwrap();
            assert!(beside.iter().all(|byte| *byte == 0), "{scheme}: block {start}");
        }
    }
    farm.end();
}

#[test]
fn two_hosts_share_blocks() {
    sharers(Scheme::TimestampOrdering, 2);
}

#[test]
fn three_hosts_share_blocks() {
    sharers(Scheme::TimestampOrdering, 3);
}

#[test]
fn two_hosts_share_blocks_with_device_locking() {
    sharers(Scheme::DeviceLocking, 2);
}

#[test]
fn two_hosts_share_blocks_with_server_locking() {
    sharers(Scheme::ServerLocking, 2);
}

#[test]
fn two_hosts_share_blocks_with_callback_locking() {
    sharers(Scheme::CallbackLocking, 2);
}

/// Each host writes and verifies sectors of 512 bytes, between those of the other.
#[test]
fn two_hosts_with_sectors_of_512_bytes() {
    if !wanted() {
        return;
    }
    let farm = Farm::new(Scheme::TimestampOrdering, 2);
    farm.fio_on_all(|number, aux| {
        let mut args = strings(&[
            "--rw=write",
            "--bs=512",
            "--zonemode=strided",
            "--zonesize=512",
            "--zonerange=1024",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--io_size=256k",
        ]);
        args.push(format!("--offset={}", number * 512));
        args.push(format!("--size={}", 512 * 1024 - number * 512));
        args.push(format!("--aux-path={}", aux.display()));
        args
    });
    farm.end();
}

#[test]
fn two_hosts_on_the_same_stripes() {
    neighbours(Scheme::TimestampOrdering, 2);
}

#[test]
fn four_hosts_on_the_same_stripes() {
    neighbours(Scheme::TimestampOrdering, 4);
}

#[test]
fn two_hosts_on_the_same_stripes_with_device_locking() {
    neighbours(Scheme::DeviceLocking, 2);
}

#[test]
fn two_hosts_on_the_same_stripes_with_server_locking() {
    neighbours(Scheme::ServerLocking, 2);
}

#[test]
fn two_hosts_on_the_same_stripes_with_callback_locking() {
    neighbours(Scheme::CallbackLocking, 2);
}

#[test]
fn four_hosts_on_the_same_blocks() {
    rivals(Scheme::TimestampOrdering, 4);
}

#[test]
fn two_hosts_on_the_same_blocks_with_device_locking() {
    rivals(Scheme::DeviceLocking, 2);
}

#[test]
fn two_hosts_on_the_same_blocks_with_callback_locking() {
    rivals(Scheme::CallbackLocking, 2);
}
