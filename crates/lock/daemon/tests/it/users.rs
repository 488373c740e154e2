//! Clients of other users: their rights by a lockspace's owner, group and mode, and their limits.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::{Alone, as_user, eventually, may_be_others, open_to_all};
use lockify_client::{Client, Error, Guard, LockArgs, LockFlags, Mode, Name, NodeId};
use lockify_session::codec;
use lockify_session::protocol::{Event, LockRequest, Query, Refusal, Request, Space, pid_of};

/// Users and groups that are nobody's.
const ALICE: u32 = 64_001;
const BOB: u32 = 64_002;
const STAFF: u32 = 64_003;

const SPACES: &str = r#"
socket_mode = "666"
lockspace = [
    { name = "private", mode = "600" },
    { name = "alices", owner = "64001", group = "64003", mode = "640" },
    { name = "staffs", group = "64003", mode = "660" },
    { name = "everybodys" },
]
"#;

/// A daemon of root's that everybody may connect to, with these lines in front.
fn open(extra: &str) -> Alone {
    let alone = Alone::start(&(extra.to_owned() + SPACES));
    open_to_all(alone.dir.path());
    alone
}

/// A request for a lock in the first lockspace.
fn request(name: &str, mode: Mode) -> LockRequest {
    let args = LockArgs { tag: 5, ..LockArgs::new(Name::new(name).unwrap(), mode) };
    LockRequest { space: Space(0), args }
}

/// A user's rights in each lockspace: nothing, look (r), lock (rw).
fn rights(alone: &Alone) -> Vec<&'static str> {
    let client = alone.client();
    let names = ["private", "alices", "staffs", "everybodys"];
    let right = |name: &str| match client.lockspace(name) {
        Err(Error::Refused(Refusal::MayNotLook(space))) if space == name => "-",
        Err(e) => panic!("{e}"),
        Ok(space) => {
            space.who("a").unwrap();
            match space.lock("a", Mode::EX) {
                Ok(guard) => {
                    guard.unlock().unwrap();
                    "rw"
                }
                Err(Error::Refused(Refusal::MayNotLock(space))) if space == name => "r",
                Err(e) => panic!("{e}"),
            }
        }
    };
    names.map(right).to_vec()
}

#[test]
fn owner_group_and_mode_say_who_may_lock() {
    if !may_be_others() {
        return;
    }
    let alone = open("");
    assert_eq!(as_user(ALICE, 1, &[], || rights(&alone)), ["-", "rw", "-", "rw"]);
    assert_eq!(as_user(BOB, STAFF, &[], || rights(&alone)), ["-", "r", "rw", "rw"]);
    assert_eq!(as_user(BOB, 1, &[2, STAFF], || rights(&alone)), ["-", "r", "rw", "rw"]);
    assert_eq!(as_user(BOB, 1, &[2], || rights(&alone)), ["-", "-", "-", "rw"]);
    assert_eq!(rights(&alone), ["rw"; 4], "root may always");
}

/// A user's rights in a lockspace: nothing, look, lock.
fn may(alone: &Alone, name: &str) -> (bool, bool) {
    match alone.client().lockspace(name) {
        Err(Error::Refused(Refusal::MayNotLook(_))) => (false, false),
        Err(e) => panic!("{e}"),
        Ok(space) => match space.lock("a", Mode::EX) {
            Ok(guard) => (true, guard.unlock().is_ok()),
            Err(Error::Refused(Refusal::MayNotLock(_))) => (true, false),
            Err(e) => panic!("{e}"),
        },
    }
}

#[test]
fn a_lockspace_made_at_run_time_is_its_makers() {
    if !may_be_others() {
        return;
    }
    let alone = as_user(ALICE, ALICE, &[], || open(""));
    as_user(ALICE, STAFF, &[], || {
        let client = alone.client();
        client.create_lockspace("made", true).unwrap();
        client.create_lockspace_with_mode("shown", true, 0o640).unwrap();
        client.create_lockspace_with_mode("shared", true, 0o660).unwrap();
        client.create_lockspace_with_mode("open", true, 0o666).unwrap();
        // An existing lockspace keeps its own.
        client.create_lockspace_with_mode("made", false, 0o666).unwrap();
        let e = client.create_lockspace_with_mode("odd", true, 0o700).err().unwrap().to_string();
        assert!(e.contains("mode 700"), "{e}");
    });
    let spaces = ["made", "shown", "shared", "open"];
    let may = |name: &&str| may(&alone, name);
    let (nothing, look, lock) = ((false, false), (true, false), (true, true));
    let each = || spaces.iter().map(may).collect::<Vec<_>>();
    assert_eq!(as_user(BOB, 1, &[], each), [nothing, nothing, nothing, lock]);
    assert_eq!(as_user(BOB, STAFF, &[], each), [nothing, look, lock, lock]);
    assert_eq!(as_user(BOB, 1, &[STAFF], each), [nothing, look, lock, lock]);
    assert_eq!(as_user(ALICE, 1, &[], each), [lock; 4]);
    assert_eq!(each(), [lock; 4], "root may always");
}

