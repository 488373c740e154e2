//! `lockify run` and all processes of its command: who holds the lock holds all of them.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Process, User, all_of, code, output, programs, signals, stderr, wait_for};
use rustix::process::{Pid, Signal};

/// Starts a process in another group, one in another session, and one whose parents have all ended;
/// none of them ends on request. Each says its number.
const TREE: &str = r#"
    cd "$DIR"
    here() { echo $$ > $1.new; mv $1.new $1; }
    stay='exec > /dev/null 2>&1; echo $$ > $0.new; mv $0.new $0; trap "" TERM HUP INT; while :; do sleep 0.05; done'
    setsid sh -c "$stay" session &
    (setsid sh -c '(setsid sh -c "$1" daemon &) &' x "$stay" &)
    set -m; sh -c "$stay" group & set +m
    until [ -e session ] && [ -e daemon ] && [ -e group ]; do sleep 0.02; done
    here command
"#;

const NAMES: [&str; 4] = ["session", "daemon", "group", "command"];

/// Runs the tree, and then `then`, under the lock `x`.
fn hold(user: &User, args: &[&str], then: &str) -> Process {
    let script = format!("{TREE}\n{then}");
    let all = [&["run"], args, &["x", "--", "sh", "-c", &script]].concat();
    let mut run = user.command(&all);
    run.env("DIR", user.dir()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = Process(run.spawn().unwrap());
    wait_for(|| user.dir().join("command").exists());
    run
}

fn pid(user: &User, name: &str) -> i32 {
    std::fs::read_to_string(user.dir().join(name)).unwrap().trim().parse().unwrap()
}

/// Also false for a process that nobody has waited for.
fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn all_are_gone(user: &User) {
    for name in NAMES {
        assert!(!runs(pid(user, name)), "{name} still runs");
    }
}

fn kill(pid: i32, signal: Signal) {
    signals::send(Pid::from_raw(pid).unwrap(), signal);
}

fn end(mut run: Process) -> Output {
    let stderr = all_of(run.0.stderr.take().unwrap());
    Output { status: run.ended(), stdout: Vec::new(), stderr }
}

/// The process between `lockify run` and its command.
fn guardian(run: &Child) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    std::fs::read_to_string(children).unwrap().trim().parse().unwrap()
}

/// Returns true if `x` is held.
fn held(user: &User) -> bool {
    match code(&user.lockify(&["run", "-n", "-E", "9", "x", "true"])) {
        0 => false,
        9 => true,
        other => panic!("exit code {other}"),
    }
}

#[test]
fn a_lost_lock_ends_all_of_them() {
    for (on_lost, says) in [("kill", "killed"), ("signal", "SIGTERM")] {
        let user = User::new();
        let mut daemon = user.daemon();
        let run = hold(&user, &["--on-lost", on_lost, "-k", "0.2"], "trap '' TERM; sleep 600");
        daemon.kill();
        let out = end(run);
        all_are_gone(&user);
        assert_eq!(code(&out), 123, "{out:?}");
        assert!(stderr(&out).contains(says) && stderr(&out).contains("gone"), "{out:?}");
    }
}

