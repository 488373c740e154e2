//! The behaviour of the fabric over libibverbs on a real device, or on Soft-RoCE: results, order, messages, and every
//! way in which a connection can end. All ends are threads of this process. `labs/kernels/tests/rdma` runs it on a node; by
//! hand:
//!
//! ```text
//! rdma link add rxe0 type rxe netdev eth0
//! cargo run -p lockify-fabric --example verbs [DEVICE [CASE]]
//! ```

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::scope;
use std::time::{Duration, Instant};

use lockify_fabric::verbs::{Exchange, Heard, RECEIVES, Settings, Verbs, VerbsError};
use lockify_onesided::{Address, Fabric, Key, Peer, Region, RegionError, Verb, VerbError};

/// An exchange between threads.
#[derive(Clone, Default)]
struct Hub(Arc<Mutex<Vec<Mailbox>>>);

struct Mailbox {
    owner: Peer,
    heard: VecDeque<Heard>,
    ring: PipeWriter,
}

struct Member {
    hub: Hub,
    me: Peer,
    bell: PipeReader,
}

impl Hub {
    fn join(&self, me: Peer) -> Box<dyn Exchange> {
        let (bell, ring) = std::io::pipe().unwrap();
        self.mailboxes(|all| {
            all.retain(|mailbox| mailbox.owner != me);
            all.push(Mailbox { owner: me, heard: VecDeque::new(), ring });
        });
        Box::new(Member { hub: self.clone(), me, bell })
    }

    fn mailboxes<T>(&self, what: impl FnOnce(&mut Vec<Mailbox>) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says something to one, or to all.
    fn say(&self, to: Option<Peer>, heard: &Heard) {
        self.mailboxes(|all| {
            for mailbox in all.iter_mut().filter(|m| to.is_none_or(|to| m.owner == to)) {
                mailbox.heard.push_back(heard.clone());
                // A vanished peer reads no more.
                let _ = mailbox.ring.write_all(&[1]);
            }
        });
    }
}

impl Exchange for Member {
    fn send(&mut self, to: Peer, bytes: &[u8]) -> std::io::Result<()> {
        assert!(bytes.len() <= lockify_fabric::verbs::MOST_TOLD);
        self.hub.say(Some(to), &Heard::Told { from: self.me, bytes: bytes.to_vec() });
        Ok(())
    }

