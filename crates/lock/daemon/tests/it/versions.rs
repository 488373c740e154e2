//! Daemons of two versions in one cluster, and clients and daemons of two versions.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::common::process::{Process, judge, members, nodes};
use crate::common::{Alone, PATIENCE, eventually};
use lockify_client::{Client, Error, Mode, NodeStatus};
use lockify_node::wire::{SPOKEN, Versions};
use lockify_session::codec;
use lockify_session::protocol::{Answer, Event, Greeting, OLDEST, Query, Request, VERSION};
use rustix::process::Signal;

/// Rounds of each node's client; each is several locks.
const ROUNDS: usize = 40;

struct Cluster {
    dir: tempfile::TempDir,
    list: String,
    daemons: Vec<Process>,
    histories: Vec<PathBuf>,
}

impl Cluster {
    /// Three nodes that speak up to these versions.
    fn start(newest: [u16; 3]) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let list = format!("lease = \"1s\"\n{}", nodes(3));
        let mut c = Cluster { dir, list, daemons: Vec::new(), histories: Vec::new() };
        for (i, newest) in newest.into_iter().enumerate() {
            let daemon = c.daemon(i as u32 + 1, newest);
            c.daemons.push(daemon);
        }
        c.whole();
        c
    }

    /// Each life has a history of its own.
    fn daemon(&mut self, node: u32, newest: u16) -> Process {
        let history = self.dir.path().join(format!("history{}.jsonl", self.histories.len()));
        let text = self.config(newest, &history);
        self.histories.push(history);
        Process::start(self.dir.path(), node, &text)
    }

    fn config(&self, newest: u16, history: &Path) -> String {
        format!("wire_version = {newest}\nhistory = {history:?}\n{}", self.list)
    }

    fn whole(&self) {
        eventually("three members", || self.daemons.iter().all(|d| members(d) == 3));
    }

    fn status(&self, i: usize) -> Vec<NodeStatus> {
        let client = Client::connect(&self.daemons[i].socket).unwrap();
        client.status().unwrap().nodes
    }

    /// The versions that a node speaks with the others, as it says itself.
    fn spoken(&self, i: usize) -> Vec<u16> {
        let own = self.status(i).into_iter().find(|n| n.node.0 as usize == i + 1);
        let software = own.and_then(|n| n.software).unwrap();
        software.spoken.into_iter().map(|(_, version)| version).collect()
    }

    /// Every node's client takes, converts and makes locks that the others want, too.
    fn work(&self, round: &str) {
        let work = |i: usize| {
            let space = Client::connect(&self.daemons[i].socket)?.lockspace("default")?;
            for n in 0..ROUNDS {
                let parent = space.request("parent", Mode::EX).timeout(PATIENCE).lock()?;
                let new = format!("{round} {i} {n}");
                let new = space.request(&new, Mode::EX).notify().lock()?;
                parent.unlock()?;
                let shared = format!("shared {}", n % 3);
                let shared = space.request(&shared, Mode::PR).timeout(PATIENCE).lock()?;
                let block = space.request("block", Mode::PW).timeout(PATIENCE).lock()?;
                block.unlock()?;
                shared.unlock()?;
                new.unlock()?;
            }
            Ok::<(), Error>(())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..3).map(|i| scope.spawn(move || work(i))).collect();
            all.into_iter().for_each(|w| w.join().unwrap().unwrap());
        });
    }

    /// Waits until all that a node has done is in its file: what dies with it has not been seen.
    fn recorded(&self, i: usize) {
        let space = Client::connect(&self.daemons[i].socket).unwrap().lockspace("default").unwrap();
        space.lock("lastone", Mode::PR).unwrap().unlock().unwrap();
        eventually("the history", || {
            std::fs::read_to_string(&self.histories[i]).unwrap().contains("lastone")
        });
    }

    /// Stops all, and judges their records; returns the number of grants.
    fn judge(mut self) -> usize {
        self.daemons.iter().for_each(|d| d.signal(Signal::TERM));
        self.daemons.iter_mut().for_each(|d| assert!(d.ended().success()));
        judge(self.dir.path(), &self.histories).counts.grants as usize
    }
}

