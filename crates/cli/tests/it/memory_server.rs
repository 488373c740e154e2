//! `lockify memory-server` and `lockify remote-lock`: exclusion, leases, killed holders and servers, refusals.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use crate::common::{Process, User, code, first_line, stderr, stdout, wait_for};

struct Table {
    user: User,
    path: PathBuf,
    server: Option<Process>,
}

impl Table {
    fn serve(args: &[&str]) -> Table {
        let user = User::new();
        let path = user.dir().join("table");
        let mut table = Table { user, path, server: None };
        table.start(args);
        table
    }

    fn start(&mut self, args: &[&str]) {
        let all = [&["memory-server", "--table", self.path.to_str().unwrap()], args].concat();
        let mut server = Process(self.user.command(&all).stdout(Stdio::piped()).spawn().unwrap());
        let line = first_line(server.0.stdout.take().unwrap());
        assert!(line.contains("try: lockify remote-lock"), "it said {line:?}");
        self.server = Some(server);
    }

    fn signal(&mut self, name: &str) -> std::process::ExitStatus {
        let mut server = self.server.take().unwrap();
        let pid = server.0.id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-s", name, &pid]).status().unwrap().success()
        );
        server.ended()
    }

    /// Runs a script under a lock.
    fn lock(&self, name: &str, script: &str) -> Output {
        self.user.lockify(&[
            "remote-lock",
            self.path.to_str().unwrap(),
            name,
            "--",
            "sh",
            "-c",
            script,
        ])
    }

    /// A holder that has said that it holds.
    fn hold(&self, name: &str) -> Process {
        let flag = self.user.dir().join(format!("holds-{name}"));
        let script = format!("touch {}; sleep 60", flag.display());
        let args = ["remote-lock", self.path.to_str().unwrap(), name, "--", "sh", "-c", &script];
        let held = Process(self.user.command(&args).stderr(Stdio::null()).spawn().unwrap());
        wait_for(|| flag.exists());
        held
    }
}

#[test]
fn commands_exclude_each_other() {
    for protocol in ["shiftlock-s", "srsl"] {
        let table = Table::serve(&["--protocol", protocol, "--locks", "4"]);
        let file = table.user.dir().join("count");
        std::fs::write(&file, "0\n").unwrap();
        let script = format!("read n < {0}; sleep 0.01; echo $((n + 1)) > {0}", file.display());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| assert_eq!(code(&table.lock("n", &script)), 0)));
            }
        });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "20\n", "{protocol}");
    }
}

