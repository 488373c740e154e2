//! The choice of the daemon: one for each user and machine, the same from everywhere, and the
//! cluster's or none on a machine that belongs to one.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;

use crate::common::machine::assert_runs;
use crate::common::{PATIENCE, Process, User, code, output, stderr, within};
use lockify_client::{Client, Mode};

/// A user's process meets the others in any place and with any environment.
#[test]
fn a_user_has_one_daemon_wherever_it_is_looked_for() {
    assert_runs(
        r#"
        mkdir $W/a $W/b; lockify=$(command -v lockify)
        try() { expect 124 "$@" $lockify run --timeout 0s db -- true; }
        everywhere() {
            try env
            try env -i
            try env -u XDG_RUNTIME_DIR -u HOME
            try env XDG_RUNTIME_DIR=$W/a
            try env XDG_RUNTIME_DIR=$W/b HOME=$W/b TMPDIR=$W/b TMP=/nowhere USER=else LOGNAME=else
            try env XDG_RUNTIME_DIR=/nowhere XDG_STATE_HOME=$W/b PATH=/usr/bin:/bin:$PATH
            (cd / && try env)
            try setsid --wait
            # As a service with PrivateTmp=, and more of that kind.
            try unshare --mount sh -c 'for d in /tmp /run /var/tmp /root /dev/shm; do mount -t tmpfs none $d; done; exec "$@"' -
            try unshare --pid --fork --kill-child
            try unshare --ipc --uts --cgroup
            try unshare --user --map-root-user
            try nice -n 5
            try sh -c 'trap "" HUP INT TERM CHLD; exec "$@"' -
        }
        hold() { "$@" lockify run db -- inside sh -c "touch $W/holds; exec sleep 1000" & holder=$!; until_so test -e $W/holds; }
        let_go() { kill $holder; wait $holder || true; rm $W/holds; until_so flock -n $W/judge true; }
        hold env XDG_RUNTIME_DIR=$W/a HOME=$W/a
        everywhere
        rm -rf $W/a $W/b /root/.local /run/*
        everywhere
        let_go
        # The one who starts it has the odd environment.
        daemon=$(daemon); kill $daemon; until_so test ! -e /proc/$daemon
        hold unshare --mount sh -c 'mount -t tmpfs none /run; exec "$@"' -
        everywhere
        let_go
        expect 0 lockify run --timeout 0s db -- inside true
        "#,
    );
}

/// Users have domains of their own; one user's processes meet, however they became that user's.
#[test]
fn each_user_has_a_daemon_of_its_own() {
    assert_runs(
        r#"
        as() { setpriv --reuid=4242 --regid=4242 --clear-groups "$@"; }
        as lockify run db -- inside sh -c "touch $W/holds; exec sleep 1000" & until_so test -e $W/holds
        expect 124 as lockify run --timeout 0s db -- true
        expect 124 as env -i $(command -v lockify) run --timeout 0s db -- true
        expect 124 setpriv --reuid=4242 --regid=1 --clear-groups lockify run --timeout 0s db -- true
        expect 0 lockify run --timeout 0s db -- true
        # A user that is not mapped is nobody in particular.
        expect 125 unshare --user lockify run --timeout 0s db -- true
        says "has no number outside"
        # Root may look; others are not let in.
        expect 0 lockify who --socket @lockify-user-4242 db; says "holds EX"
        expect 3 setpriv --reuid=77 --regid=4242 --clear-groups lockify who --socket @lockify-user-4242 db
        says "is the lock daemon of user 4242, which serves that user and root, and not user 77"
        "#,
    );
}

#[test]
fn a_name_that_another_user_has_taken_is_refused() {
    assert_runs(
        r#"
        setpriv --reuid=4242 --regid=4242 --clear-groups lockify serve --user --socket @lockify-user-0 &
        until_so grep -q lockify-user-0 /proc/net/unix
        expect 125 lockify run --timeout 1s db -- touch $W/ran
        says "is for the lock daemon of user 0, and a process of user 4242"
        [ ! -e $W/ran ]
        expect 3 lockify status; says "user 4242"
        expect 3 lockify serve --user; says "another process has the name @lockify-user-0"
        "#,
    );
}

#[test]
fn many_that_start_at_once_share_one_daemon() {
    assert_runs(
        r#"
        for n in 1 2 3 4 5 6; do (expect 0 lockify run db -- inside sleep 0.05; touch $W/done$n) & runs="${runs-} $!"; done
        wait $runs
        [ $(ls $W | grep -c done) = 6 ] || fail "not all have locked"
        [ $(daemon | wc -l) = 1 ] || fail "daemons: $(daemon)"
        "#,
    );
}

/// A daemon that was killed, and a holder that has not noticed yet.
#[test]
fn the_next_daemon_waits_for_the_holders_of_the_one_that_was_killed() {
    assert_runs(
        r#"
        for round in 1 2 3; do
            lockify run db -- inside sh -c "touch $W/in$round; exec sleep 1000" 2>$W/holder & holder=$!
            until_so test -e $W/in$round
            kill -STOP $holder $(pgrep -P $holder)
            kill -KILL $(daemon)
            (expect 0 lockify run db -- inside true; touch $W/next$round) & next=$!
            # The new daemon is there, and the holder still is.
            until_so grep -rq 'waits until' /root/.local/state/lockify
            [ ! -e $W/next$round ] || fail "what a living holder has was granted: round $round"
            kill -CONT $holder $(pgrep -P $holder)
            ended=0; wait $holder || ended=$?
            [ $ended = 123 ] || fail "the holder was not told: $ended $(cat $W/holder)"
            wait $next
            [ -e $W/next$round ] || fail "nobody has locked after the holder: round $round"
            rm /root/.local/state/lockify/*/daemon.log
        done
        "#,
    );
}

