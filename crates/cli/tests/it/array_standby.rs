//! Arrays with two lock servers, as real processes. The one that serves is killed, stopped or cut off, and the other one goes on
//! with every lock. The processes' histories are the evidence.

use std::time::Duration;

use rustix::process::Signal;

use crate::common::array::{Array, BLOCK, Export};
use crate::common::relay::{Link, Network, Place};
use crate::common::traffic::{SHARED, content, judge, pile, work};
use crate::common::{Process, code, stderr, stdout, wait_for};

/// Longer than a lease and whatever follows from its end.
const OUTAGE: Duration = Duration::from_secs(3);

fn array(scheme: &str) -> Array {
    let mut array = Array::with_standby(scheme, "1s");
    array.recorded = true;
    array.start_all();
    array
}

fn status(array: &Array) -> serde_json::Value {
    serde_json::from_str(&stdout(&array.lockify("status", &["--json"]))).unwrap()
}

/// Until this one serves and, if it is there, the other one may.
fn wait_until_it_serves(array: &Array, id: usize, both: bool) {
    wait_for(|| {
        let status = status(array);
        let serves = status["lock_server"]["id"] == id && status["lock_server"]["serving"] == true;
        let complete = |id: usize| status["lock_servers"][id]["complete"] == true;
        serves && (!both || complete(0) && complete(1))
    });
}

/// Two hosts work on the same stripes while something happens.
fn while_hosts_work(array: &mut Array, happens: impl FnOnce(&mut Array)) -> Vec<Export> {
    let hosts: Vec<Export> = (1..=2).map(|number| array.export(number)).collect();
    hosts[0].connect().write(0, &content(SHARED));
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 60));
        }
        happens(array);
    });
    hosts
}

fn a_killed_one(scheme: &str) {
    let mut array = array(scheme);
    let hosts = while_hosts_work(&mut array, |array| {
        array.lock_server.take().unwrap().kill();
        wait_until_it_serves(array, 1, false);
        assert_eq!(code(&array.lockify("status", &[])), 1, "one is missing");
        array.start_lock_server(&[]);
        wait_until_it_serves(array, 1, true);
        array.standby.take().unwrap().kill();
        wait_until_it_serves(array, 0, false);
        array.start_standby(&[]);
        wait_until_it_serves(array, 0, true);
    });
    assert_eq!(status(&array)["lock_term"], 3);
    judge(array, hosts);
}

#[test]
fn a_killed_lock_server_is_replaced_under_server_locking() {
    a_killed_one("server-locking");
}

#[test]
fn a_killed_lock_server_is_replaced_under_callback_locking() {
    a_killed_one("callback-locking");
}

/// The one that stood still grants nothing when it goes on, and stands by.
#[test]
fn a_stopped_lock_server_serves_no_longer() {
    let mut array = array("server-locking");
    let hosts = while_hosts_work(&mut array, |array| {
        let stopped = array.lock_server.as_ref().unwrap();
        stopped.signal(Signal::STOP);
        wait_until_it_serves(array, 1, false);
        stopped.signal(Signal::CONT);
        wait_until_it_serves(array, 1, true);
    });
    assert_eq!(status(&array)["lock_term"], 2);
    let log = array.log(Place::Server);
    assert!(log.contains("lock server 0 serves now, in term 1"), "{log}");
    assert!(log.contains("lock server 0 stands by now"), "{log}");
    let log = array.log(Place::Standby);
    assert!(log.contains("lock server 1 serves now, in term 2"), "{log}");
    let text = stdout(&array.lockify("status", &[]));
    assert!(text.contains("it stands by: lock server 1 serves"), "{text}");
    let metrics = stdout(&array.lockify("status", &["--metrics"]));
    for (name, value) in [("lock_server=\"0\"", "0"), ("lock_server=\"1\"", "1")] {
        let mut lines = metrics.lines().filter(|line| {
            line.starts_with("lockify_array_lock_server_serves{") && line.contains(name)
        });
        assert!(lines.next().unwrap().ends_with(&format!(" {value}")), "{metrics}");
    }
    judge(array, hosts);
}

fn both(array: &Array, signal: Signal) {
    let both: [&Option<Process>; 2] = [&array.lock_server, &array.standby];
    both.into_iter().flatten().for_each(|process| process.signal(signal));
}

#[test]
fn both_lock_servers_are_stopped_or_killed_at_once() {
    let mut array = array("server-locking");
    let hosts = while_hosts_work(&mut array, |array| {
        both(array, Signal::STOP);
        std::thread::sleep(OUTAGE);
        both(array, Signal::CONT);
        wait_for(|| array.is_healthy());
        array.lock_server.take().unwrap().kill();
        array.standby.take().unwrap().kill();
        // The last to serve need not be the first to come back.
        array.start_standby(&[]);
        std::thread::sleep(OUTAGE / 2);
        array.start_lock_server(&[]);
        wait_for(|| array.is_healthy());
    });
    judge(array, hosts);
}

