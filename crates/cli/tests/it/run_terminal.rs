//! `lockify run` at a terminal, and the command's inheritance from lockify's caller: signals,
//! groups.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::common::{Process, User, code, output, read_until, stderr, stdout, wait_for};
use nix::sys::signal::{SigHandler, SigSet, Signal as Which};
use rustix::process::Signal;

/// A pseudo-terminal: the side that a person sits at, and the programs'.
fn terminal() -> (File, OwnedFd) {
    use rustix::fs::OFlags;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let person = openpt(flags).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let path = ptsname(&person, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    (person.into(), rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap())
}

/// A shell on a terminal of its own, which runs a script with job control.
struct Session {
    shell: Process,
    person: File,
    said: String,
}

impl Session {
    /// `$LOCKIFY` is the command line.
    fn start(user: &User, script: &str) -> Session {
        let (person, program) = terminal();
        let lockify = user.command(&[]);
        let mut shell = Command::new("setsid");
        // Whoever runs the tests may ignore signals, and a shell cannot take that back.
        shell.args(["--ctty", "--wait", "env", "--default-signal", "sh", "-mc", script]);
        for (name, value) in lockify.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env("LOCKIFY", lockify.get_program()).env("DIR", user.dir());
        let ours = || Stdio::from(program.try_clone().unwrap());
        shell.stdin(ours()).stdout(ours()).stderr(ours());
        let shell = Process(shell.spawn().unwrap());
        Session { shell, person, said: String::new() }
    }

    /// Reads until this has been said.
    fn until(&mut self, what: &str) {
        read_until(&mut self.person, &mut self.said, what);
    }

    fn types(&mut self, what: &str) {
        self.person.write_all(what.as_bytes()).unwrap();
    }
}

fn is_free(user: &User) -> bool {
    code(&user.lockify(&["run", "-w", "20", "x", "true"])) == 0
}

#[test]
fn a_command_with_piped_input_may_ask_at_the_terminal() {
    let user = User::new();
    let _daemon = user.daemon();
    let script = r#"
        echo data | $LOCKIFY run x -- sh -c 'read a; echo ask; read b < /dev/tty; echo $a-$b'
        echo ended $?"#;
    let mut session = Session::start(&user, script);
    session.until("ask");
    session.types("secret\n");
    session.until("data-secret");
    session.until("ended 0");
}

#[test]
fn control_c_ends_a_command_with_piped_input_and_all_that_it_has_started() {
    let user = User::new();
    let _daemon = user.daemon();
    let script = r#"
        cd $DIR
        echo data | $LOCKIFY run -k 0.1 x -- sh -c '
            (setsid sh -c "trap \"\" INT TERM; echo \$\$ > pid.new; mv pid.new pid; sleep 600" &)
            until [ -e pid ]; do sleep 0.02; done
            echo runs; exec sleep 600'
        echo ended $?"#;
    // A shell would first wait for a program that it has begun just after the signal came.
    let mut session = Session::start(&user, script);
    session.until("runs");
    session.types("\x03");
    session.until("ended 130");
    let pid = std::fs::read_to_string(user.dir().join("pid")).unwrap();
    assert!(!std::fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    assert!(is_free(&user));
}

#[test]
fn a_command_that_goes_on_after_control_c_does() {
    let user = User::new();
    let _daemon = user.daemon();
    let script = r#"
        $LOCKIFY run -k 0.1 x -- sh -c 'trap "echo caught" INT; echo runs; read a; read a; echo $a'
        echo ended $?"#;
    let mut session = Session::start(&user, script);
    session.until("runs");
    session.types("\x03");
    session.until("caught");
    // Later than the time after which it would be killed.
    std::thread::sleep(std::time::Duration::from_millis(300));
    session.types("on\non\n");
    session.until("\non\r\n");
    session.until("ended 0");
}

#[test]
fn control_z_stops_and_fg_continues_a_command_with_piped_input() {
    let user = User::new();
    let _daemon = user.daemon();
    // The command waits by itself: a shell that begins a program just then is not stopped before that is.
    let script = r#"
        cd $DIR; mkfifo go
        echo data | $LOCKIFY run x -- sh -c 'echo $$ > pid; echo runs; read line < go; cat'
        echo stopped; until [ -e continue ]; do sleep 0.02; done; fg; echo ended $?"#;
    let mut session = Session::start(&user, script);
    session.until("runs");
    session.types("\x1a");
    session.until("stopped");
    let pid = std::fs::read_to_string(user.dir().join("pid")).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    wait_for(|| std::fs::read_to_string(&stat).unwrap().contains(") T "));
    let other = user.lockify(&["run", "-n", "x", "true"]);
    assert_eq!(code(&other), 124, "a stopped command keeps its lock: {other:?}");
    std::fs::write(user.dir().join("continue"), "").unwrap();
    // It may have been stopped before it listened.
    std::fs::write(user.dir().join("go"), "\n").unwrap();
    session.until("data");
    session.until("ended 0");
}

#[test]
fn a_lost_lock_ends_all_at_a_terminal_too() {
    let user = User::new();
    let mut daemon = user.daemon();
    let script = r#"
        cd $DIR
        $LOCKIFY run x -- sh -c '
            (setsid sh -c "echo \$\$ > pid.new; mv pid.new pid; sleep 600" &)
            sh -c "sleep 600" & until [ -e pid ]; do sleep 0.02; done; echo runs; wait'
        echo ended $?"#;
    let mut session = Session::start(&user, script);
    session.until("runs");
    daemon.kill();
    session.until("ended 123");
    assert!(session.said.contains("killed"), "{}", session.said);
    let pid = std::fs::read_to_string(user.dir().join("pid")).unwrap();
    assert!(!std::fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    session.shell.ended();
}

/// The command line with signals as some callers leave them.
#[allow(unsafe_code)]
fn called_with(
    user: &User,
    ignored: &'static [Which],
    blocked: &[Which],
    args: &[&str],
) -> Command {
    let mut command = user.command(args);
    let blocked: SigSet = blocked.iter().copied().collect();
    let prepare = move || {
        for signal in ignored {
            // SAFETY: no function is called when the signal comes.
            unsafe { nix::sys::signal::signal(*signal, SigHandler::SigIgn) }?;
        }
        Ok(blocked.thread_set_mask()?)
    };
    // SAFETY: between fork and exec, it only makes two kinds of system calls.
    unsafe { command.pre_exec(prepare) };
    command.stdin(Stdio::null());
    command
}

#[test]
fn the_command_has_its_callers_ignored_and_blocked_signals() {
    let user = User::new();
    let _daemon = user.daemon();
    let cases: [(&'static [Which], &[Which]); 4] = [
        (&[], &[]),
        (&[Which::SIGHUP, Which::SIGINT, Which::SIGQUIT], &[]),
        (&[Which::SIGPIPE, Which::SIGCHLD], &[Which::SIGUSR2]),
        (&[], &[Which::SIGCHLD, Which::SIGTERM, Which::SIGALRM]),
    ];
    let show = ["-E", "SigBlk|SigIgn", "/proc/self/status"];
    for (ignored, blocked) in cases {
        let words = [&["run", "x", "--", "grep"], &show[..]].concat();
        let out = output(&mut called_with(&user, ignored, blocked, &words));
        assert_eq!(code(&out), 0, "{out:?}");
        let mask = |signals: &[Which]| {
            let bits = signals.iter().map(|signal| 1u64 << (*signal as i32 - 1)).sum::<u64>();
            format!("{bits:016x}")
        };
        // The inherited signals of this test, beyond those with names, are kept, too.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        let unnamed = u64::from_str_radix(own, 16).unwrap() >> 31 << 31;
        let ignored = u64::from_str_radix(&mask(ignored), 16).unwrap() | unnamed;
        let expected = format!("SigBlk:\t{}\nSigIgn:\t{ignored:016x}\n", mask(blocked));
        assert_eq!(stdout(&out), expected, "{}", stderr(&out));
    }
}

#[test]
fn exit_codes_come_whatever_the_caller_blocks_and_ignores() {
    let user = User::new();
    let _daemon = user.daemon();
    let all = [Which::SIGCHLD, Which::SIGTERM, Which::SIGINT, Which::SIGUSR1];
    let words = ["run", "x", "sh", "-c", "sh -c 'exit 4'; exit $?"];
    assert_eq!(code(&output(&mut called_with(&user, &[], &all, &words))), 4);
    let words = ["run", "x", "sh", "-c", "exit 5"];
    assert_eq!(code(&output(&mut called_with(&user, &[Which::SIGCHLD], &[], &words))), 5);
}

#[test]
fn an_ignored_hangup_ends_nothing() {
    let user = User::new();
    let _daemon = user.daemon();
    let flag = user.dir().join("runs");
    let script =
        format!("touch {0}; while [ -e {0} ]; do sleep 0.02; done; exit 3", flag.display());
    let words = ["run", "x", "sh", "-c", &script];
    let mut run = Process(called_with(&user, &[Which::SIGHUP], &[], &words).spawn().unwrap());
    wait_for(|| flag.exists());
    run.signal(Signal::HUP);
    std::fs::remove_file(&flag).unwrap();
    assert_eq!(run.ended().code(), Some(3));
}
