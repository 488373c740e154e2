//! The fabric of shared memory between real processes: their sums, messages and views, and the rest after they are
//! killed.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lockify_fabric::shm::{Owner, Segment, Shape, Shm};
use lockify_onesided::{Address, Fabric, Key, Peer, Region, Verb, VerbError};

const ROLE: &str = "LOCKIFY_TEST_ROLE";
const NOBODY: &str = "a role was started without its parent";

/// Much longer than anything takes; a process that is waited for as long has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// Another process, that runs a role of this file; killed when dropped.
struct Other {
    child: Child,
    /// Its lines. Another thread reads them, because a pipe has no time limit.
    says: Receiver<String>,
}

impl Other {
    fn start(role: &str, path: &Path, region: Region, home: Peer) -> Other {
        let words = [region.home.0.into(), region.key.0, region.len as u32, home.0.into()];
        let words = words.map(|n: u32| n.to_string()).join(" ");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::a_role", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, format!("{role} {} {words}", path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, says) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|l| tell.send(l)));
        Other { child, says }
    }

    /// Waits until it has said this.
    fn says(&mut self, wanted: &str) -> String {
        loop {
            let line = self.says.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|e| panic!("it does not say {wanted}: {e}"));
            // The test harness puts its own words before the first line.
            if let Some(at) = line.find(wanted) {
                return line[at + wanted.len()..].trim().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn ends_well(mut self) {
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "a process does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a process that the other tests start"]
fn a_role() {
    let words = std::env::var(ROLE).expect(NOBODY);
    let words: Vec<&str> = words.split(' ').collect();
    let [role, path, numbers @ ..] = &words[..] else { panic!("{NOBODY}") };
    let numbers: Vec<u64> = numbers.iter().map(|n| n.parse().unwrap()).collect();
    let me = Shm::join(Segment::open(Path::new(path), Owner::Me).unwrap()).unwrap();
    let region =
        Region { home: Peer(numbers[0] as u16), key: Key(numbers[1] as u32), len: numbers[2] };
    let home = Peer(numbers[3] as u16);
    match *role {
        "add" => add(&me, region),
        "order" => order(&me, region),
        "send" => send(&me, home, 5000),
        "send-for-ever" => send(&me, home, u64::MAX),
        "verbs-for-ever" => verbs_for_ever(&me, region),
        "listen" => listen(&me),
        "sleep" => sleep(&me),
        "until-revoked" => until_revoked(&me, region),
        role => panic!("no role {role}"),
    }
}

struct Home {
    _dir: tempfile::TempDir,
    path: PathBuf,
    me: Shm,
    region: Region,
}

fn home(peers: u64) -> Home {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("segment");
    let me =
        Shm::join(Segment::create(&path, Shape { peers, memory: 4096 }, 0o600).unwrap()).unwrap();
    let region = me.register(128).unwrap();
    Home { _dir: dir, path, me, region }
}

impl Home {
    fn other(&self, role: &str) -> Other {
        Other::start(role, &self.path, self.region, self.me.me())
    }

    fn read(&self, offset: u64) -> u64 {
        self.me.block_on(self.me.read(self.region.word(offset))).unwrap()
    }
}

const ADDS: u64 = 200_000;

fn add(me: &Shm, region: Region) {
    for _ in 0..ADDS {
        me.block_on(me.fetch_and_add(region.word(0), 1)).unwrap();
        // The same by compare-and-swap, masked and not: they are atomic among each other.
        let mut expected = me.block_on(me.read(region.word(8))).unwrap();
        loop {
            let found =
                me.block_on(me.compare_and_swap(region.word(8), expected, expected + 1)).unwrap();
            if found == expected {
                break;
            }
            expected = found;
        }
    }
    let all = Verb::MaskedCompareAndSwap {
        expected: 0,
        compare_mask: 0,
        new: 7 << 32,
        swap_mask: 0xff << 32,
    };
    me.block_on(me.post(region.word(16), all)).unwrap();
    me.block_on(me.fetch_and_add(region.word(16), 1)).unwrap();
}

#[test]
fn what_processes_add_adds_up() {
    let home = home(8);
    let others: Vec<Other> = (0..5).map(|_| home.other("add")).collect();
    others.into_iter().for_each(Other::ends_well);
    assert_eq!((home.read(0), home.read(8)), (5 * ADDS, 5 * ADDS));
    assert_eq!(home.read(16), 7 << 32 | 5);
}

fn order(me: &Shm, region: Region) {
    for n in 1..300_000 {
        let first = me.write(region.word(0), n);
        let second = me.write(region.word(64), n);
        me.block_on(async { (first.await.unwrap(), second.await.unwrap()) });
    }
}

/// Verbs of one peer are seen in the order of their posting.
#[test]
fn verbs_of_one_peer_keep_their_order() {
    let home = home(2);
    let mut other = home.other("order");
    let (mut seen, end) = (0, Instant::now() + PATIENCE);
    while other.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the other process does not end: {seen} was seen");
        let (second, first) = (home.read(64), home.read(0));
        assert!(first >= second, "{first} was written before {second}");
        seen = seen.max(second);
    }
    assert_eq!(home.read(64), 299_999, "{seen} was seen");
    other.ends_well();
}

/// A message that tells whether it is whole.
fn message(number: u64) -> [u64; 4] {
    [number, !number, number.rotate_left(32), number.wrapping_mul(0x9e37_79b9_7f4a_7c15)]
}

fn send(me: &Shm, home: Peer, count: u64) {
    for number in 0..count {
        me.block_on(me.send(home, message(number))).unwrap();
        if number == 0 {
            println!("sends");
        }
    }
}

/// Checks that a sender's messages are whole and in order.
#[derive(Default)]
struct Senders(std::collections::HashMap<Peer, u64>);

impl Senders {
    fn take(&mut self, me: &Shm, wait: Duration) -> bool {
        let until = me.now() + wait.as_nanos() as u64;
        let Some(received) = me.block_on(me.receive(until)) else { return false };
        let next = self.0.entry(received.from).or_default();
        assert_eq!(received.message, message(*next), "from {:?}", received.from);
        *next += 1;
        true
    }
}

#[test]
fn messages_come_whole_and_in_order_and_wait_for_room() {
    let home = home(8);
    let others: Vec<Other> = (0..4).map(|_| home.other("send")).collect();
    let mut senders = Senders::default();
    for _ in 0..4 * 5000 {
        assert!(senders.take(&home.me, Duration::from_secs(20)));
    }
    assert!(!senders.take(&home.me, Duration::from_millis(20)));
    others.into_iter().for_each(Other::ends_well);
    assert_eq!(senders.0.len(), 4);
}

/// Two that fill each other's rings before either listens: both go on.
#[test]
fn full_rings_in_both_directions_are_no_deadlock() {
    let home = home(4);
    let a = &home.me;
    let b = Shm::join(Segment::open(&home.path, Owner::Me).unwrap()).unwrap();
    let pending: Vec<_> =
        (0..100).map(|n| (a.send(b.me(), message(n)), b.send(a.me(), message(n)))).collect();
    let (mut at_a, mut at_b) = (Senders::default(), Senders::default());
    for _ in 0..100 {
        assert!(at_a.take(a, Duration::from_secs(5)));
        assert!(at_b.take(&b, Duration::from_secs(5)));
    }
    for (to_b, to_a) in pending {
        assert_eq!((a.block_on(to_b), b.block_on(to_a)), (Ok(()), Ok(())));
    }
}

fn verbs_for_ever(me: &Shm, region: Region) {
    println!("sends");
    loop {
        me.block_on(me.fetch_and_add(region.word(0), 1)).unwrap();
    }
}

/// Pseudo-random, the same in every run.
struct Times(u64);

impl Times {
    fn next(&mut self) -> Duration {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros(self.0 >> 33 & 0x7ff)
    }
}

/// Senders are killed at any instant of a send, hundreds of times: from each arrives a prefix of whole messages, other
/// senders are not disturbed, and their places are used again.
#[test]
fn killed_senders_leave_nothing_half_sent() {
    let home = home(4);
    let mut times = Times(1);
    let mut senders = Senders::default();
    let mut steady = home.other("send");
    steady.says("sends");
    for _ in 0..300 {
        let mut victim = home.other("send-for-ever");
        victim.says("sends");
        let end = Instant::now() + times.next();
        while Instant::now() < end {
            senders.take(&home.me, Duration::ZERO);
        }
        victim.kill();
        // Room for the next one in its place, which is not heard while it is waited for.
        while senders.take(&home.me, Duration::ZERO) {}
    }
    while senders.take(&home.me, Duration::from_millis(100)) {}
    steady.ends_well();
    let complete = senders.0.values().filter(|count| **count == 5000).count();
    assert_eq!(complete, 1, "the steady one");
    assert_eq!(senders.0.len(), 301, "all said that they had sent");
}

fn listen(me: &Shm) {
    println!("peer {}", me.me().0);
    let mut senders = Senders::default();
    while senders.take(me, Duration::from_secs(20)) {}
}

/// Receivers are killed at any instant: sends to them fail, soon, and only these; and the next peer in their place gets
/// none of their messages.
#[test]
fn messages_to_the_killed_are_not_taken() {
    let home = home(4);
    let mut times = Times(2);
    let steady = Shm::join(Segment::open(&home.path, Owner::Me).unwrap()).unwrap();
    let mut at_steady = Senders::default();
    for to_steady in 0..200 {
        let mut victim = home.other("listen");
        let peer = Peer(victim.says("peer ").parse().unwrap());
        let mut number = 0;
        let end = Instant::now() + times.next();
        while Instant::now() < end {
            assert_eq!(home.me.block_on(home.me.send(peer, message(number))), Ok(()));
            number += 1;
        }
        victim.kill();
        let killed = Instant::now();
        while home.me.block_on(home.me.send(peer, message(number)))
            != Err(VerbError::NotTaken(peer))
        {
            number += 1;
            assert!(killed.elapsed() < Duration::from_secs(5), "it is dead for long");
        }
        assert!(!home.me.lives(peer));
        assert_eq!(home.me.block_on(home.me.send(steady.me(), message(to_steady))), Ok(()));
        assert!(at_steady.take(&steady, Duration::from_secs(5)));
    }
    assert_eq!(home.me.peers().len(), 2);
}

/// Processes are killed amid verbs: those of others go on, and every one that was executed counts.
#[test]
fn verbs_go_on_when_others_are_killed() {
    let home = home(4);
    let mut times = Times(3);
    let mut mine = 0;
    for _ in 0..100 {
        let mut victim = home.other("verbs-for-ever");
        victim.says("sends");
        let end = Instant::now() + times.next();
        while Instant::now() < end {
            home.me.block_on(home.me.fetch_and_add(home.region.word(8), 1)).unwrap();
            mine += 1;
        }
        victim.kill();
        let before = home.read(0);
        assert_eq!(home.read(0), before, "the dead post nothing");
    }
    assert_eq!(home.read(8), mine);
}

fn sleep(me: &Shm) {
    println!("peer {}", me.me().0);
    let until = me.now() + 30_000_000_000;
    let received = me.block_on(me.receive(until)).expect("a message, long before");
    assert!(me.now() < until);
    me.block_on(me.send(received.from, message(0))).unwrap();
}

/// A long wait sleeps. A message wakes it, not time.
#[test]
fn a_message_wakes_a_sleeper() {
    let home = home(4);
    let mut other = home.other("sleep");
    let peer = Peer(other.says("peer ").parse().unwrap());
    // It has nothing to do but to fall asleep.
    std::thread::sleep(Duration::from_millis(200));
    home.me.block_on(home.me.send(peer, message(0))).unwrap();
    assert!(Senders::default().take(&home.me, Duration::from_secs(20)));
    other.ends_well();
}

fn until_revoked(me: &Shm, region: Region) {
    println!("sends");
    let own = |offset| Address { key: Key(region.len as u32), ..region.word(offset) };
    loop {
        let revoked = me.block_on(me.read(own(0))).unwrap() == 1;
        match me.block_on(me.fetch_and_add(region.word(0), 1)) {
            Ok(_) => assert!(!revoked, "a verb was executed after its key was revoked"),
            Err(VerbError::WrongKey(_)) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

/// From the return of `revoke` on, no verb with that key ends well.
#[test]
fn revoked_keys_stop_verbs_of_other_processes() {
    for _ in 0..50 {
        let home = home(4);
        // The second region's key takes the place of the first one's length.
        let flag = home.me.register(8).unwrap();
        let region = Region { len: flag.key.0.into(), ..home.region };
        let mut others =
            [(); 2].map(|()| Other::start("until-revoked", &home.path, region, home.me.me()));
        others.iter_mut().for_each(|other| drop(other.says("sends")));
        home.me.revoke(home.region.key);
        home.me.block_on(home.me.write(flag.word(0), 1)).unwrap();
        others.into_iter().for_each(Other::ends_well);
        let late = home.me.block_on(home.me.read(home.region.word(0)));
        assert_eq!(late, Err(VerbError::WrongKey(home.region.word(0))));
    }
}
