//! Compiling C programs and running them against the libraries that the tests were built with.

#[path = "../../../../daemon/tests/it/common/ports.rs"]
pub mod ports;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockify_daemon::{Config, Daemon, Log};

use ports::free_address;

/// Much longer than anything takes; a program that runs this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shared library as cargo has built it, beside this program.
pub fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let path = program.parent().unwrap().join(format!("{name}.so"));
    assert!(path.exists(), "{} was not built", path.display());
    path
}

/// Where Debian's libdlm3 and libdlm-dev are.
pub struct Debian {
    pub libraries: PathBuf,
}

/// Debian's packages, if they are installed.
pub fn debian() -> Option<Debian> {
    let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .into_iter()
        .map(PathBuf::from)
        .find(|dir| dir.join("libdlm.so.3").exists() && dir.join("libdlm.so").exists());
    let found = found.filter(|_| Path::new("/usr/include/libdlm.h").exists());
    let required = std::env::var_os("LOCKIFY_TEST_LIBDLM").is_some();
    assert!(found.is_some() || !required, "install libdlm3 and libdlm-dev");
    found.map(|libraries| Debian { libraries })
}

/// Compiles C programs, for libraries in a folder under the names that the loader looks for.
pub struct Compiler {
    dir: PathBuf,
    debian: bool,
}

impl Compiler {
    /// With our header, linked with our libraries.
    pub fn ours(dir: &Path) -> Compiler {
        Compiler::new(dir, false)
    }

    /// With Debian's header, linked with Debian's libraries; run with ours all the same.
    pub fn debian(dir: &Path) -> Compiler {
        Compiler::new(dir, true)
    }

    fn new(dir: &Path, debian: bool) -> Compiler {
        let libraries = dir.join("lib");
        if !libraries.exists() {
            std::fs::create_dir(&libraries).unwrap();
            for name in ["libdlm", "libdlm_lt"] {
                // Copies: another user may not reach the place where they were built.
                std::fs::copy(library(name), libraries.join(format!("{name}.so.3"))).unwrap();
                symlink(format!("{name}.so.3"), libraries.join(format!("{name}.so"))).unwrap();
            }
        }
        Compiler { dir: dir.to_owned(), debian }
    }

    /// Compiles a program; any warning is an error.
    pub fn compile(&self, source: &Path, name: &str, library: &str) -> PathBuf {
        let program = self.dir.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        if library == "libdlm" {
            cc.arg("-D_REENTRANT");
        }
        if !self.debian {
            cc.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
            cc.arg("-L").arg(self.dir.join("lib"));
        }
        cc.arg(source).arg(format!("-l{}", library.trim_start_matches("lib"))).arg("-pthread");
        said(&mut cc);
        program
    }

    /// Runs a program with our libraries.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.dir.join("lib"));
        command
    }
}

/// A daemon for the programs.
pub struct Running {
    pub socket: PathBuf,
    pub daemon: Option<Daemon>,
}

impl Running {
    /// A cluster of one node.
    pub fn start(dir: &Path, extra: &str) -> Running {
        Running::node(dir, 1, &format!("{extra}\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n"))
    }

    /// A cluster of two.
    pub fn two(dir: &Path) -> [Running; 2] {
        let nodes = [1, 2].map(|id| {
            let address = free_address();
            format!("[[nodes]]\nid = {id}\naddress = \"{address}\"\n")
        });
        [1, 2].map(|id| Running::node(dir, id, &nodes.concat()))
    }

    fn node(dir: &Path, id: u32, extra: &str) -> Running {
        let socket = dir.join(format!("{id}.sock"));
        let text = format!("node = {id}\nsocket = {socket:?}\n{extra}");
        let config = Config::parse(&text, &dir.join("lockify.toml")).unwrap();
        let daemon = Daemon::start(&config, &Log::new(|_| ())).unwrap();
        Running { socket, daemon: Some(daemon) }
    }
}

/// Waits on another thread, because what blocks has no time limit of its own.
pub fn within<T: Send + 'static>(what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(wait()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("in vain waited for {what}: {e}"))
}

/// The output of a command, which has to succeed and to end.
pub fn said(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || std::io::read_to_string(&mut out).unwrap());
    let err = std::thread::spawn(move || std::io::read_to_string(&mut err).unwrap());
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() >= end {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    assert!(status.is_some_and(|s| s.success()), "{command:?}: {status:?}\n{out}\n{err}");
    out
}
