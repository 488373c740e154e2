//! The demo's options, for `lockify demo` and for the program of `make run`.

use std::path::PathBuf;
use std::time::Duration;

use lockify_core::Policy;

use crate::{Options, Program, Source};

/// Create a directory tree on a real cluster of processes and compare the ways to find a master
///
/// Starts five nodes on the loopback interface, one process each, and replays the creation of a real
/// tree as a shared-disk file system locks it: every entry is really created, with its content,
/// permissions and times (with --mdtest: empty). Prints a table, the expectations and results, and
/// the number of checked lock events; writes the result rows and a page with plots. Timing never
/// changes the exit code; violations and errors do.
#[derive(clap::Args)]
pub struct Args {
    /// The tree to replay
    #[arg(long, value_name = "DIR", default_value = "/usr/share", conflicts_with = "mdtest")]
    tree: PathBuf,
    /// 35,000 entries, as in the paper, instead of 5,000
    #[arg(long)]
    full: bool,
    /// The paper's shape instead of a real tree: mdtest -z 2 -b 2 -I 5000
    #[arg(long, conflicts_with = "full")]
    mdtest: bool,
    /// Rounds; medians and spreads are over them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Delay added to every message; several as a list or by repeating
    #[arg(long, value_name = "D", value_delimiter = ',', value_parser = humantime::parse_duration,
          default_value = "0s,100us,1ms")]
    delay: Vec<Duration>,
    /// Policies to compare
    #[arg(long, value_name = "P", value_delimiter = ',', value_parser = parse_policy,
          default_value = "directory,claim,broadcast,home")]
    policy: Vec<String>,
    /// Longest time of one run; slow cases create fewer entries
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "200ms")]
    budget: Duration,
    /// Keep the parent's lock at least this long, as GFS2 does, when several nodes create
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "0s")]
    hold: Duration,
    /// Gather claims at most this long, or until there are 512 or somebody waits for them
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "50ms")]
    batch_age: Duration,
    /// Create the shared folder in this directory, on the file system to measure on (/dev/shm: in
    /// memory, where all but locking costs the least) [default: that of --out]
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
}

/// Entries by default, and with `--full`.
const ENTRIES: (usize, usize) = (5_000, 35_000);

/// mdtest's `-I`.
const ITEMS: u32 = 5_000;

fn parse_policy(name: &str) -> Result<String, String> {
    let known = name.parse::<Policy>().map_err(|e| e.to_string())?;
    Ok(known.name().to_owned())
}

impl Args {
    /// What to measure. The program `worker` with the argument `demo-worker` runs [`crate::worker::run`].
    pub fn options(self, worker: PathBuf) -> Options {
        let entries = if self.full { ENTRIES.1 } else { ENTRIES.0 };
        let source =
            if self.mdtest { Source::Mdtest(ITEMS) } else { Source::Tree(self.tree, entries) };
        Options {
            source,
            policies: self.policy,
            delays: self.delay,
            rounds: self.rounds,
            budget: self.budget,
            hold: self.hold,
            batch_age: self.batch_age,
            out: self.out,
            shared: self.shared,
            worker: Program { program: worker, args: vec!["demo-worker".into()] },
        }
    }
}