#[test]
fn a_machine_of_a_cluster_locks_there_or_not_at_all() {
    assert_runs(
        r#"
        cp -a /etc $W/etc; mount --bind $W/etc /etc
        rm -rf /etc/lockify /etc/systemd/system/lockifyd.service
        refused() {
            expect 125 lockify run db -- touch $W/ran; says "belongs to a cluster"; says "$1"; says -- "--local"
            for command in status reload restart locks "who db" doctor "top --once"; do
                expect 3 lockify $command; says "belongs to a cluster"
            done
            [ ! -e $W/ran ] || fail "it ran without the cluster's lock"
        }
        # Also while the user's own daemon runs.
        expect 0 lockify run db -- true
        mkdir -p /etc/lockify; echo broken >/etc/lockify/lockify.toml; refused /etc/lockify/lockify.toml
        expect 0 lockify run --local db -- inside true
        expect 0 lockify status --local; says "this user's own on this machine"
        rm /etc/lockify/lockify.toml; expect 0 lockify run db -- true
        mkdir -p /etc/systemd/system; ln -s /dev/null /etc/systemd/system/lockifyd.service
        refused lockifyd.service; rm /etc/systemd/system/lockifyd.service
        mkdir -p /run/lockify; touch /run/lockify/lockify.sock; refused /run/lockify/lockify.sock
        rm /run/lockify/lockify.sock
        # The folder of a package, which others than root may not look into.
        chmod 750 /etc/lockify
        expect 125 setpriv --reuid=4242 --regid=4242 --clear-groups lockify run db -- true; says "belongs to a cluster"
        rmdir /etc/lockify
        for named in /nowhere/lockify.sock @nobody ''; do
            export LOCKIFY_SOCKET="$named"
            expect 125 lockify run db -- touch $W/ran; says LOCKIFY_SOCKET
            expect 3 lockify status; says LOCKIFY_SOCKET
        done
        [ ! -e $W/ran ]
        "#,
    );
}

#[test]
fn every_look_says_which_daemon_answers() {
    assert_runs(
        r#"
        ip link set lo up
        mkdir -p /run/lockify
        printf 'node = 1\n[[nodes]]\nid = 1\naddress = "127.0.0.1:7430"\n' >$W/node.toml
        lockify serve --config $W/node.toml & until_so test -e /run/lockify/lockify.sock
        expect 0 lockify run db -- true
        for command in status locks "who db" doctor "top --once --interval 50ms" restart reload; do
            expect 0 lockify $command
            [ "$(head -n 1 $W/out)" = "daemon: /run/lockify/lockify.sock, the cluster's (/run/lockify/lockify.sock is a node's socket)" ] ||
                fail "$command: $(head -n 1 $W/out)"
        done
        expect 0 lockify status --json; says '"daemon":{"socket":"/run/lockify/lockify.sock","domain":"cluster","because":"/run/lockify/lockify.sock"}'
        expect 3 lockify status --local; says "this user's own lock daemon does not run"
        expect 0 lockify run --local db -- true
        expect 0 lockify who --local db --json; says '"domain":"user"'
        expect 2 lockify status --local --socket /x
        "#,
    );
}