/// An upgrade as docs/compatibility.md describes it: all held at the old version, then raised, one
/// after the other, at work, without a restart and without a lost lock.
#[test]
fn a_cluster_is_raised_node_by_node() {
    let Versions { oldest, newest } = SPOKEN;
    let c = Cluster::start([oldest; 3]);
    let held = Client::connect(&c.daemons[0].socket).unwrap().lockspace("default").unwrap();
    let held = held.lock("held all the time", Mode::EX).unwrap();
    assert_eq!(c.spoken(0), [oldest, oldest]);
    for node in 0..3 {
        let path = c.dir.path().join(format!("{}.toml", node + 1));
        let text = std::fs::read_to_string(&path).unwrap();
        let held_at = format!("wire_version = {oldest}\n");
        assert!(text.contains(&held_at));
        std::fs::write(&path, text.replace(&held_at, "")).unwrap();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| c.work(&format!("raising {node}")));
            let client = Client::connect(&c.daemons[node].socket).unwrap();
            assert_eq!(client.reload().unwrap(), "changed wire_version");
            work.join().unwrap();
        });
        // Those that are raised speak it among each other, and the old one with the others.
        let speak = |i: usize| {
            let others = (0..3).filter(|other| *other != i);
            let speak = |other: usize| if i.max(other) <= node { newest } else { oldest };
            others.map(speak).collect::<Vec<u16>>()
        };
        eventually("the versions", || (0..3).all(|i| c.spoken(i) == speak(i)));
    }
    held.check().unwrap();
    held.unlock().unwrap();
    assert!(c.judge() > 3 * 3 * ROUNDS * 3);
}

/// A node that speaks the old version with the asker does not report its release. One that speaks the
/// new version does.
#[test]
fn nodes_of_two_versions_lock_together() {
    let Versions { oldest, newest } = SPOKEN;
    let c = Cluster::start([oldest, newest, newest]);
    assert_eq!((c.spoken(0), c.spoken(1)), (vec![oldest, oldest], vec![oldest, newest]));
    let told: Vec<bool> = c.status(1).iter().map(|n| n.software.is_some()).collect();
    assert_eq!(told, [false, true, true]);
    c.work("mixed");
    assert!(c.judge() > 3 * ROUNDS * 3);
}

/// A node is replaced by one of the newer version, one dies without a word.
#[test]
fn a_mixed_cluster_recovers() {
    let Versions { oldest, newest } = SPOKEN;
    let mut c = Cluster::start([oldest, newest, oldest]);
    c.work("before");
    c.daemons[2].signal(Signal::TERM);
    c.daemons[2].ended();
    c.daemons[2] = c.daemon(3, newest);
    c.whole();
    assert_eq!(c.spoken(2), [oldest, newest]);
    c.work("upgraded");
    c.recorded(1);
    c.daemons[1].signal(Signal::KILL);
    c.daemons[1].ended();
    c.daemons[1] = c.daemon(2, newest);
    c.whole();
    c.work("after");
    assert!(c.judge() > 3 * 3 * ROUNDS * 3);
}

fn send(stream: &mut UnixStream, request: &Request) {
    let mut bytes = Vec::new();
    codec::encode(request, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
}

/// A client of the former version, by hand: the daemon answers in its version, and sends nothing that
/// this version lacks.
#[test]
fn an_older_client_is_served_in_its_version() {
    let alone = Alone::start("");
    let mut stream = UnixStream::connect(&alone.socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&Greeting { version: OLDEST, shard: 0, pid: 7 }.encode()).unwrap();
    let mut greeting = [0; Greeting::LEN];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(Greeting::decode(&greeting).unwrap().version, OLDEST);
    send(&mut stream, &Request::Query { id: 5, query: Query::Status });
    let (mut inbox, mut answers) = (codec::Inbox::default(), Vec::new());
    loop {
        match inbox.next_frame::<Event>().unwrap() {
            Some(Event::Answer { answer, more, .. }) => {
                answers.push(answer);
                if !more {
                    break;
                }
            }
            Some(_) => {}
            None => assert!(inbox.fill(&mut stream).unwrap() > 0),
        }
    }
    assert!(matches!(&answers[..], [Answer::Status(_), Answer::Done]), "{answers:?}");
    // This program's own client is told more.
    assert!(alone.client().status().unwrap().nodes[0].software.is_some());
}

/// A daemon of the version before, which only names its version and closes.
#[test]
fn a_newer_client_comes_back_with_the_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("older.sock");
    let older = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let offers = [VERSION, OLDEST].map(|expected| {
            let (mut stream, _) = older.accept().unwrap();
            let mut greeting = [0; Greeting::LEN];
            stream.read_exact(&mut greeting).unwrap();
            assert_eq!(Greeting::decode(&greeting).unwrap().version, expected);
            let ours = Greeting { version: OLDEST, shard: 1, pid: 7 };
            stream.write_all(&ours.encode()).unwrap();
            (expected == OLDEST).then_some(stream)
        });
        // The second one stays until the client goes.
        let [_, Some(mut stream)] = offers else { unreachable!() };
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    });
    let client = Client::connect(&path).unwrap();
    let e = client.reload().unwrap_err();
    assert!(
        matches!(e, Error::TooOld { .. }) && e.to_string().contains("upgrade the daemon"),
        "{e}"
    );
    drop(client);
    assert!(thread.join().unwrap().is_empty(), "nothing that it does not know was sent");
}