#[test]
fn signals_to_end_end_all_of_them_and_first_ask() {
    let ends: [(Signal, &str, i32); 3] = [
        (Signal::TERM, "exec sleep 600", 143),
        (Signal::INT, "trap 'exit 5' INT; while :; do sleep 0.02; done", 5),
        (Signal::QUIT, "trap '' QUIT; while :; do sleep 0.02; done", 137),
    ];
    for (signal, then, expected) in ends {
        let user = User::new();
        let _daemon = user.daemon();
        let run = hold(&user, &["--kill-after", "500ms"], then);
        if expected == 5 {
            // The trap may not be set yet; the signal's default would end the shell otherwise.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        run.signal(signal);
        let out = end(run);
        all_are_gone(&user);
        assert_eq!(code(&out), expected, "{signal:?}: {out:?}");
        assert!(!held(&user));
    }
}

#[test]
fn a_killed_run_leaves_no_writer_to_the_next_holder() {
    let user = User::new();
    let _daemon = user.daemon();
    let mut run = hold(&user, &[], "(setsid sh -c 'while :; do echo >> lines; done' &); sleep 600");
    let lines = user.dir().join("lines");
    wait_for(|| lines.exists());
    run.kill();
    // The next holder sees no byte come.
    let look = r#"a=$(wc -c < "$0"); sleep 0.3; test "$a" -eq "$(wc -c < "$0")""#;
    let next = user.lockify(&["run", "-w", "20", "x", "sh", "-c", look, lines.to_str().unwrap()]);
    assert_eq!(code(&next), 0, "{next:?}");
    all_are_gone(&user);
}

#[test]
fn a_killed_guardian_ends_all_of_them_before_the_lock_is_free() {
    let user = User::new();
    let _daemon = user.daemon();
    let run = hold(&user, &[], "sleep 600");
    kill(guardian(&run.0), Signal::KILL);
    let out = end(run);
    all_are_gone(&user);
    assert_eq!(code(&out), 123, "{out:?}");
    assert!(!held(&user));
}

#[test]
fn with_run_and_guardian_killed_the_lock_stays_with_who_inherited_it() {
    let user = User::new();
    let _daemon = user.daemon();
    let mut run = hold(&user, &[], "exec sleep 600");
    let guardian = guardian(&run.0);
    // Neither has time to act.
    run.signal(Signal::STOP);
    kill(guardian, Signal::STOP);
    kill(guardian, Signal::KILL);
    run.kill();
    wait_for(|| !runs(pid(&user, "command")));
    assert!(held(&user), "others still run");
    for name in ["session", "daemon", "group"] {
        kill(pid(&user, name), Signal::KILL);
    }
    let next = user.lockify(&["run", "-w", "20", "x", "true"]);
    assert_eq!(code(&next), 0, "{next:?}");
}

#[test]
fn what_the_command_leaves_in_the_background_keeps_the_lock() {
    let user = User::new();
    let daemon = user.daemon();
    let out = end(hold(&user, &[], "exit 6"));
    assert_eq!(code(&out), 6, "{out:?}");
    assert!(stderr(&out).contains("stays held"), "{out:?}");
    assert!(held(&user));
    for name in &NAMES[..3] {
        assert!(runs(pid(&user, name)), "{name}");
        kill(pid(&user, name), Signal::KILL);
    }
    let next = user.lockify(&["run", "-w", "20", "x", "true"]);
    assert_eq!(code(&next), 0, "{next:?}");
    drop(daemon);
}

#[test]
fn what_is_left_in_the_background_ends_when_the_lock_is_lost() {
    let user = User::new();
    let mut daemon = user.daemon();
    let out = end(hold(&user, &[], "exit 0"));
    assert_eq!(code(&out), 0, "{out:?}");
    daemon.kill();
    wait_for(|| NAMES.iter().all(|name| !runs(pid(&user, name))));
}

#[test]
fn with_close_the_lock_ends_with_the_command() {
    let user = User::new();
    let _daemon = user.daemon();
    let out = end(hold(&user, &["--close"], "exit 6"));
    assert_eq!(code(&out), 6, "{out:?}");
    assert!(!held(&user));
    for name in &NAMES[..3] {
        let pid = pid(&user, name);
        let fd = std::fs::read_link(format!("/proc/{pid}/fd/100"));
        assert!(runs(pid) && fd.is_err(), "{name}: {fd:?}");
        kill(pid, Signal::KILL);
    }
}

/// A program that starts others as root, as sudo does: its user may not end them.
fn program_of_root(dir: &Path) -> PathBuf {
    let program = dir.join("as-root");
    programs::copy(Path::new("/usr/bin/setpriv"), &program);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    program
}

/// A user whom nobody else is, and who has no home.
const SOMEBODY: u32 = 64_321;

/// The command line of another user, who may not look into the folder of this one.
fn somebody(user: &User, home: &Path, args: &[&str]) -> Command {
    let own = user.dir().join("lockify-for-all");
    if !own.exists() {
        programs::copy(Path::new(user.command(&[]).get_program()), &own);
    }
    let mut command = Command::new(own);
    command.args(args).env("XDG_RUNTIME_DIR", home).env("LOCKIFY_IDLE", "1s");
    command.env_remove("LOCKIFY_SOCKET").env_remove("LOCKIFY_SPACE");
    command.stdin(Stdio::null()).uid(SOMEBODY).gid(SOMEBODY);
    command
}

#[test]
fn who_cannot_be_killed_is_named_and_keeps_the_lock() {
    if !rustix::process::getuid().is_root() {
        // Nobody else can make such a program.
        return;
    }
    let user = User::new();
    std::fs::set_permissions(user.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (program, home) = (program_of_root(user.dir()), user.dir().join("home"));
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
    // The state of a user without a home outlives the test.
    let _ = std::fs::remove_dir_all(format!("/var/tmp/lockify-{SOMEBODY}"));
    let script = r#"cd "$XDG_RUNTIME_DIR"; "$0" --reuid 0 sleep 600 > log 2>&1 & echo $! > pid.new; mv pid.new pid; wait"#;
    let _daemon = Process(somebody(&user, &home, &["serve", "--user"]).spawn().unwrap());
    wait_for(|| output(&mut somebody(&user, &home, &["status"])).status.success());
    let args = ["run", "-k", "0.1", "x", "sh", "-c", script, program.to_str().unwrap()];
    let run = somebody(&user, &home, &args).stderr(Stdio::piped()).spawn().unwrap();
    let run = Process(run);
    wait_for(|| home.join("pid").exists());
    let pid: i32 = std::fs::read_to_string(home.join("pid")).unwrap().trim().parse().unwrap();
    // The shell says its number before it has become the program.
    let status = format!("/proc/{pid}/status");
    wait_for(|| std::fs::read_to_string(&status).unwrap().contains("Uid:\t0\t0"));
    run.signal(Signal::TERM);
    let out = end(run);
    assert_eq!(code(&out), 122, "{out:?}");
    assert!(runs(pid) && stderr(&out).contains(&pid.to_string()), "{out:?}");
    assert!(stderr(&out).contains("not permitted"), "{out:?}");
    let next = |patience| {
        let args = ["run", "-w", patience, "x", "true"];
        code(&output(&mut somebody(&user, &home, &args)))
    };
    assert_eq!(next("0"), 124, "the lock is held as long as it runs");
    kill(pid, Signal::KILL);
    assert_eq!(next("20"), 0);
}