/// A lockspace's number is easily guessed: it gives no rights.
#[test]
fn a_lockspace_that_was_not_opened_is_not_used_either() {
    if !may_be_others() {
        return;
    }
    let alone = open("");
    let holder = alone.client().lockspace("private").unwrap();
    let guard = holder.lock("secret", Mode::PR).unwrap();
    as_user(BOB, 1, &[], || {
        let mut stream = alone.session(1);
        let lock = request("secret", Mode::PR);
        let (space, name) = (lock.space, lock.args.name);
        let asked = [
            Request::Lock(lock),
            Request::Query { id: 1, query: Query::Locks(space) },
            Request::Query { id: 2, query: Query::Who(space, name) },
            Request::Query {
                id: 3,
                query: Query::Purge { space, node: None, clients: lockify_core::Clients::ALL },
            },
            Request::Query { id: 4, query: Query::Open("private".into()) },
        ];
        let mut bytes = Vec::new();
        asked.iter().for_each(|r| codec::encode(r, &mut bytes).unwrap());
        stream.write_all(&bytes).unwrap();
        let mut answers = Vec::new();
        let mut read = Vec::new();
        while answers.len() < asked.len() {
            while let Some((event, used)) = codec::decode::<Event>(&read).unwrap() {
                answers.push(format!("{event:?}"));
                read.drain(..used);
            }
            let mut buffer = [0; 4096];
            if answers.len() < asked.len() {
                let n = stream.read(&mut buffer).unwrap();
                assert!(n > 0, "{answers:?}");
                read.extend_from_slice(&buffer[..n]);
            }
        }
        for answer in answers {
            assert!(answer.contains("MayNotLo") && answer.contains("private"), "{answer}");
        }
    });
    guard.check().unwrap();
}

#[test]
fn the_sockets_mode_keeps_other_users_out() {
    if !may_be_others() {
        return;
    }
    let alone = Alone::start("");
    open_to_all(alone.dir.path());
    let e = as_user(BOB, 1, &[], || Client::connect(&alone.socket).err().unwrap().to_string());
    assert!(e.to_lowercase().contains("permission"), "{e}");
}

#[test]
fn a_user_has_a_limited_number_of_sessions_and_locks() {
    if !may_be_others() {
        return;
    }
    let alone = open("limits.max_sessions_per_user = 2\nlimits.max_locks_per_user = 3\n");
    as_user(ALICE, 1, &[], || {
        let spaces: Vec<_> =
            (0..2).map(|_| alone.client().lockspace("everybodys").unwrap()).collect();
        let third = Client::connect(&alone.socket);
        let e = third.and_then(|c| c.lockspace("everybodys")).err().unwrap().to_string();
        assert!(e.contains("max_sessions_per_user"), "{e}");
        let mut guards: Vec<_> =
            (0..3).map(|i| spaces[i % 2].lock([1 + i as u8], Mode::PR).unwrap()).collect();
        for space in &spaces {
            let e = space.lock("one more", Mode::PR).err().unwrap().to_string();
            assert!(e.contains("max_locks_per_user"), "{e}");
        }
        guards.pop().unwrap().unlock().unwrap();
        guards.push(spaces[1].lock("one more", Mode::PR).unwrap());
    });
    // Her sessions are over, and so are their locks: nothing is counted any more.
    eventually("room for her again", || {
        as_user(ALICE, 1, &[], || {
            let space = Client::connect(&alone.socket).and_then(|c| c.lockspace("everybodys"));
            space.is_ok_and(|space| {
                let guards: Vec<_> = (0..3).map(|i| space.lock([1 + i], Mode::PR)).collect();
                guards.iter().all(Result::is_ok)
            })
        })
    });
    // Others have their own share, and root has no limit but the general one.
    as_user(BOB, 1, &[], || drop(alone.client().lockspace("everybodys").unwrap()));
    let all: Vec<_> = (0..4).map(|_| alone.client().lockspace("everybodys").unwrap()).collect();
    let guards: Vec<_> =
        (0..8).map(|i| all[i % 4].lock([1 + i as u8], Mode::PR).unwrap()).collect();
    drop(guards);
}