/// The daemon keeps none of its starter's descriptors or inputs.
#[test]
fn a_daemon_keeps_nothing_of_who_started_it() {
    assert_runs(
        r#"
        exec 9>$W/lock; flock 9
        said=$(lockify run db -- echo said)
        [ "$said" = said ]
        exec 9>&-
        flock -n $W/lock true || fail "the daemon has the descriptors of the script"
        daemon=$(daemon)
        [ $(readlink /proc/$daemon/cwd) = / ]
        [ $(ps -o ppid= $daemon) = 1 ] || fail "it is the child of $(ps -o ppid= $daemon)"
        "#,
    );
}

/// The task of this test as a program: connects by itself, locks, and says so.
const PROGRAM: &str = "LOCKIFY_TEST_PROGRAM";

#[test]
fn a_program_finds_what_the_command_finds_and_starts_it_too() {
    if std::env::var_os(PROGRAM).is_some() {
        let space = Client::open().and_then(|client| client.lockspace("default"));
        let guard = space.and_then(|space| space.lock("db", Mode::EX)).unwrap();
        println!("locked {}", guard.token());
        // Until the starter closes the pipe.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    let here = std::env::current_exe().unwrap();
    let copy = |from: &Path, to: &str| {
        format!("ln {0} $W/{to} 2>/dev/null || cp {0} $W/{to}", from.display())
    };
    let program = copy(&here, "program");
    let beside = copy(Path::new(env!("CARGO_BIN_EXE_lockify")), "lockify");
    let test = "domain::a_program_finds_what_the_command_finds_and_starts_it_too";
    assert_runs(&format!(
        r#"
        {program}
        mkfifo $W/end
        program() {{ {PROGRAM}=1 $W/program --exact {test} --nocapture <$W/end >$W/said 2>&1; }}
        # Nowhere is a command that could be the daemon, but on PATH.
        if [ ! -e /usr/bin/lockify ] && [ ! -e /usr/local/bin/lockify ]; then
            : >$W/end & expect 101 program
            grep -q 'neither beside this program' $W/said || {{ cat $W/said; fail "no advice"; }}
        fi
        {beside}
        program & exec 8>$W/end
        until_so grep -q locked $W/said
        expect 124 lockify run --timeout 0s db -- true
        exec 8>&-; wait $!
        expect 0 lockify run --timeout 0s db -- true
        mkdir -p /run/lockify; touch /run/lockify/lockify.sock
        : >$W/end & expect 101 program
        grep -q 'belongs to a cluster' $W/said || {{ cat $W/said; fail "it locked elsewhere"; }}
        "#
    ));
}

/// Without root's powers: a daemon on a name of the test's own.
#[test]
fn a_daemon_has_a_name_or_a_path_and_says_when_it_is_taken() {
    let user = User::new();
    let name = format!("@lockify-test-{}", std::process::id());
    let path = user.socket();
    for socket in [name.as_str(), path.to_str().unwrap()] {
        let args = ["serve", "--user", "--socket", socket];
        let mut daemon = Process(user.command(&args).stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(daemon.0.stderr.take().unwrap()).lines();
        let place = socket.to_owned();
        let (said, _lines) = within(PATIENCE, "where the daemon listens", move || {
            (lines.any(|line| line.unwrap().contains(&place)), lines)
        });
        assert!(said, "it does not say where it listens");
        let second = user.lockify(&args);
        assert_eq!(code(&second), 3, "{second:?}");
        assert!(stderr(&second).contains("another"), "{second:?}");
        let mut run = user.command(&["run", "--socket", socket, "db", "--", "true"]);
        assert_eq!(output(&mut run).status.code(), Some(0));
    }
    let long = format!("@{}", "x".repeat(64));
    let out = user.lockify(&["serve", "--user", "--socket", &long]);
    assert!(stderr(&out).contains("at most 64"), "{out:?}");
}

#[test]
fn an_unused_daemon_ends() {
    let user = User::new();
    let socket = user.socket();
    let args = ["serve", "--user", "--socket", socket.to_str().unwrap(), "--idle", "50ms"];
    let out = user.lockify(&args);
    assert_eq!(code(&out), 0, "{out:?}");
    assert!(!socket.exists());
}
