//! The configuration is read again while the daemon runs.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::common::{PATIENCE, as_user, eventually, may_be_others, open_to_all, recording};
use lockify_client::{Client, Error, Mode};
use lockify_daemon::{Config, Daemon};
use lockify_session::protocol::Refusal;

const LIST: &str = "[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n";

/// A daemon with a configuration file.
struct Filed {
    daemon: Daemon,
    dir: tempfile::TempDir,
    lines: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Filed {
    fn start(extra: &str) -> Filed {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), extra);
        let config = Config::read(&dir.path().join("lockify.toml")).unwrap();
        let (log, lines) = recording();
        let daemon = Daemon::start(&config, &log).unwrap();
        Filed { daemon, dir, lines }
    }

    fn client(&self) -> Client {
        Client::connect(self.dir.path().join("lockify.sock")).unwrap()
    }

    /// Writes another configuration and has a client ask for it.
    fn change(&self, extra: &str) -> Result<String, String> {
        write(self.dir.path(), extra);
        let outcome = self.client().reload();
        let text = match &outcome {
            Ok(text) => text.clone(),
            Err(Error::Refused(Refusal::NotReloaded(why))) => why.clone(),
            Err(e) => panic!("{e}"),
        };
        // The log has been told the same.
        assert!(self.lines.lock().unwrap().iter().any(|l| l.contains(&text)), "{text}");
        outcome.map_err(|_| text)
    }
}

fn write(dir: &Path, extra: &str) {
    let socket = dir.join("lockify.sock");
    let text = format!("socket = {socket:?}\nnode = 1\n{extra}\n{LIST}");
    std::fs::write(dir.join("lockify.toml"), text).unwrap();
}

#[test]
fn limits_change_for_sessions_that_are_there() {
    let filed = Filed::start("shards = 2\nlimits.max_locks = 2");
    let space = filed.client().lockspace("default").unwrap();
    // Two shards, and names for each: the limit is each one's.
    let take = || {
        let got = (0..40).map(|i| space.lock(format!("{i}"), Mode::PR)).take_while(Result::is_ok);
        got.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let few = take();
    assert!((2..=4).contains(&few.len()), "{}", few.len());
    assert_eq!(
        filed.change("shards = 2\nlimits.max_locks = 30").unwrap(),
        "changed limits.max_locks"
    );
    drop(few);
    let many = take();
    assert!(many.len() > 4, "{}", many.len());
    // The present ones stay, and no more are granted.
    filed.change("shards = 2\nlimits.max_locks = 1").unwrap();
    many.iter().for_each(|guard| guard.check().unwrap());
    assert!(matches!(space.lock("one more", Mode::PR), Err(Error::Refused(_))));
    assert_eq!(
        filed.change("shards = 2\nlimits.max_locks = 1").unwrap(),
        "nothing in it has changed"
    );
}

#[test]
fn what_cannot_change_is_named_and_nothing_changes() {
    let filed = Filed::start("");
    let why = filed
        .change("shards = 2\nlease = \"3s\"\nlimits.max_locks = 1\n[[lockspace]]\nname = \"new\"")
        .unwrap_err();
    for text in ["nothing was changed: ", "shards, lease, ", "restart", "\"default\" (removed)"] {
        assert!(why.contains(text), "{text}: {why}");
    }
    let space = filed.client().lockspace("default").unwrap();
    let _two = [space.lock("a", Mode::PR).unwrap(), space.lock("b", Mode::PR).unwrap()];
}

#[test]
fn a_broken_file_changes_nothing_and_says_why() {
    let filed = Filed::start("");
    let why = filed.change("limits.max_locks = \"many\"").unwrap_err();
    assert!(why.contains("lockify.toml") && why.contains("line 3"), "{why}");
    let why = filed.change("limits.max_locks = 0").unwrap_err();
    assert!(why.contains("line 3, column 8: limits: max_locks = 0"), "{why}");
    std::fs::remove_file(filed.dir.path().join("lockify.toml")).unwrap();
    let why = filed.daemon.reload().unwrap_err();
    assert!(why.contains("nothing was changed: cannot read"), "{why}");
    // One that is mended works.
    assert_eq!(filed.change("idle_exit = \"1h\"").unwrap(), "changed idle_exit");
}

#[test]
fn a_reading_asked_for_during_another_one_follows_it_and_sees_the_newest_file() {
    let filed = Filed::start("");
    let (file, slow) = (filed.dir.path().join("lockify.toml"), filed.dir.path().join("slow"));
    let before = std::fs::read(&file).unwrap();
    nix::unistd::mkfifo(&slow, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::hard_link(&slow, &file).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| filed.daemon.reload());
        // The first one has the file open when its other end can be opened.
        let (mut options, mut end) = (std::fs::OpenOptions::new(), None);
        options.write(true).custom_flags(nix::libc::O_NONBLOCK);
        eventually("the file is being read", || {
            end = options.open(&slow).ok();
            end.is_some()
        });
        let others = [(); 2].map(|()| scope.spawn(|| filed.daemon.reload()));
        eventually("one of them is told that one follows", || {
            others.iter().any(|o| o.is_finished())
        });
        std::fs::remove_file(&file).unwrap();
        write(filed.dir.path(), "limits.max_locks = 30");
        end.as_mut().unwrap().write_all(&before).unwrap();
        drop(end);
        assert_eq!(first.join().unwrap().unwrap(), "nothing in it has changed");
        let [a, b] = others.map(|o| o.join().unwrap());
        let (follows, told) = if a.is_ok() { (a, b) } else { (b, a) };
        assert_eq!(follows.unwrap(), "changed limits.max_locks");
        assert!(told.unwrap_err().contains("read once more after that"));
    });
}

