//! Lockify beside others that give locks: etcd, Redis, ZooKeeper and the Linux kernel's DLM.
//!
//! Servers are started in a temporary folder, on free ports of the loopback interface, and each is
//! locked with as its users do it; `docs/peers.md` says how, and why that is fair. Every service
//! has its turn in every round, so that all have the same machine under the same load.
#![deny(unsafe_code)]

mod error;
#[cfg(feature = "clients")]
mod etcd;
mod goals;
#[cfg(feature = "clients")]
mod grpc;
#[cfg(feature = "clients")]
mod jute;
mod kernel;
mod lockify;
mod page;
mod plan;
mod process;
mod programs;
#[cfg(feature = "clients")]
mod redis;
mod service;
mod turn;
#[cfg(feature = "clients")]
mod zookeeper;

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_report::Row;

pub use error::Error;
pub use kernel::{Kernel, relock_embedded};
pub use plan::Effort;

use crate::error::During as _;
use crate::goals::Goal;
use crate::page::Found;
use crate::plan::{Failures, Group, Series};
use crate::programs::Programs;

/// The options of the measurement.
pub struct Options {
    /// The program `lockify`, whose daemons are measured.
    pub lockify: PathBuf,
    /// How much.
    pub effort: Effort,
    /// Everything is ended when this time is over.
    pub limit: Duration,
    /// Where the servers' data, and created files, are.
    pub folder: Option<PathBuf>,
    /// The kernel's lock manager, too.
    pub kernel: Option<Kernel>,
}

/// The findings.
pub struct Outcome {
    /// All result rows.
    pub rows: Vec<Row>,
    /// Tables, goals, and the missing measurements.
    pub text: String,
    /// The same with plots, in HTML.
    pub page: String,
    /// The failures. Programs that are merely not installed are not among them.
    pub failures: Vec<String>,
    /// True if one of the others is not installed, or its client not built.
    pub lacks_peers: bool,
}

/// Starts a group in a folder.
type Start<'a> = &'a dyn Fn(&Path) -> (Group, Failures);

/// Measures. `started` is told the number of turns of each group, `done` each turn's end.
///
/// # Errors
/// Nothing can be measured; parts that cannot are among [`Outcome::failures`].
pub fn run(
    options: &Options,
    started: &dyn Fn(&str, usize),
    done: &dyn Fn(),
) -> Result<Outcome, Error> {
    let folder = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.during("cannot make a temporary folder")?;
    process::end_in_time(folder.path().to_owned(), options.limit)?;
    let (programs, mut missing) = Programs::find();
    let lacks_peers = !missing.is_empty();
    let starts: [Start<'_>; 3] = [
        &|folder| Group::one(&options.lockify, &programs, folder),
        &|folder| Group::three(&options.lockify, &programs, folder),
        &|folder| Group::delayed(&options.lockify, folder),
    ];
    let mut failures = Failures::new();
    let mut series: Vec<Series> = Vec::new();
    for start in starts {
        let own = tempfile::tempdir_in(folder.path()).during("cannot make a temporary folder")?;
        let (group, failed) = start(own.path());
        failures.extend(failed);
        started(group.title, group.turns() * options.effort.rounds);
        series.extend(group.measure(options.effort, own.path(), &mut failures, done));
    }
    let mut goals: Vec<Goal> = goals::judge(&series);
    let mut rows: Vec<Row> = series.iter().flat_map(Series::rows).collect();
    if let Some(kernel) = &options.kernel {
        started("the kernel's lock manager, in the lab", 0);
        let Options { lockify, effort, limit, .. } = options;
        match kernel::measure_in_lab(kernel, lockify, *effort, *limit, folder.path()) {
            Ok(in_lab) => {
                goals.extend(kernel::judge(&in_lab));
                rows.extend(in_lab);
            }
            Err(e) => failures.push(e.to_string()),
        }
    } else {
        missing.push("the kernel's lock manager: give --kernel, as root in a checkout".into());
    }
    let found = Found { rows: &rows, series: &series, goals: &goals, missing, failures };
    let (text, page) = (page::text(&found), page::html(&found));
    let failures = found.failures;
    rows.extend(goals.iter().map(Goal::row));
    Ok(Outcome { rows, text, page, failures, lacks_peers })
}