#[test]
fn the_command_has_name_and_token_and_its_exit_code_counts() {
    let table = Table::serve(&[]);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let out = table.lock("db", "echo $LOCKIFY_TOKEN $LOCKIFY_NAME; exit 7");
        assert_eq!(code(&out), 7, "{out:?}");
        let said = stdout(&out);
        let (token, name) = said.trim().split_once(' ').unwrap();
        assert_eq!(name, "db");
        tokens.push(token.parse::<u64>().unwrap());
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn a_command_does_not_outlive_its_lease() {
    let table = Table::serve(&["--lease", "300ms"]);
    let out = table.lock("db", "sleep 60");
    assert_eq!(code(&out), 123, "{out:?}");
    assert!(stderr(&out).contains("the lease of the lock has ended"), "{out:?}");
    assert_eq!(code(&table.lock("db", "true")), 0);
}

#[test]
fn the_lock_of_a_killed_holder_is_given_on() {
    let table = Table::serve(&["--lease", "300ms", "--locks", "1"]);
    let mut holder = table.hold("db");
    holder.0.kill().unwrap();
    assert_eq!(code(&table.lock("db", "true")), 0);
}

/// Protocols that have leases.
const PROTOCOLS: [&str; 10] = [
    "srsl",
    "n-cosed",
    "dqnl",
    "cas-spin",
    "dslr",
    "mcs",
    "shiftlock",
    "shiftlock+",
    "drtm",
    "shiftlock-s",
];

/// However a server ends, its clients keep their locks, and the next server knows.
#[test]
fn the_next_server_goes_on_with_the_table() {
    for (protocol, signal) in
        [("shiftlock-s", "TERM"), ("mcs", "KILL"), ("srsl", "TERM"), ("srsl", "KILL")]
    {
        // A holder that is alive has to be so for longer than the test takes.
        let args = ["--protocol", protocol, "--lease", "5s", "--locks", "1"];
        let mut table = Table::serve(&args);
        let tokens = table.user.dir().join("tokens");
        let token = format!("echo $LOCKIFY_TOKEN >> {}", tokens.display());
        assert_eq!(code(&table.lock("db", &token)), 0, "{protocol}");
        let holder = table.hold("db");
        table.signal(signal);
        assert!(table.path.exists(), "{protocol}");
        // One who comes while there is no server, and one who comes afterwards.
        let next = |table: &Table, n: usize| {
            let script = format!("touch {}/next{n}; {token}", table.user.dir().display());
            let args =
                ["remote-lock", table.path.to_str().unwrap(), "db", "--", "sh", "-c", &script];
            Process(table.user.command(&args).stderr(Stdio::null()).spawn().unwrap())
        };
        let mut first = next(&table, 1);
        table.start(&args);
        let mut second = next(&table, 2);
        std::thread::sleep(std::time::Duration::from_millis(300));
        for n in [1, 2] {
            let early = table.user.dir().join(format!("next{n}")).exists();
            assert!(!early, "{protocol}: what a holder has was granted again");
        }
        holder.signal(rustix::process::Signal::TERM);
        assert!(first.ended().success() && second.ended().success(), "{protocol}");
        let tokens = std::fs::read_to_string(tokens).unwrap();
        let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
        assert!(tokens.len() == 3 && tokens.is_sorted_by(|a, b| a < b), "{protocol}: {tokens:?}");
    }
}

/// A supervisor that starts a server again at once, whatever ends it.
#[test]
fn servers_that_end_over_and_over_grant_nothing_twice() {
    for protocol in PROTOCOLS {
        let args = ["--protocol", protocol, "--lease", "5s", "--locks", "1"];
        let mut table = Table::serve(&args);
        let (user, path) = (User::new(), table.path.to_str().unwrap().to_owned());
        let file = |name: &str| user.dir().join(name).display().to_string();
        let script = format!(
            "echo $LOCKIFY_TOKEN >> {}; exec flock -n -E 9 {} sleep 0.01",
            file("tokens"),
            file("judge")
        );
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let out =
                            user.lockify(&["remote-lock", &path, "db", "--", "sh", "-c", &script]);
                        assert_eq!(code(&out), 0, "{protocol}: {out:?}");
                    }
                });
            }
            for n in 0..6 {
                table.signal(if n % 2 == 0 { "KILL" } else { "TERM" });
                table.start(&args);
            }
        });
        let tokens = std::fs::read_to_string(file("tokens")).unwrap();
        let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
        assert!(tokens.len() == 12 && tokens.is_sorted_by(|a, b| a < b), "{protocol}: {tokens:?}");
    }
}

/// The users of a table may hold its locks. No other table takes its place until they are gone, and an operator asks
/// for that.
#[test]
fn a_table_is_replaced_when_nobody_uses_it_and_somebody_says_so() {
    let mut table = Table::serve(&[]);
    let path = table.path.to_str().unwrap().to_owned();
    let refused = |table: &Table, args: &[&str], said: &str| {
        let out = table.user.lockify(&[&["memory-server", "--table", &path], args].concat());
        assert_eq!(code(&out), 3, "{out:?}");
        assert!(stderr(&out).contains(said), "{out:?}");
    };
    refused(&table, &[], "a memory server among them");
    refused(&table, &["--new"], "a memory server among them");
    let mut holder = table.hold("db");
    table.signal("KILL");
    refused(&table, &["--new"], "is in use by 1 processes");
    refused(&table, &["--locks", "8"], "has a table of 65536 locks by shiftlock-s");
    refused(&table, &["--lease", "1s"], "with leases of 10s");
    // Others still take locks meanwhile.
    assert_eq!(code(&table.lock("other", "true")), 0);
    holder.kill();
    table.start(&["--new", "--locks", "8"]);
    assert_eq!(code(&table.lock("db", "true")), 0);
}