#[test]
fn a_daemon_without_a_file_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config::alone(dir.path().join("lockify.sock"));
    let (log, _) = recording();
    let daemon = Daemon::start(&config, &log).unwrap();
    assert!(daemon.reload().unwrap_err().contains("without a configuration file"));
    let space = Client::connect(dir.path().join("lockify.sock")).unwrap().lockspace("default");
    space.unwrap().lock("a", Mode::EX).unwrap().unlock().unwrap();
}

/// Two sessions each wait for the other's lock, and nobody looks; then somebody does.
#[test]
fn deadlocks_are_searched_for_from_then_on() {
    let filed = Filed::start("");
    let spaces = [(); 2].map(|()| filed.client().lockspace("default").unwrap());
    let held = [spaces[0].lock("x", Mode::EX).unwrap(), spaces[1].lock("y", Mode::EX).unwrap()];
    std::thread::scope(|scope| {
        let waits = [("y", &spaces[0]), ("x", &spaces[1])].map(|(name, space)| {
            scope.spawn(move || space.request(name, Mode::EX).timeout(PATIENCE).lock())
        });
        let waiting = |name| {
            let seen = spaces[0].who(name).unwrap();
            seen.resources.iter().map(|r| r.locks.len()).sum::<usize>() == 2
        };
        eventually("both wait", || waiting("x") && waiting("y"));
        let told =
            filed.change("[[lockspace]]\nname = \"default\"\ndeadlock_after = \"10ms\"").unwrap();
        assert_eq!(told, "changed deadlock_after of lockspace \"default\"");
        eventually("a victim", || waits.iter().any(|w| w.is_finished()));
        drop(held);
        let ends = waits.map(|w| w.join().unwrap());
        let victims = ends.iter().filter(|e| matches!(e, Err(Error::Deadlock))).count();
        assert_eq!(victims, 1, "{ends:?}");
    });
}

#[test]
fn who_may_lock_changes_and_only_some_may_ask() {
    if !may_be_others() {
        return;
    }
    const USER: u32 = 64_021;
    let space = |mode: &str| {
        format!("socket_mode = \"666\"\n[[lockspace]]\nname = \"default\"\nmode = \"{mode}\"")
    };
    let filed = Filed::start(&space("666"));
    open_to_all(filed.dir.path());
    let theirs = as_user(USER, USER, &[], || filed.client().lockspace("default").unwrap());
    let guard = theirs.lock("a", Mode::EX).unwrap();
    let e = as_user(USER, USER, &[], || filed.client().reload()).unwrap_err();
    assert!(matches!(e, Error::Refused(Refusal::MayNotReload)), "{e}");
    assert_eq!(filed.change(&space("600")).unwrap(), "changed mode of lockspace \"default\"");
    let refused = theirs.lock("b", Mode::EX);
    assert!(matches!(refused, Err(Error::Refused(Refusal::MayNotLock(_)))), "{refused:?}");
    guard.check().unwrap();
    guard.unlock().unwrap();
    filed.change(&space("666")).unwrap();
    theirs.lock("b", Mode::EX).unwrap().unlock().unwrap();
}

