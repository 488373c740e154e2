//! Another program as a load: its time, and the final barrier.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Ended;
use crate::barrier::settle;
use crate::failure::{Failure, OnFile as _};
use crate::latency::Sampler;
use crate::outcome::{Outcome, Phase};
use crate::start::{Clock, wait_until};
use crate::witness::Witness;

/// Run another program and time it as a load.
#[derive(clap::Args)]
pub struct Args {
    /// The directory in which it works: the final barrier gives up its lock.
    #[arg(long)]
    at: PathBuf,
    /// How many operations it does.
    #[arg(long)]
    operations: u64,
    /// When to begin, in seconds since 1970.
    #[arg(long, value_name = "SECONDS")]
    start_at: Option<f64>,
    /// Where `lockify-load witness` runs on another node.
    #[arg(long, value_name = "ADDRESS:PORT")]
    witness: Option<SocketAddr>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs it; its output goes to standard error.
pub fn run(args: &Args) -> Ended {
    let mut witness = args.witness.map(Witness::connect).transpose()?;
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Failure::Other("no program is given".to_owned()));
    };
    wait_until(args.start_at)?;
    let clock = Clock::start();
    let mut command = Command::new(program);
    command.args(rest).stdin(Stdio::inherit()).stdout(std::io::stderr());
    let status = command.status().on("run", program.as_ref())?;
    let done = clock.elapsed();
    if !status.success() {
        return Err(Failure::Other(format!("{program} failed: {status}")));
    }
    settle(std::slice::from_ref(&args.at), witness.as_mut())?;
    let span = clock.stop(done);
    let phase =
        Phase { operations: args.operations, ..Phase::new("exec", "", &Sampler::new(), &span) };
    Outcome { workload: "exec", phases: vec![phase] }.print()
}
