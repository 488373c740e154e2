//! The kernel's lock manager through libdlm, in nodes of the lab, and Lockify in the same nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockify_report::{Row, metric};

use crate::error::{During as _, Error};
use crate::goals::{Goal, ratios};
use crate::lockify::Embedded;
use crate::plan::Effort;
use crate::process::{Place, Process};
use crate::turn::{Task, measure};

/// How to measure it.
pub struct Kernel {
    /// The lab's command, of a checkout.
    pub lab: PathBuf,
    /// Where `make lib` has put Lockify's libraries.
    pub libraries: PathBuf,
}

/// The benchmark's name in the lab's rows.
pub const BENCH: &str = "locks";

/// The result rows of `labs/kernels/lab bench locks`.
///
/// # Errors
/// The lab or the libraries are not there, or it fails: its last output.
pub fn measure_in_lab(
    kernel: &Kernel,
    lockify: &Path,
    effort: Effort,
    limit: Duration,
    folder: &Path,
) -> Result<Vec<Row>, Error> {
    if !kernel.lab.is_file() {
        let lab = kernel.lab.display();
        return Err(Error::new(format!("{lab} is missing: run this in a checkout, as root")));
    }
    let out = folder.join("locks.jsonl");
    let mut command = Command::new(&kernel.lab);
    command.args(["bench", "locks", "--rounds", &effort.rounds.to_string()]);
    command.args(["--seconds", &effort.turn.as_secs_f64().to_string()]);
    command.arg("--lockify").arg(lockify).arg("--libraries").arg(&kernel.libraries);
    command.arg("--out").arg(&out);
    let mut lab = Process::start(command, &folder.join("lab.log"), Place::Anywhere)?;
    lab.await_end(limit)?;
    lockify_report::read_file(out).during("the lab's results")
}

/// The goals about it: the time of a pair, relative to the kernel's by the same library, and of an
/// embedded node relative to the kernel's by the faster one.
pub fn judge(rows: &[Row]) -> Vec<Goal> {
    let times = |service: &str, by: &str| {
        let of = |row: &&Row| {
            let is =
                |key: &str, value: &str| row.case.get(key).is_some_and(|v| v.to_string() == value);
            row.bench == BENCH
                && row.metric == metric::LATENCY_US.name
                && is("nodes", "1")
                && is("task", &Task::Relock.name())
                && is("service", service)
                && is("by", by)
                && is("percentile", "50")
        };
        rows.iter().find(of).map(|row| row.rounds.clone())
    };
    let compared = [("dlm_lt", "dlm_lt"), ("dlm", "dlm"), ("embedded", "dlm_lt")];
    let goals = compared.into_iter().filter_map(|(ours, theirs)| {
        let rounds = ratios(&times("lockify", ours)?, &times("kernel", theirs)?);
        let what = format!("local re-lock, lockify by {ours} / kernel by {theirs}");
        Some(Goal::new(what, rounds, 2.0, false))
    });
    goals.collect()
}

/// Local re-locks of an embedded node: pairs per second, and the 50th and 99th percentile of a
/// pair's time in microseconds. The lab runs this in its node.
///
/// # Errors
/// The node does not start, or fails.
pub fn relock_embedded(length: Duration) -> Result<[f64; 3], Error> {
    let node = Embedded::start(1, Duration::ZERO)?;
    let turn = measure(&node, Task::Relock, length, 0, Path::new("/"))?;
    let us = |q| turn.times.value_at_quantile(q) as f64 / 1e3;
    Ok([turn.per_second, us(0.5), us(0.99)])
}