/// A machine may have both a host and the lock server.
#[test]
fn a_host_dies_together_with_the_lock_server() {
    let mut array = array("server-locking");
    let mut doomed = array.export(3);
    let hosts = while_hosts_work(&mut array, |array| {
        work(&doomed, 9, 3);
        pile(&mut doomed.connect(), 10, 24);
        array.lock_server.take().unwrap().kill();
        doomed.process.kill();
        wait_until_it_serves(array, 1, false);
    });
    hosts[0].connect().write(0, &content(SHARED));
    array.start_lock_server(&[]);
    wait_until_it_serves(&array, 1, true);
    judge(array, hosts);
}

/// A lock server that is cut off hears of the other one later. If hosts reach it meanwhile, it grants them nothing.
fn one_that_is_cut_off(from: &[Place], link: Link) {
    let mut array = Array::with_standby("server-locking", "1s");
    array.recorded = true;
    array.network = Some(Network::default());
    array.start_all();
    let hosts = while_hosts_work(&mut array, |array| {
        array.network.as_ref().unwrap().set(&[Place::Server], from, link);
        wait_until_it_serves(array, 1, false);
        std::thread::sleep(OUTAGE / 2);
        array.network.as_ref().unwrap().heal();
        wait_until_it_serves(array, 1, true);
    });
    judge(array, hosts);
}

const DEVICES: [Place; 3] = [Place::Device(0), Place::Device(1), Place::Device(2)];

#[test]
fn a_lock_server_is_cut_off_from_everybody() {
    let [a, b, c] = DEVICES;
    let all = [a, b, c, Place::Standby, Place::Host(1), Place::Host(2)];
    one_that_is_cut_off(&all, Link::Silent);
}

#[test]
fn a_lock_server_is_cut_off_from_the_devices_while_hosts_reach_it() {
    one_that_is_cut_off(&DEVICES, Link::Broken);
}

/// A standby that is missing keeps nobody from anything: the devices agree to go on without it.
#[test]
fn a_standby_may_be_away_and_gets_every_lock_when_it_is_back() {
    let mut array = array("server-locking");
    let hosts = while_hosts_work(&mut array, |array| {
        let epoch = |array: &Array| status(array)["epoch"].as_u64();
        let before = epoch(array);
        array.standby.take().unwrap().kill();
        // Grants of the hosts' locks wait for that.
        wait_for(|| epoch(array) > before);
        // Its log is lost meanwhile.
        std::fs::remove_file(array.disk("standby")).unwrap();
        array.start_standby(&["--create"]);
        wait_until_it_serves(array, 0, true);
        array.lock_server.take().unwrap().kill();
        wait_until_it_serves(array, 1, false);
        array.start_lock_server(&[]);
        wait_until_it_serves(array, 1, true);
    });
    let mut blocks = hosts[0].connect();
    assert_eq!(blocks.read(0, 1).len(), BLOCK);
    judge(array, hosts);
}

/// The array's state lists it until the one that serves has noticed that it was away.
#[test]
fn a_standby_without_its_log_does_not_count_as_complete() {
    let mut array = array("server-locking");
    array.standby.take().unwrap().kill();
    std::fs::remove_file(array.disk("standby")).unwrap();
    array.lock_server.as_ref().unwrap().signal(Signal::STOP);
    array.start_standby(&["--create"]);
    let standby = || status(&array)["lock_servers"][1].take();
    wait_for(|| standby()["why"].to_string().contains("without every lock"));
    assert_eq!(standby()["complete"], false);
    array.lock_server.as_ref().unwrap().signal(Signal::CONT);
    wait_for(|| standby()["complete"] == true);
}

/// Without a log that has the locks, nobody serves but by an operator's word.
#[test]
fn a_lost_log_is_not_taken_for_an_empty_one() {
    let mut array = Array::create(3, &["--scheme", "server-locking"]);
    array.start_all();
    let mut host = array.export(1);
    host.connect().write(0, &content(SHARED));
    array.lock_server.take().unwrap().kill();
    std::fs::remove_file(array.disk("locks")).unwrap();
    let refused = array.lockify("lock-server", &["/nowhere/locks", "--id", "1", "--create"]);
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("has 1 lock servers"), "{}", stderr(&refused));
    array.start_lock_server(&["--create"]);
    let why = || status(&array)["lock_server"]["why"].to_string();
    wait_for(|| why().contains("its log is not the one with the array's locks"));
    std::thread::sleep(OUTAGE);
    assert!(!array.is_healthy());
    assert_eq!(host.process.end(), Some(0));
    array.lock_server.take().unwrap().kill();
    std::fs::remove_file(array.disk("locks")).unwrap();
    array.start_lock_server(&["--create", "--accept-loss"]);
    array.wait_until_healthy();
    array.assert_clean();
    array.export(2).connect().write(0, &content(SHARED));
    array.end();
}