/// Also if they are in another order than at the start.
#[test]
fn rights_belong_to_their_lockspace() {
    if !may_be_others() {
        return;
    }
    let two = |order: [&str; 2], mode: &str| {
        let entry = |name: &&str| {
            let mode = if *name == "b" { mode } else { "666" };
            format!("[[lockspace]]\nname = \"{name}\"\nmode = \"{mode}\"\n")
        };
        format!("socket_mode = \"666\"\n{}", order.iter().map(entry).collect::<String>())
    };
    let filed = Filed::start(&two(["a", "b"], "666"));
    open_to_all(filed.dir.path());
    let told = filed.change(&two(["b", "a"], "600")).unwrap();
    assert_eq!(told, "changed mode of lockspace \"b\"");
    as_user(64_021, 64_021, &[], || {
        let client = filed.client();
        client.lockspace("a").unwrap().lock("x", Mode::EX).unwrap().unlock().unwrap();
        let refused = client.lockspace("b").map(drop);
        assert!(matches!(refused, Err(Error::Refused(Refusal::MayNotLook(_)))), "{refused:?}");
    });
}

#[test]
fn every_key_that_differs_is_found() {
    let parse = |text: &str| Config::parse(text, Path::new("/x/lockify.toml")).unwrap();
    let with = |line: &str| {
        parse(
            &format!("node = 1\n{line}\n{LIST}[[nodes]]\nid = 2\naddress = \"127.0.0.1:9\"\n")
                .replace(":0", ":8"),
        )
    };
    let plain = with("");
    let words = "anybody who reaches the network may take and break locks";
    for line in [
        "cluster = \"x\"",
        "socket = \"/y\"",
        "socket_mode = \"640\"",
        "weight = 2",
        "state_dir = \"s\"",
        "listen = \"127.0.0.1:9\"",
        "lease = \"3s\"",
        "delay = \"1ms\"",
        "busy_poll = \"1ms\"",
        "history = \"h\"",
        "shutdown_grace = \"1s\"",
        "idle_exit = \"1s\"",
        "port = 1",
        "fencing.time_limit = \"1s\"",
        "fencing.startup_wait = \"1s\"",
        "quorum_lost.action = \"exit\"",
        "quorum_lost.command = [\"x\"]",
        "quorum_lost.time_limit = \"1s\"",
        "limits.max_sessions = 1",
        "limits.max_sessions_per_user = 1",
        "limits.max_locks = 1",
        "limits.max_locks_per_user = 1",
        "limits.max_unread = 1",
        "metrics.address = \"127.0.0.1:9464\"",
        "metrics.socket = \"m\"",
        "log.format = \"json\"",
        "log.level = \"debug\"",
        &format!("security.plain_text = {words:?}"),
        "fence = \"none\"",
    ] {
        let key = line.split(' ').next().unwrap();
        let changes = plain.changes(&with(line));
        let found = match Config::changes_while_running(key) {
            true => (&changes.possible, &changes.restart),
            false => (&changes.restart, &changes.possible),
        };
        assert_eq!((found.0.as_slice(), found.1.len()), (&[key.to_owned()][..], 0), "{line}");
        assert!(plain.changes(&plain) == lockify_daemon::Changes::default());
    }
    let held = with("wire_version = 3");
    assert_eq!(held.changes(&plain).possible, ["wire_version"]);
    assert_eq!(plain.changes(&held).restart, ["wire_version (lowered)"]);
    assert_eq!(plain.changes(&with("wire_version = 5")), lockify_daemon::Changes::default());
    // Keys may move; whether there are any may not change.
    let keys = |ca: &str| with(&format!("security = {{ ca = {ca:?}, identity = \"i\" }}"));
    assert_eq!(keys("a").changes(&keys("b")).possible, ["security.ca"]);
    assert_eq!(plain.changes(&keys("a")).restart, ["security.ca", "security.identity"]);
    let spaces =
        |text: &str| parse(&format!("node = 1\n{LIST}[[lockspace]]\nname = \"s\"\n{text}"));
    for key in
        ["policy = \"home\"", "lvb_len = 8", "owner = \"0\"", "group = \"0\"", "mode = \"600\""]
    {
        let (name, _) = key.split_once(' ').unwrap();
        let changes = spaces("").changes(&spaces(key));
        let all = [changes.possible, changes.restart].concat();
        assert_eq!(all, [format!("{name} of lockspace \"s\"")]);
    }
    let node = plain.changes(&parse(&format!("node = 1\n{LIST}")));
    assert_eq!(node.restart, ["nodes"]);
}