/// Takes a PERSISTENT lock as Alice, in a session that ends at once.
fn leave_behind(socket: &Path, space: &str, name: u8) -> Result<(), Error> {
    as_user(ALICE, 1, &[], || {
        let space = Client::connect(socket).and_then(|client| client.lockspace(space))?;
        space.request([name], Mode::PR).flags(LockFlags::PERSISTENT).lock().map(Guard::keep)
    })
}

fn is_the_limit(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Refused(Refusal::TooManyLocksOfUser(_))))
}

#[test]
fn locks_that_outlive_their_session_count_as_their_users() {
    if !may_be_others() {
        return;
    }
    let alone = open("limits.max_locks_per_user = 3\n");
    let leave = |name| leave_behind(&alone.socket, "everybodys", name);
    (1..=3).for_each(|name| leave(name).unwrap());
    for name in 4..20 {
        assert!(is_the_limit(leave(name)), "lock {name}");
    }
    let words = leave(20).unwrap_err().to_string();
    assert!(words.contains("PERSISTENT") && words.contains("max_locks_per_user"), "{words}");
    let space = alone.client().lockspace("everybodys").unwrap();
    let there = || space.locks().unwrap().resources.iter().filter(|r| !r.locks.is_empty()).count();
    eventually("no more than three locks", || there() == 3);
    // Adopted, one counts as its adopter's.
    let bobs = as_user(BOB, 1, &[], || alone.client().lockspace("everybodys").unwrap());
    let adopted = bobs.request([1], Mode::PR).flags(LockFlags::ORPHAN).lock().unwrap();
    leave(5).unwrap();
    assert!(is_the_limit(leave(6)));
    adopted.unlock().unwrap();
    assert!(is_the_limit(leave(6)));
    // Purged, they are gone.
    space.purge(NodeId(1), None).unwrap();
    (6..9).for_each(|name| leave(name).unwrap());
    assert!(is_the_limit(leave(9)));
}

#[test]
fn who_has_left_locks_may_take_others_when_their_lockspace_goes() {
    if !may_be_others() {
        return;
    }
    let alone = open("limits.max_locks_per_user = 2\n");
    let root = alone.client();
    root.create_lockspace_with_mode("made", true, 0o666).unwrap();
    (1..=2).for_each(|name| leave_behind(&alone.socket, "made", name).unwrap());
    assert!(is_the_limit(leave_behind(&alone.socket, "everybodys", 3)));
    root.release_lockspace("made", true).unwrap();
    (1..=2).for_each(|name| leave_behind(&alone.socket, "everybodys", name).unwrap());
    assert!(is_the_limit(leave_behind(&alone.socket, "everybodys", 3)));
}

#[test]
fn root_gets_in_when_others_have_taken_all_that_they_may() {
    if !may_be_others() {
        return;
    }
    let alone = open("limits.max_sessions = 16\n");
    let taken = as_user(ALICE, 1, &[], || {
        let mut taken = Vec::new();
        while let Ok(client) = Client::connect(&alone.socket) {
            match client.lockspace("everybodys") {
                Ok(_) => taken.push(client),
                Err(e) => {
                    assert!(e.to_string().contains("max_sessions"), "{e}");
                    break;
                }
            }
        }
        taken
    });
    assert_eq!(taken.len(), 15);
    alone.client().lockspace("private").unwrap();
}

#[test]
fn the_kernel_says_which_process_holds_a_lock() {
    let alone = Alone::start("");
    // A lie.
    let mut stream = alone.session(1);
    let mut bytes = Vec::new();
    codec::encode(&Request::Lock(request("a", Mode::EX)), &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    let space = alone.client().lockspace("default").unwrap();
    eventually("the lock", || {
        space.who("a").unwrap().resources.iter().any(|r| !r.locks.is_empty())
    });
    let owner = space.who("a").unwrap().resources[0].locks[0].client.unwrap();
    assert_eq!(pid_of(owner), std::process::id());
}

/// Threads of a daemon that is not root: it needs no more than its own files.
#[test]
fn a_daemon_needs_no_rights() {
    if !may_be_others() {
        return;
    }
    let alone = as_user(ALICE, ALICE, &[], || open(""));
    assert_eq!(as_user(ALICE, 1, &[], || rights(&alone)), ["rw"; 4], "the daemon's own user");
    assert_eq!(as_user(BOB, 1, &[], || rights(&alone)), ["-", "-", "-", "rw"]);
    assert_eq!(rights(&alone), ["rw"; 4], "root may always");
    let socket = std::fs::metadata(&alone.socket).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&socket), ALICE);
    assert_eq!(socket.permissions().mode() & 0o777, 0o666);
}
