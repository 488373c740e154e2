//! `lockify top`, once and on a real terminal.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::common::{Process, User, all_of, code, read_until, stderr, stdout, wait_for};
use lockify_client::{Client, Mode};

#[test]
fn once_prints_contended_locks_as_text_and_json() {
    let user = User::new();
    let _daemon = user.daemon();
    let space = || {
        let client = Client::connect(user.socket()).unwrap();
        client.lockspace("default").unwrap()
    };
    let (held, other) = (space().lock("db", Mode::EX).unwrap(), space());
    let waits = std::thread::spawn(move || other.lock("db", Mode::PR).map(drop));
    wait_for(|| stdout(&user.lockify(&["who", "db"])).contains("waits for"));
    let text = stdout(&user.lockify(&["top", "--once", "--interval", "100ms"]));
    assert!(text.contains("db") && text.contains("runs"), "{text}");
    let json = user.lockify(&["top", "--once", "--json", "--interval", "100ms"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let db = &json["contended"][0];
    assert_eq!(
        (&json["schema"], &db["resource"], &db["waiters"]),
        (&1.into(), &"db".into(), &1.into())
    );
    assert_eq!(db["blocker"]["pid"], std::process::id());
    assert_eq!(json["nodes"][0]["state"], "runs");
    held.unlock().unwrap();
    waits.join().unwrap().unwrap();
    let text = stdout(&user.lockify(&["top", "--once", "--interval", "100ms"]));
    assert!(text.contains("nobody waits"), "{text}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let user = User::new();
    let _daemon = user.daemon();
    let out = user.lockify(&["top"]);
    assert_eq!(code(&out), 2, "{out:?}");
    assert!(stderr(&out).contains("--once"), "{out:?}");
}

/// A pseudo-terminal: the side that a person sits at, and the program's.
fn terminal() -> (std::fs::File, OwnedFd) {
    use rustix::fs::OFlags;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    // Not for children, or the terminal would live as long as they.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let person = openpt(flags).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let path = ptsname(&person, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let program = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&person, size).unwrap();
    (person.into(), program)
}

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

fn on_terminal(user: &User, program: OwnedFd) -> Command {
    let mut top = user.command(&["top", "--interval", "100ms"]);
    top.stdin(program.try_clone().unwrap()).stdout(program).stderr(Stdio::piped());
    top.env("TERM", "xterm");
    top
}

/// `top` on a terminal, once it has drawn its screen.
struct OnTerminal {
    person: std::fs::File,
    program: OwnedFd,
    before: rustix::termios::Termios,
    said: String,
    top: Process,
}

impl OnTerminal {
    fn start(user: &User) -> OnTerminal {
        let (person, program) = terminal();
        let before = rustix::termios::tcgetattr(&program).unwrap();
        let kept = program.try_clone().unwrap();
        let top = Process(on_terminal(user, program).spawn().unwrap());
        let mut it = OnTerminal { person, program: kept, before, said: String::new(), top };
        read_until(&mut it.person, &mut it.said, ENTERS);
        read_until(&mut it.person, &mut it.said, "lockify top");
        let raw = rustix::termios::tcgetattr(&it.program).unwrap();
        assert_ne!(raw.local_modes, it.before.local_modes);
        it
    }

    /// The terminal is as before, and the program ends with this code; returns its output.
    fn ends(mut self, code: i32) -> String {
        read_until(&mut self.person, &mut self.said, LEAVES);
        let status = self.top.ended();
        assert_eq!(status.code(), Some(code));
        let now = rustix::termios::tcgetattr(&self.program).unwrap();
        assert_eq!(
            (now.local_modes, now.input_modes, now.output_modes),
            (self.before.local_modes, self.before.input_modes, self.before.output_modes)
        );
        String::from_utf8(all_of(self.top.0.stderr.take().unwrap())).unwrap()
    }
}

#[test]
fn the_terminal_is_as_before_after_q() {
    let user = User::new();
    let _daemon = user.daemon();
    let mut on = OnTerminal::start(&user);
    on.person.write_all(b"q").unwrap();
    assert_eq!(on.ends(0), "");
}

#[test]
fn the_terminal_is_as_before_after_signals() {
    let user = User::new();
    let _daemon = user.daemon();
    for (name, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        let on = OnTerminal::start(&user);
        let pid = on.top.0.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
        assert_eq!(on.ends(128 + number), "");
    }
}

#[test]
fn the_terminal_is_as_before_after_an_error() {
    let user = User::new();
    let mut daemon = user.daemon();
    let on = OnTerminal::start(&user);
    daemon.kill();
    let error = on.ends(3);
    assert!(error.contains("daemon"), "{error}");
}

#[test]
fn it_ends_with_its_terminal() {
    let user = User::new();
    let _daemon = user.daemon();
    let OnTerminal { person, program, mut top, .. } = OnTerminal::start(&user);
    drop((person, program));
    assert_eq!(top.ended().code(), Some(128 + 1));
}