    fn next(&mut self) -> Option<Heard> {
        let found = self.hub.mailboxes(|all| {
            all.iter_mut().find(|mailbox| mailbox.owner == self.me)?.heard.pop_front()
        });
        found.inspect(|_| self.bell.read_exact(&mut [0]).unwrap())
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

const HOME: Peer = Peer(1);

fn settings() -> Settings {
    Settings { device: std::env::args().nth(1), ..Settings::default() }
}

fn open(hub: &Hub, me: u16) -> Verbs {
    let settings = Settings { peers: 16, ..settings() };
    let end = Verbs::open(&settings, Peer(me)).unwrap();
    end.meet(hub.join(Peer(me)));
    end
}

/// A home with 64 words for as long as `clients` takes, which also gets what makes the home do something.
fn with_home(clients: impl FnOnce(&Hub, Region, &mpsc::Sender<Order>)) {
    let hub = Hub::default();
    let (orders, taken) = mpsc::channel();
    let (told, region) = mpsc::channel();
    let its_hub = hub.clone();
    let home = std::thread::spawn(move || {
        let home = open(&its_hub, HOME.0);
        told.send(home.register(512).unwrap()).unwrap();
        loop {
            home.block_on(home.sleep_until(home.now() + 1_000_000));
            match taken.try_recv() {
                Ok(Order::Revoke(key)) => home.revoke(key),
                Ok(Order::Sleep(time)) => std::thread::sleep(time),
                Ok(Order::Vanish) => return,
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
    });
    clients(&hub, region.recv().unwrap(), &orders);
    drop(orders);
    home.join().unwrap();
}

enum Order {
    Revoke(Key),
    Sleep(Duration),
    Vanish,
}

fn post(end: &Verbs, at: Address, verb: Verb) -> Result<u64, VerbError> {
    end.block_on(end.post(at, verb))
}

fn verbs_do_what_they_say() {
    with_home(|hub, region, _| {
        let end = open(hub, 2);
        let (a, last) = (region.word(0), region.word(504));
        assert_eq!(post(&end, a, Verb::Read), Ok(0), "registered memory is zero");
        assert_eq!(post(&end, a, Verb::Write(u64::MAX - 1)), Ok(0));
        assert_eq!(post(&end, a, Verb::FetchAndAdd(3)), Ok(u64::MAX - 1));
        assert_eq!(post(&end, a, Verb::CompareAndSwap { expected: 2, new: 9 }), Ok(1));
        assert_eq!(post(&end, a, Verb::CompareAndSwap { expected: 1, new: 1 << 40 }), Ok(1));
        assert_eq!(post(&end, a, Verb::Read), Ok(1 << 40));
        assert_eq!(post(&end, last, Verb::FetchAndAdd(7)), Ok(0));
        let masked =
            Verb::MaskedCompareAndSwap { expected: 0, compare_mask: 0, new: 1, swap_mask: 1 };
        assert_eq!(post(&end, a, masked), Err(VerbError::Unsupported("masked compare-and-swap")));
        // Many under way, in the order of posting, more than the device takes at a time; some futures are dropped.
        let all: Vec<_> = (0..200_u64)
            .filter_map(|n| {
                let posted = end.post(last, Verb::FetchAndAdd(1));
                (n % 3 == 0).then_some((n, posted))
            })
            .collect();
        for (n, posted) in all {
            assert_eq!(end.block_on(posted), Ok(7 + n));
        }
        assert_eq!(post(&end, last, Verb::Read), Ok(207));
        for value in 0..50 {
            let written = end.write(a, value);
            assert_eq!(end.block_on(end.read(a)), Ok(value));
            end.block_on(written).unwrap();
        }
        // Concurrent verbs execute in the order of posting, for any kind of verb.
        for value in 0..50 {
            let before = end.read(a);
            let added = end.fetch_and_add(a, 1000);
            let written = end.write(a, value);
            let after = end.fetch_and_add(a, 1);
            let before = end.block_on(before).unwrap();
            assert_eq!(end.block_on(added), Ok(before));
            assert_eq!((end.block_on(written), end.block_on(after)), (Ok(0), Ok(value)));
        }
    });
}

/// Atomics of the home itself and of others exclude each other.
fn atomics_add_up() {
    const EACH: u64 = 300;
    let hub = Hub::default();
    let (told, region) = mpsc::channel();
    let (done, ended) = mpsc::channel();
    scope(|scope| {
        let its_hub = hub.clone();
        scope.spawn(move || {
            let home = open(&its_hub, HOME.0);
            let region = home.register(16).unwrap();
            told.send(region).unwrap();
            add(&home, region, EACH);
            while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                home.block_on(home.sleep_until(home.now() + 1_000_000));
            }
            assert_eq!(post(&home, region.word(0), Verb::Read), Ok(4 * EACH));
            assert_eq!(post(&home, region.word(8), Verb::Read), Ok(4 * EACH));
        });
        let region = region.recv().unwrap();
        for me in 2..5 {
            let (hub, done) = (hub.clone(), done.clone());
            scope.spawn(move || {
                add(&open(&hub, me), region, EACH);
                done.send(()).unwrap();
            });
        }
        drop(done);
    });
}

fn add(end: &Verbs, region: Region, times: u64) {
    for _ in 0..times {
        post(end, region.word(0), Verb::FetchAndAdd(1)).unwrap();
        let mut expected = post(end, region.word(8), Verb::Read).unwrap();
        loop {
            let verb = Verb::CompareAndSwap { expected, new: expected + 1 };
            let found = post(end, region.word(8), verb).unwrap();
            if found == expected {
                break;
            }
            expected = found;
        }
    }
}

/// All tell all, and each end makes a missing connection first, often both at once.
fn messages_arrive_in_order() {
    const EACH: u64 = 100;
    const ENDS: u16 = 4;
    let hub = Hub::default();
    let ready = std::sync::Barrier::new(ENDS.into());
    scope(|scope| {
        for me in 1..=ENDS {
            let (hub, ready) = (&hub, &ready);
            scope.spawn(move || {
                let end = open(hub, me);
                ready.wait();
                let others: Vec<Peer> = (1..=ENDS).filter(|n| *n != me).map(Peer).collect();
                let mut seen = vec![0; usize::from(ENDS) + 1];
                let mut sent = Vec::new();
                for n in 0..EACH {
                    others.iter().for_each(|to| sent.push(end.send(*to, [n, me.into(), !0, 1])));
                }
                for _ in 0..EACH * others.len() as u64 {
                    let got = end.block_on(end.receive(end.now() + 20_000_000_000)).unwrap();
                    let from = usize::from(got.from.0);
                    assert_eq!(got.message, [seen[from], got.from.0.into(), !0, 1]);
                    seen[from] += 1;
                }
                for sent in sent {
                    assert_eq!(end.block_on(sent), Ok(()));
                }
                ready.wait();
                // Nobody leaves while another still wants an acknowledgement.
            });
        }
    });
}

fn wrong_keys_and_places_cost_one_connection_that_comes_back() {
    with_home(|hub, region, _| {
        let (end, other) = (open(hub, 2), open(hub, 3));
        let good = region.word(0);
        assert_eq!(post(&other, good, Verb::FetchAndAdd(1)), Ok(0));
        let wrong = Address { key: Key(region.key.0 ^ 0x5500), ..good };
        let outside = region.word(512);
        for at in [wrong, outside, region.word(1 << 40)] {
            for verb in [Verb::Read, Verb::Write(1), Verb::FetchAndAdd(1)] {
                let behind = end.post(wrong, verb);
                assert!(post(&end, at, verb).is_err());
                assert!(end.block_on(behind).is_err());
                assert_eq!(post(&end, at, verb), Err(VerbError::WrongKey(at)), "{at:?} {verb:?}");
            }
        }
        let misaligned = region.word(4);
        assert_eq!(post(&end, misaligned, Verb::Read), Err(VerbError::OutOfBounds(misaligned)));
        assert_eq!(post(&end, good, Verb::FetchAndAdd(1)), Ok(1), "connected again");
        assert_eq!(post(&other, good, Verb::FetchAndAdd(1)), Ok(2), "never disturbed");
        // At home, without a connection to lose.
        let mine = other.register(8).unwrap();
        assert_eq!(
            post(&other, mine.word(8), Verb::Read),
            Err(VerbError::OutOfBounds(mine.word(8)))
        );
        let foreign = Address { key: region.key, ..mine.word(0) };
        let refused = post(&other, foreign, Verb::Read);
        assert!(refused == Err(VerbError::WrongKey(foreign)) || region.key == mine.key);
        assert_eq!(other.register(0), Err(RegionError::Length(0)));
        assert_eq!(other.register(12), Err(RegionError::Length(12)));
        assert!(matches!(other.register(1 << 60), Err(RegionError::Refused { .. })));
    });
}

fn revoked_keys_stop_verbs() {
    with_home(|hub, region, home| {
        let end = open(hub, 2);
        let word = region.word(0);
        let mut next = 0;
        let refused = loop {
            match post(&end, word, Verb::FetchAndAdd(1)) {
                Ok(before) => assert_eq!(before, next),
                Err(error) => break error,
            }
            next += 1;
            if next == 100 {
                home.send(Order::Revoke(region.key)).unwrap();
            }
            assert!(next < 1_000_000, "it is never revoked");
        };
        assert!(next >= 100);
        assert_eq!(refused, VerbError::WrongKey(word));
        assert_eq!(post(&end, word, Verb::Write(1)), Err(VerbError::WrongKey(word)));
    });
}

/// A home that vanishes without a word while a verb is under way; another stays.
fn a_peer_that_vanishes_is_noticed() {
    with_home(|hub, region, home| {
        let end = open(hub, 2);
        assert_eq!(post(&end, region.word(0), Verb::FetchAndAdd(1)), Ok(0));
        home.send(Order::Vanish).unwrap();
        let begin = Instant::now();
        let lost = loop {
            if let Err(error) = post(&end, region.word(0), Verb::FetchAndAdd(1)) {
                break error;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "it is not noticed");
        };
        assert_eq!(lost, VerbError::Unknown(HOME));
        // The exchange finds out, and then nobody waits.
        hub.say(None, &Heard::Gone(HOME));
        let begin = Instant::now();
        assert_eq!(end.block_on(end.send(HOME, [1; 4])), Err(VerbError::NotTaken(HOME)));
        assert_eq!(post(&end, region.word(0), Verb::Read), Err(VerbError::Unknown(HOME)));
        assert!(begin.elapsed() < Duration::from_secs(2));
    });
}

/// A receiver that does not read its messages loses its connection when all places are taken. Others are not delayed.
fn a_deaf_receiver_costs_its_sender_one_connection() {
    with_home(|hub, region, home| {
        let (end, other) = (open(hub, 2), open(hub, 3));
        assert_eq!(end.block_on(end.send(HOME, [0; 4])), Ok(()));
        assert_eq!(post(&other, region.word(0), Verb::Read), Ok(0));
        home.send(Order::Sleep(Duration::from_secs(4))).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let sent: Vec<_> = (0..RECEIVES + 5).map(|_| end.send(HOME, [0; 4])).collect();
        assert_eq!(post(&other, region.word(0), Verb::FetchAndAdd(1)), Ok(0));
        let sent: Vec<_> = sent.into_iter().map(|sent| end.block_on(sent)).collect();
        let taken = sent.iter().filter(|sent| sent.is_ok()).count();
        assert!(taken >= RECEIVES as usize - 1 && taken < sent.len(), "{taken} of {}", sent.len());
        assert!(sent.contains(&Err(VerbError::NotTaken(HOME))), "{sent:?}");
        assert_eq!(post(&other, region.word(0), Verb::FetchAndAdd(1)), Ok(1));
    });
}

/// An end that has no exchange any more keeps its connections, and makes no new ones.
fn an_exchange_that_ends_leaves_connections_alone() {
    with_home(|hub, region, _| {
        let (end, other) = (open(hub, 2), open(hub, 3));
        assert_eq!(post(&end, region.word(0), Verb::FetchAndAdd(1)), Ok(0));
        hub.say(Some(end.me()), &Heard::Ended);
        assert_eq!(post(&end, region.word(0), Verb::FetchAndAdd(1)), Ok(1));
        let refused = end.block_on(end.send(other.me(), [0; 4]));
        assert_eq!(refused, Err(VerbError::NotTaken(other.me())));
        // Rubbish on the exchange is nobody's end.
        for bytes in [vec![], vec![0; 3], vec![1; 128], vec![1, 2, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            hub.say(None, &Heard::Told { from: Peer(9), bytes });
        }
        assert_eq!(post(&other, region.word(0), Verb::FetchAndAdd(1)), Ok(2));
    });
}

fn settings_that_do_not_fit_are_refused() {
    let open = |settings: &Settings| Verbs::open(settings, HOME).err().unwrap();
    let refused = open(&Settings { device: Some("none0".into()), ..settings() });
    assert!(matches!(refused, VerbsError::NoSuchDevice { .. }), "{refused}");
    for settings in [
        Settings { port: 77, ..settings() },
        Settings { gid_index: Some(200), ..settings() },
        Settings { peers: u16::MAX, ..settings() },
    ] {
        let refused = open(&settings);
        let plain = matches!(refused, VerbsError::Unfit { .. } | VerbsError::System { .. });
        assert!(plain, "{settings:?}: {refused}");
        println!("  {refused}");
    }
}

/// The number of connections is limited by the end's configuration.
fn more_peers_than_asked_for_are_refused() {
    with_home(|hub, region, _| {
        let one = Settings { peers: 1, ..settings() };
        let end = Verbs::open(&one, Peer(2)).unwrap();
        end.meet(hub.join(Peer(2)));
        let _third = open(hub, 3);
        assert_eq!(post(&end, region.word(0), Verb::Read), Ok(0));
        assert_eq!(end.block_on(end.send(Peer(3), [0; 4])), Err(VerbError::NotTaken(Peer(3))));
        assert_eq!(post(&end, region.word(0), Verb::Read), Ok(0));
    });
}

fn main() -> ExitCode {
    match Verbs::open(&settings(), HOME) {
        Ok(end) => println!("device {}", end.device()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    let only = std::env::args().nth(2);
    macro_rules! run {
        ($($case:ident)*) => {
            $(
                if only.as_ref().is_none_or(|only| stringify!($case).contains(only)) {
                    let begin = Instant::now();
                    $case();
                    println!("{} ({:.2} s)", stringify!($case), begin.elapsed().as_secs_f64());
                }
            )*
        };
    }
    run! {
        settings_that_do_not_fit_are_refused
        verbs_do_what_they_say
        atomics_add_up
        messages_arrive_in_order
        wrong_keys_and_places_cost_one_connection_that_comes_back
        revoked_keys_stop_verbs
        a_peer_that_vanishes_is_noticed
        a_deaf_receiver_costs_its_sender_one_connection
        an_exchange_that_ends_leaves_connections_alone
        more_peers_than_asked_for_are_refused
    }
    println!("all is well");
    ExitCode::SUCCESS
}
