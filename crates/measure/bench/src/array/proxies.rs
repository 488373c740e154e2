//! The block device beside nbdkit's: its `nbd` plugin in front of its `file` plugin has as many hops.
//!
//! Both are filled, then read by fio's NBD client, at random, in requests of a stripe unit. The devices' files are read past
//! the cache; nbdkit's `file` plugin drops what it has read (`cache=none`).

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockify_array::Scheme;
use lockify_report::crew::{Program, Worker};

use super::fleet::{self, Fleet};
use super::worker::{Job, Role};
use super::{BenchError, Settings};

/// The server of the block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Export {
    /// `lockify array export`, in front of five devices.
    Lockify,
    /// nbdkit in front of nbdkit.
    Nbdkit,
}

impl Export {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Export::Lockify => "lockify array export",
            Export::Nbdkit => "nbdkit nbd, nbdkit file",
        }
    }
}

/// Reads per second, each round's.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Through `lockify array export`.
    pub lockify: Vec<f64>,
    /// Through nbdkit.
    pub nbdkit: Vec<f64>,
    /// The missing program, which is also its Debian package's name. Without it neither is measured.
    pub lacking: Option<&'static str>,
}

impl Proxies {
    /// Nothing is measured yet; known is whether it can be.
    pub(super) fn new() -> Proxies {
        let runs = |program: &&str| {
            Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok()
        };
        let lacking = ["fio", "nbdkit"].into_iter().find(|program| !runs(program));
        Proxies { lacking, ..Proxies::default() }
    }

    /// A round of both.
    pub(super) fn measure(&mut self, settings: &Settings, how: &Program) -> Result<(), BenchError> {
        self.lockify.push(lockify(settings, how)?);
        self.nbdkit.push(nbdkit(settings)?);
        Ok(())
    }
}

fn lockify(settings: &Settings, how: &Program) -> Result<f64, BenchError> {
    let dir = super::folder(settings)?;
    let scheme = Scheme::TimestampOrdering;
    let file = fleet::file(scheme, 1, settings).map_err(|e| BenchError::Array(e.to_string()))?;
    let fleet = Fleet::start(&file, dir.path(), settings, how)?;
    let socket = dir.path().join("nbd");
    let role = Role::Export { id: 1, socket: socket.clone() };
    let job = Job { array: fleet.array.clone(), role };
    let mut export = Worker::start(how, "export".into(), &job)?;
    super::ready(&mut export)?;
    reads(&socket, settings)
}

fn nbdkit(settings: &Settings) -> Result<f64, BenchError> {
    let dir = super::folder(settings)?;
    let path = |name: &str| dir.path().join(name);
    let (data, behind, front) = (path("data"), path("behind"), path("front"));
    let failed = |e: std::io::Error| BenchError::Array(e.to_string());
    let file = std::fs::File::create(&data).map_err(failed)?;
    file.set_len(settings.stripes * 256 * 1024).map_err(failed)?;
    let _behind = Nbdkit::start(&behind, &["file", &data.to_string_lossy(), "cache=none"])?;
    let _front = Nbdkit::start(&front, &["nbd", &format!("socket={}", behind.display())])?;
    reads(&front, settings)
}

/// A server of nbdkit's, until it is dropped.
struct Nbdkit(Child);

impl Nbdkit {
    fn start(socket: &Path, plugin: &[&str]) -> Result<Nbdkit, BenchError> {
        let failed =
            |what: String| BenchError::Other { program: "nbdkit", package: "nbdkit", what };
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).args(plugin);
        let started = command.stdin(Stdio::null()).spawn().map_err(|e| failed(e.to_string()))?;
        let mut server = Nbdkit(started);
        let start = Instant::now();
        while !socket.exists() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(failed(format!("{plugin:?} ended ({status})")));
            }
            if start.elapsed() > Duration::from_secs(10) {
                return Err(failed(format!("{plugin:?} does not listen")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fills a block device, and says how many random reads a second it serves.
fn reads(socket: &Path, settings: &Settings) -> Result<f64, BenchError> {
    fio(socket, &["--rw=write", "--bs=256k", "--end_fsync=1"])?;
    let runtime = format!("--runtime={}ms", settings.duration.as_millis().max(1000));
    let random = ["--rw=randread", "--bs=64k", "--norandommap=1", "--time_based=1", &runtime];
    let report = fio(socket, &random)?;
    let rate = report["jobs"][0]["read"]["iops"].as_f64().filter(|iops| *iops > 0.0);
    rate.ok_or_else(|| fio_failed(format!("it reports no reads: {report}")))
}

fn fio(socket: &Path, job: &[&str]) -> Result<serde_json::Value, BenchError> {
    let output = Command::new("fio")
        .args(["--name=job", "--ioengine=nbd", "--iodepth=16", "--output-format=json"])
        .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
        .args(job)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| fio_failed(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Remarks may come before it.
    let report = text.find('{').and_then(|from| serde_json::from_str(&text[from..]).ok());
    report.filter(|_| output.status.success()).ok_or_else(|| {
        fio_failed(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    })
}

fn fio_failed(what: String) -> BenchError {
    BenchError::Other { program: "fio", package: "fio", what }
}