/// Without leases, only a server of srsl knew who held what.
#[test]
fn without_leases_a_server_waits_for_the_clients_of_the_one_before() {
    let args = ["--protocol", "srsl", "--lease", "0s"];
    let mut table = Table::serve(&args);
    let mut holder = table.hold("db");
    table.signal("KILL");
    let path = table.path.to_str().unwrap().to_owned();
    let out = table.user.lockify(&[&["memory-server", "--table", &path], &args[..]].concat());
    assert!(code(&out) == 3 && stderr(&out).contains("is in use by 1 processes"), "{out:?}");
    let out = table.lock("db", "true");
    assert!(code(&out) == 125 && stderr(&out).contains("without leases needs it"), "{out:?}");
    // In order, so that all of it is gone when it has ended.
    holder.end();
    table.start(&args);
    assert_eq!(code(&table.lock("db", "true")), 0);
}

#[test]
fn nonsense_is_refused() {
    let user = User::new();
    let path = user.dir().join("table");
    let path = path.to_str().unwrap();
    for (args, said) in [
        (["--locks", "0"], "0 is not in"),
        (["--clients", "512"], "512 is not in"),
        (["--mode", "999"], "octal"),
        (["--mode", "044"], "the owner has to read and write"),
        (["--lease", "1us"], "--lease is 1ms"),
        (["--lease", "soon"], "soon"),
        (["--protocol", "none"], "use one of: srsl"),
    ] {
        let out = user.lockify(&[&["memory-server", "--table", path], &args[..]].concat());
        assert_eq!(code(&out), 2, "{args:?}: {out:?}");
        assert!(stderr(&out).contains(said), "{args:?}: {out:?}");
    }
    for locks in ["18446744073709551615", "100000000000000"] {
        let out = user.lockify(&["memory-server", "--table", path, "--locks", locks]);
        assert_eq!(code(&out), 3, "{out:?}");
        assert!(!std::path::Path::new(path).exists());
    }
    std::fs::write(path, "something else").unwrap();
    let out = user.lockify(&["memory-server", "--table", path]);
    assert!(code(&out) == 3 && stderr(&out).contains("is no segment"), "{out:?}");
    let out = user.lockify(&["remote-lock", path, "db", "--", "true"]);
    assert!(code(&out) == 125 && stderr(&out).contains("is no segment"), "{out:?}");
}

/// Without a device; with one, `labs/kernels/tests/rdma` has it serve.
#[test]
fn rdma_that_cannot_be_is_refused() {
    let user = User::new();
    let (serve, hold) =
        (["memory-server", "--fabric", "verbs"], ["remote-lock", "--fabric", "verbs"]);
    let refused = |args: &[&str], status: i32, said: &str| {
        let out = user.lockify(args);
        assert_eq!(code(&out), status, "{args:?}: {out:?}");
        assert!(stderr(&out).contains(said), "{args:?}: {out:?}");
    };
    let listen = ["--listen", "127.0.0.1:0", "--rdma-device", "no-such-device"];
    let out = user.lockify(&[&serve[..], &listen].concat());
    let said = ["install libibverbs1", "has no RDMA device", "no RDMA device no-such-device"];
    assert!(code(&out) == 3 && said.iter().any(|said| stderr(&out).contains(said)), "{out:?}");
    refused(&serve, 2, "--listen");
    refused(&["memory-server", "--listen", "127.0.0.1:0"], 2, "for --fabric verbs");
    refused(&[&serve[..], &["--listen", "here"]].concat(), 2, "here");
    refused(&[&serve[..], &listen, &["--plain-text", "yes"]].concat(), 2, "for plain text");
    refused(&[&serve[..], &listen, &["--ack-timeout", "31"]].concat(), 2, "31");
    refused(&[&hold[..], &["db", "--", "true"]].concat(), 2, "--server");
    let nobody = ["--server", "127.0.0.1:1"];
    refused(
        &[&hold[..], &nobody, &["db", "--", "true"]].concat(),
        125,
        "cannot reach the memory server",
    );
    refused(&[&hold[..], &nobody, &["table", "db", "--", "true"]].concat(), 2, "one name");
    let elsewhere = ["--server", "192.0.2.1:1", "db", "--", "true"];
    refused(&[&hold[..], &elsewhere].concat(), 125, "is not loopback");
    refused(
        &["remote-lock", "--server", "127.0.0.1:1", "a", "b", "--", "true"],
        2,
        "--fabric verbs",
    );
    refused(&["remote-lock", "a", "--", "true"], 2, "give the table");
}
